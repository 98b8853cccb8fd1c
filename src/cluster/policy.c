/* The life of a world:
 *
 *   STARTING ── all READY ──> STANDING ── GO ──> ACTIVE ── YIELD ──> YIELDING ─┐
 *      │                         │                 ├─ SAVE, result ─> CLOSING ─┤
 *      └──────── failure ────────┴──── failure ────┴──────> KILLED <─ too late ┤
 *                                                             └──── GONE <─────┘
 *
 * A step takes the event in, then looks at what is overdue, then decides: GO for the world that
 * stands by, if none is before it; another standby, if there should be one; YIELD, if the one that
 * stands by is what is wanted and the active one is not. All of that looks at the state alone,
 * never at the event, so it does not matter in which order things happened.
 *
 * Tried and dropped: keeping an outdated standby until its successor is ready. It needs a third
 * world beside the active one for the sake of a moment in which a failure costs a start more. */
#include "roster.h"

#include <stdlib.h>
#include <string.h>

#ifndef TT_PLANT /* tests plant mistakes here, and see to it that they are found: tests/sim */
#define PLANTED(bug) false
#endif

static const double BACKOFF_S[] = {0, 0.1, 0.5, 1, 2, 5};
enum { BACKOFFS = sizeof BACKOFF_S / sizeof *BACKOFF_S };
/* A world has proved itself after so many steps, or so long with any. */
enum { PROOF_STEPS = 10 };
static const double PROOF_S = 5, LOOK_S = 0.01, FOREVER = 1e300;
static const double NEEDED_S = 2; /* how long a slot is left out that all wait for */
/* The others come after the first rank has come: in so many times as long as they take usually, but
 * not less than so long. */
static const double STRAGGLE = 4, STRAGGLE_S = 5;
enum { CODE_PEER = 4 };

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
    int restarts, in_a_row; /* failures that interrupted; since a world proved itself */
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

tt_policy_opts tt_policy_defaults(void)
{
    return (tt_policy_opts){
        .least = 1,
        .most = 1,
        .beat_s = 0.5,
        .late_s = 0.25,
        .stuck_s = 2,
        .stuck_steps = 8,
        .slow_s = 120,
        .start_s = 60,
        .yield_s = 5,
        .stop_s = 5,
        .wait_s = 600,
        .settle_s = 0.1,
        .strikes = 3,
        .penance_s = 30,
        .catches = 2,
        .max_restarts = -1,
        .standby = true,
    };
}

/* ---- small things ---- */

static void *grown(void *p, size_t bytes)
{
    if (!(p = realloc(p, bytes ? bytes : 1))) tt_mem_out(bytes);
    return p;
}

static void *zeroed(int count, size_t size)
{
    void *p = calloc(count ? (size_t)count : 1, size);

    if (!p) tt_mem_out((size_t)count * size);
    return p;
}

static void act(tt_policy *p, tt_action_kind kind, int id, int generation)
{
    TT_ASSERT(p->acts < TT_WORLDS_MOST * 4);
    p->act[p->acts++] = (tt_action){.kind = kind, .world = id, .generation = generation};
}

static void tell(tt_policy *p, tt_cause c)
{
    if (p->tells == p->tell_room) {
        p->tell_room = p->tell_room ? p->tell_room * 2 : 16;
        p->tell = grown(p->tell, (size_t)p->tell_room * sizeof *p->tell);
    }
    p->tell[p->tells++] = c;
}

static tt_cause no_cause(tt_cause_kind kind)
{
    return (tt_cause){kind, -1, -1, -1, -1, -1, -1, TT_PHASE_START, -1, 0};
}

/* All that is known of a rank (-1: of none in particular). */
static tt_cause cause_of(tt_cause_kind kind, const world *w, int r)
{
    tt_cause c = no_cause(kind);

    c.world = w->id;
    if (w->generation) c.generation = w->generation;
    if (r < 0) return c;
    c.rank = r;
    c.host = w->member[r].host;
    c.slot = w->member[r].slot;
    c.phase = w->rank[r].phase;
    c.step = w->rank[r].step;
    return c;
}

static world *find_world(tt_policy *p, int id)
{
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (p->world[i].state != NOWHERE && p->world[i].id == id) return &p->world[i];
    return NULL;
}

/* The world that had GO, until it is gone. */
static world *active_world(tt_policy *p)
{
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (p->world[i].state != NOWHERE && p->world[i].generation) return &p->world[i];
    return NULL;
}

