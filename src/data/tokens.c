/* tokens: files of token numbers, as nanoGPT and llm.c have them, read as one long text in windows.
 *
 *   nanoGPT   uint16, one after the other, nothing else
 *   llm.c     256 x int32: magic, version, count; then as many tokens. 20240520: uint16, version 1;
 *             20240801: uint32, version 7
 *
 * Several files follow one another without a gap: a window may begin in one and end in the next.
 * Files are mapped, not copied, so processes of a host have them in common, and one that is larger
 * than memory is read as it is needed; each is gone through once, when it is opened. */
#include "data/source.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

typedef struct token_keys {
    int format;
    tt_strings files;
    const char *tokenizer;
} token_keys;

static const tt_key keys[] = {
    TT_FORMAT_KEY(token_keys),
    {"files", TT_STRINGS, offsetof(token_keys, files), NULL, 0, 0, NULL,
     "files of tokens, in this order: names, or patterns (train-*.bin)"},
    {"tokenizer", TT_STRING, offsetof(token_keys, tokenizer), "-", 0, 0, NULL,
     "folder of vocab.bpe and encoder.json: what the numbers stand for, to sample"},
};

/* ---- Files ---- */

static int32_t word_at(const uint8_t *data, int i)
{
    int32_t v;

    memcpy(&v, data + 4 * i, 4);
    return v;
}

/* Other files of llm.c begin alike and are no text. */
static const char *other_kind(int32_t magic)
{
    switch (magic) {
    case 20240522:
        return "an evaluation set";
    case 20240326:
        return "a checkpoint";
    case 20240327:
        return "a debug state";
    case 20240328:
        return "a tokenizer";
    case 20240527:
        return "an optimizer state";
    }
    return NULL;
}

/* Reads what comes before the tokens. */
static tt_err read_header(const char *name, const uint8_t *data, size_t size, tt_shard *out)
{
    int32_t magic = size >= 4 ? word_at(data, 0) : 0;
    bool wide = magic == TT_SHARD_MAGIC_WIDE;
    int version = wide ? 7 : 1;

    *out = (tt_shard){.data = data, .wide = wide};
    if (other_kind(magic))
        return tt_fail(TT_EDATA, "%s is %s of llm.c, not tokens to train on", name,
                       other_kind(magic));
    if (magic != TT_SHARD_MAGIC && !wide) {
        out->plain = true;
        out->count = (int64_t)(size / 2);
        return TT_OK;
    }
    if (size < TT_SHARD_HEAD)
        return tt_fail(TT_EDATA, "%s: the header is cut off at offset %zu", name, size);
    if (word_at(data, 1) != version)
        return tt_fail(TT_EDATA, "%s: version %d at offset 4; %d is supported", name,
                       word_at(data, 1), version);
    if (word_at(data, 2) < 0)
        return tt_fail(TT_EDATA, "%s: %d tokens at offset 8", name, word_at(data, 2));
    out->data = data + TT_SHARD_HEAD;
    out->count = word_at(data, 2);
    return TT_OK;
}

size_t tt_shard_size(const uint8_t *head, size_t size)
{
    tt_shard h;

    if (read_header("", head, size, &h) || h.plain) return 0;
    return TT_SHARD_HEAD + (size_t)h.count * (h.wide ? 4 : 2);
}

tt_err tt_shard_decode(const char *name, const uint8_t *data, size_t size, tt_shard *out)
{
    size_t promised;
    tt_err err;

    if ((err = read_header(name, data, size, out))) return err;
    if (!out->count) return tt_fail(TT_EDATA, "%s: no tokens in it", name);
    if (out->plain && size % 2)
        return tt_fail(TT_EDATA, "%s: %zu bytes are no whole number of tokens of 2 bytes", name,
                       size);
    promised = tt_shard_size(data, size);
    if (!out->plain && promised != size)
        return tt_fail(TT_EDATA,
                       "%s: its header announces %lld tokens, which take %zu bytes, the "
                       "file has %zu",
                       name, (long long)out->count, promised, size);
    return TT_OK;
}

uint32_t tt_shard_at(const tt_shard *h, int64_t i)
{
    return h->wide ? ((const uint32_t *)h->data)[i] : ((const uint16_t *)h->data)[i];
}

uint32_t tt_shard_most(const tt_shard *h)
{
    uint32_t most = 0;

    if (h->wide)
        for (int64_t i = 0; i < h->count; i++) {
            uint32_t t = ((const uint32_t *)h->data)[i];
            if (t > most) most = t;
        }
    else
        for (int64_t i = 0; i < h->count; i++) {
            uint16_t t = ((const uint16_t *)h->data)[i];
            if (t > most) most = t;
        }
    return most;
}

tt_err tt_shard_read(const char *path, tt_bytes *out)
{
    size_t n = strlen(path);
    bool packed = n > 3 && !strcmp(path + n - 3, ".gz");

    return packed ? tt_file_read_data(path, tt_shard_size, out) : tt_file_map(path, out);
}

