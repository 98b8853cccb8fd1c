/* Whole models against PyTorch: losses over ten steps of SGD with momentum, the gradients of the
 * first, and running statistics, for every table of kernels this CPU runs and for grains small and
 * large.
 *
 * Tolerances stand far above what float32 costs (the files say) and far below what a wrong
 * formula does; the loss of the first step, which no update has touched yet, is held to 1e-5. */
#include "golden.h"
#include "model/model.h"

typedef struct net {
    const golden *g;
    tt_tree *tree;
    tt_model *m;
    tt_run *r;
    const tt_param *params;
    int param_count;
    int64_t size;
    float *w, *grad, *velocity, *x;
    int32_t *label, *id;
    uint64_t *place;
    char what[96];
} net;

static float *floats(int64_t n)
{
    float *p = tt_block_alloc((size_t)n * sizeof *p);
    EXPECT(p != NULL);
    return p;
}

/* `model` is the text of a model's map; NULL: that of the example with the golden's name. */
static void net_open(net *n, const golden *g, const char *model, const tt_kernels *k, int samples)
{
    tt_model_opts o = {.kernels = k, .samples = samples};
    tt_node *map;
    char path[128];

    *n = (net){.g = g};
    snprintf(n->what, sizeof n->what, "%s kernels for grains of %d", k->name, samples);
    snprintf(path, sizeof path, "examples/%s.yaml", g->name);
    if (model)
        EXPECT_OK(tt_tree_parse(g->name, model, strlen(model), &n->tree));
    else
        EXPECT_OK(tt_tree_load(tt_test_source(path), &n->tree));
    map = model ? tt_tree_root(n->tree) : tt_tree_get(n->tree, "model");
    EXPECT_OK(tt_model_open(map, &o, &n->m));
    EXPECT_INT(g->features, tt_shape_count(tt_model_input(n->m)));
    EXPECT_INT(g->classes, tt_model_wants(n->m).classes);
    n->params = tt_model_params(n->m, &n->param_count);
    EXPECT_INT(g->tensor_count, n->param_count);
    n->size = tt_model_size(n->m);
    n->w = floats(n->size);
    n->grad = floats(n->size);
    n->velocity = floats(n->size);
    n->x = floats(g->batch * g->features + 1);
    n->id = calloc((size_t)(g->batch * g->ids) + 1, sizeof *n->id);
    n->label = calloc((size_t)(g->batch * g->labels), sizeof *n->label);
    n->place = calloc((size_t)g->batch, 2 * sizeof *n->place);
    golden_weights(n->params, n->param_count, n->w);
    tt_model_bind(n->m, n->w);
    EXPECT_OK(tt_run_open(n->m, g->batch, true, &n->r));
}

static void net_close(net *n)
{
    tt_run_close(n->r);
    tt_model_close(n->m);
    tt_tree_close(n->tree);
    tt_block_free(n->w, (size_t)n->size * sizeof(float));
    tt_block_free(n->grad, (size_t)n->size * sizeof(float));
    tt_block_free(n->velocity, (size_t)n->size * sizeof(float));
    tt_block_free(n->x, (size_t)(n->g->batch * n->g->features + 1) * sizeof(float));
    free(n->label);
    free(n->id);
    free(n->place);
}

/* The mean loss of a step's batch, worked through in grains of at most `grain` samples. */
static double pass(net *n, tt_pass kind, int step, int grain)
{
    const golden *g = n->g;
    double loss = 0, weight = 0;

    golden_batch(g, step, n->x, n->id, n->label);
    tt_model_refresh(n->m, 0, 1);
    for (int first = 0; first < g->batch; first += grain) {
        tt_batch whole = {.n = g->batch,
                          .x = n->x,
                          .ids = g->ids ? n->id : NULL,
                          .label = n->label,
                          .place = n->place},
                 part;
        tt_row row = tt_model_row(n->m);
        tt_yield y;
        part =
            tt_batch_cut(&whole, first, first + grain < g->batch ? grain : g->batch - first, &row);
        tt_run_begin(n->r, kind, &part, n->grad, first > 0, 1);
        do tt_run_advance(n->r, &y);
        while (y.kind != TT_PASS_DONE);
        loss += tt_run_result(n->r)->loss;
        weight += tt_run_result(n->r)->weight;
    }
    EXPECT_NEAR((double)(g->batch * g->labels), weight, 0);
    return loss / weight;
}

