/* Training by hand from C: optimisers over sums, and checkpoints, on one rank and on several. */
#include "api_ranks.h"

/* ---- optimisers ---- */

enum { N = 70003, ROWS = 30 }; /* more than one piece */

/* Row r of a made-up problem: how its error changes with parameter i. */
static void add_gradient(const float *w, int row, float *grad)
{
    for (int i = 0; i < N; i++) grad[i] += w[i] - (float)((i + row) % 11) / 11;
}

typedef struct by_hand {
    const char *text;
    float *w; /* what rank 0 has at the end */
    int steps;
} by_hand;

static tt_err descend(tutti_world *w, int rank, int size, void *arg)
{
    by_hand *x = arg;
    float *params = calloc(N, sizeof *params), *grad;
    tutti_optim *o = NULL;
    tutti_update u = {0};
    tt_err err;

    for (int i = 0; i < N; i++) params[i] = rank ? 1e9f : (float)(i % 3);
    if ((err = (tt_err)tutti_optim_open(w, x->text, params, N, NULL, 0, &o))) goto out;
    if ((err = (tt_err)tutti_world_alloc(w, N, &grad))) goto out;
    for (int s = 0; s < x->steps && !err; s++) {
        int rows = 0;
        memset(grad, 0, N * sizeof *grad);
        /* Uneven parts; the last rank of several has nothing to say. */
        for (int r = rank; r < ROWS && (rank + 1 < size || size < 3);
             r += size < 3 ? size : size - 1)
            add_gradient(params, r, grad), rows++;
        err = (tt_err)tutti_optim_step(o, grad, rows, &u);
    }
    if (!err) err = same_on_all(w, params, N * sizeof *params);
    if (!err && (u.step != x->steps || u.weight != ROWS || !(u.grad_norm > 0) || !(u.lr > 0)))
        err = tt_fail(TT_EFORMAT, "step %lld, weight %g, norm %g, lr %g", (long long)u.step,
                      u.weight, u.grad_norm, u.lr);
    if (!err && !rank) memcpy(x->w, params, N * sizeof *params);
out:
    tutti_optim_close(o);
    free(params);
    return err;
}

TT_TEST(api_hand, ranks_descend_as_one_would)
{
    static const char *const texts[] = {
        "sgd: {lr: 0.1}",
        "adam: {lr: 1e-2}",
        "lamb",
        "{optimizer: {sgd: {lr: 0.1, momentum: 0.9}}, clip: {norm: 1}, schedule: {cosine: "
        "{warmup: 2}}, steps: 6}",
    };
    float *one = calloc(N, sizeof *one), *more = calloc(N, sizeof *more);

    for (int t = 0; t < TT_COUNT(texts); t++) {
        by_hand x = {texts[t], one, 5}, y = {texts[t], more, 5};
        on_ranks(1, NULL, descend, &x);
        for (int k = 0; k < TT_COUNT(layouts); k++) {
            on_ranks(3, layouts[k], descend, &y);
            for (int i = 0; i < N; i++) EXPECT_NEAR(one[i], more[i], 1e-5);
        }
    }
    free(one);
    free(more);
}

TT_TEST(api_hand, what_a_step_does_is_what_its_text_says)
{
    float w[4] = {1, 1, 1, 1}, grad[4] = {6, 8, 0, 0};
    tutti_update u;
    tutti_optim *o;
    tutti_world *world;

    OK(tutti_world_join(&world));
    OK(tutti_optim_open(world,
                        "optimizer: {sgd: {lr: 0.5}}\nclip: {norm: 1}\n"
                        "schedule: {linear: {end: 0}}\nsteps: 2\n",
                        w, 4, NULL, 0, &o));
    OK(tutti_optim_step(o, grad, 2, &u)); /* (3, 4): of length 5, made 1 */
    EXPECT_NEAR(5, u.grad_norm, 1e-6);
    EXPECT_NEAR(0.5, u.lr, 1e-12);
    EXPECT_NEAR(1 - 0.5 * 0.6, w[0], 1e-6);
    EXPECT_NEAR(1 - 0.5 * 0.8, w[1], 1e-6);
    EXPECT(w[2] == 1);
    grad[0] = grad[1] = 0;
    OK(tutti_optim_step(o, grad, 1, &u));
    EXPECT_NEAR(0.25, u.lr, 1e-12);
    EXPECT_INT(2, u.step);
    tutti_optim_close(o);
    tutti_world_leave(world, 0);
}

