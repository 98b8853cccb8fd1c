/* PowerSGD against plain loops, matrices of known rank, lost directions; the instruction sets
 * against each other. */
#include "strategy/lowrank.h"

#include "strategy/compress.h"
#include "strategy_help.h"

static const struct shape {
    int64_t rows, cols;
    int rank;
} shapes[] = {{1, 1, 1},     {1, 50, 1},     {50, 1, 1},    {7, 5, 2},
              {64, 64, 4},   {33, 1000, 3},  {1000, 33, 5}, {130, 517, 8},
              {13, 2049, 4}, {300, 300, 17}, {70, 90, 64},  {260, 300, 256}};

/* got = sum of a[k * da] * b[k * db], to what rounding allows in any order. */
static void expect_sum(float got, int64_t n, const float *a, int64_t da, const float *b, int64_t db)
{
    double want = 0, size = 0;

    for (int64_t k = 0; k < n; k++) {
        want += (double)a[k * da] * b[k * db];
        size += fabs((double)a[k * da] * b[k * db]);
    }
    EXPECT_NEAR(want, got, 1e-6 * size);
}

TT_TEST(lowrank, low_rank_products_agree_with_plain_loops)
{
    for (int s = 0; s < TT_COUNT(shapes); s++) {
        int64_t rows = shapes[s].rows, cols = shapes[s].cols;
        int rank = shapes[s].rank;
        float *v = normals(1, rows * cols, 1), *p = normals(2, rows * rank, 1),
              *q = normals(3, cols * rank, 1), *got_p = floats(rows * rank),
              *got_q = floats(cols * rank), *m = floats(rows * cols);
        lowrank_p(rows, cols, rank, v, q, got_p);
        lowrank_q(rows, cols, rank, v, p, got_q);
        lowrank_product(rows, cols, rank, p, q, m);
        for (int64_t i = 0; i < rows; i++)
            for (int j = 0; j < rank; j++)
                expect_sum(got_p[i * rank + j], cols, v + i * cols, 1, q + j, rank);
        for (int64_t c = 0; c < cols; c++)
            for (int j = 0; j < rank; j++)
                expect_sum(got_q[c * rank + j], rows, v + c, cols, p + j, rank);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t c = 0; c < cols; c++)
                expect_sum(m[i * cols + c], rank, p + i * rank, 1, q + c * rank, 1);
        clean();
    }
}

static double dot(int64_t rows, int rank, const float *p, int a, int b)
{
    double sum = 0;
    for (int64_t i = 0; i < rows; i++) sum += (double)p[i * rank + a] * p[i * rank + b];
    return sum;
}

/* Lengths 1 and right angles; columns of `zero` are zero. */
static void expect_orthonormal(int64_t rows, int rank, const float *p, uint64_t zero)
{
    for (int a = 0; a < rank; a++)
        for (int b = 0; b <= a; b++) {
            double want = a == b && !(a < 64 && zero >> a & 1);
            EXPECT_NEAR(want, dot(rows, rank, p, a, b), 1e-6);
        }
}

TT_TEST(lowrank, columns_become_orthonormal)
{
    static const float scales[] = {1, 1e-30f, 1e30f, 1e-42f, 1e37f};

    for (int s = 0; s < TT_COUNT(shapes); s++)
        for (int f = 0; f < TT_COUNT(scales); f++) {
            int64_t rows = shapes[s].rows;
            int rank = shapes[s].rank;
            float *p = normals(5, rows * rank, scales[f]);
            lowrank_orthonormalise(rows, rank, p);
            if (rank < rows) expect_orthonormal(rows, rank, p, 0);
            lowrank_start(rows, rank, 42, p);
            if (rank <= rows) expect_orthonormal(rows, rank, p, 0);
            clean();
        }
}

