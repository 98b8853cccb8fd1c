/* Speed where tokens are judged: padding is no work that anybody asked for. */
#include <math.h>

#include "train_help.h"

static void expect_tokens(const char *data, double of_a_sample)
{
    char text[600];
    trained x;

    snprintf(text, sizeof text,
             "name: t\nmodel:\n  input: {ids: 8}\n  layers: [gpt: {vocab: 5, layers: 1, heads: 1, "
             "width: 4}]\n  loss: softmax_cross_entropy\ndata: {dir: ., train: {%s}}\n"
             "train: {steps: 12, batch: 3, threads: 1, optimizer: {sgd: {lr: 0.1}}}\n",
             data);
    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true, .threads = 1}, text, ""));
    go_to(&x, 12);
    EXPECT_NEAR(of_a_sample, x.p.tokens_per_s / x.p.samples_per_s, 1e-9);
    close_job(&x);
}

TT_TEST(tokens, are_counted_where_they_have_a_label)
{
    tt_str text = {0};

    for (int i = 0; i < 60; i++) tt_str_add(&text, "%s\n", i % 2 ? "abc" : "bca");
    tt_test_write("t.txt", text.data, text.size);
    tt_str_free(&text);
    expect_tokens("format: text, file: t.txt", 8);
    expect_tokens("format: lines, file: t.txt", 4); /* three letters and the edge */
}

/* A goal of the run, what is said of the loss, and of the data: what a validation tells. */
static tt_err validate(const char *loss, const char *data, const char *best, tt_metrics *out)
{
    static int runs;
    char text[700], run[16];
    trained x;
    tt_err err;

    snprintf(run, sizeof run, "run%d", runs++);
    snprintf(text, sizeof text,
             "name: t\nmodel:\n  input: {ids: 8}\n  layers: [gpt: {vocab: 9, layers: 1, heads: 1, "
             "width: 4}]\n  loss: %s\ndata: {dir: ., %s}\n"
             "train: {steps: 3, batch: 3, threads: 1, optimizer: {sgd: {lr: 0.1}}}\n"
             "checkpoint: {best: %s}\n",
             loss, data, best);
    if (!(err = open_job(&x, (tt_train_opts){.run = run, .threads = 1}, text, "")))
        EXPECT_OK(tt_train_validate(x.t, out));
    close_job(&x);
    return err;
}

TT_TEST(tokens, bits_are_of_the_bytes_that_are_judged)
{
    static const char own[] = "softmax_cross_entropy", val[] = "val.loss min";
    tt_str text = {0}, other = {0};
    tt_metrics m;

    for (int i = 0; i < 20; i++) tt_str_add(&text, "abcé\n");
    for (int i = 0; i < 30; i++) tt_str_add(&other, "éé");
    tt_test_write("t.txt", text.data, text.size);
    tt_test_write("v.txt", other.data, other.size);
    tt_str_free(&text);
    tt_str_free(&other);
    EXPECT_OK(validate(own, "train: {format: text, file: t.txt}, val: {format: text, file: v.txt}",
                       val, &m));
    EXPECT_NEAR(log2(m.perplexity) / 2, m.bits_per_byte, 1e-9); /* not those of t.txt, 6 / 5 */
    EXPECT_OK(validate(own, "train: {format: lines, file: t.txt}, val: {split: 0.3}", val, &m));
    EXPECT_NEAR(log2(m.perplexity) * 5 / 6, m.bits_per_byte, 1e-9); /* the end of a line is one */
}

TT_TEST(tokens, perplexity_is_of_the_loss_that_judges_and_of_it_alone)
{
    static const char data[] = "train: {format: text, file: t.txt}, val: {split: 0.3}";
    tt_str text = {0};
    tt_metrics m;
    double plain;

    for (int i = 0; i < 60; i++) tt_str_add(&text, "%s\n", i % 2 ? "abc" : "bca");
    tt_test_write("t.txt", text.data, text.size);
    tt_str_free(&text);
    EXPECT_OK(validate("softmax_cross_entropy", data, "val.perplexity min", &m));
    plain = m.perplexity;
    EXPECT_NEAR(exp(m.loss), plain, 1e-9);
    EXPECT_OK(validate("{softmax_cross_entropy: {weight: 3}}", data, "val.loss min", &m));
    EXPECT_NEAR(plain, m.perplexity, 1e-5);
    EXPECT_OK(validate("{softmax_cross_entropy: {smoothing: 0.1}}", data, "val.loss min", &m));
    EXPECT(isnan(m.perplexity) && isnan(m.bits_per_byte));
    EXPECT_ERR(TT_EINVAL, validate("{softmax_cross_entropy: {smoothing: 0.1}}", data,
                                   "val.perplexity min", &m));
    EXPECT_MESSAGE("without smoothing");
}

/* Numbers of which nobody says how many bytes they are. */
TT_TEST(tokens, a_goal_that_gets_no_value_is_refused)
{
    static const char data[] = "train: {format: tokens, files: t.bin}, val: {split: 0.3}";
    uint16_t token[200];
    tt_metrics m;

    for (int i = 0; i < 200; i++) token[i] = (uint16_t)(i % 7);
    tt_test_write("t.bin", token, sizeof token);
    EXPECT_OK(validate("softmax_cross_entropy", data, "val.perplexity min", &m));
    EXPECT(isnan(m.bits_per_byte));
    EXPECT_ERR(TT_EINVAL, validate("softmax_cross_entropy", data, "val.bits_per_byte min", &m));
    EXPECT_MESSAGE("how many bytes");
}

TT_TEST(tokens, of_other_models_there_are_none)
{
    trained x;

    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true, .threads = 1}, job_text, ""));
    go_to(&x, 3);
    EXPECT(x.p.samples_per_s > 0);
    EXPECT(x.p.tokens_per_s == 0);
    close_job(&x);
}
