/* The area under the ROC curve: against a count of all pairs, and the same on any number of ranks.
 */
#include "train_help.h"
#include "train/trainer.h"

/* By its definition, pair by pair. Rows without a label do not count. */
static double pairs(const float *score, const int32_t *label, int64_t n)
{
    int64_t twice = 0, all = 0;

    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++)
            if (label[i] == 1 && label[k] == 0) {
                all++;
                twice += score[i] > score[k] ? 2 : score[i] == score[k];
            }
    return all ? (double)twice / 2.0 / (double)all : NAN;
}

static double uniform(uint64_t key, int64_t i)
{
    float v[4];
    tt_uniform4(key, 0, (uint64_t)i, v);
    return (double)v[0];
}

/* ---- The count itself ---- */

static double sorted(const float *score, const int32_t *label, int64_t n)
{
    uint32_t *key = malloc(3 * (size_t)n * sizeof *key + 4), *no = key, *yes = key + n;
    int64_t no_count = 0, yes_count = 0;

    for (int64_t i = 0; i < n; i++) {
        if (label[i] == 0) no[no_count++] = auc_key(score[i]);
        if (label[i] == 1) yes[yes_count++] = auc_key(score[i]);
    }
    double auc = auc_of(no, no_count, yes, yes_count, key + 2 * n);
    free(key);
    return auc;
}

TT_TEST(auc, keys_are_in_the_order_of_the_scores)
{
    static const float up[] = {-INFINITY, -3e38f, -2,    -1.0000001f, -1,    -1e-40f, 0,
                               1e-45f,    1e-40f, 1e-3f, 1,           3e38f, INFINITY};

    for (int i = 1; i < TT_COUNT(up); i++) EXPECT(auc_key(up[i - 1]) < auc_key(up[i]));
    EXPECT(auc_key(-0.0f) == auc_key(0.0f));
    EXPECT(auc_key(NAN) == AUC_NAN && auc_key(-NAN) == AUC_NAN);
    EXPECT(auc_key(INFINITY) < AUC_NAN);
}

TT_TEST(auc, sorting_finds_what_a_count_of_all_pairs_does)
{
    enum { MOST = 700 };
    static const int64_t sizes[] = {2, 3, 10, 64, 255, MOST};
    static const double steps[] = {1, 5, 40, 1e9}; /* how many scores there are: few, many ties */
    float score[MOST];
    int32_t label[MOST];

    for (uint64_t seed = 0; seed < 5; seed++)
        for (int s = 0; s < TT_COUNT(sizes); s++)
            for (int k = 0; k < TT_COUNT(steps); k++) {
                for (int64_t i = 0; i < sizes[s]; i++) {
                    label[i] = (int32_t)floor(3 * uniform(2 * seed, i)) - 1; /* -1, 0 or 1 */
                    score[i] = (float)(floor(steps[k] * (uniform(2 * seed + 1, i) - 0.5)) /
                                       fmin(steps[k], 300));
                }
                label[0] = 0;
                label[1] = 1;
                double want = pairs(score, label, sizes[s]), got = sorted(score, label, sizes[s]);
                if (want != got) FAIL("%.17g, wanted %.17g", got, want);
            }
}

TT_TEST(auc, the_ends_are_exact)
{
    static const float score[] = {1, 2, 3, 4, 5, 6};
    static const int32_t up[] = {0, 0, 0, 1, 1, 1}, down[] = {1, 1, 1, 0, 0, -1};
    static const float same[] = {7, 7, 7, 7, 7, 7};

    EXPECT(sorted(score, up, 6) == 1);
    EXPECT(sorted(score, down, 6) == 0);
    EXPECT(sorted(same, up, 6) == 0.5);
}

TT_TEST(auc, one_class_or_a_broken_score_has_none)
{
    float score[] = {1, 2, 3};
    static const int32_t ones[] = {1, 1, -1}, zeros[] = {0, 0, -1}, none[] = {-1, -1, -1},
                         both[] = {0, 1, 1};

    EXPECT(isnan(sorted(score, ones, 3)));
    EXPECT(isnan(sorted(score, zeros, 3)));
    EXPECT(isnan(sorted(score, none, 3)));
    EXPECT(sorted(score, both, 3) == 1);
    for (int i = 0; i < 3; i++) {
        score[i] = NAN;
        EXPECT(isnan(sorted(score, both, 3)));
        score[i] = (float)i;
    }
    score[2] = INFINITY;
    EXPECT(sorted(score, both, 3) == 1);
}

