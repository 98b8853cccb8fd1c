/* csv: rows of cells (RFC 4180), vocabularies, columns; private to data/csv*.c.
 *
 * csv_rows.c cuts text into cells and numbers words; csv_columns.c finds the job's columns in a
 * file; csv.c makes samples of them; csv_learned.c is what remains of them without the file. */
#ifndef TT_CSV_H
#define TT_CSV_H

#include <string.h>

#include "data/source.h"

/* ---- Rows ---- */

typedef struct tt_cell {
    const char *s; /* no NUL at its end; valid until the next row */
    size_t n;
    bool quoted;
    size_t at; /* quoted: where in `unquoted` its text starts */
} tt_cell;

typedef struct tt_csv {
    const char *name, *p, *end;
    char separator, comment; /* comment 0: none                       */
    int64_t line;            /* where the current row starts, from 1  */
    int64_t next_line;
    tt_cell *cell;
    int count, room;
    tt_str unquoted; /* cells that had quotes inside          */
} tt_csv;

void tt_csv_start(tt_csv *r, const char *name, const char *text, size_t size, char separator,
                  char comment);
tt_err tt_csv_next(tt_csv *r, bool *more); /* empty lines and comments are skipped */
void tt_csv_stop(tt_csv *r);

/* ---- Vocabularies: text to number, in the order of the text ---- */

typedef struct tt_vocab tt_vocab;
tt_vocab *tt_vocab_new(tt_arena *a);                    /* lives in it */
int tt_vocab_add(tt_vocab *v, const char *s, size_t n); /* its number, in order of appearance */
int tt_vocab_find(const tt_vocab *v, const char *s, size_t n); /* -1: unknown */
int tt_vocab_count(const tt_vocab *v);
const char *const *tt_vocab_words(const tt_vocab *v);
void tt_vocab_sort(tt_vocab *v); /* renumbers, so that the order of rows does not matter */
uint64_t tt_vocab_hash(const char *s, size_t n);

/* ---- Columns ---- */

enum { NUMERIC, CATEGORY, ID, LABEL, TARGET, SKIP }; /* up to ID: what the model is given */
enum { HEADER_AUTO, HEADER_YES, HEADER_NO };

typedef struct csv_keys {
    int format, header;
    const char *file, *separator, *comment, *missing;
    tt_node *columns, *label;
} csv_keys;

typedef struct column {
    const char *name;    /* as the job or the header has it; NULL: by index alone      */
    int64_t index;       /* from 0, negative from the end; only without a name         */
    const char *missing; /* stands for '?' and empty cells; NULL: none                 */
    const char *strip;   /* characters cut from the end of a cell                      */
    tt_node *vocabulary;
    const tt_node *node; /* for messages                                               */
    int64_t hash;
    int type;
    bool normalize, by_name;

    int at;               /* place in a row                                             */
    tt_vocab *vocab;      /* CATEGORY, ID without hash; LABEL by name                   */
    bool fixed;           /* the vocabulary is given: by the job or the training file   */
    bool integers;        /* LABEL: all are numbers and stand for themselves            */
    double missing_value; /* NUMERIC, TARGET                                            */
    int64_t first, width; /* features; ID: which of the ids                             */
} column;

struct tt_schema {
    column *col;
    int count;
    int width; /* cells of a row */
    char separator, comment;
    bool header;
    bool sparse;
    int64_t features, ids, targets;
    int label; /* which column, -1: none */
};

/* Reads the first rows, decides on the header and finds the columns; `m` has its separator and
 * comment. *r is left at the first row of data. */
tt_err tt_csv_columns(tt_source *s, const csv_keys *k, const tt_data_want *want, tt_schema *m,
                      tt_csv *r);

tt_err tt_csv_keys(tt_node *map, const char *what, csv_keys *out); /* of a csv or tsv file */
/* Reads what the job says of columns, without a file; into *m if that is not NULL. */
tt_err tt_csv_look(tt_source *s, const csv_keys *k, tt_schema *m);
/* Adds all words to s->words; not those of labels: to predict there need be none. */
void tt_csv_name_words(tt_source *s, const tt_schema *m);

/* What a second file asks of the training file's columns, as JSON; NULL: there is too much of it,
 * or words are no UTF-8. And a schema of which only that is known, for a source without rows; `map`
 * (may be NULL) is the job's `train`. TT_EFORMAT: it is none of ours; TT_EINVAL: the job has other
 * columns now. */
json_t *tt_csv_tell(const tt_schema *m);
tt_err tt_csv_recall(const json_t *columns, tt_node *map, tt_source *s);

/* "FILE: what which", at `n` if that is known. */
tt_err tt_csv_fail(const tt_node *n, const char *name, const char *what, const char *which);

static inline tt_cell tt_cell_trim(const column *c, tt_cell cell)
{
    while (c->strip && cell.n && strchr(c->strip, cell.s[cell.n - 1])) cell.n--;
    return cell;
}

static inline bool tt_cell_missing(tt_cell c)
{
    return c.n == 0 || (c.n == 1 && c.s[0] == '?' && !c.quoted);
}

#endif
