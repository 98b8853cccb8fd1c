/* Wrong numbers: bits that change, and numbers that are none. They are found in the step in which
 * they matter, named, and come to nothing. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/vault.h"
#include "train_together.h"

/* ---- bits that change ---- */

/* Of job_text's weights: those that are copied to a layout of their own when a step is over, so
 * that what changes afterwards the optimiser alone sees, and some that are not. */
static const char OF_CONV[] = "c.weight", OF_NORM[] = "b.weight";

/* One world of a run that keeps its state; in step `at` a bit of some ranks' weights changes. */
typedef struct trial {
    const char *changes, *folder;
    uint32_t generation;
    bool flips[RANKS];
    int64_t at;        /* after this step ... */
    const char *where; /* ... in this tensor */
    /* what came of it */
    bool odd[RANKS];
    tt_err err[RANKS];
    int64_t step[RANKS];
    char message[RANKS][512], sha[65];
    tt_train_found found;
} trial;

static tt_err try_rank(tt_world *w, void *arg)
{
    trial *x = arg;
    tt_train_opts o = {
        .run = x->folder, .again = true, .keep = true, .stand_by = true, .world = w, .threads = 2};
    tt_train_told told = {.generation = x->generation};
    tt_train_found found;
    tt_trainer *t = NULL;
    tt_progress p = {0};
    tt_err err = TT_OK;
    int count;

    TRY(tt_tree_parse("job", job_text, strlen(job_text), &o.job));
    TRY(change(o.job, x->changes));
    TRY(tt_train_open(&o, &t));
    TRY(tt_train_find(t, &told, &found));
    TRY(tt_train_begin(t));
    if (!w->rank) x->found = found;
    const tt_param *params = tt_model_params(tt_train_model(t), &count);
    while (!p.end && !(err = tt_train_step(t, &p))) {
        x->step[w->rank] = p.step;
        if (p.step != x->at || !x->flips[w->rank]) continue;
        for (int i = 0; i < count; i++)
            if (!strcmp(params[i].name, x->where))
                ((uint32_t *)(uintptr_t)tt_train_params(t))[params[i].at] ^= 1u << 20;
    }
    x->err[w->rank] = err;
    snprintf(x->message[w->rank], sizeof *x->message, "%s", err ? tt_message() : "");
    x->odd[w->rank] = tt_train_odd(t, w->rank);
    if (!w->rank) tt_params_sha(params, count, tt_train_params(t), x->sha);
    if (!err) err = tt_train_finish(t, "done");
    tt_train_close(t);
    tt_tree_close(o.job);
    return TT_OK;
}

static trial try(int ranks, const int *hosts, trial x)
{
    EXPECT_OK(tt_sim_run(ranks, hosts, 30, try_rank, &x));
    return x;
}

static const char exact[] = "parallel.exact=true; parallel.grains=8; checkpoint.every=never; ";

/* A bit of rank 1's weights changes after step 5: step 6 makes others of them, 7 does not come. */
static void expect_found(const char *folder, const char *more, const int *hosts, const char *where)
{
    char changes[512];
    snprintf(changes, sizeof changes, "%s%s", exact, more);
    together one = run(3, NULL, 1, changes);
    trial x = try(3, hosts,
                  (trial){.changes = changes,
                          .folder = folder,
                          .generation = 1,
                          .flips = {false, true},
                          .at = 5,
                          .where = where});

    for (int r = 0; r < 3; r++) {
        EXPECT_INT(TT_EPEER, x.err[r]);
        EXPECT_INT(6, x.step[r]);
        EXPECT(strstr(x.message[r], "the weights of rank 1 (") != NULL);
        EXPECT_INT(r == 1, x.odd[r]);
    }
    x = try(3, hosts, (trial){.changes = changes, .folder = folder, .generation = 2});
    EXPECT_INT(0, x.err[0]);
    EXPECT(!x.found.disk);
    EXPECT_INT(5, x.found.label.step); /* rank 1 had its part in step 6 */
    EXPECT(x.found.lost);
    EXPECT_STR(one.sha, x.sha);
    forget_vaults(folder, 3);
}

TT_TEST(numbers, a_changed_bit_is_found_and_its_rank_is_named)
{
    expect_found("here", "", NULL, OF_CONV);
    expect_found("norm", "", NULL, OF_NORM);
}

