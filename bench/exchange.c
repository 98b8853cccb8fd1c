/* exchange: how fast a vector of floats is summed over the ranks of one host.
 *
 *   mpirun -n 2 build/bench-exchange [SECONDS [MB ...]]      2 seconds a size; 25 and 100 MB
 *
 * Three ways take turns: tt_summer on vectors in its shared memory (`shared`), where training has
 * its gradients; tt_summer on memory of each rank's own (`own`); and, on the same memory, the
 * MPI's own blocking MPI_Allreduce (`mpi`). Before each round every rank writes new numbers, as a
 * backward pass would, and after it every sum is checked. The best round of each counts; a round
 * takes as long as its slowest rank. Rank 0 prints a line for each size and way:
 *
 *   shared 25 7.41      way, MB of a vector, GB/s: bytes of one vector divided by the time */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/comm.h"

enum { WARM = 2, ROUNDS_LEAST = 5, SIZES_MOST = 16 };
enum { VALUES = 1024 }; /* small whole numbers, whose sums are exact in any order */

typedef enum way { SHARED, OWN, BARE, WAYS } way;
static const char *const way_names[] = {"shared", "own", "mpi"};

typedef struct bench {
    tt_world *world;
    tt_summer *summer;
    float *shared, *own;
    uint32_t round; /* of all sizes and ways: no two have the same numbers */
} bench;

/* With `w` the other rank does not wait for us for ever. */
static void must(tt_world *w, tt_err err)
{
    if (!err) return;
    fprintf(stderr, "exchange: %s\n", tt_message());
    if (w) tt_world_leave(w, 1);
    exit(1);
}

static void fill(const bench *b, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)((((uint32_t)i + 31 * b->round) & (VALUES - 1)) + (uint32_t)b->world->rank);
}

static void check(const bench *b, const float *x, int64_t n, way how)
{
    const float size = (float)b->world->size, ranks = size * (size - 1) / 2;
    int64_t wrong = 0;

    for (int64_t i = 0; i < n; i++) {
        float one = (float)(((uint32_t)i + 31 * b->round) & (VALUES - 1));
        wrong += x[i] != size * one + ranks;
    }
    if (wrong)
        must(b->world, tt_fail(TT_EINVAL, "%s: %lld of %lld sums are wrong", way_names[how],
                               (long long)wrong, (long long)n));
}

static tt_err sum(const bench *b, float *x, int64_t n, way how)
{
    if (how != BARE) return tt_summer_run(b->summer, x, n, 1);
    if (MPI_Allreduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD))
        return tt_fail(TT_EENV, "MPI_Allreduce failed");
    return TT_OK;
}

/* Seconds of one round, of the slowest rank. */
static double time_round(bench *b, int64_t n, way how)
{
    float *x = how == SHARED ? b->shared : b->own;
    double took, slowest;

    b->round++;
    fill(b, x, n);
    /* MPI's own barrier for all: it leaves the ranks closer to each other than messages do. */
    MPI_Barrier(MPI_COMM_WORLD);
    took = tt_clock_s();
    must(b->world, sum(b, x, n, how));
    took = tt_clock_s() - took;
    check(b, x, n, how);
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static void measure(bench *b, double mb, double seconds)
{
    const int64_t n = (int64_t)(mb * 1e6 / sizeof(float));
    double best[WAYS] = {1e9, 1e9, 1e9}, begun = tt_clock_s();
    int more = 1;

    for (int round = 0; more; round++) {
        for (way how = SHARED; how < WAYS; how++) {
            double took = time_round(b, n, how);
            if (round >= WARM && took < best[how]) best[how] = took;
        }
        more = round + 1 < WARM + ROUNDS_LEAST || tt_clock_s() - begun < seconds;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    for (way how = SHARED; how < WAYS && !b->world->rank; how++)
        printf("%s %g %.3f\n", way_names[how], mb, (double)n * sizeof(float) / best[how] / 1e9);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    double mb[SIZES_MOST] = {25, 100}, seconds = 2, most = 0;
    int count = argc > 2 ? argc - 2 : 2, bound;
    bench b = {0};
    size_t bytes;

    if (argc > 1) seconds = strtod(argv[1], NULL);
    for (int i = 2; i < argc && i < SIZES_MOST + 2; i++) mb[i - 2] = strtod(argv[i], NULL);
    if (count > SIZES_MOST || seconds <= 0)
        must(NULL, tt_fail(TT_EINVAL, "exchange [SECONDS [MB ...]], at most %d sizes", SIZES_MOST));
    for (int i = 0; i < count; i++) {
        if (!(mb[i] >= 0.001 && mb[i] <= 4000))
            must(NULL, tt_fail(TT_EINVAL, "sizes are 0.001 to 4000 MB, not %g", mb[i]));
        if (mb[i] > most) most = mb[i];
    }
    must(NULL, tt_world_join(&b.world));
    if (b.world->size < 2 || b.world->host_count > 1)
        must(b.world,
             tt_fail(TT_EINVAL, "start at least 2 ranks on one host: mpirun -n 2 %s", argv[0]));
    must(b.world, tt_world_pin(b.world, 1, &bound)); /* as workers of a training are */
    bytes = (size_t)(most * 1e6);
    must(b.world, tt_summer_open(tt_world_all(b.world), bytes, &b.summer));
    b.shared = tt_summer_memory(b.summer);
    b.own = tt_block_alloc(bytes);
    if (!b.own) tt_mem_out(bytes);
    for (int i = 0; i < count; i++) measure(&b, mb[i], seconds);
    tt_block_free(b.own, bytes);
    tt_summer_close(b.summer);
    tt_world_leave(b.world, 0);
    return 0;
}
