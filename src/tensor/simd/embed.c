/* Rows of tables, gathered and added to. */
#include "tensor/simd/table.h"

enum { AHEAD = 16 }; /* rows that are fetched while others are worked on */

/* Where the row of id k of a sample begins; -1: it has none. */
static ALWAYS_INLINE int64_t row_at(const tt_embed_args *a, const int32_t *id, int64_t k)
{
    return id[k] < 0 ? -1 : ((a->base ? a->base[k] : 0) + id[k]) * a->dim;
}

/* Which id comes AHEAD of the one that is worked on. */
typedef struct ahead {
    int i;
    int64_t k;
} ahead;

static ALWAYS_INLINE void fetch(const tt_embed_args *a, const float *w, ahead *at)
{
    if (at->i >= a->n) return;
    int64_t row = row_at(a, a->id + at->i * a->stride, at->k);
    for (int64_t d = 0; row >= 0 && d < a->dim && d < 64; d += 16) __builtin_prefetch(w + row + d);
    if (++at->k == a->k) {
        at->k = 0;
        at->i++;
    }
}

static ALWAYS_INLINE ahead fetch_first(const tt_embed_args *a, const float *w)
{
    ahead at = {0, 0};
    for (int i = 0; i < AHEAD; i++) fetch(a, w, &at);
    return at;
}

void TT_SIMD(embed_forward)(const tt_embed_args *a)
{
    ahead next = fetch_first(a, a->w);
    tt_act *to = a->y;

    for (int i = 0; i < a->n; i++)
        for (int64_t k = 0; k < a->k; k++, to += a->dim) {
            int64_t row = row_at(a, a->id + i * a->stride, k);
            fetch(a, a->w, &next);
            for (int64_t d = 0; d < a->dim; d += VW) {
                int take = vtake(d, a->dim);
                vstore_n(to + d, row < 0 ? vzero() : vload_n(a->w + row + d, take), take);
            }
        }
}

void TT_SIMD(embed_backward)(const tt_embed_args *a)
{
    ahead next = fetch_first(a, a->dw);
    const tt_act *from = a->dy;

    for (int i = 0; i < a->n; i++)
        for (int64_t k = 0; k < a->k; k++, from += a->dim) {
            int64_t row = row_at(a, a->id + i * a->stride, k);
            fetch(a, a->dw, &next);
            for (int64_t d = 0; row >= 0 && d < a->dim; d += VW) {
                int take = vtake(d, a->dim);
                vput_n(a->dw + row + d, vload_n(from + d, take), take, true);
            }
        }
}

/* ---- bags ---- */

/* What each of a sample's rows counts. */
static ALWAYS_INLINE float share_of(const tt_embed_args *a, const int32_t *id)
{
    int64_t there = 0;

    for (int64_t k = 0; k < a->k; k++) there += id[k] >= 0;
    return a->mean && there ? 1 / (float)there : 1;
}

void TT_SIMD(bag_forward)(const tt_embed_args *a)
{
    ahead next = fetch_first(a, a->w);

    for (int i = 0; i < a->n; i++) {
        const int32_t *id = a->id + i * a->stride;
        tt_act *to = a->y + i * a->dim;
        vf share = vset1(share_of(a, id));
        for (int64_t k = 0; k < a->k; k++) fetch(a, a->w, &next);
        for (int64_t d = 0; d < a->dim; d += VW) {
            int take = vtake(d, a->dim);
            vf sum = vzero();
            for (int64_t k = 0; k < a->k; k++) {
                int64_t row = row_at(a, id, k);
                if (row >= 0) sum += vload_n(a->w + row + d, take);
            }
            vstore_n(to + d, sum * share, take);
        }
    }
}

void TT_SIMD(bag_backward)(const tt_embed_args *a)
{
    ahead next = fetch_first(a, a->dw);

    for (int i = 0; i < a->n; i++) {
        const int32_t *id = a->id + i * a->stride;
        const tt_act *from = a->dy + i * a->dim;
        vf share = vset1(share_of(a, id));
        for (int64_t k = 0; k < a->k; k++) {
            int64_t row = row_at(a, id, k);
            fetch(a, a->dw, &next);
            for (int64_t d = 0; row >= 0 && d < a->dim; d += VW) {
                int take = vtake(d, a->dim);
                vput_n(a->dw + row + d, vload_n(from + d, take) * share, take, true);
            }
        }
    }
}
