/* The table of plain C. */
#include "tensor/ref/ref.h"
#include "tensor/tables.h"

#ifdef TT_ACT_BF16
const tt_kernels tt_kernels_ref_bf16 = {
    .name = "ref-bf16",
    .precision = TT_IN_BF16,
#else
int64_t tt_arithmetic_ref(int64_t rounds)
{
    float v[8] = {1, 2, 3, 4, 5, 6, 7, 8}, a = 0.999f, b = 0.001f;

    for (int64_t i = 0; i < rounds; i++) {
        for (int k = 0; k < 8; k++) v[k] = v[k] * a + b;
        __asm__ volatile("" : "+m"(v)); /* each round is needed */
    }
    return rounds * 8 * 2;
}

const tt_kernels tt_kernels_ref = {
    .name = "ref",
#endif
    .product = "double",
    .plain = true,
    .lanes = 0,
    .conv_layout = REF(conv_layout),
    .conv_packed = REF(conv_packed),
    .conv_pack = REF(conv_pack),
    .conv_scratch = REF(conv_scratch),
    .conv_forward = REF(conv_forward),
    .conv_backward = REF(conv_backward),
    .maxpool_forward = REF(maxpool_forward),
    .maxpool_backward = REF(maxpool_backward),
    .avgpool_forward = REF(avgpool_forward),
    .avgpool_backward = REF(avgpool_backward),
    .upsample_forward = REF(upsample_forward),
    .upsample_backward = REF(upsample_backward),
    .norm_sums = REF(norm_sums),
    .norm_forward = REF(norm_forward),
    .norm_backward_sums = REF(norm_backward_sums),
    .norm_backward = REF(norm_backward),
    .layernorm_forward = REF(layernorm_forward),
    .layernorm_backward = REF(layernorm_backward),
    .softmax_forward = REF(softmax_forward),
    .softmax_backward = REF(softmax_backward),
    .embed_forward = REF(embed_forward),
    .embed_backward = REF(embed_backward),
    .bag_forward = REF(bag_forward),
    .bag_backward = REF(bag_backward),
    .sum_forward = REF(sum_forward),
    .sum_backward = REF(sum_backward),
    .fm_forward = REF(fm_forward),
    .fm_backward = REF(fm_backward),
    .interact_scratch = REF(interact_scratch),
    .interact_forward = REF(interact_forward),
    .interact_backward = REF(interact_backward),
    .attend_scratch = REF(attend_scratch),
    .attend_forward = REF(attend_forward),
    .attend_backward = REF(attend_backward),
    .recur_packed = REF(recur_packed),
    .recur_pack = REF(recur_pack),
    .recur_scratch = REF(recur_scratch),
    .recur_forward = REF(recur_forward),
    .recur_backward = REF(recur_backward),
    .unary_forward = REF(unary_forward),
    .unary_backward = REF(unary_backward),
    .add = REF(add),
    .mul = REF(mul),
    .shift = REF(shift),
    .gather = REF(gather),
    .widen = REF(widen),
    .narrow = REF(narrow),
    .scale = REF(scale),
    .dropout = REF(dropout),
    .reorder = REF(reorder),
    .loss = REF(loss),
};
