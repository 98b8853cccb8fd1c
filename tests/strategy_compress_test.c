/* Codecs against slow references in double, at every size around a run and with every kind of
 * number; damaged bytes; the instruction sets against each other. */
#include "strategy/compress.h"

#include <float.h>

#include "strategy_help.h"

static const char *const codecs[] = {"none", "bf16",      "fp16",     "int8",
                                     "1bit", "topk:0.01", "topk:0.3", "topk:1"};
static const int64_t sizes[] = {0, 1, 2, 31, 33, 63, 64, 65, 1023, 1024, 1025, 2048, 70001};

static codec codec_of(const char *text)
{
    codec c;
    EXPECT_OK(codec_parse(NULL, text, &c));
    return c;
}

/* Encodes at an odd address and decodes; `wire` (may be NULL) gets the bytes. */
static void send(const codec *c, int64_t n, const float *x, float *residual, float *out,
                 uint8_t **wire)
{
    int before = taken_count;
    size_t bytes = codec_bytes(c, n);
    uint8_t *at = block(bytes + 1);

    codec_encode(c, n, x, residual, at + 1, block(codec_scratch(c, n)));
    EXPECT_OK(codec_decode(c, n, at + 1, bytes, out));
    if (wire) memcpy(*wire = block(bytes), at + 1, bytes);
    while (!wire && taken_count > before) free(taken[--taken_count]);
}

/* The largest magnitude in the run of 1024 that value i lies in. */
static double run_top(const float *x, int64_t n, int64_t i)
{
    double top = 0;
    int64_t first = i / 1024 * 1024, end = first + 1024 < n ? first + 1024 : n;

    for (int64_t k = first; k < end; k++) top = fmax(top, fabs(x[k]));
    return top;
}

/* How far a decoded value may be off. */
static double bound(codec_kind kind, double top, double x)
{
    switch (kind) {
    case CODEC_BF16:
        return fmax(fabs(x) * 0x1p-8, 0x1p-134);
    case CODEC_FP16:
        return fmax(fabs(x) * 0x1p-11, fmax(top * 0x1p-39, 0x1p-151));
    case CODEC_INT8:
        return 0.5001 * fmax(top / 127, FLT_MIN);
    case CODEC_1BIT:
        return top;
    default:
        return 0;
    }
}

static void expect_bound(const char *name, const codec *c, int64_t n, const float *x,
                         const float *out)
{
    double top = 0;

    for (int64_t i = 0; i < n; i++) {
        if (i % 1024 == 0) top = run_top(x, n, i);
        if (c->kind == CODEC_TOPK && out[i] == 0) continue; /* not sent */
        if (!(fabs((double)out[i] - x[i]) <= bound(c->kind, top, x[i])))
            FAIL("%s: value %lld of %lld is %.9g, was %.9g", name, (long long)i, (long long)n,
                 out[i], x[i]);
    }
}

TT_TEST(compress, every_codec_keeps_its_error_bound_at_every_size_and_scale)
{
    static const float scales[] = {1, 1e-3f, 1e30f, 1e-30f, 1e-38f, 1e-41f, 3e37f};

    for (int k = 0; k < TT_COUNT(codecs); k++)
        for (int s = 0; s < TT_COUNT(sizes); s++)
            for (int f = 0; f < TT_COUNT(scales); f++) {
                int64_t n = sizes[s];
                codec c = codec_of(codecs[k]);
                float *x = normals(7, n, scales[f]), *out = floats(n), *left = zeros(n);
                if (n == 70001 && f > 1) n = 1025; /* the rest is all runs */
                send(&c, n, x, left, out, NULL);
                expect_bound(codecs[k], &c, n, x, out);
                for (int64_t i = 0; i < n; i++) {
                    float want = x[i] - out[i];
                    EXPECT(same_bits(&want, &left[i], sizeof want) || want == left[i]);
                }
                clean();
            }
}