static world *standby_world(tt_policy *p)
{
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (p->world[i].state == STARTING || p->world[i].state == STANDING) return &p->world[i];
    return NULL;
}

static bool has_member(const world *w, tt_member m)
{
    for (int i = 0; i < w->members; i++)
        if (w->member[i].host == m.host && w->member[i].slot == m.slot) return true;
    return false;
}

static void set_state(tt_policy *p, world *w, state s)
{
    w->state = s;
    w->since = p->now;
    p->stirred = true;
}

static void kill_world(tt_policy *p, world *w)
{
    if (w->state == KILLED) return;
    set_state(p, w, KILLED);
    act(p, TT_ACT_KILL, w->id, w->generation);
}

static void finish(tt_policy *p, int code, tt_cause c)
{
    if (p->ending) return;
    p->ending = true;
    p->code = code;
    p->end = c;
}

/* ---- failures ---- */

static double backoff(int *failures)
{
    int n = *failures < BACKOFFS - 1 ? *failures : BACKOFFS - 1;

    (*failures)++;
    return PLANTED(PLANT_NO_BACKOFF) ? 0 : BACKOFF_S[n];
}

static void strike(tt_policy *p, const world *w, int r)
{
    const world *a = active_world(p);
    tt_cause c = cause_of(TT_CAUSE_OUT, w, r);
    double penance_s = p->o.penance_s;

    /* A standby may fail on a slot where the active world does well: that slot is kept. One that
     * cannot be done without is soon tried again: all wait for it. */
    if (a && a != w && a->state == ACTIVE && has_member(a, w->member[r])) return;
    if (tt_roster_count(&p->roster, -1) <= p->o.least && penance_s > NEEDED_S) penance_s = NEEDED_S;
    if (tt_roster_strike(&p->roster, w->member[r], p->o.strikes, penance_s, p->now)) tell(p, c);
}

/* Something went wrong in a world, which ends by it; keeps (6). Slots are struck by the caller. */
static void fail(tt_policy *p, world *w, tt_cause c)
{
    bool interrupts = w->state == ACTIVE || !active_world(p);

    tell(p, c);
    if (p->first.kind == TT_CAUSE_NONE && interrupts) p->first = c;
    if (w->state == ACTIVE)
        p->go_after = p->now + backoff(&p->go_failures);
    else
        p->start_after = p->now + backoff(&p->start_failures);
    p->restarts += interrupts;
    p->in_a_row += interrupts && p->suspect < 0; /* tries to find who is at fault come to an end */
    if (p->o.max_restarts < 0 || p->in_a_row <= p->o.max_restarts) return;
    if (p->stopping)
        finish(p, p->stop_code, no_cause(TT_CAUSE_STOP));
    else
        finish(p, CODE_PEER, p->first);
}

/* May this world fail now? One that is ending anyway has its cause. */
static bool can_fail(const world *w)
{
    return w->state == STARTING || w->state == STANDING || w->state == ACTIVE;
}

/* Is it about to save? Another could do that in its place. */
static bool is_saving(const tt_policy *p, const world *w)
{
    return w->state == CLOSING && p->stopping && !p->ending;
}

static void fail_rank(tt_policy *p, world *w, int r, tt_cause c, bool blamed)
{
    /* It cannot end well any more: do not wait. */
    if (w->state == YIELDING || is_saving(p, w)) kill_world(p, w);
    if (!can_fail(w)) return;
    fail(p, w, c);
    kill_world(p, w);
    if (blamed) strike(p, w, r);
}

static bool is_on(const world *w, int host)
{
    for (int r = 0; r < w->members; r++)
        if (w->member[r].host == host) return true;
    return false;
}

/* A launcher that cannot start anything on one host starts nothing at all, and nobody is heard.
 * After `strikes` such failures one host after another is done without, but for those on which a
 * world trains, until one comes up: to blame is who was set aside last (see take_beat). */
static void find_mute_host(tt_policy *p)
{
    const world *a = active_world(p);
    bool trains = a && a->state == ACTIVE;

    if (++p->mute < p->o.strikes || PLANTED(PLANT_MUTE_HOST)) return;
    for (; p->turns < 2; p->turns++) { /* the second time from the other end */
        p->suspect = tt_roster_set_aside(&p->roster, p->o.least, trains, p->turns);
        if (p->suspect >= 0) return;
        tt_roster_take_back(&p->roster);
    }
    p->mute = p->turns = 0;
}

