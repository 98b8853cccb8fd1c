/* What the tests of optim share: opening an optimiser from a train map as text, and whole steps. */
#ifndef TT_TEST_OPTIM_JOB_H
#define TT_TEST_OPTIM_JOB_H

#include "test.h"

#include "optim/optim.h"

typedef struct job {
    tt_tree *tree;
    tt_optim *o;
} job;

static inline tt_err job_try(job *j, const char *yaml, const tt_param *params, int count,
                             int64_t total_steps, int64_t steps_per_epoch)
{
    tt_node *train;

    j->o = NULL;
    EXPECT_OK(tt_tree_parse("job.yaml", yaml, strlen(yaml), &j->tree));
    train = tt_tree_root(j->tree);
    return tt_optim_open(tt_node_get(train, "optimizer"), tt_node_get(train, "schedule"),
                         tt_node_get(train, "clip"), tt_node_get(train, "groups"), params, count,
                         total_steps, steps_per_epoch, &j->o);
}

static inline void job_open(job *j, const char *yaml, const tt_param *params, int count)
{
    EXPECT_OK(job_try(j, yaml, params, count, 100, 10));
}

static inline void job_close(job *j)
{
    tt_optim_close(j->o);
    tt_tree_close(j->tree);
}

/* An error in `yaml` whose message has both parts. */
static inline void job_fails(const char *yaml, const tt_param *params, int count, const char *part,
                             const char *more)
{
    job j;

    EXPECT_ERR(TT_EINVAL, job_try(&j, yaml, params, count, 0, 0));
    EXPECT(!j.o);
    EXPECT_MESSAGE(part);
    EXPECT_MESSAGE(more);
    tt_tree_close(j.tree);
}

static inline void job_step(tt_optim *o, int64_t step, double weight, double samples,
                            const tt_optim_view *v)
{
    tt_optim_begin(o, step, weight, samples);
    for (int pass = 0; pass < tt_optim_passes(o); pass++) {
        for (int i = 0; i < tt_optim_piece_count(o); i++) tt_optim_run(o, pass, i, v);
        tt_optim_join(o, pass);
    }
}

/* Everything in place. */
static inline tt_optim_view job_view(float *grad, float *w, float *s0, float *s1)
{
    return (tt_optim_view){grad, w, w, {s0, s1}, {s0, s1}};
}

/* A weight at the start of the array, of n elements. */
static inline tt_param job_weight(int64_t n)
{
    return (tt_param){.name = "fc.weight", .n = n, .rank = 1, .shape = {n}, .role = TT_WEIGHT};
}

/* Normal numbers, the same for the same key. */
static inline void job_fill(float *x, int64_t n, uint64_t key)
{
    float four[4];

    for (int64_t i = 0; i < n; i++) {
        if (i % 4 == 0) tt_normal4(key, 0, (uint64_t)i / 4, four);
        x[i] = four[i % 4];
    }
}

#endif
