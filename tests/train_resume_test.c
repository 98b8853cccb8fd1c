/* Going on: with the same numbers, from a checkpoint worth it, as the run was begun; and what a
 * training tells when its disk or its numbers fail. */
#define _GNU_SOURCE
#include "train_help.h"

#include <fcntl.h>
#include <unistd.h>

static json_t *load_summary(const char *run)
{
    char path[256];
    json_t *s;

    snprintf(path, sizeof path, "%s/summary.json", run);
    s = json_load_file(path, 0, NULL);
    EXPECT(s != NULL);
    return s;
}

/* A part of the training, and then the process dies. */
static void train_part(tt_train_opts o, const char *changes, int64_t step)
{
    trained x;

    EXPECT_OK(open_job(&x, o, job_text, changes));
    go_to(&x, step);
    close_job(&x);
}

/* Puts a checkpoint there as weights that ran away would leave it. */
static void save_runaway(const char *folder, int64_t step)
{
    static const float w[] = {1, NAN};
    tt_entry e = {"w", TT_F32, 1, {2}, w, sizeof w};
    const char *const file = "model.safetensors";
    tt_saver *s;

    EXPECT_OK(tt_saver_open(
        &(tt_saver_opts){.folder = folder, .entries = &e, .file = &file, .count = 1}, &s));
    EXPECT_OK(tt_saver_save(s, step, NULL, NAN));
    EXPECT_OK(tt_saver_wait(s));
    tt_saver_close(s);
}

TT_TEST(resume, a_checkpoint_that_is_not_finite_is_passed_over)
{
    trained whole, rest;
    tt_use *u;

    tt_log_quiet(true);
    train_all(&whole, (tt_train_opts){.no_files = true, .threads = 1}, "");
    train_part((tt_train_opts){.run = "r", .threads = 1}, "", 16);
    save_runaway("r/checkpoints", 21);
    EXPECT_OK(tt_use_open(&(tt_use_opts){.job = whole.tree, .weights = "r"}, &u));
    tt_use_close(u);
    EXPECT_OK(open_job(&rest, (tt_train_opts){.run = "r", .resume = true}, job_text, ""));
    EXPECT_INT(14, tt_train_first_step(rest.t));
    EXPECT(tt_file_exists("r/checkpoints/step-00000021.bad"));
    EXPECT(!tt_file_exists("r/checkpoints/step-00000021"));
    EXPECT_FILE("r/checkpoints/LATEST", "step-00000014\n");
    go_to(&rest, INT64_MAX);
    EXPECT_STR(whole.sha, rest.sha);
    close_job(&whole);
    close_job(&rest);
}

/* The batch is cut by threads, so their number is part of what is computed. The machine this goes
 * on may have another number of CPUs. */
TT_TEST(resume, a_run_keeps_its_number_of_threads)
{
    trained whole, rest;

    tt_log_quiet(true);
    train_all(&whole, (tt_train_opts){.no_files = true, .threads = 3}, "");
    train_part((tt_train_opts){.run = "r", .threads = 3}, "", 7);
    expect_text("r/resolved.yaml", "\n  threads: 3\n");
    EXPECT_OK(open_job(&rest, (tt_train_opts){.run = "r", .resume = true}, job_text, ""));
    EXPECT_INT(3, tt_train_threads(rest.t));
    go_to(&rest, 14);
    close_job(&rest);
    EXPECT_INT(0, count_text("r/log.txt", "bit for bit"));
    EXPECT_OK(open_job(&rest, (tt_train_opts){.run = "r", .resume = true}, job_text, ""));
    go_to(&rest, INT64_MAX);
    EXPECT_STR(whole.sha, rest.sha);
    close_job(&rest);
    close_job(&whole);
}

TT_TEST(resume, what_changes_the_bits_is_told)
{
    static const struct {
        const char *change, *message;
        int threads;
    } cases[] = {
        {"", "uninterrupted run: threads 2, now 1", 1},
        {"train.accumulate=2", "uninterrupted run: accumulate 1, now 2", 0},
        {"train.seed=5;train.batch=10", "uninterrupted run: batch 20, now 10; seed 1, now 5", 0},
        {"train.kernels=ref", ", now ref", 0},
    };
    tt_log_quiet(true);
    for (int i = 0; i < TT_COUNT(cases); i++) {
        trained x;
        char run[16], log[32];
        snprintf(run, sizeof run, "r%d", i);
        snprintf(log, sizeof log, "r%d/log.txt", i);
        train_part((tt_train_opts){.run = run, .threads = 2}, "", 7);
        tt_train_opts o = {.run = run, .resume = true, .threads = cases[i].threads};
        EXPECT_OK(open_job(&x, o, job_text, cases[i].change));
        close_job(&x);
        expect_text(log, cases[i].message);
    }
}