TT_TEST(compress, bytes_are_as_many_as_promised)
{
    static const struct {
        const char *name;
        int64_t n;
        size_t bytes;
    } cases[] = {
        {"none", 0, 0},         {"none", 5, 20},         {"bf16", 0, 0},
        {"bf16", 1025, 2050},   {"fp16", 0, 0},          {"fp16", 1, 6},
        {"fp16", 1024, 2052},   {"fp16", 1025, 2058},    {"int8", 0, 0},
        {"int8", 1, 5},         {"int8", 2048, 2056},    {"int8", 2049, 2061},
        {"1bit", 0, 0},         {"1bit", 1, 12},         {"1bit", 32, 12},
        {"1bit", 33, 16},       {"1bit", 1024, 136},     {"1bit", 1025, 148},
        {"topk:0.01", 0, 4},    {"topk:0.01", 1, 12},    {"topk:0.01", 100, 12},
        {"topk:0.01", 250, 28}, {"topk:0.01", 1024, 84}, {"topk:1", 7, 60},
    };

    for (int i = 0; i < TT_COUNT(cases); i++) {
        codec c = codec_of(cases[i].name);
        EXPECT_INT(cases[i].bytes, codec_bytes(&c, cases[i].n));
    }
}

/* A rank of another build must read them. */
TT_TEST(compress, bytes_are_these_and_no_others)
{
    static const float x[] = {127, -64, 0, 1};
    static const struct {
        const char *name;
        uint8_t bytes[28];
    } cases[] = {
        {"bf16", {0xfe, 0x42, 0x80, 0xc2, 0, 0, 0x80, 0x3f}},
        {"fp16", {0, 0, 0x80, 0x3b, 0xf0, 0x77, 0, 0xf4, 0, 0, 0, 0x5c}},
        {"int8", {0, 0, 0x80, 0x3f, 127, 0xc0, 0, 1}},
        {"1bit", {0xab, 0xaa, 0x2a, 0x42, 0, 0, 0x80, 0x42, 2, 0, 0, 0}},
        {"topk:0.5", {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0x42, 1, 0, 0, 0, 0, 0, 0x80, 0xc2}},
        {"topk:0.25", {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0x42}},
    };
    float out[4];

    for (int i = 0; i < TT_COUNT(cases); i++) {
        codec c = codec_of(cases[i].name);
        uint8_t *wire;
        send(&c, 4, x, NULL, out, &wire);
        if (memcmp(wire, cases[i].bytes, codec_bytes(&c, 4))) FAIL("bytes of %s", cases[i].name);
        clean();
    }
}

TT_TEST(compress, what_is_lost_comes_back_in_later_steps)
{
    enum { N = 3000, STEPS = 50 };
    float out[N];

    for (int k = 0; k < TT_COUNT(codecs); k++) {
        codec c = codec_of(codecs[k]);
        float *left = zeros(N);
        double sum[N] = {0}, sent[N] = {0};
        for (int step = 0; step < STEPS; step++) {
            float *x = normals((uint64_t)step, N, 1);
            send(&c, N, x, left, out, NULL);
            for (int i = 0; i < N; i++) {
                sum[i] += x[i];
                sent[i] += out[i];
            }
        }
        for (int i = 0; i < N; i++) EXPECT_NEAR(sum[i], sent[i] + left[i], 1e-4);
        clean();
    }
}

TT_TEST(compress, zero_stays_zero)
{
    for (int k = 0; k < TT_COUNT(codecs); k++) {
        codec c = codec_of(codecs[k]);
        float *x = zeros(1500), *left = zeros(1500), *out = floats(1500);
        for (int i = 0; i < 1500; i += 3) x[i] = -0.0f;
        send(&c, 1500, x, left, out, NULL);
        for (int i = 0; i < 1500; i++) EXPECT(out[i] == 0 && left[i] == 0);
        send(&c, 1500, x, NULL, out, NULL);
        if (c.kind == CODEC_BF16 || c.kind == CODEC_FP16 || c.kind == CODEC_NONE)
            for (int i = 0; i < 1500; i++) EXPECT(!signbit(out[i]) == (i % 3 != 0));
        clean();
    }
}

