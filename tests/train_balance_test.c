/* Grains move between workers while they train: the result is that of one worker, bit for bit, and
 * every sample is taken once. */
#include "train_together.h"

/* What one worker makes of it, and then many, of whom nobody knows what he will have to do next. */
static void expect_exact(const char *changes)
{
    static const int sizes[] = {2, 3, 5};
    char exact[512];

    snprintf(exact, sizeof exact, "parallel.exact=true; parallel.grains=11; %s", changes);
    together one = run(1, NULL, 1, exact);
    snprintf(exact, sizeof exact,
             "parallel.exact=true; parallel.grains=11; parallel.balance=random; %s", changes);
    for (int i = 0; i < TT_COUNT(sizes); i++) {
        together near = run(sizes[i], NULL, 1 + i % 2, exact);
        together mixed = run(sizes[i], two_hosts, 1 + (i + 1) % 2, exact);
        together far = run(sizes[i], apart, 1, exact);
        EXPECT_STR(one.sha, near.sha);
        EXPECT_STR(one.sha, mixed.sha);
        EXPECT_STR(one.sha, far.sha);
        EXPECT(one.val.loss == mixed.val.loss && one.val.accuracy == mixed.val.accuracy);
        EXPECT(one.steps == far.steps && far.epochs > 2);
        EXPECT_INT(near.epochs, near.whole);
        EXPECT_INT(far.epochs, far.whole);
        for (int k = 0; k < one.steps && k < STEPS; k++) EXPECT(one.loss[k] == far.loss[k]);
    }
}

TT_TEST(balance, any_deal_makes_the_same_bits)
{
    expect_exact("");
}
TT_TEST(balance, any_deal_makes_the_same_bits_with_shard)
{
    expect_exact("parallel.aggregate=shard");
}
TT_TEST(balance, any_deal_makes_the_same_bits_with_chief)
{
    expect_exact("parallel.aggregate=chief");
}
TT_TEST(balance, any_deal_makes_the_same_bits_with_batches_made_ahead)
{
    expect_exact("data.prefetch=4; data.threads=2; data.augment={flip: true, crop: 1}; "
                 "train.epochs=5");
}
TT_TEST(balance, any_deal_makes_the_same_bits_with_empty_grains_and_small_buckets)
{
    expect_exact("train.batch=9; parallel.bucket=4096; train.optimizer={lamb: {lr: 0.01}}; "
                 "parallel.aggregate=shard");
}
