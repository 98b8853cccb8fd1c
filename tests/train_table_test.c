/* Sparse tables in training: as rows that are parameters learn; the same bits for any number of
 * workers and threads; and what a checkpoint has of them. */
#include <stdlib.h>
#include <sys/resource.h>

#include "train_together.h"

/* Small tables, so that rows are named by several samples, in grains and across them. */
static const char table_text[] =
    "name: c\n"
    "model:\n"
    "  input: {features: [6], ids: 8}\n"
    "  layers:\n"
    "    - dense: {name: bottom, out: 8}\n"
    "    - relu: {name: numbers}\n"
    "    - embeddings: {name: e, rows: [50, 20, 9, 1], dim: 8, std: 0.1}\n"
    "    - embedding_bag: {name: bag, first: 4, rows: 60, dim: 8, mode: mean, std: 0.1}\n"
    "    - interaction: {from: [numbers, e, bag]}\n"
    "    - dense: {name: top, out: 1}\n"
    "  loss: bce\n"
    "data:\n"
    "  train: {format: synth, kind: clicks, count: 3000}\n"
    "  val: {count: 500}\n"
    "train: {steps: 40, batch: 60, optimizer: {adagrad: {lr: 0.05}}}\n"
    "checkpoint: {every: never}\n";

#define DENSE "model.layers.2.embeddings.sparse=false; model.layers.3.embedding_bag.sparse=false; "

static together run_table(int ranks, const int *hosts, int threads, const char *changes)
{
    together x = {
        .text = table_text, .changes = changes, .threads = threads, .opts = {.no_files = true}};
    tt_err err = tt_sim_run(ranks, hosts, 30, train_rank, &x);

    if (err) FAIL("%s, %d ranks: error %d: %s", changes, ranks, err, tt_message());
    return x;
}

static int tables_of(const trained *x)
{
    int count;

    tt_model_tables(tt_train_model(x->t), &count);
    return count;
}

/* ---- as rows that are parameters ---- */

TT_TEST(table, sparse_rows_learn_as_dense_ones_do)
{
    static const char *const rules[] = {"{sgd: {lr: 0.1}}", "{adagrad: {lr: 0.05, initial: 0.1}}"};

    for (int i = 0; i < TT_COUNT(rules); i++)
        for (int clip = 0; clip < 2; clip++) {
            char sparse[256], dense[512];
            snprintf(sparse, sizeof sparse, "train.optimizer=%s%s", rules[i],
                     clip ? "; train.clip={norm: 0.02, value: 0.005}" : "");
            snprintf(dense, sizeof dense, DENSE "%s", sparse);
            together a = run_table(1, NULL, 2, sparse), b = run_table(1, NULL, 2, dense);
            EXPECT_INT(40, a.steps);
            for (int k = 0; k < a.steps; k++)
                if (!(fabs(a.loss[k] - b.loss[k]) <= 2e-6 * b.loss[k]))
                    FAIL("%s: step %d: loss %.9g, dense %.9g", sparse, k + 1, a.loss[k], b.loss[k]);
            EXPECT_NEAR(a.val.auc, b.val.auc, 1e-4);
        }
}

/* Master rows are float32; what comes out of them is rounded, as that of parameters is. */
TT_TEST(table, in_bf16_too)
{
    static const char *const rules[] = {"{sgd: {lr: 0.1}}", "{adagrad: {lr: 0.05}}"};

    for (int i = 0; i < TT_COUNT(rules); i++) {
        char sparse[256], dense[512];
        snprintf(sparse, sizeof sparse, "train.precision=bf16; train.optimizer=%s", rules[i]);
        snprintf(dense, sizeof dense, DENSE "%s", sparse);
        together a = run_table(1, NULL, 2, sparse), b = run_table(1, NULL, 2, dense),
                 wide = run_table(1, NULL, 2, strstr(sparse, "train.optimizer"));
        EXPECT(strcmp(a.sha, wide.sha) != 0);
        for (int k = 0; k < a.steps; k++) {
            /* Where a last bit of a weight differs, what is made of it may round elsewhere. */
            if (!(fabs(a.loss[k] - b.loss[k]) <= 1e-3 * b.loss[k]))
                FAIL("%s: step %d: loss %.9g, dense %.9g", sparse, k + 1, a.loss[k], b.loss[k]);
            EXPECT_NEAR(wide.loss[k], a.loss[k], 0.01);
        }
        EXPECT_NEAR(a.val.auc, b.val.auc, 0.01);
    }
}

