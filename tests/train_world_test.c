/* Many workers, one result: the same job on 1, 2, 3, 5 and 8 simulated ranks, on one host and on
 * several, with every way to aggregate. */
#include "train_together.h"

static void expect_near(const together *a, const together *b, double tolerance)
{
    EXPECT_INT(a->steps, b->steps);
    for (int i = 0; i < a->steps && i < STEPS; i++)
        if (!(fabs(a->loss[i] - b->loss[i]) <= tolerance * fabs(a->loss[i])))
            FAIL("step %d: loss %.9g and %.9g", i + 1, a->loss[i], b->loss[i]);
}

TT_TEST(world, data_in_common_changes_no_bit)
{
    together own = run(3, NULL, 1, ""), common = own;
    char **names;
    int count;

    common.opts.share = "here";
    EXPECT_OK(tt_sim_run(3, NULL, 30, train_rank, &common));
    EXPECT_STR(own.sha, common.sha);
    EXPECT_INT(own.steps, common.steps);
    EXPECT_OK(tt_dir_list("here", &names, &count));
    EXPECT_INT(2, count); /* the content and its lock: all ranks meant the same */
    tt_dir_free(names, count);
}

/* ---- fast mode ---- */

TT_TEST(world, losses_are_those_of_one_worker_within_rounding)
{
    static const char *const modes[] = {"allreduce", "chief", "shard"};
    static const int sizes[] = {2, 3, 5};
    const char *sync = "model.layers.1.batchnorm.sync=true; train.optimizer.adam.lr=1e-3";
    together one = run(1, NULL, 1, sync);

    for (int m = 0; m < TT_COUNT(modes); m++)
        for (int i = 0; i < TT_COUNT(sizes); i++) {
            char changes[256];
            snprintf(changes, sizeof changes, "%s; parallel.aggregate=%s", sync, modes[m]);
            together near = run(sizes[i], NULL, 1, changes), far = run(sizes[i], apart, 1, changes),
                     mixed = run(sizes[i], two_hosts, 2, changes);
            expect_near(&one, &near, 1e-5);
            expect_near(&one, &far, 1e-5);
            expect_near(&one, &mixed, 1e-5);
            EXPECT_NEAR(one.val.loss, near.val.loss, 1e-4);
            EXPECT_NEAR(one.val.loss, mixed.val.loss, 1e-4);
        }
}

TT_TEST(world, the_same_ranks_make_the_same_bits)
{
    together a = run(3, two_hosts, 2, ""), b = run(3, two_hosts, 2, "");
    EXPECT_STR(a.sha, b.sha);
}

TT_TEST(world, shard_and_allreduce_make_the_same_bits)
{
    together a = run(3, NULL, 1, ""), b = run(3, NULL, 1, "parallel.aggregate=shard"),
             c = run(3, NULL, 1, "parallel.aggregate=chief");
    EXPECT_STR(a.sha, b.sha);
    EXPECT_STR(a.sha, c.sha);
}

TT_TEST(world, small_buckets_change_nothing)
{
    together a = run(3, two_hosts, 1, ""), b = run(3, two_hosts, 1, "parallel.bucket=4096");
    EXPECT_STR(a.sha, b.sha);
}

/* ---- exact mode ---- */

static void expect_exact(const char *changes)
{
    static const int sizes[] = {2, 3, 4, 5, 8};
    char exact[512];

    snprintf(exact, sizeof exact, "parallel.exact=true; parallel.grains=8; %s", changes);
    together one = run(1, NULL, 1, exact);
    EXPECT_STR(one.sha, run(1, NULL, 3, exact).sha);
    for (int i = 0; i < TT_COUNT(sizes); i++) {
        EXPECT_STR(one.sha, run(sizes[i], NULL, 1, exact).sha);
        together mixed = run(sizes[i], two_hosts, 1 + i % 2, exact);
        EXPECT_STR(one.sha, mixed.sha);
        EXPECT(one.val.loss == mixed.val.loss && one.val.accuracy == mixed.val.accuracy);
    }
    EXPECT_STR(one.sha, run(5, apart, 1, exact).sha);
}

