/* Reading nodes by table: types, ranges, defaults, and the sentences for what is wrong. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node.h"

/* What a value is called in messages: "batch in train". */
typedef struct label {
    char text[160];
} label;

static label label_of(const char *what, const char *key)
{
    label l;

    snprintf(l.text, sizeof l.text, key ? "%s in %s" : "%s", key ? key : what, what);
    return l;
}

/* ---- single values ---- */

/* What the text was, for messages: the value in quotes, or what stands there instead of one. */
static const char *shown(const tt_node *n, char *buf, size_t size)
{
    if (n->kind == TT_LIST) return "a list";
    if (n->kind == TT_MAP) return "a map";
    if (tt_node_is_null(n)) return "nothing";
    if (n->quoted)
        snprintf(buf, size, "the text \"%.60s\" (leave the quotes out)", n->text);
    else
        snprintf(buf, size, "'%.60s'", n->text);
    return buf;
}

static tt_err fail_type(const tt_node *n, const char *what, const char *wanted)
{
    char buf[128];
    return tt_node_fail(n, "%s must be %s, not %s", what, wanted, shown(n, buf, sizeof buf));
}

/* The text of a value that may be a number or a word, NULL if it is a string, a list, a map. */
static const char *word_of(const tt_node *n)
{
    return n->kind == TT_SCALAR && !n->quoted && *n->text ? n->text : NULL;
}

static tt_err check_range(const tt_node *n, const char *what, const tt_key *key, double v)
{
    if (key->least == 0 && key->most == 0) return TT_OK;
    if (key->most < key->least) { /* a lower bound alone */
        if (v >= key->least) return TT_OK;
        return tt_node_fail(n, "%s is %s: it must be at least %.15g", what, n->text, key->least);
    }
    if (v >= key->least && v <= key->most) return TT_OK;
    return tt_node_fail(n, "%s is %s: it must lie between %.15g and %.15g", what, n->text,
                        key->least, key->most);
}

static tt_err read_int(const tt_node *n, const char *what, const tt_key *key, int64_t *out)
{
    const char *s = word_of(n);

    if (!s || !tt_parse_int(s, out)) return fail_type(n, what, "a whole number");
    return check_range(n, what, key, (double)*out);
}

static tt_err read_number(const tt_node *n, const char *what, const tt_key *key, double *out)
{
    const char *s = word_of(n);

    if (!s || !tt_parse_number(s, out)) return fail_type(n, what, "a number");
    return check_range(n, what, key, *out);
}

static tt_err read_string(const tt_node *n, const char *what, const char **out)
{
    if (n->kind != TT_SCALAR) return fail_type(n, what, "a text");
    *out = n->text;
    return TT_OK;
}

/* "a, b or c" */
static void list_names(const char *const *names, int count, char *out, size_t size)
{
    *out = 0;
    for (int i = 0; i < count; i++) {
        size_t at = strlen(out);
        snprintf(out + at, size - at, "%s%s",
                 i == 0           ? ""
                 : i == count - 1 ? " or "
                                  : ", ",
                 names[i]);
    }
}

tt_err tt_node_pick(const tt_node *at, const char *what, const char *name, const void *table,
                    size_t row, int count, int *out)
{
    const char *names[64], *near;
    char list[640];

    TT_ASSERT(count <= TT_COUNT(names));
    for (int i = 0; i < count; i++) {
        names[i] = *(const char *const *)((const char *)table + (size_t)i * row);
        if (strcmp(name, names[i])) continue;
        *out = i;
        return TT_OK;
    }
    if ((near = tt_nearest(name, names, count)))
        return tt_node_fail(at, "there is no %s '%.60s': did you mean '%s'?", what, name, near);
    list_names(names, count, list, sizeof list);
    return tt_node_fail(at, "there is no %s '%.60s': use %s", what, name, list);
}

static tt_err read_choice(const tt_node *n, const char *what, const tt_key *key, int *out)
{
    char copy[512], list[640];
    const char *names[64], *near;
    int count = 0;

    TT_ASSERT(key->choices && strlen(key->choices) < sizeof copy);
    strcpy(copy, key->choices);
    for (char *p = copy, *next; p; p = next) {
        TT_ASSERT(count < TT_COUNT(names));
        if ((next = strchr(p, '|'))) *next++ = 0;
        if (n->kind == TT_SCALAR && !strcmp(n->text, p)) {
            *out = count;
            return TT_OK;
        }
        names[count++] = p;
    }
    list_names(names, count, list, sizeof list);
    if (n->kind == TT_SCALAR && (near = tt_nearest(n->text, names, count)))
        return tt_node_fail(n, "%s is '%.60s', not %s: did you mean '%s'?", what, n->text, list,
                            near);
    return fail_type(n, what, list);
}

/* ---- lists: a single value is a list of one ---- */

static int members_of(tt_node *n, tt_node ***out, tt_node **alone)
{
    *alone = n;
    *out = n->kind == TT_LIST ? n->item : alone;
    return n->kind == TT_LIST ? n->count : 1;
}

