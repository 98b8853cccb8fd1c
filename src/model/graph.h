/* graph: the private face of model/: layers as a job describes them, before they are compiled.
 *
 * graph.c reads the job (names, from, repeat, presets), layers.c, sequence.c and recurrent.c know
 * each kind of layer, compile.c turns the graph into calls, run.c makes the calls. */
#ifndef TT_GRAPH_H
#define TT_GRAPH_H

#include "model.h"

enum { INPUTS_MOST = 16, LAYER_PARAMS = 4, LAYERS_MOST = 20000, TABLES_MOST = 64 };

/* Every kind's arguments start with these. */
typedef struct common_args {
    const char *name;
    tt_strings from;
    bool freeze;
} common_args;

typedef struct layer layer;
typedef struct graph graph;

typedef struct layer_kind {
    const char *name;
    const tt_key *keys;
    int key_count;
    size_t args_size;
    int inputs_least, inputs_most;
    /* Output shape, parameters, flops and detail from arguments and input shapes. */
    tt_err (*shape)(graph *g, layer *l);
    const tt_custom *custom; /* a kind that a program added */
} layer_kind;

struct layer {
    const char *name, *detail;
    const char *prefix; /* of the block it stands in: "", "blocks.1."       */
    int number;         /* in a name we made up, like conv2; 0: a given name */
    const layer_kind *kind;
    tt_node *at, *args_at; /* for messages */
    void *args;
    int input_count;
    int input[INPUTS_MOST]; /* indices of layers; -1: the model's input */
    tt_shape in, out;       /* in: of the first input */
    int param[LAYER_PARAMS];
    int param_count;
    int shared; /* the first so many of them are those of another layer */
    double flops;
    bool frozen;
    bool ahead; /* of a sequence: a position of its output may see those behind it */
    int table;  /* 1 + that of its rows; 0: they are parameters */
};

typedef struct param_init {
    double bound;
    float fill;
    bool normal;
} param_init; /* uniform or normal, else fill */

typedef struct loss {
    tt_loss_kind kind;
    const char *name;
    int input;       /* layer */
    int64_t rows, d; /* of a sample: how many vectors it judges, and of how many numbers */
    double scale;    /* share of the total */
    enum { BY_LABEL, BY_TARGET, BY_INPUT } target;
    float smoothing;
    const float *class_weight;
    tt_node *at;
} loss;

struct graph {
    tt_arena *arena;
    tt_node *at, *input_at;
    tt_shape input;   /* of its features; one dimension of 0: it has none */
    int64_t ids;      /* of a sample */
    int64_t *id_rows; /* of each: of how many rows the smallest table is that it is for; 0: none */
    layer *layers;
    int layer_count, layer_room;
    tt_param *params;
    param_init *inits;
    int param_count, param_room;
    int64_t size;
    bool has_tables; /* what is sparse gets one */
    tt_model_table tables[TABLES_MOST];
    param_init table_inits[TABLES_MOST];
    int table_count;
    loss losses[TT_LOSSES];
    int loss_count;
    int judged; /* the loss whose accuracy is told: of those with labels that of the last layer,
                   else the first; -1: none */
};

tt_err graph_read(tt_node *model, tt_arena *arena, bool tables, graph *out);

/* ---- For kinds ---- */
const layer_kind *kind_find(const char *name);
int kind_names(const char **names, int most);
tt_shape graph_shape(const graph *g, int input); /* of a layer's output, or the model's input */
bool graph_has_features(const graph *g);
/* The layer before `l` that this names, as from: does; -2: there is none. */
int graph_find(graph *g, const layer *l, const char *name);
tt_err need_sequence(const layer *l); /* or a sentence that says what it takes */
int graph_param(graph *g, layer *l, const char *name, tt_param_role role, tt_shape shape,
                param_init init, float momentum);
/* Rows by ids, (rows, dim): a table, if there are to be any and it is `sparse`; else a parameter.
 */
tt_err graph_rows(graph *g, layer *l, tt_parts parts, int64_t dim, int64_t touches, bool sparse,
                  param_init init);
tt_err need_rank(const layer *l, int rank); /* of its input: 1, or 3 for images */
/* `choice` of uniform|he_normal|xavier_uniform|zeros; uniform is +-1/sqrt(fan_in), PyTorch's
 * default for dense and convolution. */