TT_TEST(compress, the_extremes_of_floats_survive)
{
    static const float values[] = {0x1.fefffep127f, -0x1.fefffep127f, FLT_MIN,
                                   0x1p-149f,       -0x1p-149f,       0x1p-140f};

    for (int k = 0; k < TT_COUNT(codecs); k++)
        for (int i = 0; i < TT_COUNT(values); i++) {
            codec c = codec_of(codecs[k]);
            float x[2] = {values[i], -values[i]}, out[2], left[2] = {0};
            send(&c, 2, x, left, out, NULL);
            for (int j = 0; j < 2; j++) {
                EXPECT(isfinite(out[j]) && isfinite(left[j]));
                EXPECT_NEAR(x[j], (double)out[j] + left[j], 0);
                if (c.kind == CODEC_FP16) EXPECT_NEAR(x[j], out[j], fabsf(x[j]) * 0x1p-11);
            }
        }
}

TT_TEST(compress, what_rounds_to_infinity_is_seen_and_does_not_stay)
{
    static const float values[] = {FLT_MAX, -FLT_MAX, 0x1.ffp127f};
    static const char *const rounding[] = {"bf16", "fp16", "int8", "1bit"};

    for (int k = 0; k < TT_COUNT(rounding); k++)
        for (int i = 0; i < TT_COUNT(values); i++) {
            codec c = codec_of(rounding[k]);
            float out, left = 0;
            send(&c, 1, &values[i], &left, &out, NULL);
            EXPECT(!isfinite(out) && left == 0);
        }
}

TT_TEST(compress, what_is_not_finite_is_seen_and_does_not_stay)
{
    static const int64_t n = 5000, places[] = {0, 1023, 1024, 4999};
    const float bad[] = {NAN, INFINITY, -INFINITY};

    for (int k = 0; k < TT_COUNT(codecs); k++)
        for (int p = 0; p < TT_COUNT(places); p++)
            for (int b = 0; b < TT_COUNT(bad); b++) {
                codec c = codec_of(codecs[k]);
                float *x = normals(3, n, 1), *left = normals(4, n, 0.1f), *out = floats(n);
                bool seen = false;
                x[places[p]] = bad[b];
                send(&c, n, x, left, out, NULL);
                for (int64_t i = 0; i < n; i++) {
                    EXPECT(isfinite(left[i]));
                    seen |= !isfinite(out[i]);
                }
                EXPECT(seen);
                x[places[p]] = 1;
                send(&c, n, x, left, out, NULL);
                for (int64_t i = 0; i < n; i++) EXPECT(isfinite(out[i]) && isfinite(left[i]));
                clean();
            }
}

TT_TEST(compress, more_infinities_than_topk_can_send_do_not_stay_either)
{
    codec c = codec_of("topk:0.01");
    float x[1000], left[1000] = {0}, out[1000];
    int seen = 0;

    for (int i = 0; i < 1000; i++) x[i] = i % 2 ? NAN : INFINITY;
    send(&c, 1000, x, left, out, NULL);
    for (int i = 0; i < 1000; i++) {
        EXPECT(left[i] == 0);
        seen += !isfinite(out[i]);
    }
    EXPECT_INT(10, seen);
}

/* ---- rounding, number by number ---- */

static uint16_t bf16_of(float x)
{
    codec c = codec_of("bf16");
    uint16_t bits;
    codec_encode(&c, 1, &x, NULL, &bits, NULL);
    return bits;
}

TT_TEST(compress, bf16_rounds_to_nearest_even)
{
    EXPECT_INT(0x3f80, bf16_of(1));
    EXPECT_INT(0x3f80, bf16_of(1 + 0x1p-8f));     /* a tie: down to even */
    EXPECT_INT(0x3f82, bf16_of(1 + 3 * 0x1p-8f)); /* a tie: up to even   */
    EXPECT_INT(0x3f81, bf16_of(nextafterf(1 + 0x1p-8f, 2)));
    EXPECT_INT(0xbf81, bf16_of(-nextafterf(1 + 0x1p-8f, 2)));
    EXPECT_INT(0x4000, bf16_of(nextafterf(2, 1)));
    EXPECT_INT(0x8000, bf16_of(-0.0f));
    EXPECT_INT(0x0001, bf16_of(0x1p-133f));
    EXPECT_INT(0x7f80, bf16_of(INFINITY));
    EXPECT_INT(0xff80, bf16_of(-INFINITY));
    EXPECT((bf16_of(NAN) & 0x7fff) > 0x7f80);
}

