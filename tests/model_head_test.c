/* A large last layer and its loss, in blocks: the same numbers as one after the other, which is
 * what a model does whose scores somebody wants to keep. */
#include "model/model.h"
#include "test.h"

enum { SAMPLES = 24, ROWS = 24, CLASSES = 30000 };

typedef struct net {
    tt_tree *tree;
    tt_model *m;
    tt_run *r;
    float *w, *grad;
    int64_t size;
} net;

static const char *const models[] = {
    /* tied, as a GPT's; it has no bias, and the table's gradient has a second part */
    "- embedding: {name: wte, rows: 30000, dim: 6, std: 0.5}\n- layernorm: {name: ln}\n"
    "- dense: {name: head, out: 30000, bias: false, tied: wte}\nloss: softmax_cross_entropy\n",
    /* with weights of its own, a loss of a certain weight, and another loss */
    "- embedding: {name: e, rows: 50, dim: 6}\n- dense: {name: mid, out: 6}\n"
    "- gelu\n- dense: {name: head, out: 30000}\n"
    "loss:\n- softmax_cross_entropy: {smoothing: 0.1, weight: 0.25}\n"
    "- softmax_cross_entropy: {from: mid, weight: 0.5}\n",
    /* its own weights do not learn, and what is before it does */
    "- embedding: {name: wte, rows: 30000, dim: 6, std: 0.5, freeze: true}\n- layernorm: {name: "
    "ln}\n- dense: {name: head, out: 30000, bias: false, tied: wte}\n"
    "loss: softmax_cross_entropy\n",
    /* nothing before it learns */
    "- embedding: {name: e, rows: 50, dim: 6, freeze: true}\n- dense: {name: head, out: 30000}\n"
    "loss: softmax_cross_entropy\n",
};

static void open_net(net *n, const char *model, const tt_kernels *k, const char *keep, bool train)
{
    tt_str text = {0};

    tt_str_add(&text, "input: {ids: %d}\nlayers:\n%s", ROWS, model);
    EXPECT_OK(tt_tree_parse("job", text.data, text.size, &n->tree));
    EXPECT_OK(tt_model_open(tt_tree_root(n->tree),
                            &(tt_model_opts){.kernels = k, .samples = SAMPLES, .keep = keep},
                            &n->m));
    tt_str_free(&text);
    n->size = tt_model_size(n->m);
    n->w = tt_block_alloc((size_t)n->size * sizeof *n->w);
    n->grad = tt_block_alloc((size_t)n->size * sizeof *n->grad);
    tt_model_init(n->m, 3, n->w);
    for (int64_t i = 0; i < n->size; i++) n->grad[i] = 777;
    tt_model_bind(n->m, n->w);
    tt_model_refresh(n->m, 0, 1);
    EXPECT_OK(tt_run_open(n->m, SAMPLES, train, &n->r));
}

static void close_net(net *n)
{
    tt_run_close(n->r);
    tt_block_free(n->w, (size_t)n->size * sizeof *n->w);
    tt_block_free(n->grad, (size_t)n->size * sizeof *n->grad);
    tt_model_close(n->m);
    tt_tree_close(n->tree);
}

/* Labels of both losses must do for the second, which knows six classes. */
static tt_batch batch(int n, int ids, int classes)
{
    static int32_t id[SAMPLES * ROWS], label[SAMPLES * ROWS];
    static uint64_t place[2 * SAMPLES];

    for (int i = 0; i < SAMPLES * ROWS; i++) {
        id[i] = (int32_t)((unsigned)i * 7919u % (unsigned)ids);
        label[i] = i % 11 == 5 ? -1 : (int32_t)((unsigned)i * 104729u % (unsigned)classes);
    }
    return (tt_batch){.n = n, .ids = id, .label = label, .place = place};
}

static void pass(net *n, tt_pass kind, const tt_batch *b, bool add)
{
    tt_yield y;

    tt_run_begin(n->r, kind, b, kind == TT_PASS_TRAIN ? n->grad : NULL, add, 1);
    do tt_run_advance(n->r, &y);
    while (y.kind != TT_PASS_DONE);
}

