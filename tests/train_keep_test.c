/* Worlds that come and go: each goes on from what the one before has left in the vault. */
#include <unistd.h>

#include "store/vault_inner.h"
#include "train_together.h"

/* The last step that counted as committed, as ranks tell the supervisor. */
static tt_vital vital;

/* One world of a run: until a step, at which it is gone without a word; 0: to its end. */
static together world_told(const char *folder, tt_train_told told, int ranks, const int *hosts,
                           int64_t until, const char *changes)
{
    together x = {
        .text = job_text,
        .changes = changes,
        .threads = 1,
        .until = until,
        .told = told,
        .opts = {.run = folder, .again = true, .keep = true, .stand_by = true, .vital = &vital}};
    tt_err err = tt_sim_run(ranks, hosts, 30, train_rank, &x);
    if (err) FAIL("%s, %d ranks: error %d: %s", changes, ranks, err, tt_message());
    return x;
}

static together world_of(const char *folder, uint32_t generation, int ranks, const int *hosts,
                         int64_t until, const char *changes)
{
    return world_told(folder, (tt_train_told){.generation = generation}, ranks, hosts, until,
                      changes);
}

/* The ledger has what all ranks told: the last step under the label of the world before. */
static tt_train_told told_after(uint32_t generation, const together *before)
{
    tt_label last = {generation - 1, before->found.label.attempt, atomic_load(&vital.kept)};
    return (tt_train_told){generation, true, {last, generation - 1}, false, "lost"};
}

