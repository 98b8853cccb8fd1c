/* train: the loop of one worker: a job becomes a run.
 *
 * The caller drives: tt_train_step does one step and whatever is due with it (validation, journal,
 * checkpoint) and tells what happened; showing it, and deciding to stop, is the caller's. Every
 * start, fresh or resumed, takes the same path: open, find the state, go on at the next step.
 *
 * One batch: tt_feed_take -> each thread runs its grains -> sums and update, piece by piece, from
 * the old half of the state to the new -> if all is finite, the halves change places -> refresh. */
#ifndef TT_TRAIN_H
#define TT_TRAIN_H

#include <jansson.h>

#include "base/base.h"
#include "data/data.h"
#include "model/model.h"
#include "strategy/strategy.h"
#include "store/commit.h"
#include "store/store.h"

typedef struct tt_trainer tt_trainer;

typedef struct tt_train_opts {
    tt_tree *job;         /* borrowed until close; it becomes the resolved job: with defaults, the
                           * threads in use and, with a run folder, data.dir as an absolute path */
    const char *job_path; /* where it was read, to keep it as given; NULL: from the tree        */
    const char *run;      /* run folder; NULL: a new one below `runs`                           */
    const char *runs;     /* NULL: "runs"                                                       */
    const char *command;  /* the command line, for the run folder; may be NULL                  */
    const char *init;     /* weights to start from: a checkpoint or a safetensors file. A run
                           * that is resumed has them in its checkpoint; if it has none yet, it
                           * starts from these, or from those it was started with              */
    bool partial;         /* init: take what matches                                            */
    bool resume;          /* go on with `run` from its newest valid checkpoint                  */
    bool no_files;        /* no run folder at all: for programs that embed us, and tests        */
    int threads;          /* 0: as the job says; if it does not, as many as the resumed run had */
    const char *share;    /* folders where ranks of a host have the data in common, as
                           * tt_data_open_common takes them; NULL: each has its own             */
    const tt_data_rows *train_rows, *val_rows; /* instead of the job's `data`; may be NULL ... */
    bool own_rows; /* ... and, with a world, each host has rows of its own: data.shards: local  */
    int64_t trace_from, trace_to; /* record steps [from, to] to <run>/trace/steps.json; 0: none */
    tt_world *world; /* borrowed: train together, all ranks with the same options. NULL: alone.
                      * Rank 0 alone reads checkpoints and writes the run folder              */
    bool stand_by;   /* open all but the state and the run folder: find and begin do the rest */
    bool again;      /* with `run`: go on with it if it has begun, else begin it             */
    bool keep;       /* keep the state in the vault (store/vault.h), for worlds to come      */
    tt_vital *vital; /* told what it is doing; may be NULL                                   */
    int workers;     /* of the world: ranks beyond them are spares (tt_plan); 0: all work    */
} tt_train_opts;

tt_err tt_train_open(const tt_train_opts *o, tt_trainer **out);

/* The other half of opening, with `stand_by`, when no other world trains this run any more. All
 * ranks call both; what the options point to is still needed. Between the two nothing is written:
 * who keeps the run's ledger says that it knows from where this world goes on (store/recover.h). */
typedef struct tt_train_told {
    uint32_t generation; /* of this world; 0: nobody counts */
    bool known;
    tt_told told;    /* known: what is committed, as the ledger has it; it may be more */
    bool ended;      /* the run had ended or was stopped: what it saved then is all */
    const char *why; /* how the world before ended; NULL: there was none */
} tt_train_told;
typedef struct tt_train_found {
    tt_label label; /* under which this world has the state                          */
    uint32_t made;  /* the generation that committed it                              */
    bool lost;      /* committed steps are lost: it goes back to this one            */
    bool disk;      /* from a checkpoint, or from the start; else from the vault     */
} tt_train_found;
tt_err tt_train_find(tt_trainer *t, const tt_train_told *told, tt_train_found *out);
tt_err tt_train_begin(tt_trainer *t);

typedef struct tt_metrics { /* NAN where it does not apply */
    double loss, accuracy, top5;
    double auc;             /* area under the ROC curve, where there are two classes */
    double logloss;         /* there: mean of -log of the probability of what is true    */
    double calibration;     /* ... mean probability of class 1, by its share of the rows */
    double entropy;         /* ... logloss, by that of who always tells this share       */
    double perplexity;      /* of tokens: e to the loss that judges them             */
    double bits_per_byte;   /* of a text: that in bits, by the bytes of a token      */
    double miou;            /* where pixels are judged: mean over classes of intersection / union */
    double part[TT_LOSSES]; /* where there are several losses */
    int64_t samples;
} tt_metrics;

/* Those beside the loss, in the order in which they are shown. */
enum { TT_METRICS = 9 };
typedef struct tt_metric {
    const char *name;
    size_t at;         /* in tt_metrics */
    bool percent;      /* shown so */
    const char *needs; /* which models have it */
} tt_metric;
extern const tt_metric tt_metric_table[TT_METRICS];
static inline double *tt_metric_at(tt_metrics *m, int k)
{
    return (double *)((char *)m + tt_metric_table[k].at);
}
static inline double tt_metric_of(const tt_metrics *m, int k)
{
    return *(const double *)((const char *)m + tt_metric_table[k].at);
}
tt_metrics tt_metrics_none(void); /* NAN all of them */

