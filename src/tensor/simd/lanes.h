/* lanes: convolution and dense layers in the LANES layout (private to src/tensor/simd/lanes*.c).
 *
 * One vector holds the same element of VW samples, so a weight is always a scalar that is broadcast
 * and no channel count wastes lanes. A "slice" is VW samples; everything but dense layers works
 * slice by slice. All loops come down to tiles: M broadcast scalars times N vectors, M * N sums
 * held in registers. */
#ifndef TT_SIMD_LANES_H
#define TT_SIMD_LANES_H

#include "tensor/simd/conv.h"

/* Most rows of a tile, by what the register file holds. AVX2: 6 x 2 sums, 2 vectors, 1 scalar
 * of 16. */
enum {
    WIDE = VW == 16,
    ROWS_MOST = WIDE ? 12 : 6,   /* convolution: channels x 2 places             */
    PATCH_MOST = WIDE ? 10 : 5,  /* dx behind pooling: channels x 2 places       */
    GRAD_ROWS = WIDE ? 5 : 3,    /* dw: output channels ...                      */
    GRAD_TAPS = 6,               /* ... x weights of each, or as many as fit     */
    RUN_MOST = WIDE ? 28 : 14,   /* dw behind pooling: vectors of weights        */
    DENSE_ROWS = 6,              /* dense: features ...                          */
    DENSE_COLS = WIDE ? 4 : 2,   /* ... x slices (dw: vectors of features)       */
    VB = VW * (int)sizeof(float) /* bytes of a vector                            */
};

/* Only when its loops are unrolled to the end do a tile's sums live in registers. 16-wide code made
 * of AVX2 instructions is for tests; unrolled, it would take minutes to compile. */
#if TT_IS_WIDE
enum { ALL = 1 };
#define LANES_SHUFFLE static __attribute__((noinline))
#else
enum { ALL = 64 };
#define LANES_SHUFFLE static ALWAYS_INLINE
#endif

/* Patches want a shuffle by a variable; without one, gradients are spread out before they are used.
 */
#if defined(TT_256) || defined(TT_512) || TT_IS_WIDE
enum { HAVE_PATCH = 1 };
#else
enum { HAVE_PATCH = 0 };
#endif

typedef uint8_t vb __attribute__((vector_size(VW), aligned(1), may_alias));
#if defined(TT_256) /* gcc 12 would take such vectors apart element by element */
static inline vi pick_load(const uint8_t *p)
{
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
static inline void pick_store(uint8_t *p, vi x) /* 0 .. 255 each */
{
    __m128i y = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)x),
                                 _mm256_extracti128_si256((__m256i)x, 1));

    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(y, y));
}
#elif defined(TT_512)
static inline vi pick_load(const uint8_t *p)
{
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline void pick_store(uint8_t *p, vi x)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)x));
}
#else
static inline vi pick_load(const uint8_t *p)
{
    return __builtin_convertvector(*(const vb *)p, vi);
}
static inline void pick_store(uint8_t *p, vi x)
{
    *(vb *)p = __builtin_convertvector(x, vb);
}
#endif

static inline int64_t slices(int n)
{
    return (n + VW - 1) / VW;
}

static inline float *cut_vectors(cutter *c, int64_t count)
{
    return cut(c, (size_t)count * VB);
}

/* ---- Dense (lanes_dense.c): c features in, o out, h = w = kh = kw = 1 ---- */
bool TT_SIMD(lanes_is_dense)(const tt_conv *c);
size_t TT_SIMD(lanes_dense_scratch)(const tt_conv *c, int n);
void TT_SIMD(lanes_dense_forward)(const tt_conv *c, const tt_conv_args *a);
void TT_SIMD(lanes_dense_backward)(const tt_conv *c, const tt_conv_args *a);

/* Outputs that pooling looks at; all of them without pooling. */
static inline int used_rows(const tt_conv *c)
{
    return c->pool ? (c->poh - 1) * c->psh + c->pkh : c->win.oh;
}
static inline int used_cols(const tt_conv *c)
{
    return c->pool ? (c->pow_ - 1) * c->psw + c->pkw : c->win.ow;
}

/* ---- Convolution: input as the loops see it (lanes.c) ---- */

