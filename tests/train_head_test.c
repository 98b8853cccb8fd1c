/* A large vocabulary, whose scores are never whole: exact is exact all the same. */
#include "train_together.h"

static const char text[] = "name: t\n"
                           "model:\n"
                           "  input: {ids: 32}\n"
                           "  layers: [gpt: {vocab: 20000, layers: 1, heads: 1, width: 4}]\n"
                           "  loss: softmax_cross_entropy\n"
                           "data: {dir: ., train: {format: text, file: t.txt}, val: {split: 0.1}}\n"
                           "train: {steps: 2, batch: 42, optimizer: {adamw: {lr: 1e-2}}}\n"
                           "parallel: {exact: true, grains: 3}\n"
                           "checkpoint: {every: never}\n";

static void expect_exact(const char *changes, const char *shown)
{
    static const int sizes[] = {2, 3};
    together one = {.text = text, .changes = changes, .threads = 1, .opts = {.no_files = true}};
    together blank = one;
    tt_str story = {0}, calls = {0};
    trained x;

    for (int i = 0; i < 900; i++) tt_str_add(&story, "%d and ", i * i % 97);
    tt_test_write("t.txt", story.data, story.size);
    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true, .threads = 1}, text, changes));
    tt_model_show_calls(tt_train_model(x.t), &calls);
    EXPECT(strstr(calls.data, shown));
    close_job(&x);

    EXPECT_OK(tt_sim_run(1, NULL, 60, train_rank, &one));
    EXPECT(one.val.perplexity > 1);
    for (int i = 0; i < TT_COUNT(sizes); i++) {
        together many = blank;
        many.threads = 2 - i;
        EXPECT_OK(tt_sim_run(sizes[i], i ? apart : NULL, 60, train_rank, &many));
        EXPECT_STR(one.sha, many.sha);
        EXPECT(one.val.loss == many.val.loss);
    }
    tt_str_free(&story);
    tt_str_free(&calls);
}

TT_TEST(head, exact_is_the_same_for_any_workers)
{
    expect_exact("", "with lm_head, 416 rows at a time");
}

TT_TEST(head, exact_is_the_same_for_any_workers_in_bf16)
{
    expect_exact("train.precision=bf16", "with lm_head, 832 rows at a time");
}
