/* compile: from the graph to a straight list of calls.
 *
 * Forward, in the order of the layers: pick a layout for each call (convolutions decide, all others
 * follow their input; a reorder is put in where neighbours disagree) and fuse what belongs
 * together: conv or dense + relu;  conv + max pool + relu in either order (LANES);  batch norm (+
 * add) + relu. Then backward: who writes a gradient first overwrites, the others add; a sum's
 * gradient is not copied where it can be the same memory. Last, the lives of all buffers (lives.c),
 * from which tt_run_open lays out memory.
 *
 * Nothing here depends on values or timing: the calls follow from the job, the kernels and the
 * usual grain. */
#include <string.h>

#include "calls.h"

typedef struct builder {
    tt_model *m;
    graph *g;
    int *uses;        /* of each layer's output                              */
    int *user;        /* the last layer that takes it; -1: a loss, or nobody */
    bool *done;       /* stands inside another layer's call                  */
    int (*copies)[3]; /* tensor, layout -> the reordered tensor, or 0   */
    int input;        /* tensor of the batch's x, as kernels take it         */
    int tensor_room, buffer_room, call_room;
} builder;

static void *grown(builder *b, void *array, int count, int *room, size_t size)
{
    if (count < *room) return array;
    *room = *room ? 2 * *room : 64;
    void *p = tt_arena_take(b->m->arena, (size_t)*room * size, 16);
    if (count) memcpy(p, array, (size_t)count * size);
    return p;
}

static int new_buffer(builder *b, int64_t per_sample, int64_t fixed)
{
    tt_model *m = b->m;
    m->buffers = grown(b, m->buffers, m->buffer_count, &b->buffer_room, sizeof *m->buffers);
    m->buffers[m->buffer_count] = (buffer){.per_sample = per_sample,
                                           .fixed = fixed,
                                           .birth = INT32_MAX,
                                           .death = -1,
                                           .death_forward = -1};
    return m->buffer_count++;
}

static int new_tensor(builder *b, int64_t count, tt_layout layout)
{
    tt_model *m = b->m;
    int room = b->tensor_room;
    b->copies = grown(b, b->copies, m->tensor_count, &room, sizeof *b->copies);
    m->tensors = grown(b, m->tensors, m->tensor_count, &b->tensor_room, sizeof *m->tensors);
    memset(b->copies[m->tensor_count], 0, sizeof *b->copies);
    m->tensors[m->tensor_count] = (tensor){.count = count, .layout = layout, .act = -1, .grad = -1};
    return m->tensor_count++;
}

static call *new_call(builder *b, call_kind kind, int at)
{
    tt_model *m = b->m;
    m->calls = grown(b, m->calls, m->call_count, &b->call_room, sizeof *m->calls);
    call *c = &m->calls[m->call_count++];

    memset(c, 0, sizeof *c);
    c->kind = kind;
    c->layer = at;
    c->add = c->saved = c->scratch = c->scratch_back = c->loss = -1;
    c->head = c->block = c->block_grad = c->table = -1;
    if (at < 0) return c;
    const layer *l = &b->g->layers[at];
    c->param_count = l->param_count;
    c->own = l->shared;
    c->rows = 1;
    memcpy(c->param, l->param, sizeof c->param);
    for (int i = 0; i < l->param_count && !l->frozen; i++) /* all may be another's that is frozen */
        c->train_params |= !b->g->params[l->param[i]].frozen;
    c->args = l->args;
    c->c = shape_c(l->in);
    c->hw = shape_hw(l->in);
    return c;
}

static int value_of(builder *b, int input)
{
    return input < 0 ? b->input : b->m->layer_tensor[input];
}

/* A vector's NHWC is PLAIN, and so is an image of one channel. */
static bool same_layout(tt_layout a, tt_layout b, int64_t c, int64_t hw)
{
    return a == b || (a != TT_LANES && b != TT_LANES && (hw == 1 || c == 1));
}

