/* layers: what each kind of layer takes, what comes out of it and which parameters it has. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph.h"

enum { SIDE_MOST = 1 << 20, INIT_NORMAL = 4 };

static const char INITS[] = "uniform|he_normal|xavier_uniform|zeros|normal";

param_init init_of(int choice, double fan_in, double fan_out)
{
    switch (choice) {
    case 1:
        return (param_init){sqrt(2.0 / fan_in), 0, true};
    case 2:
        return (param_init){sqrt(6.0 / (fan_in + fan_out)), 0, false};
    case 3:
        return (param_init){0, 0, false};
    default:
        return (param_init){1.0 / sqrt(fan_in), 0, false};
    }
}

tt_err need_rank(const layer *l, int rank)
{
    char buf[64];
    if (l->in.rank == rank) return TT_OK;
    return tt_node_fail(l->at, "%s '%s' takes %s, but its input is %s", l->kind->name, l->name,
                        rank == 3 ? "an image (channels, height, width)"
                                  : "a vector (put flatten before it)",
                        tt_shape_show(l->in, buf, sizeof buf));
}

static tt_shape shape1(int64_t a)
{
    return (tt_shape){1, {a}};
}
static tt_shape shape2(int64_t a, int64_t b)
{
    return (tt_shape){2, {a, b}};
}

/* ---- dense ---- */

static const tt_key dense_keys[] = {
    COMMON,
    {"out", TT_INT, offsetof(dense_args, out), NULL, 1, 1 << 28, NULL, "outputs"},
    {"bias", TT_BOOL, offsetof(dense_args, bias), "true", 0, 0, NULL, "add a bias"},
    {"init", TT_CHOICE, offsetof(dense_args, init), "uniform", 0, 0, INITS, "initial weights"},
    {"std", TT_NUMBER, offsetof(dense_args, std), "0.02", 0, 1e9, NULL,
     "their deviation, with init: normal, where the bias begins at 0"},
    {"tied", TT_STRING, offsetof(dense_args, tied), "-", 0, 0, NULL,
     "an embedding whose table is its weights, too"},
};

/* The table of an embedding is (out, in), as its weights are. */
static tt_err tie(graph *g, layer *l, const char *name, int64_t out, int64_t in)
{
    tt_node *at = tt_node_get(l->args_at, "tied");
    int other = graph_find(g, l, name);
    const tt_param *p;

    if (other < 0 || g->layers[other].kind != &kind_embedding)
        return tt_node_fail(at, "tied: '%s' is no embedding before '%s'", name, l->name);
    p = &g->params[g->layers[other].param[0]];
    if (p->shape[0] != out || p->shape[1] != in)
        return tt_node_fail(at, "tied: the table of '%s' is %lldx%lld, but '%s' takes %lld to %lld",
                            name, (long long)p->shape[0], (long long)p->shape[1], l->name,
                            (long long)in, (long long)out);
    for (const layer *k = g->layers; k < l; k++)
        if (k->shared && k->param[0] == g->layers[other].param[0])
            return tt_node_fail(
                at, "tied: the table of '%s' is shared with '%s' already, and can be with one",
                name, k->name);
    l->param[l->param_count++] = g->layers[other].param[0];
    l->shared = 1;
    l->detail = tt_arena_printf(g->arena, "tied to %s", name);
    return TT_OK;
}

/* A vector, or each position of a sequence. */
static tt_err dense_shape(graph *g, layer *l)
{
    dense_args *a = l->args;
    tt_err err = l->in.rank == 2 ? TT_OK : need_rank(l, 1);
    if (err) return err;

    int last = l->in.rank - 1;
    int64_t in = l->in.dim[last];
    param_init init = init_of(a->init, (double)in, (double)a->out);
    if (a->init == INIT_NORMAL) init = (param_init){a->std, 0, true};
    l->out = l->in;
    l->out.dim[last] = a->out;
    l->flops = 2.0 * (double)in * (double)tt_shape_count(l->out);
    if (a->tied) {
        if ((err = tie(g, l, a->tied, a->out, in))) return err;
    } else {
        graph_param(g, l, "weight", TT_WEIGHT, shape2(a->out, in), init, 0);
    }
    if (a->bias)
        graph_param(g, l, "bias", TT_BIAS, shape1(a->out),
                    a->init == 0 ? init_of(0, (double)in, 0) : (param_init){0}, 0);
    return TT_OK;
}

