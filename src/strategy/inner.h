/* inner: the private face of strategy/: who sits where, whose memory is what, and what is under way
 * in a step. */
#ifndef TT_STRATEGY_INNER_H
#define TT_STRATEGY_INNER_H

#include "strategy/balance.h"
#include "strategy/compress.h"
#include "strategy/strategy.h"

/* ---- tree.c: sums in a fixed order ---- */

enum { MOST_TERMS = 1024, MOST_TARGETS = 32, MOST_TEMPS = 12, MOST_UNITS = 1024 };

typedef struct range {
    int a, b;
} range;
typedef struct ranges {
    int count;
    range at[MOST_TERMS];
} ranges;

/* The fewest nodes of the tree over `units` that cover a run. */
void tree_cover(int units, range run, ranges *out);
int tree_most(int units); /* nodes that any run takes */

typedef struct sum_op {
    int to, x, y;
} sum_op;
typedef struct sum_plan {
    int terms, targets, op_count;
    int result[MOST_TARGETS]; /* the register of each target; -1: nothing in it */
    int first_op[MOST_TARGETS + 1];
    sum_op op[MOST_TERMS];
} sum_plan;
/* Terms and targets are nodes of the tree; terms are apart from one another. */
void sum_build(const range *term, int terms, const range *target, int targets, sum_plan *out);
/* out[i][at .. at + n) gets target i. It may be one of the terms. */
void sum_run(const sum_plan *p, const tt_kernels *k, const float *const *term, float *const *out,
             int64_t at, int64_t n);

/* A seat's own units, added as far as they are siblings. */
typedef struct folded {
    range r;
    bool present;
} folded;
typedef struct fold {
    int units, count;
    int alone; /* from this unit on none is added to another: the last at least */
    folded at[64];
} fold;
void fold_begin(fold *f, int units, int alone);
int fold_place(const fold *f);
int fold_add(fold *f, int u, bool present);
int fold_terms(int units, range run, int alone, const bool *present, range *out); /* how many */
int fold_most(int units, range run); /* buffers it takes */

/* ---- deal.c: who does what ---- */

void *take(size_t count, size_t size); /* zeroed; ends the program if there is no memory */

typedef struct seat {
    int rank, thread;
    range units;
} seat;

typedef struct rank_place { /* of a rank that has work, in the order of seats */
    int rank;
    range seats;
} rank_place;

/* Who seems to be slow, and since when it is behind; told: it was said. */
typedef struct pending {
    balance_news news;
    double since;
    bool told;
} pending;

/* Where hosts have rows of their own: what each has, and which units are its. */
typedef struct quarter {
    int64_t rows;
    range units, seats;
} quarter;

struct node {
    int *rank; /* of the world, in order */
    int ranks;
    range seats;
    range units;  /* of all its seats                                   */
    range places; /* of its ranks, counted through all nodes            */
};

/* A run of pieces that are summed together. Pieces are counted from the end of the flat array,
 * because gradients come from the end. Column c is the business of the c-th rank of each node; what
 * of it node h owns is part[c * nodes + h]. */
typedef struct bucket {
    tt_span all;
    int first_piece, end_piece;
    int yields; /* of a pass until its gradients are final */
    tt_span *part;
    range *pieces; /* of each part */
} bucket;

tt_err deal_open(tt_strategy *s, int threads, const int64_t *rows);
/* The samples of a unit: of the step, or of its host's part of it. */
void unit_samples(const tt_strategy *s, int u, int *first, int *count);
tt_err deal_buckets(tt_strategy *s);
/* After a step: who has shown to be faster or slower than it was gets more or less of the next. */
void deal_again(tt_strategy *s);
void deal_close(tt_strategy *s);
tt_span column_of(const tt_strategy *s, const bucket *b, int c);

/* ---- The memory of a rank that its node sees ---- */

typedef struct rank_flags {
    tt_flag used;     /* steps whose sums and results this rank needs no more    */
    tt_flag summed;   /* buckets whose column is summed over all nodes           */
    tt_flag heard;    /* steps whose results of all nodes are there (leader)     */
    tt_flag totalled; /* sums of batch norm that are there of all nodes (leader) */
    tt_flag alarm;    /* 1 + the rank that somebody of this node has missed (leader) */
    tt_flag gathered; /* steps whose new weights of this rank's column are there */
    tt_flag moved;    /* messages of this rank that have begun or are through    */
} rank_flags;

