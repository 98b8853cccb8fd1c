/* Encoding and decoding by byte pairs. */
#define _GNU_SOURCE
#include "data/bpe.h"

#include <stdlib.h>
#include <string.h>
#ifdef TT_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

enum { CACHE_SLOTS = 1 << 18, CACHE_MOST = CACHE_SLOTS / 2, CACHED = 64, BAD_RUN = 4096 };

typedef struct join { /* a pair that may be joined */
    uint64_t key;     /* left << 32 | right; NONE: an empty slot */
    int32_t rank, joined;
} join;
static const uint64_t NONE = UINT64_MAX;

typedef struct known { /* a piece that was encoded before */
    const uint8_t *s;  /* NULL: an empty slot */
    const int32_t *id;
    int n, count;
} known;

/* A piece while it is joined: parts are a list, in which 0 .. n stand for where they begin. */
typedef struct parts {
    int32_t *id; /* -1: it is part of the one before */
    int32_t *next, *before;
    uint64_t *heap; /* rank << 32 | place, the lowest first; what is out of date is passed over */
    int64_t heaped, room;
} parts;

struct tt_bpe {
    tt_bpe_table table;
    join *join;
    size_t joins; /* slots, a power of two */
    known *cache;
    int cached;
    parts parts;
#ifdef TT_HAVE_PCRE2
    pcre2_code *pattern;
    pcre2_match_data *match;
#endif
};

/* ---- Opening ---- */

