/* Sparse tables in the vault: worlds that come and go, of any size, end with the bits of one that
 * was never disturbed; and a table that is not what it was costs no more than its slot. */
#include <sys/stat.h>
#include <unistd.h>

#include "store/table.h"
#include "store/vault.h"
#include "train_together.h"

static const char kept_text[] =
    "name: c\n"
    "model:\n"
    "  input: {features: [6], ids: 8}\n"
    "  layers:\n"
    "    - dense: {name: bottom, out: 8}\n"
    "    - relu: {name: numbers}\n"
    "    - embeddings: {name: e, rows: [500, 20, 9, 1], dim: 8, std: 0.1}\n"
    "    - embedding_bag: {name: bag, first: 4, rows: 900, dim: 8, mode: mean, std: 0.1}\n"
    "    - interaction: {from: [numbers, e, bag]}\n"
    "    - dense: {name: top, out: 1}\n"
    "  loss: bce\n"
    "data:\n"
    "  train: {format: synth, kind: clicks, count: 3000}\n"
    "  val: {count: 300}\n"
    "train: {steps: 20, batch: 60, optimizer: {adam: {lr: 0.02}}, tables: {adagrad: {lr: 0.05}}}\n"
    "parallel: {exact: true, grains: 8}\n"
    "checkpoint: {every: never}\n";

static tt_vital vital;

static together alone_in(const char *changes)
{
    together x = {.text = kept_text, .changes = changes, .threads = 1, .opts = {.no_files = true}};

    EXPECT_OK(tt_sim_run(1, NULL, 30, train_rank, &x));
    return x;
}

/* One world of a run: until a step, at which it is gone without a word; 0: to its end. */
static together world_of(const char *folder, uint32_t generation, int ranks, const int *hosts,
                         int64_t until, const char *changes)
{
    together x = {
        .text = kept_text,
        .changes = changes,
        .threads = 1 + ranks % 2,
        .until = until,
        .told = {.generation = generation},
        .opts = {.run = folder, .again = true, .keep = true, .stand_by = true, .vital = &vital}};
    tt_err err = tt_sim_run(ranks, hosts, 30, train_rank, &x);

    if (err) FAIL("%s, %d ranks: error %d: %s", changes, ranks, err, tt_message());
    return x;
}

static void expect_same(const char *folder, const char *changes)
{
    together one = alone_in(changes), x;

    x = world_of(folder, 1, 3, NULL, 4, changes);
    EXPECT(x.found.disk);
    x = world_of(folder, 2, 3, NULL, 7, changes);
    EXPECT(!x.found.disk);
    EXPECT_INT(4, x.found.label.step);
    x = world_of(folder, 3, 2, NULL, 10, changes); /* fewer */
    EXPECT_INT(7, x.found.label.step);
    x = world_of(folder, 4, 5, NULL, 13, changes); /* more */
    EXPECT_INT(10, x.found.label.step);
    x = world_of(folder, 5, 1, NULL, 16, changes);
    EXPECT_INT(13, x.found.label.step);
    x = world_of(folder, 6, 4, NULL, 0, changes);
    EXPECT_INT(16, x.found.label.step);
    EXPECT_INT(one.steps, x.steps);
    EXPECT_STR(one.sha, x.sha);
    EXPECT_NEAR(one.val.loss, x.val.loss, 0);
}

TT_TEST(table_keep, worlds_of_any_size_go_on_with_the_rows_that_were_there)
{
    expect_same("run", "");
    expect_same("shard", "parallel.aggregate=shard");
    expect_same("chief", "parallel.aggregate=chief; train.tables={rowwise_adagrad: {lr: 0.05}}");
    expect_same("half", "train.precision=bf16");
}

