/* Rows of tables, gathered and added to. */
#include "tensor/simd/table.h"

enum { AHEAD = 8 }; /* rows that are fetched while others are copied */

static ALWAYS_INLINE int32_t id_at(const tt_embed_args *a, int64_t i)
{
    return a->id[i / a->k * a->stride + i % a->k];
}

static ALWAYS_INLINE void fetch(const tt_embed_args *a, const float *w, int64_t i)
{
    int32_t id = i < a->n * a->k ? id_at(a, i) : -1;
    for (int64_t d = 0; id >= 0 && d < a->dim && d < 64; d += 16)
        __builtin_prefetch(w + id * a->dim + d);
}

void TT_SIMD(embed_forward)(const tt_embed_args *a)
{
    for (int64_t i = 0; i < a->n * a->k; i++) {
        int32_t id = id_at(a, i);
        const float *from = a->w + id * a->dim;
        float *to = a->y + i * a->dim;
        fetch(a, a->w, i + AHEAD);
        for (int64_t d = 0; d < a->dim; d += VW) {
            int take = vtake(d, a->dim);
            vstore_n(to + d, id < 0 ? vzero() : vload_n(from + d, take), take);
        }
    }
}

void TT_SIMD(embed_backward)(const tt_embed_args *a)
{
    for (int64_t i = 0; i < a->n * a->k; i++) {
        int32_t id = id_at(a, i);
        float *to = a->dw + id * a->dim;
        const float *from = a->dy + i * a->dim;
        fetch(a, a->dw, i + AHEAD);
        for (int64_t d = 0; id >= 0 && d < a->dim; d += VW) {
            int take = vtake(d, a->dim);
            vput_n(to + d, vload_n(from + d, take), take, true);
        }
    }
}