/* ---- A whole validation ----
 * One number goes in, so the scores are in its order, whatever the weights: forwards or backwards.
 */

enum { ROWS = 531 };
static float row_x[ROWS];
static int32_t row_label[ROWS];

/* Whole numbers with many ties, the larger ones mostly of class 1; a ninth without a label. */
static tt_data_rows rows(void)
{
    for (int i = 0; i < ROWS; i++) {
        row_x[i] = (float)floor(20 * uniform(1, i)) - 10;
        row_label[i] = i % 9 == 4 ? -1 : row_x[i] + 16 * uniform(2, i) > 8;
    }
    return (tt_data_rows){.x = row_x, .label = row_label, .n = ROWS};
}

static const char *const one_output = "model.layers=[dense: {out: 1}]; model.loss=bce",
                         *const two_outputs = "model.layers=[dense: {out: 2}]; "
                                              "model.loss=softmax_cross_entropy",
                         *const two_logs =
                             "model.layers=[dense: {out: 2}, log_softmax]; model.loss=nll";

static const char line_text[] =
    "model: {input: [1], layers: [dense: {out: 2}], loss: softmax_cross_entropy}\n"
    "parallel: {exact: true, grains: 6, timeout: 5}\n"
    "train: {steps: 3, batch: 50, optimizer: {sgd: {lr: 0.02}}}\n"
    "checkpoint: {best: val.auc max}\n";

/* What the validation must have found: do scores rise with x? */
static double wanted(const tt_trainer *t, int64_t n)
{
    const float *w = tt_train_params(t);
    bool two = tt_model_scores(tt_train_model(t)) == 2;
    float slope = two ? w[1] - w[0] : w[0], score[ROWS];

    for (int64_t i = 0; i < n; i++) score[i] = slope * row_x[i];
    return pairs(score, row_label, n);
}

typedef struct world_case {
    const char *changes;
    int threads;
    int64_t rows; /* of the validation */
    double auc, logloss, calibration;
} world_case;

static tt_err validate_rank(tt_world *w, void *arg)
{
    world_case *x = arg;
    tt_data_rows r = {.x = row_x, .label = row_label, .n = ROWS}, val = r;
    tt_train_opts o = {
        .no_files = true, .world = w, .threads = x->threads, .train_rows = &r, .val_rows = &val};
    char copy[512], *save, *s;
    tt_trainer *t = NULL;
    tt_progress p = {0};
    val.n = x->rows;
    tt_err err = tt_tree_parse("job", line_text, strlen(line_text), &o.job);

    snprintf(copy, sizeof copy, "%s", x->changes);
    for (s = strtok_r(copy, ";", &save); s && !err; s = strtok_r(NULL, ";", &save))
        err = tt_tree_set(o.job, s + strspn(s, " "));
    if (err || (err = tt_train_open(&o, &t))) goto out;
    while (!p.end && !err) err = tt_train_step(t, &p);
    if (!err && p.val.auc != wanted(t, x->rows))
        err = tt_fail(TT_EINVAL, "rank %d has %.17g, and it is %.17g", w->rank, p.val.auc,
                      wanted(t, x->rows));
    tt_metrics again = {0};
    if (!err) err = tt_train_validate(t, &again);
    if (!err && again.auc != p.val.auc) err = tt_fail(TT_EINVAL, "not the same a second time");
    if (!w->rank) {
        x->auc = p.val.auc;
        x->logloss = p.val.logloss;
        x->calibration = p.val.calibration;
    }
out:
    tt_train_close(t);
    tt_tree_close(o.job);
    return err;
}

TT_TEST(auc, is_the_same_on_all_ranks_of_any_world)
{
    static const int sizes[] = {1, 2, 3, 5}, hosts[] = {0, 1, 0, 1, 1};
    const char *const models[] = {one_output, two_outputs, two_logs};

    rows();
    for (int m = 0; m < TT_COUNT(models); m++) {
        double logloss = 0;
        for (int i = 0; i < TT_COUNT(sizes); i++) {
            world_case near = {models[m], 1, ROWS, 0}, far = {models[m], 2, ROWS, 0};
            EXPECT_OK(tt_sim_run(sizes[i], NULL, 30, validate_rank, &near));
            EXPECT_OK(tt_sim_run(sizes[i], hosts, 30, validate_rank, &far));
            EXPECT(near.auc == far.auc);
            EXPECT(fabs(near.auc - 0.5) > 0.1 && near.auc > 0 && near.auc < 1);
            if (!i) logloss = near.logloss;
            EXPECT(near.logloss > 0 && near.logloss == logloss && far.logloss == logloss);
            EXPECT(near.calibration > 0 && near.calibration == far.calibration);
        }
    }
}

