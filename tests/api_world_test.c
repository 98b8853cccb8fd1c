/* Worlds from C: alone, and on ranks that are threads of this program, on one host and on several.
 */
#include "api_ranks.h"

/* ---- the world ---- */

TT_TEST(api_world, who_is_started_alone_is_a_world_of_one)
{
    float x[3] = {1, 2, 3}, *y;
    tutti_world *w;

    for (int again = 0; again < 2; again++) {
        OK(tutti_world_join(&w));
        EXPECT_INT(0, tutti_world_rank(w));
        EXPECT_INT(1, tutti_world_size(w));
        EXPECT_INT(0, tutti_world_local_rank(w));
        EXPECT_INT(1, tutti_world_local_size(w));
        OK(tutti_world_timeout(w, 5));
        OK(tutti_world_barrier(w));
        OK(tutti_world_sum(w, x, 3));
        OK(tutti_world_mean(w, x, 3));
        OK(tutti_world_bcast(w, 0, x, sizeof x));
        EXPECT(x[0] == 1 && x[1] == 2 && x[2] == 3);
        OK(tutti_world_alloc(w, 3, &y));
        EXPECT(y[0] == 0 && y[2] == 0);
        y[1] = 4;
        OK(tutti_world_sum(w, y, 3));
        EXPECT(y[1] == 4);
        OK(tutti_world_agree(w, TUTTI_OK));
        REFUSED(TUTTI_EDATA, tutti_world_agree(w, tutti_fail(TUTTI_EDATA, "no rows")));
        EXPECT_MESSAGE("no rows");
        tutti_world_leave(w, again); /* with an exit code too it returns: there is nobody to end */
    }
}

static tt_err know_places(tutti_world *w, int rank, int size, void *arg)
{
    const int *host = arg;
    int local = 0, mates = 0;

    for (int r = 0; r < size; r++) {
        mates += host[r] == host[rank];
        local += r < rank && host[r] == host[rank];
    }
    CHECK(tutti_world_rank(w) == rank && tutti_world_size(w) == size);
    CHECK(tutti_world_local_rank(w) == local && tutti_world_local_size(w) == mates);
    return TT_OK;
}

TT_TEST(api_world, ranks_know_their_place)
{
    on_ranks(5, mixed, know_places, (void *)mixed);
    on_ranks(5, apart, know_places, (void *)apart);
}

static float number(int rank, int64_t i)
{
    return (float)((i * 7 + rank * 13) % 101) - 50;
}

static tt_err sum_one(tutti_world *w, float *x, int64_t n, int rank, int size)
{
    for (int64_t i = 0; i < n; i++) x[i] = number(rank, i);
    TRY(tutti_world_sum(w, x, n));
    for (int64_t i = 0; i<n; i += n> 1000 ? 997 : 1) {
        float want = 0;
        for (int r = 0; r < size; r++) want += number(r, i);
        CHECK(x[i] == want);
    }
    for (int64_t i = 0; i < n; i++) x[i] = number(rank, i) / 3;
    TRY(tutti_world_mean(w, x, n));
    return same_on_all(w, x, (size_t)n * sizeof *x);
}

static tt_err sum_vectors(tutti_world *w, int rank, int size, void *arg)
{
    static const int64_t sizes[] = {1, 2, 17, 270001};
    float *own, *ours;

    (void)arg;
    for (int k = 0; k < TT_COUNT(sizes); k++) {
        tt_err err;
        CHECK((own = malloc((size_t)sizes[k] * sizeof *own)));
        err = sum_one(w, own, sizes[k], rank, size);
        free(own);
        TRY(err);
        TRY(tutti_world_alloc(w, sizes[k], &ours));
        CHECK((uintptr_t)ours % 64 == 0 && ours[0] == 0 && ours[sizes[k] - 1] == 0);
        TRY(sum_one(w, ours, sizes[k], rank, size));
    }
    TRY(tutti_world_sum(w, NULL, 0));
    return TT_OK;
}

