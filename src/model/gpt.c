/* gpt: is a model a GPT-2, layer by layer? Then others know what to do with its weights. */
#include <stdio.h>
#include <string.h>

#include "calls.h"

/* The layers are walked front to back, each fed by the one before. Dropout may stand behind the
 * positions and at the end of each branch. */
typedef struct walk {
    const graph *g;
    int at;
    tt_gpt *gpt; /* what is known of it so far; 0: nothing yet */
} walk;

static const layer *look(const walk *w)
{
    return w->at < w->g->layer_count ? &w->g->layers[w->at] : NULL;
}

/* The next layer, which must be of this kind and name (NULL: any). */
static tt_err take(walk *w, const layer_kind *kind, const char *name, const void **args)
{
    const layer *l = look(w);

    if (!l)
        return tt_fail(TT_EINVAL, "it ends where a layer %s%s%s should follow", kind->name,
                       name ? " " : "", name ? name : "");
    if (l->kind != kind || (name && strcmp(l->name, name)))
        return tt_fail(TT_EINVAL, "a layer %s '%s' stands where %s%s%s should be", l->kind->name,
                       l->name, kind->name, name ? " " : "", name ? name : "");
    if (l->input_count && l->input[0] != w->at - 1)
        return tt_fail(TT_EINVAL, "layer '%s' does not take what stands before it", l->name);
    w->at++;
    *args = l->args;
    return TT_OK;
}

/* What all blocks must have in common. */
static tt_err same(const char *what, int64_t value, int64_t *known)
{
    if (*known && *known != value)
        return tt_fail(TT_EINVAL, "its blocks differ in %s: %lld and %lld", what, (long long)*known,
                       (long long)value);
    *known = value;
    return TT_OK;
}

static tt_err take_dropout(walk *w, double *p)
{
    const void *args;

    if (!look(w) || look(w)->kind != &kind_dropout) return TT_OK;
    tt_err err = take(w, &kind_dropout, NULL, &args);
    if (!err) *p = ((const dropout_args *)args)->p;
    return err;
}

static tt_err take_dense(walk *w, const char *name, int64_t *out)
{
    const void *args;
    tt_err err = take(w, &kind_dense, name, &args);
    const dense_args *a = err ? NULL : args;

    if (err) return err;
    if (a->tied) return tt_fail(TT_EINVAL, "'%s' has no weights of its own", name);
    return same("the outputs of a dense layer", a->out, out);
}

static tt_err take_norm(walk *w, const char *name)
{
    const void *args;
    tt_err err = take(w, &kind_layernorm, name, &args);
    const norm_args *a = err ? NULL : args;

    if (err) return err;
    if (a->dims != 1) return tt_fail(TT_EINVAL, "'%s' has dims: %lld", name, (long long)a->dims);
    if (w->gpt->eps > 0 && w->gpt->eps != a->eps)
        return tt_fail(TT_EINVAL, "its layernorms have different eps, %g and %g", w->gpt->eps,
                       a->eps);
    w->gpt->eps = a->eps;
    return TT_OK;
}

static tt_err take_attention(walk *w, const char *name)
{
    const void *args;
    tt_err err = take(w, &kind_attention, name, &args);
    const attention_args *a = err ? NULL : args;

    if (err) return err;
    if (!a->causal) return tt_fail(TT_EINVAL, "'%s' is not causal", name);
    return same("heads", a->heads, &w->gpt->heads);
}

static tt_err take_gelu(walk *w)
{
    const void *args;
    tt_err err = take(w, &kind_gelu, NULL, &args);
    bool tanh = !err && ((const gelu_args *)args)->tanh;

    if (!err && w->gpt->layers && tanh != w->gpt->tanh)
        err = tt_fail(TT_EINVAL, "its blocks have different kinds of gelu");
    w->gpt->tanh = tanh;
    return err;
}

