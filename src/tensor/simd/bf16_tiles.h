/* bf16_tiles: what bf16_gemm.c needs of AMX: five wrappers around its instructions.
 *
 * With TT_TILES_EMULATED the same five are plain C, so that the very same kernel can be tested
 * where there are no tiles: the tests have a table of it, against ref, on every case of
 * tests/cases.h and on random shapes. The wrappers themselves are tested by trapping their
 * instructions (tests/tensor_tiles_test.c). What neither shows is whether the CPU's tiles do as the
 * manual says: kernels.c tries one product in a child process before it offers them. */
#ifndef TT_SIMD_BF16_TILES_H
#define TT_SIMD_BF16_TILES_H

#include <stdint.h>
#include <string.h>

/* Tiles 0 .. 3 are of c: low and high rows, left and right columns. 4 and 5 are low and high rows
 * of a, 6 and 7 left and right columns of b. */
enum { TILE_ROWS = 16, TILE_BYTES = 64, TILE_COUNT = 8 };

typedef struct tile_shape { /* as LDTILECFG takes it */
    uint8_t palette, start;
    uint8_t reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} tile_shape;

static inline tile_shape tile_shape_of(int low, int high)
{
    tile_shape s = {.palette = 1};

    for (int i = 0; i < TILE_COUNT; i++) {
        int lines = i == 6 || i == 7 ? TILE_ROWS : i == 5 || i == 2 || i == 3 ? high : low;
        if (lines <= 0) continue; /* not there */
        s.rows[i] = (uint8_t)lines;
        s.bytes[i] = TILE_BYTES;
    }
    return s;
}

#ifdef TT_TILES_EMULATED

static __thread struct {
    tile_shape shape;
    union {
        uint16_t half[TILE_ROWS][2 * TILE_ROWS];
        float number[TILE_ROWS][TILE_ROWS];
    } tile[TILE_COUNT];
} emulated;

static inline void tile_config(int low, int high)
{
    memset(&emulated, 0, sizeof emulated);
    emulated.shape = tile_shape_of(low, high);
}
static inline void tile_release(void)
{
    memset(&emulated, 0xff, sizeof emulated);
}
static inline void tile_zero(int t)
{
    memset(&emulated.tile[t], 0, sizeof emulated.tile[t]);
}
static inline void tile_load(int t, const void *from, int64_t step)
{
    tile_zero(t);
    for (int i = 0; i < emulated.shape.rows[t]; i++)
        memcpy(emulated.tile[t].half[i], (const char *)from + i * step, emulated.shape.bytes[t]);
}
static inline void tile_store(int t, void *to, int64_t step)
{
    for (int i = 0; i < emulated.shape.rows[t]; i++)
        memcpy((char *)to + i * step, emulated.tile[t].number[i], emulated.shape.bytes[t]);
}
static inline float tile_flushed(float x)
{
    return x > -0x1p-126f && x < 0x1p-126f ? 0 * x : x;
}
/* As the manual has it: the sums of even and of odd rows of b by themselves, then both, to c; each
 * term by a fused multiply and add that takes and makes no denormal numbers. */
static inline void tile_dot(int c, int a, int b)
{
    for (int i = 0; i < emulated.shape.rows[c]; i++)
        for (int j = 0; j < TILE_ROWS; j++) {
            float sum[2] = {0, 0};
            for (int p = 0; p < emulated.shape.bytes[a] / 2; p++) {
                tt_bf16 x = {emulated.tile[a].half[i][p]},
                        y = {emulated.tile[b].half[p / 2][2 * j + p % 2]};
                float term = tile_flushed(tt_bf16_get(x)) * tile_flushed(tt_bf16_get(y));
                sum[p % 2] = tile_flushed(sum[p % 2] + term);
            }
            float *to = &emulated.tile[c].number[i][j];
            *to = tile_flushed(tile_flushed(*to) + tile_flushed(sum[0] + sum[1]));
        }
}

#else
#include <immintrin.h>

/* gcc 12 tells the compiler of 8 of the 64 bytes that loading a configuration reads, and of none
 * that loading a tile does: hence the barriers, behind a load too, so that nothing is written there
 * before. */
static inline void tile_barrier(const void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}
static inline void tile_config(int low, int high)
{
    tile_shape s = tile_shape_of(low, high);

    tile_barrier(&s);
    _tile_loadconfig(&s);
}
static inline void tile_release(void)
{
    _tile_release();
}

/* The number of a tile is a part of the instruction. */
#define EACH_TILE(t, does)                                                                         \
    switch (t) {                                                                                   \
    case 0:                                                                                        \
        does(0);                                                                                   \
        break;                                                                                     \
    case 1:                                                                                        \
        does(1);                                                                                   \
        break;                                                                                     \
    case 2:                                                                                        \
        does(2);                                                                                   \
        break;                                                                                     \
    case 3:                                                                                        \
        does(3);                                                                                   \
        break;                                                                                     \
    case 4:                                                                                        \
        does(4);                                                                                   \
        break;                                                                                     \
    case 5:                                                                                        \
        does(5);                                                                                   \
        break;                                                                                     \
    case 6:                                                                                        \
        does(6);                                                                                   \
        break;                                                                                     \
    default:                                                                                       \
        does(7);                                                                                   \
    }
static inline __attribute__((always_inline)) void tile_zero(int t)
{
    EACH_TILE(t, _tile_zero)
}
static inline __attribute__((always_inline)) void tile_load(int t, const void *from, int64_t step)
{
    tile_barrier(from);
#define LOAD(n) _tile_loadd(n, from, step)
    EACH_TILE(t, LOAD)
#undef LOAD
    tile_barrier(from);
}
static inline __attribute__((always_inline)) void tile_store(int t, void *to, int64_t step)
{
#define STORE(n) _tile_stored(n, to, step)
    EACH_TILE(t, STORE)
#undef STORE
}
/* The four that there are. */
static inline __attribute__((always_inline)) void tile_dot(int c, int a, int b)
{
    if (a == 4 && b == 6) _tile_dpbf16ps(0, 4, 6);
    if (a == 4 && b == 7) _tile_dpbf16ps(1, 4, 7);
    if (a == 5 && b == 6) _tile_dpbf16ps(2, 5, 6);
    if (a == 5 && b == 7) _tile_dpbf16ps(3, 5, 7);
    (void)c;
}
#endif

#endif