/* The tensor of `input` in the wanted layout: itself, or a copy made by a reorder call. */
static int in_layout(builder *b, int input, tt_layout want)
{
    tt_shape s = graph_shape(b->g, input);
    int t = value_of(b, input);
    tt_layout have = b->m->tensors[t].layout;

    if (want == TT_NHWC && shape_hw(s) == 1) want = TT_PLAIN;
    if (same_layout(have, want, shape_c(s), shape_hw(s))) return t;
    if (b->copies[t][want]) return b->copies[t][want];
    call *c = new_call(b, CALL_REORDER, -1);
    c->c = shape_c(s);
    c->hw = shape_hw(s);
    c->from = have;
    c->layout = want;
    c->in[0] = t;
    c->in_count = 1;
    c->out = new_tensor(b, b->m->tensors[t].count, want);
    return b->copies[t][want] = c->out;
}

/* The tensor in float32, or in what kernels store: itself, or a copy made by a convert call. */
static int converted(builder *b, int t, bool wide)
{
    if (b->m->tensors[t].wide == wide || b->m->k->precision == TT_IN_FLOAT32) return t;
    call *c = new_call(b, CALL_CONVERT, -1);
    c->layout = b->m->tensors[t].layout;
    c->in[0] = t;
    c->in_count = 1;
    c->out = new_tensor(b, b->m->tensors[t].count, c->layout);
    b->m->tensors[c->out].wide = wide;
    return c->out;
}

/* Reorders come first, so the call is made after its inputs. */
static call *call_on(builder *b, call_kind kind, int at, tt_layout layout)
{
    const layer *l = &b->g->layers[at];
    int in[INPUTS_MOST];
    for (int i = 0; i < l->input_count; i++) {
        in[i] = in_layout(b, l->input[i], layout);
        if (kind == CALL_CUSTOM) in[i] = converted(b, in[i], true);
    }
    call *c = new_call(b, kind, at);
    memcpy(c->in, in, sizeof in);
    c->in_count = l->input_count;
    c->layout = layout;
    return c;
}

/* The call's output is that of layer `at`, the last one it stands for. */
static void gives(builder *b, call *c, int at)
{
    c->out = new_tensor(b, tt_shape_count(b->g->layers[at].out), c->layout);
    b->m->layer_tensor[at] = c->out;
}

/* The one layer behind `at` if it is of that kind and nobody else needs what is between. */
static int only_user(const builder *b, int at, const layer_kind *kind)
{
    /* In bf16 ref rounds where the others do, and so what is fused is the same. */
    if ((b->m->k->plain && b->m->k->precision == TT_IN_FLOAT32) || b->uses[at] != 1 ||
        b->user[at] < 0 || at == b->m->keep)
        return -1;
    return b->g->layers[b->user[at]].kind == kind ? b->user[at] : -1;
}

/* ---- Convolution and dense ---- */

/* Of the convolution that leads from its output to its input. */
static tt_window turned_window(const layer *l)
{
    const transpose_args *a = l->args;
    return (tt_window){.c = (int)l->out.dim[0],
                       .h = (int)l->out.dim[1],
                       .w = (int)l->out.dim[2],
                       .o = (int)l->in.dim[0],
                       .oh = (int)l->in.dim[1],
                       .ow = (int)l->in.dim[2],
                       .kh = (int)a->kernel[0],
                       .kw = (int)a->kernel[1],
                       .sh = (int)a->stride[0],
                       .sw = (int)a->stride[1],
                       .ph = (int)a->padding[0],
                       .pw = (int)a->padding[1],
                       .dh = 1,
                       .dw = 1,
                       .groups = 1};
}