TT_TEST(world, exact_is_exact_for_any_number_of_workers_and_threads)
{
    expect_exact("");
}
TT_TEST(world, exact_is_exact_with_shard)
{
    expect_exact("parallel.aggregate=shard");
}
TT_TEST(world, exact_is_exact_with_chief)
{
    expect_exact("parallel.aggregate=chief");
}
TT_TEST(world, exact_is_exact_with_lamb_and_small_buckets)
{
    expect_exact("train.optimizer={lamb: {lr: 0.01}}; parallel.bucket=4096; "
                 "parallel.aggregate=shard");
}
TT_TEST(world, exact_is_exact_with_augmentation_and_early_stop)
{
    expect_exact("data.augment={flip: true, crop: 1}; train.epochs=6; "
                 "train.early_stop={metric: val.loss min, patience: 1}");
}
TT_TEST(world, exact_is_exact_without_clipping_and_with_accumulation)
{
    expect_exact("train.clip=null; train.accumulate=2; train.optimizer={sgd: {lr: 0.1, momentum: "
                 "0.9}}; train.batch=23");
}
TT_TEST(world, more_workers_than_grains_are_no_harm)
{
    together a = run(1, NULL, 1, "parallel.exact=true; parallel.grains=3"),
             b = run(5, two_hosts, 2, "parallel.exact=true; parallel.grains=3");
    EXPECT_STR(a.sha, b.sha);
}

/* ---- average ---- */

TT_TEST(world, averaging_every_step_of_plain_sgd_is_allreduce)
{
    /* The mean of steps from the same weights is the step by the mean: for equal parts, without
     * momentum, clipping or batch norm. */
    const char *sgd = "train.optimizer={sgd: {lr: 0.1}}; train.clip=null; model.layers.1=relu; "
                      "train.batch=24; train.schedule=constant; data.train.count=240";
    char changes[512];
    together all = run(3, NULL, 1, sgd);

    snprintf(changes, sizeof changes, "%s; parallel.aggregate=average; parallel.average={every: 1}",
             sgd);
    together mean = run(3, NULL, 1, changes);
    EXPECT_NEAR(all.val.loss, mean.val.loss, 1e-4);
    EXPECT_NEAR(all.val.accuracy, mean.val.accuracy, 1e-9);
    /* An outer step of 1 without momentum takes the mean as it is. */
    snprintf(changes, sizeof changes,
             "%s; parallel.aggregate=average; parallel.average={every: 1, outer: {lr: 1, momentum: "
             "0}}",
             sgd);
    together same = run(3, two_hosts, 2, changes);
    EXPECT_NEAR(all.val.loss, same.val.loss, 1e-3);
}

TT_TEST(world, workers_that_meet_now_and_then_learn)
{
    static const char *const ways[] = {"{every: 4}", "{every: end}",
                                       "{every: 5, outer: {lr: 0.7, momentum: 0.6}}"};

    for (int i = 0; i < TT_COUNT(ways); i++) {
        char changes[256];
        snprintf(changes, sizeof changes,
                 "train.epochs=6; parallel.aggregate=average; parallel.average=%s", ways[i]);
        together x = run(3, two_hosts, 1, changes), y = run(3, two_hosts, 1, changes);
        EXPECT(x.val.accuracy > 0.9);
        EXPECT_STR(x.sha, y.sha);
    }
}

TT_TEST(world, what_the_outer_optimiser_remembers_is_saved)
{
    const char *way = "train.epochs=4; parallel.aggregate=average; checkpoint.every=10; "
                      "parallel.average={every: 5, outer: {lr: 0.7}}";
    together
        whole = {.text = job_text, .changes = way, .threads = 1, .opts = {.run = "a"}},
        first = {.text = job_text, .changes = way, .threads = 1, .until = 13, .opts = {.run = "b"}},
        rest = {
            .text = job_text, .changes = way, .threads = 1, .opts = {.run = "b", .resume = true}};

    EXPECT_OK(tt_sim_run(2, NULL, 30, train_rank, &whole));
    EXPECT_OK(tt_sim_run(2, NULL, 30, train_rank, &first));
    EXPECT_OK(tt_sim_run(2, NULL, 30, train_rank, &rest));
    EXPECT_STR(whole.sha, rest.sha);
}

