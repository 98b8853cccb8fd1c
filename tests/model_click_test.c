/* Layers of models that predict clicks: the order of what they give, presets, and what is refused.
 */
#include "model/model.h"
#include "test.h"

typedef struct opened {
    tt_tree *tree;
    tt_model *m;
} opened;

static tt_err open_model(const char *text, const tt_kernels *k, opened *o)
{
    tt_model_opts opts = {.kernels = k};

    *o = (opened){0};
    EXPECT_OK(tt_tree_parse("job", text, strlen(text), &o->tree));
    return tt_model_open(tt_tree_root(o->tree), &opts, &o->m);
}

static void close_model(opened *o)
{
    tt_model_close(o->m);
    tt_tree_close(o->tree);
}

/* What the model's last layer makes of two samples of two numbers and three ids. Row r of its one
 * table, or table t's, is (r + t, 10 (r + t)) ... */
static void output(const char *layers, const tt_kernels *k, float *out, int64_t *features)
{
    static const float x[] = {1, 2, -1, 0.5f};
    static const int32_t ids[] = {0, 1, 2, 3, -1, 0};
    static const uint64_t place[4];
    const tt_batch b = {.n = 2, .x = x, .ids = ids, .place = place};
    tt_str text = {0};
    const tt_param *p;
    opened o;
    tt_run *r;
    tt_yield y;
    int count;

    tt_str_add(&text, "input: {features: [2], ids: 3}\nlayers: %s\nloss: mse\n", layers);
    EXPECT_OK(open_model(text.data, k, &o));
    p = tt_model_params(o.m, &count);
    float *w = tt_block_alloc((size_t)tt_model_size(o.m) * sizeof *w);
    EXPECT_INT(1, count);
    for (int64_t i = 0; i < p->n; i++)
        w[p->at + i] = (float)(i / p->shape[1] + 1) * (i % p->shape[1] ? 10 : 1);
    tt_model_bind(o.m, w);
    tt_model_refresh(o.m, 0, 1);
    EXPECT_OK(tt_run_open(o.m, 2, false, &r));
    tt_run_begin(r, TT_PASS_PREDICT, &b, NULL, false, 1);
    do tt_run_advance(r, &y);
    while (y.kind != TT_PASS_DONE);
    EXPECT_OK(tt_run_output(r, NULL, out, features));
    tt_block_free(w, (size_t)tt_model_size(o.m) * sizeof *w);
    tt_run_close(r);
    close_model(&o);
    tt_str_free(&text);
}

static void expect_output(const char *layers, int64_t features, const float *want)
{
    const tt_kernels *const *all;
    int tables = tt_kernels_all(&all);
    int64_t have;
    float out[64];

    for (int t = 0; t < tables; t++) {
        output(layers, all[t], out, &have);
        EXPECT_INT(features, have);
        for (int64_t i = 0; i < 2 * features; i++)
            if (!(fabs(out[i] - want[i]) <= 1e-4))
                FAIL("%s, %s: number %lld is %g, not %g", layers, all[t]->name, (long long)i,
                     out[i], want[i]);
    }
}

/* Tables of 4, 3 and 5 rows: theirs begin at rows 0, 4 and 7 of all, which count from 1. */
TT_TEST(click, each_id_has_a_table_of_its_own)
{
    static const float want[] = {1, 10, 6, 60, 10, 100, 4, 40, 0, 0, 8, 80};

    expect_output("[embeddings: {rows: [4, 3, 5], dim: 2}]", 6, want);
}

TT_TEST(click, a_bag_leaves_out_what_is_not_there)
{
    static const float sum[] = {6, 60, 5, 50}, mean[] = {2, 20, 2.5f, 25};

    expect_output("[embedding_bag: {rows: 4, dim: 2}]", 2, sum);
    expect_output("[embedding_bag: {rows: 4, dim: 2, mode: mean}]", 2, mean);
}

/* (1, 2) with rows (1, 10), (6, 60): the vector itself, then (1, 0), (2, 0), (2, 1). */
TT_TEST(click, dots_are_in_the_order_of_a_lower_triangle)
{
    static const float want[] = {1, 2, 21, 126, 606, -1, 0.5f, 16, 0, 0};

    expect_output("[embeddings: {name: e, rows: [4, 3], dim: 2}, interaction: {from: [input, e]}]",
                  5, want);
}

TT_TEST(click, a_factorisation_machine_adds_the_dots_of_all_pairs)
{
    /* (1, 10) (6, 60) (10, 100): 606 + 1010 + 6060 */
    static const float want[] = {7676, 3232}, sum[] = {17, 170, 12, 120};

    expect_output("[embeddings: {rows: [4, 3, 5], dim: 2}, fm]", 1, want);
    expect_output("[embeddings: {rows: [4, 3, 5], dim: 2}, sum]", 2, sum);
}