TT_TEST(api_world, sums_are_right_and_the_same_bits_everywhere)
{
    on_worlds(sum_vectors, NULL);
}

static tt_err many_vectors(tutti_world *w, int rank, int size, void *arg)
{
    enum { MANY = 300, EACH = 5000 }; /* 6 MB in vectors that do not fit one block */
    float *v[MANY];

    (void)arg;
    for (int i = 0; i < MANY; i++) {
        TRY(tutti_world_alloc(w, EACH, &v[i]));
        for (int k = 0; k < EACH; k++) CHECK(v[i][k] == 0);
        for (int k = 0; k < EACH; k++) v[i][k] = (float)(i + rank);
    }
    for (int i = 0; i < MANY; i += 7) TRY(tutti_world_sum(w, v[i], EACH));
    for (int i = 0; i < MANY; i++) /* and no other was touched */
        for (int k = 0; k < EACH; k++)
            CHECK(v[i][k] == (float)(i % 7 ? i + rank : i * size + size * (size - 1) / 2));
    return TT_OK;
}

TT_TEST(api_world, a_program_may_have_many_vectors)
{
    on_ranks(3, mixed, many_vectors, NULL);
}

static tt_err cast_bytes(tutti_world *w, int rank, int size, void *arg)
{
    (void)arg;
    for (int root = 0; root < size; root++) {
        char text[40] = "";
        if (rank == root) snprintf(text, sizeof text, "what rank %d says", root);
        TRY(tutti_world_bcast(w, root, text, sizeof text));
        CHECK(atoi(text + 10) == root);
    }
    TRY(tutti_world_bcast(w, size - 1, NULL, 0));
    CHECK_ERR(TUTTI_EINVAL, tutti_world_bcast(w, size, NULL, 0), "root");
    CHECK_ERR(TUTTI_EINVAL, tutti_world_bcast(w, -1, NULL, 0), "root");
    return TT_OK;
}

TT_TEST(api_world, a_broadcast_comes_from_any_root)
{
    on_worlds(cast_bytes, NULL);
}

static tt_err agree_on_trouble(tutti_world *w, int rank, int size, void *arg)
{
    tutti_status mine = TUTTI_OK;

    (void)arg;
    (void)size;
    TRY(tutti_world_agree(w, mine));
    if (rank >= 1) mine = tutti_fail(TUTTI_EDATA, "no rows for %d", rank);
    CHECK_ERR(TUTTI_EDATA, tutti_world_agree(w, mine), "no rows for 1");
    CHECK(strstr(tutti_message(), "rank 1"));
    TRY(tutti_world_barrier(w)); /* it is of use all the same */
    return TT_OK;
}

TT_TEST(api_world, an_error_of_one_is_known_to_all)
{
    on_ranks(3, NULL, agree_on_trouble, NULL);
}

/* ---- ranks that disagree ---- */

static tt_err differ(tutti_world *w, int rank, int size, void *arg)
{
    float own[16] = {0}, *a, *b;

    (void)arg;
    (void)size;
    TRY(tutti_world_sum(w, own, 10));
    CHECK_ERR(TUTTI_EINVAL, tutti_world_sum(w, own, rank == 1 ? 12 : 11), "rank 1");
    CHECK(strstr(tutti_message(), "12 numbers") && strstr(tutti_message(), "has 11"));
    CHECK_ERR(TUTTI_EINVAL, rank == 2 ? tutti_world_mean(w, own, 9) : tutti_world_sum(w, own, 9),
              "calls tutti_world_mean");
    CHECK_ERR(TUTTI_EINVAL, rank == 2 ? tutti_world_barrier(w) : tutti_world_alloc(w, 5, &a),
              "calls tutti_world_barrier");
    CHECK_ERR(TUTTI_EINVAL, tutti_world_alloc(w, rank == 2 ? -5 : 5, &a), "-5 numbers");
    CHECK_ERR(TUTTI_EINVAL, tutti_world_alloc(w, 5 + rank, &a), "rank 1");
    CHECK(!a);
    TRY(tutti_world_alloc(w, 16, &a));
    TRY(tutti_world_alloc(w, 16, &b));
    CHECK_ERR(TUTTI_EINVAL, tutti_world_sum(w, rank == 1 ? a : b, 16), "at another place");
    CHECK_ERR(TUTTI_EINVAL, tutti_world_sum(w, rank == 1 ? own : b, 16), "at another place");
    CHECK_ERR(TUTTI_EINVAL, tutti_world_bcast(w, rank == 1, own, 4), "another root");
    TRY(tutti_world_sum(w, a, 16));
    TRY(tutti_world_sum(w, own, 10));
    return TT_OK;
}