TT_TEST(table, every_rule_learns)
{
    static const char *const rules[] = {
        "sgd: {lr: 0.3, momentum: 0.9}", "nesterov: {lr: 0.3}", "adagrad: {lr: 0.05}",
        "rowwise_adagrad: {lr: 0.05}",   "adam: {lr: 0.01}",    "adamw: {lr: 0.01}"};

    for (int i = 0; i < TT_COUNT(rules); i++) {
        char changes[256];
        snprintf(changes, sizeof changes,
                 "train.steps=60; train.optimizer={lamb: {lr: 0.01}}; train.tables={%s}", rules[i]);
        together x = run_table(1, NULL, 1, changes);
        if (!(x.val.auc > 0.55)) FAIL("%s: auc %.4f", rules[i], x.val.auc);
    }
}

/* ---- the same bits ---- */

static void expect_exact(const char *changes)
{
    static const int sizes[] = {2, 3, 5};
    char exact[512];

    snprintf(exact, sizeof exact, "parallel.exact=true; parallel.grains=8; train.steps=10; %s",
             changes);
    together one = run_table(1, NULL, 1, exact);
    EXPECT(one.val.logloss > 0);
    EXPECT_STR(one.sha, run_table(1, NULL, 2, exact).sha);
    EXPECT_STR(one.sha, run_table(1, NULL, 3, exact).sha);
    for (int i = 0; i < TT_COUNT(sizes); i++) {
        EXPECT_STR(one.sha, run_table(sizes[i], NULL, 1 + i % 2, exact).sha);
        together mixed = run_table(sizes[i], two_hosts, 1 + i % 2, exact);
        EXPECT_STR(one.sha, mixed.sha);
        EXPECT(one.val.loss == mixed.val.loss && one.val.auc == mixed.val.auc);
    }
    EXPECT_STR(one.sha, run_table(5, apart, 1, exact).sha);
}

TT_TEST(table, exact_is_exact_for_any_number_of_workers_and_threads)
{
    expect_exact("");
}
TT_TEST(table, exact_is_exact_with_shard_and_clipping)
{
    expect_exact("parallel.aggregate=shard; train.clip={norm: 0.01}; train.batch=23");
}
TT_TEST(table, exact_is_exact_with_chief_and_adam)
{
    expect_exact("parallel.aggregate=chief; train.optimizer={adam: {lr: 0.01}}");
}
TT_TEST(table, exact_is_exact_with_accumulation_and_one_number_a_row)
{
    expect_exact("train.accumulate=2; train.tables={rowwise_adagrad: {lr: 0.02}}");
}
TT_TEST(table, exact_is_exact_whoever_has_which_grain)
{
    expect_exact("parallel.balance=random; train.optimizer={momentum: {lr: 0.1, dampening: 0.2}}");
}

TT_TEST(table, exact_is_exact_in_bf16)
{
    expect_exact("train.precision=bf16; train.clip={norm: 0.05}; "
                 "train.tables={rowwise_adagrad: {lr: 0.02}}");
}

/* Nobody says in how many grains: it is measured, with tables. */
TT_TEST(table, grains_are_chosen_in_both_precisions)
{
    EXPECT_INT(40, run_table(1, NULL, 1, "parallel.exact=true").steps);
    EXPECT_INT(40, run_table(1, NULL, 1, "parallel.exact=true; train.precision=bf16").steps);
}

TT_TEST(table, spares_have_the_tables_too)
{
    together one = run_table(1, NULL, 1, "parallel.exact=true; parallel.grains=4"),
             x = {.text = table_text,
                  .changes = "parallel.exact=true; parallel.grains=4",
                  .threads = 1,
                  .opts = {.no_files = true, .workers = 2}};

    EXPECT_OK(tt_sim_run(3, two_one, 30, train_rank, &x)); /* they are compared at the end */
    EXPECT_STR(one.sha, x.sha);
}

TT_TEST(table, hosts_with_rows_of_their_own_and_compressed_gradients_have_tables)
{
    static const char *const ways[] = {"data.shards=local", "parallel.compress=bf16",
                                       "data.shards=local; parallel.exact=true; parallel.grains=6"};

    for (int i = 0; i < TT_COUNT(ways); i++) {
        together x = run_table(3, two_one, 2, ways[i]); /* they are compared at the end */
        EXPECT_INT(40, x.steps);
        EXPECT(x.loss[39] < x.loss[0]);
    }
}

