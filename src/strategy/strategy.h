/* strategy: who computes what, who holds what, and when it is exchanged.
 *
 * A world of ranks, each a crew of threads, trains one model. The batch of a step is cut in
 * *units*; each thread (a *seat*) runs a contiguous run of them. The gradient of the batch is the
 * sum over units in a fixed binary tree, whoever computed them:
 *   exact   units are the job's grains: the bits are the same for every number of ranks and threads
 *   else    a unit is a seat: the fewest sums there can be; bits depend on the seats
 *
 * Ranks that see each other's memory form a *node* (usually a host). Within it gradients are summed
 * where they lie; between nodes they travel as messages, last layers first, while backward goes on.
 * `aggregate` says who holds the sum and updates the weights:
 *   allreduce   everybody; sums are gathered
 *   chief       rank 0; weights are gathered
 *   shard       each rank its pieces, and no optimiser state but theirs; weights are gathered
 *   average     each rank its own; every `every` steps weights are averaged, and an outer optimiser
 *               may take the mean as a direction
 *
 * The strategy owns the state of the training (weights and optimiser vectors, in two halves, so a
 * step that is not good changes nothing) and the threads. */
#ifndef TT_STRATEGY_H
#define TT_STRATEGY_H

#include "base/base.h"
#include "comm/comm.h"
#include "model/model.h"
#include "optim/optim.h"
#include "store/table.h"

typedef enum tt_aggregate { TT_ALLREDUCE, TT_CHIEF, TT_SHARD, TT_AVERAGE } tt_aggregate;
const char *tt_aggregate_name(tt_aggregate a);

/* Whether units move between ranks while the training goes on, which needs exact sums. random is
 * for tests: another deal after every step. */
typedef enum tt_balance { TT_BALANCE_AUTO, TT_BALANCE_OFF, TT_BALANCE_RANDOM } tt_balance;

/* A plan is a plain value: print it, compare it, store it. */
typedef struct tt_plan {
    tt_aggregate aggregate;
    bool exact;
    tt_balance balance;
    int backup;           /* exact: units of a rank that others of its node may compute too */
    int grains;           /* exact: units of a batch                               */
    double audit;         /* exact: share of units that another rank computes too  */
    int64_t bucket_bytes; /* gradients are summed in runs of about this size       */
    int64_t accumulate;   /* parts of a unit, run one after the other              */
    double timeout_s;     /* how long a rank is waited for                         */
    char compress[24];    /* "none", "bf16", "topk:0.01", ...                      */
    bool apart;           /* every rank a node of its own: messages only           */
    int64_t every;        /* average: steps from meeting to meeting; 0: at the end */
    double outer_lr;      /* 0: no outer optimiser                                 */
    double outer_momentum;
    bool outer_nesterov;
    bool copies; /* across hosts: of what one host alone has of the state, another keeps a copy */
    int workers; /* ranks below this run units; others are spares, which hold the state alone. 0:
                  * all; and all do with average, and where hosts have rows of their own */
} tt_plan;

/* Reads a job's `parallel` map (NULL: none) and fills in its defaults. */
tt_err tt_plan_read(tt_node *parallel, tt_plan *out);

/* ---- Threads that run grains side by side: for training, validation and prediction ---- */

typedef struct tt_crew tt_crew;
/* `most`: samples a run has room for. */
tt_err tt_crew_open(const tt_model *m, int threads, int most, bool train, tt_crew **out);
int tt_crew_size(const tt_crew *c);
int tt_crew_most(const tt_crew *c);
tt_team *tt_crew_team(tt_crew *c);
tt_run *tt_crew_run(tt_crew *c, int member);
/* Runs one grain to its end on the calling member's run, for passes that need no other. */
const tt_result *tt_crew_pass(tt_crew *c, int member, tt_pass pass, const tt_batch *in);
void tt_crew_close(tt_crew *c); /* accepts NULL */

void tt_result_add(tt_result *to, const tt_result *from);

/* ---- The strategy ---- */

typedef struct tt_strategy tt_strategy;

/* Deals the work: all ranks call it at the same time. `threads` of this rank (ranks may have
 * different numbers), `batch` samples of a full step over all ranks. The world is borrowed; its
 * deadline is to lie between once and twice that of the plan while it trains, so that who is
 * nearest to a trouble names it.
 * `rows` (NULL: all hosts see the same data): how many samples each host has; a unit then stays on
 * its host, exact or not, and hosts get units in proportion to their rows. */
tt_err tt_strategy_open(tt_world *w, const tt_plan *plan, int threads, int64_t batch,
                        const int64_t *rows, tt_strategy **out);
int tt_strategy_units(const tt_strategy *s);
int tt_strategy_seats(const tt_strategy *s); /* threads of all ranks */
int tt_strategy_nodes(const tt_strategy *s);
int tt_strategy_room(const tt_strategy *s); /* samples of a run: what to compile the model for */
/* Which part of the coming step's n samples (those of this host, where hosts have rows of their
 * own) this rank runs: [n * first / of, n * end / of). A step may change that for the next. */