typedef struct tt_epoch { /* one that is over */
    int64_t number;       /* from 1                                               */
    uint64_t samples;     /* how many it was to have; 0: they are not counted     */
    uint64_t sum, count;  /* and which it had: its witness (store/ledger.h)       */
} tt_epoch;

typedef struct tt_progress {
    int64_t step, steps; /* done, and in all                                            */
    int64_t epoch_steps;
    double epoch, epochs; /* 1.25 of 3                                                   */
    double loss;          /* of this step; aggregate: average: of this rank's part of it */
    double loss_mean;     /* of the epoch so far (average: as far as it was heard of)    */
    double lr, grad_norm;
    double samples_per_s; /* training alone, steady state                                */
    double tokens_per_s;  /* where tokens are judged: those that have a label; else 0    */
    double step_s, data_s, forward_s, backward_s, wait_s,
        optim_s;        /* of this step, on this rank; wait: for the others           */
    int64_t bytes_sent; /* by this rank to other hosts                                 */
    double scaling;     /* how many workers' work is done by all: those that wait do none         */
    double eta_s;       /* NAN: not known yet                                          */
    tt_metrics val;     /* the last validation                                         */
    double best;        /* best score so far of checkpoint.best, NAN                   */
    bool validated, epoch_end; /* happened with this step                               */
    int saved;                 /* checkpoints that came to disk since the step before ...     */
    int64_t saved_step[2];     /* ... and of which steps they are                        */
    const char *save_trouble;  /* NULL, or why the last checkpoint, or metrics, are not written */
    bool stopped;              /* tt_train_ask_stop was heard: all ranks end with this step   */
    bool left, moves;          /* tt_train_ask_leave was, instead; and is to move             */
    tt_epoch ended;            /* epoch_end: this one                                         */
    tt_epoch before; /* with the first step of a world: the last that ended before it. Who was to
                      * tell of it may have been killed, so it is told again, before `ended` */
    const char *numbers; /* NULL, or what was wrong with the numbers and what was done: the step was
                          * skipped, or ... */
    uint32_t attempt;    /* ... not 0: it has gone back to `step`, as this attempt */
    const char *end;     /* set when there is nothing left to do: "done", "early stop"  */
} tt_progress;

/* One step. TT_EDIVERGED: loss or gradient is not finite; the step was not applied, and
 * train.on_nan says stop. With the last one it waits until its checkpoint is on disk. */
tt_err tt_train_step(tt_trainer *t, tt_progress *out);
/* Asks all ranks to stop after the same step; only rank 0's word counts. The caller saves. */
void tt_train_ask_stop(tt_trainer *t);
/* The same for a world that makes room for another: the caller saves only if !tt_train_kept, or to
 * `move`: no host of this world is in the next one. */
void tt_train_ask_leave(tt_trainer *t, bool move);
bool tt_train_kept(const tt_trainer *t); /* whoever remains of its hosts has all of the state */
/* These two are called by all ranks. */
tt_err tt_train_save(tt_trainer *t); /* now, unvalidated; all wait until it is on disk, or is not */
tt_err tt_train_validate(tt_trainer *t, tt_metrics *out);

/* TT_EPEER unless all ranks have the same weights, bit for bit. All call it. */
tt_err tt_train_compare(tt_trainer *t);
/* After a step that failed with TT_EPEER: had this rank other weights than the others? They are
 * compared with every step, by a hash. */
bool tt_train_odd(const tt_trainer *t, int rank);
/* With a step that told of `numbers`: did an audit find that this rank had computed wrongly? */
bool tt_train_caught(const tt_trainer *t, int rank);

/* Ends the run: waits for the saver, writes summary.json. `status`: done, stopped, diverged,
 * failed. TT_ECKPT: the last checkpoint could not be written; "done" then becomes "failed". */
tt_err tt_train_finish(tt_trainer *t, const char *status);
/* After that, when whoever keeps the run's ledger knows of its end: the state in the vault goes,
 * unless it is all there is of it. Before, a world that comes after this one would find nothing.
 * All ranks. */
void tt_train_leave(tt_trainer *t);
void tt_train_close(tt_trainer *t); /* accepts NULL; without finish, the run counts as lost */

/* What it works on, for display and programs. Valid until close. */
const char *tt_train_name(const tt_trainer *t);
const char *tt_train_run(const tt_trainer *t); /* "" with no_files */
const tt_model *tt_train_model(const tt_trainer *t);
const tt_data *tt_train_data(const tt_trainer *t);
const float *tt_train_params(const tt_trainer *t); /* where they are until the next step; those
                                                    * of tables are not among them           */
