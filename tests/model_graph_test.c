/* The graph and its losses: what is too large is refused, and accuracy is that of the labels. */
#include "model/model.h"
#include "test.h"

typedef struct opened {
    tt_tree *tree;
    tt_model *m;
} opened;

static tt_err open_model(const char *text, int samples, opened *o)
{
    tt_model_opts opts = {.samples = samples};

    *o = (opened){0};
    EXPECT_OK(tt_kernels_find("auto", &opts.kernels));
    EXPECT_OK(tt_tree_parse("job", text, strlen(text), &o->tree));
    return tt_model_open(tt_tree_root(o->tree), &opts, &o->m);
}

static void close_model(opened *o)
{
    tt_model_close(o->m);
    tt_tree_close(o->tree);
}

TT_TEST(graph, what_no_memory_holds_is_refused_where_it_stands)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"input: [65536, 65536]\nlayers: [flatten, dense: {out: 2}]\nloss: softmax_cross_entropy\n",
         "job:1:8: a sample of more than"},
        {"input: [1073741824, 1073741824, 1073741824, 1073741824]\nlayers: [flatten]\nloss: mse\n",
         "job:1:8: a sample of more than"},
        {"input: [1073741824, 1, 1]\n"
         "layers: [conv: {out: 1048576, kernel: 128, padding: 64}]\nloss: mse\n",
         "'conv1' is too large"},
        {"input: [1, 30000, 30000]\nlayers: [conv: {out: 64, kernel: 1}]\nloss: mse\n",
         "'conv1' is too large"},
        {"input: [1000000]\nlayers: [dense: {out: 200000000}]\nloss: mse\n",
         "'dense1' is too large"},
        {"input: [65536, 1]\nlayers: [lstm: {hidden: 65536, last: true}]\nloss: mse\n",
         "lstm 'lstm1': a state of 65536 at 65536 positions is too large"},
    };

    for (int i = 0; i < TT_COUNT(cases); i++) {
        opened o;
        EXPECT_INT(TT_EINVAL, open_model(cases[i].text, 1, &o));
        if (!strstr(tt_message(), cases[i].says))
            FAIL("'%s' is not in: %s", cases[i].says, tt_message());
        close_model(&o);
    }
}

/* LANES counts in 32 bits; this image is past them. */
TT_TEST(graph, large_images_of_few_channels_find_a_layout)
{
    opened o;
    tt_str calls = {0};

    EXPECT_OK(open_model("input: [1, 2048, 2048]\n"
                         "layers: [conv: {out: 32, kernel: 3}, global_avgpool, flatten]\n"
                         "loss: softmax_cross_entropy\n",
                         64, &o));
    tt_model_show_calls(o.m, &calls);
    EXPECT(strstr(calls.data, "conv1"));
    tt_str_free(&calls);
    close_model(&o);
}

TT_TEST(graph, unnamed_layers_are_numbered_past_the_names_given)
{
    opened o;
    const tt_param *p;
    int count;

    EXPECT_OK(
        open_model("input: [3]\n"
                   "layers: [dense: {out: 3}, dense: {out: 3, name: dense2}, dense: {out: 3}]\n"
                   "loss: mse\n",
                   1, &o));
    p = tt_model_params(o.m, &count);
    EXPECT_INT(6, count);
    EXPECT_STR("dense1.weight", p[0].name);
    EXPECT_STR("dense2.weight", p[2].name);
    EXPECT_STR("dense3.weight", p[4].name);
    close_model(&o);
}

/* So that weights move between both without being turned or cut. */
TT_TEST(graph, recurrent_layers_have_the_parameters_of_pytorch)
{
    static const struct {
        const char *name;
        int64_t rows, columns;
    } want[] = {
        {"lstm1.weight_ih", 24, 5}, {"lstm1.weight_hh", 24, 6}, {"lstm1.bias_ih", 24, 1},
        {"lstm1.bias_hh", 24, 1},   {"gru1.weight_ih", 21, 6},  {"gru1.weight_hh", 21, 7},
        {"gru1.bias_ih", 21, 1},    {"gru1.bias_hh", 21, 1},
    };
    opened o;
    const tt_param *p;
    int count;

    EXPECT_OK(
        open_model("input: [9, 5]\nlayers: [lstm: {hidden: 6}, gru: {hidden: 7, last: true}]\n"
                   "loss: mse\n",
                   1, &o));
    p = tt_model_params(o.m, &count);
    EXPECT_INT(TT_COUNT(want), count);
    float *w = calloc((size_t)tt_model_size(o.m), sizeof *w);
    tt_model_init(o.m, 1, w);
    for (int i = 0; i < count; i++) {
        float most = 0, bound = 1 / sqrtf(i < 4 ? 6 : 7);
        EXPECT_STR(want[i].name, p[i].name);
        EXPECT_INT(want[i].rows, p[i].shape[0]);
        EXPECT_INT(want[i].rows * want[i].columns, p[i].n);
        EXPECT_INT(want[i].columns > 1 ? TT_WEIGHT : TT_BIAS, p[i].role);
        for (int64_t k = 0; k < p[i].n; k++) most = fmaxf(most, fabsf(w[p[i].at + k]));
        EXPECT(most <= bound && most > 0.7f * bound); /* uniform, up to 1 / sqrt(hidden) */
    }
    EXPECT(tt_shape_equal((tt_shape){2, {9, 6}}, tt_model_layer(o.m, 0).out));
    EXPECT(tt_shape_equal((tt_shape){1, {7}}, tt_model_layer(o.m, 1).out));
    EXPECT_NEAR(2.0 * 9 * 24 * (5 + 6), tt_model_layer(o.m, 0).flops, 0);
    free(w);
    close_model(&o);
}

