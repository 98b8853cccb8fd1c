/* The table of one instruction set, type of activation and way of multiplying. */
#include "tensor/simd/table.h"
#include "tensor/tables.h"

#ifndef TT_TABLE
#define TT_NAME1(isa) #isa
#define TT_NAME(isa)  TT_NAME1(isa)
#define TT_TABLE      TT_NAME(TT_ISA)
#endif

#ifndef TT_ACT_BF16
int64_t TT_SIMD(arithmetic)(int64_t rounds)
{
    enum { CHAINS = 12 }; /* more than latency times units, and with a and b within 16 registers */
    vf v[CHAINS], a = vset1(0.999f), b = vset1(0.001f);

    for (int k = 0; k < CHAINS; k++) v[k] = vset1((float)k);
    for (int64_t i = 0; i < rounds; i++)
        UNROLL(12) for (int k = 0; k < CHAINS; k++) v[k] = v[k] * a + b;
    for (int k = 0; k < CHAINS; k++) __asm__ volatile("" : : "m"(v[k])); /* the result is needed */
    return rounds * CHAINS * VW * 2;
}
#endif

const tt_kernels TT_PROD(kernels) = {
    .name = TT_TABLE,
#ifdef TT_ACT_BF16
    .precision = TT_IN_BF16,
#if defined(TT_TILES)
    .product = "amx",
#elif defined(TT_DOT)
    .product = "dot",
#else
    .product = "widened",
#endif
#else
    .product = "float32",
    .lanes = VW,
#endif
    .conv_layout = TT_PROD(conv_layout),
    .conv_packed = TT_PROD(conv_packed),
    .conv_pack = TT_PROD(conv_pack),
    .conv_scratch = TT_PROD(conv_scratch),
    .conv_forward = TT_PROD(conv_forward),
    .conv_backward = TT_PROD(conv_backward),
    .maxpool_forward = TT_SIMD(maxpool_forward),
    .maxpool_backward = TT_SIMD(maxpool_backward),
    .avgpool_forward = TT_SIMD(avgpool_forward),
    .avgpool_backward = TT_SIMD(avgpool_backward),
    .upsample_forward = TT_SIMD(upsample_forward),
    .upsample_backward = TT_SIMD(upsample_backward),
    .norm_sums = TT_SIMD(norm_sums),
    .norm_forward = TT_SIMD(norm_forward),
    .norm_backward_sums = TT_SIMD(norm_backward_sums),
    .norm_backward = TT_SIMD(norm_backward),
    .layernorm_forward = TT_SIMD(layernorm_forward),
    .layernorm_backward = TT_SIMD(layernorm_backward),
    .softmax_forward = TT_SIMD(softmax_forward),
    .softmax_backward = TT_SIMD(softmax_backward),
    .embed_forward = TT_SIMD(embed_forward),
    .embed_backward = TT_SIMD(embed_backward),
    .bag_forward = TT_SIMD(bag_forward),
    .bag_backward = TT_SIMD(bag_backward),
    .sum_forward = TT_SIMD(sum_forward),
    .sum_backward = TT_SIMD(sum_backward),
    .fm_forward = TT_SIMD(fm_forward),
    .fm_backward = TT_SIMD(fm_backward),
    .interact_scratch = TT_SIMD(interact_scratch),
    .interact_forward = TT_SIMD(interact_forward),
    .interact_backward = TT_SIMD(interact_backward),
    .attend_scratch = TT_PROD(attend_scratch),
    .attend_forward = TT_PROD(attend_forward),
    .attend_backward = TT_PROD(attend_backward),
    .recur_packed = TT_PROD(recur_packed),
    .recur_pack = TT_PROD(recur_pack),
    .recur_scratch = TT_PROD(recur_scratch),
    .recur_forward = TT_PROD(recur_forward),
    .recur_backward = TT_PROD(recur_backward),
    .unary_forward = TT_SIMD(unary_forward),
    .unary_backward = TT_SIMD(unary_backward),
    .add = TT_SIMD(add),
    .mul = TT_SIMD(mul),
    .shift = TT_SIMD(shift),
    .gather = TT_SIMD(gather),
    .widen = TT_SIMD(widen),
    .narrow = TT_SIMD(narrow),
    .scale = TT_SIMD(scale),
    .dropout = TT_SIMD(dropout),
    .reorder = TT_SIMD(reorder),
    .loss = TT_SIMD(loss),
};
