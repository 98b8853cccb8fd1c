/* trainer: the private face of train/: what a running training consists of. */
#ifndef TT_TRAINER_H
#define TT_TRAINER_H

#include "optim/optim.h"
#include "store/ledger.h"
#include "store/recover.h"
#include "store/vault.h"
#include "strategy/strategy.h"
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

/* train.on_nan */
enum { ON_NAN_STOP, ON_NAN_SKIP, ON_NAN_ROLLBACK };

typedef struct train_conf {
    int on_nan, precision; /* a tt_precision */
    int64_t epochs, steps, steps_per_epoch, batch, seed, accumulate, threads, log_every;
    const char *kernels, *validate_text;
    tt_node *optimizer, *tables, *schedule, *clip, *groups, *early_stop;
    cadence validate;
    goal early;
    int64_t patience;
    double min_delta;
} train_conf;

typedef struct save_conf {
    const char *every_text, *best_text;
    int64_t keep;
    double retry_s;
    cadence every;
    goal best;
} save_conf;

tt_err read_train(tt_node *train, train_conf *out);
tt_err read_checkpoint(tt_node *checkpoint, save_conf *out);
tt_err read_plan(const tt_job *job, tt_plan *out); /* refuses what the model asks for in vain */
tt_err check_nan(const tt_job *job, const train_conf *c, const tt_plan *p); /* is it possible? */
tt_err find_kernels(tt_node *train, const train_conf *c, const tt_kernels **out);
static inline const char *precision_name(tt_precision p) /* as the job says it */
{
    return p == TT_IN_BF16 ? "bf16" : "float32";
}
/* Refuses goals that this model or this data can never tell. `save` may be NULL, `d` before it is
 * open. */
tt_err check_goals(const tt_job *job, const train_conf *c, const save_conf *save, const tt_model *m,
                   bool has_val, const tt_data *d);
bool is_val(const goal *g); /* it needs a validation */

/* ---- auc.c ---- */

#define AUC_NAN UINT32_MAX     /* the key of what is not a number; above all others */
uint32_t auc_key(float score); /* in the order of the scores; equal where they are */
/* Sorts the keys of either class and counts pairs. `spare` has room for the larger. NAN: a class
 * has no rows, or a score is not a number. */
double auc_of(uint32_t *no, int64_t no_count, uint32_t *yes, int64_t yes_count, uint32_t *spare);

/* ---- judge.c: validation ---- */

typedef struct desk { /* of one thread */
    tt_batch batch;
    float *out;    /* (grain, columns) */
    int64_t *seen; /* (3, classes), of the parts it has run: see tt_run_seen */
    tt_err err;
    char message[512];
} desk;

typedef struct judge {
    tt_crew *crew;   /* borrowed */
    tt_world *world; /* borrowed; NULL: this process alone */
    const tt_model *model;
    int size, grain; /* threads; samples of a part */
    tt_row row;
    desk *desks;
    tt_result *parts, *gathered;
    int64_t part_count, parts_now; /* at most, and of the split that is judged */
    int64_t *host_parts;           /* where hosts have rows of their own; else NULL */
    /* For the area under the ROC curve. A part's sheet: how many rows of class 0 and of class 1,
     * and as many keys of scores as a part has samples, class 0 from the front, class 1 from the
     * back. */
    int columns; /* of scores; 0: it does not apply, and there are no sheets */
    uint32_t *sheets, *keys;
    /* For the mean of the classes' intersections over unions: counts of each rank, (3, classes). */
    int classes; /* of pixels; 0: none are judged */
    int64_t *seen;
} judge;

/* `val_count`: samples of the largest split that will be judged. */
tt_err judge_open(judge *j, const tt_model *m, tt_crew *crew, tt_world *world, bool local,
                  int64_t val_count);
tt_err judge_eval(judge *j, const tt_data *d, tt_split split, uint64_t seed, tt_metrics *out);
void judge_close(judge *j); /* accepts a zeroed one */

/* ---- metrics.c ---- */

/* `d` (may be NULL) says how long a token is. */
tt_metrics metrics_of(const tt_model *m, const tt_data *d, tt_split split, const tt_result *r);
bool metric_applies(const tt_model *m, int k); /* of tt_metric_table */
bool judges_tokens(const tt_model *m);         /* of a sequence, each by the next? */

/* Where an entry of a checkpoint comes from: vector_of in save.c, and how far into it. */
typedef struct entry_from {
    int vector;
    int64_t at;
} entry_from;

