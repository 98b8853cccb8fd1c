/* The loop of a worker: resuming, repeating, stopping early, starting from other weights, and what
 * it leaves behind. Small jobs on data made on the spot. */
#include "test.h"

#include "allocs.h"
#include "train_help.h"

TT_TEST(train, learns_and_leaves_a_run_folder)
{
    trained x;
    train_all(&x, (tt_train_opts){.run = "r", .threads = 2}, "");
    EXPECT_INT(27, x.p.step);
    EXPECT(x.p.val.accuracy > 0.5);
    EXPECT_STR("done", x.p.end);
    static const char *const files[] = {"r/job.yaml",
                                        "r/resolved.yaml",
                                        "r/metrics.jsonl",
                                        "r/log.txt",
                                        "r/summary.json",
                                        "r/env.json",
                                        "r/checkpoints/step-00000007/manifest.json",
                                        "r/checkpoints/step-00000027/model.safetensors"};
    for (int i = 0; i < TT_COUNT(files); i++)
        if (!tt_file_exists(files[i])) FAIL("no %s", files[i]);
    json_t *s = json_load_file("r/summary.json", 0, NULL);
    EXPECT_STR("done", json_string_value(json_object_get(s, "status")));
    EXPECT_STR(x.sha, json_string_value(json_object_get(s, "weights_sha256")));
    EXPECT_INT(27, json_integer_value(json_object_get(s, "steps")));
    EXPECT_NEAR(x.p.val.accuracy,
                json_number_value(json_object_get(json_object_get(s, "val"), "accuracy")), 1e-6);
    json_decref(s);
    close_job(&x);
}

TT_TEST(train, the_same_job_gives_the_same_bits)
{
    for (int threads = 1; threads <= 3; threads++) {
        trained a, b;
        train_all(&a, (tt_train_opts){.no_files = true, .threads = threads}, "");
        train_all(&b, (tt_train_opts){.no_files = true, .threads = threads}, "");
        EXPECT_STR(a.sha, b.sha);
        close_job(&a);
        close_job(&b);
    }
}

/* Batch norm sums over the threads, so their number changes roundings and nothing else. */
TT_TEST(train, threads_change_only_roundings)
{
    trained a, b;
    EXPECT_OK(open_job(&a, (tt_train_opts){.no_files = true, .threads = 1}, job_text,
                       "train.optimizer={sgd: {lr: 0.05}}"));
    EXPECT_OK(open_job(&b, (tt_train_opts){.no_files = true, .threads = 3}, job_text,
                       "train.optimizer={sgd: {lr: 0.05}}"));
    for (int i = 0; i < 9; i++) {
        EXPECT_OK(tt_train_step(a.t, &a.p));
        EXPECT_OK(tt_train_step(b.t, &b.p));
        EXPECT_NEAR(a.p.loss, b.p.loss, 2e-5);
    }
    close_job(&a);
    close_job(&b);
}

TT_TEST(train, resumed_equals_uninterrupted)
{
    static const char *const jobs[] = {"", "train.steps_per_epoch=5",
                                       "train.optimizer={sgd: {lr: 0.05, momentum: 0.9}}",
                                       "train.optimizer={lamb: {lr: 0.01}}", "train.accumulate=2"};
    for (int i = 0; i < TT_COUNT(jobs); i++)
        for (int64_t stop = 7; stop < 15; stop += 4) {
            trained whole, part, rest;
            char run[32];
            snprintf(run, sizeof run, "r%d-%d", i, (int)stop);
            train_all(&whole, (tt_train_opts){.no_files = true, .threads = 2}, jobs[i]);
            EXPECT_OK(
                open_job(&part, (tt_train_opts){.run = run, .threads = 2}, job_text, jobs[i]));
            go_to(&part, stop); /* in mid-epoch; the process dies here: its last checkpoint is step
                                   7 or 14 */
            if (stop == 11) EXPECT_OK(tt_train_save(part.t));
            close_job(&part);
            EXPECT_OK(open_job(&rest, (tt_train_opts){.run = run, .resume = true, .threads = 2},
                               job_text, jobs[i]));
            EXPECT_INT(stop, tt_train_first_step(rest.t));
            go_to(&rest, INT64_MAX);
            EXPECT_STR(whole.sha, rest.sha);
            EXPECT_NEAR(whole.p.val.loss, rest.p.val.loss, 0);
            close_job(&whole);
            close_job(&rest);
        }
}

