/* Who of several supervisors leads: one promise at a time, and many of them with an etcd that is
 * slow, silent or back, and processes that are stopped for a while. */
#include "cluster/etcd.h"
#include "cluster/lease.h"
#include "test.h"

static tt_lease l;

static tt_lease_action step(tt_lease_event_kind kind, double now)
{
    return tt_lease_step(&l, &(tt_lease_event){.kind = kind, .sent = now, .ttl_s = 3}, now);
}

static tt_lease_action answer(tt_lease_event_kind kind, double sent, double now)
{
    return tt_lease_step(&l, &(tt_lease_event){.kind = kind, .sent = sent, .ttl_s = 3}, now);
}

static tt_lease_action own(tt_lease_event_kind kind, int code, double now)
{
    return tt_lease_step(&l, &(tt_lease_event){.kind = kind, .code = code}, now);
}

/* At 100 it was granted the helm, for 3 s. */
static void begin_leading(void)
{
    tt_lease_opts o = tt_lease_defaults();

    tt_lease_begin(&l, &o, 100);
    EXPECT_INT(TT_LEASE_CAMPAIGN, step(TT_LEASE_TIMER, 100));
    EXPECT_INT(TT_LEASE_LEAD, answer(TT_LEASE_GRANTED, 100, 100.01));
}

/* ---- one promise at a time ---- */

TT_TEST(lease, a_free_helm_is_taken_and_renewed_several_times_a_lease)
{
    int renewals = 0;

    begin_leading();
    for (double now = 100.02; now < 106; now += 0.05) {
        tt_lease_action a = step(TT_LEASE_TIMER, now);
        if (a == TT_LEASE_NOTHING) continue;
        EXPECT_INT(TT_LEASE_RENEW, a);
        EXPECT_INT(TT_LEASE_NOTHING, step(TT_LEASE_TIMER, now + 0.01)); /* one at a time */
        EXPECT_INT(TT_LEASE_NOTHING, answer(TT_LEASE_RENEWED, now, now + 0.02));
        EXPECT(tt_lease_left(&l, now + 0.02) > 2);
        renewals++;
    }
    EXPECT(renewals >= 10);
}

TT_TEST(lease, a_helm_that_is_taken_is_looked_at_again_and_again)
{
    tt_lease_opts o = tt_lease_defaults();
    int looks = 0;

    tt_lease_begin(&l, &o, 0);
    for (double now = 0; now < 2; now += 0.05)
        if (step(TT_LEASE_TIMER, now) == TT_LEASE_CAMPAIGN) {
            looks++;
            EXPECT_INT(TT_LEASE_NOTHING, answer(TT_LEASE_REFUSED, now, now));
            EXPECT(tt_lease_left(&l, now) <= 0);
        }
    EXPECT(looks >= 8);
    while (step(TT_LEASE_TIMER, 3) != TT_LEASE_CAMPAIGN) continue;
    EXPECT_INT(TT_LEASE_EXIT,
               tt_lease_step(&l, &(tt_lease_event){.kind = TT_LEASE_RESULT, .code = 5}, 3));
    EXPECT_INT(5, l.code);
    EXPECT_INT(TT_LEASE_NOTHING, step(TT_LEASE_TIMER, 100));
}

TT_TEST(lease, it_steps_down_before_its_lease_ends_if_nobody_answers)
{
    double now;

    begin_leading();
    for (now = 100; now < 110; now += 0.05) {
        tt_lease_action a = step(TT_LEASE_TIMER, now);
        if (a == TT_LEASE_RENEW) EXPECT_INT(TT_LEASE_NOTHING, answer(TT_LEASE_FAILED, now, now));
        if (a == TT_LEASE_STEP_DOWN) break;
        EXPECT(tt_lease_left(&l, now) > 0);
    }
    EXPECT(now > 102.4 && now < 102.6); /* half a second of the three is the margin */
    EXPECT(tt_lease_left(&l, now) <= 0);
    /* It asks again only when its world is gone and the lease has ended for all. */
    EXPECT_INT(TT_LEASE_NOTHING, step(TT_LEASE_TIMER, 104));
    EXPECT_INT(TT_LEASE_CAMPAIGN, own(TT_LEASE_STOPPED, 0, 104.1));
    begin_leading();
    EXPECT_INT(TT_LEASE_STEP_DOWN, step(TT_LEASE_TIMER, 102.6));
    EXPECT_INT(TT_LEASE_NOTHING, own(TT_LEASE_STOPPED, 0, 102.7));
    EXPECT_INT(TT_LEASE_NOTHING, step(TT_LEASE_TIMER, 102.9));
    EXPECT_INT(TT_LEASE_CAMPAIGN, step(TT_LEASE_TIMER, 103.01));
}

TT_TEST(lease, a_process_that_was_stopped_does_not_lead_when_it_wakes)
{
    begin_leading();
    EXPECT_INT(TT_LEASE_RENEW, step(TT_LEASE_TIMER, 100.5));
    /* stopped here; whatever it is asked first when it wakes, it leads no more */
    EXPECT(tt_lease_left(&l, 110.5) <= 0);
    /* ... and the answer that has waited for it is worth nothing */
    EXPECT_INT(TT_LEASE_STEP_DOWN, answer(TT_LEASE_RENEWED, 100.5, 110.5));
    EXPECT(tt_lease_left(&l, 110.5) <= 0);
}

