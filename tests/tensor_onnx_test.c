/* Batch norm and dropout against ONNX's own vectors for training mode. */
#include "onnx.h"
#include "tensor_help.h"

typedef struct tensor {
    int rank;
    int64_t dim[6], n;
    float *x;
} tensor;

/* TensorProto: 1 dims, 2 data_type (1 float, 9 bool, 11 double), 9 raw_data. */
static tensor load(const char *folder, const char *name)
{
    tensor t = {.n = 1};
    onnx_field f;
    tt_bytes b;
    char path[8192];
    const uint8_t *p, *raw = NULL;
    size_t size = 0;
    uint64_t type = 0;

    snprintf(path, sizeof path, "%s/test_data_set_0/%s.pb", folder, name);
    EXPECT_OK(tt_file_read(path, 1 << 20, &b));
    p = b.data;
    while (onnx_next(&p, b.data + b.size, &f)) {
        if (f.number == 1 && t.rank < 6) t.n *= t.dim[t.rank++] = (int64_t)f.value;
        if (f.number == 2) type = f.value;
        if (f.number == 9) raw = f.data, size = (size_t)(f.data_end - f.data);
    }
    int64_t width = type == 1 ? 4 : type == 11 ? 8 : 1;
    EXPECT(type == 1 || type == 9 || type == 11);
    EXPECT(raw && size == (size_t)(t.n * width));
    t.x = help_floats(t.n);
    for (int64_t i = 0; i < t.n; i++) {
        double wide;
        if (type == 1)
            memcpy(&t.x[i], raw + 4 * i, 4);
        else if (type == 11)
            memcpy(&wide, raw + 8 * i, 8), t.x[i] = (float)wide;
        else
            t.x[i] = raw[i];
    }
    tt_file_release(&b);
    return t;
}

static void folder_of(const char *test, char *out, size_t size)
{
    char name[256];

    snprintf(name, sizeof name, "onnx/training-subset/%s", test);
    snprintf(out, size, "%s", tt_test_data(name));
}

/* The folder holds the model's momentum and epsilon as attributes; a default is not written there.
 */
static float attribute(const char *folder, const char *name, float otherwise)
{
    char path[8192];

    snprintf(path, sizeof path, "%s/model.onnx", folder);
    onnx_node node = onnx_load_node(path);
    for (int i = 0; i < node.attribute_count; i++)
        if (!strcmp(node.attribute[i].name, name)) return node.attribute[i].f;
    return otherwise;
}

static void batchnorm(const char *test)
{
    char folder[4096];
    const tt_kernels *const *all;
    int count = tt_kernels_all(&all);

    folder_of(test, folder, sizeof folder);
    tensor x = load(folder, "input_0"), scale = load(folder, "input_1"),
           bias = load(folder, "input_2");
    tensor mean = load(folder, "input_3"), var = load(folder, "input_4");
    tensor y = load(folder, "output_0"), mean_out = load(folder, "output_1");
    tensor var_out = load(folder, "output_2");
    int n = (int)x.dim[0];
    int64_t c = x.dim[1], hw = x.n / n / c;
    float eps = attribute(folder, "epsilon", 1e-5f), keep = attribute(folder, "momentum", 0.9f);
    double sums[64];

    EXPECT(2 * c + 1 <= TT_COUNT(sums));
    for (int i = 0; i < count; i++)
        for (tt_layout l = TT_PLAIN; l <= (all[i]->lanes ? TT_LANES : TT_PLAIN); l++) {
            help_form f = {l, all[i]->lanes, n, c, hw};
            float *m = help_floats(c), *rstd = help_floats(c), *out = help_floats(help_size(f));
            tt_norm_args a = {.a = n,
                              .c = c,
                              .b = hw,
                              .x = help_into(f, x.x, 3),
                              .gamma = scale.x,
                              .beta = bias.x,
                              .shift = mean.x,
                              .sums = sums,
                              .mean = m,
                              .rstd = rstd,
                              .y = out};
            if (l == TT_NHWC) a.a = n * hw, a.b = 1;
            if (l == TT_LANES)
                a.a = help_slices(f), a.b = hw * f.lanes, a.lanes = f.lanes,
                a.valid = n - (int)(help_slices(f) - 1) * f.lanes;
            all[i]->norm_sums(&a);
            for (int k = 0; k < c; k++) {
                double d = sums[k] / sums[2 * c], v = sums[c + k] / sums[2 * c] - d * d;
                m[k] = (float)(d + mean.x[k]);
                rstd[k] = (float)(1 / sqrt(v + eps));
                EXPECT_NEAR(mean_out.x[k], keep * mean.x[k] + (1 - keep) * m[k], 1e-6);
                EXPECT_NEAR(var_out.x[k], keep * var.x[k] + (1 - keep) * v, 1e-6);
            }
            all[i]->norm_forward(&a);
            EXPECT_ALL_NEAR(y.x, help_plain(f, out), y.n, 2e-6);
        }
    help_free();
}

TT_TEST(tensor_onnx, batchnorm_example_training_mode)
{
    batchnorm("test_batchnorm_example_training_mode");
}
TT_TEST(tensor_onnx, batchnorm_epsilon_training_mode)
{
    batchnorm("test_batchnorm_epsilon_training_mode");
}

/* The vectors' random numbers are numpy's, so which elements are dropped cannot agree; what happens
 * to the others, and to all at a ratio of 0, must. */
static void dropout(const char *test, bool has_mask)
{
    char folder[4096];
    const tt_kernels *const *all;
    int count = tt_kernels_all(&all);
    uint64_t place[2] = {0, 0};

    folder_of(test, folder, sizeof folder);
    tensor x = load(folder, "input_0"), ratio = load(folder, "input_1"),
           y = load(folder, "output_0");
    for (int i = 0; i < count; i++) {
        float *out = help_floats(x.n), *ones = help_floats(x.n), *mask = help_floats(x.n);
        tt_drop_args a = {
            .n = 1, .c = x.n, .hw = 1, .p = ratio.x[0], .place = place, .x = x.x, .y = out};
        all[i]->dropout(&a);
        for (int64_t e = 0; e < x.n; e++) ones[e] = 1;
        a.x = ones, a.y = mask;
        all[i]->dropout(&a);
        for (int64_t e = 0; e < x.n; e++) {
            EXPECT((out[e] != 0) == (mask[e] != 0)); /* the mask does not depend on what it masks */
            if (out[e] != 0 && y.x[e] != 0) EXPECT_NEAR(y.x[e], out[e], 1e-6);
        }
        if (ratio.x[0] == 0) EXPECT_ALL_NEAR(y.x, out, x.n, 0);
    }
    if (has_mask) {
        tensor kept = load(folder, "output_1");
        for (int64_t e = 0; e < x.n; e++) EXPECT((kept.x[e] != 0) == (y.x[e] != 0));
    }
    help_free();
}

TT_TEST(tensor_onnx, dropout_scales_what_it_keeps)
{
    dropout("test_training_dropout", false);
    dropout("test_training_dropout_mask", true);
    dropout("test_training_dropout_default", false);
    dropout("test_training_dropout_default_mask", true);
}

TT_TEST(tensor_onnx, dropout_of_nothing_changes_nothing)
{
    dropout("test_training_dropout_zero_ratio", false);
    dropout("test_training_dropout_zero_ratio_mask", true);
}
