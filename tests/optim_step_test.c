/* The step: pieces in any order and by any thread, clipping, frozen tensors, statistics, numbers
 * that are not finite. */
#include "optim_job.h"

/* ---- a model of several tensors ---- */

enum {
    A = TT_PIECE + 1234, /* two pieces */
    B = 77,
    C = 3 * 1024, /* whole chunks */
    D = 5,
    E = 40,
    N = A + B + C + D + E,
};

static const tt_param model[] = {
    {.name = "conv1.weight", .at = 0, .n = A, .role = TT_WEIGHT},
    {.name = "conv1.bias", .at = A, .n = B, .role = TT_BIAS},
    {.name = "fc.weight", .at = A + B, .n = C, .role = TT_WEIGHT},
    {.name = "norm.mean", .at = A + B + C, .n = D, .role = TT_STAT, .momentum = 0.1f},
    {.name = "head.weight", .at = A + B + C + D, .n = E, .role = TT_WEIGHT, .frozen = true},
};

/* Vectors old and new; the test chooses whether they are the same. */
typedef struct state {
    float *grad, *w[2], *s[2][2];
} state;

static state state_open(bool apart)
{
    state st = {calloc(N, 4), {calloc(N, 4)}, {{calloc(N, 4)}, {calloc(N, 4)}}};

    st.w[1] = apart ? calloc(N, 4) : st.w[0];
    for (int k = 0; k < 2; k++) st.s[k][1] = apart ? calloc(N, 4) : st.s[k][0];
    job_fill(st.w[0], N, 11);
    return st;
}

static void state_close(state *st)
{
    bool apart = st->w[1] != st->w[0];

    free(st->grad);
    for (int h = 0; h <= apart; h++) free(st->w[h]), free(st->s[0][h]), free(st->s[1][h]);
}

/* From half `step % 2` to the other, where there are two. */
static tt_optim_view state_view(state *st, int step)
{
    int from = step % 2, to = 1 - from;

    return (tt_optim_view){st->grad,
                           st->w[from],
                           st->w[to],
                           {st->s[0][from], st->s[1][from]},
                           {st->s[0][to], st->s[1][to]}};
}

static const char *const jobs[] = {
    "{optimizer: {sgd: {lr: 0.1, l2: 0.01}}}",
    "{optimizer: {momentum: {lr: 0.1}}, clip: {norm: 1}}",
    "{optimizer: {nesterov: {lr: 0.1, l1: 0.001}}, clip: {value: 0.5}}",
    "{optimizer: {adagrad: {initial: 0.1}}, clip: {norm: 3, value: 1}}",
    "{optimizer: {rmsprop: {momentum: 0.5}}}",
    "{optimizer: {adamw: {lr: 0.1}}, groups: [{match: 'fc.*', lr: 0.5}]}",
    "{optimizer: lamb}",
    "{optimizer: lamb, clip: {norm: 1}}",
};

enum { STEPS = 4 };

/* Trains a little, all in place and in order. */
static void train_plainly(const char *yaml, state *st)
{
    job j;

    job_open(&j, yaml, model, TT_COUNT(model));
    for (int step = 0; step < STEPS; step++) {
        tt_optim_view v = state_view(st, step);
        job_fill(st->grad, N, 50 + (uint64_t)step);
        job_step(j.o, step, 3, 3, &v);
    }
    job_close(&j);
}

static void expect_same(const char *yaml, const state *a, const state *b)
{
    if (memcmp(a->w[0], b->w[0], N * 4)) FAIL("%s: other weights", yaml);
    for (int k = 0; k < 2; k++)
        if (memcmp(a->s[k][0], b->s[k][0], N * 4)) FAIL("%s: other state in slot %d", yaml, k);
}