/* The last step of an epoch has fewer samples than parts: nothing of the step before is in it. */
TT_TEST(train, a_step_of_few_samples_begins_anew)
{
    const tt_train_opts files = {.run = "r", .threads = 2},
                        more = {.run = "r", .resume = true, .threads = 2};
    trained whole, part, rest;

    EXPECT_OK(open_job(&whole, (tt_train_opts){.no_files = true, .threads = 2}, job_text,
                       "train.accumulate=8"));
    go_to(&whole, 9); /* 8 samples, for two threads */
    EXPECT_OK(open_job(&part, files, job_text, "train.accumulate=8"));
    go_to(&part, 8);
    EXPECT_OK(tt_train_save(part.t));
    close_job(&part);
    EXPECT_OK(open_job(&rest, more, job_text, "train.accumulate=8"));
    EXPECT_INT(8, tt_train_first_step(rest.t));
    go_to(&rest, 9);
    EXPECT_STR(whole.sha, rest.sha);
    close_job(&whole);
    close_job(&rest);
}

TT_TEST(train, a_damaged_checkpoint_is_passed_over)
{
    trained whole, part, rest;
    train_all(&whole, (tt_train_opts){.no_files = true, .threads = 1}, "");
    EXPECT_OK(open_job(&part, (tt_train_opts){.run = "r", .threads = 1}, job_text, ""));
    go_to(&part, 16);
    close_job(&part);
    FILE *f = fopen("r/checkpoints/step-00000014/model.safetensors", "r+b");
    EXPECT(f && !fseek(f, -5, SEEK_END) && fputc('x', f) != EOF && !fclose(f));
    EXPECT_OK(
        open_job(&rest, (tt_train_opts){.run = "r", .resume = true, .threads = 1}, job_text, ""));
    EXPECT_INT(7, tt_train_first_step(rest.t));
    go_to(&rest, INT64_MAX);
    EXPECT_STR(whole.sha, rest.sha);
    close_job(&whole);
    close_job(&rest);
    EXPECT(tt_file_exists("r/checkpoints/step-00000014.bad"));
    expect_text("r/log.txt", "checkpoint of step 14 skipped");
    expect_text("r/log.txt", "resumed from r/checkpoints at step 7");
}

TT_TEST(train, another_model_cannot_resume)
{
    trained x;
    train_all(&x, (tt_train_opts){.run = "r"}, "");
    close_job(&x);
    EXPECT_ERR(TT_ECKPT, open_job(&x, (tt_train_opts){.run = "r", .resume = true}, job_text,
                                  "model.layers.c.out=6"));
    EXPECT_MESSAGE("another model");
    tt_tree_close(x.tree);
    EXPECT(tt_file_exists("r/summary.json")); /* and the run is as it was */
}

TT_TEST(train, after_step_two_nothing_is_allocated)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    tt_test_skip("the sanitizer has its own malloc");
#endif
    trained x;
    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "r", .threads = 2}, job_text,
                       "train.steps_per_epoch=200;train.log_every=1;checkpoint.every=never"));
    go_to(&x, 2);
    long before = allocations;
    while (x.p.step < 190)
        EXPECT_OK(tt_train_step(
            x.t, &x.p)); /* with journal and events, without validation and checkpoint */
    EXPECT_INT(before, allocations);
    close_job(&x);
}

TT_TEST(train, validations_after_the_first_allocate_nothing)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    tt_test_skip("the sanitizer has its own malloc");
#endif
    static const char *const models[] = {"", "model.layers.d.out=2;data.train.classes=2"};
    for (int i = 0; i < TT_COUNT(models); i++) { /* the second with the area under the curve */
        tt_metrics m;
        trained x;
        EXPECT_OK(
            open_job(&x, (tt_train_opts){.no_files = true, .threads = 2}, job_text, models[i]));
        EXPECT_OK(tt_train_validate(x.t, &m));
        EXPECT(isnan(m.auc) == !i);
        long before = allocations;
        for (int k = 0; k < 5; k++) EXPECT_OK(tt_train_validate(x.t, &m));
        EXPECT_INT(before, allocations);
        close_job(&x);
    }
}

TT_TEST(train, early_stopping_stops)
{
    trained x;
    train_all(&x, (tt_train_opts){.no_files = true},
              "train.epochs=50;train.early_stop={patience: 2, min_delta: 10}");
    EXPECT_STR("early stop", x.p.end);
    EXPECT_INT(9 * 3, x.p.step); /* the first validation, and two no better by 10 */
    close_job(&x);
}

TT_TEST(train, a_loss_that_is_not_finite_ends_it_and_is_not_applied)
{
    trained x;
    tt_err err = TT_OK;
    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true}, job_text,
                       "train.optimizer={sgd: {lr: 1e30}};train.clip={};train.epochs=50"));
    while (!err && !x.p.end) err = tt_train_step(x.t, &x.p);
    EXPECT_INT(TT_EDIVERGED, err);
    EXPECT_MESSAGE("not");
    close_job(&x);
}

