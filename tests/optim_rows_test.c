/* Rows of tables: each rule against a slow one in double, and what applies to rows of the rest. */
#include "optim_job.h"

enum { DIM = 5, ROWS = 4, STEPS = 6 };

typedef struct slow { /* a row, in double */
    double w[DIM], s[DIM], t[DIM], sum;
    bool touched;
} slow;

typedef struct rule_case {
    const char *yaml; /* of train.tables */
    void (*rule)(slow *r, const double *g, int step, double lr);
    double lr;
} rule_case;

static void slow_sgd(slow *r, const double *g, int step, double lr)
{
    (void)step;
    for (int i = 0; i < DIM; i++) r->w[i] -= lr * g[i];
}

static void slow_momentum(slow *r, const double *g, int step, double lr)
{
    (void)step;
    for (int i = 0; i < DIM; i++) {
        r->s[i] = 0.9 * r->s[i] + (r->touched ? 0.75 : 1) * g[i];
        r->w[i] -= lr * r->s[i];
    }
}

static void slow_nesterov(slow *r, const double *g, int step, double lr)
{
    (void)step;
    for (int i = 0; i < DIM; i++) {
        r->s[i] = 0.9 * r->s[i] + g[i];
        r->w[i] -= lr * (g[i] + 0.9 * r->s[i]);
    }
}

static void slow_adagrad(slow *r, const double *g, int step, double lr)
{
    lr /= 1 + 0.5 * step;
    for (int i = 0; i < DIM; i++) {
        if (!r->touched) r->s[i] = 0.25;
        r->s[i] += g[i] * g[i];
        r->w[i] -= lr * g[i] / (sqrt(r->s[i]) + 1e-10);
    }
}

static void slow_rowwise(slow *r, const double *g, int step, double lr)
{
    double mean = 0;

    (void)step;
    for (int i = 0; i < DIM; i++) mean += g[i] * g[i] / DIM;
    r->sum += mean;
    for (int i = 0; i < DIM; i++) r->w[i] -= lr * g[i] / (sqrt(r->sum) + 1e-3);
}

static void slow_adam(slow *r, const double *g, int step, double lr)
{
    for (int i = 0; i < DIM; i++) {
        r->s[i] = 0.8 * r->s[i] + 0.2 * g[i];
        r->t[i] = 0.99 * r->t[i] + 0.01 * g[i] * g[i];
        double m = r->s[i] / (1 - pow(0.8, step + 1)), v = r->t[i] / (1 - pow(0.99, step + 1));
        r->w[i] -= lr * m / (sqrt(v) + 1e-8);
    }
}

static const rule_case cases[] = {
    {"{sgd: {lr: 0.1}}", slow_sgd, 0.1},
    {"{sgd: {lr: 0.1, momentum: 0.9, dampening: 0.25}}", slow_momentum, 0.1},
    {"{nesterov: {lr: 0.1}}", slow_nesterov, 0.1},
    {"{adagrad: {lr: 0.1, lr_decay: 0.5, initial: 0.25}}", slow_adagrad, 0.1},
    {"{rowwise_adagrad: {lr: 0.1, eps: 1e-3}}", slow_rowwise, 0.1},
    {"{adam: {lr: 0.1, betas: [0.8, 0.99]}}", slow_adam, 0.1},
};

/* A parameter of one number, and a table. */
static void open_rows(job *j, const char *train, const char *tables)
{
    const tt_param p[2] = {{.name = "w", .n = 1, .rank = 1, .shape = {1}},
                           {.name = "t", .at = 16, .rank = 2, .shape = {ROWS, DIM}}};

    job_open(j, train, p, 2);
    if (!tables) {
        EXPECT_OK(tt_optim_set_tables(j->o, NULL, 1));
        return;
    }
    tt_tree *tree;
    EXPECT_OK(tt_tree_parse("tables", tables, strlen(tables), &tree));
    EXPECT_OK(tt_optim_set_tables(j->o, tt_tree_root(tree), 1));
    tt_tree_close(tree);
}