TT_TEST(lease, a_helm_that_was_granted_long_ago_is_not_taken)
{
    tt_lease_opts o = tt_lease_defaults();

    tt_lease_begin(&l, &o, 0);
    EXPECT_INT(TT_LEASE_CAMPAIGN, step(TT_LEASE_TIMER, 0));
    EXPECT_INT(TT_LEASE_CAMPAIGN, answer(TT_LEASE_GRANTED, 0, 10)); /* it looks again */
    EXPECT(tt_lease_left(&l, 10) <= 0);
    EXPECT_INT(TT_LEASE_LEAD, answer(TT_LEASE_GRANTED, 10, 11)); /* late, but in time */
    EXPECT_NEAR(1.5, tt_lease_left(&l, 11), 1e-9);
}

TT_TEST(lease, who_hears_that_the_helm_is_lost_stops_at_once_and_a_late_answer_changes_nothing)
{
    begin_leading();
    EXPECT_INT(TT_LEASE_RENEW, step(TT_LEASE_TIMER, 100.5));
    EXPECT_INT(TT_LEASE_STEP_DOWN, answer(TT_LEASE_LOST, 100.5, 100.6));
    EXPECT_INT(TT_LEASE_NOTHING, answer(TT_LEASE_RENEWED, 100.6, 100.7));
    EXPECT(tt_lease_left(&l, 100.7) <= 0);
    begin_leading(); /* told by another request than its own */
    EXPECT_INT(TT_LEASE_STEP_DOWN, answer(TT_LEASE_LOST, 100.1, 100.1));
}

TT_TEST(lease, the_result_is_told_until_it_is_heard_or_for_ten_seconds)
{
    begin_leading();
    EXPECT_INT(TT_LEASE_CLOSE, own(TT_LEASE_ENDED, 3, 101));
    EXPECT_INT(TT_LEASE_NOTHING, answer(TT_LEASE_FAILED, 101, 101.7));
    EXPECT_INT(TT_LEASE_CLOSE, step(TT_LEASE_TIMER, 102));
    EXPECT_INT(TT_LEASE_EXIT, answer(TT_LEASE_CLOSED, 102, 102.1));
    EXPECT_INT(3, l.code);

    begin_leading();
    EXPECT_INT(TT_LEASE_CLOSE, own(TT_LEASE_ENDED, 3, 101));
    EXPECT_INT(TT_LEASE_NOTHING, answer(TT_LEASE_FAILED, 101, 110.9));
    EXPECT_INT(TT_LEASE_EXIT, step(TT_LEASE_TIMER, 111.2));
    EXPECT_INT(3, l.code);

    begin_leading(); /* another has the run by now: how it ends is told by that one */
    EXPECT_INT(TT_LEASE_CLOSE, own(TT_LEASE_ENDED, 3, 101));
    EXPECT_INT(TT_LEASE_CAMPAIGN, answer(TT_LEASE_REFUSED, 101, 101.1));
}

/* ---- many of them ---- */

enum { CANDIDATES = 4 };
static const double LATE_S = 0.4; /* workers may be, with ending themselves */

typedef struct request {
    bool open;
    tt_lease_action what;
    double sent, arrives, answered; /* at the etcd; back here */
    bool done;
    tt_lease_event e;
} request;

typedef struct candidate {
    tt_lease l;
    request r;
    double wakes;       /* stopped until then */
    double stops_world; /* 0: nothing to stop */
    double told; /* until when its workers live, by what it told them; no order to end reaches
                  * them                                                                    */
} candidate;

typedef struct world {
    candidate c[CANDIDATES];
    int owner; /* -1: the helm is free */
    double owned_until;
    double silent_until;
    uint64_t random;
    bool count_from_answer; /* a planted mistake */
    bool no_margin;         /* another */
    int overlaps, leads;
} world;

static double roll(world *w)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (double)(w->random >> 11) * 0x1p-53;
}

static double delay(world *w, bool calm)
{
    return !calm && roll(w) < 0.05 ? 4 * roll(w) : 0.03 * roll(w);
}

/* What the etcd does with a request that has come. */
static void serve(world *w, int me, double now)
{
    request *r = &w->c[me].r;

    r->done = true;
    r->e = (tt_lease_event){.kind = TT_LEASE_REFUSED, .sent = r->sent, .ttl_s = 3};
    if (r->what == TT_LEASE_CAMPAIGN && w->owner == me) {
        w->owner = -1; /* our own old one */
    } else if (r->what == TT_LEASE_CAMPAIGN && w->owner < 0) {
        w->owner = me;
        w->owned_until = now + 3;
        r->e.kind = TT_LEASE_GRANTED;
    } else if (r->what == TT_LEASE_RENEW && w->owner == me) {
        w->owned_until = now + 3;
        r->e.kind = TT_LEASE_RENEWED;
    } else if (r->what == TT_LEASE_RENEW) {
        r->e.kind = TT_LEASE_LOST;
    }
}