TT_TEST(compress, fp16_reads_every_half)
{
    enum { HALVES = 31 << 10 }; /* finite ones of one sign */
    codec c = codec_of("fp16");
    float *out = floats(2 * HALVES);
    size_t bytes = codec_bytes(&c, 2 * HALVES);
    uint8_t *wire = block(bytes), *to = wire;
    uint16_t h;
    float step = 4;

    for (int i = 0; i < 2 * HALVES; i++) {
        if (i % 1024 == 0) {
            memcpy(to, &step, sizeof step);
            to += sizeof step;
        }
        h = (uint16_t)(i < HALVES ? i : (i - HALVES) | 0x8000);
        memcpy(to, &h, sizeof h);
        to += sizeof h;
    }
    EXPECT_OK(codec_decode(&c, 2 * HALVES, wire, bytes, out));
    for (int i = 0; i < 2 * HALVES; i++) {
        float want = 4 * tt_half((uint16_t)(i < HALVES ? i : (i - HALVES) | 0x8000));
        EXPECT(same_bits(&want, &out[i], sizeof want));
    }
    clean();
}

/* Between every two neighbours: the middle goes to the even one, what is beside it to the nearer.
 * The first value of a run is 2^14, so that the scale is 1. */
TT_TEST(compress, fp16_rounds_every_half_to_nearest_even)
{
    enum { LAST = 0x7800 }; /* 2^15 */
    codec c = codec_of("fp16");
    float x[4] = {0x1p14f}, out[4];

    for (int h = 0; h < LAST - 1; h++) {
        float low = tt_half((uint16_t)h), high = tt_half((uint16_t)(h + 1));
        x[1] = (low + high) / 2;
        x[2] = nextafterf(x[1], 0);
        x[3] = -nextafterf(x[1], 1e9f);
        send(&c, 4, x, NULL, out, NULL);
        EXPECT(out[0] == x[0] && out[1] == (h % 2 ? high : low) && out[2] == low &&
               out[3] == -high);
    }
}

TT_TEST(compress, one_bit_sends_signs_and_means)
{
    enum { N = 1024 + 77 };
    codec c = codec_of("1bit");
    float *x = normals(9, N, 1), *out = floats(N);

    for (int i = 0; i < N; i++) x[i] += 0.5f;
    send(&c, N, x, NULL, out, NULL);
    for (int first = 0; first < N; first += 1024) {
        int end = first + 1024 < N ? first + 1024 : N, above = 0;
        double up = 0, down = 0;
        for (int i = first; i < end; i++) {
            above += x[i] >= 0;
            *(x[i] >= 0 ? &up : &down) += x[i];
        }
        up /= above;
        down /= end - first - above;
        for (int i = first; i < end; i++) EXPECT_NEAR(x[i] >= 0 ? up : down, out[i], 1e-6);
    }
    clean();
}

TT_TEST(compress, int8_uses_the_whole_range_of_each_run)
{
    codec c = codec_of("int8");
    float x[1025] = {0}, out[1025];

    x[0] = 127e6f;
    x[1] = -127e6f;
    x[2] = 0.49e6f;
    x[3] = -0.51e6f;
    x[1024] = 3e-9f; /* alone in its run */
    send(&c, 1025, x, NULL, out, NULL);
    EXPECT(out[0] == 127e6f && out[1] == -127e6f && out[2] == 0 && out[3] == -1e6f);
    EXPECT_NEAR(3e-9, out[1024], 3e-16);
}

/* ---- the largest ---- */

typedef struct ranked {
    float x;
    int64_t at;
} ranked;
static int by_size(const void *a, const void *b)
{
    const ranked *p = a, *q = b;
    float x = fabsf(p->x), y = fabsf(q->x);

    if (x != y) return x > y ? -1 : 1;
    return p->at < q->at ? -1 : 1;
}