TT_TEST(table, fast_sums_and_accumulation_come_to_the_same_within_rounding)
{
    together one = run_table(1, NULL, 1, ""), more = run_table(3, two_one, 2, ""),
             parts = run_table(2, NULL, 1, "train.accumulate=3");

    for (int k = 0; k < one.steps; k++) {
        EXPECT_NEAR(one.loss[k], more.loss[k], 1e-5);
        EXPECT_NEAR(one.loss[k], parts.loss[k], 1e-5);
    }
}

/* ---- when rows are parameters ---- */

static int tables_with(tt_train_opts o, const char *changes)
{
    trained x;
    int count;

    o.no_files = true;
    EXPECT_OK(open_job(&x, o, table_text, changes));
    count = tables_of(&x);
    go_to(&x, 2);
    close_job(&x);
    return count;
}

TT_TEST(table, what_takes_whole_gradients_makes_rows_parameters)
{
    tt_train_opts o = {.threads = 1};

    tt_log_quiet(true);
    EXPECT_INT(2, tables_with(o, ""));
    EXPECT_INT(2, tables_with(o, "train.precision=bf16"));
    EXPECT_INT(1, tables_with(o, "model.layers.2.embeddings.sparse=false"));
    EXPECT_INT(0, tables_with(o, DENSE "train.seed=1"));
    EXPECT_INT(0, tables_with(o, "train.optimizer={lamb: {lr: 0.01}}"));
    EXPECT_INT(2, tables_with(o, "train.optimizer={lamb: {lr: 0.01}}; train.tables=adagrad"));
    EXPECT_INT(0, tables_with(o, "parallel.aggregate=average"));
    EXPECT_INT(0, tables_with(o, "parallel.exact=true; parallel.grains=4; parallel.backup=1"));
    EXPECT_INT(0, tables_with(o, "parallel.exact=true; parallel.grains=4; parallel.audit=0.5"));
}

TT_TEST(table, a_rule_for_rows_that_are_parameters_is_told_of)
{
    trained x;

    tt_log_quiet(true);
    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "r", .threads = 1}, table_text,
                       "parallel.exact=true; parallel.grains=4; parallel.backup=1; "
                       "train.tables={sgd: {lr: 0.1}}"));
    close_job(&x);
    EXPECT_INT(1, count_text("r/log.txt", "parallel.backup takes whole gradients"));
    EXPECT_INT(1, count_text("r/log.txt", "train.optimizer is theirs, too"));
}

/* ---- rows that do not change ---- */

/* The weights of a parameter, as eval has them. */
static void weights_of(const trained *x, const char *name, float *out, int64_t n)
{
    tt_use *u;
    int count;

    EXPECT_OK(tt_use_open(&(tt_use_opts){.job = x->tree, .trained = x->t}, &u));
    const tt_param *p = tt_model_params(tt_use_model(u), &count);
    for (int i = 0; i < count; i++)
        if (!strcmp(p[i].name, name)) {
            EXPECT_INT(n, p[i].n);
            memcpy(out, tt_use_params(u) + p[i].at, (size_t)n * sizeof *out);
        }
    tt_use_close(u);
}

enum { OF_E = 80 * 8, OF_BAG = 60 * 8 };