static tt_window window_of(const layer *l)
{
    int last = l->in.rank - 1;
    tt_window w = tt_window_dense((int)(l->kind == &kind_dense ? l->in.dim[last] : shape_c(l->in)),
                                  (int)l->out.dim[l->kind == &kind_dense ? last : 0]);
    if (l->kind == &kind_dense) return w;
    if (l->kind == &kind_conv_transpose) return turned_window(l);
    const conv_args *a = l->args;
    w.h = (int)l->in.dim[1], w.w = (int)l->in.dim[2];
    w.oh = a->oh, w.ow = a->ow;
    w.kh = (int)a->kernel[0], w.kw = (int)a->kernel[1];
    w.sh = (int)a->stride[0], w.sw = (int)a->stride[1];
    w.ph = (int)a->pad[0], w.pw = (int)a->pad[1];
    w.dh = (int)a->dilation[0], w.dw = (int)a->dilation[1];
    w.groups = (int)a->groups;
    return w;
}

/* The positions of a sequence are so many vectors, one behind the other: images of one pixel. */
static tt_layout conv_layout(const builder *b, const layer *l)
{
    tt_window w = window_of(l);
    if (l->in.rank == 2) return b->m->k->plain ? TT_PLAIN : TT_NHWC;
    return b->m->k->plain ? TT_PLAIN : b->m->k->conv_layout(&w, b->m->samples);
}

static bool pool_fuses(const layer *l)
{
    const pool_args *a = l->args;
    return !a->padding[0] && !a->padding[1] && a->stride[0] == a->size[0] &&
           a->stride[1] == a->size[1];
}

static void keep_packed(builder *b, call *c, size_t count)
{
    c->packed_count = (int64_t)(count + 15) / 16 * 16;
    c->packed_at = b->m->packed_count;
    b->m->packed_count += c->packed_count;
}

static void add_conv(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    tt_layout layout = conv_layout(b, l);
    call *c = call_on(b, CALL_CONV, at, l->in.rank == 2 ? TT_PLAIN : layout);
    int last = at, relu = only_user(b, at, &kind_relu), pool = -1;

    c->conv = (tt_conv){.win = window_of(l),
                        .layout = layout,
                        .turned = l->kind == &kind_conv_transpose,
                        .bias = l->param_count > 1};
    if (l->in.rank == 2) c->rows = l->in.dim[0];
    /* Of a large layer on a sequence a packed copy for dx costs much memory, and with very many
     * outputs it is far slower, too: each few rows would read all of it. */
    c->conv.lean = tt_kernels_element(b->m->k) == sizeof(float) && layout == TT_NHWC &&
                   l->in.rank == 2 && c->rows >= 32 && c->conv.win.c <= 1024 &&
                   (int64_t)c->conv.win.c * c->conv.win.o >= 1 << 20;
    if (relu >= 0) last = relu;
    if (layout == TT_LANES && l->kind == &kind_conv) pool = only_user(b, last, &kind_maxpool);
    if (pool >= 0 && pool_fuses(&b->g->layers[pool])) {
        const pool_args *p = b->g->layers[pool].args;
        c->conv.pool = true;
        c->conv.pkh = c->conv.psh = (int)p->size[0];
        c->conv.pkw = c->conv.psw = (int)p->size[1];
        c->conv.poh = p->oh, c->conv.pow_ = p->ow;
        last = pool;
        b->done[pool] = true;
        if (relu < 0 && (relu = only_user(b, pool, &kind_relu)) >= 0) last = relu;
    }
    if (relu >= 0) {
        c->conv.relu = true;
        b->done[relu] = true;
    }
    if (!b->m->k->plain) keep_packed(b, c, b->m->k->conv_packed(&c->conv));
    if (c->conv.pool) c->saved = new_buffer(b, tt_shape_count(b->g->layers[pool].out), 0);
    c->scratch = new_buffer(b, 0, 0);
    c->scratch_back = new_buffer(b, 0, 0);
    b->m->buffers[c->scratch].scratch_of = b->m->buffers[c->scratch_back].scratch_of =
        b->m->call_count;
    gives(b, c, last);
}

/* ---- The others ---- */

static tt_layout layout_of(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    return b->m->tensors[value_of(b, l->input[0])].layout;
}

