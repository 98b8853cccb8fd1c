/* Fuzz entry for weights as Hugging Face stores them: model.safetensors alone, or behind a C,
 * config.json and a NUL. With libFuzzer: clang -fsanitize=fuzzer,address. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/train.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char job[] = "input: {ids: 3}\n"
                          "layers: [gpt: {vocab: 3, layers: 1, heads: 1, width: 2, positions: 4}]\n"
                          "loss: softmax_cross_entropy\n";
static char folder[] = "/tmp/tutti-fuzz-XXXXXX";
static char files[2][64];
static tt_model *model;

static void leave(void)
{
    for (int i = 0; i < 2; i++) unlink(files[i]);
    rmdir(folder);
}

static void begin(void)
{
    tt_tree *tree; /* the model's for good */

    if (!mkdtemp(folder) || tt_tree_parse("fuzz", job, strlen(job), &tree) ||
        tt_model_open(tt_tree_root(tree), &(tt_model_opts){0}, &model))
        abort();
    snprintf(files[0], sizeof files[0], "%s/config.json", folder);
    snprintf(files[1], sizeof files[1], "%s/model.safetensors", folder);
    atexit(leave);
    tt_log_quiet(true);
}

static void put(const char *path, const uint8_t *data, size_t size)
{
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(data, 1, size, f) != size || fclose(f)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size && *data == 'C' ? memchr(data, 0, size) : NULL;
    size_t at = end ? (size_t)(end - data) + 1 : 0;

    if (!model) begin();
    unlink(files[0]);
    if (end) put(files[0], data + 1, at - 2);
    put(files[1], data + at, size - at);
    for (int partial = 0; partial < 2; partial++) {
        float *w = malloc((size_t)tt_model_size(model) * sizeof *w); /* of its exact size */
        tt_weights_load(folder, NULL, partial, model, w);
        free(w);
    }
    return 0;
}