TT_TEST(optim, pieces_cover_every_tensor_and_cross_none)
{
    tt_param empty[] = {{.name = "a", .at = 0, .n = 0}, {.name = "b", .at = 0, .n = 3}};
    int64_t at = 0;
    job j;

    job_open(&j, jobs[0], model, TT_COUNT(model));
    EXPECT_INT(2 + 1 + 1 + 1 + 1, tt_optim_piece_count(j.o));
    for (int i = 0; i < tt_optim_piece_count(j.o); i++) {
        tt_piece p = tt_optim_piece(j.o, i);
        const tt_param *m = &model[p.param];
        EXPECT_INT(at, p.at);
        EXPECT(p.n > 0 && p.n <= TT_PIECE && p.at >= m->at && p.at + p.n <= m->at + m->n);
        at += p.n;
    }
    EXPECT_INT(N, at);
    job_close(&j);

    job_open(&j, jobs[0], empty, 2); /* a tensor of nothing has no pieces */
    EXPECT_INT(1, tt_optim_piece_count(j.o));
    EXPECT_INT(1, tt_optim_piece(j.o, 0).param);
    job_close(&j);
    job_open(&j, jobs[0], NULL, 0);
    EXPECT_INT(0, tt_optim_piece_count(j.o));
    job_step(j.o, 0, 1, 1, &(tt_optim_view){0});
    EXPECT_NEAR(0, tt_optim_grad_norm(j.o), 0);
    job_close(&j);
}

TT_TEST(optim, old_to_new_and_any_order_change_no_bit)
{
    for (int c = 0; c < TT_COUNT(jobs); c++) {
        state plain = state_open(false), apart = state_open(true);
        job j;
        train_plainly(jobs[c], &plain);
        job_open(&j, jobs[c], model, TT_COUNT(model));
        for (int step = 0; step < STEPS; step++) {
            tt_optim_view v = state_view(&apart, step);
            int count = tt_optim_piece_count(j.o);
            job_fill(apart.grad, N, 50 + (uint64_t)step);
            tt_optim_begin(j.o, step, 3, 3);
            for (int pass = 0; pass < tt_optim_passes(j.o); pass++) {
                for (int i = 0; i < count; i++)
                    tt_optim_run(j.o, pass,
                                 (int)tt_permute((uint64_t)step + 1, (uint64_t)count, (uint64_t)i),
                                 &v);
                tt_optim_join(j.o, pass);
            }
        }
        expect_same(jobs[c], &plain, &apart); /* four steps: it is back in half 0 */
        job_close(&j);
        state_close(&plain);
        state_close(&apart);
    }
}

typedef struct shared {
    tt_optim *o;
    tt_optim_view v;
    tt_team *team;
} shared;

static void run_share(void *arg, int member)
{
    shared *s = arg;

    for (int pass = 0; pass < tt_optim_passes(s->o); pass++) {
        for (int i = member; i < tt_optim_piece_count(s->o); i += tt_team_size(s->team))
            tt_optim_run(s->o, pass, i, &s->v);
        tt_team_barrier(s->team);
        if (member == 0) tt_optim_join(s->o, pass);
        tt_team_barrier(s->team);
    }
}

TT_TEST(optim, threads_change_no_bit)
{
    tt_team *team;

    EXPECT_OK(tt_team_open(3, &team));
    for (int c = 0; c < TT_COUNT(jobs); c++) {
        state plain = state_open(false), st = state_open(false);
        shared s = {.team = team};
        job j;
        train_plainly(jobs[c], &plain);
        job_open(&j, jobs[c], model, TT_COUNT(model));
        s.o = j.o;
        for (int step = 0; step < STEPS; step++) {
            s.v = state_view(&st, step);
            job_fill(st.grad, N, 50 + (uint64_t)step);
            tt_optim_begin(j.o, step, 3, 3);
            tt_team_run(team, run_share, &s);
        }
        expect_same(jobs[c], &plain, &st);
        job_close(&j);
        state_close(&plain);
        state_close(&st);
    }
    tt_team_close(team);
}

/* ---- norms and clipping ---- */

/* Two tensors of two: one step of plain descent with lr 1 leaves -gradient in the weights. */
static const tt_param pair[] = {{.name = "a.weight", .at = 0, .n = 2, .role = TT_WEIGHT},
                                {.name = "b.weight", .at = 2, .n = 2, .role = TT_WEIGHT}};

