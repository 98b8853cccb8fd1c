/* Nodes as YAML text: block style, lists of plain values on one line where they fit. What is
 * printed reads back as the same tree. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "node.h"

enum { LINE_WIDTH = 80 };

static bool is_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Can the text stand without quotes, anywhere, and mean itself? Cautious: quotes never hurt. */
static bool is_plain(const char *s)
{
    if (!is_alnum(s[0]) && !strchr("_./+-", s[0])) return false;
    if (strchr("./+-", s[0]) && !is_alnum(s[1]) && s[1] != '/' && s[1] != '.') return false;
    if (!strncmp(s, "...", 3) || !strncmp(s, "---", 3)) return false;
    if (!strcmp(s, "null") || !strcmp(s, "Null") || !strcmp(s, "NULL")) return false;
    for (const char *p = s + 1; *p; p++) {
        if (*p == ' ' && (is_alnum(p[1]) || p[1] == '(')) continue;
        if (!is_alnum(*p) && !strchr("_./+-@%^=~()|<>$*&", *p)) return false;
    }
    return true;
}

/* Characters that a double-quoted text may not hold as they are. */
static bool needs_escape(const unsigned char *p, unsigned *code, int *size)
{
    *size = 1;
    *code = p[0];
    if (p[0] < 0x20 || p[0] == 0x7F) return true;
    if (p[0] == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0) {
        *size = 2;
        *code = p[1];
        return true;
    }
    *size = 3;
    *code = 0x2028 + (p[0] == 0xE2 && p[1] == 0x80 && p[2] == 0xA9);
    if (p[0] == 0xE2 && p[1] == 0x80 && (p[2] == 0xA8 || p[2] == 0xA9)) return true;
    *code = 0xFEFF;
    return p[0] == 0xEF && p[1] == 0xBB && p[2] == 0xBF;
}

static void print_quoted(const char *s, tt_str *out)
{
    unsigned code;
    int size;

    tt_str_add(out, "\"");
    for (const unsigned char *p = (const unsigned char *)s; *p; p += size) {
        if (*p == '"' || *p == '\\')
            tt_str_add(out, "\\%c", *p), size = 1;
        else if (*p == '\n')
            tt_str_add(out, "\\n"), size = 1;
        else if (*p == '\t')
            tt_str_add(out, "\\t"), size = 1;
        else if (needs_escape(p, &code, &size))
            tt_str_add(out, "\\u%04x", code);
        else
            tt_str_put(out, p, 1), size = 1;
    }
    tt_str_add(out, "\"");
}

static void print_scalar(const tt_node *n, tt_str *out)
{
    if (tt_node_is_null(n))
        tt_str_add(out, "null");
    else if (!n->quoted && is_plain(n->text))
        tt_str_add(out, "%s", n->text);
    else
        print_quoted(n->text, out);
}

/* The node on one line, if it is a value, empty, or a short list of values. False: nothing added.
 */
static bool print_short(const tt_node *n, tt_str *out)
{
    size_t begun = out->size;

    if (n->kind == TT_SCALAR) {
        print_scalar(n, out);
        return true;
    }
    if (n->kind == TT_MAP && n->count) return false;
    tt_str_add(out, n->kind == TT_MAP ? "{" : "[");
    for (int i = 0; i < n->count; i++) {
        if (n->item[i]->kind != TT_SCALAR || out->size - begun > LINE_WIDTH) {
            out->size = begun;
            out->data[begun] = 0;
            return false;
        }
        if (i) tt_str_add(out, ", ");
        print_scalar(n->item[i], out);
    }
    tt_str_add(out, n->kind == TT_MAP ? "}" : "]");
    return true;
}

static void indent(int depth, tt_str *out)
{
    tt_str_add(out, "%*s", depth * 2, "");
}

/* A key and its colon. YAML finds the colon of a short key alone; a long one must be announced. */
static void print_key(const tt_node *key, int depth, tt_str *out)
{
    tt_str text = {0};

    print_scalar(key, &text);
    tt_str_add(out, text.size > 120 ? "? %s\n" : "%s", text.data);
    if (text.size > 120) indent(depth, out);
    tt_str_add(out, ": ");
    tt_str_free(&text);
}

/* The children of a list or map, one or more lines each. The first begins where the line stands
 * (after a dash) if `begun`. `mark`: defaults are to be marked, and nothing above was. */
static void print_block(const tt_node *n, int depth, bool begun, bool mark, tt_str *out)
{
    for (int i = 0; i < n->count; i++) {
        const tt_node *c = n->item[i];
        const char *note = mark && c->is_default ? " # default" : "";
        bool is_map = n->kind == TT_MAP;
        if (i || !begun) indent(depth, out);
        if (is_map)
            print_key(n->key[i], depth, out);
        else
            tt_str_add(out, "- ");
        if (print_short(c, out)) {
            tt_str_add(out, "%s\n", note);
            continue;
        }
        bool inline_map = !is_map && c->kind == TT_MAP && !*note;
        if (!inline_map) {
            out->size--; /* no blank at the end of a line */
            tt_str_add(out, "%s\n", note);
        }
        print_block(c, depth + 1, inline_map, mark && !*note, out);
    }
}

void tt_tree_print(const tt_node *n, bool mark_defaults, tt_str *out)
{
    if (print_short(n, out))
        tt_str_add(out, "\n");
    else
        print_block(n, 0, false, mark_defaults, out);
}
