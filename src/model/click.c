/* click: layers of models that predict clicks: tables for many categories, and what becomes of
 * their rows together. A sample's vectors are (how many, numbers of each), as a sequence is. */
#include <stdio.h>

#include "graph.h"

/* clang-format off */
#define SPARSE(args)                                                                               \
    {"sparse", TT_BOOL, offsetof(args, sparse), "true", 0, 0, NULL,                                \
     "a step takes and changes the rows that its samples name, and no others"}
/* clang-format on */

enum { VECTORS_MOST = 4096, IDS_MOST = 1 << 20 };

/* ---- ids ---- */

/* Those that a layer takes: `*count` from `first` on, 0: all that follow. */
static tt_err take_ids(const graph *g, const layer *l, int64_t first, int64_t *count)
{
    if (!g->ids)
        return tt_node_fail(l->at,
                            "%s '%s' takes ids, and the model's input has none: say "
                            "input: {features: [...], ids: N}",
                            l->kind->name, l->name);
    if (first + (*count ? *count : 1) > g->ids)
        return tt_node_fail(
            l->at, "'%s' takes ids %lld to %lld, counted from 0, but a sample has %lld", l->name,
            (long long)first, (long long)(first + (*count ? *count : 1) - 1), (long long)g->ids);
    if (!*count) *count = g->ids - first;
    return TT_OK;
}

static void note_rows(graph *g, int64_t id, int64_t rows)
{
    if (!g->id_rows[id] || rows < g->id_rows[id]) g->id_rows[id] = rows;
}

static param_init table_init(double std)
{
    return (param_init){std, 0, std > 0};
}

/* ---- embeddings: a table for each id ---- */

static const tt_key embeddings_keys[] = {
    COMMON,
    {"rows", TT_INTS, offsetof(embeddings_args, rows), NULL, 1, INT32_MAX, NULL,
     "rows of its tables: one number for all, or one for each"},
    {"dim", TT_INT, offsetof(embeddings_args, dim), NULL, 1, 1 << 24, NULL, "numbers of a row"},
    {"tables", TT_INT, offsetof(embeddings_args, tables), "0", 0, IDS_MOST, NULL,
     "how many, one for each id; 0: as many as `rows` lists, or for all ids that follow"},
    {"first", TT_INT, offsetof(embeddings_args, first), "0", 0, 1 << 24, NULL,
     "the first of a sample's ids that it takes"},
    {"std", TT_NUMBER, offsetof(embeddings_args, std), "0.01", 0, 1e9, NULL,
     "deviation of the initial rows"},
    SPARSE(embeddings_args),
};

/* One behind the other, in one tensor: (all rows, dim). */
static tt_err embeddings_shape(graph *g, layer *l)
{
    embeddings_args *a = l->args;
    int64_t all = 0;
    tt_err err;

    if (!a->tables && a->rows.count > 1) a->tables = a->rows.count;
    if ((err = take_ids(g, l, a->first, &a->tables))) return err;
    if (a->rows.count != 1 && a->rows.count != a->tables)
        return tt_node_fail(tt_node_get(l->args_at, "rows"),
                            "rows has %d numbers, but '%s' has %lld tables", a->rows.count, l->name,
                            (long long)a->tables);
    a->base = tt_arena_take(g->arena, 2 * (size_t)a->tables * sizeof *a->base, 8);
    for (int64_t i = 0; i < a->tables; i++) {
        int64_t rows = a->base[a->tables + i] = a->rows.item[a->rows.count == 1 ? 0 : i];
        a->base[i] = all;
        all += rows;
        note_rows(g, a->first + i, rows);
    }
    l->out = (tt_shape){2, {a->tables, a->dim}};
    l->ahead = a->first > 0;
    l->detail =
        tt_arena_printf(g->arena, "%lld tables, %lld rows", (long long)a->tables, (long long)all);
    return graph_rows(g, l, (tt_parts){(int)a->tables, a->base + a->tables}, a->dim, a->tables,
                      a->sparse, table_init(a->std));
}

/* ---- embedding bag ---- */

static const tt_key bag_keys[] = {
    COMMON,
    {"rows", TT_INT, offsetof(bag_args, rows), NULL, 1, INT32_MAX, NULL,
     "rows of its table: ids are below that"},
    {"dim", TT_INT, offsetof(bag_args, dim), NULL, 1, 1 << 24, NULL, "numbers of a row"},
    {"first", TT_INT, offsetof(bag_args, first), "0", 0, 1 << 24, NULL,
     "the first of a sample's ids that it takes"},
    {"count", TT_INT, offsetof(bag_args, count), "0", 0, 1 << 24, NULL,
     "how many; 0: all that follow"},
    {"mode", TT_CHOICE, offsetof(bag_args, mode), "sum", 0, 0, "sum|mean",
     "what becomes of their rows; ids of -1 are left out"},
    {"std", TT_NUMBER, offsetof(bag_args, std), "0.01", 0, 1e9, NULL,
     "deviation of the initial rows"},
    SPARSE(bag_args),
};

