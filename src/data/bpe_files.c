/* The files of a tokenizer, both forms: see bpe.h. */
#include "data/bpe.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MOST = 64 << 20, MAPPED = 0x144 }; /* bytes; characters that stand for a byte */

const char *const tt_bpe_files[] = {"vocab.bpe",  "merges.txt", "encoder.json",
                                    "vocab.json", "gpt2.json",  NULL};

static const char end_of_text[] = "<|endoftext|>";

/* ---- Tokens by their bytes ---- */

typedef struct words {
    const tt_bpe_token *token;
    int32_t *slot; /* id + 1, 0: empty */
    size_t slots;
} words;

static size_t word_slot(const words *w, const uint8_t *s, int n)
{
    uint64_t h = 0xcbf29ce484222325u;
    size_t i;

    for (int k = 0; k < n; k++) h = (h ^ s[k]) * 0x100000001b3u;
    for (i = (h ^ h >> 32) & (w->slots - 1); w->slot[i]; i = (i + 1) & (w->slots - 1)) {
        const tt_bpe_token *t = &w->token[w->slot[i] - 1];
        if (t->n == n && !memcmp(t->s, s, (size_t)n)) break;
    }
    return i;
}

static int32_t word_find(const words *w, const uint8_t *s, int n)
{
    return w->slot[word_slot(w, s, n)] - 1;
}

/* "token 12 ('the')", as far as it can be shown. */
static const char *show(const tt_bpe_table *t, int id)
{
    tt_str text = {0};
    const char *shown;

    for (int i = 0; i < t->token[id].n && i < 40; i++) {
        uint8_t c = t->token[id].s[i];
        tt_str_add(&text, c < 0x20 || c > 0x7e ? "\\x%02x" : "%c", c);
    }
    shown = tt_arena_printf(t->arena, "token %d ('%s')", id, text.data ? text.data : "");
    tt_str_free(&text);
    return shown;
}

/* All tokens, no two of them alike, and every byte among them. */
static tt_err gather(tt_bpe_table *t, const char *name, words *w)
{
    *w = (words){.token = t->token};
    for (w->slots = 16; w->slots < 2 * (size_t)t->count;) w->slots *= 2;
    w->slot = tt_arena_take(t->arena, w->slots * sizeof *w->slot, sizeof *w->slot);
    for (int id = 0; id < t->count; id++) {
        size_t at = word_slot(w, t->token[id].s, t->token[id].n);
        if (w->slot[at])
            return tt_fail(TT_EDATA, "%s: %s is the same as token %d", name, show(t, id),
                           w->slot[at] - 1);
        w->slot[at] = id + 1;
    }
    for (int c = 0; c < 256; c++) {
        uint8_t byte = (uint8_t)c;
        if ((t->byte[c] = word_find(w, &byte, 1)) < 0)
            return tt_fail(TT_EDATA, "%s: no token stands for the byte 0x%02x", name, c);
    }
    t->end = word_find(w, (const uint8_t *)end_of_text, sizeof end_of_text - 1);
    return TT_OK;
}

static tt_err too_many(const char *name, size_t count)
{
    return tt_fail(TT_EDATA, "%s has %zu tokens; 1 to %d are supported", name, count, TT_BPE_MOST);
}

/* ---- JSON ---- */

static json_t *load_json(const char *name, const char *text, size_t size)
{
    json_error_t why;
    json_t *j = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);

    if (!j) {
        tt_fail(TT_EDATA, "%s: line %d: %s", name, why.line, why.text);
    } else if (!json_is_object(j)) {
        tt_fail(TT_EDATA, "%s: no JSON object", name);
        json_decref(j);
        j = NULL;
    }
    return j;
}

/* A token of the table; false: its id is taken, or none. */
static bool set_token(tt_bpe_table *t, json_int_t id, const uint8_t *s, int n)
{
    uint8_t *copy;

    if (id < 0 || id >= t->count || t->token[id].s) return false;
    copy = tt_arena_take(t->arena, (size_t)n + 1, 1);
    memcpy(copy, s, (size_t)n);
    t->token[id] = (tt_bpe_token){copy, n};
    return true;
}