TT_TEST(api_hand, biases_are_not_decayed_unless_asked)
{
    static const tutti_tensor parts[] = {{.name = "a.weight", .shape = {2, {2, 2}}},
                                         {.name = "a.bias", .shape = {1, {2}}},
                                         {.name = "b.weight", .shape = {2, {1, 2}}}};
    float w[8], grad[8] = {0};
    tutti_optim *o;
    tutti_world *world;
    const struct {
        const char *text;
        int parts;
        float a, bias, b;
    } cases[] = {
        {"adamw: {lr: 0.1, weight_decay: 1}", 3, 0.9f, 1, 0.9f},
        {"adamw: {lr: 0.1, weight_decay: 1, decay_all: true}", 3, 0.9f, 0.9f, 0.9f},
        {"adamw: {lr: 0.1, weight_decay: 1}", 0, 0.9f, 0.9f, 0.9f},
        {"optimizer: {adamw: {lr: 0.1, weight_decay: 1}}\n"
         "groups: [{match: 'b*', weight_decay: 2}]\n",
         3, 0.9f, 1, 0.8f},
    };

    OK(tutti_world_join(&world));
    for (int i = 0; i < TT_COUNT(cases); i++) {
        for (int k = 0; k < 8; k++) w[k] = 1;
        OK(tutti_optim_open(world, cases[i].text, w, 8, parts, cases[i].parts, &o));
        OK(tutti_optim_step(o, grad, 1, NULL));
        EXPECT_NEAR(cases[i].a, w[0], 1e-6);
        EXPECT_NEAR(cases[i].bias, w[5], 1e-6);
        EXPECT_NEAR(cases[i].b, w[6], 1e-6);
        tutti_optim_close(o);
    }
    tutti_world_leave(world, 0);
}

static tt_err diverge(tutti_world *w, int rank, int size, void *arg)
{
    float a[3] = {1, 2, 3}, b[3] = {1, 2, 3}, grad[3];
    tutti_optim *x, *y;
    tutti_update u;

    (void)size;
    TRY(tutti_optim_open(w, arg, a, 3, NULL, 0, &x));
    TRY(tutti_optim_open(w, arg, b, 3, NULL, 0, &y));
    for (int s = 0; s < 4; s++) {
        if (s == 2) { /* rank 1 alone has it; b never sees it */
            for (int i = 0; i < 3; i++) grad[i] = rank == 1 && i == 1 ? NAN : 1;
            CHECK_ERR(TUTTI_EDIVERGED, tutti_optim_step(x, grad, 1, &u), "not applied");
            CHECK(!memcmp(a, b, sizeof a));
            for (int i = 0; i < 3; i++) grad[i] = rank == 1 ? INFINITY : 1;
            CHECK_ERR(TUTTI_EDIVERGED, tutti_optim_step(x, grad, 1, &u), "step 3");
            for (int i = 0; i < 3; i++) grad[i] = 1;
            CHECK_ERR(TUTTI_EINVAL, tutti_optim_step(x, grad, rank == 1 ? -1 : 1, &u), "rank 1");
            CHECK_ERR(TUTTI_EINVAL, tutti_optim_step(x, grad, rank == 1 ? NAN : 1, &u), "rank 1");
            CHECK_ERR(TUTTI_EINVAL, tutti_optim_step(x, rank == 1 ? NULL : grad, 1, &u), "NULL");
        }
        for (int i = 0; i < 3; i++) grad[i] = (float)(s + i + rank);
        TRY(tutti_optim_step(x, grad, 1, &u));
        CHECK(u.step == s + 1);
        for (int i = 0; i < 3; i++) grad[i] = (float)(s + i + rank);
        TRY(tutti_optim_step(y, grad, 1, NULL));
    }
    CHECK(!memcmp(a, b, sizeof a));
    TRY(same_on_all(w, a, sizeof a));
    tutti_optim_close(x);
    tutti_optim_close(y);
    return TT_OK;
}

TT_TEST(api_hand, a_gradient_that_is_not_finite_never_was)
{
    on_ranks(3, mixed, diverge, "adam: {lr: 0.1}");
    on_ranks(2, NULL, diverge, "{optimizer: {momentum: {lr: 0.1}}, clip: {norm: 1}}");
    on_ranks(2, NULL, diverge, "lamb");
}