TT_TEST(world, figures_of_workers_that_train_apart_are_of_all_of_them)
{
    /* At such a rate the weights stay, so losses are those of one worker, whoever made them. */
    const char *still = "train.epochs=2; train.validate=never; train.optimizer={sgd: {lr: 1e-9}}; "
                        "model.layers.1=relu; train.clip=null";
    char changes[512];
    together one = run(1, NULL, 1, still);

    snprintf(changes, sizeof changes, "%s; parallel.aggregate=average; parallel.average={every: 5}",
             still);
    together x = run(3, two_hosts, 1, changes);
    EXPECT_NEAR(2 * 168 - 3 * 20, x.samples, 1e-6);
    EXPECT_NEAR(one.mean[0], x.mean[0], 1e-5 * one.mean[0]);
    for (int r = 1; r < 3; r++) EXPECT(x.mean[r] == x.mean[0]);
}

TT_TEST(world, workers_that_train_apart_stop_early_together)
{
    together x = run(3, NULL, 1,
                     "train.epochs=40; train.validate=2; parallel.aggregate=average; "
                     "parallel.average={every: 2}; "
                     "train.early_stop={metric: train.loss min, patience: 1}");
    EXPECT(x.steps < 40 * 9);
    for (int r = 1; r < 3; r++) EXPECT_INT(x.steps, x.ended[r]);
}

/* ---- compression ---- */

TT_TEST(world, compressed_gradients_learn_as_well)
{
    static const char *const codecs[] = {"bf16", "fp16", "int8", "topk:0.1", "1bit", "powersgd:2"};
    static const char *const modes[] = {"allreduce", "shard", "chief"};
    together plain = run(3, apart, 1, "train.epochs=6");

    for (int i = 0; i < TT_COUNT(codecs); i++)
        for (int m = 0; m < TT_COUNT(modes); m++) {
            char changes[256];
            snprintf(changes, sizeof changes,
                     "train.epochs=6; parallel.compress=%s; parallel.aggregate=%s; "
                     "parallel.bucket=4096",
                     codecs[i], modes[m]);
            together one_host = run(3, NULL, 1, changes), hosts = run(5, two_hosts, 1, changes);
            if (!(one_host.val.accuracy > plain.val.accuracy - 0.05))
                FAIL("%s %s: %g, uncompressed %g", codecs[i], modes[m], one_host.val.accuracy,
                     plain.val.accuracy);
            if (!(hosts.val.accuracy > plain.val.accuracy - 0.05))
                FAIL("%s %s on hosts: %g, uncompressed %g", codecs[i], modes[m], hosts.val.accuracy,
                     plain.val.accuracy);
        }
}

TT_TEST(world, bf16_gradients_stay_near_the_others)
{
    const char *way = "train.optimizer={sgd: {lr: 0.05}}; train.clip=null";
    char changes[256];
    together a = run(2, apart, 1, way);

    snprintf(changes, sizeof changes, "%s; parallel.compress=bf16", way);
    together b = run(2, apart, 1, changes);
    expect_near(&a, &b, 0.02);
    EXPECT(strcmp(a.sha, b.sha) != 0); /* it is really in use */
}

TT_TEST(world, what_compression_owes_is_in_the_checkpoint)
{
    const char *way = "train.clip=null; parallel.compress=topk:0.05";
    together
        first = {.text = job_text, .changes = way, .threads = 1, .until = 10, .opts = {.run = "r"}},
        rest = {
            .text = job_text, .changes = way, .threads = 1, .opts = {.run = "r", .resume = true}};

    EXPECT_OK(tt_sim_run(3, NULL, 30, train_rank, &first));
    expect_text("r/checkpoints/step-00000007/optim.safetensors", "residual.c.weight");
    EXPECT_OK(tt_sim_run(2, NULL, 30, train_rank, &rest));
    /* and one without compression can be resumed with it, and the other way round */
    rest.changes = "train.clip=null; train.epochs=4";
    EXPECT_OK(tt_sim_run(2, NULL, 30, train_rank, &rest));
    rest.changes = "train.clip=null; train.epochs=5; parallel.compress=1bit";
    EXPECT_OK(tt_sim_run(2, apart, 30, train_rank, &rest));
}

/* The length of all that compression owes, as it is in a checkpoint. */
static double owed_in(const char *folder, int64_t step)
{
    tt_ckpt *c;
    double sum = 0;

    EXPECT_OK(tt_ckpt_open(folder, step, false, &c));
    for (int i = 0; i < tt_ckpt_count(c); i++) {
        const tt_entry *e = tt_ckpt_at(c, i);
        const float *x = e->data;
        for (int64_t k = 0; k < e->bytes / 4 && !strncmp(e->name, "residual.", 9); k++)
            sum += (double)x[k] * x[k];
    }
    tt_ckpt_close(c);
    return sqrt(sum);
}

