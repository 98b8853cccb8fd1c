/* rows: gradients of tables, of the rows that a step has touched.
 *
 * A step, for a model that has tables:
 *   1  A seat's units yield what their samples add to which rows. Of each it makes a *list*: rows
 *      ascending, each once, what is added to a row twice added in the order of the samples. The
 *      lists of a seat stand one behind the other in memory that its node sees.
 *   2  When all seats have passed: lists of other nodes are brought here, so every rank has those
 *      of all units. Of each table the rows are cut in ranges of about as many entries.
 *   3  Threads take ranges: the entries of all lists are added row by row, in the order of the
 *      units; then the optimiser prepares them, which gives their part of the gradient's norm.
 *   4  If the step is applied, threads take parts of the rows that were touched, and change their
 *      records. A row that was not there gets its first values before.
 *
 * Nothing in it depends on who computed what: lists are of units, ranges and parts follow from the
 * lists. So every rank, which has all tables, makes the same changes to them, bit for bit.
 *
 * (1) Lists are written to when all ranks of the node have used the step before, as gradients are,
 *     and read by others when they have heard that all have passed.
 * (2) Units ascend over seats, and so do lists, which are told apart by nothing else. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"
#include "strategy/isa.h"

#pragma GCC optimize("O3", "fp-contract=off")

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

/* ---- Loops ---- */

INLINE void put_body(float *to, const float *x, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = x[i] * by;
}

INLINE void add_body(float *to, const float *x, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] += x[i] * by;
}

/* The same of halves, which are what a gradient is stored as in bf16: sums are float32. */
INLINE void put_half_body(float *to, const tt_bf16 *x, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = tt_bf16_get(x[i]) * by;
}

INLINE void add_half_body(float *to, const tt_bf16 *x, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] += tt_bf16_get(x[i]) * by;
}

#define LOOPS(X, isa, target)                                                                      \
    X(isa, target, void, put, (float *to, const float *x, float by, int64_t n), (to, x, by, n))    \
    X(isa, target, void, add, (float *to, const float *x, float by, int64_t n), (to, x, by, n))    \
    X(isa, target, void, put_half, (float *to, const tt_bf16 *x, float by, int64_t n),             \
      (to, x, by, n))                                                                              \
    X(isa, target, void, add_half, (float *to, const tt_bf16 *x, float by, int64_t n),             \
      (to, x, by, n))
ISA_SETS

/* By row, and stable. The result is where it returns: in one of both. `rows`: all are below. */
static entry *sort(entry *e, entry *spare, int64_t n, int64_t rows)
{
    for (int shift = 0; (rows - 1) >> shift; shift += DIGIT) {
        uint32_t at[1 << DIGIT] = {0}, sum = 0;
        entry *to = spare;
        for (int64_t i = 0; i < n; i++) at[e[i].row >> shift & ((1 << DIGIT) - 1)]++;
        for (int k = 0; k < 1 << DIGIT; k++) {
            uint32_t count = at[k];
            at[k] = sum;
            sum += count;
        }
        for (int64_t i = 0; i < n; i++) to[at[e[i].row >> shift & ((1 << DIGIT) - 1)]++] = e[i];
        spare = e;
        e = to;
    }
    return e;
}

/* ---- Opening ---- */

static size_t round_up(size_t n)
{
    return (n + LINE - 1) / LINE * LINE;
}

static size_t list_bytes(int64_t n, int64_t dim)
{
    return round_up(sizeof(list_head)) + round_up((size_t)n * sizeof(int32_t)) +
           round_up(tt_mul_size((size_t)(n * dim), sizeof(float)));
}

/* The most samples of a step: hosts that have rows of their own round what each has of it. Nothing
 * of it is of this world, for the next one reads the logs that it leaves: whether there are such
 * hosts is not asked, for one alone has none. */
static int64_t step_most(const tt_strategy *s)
{
    return s->batch + MOST_UNITS;
}

/* The most rows of a list: those that the samples of a part of a unit name. */
static int64_t list_most(const tt_strategy *s, const tt_model_table *m)
{
    int64_t named = tt_strategy_room(s) * m->touches;

    return named < m->rows ? named : m->rows;
}

size_t rows_bytes(const tt_strategy *s, int threads)
{
    return s->rows ? (size_t)threads * s->rows->stream : 0;
}

