/* Wrong numbers: bits that change, and numbers that are none. They are found in the step in which
 * they matter, named, and come to nothing. */
#include <math.h>

#include "store/vault.h"
#include "train_together.h"

/* ---- bits that change ---- */

/* Of job_text's weights: those that are copied to a layout of their own when a step is over, so
 * that what changes afterwards the optimiser alone sees, and some that are not. */
static const char OF_CONV[] = "c.weight", OF_NORM[] = "b.weight";

/* One world of a run that keeps its state; in step `at` a bit of some ranks' weights changes. */
typedef struct trial {
    const char *changes, *folder;
    uint32_t generation;
    bool flips[RANKS];
    int64_t at;        /* after this step ... */
    const char *where; /* ... in this tensor */
    /* what came of it */
    bool odd[RANKS];
    tt_err err[RANKS];
    int64_t step[RANKS];
    char message[RANKS][512], sha[65];
    tt_train_found found;
} trial;

static tt_err try_rank(tt_world *w, void *arg)
{
    trial *x = arg;
    tt_train_opts o = {
        .run = x->folder, .again = true, .keep = true, .stand_by = true, .world = w, .threads = 2};
    tt_train_told told = {.generation = x->generation};
    tt_train_found found;
    tt_trainer *t = NULL;
    tt_progress p = {0};
    tt_err err;
    int count;

    TRY(tt_tree_parse("job", job_text, strlen(job_text), &o.job));
    TRY(change(o.job, x->changes));
    TRY(tt_train_open(&o, &t));
    TRY(tt_train_find(t, &told, &found));
    TRY(tt_train_begin(t));
    if (!w->rank) x->found = found;
    const tt_param *params = tt_model_params(tt_train_model(t), &count);
    while (!p.end && !(err = tt_train_step(t, &p))) {
        x->step[w->rank] = p.step;
        if (p.step != x->at || !x->flips[w->rank]) continue;
        for (int i = 0; i < count; i++)
            if (!strcmp(params[i].name, x->where))
                ((uint32_t *)(uintptr_t)tt_train_params(t))[params[i].at] ^= 1u << 20;
    }
    x->err[w->rank] = err;
    snprintf(x->message[w->rank], sizeof *x->message, "%s", err ? tt_message() : "");
    for (int r = 0; r < w->size; r++) x->odd[r] = tt_train_odd(t, r);
    if (!w->rank) tt_params_sha(params, count, tt_train_params(t), x->sha);
    if (!err) err = tt_train_finish(t, "done");
    tt_train_close(t);
    tt_tree_close(o.job);
    return TT_OK;
}

static trial try(int ranks, const int *hosts, trial x)
{
    EXPECT_OK(tt_sim_run(ranks, hosts, 30, try_rank, &x));
    return x;
}

static const char exact[] = "parallel.exact=true; parallel.grains=8; checkpoint.every=never; ";

/* A bit of rank 1's weights changes after step 5: step 6 makes others of them, 7 does not come. */
static void expect_found(const char *folder, const char *more, const int *hosts, const char *where)
{
    char changes[512];
    snprintf(changes, sizeof changes, "%s%s", exact, more);
    together one = run(3, NULL, 1, changes);
    trial x = try(3, hosts,
                  (trial){.changes = changes,
                          .folder = folder,
                          .generation = 1,
                          .flips = {false, true},
                          .at = 5,
                          .where = where});

    for (int r = 0; r < 3; r++) {
        EXPECT_INT(TT_EPEER, x.err[r]);
        EXPECT_INT(6, x.step[r]);
        EXPECT(strstr(x.message[r], "the weights of rank 1 (") != NULL);
        EXPECT_INT(r == 1, x.odd[r]);
    }
    x = try(3, hosts, (trial){.changes = changes, .folder = folder, .generation = 2});
    EXPECT_INT(0, x.err[0]);
    EXPECT(!x.found.disk);
    EXPECT_INT(5, x.found.label.step); /* rank 1 had its part in step 6 */
    EXPECT(x.found.lost);
    EXPECT_STR(one.sha, x.sha);
}

TT_TEST(numbers, a_changed_bit_is_found_and_its_rank_is_named)
{
    expect_found("here", "", NULL, OF_CONV);
    expect_found("norm", "", NULL, OF_NORM);
}

TT_TEST(numbers, so_it_is_on_several_hosts)
{
    expect_found("hosts", "", two_hosts, OF_NORM);
    expect_found("apart", "parallel.bucket=4096", apart, OF_CONV);
}

/* Of two nobody knows who is right: both go back to where they agree. */
TT_TEST(numbers, of_two_ranks_none_is_named_and_both_go_back)
{
    together one = run(2, NULL, 1, exact);
    trial x = try(2, NULL,
                  (trial){.changes = exact,
                          .folder = "two",
                          .generation = 1,
                          .flips = {true},
                          .at = 5,
                          .where = OF_CONV});

    EXPECT_INT(TT_EPEER, x.err[0]);
    EXPECT(strstr(x.message[0], "nobody can say whose are right") != NULL);
    EXPECT(!x.odd[0] && !x.odd[1]);
    x = try(2, NULL, (trial){.changes = exact, .folder = "two", .generation = 2});
    EXPECT_INT(0, x.err[0]);
    /* What is before the disputed step 6 is rank 1's step 5: rank 0's is not what it committed. */
    EXPECT_INT(5, x.found.label.step);
    EXPECT(x.found.label.attempt > 0 && x.found.lost);
    EXPECT_STR(one.sha, x.sha);
}