TT_TEST(world, what_compression_owes_is_sent_by_whoever_goes_on)
{
    /* powersgd:60 pays for no tensor of this model: all travel as they are. */
    static const char *const codecs[] = {"bf16", "powersgd:60"};
    static const int two_by_two[] = {0, 0, 1, 1};
    const char *way = "train.clip=null; train.validate=never; checkpoint={every: 10, best: none}";
    char folder[32], from[256], to[256];

    for (int i = 0; i < 4; i++) {
        const int *hosts = i % 2 ? apart : two_by_two;
        snprintf(folder, sizeof folder, "r%d", i);
        snprintf(from, sizeof from, "%s; parallel.compress=topk:0.05", way);
        snprintf(to, sizeof to, "%s; checkpoint.every=11; parallel.compress=%s", way,
                 codecs[i / 2]);
        run_in(folder, false, 10, 4, hosts, from);
        run_in(folder, true, 11, 4, hosts, to);
        snprintf(folder, sizeof folder, "r%d/checkpoints", i);
        double before = owed_in(folder, 10), after = owed_in(folder, 11);
        if (!(before > 1 && after < before / 20))
            FAIL("%s: %g was owed, and then %g", codecs[i / 2], before, after);
    }
}

TT_TEST(world, what_excludes_each_other_is_refused_with_the_reason)
{
    static const char *const wrong[][2] = {
        {"parallel.exact=true; parallel.compress=bf16", "compress and exact exclude each other"},
        {"parallel.aggregate=average; parallel.compress=bf16", "none travel"},
        {"parallel.aggregate=average; parallel.exact=true", "exclude each other"},
        {"parallel.average={every: 3}", "aggregate: average"},
        {"parallel.exact=true; model.layers.1.batchnorm.sync=true", "they are of each grain"},
        {"parallel.aggregate=average; model.layers.1.batchnorm.sync=true", "workers train apart"},
        {"parallel.compress=topk:2", "topk"},
        {"parallel.compress=int9", "int8"},
        {"parallel.grains=0", "no number of grains"},
        {"parallel.aggregate=average; parallel.average={every: soon}", "no number of steps"}};

    for (int i = 0; i < TT_COUNT(wrong); i++) {
        together x = {
            .text = job_text, .changes = wrong[i][0], .threads = 1, .opts = {.no_files = true}};
        EXPECT_ERR(TT_EINVAL, tt_sim_run(2, NULL, 10, train_rank, &x));
        EXPECT_MESSAGE(wrong[i][1]);
    }
}

TT_TEST(world, what_does_nothing_here_is_told)
{
    run_in("r", false, 1, 1, NULL, "parallel.grains=4; parallel.compress=int8");
    expect_text("r/log.txt", "parallel.grains is for parallel.exact");
    expect_text("r/log.txt", "parallel.compress: there is one worker");
}

/* ---- hosts with rows of their own ---- */

typedef struct farm {
    together t;
    float x[2][120];
    int32_t label[2][120];
    int rows[2];
} farm;

static tt_err work_on_own_rows(tt_world *w, void *arg)
{
    farm *f = arg;
    together own = f->t;
    int h = w->host;
    tt_data_rows rows = {.x = f->x[h], .label = f->label[h], .n = f->rows[h]},
                 val = {.x = f->x[h], .label = f->label[h], .n = 20 + 70 * h};
    tt_err err;

    own.opts.train_rows = &rows;
    own.opts.val_rows = &val;
    own.opts.own_rows = true;
    err = train_rank(w, &own);
    if (!w->rank) f->t = own;
    return err;
}

static const char *farm_sha(farm *f, int ranks, const int *hosts, int threads, const char *changes)
{
    f->t =
        (together){.text = "model: {input: [1], layers: [dense: {out: 8}, relu, dense: {out: 2}], "
                           "loss: softmax_cross_entropy}\n"
                           "train: {epochs: 4, batch: 16, optimizer: {adam: {lr: 0.02}}}\n",
                   .changes = changes,
                   .threads = threads,
                   .opts = {.no_files = true}};
    EXPECT_OK(tt_sim_run(ranks, hosts, 20, work_on_own_rows, f));
    return f->t.sha;
}

