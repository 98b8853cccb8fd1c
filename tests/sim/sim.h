/* sim: a cluster in one process, with a clock of its own.
 *
 *   hosts, with slots; their vaults survive processes, not the host
 *   worlds of ranks, which train by the real commit protocol, store by store, and recover by the
 *   real recovery
 *   a supervisor: the real policy, with an executor around it that can be paused and killed
 *   faults, whose mix and rate follow from the seed
 *   checks of what must hold, which know the truth
 *
 * The state is a chain: that of step s + 1 is a function of that of step s, so a wrong recovery
 * shows. Everything follows from the seed: a seed that fails fails again.
 *
 * These files are parts of one translation unit, tests/cluster_sim_test.c. */
#ifndef SIM_H
#define SIM_H

#include "plant.h"

#include "cluster/policy.h"
#include "store/commit.h"
#include "store/ledger.h"
#include "store/recover.h"

enum {
    HOSTS = 6,
    SLOTS = 3, /* of a host, at most */
    RANKS = 10,
    WORLDS = 48, /* with those that nobody knows any more */
    STEPS_MOST = 400,
    MAIL_MOST = 512, /* letters on their way */
    EPOCH_STEPS = 8,
    STEP_SAMPLES = 4,
    TRACE_LINES = 400,
    TRUTHS = 4096,
};

/* The lease: a host that has no word from the supervisor for LEASE_S ends its processes; so one
 * that cannot be reached for GONE_S has none. That holds only if a word is an answer to what the
 * host has said: else a host that hears, but cannot be heard, would live on. */
static const double LEASE_S = 2, GONE_S = 2.5, LOST_S = 1.2;
static const double BEAT_S = 0.1, TICK_S = 0.05, AGENT_S = 0.1;
static const double RECOVER_S = 5; /* invariant 8 */

/* ---- state ---- */

typedef struct content {
    uint64_t v, check; /* the weights: two words, so that a torn write shows */
    tt_witness witness;
    int64_t epoch; /* the last that is over; -1: none */
    tt_witness last;
    uint64_t opt; /* its part of the optimiser's state */
    int part, parts;
    int copies, copy_part[RANKS]; /* of parts on other hosts; there if mark is step + 1 */
    uint64_t copy_opt[RANKS];
    int64_t mark;
} content;

typedef struct vault {
    tt_commit_head head;
    content half[2];
    uint64_t note[2][2][2]; /* (half, place, word): two words, so that a torn one shows */
} vault;

typedef struct host {
    int slots;
    bool up;              /* the machine runs                                 */
    bool in;              /* it is meant to take part                         */
    bool frozen;          /* all of it stands still, as virtual machines do   */
    bool cut_in, cut_out; /* from others, to others                           */
    bool cut_peers;       /* other hosts alone; the supervisor is in reach    */
    bool mute;            /* nothing can be started there, and so no world with it */
    double word_at;       /* when its agent last heard of the supervisor      */
    double heard_at;      /* when the supervisor last had an answer from it   */
    double thawed_at, healed_at;
    double died_at;
    double silent_at; /* when it was frozen or cut off */
    int announced;    /* slots the policy knows of                        */
    bool lost;        /* ... or that it is gone                           */
    vault slot[SLOTS];
    uint32_t owner[SLOTS];   /* serial of the process that holds the lock        */
    double bad_until[SLOTS]; /* processes die there */
} host;

/* ---- processes ---- */

/* What a rank's main thread does next. */
typedef enum pc {
    PC_START,
    PC_READY,
    PC_LOOK, /* at the halves of all slots, of which none is locked yet */
    PC_ASK,  /* the supervisor, to put into the ledger what was found */
    PC_ASKED,
    PC_LOCK,
    PC_RECOVER,
    PC_COMPUTE,
    PC_COPY, /* what other hosts have sent of the last commit, and that it is there */
    PC_MARK,
    PC_SUM,
    PC_SUMMED,
    PC_UNDO, /* from here on: writing a half */
    PC_BEGIN,
    PC_DATA,
    PC_DESCRIBE = PC_DATA + 3,
    PC_FLIP,
    PC_WRITTEN,
    PC_CLOSE, /* the note of what was committed is replaced */
    PC_FINAL = PC_CLOSE + 2,
    PC_LEAVE,
    PC_EXIT,
} pc;

