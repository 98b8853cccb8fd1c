/* Mean intersection over union: against a count of all pixels, and the same on any number of ranks.
 */
#include "train_help.h"
#include "train/trainer.h"

enum { ROWS = 101, SIDE = 4, PIXELS = SIDE * SIDE, CLASSES = 4 };
static float row_x[ROWS * PIXELS];
static int32_t row_label[ROWS * PIXELS];

static const char pixel_job[] =
    "model: {input: [1, 4, 4], layers: [conv: {out: 4, kernel: 1}], loss: softmax_cross_entropy}\n"
    "parallel: {exact: true, grains: 6, timeout: 5}\n"
    "train: {steps: 3, batch: 20, optimizer: {sgd: {lr: 0.5}}}\n"
    "checkpoint: {best: val.miou max}\n";

/* The label follows from the number, but for one in five; a ninth has none, and class 3 is rare. */
static tt_data_rows rows(void)
{
    for (int i = 0; i < ROWS * PIXELS; i++) {
        float v[4];
        tt_uniform4(5, 0, (uint64_t)i, v);
        row_x[i] = 4 * v[0] - 2;
        row_label[i] = i % 9 == 4       ? -1
                       : v[1] < 0.2f    ? (int32_t)(v[2] * 3)
                       : row_x[i] < -1  ? 0
                       : row_x[i] < 1.9 ? 1 + (row_x[i] > 0.5f)
                                        : 3;
    }
    return (tt_data_rows){.x = row_x, .label = row_label, .n = ROWS};
}

/* By its definition, class by class, from the weights. */
static double wanted(const tt_trainer *t, int64_t n)
{
    const float *w = tt_train_params(t), *b = w + CLASSES;
    double sum = 0;
    int there = 0, count;

    const tt_param *p = tt_model_params(tt_train_model(t), &count);
    for (int i = 0; i < count; i++)
        if (p[i].rank == 1) b = w + p[i].at;
    for (int c = 0; c < CLASSES; c++) {
        int64_t both = 0, any = 0;
        for (int64_t i = 0; i < n * PIXELS; i++) {
            int best = 0;
            if (row_label[i] < 0) continue;
            for (int k = 1; k < CLASSES; k++)
                if (w[k] * row_x[i] + b[k] > w[best] * row_x[i] + b[best]) best = k;
            both += best == c && row_label[i] == c;
            any += best == c || row_label[i] == c;
        }
        if (any) sum += (double)both / (double)any, there++;
    }
    return sum / there;
}

typedef struct world_case {
    int threads;
    int64_t rows; /* of the validation */
    double miou;
} world_case;

static tt_err validate_rank(tt_world *w, void *arg)
{
    world_case *x = arg;
    tt_data_rows r = {.x = row_x, .label = row_label, .n = ROWS}, val = r;
    tt_train_opts o = {
        .no_files = true, .world = w, .threads = x->threads, .train_rows = &r, .val_rows = &val};
    tt_trainer *t = NULL;
    tt_progress p = {0};
    val.n = x->rows;
    tt_err err = tt_tree_parse("job", pixel_job, strlen(pixel_job), &o.job);

    if (err || (err = tt_train_open(&o, &t))) goto out;
    while (!p.end && !err) err = tt_train_step(t, &p);
    if (!err && fabs(p.val.miou - wanted(t, x->rows)) > 1e-12)
        err = tt_fail(TT_EINVAL, "rank %d has %.17g, and it is %.17g", w->rank, p.val.miou,
                      wanted(t, x->rows));
    tt_metrics again = {0};
    if (!err) err = tt_train_validate(t, &again);
    if (!err && again.miou != p.val.miou) err = tt_fail(TT_EINVAL, "not the same a second time");
    if (!w->rank) x->miou = p.val.miou;
out:
    tt_train_close(t);
    tt_tree_close(o.job);
    return err;
}

TT_TEST(miou, is_the_same_on_all_ranks_of_any_world)
{
    static const int sizes[] = {1, 2, 3, 5}, hosts[] = {0, 1, 0, 1, 1};
    double first = NAN;

    rows();
    for (int i = 0; i < TT_COUNT(sizes); i++) {
        world_case near = {1, ROWS, 0}, far = {2, ROWS, 0};
        EXPECT_OK(tt_sim_run(sizes[i], NULL, 30, validate_rank, &near));
        EXPECT_OK(tt_sim_run(sizes[i], hosts, 30, validate_rank, &far));
        EXPECT(near.miou == far.miou);
        EXPECT(near.miou > 0.1 && near.miou < 0.9);
        if (!i) first = near.miou;
        EXPECT(near.miou == first);
    }
}

TT_TEST(miou, can_choose_the_best_and_is_told_everywhere)
{
    tt_data_rows r = rows();
    trained x;
    json_t *s;

    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "r", .train_rows = &r, .val_rows = &r}, pixel_job,
                       "train.steps=40; train.validate=10; checkpoint.every=10"));
    go_to(&x, INT64_MAX);
    EXPECT_OK(tt_train_finish(x.t, "done"));
    EXPECT(x.p.best >= x.p.val.miou && x.p.val.miou > 0.4);
    s = tt_train_summary(x.t);
    EXPECT_NEAR(x.p.val.miou, json_real_value(json_object_get(json_object_get(s, "val"), "miou")),
                0);
    json_decref(s);
    close_job(&x);
    EXPECT_INT(4, count_text("r/metrics.jsonl", "\"miou\":"));
}

TT_TEST(miou, other_jobs_have_none)
{
    static const char *const asks[] = {"checkpoint.best=val.miou max",
                                       "train.early_stop={metric: val.miou max}"};
    trained x;

    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true}, job_text, "train.epochs=1"));
    go_to(&x, INT64_MAX);
    EXPECT(isnan(x.p.val.miou) && !isnan(x.p.val.accuracy));
    close_job(&x);
    for (int i = 0; i < TT_COUNT(asks); i++) {
        EXPECT_ERR(TT_EINVAL, open_job(&x, (tt_train_opts){.run = "r"}, job_text, asks[i]));
        EXPECT_MESSAGE("val.miou needs a loss that judges pixels");
        tt_tree_close(x.tree);
    }
}

/* A class that no pixel is of, and none is taken for, does not count. */
TT_TEST(miou, classes_that_are_nowhere_are_left_out)
{
    static int32_t ones[ROWS * PIXELS];
    tt_data_rows r = rows(), val = r;
    trained x;

    for (int i = 0; i < ROWS * PIXELS; i++) ones[i] = 1;
    val.label = ones;
    r.label = ones;
    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true, .train_rows = &r, .val_rows = &val},
                       pixel_job, "train.steps=100"));
    go_to(&x, INT64_MAX);
    EXPECT_NEAR(1, x.p.val.miou, 0);
    EXPECT_NEAR(1, x.p.val.accuracy, 0);
    close_job(&x);
}
