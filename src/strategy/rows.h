/* rows: what rows.c (a step) and tables.c (tables as a whole) share of the tables of a model. */
#ifndef TT_ROWS_H
#define TT_ROWS_H

#include "strategy/inner.h"

enum { PARTS = 16, RANGES = TT_ROW_SHARES, DIGIT = 11, SAMPLES = 2048, AHEAD = 12, LINE = 64 };

typedef struct list_head { /* then its rows, from the next line on, and then what they get */
    int32_t table, unit;
    int32_t n, pad;
} list_head;

typedef struct list {
    const int32_t *row;
    const float *g;
    int n;
} list;

typedef struct stream { /* of a seat: its lists, in the memory of its rank */
    int64_t used;       /* bytes */
    _Alignas(LINE) char data[];
} stream;

typedef struct entry { /* what is sorted: by row, and else in the order in which it comes */
    uint32_t row, at;
} entry;

typedef struct sheet { /* of a table */
    tt_table *t;
    const tt_model_table *m;
    bool frozen;
    int floats; /* of a record */
    list *lists;
    int list_count, list_room;
    int64_t most, listed; /* entries of all lists: at most, and now */
    /* of the step: the rows of range i are from first[i] on, and count[i] of them */
    int64_t cut[RANGES + 1]; /* rows of range i are below cut[i + 1] */
    int64_t first[RANGES + 1], count[RANGES];
    entry *entries, *spare;
    const float **from;
    int32_t *row;
    float *g;
} sheet;

typedef struct desk { /* of a thread */
    entry *entries, *spare;
    float *share; /* of each sample, of a bag's mean */
    int unit;
    uint64_t hash; /* what it has added to the tables' */
    char pad[LINE];
} desk;

struct rows {
    sheet *tables;
    int count;
    size_t stream; /* bytes of one */
    int64_t most;  /* entries of one list */
    desk *desks;
    char *inbox; /* streams of other nodes */
    size_t inbox_bytes;
    int64_t *used; /* of all seats */
    const char **data;
    tt_op *ops;
    uint64_t hash; /* of all tables */
    bool kept;     /* in files: others look at the hash, too */
    char *block;
    size_t block_bytes;
};

static inline size_t round_up(size_t n)
{
    return (n + LINE - 1) / LINE * LINE;
}

static inline size_t list_bytes(int64_t n, int64_t dim)
{
    return round_up(sizeof(list_head)) + round_up((size_t)n * sizeof(int32_t)) +
           round_up(tt_mul_size((size_t)(n * dim), sizeof(float)));
}

static inline stream *stream_at(const tt_strategy *s, int local, int thread)
{
    return (stream *)(part_at(s, local) + s->layouts[local].lists +
                      (size_t)thread * s->rows->stream);
}

/* Does anybody look at the hash of the tables? */
static inline bool hashes(const tt_strategy *s)
{
    return s->world->size > 1 || s->rows->kept;
}

#endif