typedef struct kept {
    float record[ROWS][3 * DIM];
    bool there[ROWS];
    float w; /* the other parameter, and its gradient and state */
} kept;

/* One step: row r gets g[r] if `touched` has its bit. Each share has a row. */
static void step_rows(tt_optim *o, kept *k, int step, unsigned touched, float g[ROWS][DIM],
                      float dense)
{
    float s[2] = {0}, grad = dense * 4, w_new, s_new[2];
    tt_optim_view v = {&grad, &k->w, &w_new, {&s[0], &s[1]}, {&s_new[0], &s_new[1]}};
    float sums[ROWS][DIM];

    tt_optim_begin(o, step, 4, 4);
    for (int i = 0; i < TT_ROW_SHARES; i++) {
        bool here = i < ROWS && touched >> i & 1;
        for (int d = 0; here && d < DIM; d++) sums[i][d] = 4 * g[i][d];
        tt_optim_rows_prepare(o, 0, i, here ? sums[i] : sums[0], here ? DIM : 0);
    }
    for (int pass = 0; pass < tt_optim_passes(o); pass++) {
        tt_optim_run(o, pass, 0, &v);
        tt_optim_join(o, pass);
    }
    for (int r = 0; r < ROWS && tt_optim_finite(o); r++) {
        if (!(touched >> r & 1)) continue;
        if (!k->there[r]) tt_optim_rows_fresh(o, 0, k->record[r]);
        tt_optim_rows_update(o, 0, sums[r], k->record[r], !k->there[r]);
        k->there[r] = true;
    }
}

static float number(int step, int row, int d)
{
    return (float)((step * 37 + row * 11 + d * 5) % 17 - 8) / 8;
}

static void expect_rule(const rule_case *c)
{
    slow want[ROWS] = {0};
    kept have = {0};
    job j;

    open_rows(&j, "{optimizer: {lamb: {lr: 0.1}}}", c->yaml);
    for (int r = 0; r < ROWS; r++)
        for (int d = 0; d < DIM; d++)
            want[r].w[d] = have.record[r][d] = (float)(r + 1) / (float)(d + 1);
    for (int step = 0; step < STEPS; step++) {
        unsigned touched = (unsigned)(step * 5 + 3) % 16;
        float g[ROWS][DIM];
        for (int r = 0; r < ROWS; r++) {
            double x[DIM];
            for (int d = 0; d < DIM; d++) x[d] = g[r][d] = number(step, r, d);
            if (!(touched >> r & 1)) continue;
            c->rule(&want[r], x, step, c->lr);
            want[r].touched = true;
        }
        step_rows(j.o, &have, step, touched, g, 0.5f);
    }
    for (int r = 0; r < ROWS; r++)
        for (int d = 0; d < DIM; d++)
            if (!(fabs(have.record[r][d] - want[r].w[d]) <= 2e-6))
                FAIL("%s: row %d, number %d is %.9g, not %.9g", c->yaml, r, d, have.record[r][d],
                     want[r].w[d]);
    job_close(&j);
}

TT_TEST(optim_rows, rules_do_what_slow_loops_do_to_rows_that_are_touched)
{
    for (int c = 0; c < TT_COUNT(cases); c++) expect_rule(&cases[c]);
}

TT_TEST(optim_rows, a_record_is_as_long_as_its_rule_wants)
{
    static const int floats[] = {DIM, 2 * DIM, 2 * DIM, 2 * DIM, DIM + 1, 3 * DIM};

    for (int c = 0; c < TT_COUNT(cases); c++) {
        job j;
        open_rows(&j, "{optimizer: {lamb: {lr: 0.1}}}", cases[c].yaml);
        EXPECT_INT(floats[c], tt_optim_rows_record(j.o, 0));
        job_close(&j);
    }
}