static stream *stream_at(const tt_strategy *s, int local, int thread)
{
    return (stream *)(part_at(s, local) + s->layouts[local].lists +
                      (size_t)thread * s->rows->stream);
}

tt_err rows_open(tt_strategy *s)
{
    int count, units = 1;
    const tt_model_table *m = tt_model_tables(s->model, &count);
    struct rows *r;

    if (!count) return TT_OK;
    r = s->rows = take(1, sizeof *r);
    r->tables = take((size_t)count, sizeof *r->tables);
    r->count = count;
    r->stream = sizeof(stream);
    for (int i = 0; i < s->seat_count; i++) {
        int n = s->seats[i].units.b - s->seats[i].units.a;
        if (n > units) units = n;
    }
    if (s->plan.exact) units = s->units; /* they may move */
    for (int i = 0; i < count; i++) {
        sheet *t = &r->tables[i];
        int64_t entries = tt_strategy_room(s) * m[i].touches;
        t->m = &m[i];
        t->frozen = m[i].frozen || tt_optim_rows_frozen(s->optim, i);
        t->floats = tt_optim_rows_record(s->optim, i);
        t->most = step_most(s) * m[i].touches;
        if (t->most >= UINT32_MAX)
            return tt_fail(TT_EINVAL, "a step may touch %lld rows of '%s', more than can be sorted",
                           (long long)t->most, m[i].name);
        r->stream +=
            (size_t)(units * s->plan.accumulate) * list_bytes(list_most(s, &m[i]), m[i].dim);
        if (entries > r->most) r->most = entries;
    }
    r->stream = (r->stream + 4095) / 4096 * 4096;
    return TT_OK;
}

static char *cut_off(struct rows *r, size_t *at, size_t bytes)
{
    char *p = r->block ? r->block + *at : NULL;

    *at += round_up(bytes);
    return p;
}

/* Twice: how much it is, and where. */
static size_t lay_out(tt_strategy *s, int threads)
{
    struct rows *r = s->rows;
    size_t at = 0;

    for (int i = 0; i < r->count; i++) {
        sheet *t = &r->tables[i];
        size_t n = (size_t)t->most;
        t->entries = (entry *)cut_off(r, &at, n * sizeof *t->entries);
        t->spare = (entry *)cut_off(r, &at, n * sizeof *t->spare);
        t->from = (const float **)cut_off(r, &at, n * sizeof *t->from);
        t->row = (int32_t *)cut_off(r, &at, n * sizeof *t->row);
        t->g = (float *)cut_off(r, &at, tt_mul_size(n * sizeof *t->g, (size_t)t->m->dim));
    }
    for (int i = 0; i < threads; i++) {
        r->desks[i].entries = (entry *)cut_off(r, &at, (size_t)r->most * sizeof(entry));
        r->desks[i].spare = (entry *)cut_off(r, &at, (size_t)r->most * sizeof(entry));
        r->desks[i].share = (float *)cut_off(r, &at, (size_t)tt_strategy_room(s) * sizeof(float));
    }
    if (s->node_count > 1) {
        r->inbox_bytes = 0;
        for (int i = 0; i < r->count; i++)
            r->inbox_bytes += (size_t)(s->units * s->plan.accumulate) *
                              list_bytes(list_most(s, r->tables[i].m), r->tables[i].m->dim);
        r->inbox = cut_off(r, &at, r->inbox_bytes);
    }
    return at;
}

tt_err rows_start(tt_strategy *s)
{
    struct rows *r = s->rows;
    int threads = s->threads[s->world->rank], most = 1;

    if (!r) return TT_OK;
    for (int i = 0; i < s->world->size; i++)
        if (s->threads[i] > most) most = s->threads[i];
    r->desks = take((size_t)threads, sizeof *r->desks);
    r->used = take((size_t)(s->seat_count + most), sizeof *r->used);
    r->data = take((size_t)s->seat_count, sizeof *r->data);
    r->ops = take(2 * (size_t)s->world->size * (size_t)(most + 1), sizeof *r->ops);
    r->block_bytes = lay_out(s, threads);
    if (!(r->block = tt_block_alloc(r->block_bytes)))
        return tt_fail(TT_ENOMEM, "no memory for the gradients of tables");
    lay_out(s, threads);
    for (int i = 0; i < r->count; i++) /* rows are made up until there is a place for them */
        tt_model_bind_table(s->model, i, &(tt_rows_view){0}, s->seed);
    return TT_OK;
}

