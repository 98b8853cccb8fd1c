/* The table of plain C. */
#include "tensor/ref/ref.h"
#include "tensor/tables.h"

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
    .lanes = 0,
    .conv_layout = tt_ref_conv_layout,
    .conv_packed = tt_ref_conv_packed,
    .conv_pack = tt_ref_conv_pack,
    .conv_scratch = tt_ref_conv_scratch,
    .conv_forward = tt_ref_conv_forward,
    .conv_backward = tt_ref_conv_backward,
    .maxpool_forward = tt_ref_maxpool_forward,
    .maxpool_backward = tt_ref_maxpool_backward,
    .avgpool_forward = tt_ref_avgpool_forward,
    .avgpool_backward = tt_ref_avgpool_backward,
    .upsample_forward = tt_ref_upsample_forward,
    .upsample_backward = tt_ref_upsample_backward,
    .norm_sums = tt_ref_norm_sums,
    .norm_forward = tt_ref_norm_forward,
    .norm_backward_sums = tt_ref_norm_backward_sums,
    .norm_backward = tt_ref_norm_backward,
    .layernorm_forward = tt_ref_layernorm_forward,
    .layernorm_backward = tt_ref_layernorm_backward,
    .softmax_forward = tt_ref_softmax_forward,
    .softmax_backward = tt_ref_softmax_backward,
    .embed_forward = tt_ref_embed_forward,
    .embed_backward = tt_ref_embed_backward,
    .bag_forward = tt_ref_bag_forward,
    .bag_backward = tt_ref_bag_backward,
    .sum_forward = tt_ref_sum_forward,
    .sum_backward = tt_ref_sum_backward,
    .fm_forward = tt_ref_fm_forward,
    .fm_backward = tt_ref_fm_backward,
    .interact_scratch = tt_ref_interact_scratch,
    .interact_forward = tt_ref_interact_forward,
    .interact_backward = tt_ref_interact_backward,
    .attend_scratch = tt_ref_attend_scratch,
    .attend_forward = tt_ref_attend_forward,
    .attend_backward = tt_ref_attend_backward,
    .recur_packed = tt_ref_recur_packed,
    .recur_pack = tt_ref_recur_pack,
    .recur_scratch = tt_ref_recur_scratch,
    .recur_forward = tt_ref_recur_forward,
    .recur_backward = tt_ref_recur_backward,
    .unary_forward = tt_ref_unary_forward,
    .unary_backward = tt_ref_unary_backward,
    .add = tt_ref_add,
    .mul = tt_ref_mul,
    .scale = tt_ref_scale,
    .dropout = tt_ref_dropout,
    .reorder = tt_ref_reorder,
    .loss = tt_ref_loss,
};