static double step_of_pair(const char *yaml, const float sums[4], double weight, float w[4])
{
    float g[4], s0[4] = {0};
    tt_optim_view v = job_view(g, w, s0, NULL);
    double norm;
    job j;

    memcpy(g, sums, sizeof g);
    job_open(&j, yaml, pair, 2);
    job_step(j.o, 0, weight, weight, &v);
    EXPECT(tt_optim_finite(j.o));
    norm = tt_optim_grad_norm(j.o);
    job_close(&j);
    return norm;
}

TT_TEST(optim, passes_are_as_few_as_can_be)
{
    static const struct {
        const char *yaml;
        int passes;
    } cases[] = {
        {"{optimizer: adam}", 1},
        {"{optimizer: adam, clip: {value: 1}}", 1},
        {"{optimizer: adam, clip: {norm: 1}}", 2},
        {"{optimizer: lamb}", 2},
        {"{optimizer: lamb, clip: {norm: 1, value: 1}}", 3},
    };
    job j;

    for (int c = 0; c < TT_COUNT(cases); c++) {
        job_open(&j, cases[c].yaml, pair, 2);
        EXPECT_INT(cases[c].passes, tt_optim_passes(j.o));
        job_close(&j);
    }
}

TT_TEST(optim, clip_by_norm_looks_at_all_tensors_together)
{
    float w[4] = {0};
    /* mean (3, 0, 0, 4): norm 5, made 1 */
    double norm =
        step_of_pair("{optimizer: {sgd: {lr: 1}}, clip: {norm: 1}}", (float[]){6, 0, 0, 8}, 2, w);

    EXPECT_NEAR(5, norm, 1e-12); /* as it was before */
    EXPECT_NEAR(-0.6, w[0], 1e-6);
    EXPECT_NEAR(0, w[1], 0);
    EXPECT_NEAR(-0.8, w[3], 1e-6);
}

TT_TEST(optim, clip_by_norm_never_lengthens)
{
    float w[4] = {0};

    step_of_pair("{optimizer: {sgd: {lr: 1}}, clip: {norm: 100}}", (float[]){3, 0, 0, 4}, 1, w);
    EXPECT_NEAR(-3, w[0], 0);
    EXPECT_NEAR(-4, w[3], 0);
}

TT_TEST(optim, clip_by_value_comes_before_clip_by_norm)
{
    float w[4] = {0};
    double norm;

    norm = step_of_pair("{optimizer: {sgd: {lr: 1}}, clip: {value: 2}}", (float[]){3, -1, -9, 2}, 1,
                        w);
    EXPECT_NEAR(sqrt(95), norm, 1e-12);
    EXPECT_NEAR(-2, w[0], 0);
    EXPECT_NEAR(1, w[1], 0);
    EXPECT_NEAR(2, w[2], 0);
    EXPECT_NEAR(-2, w[3], 0);

    /* (30, 0, 0, 40) by value 3 is (3, 0, 0, 3), by norm 1 that over its length */
    memset(w, 0, sizeof w);
    norm = step_of_pair("{optimizer: {sgd: {lr: 1}}, clip: {value: 3, norm: 1}}",
                        (float[]){30, 0, 0, 40}, 1, w);
    EXPECT_NEAR(50, norm, 1e-12);
    EXPECT_NEAR(-sqrt(0.5), w[0], 1e-6);
    EXPECT_NEAR(-sqrt(0.5), w[3], 1e-6);
}

TT_TEST(optim, regularisation_counts_in_the_norm_and_is_clipped)
{
    float w[4] = {3, 0, 0, 4};
    double norm =
        step_of_pair("{optimizer: {sgd: {lr: 1, l2: 10}}, clip: {norm: 5}}", (float[4]){0}, 1, w);

    EXPECT_NEAR(50, norm, 1e-12);
    EXPECT_NEAR(0, w[0], 1e-6);
    EXPECT_NEAR(0, w[3], 1e-6);
}

TT_TEST(optim, the_norm_of_huge_gradients_does_not_overflow)
{
    float w[4] = {0};
    double norm = step_of_pair("{optimizer: {sgd: {lr: 0}}, clip: {norm: 1}}",
                               (float[]){3e30f, 0, 0, 4e30f}, 1, w);

    EXPECT_NEAR(1, norm / 5e30, 1e-6);
}