TT_TEST(numbers, so_it_is_on_several_hosts)
{
    expect_found("hosts", "", two_hosts, OF_NORM);
    expect_found("apart", "parallel.bucket=4096", apart, OF_CONV);
}

/* Of two nobody knows who is right: both go back to where they agree. */
TT_TEST(numbers, of_two_ranks_none_is_named_and_both_go_back)
{
    together one = run(2, NULL, 1, exact);
    trial x = try(2, NULL,
                  (trial){.changes = exact,
                          .folder = "two",
                          .generation = 1,
                          .flips = {true},
                          .at = 5,
                          .where = OF_CONV});

    EXPECT_INT(TT_EPEER, x.err[0]);
    EXPECT(strstr(x.message[0], "nobody can say whose are right") != NULL);
    EXPECT(!x.odd[0] && !x.odd[1]);
    x = try(2, NULL, (trial){.changes = exact, .folder = "two", .generation = 2});
    EXPECT_INT(0, x.err[0]);
    /* What is before the disputed step 6 is rank 1's step 5: rank 0's is not what it committed. */
    EXPECT_INT(5, x.found.label.step);
    EXPECT(x.found.label.attempt > 0 && x.found.lost);
    EXPECT_STR(one.sha, x.sha);
    forget_vaults("two", 1);
}

/* ---- numbers that are none ---- */

enum { ROWS = 168, SIZE = 2 * 6 * 6, BAD_ROW = 77 };

static struct rows {
    float x[ROWS * SIZE];
    int32_t label[ROWS];
} rows;

/* A layer that cannot bear one of them, as long as it is sick. */
static _Atomic bool sick;

static tt_err sick_shape(void *args, tt_shape in, tt_shape *out, tt_custom_param *p, int *count)
{
    *(int64_t *)args = tt_shape_count(in);
    *out = in;
    *count = 0;
    (void)p;
    return TT_OK;
}

static void sick_forward(const void *args, int n, const float *x, const float *const *w, float *y,
                         bool train)
{
    int64_t size = *(const int64_t *)args;

    memcpy(y, x, (size_t)(n * size) * sizeof *y);
    for (int i = 0; i < n; i++)
        if (sick && x[i * size] > 9) y[i * size] = INFINITY;
    (void)w;
    (void)train;
}

static void sick_backward(const void *args, int n, const float *x, const float *y, const float *dy,
                          const float *const *w, float *dx, float *const *dw)
{
    int64_t size = *(const int64_t *)args;

    if (dx) memcpy(dx, dy, (size_t)(n * size) * sizeof *dx);
    (void)x;
    (void)y;
    (void)w;
    (void)dw;
}

static void make_rows(void)
{
    static const tt_custom kind = {.kind = "sick",
                                   .args_size = sizeof(int64_t),
                                   .shape = sick_shape,
                                   .forward = sick_forward,
                                   .backward = sick_backward};
    static bool added;

    if (!added) EXPECT_OK(tt_custom_add(&kind));
    added = sick = true;
    for (int i = 0; i < ROWS; i++) {
        rows.label[i] = i % 4;
        for (int k = 0; k < SIZE; k++)
            rows.x[i * SIZE + k] = (float)((i * 31 + k * 17) % 13) / 13 + (k % 4 == i % 4);
    }
    rows.x[BAD_ROW * SIZE] = 10;
}

typedef struct nan_trial {
    const char *changes, *folder; /* NULL: no files */
    bool keep, resume;
    bool spoil; /* the metrics cannot be written from before the first rollback until after it */
    uint32_t generation;
    int mend_after; /* so many rollbacks; 0: never */
    int64_t until;
    tt_err err;
    char message[1024], sha[65], numbers[1024];
    char trouble[1024]; /* told with the first step after that */
    int skips, backs;
    int64_t steps, back_to;
    uint64_t samples, sum;
} nan_trial;

/* Something else has the name of the metrics, and then no more. */
static void spoil_metrics(nan_trial *x, const tt_progress *p)
{
    char path[256], away[256];

    snprintf(path, sizeof path, "%s/metrics.jsonl", x->folder);
    snprintf(away, sizeof away, "%s/away", x->folder);
    if (p->step == 1 && !x->backs) {
        EXPECT(!rename(path, away) && !mkdir(path, 0700));
    } else if (x->backs && !*x->trouble && !p->attempt) {
        snprintf(x->trouble, sizeof x->trouble, "%s", p->save_trouble ? p->save_trouble : "none");
        EXPECT(!rmdir(path) && !rename(away, path));
        usleep(1100 * 1000); /* it is tried once a second */
    }
}

