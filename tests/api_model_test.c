/* Models at work: predicting, judging rows in memory, files of weights, and what they tell. */
#include "api_help.h"

TT_TEST(api_model, rows_are_predicted_the_same_alone_and_together)
{
    enum { MANY = 70000 }; /* more than is handed on at once */
    tutti_job *job = points_job();
    float *x = calloc(2 * MANY, sizeof *x), *y = calloc(2 * MANY + 1, sizeof *y), one[2];
    tutti_model *m;

    for (int i = 0; i < 2 * MANY; i++) x[i] = (float)(i % 1999) / 1000 - 1;
    OK(tutti_model_open(job, NULL, NULL, &m));
    EXPECT_INT(2, tutti_shape_count(tutti_model_input(m)));
    EXPECT_INT(2, tutti_shape_count(tutti_model_output(m)));
    y[2 * MANY] = 42;
    OK(tutti_model_predict(m, x, MANY, y));
    EXPECT(y[2 * MANY] == 42);
    for (int i = 0; i < MANY; i += 6997) {
        OK(tutti_model_predict(m, x + 2 * i, 1, one));
        EXPECT_NEAR(one[0], y[2 * i], 1e-6);
        EXPECT_NEAR(one[1], y[2 * i + 1], 1e-6);
    }
    OK(tutti_model_predict(m, NULL, 0, NULL)); /* none is fine */
    REFUSED(TUTTI_EINVAL, tutti_model_predict(m, x, -1, y));
    REFUSED(TUTTI_EINVAL, tutti_model_predict(m, NULL, 1, y));
    free(x);
    free(y);
    tutti_model_close(m);
    tutti_job_close(job);
}

/* In bf16 what goes in and comes out is float32 all the same. */
TT_TEST(api_model, in_bf16_a_model_predicts_and_is_saved_as_in_float32)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows};
    tutti_job *job = points_job();
    tutti_model *half, *again, *wide;
    tutti_metrics a, b;
    static float y[3][2 * POINTS];

    tutti_job_set(job, "train.precision=bf16");
    OK(tutti_train(job, &o, NULL, &half));
    OK(tutti_model_export(half, "half.safetensors"));
    OK(tutti_model_open(job, "half.safetensors", NULL, &again));
    tutti_job_set(job, "train.precision=float32");
    OK(tutti_model_open(job, "half.safetensors", NULL, &wide));
    EXPECT(same_weights(half, again) && same_weights(half, wide));
    OK(tutti_model_predict(half, rows.x, POINTS, y[0]));
    OK(tutti_model_predict(again, rows.x, POINTS, y[1]));
    OK(tutti_model_predict(wide, rows.x, POINTS, y[2]));
    EXPECT(!memcmp(y[0], y[1], sizeof y[0]));
    EXPECT(memcmp(y[0], y[2], sizeof y[0]) != 0);
    for (int i = 0; i < 2 * POINTS; i++) EXPECT_NEAR(y[0][i], y[2][i], 0.03 + 0.02 * fabs(y[2][i]));
    OK(tutti_model_eval(half, &rows, &a));
    OK(tutti_model_eval(wide, &rows, &b));
    EXPECT_NEAR(a.loss, b.loss, 0.01);
    EXPECT(a.accuracy > 0.9);
    tutti_model_close(half);
    tutti_model_close(again);
    tutti_model_close(wide);
    tutti_job_close(job);
}

TT_TEST(api_model, a_model_needs_no_training_section)
{
    static const char text[] = "model:\n"
                               "  input: [3]\n"
                               "  layers: [{dense: {out: 2}}]\n"
                               "  loss: mse\n";
    const float x[3] = {1, 2, 3};
    const float *w, *b;
    float y[2];
    tutti_job *job;
    tutti_model *m;
    tutti_shape s;

    OK(tutti_job_parse("bare", text, &job));
    OK(tutti_model_open(job, NULL, NULL, &m));
    tutti_job_close(job);
    OK(tutti_model_predict(m, x, 1, y));
    OK(tutti_model_param(m, "dense1.weight", &s, &w));
    EXPECT_INT(2, s.rank);
    OK(tutti_model_param(m, "dense1.bias", NULL, &b));
    for (int i = 0; i < 2; i++)
        EXPECT_NEAR(b[i] + w[3 * i] + 2 * w[3 * i + 1] + 3 * w[3 * i + 2], y[i], 1e-5);
    REFUSED(TUTTI_EINVAL, tutti_model_param(m, "dense1.wieght", &s, &w));
    EXPECT_MESSAGE("did you mean 'dense1.weight'?");
    EXPECT(!w);
    tutti_model_close(m);
}