static void new_table(tt_bpe_table *t, int count)
{
    *t = (tt_bpe_table){.arena = tt_arena_open(1 << 16), .count = count, .end = -1};
    t->token = tt_arena_take(t->arena, (size_t)count * sizeof *t->token, sizeof(void *));
    t->merge = tt_arena_take(t->arena, (size_t)count * sizeof *t->merge, sizeof(void *));
}

/* ---- vocab.bpe and encoder.json ---- */

/* Bytes are written as characters that can be seen: themselves where they can, else those from
 * U+0100 on, in turn. */
static void map_bytes(int16_t byte_of[MAPPED])
{
    int hidden = 0x100;

    memset(byte_of, 0xff, MAPPED * sizeof *byte_of);
    for (int c = 0; c < 256; c++) {
        bool seen = (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174;
        byte_of[seen ? c : hidden++] = (int16_t)c;
    }
}

/* The character at s, of those below U+0800, and its bytes; -1: it is another, or none. */
static int small_char(const char *s, size_t n, int *bytes)
{
    uint8_t lead = (uint8_t)s[0];

    *bytes = lead < 0x80 ? 1 : 2;
    if (lead < 0x80) return lead;
    if (lead < 0xc2 || lead > 0xdf || n < 2 || (s[1] & 0xc0) != 0x80) return -1;
    return (lead & 0x1f) << 6 | (s[1] & 0x3f);
}

/* The bytes that a word of these characters stands for; TOO_LONG for any token, or FOREIGN: it has
 * other characters. */
enum { TOO_LONG = -1, FOREIGN = -2 };
static int unmap(const int16_t byte_of[MAPPED], const char *s, size_t n,
                 uint8_t out[TT_BPE_LONGEST])
{
    int count = 0, bytes;

    for (size_t i = 0; i < n; i += (size_t)bytes) {
        int c = small_char(s + i, n - i, &bytes);
        if (c < 0 || c >= MAPPED || byte_of[c] < 0) return FOREIGN;
        if (count == TT_BPE_LONGEST) return TOO_LONG;
        out[count++] = (uint8_t)byte_of[c];
    }
    return count;
}

static tt_err read_vocab(const char *name, const char *text, size_t size,
                         const int16_t byte_of[MAPPED], tt_bpe_table *t)
{
    json_t *j = load_json(name, text, size), *v;
    uint8_t bytes[TT_BPE_LONGEST];
    tt_err err = TT_OK;
    const char *key;

    if (!j) return TT_EDATA;
    if (!json_object_size(j) || json_object_size(j) > TT_BPE_MOST) {
        err = too_many(name, json_object_size(j));
        goto out;
    }
    new_table(t, (int)json_object_size(j));
    json_object_foreach(j, key, v)
    {
        int n = unmap(byte_of, key, strlen(key), bytes);
        bool plain = n == FOREIGN && strlen(key) <= TT_BPE_LONGEST; /* it stands for itself */
        if (n == TOO_LONG || n == 0 || (n == FOREIGN && !plain))
            err = tt_fail(TT_EDATA, "%s: the token '%.40s' has %zu bytes; 1 to %d are supported",
                          name, key, strlen(key), TT_BPE_LONGEST);
        else if (!json_is_integer(v))
            err = tt_fail(TT_EDATA, "%s: the token '%.40s' has no id", name, key);
        else if (!set_token(t, json_integer_value(v), plain ? (const uint8_t *)key : bytes,
                            plain ? (int)strlen(key) : n))
            err = tt_fail(TT_EDATA,
                          "%s: the token '%.40s' has the id %lld; each of 0 to %d must come once",
                          name, key, (long long)json_integer_value(v), t->count - 1);
        if (err) break;
    }
    if (err) tt_arena_close(t->arena);
out:
    json_decref(j);
    return err;
}

/* Reads the lines of vocab.bpe. `made`: tokens that there are by then. */
typedef struct merger {
    const char *name;
    const int16_t *byte_of;
    const words *words;
    tt_bpe_table *table;
    bool *made;
    int line;
} merger;

/* A half of a line; -1 after tt_fail. */
static int32_t half(const merger *m, const char *s, size_t n, uint8_t *bytes, int *count)
{
    int32_t id;

    *count = unmap(m->byte_of, s, n, bytes);
    id = *count > 0 ? word_find(m->words, bytes, *count) : -1;
    if (id >= 0 && m->made[id]) return id;
    tt_fail(TT_EDATA, "%s: line %d joins '%.*s', which %s", m->name, m->line,
            (int)(n > 40 ? 40 : n), s, id < 0 ? "is no token" : "no line before it makes");
    return -1;
}

static tt_err add_merge(merger *m, const char *s, size_t n)
{
    const char *space = memchr(s, ' ', n);
    uint8_t bytes[2 * TT_BPE_LONGEST];
    int a, b;
    int32_t left, right, joined;

    if (!space || space == s || space == s + n - 1 ||
        memchr(space + 1, ' ', n - (size_t)(space + 1 - s)))
        return tt_fail(TT_EDATA, "%s: line %d is not two words: '%.*s'", m->name, m->line,
                       (int)(n > 40 ? 40 : n), s);
    if ((left = half(m, s, (size_t)(space - s), bytes, &a)) < 0) return TT_EDATA;
    if ((right = half(m, space + 1, n - (size_t)(space + 1 - s), bytes + a, &b)) < 0)
        return TT_EDATA;
    joined = word_find(m->words, bytes, a + b);
    if (joined < 0)
        return tt_fail(TT_EDATA, "%s: line %d makes '%.*s%.*s', which is no token", m->name,
                       m->line, (int)(space - s), s, (int)(s + n - space - 1), space + 1);
    if (m->made[joined])
        return tt_fail(TT_EDATA, "%s: line %d makes '%.*s%.*s', which is there already", m->name,
                       m->line, (int)(space - s), s, (int)(s + n - space - 1), space + 1);
    m->made[joined] = true;
    m->table->merge[m->table->merges++] = (tt_bpe_merge){left, right, joined};
    return TT_OK;
}

static tt_err read_merges(merger *m, const char *text, size_t size)
{
    const char *end = text + size;
    tt_err err;

    for (const char *s = text, *next; s < end; s = next) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        size_t n = (size_t)((stop ? stop : end) - s);
        next = stop ? stop + 1 : end;
        m->line++;
        if (n && s[n - 1] == '\r') n--;
        if (!n || (m->line == 1 && n >= 8 && !memcmp(s, "#version", 8))) continue;
        if ((err = add_merge(m, s, n))) return err;
    }
    if (!m->table->merges) return tt_fail(TT_EDATA, "%s: no lines in it", m->name);
    return TT_OK;
}

