/* text: sequences of tokens, of which a model learns what comes next.
 *
 *   text    one long text, in windows as long as the model's context. Sample i begins at token
 *           i * context; its labels are the tokens one further on. While training, each pass moves
 *           all windows by the same random number of tokens, so that it cuts the text elsewhere.
 *   lines   each line is a sample: it begins with an edge, its labels end with one, and what is
 *           left of the context has none.
 *
 * A token is a byte, or a character of UTF-8: then token k is the k-th character there is in the
 * training text, in the order of their numbers; or one of GPT-2's (text_bpe.c). */
#include "data/bpe.h"
#include "data/source.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES, CHARS, GPT2, POINTS = TT_CHARS };

typedef struct text_keys {
    int format;
    const char *file, *tokenizer;
    int tokens;
} text_keys;

static const tt_key keys[] = {
    TT_FORMAT_KEY(text_keys),
    {"file", TT_STRING, offsetof(text_keys, file), NULL, 0, 0, NULL, "the text, UTF-8"},
    {"tokens", TT_CHOICE, offsetof(text_keys, tokens), "chars", 0, 0, "bytes|chars|gpt2",
     "what a token is"},
    {"tokenizer", TT_STRING, offsetof(text_keys, tokenizer), "-", 0, 0, NULL,
     "tokens: gpt2: the folder of vocab.bpe and encoder.json, or of gpt2.json"},
};

/* ---- characters ---- */

int32_t tt_char_next(const uint8_t *text, size_t size, size_t *at)
{
    uint8_t lead = text[*at];
    int more = lead < 0x80 ? 0 : lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    static const int32_t least[] = {0, 0x80, 0x800, 0x10000};
    int32_t c = more ? lead & (0x3f >> more) : lead;

    if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || size - *at <= (size_t)more) return -1;
    for (int i = 1; i <= more; i++) {
        if ((text[*at + i] & 0xc0) != 0x80) return -1;
        c = c << 6 | (text[*at + i] & 0x3f);
    }
    if (c < least[more] || c >= POINTS || (c >= 0xd800 && c < 0xe000)) return -1;
    *at += (size_t)more + 1;
    return c;
}

const char *tt_char_name(tt_arena *a, int32_t c)
{
    char text[5] = {0};

    if (c < 0x80) {
        text[0] = (char)c;
    } else if (c < 0x800) {
        text[0] = (char)(0xc0 | c >> 6);
        text[1] = (char)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        text[0] = (char)(0xe0 | c >> 12);
        text[1] = (char)(0x80 | (c >> 6 & 0x3f));
        text[2] = (char)(0x80 | (c & 0x3f));
    } else {
        text[0] = (char)(0xf0 | c >> 18);
        text[1] = (char)(0x80 | (c >> 12 & 0x3f));
        text[2] = (char)(0x80 | (c >> 6 & 0x3f));
        text[3] = (char)(0x80 | (c & 0x3f));
    }
    return tt_arena_strdup(a, text);
}

static tt_err bad_char(const tt_source *s, const uint8_t *text, size_t at)
{
    int line = 1;

    for (size_t i = 0; i < at; i++) line += text[i] == '\n';
    if (!text[at])
        return tt_fail(TT_EDATA,
                       "%s: line %d (byte %zu) has a NUL, which is no character of a text: say "
                       "tokens: bytes",
                       s->name, line, at);
    return tt_fail(TT_EDATA, "%s: line %d (byte %zu) is not UTF-8: say tokens: bytes", s->name,
                   line, at);
}

/* What number each character has; -1: none. `lines`: their ends are no characters. */
static tt_err number_chars(tt_source *s, const uint8_t *text, size_t size, bool lines,
                           int32_t *number)
{
    const char **names;
    int count = 0;

    for (int32_t c = 0; c < POINTS; c++) number[c] = -1;
    for (size_t at = 0; at < size;) {
        size_t was = at;
        int32_t c = tt_char_next(text, size, &at);
        if (c <= 0) return bad_char(s, text, was);
        if (!lines || (c != '\n' && c != '\r')) number[c] = 0;
    }
    for (int32_t c = 0; c < POINTS; c++)
        if (!number[c]) number[c] = count++;
    names = tt_arena_take(s->arena, (size_t)(count + 2) * sizeof *names, 8);
    for (int32_t c = 0; c < POINTS; c++)
        if (number[c] >= 0) names[number[c]] = tt_char_name(s->arena, c);
    if (lines) names[count++] = "\n"; /* the edge */
    s->class_name = names;
    s->classes = count;
    return TT_OK;
}

