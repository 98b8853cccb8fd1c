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

typedef enum tt_aggregate { TT_ALLREDUCE, TT_CHIEF, TT_SHARD, TT_AVERAGE } tt_aggregate;
const char *tt_aggregate_name(tt_aggregate a);

/* A plan is a plain value: print it, compare it, store it. */
typedef struct tt_plan {
    tt_aggregate aggregate;
    bool exact;
    int grains;           /* exact: units of a batch                               */
    int64_t bucket_bytes; /* gradients are summed in runs of about this size       */
    int64_t accumulate;   /* parts of a unit, run one after the other              */
    double timeout_s;     /* how long a rank is waited for                         */
    char compress[24];    /* "none", "bf16", "topk:0.01", ...                      */
    bool apart;           /* every rank a node of its own: messages only           */
    int64_t every;        /* average: steps from meeting to meeting; 0: at the end */
    double outer_lr;      /* 0: no outer optimiser                                 */
    double outer_momentum;
    bool outer_nesterov;
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
/* Which part of a step's n samples (those of this host, where hosts have rows of their own) this
 * rank runs: [n * first / of, n * end / of). */
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
 * `at`), or, for NULL, in memory that is gone with it. All ranks call it, after start. What is in
 * half 0 becomes the state. */
typedef struct tt_state_file {
    int fd;
    size_t bytes, at[2];
    bool in_memory; /* all its pages are there: they are mapped at once, not one by one */
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
/* More of it that may be there, flat, at rank 0 (NULL: there is none): momentum of the outer
 * optimiser; what compression still owes to the gradient, as tt_strategy_collect found it. */
float *tt_strategy_outer(const tt_strategy *s);
float *tt_strategy_residual(const tt_strategy *s);
/* Makes rank 0's state everybody's, and the model's packed weights current: before the first step
 * and whenever the state was written to. */
tt_err tt_strategy_spread(tt_strategy *s);
/* As it is after that, where all ranks have the state already. */
void tt_strategy_settle(tt_strategy *s);
/* With chief and shard: the rank that holds the optimiser's state of a piece. */
int tt_strategy_owner(const tt_strategy *s, int piece);
/* The other way: rank 0 gets what others hold of the state; `slots`: that of the optimiser too. */
tt_err tt_strategy_collect(tt_strategy *s, bool slots);
/* TT_EPEER if not all ranks have the same weights, bit for bit. */
tt_err tt_strategy_compare(tt_strategy *s);

typedef struct tt_rank_times { /* of a step, in seconds */
    double data, forward, backward, wait, optim, step;
} tt_rank_times;

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
    int order;                    /* what rank 0 gave: all hear of it in the same step */
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
    bool meet; /* average: they meet after this step, due or not: the state will
                * be looked at                                               */
    bool hear; /* average: they hear of each other after this step at latest */
} tt_step_in;
tt_err tt_strategy_step(tt_strategy *s, const tt_step_in *in, tt_step_stats *out);
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
