/* Every case of the table: ref's gradients against finite differences, and every kernel table this
 * CPU runs against ref, for small and for large grains, whole and cut in two that sum their batch
 * norms. */
#include "cases.h"
#include "model/model.h"
#include "test.h"

typedef struct pass {
    tt_tree *tree;
    tt_model *m;
    tt_run *r;
    float *w, *grad, *x, *target, *out;
    int32_t *ids;
    uint64_t *place;
    tt_batch b;
    int64_t features, size;
} pass;

static float value(uint64_t key, int64_t i)
{
    float v[4];
    tt_uniform4(key, 0, (uint64_t)i, v);
    return 2 * v[0] - 1;
}

/* Its loss is mse against fixed targets, so that every output gets a gradient of its own. With
 * `front` a batch norm stands before the case: its parameters' gradients show the gradient of the
 * case's input. */
static bool has_front(const tt_case *c)
{
    const char *comma = strchr(c->input, ',');
    return *c->input == '[' && (!comma || strchr(comma + 1, ',')); /* no sequences, no ids */
}

static void open_pass(pass *p, const tt_case *c, bool front, const tt_kernels *k, int samples,
                      bool sync)
{
    tt_str text = {0};
    tt_model_opts o = {.kernels = k, .samples = samples, .sync_norm = sync};

    memset(p, 0, sizeof *p);
    tt_str_add(&text, "input: %s\nlayers:\n%s%s\nloss: mse\n", c->input,
               front ? "- batchnorm: {name: front}\n" : "", c->layers);
    EXPECT_OK(tt_tree_parse(c->name, text.data, text.size, &p->tree));
    EXPECT_OK(tt_model_open(tt_tree_root(p->tree), &o, &p->m));
    tt_str_free(&text);
    p->size = tt_model_size(p->m);
    p->features = tt_shape_count(tt_model_input(p->m));
    int64_t out = tt_shape_count(tt_model_output(p->m)), ids = tt_model_row(p->m).ids;
    p->w = tt_block_alloc((size_t)p->size * 4 + 64);
    p->grad = tt_block_alloc((size_t)p->size * 4 + 64);
    p->x = tt_block_alloc((size_t)(c->n * p->features) * 4);
    p->target = tt_block_alloc((size_t)(c->n * out) * 4);
    p->out = tt_block_alloc((size_t)(c->n * out) * 4);
    p->place = calloc((size_t)c->n * 2, sizeof *p->place);
    p->ids = calloc((size_t)(c->n * ids) + 1, sizeof *p->ids);
    for (int64_t i = 0; i < c->n * ids; i++) /* some twice, some not at all, and none */
        p->ids[i] = (int32_t)(value(4, i) * 3 + 3) - (i % 7 == 3);
    tt_model_init(p->m, 7, p->w);
    for (int64_t i = 0; i < c->n * p->features; i++) p->x[i] = 1.5f * value(1, i);
    for (int64_t i = 0; i < c->n * out; i++) p->target[i] = value(2, i);
    for (int i = 0; i < c->n; i++) p->place[2 * i + 1] = (uint64_t)i;
    for (int64_t i = 0; i < p->size; i++) p->grad[i] = 777; /* a pass overwrites all of it */
    tt_model_bind(p->m, p->w);
    tt_model_refresh(p->m, 0, 1);
    EXPECT_OK(tt_run_open(p->m, c->n, true, &p->r));
    p->b = (tt_batch){.n = c->n,
                      .x = p->features ? p->x : NULL,
                      .ids = ids ? p->ids : NULL,
                      .target = p->target,
                      .place = p->place};
}

static void close_pass(pass *p, const tt_case *c)
{
    int64_t out = tt_shape_count(tt_model_output(p->m));
    tt_block_free(p->w, (size_t)p->size * 4 + 64);
    tt_block_free(p->grad, (size_t)p->size * 4 + 64);
    tt_block_free(p->x, (size_t)(c->n * p->features) * 4);
    tt_block_free(p->target, (size_t)(c->n * out) * 4);
    tt_block_free(p->out, (size_t)(c->n * out) * 4);
    free(p->place);
    free(p->ids);
    tt_run_close(p->r);
    tt_model_close(p->m);
    tt_tree_close(p->tree);
}

