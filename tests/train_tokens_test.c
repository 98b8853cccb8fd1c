/* Speed where tokens are judged: padding is no work that anybody asked for. */
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

TT_TEST(tokens, of_other_models_there_are_none)
{
    trained x;

    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true, .threads = 1}, job_text, ""));
    go_to(&x, 3);
    EXPECT(x.p.samples_per_s > 0);
    EXPECT(x.p.tokens_per_s == 0);
    close_job(&x);
}
