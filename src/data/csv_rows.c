/* Rows of delimited text, and vocabularies. */
#include "data/csv.h"

#include <stdlib.h>
#include <string.h>

/* ---- Rows ---- */

void tt_csv_start(tt_csv *r, const char *name, const char *text, size_t size, char separator,
                  char comment)
{
    *r = (tt_csv){.name = name,
                  .p = text,
                  .end = text + size,
                  .separator = separator,
                  .comment = comment,
                  .next_line = 1};
    if (size >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) r->p += 3; /* byte order mark */
}

void tt_csv_stop(tt_csv *r)
{
    free(r->cell);
    tt_str_free(&r->unquoted);
    *r = (tt_csv){0};
}

static void add_cell(tt_csv *r, tt_cell c)
{
    if (r->count == r->room) {
        int room = r->room ? 2 * r->room : 32;
        tt_cell *grown = realloc(r->cell, sizeof *grown * (size_t)room);
        if (!grown) tt_mem_out(sizeof *grown * (size_t)room);
        r->cell = grown;
        r->room = room;
    }
    r->cell[r->count++] = c;
}

static bool blank(const tt_csv *r, char c)
{
    return (c == ' ' || c == '\t' || c == '\r') && c != r->separator;
}

/* A quoted cell; r->p stands behind the opening quote. Its text goes to r->unquoted, from which it
 * is addressed by offset until the row is complete, because that buffer moves while it grows. */
static tt_err quoted_cell(tt_csv *r)
{
    size_t start = r->unquoted.size;

    for (;;) {
        const char *quote = memchr(r->p, '"', (size_t)(r->end - r->p));
        if (!quote)
            return tt_fail(TT_EDATA, "%s: line %lld, field %d: the quote is never closed", r->name,
                           (long long)r->line, r->count + 1);
        for (const char *p = r->p; p < quote; p++) r->next_line += *p == '\n';
        tt_str_put(&r->unquoted, r->p, (size_t)(quote - r->p));
        r->p = quote + 1;
        if (r->p == r->end || *r->p != '"') break;
        tt_str_put(&r->unquoted, "\"", 1); /* "" stands for one quote */
        r->p++;
    }
    while (r->p < r->end && blank(r, *r->p)) r->p++;
    if (r->p < r->end && *r->p != r->separator && *r->p != '\n')
        return tt_fail(TT_EDATA, "%s: line %lld, field %d: text after the closing quote", r->name,
                       (long long)r->line, r->count + 1);
    add_cell(r, (tt_cell){NULL, r->unquoted.size - start, true, start});
    return TT_OK;
}

static void plain_cell(tt_csv *r)
{
    const char *s = r->p, *end;

    while (r->p < r->end && *r->p != r->separator && *r->p != '\n') r->p++;
    for (end = r->p; end > s && blank(r, end[-1]);) end--;
    add_cell(r, (tt_cell){s, (size_t)(end - s), false, 0});
}

static bool skip_line(tt_csv *r)
{
    const char *p = r->p;

    while (p < r->end && blank(r, *p)) p++;
    if (p < r->end && *p != '\n' && !(r->comment && *p == r->comment)) return false;
    p = memchr(p, '\n', (size_t)(r->end - p));
    r->p = p ? p + 1 : r->end;
    r->next_line++;
    return true;
}

tt_err tt_csv_next(tt_csv *r, bool *more)
{
    tt_err err;

    r->count = 0;
    r->unquoted.size = 0;
    while (r->p < r->end && skip_line(r)) continue;
    r->line = r->next_line;
    *more = r->p < r->end;
    if (!*more) return TT_OK;
    for (;;) {
        while (r->p < r->end && blank(r, *r->p)) r->p++;
        if (r->p < r->end && *r->p == '"') {
            r->p++;
            if ((err = quoted_cell(r))) return err;
        } else {
            plain_cell(r);
        }
        if (r->p == r->end) break;
        if (*r->p++ == '\n') {
            r->next_line++;
            break;
        }
    }
    for (int i = 0; i < r->count; i++)
        if (r->cell[i].quoted) r->cell[i].s = r->cell[i].n ? r->unquoted.data + r->cell[i].at : "";
    return TT_OK;
}

/* ---- Vocabularies: a hash table over words that live in an arena ---- */

struct tt_vocab {
    tt_arena *arena;
    const char **word;
    int count, room;
    int *slot; /* word number + 1, 0 empty; a power of two of them, at most half full */
    size_t slots;
};

/* FNV-1a and a final mix: it stands in job results (hash: N), so it never changes. */
uint64_t tt_vocab_hash(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)s[i]) * 0x100000001b3u;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

tt_vocab *tt_vocab_new(tt_arena *a)
{
    tt_vocab *v = tt_arena_take(a, sizeof *v, sizeof(void *));

    v->arena = a;
    return v;
}

int tt_vocab_count(const tt_vocab *v)
{
    return v->count;
}
const char *const *tt_vocab_words(const tt_vocab *v)
{
    return v->word;
}

static bool is_word(const char *word, const char *s, size_t n)
{
    return !strncmp(word, s, n) && !word[n];
}

static size_t place(const tt_vocab *v, const char *s, size_t n)
{
    size_t i = tt_vocab_hash(s, n) & (v->slots - 1);

    while (v->slot[i] && !is_word(v->word[v->slot[i] - 1], s, n)) i = (i + 1) & (v->slots - 1);
    return i;
}

int tt_vocab_find(const tt_vocab *v, const char *s, size_t n)
{
    return v->slots ? v->slot[place(v, s, n)] - 1 : -1;
}

static void rebuild(tt_vocab *v)
{
    memset(v->slot, 0, sizeof *v->slot * v->slots);
    for (int i = 0; i < v->count; i++) v->slot[place(v, v->word[i], strlen(v->word[i]))] = i + 1;
}

static void grow(tt_vocab *v)
{
    int room = v->room ? 2 * v->room : 16;
    const char **word = tt_arena_take(v->arena, sizeof *word * (size_t)room, sizeof *word);

    if (v->count) memcpy(word, v->word, sizeof *word * (size_t)v->count);
    v->word = word;
    v->room = room;
    v->slots = 2 * (size_t)room;
    v->slot = tt_arena_take(v->arena, sizeof *v->slot * v->slots, sizeof *v->slot);
    rebuild(v);
}

int tt_vocab_add(tt_vocab *v, const char *s, size_t n)
{
    int found = tt_vocab_find(v, s, n);
    char *word;

    if (found >= 0) return found;
    if (v->count == v->room) grow(v);
    word = tt_arena_take(v->arena, n + 1, 1); /* zeroed */
    memcpy(word, s, n);
    v->word[v->count] = word;
    v->slot[place(v, s, n)] = v->count + 1;
    return v->count++;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void tt_vocab_sort(tt_vocab *v)
{
    if (!v->count) return;
    qsort(v->word, (size_t)v->count, sizeof *v->word, by_text);
    rebuild(v);
}
