/* ref defines what is right, so it is held against numbers that PyTorch computed in double
 * precision, and its gradients against finite differences. */
#include "tensor_help.h"

/* The inputs of those numbers: the same formula made them. */
static float *fill(int n, int a, int m)
{
    float *x = help_floats(n);
    for (int i = 0; i < n; i++) x[i] = (float)(i * a % m / (m / 2.0) - 1);
    return x;
}

/* An array is told by its sum and a sum with changing weights. */
static void expect_sums(const float *x, int n, double sum, double weighted)
{
    double s = 0, w = 0;

    for (int i = 0; i < n; i++) s += x[i], w += x[i] * (double)(i % 7 - 3);
    EXPECT_NEAR(sum, s, 1e-4);
    EXPECT_NEAR(weighted, w, 1e-4);
}

TT_TEST(tensor_ref, convolution_is_torchs)
{
    const tt_kernels *k = help_ref();
    tt_conv c = {.win = {.c = 4,
                         .h = 7,
                         .w = 6,
                         .o = 6,
                         .oh = 4,
                         .ow = 8,
                         .kh = 3,
                         .kw = 2,
                         .sh = 2,
                         .sw = 1,
                         .ph = 1,
                         .pw = 2,
                         .dh = 1,
                         .dw = 2,
                         .groups = 2},
                 .bias = true};
    tt_conv_args a = {.n = 2,
                      .x = fill(336, 37, 101),
                      .w = fill(72, 23, 67),
                      .b = fill(6, 5, 11),
                      .y = help_floats(384),
                      .dy = fill(384, 41, 103),
                      .dx = help_floats(336),
                      .dw = help_floats(72),
                      .db = help_floats(6)};

    EXPECT(k->conv_layout(&c.win, 64) == TT_PLAIN);
    EXPECT(k->conv_packed(&c) == 0 && k->conv_scratch(&c, 2) == 0);
    k->conv_forward(&c, &a);
    EXPECT_NEAR(-0.0412294961, a.y[0], 1e-6);
    EXPECT_NEAR(-2.2392493, a.y[4], 1e-6);
    expect_sums(a.y, 384, -26.1915983, -66.396671);
    k->conv_backward(&c, &a);
    expect_sums(a.dx, 336, -7.77336618, -5.32270685);
    expect_sums(a.dw, 72, -5.47226762, -57.0277804);
    expect_sums(a.db, 6, -0.776699029, -12.7961165);
    a.dx_add = a.dw_add = true;
    k->conv_backward(&c, &a); /* on top of what is there */
    expect_sums(a.dx, 336, 2 * -7.77336618, 2 * -5.32270685);
    expect_sums(a.dw, 72, 2 * -5.47226762, 2 * -57.0277804);
    help_free();
}

TT_TEST(tensor_ref, relu_behind_a_convolution_masks_its_gradient)
{
    const tt_kernels *k = help_ref();
    tt_conv c = {.win = tt_window_dense(1, 3), .relu = true};
    float x[] = {2}, w[] = {1, -1, NAN}, y[3], dy[] = {10, 20, 30}, dw[3], dx[1];
    tt_conv_args a = {.n = 1, .x = x, .w = w, .y = y, .dy = dy, .dw = dw, .dx = dx};

    k->conv_forward(&c, &a);
    EXPECT(y[0] == 2 && y[1] == 0 && isnan(y[2])); /* a broken number is not hidden */
    k->conv_backward(&c, &a);
    EXPECT(dw[0] == 20 && dw[1] == 0 && dw[2] == 60);
    EXPECT(dy[1] == 0 && isnan(dx[0]));
}

