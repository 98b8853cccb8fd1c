#include "test.h"

TT_TEST(random, philox_matches_the_published_vectors)
{
    static const struct {
        uint64_t key, hi, lo;
        uint32_t want[4];
    } cases[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x0370734413198a2e,
         0x85a308d3243f6a88,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    for (int i = 0; i < TT_COUNT(cases); i++) {
        tt_u128 r = tt_philox(cases[i].key, cases[i].hi, cases[i].lo);
        for (int k = 0; k < 4; k++) EXPECT_INT(cases[i].want[k], r.v[k]);
    }
}

TT_TEST(random, uniforms_fill_zero_to_one)
{
    enum { N = 25000, BINS = 16 };
    int bins[BINS] = {0};
    float u[4];
    double sum = 0, chi = 0, mean = N * 4.0 / BINS;

    for (uint64_t i = 0; i < N; i++) {
        tt_uniform4(42, 7, i, u);
        for (int k = 0; k < 4; k++) {
            EXPECT(u[k] >= 0 && u[k] < 1);
            bins[(int)(u[k] * BINS)]++;
            sum += u[k];
        }
    }
    for (int i = 0; i < BINS; i++) chi += (bins[i] - mean) * (bins[i] - mean) / mean;
    EXPECT_NEAR(0.5, sum / (4 * N), 0.005);
    EXPECT(chi < 45); /* 15 degrees of freedom: exceeded once in 10,000 keys */
}

TT_TEST(random, normals_have_the_right_moments_and_independent_halves)
{
    enum { N = 50000 };
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, cross = 0;
    float x[4];

    for (uint64_t i = 0; i < N; i++) {
        tt_normal4(42, i, 0, x);
        cross += x[0] * x[1] + x[2] * x[3];
        for (int k = 0; k < 4; k++) {
            EXPECT(isfinite(x[k]) && fabsf(x[k]) < 6.7f);
            m1 += x[k];
            m2 += x[k] * x[k];
            m3 += pow(x[k], 3);
            m4 += pow(x[k], 4);
        }
    }
    EXPECT_NEAR(0, m1 / (4 * N), 0.01);
    EXPECT_NEAR(1, m2 / (4 * N), 0.015);
    EXPECT_NEAR(0, m3 / (4 * N), 0.03);
    EXPECT_NEAR(3, m4 / (4 * N), 0.1);
    EXPECT_NEAR(0, cross / (2 * N), 0.015);
}

TT_TEST(random, normals_agree_with_libm)
{
    float x[4];

    for (uint64_t i = 0; i < 20000; i++) {
        tt_u128 r = tt_philox(9, 1, i);
        tt_normal4(9, 1, i, x);
        for (int k = 0; k < 4; k += 2) {
            double radius = sqrt(-2 * log((r.v[k] + 1.0) * 0x1p-32));
            double angle = 2 * M_PI * r.v[k + 1] * 0x1p-32;
            EXPECT_NEAR(radius * cos(angle), x[k], 1e-6);
            EXPECT_NEAR(radius * sin(angle), x[k + 1], 1e-6);
        }
    }
}

TT_TEST(random, keys_of_different_names_differ)
{
    static const char *const names[] = {"",
                                        "a",
                                        "b",
                                        "ab",
                                        "ba",
                                        "init conv1.weight",
                                        "init conv1.weighs",
                                        "init conv2.weight",
                                        "12345678",
                                        "123456789",
                                        "1234567"};

    for (int i = 0; i < TT_COUNT(names); i++) {
        EXPECT(tt_random_key(1, names[i]) != tt_random_key(2, names[i]));
        EXPECT(tt_random_key(1, names[i]) == tt_random_key(1, names[i]));
        for (int k = 0; k < i; k++)
            EXPECT(tt_random_key(1, names[i]) != tt_random_key(1, names[k]));
    }
}

TT_TEST(random, a_permutation_hits_every_place_once)
{
    static const uint64_t sizes[] = {1, 2, 3, 5, 63, 64, 65, 1000, 4096, 60000};

    for (int s = 0; s < TT_COUNT(sizes); s++) {
        uint64_t n = sizes[s], moved = 0;
        char *seen = calloc(1, n);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = tt_permute(123, n, i);
            EXPECT(at < n && !seen[at]);
            seen[at] = 1;
            moved += at != i;
        }
        if (n >= 63) EXPECT(moved > n * 9 / 10);
        free(seen);
    }
    EXPECT(tt_permute(5, ~0ull, 3) < ~0ull);
}

/* Every element comes to every place equally often over many keys, also in small sets. */
TT_TEST(random, permutations_are_fair)
{
    enum { KEYS = 20000 };

    for (uint64_t n = 2; n <= 7; n++) {
        for (uint64_t i = 0; i < n; i++) {
            int hits[7] = {0};
            double mean = (double)KEYS / (double)n, chi = 0;
            for (uint64_t key = 0; key < KEYS; key++) hits[tt_permute(key, n, i)]++;
            for (uint64_t k = 0; k < n; k++) chi += (hits[k] - mean) * (hits[k] - mean) / mean;
            if (chi > 35) FAIL("element %d of %d: chi square %.1f", (int)i, (int)n, chi);
        }
    }
}

/* A run that resumes under a later version must see the same order and the same weights. */
TT_TEST(random, the_streams_never_change)
{
    float x[4];

    tt_normal4(1, 2, 3, x);
    EXPECT_INT(1284939247101749423, tt_random_key(42, "init conv1.weight"));
    EXPECT_INT(28241, tt_permute(42, 60000, 0));
    EXPECT_INT(7614, tt_permute(42, 60000, 59999));
    EXPECT_INT(2, tt_permute(7, 5, 2));
    EXPECT_NEAR(-0x1.b8cea8p-2, x[0], 0);
    EXPECT_NEAR(-0x1.209d12p+0, x[3], 0);
}
