/* bf16_gemm: packing, and the three ways of multiplying; see bf16_gemm.h.
 *
 * The terms of a sum are added in the order of the rows of b, in blocks that depend on k alone: so
 * a number does not depend on which rows or columns it is computed with. */
#include "tensor/simd/bf16_gemm.h"
#include "tensor/tables.h"

#ifdef TT_TILES
#include "tensor/simd/bf16_tiles.h"
#endif

/* ---- packing ---- */

/* Rows p and p + 1 of VW columns, in their places; `low` is of the first. Activations are rounded
 * already, weights are not. */
static ALWAYS_INLINE void put_pair(tt_bf16 *to, vf low, vf high, bool rounded)
{
    vf both = rounded ? vpair(low, high) : (vf)(vhalves(low) | vhalves(high) << 16);

    if (PAIR == 2)
        memcpy(to, &both, sizeof both);
    else if (rounded)
        vcut_n(to, low, VW);
    else
        vstore(to, low);
}

/* VW groups of PAIR numbers that lie side by side, each in an element; of `take` numbers. */
static ALWAYS_INLINE vf acts_along(const tt_bf16 *x, int take)
{
    vf r = vzero();

    if (PAIR == 1) return vload_n(x, take);
    if (take == VW * PAIR)
        memcpy(&r, x, sizeof r);
    else
        memcpy(&r, x, (size_t)take * sizeof *x);
    return r;
}
static ALWAYS_INLINE vf weights_along(const float *x, int take)
{
    if (PAIR == 1) return vload_n(x, take);
    vf low = vload_n(x, take < VW ? take : VW),
       high = take > VW ? vload_n(x + VW, take - VW) : vzero();
#if defined(TT_512_BF16)
    return (vf)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
#elif defined(TT_512)
    __m512i first = _mm512_castsi256_si512(_mm512_cvtepi32_epi16((__m512i)vhalves(low)));
    return (vf)_mm512_inserti64x4(first, _mm512_cvtepi32_epi16((__m512i)vhalves(high)), 1);
#else
    tt_bf16 both[2 * VW];
    vstore(both, low);
    vstore(both + VW, high);
    return acts_along(both, 2 * VW);
#endif
}

/* Columns in vectors, rows in pairs: of a source whose columns lie side by side (straight), or
 * whose rows do, which is turned by squares: of pairs, because those stay together. */
#define PACK(name, type, rounded)                                                                  \
    static void name##_straight(const type *x, int64_t row, int64_t k, int64_t n, tt_bf16 *to)     \
    {                                                                                              \
        for (int64_t j = 0; j < n; j += WIDTH) {                                                   \
            int64_t wide = whole(n - j < WIDTH ? n - j : WIDTH, COLUMN);                           \
            for (int64_t p = 0; p < deep(k); p += PAIR, to += wide * PAIR)                         \
                for (int64_t i = 0; i < wide; i += VW) {                                           \
                    int take = j + i < n ? vtake(j + i, n) : 0;                                    \
                    vf low = p < k ? vload_n(x + p * row + j + i, take) : vzero();                 \
                    vf high =                                                                      \
                        p + 1 < k ? vload_n(x + (p + PAIR - 1) * row + j + i, take) : vzero();     \
                    put_pair(to + i * PAIR, low, high, rounded);                                   \
                }                                                                                  \
        }                                                                                          \
    }                                                                                              \
    static void name##_turned(const type *x, int64_t column, int64_t k, int64_t n, tt_bf16 *to)    \
    {                                                                                              \
        const int most = VW * PAIR;                                                                \
        for (int64_t j = 0; j < n; j += WIDTH) {                                                   \
            int64_t wide = whole(n - j < WIDTH ? n - j : WIDTH, COLUMN);                           \
            for (int64_t p = 0; p < deep(k); p += most)                                            \
                for (int64_t i = 0; i < wide; i += VW) {                                           \
                    vf r[VW];                                                                      \
                    int take = p >= k ? 0 : k - p < most ? (int)(k - p) : most;                    \
                    for (int q = 0; q < VW; q++) {                                                 \
                        const type *at = x + (j + i + q) * column + p;                             \
                        r[q] = j + i + q < n ? name##_along(at, take) : vzero();                   \
                    }                                                                              \
                    turn_square(r);                                                                \
                    for (int q = 0; q < VW && p + q * PAIR < deep(k); q++) {                       \
                        tt_bf16 *at = to + ((p / PAIR + q) * wide + i) * PAIR;                     \
                        if (PAIR == 2)                                                             \
                            memcpy(at, &r[q], sizeof r[q]);                                        \
                        else                                                                       \
                            put_pair(at, r[q], r[q], rounded);                                     \
                    }                                                                              \
                }                                                                                  \
            to += deep(k) * wide;                                                                  \
        }                                                                                          \
    }