TT_TEST(auc, more_ranks_than_parts_are_no_harm)
{
    world_case few = {"parallel={exact: false, timeout: 5}; train.batch=200", 1, 50, 0};

    rows();
    EXPECT_OK(tt_sim_run(5, NULL, 30, validate_rank, &few)); /* two parts of up to 40 */
    EXPECT(few.auc > 0 && few.auc < 1);
}

/* Opens the job on the rows with these labels, and gives the last validation. */
static tt_metrics metrics_with(const char *changes, const int32_t *label)
{
    tt_data_rows r = rows(), val = r;
    trained x;

    if (label) val.label = label;
    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true, .train_rows = &r, .val_rows = &val},
                       line_text, changes));
    go_to(&x, INT64_MAX);
    close_job(&x);
    return x.p.val;
}

TT_TEST(auc, validation_data_of_one_class_has_none)
{
    int32_t ones[ROWS], none[ROWS];

    for (int i = 0; i < ROWS; i++) ones[i] = i % 3 ? 1 : -1, none[i] = -1;
    EXPECT(isnan(metrics_with(one_output, ones).auc));
    EXPECT(metrics_with(one_output, ones).accuracy >= 0);
    EXPECT(metrics_with(one_output, ones).logloss > 0);
    EXPECT(metrics_with(one_output, ones).calibration > 0);
    EXPECT(isnan(metrics_with(one_output, ones).entropy)); /* nothing to be told */
    EXPECT(isnan(metrics_with(two_outputs, none).auc));
    EXPECT(isnan(metrics_with(two_outputs, none).logloss));
}

/* Where the loss is the log-loss, both are the same; weights of classes change the loss alone. */
TT_TEST(odds, the_logloss_of_one_output_is_its_loss)
{
    tt_metrics one = metrics_with(one_output, NULL), two = metrics_with(two_outputs, NULL),
               heavy = metrics_with("model.loss={softmax_cross_entropy: {class_weights: [1, 9]}}",
                                    NULL);

    EXPECT_NEAR(one.loss, one.logloss, 1e-6);
    EXPECT_NEAR(two.loss, two.logloss, 1e-6);
    EXPECT(fabs(heavy.loss - heavy.logloss) > 1e-3);
}

TT_TEST(odds, can_choose_the_best)
{
    tt_data_rows r = rows();
    trained x;

    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "r", .train_rows = &r, .val_rows = &r}, line_text,
                       "train.steps=100; train.validate=10; checkpoint.best=val.logloss min"));
    go_to(&x, INT64_MAX);
    EXPECT(x.p.best <= x.p.val.logloss && x.p.best > 0);
    EXPECT_OK(tt_train_finish(x.t, "done"));
    expect_text("r/summary.json", "\"metric\": \"val.logloss\"");
    expect_text("r/summary.json", "\"entropy\": ");
    close_job(&x);
}

TT_TEST(auc, other_jobs_have_none)
{
    static const char *const others[] = {
        "model.layers=[dense: {out: 3}]", /* a third class */
        "model.layers=[dense: {name: a, out: 2}, tanh]; "
        "model.loss={softmax_cross_entropy: {from: a}}", /* not the last layer */
        "model.layers=[dense: {out: 1}]; model.loss={mse: {target: input}}",
        "model.layers=[dense: {out: 1}]; model.loss={bce: {target: input}}"};

    for (int i = 0; i < TT_COUNT(others); i++) {
        char changes[256];
        trained x;
        EXPECT(isnan(metrics_with(others[i], NULL).auc));
        for (int k = 0; k < 2; k++) {
            tt_data_rows r = rows();
            snprintf(changes, sizeof changes, "%s; %s", others[i],
                     k ? "checkpoint.best=none; train.early_stop={metric: val.auc max}"
                       : "checkpoint.best=val.auc max");
            EXPECT_ERR(TT_EINVAL, open_job(&x,
                                           (tt_train_opts){.run = "r", /* only runs keep a best */
                                                           .train_rows = &r,
                                                           .val_rows = &r},
                                           line_text, changes));
            EXPECT_MESSAGE("val.auc needs two classes");
            EXPECT_MESSAGE("^");
            tt_tree_close(x.tree);
            EXPECT(!tt_file_exists("r"));
        }
    }
}

