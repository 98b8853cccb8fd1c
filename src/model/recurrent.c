/* recurrent: layers that go through a sequence from its first position to its last. */
#include <math.h>

#include "graph.h"

static const tt_key recurrent_keys[] = {
    COMMON,
    {"hidden", TT_INT, offsetof(recurrent_args, hidden), NULL, 1, 1 << 24, NULL,
     "numbers of its state, which is its output"},
    {"last", TT_BOOL, offsetof(recurrent_args, last), "false", 0, 0, NULL,
     "its output is the state of the last position alone"},
};

static tt_err recurrent_shape(graph *g, layer *l)
{
    const recurrent_args *a = l->args;
    int64_t gates = tt_recur_gates(l->kind == &kind_lstm ? TT_LSTM : TT_GRU), h = a->hidden;
    tt_err err = need_sequence(l);

    if (err) return err;
    int64_t t = l->in.dim[0], d = l->in.dim[1];
    /* What is kept of a sample, as any tensor of it, is counted in 32 bits. */
    if (t * h > INT32_MAX / (gates + 2))
        return tt_node_fail(l->at, "%s '%s': a state of %lld at %lld positions is too large",
                            l->kind->name, l->name, (long long)h, (long long)t);
    param_init init = {1 / sqrt((double)h), 0, false};
    l->out = a->last ? (tt_shape){1, {h}} : (tt_shape){2, {t, h}};
    l->flops = 2.0 * (double)(t * gates * h) * (double)(d + h);
    l->detail =
        tt_arena_printf(g->arena, a->last ? "last of %lld" : "%lld positions", (long long)t);
    graph_param(g, l, "weight_ih", TT_WEIGHT, (tt_shape){2, {gates * h, d}}, init, 0);
    graph_param(g, l, "weight_hh", TT_WEIGHT, (tt_shape){2, {gates * h, h}}, init, 0);
    graph_param(g, l, "bias_ih", TT_BIAS, (tt_shape){1, {gates * h}}, init, 0);
    graph_param(g, l, "bias_hh", TT_BIAS, (tt_shape){1, {gates * h}}, init, 0);
    return TT_OK;
}

KIND(lstm, "lstm", recurrent_keys, recurrent_args, 1, 1, recurrent_shape);
KIND(gru, "gru", recurrent_keys, recurrent_args, 1, 1, recurrent_shape);
