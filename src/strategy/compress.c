/* The bytes of a codec, little endian and at any address, are run after run of up to 1024 values:
 *
 *   bf16   u16 each
 *   fp16   float step, a power of two;    u16 each: half precision, in steps
 *   int8   float step;                    i8 each, in steps
 *   1bit   float above, float below;      u32 words: value i is bit i / words of word i % words, so
 *                                         that neighbours are packed side by side, without shuffles
 *   topk   u32 count; u32 index and float, by rising index, as often as there is room
 *
 * In a run with a value that is not finite, or nearly so, all leading floats are NaN and the rest
 * is zero; all of it decodes to NaN.
 *
 * The loops stand as always-inlined bodies, of which isa.h makes a set for each instruction set.
 * Every set gives the same bits: multiply and add are never fused, sums have as many lanes
 * everywhere, and rounding is done by arithmetic that all CPUs have. */
#include "strategy/compress.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "strategy/isa.h"
#include "strategy/lowrank.h"

#pragma GCC optimize("O3", "fp-contract=off", "no-trapping-math")

enum {
    RUN = 1024,
    MAGNITUDE = 0x7fffffff, /* of a float's bits: as integers these are in the order of |x| */
    INFINITE = 0x7f800000,  /* as much or more: not finite */
    TOO_LARGE = 0x7f7f8000, /* as much or more may be rounded to infinity: 3.396e38 */
    BLOCK = 64,             /* values that are skipped at once if none is large */
};

/* What lies in the bytes: at any address. */
typedef uint16_t wire_u16 __attribute__((aligned(1), may_alias));
typedef uint32_t wire_u32 __attribute__((aligned(1), may_alias));
typedef float wire_f32 __attribute__((aligned(1), may_alias));

INLINE int32_t bits_of(float x)
{
    int32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}