TT_TEST(auc, is_of_the_loss_that_judges_the_last_layer)
{
    static const char *const losses[] = {"[bce: {from: b}, softmax_cross_entropy: {from: a}]",
                                         "[softmax_cross_entropy: {from: a}, bce: {from: b}]",
                                         "[softmax_cross_entropy: {from: a}]"};

    for (int i = 0; i < TT_COUNT(losses); i++) {
        char changes[300];
        snprintf(changes, sizeof changes,
                 "model.layers=[dense: {name: a, out: 3}, dense: {name: b, out: 1}]; model.loss=%s",
                 losses[i]);
        tt_metrics m = metrics_with(changes, NULL);
        EXPECT(i < 2 ? m.auc > 0 && m.auc < 1 : isnan(m.auc));
    }
}

TT_TEST(auc, can_choose_the_best_and_stop_early)
{
    tt_data_rows r = rows();
    trained x;
    char want[64];

    EXPECT_OK(open_job(&x, (tt_train_opts){.run = "r", .train_rows = &r, .val_rows = &r}, line_text,
                       "train.steps=500; train.validate=10; checkpoint.every=20; "
                       "train.early_stop={metric: val.auc max, patience: 4}"));
    go_to(&x, INT64_MAX);
    EXPECT_STR("early stop", x.p.end); /* once the slope is right it gets no better */
    EXPECT(x.p.best == x.p.val.auc && x.p.val.auc == wanted(x.t, ROWS));
    EXPECT_OK(tt_train_finish(x.t, "done"));
    snprintf(want, sizeof want, "\"auc\": %.8g", x.p.val.auc);
    want[strlen(want) - 1] = 0; /* it was rounded elsewhere */
    expect_text("r/summary.json", want);
    expect_text("r/summary.json", "\"metric\": \"val.auc\"");
    expect_text("r/metrics.jsonl", "\"auc\":");
    expect_text("r/log.txt", " auc 0.");
    EXPECT_INT(0, count_text("r/metrics.jsonl", "\"top5\":"));
    close_job(&x);
}

/* ---- Real data ---- */

TT_TEST(auc, of_breast_cancer_is_that_of_its_predictions)
{
    static const char text[] =
        "model: {input: [30], layers: [dense: {out: 8}, relu, dense: {out: 2}], loss: "
        "softmax_cross_entropy}\n"
        "data:\n"
        "  train: {format: csv, file: breast_cancer.csv, label: -1}\n"
        "  val: {split: 0.4}\n"
        "  normalize: auto\n"
        "train: {epochs: 8, batch: 20, threads: 2, optimizer: {adam: {lr: 0.01}}}\n";
    char changes[600];
    float out[600][2], score[600];
    int32_t label[600];
    int64_t n;
    tt_metrics m;
    tt_use *u;
    trained x;

    snprintf(changes, sizeof changes, "data.dir=%s", tt_test_data("sklearn-toy"));
    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true}, text, changes));
    go_to(&x, INT64_MAX);
    EXPECT(x.p.val.auc > 0.97);
    EXPECT_OK(tt_use_open(&(tt_use_opts){.job = x.tree, .trained = x.t}, &u));
    EXPECT_OK(tt_use_count(u, TT_VAL, &n));
    EXPECT_OK(tt_use_predict(u, TT_VAL, 0, (int)n, &out[0][0]));
    EXPECT_OK(tt_use_eval(u, TT_VAL, &m));
    for (int64_t i = 0; i < n; i++) {
        label[i] = tt_data_label(tt_use_data(u), TT_VAL, i);
        score[i] = out[i][1] - out[i][0];
    }
    EXPECT(m.auc == pairs(score, label, n));
    EXPECT_NEAR(x.p.val.auc, m.auc, 1e-3); /* other sizes of a part may round otherwise */
    double lost = 0, expected = 0, yes = 0;
    for (int64_t i = 0; i < n; i++) { /* as they are written down */
        double p = 1 / (1 + exp(-(double)score[i]));
        lost -= log(label[i] ? p : 1 - p);
        expected += p;
        yes += label[i];
    }
    double share = yes / (double)n;
    EXPECT_NEAR(lost / (double)n, m.logloss, 1e-6);
    EXPECT_NEAR(expected / yes, m.calibration, 1e-6);
    EXPECT_NEAR(lost / (double)n / -(share * log(share) + (1 - share) * log(1 - share)), m.entropy,
                1e-6);
    tt_use_close(u);
    close_job(&x);
}