/* Sums become what PyTorch calls gradients: of the mean. */
static void normalise(net *n)
{
    for (int64_t i = 0; i < n->size; i++) n->grad[i] /= (float)(n->g->batch * n->g->labels);
}

static void update(net *n)
{
    for (int k = 0; k < n->param_count; k++) {
        const tt_param *p = &n->params[k];
        for (int64_t i = p->at; i < p->at + p->n; i++) {
            if (p->role == TT_STAT) {
                n->w[i] = (1 - p->momentum) * n->w[i] + p->momentum * n->grad[i];
                continue;
            }
            n->velocity[i] = (float)n->g->momentum * n->velocity[i] + n->grad[i];
            n->w[i] -= (float)n->g->lr * n->velocity[i];
        }
    }
}

static const tt_param *param_of(const net *n, const char *name)
{
    for (int k = 0; k < n->param_count; k++)
        if (!strcmp(n->params[k].name, name)) return &n->params[k];
    FAIL("%s has no parameter '%s', but PyTorch's has", n->g->name, name);
}

static void check_tensors(net *n, bool stats, double tolerance)
{
    for (int k = 0; k < n->g->tensor_count; k++) {
        const golden_tensor *t = &n->g->tensor[k];
        const tt_param *p = param_of(n, t->name);
        EXPECT_INT(t->n, p->n);
        EXPECT_INT(t->stat, p->role == TT_STAT);
        if (t->stat == stats)
            golden_check(n->g, t, (stats ? n->w : n->grad) + p->at, tolerance, n->what);
    }
}

typedef struct limits {
    double loss, grad, stat;
} limits;

/* ref is there to be read, not to be fast, and knows neither grains nor layouts. */
static bool is_ref(const tt_kernels *k)
{
    return !k->lanes;
}

static void check_loss(const net *n, const char *which, double want, double have, double tolerance)
{
    if (!(fabs(want - have) <= tolerance * want))
        FAIL("%s, %s: %s is %.8f, in PyTorch %.8f", n->g->name, n->what, which, have, want);
}

static bool is_bf16(const net *n)
{
    return tt_model_kernels(n->m)->precision == TT_IN_BF16;
}

/* `same`: every step on the first batch, and an evaluation behind them. */
static void train(net *n, int steps, bool same, int grain, limits l)
{
    char which[32];

    if (TT_TEST_SLOW) steps = 1; /* the others read and write the same */
    for (int t = 0; t < steps; t++) {
        double loss = pass(n, TT_PASS_TRAIN, same ? 0 : t, grain);
        normalise(n);
        snprintf(which, sizeof which, "loss of step %d", t);
        check_loss(n, which, same ? n->g->same[t] : n->g->loss[t], loss,
                   t || is_bf16(n) ? l.loss : 1e-5);
        if (!t) check_tensors(n, false, l.grad);
        update(n);
        if (!t) check_tensors(n, true, l.stat);
    }
    if (same && steps == GOLDEN_STEPS)
        check_loss(n, "evaluation", n->g->eval, pass(n, TT_PASS_EVAL, 0, grain), l.loss);
}

TT_TEST(golden, mnist_cnn_trains_as_in_pytorch)
{
    static const int grains[] = {64, 23}, samples[] = {1, 64};
    const limits l = {5e-5, 1e-4, 0};
    const tt_kernels *const *all;
    int tables = tt_kernels_all(&all);
    golden g;

    golden_load("mnist-cnn", &g);
    for (int i = 0; i < tables * 8; i++) { /* all combinations */
        net n;
        if (is_ref(all[i / 8]) && i % 8) continue;
        net_open(&n, &g, NULL, all[i / 8], samples[i / 4 % 2]);
        train(&n, is_ref(all[i / 8]) ? 2 : GOLDEN_STEPS, i % 2, grains[i / 2 % 2], l);
        net_close(&n);
    }
    golden_free(&g);
}

/* Bottlenecks, the strided stem with its padded pool, and channels few enough that large grains
 * change between lanes and the other layout on the way. */
