/* table: what the files of one instruction set hand to its table (table.c); see tt_kernels. */
#ifndef TT_SIMD_TABLE_H
#define TT_SIMD_TABLE_H

#include "tensor/simd/simd.h"

tt_layout TT_SIMD(conv_layout)(const tt_window *w, int n);
size_t TT_SIMD(conv_packed)(const tt_conv *c);
void TT_SIMD(conv_pack)(const tt_conv *c, const float *w, float *packed);
size_t TT_SIMD(conv_scratch)(const tt_conv *c, int n);
void TT_SIMD(conv_forward)(const tt_conv *c, const tt_conv_args *a);
void TT_SIMD(conv_backward)(const tt_conv *c, const tt_conv_args *a);

void TT_SIMD(maxpool_forward)(const tt_pool_args *a);
void TT_SIMD(maxpool_backward)(const tt_pool_args *a);
void TT_SIMD(avgpool_forward)(const tt_pool_args *a);
void TT_SIMD(avgpool_backward)(const tt_pool_args *a);
void TT_SIMD(upsample_forward)(const tt_upsample_args *a);
void TT_SIMD(upsample_backward)(const tt_upsample_args *a);

void TT_SIMD(norm_sums)(const tt_norm_args *a);
void TT_SIMD(norm_forward)(const tt_norm_args *a);
void TT_SIMD(norm_backward_sums)(const tt_norm_args *a);
void TT_SIMD(norm_backward)(const tt_norm_args *a);

void TT_SIMD(layernorm_forward)(const tt_rows_args *a);
void TT_SIMD(layernorm_backward)(const tt_rows_args *a);
void TT_SIMD(softmax_forward)(const tt_rows_args *a, bool log);
void TT_SIMD(softmax_backward)(const tt_rows_args *a, bool log);

void TT_SIMD(embed_forward)(const tt_embed_args *a);
void TT_SIMD(embed_backward)(const tt_embed_args *a);
void TT_SIMD(bag_forward)(const tt_embed_args *a);
void TT_SIMD(bag_backward)(const tt_embed_args *a);
void TT_SIMD(sum_forward)(const tt_fold_args *a);
void TT_SIMD(sum_backward)(const tt_fold_args *a);
void TT_SIMD(fm_forward)(const tt_fold_args *a);
void TT_SIMD(fm_backward)(const tt_fold_args *a);
size_t TT_SIMD(interact_scratch)(const tt_interact_args *a);
void TT_SIMD(interact_forward)(const tt_interact_args *a);
void TT_SIMD(interact_backward)(const tt_interact_args *a);
size_t TT_SIMD(attend_scratch)(const tt_attend_args *a);
void TT_SIMD(attend_forward)(const tt_attend_args *a);
void TT_SIMD(attend_backward)(const tt_attend_args *a);
size_t TT_SIMD(recur_packed)(const tt_recur_args *a);
void TT_SIMD(recur_pack)(const tt_recur_args *a, float *packed);
size_t TT_SIMD(recur_scratch)(const tt_recur_args *a);
void TT_SIMD(recur_forward)(const tt_recur_args *a);
void TT_SIMD(recur_backward)(const tt_recur_args *a);

void TT_SIMD(unary_forward)(tt_unary f, int64_t n, const float *x, float *y);
void TT_SIMD(unary_backward)(tt_unary f, int64_t n, const float *x, const float *y, const float *dy,
                             float *dx, bool add);
void TT_SIMD(add)(int64_t n, const float *a, const float *b, float *y);
void TT_SIMD(mul)(int64_t n, const float *a, const float *b, float *y, bool accumulate);
void TT_SIMD(scale)(int64_t n, float k, float *y);
void TT_SIMD(dropout)(const tt_drop_args *a);
void TT_SIMD(reorder)(int n, int64_t c, int64_t hw, tt_layout from, const float *x, tt_layout to,
                      float *y, bool add);
void TT_SIMD(loss)(tt_loss_args *a);

#endif
