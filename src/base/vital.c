#include "base/vital.h"

static const double OF_LATE_S = 0.2;
static _Atomic double waited; /* last */

void tt_vital_wait(double now)
{
    atomic_store_explicit(&waited, now, memory_order_relaxed);
}

bool tt_vital_waits(double now)
{
    return now - atomic_load_explicit(&waited, memory_order_relaxed) < OF_LATE_S;
}

const char *tt_phase_name(tt_phase p)
{
    static const char *const names[TT_PHASES] = {"start",     "standing by", "finding the state",
                                                 "a step",    "validation",  "a checkpoint",
                                                 "its ending"};

    return p >= 0 && p < TT_PHASES ? names[p] : "?";
}