TT_TEST(golden, narrow_resnet50_trains_as_in_pytorch)
{
    static const char model[] =
        "input: [3, 64, 64]\nlayers: [resnet: {depth: 50, classes: 10, width: 8}]\n"
        "loss: softmax_cross_entropy\n";
    const limits l = {5e-5, 1e-4, 1e-5};
    const tt_kernels *const *all;
    int tables = tt_kernels_all(&all);
    golden g;

    golden_load("resnet50-narrow", &g);
    for (int i = 0; i < tables * 2; i++) {
        net n;
        if (is_ref(all[i / 2]) && i % 2) continue;
        net_open(&n, &g, model, all[i / 2], i % 2 ? 1 : 16);
        train(&n, is_ref(all[i / 2]) ? 1 : GOLDEN_STEPS, i % 2, g.batch, l);
        net_close(&n);
    }
    golden_free(&g);
}

static const char gpt_model[] =
    "input: {ids: 40}\nlayers: [gpt: {vocab: 19, layers: 2, heads: 2, width: 24}]\n"
    "loss: softmax_cross_entropy\n";

/* With a table that the output shares. */
TT_TEST(golden, gpt_trains_as_in_pytorch)
{
    const limits l = {5e-5, 1e-4, 0};
    const tt_kernels *const *all;
    int tables = tt_kernels_all(&all);
    golden g;

    golden_load("gpt", &g);
    for (int i = 0; i < tables * 2; i++) {
        net n;
        if (is_ref(all[i / 2]) && i % 2) continue; /* its evaluation is behind all steps */
        net_open(&n, &g, gpt_model, all[i / 2], 3);
        train(&n, is_ref(all[i / 2]) ? 3 : GOLDEN_STEPS, i % 2, i % 2 ? 1 : 3, l);
        net_close(&n);
    }
    golden_free(&g);
}

static void check_recurrent(const char *name, const char *model, int cut)
{
    const limits l = {5e-5, 1e-4, 0};
    const tt_kernels *const *all;
    int tables = tt_kernels_all(&all);
    golden g;

    golden_load(name, &g);
    for (int i = 0; i < tables * 4; i++) {
        net n;
        net_open(&n, &g, model, all[i / 4], 64);
        train(&n, GOLDEN_STEPS, i % 2, i / 2 % 2 ? cut : g.batch, l);
        net_close(&n);
    }
    golden_free(&g);
}

static const char lstm_model[] =
    "input: {ids: 12}\nlayers:\n- embedding: {rows: 27, dim: 16}\n"
    "- lstm: {hidden: 24}\n- dense: {out: 27}\nloss: softmax_cross_entropy\n";
TT_TEST(golden, lstm_language_model_trains_as_in_pytorch)
{
    check_recurrent("lstm-model", lstm_model, 3);
}

static const char gru_model[] = "input: [10, 9]\nlayers:\n- gru: {hidden: 20}\n"
                                "- gru: {hidden: 17, last: true}\n- dense: {out: 5}\n"
                                "loss: softmax_cross_entropy\n";
TT_TEST(golden, gru_classifier_trains_as_in_pytorch)
{
    check_recurrent("gru-classifier", gru_model, 5);
}

/* Numbers and ids, and one logit, which bce judges. */
TT_TEST(golden, dlrm_trains_as_in_pytorch)
{
    static const char model[] =
        "input: {features: [13], ids: 7}\n"
        "layers: [dlrm: {rows: 11, dim: 10, bottom: [20], top: [18]}]\nloss: bce\n";
    const limits l = {5e-5, 1e-4, 0};
    const tt_kernels *const *all;
    int tables = tt_kernels_all(&all);
    golden g;

    golden_load("dlrm", &g);
    for (int i = 0; i < tables * 4; i++) {
        net n;
        net_open(&n, &g, model, all[i / 4], i / 2 % 2 ? 64 : 1);
        train(&n, GOLDEN_STEPS, i % 2, i % 2 ? 9 : 32, l);
        net_close(&n);
    }
    golden_free(&g);
}

static const char resnet18_model[] =
    "input: [3, 32, 32]\nlayers: [resnet: {depth: 18, classes: 10, stem: cifar}]\n"
    "loss: softmax_cross_entropy\n";

