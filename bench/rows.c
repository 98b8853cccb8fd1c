/* rows: what memory alone takes of a step on a large table: the same reads and writes, and nothing
 * else.
 *
 *   build/bench-rows ROWS FLOATS IDS [STEPS]
 *
 * A record has FLOATS weights and as many numbers of an optimiser behind them, and a bit says that
 * it is there, as in a table of a training with Adagrad (store/table.h). A step reads the bits and
 * weights of IDS rows at random; then it copies the whole records of the same rows to a log, and
 * changes them. Prints milliseconds of a step: of the second half of the steps, when every row has
 * been named, that one of which a tenth is faster. bench/tables sets it beside the step of a
 * training. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { CYCLE = 4096 }; /* steps with ids of their own, as many as the training's data has */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void *block(size_t bytes)
{
    void *p = tt_block_alloc(bytes); /* in huge pages, as tables are */
    if (!p) tt_mem_out(bytes);
    return p;
}

static bool is_there(const uint64_t *bits, int32_t row)
{
    return bits[row / 64] >> (row % 64) & 1;
}

static void step(float *table, uint64_t *bits, int64_t floats, const int32_t *id, int64_t n,
                 float *sum, float *log)
{
    for (int64_t i = 0; i < n; i++) {
        const float *w = table + id[i] * 2 * floats;
        if (!is_there(bits, id[i])) continue;
        for (int64_t k = 0; k < floats; k++) sum[k] += w[k];
    }
    for (int64_t i = 0; i < n; i++) {
        float *record = table + id[i] * 2 * floats;
        memcpy(log + i * 2 * floats, record, (size_t)(2 * floats) * sizeof *log);
        for (int64_t k = 0; k < 2 * floats; k++) record[k] += 1;
        if (!is_there(bits, id[i])) bits[id[i] / 64] |= UINT64_C(1) << (id[i] % 64);
    }
}

int main(int argc, char **argv)
{
    int64_t rows = argc > 3 ? atoll(argv[1]) : 0, floats = argc > 3 ? atoll(argv[2]) : 0;
    int64_t n = argc > 3 ? atoll(argv[3]) : 0, steps = argc > 4 ? atoll(argv[4]) : 2 * CYCLE;

    if (rows < 1 || rows > INT32_MAX || floats < 1 || n < 1 || steps < 2) {
        fprintf(stderr, "rows: ROWS FLOATS IDS [STEPS], numbers from 1\n");
        return 2;
    }
    size_t size = (size_t)(rows * 2 * floats) * sizeof(float),
           ids = (size_t)(CYCLE * n) * sizeof(int32_t);
    float *table = block(size), *log = block((size_t)(n * 2 * floats) * sizeof *log);
    float *sum = block((size_t)floats * sizeof *sum);
    uint64_t *bits = block((size_t)(rows / 64 + 1) * sizeof *bits);
    int32_t *id = block(ids);
    double *took = block((size_t)steps * sizeof *took);
    uint64_t key = tt_random_key(1, "rows");

    for (int64_t i = 0; i < CYCLE * n; i++)
        id[i] = (int32_t)(tt_philox(key, 0, (uint64_t)i).v[0] % (uint64_t)rows);
    for (int64_t s = 0; s < steps; s++) {
        double begun = tt_clock_s();
        step(table, bits, floats, id + s % CYCLE * n, n, sum, log);
        took[s] = tt_clock_s() - begun;
    }
    qsort(took + steps / 2, (size_t)(steps - steps / 2), sizeof *took, by_size);
    printf("%.4f\n", 1e3 * took[steps / 2 + (steps - steps / 2) / 10]);
    return sum[0] < 0; /* so that what was read is of use */
}