static void act(world *w, int me, tt_lease_action a, double now, bool calm)
{
    candidate *c = &w->c[me];

    if (a == TT_LEASE_CAMPAIGN || a == TT_LEASE_RENEW)
        c->r = (request){.open = true,
                         .what = a,
                         .sent = now,
                         .arrives = now + delay(w, calm),
                         .answered = now + delay(w, calm) + delay(w, calm)};
    w->leads += a == TT_LEASE_LEAD;
    if (a == TT_LEASE_STEP_DOWN) c->stops_world = now + 0.2 * roll(w);
}

static void turn(world *w, int me, double now, bool calm)
{
    candidate *c = &w->c[me];
    request *r = &c->r;
    tt_lease_event e = {.kind = TT_LEASE_TIMER};

    if (r->open && !r->done && now >= r->arrives && now >= w->silent_until) serve(w, me, now);
    if (now < c->wakes) return;
    if (r->open && r->done && now >= r->answered && now >= w->silent_until) {
        e = r->e;
        if (w->count_from_answer) e.sent = now;
        *r = (request){0};
    } else if (r->open && now > r->sent + 0.7) { /* what was sent may still be done, later */
        e.kind = TT_LEASE_FAILED;
        if (!r->done && now < r->arrives && roll(w) < 0.5) serve(w, me, now);
        *r = (request){0};
    } else if (c->stops_world > 0 && now >= c->stops_world) {
        e.kind = TT_LEASE_STOPPED;
        c->stops_world = 0;
    }
    act(w, me, tt_lease_step(&c->l, &e, now), now, calm);
    if (tt_lease_left(&c->l, now) > 0) c->told = now + tt_lease_left(&c->l, now);
}

/* Two minutes of trouble, then 10 s without. At no time may the workers of two be alive. */
static void live(world *w, uint64_t seed)
{
    tt_lease_opts o = tt_lease_defaults();
    int leading = 0;

    if (w->no_margin) o.margin_s = 0;
    w->random = seed * 0x9e3779b97f4a7c15u + 1;
    w->owner = -1;
    for (int i = 0; i < CANDIDATES; i++) {
        tt_lease_begin(&w->c[i].l, &o, 0);
        w->c[i].told = -LATE_S;
    }
    for (double now = 0; now < 130; now += 0.02) {
        bool calm = now > 120;
        if (w->owner >= 0 && now >= w->owned_until) w->owner = -1;
        if (!calm && roll(w) < 0.0005) w->silent_until = now + 6 * roll(w);
        for (int i = 0; i < CANDIDATES; i++) {
            candidate *c = &w->c[i];
            if (!calm && now >= c->wakes && roll(w) < 0.001) c->wakes = now + 10 * roll(w);
            turn(w, i, now, calm);
        }
        leading = 0;
        for (int i = 0; i < CANDIDATES; i++) leading += w->c[i].told + LATE_S > now;
        w->overlaps += leading > 1;
    }
    EXPECT(leading >= 1); /* it has healed */
}

/* In how many of so many lives is there an overlap? */
static int count_overlaps(world mistakes, int lives)
{
    int found = 0, leads = 0;

    for (int seed = 1; seed <= lives; seed++) {
        world w = mistakes;
        live(&w, (uint64_t)seed);
        found += w.overlaps > 0;
        leads += w.leads;
    }
    EXPECT(leads > 3 * lives); /* there was trouble */
    return found;
}

TT_TEST(lease, no_two_lead_at_a_time_whatever_is_late_or_stopped)
{
    EXPECT_INT(0, count_overlaps((world){0}, 300));
}

TT_TEST(lease, mistakes_that_are_planted_are_found)
{
    EXPECT(count_overlaps((world){.count_from_answer = true}, 300) > 0);
    EXPECT(count_overlaps((world){.no_margin = true}, 300) > 0);
}

/* ---- addresses ---- */

TT_TEST(etcd, addresses_are_hosts_and_ports_and_nothing_else)
{
    static const char *const bad[] = {
        "",           "etcd://",         "etcd://a",     "etcd://a:",    "etcd://:2379",
        "http://a:1", "etcd://a:1,",     "etcd://a:1/x", "etcd://a@b:1", "etcd://a:99999",
        "etcd:a:1",   "etcd://a:1,,b:2", "etcd://a b:1", "etcd://a?x:1", "etcd://a:1#2",
    };
    tt_str s = {0};

    EXPECT_OK(tt_etcd_urls("etcd://a:2379,10.0.0.1:1,[::1]:2", &s));
    EXPECT_STR("http://a:2379,http://10.0.0.1:1,http://[::1]:2", s.data);
    tt_str_free(&s);
    EXPECT_OK(tt_etcd_urls("etcds://etcd-1.example:2379", &s));
    EXPECT_STR("https://etcd-1.example:2379", s.data);
    tt_str_free(&s);
    for (int i = 0; i < TT_COUNT(bad); i++) {
        EXPECT_ERR(TT_EINVAL, tt_etcd_urls(bad[i], &s));
        tt_str_free(&s);
    }
}