PACK(acts, tt_bf16, true)
PACK(weights, float, false)

void TT_PROD(gemm_pack)(const tt_bf16 *x, int64_t row, int64_t column, int64_t k, int64_t n,
                        tt_bf16 *to)
{
    TT_ASSERT(row == 1 || column == 1);
    if (column == 1)
        acts_straight(x, row, k, n, to);
    else
        acts_turned(x, column, k, n, to);
}

/* ---- weights of several taps: row by row, of VW columns ---- */

/* Row p of a panel, from column i on. What is beside it in its pair stays. */
static ALWAYS_INLINE void put_row(tt_bf16 *panel, int64_t p, int64_t wide, int64_t i, vf v)
{
    vu32 pair;
    tt_bf16 *to = panel + (p / PAIR * wide + i) * PAIR;

    if (PAIR == 1) {
        vstore(to, v);
        return;
    }
    memcpy(&pair, to, sizeof pair);
    pair = p % 2 ? (pair & 0xffff) | vhalves(v) << 16 : (pair & 0xffff0000) | vhalves(v);
    memcpy(to, &pair, sizeof pair);
}

/* (n, c, taps): the numbers of a column lie side by side, and are turned by squares. */
static void taps_forward(const float *w, int64_t c, int64_t taps, int64_t columns, int64_t wide,
                         tt_bf16 *to)
{
    const int64_t k = c * taps;

    for (int64_t i = 0; i < columns; i += VW)
        for (int64_t e = 0; e < k; e += VW) {
            vf r[VW];
            int take = vtake(e, k);
            for (int q = 0; q < VW; q++)
                r[q] = i + q < columns ? vload_n(w + (i + q) * k + e, take) : vzero();
            turn_square(r);
            for (int q = 0; q < take; q++)
                put_row(to, (e + q) % taps * c + (e + q) / taps, wide, i, r[q]);
        }
}

/* (c, n, taps), from some column on: those of a row lie `taps` apart. The taps are in reverse. */
static void taps_backward(const float *w, int64_t c, int64_t taps, int64_t n, int64_t columns,
                          int64_t wide, tt_bf16 *to)
{
    for (int64_t i = 0; i < c; i++, w += n * taps)
        for (int64_t j = 0; j < columns; j += VW)
            for (int64_t t = 0; t < taps; t++) {
                vf v = vzero();
                for (int q = 0; q < VW && j + q < columns; q++) v[q] = w[(j + q) * taps + t];
                put_row(to, (taps - 1 - t) * c + i, wide, j, v);
            }
}

void TT_PROD(gemm_pack_weights)(const float *w, bool turned, int64_t c, int64_t taps, int64_t n,
                                tt_bf16 *to)
{
    int64_t k = c * taps;

    if (taps == 1 && turned) {
        weights_straight(w, n, k, n, to);
        return;
    }
    if (taps == 1) {
        weights_turned(w, k, k, n, to);
        return;
    }
    memset(to, 0, (size_t)packed_size(k, n) * sizeof *to);
    for (int64_t j = 0; j < n; j += WIDTH) {
        int64_t columns = n - j < WIDTH ? n - j : WIDTH, wide = whole(columns, COLUMN);
        if (turned)
            taps_backward(w + j * taps, c, taps, n, columns, wide, to);
        else
            taps_forward(w + j * k, c, taps, columns, wide, to);
        to += deep(k) * wide;
    }
}

/* ---- products ---- */

/* Of k terms, those of one of the fewest parts of `most` or less, all alike but for the last; whole
 * DEPTHs. */
static int64_t even_part(int64_t k, int64_t most)
{
    int64_t parts = k > most ? (k + most - 1) / most : 1;
    return whole((k + parts - 1) / parts, DEPTH);
}

#if defined(TT_TILES)
/* TILE_ROWS x TILE_ROWS of c in each of four tiles: two of rows by two of columns. So each load of
 * a tile serves two products, and a sum waits for three others before its next term. Of b, BLOCK
 * rows of a panel stay in the first-level cache, while all rows of a go by: between two uses of a
 * line there pass as much of a as of b, and what c has there, 48 KB in all. The rows of a stay in
 * the second-level cache, of 2 MB, while all panels of b go by. */
enum { BLOCK = 320, BEST_BYTES = 1408 * 1024, BEST_ROWS = 512, LEAST_ROWS = 64, ELEMENT = 2 };

