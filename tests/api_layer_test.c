/* Layers that programs add: equal to the built-in ones where they do the same, and checked. */
#include <stdatomic.h>

#include "api_help.h"

/* ---- a dense layer of our own, whose mistakes can be chosen ---- */

typedef enum mistake {
    NONE,
    WRONG_DX,
    WRONG_DW,
    OVERWRITES_DW,
    LEAVES_DX,
    BEYOND_Y,
    BEYOND_DX,
    BEYOND_DW,
    LEAVES_Y
} mistake;

static tutti_status dense_shape(const tutti_args *args, void *user, tutti_shape in,
                                tutti_shape *out, tutti_param params[TUTTI_PARAMS], int *count)
{
    double n = tutti_arg(args, "out");

    (void)user;
    if (in.rank != 1) return tutti_fail(TUTTI_EINVAL, "it takes a vector");
    if (n < 1 || n > 1e6 || n != floor(n)) return tutti_fail(TUTTI_EINVAL, "out is no size: %g", n);
    *out = (tutti_shape){1, {(int64_t)n}};
    params[0] = (tutti_param){.name = "weight",
                              .shape = {2, {(int64_t)n, in.dim[0]}},
                              .fan_in = (double)in.dim[0],
                              .decay = true};
    params[1] =
        (tutti_param){.name = "bias", .shape = {1, {(int64_t)n}}, .fan_in = (double)in.dim[0]};
    *count = 2;
    return TUTTI_OK;
}

static void dense_forward(const tutti_pass *p)
{
    mistake m = p->user ? *(mistake *)p->user : NONE;
    int64_t rows = m == LEAVES_Y ? p->rows - 1 : p->rows;

    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < p->out_count; o++) {
            float sum = p->w[1][o];
            for (int64_t i = 0; i < p->in_count; i++)
                sum += p->w[0][o * p->in_count + i] * p->x[r * p->in_count + i];
            p->y[r * p->out_count + o] = (float)tutti_arg(p->args, "gain") * sum;
        }
    if (m == BEYOND_Y) p->y[p->rows * p->out_count] = 1;
}

static void dense_backward(const tutti_pass *p)
{
    mistake m = p->user ? *(mistake *)p->user : NONE;
    float gain = (float)tutti_arg(p->args, "gain");
    int64_t in = p->in_count, out = p->out_count;

    for (int64_t k = 0; p->dx && m != LEAVES_DX && k < p->rows * in; k++) p->dx[k] = 0;
    for (int64_t k = 0; p->dw[0] && m == OVERWRITES_DW && k < in * out; k++) p->dw[0][k] = 0;
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t o = 0; o < out; o++) {
            float g = gain * p->dy[r * out + o];
            for (int64_t i = 0; i < in; i++) {
                float wrong = m == WRONG_DX ? 1.1f : 1;
                if (p->dx) p->dx[r * in + i] += wrong * g * p->w[0][o * in + i];
                wrong = m == WRONG_DW ? 0.9f : 1;
                if (p->dw[0]) p->dw[0][o * in + i] += wrong * g * p->x[r * in + i];
            }
            if (p->dw[1]) p->dw[1][o] += g;
        }
    if (m == BEYOND_DX && p->dx) p->dx[p->rows * in] = 0;
    if (m == BEYOND_DW && p->dw[1]) p->dw[1][out] = 0;
}

static const tutti_layer own_dense = {.kind = "own_dense",
                                      .keys = "out, gain: 1",
                                      .shape = dense_shape,
                                      .forward = dense_forward,
                                      .backward = dense_backward};

/* Kinds stay for the whole program, so each test adds what it needs unless it is there. */
static void add_dense(void)
{
    static bool added;
    if (!added) OK(tutti_layer_add(&own_dense));
    added = true;
}

static tutti_model *train_dense_in(const char *precision, const char *first, const char *second,
                                   int threads)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows, .threads = threads};
    tutti_model *m;
    tutti_job *job;

    OK(tutti_job_new("dense", &job));
    tutti_job_set(job, "model.input=[2]");
    tutti_job_layer(job, "%s: {name: dense1, out: 16}", first);
    tutti_job_layer(job, "tanh");
    tutti_job_layer(job, "%s: {name: dense2, out: 2}", second);
    tutti_job_set(job, "model.loss=softmax_cross_entropy");
    tutti_job_set(job, "train={epochs: 5, batch: 40, optimizer: {sgd: {lr: 0.1, momentum: 0.9}}}");
    tutti_job_set(job, "train.precision=%s", precision);
    OK(tutti_train(job, &o, NULL, &m));
    tutti_job_close(job);
    return m;
}

