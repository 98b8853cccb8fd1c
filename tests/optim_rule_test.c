/* The update rules: against numbers that PyTorch gave, against slow loops in double, and the
 * instruction sets against each other. */
#include "optim_job.h"

#include "optim/rules.h"

/* Four weights, three steps, in PyTorch 1.13. */
TT_TEST(optim, rules_do_what_pytorch_does)
{
    static const float start[4] = {1, -0.5f, 0.25f, 2};
    static const float grads[3][4] = {
        {0.5f, -1, 0.125f, 0}, {-0.25f, -0.5f, 1, 3}, {2, 0.75f, -0.5f, -1}};
    static const struct {
        const char *yaml;
        float want[4];
    } cases[] = {
        {"{optimizer: {sgd: {lr: 0.1}}}", {0.774999976, -0.424999982, 0.187499985, 1.80000007}},
        {"{optimizer: {sgd: {lr: 0.1, l2: 0.05}}}",
         {0.760448635, -0.418784946, 0.184393406, 1.77164972}},
        {"{optimizer: {sgd: {lr: 0.1, momentum: 0.9, dampening: 0.25}}}",
         {0.750124991, -0.214000016, 0.111124992, 1.64750004}},
        {"{optimizer: {momentum: {lr: 0.1, dampening: 0.25}}}",
         {0.750124991, -0.214000016, 0.111124992, 1.64750004}},
        {"{optimizer: {sgd: {lr: 0.1, momentum: 0.9, nesterov: true, l2: 0.01}}}",
         {0.508189261, -0.160292089, 0.0294933822, 1.36201286}},
        {"{optimizer: {nesterov: {lr: 0.1, l2: 0.01}}}",
         {0.508189261, -0.160292089, 0.0294933822, 1.36201286}},
        {"{optimizer: {adagrad: {lr: 0.1, lr_decay: 0.5, initial: 0.25}}}",
         {0.904695094, -0.409452379, 0.186794102, 1.94985771}},
        {"{optimizer: adagrad}", {0.984841287, -0.491098732, 0.234521672, 1.99316227}},
        {"{optimizer: {rmsprop: {lr: 0.1, alpha: 0.9}}}",
         {0.524743497, -0.223976925, -0.233617902, 1.78860068}},
        {"{optimizer: {rmsprop: {momentum: 0.5}}}",
         {0.795980752, -0.313704073, -0.0292263757, 1.88176596}},
        {"{optimizer: rmsprop}", {0.848530054, -0.411154747, 0.0953912735, 1.93176603}},
        {"{optimizer: {adam: {lr: 0.1, betas: [0.8, 0.99]}}}",
         {0.806734145, -0.29319796, 0.0404959098, 1.89021778}},
        {"{optimizer: {adam: {l2: 0.1}}}", {0.99781543, -0.497761518, 0.247847781, 1.99778187}},
        {"{optimizer: {adamw: {lr: 0.1}}}", {0.80353111, -0.281362176, 0.0389119685, 1.88530958}},
        {"{optimizer: {sgd: {lr: 0.1}}, clip: {norm: 1}}",
         {0.880384505, -0.426649719, 0.228487968, 1.94805813}},
    };
    tt_param p = job_weight(4);

    for (int c = 0; c < TT_COUNT(cases); c++) {
        float w[4], g[4], s0[4] = {0}, s1[4] = {0};
        tt_optim_view v = job_view(g, w, s0, s1);
        job j;
        job_open(&j, cases[c].yaml, &p, 1);
        memcpy(w, start, sizeof w);
        for (int i = 0; i < 4; i++) s0[i] = (float)tt_optim_initial(j.o);
        for (int step = 0; step < 3; step++) {
            /* The gradient comes as a sum: here of 4 samples, so that its mean is exact. */
            for (int i = 0; i < 4; i++) g[i] = 4 * grads[step][i];
            job_step(j.o, step, 4, 4, &v);
        }
        for (int i = 0; i < 4; i++)
            if (!(fabsf(w[i] - cases[c].want[i]) <= 3e-7f))
                FAIL("%s: weight %d is %.9g, PyTorch has %.9g", cases[c].yaml, i, w[i],
                     cases[c].want[i]);
        job_close(&j);
    }
}

/* ---- slow loops ---- */

/* One element, written from the papers, in double. */
typedef struct element {
    double w, s, t; /* weight and state */
} element;

typedef void (*slow_rule)(element *e, double g, int step);

static void slow_sgd(element *e, double g, int step)
{
    (void)step;
    e->w = e->w - 0.05 * g - 0.05 * 0.2 * e->w;
}

static void slow_nesterov(element *e, double g, int step)
{
    (void)step;
    g += 0.02 * e->w + 0.03 * (e->w > 0 ? 1 : e->w < 0 ? -1 : 0);
    e->s = 0.8 * e->s + g;
    e->w -= 0.05 * (g + 0.8 * e->s);
}

static void slow_adagrad(element *e, double g, int step)
{
    e->s += g * g;
    e->w -= 0.1 / (1 + 0.25 * step) * g / (sqrt(e->s) + 1e-3);
}