typedef struct seat_flags {
    tt_flag ready;   /* buckets of its gradient that are final */
    tt_flag reduced; /* buckets of which its share is summed over the node */
    tt_flag passed;  /* steps whose units it has run */
    tt_flag round;   /* sums of batch norm it has given its numbers to */
} seat_flags;

/* Offsets into a rank's part of the share, and of the state. */
typedef struct layout {
    size_t ranks, seats, results, rows, claims, sums, grad, lists;
    size_t bytes;
    size_t w[2], slot[2][TT_OPTIM_SLOTS];
} layout;

enum { AUDITS_MOST = 16 }; /* of a rank in a step */

/* What a rank tells all others with every step. */
typedef struct row {
    tt_rank_times times;          /* of the step before */
    uint64_t hash;                /* of its weights when they were last those of all */
    uint64_t checks[AUDITS_MOST]; /* of gradients that it has computed for others, in this step */
    int order;
} row;

/* backup.c: a unit that another rank of the node may compute too. */
typedef struct backup {
    int unit;
    int owner, helper; /* ranks of the node                          */
    int spare;         /* the helper's buffer, of its thread 0       */
    int term;          /* of the node's sum                          */
    uint32_t tried;    /* the turn in which this rank has helped     */
} backup;
typedef struct claim {         /* at the node's leader, of each unit */
    _Atomic uint64_t provider; /* turn and, plus one, rank of the node */
    _Atomic uint64_t begun;    /* by its owner: the turn, and ...      */
    _Atomic uint64_t since_us; /* ... when                             */
    _Atomic uint64_t helped;   /* the turn in which its helper began   */
} claim;

typedef struct spent { /* by a thread in a step, in seconds */
    double units;      /* on its units, and on ...                    */
    double aside;      /* ... sums for all, which it did between them */
    int units_run, samples;
} spent;

typedef struct exchange exchange;

struct tt_strategy {
    tt_world *world;
    tt_plan plan;
    int64_t batch;
    tt_model *model;
    tt_optim *optim;
    const tt_kernels *k;
    uint64_t seed;
    int64_t size; /* floats of the flat array */
    int slot_count;

    /* who */
    int *threads; /* of each rank */
    int units, seat_count, first_seat;
    quarter *quarters; /* of each host; NULL: all see the same rows */
    seat *seats;
    rank_place *places;
    balance balance; /* of ranks by place; zeroed: it is not asked who is slow */
    balance_news *news;
    pending *pending;            /* rank 0: who seems to be slow */
    double *paces;               /* of all places, as they have told */
    int node_count, node, local; /* of this rank */
    struct node *nodes;
    int columns;
    tt_group *node_group, *column_group; /* the second NULL: this rank has no column */
    int *member; /* of each node: its rank of our column, in the column's group */

    /* where */
    tt_share share, state;
    size_t halves[2]; /* where they begin in a rank's part of the state */
    int first_half;   /* which of them was current when half was 0       */
    layout *layouts;  /* of each rank of the node */
    int buffers;      /* of a seat's gradients    */
    int half;         /* which of w[2] is current */
    int64_t sums_most;

    /* what */
    int piece_count, bucket_count;
    int *piece_bucket, *piece_column, *piece_node;
    bucket *buckets;
    int *own_pieces, own_count; /* that this rank updates, in order */
    float *scaled; /* an optimiser of several passes changes the gradient: not where others read it.
                    * NULL: it may */
    tt_summer *summer;  /* average */
    float *met, *outer; /* average with an outer optimiser: where they met last; its momentum */
    uint32_t met_at;    /* average: the turn after which they met last */
    tt_result since;    /* average: of this rank since all heard of each other ... */
    int64_t hear_at;    /* ... which they do again after this step, if not before  */
    bool staged;        /* sums are made for others before the optimiser needs them */

