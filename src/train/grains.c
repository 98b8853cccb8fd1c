/* grains: in how many parts an exact job cuts its batch, where the job does not say.
 *
 * Many grains can be shared out among many workers; but each reads all weights and writes a
 * gradient of its own, which is added once more, and kernels take several samples at once. So: as
 * many as leave every grain the samples that kernels take and, beyond a few grains, enough
 * arithmetic for each parameter that memory does not set the pace; fewer if measuring says that
 * grains twice as large would be a lot faster. The rule is of the job alone and the measurement has
 * a wide margin, so that any number of workers comes to the same. Rank 0 measures; what it finds is
 * everybody's, and is recorded. */
#include <stdlib.h>

#include "trainer.h"

enum { MOST_GRAINS = 16, A_FEW = 4, TRIES = 30 };
#define LONG_ENOUGH 0.02 /* seconds, all tries together, but two of them at least */
/* Wide enough that noise does not decide: two starts of a job should come to the same. */
#define WORTH  1.5
#define ENOUGH 180 /* FLOPs for each parameter: 30 samples of a dense layer */

static tt_err usual_grains(const tt_trainer *t, const tt_kernels *k, int *out)
{
    tt_model *m = NULL;
    double need = k->lanes ? k->lanes : 1, each;
    tt_err err = tt_model_open(t->job.model, &(tt_model_opts){.kernels = k, .tables = true}, &m);

    if (err) return err;
    /* Of a sample, for a parameter: rows of tables are not read and written with each grain. */
    each = tt_model_train_flops(m) / (double)(tt_model_size(m) + 1);
    for (*out = MOST_GRAINS; *out > 1; *out /= 2) {
        double samples = (double)t->conf.batch / *out;
        if (samples >= need && (*out <= A_FEW || samples * each >= ENOUGH)) break;
    }
    tt_model_close(m);
    return TT_OK;
}

static double time_of(tt_run *r, const tt_batch *in, float *grad, float *sum, int64_t size,
                      const tt_kernels *k)
{
    double best = 1e30, all = 0;

    for (int i = 0; i <= 2 || (i <= TRIES && all < LONG_ENOUGH); i++) {
        double begun = tt_clock_s();
        tt_yield y;
        tt_run_begin(r, TT_PASS_TRAIN, in, grad, false, 0);
        do tt_run_advance(r, &y);
        while (y.kind != TT_PASS_DONE);
        tt_kernels_float32(k)->add(size, sum, grad, sum);
        double took = tt_clock_s() - begun;
        all += took;
        if (i && took < best) best = took; /* the first has to touch all memory */
    }
    return best;
}

/* Seconds a sample takes in grains of n. */
static tt_err measure(const tt_trainer *t, const tt_kernels *k, int n, double *out)
{
    tt_model_opts mo = {.kernels = k, .samples = n, .tables = true};
    tt_model *m = NULL;
    tt_run *run = NULL;
    tt_batch in = {0};
    float *w = NULL, *grad = NULL, *sum = NULL;
    tt_row row = {0};
    size_t bytes = 0;
    tt_err err;

    if ((err = tt_model_open(t->job.model, &mo, &m)) || (err = tt_run_open(m, n, true, &run)))
        goto out;
    row = tt_model_row(m);
    bytes = (size_t)tt_model_size(m) * sizeof(float);
    w = tt_block_alloc(bytes);
    grad = tt_block_alloc(bytes);
    sum = tt_block_alloc(bytes);
    if (!w || !grad || !sum) {
        err = tt_fail(TT_ENOMEM, "no memory to measure grains");
        goto out;
    }
    if ((err = tt_batch_open(n, &row, &in))) goto out;
    in.n = n;
    tt_model_init(m, (uint64_t)t->conf.seed, w);
    tt_model_bind(m, w);
    tt_model_refresh(m, 0, 1);
    *out = time_of(run, &in, grad, sum, tt_model_size(m), k) / n;
out:
    tt_batch_close(&in, n, &row);
    if (w) tt_block_free(w, bytes);
    if (grad) tt_block_free(grad, bytes);
    if (sum) tt_block_free(sum, bytes);
    tt_run_close(run);
    tt_model_close(m);
    return err;
}

static tt_err choose(const tt_trainer *t, const tt_kernels *k, int *grains)
{
    int64_t batch = t->conf.batch;
    double now, larger;
    tt_err err;

    if ((err = usual_grains(t, k, grains))) return err;
    if (*grains == 1 || (err = measure(t, k, (int)((batch + *grains - 1) / *grains), &now)))
        return *grains == 1 ? TT_OK : err;
    while (*grains > 1) {
        int half = *grains / 2;
        if ((err = measure(t, k, (int)((batch + half - 1) / half), &larger))) return err;
        if (now < WORTH * larger) break;
        now = larger;
        *grains = half;
    }
    return TT_OK;
}

tt_err choose_grains(tt_trainer *t, const tt_kernels *k)
{
    int grains = 0;
    int64_t same;
    char before[64];
    tt_err err = TT_OK;

    if (!t->plan.exact || t->plan.grains) return TT_OK;
    if (!t->world->rank && value_before(&t->opts, "parallel.grains", before) &&
        tt_parse_int(before, &same) && same >= 1 && same <= 1024)
        grains = (int)same; /* or the run would not end with the same bits */
    else if (!t->world->rank)
        err = choose(t, k, &grains);
    if ((err = all_agree(t, err)) ||
        (err = tt_group_bcast(tt_world_all(t->world), 0, &grains, sizeof grains)))
        return err;
    t->plan.grains = grains;
    return TT_OK;
}
