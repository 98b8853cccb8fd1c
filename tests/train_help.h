/* What the tests of train/ share: a small job on data made on the spot, and the ways to run it. */
#ifndef TT_TRAIN_HELP_H
#define TT_TRAIN_HELP_H

#include "test.h"
#include "train/train.h"

static const char job_text[] = "name: t\n"
                               "model:\n"
                               "  input: [2, 6, 6]\n"
                               "  layers:\n"
                               "    - conv: {name: c, out: 5, kernel: 3, padding: 1}\n"
                               "    - batchnorm: {name: b}\n"
                               "    - relu\n"
                               "    - maxpool: {size: 2}\n"
                               "    - flatten\n"
                               "    - dropout: {p: 0.2}\n"
                               "    - dense: {name: d, out: 4}\n"
                               "  loss: softmax_cross_entropy\n"
                               "data:\n"
                               "  train: {format: synth, kind: blobs, count: 210, classes: 4}\n"
                               "  val: {split: 0.2}\n"
                               "train:\n"
                               "  epochs: 3\n"
                               "  batch: 20\n"
                               "  optimizer: {adam: {lr: 1e-2}}\n"
                               "  schedule: cosine\n"
                               "  clip: {norm: 1.0}\n"
                               "checkpoint: {every: 7, keep: 0, best: val.accuracy max}\n";

typedef struct trained {
    tt_tree *tree;
    tt_trainer *t;
    tt_progress p;
    char sha[65];
} trained;

/* Opens the job with what is to be different, "; "-separated. */
static inline tt_err open_job(trained *x, tt_train_opts o, const char *text, const char *changes)
{
    char copy[1024], *save, *s;

    memset(x, 0, sizeof *x);
    EXPECT_OK(tt_tree_parse("job", text, strlen(text), &x->tree));
    snprintf(copy, sizeof copy, "%s", changes);
    for (s = strtok_r(copy, ";", &save); s; s = strtok_r(NULL, ";", &save))
        EXPECT_OK(tt_tree_set(x->tree, s + strspn(s, " ")));
    o.job = x->tree;
    return tt_train_open(&o, &x->t);
}

static inline void go_to(trained *x, int64_t step)
{
    while (!x->p.end && x->p.step < step) EXPECT_OK(tt_train_step(x->t, &x->p));
    tt_train_sha(x->t, x->sha);
}

static inline void close_job(trained *x)
{
    tt_train_close(x->t);
    tt_tree_close(x->tree);
}

static inline void train_all(trained *x, tt_train_opts o, const char *changes)
{
    EXPECT_OK(open_job(x, o, job_text, changes));
    go_to(x, INT64_MAX);
    if (!o.no_files) EXPECT_OK(tt_train_finish(x->t, "done"));
}

/* The file has this text somewhere. */
static inline int count_text(const char *path, const char *text)
{
    tt_bytes b;
    int n = 0;

    EXPECT_OK(tt_file_read(path, 0, &b));
    for (size_t i = 0; i + strlen(text) <= b.size; i++)
        n += !memcmp(b.data + i, text, strlen(text));
    tt_file_release(&b);
    return n;
}

static inline void expect_text(const char *path, const char *text)
{
    if (!count_text(path, text)) FAIL("%s lacks \"%s\"", path, text);
}

#endif
