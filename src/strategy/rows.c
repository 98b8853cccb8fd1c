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
#include <stdlib.h>
#include <string.h>

#include "strategy/isa.h"
#include "strategy/rows.h"

#pragma GCC optimize("O3", "fp-contract=off")

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
