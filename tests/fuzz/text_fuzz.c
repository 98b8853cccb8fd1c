/* Fuzz entry for text in windows and lines. With libFuzzer: clang -fsanitize=fuzzer,address. */
#include <stdlib.h>
#include <string.h>

#include "data/source.h"

enum { WINDOW = 7, BYTES = 0, CHARS = 1, ROOM = 300 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every sample of what was accepted can be made, of tokens that there are. */
static void check(const tt_source *s)
{
    tt_data d = {0};
    tt_part p = {.src = s, .count = s->count};
    int32_t id[WINDOW], label[WINDOW];

    if (s->classes > ROOM || s->count < 1) abort();
    for (int64_t i = 0; i < s->count; i++) {
        bool none = false;
        tt_fill_tokens(&d, &p, i, (tt_place){0}, false, id, label);
        for (int k = 0; k < WINDOW; k++) {
            if (id[k] < 0 || id[k] >= s->classes || label[k] >= s->classes) abort();
            if (k && label[k - 1] >= 0 && id[k] != label[k - 1]) abort();
            if (label[k] < 0) none = true;
            if (none && (label[k] >= 0 || !s->row)) abort();
        }
        if (s->row && (id[0] != s->edge || s->row[i + 1] <= s->row[i])) abort();
    }
    if (s->row && s->row[s->count] != s->tokens) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int64_t rows[WINDOW];
    uint8_t *text = malloc(size ? size : 1); /* of its exact size, as in the other targets */
    tt_data_want want = {
        .input = {1, {0}}, .ids = WINDOW, .labels = WINDOW, .id_rows = rows, .classes = ROOM};

    memcpy(text, data, size);
    for (int i = 0; i < WINDOW; i++) rows[i] = ROOM;
    for (int i = 0; i < 4; i++) {
        tt_source *train = tt_source_new(), *val = tt_source_new();
        tt_source_ctx c = {.want = &want, .dir = ""};
        int kind = i % 2 ? CHARS : BYTES;
        train->name = val->name = "fuzz";
        if (!tt_text_decode(train, &c, kind, i / 2, text, size)) {
            check(train);
            /* The same text again has no character that is nowhere in it. */
            c.train = train;
            if (tt_text_decode(val, &c, kind, i / 2, text, size)) abort();
            check(val);
        }
        tt_source_close(val);
        tt_source_close(train);
    }
    free(text);
    return 0;
}