/* ---- convolution ---- */

static const tt_key conv_keys[] = {
    COMMON,
    {"out", TT_INT, offsetof(conv_args, out), NULL, 1, SIDE_MOST, NULL, "output channels"},
    {"kernel", TT_PAIR, offsetof(conv_args, kernel), NULL, 1, 4096, NULL,
     "height and width of the kernel"},
    {"stride", TT_PAIR, offsetof(conv_args, stride), "1", 1, 4096, NULL, "step of the kernel"},
    {"padding", TT_NODE, offsetof(conv_args, padding), "-", 0, 0, NULL,
     "zeros around: a number, [height, width] or same; 0"},
    {"dilation", TT_PAIR, offsetof(conv_args, dilation), "1", 1, 4096, NULL,
     "distance between kernel elements"},
    {"groups", TT_INT, offsetof(conv_args, groups), "1", 1, SIDE_MOST, NULL,
     "groups of channels kept apart"},
    {"bias", TT_BOOL, offsetof(conv_args, bias), "true", 0, 0, NULL, "add a bias"},
    {"init", TT_CHOICE, offsetof(conv_args, init), "uniform", 0, 0,
     "uniform|he_normal|xavier_uniform|zeros", "initial weights"},
};

static tt_err conv_padding(layer *l, conv_args *a, const int64_t size[2], int64_t out[2])
{
    static const tt_key pair = {"padding", TT_PAIR, 0, NULL, 0, 4096, NULL, ""};
    bool same = a->padding && a->padding->kind == TT_SCALAR && !strcmp(a->padding->text, "same");

    if (a->padding && !same) {
        tt_err err = tt_node_value(a->padding, "padding", &pair, a->pad);
        if (err) return err;
    }
    for (int i = 0; i < 2; i++) {
        int64_t reach = (a->kernel[i] - 1) * a->dilation[i] + 1;
        if (same) {
            out[i] = (size[i] + a->stride[i] - 1) / a->stride[i];
            int64_t total = (out[i] - 1) * a->stride[i] + reach - size[i];
            a->pad[i] = total > 0 ? total / 2 : 0; /* what is odd goes behind, as elsewhere */
            continue;
        }
        int64_t room = size[i] + 2 * a->pad[i] - reach;
        if (room < 0)
            return tt_node_fail(
                l->at, "the %s of the kernel reaches over %lld, but the input of '%s' is %lld%s",
                i ? "width" : "height", (long long)reach, l->name, (long long)size[i],
                a->pad[i] ? " and its padding is not enough" : "");
        out[i] = room / a->stride[i] + 1;
    }
    return TT_OK;
}

