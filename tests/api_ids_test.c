/* Rows that have ids: tokens, and categories beside numbers. */
#include "api_help.h"

enum { TEXTS = 60, LENGTH = 6, TOKENS = 5 };
static int32_t token[TEXTS][LENGTH], next[TEXTS][LENGTH];

/* Counting, from anywhere; some texts are shorter than others. */
static tutti_rows counting(void)
{
    for (int i = 0; i < TEXTS; i++)
        for (int k = 0; k < LENGTH; k++) {
            bool padding = i % 7 == 3 && k > 3;
            token[i][k] = padding ? 0 : (i + k) % TOKENS;
            next[i][k] = padding ? -1 : (i + k + 1) % TOKENS;
        }
    return (tutti_rows){.count = TEXTS, .ids = &token[0][0], .label = &next[0][0]};
}

static tutti_job *counting_job(void)
{
    tutti_job *job;

    OK(tutti_job_new("counting", &job));
    tutti_job_set(job, "model.input={ids: %d}", LENGTH);
    tutti_job_layer(job, "gpt: {vocab: %d, layers: 1, heads: 1, width: 8}", TOKENS);
    tutti_job_set(job, "model.loss=softmax_cross_entropy");
    tutti_job_set(job, "train={epochs: 30, batch: 10, threads: 1, optimizer: {adam: {lr: 0.02}}}");
    OK(tutti_job_check(job));
    return job;
}

TT_TEST(api_ids, a_model_of_tokens_trains_on_arrays)
{
    static float y[TEXTS][LENGTH][TOKENS];
    tutti_job *job = counting_job();
    tutti_rows rows = counting();
    tutti_options o = {.train = &rows, .val = &rows};
    tutti_progress last;
    tutti_metrics got;
    tutti_model *m;

    OK(tutti_train(job, &o, &last, &m));
    EXPECT(last.tokens_per_s > last.samples_per_s);
    EXPECT_INT(LENGTH, tutti_model_ids(m));
    EXPECT_INT(0, tutti_shape_count(tutti_model_input(m)));
    EXPECT_INT(LENGTH * TOKENS, tutti_shape_count(tutti_model_output(m)));
    OK(tutti_model_eval(m, &rows, &got));
    EXPECT(got.accuracy == 1 && got.perplexity < 1.2);
    EXPECT_NEAR(got.perplexity, last.val.perplexity, 1e-6);
    OK(tutti_model_predict_rows(m, &(tutti_rows){.count = TEXTS, .ids = rows.ids}, &y[0][0][0]));
    for (int i = 0; i < TEXTS; i++)
        for (int k = 0; k < LENGTH; k++) {
            int best = 0;
            for (int t = 1; t < TOKENS; t++)
                if (y[i][k][t] > y[i][k][best]) best = t;
            if (next[i][k] >= 0) EXPECT_INT(next[i][k], best);
        }
    tutti_model_close(m);
    tutti_job_close(job);
}

TT_TEST(api_ids, numbers_and_ids_come_together)
{
    /* The row of a table, added to the numbers. */
    static const char text[] = "model:\n  input: {features: [2], ids: 1}\n  layers:\n"
                               "    - embedding: {name: table, rows: 3, dim: 2, count: 1}\n"
                               "    - add: {from: [table, input]}\n  loss: mse\n";
    const float x[3][2] = {{1, 2}, {3, 4}, {5, 6}};
    const int32_t id[3] = {2, 0, -1};
    const float *w;
    float y[3][2];
    tutti_job *job;
    tutti_model *m;

    OK(tutti_job_parse("both", text, &job));
    OK(tutti_model_open(job, NULL, NULL, &m));
    OK(tutti_model_param(m, "table.weight", NULL, &w));
    OK(tutti_model_predict_rows(m, &(tutti_rows){.count = 3, .x = &x[0][0], .ids = id}, &y[0][0]));
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            EXPECT_NEAR(x[i][k] + (id[i] < 0 ? 0 : w[2 * id[i] + k]), y[i][k], 1e-6);
    REFUSED(TUTTI_EINVAL, tutti_model_predict_rows(m, &(tutti_rows){.count = 3, .ids = id}, y[0]));
    EXPECT_MESSAGE("the model takes numbers, and these rows have ids alone");
    REFUSED(TUTTI_EINVAL, tutti_model_predict(m, x[0], 3, y[0]));
    EXPECT_MESSAGE("the model takes ids, and these rows have numbers alone");
    tutti_model_close(m);
    tutti_job_close(job);
}

TT_TEST(api_ids, ids_beyond_their_table_are_refused)
{
    tutti_job *job = counting_job();
    tutti_rows rows = counting();
    tutti_options o = {.train = &rows};
    tutti_trainer *t;
    tutti_model *m;
    float y[LENGTH * TOKENS * TEXTS];

    token[9][2] = TOKENS;
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, &o, &t));
    EXPECT_MESSAGE("row 9: id 5, but its table has 5 rows");
    OK(tutti_model_open(job, NULL, NULL, &m));
    REFUSED(TUTTI_EINVAL, tutti_model_predict_rows(m, &rows, y));
    EXPECT_MESSAGE("row 9: id 5, but its table has 5 rows");
    token[9][2] = -2;
    REFUSED(TUTTI_EINVAL, tutti_model_predict_rows(m, &rows, y));
    rows.count = 9; /* before it */
    OK(tutti_model_predict_rows(m, &rows, y));
    rows.count = 0;
    OK(tutti_model_predict_rows(m, &rows, NULL));
    rows.count = 1;
    REFUSED(TUTTI_EINVAL, tutti_model_predict_rows(m, &rows, NULL));
    REFUSED(TUTTI_EINVAL, tutti_model_predict_rows(m, NULL, y));
    REFUSED(TUTTI_EINVAL, tutti_model_predict_rows(NULL, &rows, y));
    EXPECT_INT(0, tutti_model_ids(NULL));
    rows.ids = NULL;
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, &o, &t));
    EXPECT_MESSAGE("no ids");
    tutti_model_close(m);
    tutti_job_close(job);
}
