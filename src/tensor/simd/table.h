/* table: what the files of one instruction set hand to its table (table.c); see tt_kernels. */
#ifndef TT_SIMD_TABLE_H
#define TT_SIMD_TABLE_H

#include "tensor/simd/simd.h"

tt_layout TT_PROD(conv_layout)(const tt_window *w, int n);
size_t TT_PROD(conv_packed)(const tt_conv *c);
void TT_PROD(conv_pack)(const tt_conv *c, const float *w, tt_act *packed);
size_t TT_PROD(conv_scratch)(const tt_conv *c, int n);
void TT_PROD(conv_forward)(const tt_conv *c, const tt_conv_args *a);
void TT_PROD(conv_backward)(const tt_conv *c, const tt_conv_args *a);

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
size_t TT_PROD(attend_scratch)(const tt_attend_args *a);
void TT_PROD(attend_forward)(const tt_attend_args *a);
void TT_PROD(attend_backward)(const tt_attend_args *a);
size_t TT_PROD(recur_packed)(const tt_recur_args *a);
void TT_PROD(recur_pack)(const tt_recur_args *a, tt_act *packed);
size_t TT_PROD(recur_scratch)(const tt_recur_args *a);
void TT_PROD(recur_forward)(const tt_recur_args *a);
void TT_PROD(recur_backward)(const tt_recur_args *a);

void TT_SIMD(unary_forward)(tt_unary f, int64_t n, const tt_act *x, tt_act *y);
void TT_SIMD(unary_backward)(tt_unary f, int64_t n, const tt_act *x, const tt_act *y,
                             const tt_act *dy, tt_act *dx, bool add);
void TT_SIMD(add)(int64_t n, const tt_act *a, const tt_act *b, tt_act *y);
void TT_SIMD(mul)(int64_t n, const tt_act *a, const tt_act *b, tt_act *y, bool accumulate);
void TT_SIMD(shift)(int64_t n, const tt_act *x, const float *w, tt_act *y);
void TT_SIMD(gather)(int64_t n, const tt_act *dy, float *dw, bool add);
void TT_SIMD(widen)(int64_t n, const tt_act *x, float *y);
void TT_SIMD(narrow)(int64_t n, const float *x, tt_act *y, bool add);
void TT_SIMD(scale)(int64_t n, float k, float *y);
void TT_SIMD(dropout)(const tt_drop_args *a);
void TT_SIMD(reorder)(int n, int64_t c, int64_t hw, tt_layout from, const tt_act *x, tt_layout to,
                      tt_act *y, bool add);
void TT_SIMD(loss)(tt_loss_args *a);

#endif