tt_err tt_bpe_read_pair(const char *merges_name, const char *merges, size_t merges_size,
                        const char *vocab_name, const char *vocab, size_t vocab_size,
                        tt_bpe_table *t)
{
    int16_t byte_of[MAPPED];
    words w;
    merger m = {merges_name, byte_of, &w, t, NULL, 0};
    tt_err err;

    map_bytes(byte_of);
    if ((err = read_vocab(vocab_name, vocab, vocab_size, byte_of, t))) return err;
    if ((err = gather(t, vocab_name, &w))) goto out;
    m.made = tt_arena_take(t->arena, (size_t)t->count * sizeof *m.made, 1);
    for (int c = 0; c < 256; c++) m.made[t->byte[c]] = true;
    err = read_merges(&m, merges, merges_size);
out:
    if (err) tt_arena_close(t->arena);
    return err;
}

/* ---- gpt2.json ---- */

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* -1: that is none, or too long. */
static int base64(const char *s, size_t n, uint8_t out[TT_BPE_LONGEST])
{
    uint32_t bits = 0;
    int have = 0, count = 0;

    if (!n || n % 4) return -1;
    for (int i = 0; i < 2 && s[n - 1] == '='; i++) n--;
    for (size_t i = 0; i < n; i++) {
        int digit = base64_digit(s[i]);
        if (digit < 0) return -1;
        bits = bits << 6 | (uint32_t)digit;
        if ((have += 6) < 8) continue;
        if (count == TT_BPE_LONGEST) return -1;
        out[count++] = (uint8_t)(bits >> (have -= 8));
    }
    return count && !(bits & ((1u << have) - 1)) ? count : -1;
}

/* The next word of a line of bpe_ranks; 0: it ends here. */
static size_t next_word(const char **at, const char *end, const char **word)
{
    while (*at < end && **at == ' ') (*at)++;
    *word = *at;
    while (*at < end && **at != ' ' && **at != '\n') (*at)++;
    return (size_t)(*at - *word);
}

