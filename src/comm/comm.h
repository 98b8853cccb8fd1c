/* comm: who takes part in a training, and bytes between them. It knows no layers and no gradients.
 *
 * A world is one fixed membership: `size` ranks on `host_count` hosts. Three transports carry it:
 * MPI (ranks are processes), sim (ranks are threads of one process: tests of all layers above, also
 * under ThreadSanitizer) and none (a world of one).
 *
 * Nothing waits for ever: each wait ends by the world's deadline with TT_EPEER, and the message
 * names the rank that was missing and where it runs; the caller adds what it was to do. After
 * TT_EPEER a world is of no more use.
 *
 * One thread of each rank, the one that joined, makes these calls; flags are for all threads. */
#ifndef TT_COMM_H
#define TT_COMM_H

#include <stdatomic.h>

#include "base/base.h"

/* ---- Worlds ---- */

typedef struct tt_peer {
    int host;  /* hosts count from 0 in the order of their first rank */
    int local; /* its number on that host                             */
    int64_t pid;
    char name[64]; /* of the host */
} tt_peer;

typedef struct tt_world {
    int rank, size;
    int host, host_count;
    int local, local_size;
    int sharing;           /* ranks of this host that have the same CPUs as this one */
    const tt_peer *peer;   /* of each rank                                         */
    const char *transport; /* "Open MPI 4.1.4", "MPICH 4.0.2", "sim", "none"       */
    double timeout_s;      /* how long anybody is waited for; may be set           */
    int spins;             /* looks at a flag before others may run; 0 where there are more
                            * threads than CPUs; may be set                        */
    bool threads;          /* ranks are threads of this process                    */
    struct tt_carrier *carrier;
} tt_world;

/* What the environment says of who started this process, before any MPI call. */
typedef struct tt_started {
    const char *by; /* "mpirun (Open MPI)", "mpiexec (MPICH)", "srun"; NULL: by nobody we know */
    int rank, size; /* -1: not told */
} tt_started;
tt_started tt_world_started(void);
/* Was this started by srun, as one task of a step or as the only one? The shell of an interactive
 * salloc runs in a step too, and a batch script may have inherited the words of one: these are in
 * an allocation, not in a step. */
bool tt_slurm_step(void);

const char *tt_mpi_name(void); /* the one this program is built for: "Open MPI 4.1.4" */

/* Joins the world this process was started in: MPI if a launcher says so, else a world of one.
 * TT_EENV: MPI does not start, or the launcher is of another MPI than this program was built for
 * (then every rank would believe to be alone). Call it once. */
tt_err tt_world_join(tt_world **out);
tt_err tt_world_alone(tt_world **out);
/* Leaves, when all do. With `failed` the other ranks are not waited for, and the launcher is told
 * to end them with this exit code: the call does not return if there is an MPI. MPI_Finalize comes
 * with the end of the program, if it was started here. Accepts NULL. */
void tt_world_leave(tt_world *w, int failed);

/* Runs fn on `size` ranks at once, as threads. host[i] is the host rank i pretends to be on (NULL:
 * all on one). The first error by rank, if any, is returned; each rank's world ends with fn. */
typedef tt_err (*tt_sim_fn)(tt_world *w, void *arg);
tt_err tt_sim_run(int size, const int *host, double timeout_s, tt_sim_fn fn, void *arg);

/* Binds the calling thread, and those it will start, to the rank's share of the host's CPUs: at
 * least `threads`, none of which another rank has. All ranks call it. *bound: how many, 0 if it was
 * left alone. TUTTI_PIN=0 prevents it. */
tt_err tt_world_pin(const tt_world *w, int threads, int *bound);

/* ---- Groups: some of the ranks, numbered anew in the order of the world ---- */

typedef struct tt_group {
    tt_world *world;
    int me, size;
    int *rank; /* in the world, of each member */
    int context;
} tt_group;

/* Those who give the same color; a negative color is in none (*out NULL). All of `from` call it. */
tt_err tt_group_split(const tt_group *from, int color, tt_group **out);
const tt_group *tt_world_all(const tt_world *w);
void tt_group_close(tt_group *g); /* accepts NULL */

/* ---- Messages: start_* never waits ---- */

typedef struct tt_op { /* in flight; not to be moved or copied until it is done */
    uint64_t handle;
    const tt_group *group;
    int peer;
    bool sends, done;
    size_t bytes;
} tt_op;

enum { TT_TAGS = 1 << 20 };
/* Messages from one rank to another with the same tag arrive in their order. The buffer is
 * borrowed until the op is done; the receiver must expect as many bytes as are sent. */
tt_err tt_send_start(const tt_group *g, int to, int tag, const void *data, size_t bytes,
                     tt_op *out);