static void expect_same_result(const net *a, const net *b)
{
    const tt_result *x = tt_run_result(a->r), *y = tt_run_result(b->r);

    EXPECT_NEAR(x->loss, y->loss, 1e-6 * fabs(x->loss));
    EXPECT_NEAR(x->weight, y->weight, 0);
    for (int i = 0; i < TT_LOSSES; i++)
        EXPECT_NEAR(x->part[i], y->part[i], 1e-6 * fabs(x->part[i]));
    EXPECT_INT(x->correct, y->correct);
    EXPECT_INT(x->top5, y->top5);
    EXPECT_INT(x->rows, y->rows);
    EXPECT(x->rows > 0);
}

/* In bf16 the parts of an input's gradient are the same, and those of a weight's in another order.
 */
static void expect_same_grad(const net *a, const net *b, const char *what)
{
    int count;
    const tt_param *p = tt_model_params(a->m, &count);

    for (int k = 0; k < count; k++) {
        double norm = 0, diff = 0;
        for (int64_t i = p[k].at; i < p[k].at + p[k].n && !p[k].frozen; i++) {
            norm += (double)a->grad[i] * a->grad[i];
            diff += pow((double)a->grad[i] - b->grad[i], 2);
        }
        if (!(sqrt(diff) <= 1e-5 * sqrt(norm)))
            FAIL("%s: gradient of %s is off by %g of %g", what, p[k].name, sqrt(diff), sqrt(norm));
    }
}

static bool in_blocks(const net *n)
{
    tt_str text = {0};
    bool found;

    tt_model_show_calls(n->m, &text);
    found = strstr(text.data, tt_model_kernels(n->m)->precision == TT_IN_BF16
                                  ? "with head, 544 rows at a time"
                                  : "with head, 256 rows at a time") != NULL;
    tt_str_free(&text);
    return found;
}

/* A model in blocks against the same whose scores are kept. */
static void expect_blocks_to_do(const tt_kernels *k, int model)
{
    /* two blocks, of which one is cut; one */
    const int sizes[] = {(k->precision == TT_IN_BF16 ? SAMPLES : SAMPLES / 2) - 1, 1};
    net a, b;

    open_net(&a, models[model], k, "head", true);
    open_net(&b, models[model], k, NULL, true);
    EXPECT(!in_blocks(&a) && in_blocks(&b));
    for (int s = 0; s < TT_COUNT(sizes); s++) {
        tt_batch in = batch(sizes[s], model ? 50 : CLASSES, model == 1 ? 6 : CLASSES);
        pass(&a, TT_PASS_TRAIN, &in, s == 1);
        pass(&b, TT_PASS_TRAIN, &in, s == 1);
        expect_same_result(&a, &b);
        expect_same_grad(&a, &b, k->name);
        pass(&a, TT_PASS_EVAL, &in, false);
        pass(&b, TT_PASS_EVAL, &in, false);
        expect_same_result(&a, &b);
    }
    close_net(&a);
    close_net(&b);
}

/* The best table on every model, the others on one. ref of bf16 is too slow, and so are tiles where
 * they are plain C. */
static void expect_all_to_do(tt_precision p)
{
    const tt_kernels *const *all;
    int tables = tt_kernels_with(p, &all), done = 0;

    for (int i = 0; i < tables; i++) {
        bool slow = p == TT_IN_BF16 && all[i]->plain;
#ifdef TT_WIDE
        slow |= p == TT_IN_BF16 && strcmp(all[i]->product, "widened");
#endif
        for (int k = 0; k < (done ? 1 : TT_COUNT(models)) && !slow; k++)
            expect_blocks_to_do(all[i], k);
        done += !slow;
    }
    EXPECT(done > 0);
}

TT_TEST(head, blocks_are_as_good_as_all_at_once)
{
    expect_all_to_do(TT_IN_FLOAT32);
}