param_init init_of(int choice, double fan_in, double fan_out);
bool is_preset(const char *name);
/* YAML text of the layers a preset stands for. */
tt_err preset_expand(const char *name, tt_node *args, tt_shape input, int64_t ids, tt_str *out);
tt_err expand_dlrm(tt_node *args, tt_shape input, int64_t ids, tt_str *out);
tt_err expand_wide_deep(tt_node *args, tt_shape input, int64_t ids, tt_str *out);
tt_err expand_deepfm(tt_node *args, tt_shape input, int64_t ids, tt_str *out);

/* Arguments, as compile.c reads them back. */
typedef struct dense_args {
    common_args c;
    int64_t out;
    bool bias;
    int init;
    double std;
    const char *tied;
} dense_args;
typedef struct embedding_args {
    common_args c;
    int64_t rows, dim, first, count;
    double std;
} embedding_args;
typedef struct embeddings_args {
    common_args c;
    tt_ints rows;
    int64_t dim, tables, first;
    double std;
    bool sparse;
    int64_t *base; /* (tables): the row at which each begins; behind it, how many each has */
} embeddings_args;
typedef struct bag_args {
    common_args c;
    int64_t rows, dim, first, count;
    int mode; /* sum, mean */
    double std;
    bool sparse;
} bag_args;
typedef struct positions_args {
    common_args c;
    int64_t count;
    double std;
} positions_args;
typedef struct attention_args {
    common_args c;
    int64_t heads;
    bool causal;
} attention_args;
typedef struct recurrent_args {
    common_args c;
    int64_t hidden;
    bool last;
} recurrent_args;
typedef struct conv_args {
    common_args c;
    int64_t out, kernel[2], stride[2], dilation[2], groups;
    tt_node *padding;
    bool bias;
    int init;
    int64_t pad[2]; /* what `padding` came to: before ...         */
    int oh, ow;     /* ... and the output size settles the rest   */
} conv_args;
typedef struct pool_args {
    common_args c;
    int64_t size[2], stride[2], padding[2];
    bool count_pad;
    int oh, ow;
} pool_args;
typedef struct upsample_args {
    common_args c;
    int64_t scale[2];
    int mode; /* 1: bilinear */
} upsample_args;
typedef struct transpose_args {
    common_args c;
    int64_t out, kernel[2], stride[2], padding[2], output_padding[2];
    bool bias;
    int init;
} transpose_args;
typedef struct norm_args {
    common_args c;
    double eps, momentum;
    int64_t dims;
    bool sync;
} norm_args;
typedef struct dropout_args {
    common_args c;
    double p;
} dropout_args;
typedef struct gelu_args {
    common_args c;
    bool tanh;
} gelu_args;
typedef struct axis_args {
    common_args c;
    int64_t axis;
} axis_args;

extern const layer_kind kind_dense, kind_conv, kind_maxpool, kind_avgpool, kind_global_avgpool,
    kind_flatten, kind_batchnorm, kind_layernorm, kind_dropout, kind_add, kind_mul, kind_concat,
    kind_relu, kind_gelu, kind_embedding, kind_positions, kind_attention, kind_lstm, kind_gru,
    kind_tanh, kind_sigmoid, kind_softmax, kind_log_softmax, kind_embeddings, kind_embedding_bag,
    kind_interaction, kind_fm, kind_sum, kind_upsample, kind_conv_transpose;

/* What each kind of layer may begin with. */
/* clang-format off */
#define COMMON                                                                                     \
    {"name", TT_STRING, offsetof(common_args, name), "-", 0, 0, NULL,                              \
     "its name; by default kind and number"},                                                      \
    {"from", TT_STRINGS, offsetof(common_args, from), "-", 0, 0, NULL,                             \
     "its inputs; by default the layer before"},                                                   \
    {"freeze", TT_BOOL, offsetof(common_args, freeze), "-", 0, 0, NULL,                            \
     "true: its parameters are not trained"}
#define KIND(id, text, keys, args, least, most, fn)                                                \
    const layer_kind kind_##id = {text, keys, TT_COUNT(keys), sizeof(args), least, most, fn, NULL}
/* clang-format on */

/* A shape as (c, h * w): images keep their channels, all else is a vector of features. A sequence
 * is (positions, features), and lies so. */
static inline int64_t shape_c(tt_shape s)
{
    return s.rank == 3 ? s.dim[0] : tt_shape_count(s);
}
static inline int64_t shape_hw(tt_shape s)
{
    return s.rank == 3 ? s.dim[1] * s.dim[2] : 1;
}

#endif