TT_TEST(tensor_ref, pooling_is_torchs)
{
    const tt_kernels *k = help_ref();
    uint8_t pick[144];
    tt_pool_args a = {.win = {.h = 7,
                              .w = 6,
                              .oh = 4,
                              .ow = 6,
                              .kh = 3,
                              .kw = 2,
                              .sh = 2,
                              .sw = 1,
                              .ph = 1,
                              .pw = 1,
                              .dh = 1,
                              .dw = 2},
                      .outer = 6,
                      .inner = 1,
                      .x = fill(252, 37, 101),
                      .y = help_floats(144),
                      .pick = pick,
                      .dy = fill(144, 41, 103),
                      .dx = help_floats(252)};

    k->maxpool_forward(&a);
    expect_sums(a.y, 144, 86.2772277, 1.44554455);
    k->maxpool_backward(&a);
    expect_sums(a.dx, 252, 2.81553398, -4.68932039);

    a.win = (tt_window){.h = 7,
                        .w = 6,
                        .oh = 4,
                        .ow = 4,
                        .kh = 3,
                        .kw = 2,
                        .sh = 2,
                        .sw = 2,
                        .ph = 1,
                        .pw = 1,
                        .dh = 1,
                        .dw = 1};
    a.dy = fill(96, 41, 103);
    k->avgpool_forward(&a);
    expect_sums(a.y, 96, 1.58085809, 3.75742574);
    k->avgpool_backward(&a);
    expect_sums(a.dx, 252, 0.291262136, 0.330097087);
    a.count_pad = true;
    k->avgpool_forward(&a);
    expect_sums(a.y, 96, 0.0297029703, 1.65511551);
    k->avgpool_backward(&a);
    expect_sums(a.dx, 252, 0.932038835, 0.692556634);
    help_free();
}

TT_TEST(tensor_ref, maximum_is_the_first_of_equals_and_nan_wins)
{
    const tt_kernels *k = help_ref();
    float x[] = {1, 3, 3, 2, /**/ 5, NAN, 7, 1, /**/ -INFINITY, -INFINITY, -INFINITY, -INFINITY},
          y[3];
    uint8_t pick[3];
    tt_pool_args a = {.win = {.h = 2,
                              .w = 2,
                              .oh = 1,
                              .ow = 1,
                              .kh = 2,
                              .kw = 2,
                              .sh = 2,
                              .sw = 2,
                              .dh = 1,
                              .dw = 1},
                      .outer = 3,
                      .inner = 1,
                      .x = x,
                      .y = y,
                      .pick = pick};

    k->maxpool_forward(&a);
    EXPECT(y[0] == 3 && pick[0] == 1);
    EXPECT(isnan(y[1]) && pick[1] == 1);
    EXPECT(y[2] == -INFINITY && pick[2] == 0);
    a.pick = NULL; /* nobody will go backward */
    k->maxpool_forward(&a);
    EXPECT(y[0] == 3);
}

TT_TEST(tensor_ref, activations_are_torchs)
{
    static const struct {
        tt_unary f;
        double sum, weighted, dx_sum, dx_weighted;
    } want[] = {
        {TT_GELU, 18.0848135, 7.84701572, 1.63874777, -0.0548252911},
        {TT_TANH, -1.29113299, 6.53573478, 1.37213345, -1.29999893},
        {TT_SIGMOID, 14.414321, 0.75627305, 0.542031993, 0.411266433},
        {TT_RELU, 20.5544554, 7.27722772, 1.12621359, 0.359223301},
    };
    const tt_kernels *k = help_ref();
    float *x = fill(30, 37, 101), *dy = fill(30, 41, 103), y[30], dx[30];

    k->scale(30, 3, x);
    for (int i = 0; i < TT_COUNT(want); i++) {
        k->unary_forward(want[i].f, 30, x, y);
        expect_sums(y, 30, want[i].sum, want[i].weighted);
        k->unary_backward(want[i].f, 30, x, y, dy, dx, false);
        expect_sums(dx, 30, want[i].dx_sum, want[i].dx_weighted);
        k->unary_backward(want[i].f, 30, x, y, dy, dx, true);
        expect_sums(dx, 30, 2 * want[i].dx_sum, 2 * want[i].dx_weighted);
    }
    help_free();
}

TT_TEST(tensor_ref, softmax_and_layer_norm_are_torchs)
{
    const tt_kernels *k = help_ref();
    float *x = fill(30, 37, 101), *gamma = fill(10, 3, 13), *beta = fill(10, 7, 17);
    float y[30], dx[30], mean[3], rstd[3];
    tt_rows_args a = {.outer = 3,
                      .d = 10,
                      .inner = 1,
                      .eps = 1e-3f,
                      .x = x,
                      .y = y,
                      .dx = dx,
                      .dy = fill(30, 41, 103),
                      .mean = mean,
                      .rstd = rstd};

    k->scale(30, 3, x);
    for (int i = 0; i < 10; i++) gamma[i] += 1;
    k->softmax_forward(&a, false);
    expect_sums(y, 30, 3, 1.15085594);
    a.x = y;
    k->softmax_backward(&a, false);
    expect_sums(dx, 30, 0, 1.50263392);
    a.x = x;
    k->softmax_forward(&a, true);
    expect_sums(y, 30, -104.731904, 36.6777323);
    a.x = y;
    k->softmax_backward(&a, true);
    expect_sums(dx, 30, 0, 4.60434454);
    a.x = x, a.gamma = gamma, a.beta = beta;
    k->layernorm_forward(&a);
    expect_sums(y, 30, -1.3166668, 11.0647219);
    k->layernorm_backward(&a);
    expect_sums(dx, 30, 0, 1.66835616);
    help_free();
}

