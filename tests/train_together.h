/* What the tests of many workers share: a job that simulated ranks train together, and what came of
 * it. */
#ifndef TT_TRAIN_TOGETHER_H
#define TT_TRAIN_TOGETHER_H

#include "store/ledger.h"
#include "store/vault.h"
#include "train_help.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        tt_err e_ = (call);                                                                        \
        if (e_) return e_;                                                                         \
    } while (0)

enum { STEPS = 64, RANKS = 8 };

typedef struct together {
    const char *text, *changes;
    int threads;
    tt_train_opts opts;
    int64_t until;      /* 0: to its end */
    tt_train_told told; /* with opts.stand_by */
    tt_train_found found;
    void (*meanwhile)(const tt_world *w);    /* between finding and taking up; may be NULL */
    void (*before)(tt_world *w, int64_t at); /* called before each step; may be NULL */
    /* what came of it, by rank 0 */
    int64_t steps;
    int epochs, whole; /* those that ended; and in which each sample was taken once */
    int backups;       /* grains that others provided */
    double loss[STEPS];
    double samples; /* of all steps but the first three, as the rate tells */
    tt_metrics val;
    char sha[65];
    /* of each rank */
    int64_t ended[RANKS];    /* after which step     */
    double mean[RANKS];      /* loss of its epoch    */
    int64_t ran_away[RANKS]; /* in which step        */
} together;

static inline tt_err change(tt_tree *job, const char *changes)
{
    char copy[1024], *save, *s;

    snprintf(copy, sizeof copy, "parallel.timeout=5;%s", changes);
    for (s = strtok_r(copy, ";", &save); s; s = strtok_r(NULL, ";", &save))
        if (*(s += strspn(s, " "))) TRY(tt_tree_set(job, s));
    return TT_OK;
}

static inline void count_epoch(together *x, const tt_epoch *e)
{
    tt_witness all = tt_witness_whole(e->samples);

    if (!e->samples) return;
    x->epochs++;
    x->whole += e->sum == all.sum && e->count == all.count;
}

static inline tt_err train_rank(tt_world *w, void *arg)
{
    together *x = arg;
    tt_train_opts o = x->opts;
    tt_trainer *t = NULL;
    tt_progress p = {0};
    double counted_s = 0;
    tt_err err;

    TRY(tt_tree_parse("job", x->text, strlen(x->text), &o.job));
    if ((err = change(o.job, x->changes))) goto out;
    o.world = w;
    o.threads = x->threads;
    if ((err = tt_train_open(&o, &t))) goto out;
    if (o.stand_by) {
        tt_train_found found;
        if ((err = tt_train_find(t, &x->told, &found))) goto out;
        if (x->meanwhile) x->meanwhile(w);
        if ((err = tt_train_begin(t))) goto out;
        if (!w->rank) x->found = found;
    }
    while (!p.end && (!x->until || p.step < x->until)) {
        if (x->before) x->before(w, p.step);
        if ((err = tt_train_step(t, &p))) goto out;
        if (!w->rank && p.step <= STEPS) x->loss[p.step - 1] = p.loss;
        if (!w->rank) count_epoch(x, &p.before);
        if (!w->rank && p.epoch_end) count_epoch(x, &p.ended);
        if (p.step - tt_train_first_step(t) > 3) counted_s += p.step_s;
    }
    x->ended[w->rank] = p.step;
    x->mean[w->rank] = p.loss_mean;
    if (!w->rank) {
        tt_train_sha(t, x->sha);
        x->steps = p.step;
        for (int r = 0; r < w->size; r++) x->backups += tt_train_times(t)[r].backups;
        x->samples = p.samples_per_s * counted_s;
        x->val = p.val;
    }
    if (!x->until) err = tt_train_compare(t);
    if (!err && !o.no_files && !x->until && !(err = tt_train_finish(t, "done"))) tt_train_leave(t);
out:
    tt_train_close(t);
    tt_tree_close(o.job);
    return err;
}

static inline together run(int ranks, const int *hosts, int threads, const char *changes)
{
    together x = {
        .text = job_text, .changes = changes, .threads = threads, .opts = {.no_files = true}};
    EXPECT_OK(tt_sim_run(ranks, hosts, 30, train_rank, &x));
    return x;
}

/* The same with a run folder: new, or gone on with. */
static inline void run_in(const char *folder, bool resume, int64_t until, int ranks,
                          const int *hosts, const char *changes)
{
    together x = {.text = job_text,
                  .changes = changes,
                  .threads = 1,
                  .until = until,
                  .opts = {.run = folder, .resume = resume}};
    tt_err err = tt_sim_run(ranks, hosts, 30, train_rank, &x);
    if (err) FAIL("%s, %d ranks: error %d: %s", changes, ranks, err, tt_message());
}

static const int two_hosts[] = {0, 0, 1, 1, 1, 0, 1, 0};
static const int apart[] = {0, 1, 2, 3, 4, 5, 6, 7};
static const int two_one[] = {0, 0, 1};

/* Where a simulated host has the vault of a run. */
static inline void vault_of(const char *run, int host, char folder[4096])
{
    char path[256];
    bool on_disk;
    tt_bytes id;

    snprintf(path, sizeof path, "%s/id", run);
    EXPECT_OK(tt_file_read(path, 64, &id));
    snprintf(path, sizeof path, "%.32s-sim%d", (const char *)id.data, host);
    tt_file_release(&id);
    EXPECT_OK(tt_vault_folder(path, 1, NULL, folder, &on_disk));
}

/* What a supervisor would do at the end. */
static inline void forget_vaults(const char *run, int hosts)
{
    char folder[4096];

    for (int i = 0; i < hosts; i++) {
        vault_of(run, i, folder);
        EXPECT_OK(tt_vault_remove(folder));
    }
}

#endif