static tt_err read_list(tt_node *n, const char *what, const tt_key *key, void *out)
{
    tt_err err = TT_OK;
    tt_node **item, *alone;
    int count = members_of(n, &item, &alone);
    void *v = tt_arena_take(n->tree->arena, (size_t)count * 8, 8);
    char member[200];

    _Static_assert(sizeof(char *) <= 8 && sizeof(double) == 8, "room for each type");
    for (int i = 0; i < count && !err; i++) {
        if (n->kind == TT_LIST)
            snprintf(member, sizeof member, "item %d of %s", i + 1, what);
        else
            snprintf(member, sizeof member, "%s", what);
        if (key->type == TT_NUMBERS)
            err = read_number(item[i], member, key, (double *)v + i);
        else if (key->type == TT_STRINGS)
            err = read_string(item[i], member, (const char **)v + i);
        else
            err = read_int(item[i], member, key, (int64_t *)v + i);
    }
    if (err) return err;
    if (key->type == TT_NUMBERS)
        *(tt_numbers *)out = (tt_numbers){count, v};
    else if (key->type == TT_STRINGS)
        *(tt_strings *)out = (tt_strings){count, v};
    else
        *(tt_ints *)out = (tt_ints){count, v};
    return TT_OK;
}

static tt_err read_pair(tt_node *n, const char *what, const tt_key *key, int64_t *out)
{
    tt_err err;
    tt_ints both;

    if (n->kind == TT_MAP || (n->kind == TT_LIST && n->count != 2))
        return tt_node_fail(n, "%s must be one whole number, or a list of two", what);
    if ((err = read_list(n, what, key, &both))) return err;
    out[0] = both.item[0];
    out[1] = both.item[both.count - 1];
    return TT_OK;
}

tt_err tt_node_value(tt_node *n, const char *what, const tt_key *key, void *out)
{
    const char *s = word_of(n);
    tt_err err = TT_OK;

    switch (key->type) {
    case TT_INT:
        return read_int(n, what, key, out);
    case TT_NUMBER:
        return read_number(n, what, key, out);
    case TT_STRING:
        return read_string(n, what, out);
    case TT_CHOICE:
        return read_choice(n, what, key, out);
    case TT_PAIR:
        return read_pair(n, what, key, out);
    case TT_INTS:
    case TT_NUMBERS:
    case TT_STRINGS:
        return read_list(n, what, key, out);
    case TT_NODE:
        *(tt_node **)out = n;
        return TT_OK;
    case TT_BOOL:
        if (!s || !tt_parse_bool(s, out)) err = fail_type(n, what, "true or false");
        return err;
    case TT_SIZE:
        if (!s || !tt_parse_size(s, out))
            return fail_type(n, what, "a number of bytes such as 4096, 64k or 2GiB");
        return check_range(n, what, key, (double)*(int64_t *)out);
    case TT_TIME:
        if (!s || !tt_parse_time(s, out))
            return fail_type(n, what, "a time such as 30, 500ms, 10m or 2h");
        return check_range(n, what, key, *(double *)out);
    }
    TT_ASSERT(!"a type of tt_type");
    return TT_EINVAL;
}

/* ---- defaults for a map that is in no tree ---- */

/* Their values must last, so each default is parsed once, into a tree that is never closed. */
typedef struct preset {
    const tt_key *key;
    union {
        int64_t pair[2];
        tt_ints ints;
        double number;
        const char *string;
    } value;
    struct preset *next;
} preset;

static size_t size_of(tt_type type)
{
    switch (type) {
    case TT_BOOL:
        return sizeof(bool);
    case TT_CHOICE:
        return sizeof(int);
    case TT_STRING:
    case TT_NODE:
        return sizeof(void *);
    case TT_PAIR:
        return sizeof(int64_t[2]);
    case TT_INTS:
    case TT_NUMBERS:
    case TT_STRINGS:
        return sizeof(tt_ints);
    default:
        return 8;
    }
}

static bool same_default(const tt_key *a, const tt_key *b)
{
    bool choices =
        a->choices && b->choices ? !strcmp(a->choices, b->choices) : a->choices == b->choices;
    return a->type == b->type && choices && !strcmp(a->preset, b->preset);
}

static tt_err preset_value(const char *what, const tt_key *key, void *out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static tt_tree *tree;
    static preset *first;
    tt_err err = TT_OK;
    tt_node *n;
    tt_key *kept;
    preset *p;

    pthread_mutex_lock(&lock);
    if (!tree && (err = tt_tree_parse("defaults", "", 0, &tree))) goto out;
    for (p = first; p && !same_default(p->key, key);) p = p->next;
    if (!p) {
        if ((err = tt_preset_parse(tree, tree->root, key->preset, &n))) goto out;
        p = tt_arena_take(tree->arena, sizeof *p, _Alignof(preset));
        if ((err = tt_node_value(n, what, key, &p->value))) goto out;
        kept = tt_arena_take(tree->arena, sizeof *kept, _Alignof(tt_key)); /* the caller's may go */
        *kept = *key;
        kept->preset = tt_arena_strdup(tree->arena, key->preset);
        if (key->choices) kept->choices = tt_arena_strdup(tree->arena, key->choices);
        p->key = kept;
        p->next = first;
        first = p;
    }
    memcpy(out, &p->value, size_of(key->type));
out:
    pthread_mutex_unlock(&lock);
    return err;
}