TT_TEST(train, frozen_layers_stay)
{
    trained x;
    int count;
    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true}, job_text, "model.freeze=[c, b]"));
    const tt_param *p = tt_model_params(tt_train_model(x.t), &count);
    float *before = malloc((size_t)tt_model_size(tt_train_model(x.t)) * 4);
    memcpy(before, tt_train_params(x.t), (size_t)tt_model_size(tt_train_model(x.t)) * 4);
    go_to(&x, INT64_MAX);
    for (int i = 0; i < count; i++) {
        bool same = !memcmp(before + p[i].at, tt_train_params(x.t) + p[i].at, (size_t)p[i].n * 4);
        if (same == (p[i].name[0] == 'd'))
            FAIL("%s %s", p[i].name, same ? "was not trained" : "was changed");
    }
    free(before);
    close_job(&x);
}

TT_TEST(train, init_takes_weights_by_name)
{
    trained a, b;
    train_all(&a, (tt_train_opts){.run = "a"}, "");
    EXPECT_OK(open_job(&b, (tt_train_opts){.no_files = true, .init = "a"}, job_text, ""));
    EXPECT(!memcmp(tt_train_params(a.t), tt_train_params(b.t),
                   (size_t)tt_model_size(tt_train_model(a.t)) * 4));
    close_job(&b);
    /* the file as it is, under other names */
    const char *file = "a/checkpoints/step-00000027/model.safetensors";
    EXPECT_ERR(TT_ECKPT, open_job(&b, (tt_train_opts){.no_files = true, .init = file}, job_text,
                                  "model.layers.d.name=head"));
    EXPECT_MESSAGE("head.weight");
    EXPECT_MESSAGE("d.bias");
    tt_tree_close(b.tree);
    EXPECT_OK(open_job(&b, (tt_train_opts){.no_files = true, .init = file, .partial = true},
                       job_text, "model.layers.d.name=head"));
    close_job(&b);
    EXPECT_OK(open_job(&b, (tt_train_opts){.no_files = true, .init = file}, job_text,
                       "model.layers.d.name=head;model.rename={d.*: head.*}"));
    EXPECT(!memcmp(tt_train_params(a.t), tt_train_params(b.t),
                   (size_t)tt_model_size(tt_train_model(a.t)) * 4));
    close_job(&b);
    EXPECT_ERR(TT_ECKPT,
               open_job(&b, (tt_train_opts){.no_files = true, .init = "nowhere"}, job_text, ""));
    tt_tree_close(b.tree);
    close_job(&a);
}

TT_TEST(train, evaluating_a_run_repeats_its_validation)
{
    trained x;
    tt_use *u;
    tt_metrics m;
    train_all(&x, (tt_train_opts){.run = "r"}, "");
    EXPECT_OK(tt_use_open(&(tt_use_opts){.job = x.tree, .weights = "r", .threads = 2}, &u));
    EXPECT_OK(tt_use_eval(u, TT_VAL, &m));
    EXPECT_NEAR(x.p.val.loss, m.loss, 1e-5);
    EXPECT_NEAR(x.p.val.accuracy, m.accuracy, 1e-9);
    /* outputs of a layer in the middle, alone and in a batch */
    tt_use_close(u);
    EXPECT_OK(tt_use_open(&(tt_use_opts){.job = x.tree, .weights = "r", .layer = "c"}, &u));
    EXPECT_INT(5 * 36, tt_use_features(u));
    float *all = calloc(30 * 180, 4), one[180];
    EXPECT_OK(tt_use_predict(u, TT_VAL, 0, 30, all));
    EXPECT_OK(tt_use_predict(u, TT_VAL, 29, 1, one));
    for (int i = 0; i < 180; i++) EXPECT_NEAR(all[29 * 180 + i], one[i], 1e-5);
    free(all);
    tt_use_close(u);
    EXPECT_ERR(TT_EINVAL,
               tt_use_open(&(tt_use_opts){.job = x.tree, .weights = "r", .layer = "cc"}, &u));
    EXPECT_MESSAGE("did you mean");
    close_job(&x);
}

/* Half of the labels are hidden: the autoencoder's loss learns from all rows, the classifier's from
 * the rest. */
TT_TEST(train, rows_without_labels_count_where_none_is_needed)
{
    static const char text[] = "name: semi\n"
                               "model:\n"
                               "  input: [12]\n"
                               "  layers:\n"
                               "    - dense: {name: code, out: 6}\n"
                               "    - tanh: {name: t}\n"
                               "    - dense: {name: back, out: 12}\n"
                               "    - dense: {name: head, out: 3, from: t}\n"
                               "  loss:\n"
                               "    - softmax_cross_entropy\n"
                               "    - mse: {from: back, target: input, weight: 0.5}\n"
                               "data:\n"
                               "  train: {format: synth, kind: blobs, count: 300, classes: 3}\n"
                               "  unlabelled: 0.5\n"
                               "  val: {split: 0.2}\n"
                               "train: {epochs: 15, batch: 30, optimizer: {adam: {lr: 0.01}}}\n";
    trained x;
    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true, .threads = 2}, text, ""));
    EXPECT_OK(tt_train_step(x.t, &x.p));
    go_to(&x, INT64_MAX);
    EXPECT(x.p.val.accuracy > 0.8);
    EXPECT(x.p.val.part[1] < 1.0);
    close_job(&x);
}