typedef struct proc {
    struct world *w;
    int rank, host, slot;
    uint32_t serial;
    bool born, alive, stopped, deferred, dead_told, confirmed;
    int code;
    tt_phase phase;
    pc pc, after, then;
    bool waiting; /* in a collective */
    double waiting_since;
    double posted_at; /* when its last letter arrives */
    double stopped_at, woken_at, died_at;
    int fuse; /* operations until it is killed (or stopped); 0: none */
    bool fuse_stops;
    double slow, was_slow; /* times */
    bool stuck;            /* computes for ever */
    tt_label label;        /* of what it committed last */
    bool copy, undo;
    int half;
    tt_label target;
    content fresh;
} proc;

typedef enum stage { AT_INIT, AT_GATHER, AT_CONSENT, AT_LOCK, AT_SUM, AT_FINAL } stage;

typedef struct world {
    bool there, known; /* known: to the supervisor that runs now */
    uint64_t boss;     /* which one started it                   */
    double made_at;
    int id, generation;
    int members, workers;
    proc proc[RANKS];
    bool killing;
    bool mute; /* its launcher starts nothing, and ends */

    stage stage; /* the collective that comes next */
    int arrived;
    tt_told told; /* came with GO */
    bool has_told;
    /* what all ranks know after a collective */
    tt_found found[HOSTS * SLOTS * 2 * (1 + RANKS)];
    int founds;
    tt_recovery recovery;
    bool lost, has_found;
    tt_label source, label; /* chosen; and under which it goes on */
    content base;           /* from disk */
    int parts, rotation;
    bool yield_asked, save_asked, leaving, saving, nan, rolling, stepped;
    int flipped; /* ranks that have written their label */
    int commits; /* steps it has committed              */

    /* what rank 0 tells */
    tt_label known_label;
    bool has_known;
    content known_content;
    bool result;

    /* what the supervisor was told, for the checks */
    bool hello[RANKS], ready[RANKS], dead[RANKS];
    int causes;
    bool found_recorded, result_taken;
} world;

/* ---- the supervisor ---- */

typedef struct letter {
    bool used;
    uint64_t boss; /* the supervisor it is for */
    tt_event e;
    bool tells; /* from rank 0: what is below */
    int generation;
    bool lost, has_found, has_known, asks;
    tt_label source, known;
    int64_t epoch;
    tt_witness last;
} letter;

typedef struct boss {
    bool up, paused, draining;
    double paused_until;
    tt_policy *policy;
    tt_policy_opts o;
    letter queue[MAIL_MOST];
    int queued;
    int persisted; /* on disk */
    double up_since, resumed_at;

    /* for the checks */
    int least, most, persist_now;
    bool exited;
    int exit_code;
    /* Failures in a row: of worlds that committed nothing; not much; or did not come up. */
    int barren, unproved, start_failures;
    int mutes; /* worlds in a row that came to nothing for a host that could be done without */
    double failed_at, start_failed_at, owed_until;
    struct {
        bool out;
        double out_at;
        int outs, failures;
    } slot[HOSTS][SLOTS];
    int go_generation, last_id;
    double stop_at;   /* when it was asked to stop; 0: never */
    bool quit, went;  /* ... without saving; a world has had GO of it */
    bool hopeless;    /* ... and since there were too few slots to save it */
    double last_turn; /* when it last had a turn: it is late after a pause */
} boss;

/* ---- events ---- */

