/* bench: how fast a job trains, on made-up rows in memory.
 *
 * The best of many short windows is told, so that what else the machine does hurts less. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "cli.h"

static const double WARM_S = 2; /* no more steps than one, if they take as long */
enum { WARM_STEPS = 4, WINDOWS_LEAST = 3, BATCHES_MOST = 16, ROWS_BYTES_MOST = 64 << 20 };

typedef struct bench_opts {
    tt_opt_list set;
    double seconds, window;
    int64_t threads;
    const char *runs;
    bool json;
} bench_opts;

static const tt_option options[] = {
    {"seconds", 0, TT_OPT_TIME, offsetof(bench_opts, seconds), "S", "measure so long; 5"},
    {"window", 0, TT_OPT_TIME, offsetof(bench_opts, window), "S",
     "length of a window, of which the best counts; 100ms"},
    {"threads", 't', TT_OPT_INT, offsetof(bench_opts, threads), "N", "threads; 0: as the job says"},
    {"set", 's', TT_OPT_LIST, offsetof(bench_opts, set), "KEY=VALUE", "override a key of the job"},
    {"runs", 0, TT_OPT_STRING, offsetof(bench_opts, runs), "DIR", "where run folders are; runs"},
    {"json", 0, TT_OPT_FLAG, offsetof(bench_opts, json), NULL, "print JSON"},
};

/* ---- rows ---- */

typedef struct rows {
    tt_data_rows data;
    float *x, *target;
    int32_t *label, *ids;
    int64_t batch;
} rows;

static void fill_normal(float *x, int64_t n, const char *name)
{
    uint64_t key = tt_random_key(1, name);
    float four[4];

    for (int64_t i = 0; i < n; i++) {
        if (i % 4 == 0) tt_normal4(key, 0, (uint64_t)i / 4, four);
        x[i] = four[i % 4];
    }
}

static void rows_free(rows *r)
{
    free(r->x);
    free(r->target);
    free(r->label);
    free(r->ids);
}

/* Whole batches, few enough to stay small and enough not to be learnt by heart at once. */
static tt_err rows_make(const tt_model *m, int64_t batch, rows *r)
{
    tt_wants w = tt_model_wants(m);
    tt_row row = tt_model_row(m);
    int64_t features = row.features, batches = BATCHES_MOST, n;
    double each = (double)(features + row.ids + row.labels + row.targets) * 4;

    while (batches > 1 && (double)batches * (double)batch * each > ROWS_BYTES_MOST) batches--;
    n = batches * batch;
    r->batch = batch;
    r->x = calloc((size_t)n, tt_mul_size((size_t)features + 1, sizeof(float)));
    r->label = calloc((size_t)n, tt_mul_size((size_t)row.labels + 1, sizeof(int32_t)));
    r->ids = calloc((size_t)n, tt_mul_size((size_t)row.ids + 1, sizeof(int32_t)));
    r->target =
        calloc((size_t)n, tt_mul_size((size_t)(w.targets > 0 ? w.targets : 1), sizeof(float)));
    if (!r->x || !r->label || !r->target || !r->ids)
        return tt_fail(TT_ENOMEM, "no memory for %lld rows of %lld numbers", (long long)n,
                       (long long)features);
    fill_normal(r->x, n * features, "bench rows");
    if (w.targets > 0) fill_normal(r->target, n * w.targets, "bench targets");
    /* 0 or 1: such targets are fine for every loss. */
    for (int64_t i = 0; i < n * w.targets; i++) r->target[i] = r->target[i] > 0;
    for (int64_t i = 0; i < n * row.ids; i++)
        if (w.id_rows[i % row.ids])
            r->ids[i] = (int32_t)(tt_philox(tt_random_key(1, "bench ids"), 0, (uint64_t)i).v[0] %
                                  (uint64_t)w.id_rows[i % row.ids]);
    for (int64_t i = 0; i < n * row.labels; i++)
        r->label[i] = (int32_t)(tt_philox(tt_random_key(1, "bench labels"), 0, (uint64_t)i).v[0] %
                                (uint32_t)w.classes);
    r->data = (tt_data_rows){.x = r->x, .ids = r->ids, .n = n};
    if (w.classes > 0) r->data.label = r->label;
    if (w.targets > 0) r->data.target = r->target;
    return TT_OK;
}

/* ---- the job, made endless ---- */

/* It trains until we have seen enough, and neither validates nor saves. */
static tt_err make_endless(tt_tree *t)
{
    const char *length =
        tt_tree_get(t, "train.steps") ? "train.steps=1000000000" : "train.epochs=1000000";
    tt_err err;

    if ((err = tt_tree_set(t, length)) || (err = tt_tree_set(t, "train.validate=never")))
        return err;
    if (tt_tree_get(t, "train.early_stop") && (err = tt_tree_set(t, "train.early_stop=null")))
        return err;
    return TT_OK;
}

static tt_err read_batch(tt_tree *t, int64_t *batch)
{
    static const tt_key key = {"batch", TT_INT, 0, NULL, 1, 1 << 24, NULL, NULL};
    tt_err err;

    if ((err = tt_job_check(t))) return err; /* fills in the default */
    return tt_node_value(tt_tree_get(t, "train.batch"), "train.batch", &key, batch);
}

/* ---- measuring ---- */

typedef struct figures {
    double best, median; /* samples/s */
    int windows, window_steps;
} figures;

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* With one thread, the CPU time of the whole process, its data thread included: other programs on
 * the machine do not count. With several, the time on the wall. */
