/* sequence: layers on positions of a sequence, (positions, features), and what makes one of ids. */
#include <math.h>
#include <string.h>

#include "graph.h"

/* ---- embedding ---- */

static const tt_key embedding_keys[] = {
    COMMON,
    {"rows", TT_INT, offsetof(embedding_args, rows), NULL, 1, INT32_MAX, NULL,
     "rows of its table: ids are below that"},
    {"dim", TT_INT, offsetof(embedding_args, dim), NULL, 1, 1 << 24, NULL, "numbers of a row"},
    {"first", TT_INT, offsetof(embedding_args, first), "0", 0, 1 << 24, NULL,
     "the first of a sample's ids that it takes"},
    {"count", TT_INT, offsetof(embedding_args, count), "0", 0, 1 << 24, NULL,
     "how many; 0: all that follow; 1: its output is a vector"},
    {"std", TT_NUMBER, offsetof(embedding_args, std), "1", 0, 1e9, NULL,
     "deviation of the initial rows"},
};

static tt_err embedding_shape(graph *g, layer *l)
{
    embedding_args *a = l->args;
    bool vector = a->count == 1;

    if (!g->ids)
        return tt_node_fail(l->at,
                            "embedding '%s' takes ids, and the model's input has none: say "
                            "input: {ids: N}",
                            l->name);
    if (!a->count) a->count = g->ids - a->first;
    if (a->count < 1 || a->count > g->ids - a->first)
        return tt_node_fail(l->at, "'%s' takes %lld ids from the %lldth on, but a sample has %lld",
                            l->name, (long long)a->count, (long long)a->first + 1,
                            (long long)g->ids);
    for (int64_t i = a->first; i < a->first + a->count; i++)
        if (!g->id_rows[i] || a->rows < g->id_rows[i]) g->id_rows[i] = a->rows;
    l->out = vector ? (tt_shape){1, {a->dim}} : (tt_shape){2, {a->count, a->dim}};
    l->ahead = a->first > 0; /* its first position has an id behind the first */
    l->detail = tt_arena_printf(g->arena, "%lld rows", (long long)a->rows);
    graph_param(g, l, "weight", TT_WEIGHT, (tt_shape){2, {a->rows, a->dim}},
                (param_init){a->std, 0, true}, 0);
    return TT_OK;
}

tt_err need_sequence(const layer *l)
{
    char buf[64];
    if (l->in.rank == 2) return TT_OK;
    return tt_node_fail(l->at,
                        "%s '%s' takes a sequence (positions, features), but its input is %s",
                        l->kind->name, l->name, tt_shape_show(l->in, buf, sizeof buf));
}

/* ---- positions ---- */

static const tt_key positions_keys[] = {
    COMMON,
    {"count", TT_INT, offsetof(positions_args, count), "0", 0, 1 << 24, NULL,
     "positions it has vectors for; 0: as many as its input has"},
    {"std", TT_NUMBER, offsetof(positions_args, std), "0.02", 0, 1e9, NULL,
     "deviation of the initial numbers"},
};

static tt_err positions_shape(graph *g, layer *l)
{
    const positions_args *a = l->args;
    tt_err err = need_sequence(l);

    if (err) return err;
    if (a->count && a->count < l->in.dim[0])
        return tt_node_fail(l->at, "'%s' has %lld positions, but its input %lld", l->name,
                            (long long)a->count, (long long)l->in.dim[0]);
    tt_shape table = {2, {a->count ? a->count : l->in.dim[0], l->in.dim[1]}};
    l->out = l->in;
    if (a->count) l->detail = tt_arena_printf(g->arena, "the first of %lld", (long long)a->count);
    graph_param(g, l, "weight", TT_WEIGHT, table, (param_init){a->std, 0, true}, 0);
    return TT_OK;
}

/* ---- attention ---- */

static const tt_key attention_keys[] = {
    COMMON,
    {"heads", TT_INT, offsetof(attention_args, heads), NULL, 1, 1 << 16, NULL, "heads"},
    {"causal", TT_BOOL, offsetof(attention_args, causal), "true", 0, 0, NULL,
     "a position sees none behind it"},
};

static tt_err attention_shape(graph *g, layer *l)
{
    const attention_args *a = l->args;
    tt_err err = need_sequence(l);

    if (err) return err;
    int64_t wide = l->in.dim[1] / 3;
    if (l->in.dim[1] % 3 || wide % a->heads)
        return tt_node_fail(l->at,
                            "attention '%s' takes queries, keys and values side by side, of %lld "
                            "heads, but its input has %lld features",
                            l->name, (long long)a->heads, (long long)l->in.dim[1]);
    double t = (double)l->in.dim[0], seen = a->causal ? (t + 1) / 2 : t;
    l->out = (tt_shape){2, {l->in.dim[0], wide}};
    l->flops = 4 * t * seen * (double)wide;
    l->ahead = !a->causal;
    l->detail =
        tt_arena_printf(g->arena, "%lld heads%s", (long long)a->heads, a->causal ? ", causal" : "");
    return TT_OK;
}

KIND(embedding, "embedding", embedding_keys, embedding_args, 0, 0, embedding_shape);
KIND(positions, "positions", positions_keys, positions_args, 1, 1, positions_shape);
KIND(attention, "attention", attention_keys, attention_args, 1, 1, attention_shape);
