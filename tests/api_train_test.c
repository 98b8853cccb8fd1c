/* Trainings from C: whole, step by step, stopped and taken up again, and gone wrong. */
#include <pthread.h>
#include <unistd.h>

#include "api_help.h"

static void expect_status(const char *run, const char *status)
{
    char path[256];
    tt_bytes b;

    snprintf(path, sizeof path, "%s/summary.json", run);
    EXPECT_OK(tt_file_read(path, 0, &b));
    tt_str s = {0};
    tt_str_put(&s, b.data, b.size);
    tt_file_release(&b);
    char want[64];
    snprintf(want, sizeof want, "\"status\": \"%s\"", status);
    if (!strstr(s.data, want)) FAIL("%s lacks %s", s.data, want);
    tt_str_free(&s);
}

TT_TEST(api_train, a_whole_training_gives_a_model_that_has_learnt)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows, .val = &rows};
    tutti_job *job = points_job();
    tutti_progress last;
    tutti_metrics m;
    tutti_model *model;

    OK(tutti_train(job, &o, &last, &model));
    tutti_job_close(job);
    EXPECT_INT(20 * POINTS / 40, last.step);
    EXPECT_INT(last.steps, last.step);
    EXPECT_STR("done", last.end);
    EXPECT(last.val.accuracy > 0.9 && isnan(last.val.top5));
    EXPECT(last.val.auc > 0.9 && last.val.auc <= 1);
    OK(tutti_model_eval(model, &rows, &m));
    EXPECT_NEAR(last.val.accuracy, m.accuracy, 1e-9);
    EXPECT_NEAR(last.val.auc, m.auc, 1e-3);
    EXPECT_NEAR(last.val.loss, m.loss, 1e-5);
    EXPECT_INT(POINTS, m.samples);
    EXPECT(access("runs", F_OK)); /* not asked for: no files */
    tutti_model_close(model);
}

TT_TEST(api_train, step_by_step_is_the_same_and_the_job_may_go)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows};
    tutti_job *job = points_job();
    tutti_model *whole, *stepped;
    tutti_progress p = {0};
    tutti_trainer *t;
    int64_t steps = 0;

    OK(tutti_train(job, &o, NULL, &whole));
    OK(tutti_trainer_open(job, &o, &t));
    tutti_job_close(job);
    while (!p.end) {
        OK(tutti_trainer_step(t, &p));
        EXPECT_INT(++steps, p.step);
        EXPECT_INT(p.step % 10 == 0, p.epoch_end);
    }
    EXPECT(isnan(p.val.loss) && !p.validated); /* there was no validation data */
    OK(tutti_trainer_model(t, &stepped));
    OK(tutti_trainer_finish(t));
    EXPECT_STR("", tutti_trainer_run(t));
    tutti_trainer_close(t);
    EXPECT(same_weights(whole, stepped));
    tutti_model_close(whole);
    tutti_model_close(stepped);
}

/* A thread of its own; each result stays where it was made. */
typedef struct side {
    tutti_rows rows;
    const char *run;
    tutti_status status;
    char message[200];
    tutti_model *model;
} side;

static void *train_beside(void *arg)
{
    side *s = arg;
    tutti_options o = {.train = &s->rows, .run = s->run};
    tutti_job *job = NULL;

    s->status =
        tutti_job_parse("side",
                        "name: side\n"
                        "model:\n"
                        "  input: [2]\n"
                        "  layers: [{mlp: {hidden: 16, out: 2, activation: tanh}}]\n"
                        "  loss: softmax_cross_entropy\n"
                        "train: {epochs: 5, batch: 40, threads: 2, optimizer: {sgd: {lr: 0.1}}}\n",
                        &job);
    if (!s->status) s->status = tutti_train(job, &o, NULL, &s->model);
    snprintf(s->message, sizeof s->message, "%s", tutti_message());
    tutti_job_close(job);
    return NULL;
}

TT_TEST(api_train, trainings_go_side_by_side)
{
    side sides[3] = {{points(), "a"}, {points(), "b"}, {{.count = 0}, "c"}};
    pthread_t threads[3];

    for (int i = 0; i < 3; i++) EXPECT(!pthread_create(&threads[i], NULL, train_beside, &sides[i]));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    OK(sides[0].status);
    OK(sides[1].status);
    EXPECT(same_weights(sides[0].model, sides[1].model));
    expect_status("a", "done");
    expect_status("b", "done");
    EXPECT_INT(TUTTI_EINVAL, sides[2].status); /* the others' luck is not its own */
    EXPECT(strstr(sides[2].message, "at least one"));
    tutti_model_close(sides[0].model);
    tutti_model_close(sides[1].model);
}

