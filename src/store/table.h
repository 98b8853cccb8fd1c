/* table: records that are too many to be kept twice: changed in place, with a log of what they
 * were.
 *
 *   tt_table_open -> [tt_table_begin(step) -> tt_table_reserve -> tt_table_change(row), and write
 *   to it ...] -> tt_table_close;    tt_table_back: to what it was before the step of the log
 *
 * A table has rows of a fixed number of floats each, its records: weights, and what an optimiser
 * keeps of them. Rows that were never changed are not there, and take no memory. It lies in memory
 * that is gone with the process, or in a file of the vault, beside the slot whose owner has it: who
 * holds the slot's lock may change it. Others may look (peek), but do not know whether it is
 * changed meanwhile: a hash tells, and the half that goes with it.
 *
 * What it must hold, wherever the process is killed:
 * (1) A row that was changed since begin is in the log as it was, or is as it was.
 * (2) The log says of which step it is, from before the first change of that step. Going back twice
 *     is going back once.
 * (3) What is written to was reserved before: no room is an error, not a signal.
 * (4) It says of which step it is, in one word with whether there is a log: of none while it is
 *     being filled.
 *
 * The dense state that goes with it has two halves (commit.h). A step's log is begun when its half
 * is: then nobody will go back further. So what of the two is committed needs no second word: a
 * world that goes on from step s takes the table back if its log is of a later step. */
#ifndef TT_TABLE_H
#define TT_TABLE_H

#include "base/base.h"

typedef struct tt_table_shape {
    int64_t rows;
    int floats;   /* of a record */
    int parts;    /* that may be changed side by side: one thread each ...    */
    int64_t most; /* ... and no more rows in a step than this, of each part   */
    int sharers;  /* so many of its size take the same memory; 0: one          */
} tt_table_shape;

typedef struct tt_table tt_table;
/* `path` NULL: in memory. A file that is there with the same key and shape keeps its content; else
 * it is made new. TT_EENV: no room for the log. */
tt_err tt_table_open(const char *path, const tt_table_shape *shape, uint64_t key, tt_table **out);
/* Bytes of a file without rows; 0: it is too large. */
uint64_t tt_table_need(const tt_table_shape *shape);
/* One that somebody else may have, as it was after `step` steps: a copy of its own, of which what
 * is changed is seen by nobody. TT_EPEER if it is not there, or cannot tell. */
tt_err tt_table_peek(const char *path, const tt_table_shape *shape, uint64_t key, int64_t step,
                     tt_table **out);

/* A record; NULL: the row is not there. Valid until close. */
const float *tt_table_look(const tt_table *t, int64_t row);
/* The first row from this one on that is there; -1: none is. */
int64_t tt_table_next(const tt_table *t, int64_t row);
int64_t tt_table_count(const tt_table *t); /* of rows that are there */
/* For who reads many: record r is `floats` x r behind the first, if bit r is set. */
const float *tt_table_records(const tt_table *t, const _Atomic uint64_t **bits);

/* Before the first step: a row as it is somewhere else, which no log has; and no rows at all. */
tt_err tt_table_put(tt_table *t, int64_t row, const float *record);
void tt_table_clear(tt_table *t);
/* It is what it is to be after so many steps (-1: that is not known), and there is no log. */
void tt_table_settle(tt_table *t, int64_t step);
int64_t tt_table_at(const tt_table *t); /* ... without what the log has; -1: not known */

/* From here on changes are those of this step. One thread. */
void tt_table_begin(tt_table *t, int64_t step);
/* Memory for these rows, and room for them in the log. Any thread, each for its own part.
 * TT_ENOMEM if there is not enough: what was changed before stays so until it is taken back. */
tt_err tt_table_reserve(tt_table *t, int part, const int32_t *row, int64_t n);
/* The record, to be written to: what it was is in the log. Rows were reserved; no row is changed by
 * two parts, or twice, in a step. *fresh: it was not there, and is zeros. */
float *tt_table_change(tt_table *t, int part, int64_t row, bool *fresh);
/* The step whose changes the log has; -1: none. */
int64_t tt_table_step(const tt_table *t);
/* All of them are taken back, and the log is empty. */
void tt_table_back(tt_table *t);

/* What a row adds to the table's hash, which is the sum over its rows, modulo 2^64. */
uint64_t tt_table_row_hash(int64_t row, const float *record, int floats);
uint64_t tt_table_hash(const tt_table *t); /* of all rows: goes over them */

void tt_table_close(tt_table *t); /* the file stays; accepts NULL */

#endif