static tt_err conv_shape(graph *g, layer *l)
{
    conv_args *a = l->args;
    tt_err err = need_rank(l, 3);
    if (err) return err;

    int64_t c = l->in.dim[0], out[2];
    if (c % a->groups || a->out % a->groups)
        return tt_node_fail(
            l->at, "groups: %lld does not divide both the input's %lld channels and out: %lld",
            (long long)a->groups, (long long)c, (long long)a->out);
    if ((err = conv_padding(l, a, &l->in.dim[1], out))) return err;

    double fan_in = (double)(c / a->groups * a->kernel[0] * a->kernel[1]);
    double fan_out = (double)(a->out / a->groups * a->kernel[0] * a->kernel[1]);
    char buf[160];
    a->oh = (int)out[0];
    a->ow = (int)out[1];
    l->out = (tt_shape){3, {a->out, out[0], out[1]}};
    l->flops = 2.0 * fan_in * (double)tt_shape_count(l->out);
    int len =
        snprintf(buf, sizeof buf, "%lldx%lld", (long long)a->kernel[0], (long long)a->kernel[1]);
    if (a->stride[0] != 1 || a->stride[1] != 1)
        len +=
            snprintf(buf + len, sizeof buf - (size_t)len, ", stride %lld", (long long)a->stride[0]);
    if (a->dilation[0] != 1 || a->dilation[1] != 1)
        len += snprintf(buf + len, sizeof buf - (size_t)len, ", dilation %lld",
                        (long long)a->dilation[0]);
    if (a->groups != 1)
        snprintf(buf + len, sizeof buf - (size_t)len, ", %lld groups", (long long)a->groups);
    l->detail = tt_arena_strdup(g->arena, buf);
    graph_param(g, l, "weight", TT_WEIGHT,
                (tt_shape){4, {a->out, c / a->groups, a->kernel[0], a->kernel[1]}},
                init_of(a->init, fan_in, fan_out), 0);
    if (a->bias)
        graph_param(g, l, "bias", TT_BIAS, shape1(a->out),
                    a->init == 0 ? init_of(0, fan_in, 0) : (param_init){0}, 0);
    return TT_OK;
}

/* ---- pooling ---- */

#define POOL_KEYS                                                                                  \
    COMMON, {"size", TT_PAIR, offsetof(pool_args, size),       NULL, 1,                            \
             4096,   NULL,    "height and width of the window"},                                   \
        {"stride", TT_PAIR, offsetof(pool_args, stride), "-", 1,                                   \
         4096,     NULL,    "step; by default the size"},                                          \
    {                                                                                              \
        "padding", TT_PAIR, offsetof(pool_args, padding), "0", 0, 4096, NULL,                      \
            "around the image, at most half the size"                                              \
    }

static const tt_key maxpool_keys[] = {POOL_KEYS};
static const tt_key avgpool_keys[] = {
    POOL_KEYS,
    {"count_pad", TT_BOOL, offsetof(pool_args, count_pad), "true", 0, 0, NULL,
     "padding counts in the average"},
};

static tt_err pool_shape(graph *g, layer *l)
{
    pool_args *a = l->args;
    tt_err err = need_rank(l, 3);
    int64_t out[2];
    char buf[96];

    if (err) return err;
    if (!a->stride[0]) memcpy(a->stride, a->size, sizeof a->stride);
    if (l->kind == &kind_maxpool && a->size[0] * a->size[1] > 254)
        return tt_node_fail(l->at, "a maxpool window may have at most 254 elements");
    for (int i = 0; i < 2; i++) {
        if (2 * a->padding[i] > a->size[i])
            return tt_node_fail(l->at, "padding: %lld is more than half of size: %lld",
                                (long long)a->padding[i], (long long)a->size[i]);
        int64_t room = l->in.dim[1 + i] + 2 * a->padding[i] - a->size[i];
        if (room < 0)
            return tt_node_fail(l->at, "the window of '%s' is %lld %s, but its input only %lld",
                                l->name, (long long)a->size[i], i ? "wide" : "high",
                                (long long)l->in.dim[1 + i]);
        out[i] = room / a->stride[i] + 1;
    }
    a->oh = (int)out[0];
    a->ow = (int)out[1];
    l->out = (tt_shape){3, {l->in.dim[0], out[0], out[1]}};
    snprintf(buf, sizeof buf, "%lldx%lld, stride %lld", (long long)a->size[0],
             (long long)a->size[1], (long long)a->stride[0]);
    l->detail = tt_arena_strdup(g->arena, buf);
    return TT_OK;
}

static const tt_key plain_keys[] = {COMMON};