/* Other tables, and those of other ranks of the host, counted as so many of this one. */
static int sharers(const tt_strategy *s, const sheet *t)
{
    double all = 0;

    for (int i = 0; i < s->rows->count; i++)
        all += (double)s->rows->tables[i].m->rows * s->rows->tables[i].floats;
    all *= s->world->local_size / ((double)t->m->rows * t->floats);
    return all < 1e6 ? (int)ceil(all) : 1000000;
}

void tt_strategy_table_shape(const tt_strategy *s, int i, tt_table_shape *out)
{
    const sheet *t = &s->rows->tables[i];
    int64_t most = t->most < t->m->rows ? t->most : t->m->rows;

    *out = (tt_table_shape){.rows = t->m->rows,
                            .floats = t->floats,
                            .parts = PARTS,
                            .most = (most + PARTS - 1) / PARTS,
                            .sharers = sharers(s, t)};
}

tt_err rows_place(tt_strategy *s, const tt_state_file *f)
{
    struct rows *r = s->rows;
    tt_err err;

    for (int i = 0; r && i < r->count; i++) {
        sheet *t = &r->tables[i];
        tt_table_shape shape;
        tt_rows_view v = {.stride = t->floats};
        tt_strategy_table_shape(s, i, &shape);
        if ((err = tt_table_open(f ? f->tables[i] : NULL, &shape, f ? f->key : 0, &t->t)))
            return tt_context(err, "table '%s'", t->m->name);
        v.records = tt_table_records(t->t, &v.bits);
        tt_model_bind_table(s->model, i, &v, s->seed);
    }
    if (r) r->kept = f != NULL;
    return TT_OK;
}

void rows_close(tt_strategy *s)
{
    struct rows *r = s->rows;

    if (!r) return;
    for (int i = 0; i < r->count; i++) {
        tt_table_close(r->tables[i].t);
        free(r->tables[i].lists);
    }
    if (r->block) tt_block_free(r->block, r->block_bytes);
    free(r->tables);
    free(r->desks);
    free(r->used);
    free(r->data);
    free(r->ops);
    free(r);
}

tt_table *tt_strategy_table(const tt_strategy *s, int i)
{
    TT_ASSERT(s->rows && i >= 0 && i < s->rows->count);
    return s->rows->tables[i].t;
}

/* ---- 1: lists ---- */

void rows_begin_units(tt_strategy *s, int me)
{
    if (s->rows) stream_at(s, s->local, me)->used = 0;
}

void rows_begin_unit(tt_strategy *s, int me, int unit)
{
    if (s->rows) s->rows->desks[me].unit = unit;
}

/* The rows that samples name, in the order of the samples; with what they get, by its place in dy.
 * share: of a bag's mean. */
static int64_t name_rows(const tt_rows *y, entry *e, float *share)
{
    int64_t n = 0;

    for (int i = 0; i < y->n; i++) {
        const int32_t *id = y->id + i * y->stride;
        int64_t was = n;
        for (int64_t k = 0; k < y->k; k++)
            if (id[k] >= 0)
                e[n++] = (entry){(uint32_t)((y->base ? y->base[k] : 0) + id[k]),
                                 (uint32_t)(y->bag ? i : i * y->k + k)};
        if (y->mean) share[i] = n > was ? 1 / (float)(n - was) : 1;
    }
    return n;
}

/* What a sample gives a row: the first there is, or one more. */
static void take_row(const loops *l, const tt_rows *y, int64_t at, float by, bool more, float *to)
{
    const float *x = (const float *)y->dy + at * y->dim;
    const tt_bf16 *half = (const tt_bf16 *)y->dy + at * y->dim;

    if (y->precision == TT_IN_BF16)
        (more ? l->add_half : l->put_half)(to, half, by, y->dim);
    else
        (more ? l->add : l->put)(to, x, by, y->dim);
}

