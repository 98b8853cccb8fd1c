/* tables: every table of kernels there is, for kernels.c to choose from.
 *
 * Beside each table of float32 stands a short piece of arithmetic in its instruction set: `rounds`
 * rounds of multiplications and additions in registers, whose number of operations it returns. Run
 * once, it tells whether the CPU takes the instructions; run for 20 ms, how many it can do. Beside
 * those of bf16 stands one product, compared with plain C. */
#ifndef TT_TENSOR_TABLES_H
#define TT_TENSOR_TABLES_H

#include "tensor/tensor.h"

extern const tt_kernels tt_kernels_ref, tt_kernels_generic, tt_kernels_avx2, tt_kernels_avx512;
extern const tt_kernels tt_kernels_ref_bf16, tt_kernels_generic_bf16, tt_kernels_avx2_bf16,
    tt_kernels_avx512_bf16, tt_kernels_avx512_dot, tt_kernels_avx512_amx;

int64_t tt_arithmetic_ref(int64_t rounds);
int64_t tt_arithmetic_generic(int64_t rounds);
int64_t tt_arithmetic_avx2(int64_t rounds);
int64_t tt_arithmetic_avx512(int64_t rounds);

/* Whether a trial succeeds in a child process, which may die of it or never come back: CPUs hide
 * what they can do, and announce what they cannot. The child tells by a pipe, because somebody else
 * may be waiting for children. Untold: there could be no child, or it was silent for so long. */
typedef enum tt_trial { TT_TRIAL_FAILED, TT_TRIAL_WORKED, TT_TRIAL_UNTOLD } tt_trial;
tt_trial tt_trial_in_child(bool (*trial)(void), double timeout_s);

bool tt_trial_generic_bf16(void);
bool tt_trial_avx2_bf16(void);
bool tt_trial_avx512_bf16(void);
bool tt_trial_avx512_dot(void);
bool tt_trial_avx512_amx(void);
bool tt_trial_emulated(void); /* these two are of the tests */
bool tt_trial_trapped(void);

#endif
