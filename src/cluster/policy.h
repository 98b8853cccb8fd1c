/* policy: what the supervisor decides. A pure state machine: no clock, no processes, no files.
 *
 *   tt_policy_open -> tt_policy_step(p, &event, now, actions, room) ... -> tt_policy_close
 *
 * The same code is linked into the supervisor, which turns what happens into events and carries out
 * the actions, and into a simulator, which invents both.
 *
 * A *slot* is a place for a worker: one of a host's. A *world* is one fixed membership, processes
 * that were started together: it stands by until GO makes it the *active* one, of which there is at
 * most one, under a generation number that only grows. While it trains, another world of the size
 * that is wanted stands by. Whatever ends a world (a death, a hang, a resize, a host that leaves)
 * takes the same path: it is ended, seen to be gone, and the one that stands by gets GO; it finds
 * the freshest committed state by itself.
 *
 * What it must hold:
 * (1) GO is given only when every world that had GO before is gone: no two are active.
 * (2) Generations grow by one with each GO, and PERSIST(g) comes before GO(g).
 * (3) A world is never given GO unless all its members have said READY, and none has died since.
 * (4) The number of active workers is between `least` and `most`; below it the run waits, and ends
 *     with the first cause when wait_s is over.
 * (5) A slot that failed `strikes` times in a row is left out until its penance is over; without
 *     progress restarts come slower and slower, and end at max_restarts. A slot whose numbers were
 *     wrong `catches` times is left out for good. A host on which nothing can be started, so that
 *     `strikes` worlds in a row say nothing at all, is found and left out if there can be others.
 * (6) Every end of an active world, and every failure of another one, has one cause, the first: it
 *     is told once.
 * (7) After EXIT nothing is asked for any more. EXIT comes when all worlds are gone.
 *
 * What it relies on: GONE is true. Of a world on a host that cannot be reached nothing is left only
 * when its processes there have ended by themselves, because they had no word from the supervisor
 * for a time that is agreed (a lease), and that time is over. Such a word must be an answer to one
 * of theirs: else a host that hears, but is not heard, would live on. And what a worker has said
 * comes before its DEAD and GONE: one that ends well stays until its last words are out. */
#ifndef TT_POLICY_H
#define TT_POLICY_H

#include "base/base.h"

enum { TT_WORLDS_MOST = 8 };

typedef struct tt_policy_opts {
    int least, most;    /* workers; the same: fixed                                            */
    int spares;         /* members beyond that, which hold the state but have no work; fewer, or
                         * none, where there would else be fewer workers than `least`         */
    int generation;     /* the last that was persisted, by the supervisor before this one; 0  */
    double beat_s;      /* silence after which a worker counts as hung: 0.5                   */
    double late_s;      /* a gap between two steps of ours after which silence is our own fault,
                         * and all get a fresh deadline: 0.25                                 */
    double stuck_s;     /* least time without progress, in a phase that has it: 2             */
    double stuck_steps; /* ... and so many usual steps: 8. As long as no step is known: slow_s */
    double slow_s;      /* least time without progress in other phases (opening, saving): 120 */
    double start_s;     /* until all members of a world are ready: 60                         */
    double yield_s;     /* until a world has ended at a step boundary: 5                      */
    double stop_s;      /* until it has saved and ended, whoever must come up for that: 5     */
    double wait_s;      /* below `least`: until the run gives up: 600                         */
    double settle_s;    /* hosts join in storms: how long it must be quiet until a world is made
                         * for more of them, while there are fewer than `most`: 0.1           */
    int strikes;        /* failures in a row after which a slot is left out: 3                */
    double penance_s;   /* how long, doubled each time: 30; 2 at first if there are then fewer
                         * than `least`                                                       */
    int catches;        /* times its numbers were wrong after which a slot is left out for good,
                         * however much it did well in between: 2                             */
    int max_restarts;   /* failures in a row, without a world between them that proved itself,
                         * that interrupt the training; -1: any                               */
    bool standby;       /* keep the next world standing by: true                              */
} tt_policy_opts;
tt_policy_opts tt_policy_defaults(void);

/* ---- What happens ---- */

typedef enum tt_event_kind {
    TT_EV_TICK,    /* nothing but time                                                     */
    TT_EV_HOST,    /* host, slots: it has that many from now on. Processes on slots that are no
                    * more live on until their world yields: a host that leaves has 0      */
    TT_EV_LOST,    /* host: it is gone, and nothing on it can be counted on any more       */
    TT_EV_BEAT,    /* world, rank, phase, step, waits: it lives. The first one is its hello. Also of
                    * one that is seen to want to say so, and cannot for want of a CPU     */
    TT_EV_STILL,   /* world, rank: it is seen to be stopped. Half the silence is enough then */
    TT_EV_DEAD,    /* world, rank, code: its process has ended (128 + signal if killed), or could
                    * not be started: say so if it is known which one                      */
    TT_EV_GONE,    /* world, code: nothing of it is left. Also when it could not be started */
    TT_EV_RESULT,  /* world, code: its rank 0 says that the training has come to an end    */
    TT_EV_TROUBLE, /* world, rank, code: it says what went wrong, and its world ends. fatal:
                    * would happen again (bad job, diverged): no restart. Code 4, which is that of
                    * TT_EPEER: it misses another one, and is not to blame                 */
    TT_EV_CORRUPT, /* world, rank: its numbers were not those of the others. fatal: its world ends;
                    * that may be said of several, and by several: of each it counts once in a
                    * world. Else nothing came of it, and the world ends if it was once too often */
    TT_EV_WANT,    /* least, most: from now on                                             */
    TT_EV_RENEW,   /* what workers are started with is another from now on: a world that has it
                    * takes over at a step boundary                                       */
    TT_EV_STOP,    /* the user wants it saved and ended; code: the exit code. A world that ends
                    * by SAVE tells its RESULT; if it cannot, another one saves in its place */
    TT_EV_QUIT,    /* ... and does not want to wait for that                               */
} tt_event_kind;