static double run_pass(pass *p, tt_pass kind)
{
    tt_yield y;
    tt_run_begin(p->r, kind, &p->b, p->grad, false, 3);
    do tt_run_advance(p->r, &y);
    while (y.kind != TT_PASS_DONE);
    return tt_run_result(p->r)->loss;
}

TT_TEST(layers, ref_gradients_are_those_of_finite_differences)
{
    const tt_kernels *ref;
    EXPECT_OK(tt_kernels_find("ref", &ref));
    for (int i = 0; i < 2 * TT_COUNT(tt_cases); i++) {
        const tt_case *c = &tt_cases[i / 2];
        pass p;
        int count;
        if (c->bench || (i % 2 && !has_front(c))) continue;
        open_pass(&p, c, i % 2, ref, 64, false);
        bool large = tt_model_train_flops(p.m) > 1e6;
        if (large && TT_TEST_SLOW) {
            close_pass(&p, c);
            continue;
        }
        if (p.b.n > 3) p.b.n = 3; /* few samples: few kinks, little noise */
        if (large) p.b.n = 1;     /* and ref is slow */
        double middle = run_pass(&p, TT_PASS_TRAIN);
        float *g = malloc((size_t)p.size * 4 + 4);
        memcpy(g, p.grad, (size_t)p.size * 4);
        const tt_param *params = tt_model_params(p.m, &count);
        for (int k = 0; k < count; k++) {
            if (params[k].role == TT_STAT || params[k].frozen) continue;
            int64_t step = params[k].n / (large ? 3 : TT_TEST_SLOW ? 1 : 10) + 1;
            int checked = 0, kinks = 0;
            for (int64_t j = 0; j < params[k].n; j += step) {
                float *w = p.w + params[k].at + j, was = *w, h = 4e-3f;
                double f[4];
                const float at[4] = {-1, -0.5f, 0.5f, 1};
                for (int q = 0; q < 4; q++) {
                    *w = was + at[q] * h;
                    f[q] = run_pass(&p, TT_PASS_TRAIN);
                }
                *w = was;
                /* relu and max have kinks: where two step sizes disagree, one lies between, and
                 * tells nothing */
                double far = (f[3] - f[0]) / (2 * h), near = (f[2] - f[1]) / h,
                       have = g[params[k].at + j];
                double best = (4 * near - far) / 3,
                       noise = 0.002 + 0.01 * (fabs(best) + fabs(have));
                /* ... and right on one, the truth is between what both sides say */
                double left = (middle - f[1]) / (0.5 * h), right = (f[2] - middle) / (0.5 * h);
                bool between = have > fmin(left, right) - noise && have < fmax(left, right) + noise;
                checked++;
                if (fabs(far - near) > noise || (fabs(best - have) > noise && between))
                    kinks++;
                else if (fabs(best - have) > noise)
                    FAIL("%s: %s[%lld]: gradient %g, by differences %g", c->name, params[k].name,
                         (long long)j, have, best);
            }
            if (checked > 3 && 2 * kinks > checked)
                FAIL("%s: %s: too many kinks to tell anything", c->name, params[k].name);
        }
        free(g);
        close_pass(&p, c);
    }
}

/* In float32 what is off is the order of sums. In bf16 a number that is stored may be rounded the
 * other way, a 256th of it apart, where sums differ; most are not. */
static double tolerance(const pass *p, double of_float32, double of_bf16)
{
    return tt_model_kernels(p->m)->precision == TT_IN_BF16 ? of_bf16 : of_float32;
}

