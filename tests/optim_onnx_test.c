/* The training vectors of ONNX, run through the public interface.
 *
 * Where the two say the same thing differently: ONNX's norm_coefficient is our l2, Adagrad's
 * decay_factor our lr_decay, momentum's alpha our momentum and its beta 1 - dampening (both leave
 * it out at step 0). ONNX's Adam has no bias correction at T = 0, which is ours of a step so late
 * that the correction has become exactly 1. */
#include "optim_job.h"

#include "onnx.h"

static onnx_tensor load(const char *dir, const char *what, int i)
{
    char path[8400];

    snprintf(path, sizeof path, "%s/test_data_set_0/%s_%d.pb", dir, what, i);
    return onnx_load_tensor(path);
}

/* The job that says what the node says; T becomes our step. */
static void write_job(const onnx_node *node, double lr, int64_t *step, char *yaml, size_t size)
{
    double l2 = onnx_find(node, "norm_coefficient")->f;

    if (!strcmp(node->op, "Adagrad")) {
        snprintf(yaml, size,
                 "{optimizer: {adagrad: {lr: %.9g, l2: %.9g, eps: %.9g, lr_decay: %.9g}}}", lr, l2,
                 onnx_find(node, "epsilon")->f, onnx_find(node, "decay_factor")->f);
    } else if (!strcmp(node->op, "Adam")) {
        if (*step == 0)
            *step = 1000000;
        else
            --*step;
        snprintf(yaml, size,
                 "{optimizer: {adam: {lr: %.9g, l2: %.9g, eps: %.9g, betas: [%.9g, %.9g]}}}", lr,
                 l2, onnx_find(node, "epsilon")->f, onnx_find(node, "alpha")->f,
                 onnx_find(node, "beta")->f);
    } else if (!strcmp(node->op, "Momentum")) {
        const char *mode = onnx_find(node, "mode")->s;
        EXPECT(!strcmp(mode, "standard") || !strcmp(mode, "nesterov"));
        snprintf(yaml, size,
                 "{optimizer: {sgd: {lr: %.9g, l2: %.9g, momentum: %.9g, dampening: %.9g, "
                 "nesterov: %s}}}",
                 lr, l2, onnx_find(node, "alpha")->f, 1 - (double)onnx_find(node, "beta")->f,
                 strcmp(mode, "standard") ? "true" : "false");
    } else {
        FAIL("the node is a %s", node->op);
    }
}

/* Inputs are R, T, then all X, all G, and each kind of state; outputs all X and each kind of state.
 */
static void check_vector(const char *name)
{
    enum { MOST = 64 };
    float w[MOST], g[MOST], s[2][MOST];
    tt_optim_view v = job_view(g, w, s[0], s[1]);
    tt_param params[ONNX_MOST];
    char dir[8192], path[8400], yaml[512];
    onnx_node node;
    onnx_tensor t;
    int tensors, kinds, at = 0, checked = 0;
    int64_t step;
    job j;

    snprintf(dir, sizeof dir, "%s/%s", tt_test_data("onnx/training-subset"), name);
    snprintf(path, sizeof path, "%s/model.onnx", dir);
    node = onnx_load_node(path);
    kinds = !strcmp(node.op, "Adam") ? 4 : 3; /* X, G and state */
    tensors = (node.input_count - 2) / kinds;
    EXPECT(tensors > 0 && node.input_count == 2 + kinds * tensors);
    EXPECT_INT((kinds - 1) * tensors, node.output_count);

    for (int i = 0; i < tensors; i++) {
        for (int k = 0; k < kinds; k++) {
            float *into = k == 0 ? w : k == 1 ? g : s[k - 2];
            t = load(dir, "input", 2 + k * tensors + i);
            EXPECT(at + t.n <= MOST);
            for (int64_t e = 0; e < t.n; e++) into[at + e] = (float)t.x[e];
        }
        params[i] = (tt_param){.name = node.input[2 + i], .at = at, .n = t.n, .role = TT_WEIGHT};
        at += (int)t.n;
    }

    step = (int64_t)load(dir, "input", 1).x[0];
    write_job(&node, load(dir, "input", 0).x[0], &step, yaml, sizeof yaml);
    job_open(&j, yaml, params, tensors);
    EXPECT_INT(kinds - 2, tt_optim_slots(j.o));
    job_step(j.o, step, 1, 1, &v);

    for (int i = 0; i < tensors; i++)
        for (int k = 0; k < kinds - 1; k++) {
            const float *got = (k == 0 ? w : s[k - 1]) + params[i].at;
            t = load(dir, "output", k * tensors + i);
            EXPECT_INT(params[i].n, t.n);
            for (int64_t e = 0; e < t.n; e++, checked++)
                EXPECT_NEAR(t.x[e], got[e], 2e-7 + 3e-7 * fabs(t.x[e]));
        }
    EXPECT(checked >= 2);
    job_close(&j);
}

TT_TEST(optim_onnx, adam)
{
    check_vector("test_adam");
}
TT_TEST(optim_onnx, adam_multiple)
{
    check_vector("test_adam_multiple");
}
TT_TEST(optim_onnx, adagrad)
{
    check_vector("test_adagrad");
}
TT_TEST(optim_onnx, adagrad_multiple)
{
    check_vector("test_adagrad_multiple");
}
TT_TEST(optim_onnx, momentum)
{
    check_vector("test_momentum");
}
TT_TEST(optim_onnx, momentum_multiple)
{
    check_vector("test_momentum_multiple");
}
TT_TEST(optim_onnx, nesterov_momentum)
{
    check_vector("test_nesterov_momentum");
}