/* The end of a branch: it is added to the output of `start`, with which it began. */
static tt_err take_sum(walk *w, int start)
{
    const void *args;
    tt_err err = take_dropout(w, &w->gpt->branch_dropout);

    if (err || (err = take(w, &kind_add, NULL, &args))) return err;
    const layer *l = &w->g->layers[w->at - 1];
    if (l->input_count != 2 || l->input[1] != start)
        return tt_fail(TT_EINVAL, "'%s' does not add a branch to what it began with", l->name);
    return TT_OK;
}

enum { LN_1, C_ATTN, ATTN, ATTN_PROJ, LN_2, C_FC, MLP_PROJ, PARTS };

static void block_names(int64_t i, char name[PARTS][48])
{
    static const char *const parts[PARTS] = {"ln_1", "attn.c_attn", "attn",      "attn.c_proj",
                                             "ln_2", "mlp.c_fc",    "mlp.c_proj"};

    for (int k = 0; k < PARTS; k++) snprintf(name[k], 48, "h.%lld.%s", (long long)i, parts[k]);
}

static tt_err take_block(walk *w, char name[PARTS][48])
{
    tt_gpt *g = w->gpt;
    int64_t three = 3 * g->width;
    int start = w->at - 1;
    tt_err err;

    if ((err = take_norm(w, name[LN_1])) || (err = take_dense(w, name[C_ATTN], &three)) ||
        (err = take_attention(w, name[ATTN])) ||
        (err = take_dense(w, name[ATTN_PROJ], &g->width)) || (err = take_sum(w, start)))
        return err;
    start = w->at - 1;
    if ((err = take_norm(w, name[LN_2])) || (err = take_dense(w, name[C_FC], &g->inner)) ||
        (err = take_gelu(w)) || (err = take_dense(w, name[MLP_PROJ], &g->width)) ||
        (err = take_sum(w, start)))
        return err;
    g->layers++;
    return TT_OK;
}

static tt_err take_front(walk *w)
{
    const void *args;
    tt_gpt *g = w->gpt;
    tt_err err = take(w, &kind_embedding, "wte", &args);
    const embedding_args *e = err ? NULL : args;

    if (err) return err;
    if (w->g->layers[0].out.rank != 2) return tt_fail(TT_EINVAL, "'wte' takes a single token");
    if (e->first || e->count != w->g->ids || graph_has_features(w->g))
        return tt_fail(TT_EINVAL, "its input is not tokens alone");
    g->vocab = e->rows;
    g->width = e->dim;
    g->context = w->g->ids;
    if ((err = take(w, &kind_positions, "wpe", &args))) return err;
    g->positions = ((const positions_args *)args)->count;
    if (!g->positions) g->positions = g->context;
    return take_dropout(w, &g->embed_dropout);
}

static tt_err take_head(walk *w)
{
    const void *args;
    tt_gpt *g = w->gpt;
    tt_err err = take(w, &kind_dense, "lm_head", &args);
    const dense_args *a = err ? NULL : args;

    if (err) return err;
    if (a->bias) return tt_fail(TT_EINVAL, "'lm_head' has a bias");
    if (a->out != g->vocab)
        return tt_fail(TT_EINVAL, "'lm_head' knows %lld tokens, 'wte' %lld", (long long)a->out,
                       (long long)g->vocab);
    g->tied = a->tied != NULL;
    if (look(w))
        return tt_fail(TT_EINVAL, "a layer %s '%s' stands behind 'lm_head'", look(w)->kind->name,
                       look(w)->name);
    return TT_OK;
}

tt_err tt_model_gpt(const tt_model *m, tt_gpt *out)
{
    walk w = {.g = &m->g, .gpt = out};
    char name[PARTS][48];
    tt_err err;

    memset(out, 0, sizeof *out);
    if ((err = take_front(&w))) return err;
    for (block_names(0, name); !out->layers || (look(&w) && !strcmp(look(&w)->name, name[LN_1]));
         block_names(out->layers, name))
        if ((err = take_block(&w, name))) return err;
    if ((err = take_norm(&w, "ln_f"))) return err;
    return take_head(&w);
}
