/* learned: what numbers mean where the training set decided on it, apart from the training set. A
 * checkpoint keeps it, so that a model can be used where nothing is left of what it was trained on.
 *
 *   {"shape": [1, 28, 28], "pixels": true,              of a sample; do bytes stand for 0 to 1?
 *    "classes": ["airplane", ...],                      where classes have names
 *    "columns": [...],                                  csv, see csv_learned.c
 *    "index_base": 1, "label_base": 0,                  libsvm
 *    "scaled": [0, 3],                                  csv: features that have a normalize, ...
 *    "mean": [38.6, ...], "deviation": [13.6, ...],     ... of these, else of each channel
 *    "tokens": {"names": ["\n", " ", "a"], "edge": 0, "first": 2}}
 *
 * Tokens are of a text: characters; lines have an edge. "bytes": 256 or 257 (with an edge) instead
 * of names is bytes, "tokenizer": 50257 are so many of GPT-2's: the folder that the job names says
 * what they are. "first" is the token that the text begins with; 0 if it is left out. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/bpe.h"
#include "data/csv.h"

enum { TEXT_MOST = 4 << 20 }; /* bytes */

void tt_source_tell(tt_source *s, const char *key, json_t *value)
{
    json_t *all = s->learned ? json_loads(s->learned, 0, NULL) : json_object();
    char *text = NULL;

    if (all && value && !json_object_set(all, key, value)) text = json_dumps(all, JSON_COMPACT);
    s->learned = text && strlen(text) <= TEXT_MOST ? tt_arena_strdup(s->arena, text) : "";
    free(text);
    json_decref(value);
    json_decref(all);
}

/* ---- Tokens ---- */

static json_t *names_of(const tt_source *s)
{
    json_t *names = json_array();
    bool whole = true;

    for (int i = 0; i < s->classes; i++)
        whole &= !json_array_append_new(names, json_string(s->class_name[i]));
    if (whole) return names;
    json_decref(names); /* some are no UTF-8 */
    return NULL;
}

/* What is not known, or too much for every checkpoint, the training set must say. */
static json_t *spelling_of(const tt_data *d)
{
    const tt_source *s = d->train;
    json_t *j, *kind;

    const bool gpt2 = s->token_size, bytes = !gpt2 && !s->class_name;
    const int count = gpt2 ? s->token_sizes : s->classes, first = tt_data_first(d);
    if ((s->nameless || count > TT_LEARNED_MOST) && !gpt2) return NULL;
    if (bytes && count != 256 && count != 257) return NULL;
    kind = bytes || gpt2 ? json_integer(count) : names_of(s);
    if (!kind) return NULL;
    j = json_object();
    json_object_set_new(j, bytes ? "bytes" : gpt2 ? "tokenizer" : "names", kind);
    if (s->row) json_object_set_new(j, "edge", json_integer(s->edge));
    if (first < count && first <= UINT16_MAX) json_object_set_new(j, "first", json_integer(first));
    return j;
}

static tt_err damaged(const char *key)
{
    return tt_fail(TT_EFORMAT, "what it says of its data is damaged: `%s`", key);
}

/* A number from `least` on and below the tokens there are. */
static tt_err take_token(const json_t *j, const char *key, int least, int count, int *out)
{
    const json_t *v = json_object_get(j, key);
    json_int_t n = v ? json_integer_value(v) : least;

    if ((v && !json_is_integer(v)) || n < least || n >= count || n > UINT16_MAX)
        return damaged(key);
    *out = (int)n;
    return TT_OK;
}

/* Below the `dir` of the job's `data`. */
static tt_err take_tokenizer(tt_node *data, tt_source *s)
{
    const tt_node *train = data ? tt_node_get(data, "train") : NULL;
    const tt_node *at = train ? tt_node_get(train, "tokenizer") : NULL;
    const tt_node *dir = data ? tt_node_get(data, "dir") : NULL;
    tt_source_ctx c = {0};
    tt_err err;

    if (!at || tt_node_is_null(at))
        return tt_fail(TT_EDATA, "it was trained on GPT-2's tokens, and the job names no tokenizer "
                                 "(--set data.train.tokenizer=DIR)");
    if ((err = tt_source_expand(s->arena, dir, dir ? dir->text : TT_DATA_DIR, &c.dir)) ||
        (err = tt_source_bpe(s, &c, at, at->text)))
        return err;
    s->classes = tt_bpe_count(s->bpe);
    return TT_OK;
}