/* ---- meta.json ---- */

static tt_err bad_meta(const char *path, const char *what)
{
    return tt_fail(TT_EDATA, "%s: %s", path, what);
}

static tt_err meta_names(tt_arena *a, const json_t *list, tt_tokens_meta *m)
{
    const char **name;

    if (!json_is_array(list) || json_array_size(list) != (size_t)m->vocab)
        return bad_meta(m->path, "itos is no list of as many words as vocab_size says");
    name = tt_arena_take(a, (size_t)m->vocab * sizeof *name, sizeof *name);
    for (int i = 0; i < m->vocab; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (!json_is_string(v)) return bad_meta(m->path, "itos is no list of words");
        name[i] = tt_arena_strdup(a, json_string_value(v));
    }
    m->name = name;
    return TT_OK;
}

/* What it says of the split that the file is of, or of all files. */
static const json_t *meta_part(const json_t *j, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const json_t *part = json_object_get(j, strncmp(name, "val-", 4) ? "train" : "val");

    return json_object_get(part, "bytes") ? part : j;
}

static tt_err meta_values(tt_arena *a, const json_t *j, const char *path, tt_tokens_meta *m)
{
    const json_t *vocab = json_object_get(j, "vocab_size"), *itos = json_object_get(j, "itos");
    const char *kind = json_string_value(json_object_get(j, "tokens"));
    const json_t *part = meta_part(j, path);
    double bytes = (double)json_integer_value(json_object_get(part, "bytes"));
    double count = (double)json_integer_value(json_object_get(part, "count"));

    if (!json_is_integer(vocab) || json_integer_value(vocab) < 1 ||
        json_integer_value(vocab) > INT32_MAX)
        return bad_meta(m->path, "vocab_size is no number of tokens");
    m->vocab = (int)json_integer_value(vocab);
    m->kind = kind ? tt_arena_strdup(a, kind) : "";
    m->bytes_per_token = bytes > 0 && count > 0 ? bytes / count : 0;
    return itos ? meta_names(a, itos, m) : TT_OK;
}

tt_err tt_tokens_meta_read(tt_arena *a, const char *path, tt_tokens_meta *m)
{
    enum { META_MOST = 64 << 20 };
    const char *slash = strrchr(path, '/');
    tt_bytes file = {0};
    json_error_t why;
    json_t *j;
    tt_err err;

    *m = (tt_tokens_meta){
        .path = tt_arena_printf(a, "%.*smeta.json", slash ? (int)(slash - path + 1) : 0, path)};
    if (!tt_file_exists(m->path)) return TT_OK;
    if (tt_file_read(m->path, META_MOST, &file)) return tt_context(TT_EDATA, "dataset");
    j = json_loadb((const char *)file.data, file.size, JSON_REJECT_DUPLICATES, &why);
    tt_file_release(&file);
    if (!j) return tt_fail(TT_EDATA, "%s: line %d: %s", m->path, why.line, why.text);
    m->there = true;
    err = meta_values(a, j, path, m);
    json_decref(j);
    return err;
}

/* ---- The source ---- */

/* The highest id must be one that the model, and the file's own word, know. */
static tt_err check_ids(const tt_source_ctx *c, const tt_tokens_meta *m, const char *name,
                        const tt_shard *h, uint32_t most)
{
    const tt_data_want *w = c->want;
    int64_t limit = INT32_MAX, at = 0;
    char why[200] = "ids are below 2147483647";

    if (m->there && m->vocab < limit) {
        limit = m->vocab;
        snprintf(why, sizeof why, "meta.json beside it says there are %d", m->vocab);
    }
    for (int64_t i = 0; i < w->ids; i++)
        if (w->id_rows && w->id_rows[i] && w->id_rows[i] < limit) {
            limit = w->id_rows[i];
            snprintf(why, sizeof why, "the model's embedding has %lld rows", (long long)limit);
        }
    if (w->classes > 0 && w->classes < limit) {
        limit = w->classes;
        snprintf(why, sizeof why, "the model tells %lld tokens apart", (long long)limit);
    }
    if (most < limit) return TT_OK;
    while (tt_shard_at(h, at) < limit) at++;
    return tt_fail(TT_EDATA, "%s: token %lld is %u, but %s", name, (long long)at,
                   tt_shard_at(h, at), why);
}

static tt_err open_shard(tt_source *s, const tt_source_ctx *c, const tt_tokens_meta *m,
                         const char *path)
{
    tt_shard *h = &s->shard[s->shard_count];
    tt_bytes file = {0};
    uint32_t most;
    tt_err err;

    if (tt_shard_read(path, &file)) return tt_context(TT_EDATA, "dataset");
    if ((err = tt_shard_decode(path, file.data, file.size, h))) goto out;
    most = tt_shard_most(h);
    if ((err = check_ids(c, m, path, h, most))) goto out;
    if (!m->there && (int)most >= s->classes) s->classes = (int)most + 1;
    h->first = s->tokens;
    h->file = file;
    s->tokens += h->count;
    s->shard_count++;
    return TT_OK;
out:
    tt_file_release(&file);
    return err;
}

