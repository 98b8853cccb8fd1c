/* Every fast kernel of every table that runs here, in every layout, against ref on random shapes.
 */
#include "tensor_help.h"

enum { TRIALS = 25 };

/* ---- Pooling ---- */

static int out_size(int in, int k, int s, int p, int d)
{
    int last = in + 2 * p - (k - 1) * d - 1;
    return last < 0 ? 0 : last / s + 1;
}

static tt_window random_window(void)
{
    tt_window w = {.h = help_int(1, 9),
                   .w = help_int(1, 20),
                   .kh = help_int(1, 3),
                   .kw = help_int(1, 4),
                   .sh = help_int(1, 3),
                   .sw = help_int(1, 3),
                   .dh = help_int(1, 2),
                   .dw = help_int(1, 2)};

    if (help_int(0, 3) == 0) w.kh = w.h, w.kw = w.w, w.dh = w.dw = 1; /* the whole image */
    if (help_int(0, 2) == 0) w.kh = w.kw = w.sh = w.sw = 2, w.dh = w.dw = 1, w.h = w.w = 6;
    w.ph = help_int(0, w.kh / 2);
    w.pw = help_int(0, w.kw / 2);
    w.oh = out_size(w.h, w.kh, w.sh, w.ph, w.dh) + help_int(0, 1); /* sometimes a row too many */
    w.ow = out_size(w.w, w.kw, w.sw, w.pw, w.dw);
    return w;
}

static void pool_layout(tt_pool_args *a, help_form f)
{
    a->outer = f.layout == TT_PLAIN ? f.n * f.c : f.layout == TT_NHWC ? f.n : help_slices(f) * f.c;
    a->inner = f.layout == TT_PLAIN ? 1 : f.layout == TT_NHWC ? f.c : f.lanes;
}

static void pool_trial(const tt_kernels *k, tt_layout layout, bool max)
{
    const tt_kernels *ref = help_ref();
    tt_window w = random_window();
    int n = help_int(1, 20), c = help_int(1, 20);
    help_form fx = {layout, k->lanes, n, c, (int64_t)w.h * w.w};
    help_form fy = {layout, k->lanes, n, c, (int64_t)w.oh * w.ow};
    int64_t nx = n * c * fx.hw, ny = n * c * fy.hw;
    float *x = help_random(nx), *dy = help_random(ny), *dx0 = help_random(nx);
    tt_pool_args r = {.win = w,
                      .outer = n * c,
                      .inner = 1,
                      .count_pad = help_coin(),
                      .x = x,
                      .y = help_floats(ny),
                      .pick = help_bytes((size_t)ny),
                      .dy = dy,
                      .dx = help_copy(dx0, nx),
                      .dx_add = help_coin()};
    tt_pool_args a = r;

    for (int64_t i = 0; i < nx; i++) x[i] = rintf(8 * x[i]) / 8; /* equal ones, often */
    if (max && help_coin()) x[nx / 2] = NAN, x[nx / 3] = -INFINITY;
    pool_layout(&a, fx);
    a.x = help_into(fx, x, 7);
    a.dy = help_into(fy, dy, 0);
    a.y = help_floats(help_size(fy));
    a.pick = help_bytes((size_t)help_size(fy));
    a.dx = help_into(fx, dx0, 0);
    (max ? ref->maxpool_forward : ref->avgpool_forward)(&r);
    (max ? ref->maxpool_backward : ref->avgpool_backward)(&r);
    (max ? k->maxpool_forward : k->avgpool_forward)(&a);
    (max ? k->maxpool_backward : k->avgpool_backward)(&a);
    EXPECT_ALL_NEAR(r.y, help_plain(fy, a.y), ny, 2e-6);
    EXPECT_ALL_NEAR(r.dx, help_plain(fx, a.dx), nx, 4e-6);
    EXPECT(help_padded(fx, a.dx, 0));
    for (int64_t i = 0; max && i < ny; i++) {
        int64_t at = help_at(fy, (int)(i / fy.hw / c), i / fy.hw % c, i % fy.hw);
        EXPECT_INT(r.pick[i], a.pick[at]);
    }
    if (max) { /* without picks the values are the same */
        a.pick = NULL;
        memset(a.y, 0, (size_t)help_size(fy) * sizeof *a.y);
        k->maxpool_forward(&a);
        EXPECT_ALL_NEAR(r.y, help_plain(fy, a.y), ny, 0);
    }
    help_free();
}

