/* Which samples make a step: arithmetic, and one permutation per pass. */
#include "data/data.h"

#include <string.h>

static int64_t total_of(const tt_order *o)
{
    return o->total ? o->total : o->count;
}

int64_t tt_order_steps(const tt_order *o)
{
    int64_t all = total_of(o);
    return all / o->batch + (all % o->batch != 0);
}

/* How many of ours are among the first `at` samples of all. */
static __int128 ours(const tt_order *o, __int128 at)
{
    return o->total ? at * o->count / o->total : at;
}

/* The first of all samples of a step (of its pass), and the one after its last. */
static void bounds(const tt_order *o, int64_t step, __int128 *first, __int128 *end)
{
    int64_t within = o->by_pass ? step % tt_order_steps(o) : step;

    *first = (__int128)within * o->batch;
    *end = *first + o->batch;
    if (o->by_pass && *end > total_of(o)) *end = total_of(o);
}

int tt_order_size(const tt_order *o, int64_t step)
{
    __int128 first, end;

    bounds(o, step, &first, &end);
    return (int)(ours(o, end) - ours(o, first));
}

int tt_order_most(const tt_order *o)
{
    return (int)(o->total ? ((__int128)o->batch * o->count + o->total - 1) / o->total : o->batch);
}

tt_place tt_order_place(const tt_order *o, int64_t step, int i)
{
    __int128 first, end;

    bounds(o, step, &first, &end);
    first = ours(o, first) + i;
    if (o->by_pass) return (tt_place){step / tt_order_steps(o), (int64_t)first + o->first};
    return (tt_place){(int64_t)(first / o->count), (int64_t)(first % o->count) + o->first};
}

/* How the turn with this key goes on: other streams do not meet it. */
static uint64_t turned(uint64_t key, uint64_t turn)
{
    return tt_mix(key ^ tt_mix(turn ^ 0x6e727574u /* "turn" */));
}

int64_t tt_order_sample(const tt_order *o, tt_place p)
{
    int64_t at = p.at - o->first;
    /* The pass's own key. Other streams hash a name into the seed, so they never meet this one. */
    tt_u128 r = tt_philox(o->seed, (uint64_t)p.pass, 0x7373617020656874u /* "the pass" */);
    uint64_t key = (uint64_t)r.v[1] << 32 | r.v[0], before = 0;

    for (int i = o->turns - 1; i >= 0 && !before; i--) {
        tt_place from = tt_order_place(o, o->turn[i].step, 0);
        int64_t begin = from.at - o->first;
        if (from.pass < p.pass) before = o->turn[i].key;
        /* The last turn first: it changes places among those that the one before it has dealt. */
        if (from.pass == p.pass && at >= begin)
            at = begin + (int64_t)tt_permute(turned(key, o->turn[i].key),
                                             (uint64_t)(o->count - begin), (uint64_t)(at - begin));
    }
    if (!o->shuffle) return at;
    if (before) key = turned(key, before);
    return (int64_t)tt_permute(key, (uint64_t)o->count, (uint64_t)at);
}

static int64_t pass_of(const tt_order *o, int64_t step)
{
    return o->by_pass ? step / tt_order_steps(o)
                      : (int64_t)((__int128)step * o->batch / total_of(o));
}

bool tt_order_turn(tt_order *o, int64_t step)
{
    uint64_t key = o->turns ? o->turn[o->turns - 1].key + 1 : 1;

    if (o->turns == TT_TURNS) { /* of passes long over the last turn alone matters */
        if (pass_of(o, o->turn[1].step) + 1 >= pass_of(o, step)) return false;
        memmove(o->turn, o->turn + 1, (TT_TURNS - 1) * sizeof *o->turn);
        o->turns--;
    }
    o->turn[o->turns++] = (tt_turn){step, key};
    return true;
}
