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
#include "mind.h"

#include <stdlib.h>
#include <string.h>

static const double LOOK_S = 0.01, FOREVER = 1e300;
/* The others come after the first rank has come: in so many times as long as they take usually, but
 * not less than so long. */
static const double STRAGGLE = 4, STRAGGLE_S = 5;

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

void mind_act(tt_policy *p, tt_action_kind kind, int id, int generation)
{
    TT_ASSERT(p->acts < TT_WORLDS_MOST * 4);
    p->act[p->acts++] = (tt_action){.kind = kind, .world = id, .generation = generation};
}

void mind_tell(tt_policy *p, tt_cause c)
{
    if (p->tells == p->tell_room) {
        p->tell_room = p->tell_room ? p->tell_room * 2 : 16;
        p->tell = grown(p->tell, (size_t)p->tell_room * sizeof *p->tell);
    }
    p->tell[p->tells++] = c;
}

tt_cause mind_no_cause(tt_cause_kind kind)
{
    return (tt_cause){kind, -1, -1, -1, -1, -1, -1, TT_PHASE_START, -1, 0};
}

tt_cause mind_cause_of(tt_cause_kind kind, const world *w, int r)
{
    tt_cause c = mind_no_cause(kind);

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

world *mind_world(tt_policy *p, int id)
{
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (p->world[i].state != NOWHERE && p->world[i].id == id) return &p->world[i];
    return NULL;
}

world *mind_active(tt_policy *p)
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

void mind_set_state(tt_policy *p, world *w, state s)
{
    w->state = s;
    w->since = p->now;
    p->stirred = true;
}

void mind_kill(tt_policy *p, world *w)
{
    if (w->state == KILLED) return;
    mind_set_state(p, w, KILLED);
    mind_act(p, TT_ACT_KILL, w->id, w->generation);
}

void mind_finish(tt_policy *p, int code, tt_cause c)
{
    if (p->ending) return;
    p->ending = true;
    p->code = code;
    p->end = c;
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
    bool watched = (w->state != CLOSING || mind_saves(p, w)) && w->state != KILLED;
    int r = watched ? hung_rank(p, w) : -1;
    tt_cause c;

    if (r >= 0) {
        mind_fail_hung(p, w, r);
    } else if (w->state == ACTIVE && (r = stuck_rank(p, w)) >= 0) {
        c = mind_cause_of(TT_CAUSE_STUCK, w, r);
        c.silent_s = p->now - w->rank[r].moved;
        mind_fail_rank(p, w, r, c, !w->rank[r].waits);
    } else if (w->state == STARTING && is_late(p, w)) {
        p->late++;
        mind_fail_start(p, w, -1);
        mind_kill(p, w);
    } else if (w->state == STANDING && in_state > MIND_PROOF_S) {
        p->start_failures = 0;
    } else if ((w->state == YIELDING && in_state > yield_s) ||
               (w->state == CLOSING && in_state > p->o.stop_s) ||
               (mind_saves(p, w) && p->now >= p->stop_by)) {
        mind_kill(p, w);
    }
}

static void look(tt_policy *p)
{
    tt_cause c = mind_no_cause(TT_CAUSE_BACK);
    tt_member m;

    p->look_at = p->now + LOOK_S;
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (p->world[i].state != NOWHERE) look_at_world(p, &p->world[i]);
    while (tt_roster_back(&p->roster, p->now, &m)) {
        c.host = m.host;
        c.slot = m.slot;
        mind_tell(p, c);
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
    tt_cause c = p->first.kind ? p->first : mind_no_cause(TT_CAUSE_BELOW);

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
        mind_tell(p, mind_no_cause(TT_CAUSE_BELOW));
    }
    if (p->now >= until ||
        (p->o.least == p->o.most && tt_roster_count(&p->roster, FOREVER) >= p->o.least &&
         tt_roster_count(&p->roster, until) < p->o.least))
        mind_finish(p, MIND_PEER, c);
}

static void choose(tt_policy *p)
{
    tt_roster_choose(&p->roster, p->o.least, p->o.most, p->o.spares);
    if (p->roster.members || p->suspect < 0) return;
    mind_drop_suspects(p); /* what was set aside is needed */
    tt_roster_choose(&p->roster, p->o.least, p->o.most, p->o.spares);
}

/* Keeps (1), (2) and (3). */
static void go(tt_policy *p)
{
    world *w = standby_world(p), *a = mind_active(p);

    if (PLANTED(PLANT_NO_FENCE) && a && a->state == KILLED) a = NULL;
    if (a || !w || !is_fit(p, w) || p->now < p->go_after) return;
    if (w->state != STANDING && !(PLANTED(PLANT_GO_UNREADY) && w->rank[0].ready)) return;
    w->generation = ++p->generation;
    p->went = true;
    mind_set_state(p, w, ACTIVE);
    p->start_failures = 0;
    p->step = -1;
    for (int r = 0; r < w->members; r++) w->rank[r].moved = p->now;
    tt_roster_use(&p->roster, w->member, w->members);
    choose(p);
    if (!PLANTED(PLANT_NOT_PERSISTED)) mind_act(p, TT_ACT_PERSIST, w->id, w->generation);
    mind_act(p, TT_ACT_GO, w->id, w->generation);
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
    mind_set_state(p, w, STARTING);
    p->storm = p->now; /* if it still blows, the next is not made for each who comes */
    mind_act(p, TT_ACT_START, w->id, 0);
}

static void keep_standby(tt_policy *p)
{
    world *w = standby_world(p), *a = mind_active(p);
    bool trains = a && a->state == ACTIVE;
    bool late = p->stopping && p->now >= p->stop_by; /* there is nothing left for it to save */

    /* If nothing trains, one that is fit is better than one that is wanted and not there yet. */
    if (w && !PLANTED(PLANT_UNFIT) &&
        (late || !is_fit(p, w) ||
         (trains && !is_wanted(p, w) && p->roster.members && is_settled(p)))) {
        mind_kill(p, w);
        w = NULL;
    }
    if (w || late || !p->roster.members || !is_settled(p) || p->now < p->start_after) return;
    if (a && a->state == CLOSING) return; /* none is needed, if all goes well */
    if (trains && is_wanted(p, a) && !p->o.standby) return;
    start_world(p);
}

/* Would it cost the state of `a`, or a part of it? Whoever stays has all of it; where it is in
 * parts, what one host has another has, too, but two that go may be those that share a part. */
static bool moves_house(const world *a, const world *next)
{
    bool stays = false;
    int gone = -1, more = 0;

    for (int i = 0; i < a->members; i++) {
        int host = a->member[i].host;
        bool there = next && mind_is_on(next, host);
        stays |= there;
        if (there || host == gone) continue;
        more += gone >= 0;
        gone = host;
    }
    return (!stays || more) && !PLANTED(PLANT_LEFT_BEHIND);
}

/* One at a time: the active world is asked to end when the next is ready to take over. */
static void resize(tt_policy *p)
{
    world *w = standby_world(p), *a = mind_active(p);
    bool moves;
    int lost;

    if (!a || a->state != ACTIVE || is_wanted(p, a)) return;
    if (p->roster.members && !(w && w->state == STANDING && is_wanted(p, w))) return;
    lost = lost_member(p, a);
    /* A host that takes fewer than before is no host that leaves. */
    bool leaves = lost >= 0 && !tt_roster_slots(&p->roster, a->member[lost].host);
    mind_tell(p, mind_cause_of(leaves                     ? TT_CAUSE_LEAVE
                               : !p->roster.members       ? TT_CAUSE_BELOW
                               : a->renewal != p->renewal ? TT_CAUSE_RENEW
                                                          : TT_CAUSE_RESIZE,
                               a, leaves ? lost : -1));
    moves = moves_house(a, p->roster.members ? w : NULL);
    mind_set_state(p, a, YIELDING);
    mind_act(p, moves ? TT_ACT_MOVE : TT_ACT_YIELD, a->id, a->generation);
}

/* What trains saves. If nothing does, because a world has failed or made room and the next has no
 * GO yet, that one takes up the state and saves it: its steps are in the vaults alone. */
static void save(tt_policy *p)
{
    world *a = mind_active(p);

    if (!a || (a->state != ACTIVE && a->state != YIELDING)) return;
    mind_act(p, TT_ACT_SAVE, a->id, a->generation);
    mind_set_state(p, a, CLOSING);
}

/* Nobody is left to save, or there is no time. */
static void give_up_saving(tt_policy *p)
{
    bool hopeless = !p->roster.members || p->now >= p->stop_by || PLANTED(PLANT_STOP_BETWEEN);

    if (!mind_active(p) && hopeless) mind_finish(p, p->stop_code, mind_no_cause(TT_CAUSE_STOP));
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
            mind_kill(p, &p->world[i]);
}

/* ---- the calls ---- */

tt_policy *tt_policy_open(const tt_policy_opts *o)
{
    tt_policy *p = zeroed(1, sizeof *p);

    p->o = *o;
    if (p->o.least < 1) p->o.least = 1;
    if (p->o.most < p->o.least) p->o.most = p->o.least;
    p->generation = PLANTED(PLANT_GENERATION_REUSED) ? 0 : o->generation;
    p->first = mind_no_cause(TT_CAUSE_NONE);
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
    mind_take(p, e);
    /* Of thousands of beats a second few change anything; the others wait for the next look. */
    if (e->kind != TT_EV_BEAT || p->stirred || p->now >= p->look_at) {
        look(p);
        decide(p);
    }
    return hand_out(p, out, room);
}

int tt_policy_members(const tt_policy *p, int id, const tt_member **out)
{
    const world *w = mind_world((tt_policy *)p, id);

    *out = w ? w->member : NULL;
    return w ? w->members : 0;
}

tt_policy_view tt_policy_look(const tt_policy *p)
{
    const world *a = mind_active((tt_policy *)p), *s = standby_world((tt_policy *)p);

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