TT_TEST(click, presets_are_the_models_of_the_papers)
{
    static const struct {
        const char *layers;
        int64_t parameters; /* without padding */
    } cases[] = {
        /* 13-64-16, 26 tables of 1000 x 16, 367-64-1 */
        {"dlrm: {rows: 1000}", 13 * 64 + 64 + 64 * 16 + 16 + 26000 * 16 + 367 * 64 + 64 + 64 + 1},
        /* tables of 1 and of 4, numbers to 1, 26 * 4 + 13 to 8 to 1 */
        {"wide_deep: {rows: 1000, dim: 4, hidden: [8]}",
         26000 + 13 + 26000 * 4 + 117 * 8 + 8 + 8 + 1},
        {"deepfm: {rows: 1000, dim: 4, hidden: [8]}", 26000 + 13 + 26000 * 4 + 117 * 8 + 8 + 8 + 1},
    };

    for (int i = 0; i < TT_COUNT(cases); i++) {
        tt_str text = {0};
        const tt_param *p;
        int64_t n = 0;
        opened o;
        int count;
        tt_str_add(&text, "input: {features: [13], ids: 26}\nlayers: [%s]\nloss: bce\n",
                   cases[i].layers);
        EXPECT_OK(open_model(text.data, NULL, &o));
        p = tt_model_params(o.m, &count);
        for (int k = 0; k < count; k++) n += p[k].n;
        EXPECT_INT(cases[i].parameters, n);
        EXPECT_INT(1, tt_model_scores(o.m)); /* so it has an AUC */
        tt_str_free(&text);
        close_model(&o);
    }
}

TT_TEST(click, what_does_not_fit_is_refused_where_it_stands)
{
    static const struct {
        const char *input, *layers, *says;
    } cases[] = {
        {"[4]", "[embeddings: {rows: 4, dim: 2}]", "takes ids, and the model's input has none"},
        {"{ids: 3}", "[embeddings: {rows: [4, 5], dim: 2, tables: 3}]",
         "rows has 2 numbers, but 'embeddings1' has 3 tables"},
        {"{ids: 3}", "[embeddings: {rows: 4, dim: 2, first: 2, tables: 2}]",
         "takes ids 2 to 3, counted from 0, but a sample has 3"},
        {"{ids: 3}", "[embeddings: {rows: [1, 2, 3, 4], dim: 2}]", "takes ids 0 to 3"},
        {"{ids: 3}", "[embedding_bag: {rows: 3, dim: 2, first: 3}]", "takes ids 3 to 3"},
        {"{ids: 3}", "[embeddings: {rows: 0, dim: 2}]", "rows"},
        {"{ids: 3}", "[embedding_bag: {rows: 3, dim: 2, mode: max}]", "mode"},
        {"{features: [3], ids: 3}",
         "[embeddings: {rows: 3, dim: 2}, interaction: {from: [input, prev]}]",
         "vectors of one length, or several of it (how many, length), but its inputs are 3 and "
         "3x2"},
        {"[7]", "[interaction]", "takes 2 to 4096 vectors, not 1"},
        {"[5000, 1]", "[interaction]", "takes 2 to 4096 vectors, not 5000"},
        {"[7]", "[fm]", "takes vectors (how many, length), but its input is 7"},
        {"[7]", "[sum]", "takes vectors (how many, length), but its input is 7"},
        {"{ids: 3}", "[dlrm: {rows: 3}]", "dlrm takes numbers beside the ids"},
        {"{features: [3], ids: 3}", "[dlrm: {rows: [3, 3]}]",
         "rows has 2 numbers, and a sample has 3 ids"},
        {"{ids: 3}", "[deepfm: {rows: [3, 3]}]", "rows has 2 numbers, and a sample has 3 ids"},
        {"{ids: 3}", "[embedings: {rows: 3, dim: 3}]", "did you mean 'embeddings'?"},
        {"{ids: 3}", "[wide_dep: {rows: 3}]", "did you mean 'wide_deep'?"},
        {"{ids: 26}", "[embeddings: {rows: 2000000000, dim: 16777216}]", "is too large"},
    };

    for (int i = 0; i < TT_COUNT(cases); i++) {
        tt_str text = {0};
        opened o;
        tt_str_add(&text, "input: %s\nlayers: %s\nloss: mse\n", cases[i].input, cases[i].layers);
        EXPECT_INT(TT_EINVAL, open_model(text.data, NULL, &o));
        if (!strstr(tt_message(), cases[i].says))
            FAIL("'%s' is not in: %s", cases[i].says, tt_message());
        tt_str_free(&text);
        close_model(&o);
    }
}

/* What the data is checked against: of each id, the smallest table it is for. */
TT_TEST(click, each_id_is_below_the_rows_of_its_smallest_table)
{
    opened o;

    EXPECT_OK(open_model("input: {ids: 4}\n"
                         "layers: [embeddings: {name: a, rows: [4, 9], dim: 2, first: 1},\n"
                         "         embedding_bag: {name: b, rows: 6, dim: 2, first: 2},\n"
                         "         sum: {from: a}, add: {from: [prev, b]}]\nloss: mse\n",
                         NULL, &o));
    const int64_t *rows = tt_model_wants(o.m).id_rows;
    EXPECT_INT(0, rows[0]);
    EXPECT_INT(4, rows[1]);
    EXPECT_INT(6, rows[2]);
    EXPECT_INT(6, rows[3]);
    close_model(&o);
}
