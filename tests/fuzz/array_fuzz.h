/* Fuzz entry for a reader of arrays: each target names its reader, and what tells the size by the
 * header, and includes this. */
#include <stdlib.h>
#include <string.h>

#include "data/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static volatile float sink;
    tt_data_want classes = {.classes = 10, .labels = 1}, targets = {.targets = 1};
    tt_source *s = tt_source_new();
    tt_bytes file = {.data = malloc(size ? size : 1), .size = size};
    tt_array a;

    memcpy((void *)file.data, data, size);
    size_t promised = PROMISE(file.data, file.size);
    bool good = !READER("fuzz", file.data, file.size, &a);
    if (good && promised != size) abort(); /* a good file is as large as it says */
    if (good && !tt_source_samples(s, &a, &file)) {
        /* What was accepted must be safe to use: touch every value, and take it as answers too. */
        int64_t n = s->kept * tt_shape_count(s->shape);
        for (int64_t i = 0; i < n; i++) sink += s->keep == TT_KEEP_U8 ? s->u8[i] : s->f32[i];
        (void)tt_source_answers(s, &classes, &a);
        (void)tt_source_answers(s, &targets, &a);
        classes.labels = tt_shape_count(s->shape); /* one for each pixel */
        (void)tt_source_answers(s, &classes, &a);
    }
    tt_file_release(&file);
    tt_source_close(s);
    return 0;
}