/* As the training set has numbered them. */
static void borrow_chars(tt_source *s, const tt_source *train, int32_t *number)
{
    for (int32_t c = 0; c < POINTS; c++) number[c] = -1;
    for (int i = 0; i < train->classes; i++) {
        size_t at = 0;
        const char *name = train->class_name[i];
        int32_t c = tt_char_next((const uint8_t *)name, strlen(name), &at);
        if (c >= 0) number[c] = i;
    }
    s->class_name = train->class_name;
    s->classes = train->classes;
}

/* ---- tokens ---- */

static tt_err unknown_char(const tt_source *s, const uint8_t *text, size_t at, size_t end)
{
    int line = 1;

    for (size_t i = 0; i < at; i++) line += text[i] == '\n';
    return tt_fail(TT_EDATA, "%s: line %d has '%.*s', which is nowhere in the training text",
                   s->name, line, (int)(end - at), (const char *)text + at);
}

static tt_err chars_to_tokens(tt_source *s, const tt_source_ctx *c, const uint8_t *text,
                              size_t size, bool lines, uint16_t *out)
{
    int32_t *number = malloc(POINTS * sizeof *number);
    tt_err err = TT_OK;
    int64_t n = 0;

    if (!number) tt_mem_out(POINTS * sizeof *number);
    if (c->train && c->train->class_name)
        borrow_chars(s, c->train, number);
    else
        err = number_chars(s, text, size, lines, number);
    if (!err && s->classes > UINT16_MAX)
        err = tt_fail(TT_EDATA, "%s has %d different characters; at most %d are told apart",
                      s->name, s->classes, UINT16_MAX);
    for (size_t at = 0; at < size && !err;) {
        size_t was = at;
        int32_t ch = tt_char_next(text, size, &at);
        if (ch <= 0)
            err = bad_char(s, text, was);
        else if (lines && (ch == '\n' || ch == '\r'))
            continue;
        else if (number[ch] < 0)
            err = unknown_char(s, text, was, at);
        else
            out[n++] = (uint16_t)number[ch];
    }
    s->tokens = n;
    free(number);
    return err;
}

static void bytes_to_tokens(tt_source *s, const uint8_t *text, size_t size, bool lines,
                            uint16_t *out)
{
    int64_t n = 0;

    for (size_t i = 0; i < size; i++)
        if (!lines || (text[i] != '\n' && text[i] != '\r')) out[n++] = text[i];
    s->tokens = n;
    s->classes = lines ? 257 : 256;
}

void tt_source_name_tokens(tt_source *s)
{
    static const char *const bytes[] = {"bytes"};

    if (s->class_name)
        tt_source_name_words(s, s->class_name, s->classes);
    else
        tt_source_name_words(s, bytes, 1);
}

/* ---- windows and lines ---- */

tt_err tt_tokens_check(const tt_source *s, const tt_source_ctx *c)
{
    const tt_data_want *w = c->want;

    for (int64_t i = 0; i < w->ids; i++)
        if (w->id_rows && w->id_rows[i] && w->id_rows[i] < s->classes)
            return tt_fail(TT_EDATA, "%s has %d tokens, but the model's embedding %lld rows",
                           s->name, s->classes, (long long)w->id_rows[i]);
    if (w->classes > 0 && w->classes < s->classes)
        return tt_fail(TT_EDATA, "%s has %d tokens, but the model tells %d apart", s->name,
                       s->classes, w->classes);
    if (w->classes > 0 && w->labels != w->ids)
        return tt_fail(TT_EINVAL,
                       "of %lld tokens each has the next one for its label, but the loss "
                       "wants %lld",
                       (long long)w->ids, (long long)w->labels);
    return TT_OK;
}