TT_TEST(tensor_fast, maximum_pooling_is_refs)
{
    EACH_FAST(k) EACH_LAYOUT(l) for (int t = 0; t < TRIALS; t++) pool_trial(k, l, true);
}

TT_TEST(tensor_fast, average_pooling_is_refs)
{
    EACH_FAST(k) EACH_LAYOUT(l) for (int t = 0; t < TRIALS; t++) pool_trial(k, l, false);
}

/* ---- Batch norm ---- */

static void norm_layout(tt_norm_args *a, help_form f)
{
    a->a = f.layout == TT_PLAIN ? f.n : f.layout == TT_NHWC ? f.n * f.hw : help_slices(f);
    a->b = f.layout == TT_PLAIN ? f.hw : f.layout == TT_NHWC ? 1 : f.hw * f.lanes;
    if (f.layout == TT_LANES) {
        a->lanes = f.lanes;
        a->valid = f.n % f.lanes ? f.n % f.lanes : f.lanes;
    }
}

static void expect_sums_near(const double *want, const double *got, int64_t c, double tol)
{
    for (int64_t i = 0; i < 2 * c; i++) EXPECT_NEAR(want[i], got[i], tol);
    EXPECT(want[2 * c] == got[2 * c]);
}

static void norm_trial(const tt_kernels *k, tt_layout layout)
{
    const tt_kernels *ref = help_ref();
    int n = help_int(1, 40), c = help_int(1, 90), hw = help_coin() ? help_int(1, 30) : 1;
    help_form f = {layout, k->lanes, n, c, hw};
    int64_t all = (int64_t)n * c * hw;
    bool bare = help_int(0, 3) == 0;
    float *x = help_random(all), *add = help_random(all), *dy = help_random(all);
    float *dx0 = help_random(all);
    double *sums = help_bytes((size_t)(2 * c + 1) * sizeof *sums);
    tt_norm_args r = {.a = n,
                      .c = c,
                      .b = hw,
                      .eps = 1e-5f,
                      .relu = help_coin(),
                      .x = x,
                      .gamma = bare ? NULL : help_random(c),
                      .beta = bare ? NULL : help_random(c),
                      .shift = bare ? NULL : help_random(c),
                      .mean = help_random(c),
                      .rstd = help_random(c),
                      .add = help_coin() ? add : NULL,
                      .y = help_floats(all),
                      .dy = help_copy(dy, all),
                      .dx = help_copy(dx0, all),
                      .dx_add = help_coin(),
                      .sums = help_bytes((size_t)(2 * c + 1) * sizeof *sums)};
    tt_norm_args a = r;

    norm_layout(&a, f);
    a.x = help_into(f, x, 1000); /* padding that would be noticed in a sum */
    a.add = r.add ? help_into(f, add, 5) : NULL;
    a.y = help_floats(help_size(f));
    a.dy = help_into(f, dy, 0);
    a.dx = help_into(f, dx0, 0);
    a.sums = sums;

    ref->norm_sums(&r);
    k->norm_sums(&a);
    expect_sums_near(r.sums, a.sums, c, 1e-6 * n * hw);
    ref->norm_forward(&r);
    k->norm_forward(&a);
    EXPECT_ALL_NEAR(r.y, help_plain(f, a.y), all, 2e-6);
    for (int64_t i = 0; i < help_size(f); i++) EXPECT(isfinite(a.y[i]));
    memcpy(a.y, help_into(f, r.y, 1),
           (size_t)help_size(f) * sizeof *a.y); /* the same mask for both */
    ref->norm_backward_sums(&r);
    k->norm_backward_sums(&a);
    expect_sums_near(r.sums, a.sums, c, 1e-6 * n * hw);
    EXPECT_ALL_NEAR(r.dy, help_plain(f, a.dy), all, 0);
    EXPECT(help_padded(f, a.dy, 0));
    ref->norm_backward(&r);
    k->norm_backward(&a);
    EXPECT_ALL_NEAR(r.dx, help_plain(f, a.dx), all, 4e-6);
    EXPECT(help_padded(f, a.dx, 0));
    help_free();
}

TT_TEST(tensor_fast, batch_norm_is_refs)
{
    EACH_FAST(k) EACH_LAYOUT(l) for (int t = 0; t < TRIALS; t++) norm_trial(k, l);
}