static tt_err nan_rank(tt_world *w, void *arg)
{
    nan_trial *x = arg;
    tt_data_rows d = {.x = rows.x, .label = rows.label, .n = ROWS};
    tt_train_opts o = {.run = x->folder,
                       .no_files = !x->folder,
                       .keep = x->keep,
                       .again = x->keep,
                       .stand_by = x->keep,
                       .resume = x->resume,
                       .train_rows = &d,
                       .world = w,
                       .threads = 1};
    tt_trainer *t = NULL;
    tt_progress p = {0};
    tt_err err = TT_OK;
    int count, backs = 0;

    TRY(tt_tree_parse("job", job_text, strlen(job_text), &o.job));
    TRY(change(o.job, "model.layers.0=sick; data=null; train.validate=never; checkpoint.best=none; "
                      "train.on_nan=skip"));
    TRY(change(o.job, x->changes));
    TRY(tt_train_open(&o, &t));
    if (x->keep) {
        tt_train_found found;
        TRY(tt_train_find(t, &(tt_train_told){.generation = x->generation}, &found));
        TRY(tt_train_begin(t));
    }
    while (!p.end && !(x->until && p.step >= x->until) && !(err = tt_train_step(t, &p))) {
        backs += p.attempt > 0;
        if (backs && backs == x->mend_after) sick = false;
        if (w->rank) continue;
        if (p.numbers) snprintf(x->numbers, sizeof x->numbers, "%s", p.numbers);
        x->skips += p.numbers && !p.attempt;
        x->backs += p.attempt > 0;
        if (p.attempt) x->back_to = p.step;
        if (p.ended.samples) x->samples = p.ended.count, x->sum = p.ended.sum;
        if (x->spoil) spoil_metrics(x, &p);
    }
    const tt_param *params = tt_model_params(tt_train_model(t), &count);
    if (!w->rank) {
        x->err = err;
        x->steps = p.step;
        snprintf(x->message, sizeof x->message, "%s", err ? tt_message() : "");
        tt_params_sha(params, count, tt_train_params(t), x->sha);
    }
    if (!err && !x->until) err = tt_train_compare(t);
    if (!err && x->folder && !x->until) err = tt_train_finish(t, "done");
    tt_train_close(t);
    tt_tree_close(o.job);
    return err == TT_EDIVERGED ? TT_OK : err;
}

static nan_trial nan_run(int ranks, const int *hosts, nan_trial x)
{
    if (!x.resume) make_rows();
    EXPECT_OK(tt_sim_run(ranks, hosts, 30, nan_rank, &x));
    return x;
}

TT_TEST(numbers, what_is_not_finite_is_named_by_layer_rank_and_row)
{
    static const char stop[] = "train.on_nan=stop; parallel.exact=true; parallel.grains=8";

    for (int ranks = 1; ranks <= 3; ranks++) {
        nan_trial x = nan_run(ranks, NULL, (nan_trial){.changes = stop});
        EXPECT_INT(TT_EDIVERGED, x.err);
        EXPECT(strstr(x.message, "the loss is not a finite number") != NULL);
        EXPECT(strstr(x.message, "in layer 'sick1' of the way forward, on rank ") != NULL);
        EXPECT(strstr(x.message, "with row 77 of the training data") != NULL);
    }
    nan_trial x = nan_run(2, apart, (nan_trial){.changes = "train.on_nan=stop"});
    EXPECT(strstr(x.message, "with row 77 of the training data") != NULL);
}