TT_TEST(lowrank, columns_that_are_nearly_alike_become_orthonormal)
{
    enum { ROWS = 500, RANK = 4 };
    float *p = normals(6, ROWS * RANK, 1);

    for (int i = 0; i < ROWS; i++)
        for (int j = 1; j < RANK; j++) p[i * RANK + j] = p[i * RANK] + 1e-4f * p[i * RANK + j];
    lowrank_orthonormalise(ROWS, RANK, p);
    expect_orthonormal(ROWS, RANK, p, 0);
    clean();
}

TT_TEST(lowrank, columns_without_a_direction_of_their_own_become_zero)
{
    enum { ROWS = 500, RANK = 5 };
    float *p = normals(6, ROWS * RANK, 1);

    for (int i = 0; i < ROWS; i++) {
        p[i * RANK + 1] = 0;
        p[i * RANK + 3] = 2 * p[i * RANK] - 0.1f * p[i * RANK + 2];
    }
    lowrank_orthonormalise(ROWS, RANK, p);
    expect_orthonormal(ROWS, RANK, p, 1 << 1 | 1 << 3);
    for (int i = 0; i < ROWS; i++) EXPECT(p[i * RANK + 1] == 0 && p[i * RANK + 3] == 0);
    clean();
}

/* One step of one rank: m becomes what arrives. */
static void power_step(const struct shape *s, const float *v, float *q, float *m)
{
    float *p = floats(s->rows * s->rank);

    lowrank_p(s->rows, s->cols, s->rank, v, q, p);
    lowrank_orthonormalise(s->rows, s->rank, p);
    lowrank_q(s->rows, s->cols, s->rank, v, p, q);
    lowrank_product(s->rows, s->cols, s->rank, p, q, m);
}

static double distance(int64_t n, const float *a, const float *b)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sqrt(sum);
}

TT_TEST(lowrank, a_matrix_of_that_rank_is_recovered)
{
    for (int s = 0; s < TT_COUNT(shapes); s++) {
        const struct shape *h = &shapes[s];
        int64_t n = h->rows * h->cols;
        float *a = normals(1, h->rows * h->rank, 1), *b = normals(2, h->cols * h->rank, 1);
        float *v = floats(n), *m = floats(n), *q = floats(h->cols * h->rank), *none = zeros(n);
        lowrank_product(h->rows, h->cols, h->rank, a, b, v);
        lowrank_start(h->cols, h->rank, 3, q);
        power_step(h, v, q, m);
        EXPECT(distance(n, v, m) <= 1e-5 * distance(n, v, none));
        clean();
    }
}

/* Singular values 1, 1/2, 1/4 ...: no matrix of rank 3 is nearer than what is left of them. */
TT_TEST(lowrank, warm_starts_lead_to_the_best_approximation)
{
    enum { ROWS = 80, COLS = 120, ALL = 12 };
    const struct shape h = {ROWS, COLS, 3};
    float *a = floats(ROWS * ALL), *b = floats(COLS * ALL), *v = floats(ROWS * COLS),
          *m = floats(ROWS * COLS), *q = floats(COLS * 3);
    double best = 0, first = 0, last = 0;

    lowrank_start(ROWS, ALL, 1, a);
    lowrank_start(COLS, ALL, 2, b);
    for (int j = 0; j < ALL; j++) {
        for (int i = 0; i < ROWS; i++) a[i * ALL + j] *= exp2f((float)-j);
        if (j >= h.rank) best += exp2(-2 * j);
    }
    lowrank_product(ROWS, COLS, ALL, a, b, v);
    lowrank_start(COLS, h.rank, 3, q);
    for (int step = 0; step < 8; step++) {
        power_step(&h, v, q, m);
        last = distance(ROWS * COLS, v, m);
        if (step == 0) first = last;
        lowrank_renew(COLS, h.rank, (uint64_t)step, q);
        expect_orthonormal(COLS, h.rank, q, 0);
    }
    EXPECT(first > 1.02 * sqrt(best));
    EXPECT_NEAR(sqrt(best), last, 1e-3 * sqrt(best));
    clean();
}

