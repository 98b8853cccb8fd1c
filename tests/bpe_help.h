/* Small tokenizers for tests: 256 bytes in an order of their own, a few pairs that are joined, and
 * <|endoftext|>, as files of either form. */
#ifndef BPE_HELP_H
#define BPE_HELP_H

#include "data/bpe.h"
#include "test.h"

#ifdef TT_HAVE_PCRE2
#define NEEDS_PCRE2 ((void)0)
#else
#define NEEDS_PCRE2 tt_test_skip("built without PCRE2")
#endif

/* "h e" joins h and e. A space is written \u0120 there, and the byte 0xe1 \u00e1. */
#define SPACE_CHAR "\xc4\xa0"
#define E1_CHAR    "\xc3\xa1"
static const char *const small_merges[] = {
    "h e", "l l", "he ll", "hell o", SPACE_CHAR " w", "o r", "a a", "aa a", SPACE_CHAR " " E1_CHAR};
enum { SMALL_MERGES = 9, SMALL_COUNT = 256 + SMALL_MERGES + 1, SMALL_END = SMALL_COUNT - 1 };

/* Not the order of their numbers: nobody may take one for the other. */
static inline int small_id(int byte)
{
    return (byte + 200) % 256;
}

/* The character that stands for a byte in these files, as UTF-8. */
static inline void put_byte_char(tt_str *s, int byte)
{
    int c = byte, hidden = 0x100;

    for (int b = 0; b < byte; b++)
        hidden += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
    if (!((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174)) c = hidden;
    if (c < 0x80) {
        tt_str_add(s, c == '"' || c == '\\' ? "\\%c" : "%c", c); /* in JSON */
    } else {
        tt_str_add(s, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 0x3f));
    }
}

static inline void put_joined(tt_str *s, const char *pair)
{
    for (; *pair; pair++)
        if (*pair != ' ') tt_str_put(s, pair, 1);
}

static inline void small_vocab(tt_str *s)
{
    tt_str_add(s, "{");
    for (int b = 0; b < 256; b++) {
        tt_str_add(s, "\"");
        put_byte_char(s, b);
        tt_str_add(s, "\": %d, ", small_id(b));
    }
    for (int i = 0; i < SMALL_MERGES; i++) {
        tt_str_add(s, "\"");
        put_joined(s, small_merges[i]);
        tt_str_add(s, "\": %d, ", 256 + i);
    }
    tt_str_add(s, "\"<|endoftext|>\": %d}", SMALL_END);
}

static inline void small_lines(tt_str *s)
{
    tt_str_add(s, "#version: 0.2\n");
    for (int i = 0; i < SMALL_MERGES; i++) tt_str_add(s, "%s\n", small_merges[i]);
}

static inline void put_base64(tt_str *s, const uint8_t *p, int n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (int i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
                     (i + 2 < n ? p[i + 2] : 0);
        tt_str_add(s, "%c%c%c%c", digit[v >> 18], digit[v >> 12 & 63],
                   i + 1 < n ? digit[v >> 6 & 63] : '=', i + 2 < n ? digit[v & 63] : '=');
    }
}

/* The same tokenizer as small_vocab and small_lines. */
static inline void small_ranks(tt_str *s)
{
    tt_str_add(s,
               "{\"pat_str\": \"'(?:[sdmt]|ll|ve|re)| ?\\\\p{L}+| ?\\\\p{N}+| "
               "?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\", "
               "\"special_tokens\": {\"<|endoftext|>\": %d}, \"bpe_ranks\": \"! 0",
               SMALL_END);
    for (int id = 0; id < 256; id++) {
        uint8_t byte = (uint8_t)((id + 56) % 256);
        tt_str_add(s, " ");
        put_base64(s, &byte, 1);
    }
    for (int i = 0; i < SMALL_MERGES; i++) {
        tt_str bytes = {0};
        for (const char *p = small_merges[i]; *p; p++) {
            if (!strncmp(p, SPACE_CHAR, 2))
                tt_str_put(&bytes, " ", 1), p++;
            else if (!strncmp(p, E1_CHAR, 2))
                tt_str_put(&bytes, "\xe1", 1), p++;
            else if (*p != ' ')
                tt_str_put(&bytes, p, 1);
        }
        tt_str_add(s, i == 3 ? "\\n! %d " : " ", 256 + i); /* it may go on in another line */
        put_base64(s, (const uint8_t *)bytes.data, (int)bytes.size);
        tt_str_free(&bytes);
    }
    tt_str_add(s, "\"}");
}

static inline void write_str(const char *path, tt_str *s)
{
    tt_test_write(path, s->data, s->size);
    tt_str_free(s);
}

/* Makes the folder, with the pair of files. */
static inline void write_small(const char *folder)
{
    tt_str vocab = {0}, lines = {0};
    char path[256];

    small_vocab(&vocab);
    small_lines(&lines);
    EXPECT_OK(tt_dir_make(folder));
    snprintf(path, sizeof path, "%s/encoder.json", folder);
    write_str(path, &vocab);
    snprintf(path, sizeof path, "%s/vocab.bpe", folder);
    write_str(path, &lines);
}

typedef struct id_list {
    int32_t *id;
    int64_t count, room;
} id_list;

static inline tt_err put_ids(void *to, const int32_t *id, int count)
{
    id_list *l = to;

    while (l->count + count > l->room) {
        l->room = l->room ? 2 * l->room : 64;
        l->id = realloc(l->id, (size_t)l->room * sizeof *l->id);
    }
    memcpy(l->id + l->count, id, (size_t)count * sizeof *id);
    l->count += count;
    return TT_OK;
}

static inline id_list encode(tt_bpe *b, const void *text, size_t size)
{
    id_list l = {0};

    EXPECT_OK(tt_bpe_encode(b, text, size, put_ids, &l));
    return l;
}

#define EXPECT_IDS(b_, text_, ...)                                                                 \
    do {                                                                                           \
        const int32_t want_[] = {__VA_ARGS__};                                                     \
        id_list l_ = encode(b_, text_, sizeof(text_) - 1);                                         \
        EXPECT_INT(TT_COUNT(want_), l_.count);                                                     \
        for (int i_ = 0; i_ < TT_COUNT(want_); i_++) EXPECT_INT(want_[i_], l_.id[i_]);             \
        free(l_.id);                                                                               \
    } while (0)

#endif
