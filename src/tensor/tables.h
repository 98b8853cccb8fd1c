/* tables: every table of kernels there is, for kernels.c to choose from.
 *
 * Beside each table stands a short piece of arithmetic in its instruction set: `rounds` rounds of
 * multiplications and additions in registers, whose number of operations it returns. Run once, it
 * tells whether the CPU takes the instructions; run for 20 ms, how many it can do. */
#ifndef TT_TENSOR_TABLES_H
#define TT_TENSOR_TABLES_H

#include "tensor/tensor.h"

extern const tt_kernels tt_kernels_ref, tt_kernels_generic, tt_kernels_avx2, tt_kernels_avx512;

int64_t tt_arithmetic_ref(int64_t rounds);
int64_t tt_arithmetic_generic(int64_t rounds);
int64_t tt_arithmetic_avx2(int64_t rounds);
int64_t tt_arithmetic_avx512(int64_t rounds);

#endif