struct tt_trainer {
    tt_train_opts opts;
    tt_arena *arena;
    tt_job job;
    train_conf conf;
    save_conf save;
    tt_model *model;
    tt_data *data;
    tt_optim *optim;
    tt_world *world;
    bool own_world;
    tt_plan plan;
    tt_strategy *strategy;
    judge judge;
    int threads, bound; /* bound: of them to CPUs of their own */
    const tt_param *params;
    int param_count;
    const tt_model_table *tables; /* what is sparse */
    int table_count;
    const char *dense_rows; /* why what is sparse has no tables; NULL: it has */
    int64_t size;
    tt_state state; /* as it is after the last step */
    int slot_count;
    bool local;      /* each host has rows of its own */
    int64_t *shards; /* rows of each host; NULL: all see the same */
    int *host_n;     /* samples of a step on each host */
    tt_order order;
    tt_feed *feed;
    tt_step_stats stats; /* of the last step */
    struct keep *keep;   /* the vault; NULL: none */
    tt_train_told told;
    uint32_t attempt; /* without a vault: its line of history */
    tt_ckpt *ckpt;    /* rank 0: from which it goes on; NULL: none */
    bool from_disk;
    uint64_t hash;      /* of the weights; 0: not known */
    int64_t committed;  /* the last step that is in the vault */
    bool open_end;      /* what comes with the last step is still to be done */
    tt_witness witness; /* of this epoch */
    tt_epoch last;      /* that is over  */
    double begun, got_data, ended;
    bool safe;          /* it has ended, and the vault is not all there is of it */
    bool skipped;       /* the last step changed nothing, because its numbers were none */
    char news[768];     /* what was wrong with the numbers, and what was done */
    int doubts;         /* of an audit, in the step ... */
    int64_t doubt_step; /* ... after this one           */
    bool *caught_now;   /* of each rank: by them        */
    int *caught;        /* ... and in this world, how often */

    /* the run so far */
    int64_t step, first_step, steps, epoch_steps;
    tt_progress progress;
    double epoch_loss, epoch_weight;
    double rate_samples, rate_tokens, rate_s;
    int warm; /* steps that still do not count for the rate */
    double started, last_save, last_validate;
    double seconds;       /* that worlds before this one have trained */
    bool saves, no_files; /* checkpoints are to be made; there is no run folder */
    int64_t collected;    /* the step whose state rank 0 has last got from all */
    bool asked;           /* to stop */
    bool asked_leave, asked_move;
    int64_t trace_from, trace_to;
    int64_t early_bad;
    bool early_end; /* it did not get better for long enough */
    bool told_goal; /* that one is no number */
    double early_best, best;
    double final_loss;

    /* the run folder; NULL with no_files */
    tt_run_dir *dir;
    tt_journal *journal;
    tt_events *events;
    bool logging, flush_failed, events_failed;
    int64_t lines_lost;    /* of the journal, since it cannot be written         */
    int64_t journal_after; /* what of an older one counts: see tt_journal_open   */
    double reopen_at;      /* when journal and events are tried again            */
    char metrics_trouble[512];
    char *init; /* the weights it was started from; NULL: none */
    bool init_partial;
    float *init_w;     /* until they are in the state */
    uint64_t token;    /* of this world, in its run folder                  */
    bool together;     /* all ranks see the folder                          */
    char folder[4200]; /* of checkpoints, as rank 0 names it                */
    tt_saver *saver;
    bool saving; /* its writer is at work, as far as we have heard */
    tt_entry *entries;
    const char **entry_files;
    entry_from *entry_from;
    int entry_count;
    char trouble[512]; /* with the last checkpoint */
};

/* Ranks that compute; the others are spares. */
static inline int working(const tt_trainer *t)
{
    return t->plan.workers ? t->plan.workers : t->world->size;
}

/* agree.c: what all ranks must have in common */
tt_err all_agree(const tt_trainer *t, tt_err mine); /* the first error of any rank, on all */
tt_err agree_kernels(tt_trainer *t, const tt_kernels **k);
tt_err agree_job(tt_trainer *t, tt_tree *job); /* before anything depends on it */
tt_err agree_data(tt_trainer *t);
tt_err agree_folder(tt_trainer *t);
tt_err agree_shards(tt_trainer *t); /* data.shards: local: sets `shards` */

