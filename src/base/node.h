/* node: what the files of the tree share (tree.c, parse.c, print.c, read.c) and nobody else sees.
 */
#ifndef TT_NODE_H
#define TT_NODE_H

#include "mem.h"
#include "tree.h"

enum {
    TT_TREE_DEPTH = 64,       /* levels of nesting                                     */
    TT_TREE_NODES = 200000,   /* in a document, aliases expanded                       */
    TT_TREE_BYTES = 16 << 20, /* of text                                               */
    TT_TREE_ANCHORS = 1000,
};

/* Where nodes came from: a file, or an assignment. Keeps the text, so that messages can show it. */
typedef struct tt_source {
    const char *name;
    const char *text;
    size_t size;
    bool is_set; /* an assignment                                                    */
    uint64_t id; /* the same for copies in other trees                               */
    struct tt_source *next;
} tt_source;

struct tt_tree {
    tt_arena *arena;
    tt_source *sources; /* the file itself is the last */
    tt_node *root;
    int node_count; /* made by parsing */
};

/* Every tt_node is one of these. */
typedef struct tt_inner {
    tt_node node;
    const tt_source *source; /* NULL: none */
    int room;                /* of item and key */
} tt_inner;

static inline const tt_source *tt_node_source(const tt_node *n)
{
    return ((const tt_inner *)(const void *)n)->source;
}

tt_node *tt_node_new(tt_tree *t, tt_node_kind kind, const tt_source *s, int line, int column);
void tt_node_push(tt_node *parent, tt_node *key, tt_node *child); /* key NULL for a list */
void tt_node_to_map(tt_node *null); /* `train:` with nothing after it is an empty map */
tt_source *tt_source_add(tt_tree *t, const char *name, const char *text, size_t size, bool is_set);

/* "job.yaml:12:9: <message>", the line and a caret; line 0 for a message without a place. */
tt_err tt_source_fail(const tt_source *s, int line, int column, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
tt_err tt_source_vfail(const tt_source *s, int line, int column, const char *fmt, va_list ap);

/* The document in bytes from .. size of the source, as nodes of `t`; `depth` levels are above it.
 */
tt_err tt_source_parse(tt_tree *t, const tt_source *s, size_t from, int depth, tt_node **out);

/* The document `text`, a default: all of its nodes stand where `like` stands. */
tt_err tt_preset_parse(tt_tree *t, const tt_node *like, const char *text, tt_node **out);

/* Refuses NUL bytes and what is not UTF-8, with the place. */
tt_err tt_source_check(const tt_source *s);

#endif