    /* the step in progress */
    tt_crew *crew;
    int64_t step;
    uint32_t turn;            /* of this strategy: counts steps it has made */
    uint32_t base;            /* turn x (buckets + 1): what bucket flags count from */
    uint32_t *rounds;         /* of each thread: sums of batch norm over all seats */
    double **offered, *total; /* sums of batch norm over the threads of this rank */
    bool lockstep;            /* the model may yield sums */
    spent *spent;             /* of each thread */
    backup *backups;          /* of all ranks of the node */
    int backup_count;
    backup *backup_of[MOST_UNITS]; /* NULL: nobody else computes it */
    const tt_batch *mine;
    int n;                   /* samples of all */
    const int *host_n;       /* of each host, where they have rows of their own */
    const tt_step_in *given; /* what this step was asked for with */
    bool planned;            /* the sums below are made for these units */
    tt_row sample;           /* what one has */
    bool present[MOST_UNITS];
    bool apply;
    sum_plan node_sum, all_sum;
    ranges targets;                /* of the node's sum */
    const float *term[MOST_TERMS]; /* of the node's seats, in order */
    tt_step_stats stats;
    tt_rank_times *times; /* of all ranks */
    row row;              /* of this one  */
    const float *hashed;  /* what the threads hash ...  */
    uint64_t *hash_part;  /* ... and what each has of it */
    uint64_t *hashes;     /* of all ranks */
    int *auditor;         /* of each unit: a rank; -1: none */
    int *audits;          /* of each rank: how many */
    float *audit_grad;    /* NULL: there are no audits */
    tt_err (*fetch)(void *who, int first, int n, const tt_batch **out); /* see tt_step_in */
    void *who;
    range ran;            /* the units of this rank in the step */
    bool *odd;            /* ranks whose weights were not those of the others */
    double passed, heard; /* when this rank had run its units, and knew of all others' */
    exchange *ex;
    tt_parcel *in, *out; /* for what is begun: of each member of the group */
    codec codec;
    struct squeeze *squeeze; /* NULL: nothing is compressed */
    struct factor *factor;   /* NULL: or not by PowerSGD    */
    struct trace *trace;     /* NULL: none was asked for    */
    struct rows *rows;       /* NULL: there are no tables   */
    _Atomic int failing;     /* a tt_err: the first that any thread met */
    char message[512];
};

static inline int node_threads(const tt_strategy *s, int local)
{
    return s->threads[s->nodes[s->node].rank[local]];
}
static inline char *part_at(const tt_strategy *s, int local)
{
    return s->share.at[local];
}
static inline rank_flags *rank_at(const tt_strategy *s, int local)
{
    return (rank_flags *)(part_at(s, local) + s->layouts[local].ranks);
}
static inline seat_flags *seat_at(const tt_strategy *s, int local, int thread)
{
    return (seat_flags *)(part_at(s, local) + s->layouts[local].seats) + thread;
}
static inline float *grad_at(const tt_strategy *s, int local, int thread, int buffer)
{
    return (float *)(part_at(s, local) + s->layouts[local].grad) +
           ((int64_t)thread * s->buffers + buffer) * s->size;
}
static inline float *w_at(const tt_strategy *s, int local, int half)
{
    return (float *)((char *)s->state.at[local] + s->layouts[local].w[half]);
}
static inline float *slot_at(const tt_strategy *s, int slot, int half)
{
    return (float *)((char *)s->state.at[s->local] + s->layouts[s->local].slot[half][slot]);
}
static inline tt_result *results_of(const tt_strategy *s) /* of all units, at the node's leader */
{
    return (tt_result *)(part_at(s, 0) + s->layouts[0].results);
}
static inline row *rows_of(const tt_strategy *s) /* of all ranks by place, at the leader */
{
    return (row *)(part_at(s, 0) + s->layouts[0].rows);
}
/* What seat (local, thread) offers to a round of batch norm's sums; two take turns. */
static inline double *sums_at(const tt_strategy *s, int local, int thread, uint32_t round)
{
    return (double *)(part_at(s, local) + s->layouts[local].sums) +
           (2 * thread + (int)(round & 1)) * s->sums_most;
}
/* At the leader: of all nodes. */
static inline double *total_at(const tt_strategy *s, uint32_t round)
{
    return sums_at(s, 0, node_threads(s, 0), round);
}
static inline bool sharded(const tt_strategy *s)
{
    return s->plan.aggregate == TT_SHARD || s->plan.aggregate == TT_CHIEF;
}
static inline bool compressed(const tt_strategy *s)
{
    return s->codec.kind != CODEC_NONE && s->node_count > 1;
}
static inline bool owns(const tt_strategy *s, int piece)
{
    return !sharded(s) || (s->piece_node[piece] == s->node && s->piece_column[piece] == s->local);
}

/* replicate.c */
void begin_half(tt_strategy *s); /* the half that is not current is written to now */
/* Between two layers: what has become possible meanwhile. *reduced: buckets of which this seat's
 * share is summed. */
void look_in(tt_strategy *s, int me, int *reduced);

void strategy_refresh(tt_strategy *s); /* all threads make what is made of the weights */

