/* preset: families of models that stand for layers a user could have written: the expansion is job
 * text.
 *
 * Names follow torchvision (conv1, layer1.0.bn2, fc) and Hugging Face's GPT-2 (wte,
 * h.0.attn.c_attn), so that weights from there load with --init.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph.h"

typedef struct mlp_args {
    tt_ints hidden;
    int64_t out;
    int activation;
    double dropout;
} mlp_args;

static const tt_key mlp_keys[] = {
    {"hidden", TT_INTS, offsetof(mlp_args, hidden), NULL, 1, 1 << 28, NULL,
     "sizes of the hidden layers"},
    {"out", TT_INT, offsetof(mlp_args, out), NULL, 1, 1 << 28, NULL, "outputs"},
    {"activation", TT_CHOICE, offsetof(mlp_args, activation), "relu", 0, 0,
     "relu|gelu|tanh|sigmoid", "between the layers"},
    {"dropout", TT_NUMBER, offsetof(mlp_args, dropout), "0", 0, 0.999, NULL,
     "behind each hidden layer"},
};

static tt_err expand_mlp(tt_node *args, tt_shape input, tt_str *out)
{
    static const char *const activations[] = {"relu", "gelu", "tanh", "sigmoid"};
    mlp_args a = {0};
    tt_err err = tt_node_read(args, "mlp", mlp_keys, TT_COUNT(mlp_keys), &a);

    if (err) return err;
    if (input.rank != 1) tt_str_add(out, "- flatten\n");
    for (int i = 0; i < a.hidden.count; i++) {
        tt_str_add(out, "- dense: {out: %lld}\n- %s\n", (long long)a.hidden.item[i],
                   activations[a.activation]);
        if (a.dropout > 0) tt_str_add(out, "- dropout: {p: %.9g}\n", a.dropout);
    }
    tt_str_add(out, "- dense: {out: %lld}\n", (long long)a.out);
    return TT_OK;
}

typedef struct resnet_args {
    int64_t depth, classes, width;
    int stem;
} resnet_args;

static const tt_key resnet_keys[] = {
    {"depth", TT_INT, offsetof(resnet_args, depth), NULL, 18, 152, NULL, "18, 34, 50, 101 or 152"},
    {"classes", TT_INT, offsetof(resnet_args, classes), NULL, 1, 1 << 24, NULL, "outputs"},
    {"stem", TT_CHOICE, offsetof(resnet_args, stem), "imagenet", 0, 0, "imagenet|cifar",
     "imagenet: 7x7 stride 2 and a max pool; cifar: 3x3"},
    {"width", TT_INT, offsetof(resnet_args, width), "64", 1, 4096, NULL,
     "channels of the first stage"},
};

/* Its input is `from`, or with "" the layer before. */
static void conv_bn(tt_str *out, const char *block, const char *conv, const char *bn,
                    const char *from, long long ch, int kernel, int stride)
{
    tt_str_add(out,
               "- conv: {name: %s%s%s%s, out: %lld, kernel: %d, stride: %d, padding: %d, bias: "
               "false, init: he_normal}\n",
               block, conv, *from ? ", from: " : "", from, ch, kernel, stride, kernel / 2);
    tt_str_add(out, "- batchnorm: {name: %s%s}\n", block, bn);
}