static void add_pool(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    call *c =
        call_on(b, l->kind == &kind_maxpool ? CALL_MAXPOOL : CALL_AVGPOOL, at, layout_of(b, at));
    tt_window *w = &c->win;

    *w = (tt_window){.c = (int)l->in.dim[0],
                     .h = (int)l->in.dim[1],
                     .w = (int)l->in.dim[2],
                     .o = (int)l->in.dim[0],
                     .oh = 1,
                     .ow = 1,
                     .kh = (int)l->in.dim[1],
                     .kw = (int)l->in.dim[2],
                     .sh = 1,
                     .sw = 1,
                     .dh = 1,
                     .dw = 1,
                     .groups = 1};
    if (l->kind != &kind_global_avgpool) {
        const pool_args *a = l->args;
        w->oh = a->oh, w->ow = a->ow;
        w->kh = (int)a->size[0], w->kw = (int)a->size[1];
        w->sh = (int)a->stride[0], w->sw = (int)a->stride[1];
        w->ph = (int)a->padding[0], w->pw = (int)a->padding[1];
        c->count_pad = a->count_pad;
    }
    if (c->kind == CALL_MAXPOOL) c->saved = new_buffer(b, tt_shape_count(l->out), 0);
    gives(b, c, at);
}

static void add_upsample(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    const upsample_args *a = l->args;
    tt_layout layout = layout_of(b, at);
    /* Vectors are of channels or of samples, never of pixels. */
    if (layout == TT_PLAIN && !b->m->k->plain) layout = TT_NHWC;
    call *c = call_on(b, CALL_UPSAMPLE, at, layout);

    c->win = (tt_window){.h = (int)l->in.dim[1],
                         .w = (int)l->in.dim[2],
                         .sh = (int)a->scale[0],
                         .sw = (int)a->scale[1]};
    c->bilinear = a->mode == 1;
    gives(b, c, at);
}

/* A batch norm whose output goes into an add alone is computed there: bn(x) + other, relu. */
static bool norm_waits(const builder *b, int at)
{
    int add = only_user(b, at, &kind_add);
    if (add < 0) return false;
    const layer *l = &b->g->layers[add];
    if (l->input_count != 2 || l->input[0] == l->input[1]) return false;
    int other = l->input[0] == at ? l->input[1] : l->input[0];
    return l->input[0] == at || other < 0 || b->g->layers[other].kind != &kind_batchnorm ||
           only_user(b, other, &kind_add) != add; /* of two, the first waits */
}

/* `add`: the layer that adds to it and is computed with it; -1: none. */
static void add_norm(builder *b, int at, int add)
{
    const layer *l = &b->g->layers[at];
    tt_layout layout = layout_of(b, at);
    int last = at, other = -1;

    if (add >= 0) {
        const layer *sum = &b->g->layers[add];
        other = in_layout(b, sum->input[0] == at ? sum->input[1] : sum->input[0], layout);
        last = add;
    }
    call *c = call_on(b, CALL_NORM, at, layout);
    int relu = only_user(b, last, &kind_relu);
    c->eps = (float)((const norm_args *)l->args)->eps;
    c->wide = ((const norm_args *)l->args)->sync;
    c->add = other;
    if (add >= 0) c->in[c->in_count++] = other;
    if (relu >= 0) {
        c->relu = true;
        b->done[relu] = true;
        last = relu;
    }
    c->saved = new_buffer(b, 0, (2 * c->c + 1) * 8 + 2 * c->c * 4);
    gives(b, c, last);
}

static int64_t product(tt_shape s, int from, int to)
{
    int64_t n = 1;
    for (int i = from; i < to; i++) n *= s.dim[i];
    return n;
}

static void add_layernorm(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    int dims = (int)((const norm_args *)l->args)->dims;
    tt_layout layout = layout_of(b, at);
    bool whole = dims == l->in.rank && layout == TT_LANES; /* all of a sample: lanes may stay */
    call *c = call_on(b, CALL_LAYERNORM, at, whole ? TT_LANES : TT_PLAIN);

    c->eps = (float)((const norm_args *)l->args)->eps;
    c->lead = product(l->in, 0, l->in.rank - dims);
    c->d = product(l->in, l->in.rank - dims, l->in.rank);
    c->tail = 1;
    c->saved = new_buffer(b, c->lead * 8, 0);
    gives(b, c, at);
}