/* It has come up, without the one that is to blame. */
static void clear_suspects(tt_policy *p)
{
    tt_cause c = no_cause(TT_CAUSE_OUT);

    c.host = p->suspect;
    p->mute = p->turns = 0;
    if (p->suspect < 0) return;
    p->suspect = -1;
    tt_roster_take_back(&p->roster);
    tt_roster_bar(&p->roster, c.host, p->o.penance_s, p->now);
    tell(p, c);
}

/* To blame for a world that did not come up: who never said hello; if all did, who is not ready. If
 * none did, a host on which nothing can be started. */
static void fail_start(tt_policy *p, world *w, int code)
{
    int hellos = 0, first = -1;
    tt_cause c;

    for (int r = 0; r < w->members; r++) hellos += w->rank[r].hello;
    for (int r = w->members; r-- > 0 && hellos;)
        if (hellos < w->members ? !w->rank[r].hello : !w->rank[r].ready) first = r;
    c = cause_of(TT_CAUSE_START, w, first);
    c.code = code;
    fail(p, w, c);
    if (!hellos) find_mute_host(p);
    for (int r = 0; r < w->members && hellos; r++)
        if (hellos < w->members ? !w->rank[r].hello : !w->rank[r].ready) strike(p, w, r);
}

/* ---- events ---- */

/* Other hosts than before: who was at fault may be gone by itself. */
static void drop_suspects(tt_policy *p)
{
    p->mute = p->turns = 0;
    p->suspect = -1;
    tt_roster_take_back(&p->roster);
}

static void take_host(tt_policy *p, int host, int slots)
{
    drop_suspects(p);
    if (!tt_roster_host(&p->roster, host, slots)) return;
    if (p->now - p->joined >= p->o.settle_s) p->storm = p->now;
    p->joined = p->now;
}

/* What was on it is lost, and so are the worlds that had a part of it there, whatever the rest of
 * them still does: nobody waits until that is missed. */
static void take_lost(tt_policy *p, int host)
{
    drop_suspects(p);
    tt_roster_host(&p->roster, host, 0);
    for (int i = 0; i < TT_WORLDS_MOST; i++) {
        world *w = &p->world[i];
        int r = 0;
        while (r < w->members && w->member[r].host != host) r++;
        if (w->state != NOWHERE && r < w->members && !PLANTED(PLANT_LOST_KEPT))
            fail_rank(p, w, r, cause_of(TT_CAUSE_HOST, w, r), false);
    }
}

/* It has shown that it can train: what failed before was not the start of a series. */
static void prove(tt_policy *p, world *w)
{
    w->proved = true;
    p->go_failures = p->in_a_row = 0;
    p->first = no_cause(TT_CAUSE_NONE);
    for (int r = 0; r < w->members; r++) tt_roster_slot(&p->roster, w->member[r])->failures = 0;
}

static void note_step(tt_policy *p, world *w, const rank *r)
{
    if (!w->stepped || r->step < w->first_step) {
        w->stepped = true;
        w->first_step = r->step;
        w->first_at = p->now;
    }
    if (!w->proved && (r->step - w->first_step >= PROOF_STEPS ||
                       (r->step > w->first_step && p->now - w->first_at >= PROOF_S)))
        prove(p, w);
}

static void take_beat(tt_policy *p, world *w, const tt_event *e)
{
    rank *r = &w->rank[e->rank];
    int ready = 0;
    double all;

    if (r->dead) return;
    if (w->generation && r->phase == TT_PHASE_STEP && e->phase == r->phase && e->step > r->step) {
        double took = (p->now - r->moved) / (double)(e->step - r->step);
        p->usual_s = p->usual_s > 0 ? 0.9 * p->usual_s + 0.1 * took : took;
    }
    if (!r->hello || e->phase != r->phase || e->step != r->step) r->moved = p->now;
    if (!r->hello) tt_roster_heard(&p->roster, w->member[e->rank].host);
    if (!(w->hello > 0)) w->hello = p->now;
    r->hello = true;
    r->heard = p->now;
    r->phase = e->phase;
    r->step = e->step;
    r->waits = e->waits;
    if (e->phase >= TT_PHASE_READY) r->ready = true;
    /* Rank 0 alone: after a rollback others may still tell steps that are no more. */
    if (w->generation && e->rank == 0 && e->phase >= TT_PHASE_STEP) {
        p->step = e->step;
        if (w->state != KILLED) note_step(p, w, r); /* else its failure is counted already */
    }
    if (w->state != STARTING) return;
    for (int i = 0; i < w->members; i++) ready += w->rank[i].ready;
    if (ready < w->members) return;
    all = p->now - w->hello;
    p->straggle_s = p->straggle_s > 0 ? 0.8 * p->straggle_s + 0.2 * all : all;
    p->late = 0;
    set_state(p, w, STANDING);
    if (p->suspect >= 0 && is_on(w, p->suspect)) return; /* from before it was set aside */
    clear_suspects(p);
}

