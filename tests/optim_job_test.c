/* What a job may say: kinds and their state, schedules, groups, and the sentences for mistakes. */
#include "optim_job.h"

static const tt_param net[] = {
    {.name = "conv1.weight", .at = 0, .n = 1, .role = TT_WEIGHT},
    {.name = "conv1.bias", .at = 1, .n = 1, .role = TT_BIAS},
    {.name = "fc.weight", .at = 2, .n = 1, .role = TT_WEIGHT},
    {.name = "norm.mean", .at = 3, .n = 1, .role = TT_STAT, .momentum = 0.5f},
};

TT_TEST(optim, each_kind_has_its_name_and_state)
{
    static const struct {
        const char *yaml, *name;
        int slots;
        const char *slot[2];
        double lr;
    } cases[] = {
        {"{optimizer: {sgd: {lr: 0.5}}}", "sgd", 0, {NULL, NULL}, 0.5},
        {"{optimizer: {sgd: {lr: 0.5, momentum: 0.9}}}", "sgd", 1, {"momentum", NULL}, 0.5},
        {"{optimizer: {momentum: {lr: 0.5}}}", "momentum", 1, {"momentum", NULL}, 0.5},
        {"{optimizer: {nesterov: {lr: 0.5}}}", "nesterov", 1, {"momentum", NULL}, 0.5},
        {"{optimizer: adagrad}", "adagrad", 1, {"sum", NULL}, 0.01},
        {"{optimizer: rmsprop}", "rmsprop", 1, {"square_avg", NULL}, 0.01},
        {"{optimizer: {rmsprop: {momentum: 0.9}}}", "rmsprop", 2, {"square_avg", "momentum"}, 0.01},
        {"{optimizer: adam}", "adam", 2, {"exp_avg", "exp_avg_sq"}, 0.001},
        {"{optimizer: adamw}", "adamw", 2, {"exp_avg", "exp_avg_sq"}, 0.001},
        {"{optimizer: lamb}", "lamb", 2, {"exp_avg", "exp_avg_sq"}, 0.001},
    };
    job j;

    for (int c = 0; c < TT_COUNT(cases); c++) {
        job_open(&j, cases[c].yaml, net, TT_COUNT(net));
        EXPECT_STR(cases[c].name, tt_optim_name(j.o));
        EXPECT_INT(cases[c].slots, tt_optim_slots(j.o));
        for (int k = 0; k < cases[c].slots; k++)
            EXPECT_STR(cases[c].slot[k], tt_optim_slot_name(j.o, k));
        EXPECT_NEAR(cases[c].lr, tt_optim_lr(j.o, 12345), 1e-15);
        job_close(&j);
    }
}

TT_TEST(optim, reading_completes_the_job)
{
    tt_str text = {0};
    job j;

    job_open(&j, "{optimizer: adamw, schedule: {cosine: {warmup: 1 epoch}}}", net, TT_COUNT(net));
    tt_tree_print(tt_tree_root(j.tree), false, &text);
    EXPECT(strstr(text.data, "betas: [0.9, 0.999]"));
    EXPECT(strstr(text.data, "weight_decay: 0.01"));
    EXPECT(strstr(text.data, "decay_all: false"));
    EXPECT(strstr(text.data, "warmup: 1 epoch"));
    EXPECT(strstr(text.data, "warmup_from: 0"));
    tt_str_free(&text);
    job_close(&j);
}

/* ---- schedules: 100 steps in all, 10 to an epoch ---- */

static void expect_lr(const char *schedule, int64_t step, double want)
{
    char yaml[256];
    double got;
    job j;

    snprintf(yaml, sizeof yaml, "{optimizer: {sgd: {lr: 2}}, schedule: %s}", schedule);
    job_open(&j, yaml, net, TT_COUNT(net));
    got = tt_optim_lr(j.o, step);
    if (!(fabs(got - want) <= 1e-14))
        FAIL("%s: lr of step %d is %.17g, not %.17g", schedule, (int)step, got, want);
    job_close(&j);
}

TT_TEST(optim, schedules_at_chosen_steps)
{
    expect_lr("constant", 0, 2);
    expect_lr("constant", 99999, 2);

    expect_lr("{step: {every: 30, gamma: 0.5}}", 29, 2);
    expect_lr("{step: {every: 30, gamma: 0.5}}", 30, 1);
    expect_lr("{step: {every: 30, gamma: 0.5}}", 90, 0.25);
    expect_lr("{step: {every: 2 epoch}}", 19, 2);
    expect_lr("{step: {every: 2 epoch}}", 20, 0.2);
    expect_lr("{step: {at: [5, 7]}}", 4, 2);
    expect_lr("{step: {at: [5, 7]}}", 5, 0.2);
    expect_lr("{step: {at: [5, 7]}}", 7, 0.02);
    expect_lr("{step: {at: [3 epochs, 80]}}", 30, 0.2);
    expect_lr("{step: {at: [3 epochs, 80]}}", 80, 0.02);

    expect_lr("linear", 0, 2);
    expect_lr("linear", 25, 1.5);
    expect_lr("linear", 100, 0);
    expect_lr("{linear: {end: 0.5, steps: 10}}", 5, 1.5);
    expect_lr("{linear: {end: 0.5, steps: 10}}", 1000, 1);

    expect_lr("cosine", 0, 2);
    expect_lr("cosine", 50, 1);
    expect_lr("cosine", 100, 0);
    expect_lr("{cosine: {end: 0.1, steps: 4 epoch}}", 40, 0.2);
    for (int step = 0; step < 100; step++) expect_lr("cosine", step, 1 + cos(M_PI * step / 100));
}

