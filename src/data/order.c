/* Which samples make a step: arithmetic, and one permutation per pass. */
#include "data/data.h"

int64_t tt_order_steps(const tt_order *o)
{
    return o->count / o->batch + (o->count % o->batch != 0);
}

int tt_order_size(const tt_order *o, int64_t step)
{
    int64_t steps, left;

    if (!o->by_pass) return (int)o->batch;
    steps = tt_order_steps(o);
    left = o->count - step % steps * o->batch;
    return (int)(left < o->batch ? left : o->batch);
}

tt_place tt_order_place(const tt_order *o, int64_t step, int i)
{
    if (o->by_pass) {
        int64_t steps = tt_order_steps(o);
        return (tt_place){step / steps, step % steps * o->batch + i};
    }
    __int128 at = (__int128)step * o->batch + i;
    return (tt_place){(int64_t)(at / o->count), (int64_t)(at % o->count)};
}

int64_t tt_order_sample(const tt_order *o, tt_place p)
{
    if (!o->shuffle) return p.at;
    /* The pass's own key. Other streams hash a name into the seed, so they never meet this one. */
    tt_u128 r = tt_philox(o->seed, (uint64_t)p.pass, 0x7373617020656874u /* "the pass" */);
    return (int64_t)tt_permute((uint64_t)r.v[1] << 32 | r.v[0], (uint64_t)o->count, (uint64_t)p.at);
}