TT_TEST(numbers, a_skipped_step_changes_nothing_and_its_samples_count)
{
    static const char skip[] = "parallel.exact=true; parallel.grains=8";
    static const char *const modes[] = {"allreduce", "shard", "chief"};
    nan_trial one = nan_run(1, NULL, (nan_trial){.changes = skip});

    EXPECT_INT(0, one.err);
    EXPECT_INT(3, one.skips); /* once an epoch */
    EXPECT_INT(27, one.steps);
    EXPECT_INT(ROWS, one.samples);
    for (int i = 0; i < TT_COUNT(modes); i++)
        for (int ranks = 2; ranks <= 3; ranks++) {
            char changes[256];
            snprintf(changes, sizeof changes, "%s; parallel.aggregate=%s", skip, modes[i]);
            nan_trial x = nan_run(ranks, i ? NULL : two_hosts, (nan_trial){.changes = changes});
            EXPECT_INT(3, x.skips);
            EXPECT_STR(one.sha, x.sha);
        }
}

TT_TEST(numbers, a_skipped_step_is_in_the_vault)
{
    static const char skip[] = "parallel.exact=true; parallel.grains=8; checkpoint.every=never";
    nan_trial one = nan_run(1, NULL, (nan_trial){.changes = skip}), x = {0};

    for (int step = 1; step <= 10; step++) { /* a world for each of the first steps */
        x = nan_run(2, NULL,
                    (nan_trial){.changes = skip,
                                .folder = "skip",
                                .keep = true,
                                .generation = (uint32_t)step,
                                .until = step});
        EXPECT_INT(0, x.err);
    }
    x = nan_run(3, NULL,
                (nan_trial){.changes = skip, .folder = "skip", .keep = true, .generation = 11});
    EXPECT_INT(27, x.steps);
    EXPECT_STR(one.sha, x.sha);
    forget_vaults("skip", 1);
}

TT_TEST(numbers, going_back_takes_another_order_and_every_sample_once)
{
    static const char back[] = "parallel.exact=true; parallel.grains=8; train.on_nan=rollback";
    nan_trial a = nan_run(1, NULL, (nan_trial){.changes = back, .folder = "a", .mend_after = 2}),
              b = nan_run(3, two_hosts,
                          (nan_trial){.changes = back, .folder = "b", .mend_after = 2});

    EXPECT_INT(0, a.err);
    EXPECT_INT(2, a.backs);
    EXPECT_INT(27, a.steps);
    EXPECT_INT(ROWS, a.samples);
    EXPECT(strstr(a.numbers, "goes back to step") != NULL);
    EXPECT_STR(a.sha, b.sha); /* as exact as all else */
}

/* How many lines of the metrics are of this step, of training. */
static int lines_of(const char *path, int step)
{
    char text[64];

    snprintf(text, sizeof text, "\"step\":%d,\"split\":\"train\"", step);
    return count_text(path, text);
}

TT_TEST(numbers, going_back_needs_no_disk)
{
    static const char back[] = "parallel.exact=true; parallel.grains=8; train.on_nan=rollback; "
                               "train.log_every=1; checkpoint.every=never";
    nan_trial a = nan_run(2, NULL, (nan_trial){.changes = back, .folder = "a", .mend_after = 1}),
              b = nan_run(
                  2, NULL,
                  (nan_trial){.changes = back, .folder = "b", .mend_after = 1, .spoil = true});

    EXPECT_INT(0, b.err);
    EXPECT_INT(1, b.backs);
    EXPECT_STR(a.sha, b.sha);
    EXPECT(strstr(b.trouble, "metrics are lost") != NULL);
    /* The rollback and the first step after it could not be written; what was before it is gone. */
    EXPECT_INT(1, count_text("b/log.txt", "2 lines of metrics.jsonl are lost"));
    EXPECT_INT(1, lines_of("a/metrics.jsonl", 1));
    EXPECT_INT(0, lines_of("b/metrics.jsonl", 1));
    for (int step = 2; step <= 27; step++) EXPECT_INT(1, lines_of("b/metrics.jsonl", step));
}

TT_TEST(numbers, going_back_in_vain_ends)
{
    nan_trial x =
        nan_run(2, NULL, (nan_trial){.changes = "train.on_nan=rollback; checkpoint.every=never"});

    EXPECT_INT(TT_EDIVERGED, x.err);
    EXPECT_INT(3, x.backs);
    EXPECT_INT(0, x.back_to);
    EXPECT(strstr(x.message, "3 times already") != NULL);
}

