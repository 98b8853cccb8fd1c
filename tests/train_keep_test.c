/* Worlds that come and go: each goes on from what the one before has left in the vault. */
#include <unistd.h>

#include "store/vault.h"
#include "train_together.h"

/* One world of a run: until a step, at which it is gone without a word; 0: to its end. */
static together world_of(const char *folder, uint32_t generation, int ranks, const int *hosts,
                         int64_t until, const char *changes)
{
    together x = {.text = job_text,
                  .changes = changes,
                  .threads = 1,
                  .until = until,
                  .told = {.generation = generation},
                  .opts = {.run = folder, .again = true, .keep = true, .stand_by = true}};
    tt_err err = tt_sim_run(ranks, hosts, 30, train_rank, &x);
    if (err) FAIL("%s, %d ranks: error %d: %s", changes, ranks, err, tt_message());
    return x;
}

static const char exact[] = "parallel.exact=true; parallel.grains=8; checkpoint.every=never; ";

static void expect_same(const char *folder, const char *more)
{
    char changes[512];
    snprintf(changes, sizeof changes, "%s%s", exact, more);
    together one = run(3, NULL, 1, changes), x;

    x = world_of(folder, 1, 3, NULL, 5, changes);
    EXPECT(x.found.disk);
    EXPECT_INT(0, x.found.label.step);
    x = world_of(folder, 2, 3, NULL, 9, changes);
    EXPECT(!x.found.disk);
    EXPECT_INT(5, x.found.label.step);
    EXPECT_INT(1, x.found.made);
    x = world_of(folder, 3, 2, NULL, 12, changes); /* fewer */
    EXPECT_INT(9, x.found.label.step);
    x = world_of(folder, 4, 5, NULL, 15, changes); /* more */
    EXPECT_INT(12, x.found.label.step);
    x = world_of(folder, 5, 4, NULL, 0, changes);
    EXPECT_INT(15, x.found.label.step);
    EXPECT_INT(one.steps, x.steps);
    EXPECT_STR(one.sha, x.sha);
    EXPECT_NEAR(one.val.loss, x.val.loss, 0);
}

TT_TEST(keep, worlds_of_any_size_go_on_where_the_last_one_was)
{
    expect_same("run", "");
}

TT_TEST(keep, so_they_do_where_the_state_is_in_parts)
{
    expect_same("shard", "parallel.aggregate=shard");
    expect_same("chief", "parallel.aggregate=chief");
}

TT_TEST(keep, a_host_without_a_copy_gets_one)
{
    static const int one_other[] = {1, 0, 0};
    together one = run(3, NULL, 1, exact), x;

    world_of("hosts", 1, 2, NULL, 5, exact);          /* host 0 alone */
    x = world_of("hosts", 2, 4, two_hosts, 9, exact); /* two of each */
    EXPECT_INT(5, x.found.label.step);
    x = world_of("hosts", 3, 3, apart, 12, exact);
    EXPECT_INT(9, x.found.label.step);
    x = world_of("hosts", 4, 3, one_other, 0, exact);
    EXPECT_INT(12, x.found.label.step);
    EXPECT_STR(one.sha, x.sha);
}

TT_TEST(keep, parts_on_several_hosts_are_put_together)
{
    char changes[512];
    snprintf(changes, sizeof changes, "%sparallel.aggregate=shard", exact);
    together one = run(3, NULL, 1, changes), x;

    world_of("parts", 1, 4, two_hosts, 5, changes);
    x = world_of("parts", 2, 3, two_one, 9, changes);
    EXPECT_INT(5, x.found.label.step);
    x = world_of("parts", 3, 5, two_hosts, 0, changes);
    EXPECT_INT(9, x.found.label.step);
    EXPECT_STR(one.sha, x.sha);
}

TT_TEST(keep, workers_that_train_apart_go_on_from_where_they_met)
{
    static const char changes[] = "parallel.aggregate=average; parallel.average.every=4; "
                                  "parallel.average.outer.lr=0.7; checkpoint.every=never";
    together x;

    world_of("average", 1, 3, NULL, 10, changes);
    x = world_of("average", 2, 3, NULL, 0, changes);
    EXPECT_INT(9, x.found.label.step); /* an epoch ended there */
}

TT_TEST(keep, a_finished_run_leaves_no_vault)
{
    tt_vault_left *before, *after;
    int had, has;

    EXPECT_OK(tt_vault_leftovers(NULL, &before, &had));
    world_of("done", 1, 2, NULL, 0, exact);
    EXPECT_OK(tt_vault_leftovers(NULL, &after, &has));
    EXPECT_INT(had, has);
    free(before);
    free(after);
}