static tt_err expand_resnet(tt_node *args, tt_str *out)
{
    static const struct {
        int depth, blocks[4];
        bool bottleneck;
    } table[] = {
        {18, {2, 2, 2, 2}, false},  {34, {3, 4, 6, 3}, false},  {50, {3, 4, 6, 3}, true},
        {101, {3, 4, 23, 3}, true}, {152, {3, 8, 36, 3}, true},
    };
    resnet_args a = {0};
    tt_err err = tt_node_read(args, "resnet", resnet_keys, TT_COUNT(resnet_keys), &a);
    int k = 0;

    if (err) return err;
    while (k < TT_COUNT(table) && table[k].depth != a.depth) k++;
    if (k == TT_COUNT(table))
        return tt_node_fail(tt_node_get(args, "depth"), "depth is 18, 34, 50, 101 or 152");
    conv_bn(out, "", "conv1", "bn1", "", (long long)a.width, a.stem ? 3 : 7, a.stem ? 1 : 2);
    tt_str_add(out, "- relu: {name: relu}\n");
    if (!a.stem) tt_str_add(out, "- maxpool: {name: maxpool, size: 3, stride: 2, padding: 1}\n");

    int64_t have = a.width;
    for (int st = 0; st < 4; st++)
        for (int b = 0; b < table[k].blocks[st]; b++) {
            char block[32], before[48];
            int64_t ch = a.width << st, give = table[k].bottleneck ? 4 * ch : ch;
            int stride = st && !b ? 2 : 1;
            bool project = stride != 1 || have != give;
            snprintf(block, sizeof block, "layer%d.%d.", st + 1, b);
            if (b)
                snprintf(before, sizeof before, "layer%d.%d.relu", st + 1, b - 1);
            else if (st)
                snprintf(before, sizeof before, "layer%d.%d.relu", st, table[k].blocks[st - 1] - 1);
            else
                snprintf(before, sizeof before, "%s", a.stem ? "relu" : "maxpool");
            if (table[k].bottleneck) {
                conv_bn(out, block, "conv1", "bn1", "", (long long)ch, 1, 1);
                tt_str_add(out, "- relu\n");
                conv_bn(out, block, "conv2", "bn2", "", (long long)ch, 3, stride);
                tt_str_add(out, "- relu\n");
                conv_bn(out, block, "conv3", "bn3", "", (long long)give, 1, 1);
            } else {
                conv_bn(out, block, "conv1", "bn1", "", (long long)ch, 3, stride);
                tt_str_add(out, "- relu\n");
                conv_bn(out, block, "conv2", "bn2", "", (long long)ch, 3, 1);
            }
            if (project)
                conv_bn(out, block, "downsample.0", "downsample.1", before, (long long)give, 1,
                        stride);
            tt_str_add(out, "- add: {name: %sadd, from: [%sbn%d, %s%s]}\n- relu: {name: %srelu}\n",
                       block, block, table[k].bottleneck ? 3 : 2, project ? block : "",
                       project ? "downsample.1" : before, block);
            have = give;
        }
    tt_str_add(out,
               "- global_avgpool: {name: avgpool}\n- flatten\n- dense: {name: fc, out: %lld}\n",
               (long long)a.classes);
    return TT_OK;
}

typedef struct gpt_args {
    int64_t vocab, layers, heads, width, positions;
    double dropout;
    bool bias, tanh;
} gpt_args;

static const tt_key gpt_keys[] = {
    {"vocab", TT_INT, offsetof(gpt_args, vocab), NULL, 1, INT32_MAX, NULL, "tokens there are"},
    {"layers", TT_INT, offsetof(gpt_args, layers), NULL, 1, 1000, NULL, "blocks"},
    {"heads", TT_INT, offsetof(gpt_args, heads), NULL, 1, 1 << 16, NULL, "heads of each block"},
    {"width", TT_INT, offsetof(gpt_args, width), NULL, 1, 1 << 20, NULL, "features of a position"},
    {"positions", TT_INT, offsetof(gpt_args, positions), "0", 0, 1 << 24, NULL,
     "the longest context there are weights for; 0: the model's own"},
    {"dropout", TT_NUMBER, offsetof(gpt_args, dropout), "0", 0, 0.999, NULL,
     "behind the embedding and each branch"},
    {"bias", TT_BOOL, offsetof(gpt_args, bias), "true", 0, 0, NULL, "dense layers have a bias"},
    {"tanh", TT_BOOL, offsetof(gpt_args, tanh), "true", 0, 0, NULL,
     "its gelu is the approximation by tanh, as GPT-2 has it"},
};