static tutti_model *train_dense(const char *first, const char *second, int threads)
{
    return train_dense_in("float32", first, second, threads);
}

static void expect_weights_within(double off, const tutti_model *a, const tutti_model *b)
{
    static const char *const names[] = {"dense1.weight", "dense1.bias", "dense2.weight",
                                        "dense2.bias"};
    const float *p, *q;
    tutti_shape s;

    for (int i = 0; i < TT_COUNT(names); i++) {
        OK(tutti_model_param(a, names[i], &s, &p));
        OK(tutti_model_param(b, names[i], NULL, &q));
        for (int64_t k = 0; k < tutti_shape_count(s); k++) EXPECT_NEAR(p[k], q[k], off);
    }
}

static void expect_near_weights(const tutti_model *a, const tutti_model *b)
{
    expect_weights_within(1e-4, a, b);
}

TT_TEST(api_layer, ours_trains_as_the_built_in_one_does)
{
    tutti_model *own, *mixed, *built_in;

    add_dense();
    built_in = train_dense("dense", "dense", 1);
    own = train_dense("own_dense", "own_dense", 1);
    mixed = train_dense("dense", "own_dense", 2);
    expect_near_weights(built_in, own);
    expect_near_weights(built_in, mixed);
    tutti_model_close(built_in);
    tutti_model_close(own);
    tutti_model_close(mixed);
}

/* It sees float32, and learns what the built-in one does but for the rounding between layers. */
TT_TEST(api_layer, ours_trains_in_bf16_too)
{
    tutti_model *own, *mixed, *built_in;

    add_dense();
    built_in = train_dense("dense", "dense", 1);
    own = train_dense_in("bf16", "own_dense", "own_dense", 1);
    mixed = train_dense_in("bf16", "dense", "own_dense", 2);
    expect_weights_within(0.02, built_in, own);
    expect_weights_within(0.02, built_in, mixed);
    tutti_model_close(built_in);
    tutti_model_close(own);
    tutti_model_close(mixed);
}

TT_TEST(api_layer, check_accepts_what_is_right_and_finds_what_is_not)
{
    static mistake m;
    static const struct {
        mistake m;
        const char *says;
    } wrong[] = {
        {WRONG_DX, "the gradient of x["},       {WRONG_DW, "the gradient of weight["},
        {OVERWRITES_DW, "gradient of weight["}, {LEAVES_DX, "gradient of x["},
        {BEYOND_Y, "writes beyond y"},          {BEYOND_DX, "writes beyond dx"},
        {BEYOND_DW, "gradient of 'bias'"},      {LEAVES_Y, "was not written"},
    };
    tutti_layer l = own_dense;
    tutti_shape five = {1, {5}};

    l.kind = "faulty";
    l.user = &m;
    OK(tutti_layer_add(&l));
    OK(tutti_layer_check("faulty: {out: 4}", five, 1e-3));
    OK(tutti_layer_check("faulty: {out: 40, gain: -0.5}", (tutti_shape){1, {30}}, 1e-2));
    for (int i = 0; i < TT_COUNT(wrong); i++) {
        m = wrong[i].m;
        REFUSED(TUTTI_EINVAL, tutti_layer_check("faulty: {out: 4}", five, 1e-2));
        EXPECT_MESSAGE(wrong[i].says);
        EXPECT_MESSAGE("faulty");
    }
    m = NONE;
    REFUSED(TUTTI_EINVAL, tutti_layer_check("faulty", five, 1e-2));
    EXPECT_MESSAGE("lacks the key 'out'");
    REFUSED(TUTTI_EINVAL, tutti_layer_check("faulty: {out: 4}", (tutti_shape){2, {5, 5}}, 1e-2));
    EXPECT_MESSAGE("it takes a vector");
    REFUSED(TUTTI_EINVAL, tutti_layer_check("dense: {out: 4}", five, 1e-2));
    REFUSED(TUTTI_EINVAL, tutti_layer_check(NULL, five, 1e-2));
    REFUSED(TUTTI_EINVAL, tutti_layer_check("faulty: {out: 4}", (tutti_shape){0}, 1e-2));
    REFUSED(TUTTI_EINVAL, tutti_layer_check("faulty: {out: 4}", five, 0));
    REFUSED(TUTTI_EINVAL, tutti_layer_check("faulty: {", five, 1e-2));
}