/* At full width ten steps take their time: tables other than the best make one, and ref none. */
TT_TEST(golden, resnet18_trains_as_in_pytorch)
{
    const limits l = {5e-5, 1e-4, 1e-5};
    const tt_kernels *const *all;
    int tables = tt_kernels_all(&all);
    golden g;

    golden_load("resnet18", &g);
    for (int i = 0; i < tables; i++) {
        net n;
        if (is_ref(all[i])) continue;
        net_open(&n, &g, resnet18_model, all[i], i % 2 ? 1 : 64);
        train(&n, i ? 1 : GOLDEN_STEPS, false, g.batch, l);
        net_close(&n);
    }
    golden_free(&g);
}

static const char unet_model[] =
    "input: [2, 8, 8]\n"
    "layers:\n"
    "- conv: {name: conv1, out: 6, kernel: 3, padding: 1}\n"
    "- tanh: {name: fine}\n"
    "- maxpool: {size: 2}\n"
    "- conv: {name: conv2, out: 40, kernel: 3, padding: 1}\n"
    "- tanh: {name: coarse}\n"
    "- conv_transpose: {name: up1, out: 6, kernel: 3, stride: 2, padding: 1, output_padding: "
    "1}\n"
    "- upsample: {name: near, from: coarse}\n"
    "- concat: {from: [up1, near, fine]}\n"
    "- conv: {name: conv3, out: 5, kernel: 3, padding: 1}\n"
    "- tanh\n"
    "- upsample: {scale: [2, 3], mode: bilinear}\n"
    "- conv_transpose: {name: up2, out: 4, kernel: 2}\n"
    "loss: softmax_cross_entropy\n";

/* Transposed convolutions, both ways of upsampling and a loss that judges pixels; of few channels
 * and of many. */
TT_TEST(golden, small_unet_trains_as_in_pytorch)
{
    const limits l = {5e-5, 1e-4, 0};
    const tt_kernels *const *all;
    int tables = tt_kernels_all(&all);
    golden g;

    golden_load("unet-small", &g);
    for (int i = 0; i < tables * 4; i++) {
        net n;
        if (is_ref(all[i / 4]) && i % 4) continue;
        net_open(&n, &g, unet_model, all[i / 4], i % 2 ? 1 : 16);
        train(&n, is_ref(all[i / 4]) ? 2 : GOLDEN_STEPS, i % 2, i / 2 % 2 ? 7 : g.batch, l);
        net_close(&n);
    }
    golden_free(&g);
}

/* ---- bf16 ---- */

extern const tt_kernels tt_kernels_emulated; /* the kernel of AMX, whose tiles are plain C here */

/* What PyTorch makes of a model in float32 is what we make of it in bf16, but for its 8 bits. */
static void check_in_bf16(const char *name, const char *model, int steps, bool large, limits l)
{
    const tt_kernels *best, *generic;
    golden g;

#ifdef TT_WIDE /* the best are tiles, which are plain C there */
    EXPECT_OK(tt_kernels_pick("avx512", TT_IN_BF16, &best));
#else
    EXPECT_OK(tt_kernels_pick("auto", TT_IN_BF16, &best));
#endif
    EXPECT_OK(tt_kernels_pick("generic", TT_IN_BF16, &generic));
    const tt_kernels *const tables[] = {best, generic, &tt_kernels_emulated};
    golden_load(name, &g);
    for (int i = 0; i < (large ? 1 : TT_COUNT(tables)); i++) {
        net n;
        net_open(&n, &g, model, tables[i], 64);
        train(&n, steps, true, g.batch, l);
        net_close(&n);
    }
    golden_free(&g);
}

TT_TEST(golden, in_bf16_models_follow_pytorch)
{
    /* Maxima and relus turn over, and batch norm of few samples makes much of little: rounding the
     * weights of ResNet-18 once moves gradients of float32 by 5 %. */
    const limits l = {0.01, 0.03, 0.01}, maxima = {0.01, 0.12, 0.01}, norms = {0.03, 0.25, 0.01};

    check_in_bf16("mnist-cnn", NULL, GOLDEN_STEPS, false, maxima);
    check_in_bf16("gpt", gpt_model, GOLDEN_STEPS, false, l);
    check_in_bf16("lstm-model", lstm_model, GOLDEN_STEPS, false, l);
    check_in_bf16("gru-classifier", gru_model, GOLDEN_STEPS, false, l);
    check_in_bf16("unet-small", unet_model, GOLDEN_STEPS, false, l);
    check_in_bf16("resnet18", resnet18_model, 2, true, norms);
}