static void compare(const tt_case *c, const pass *a, const pass *b, const char *what)
{
    double loss_off = tolerance(a, 1e-4, 1.0 / 256), off = tolerance(a, 2e-4, 1.0 / 256);
    double least = tolerance(a, 2e-4, 5e-3); /* where terms cancel out */
    int count;
    const tt_param *params = tt_model_params(a->m, &count);
    double la = tt_run_result(a->r)->loss, lb = tt_run_result(b->r)->loss;

    if (fabs(la - lb) > loss_off * fabs(la) + 1e-5)
        FAIL("%s, %s: loss %.8g, ref %.8g", c->name, what, lb, la);
    for (int k = 0; k < count; k++) {
        double norm = 0, diff = 0;
        if (params[k].frozen) continue;
        for (int64_t j = params[k].at; j < params[k].at + params[k].n; j++) {
            norm += (double)a->grad[j] * a->grad[j];
            diff += pow((double)a->grad[j] - b->grad[j], 2);
        }
        if (!(sqrt(diff) <= off * sqrt(norm) + least))
            FAIL("%s, %s: gradient of %s is off by %g of %g", c->name, what, params[k].name,
                 sqrt(diff), sqrt(norm));
    }
}

/* One table against what ref made of the case: `want` was trained, `eval` is its loss in use. */
static void agree(const tt_case *c, bool front, const tt_kernels *k, int samples, const pass *want,
                  double eval)
{
    pass p;
    char what[64];
    tt_yield y;

    snprintf(what, sizeof what, "%s for %d samples", k->name, samples);
    open_pass(&p, c, front, k, samples, false);
    run_pass(&p, TT_PASS_TRAIN);
    compare(c, want, &p, what);
    /* twice: nothing may be left over from the pass before, and adding adds */
    tt_run_begin(p.r, TT_PASS_TRAIN, &p.b, p.grad, true, 3);
    do tt_run_advance(p.r, &y);
    while (y.kind != TT_PASS_DONE);
    for (int64_t j = 0; j < p.size; j++) p.grad[j] /= 2;
    compare(c, want, &p, "added twice");
    double got = run_pass(&p, TT_PASS_EVAL);
    if (fabs(got - eval) > tolerance(&p, 1e-4, 1.0 / 256) * fabs(eval) + 1e-5)
        FAIL("%s, %s: eval loss %g, ref %g", c->name, what, got, eval);
    close_pass(&p, c);
}

/* One case by all of `tables` against ref of the same precision; returns how many there were. */
static int case_agrees(const tt_case *c, bool front, const tt_kernels *ref,
                       const tt_kernels *const *tables, int count)
{
    pass trained, used;
    int compared = 0;

    open_pass(&trained, c, front, ref, 64, false);
    open_pass(&used, c, front, ref, 64, false);
    run_pass(&trained, TT_PASS_TRAIN);
    double eval = run_pass(&used, TT_PASS_EVAL);
    for (int t = 0; t < count; t++) {
        if (tables[t] == ref) continue;
        agree(c, front, tables[t], 1, &trained, eval); /* NHWC */
        if (tables[t]->lanes)
            agree(c, front, tables[t], 64, &trained, eval); /* LANES, where channels are few */
        compared++;
    }
    close_pass(&trained, c);
    close_pass(&used, c);
    return compared;
}

/* All cases; returns how many there were. */
static int all_agree(const tt_kernels *ref, const tt_kernels *const *tables, int count)
{
    int compared = 0;

    for (int i = 0; i < 2 * TT_COUNT(tt_cases); i++) {
        const tt_case *c = &tt_cases[i / 2];
        bool front = i % 2;
        if (!c->n || (front ? !has_front(c) : c->bench > 0)) continue;
        compared += case_agrees(c, front, ref, tables, count);
    }
    return compared;
}

TT_TEST(layers, every_kernel_table_agrees_with_ref)
{
    const tt_kernels *ref, *const *all;
    int count = tt_kernels_all(&all);

    EXPECT_OK(tt_kernels_find("ref", &ref));
    EXPECT(all_agree(ref, all, count) > 0);
}

TT_TEST(layers, every_bf16_table_agrees_with_ref_in_bf16)
{
    const tt_kernels *ref, *const *all;
    int count = tt_kernels_with(TT_IN_BF16, &all);

    EXPECT_OK(tt_kernels_pick("ref", TT_IN_BF16, &ref));
    EXPECT(all_agree(ref, all, count) > 0);
}

extern const tt_kernels tt_kernels_emulated; /* the kernel of AMX, whose tiles are plain C here */

TT_TEST(layers, tiles_agree_with_ref_in_bf16)
{
    const tt_kernels *ref, *tiles = &tt_kernels_emulated;

    EXPECT_OK(tt_kernels_pick("ref", TT_IN_BF16, &ref));
    EXPECT(all_agree(ref, &tiles, 1) > 0);
}