/* Initial weights as GPT-2 has them: those that end a branch are smaller, the more branches there
 * are. */
static tt_err expand_gpt(tt_node *args, tt_str *out)
{
    gpt_args a = {0};
    tt_err err = tt_node_read(args, "gpt", gpt_keys, TT_COUNT(gpt_keys), &a);
    char drop[48] = "";
    const char *bias = a.bias ? "true" : "false";

    if (err) return err;
    if (a.width % a.heads)
        return tt_node_fail(tt_node_get(args, "width"), "width: %lld is not divided by heads: %lld",
                            (long long)a.width, (long long)a.heads);
    if (a.dropout > 0) snprintf(drop, sizeof drop, "- dropout: {p: %.9g}\n", a.dropout);
    tt_str_add(out,
               "- embedding: {name: wte, rows: %lld, dim: %lld, std: 0.02}\n"
               "- positions: {name: wpe, count: %lld, std: 0.02}\n",
               (long long)a.vocab, (long long)a.width, (long long)a.positions);
    if (a.dropout > 0) tt_str_add(out, "- dropout: {name: drop, p: %.9g}\n", a.dropout);
    for (int i = 0; i < a.layers; i++) {
        double end = 0.02 / sqrt(2.0 * (double)a.layers);
        tt_str_add(out,
                   "- layernorm: {name: h.%d.ln_1}\n"
                   "- dense: {name: h.%d.attn.c_attn, out: %lld, bias: %s, init: normal}\n"
                   "- attention: {name: h.%d.attn, heads: %lld}\n"
                   "- dense: {name: h.%d.attn.c_proj, out: %lld, bias: %s, init: normal, std: "
                   "%.9g}\n%s",
                   i, i, (long long)(3 * a.width), bias, i, (long long)a.heads, i,
                   (long long)a.width, bias, end, drop);
        if (i)
            tt_str_add(out, "- add: {name: h.%d.mid, from: [prev, h.%d.out]}\n", i, i - 1);
        else
            tt_str_add(out, "- add: {name: h.0.mid, from: [prev, %s]}\n",
                       a.dropout > 0 ? "drop" : "wpe");
        tt_str_add(out,
                   "- layernorm: {name: h.%d.ln_2}\n"
                   "- dense: {name: h.%d.mlp.c_fc, out: %lld, bias: %s, init: normal}\n- gelu: "
                   "{tanh: %s}\n"
                   "- dense: {name: h.%d.mlp.c_proj, out: %lld, bias: %s, init: normal, std: "
                   "%.9g}\n%s- add: {name: h.%d.out, from: [prev, h.%d.mid]}\n",
                   i, i, (long long)(4 * a.width), bias, a.tanh ? "true" : "false", i,
                   (long long)a.width, bias, end, drop, i, i);
    }
    tt_str_add(out,
               "- layernorm: {name: ln_f}\n"
               "- dense: {name: lm_head, out: %lld, bias: false, tied: wte}\n",
               (long long)a.vocab);
    return TT_OK;
}

bool is_preset(const char *name)
{
    return !strcmp(name, "mlp") || !strcmp(name, "resnet") || !strcmp(name, "gpt") ||
           !strcmp(name, "dlrm") || !strcmp(name, "wide_deep") || !strcmp(name, "deepfm");
}

tt_err preset_expand(const char *name, tt_node *args, tt_shape input, int64_t ids, tt_str *out)
{
    return !strcmp(name, "mlp")         ? expand_mlp(args, input, out)
           : !strcmp(name, "gpt")       ? expand_gpt(args, out)
           : !strcmp(name, "dlrm")      ? expand_dlrm(args, input, ids, out)
           : !strcmp(name, "wide_deep") ? expand_wide_deep(args, input, ids, out)
           : !strcmp(name, "deepfm")    ? expand_deepfm(args, input, ids, out)
                                        : expand_resnet(args, out);
}