/* Few different values, so that there are ties at the edge. */
TT_TEST(compress, topk_sends_the_largest_and_of_equals_the_first)
{
    static const char *const names[] = {"topk:0.001", "topk:0.01", "topk:0.1", "topk:0.5",
                                        "topk:1"};
    static const int levels[] = {1, 3, 50, 1 << 20};
    static const float units[] = {0x1p-10f, 1e-42f};

    for (int k = 0; k < TT_COUNT(names); k++)
        for (int l = 0; l < TT_COUNT(levels); l++)
            for (int u = 0; u < TT_COUNT(units); u++) {
                enum { N = 3001 };
                codec c = codec_of(names[k]);
                float *x = floats(N), *left = zeros(N), *out = floats(N), *want = zeros(N);
                ranked *r = block(sizeof *r * N);
                int64_t count = (int64_t)(c.share * N + 0.5);
                for (int64_t i = 0; i < N; i++) {
                    tt_u128 w = tt_philox(11, 0, (uint64_t)i);
                    x[i] = (float)((int)(w.v[0] % (uint32_t)(2 * levels[l] + 1)) - levels[l]) *
                           units[u];
                    r[i] = (ranked){x[i], i};
                }
                qsort(r, N, sizeof *r, by_size);
                for (int64_t i = 0; i < count; i++) want[r[i].at] = r[i].x;
                send(&c, N, x, left, out, NULL);
                for (int64_t i = 0; i < N; i++)
                    EXPECT(out[i] == want[i] && left[i] == x[i] - want[i]);
                send(&c, N, x, NULL, out, NULL);
                for (int64_t i = 0; i < N; i++) EXPECT(out[i] == want[i]);
                clean();
            }
}

TT_TEST(compress, topk_sends_at_least_one_and_never_a_zero)
{
    codec c = codec_of("topk:0.0001");
    float x[10] = {0, 1, 2, -3, 3}, out[10];
    uint8_t *wire;

    EXPECT_INT(12, codec_bytes(&c, 10));
    send(&c, 10, x, NULL, out, NULL);
    for (int i = 0; i < 10; i++) EXPECT(out[i] == (i == 3 ? -3 : 0));
    c = codec_of("topk:0.8");
    send(&c, 10, x, NULL, out, &wire);
    EXPECT_INT(4, wire[0]); /* 8 pairs fit, 4 are needed, and the others are zero */
    for (size_t i = 4 + 4 * 8; i < codec_bytes(&c, 10); i++) EXPECT_INT(0, wire[i]);
    clean();
}

TT_TEST(compress, sums_of_sparse_gradients_travel_exactly)
{
    enum { N = 5003 };

    for (int parts = 1; parts < 300; parts = 3 * parts + 1) {
        codec c = codec_of("topk:0.01");
        size_t bytes = codec_sparse_bytes(&c, N, parts);
        float *sum = zeros(N), *out = floats(N);
        uint8_t *wire = block(bytes);
        EXPECT_INT(4 + 8 * (50 * parts < N ? 50 * parts : N), bytes);
        for (int p = 0; p < parts; p++) {
            float *x = normals((uint64_t)p, N, p ? 1 : 1e-42f);
            send(&c, N, x, NULL, out, NULL);
            for (int i = 0; i < N; i++) sum[i] += out[i];
        }
        codec_sparse_encode(&c, N, parts, sum, wire);
        EXPECT_OK(codec_sparse_decode(&c, N, parts, wire, bytes, out));
        EXPECT(same_bits(sum, out, sizeof *out * N));
        EXPECT_ERR(TT_EFORMAT, codec_sparse_decode(&c, N, parts, wire, bytes - 1, out));
        sum[17] = NAN;
        if (parts < 100) { /* there is room: not all parts chose the same */
            codec_sparse_encode(&c, N, parts + 1, sum, (wire = block(bytes + 400)));
            EXPECT_OK(codec_sparse_decode(&c, N, parts + 1, wire, bytes + 400, out));
            EXPECT(isnan(out[17]));
        }
        clean();
    }
}

/* ---- damage ---- */

TT_TEST(compress, bytes_of_another_size_are_refused)
{
    for (int k = 0; k < TT_COUNT(codecs); k++) {
        codec c = codec_of(codecs[k]);
        size_t bytes = codec_bytes(&c, 1000);
        uint8_t *wire = block(bytes + 1);
        float out[1000];
        memset(wire, 0, bytes + 1);
        EXPECT_ERR(TT_EFORMAT, codec_decode(&c, 1000, wire, bytes - 1, out));
        EXPECT_ERR(TT_EFORMAT, codec_decode(&c, 1000, wire, bytes + 1, out));
        EXPECT_MESSAGE("same job");
        EXPECT_ERR(TT_EFORMAT, codec_decode(&c, 1000, wire, 0, out));
        EXPECT_ERR(TT_EFORMAT, codec_decode(&c, 0, wire, bytes, out));
        clean();
    }
}