/* What the resolved job of a run that goes on says; false: nothing, or it is a new one. */
bool value_before(const tt_train_opts *o, const char *key, char out[64]);

tt_epoch epoch_ended(const tt_trainer *t); /* with this step, by its witness */

/* grains.c: sets plan.grains where the job leaves it to us */
tt_err choose_grains(tt_trainer *t, const tt_kernels *k);

/* tables.c: rows that are not in the flat array */
enum { /* vectors, and on downwards */
       TABLE_HEAD = -1,
       TABLE_ROWS = -2,
       TABLE_WEIGHTS = -3,
       TABLE_SLOTS = -4
};
tt_err tables_model(tt_trainer *t, tt_model_opts *mo); /* opens it */
tt_err tables_optim(tt_trainer *t);                    /* ... and this */
void tables_tell(const tt_trainer *t);                 /* rank 0: what the job asks for in vain */
int tables_entries(const tt_trainer *t);               /* of a checkpoint */
/* Of table i: its entry of this vector; -> its file. */
const char *tables_entry(const tt_trainer *t, int i, int vector, tt_entry *out);
void tables_measure(const tt_trainer *t, int i, int vector, tt_entry *out); /* all but its name */
void tables_fill(const tt_trainer *t, int i, int vector, void *to);         /* what is in it */
tt_err tables_restore(tt_trainer *t, const tt_ckpt *c);
int64_t tables_begin(const tt_trainer *t, int i); /* a hash of what it is before any step */
/* Whether `rows`, if there is such a list, is of rows of table i, and `head`, if there is one, of
 * the same table; TT_ECKPT if not. `bound`: it is known how it begins. */
tt_err tables_fit(const tt_trainer *t, int i, const tt_entry *head, const tt_entry *rows,
                  const tt_entry *values, bool bound);
/* Rows of a tensor of somebody's that is (rows, dim), all of them or, with `rows`, those, which
 * fit: into table i with the state of new ones. TT_EFORMAT: some are not finite. */
tt_err tables_put(tt_trainer *t, int i, const tt_entry *rows, const tt_entry *values);
/* Numbers of a sparse tensor to where they are in a dense one, of the shape of `p`, which is as a
 * training begins if a `head` is given. */
tt_err tables_scatter(const tt_entry *head, const tt_entry *rows, const tt_entry *values,
                      const tt_param *p, float *to);
/* All weights, as a model without tables has them. */
void tables_whole(const tt_trainer *t, const tt_param *params, int count, float *w);

/* weights.c: tt_weights_load, and the rows of t's tables, too; `put`: into them. `meta` (may be
 * NULL): what a checkpoint says beside them, which the caller lets go of; NULL stays: it is none.
 */
tt_err weights_load(const char *path, const tt_node *rules, bool partial, const tt_model *m,
                    float *w, tt_trainer *t, bool put, json_t **meta);
/* What numbers mean that the model is given, in a checkpoint's meta. */
void meaning_put(json_t *meta, const tt_data *d);
tt_meaning meaning_of(const json_t *meta);
/* TT_EDATA: words have changed; if means have, it is told. */
tt_err meaning_compare(const char *path, tt_meaning was, tt_meaning now);

/* save.c */
tt_entry entry_of(const tt_param *p, const char *name,
                  const float *base); /* base: the flat array */
tt_err trainer_saver_open(tt_trainer *t);
tt_err trainer_save(tt_trainer *t);        /* all ranks call these two */
tt_err trainer_await_saver(tt_trainer *t); /* until no rank's writer is at work */
void trainer_poll_saver(tt_trainer *t);    /* tells the progress what became of saves */
/* An entry of this name and shape, whole or in parts. */
tt_err restore_floats(const tt_ckpt *c, const tt_entry *want, float *to);
tt_err trainer_find_ckpt(tt_trainer *t, tt_ckpt **out);  /* the newest that is good; NULL: none */
tt_err trainer_restore(tt_trainer *t, const tt_ckpt *c); /* takes the state from it */

/* mirror.c: copies of the optimiser's state on other hosts */
enum { MIRROR_MOST = 128 }; /* parts of which one rank has copies */
typedef struct mirror_run { /* of the flat array */
    int64_t at, n;
    int peer;
    bool out;
} mirror_run;
typedef struct mirror {
    int count, part[MIRROR_MOST]; /* of which others' parts this rank has copies */
    int runs;
    mirror_run *run;
    tt_op *ops;
    int op_count;
    bool under_way;
    _Atomic uint64_t *mark; /* gets `value` when all ops are done */
    uint64_t value;
} mirror;
bool in_parts(const tt_trainer *t); /* no rank has all of the optimiser's state, or one alone */
/* The parts of which this rank is to have copies; how many, even if that is more than there can be.
 */
