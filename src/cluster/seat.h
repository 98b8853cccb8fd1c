/* seat: the place of the one who supervises a run, of several who could.
 *
 *   tt_seat_open -> [tt_seat_wait until LEADING -> supervise, asking tt_seat_left -> tt_seat_end]
 * ... until OVER -> tt_seat_close
 *
 * It is kept by an etcd, below /tutti/<run>/: `leader` says who leads, under a lease of some
 * seconds; `generation` is the fencing token, the highest that was given GO; `result` how the run
 * ended. The last two outlive their writer by up to an hour. lease.h decides; a thread of ours asks
 * the etcd, so nothing here blocks for long but tt_seat_persist. */
#ifndef TT_SEAT_H
#define TT_SEAT_H

#include "base/base.h"

typedef struct tt_seat_opts {
    const char *address; /* etcd://host:port,... */
    const char *run;     /* its identity         */
} tt_seat_opts;

typedef enum tt_seat_role {
    TT_SEAT_LOOKING, /* nothing is known yet                                  */
    TT_SEAT_STANDBY, /* another leads: host, pid                              */
    TT_SEAT_SILENT,  /* the etcd does not answer: trouble                     */
    TT_SEAT_LEADING, /* supervise!                                            */
    TT_SEAT_LEAVING, /* it has lost the seat: end the world, and say so by tt_seat_end */
    TT_SEAT_OVER, /* the run has ended, or our part in it: code, and host, pid if another tells */
} tt_seat_role;
typedef struct tt_seat_view {
    tt_seat_role role;
    char host[256];
    int pid, code;
    char trouble[512];
} tt_seat_view;

typedef struct tt_seat tt_seat;
/* Asks the etcd once. TT_EENV: it does not answer, or cannot be asked; TT_EINVAL: the address. */
tt_err tt_seat_try(const char *address);
tt_err tt_seat_open(const tt_seat_opts *o, tt_seat **out);
/* Waits up to `ms` for another role than *out has, and tells how it is. */
void tt_seat_wait(tt_seat *s, int ms, tt_seat_view *out);

/* How long this process surely leads, in seconds; 0 or less: it does not, and must do nothing that
 * others can see, and stays so until it has said so (tt_seat_end) and leads again. Takes no lock.
 * That it is asked is also the sign that the supervisor lives: a leader that does not ask for 15 s
 * loses the seat. */
double tt_seat_left(tt_seat *s);
int tt_seat_generation(const tt_seat *s); /* leading: the highest of all leaders before; 0: none */
const char *tt_seat_cluster(const tt_seat *s); /* which etcd it is */
/* The longest a lease lasts: for workers, until they hear otherwise. */
double tt_seat_lease_s(const tt_seat *s);
/* Before a world gets GO. Waits until the etcd has it; false: this process does not lead (any
 * more).
 */
bool tt_seat_persist(tt_seat *s, int generation);

/* The world is gone. */
typedef enum tt_seat_end_kind {
    TT_SEAT_STOPPED, /* the seat was lost: it stands by again              */
    TT_SEAT_ENDED,   /* the run has ended: all others end with this code   */
    TT_SEAT_LEFT,    /* this process goes: another may go on with the run  */
} tt_seat_end_kind;
void tt_seat_end(tt_seat *s, tt_seat_end_kind kind, int code);
void tt_seat_close(tt_seat *s); /* accepts NULL */

#endif