/* The first error of any thread ends the step for all of them. */
void strategy_fail(tt_strategy *s, tt_err err);
bool strategy_failed(const tt_strategy *s);
/* Who has missed somebody says whom, so that the others of the node do not blame it for waiting. */
void strategy_alarm(tt_strategy *s, int rank);
/* A piece of a flat array, from one rank to another, which have it at the same place in `base`. */
tt_err move_piece(tt_strategy *s, float *base, int piece, int from, int to);

/* A bucket on its way between nodes: exchange.c. */
typedef enum stage { WAITING, SCATTER, GATHER, SCATTER2, GATHER2, DONE } stage;
typedef struct way {
    stage stage;
    tt_op *ops;
    int op_count, next; /* ops before `next` are done */
    float *inbox;       /* our part, of all nodes' sums that are not ours, one after the other */
    double begun;
} way;

/* ---- factor.c: between nodes, as two factors of low rank ---- */
tt_err factor_open(tt_strategy *s);
void factor_close(tt_strategy *s);
/* The Q of each matrix, of the step before: to where the matrix is in a flat array, or from there.
 */
void factor_move(tt_strategy *s, float *flat, bool back);
/* What comes when all messages of a stage are through; leaves the way in the next. `present`: this
 * node had samples. */
tt_err factor_next(tt_strategy *s, int index, way *w, bool present);

/* ---- squeeze.c: between nodes, compressed ---- */

typedef struct squeeze_place { /* of a node's part of a bucket */
    size_t out;                /* where it is in `out`, and then the sum over all nodes */
    size_t send, back;         /* bytes of either                                       */
    size_t in;                 /* where in `in` that node's sum of our part is          */
} squeeze_place;
typedef struct squeeze {
    float *residual, *owed; /* flat: of what this rank has sent, and of sums it has given back */
    float *total;           /* of all ranks, at rank 0, for checkpoints */
    uint8_t *out, *in, *scratch;
    size_t out_bytes, in_bytes, scratch_bytes;
    squeeze_place *places;
} squeeze;
tt_err squeeze_open(tt_strategy *s);
void squeeze_close(tt_strategy *s);
/* The bytes of our sum of node h's part; where those of ours from node h go; and what they say. */
tt_parcel squeeze_part(tt_strategy *s, int index, int h);
tt_parcel squeeze_inbox(tt_strategy *s, int index, int h);
tt_err squeeze_unpack(tt_strategy *s, int index, int h, float *to);
/* The same on the way back, of the sum over all nodes. */
tt_parcel squeeze_sum(tt_strategy *s, int index);
tt_parcel squeeze_sum_inbox(tt_strategy *s, int index, int h);
tt_err squeeze_unpack_sum(tt_strategy *s, int index, int h);
/* All ranks call these two: the total of all residuals comes to rank 0, and goes out from it. */
tt_err squeeze_collect(tt_strategy *s);
tt_err squeeze_spread(tt_strategy *s);

/* ---- trace.c: what each thread did when ---- */
typedef enum trace_kind {
    TRACE_STEP,
    TRACE_DATA,
    TRACE_FORWARD,
    TRACE_BACKWARD,
    TRACE_SUM,
    TRACE_WAIT,
    TRACE_OPTIM,
    TRACE_BUCKET,
    TRACE_READY,
    TRACE_WEIGHTS
} trace_kind;
bool trace_on(const tt_strategy *s);
/* Does nothing unless a trace is being made. me -1: the lane of messages. */
void trace_add(tt_strategy *s, int me, trace_kind kind, int number, double begin, double end);
void trace_close(tt_strategy *s);

/* ---- backup.c: units that two ranks of a node compute ---- */
int backup_most(const tt_strategy *s); /* of a rank; 0: there are none */
/* From which unit on a seat of a rank of the node may not add its units up. */
int backup_alone(const tt_strategy *s, int local, int index);
/* When units or who runs them have changed: with the terms of the node's sum. */
void backup_plan(tt_strategy *s, const range *term, int terms);
void backup_begin(const tt_strategy *s, const backup *b);  /* by its owner */
bool backup_helped(const tt_strategy *s, const backup *b); /* the other has begun with it */
bool backup_provided(const tt_strategy *s, const backup *b);
bool backup_take(const tt_strategy *s, const backup *b); /* false: another was first */
bool backup_left(const tt_strategy *s); /* units that we may help with and nobody has provided */
/* One of them to begin with now; NULL: none. Its owner has `patience_s` for it, and until then to
 * begin with it. */