TT_TEST(api_train, what_has_ended_stays_ended)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows, .val = &rows};
    tutti_job *job = points_job();
    tutti_progress p = {0}, again;
    tutti_trainer *t;

    /* Better by 10: never. So it ends at the second validation without. */
    OK(tutti_job_set(job, "train.early_stop={metric: val.loss min, patience: 2, min_delta: 10}"));
    OK(tutti_trainer_open(job, &o, &t));
    while (!p.end) OK(tutti_trainer_step(t, &p));
    EXPECT_STR("early stop", p.end);
    EXPECT_INT(30, p.step);
    EXPECT(p.validated && p.epoch_end);
    OK(tutti_trainer_step(t, &again));
    EXPECT_STR("early stop", again.end);
    EXPECT_INT(30, again.step);
    EXPECT(!again.validated && !again.epoch_end);
    OK(tutti_trainer_finish(t));
    OK(tutti_trainer_finish(t)); /* once more is no harm */
    REFUSED(TUTTI_EINVAL, tutti_trainer_step(t, &p));
    EXPECT_MESSAGE("finished");
    tutti_trainer_close(t);
    tutti_job_close(job);
}

TT_TEST(api_train, stopped_and_resumed_equals_uninterrupted)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows, .val = &rows};
    tutti_job *job = points_job();
    tutti_model *whole, *resumed;
    tutti_progress p;
    tutti_trainer *t;

    OK(tutti_train(job, &o, NULL, &whole));
    o.run = "r";
    o.resume = true; /* there is nothing yet: it starts */
    OK(tutti_trainer_open(job, &o, &t));
    EXPECT_STR("r", tutti_trainer_run(t));
    for (int i = 0; i < 17; i++) OK(tutti_trainer_step(t, &p));
    OK(tutti_trainer_finish(t));
    tutti_trainer_close(t);
    expect_status("r", "stopped");

    OK(tutti_trainer_open(job, &o, &t));
    OK(tutti_trainer_step(t, &p));
    EXPECT_INT(18, p.step);
    while (!p.end) OK(tutti_trainer_step(t, &p));
    OK(tutti_trainer_finish(t));
    tutti_trainer_close(t);
    expect_status("r", "done");
    OK(tutti_model_open(job, "r", NULL, &resumed));
    EXPECT(same_weights(whole, resumed));
    o.resume = false;
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, &o, &t)); /* not overwritten */
    EXPECT_MESSAGE("already holds a run");
    tutti_model_close(whole);
    tutti_model_close(resumed);
    tutti_job_close(job);
}

TT_TEST(api_train, runs_are_made_below_a_folder)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows, .runs = "all"};
    tutti_job *job = points_job();
    tutti_progress p;
    tutti_trainer *t;

    OK(tutti_trainer_open(job, &o, &t));
    EXPECT(!strncmp(tutti_trainer_run(t), "all/points-", 11));
    OK(tutti_trainer_step(t, &p));
    OK(tutti_trainer_save(t));
    char path[512];
    snprintf(path, sizeof path, "%s/checkpoints/step-00000001/manifest.json", tutti_trainer_run(t));
    EXPECT(!access(path, R_OK));
    tutti_trainer_close(t);
    tutti_job_close(job);
}

TT_TEST(api_train, what_diverges_says_so_until_it_is_closed)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows, .run = "r"};
    tutti_job *job = points_job();
    tutti_model *model = (tutti_model *)1;
    tutti_status err = TUTTI_OK;
    tutti_progress p = {0};
    tutti_trainer *t;

    /* Numbers that no float32 sum can hold, and a step that makes them the weights. */
    OK(tutti_job_set(job, "train.optimizer={sgd: {lr: 1e30}}"));
    OK(tutti_job_set(job, "model.layers.1=relu"));
    OK(tutti_trainer_open(job, &o, &t));
    while (!err && !p.end) err = tutti_trainer_step(t, &p);
    EXPECT_INT(TUTTI_EDIVERGED, err);
    EXPECT_MESSAGE("finite");
    tutti_job_check(NULL); /* another error in between */
    REFUSED(TUTTI_EDIVERGED, tutti_trainer_step(t, &p));
    EXPECT_MESSAGE("finite");
    OK(tutti_trainer_finish(t));
    tutti_trainer_close(t);
    expect_status("r", "diverged");
    o.run = "r2";
    REFUSED(TUTTI_EDIVERGED, tutti_train(job, &o, NULL, &model));
    EXPECT_MESSAGE("finite");
    EXPECT(!model);
    expect_status("r2", "diverged");
    tutti_job_close(job);
}

TT_TEST(api_train, nobody_trains_on_after_an_error)
{
    float x[4][2] = {{1, 0}, {0, 1}, {3e38f, 3e38f}, {1, 1}}; /* one row alone is too much */
    int32_t label[4] = {0, 1, 0, 1};
    tutti_rows rows = {.count = 4, .x = &x[0][0], .label = label};
    tutti_options o = {.train = &rows};
    tutti_job *job = points_job();
    tutti_status err = TUTTI_OK;
    tutti_trainer *t;

    OK(tutti_job_set(job, "model.layers.1=relu"));
    OK(tutti_job_set(job, "train.batch=1"));
    OK(tutti_trainer_open(job, &o, &t));
    for (int i = 0; i < 4 && !err; i++) err = tutti_trainer_step(t, NULL);
    EXPECT_INT(TUTTI_EDIVERGED, err);
    REFUSED(TUTTI_EDIVERGED, tutti_trainer_step(t, NULL));
    tutti_trainer_close(t);
    tutti_job_close(job);
}

