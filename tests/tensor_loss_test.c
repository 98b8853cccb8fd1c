/* The fast losses against ref. */
#include "tensor_help.h"

static void loss_trial(const tt_kernels *k, tt_loss_kind kind)
{
    int n = help_int(1, 40), d = help_coin() ? help_int(1, 12) : help_int(1, 300);
    bool labels = kind == TT_LOSS_NLL || (kind != TT_LOSS_MSE && help_coin());
    int32_t *label = help_bytes((size_t)n * sizeof *label);
    float *target, *x, *weight;
    tt_loss_args r, a;

    if (kind == TT_LOSS_BCE && labels) d = 1;
    x = help_random((int64_t)n * d), target = help_random((int64_t)n * d), weight = help_random(d);
    for (int64_t i = 0; i < (int64_t)n * d; i++) {
        x[i] = rintf(40 * x[i]) / 4; /* -10 .. 10, equal ones among them */
        target[i] = fabsf(target[i]);
    }
    for (int i = 0; i < d; i++) weight[i] = fabsf(weight[i]);
    for (int i = 0; i < n; i++) {
        label[i] = help_int(-1, kind == TT_LOSS_BCE ? 1 : d - 1);
        if (help_int(0, 4) == 0) target[(int64_t)i * d] = NAN;
    }
    if (help_int(0, 5) == 0) x[0] = NAN;
    r = (tt_loss_args){.kind = kind,
                       .n = n,
                       .d = d,
                       .x = x,
                       .label = labels ? label : NULL,
                       .target = labels ? NULL : target,
                       .class_weight = kind <= TT_LOSS_NLL && help_coin() ? weight : NULL,
                       .smoothing = kind == TT_LOSS_SOFTMAX && help_coin() ? 0.1f : 0,
                       .dx = help_random((int64_t)n * d)};
    int64_t seen[2][900] = {{0}};
    r.seen = labels && kind <= TT_LOSS_NLL ? seen[0] : NULL;
    a = r;
    if (r.seen) a.seen = seen[1];
    a.dx = help_random((int64_t)n * d);
    help_ref()->loss(&r);
    k->loss(&a);
    if (!isnan(r.loss) || !isnan(a.loss)) EXPECT_NEAR(r.loss, a.loss, 2e-6 * (1 + fabs(r.loss)));
    EXPECT_NEAR(r.weight, a.weight, 1e-6);
    EXPECT_INT(r.rows, a.rows);
    EXPECT_INT(r.correct, a.correct);
    EXPECT_INT(r.top5, a.top5);
    for (int i = 0; i < 3 * d; i++) EXPECT_INT(seen[0][i], seen[1][i]);
    EXPECT_ALL_NEAR(r.dx, a.dx, (int64_t)n * d, 2e-6);
    double loss = a.loss;
    a.dx = NULL; /* forward only */
    k->loss(&a);
    EXPECT(a.loss == loss || isnan(loss));
    help_free();
}

TT_TEST(tensor_loss, fast_losses_are_refs)
{
    EACH_FAST(k) for (tt_loss_kind kind = TT_LOSS_SOFTMAX; kind <= TT_LOSS_BCE; kind++)
    {
        for (int t = 0; t < 100; t++) loss_trial(k, kind);
    }
}

TT_TEST(tensor_loss, hopeless_rows_give_finite_losses)
{
    float x[] = {-1000, 1000, 0, 0, 0, 0, 0, 0, 0, 0}, dx[10];
    int32_t label[] = {0};
    const tt_kernels *const *all;
    int count = tt_kernels_all(&all);

    for (int i = 0; i < count; i++) {
        tt_loss_args a = {
            .kind = TT_LOSS_SOFTMAX, .n = 1, .d = 10, .x = x, .label = label, .dx = dx};
        all[i]->loss(&a);
        EXPECT_NEAR(2000, a.loss, 1e-3);
        EXPECT(dx[0] == -1 && dx[1] == 1 && dx[2] == 0);
        EXPECT(a.correct == 0 && a.top5 == 0);
        float big[] = {-100};
        int32_t one[] = {1};
        a = (tt_loss_args){.kind = TT_LOSS_BCE, .n = 1, .d = 1, .x = big, .label = one, .dx = dx};
        all[i]->loss(&a);
        EXPECT_NEAR(100, a.loss, 1e-4);
        EXPECT_NEAR(-1, dx[0], 1e-6);
        *big = NAN, *one = 0; /* a broken row is never correct */
        all[i]->loss(&a);
        EXPECT(isnan(a.loss) && a.rows == 1 && !a.correct);
    }
}
