/* From one layout to another. Every such change is a number of transpositions of matrices,
 * differing in their strides; there is one transposition, by squares of VW x VW in registers. */
#include "tensor/simd/table.h"

/* Two rows, w apart in a square: swaps the blocks of w that lie across the diagonal. */
static ALWAYS_INLINE void swap_two(vf *a, vf *b, int w)
{
    vf x = *a, y = *b;
    vi low, high;

    for (int i = 0; i < VW; i++) {
        low[i] = i & w ? VW + i - w : i;
        high[i] = i & w ? VW + i : i + w;
    }
    *a = __builtin_shuffle(x, y, low);
    *b = __builtin_shuffle(x, y, high);
}

static ALWAYS_INLINE void swap_blocks(vf r[VW], int w)
{
    UNROLL(16) for (int i = 0; i < VW; i++) if (!(i & w)) swap_two(&r[i], &r[i + w], w);
}

/* to[j][i] = from[i][j] of a square. */
static ALWAYS_INLINE void square(const tt_act *from, int64_t from_step, tt_act *to, int64_t to_step,
                                 bool add)
{
    vf r[VW];

    UNROLL(16) for (int i = 0; i < VW; i++) r[i] = vload(from + i * from_step);
    if (VW > 8) swap_blocks(r, 8);
    if (VW > 4) swap_blocks(r, 4);
    swap_blocks(r, 2);
    swap_blocks(r, 1);
    UNROLL(16) for (int i = 0; i < VW; i++) vput_n(to + i * to_step, r[i], VW, add);
}

/* to[j][i] = from[i][j] for rows x columns of `from`; each row of `to` is filled up with zeros to
 * `fill` >= rows elements. */
static ALWAYS_INLINE void transpose(int64_t rows, int64_t columns, int64_t fill, const tt_act *from,
                                    int64_t from_step, tt_act *to, int64_t to_step, bool add)
{
    int64_t i = 0;

    for (; i + VW <= rows; i += VW) {
        int64_t j = 0;
        for (; j + VW <= columns; j += VW)
            square(from + i * from_step + j, from_step, to + j * to_step + i, to_step, add);
        for (; j < columns; j++)
            for (int k = 0; k < VW; k++)
                act_put(to + j * to_step + i + k, act_get(from[(i + k) * from_step + j]), add);
    }
    for (int64_t j = 0; i < fill && j < columns; j++) {
        for (int64_t k = i; k < rows; k++)
            act_put(to + j * to_step + k, act_get(from[k * from_step + j]), add);
        for (int64_t k = rows; !add && k < fill; k++) to[j * to_step + k] = act_of(0);
    }
}

/* Samples of PLAIN or NHWC into slices of LANES, or back. A sample is `runs` matrices of `columns`:
 * PLAIN is one with all elements in it; NHWC has one per pixel, whose columns are channels, hw
 * apart in LANES. Pixels go in eights, and in them channels by vectors: what is read and written
 * stays in the cache. */
static ALWAYS_INLINE void lanes(int n, int64_t per, int64_t runs, int64_t columns, bool into,
                                const tt_act *x, tt_act *y, bool add)
{
    int64_t most = runs > 1 ? VW : columns;

    for (int first = 0; first < n; first += VW) {
        int valid = n - first < VW ? n - first : VW;
        const tt_act *sx = x + (int64_t)first * per;
        tt_act *sy = y + (int64_t)first * per;
        for (int64_t p0 = 0; p0 < runs; p0 += 8)
            for (int64_t j = 0; j < columns; j += most)
                for (int64_t p = p0; p < runs && p < p0 + 8; p++) {
                    int64_t near = p * columns + j, lane = (j * runs + p) * VW;
                    int64_t width = columns - j < most ? columns - j : most;
                    if (into)
                        transpose(valid, width, VW, sx + near, per, sy + lane, runs * VW, add);
                    else
                        transpose(width, valid, width, sx + lane, runs * VW, sy + near, per, add);
                }
    }
}

static void copy(int64_t n, const tt_act *x, tt_act *y, bool add)
{
    if (add)
        TT_SIMD(add)(n, y, x, y);
    else
        memcpy(y, x, (size_t)n * sizeof *y);
}

static ALWAYS_INLINE void reorder(int n, int64_t c, int64_t hw, tt_layout from, const tt_act *x,
                                  tt_layout to, tt_act *y, bool add)
{
    int64_t per = c * hw;
    tt_layout other = from == TT_LANES ? to : from;

    if (from == TT_LANES || to == TT_LANES) {
        if (other == TT_PLAIN)
            lanes(n, per, 1, per, to == TT_LANES, x, y, add);
        else
            lanes(n, per, hw, c, to == TT_LANES, x, y, add);
        return;
    }
    for (int i = 0; i < n; i++) {
        if (from == TT_PLAIN)
            transpose(c, hw, c, x + i * per, hw, y + i * per, c, add);
        else
            transpose(hw, c, hw, x + i * per, c, y + i * per, hw, add);
    }
}

void TT_SIMD(reorder)(int n, int64_t c, int64_t hw, tt_layout from, const tt_act *x, tt_layout to,
                      tt_act *y, bool add)
{
    int64_t slices = (n + VW - 1) / VW;
    bool lanes_too = from == TT_LANES || to == TT_LANES;

    if (from == to)
        copy((from == TT_LANES ? slices * VW : n) * c * hw, x, y, add);
    else if (!lanes_too && (c == 1 || hw == 1))
        copy(n * c * hw, x, y, add);
    else if (add)
        reorder(n, c, hw, from, x, to, y, true);
    else
        reorder(n, c, hw, from, x, to, y, false);
}