TT_TEST(table, frozen_rows_stay_and_groups_change_the_rate)
{
    static const char *const frozen[] = {"model.layers.2.embeddings.freeze=true",
                                         "model.freeze=[e]",
                                         "train.groups=[{match: e.weight, freeze: true}]"};
    float begin[OF_E], e[OF_E], half[OF_E], bag[OF_BAG], was[OF_BAG];
    tt_train_opts o = {.no_files = true, .threads = 1};
    trained x;

    EXPECT_OK(open_job(&x, o, table_text, ""));
    weights_of(&x, "e.weight", begin, OF_E);
    weights_of(&x, "bag.weight", was, OF_BAG);
    close_job(&x);
    for (int i = 0; i < TT_COUNT(frozen); i++) {
        EXPECT_OK(open_job(&x, o, table_text, frozen[i]));
        go_to(&x, 3);
        weights_of(&x, "e.weight", e, OF_E);
        weights_of(&x, "bag.weight", bag, OF_BAG);
        EXPECT(!memcmp(e, begin, sizeof e));
        EXPECT(memcmp(bag, was, sizeof bag));
        close_job(&x);
    }
    EXPECT_OK(open_job(&x, o, table_text, "train.optimizer={sgd: {lr: 0.5}}"));
    go_to(&x, 1);
    weights_of(&x, "e.weight", e, OF_E);
    close_job(&x);
    EXPECT_OK(open_job(&x, o, table_text,
                       "train.optimizer={sgd: {lr: 0.5}}; train.groups=[{match: e.*, lr: 0.5}]"));
    go_to(&x, 1);
    weights_of(&x, "e.weight", half, OF_E);
    close_job(&x);
    for (int i = 0; i < OF_E; i++) EXPECT_NEAR((e[i] - begin[i]) / 2, half[i] - begin[i], 1e-7);
}

TT_TEST(table, a_step_whose_numbers_are_none_changes_no_row)
{
    tt_train_opts o = {.no_files = true, .threads = 2};
    trained x;
    char before[65];

    tt_log_quiet(true);
    EXPECT_OK(open_job(&x, o, table_text, "train.on_nan=skip; train.clip={norm: 1}"));
    go_to(&x, 5);
    memcpy(before, x.sha, sizeof before);
    EXPECT_OK(tt_failpoint_set("step.nan=fail@1", NULL));
    go_to(&x, 6);
    EXPECT_OK(tt_failpoint_set(NULL, NULL));
    EXPECT(x.p.numbers && strstr(x.p.numbers, "skipped"));
    EXPECT_STR(before, x.sha);
    go_to(&x, 7);
    EXPECT(strcmp(before, x.sha));
    close_job(&x);
}

/* ---- ids of -1, and rows that are named twice ---- */

static void write_clicks(const char *path)
{
    FILE *f = fopen(path, "w");

    EXPECT(f != NULL);
    fprintf(f, "a,b,c,y\n");
    for (int i = 0; i < 400; i++) {
        int a = i * 7 % 11, b = i * 5 % 11, y = a % 2 ^ (i % 9 == 0);
        if (i % 3)
            fprintf(f, "w%d,w%d,w%d,%d\n", a, i % 4 ? b : a, a, y);
        else
            fprintf(f, "w%d,%s,,%d\n", a, i % 2 ? "" : "w1", y);
    }
    fclose(f);
}

TT_TEST(table, ids_that_are_missing_name_no_row)
{
    static const char text[] =
        "name: m\n"
        "model:\n"
        "  input: {ids: 3}\n"
        "  layers:\n"
        "    - embeddings: {name: e, rows: 11, dim: 4, std: 0.1}\n"
        "    - sum: {name: s}\n"
        "    - embedding_bag: {name: bag, rows: 11, dim: 4, mode: mean, std: 0.1}\n"
        "    - concat: {from: [s, bag]}\n"
        "    - dense: {out: 1}\n"
        "  loss: bce\n"
        "data:\n"
        "  dir: .\n"
        "  train: {format: csv, file: t.csv, columns: [{name: a, type: id, hash: 11}, {name: b, "
        "type: id, hash: 11, missing: none}, {name: c, type: id, hash: 11, missing: none}, {name: "
        "y, type: label}]}\n"
        "train: {steps: 40, batch: 50, threads: 1, optimizer: {sgd: {lr: 0.5}}}\n"
        "parallel: {exact: true, grains: 4}\n"
        "checkpoint: {every: never}\n";
    together a = {.text = text, .changes = "", .threads = 1, .opts = {.no_files = true}}, b = a,
             c = a;

    write_clicks("t.csv");
    b.changes = "model.layers.0.embeddings.sparse=false; model.layers.2.embedding_bag.sparse=false";
    EXPECT_OK(tt_sim_run(1, NULL, 30, train_rank, &a));
    EXPECT_OK(tt_sim_run(1, NULL, 30, train_rank, &b));
    EXPECT_OK(tt_sim_run(3, two_one, 30, train_rank, &c));
    EXPECT_STR(a.sha, c.sha);
    EXPECT(a.loss[39] < a.loss[0] - 0.05);
    for (int k = 0; k < 40; k++) EXPECT_NEAR(b.loss[k], a.loss[k], 2e-6);
}