/* A host is gone, with all that it had in memory. */
static void lose_host(const char *run, int host)
{
    char folder[4096];

    vault_of(run, host, folder);
    EXPECT_OK(tt_vault_remove(folder));
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

/* Writes to the head of a slot, as another version of the program may have. */
static void rewrite_slot(const char *run, int slot, size_t at, const void *bytes, size_t size)
{
    char folder[4096], path[4200];
    FILE *f;

    vault_of(run, 0, folder);
    snprintf(path, sizeof path, "%s/slot-%d", folder, slot);
    EXPECT((f = fopen(path, "r+e")) && !fseek(f, (long)at, SEEK_SET) &&
           fwrite(bytes, size, 1, f) == 1);
    EXPECT(!fclose(f));
}

TT_TEST(keep, what_another_version_has_left_is_not_passed_over_in_silence)
{
    together x;

    world_of("old", 1, 2, NULL, 5, exact);
    for (int slot = 0; slot < 2; slot++) rewrite_slot("old", slot, 7, "1", 1); /* "ttvault1" */
    x = world_of("old", 2, 2, NULL, 3, exact);
    EXPECT(x.found.disk);
    EXPECT_INT(1, count_text("old/log.txt", "slot 0 and 1 more of /dev/shm/"));
    EXPECT_INT(1, count_text("old/log.txt", "is of another version of tutti, and this is tutti"));
    /* One that has other notes, and says which it is. */
    uint32_t size = 12;
    for (int slot = 0; slot < 2; slot++)
        for (int k = 0; k < 4; k++)
            rewrite_slot("old", slot, offsetof(vault_head, note) + (size_t)k * sizeof(vault_note),
                         &size, 4);
    for (int slot = 0; slot < 2; slot++)
        rewrite_slot("old", slot, offsetof(vault_head, version), "0.0.7", 6);
    x = world_of("old", 3, 2, NULL, 5, exact);
    EXPECT(x.found.disk);
    EXPECT_INT(1, count_text("old/log.txt", "is of tutti 0.0.7, and this is tutti"));
    x = world_of("old", 4, 2, NULL, 0, "parallel.exact=true; train.optimizer={sgd: {lr: 0.1}}");
    EXPECT(x.found.disk);
    EXPECT_INT(1, count_text("old/log.txt", "is of a job with another model, optimiser"));
}

/* A process of the world before, which nobody knows to be there: it commits one more step, and is
 * gone. */
static void wake_up(const tt_world *w)
{
    char folder[4096];
    tt_vault_info *list;
    tt_vault_half what;
    tt_vault *v;
    int count;

    if (w->rank != 1) return;
    vault_of("late", 0, folder);
    EXPECT_OK(tt_vault_list(folder, &list, &count));
    EXPECT_OK(tt_vault_open(folder, 1, list[1].key, list[1].bytes, 1, &v));
    what = list[1].half[list[1].current];
    what.label.step++;
    memcpy(tt_vault_data(v, tt_vault_begin(v)), tt_vault_data(v, list[1].current), list[1].bytes);
    tt_vault_commit(v, &what);
    tt_vault_close(v);
    free(list);
}

TT_TEST(keep, a_slot_that_was_written_to_while_it_was_looked_at_is_not_taken)
{
    together x = {
        .text = job_text,
        .changes = exact,
        .threads = 1,
        .told = {.generation = 2},
        .meanwhile = wake_up,
        .opts = {.run = "late", .again = true, .keep = true, .stand_by = true, .vital = &vital}};

    world_of("late", 1, 3, NULL, 5, exact);
    EXPECT_ERR(TT_EPEER, tt_sim_run(3, NULL, 30, train_rank, &x));
    EXPECT(strstr(tt_message(), "slot 1 was written to while this world began"));
    forget_vaults("late", 1);
}

/* Who ended it may have been killed before it told anybody: between the commit and that are a few
 * instructions, and a thread that sends. */
TT_TEST(keep, the_end_of_an_epoch_is_told_again_by_the_next_world)
{
    together x = world_of("epoch", 1, 2, NULL, 9, exact);

    EXPECT_INT(1, x.epochs); /* of 9 steps */
    x = world_of("epoch", 2, 2, NULL, 11, exact);
    EXPECT_INT(9, x.found.label.step);
    EXPECT_INT(1, x.epochs); /* the first again */
    x = world_of("epoch", 3, 3, NULL, 17, exact);
    EXPECT_INT(1, x.epochs);
    x = world_of("epoch", 4, 1, NULL, 18, exact); /* the first again, and the second */
    EXPECT_INT(2, x.epochs);
    EXPECT_INT(2, x.whole);
    x = world_of("epoch", 5, 3, NULL, 0, exact);
    EXPECT_INT(2, x.epochs);
    EXPECT_INT(2, x.whole);
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
    lose_host("hosts", 2); /* the last world did not reach it */
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

/* One host after the other is lost, rank 0's first; `slack`: the last step may not count yet. */
static void expect_no_loss(const char *folder, const char *more, int slack)
{
    static const int others[] = {1, 1, 1}, back[] = {0, 1, 0, 2}, rest[] = {2, 0, 0};
    char changes[512];
    snprintf(changes, sizeof changes, "%s%s", exact, more);
    together one = run(3, NULL, 1, changes), x;

    x = world_of(folder, 1, 4, two_hosts, 5, changes);
    EXPECT_INT(5 - slack, atomic_load(&vital.kept));
    lose_host(folder, 0);
    x = world_told(folder, told_after(2, &x), 3, others, 9, changes);
    EXPECT(!x.found.lost && !x.found.disk);
    EXPECT_INT(5 - slack, x.found.label.step);
    EXPECT_INT(9, atomic_load(&vital.kept)); /* one host: there is nothing to copy */
    x = world_told(folder, told_after(3, &x), 4, back, 12, changes);
    EXPECT_INT(9, x.found.label.step);
    EXPECT_INT(12 - slack, atomic_load(&vital.kept));
    lose_host(folder, 1);
    x = world_told(folder, told_after(4, &x), 3, rest, 15, changes);
    EXPECT(!x.found.lost && !x.found.disk);
    EXPECT(x.found.label.step >= 12 - slack); /* what is lost may have been nobody's part */
    lose_host(folder, 2);
    x = world_told(folder, told_after(5, &x), 1, NULL, 0, changes);
    EXPECT(!x.found.lost && !x.found.disk);
    EXPECT(x.found.label.step >= 15 - slack);
    EXPECT_STR(one.sha, x.sha);
    EXPECT_INT(one.steps, x.steps);
}

TT_TEST(keep, a_lost_host_takes_no_committed_step_along)
{
    expect_no_loss("lost-allreduce", "", 0);
    expect_no_loss("lost-shard", "parallel.aggregate=shard", 1);
    expect_no_loss("lost-small", "parallel.aggregate=shard; parallel.bucket=4096", 1);
    expect_no_loss("lost-chief", "parallel.aggregate=chief", 1);
}

TT_TEST(keep, so_it_is_where_nothing_belongs_to_a_part)
{
    expect_no_loss("lost-sgd", "parallel.aggregate=shard; train.optimizer={sgd: {lr: 0.1}}", 1);
}

TT_TEST(keep, without_copies_a_lost_host_costs_the_steps_since_the_checkpoint)
{
    static const int other[] = {1, 1};
    static const char *const kinds[] = {"shard", "chief"};
    for (int i = 0; i < TT_COUNT(kinds); i++) {
        char changes[512], folder[32];
        snprintf(folder, sizeof folder, "single-%s", kinds[i]);
        snprintf(changes, sizeof changes,
                 "parallel.exact=true; parallel.grains=8; checkpoint.every=3; parallel.copies=1; "
                 "parallel.aggregate=%s",
                 kinds[i]);
        together one = run(3, NULL, 1, changes), x = world_of(folder, 1, 4, two_hosts, 8, changes);
        EXPECT_INT(8, atomic_load(&vital.kept));
        lose_host(folder, 0);
        x = world_told(folder, told_after(2, &x), 2, other, 0, changes);
        EXPECT(x.found.lost && x.found.disk);
        EXPECT_INT(6, x.found.label.step);
        EXPECT(x.found.label.attempt > 0);
        EXPECT_STR(one.sha, x.sha);
    }
}

/* A world that is killed has committed more than it came to tell. A checkpoint that is newer than
 * what was told is not the end of that. */
TT_TEST(keep, a_checkpoint_newer_than_what_was_told_is_no_proof_that_nothing_is_lost)
{
    static const char changes[] = "parallel.exact=true; parallel.grains=8; checkpoint.every=3";

    for (int ended = 0; ended < 2; ended++) {
        const char *folder = ended ? "all-saved" : "not-all-saved";
        together x = world_of(folder, 1, 2, NULL, 8, changes);
        tt_train_told told = told_after(2, &x);
        told.told.label.step = 5;
        told.ended = ended;
        lose_host(folder, 0);
        x = world_told(folder, told, 2, NULL, 0, changes);
        EXPECT(x.found.disk && x.found.lost == !ended);
        EXPECT_INT(6, x.found.label.step);
        EXPECT(x.found.label.attempt > told.told.label.attempt || ended);
    }
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

TT_TEST(keep, where_they_met_outlives_a_host)
{
    static const char changes[] = "parallel.aggregate=average; parallel.average.every=4; "
                                  "parallel.average.outer.lr=0.7; checkpoint.every=never";
    static const int other[] = {1, 1, 1};
    together whole = world_of("apart", 1, 3, NULL, 10, changes), x;

    whole = world_of("apart", 2, 3, NULL, 0, changes);
    x = world_of("apart-2", 1, 3, two_one, 10, changes);
    EXPECT_INT(9, atomic_load(&vital.kept));
    lose_host("apart-2", 0);
    x = world_told("apart-2", told_after(2, &x), 3, other, 0, changes);
    EXPECT(!x.found.disk && !x.found.lost);
    EXPECT_INT(9, x.found.label.step);
    EXPECT_STR(whole.sha, x.sha);
}

/* Without a word it goes on as if nothing had happened, if it is put together in the same way; else
 * as one that is resumed from a checkpoint. */
static void expect_feedback(const char *compress, const char *aggregate, const int *hosts)
{
    static int turn;
    char changes[512], saving[600], a[32], b[32];
    snprintf(changes, sizeof changes,
             "parallel.compress=%s; parallel.aggregate=%s; "
             "checkpoint.every=never",
             compress, aggregate);
    snprintf(saving, sizeof saving, "%s; checkpoint.every=5", changes);
    snprintf(a, sizeof a, "feed-%d", ++turn);
    snprintf(b, sizeof b, "saved-%d", turn);
    together one = run(4, hosts, 1, changes), x;

    world_of(a, 1, 4, hosts, 5, changes);
    x = world_of(a, 2, 4, hosts, 9, changes);
    EXPECT_INT(5, x.found.label.step);
    x = world_of(a, 3, 4, hosts, 10, changes);
    x = world_of(a, 4, 4, hosts, 0, changes);
    EXPECT_STR(one.sha, x.sha);

    run_in(b, false, 5, 4, hosts, saving);
    together resumed = {
        .text = job_text, .changes = changes, .threads = 1, .opts = {.run = b, .resume = true}};
    EXPECT_OK(tt_sim_run(3, hosts, 30, train_rank, &resumed));
    snprintf(a, sizeof a, "other-%d", turn);
    world_of(a, 1, 4, hosts, 5, changes);
    world_of(a, 2, 3, hosts, -1, changes); /* gone before it has made a step */
    x = world_of(a, 3, 3, hosts, 0, changes);
    EXPECT_INT(5, x.found.label.step);
    EXPECT_STR(resumed.sha, x.sha);
}

TT_TEST(keep, what_compression_owes_is_kept)
{
    expect_feedback("topk:0.1", "allreduce", NULL);
    expect_feedback("int8", "shard", NULL);
    expect_feedback("1bit", "allreduce", two_hosts);
    expect_feedback("powersgd:2", "chief", NULL);
    expect_feedback("powersgd:2", "shard", two_hosts);
}

TT_TEST(keep, a_finished_run_leaves_no_vault)
{
    tt_vault_left *left;
    int count, of_it = 0;
    tt_bytes id;

    world_of("done", 1, 4, two_hosts, 5, exact);
    world_of("done", 2, 4, two_hosts, 0, exact);
    EXPECT_OK(tt_file_read("done/id", 64, &id));
    EXPECT_OK(tt_vault_leftovers("/var/tmp", &left, &count));
    for (int i = 0; i < count; i++) of_it += !strncmp(left[i].run, (const char *)id.data, 32);
    EXPECT_INT(0, of_it);
    tt_file_release(&id);
    free(left);
}