backup *backup_next(tt_strategy *s, double patience_s, double until);
/* The terms of the node's sum, when all seats are ready; in `room` if they are not as planned. */
const float *const *backup_terms(const tt_strategy *s, const float **room);

/* ---- audit.c: do all ranks have the same numbers? ---- */
void hash_share(tt_strategy *s, int me); /* of `hashed`: what this thread has to do with it */
uint64_t hash_join(tt_strategy *s, uint64_t rows); /* ... when all have done theirs, and tables' */
void hash_settle(tt_strategy *s);         /* of the state, which is that of all now          */
void hash_flip(tt_strategy *s, float *w); /* a bit of it, for tests */
tt_err audit_open(tt_strategy *s);
void audit_close(tt_strategy *s);
void audit_begin(tt_strategy *s); /* of a step: who looks at which units? */
/* Of a unit that this rank has run: if it is audited, its gradient is not to be given to others
 * before this has seen it. */
static inline bool is_audited(const tt_strategy *s, int u)
{
    return s->auditor && s->auditor[u] >= 0;
}
void audit_own(tt_strategy *s, int u, float *grad);
/* Thread 0: those of others that are ours to look at. `reduced`: as look_in takes it. */
void audit_others(tt_strategy *s, int *reduced);
bool audit_compare(tt_strategy *s); /* all have told: false if there is a doubt */
/* TT_EPEER unless all are the same, in rank order; sets `odd`. */
tt_err hash_compare(tt_strategy *s, const uint64_t *hash);

/* ---- rows.c: gradients of tables ---- */
tt_err rows_open(tt_strategy *s);                     /* with the model and the optimiser ... */
size_t rows_bytes(const tt_strategy *s, int threads); /* ... of a rank, that its node sees    */
tt_err rows_start(tt_strategy *s);                    /* ... and when it has them ...         */
tt_err rows_place(tt_strategy *s, const tt_state_file *f); /* ... and its state                  */
void rows_close(tt_strategy *s);
void rows_begin_units(tt_strategy *s, int me);            /* a thread, before its first unit ...  */
void rows_begin_unit(tt_strategy *s, int me, int unit);   /* ... before each ...                  */
void rows_take(tt_strategy *s, int me, const tt_rows *y); /* ... and what it yields               */
void rows_gather(tt_strategy *s); /* thread 0, when all have passed: the lists of all units */
void rows_prepare(tt_strategy *s, int me); /* all threads: their share of the sums */
void rows_begin(tt_strategy *s);           /* changes from here on are of this step */
void rows_change(tt_strategy *s, int me);  /* all threads: it is applied */
uint64_t rows_hash(tt_strategy *s);        /* of all tables, as they are after the changes */
void rows_settle(tt_strategy *s);          /* ... or whatever they are now */
void rows_clear(tt_strategy *s);
tt_err rows_spread(tt_strategy *s); /* all ranks: rank 0's are everybody's */
void rows_sha(const tt_strategy *s, tt_sha *sha);

/* ---- average.c ---- */
/* What ranks that train apart do together after a step, if it is time. */
tt_err average_step(tt_strategy *s, const tt_step_in *in);

/* ---- exchange.c: between nodes; thread 0 alone ---- */
enum { TAG_STATE = 1 << 19, TAG_CLOCK, TAG_PIECES, TAG_LISTS }; /* of the world: of no column */
tt_err exchange_open(tt_strategy *s);
void exchange_close(tt_strategy *s);
/* Begins what is in `in` and `out`, between the ranks of our column. */
tt_err exchange_start(tt_strategy *s, int tag, tt_op *ops, int *count);
void show_life(tt_strategy *s);      /* a message of this rank has begun, or is through */
void exchange_begin(tt_strategy *s); /* of a step */
tt_err exchange_poll(tt_strategy *s);
bool exchange_done(const tt_strategy *s); /* all buckets */
int exchange_missing(const tt_strategy *s);
tt_err exchange_results(tt_strategy *s); /* waits: the results of all nodes' units */
tt_err exchange_weights(tt_strategy *s); /* waits: new weights of this column */
tt_err exchange_pieces(tt_strategy *s);  /* all ranks: what each piece tells the join */
tt_err exchange_sums(tt_strategy *s, double *value, int n);  /* leaders: over all nodes */
tt_err exchange_wait(tt_strategy *s, tt_op *ops, int count); /* names who does not come */

#endif
