/* Trees and their nodes: made, changed by assignments, copied. Parsing is in parse.c, printing in
 * print.c, reading by table in read.c. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "node.h"

/* ---- nodes ---- */

tt_node *tt_node_new(tt_tree *t, tt_node_kind kind, const tt_source *s, int line, int column)
{
    tt_inner *n = tt_arena_take(t->arena, sizeof *n, _Alignof(tt_inner));

    n->node = (tt_node){.kind = kind, .text = "", .line = line, .column = column, .tree = t};
    n->source = s;
    return &n->node;
}

void tt_node_push(tt_node *parent, tt_node *key, tt_node *child)
{
    tt_inner *in = (tt_inner *)(void *)parent;
    tt_arena *a = parent->tree->arena;

    TT_ASSERT(child->tree == parent->tree && (key != NULL) == (parent->kind == TT_MAP));
    if (parent->count == in->room) {
        int room = in->room ? in->room * 2 : 4;
        tt_node **item = tt_arena_take(a, (size_t)room * sizeof *item, _Alignof(tt_node *));
        if (parent->count) memcpy(item, parent->item, (size_t)parent->count * sizeof *item);
        parent->item = item;
        if (key) {
            item = tt_arena_take(a, (size_t)room * sizeof *item, _Alignof(tt_node *));
            if (parent->count) memcpy(item, parent->key, (size_t)parent->count * sizeof *item);
            parent->key = item;
        }
        in->room = room;
    }
    if (key) parent->key[parent->count] = key;
    parent->item[parent->count++] = child;
}

bool tt_node_is_null(const tt_node *n)
{
    return n->kind == TT_SCALAR && !n->quoted && !*n->text;
}

void tt_node_to_map(tt_node *null)
{
    TT_ASSERT(tt_node_is_null(null));
    null->kind = TT_MAP;
}

static int find_key(const tt_node *map, const char *key)
{
    for (int i = 0; map->kind == TT_MAP && i < map->count; i++)
        if (!strcmp(map->key[i]->text, key)) return i;
    return -1;
}

tt_node *tt_node_get(const tt_node *map, const char *key)
{
    int i = find_key(map, key);
    return i < 0 ? NULL : map->item[i];
}

/* ---- sources ---- */

tt_source *tt_source_add(tt_tree *t, const char *name, const char *text, size_t size, bool is_set)
{
    static _Atomic uint64_t ids;
    tt_source *s = tt_arena_take(t->arena, sizeof *s, _Alignof(tt_source));
    char *copy = tt_arena_take(t->arena, size + 1, 1);

    if (size) memcpy(copy, text, size);
    *s = (tt_source){.name = tt_arena_strdup(t->arena, name),
                     .text = copy,
                     .size = size,
                     .is_set = is_set,
                     .id = atomic_fetch_add(&ids, 1),
                     .next = t->sources};
    t->sources = s;
    return s;
}

/* The source as `t` knows it: a node that moves to another tree must not point into its old one. */
static const tt_source *source_in(tt_tree *t, const tt_node *n)
{
    const tt_source *s = tt_node_source(n);
    tt_source *own;

    if (!s || n->tree == t) return s;
    for (own = t->sources; own; own = own->next)
        if (own->id == s->id) return own;
    own = tt_source_add(t, s->name, s->text, s->size, s->is_set);
    own->id = s->id;
    return own;
}

tt_err tt_node_fail(const tt_node *n, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    tt_source_vfail(tt_node_source(n), n->line, n->column, fmt, ap);
    va_end(ap);
    return TT_EINVAL;
}

/* ---- nodes made by a program ---- */

static tt_node *node_like(tt_tree *t, tt_node_kind kind, const tt_node *like)
{
    if (like) return tt_node_new(t, kind, source_in(t, like), like->line, like->column);
    return tt_node_new(t, kind, NULL, 0, 0);
}

tt_node *tt_node_scalar(tt_tree *t, const tt_node *like, const char *text)
{
    tt_node *n = node_like(t, TT_SCALAR, like);

    n->text = tt_arena_strdup(t->arena, text);
    return n;
}

tt_node *tt_node_list(tt_tree *t, const tt_node *like)
{
    return node_like(t, TT_LIST, like);
}

tt_node *tt_node_map(tt_tree *t, const tt_node *like)
{
    return node_like(t, TT_MAP, like);
}

void tt_node_add(tt_node *parent, const char *key, tt_node *child)
{
    int i = key ? find_key(parent, key) : -1;

    if (i >= 0)
        parent->item[i] = child;
    else
        tt_node_push(parent, key ? tt_node_scalar(parent->tree, child, key) : NULL, child);
}

