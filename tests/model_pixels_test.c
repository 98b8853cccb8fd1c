/* Losses that judge each pixel of an image: ref against its definition and finite differences,
 * every kernel table against ref, and the counts of classes against the outputs. */
#include "model/model.h"
#include "test.h"

enum { N = 19, C = 2, H = 5, W = 4, CLASSES = 5, PIXELS = H * W };

typedef struct net {
    tt_tree *tree;
    tt_model *m;
    tt_run *r;
    float *w, *grad;
    float x[N * C * PIXELS], out[N * CLASSES * PIXELS];
    int32_t label[N * PIXELS];
    uint64_t place[2 * N];
    int64_t size;
    tt_batch b;
} net;

static float value(uint64_t key, int64_t i)
{
    float v[4];
    tt_uniform4(key, 0, (uint64_t)i, v);
    return 2 * v[0] - 1;
}

/* With one pixel in seven without a label. */
static void net_open(net *n, const char *text, const tt_kernels *k, int samples)
{
    tt_model_opts o = {.kernels = k, .samples = samples};

    memset(n, 0, sizeof *n);
    EXPECT_OK(tt_tree_parse("model", text, strlen(text), &n->tree));
    EXPECT_OK(tt_model_open(tt_tree_root(n->tree), &o, &n->m));
    n->size = tt_model_size(n->m);
    n->w = tt_block_alloc((size_t)n->size * 4 + 64);
    n->grad = tt_block_alloc((size_t)n->size * 4 + 64);
    tt_model_init(n->m, 7, n->w);
    tt_model_bind(n->m, n->w);
    EXPECT_OK(tt_run_open(n->m, N, true, &n->r));
    for (int i = 0; i < N * C * PIXELS; i++) n->x[i] = 1.5f * value(1, i);
    for (int i = 0; i < N * PIXELS; i++)
        n->label[i] = i % 7 == 3 ? -1 : (int32_t)((value(2, i) + 1) / 2 * CLASSES);
    n->b = (tt_batch){.n = N, .x = n->x, .label = n->label, .place = n->place};
}

static void net_close(net *n)
{
    tt_run_close(n->r);
    tt_model_close(n->m);
    tt_tree_close(n->tree);
    tt_block_free(n->w, (size_t)n->size * 4 + 64);
    tt_block_free(n->grad, (size_t)n->size * 4 + 64);
}

static double pass(net *n, tt_pass kind)
{
    tt_yield y;

    tt_model_refresh(n->m, 0, 1);
    tt_run_begin(n->r, kind, &n->b, n->grad, false, 3);
    do tt_run_advance(n->r, &y);
    while (y.kind != TT_PASS_DONE);
    return tt_run_result(n->r)->loss;
}

static const char *const models[] = {
    "input: [2, 5, 4]\nlayers:\n- conv: {out: 6, kernel: 3, padding: 1}\n- tanh\n"
    "- conv: {out: 5, kernel: 1}\nloss: softmax_cross_entropy\n",
    "input: [2, 5, 4]\nlayers:\n- conv: {out: 40, kernel: 3, padding: 1}\n- tanh\n"
    "- conv: {out: 5, kernel: 1}\n"
    "loss: {softmax_cross_entropy: {smoothing: 0.1, class_weights: [1, 2, 0.5, 1, 3]}}\n",
    "input: [2, 5, 4]\nlayers:\n- conv: {out: 5, kernel: 1}\n- log_softmax\nloss: nll\n",
    "input: [2, 5, 4]\nlayers:\n- conv: {name: a, out: 5, kernel: 1}\n- tanh\n"
    "loss:\n- softmax_cross_entropy\n- softmax_cross_entropy: {from: a, weight: 0.3}\n",
};

/* Of the first model, from its outputs: the loss, the pixels that are right, and the counts. */
typedef struct verdict {
    double loss;
    int64_t rows, correct, seen[3 * CLASSES];
} verdict;

static verdict judge(const float *out, const int32_t *label)
{
    verdict v = {0};

    for (int i = 0; i < N * PIXELS; i++) {
        const float *x = out + i / PIXELS * CLASSES * PIXELS + i % PIXELS;
        double sum = 0;
        int best = 0;
        if (label[i] < 0) continue;
        for (int c = 0; c < CLASSES; c++) {
            sum += exp((double)x[c * PIXELS]);
            if (x[c * PIXELS] > x[best * PIXELS]) best = c;
        }
        v.loss += log(sum) - (double)x[label[i] * PIXELS];
        v.rows++;
        v.correct += best == label[i];
        v.seen[label[i]]++;
        v.seen[CLASSES + best]++;
        v.seen[2 * CLASSES + best] += best == label[i];
    }
    return v;
}