TT_TEST(numbers, the_other_order_outlives_the_world)
{
    static const char back[] = "parallel.exact=true; parallel.grains=8; train.on_nan=rollback; "
                               "train.epochs=6";
    nan_trial whole =
        nan_run(2, NULL, (nan_trial){.changes = back, .folder = "whole", .mend_after = 1});
    EXPECT_INT(1, whole.backs);

    /* By a checkpoint that was made since ... */
    nan_trial x = nan_run(
        2, NULL, (nan_trial){.changes = back, .folder = "disk", .mend_after = 1, .until = 30});
    EXPECT_INT(1, x.backs);
    x = nan_run(3, NULL, (nan_trial){.changes = back, .folder = "disk", .resume = true});
    EXPECT_INT(0, x.backs);
    EXPECT_STR(whole.sha, x.sha);
    /* ... and by the vault. */
    x = nan_run(2, NULL,
                (nan_trial){.changes = back,
                            .folder = "vault",
                            .mend_after = 1,
                            .keep = true,
                            .generation = 1,
                            .until = 13});
    EXPECT_INT(1, x.backs);
    x = nan_run(
        3, NULL,
        (nan_trial){
            .changes = back, .folder = "vault", .keep = true, .generation = 2, .resume = true});
    EXPECT_STR(whole.sha, x.sha);
    forget_vaults("vault", 1);
}

/* ---- audits ---- */

/* A layer that is wrong the next time its rank goes back through it; 2: and every time after it; 3:
 * and what it says is no number. */
static _Thread_local int lies;

static void lying_forward(const void *args, int n, const float *x, const float *const *w, float *y,
                          bool train)
{
    memcpy(y, x, (size_t)(n * *(const int64_t *)args) * sizeof *y);
    (void)w;
    (void)train;
}

static void lying_backward(const void *args, int n, const float *x, const float *y, const float *dy,
                           const float *const *w, float *dx, float *const *dw)
{
    memcpy(dx, dy, (size_t)(n * *(const int64_t *)args) * sizeof *dx);
    if (lies && n) dx[0] += lies == 3 ? INFINITY : 0.125f;
    if (lies == 1) lies = 0;
    (void)x;
    (void)y;
    (void)w;
    (void)dw;
}

typedef struct lie_trial {
    const char *changes, *folder;
    int64_t at[2]; /* in the step after these ... */
    int rank;      /* ... this one is wrong */
    int lies;
    tt_err err;
    int found, caught;
    bool odd[RANKS];
    char sha[65], numbers[1024], message[1024];
} lie_trial;

static tt_err lie_rank(tt_world *w, void *arg)
{
    lie_trial *x = arg;
    tt_train_opts o = {.run = x->folder, .no_files = !x->folder, .world = w, .threads = 1};
    tt_trainer *t = NULL;
    tt_progress p = {0};
    tt_err err = TT_OK;
    int count;

    TRY(tt_tree_parse("job", job_text, strlen(job_text), &o.job));
    TRY(change(o.job, "model.layers.2=lying; parallel.exact=true; parallel.grains=8"));
    TRY(change(o.job, x->changes));
    TRY(tt_train_open(&o, &t));
    while (!p.end && !err) {
        if (w->rank == x->rank && (p.step == x->at[0] || p.step == x->at[1])) lies = x->lies;
        err = tt_train_step(t, &p);
        if (w->rank || err) continue;
        x->found += p.numbers != NULL;
        if (p.numbers) snprintf(x->numbers, sizeof x->numbers, "%s", p.numbers);
        for (int r = 0; r < w->size && p.numbers; r++)
            if (tt_train_caught(t, r)) x->caught |= 1 << r;
    }
    lies = 0;
    const tt_param *params = tt_model_params(tt_train_model(t), &count);
    if (!w->rank) {
        x->err = err;
        snprintf(x->message, sizeof x->message, "%s", err ? tt_message() : "");
        for (int r = 0; r < w->size; r++) x->odd[r] = tt_train_odd(t, r);
        tt_params_sha(params, count, tt_train_params(t), x->sha);
    }
    tt_train_close(t);
    tt_tree_close(o.job);
    return TT_OK;
}

static lie_trial lie_run(int ranks, const int *hosts, lie_trial x)
{
    static const tt_custom kind = {.kind = "lying",
                                   .args_size = sizeof(int64_t),
                                   .shape = sick_shape,
                                   .forward = lying_forward,
                                   .backward = lying_backward};
    static bool added;

    if (!added) EXPECT_OK(tt_custom_add(&kind));
    added = true;
    EXPECT_OK(tt_sim_run(ranks, hosts, 30, lie_rank, &x));
    return x;
}