TT_TEST(api_world, calls_that_differ_are_refused_and_name_the_rank)
{
    on_ranks(3, NULL, differ, NULL);
    on_ranks(3, apart, differ, NULL);
}

static tt_err lose_one(tutti_world *w, int rank, int size, void *arg)
{
    float x[4] = {0};
    double begun = tt_clock_s();

    (void)arg;
    (void)size;
    TRY(tutti_world_sum(w, x, 4));
    TRY(tutti_world_timeout(w, 1));
    if (rank == 2) return TT_OK; /* and is gone */
    CHECK_ERR(TUTTI_EPEER, tutti_world_sum(w, x, 4), "no word from rank 2");
    CHECK(strstr(tutti_message(), "tutti_world_sum"));
    begun = tt_clock_s() - begun;
    CHECK(begun > 0.9 && begun < 15);
    begun = tt_clock_s();
    CHECK_ERR(TUTTI_EPEER, tutti_world_barrier(w), "tutti_world_sum"); /* what it was, again */
    CHECK_ERR(TUTTI_EPEER, tutti_world_timeout(w, 1), "tutti_world_sum");
    CHECK(tt_clock_s() - begun < 0.2); /* and nobody is waited for */
    return TT_OK;
}

static tt_err lose_at_barrier(tutti_world *w, int rank, int size, void *arg)
{
    (void)arg;
    (void)size;
    TRY(tutti_world_timeout(w, 0.3));
    if (rank == 1) return TT_OK;
    CHECK_ERR(TUTTI_EPEER, tutti_world_barrier(w), "no word from rank 1");
    return TT_OK;
}

TT_TEST(api_world, who_does_not_come_is_named_in_time)
{
    on_ranks(3, NULL, lose_one, NULL);
    on_ranks(2, NULL, lose_at_barrier, NULL);
    on_ranks(2, apart, lose_at_barrier, NULL);
}

/* ---- jobs ---- */

typedef struct together {
    tutti_rows rows;
    const char *run;
    bool resume;
    int64_t until; /* 0: to its end */
    int wrong;     /* a rank whose options are */
    tutti_model *model;
    tutti_progress last;
} together;

static tt_err train_job(tutti_world *w, int rank, int size, void *arg)
{
    together *x = arg;
    tutti_options o = {.train = &x->rows, .run = x->run, .resume = x->resume, .world = w};
    tutti_progress p = {0};
    tutti_model *model = NULL;
    tutti_trainer *t = NULL;
    tutti_job *job = NULL;
    tt_err err;

    (void)size;
    TRY(tutti_job_parse(
        "points",
        "name: points\n"
        "model:\n"
        "  input: [2]\n"
        "  layers: [{dense: {out: 16}}, tanh, {dense: {out: 2}}]\n"
        "  loss: softmax_cross_entropy\n"
        "train: {epochs: 10, batch: 40, threads: 1, optimizer: {adam: {lr: 0.02}}}\n"
        "parallel: {exact: true, grains: 4, timeout: 10s}\n",
        &job));
    if (x->wrong == rank + 1) o.partial = true;
    err = (tt_err)tutti_trainer_open(job, &o, &t);
    tutti_job_close(job);
    if (err) return err;
    while (!err && !p.end && (!x->until || p.step < x->until)) {
        err = (tt_err)tutti_trainer_step(t, &p);
        /* Between steps the world is there for other things. */
        if (!err && p.step % 10 == 1) err = (tt_err)tutti_world_barrier(w);
    }
    if (!err) err = (tt_err)tutti_trainer_finish(t);
    if (!err && (!rank && x->run) != (*tutti_trainer_run(t) != 0))
        err = tt_fail(TT_EFORMAT, "rank %d: the run is '%s'", rank, tutti_trainer_run(t));
    if (!err) err = (tt_err)tutti_trainer_model(t, &model);
    tutti_trainer_close(t);
    if (!err) {
        const float *weight;
        tutti_shape s;
        TRY(tutti_model_param(model, "dense1.weight", &s, &weight));
        err = same_on_all(w, weight, (size_t)tutti_shape_count(s) * sizeof *weight);
    }
    if (!err && !rank) {
        x->last = p;
        x->model = model;
        model = NULL;
    }
    tutti_model_close(model);
    return err;
}