tt_err tt_tokens_windows(tt_source *s, int64_t window)
{
    s->window = window;
    s->count = s->kept = (s->tokens - 1) / window;
    if (s->count < 1)
        return tt_fail(TT_EDATA, "%s has %lld tokens: a window takes %lld and the one behind it",
                       s->name, (long long)s->tokens, (long long)window);
    return TT_OK;
}

/* Where each line begins, among the tokens. Empty ones are none. */
static tt_err cut_lines(tt_source *s, const uint8_t *text, size_t size, int kind, int64_t window)
{
    int64_t *row, lines = 0, line = 1, n = 0, from = 0;
    tt_err err;

    for (size_t i = 0; i < size; i++) lines += text[i] == '\n' || text[i] == '\r';
    if ((err = tt_source_block(s, lines + 2, 1, sizeof *row, &row))) return err;
    lines = 0;
    for (size_t at = 0; at <= size; at++) {
        bool end = at == size || text[at] == '\n' || text[at] == '\r';
        if (end && n > from) {
            row[++lines] = n;
            from = n;
        }
        /* Of a character all bytes but the first begin with 10. */
        if (!end && (kind == BYTES || (text[at] & 0xc0) != 0x80)) n++;
        if (n - from >= window)
            return tt_fail(
                TT_EDATA,
                "%s: line %lld has %lld tokens or more: with its edge it takes more than "
                "the model's %lld",
                s->name, (long long)line, (long long)(n - from), (long long)window);
        line += at < size && text[at] == '\n';
    }
    if (!lines) return tt_fail(TT_EDATA, "%s: no lines in it", s->name);
    s->row = row;
    s->window = window;
    s->edge = s->classes - 1;
    s->count = s->kept = lines;
    return TT_OK;
}

tt_err tt_tokens_begin(tt_source *s, const tt_source_ctx *c, size_t bytes, uint16_t **out)
{
    tt_err err;

    if (!c->want->ids)
        return tt_fail(TT_EINVAL, "%s is text, but the model takes no tokens: say input: {ids: N}",
                       s->name);
    s->keep = TT_KEEP_TOKENS;
    s->shape = (tt_shape){1, {0}};
    s->text_bytes = (int64_t)bytes;
    if (!out) return TT_OK;
    if ((err = tt_source_block(s, s->text_bytes, 1, sizeof **out, out))) return err;
    s->token = *out;
    return TT_OK;
}

tt_err tt_text_decode(tt_source *s, const tt_source_ctx *c, int kind, bool lines,
                      const uint8_t *text, size_t size)
{
    uint16_t *tokens;
    tt_err err;

    if ((err = tt_tokens_begin(s, c, size, &tokens))) return err;
    if (kind == BYTES)
        bytes_to_tokens(s, text, size, lines, tokens);
    else if ((err = chars_to_tokens(s, c, text, size, lines, tokens)))
        return err;
    tt_source_name_tokens(s);
    if ((err = tt_tokens_check(s, c))) return err;
    return lines ? cut_lines(s, text, size, kind, c->want->ids)
                 : tt_tokens_windows(s, c->want->ids);
}

static tt_err check_tokenizer(const tt_node *map, const text_keys *k)
{
    if (k->tokens == GPT2 && !k->tokenizer)
        return tt_node_fail(tt_node_get(map, "tokens"),
                            "tokens: gpt2 needs `tokenizer:`, the folder that has vocab.bpe and "
                            "encoder.json");
    if (k->tokens != GPT2 && k->tokenizer)
        return tt_node_fail(tt_node_get(map, "tokenizer"), "a tokenizer is for tokens: gpt2");
    return TT_OK;
}