/* A batch that does not go up in the seats is cut in parts of other sizes by every world. */
TT_TEST(table_keep, worlds_of_any_size_take_up_what_is_not_exact_either)
{
    static const char odd[] = "parallel.exact=false; parallel.grains=auto; train.batch=61";
    static const int ranks[] = {2, 3, 1, 5, 4};
    together x;

    tt_log_quiet(true);
    for (int i = 0; i < TT_COUNT(ranks); i++) {
        bool last = i + 1 == TT_COUNT(ranks);
        x = world_of("run", (uint32_t)i + 1, ranks[i], NULL, last ? 0 : 4 * i + 4, odd);
        if (i) EXPECT(!x.found.disk);
        if (i) EXPECT_INT(4 * i, x.found.label.step);
    }
    EXPECT_INT(20, x.steps);
}

/* Hosts that have rows of their own, and then one that has them all: what a step may log at most is
 * the same for both, where the tables are larger than that. */
TT_TEST(table_keep, one_alone_takes_up_what_hosts_with_rows_of_their_own_have_left)
{
    static const char local[] =
        "data.shards=local; parallel.exact=false; parallel.grains=auto; "
        "model.layers.2.embeddings.rows=[50000, 20, 9, 1]; model.layers.3.embedding_bag.rows=90000";
    together x;

    tt_log_quiet(true);
    world_of("run", 1, 2, NULL, 5, local);
    x = world_of("run", 2, 1, NULL, 9, local);
    EXPECT(!x.found.disk);
    EXPECT_INT(5, x.found.label.step);
    x = world_of("run", 3, 2, NULL, 0, local);
    EXPECT(!x.found.disk);
    EXPECT_INT(9, x.found.label.step);
}

/* A rank that has no place for its table says so, and nobody waits for it. */
TT_TEST(table_keep, who_cannot_open_a_table_is_heard_by_all)
{
    together x = {
        .text = kept_text,
        .changes = "",
        .threads = 1,
        .told = {.generation = 2},
        .opts = {.run = "run", .again = true, .keep = true, .stand_by = true, .vital = &vital}};
    char folder[4096], path[4200];
    double begun;

    tt_log_quiet(true);
    world_of("run", 1, 2, NULL, 5, "");
    vault_of("run", 0, folder);
    tt_vault_table(folder, 1, 1, path);
    EXPECT(!remove(path) && !mkdir(path, 0700));
    begun = tt_clock_s();
    tt_err err = tt_sim_run(2, NULL, 30, train_rank, &x);
    EXPECT(err == TT_EIO || err == TT_EPEER); /* of that rank, or of the other */
    EXPECT(tt_clock_s() - begun < 10);
    EXPECT(!rmdir(path));
    x = world_of("run", 3, 2, NULL, 0, "");
    EXPECT(!x.found.disk);
    EXPECT_INT(5, x.found.label.step);
    EXPECT_STR(alone_in("").sha, x.sha);
}

/* Rows that nobody has named follow from the seed: with another one they are of something else. */
TT_TEST(table_keep, another_seed_does_not_take_up_the_tables)
{
    char folder[4096];
    together x;

    tt_log_quiet(true);
    world_of("run", 1, 2, NULL, 5, "");
    x = world_of("run", 2, 2, NULL, 9, "train.seed=3");
    EXPECT(x.found.disk);
    vault_of("run", 0, folder);
    EXPECT_OK(tt_vault_remove(folder));
}

/* A host that comes has none of it; one that is gone takes its own along. */
TT_TEST(table_keep, hosts_come_and_go)
{
    char folder[4096];
    together one = alone_in(""), x;

    world_of("run", 1, 4, two_hosts, 5, "");
    vault_of("run", 0, folder);
    EXPECT_OK(tt_vault_remove(folder));
    x = world_of("run", 2, 5, two_hosts, 9, "");
    EXPECT(!x.found.disk);
    EXPECT_INT(5, x.found.label.step);
    vault_of("run", 1, folder);
    EXPECT_OK(tt_vault_remove(folder));
    x = world_of("run", 3, 3, apart, 0, "");
    EXPECT_INT(9, x.found.label.step);
    EXPECT_STR(one.sha, x.sha);
}

/* ---- what is not what it was ---- */

