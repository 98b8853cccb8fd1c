/* happen: what happens, as the policy takes it in: who has come, died, or does nothing, and who is
 * to blame for it. What is then to be done policy.c decides. */
#include "mind.h"

#include <stdlib.h>
#include <string.h>

static const double BACKOFF_S[] = {0, 0.1, 0.5, 1, 2, 5};
enum { BACKOFFS = sizeof BACKOFF_S / sizeof *BACKOFF_S };
enum { PROOF_STEPS = 10 };        /* a world has proved itself after so many, or MIND_PROOF_S */
static const double NEEDED_S = 2; /* how long a slot is left out that all wait for */

static bool has_member(const world *w, tt_member m)
{
    for (int i = 0; i < w->members; i++)
        if (w->member[i].host == m.host && w->member[i].slot == m.slot) return true;
    return false;
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
    const world *a = mind_active(p);
    tt_cause c = mind_cause_of(TT_CAUSE_OUT, w, r);
    double penance_s = p->o.penance_s;

    /* A standby may fail on a slot where the active world does well: that slot is kept. One that
     * cannot be done without is soon tried again: all wait for it. */
    if (a && a != w && a->state == ACTIVE && has_member(a, w->member[r])) return;
    if (tt_roster_count(&p->roster, -1) <= p->o.least && penance_s > NEEDED_S) penance_s = NEEDED_S;
    if (tt_roster_strike(&p->roster, w->member[r], p->o.strikes, penance_s, p->now))
        mind_tell(p, c);
}

/* Something went wrong in a world, which ends by it; keeps (6). Slots are struck by the caller. */
static void fail(tt_policy *p, world *w, tt_cause c)
{
    bool interrupts = w->state == ACTIVE || !mind_active(p);

    mind_tell(p, c);
    if (p->first.kind == TT_CAUSE_NONE && interrupts) p->first = c;
    if (w->state == ACTIVE)
        p->go_after = p->now + backoff(&p->go_failures);
    else
        p->start_after = p->now + backoff(&p->start_failures);
    p->restarts += interrupts;
    p->in_a_row += interrupts && p->suspect < 0; /* tries to find who is at fault come to an end */
    if (p->o.max_restarts < 0 || p->in_a_row <= p->o.max_restarts) return;
    if (p->stopping)
        mind_finish(p, p->stop_code, mind_no_cause(TT_CAUSE_STOP));
    else
        mind_finish(p, MIND_PEER, p->first);
}

/* May this world fail now? One that is ending anyway has its cause. */
static bool can_fail(const world *w)
{
    return w->state == STARTING || w->state == STANDING || w->state == ACTIVE;
}

/* Is it about to save? Another could do that in its place. */
bool mind_saves(const tt_policy *p, const world *w)
{
    return w->state == CLOSING && p->stopping && !p->ending;
}

void mind_fail_rank(tt_policy *p, world *w, int r, tt_cause c, bool blamed)
{
    /* It cannot end well any more: do not wait. */
    if (w->state == YIELDING || mind_saves(p, w)) mind_kill(p, w);
    if (!can_fail(w)) return;
    fail(p, w, c);
    mind_kill(p, w);
    if (blamed) strike(p, w, r);
}

bool mind_is_on(const world *w, int host)
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
    const world *a = mind_active(p);
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
    tt_cause c = mind_no_cause(TT_CAUSE_OUT);

    c.host = p->suspect;
    p->mute = p->turns = 0;
    if (p->suspect < 0) return;
    p->suspect = -1;
    tt_roster_take_back(&p->roster);
    tt_roster_bar(&p->roster, c.host, p->o.penance_s, p->now);
    mind_tell(p, c);
}

/* Nobody of a host was heard in all the time that a start has, and others were: once is enough, if
 * it can be done without. Some launchers wait for such a host for ever. */