TT_TEST(api_model, an_inner_layer_can_be_asked_for)
{
    const float x[4] = {0.1f, 0.2f, -0.3f, 0.4f};
    tutti_job *job = points_job();
    float y[32], last[4], sum;
    const float *w, *b;
    tutti_model *m, *whole;

    OK(tutti_model_open(job, NULL, "tanh1", &m));
    OK(tutti_model_open(job, NULL, NULL, &whole));
    EXPECT_INT(16, tutti_shape_count(tutti_model_output(m)));
    OK(tutti_model_predict(m, x, 2, y));
    OK(tutti_model_predict(whole, x, 2, last));
    OK(tutti_model_param(whole, "dense2.weight", NULL, &w));
    OK(tutti_model_param(whole, "dense2.bias", NULL, &b));
    sum = b[1];
    for (int i = 0; i < 16; i++) sum += w[16 + i] * y[16 + i];
    EXPECT_NEAR(last[3], sum, 1e-5);
    tutti_model_close(m);
    tutti_model_close(whole);
    REFUSED(TUTTI_EINVAL, tutti_model_open(job, NULL, "tanh2", &m));
    EXPECT_MESSAGE("did you mean 'tanh1'?");
    EXPECT(!m);
    tutti_job_close(job);
}

TT_TEST(api_model, weights_survive_a_file)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows};
    tutti_job *job = points_job();
    tutti_model *trained, *fresh, *loaded;

    OK(tutti_train(job, &o, NULL, &trained));
    OK(tutti_model_export(trained, "w.safetensors"));
    OK(tutti_model_open(job, NULL, NULL, &fresh));
    OK(tutti_model_open(job, "w.safetensors", NULL, &loaded));
    EXPECT(same_weights(trained, loaded));
    EXPECT(!same_weights(trained, fresh));
    tutti_model_close(trained);
    tutti_model_close(fresh);
    tutti_model_close(loaded);
    REFUSED(TUTTI_ECKPT, tutti_model_open(job, "none.safetensors", NULL, &loaded));
    EXPECT(!loaded);
    tt_test_write("torn.safetensors", "\1\2", 2);
    REFUSED(TUTTI_ECKPT, tutti_model_open(job, "torn.safetensors", NULL, &loaded));
    EXPECT_MESSAGE("torn.safetensors");
    tutti_job_close(job);
}

TT_TEST(api_model, eval_counts_what_predict_says)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows};
    tutti_job *job = points_job();
    float y[POINTS][2];
    tutti_metrics m;
    tutti_model *model;
    int right = 0;

    OK(tutti_train(job, &o, NULL, &model));
    OK(tutti_model_predict(model, rows.x, POINTS, &y[0][0]));
    for (int i = 0; i < POINTS; i++) right += (y[i][1] > y[i][0]) == rows.label[i];
    OK(tutti_model_eval(model, &rows, &m));
    EXPECT_NEAR((double)right / POINTS, m.accuracy, 1e-9);
    REFUSED(TUTTI_EINVAL, tutti_model_eval(model, NULL, &m)); /* the job names no data */
    EXPECT_MESSAGE("no data");

    for (int i = 0; i < POINTS / 2; i++) point_label[i] = -1; /* half of them have no label */
    right = 0;
    for (int i = POINTS / 2; i < POINTS; i++) right += (y[i][1] > y[i][0]) == rows.label[i];
    OK(tutti_model_eval(model, &rows, &m));
    EXPECT_NEAR(2.0 * right / POINTS, m.accuracy, 1e-9);
    tutti_model_close(model);
    tutti_job_close(job);
}

TT_TEST(api_model, eval_without_rows_takes_the_validation_data_of_the_job)
{
    tutti_job *job = points_job();
    tutti_metrics m;
    tutti_progress last;
    tutti_model *model;

    OK(tutti_job_set(job, "data.train={format: synth, kind: blobs, count: 300, noise: 0.2}"));
    OK(tutti_job_set(job, "data.val={split: 0.3}"));
    OK(tutti_train(job, NULL, &last, &model));
    OK(tutti_model_eval(model, NULL, &m));
    EXPECT_INT(90, m.samples);
    EXPECT_NEAR(last.val.loss, m.loss, 1e-6);
    tutti_model_close(model);
    tutti_job_close(job);
}