tt_node *tt_node_copy_at(tt_tree *t, const tt_node *n, const tt_node *at)
{
    tt_node *c = node_like(t, n->kind, at ? at : n);

    c->text = n->tree == t ? n->text : tt_arena_strdup(t->arena, n->text);
    c->quoted = n->quoted;
    c->is_default = n->is_default;
    for (int i = 0; i < n->count; i++)
        tt_node_push(c, n->kind == TT_MAP ? tt_node_copy_at(t, n->key[i], at) : NULL,
                     tt_node_copy_at(t, n->item[i], at));
    return c;
}

tt_node *tt_node_copy(tt_tree *t, const tt_node *n)
{
    return tt_node_copy_at(t, n, NULL);
}

/* ---- trees ---- */

tt_err tt_tree_parse(const char *name, const char *text, size_t size, tt_tree **out)
{
    static const char mark[] = "\xEF\xBB\xBF"; /* of UTF-8: some editors begin a file with it */
    tt_err err = TT_OK;
    tt_tree *t;
    tt_source *s;
    tt_arena *a;

    *out = NULL;
    if (size >= 3 && !memcmp(text, mark, 3)) text += 3, size -= 3;
    if (size > TT_TREE_BYTES)
        return tt_fail(TT_EINVAL, "%s: %zu bytes of YAML, at most %d are read", name, size,
                       TT_TREE_BYTES);
    a = tt_arena_open(4096 + size);
    t = tt_arena_take(a, sizeof *t, _Alignof(tt_tree));
    t->arena = a;
    s = tt_source_add(t, name, text, size, false);
    if (!(err = tt_source_check(s)) && !(err = tt_source_parse(t, s, 0, 1, &t->root)))
        *out = t;
    else
        tt_tree_close(t);
    return err;
}

tt_err tt_tree_load(const char *path, tt_tree **out)
{
    tt_err err;
    tt_bytes b;

    *out = NULL;
    /* A name that was mistyped is a wrong argument, not a broken disk. */
    if (!tt_file_exists(path)) return tt_fail(TT_EINVAL, "%s: there is no such file", path);
    err = tt_file_read(path, TT_TREE_BYTES, &b);
    if (err) return err == TT_EFORMAT ? TT_EINVAL : err;
    err = tt_tree_parse(path, (const char *)b.data, b.size, out);
    tt_file_release(&b);
    return err;
}

tt_node *tt_tree_root(tt_tree *t)
{
    return t->root;
}

tt_tree *tt_tree_copy(const tt_tree *t)
{
    tt_arena *a = tt_arena_open(4096);
    tt_tree *c = tt_arena_take(a, sizeof *c, _Alignof(tt_tree));

    c->arena = a;
    c->node_count = t->node_count;
    c->root = tt_node_copy(c, t->root);
    return c;
}

void tt_tree_close(tt_tree *t)
{
    if (t) tt_arena_close(t->arena); /* it holds the tree itself */
}

/* ---- assignments ---- */

/* One step of the path of an assignment: a.b.c has three. */
typedef struct part {
    const char *text;
    int column;
    bool last;
} part;

/* Cuts the text before '=' at its dots. */
static tt_err split_path(tt_tree *t, const tt_source *s, size_t size, part **out, int *count)
{
    char *path = tt_arena_take(t->arena, size + 1, 1), *p = path, *next;
    int n = 1, column = 1;

    memcpy(path, s->text, size);
    for (size_t i = 0; i < size; i++) n += path[i] == '.';
    if (n >= TT_TREE_DEPTH)
        return tt_source_fail(s, 1, 1, "a path of %d parts: at most %d are possible", n,
                              TT_TREE_DEPTH - 1);
    *out = tt_arena_take(t->arena, (size_t)n * sizeof **out, _Alignof(part));
    *count = n;
    for (int i = 0; i < n; i++, p = next + 1) {
        next = strchrnul(p, '.');
        *next = 0;
        if (!*p)
            return tt_source_fail(s, 1, column,
                                  "a name is missing: write KEY=VALUE, such as "
                                  "train.batch=64");
        (*out)[i] = (part){p, column, i == n - 1};
        for (; p < next; p++) column += ((unsigned char)*p & 0xC0) != 0x80;
        column++;
    }
    return TT_OK;
}

static bool has_name(const tt_node *map, const char *name)
{
    const tt_node *n = tt_node_get(map, "name");
    return n && n->kind == TT_SCALAR && !strcmp(n->text, name);
}

/* The map in a list item that may have a name: of `{name: a}` itself, of `conv: {name: a}` the
 * arguments. NULL for other items. */
static tt_node *named_map(tt_node *item)
{
    if (item->kind != TT_MAP) return NULL;
    if (!tt_node_get(item, "name") && item->count == 1 && item->item[0]->kind == TT_MAP)
        return item->item[0];
    return item;
}