typedef enum kind {
    EV_RUN,   /* a rank's main thread goes on */
    EV_BEAT,  /* a rank's control thread      */
    EV_SPAWN, /* a process begins             */
    EV_GO,    /* an order arrives             */
    EV_ACK,   /* the ledger has it            */
    EV_YIELD,
    EV_SAVE,
    EV_MAIL,  /* a letter arrives at the supervisor */
    EV_SWEEP, /* the supervisor ends a world        */
    EV_TICK,  /* ... looks around                   */
    EV_AGENT, /* all hosts look after their lease   */
    EV_FAULT,
    EV_HEAL,   /* of one fault                       */
    EV_CALM,   /* no faults from here on             */
    EV_BOSS,   /* a supervisor starts                */
    EV_RESUME, /* ... goes on after a pause          */
} kind;

typedef struct event {
    double t;
    uint32_t seq, serial;
    uint8_t kind, world, rank, host;
    int32_t arg;
} event;

typedef enum fault {
    F_KILL,
    F_KILL_ALL,
    F_STOP,
    F_HOST_DIES,
    F_LEAVE,
    F_JOIN,
    F_CUT,
    F_FREEZE,
    F_SLOW,
    F_STUCK,
    F_BOSS_PAUSE,
    F_BOSS_CRASH,
    F_IN_RECOVERY, /* the next ranks that recover get a fuse */
    F_WANT,
    F_NAN,
    F_SAVE_AND_STOP,
    F_DIVERGE, /* a replica is not what it should be */
    F_BAD_SLOT,
    F_MUTE,
    F_FATAL, /* a rank says that going on makes no sense */
    FAULTS,
} fault;

typedef struct truth { /* what the state of a label is */
    uint64_t run;      /* it is of this one; others are empty places */
    tt_label label;
    uint64_t v;
    int parts;
} truth;

typedef struct sim {
    uint64_t seed, draws, run;
    double now, end_of_faults;
    event heap[4096];
    int heaped;
    uint32_t seq, serial;
    host host[HOSTS];
    int hosts;
    world world[WORLDS];
    boss boss;
    letter mail[MAIL_MOST];
    int next_mail;
    tt_ledger ledger;
    bool writes; /* the ledger as text, too */
    tt_str text;

    /* this seed's ways */
    bool exact, sharded, mirrored, rotates, slow_ops, diverged, wanders;
    double compute_s, comm_s, gap_s, delay_s;
    double weight[FAULTS];
    double weights;
    int64_t steps; /* to train */
    int in_recovery;

    struct {
        bool any;
        tt_label label;
        content c;
        double saved_at;
    } disk;

    /* the truth */
    truth *truth; /* (TRUTHS) */
    uint64_t golden[STEPS_MOST + 1];
    bool has_committed;
    tt_told committed;
    int committed_parts;
    unsigned committed_on;   /* hosts; all of them together have all of it */
    unsigned committed_gone; /* of these have died since                  */
    bool committed_twice;    /* any one of them may                       */
    double committed_at;
    bool fatal;             /* was said */
    bool calm, done, whole; /* whole: not cut short after calm */
    uint64_t commits, recoveries, losses, faults, boss_starts;

    /* the process that is storing now, and what a kill in the middle leaves */
    proc *writer;
    vault *written;
    tt_commit_head image;
    bool torn;

    bool bad;
    char what[512];
    bool tracing;
    char (*trace)[160];
    uint64_t traced;
} sim;

static sim S;

__attribute__((format(printf, 1, 2))) static void violate(const char *fmt, ...);
__attribute__((format(printf, 1, 2))) static void trace_line(const char *fmt, ...);
#define TRACE(...) (S.tracing ? trace_line(__VA_ARGS__) : (void)0)

static void at(double t, kind k, int w, int rank, uint32_t serial, int arg);
static void boss_crash(void);
static void boss_deliver(const letter *l);
static void world_complete(world *w);

#endif
