/* trainer: the private face of train/: what a running training consists of. */
#ifndef TT_TRAINER_H
#define TT_TRAINER_H

#include "optim/optim.h"
#include "train.h"

/* When something is due: every so many steps, epochs or seconds; all 0: never. */
typedef struct cadence {
    int64_t steps; /* with `epochs`: as many, once the length of an epoch is known */
    double seconds;
    int64_t epochs;
} cadence;
static inline bool is_never(const cadence *c)
{
    return !c->steps && !c->epochs && !(c->seconds > 0);
}

/* "val.accuracy max" */
typedef struct goal {
    char metric[32];
    int sign; /* +1 larger is better, -1 smaller, 0 none */
} goal;

typedef struct train_conf {
    int64_t epochs, steps, steps_per_epoch, batch, seed, accumulate, threads, log_every;
    const char *kernels, *validate_text;
    tt_node *optimizer, *schedule, *clip, *groups, *early_stop;
    cadence validate;
    goal early;
    int64_t patience;
    double min_delta;
} train_conf;

typedef struct save_conf {
    const char *every_text, *best_text;
    int64_t keep;
    cadence every;
    goal best;
} save_conf;

tt_err read_train(tt_node *train, train_conf *out);
tt_err read_checkpoint(tt_node *checkpoint, save_conf *out);
tt_err find_kernels(tt_node *train, const train_conf *c, const tt_kernels **out);
/* Refuses goals that this model or this data can never tell. `save` may be NULL. */
tt_err check_goals(const tt_job *job, const train_conf *c, const save_conf *save, const tt_model *m,
                   bool has_val);
bool is_val(const goal *g); /* it needs a validation */

/* One thread's share. */
typedef struct worker {
    tt_run *run;
    float *grad;
    tt_batch eval; /* its batch while validating  */
    tt_result sum; /* of its grains               */
    double *sums;  /* what it offers to a TT_SUM  */
    tt_err err;    /* while validating: its first */
    char message[512];
} worker;

/* A team of threads that run grains side by side: for training, validation and prediction alike. */
typedef struct crew {
    tt_team *team;
    int size;
    const tt_model *model;
    int grain; /* samples a run has room for  */
    bool train;
    worker *workers;
    double *total; /* of a TT_SUM in progress     */
    int64_t features, targets;
    bool labels;
    tt_result *parts; /* validation: a result per grain, added in their order */
    int64_t part_count;
} crew;

/* `val_count`: samples of the largest split that will be judged. */
tt_err crew_open(crew *c, const tt_model *m, int threads, int grain, bool train, int64_t val_count);
void crew_close(crew *c);
/* Runs one grain on worker `me` to its end; `together`: all workers do, so sums go round. */
void crew_run(crew *c, int me, tt_pass pass, const tt_batch *in, bool add, uint64_t seed,
              bool together);
tt_err crew_eval(crew *c, const tt_data *d, tt_split split, uint64_t seed, tt_metrics *out);
tt_metrics metrics_of(const tt_model *m, const tt_result *r);
void result_add(tt_result *to, const tt_result *from);

struct tt_trainer {
    tt_arena *arena;
    tt_job job;
    train_conf conf;
    save_conf save;
    tt_model *model;
    tt_data *data;
    tt_optim *optim;
    crew crew;
    const tt_param *params;
    int param_count;
    int64_t size;
    /* The state of the training, flat, in two halves: a step goes from the current one to the next,
     * and they change places only if it is good. */
    float *w, *slot[TT_OPTIM_SLOTS];
    float *w_next, *slot_next[TT_OPTIM_SLOTS];
    int slot_count;
    tt_order order;
    tt_feed *feed;
    int grains; /* of a full batch: threads x accumulate */

    /* the step in progress */
    const tt_batch *batch;
    bool solo;  /* too few samples to share out: worker 0 does it alone */
    bool apply; /* all that is known of it so far is finite              */
    tt_result sum;
    double begun, got_data, turned, summed, ended;

    /* the run so far */
    int64_t step, first_step, steps, epoch_steps;
    tt_progress progress;
    double epoch_loss, epoch_weight;
    double rate_samples, rate_s;
    int warm; /* steps that still do not count for the rate */
    double started, last_save, last_validate;
    int64_t early_bad;
    bool early_end; /* it did not get better for long enough */
    double early_best, best;
    double final_loss;

    /* the run folder; NULL with no_files */
    tt_run_dir *dir;
    tt_journal *journal;
    tt_events *events;
    bool logging, journal_failed, events_failed;
    char *init; /* the weights it was started from; NULL: none */
    bool init_partial;
    tt_saver *saver;
    tt_entry *entries;
    const char **entry_files;
    int entry_count;
    char trouble[512];
};

/* save.c */
tt_entry entry_of(const tt_param *p, const char *name,
                  const float *base); /* base: the flat array */
tt_err trainer_saver_open(tt_trainer *t);
tt_err trainer_save(tt_trainer *t);
void trainer_poll_saver(tt_trainer *t); /* tells the progress what became of saves */
tt_err trainer_restore(tt_trainer *t, const char *folder, bool *found);

/* report.c */
void report_log(tt_trainer *t);       /* from here on the run's log tells */
void report_read_init(tt_trainer *t); /* sets `init` as it was recorded when the run began */
tt_err report_open(tt_trainer *t, const tt_train_opts *o, int64_t after_step);
void report_step(tt_trainer *t);
void report_validation(tt_trainer *t);
double metric_of(const tt_trainer *t, const goal *g); /* NAN if it does not apply */

#endif
