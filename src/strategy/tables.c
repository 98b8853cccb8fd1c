/* tables: the tables of a model as a whole: their memory, what lies beside them, and passing them
 * on. What a step does to their rows is in rows.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "strategy/rows.h"

/* ---- Opening ---- */

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