/* Low and high rows that this thread's tiles are set up for; 0: they are not. Setting them up costs
 * as much as a dozen products. */
static __thread int shape;

static void set_up(int low, int high)
{
    int wanted = low << 8 | max_int(high, 0);

    if (shape == wanted) return;
    tile_config(low, high);
    shape = wanted;
}

void TT_PROD(gemm_release)(void)
{
    if (shape) tile_release();
    shape = 0;
}

static void tile_block(const rows *r, int first, int m, int64_t p0, int64_t p1, const tt_bf16 *b,
                       int n, int wide, float *c, int64_t ldc, bool add)
{
    const int low = min_int(m, TILE_ROWS), high = m - low;
    const bool two = n > TILE_ROWS;
    const int64_t lda = r->lda; /* barriers do not reach it here */
    const tt_bf16 *a = r->a + first * lda;
    float edge[TILE_ROWS * TILE_ROWS];

    for (int i = 0; i < 4; i++) {
        int lines = i < 2 ? low : high, columns = i % 2 ? n - TILE_ROWS : min_int(n, TILE_ROWS);
        float *at = c + (i / 2 * TILE_ROWS) * ldc + i % 2 * TILE_ROWS;
        if (lines <= 0 || columns <= 0) continue;
        if (!add) {
            tile_zero(i);
        } else if (columns == TILE_ROWS) {
            tile_load(i, at, ldc * 4);
        } else { /* a tile has all of its columns, c has not */
            for (int q = 0; q < lines; q++)
                memcpy(edge + q * TILE_ROWS, at + q * ldc, (size_t)columns * 4);
            tile_load(i, edge, TILE_ROWS * 4);
        }
    }
    for (int64_t p = p0; p < p1; p += DEPTH) {
        const tt_bf16 *at = b + p * wide;
        tile_load(4, a + p, lda * 2);
        tile_load(6, at, wide * 4);
        tile_dot(0, 4, 6);
        if (two) {
            tile_load(7, at + TILE_ROWS * PAIR, wide * 4);
            tile_dot(1, 4, 7);
        }
        if (high <= 0) continue;
        tile_load(5, a + TILE_ROWS * lda + p, lda * 2);
        tile_dot(2, 5, 6);
        if (two) tile_dot(3, 5, 7);
    }
    for (int i = 0; i < 4; i++) {
        int lines = i < 2 ? low : high, columns = i % 2 ? n - TILE_ROWS : min_int(n, TILE_ROWS);
        float *at = c + (i / 2 * TILE_ROWS) * ldc + i % 2 * TILE_ROWS;
        if (lines <= 0 || columns <= 0) continue;
        if (columns == TILE_ROWS) {
            tile_store(i, at, ldc * 4);
            continue;
        }
        tile_store(i, edge, TILE_ROWS * 4);
        for (int q = 0; q < lines; q++)
            memcpy(at + q * ldc, edge + q * TILE_ROWS, (size_t)columns * 4);
    }
}

void TT_PROD(gemm_panel)(const rows *r, const tt_bf16 *b, int n, int wide, float *c, int64_t ldc,
                         bool add)
{
    const int64_t k = deep(r->k), block = even_part(k, BLOCK);
    int tail = r->m % (2 * TILE_ROWS), whole_rows = r->m - tail;

    if (whole_rows) set_up(TILE_ROWS, TILE_ROWS);
    for (int64_t p = 0; p < k && whole_rows; p += block)
        for (int i = 0; i < whole_rows; i += 2 * TILE_ROWS)
            tile_block(r, i, 2 * TILE_ROWS, p, p + block < k ? p + block : k, b, n, wide,
                       c + i * ldc, ldc, add || p);
    if (!tail) return;
    set_up(min_int(tail, TILE_ROWS), tail - TILE_ROWS);
    tile_block(r, whole_rows, tail, 0, k, b, n, wide, c + whole_rows * ldc, ldc, add);
}

#elif defined(TT_DOT)
enum { BEST_BYTES = 1280 * 1024, BEST_ROWS = 192, LEAST_ROWS = 72, ELEMENT = 2 };

static ALWAYS_INLINE __m512i pair_of(const tt_bf16 *a)
{
    int32_t both;
    memcpy(&both, a, sizeof both);
    return _mm512_set1_epi32(both);
}