/* ---- where it began ---- */

static void expect_params(const trained *a, const trained *b)
{
    EXPECT(!memcmp(tt_train_params(a->t), tt_train_params(b->t),
                   (size_t)tt_model_size(tt_train_model(a->t)) * sizeof(float)));
}

TT_TEST(resume, without_a_checkpoint_yet_it_starts_from_the_same_weights)
{
    trained a, b;

    train_all(&a, (tt_train_opts){.run = "a"}, "");
    train_part((tt_train_opts){.run = "b", .init = "a"}, "", 3);
    EXPECT(!chdir("b")); /* wherever that is done */
    EXPECT_OK(open_job(&b, (tt_train_opts){.run = "../b", .resume = true}, job_text, ""));
    EXPECT_INT(0, tt_train_first_step(b.t));
    expect_params(&a, &b);
    go_to(&b, 2);
    close_job(&b);
    EXPECT_OK(open_job(&b, (tt_train_opts){.run = "../b", .resume = true}, job_text, ""));
    expect_params(&a, &b); /* still known after that */
    close_job(&b);
    EXPECT(!chdir(".."));
    train_part((tt_train_opts){.run = "c"}, "", 3);
    EXPECT_OK(open_job(&b, (tt_train_opts){.run = "c", .resume = true, .init = "a"}, job_text, ""));
    expect_params(&a, &b);
    close_job(&b);
    train_part((tt_train_opts){.run = "d"}, "", 7); /* has a checkpoint: that counts */
    EXPECT_OK(
        open_job(&b, (tt_train_opts){.run = "d", .resume = true, .init = "nowhere"}, job_text, ""));
    EXPECT_INT(7, tt_train_first_step(b.t));
    close_job(&b);
    close_job(&a);
}

/* From a checkpoint come the weights, all of them and nothing else, whatever they are called. */
TT_TEST(resume, a_checkpoint_gives_its_weights_and_not_its_optimiser)
{
    trained a, b;

    train_all(&a, (tt_train_opts){.run = "a"},
              "model.layers.d.name=sum;train.optimizer={adagrad: {lr: 0.01}}");
    EXPECT_OK(open_job(&b, (tt_train_opts){.no_files = true, .init = "a"}, job_text,
                       "model.layers.d.name=sum"));
    expect_params(&a, &b);
    close_job(&b);
    EXPECT_ERR(TT_ECKPT,
               open_job(&b, (tt_train_opts){.no_files = true, .init = "a"}, job_text, ""));
    EXPECT_MESSAGE("not in the model:\n  sum.");
    tt_tree_close(b.tree);
    close_job(&a);
}

TT_TEST(resume, the_job_that_is_kept_means_the_same_data_elsewhere)
{
    char here[512], want[640];

    EXPECT(getcwd(here, sizeof here));
    setenv("TUTTI_DATA", "some/where", 1);
    train_part((tt_train_opts){.run = "a"}, "", 1);
    snprintf(want, sizeof want, "\n  dir: %s/some/where\n", here);
    expect_text("a/resolved.yaml", want);
    setenv("TUTTI_DATA", "/else", 1);
    train_part((tt_train_opts){.run = "b"}, "data.dir=$TUTTI_DATA/x-${TUTTI_NONE:-y}z", 1);
    expect_text("b/resolved.yaml", "\n  dir: /else/x-yz\n");
    unsetenv("TUTTI_DATA");
    train_part((tt_train_opts){.run = "c"}, "", 1);
    snprintf(want, sizeof want, "\n  dir: %s/data\n", here);
    expect_text("c/resolved.yaml", want);
}

/* ---- the end, again ---- */