static tt_err open_text(tt_node *map, const char *what, const tt_source_ctx *c, bool lines,
                        tt_source *s)
{
    text_keys k = {0};
    tt_bytes file;
    tt_err err;

    if ((err = tt_node_read(map, what, keys, TT_COUNT(keys), &k))) return err;
    if ((err = check_tokenizer(map, &k)) || c->look) return err;
    if ((err = tt_source_read(s, c, tt_node_get(map, "file"), k.file, NULL, &file, &s->name)))
        return err;
    if (k.tokens == GPT2)
        err = tt_text_bpe(s, c, tt_node_get(map, "tokenizer"), k.tokenizer, lines, &file);
    else
        err = tt_text_decode(s, c, k.tokens, lines, file.data, file.size);
    tt_file_release(&file);
    return err;
}

tt_err tt_source_text(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    return open_text(map, what, c, false, s);
}

tt_err tt_source_lines(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    return open_text(map, what, c, true, s);
}

/* ---- other texts ---- */

static const tt_source *text_of(const tt_data *d)
{
    const tt_source *s = d->train ? d->train : d->val;
    return s->keep == TT_KEEP_TOKENS ? s : NULL;
}

/* Is it known what its tokens stand for? Without names or a tokenizer they are bytes. */
static bool is_spelled(const tt_source *s)
{
    return s->bpe || s->class_name || (!s->nameless && s->classes <= 257);
}

/* The token of a character, -1 if there is none. */
static int find_char(const tt_source *s, const char *c, size_t n)
{
    for (int k = 0; k < s->classes; k++)
        if (strlen(s->class_name[k]) == n && !memcmp(s->class_name[k], c, n)) return k;
    return -1;
}

typedef struct id_sink {
    int32_t *out;
    int64_t count;
} id_sink;

static tt_err put_ids(void *to, const int32_t *id, int count)
{
    id_sink *s = to;

    memcpy(s->out + s->count, id, (size_t)count * sizeof *id);
    s->count += count;
    return TT_OK;
}

tt_err tt_data_encode(const tt_data *d, const char *text, size_t size, int32_t *out, int64_t *count)
{
    const tt_source *s = text_of(d);
    const uint8_t *from = (const uint8_t *)text;
    id_sink to = {out, 0};
    tt_err err;

    *count = 0;
    if (!s) return tt_fail(TT_EDATA, "the training set is no text");
    if (size && !is_spelled(s))
        return tt_fail(TT_EDATA,
                       "what the numbers in %s stand for is not known: name a `tokenizer:` beside "
                       "`files:` (--set data.train.tokenizer=DIR)",
                       s->name);
    if (s->bpe) {
        err = tt_bpe_encode(s->bpe, text, size, put_ids, &to);
        *count = to.count;
        return err;
    }
    for (size_t at = 0; at < size;) {
        size_t was = at;
        int32_t c = s->class_name ? tt_char_next(from, size, &at) : from[at++];
        if (c < 0) return tt_fail(TT_EDATA, "byte %zu is not UTF-8", was);
        if (s->class_name) c = find_char(s, text + was, at - was);
        if (c < 0 || c >= s->classes)
            return tt_fail(TT_EDATA, "'%.*s' is nowhere in the training text", (int)(at - was),
                           text + was);
        out[(*count)++] = c;
    }
    return TT_OK;
}

void tt_data_decode(const tt_data *d, int32_t token, tt_str *out)
{
    const tt_source *s = text_of(d);
    char byte = (char)token;

    if (!s || token < 0) return;
    if (s->bpe && token < tt_bpe_count(s->bpe))
        tt_bpe_decode(s->bpe, &token, 1, out);
    else if (token >= s->classes)
        return;
    else if (s->class_name)
        tt_str_put(out, s->class_name[token], strlen(s->class_name[token]));
    else if (!is_spelled(s))
        tt_str_add(out, "%d ", token);
    else if (token < 256)
        tt_str_put(out, &byte, 1);
}

int tt_data_edge(const tt_data *d)
{
    const tt_source *s = text_of(d);
    return s && s->row ? s->edge : -1;
}

int tt_data_token_count(const tt_data *d)
{
    const tt_source *s = text_of(d);
    return !s ? 0 : s->bpe ? tt_bpe_count(s->bpe) : s->classes;
}

int tt_data_first(const tt_data *d)
{
    const tt_source *s = text_of(d);
    int32_t first = 0;

    if (s) tt_tokens_get(s, 0, 1, &first);
    return first;
}