static void add_softmax(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    int axis = (int)((const axis_args *)l->args)->axis;
    tt_layout layout = layout_of(b, at);
    bool channels = axis == 0 && (l->in.rank == 1 || l->in.rank == 3);
    call *c = call_on(b, CALL_SOFTMAX, at, channels ? layout : TT_PLAIN);

    c->log = l->kind == &kind_log_softmax;
    c->lead = product(l->in, 0, axis);
    c->d = l->in.dim[axis];
    c->tail = product(l->in, axis + 1, l->in.rank);
    if (c->layout == TT_NHWC && c->hw > 1) c->lead = c->hw, c->tail = 1;
    gives(b, c, at);
}

static void add_simple(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    const layer_kind *k = l->kind;
    tt_layout layout = l->kind->custom ? TT_PLAIN : layout_of(b, at);
    call_kind kind = k == &kind_add       ? CALL_ADD
                     : k == &kind_mul     ? CALL_MUL
                     : k == &kind_concat  ? CALL_CONCAT
                     : k == &kind_dropout ? CALL_DROPOUT
                     : k->custom          ? CALL_CUSTOM
                                          : CALL_UNARY;
    call *c = call_on(b, kind, at, layout);

    if (kind == CALL_UNARY)
        c->unary = k == &kind_relu   ? TT_RELU
                   : k == &kind_gelu ? (((const gelu_args *)l->args)->tanh ? TT_GELU_TANH : TT_GELU)
                   : k == &kind_tanh ? TT_TANH
                                     : TT_SIGMOID;
    if (kind == CALL_DROPOUT) c->p = (float)((const dropout_args *)l->args)->p;
    if (kind == CALL_CUSTOM) {
        c->custom = k->custom;
        c->args = (const char *)l->args + sizeof(common_args);
    }
    if (kind == CALL_CONCAT) {
        c->c = shape_c(l->out);
        for (int i = 0; i < l->input_count; i++)
            c->in_c[i] = shape_c(graph_shape(b->g, l->input[i]));
    }
    gives(b, c, at);
    if (kind != CALL_CUSTOM || b->m->k->precision == TT_IN_FLOAT32) return;
    b->m->tensors[c->out].wide = true;
    b->m->layer_tensor[at] = converted(b, c->out, false);
}

static void add_sum(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    for (int i = 0; i < l->input_count; i++) {
        int in = l->input[i];
        if (in >= 0 && b->g->layers[in].kind == &kind_batchnorm && norm_waits(b, in)) {
            add_norm(b, in, at);
            return;
        }
    }
    add_simple(b, at);
}

/* ---- sequences ---- */

/* Rows of tables by the sample's ids: it has no inputs. */
static void add_embedding(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    call *c = new_call(b, CALL_EMBED, at);

    c->layout = TT_PLAIN;
    c->embed.stride = b->g->ids;
    c->table = l->table - 1;
    if (l->kind == &kind_embeddings) {
        const embeddings_args *a = l->args;
        c->embed.k = a->tables;
        c->embed.dim = a->dim;
        c->embed.base = a->base;
        c->first = a->first;
    } else if (l->kind == &kind_embedding_bag) {
        const bag_args *a = l->args;
        c->embed.k = a->count;
        c->embed.dim = a->dim;
        c->embed.mean = a->mode == 1;
        c->first = a->first;
        c->bag = true;
    } else {
        const embedding_args *a = l->args;
        c->embed.k = a->count;
        c->embed.dim = a->dim;
        c->first = a->first;
    }
    gives(b, c, at);
}

static void add_positions(builder *b, int at)
{
    gives(b, call_on(b, CALL_POSITIONS, at, TT_PLAIN), at);
}

