/* ref: the kernels that define what is right. Plain loops, sums in double, TT_PLAIN alone. With
 * activations in bf16, what is stored is rounded, and so are the weights that products read. */
#ifndef TT_REF_H
#define TT_REF_H

#include "tensor/tensor.h"

/* Compiled twice, for activations of either type. */
#ifdef TT_ACT_BF16
#define REF(name) tt_ref_bf16_##name
#else
#define REF(name) tt_ref_##name
#endif

tt_layout REF(conv_layout)(const tt_window *w, int n);
size_t REF(conv_packed)(const tt_conv *c);
void REF(conv_pack)(const tt_conv *c, const float *w, tt_act *packed);
size_t REF(conv_scratch)(const tt_conv *c, int n);
void REF(conv_forward)(const tt_conv *c, const tt_conv_args *a);
void REF(conv_backward)(const tt_conv *c, const tt_conv_args *a);

void REF(maxpool_forward)(const tt_pool_args *a);
void REF(maxpool_backward)(const tt_pool_args *a);
void REF(avgpool_forward)(const tt_pool_args *a);
void REF(avgpool_backward)(const tt_pool_args *a);
void REF(upsample_forward)(const tt_upsample_args *a);
void REF(upsample_backward)(const tt_upsample_args *a);

void REF(norm_sums)(const tt_norm_args *a);
void REF(norm_forward)(const tt_norm_args *a);
void REF(norm_backward_sums)(const tt_norm_args *a);
void REF(norm_backward)(const tt_norm_args *a);

void REF(layernorm_forward)(const tt_rows_args *a);
void REF(layernorm_backward)(const tt_rows_args *a);
void REF(softmax_forward)(const tt_rows_args *a, bool log);
void REF(softmax_backward)(const tt_rows_args *a, bool log);

void REF(embed_forward)(const tt_embed_args *a);
void REF(embed_backward)(const tt_embed_args *a);
void REF(bag_forward)(const tt_embed_args *a);
void REF(bag_backward)(const tt_embed_args *a);
void REF(sum_forward)(const tt_fold_args *a);
void REF(sum_backward)(const tt_fold_args *a);
void REF(fm_forward)(const tt_fold_args *a);
void REF(fm_backward)(const tt_fold_args *a);
size_t REF(interact_scratch)(const tt_interact_args *a);
void REF(interact_forward)(const tt_interact_args *a);
void REF(interact_backward)(const tt_interact_args *a);
size_t REF(attend_scratch)(const tt_attend_args *a);
void REF(attend_forward)(const tt_attend_args *a);
void REF(attend_backward)(const tt_attend_args *a);
size_t REF(recur_packed)(const tt_recur_args *a);
void REF(recur_pack)(const tt_recur_args *a, tt_act *packed);
size_t REF(recur_scratch)(const tt_recur_args *a);
void REF(recur_forward)(const tt_recur_args *a);
void REF(recur_backward)(const tt_recur_args *a);

void REF(unary_forward)(tt_unary f, int64_t n, const tt_act *x, tt_act *y);
void REF(unary_backward)(tt_unary f, int64_t n, const tt_act *x, const tt_act *y, const tt_act *dy,
                         tt_act *dx, bool add);
void REF(add)(int64_t n, const tt_act *a, const tt_act *b, tt_act *y);
void REF(mul)(int64_t n, const tt_act *a, const tt_act *b, tt_act *y, bool accumulate);
void REF(shift)(int64_t n, const tt_act *x, const float *w, tt_act *y);
void REF(gather)(int64_t n, const tt_act *dy, float *dw, bool add);
void REF(widen)(int64_t n, const tt_act *x, float *y);
void REF(narrow)(int64_t n, const float *x, tt_act *y, bool add);
void REF(scale)(int64_t n, float k, float *y);
void REF(dropout)(const tt_drop_args *a);
void REF(reorder)(int n, int64_t c, int64_t hw, tt_layout from, const tt_act *x, tt_layout to,
                  tt_act *y, bool add);
void REF(loss)(tt_loss_args *a);

/* An activation as a number, and a number as one. */
static inline double get(tt_act x)
{
#ifdef TT_ACT_BF16
    return tt_bf16_get(x);
#else
    return x;
#endif
}
static inline void set(tt_act *at, double value)
{
#ifdef TT_ACT_BF16
    *at = tt_bf16_of((float)value);
#else
    *at = (float)value;
#endif
}

/* A weight as a product reads it. */
static inline double weight(float w)
{
    tt_act x;
    set(&x, w);
    return get(x);
}

/* The result of a gradient kernel: in place of what is there, or on top of it. */
static inline void put(tt_act *at, double value, bool add)
{
    set(at, add ? get(*at) + value : value);
}
static inline void put_float(float *at, double value, bool add)
{
    *at = (float)(add ? *at + value : value);
}

#endif