/* The input of one slice with its padding. If nothing is missing, it is read where it lies. */
typedef struct input {
    int h, w;  /* with padding, as far as the windows reach */
    bool copy; /* false: the tensor itself                  */
} input;
input TT_SIMD(lanes_input)(const tt_conv *c);
/* Copies a slice into `to`, whose padding is zero already. */
void TT_SIMD(lanes_input_copy)(const tt_conv *c, input in, const float *x, float *to);
/* Offsets (floats) of all c * kh * kw weights' inputs from that of the first. */
void TT_SIMD(lanes_taps)(const tt_conv *c, input in, int32_t *off);

/* A row of neighbouring places, m channels of them: y[m][place] = sum over taps of w * x[place +
 * tap]. Taps come as [rows][cols][depth]. Of an input gradient, taps that fall beside the grid are
 * left out. */
typedef struct row_job {
    const float *x;
    ptrdiff_t x_step; /* floats from place to place */
    int count;        /* places                     */
    const int32_t *off;
    int rows, cols, depth;
    const float *w; /* [taps][m], of patches [taps][m][4] */
    /* NULL: all taps count. Else column i does if 0 <= grid_x + place - col_at[i] < grid_w. */
    const int32_t *col_at;
    int grid_w, grid_x;
    float *y;
    ptrdiff_t y_step, y_stride; /* from place to place, from channel to channel */
    const float *bias;          /* (m) or NULL                                  */
    bool add, relu;
} row_job;

/* The taps of a tile: columns [first, last) of every row. */
typedef struct tap_range {
    int first, last;
} tap_range;
static inline tap_range row_taps(const row_job *r, int place, int n)
{
    tap_range t = {0, r->cols};
    const int x = r->grid_x + place;

    if (!r->col_at) return t;
    while (t.first < t.last && r->col_at[t.first] <= x - r->grid_w) t.first++;
    while (t.first < t.last && r->col_at[t.last - 1] >= x + n) t.last--;
    return t;
}
void TT_SIMD(lanes_row)(int m, const row_job *r);

/* ---- Input gradient (lanes_dx.c) ---- */

/* A transposed convolution: the gradients lie on a grid (pooled outputs if patches are used, else
 * outputs), `sy` and `sx` input pixels apart. Pixels that lie alike between grid points, "a class",
 * have the same taps. A patch is the weights of up to 4 places of a pooling window; each lane picks
 * its own. */
typedef struct dx_plan {
    bool patch;
    int rows, cols;       /* of a window of the grid: 1 x 1, or the pooling window   */
    int sy, sx;           /* input pixels from grid point to grid point              */
    int grid_h, grid_w;   /* grid points                                             */
    int reach_y, reach_x; /* the furthest tap                                        */
    int top, left;        /* zeros before the grid, in scratch                       */
    int h, w;             /* the grid with its zeros                                 */
    int taps;             /* of all classes and output channels                      */
    int most;             /* channels of a tile                                      */
} dx_plan;
dx_plan TT_SIMD(lanes_dx_plan)(const tt_conv *c);
size_t TT_SIMD(lanes_dx_packed)(const tt_conv *c); /* floats */
void TT_SIMD(lanes_dx_pack)(const tt_conv *c, const float *w, float *packed);
size_t TT_SIMD(lanes_dx_scratch)(const tt_conv *c, const dx_plan *p);
/* dy is masked; packed is what lanes_dx_pack made. With c->turned bias and relu come behind. */
void TT_SIMD(lanes_dx)(const tt_conv *c, const tt_conv_args *a, const dx_plan *p,
                       const float *packed, void *scratch);

/* Spreads `rows` rows from `first` on of the gradient of some channels of a slice over outputs
 * [channel][.][w][VW] of `plane` pixels each; `to` is the first output. Outputs that pooling never
 * looks at are not written. */
void TT_SIMD(lanes_spread)(const tt_conv *c, int channels, int first, int rows, const float *dy,
                           const uint8_t *pick, ptrdiff_t plane, int w, float *to);