static void spoil(const char *run, int slot, const char *how)
{
    char folder[4096], path[4200];
    FILE *f;

    vault_of(run, 0, folder);
    tt_vault_table(folder, slot, 1, path);
    if (!strcmp(how, "gone")) {
        EXPECT(!remove(path));
        return;
    }
    EXPECT((f = fopen(path, "r+e")) != NULL);
    if (!strcmp(how, "bit")) { /* of the first record that is there */
        uint64_t bits;
        int row = 0;
        uint8_t byte;
        EXPECT(!fseek(f, 4096, SEEK_SET) && fread(&bits, 8, 1, f) == 1 && bits);
        while (!(bits >> row & 1)) row++;
        EXPECT(!fseek(f, 8192 + row * 64 + 5, SEEK_SET) && fread(&byte, 1, 1, f) == 1);
        byte ^= 4;
        EXPECT(!fseek(f, 8192 + row * 64 + 5, SEEK_SET) && fwrite(&byte, 1, 1, f) == 1);
    } else { /* nothing is known of it */
        EXPECT(!fseek(f, 0, SEEK_SET) && fwrite("whatever", 8, 1, f) == 1);
    }
    EXPECT(!fclose(f));
}

TT_TEST(table_keep, a_table_that_is_spoiled_is_left_out_and_made_anew)
{
    static const char *const how[] = {"gone", "bit", "head"};
    together one = alone_in(""), x;

    tt_log_quiet(true);
    for (int i = 0; i < TT_COUNT(how); i++) {
        world_of(how[i], 1, 3, NULL, 6, "");
        spoil(how[i], 1, how[i]);
        x = world_of(how[i], 2, 3, NULL, 0, "");
        EXPECT(!x.found.disk);
        EXPECT_INT(6, x.found.label.step);
        EXPECT_STR(one.sha, x.sha);
    }
    /* Of all of them: then there is nothing but the start. */
    world_of("all", 1, 2, NULL, 6, "");
    for (int slot = 0; slot < 2; slot++) spoil("all", slot, "gone");
    x = world_of("all", 2, 2, NULL, 0, "");
    EXPECT(x.found.disk);
    EXPECT_STR(one.sha, x.sha);
}

/* Some threads have changed their rows of the step, when another finds no room for its own. */
TT_TEST(table_keep, a_step_that_finds_no_room_is_taken_back)
{
    together one = alone_in(""),
             x = {
                 .text = kept_text,
                 .changes = "parallel.timeout=1",
                 .threads = 2,
                 .told = {.generation = 1},
                 .opts = {
                     .run = "run", .again = true, .keep = true, .stand_by = true, .vital = &vital}};

    tt_log_quiet(true);
    EXPECT_OK(tt_failpoint_set("table.reserve=fail@4", NULL));
    tt_err err = tt_sim_run(2, NULL, 30, train_rank, &x);
    EXPECT_OK(tt_failpoint_set(NULL, NULL));
    EXPECT(err == TT_ENOMEM || err == TT_EPEER); /* of who has no room, or of the other */
    x = world_of("run", 2, 3, NULL, 0, "");
    EXPECT(!x.found.disk);
    EXPECT_STR(one.sha, x.sha);
}

/* ---- going back ---- */

TT_TEST(table_keep, a_run_that_goes_back_to_its_checkpoint_has_its_rows)
{
    static const char back[] = "train.on_nan=rollback; checkpoint.every=4; parallel.balance=off";
    together x;

    tt_log_quiet(true);
    EXPECT_OK(tt_failpoint_set("step.nan=fail@40", NULL)); /* in step 6 of 8 grains each */
    x = world_of("back", 1, 1, NULL, 7, back);
    EXPECT_OK(tt_failpoint_set(NULL, NULL));
    EXPECT_INT(1, count_text("back/log.txt", "goes back to step 4"));
    x = world_of("back", 2, 3, NULL, 0, back);
    EXPECT(!x.found.disk);
    EXPECT_INT(7, x.found.label.step);
    EXPECT_INT(20, x.steps); /* the ranks have compared what they have */
}