TT_TEST(resume, a_run_that_was_stopped_early_stays_so)
{
    static const char early[] = "train.epochs=50;train.early_stop={patience: 2, min_delta: 10}";
    trained x;

    train_part((tt_train_opts){.run = "r"}, early, INT64_MAX); /* dies before its summary */
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(open_job(&x, (tt_train_opts){.run = "r", .resume = true}, job_text, early));
        EXPECT_OK(tt_train_step(x.t, &x.p));
        EXPECT_STR("early stop", x.p.end);
        EXPECT_INT(27, x.p.step);
        EXPECT_OK(tt_train_finish(x.t, "done"));
        close_job(&x);
    }
    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "r", .resume = true}, job_text,
                       "train.epochs=50;train.early_stop={patience: 4, min_delta: 10}"));
    go_to(&x, INT64_MAX);
    EXPECT_INT(27 + 18, x.p.step); /* more patience was asked for */
    close_job(&x);
}

TT_TEST(resume, the_summary_of_a_finished_run_is_no_poorer)
{
    trained x;
    json_t *before, *after;

    train_all(&x, (tt_train_opts){.run = "r"}, "");
    close_job(&x);
    before = load_summary("r");
    for (int epochs = 3; epochs > 0; epochs--) {
        tt_log_quiet(true);
        EXPECT_OK(open_job(&x, (tt_train_opts){.run = "r", .resume = true}, job_text,
                           epochs == 3   ? ""
                           : epochs == 2 ? "train.epochs=2"
                                         : "train.epochs=1"));
        EXPECT_OK(tt_train_step(x.t, &x.p));
        EXPECT_STR("done", x.p.end);
        EXPECT_INT(27, x.p.step);
        EXPECT(x.p.step <= x.p.steps && isfinite(x.p.loss_mean));
        EXPECT_OK(tt_train_finish(x.t, "done"));
        close_job(&x);
        after = load_summary("r");
        json_object_del(after, "seconds");
        json_object_del(before, "seconds");
        EXPECT(json_equal(before, after));
        json_decref(after);
    }
    json_decref(before);
}

/* ---- disks that fail ---- */

TT_TEST(resume, a_checkpoint_is_told_of_when_it_is_on_disk)
{
    int64_t saved[8] = {0};
    trained x;
    int count = 0;

    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "r"}, job_text, ""));
    while (!x.p.end) {
        EXPECT_OK(tt_train_step(x.t, &x.p));
        for (int i = 0; i < x.p.saved; i++) {
            char path[64];
            snprintf(path, sizeof path, "r/checkpoints/step-%08d/manifest.json",
                     (int)x.p.saved_step[i]);
            EXPECT(tt_file_exists(path));
            saved[count++] = x.p.saved_step[i];
        }
    }
    EXPECT_INT(4, count);
    EXPECT(saved[0] == 7 && saved[1] == 14 && saved[2] == 21 && saved[3] == 27);
    close_job(&x);
}

TT_TEST(resume, a_checkpoint_that_failed_is_not_claimed)
{
    trained x;
    json_t *s;
    int saved = 0;

    tt_log_quiet(true);
    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "r"}, job_text, ""));
    EXPECT_OK(tt_dir_remove("r/checkpoints"));
    tt_test_write("r/checkpoints", "", 0); /* no folder can be made there */
    while (!x.p.end) {
        EXPECT_OK(tt_train_step(x.t, &x.p));
        saved += x.p.saved;
        if (x.p.step < 7) EXPECT(!x.p.save_trouble);
    }
    EXPECT_INT(0, saved);
    EXPECT(x.p.save_trouble && strstr(x.p.save_trouble, "checkpoint of step 27 not saved"));
    EXPECT_ERR(TT_ECKPT, tt_train_finish(x.t, "done"));
    EXPECT_MESSAGE("not saved");
    close_job(&x);
    s = load_summary("r");
    EXPECT_STR("failed", json_string_value(json_object_get(s, "status")));
    json_decref(s);
}

/* The next that is due may be far away. */
TT_TEST(resume, a_checkpoint_that_failed_is_tried_again_in_time)
{
    trained x;
    int64_t again = 0;

    tt_log_quiet(true);
    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "r"}, job_text,
                       "checkpoint.every=20; checkpoint.retry=0.2s"));
    go_to(&x, 19);
    EXPECT_OK(tt_failpoint_set("tensors.written=fail:28", NULL));
    double begun = tt_clock_s(), late = 0;
    while (!x.p.end && !again) {
        EXPECT_OK(tt_train_step(x.t, &x.p));
        if (x.p.saved) again = x.p.saved_step[0], late = tt_clock_s() - begun;
        if (x.p.save_trouble) EXPECT(strstr(x.p.save_trouble, "checkpoint of step 20 not saved"));
        EXPECT(!x.p.saved || !x.p.save_trouble);
        usleep(50000);
    }
    EXPECT_OK(tt_failpoint_set(NULL, NULL));
    EXPECT(again > 20 && again < 27);
    EXPECT(late >= 0.2);
    EXPECT_INT(1, count_text("r/log.txt", "is saved: the trouble is over"));
    close_job(&x);
}