static void take_dead(tt_policy *p, world *w, const tt_event *e)
{
    rank *r = &w->rank[e->rank];
    tt_cause c = cause_of(TT_CAUSE_DEAD, w, e->rank);
    bool well = e->code == 0 && w->generation && (r->phase == TT_PHASE_END || w->state != ACTIVE);

    if (r->dead) return;
    r->dead = true;
    c.code = e->code;
    if (!well) fail_rank(p, w, e->rank, c, true);
}

static void fail_hung(tt_policy *p, world *w, int r)
{
    tt_cause c = cause_of(TT_CAUSE_HUNG, w, r);

    c.silent_s = p->now - w->rank[r].heard;
    fail_rank(p, w, r, c, true);
}

static void take_still(tt_policy *p, world *w, int i)
{
    const rank *r = &w->rank[i];

    if (r->hello && !r->dead && r->phase != TT_PHASE_END && p->now - r->heard > p->o.beat_s / 2)
        fail_hung(p, w, i);
}

static void take_gone(tt_policy *p, world *w, const tt_event *e)
{
    tt_cause c = cause_of(TT_CAUSE_DEAD, w, -1);

    c.code = e->code;
    if (w->state == ACTIVE)
        fail(p, w, c);
    else if (can_fail(w))
        fail_start(p, w, e->code);
    free(w->member);
    free(w->rank);
    *w = (world){0};
}

static void take_trouble(tt_policy *p, world *w, const tt_event *e)
{
    tt_cause c = cause_of(TT_CAUSE_TROUBLE, w, e->rank);
    const world *a = active_world(p);

    c.code = e->code;
    /* What is fatal for a standby alone (a host with another build) is no reason to end. */
    if (!e->fatal || (a && a != w)) {
        fail_rank(p, w, e->rank, c, e->code != CODE_PEER);
    } else if (w->state != KILLED && w->state != CLOSING) {
        if (can_fail(w)) tell(p, c);
        finish(p, e->code, c);
        set_state(p, w, CLOSING);
    }
}

static void take_corrupt(tt_policy *p, world *w, int r, bool ends)
{
    tt_cause c = cause_of(TT_CAUSE_CORRUPT, w, r), out = cause_of(TT_CAUSE_OUT, w, r);
    bool enough;

    if (ends && w->rank[r].caught) return;
    w->rank[r].caught |= ends;
    enough = tt_roster_catch(&p->roster, w->member[r], p->o.catches);
    if (ends || enough)
        fail_rank(p, w, r, c, false);
    else
        tell(p, c);
    if (!enough) return;
    out.code = 0; /* it is known why in particular */
    tell(p, out);
}

static void take_result(tt_policy *p, world *w, int code)
{
    bool stopping = p->ending && p->end.kind == TT_CAUSE_STOP;

    if (!w->generation || w->state == KILLED || (p->ending && !stopping)) return;
    p->ending = false; /* it knows better what it has ended with */
    finish(p, code, no_cause(TT_CAUSE_NONE));
    if (w->state != CLOSING) set_state(p, w, CLOSING);
}

/* The rest is decided later: who is to save may have to come up first. */
static void take_stop(tt_policy *p, int code, bool save)
{
    if (!p->ending && !p->stopping) {
        tell(p, no_cause(TT_CAUSE_STOP));
        p->stopping = true;
        p->stop_code = code;
        p->stop_by = p->now + p->o.stop_s;
    }
    if (save && p->went) return;
    finish(p, p->stop_code, no_cause(TT_CAUSE_STOP));
    for (int i = 0; i < TT_WORLDS_MOST && !save; i++)
        if (p->world[i].state != NOWHERE) kill_world(p, &p->world[i]);
}