static tt_err bag_shape(graph *g, layer *l)
{
    bag_args *a = l->args;
    tt_err err = take_ids(g, l, a->first, &a->count);

    if (err) return err;
    for (int64_t i = 0; i < a->count; i++) note_rows(g, a->first + i, a->rows);
    l->out = (tt_shape){1, {a->dim}};
    l->detail = tt_arena_printf(g->arena, "%s of %lld, %lld rows", a->mode ? "mean" : "sum",
                                (long long)a->count, (long long)a->rows);
    return graph_rows(g, l, (tt_parts){1, &a->rows}, a->dim, a->count, a->sparse,
                      table_init(a->std));
}

/* ---- interaction ---- */

static const tt_key plain_keys[] = {COMMON};

static tt_err interaction_shape(graph *g, layer *l)
{
    int64_t dim = l->in.dim[l->in.rank - 1], k = 0;
    char a[64], b[64];

    for (int i = 0; i < l->input_count; i++) {
        tt_shape s = graph_shape(g, l->input[i]);
        if (s.rank > 2 || s.dim[s.rank - 1] != dim)
            return tt_node_fail(l->at,
                                "interaction '%s' takes vectors of one length, or several of it "
                                "(how many, length), but its inputs are %s and %s",
                                l->name, tt_shape_show(l->in, a, sizeof a),
                                tt_shape_show(s, b, sizeof b));
        k += tt_shape_count(s) / dim;
    }
    if (k < 2 || k > VECTORS_MOST)
        return tt_node_fail(l->at, "interaction '%s' takes 2 to %d vectors, not %lld", l->name,
                            VECTORS_MOST, (long long)k);
    l->out = (tt_shape){1, {dim + k * (k - 1) / 2}};
    l->flops = (double)(k * (k - 1)) * (double)dim;
    l->detail = tt_arena_printf(g->arena, "%lld vectors", (long long)k);
    return TT_OK;
}

/* ---- factorisation machine, sum ---- */

static tt_err need_vectors(const layer *l)
{
    char buf[64];

    if (l->in.rank == 2) return TT_OK;
    return tt_node_fail(l->at, "%s '%s' takes vectors (how many, length), but its input is %s",
                        l->kind->name, l->name, tt_shape_show(l->in, buf, sizeof buf));
}

static tt_err fm_shape(graph *g, layer *l)
{
    (void)g;
    l->out = (tt_shape){1, {1}};
    l->flops = 4 * (double)tt_shape_count(l->in);
    return need_vectors(l);
}

static tt_err sum_shape(graph *g, layer *l)
{
    (void)g;
    l->out = (tt_shape){1, {l->in.dim[1]}};
    return need_vectors(l);
}

KIND(embeddings, "embeddings", embeddings_keys, embeddings_args, 0, 0, embeddings_shape);
KIND(embedding_bag, "embedding_bag", bag_keys, bag_args, 0, 0, bag_shape);
KIND(interaction, "interaction", plain_keys, common_args, 1, INPUTS_MOST, interaction_shape);
KIND(fm, "fm", plain_keys, common_args, 1, 1, fm_shape);
KIND(sum, "sum", plain_keys, common_args, 1, 1, sum_shape);

/* ---- presets ----
 *
 * The numbers they take are those of the layer before, or the model's input; the ids are the
 * sample's. */

typedef struct click_args {
    tt_ints rows, bottom, top, hidden;
    int64_t dim;
    double dropout;
} click_args;

/* clang-format off */
#define CLICK_KEYS                                                                                 \
    {"rows", TT_INTS, offsetof(click_args, rows), NULL, 1, INT32_MAX, NULL,                        \
     "rows of the tables, one table for each id: one number, or one for each"},                    \
    {"dim", TT_INT, offsetof(click_args, dim), "16", 1, 1 << 16, NULL, "numbers of a row"}
/* clang-format on */

static const tt_key dlrm_keys[] = {
    CLICK_KEYS,
    {"bottom", TT_INTS, offsetof(click_args, bottom), "[64]", 1, 1 << 24, NULL,
     "hidden layers that the numbers go through, before one of `dim`"},
    {"top", TT_INTS, offsetof(click_args, top), "[64]", 1, 1 << 24, NULL,
     "hidden layers behind the interaction"},
};
static const tt_key deep_keys[] = {
    CLICK_KEYS,
    {"hidden", TT_INTS, offsetof(click_args, hidden), "[128, 64]", 1, 1 << 24, NULL,
     "hidden layers of the deep part"},
    {"dropout", TT_NUMBER, offsetof(click_args, dropout), "0", 0, 0.999, NULL,
     "behind each hidden layer"},
};