TT_TEST(api_layer, its_keys_are_read_like_all_others)
{
    static const struct {
        const char *layer, *says;
    } cases[] = {
        {"own_dense", "lacks the key 'out'"},
        {"own_dense: {out: 3, gian: 2}", "did you mean 'gain'?"},
        {"own_dense: {out: many}", "many"},
        {"own_dense: {out: 0}", "out is no size: 0"},
        {"own_dens: {out: 3}", "did you mean 'own_dense'?"},
    };

    add_dense();
    for (int i = 0; i < TT_COUNT(cases); i++) {
        tutti_job *job = points_job();
        OK(tutti_job_layer(job, "%s", cases[i].layer));
        REFUSED(TUTTI_EINVAL, tutti_job_check(job));
        EXPECT_MESSAGE(cases[i].says);
        EXPECT_MESSAGE("layer:1:"); /* the place, too */
        tutti_job_close(job);
    }
    EXPECT(isnan(tutti_arg(NULL, "out")));
}

TT_TEST(api_layer, a_frozen_one_does_not_change)
{
    tutti_rows rows = points();
    tutti_options o = {.train = &rows};
    tutti_model *before, *after;
    const float *p, *q;
    tutti_job *job;
    tutti_shape s;

    add_dense();
    job = points_job();
    OK(tutti_job_set(job, "model.layers.dense1={own_dense: {name: mine, out: 16, freeze: true}}"));
    OK(tutti_model_open(job, NULL, NULL, &before));
    OK(tutti_train(job, &o, NULL, &after));
    OK(tutti_model_param(before, "mine.weight", &s, &p));
    OK(tutti_model_param(after, "mine.weight", NULL, &q));
    EXPECT(!memcmp(p, q, (size_t)tutti_shape_count(s) * sizeof *p));
    tutti_model_close(before);
    tutti_model_close(after);
    tutti_job_close(job);
}

/* ---- images: global average pooling of our own, and where its input is needed twice ---- */

static atomic_int pool_calls; /* several threads call */

static tutti_status pool_shape(const tutti_args *args, void *user, tutti_shape in, tutti_shape *out,
                               tutti_param params[TUTTI_PARAMS], int *count)
{
    (void)args, (void)user, (void)params, (void)count;
    if (in.rank != 3) return TUTTI_EINVAL; /* without a message */
    *out = (tutti_shape){1, {in.dim[0]}};
    return TUTTI_OK;
}

static void pool_forward(const tutti_pass *p)
{
    int64_t pixels = p->in.dim[1] * p->in.dim[2];

    atomic_fetch_add((atomic_int *)p->user, 1);
    for (int64_t k = 0; k < p->rows * p->in.dim[0]; k++) {
        float sum = 0;
        for (int64_t i = 0; i < pixels; i++) sum += p->x[k * pixels + i];
        p->y[k] = sum / (float)pixels;
    }
}

static void pool_backward(const tutti_pass *p)
{
    int64_t pixels = p->in.dim[1] * p->in.dim[2];

    for (int64_t k = 0; p->dx && k < p->rows * p->in.dim[0]; k++)
        for (int64_t i = 0; i < pixels; i++) p->dx[k * pixels + i] = p->dy[k] / (float)pixels;
}

/* conv -> pool and conv -> maxpool join again: the convolution's gradient has two sources. */
static tutti_model *train_images(const char *pool)
{
    static float x[60][2][6][6];
    static int32_t label[60];
    tutti_rows rows = {.count = 60, .x = &x[0][0][0][0], .label = label};
    tutti_options o = {.train = &rows};
    tutti_model *m;
    tutti_job *job;

    for (int i = 0; i < 60; i++) {
        label[i] = i % 3;
        for (int k = 0; k < 72; k++)
            x[i][k / 36][k / 6 % 6][k % 6] = (float)((k * 7 + i * 13 + label[i] * k) % 17) / 17;
    }
    OK(tutti_job_new("images", &job));
    tutti_job_set(job, "model.input=[2, 6, 6]");
    tutti_job_layer(job, "conv: {out: 5, kernel: 3}");
    tutti_job_layer(job, "relu: {name: seen}");
    tutti_job_layer(job, "%s", pool);
    tutti_job_layer(job, "flatten: {name: mean}");
    tutti_job_layer(job, "maxpool: {size: 4, from: seen}");
    tutti_job_layer(job, "flatten");
    tutti_job_layer(job, "add: {from: [prev, mean]}");
    tutti_job_layer(job, "dense: {out: 3}");
    tutti_job_set(job, "model.loss=softmax_cross_entropy");
    tutti_job_set(job, "train={epochs: 4, batch: 20, threads: 2, optimizer: {sgd: {lr: 0.05}}}");
    OK(tutti_train(job, &o, NULL, &m));
    tutti_job_close(job);
    return m;
}