TT_TEST(compress, damaged_pairs_are_refused)
{
    codec c = codec_of("topk:0.4");
    float x[10] = {0, 5, 0, 6, 0, 0, 0, 0, 7, 0}, out[10];
    static const struct {
        int at;
        uint32_t value; /* of 9: count, then 4 pairs */
    } cases[] = {
        {0, 5},          /* more than there is room for */
        {0, 0xffffffff}, /* far more                    */
        {0, 4},          /* an unused pair              */
        {0, 2},          /* a used pair, uncounted      */
        {1, 3},          /* the same index twice        */
        {1, 9},          /* not rising                  */
        {5, 10},         /* behind the end              */
        {5, 0x80000008}, /* far behind the end          */
        {8, 1},          /* something in an unused pair */
    };
    uint32_t *wire, good[9];

    send(&c, 10, x, NULL, out, (uint8_t **)&wire);
    EXPECT_INT(36, codec_bytes(&c, 10));
    memcpy(good, wire, sizeof good);
    EXPECT_INT(3, good[0]);
    for (int i = 0; i < TT_COUNT(cases); i++) {
        memcpy(wire, good, sizeof good);
        wire[cases[i].at] = cases[i].value;
        if (codec_decode(&c, 10, wire, sizeof good, out) != TT_EFORMAT) FAIL("case %d", i);
        EXPECT_MESSAGE("damaged");
    }
    clean();
}

TT_TEST(compress, scales_that_nobody_wrote_are_refused)
{
    static const struct {
        const char *name;
        int at;
        float scale;
    } cases[] = {
        {"int8", 0, 0},  {"int8", 0, -1}, {"int8", 0, INFINITY}, {"int8", 0, 1e-40f},
        {"fp16", 0, 3},  {"fp16", 0, -2}, {"fp16", 0, 0},        {"fp16", 0, INFINITY},
        {"1bit", 0, -1}, {"1bit", 4, -1}, {"1bit", 4, INFINITY}, {"1bit", 0, -0.0f},
    };
    float x[1500], out[1500];

    for (int i = 0; i < 1500; i++) x[i] = 1 + (float)i;
    for (int i = 0; i < TT_COUNT(cases); i++) {
        codec c = codec_of(cases[i].name);
        size_t bytes = codec_bytes(&c, 1500), second = codec_bytes(&c, 1024);
        uint8_t *wire;
        send(&c, 1500, x, NULL, out, &wire);
        memcpy(wire + second + cases[i].at, &cases[i].scale, sizeof(float));
        if (codec_decode(&c, 1500, wire, bytes, out) != TT_EFORMAT) FAIL("case %d", i);
        EXPECT_MESSAGE("1024 to 1499");
        clean();
    }
}

/* Whatever the bytes are: a refusal or numbers, and nothing outside is touched. */
TT_TEST(compress, random_bytes_do_no_harm)
{
    for (int k = 0; k < TT_COUNT(codecs); k++)
        for (uint64_t turn = 0; turn < 200; turn++) {
            codec c = codec_of(codecs[k]);
            int64_t n = 1 + (int64_t)(turn * 13 % 1200);
            size_t bytes = codec_bytes(&c, n);
            uint8_t *wire = block(bytes);
            float *out = floats(n);
            for (size_t i = 0; i < bytes; i++) wire[i] = (uint8_t)tt_philox(turn, 0, i).v[0];
            if (turn % 2) wire[1] = wire[2] = wire[3] = 0; /* a small count */
            tt_err err = codec_decode(&c, n, wire, bytes, out);
            EXPECT(err == TT_OK || err == TT_EFORMAT);
            clean();
        }
}

/* ---- names ---- */