static bool same_folder(const char *a, const char *b)
{
    const char *end = strrchr(a, '/'), *other = strrchr(b, '/');
    size_t n = end ? (size_t)(end - a) + 1 : 0;

    return n == (other ? (size_t)(other - b) + 1 : 0) && !strncmp(a, b, n);
}

/* Files of several folders follow one another: a number must mean the same in all of them. */
static tt_err check_folder(tt_source *s, const tt_tokens_meta *first, const char *path)
{
    tt_tokens_meta m;
    tt_err err = tt_tokens_meta_read(s->arena, path, &m);
    bool same;

    if (err || !m.there || !first->there) return err;
    same = m.vocab == first->vocab && !strcmp(m.kind, first->kind) && !m.name == !first->name;
    for (int i = 0; same && m.name && i < m.vocab; i++) same = !strcmp(m.name[i], first->name[i]);
    if (same) return TT_OK;
    return tt_fail(TT_EDATA,
                   "%s: its tokens mean something else than those of %s: prepare all texts at once",
                   m.path, first->path);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && !strcmp(s + n - m, end);
}

/* A file without a header among some with one, whose name does not say either that it is one of
 * theirs: a pattern for all of a folder takes meta.json, too. */
static tt_err check_heads(const tt_source *s, const char *const *path)
{
    int headed = 0;

    while (headed < s->shard_count && s->shard[headed].plain) headed++;
    for (int i = 0; i < s->shard_count && headed < s->shard_count; i++)
        if (s->shard[i].plain && !ends_with(path[i], ".bin") && !ends_with(path[i], ".bin.gz"))
            return tt_fail(TT_EDATA,
                           "%s has no header as %s has: is it one of the files of tokens?", path[i],
                           path[headed]);
    return TT_OK;
}

/* What has no header may be anything. */
static tt_err check_plain(const tt_shard *h, const char *path)
{
    enum { ENOUGH = 16 }; /* to be no chance */
    bool halves = h->plain && h->count >= ENOUGH && h->count % 2 == 0, zeros = true;

    for (int64_t i = 0; i < h->count && halves; i++) {
        if (i % 2)
            halves = !tt_shard_at(h, i);
        else
            zeros &= !tt_shard_at(h, i);
    }
    if (halves && !zeros)
        return tt_fail(TT_EDATA,
                       "%s: every second token is 0: it has numbers of 32 bits, where 16 are read. "
                       "'tutti data prepare' makes files that say what they are",
                       path);
    return TT_OK;
}

static tt_err open_all(tt_source *s, const tt_source_ctx *c, const char *const *path, int count)
{
    tt_tokens_meta m;
    tt_err err;

    s->name = path[0];
    if ((err = tt_tokens_begin(s, c, 0, NULL))) return err;
    if ((err = tt_tokens_meta_read(s->arena, path[0], &m))) return err;
    s->classes = m.vocab;
    s->class_name = m.name;
    s->nameless = !m.name && !(m.there && !strcmp(m.kind, "bytes"));
    s->shard = tt_arena_take(s->arena, (size_t)count * sizeof *s->shard, sizeof(void *));
    for (int i = 0; i < count; i++) {
        if (i && !same_folder(path[i], path[i - 1]) && (err = check_folder(s, &m, path[i])))
            return err;
        if ((err = open_shard(s, c, &m, path[i])) || (err = check_plain(&s->shard[i], path[i])))
            return err;
    }
    if ((err = check_heads(s, path))) return err;
    if (!s->bpe && !s->nameless) tt_source_name_tokens(s);
    s->text_bytes = (int64_t)(m.bytes_per_token * (double)s->tokens);
    if ((err = tt_tokens_check(s, c))) return err;
    return tt_tokens_windows(s, c->want->ids);
}

tt_err tt_source_tokens(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    token_keys k = {0};
    const char **path = NULL;
    int count = 0;
    tt_node *at;
    tt_err err;

    if ((err = tt_node_read(map, what, keys, TT_COUNT(keys), &k))) return err;
    at = tt_node_get(map, "files");
    if (!k.files.count) return tt_node_fail(at, "'files' is empty");
    if (c->look) return TT_OK;
    for (int i = 0; i < k.files.count; i++) {
        const char *const *more, **all;
        int n;
        err = tt_source_glob(s->arena, c->dir, at->kind == TT_LIST ? at->item[i] : at,
                             k.files.item[i], &more, &n);
        if (err) return err;
        all = tt_arena_take(s->arena, (size_t)(count + n) * sizeof *all, sizeof *all);
        if (count) memcpy(all, path, (size_t)count * sizeof *all);
        memcpy(all + count, more, (size_t)n * sizeof *all);
        path = all;
        count += n;
    }
    if (k.tokenizer && (err = tt_source_bpe(s, c, tt_node_get(map, "tokenizer"), k.tokenizer)))
        return err;
    return open_all(s, c, path, count);
}