/* Batch norm's sums by ref, and by k in the layout of `f`. */
static void both_sums(const tt_kernels *k, help_form f, const float *x, const float *shift,
                      double *want, double *got)
{
    tt_norm_args a = {.a = f.n, .c = f.c, .b = f.hw, .x = x, .shift = shift, .sums = want};

    help_ref()->norm_sums(&a);
    norm_layout(&a, f);
    a.x = help_into(f, x, 0);
    a.sums = got;
    k->norm_sums(&a);
}

TT_TEST(tensor_fast, long_sums_stay_exact_to_a_millionth)
{
    enum { N = 64, HW = 4096, C = 2 };
    EACH_FAST(k) EACH_LAYOUT(l)
    {
        help_form f = {l, k->lanes, N, C, HW};
        float *x = help_random((int64_t)N * HW * C), shift[C] = {0, 0.5f};
        double want[2 * C + 1], got[2 * C + 1];
        for (int64_t i = 0; i < (int64_t)N * HW * C; i++) x[i] += 3; /* far from the shift */
        both_sums(k, f, x, shift, want, got);
        for (int i = 0; i < 2 * C; i++) EXPECT_NEAR(1, got[i] / want[i], 1e-6);
        help_free();
    }
}

/* As on the first step, when the running mean is still 0 and the data has not been normalised. */
TT_TEST(tensor_fast, a_mean_far_from_the_shift_does_not_swallow_the_variance)
{
    enum { N = 33, HW = 9, C = 19 };
    EACH_FAST(k) EACH_LAYOUT(l)
    {
        help_form f = {l, k->lanes, N, C, HW};
        float *x = help_random((int64_t)N * HW * C), shift[C] = {0};
        double want[2 * C + 1], got[2 * C + 1];
        for (int64_t i = 0; i < (int64_t)N * HW * C; i++) x[i] += 10000;
        both_sums(k, f, x, shift, want, got);
        for (int c = 0; c < C; c++) {
            double n = N * HW, mean = want[c] / n, variance = want[C + c] / n - mean * mean;
            EXPECT_NEAR(mean, got[c] / n, 1e-5);
            EXPECT_NEAR(variance, got[C + c] / n - got[c] / n * (got[c] / n), 1e-5);
        }
        help_free();
    }
}

/* ---- Layer norm and softmax ---- */

static void rows_trial(const tt_kernels *k)
{
    const tt_kernels *ref = help_ref();
    int outer = help_int(1, 6), d = help_coin() ? help_int(1, 40) : help_int(1, 700);
    int inner = help_int(0, 2) ? help_int(0, 1) ? 1 : k->lanes : help_int(1, 40);
    int64_t n = (int64_t)outer * d * inner, rows = outer * inner;
    bool bare = help_int(0, 3) == 0, log = help_coin();
    float *dx0 = help_random(n), *dg = help_random(d), *db = help_random(d);
    tt_rows_args r = {.outer = outer,
                      .d = d,
                      .inner = inner,
                      .eps = 1e-3f,
                      .x = help_random(n),
                      .gamma = bare ? NULL : help_random(d),
                      .beta = bare ? NULL : help_random(d),
                      .y = help_floats(n),
                      .mean = help_floats(rows),
                      .rstd = help_floats(rows),
                      .dy = help_random(n),
                      .dx = help_copy(dx0, n),
                      .dx_add = help_coin(),
                      .dgamma = help_copy(dg, d),
                      .dbeta = help_copy(db, d),
                      .dw_add = help_coin()};
    tt_rows_args a = r;

    a.y = help_floats(n), a.mean = help_floats(rows), a.rstd = help_floats(rows);
    a.dx = help_copy(dx0, n), a.dgamma = dg, a.dbeta = db;
    ref->layernorm_forward(&r);
    k->layernorm_forward(&a);
    EXPECT_ALL_NEAR(r.y, a.y, n, 1e-5);
    EXPECT_ALL_NEAR(r.mean, a.mean, rows, 1e-6);
    EXPECT_ALL_NEAR(r.rstd, a.rstd, rows, 1e-5);
    ref->layernorm_backward(&r);
    k->layernorm_backward(&a);
    EXPECT_ALL_NEAR(r.dx, a.dx, n, 3e-5);
    EXPECT_ALL_NEAR(r.dgamma, a.dgamma, d, 3e-5);
    EXPECT_ALL_NEAR(r.dbeta, a.dbeta, d, 1e-5);

    float *x = help_copy(r.x, n);
    if (d > 1 && help_coin()) x[0] = -INFINITY; /* a probability of 0 */
    a.x = r.x = x;
    ref->scale(n, 20, x);
    ref->softmax_forward(&r, log);
    k->softmax_forward(&a, log);
    EXPECT_ALL_NEAR(r.y, a.y, n, 3e-6);
    r.x = a.x = r.y;
    ref->softmax_backward(&r, log);
    k->softmax_backward(&a, log);
    EXPECT_ALL_NEAR(r.dx, a.dx, n, 3e-5);
    help_free();
}

