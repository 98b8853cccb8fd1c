/* Rows outside of the flat array: a model with tables gives what the same one gives whose rows are
 * parameters, bit for bit and in both precisions, whether a row is there or made up. */
#include "model/model.h"
#include "test.h"

enum { N = 7, IDS = 6, DIM = 300, E_ROWS = 15, BAG_ROWS = 9, STRIDE = DIM + 3 };

static const char text[] =
    "input: {ids: 6}\n"
    "layers:\n"
    "- embeddings: {name: e, rows: [5, 7, 3], dim: 300, std: 0.5}\n"
    "- flatten: {name: flat}\n"
    "- embedding_bag: {name: bag, first: 3, rows: 9, dim: 300, mode: MODE, std: 0.5}\n"
    "- concat: {from: [flat, bag]}\n"
    "- dense: {name: d, out: 1}\n"
    "loss: bce\n";

static const int64_t rows_of[2] = {E_ROWS, BAG_ROWS};

typedef struct net {
    tt_tree *tree;
    tt_model *m;
    tt_run *r;
    float *w, *grad;
    int32_t ids[N * IDS], label[N];
    uint64_t place[2 * N];
    tt_batch b;
} net;

static void open_net(net *n, const tt_kernels *k, bool mean, bool tables)
{
    tt_model_opts o = {.kernels = k, .keep = "bag", .tables = tables};
    tt_str job = {0};

    memset(n, 0, sizeof *n);
    tt_str_add(&job, "%.*s%s%s", (int)(strstr(text, "MODE") - text), text, mean ? "mean" : "sum",
               strstr(text, "MODE") + 4);
    EXPECT_OK(tt_tree_parse("net", job.data, job.size, &n->tree));
    EXPECT_OK(tt_model_open(tt_tree_root(n->tree), &o, &n->m));
    tt_str_free(&job);
    n->w = calloc((size_t)tt_model_size(n->m) + 16, sizeof *n->w);
    n->grad = calloc((size_t)tt_model_size(n->m) + 16, sizeof *n->grad);
    for (int i = 0; i < N * IDS; i++) {
        static const int below[IDS] = {5, 7, 3, 9, 9, 9};
        n->ids[i] = i % 5 == 4
                        ? -1
                        : (int32_t)(tt_philox(3, 1, (uint64_t)i).v[0] % (uint32_t)below[i % IDS]);
    }
    for (int i = 3; i < IDS; i++) n->ids[2 * IDS + i] = -1; /* a bag without any */
    for (int i = 0; i < N; i++) n->label[i] = i % 2;
    tt_model_init(n->m, 7, n->w);
    tt_model_bind(n->m, n->w);
    EXPECT_OK(tt_run_open(n->m, N, true, &n->r));
    n->b = (tt_batch){.n = N, .ids = n->ids, .label = n->label, .place = n->place};
}

static void close_net(net *n)
{
    tt_run_close(n->r);
    tt_model_close(n->m);
    tt_tree_close(n->tree);
    free(n->w);
    free(n->grad);
}

/* Adds up what is yielded as whoever drives a run would, in the order of the samples. */
static void add_rows(const tt_rows *y, float *to)
{
    for (int i = 0; i < y->n; i++) {
        const int32_t *id = y->id + i * y->stride;
        int there = 0;
        for (int64_t k = 0; k < y->k; k++) there += id[k] >= 0;
        for (int64_t k = 0; k < y->k; k++)
            for (int64_t d = 0; d < y->dim && id[k] >= 0; d++) {
                int64_t at = (y->bag ? i : i * y->k + k) * y->dim + d;
                float dy = y->precision == TT_IN_BF16 ? tt_bf16_get(((const tt_bf16 *)y->dy)[at])
                                                      : ((const float *)y->dy)[at];
                float by = y->mean ? 1 / (float)there : 1;
                to[((y->base ? y->base[k] : 0) + id[k]) * y->dim + d] += dy * by;
            }
    }
}