static tt_err open_differently(tutti_world *w, int rank, int size, void *arg)
{
    const tutti_tensor parts[] = {{.name = rank == 1 ? "b" : "a", .shape = {1, {4}}}};
    float p[5] = {0};
    tutti_optim *o = (tutti_optim *)1;

    (void)size;
    (void)arg;
    CHECK_ERR(TUTTI_EINVAL, tutti_optim_open(w, "sgd: {lr: 1}", p, 4 + (rank == 1), NULL, 0, &o),
              "rank 1");
    CHECK_ERR(TUTTI_EINVAL, tutti_optim_open(w, "sgd: {lr: 1}", p, 4, parts, 1, &o), "rank 1");
    CHECK_ERR(TUTTI_EINVAL,
              tutti_optim_open(w, rank == 1 ? "sgd: {lr: 2}" : "sgd: {lr: 1}", p, 4, NULL, 0, &o),
              "another text");
    CHECK_ERR(TUTTI_EINVAL,
              tutti_optim_open(w, rank == 1 ? "sgd: {rl: 2}" : "sgd: {lr: 1}", p, 4, NULL, 0, &o),
              "rank 1");
    CHECK(strstr(tutti_message(), "'rl'") && !o);
    TRY(tutti_optim_open(w, "sgd: {lr: 1}", p, 4, NULL, 0, &o));
    tutti_optim_close(o);
    return TT_OK;
}

TT_TEST(api_hand, optimisers_of_ranks_that_differ_are_refused)
{
    on_ranks(2, NULL, open_differently, NULL);
}

TT_TEST(api_hand, optimisers_that_cannot_be_are_refused)
{
    static const tutti_tensor twice[] = {{.name = "a", .shape = {1, {2}}},
                                         {.name = "a", .shape = {1, {2}}}};
    static const tutti_tensor nameless[] = {{.shape = {1, {4}}}};
    static const tutti_tensor shapeless[] = {{.name = "a", .shape = {2, {4, 0}}}};
    static const tutti_tensor large[] = {{.name = "a", .shape = {2, {4, 2}}}};
    static const tutti_tensor small[] = {{.name = "a", .shape = {1, {3}}}};
    float p[4] = {0};
    tutti_world *w;
    const struct {
        const char *text;
        float *params;
        int64_t n;
        const tutti_tensor *parts;
        int count;
        const char *says;
    } cases[] = {
        {NULL, p, 4, NULL, 0, "text"},
        {"sgd: {lr: 1}", NULL, 4, NULL, 0, "params is NULL"},
        {"sgd: {lr: 1}", p, 0, NULL, 0, "0 parameters"},
        {"sgd: {lr: 1}", p, -4, NULL, 0, "-4 parameters"},
        {"sgd: {lr: 1}", p, 4, NULL, 2, "NULL"},
        {"sgd: {lr: 1}", p, 4, small, -1, "-1 tensors"},
        {"sgd: {lr: 1}", p, 4, twice, 2, "two tensors are named 'a'"},
        {"sgd: {lr: 1}", p, 4, nameless, 1, "no name"},
        {"sgd: {lr: 1}", p, 4, shapeless, 1, "shape of 'a'"},
        {"sgd: {lr: 1}", p, 4, large, 1, "past the 4"},
        {"sgd: {lr: 1}", p, 4, small, 1, "3 numbers"},
        {"", p, 4, NULL, 0, "optimizer"},
        {"sgd", p, 4, NULL, 0, "lr"},
        {"adma: {lr: 1}", p, 4, NULL, 0, "did you mean 'adam'"},
        {"sgd: {lr: 1}\nclip: {norm: 1}\n", p, 4, NULL, 0, "optimizer"},
        {"optimizer: {sgd: {lr: 1}}\nclipp: {norm: 1}\n", p, 4, NULL, 0, "clipp"},
        {"{optimizer: {sgd: {lr: 1}}, schedule: cosine}", p, 4, NULL, 0, "steps"},
        {"sgd: {lr: 1", p, 4, NULL, 0, "not YAML"},
    };

    OK(tutti_world_join(&w));
    for (int i = 0; i < TT_COUNT(cases); i++) {
        tutti_optim *o = (tutti_optim *)1;
        REFUSED(TUTTI_EINVAL, tutti_optim_open(w, cases[i].text, cases[i].params, cases[i].n,
                                               cases[i].parts, cases[i].count, &o));
        EXPECT_MESSAGE(cases[i].says);
        EXPECT(!o);
    }
    tutti_world_leave(w, 0);
}

