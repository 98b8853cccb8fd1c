/* Fuzz entry for the reader of LIBSVM text. With libFuzzer: clang -fsanitize=fuzzer,address. */
#include <stdlib.h>
#include <string.h>

#include "data/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text =
        malloc(size ? size : 1); /* of its exact size, so that reading past the end is seen */

    memcpy(text, data, size);
    for (int kind = 0; kind < 3; kind++) {
        tt_data_want want = {.input = {1, {100}},
                             .classes = kind ? 3 : 0,
                             .targets = kind ? 0 : 1,
                             .only_x = kind == 2};
        tt_source_ctx c = {.want = &want, .dir = ""};
        tt_libsvm_keys k = {0};
        tt_source *s = tt_source_new();
        s->name = "fuzz";
        if (!tt_libsvm_decode(s, &c, &k, text, size)) {
            for (int64_t r = 0; r < s->kept; r++) {
                if (s->row[r] > s->row[r + 1]) abort();
                if (s->label && (s->label[r] < -1 || s->label[r] >= 3)) abort();
            }
            for (int64_t i = 0; i < s->row[s->kept]; i++)
                if (s->col[i] < 0 || s->col[i] >= 100) abort();
        }
        tt_source_close(s);
    }
    free(text);
    return 0;
}
