/* A model in bf16 as others see it: outputs, losses and faults are float32. */
#include "model/model.h"
#include "test.h"

enum { N = 5 };

typedef struct net {
    tt_tree *tree;
    tt_model *m;
    tt_run *r;
    float *w, *grad, *x;
    int32_t label[N * 64];
    uint64_t place[2 * N];
    tt_batch b;
} net;

static void open_net(net *n, const char *text, tt_precision p, const char *keep)
{
    tt_model_opts o = {.keep = keep};
    int64_t features;

    memset(n, 0, sizeof *n);
    EXPECT_OK(tt_kernels_pick("auto", p, &o.kernels));
    EXPECT_OK(tt_tree_parse("net", text, strlen(text), &n->tree));
    EXPECT_OK(tt_model_open(tt_tree_root(n->tree), &o, &n->m));
    features = tt_shape_count(tt_model_input(n->m));
    n->w = calloc((size_t)tt_model_size(n->m) + 16, sizeof *n->w);
    n->grad = calloc((size_t)tt_model_size(n->m) + 16, sizeof *n->grad);
    n->x = calloc((size_t)(N * features), sizeof *n->x);
    for (int64_t i = 0; i < N * features; i++)
        n->x[i] = (float)tt_philox(3, 0, (uint64_t)i).v[0] * 0x1p-31f - 1;
    for (int i = 0; i < TT_COUNT(n->label); i++) n->label[i] = i % 3;
    tt_model_init(n->m, 7, n->w);
    tt_model_bind(n->m, n->w);
    tt_model_refresh(n->m, 0, 1);
    EXPECT_OK(tt_run_open(n->m, N, true, &n->r));
    n->b = (tt_batch){.n = N, .x = n->x, .label = n->label, .place = n->place};
}

static void close_net(net *n)
{
    tt_run_close(n->r);
    tt_model_close(n->m);
    tt_tree_close(n->tree);
    free(n->w);
    free(n->grad);
    free(n->x);
}

static double pass_of(net *n, tt_pass pass)
{
    tt_yield y;

    tt_run_begin(n->r, pass, &n->b, n->grad, false, 1);
    do tt_run_advance(n->r, &y);
    while (y.kind != TT_PASS_DONE);
    return tt_run_result(n->r)->loss;
}

/* An image, and behind it a vector. */
static const char image[] = "input: [3, 6, 5]\n"
                            "layers:\n"
                            "- conv: {name: a, out: 20, kernel: 3, padding: 1}\n"
                            "- tanh\n"
                            "- flatten\n"
                            "- dense: {name: d, out: 3}\n"
                            "loss: softmax_cross_entropy\n";

/* Every pixel is judged: the last layer's images lie with channels innermost. */
static const char pixels[] = "input: [3, 4, 4]\n"
                             "layers:\n"
                             "- conv: {name: a, out: 3, kernel: 3, padding: 1}\n"
                             "loss: softmax_cross_entropy\n";

static void expect_output(const char *text, const char *layer)
{
    net wide, half;
    static float a[4096], b[4096];
    int64_t na, nb;

    open_net(&wide, text, TT_IN_FLOAT32, layer);
    open_net(&half, text, TT_IN_BF16, layer);
    pass_of(&wide, TT_PASS_TRAIN);
    pass_of(&half, TT_PASS_TRAIN);
    EXPECT_OK(tt_run_output(wide.r, layer, a, &na));
    EXPECT_OK(tt_run_output(half.r, layer, b, &nb));
    EXPECT_INT(na, nb);
    EXPECT(N * na <= TT_COUNT(a));
    for (int64_t i = 0; i < N * na; i++) EXPECT_NEAR(a[i], b[i], 0.02);
    EXPECT(memcmp(a, b, (size_t)(N * na) * sizeof *a) != 0);
    close_net(&wide);
    close_net(&half);
}

TT_TEST(bf16, outputs_are_float32_in_every_layout)
{
    expect_output(image, NULL);
    expect_output(image, "a");
    expect_output(pixels, NULL);
}

static void expect_alike(const char *text)
{
    net wide, half;

    open_net(&wide, text, TT_IN_FLOAT32, NULL);
    open_net(&half, text, TT_IN_BF16, NULL);
    double a = pass_of(&wide, TT_PASS_TRAIN), b = pass_of(&half, TT_PASS_TRAIN);
    EXPECT_NEAR(a, b, 0.01 * a);
    for (int64_t i = 0; i < tt_model_size(wide.m); i++)
        EXPECT_NEAR(wide.grad[i], half.grad[i], 0.05);
    close_net(&wide);
    close_net(&half);
}

/* Two losses of one vector, and one of another. */
TT_TEST(bf16, several_losses_add_their_gradients)
{
    expect_alike("input: [12]\n"
                 "layers:\n"
                 "- dense: {name: e, out: 12}\n"
                 "- dense: {name: d, out: 3}\n"
                 "loss:\n"
                 "- softmax_cross_entropy: {from: d, weight: 0.5}\n"
                 "- softmax_cross_entropy: {from: d, smoothing: 0.2}\n"
                 "- mse: {from: e, target: input, weight: 2}\n");
}

/* One judges pixels, the other numbers, which lie in another order. */
TT_TEST(bf16, losses_of_several_layouts_read_the_same)
{
    expect_alike("input: [3, 5, 4]\n"
                 "layers: [conv: {out: 3, kernel: 3, padding: 1}]\n"
                 "loss: [softmax_cross_entropy, mse: {target: input}]\n");
}

TT_TEST(bf16, the_first_number_that_is_none_is_found)
{
    net n;
    tt_fault f;
    int count;

    open_net(&n, image, TT_IN_BF16, NULL);
    const tt_param *p = tt_model_params(n.m, &count);
    EXPECT(!tt_run_probe(n.r, &n.b, n.grad, 1, &f));
    for (int i = 0; i < count; i++)
        if (!strcmp(p[i].name, "d.bias")) n.w[p[i].at] = NAN;
    EXPECT(tt_run_probe(n.r, &n.b, n.grad, 1, &f));
    EXPECT_STR("d", f.layer);
    EXPECT_INT(N, f.samples);
    n.x[100] = INFINITY; /* of the second sample */
    EXPECT(tt_run_probe(n.r, &n.b, n.grad, 1, &f));
    EXPECT_STR("input", f.layer);
    EXPECT_INT(1, f.samples);
    EXPECT_INT(1, f.sample[0]);
    close_net(&n);
}
