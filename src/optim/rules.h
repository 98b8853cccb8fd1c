/* rules: the arithmetic of optim, as loops over chunks. Internal to the module (and its tests).
 *
 * Each loop exists once for every instruction set and is written so that all of them give the same
 * bits: elementwise work is never contracted to fused multiply-adds, and sums run in TT_SUM_LANES
 * fixed lanes. So machines of different kinds may share one training run. */
#ifndef TT_OPTIM_RULES_H
#define TT_OPTIM_RULES_H

#include "optim.h"

enum { TT_SUM_LANES = 16 };

/* A sum in lanes: element i of a piece is added to lane i % TT_SUM_LANES. Chunks of a piece that
 * are added one after the other must, but for the last, be multiples of TT_SUM_LANES long. */
typedef struct tt_sum {
    double lane[TT_SUM_LANES];
} tt_sum;
double tt_sum_fold(const tt_sum *s);

/* What a chunk consists of. Old and new may be the same memory; nothing else may overlap. */
typedef struct tt_chunk {
    int n;
    float *g;
    const float *w_old;
    float *w_new;
    const float *s_old[TT_OPTIM_SLOTS];
    float *s_new[TT_OPTIM_SLOTS];
} tt_chunk;

/* The numbers of a rule at one step, for one tensor. Each rule uses its own. */
typedef struct tt_factors {
    float scale;     /* of the gradient: clipping by norm                                       */
    float lr;        /* Adam: divided by the first bias correction                              */
    float shrink;    /* of the weight, decoupled: lr * weight_decay                             */
    float momentum;  /* SGD, RMSprop                                                            */
    float fresh;     /* SGD: 1 - dampening, what the gradient adds to the momentum              */
    float beta[2];   /* Adam, LAMB; RMSprop's alpha is beta[1]                                  */
    float rest[2];   /* 1 - beta, from doubles: in floats it would lose its last bits           */
    float unbias[2]; /* LAMB: 1 / (1 - beta1^t); both: 1 / sqrt(1 - beta2^t)                    */
    float eps;
    float decay; /* LAMB's own                                                              */
} tt_factors;

typedef void (*tt_rule)(const tt_chunk *c, const tt_factors *f);

typedef struct tt_rules {
    const char *isa; /* "avx512", "avx2", "any" */

    /* to = g * share + l2 * w + l1 * sign(w), its squares into `sum`. `to` may be g. */
    void (*prepare)(float *to, const float *g, const float *w, int n, float share, float l2,
                    float l1, tt_sum *sum);
    /* g into [-most, most], then its squares into `sum`. NaN stays NaN. */
    void (*clip)(float *g, int n, float most, tt_sum *sum);
    /* The squares of x into `sum`. */
    void (*measure)(const float *x, int n, tt_sum *sum);
    /* Running statistics: w = (1 - momentum) w + momentum * (g / samples). */
    void (*stat)(const tt_chunk *c, float samples, float momentum);

    tt_rule sgd, momentum, nesterov, adagrad, rmsprop, rmsprop_momentum, adam;
    /* LAMB: moments, and the direction with its decay into g. tt_rule sgd then applies it. */
    tt_rule lamb;
} tt_rules;

/* The sets this processor can run, best first; returns how many. */
int tt_rules_list(const tt_rules *out[3]);

#endif