/* Of tokens, or of classes. */
static tt_err recall_names(const json_t *list, const char *key, tt_source *s)
{
    const size_t count = json_array_size(list);
    const char **name, *text;

    if (!count || count > TT_LEARNED_MOST) return damaged(key);
    name = tt_arena_take(s->arena, count * sizeof *name, sizeof *name);
    for (size_t i = 0; i < count; i++) {
        if (!(text = json_string_value(json_array_get(list, i)))) return damaged(key);
        name[i] = tt_arena_strdup(s->arena, text);
    }
    s->class_name = name;
    s->classes = (int)count;
    return TT_OK;
}

static tt_err take_tokens(const json_t *j, tt_node *data, tt_source *s)
{
    const json_t *names = json_object_get(j, "names"), *bytes = json_object_get(j, "bytes");

    if (json_object_get(j, "tokenizer")) return take_tokenizer(data, s);
    if (names || !bytes) return recall_names(names, "names", s);
    s->classes = (int)json_integer_value(bytes);
    return s->classes == 256 || s->classes == 257 ? TT_OK : damaged("bytes");
}

static tt_err recall_tokens(const json_t *tokens, tt_node *data, tt_source *s)
{
    int first = 0, edge = -1;
    uint16_t *token;
    int64_t *row;
    tt_err err;

    s->name = "the text it was trained on";
    s->keep = TT_KEEP_TOKENS;
    if ((err = take_tokens(tokens, data, s)) ||
        (err = take_token(tokens, "first", 0, s->classes, &first)) ||
        (err = take_token(tokens, "edge", -1, s->classes, &edge)) ||
        (err = tt_source_block(s, 1, 1, sizeof *token, &token)) ||
        (err = tt_source_block(s, 2, 1, sizeof *row, &row)))
        return err;
    *token = (uint16_t)first;
    s->token = token;
    s->tokens = 1;
    if (edge >= 0) s->row = row, s->edge = edge;
    if (!s->bpe) tt_source_name_tokens(s);
    return TT_OK;
}

/* ---- Numbers ---- */

/* Of all channels, or of those that are marked. */
static json_t *numbers_of(const double *v, int64_t n, const bool *mark)
{
    json_t *list = json_array();

    for (int64_t i = 0; i < n; i++)
        if (!mark || mark[i]) json_array_append_new(list, json_real(v[i]));
    return list;
}

static json_t *marks_of(const bool *mark, int64_t n)
{
    json_t *list = json_array();

    for (int64_t i = 0; i < n; i++)
        if (mark[i]) json_array_append_new(list, json_integer(i));
    return list;
}

static tt_err recall_marks(const json_t *list, const tt_data_want *want, tt_source *s)
{
    const int64_t features = tt_shape_count(want->input);
    bool *mark;
    tt_err err;

    if (!list) return TT_OK;
    if ((err = tt_source_block(s, features, 1, sizeof *mark, &mark))) return err;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= features)
            return damaged("scaled");
        mark[json_integer_value(v)] = true;
    }
    s->standardise = mark;
    return TT_OK;
}

static tt_err recall_numbers(const tt_data *d, const char *key, double least, double *out)
{
    const json_t *list = json_object_get(d->learned, key), *v;
    const bool *mark = d->train->standardise;
    size_t at = 0;

    for (int64_t i = 0; i < d->channels; i++) {
        out[i] = 1;
        if (mark && !mark[i]) continue;
        v = json_array_get(list, at++);
        out[i] = json_number_value(v);
        if (!json_is_number(v) || !isfinite(out[i]) || out[i] < least) return damaged(key);
    }
    return at == json_array_size(list) ? TT_OK : damaged(key);
}

