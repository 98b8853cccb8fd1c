/* One of the readers of click logs (READER, whose text is of type TEXT): whatever it is given, what
 * it accepts has ids that are rows of tables, labels of two classes and finite numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const tt_source *s, const tt_data_want *want)
{
    for (int64_t i = 0; i < s->kept * s->shape.dim[0]; i++)
        if (!isfinite(s->f32[i]) || s->f32[i] < 0) abort();
    for (int64_t i = 0; i < s->kept * s->ids_each; i++)
        if (s->ids[i] < 0 || s->ids[i] >= want->id_rows[i % 26]) abort();
    for (int64_t r = 0; s->label && r < s->kept; r++)
        if (s->label[r] != 0 && s->label[r] != 1) abort();
    if (want->only_x && s->label) abort();
    if (s->ids_each != want->ids) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int64_t divisor = 7;
    static int64_t rows[26];
    uint8_t *copy =
        malloc(size ? size : 1); /* of its exact size, so that reading past the end is seen */

    memcpy(copy, data, size);
    for (int i = 0; i < 26; i++) rows[i] = 10 + 1000 * i;
    for (int kind = 0; kind < 4; kind++) {
        tt_data_want want = {.input = {1, {kind == 3 ? 0 : 13}},
                             .ids = kind == 2 ? 0 : 26,
                             .id_rows = rows,
                             .classes = 2,
                             .labels = 1,
                             .only_x = kind == 1};
        tt_source_ctx c = {.want = &want, .dir = ""};
        tt_ints divide = {kind % 2, &divisor};
        tt_source *s = tt_source_new();
        s->name = "fuzz";
        if (!READER(s, &c, NULL, &divide, (const TEXT *)copy, size)) check(s, &want);
        tt_source_close(s);
    }
    free(copy);
    return 0;
}