/* The norm is of all there is: 3 in the parameter and 4 in a row make 5, clipped to 1. */
TT_TEST(optim_rows, the_norm_is_over_rows_and_parameters)
{
    float g[ROWS][DIM] = {{0}, {4}};
    kept k = {.w = 1};
    job j;

    open_rows(&j, "{optimizer: {sgd: {lr: 1}}, clip: {norm: 1}}", NULL);
    step_rows(j.o, &k, 0, 2, g, 3);
    EXPECT_NEAR(5, tt_optim_grad_norm(j.o), 1e-6);
    EXPECT_NEAR(-0.8, k.record[1][0], 1e-5);
    job_close(&j);
    open_rows(&j, "{optimizer: {sgd: {lr: 1}}, clip: {value: 0.5}}", NULL);
    step_rows(j.o, &k, 0, 2, g, 3);
    EXPECT_NEAR(-1.3, k.record[1][0], 1e-5);
    job_close(&j);
}

TT_TEST(optim_rows, a_row_that_is_no_number_is_not_finite)
{
    float g[ROWS][DIM] = {{0}, {NAN}};
    kept k = {0};
    job j;

    open_rows(&j, "{optimizer: {sgd: {lr: 1}}}", NULL);
    step_rows(j.o, &k, 0, 2, g, 0);
    EXPECT(!tt_optim_finite(j.o) && !k.there[1]);
    step_rows(j.o, &k, 1, 1, g, 0);
    EXPECT(tt_optim_finite(j.o) && k.there[0]);
    job_close(&j);
}

TT_TEST(optim_rows, groups_apply_and_decay_does_not)
{
    float g[ROWS][DIM] = {{1}};
    kept k = {0};
    job j;

    open_rows(&j,
              "{optimizer: {sgd: {lr: 1, l2: 3, weight_decay: 2}}, groups: [{match: t, lr: "
              "0.25}]}",
              NULL);
    EXPECT(tt_optim_rows_decay(j.o));
    k.record[0][0] = 10;
    step_rows(j.o, &k, 0, 1, g, 0);
    EXPECT_NEAR(9.75, k.record[0][0], 1e-6);
    EXPECT(!tt_optim_rows_frozen(j.o, 0));
    job_close(&j);
    open_rows(&j, "{optimizer: {adamw: {lr: 1}}, groups: [{match: t, freeze: true}]}",
              "{sgd: {lr: 1}}");
    EXPECT(tt_optim_rows_frozen(j.o, 0));
    EXPECT(!tt_optim_rows_decay(j.o)); /* that is of the others */
    job_close(&j);
}

static tt_err read_rules(const char *text, bool *has)
{
    tt_tree *tree;
    tt_err err;

    EXPECT_OK(tt_tree_parse("job.yaml", text, strlen(text), &tree));
    err = tt_optim_has_rows(tt_node_get(tt_tree_root(tree), "optimizer"),
                            tt_node_get(tt_tree_root(tree), "tables"), has);
    tt_tree_close(tree);
    return err;
}

TT_TEST(optim_rows, not_every_optimiser_has_a_rule_for_rows)
{
    const tt_param p = {.name = "w", .n = 4, .rank = 1, .shape = {4}};
    bool has;

    EXPECT_OK(read_rules("{optimizer: {lamb: {lr: 1}}}", &has));
    EXPECT(!has);
    EXPECT_OK(read_rules("{optimizer: {lamb: {lr: 1}}, tables: adagrad}", &has));
    EXPECT(has);
    EXPECT_ERR(TT_EINVAL, read_rules("{optimizer: adam, tables: {rmsprop: {lr: 1}}}", &has));
    EXPECT_MESSAGE("rmsprop has no rule for the rows of tables");
    EXPECT_ERR(TT_EINVAL, read_rules("{optimizer: adam, tables: {rowise_adagrad: {lr: 1}}}", &has));
    EXPECT_MESSAGE("did you mean 'rowwise_adagrad'");
    job_fails("{optimizer: rowwise_adagrad}", &p, 1, "rowwise_adagrad is for the rows of tables",
              "train.tables");
}
