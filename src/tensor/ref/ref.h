/* ref: the kernels that define what is right. Plain loops, sums in double, TT_PLAIN alone. */
#ifndef TT_REF_H
#define TT_REF_H

#include "tensor/tensor.h"

tt_layout tt_ref_conv_layout(const tt_window *w, int n);
size_t tt_ref_conv_packed(const tt_conv *c);
void tt_ref_conv_pack(const tt_conv *c, const float *w, float *packed);
size_t tt_ref_conv_scratch(const tt_conv *c, int n);
void tt_ref_conv_forward(const tt_conv *c, const tt_conv_args *a);
void tt_ref_conv_backward(const tt_conv *c, const tt_conv_args *a);

void tt_ref_maxpool_forward(const tt_pool_args *a);
void tt_ref_maxpool_backward(const tt_pool_args *a);
void tt_ref_avgpool_forward(const tt_pool_args *a);
void tt_ref_avgpool_backward(const tt_pool_args *a);
void tt_ref_upsample_forward(const tt_upsample_args *a);
void tt_ref_upsample_backward(const tt_upsample_args *a);

void tt_ref_norm_sums(const tt_norm_args *a);
void tt_ref_norm_forward(const tt_norm_args *a);
void tt_ref_norm_backward_sums(const tt_norm_args *a);
void tt_ref_norm_backward(const tt_norm_args *a);

void tt_ref_layernorm_forward(const tt_rows_args *a);
void tt_ref_layernorm_backward(const tt_rows_args *a);
void tt_ref_softmax_forward(const tt_rows_args *a, bool log);
void tt_ref_softmax_backward(const tt_rows_args *a, bool log);

void tt_ref_embed_forward(const tt_embed_args *a);
void tt_ref_embed_backward(const tt_embed_args *a);
void tt_ref_bag_forward(const tt_embed_args *a);
void tt_ref_bag_backward(const tt_embed_args *a);
void tt_ref_sum_forward(const tt_fold_args *a);
void tt_ref_sum_backward(const tt_fold_args *a);
void tt_ref_fm_forward(const tt_fold_args *a);
void tt_ref_fm_backward(const tt_fold_args *a);
size_t tt_ref_interact_scratch(const tt_interact_args *a);
void tt_ref_interact_forward(const tt_interact_args *a);
void tt_ref_interact_backward(const tt_interact_args *a);
size_t tt_ref_attend_scratch(const tt_attend_args *a);
void tt_ref_attend_forward(const tt_attend_args *a);
void tt_ref_attend_backward(const tt_attend_args *a);
size_t tt_ref_recur_packed(const tt_recur_args *a);
void tt_ref_recur_pack(const tt_recur_args *a, float *packed);
size_t tt_ref_recur_scratch(const tt_recur_args *a);
void tt_ref_recur_forward(const tt_recur_args *a);
void tt_ref_recur_backward(const tt_recur_args *a);

void tt_ref_unary_forward(tt_unary f, int64_t n, const float *x, float *y);
void tt_ref_unary_backward(tt_unary f, int64_t n, const float *x, const float *y, const float *dy,
                           float *dx, bool add);
void tt_ref_add(int64_t n, const float *a, const float *b, float *y);
void tt_ref_mul(int64_t n, const float *a, const float *b, float *y, bool accumulate);
void tt_ref_scale(int64_t n, float k, float *y);
void tt_ref_dropout(const tt_drop_args *a);
void tt_ref_reorder(int n, int64_t c, int64_t hw, tt_layout from, const float *x, tt_layout to,
                    float *y, bool add);
void tt_ref_loss(tt_loss_args *a);

/* The result of a gradient kernel: in place of what is there, or on top of it. */
static inline void tt_ref_put(float *at, double value, bool add)
{
    *at = (float)(add ? *at + value : value);
}

#endif