static int64_t rank_of(const char *s, size_t n)
{
    int64_t v = 0;

    if (!n || n > 7) return -1;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return -1;
        v = v * 10 + (s[i] - '0');
    }
    return v;
}

/* Lines of "! RANK token token ...", the k-th of which has RANK + k. */
static tt_err read_ranks(const char *name, const char *text, size_t size, tt_bpe_table *t)
{
    const char *end = text + size, *word;
    uint8_t bytes[TT_BPE_LONGEST];

    for (const char *at = text; at < end; at++) { /* at a '\n', or at the end */
        size_t n = next_word(&at, end, &word);
        int64_t rank;
        if (!n) continue;
        n = next_word(&at, end, &word);
        if ((rank = rank_of(word, n)) < 0)
            return tt_fail(TT_EDATA, "%s: bpe_ranks: '%.*s' is no rank", name,
                           (int)(n > 40 ? 40 : n), word);
        for (; (n = next_word(&at, end, &word)); rank++) {
            int count = base64(word, n, bytes);
            if (count < 0)
                return tt_fail(TT_EDATA,
                               "%s: bpe_ranks: rank %lld, '%.*s', is no base64 of 1 to %d "
                               "bytes",
                               name, (long long)rank, (int)(n > 40 ? 40 : n), word, TT_BPE_LONGEST);
            if (!set_token(t, rank, bytes, count))
                return tt_fail(TT_EDATA, "%s: bpe_ranks: rank %lld; each of 0 to %d must come once",
                               name, (long long)rank, t->count - 1);
        }
    }
    return TT_OK;
}

static tt_err read_specials(const char *name, const json_t *specials, tt_bpe_table *t,
                            bool *special)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)specials, key, v)
    {
        size_t n = strlen(key);
        if (!n || n > TT_BPE_LONGEST || !json_is_integer(v) ||
            !set_token(t, json_integer_value(v), (const uint8_t *)key, (int)n))
            return tt_fail(TT_EDATA, "%s: the special token '%.40s' has no id of its own", name,
                           key);
        special[json_integer_value(v)] = true;
    }
    for (int id = 0; id < t->count; id++)
        if (!t->token[id].s) return tt_fail(TT_EDATA, "%s: no token has the id %d", name, id);
    return TT_OK;
}

/* Of which two parts a token is joined: those that are left when all that has a lower rank is. */
static bool split_token(const words *w, const tt_bpe_token *t, int id, tt_bpe_merge *out)
{
    int end[TT_BPE_LONGEST], parts = t->n; /* where part i ends */

    for (int i = 0; i < t->n; i++) end[i] = i + 1;
    while (parts > 2) {
        int32_t best = id;
        int at = -1;
        for (int i = 0; i + 1 < parts; i++) {
            int from = i ? end[i - 1] : 0;
            int32_t joined = word_find(w, t->s + from, end[i + 1] - from);
            if (joined >= 0 && joined < best) best = joined, at = i;
        }
        if (at < 0) return false;
        memmove(end + at, end + at + 1, sizeof *end * (size_t)(parts - at - 1));
        parts--;
    }
    *out =
        (tt_bpe_merge){word_find(w, t->s, end[0]), word_find(w, t->s + end[0], t->n - end[0]), id};
    return out->left >= 0 && out->left < id && out->right >= 0 && out->right < id;
}

/* How many ids there are: those of ranks and the special ones. */
static size_t count_tokens(const char *ranks, size_t size, const json_t *specials)
{
    size_t count = json_object_size(specials);
    const char *end = ranks + size, *word;

    for (const char *at = ranks; at < end; at++)
        for (size_t k = 0; next_word(&at, end, &word); k++) count += k >= 2;
    return count;
}

/* The pattern as tiktoken has written it, then and now. */
static bool is_our_pattern(const char *p)
{
    static const char *const ours[] = {
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
        "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"};

    return !p || !strcmp(p, ours[0]) || !strcmp(p, ours[1]);
}

