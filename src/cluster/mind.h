/* mind: the private face of the policy: its worlds, and what its files do for each other.
 *
 * happen.c takes events in, and says who is to blame for what fails; policy.c looks at what is
 * overdue, and decides. */
#ifndef TT_MIND_H
#define TT_MIND_H

#include "roster.h"

#ifndef TT_PLANT /* tests plant mistakes here, and see to it that they are found: tests/sim */
#define PLANTED(bug) false
#endif

enum { MIND_PEER = 4 };               /* the exit code of TT_EPEER                            */
static const double MIND_PROOF_S = 5; /* a world that trains, or stands by, so long is sound  */

typedef struct rank {
    bool hello, ready, dead, waits, caught;
    tt_phase phase;
    int64_t step;
    double heard, moved; /* the last beat; the last with another phase or step */
} rank;

typedef enum state { NOWHERE, STARTING, STANDING, ACTIVE, YIELDING, CLOSING, KILLED } state;

typedef struct world {
    state state;
    double since; /* it is in this state */
    double hello; /* the first of its ranks was heard of; 0: none */
    int id;
    int generation; /* 0: it never had GO */
    int members, workers;
    int renewal; /* what its workers were started with */
    tt_member *member;
    rank *rank;
    bool stepped, proved; /* it has begun to step; and is worth a restart without delay */
    int64_t first_step;
    double first_at;
} world;

struct tt_policy {
    tt_policy_opts o;
    double now, look_at;
    bool begun;   /* `now` means something        */
    bool stirred; /* a world has another state    */
    tt_roster roster;
    world world[TT_WORLDS_MOST];
    int generation, last_id;
    int restarts, in_a_row; /* failures that interrupted; since a world proved itself, or ... */
    int64_t row_step;       /* ... since this step, if others have got on from there        */
    int renewal;            /* counts what workers were started with */

    double joined, storm; /* the last host that came; the first one of that storm */

    int start_failures, go_failures; /* in a row */
    int mute;                        /* worlds in a row of which nobody was heard    */
    int suspect;                     /* the host that was set aside last; -1: none   */
    int turns;                       /* rounds in which each had its turn            */
    int late;                        /* starts in a row that took too long */
    double straggle_s;               /* from the first rank of a world to all of them; 0: unknown */
    double start_after, go_after;
    double usual_s; /* a step; 0: not known */
    int64_t step;
    tt_cause first; /* since there was progress last */

    bool waiting, waiting_told, ending, exited;
    double waiting_since;
    bool went;     /* a world has had GO: there is something to save        */
    bool stopping; /* it is to be saved, by `stop_by`, and ended            */
    int stop_code;
    double stop_by;
    int code;
    tt_cause end;

    tt_action act[TT_WORLDS_MOST * 4];
    int acts;
    tt_cause *tell;
    int tells, tell_room;
};

/* ---- policy.c ---- */

world *mind_world(tt_policy *p, int id);
world *mind_active(tt_policy *p); /* the world that had GO, until it is gone */
void mind_set_state(tt_policy *p, world *w, state s);
void mind_act(tt_policy *p, tt_action_kind kind, int id, int generation);
void mind_tell(tt_policy *p, tt_cause c);
tt_cause mind_no_cause(tt_cause_kind kind);
/* All that is known of a rank (-1: of none in particular). */
tt_cause mind_cause_of(tt_cause_kind kind, const world *w, int r);
void mind_kill(tt_policy *p, world *w);
void mind_finish(tt_policy *p, int code, tt_cause c);

/* ---- happen.c ---- */

void mind_take(tt_policy *p, const tt_event *e);
bool mind_is_on(const world *w, int host);
bool mind_saves(const tt_policy *p, const world *w); /* is it about to? Another could instead */
void mind_fail_rank(tt_policy *p, world *w, int r, tt_cause c, bool blamed);
void mind_fail_hung(tt_policy *p, world *w, int r);
void mind_drop_suspects(tt_policy *p); /* hosts that were set aside are taken back */
void mind_fail_start(tt_policy *p, world *w, int code); /* a world that did not come up */

#endif