/* ---- checkpoints ---- */

static void train_in(const char *folder, bool resume, int64_t until, int ranks, const int *hosts,
                     const char *changes)
{
    together x = {.text = table_text,
                  .changes = changes,
                  .threads = 1,
                  .until = until,
                  .opts = {.run = folder, .resume = resume}};
    tt_err err = tt_sim_run(ranks, hosts, 30, train_rank, &x);

    if (err) FAIL("%s, %d ranks: error %d: %s", changes, ranks, err, tt_message());
}

static void expect_sha(const char *folder, const char *sha)
{
    char path[256];

    snprintf(path, sizeof path, "%s/summary.json", folder);
    json_t *s = json_load_file(path, 0, NULL);
    EXPECT_STR(sha, json_string_value(json_object_get(s, "weights_sha256")));
    json_decref(s);
}

TT_TEST(table, a_run_goes_on_bit_for_bit_with_any_number_of_workers)
{
    static const char *const rules[] = {"adagrad: {lr: 0.05}", "adam: {lr: 0.01}",
                                        "rowwise_adagrad: {lr: 0.05}", "sgd: {lr: 0.3}"};

    for (int i = 0; i < TT_COUNT(rules); i++) {
        char changes[512], folder[16];
        snprintf(changes, sizeof changes,
                 "parallel.exact=true; parallel.grains=6; train.steps=18; checkpoint.every=6; "
                 "train.tables={%s}; parallel.aggregate=%s",
                 rules[i], i % 2 ? "shard" : "allreduce");
        snprintf(folder, sizeof folder, "r%d", i);
        together whole = run_table(1, NULL, 2, changes);
        train_in(folder, false, 8, 1, NULL, changes);
        train_in(folder, true, 14, 3, two_one, changes);
        train_in(folder, true, 0, 2, NULL, changes);
        expect_sha(folder, whole.sha);
    }
}

/* Who has no room for the first table still hears the second: the others would wait for it. */
TT_TEST(table, a_worker_without_room_says_so_to_all)
{
    together x = {.text = table_text,
                  .changes = "train.steps=8; checkpoint.every=4; parallel.timeout=3",
                  .threads = 1,
                  .opts = {.run = "r", .resume = true}};

    tt_log_quiet(true);
    train_in("r", false, 5, 1, NULL, x.changes);
    EXPECT_OK(tt_failpoint_set("table.reserve=fail@3", NULL)); /* rank 0 has had a piece for each */
    EXPECT_INT(TT_ENOMEM, tt_sim_run(3, NULL, 30, train_rank, &x));
    EXPECT_OK(tt_failpoint_set(NULL, NULL));
    EXPECT_MESSAGE("no memory for more rows");
    EXPECT_MESSAGE("e.weight");
    train_in("r", true, 0, 3, NULL, x.changes);
}

TT_TEST(table, a_run_goes_on_in_the_other_precision)
{
    const char *both = "train.steps=12; checkpoint.every=6; train.precision=";
    char changes[128];

    tt_log_quiet(true);
    for (int i = 0; i < 2; i++) {
        snprintf(changes, sizeof changes, "%s%s", both, i ? "bf16" : "float32");
        train_in(i ? "a" : "b", false, 7, 1, NULL, changes);
        snprintf(changes, sizeof changes, "%s%s", both, i ? "float32" : "bf16");
        train_in(i ? "a" : "b", true, 0, 2, NULL, changes);
    }
}

/* Of a table of a thousand rows those that were named are on disk. */
TT_TEST(table, a_checkpoint_has_the_rows_that_are_there)
{
    const char *few =
        "model.layers.3.embedding_bag.rows=100000; train.steps=2; checkpoint.every=2; "
        "data.train.count=120";
    trained x;
    tt_ckpt *c;

    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "r", .threads = 1}, table_text, few));
    go_to(&x, INT64_MAX);
    EXPECT_OK(tt_train_finish(x.t, "done"));
    close_job(&x);
    EXPECT_OK(tt_ckpt_open("r/checkpoints", -1, true, &c));
    const tt_entry *rows = tt_ckpt_find(c, "bag.weight.rows"), *w = tt_ckpt_find(c, "bag.weight"),
                   *sum = tt_ckpt_find(c, "sum.bag.weight");
    EXPECT(rows && w && sum && rows->type == TT_I64);
    EXPECT(rows->shape[0] > 100 && rows->shape[0] <= 480);
    EXPECT(w->shape[0] == rows->shape[0] && w->shape[1] == 8 && sum->shape[0] == w->shape[0]);
    const int64_t *at = rows->data;
    for (int64_t i = 1; i < rows->shape[0]; i++) EXPECT(at[i] > at[i - 1]);
    tt_ckpt_close(c);
}

