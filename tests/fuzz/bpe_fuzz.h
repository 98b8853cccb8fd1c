/* What the fuzz entries for tokenizers share: one that was accepted encodes any bytes, and decodes
 * them back. */
#include <stdlib.h>
#include <string.h>

#include "data/bpe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static tt_err put_back(void *to, const int32_t *id, int count)
{
    void **both = to;

    if (tt_bpe_decode(both[0], id, count, both[1])) abort();
    return TT_OK;
}

static void use(tt_bpe_table *t, const uint8_t *data, size_t size)
{
    tt_str back = {0};
    void *both[2] = {NULL, &back};
    tt_bpe *b;

    if (t->merges > t->count) abort();
    if (tt_bpe_new(t, &b)) return; /* built without PCRE2 */
    both[0] = b;
    if (tt_bpe_encode(b, data, size, put_back, both)) abort();
    if (back.size != size || (size && memcmp(back.data, data, size))) abort();
    tt_str_free(&back);
    tt_bpe_close(b);
}
