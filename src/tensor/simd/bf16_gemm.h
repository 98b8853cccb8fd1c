/* bf16_gemm: products of matrices in bf16, summed in float32: c(i, j) = or += sum over p of a(i, p)
 * * b(p, j). Private to the bf16_*.c files and recur.c.
 *
 * Rows of a lie anywhere, their numbers side by side. b is packed in the order in which an
 * instruction takes it: panels of WIDTH columns, each of rows in groups of PAIR, where the numbers
 * of a group lie side by side: [columns / WIDTH][rows / PAIR][WIDTH][PAIR]. Rows are filled up with
 * zeros to whole DEPTHs, the columns of the last panel to whole COLUMNs.
 *
 * There are three ways, each a compilation of bf16_gemm.c:
 *   TT_TILES  AMX: tiles of 16 rows of a by 32, and of 32 rows of b by 16
 *   TT_DOT    AVX-512 BF16: vdpbf16ps, which multiplies and adds pairs
 *   else      blocks of a and b are widened to float32, which every CPU multiplies */
#ifndef TT_SIMD_BF16_GEMM_H
#define TT_SIMD_BF16_GEMM_H

#include "tensor/simd/conv.h"
#include "tensor/simd/nhwc.h"

#if defined(TT_TILES)
enum { PAIR = 2, DEPTH = 32, COLUMN = 16, WIDTH = 32 };
#elif defined(TT_DOT)
enum { PAIR = 2, DEPTH = 2, COLUMN = 16, WIDTH = 64 };
#else
enum { PAIR = 1, DEPTH = 1, COLUMN = VW, WIDTH = PANEL };
#endif

static inline int64_t whole(int64_t n, int64_t of)
{
    return (n + of - 1) / of * of;
}
static inline int64_t deep(int64_t k) /* rows of a packed b, numbers of a row of a */
{
    return whole(k, DEPTH);
}
static inline int64_t packed_size(int64_t k, int64_t n)
{
    return deep(k) * whole(n, COLUMN);
}

/* Packs b(p, j) = x[p * row + j * column], k rows of n. One of the steps should be 1. */
void TT_PROD(gemm_pack)(const tt_bf16 *x, int64_t row, int64_t column, int64_t k, int64_t n,
                        tt_bf16 *to);
/* The same of weights, (n, c, taps): row p is channel p % c at tap p / c. Turned, (c, n, taps), and
 * the taps in reverse. */
void TT_PROD(gemm_pack_weights)(const float *w, bool turned, int64_t c, int64_t taps, int64_t n,
                                tt_bf16 *to);

/* Rows of a, as the product takes them: of deep(k) numbers, of which those from k on are 0. */
typedef struct rows {
    int m;
    int64_t k;
    const tt_bf16 *a;
    int64_t lda;
    const float *wide; /* widened: (m, k) */
} rows;
int64_t
    TT_PROD(gemm_chunk)(int64_t k); /* of a long row, so much is taken at a time: whole DEPTHs */
int TT_PROD(gemm_block)(int64_t k); /* rows of k that are best taken together */
size_t TT_PROD(gemm_scratch)(int m, int64_t k); /* bytes, for rows of that many      */
rows TT_PROD(gemm_rows)(int m, int64_t k, const tt_bf16 *a, int64_t lda, void *scratch);

/* By one panel: its first n columns. b points to the first of its rows that takes part, and `wide`
 * is how many columns it is packed with: the panel's own, rounded up. */
void TT_PROD(gemm_panel)(const rows *r, const tt_bf16 *b, int n, int wide, float *c, int64_t ldc,
                         bool add);

/* By the whole of a packed b of `high` rows and n columns, from row `first` on: m rows of k.
 * `first` is a multiple of DEPTH. */
typedef struct gemm {
    int m;
    int64_t n, k;
    const tt_bf16 *a;
    int64_t lda;
    const tt_bf16 *b;
    int64_t high, first;
    float *c;
    int64_t ldc;
    bool add;
    void *scratch; /* gemm_scratch of gemm_block rows, or of m if they are fewer */
} gemm;
void TT_PROD(gemm)(const gemm *g);

/* To be called when a kernel is done with products: tiles are set up by the first and stay so. */
void TT_PROD(gemm_release)(void);

/* ---- turning ---- */

/* Two rows, w apart in a square: swaps the blocks of w that lie across the diagonal. */
static ALWAYS_INLINE void swap_blocks(vf r[VW], int w)
{
    vi low, high;

    for (int i = 0; i < VW; i++) {
        low[i] = i & w ? VW + i - w : i;
        high[i] = i & w ? VW + i : i + w;
    }
    UNROLL(16) for (int i = 0; i < VW; i++)
    {
        if (i & w) continue;
        vf x = r[i], y = r[i + w];
        r[i] = __builtin_shuffle(x, y, low);
        r[i + w] = __builtin_shuffle(x, y, high);
    }
}

static ALWAYS_INLINE void turn_square(vf r[VW])
{
    if (VW > 8) swap_blocks(r, 8);
    if (VW > 4) swap_blocks(r, 4);
    swap_blocks(r, 2);
    swap_blocks(r, 1);
}

/* Numbers that are bf16 already: there is nothing to round. */
static inline void vcut_n(tt_bf16 *p, vf x, int n)
{
#if defined(TT_512)
    __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)x, 16));
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), half);
#else
    vstore_n(p, x, n);
#endif
}

/* Rows i and i + 1 of VW columns, which are bf16 already: side by side. */
static ALWAYS_INLINE vf vpair(vf low, vf high)
{
    return (vf)((vu32)low >> 16 | ((vu32)high & 0xffff0000));
}

/* to(j, i) = from(i, j) of m rows of n; each row of `to` is filled up with zeros to `fill` numbers.
 * Where `fill` is of pairs, pairs are turned: a square is twice as long. */
static inline void turn(const tt_bf16 *from, int64_t from_step, int m, int64_t n, tt_bf16 *to,
                        int64_t to_step, int64_t fill)
{
    for (int64_t i = 0; i < fill; i += VW * PAIR)
        for (int64_t j = 0; j < n; j += VW) {
            vf r[VW];
            int take = vtake(j, n), put = vtake(i / PAIR, fill / PAIR);
            for (int q = 0; q < VW; q++) {
                const int64_t row = i + q * PAIR;
                const tt_bf16 *at = from + row * from_step + j;
                r[q] = row < m ? vload_n(at, take) : vzero();
                if (PAIR == 2)
                    r[q] = vpair(r[q], row + 1 < m ? vload_n(at + from_step, take) : vzero());
            }
            turn_square(r);
            for (int q = 0; q < take; q++) {
                tt_bf16 *at = to + (j + q) * to_step + i;
                if (PAIR == 1)
                    vcut_n(at, r[q], put);
                else if (put == VW)
                    memcpy(at, &r[q], sizeof r[q]);
                else
                    memcpy(at, &r[q], (size_t)put * sizeof(float));
            }
        }
}

#endif
