/* Text into shards: `tutti data prepare`.
 *
 * All tokens go to one file first, because only at its end is it known where the part to validate
 * on begins; from there to shards. Everything is made in <out>.part, which is renamed when it is
 * whole and on disk: a crash leaves that folder at most, and the next call clears it. */
#define _GNU_SOURCE
#include "data/bpe.h"
#include "data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTES, CHARS, GPT2 };
static const char *const kinds[] = {"bytes", "chars", "gpt2"};
static const char *const splits[] = {"train", "val"};

typedef struct maker {
    const tt_prepare_opts *o;
    tt_prepared *made;
    tt_arena *arena;
    int kind;
    const char *part, *stream; /* the folder in the making; all tokens, a file in it */
    int lock;                  /* the folder, locked                                 */
    tt_bpe *bpe;
    int32_t *number;   /* chars: of each character, -1: none */
    const char **name; /* chars: of each token               */
    FILE *f;
    int64_t tokens;
    int64_t val_bytes; /* of text, in the part to validate on */
    bool wide;
} maker;

/* ---- The folder ---- */

static tt_err check_out(const char *out)
{
    struct stat st;
    char **names;
    int count;
    tt_err err;

    size_t n = strlen(out), from;

    while (n > 1 && out[n - 1] == '/') n--;
    for (from = n; from && out[from - 1] != '/';) from--;
    if (n - from <= 2 && !strncmp(out + from, "..", n - from)) /* or nothing: / itself */
        return tt_fail(TT_EINVAL, "%s: name a folder of its own, which is made", out);
    if (lstat(out, &st)) return TT_OK;
    if (!S_ISDIR(st.st_mode)) return tt_fail(TT_EINVAL, "%s is there, and is no folder", out);
    if ((err = tt_dir_list(out, &names, &count))) return err;
    tt_dir_free(names, count);
    if (!count) return TT_OK;
    return tt_fail(TT_EINVAL, "%s is there and not empty: remove it, or name another folder", out);
}

/* Does a name look like one of the files that are made here? */
static bool is_ours(const char *name)
{
    static const char *const own[] = {"tokens", "meta.json", "meta.json.tmp"};

    for (int i = 0; i < TT_COUNT(own); i++)
        if (!strcmp(name, own[i])) return true;
    return !fnmatch("train-[0-9][0-9][0-9][0-9][0-9][0-9]*.bin", name, 0) ||
           !fnmatch("val-[0-9][0-9][0-9][0-9][0-9][0-9]*.bin", name, 0);
}

