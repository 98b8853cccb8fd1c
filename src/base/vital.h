/* vital: what a process is doing, for another thread to pass on while it does it. Setting it costs
 * two stores. */
#ifndef TT_VITAL_H
#define TT_VITAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum tt_phase {
    TT_PHASE_START, /* the process is there                       */
    TT_PHASE_READY, /* all is open: it waits for GO               */
    TT_PHASE_SYNC,  /* finds the state                            */
    TT_PHASE_STEP,  /* trains: `step` must grow                   */
    TT_PHASE_JUDGE, /* validates                                  */
    TT_PHASE_SAVE,  /* waits for a checkpoint, or closes the run  */
    TT_PHASE_END,   /* has done its work, and leaves              */
    TT_PHASES,
} tt_phase;
const char *tt_phase_name(tt_phase p); /* "validation": of what it was in the middle */

typedef struct tt_vital {
    _Atomic int phase;
    _Atomic int64_t step; /* the last that is made, and ... */
    _Atomic int64_t kept; /* ... committed                  */
} tt_vital;

/* Whoever waits for other ranks says so again and again; has somebody here, of late? If nothing
 * moves, those who wait are not to blame. */
void tt_vital_wait(double now);
bool tt_vital_waits(double now);

/* Accepts NULL: nobody looks. */
static inline void tt_vital_set(tt_vital *v, tt_phase phase, int64_t step)
{
    if (!v) return;
    atomic_store_explicit(&v->step, step, memory_order_relaxed);
    atomic_store_explicit(&v->phase, phase, memory_order_release);
}
static inline void tt_vital_keep(tt_vital *v, int64_t step)
{
    if (v) atomic_store_explicit(&v->kept, step, memory_order_relaxed);
}

#endif
