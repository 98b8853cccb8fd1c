/* tables: rows that lie outside of the flat array: read where they are, or made up. */
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

static void add_initial(const tt_model *m, int table, int64_t row, int64_t dim, float *to)
{
    float some[SOME];

    for (int64_t done = 0; done < dim; done += SOME) {
        int64_t n = dim - done < SOME ? dim - done : SOME;
        begin_numbers(m->keys[table], &m->g.table_inits[table], row * dim + done, n, some);
        for (int64_t d = 0; d < n; d++) to[done + d] += some[d];
    }
}

static void add_row(const tt_model *m, int table, int64_t row, int64_t dim, float *to)
{
    const float *from = find(&m->views[table], row);

    if (!from) {
        add_initial(m, table, row, dim, to);
        return;
    }
    for (int64_t d = 0; d < dim; d++) to[d] += from[d];
}

static void put_row(const tt_model *m, int table, int64_t row, int64_t dim, float *to)
{
    const float *from = row < 0 ? NULL : find(&m->views[table], row);

    if (from)
        for (int64_t d = 0; d < dim; d++) to[d] = from[d];
    else if (row >= 0)
        begin_numbers(m->keys[table], &m->g.table_inits[table], row * dim, dim, to);
    else
        for (int64_t d = 0; d < dim; d++) to[d] = 0;
}

void look_up(const tt_model *m, int table, const tt_embed_args *a, bool bag)
{
    const tt_rows_view *v = &m->views[table];
    ahead next = {0, 0};
    float *to = a->y;

    for (int i = 0; i < AHEAD; i++) fetch(v, a, &next);
    for (int i = 0; i < a->n; i++) {
        const int32_t *id = a->id + i * a->stride;
        int64_t there = 0;
        for (int64_t d = 0; bag && d < a->dim; d++) to[d] = 0;
        for (int64_t k = 0; k < a->k; k++) {
            int64_t row = row_at(a, id, k);
            fetch(v, a, &next);
            if (!bag) {
                put_row(m, table, row, a->dim, to);
                to += a->dim;
            } else if (row >= 0) {
                add_row(m, table, row, a->dim, to);
                there++;
            }
        }
        if (!bag) continue;
        float share = a->mean && there ? 1 / (float)there : 1;
        for (int64_t d = 0; d < a->dim; d++) to[d] *= share;
        to += a->dim;
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
                     .bag = c->bag,
                     .mean = c->embed.mean};
}