static tt_err global_pool_shape(graph *g, layer *l)
{
    (void)g;
    tt_err err = need_rank(l, 3);
    l->out = (tt_shape){3, {l->in.dim[0], 1, 1}};
    return err;
}

static tt_err flatten_shape(graph *g, layer *l)
{
    (void)g;
    l->out = shape1(tt_shape_count(l->in));
    return TT_OK;
}

/* ---- normalisation and regularisation ---- */

static const tt_key batchnorm_keys[] = {
    COMMON,
    {"eps", TT_NUMBER, offsetof(norm_args, eps), "1e-5", 1e-12, 1, NULL, "added to the variance"},
    {"momentum", TT_NUMBER, offsetof(norm_args, momentum), "0.1", 1e-6, 1, NULL,
     "share of a step in the running statistics"},
    {"sync", TT_BOOL, offsetof(norm_args, sync), "false", 0, 0, NULL,
     "statistics over the whole batch, not over each worker's part (parallel.exact: per grain)"},
};
static const tt_key layernorm_keys[] = {
    COMMON,
    {"eps", TT_NUMBER, offsetof(norm_args, eps), "1e-5", 1e-12, 1, NULL, "added to the variance"},
    {"dims", TT_INT, offsetof(norm_args, dims), "1", 1, 6, NULL,
     "how many of the last dimensions are normalised"},
};

static tt_err batchnorm_shape(graph *g, layer *l)
{
    norm_args *a = l->args;
    tt_shape c = shape1(l->in.dim[0]);

    if (l->in.rank != 1 && l->in.rank != 3) return need_rank(l, 3);
    l->out = l->in;
    graph_param(g, l, "weight", TT_BIAS, c, (param_init){0, 1, false}, 0);
    graph_param(g, l, "bias", TT_BIAS, c, (param_init){0}, 0);
    graph_param(g, l, "running_mean", TT_STAT, c, (param_init){0}, (float)a->momentum);
    graph_param(g, l, "running_var", TT_STAT, c, (param_init){0, 1, false}, (float)a->momentum);
    return TT_OK;
}

static tt_err layernorm_shape(graph *g, layer *l)
{
    norm_args *a = l->args;
    tt_shape s = {0};

    if (a->dims > l->in.rank)
        return tt_node_fail(l->at, "dims: %lld, but the input of '%s' has %d dimensions",
                            (long long)a->dims, l->name, l->in.rank);
    for (int i = l->in.rank - (int)a->dims; i < l->in.rank; i++) s.dim[s.rank++] = l->in.dim[i];
    l->out = l->in;
    l->ahead = l->in.rank == 2 && a->dims == 2;
    graph_param(g, l, "weight", TT_BIAS, s, (param_init){0, 1, false}, 0);
    graph_param(g, l, "bias", TT_BIAS, s, (param_init){0}, 0);
    return TT_OK;
}

static const tt_key dropout_keys[] = {
    COMMON,
    {"p", TT_NUMBER, offsetof(dropout_args, p), "0.5", 0, 0.999, NULL,
     "share of the elements set to 0"},
};

static const tt_key gelu_keys[] = {
    COMMON,
    {"tanh", TT_BOOL, offsetof(gelu_args, tanh), "false", 0, 0, NULL,
     "the approximation by tanh that GPT-2 has"},
};

static tt_err same_shape(graph *g, layer *l)
{
    if (l->kind == &kind_dropout)
        l->detail = tt_arena_printf(g->arena, "p %g", ((dropout_args *)l->args)->p);
    l->out = l->in;
    return TT_OK;
}

/* ---- several inputs ---- */

static tt_err join_shape(graph *g, layer *l)
{
    char a[64], b[64];

    l->out = l->in;
    for (int i = 1; i < l->input_count; i++) {
        tt_shape s = graph_shape(g, l->input[i]);
        if (!tt_shape_equal(s, l->in))
            return tt_node_fail(l->at, "%s '%s' needs inputs of one shape, but they are %s and %s",
                                l->kind->name, l->name, tt_shape_show(l->in, a, sizeof a),
                                tt_shape_show(s, b, sizeof b));
    }
    return TT_OK;
}