/* Whatever this process writes to a file whose name contains `word` fails from now on. */
static void fill_disk_of(const char *word)
{
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC), found = 0;

    EXPECT(full >= 0);
    for (int fd = 3; fd < 256; fd++) {
        char link[64], path[512];
        ssize_t n;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        n = readlink(link, path, sizeof path - 1);
        if (n > 0) path[n] = 0;
        if (n > 0 && strstr(path, word)) found += dup2(full, fd) == fd;
    }
    EXPECT(found > 0);
    close(full);
}

TT_TEST(resume, metrics_that_cannot_be_written_are_told_of_once)
{
    static const char *const words[] = {"metrics.jsonl", "tfevents"};

    tt_log_quiet(true);
    for (int i = 0; i < TT_COUNT(words); i++) {
        trained x;
        char run[16], log[32];
        snprintf(run, sizeof run, "r%d", i);
        snprintf(log, sizeof log, "r%d/log.txt", i);
        EXPECT_OK(open_job(&x, (tt_train_opts){.run = run}, job_text, "train.log_every=1"));
        fill_disk_of(words[i]);
        go_to(&x, INT64_MAX);
        EXPECT_OK(tt_train_finish(x.t, "done"));
        close_job(&x);
        EXPECT_INT(1, count_text(log, "metrics are lost"));
    }
}

/* ---- numbers that fail ---- */

static _Atomic bool poisoned;

static tt_err poison_shape(void *args, tt_shape in, tt_shape *out, tt_custom_param *params,
                           int *count)
{
    (void)args, (void)params;
    *out = in;
    *count = 0;
    return TT_OK;
}

static void poison_forward(const void *args, int n, const float *x, const float *const *w, float *y,
                           bool train)
{
    (void)args, (void)w, (void)train;
    memcpy(y, x, (size_t)n * 180 * sizeof *y);
}

static void poison_backward(const void *args, int n, const float *x, const float *y,
                            const float *dy, const float *const *w, float *dx, float *const *dw)
{
    (void)args, (void)x, (void)y, (void)w, (void)dw;
    if (!dx) return;
    memcpy(dx, dy, (size_t)n * 180 * sizeof *dx);
    if (poisoned) dx[7] = NAN;
}

static const tt_custom poison = {.kind = "poison",
                                 .args_size = 1,
                                 .shape = poison_shape,
                                 .forward = poison_forward,
                                 .backward = poison_backward};

/* The loss is fine, the gradient is not: nothing of the step may remain, neither in the weights nor
 * in the optimiser's state, nor in copies of them. */
TT_TEST(diverge, a_gradient_that_is_not_finite_is_not_applied)
{
    static const char *const jobs[] = {
        "train.clip={}", "train.clip={};train.optimizer={sgd: {lr: 0.05}}",
        "train.clip={};train.optimizer={lamb: {lr: 0.01}}", "train.clip={norm: 1}",
        "train.clip={};train.optimizer={momentum: {lr: 0.05}}"};
    static const char layer[] = "model.layers.2=poison;";
    char changes[256];

    EXPECT_OK(tt_custom_add(&poison));
    for (int i = 0; i < TT_COUNT(jobs); i++)
        for (int threads = 1; threads <= 2; threads++) {
            trained x;
            tt_metrics before, after;
            tt_progress p;
            char sha[65];
            snprintf(changes, sizeof changes, "%s%s", layer, jobs[i]);
            poisoned = false;
            EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true, .threads = threads}, job_text,
                               changes));
            go_to(&x, 3);
            snprintf(sha, sizeof sha, "%s", x.sha);
            EXPECT_OK(tt_train_validate(x.t, &before));
            poisoned = true;
            EXPECT_ERR(TT_EDIVERGED, tt_train_step(x.t, &p));
            EXPECT_MESSAGE("gradient");
            go_to(&x, 3); /* where it is still: takes the fingerprint */
            EXPECT_STR(sha, x.sha);
            EXPECT_OK(tt_train_validate(x.t, &after));
            EXPECT_NEAR(before.loss, after.loss, 0);
            close_job(&x);
        }
}