TT_TEST(api_layer, images_come_row_by_row_whatever_the_kernels_prefer)
{
    tutti_layer l = {.kind = "own_pool",
                     .user = &pool_calls,
                     .shape = pool_shape,
                     .forward = pool_forward,
                     .backward = pool_backward};
    tutti_model *own, *built_in;
    const float *p, *q;
    tutti_shape s;

    OK(tutti_layer_add(&l));
    OK(tutti_layer_check("own_pool", (tutti_shape){3, {2, 4, 5}}, 1e-3));
    REFUSED(TUTTI_EINVAL, tutti_layer_check("own_pool", (tutti_shape){1, {4}}, 1e-3));
    EXPECT_MESSAGE("refused");
    atomic_store(&pool_calls, 0);
    own = train_images("own_pool");
    EXPECT(atomic_load(&pool_calls) >= 4 * 3);
    built_in = train_images("global_avgpool");
    OK(tutti_model_param(own, "conv1.weight", &s, &p));
    OK(tutti_model_param(built_in, "conv1.weight", NULL, &q));
    for (int64_t i = 0; i < tutti_shape_count(s); i++) EXPECT_NEAR(q[i], p[i], 1e-5);
    tutti_model_close(own);
    tutti_model_close(built_in);
}

/* ---- descriptions that are wrong ---- */

TT_TEST(api_layer, kinds_that_cannot_be_are_refused)
{
    static const struct {
        const char *kind, *keys, *says;
    } cases[] = {
        {"relu", NULL, "already"},
        {"mlp", NULL, "already"},
        {"repeat", NULL, "cannot name"},
        {"", NULL, "cannot name"},
        {"two words", NULL, "cannot name"},
        {"layer2", NULL, "cannot name"},
        {"bad_a", "out, out", "out"},
        {"bad_b", "name: 3", "every layer has the key 'name'"},
        {"bad_c", "mode: fast", "must be a number"},
        {"bad_d", "a: [1, 2]", "must be a number"},
        {"bad_e", "a: {", "bad_e"},
        {"bad_f", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", "17 keys"},
    };
    tutti_layer l = own_dense;

    add_dense();
    REFUSED(TUTTI_EINVAL, tutti_layer_add(&own_dense));
    EXPECT_MESSAGE("'own_dense' already");
    for (int i = 0; i < TT_COUNT(cases); i++) {
        l.kind = cases[i].kind;
        l.keys = cases[i].keys;
        REFUSED(TUTTI_EINVAL, tutti_layer_add(&l));
        EXPECT_MESSAGE(cases[i].says);
    }
    REFUSED(TUTTI_EINVAL, tutti_layer_add(NULL));
    l = own_dense;
    l.backward = NULL;
    REFUSED(TUTTI_EINVAL, tutti_layer_add(&l));
    EXPECT_MESSAGE("backward");
}

typedef enum oddity {
    MANY,
    FEWER_THAN_NONE,
    TWINS,
    NAMELESS,
    NO_SHAPE,
    HUGE_PARAM,
    NO_OUT,
    HUGE_OUT
} oddity;

static tutti_status odd_shape(const tutti_args *args, void *user, tutti_shape in, tutti_shape *out,
                              tutti_param params[TUTTI_PARAMS], int *count)
{
    oddity o = (oddity)tutti_arg(args, "oddity");

    (void)user;
    *count = o == MANY ? 5 : o == FEWER_THAN_NONE ? -1 : 2;
    params[0] = (tutti_param){.name = "a", .shape = in};
    params[1] = (tutti_param){.name = o == TWINS ? "a" : o == NAMELESS ? NULL : "b", .shape = in};
    if (o == NO_SHAPE) params[1].shape.rank = 9;
    if (o == HUGE_PARAM) params[1].shape = (tutti_shape){3, {1 << 30, 1 << 30, 1 << 30}};
    if (o == NO_OUT) out->dim[0] = 0;
    if (o == HUGE_OUT) *out = (tutti_shape){2, {1 << 30, 1 << 30}};
    return TUTTI_OK;
}

TT_TEST(api_layer, shape_functions_that_answer_nonsense_do_no_harm)
{
    static const char *const says[] = {"5 parameters",      "-1 parameters",    "two parameters",
                                       "has no name",       "impossible shape", "impossible shape",
                                       "impossible output", "impossible output"};
    tutti_layer l = own_dense;

    l.kind = "odd";
    l.keys = "oddity";
    l.shape = odd_shape;
    OK(tutti_layer_add(&l));
    for (int i = 0; i < TT_COUNT(says); i++) {
        tutti_job *job = points_job();
        OK(tutti_job_layer(job, "odd: {oddity: %d}", i));
        REFUSED(TUTTI_EINVAL, tutti_job_check(job));
        EXPECT_MESSAGE(says[i]);
        EXPECT_MESSAGE("odd 'odd1'");
        tutti_job_close(job);
    }
}
