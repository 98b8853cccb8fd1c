/* helm: the place of the one who supervises a run, of several who could.
 *
 *   tt_helm_open -> [tt_helm_wait until LEADING -> supervise, asking tt_helm_left ->
 *   tt_helm_end] ... until OVER -> tt_helm_close
 *
 * It is kept by an etcd, below /tutti/<run>/: `leader` says who leads, under a lease of some
 * seconds; `generation` is the fencing token, the highest that was given GO; `result` how the run
 * ended. The last two outlive their writer by up to an hour. lease.h decides; a thread of ours asks
 * the etcd, so nothing here blocks for long but tt_helm_persist. */
#ifndef TT_HELM_H
#define TT_HELM_H

#include "base/base.h"

typedef struct tt_helm_opts {
    const char *address; /* etcd://host:port,... */
    const char *run;     /* its identity         */
} tt_helm_opts;

typedef enum tt_helm_role {
    TT_HELM_LOOKING, /* nothing is known yet                                  */
    TT_HELM_STANDBY, /* another leads: host, pid                              */
    TT_HELM_SILENT,  /* the etcd does not answer: trouble                     */
    TT_HELM_LEADING, /* supervise!                                            */
    TT_HELM_LEAVING, /* it has lost the helm: end the world, and say so by tt_helm_end */
    TT_HELM_OVER,    /* the run has ended: code, and by whom; or our part in it has */
} tt_helm_role;
typedef struct tt_helm_view {
    tt_helm_role role;
    char host[256];
    int pid, code;
    char trouble[512];
} tt_helm_view;

typedef struct tt_helm tt_helm;
/* Asks the etcd once. TT_EENV: it does not answer, or cannot be asked; TT_EINVAL: the address. */
tt_err tt_helm_try(const char *address);
tt_err tt_helm_open(const tt_helm_opts *o, tt_helm **out);
/* Waits up to `ms` for another role than *out has, and tells how it is. */
void tt_helm_wait(tt_helm *h, int ms, tt_helm_view *out);

/* How long this process surely leads, in seconds; 0 or less: it does not, and must do nothing that
 * others can see, and stays so until it has said so (tt_helm_end) and leads again. Takes no lock.
 * That it is asked is also the sign that the supervisor lives: a leader that does not ask for 15 s
 * loses the helm. */
double tt_helm_left(tt_helm *h);
int tt_helm_generation(const tt_helm *h); /* leading: the highest of all leaders before; 0: none */
const char *tt_helm_cluster(const tt_helm *h); /* which etcd it is */
/* The longest that workers live without a word from us. */
double tt_helm_lease_s(const tt_helm *h);
/* Before a world gets GO. Waits until the etcd has it; false: this process does not lead (any
 * more).
 */
bool tt_helm_persist(tt_helm *h, int generation);
bool tt_helm_went(const tt_helm *h); /* whether it has, since it leads */

/* The world is gone. */
typedef enum tt_helm_end_kind {
    TT_HELM_STOPPED, /* the helm was lost: it stands by again              */
    TT_HELM_ENDED,   /* the run has ended: all others end with this code   */
    TT_HELM_LEFT,    /* this process goes: another may go on with the run  */
} tt_helm_end_kind;
void tt_helm_end(tt_helm *h, tt_helm_end_kind kind, int code);
void tt_helm_close(tt_helm *h); /* accepts NULL */

#endif