/* ---- batches ---- */

/* How far this pass has moved the windows. Where a window would leave its part, it ends there. */
static int64_t window_start(const tt_data *d, const tt_part *p, int64_t sample, tt_place at,
                            bool moved)
{
    int64_t w = p->src->window, start = sample * w, last = (p->first + p->count - 1) * w;

    if (last > (p->src->kept - 1) * w) last = (p->src->kept - 1) * w;
    if (moved)
        start += (int64_t)(tt_philox(d->augment_key, (uint64_t)at.pass, 0).v[0] % (uint64_t)w);
    return start < last ? start : last;
}

void tt_tokens_get(const tt_source *s, int64_t at, int64_t n, int32_t *out)
{
    if (!s->shard) {
        for (int64_t i = 0; i < n; i++) out[i] = s->token[at + i];
        return;
    }
    for (int k = 0; n; k++) {
        const tt_shard *h = &s->shard[k];
        int64_t from = at - h->first, here = h->count - from < n ? h->count - from : n;
        if (here <= 0) continue;
        if (h->wide)
            for (int64_t i = 0; i < here; i++)
                out[i] = (int32_t)((const uint32_t *)h->data)[from + i];
        else
            for (int64_t i = 0; i < here; i++) out[i] = ((const uint16_t *)h->data)[from + i];
        at += here, n -= here, out += here;
    }
}

void tt_fill_tokens(const tt_data *d, const tt_part *p, int64_t sample, tt_place at, bool moved,
                    int32_t *ids, int32_t *label)
{
    const tt_source *s = p->src;
    int64_t w = s->window;

    if (!s->row) {
        int64_t from = window_start(d, p, sample, at, moved);
        tt_tokens_get(s, from, w, ids);
        if (label) tt_tokens_get(s, from + 1, w, label);
        return;
    }
    const uint16_t *from = s->token + s->row[sample];
    int64_t n = s->row[sample + 1] - s->row[sample];
    for (int64_t i = 0; i < w; i++) ids[i] = i && i <= n ? from[i - 1] : s->edge;
    for (int64_t i = 0; i < w && label; i++) label[i] = i < n ? from[i] : i == n ? s->edge : -1;
}

/* ---- bytes ---- */

/* Bytes that a token stands for, -1: none. The end of a line has one. */
static int token_size(const tt_source *s, int32_t k)
{
    if (s->row && k == s->edge) return 1;
    if (s->token_size) return k < s->token_sizes ? s->token_size[k] : -1;
    if (s->class_name) return k < s->classes ? (int)strlen(s->class_name[k]) : -1;
    return k < 256 ? 1 : -1;
}

static double mean_size(const tt_data *d, const tt_part *p)
{
    const tt_source *s = p->src;
    int64_t bytes = 0, tokens = 0;

    if (!s || s->keep != TT_KEEP_TOKENS || s->tokens < 1) return 0;
    if (!s->token_size && !is_spelled(s)) return (double)s->text_bytes / (double)s->tokens;
    int32_t *id = malloc((size_t)s->window * 2 * sizeof *id), *label = id + s->window;
    if (!id) tt_mem_out((size_t)s->window * 2 * sizeof *id);
    for (int64_t i = 0; i < p->count; i++) {
        tt_fill_tokens(d, p, tt_part_row(p, i), (tt_place){0}, false, id, label);
        for (int64_t k = 0; k < s->window; k++) {
            int size = label[k] < 0 ? -1 : token_size(s, label[k]);
            if (size < 0) continue;
            bytes += size;
            tokens++;
        }
    }
    free(id);
    return tokens ? (double)bytes / (double)tokens : 0;
}

double tt_data_token_bytes(const tt_data *d, tt_split split)
{
    tt_data *me = (tt_data *)d; /* a cache, behind its lock */
    double bytes;

    pthread_mutex_lock(&me->sha_lock);
    if (!(me->token_bytes[split] > 0)) me->token_bytes[split] = mean_size(d, &d->part[split]);
    bytes = me->token_bytes[split];
    pthread_mutex_unlock(&me->sha_lock);
    return bytes;
}