static void take(tt_policy *p, const tt_event *e)
{
    world *w = find_world(p, e->world);
    bool of_rank = w && e->rank >= 0 && e->rank < w->members;

    switch (e->kind) {
    case TT_EV_TICK:
        break;
    case TT_EV_HOST:
        take_host(p, e->host, e->slots);
        break;
    case TT_EV_LOST:
        take_lost(p, e->host);
        break;
    case TT_EV_BEAT:
        if (of_rank) take_beat(p, w, e);
        break;
    case TT_EV_STILL:
        if (of_rank) take_still(p, w, e->rank);
        break;
    case TT_EV_DEAD:
        if (of_rank) take_dead(p, w, e);
        break;
    case TT_EV_GONE:
        if (w) take_gone(p, w, e);
        break;
    case TT_EV_RESULT:
        if (w) take_result(p, w, e->code);
        break;
    case TT_EV_TROUBLE:
        if (of_rank) take_trouble(p, w, e);
        break;
    case TT_EV_CORRUPT:
        if (of_rank) take_corrupt(p, w, e->rank, e->fatal);
        break;
    case TT_EV_WANT:
        p->o.least = e->least > 1 ? e->least : 1;
        p->o.most = e->most > p->o.least ? e->most : p->o.least;
        p->roster.changed = true;
        break;
    case TT_EV_RENEW:
        p->renewal++;
        break;
    case TT_EV_STOP:
    case TT_EV_QUIT:
        take_stop(p, e->code, e->kind == TT_EV_STOP);
        break;
    }
}

/* ---- what is overdue ---- */

/* If we were late ourselves, nobody else can be blamed for it: all begin anew. */
static void grant(tt_policy *p, double gap)
{
    if (gap <= p->o.late_s || PLANTED(PLANT_LATE)) return;
    p->waiting_since += gap;
    p->stop_by += gap;
    for (int i = 0; i < TT_WORLDS_MOST; i++) {
        world *w = &p->world[i];
        w->since += gap;
        w->first_at += gap;
        for (int r = 0; r < w->members; r++) {
            w->rank[r].heard = p->now + gap;
            w->rank[r].moved += gap;
        }
    }
}

/* The rank that has been silent for too long; -1: none. */
static int hung_rank(const tt_policy *p, const world *w)
{
    int worst = -1;

    for (int i = 0; i < w->members; i++) {
        const rank *r = &w->rank[i];
        if (!r->hello || r->dead || r->phase == TT_PHASE_END) continue;
        if (PLANTED(PLANT_SYNC_HUNG) && r->phase == TT_PHASE_SYNC) continue;
        if (p->now - r->heard <= p->o.beat_s) continue;
        if (worst < 0 || r->heard < w->rank[worst].heard) worst = i;
    }
    return worst;
}

/* How long a rank of the active world may be as it is. */
static double patience(const tt_policy *p, const rank *r)
{
    double steps_s = p->usual_s * p->o.stuck_steps;

    if (r->phase <= TT_PHASE_READY) return p->o.stuck_s; /* GO never came there */
    if (r->phase != TT_PHASE_STEP || p->usual_s <= 0) return p->o.slow_s;
    return steps_s > p->o.stuck_s ? steps_s : p->o.stuck_s;
}

/* When one rank stands still all do, and they are seen to within a moment of each other: once any
 * is overdue, the one to name is who does not wait for others, or else is the farthest behind. */
static int stuck_rank(const tt_policy *p, const world *w)
{
    bool overdue = false;
    int worst = -1;

    for (int i = 0; i < w->members; i++) {
        const rank *r = &w->rank[i], *b = worst < 0 ? NULL : &w->rank[worst];
        double idle = p->now - r->moved, limit = patience(p, r);
        if (r->dead || idle <= limit / 2) continue;
        overdue |= idle > limit;
        if (!b || r->waits < b->waits || (r->waits == b->waits && r->step < b->step)) worst = i;
    }
    return overdue ? worst : -1;
}

/* Has it had time enough to come up? A launcher may not notice that a host died meanwhile; the
 * first start shows how long it takes, and each that is late doubles it: a machine may have become
 * slow. */
static bool is_late(const tt_policy *p, const world *w)
{
    double room = p->straggle_s * STRAGGLE;

    if (p->now - w->since > p->o.start_s) return true;
    if (!(w->hello > 0) || !(p->straggle_s > 0)) return false;
    if (room < STRAGGLE_S) room = STRAGGLE_S;
    for (int i = 0; i < p->late && room < p->o.start_s; i++) room *= 2;
    return p->now - w->hello > room;
}

