/* What can go wrong with many workers: ranks that are gone, slow, or not of one mind. */
#include <sys/syscall.h>
#include <unistd.h>

#include "comm/carrier.h"
#include "train_together.h"

/* ---- who is gone is named ---- */

typedef struct loss {
    together t;
    int who; /* leaves without a word after three steps */
} loss;

static tt_err leave_early(tt_world *w, void *arg)
{
    loss own = *(loss *)arg;
    char name[32];
    tt_err err;

    if (w->rank == own.who) own.t.until = 3;
    err = train_rank(w, &own.t);
    if (w->rank == own.who) return err;
    snprintf(name, sizeof name, "rank %d (sim", own.who);
    if (err == TT_EPEER && strstr(tt_message(), name)) return TT_OK;
    return tt_fail(TT_EINVAL, "%s: rank %d, error %d: %s", own.t.changes, w->rank, err,
                   tt_message());
}

TT_TEST(world, a_worker_that_is_gone_is_named)
{
    static const char *const modes[] = {"", "parallel.aggregate=chief", "parallel.aggregate=shard",
                                        "parallel.compress=powersgd:2",
                                        "model.layers.1.batchnorm.sync=true"};
    char changes[256];
    loss x = {{.text = job_text, .changes = changes, .threads = 1, .opts = {.no_files = true}}, 1};

    for (int i = 0; i < TT_COUNT(modes); i++) {
        snprintf(changes, sizeof changes, "parallel.timeout=0.4; train.validate=never; %s",
                 modes[i]);
        x.who = 2; /* of another host: the leader of this one misses it, its mates do not */
        EXPECT_OK(tt_sim_run(3, two_one, 10, leave_early, &x));
        if (i % 2) continue;
        x.who = 1;
        EXPECT_OK(tt_sim_run(3, NULL, 10, leave_early, &x));
        EXPECT_OK(tt_sim_run(3, apart, 10, leave_early, &x));
    }
}

/* ---- who is slow is not gone ---- */

/* Every rank gets one message through in so long. */
enum { EACH_MS = 40 };
static const tt_carrier_calls *_Atomic fast;
static tt_carrier_calls slow[RANKS];

static tt_err test_slowly(tt_world *w, tt_op *op, size_t *came)
{
    static _Thread_local double last;
    tt_err err = TT_OK;

    if (tt_clock_s() - last < EACH_MS * 1e-3) return TT_OK;
    err = ((const tt_carrier_calls *)fast)->test(w, op, came);
    if (op->done) last = tt_clock_s();
    return err;
}

static void slow_down(tt_world *w, int64_t at)
{
    if (at) return;
    fast = w->carrier->calls;
    slow[w->rank] = *w->carrier->calls;
    slow[w->rank].test = test_slowly;
    w->carrier->calls = &slow[w->rank];
}

TT_TEST(world, a_slow_network_is_no_missing_worker)
{
    /* About 30 messages of a step each take less than the deadline, and all together more. */
    static const char *const modes[] = {"parallel.compress=bf16", "parallel.aggregate=chief",
                                        "parallel.aggregate=shard"};

    for (int i = 0; i < TT_COUNT(modes); i++) {
        char changes[256];
        together x = {.text = job_text,
                      .changes = changes,
                      .threads = 1,
                      .until = 1,
                      .before = slow_down,
                      .opts = {.no_files = true}};
        snprintf(changes, sizeof changes,
                 "parallel.timeout=0.3; parallel.bucket=64k; train.validate=never; "
                 "train.clip=null; model.layers.0.conv.out=128; model.layers.6.dense.out=800; %s",
                 modes[i]);
        EXPECT_OK(tt_sim_run(3, two_one, 10, train_rank, &x));
    }
}

/* A disk that takes its time, for the whole program. */
static _Atomic int disk_ms;

int fsync(int fd)
{
    if (disk_ms) usleep((useconds_t)disk_ms * 1000);
    return (int)syscall(SYS_fsync, fd);
}

TT_TEST(world, a_slow_disk_is_no_missing_worker)
{
    tt_ckpt *c;

    disk_ms = 100; /* of some ten times in a checkpoint, and when a run is opened */
    run_in("r", false, 0, 3, NULL,
           "train.epochs=1; checkpoint.every=8; parallel.timeout=0.4; parallel.aggregate=shard");
    disk_ms = 0;
    EXPECT_OK(tt_ckpt_open("r/checkpoints", 9, true, &c));
    tt_ckpt_close(c);
}

static tt_err come_late(tt_world *w, void *arg)
{
    if (!w->rank) usleep(700 * 1000);
    return train_rank(w, arg);
}

TT_TEST(world, the_timeout_of_the_job_holds_from_the_start)
{
    together x = {.text = job_text, .changes = "", .threads = 1, .opts = {.no_files = true}};
    EXPECT_OK(tt_sim_run(2, NULL, 0.3, come_late, &x));
}

/* ---- ranks that are not of one mind ---- */