TT_TEST(train, fewer_samples_than_threads_are_done_by_one)
{
    trained x; /* 168 training samples: the last step of an epoch has 3 */
    train_all(&x, (tt_train_opts){.no_files = true, .threads = 4}, "train.batch=33");
    EXPECT_INT(18, x.p.step);
    close_job(&x);
}

TT_TEST(train, wrong_jobs_are_refused_where_they_are_wrong)
{
    static const struct {
        const char *change, *message;
    } cases[] = {
        {"train.epoch=3", "did you mean 'epochs'"},
        {"train.steps=3", "not both"},
        {"checkpoint.every=often", "no interval"},
        {"checkpoint.best=val.acuracy max", "did you mean 'val.accuracy'"},
        {"train.accumulate=21", "accumulate"},
        {"train.optimizer={adm: {}}", "did you mean 'adam'"},
        {"model.layers.c.kernel=9", "kernel"},
        {"model.loss=softmax_crossentropy", "did you mean 'softmax_cross_entropy'"},
        {"train.batch=many", "batch"},
        {"train.kernels=abacus", "no kernels named \"abacus\""},
        {"checkpoint.every=4611686018427387904 epoch", "more steps than can be counted"},
        {"train.validate=4611686018427387904 epochs", "more steps than can be counted"},
        {"train.steps_per_epoch=1e10;train.epochs=1e9", "more steps than can be counted"},
        {"data.val=null", "val.accuracy needs validation data"},
        {"data.val=null;checkpoint.best=none;train.early_stop={}", "val.loss needs validation"},
        {"train.early_stop={};train.validate=never", "train.validate is never"},
        {"checkpoint.best=val.top5 max", "more than 5 classes"},
        {"train.early_stop={metric: val.top5 max}", "more than 5 classes"},
        {"model.loss={mse: {target: target}};model.layers.d.out=1;data.train={format: synth, kind: "
         "regression}",
         "val.accuracy needs a loss with classes"},
    };
    for (int i = 0; i < TT_COUNT(cases); i++) {
        trained x;
        EXPECT_ERR(TT_EINVAL, open_job(&x, (tt_train_opts){.run = "r"}, job_text, cases[i].change));
        if (!strstr(tt_message(), cases[i].message)) FAIL("%s: %s", cases[i].change, tt_message());
        tt_tree_close(x.tree);
        EXPECT(!tt_file_exists("r"));
    }
}

/* What `tutti config check` finds without touching data. */
TT_TEST(train, a_check_finds_what_training_would_refuse)
{
    static const char *const wrong[] = {"train.kernels=abacus", "checkpoint.best=val.top5 max",
                                        "data={train: {format: synth}}"};
    for (int i = 0; i < TT_COUNT(wrong); i++) {
        tt_tree *t;
        EXPECT_OK(tt_tree_parse("job", job_text, strlen(job_text), &t));
        EXPECT_OK(tt_job_check(t));
        EXPECT_OK(tt_tree_set(t, wrong[i]));
        EXPECT_ERR(TT_EINVAL, tt_job_check(t));
        EXPECT_MESSAGE("^"); /* with its place */
        tt_tree_close(t);
    }
}

TT_TEST(train, early_stopping_by_the_training_loss_needs_no_validation_data)
{
    trained x;
    train_all(&x, (tt_train_opts){.no_files = true},
              "data.val=null;train.epochs=50;"
              "train.early_stop={metric: train.loss min, patience: 2, min_delta: 10}");
    EXPECT_STR("early stop", x.p.end);
    EXPECT_INT(11 * 3, x.p.step); /* of 210 samples now */
    close_job(&x);
}

/* The best is chosen by its score, so every checkpoint has one; that a validation was made for it
 * does not count for patience. */
TT_TEST(train, a_checkpoint_that_is_to_be_compared_is_validated)
{
    tt_ckpt_info *list;
    trained x;
    int count;

    train_all(&x, (tt_train_opts){.run = "r"},
              "train.epochs=50;checkpoint.every=2;"
              "train.early_stop={patience: 2, min_delta: 10}");
    EXPECT_STR("early stop", x.p.end);
    EXPECT_INT(9 * 3, x.p.step);
    close_job(&x);
    EXPECT_OK(tt_ckpt_list("r/checkpoints", false, &list, &count));
    EXPECT_INT(14, count);
    for (int i = 0; i < count; i++) EXPECT(!isnan(list[i].score));
    free(list);
}
