/* enlarge: layers that make images larger: upsampling and transposed convolution. */
#include <stdio.h>
#include <string.h>

#include "graph.h"

/* No image has more pixels along one side. */
enum { SIDE_MOST = 1 << 20 };

static tt_err check_side(const layer *l, int64_t size)
{
    if (size <= SIDE_MOST) return TT_OK;
    return tt_node_fail(l->at, "the output of '%s' would be %lld pixels along a side; %d at most",
                        l->name, (long long)size, SIDE_MOST);
}

/* ---- upsample ---- */

static const tt_key upsample_keys[] = {
    COMMON,
    {"scale", TT_PAIR, offsetof(upsample_args, scale), "2", 1, 4096, NULL,
     "how many times as high and wide"},
    {"mode", TT_CHOICE, offsetof(upsample_args, mode), "nearest", 0, 0, "nearest|bilinear",
     "between pixels: the nearest, or a mixture of four"},
};

static tt_err upsample_shape(graph *g, layer *l)
{
    const upsample_args *a = l->args;
    tt_err err = need_rank(l, 3);

    l->out = l->in;
    for (int i = 0; i < 2 && !err; i++) {
        l->out.dim[1 + i] *= a->scale[i];
        err = check_side(l, l->out.dim[1 + i]);
    }
    l->detail = tt_arena_printf(g->arena, "%lldx%lld, %s", (long long)a->scale[0],
                                (long long)a->scale[1], a->mode ? "bilinear" : "nearest");
    return err;
}

/* ---- transposed convolution ---- */

static const tt_key transpose_keys[] = {
    COMMON,
    {"out", TT_INT, offsetof(transpose_args, out), NULL, 1, SIDE_MOST, NULL, "output channels"},
    {"kernel", TT_PAIR, offsetof(transpose_args, kernel), NULL, 1, 4096, NULL,
     "height and width of the kernel"},
    {"stride", TT_PAIR, offsetof(transpose_args, stride), "1", 1, 4096, NULL,
     "step of the kernel in the output: how many times larger that becomes"},
    {"padding", TT_PAIR, offsetof(transpose_args, padding), "0", 0, 4096, NULL,
     "how much of the output is cut off on every side"},
    {"output_padding", TT_PAIR, offsetof(transpose_args, output_padding), "0", 0, 4095, NULL,
     "how much is added below and on the right; less than the stride"},
    {"bias", TT_BOOL, offsetof(transpose_args, bias), "true", 0, 0, NULL, "add a bias"},
    {"init", TT_CHOICE, offsetof(transpose_args, init), "uniform", 0, 0,
     "uniform|he_normal|xavier_uniform|zeros", "initial weights"},
};

static tt_err transpose_size(const layer *l, const transpose_args *a, int64_t out[2])
{
    for (int i = 0; i < 2; i++) {
        if (a->output_padding[i] >= a->stride[i])
            return tt_node_fail(tt_node_get(l->args_at, "output_padding"),
                                "output_padding: %lld must be less than stride: %lld",
                                (long long)a->output_padding[i], (long long)a->stride[i]);
        out[i] = (l->in.dim[1 + i] - 1) * a->stride[i] + a->kernel[i] + a->output_padding[i] -
                 2 * a->padding[i];
        if (out[i] < 1)
            return tt_node_fail(l->at, "padding: %lld leaves nothing of the output of '%s'",
                                (long long)a->padding[i], l->name);
        tt_err err = check_side(l, out[i]);
        if (err) return err;
    }
    return TT_OK;
}

/* Weights are (in, out, kh, kw), and its fans are PyTorch's: fan-in counts the outputs. */
static tt_err transpose_shape(graph *g, layer *l)
{
    const transpose_args *a = l->args;
    int64_t c = l->in.dim[0], out[2];
    tt_err err = need_rank(l, 3);

    if (err || (err = transpose_size(l, a, out))) return err;
    double taps = (double)(a->kernel[0] * a->kernel[1]), fan_in = (double)a->out * taps,
           fan_out = (double)c * taps;
    char stride[48] = "";

    l->out = (tt_shape){3, {a->out, out[0], out[1]}};
    l->flops = 2.0 * fan_in * (double)tt_shape_count(l->in);
    if (a->stride[0] != 1 || a->stride[1] != 1)
        snprintf(stride, sizeof stride, ", stride %lld", (long long)a->stride[0]);
    l->detail = tt_arena_printf(g->arena, "%lldx%lld%s", (long long)a->kernel[0],
                                (long long)a->kernel[1], stride);
    graph_param(g, l, "weight", TT_WEIGHT, (tt_shape){4, {c, a->out, a->kernel[0], a->kernel[1]}},
                init_of(a->init, fan_in, fan_out), 0);
    if (a->bias)
        graph_param(g, l, "bias", TT_BIAS, (tt_shape){1, {a->out}},
                    a->init == 0 ? init_of(0, fan_in, 0) : (param_init){0}, 0);
    return TT_OK;
}

KIND(upsample, "upsample", upsample_keys, upsample_args, 1, 1, upsample_shape);
KIND(conv_transpose, "conv_transpose", transpose_keys, transpose_args, 1, 1, transpose_shape);
