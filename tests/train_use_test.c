/* What was trained, at work: which names weights have, what predicting needs, how much memory it
 * asks for. */
#include "test.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "train/train.h"

static const char job_text[] = "name: t\n"
                               "model:\n"
                               "  input: [4]\n"
                               "  layers:\n"
                               "    - dense: {name: a, out: 5}\n"
                               "    - relu\n"
                               "    - dense: {name: b, out: 3}\n"
                               "  loss: softmax_cross_entropy\n"
                               "data:\n"
                               "  dir: .\n"
                               "  train: {format: csv, file: train.csv, label: y}\n"
                               "  val: {file: val.csv}\n"
                               "train: {steps: 3, batch: 4, optimizer: {sgd: {lr: 0.1}}}\n"
                               "checkpoint: {every: 3}\n";

static void write_csv(const char *path, int rows, bool labels)
{
    tt_str text = {0};

    tt_str_add(&text, "p,q,r,s%s\n", labels ? ",y" : "");
    for (int i = 0; i < rows; i++) {
        tt_str_add(&text, "%d,%d,%d,1", i, i * i % 7, -i);
        tt_str_add(&text, labels ? ",%s\n" : "\n", (const char *[]){"x", "y", "z"}[i % 3]);
    }
    tt_test_write(path, text.data, text.size);
    tt_str_free(&text);
}

static tt_tree *job_with(const char *change)
{
    tt_tree *t;

    EXPECT_OK(tt_tree_parse("job", job_text, strlen(job_text), &t));
    if (change) EXPECT_OK(tt_tree_set(t, change));
    return t;
}

/* A run "r" of the job, and data for it. */
static void train_small(void)
{
    tt_tree *job = job_with(NULL);
    tt_trainer *t;
    tt_progress p = {0};

    write_csv("train.csv", 12, true);
    write_csv("val.csv", 6, true);
    EXPECT_OK(tt_train_open(&(tt_train_opts){.job = job, .run = "r", .threads = 1}, &t));
    while (!p.end) EXPECT_OK(tt_train_step(t, &p));
    EXPECT_OK(tt_train_finish(t, "done"));
    tt_train_close(t);
    tt_tree_close(job);
}

static tt_err use(const char *change, const char *weights, tt_tree **job, tt_use **u)
{
    *job = job_with(change);
    return tt_use_open(&(tt_use_opts){.job = *job, .weights = weights, .threads = 2}, u);
}

TT_TEST(use, rename_is_for_files_of_others)
{
    static const char rename[] = "model.rename={a.*: b.*, b.*: a.*}"; /* ruin, if applied to ours */
    static const char *const ours[] = {"r", "r/checkpoints/step-00000003",
                                       "r/checkpoints/step-00000003/model.safetensors"};
    tt_tree *job, *other;
    tt_use *u, *v;
    size_t bytes;

    train_small();
    EXPECT_OK(use(NULL, "r", &job, &u));
    bytes = (size_t)tt_model_size(tt_use_model(u)) * sizeof(float);
    for (int i = 0; i < TT_COUNT(ours); i++) {
        EXPECT_OK(use(rename, ours[i], &other, &v));
        EXPECT(!memcmp(tt_use_params(u), tt_use_params(v), bytes));
        tt_use_close(v);
        tt_tree_close(other);
    }
    EXPECT_OK(tt_use_export(u, "theirs.safetensors"));
    EXPECT_ERR(TT_ECKPT, use(rename, "theirs.safetensors", &other, &v));
    tt_tree_close(other);
    EXPECT_OK(use("model.rename=null", "theirs.safetensors", &other, &v)); /* no rules at all */
    EXPECT(!memcmp(tt_use_params(u), tt_use_params(v), bytes));
    tt_use_close(v);
    tt_tree_close(other);
    tt_use_close(u);
    tt_tree_close(job);
}