/* Makes <out>.part, for us alone, and empties it of what an earlier one has left. */
static tt_err begin_part(maker *m)
{
    size_t n = strlen(m->o->out);
    char **names;
    int count;
    tt_err err;

    while (n > 1 && m->o->out[n - 1] == '/') n--;
    m->part = tt_arena_printf(m->arena, "%.*s.part", (int)n, m->o->out);
    m->stream = tt_arena_printf(m->arena, "%s/tokens", m->part);
    if ((err = tt_dir_make(m->part))) return err;
    m->lock = open(m->part, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (m->lock < 0) return tt_fail(TT_EIO, "%s: %s", m->part, strerror(errno));
    if (flock(m->lock, LOCK_EX | LOCK_NB))
        return tt_fail(TT_EIO, "%s: another process makes it", m->part);
    if ((err = tt_dir_list(m->part, &names, &count))) return err;
    for (int i = 0; i < count && !err; i++) {
        const char *path = tt_arena_printf(m->arena, "%s/%s", m->part, names[i]);
        if (!is_ours(names[i]))
            err = tt_fail(TT_EINVAL, "%s is in the way, and is not of an earlier 'data prepare'",
                          path);
        else if (unlink(path))
            err = tt_fail(TT_EIO, "removing %s: %s", path, strerror(errno));
    }
    tt_dir_free(names, count);
    return err;
}

static tt_err finish_part(const maker *m)
{
    tt_err err;

    if ((err = tt_dir_sync(m->part))) return err;
    if (rename(m->part, m->o->out))
        return tt_fail(TT_EIO, "renaming %s to %s: %s", m->part, m->o->out, strerror(errno));
    return tt_dir_sync(tt_arena_printf(m->arena, "%s/..", m->o->out));
}

/* ---- Tokens ---- */

static tt_err read_input(const char *path, tt_bytes *out)
{
    if (!tt_file_read_data(path, NULL, out)) return TT_OK;
    return tt_context(TT_EDATA, "input");
}

static tt_err put(void *to, const int32_t *id, int count)
{
    maker *m = to;

    for (int i = 0; i < count; i++) {
        uint32_t v = (uint32_t)id[i]; /* little-endian: its lower half comes first */
        if (fwrite_unlocked(&v, m->wide ? 4 : 2, 1, m->f) != 1)
            return tt_fail(TT_EIO, "writing %s: %s", m->stream, strerror(errno));
    }
    m->tokens += count;
    return TT_OK;
}

static tt_err put_bytes(maker *m, const tt_bytes *text)
{
    int32_t id;
    tt_err err = TT_OK;

    for (size_t i = 0; i < text->size && !err; i++) {
        id = text->data[i];
        err = put(m, &id, 1);
    }
    return err;
}

static tt_err put_chars(maker *m, const tt_bytes *text)
{
    tt_err err = TT_OK;

    for (size_t at = 0; at < text->size && !err;) {
        int32_t c = tt_char_next(text->data, text->size, &at);
        if (c < 0 || m->number[c] < 0) return tt_fail(TT_EDATA, "it was changed while it was read");
        err = put(m, &m->number[c], 1);
    }
    return err;
}

/* A file is a document, which <|endoftext|> ends. */
static tt_err put_gpt2(maker *m, const tt_bytes *text)
{
    int32_t end = tt_bpe_end(m->bpe);
    tt_err err = tt_bpe_encode(m->bpe, text->data, text->size, put, m);

    return err || end < 0 ? err : put(m, &end, 1);
}

static tt_err put_all(maker *m)
{
    static tt_err (*const how[])(maker *, const tt_bytes *) = {put_bytes, put_chars, put_gpt2};
    tt_err err = TT_OK;

    if (!(m->f = fopen(m->stream, "wbe")))
        return tt_fail(TT_EIO, "%s: %s", m->stream, strerror(errno));
    for (int i = 0; i < m->o->inputs && !err; i++) {
        tt_bytes text;
        if ((err = read_input(m->o->input[i], &text))) return err;
        m->made->bytes += (int64_t)text.size;
        err = how[m->kind](m, &text);
        tt_file_release(&text);
        if (err) tt_context(err, "%s", m->o->input[i]);
    }
    if (!err && fflush(m->f)) err = tt_fail(TT_EIO, "writing %s: %s", m->stream, strerror(errno));
    return err;
}

/* ---- Vocabularies ---- */

static tt_err see_chars(maker *m, const char *path)
{
    tt_bytes text;
    tt_err err = read_input(path, &text);

    for (size_t at = 0; !err && at < text.size;) {
        size_t was = at;
        int32_t c = tt_char_next(text.data, text.size, &at);
        if (c <= 0) /* names are strings: NUL can have none */
            err = tt_fail(TT_EDATA, "%s: byte %zu is %s: say --tokens bytes", path, was,
                          c ? "not UTF-8" : "NUL, which is no character of a text");
        else
            m->number[c] = 0;
    }
    tt_file_release(&text);
    return err;
}

/* Characters by their number in Unicode, as format `text` has them. */
static tt_err number_chars(maker *m)
{
    tt_err err = TT_OK;
    int count = 0;

    if (!(m->number = malloc(TT_CHARS * sizeof *m->number))) tt_mem_out(TT_CHARS * 4);
    for (int c = 0; c < TT_CHARS; c++) m->number[c] = -1;
    for (int i = 0; i < m->o->inputs && !err; i++) err = see_chars(m, m->o->input[i]);
    for (int c = 0; c < TT_CHARS; c++) count += !m->number[c];
    m->name = tt_arena_take(m->arena, ((size_t)count + 1) * sizeof *m->name, sizeof *m->name);
    m->made->vocab = count;
    count = 0;
    for (int c = 0; c < TT_CHARS; c++) {
        if (m->number[c]) continue;
        m->name[count] = tt_char_name(m->arena, c);
        m->number[c] = count++;
    }
    return err;
}

static tt_err need_vocabulary(maker *m)
{
    tt_err err = TT_OK;

    if (m->kind == BYTES) m->made->vocab = 256;
    if (m->kind == CHARS) err = number_chars(m);
    if (m->kind == GPT2 && !(err = tt_bpe_open(m->o->tokenizer, &m->bpe)))
        m->made->vocab = tt_bpe_count(m->bpe);
    m->wide = m->made->vocab > UINT16_MAX + 1;
    return err;
}

/* ---- Shards ---- */

static tt_err write_shard(const maker *m, int split, int number, const uint8_t *data, int64_t n)
{
    int32_t head[TT_SHARD_HEAD / 4] = {m->wide ? TT_SHARD_MAGIC_WIDE : TT_SHARD_MAGIC,
                                       m->wide ? 7 : 1, (int32_t)n};
    const char *path = tt_arena_printf(m->arena, "%s/%s-%06d.bin", m->part, splits[split], number);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    tt_err err = TT_OK;

    if (fd < 0) return tt_fail(TT_EIO, "%s: %s", path, strerror(errno));
    if (!tt_write_all(fd, head, sizeof head, NULL) ||
        !tt_write_all(fd, data, (size_t)n * (m->wide ? 4 : 2), NULL) || fsync(fd))
        err = tt_fail(TT_EIO, "writing %s: %s", path, strerror(errno));
    if (close(fd) && !err) err = tt_fail(TT_EIO, "writing %s: %s", path, strerror(errno));
    return err;
}

static tt_err write_split(const maker *m, int split, const uint8_t *data)
{
    int64_t left = m->made->tokens[split], most = m->o->shard_tokens;
    tt_err err = TT_OK;

    while (left && !err) {
        int64_t n = left < most ? left : most;
        err = write_shard(m, split, m->made->shards[split]++, data, n);
        data += n * (m->wide ? 4 : 2);
        left -= n;
    }
    return err;
}

static tt_err write_meta(const maker *m)
{
    const tt_prepared *p = m->made;
    json_t *itos = json_array(), *j;
    char *text;
    tt_err err;

    j = json_pack("{s:s, s:i, s:I, s:I, s:i, s:s}", "tokens", kinds[m->kind], "vocab_size",
                  p->vocab, "count", (json_int_t)m->tokens, "bytes", (json_int_t)p->bytes,
                  "token_bytes", m->wide ? 4 : 2, "made_by", "tutti " TT_VERSION);
    for (int i = 0; i < 2; i++)
        json_object_set_new(
            j, splits[i],
            json_pack("{s:I, s:I, s:i}", "count", (json_int_t)p->tokens[i], "bytes",
                      (json_int_t)(i == TT_VAL ? m->val_bytes : p->bytes - m->val_bytes), "shards",
                      p->shards[i]));
    if (m->bpe && tt_bpe_end(m->bpe) >= 0)
        json_object_set_new(j, "end_of_text", json_integer(tt_bpe_end(m->bpe)));
    for (int i = 0; m->name && i < p->vocab; i++)
        json_array_append_new(itos, json_string(m->name[i]));
    if (m->name) json_object_set(j, "itos", itos);
    json_decref(itos);
    if (!(text = json_dumps(j, JSON_INDENT(2) | JSON_ENSURE_ASCII))) tt_mem_out(1);
    json_decref(j);
    err = tt_file_write(tt_arena_printf(m->arena, "%s/meta.json", m->part), text, strlen(text));
    free(text);
    return err;
}

/* Bytes that n tokens stand for. */
static int64_t bytes_of(const maker *m, const uint8_t *data, int64_t n)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t id = 0;
        memcpy(&id, data + i * (m->wide ? 4 : 2), m->wide ? 4 : 2);
        sum += m->bpe ? tt_bpe_size(m->bpe, (int)id) : m->name ? (int)strlen(m->name[id]) : 1;
    }
    return sum;
}

