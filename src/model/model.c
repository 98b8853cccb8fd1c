/* model: opening a model, and what it looks like from outside. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

static size_t packed_bytes(const tt_model *m)
{
    return (size_t)m->packed_count * tt_kernels_element(m->k) + 64;
}

tt_err tt_model_open(tt_node *model, const tt_model_opts *opts, tt_model **out)
{
    tt_arena *arena = tt_arena_open(1 << 16);
    tt_model *m = tt_arena_take(arena, sizeof *m, 64);
    tt_err err = TT_OK;

    *out = NULL;
    m->arena = arena;
    m->k = opts->kernels;
    m->samples = opts->samples ? opts->samples : 64;
    m->sync_norm = opts->sync_norm;
    m->keep = -1;
    /* Of whoever names none; TUTTI_KERNELS may be of the other precision. */
    if (!m->k && (err = tt_kernels_find("auto", &m->k)) &&
        (err = tt_kernels_pick("auto", TT_IN_BF16, &m->k)))
        goto out;
    if ((err = graph_read(model, arena, opts->tables, &m->g))) goto out;
    for (int i = 0; opts->keep && i < m->g.layer_count; i++)
        if (!strcmp(m->g.layers[i].name, opts->keep)) m->keep = i;
    if (opts->keep && m->keep < 0) {
        const char **names = tt_arena_take(arena, (size_t)m->g.layer_count * sizeof *names, 8);
        for (int i = 0; i < m->g.layer_count; i++) names[i] = m->g.layers[i].name;
        const char *near = tt_nearest(opts->keep, names, m->g.layer_count);
        err = tt_fail(TT_EINVAL, "there is no layer '%s'%s%s%s", opts->keep,
                      near ? ": did you mean '" : "", near ? near : "", near ? "'?" : "");
        goto out;
    }
    compile(m);
    m->packed = tt_block_alloc(packed_bytes(m));
    if (!m->packed) {
        err = tt_fail(TT_ENOMEM, "no memory for %lld packed weights", (long long)m->packed_count);
        goto out;
    }
    *out = m;
    m = NULL;
out:
    tt_model_close(m);
    return err;
}

void tt_model_close(tt_model *m)
{
    if (!m) return;
    if (m->packed) tt_block_free(m->packed, packed_bytes(m));
    tt_arena_close(m->arena);
}

const tt_param *tt_model_params(const tt_model *m, int *count)
{
    *count = m->g.param_count;
    return m->g.params;
}

int64_t tt_model_size(const tt_model *m)
{
    return m->g.size;
}
tt_shape tt_model_input(const tt_model *m)
{
    return m->g.input;
}
const tt_node *tt_model_input_at(const tt_model *m)
{
    return m->g.input_at;
}
tt_shape tt_model_output(const tt_model *m)
{
    return m->g.layers[m->g.layer_count - 1].out;
}
const tt_kernels *tt_model_kernels(const tt_model *m)
{
    return m->k;
}
int tt_model_layer_count(const tt_model *m)
{
    return m->g.layer_count;
}
int tt_model_loss_count(const tt_model *m)
{
    return m->g.loss_count;
}
const char *tt_model_loss_name(const tt_model *m, int i)
{
    return m->g.losses[i].name;
}
double tt_model_train_flops(const tt_model *m)
{
    return m->train_flops;
}

const char *tt_model_looks_ahead(const tt_model *m)
{
    for (int i = 0; i < m->g.layer_count; i++)
        if (m->g.layers[i].ahead) return m->g.layers[i].name;
    return NULL;
}

int tt_model_next_classes(const tt_model *m)
{
    tt_shape s = tt_model_output(m);
    const loss *l = m->g.judged < 0 ? NULL : &m->g.losses[m->g.judged];

    if (!l || l->input != m->g.layer_count - 1 || l->kind == TT_LOSS_BCE || l->target != BY_LABEL)
        return 0;
    return m->g.ids && s.rank == 2 && s.dim[0] == m->g.ids && s.dim[1] == l->d ? (int)l->d : 0;
}