int mirror_parts(const tt_trainer *t, int rank, int part[MIRROR_MOST]);
tt_err mirror_open(const tt_trainer *t, mirror **out); /* NULL: on no rank are there copies */
/* Begins to send and to receive them, in a half whose vectors are `flat` bytes each. */
tt_err mirror_start(const tt_trainer *t, mirror *m, char *half, size_t flat, _Atomic uint64_t *mark,
                    uint64_t value);
tt_err mirror_wait(mirror *m); /* accepts NULL */
void mirror_close(mirror *m);  /* accepts NULL */

/* numbers.c: the step was not applied, because a number was not finite. All ranks call it (average:
 * who it happened to). TT_OK: the step is skipped, or (*back) the state is that of an earlier one.
 */
tt_err numbers_failed(tt_trainer *t, bool *back);
/* Two ranks have computed a grain, and not the same. All ranks call it: TT_OK, and the step is to
 * be done again, or TT_EPEER: who is wrong was so before. */
tt_err numbers_doubted(tt_trainer *t);
bool numbers_were_doubted(const tt_trainer *t); /* in the step that comes: it is done again */
tt_err numbers_agree(tt_trainer *t); /* all ranks, before what they have is kept for good */
void numbers_odd(tt_trainer *t); /* a step has failed, perhaps by weights that differ: keeps that */
tt_err numbers_open(tt_trainer *t); /* for audits */
void numbers_close(tt_trainer *t);

/* begin.c: the newest checkpoint, or the start, as a new attempt and in another order. All ranks.
 */
tt_err trainer_go_back(tt_trainer *t);
tt_err trainer_feed(tt_trainer *t); /* from the step that comes, whatever it has given before */

/* keep.c: the vault. All ranks call the first three. */
tt_err keep_find(tt_trainer *t, const char *id, const tt_train_told *go);
tt_err keep_take(tt_trainer *t, bool *recovered);
tt_err keep_first(tt_trainer *t); /* this state, which was not found there, is the first */
/* Lines of history, with a vault or without. */
tt_label keep_set_line(tt_trainer *t, int64_t step, uint32_t attempt); /* from disk, or the start */
void keep_use_line(tt_trainer *t, tt_label label);                     /* ... as rank 0 says      */
void keep_new_line(tt_trainer *t);                                     /* this world goes back    */
const tt_recovery *keep_recovery(const tt_trainer *t, tt_label *label);
void keep_marks(tt_trainer *t, _Atomic uint64_t **whole, _Atomic uint64_t **begun);
tt_err keep_commit(tt_trainer *t);   /* after a step ...                       */
void keep_close_step(tt_trainer *t); /* ... and after all that came with it    */
/* Copies for other hosts are on their way, from a commit until the next step's results. */
void keep_due(tt_trainer *t, tt_step_in *in);
void keep_stepped(tt_trainer *t);       /* ... which are given: the copies are there      */
tt_err keep_settle(tt_trainer *t);      /* or now; all ranks call it                      */
int64_t keep_safe(const tt_trainer *t); /* the last step that no loss of a host takes back */
/* Of the last commit, or, without a vault, of the state as it is; generation 0: nobody counts. */
tt_label keep_label(const tt_trainer *t);
/* All ranks, if `remove`: it is not needed any more. */
void keep_close(tt_trainer *t, bool remove);

/* report.c */
void report_log(tt_trainer *t);       /* from here on the run's log tells */
void report_read_init(tt_trainer *t); /* sets `init` as it was recorded when the run began */
tt_err report_open(tt_trainer *t, const tt_train_opts *o, int64_t after_step);
void report_generation(tt_trainer *t); /* another world goes on */
void report_step(tt_trainer *t);
void report_validation(tt_trainer *t);
void report_trouble(tt_trainer *t); /* with checkpoint or metrics: the progress tells */
void report_numbers(tt_trainer *t, const char *what); /* of `news`, with the step that comes */
void report_go_back(tt_trainer *t);                   /* drops what is told of later steps */
double metric_of(const tt_trainer *t, const goal *g); /* NAN if it does not apply */

#endif