static bool bar_silent(tt_policy *p, const world *w, int host)
{
    const world *a = mind_active(p);
    tt_cause c = mind_no_cause(TT_CAUSE_OUT);
    int slots = 0;

    for (int r = 0; r < w->members; r++)
        if (w->member[r].host == host && w->rank[r].hello) return false;
    for (int i = 0; i < tt_roster_slots(&p->roster, host); i++)
        slots += tt_roster_usable(&p->roster, (tt_member){host, i, false});
    if (!slots) return true; /* it is left out already */
    if ((a && mind_is_on(a, host)) || tt_roster_count(&p->roster, -1) - slots < p->o.least)
        return false;
    tt_roster_bar(&p->roster, host, p->o.penance_s, p->now);
    c.host = host;
    mind_tell(p, c);
    return true;
}

/* To blame for a world that did not come up: who never said hello; if all did, who is not ready. If
 * none did, a host on which nothing can be started. code -1: it had all the time there is. */
void mind_fail_start(tt_policy *p, world *w, int code)
{
    int hellos = 0, first = -1;
    tt_cause c;

    for (int r = 0; r < w->members; r++) hellos += w->rank[r].hello;
    for (int r = w->members; r-- > 0 && hellos;)
        if (hellos < w->members ? !w->rank[r].hello : !w->rank[r].ready) first = r;
    c = mind_cause_of(TT_CAUSE_START, w, first);
    c.code = code;
    fail(p, w, c);
    if (!hellos) find_mute_host(p);
    for (int r = 0; r < w->members && hellos; r++) {
        if (hellos < w->members ? w->rank[r].hello : w->rank[r].ready) continue;
        if (code != -1 || !bar_silent(p, w, w->member[r].host)) strike(p, w, r);
    }
}

/* ---- events ---- */

/* Other hosts than before: who was at fault may be gone by itself. */
void mind_drop_suspects(tt_policy *p)
{
    p->mute = p->turns = 0;
    p->suspect = -1;
    tt_roster_take_back(&p->roster);
}

static void take_host(tt_policy *p, int host, int slots)
{
    mind_drop_suspects(p);
    if (!tt_roster_host(&p->roster, host, slots)) return;
    if (p->now - p->joined >= p->o.settle_s) p->storm = p->now;
    p->joined = p->now;
}

/* What was on it is lost, and so are the worlds that had a part of it there, whatever the rest of
 * them still does: nobody waits until that is missed. */
static void take_lost(tt_policy *p, int host)
{
    mind_drop_suspects(p);
    tt_roster_host(&p->roster, host, 0);
    for (int i = 0; i < TT_WORLDS_MOST; i++) {
        world *w = &p->world[i];
        int r = 0;
        while (r < w->members && w->member[r].host != host) r++;
        if (w->state != NOWHERE && r < w->members && !PLANTED(PLANT_LOST_KEPT))
            mind_fail_rank(p, w, r, mind_cause_of(TT_CAUSE_HOST, w, r), false);
    }
}

/* It has shown that it can train: what failed before was not the start of a series. */
static void prove(tt_policy *p, world *w)
{
    w->proved = true;
    p->go_failures = p->in_a_row = 0;
    p->first = mind_no_cause(TT_CAUSE_NONE);
    for (int r = 0; r < w->members; r++) tt_roster_slot(&p->roster, w->member[r])->failures = 0;
}

/* Worlds of which none lives long enough to prove itself may still get on, all together: a run ends
 * by failures only where it does not. A step from each is no more than a beginning. */
static void note_progress(tt_policy *p, int64_t step)
{
    if (p->in_a_row && step - p->row_step >= PROOF_STEPS + p->in_a_row) p->in_a_row = 0;
    if (!p->in_a_row || step < p->row_step) p->row_step = step;
}

static void note_step(tt_policy *p, world *w, const rank *r)
{
    if (!w->stepped || r->step < w->first_step) {
        w->stepped = true;
        w->first_step = r->step;
        w->first_at = p->now;
    }
    if (!w->proved && (r->step - w->first_step >= PROOF_STEPS ||
                       (r->step > w->first_step && p->now - w->first_at >= MIND_PROOF_S)))
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
        note_progress(p, e->step);
        if (w->state != KILLED) note_step(p, w, r); /* else its failure is counted already */
    }
    if (w->state != STARTING) return;
    for (int i = 0; i < w->members; i++) ready += w->rank[i].ready;
    if (ready < w->members) return;
    all = p->now - w->hello;
    p->straggle_s = p->straggle_s > 0 ? 0.8 * p->straggle_s + 0.2 * all : all;
    p->late = 0;
    mind_set_state(p, w, STANDING);
    if (p->suspect >= 0 && mind_is_on(w, p->suspect)) return; /* from before it was set aside */
    clear_suspects(p);
}