TT_TEST(optim, a_batch_without_labels_moves_nothing)
{
    float w[4] = {1, 2, 3, 4};

    step_of_pair("{optimizer: {sgd: {lr: 1}}}", (float[4]){0}, 0, w);
    EXPECT_NEAR(1, w[0], 0);
    EXPECT_NEAR(4, w[3], 0);
}

/* ---- what is not finite ---- */

TT_TEST(optim, clipping_by_norm_refuses_a_step_that_is_not_finite)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const char *const yaml[] = {
        "{optimizer: adam, clip: {norm: 1}}",
        "{optimizer: lamb, clip: {norm: 1}}",
        "{optimizer: adam, clip: {norm: 1, value: 1}}",
    };

    for (int c = 0; c < TT_COUNT(bad) * TT_COUNT(yaml); c++) {
        float g[4] = {1, 1, bad[c % TT_COUNT(bad)], 1}, w[2][4] = {{1, 2, 3, 4}};
        float s0[2][4] = {{5, 6, 7, 8}}, s1[2][4] = {{9, 10, 11, 12}};
        tt_optim_view v = {g, w[0], w[1], {s0[0], s1[0]}, {s0[1], s1[1]}};
        job j;
        job_open(&j, yaml[c / TT_COUNT(bad)], pair, 2);
        job_step(j.o, 3, 1, 1, &v);
        EXPECT(!tt_optim_finite(j.o));
        EXPECT(!memcmp(w[0], w[1], sizeof w[0]));
        EXPECT(!memcmp(s0[0], s0[1], sizeof s0[0]));
        EXPECT(!memcmp(s1[0], s1[1], sizeof s1[0]));

        for (int i = 0; i < 4; i++) g[i] = 1; /* the next step is a good one */
        job_step(j.o, 3, 1, 1, &v);
        EXPECT(tt_optim_finite(j.o));
        EXPECT(memcmp(w[0], w[1], sizeof w[0]));
        job_close(&j);
    }
}

TT_TEST(optim, without_it_a_step_that_is_not_finite_is_at_least_reported)
{
    float g[4] = {1, 1, NAN, 1}, w[2][4] = {{1, 2, 3, 4}};
    tt_optim_view v = {g, w[0], w[1]};
    job j;

    job_open(&j, "{optimizer: {sgd: {lr: 1}}}", pair, 2);
    job_step(j.o, 0, 1, 1, &v);
    EXPECT(!tt_optim_finite(j.o));
    EXPECT(!isfinite(tt_optim_grad_norm(j.o)));
    EXPECT_NEAR(3, w[0][2], 0); /* the old weights are there for the caller */
    job_close(&j);
}

/* Adam would keep its square, which is no float. */
TT_TEST(optim, a_gradient_too_large_to_square_is_not_finite)
{
    float g[4] = {1, 1, 1e25f, 1}, w[2][4] = {{1, 2, 3, 4}}, s0[2][4] = {{0}}, s1[2][4] = {{0}};
    tt_optim_view v = {g, w[0], w[1], {s0[0], s1[0]}, {s0[1], s1[1]}};
    job j;

    job_open(&j, "{optimizer: adam}", pair, 2);
    job_step(j.o, 0, 1, 1, &v);
    EXPECT(!tt_optim_finite(j.o));
    EXPECT_NEAR(1, tt_optim_grad_norm(j.o) / 1e25, 1e-5);
    job_close(&j);
}

/* ---- tensors that are no weights ---- */