typedef struct tt_event {
    tt_event_kind kind;
    int world, rank;
    tt_phase phase;
    int64_t step;
    int code;
    bool fatal;
    bool waits;      /* for other ranks: if nothing moves, another one is to blame */
    int host, slots; /* hosts are numbers here: the executor knows their names */
    int least, most;
} tt_event;

/* ---- What is to be done ---- */

typedef enum tt_action_kind {
    TT_ACT_START,   /* world: start it on the slots tt_policy_members tells                  */
    TT_ACT_PERSIST, /* generation: must be safe on disk before what follows                  */
    TT_ACT_GO,      /* world, generation                                                     */
    TT_ACT_YIELD,   /* world: end at the next step boundary, keeping the state in the vault  */
    TT_ACT_MOVE, /* world: the same, and save a checkpoint: no host of it is in the next world, or
                  * two or more are not, or there is none to come for now                */
    TT_ACT_SAVE, /* world: save a checkpoint and end                                      */
    TT_ACT_KILL, /* world: SIGKILL, all of it. Asked for once; GONE is waited for         */
    TT_ACT_TELL, /* cause: for the display, the log and metrics.jsonl                     */
    TT_ACT_EXIT, /* code; cause: the first of what led to it, if anything did             */
} tt_action_kind;

typedef enum tt_cause_kind {
    TT_CAUSE_NONE,
    TT_CAUSE_DEAD,    /* a worker's process ended                */
    TT_CAUSE_HUNG,    /* no sign of life                         */
    TT_CAUSE_STUCK,   /* signs of life, but no progress          */
    TT_CAUSE_TROUBLE, /* it said itself that something is wrong  */
    TT_CAUSE_START,   /* a world did not come up                 */
    TT_CAUSE_HOST,    /* a host is gone                          */
    TT_CAUSE_LEAVE,   /* a host leaves                           */
    TT_CAUSE_RESIZE,  /* another number of workers               */
    TT_CAUSE_BELOW,   /* fewer than `least` are left: it waits   */
    TT_CAUSE_OUT,     /* a slot is left out; slot -1: all of a host, where nothing comes up */
    TT_CAUSE_BACK,    /* ... and is taken in again               */
    TT_CAUSE_STOP,
    TT_CAUSE_RENEW,   /* workers are started otherwise from now on */
    TT_CAUSE_CORRUPT, /* its numbers were not those of the others */
} tt_cause_kind;

typedef struct tt_cause { /* first cause, with all that is known of it; -1: not known */
    tt_cause_kind kind;
    int world, generation, rank, host, slot, code;
    tt_phase phase;
    int64_t step;
    double silent_s; /* hung, stuck: for how long */
} tt_cause;

typedef struct tt_action {
    tt_action_kind kind;
    int world, generation, code;
    tt_cause cause;
} tt_action;

typedef struct tt_policy tt_policy;
tt_policy *tt_policy_open(const tt_policy_opts *o);
/* Takes one event. Returns how many actions there are; `room` is at least TT_WORLDS_MOST * 4. Call
 * it with a tick when nothing happens for 50 ms; `now` never goes back. Events of worlds it does
 * not know (any more) change nothing: messages may come late, and a process that was declared dead
 * may come back. */
int tt_policy_step(tt_policy *p, const tt_event *e, double now, tt_action *out, int room);

typedef struct tt_member {
    int host, slot; /* slot of that host: 0, 1, ... */
    bool spare;
} tt_member;
/* The members of a world by rank, until it is gone; how many, 0 if there is no such world. Spares
 * come last. */
int tt_policy_members(const tt_policy *p, int world, const tt_member **out);

/* For display and tests. */
typedef struct tt_policy_view {
    int active, standby; /* worlds; -1: none */
    int generation, workers;
    int restarts, in_a_row; /* failures that interrupted; since a world proved itself */
    int least, most;
    int slots; /* that can be used, of all hosts */
    bool standby_ready, waiting, ending;
    bool current; /* the active world is what is wanted */
    int64_t step; /* the newest that an active world's rank 0 has told; -1: none yet */
} tt_policy_view;
tt_policy_view tt_policy_look(const tt_policy *p);
void tt_policy_close(tt_policy *p);

#endif