static double bench_clock(int threads)
{
    struct timespec ts;
    if (threads != 1) return tt_clock_s();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* Until memory is there and all is in its place; tells what the last step took. */
static tt_err warm(tt_trainer *t, double *step_s)
{
    double since = tt_clock_s(), begun, end;
    tt_progress p;
    int n = 0;
    tt_err err;

    do {
        begun = tt_clock_s();
        err = tt_train_step(t, &p);
        end = tt_clock_s();
    } while (!err && ++n < WARM_STEPS && end - since < WARM_S);
    *step_s = end - begun;
    return err;
}

static tt_err measure(tt_trainer *t, const bench_opts *o, int64_t batch, figures *out)
{
    enum { MOST = 1 << 16 };
    double begun, end, step_s = 0, *rate = calloc(MOST, sizeof *rate);
    tt_progress p;
    int n = 0, threads = tt_train_threads(t);
    tt_err err;

    if (!rate) tt_mem_out(MOST * sizeof *rate);
    err = warm(t, &step_s);
    out->window_steps = (int)fmin(1e6, fmax(1, o->window / step_s));
    end = tt_clock_s() + o->seconds;
    while (!err && n < MOST && (n < WINDOWS_LEAST || tt_clock_s() < end)) {
        begun = bench_clock(threads);
        for (int i = 0; i < out->window_steps && !err; i++) err = tt_train_step(t, &p);
        rate[n++] = (double)batch * out->window_steps / (bench_clock(threads) - begun);
    }
    if (!err) {
        qsort(rate, (size_t)n, sizeof *rate, by_size);
        out->best = rate[n - 1];
        out->median = rate[n / 2];
        out->windows = n;
    }
    free(rate);
    return err;
}

/* What the process had at most. */
static double memory_mb(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)used.ru_maxrss * 1024 / 1e6;
}

static void print(const tt_trainer *t, const figures *f, int64_t batch, bool json)
{
    const tt_model *m = tt_train_model(t);
    int threads = tt_train_threads(t);
    double gflops = f->best * tt_model_train_flops(m) / 1e9;
    double peak = tt_peak_gflops(tt_model_kernels(m)) * threads, mb = memory_mb();

    if (json) {
        cli_json_print(stdout,
                       json_pack("{s:s, s:I, s:i, s:s, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:f}",
                                 "name", tt_train_name(t), "batch", (json_int_t)batch, "threads",
                                 threads, "kernels", tt_model_kernels(m)->name, "samples_per_s",
                                 f->best, "samples_per_s_median", f->median, "gflops", gflops,
                                 "peak_gflops", peak, "share_of_peak", peak > 0 ? gflops / peak : 0,
                                 "windows", f->windows, "window_steps", f->window_steps,
                                 "memory_mb", mb),
                       true);
        return;
    }
    printf("%s, batch %lld, %d thread%s, %s kernels\n", tt_train_name(t), (long long)batch, threads,
           threads == 1 ? "" : "s", tt_model_kernels(m)->name);
    printf("  %.*f samples/s in the best of %d windows of %d steps (median %.*f)\n",
           f->best < 100 ? 2 : 0, f->best, f->windows, f->window_steps, f->best < 100 ? 2 : 0,
           f->median);
    printf("  %.1f GFLOP/s, %.0f %% of the peak of %.1f\n", gflops,
           peak > 0 ? 100 * gflops / peak : 0, peak);
    printf("  %.0f MB of memory at most\n", mb);
}

static tt_err bench(const bench_opts *o, const char *name)
{
    cli_job job = {0};
    tt_job parts;
    rows r = {0};
    figures f = {0};
    tt_model *m = NULL;
    tt_trainer *t = NULL;
    tt_train_opts to = {.no_files = true, .train_rows = &r.data};
    int64_t batch = 0;
    tt_err err;

    if ((err = cli_threads(o->threads, &to.threads)) ||
        (err = cli_job_load(name, o->runs, &o->set, o->json, &job)) ||
        (err = make_endless(job.tree)) || (err = read_batch(job.tree, &batch)) ||
        (err = tt_job_read(job.tree, &parts)) ||
        (err = tt_model_open(parts.model, &(tt_model_opts){0}, &m)) ||
        (err = rows_make(m, batch, &r)))
        goto out;
    to.job = job.tree;
    if ((err = tt_train_open(&to, &t)) || (err = measure(t, o, batch, &f))) goto out;
    print(t, &f, batch, o->json);
out:
    tt_train_close(t);
    tt_model_close(m);
    rows_free(&r);
    cli_job_close(&job);
    return err;
}

static int bench_run(const void *opts, int argc, const char **argv)
{
    bench_opts o = *(const bench_opts *)opts;
    tt_err err;

    (void)argc;
    if (o.seconds == 0) o.seconds = 5;
    if (o.window == 0) o.window = 0.1;
    if (o.seconds < 0 || o.window < 0)
        err = tt_fail(TT_EINVAL, "--seconds and --window: a time cannot be negative");
    else
        err = bench(&o, argv[0]);
    return err ? cli_fail(err) : 0;
}

const tt_command cli_bench = {
    .name = "bench",
    .args = "JOB",
    .args_least = 1,
    .args_most = 1,
    .brief = "measure how fast a job trains on this machine",
    .about = "Trains the job's model on random rows in memory, with its batch and optimiser, and "
             "gives samples "
             "a second in the best window, GFLOP/s (a multiply and an add count as two), and the "
             "share of the "
             "measured peak of the threads used. One thread is measured in CPU time, several on "
             "the wall "
             "clock. Memory is what the process had at most. Nothing is written.",
    .examples = (const char *const[]){"tutti bench job.yaml", "as the job says",
                                      "tutti bench job.yaml --threads 1 --seconds 10",
                                      "one core, longer", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(bench_opts),
    .run = bench_run,
};