static uint64_t mix(uint64_t h)
{
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

static size_t join_slot(const tt_bpe *b, uint64_t key)
{
    size_t i = mix(key) & (b->joins - 1);

    while (b->join[i].key != NONE && b->join[i].key != key) i = (i + 1) & (b->joins - 1);
    return i;
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static void fill_joins(tt_bpe *b)
{
    const tt_bpe_table *t = &b->table;

    for (b->joins = 16; b->joins < 2 * (size_t)t->merges;) b->joins *= 2;
    b->join = tt_arena_take(t->arena, b->joins * sizeof *b->join, 64);
    for (size_t i = 0; i < b->joins; i++) b->join[i].key = NONE;
    for (int rank = 0; rank < t->merges; rank++) {
        const tt_bpe_merge *m = &t->merge[rank];
        uint64_t key = pair_key(m->left, m->right);
        b->join[join_slot(b, key)] = (join){key, rank, m->joined};
    }
}

#ifdef TT_HAVE_PCRE2

/* White space is what Unicode says it is: \s of this library is one character more. */
#define SPACE "\\p{White_Space}"
static const char pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+"
                              "| ?[^" SPACE "\\p{L}\\p{N}]+"
                              "|" SPACE "+(?!\\P{White_Space})|" SPACE "+";

static tt_err need_pattern(tt_bpe *b)
{
    char why[256];
    PCRE2_SIZE at;
    int code;

    /* Anchored here: where it is said of a match, the compiled code is not used. */
    b->pattern = pcre2_compile((PCRE2_SPTR)pattern, sizeof pattern - 1,
                               PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &code, &at, NULL);
    if (!b->pattern) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return tt_fail(TT_EENV, "this PCRE2 cannot cut text into words: %s (10.40 or newer can)",
                       why);
    }
    pcre2_jit_compile(b->pattern, PCRE2_JIT_COMPLETE); /* where it cannot, it is slower */
    b->match = pcre2_match_data_create_from_pattern(b->pattern, NULL);
    if (!b->match) tt_mem_out(sizeof(void *));
    return TT_OK;
}

/* The end of the piece that begins at `at`, in well-formed text. */
static tt_err find_end(tt_bpe *b, const uint8_t *text, size_t size, size_t at, size_t *end)
{
    int code = pcre2_match(b->pattern, text, size, at, PCRE2_NO_UTF_CHECK, b->match, NULL);
    char why[256];

    if (code > 0) {
        *end = pcre2_get_ovector_pointer(b->match)[1];
        return TT_OK;
    }
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return tt_fail(TT_ENOMEM, "cutting text into words, at byte %zu of %zu: %s", at, size, why);
}

static void drop_pattern(tt_bpe *b)
{
    pcre2_match_data_free(b->match);
    pcre2_code_free(b->pattern);
}

#else

static tt_err need_pattern(tt_bpe *b)
{
    (void)b;
    return tt_fail(TT_EENV, "tokens of GPT-2 need PCRE2, without which this was built: install "
                            "libpcre2-dev and build again");
}

static tt_err find_end(tt_bpe *b, const uint8_t *text, size_t size, size_t at, size_t *end)
{
    (void)text, (void)at;
    *end = size;
    return need_pattern(b);
}

static void drop_pattern(tt_bpe *b)
{
    (void)b;
}

#endif

tt_err tt_bpe_new(tt_bpe_table *t, tt_bpe **out)
{
    tt_bpe *b = calloc(1, sizeof *b);
    tt_err err;

    *out = NULL;
    if (!b) tt_mem_out(sizeof *b);
    b->table = *t;
    *t = (tt_bpe_table){0};
    fill_joins(b);
    if ((err = need_pattern(b))) {
        tt_bpe_close(b);
        return err;
    }
    if (!(b->cache = calloc(CACHE_SLOTS, sizeof *b->cache)))
        tt_mem_out(CACHE_SLOTS * sizeof *b->cache);
    *out = b;
    return TT_OK;
}

void tt_bpe_close(tt_bpe *b)
{
    if (!b) return;
    drop_pattern(b);
    free(b->cache);
    free(b->parts.id);
    free(b->parts.heap);
    tt_arena_close(b->table.arena);
    free(b);
}

int tt_bpe_count(const tt_bpe *b)
{
    return b->table.count;
}

int tt_bpe_end(const tt_bpe *b)
{
    return b->table.end;
}

/* ---- Joining ---- */

static tt_err need_parts(parts *p, int n)
{
    int64_t room = p->room;

    if (n <= room) return TT_OK;
    for (room = room ? room : 256; room < n;) room *= 2;
    free(p->id);
    free(p->heap);
    p->id = malloc((size_t)room * 3 * sizeof *p->id);
    p->heap = malloc((size_t)room * 3 * sizeof *p->heap); /* each join adds two at most */
    p->room = p->id && p->heap ? room : 0;
    if (!p->room) return tt_fail(TT_ENOMEM, "no memory for the tokens of a word of %d bytes", n);
    p->next = p->id + room;
    p->before = p->next + room;
    return TT_OK;
}

static void heap_add(parts *p, uint64_t v)
{
    int64_t i = p->heaped++;

    for (; i && p->heap[(i - 1) / 2] > v; i = (i - 1) / 2) p->heap[i] = p->heap[(i - 1) / 2];
    p->heap[i] = v;
}

static uint64_t heap_take(parts *p)
{
    uint64_t least = p->heap[0], v = p->heap[--p->heaped];
    int64_t i = 0, k;

    for (; (k = 2 * i + 1) < p->heaped; i = k) {
        if (k + 1 < p->heaped && p->heap[k + 1] < p->heap[k]) k++;
        if (p->heap[k] >= v) break;
        p->heap[i] = p->heap[k];
    }
    p->heap[i] = v;
    return least;
}

/* How the part at `at` and the next one may be joined; NULL: they may not. */
static const join *join_at(const tt_bpe *b, int at, int n)
{
    const parts *p = &b->parts;
    const join *j;

    if (p->next[at] == n) return NULL;
    j = &b->join[join_slot(b, pair_key(p->id[at], p->id[p->next[at]]))];
    return j->key == NONE ? NULL : j;
}

static void offer(tt_bpe *b, int at, int n)
{
    const join *j = join_at(b, at, n);

    if (j) heap_add(&b->parts, (uint64_t)(uint32_t)j->rank << 32 | (uint32_t)at);
}

/* The ids of a piece, in b->parts.id; returns how many. Among equals the first is joined first. */
static int join_all(tt_bpe *b, const uint8_t *s, int n)
{
    parts *p = &b->parts;
    int count = 0;

    p->heaped = 0;
    for (int i = 0; i < n; i++) {
        p->id[i] = b->table.byte[s[i]];
        p->next[i] = i + 1;
        p->before[i] = i - 1;
    }
    for (int i = 0; i < n; i++) offer(b, i, n);
    while (p->heaped) {
        uint64_t best = heap_take(p);
        int at = (int)(uint32_t)best, gone;
        const join *j = p->id[at] < 0 ? NULL : join_at(b, at, n);
        if (!j || (uint64_t)j->rank != best >> 32) continue; /* it was joined meanwhile */
        gone = p->next[at];
        p->id[at] = j->joined;
        p->id[gone] = -1;
        p->next[at] = p->next[gone];
        if (p->next[at] < n) p->before[p->next[at]] = at;
        offer(b, at, n);
        if (p->before[at] >= 0) offer(b, p->before[at], n);
    }
    for (int i = 0; i < n; i = p->next[i]) p->id[count++] = p->id[i];
    return count;
}

/* ---- Pieces ---- */

static known *cache_slot(const tt_bpe *b, const uint8_t *s, int n)
{
    uint64_t h = 0xcbf29ce484222325u;
    size_t i;

    for (int k = 0; k < n; k++) h = (h ^ s[k]) * 0x100000001b3u;
    for (i = mix(h) & (CACHE_SLOTS - 1);; i = (i + 1) & (CACHE_SLOTS - 1)) {
        known *k = &b->cache[i];
        if (!k->s || (k->n == n && !memcmp(k->s, s, (size_t)n))) return k;
    }
}

/* Most of a text are words that came before. When the cache is full it stays as it is: the
 * frequent ones came early. */
static tt_err encode_piece(tt_bpe *b, const uint8_t *s, size_t size, tt_bpe_put *put, void *to)
{
    known *k = size <= CACHED ? cache_slot(b, s, (int)size) : NULL;
    int n = (int)size, count;
    tt_err err;

    if (k && k->s) return put(to, k->id, k->count);
    if (size > INT32_MAX / 4) return tt_fail(TT_EDATA, "a word of %zu bytes has no end", size);
    if ((err = need_parts(&b->parts, n))) return err;
    count = join_all(b, s, n);
    if (k && b->cached < CACHE_MOST) {
        uint8_t *copy = tt_arena_take(b->table.arena, size, 1);
        int32_t *id = tt_arena_take(b->table.arena, (size_t)count * sizeof *id, sizeof *id);
        memcpy(copy, s, size);
        memcpy(id, b->parts.id, (size_t)count * sizeof *id);
        *k = (known){copy, id, n, count};
        b->cached++;
    }
    return put(to, b->parts.id, count);
}

/* How far text is well-formed UTF-8 from `at` on. */
static size_t good_end(const uint8_t *text, size_t size, size_t at)
{
    while (at < size) {
        size_t n = text[at] < 0x80 ? 1 : tt_utf8_size((const char *)text + at, size - at);
        if (!n) break;
        at += n;
    }
    return at;
}

static size_t bad_end(const uint8_t *text, size_t size, size_t at)
{
    size_t from = at;

    while (at < size && at - from < BAD_RUN && !tt_utf8_size((const char *)text + at, size - at))
        at++;
    return at;
}

tt_err tt_bpe_encode(tt_bpe *b, const void *bytes, size_t size, tt_bpe_put *put, void *to)
{
    const uint8_t *text = bytes;
    tt_err err;

    for (size_t from = 0; from < size;) {
        size_t good = good_end(text, size, from) - from, bad;
        for (size_t at = 0, end; at < good; at = end) {
            if ((err = find_end(b, text + from, good, at, &end))) return err;
            if ((err = encode_piece(b, text + from + at, end - at, put, to))) return err;
        }
        from += good;
        bad = bad_end(text, size, from);
        if (bad > from && (err = encode_piece(b, text + from, bad - from, put, to))) return err;
        from = bad;
    }
    return TT_OK;
}

int tt_bpe_size(const tt_bpe *b, int id)
{
    TT_ASSERT(id >= 0 && id < b->table.count);
    return id == b->table.end ? 0 : b->table.token[id].n;
}

tt_err tt_bpe_decode(const tt_bpe *b, const int32_t *id, int64_t count, tt_str *out)
{
    for (int64_t i = 0; i < count; i++) {
        if (id[i] < 0 || id[i] >= b->table.count)
            return tt_fail(TT_EDATA, "token %lld is %d, but the tokenizer has %d", (long long)i,
                           id[i], b->table.count);
        tt_str_put(out, b->table.token[id[i]].s, (size_t)b->table.token[id[i]].n);
    }
    return TT_OK;
}