/* ---- Losses ---- */

static void expect_loss(tt_loss_args a, double loss, double weight, double dx_weighted)
{
    float dx[30];

    a.n = 3, a.d = 10, a.dx = dx;
    help_ref()->loss(&a);
    EXPECT_NEAR(loss, a.loss / weight, 2e-6);
    EXPECT_NEAR(weight, a.weight, 1e-6);
    help_ref()->scale(30, (float)(1 / weight), dx);
    double w = 0;
    for (int i = 0; i < 30; i++) w += dx[i] * (double)(i % 7 - 3);
    EXPECT_NEAR(dx_weighted, w, 2e-5);
}

TT_TEST(tensor_ref, losses_are_torchs)
{
    const tt_kernels *k = help_ref();
    float *x = fill(30, 37, 101), *weight = fill(10, 3, 13), *target = fill(30, 29, 97), log_p[30];
    int32_t label[] = {7, -1, 2};
    tt_rows_args rows = {.outer = 3, .d = 10, .inner = 1, .x = target, .y = target};

    k->scale(30, 3, x);
    for (int i = 0; i < 10; i++) weight[i] += 1.5f;
    k->softmax_forward(&rows, false);
    rows.x = x, rows.y = log_p;
    k->softmax_forward(&rows, true);

    tt_loss_args ce = {.kind = TT_LOSS_SOFTMAX, .x = x, .label = label};
    expect_loss(ce, 4.384655215, 2, 2.5426965);
    ce.smoothing = 0.1f;
    expect_loss(ce, 4.294655215, 2, 2.3326965);
    ce.class_weight = weight;
    expect_loss(ce, 4.105466753, 3.153846154, 2.30879518);
    expect_loss((tt_loss_args){.kind = TT_LOSS_SOFTMAX,
                               .x = x,
                               .target = target,
                               .class_weight = weight,
                               .smoothing = 0.2f},
                4.513982235, 3, 0.374288824);
    expect_loss((tt_loss_args){.kind = TT_LOSS_MSE, .x = x, .target = target}, 3.036919569, 3,
                1.35230381);
    expect_loss((tt_loss_args){.kind = TT_LOSS_BCE, .x = x, .target = target}, 0.9534209196, 3,
                -0.000619189172);

    /* The gradient of the negative log likelihood stops at its input, the logarithms. */
    float dx[30];
    tt_loss_args nll = {.kind = TT_LOSS_NLL,
                        .n = 3,
                        .d = 10,
                        .x = log_p,
                        .label = label,
                        .class_weight = weight,
                        .dx = dx};
    k->loss(&nll);
    EXPECT_NEAR(4.244091388, nll.loss / nll.weight, 2e-6);
    EXPECT(dx[7] == -weight[7] && dx[22] == -weight[2] && dx[0] == 0);
    help_free();
}

TT_TEST(tensor_ref, right_answers_are_counted)
{
    float x[] = {
        /* largest */ 1,  5, 2, 0, 0, 0, /* tie, second */ 3,    3, 0, 0, 0, 0,
        /* sixth */ 9,    8, 7, 6, 5, 4, /* not a number */ NAN, 1, 1, 1, 1, 1,
        /* no label */ 1, 2, 3, 4, 5, 6};
    int32_t label[] = {1, 1, 5, 0, -1};
    tt_loss_args a = {.kind = TT_LOSS_SOFTMAX, .n = 5, .d = 6, .x = x, .label = label};

    help_ref()->loss(&a);
    EXPECT_INT(4, a.rows);
    EXPECT_INT(1, a.correct);
    EXPECT_INT(2, a.top5);
    EXPECT(isnan(a.loss)); /* and the loss tells */
}