static tt_err fill_from_ranks(const char *name, const char *ranks, size_t size,
                              const json_t *specials, tt_bpe_table *t)
{
    bool *special = tt_arena_take(t->arena, (size_t)t->count * sizeof *special, 1);
    words w;
    tt_err err;

    if ((err = read_ranks(name, ranks, size, t))) return err;
    if ((err = read_specials(name, specials, t, special))) return err;
    if ((err = gather(t, name, &w))) return err;
    for (int id = 0; id < t->count; id++) {
        if (special[id] || t->token[id].n == 1) continue;
        if (!split_token(&w, &t->token[id], id, &t->merge[t->merges++]))
            return tt_fail(TT_EDATA, "%s: %s cannot be joined of two before it", name, show(t, id));
    }
    return TT_OK;
}

tt_err tt_bpe_read_ranks(const char *name, const char *text, size_t size, tt_bpe_table *t)
{
    json_t *j = load_json(name, text, size);
    const json_t *ranks = json_object_get(j, "bpe_ranks"),
                 *specials = json_object_get(j, "special_tokens");
    const char *s = json_string_value(ranks);
    size_t n = json_string_length(ranks), count = s ? count_tokens(s, n, specials) : 0;
    tt_err err;

    if (!j) return TT_EDATA;
    if (!s)
        err = tt_fail(TT_EDATA, "%s: no string 'bpe_ranks' in it", name);
    else if (!is_our_pattern(json_string_value(json_object_get(j, "pat_str"))))
        err = tt_fail(TT_EDATA, "%s cuts text by a pattern that is not GPT-2's (pat_str)", name);
    else
        err = !count || count > TT_BPE_MOST ? too_many(name, count) : TT_OK;
    if (!err) {
        new_table(t, (int)count);
        if ((err = fill_from_ranks(name, s, n, specials, t))) tt_arena_close(t->arena);
    }
    json_decref(j);
    return err;
}

/* ---- Opening ---- */

/* The first of two names that is in the folder; NULL: neither. */
static const char *find_either(tt_arena *a, const char *folder, const char *one, const char *other)
{
    const char *path = tt_arena_printf(a, "%s/%s", folder, one);

    if (tt_file_exists(path)) return path;
    path = tt_arena_printf(a, "%s/%s", folder, other);
    return tt_file_exists(path) ? path : NULL;
}

static tt_err read_file(const char *path, tt_bytes *out)
{
    if (!tt_file_read(path, FILE_MOST, out)) return TT_OK;
    return tt_context(TT_EDATA, "tokenizer");
}

static tt_err open_pair(const char *merges, const char *vocab, tt_bpe_table *t)
{
    tt_bytes m = {0}, v = {0};
    tt_err err;

    if (!(err = read_file(merges, &m)) && !(err = read_file(vocab, &v)))
        err = tt_bpe_read_pair(merges, (const char *)m.data, m.size, vocab, (const char *)v.data,
                               v.size, t);
    tt_file_release(&m);
    tt_file_release(&v);
    return err;
}

static tt_err open_ranks(const char *path, tt_bpe_table *t)
{
    tt_bytes file = {0};
    tt_err err;

    if ((err = read_file(path, &file))) return err;
    err = tt_bpe_read_ranks(path, (const char *)file.data, file.size, t);
    tt_file_release(&file);
    return err;
}

static bool is_json(const char *path)
{
    size_t n = strlen(path);

    return n > 5 && !strcmp(path + n - 5, ".json");
}

tt_err tt_bpe_open(const char *path, tt_bpe **out)
{
    tt_arena *a = tt_arena_open(4096);
    const char *merges = find_either(a, path, "vocab.bpe", "merges.txt");
    const char *vocab = find_either(a, path, "encoder.json", "vocab.json");
    const char *ranks = find_either(a, path, "gpt2.json", "gpt2.json");
    tt_bpe_table t;
    tt_err err;

    *out = NULL;
    if (is_json(path) && tt_file_exists(path))
        err = open_ranks(path, &t);
    else if (merges && vocab)
        err = open_pair(merges, vocab, &t);
    else if (ranks)
        err = open_ranks(ranks, &t);
    else if (merges || vocab)
        err = tt_fail(TT_EDATA, "%s is there, but %s/%s is not: a tokenizer is both",
                      merges ? merges : vocab, path, merges ? "encoder.json" : "vocab.bpe");
    else
        err = tt_fail(TT_EDATA,
                      "%s: no tokenizer there: neither vocab.bpe and encoder.json (or merges.txt "
                      "and vocab.json) nor gpt2.json",
                      path);
    tt_arena_close(a);
    return err ? err : tt_bpe_new(&t, out);
}