static void run_net(net *n, float *const to[2])
{
    tt_yield y;

    tt_model_refresh(n->m, 0, 1);
    tt_run_begin(n->r, TT_PASS_TRAIN, &n->b, n->grad, false, 1);
    do {
        tt_run_advance(n->r, &y);
        if (y.kind == TT_ROWS) add_rows(&y.rows, to[y.rows.table]);
    } while (y.kind != TT_PASS_DONE);
}

static const tt_param *param_of(const net *n, const char *name)
{
    int count;
    const tt_param *p = tt_model_params(n->m, &count);

    while (count-- && strcmp(p->name, name)) p++;
    return p;
}

static void expect_same(const tt_kernels *k, bool mean)
{
    static const char *const names[2] = {"e.weight", "bag.weight"};
    static float records[2][E_ROWS * STRIDE], out[2][N * DIM], sum[2][E_ROWS * DIM];
    static _Atomic uint64_t bits[2];
    /* The reference adds in double. */
    double rough = !k->plain ? 0 : k->precision == TT_IN_BF16 ? 0x1p-7 : 1e-5;
    net dense, sparse;
    int64_t n;

    open_net(&dense, k, mean, false);
    open_net(&sparse, k, mean, true);
    memset(sum, 0, sizeof sum);
    for (int t = 0; t < 2; t++) {
        float *w = dense.w + param_of(&dense, names[t])->at;
        bits[t] = 0;
        for (int64_t row = 0; row < rows_of[t]; row += 2) { /* every other one is there */
            for (int64_t d = 0; d < DIM; d++)
                records[t][row * STRIDE + d] = w[row * DIM + d] = w[row * DIM + d] * 3 + 0.1f;
            bits[t] |= 1ull << row;
        }
        tt_rows_view v = {.records = records[t], .stride = STRIDE, .bits = &bits[t]};
        tt_model_bind_table(sparse.m, t, &v, 7);
    }
    run_net(&dense, NULL);
    run_net(&sparse, (float *[]){sum[0], sum[1]});
    EXPECT_OK(tt_run_output(dense.r, "bag", out[0], &n));
    EXPECT_INT(DIM, n);
    EXPECT_OK(tt_run_output(sparse.r, "bag", out[1], &n));
    for (int i = 0; i < N * DIM; i++)
        if (!(fabs(out[0][i] - out[1][i]) <= rough * (1 + fabs(out[0][i]))))
            FAIL("%s: number %d of a bag is %.9g, dense %.9g", k->name, i, out[1][i], out[0][i]);
    if (!(fabs(tt_run_result(dense.r)->loss - tt_run_result(sparse.r)->loss) <= rough))
        FAIL("%s: loss %.9g, dense %.9g", k->name, tt_run_result(sparse.r)->loss,
             tt_run_result(dense.r)->loss);
    for (int t = 0; t < 2; t++) {
        const float *g = dense.grad + param_of(&dense, names[t])->at;
        /* A kernel may divide by how many there are in other steps than we do. */
        double slack = rough + (mean && t ? 1e-6 : 0);
        for (int64_t i = 0; i < rows_of[t] * DIM; i++)
            if (!(fabs(g[i] - sum[t][i]) <= slack * (1 + fabs(g[i]))))
                FAIL("%s, %s: number %lld is %.9g, dense %.9g", k->name, names[t], (long long)i,
                     sum[t][i], g[i]);
    }
    close_net(&dense);
    close_net(&sparse);
}

TT_TEST(table, gives_what_parameters_give_in_both_precisions)
{
    for (int p = 0; p < 2; p++) {
        const tt_kernels *const *all;
        int count = tt_kernels_with(p ? TT_IN_BF16 : TT_IN_FLOAT32, &all);
        EXPECT(count > 1);
        for (int i = 0; i < count; i++) {
            expect_same(all[i], false);
            expect_same(all[i], true);
        }
    }
}