/* ---- maps ---- */

static const tt_key *find(const tt_key *keys, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(keys[i].name, name)) return &keys[i];
    return NULL;
}

static tt_err fail_unknown(const tt_node *key, const char *what, const tt_key *keys, int count)
{
    enum { SHOWN = 16 };
    tt_err err;
    const char **names = calloc((size_t)count + 1, sizeof *names), *near;
    tt_str list = {0};

    if (!names) tt_mem_out((size_t)count * sizeof *names);
    for (int i = 0; i < count; i++) {
        names[i] = keys[i].name;
        if (i < SHOWN)
            tt_str_add(&list, "%s%s", i ? ", " : "", names[i]);
        else if (i == SHOWN)
            tt_str_add(&list, " and others");
    }
    if ((near = tt_nearest(key->text, names, count)))
        err = tt_node_fail(key, "unknown key '%.60s' in %s: did you mean '%s'?", key->text, what,
                           near);
    else if (count)
        err =
            tt_node_fail(key, "unknown key '%.60s' in %s: it takes %s", key->text, what, list.data);
    else
        err = tt_node_fail(key, "unknown key '%.60s' in %s, which takes none", key->text, what);
    tt_str_free(&list);
    free(names);
    return err;
}

/* The key was left out. */
static tt_err read_absent(tt_node *map, const char *what, const tt_key *key, void *out)
{
    label l = label_of(what, key->name);
    tt_err err;
    tt_node *n;

    if (!key->preset)
        return map ? tt_node_fail(map, "%s lacks the key '%s'", what, key->name)
                   : tt_fail(TT_EINVAL, "%s lacks the key '%s'", what, key->name);
    if (!strcmp(key->preset, "-")) return TT_OK;
    if (!map && key->type == TT_NODE) {
        *(tt_node **)out = NULL;
        return TT_OK;
    }
    if (!map) return preset_value(l.text, key, out);
    if ((err = tt_preset_parse(map->tree, map, key->preset, &n))) return err;
    tt_node_add(map, key->name, n);
    return tt_node_value(n, l.text, key, out);
}

tt_err tt_node_read(tt_node *map, const char *what, const tt_key *keys, int key_count, void *out)
{
    tt_err err;
    tt_node *n;

    if (map && tt_node_is_null(map)) tt_node_to_map(map);
    if (map && map->kind != TT_MAP) return fail_type(map, what, "a map of keys and values");
    for (int i = 0; map && i < map->count; i++)
        if (!find(keys, key_count, map->key[i]->text))
            return fail_unknown(map->key[i], what, keys, key_count);
    if (map) map->table = keys, map->table_count = key_count;
    for (int i = 0; i < key_count; i++) {
        const tt_key *k = &keys[i];
        void *at = (char *)out + k->at;
        bool optional = k->preset && !strcmp(k->preset, "-");
        n = map ? tt_node_get(map, k->name) : NULL;
        if (n && optional && tt_node_is_null(n)) continue; /* `clip: null` takes it back */
        if (!n)
            err = read_absent(map, what, k, at);
        else
            err = tt_node_value(n, label_of(what, k->name).text, k, at);
        if (err) return err;
    }
    return TT_OK;
}

tt_err tt_node_kind_of(tt_node *n, const char *what, const char **name, tt_node **at,
                       tt_node **args)
{
    tt_node *key, *map;

    if (n->kind == TT_LIST || (n->kind == TT_SCALAR && !*n->text) ||
        (n->kind == TT_MAP && !n->count))
        return fail_type(n, what, "a name, or a name with arguments as in `conv: {out: 10}`");
    if (n->kind == TT_MAP && n->count > 1)
        return tt_node_fail(n->key[1],
                            "%s has one name, '%s': is '%s' an argument, to be indented? To take "
                            "another %s, give it whole: {%s: {...}}",
                            what, n->key[0]->text, n->key[1]->text, what, n->key[1]->text);
    if (n->kind ==
        TT_SCALAR) { /* `relu` becomes `relu: {}`, so that there is a place for defaults */
        key = tt_node_scalar(n->tree, n, n->text);
        map = tt_node_map(n->tree, n);
        n->kind = TT_MAP;
        n->text = "";
        n->quoted = false;
        tt_node_push(n, key, map);
    }
    map = n->item[0];
    if (tt_node_is_null(map)) tt_node_to_map(map);
    if (map->kind != TT_MAP)
        return tt_node_fail(map, "the arguments of %s must be a map, as in `conv: {out: 10}`",
                            n->key[0]->text);
    *name = n->key[0]->text;
    *at = n->key[0];
    *args = map;
    return TT_OK;
}