TT_TEST(optim, warm_up_comes_first_and_the_schedule_starts_after_it)
{
    expect_lr("{constant: {warmup: 4}}", 0, 0.5);
    expect_lr("{constant: {warmup: 4}}", 2, 1.5);
    expect_lr("{constant: {warmup: 4}}", 3, 2);
    expect_lr("{constant: {warmup: 4}}", 4, 2);
    expect_lr("{constant: {warmup: 4, warmup_from: 0.5}}", 1, 1.5);
    expect_lr("{constant: {warmup: 1 epoch}}", 4, 1);
    expect_lr("{constant: {warmup: 0.5 epoch}}", 3, 1.6);
    expect_lr("{step: {every: 10, warmup: 4}}", 13, 2);
    expect_lr("{step: {every: 10, warmup: 4}}", 14, 0.2);
    expect_lr("{linear: {warmup: 20}}", 20, 2);
    expect_lr("{linear: {warmup: 20}}", 60, 1); /* the 80 steps that are left */
    expect_lr("{linear: {warmup: 20, steps: 10}}", 25, 1);
    expect_lr("{cosine: {warmup: 20}}", 60, 1);
    expect_lr("{cosine: {warmup: 200}}", 99, 1); /* a quick trial of a long job */
}

TT_TEST(optim, the_schedule_scales_the_update)
{
    float g[4] = {1, 1, 1, 0}, w[4] = {0};
    tt_optim_view v = job_view(g, w, NULL, NULL);
    job j;

    job_open(&j, "{optimizer: {sgd: {lr: 2}}, schedule: linear}", net, TT_COUNT(net));
    job_step(j.o, 75, 1, 1, &v);
    EXPECT_NEAR(-0.5, w[0], 1e-6);
    job_close(&j);
}

/* ---- groups ---- */

TT_TEST(optim, of_groups_the_later_wins_key_by_key)
{
    float g[4] = {1, 1, 1, 8}, w[4] = {1, 1, 1, 0};
    tt_optim_view v = job_view(g, w, NULL, NULL);
    job j;

    job_open(&j,
             "optimizer: {sgd: {lr: 1, l2: 0.5}}\n"
             "groups:\n"
             "- {match: '*', lr: 0.5}\n"
             "- {match: '*.weight', l2: 0.25}\n"
             "- {match: 'fc.*', lr: 2}\n",
             net, TT_COUNT(net));
    job_step(j.o, 0, 1, 1, &v);
    EXPECT_NEAR(1 - 0.5 * 1.25, w[0], 1e-6);
    EXPECT_NEAR(1 - 0.5 * 1, w[1], 1e-6); /* a bias: no l2 */
    EXPECT_NEAR(1 - 2 * 1.25, w[2], 1e-6);
    EXPECT_NEAR(4, w[3], 1e-6); /* statistics have no learning rate */
    job_close(&j);
}

TT_TEST(optim, groups_freeze_and_thaw)
{
    float g[4] = {1, 1, 1, 8}, w[4] = {0};
    tt_param p[TT_COUNT(net)];
    tt_optim_view v = job_view(g, w, NULL, NULL);
    job j;

    memcpy(p, net, sizeof p);
    p[2].frozen = true; /* by the model, which makes no gradient for it: no group undoes that */
    job_open(&j,
             "optimizer: {sgd: {lr: 1}}\n"
             "groups:\n"
             "- {match: '*', freeze: true}\n"
             "- {match: 'conv1.bias', freeze: false}\n"
             "- {match: 'fc.weight', freeze: false}\n",
             p, TT_COUNT(p));
    job_step(j.o, 0, 1, 1, &v);
    EXPECT_NEAR(0, w[0], 0);
    EXPECT_NEAR(-1, w[1], 0);
    EXPECT_NEAR(0, w[2], 0);
    EXPECT_NEAR(0, w[3], 0); /* statistics freeze with their layer */
    job_close(&j);
}

/* ---- mistakes ---- */

static void fails(const char *yaml, const char *part, const char *more)
{
    job_fails(yaml, net, TT_COUNT(net), part, more);
}

