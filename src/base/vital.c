#include "base/vital.h"

const char *tt_phase_name(tt_phase p)
{
    static const char *const names[TT_PHASES] = {"start",     "standing by", "finding the state",
                                                 "a step",    "validation",  "a checkpoint",
                                                 "its ending"};

    return p >= 0 && p < TT_PHASES ? names[p] : "?";
}