int64_t tt_train_parameters(const tt_trainer *t);  /* how many, without running statistics */
int tt_train_threads(const tt_trainer *t);         /* of this rank */
const tt_world *tt_train_world(const tt_trainer *t);
const tt_plan *tt_train_plan(const tt_trainer *t);
int tt_train_nodes(const tt_trainer *t);                  /* groups of ranks that share memory */
const tt_rank_times *tt_train_times(const tt_trainer *t); /* of each rank, of a step just past */
int64_t tt_train_first_step(const tt_trainer *t);         /* > 0 after a resume */
const char *tt_train_best(const tt_trainer *t);           /* "val.accuracy max", "" if none */
json_t *tt_train_summary(tt_trainer *t);                  /* as in summary.json; a new reference */

/* SHA-256 over all parameters in name order, little-endian float32; of a table its rows that are
 * there, ascending, each with its number before it. */
void tt_train_sha(const tt_trainer *t, char hex[65]);
/* The same of parameters alone. */
void tt_params_sha(const tt_param *params, int count, const float *w, char hex[65]);

/* The name, and the model, data, train, parallel and checkpoint maps of a job; TT_EINVAL for what
 * is not one. */
typedef struct tt_job {
    const char *name;
    tt_node *model, *data, *train, *parallel, *checkpoint;
} tt_job;
tt_err tt_job_read(tt_tree *job, tt_job *out);
/* Everything that can be checked without touching data. Fills in the defaults. */
tt_err tt_job_check(tt_tree *job);
/* That, and the data: it is opened, which checks it and fills in its defaults, and closed again.
 * *absent is set (and TT_OK returned) if the job is right but its data is not here or bad:
 * tt_message() says why. */
tt_err tt_job_check_data(tt_tree *job, bool *absent);
/* Makes data.dir of a job that was checked what it is here and now: variables replaced, absolute.
 * The job then means the same data wherever and whenever it is read again. */
tt_err tt_job_settle(tt_tree *job);

/* ---- Using what was trained: eval, predict, export ---- */
typedef struct tt_use tt_use;
typedef struct tt_use_opts {
    tt_tree *job;
    const char *weights;       /* as tt_weights_load takes them. model.rename is for files of
                                * others: what we saved has our names already                */
    const tt_trainer *trained; /* or those that this one has now; copied                    */
    bool partial;
    const char *layer;  /* whose output is wanted; NULL: the last                          */
    int threads, batch; /* 0: as the job says                                              */
} tt_use_opts;
tt_err tt_use_open(const tt_use_opts *o, tt_use **out);
tt_err tt_use_eval(tt_use *u, tt_split split, tt_metrics *out);
tt_err tt_use_eval_rows(tt_use *u, const tt_data_rows *rows, tt_metrics *out);
/* Outputs of rows [first, first + n) of a split, in order, (n, features). */
tt_err tt_use_predict(tt_use *u, tt_split split, int64_t first, int n, float *out);
/* Of rows in memory: x is (n, features), ids (n, ids), NULL where a row has none of them. TT_EINVAL
 * names the row whose ids are beyond their tables. */
tt_err tt_use_predict_rows(tt_use *u, const float *x, const int32_t *ids, int n, float *out);
int64_t tt_use_features(const tt_use *u);
/* Of a model of tokens: the scores of what may come behind these n, of which there are no more than
 * its context has, into out (tt_use_next_most: those that could be told apart and looked up in
 * turn). TT_EDATA: one of the n has no row. The first says why a model is none. */
tt_err tt_use_check_next(const tt_use *u);
int tt_use_next_most(const tt_use *u);
tt_err tt_use_next(tt_use *u, const int32_t *token, int n, float *out);
/* Rows of a split. Opens it, for its samples alone: predicting needs neither labels nor the other
 * split, except as tt_data_open_split says. */
tt_err tt_use_count(tt_use *u, tt_split split, int64_t *out);
/* What the tokens of a model stand for: as its checkpoint says, or else the training set, which is
 * opened. For tt_data_encode and the like; valid until the next call of the above. */
tt_err tt_use_text(tt_use *u, const tt_data **out);
const tt_model *tt_use_model(const tt_use *u);
const tt_data *tt_use_data(const tt_use *u); /* the split used last; NULL before */
const float *tt_use_params(const tt_use *u);
tt_err tt_use_export(const tt_use *u, const char *path);
/* As Hugging Face's GPT2LMHeadModel has it: model.safetensors and config.json in a folder, which is
 * made. TT_EINVAL: the model is no GPT-2, and why. */
tt_err tt_use_export_hf(const tt_use *u, const char *folder);
void tt_use_close(tt_use *u);

/* What the model's losses want of the data. */
tt_data_want tt_job_want(const tt_model *m);

/* Loads the model's weights by name into w: from a run folder, a checkpoint folder, a safetensors
 * file or a folder with a model.safetensors. Names are mapped by the rename rules first (NULL:
 * none); what Hugging Face stores of a GPT-2 is known by its names and shapes, and mapped, too
 * (hf.h). Unless partial, every name on both sides must match, else TT_ECKPT listing them. */
tt_err tt_weights_load(const char *path, const tt_node *rename, bool partial, const tt_model *m,
                       float *w);

#endif