TT_TEST(numbers, a_gradient_that_is_none_is_named_by_layer_and_rank)
{
    lie_trial x = lie_run(3, NULL, (lie_trial){.changes = "", .at = {5, -1}, .rank = 1, .lies = 3});

    EXPECT_INT(TT_EDIVERGED, x.err);
    EXPECT(strstr(x.message, "step 6: the gradient is not finite") != NULL);
    EXPECT(strstr(x.message, "in the gradient of layer 'lying1', on rank 1 (") != NULL);
    EXPECT(strstr(x.message, "with row ") != NULL);
}

TT_TEST(numbers, audits_change_nothing)
{
    lie_trial one = lie_run(1, NULL, (lie_trial){.changes = "", .rank = -1});

    EXPECT_STR(one.sha,
               lie_run(3, NULL, (lie_trial){.changes = "parallel.audit=1", .rank = -1}).sha);
    EXPECT_STR(
        one.sha,
        lie_run(5, two_hosts,
                (lie_trial){.changes = "parallel.audit=0.5; parallel.aggregate=shard", .rank = -1})
            .sha);
}

TT_TEST(numbers, a_wrong_gradient_is_found_by_an_audit_and_the_step_done_again)
{
    lie_trial one = lie_run(1, NULL, (lie_trial){.changes = "", .rank = -1});
    lie_trial blind =
        lie_run(3, NULL, (lie_trial){.changes = "", .at = {5, -1}, .rank = 1, .lies = 1});

    EXPECT(strcmp(one.sha, blind.sha) != 0); /* it does matter */
    for (int ranks = 2; ranks <= 4; ranks++) {
        lie_trial x = lie_run(ranks, ranks == 3 ? apart : NULL,
                              (lie_trial){.changes = "parallel.audit=1",
                                          .folder = ranks == 3 ? "audited" : NULL,
                                          .at = {5, -1},
                                          .rank = 1,
                                          .lies = 1});
        EXPECT_INT(0, x.err);
        EXPECT_INT(1, x.found);
        EXPECT_INT(1 << 1, x.caught);
        EXPECT(strstr(x.numbers, "step 6: rank ") && strstr(x.numbers, ": rank 1 is wrong"));
        EXPECT_STR(one.sha, x.sha);
    }
    tt_bytes b;
    EXPECT_OK(tt_file_read("audited/evidence.jsonl", 0, &b));
    EXPECT(strstr((const char *)b.data, "\"step\":6") != NULL);
    EXPECT(strstr((const char *)b.data, "\"wrong\":true") != NULL);
    tt_file_release(&b);
}

TT_TEST(numbers, who_is_caught_twice_ends_the_world_and_is_named)
{
    lie_trial x = lie_run(
        3, NULL, (lie_trial){.changes = "parallel.audit=1", .at = {5, 9}, .rank = 2, .lies = 1});

    EXPECT_INT(TT_EPEER, x.err);
    EXPECT_INT(1, x.found);
    EXPECT(strstr(x.message, "rank 2 is wrong, for the second time") != NULL);
    EXPECT(x.odd[2] && !x.odd[0] && !x.odd[1]);
}

TT_TEST(numbers, of_two_who_both_repeat_themselves_none_is_named)
{
    lie_trial x = lie_run(
        2, NULL, (lie_trial){.changes = "parallel.audit=1", .at = {5, -1}, .rank = 1, .lies = 2});

    EXPECT_INT(TT_EPEER, x.err);
    EXPECT(strstr(x.message, "nobody can say who is wrong") != NULL);
    EXPECT(!x.odd[0] && !x.odd[1]);
}

TT_TEST(numbers, audits_need_exact)
{
    trained x;

    EXPECT_INT(TT_EINVAL,
               open_job(&x, (tt_train_opts){.no_files = true}, job_text, "parallel.audit=0.1"));
    tt_tree_close(x.tree);
    EXPECT_INT(TT_EINVAL, open_job(&x, (tt_train_opts){.no_files = true}, job_text,
                                   "train.on_nan=skip; parallel.aggregate=average"));
    tt_tree_close(x.tree);
}