TT_TEST(world, hosts_with_rows_of_their_own_share_the_batch_by_what_they_have)
{
    static const int one_each[] = {0, 1}, two_three[] = {0, 0, 1, 1, 1};
    farm f = {.rows = {120, 37}};
    char sha[65];

    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 120; i++) {
            f.x[h][i] = (float)(i % 11 - 5) / 3 + (float)h;
            f.label[h][i] = f.x[h][i] > 0.5f;
        }
    snprintf(sha, sizeof sha, "%s",
             farm_sha(&f, 2, one_each, 1, "parallel.exact=true; parallel.grains=8"));
    EXPECT_INT(4 * 10, f.t.steps); /* 157 rows in batches of 16 */
    EXPECT_STR(sha, farm_sha(&f, 3, two_one, 1, "parallel.exact=true; parallel.grains=8"));
    EXPECT_STR(sha, farm_sha(&f, 5, two_three, 2, "parallel.exact=true; parallel.grains=8"));
    EXPECT_STR(sha, farm_sha(&f, 3, two_one, 1,
                             "parallel.exact=true; parallel.grains=8; parallel.aggregate=shard"));
    EXPECT_STR(sha, farm_sha(&f, 5, two_three, 2,
                             "parallel.exact=true; parallel.grains=8; parallel.balance=random"));
    tt_metrics one = f.t.val;
    EXPECT_INT(110, one.samples);
    farm_sha(&f, 5, two_three, 2, "parallel.exact=true; parallel.grains=8");
    EXPECT(one.loss == f.t.val.loss && one.accuracy == f.t.val.accuracy && one.auc == f.t.val.auc);
    farm_sha(&f, 5, two_three, 1, "train.epochs=30");
    EXPECT(f.t.loss[STEPS - 1] < 0.5 * f.t.loss[0]);
}

/* ---- checkpoints ---- */

static void stop_and_go(const char *folder, int ranks, const char *first, int then_ranks,
                        const int *hosts, const char *then, const char *sha)
{
    together a = {.text = job_text,
                  .changes = first,
                  .threads = 1,
                  .opts = {.run = folder},
                  .until = 10},
             b = {.text = job_text,
                  .changes = then,
                  .threads = 2,
                  .opts = {.run = folder, .resume = true}};

    EXPECT_OK(tt_sim_run(ranks, NULL, 30, train_rank, &a));
    EXPECT_OK(tt_sim_run(then_ranks, hosts, 30, train_rank, &b));
    EXPECT_STR(sha, b.sha);
}

TT_TEST(world, a_checkpoint_has_no_world_size)
{
    const char *plain = "parallel.exact=true; parallel.grains=8",
               *shard = "parallel.exact=true; parallel.grains=8; parallel.aggregate=shard",
               *chief = "parallel.exact=true; parallel.grains=8; parallel.aggregate=chief";
    together one = run(1, NULL, 1, plain);

    stop_and_go("r1", 1, plain, 3, NULL, shard, one.sha);
    stop_and_go("r2", 3, shard, 2, two_hosts, plain, one.sha);
    stop_and_go("r3", 4, shard, 5, two_hosts, shard, one.sha);
    EXPECT(tt_file_exists("r3/checkpoints/step-00000007/optim-00000.safetensors"));
    EXPECT(tt_file_exists("r3/checkpoints/step-00000007/optim-00001.safetensors"));
    EXPECT(!tt_file_exists("r3/checkpoints/step-00000007.parts"));
    stop_and_go("r4", 2, chief, 3, apart, shard, one.sha);
    stop_and_go("r5", 5, plain, 1, NULL, chief, one.sha);
}

static void go_on(const char *const *kinds, int from, int to, int64_t step)
{
    char changes[256];

    snprintf(changes, sizeof changes,
             "train.epochs=20; train.validate=never; checkpoint={every: 1, keep: 1}; %s",
             kinds[to]);
    run_in("r", step > 1, step, 1 + (2 * from + to) % 5, to % 2 ? two_hosts : apart, changes);
}