/* ---- layers of random sizes ---- */

static uint64_t drawn;

static int draw(int from, int to)
{
    return from + (int)(tt_philox(99, 0, drawn++).v[0] % (uint32_t)(to - from + 1));
}

static const char *yes_or_no(void)
{
    return draw(0, 1) ? "true" : "false";
}

/* A case of each kind in turn; `text` is where its layers are. */
static void draw_conv(tt_str *input, tt_str *text)
{
    int groups = draw(0, 2) ? 1 : draw(2, 4), k = draw(1, 4), d = draw(1, 2);

    tt_str_add(input, "[%d, %d, %d]", groups * draw(1, 24), draw(8, 11), draw(8, 12));
    int c = atoi(input->data + 1);
    tt_str_add(text, "- conv: {out: %d, kernel: [%d, %d], stride: [%d, %d], padding: %d, ",
               groups * draw(1, 20), k, draw(1, 3), draw(1, 3), draw(1, 2), draw(0, k - 1));
    tt_str_add(text, "dilation: %d, groups: %d, bias: %s}\n", d, groups, yes_or_no());
    if (draw(0, 1)) tt_str_add(text, "- relu\n");
    if (c % 2) tt_str_add(text, "- conv: {out: %d, kernel: 1}\n", draw(1, 40));
}

static void draw_transposed(tt_str *input, tt_str *text)
{
    int k = draw(1, 4), stride = draw(1, 3);

    tt_str_add(input, "[%d, %d, %d]", draw(1, 40), draw(2, 6), draw(2, 7));
    tt_str_add(text, "- conv_transpose: {out: %d, kernel: %d, stride: %d, padding: %d, ",
               draw(1, 40), k, stride, draw(0, (k - 1) / 2));
    tt_str_add(text, "output_padding: %d, bias: %s}\n", draw(0, stride - 1), yes_or_no());
    if (draw(0, 1)) tt_str_add(text, "- conv: {out: 3, kernel: 1}\n");
}

static void draw_dense(tt_str *input, tt_str *text)
{
    if (draw(0, 1))
        tt_str_add(input, "[%d]", draw(1, 150));
    else
        tt_str_add(input, "[%d, %d]", draw(1, 40), draw(1, 90));
    tt_str_add(text, "- dense: {out: %d}\n- relu\n- layernorm\n- gelu\n", draw(2, 100));
    tt_str_add(text, "- dense: {out: %d, bias: %s}\n- dropout: {p: 0.3}\n", draw(1, 70),
               yes_or_no());
}

static void draw_attention(tt_str *input, tt_str *text)
{
    int heads = draw(1, 3), dim = draw(1, 70);

    tt_str_add(input, "[%d, %d]", draw(1, 150), draw(1, 30));
    tt_str_add(text, "- dense: {name: a, out: %d}\n- attention: {name: t, heads: %d, causal: %s}\n",
               3 * heads * dim, heads, yes_or_no());
    /* what attention takes has another use: its gradient is added to */
    if (draw(0, 1))
        tt_str_add(text, "- dense: {name: b, from: a, out: %d}\n- add: {from: [t, b]}\n",
                   heads * dim);
    tt_str_add(text, "- dense: {out: 3}\n");
}

static void draw_recurrent(tt_str *input, tt_str *text)
{
    tt_str_add(input, "[%d, %d]", draw(1, 9), draw(1, 70));
    if (draw(0, 1)) tt_str_add(text, "- dense: {out: %d}\n", draw(1, 40));
    tt_str_add(text, "- %s: {hidden: %d}\n", draw(0, 1) ? "lstm" : "gru", draw(1, 50));
    tt_str_add(text, "- %s: {hidden: %d, last: %s}\n", draw(0, 1) ? "lstm" : "gru", draw(1, 50),
               yes_or_no());
}

