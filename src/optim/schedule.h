/* schedule: the learning rate's factor as a pure function of the step. Internal to optim.
 *
 * Warm-up of W steps goes from `warmup_from` up to 1, which step W - 1 has; then the schedule's own
 * clock starts at 0. No function of libm takes part whose last bit differs between machines. */
#ifndef TT_OPTIM_SCHEDULE_H
#define TT_OPTIM_SCHEDULE_H

#include "base/base.h"

typedef enum tt_schedule_kind {
    TT_CONSTANT, /* 1                                             */
    TT_STEPS,    /* gamma to the power of steps taken             */
    TT_LINEAR,   /* straight from 1 to `end`, which then stays    */
    TT_COSINE,   /* half a cosine from 1 to `end`, which stays    */
} tt_schedule_kind;

typedef struct tt_schedule {
    tt_schedule_kind kind;
    int64_t warmup;
    double warmup_from;
    double end, gamma;
    int64_t length; /* LINEAR, COSINE                          */
    int64_t every;  /* STEPS, in regular distances ...         */
    int64_t *at;    /* ... or at these steps, rising           */
    int at_count;
} tt_schedule;

/* Reads `train.schedule`; NULL means constant. `at` is taken from the arena. */
tt_err tt_schedule_read(tt_node *n, int64_t total_steps, int64_t steps_per_epoch, tt_arena *arena,
                        tt_schedule *out);
double tt_schedule_factor(const tt_schedule *s, int64_t step);

double tt_power(double x, int64_t n); /* x^n, 0 <= n: plain products, the same bits everywhere */

#endif