/* A yield becomes a list behind those that the seat has. */
void rows_take(tt_strategy *s, int me, const tt_rows *y)
{
    struct rows *r = s->rows;
    desk *d = &r->desks[me];
    stream *to = stream_at(s, s->local, me);
    list_head *h = (list_head *)(to->data + to->used);
    const loops *l = best_loops();
    size_t each = y->precision == TT_IN_BF16 ? sizeof(tt_bf16) : sizeof(float);
    int64_t n, all = 0, k = -1;

    if (!y->n || r->tables[y->table].frozen) return;
    n = name_rows(y, d->entries, d->share);
    if (!n) return;
    entry *e = sort(d->entries, d->spare, n, r->tables[y->table].m->rows);
    for (int64_t i = 0; i < n; i++) all += !i || e[i].row != e[i - 1].row;
    TT_ASSERT(sizeof *to + (size_t)to->used + list_bytes(all, y->dim) <= r->stream);
    *h = (list_head){.table = y->table, .unit = d->unit, .n = (int32_t)all};
    int32_t *id = (int32_t *)((char *)h + round_up(sizeof *h));
    float *g = (float *)((char *)id + round_up((size_t)all * sizeof *id));
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            __builtin_prefetch((const char *)y->dy + e[i + AHEAD].at * (size_t)y->dim * each);
        float by = y->mean ? d->share[e[i].at] : 1;
        bool more = i && e[i].row == e[i - 1].row;
        if (!more) id[++k] = (int32_t)e[i].row;
        take_row(l, y, e[i].at, by, more, g + k * y->dim);
    }
    to->used += (int64_t)list_bytes(all, y->dim);
}

/* ---- 2: all lists, on all ranks ---- */

static bool is_near(const tt_strategy *s, int rank, int *local)
{
    const struct node *n = &s->nodes[s->node];

    for (*local = 0; *local < n->ranks; ++*local)
        if (n->rank[*local] == rank) return true;
    return false;
}

/* Where the numbers of a rank's seats are in `used` and `data`. */
static int first_seat(const tt_strategy *s, int rank)
{
    int i = 0;

    while (s->seats[i].rank != rank) i++;
    return i;
}

/* How much there is of each seat of other nodes. */
static tt_err trade_sizes(tt_strategy *s, int64_t *own, int *count)
{
    struct rows *r = s->rows;
    int near;

    for (int t = 0; t < tt_crew_size(s->crew); t++) own[t] = stream_at(s, s->local, t)->used;
    for (int k = 0; k < s->world->size; k++) {
        bool far = !is_near(s, k, &near);
        s->in[k] =
            (tt_parcel){r->used + first_seat(s, k), far ? (size_t)s->threads[k] * sizeof *own : 0};
        s->out[k] = (tt_parcel){own, far ? (size_t)tt_crew_size(s->crew) * sizeof *own : 0};
    }
    return tt_trade_start(tt_world_all(s->world), TAG_LISTS, s->in, s->out, r->ops, count);
}

/* The t-th seat of each rank. */
static tt_err trade_streams(tt_strategy *s, const int64_t *own, int t, size_t *at, int *count)
{
    struct rows *r = s->rows;
    int near;

    for (int k = 0; k < s->world->size; k++) {
        int i = first_seat(s, k) + t;
        s->in[k] = s->out[k] = (tt_parcel){NULL, 0};
        if (is_near(s, k, &near)) continue;
        if ((t < tt_crew_size(s->crew) && own[t] > INT_MAX) ||
            (t < s->threads[k] && r->used[i] > INT_MAX))
            return tt_fail(TT_EINVAL, "rows of tables are sent in one message of at most 2 GB a "
                                      "thread: use more threads or workers, or a smaller batch");
        if (t < tt_crew_size(s->crew)) {
            s->out[k] = (tt_parcel){stream_at(s, s->local, t)->data, (size_t)own[t]};
            s->stats.bytes_sent += own[t];
        }
        if (t >= s->threads[k]) continue;
        if (r->used[i] < 0 || (size_t)r->used[i] > r->inbox_bytes - *at)
            return tt_fail(TT_EPEER, "rank %d tells of %lld bytes of rows", k,
                           (long long)r->used[i]);
        r->data[i] = r->inbox + *at;
        s->in[k] = (tt_parcel){r->inbox + *at, (size_t)r->used[i]};
        *at += (size_t)r->used[i];
    }
    return tt_trade_start(tt_world_all(s->world), TAG_LISTS, s->in, s->out, r->ops, count);
}