static tt_err cut_stream(maker *m)
{
    size_t each = m->wide ? 4 : 2;
    int64_t val = m->tokens - (int64_t)((double)m->tokens * (1 - m->o->val)); /* as nanoGPT */
    tt_bytes all;
    tt_err err;

    if (m->tokens < val + 1)
        return tt_fail(TT_EDATA, "there are %lld tokens, of which %lld are to validate on: too few",
                       (long long)m->tokens, (long long)val);
    m->made->tokens[TT_TRAIN] = m->tokens - val;
    m->made->tokens[TT_VAL] = val;
    if ((err = tt_file_map(m->stream, &all))) return err;
    err = write_split(m, TT_TRAIN, all.data);
    if (!err) err = write_split(m, TT_VAL, all.data + (size_t)(m->tokens - val) * each);
    m->val_bytes = bytes_of(m, all.data + (size_t)(m->tokens - val) * each, val);
    tt_file_release(&all);
    if (!err && unlink(m->stream))
        err = tt_fail(TT_EIO, "removing %s: %s", m->stream, strerror(errno));
    return err;
}

static tt_err check_opts(const tt_prepare_opts *o, int *kind)
{
    const char *near = tt_nearest(o->tokens, kinds, TT_COUNT(kinds));

    for (*kind = 0; *kind < TT_COUNT(kinds) && strcmp(kinds[*kind], o->tokens);) ++*kind;
    if (*kind == TT_COUNT(kinds))
        return tt_fail(TT_EINVAL, "tokens are bytes, chars or gpt2, not '%s'%s%s%s", o->tokens,
                       near ? ": did you mean " : "", near ? near : "", near ? "?" : "");
    if (!(o->val >= 0 && o->val < 1))
        return tt_fail(TT_EINVAL, "the part to validate on is 0 or more and below 1, not %g",
                       o->val);
    if (o->shard_tokens < 1 || o->shard_tokens > INT32_MAX)
        return tt_fail(TT_EINVAL, "a shard has 1 to %d tokens, not %lld", INT32_MAX,
                       (long long)o->shard_tokens);
    if (o->tokenizer && *kind != GPT2)
        return tt_fail(TT_EINVAL, "a tokenizer is for tokens: gpt2, and these are %s", o->tokens);
    if (!*o->out) return tt_fail(TT_EINVAL, "the folder to write to has no name");
    return o->inputs ? check_out(o->out) : tt_fail(TT_EINVAL, "there is no text to prepare");
}

tt_err tt_data_prepare(const tt_prepare_opts *o, tt_prepared *out)
{
    maker m = {.o = o, .made = out, .lock = -1};
    tt_err err;

    *out = (tt_prepared){0};
    if ((err = check_opts(o, &m.kind))) return err;
    m.arena = tt_arena_open(4096);
    if ((err = need_vocabulary(&m))) goto out;
    if ((err = begin_part(&m))) goto out;
    if ((err = put_all(&m)) || (err = cut_stream(&m)) || (err = write_meta(&m)) ||
        (err = finish_part(&m))) {
        tt_str why = {0};
        tt_str_add(&why, "%s", tt_message());
        tt_dir_remove(m.part); /* whatever comes of that, the first trouble is told */
        tt_repeat(err, why.data);
        tt_str_free(&why);
    }
out:
    if (m.f) fclose(m.f);
    if (m.lock >= 0) close(m.lock);
    tt_bpe_close(m.bpe);
    free(m.number);
    tt_arena_close(m.arena);
    return err;
}