TT_TEST(compress, names_are_read)
{
    static const struct {
        const char *text;
        codec_kind kind;
        double share;
        int rank;
    } cases[] = {
        {"none", CODEC_NONE},
        {"bf16", CODEC_BF16},
        {"fp16", CODEC_FP16},
        {"int8", CODEC_INT8},
        {"1bit", CODEC_1BIT},
        {"topk:0.01", CODEC_TOPK, 0.01},
        {"topk:1e-3", CODEC_TOPK, 1e-3},
        {"topk:1", CODEC_TOPK, 1},
        {"powersgd:4", CODEC_LOWRANK, 0, 4},
        {"powersgd:256", CODEC_LOWRANK, 0, 256},
    };

    for (int i = 0; i < TT_COUNT(cases); i++) {
        codec c = codec_of(cases[i].text);
        EXPECT_INT(cases[i].kind, c.kind);
        EXPECT_NEAR(cases[i].share, c.share, 0);
        EXPECT_INT(cases[i].rank, c.rank);
    }
}

TT_TEST(compress, wrong_names_are_explained_with_their_place)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"int9", "did you mean 'int8'?"},
        {"bf17", "did you mean 'bf16'?"},
        {"powersg:4", "did you mean 'powersgd'?"},
        {"completely else", "use none, bf16"},
        {"", "there is no compression"},
        {":4", "there is no compression"},
        {"INT8", "there is no compression 'INT8'"},
        {"bf16:2", "takes no number"},
        {"bf16:", "takes no number"},
        {"topk", "topk:0.01"},
        {"topk:", "topk:0.01"},
        {"topk:0", "above 0"},
        {"topk:-1", "above 0"},
        {"topk:2", "at most 1"},
        {"topk:nan", "above 0"},
        {"topk:0.1x", "above 0"},
        {"powersgd", "powersgd:4"},
        {"powersgd:0", "a rank from 1 to 256"},
        {"powersgd:257", "a rank from 1 to 256"},
        {"powersgd:1.5", "a rank from 1 to 256"},
        {"a name so long that it does not fit into any word that could be meant by it, is it not",
         "there is no compression 'a name so long"},
    };

    for (int i = 0; i < TT_COUNT(cases); i++) {
        char text[256];
        tt_tree *t;
        codec c = {.rank = 77};
        EXPECT_ERR(TT_EINVAL, codec_parse(NULL, cases[i].text, &c));
        EXPECT_MESSAGE(cases[i].message);
        snprintf(text, sizeof text, "compress: \"%s\"\n", cases[i].text);
        EXPECT_OK(tt_tree_parse("job.yaml", text, strlen(text), &t));
        EXPECT_ERR(TT_EINVAL, codec_parse(tt_tree_get(t, "compress"), cases[i].text, &c));
        EXPECT_MESSAGE(cases[i].message);
        EXPECT_MESSAGE("job.yaml:1:11:");
        EXPECT_INT(77, c.rank);
        tt_tree_close(t);
    }
}

/* ---- the same bits everywhere ---- */

typedef struct sent {
    uint8_t *wire;
    float *left, *out;
} sent;
static sent send_with(const char *isa, const codec *c, int64_t n, const float *x)
{
    sent s = {NULL, normals(23, n, 0.01f), floats(n)};

    EXPECT(codec_use(isa));
    send(c, n, x, s.left, s.out, &s.wire);
    return s;
}

TT_TEST(compress, all_instruction_sets_send_and_read_the_same_bits)
{
    for (int k = 0; k < TT_COUNT(codecs); k++)
        for (int s = 0; s < 2 * TT_COUNT(sizes); s++)
            for (int a = 0; a < TT_COUNT(isas); a++) {
                codec c = codec_of(codecs[k]);
                int64_t n = sizes[s / 2];
                float *x = mixture(n, s % 2);
                sent plain = send_with("any", &c, n, x), fast;
                if (codec_use(isas[a])) {
                    fast = send_with(isas[a], &c, n, x);
                    EXPECT(same_bits(plain.wire, fast.wire, codec_bytes(&c, n)));
                    EXPECT(same_bits(plain.left, fast.left, sizeof *x * (size_t)n));
                    EXPECT(same_bits(plain.out, fast.out, sizeof *x * (size_t)n));
                }
                clean();
                codec_use(NULL);
            }
    EXPECT(!codec_use("avx3"));
}