/* They are of all ids: what has no table would be left out without a word. */
static tt_err check_tables(const tt_node *args, const tt_ints *rows, int64_t ids)
{
    if (rows->count == 1 || rows->count == ids) return TT_OK;
    return tt_node_fail(
        tt_node_get(args, "rows"),
        "rows has %d numbers, and a sample has %lld ids: one number for all, or one "
        "for each",
        rows->count, (long long)ids);
}

static void add_tables(tt_str *out, const char *name, const tt_ints *rows, int64_t dim,
                       const char *more)
{
    tt_str_add(out, "- embeddings: {name: %s, rows: [", name);
    for (int i = 0; i < rows->count; i++)
        tt_str_add(out, "%s%lld", i ? ", " : "", (long long)rows->item[i]);
    tt_str_add(out, "], dim: %lld%s}\n", (long long)dim, more);
}

/* `name`.0, `name`.1 ..., each with a relu behind it. */
static int add_hidden(tt_str *out, const char *name, const tt_ints *sizes, double dropout)
{
    for (int i = 0; i < sizes->count; i++) {
        tt_str_add(out, "- dense: {name: %s.%d, out: %lld}\n- relu\n", name, i,
                   (long long)sizes->item[i]);
        if (dropout > 0) tt_str_add(out, "- dropout: {p: %.9g}\n", dropout);
    }
    return sizes->count;
}

tt_err expand_dlrm(tt_node *args, tt_shape input, int64_t ids, tt_str *out)
{
    click_args a = {0};
    tt_err err = tt_node_read(args, "dlrm", dlrm_keys, TT_COUNT(dlrm_keys), &a);

    if (err || (err = check_tables(args, &a.rows, ids))) return err;
    if (!tt_shape_count(input))
        return tt_node_fail(args, "dlrm takes numbers beside the ids: say input: {features: [13], "
                                  "ids: 26}; without any, take deepfm");
    if (input.rank != 1) tt_str_add(out, "- flatten\n");
    int n = add_hidden(out, "bottom", &a.bottom, 0);
    tt_str_add(out, "- dense: {name: bottom.%d, out: %lld}\n- relu: {name: bottom.out}\n", n,
               (long long)a.dim);
    add_tables(out, "embeddings", &a.rows, a.dim, "");
    tt_str_add(out, "- interaction: {name: interaction, from: [bottom.out, embeddings]}\n");
    n = add_hidden(out, "top", &a.top, 0);
    tt_str_add(out, "- dense: {name: top.%d, out: 1}\n", n);
    return TT_OK;
}

/* A linear part and a deep one, added; `fm`: with the dots of all pairs between them. */
static tt_err expand_deep(const char *name, bool fm, tt_node *args, tt_shape input, int64_t ids,
                          tt_str *out)
{
    click_args a = {0};
    tt_err err = tt_node_read(args, name, deep_keys, TT_COUNT(deep_keys), &a);
    bool numbers = tt_shape_count(input) > 0;

    if (err || (err = check_tables(args, &a.rows, ids))) return err;
    if (numbers) tt_str_add(out, "- flatten: {name: numbers}\n"); /* a name for them */
    add_tables(out, "wide.embeddings", &a.rows, 1, ", std: 0");
    tt_str_add(out, "- sum: {name: wide.ids}\n");
    if (numbers)
        tt_str_add(out, "- dense: {name: wide.numbers, from: numbers, out: 1, bias: false}\n");
    add_tables(out, "embeddings", &a.rows, a.dim, "");
    if (fm) tt_str_add(out, "- fm: {name: fm}\n");
    tt_str_add(out, "- flatten: {name: ids, from: embeddings}\n");
    if (numbers) tt_str_add(out, "- concat: {from: [ids, numbers]}\n");
    int n = add_hidden(out, "deep", &a.hidden, a.dropout);
    tt_str_add(out, "- dense: {name: deep.%d, out: 1}\n", n);
    tt_str_add(out, "- add: {name: logit, from: [prev, wide.ids%s%s]}\n",
               numbers ? ", wide.numbers" : "", fm ? ", fm" : "");
    return TT_OK;
}

tt_err expand_wide_deep(tt_node *args, tt_shape input, int64_t ids, tt_str *out)
{
    return expand_deep("wide_deep", false, args, input, ids, out);
}

tt_err expand_deepfm(tt_node *args, tt_shape input, int64_t ids, tt_str *out)
{
    return expand_deep("deepfm", true, args, input, ids, out);
}