/* Both ways: rows that are parameters in the one are a table in the other. */
TT_TEST(table, dense_and_sparse_jobs_load_what_the_other_has_saved)
{
    const char *some =
        "train.steps=20; checkpoint.every=10; model.layers.3.embedding_bag.rows=3000";
    char dense[512];
    snprintf(dense, sizeof dense, DENSE "%s", some);
    together a = run_table(1, NULL, 1, some);
    trained x;

    tt_log_quiet(true);
    for (int way = 0; way < 2; way++) {
        const char *folder = way ? "ds" : "sd";
        EXPECT_OK(open_job(&x, (tt_train_opts){.run = folder, .threads = 1}, table_text,
                           way ? dense : some));
        go_to(&x, 11);
        close_job(&x);
        EXPECT_OK(open_job(&x, (tt_train_opts){.run = folder, .threads = 1, .resume = true},
                           table_text, way ? some : dense));
        EXPECT_INT(way ? 2 : 0, tables_of(&x));
        EXPECT_INT(10, tt_train_first_step(x.t));
        for (int k = 10; k < 20; k++) {
            go_to(&x, k + 1);
            EXPECT_NEAR(a.loss[k], x.p.loss, 2e-6);
        }
        close_job(&x);
    }
    /* One number for a row does not tell those of its weights. */
    EXPECT_ERR(TT_ECKPT,
               open_job(&x, (tt_train_opts){.run = "ds", .threads = 1, .resume = true}, table_text,
                        "train.steps=30; train.tables=rowwise_adagrad; "
                        "model.layers.3.embedding_bag.rows=3000"));
    EXPECT_MESSAGE("has another shape in the checkpoint");
    tt_tree_close(x.tree);
}

/* A frozen parameter has no state of the optimiser on disk, and a frozen table needs none. */
TT_TEST(table, frozen_rows_are_loaded_both_ways)
{
    const char *some = "train.steps=8; checkpoint.every=4; model.freeze=[e]";
    char dense[512];
    float e[OF_E], again[OF_E];
    trained x;

    snprintf(dense, sizeof dense, DENSE "%s", some);
    tt_log_quiet(true);
    for (int way = 0; way < 2; way++) {
        tt_train_opts o = {.run = way ? "ds" : "sd", .threads = 1};
        EXPECT_OK(open_job(&x, o, table_text, way ? dense : some));
        go_to(&x, 5);
        weights_of(&x, "e.weight", e, OF_E);
        close_job(&x);
        o.resume = true;
        EXPECT_OK(open_job(&x, o, table_text, way ? some : dense));
        EXPECT_INT(4, tt_train_first_step(x.t));
        go_to(&x, 8);
        weights_of(&x, "e.weight", again, OF_E);
        EXPECT(!memcmp(e, again, sizeof e));
        close_job(&x);
    }
}

/* A copy of the file, in which a number of one tensor is none. */
static void spoil_table(const char *from, const char *name, const char *to)
{
    tt_entry e[16];
    tt_tensors *file;
    float *bad = NULL;
    int n = 0;

    EXPECT_OK(tt_tensors_open(from, &file));
    EXPECT(tt_tensors_count(file) <= TT_COUNT(e));
    for (; n < tt_tensors_count(file); n++) {
        e[n] = *tt_tensors_at(file, n);
        if (strcmp(e[n].name, name)) continue;
        EXPECT((bad = malloc((size_t)e[n].bytes)));
        memcpy(bad, e[n].data, (size_t)e[n].bytes);
        bad[7] = NAN;
        e[n].data = bad;
    }
    EXPECT(bad);
    EXPECT_OK(tt_tensors_write(to, e, n, NULL, NULL));
    tt_tensors_close(file);
    free(bad);
}

