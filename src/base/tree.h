/* tree: a YAML document as nodes that know their line and column, and the one way to read it.
 *
 * A module describes the keys it takes as a table; tt_node_read checks a map against the table and
 * fills a struct. Whatever is wrong (unknown key, wrong type, out of range, missing) is TT_EINVAL
 * with file:line:column, the line, a caret and, for names, "did you mean". Keys that were left out
 * are added to the tree with their default, so a tree that has been read is the *resolved* job.
 *
 * Nodes live as long as their tree. Not for several threads at once. */
#ifndef TT_TREE_H
#define TT_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "text.h"

typedef struct tt_tree tt_tree;
typedef enum tt_node_kind { TT_SCALAR, TT_LIST, TT_MAP } tt_node_kind;

typedef struct tt_node {
    tt_node_kind kind;
    const char *text;           /* SCALAR: as written, "" for null               */
    bool quoted;                /* SCALAR: "..." or '...': always a string       */
    bool is_default;            /* was not in the file: a default filled it in   */
    int line, column;           /* of the value, from 1                          */
    int count;                  /* LIST, MAP: children                           */
    struct tt_node **item;      /* children in order                             */
    struct tt_node **key;       /* MAP: their keys, scalars                      */
    const struct tt_key *table; /* MAP: the keys it was read by, NULL if it was not */
    int table_count;
    tt_tree *tree;
} tt_node;

/* Anchors and aliases are followed (bounded), so is `<<: *base`; duplicate keys and several
 * documents are refused. All that is wrong with the text is TT_EINVAL, and so is a file that is not
 * there. */
tt_err tt_tree_load(const char *path, tt_tree **out);
tt_err tt_tree_parse(const char *name, const char *text, size_t size, tt_tree **out);
tt_node *tt_tree_root(tt_tree *t);
tt_tree *tt_tree_copy(const tt_tree *t); /* as if it had not been read; messages stay the same */

/* `a.b.2.c=value`: replaces or adds what the path names (list items by number from 0; a layer by
 * its name, given or not: `model.layers.conv1.out`); the value is YAML too. Errors name the
 * assignment and leave the tree as it was. Messages about the new value show the assignment instead
 * of a line of the file. */
tt_err tt_tree_set(tt_tree *t, const char *assignment);
tt_node *tt_tree_get(const tt_tree *t, const char *path); /* the same paths; NULL if absent */

/* YAML text of a node, readable, in the order of the file; defaults are marked "# default" if
 * asked. */
void tt_tree_print(const tt_node *n, bool mark_defaults, tt_str *out);
void tt_tree_close(tt_tree *t); /* accepts NULL */

/* Nodes made by a program: builders and presets. Positions are taken from `like` (may be NULL). */
tt_node *tt_node_scalar(tt_tree *t, const tt_node *like, const char *text);
tt_node *tt_node_list(tt_tree *t, const tt_node *like);
tt_node *tt_node_map(tt_tree *t, const tt_node *like);
void tt_node_add(tt_node *parent, const char *key, tt_node *child); /* key NULL for a list;
                                                                     * replaces what has the key */
tt_node *tt_node_copy(tt_tree *t, const tt_node *n);
/* ... as if all of it stood where `at` does: for what a program puts in the place of a node. */
tt_node *tt_node_copy_at(tt_tree *t, const tt_node *n, const tt_node *at);

tt_node *tt_node_get(const tt_node *map, const char *key); /* NULL if absent, or not a map */
/* Do two values differ? Then `path` is led on to where they first do, and *x and *y are what is
 * there (NULL: nothing). The order of keys plays no part, nor how a number is written. */
bool tt_node_differ(const tt_node *a, const tt_node *b, tt_str *path, const tt_node **x,
                    const tt_node **y);
bool tt_node_is_null(const tt_node *n); /* `key:`, `key: ~`, `key: null` */

/* "job.yaml:12:9: <message>", the line and a caret; returns TT_EINVAL. */
tt_err tt_node_fail(const tt_node *n, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- Reading by table ---- */

typedef enum tt_type {
    TT_INT,     /* int64_t                                                       */
    TT_NUMBER,  /* double                                                        */
    TT_BOOL,    /* bool                                                          */
    TT_STRING,  /* const char *                                                  */
    TT_CHOICE,  /* int: the index among `choices`, "a|b|c"                       */
    TT_SIZE,    /* int64_t, bytes                                                */
    TT_TIME,    /* double, seconds                                               */
    TT_PAIR,    /* int64_t[2]: one integer for both, or a list of two            */
    TT_INTS,    /* tt_ints: an integer or a list of them                         */
    TT_NUMBERS, /* tt_numbers                                                    */
    TT_STRINGS, /* tt_strings                                                    */
    TT_NODE,    /* tt_node *: anything; NULL if absent; the caller reads it      */
} tt_type;

typedef struct tt_ints {
    int count;
    const int64_t *item;
} tt_ints;
typedef struct tt_numbers {
    int count;
    const double *item;
} tt_numbers;
typedef struct tt_strings {
    int count;
    const char *const *item;
} tt_strings;

typedef struct tt_key {
    const char *name;
    tt_type type;
    size_t at;           /* offsetof in the struct that is filled                          */
    const char *preset;  /* the default as YAML text; NULL: required; "-": optional, left
                          * as the caller initialised it, and not added to the tree        */
    double least, most;  /* for numbers and each member of a list; 0, 0: unbounded;
                          * most < least: bounded below alone                              */
    const char *choices; /* CHOICE only                                                    */
    const char *help;    /* a line for `tutti config keys` and docs/job.md                 */
} tt_key;

/* Reads `map` (NULL: an empty map that is not in any tree; NODE keys are then NULL) by the table
 * into *out. `what` names the map in messages: "unknown key 'batchsize' in train". A value that is
 * null
 * (`train:`, `train: ~`) is an empty map; null for an optional key ("-") leaves it out. */
tt_err tt_node_read(tt_node *map, const char *what, const tt_key *keys, int key_count, void *out);

/* One value of the key's type, in its range, for nodes that are no map: *out is the value itself
 * (key->at plays no part), and `what` its name in messages. */
tt_err tt_node_value(tt_node *n, const char *what, const tt_key *key, void *out);

/* A node that names a kind, with arguments or without: `relu`, `conv: {out: 10}`. Gives the name,
 * the node of the name (for messages) and the argument map (added, empty, if there was none). */
tt_err tt_node_kind_of(tt_node *n, const char *what, const char **name, tt_node **at,
                       tt_node **args);

/* Which row of a table has this name? Rows of `row` bytes begin with a `const char *`. If none has,
 * the message at `at` names the nearest, or all. */
tt_err tt_node_pick(const tt_node *at, const char *what, const char *name, const void *table,
                    size_t row, int count, int *out);

#define TT_COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

#endif
