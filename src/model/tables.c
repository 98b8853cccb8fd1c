/* tables: rows that lie outside of the flat array: read where they are, or made up. */
#include <string.h>

#include "run.h"

enum { AHEAD = 16, SOME = 256 }; /* rows that are fetched early; numbers that are made up at once */

const tt_model_table *tt_model_tables(const tt_model *m, int *count)
{
    *count = m->g.table_count;
    return m->g.tables;
}

void tt_model_bind_table(tt_model *m, int table, const tt_rows_view *v, uint64_t seed)
{
    m->views[table] = *v;
    m->keys[table] = key_of(seed, m->g.tables[table].name);
}

void tt_model_table_init(const tt_model *m, int table, int64_t row, float *out)
{
    int64_t dim = m->g.tables[table].dim;

    begin_numbers(m->keys[table], &m->g.table_inits[table], row * dim, dim, out);
}

/* ---- Forward ---- */

static int64_t row_at(const tt_embed_args *a, const int32_t *id, int64_t k)
{
    return id[k] < 0 ? -1 : (a->base ? a->base[k] : 0) + id[k];
}

static const float *find(const tt_rows_view *v, int64_t row)
{
    if (!v->bits || !(v->bits[row / 64] >> (row % 64) & 1)) return NULL;
    return v->records + row * v->stride;
}

/* Which id comes AHEAD of the one that is worked on. */
typedef struct ahead {
    int i;
    int64_t k;
} ahead;

/* A record that is not there is in no page, and what is not in a page is not fetched. */
static void fetch(const tt_rows_view *v, const tt_embed_args *a, ahead *at)
{
    if (at->i >= a->n || !v->bits) return;
    int64_t row = row_at(a, a->id + at->i * a->stride, at->k);
    if (row >= 0) {
        const float *record = v->records + row * v->stride;
        __builtin_prefetch((const void *)&v->bits[row / 64]);
        for (int64_t d = 0; d < a->dim && d < 64; d += 16) __builtin_prefetch(record + d);
    }
    if (++at->k == a->k) {
        at->k = 0;
        at->i++;
    }
}

/* `n` numbers of a row from `at` on, SOME at most: where they are, or made up, in `some`. */
static const float *numbers_of(const tt_model *m, int table, int64_t row, int64_t at, int64_t n,
                               float *some)
{
    const float *from = find(&m->views[table], row);

    if (from) return from + at;
    begin_numbers(m->keys[table], &m->g.table_inits[table], row * m->g.tables[table].dim + at, n,
                  some);
    return some;
}

static int64_t some_of(int64_t dim, int64_t at)
{
    return dim - at < SOME ? dim - at : SOME;
}

static void put_row(const tt_model *m, int table, int64_t row, int64_t dim, char *to)
{
    size_t each = tt_kernels_element(m->k);
    float some[SOME];

    if (row < 0) memset(to, 0, (size_t)dim * each);
    for (int64_t at = 0; row >= 0 && at < dim; at += SOME) {
        int64_t n = some_of(dim, at);
        m->k->narrow(n, numbers_of(m, table, row, at, n, some), (void *)(to + (size_t)at * each),
                     false);
    }
}

/* Added in float32, and rounded once if the kernels store less. */
static void put_bag(const tt_model *m, int table, const tt_embed_args *a, const int32_t *id,
                    char *to)
{
    int64_t there = 0;
    float some[SOME], sum[SOME];

    for (int64_t k = 0; k < a->k; k++) there += id[k] >= 0;
    float share = a->mean && there ? 1 / (float)there : 1;
    for (int64_t at = 0; at < a->dim; at += SOME) {
        int64_t n = some_of(a->dim, at);
        for (int64_t d = 0; d < n; d++) sum[d] = 0;
        for (int64_t k = 0; k < a->k; k++) {
            int64_t row = row_at(a, id, k);
            const float *from = row < 0 ? NULL : numbers_of(m, table, row, at, n, some);
            for (int64_t d = 0; from && d < n; d++) sum[d] += from[d];
        }
        for (int64_t d = 0; d < n; d++) sum[d] *= share;
        m->k->narrow(n, sum, (void *)(to + (size_t)at * tt_kernels_element(m->k)), false);
    }
}

void look_up(const tt_model *m, int table, const tt_embed_args *a, bool bag)
{
    const tt_rows_view *v = &m->views[table];
    size_t each = (size_t)a->dim * tt_kernels_element(m->k);
    ahead next = {0, 0};
    char *to = (char *)a->y;

    for (int i = 0; i < AHEAD; i++) fetch(v, a, &next);
    for (int i = 0; i < a->n; i++) {
        const int32_t *id = a->id + i * a->stride;
        for (int64_t k = 0; k < a->k; k++) {
            fetch(v, a, &next);
            if (bag) continue;
            put_row(m, table, row_at(a, id, k), a->dim, to);
            to += each;
        }
        if (!bag) continue;
        put_bag(m, table, a, id, to);
        to += each;
    }
}

/* ---- Backward ---- */

tt_rows rows_of_table(const tt_run *r, const call *c)
{
    return (tt_rows){.table = c->table,
                     .n = r->in.n,
                     .k = c->embed.k,
                     .stride = c->embed.stride,
                     .dim = c->embed.dim,
                     .id = r->in.ids + c->first,
                     .base = c->embed.base,
                     .dy = grad(r, c->out),
                     .precision = r->m->k->precision,
                     .bag = c->bag,
                     .mean = c->embed.mean};
}