TT_TEST(table, weights_to_start_from_have_rows)
{
    const char *some = "train.steps=6; checkpoint.every=6";
    char dense[512];
    snprintf(dense, sizeof dense, DENSE "%s", some);
    float e[OF_E], again[OF_E];
    trained x;
    tt_use *u;
    tt_metrics eval;

    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "a", .threads = 1}, table_text, some));
    go_to(&x, INT64_MAX);
    EXPECT_OK(tt_train_finish(x.t, "done"));
    weights_of(&x, "e.weight", e, OF_E);
    EXPECT_OK(tt_use_open(&(tt_use_opts){.job = x.tree, .weights = "a"}, &u));
    EXPECT_OK(tt_use_eval(u, TT_VAL, &eval));
    EXPECT_NEAR(x.p.val.loss, eval.loss, 1e-12);
    EXPECT_OK(tt_use_export(u, "x.safetensors"));
    tt_use_close(u);
    close_job(&x);
    for (int i = 0; i < 4; i++) {
        EXPECT_OK(open_job(
            &x,
            (tt_train_opts){.no_files = true, .threads = 1, .init = i % 2 ? "a" : "x.safetensors"},
            table_text, i / 2 ? dense : some));
        weights_of(&x, "e.weight", again, OF_E);
        EXPECT(!memcmp(e, again, sizeof e));
        go_to(&x, 2);
        close_job(&x);
    }
    EXPECT_ERR(TT_ECKPT, open_job(&x, (tt_train_opts){.no_files = true, .init = "a"}, table_text,
                                  "model.layers.3.embedding_bag.rows=50"));
    EXPECT_MESSAGE("bag.weight");
    tt_tree_close(x.tree);
    spoil_table("x.safetensors", "e.weight", "y.safetensors");
    EXPECT_ERR(TT_ECKPT, open_job(&x, (tt_train_opts){.no_files = true, .init = "y.safetensors"},
                                  table_text, some));
    EXPECT_MESSAGE("e.weight has numbers that are not finite");
    tt_tree_close(x.tree);
    EXPECT_ERR(TT_ECKPT,
               open_job(&x,
                        (tt_train_opts){.no_files = true, .init = "y.safetensors", .partial = true},
                        table_text, some));
    EXPECT_MESSAGE("e.weight has numbers that are not finite");
    tt_tree_close(x.tree);
}

/* The rows on disk do not tell how many there are, nor how the others begin. */
TT_TEST(table, what_was_saved_of_another_table_is_refused)
{
    static const struct {
        const char *change, *message;
    } cases[] = {{"model.layers.3.embedding_bag.rows=70", "[60], of the model's [70]"},
                 {"model.layers.3.embedding_bag.rows=70; model.layers.3.embedding_bag.sparse=false",
                  "[60], of the model's [70]"},
                 {"model.layers.2.embeddings.rows=[20, 50, 9, 1]",
                  "'e.weight.table': the rows of its tables are [50, 20, 9, 1], of the model's "
                  "[20, 50, 9, 1]"}};
    static const char *const other = "train.seed=2; train.steps=4; model.freeze=[bag]";
    static const char some[] = "train.steps=4; checkpoint.every=2";
    trained x;
    tt_use *u;

    tt_log_quiet(true);
    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "a", .threads = 1}, table_text, some));
    go_to(&x, INT64_MAX);
    EXPECT_OK(tt_train_finish(x.t, "done"));
    close_job(&x);
    for (int i = 0; i < TT_COUNT(cases); i++)
        for (int resume = 0; resume < 2; resume++) {
            tt_train_opts o = {.run = resume ? "a" : "b",
                               .again = resume,
                               .threads = 1,
                               .init = resume ? NULL : "a"};
            EXPECT_ERR(TT_ECKPT, open_job(&x, o, table_text, cases[i].change));
            EXPECT_MESSAGE(cases[i].message);
            tt_tree_close(x.tree);
        }
    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true, .init = "a"}, table_text, other));
    close_job(&x); /* rows that were named are there */

    /* Of a table that was never changed nothing is on disk. */
    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "f", .threads = 1}, table_text,
                       "train.steps=4; checkpoint.every=2; model.freeze=[bag]"));
    go_to(&x, INT64_MAX);
    EXPECT_OK(tt_train_finish(x.t, "done"));
    close_job(&x);
    EXPECT_ERR(TT_ECKPT,
               open_job(&x, (tt_train_opts){.no_files = true, .init = "f"}, table_text, other));
    EXPECT_MESSAGE("follow from train.seed");
    EXPECT_ERR(TT_ECKPT, tt_use_open(&(tt_use_opts){.job = x.tree, .weights = "f"}, &u));
    EXPECT_MESSAGE("follow from train.seed");
    tt_tree_close(x.tree);
}