tt_err tt_recv_start(const tt_group *g, int from, int tag, void *data, size_t bytes, tt_op *out);
tt_err tt_op_test(tt_op *op); /* sets op->done if it is; also drives all others */
tt_err tt_op_wait(tt_op *op);
tt_err tt_ops_wait(tt_op *ops, int count); /* the error names the first that was missing */

/* Starts both: `in[i]` comes from each other member i, `out[i]` goes to it; 0 bytes: nothing does.
 * Each begins with the member after it, so that not all knock at the same door first. The ops, two
 * for each other member at most, are put behind the *count that are there. */
typedef struct tt_parcel {
    void *data; /* not written to where it goes out */
    size_t bytes;
} tt_parcel;
tt_err tt_trade_start(const tt_group *g, int tag, const tt_parcel *in, const tt_parcel *out,
                      tt_op *ops, int *count);

/* ---- Small things for a whole group; all members call them in the same order ---- */
tt_err tt_group_barrier(const tt_group *g);
tt_err tt_group_bcast(const tt_group *g, int root, void *data, size_t bytes);
/* Everybody's `bytes` bytes, in rank order, to everybody. */
tt_err tt_group_gather(const tt_group *g, const void *mine, size_t bytes, void *all);
/* What each member has met: TT_OK if nobody met anything. Else the error and message of the first
 * (by rank), with its rank and host before it, on all of them. */
tt_err tt_group_agree(const tt_group *g, tt_err mine);
int tt_group_blamed(void); /* the rank whose error was last agreed on; -1: all had it, or none */

/* ---- Memory that ranks of one host have in common ---- */

typedef struct tt_share {
    int size;
    void **at; /* of each member: its own part; all may be read and written by all */
    size_t *bytes;
    bool threads; /* of one process: the world keeps the memory until it ends */
} tt_share;
/* Each member of `host` gives as much as it wants: zeroed, page aligned, gone with its last user,
 * however that ends. TT_EENV on all of them if they cannot see each other's memory. */
tt_err tt_share_open(const tt_group *host, size_t bytes, tt_share *out);
/* The same of the first `bytes` of a file that each member has open and that may outlive it. The
 * descriptor may be closed afterwards. */
tt_err tt_share_open_file(const tt_group *host, int fd, size_t bytes, tt_share *out);
void tt_share_close(tt_share *s); /* accepts a zeroed one */

/* ---- Sums of long vectors: for programs, and whatever is no gradient ---- */

/* Adds up float vectors over a group: within a host in shared memory, between hosts by messages; in
 * rank order on a host, then in host order, so that equal input gives equal bits. All members open
 * it at the same time; one call is under way at a time. */
typedef struct tt_summer tt_summer;
/* `bytes`: shared memory of this member for tt_summer_memory; 0: none. */
tt_err tt_summer_open(const tt_group *g, size_t bytes, tt_summer **out);
/* Memory that the others of the host see: vectors that lie there are summed without a copy. NULL if
 * there is none. */
void *tt_summer_memory(tt_summer *s);
/* x becomes the sum over all members; `scale` is then multiplied in (1: nothing). */
tt_err tt_summer_run(tt_summer *s, float *x, int64_t n, float scale);
void tt_summer_close(tt_summer *s); /* accepts NULL */

/* ---- Flags: numbers in shared memory that only grow, and can be waited for ---- */

typedef struct tt_flag {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
} tt_flag;

static inline uint32_t tt_flag_get(const tt_flag *f)
{
    return atomic_load_explicit(&f->value, memory_order_acquire);
}
static inline bool tt_flag_has(const tt_flag *f, uint32_t v) /* it has come to v; it may wrap */
{
    return (int32_t)(tt_flag_get(f) - v) >= 0;
}
void tt_flag_set(tt_flag *f, uint32_t v); /* what was written before is seen by who sees it */

/* Waiting with something else to do: between two looks at a flag, call tt_idle. It spins, then
 * lets others run, then sleeps on the flag (a short while if `busy`, for those who drive messages
 * meanwhile). False: the deadline has passed. */
typedef struct tt_idle {
    double limit_s; /* 0: the world's deadline */
    double since;
    int rounds;
} tt_idle;
bool tt_idle_once(tt_idle *i, const tt_world *w, tt_flag *f, uint32_t v, bool busy);
/* Waits for it and nothing else; `rank` (of the world) is whose flag it is. */
tt_err tt_flag_wait(const tt_world *w, tt_flag *f, uint32_t v, int rank);
/* "no word from rank 5 (node2) for 30 s"; 0 s: the world's deadline. */
tt_err tt_world_missed(const tt_world *w, int rank, double waited_s);

#endif