static void take_dead(tt_policy *p, world *w, const tt_event *e)
{
    rank *r = &w->rank[e->rank];
    tt_cause c = mind_cause_of(TT_CAUSE_DEAD, w, e->rank);
    bool well = e->code == 0 && w->generation && (r->phase == TT_PHASE_END || w->state != ACTIVE);

    if (r->dead) return;
    r->dead = true;
    c.code = e->code;
    if (!well) mind_fail_rank(p, w, e->rank, c, true);
}

void mind_fail_hung(tt_policy *p, world *w, int r)
{
    tt_cause c = mind_cause_of(TT_CAUSE_HUNG, w, r);

    c.silent_s = p->now - w->rank[r].heard;
    mind_fail_rank(p, w, r, c, true);
}

static void take_still(tt_policy *p, world *w, int i)
{
    const rank *r = &w->rank[i];

    if (r->hello && !r->dead && r->phase != TT_PHASE_END && p->now - r->heard > p->o.beat_s / 2)
        mind_fail_hung(p, w, i);
}

static void take_gone(tt_policy *p, world *w, const tt_event *e)
{
    tt_cause c = mind_cause_of(TT_CAUSE_DEAD, w, -1);

    c.code = e->code;
    if (w->state == ACTIVE)
        fail(p, w, c);
    else if (can_fail(w))
        mind_fail_start(p, w, e->code);
    free(w->member);
    free(w->rank);
    *w = (world){0};
}

static void take_trouble(tt_policy *p, world *w, const tt_event *e)
{
    tt_cause c = mind_cause_of(TT_CAUSE_TROUBLE, w, e->rank);
    const world *a = mind_active(p);

    c.code = e->code;
    /* What is fatal for a standby alone (a host with another build) is no reason to end. */
    if (!e->fatal || (a && a != w)) {
        mind_fail_rank(p, w, e->rank, c, e->code != MIND_PEER);
    } else if (w->state != KILLED && w->state != CLOSING) {
        if (can_fail(w)) mind_tell(p, c);
        mind_finish(p, e->code, c);
        mind_set_state(p, w, CLOSING);
    }
}

static void take_corrupt(tt_policy *p, world *w, int r, bool ends)
{
    tt_cause c = mind_cause_of(TT_CAUSE_CORRUPT, w, r), out = mind_cause_of(TT_CAUSE_OUT, w, r);
    bool enough;

    if (ends && w->rank[r].caught) return;
    w->rank[r].caught |= ends;
    enough = tt_roster_catch(&p->roster, w->member[r], p->o.catches);
    if (ends || enough)
        mind_fail_rank(p, w, r, c, false);
    else
        mind_tell(p, c);
    if (!enough) return;
    out.code = 0; /* it is known why in particular */
    mind_tell(p, out);
}

static void take_result(tt_policy *p, world *w, int code)
{
    bool stopping = p->ending && p->end.kind == TT_CAUSE_STOP;

    if (!w->generation || w->state == KILLED || (p->ending && !stopping)) return;
    p->ending = false; /* it knows better what it has ended with */
    mind_finish(p, code, mind_no_cause(TT_CAUSE_NONE));
    if (w->state != CLOSING) mind_set_state(p, w, CLOSING);
}

/* The rest is decided later: who is to save may have to come up first. */
static void take_stop(tt_policy *p, int code, bool save)
{
    if (!p->ending && !p->stopping) {
        mind_tell(p, mind_no_cause(TT_CAUSE_STOP));
        p->stopping = true;
        p->stop_code = code;
        p->stop_by = p->now + p->o.stop_s;
    }
    if (save && p->went) return;
    mind_finish(p, p->stop_code, mind_no_cause(TT_CAUSE_STOP));
    for (int i = 0; i < TT_WORLDS_MOST && !save; i++)
        if (p->world[i].state != NOWHERE) mind_kill(p, &p->world[i]);
}

void mind_take(tt_policy *p, const tt_event *e)
{
    world *w = mind_world(p, e->world);
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