static void look_at_world(tt_policy *p, world *w)
{
    double in_state = p->now - w->since;
    double yield_s = w->rank[0].phase == TT_PHASE_SAVE ? p->o.slow_s : p->o.yield_s;
    bool watched = (w->state != CLOSING || is_saving(p, w)) && w->state != KILLED;
    int r = watched ? hung_rank(p, w) : -1;
    tt_cause c;

    if (r >= 0) {
        fail_hung(p, w, r);
    } else if (w->state == ACTIVE && (r = stuck_rank(p, w)) >= 0) {
        c = cause_of(TT_CAUSE_STUCK, w, r);
        c.silent_s = p->now - w->rank[r].moved;
        fail_rank(p, w, r, c, !w->rank[r].waits);
    } else if (w->state == STARTING && is_late(p, w)) {
        p->late++;
        fail_start(p, w, -1);
        kill_world(p, w);
    } else if (w->state == STANDING && in_state > PROOF_S) {
        p->start_failures = 0;
    } else if ((w->state == YIELDING && in_state > yield_s) ||
               (w->state == CLOSING && in_state > p->o.stop_s) ||
               (is_saving(p, w) && p->now >= p->stop_by)) {
        kill_world(p, w);
    }
}

static void look(tt_policy *p)
{
    tt_cause c = no_cause(TT_CAUSE_BACK);
    tt_member m;

    p->look_at = p->now + LOOK_S;
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (p->world[i].state != NOWHERE) look_at_world(p, &p->world[i]);
    while (tt_roster_back(&p->roster, p->now, &m)) {
        c.host = m.host;
        c.slot = m.slot;
        tell(p, c);
    }
}

/* ---- what is wanted ---- */

static bool is_wanted(const tt_policy *p, const world *w)
{
    const tt_roster *t = &p->roster;
    bool same = w->members == t->members && w->workers == t->workers && w->renewal == p->renewal;

    for (int i = 0; i < w->members && same; i++)
        same = w->member[i].host == t->wanted[i].host && w->member[i].slot == t->wanted[i].slot;
    return same;
}

/* The rank of a member whose slot is no more; -1: none. */
static int lost_member(const tt_policy *p, const world *w)
{
    for (int i = 0; i < w->members; i++)
        if (!tt_roster_usable(&p->roster, w->member[i])) return i;
    return -1;
}

/* Not what is wanted, perhaps, but it could train. */
static bool is_fit(const tt_policy *p, const world *w)
{
    return lost_member(p, w) < 0 && w->workers >= p->o.least && w->workers <= p->o.most;
}

/* Have all who are about to join joined? Nobody waits for that longer than ten times as long. */
static bool is_settled(const tt_policy *p)
{
    return p->roster.workers == p->o.most || p->now - p->joined >= p->o.settle_s ||
           p->now - p->storm >= 10 * p->o.settle_s;
}

/* ---- decisions ---- */

/* Fewer slots than `least`: wait for more, unless that is hopeless. Where the number of workers is
 * fixed nobody else is expected, so only slots that are left out can come back. */
static void wait_for_slots(tt_policy *p)
{
    double until = p->waiting_since + p->o.wait_s;
    tt_cause c = p->first.kind ? p->first : no_cause(TT_CAUSE_BELOW);

    if (p->roster.members) {
        p->waiting = false;
        return;
    }
    if (!p->waiting) {
        p->waiting = true;
        p->waiting_told = false;
        p->waiting_since = p->now;
        until = p->now + p->o.wait_s;
    }
    if (!p->waiting_told && p->now - p->waiting_since >= p->o.settle_s) { /* not when it begins */
        p->waiting_told = true;
        tell(p, no_cause(TT_CAUSE_BELOW));
    }
    if (p->now >= until ||
        (p->o.least == p->o.most && tt_roster_count(&p->roster, FOREVER) >= p->o.least &&
         tt_roster_count(&p->roster, until) < p->o.least))
        finish(p, CODE_PEER, c);
}

static void choose(tt_policy *p)
{
    tt_roster_choose(&p->roster, p->o.least, p->o.most, p->o.spares);
    if (p->roster.members || p->suspect < 0) return;
    drop_suspects(p); /* what was set aside is needed */
    tt_roster_choose(&p->roster, p->o.least, p->o.most, p->o.spares);
}