TT_TEST(graph, recurrent_layers_say_what_they_take)
{
    opened o;

    EXPECT_INT(TT_EINVAL, open_model("input: [9]\nlayers: [gru: {hidden: 6}]\nloss: mse\n", 1, &o));
    if (!strstr(tt_message(), "gru 'gru1' takes a sequence (positions, features), but its input"))
        FAIL("%s", tt_message());
    close_model(&o);
}

/* Of four rows three have labels, and two of them are right. The autoencoder's loss stands first,
 * last, and between; it has no say. */
TT_TEST(graph, accuracy_is_that_of_the_loss_with_labels)
{
    static const char *const losses[] = {
        "[mse: {target: input}, softmax_cross_entropy]",
        "[softmax_cross_entropy, mse: {target: input}]",
        "[mse: {target: input}, softmax_cross_entropy, mse: {target: input, weight: 0.5}]",
    };
    static const float x[] = {9, 0, 0, 9, 9, 0, 0, 9};
    static const int32_t label[] = {0, 1, 1, -1};
    static const uint64_t place[8];
    const tt_batch b = {.n = 4, .x = x, .label = label, .place = place};
    static const float identity[64] = {1, 0, 0, 1};

    for (int i = 0; i < TT_COUNT(losses); i++) {
        opened o;
        tt_str text = {0};
        tt_run *r;
        tt_yield y;

        tt_str_add(&text, "input: [2]\nlayers: [dense: {out: 2, bias: false}]\nloss: %s\n",
                   losses[i]);
        EXPECT_OK(open_model(text.data, 4, &o));
        tt_model_bind(o.m, identity);
        tt_model_refresh(o.m, 0, 1);
        EXPECT_OK(tt_run_open(o.m, 4, false, &r));
        tt_run_begin(r, TT_PASS_EVAL, &b, NULL, false, 1);
        do tt_run_advance(r, &y);
        while (y.kind != TT_PASS_DONE);
        EXPECT_INT(3, tt_run_result(r)->rows);
        EXPECT_INT(2, tt_run_result(r)->correct);
        tt_run_close(r);
        close_model(&o);
        tt_str_free(&text);
    }
}

/* A dropout of the job's own is none of the preset's. */
TT_TEST(graph, a_preset_takes_its_own_layers)
{
    static const char text[] = "{input: {features: [3], ids: 4}, layers: [dropout: {p: 0.5}, "
                               "gpt: {vocab: 5, layers: 1, heads: 1, width: 4, dropout: 0.1}], "
                               "loss: softmax_cross_entropy}";
    tt_tree *tree;
    tt_model *m;
    bool found = false;

    EXPECT_OK(tt_tree_parse("model", text, strlen(text), &tree));
    EXPECT_OK(tt_model_open(tt_tree_root(tree), &(tt_model_opts){0}, &m));
    for (int i = 0; i < tt_model_layer_count(m); i++) {
        tt_layer_info l = tt_model_layer(m, i);
        if (strcmp(l.name, "h.0.mid")) continue;
        found = true;
        EXPECT(strstr(l.inputs, "drop") && !strstr(l.inputs, "dropout1"));
    }
    EXPECT(found);
    tt_model_close(m);
    tt_tree_close(tree);
}

TT_TEST(graph, a_mistake_inside_a_preset_is_shown_where_the_preset_stands)
{
    opened o;

    EXPECT_ERR(TT_EINVAL, open_model("input: [4]\nlayers:\n- flatten\n"
                                     "- dlrm: {rows: 6, dim: 5}\nloss: bce\n",
                                     8, &o));
    EXPECT_MESSAGE("job:4:3: embeddings 'embeddings' takes ids");
    EXPECT_MESSAGE("- dlrm: {rows: 6, dim: 5}");
    close_model(&o);
}
