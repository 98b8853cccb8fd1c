/* Click models in training: they learn, and are the same on any number of workers. */
#include "train_together.h"

static const char click_text[] =
    "name: c\n"
    "model:\n"
    "  input: {features: [6], ids: 8}\n"
    "  layers: [dlrm: {rows: [50, 20, 9, 30, 50, 20, 9, 30], dim: 8, bottom: [16], top: [16]}]\n"
    "  loss: bce\n"
    "data:\n"
    "  train: {format: synth, kind: clicks, count: 20000}\n"
    "  val: {count: 1500}\n"
    "train: {epochs: 2, batch: 60, optimizer: {adam: {lr: 1e-2}}}\n"
    "checkpoint: {every: never}\n";

TT_TEST(click, every_preset_learns_more_than_the_numbers_tell)
{
    static const char *const models[] = {
        "dlrm: {rows: 50, dim: 8, bottom: [16], top: [16]}",
        "wide_deep: {rows: 50, dim: 8, hidden: [16]}", "deepfm: {rows: 50, dim: 8, hidden: [16]}",
        "embedding_bag: {name: e, rows: 50, dim: 8}, concat: {from: [e, input]}, dense: {out: 16}, "
        "relu, dense: {out: 1}"};
    trained plain;

    EXPECT_OK(open_job(&plain, (tt_train_opts){.no_files = true}, click_text,
                       "model.layers=[dense: {out: 1}]"));
    go_to(&plain, INT64_MAX);
    for (int i = 0; i < TT_COUNT(models); i++) {
        char changes[512];
        trained x;
        snprintf(changes, sizeof changes,
                 "model.layers=[%s]; train.epochs=1; train.optimizer={adagrad: {lr: 0.05}}",
                 models[i]);
        EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true}, click_text, changes));
        go_to(&x, INT64_MAX);
        if (i < 3 && !(x.p.val.auc > plain.p.val.auc + 0.05))
            FAIL("%s: auc %.4f, of numbers alone %.4f", models[i], x.p.val.auc, plain.p.val.auc);
        EXPECT(x.p.val.entropy < 1 && x.p.val.calibration > 0.8 && x.p.val.calibration < 1.25);
        close_job(&x);
    }
    close_job(&plain);
}

TT_TEST(click, exact_is_the_same_for_any_workers)
{
    static const int sizes[] = {2, 3, 5};
    together one = {.text = click_text,
                    .changes = "parallel.exact=true; parallel.grains=6; train.steps=12; "
                               "train.epochs=~",
                    .threads = 1,
                    .opts = {.no_files = true}};
    together blank = one;

    EXPECT_OK(tt_sim_run(1, NULL, 30, train_rank, &one));
    EXPECT(one.val.logloss > 0);
    for (int i = 0; i < TT_COUNT(sizes); i++) {
        together x = blank;
        x.threads = 1 + i % 2;
        x.opts.share = i ? "here" : NULL; /* rows in common have their ids */
        EXPECT_OK(tt_sim_run(sizes[i], i % 2 ? apart : NULL, 30, train_rank, &x));
        EXPECT_STR(one.sha, x.sha);
        EXPECT(one.val.auc == x.val.auc && one.val.logloss == x.val.logloss);
    }
}

TT_TEST(click, numbers_alone_are_refused_where_there_are_ids)
{
    static const float x[6];
    float out[1];
    tt_use *u;
    trained t;

    EXPECT_OK(open_job(&t, (tt_train_opts){.no_files = true}, click_text, "train.epochs=1"));
    EXPECT_OK(tt_use_open(&(tt_use_opts){.job = t.tree, .trained = t.t}, &u));
    EXPECT_ERR(TT_EINVAL, tt_use_predict_rows(u, x, NULL, 1, out));
    EXPECT_MESSAGE("the model takes ids");
    tt_use_close(u);
    close_job(&t);
}
