#include "roster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef TT_PLANT /* tests plant mistakes here, and see to it that they are found: tests/sim */
#define PLANTED(bug) false
#endif

enum { DOUBLINGS_MOST = 16 };

static void *enlarged(void *p, size_t bytes)
{
    if (!(p = realloc(p, bytes ? bytes : 1))) tt_mem_out(bytes);
    return p;
}

static tt_slots *slots_of(const tt_roster *t, int host)
{
    for (int i = 0; i < t->hosts; i++)
        if (t->host[i].host == host) return &t->host[i];
    return NULL;
}

bool tt_roster_host(tt_roster *t, int host, int slots)
{
    tt_slots *h = slots_of(t, host);
    bool more;

    if (slots < 0) slots = 0;
    if (!h) {
        t->host = enlarged(t->host, (size_t)(t->hosts + 1) * sizeof *t->host);
        h = &t->host[t->hosts++];
        *h = (tt_slots){.host = host};
    }
    if (slots > h->room) {
        h->slot = enlarged(h->slot, (size_t)slots * sizeof *h->slot);
        memset(h->slot + h->room, 0, (size_t)(slots - h->room) * sizeof *h->slot);
        h->room = slots;
    }
    more = slots > h->count;
    h->count = slots;
    t->changed = true;
    return more;
}

tt_slot *tt_roster_slot(const tt_roster *t, tt_member m)
{
    return &slots_of(t, m.host)->slot[m.slot];
}

int tt_roster_slots(const tt_roster *t, int host)
{
    const tt_slots *h = slots_of(t, host);

    return h ? h->count : 0;
}

bool tt_roster_usable(const tt_roster *t, tt_member m)
{
    const tt_slots *h = slots_of(t, m.host);

    return m.slot < h->count && !h->slot[m.slot].out && !h->aside;
}

int tt_roster_count(const tt_roster *t, double out_until)
{
    int n = 0;

    for (int i = 0; i < t->hosts; i++)
        for (int k = 0; k < t->host[i].count; k++) {
            const tt_slot *s = &t->host[i].slot[k];
            n += !t->host[i].aside && (!s->out || s->out_until <= out_until);
        }
    return n;
}

/* ---- leaving out ---- */

static void leave_out(tt_roster *t, tt_slot *s, double penance_s, double now)
{
    int doublings = s->penances < DOUBLINGS_MOST ? s->penances : DOUBLINGS_MOST;

    s->failures = 0;
    s->out = true;
    s->out_until = now + penance_s * (double)(1 << doublings);
    s->penances++;
    t->outs++;
    t->changed = true;
}

bool tt_roster_strike(tt_roster *t, tt_member m, int strikes, double penance_s, double now)
{
    tt_slot *s = tt_roster_slot(t, m);

    if (s->out || ++s->failures < strikes || PLANTED(PLANT_NO_STRIKES)) return false;
    leave_out(t, s, penance_s, now);
    return true;
}

void tt_roster_bar(tt_roster *t, int host, double penance_s, double now)
{
    tt_slots *h = slots_of(t, host);

    for (int k = 0; k < h->count; k++)
        if (!h->slot[k].out) leave_out(t, &h->slot[k], penance_s, now);
}

void tt_roster_heard(tt_roster *t, int host)
{
    slots_of(t, host)->heard = true;
}

static bool is_used(const tt_slots *h)
{
    for (int k = 0; k < h->count; k++)
        if (h->slot[k].used) return true;
    return false;
}

/* Beside those that were set aside before, or, where that is too much, in their place. */
static bool do_without(tt_roster *t, tt_slots *h, int least)
{
    h->tried = h->aside = t->changed = true;
    if (tt_roster_count(t, -1) >= least) return true;
    for (int i = 0; i < t->hosts; i++) t->host[i].aside = &t->host[i] == h;
    if (tt_roster_count(t, -1) >= least) return true;
    h->aside = false;
    return false;
}

int tt_roster_set_aside(tt_roster *t, int least, bool unused, bool from_first)
{
    for (int heard = 0; heard < 2; heard++)
        for (int i = 0; i < t->hosts; i++) {
            tt_slots *h = &t->host[from_first ? i : t->hosts - 1 - i];
            if (h->tried || h->heard != heard || !h->count || (unused && is_used(h))) continue;
            if (do_without(t, h, least)) return h->host;
        }
    return -1;
}

void tt_roster_take_back(tt_roster *t)
{
    for (int i = 0; i < t->hosts; i++) {
        t->changed |= t->host[i].aside;
        t->host[i].aside = t->host[i].tried = false;
    }
}

bool tt_roster_catch(tt_roster *t, tt_member m, int catches)
{
    tt_slot *s = tt_roster_slot(t, m);

    if (++s->caught != catches) return false;
    t->outs += !s->out;
    s->out = t->changed = true;
    s->out_until = INFINITY;
    return true;
}

bool tt_roster_back(tt_roster *t, double now, tt_member *out)
{
    for (int i = 0; i < t->hosts && t->outs; i++)
        for (int k = 0; k < t->host[i].room; k++) {
            tt_slot *s = &t->host[i].slot[k];
            if (!s->out || now < s->out_until || PLANTED(PLANT_NEVER_BACK)) continue;
            s->out = false;
            t->outs--;
            t->changed = true;
            *out = (tt_member){t->host[i].host, k, false};
            return true;
        }
    return false;
}

/* ---- choosing ---- */

void tt_roster_use(tt_roster *t, const tt_member *m, int count)
{
    for (int i = 0; i < t->hosts; i++)
        for (int k = 0; k < t->host[i].room; k++) t->host[i].slot[k].used = false;
    for (int r = 0; r < count; r++) tt_roster_slot(t, m[r])->used = true;
    t->changed = true;
}

/* Picks up to `need` slots of those that are (or are not) in use; returns how many are missing. */
static int pick(tt_roster *t, int need, bool used)
{
    for (int i = 0; i < t->hosts; i++)
        for (int k = 0; k < t->host[i].count; k++) {
            tt_slot *s = &t->host[i].slot[k];
            if (s->used != used) continue;
            s->picked = need > 0 && !s->out && !t->host[i].aside;
            need -= s->picked;
        }
    return need;
}

void tt_roster_choose(tt_roster *t, int least, int most, int spares)
{
    int usable = tt_roster_count(t, -1), workers = usable - spares, n = 0;

    t->changed = false;
    t->members = t->workers = 0;
    if (usable < least) return;
    if (workers > most) workers = most;
    if (workers < least) workers = least;
    t->workers = workers;
    t->members = usable < workers + spares ? usable : workers + spares;
    t->wanted = enlarged(t->wanted, (size_t)t->members * sizeof *t->wanted);
    pick(t, pick(t, t->members, true), false);
    for (int i = 0; i < t->hosts; i++)
        for (int k = 0; k < t->host[i].count; k++)
            if (t->host[i].slot[k].picked) {
                t->wanted[n] = (tt_member){t->host[i].host, k, n >= workers};
                n++;
            }
    TT_ASSERT(n == t->members);
}

void tt_roster_free(tt_roster *t)
{
    for (int i = 0; i < t->hosts; i++) free(t->host[i].slot);
    free(t->host);
    free(t->wanted);
    *t = (tt_roster){0};
}