TT_TEST(lowrank, a_zero_matrix_stays_zero_and_what_comes_after_it_is_seen)
{
    const struct shape h = {40, 30, 3};
    float *v = zeros(1200), *m = floats(1200), *q = floats(90), *none = zeros(1200);
    float *x = normals(1, 1200, 1);

    lowrank_start(30, 3, 1, q);
    power_step(&h, v, q, m);
    for (int i = 0; i < 1200; i++) EXPECT(m[i] == 0);
    lowrank_renew(30, 3, 1, q);
    expect_orthonormal(30, 3, q, 0);
    power_step(&h, x, q, m);
    EXPECT(distance(1200, x, m) < 0.95 * distance(1200, x, none));

    x[77] = NAN; /* which is seen, and forgotten */
    power_step(&h, x, q, m);
    EXPECT(isnan(distance(1200, m, none)));
    x[77] = INFINITY;
    lowrank_renew(30, 3, 2, q);
    power_step(&h, x, q, m);
    EXPECT(!isfinite(distance(1200, m, none)));
    lowrank_renew(30, 3, 3, q);
    expect_orthonormal(30, 3, q, 0);
    clean();
}

TT_TEST(lowrank, what_low_rank_loses_comes_back_in_later_steps)
{
    const struct shape h = {40, 30, 2};
    float *left = zeros(1200), *m = floats(1200), *q = floats(60);
    double sum[1200] = {0}, sent[1200] = {0};

    lowrank_start(30, 2, 1, q);
    for (int step = 0; step < 50; step++) {
        float *x = normals((uint64_t)step, 1200, 1);
        for (int i = 0; i < 1200; i++) {
            sum[i] += x[i];
            left[i] += x[i];
        }
        power_step(&h, left, q, m);
        for (int i = 0; i < 1200; i++) {
            left[i] -= m[i];
            sent[i] += m[i];
            EXPECT(fabsf(left[i]) < 40); /* does not pile up */
        }
        lowrank_renew(30, 2, (uint64_t)step, q);
    }
    for (int i = 0; i < 1200; i++) EXPECT_NEAR(sum[i], sent[i] + left[i], 1e-3);
    clean();
}

TT_TEST(lowrank, low_rank_pays_where_it_is_smaller)
{
    EXPECT(lowrank_pays(100, 100, 4));
    EXPECT(!lowrank_pays(100, 100, 50));
    EXPECT(!lowrank_pays(1, 1000, 1));
    EXPECT(!lowrank_pays(8, 8, 4));
    EXPECT(lowrank_pays(INT64_C(1) << 40, INT64_C(1) << 40, 256));
}

/* ---- the same bits everywhere ---- */

static float *power_with(const char *isa, const struct shape *h, const float *v, int64_t *size)
{
    int64_t np = h->rows * h->rank, nq = h->cols * h->rank, nm = h->rows * h->cols;
    float *all = floats(np + 2 * nq + nm), *p = all, *q = p + np, *start = q + nq, *m = start + nq;

    EXPECT(codec_use(isa));
    lowrank_start(h->cols, h->rank, 5, start);
    lowrank_p(h->rows, h->cols, h->rank, v, start, p);
    lowrank_orthonormalise(h->rows, h->rank, p);
    lowrank_q(h->rows, h->cols, h->rank, v, p, q);
    lowrank_product(h->rows, h->cols, h->rank, p, q, m);
    lowrank_renew(h->cols, h->rank, 6, q);
    *size = np + 2 * nq + nm;
    return all;
}

TT_TEST(lowrank, all_instruction_sets_make_the_same_low_rank_bits)
{
    for (int s = 0; s < TT_COUNT(shapes); s++)
        for (int a = 0; a < TT_COUNT(isas); a++) {
            float *v = mixture(shapes[s].rows * shapes[s].cols, false), *plain, *fast;
            int64_t size;
            plain = power_with("any", &shapes[s], v, &size);
            if (codec_use(isas[a])) {
                fast = power_with(isas[a], &shapes[s], v, &size);
                EXPECT(same_bits(plain, fast, sizeof *plain * (size_t)size));
            }
            clean();
            codec_use(NULL);
        }
}