static void add_attention(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    const attention_args *a = l->args;
    call *c = call_on(b, CALL_ATTEND, at, TT_PLAIN);

    c->attend = (tt_attend_args){.t = (int)l->in.dim[0],
                                 .heads = (int)a->heads,
                                 .dim = (int)(l->out.dim[1] / a->heads),
                                 .causal = a->causal};
    int64_t bytes = (int64_t)b->m->k->attend_scratch(&c->attend);
    c->saved = new_buffer(b, l->in.dim[0] * a->heads * 4, 0);
    c->scratch = new_buffer(b, 0, bytes);
    c->scratch_back = new_buffer(b, 0, bytes);
    gives(b, c, at);
}

/* ---- vectors of a sample, together ---- */

_Static_assert((int)INPUTS_MOST <= (int)TT_INTERACT_PARTS, "each input may be a part");

static void add_interaction(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    call *c = call_on(b, CALL_INTERACT, at, TT_PLAIN);
    tt_interact_args *a = &c->interact;

    *a = (tt_interact_args){.parts = l->input_count, .dim = l->in.dim[l->in.rank - 1]};
    for (int i = 0; i < l->input_count; i++) {
        a->count[i] = tt_shape_count(graph_shape(b->g, l->input[i])) / a->dim;
        a->k += a->count[i];
    }
    int64_t bytes = (int64_t)b->m->k->interact_scratch(a);
    c->scratch = new_buffer(b, 0, bytes);
    c->scratch_back = new_buffer(b, 0, bytes);
    gives(b, c, at);
}

static void add_fold(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    call *c = call_on(b, l->kind == &kind_fm ? CALL_FM : CALL_SUM, at, TT_PLAIN);

    c->lead = l->in.dim[0];
    c->d = l->in.dim[1];
    gives(b, c, at);
}

static void add_recurrent(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    const recurrent_args *a = l->args;
    call *c = call_on(b, CALL_RECUR, at, TT_PLAIN);

    c->recur = (tt_recur_args){.kind = l->kind == &kind_lstm ? TT_LSTM : TT_GRU,
                               .t = (int)l->in.dim[0],
                               .d = (int)l->in.dim[1],
                               .h = (int)a->hidden,
                               .last = a->last};
    keep_packed(b, c, b->m->k->recur_packed(&c->recur));
    c->saved = new_buffer(b, tt_recur_saved(&c->recur) * 4, 0);
    c->scratch = new_buffer(b, 0, 0);
    c->scratch_back = new_buffer(b, 0, 0);
    b->m->buffers[c->scratch].scratch_of = b->m->buffers[c->scratch_back].scratch_of =
        b->m->call_count;
    gives(b, c, at);
}

static void add_flatten(builder *b, int at)
{
    const layer *l = &b->g->layers[at];
    tt_layout have = layout_of(b, at);
    tt_layout want = have == TT_LANES ? TT_LANES : TT_PLAIN;
    b->m->layer_tensor[at] =
        in_layout(b, l->input[0], want); /* the same memory under another shape */
}

/* Is the tensor what a dense layer or convolution gives, and does nobody else read it? Another loss
 * may want it in another layout. */
static bool comes_to_loss_alone(const builder *b, int t, const loss *l)
{
    bool given = false;

    for (int i = 0; i < b->g->loss_count; i++)
        if (&b->g->losses[i] != l && b->g->losses[i].input == l->input) return false;

    for (int i = 0; i < b->m->call_count; i++) {
        const call *c = &b->m->calls[i];
        for (int k = 0; k < c->in_count; k++)
            if (c->in[k] == t) return false;
        given |= c->kind == CALL_CONV && c->out == t && !c->conv.relu;
    }
    return given;
}

/* What a loss judges is float32: the call before may widen it in place, or a copy is made. */
static void add_loss(builder *b, int i)
{
    const loss *l = &b->g->losses[i];
    /* Where it judges pixels, the classes of each lie side by side. */
    bool pixels = b->g->layers[l->input].out.rank == 3 && l->target == BY_LABEL;
    int t = in_layout(b, l->input, pixels ? TT_NHWC : TT_PLAIN);
    if (b->m->k->precision == TT_IN_BF16 && comes_to_loss_alone(b, t, l))
        b->m->tensors[t].wide = true;
    t = converted(b, t, true);
    call *c = new_call(b, CALL_LOSS, -1);
    c->loss = i;
    c->in[0] = t;
    c->in_count = 1;
    c->out = -1;
    c->d = l->d;
    c->rows = l->rows;
}