static void slow_rmsprop(element *e, double g, int step)
{
    (void)step;
    e->s = 0.95 * e->s + 0.05 * g * g;
    e->t = 0.7 * e->t + g / (sqrt(e->s) + 1e-4);
    e->w -= 0.02 * e->t;
}

static void slow_adamw(element *e, double g, int step)
{
    double m, v;

    e->s = 0.9 * e->s + 0.1 * g;
    e->t = 0.98 * e->t + 0.02 * g * g;
    m = e->s / (1 - pow(0.9, step + 1));
    v = e->t / (1 - pow(0.98, step + 1));
    e->w = e->w - 0.03 * (m / (sqrt(v) + 1e-6)) - 0.03 * 0.1 * e->w;
}

TT_TEST(optim, rules_agree_with_slow_loops_in_double)
{
    static const struct {
        const char *yaml;
        slow_rule slow;
    } cases[] = {
        {"{optimizer: {sgd: {lr: 0.05, weight_decay: 0.2}}}", slow_sgd},
        {"{optimizer: {nesterov: {lr: 0.05, momentum: 0.8, l2: 0.02, l1: 0.03}}}", slow_nesterov},
        {"{optimizer: {adagrad: {lr: 0.1, lr_decay: 0.25, eps: 1e-3}}}", slow_adagrad},
        {"{optimizer: {rmsprop: {lr: 0.02, alpha: 0.95, eps: 1e-4, momentum: 0.7}}}", slow_rmsprop},
        {"{optimizer: {adamw: {lr: 0.03, betas: [0.9, 0.98], eps: 1e-6, weight_decay: 0.1}}}",
         slow_adamw},
    };
    enum { N = 1057, STEPS = 8 }; /* more than a chunk, and no multiple of anything */
    static float w[N], g[N], s0[N], s1[N];
    static element slow[N];
    tt_param p = job_weight(N);

    for (int c = 0; c < TT_COUNT(cases); c++) {
        tt_optim_view v = job_view(g, w, s0, s1);
        job j;
        job_open(&j, cases[c].yaml, &p, 1);
        job_fill(w, N, 1);
        w[5] = 0; /* its sign is 0 too */
        memset(s0, 0, sizeof s0);
        memset(s1, 0, sizeof s1);
        for (int i = 0; i < N; i++) slow[i] = (element){w[i], 0, 0};
        for (int step = 0; step < STEPS; step++) {
            job_fill(g, N, 100 + (uint64_t)step);
            for (int i = 0; i < N; i++) cases[c].slow(&slow[i], g[i] / 3.0, step);
            job_step(j.o, step, 3, 3, &v);
        }
        for (int i = 0; i < N; i++)
            if (!(fabs(w[i] - slow[i].w) <= 5e-6))
                FAIL("%s: weight %d is %.9g, should be %.9g", cases[c].yaml, i, w[i], slow[i].w);
        job_close(&j);
    }
}

TT_TEST(optim, lamb_scales_each_tensor_by_its_own_norms)
{
    enum { A = TT_PIECE + 333, B = 77, N = A + B, STEPS = 4 };
    tt_param p[2] = {job_weight(A), {.name = "out.weight", .at = A, .n = B, .role = TT_WEIGHT}};
    float *w = calloc(N, 4), *g = calloc(N, 4), *s0 = calloc(N, 4), *s1 = calloc(N, 4);
    element *slow = calloc(N, sizeof *slow);
    double *u = calloc(N, sizeof *u);
    tt_optim_view v = job_view(g, w, s0, s1);
    job j;

    job_open(&j, "{optimizer: {lamb: {lr: 0.05, weight_decay: 0.1}}}", p, 2);
    EXPECT_INT(2, tt_optim_passes(j.o));
    job_fill(w, N, 7);
    for (int i = A; i < N; i++) w[i] *= 10; /* so that the ratios differ */
    for (int i = 0; i < N; i++) slow[i].w = w[i];
    for (int step = 0; step < STEPS; step++) {
        job_fill(g, N, 200 + (uint64_t)step);
        for (int t = 0; t < 2; t++) {
            double ww = 0, uu = 0;
            for (int64_t i = p[t].at; i < p[t].at + p[t].n; i++) {
                slow[i].s = 0.9 * slow[i].s + 0.1 * g[i];
                slow[i].t = 0.999 * slow[i].t + 0.001 * g[i] * g[i];
                u[i] = slow[i].s / (1 - pow(0.9, step + 1)) /
                           (sqrt(slow[i].t / (1 - pow(0.999, step + 1))) + 1e-6) +
                       0.1 * slow[i].w;
                ww += slow[i].w * slow[i].w;
                uu += u[i] * u[i];
            }
            for (int64_t i = p[t].at; i < p[t].at + p[t].n; i++)
                slow[i].w -= 0.05 * sqrt(ww) / sqrt(uu) * u[i];
        }
        job_step(j.o, step, 1, 1, &v);
    }
    for (int i = 0; i < N; i++) EXPECT_NEAR(slow[i].w, w[i], 2e-5);
    job_close(&j);
    free(w), free(g), free(s0), free(s1), free(slow), free(u);
}

