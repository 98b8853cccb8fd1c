/* team: a fixed set of threads that do the same thing at the same time, and a barrier for them.
 *
 * Member 0 is the calling thread, so a team of one starts no thread. Between tt_team_run calls the
 * members sleep after a short spin. */
#ifndef TT_TEAM_H
#define TT_TEAM_H

#include "err.h"

typedef struct tt_team tt_team;

tt_err tt_team_open(int size, tt_team **out); /* size 1 .. 1024 */
int tt_team_size(const tt_team *t);

/* Runs fn(arg, member) on every member, returns when all have. Not to be nested. */
void tt_team_run(tt_team *t, void (*fn)(void *arg, int member), void *arg);

/* Inside fn: waits until every member has come here. Spins briefly, then sleeps, so that more
 * threads than cores cost little. Memory written before is seen after. */
void tt_team_barrier(tt_team *t);
void tt_team_close(tt_team *t); /* accepts NULL */

int tt_cpu_count(void); /* CPUs this process may use: affinity and cgroup quota respected */

#endif
