/* Sums in a fixed binary tree.
 *
 * n units split at the largest power of two below n, and so on: whoever adds, the same pairs are
 * added in the same order. A unit without samples is absent: its partner is passed through, never
 * added to 0, which would change bits (-0 + 0 is 0).
 *
 * A sum is compiled to a list of additions over registers: the terms first, then temporaries, each
 * of which is used once. It runs over any range of elements, a chunk at a time. */
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"

enum { CHUNK = 1024 };

static int split_at(int a, int b)
{
    int half = 1;
    while (2 * half < b - a) half *= 2;
    return a + half;
}

void tree_cover(int units, range run, ranges *out)
{
    range todo[64] = {{0, units}};
    int n = units > 0 && run.a < run.b;

    out->count = 0;
    while (n) { /* depth first, left before right */
        range r = todo[--n];
        if (r.b <= run.a || r.a >= run.b) continue;
        if (r.a >= run.a && r.b <= run.b) {
            TT_ASSERT(out->count < MOST_TERMS);
            out->at[out->count++] = r;
            continue;
        }
        int m = split_at(r.a, r.b);
        todo[n++] = (range){m, r.b};
        todo[n++] = (range){r.a, m};
    }
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

/* Of a tree over n units: the most nodes that a part of it needs which begins at its left end, one
 * which ends at its right end, and any; 0: it has no parts. */
static void most_of(int n, int *left, int *right, int *any)
{
    int half = split_at(0, n), l[2], r[2], a[2];

    *left = *right = *any = 0;
    if (n < 2) return;
    most_of(half, &l[0], &r[0], &a[0]);
    most_of(n - half, &l[1], &r[1], &a[1]);
    *left = larger(larger(1, l[0]), 1 + l[1]); /* 1 + 0: the left half alone */
    *right = larger(larger(1, r[1]), 1 + r[0]);
    *any = larger(larger(a[0], a[1]), larger(*left, *right));
    if (r[0] && l[1]) *any = larger(*any, r[0] + l[1]);
}

int tree_most(int units)
{
    int left, right, any;

    most_of(units, &left, &right, &any);
    return larger(1, any);
}

typedef struct builder {
    sum_plan *p;
    const range *term;
    int terms;
    int busy; /* bits: temporaries in use */
} builder;

/* The register that holds the sum over [a, b); -1: no term is in it. */
static int build(builder *w, int a, int b)
{
    bool any = false;

    for (int i = 0; i < w->terms; i++) {
        if (w->term[i].a == a && w->term[i].b == b) return i;
        any |= w->term[i].a >= a && w->term[i].b <= b;
    }
    if (!any) return -1;
    TT_ASSERT(b - a > 1);
    int m = split_at(a, b), x = build(w, a, m), y = build(w, m, b), to;
    if (x < 0) return y;
    if (y < 0) return x;
    if (x >= w->terms) w->busy &= ~(1 << (x - w->terms));
    if (y >= w->terms) w->busy &= ~(1 << (y - w->terms));
    for (to = 0; w->busy >> to & 1;) to++;
    TT_ASSERT(to < MOST_TEMPS);
    w->busy |= 1 << to;
    TT_ASSERT(w->p->op_count < MOST_TERMS);
    w->p->op[w->p->op_count++] = (sum_op){w->terms + to, x, y};
    return w->terms + to;
}

void sum_build(const range *term, int terms, const range *target, int targets, sum_plan *out)
{
    builder w = {.p = out, .term = term, .terms = terms};

    TT_ASSERT(terms <= MOST_TERMS && targets <= MOST_TARGETS);
    memset(out, 0, sizeof *out);
    out->terms = terms;
    out->targets = targets;
    for (int i = 0; i < targets; i++) {
        w.busy = 0;
        out->first_op[i] = out->op_count;
        out->result[i] = build(&w, target[i].a, target[i].b);
    }
    out->first_op[targets] = out->op_count;
}

void sum_run(const sum_plan *p, const tt_kernels *k, const float *const *term, float *const *out,
             int64_t at, int64_t n)
{
    float temp[MOST_TEMPS][CHUNK], held[MOST_TARGETS][CHUNK];
    bool hold = p->targets > 1; /* what is written for one may be a term of the next */

    for (int64_t end = at + n; at < end; at += CHUNK) {
        int64_t len = end - at < CHUNK ? end - at : CHUNK;
        for (int t = 0; t < p->targets; t++) {
            int r = p->result[t];
            float *to = hold ? held[t] : out[t] + at;
            if (r >= 0 && r < p->terms && to != term[r] + at)
                memcpy(to, term[r] + at, (size_t)len * sizeof(float));
            for (int i = p->first_op[t]; i < p->first_op[t + 1]; i++) {
                const sum_op *o = &p->op[i];
                bool last = i + 1 == p->first_op[t + 1];
                const float *x = o->x < p->terms ? term[o->x] + at : temp[o->x - p->terms];
                const float *y = o->y < p->terms ? term[o->y] + at : temp[o->y - p->terms];
                k->add(len, x, y, last ? to : temp[o->to - p->terms]);
            }
        }
        for (int t = 0; hold && t < p->targets; t++)
            memcpy(out[t] + at, held[t], (size_t)len * sizeof(float));
    }
}

/* ---- A seat's own units ---- */

void fold_begin(fold *f, int units, int alone)
{
    *f = (fold){.units = units, .alone = alone};
}

/* Where unit u's gradient goes: the buffer after those that are in use. */
int fold_place(const fold *f)
{
    int n = 0;
    for (int i = 0; i < f->count; i++) n += f->at[i].present;
    return n;
}

/* Unit u is done. Two siblings become one node, unless it stays alone, as the last does: those sums
 * are made by who adds up all seats. Returns how many additions of whole arrays are to be made: of
 * the last buffer in use into the one before it, each time. */
int fold_add(fold *f, int u, bool present)
{
    ranges now;
    int adds = 0;

    f->at[f->count++] = (folded){{u, u + 1}, present};
    if (u >= f->alone) return 0;
    tree_cover(f->units, (range){f->at[0].r.a, u + 1}, &now);
    while (f->count > now.count) {
        folded *y = &f->at[--f->count], *x = y - 1;
        adds += x->present && y->present;
        x->r.b = y->r.b;
        x->present |= y->present;
    }
    return adds;
}

int fold_terms(int units, range run, int alone, const bool *present, range *out)
{
    fold f;
    int n = 0;

    fold_begin(&f, units, alone);
    for (int u = run.a; u < run.b; u++) fold_add(&f, u, present[u]);
    for (int i = 0; i < f.count; i++)
        if (f.at[i].present) out[n++] = f.at[i].r;
    return n;
}

int fold_most(int units, range run)
{
    fold f;
    int most = 1;

    fold_begin(&f, units, run.b - 1);
    for (int u = run.a; u < run.b; u++) {
        int place = fold_place(&f) + 1;
        if (place > most) most = place;
        fold_add(&f, u, true);
    }
    return most;
}