TT_TEST(use, predicting_needs_no_labels_and_gives_what_it_gave_with_them)
{
    float with[6 * 3], without[6 * 3];
    tt_metrics m;
    tt_tree *job;
    tt_use *u;
    int64_t n;

    train_small();
    EXPECT_OK(use(NULL, "r", &job, &u));
    EXPECT_OK(tt_use_count(u, TT_VAL, &n));
    EXPECT_INT(6, n);
    EXPECT_OK(tt_use_predict(u, TT_VAL, 0, 6, with));
    EXPECT_OK(tt_use_eval(u, TT_VAL, &m)); /* this one reads them */
    EXPECT_INT(6, m.samples);
    EXPECT(m.accuracy >= 0);
    EXPECT_OK(tt_use_predict(u, TT_VAL, 0, 6, without));
    EXPECT(!memcmp(with, without, sizeof with));
    tt_use_close(u);
    tt_tree_close(job);

    write_csv("val.csv", 6, false);
    EXPECT_OK(use(NULL, "r", &job, &u));
    EXPECT_OK(tt_use_predict(u, TT_VAL, 0, 6, without));
    EXPECT(!memcmp(with, without, sizeof with));
    EXPECT_STR("z", tt_data_class_name(tt_use_data(u), 2));
    EXPECT_ERR(TT_EINVAL, tt_use_eval(u, TT_VAL, &m));
    EXPECT_MESSAGE("no column 'y'");
    EXPECT_OK(tt_use_predict(u, TT_VAL, 5, 1, without)); /* and no harm was done */
    EXPECT_NEAR(with[15], without[0], 1e-6);
    EXPECT_ERR(TT_EINVAL, tt_use_predict(u, TT_VAL, 5, 2, without));
    tt_use_close(u);
    tt_tree_close(job);
    EXPECT_OK(use("data.val=null", "r", &job, &u));
    EXPECT_ERR(TT_EDATA, tt_use_count(u, TT_VAL, &n));
    EXPECT_MESSAGE("no validation data");
    tt_use_close(u);
    tt_tree_close(job);
}

/* ---- Memory ---- */

static const char wide_text[] = "name: wide\n"
                                "model:\n"
                                "  input: [1]\n"
                                "  layers: [dense: {name: a, out: 2000000}]\n"
                                "  loss: mse\n"
                                "train: {steps: 1, batch: 64, optimizer: {sgd: {lr: 0.1}}}\n";

/* With 440 MB left, 64 rows of 8 MB fail and a single one (which kernels of 16 lanes make 16) does
 * not, however often they are tried. */
static int predict_in_little_memory(void)
{
    float x[64] = {0}, *y = malloc(64 * 8000000l);
    tt_tree *job;
    tt_use *u;
    long pages;
    struct rlimit limit;
    FILE *f = fopen("/proc/self/statm", "r");

    if (!y || !f || fscanf(f, "%ld", &pages) != 1) return 9;
    fclose(f);
    limit.rlim_cur = limit.rlim_max = (rlim_t)(pages * sysconf(_SC_PAGESIZE)) + (440 << 20);
    if (setrlimit(RLIMIT_AS, &limit)) return 8;
    if (tt_tree_parse("job", wide_text, strlen(wide_text), &job)) return 7;
    if (tt_use_open(&(tt_use_opts){.job = job, .threads = 1, .batch = 64}, &u)) return 6;
    for (int i = 0; i < 3; i++) {
        if (tt_use_predict_rows(u, x, NULL, 64, y) != TT_ENOMEM) return 5;
        if (!strstr(tt_message(), "a smaller batch or fewer threads need less")) return 4;
        if (tt_use_predict_rows(u, x, NULL, 1, y)) return 3;
    }
    tt_use_close(u);
    tt_tree_close(job);
    return 0;
}

TT_TEST(use, memory_is_asked_for_the_rows_there_are)
{
    int status;
    pid_t pid;

#ifdef __SANITIZE_ADDRESS__
    tt_test_skip("the address sanitizer needs all addresses for itself");
#endif
    if ((pid = fork()) == 0) _exit(predict_in_little_memory());
    EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid);
    EXPECT_INT(0, status);
}

TT_TEST(use, any_number_of_rows_after_any_other_gives_the_same)
{
    static const int sizes[] = {1, 64, 2, 200, 65, 1, 129, 3, 200};
    float x[200 * 4], all[200 * 3], some[200 * 3];
    tt_tree *job;
    tt_use *u;

    for (int i = 0; i < 800; i++) x[i] = (float)(i * 37 % 101) / 50 - 1;
    EXPECT_OK(use(NULL, NULL, &job, &u));
    EXPECT_OK(tt_use_predict_rows(u, x, NULL, 200, all));
    tt_use_close(u);
    EXPECT_OK(tt_use_open(&(tt_use_opts){.job = job, .threads = 3}, &u));
    for (int k = 0; k < TT_COUNT(sizes); k++) {
        EXPECT_OK(tt_use_predict_rows(u, x, NULL, sizes[k], some));
        for (int i = 0; i < 3 * sizes[k]; i++) EXPECT_NEAR(all[i], some[i], 1e-6);
    }
    tt_use_close(u);
    tt_tree_close(job);
}

/* ---- what token comes next ---- */