TT_TEST(pixels, are_judged_one_by_one)
{
    const tt_kernels *const *all;
    int tables = tt_kernels_all(&all);

    for (int i = 0; i < 2 * tables; i++) {
        net n;
        int64_t features;
        net_open(&n, models[0], all[i / 2], i % 2 ? 64 : 1);
        EXPECT_INT(PIXELS, tt_model_row(n.m).labels);
        EXPECT_INT(CLASSES, tt_model_wants(n.m).classes);
        EXPECT_INT(CLASSES, tt_model_pixel_classes(n.m));
        double loss = pass(&n, TT_PASS_EVAL);
        EXPECT_OK(tt_run_output(n.r, NULL, n.out, &features));
        verdict v = judge(n.out, n.label);
        EXPECT_NEAR(v.loss, loss, 1e-4 * v.loss);
        EXPECT_INT(v.rows, tt_run_result(n.r)->rows);
        EXPECT_NEAR((double)v.rows, tt_run_result(n.r)->weight, 0);
        EXPECT_INT(v.correct, tt_run_result(n.r)->correct);
        for (int k = 0; k < 3 * CLASSES; k++) EXPECT_INT(v.seen[k], tt_run_seen(n.r)[k]);
        EXPECT(v.correct > 0 && v.correct < v.rows);
        n.b.n = 0; /* nothing of the pass before is left */
        pass(&n, TT_PASS_EVAL);
        for (int k = 0; k < 3 * CLASSES; k++) EXPECT_INT(0, tt_run_seen(n.r)[k]);
        net_close(&n);
    }
}

TT_TEST(pixels, ref_gradients_are_those_of_finite_differences)
{
    const tt_kernels *ref;

    EXPECT_OK(tt_kernels_find("ref", &ref));
    for (int m = 0; m < TT_COUNT(models); m++) {
        net n;
        net_open(&n, models[m], ref, 64);
        n.b.n = 3;
        pass(&n, TT_PASS_TRAIN);
        float *g = malloc((size_t)n.size * 4);
        memcpy(g, n.grad, (size_t)n.size * 4);
        for (int64_t i = 0; i < n.size; i += 3) {
            const float h = 4e-3f, was = n.w[i];
            n.w[i] = was + h;
            double up = pass(&n, TT_PASS_TRAIN);
            n.w[i] = was - h;
            double down = pass(&n, TT_PASS_TRAIN);
            n.w[i] = was;
            EXPECT_NEAR((up - down) / (2 * h), g[i], 0.005 + 0.01 * fabsf(g[i]));
        }
        free(g);
        net_close(&n);
    }
}

TT_TEST(pixels, every_kernel_table_agrees_with_ref)
{
    const tt_kernels *ref, *const *all;
    int tables = tt_kernels_all(&all);

    EXPECT_OK(tt_kernels_find("ref", &ref));
    for (int i = 0; i < 2 * tables * TT_COUNT(models); i++) {
        const char *model = models[i / 2 / tables];
        const tt_kernels *k = all[i / 2 % tables];
        net want, have;
        double norm = 0, diff = 0;
        net_open(&want, model, ref, 64);
        net_open(&have, model, k, i % 2 ? 64 : 1);
        double a = pass(&want, TT_PASS_TRAIN), b = pass(&have, TT_PASS_TRAIN);
        EXPECT_NEAR(a, b, 1e-4 * fabs(a));
        for (int64_t j = 0; j < want.size; j++) {
            norm += pow(want.grad[j], 2);
            diff += pow(want.grad[j] - have.grad[j], 2);
        }
        EXPECT(norm > 0);
        if (!(sqrt(diff) <= 2e-4 * sqrt(norm)))
            FAIL("model %d, %s: gradient off by %g of %g", i / 2 / tables, k->name, sqrt(diff),
                 sqrt(norm));
        net_close(&want);
        net_close(&have);
    }
}

/* Of equal numbers the first is the class; where one is not a number, there is none. */
TT_TEST(pixels, ties_and_broken_numbers_count_alike_everywhere)
{
    static const float x[] = {1, 1, 0, 0, 1, 1, NAN, 0, 1, 0, 1, NAN, 3, 3, 3};
    static const int32_t label[] = {0, 1, 1, 1, 2};
    static const int64_t want[] = {1, 3, 1, /* are */ 2, 1, 0, /* taken for */ 1, 1, 0 /* both */};
    const tt_kernels *const *all;
    int tables = tt_kernels_all(&all);

    for (int i = 0; i < tables; i++) {
        int64_t seen[9] = {0};
        tt_loss_args a = {.kind = TT_LOSS_SOFTMAX, .n = 5, .d = 3, .x = x, .label = label};
        a.seen = seen;
        all[i]->loss(&a);
        EXPECT_INT(5, a.rows);
        EXPECT_INT(2, a.correct);
        for (int k = 0; k < 9; k++) EXPECT_INT(want[k], seen[k]);
    }
}

/* One judges pixels, the other whole samples: which is told first does not matter, and each counts
 * as it does by itself. */