TT_TEST(tensor_fast, layer_norm_and_softmax_are_refs)
{
    EACH_FAST(k) for (int t = 0; t < 3 * TRIALS; t++) rows_trial(k);
}

TT_TEST(tensor_fast, layer_norm_survives_a_large_mean)
{
    EACH_FAST(k)
    {
        float *x = help_random(1000), *want = help_floats(1000), *got = help_floats(1000);
        for (int i = 0; i < 1000; i++) x[i] += 1000;
        tt_rows_args a = {.outer = 1, .d = 1000, .inner = 1, .eps = 1e-5f, .x = x, .y = want};
        help_ref()->layernorm_forward(&a);
        a.y = got;
        k->layernorm_forward(&a);
        EXPECT_ALL_NEAR(want, got, 1000, 3e-4); /* the mean itself is known to 6e-5 */
        help_free();
    }
}

/* ---- Elements ---- */

TT_TEST(tensor_fast, activations_are_refs_over_the_whole_range)
{
    enum { N = 4001 };
    EACH_FAST(k)
    {
        float *x = help_floats(N), *want = help_floats(N), *got = help_floats(N);
        float *dy = help_random(N), *want_dx = help_floats(N), *got_dx = help_floats(N);
        for (int i = 0; i < N; i++) x[i] = (float)(i - N / 2) / 100; /* -20 .. 20 */
        x[1] = -200, x[2] = 200, x[3] = -1e30f, x[4] = 1e30f, x[5] = NAN, x[6] = 1e-30f;
        x[7] = -1e-30f, x[8] = INFINITY, x[9] = 5e-4f;
        for (tt_unary f = TT_RELU; f <= TT_SIGMOID; f++) {
            help_ref()->unary_forward(f, N, x, want);
            k->unary_forward(f, N, x, got);
            bool gelu = f == TT_GELU || f == TT_GELU_TANH;
            EXPECT_ALL_NEAR(want, got, N, gelu ? 1e-6 : 3e-7);
            for (int add = 0; add < 2; add++) {
                help_ref()->unary_backward(f, N, x, want, dy, want_dx, add);
                k->unary_backward(f, N, x, want, dy, got_dx, add);
                if (gelu) want_dx[8] = got_dx[8]; /* infinity times 0: no matter */
                EXPECT_ALL_NEAR(want_dx, got_dx, N, 2e-6);
            }
        }
        EXPECT_NEAR(5e-4, got[9] * 4 - 2, 1e-6);
        help_free();
    }
}

TT_TEST(tensor_fast, sums_and_products_are_refs_at_every_length)
{
    EACH_FAST(k) for (int n = 0; n < 70; n++)
    {
        float *a = help_random(n), *b = help_random(n), *y = help_random(n), *z = help_copy(y, n);
        const tt_kernels *ref = help_ref();
        ref->mul(n, a, b, y, false), k->mul(n, a, b, z, false);
        EXPECT_ALL_NEAR(y, z, n, 0);
        ref->mul(n, a, b, y, true), k->mul(n, a, b, z, true);
        EXPECT_ALL_NEAR(y, z, n, 1e-7);
        ref->add(n, a, b, y), k->add(n, a, b, z);
        EXPECT_ALL_NEAR(y, z, n, 0);
        ref->add(n, y, b, y), k->add(n, z, b, z); /* in place */
        EXPECT_ALL_NEAR(y, z, n, 0);
        ref->scale(n, 0.3f, y), k->scale(n, 0.3f, z);
        EXPECT_ALL_NEAR(y, z, n, 0);
        help_free();
    }
}