static tt_err trade(tt_strategy *s)
{
    struct rows *r = s->rows;
    int64_t *own = r->used + s->seat_count;
    int count = 0, most = 0;
    size_t at = 0;
    tt_err err;

    for (int k = 0; k < s->world->size; k++)
        if (s->threads[k] > most) most = s->threads[k];
    show_life(s);
    if ((err = trade_sizes(s, own, &count)) || (err = exchange_wait(s, r->ops, count))) return err;
    count = 0;
    for (int t = 0; t < most; t++)
        if ((err = trade_streams(s, own, t, &at, &count))) return err;
    return exchange_wait(s, r->ops, count);
}

static void add_list(sheet *t, const list_head *h)
{
    if (t->list_count == t->list_room) {
        t->list_room = t->list_room ? 2 * t->list_room : 64;
        if (!(t->lists = realloc(t->lists, (size_t)t->list_room * sizeof *t->lists)))
            tt_mem_out((size_t)t->list_room * sizeof *t->lists);
    }
    const char *at = (const char *)h + round_up(sizeof *h);
    t->lists[t->list_count++] = (list){
        (const int32_t *)at, (const float *)(at + round_up((size_t)h->n * sizeof(int32_t))), h->n};
}

/* In the order of the seats, which is that of the units: keeps (2). */
static tt_err list_all(tt_strategy *s)
{
    struct rows *r = s->rows;
    int local, unit = -1;

    for (int i = 0; i < r->count; i++) r->tables[i].list_count = 0, r->tables[i].listed = 0;
    for (int i = 0; i < s->seat_count; i++) {
        if (is_near(s, s->seats[i].rank, &local)) {
            const stream *from = stream_at(s, local, s->seats[i].thread);
            r->used[i] = from->used;
            r->data[i] = from->data;
        }
        for (int64_t at = 0; at < r->used[i];) {
            const list_head *h = (const list_head *)(r->data[i] + at);
            if (r->used[i] - at < (int64_t)sizeof *h || h->table < 0 || h->table >= r->count ||
                h->n < 1 || h->unit < unit ||
                at + (int64_t)list_bytes(h->n, r->tables[h->table].m->dim) > r->used[i])
                return tt_fail(TT_EPEER, "the rows of rank %d make no sense", s->seats[i].rank);
            unit = h->unit;
            sheet *t = &r->tables[h->table];
            if ((t->listed += h->n) > t->most)
                return tt_fail(TT_EPEER, "a step names more rows of '%s' than its samples can",
                               t->m->name);
            add_list(t, h);
            at += (int64_t)list_bytes(h->n, r->tables[h->table].m->dim);
        }
    }
    return TT_OK;
}

static int64_t find(const list *l, int64_t id) /* the first that is not below */
{
    int64_t a = 0, b = l->n;

    while (a < b) {
        int64_t middle = (a + b) / 2;
        if (l->row[middle] < id)
            a = middle + 1;
        else
            b = middle;
    }
    return a;
}

/* Ranges of about as many entries, by samples of all lists. */
static void cut_ranges(sheet *t)
{
    int each = t->list_count ? SAMPLES / t->list_count : 0, n = 0;
    entry *e = t->entries;

    if (each < 1) each = 1;
    for (int i = 0; i < t->list_count; i++) {
        const list *l = &t->lists[i];
        for (int k = 0; k < each && k < l->n; k++) {
            int64_t at = l->n <= each ? k : (int64_t)k * l->n / each;
            e[n++] = (entry){(uint32_t)l->row[at], 0};
        }
    }
    e = sort(e, t->spare, n, t->m->rows);
    t->cut[0] = 0;
    t->cut[RANGES] = t->m->rows;
    for (int i = 1; i < RANGES; i++) t->cut[i] = n ? e[(int64_t)n * i / RANGES].row : 0;
    for (int i = 0; i <= RANGES; i++) {
        t->first[i] = 0;
        for (int k = 0; k < t->list_count; k++) t->first[i] += find(&t->lists[k], t->cut[i]);
    }
}

void rows_gather(tt_strategy *s)
{
    struct rows *r = s->rows;
    tt_err err = TT_OK;

    if (!r) return;
    if (s->node_count > 1) err = trade(s);
    if (!err) err = list_all(s);
    if (err) {
        strategy_fail(s, tt_context(err, "step %lld, rows of tables", (long long)s->step + 1));
        return;
    }
    for (int i = 0; i < r->count; i++) cut_ranges(&r->tables[i]);
}

/* ---- 3: sums ---- */