INLINE float float_of(int32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

INLINE int32_t largest(const float *v, int n)
{
    int32_t top = 0;

    for (int i = 0; i < n; i++) {
        int32_t b = bits_of(v[i]) & MAGNITUDE;
        top = b > top ? b : top;
    }
    return top;
}

/* v = x + residual, which may be v or NULL; returns the bits of the largest |v|. */
INLINE int32_t load_body(const float *x, const float *residual, int n, float *v)
{
    if (residual) {
#pragma GCC ivdep
        for (int i = 0; i < n; i++) v[i] = x[i] + residual[i];
    } else {
        memcpy(v, x, sizeof *v * (size_t)n);
    }
    return largest(v, n);
}

/* ---- rounding ---- */
/* `top` is the bits of the largest |v|, `left` becomes what the bytes do not say. */

INLINE void bf16_encode_body(float *restrict v, int n, int32_t top, uint8_t *restrict wire,
                             float *restrict left)
{
    wire_u16 *to = (wire_u16 *)wire;

    (void)top;
    for (int i = 0; i < n; i++) {
        uint32_t u = (uint32_t)bits_of(v[i]);
        bool nan = (int32_t)(u & MAGNITUDE) > INFINITE;
        uint32_t half = nan ? u | 0x400000 : u + 0x7fff + (u >> 16 & 1); /* ties to even */
        bool finite = (half & INFINITE) != INFINITE;
        to[i] = (uint16_t)(half >> 16);
        left[i] = finite ? v[i] - float_of((int32_t)(half & 0xffff0000)) : 0;
    }
}

INLINE void bf16_decode_body(const uint8_t *restrict wire, int n, float *restrict out)
{
    const wire_u16 *from = (const wire_u16 *)wire;

    for (int i = 0; i < n; i++) out[i] = float_of((int32_t)((uint32_t)from[i] << 16));
}

/* To and from half precision, |x| < 65520. Below 2^-14 halves are multiples of 2^-24: adding a
 * number whose last bit is worth as much rounds to them. */
INLINE uint32_t half_of(float x)
{
    int32_t u = bits_of(x), a = u & MAGNITUDE;
    int32_t small = bits_of(float_of(a) + 0.5f) - bits_of(0.5f);
    int32_t normal = (a - (112 << 23) + 0xfff + (a >> 13 & 1)) >> 13;

    return (uint32_t)(a < 113 << 23 ? small : normal) | ((uint32_t)u >> 16 & 0x8000);
}
INLINE float float_of_half(uint32_t h)
{
    int32_t a = (int32_t)(h & 0x7fff) << 13;
    float small = float_of(a + (113 << 23)) - 0x1p-14f;

    a = a < 1 << 23 ? bits_of(small) : a + (112 << 23);
    return float_of((int32_t)((uint32_t)a | (h & 0x8000) << 16));
}

/* The factor brings the largest into [2^14, 2^15). It is 2^126 at most, to be a float itself: even
 * the smallest float then becomes a half. */
INLINE void fp16_encode_body(float *restrict v, int n, int32_t top, uint8_t *restrict wire,
                             float *restrict left)
{
    int32_t exponent = 268 - (top >> 23), up = exponent > 253 ? 253 : exponent;
    float factor = float_of(up << 23), step = float_of((254 - up) << 23);
    wire_u16 *to = (wire_u16 *)(wire + sizeof step);

    memcpy(wire, &step, sizeof step);
    for (int i = 0; i < n; i++) {
        uint32_t h = half_of(v[i] * factor);
        to[i] = (uint16_t)h;
        left[i] = v[i] - float_of_half(h) * step;
    }
}

INLINE void fp16_decode_body(const uint8_t *restrict wire, int n, float *restrict out)
{
    float step = *(const wire_f32 *)wire;
    const wire_u16 *from = (const wire_u16 *)(wire + sizeof step);

    for (int i = 0; i < n; i++) out[i] = float_of_half(from[i]) * step;
}

/* The step is no denormal, so that its inverse is a float. Adding 1.5 * 2^23 rounds to an integer,
 * which then is the lowest bits. */
INLINE void int8_encode_body(float *restrict v, int n, int32_t top, uint8_t *restrict wire,
                             float *restrict left)
{
    const float round = 0x1.8p23f;
    float wanted = float_of(top) / 127, step = wanted < FLT_MIN ? FLT_MIN : wanted;
    float inverse = 1 / step;
    uint8_t *to = wire + sizeof step;

    memcpy(wire, &step, sizeof step);
    for (int i = 0; i < n; i++) {
        float t = v[i] * inverse + round;
        to[i] = (uint8_t)(bits_of(t) - bits_of(round));
        left[i] = v[i] - (t - round) * step;
    }
}

INLINE void int8_decode_body(const uint8_t *restrict wire, int n, float *restrict out)
{
    float step = *(const wire_f32 *)wire;
    const int8_t *from = (const int8_t *)(wire + sizeof step);

    for (int i = 0; i < n; i++) out[i] = (float)from[i] * step;
}

/* Means of the magnitudes of those without and with a sign. `size` is n or more, the rest zero. */
INLINE void means(const float *v, int n, int size, float *above, float *below)
{
    enum { WIDTH = 8 };
    double up[WIDTH] = {0}, down[WIDTH] = {0};
    int signs = 0;

    for (int i = 0; i < size; i += WIDTH)
        for (int k = 0; k < WIDTH; k++) {
            int32_t b = bits_of(v[i + k]), sign = b >> 31;
            up[k] += (double)float_of(b & ~sign);
            down[k] += (double)float_of(b & sign & MAGNITUDE);
        }
    for (int half = WIDTH / 2; half; half /= 2)
        for (int k = 0; k < half; k++) {
            up[k] += up[k + half];
            down[k] += down[k + half];
        }
    for (int i = 0; i < n; i++) signs -= bits_of(v[i]) >> 31;
    *above = signs < n ? (float)(up[0] / (n - signs)) : 0;
    *below = signs > 0 ? (float)(down[0] / signs) : 0;
}

INLINE void pack_signs(const float *v, int words, uint32_t *restrict to)
{
    for (int w = 0; w < words; w++) to[w] = 0;
    for (int bit = 0; bit < 32; bit++)
        for (int w = 0; w < words; w++)
            to[w] = to[w] >> 1 | ((uint32_t)bits_of(v[bit * words + w]) & 0x80000000u);
}

INLINE void bit_encode_body(float *restrict v, int n, int32_t top, uint8_t *restrict wire,
                            float *restrict left)
{
    int words = (n + 31) / 32;
    uint32_t packed[RUN / 32];
    float mean[2];

    (void)top;
    for (int i = n; i < 32 * words; i++) v[i] = 0;
    means(v, n, 32 * words, &mean[0], &mean[1]);
    for (int i = 0; i < n; i++) left[i] = v[i] - (bits_of(v[i]) < 0 ? -mean[1] : mean[0]);
    if (n == RUN)
        pack_signs(v, RUN / 32, packed); /* the same with a length the compiler knows */
    else
        pack_signs(v, words, packed);
    memcpy(wire, mean, sizeof mean);
    memcpy(wire + sizeof mean, packed, sizeof *packed * (size_t)words);
}

INLINE void unpack_signs(const uint32_t *from, int words, int n, int32_t above, int32_t below,
                         float *restrict out)
{
    for (int bit = 0; bit * words < n; bit++) {
        int end = n - bit * words < words ? n - bit * words : words;
        for (int w = 0; w < end; w++) {
            int32_t sign = (int32_t)(from[w] << (31 - bit)) >> 31;
            out[bit * words + w] = float_of((below & sign) | (above & ~sign));
        }
    }
}

INLINE void bit_decode_body(const uint8_t *restrict wire, int n, float *restrict out)
{
    int words = (n + 31) / 32;
    uint32_t packed[RUN / 32];
    float mean[2];

    memcpy(mean, wire, sizeof mean);
    memcpy(packed, wire + sizeof mean, sizeof *packed * (size_t)words);
    if (n == RUN)
        unpack_signs(packed, RUN / 32, RUN, bits_of(mean[0]), bits_of(-mean[1]), out);
    else
        unpack_signs(packed, words, n, bits_of(mean[0]), bits_of(-mean[1]), out);
}

/* ---- the largest: |v| as an integer is found digit by digit, from the highest ---- */

enum { DIGITS = 3, TABLES = 4 };
static const int digit_at[DIGITS + 1] = {31, 21, 10, 0}; /* digit d: bits at[d + 1] .. at[d] */

/* Counts by the first digit. Neighbours are often alike, and an addition to a counter waits for the
 * one before: so they have counters of their own. */
static void count_first(const float *v, int n, uint32_t *table)
{
    for (int i = 0; i < n; i++) {
        uint32_t digit = (uint32_t)(bits_of(v[i]) & MAGNITUDE) >> digit_at[1];
        table[digit * TABLES + i % TABLES]++;
    }
}

/* Counts by the digit of those whose digits above are `above`; the others behind the table, because
 * a branch would often be guessed wrong. */
INLINE void count_body(const float *v, int64_t n, int digit, int32_t above, uint32_t *table)
{
    int high = digit_at[digit], low = digit_at[digit + 1];
    int32_t mask = (1 << (high - low)) - 1;

    for (int64_t at = 0; at < n; at += BLOCK) {
        int size = n - at < BLOCK ? (int)(n - at) : BLOCK;
        int any = size < BLOCK;
        if (!any)
            for (int i = 0; i < BLOCK; i++)
                any |= (bits_of(v[at + i]) & MAGNITUDE) >> high == above;
        if (!any) continue;
        for (int i = 0; i < size; i++) {
            int32_t b = bits_of(v[at + i]) & MAGNITUDE;
            int32_t alike = -(b >> high == above);
            table[(b >> low & mask & alike) | ((mask + 1 + i % 8) & ~alike)]++;
        }
    }
}

/* Writes those above `least` as pairs, and of those equal to it the first `ties`; the residual
 * (NULL: none) forgets them. Returns how many. */
INLINE int64_t pick_body(const float *v, int64_t n, int32_t least, int64_t ties, int64_t room,
                         float *residual, uint8_t *pairs)
{
    int64_t count = 0;

    for (int64_t at = 0; at < n; at += BLOCK) {
        int size = n - at < BLOCK ? (int)(n - at) : BLOCK, picked = 0, pick[BLOCK];
        int32_t top = size == BLOCK ? largest(v + at, BLOCK) : MAGNITUDE;
        if (top < least || (top == least && !ties)) continue;
        for (int i = 0; i < size; i++) {
            int32_t b = bits_of(v[at + i]) & MAGNITUDE;
            bool tie = (b == least) & (ties > 0);
            ties -= tie;
            pick[picked] = i;
            picked += (b > least) | tie;
        }
        TT_ASSERT(picked <= room - count);
        for (int i = 0; i < picked; i++, count++) {
            int64_t from = at + pick[i];
            ((wire_u32 *)pairs)[2 * count] = (uint32_t)from;
            ((wire_f32 *)pairs)[2 * count + 1] = v[from];
            if (residual) residual[from] = 0;
        }
    }
    return count;
}

/* ---- one set of loops for each instruction set ---- */

#define ENCODE_PARAMS (float *v, int n, int32_t top, uint8_t *wire, float *left)
#define ENCODE_ARGS   (v, n, top, wire, left)
#define DECODE_PARAMS (const uint8_t *wire, int n, float *out)
#define DECODE_ARGS   (wire, n, out)

#define LOOPS(X, isa, target)                                                                      \
    X(isa, target, int32_t, load, (const float *x, const float *residual, int n, float *v),        \
      (x, residual, n, v))                                                                         \
    X(isa, target, void, bf16_encode, ENCODE_PARAMS, ENCODE_ARGS)                                  \
    X(isa, target, void, bf16_decode, DECODE_PARAMS, DECODE_ARGS)                                  \
    X(isa, target, void, fp16_encode, ENCODE_PARAMS, ENCODE_ARGS)                                  \
    X(isa, target, void, fp16_decode, DECODE_PARAMS, DECODE_ARGS)                                  \
    X(isa, target, void, int8_encode, ENCODE_PARAMS, ENCODE_ARGS)                                  \
    X(isa, target, void, int8_decode, DECODE_PARAMS, DECODE_ARGS)                                  \
    X(isa, target, void, bit_encode, ENCODE_PARAMS, ENCODE_ARGS)                                   \
    X(isa, target, void, bit_decode, DECODE_PARAMS, DECODE_ARGS)                                   \
    X(isa, target, void, count,                                                                    \
      (const float *v, int64_t n, int digit, int32_t above, uint32_t *table),                      \
      (v, n, digit, above, table))                                                                 \
    X(isa, target, int64_t, pick,                                                                  \
      (const float *v, int64_t n, int32_t least, int64_t ties, int64_t room, float *residual,      \
       uint8_t *pairs),                                                                            \
      (v, n, least, ties, room, residual, pairs))

ISA_SETS

/* Also for lowrank.c, so that codec_use holds for both. */
static int fixed = -1; /* an isa, by codec_use; -1: the best */

static bool cpu_has(isa i)
{
#ifdef __x86_64__
    if (i == ISA_AVX2) return __builtin_cpu_supports("avx2");
    if (i == ISA_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return i == ISA_ANY;
}

isa isa_now(void)
{
    if (fixed >= 0) return (isa)fixed;
    return cpu_has(ISA_AVX512) ? ISA_AVX512 : cpu_has(ISA_AVX2) ? ISA_AVX2 : ISA_ANY;
}

bool codec_use(const char *name)
{
    static const char *const isas[] = {
        [ISA_ANY] = "any", [ISA_AVX2] = "avx2", [ISA_AVX512] = "avx512"};

    if (!name) fixed = -1;
    for (int i = 0; name && i < TT_COUNT(isas); i++)
        if (!strcmp(name, isas[i]) && cpu_has((isa)i)) {
            fixed = i;
            return true;
        }
    return !name;
}

/* ---- names ---- */

static const struct name {
    const char *name;
    codec_kind kind;
    const char *number; /* what stands after the colon; NULL: nothing does */
} names[] = {
    {"none", CODEC_NONE, NULL},
    {"bf16", CODEC_BF16, NULL},
    {"fp16", CODEC_FP16, NULL},
    {"int8", CODEC_INT8, NULL},
    {"topk", CODEC_TOPK, "the share of values that are sent, above 0 and at most 1: topk:0.01"},
    {"1bit", CODEC_1BIT, NULL},
    {"powersgd", CODEC_LOWRANK, "a rank from 1 to 256: powersgd:4"},
};

static tt_err find_name(const tt_node *at, const char *word, int *out)
{
    const char *known[TT_COUNT(names)], *near;

    if (at)
        return tt_node_pick(at, "compression", word, names, sizeof *names, TT_COUNT(names), out);
    for (int i = 0; i < TT_COUNT(names); i++) {
        known[i] = names[i].name;
        *out = i;
        if (!strcmp(word, known[i])) return TT_OK;
    }
    if ((near = tt_nearest(word, known, TT_COUNT(known))))
        return tt_fail(TT_EINVAL, "there is no compression '%s': did you mean '%s'?", word, near);
    return tt_fail(
        TT_EINVAL,
        "there is no compression '%s': use none, bf16, fp16, int8, topk, 1bit or powersgd", word);
}

tt_err codec_parse(const tt_node *at, const char *text, codec *out)
{
    const char *number = strchr(text, ':');
    size_t size = number ? (size_t)(number - text) : strlen(text);
    char word[64], message[256];
    codec c = {0};
    int64_t rank = 0;
    int i = 0;
    bool ok = false;
    tt_err err;

    snprintf(word, sizeof word, "%.*s", size < sizeof word ? (int)size : TT_COUNT(word) - 1, text);
    if ((err = find_name(at, word, &i))) return err;
    c.kind = names[i].kind;
    if (c.kind == CODEC_TOPK)
        ok = number && tt_parse_number(number + 1, &c.share) && c.share > 0 && c.share <= 1;
    else if (c.kind == CODEC_LOWRANK)
        ok = number && tt_parse_int(number + 1, &rank) && rank >= 1 && rank <= LOWRANK_MOST;
    else
        ok = !number;
    if (!ok) {
        snprintf(message, sizeof message, "compression '%.60s': %s takes %s", text, word,
                 names[i].number ? names[i].number : "no number");
        return at ? tt_node_fail(at, "%s", message) : tt_fail(TT_EINVAL, "%s", message);
    }
    c.rank = (int)rank;
    *out = c;
    return TT_OK;
}

/* ---- runs ---- */

static size_t head_bytes(codec_kind kind)
{
    return sizeof(float) * (kind == CODEC_1BIT ? 2 : kind == CODEC_FP16 || kind == CODEC_INT8);
}

static size_t run_bytes(codec_kind kind, int64_t n)
{
    size_t each = kind == CODEC_NONE ? 4 : kind == CODEC_INT8 ? 1 : 2;
    size_t body = kind == CODEC_1BIT ? (size_t)(n + 31) / 32 * 4 : each * (size_t)n;

    return n ? head_bytes(kind) + body : 0;
}

static int64_t topk_count(const codec *c, int64_t n)
{
    int64_t count = (int64_t)(c->share * (double)n + 0.5);

    TT_ASSERT(n >= 0 && n <= UINT32_MAX && c->kind == CODEC_TOPK);
    if (count < 1) count = 1;
    return count < n ? count : n;
}

static size_t pair_bytes(int64_t count)
{
    return sizeof(uint32_t) + (size_t)count * (sizeof(uint32_t) + sizeof(float));
}

size_t codec_bytes(const codec *c, int64_t n)
{
    TT_ASSERT(n >= 0 && c->kind != CODEC_LOWRANK);
    if (c->kind == CODEC_TOPK) return pair_bytes(topk_count(c, n));
    return (size_t)(n / RUN) * run_bytes(c->kind, RUN) + run_bytes(c->kind, n % RUN);
}

enum { TABLE = 1 << 12 }; /* counters: TABLES of the first digit, or one of another */

size_t codec_scratch(const codec *c, int64_t n)
{
    return c->kind == CODEC_TOPK && n ? TABLE * sizeof(uint32_t) : 0;
}

static void encode_runs(codec_kind kind, int64_t n, const float *x, float *residual, uint8_t *wire)
{
    const loops *l = best_loops();
    void(*encode) ENCODE_PARAMS = kind == CODEC_BF16   ? l->bf16_encode
                                  : kind == CODEC_FP16 ? l->fp16_encode
                                  : kind == CODEC_INT8 ? l->int8_encode
                                                       : l->bit_encode;
    float v[RUN] __attribute__((aligned(64))), unused[RUN] __attribute__((aligned(64)));
    const float nan[2] = {float_of(0x7fc00000), float_of(0x7fc00000)};
    size_t head = head_bytes(kind);

    for (int64_t at = 0; at < n; at += RUN) {
        int size = n - at < RUN ? (int)(n - at) : RUN;
        float *kept = residual ? residual + at : NULL, *left = kept ? kept : unused;
        int32_t top = l->load(x + at, kept, size, v);
        if (head && top >= TOO_LARGE) {
            memcpy(wire, nan, head);
            memset(wire + head, 0, run_bytes(kind, size) - head);
            memset(left, 0, sizeof *left * (size_t)size);
        } else {
            encode(v, size, top, wire, left);
        }
        wire += run_bytes(kind, size);
    }
}

/* Could we have written these leading floats? */
static bool head_is_ours(codec_kind kind, const uint8_t *wire)
{
    int32_t head[2] = {0};

    memcpy(head, wire, head_bytes(kind));
    for (int i = 0; i < TT_COUNT(head); i++) {
        if ((head[i] & MAGNITUDE) > INFINITE) continue;
        if (head[i] < 0 || head[i] == INFINITE) return false;
    }
    if ((head[0] & MAGNITUDE) > INFINITE || kind == CODEC_1BIT || kind == CODEC_BF16) return true;
    return head[0] >= 1 << 23 && (kind == CODEC_INT8 || (head[0] & 0x7fffff) == 0);
}

static tt_err decode_runs(codec_kind kind, int64_t n, const uint8_t *wire, float *out)
{
    const loops *l = best_loops();
    void(*decode) DECODE_PARAMS = kind == CODEC_BF16   ? l->bf16_decode
                                  : kind == CODEC_FP16 ? l->fp16_decode
                                  : kind == CODEC_INT8 ? l->int8_decode
                                                       : l->bit_decode;

    for (int64_t at = 0; at < n; at += RUN) {
        int size = n - at < RUN ? (int)(n - at) : RUN;
        if (!head_is_ours(kind, wire))
            return tt_fail(TT_EFORMAT,
                           "a compressed gradient came damaged: the scale of values %lld to %lld",
                           (long long)at, (long long)at + size - 1);
        decode(wire, size, out + at);
        wire += run_bytes(kind, size);
    }
    return TT_OK;
}

/* ---- pairs ---- */

/* Counts down from the largest digit; *wanted becomes its place among those with that digit. */
static int32_t find_digit(const uint32_t *table, int digits, int tables, int64_t *wanted)
{
    int32_t digit = digits;

    for (;;) {
        int64_t count = 0;
        digit--;
        TT_ASSERT(digit >= 0);
        for (int i = 0; i < tables; i++) count += table[digit * tables + i];
        if (*wanted <= count) return digit;
        *wanted -= count;
    }
}

static void topk_encode(const codec *c, int64_t n, const float *x, float *residual, uint8_t *wire,
                        uint32_t *table)
{
    const loops *l = best_loops();
    int64_t room = topk_count(c, n), wanted = room, count = 0;
    const float *v = residual ? residual : x;
    int32_t least = 0;

    memset(wire, 0, pair_bytes(room));
    if (n == 0) return;
    memset(table, 0, sizeof *table * TABLE);
    for (int64_t at = 0; at < n; at += RUN) {
        int size = n - at < RUN ? (int)(n - at) : RUN;
        if (residual) l->load(x + at, residual + at, size, residual + at);
        count_first(v + at, size, table);
    }
    least = find_digit(table, 1 << (digit_at[0] - digit_at[1]), TABLES, &wanted);
    for (int d = 1; d < DIGITS; d++) {
        int width = digit_at[d] - digit_at[d + 1];
        memset(table, 0, sizeof *table * TABLE);
        l->count(v, n, d, least, table);
        least = least << width | find_digit(table, 1 << width, 1, &wanted);
    }
    /* Zeros are not sent, even if there is room. */
    count = l->pick(v, n, least, least ? wanted : 0, room, residual, wire + sizeof(uint32_t));
    *(wire_u32 *)wire = (uint32_t)count;
    if (residual && least >= INFINITE) /* there may be more of them than could be sent */
        for (int64_t i = 0; i < n; i++)
            if ((bits_of(residual[i]) & MAGNITUDE) >= INFINITE) residual[i] = 0;
}

static tt_err bad_pairs(int64_t at, uint32_t index, int64_t n)
{
    return tt_fail(TT_EFORMAT,
                   "a compressed gradient came damaged: pair %lld names value %u of %lld",
                   (long long)at, index, (long long)n);
}

static tt_err decode_pairs(int64_t n, int64_t room, const uint8_t *wire, float *out)
{
    const wire_u32 *pair = (const wire_u32 *)(wire + sizeof(uint32_t));
    int64_t count = *(const wire_u32 *)wire, last = -1;

    if (count > room)
        return tt_fail(
            TT_EFORMAT,
            "a compressed gradient came damaged: %lld pairs where there is room for %lld",
            (long long)count, (long long)room);
    memset(out, 0, sizeof *out * (size_t)n);
    for (int64_t i = 0; i < count; i++) {
        uint32_t index = pair[2 * i];
        if (index <= last || index >= n) return bad_pairs(i, index, n);
        out[index] = float_of((int32_t)pair[2 * i + 1]);
        last = index;
    }
    for (int64_t i = count; i < room; i++)
        if (pair[2 * i] || pair[2 * i + 1]) return bad_pairs(i, pair[2 * i], n);
    return TT_OK;
}

static int64_t sparse_room(const codec *c, int64_t n, int parts)
{
    int64_t count = topk_count(c, n);

    TT_ASSERT(parts >= 1);
    return count > n / parts ? n : count * parts;
}

size_t codec_sparse_bytes(const codec *c, int64_t n, int parts)
{
    return pair_bytes(sparse_room(c, n, parts));
}

void codec_sparse_encode(const codec *c, int64_t n, int parts, const float *x, void *wire)
{
    int64_t room = sparse_room(c, n, parts);
    uint8_t *pairs = (uint8_t *)wire + sizeof(uint32_t);
    int64_t count = best_loops()->pick(x, n, 0, 0, room, NULL, pairs);

    *(wire_u32 *)wire = (uint32_t)count;
    memset(pairs + 8 * count, 0, 8 * (size_t)(room - count));
}

/* ---- any codec ---- */

static tt_err check_bytes(size_t got, size_t wanted, int64_t n)
{
    if (got == wanted) return TT_OK;
    return tt_fail(TT_EFORMAT,
                   "a compressed gradient of %lld values came in %zu bytes and not in %zu: do all "
                   "ranks run the same job?",
                   (long long)n, got, wanted);
}

void codec_encode(const codec *c, int64_t n, const float *x, float *residual, void *wire,
                  void *scratch)
{
    TT_ASSERT(n >= 0 && c->kind != CODEC_LOWRANK);
    if (c->kind == CODEC_TOPK) {
        topk_encode(c, n, x, residual, wire, scratch);
    } else if (c->kind != CODEC_NONE) {
        encode_runs(c->kind, n, x, residual, wire);
    } else if (!residual) {
        if (n) memcpy(wire, x, sizeof *x * (size_t)n);
    } else {
        for (int64_t i = 0; i < n; i++) ((wire_f32 *)wire)[i] = x[i] + residual[i];
        if (n) memset(residual, 0, sizeof *residual * (size_t)n);
    }
}

tt_err codec_decode(const codec *c, int64_t n, const void *wire, size_t bytes, float *out)
{
    tt_err err = check_bytes(bytes, codec_bytes(c, n), n);

    if (err || n == 0) return err;
    if (c->kind == CODEC_TOPK) return decode_pairs(n, topk_count(c, n), wire, out);
    if (c->kind != CODEC_NONE) return decode_runs(c->kind, n, wire, out);
    memcpy(out, wire, bytes);
    return TT_OK;
}

tt_err codec_sparse_decode(const codec *c, int64_t n, int parts, const void *wire, size_t bytes,
                           float *out)
{
    tt_err err = check_bytes(bytes, codec_sparse_bytes(c, n, parts), n);

    return err || n == 0 ? err : decode_pairs(n, sparse_room(c, n, parts), wire, out);
}