double tt_model_flops(const tt_model *m)
{
    double sum = 0;
    for (int i = 0; i < m->g.layer_count; i++) sum += m->g.layers[i].flops;
    return sum;
}

int tt_model_sum_most(const tt_model *m)
{
    int most = 0;
    for (int i = 0; i < m->call_count && m->sync_norm; i++)
        if (m->calls[i].kind == CALL_NORM && 2 * m->calls[i].c + 1 > most)
            most = (int)(2 * m->calls[i].c + 1);
    return most;
}

tt_row tt_model_row(const tt_model *m)
{
    tt_row r = {.features = tt_shape_count(m->g.input),
                .ids = m->g.ids,
                .targets = tt_model_wants(m).targets};

    for (int i = 0; i < m->g.loss_count; i++)
        if (m->g.losses[i].target == BY_LABEL) r.labels = m->g.losses[i].rows;
    return r;
}

tt_wants tt_model_wants(const tt_model *m)
{
    tt_wants w = {.id_rows = m->g.id_rows};
    for (int i = 0; i < m->g.loss_count; i++) {
        const loss *l = &m->g.losses[i];
        int d = (int)l->d;
        if (l->target == BY_LABEL) {
            int classes = l->kind == TT_LOSS_BCE ? 2 : d;
            if (!w.classes || classes < w.classes) w.classes = classes;
        }
        if (l->target == BY_TARGET) w.targets = d;
    }
    return w;
}

const char *tt_model_judged_by(const tt_model *m)
{
    const graph *g = &m->g;
    const int last = g->layer_count - 1;

    if (g->judged >= 0 && g->losses[g->judged].input == last)
        return tt_model_loss_name(m, g->judged);
    for (int i = 0; i < g->loss_count; i++)
        if (g->losses[i].input == last) return tt_model_loss_name(m, i);
    return "";
}

int tt_model_plain_loss(const tt_model *m)
{
    const loss *l = m->g.judged < 0 ? NULL : &m->g.losses[m->g.judged];

    if (!l || l->kind == TT_LOSS_BCE || l->smoothing > 0 || l->class_weight) return -1;
    return m->g.judged;
}

int tt_model_scores(const tt_model *m)
{
    const loss *l = m->g.judged < 0 ? NULL : &m->g.losses[m->g.judged];

    if (!l || l->input != m->g.layer_count - 1) return 0;
    if (l->kind == TT_LOSS_BCE) return 1; /* of a label: it has one output */
    return l->d == 2 && l->rows == 1 ? 2 : 0;
}

int tt_model_pixel_classes(const tt_model *m)
{
    const loss *l = m->g.judged < 0 ? NULL : &m->g.losses[m->g.judged];

    return l && m->g.layers[l->input].out.rank == 3 && l->kind != TT_LOSS_BCE ? (int)l->d : 0;
}

tt_layer_info tt_model_layer(const tt_model *m, int i)
{
    const layer *l = &m->g.layers[i];
    tt_layer_info info = {.name = l->name,
                          .kind = l->kind->name,
                          .detail = l->detail,
                          .inputs = "",
                          .out = l->out,
                          .flops = l->flops,
                          .frozen = l->frozen};
    bool chain = !l->input_count || (l->input_count == 1 && l->input[0] == i - 1);

    for (int k = l->shared; k < l->param_count; k++)
        if (m->g.params[l->param[k]].role != TT_STAT) info.params += m->g.params[l->param[k]].n;
    if (l->table) info.params += m->g.tables[l->table - 1].rows * m->g.tables[l->table - 1].dim;
    for (int k = 0; k < l->input_count && !chain; k++) {
        const char *name = l->input[k] < 0 ? "input" : m->g.layers[l->input[k]].name;
        info.inputs = tt_arena_printf(m->arena, "%s%s%s", info.inputs, k ? ", " : "", name);
    }
    return info;
}