TT_TEST(pixels, losses_of_different_rows_add_up_in_any_order)
{
    static const char net_text[] =
        "input: [2, 5, 4]\nlayers:\n- conv: {name: a, out: 5, kernel: 1}\n"
        "- conv: {name: b, out: 2, kernel: 1}\nloss:\n";
    static const char *const losses[] = {
        "- softmax_cross_entropy: {from: a}\n- mse: {from: b, target: input}\n",
        "- mse: {from: b, target: input}\n- softmax_cross_entropy: {from: a}\n",
    };
    double mean[2], parts = 0;
    float *grad = NULL;

    for (int i = 0; i < 2; i++) {
        tt_str text = {0};
        net n;
        tt_str_add(&text, "%s%s", net_text, losses[i]);
        net_open(&n, text.data, NULL, 64);
        tt_str_free(&text);
        for (int k = 0; k < N * PIXELS; k++) n.label[k] = n.label[k] < 0 ? 0 : n.label[k];
        pass(&n, TT_PASS_TRAIN);
        const tt_result *r = tt_run_result(n.r);
        mean[i] = r->loss / r->weight;
        parts = r->part[0] / r->part_weight[0] + r->part[1] / r->part_weight[1];
        EXPECT_NEAR(N, r->weight, 0);
        EXPECT_NEAR(parts, mean[i], 1e-4 * parts);
        if (!grad) {
            grad = malloc((size_t)n.size * 4);
            memcpy(grad, n.grad, (size_t)n.size * 4);
        } else {
            for (int64_t k = 0; k < n.size; k++) EXPECT_NEAR(grad[k], n.grad[k], 1e-4);
        }
        net_close(&n);
    }
    free(grad);
}

static void expect_bad(const char *text, const char *part)
{
    tt_tree *tree;
    tt_model *m;

    EXPECT_OK(tt_tree_parse("model", text, strlen(text), &tree));
    EXPECT_ERR(TT_EINVAL, tt_model_open(tt_tree_root(tree), &(tt_model_opts){0}, &m));
    EXPECT_MESSAGE(part);
    tt_tree_close(tree);
}

TT_TEST(pixels, layers_that_cannot_be_are_refused)
{
    expect_bad("{input: [7], layers: [upsample], loss: mse}", "takes an image");
    expect_bad("{input: [7], layers: [conv_transpose: {out: 2, kernel: 2}], loss: mse}",
               "takes an image");
    expect_bad("{input: [1, 4, 4], layers: [upsample: {mode: cubic}], loss: mse}", "bilinear");
    expect_bad("{input: [1, 4, 4], layers: [conv_transpose: {out: 2, kernel: 2, stride: 2, "
               "output_padding: 2}], loss: mse}",
               "output_padding: 2 must be less than stride: 2");
    expect_bad("{input: [1, 2, 2], layers: [conv_transpose: {out: 2, kernel: 2, padding: 3}], "
               "loss: mse}",
               "leaves nothing");
    expect_bad("{input: [1, 4, 4], layers: [upsample: {scale: 4096}, upsample: {scale: 4096}], "
               "loss: mse}",
               "pixels along a side");
    expect_bad(
        "{input: {ids: 4}, layers: [embedding: {name: e, rows: 6, dim: 3}, "
        "dense: {name: a, out: 6, tied: e}, dense: {out: 3}, dense: {name: b, out: 6, tied: e}], "
        "loss: softmax_cross_entropy}",
        "shared with 'a' already");
    static const char *const freezes[] = {"freeze: [a]", "freeze: []"};
    for (int i = 0; i < 2; i++) {
        char text[300];
        snprintf(text, sizeof text,
                 "{input: {ids: 4}, layers: [embedding: {name: e, rows: 6, dim: 3}, "
                 "dense: {name: a, out: 6, bias: false, tied: e%s}], loss: softmax_cross_entropy, "
                 "%s}",
                 i ? ", freeze: true" : "", freezes[i]);
        expect_bad(text, "'a' is frozen, but its weights are those of another layer ('e.weight')");
    }
}

/* Of a sequence each position's numbers sum to 1, of an image each pixel's, unless the axis is
 * told. */
TT_TEST(pixels, softmax_goes_over_channels_unless_told)
{
    static const struct {
        const char *input, *layers;
        int64_t step; /* from one to the next of what sums to 1 */
        int count;
    } cases[] = {{"[5, 4]", "[softmax]", 1, 4},
                 {"[5, 4]", "[softmax: {axis: 0}]", 4, 5},
                 {"[2, 5, 2]", "[softmax]", 10, 2},
                 {"[20]", "[softmax]", 1, 20}};

    for (int i = 0; i < TT_COUNT(cases); i++) {
        tt_str text = {0};
        double sum = 0;
        int64_t features;
        net n;
        tt_str_add(&text, "{input: %s, layers: %s, loss: mse}", cases[i].input, cases[i].layers);
        net_open(&n, text.data, NULL, 64);
        tt_str_free(&text);
        n.b.n = 1;
        pass(&n, TT_PASS_PREDICT);
        EXPECT_OK(tt_run_output(n.r, NULL, n.out, &features));
        for (int k = 0; k < cases[i].count; k++) sum += n.out[k * cases[i].step];
        EXPECT_NEAR(1, sum, 1e-5);
        net_close(&n);
    }
}