static tt_use *next_open(const char *layers, const char *loss, tt_tree **job)
{
    char text[400];
    tt_use *u;

    snprintf(text, sizeof text,
             "name: n\nmodel: {input: {ids: 4}, layers: [%s], loss: %s}\n"
             "data: {train: {format: text, file: t}}\ntrain: {epochs: 1, batch: 1, optimizer: "
             "{sgd: {lr: 1}}}\n",
             layers, loss);
    EXPECT_OK(tt_tree_parse("job", text, strlen(text), job));
    EXPECT_OK(tt_use_open(&(tt_use_opts){.job = *job, .threads = 1}, &u));
    return u;
}

TT_TEST(use, what_comes_next_is_said_by_the_last_layer_and_from_what_came)
{
    static const char own[] = "softmax_cross_entropy",
                      other[] = "{softmax_cross_entropy: {from: logits}}";
    static const struct {
        const char *layers, *loss, *message; /* NULL: it does */
    } c[] = {
        {"embedding: {rows: 9, dim: 6}, layernorm, softmax: {axis: -1}, attention: {heads: 2}, "
         "dense: {out: 9}",
         own, NULL},
        {"embedding: {rows: 9, dim: 6}, dense: {out: 9, name: logits}, dense: {out: 2}", other,
         "does not say what token comes next"},
        {"embedding: {rows: 9, dim: 6}, layernorm: {dims: 2}, dense: {out: 9}", own,
         "by layer 'layernorm"},
        {"embedding: {rows: 9, dim: 6}, softmax: {axis: 0}, dense: {out: 9}", own,
         "by layer 'softmax"},
        {"embedding: {rows: 9, dim: 6}, attention: {heads: 1, causal: false}, dense: {out: 9}", own,
         "by layer 'attention"},
        {"embedding: {rows: 9, dim: 6, first: 2, name: b}, embedding: {rows: 9, dim: 6, count: 2, "
         "name: a}, concat: {from: [b, a]}, dense: {out: 9}",
         own, "by layer 'b'"},
    };

    for (int i = 0; i < TT_COUNT(c); i++) {
        tt_tree *job;
        tt_use *u = next_open(c[i].layers, c[i].loss, &job);
        tt_err err = tt_use_check_next(u);
        if ((err != TT_OK) != (c[i].message != NULL)) FAIL("%s: %d", c[i].layers, err);
        if (err) EXPECT_MESSAGE(c[i].message);
        tt_use_close(u);
        tt_tree_close(job);
    }
}

TT_TEST(use, what_comes_next_has_a_row_to_go_on_from)
{
    static const int32_t good[] = {1, 8, 0}, bad[] = {1, 9, 0}, none[] = {-1};
    float out[9];
    tt_tree *job;
    tt_use *u = next_open("embedding: {rows: 9, dim: 6}, dense: {out: 70000}",
                          "softmax_cross_entropy", &job);

    EXPECT_INT(9, tt_use_next_most(u));
    EXPECT_OK(tt_use_next(u, good, 3, out));
    EXPECT_ERR(TT_EDATA, tt_use_next(u, bad, 3, out));
    EXPECT_MESSAGE("a token 9, but the model's embedding has 9 rows");
    EXPECT_ERR(TT_EDATA, tt_use_next(u, none, 1, out));
    tt_use_close(u);
    tt_tree_close(job);
}

/* 64 texts of a large vocabulary would be 2 GB of scores. */
TT_TEST(use, large_outputs_are_made_a_few_at_a_time)
{
    static const char text[] =
        "name: large\n"
        "model:\n"
        "  input: {ids: 128}\n"
        "  layers: [embedding: {rows: 60000, dim: 2}, dense: {out: 60000}]\n"
        "  loss: softmax_cross_entropy\n"
        "data: {dir: ., train: {format: text, file: t.txt}, val: {split: 0.5}}\n"
        "train: {steps: 1, batch: 1, optimizer: {sgd: {lr: 0.1}}}\n";
    static char story[128 * 20];
    struct rusage before, after;
    tt_metrics m;
    tt_tree *job;
    tt_use *u;

    memset(story, 'a', sizeof story);
    tt_test_write("t.txt", story, sizeof story);
    EXPECT_OK(tt_tree_parse("job", text, strlen(text), &job));
    EXPECT_OK(tt_use_open(&(tt_use_opts){.job = job, .threads = 1}, &u));
    getrusage(RUSAGE_SELF, &before);
    EXPECT_OK(tt_use_eval(u, TT_VAL, &m));
    getrusage(RUSAGE_SELF, &after);
    EXPECT(after.ru_maxrss - before.ru_maxrss < 200000); /* kB; all ten windows: 307 MB */
    EXPECT_NEAR(log(60000), m.loss, 1);
    tt_use_close(u);
    tt_tree_close(job);
}
