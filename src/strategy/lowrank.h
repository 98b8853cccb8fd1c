/* lowrank: PowerSGD, a matrix M (rows, cols) as P Q', P (rows, rank), Q (cols, rank).
 *
 *   v = M + residual;  P = v Q;  sum P over all;  orthonormalise P's columns;
 *   Q = v' P;          sum Q over all;            M = P Q';  residual = v - own P Q'
 *
 * All ranks begin with the same random Q and keep the summed Q of the step before (warm start). The
 * caller sums between the calls. Low rank pays only where rows * cols > rank * (rows + cols).
 *
 * A direction that is lost (a matrix that is zero for a step, or of lower rank) would be lost for
 * ever, because its column of Q, once zero, stays so; and a NaN would stay too. lowrank_renew,
 * before each step and with a seed of that step, puts random columns for those, and makes Q
 * orthonormal again, so that P has the scale of M and not of its square.
 *
 * Ranks are 1 .. LOWRANK_MOST. What is computed has the same bits on every CPU. */
#ifndef TT_LOWRANK_H
#define TT_LOWRANK_H

#include "base/base.h"

enum { LOWRANK_MOST = 256 };
bool lowrank_pays(int64_t rows, int64_t cols, int rank);
void lowrank_start(int64_t cols, int rank, uint64_t seed, float *q); /* random, orthonormal */
void lowrank_renew(int64_t cols, int rank, uint64_t seed, float *q);
void lowrank_p(int64_t rows, int64_t cols, int rank, const float *v, const float *q, float *p);
/* A zero column stays zero, and one that is a sum of those before it becomes zero. */
void lowrank_orthonormalise(int64_t rows, int rank, float *p);
void lowrank_q(int64_t rows, int64_t cols, int rank, const float *v, const float *p, float *q);
void lowrank_product(int64_t rows, int64_t cols, int rank, const float *p, const float *q,
                     float *m);

#endif
