/* Text and lines in tokens of GPT-2. */
#include "data/bpe.h"
#include "data/source.h"

#include <string.h>

/* Where encoded tokens go: there is room, as no token has less than a byte. */
typedef struct sink {
    uint16_t *token;
    int64_t count;
} sink;

static tt_err put(void *to, const int32_t *id, int count)
{
    sink *s = to;

    for (int i = 0; i < count; i++) s->token[s->count++] = (uint16_t)id[i];
    return TT_OK;
}

/* Each line by itself, without its end. Empty ones are none. */
static tt_err encode_lines(tt_source *s, tt_bpe *b, const tt_bytes *text, int64_t window, sink *to)
{
    const uint8_t *p = text->data, *end = p + text->size;
    int64_t *row, lines = 0, line = 0;
    tt_err err;

    for (size_t i = 0; i < text->size; i++) lines += p[i] == '\n' || p[i] == '\r';
    if ((err = tt_source_block(s, lines + 2, 1, sizeof *row, &row))) return err;
    for (lines = 0; p < end;) {
        const uint8_t *from = p;
        while (p < end && *p != '\n' && *p != '\r') p++;
        if (p > from && (err = tt_bpe_encode(b, from, (size_t)(p - from), put, to))) return err;
        if (to->count - row[lines] >= window)
            return tt_fail(TT_EDATA,
                           "%s: line %lld has %lld tokens: with its edge it takes more than the "
                           "model's %lld",
                           s->name, (long long)line + 1, (long long)(to->count - row[lines]),
                           (long long)window);
        if (p > from) row[++lines] = to->count;
        if (p < end) line += *p++ == '\n';
    }
    if (!lines) return tt_fail(TT_EDATA, "%s: no lines in it", s->name);
    s->row = row;
    s->window = window;
    s->count = s->kept = lines;
    return TT_OK;
}

static tt_err encode(tt_source *s, const tt_source_ctx *c, tt_bpe *b, bool lines,
                     const tt_bytes *text)
{
    sink to = {0};
    tt_err err;

    s->classes = tt_bpe_count(b);
    if (s->classes > UINT16_MAX + 1)
        return tt_fail(TT_EDATA,
                       "the tokenizer has %d tokens, at most %d are read from text: make "
                       "shards of it by 'tutti data prepare'",
                       s->classes, UINT16_MAX + 1);
    if (lines && (s->edge = tt_bpe_end(b)) < 0)
        return tt_fail(TT_EDATA, "the tokenizer has no <|endoftext|>, which a line ends with");
    if ((err = tt_tokens_begin(s, c, text->size, &to.token))) return err;
    if ((err = tt_tokens_check(s, c))) return err;
    err = lines ? encode_lines(s, b, text, c->want->ids, &to)
                : tt_bpe_encode(b, text->data, text->size, put, &to);
    if (err) return tt_context(err, "%s", s->name);
    s->tokens = to.count;
    return lines ? TT_OK : tt_tokens_windows(s, c->want->ids);
}

/* What each token stands for: how many bytes, and of what. <|endoftext|> is no text. */
static tt_err size_tokens(tt_source *s)
{
    int count = tt_bpe_count(s->bpe);
    tt_str text = {0};
    int32_t *size;
    tt_err err;

    if ((err = tt_source_block(s, count, 1, sizeof *size, &size))) return err;
    for (int32_t k = 0; k < count && !err; k++) {
        size_t was = text.size;
        err = tt_bpe_decode(s->bpe, &k, 1, &text);
        size[k] = tt_bpe_size(s->bpe, k);
        if (!err) tt_source_name_word(s, text.data + was, text.size - was);
    }
    tt_str_free(&text);
    s->token_size = size;
    s->token_sizes = count;
    return err;
}

tt_err tt_source_bpe(tt_source *s, const tt_source_ctx *c, const tt_node *at, const char *tokenizer)
{
    const char *path;
    tt_err err;

    if ((err = tt_source_expand(s->arena, at, tokenizer, &path))) return err;
    if (*path != '/' && *c->dir) path = tt_arena_printf(s->arena, "%s/%s", c->dir, path);
    err = tt_bpe_open(path, &s->bpe);
    return err ? err : size_tokens(s);
}

tt_err tt_text_bpe(tt_source *s, const tt_source_ctx *c, const tt_node *at, const char *tokenizer,
                   bool lines, const tt_bytes *text)
{
    tt_err err = tt_source_bpe(s, c, at, tokenizer);

    return err ? err : encode(s, c, s->bpe, lines, text);
}
