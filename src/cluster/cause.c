/* cause: why a world ended, in words. */
#define _GNU_SOURCE
#include "boss.h"

#include <string.h>

/* "rank 2 (host b) was killed by signal 9 in step 120": what is known. */
void boss_describe(const tt_supervisor *s, const tt_cause *c, tt_str *out)
{
    char span[32];

    if (c->rank >= 0 && c->kind != TT_CAUSE_HOST && c->kind != TT_CAUSE_LEAVE &&
        c->kind != TT_CAUSE_OUT)
        tt_str_add(out, "rank %d (%s) ", c->rank, boss_host(s, c->host));
    tt_show_time(c->silent_s, span, sizeof span);
    switch (c->kind) {
    case TT_CAUSE_DEAD:
        if (c->code > 128)
            tt_str_add(out, "was ended by signal %d (%s)", c->code - 128, strsignal(c->code - 128));
        else if (c->code > 0)
            tt_str_add(out, "ended with exit code %d", c->code);
        else
            tt_str_add(out, "%s", c->rank >= 0 ? "died" : "the workers ended without a word");
        break;
    case TT_CAUSE_HUNG:
        tt_str_add(out, "gives no sign of life for %s", span);
        break;
    case TT_CAUSE_STUCK:
        tt_str_add(out, "lives, but makes no progress for %s", span);
        break;
    case TT_CAUSE_TROUBLE:
        tt_str_add(out, c->code == 4 ? "misses another one" : "met an error");
        break;
    case TT_CAUSE_START:
        tt_str_add(out, "world %d did not come up", c->world);
        break;
    case TT_CAUSE_HOST:
        tt_str_add(out, "host %s is gone", boss_host(s, c->host));
        break;
    case TT_CAUSE_LEAVE:
        tt_str_add(out, "host %s leaves", boss_host(s, c->host));
        break;
    case TT_CAUSE_RESIZE:
        tt_str_add(out, "another number of workers is wanted");
        break;
    case TT_CAUSE_BELOW:
        tt_str_add(out, "too few workers are left: waiting for more");
        break;
    case TT_CAUSE_OUT:
        if (c->slot < 0) {
            tt_str_add(out, "nothing can be started on host %s: it is left out",
                       boss_host(s, c->host));
            break;
        }
        tt_str_add(out,
                   c->code ? "slot %d of %s failed too often and is left out"
                           : "slot %d of %s had wrong numbers before and is left out for good",
                   c->slot, boss_host(s, c->host));
        break;
    case TT_CAUSE_BACK:
        tt_str_add(out, "slot %d of %s is taken in again", c->slot, boss_host(s, c->host));
        break;
    case TT_CAUSE_STOP:
        tt_str_add(out, "told to stop");
        break;
    case TT_CAUSE_RENEW:
        tt_str_add(out, "%s", s->renewed);
        break;
    case TT_CAUSE_CORRUPT:
        tt_str_add(out, "has other numbers than the others");
        break;
    case TT_CAUSE_NONE:
        break;
    }
    if (c->step > 0) tt_str_add(out, ", after step %lld", (long long)c->step);
    if (c->kind == TT_CAUSE_DEAD || c->kind == TT_CAUSE_HUNG || c->kind == TT_CAUSE_STUCK)
        tt_str_add(out, ", in %s", tt_phase_name(c->phase));
}

bool boss_is_failure(tt_cause_kind k)
{
    return k == TT_CAUSE_DEAD || k == TT_CAUSE_HUNG || k == TT_CAUSE_STUCK ||
           k == TT_CAUSE_TROUBLE || k == TT_CAUSE_HOST || k == TT_CAUSE_CORRUPT;
}