/* ---- The way back ---- */

/* Is the first input no other input as well? */
static bool only_once(const call *c)
{
    for (int k = 1; k < c->in_count; k++)
        if (c->in[k] == c->in[0]) return false;
    return true;
}

static void plan_back(builder *b)
{
    tt_model *m = b->m;

    for (int i = 0; i < m->call_count; i++) { /* everything behind something trainable wants one */
        call *c = &m->calls[i];
        if (c->kind == CALL_LOSS) continue;
        bool wants = c->train_params || (c->table >= 0 && !m->g.tables[c->table].frozen);
        for (int k = 0; k < c->in_count; k++) wants |= m->tensors[c->in[k]].wants_grad;
        m->tensors[c->out].wants_grad = wants;
    }
    for (int i = 0; i < m->call_count; i++) { /* losses write their gradients on the way forward */
        call *c = &m->calls[i];
        tensor *t = &m->tensors[c->in[0]];
        if (c->kind != CALL_LOSS || !t->wants_grad) continue;
        c->in_grad[0] = true;
        c->in_add[0] = t->grad_written;
        if (t->grad_written)
            c->scratch = new_buffer(b, t->count * number_size(m, c->in[0]), 0);
        else
            t->grad = new_buffer(b, t->count * number_size(m, c->in[0]), 0);
        t->grad_written = true;
    }
    for (int i = m->call_count - 1; i >= 0; i--) {
        call *c = &m->calls[i];
        if (c->kind == CALL_LOSS || !m->tensors[c->out].wants_grad ||
            !m->tensors[c->out].grad_written)
            continue;
        c->backward = true;
        for (int k = 0; k < c->in_count; k++) {
            tensor *t = &m->tensors[c->in[k]];
            if (!t->wants_grad) continue;
            c->in_grad[k] = true;
            c->in_add[k] = t->grad_written;
            bool passes = (c->kind == CALL_ADD && k == 0 && only_once(c)) ||
                          (c->kind == CALL_NORM && k == 1) || c->kind == CALL_POSITIONS;
            if (!t->grad_written && passes) {
                /* d(a + b)/da is the gradient itself: the same memory, no copy. Of an add's inputs
                 * only the first may do so, because others write into theirs later; and only if it
                 * is added once, because else it would be added to while others read it. */
                t->grad = m->tensors[c->out].grad;
                c->in_alias[k] = true;
            } else if (!t->grad_written) {
                t->grad = new_buffer(b, t->count * number_size(m, c->in[k]), 0);
            }
            t->grad_written = true;
        }
        if (c->kind == CALL_CUSTOM && c->in_add[0])
            c->scratch_back =
                new_buffer(b, m->tensors[c->in[0]].count * number_size(m, c->in[0]), 0);
    }
    /* Who has a table in common with an embedding comes behind it, and so before it on the way
     * back. */
    for (int i = 0; i < m->call_count; i++)
        for (int k = i + 1; k < m->call_count && m->calls[i].kind == CALL_EMBED; k++)
            m->calls[i].late |= m->calls[k].own && m->calls[k].backward &&
                                m->calls[k].train_params &&
                                m->calls[k].param[0] == m->calls[i].param[0];
}

/* Losses of large layers are computed with them, a block of rows at a time. */
static void plan_heads(builder *b)
{
    tt_model *m = b->m;

    for (int i = 0; i < m->call_count; i++) {
        call *c = &m->calls[i];
        if (c->kind != CALL_LOSS || (c->head = head_of(m, c)) < 0) continue;
        call *head = &m->calls[c->head];
        int64_t rows = head_block(m, c);
        head->judged = true;
        c->block = new_buffer(b, 0, rows * c->d * 4);
        c->block_grad = new_buffer(b, 0, rows * c->d * 4);
        c->scratch = new_buffer(b, 0, (int64_t)m->k->conv_scratch(&head->conv, (int)rows));
    }
}