/* The kind of an item that has no name, `relu` or `conv: {...}`; NULL if it has one. */
static const char *kind_of_unnamed(tt_node *item)
{
    tt_node *map = named_map(item);

    if (item->kind == TT_SCALAR && *item->text) return item->text;
    if (!map || tt_node_get(map, "name") || item->count != 1) return NULL;
    return item->key[0]->text;
}

/* "conv12" for kind "conv": 12; -1 for another kind, or no such number. */
static int64_t number_after(const char *name, const char *kind, size_t kind_size)
{
    const char *digits = name + kind_size;
    int64_t number;

    if (strncmp(name, kind, kind_size) || *digits < '1' || *digits > '9') return -1;
    if (digits[strspn(digits, "0123456789")] || !tt_parse_int(digits, &number)) return -1;
    return number;
}

/* A layer without a name is called by its kind and the first number that is free: conv1. Gives its
 * place, -1 if there is none. */
static int find_unnamed(tt_node *list, const char *name)
{
    size_t kind_size = strcspn(name, "0123456789");
    int64_t wanted = number_after(name, name, kind_size), used;
    bool *taken;
    int found = -1, next = 1;

    if (kind_size == 0 || wanted < 0 || wanted > list->count) return -1;
    taken = calloc((size_t)list->count + 2, sizeof *taken);
    if (!taken) tt_mem_out((size_t)list->count);
    for (int i = 0; i < list->count && found < 0; i++) {
        tt_node *map = named_map(list->item[i]), *given = map ? tt_node_get(map, "name") : NULL;
        const char *kind = kind_of_unnamed(list->item[i]);
        if (given && given->kind == TT_SCALAR) {
            used = number_after(given->text, name, kind_size);
            if (used > 0 && used <= list->count) taken[used] = true;
        }
        if (!kind || strlen(kind) != kind_size || memcmp(kind, name, kind_size)) continue;
        while (taken[next]) next++;
        if (next++ == wanted) found = i;
    }
    free(taken);
    return found;
}

static tt_err fail_item(const tt_source *s, const part *p, const tt_node *list)
{
    const char **names = tt_arena_take(list->tree->arena, (size_t)list->count * sizeof *names,
                                       _Alignof(const char *));
    const char *near;
    int n = 0;

    for (int i = 0; i < list->count; i++) {
        const tt_node *map = named_map(list->item[i]),
                      *name = map ? tt_node_get(map, "name") : NULL;
        if (name && name->kind == TT_SCALAR) names[n++] = name->text;
    }
    if ((near = tt_nearest(p->text, names, n)))
        return tt_source_fail(s, 1, p->column, "no item '%s' in the list: did you mean '%s'?",
                              p->text, near);
    return tt_source_fail(s, 1, p->column,
                          n ? "no item '%s' in the list of %d: give its name, or a number from 0"
                            : "no item '%s' in the list of %d: give a number from 0",
                          p->text, list->count);
}

/* The place in a list that a part names, by number (one past the end adds) or by name. *down is
 * what the rest of the path goes into. */
static tt_err find_item(const tt_source *s, const part *p, tt_node *list, int *index,
                        tt_node **down)
{
    int64_t number;
    tt_node *map, *at;
    const char *kind;

    *down = NULL;
    if (strspn(p->text, "0123456789") == strlen(p->text)) {
        if (!tt_parse_int(p->text, &number) || number > list->count)
            return tt_source_fail(s, 1, p->column, "item %s of a list of %d: they count from 0",
                                  p->text, list->count);
        *index = (int)number;
        if (*index < list->count) *down = list->item[*index];
        return TT_OK;
    }
    for (int i = 0; i < list->count; i++) {
        map = named_map(list->item[i]);
        if (!map || !has_name(map, p->text)) continue;
        *index = i;
        *down = map;
        return TT_OK;
    }
    if ((*index = find_unnamed(list, p->text)) < 0) return fail_item(s, p, list);
    if (p->last) return TT_OK;
    return tt_node_kind_of(list->item[*index], p->text, &kind, &at, down);
}

/* Puts `value`, or for a part that is not the last an empty map, where nothing was. */
static tt_node *fill(const tt_source *s, const part *p, tt_node *at, int index, tt_node *value)
{
    tt_tree *t = at->tree;
    tt_node *child = p->last ? value : tt_node_new(t, TT_MAP, s, 1, p->column), *key = NULL;

    if (index < at->count) {
        at->item[index] = child;
        return child;
    }
    if (at->kind == TT_MAP) {
        key = tt_node_new(t, TT_SCALAR, s, 1, p->column);
        key->text = p->text;
    }
    tt_node_push(at, key, child);
    return child;
}

