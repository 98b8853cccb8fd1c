/* policy_help: a small executor that does what the policy asks for, and remembers it in words. */
#ifndef POLICY_HELP_H
#define POLICY_HELP_H

#include "test.h"

#include "cluster/policy.h"

enum { FAKES = 64, RANKS = 128 };

typedef struct fake { /* a world, as the executor has it */
    int id, members, generation;
    bool alive;
    double started, go_at, gone_at; /* gone_at: when GONE is due; 0: not */
    bool broken;
    bool saves; /* it tells its result before        */
    tt_phase phase;
    int64_t step;
    double step_s;    /* of a step; 0: stands still        */
    bool mute[RANKS]; /* no beats                          */
    bool waits[RANKS];
    bool not_ready[RANKS];
} fake;

static struct {
    tt_policy *p;
    double now;
    fake fake[FAKES];
    int fakes;
    char log[16384]; /* what was asked for, in words */
    tt_cause told[256];
    int tolds;
    int starts;
    double last_go;
    tt_cause end;
    unsigned broken; /* hosts on which nothing can be started, and so no world with them */
    bool stays;      /* worlds that are killed are not gone until the test says so         */
    bool deaf;       /* YIELD and SAVE are not heard                                        */
    int64_t from;    /* the step that worlds go on from                                     */
    double step_s;
} x;

static const char *const CAUSE[] = {"none",  "dead", "hung",  "stuck",  "trouble",
                                    "start", "host", "leave", "resize", "below",
                                    "out",   "back", "stop",  "renew",  "corrupt"};

__attribute__((format(printf, 1, 2))) static inline void note(const char *fmt, ...)
{
    size_t n = strlen(x.log);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(x.log + n, sizeof x.log - n, fmt, ap);
    va_end(ap);
}

static inline fake *world_of(int id)
{
    for (int i = 0; i < x.fakes; i++)
        if (x.fake[i].id == id) return &x.fake[i];
    FAIL("there is no world %d", id);
}

static inline void carry_out(const tt_action *a)
{
    const tt_member *m;
    fake *w;

    switch (a->kind) {
    case TT_ACT_START:
        EXPECT(x.fakes < FAKES);
        w = &x.fake[x.fakes++];
        *w = (fake){.id = a->world, .alive = true, .started = x.now, .step_s = x.step_s};
        w->members = tt_policy_members(x.p, a->world, &m);
        EXPECT(w->members > 0 && w->members <= RANKS);
        x.starts++;
        note("start%d:", a->world);
        for (int r = 0; r < w->members; r++) {
            note("%d.%d%s%s", m[r].host, m[r].slot, m[r].spare ? "s" : "",
                 r + 1 < w->members ? "," : " ");
            w->broken |= m[r].host < 32 && (x.broken >> m[r].host & 1);
        }
        for (int r = 0; r < w->members; r++) w->mute[r] = w->broken;
        break;
    case TT_ACT_PERSIST:
        note("persist%d ", a->generation);
        break;
    case TT_ACT_GO:
        w = world_of(a->world);
        w->generation = a->generation;
        w->go_at = x.last_go = x.now;
        w->phase = TT_PHASE_STEP;
        note("go%d ", a->world);
        break;
    case TT_ACT_YIELD:
    case TT_ACT_MOVE:
    case TT_ACT_SAVE:
        note(a->kind == TT_ACT_SAVE   ? "save%d "
             : a->kind == TT_ACT_MOVE ? "move%d "
                                      : "yield%d ",
             a->world);
        if (x.deaf) break;
        w = world_of(a->world);
        w->gone_at = x.now + 0.02;
        w->saves = a->kind == TT_ACT_SAVE;
        break;
    case TT_ACT_KILL:
        note("kill%d ", a->world);
        w = world_of(a->world);
        w->saves = false;
        if (!x.stays) w->gone_at = x.now + 0.01;
        break;
    case TT_ACT_TELL:
        note("tell:%s ", CAUSE[a->cause.kind]);
        x.told[x.tolds++ % 256] = a->cause;
        break;
    case TT_ACT_EXIT:
        note("exit%d ", a->code);
        x.end = a->cause;
        break;
    }
}