static void draw_image(tt_str *input, tt_str *text)
{
    tt_str_add(input, "[%d, %d, %d]", draw(1, 40), draw(6, 9), draw(6, 9));
    tt_str_add(text, "- batchnorm: {name: n}\n- tanh: {name: t}\n- add: {from: [n, t]}\n");
    tt_str_add(text, "- avgpool: {size: %d, stride: %d}\n- upsample: {mode: %s, scale: [%d, %d]}\n",
               draw(1, 3), draw(1, 2), draw(0, 1) ? "bilinear" : "nearest", draw(1, 3), draw(1, 3));
    tt_str_add(text, "- sigmoid: {name: s}\n- mul: {from: [s, prev]}\n- maxpool: {size: %d}\n",
               draw(1, 2));
    tt_str_add(text, draw(0, 1) ? "- softmax\n" : "- global_avgpool\n- flatten\n- log_softmax\n");
}

TT_TEST(layers, of_any_size_agree_with_ref_in_bf16)
{
    static void (*const kinds[])(tt_str *, tt_str *) = {
        draw_conv, draw_transposed, draw_dense, draw_attention, draw_recurrent, draw_image};
    const tt_kernels *ref, *const *all, *tables[16];
    int count = tt_kernels_with(TT_IN_BF16, &all);

    EXPECT_OK(tt_kernels_pick("ref", TT_IN_BF16, &ref));
    memcpy(tables, all, (size_t)count * sizeof *tables);
    tables[count++] = &tt_kernels_emulated;
    for (int i = 0; i < (TT_TEST_SLOW ? 12 : 60); i++) {
        tt_str input = {0}, layers = {0}, name = {0};
        kinds[i % TT_COUNT(kinds)](&input, &layers);
        tt_str_add(&name, "%s: %s", input.data, layers.data);
        tt_case c = {name.data, input.data, layers.data, draw(1, 9), 0};
        case_agrees(&c, has_front(&c) && draw(0, 1), ref, tables, count);
        tt_str_free(&input);
        tt_str_free(&layers);
        tt_str_free(&name);
    }
}

/* Two runs over halves, summing what they are asked to, are one run over the whole. */
TT_TEST(layers, two_grains_that_sum_their_norms_are_one_batch)
{
    const tt_kernels *k;
    EXPECT_OK(tt_kernels_find("auto", &k));
    for (int i = 0; i < 2 * TT_COUNT(tt_cases); i++) {
        const tt_case *c = &tt_cases[i / 2];
        if (c->n < 2 || (i % 2 && !has_front(c))) continue;
        pass whole, half[2];
        int cut = c->n / 2;
        open_pass(&whole, c, i % 2, k, 64, false);
        run_pass(&whole, TT_PASS_TRAIN);
        tt_row row = tt_model_row(whole.m);
        tt_yield y[2];
        for (int h = 0; h < 2; h++) {
            open_pass(&half[h], c, i % 2, k, 64, true);
            half[h].b = tt_batch_cut(&half[h].b, h ? cut : 0, h ? c->n - cut : cut, &row);
            tt_run_begin(half[h].r, TT_PASS_TRAIN, &half[h].b, half[h].grad, false, 3);
        }
        do {
            for (int h = 0; h < 2; h++) {
                do tt_run_advance(half[h].r, &y[h]);
                while (y[h].kind == TT_GRAD_READY);
            }
            EXPECT_INT(y[0].kind, y[1].kind);
            for (int q = 0; y[0].kind == TT_SUM && q < y[0].n; q++)
                y[0].value[q] = y[1].value[q] = y[0].value[q] + y[1].value[q];
        } while (y[0].kind != TT_PASS_DONE);
        for (int64_t j = 0; j < whole.size; j++) half[0].grad[j] += half[1].grad[j];
        int count;
        const tt_param *params = tt_model_params(whole.m, &count);
        for (int q = 0; q < count; q++)
            for (int64_t j = params[q].at; j < params[q].at + params[q].n && !params[q].frozen; j++)
                if (fabs(whole.grad[j] - half[0].grad[j]) > 2e-3 * fabs(whole.grad[j]) + 2e-3)
                    FAIL("%s: %s[%lld]: %g in one, %g in two", c->name, params[q].name,
                         (long long)(j - params[q].at), whole.grad[j], half[0].grad[j]);
        close_pass(&whole, c);
        for (int h = 0; h < 2; h++) close_pass(&half[h], c);
    }
}
