/* What the columns of a training file taught, for a second file that comes without it:
 *
 *   [{"type": "category", "words": ["no", "yes"]}, {"type": "id", "hash": 1000},
 *    {"type": "numeric"}, {"type": "label", "words": ["a", "b"]}]
 *
 * in the order of the job's columns. A label without words is a number. */
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

json_t *tt_csv_tell(const tt_schema *m)
{
    json_t *columns = json_array();
    int64_t words = 0;

    for (int i = 0; i < m->count; i++)
        words += has_words(&m->col[i]) ? tt_vocab_count(m->col[i].vocab) : 0;
    for (int i = 0; i < m->count; i++) {
        const column *c = &m->col[i];
        json_t *j = json_object(), *list = NULL;
        json_object_set_new(j, "type", json_string(type_name[c->type]));
        if (c->hash) json_object_set_new(j, "hash", json_integer(c->hash));
        if (has_words(c) && (words > TT_LEARNED_MOST || !(list = words_of(c->vocab)))) {
            json_decref(j);
            json_decref(columns);
            return NULL;
        }
        if (list) json_object_set_new(j, "words", list);
        json_array_append_new(columns, j);
    }
    return columns;
}

static tt_err damaged(size_t i)
{
    return tt_fail(TT_EFORMAT, "what it says of its columns is damaged: column %zu", i);
}

static tt_err recall_column(tt_source *s, const json_t *j, size_t at, column *c)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    const json_t *words = json_object_get(j, "words");

    c->type = 0;
    while (type && c->type < (int)TT_COUNT(type_name) && strcmp(type, type_name[c->type]))
        c->type++;
    c->hash = json_integer_value(json_object_get(j, "hash"));
    c->integers = c->type == LABEL && !words;
    if (!type || c->type == TT_COUNT(type_name) || c->hash < 0) return damaged(at);
    if ((c->type == CATEGORY || c->type == ID) && !words == !c->hash) return damaged(at);
    if (words || c->type == LABEL) c->vocab = tt_vocab_new(s->arena);
    for (size_t i = 0; i < json_array_size(words); i++) {
        const char *word = json_string_value(json_array_get(words, i));
        if (!word || tt_vocab_add(c->vocab, word, strlen(word)) != (int)i) return damaged(at);
    }
    return TT_OK;
}

tt_err tt_csv_recall(const json_t *columns, tt_source *s)
{
    tt_schema *m = tt_arena_take(s->arena, sizeof *m, sizeof(void *));
    size_t count = json_array_size(columns);
    tt_err err;

    if (!count || count > TT_LEARNED_MOST)
        return tt_fail(TT_EFORMAT, "what it says of its columns is damaged");
    *m = (tt_schema){.col = tt_arena_take(s->arena, count * sizeof *m->col, sizeof(void *)),
                     .count = (int)count};
    for (size_t i = 0; i < count; i++) {
        column *c = &m->col[i];
        if ((err = recall_column(s, json_array_get(columns, i), i, c))) return err;
        if (c->type != LABEL || c->integers) continue;
        s->classes = tt_vocab_count(c->vocab);
        s->class_name = tt_vocab_words(c->vocab);
    }
    s->schema = m;
    return TT_OK;
}