TT_TEST(optim, frozen_tensors_are_carried_over_and_not_counted)
{
    tt_param p[2] = {pair[0], pair[1]};
    float g[4] = {3, 4, 100, NAN}, w[2][4] = {{1, 1, 5, 6}}, s0[2][4] = {{0, 0, 7, 8}};
    tt_optim_view v = {g, w[0], w[1], {s0[0]}, {s0[1]}};
    job j;

    p[1].frozen = true;
    job_open(&j, "{optimizer: {momentum: {lr: 1, weight_decay: 0.1}}}", p, 2);
    job_step(j.o, 0, 1, 1, &v);
    EXPECT_NEAR(5, tt_optim_grad_norm(j.o), 1e-12);
    EXPECT(tt_optim_finite(j.o));
    EXPECT_NEAR(1 - 3 - 0.1, w[1][0], 1e-6);
    EXPECT_NEAR(5, w[1][2], 0);
    EXPECT_NEAR(6, w[1][3], 0);
    EXPECT_NEAR(7, s0[1][2], 0);
    EXPECT_NEAR(8, s0[1][3], 0);
    job_close(&j);
}

TT_TEST(optim, statistics_move_toward_the_mean_of_the_samples)
{
    tt_param p[2] = {pair[0], pair[1]};
    float g[4] = {4, 0, 80, -40}, w[4] = {0, 0, 10, 1};
    tt_optim_view v = job_view(g, w, NULL, NULL);
    job j;

    p[1].role = TT_STAT;
    p[1].momentum = 0.25f;
    job_open(&j, "{optimizer: {sgd: {lr: 1, l2: 1, weight_decay: 1, decay_all: true}}}", p, 2);
    job_step(j.o, 0, 2, 8, &v); /* two of the eight samples had labels */
    EXPECT_NEAR(-2, w[0], 0);
    EXPECT_NEAR(0.75 * 10 + 0.25 * 10, w[2], 1e-6);
    EXPECT_NEAR(0.75 * 1 + 0.25 * -5, w[3], 1e-6);
    EXPECT_NEAR(2, tt_optim_grad_norm(j.o), 1e-12);

    g[0] = 0, g[2] = INFINITY, g[3] = 0; /* no part of the norm, but a bad sign all the same */
    job_step(j.o, 1, 2, 8, &v);
    EXPECT(!tt_optim_finite(j.o));
    EXPECT(isfinite(tt_optim_grad_norm(j.o)));
    w[2] = 10;
    g[2] = g[3] = 0;
    job_step(j.o, 2, 2, 0, &v); /* no samples, no news */
    EXPECT_NEAR(10, w[2], 0);
    job_close(&j);
}

TT_TEST(optim, statistics_wait_for_the_verdict_of_the_norm)
{
    tt_param p[2] = {pair[0], pair[1]};
    float g[4] = {NAN, 0, 8, 8}, w[2][4] = {{1, 2, 3, 4}};
    tt_optim_view v = {g, w[0], w[1]};
    job j;

    p[1].role = TT_STAT;
    p[1].momentum = 0.5f;
    job_open(&j, "{optimizer: {sgd: {lr: 1}}, clip: {norm: 1}}", p, 2);
    job_step(j.o, 0, 1, 1, &v);
    EXPECT(!memcmp(w[0], w[1], sizeof w[0]));
    job_close(&j);
}

TT_TEST(optim, biases_are_decayed_only_on_demand)
{
    tt_param p[2] = {pair[0], {.name = "a.bias", .at = 2, .n = 2, .role = TT_BIAS}};
    static const char *const yaml[] = {
        "{optimizer: {sgd: {lr: 0.5, l2: 0.1, l1: 0.2, weight_decay: 0.4}}}",
        "{optimizer: {sgd: {lr: 0.5, l2: 0.1, l1: 0.2, weight_decay: 0.4, decay_all: true}}}",
    };

    for (int all = 0; all < 2; all++) {
        float g[4] = {0}, w[4] = {2, -2, 2, -2};
        tt_optim_view v = job_view(g, w, NULL, NULL);
        double less = 0.5 * (0.1 * 2 + 0.2) + 0.5 * 0.4 * 2;
        job j;
        job_open(&j, yaml[all], p, 2);
        job_step(j.o, 0, 1, 1, &v);
        EXPECT_NEAR(2 - less, w[0], 1e-6);
        EXPECT_NEAR(-2 + less, w[1], 1e-6);
        EXPECT_NEAR(all ? 2 - less : 2, w[2], 1e-6);
        EXPECT_NEAR(all ? -2 + less : -2, w[3], 1e-6);
        job_close(&j);
    }
}