static const char *odd_change;

/* Each rank reads its own job: rank 2's is another. */
static tt_err odd_one_out(tt_world *w, void *arg)
{
    together own = *(together *)arg;
    if (w->rank == 2) own.changes = odd_change;
    return train_rank(w, &own);
}

/* Also in what decides how they talk to each other from the first moment on. */
TT_TEST(world, ranks_with_another_job_are_refused_with_both_values)
{
    static const char *const odd[][2] = {{"train.seed=7", "train.seed is 7, there 1"},
                                         {"parallel.exact=true", "parallel.exact is true"},
                                         {"parallel.compress=bf16", "parallel.compress is bf16"},
                                         {"data.shards=local", "data.shards is local"}};

    for (int i = 0; i < TT_COUNT(odd); i++) {
        together x = {.text = job_text, .changes = "", .threads = 1, .opts = {.no_files = true}};
        odd_change = odd[i][0];
        EXPECT_ERR(TT_EINVAL, tt_sim_run(3, NULL, 10, odd_one_out, &x));
        EXPECT_MESSAGE("rank 2 (sim0)");
        EXPECT_MESSAGE(odd[i][1]);
    }
}

/* Between two meetings each has a model of its own; whoever looks sees their mean. */
static tt_err look_between(tt_world *w, void *arg)
{
    tt_train_opts o = {.no_files = true, .world = w, .threads = 1};
    float *seen = arg;
    tt_trainer *t = NULL;
    tt_metrics m;
    tt_progress p;
    tt_err err;

    TRY(tt_tree_parse("job", job_text, strlen(job_text), &o.job));
    err = change(o.job, "parallel.aggregate=average;parallel.average={every: 5}");
    if (!err) err = tt_train_open(&o, &t);
    for (int i = 0; i < 3 && !err; i++) err = tt_train_step(t, &p);
    if (!err && !tt_train_compare(t)) err = tt_fail(TT_EINVAL, "they have not trained apart");
    if (!err) err = tt_group_barrier(tt_world_all(w));
    if (!err) err = tt_train_validate(t, &m);
    if (!err) seen[w->rank] = (float)m.loss;
    if (!err) err = tt_train_compare(t);
    tt_train_close(t);
    tt_tree_close(o.job);
    return err;
}

TT_TEST(world, who_looks_at_workers_that_train_apart_sees_one_model)
{
    float seen[3] = {0};

    EXPECT_OK(tt_sim_run(3, NULL, 10, look_between, seen));
    EXPECT(seen[0] > 0 && seen[0] == seen[1] && seen[1] == seen[2]);
}

static tt_err odd_data(tt_world *w, void *arg)
{
    static const float x[2][8] = {{1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4, 5, 6, 7, 9}};
    static const int32_t label[8] = {0, 1, 0, 1, 0, 1, 0, 1};
    together own = *(together *)arg;
    tt_data_rows rows = {.x = x[w->rank == 1], .label = label, .n = 8};

    own.opts.train_rows = &rows;
    return train_rank(w, &own);
}

TT_TEST(world, ranks_with_other_data_are_refused_with_both_values)
{
    together x = {.text =
                      "model: {input: [1], layers: [dense: {out: 2}], loss: "
                      "softmax_cross_entropy}\ntrain: {steps: 2, batch: 4, optimizer: {sgd: {lr: "
                      "0.1}}}\n",
                  .changes = "",
                  .threads = 1,
                  .opts = {.no_files = true}};
    EXPECT_ERR(TT_EDATA, tt_sim_run(2, NULL, 10, odd_data, &x));
    EXPECT_MESSAGE("the data of rank 1 (sim0) is not that of rank 0");
}

/* A rate at which numbers run away: all ranks must say so, in the same step. */
static tt_err run_away(tt_world *w, void *arg)
{
    together own = *(together *)arg;
    tt_err err = train_rank(w, &own);

    if (err != TT_EDIVERGED) return tt_fail(TT_EINVAL, "error %d: %s", err, tt_message());
    ((together *)arg)->ran_away[w->rank] = atoll(strstr(tt_message(), "step ") + 5);
    return TT_OK;
}

TT_TEST(world, numbers_that_run_away_are_seen_by_all_in_the_same_step)
{
    static const char *const modes[] = {"allreduce", "shard"};
    for (int m = 0; m < 2; m++) {
        char changes[200];
        together x = {
            .text = job_text, .changes = changes, .threads = 1, .opts = {.no_files = true}};
        snprintf(changes, sizeof changes,
                 "train.clip=null; train.optimizer={sgd: {lr: 1e30}}; model.layers.1=relu; "
                 "parallel.aggregate=%s",
                 modes[m]);
        EXPECT_OK(tt_sim_run(5, two_hosts, 20, run_away, &x));
        for (int r = 0; r < 5; r++) EXPECT(x.ran_away[r] > 0 && x.ran_away[r] == x.ran_away[0]);
    }
}
