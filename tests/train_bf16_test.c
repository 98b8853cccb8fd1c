/* train.precision: bf16: it learns as float32 does, exactly so for any number of workers, and a run
 * may go on in the other precision. */
#include <stdio.h>

#include "train_together.h"

static const char gpt_text[] = "name: g\n"
                               "model:\n"
                               "  input: {ids: 32}\n"
                               "  layers:\n"
                               "    - gpt: {vocab: 12, layers: 2, heads: 3, width: 48}\n"
                               "  loss: softmax_cross_entropy\n"
                               "data:\n"
                               "  dir: .\n"
                               "  train: {format: text, file: text.txt, tokens: chars}\n"
                               "  val: {split: 0.1}\n"
                               "train:\n"
                               "  steps: 60\n"
                               "  batch: 8\n"
                               "  optimizer: {adamw: {lr: 0.001, weight_decay: 0.1}}\n"
                               "  clip: {norm: 1}\n"
                               "  validate: never\n"
                               "checkpoint: {every: never}\n";

static const char cnn_text[] = "name: c\n"
                               "model:\n"
                               "  input: [1, 28, 28]\n"
                               "  layers:\n"
                               "    - conv: {out: 10, kernel: 5}\n"
                               "    - maxpool: {size: 2}\n"
                               "    - relu\n"
                               "    - conv: {out: 20, kernel: 5}\n"
                               "    - maxpool: {size: 2}\n"
                               "    - relu\n"
                               "    - flatten\n"
                               "    - dense: {out: 50}\n"
                               "    - relu\n"
                               "    - dense: {out: 10}\n"
                               "  loss: softmax_cross_entropy\n"
                               "data:\n"
                               "  train: {format: synth, kind: blobs, count: 320, classes: 10}\n"
                               "train:\n"
                               "  steps: 40\n"
                               "  batch: 32\n"
                               "  optimizer: {sgd: {lr: 0.02, momentum: 0.9}}\n"
                               "  validate: never\n"
                               "checkpoint: {every: never}\n";

#define BLOBS(model)                                                                               \
    "name: b\nmodel:\n" model "  loss: softmax_cross_entropy\n"                                    \
    "data:\n  train: {format: synth, kind: blobs, count: 96, classes: 4}\n"                        \
    "train: {steps: 5, batch: 24, optimizer: {sgd: {lr: 0.02, momentum: 0.9}}, validate: never}\n" \
    "checkpoint: {every: never}\n"

static const char recurrent_text[] = BLOBS("  input: [7, 10]\n"
                                           "  layers:\n"
                                           "    - lstm: {hidden: 20}\n"
                                           "    - dropout: {p: 0.2}\n"
                                           "    - gru: {hidden: 13, last: true}\n"
                                           "    - dense: {out: 4}\n");

/* Batch norm, a sum, groups, dilation, a transposed convolution and upsampling. */
static const char image_text[] =
    BLOBS("  input: [3, 8, 8]\n"
          "  layers:\n"
          "    - conv: {name: a, out: 12, kernel: 3, padding: 1, bias: false}\n"
          "    - batchnorm\n"
          "    - relu: {name: r}\n"
          "    - conv: {out: 12, kernel: 3, padding: 2, dilation: 2, groups: 3}\n"
          "    - batchnorm: {name: n}\n"
          "    - add: {from: [n, r]}\n"
          "    - relu\n"
          "    - maxpool: {size: 2}\n"
          "    - conv_transpose: {out: 9, kernel: 2, stride: 2}\n"
          "    - upsample: {mode: bilinear}\n"
          "    - global_avgpool\n"
          "    - flatten\n"
          "    - layernorm\n"
          "    - dense: {out: 4}\n");

/* Words of a few letters in an order that can be learned, in part. */
static void write_text(void)
{
    FILE *f = fopen("text.txt", "w");

    EXPECT(f != NULL);
    for (int i = 0; i < 3000; i++) {
        static const char *const words[] = {"abba ", "cad ", "feed ", "bag\n", "heed ", "aba "};
        fputs(words[tt_philox(5, 0, (uint64_t)i).v[0] % 6], f);
    }
    fputs("ij", f); /* twelve characters in all */
    EXPECT_INT(0, fclose(f));
}

static together train_as(const char *text, int ranks, int threads, const char *changes)
{
    together x = {.text = text, .changes = changes, .threads = threads, .opts = {.no_files = true}};
    EXPECT_OK(tt_sim_run(ranks, NULL, 60, train_rank, &x));
    return x;
}

static void expect_to_follow(const char *text)
{
    together wide = train_as(text, 1, 1, ""), half = train_as(text, 1, 1, "train.precision=bf16");

    EXPECT(half.steps == wide.steps && wide.steps >= 40);
    EXPECT(strcmp(half.sha, wide.sha) != 0);
    EXPECT(wide.loss[wide.steps - 1] < wide.loss[0] - 0.3); /* there was something to learn */
    for (int i = 0; i < wide.steps; i++) EXPECT_NEAR(wide.loss[i], half.loss[i], 0.02);
}

TT_TEST(bf16, a_gpt_follows_float32)
{
    write_text();
    expect_to_follow(gpt_text);
}

TT_TEST(bf16, a_cnn_follows_float32)
{
    expect_to_follow(cnn_text);
}

static void expect_same_bits(const char *text, const char *changes)
{
    char exact[256];

    snprintf(exact, sizeof exact,
             "train.precision=bf16; parallel.exact=true; parallel.grains=6; %s", changes);
    together one = train_as(text, 1, 1, exact);
    EXPECT_STR(one.sha, train_as(text, 1, 3, exact).sha);
    EXPECT_STR(one.sha, train_as(text, 2, 1, exact).sha);
    EXPECT_STR(one.sha, train_as(text, 3, 2, exact).sha);
}

TT_TEST(bf16, one_worker_two_and_three_make_the_same_bits)
{
    write_text();
    expect_same_bits(gpt_text, "train.steps=6");
    expect_same_bits(job_text, "");
    expect_same_bits(recurrent_text, "");
    expect_same_bits(image_text, "");
}

TT_TEST(bf16, a_run_goes_on_in_the_other_precision)
{
    tt_log_quiet(true);
    run_in("r", false, 14, 1, NULL, "parallel.exact=true; train.precision=bf16");
    expect_text("r/env.json", "\"precision\": \"bf16\"");
    expect_text("r/resolved.yaml", "precision: bf16");
    run_in("r", true, 0, 1, NULL, "parallel.exact=true; train.precision=float32");
    expect_text("r/summary.json", "\"precision\": \"float32\"");
    run_in("f", false, 14, 1, NULL, "parallel.exact=true");
    run_in("f", true, 0, 1, NULL, "parallel.exact=true; train.precision=bf16");
    expect_text("f/summary.json", "\"precision\": \"bf16\"");
    EXPECT_INT(0, count_text("f/resolved.yaml", "kernels: avx2\n"));
}

TT_TEST(bf16, kernels_of_the_other_precision_are_refused_with_the_reason)
{
    trained x;

    EXPECT_ERR(TT_EINVAL, open_job(&x, (tt_train_opts){.no_files = true}, job_text,
                                   "train.kernels=generic-bf16"));
    EXPECT(strstr(tt_message(), "precision: bf16") != NULL);
    close_job(&x);
}