TT_TEST(api_world, a_job_is_trained_together_stopped_and_taken_up_again)
{
    together one = {.rows = points()}, more = one, half = one, rest = one;

    on_ranks(1, NULL, train_job, &one);
    EXPECT_STR("done", one.last.end);
    on_ranks(3, mixed, train_job, &more);
    EXPECT_INT(one.last.step, more.last.step);
    EXPECT(same_weights(one.model, more.model)); /* the job says exact */
    EXPECT(access("runs", F_OK));

    half.run = rest.run = "r";
    half.until = 33;
    half.resume = rest.resume = true; /* there is nothing yet: from the start */
    on_ranks(2, NULL, train_job, &half);
    EXPECT(!half.last.end);
    EXPECT(!access("r/checkpoints/step-00000033/manifest.json", R_OK));
    on_ranks(3, apart, train_job, &rest);
    EXPECT_STR("done", rest.last.end);
    EXPECT(same_weights(one.model, rest.model));
    EXPECT(!access("r/summary.json", R_OK));
    tutti_model_close(one.model);
    tutti_model_close(more.model);
    tutti_model_close(half.model);
    tutti_model_close(rest.model);
}

TT_TEST(api_world, options_of_one_rank_that_are_wrong_stop_all)
{
    together x = {.rows = points(), .wrong = 2};
    part p = {train_job, &x};

    EXPECT_ERR(TT_EINVAL, tt_sim_run(3, NULL, 20, run_part, &p));
    EXPECT_MESSAGE("rank 1");
    EXPECT_MESSAGE("partial");
}

static tt_err leave_training(tutti_world *w, int rank, int size, void *arg)
{
    together *x = arg;
    tutti_options o = {.train = &x->rows, .world = w};
    tutti_job *job = NULL;
    tutti_trainer *t;

    (void)size;
    TRY(tutti_job_parse("points",
                        "name: points\n"
                        "model:\n"
                        "  input: [2]\n"
                        "  layers: [{dense: {out: 2}}]\n"
                        "  loss: softmax_cross_entropy\n"
                        "train: {epochs: 9, batch: 40, threads: 1, optimizer: {adam: {lr: 0.02}}}\n"
                        "parallel: {timeout: 1s}\n",
                        &job));
    TRY(tutti_trainer_open(job, &o, &t));
    tutti_job_close(job);
    TRY(tutti_trainer_step(t, NULL));
    if (!rank) {
        CHECK_ERR(TUTTI_EPEER, tutti_trainer_step(t, NULL), "rank 1");
        CHECK_ERR(TUTTI_EPEER, tutti_trainer_step(t, NULL), "rank 1");
        CHECK_ERR(TUTTI_EPEER, tutti_world_barrier(w), "rank 1"); /* the world is lost with it */
        TRY(tutti_trainer_finish(t));
    }
    tutti_trainer_close(t);
    return TT_OK;
}

TT_TEST(api_world, a_rank_lost_in_training_is_named_and_the_world_with_it)
{
    together x = {.rows = points()};

    on_ranks(2, NULL, leave_training, &x);
}

/* ---- strangers ---- */

