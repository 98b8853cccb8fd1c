/* A large state that one rank alone has is updated in place; of two ranks each has two halves. */
#include "train_together.h"

/* With Adam's two vectors 270 MB. */
static const char text[] =
    "name: t\n"
    "model:\n"
    "  input: [2]\n"
    "  layers:\n"
    "    - dense: {out: 4750}\n"
    "    - tanh\n"
    "    - dense: {out: 4750}\n"
    "    - dense: {out: 1}\n"
    "  loss: mse\n"
    "data: {dir: ., shuffle: false, train: {format: csv, file: t.csv, header: true, "
    "columns: [{name: a}, {name: b}, {name: y, type: target}]}}\n"
    "train: {steps: 3, batch: 4, on_nan: skip, optimizer: {adam: {lr: 1e-3}}}\n"
    "parallel: {exact: true, grains: 2}\n"
    "checkpoint: {every: never}\n";

/* The loss of the second batch is a number; the square of its gradient is beyond a float, which
 * counts as none unless it is clipped. */
static void write_rows(void)
{
    tt_str rows = {0};

    tt_str_add(&rows, "a,b,y\n");
    for (int i = 0; i < 16; i++)
        tt_str_add(&rows, "%d,%d,%s\n", i % 5, i % 3, i == 5 ? "1.5e19" : i % 2 ? "1" : "2");
    tt_test_write("t.csv", rows.data, rows.size);
    tt_str_free(&rows);
}

/* One rank: how many steps were skipped, and whether the weights stayed where they are. */
static trained alone(const char *changes, int *skipped, bool *stays)
{
    const float *w;
    trained x;

    EXPECT_OK(open_job(&x, (tt_train_opts){.no_files = true, .threads = 1}, text, changes));
    w = tt_train_params(x.t);
    *stays = true;
    for (*skipped = 0; !x.p.end; *skipped += x.p.numbers != NULL) {
        EXPECT_OK(tt_train_step(x.t, &x.p));
        *stays &= tt_train_params(x.t) == w;
    }
    go_to(&x, 0); /* its hash */
    return x;
}

TT_TEST(place, in_place_changes_no_bit_and_a_bad_step_changes_nothing)
{
    static const char *const changes[] = {"", "train.clip={norm: 0.5}"};

    write_rows();
    for (int i = 0; i < TT_COUNT(changes); i++) {
        together two = {
            .text = text, .changes = changes[i], .threads = 1, .opts = {.no_files = true}};
        int skipped;
        bool stays;
        trained one = alone(changes[i], &skipped, &stays);
        EXPECT_INT(!i, skipped);
        EXPECT(stays);
        EXPECT_OK(tt_sim_run(2, NULL, 60, train_rank, &two));
        EXPECT_STR(two.sha, one.sha);
        close_job(&one);
    }
}

TT_TEST(place, a_small_state_has_two_halves)
{
    int skipped;
    bool stays;

    write_rows();
    trained x = alone("model.layers=[dense: {out: 5}, tanh, dense: {out: 1}]", &skipped, &stays);
    EXPECT(!stays);
    close_job(&x);
}