/* The entries of all lists that are in the range, in the order of the lists. */
static int64_t collect(const sheet *t, int share, entry *e, const float **from, int *lists)
{
    int64_t n = 0, low = t->cut[share];

    *lists = 0;
    for (int i = 0; i < t->list_count; i++) {
        const list *l = &t->lists[i];
        int64_t a = find(l, low), b = find(l, t->cut[share + 1]);
        *lists += b > a;
        for (; a < b; a++, n++) {
            e[n] = (entry){(uint32_t)(l->row[a] - low), (uint32_t)n};
            from[n] = l->g + a * t->m->dim;
        }
    }
    return n;
}

static void add_range(sheet *t, int share)
{
    int64_t at = t->first[share], dim = t->m->dim, low = t->cut[share], k = -1;
    entry *e = t->entries + at;
    const float **from = t->from + at;
    const loops *l = best_loops();
    int lists;
    int64_t n = collect(t, share, e, from, &lists);

    TT_ASSERT(n == t->first[share + 1] - at);
    if (lists > 1) e = sort(e, t->spare + at, n, t->cut[share + 1] - low);
    for (int64_t i = 0; i < n; i++) {
        bool more = i && e[i].row == e[i - 1].row;
        if (i + AHEAD < n) __builtin_prefetch(from[e[i + AHEAD].at]);
        if (!more) t->row[at + ++k] = (int32_t)(e[i].row + low);
        (more ? l->add : l->put)(t->g + (at + k) * dim, from[e[i].at], 1, dim);
    }
    t->count[share] = k + 1;
}

void rows_prepare(tt_strategy *s, int me)
{
    struct rows *r = s->rows;
    int threads = tt_crew_size(s->crew);

    for (int i = me; r && i < r->count * RANGES && !strategy_failed(s); i += threads) {
        sheet *t = &r->tables[i / RANGES];
        int share = i % RANGES;
        add_range(t, share);
        tt_optim_rows_prepare(s->optim, i / RANGES, share, t->g + t->first[share] * t->m->dim,
                              t->count[share] * t->m->dim);
    }
}

/* ---- 4: changes ---- */

void rows_begin(tt_strategy *s)
{
    for (int i = 0; s->rows && i < s->rows->count; i++)
        tt_table_begin(s->rows->tables[i].t, s->step);
}

static bool hashes(const tt_strategy *s)
{
    return s->world->size > 1 || s->rows->kept;
}

static void change_row(tt_strategy *s, desk *d, int index, int part, int64_t id, float *g)
{
    const sheet *t = &s->rows->tables[index];
    uint64_t weight = tt_strategy_table_weight(index);
    bool fresh;
    float *record = tt_table_change(t->t, part, id, &fresh);

    if (fresh) {
        tt_model_table_init(s->model, index, id, record);
        tt_optim_rows_fresh(s->optim, index, record);
    } else if (hashes(s)) {
        d->hash -= weight * tt_table_row_hash(id, record, t->floats);
    }
    tt_optim_rows_update(s->optim, index, g, record, fresh);
    if (hashes(s)) d->hash += weight * tt_table_row_hash(id, record, t->floats);
}

/* The part's rows are a run of those of all ranges. */
static void change_part(tt_strategy *s, desk *d, int index, int part)
{
    sheet *t = &s->rows->tables[index];
    int64_t all = 0, before = 0, a, b;
    const _Atomic uint64_t *bits;
    const float *records = tt_table_records(t->t, &bits);
    tt_err err;

    for (int i = 0; i < RANGES; i++) all += t->count[i];
    a = all * part / PARTS, b = all * (part + 1) / PARTS;
    for (int i = 0; i < RANGES; before += t->count[i++]) {
        int64_t first = a > before ? a - before : 0,
                end = b - before < t->count[i] ? b - before : t->count[i];
        const int32_t *id = t->row + t->first[i];
        if (end <= first) continue;
        if ((err = tt_table_reserve(t->t, part, id + first, end - first))) {
            strategy_fail(s, tt_context(err, "table '%s'", t->m->name));
            return;
        }
        for (int64_t k = first; k < end; k++) {
            if (k + AHEAD < end)
                for (int f = 0; f < t->floats && f < LINE; f += 16)
                    __builtin_prefetch(records + (int64_t)id[k + AHEAD] * t->floats + f, 1);
            change_row(s, d, index, part, id[k], t->g + (t->first[i] + k) * t->m->dim);
        }
    }
}