void tt_strategy_cut(const tt_strategy *s, int *first, int *end, int *of);

/* Takes the model and the optimiser, both borrowed, makes room for gradients and starts the
 * threads. There is no state yet: that may be in use by others until this world takes over. */
tt_err tt_strategy_start(tt_strategy *s, tt_model *m, tt_optim *o, uint64_t seed);
tt_crew *tt_strategy_crew(tt_strategy *s);

/* For who stands by: memory that the first step would be given page by page is taken now, unless
 * there is little of it. All ranks call it, after start. */
tt_err tt_strategy_warm(tt_strategy *s);

/* The state is two halves of so many bytes: weights, then the optimiser's vectors. */
size_t tt_strategy_bytes(const tt_strategy *s);
/* Gives it a place: in a file that may outlive the process (its first `bytes`, with the halves at
 * `at`), or, for NULL, in memory that is gone with it; a rank alone then has a large state once,
 * and updates it in place. All ranks call it, after start. What is in half 0 becomes the state. */
typedef struct tt_state_file {
    int fd;
    size_t bytes, at[2];
    bool in_memory; /* all its pages are there: they are mapped at once, not one by one */
    const char *const *tables; /* the file of each table (store/table.h) ...     */
    uint64_t key;              /* ... and of what it is                          */
} tt_state_file;
tt_err tt_strategy_place(tt_strategy *s, const tt_state_file *f);
/* What is in this half is the state from now on; ranks may have it in different ones. All call it.
 */
tt_err tt_strategy_use(tt_strategy *s, int half);
int tt_strategy_half(const tt_strategy *s); /* the one it is in; a step makes it the other */
void tt_strategy_init(tt_strategy *s); /* the weights a training begins with, and no momentum */

/* The state, flat: valid until the next step. */
typedef struct tt_state {
    float *w, *slot[TT_OPTIM_SLOTS];
} tt_state;
tt_state tt_strategy_state(const tt_strategy *s);
/* A table's rows, records and all: those that are there. Every rank has them all. From place on. */
tt_table *tt_strategy_table(const tt_strategy *s, int i);
void tt_strategy_table_shape(const tt_strategy *s, int i, tt_table_shape *out);
/* The hash of all tables is the sum of theirs times this: so two of one shape that have changed
 * places are seen. */
static inline uint64_t tt_strategy_table_weight(int i)
{
    return 2 * (uint64_t)i + 1;
}
/* Those of `from`, which `root` has, become those of all who `take` them: of step `step`. All ranks
 * call it and hear all of it, also who has no room for more; then it fails on all of them. */
tt_err tt_strategy_pass_table(tt_strategy *s, int i, int root, const tt_table *from, bool take,
                              int64_t step);
void tt_strategy_tables_at(tt_strategy *s, int64_t step); /* what is in all of them is of that */
/* More of it that may be there, flat, at rank 0 (NULL: there is none): momentum of the outer
 * optimiser; what compression still owes to the gradient, as tt_strategy_collect found it. */
float *tt_strategy_outer(const tt_strategy *s);
float *tt_strategy_residual(const tt_strategy *s);
/* With compression: what this rank keeps of it from one step to the next, two flat vectors, to go
 * on with in a world where all have the same places: given out or, with `back`, taken. Who has
 * another place takes the sum of both over all ranks; with PowerSGD of the first alone, for the
 * second is its factors. */
void tt_strategy_feedback(tt_strategy *s, float *first, float *second, bool back);
/* Such a sum, put at rank 0 in tt_strategy_residual, is what this world has to send. All call it.
 */
tt_err tt_strategy_owe(tt_strategy *s);
/* Makes rank 0's state everybody's, and the model's packed weights current: before the first step
 * and whenever the state was written to. */
tt_err tt_strategy_spread(tt_strategy *s);
/* As it is after that, where all ranks have the state already. `hash`: of its weights, if it is
 * known; else 0. */
void tt_strategy_settle(tt_strategy *s, uint64_t hash);
/* With chief and shard: the rank that holds the optimiser's state of a piece. */
int tt_strategy_owner(const tt_strategy *s, int piece);
/* The other way: rank 0 gets what others hold of the state; `slots`: that of the optimiser too. */
tt_err tt_strategy_collect(tt_strategy *s, bool slots);
/* TT_EPEER if not all ranks have the same weights, bit for bit. */
tt_err tt_strategy_compare(tt_strategy *s);

/* A hash of weights that lie as those of the state do: of every bit and its place, the same for any
 * number of threads; never 0. `rows`: the sum of the hashes of its tables. */
uint64_t tt_strategy_hash(tt_strategy *s, const float *w, uint64_t rows);
/* That of this rank's, made when all ranks had the same last: after the last step, or (average)
 * meeting. All hear of it with the next step, and if it is not the same everywhere, that step fails
 * with TT_EPEER on all ranks, applied on none. */