/* What a file says of rows is not believed. */
TT_TEST(table, lists_of_rows_that_make_no_sense_are_refused)
{
    static const struct {
        int64_t rows[3];
        int rank, count;
        const char *message;
    } cases[] = {{{1, 5, 59}, 1, 3, NULL},
                 {{5, 5, 7}, 1, 3, "of another shape:\n  bag.weight"},
                 {{7, 5, 9}, 1, 3, "of another shape:\n  bag.weight"},
                 {{-1, 5, 7}, 1, 3, "of another shape:\n  bag.weight"},
                 {{1, 5, 60}, 1, 3, "of another shape:\n  bag.weight"},
                 {{1, 5, INT64_MAX}, 1, 3, "of another shape:\n  bag.weight"},
                 {{1, 5, 7}, 1, 2, "of another shape:\n  bag.weight"},
                 {{1, 5, 7}, 2, 3, "of another shape:\n  bag.weight"}};
    static const float w[3 * 8] = {1, 2, 3};
    trained x;

    tt_log_quiet(true);
    for (int i = 0; i < TT_COUNT(cases); i++)
        for (int dense = 0; dense < 2; dense++) {
            const tt_entry e[] = {
                {.name = "bag.weight.rows",
                 .type = TT_I64,
                 .rank = cases[i].rank,
                 .shape = {cases[i].count, 1},
                 .data = cases[i].rows,
                 .bytes = cases[i].count * 8},
                {.name = "bag.weight", .rank = 2, .shape = {3, 8}, .data = w, .bytes = sizeof w}};
            EXPECT_OK(tt_tensors_write("w.safetensors", e, 2, NULL, NULL));
            tt_err err = open_job(
                &x,
                (tt_train_opts){
                    .no_files = true, .threads = 1, .init = "w.safetensors", .partial = true},
                table_text, dense ? DENSE "train.seed=1" : "train.seed=1");
            if (!cases[i].message) {
                float bag[OF_BAG];
                EXPECT_OK(err);
                weights_of(&x, "bag.weight", bag, OF_BAG);
                EXPECT(bag[8] == 1 && bag[9] == 2 && bag[10] == 3 && bag[0] != 0);
                close_job(&x);
                continue;
            }
            EXPECT_INT(TT_ECKPT, err);
            EXPECT_MESSAGE(cases[i].message);
            tt_tree_close(x.tree);
        }
}

/* ---- size ---- */

static int64_t resident_kb(void)
{
    struct rusage r;

    EXPECT(!getrusage(RUSAGE_SELF, &r));
    return r.ru_maxrss;
}

/* Each of them would fit, both do not: a row takes no more than it must of either. */
TT_TEST(table, two_that_do_not_fit_together_take_what_they_touch)
{
    int64_t rows = (int64_t)(tt_mem_free() / 6 / 64), before = resident_kb();
    char two[256];
    trained x;

    if (rows > 300000000) rows = 300000000;
    snprintf(two, sizeof two,
             "model.layers.2.embeddings.rows=%lld; model.layers.2.embeddings.tables=4; "
             "model.layers.3.embedding_bag.rows=%lld; train.steps=5",
             (long long)rows / 4, (long long)rows);
    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true, .threads = 1}, table_text, two));
    go_to(&x, 5);
    if (resident_kb() - before > 400 << 10)
        FAIL("it took %lld MB", (long long)(resident_kb() - before) >> 10);
    close_job(&x);
}

/* 2.6 x 10^8 rows, of 10 GB and as much state: a step takes memory for what it touches. */
TT_TEST(table, a_table_larger_than_memory_takes_what_it_touches)
{
    const char *large = "model.input.ids=8; model.layers.3.embedding_bag.rows=260000000; "
                        "model.layers.3.embedding_bag.dim=8; train.steps=5";
    int64_t before = resident_kb();
    trained x;

    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true, .threads = 1}, table_text, large));
    go_to(&x, 5);
    EXPECT_INT(5, x.p.step);
    if (resident_kb() - before > 400 << 10)
        FAIL("it took %lld MB", (long long)(resident_kb() - before) >> 10);
    close_job(&x);
}
