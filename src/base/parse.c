/* YAML events (libyaml) to nodes.
 *
 * Bad input must never cost more than its size: nesting, the number of nodes (an alias is a copy,
 * and copies of copies grow exponentially), of anchors and of bytes are bounded, and keys are
 * compared by sorting. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "node.h"

typedef struct anchor {
    char *name;
    tt_node *node; /* NULL while it is being read: an alias to it would be endless */
} anchor;

typedef struct parser {
    tt_tree *tree;
    const tt_source *source;
    const tt_node *like; /* not NULL: a default, and where its nodes stand */
    size_t from;         /* of the source's bytes, where the document begins ... */
    int line0, column0;  /* ... and the lines and columns before it */
    yaml_parser_t yaml;
    anchor *anchors;
    int anchor_count;
} parser;

/* ---- places ---- */

/* Bytes of the line break at p, 0 if there is none: those that libyaml counts as one. */
static size_t break_at(const char *p, const char *end)
{
    const unsigned char *u = (const unsigned char *)p;
    size_t left = (size_t)(end - p);

    if (left == 0) return 0;
    if (u[0] == '\r') return left > 1 && u[1] == '\n' ? 2 : 1;
    if (u[0] == '\n') return 1;
    if (left > 1 && u[0] == 0xC2 && u[1] == 0x85) return 2;
    if (left > 2 && u[0] == 0xE2 && u[1] == 0x80 && (u[2] == 0xA8 || u[2] == 0xA9)) return 3;
    return 0;
}