/* ---- checkpoints ---- */

/* Gradient descent to `until`, from the newest checkpoint if there is one, with one at step 3. */
typedef struct on_disk {
    int64_t until, began;
    float w[6], extra;
} on_disk;

static tt_err go_on(tutti_world *w, int rank, int size, void *arg)
{
    on_disk *x = arg;
    static const tutti_tensor parts[] = {{.name = "weight", .shape = {2, {2, 2}}},
                                         {.name = "bias", .shape = {1, {2}}}};
    float p[6] = {1, 2, 3, 4, 5, 6}, grad[6], extra = 0;
    tutti_tensor more = {.name = "extra", .shape = {1, {1}}, .data = &extra};
    tutti_state s = {.folder = "c/d", .keep = 2, .tensors = &more, .count = 1};
    tutti_update u;
    int64_t step = -7;

    TRY(tutti_optim_open(w, "adam: {lr: 0.1}", p, 6, parts, 2, &s.optim));
    TRY(tutti_world_latest(w, "c/d", &step));
    CHECK(!rank || step >= -1); /* all know */
    if (step >= 0)
        TRY(tutti_world_restore(w, &s, -1, &step));
    else
        step = 0;
    if (!rank) x->began = step;
    for (; step < x->until; step = u.step) {
        for (int i = 0; i < 6; i++) /* of 6 samples in all, whoever has them */
            grad[i] = rank < 2 || size < 3 ? (p[i] - (float)i) * (6 / (size < 3 ? size : 2)) : 0;
        TRY(tutti_optim_step(s.optim, grad, rank < 2 || size < 3 ? 6 / (size < 3 ? size : 2) : 0,
                             &u));
        extra = (float)u.step;
        if (u.step == 3) TRY(tutti_world_save(w, &s, u.step));
    }
    TRY(same_on_all(w, p, sizeof p));
    TRY(same_on_all(w, &extra, sizeof extra));
    tutti_optim_close(s.optim);
    if (!rank) {
        memcpy(x->w, p, sizeof p);
        x->extra = extra;
    }
    return TT_OK;
}

TT_TEST(api_hand, a_training_goes_on_from_its_checkpoint_whatever_the_ranks)
{
    on_disk whole = {.until = 8}, half = {.until = 4}, rest = {.until = 8}, other = rest;

    on_ranks(1, NULL, go_on, &whole);
    EXPECT_INT(0, whole.began);
    EXPECT_OK(tt_dir_remove("c"));
    on_ranks(2, NULL, go_on, &half);
    EXPECT(!access("c/d/step-00000003/manifest.json", R_OK));
    on_ranks(1, NULL, go_on, &rest);
    EXPECT_INT(3, rest.began);
    on_ranks(3, mixed, go_on, &other);
    EXPECT_INT(3, other.began);
    EXPECT(rest.extra == 8 && other.extra == 8);
    EXPECT(!memcmp(whole.w, rest.w, sizeof rest.w)); /* weights of 6, 3 and 2 divide exactly */
    EXPECT(!memcmp(whole.w, other.w, sizeof rest.w));
}