/* Keeps (1), (2) and (3). */
static void go(tt_policy *p)
{
    world *w = standby_world(p), *a = active_world(p);

    if (PLANTED(PLANT_NO_FENCE) && a && a->state == KILLED) a = NULL;
    if (a || !w || !is_fit(p, w) || p->now < p->go_after) return;
    if (w->state != STANDING && !(PLANTED(PLANT_GO_UNREADY) && w->rank[0].ready)) return;
    w->generation = ++p->generation;
    p->went = true;
    set_state(p, w, ACTIVE);
    p->start_failures = 0;
    p->step = -1;
    for (int r = 0; r < w->members; r++) w->rank[r].moved = p->now;
    tt_roster_use(&p->roster, w->member, w->members);
    choose(p);
    if (!PLANTED(PLANT_NOT_PERSISTED)) act(p, TT_ACT_PERSIST, w->id, w->generation);
    act(p, TT_ACT_GO, w->id, w->generation);
}

static void start_world(tt_policy *p)
{
    const tt_roster *t = &p->roster;
    world *w = p->world;

    while (w < p->world + TT_WORLDS_MOST && w->state != NOWHERE) w++;
    if (w == p->world + TT_WORLDS_MOST) return; /* when another one is gone */
    *w = (world){
        .id = ++p->last_id, .members = t->members, .workers = t->workers, .renewal = p->renewal};
    w->member = zeroed(t->members, sizeof *w->member);
    memcpy(w->member, t->wanted, (size_t)t->members * sizeof *w->member);
    w->rank = zeroed(t->members, sizeof *w->rank);
    for (int r = 0; r < w->members; r++) w->rank[r].step = -1;
    set_state(p, w, STARTING);
    p->storm = p->now; /* if it still blows, the next is not made for each who comes */
    act(p, TT_ACT_START, w->id, 0);
}

static void keep_standby(tt_policy *p)
{
    world *w = standby_world(p), *a = active_world(p);
    bool trains = a && a->state == ACTIVE;

    /* If nothing trains, one that is fit is better than one that is wanted and not there yet. */
    if (w && !PLANTED(PLANT_UNFIT) &&
        (!is_fit(p, w) || (trains && !is_wanted(p, w) && p->roster.members && is_settled(p)))) {
        kill_world(p, w);
        w = NULL;
    }
    if (w || !p->roster.members || !is_settled(p) || p->now < p->start_after) return;
    if (a && a->state == CLOSING) return; /* none is needed, if all goes well */
    if (p->stopping && p->now >= p->stop_by) return;
    if (trains && is_wanted(p, a) && !p->o.standby) return;
    start_world(p);
}

/* Do all that have the state of `a` go? */
static bool moves_house(const world *a, const world *next)
{
    for (int i = 0; next && i < a->members; i++)
        for (int k = 0; k < next->members; k++)
            if (a->member[i].host == next->member[k].host) return PLANTED(PLANT_LEFT_BEHIND);
    return !PLANTED(PLANT_LEFT_BEHIND);
}

/* One at a time: the active world is asked to end when the next is ready to take over. */
static void resize(tt_policy *p)
{
    world *w = standby_world(p), *a = active_world(p);
    bool moves;
    int lost;

    if (!a || a->state != ACTIVE || is_wanted(p, a)) return;
    if (p->roster.members && !(w && w->state == STANDING && is_wanted(p, w))) return;
    lost = lost_member(p, a);
    /* A host that takes fewer than before is no host that leaves. */
    bool leaves = lost >= 0 && !tt_roster_slots(&p->roster, a->member[lost].host);
    tell(p, cause_of(leaves                     ? TT_CAUSE_LEAVE
                     : !p->roster.members       ? TT_CAUSE_BELOW
                     : a->renewal != p->renewal ? TT_CAUSE_RENEW
                                                : TT_CAUSE_RESIZE,
                     a, leaves ? lost : -1));
    moves = moves_house(a, p->roster.members ? w : NULL);
    set_state(p, a, YIELDING);
    act(p, moves ? TT_ACT_MOVE : TT_ACT_YIELD, a->id, a->generation);
}

/* What trains saves. If nothing does, because a world has failed or made room and the next has no
 * GO yet, that one takes up the state and saves it: its steps are in the vaults alone. */
static void save(tt_policy *p)
{
    world *a = active_world(p);

    if (!a || (a->state != ACTIVE && a->state != YIELDING)) return;
    act(p, TT_ACT_SAVE, a->id, a->generation);
    set_state(p, a, CLOSING);
}