static tt_err concat_shape(graph *g, layer *l)
{
    char a[64], b[64];

    l->out = l->in;
    l->ahead = l->in.rank == 2; /* one sequence behind another */
    for (int i = 1; i < l->input_count; i++) {
        tt_shape s = graph_shape(g, l->input[i]), rest = s;
        rest.dim[0] = l->in.dim[0];
        if (s.rank < 1 || !tt_shape_equal(rest, l->in))
            return tt_node_fail(l->at,
                                "concat '%s' joins along the first dimension; the others must "
                                "agree, but they are %s and %s",
                                l->name, tt_shape_show(l->in, a, sizeof a),
                                tt_shape_show(s, b, sizeof b));
        l->out.dim[0] += s.dim[0];
    }
    return TT_OK;
}

/* ---- softmax ---- */

static const tt_key softmax_keys[] = {
    COMMON,
    {"axis", TT_INT, offsetof(axis_args, axis), "-", -6, 5, NULL,
     "dimension summed to 1; 0: the first, -1: the last. Not given: channels of images, and of a "
     "sequence each position's numbers"},
};

static tt_err softmax_shape(graph *g, layer *l)
{
    (void)g;
    axis_args *a = l->args;
    bool given = tt_node_get(l->args_at, "axis") != NULL;
    int64_t axis = !given ? l->in.rank == 2 : a->axis < 0 ? a->axis + l->in.rank : a->axis;

    if (axis < 0 || axis >= l->in.rank)
        return tt_node_fail(l->at, "axis: %lld, but the input of '%s' has %d dimension%s",
                            (long long)a->axis, l->name, l->in.rank, l->in.rank == 1 ? "" : "s");
    a->axis = axis;
    l->out = l->in;
    l->ahead = l->in.rank == 2 && !axis;
    return TT_OK;
}

KIND(dense, "dense", dense_keys, dense_args, 1, 1, dense_shape);
KIND(conv, "conv", conv_keys, conv_args, 1, 1, conv_shape);
KIND(maxpool, "maxpool", maxpool_keys, pool_args, 1, 1, pool_shape);
KIND(avgpool, "avgpool", avgpool_keys, pool_args, 1, 1, pool_shape);
KIND(global_avgpool, "global_avgpool", plain_keys, common_args, 1, 1, global_pool_shape);
KIND(flatten, "flatten", plain_keys, common_args, 1, 1, flatten_shape);
KIND(batchnorm, "batchnorm", batchnorm_keys, norm_args, 1, 1, batchnorm_shape);
KIND(layernorm, "layernorm", layernorm_keys, norm_args, 1, 1, layernorm_shape);
KIND(dropout, "dropout", dropout_keys, dropout_args, 1, 1, same_shape);
KIND(add, "add", plain_keys, common_args, 2, INPUTS_MOST, join_shape);
KIND(mul, "mul", plain_keys, common_args, 2, 2, join_shape);
KIND(concat, "concat", plain_keys, common_args, 2, INPUTS_MOST, concat_shape);
KIND(relu, "relu", plain_keys, common_args, 1, 1, same_shape);
KIND(gelu, "gelu", gelu_keys, gelu_args, 1, 1, same_shape);
KIND(tanh, "tanh", plain_keys, common_args, 1, 1, same_shape);
KIND(sigmoid, "sigmoid", plain_keys, common_args, 1, 1, same_shape);
KIND(softmax, "softmax", softmax_keys, axis_args, 1, 1, softmax_shape);
KIND(log_softmax, "log_softmax", softmax_keys, axis_args, 1, 1, softmax_shape);