/* Goes one part down from *at. What is changed on the way is empty, and into what is empty the rest
 * of the path always leads: after the first change nothing fails. */
static tt_err step_down(const tt_source *s, const part *p, tt_node **at, tt_node *value)
{
    tt_err err;
    tt_node *n = *at, *down = NULL;
    int index = 0;

    if (tt_node_is_null(n)) tt_node_to_map(n);
    if (n->kind == TT_SCALAR)
        return tt_source_fail(s, 1, p->column, "'%s' cannot be set inside the value '%s'", p->text,
                              n->text);
    if (n->kind == TT_LIST) {
        if ((err = find_item(s, p, n, &index, &down))) return err;
    } else {
        index = find_key(n, p->text);
        if (index < 0)
            index = n->count;
        else
            down = n->item[index];
    }
    *at = p->last || !down ? fill(s, p, n, index, value) : down;
    return TT_OK;
}

tt_err tt_tree_set(tt_tree *t, const char *assignment)
{
    tt_err err;
    tt_source *s = tt_source_add(t, "", assignment, strlen(assignment), true);
    const char *equals = strchr(s->text, '=');
    tt_node *value, *at = t->root, *above[TT_TREE_DEPTH];
    part *parts = NULL;
    int count = 0;

    if (!equals) return tt_source_fail(s, 1, 1, "no '=': write KEY=VALUE, such as train.batch=64");
    if ((err = tt_source_check(s)) ||
        (err = split_path(t, s, (size_t)(equals - s->text), &parts, &count)) ||
        (err = tt_source_parse(t, s, (size_t)(equals + 1 - s->text), count + 1, &value)))
        return err;
    for (int i = 0; i < count; i++) {
        above[i] = at;
        if ((err = step_down(s, &parts[i], &at, value))) return err;
    }
    for (int i = 0; i < count; i++) above[i]->is_default = false; /* its other children may be */
    return TT_OK;
}

/* What a part of a path names below `n`: as step_down, but nothing is made. */
static tt_node *look_down(tt_node *n, const char *name)
{
    tt_node *map, *item;
    int64_t number;
    int i;

    if (n->kind != TT_LIST) return tt_node_get(n, name);
    if (*name && strspn(name, "0123456789") == strlen(name))
        return tt_parse_int(name, &number) && number < n->count ? n->item[number] : NULL;
    for (i = 0; i < n->count; i++)
        if ((map = named_map(n->item[i])) && has_name(map, name)) return map;
    if ((i = find_unnamed(n, name)) < 0) return NULL;
    item = n->item[i];
    return item->kind == TT_MAP && item->count == 1 ? item->item[0] : item;
}

tt_node *tt_tree_get(const tt_tree *t, const char *path)
{
    tt_node *n = t->root;
    char name[256];

    for (const char *p = path, *end; n; p = end + 1) {
        end = strchrnul(p, '.');
        if ((size_t)(end - p) >= sizeof name) return NULL;
        memcpy(name, p, (size_t)(end - p));
        name[end - p] = 0;
        n = look_down(n, name);
        if (!*end) return n;
    }
    return NULL;
}

/* ---- Comparing ---- */

static bool same_text(const char *a, const char *b)
{
    double x, y;
    return !strcmp(a, b) || (tt_parse_number(a, &x) && tt_parse_number(b, &y) && x == y);
}

bool tt_node_differ(const tt_node *a, const tt_node *b, tt_str *path, const tt_node **x,
                    const tt_node **y)
{
    const tt_node *item;

    *x = a;
    *y = b;
    if (!a || !b || a->kind != b->kind) return a != b;
    if (a->kind == TT_SCALAR) return !same_text(a->text, b->text);
    for (int i = 0; i < a->count; i++) {
        size_t size = path->size;
        if (a->kind == TT_MAP) {
            tt_str_add(path, "%s%s", size ? "." : "", a->key[i]->text);
            item = tt_node_get(b, a->key[i]->text);
        } else {
            tt_str_add(path, "%s%d", size ? "." : "", i);
            item = i < b->count ? b->item[i] : NULL;
        }
        if (tt_node_differ(a->item[i], item, path, x, y)) return true;
        path->data[path->size = size] = 0;
    }
    if (a->count == b->count) return false;
    for (int i = 0; i < b->count; i++) {
        if (a->kind == TT_MAP ? tt_node_get(a, b->key[i]->text) != NULL : i < a->count) continue;
        if (a->kind == TT_MAP)
            tt_str_add(path, "%s%s", path->size ? "." : "", b->key[i]->text);
        else
            tt_str_add(path, "%s%d", path->size ? "." : "", i);
        *x = NULL;
        *y = b->item[i];
        break;
    }
    return true;
}
