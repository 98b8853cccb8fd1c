/* spelling: what the tokens of a text stand for, apart from the text. A checkpoint keeps it, so
 * that a model can go on with a text where nothing is left of what it was trained on.
 *
 *   {"names": ["\n", " ", "a"], "edge": 0, "first": 2}   characters; lines have an edge
 *   {"bytes": 256, "first": 70}                          bytes: 256, or 257 with an edge
 *   {"tokenizer": 50257, "first": 464}                   GPT-2's, so many: the folder that the job
 *                                                        names says what they are
 *
 * "first" is the token that the text begins with; 0 if it is left out. */
#include "data/bpe.h"
#include "data/source.h"

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
json_t *tt_data_spelling(const tt_data *d)
{
    const tt_source *s = d->train;
    json_t *j, *kind;

    if (!s || s->keep != TT_KEEP_TOKENS) return NULL;
    const bool gpt2 = s->token_size, bytes = !gpt2 && !s->class_name;
    const int count = gpt2 ? s->token_sizes : s->classes, first = tt_data_first(d);
    if ((s->nameless || count > UINT16_MAX) && !gpt2) return NULL;
    if (bytes && count != 256 && count != 257) return NULL;
    kind = bytes || gpt2 ? json_integer(count) : names_of(s);
    if (!kind) return NULL;
    j = json_object();
    json_object_set_new(j, bytes ? "bytes" : gpt2 ? "tokenizer" : "names", kind);
    if (s->row) json_object_set_new(j, "edge", json_integer(s->edge));
    if (first < count && first <= UINT16_MAX) json_object_set_new(j, "first", json_integer(first));
    return j;
}

/* A number from `least` on and below the tokens there are. */
static tt_err take_token(const json_t *j, const char *key, int least, int count, int *out)
{
    const json_t *v = json_object_get(j, key);
    json_int_t n = v ? json_integer_value(v) : least;

    if ((v && !json_is_integer(v)) || n < least || n >= count || n > UINT16_MAX)
        return tt_fail(TT_EFORMAT, "what it says of its tokens is damaged: `%s`", key);
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

static tt_err take_tokens(const json_t *j, tt_node *data, tt_source *s)
{
    const json_t *names = json_object_get(j, "names"), *bytes = json_object_get(j, "bytes");
    const size_t count = json_array_size(names);
    const char **name;

    if (json_object_get(j, "tokenizer")) return take_tokenizer(data, s);
    if (!names && (json_integer_value(bytes) == 256 || json_integer_value(bytes) == 257)) {
        s->classes = (int)json_integer_value(bytes);
        return TT_OK;
    }
    if (!count || count > UINT16_MAX)
        return tt_fail(TT_EFORMAT, "what it says of its tokens is damaged: `names`");
    name = tt_arena_take(s->arena, count * sizeof *name, sizeof *name);
    for (size_t i = 0; i < count; i++) {
        const char *text = json_string_value(json_array_get(names, i));
        if (!text) return tt_fail(TT_EFORMAT, "what it says of its tokens is damaged: name %zu", i);
        name[i] = tt_arena_strdup(s->arena, text);
    }
    s->class_name = name;
    s->classes = (int)count;
    return TT_OK;
}

tt_err tt_data_open_spelling(const json_t *spelling, tt_node *data, tt_data **out)
{
    tt_data *d = tt_data_new(&(tt_data_want){0}, 0);
    tt_source *s = d->train = tt_source_new();
    int first = 0, edge = -1;
    uint16_t *token;
    int64_t *row;
    tt_err err;

    *out = NULL;
    s->name = "the text it was trained on";
    s->keep = TT_KEEP_TOKENS;
    if ((err = take_tokens(spelling, data, s)) ||
        (err = take_token(spelling, "first", 0, s->classes, &first)) ||
        (err = take_token(spelling, "edge", -1, s->classes, &edge)) ||
        (err = tt_source_block(s, 1, 1, sizeof *token, &token)) ||
        (err = tt_source_block(s, 2, 1, sizeof *row, &row))) {
        tt_data_close(d);
        return err;
    }
    *token = (uint16_t)first;
    s->token = token;
    s->tokens = 1;
    if (edge >= 0) s->row = row, s->edge = edge;
    if (!s->bpe) tt_source_name_tokens(s);
    *out = d;
    return TT_OK;
}
