/* What the tests of tutti.h share: expectations on its status, and a small problem in memory. */
#ifndef TT_API_HELP_H
#define TT_API_HELP_H

#include "test.h"
#include "tutti.h"

#define OK(call)            EXPECT_OK((tt_err)(call))
#define REFUSED(code, call) EXPECT_ERR((tt_err)(code), (tt_err)(call))

/* Two classes that no straight line tells apart: whether x and y have the same sign. */
enum { POINTS = 400 };
static float point_x[POINTS][2];
static int32_t point_label[POINTS];

static inline tutti_rows points(void)
{
    for (int i = 0; i < POINTS; i++) {
        float v[4];
        tt_uniform4(11, 0, (uint64_t)i, v);
        point_x[i][0] = 2 * v[0] - 1;
        point_x[i][1] = 2 * v[1] - 1;
        point_label[i] = point_x[i][0] * point_x[i][1] > 0;
    }
    return (tutti_rows){.count = POINTS, .x = &point_x[0][0], .label = point_label};
}

/* A job for them; without data. */
static inline tutti_job *points_job(void)
{
    tutti_job *job;

    OK(tutti_job_new("points", &job));
    tutti_job_set(job, "model.input=[2]");
    tutti_job_layer(job, "dense: {out: 16}");
    tutti_job_layer(job, "tanh");
    tutti_job_layer(job, "dense: {out: 2}");
    tutti_job_set(job, "model.loss=softmax_cross_entropy");
    tutti_job_set(job, "train={epochs: 20, batch: 40, threads: 1, optimizer: {adam: {lr: 0.02}}}");
    OK(tutti_job_check(job));
    return job;
}

/* Are all weights of these layers the same, bit for bit? */
static inline bool same_weights(const tutti_model *a, const tutti_model *b)
{
    static const char *const names[] = {"dense1.weight", "dense1.bias", "dense2.weight",
                                        "dense2.bias"};
    const float *p, *q;
    tutti_shape s;

    for (int i = 0; i < TT_COUNT(names); i++) {
        OK(tutti_model_param(a, names[i], &s, &p));
        OK(tutti_model_param(b, names[i], &s, &q));
        if (memcmp(p, q, (size_t)tutti_shape_count(s) * sizeof *p)) return false;
    }
    return true;
}

#endif
