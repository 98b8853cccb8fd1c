/* The election, see lease.h. An event is taken in first; what is to be done then follows from the
 * state and the time alone. */
#include "lease.h"

tt_lease_opts tt_lease_defaults(void)
{
    return (tt_lease_opts){
        .ttl_s = 3, .margin_s = 0.5, .renew_s = 0.4, .again_s = 0.1, .look_s = 0.2, .close_s = 10};
}

void tt_lease_begin(tt_lease *l, const tt_lease_opts *o, double now)
{
    *l = (tt_lease){.o = *o, .until = now - 1e9, .next = now};
}

double tt_lease_left(const tt_lease *l, double now)
{
    return l->state == TT_LEASE_LEADING ? l->until - l->o.margin_s - now : 0;
}

static void look_again(tt_lease *l, double when)
{
    l->state = TT_LEASE_LOOKING;
    l->next = when;
}

/* LEAD, if what was granted is still worth something. */
static tt_lease_action take_helm(tt_lease *l, const tt_lease_event *e, double now)
{
    l->until = e->sent + e->ttl_s;
    l->state = TT_LEASE_LEADING;
    l->next = e->sent + l->o.renew_s;
    if (tt_lease_left(l, now) > 0) return TT_LEASE_LEAD;
    look_again(l, now); /* nobody was told to lead, so there is nobody to stop */
    return TT_LEASE_NOTHING;
}

static tt_lease_action step_down(tt_lease *l)
{
    l->state = TT_LEASE_LEAVING;
    l->stopped = false;
    return TT_LEASE_STEP_DOWN;
}

static tt_lease_action be_over(tt_lease *l, int code)
{
    l->state = TT_LEASE_OVER;
    l->code = code;
    return TT_LEASE_EXIT;
}

/* Answers. */
static tt_lease_action hear_looking(tt_lease *l, const tt_lease_event *e, double now)
{
    switch (e->kind) {
    case TT_LEASE_GRANTED:
        return take_helm(l, e, now);
    case TT_LEASE_RESULT:
        return be_over(l, e->code);
    default:
        l->next = now + l->o.look_s;
        return TT_LEASE_NOTHING;
    }
}

static tt_lease_action hear_leading(tt_lease *l, const tt_lease_event *e, double now)
{
    switch (e->kind) {
    case TT_LEASE_RENEWED:
        if (e->sent + e->ttl_s > l->until) l->until = e->sent + e->ttl_s;
        l->next = e->sent + l->o.renew_s;
        return TT_LEASE_NOTHING;
    case TT_LEASE_LOST:
    case TT_LEASE_REFUSED:
        return step_down(l);
    default:
        l->next = now + l->o.again_s;
        return TT_LEASE_NOTHING;
    }
}

static tt_lease_action hear_closing(tt_lease *l, const tt_lease_event *e, double now)
{
    if (e->kind == TT_LEASE_CLOSED) return be_over(l, l->code);
    if (e->kind == TT_LEASE_REFUSED || e->kind == TT_LEASE_LOST) {
        look_again(l, now); /* another goes on with the run: it will tell how it ends */
        return TT_LEASE_NOTHING;
    }
    l->next = now + l->o.look_s;
    return TT_LEASE_NOTHING;
}

static tt_lease_action hear_answer(tt_lease *l, const tt_lease_event *e, double now)
{
    l->asked = false;
    if (l->state == TT_LEASE_LOOKING) return hear_looking(l, e, now);
    if (l->state == TT_LEASE_LEADING) return hear_leading(l, e, now);
    if (l->state == TT_LEASE_CLOSING) return hear_closing(l, e, now);
    return TT_LEASE_NOTHING; /* to a renewal, after it had stepped down: too late */
}

/* What the supervisor of this process tells. Whether it was told to stop, or did so by itself: its
 * world is gone. */
static void hear_own(tt_lease *l, const tt_lease_event *e, double now)
{
    l->stopped = true;
    if (l->state == TT_LEASE_LEADING && e->kind == TT_LEASE_STOPPED) l->state = TT_LEASE_LEAVING;
    if (l->state != TT_LEASE_LEADING || e->kind != TT_LEASE_ENDED) return;
    l->state = TT_LEASE_CLOSING;
    l->code = e->code;
    l->since = l->next = now;
}

static bool is_answer(tt_lease_event_kind k)
{
    return k != TT_LEASE_TIMER && k != TT_LEASE_STOPPED && k != TT_LEASE_ENDED;
}

static tt_lease_action ask(tt_lease *l, tt_lease_action what, double now)
{
    if (l->asked || now < l->next) return TT_LEASE_NOTHING;
    l->asked = true;
    return what;
}

tt_lease_action tt_lease_step(tt_lease *l, const tt_lease_event *e, double now)
{
    tt_lease_action a = TT_LEASE_NOTHING;

    if (is_answer(e->kind) &&
        (l->asked || (e->kind == TT_LEASE_LOST && l->state == TT_LEASE_LEADING)))
        a = hear_answer(l, e, now);
    if (e->kind == TT_LEASE_STOPPED || e->kind == TT_LEASE_ENDED) hear_own(l, e, now);
    if (a != TT_LEASE_NOTHING) return a;
    if (l->state == TT_LEASE_LEADING && tt_lease_left(l, now) <= 0) return step_down(l); /* (1) */
    if (l->state == TT_LEASE_LEAVING && l->stopped && now >= l->until)                   /* (2) */
        look_again(l, now);
    switch (l->state) {
    case TT_LEASE_LOOKING:
        return ask(l, TT_LEASE_CAMPAIGN, now);
    case TT_LEASE_LEADING:
        return ask(l, TT_LEASE_RENEW, now);
    case TT_LEASE_CLOSING:
        if (!l->asked && now - l->since > l->o.close_s) return be_over(l, l->code); /* (3) */
        return ask(l, TT_LEASE_CLOSE, now);
    case TT_LEASE_LEAVING:
    case TT_LEASE_OVER:
        break;
    }
    return TT_LEASE_NOTHING;
}