TT_TEST(tensor_ref, binary_labels_are_judged_by_sign)
{
    float x[] = {2, -2, 2, -2, 1}, dx[5];
    int32_t label[] = {1, 0, 0, 1, -1};
    tt_loss_args a = {.kind = TT_LOSS_BCE, .n = 5, .d = 1, .x = x, .label = label, .dx = dx};

    help_ref()->loss(&a);
    EXPECT_INT(4, a.rows);
    EXPECT_INT(2, a.correct);
    EXPECT_NEAR(2 * log1p(exp(-2)) + 2 * (2 + log1p(exp(-2))), a.loss, 1e-6);
    EXPECT_NEAR(1 / (1 + exp(-2)), dx[2], 1e-6);
    EXPECT(dx[4] == 0);
}

TT_TEST(tensor_ref, rows_without_a_target_do_not_count)
{
    float x[] = {1, 2, 3, 4}, target[] = {0, 0, NAN, 0}, dx[] = {9, 9, 9, 9};
    tt_loss_args a = {.kind = TT_LOSS_MSE, .n = 2, .d = 2, .x = x, .target = target, .dx = dx};

    help_ref()->loss(&a);
    EXPECT(a.loss == 2.5 && a.weight == 1);
    EXPECT(dx[0] == 1 && dx[1] == 2 && dx[2] == 0 && dx[3] == 0);
}

/* ---- Gradients against finite differences ---- */

/* grad is the gradient by theta of `value(arg)`, which reads theta. */
static void expect_gradient(float *theta, int64_t n, const float *grad, double (*value)(void *),
                            void *arg)
{
    for (int64_t i = 0; i < n; i++) {
        float kept = theta[i], h = 1e-2f;
        theta[i] = kept + h;
        double up = value(arg), above = theta[i];
        theta[i] = kept - h;
        double slope = (up - value(arg)) / (above - theta[i]);
        theta[i] = kept;
        EXPECT_NEAR(slope, grad[i], 2e-3 * (1 + fabs(slope)));
    }
}

static double dot(const float *a, const float *b, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += (double)a[i] * b[i];
    return s;
}

enum { BN_A = 3, BN_C = 2, BN_B = 5, BN_N = BN_A * BN_C * BN_B };

/* Batch norm as its callers put it together, and the sum of its output times r. */
typedef struct bn {
    tt_norm_args a;
    const float *r;
} bn;

static void bn_forward(tt_norm_args *a)
{
    const tt_kernels *k = help_ref();

    k->norm_sums(a);
    for (int c = 0; c < a->c; c++) {
        double n = a->sums[2 * a->c], m = a->sums[c] / n, v = a->sums[a->c + c] / n - m * m;
        a->mean[c] = (float)(m + (a->shift ? a->shift[c] : 0));
        a->rstd[c] = (float)(1 / sqrt(v + a->eps));
    }
    k->norm_forward(a);
}

static double bn_value(void *arg)
{
    bn *b = arg;
    bn_forward(&b->a);
    return dot(b->a.y, b->r, BN_N);
}

static void batchnorm_gradients(bool relu, bool with_add)
{
    const tt_kernels *k = help_ref();
    float *x = help_random(BN_N), *gamma = help_random(BN_C), *beta = help_random(BN_C);
    float *add = help_random(BN_N), *r = help_random(BN_N), shift[BN_C] = {0.3f, -0.2f};
    float mean[BN_C], rstd[BN_C], *y = help_floats(BN_N), *dx = help_floats(BN_N);
    float dgamma[BN_C], dbeta[BN_C];
    double sums[2 * BN_C + 1];
    bn b = {{.a = BN_A,
             .c = BN_C,
             .b = BN_B,
             .eps = 1e-2f,
             .relu = relu,
             .x = x,
             .gamma = gamma,
             .beta = beta,
             .shift = shift,
             .sums = sums,
             .mean = mean,
             .rstd = rstd,
             .add = with_add ? add : NULL,
             .y = y,
             .dx = dx},
            r};

    bn_forward(&b.a);
    b.a.dy = help_copy(r, BN_N);
    k->norm_backward_sums(&b.a);
    for (int c = 0; c < BN_C; c++) dbeta[c] = (float)sums[c], dgamma[c] = (float)sums[BN_C + c];
    k->norm_backward(&b.a);
    expect_gradient(x, BN_N, dx, bn_value, &b);
    expect_gradient(gamma, BN_C, dgamma, bn_value, &b);
    expect_gradient(beta, BN_C, dbeta, bn_value, &b);
    if (with_add)
        expect_gradient(add, BN_N, b.a.dy, bn_value, &b); /* masked dy is add's gradient */
    help_free();
}