void tt_model_show_calls(const tt_model *m, tt_str *out)
{
    static const char *const kinds[] = {
        "conv",      "maxpool", "avgpool",  "upsample", "norm",    "layernorm", "softmax", "unary",
        "add",       "mul",     "concat",   "dropout",  "reorder", "convert",   "custom",  "embed",
        "positions", "attend",  "interact", "fm",       "sum",     "recur",     "loss"};
    static const char *const layouts[] = {"plain", "nhwc", "lanes"};

    for (int i = 0; i < m->call_count; i++) {
        const call *c = &m->calls[i];
        const char *name = c->layer >= 0  ? m->g.layers[c->layer].name
                           : c->loss >= 0 ? m->g.losses[c->loss].name
                                          : "";
        tt_str_add(out, "%4d %-10s %-6s %s", i, kinds[c->kind], layouts[c->layout], name);
        if (c->kind == CALL_CONV && c->conv.turned) tt_str_add(out, " transposed");
        if (c->kind == CALL_REORDER) tt_str_add(out, " from %s", layouts[c->from]);
        if (c->kind == CALL_CONV && c->conv.pool) tt_str_add(out, " + maxpool");
        if (c->add >= 0) tt_str_add(out, " + add");
        if (c->conv.relu || c->relu) tt_str_add(out, " + relu");
        if (c->head >= 0)
            tt_str_add(out, " with %s, %lld rows at a time",
                       m->g.layers[m->calls[c->head].layer].name, (long long)head_block(m, c));
        tt_str_add(out, "\n");
    }
}

/* ---- Weights ---- */

uint64_t key_of(uint64_t seed, const char *name)
{
    return tt_random_key(tt_random_key(seed, "init"), name);
}

void begin_numbers(uint64_t key, const param_init *init, int64_t first, int64_t n, float *out)
{
    for (int64_t k = first / 4 * 4; k < first + n; k += 4) { /* four come at once */
        float r[4] = {0};
        if (init->normal)
            tt_normal4(key, 0, (uint64_t)k, r);
        else if (init->bound > 0)
            tt_uniform4(key, 0, (uint64_t)k, r);
        for (int j = 0; j < 4; j++) {
            double v = init->normal      ? r[j] * init->bound
                       : init->bound > 0 ? (2 * r[j] - 1) * init->bound
                                         : init->fill;
            if (k + j >= first && k + j < first + n) out[k + j - first] = (float)v;
        }
    }
}

void tt_model_init(const tt_model *m, uint64_t seed, float *params)
{
    memset(params, 0, (size_t)m->g.size * sizeof *params);
    for (int i = 0; i < m->g.param_count; i++) {
        const tt_param *p = &m->g.params[i];
        begin_numbers(key_of(seed, p->name), &m->g.inits[i], 0, p->n, params + p->at);
    }
}

void tt_model_bind(tt_model *m, const float *params)
{
    m->params = params;
}

void tt_model_refresh(tt_model *m, int part, int parts)
{
    /* Shares of about equal size: a call belongs to whoever owns the middle of its packed weights.
     */
    for (int i = 0; i < m->call_count; i++) {
        const call *c = &m->calls[i];
        if (!c->packed_count) continue;
        int64_t middle = c->packed_at + c->packed_count / 2;
        if (middle * parts / m->packed_count != part) continue;
        const float *w = m->params + m->g.params[c->param[0]].at;
        void *packed = (char *)m->packed + (size_t)c->packed_at * tt_kernels_element(m->k);
        tt_recur_args recur = c->recur;
        if (c->kind == CALL_CONV) {
            m->k->conv_pack(&c->conv, w, packed);
        } else {
            recur.w_ih = w;
            recur.w_hh = m->params + m->g.params[c->param[1]].at;
            m->k->recur_pack(&recur, packed);
        }
    }
}
