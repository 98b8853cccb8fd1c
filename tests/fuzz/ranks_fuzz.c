/* Fuzz entry for tiktoken's gpt2.json. */
#include "bpe_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *json = malloc(size ? size : 1);
    tt_bpe_table t;

    memcpy(json, data, size);
    if (!tt_bpe_read_ranks("fuzz", json, size, &t)) use(&t, data, size);
    free(json);
    return 0;
}