void rows_change(tt_strategy *s, int me)
{
    struct rows *r = s->rows;
    int threads = tt_crew_size(s->crew);

    for (int i = me; r && i < r->count * PARTS && !strategy_failed(s); i += threads)
        change_part(s, &r->desks[me], i / PARTS, i % PARTS);
}

/* ---- Tables as a whole ---- */

uint64_t rows_hash(tt_strategy *s)
{
    struct rows *r = s->rows;

    for (int i = 0; r && i < tt_crew_size(s->crew); i++) {
        r->hash += r->desks[i].hash;
        r->desks[i].hash = 0;
    }
    return r ? r->hash : 0;
}

void rows_settle(tt_strategy *s)
{
    struct rows *r = s->rows;

    if (!r || !hashes(s)) return;
    r->hash = 0;
    for (int i = 0; i < tt_crew_size(s->crew); i++) r->desks[i].hash = 0;
    for (int i = 0; i < r->count; i++)
        r->hash += tt_strategy_table_weight(i) * tt_table_hash(r->tables[i].t);
}

void rows_clear(tt_strategy *s)
{
    for (int i = 0; s->rows && i < s->rows->count; i++) tt_table_clear(s->rows->tables[i].t);
}

/* As many as there is room for, from `*next` on; sets that to where it goes on, -1 at the end. */
static int64_t take_some(const tt_table *t, int64_t *next, int64_t most, int32_t *id, float *record,
                         int floats)
{
    int64_t n = 0;

    for (; *next >= 0 && n < most; *next = tt_table_next(t, *next + 1), n++) {
        id[n] = (int32_t)*next;
        memcpy(record + n * floats, tt_table_look(t, *next), (size_t)floats * sizeof *record);
    }
    return n;
}

tt_err tt_strategy_pass_table(tt_strategy *s, int i, int root, const tt_table *from, bool take_it,
                              int64_t step)
{
    enum { BYTES = 4 << 20 };
    const tt_group *all = tt_world_all(s->world);
    const sheet *t = &s->rows->tables[i];
    size_t each = (size_t)t->floats * sizeof(float);
    int64_t most = BYTES / (int64_t)each + 1, n, next = from ? tt_table_next(from, 0) : -1;
    int32_t *id = take((size_t)most, sizeof *id);
    float *record = take((size_t)most, each);
    tt_err err = TT_OK, full = TT_OK; /* who has no room still hears the rest */

    if (take_it) tt_table_clear(t->t);
    do {
        n = all->me == root ? take_some(from, &next, most, id, record, t->floats) : 0;
        if ((err = tt_group_bcast(all, root, &n, sizeof n)) || !n ||
            (err = tt_group_bcast(all, root, id, (size_t)n * sizeof *id)) ||
            (err = tt_group_bcast(all, root, record, (size_t)n * each)))
            break;
        for (int64_t k = 0; k < n && !full && take_it; k++)
            full = tt_table_put(t->t, id[k], record + k * t->floats);
    } while (n);
    TT_FAILPOINT("table.passed");
    if (!err && !full && take_it) tt_table_settle(t->t, step);
    free(id);
    free(record);
    if (full) tt_context(full, "table '%s'", t->m->name);
    return err ? err : tt_group_agree(all, full);
}

/* Rank 0's become everybody's, a few megabytes at a time; of which step they are, the caller knows.
 */
tt_err rows_spread(tt_strategy *s)
{
    tt_err err = TT_OK;

    if (!s->rows || s->world->size == 1) return TT_OK;
    for (int i = 0; i < s->rows->count && !err; i++)
        err = tt_strategy_pass_table(s, i, 0, s->rows->tables[i].t, s->world->rank > 0, -1);
    return err;
}

void tt_strategy_tables_at(tt_strategy *s, int64_t step)
{
    for (int i = 0; s->rows && i < s->rows->count; i++) tt_table_settle(s->rows->tables[i].t, step);
}

void rows_sha(const tt_strategy *s, tt_sha *sha)
{
    for (int i = 0; s->rows && i < s->rows->count; i++) {
        const sheet *t = &s->rows->tables[i];
        for (int64_t k = tt_table_next(t->t, 0); k >= 0; k = tt_table_next(t->t, k + 1)) {
            tt_sha_add(sha, &k, sizeof k);
            tt_sha_add(sha, tt_table_look(t->t, k), (size_t)t->floats * sizeof(float));
        }
    }
}