#define TILE(m, nv)                                                                                \
    static void tile_##m##x##nv(const tt_bf16 *a, int64_t lda, int64_t k, const tt_bf16 *b,        \
                                int wide, float *c, int64_t ldc, bool add, int last)               \
    {                                                                                              \
        __m512 acc[m][nv];                                                                         \
        EACH(i, m)                                                                                 \
        EACH(j, nv)                                                                                \
        acc[i][j] =                                                                                \
            add ? (__m512)vload_n(c + i * ldc + j * VW, LANES(j, nv, last)) : _mm512_setzero_ps(); \
        for (int64_t p = 0; p < k; p += 2, b += 2 * wide) {                                        \
            __m512i v[nv];                                                                         \
            EACH(j, nv) v[j] = _mm512_loadu_si512(b + j * 2 * VW);                                 \
            EACH(i, m)                                                                             \
            {                                                                                      \
                __m512i x = pair_of(a + i * lda + p);                                              \
                EACH(j, nv)                                                                        \
                acc[i][j] = _mm512_dpbf16_ps(acc[i][j], (__m512bh)x, (__m512bh)v[j]);              \
            }                                                                                      \
        }                                                                                          \
        EACH(i, m)                                                                                 \
        EACH(j, nv) vstore_n(c + i * ldc + j * VW, (vf)acc[i][j], LANES(j, nv, last));             \
    }
TILES
typedef void tile_fn(const tt_bf16 *a, int64_t lda, int64_t k, const tt_bf16 *b, int wide, float *c,
                     int64_t ldc, bool add, int last);
static tile_fn *const tiles[][TILE_M] = TILE_TABLE;

void TT_PROD(gemm_panel)(const rows *r, const tt_bf16 *b, int n, int wide, float *c, int64_t ldc,
                         bool add)
{
    int nv = ceil_div(n, VW), last = n - (nv - 1) * VW;

    for (int i = 0; i < r->m; i += TILE_M)
        tiles[nv - 1][min_int(TILE_M, r->m - i) - 1](r->a + i * r->lda, r->lda, deep(r->k), b, wide,
                                                     c + i * ldc, ldc, add, last);
}

#else
/* Of b, BLOCK rows of a panel at most are widened to the first-level cache; of a, all that is in
 * `rows`, to the second, which is smaller where vectors are. */
enum {
    BLOCK = VW == 16 ? 128 : 384,
    BEST_BYTES = VW == 16 ? 1280 * 1024 : 320 * 1024,
    BEST_ROWS = 192,
    LEAST_ROWS = 72,
    ELEMENT = 4
};

#define TILE(m, nv)                                                                                \
    static void tile_##m##x##nv(const float *a, int64_t lda, int64_t k, const float *b, float *c,  \
                                int64_t ldc, bool add, int last)                                   \
    {                                                                                              \
        vf acc[m][nv];                                                                             \
        EACH(i, m) __builtin_prefetch(c + i * ldc, 1, 3);                                          \
        EACH(i, m) EACH(j, nv) acc[i][j] = vzero();                                                \
        UNROLL(4)                                                                                  \
        for (int64_t p = 0; p < k; p++, b += nv * VW) {                                            \
            vf v[nv];                                                                              \
            EACH(j, nv) v[j] = *(const vf *)(b + j * VW);                                          \
            EACH(i, m)                                                                             \
            {                                                                                      \
                vf x = vset1(a[i * lda + p]);                                                      \
                EACH(j, nv) acc[i][j] += x * v[j];                                                 \
            }                                                                                      \
        }                                                                                          \
        EACH(i, m)                                                                                 \
        EACH(j, nv) vput_n(c + i * ldc + j * VW, acc[i][j], LANES(j, nv, last), add);              \
    }
TILES
typedef void tile_fn(const float *a, int64_t lda, int64_t k, const float *b, float *c, int64_t ldc,
                     bool add, int last);
static tile_fn *const tiles[][TILE_M] = TILE_TABLE;

void TT_PROD(gemm_panel)(const rows *r, const tt_bf16 *b, int n, int wide, float *c, int64_t ldc,
                         bool add)
{
    float block[BLOCK * WIDTH] __attribute__((aligned(64)));
    const int nv = ceil_div(n, VW), last = n - (nv - 1) * VW;
    const int64_t size = even_part(r->k, BLOCK);

    for (int64_t p = 0; p < r->k; p += size) {
        int64_t k = r->k - p < size ? r->k - p : size;
        for (int64_t q = 0; q < k; q++)
            EACH(j, nv) * (vf *)(block + (q * nv + j) * VW) = vload(b + (p + q) * wide + j * VW);
        for (int i = 0; i < r->m; i += TILE_M)
            tiles[nv - 1][min_int(TILE_M, r->m - i) - 1](r->wide + i * r->k + p, r->k, k, block,
                                                         c + i * ldc, ldc, add || p, last);
    }
}
#endif