TT_TEST(tensor_ref, batchnorm_gradients_are_slopes)
{
    help_counter = 2000;
    batchnorm_gradients(false, false);
    batchnorm_gradients(false, true);
    batchnorm_gradients(true, true);
}

static double ln_value(void *arg)
{
    tt_rows_args *a = arg;
    help_ref()->layernorm_forward(a);
    return dot(a->y, a->dy, a->outer * a->d * a->inner);
}

TT_TEST(tensor_ref, layernorm_gradients_are_slopes)
{
    const tt_kernels *k = help_ref();
    float *x = help_random(36), *gamma = help_random(6), *beta = help_random(6), mean[6], rstd[6];
    float y[36], dx[36], dgamma[6], dbeta[6];
    tt_rows_args a = {.outer = 2,
                      .d = 6,
                      .inner = 3,
                      .eps = 1e-2f,
                      .x = x,
                      .gamma = gamma,
                      .beta = beta,
                      .y = y,
                      .mean = mean,
                      .rstd = rstd,
                      .dy = help_random(36),
                      .dx = dx,
                      .dgamma = dgamma,
                      .dbeta = dbeta};

    k->layernorm_forward(&a);
    k->layernorm_backward(&a);
    expect_gradient(x, 36, dx, ln_value, &a);
    expect_gradient(gamma, 6, dgamma, ln_value, &a);
    expect_gradient(beta, 6, dbeta, ln_value, &a);
    help_free();
}

typedef struct conv {
    tt_conv c;
    tt_conv_args a;
    const float *r;
    int64_t outputs;
} conv;

static double conv_value(void *arg)
{
    conv *v = arg;
    help_ref()->conv_forward(&v->c, &v->a);
    return dot(v->a.y, v->r, v->outputs);
}

TT_TEST(tensor_ref, convolution_gradients_are_slopes)
{
    const tt_kernels *k = help_ref();
    tt_window w = {.c = 6,
                   .h = 5,
                   .w = 4,
                   .o = 3,
                   .oh = 3,
                   .ow = 2,
                   .kh = 2,
                   .kw = 3,
                   .sh = 2,
                   .sw = 2,
                   .ph = 1,
                   .pw = 1,
                   .dh = 2,
                   .dw = 1,
                   .groups = 3};
    float *x = help_random(240), *weight = help_random(36), *b = help_random(3);
    float *r = help_random(36), *dx = help_floats(240), *dw = help_floats(36), db[3];
    conv v = {
        {.win = w, .bias = true},
        {.n = 2, .x = x, .w = weight, .b = b, .y = help_floats(36), .dx = dx, .dw = dw, .db = db},
        r,
        36};

    v.a.dy = help_copy(r, 36);
    k->conv_forward(&v.c, &v.a);
    k->conv_backward(&v.c, &v.a);
    expect_gradient(x, 240, dx, conv_value, &v);
    expect_gradient(weight, 36, dw, conv_value, &v);
    expect_gradient(b, 3, db, conv_value, &v);
    help_free();
}

static double loss_value(void *arg)
{
    tt_loss_args a = *(tt_loss_args *)arg;
    a.dx = NULL; /* forward only */
    help_ref()->loss(&a);
    return a.loss;
}

TT_TEST(tensor_ref, loss_gradients_are_slopes)
{
    float *x = help_random(20), *weight = help_random(5), *target = help_random(20), dx[20];
    int32_t label[] = {0, 4, -1, 2};

    for (int i = 0; i < 5; i++) weight[i] += 1.5f;
    for (tt_loss_kind kind = TT_LOSS_SOFTMAX; kind <= TT_LOSS_BCE; kind++) {
        bool labels = kind <= TT_LOSS_NLL;
        tt_loss_args a = {.kind = kind,
                          .n = 4,
                          .d = 5,
                          .x = x,
                          .label = labels ? label : NULL,
                          .target = target,
                          .class_weight = labels ? weight : NULL,
                          .smoothing = kind == TT_LOSS_SOFTMAX ? 0.2f : 0,
                          .dx = dx};
        help_ref()->loss(&a);
        expect_gradient(x, 20, dx, loss_value, &a);
    }
    help_free();
}