/* ---- Weight gradient (lanes_dw.c) ---- */
typedef struct dw_plan {
    bool sparse; /* by the one place of each pooling window that won, sample by sample */
    int rows;    /* output channels at once: as many as the sums have room for          */
    int taps;    /* dense: weights of a channel at once                                */
    int pixel;   /* sparse: floats from pixel to pixel, c or more                      */
    int run;     /* ... and vectors of a row of weights, (kw, c)                       */
} dw_plan;
dw_plan TT_SIMD(lanes_dw_plan)(const tt_conv *c);
size_t TT_SIMD(lanes_dw_scratch)(const tt_conv *c, const dw_plan *p);
/* Over all slices. dy is masked. */
void TT_SIMD(lanes_dw)(const tt_conv *c, const tt_conv_args *a, const dw_plan *p, void *scratch);

/* ---- VW x VW transposed ---- */
#if defined(TT_512) || TT_IS_WIDE
#define LANES4(a, b, c, d)                                                                         \
    a, b, c, d, a + 4, b + 4, c + 4, d + 4, a + 8, b + 8, c + 8, d + 8, a + 12, b + 12, c + 12,    \
        d + 12
#define QUAD(x) (x) * 4, (x)*4 + 1, (x)*4 + 2, (x)*4 + 3
#elif defined(TT_256)
#define LANES4(a, b, c, d) a, b, c, d, a + 4, b + 4, c + 4, d + 4
#define QUAD(x)            (x) * 4, (x)*4 + 1, (x)*4 + 2, (x)*4 + 3
#else
#define LANES4(a, b, c, d) a, b, c, d
#endif

/* r[i][j] and r[j][i] change places. Shuffles within quarters first, then of quarters, as the
 * instruction sets have them. */
__attribute__((unused)) LANES_SHUFFLE void transpose(vf r[VW])
{
    vf t[VW];
    const vi lo = {LANES4(0, VW, 1, VW + 1)}, hi = {LANES4(2, VW + 2, 3, VW + 3)};
    const vi lo2 = {LANES4(0, 1, VW, VW + 1)}, hi2 = {LANES4(2, 3, VW + 2, VW + 3)};

#pragma GCC unroll ALL
    for (int i = 0; i < VW / 2; i++) {
        t[2 * i] = __builtin_shuffle(r[2 * i], r[2 * i + 1], lo);
        t[2 * i + 1] = __builtin_shuffle(r[2 * i], r[2 * i + 1], hi);
    }
#pragma GCC unroll ALL
    for (int i = 0; i < VW / 4; i++) {
        r[4 * i] = __builtin_shuffle(t[4 * i], t[4 * i + 2], lo2);
        r[4 * i + 1] = __builtin_shuffle(t[4 * i], t[4 * i + 2], hi2);
        r[4 * i + 2] = __builtin_shuffle(t[4 * i + 1], t[4 * i + 3], lo2);
        r[4 * i + 3] = __builtin_shuffle(t[4 * i + 1], t[4 * i + 3], hi2);
    }
#if defined(TT_512) || TT_IS_WIDE
    const vi even = {QUAD(0), QUAD(2), QUAD(4), QUAD(6)},
             odd = {QUAD(1), QUAD(3), QUAD(5), QUAD(7)};

#pragma GCC unroll ALL
    for (int i = 0; i < 4; i++) {
        t[i] = __builtin_shuffle(r[i], r[i + 4], even);
        t[i + 4] = __builtin_shuffle(r[i], r[i + 4], odd);
        t[i + 8] = __builtin_shuffle(r[i + 8], r[i + 12], even);
        t[i + 12] = __builtin_shuffle(r[i + 8], r[i + 12], odd);
    }
#pragma GCC unroll ALL
    for (int i = 0; i < 4; i++) {
        r[i] = __builtin_shuffle(t[i], t[i + 8], even);
        r[i + 8] = __builtin_shuffle(t[i], t[i + 8], odd);
        r[i + 4] = __builtin_shuffle(t[i + 4], t[i + 12], even);
        r[i + 12] = __builtin_shuffle(t[i + 4], t[i + 12], odd);
    }
#elif defined(TT_256)
    const vi low = {QUAD(0), QUAD(2)}, high = {QUAD(1), QUAD(3)};

#pragma GCC unroll ALL
    for (int i = 0; i < 4; i++) {
        t[i] = r[i];
        r[i] = __builtin_shuffle(t[i], r[i + 4], low);
        r[i + 4] = __builtin_shuffle(t[i], r[i + 4], high);
    }
#endif
}

#endif