TT_TEST(api_hand, checkpoints_are_kept_found_and_refused_as_promised)
{
    float a[4] = {1, 2, 3, 4}, b[4] = {0};
    tutti_tensor t = {.name = "a", .shape = {2, {2, 2}}, .data = a};
    tutti_state s = {.folder = "ckpts", .keep = 2, .tensors = &t, .count = 1};
    tutti_world *w;
    int64_t step = 0;

    OK(tutti_world_join(&w));
    OK(tutti_world_latest(w, "ckpts", &step));
    EXPECT_INT(-1, step);
    REFUSED(TUTTI_ECKPT, tutti_world_restore(w, &s, -1, &step));
    for (int i = 1; i <= 4; i++) {
        a[0] = (float)i;
        OK(tutti_world_save(w, &s, 10 * i));
    }
    EXPECT(access("ckpts/step-00000020", F_OK) && !access("ckpts/step-00000030", F_OK));
    OK(tutti_world_latest(w, "ckpts", &step));
    EXPECT_INT(40, step);
    t.data = b;
    OK(tutti_world_restore(w, &s, 30, &step));
    EXPECT(step == 30 && b[0] == 3 && b[3] == 4);
    OK(tutti_world_restore(w, &s, -1, NULL));
    EXPECT(b[0] == 4);
    REFUSED(TUTTI_ECKPT, tutti_world_restore(w, &s, 20, &step));
    EXPECT_MESSAGE("step 20");

    /* What does not fit changes nothing. */
    t.shape = (tutti_shape){1, {4}};
    b[0] = -1;
    REFUSED(TUTTI_ECKPT, tutti_world_restore(w, &s, -1, &step));
    EXPECT_MESSAGE("shape");
    t = (tutti_tensor){.name = "b", .shape = {2, {2, 2}}, .data = b};
    REFUSED(TUTTI_ECKPT, tutti_world_restore(w, &s, -1, &step));
    EXPECT_MESSAGE("'b'");
    tutti_tensor two[] = {{.name = "a", .shape = {2, {2, 2}}, .data = b}, t};
    s.tensors = two;
    s.count = 2;
    REFUSED(TUTTI_ECKPT, tutti_world_restore(w, &s, -1, &step));
    EXPECT(b[0] == -1 && step == 30);
    s.tensors = &t;
    s.count = 1;
    t = (tutti_tensor){.name = "a", .shape = {2, {2, 2}}, .data = b};

    /* Damaged: the one before it is the newest; not finite: the same. */
    tutti_quiet(true);
    tt_test_write("ckpts/step-00000040/model.safetensors", "x", 1);
    OK(tutti_world_latest(w, "ckpts", &step));
    EXPECT_INT(30, step);
    OK(tutti_world_restore(w, &s, -1, &step));
    EXPECT(step == 30 && b[0] == 3);
    b[1] = NAN;
    s.keep = 0;
    OK(tutti_world_save(w, &s, 50));
    OK(tutti_world_latest(w, "ckpts", &step));
    EXPECT_INT(30, step);

    /* Back at 30 it goes another way: what comes of that is the newest. */
    b[1] = 0;
    OK(tutti_world_save(w, &s, 35));
    tutti_quiet(false);
    OK(tutti_world_latest(w, "ckpts", &step));
    EXPECT_INT(35, step);
    EXPECT(!access("ckpts/step-00000050.bad", F_OK) && access("ckpts/step-00000050", F_OK));
    tutti_world_leave(w, 0);
}

static tt_err save_in_vain(tutti_world *w, int rank, int size, void *arg)
{
    float a[2] = {1, 2};
    tutti_tensor t = {.name = "a", .shape = {1, {2}}, .data = a};
    tutti_state s = {.folder = "file/ckpts", .tensors = &t, .count = 1};
    int64_t step = 5;

    (void)size;
    (void)arg;
    CHECK_ERR(TUTTI_EIO, tutti_world_save(w, &s, 1), "file");
    CHECK_ERR(TUTTI_ECKPT, tutti_world_restore(w, &s, -1, &step), "no checkpoint");
    s.folder = "c";
    CHECK_ERR(TUTTI_EINVAL, tutti_world_save(w, &s, 1 + (rank == 1)), "rank 1");
    t.name = rank == 1 ? "b" : "a";
    CHECK_ERR(TUTTI_EINVAL, tutti_world_save(w, &s, 1), "other tensors");
    t.name = rank == 1 ? NULL : "a";
    CHECK_ERR(TUTTI_EINVAL, tutti_world_save(w, &s, 1), "no name");
    t.name = "a";
    TRY(tutti_world_save(w, &s, 1));
    CHECK_ERR(TUTTI_EINVAL, tutti_world_restore(w, &s, rank == 1, &step), "rank 1");
    a[0] = 0;
    TRY(tutti_world_restore(w, &s, 1, &step));
    CHECK(a[0] == 1 && step == 1);
    return TT_OK;
}

TT_TEST(api_hand, what_rank_0_cannot_write_all_know)
{
    tt_test_write("file", "", 0);
    tutti_quiet(true);
    on_ranks(3, mixed, save_in_vain, NULL);
    tutti_quiet(false);
}
