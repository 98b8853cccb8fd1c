/* Spares: ranks that hold the state and have no units. */
#define _GNU_SOURCE
#include "train_together.h"

static together run_with(int ranks, int workers, const int *hosts, const char *changes)
{
    together x = {.text = job_text,
                  .changes = changes,
                  .threads = 1,
                  .opts = {.no_files = true, .workers = workers}};
    EXPECT_OK(tt_sim_run(ranks, hosts, 30, train_rank, &x)); /* compares all ranks' weights, too */
    return x;
}

/* Without exact sums the bits depend on who runs what: so they show that spares run nothing. */
TT_TEST(spares, workers_make_the_bits_they_make_alone)
{
    static const char *const ways[] = {"", "parallel.exact=true; parallel.grains=8"};

    for (int i = 0; i < TT_COUNT(ways); i++) {
        together alone = run_with(2, 0, apart, ways[i]), near, far, several;
        near = run_with(3, 2, (const int[]){0, 1, 1}, ways[i]);
        far = run_with(3, 2, apart, ways[i]);
        several = run_with(5, 2, apart, ways[i]);
        EXPECT_STR(alone.sha, near.sha);
        EXPECT_STR(alone.sha, far.sha);
        EXPECT_STR(alone.sha, several.sha);
    }
}

TT_TEST(spares, without_them_the_bits_are_others)
{
    together two = run_with(2, 0, apart, ""), three = run_with(3, 0, apart, "");

    EXPECT(strcmp(two.sha, three.sha));
}

TT_TEST(spares, they_hold_pieces_of_a_sharded_state)
{
    together alone = run_with(1, 0, apart, "parallel.exact=true; parallel.grains=8"),
             three = run_with(3, 2, apart,
                              "parallel.exact=true; parallel.grains=8; parallel.aggregate=shard");

    EXPECT_STR(alone.sha, three.sha);
}

TT_TEST(spares, with_average_there_are_none)
{
    together all = run_with(3, 0, apart, "parallel.aggregate=average; parallel.average.every=4"),
             some = run_with(3, 2, apart, "parallel.aggregate=average; parallel.average.every=4");

    EXPECT_STR(all.sha, some.sha);
}