TT_TEST(head, blocks_are_as_good_as_all_at_once_in_bf16)
{
    expect_all_to_do(TT_IN_BF16);
}

TT_TEST(head, scores_are_whole_where_nothing_is_trained)
{
    tt_batch in = batch(2, CLASSES, CLASSES);
    int64_t features, all = 2 * ROWS * CLASSES;
    float *want = malloc((size_t)all * sizeof *want), *got = malloc((size_t)all * sizeof *got);
    net a, b, c;

    open_net(&a, models[0], NULL, "head", true);
    open_net(&b, models[0], NULL, NULL, false);
    open_net(&c, models[0], NULL, NULL, true);
    pass(&a, TT_PASS_PREDICT, &in, false);
    pass(&b, TT_PASS_PREDICT, &in, false);
    pass(&c, TT_PASS_PREDICT, &in, false);
    EXPECT_OK(tt_run_output(a.r, NULL, want, &features));
    EXPECT_OK(tt_run_output(b.r, NULL, got, &features));
    EXPECT_INT(ROWS * CLASSES, features);
    EXPECT(!memcmp(want, got, (size_t)all * sizeof *want));
    EXPECT_ERR(TT_EINVAL, tt_run_output(c.r, NULL, got, &features));
    EXPECT_MESSAGE("a run for training does not keep the output of 'head'");
    pass(&a, TT_PASS_EVAL, &in, false);
    pass(&b, TT_PASS_EVAL, &in, false);
    expect_same_result(&a, &b);
    close_net(&a);
    close_net(&b);
    close_net(&c);
    free(want);
    free(got);
}

static void expect_to_find(tt_precision precision)
{
    tt_batch in = batch(SAMPLES, 50, CLASSES);
    const tt_kernels *k;
    tt_fault f;
    net n;

    EXPECT_OK(tt_kernels_pick("auto", precision, &k));
    open_net(&n, models[2], k, NULL, true);
    EXPECT(!tt_run_probe(n.r, &in, n.grad, 1, &f));
    int count;
    const tt_param *p = tt_model_params(n.m, &count);
    n.w[p[0].at + 6 * in.ids[ROWS * 3]] = 3e38f; /* the row of an id; times a weight it overflows */
    n.w[p[1].at] = 1e10f;
    tt_model_refresh(n.m, 0, 1);
    EXPECT(tt_run_probe(n.r, &in, n.grad, 1, &f));
    EXPECT_STR("head", f.layer);
    EXPECT(!f.backward && f.samples >= 1);
    close_net(&n);
}

TT_TEST(head, numbers_that_are_none_are_still_found)
{
    expect_to_find(TT_IN_FLOAT32);
    expect_to_find(TT_IN_BF16);
}

TT_TEST(head, what_is_small_or_has_other_uses_is_left_alone)
{
    static const char *const whole[] = {
        "- embedding: {name: e, rows: 50, dim: 6}\n- dense: {name: head, out: 65}\n"
        "loss: softmax_cross_entropy\n",
        "- embedding: {name: e, rows: 50, dim: 6}\n- dense: {name: head, out: 30000}\n- relu\n"
        "loss: softmax_cross_entropy\n",
        "- embedding: {name: e, rows: 50, dim: 6}\n- dense: {name: head, out: 30000}\n- gelu\n"
        "loss: [softmax_cross_entropy: {from: head}, softmax_cross_entropy: {from: gelu1}]\n",
        /* the gradient of its input is begun by another loss */
        "- embedding: {name: e, rows: 50, dim: 6}\n- dense: {name: mid, out: 6}\n"
        "- dense: {name: head, out: 30000}\n"
        "loss: [softmax_cross_entropy, softmax_cross_entropy: {from: mid}]\n",
    };

    for (int i = 0; i < TT_COUNT(whole); i++) {
        net n;
        open_net(&n, whole[i], NULL, NULL, true);
        EXPECT(!in_blocks(&n));
        close_net(&n);
    }
}
