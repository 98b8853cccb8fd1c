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

/* Units of rank 1, as rank 0 sees them from step to step. */
typedef struct moving {
    together t;
    int least, most, spare;
} moving;

static tt_err watch_units(tt_world *w, void *arg)
{
    moving *x = arg;
    tt_train_opts o = {.no_files = true, .workers = 2, .world = w, .threads = 1};
    tt_trainer *t = NULL;
    tt_progress p = {0};

    TRY(tt_tree_parse("job", job_text, strlen(job_text), &o.job));
    TRY(change(o.job, x->t.changes));
    TRY(tt_train_open(&o, &t));
    while (!p.end) {
        const tt_rank_times *times = tt_train_times(t);
        TRY(tt_train_step(t, &p));
        if (w->rank || p.step < 3) continue;
        if (times[1].units < x->least) x->least = times[1].units;
        if (times[1].units > x->most) x->most = times[1].units;
        x->spare += times[2].units + times[3].units;
    }
    TRY(tt_train_compare(t));
    tt_train_close(t);
    tt_tree_close(o.job);
    return TT_OK;
}

TT_TEST(spares, grains_move_between_hosts_that_have_some)
{
    static const char any[] = "parallel.exact=true; parallel.grains=8; parallel.balance=random";
    static const int hosts[] = {0, 1, 0, 1}; /* of each one works, and one is a spare */
    together alone = run_with(1, 0, apart, "parallel.exact=true; parallel.grains=8"),
             four = run_with(4, 2, hosts, any);
    moving x = {.t = {.changes = any}, .least = 8};

    EXPECT_STR(alone.sha, four.sha);
    EXPECT_OK(tt_sim_run(4, hosts, 30, watch_units, &x));
    EXPECT(x.least < 4 && x.most > 4);
    EXPECT_INT(0, x.spare);
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
