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

/* ---- backups ---- */

/* Now and then a grain takes long, wherever it is just computed: ranks are threads of one process,
 * which come by in an order of their own. */
static void be_late(double seconds, int every)
{
    char list[4096];
    int at = 0;

    for (int n = 5; n < 60 * every && at < (int)sizeof list - 64; n += every)
        at += snprintf(list + at, sizeof list - (size_t)at, "step.compute=sleep:%g@%d,", seconds,
                       n + (int)(tt_mix((uint64_t)n) % (uint64_t)every));
    EXPECT_OK(tt_failpoint_set(list, NULL));
}

static void expect_exact_with_backups(const char *changes, bool nodes)
{
    static const int sizes[] = {2, 3, 5};
    char exact[512];
    int backups = 0;

    snprintf(exact, sizeof exact, "parallel.exact=true; parallel.grains=11; %s", changes);
    together one = run(1, NULL, 1, exact);
    for (int i = 0; i < TT_COUNT(sizes); i++)
        for (int k = 1; k <= 3; k++) {
            snprintf(exact, sizeof exact,
                     "parallel.exact=true; parallel.grains=11; parallel.backup=%d; "
                     "parallel.balance=%s; %s",
                     k,
                     k == 2   ? "off"
                     : k == 3 ? "random"
                              : "auto",
                     changes);
            be_late(0.01, 23);
            together x = run(sizes[i], nodes ? two_hosts : NULL, 1 + k % 2, exact);
            EXPECT_OK(tt_failpoint_set(NULL, NULL));
            EXPECT_STR(one.sha, x.sha);
            EXPECT(one.val.loss == x.val.loss);
            EXPECT_INT(x.epochs, x.whole);
            for (int n = 0; n < one.steps && n < STEPS; n++) EXPECT(one.loss[n] == x.loss[n]);
            backups += x.backups;
        }
    EXPECT(backups > 20);
}

TT_TEST(backup, who_provides_what_changes_no_bit)
{
    expect_exact_with_backups("", false);
}
TT_TEST(backup, who_provides_what_changes_no_bit_on_two_hosts)
{
    expect_exact_with_backups("parallel.bucket=4096", true);
}
TT_TEST(backup, who_provides_what_changes_no_bit_with_shard)
{
    expect_exact_with_backups("parallel.aggregate=shard; train.optimizer={lamb: {lr: 0.01}}", true);
}
TT_TEST(backup, who_provides_what_changes_no_bit_with_chief)
{
    expect_exact_with_backups("parallel.aggregate=chief; data.augment={flip: true, crop: 1}",
                              false);
}
TT_TEST(backup, grains_that_are_empty_are_nobodys)
{
    expect_exact_with_backups("train.batch=9", false);
}
TT_TEST(backup, needs_exact_sums)
{
    together x = {
        .text = job_text, .changes = "parallel.backup=1", .threads = 1, .opts = {.no_files = true}};
    EXPECT_ERR(TT_EINVAL, tt_sim_run(2, NULL, 30, train_rank, &x));
}
