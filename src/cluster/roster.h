/* roster: which slots there are, which of them are left out for a while, and who should be the
 * members of a world now. A part of policy: pure, and for policy.c and happen.c alone. */
#ifndef TT_ROSTER_H
#define TT_ROSTER_H

#include "policy.h"

typedef struct tt_slot {
    int failures; /* in a row */
    int penances; /* so far   */
    int caught;   /* so far, with wrong numbers: no progress makes up for that */
    bool out;
    double out_until;
    bool used;   /* by the world that was active last  */
    bool picked; /* it is one of `wanted`              */
} tt_slot;

typedef struct tt_slots { /* of a host; what is known of them stays when it leaves */
    int host, count, room;
    bool heard; /* a process has once come up there                     */
    bool aside; /* it is done without, to see whether that was the fault */
    bool tried; /* ... or was before                                    */
    tt_slot *slot;
} tt_slots;

typedef struct tt_roster { /* zeroed: no hosts */
    tt_slots *host;
    int hosts, outs; /* slots that are left out */
    bool changed;    /* since tt_roster_choose  */

    tt_member *wanted;    /* the members a world should have; `workers` of them work */
    int members, workers; /* 0: there are fewer than are needed at least */
} tt_roster;

/* A host has so many slots from now on. True if there are more of them than before. */
bool tt_roster_host(tt_roster *t, int host, int slots);
tt_slot *tt_roster_slot(const tt_roster *t, tt_member m);
int tt_roster_slots(const tt_roster *t, int host); /* left out or not */
bool tt_roster_usable(const tt_roster *t, tt_member m);
/* Slots that can be used, or that are left out until then. */
int tt_roster_count(const tt_roster *t, double out_until);

/* A slot has failed. True if it is left out from now on. */
bool tt_roster_strike(tt_roster *t, tt_member m, int strikes, double penance_s, double now);
/* All slots of a host are left out from now on. */
void tt_roster_bar(tt_roster *t, int host, double penance_s, double now);
void tt_roster_heard(tt_roster *t, int host); /* a process has come up there */
/* Does without one host more, as long as `least` slots are left, and returns it; -1: each has had
 * its turn. Those where nothing has ever come up go first; `unused`: only those that are not in
 * use; `from_first`: in their order, else from the last. */
int tt_roster_set_aside(tt_roster *t, int least, bool unused, bool from_first);
void tt_roster_take_back(tt_roster *t); /* all that were set aside */
/* Its numbers were wrong. True if it is left out for good from now on: after `catches` times. */
bool tt_roster_catch(tt_roster *t, tt_member m, int catches);
/* A slot whose penance is over: true, once for each. */
bool tt_roster_back(tt_roster *t, double now, tt_member *out);

/* From now on these are the slots in use. */
void tt_roster_use(tt_roster *t, const tt_member *m, int count);
/* As many workers as there can be, and the spares beside them, host by host. Slots that are in use
 * are kept, because they have the state. */
void tt_roster_choose(tt_roster *t, int least, int most, int spares);
void tt_roster_free(tt_roster *t);

#endif
