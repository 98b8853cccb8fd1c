/* places: the hosts of a supervisor, by the policy's numbers: those it was started with, and those
 * that come and go. */
#define _GNU_SOURCE
#include "boss.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *boss_host(const tt_supervisor *s, int host)
{
    return host >= 0 && host < s->places ? s->place[host].name : s->host;
}

static int place_of(tt_supervisor *s, const char *name)
{
    int at = 0;

    while (at < s->places && strcmp(s->place[at].name, name)) at++;
    if (at < s->places) return at;
    s->place = realloc(s->place, (size_t)(at + 1) * sizeof *s->place);
    if (!s->place) tt_mem_out(sizeof *s->place);
    s->place[s->places++] = (place){.here = !strcmp(name, s->host) || tt_host_is_here(name)};
    snprintf(s->place[at].name, sizeof s->place[at].name, "%s", name);
    return at;
}

static void set_slots(tt_supervisor *s, int at, int slots)
{
    s->place[at].slots = slots;
    boss_take(s, (tt_event){.kind = TT_EV_HOST, .host = at, .slots = slots});
}

static void tell_host(tt_supervisor *s, const char *what, const char *name, int slots)
{
    tt_str text = {0};

    tt_str_add(&text, "host %s %s", name, what);
    if (slots) tt_str_add(&text, " with %d slot%s", slots, slots == 1 ? "" : "s");
    boss_news(s, (tt_news){.kind = TT_NEWS_HOST,
                           .text = text.data,
                           .line = json_pack("{s:s, s:o, s:s, s:i}", "event", "host", "host",
                                             tt_json_text(name), "what", what, "slots", slots)});
}

static void let_leave(tt_supervisor *s, int at)
{
    if (s->place[at].leaving) return;
    s->place[at].leaving = s->place[at].joined;
    tell_host(s, "wants to leave", s->place[at].name, 0);
    set_slots(s, at, 0);
}

void boss_hear_hosts(tt_supervisor *s)
{
    tt_hub_change c;

    while (tt_hub_next_change(s->o.hub, &c)) {
        int at = place_of(s, c.host);
        place *p = &s->place[at];
        if (c.kind == TT_HOST_CAME) {
            snprintf(p->reach, sizeof p->reach, "%s", c.reach);
            p->joined = true;
            p->here = p->leaving = false;
            tell_host(s, "joined", c.host, c.slots);
            set_slots(s, at, c.slots);
        } else if (c.kind == TT_HOST_LEAVES) {
            let_leave(s, at);
        } else {
            p->leaving = false;
            tt_supervisor_lost(s, c.host);
        }
    }
}

/* Hosts that wanted to leave go when no world has a part of it there any more. Until the next one
 * has made a step, what they have of the state may be the only copy; if none is to come for now,
 * they keep it. */
void boss_release_hosts(tt_supervisor *s)
{
    tt_policy_view v = tt_policy_look(s->policy);
    bool steps = v.active >= 0 && v.step >= 0;

    for (int at = 0; at < s->places; at++) {
        const tt_member *m;
        bool used = false;
        if (!s->place[at].leaving) continue;
        for (int i = 0; i < TT_WORLDS_MOST; i++) {
            int n = s->world[i].id ? tt_policy_members(s->policy, s->world[i].id, &m) : 0;
            for (int r = 0; r < n; r++) used |= m[r].host == at;
        }
        if (used || (!steps && !v.waiting)) continue;
        s->place[at].leaving = false;
        tt_hub_bye(s->o.hub, s->place[at].name, steps);
    }
}

/* ---- calls ---- */

void tt_supervisor_host(tt_supervisor *s, const char *name, int slots)
{
    set_slots(s, place_of(s, name ? name : s->host), slots);
}

int tt_supervisor_slots_here(const tt_supervisor *s)
{
    int n = 0;

    for (int at = 0; at < s->places; at++)
        if (!strcmp(s->place[at].name, s->host)) n = s->place[at].slots;
    return n;
}

tt_err tt_supervisor_leave(tt_supervisor *s, const char *name)
{
    tt_str there = {0};
    tt_err err;
    int n = 0;

    for (int at = 0; at < s->places; at++) {
        if (!s->place[at].slots) continue;
        if (!strcmp(s->place[at].name, name)) {
            let_leave(s, at);
            tt_str_free(&there);
            return TT_OK;
        }
        tt_str_add(&there, "%s%s", n++ ? ", " : "", s->place[at].name);
    }
    err = tt_fail(TT_EINVAL, "no host called %.255s takes part: there %s %s", name,
                  n == 1 ? "is" : "are", n ? there.data : "none");
    tt_str_free(&there);
    return err;
}

void tt_supervisor_lost(tt_supervisor *s, const char *name)
{
    int at = place_of(s, name);

    s->place[at].slots = 0;
    tell_host(s, "is gone", name, 0);
    boss_take(s, (tt_event){.kind = TT_EV_LOST, .host = at});
}