static const layer_kind *const kinds[] = {
    &kind_dense,     &kind_conv,       &kind_maxpool,       &kind_avgpool,     &kind_global_avgpool,
    &kind_flatten,   &kind_batchnorm,  &kind_layernorm,     &kind_dropout,     &kind_add,
    &kind_mul,       &kind_concat,     &kind_relu,          &kind_gelu,        &kind_tanh,
    &kind_sigmoid,   &kind_softmax,    &kind_log_softmax,   &kind_embedding,   &kind_positions,
    &kind_attention, &kind_embeddings, &kind_embedding_bag, &kind_interaction, &kind_fm,
    &kind_sum,       &kind_lstm,       &kind_gru,           &kind_upsample,    &kind_conv_transpose,
};

/* ---- kinds that a program added ---- */

enum { CUSTOM_MOST = 64, CUSTOM_KEYS = 32 };
static layer_kind custom_kinds[CUSTOM_MOST];
static tt_key custom_keys[CUSTOM_MOST][CUSTOM_KEYS];
static int custom_count;

/* The program's own struct follows the common arguments, so its keys move by that much. */
static tt_err custom_shape(graph *g, layer *l)
{
    const tt_custom *c = l->kind->custom;
    tt_custom_param params[LAYER_PARAMS];
    int count = 0;

    memset(params, 0, sizeof params);
    l->ahead = true; /* for all we know */
    if (c->shape((char *)l->args + sizeof(common_args), l->in, &l->out, params, &count))
        return tt_node_fail(l->at, "%s '%s': %s", c->kind, l->name, tt_message());
    if (count < 0 || count > LAYER_PARAMS || l->out.rank < 1 || tt_shape_count(l->out) < 1)
        return tt_node_fail(l->at,
                            "%s '%s': its shape function gave %d parameters or an empty shape",
                            c->kind, l->name, count);
    for (int i = 0; i < count; i++) {
        tt_shape s = {params[i].rank, {0}};
        memcpy(s.dim, params[i].shape, sizeof s.dim);
        param_init init = {params[i].fan_in > 0 ? 1 / sqrt(params[i].fan_in) : 0, params[i].fill,
                           false};
        graph_param(g, l, params[i].name, params[i].role, s, init, 0);
    }
    return TT_OK;
}

tt_err tt_custom_add(const tt_custom *c)
{
    static const tt_key common[] = {COMMON};
    int n = TT_COUNT(common);

    if (kind_find(c->kind) || is_preset(c->kind))
        return tt_fail(TT_EINVAL, "there is a layer kind '%s' already", c->kind);
    if (custom_count == CUSTOM_MOST || c->key_count > CUSTOM_KEYS - n)
        return tt_fail(TT_EINVAL, "too many layer kinds (%d), or too many keys (%d) in '%s'",
                       custom_count, c->key_count, c->kind);
    tt_key *keys = custom_keys[custom_count];
    memcpy(keys, common, sizeof common);
    for (int i = 0; i < c->key_count; i++) {
        keys[n + i] = c->keys[i];
        keys[n + i].at += sizeof(common_args);
    }
    custom_kinds[custom_count++] = (layer_kind){
        c->kind, keys, n + c->key_count, sizeof(common_args) + c->args_size, 1, 1, custom_shape, c};
    return TT_OK;
}

const layer_kind *kind_find(const char *name)
{
    for (int i = 0; i < TT_COUNT(kinds); i++)
        if (!strcmp(kinds[i]->name, name)) return kinds[i];
    for (int i = 0; i < custom_count; i++)
        if (!strcmp(custom_kinds[i].name, name)) return &custom_kinds[i];
    return NULL;
}

int kind_names(const char **names, int most)
{
    int n = 0;
    for (int i = 0; i < TT_COUNT(kinds) && n < most; i++) names[n++] = kinds[i]->name;
    for (int i = 0; i < custom_count && n < most; i++) names[n++] = custom_kinds[i].name;
    return n;
}