uint64_t tt_strategy_hashed(const tt_strategy *s);
tt_err tt_strategy_agree(tt_strategy *s); /* all compare it now */
/* After such a failure: was it this rank that differed? Of none it is known if there is no
 * majority. */
bool tt_strategy_odd(const tt_strategy *s, int rank);

typedef struct tt_rank_times { /* of a step, in seconds */
    double data, forward, backward, wait, optim, step;
    double unit; /* of a full batch, by one thread; 0: it ran none */
    int units;   /* that it was dealt */
    int backups; /* that it provided in the place of others, so far */
} tt_rank_times;

/* A unit whose gradient two ranks have computed, and not the same. */
typedef struct tt_doubt {
    int unit; /* -1: none */
    int rank[2];
    uint64_t hash[2];
} tt_doubt;

typedef struct tt_step_stats {
    tt_result sum; /* of this step, over all ranks; average: of this one              */
    tt_result all; /* average: over all ranks, of the steps since this was told last; empty while
                    * they have not heard of each other. Else as `sum`                */
    bool applied;  /* false: a number was not finite, and nothing has changed         */
    bool met;      /* all ranks have the same weights; false with average alone       */
    double forward_s, backward_s; /* of this rank's first thread                       */
    double wait_s;                /* until all others were done with theirs            */
    double optim_s;               /* the rest: update, and new weights from others     */
    int64_t bytes_sent;           /* to other nodes                                    */
    int backups;                  /* units this rank provided in the place of others   */
    tt_doubt doubt; /* all hear of it, and the step is not applied: it is to be done again */
    int order;      /* what rank 0 gave: all hear of it in the same step */
} tt_step_stats;
/* One step. TT_EPEER: a rank was missing. */
typedef struct tt_step_in {
    int64_t step;
    const tt_batch *mine; /* this rank's part ...                                       */
    int n;                /* ... of so many samples; or, where hosts have rows of their own: */
    const int *host_n;    /* of so many on each host                                    */
    double data_s;        /* how long it was waited for                                 */
    int order;            /* rank 0's is brought to all (average: when they hear of each other,
                           * about once a second; then they meet)                       */
    /* Before the other half of the state is written to, the first becomes 0 and one is added to the
     * second: by then all ranks have made the step before. NULL: nobody looks. */
    _Atomic uint64_t *whole, *begun;
    /* Messages that this rank has under way (NULL on all of them: none has). It gives its results
     * when they are through and *mark is `value`. */
    tt_op *due;
    int due_count;
    _Atomic uint64_t *mark;
    uint64_t value;
    /* For backups and audits: samples [first, first + n) of the step, as in unit_samples; valid
     * until it is asked again. Asked by the thread that called, in the middle of the step: when a
     * rank is late, and not before, it shows which samples are wanted. May be NULL if the plan has
     * none. */
    tt_err (*fetch)(void *who, int first, int n, const tt_batch **out);
    void *who;
    bool meet; /* average: they meet after this step, due or not: the state will
                * be looked at                                               */
    bool hear; /* average: they hear of each other after this step at latest */
} tt_step_in;
tt_err tt_strategy_step(tt_strategy *s, const tt_step_in *in, tt_step_stats *out);
/* After a step that was not applied: is it by one of this rank's units, and by what in it? They are
 * run again, so it takes as long as they do on one thread. */
typedef struct tt_blame {
    int unit; /* -1: none of this rank */
    char layer[96];
    bool backward; /* forward all numbers of the unit are finite */
    int samples;   /* that have it ... */
    int places;
    uint64_t place[TT_FAULT_SAMPLES][2]; /* ... and the first of them */
} tt_blame;
bool tt_strategy_probe(tt_strategy *s, tt_blame *out);
/* After a doubt: what the gradient's hash is if this rank computes the unit now. 0: it has not the
 * samples. */
tt_err tt_strategy_again(tt_strategy *s, int unit, uint64_t *hash);
void tt_strategy_blame(tt_strategy *s, int rank); /* tt_strategy_odd is true of it from now on */
/* All ranks, after such a step: the state it began with becomes that of the step after, as if it
 * had been one that changes nothing. Not for average, nor with compression, which would owe what is
 * no number. */
void tt_strategy_skip(tt_strategy *s);
/* average: all meet now, if they have not since the last step; else there is nothing to do. Before
 * the state is looked at between steps. */
tt_err tt_strategy_meet(tt_strategy *s);
/* From now on, or no more, it is recorded what each thread does; all ranks call it. The second
 * writes what was recorded on all of them to one file, on rank 0, for Perfetto. */
tt_err tt_strategy_trace(tt_strategy *s, bool on);
tt_err tt_strategy_trace_write(tt_strategy *s, const char *path);
/* Of each rank, of the step before the last. */
const tt_rank_times *tt_strategy_times(const tt_strategy *s);
void tt_strategy_close(tt_strategy *s); /* accepts NULL */

#endif