#if !defined(TT_TILES)
void TT_PROD(gemm_release)(void) {}
#endif

/* In even parts: what a block of rows has of them is to stay in the second-level cache. */
int64_t TT_PROD(gemm_chunk)(int64_t k)
{
    return even_part(k, 1536);
}

int TT_PROD(gemm_block)(int64_t k)
{
    const int step = ELEMENT == 2 ? 32 : TILE_M;
    int64_t fit = BEST_BYTES / (deep(k) * ELEMENT) / step * step;
    return fit > BEST_ROWS ? BEST_ROWS : fit < LEAST_ROWS ? LEAST_ROWS : (int)fit;
}

size_t TT_PROD(gemm_scratch)(int m, int64_t k)
{
    return DEPTH == 1 ? (size_t)m * (size_t)k * sizeof(float) : 0;
}

rows TT_PROD(gemm_rows)(int m, int64_t k, const tt_bf16 *a, int64_t lda, void *scratch)
{
    rows r = {.m = m, .k = k, .a = a, .lda = lda, .wide = scratch};
    float *to = scratch;

    for (int i = 0; i < m && DEPTH == 1; i++, to += k)
        for (int64_t p = 0; p < k; p += VW) {
            int take = vtake(p, k);
            vstore_n(to + p, vload_n(a + i * lda + p, take), take);
        }
    return r;
}

void TT_PROD(gemm)(const gemm *g)
{
    int block = TT_PROD(gemm_block)(g->k);

    for (int i = 0; i < g->m; i += block) {
        rows r = TT_PROD(gemm_rows)(min_int(block, g->m - i), g->k, g->a + i * g->lda, g->lda,
                                    g->scratch);
        for (int64_t j = 0; j < g->n; j += WIDTH) {
            int n = g->n - j < WIDTH ? (int)(g->n - j) : WIDTH, wide = (int)whole(n, COLUMN);
            TT_PROD(gemm_panel)
            (&r, g->b + deep(g->high) * j + g->first * wide, n, wide, g->c + i * g->ldc + j, g->ldc,
             g->add);
        }
    }
}

/* One product of odd sizes, against plain C: does the CPU do as it should? b comes in all ways in
 * which it can be packed, and each time the product is added once more. */
bool TT_PROD(trial)(void)
{
    enum { M = 37, N = 41, K = 70, WAYS = 4 };
    tt_bf16 a[M * 96] = {{0}}, b[K * N], turned[N * K], packed[96 * 48], stored[VW];
    float c[M * N], scratch[M * K], w[K * N], w_turned[N * K];

    for (int i = 0; i < M; i++)
        for (int p = 0; p < K; p++) a[i * 96 + p] = act_of((float)((i * 7 + p * 5) % 17 - 8));
    for (int p = 0; p < K * N; p++) {
        int at = p % N * K + p / N;
        w[p] = w_turned[at] = (float)(p * 3 % 13 - 6);
        b[p] = turned[at] = act_of(w[p]);
    }
    TT_ASSERT(packed_size(K, N) <= TT_COUNT(packed));
    for (int way = 0; way < WAYS; way++) {
        memset(packed, 0xff, sizeof packed);
        if (way == 0) TT_PROD(gemm_pack)(b, N, 1, K, N, packed);
        if (way == 1) TT_PROD(gemm_pack)(turned, 1, K, K, N, packed);
        if (way == 2) TT_PROD(gemm_pack_weights)(w, true, K, 1, N, packed);
        if (way == 3) TT_PROD(gemm_pack_weights)(w_turned, false, K, 1, N, packed);
        TT_PROD(gemm)
        (&(gemm){.m = M,
                 .n = N,
                 .k = K,
                 .a = a,
                 .lda = 96,
                 .b = packed,
                 .high = K,
                 .c = c,
                 .ldc = N,
                 .add = way > 0,
                 .scratch = scratch});
        TT_PROD(gemm_release)();
        for (int i = 0; i < M * N; i++) {
            float sum = 0; /* of small whole numbers: exact in any order */
            for (int p = 0; p < K; p++)
                sum += act_get(a[i / N * 96 + p]) * act_get(b[p * N + i % N]);
            if (c[i] != sum * (float)(way + 1)) return false;
        }
    }
    for (int i = 0; i + VW <= M * N; i += VW) { /* and rounding, which may have an instruction */
        vstore(stored, vload(c + i) * vset1(1.0f / 3));
        for (int q = 0; q < VW; q++)
            if (stored[q].bits != act_of(c[i + q] * (1.0f / 3)).bits) return false;
    }
    return true;
}