TT_TEST(api_train, a_model_taken_on_the_way_stays_as_it_was)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows};
    tutti_job *job = points_job();
    tutti_model *early, *same, *late;
    tutti_progress p;
    tutti_trainer *t;

    OK(tutti_trainer_open(job, &o, &t));
    OK(tutti_trainer_step(t, &p));
    OK(tutti_trainer_model(t, &early));
    OK(tutti_trainer_model(t, &same));
    OK(tutti_trainer_step(t, &p));
    OK(tutti_trainer_model(t, &late));
    tutti_trainer_close(t); /* they do not need it */
    EXPECT(same_weights(early, same));
    EXPECT(!same_weights(early, late));
    tutti_model_close(early);
    tutti_model_close(same);
    tutti_model_close(late);
    tutti_job_close(job);
}

TT_TEST(api_train, weights_to_start_from_must_fit_unless_partial)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows};
    tutti_job *job = points_job();
    tutti_model *given, *taken;
    tutti_trainer *t;

    OK(tutti_train(job, &o, NULL, &given));
    OK(tutti_model_export(given, "w.safetensors"));
    o.init = "w.safetensors";
    OK(tutti_trainer_open(job, &o, &t));
    OK(tutti_trainer_model(t, &taken));
    EXPECT(same_weights(given, taken));
    tutti_trainer_close(t);
    OK(tutti_job_set(job, "model.layers.dense2.bias=false"));
    REFUSED(TUTTI_ECKPT, tutti_trainer_open(job, &o, &t));
    EXPECT_MESSAGE("dense2.bias");
    tutti_quiet(true);
    o.partial = true;
    OK(tutti_trainer_open(job, &o, &t));
    tutti_quiet(false);
    tutti_trainer_close(t);
    tutti_model_close(given);
    tutti_model_close(taken);
    tutti_job_close(job);
}

TT_TEST(api_train, options_that_contradict_are_refused)
{
    tutti_rows rows = points();
    tutti_job *job = points_job();
    const struct {
        tutti_options o;
        const char *says;
    } cases[] = {
        {{.train = &rows, .run = "a", .runs = "b"}, "give one"},
        {{.train = &rows, .resume = true}, "which"},
        {{.train = &rows, .partial = true}, "init"},
        {{.val = &rows}, "val without train"},
        {{.train = &rows, .threads = -1}, "-1 threads"},
        {{.train = &rows, .threads = 5000}, "5000 threads"},
        {{0}, "no data"},
    };

    for (int i = 0; i < TT_COUNT(cases); i++) {
        tutti_trainer *t = (tutti_trainer *)1;
        REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, &cases[i].o, &t));
        EXPECT_MESSAGE(cases[i].says);
        EXPECT(!t);
    }
    tutti_job_close(job);
}

TT_TEST(api_train, what_needs_files_or_validation_says_so_without)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows};
    tutti_job *job = points_job();
    tutti_metrics m;
    tutti_trainer *t;

    OK(tutti_trainer_open(job, &o, &t));
    REFUSED(TUTTI_EINVAL, tutti_trainer_save(t));
    REFUSED(TUTTI_EINVAL, tutti_trainer_validate(t, &m));
    tutti_trainer_close(t);
    o.val = &rows;
    OK(tutti_trainer_open(job, &o, &t));
    OK(tutti_trainer_validate(t, &m)); /* also before the first step */
    EXPECT(m.loss > 0.3 && m.loss < 2);
    tutti_trainer_close(t);
    tutti_job_close(job);
}

TT_TEST(api_train, null_is_an_error_and_never_a_crash)
{
    tutti_job *job = points_job();
    tutti_trainer *t = (tutti_trainer *)1;
    tutti_model *model = (tutti_model *)1;
    tutti_metrics m;

    REFUSED(TUTTI_EINVAL, tutti_train(NULL, NULL, NULL, &model));
    EXPECT(!model);
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(NULL, NULL, &t));
    EXPECT(!t);
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, NULL, NULL));
    REFUSED(TUTTI_EINVAL, tutti_trainer_step(NULL, NULL));
    REFUSED(TUTTI_EINVAL, tutti_trainer_validate(NULL, &m));
    REFUSED(TUTTI_EINVAL, tutti_trainer_save(NULL));
    REFUSED(TUTTI_EINVAL, tutti_trainer_model(NULL, &model));
    REFUSED(TUTTI_EINVAL, tutti_trainer_finish(NULL));
    EXPECT_STR("", tutti_trainer_run(NULL));
    tutti_trainer_close(NULL);
    tutti_job_close(job);
}
