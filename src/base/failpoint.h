/* failpoint: named places where tests make things go wrong.
 *
 *   TT_FAILPOINT("vault.described");                       dies, stops or sleeps there if told to
 *   if (TT_FAILPOINT("saver.write")) return an error       or is told to fail by itself
 *
 * Always compiled in; as long as none is asked for, a place costs one load and a branch. The
 * environment asks: TUTTI_FAILPOINTS is a list, "name=what", separated by commas or spaces, with
 *
 *   kill, segv, abort, exit[:code], stop, sleep[:seconds]   for the process
 *   fail[:errno]                                            the place is told, by this number
 *
 * and behind it, in any order: @N the N-th time this process comes by (first: 1), @N+ then and
 * every time after, /rank:K in the process that has this rank alone. With TUTTI_FAILPOINT_DIR each
 * one without the plus fires once for all processes together: a file of its name in that folder
 * says that it has (name#2 if the name is in the list twice). So a world that comes after does not
 * die of the same, and a test sees that its point was hit. A list with a mistake, or with a name
 * that this program does not have, ends the program at its start: a test must not pass because of a
 * slip. */
#ifndef TT_FAILPOINT_H
#define TT_FAILPOINT_H

#include <stdbool.h>

#include "err.h"

extern bool tt_failpoints_on;
/* 0: go on; else an errno, and the place is to fail with it. */
int tt_failpoint_hit(const char *name);
/* In which rank this is, from here on; -1, as it begins: none. */
void tt_failpoint_rank(int rank);
/* All names in this program, in no order, some more than once; how many. */
int tt_failpoint_names(const char *const **out);
/* As the environment does; NULL or "": none. On TT_EINVAL none is set. Not while others come by. */
tt_err tt_failpoint_set(const char *list, const char *folder);

/* The names stand in a section of their own, so that tests can go through them all. */
#define TT_FAILPOINT(name)                                                                         \
    ({                                                                                             \
        static const char *const tt_name_ __attribute__((section("tt_failpoints"), used)) =        \
            (name);                                                                                \
        __builtin_expect(tt_failpoints_on, 0) ? tt_failpoint_hit(tt_name_) : 0;                    \
    })

#endif