/* Nobody is left to save, or there is no time. */
static void give_up_saving(tt_policy *p)
{
    bool hopeless = !p->roster.members || p->now >= p->stop_by || PLANTED(PLANT_STOP_BETWEEN);

    if (!active_world(p) && hopeless) finish(p, p->stop_code, no_cause(TT_CAUSE_STOP));
}

static void decide(tt_policy *p)
{
    if (p->roster.changed) choose(p);
    if (!p->ending && p->stopping)
        give_up_saving(p);
    else if (!p->ending)
        wait_for_slots(p);
    if (!p->ending) {
        go(p);
        if (p->stopping) save(p);
        keep_standby(p);
        if (!p->stopping) resize(p);
        return;
    }
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (p->world[i].state != NOWHERE && p->world[i].state != CLOSING)
            kill_world(p, &p->world[i]);
}

/* ---- the calls ---- */

tt_policy *tt_policy_open(const tt_policy_opts *o)
{
    tt_policy *p = zeroed(1, sizeof *p);

    p->o = *o;
    if (p->o.least < 1) p->o.least = 1;
    if (p->o.most < p->o.least) p->o.most = p->o.least;
    p->generation = PLANTED(PLANT_GENERATION_REUSED) ? 0 : o->generation;
    p->first = no_cause(TT_CAUSE_NONE);
    p->step = p->suspect = -1;
    p->joined = p->storm = -FOREVER;
    return p;
}

/* Causes first, as many as there is room for; the others come with the next step. What is to be
 * done never waits. Keeps (7). */
static int hand_out(tt_policy *p, tt_action *out, int room)
{
    int n = 0, told = p->tells < room - p->acts ? p->tells : room - p->acts;
    bool all_gone = true;

    for (; n < told; n++) out[n] = (tt_action){.kind = TT_ACT_TELL, .cause = p->tell[n]};
    p->tells -= told;
    if (p->tells) memmove(p->tell, p->tell + told, (size_t)p->tells * sizeof *p->tell);
    for (int i = 0; i < p->acts; i++) out[n++] = p->act[i];
    for (int i = 0; i < TT_WORLDS_MOST; i++) all_gone &= p->world[i].state == NOWHERE;
    if (PLANTED(PLANT_EXIT_EARLY)) all_gone = true;
    if (p->ending && all_gone && !p->tells && n < room) {
        out[n++] = (tt_action){.kind = TT_ACT_EXIT, .code = p->code, .cause = p->end};
        p->exited = true;
    }
    return n;
}

int tt_policy_step(tt_policy *p, const tt_event *e, double now, tt_action *out, int room)
{
    TT_ASSERT(room >= TT_WORLDS_MOST * 4);
    if (p->exited) return 0;
    if (p->begun && now > p->now) grant(p, now - p->now);
    if (!p->begun || now > p->now) p->now = now;
    p->begun = true;
    p->acts = 0;
    p->stirred = false;
    take(p, e);
    /* Of thousands of beats a second few change anything; the others wait for the next look. */
    if (e->kind != TT_EV_BEAT || p->stirred || p->now >= p->look_at) {
        look(p);
        decide(p);
    }
    return hand_out(p, out, room);
}

int tt_policy_members(const tt_policy *p, int id, const tt_member **out)
{
    const world *w = find_world((tt_policy *)p, id);

    *out = w ? w->member : NULL;
    return w ? w->members : 0;
}

tt_policy_view tt_policy_look(const tt_policy *p)
{
    const world *a = active_world((tt_policy *)p), *s = standby_world((tt_policy *)p);

    return (tt_policy_view){
        .active = a ? a->id : -1,
        .standby = s ? s->id : -1,
        .generation = p->generation,
        .workers = a ? a->workers : 0,
        .restarts = p->restarts,
        .in_a_row = p->in_a_row,
        .least = p->o.least,
        .most = p->o.most,
        .slots = tt_roster_count(&p->roster, -1),
        .standby_ready = s && s->state == STANDING,
        .waiting = p->waiting,
        .ending = p->ending || p->stopping,
        .current = a && a->state == ACTIVE && is_wanted(p, a),
        .step = p->step,
    };
}

void tt_policy_close(tt_policy *p)
{
    if (!p) return;
    for (int i = 0; i < TT_WORLDS_MOST; i++) {
        free(p->world[i].member);
        free(p->world[i].rank);
    }
    tt_roster_free(&p->roster);
    free(p->tell);
    free(p);
}