TT_TEST(optim, mistakes_in_the_optimizer_are_explained)
{
    fails("{x: 1}", "no optimizer", "adam");
    fails("optimizer: {adamm: {lr: 1}}", "job.yaml:1:13", "did you mean 'adam'");
    fails("optimizer: newton", "there is no optimizer 'newton'", "rmsprop");
    fails("optimizer: {adam: {beta: [0.9, 0.999]}}", "unknown key 'beta'", "did you mean 'betas'");
    fails("optimizer: {sgd: {momentum: 0.9}}", "sgd", "lacks the key 'lr'");
    fails("optimizer: {adam: {lr: -1}}", "lr", "at least 0");
    fails("optimizer: {adam: {lr: fast}}", "must be a number", "fast");
    fails("optimizer: {adam: {betas: [0.9]}}", "betas", "two numbers");
    fails("optimizer: {adam: {betas: [0.9, 1]}}", "betas", "below 1");
    fails("optimizer: {lamb: {betas: [1, 0.9]}}", "betas", "below 1");
    fails("optimizer: {sgd: {lr: 1, momentum: 2}}", "momentum", "between 0 and 1");
    fails("optimizer: {sgd: {lr: 1, nesterov: true}}", "nesterov", "momentum");
    fails("optimizer: {nesterov: {lr: 1, momentum: 0}}", "nesterov", "momentum");
    fails("optimizer: {sgd: {lr: 1, momentum: 0.9, dampening: 0.1, nesterov: true}}", "nesterov",
          "dampening");
    fails("optimizer: {sgd: {lr: 1, dampening: 0.1}}", "dampening", "without momentum");
    fails("optimizer: {adam: {amsgrad: true}}", "unknown key 'amsgrad'", "");
    fails("optimizer: [adam]", "optimizer", "a list");
}

TT_TEST(optim, mistakes_in_the_schedule_are_explained)
{
#define WITH(s) "{optimizer: adam, schedule: " s "}"
    fails(WITH("cosin"), "there is no schedule", "did you mean 'cosine'");
    fails(WITH("zigzag"), "there is no schedule 'zigzag'", "linear");
    fails(WITH("cosine"), "cosine needs steps", "job.yaml:1:");
    fails(WITH("{cosine: {step: 5}}"), "unknown key 'step'", "did you mean 'steps'");
    fails(WITH("{cosine: {steps: 0}}"), "steps wants", "at least 1");
    fails(WITH("{cosine: {steps: 5 apples}}"), "steps wants", "'5 apples'");
    fails(WITH("{cosine: {steps: many}}"), "steps wants", "'many'");
    fails(WITH("{cosine: {steps: 5, warmup: -1}}"), "warmup wants", "'-1'");
    fails(WITH("{cosine: {steps: 5, warmup: 1 epoch}}"), "warmup is given in epochs", "in steps");
    fails(WITH("{constant: {warmup_from: 2}}"), "warmup_from", "between 0 and 1");
    fails(WITH("step"), "every:", "at:");
    fails(WITH("{step: {every: 5, at: [6]}}"), "every:", "at:");
    fails(WITH("{step: {every: 1e30}}"), "every wants", "1e30");
    fails(WITH("{step: {at: [5, 5]}}"), "must rise", "'5'");
    fails(WITH("{step: {at: []}}"), "every:", "at:");
#undef WITH
}

TT_TEST(optim, mistakes_in_clip_and_groups_are_explained)
{
#define WITH(s) "{optimizer: adam, " s "}"
    fails(WITH("clip: {norm: 0}"), "clip by norm 0", "leave it out");
    fails(WITH("clip: {value: 0}"), "clip by value 0", "leave it out");
    fails(WITH("clip: {norm: -1}"), "norm", "at least 0");
    fails(WITH("clip: {nrm: 1}"), "unknown key 'nrm'", "did you mean 'norm'");
    fails(WITH("clip: 5"), "clip", "map");
    fails(WITH("groups: {match: x}"), "groups wants a list", "");
    fails(WITH("groups: [{lr: 1}]"), "lacks the key 'match'", "");
    fails(WITH("groups: [{match: '*'}]"), "changes nothing", "freeze");
    fails(WITH("groups: [{match: '*', freez: true}]"), "unknown key 'freez'", "'freeze'");
    fails(WITH("groups: [{match: conv1.wieght, lr: 1}]"), "matches 'conv1.wieght'",
          "did you mean 'conv1.weight'");
    fails(WITH("groups: [{match: 'transformer*', lr: 1}]"), "no parameter matches",
          "like 'conv1.weight'");
    fails(WITH("groups: [{match: '*.mean', lr: 1}]"), "running statistics", "'*.mean'");
    fails(WITH("groups: [{match: '*.bias', l2: 1}]"), "not decayed", "decay_all: true");
#undef WITH
}

TT_TEST(optim, null_takes_an_option_back)
{
    job j;

    job_open(&j,
             "{optimizer: adam, clip: {norm: null}, groups: [{match: '*', lr: 1, freeze: null}]}",
             net, TT_COUNT(net));
    EXPECT_INT(1, tt_optim_passes(j.o));
    job_close(&j);
}
