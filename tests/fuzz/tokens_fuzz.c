/* Fuzz entry for files of tokens. With libFuzzer: clang -fsanitize=fuzzer,address. */
#include <stdlib.h>
#include <string.h>

#include "data/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *file = malloc(size ? size : 1); /* of its exact size, as in the other targets */
    size_t promised;
    tt_shard h;

    memcpy(file, data, size);
    promised = tt_shard_size(file, size);
    if (!tt_shard_decode("fuzz", file, size, &h)) {
        /* What was accepted must be safe to use: every token, alone and in windows. */
        uint32_t most = tt_shard_most(&h), seen = 0;
        if (h.count < 1 || (!h.plain && promised != size)) abort();
        for (int64_t i = 0; i < h.count; i++)
            if (tt_shard_at(&h, i) > seen) seen = tt_shard_at(&h, i);
        if (seen != most) abort();
        tt_shard two[2] = {h, h};
        two[1].first = h.count;
        tt_source s = {.shard = two, .shard_count = 2, .tokens = 2 * h.count};
        for (int64_t at = 0; at < s.tokens; at += 5) {
            int32_t id[7];
            int64_t n = s.tokens - at < 7 ? s.tokens - at : 7;
            tt_tokens_get(&s, at, n, id);
            for (int64_t i = 0; i < n; i++)
                if ((uint32_t)id[i] != tt_shard_at(&h, (at + i) % h.count)) abort();
        }
    }
    free(file);
    return 0;
}
