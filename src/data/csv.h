/* csv: rows of cells (RFC 4180), and vocabularies; private to data/csv*.c. */
#ifndef TT_CSV_H
#define TT_CSV_H

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

#endif
