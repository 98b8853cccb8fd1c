/* Fuzz entry for vocab.bpe and encoder.json: one behind the other, with a NUL between them. */
#include "bpe_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t first = nul ? (size_t)(nul - data) : size, second = nul ? size - first - 1 : 0;
    /* of their exact sizes, as in the other targets */
    char *merges = malloc(first ? first : 1), *vocab = malloc(second ? second : 1);
    tt_bpe_table t;

    memcpy(merges, data, first);
    if (second) memcpy(vocab, nul + 1, second);
    if (!tt_bpe_read_pair("merges", merges, first, "vocab", vocab, second, &t)) use(&t, data, size);
    free(merges);
    free(vocab);
    return 0;
}