TT_TEST(optim, lamb_leaves_biases_unscaled_unless_all_decay)
{
    tt_param p = {.name = "fc.bias", .n = 2, .role = TT_BIAS};
    float g[2] = {3, -4}, w[2] = {10, 10}, s0[2] = {0}, s1[2] = {0};
    tt_optim_view v = job_view(g, w, s0, s1);
    job j;

    /* The first direction of Adam is the sign of the gradient. */
    job_open(&j, "{optimizer: {lamb: {lr: 0.5, eps: 0}}}", &p, 1);
    job_step(j.o, 0, 1, 1, &v);
    EXPECT_NEAR(9.5, w[0], 1e-5);
    EXPECT_NEAR(10.5, w[1], 1e-5);
    job_close(&j);

    /* |w| = sqrt(200), |u| = sqrt(2): ten times that. */
    job_open(&j, "{optimizer: {lamb: {lr: 0.5, eps: 0, decay_all: true, weight_decay: 0}}}", &p, 1);
    g[0] = 3, g[1] = -4, w[0] = w[1] = 10;
    s0[0] = s0[1] = s1[0] = s1[1] = 0;
    job_step(j.o, 0, 1, 1, &v);
    EXPECT_NEAR(5, w[0], 1e-5);
    EXPECT_NEAR(15, w[1], 1e-5);
    job_close(&j);
}

/* ---- one answer from every instruction set ---- */

enum { LONG = 1000 };
typedef struct buffers {
    float g[LONG], w[LONG], w_new[LONG], s[2][LONG], s_new[2][LONG];
    tt_sum sum[3];
} buffers;

static void run_rule(const tt_rules *r, int rule, int n, buffers *b)
{
    const tt_rule rules[] = {r->sgd,     r->momentum,         r->nesterov, r->adagrad,
                             r->rmsprop, r->rmsprop_momentum, r->adam,     r->lamb};
    const tt_factors f = {.scale = 0.7f,
                          .lr = 0.013f,
                          .shrink = 0.0007f,
                          .momentum = 0.9f,
                          .fresh = 0.3f,
                          .beta = {0.9f, 0.999f},
                          .rest = {0.1f, 0.001f},
                          .unbias = {1.3f, 3.1f},
                          .eps = 1e-8f,
                          .decay = 0.01f};
    tt_chunk c = {n, b->g, b->w, b->w_new, {b->s[0], b->s[1]}, {b->s_new[0], b->s_new[1]}};

    memset(b, 0, sizeof *b);
    job_fill(b->g, LONG, 1);
    job_fill(b->w, LONG, 2);
    job_fill(b->s[0], LONG, 3);
    job_fill(b->s[1], LONG, 4);
    for (int i = 0; i < LONG; i++) {
        b->s[0][i] = fabsf(b->s[0][i]); /* some rules take the root of it */
        b->s[1][i] = fabsf(b->s[1][i]);
    }
    r->prepare(b->g, b->g, b->w, n, 1.0f / 3, 0.1f, 0.01f, &b->sum[0]);
    r->clip(b->g, n, 1.5f, &b->sum[1]);
    r->measure(b->w, n, &b->sum[2]);
    if (rule < TT_COUNT(rules))
        rules[rule](&c, &f);
    else
        r->stat(&c, 17, 0.1f);
}

TT_TEST(optim, every_instruction_set_gives_the_same_bits)
{
    static const int lengths[] = {1, 7, 16, 31, 64, 999};
    static buffers want, got;
    const tt_rules *sets[3];
    int count = tt_rules_list(sets);

    EXPECT_STR("any", sets[count - 1]->isa);
    for (int k = 0; k < count - 1; k++)
        for (int rule = 0; rule <= 8; rule++)
            for (int l = 0; l < TT_COUNT(lengths); l++) {
                run_rule(sets[count - 1], rule, lengths[l], &want);
                run_rule(sets[k], rule, lengths[l], &got);
                if (memcmp(&want, &got, sizeof want))
                    FAIL("rule %d over %d elements: %s differs", rule, lengths[l], sets[k]->isa);
            }
}

TT_TEST(optim, where_an_element_stands_in_a_chunk_changes_no_bit)
{
    static buffers whole, part;
    const tt_rules *sets[3];
    int count = tt_rules_list(sets);

    for (int k = 0; k < count; k++)
        for (int rule = 0; rule <= 8; rule++) {
            run_rule(sets[k], rule, 64, &whole); /* all of it in vectors */
            for (int n = 1; n < 64; n++) {       /* the end in single elements */
                run_rule(sets[k], rule, n, &part);
                EXPECT(!memcmp(whole.w_new, part.w_new, (size_t)n * 4));
                EXPECT(!memcmp(whole.g, part.g, (size_t)n * 4));
                EXPECT(!memcmp(whole.s_new[0], part.s_new[0], (size_t)n * 4));
            }
        }
}