tt_err tt_data_recall_stats(const tt_data *d, double *mean, double *deviation)
{
    tt_err err = recall_numbers(d, "mean", -DBL_MAX, mean);
    return err ? err : recall_numbers(d, "deviation", DBL_MIN, deviation);
}

/* ---- All of it ---- */

static json_t *shape_of(const tt_shape *s)
{
    json_t *list = json_array();

    for (int i = 0; i < s->rank; i++) json_array_append_new(list, json_integer(s->dim[i]));
    return list;
}

json_t *tt_data_learned(const tt_data *d)
{
    const tt_source *s = d->train;
    const bool *mark = s ? s->standardise : NULL;
    json_t *j, *names = NULL;

    if (!s || (d->mean && d->channels > TT_LEARNED_MOST)) return NULL;
    j = s->learned ? json_loads(s->learned, 0, NULL) : json_object();
    if (!j) return NULL; /* it cannot be said */
    if (s->keep == TT_KEEP_TOKENS) {
        json_t *tokens = spelling_of(d);
        if (tokens) json_object_set_new(j, "tokens", tokens);
    } else {
        json_object_set_new(j, "shape", shape_of(&s->shape));
        json_object_set_new(j, "pixels", json_boolean(s->pixels));
        if (s->class_name && s->classes <= TT_LEARNED_MOST) names = names_of(s);
        if (names) json_object_set_new(j, "classes", names);
    }
    if (d->mean && mark) json_object_set_new(j, "scaled", marks_of(mark, d->channels));
    if (d->mean) {
        json_object_set_new(j, "mean", numbers_of(d->mean, d->channels, mark));
        json_object_set_new(j, "deviation", numbers_of(d->deviation, d->channels, mark));
    }
    if (json_object_size(j)) return j;
    json_decref(j);
    return NULL;
}

static tt_err recall_base(const json_t *learned, const char *key, int least, int *out)
{
    const json_t *v = json_object_get(learned, key);
    json_int_t n = json_integer_value(v);

    if ((v && !json_is_integer(v)) || n < least || n > 1) return damaged(key);
    *out = (int)n;
    return TT_OK;
}

static tt_err recall_shape(const json_t *list, tt_shape *out)
{
    const size_t rank = json_array_size(list);

    if (!list) return TT_OK;
    if (!rank || rank > TT_COUNT(out->dim)) return damaged("shape");
    out->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        out->dim[i] = json_integer_value(json_array_get(list, i));
        if (out->dim[i] < 0 || out->dim[i] > INT32_MAX) return damaged("shape");
    }
    return TT_OK;
}

tt_err tt_data_recall(tt_data *d, tt_node *data)
{
    const json_t *l = d->learned, *columns = json_object_get(l, "columns"),
                 *tokens = json_object_get(l, "tokens"), *names = json_object_get(l, "classes");
    tt_source *s = d->train = tt_source_new();
    tt_err err;

    s->name = "what it was trained on";
    if (!json_is_object(l)) return tt_fail(TT_EFORMAT, "what it says of its data is damaged");
    s->pixels = json_is_true(json_object_get(l, "pixels"));
    if ((columns && (err = tt_csv_recall(columns, data ? tt_node_get(data, "train") : NULL, s))) ||
        (tokens && (err = recall_tokens(tokens, data, s))) ||
        (names && (err = recall_names(names, "classes", s))) ||
        (err = recall_shape(json_object_get(l, "shape"), &s->shape)) ||
        (err = recall_marks(json_object_get(l, "scaled"), &d->want, s)) ||
        (err = recall_base(l, "index_base", 0, &s->index_base)))
        return err;
    return recall_base(l, "label_base", TT_LABEL_SIGN, &s->label_base);
}

tt_err tt_data_open_text(const json_t *learned, tt_node *data, tt_data **out)
{
    tt_data *d = tt_data_new(&(tt_data_want){0}, 0);
    tt_err err;

    *out = NULL;
    d->learned = learned;
    if (!(err = tt_data_recall(d, data)) && d->train->keep != TT_KEEP_TOKENS)
        err = tt_fail(TT_EFORMAT, "it says nothing of tokens");
    d->learned = NULL;
    if (err)
        tt_data_close(d);
    else
        *out = d;
    return err;
}