/* Of a recurrent layer's forward products, what the way back to states and inputs takes. */
static double back_share(const call *c)
{
    return c->in_grad[0] ? 1 : (double)c->recur.h / (c->recur.h + c->recur.d);
}

void compile(tt_model *m)
{
    graph *g = &m->g;
    size_t n = (size_t)g->layer_count;
    builder b = {.m = m, .g = g};

    b.uses = tt_arena_take(m->arena, n * sizeof *b.uses, 8);
    b.user = tt_arena_take(m->arena, n * sizeof *b.user, 8);
    b.done = tt_arena_take(m->arena, n * sizeof *b.done, 8);
    m->layer_tensor = tt_arena_take(m->arena, n * sizeof *m->layer_tensor, 8);
    for (int i = 0; i < g->layer_count; i++) {
        m->layer_tensor[i] = b.user[i] = -1;
        for (int k = 0; k < g->layers[i].input_count; k++) {
            int in = g->layers[i].input[k];
            if (in < 0) continue;
            b.uses[in]++;
            b.user[in] = i;
        }
    }
    for (int i = 0; i < g->loss_count; i++) b.uses[g->losses[i].input] += 2; /* never fused away */
    b.uses[g->layer_count - 1] += 2;

    new_tensor(&b, tt_shape_count(g->input), TT_PLAIN);
    m->tensors[0].wide = true;
    if (graph_has_features(g)) b.input = converted(&b, 0, false);
    for (int i = 0; i < g->layer_count; i++) {
        const layer_kind *k = g->layers[i].kind;
        if (b.done[i] || (k == &kind_batchnorm && norm_waits(&b, i))) continue;
        if (k == &kind_conv || k == &kind_dense || k == &kind_conv_transpose)
            add_conv(&b, i);
        else if (k == &kind_maxpool || k == &kind_avgpool || k == &kind_global_avgpool)
            add_pool(&b, i);
        else if (k == &kind_upsample)
            add_upsample(&b, i);
        else if (k == &kind_batchnorm)
            add_norm(&b, i, -1);
        else if (k == &kind_layernorm)
            add_layernorm(&b, i);
        else if (k == &kind_softmax || k == &kind_log_softmax)
            add_softmax(&b, i);
        else if (k == &kind_embedding || k == &kind_embeddings || k == &kind_embedding_bag)
            add_embedding(&b, i);
        else if (k == &kind_interaction)
            add_interaction(&b, i);
        else if (k == &kind_fm || k == &kind_sum)
            add_fold(&b, i);
        else if (k == &kind_positions)
            add_positions(&b, i);
        else if (k == &kind_attention)
            add_attention(&b, i);
        else if (k == &kind_lstm || k == &kind_gru)
            add_recurrent(&b, i);
        else if (k == &kind_flatten)
            add_flatten(&b, i);
        else if (k == &kind_add)
            add_sum(&b, i);
        else
            add_simple(&b, i);
    }
    for (int i = 0; i < g->loss_count; i++) add_loss(&b, i);
    plan_back(&b);
    plan_heads(&b);
    for (int t = 1; t < m->tensor_count; t++)
        m->tensors[t].act = new_buffer(&b, m->tensors[t].count * number_size(m, t), 0);
    plan_lives(m);

    for (int i = 0; i < m->call_count; i++) {
        const call *c = &m->calls[i];
        double f = c->layer >= 0 ? g->layers[c->layer].flops : 0;
        if (c->kind == CALL_CONV) m->train_flops += f * (1 + c->train_params + c->in_grad[0]);
        if (c->kind == CALL_ATTEND) m->train_flops += f * (1 + 2 * c->in_grad[0]);
        if (c->kind == CALL_INTERACT) m->train_flops += f * (1 + 2 * c->backward);
        if (c->kind == CALL_RECUR) m->train_flops += f * (1 + c->train_params + back_share(c));
    }
}