TT_TEST(api_model, rows_that_do_not_fit_are_named)
{
    tutti_rows good = points(), r = good;
    tutti_options o = {.train = &r};
    tutti_job *job = points_job();
    tutti_trainer *t;

    point_label[7] = 2;
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, &o, &t));
    EXPECT_MESSAGE("row 7: label 2");
    points();
    point_x[9][1] = NAN;
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, &o, &t));
    EXPECT_MESSAGE("row 9, value 1");
    points();
    r.label = NULL;
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, &o, &t));
    EXPECT_MESSAGE("no labels");
    r = good;
    r.count = 0;
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, &o, &t));
    EXPECT_MESSAGE("training rows: there must be at least one, not 0");
    r.count = -5;
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, &o, &t));
    r = good;
    r.x = NULL;
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, &o, &t));
    EXPECT_MESSAGE("training rows: x is NULL");
    r = good;
    OK(tutti_job_set(job, "model.loss=mse"));
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, &o, &t));
    EXPECT_MESSAGE("no targets");
    tutti_job_close(job);
}

TT_TEST(api_model, rows_to_evaluate_are_called_so)
{
    tutti_rows good = points(), r = good;
    tutti_job *job = points_job();
    tutti_model *model;
    tutti_metrics m;

    OK(tutti_model_open(job, NULL, NULL, &model));
    r.x = NULL;
    REFUSED(TUTTI_EINVAL, tutti_model_eval(model, &r, &m));
    EXPECT_MESSAGE("rows to evaluate: x is NULL");
    r = good;
    r.count = 0;
    REFUSED(TUTTI_EINVAL, tutti_model_eval(model, &r, &m));
    EXPECT_MESSAGE("rows to evaluate: there must be at least one, not 0");
    r = good;
    r.label = NULL;
    REFUSED(TUTTI_EINVAL, tutti_model_eval(model, &r, &m));
    EXPECT_MESSAGE("rows to evaluate: no labels");
    OK(tutti_model_eval(model, &good, &m));
    tutti_model_close(model);
    tutti_job_close(job);
}

TT_TEST(api_model, shapes_that_are_none_count_nothing)
{
    EXPECT_INT(24, tutti_shape_count((tutti_shape){3, {2, 3, 4}}));
    EXPECT_INT(0, tutti_shape_count((tutti_shape){0}));
    EXPECT_INT(0, tutti_shape_count((tutti_shape){7, {1, 1, 1, 1, 1, 1}}));
    EXPECT_INT(0, tutti_shape_count((tutti_shape){2, {3, 0}}));
    EXPECT_INT(0, tutti_shape_count((tutti_shape){2, {-3, -3}}));
    EXPECT_INT(0, tutti_shape_count((tutti_shape){2, {INT64_MAX, 2}}));
}

TT_TEST(api_model, null_is_an_error_and_never_a_crash)
{
    tutti_rows rows = points();
    tutti_job *job = points_job();
    tutti_model *m = (tutti_model *)1;
    tutti_layer_info l;
    tutti_metrics got;
    const float *w;
    float y[2];

    REFUSED(TUTTI_EINVAL, tutti_model_open(NULL, NULL, NULL, &m));
    EXPECT(!m);
    REFUSED(TUTTI_EINVAL, tutti_model_open(job, NULL, NULL, NULL));
    REFUSED(TUTTI_EINVAL, tutti_model_predict(NULL, rows.x, 1, y));
    REFUSED(TUTTI_EINVAL, tutti_model_eval(NULL, &rows, &got));
    REFUSED(TUTTI_EINVAL, tutti_model_export(NULL, "w"));
    REFUSED(TUTTI_EINVAL, tutti_model_layer(NULL, 0, &l));
    REFUSED(TUTTI_EINVAL, tutti_model_param(NULL, "w", NULL, &w));
    EXPECT_INT(0, tutti_model_layer_count(NULL));
    EXPECT_INT(0, tutti_model_input(NULL).rank + tutti_model_output(NULL).rank);
    OK(tutti_model_open(job, NULL, NULL, &m));
    REFUSED(TUTTI_EINVAL, tutti_model_layer(m, 3, &l));
    EXPECT_MESSAGE("layer 3 of a model of 3");
    REFUSED(TUTTI_EINVAL, tutti_model_layer(m, -1, &l));
    REFUSED(TUTTI_EINVAL, tutti_model_export(m, NULL));
    REFUSED(TUTTI_EINVAL, tutti_model_eval(m, &rows, NULL));
    REFUSED(TUTTI_EINVAL, tutti_model_param(m, NULL, NULL, &w));
    tutti_model_close(m);
    tutti_model_close(NULL);
    tutti_job_close(job);
}
