/* What the columns of a training file taught, for a second file that comes without it:
 *
 *   [{"type": "category", "name": "city", "words": ["Bern", "Rome"]},
 *    {"type": "id", "index": 3, "hash": 1000}, {"type": "numeric", "name": "age", "scaled": true},
 *    {"type": "label", "words": ["no", "yes"]}]
 *
 * in their order. A label without words is a number. What the model is given has the name or index
 * by which the job lists it, if it does. */
#include "data/csv.h"

static const char *const type_name[] = {"numeric", "category", "id", "label", "target", "skip"};

static json_t *words_of(const tt_vocab *v)
{
    json_t *words = json_array();

    for (int i = 0; i < tt_vocab_count(v); i++)
        if (json_array_append_new(words, json_string(tt_vocab_words(v)[i]))) {
            json_decref(words); /* it is no UTF-8 */
            return NULL;
        }
    return words;
}

static bool has_words(const column *c)
{
    return c->vocab && (c->type == CATEGORY || c->type == ID || (c->type == LABEL && !c->integers));
}

/* False: its words cannot be said. */
static bool tell_column(const column *c, json_t *j)
{
    json_t *words;

    json_object_set_new(j, "type", json_string(type_name[c->type]));
    if (c->node && c->type <= ID)
        json_object_set_new(j, c->by_name ? "name" : "index",
                            c->by_name ? json_string(c->name) : json_integer(c->index));
    if (c->normalize) json_object_set_new(j, "scaled", json_true());
    if (c->hash) json_object_set_new(j, "hash", json_integer(c->hash));
    if (!has_words(c)) return true;
    words = words_of(c->vocab);
    return words && !json_object_set_new(j, "words", words);
}

json_t *tt_csv_tell(const tt_schema *m)
{
    json_t *columns = json_array();
    int64_t count = m->count;

    for (int i = 0; i < m->count; i++)
        count += has_words(&m->col[i]) ? tt_vocab_count(m->col[i].vocab) : 0;
    for (int i = 0; i < m->count && count <= TT_LEARNED_MOST; i++) {
        json_t *j = json_object();
        if (!tell_column(&m->col[i], j)) count = TT_LEARNED_MOST + 1;
        json_array_append_new(columns, j);
    }
    if (count <= TT_LEARNED_MOST) return columns;
    json_decref(columns);
    return NULL;
}

static tt_err damaged(size_t i)
{
    return tt_fail(TT_EFORMAT, "what it says of its columns is damaged: column %zu", i);
}

static tt_err recall_column(tt_source *s, const json_t *j, size_t at, column *c)
{
    const char *type = json_string_value(json_object_get(j, "type")),
               *name = json_string_value(json_object_get(j, "name"));
    const json_t *words = json_object_get(j, "words");

    while (type && c->type < (int)TT_COUNT(type_name) && strcmp(type, type_name[c->type]))
        c->type++;
    c->name = name ? tt_arena_strdup(s->arena, name) : NULL;
    c->by_name = name;
    c->index = json_integer_value(json_object_get(j, "index"));
    c->normalize = json_is_true(json_object_get(j, "scaled"));
    c->hash = json_integer_value(json_object_get(j, "hash"));
    c->integers = c->type == LABEL && !words;
    if (!type || c->type == (int)TT_COUNT(type_name) || c->hash < 0 ||
        (words && !json_is_array(words)) ||
        ((c->type == CATEGORY || c->type == ID) && !words == !c->hash))
        return damaged(at);
    if (words) c->vocab = tt_vocab_new(s->arena);
    for (size_t i = 0; i < json_array_size(words); i++) {
        const char *word = json_string_value(json_array_get(words, i));
        if (!word || tt_vocab_add(c->vocab, word, strlen(word)) != (int)i) return damaged(at);
    }
    return TT_OK;
}

/* The next that the model is given, from *at on; NULL: there is none. */
static const column *next_given(const tt_schema *m, int *at)
{
    while (*at < m->count && m->col[*at].type > ID) ++*at;
    return *at < m->count ? &m->col[(*at)++] : NULL;
}

static bool same_column(const column *a, const column *b)
{
    return a->type == b->type && a->normalize == b->normalize && a->hash == b->hash &&
           a->by_name == b->by_name &&
           (a->by_name ? !strcmp(a->name, b->name) : a->index == b->index);
}

/* Words are taken by position: does the job still list the same columns in the same order? */
static tt_err compare_columns(tt_source *s, tt_node *map, const tt_schema *was)
{
    tt_schema now = {0};
    csv_keys k;
    tt_err err;

    if ((err = tt_csv_keys(map, "train", &k)) || !k.columns || (err = tt_csv_look(s, &k, &now)))
        return err;
    for (int i = 0, j = 0;;) {
        const column *a = next_given(&now, &i), *b = next_given(was, &j);
        if (!a && !b) return TT_OK;
        if (!a || !b || !same_column(a, b))
            return tt_node_fail(a ? a->node : k.columns,
                                "the model was trained with other columns than the job has now");
    }
}

tt_err tt_csv_recall(const json_t *columns, tt_node *map, tt_source *s)
{
    tt_schema *m = tt_arena_take(s->arena, sizeof *m, sizeof(void *));
    size_t count = json_array_size(columns);
    tt_err err;

    if (!count || count > TT_LEARNED_MOST)
        return tt_fail(TT_EFORMAT, "what it says of its columns is damaged");
    m->col = tt_arena_take(s->arena, count * sizeof *m->col, sizeof(void *));
    m->count = (int)count;
    for (size_t i = 0; i < count; i++)
        if ((err = recall_column(s, json_array_get(columns, i), i, &m->col[i]))) return err;
    if (map && tt_source_is_text(map) && (err = compare_columns(s, map, m))) return err;
    tt_csv_name_words(s, m);
    s->schema = m;
    return TT_OK;
}