static bool is_continuation(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

/* Line and column, from 1, of a byte of the text. */
static void place_of(const tt_source *s, size_t offset, int *line, int *column)
{
    const char *p = s->text, *end = s->text + s->size, *stop = s->text + offset;
    size_t n;

    *line = *column = 1;
    while (p < stop && p < end) {
        if ((n = break_at(p, end))) {
            p += n;
            ++*line;
            *column = 1;
        } else {
            *column += !is_continuation(*p);
            p++;
        }
    }
}

/* The text of a line, without its break. Past the end: empty. */
static void line_of(const tt_source *s, int line, const char **start, size_t *size)
{
    const char *p = s->text, *end = s->text + s->size;
    size_t n;

    for (int l = 1; l < line && p < end; p++)
        if ((n = break_at(p, end))) {
            p += n - 1;
            l++;
        }
    *start = p;
    while (p < end && !break_at(p, end)) p++;
    *size = (size_t)(p - *start);
}

/* ---- messages ---- */

/* Adds the line and a caret under `column`. A long line is shown around the caret; what a terminal
 * would act on is shown as '?'. */
static void show_line(tt_str *out, const char *p, size_t size, int column)
{
    enum { WIDTH = 120, BEFORE = 60 };
    const char *end = p + size;
    tt_str caret = {0};
    int count = 0, first = 0, at = 0;

    for (size_t i = 0; i < size; i++) count += !is_continuation(p[i]);
    if (count > WIDTH && column > BEFORE) first = column - BEFORE;
    tt_str_add(out, "\n%s", first ? "..." : "");
    if (first) tt_str_add(&caret, "   ");
    for (; p < end && at < first + WIDTH; at++) {
        size_t n = tt_utf8_size(p, (size_t)(end - p)), step = n ? n : 1;
        bool odd = n == 0 || ((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7F ||
                   (n == 2 && (unsigned char)*p == 0xC2 && (unsigned char)p[1] < 0xA0);
        if (at >= first) tt_str_put(out, odd ? "?" : p, odd ? 1 : n);
        if (at >= first && at < column - 1) tt_str_add(&caret, *p == '\t' ? "\t" : " ");
        p += step;
    }
    if (p < end) tt_str_add(out, "...");
    while (at++ < column - 1) tt_str_add(&caret, " "); /* past the end of the line */
    tt_str_add(out, "\n%s^", caret.data ? caret.data : "");
    tt_str_free(&caret);
}

tt_err tt_source_vfail(const tt_source *s, int line, int column, const char *fmt, va_list ap)
{
    char text[2048];
    tt_str out = {0};
    const char *start;
    size_t size;

    vsnprintf(text, sizeof text, fmt, ap);
    if (s && s->is_set) {
        line_of(s, 1, &start, &size);
        tt_str_add(&out, "--set %.*s%s: %s", size < 80 ? (int)size : 80, start,
                   size < s->size || size > 80 ? "..." : "", text);
    } else if (s && line > 0)
        tt_str_add(&out, "%s:%d:%d: %s", s->name, line, column, text);
    else if (s)
        tt_str_add(&out, "%s: %s", s->name, text);
    else
        tt_str_add(&out, "%s", text);
    if (s && line > 0) {
        line_of(s, line, &start, &size);
        show_line(&out, start, size, column);
    }
    tt_fail(TT_EINVAL, "%s", out.data);
    tt_str_free(&out);
    return TT_EINVAL;
}

tt_err tt_source_fail(const tt_source *s, int line, int column, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    tt_source_vfail(s, line, column, fmt, ap);
    va_end(ap);
    return TT_EINVAL;
}

tt_err tt_source_check(const tt_source *s)
{
    const char *p = s->text, *end = s->text + s->size;
    int line, column;
    size_t n;

    if (s->size > TT_TREE_BYTES)
        return tt_source_fail(s, 0, 0, "%zu bytes of YAML: at most %d are read", s->size,
                              TT_TREE_BYTES);
    for (; p < end; p += n) {
        n = tt_utf8_size(p, (size_t)(end - p));
        if (n && *p) continue;
        place_of(s, (size_t)(p - s->text), &line, &column);
        if (n) return tt_source_fail(s, line, column, "a zero byte: is this a text file?");
        return tt_source_fail(s, line, column, "byte 0x%02x is not UTF-8", (unsigned char)*p);
    }
    return TT_OK;
}

/* ---- from marks to places ---- */

static void place_mark(const parser *p, yaml_mark_t m, int *line, int *column)
{
    if (p->like) {
        *line = p->like->line;
        *column = p->like->column;
        return;
    }
    *line = (int)m.line + 1 + p->line0;
    *column = (int)m.column + 1 + (m.line == 0 ? p->column0 : 0);
}

static tt_err fail_at(const parser *p, yaml_mark_t m, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static tt_err fail_at(const parser *p, yaml_mark_t m, const char *fmt, ...)
{
    va_list ap;
    int line, column;

    place_mark(p, m, &line, &column);
    va_start(ap, fmt);
    tt_source_vfail(p->source, line, column, fmt, ap);
    va_end(ap);
    return TT_EINVAL;
}

/* Do only blanks stand before `column` of that line, a tab among them? */
static bool tab_indents(const parser *p, int line, int column)
{
    const char *start;
    size_t size, i = 0;
    bool tab = false;

    line_of(p->source, line, &start, &size);
    for (; i < size && (int)i < column && (start[i] == ' ' || start[i] == '\t'); i++)
        tab |= start[i] == '\t';
    return tab && (int)i + 1 >= column;
}

/* What libyaml has against the text. */
static tt_err fail_yaml(const parser *p)
{
    const yaml_parser_t *y = &p->yaml;
    int line, column;

    if (y->error == YAML_MEMORY_ERROR) tt_mem_out(p->source->size);
    if (y->error == YAML_READER_ERROR) {
        place_of(p->source, p->from + y->problem_offset, &line, &column);
        return tt_source_fail(p->source, line, column, "not YAML: %s (U+%04X)", y->problem,
                              (unsigned)y->problem_value);
    }
    place_mark(p, y->problem_mark, &line, &column);
    if (tab_indents(p, line, column))
        return tt_source_fail(p->source, line, column, "not YAML: indented with a tab: use spaces");
    if (!y->context) return tt_source_fail(p->source, line, column, "not YAML: %s", y->problem);
    if (y->context_mark.line == y->problem_mark.line)
        return tt_source_fail(p->source, line, column, "not YAML: %s, %s", y->context, y->problem);
    return tt_source_fail(p->source, line, column, "not YAML: %s (from line %d on), %s", y->context,
                          (int)y->context_mark.line + 1 + p->line0, y->problem);
}

static tt_err next_event(parser *p, yaml_event_t *e)
{
    return yaml_parser_parse(&p->yaml, e) ? TT_OK : fail_yaml(p);
}

/* ---- nodes ---- */

static tt_err count_node(parser *p, yaml_mark_t m)
{
    if (++p->tree->node_count <= TT_TREE_NODES) return TT_OK;
    return fail_at(p, m, "more than %d values, with aliases expanded", TT_TREE_NODES);
}

static tt_err node_at(parser *p, tt_node_kind kind, yaml_mark_t m, tt_node **out)
{
    tt_err err;
    int line, column;

    if ((err = count_node(p, m))) return err;
    place_mark(p, m, &line, &column);
    *out = tt_node_new(p->tree, kind, p->like ? tt_node_source(p->like) : p->source, line, column);
    (*out)->is_default = p->like != NULL;
    return TT_OK;
}

/* Only `!!str` means something here: a string, whatever it looks like. */
static tt_err check_tag(parser *p, const yaml_event_t *e, const yaml_char_t *tag, bool *is_string)
{
    const char *t = (const char *)tag;

    *is_string = t && (!strcmp(t, "tag:yaml.org,2002:str") || !strcmp(t, "!"));
    if (!t || *is_string) return TT_OK;
    return fail_at(p, e->start_mark, "the tag '%s' means nothing here: leave it out", t);
}

static bool means_null(const char *s)
{
    return !*s || !strcmp(s, "~") || !strcmp(s, "null") || !strcmp(s, "Null") || !strcmp(s, "NULL");
}

static tt_err read_scalar(parser *p, const yaml_event_t *e, tt_node **out)
{
    const char *text = (const char *)e->data.scalar.value;
    tt_err err;
    bool is_string;

    if ((err = check_tag(p, e, e->data.scalar.tag, &is_string))) return err;
    if (strlen(text) != e->data.scalar.length)
        return fail_at(p, e->start_mark, "this text holds a zero byte");
    if ((err = node_at(p, TT_SCALAR, e->start_mark, out))) return err;
    (*out)->quoted = is_string || e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    (*out)->text = !(*out)->quoted && means_null(text) ? "" : tt_arena_strdup(p->tree->arena, text);
    return TT_OK;
}

static tt_err anchor_add(parser *p, const yaml_event_t *e, const yaml_char_t *name, int *index)
{
    *index = -1;
    if (!name) return TT_OK;
    if (p->anchor_count == TT_TREE_ANCHORS)
        return fail_at(p, e->start_mark, "more than %d anchors", TT_TREE_ANCHORS);
    *index = p->anchor_count++;
    p->anchors[*index].name = tt_arena_strdup(p->tree->arena, (const char *)name);
    p->anchors[*index].node = NULL;
    return TT_OK;
}

/* A copy, for what is done to one must not happen to the other. It keeps the places of the
 * original: that is where a mistake must be corrected. */
static tt_err copy_node(parser *p, const tt_node *n, yaml_mark_t m, int depth, tt_node **out)
{
    tt_err err;
    tt_node *c, *child, *key = NULL;

    if (depth > TT_TREE_DEPTH)
        return fail_at(p, m, "nested more than %d levels deep, with aliases", TT_TREE_DEPTH);
    if ((err = count_node(p, m))) return err;
    c = tt_node_new(p->tree, n->kind, tt_node_source(n), n->line, n->column);
    c->text = n->text;
    c->quoted = n->quoted;
    c->is_default = n->is_default;
    for (int i = 0; i < n->count; i++) {
        if (n->kind == TT_MAP && (err = copy_node(p, n->key[i], m, depth, &key))) return err;
        if ((err = copy_node(p, n->item[i], m, depth + 1, &child))) return err;
        tt_node_push(c, key, child);
    }
    *out = c;
    return TT_OK;
}

static tt_err read_alias(parser *p, const yaml_event_t *e, int depth, tt_node **out)
{
    const char *name = (const char *)e->data.alias.anchor;

    for (int i = p->anchor_count - 1; i >= 0; i--) {
        if (strcmp(p->anchors[i].name, name)) continue;
        if (!p->anchors[i].node)
            return fail_at(p, e->start_mark, "*%s stands inside &%s itself", name, name);
        return copy_node(p, p->anchors[i].node, e->start_mark, depth, out);
    }
    return fail_at(p, e->start_mark, "*%s: no anchor &%s stands before it", name, name);
}

static tt_err read_node(parser *p, yaml_event_t *e, int depth, tt_node **out);

static tt_err read_list(parser *p, int depth, tt_node *list)
{
    tt_err err;
    yaml_event_t e;
    tt_node *child;

    for (;;) {
        if ((err = next_event(p, &e))) return err;
        if (e.type == YAML_SEQUENCE_END_EVENT) break;
        if ((err = read_node(p, &e, depth + 1, &child))) return err;
        tt_node_push(list, NULL, child);
    }
    yaml_event_delete(&e);
    return TT_OK;
}

static tt_err read_key(parser *p, yaml_event_t *e, int depth, tt_node **out)
{
    yaml_mark_t at = e->start_mark;
    tt_err err = read_node(p, e, depth + 1, out);

    if (err) return err;
    if ((*out)->kind != TT_SCALAR || !*(*out)->text)
        return fail_at(p, at, "a key must be a word, as in `batch: 64`");
    return TT_OK;
}

/* `<<: *base` adds the keys of base; those of the map itself come first, and so win. */
static tt_err add_merged(tt_node *map, tt_node *from)
{
    if (from->kind == TT_LIST) {
        for (int i = 0; i < from->count; i++) {
            if (from->item[i]->kind != TT_MAP) return tt_node_fail(from->item[i], "<< takes maps");
            add_merged(map, from->item[i]);
        }
        return TT_OK;
    }
    if (from->kind != TT_MAP) return tt_node_fail(from, "<< takes a map, as in `<<: *base`");
    for (int i = 0; i < from->count; i++) tt_node_push(map, from->key[i], from->item[i]);
    return TT_OK;
}

static int compare_keys(const void *a, const void *b, void *map)
{
    const int *i = a, *j = b;
    const tt_node *m = map;
    int order = strcmp(m->key[*i]->text, m->key[*j]->text);

    return order ? order : *i - *j;
}

/* Refuses a key that is given twice, but drops one that was merged: `own` keys are the map's. */
static tt_err check_keys(tt_node *map, int own)
{
    tt_err err = TT_OK;
    int *order, kept = 0;
    tt_node *second;

    if (map->count < 2) return TT_OK;
    order = malloc((size_t)map->count * sizeof *order);
    if (!order) tt_mem_out((size_t)map->count * sizeof *order);
    for (int i = 0; i < map->count; i++) order[i] = i;
    qsort_r(order, (size_t)map->count, sizeof *order, compare_keys, map);
    for (int i = map->count - 1; i > 0; i--) { /* from the end: item[] is needed to compare */
        if (strcmp(map->key[order[i]]->text, map->key[order[i - 1]]->text)) continue;
        second = map->key[order[i]];
        if (order[i] < own) {
            err = tt_node_fail(second, "the key '%s' is given twice, first in line %d",
                               second->text, map->key[order[i - 1]]->line);
            goto out;
        }
        map->item[order[i]] = NULL;
    }
    for (int i = 0; i < map->count; i++) {
        if (!map->item[i]) continue;
        map->key[kept] = map->key[i];
        map->item[kept++] = map->item[i];
    }
    map->count = kept;
out:
    free(order);
    return err;
}

static tt_err read_map(parser *p, int depth, tt_node *map)
{
    tt_err err;
    yaml_event_t e;
    tt_node *key, *child, *merged = NULL;
    int own;

    for (;;) {
        if ((err = next_event(p, &e))) return err;
        if (e.type == YAML_MAPPING_END_EVENT) break;
        if ((err = read_key(p, &e, depth, &key)) || (err = next_event(p, &e)) ||
            (err = read_node(p, &e, depth + 1, &child)))
            return err;
        if (!key->quoted && !strcmp(key->text, "<<")) {
            if (merged) return tt_node_fail(key, "<< is given twice: write `<<: [*a, *b]`");
            merged = child;
        } else
            tt_node_push(map, key, child);
    }
    yaml_event_delete(&e);
    own = map->count;
    if (merged && (err = add_merged(map, merged))) return err;
    return check_keys(map, own);
}

/* The node that begins with event *e, which is consumed. */
static tt_err read_node(parser *p, yaml_event_t *e, int depth, tt_node **out)
{
    tt_err err = TT_OK;
    bool is_list = e->type == YAML_SEQUENCE_START_EVENT, is_string;
    int index = -1;

    if (depth > TT_TREE_DEPTH) {
        err = fail_at(p, e->start_mark, "nested more than %d levels deep", TT_TREE_DEPTH);
        goto out;
    }
    switch (e->type) {
    case YAML_ALIAS_EVENT:
        err = read_alias(p, e, depth, out);
        break;
    case YAML_SCALAR_EVENT:
        if ((err = anchor_add(p, e, e->data.scalar.anchor, &index))) break;
        err = read_scalar(p, e, out);
        break;
    default: /* a list or a map: no other event can stand here */
        if ((err = anchor_add(
                 p, e, is_list ? e->data.sequence_start.anchor : e->data.mapping_start.anchor,
                 &index)) ||
            (err = check_tag(p, e, is_list ? e->data.sequence_start.tag : e->data.mapping_start.tag,
                             &is_string)) ||
            (err = node_at(p, is_list ? TT_LIST : TT_MAP, e->start_mark, out)))
            break;
        err = is_list ? read_list(p, depth, *out) : read_map(p, depth, *out);
    }
    if (!err && index >= 0) p->anchors[index].node = *out;
out:
    yaml_event_delete(e);
    return err;
}

/* ---- the document ---- */

static tt_err read_document(parser *p, int depth, tt_node **out)
{
    tt_err err;
    yaml_event_t e;
    bool any = false;

    do { /* stream start, then documents or the end of the stream */
        if ((err = next_event(p, &e))) return err;
        if (e.type == YAML_DOCUMENT_START_EVENT) {
            yaml_mark_t at = e.start_mark;
            yaml_event_delete(&e);
            if (any) return fail_at(p, at, "a second document begins here: one is read");
            if ((err = next_event(p, &e)) || (err = read_node(p, &e, depth, out))) return err;
            any = true;
            continue;
        }
        if (e.type == YAML_STREAM_END_EVENT) break;
        yaml_event_delete(&e);
    } while (true);
    if (!any) { /* nothing but blanks and comments: null */
        err = node_at(p, TT_SCALAR, e.start_mark, out);
        if (!err) (*out)->text = "";
    }
    yaml_event_delete(&e);
    return err;
}

static tt_err run(parser *p, int depth, tt_node **out)
{
    tt_err err;

    p->anchors = calloc(TT_TREE_ANCHORS, sizeof *p->anchors);
    if (!p->anchors || !yaml_parser_initialize(&p->yaml)) tt_mem_out(sizeof *p);
    yaml_parser_set_encoding(&p->yaml, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&p->yaml, (const unsigned char *)p->source->text + p->from,
                                 p->source->size - p->from);
    err = read_document(p, depth, out);
    yaml_parser_delete(&p->yaml);
    free(p->anchors);
    return err;
}

tt_err tt_source_parse(tt_tree *t, const tt_source *s, size_t from, int depth, tt_node **out)
{
    parser p = {.tree = t, .source = s, .from = from};

    place_of(s, from, &p.line0, &p.column0);
    p.line0--;
    p.column0--;
    return run(&p, depth, out);
}

tt_err tt_preset_parse(tt_tree *t, const tt_node *like, const char *text, tt_node **out)
{
    tt_source s = {.name = "default", .text = text, .size = strlen(text)};
    parser p = {.tree = t, .source = &s, .like = like};

    return run(&p, 1, out);
}