/* One run, a step of each kind at a time, so that each follows on each. */
TT_TEST(world, a_checkpoint_of_any_kind_is_resumed_by_any_other)
{
    static const char *const kinds[] = {
        "parallel.aggregate=allreduce",
        "parallel.aggregate=chief",
        "parallel.aggregate=shard",
        "parallel.aggregate=average; parallel.average={every: 3, outer: {lr: 0.7}}",
        "parallel.aggregate=average",
        "parallel.exact=true; parallel.grains=4",
        "parallel.compress=topk:0.1; parallel.aggregate=shard",
        "parallel.compress=powersgd:1"};
    int64_t step = 0;

    for (int i = 0; i < TT_COUNT(kinds); i++) {
        go_on(kinds, i ? i - 1 : 0, i, ++step);
        go_on(kinds, i, i, ++step);
        for (int k = i + 1; k < TT_COUNT(kinds); k++) {
            go_on(kinds, i, k, ++step);
            go_on(kinds, k, i, ++step);
        }
    }
}

static tt_err stop_by_order(tt_world *w, void *arg)
{
    together *x = arg;
    tt_train_opts o = x->opts;
    tt_trainer *t = NULL;
    tt_progress p = {0};
    tt_err err;

    TRY(tt_tree_parse("job", x->text, strlen(x->text), &o.job));
    if ((err = change(o.job, x->changes))) goto out;
    o.world = w;
    o.threads = 1;
    if ((err = tt_train_open(&o, &t))) goto out;
    while (!p.end && !p.stopped) {
        /* rank 1 asks in vain; rank 0 does at step 4 */
        if (w->rank == 1 || (w->rank == 0 && p.step == 3)) tt_train_ask_stop(t);
        if ((err = tt_train_step(t, &p))) goto out;
    }
    if (p.step != 4) err = tt_fail(TT_EINVAL, "rank %d stopped at %d", w->rank, (int)p.step);
    if (!err) err = tt_train_save(t);
    if (!err) err = tt_train_compare(t);
out:
    tt_train_close(t);
    tt_tree_close(o.job);
    return err;
}

TT_TEST(world, all_stop_after_the_same_step_and_nothing_is_lost)
{
    const char *shard = "parallel.exact=true; parallel.grains=4; parallel.aggregate=shard";
    together x = {.text = job_text, .changes = shard, .opts = {.run = "r"}},
             y = {.text = job_text,
                  .changes = shard,
                  .threads = 1,
                  .opts = {.run = "r", .resume = true}};

    EXPECT_OK(tt_sim_run(3, NULL, 30, stop_by_order, &x));
    EXPECT_OK(tt_sim_run(2, NULL, 30, train_rank, &y));
    EXPECT_STR(run(1, NULL, 1, shard).sha, y.sha);
}

/* Rank 0 asks as soon as it can; nobody else does. */
static tt_err stop_apart(tt_world *w, void *arg)
{
    together *x = arg;
    tt_train_opts o = x->opts;
    tt_trainer *t = NULL;
    tt_progress p = {0};
    tt_err err;

    TRY(tt_tree_parse("job", x->text, strlen(x->text), &o.job));
    if ((err = change(o.job, x->changes))) goto out;
    o.world = w;
    o.threads = 1;
    if ((err = tt_train_open(&o, &t))) goto out;
    while (!p.end && !p.stopped) {
        if (p.step == 1 && !w->rank) tt_train_ask_stop(t);
        if ((err = tt_train_step(t, &p))) goto out;
    }
    x->ended[w->rank] = p.end ? -1 : p.step;
    if (!(err = tt_train_save(t))) err = tt_train_compare(t);
out:
    tt_train_close(t);
    tt_tree_close(o.job);
    return err;
}

TT_TEST(world, workers_that_meet_at_the_end_alone_still_stop_and_save_when_asked)
{
    const char *way = "train.epochs=60; train.validate=never; checkpoint.every=10ms; "
                      "parallel.aggregate=average; parallel.average={every: end}";
    together x = {.text = job_text, .changes = way, .opts = {.run = "r"}};
    tt_ckpt_info *list;
    int count;

    EXPECT_OK(tt_sim_run(3, two_hosts, 30, stop_apart, &x));
    for (int r = 0; r < 3; r++) EXPECT(x.ended[r] > 0 && x.ended[r] == x.ended[0]);
    run_in("s", false, 0, 2, NULL, way);
    EXPECT_OK(tt_ckpt_list("s/checkpoints", false, &list, &count));
    EXPECT(count >= 2); /* the last, and one by the clock */
    free(list);
}