static inline void give(tt_event e)
{
    tt_action act[TT_WORLDS_MOST * 4];
    int n = tt_policy_step(x.p, &e, x.now, act, TT_WORLDS_MOST * 4);

    EXPECT(n >= 0 && n <= TT_WORLDS_MOST * 4);
    for (int i = 0; i < n; i++) carry_out(&act[i]);
}

static inline void give_host(int host, int slots)
{
    give((tt_event){.kind = TT_EV_HOST, .host = host, .slots = slots});
}

static inline void give_beat(const fake *w, int r)
{
    bool ready = x.now - w->started >= 0.1 && !w->not_ready[r];
    tt_phase phase = w->generation ? w->phase : ready ? TT_PHASE_READY : TT_PHASE_START;

    give((tt_event){.kind = TT_EV_BEAT,
                    .world = w->id,
                    .rank = r,
                    .phase = phase,
                    .step = w->step,
                    .waits = w->waits[r]});
}

static inline void give_dead(int world, int rank, int code)
{
    world_of(world)->mute[rank] = true;
    give((tt_event){.kind = TT_EV_DEAD, .world = world, .rank = rank, .code = code});
}

static inline void give_gone(int world, int code)
{
    world_of(world)->alive = false;
    give((tt_event){.kind = TT_EV_GONE, .world = world, .code = code});
}

/* Time passes; worlds beat, become ready, step and end. */
static inline void pass(double seconds)
{
    double until = x.now + seconds;

    while (x.now < until - 1e-9) {
        x.now += 0.05;
        for (int i = 0; i < x.fakes; i++) {
            fake *w = &x.fake[i];
            bool due = w->alive && w->gone_at > 0 && x.now >= w->gone_at;
            if (due && w->saves) give((tt_event){.kind = TT_EV_RESULT, .world = w->id, .code = 75});
            if (due) give_gone(w->id, 0);
            if (!w->alive) continue;
            if (w->generation && w->step_s > 0)
                w->step = x.from + (int64_t)((x.now - w->go_at) / w->step_s);
            for (int r = 0; r < w->members; r++)
                if (!w->mute[r]) give_beat(w, r);
        }
        give((tt_event){.kind = TT_EV_TICK});
    }
}

static inline tt_policy_opts fixed(int workers)
{
    tt_policy_opts o = tt_policy_defaults();

    o.least = o.most = workers;
    return o;
}

static inline void begin(tt_policy_opts o)
{
    tt_policy_close(x.p);
    memset(&x, 0, sizeof x);
    x.step_s = 0.05;
    x.p = tt_policy_open(&o);
}

static inline void end(void)
{
    tt_policy_close(x.p);
    x.p = NULL;
}

static inline void expect_log(const char *want)
{
    EXPECT_STR(want, x.log);
    x.log[0] = 0;
}

static inline bool was_told(tt_cause_kind k)
{
    for (int i = 0; i < x.tolds && i < 256; i++)
        if (x.told[i].kind == k) return true;
    return false;
}

static inline tt_cause last_told(void)
{
    return x.told[(x.tolds - 1) % 256];
}

/* Kills the process on a slot of host 0 at once whenever it is active, for so long or until that
 * slot is left out. */
static inline void crash_loop(double seconds, int slot)
{
    int tolds = x.tolds;

    for (double until = x.now + seconds; x.now < until - 1e-9;) {
        const tt_member *m;
        int active, n, r = 0;
        pass(0.05);
        active = tt_policy_look(x.p).active;
        n = tt_policy_members(x.p, active, &m);
        if (active < 0 || world_of(active)->gone_at > 0 || x.now - world_of(active)->go_at < 0.04)
            continue;
        while (r < n && m[r].slot != slot) r++;
        if (r < n) give_dead(active, r, 139);
        for (int i = tolds; i < x.tolds; i++)
            if (x.told[i % 256].kind == TT_CAUSE_OUT) return;
    }
}

#endif