TT_TEST(api_world, null_is_an_error_and_never_a_crash)
{
    float x[2] = {0}, *y = x;
    tutti_tensor t = {.name = "a", .shape = {1, {2}}, .data = x}, empty = t;
    tutti_state s = {.folder = "c", .tensors = &t, .count = 1}, none = {0}, nothing = s, hollow = s;
    tutti_optim *o = (tutti_optim *)1;
    tutti_world *w;
    int64_t step;

    REFUSED(TUTTI_EINVAL, tutti_world_join(NULL));
    EXPECT_INT(0, tutti_world_rank(NULL) + tutti_world_size(NULL) + tutti_world_local_rank(NULL) +
                      tutti_world_local_size(NULL));
    REFUSED(TUTTI_EINVAL, tutti_world_timeout(NULL, 1));
    REFUSED(TUTTI_EINVAL, tutti_world_barrier(NULL));
    REFUSED(TUTTI_EINVAL, tutti_world_agree(NULL, TUTTI_OK));
    REFUSED(TUTTI_EINVAL, tutti_world_sum(NULL, x, 2));
    REFUSED(TUTTI_EINVAL, tutti_world_mean(NULL, x, 2));
    REFUSED(TUTTI_EINVAL, tutti_world_alloc(NULL, 2, &y));
    EXPECT(!y);
    REFUSED(TUTTI_EINVAL, tutti_world_bcast(NULL, 0, x, 8));
    REFUSED(TUTTI_EINVAL, tutti_optim_open(NULL, "sgd: {lr: 1}", x, 2, NULL, 0, &o));
    EXPECT(!o);
    REFUSED(TUTTI_EINVAL, tutti_optim_step(NULL, x, 1, NULL));
    REFUSED(TUTTI_EINVAL, tutti_world_save(NULL, &s, 0));
    REFUSED(TUTTI_EINVAL, tutti_world_latest(NULL, "c", &step));
    REFUSED(TUTTI_EINVAL, tutti_world_restore(NULL, &s, 0, &step));
    tutti_optim_close(NULL);
    tutti_world_leave(NULL, 0);

    OK(tutti_world_join(&w));
    REFUSED(TUTTI_EINVAL, tutti_world_timeout(w, 0));
    REFUSED(TUTTI_EINVAL, tutti_world_timeout(w, NAN));
    REFUSED(TUTTI_EINVAL, tutti_world_sum(w, NULL, 2));
    REFUSED(TUTTI_EINVAL, tutti_world_sum(w, x, -1));
    REFUSED(TUTTI_EINVAL, tutti_world_alloc(w, 0, &y));
    REFUSED(TUTTI_EINVAL, tutti_world_alloc(w, 1, NULL));
    REFUSED(TUTTI_ENOMEM, tutti_world_alloc(w, INT64_MAX, &y));
    REFUSED(TUTTI_ENOMEM, tutti_world_alloc(w, INT64_MAX / 64, &y));
    REFUSED(TUTTI_EINVAL, tutti_world_bcast(w, 0, NULL, 8));
    REFUSED(TUTTI_EINVAL, tutti_optim_open(w, "sgd: {lr: 1}", x, 2, NULL, 0, NULL));
    nothing.count = 0;
    empty.data = NULL;
    hollow.tensors = &empty;
    REFUSED(TUTTI_EINVAL, tutti_world_save(w, NULL, 0));
    REFUSED(TUTTI_EINVAL, tutti_world_save(w, &none, 0));
    REFUSED(TUTTI_EINVAL, tutti_world_save(w, &nothing, 0));
    REFUSED(TUTTI_EINVAL, tutti_world_save(w, &hollow, 0));
    REFUSED(TUTTI_EINVAL, tutti_world_save(w, &s, -1));
    REFUSED(TUTTI_EINVAL, tutti_world_restore(w, NULL, 0, &step));
    REFUSED(TUTTI_EINVAL, tutti_world_latest(w, NULL, &step));
    REFUSED(TUTTI_EINVAL, tutti_world_latest(w, "c", NULL));
    tutti_world_leave(w, 0);
}
