/* supervisor: carries out what the policy decides. It starts worlds, hears their workers, sees them
 * die, ends them for certain, keeps the run's ledger, and hands on what they say; what is to be
 * done it asks the policy.
 *
 *   tt_supervisor_open -> tt_supervisor_host ... -> [tt_supervisor_turn -> tt_supervisor_take ...]
 *   ... -> tt_supervisor_close
 *
 * It shows nothing: what happens comes out as news, for whoever has a screen. */
#ifndef TT_SUPERVISOR_H
#define TT_SUPERVISOR_H

#include "cluster/cluster.h"
#include "cluster/policy.h"
#include "cluster/helm.h"

typedef struct tt_supervisor_opts {
    tt_policy_opts policy; /* `generation` is at least the run's */
    const char *run;       /* its folder, which is there already                               */
    /* The worker's command, ended by NULL: for the first world, and for those after a world has
     * told of its start, when the run folder has the job as it was resolved. */
    const char *const *argv, *const *next;
    const char *launched_by; /* for the banner: "-n 4" */
    const char *folder;      /* of mode 0700, for sockets and files of launchers               */
    tt_hub *hub;             /* in that folder; how workers and agents reach us                */
    bool agents;             /* other hosts are reached by their agents, not by a remote shell */
    const char *far;         /* where workers on other hosts reach the hub; NULL: they do not  */
    const char *rooms;       /* see tt_launch_opts                                             */
    tt_helm *helm; /* of several supervisors, this one leads: as long as it does, and not a
                    * moment longer, turns have an effect. NULL: it is the only one  */
} tt_supervisor_opts;

typedef struct tt_supervisor tt_supervisor;
/* TT_EFORMAT: the ledger of the run is damaged. What the options point to is borrowed. */
tt_err tt_supervisor_open(const tt_supervisor_opts *o, tt_supervisor **out);
/* A host has so many slots from now on; 0: it leaves, once the next world is ready without it.
 * NULL: this host. Hosts that join by the hub need no call. */
void tt_supervisor_host(tt_supervisor *s, const char *name, int slots);
int tt_supervisor_slots_here(const tt_supervisor *s); /* of this host, left out or not */
/* The same with 0 slots, and if it has joined, its agent ends then. TT_EINVAL: no host of this name
 * takes part; the message lists those that do. */
tt_err tt_supervisor_leave(tt_supervisor *s, const char *name);
void tt_supervisor_lost(tt_supervisor *s,
                        const char *name); /* it is gone with all that was there */

/* What has happened since the last turn; waits up to `ms` for something, but never longer than 50.
 */
void tt_supervisor_turn(tt_supervisor *s, int ms);
void tt_supervisor_want(tt_supervisor *s, int least, int most);
/* A world whose workers have so many threads (0: as they find room for) takes over. `why` is told.
 */
void tt_supervisor_renew(tt_supervisor *s, int threads, const char *why);
void tt_supervisor_stop(tt_supervisor *s, int code); /* save, and end with this exit code */
void tt_supervisor_quit(tt_supervisor *s, int code); /* end */

typedef enum tt_news_kind {
    TT_NEWS_NONE,
    TT_NEWS_LINE,   /* an object that a worker of the active world told: see `line`        */
    TT_NEWS_TEXT,   /* a warning of a worker: `text`                                       */
    TT_NEWS_CAUSE,  /* why a world ends, a slot is left out, it waits: see `text`, `cause` */
    TT_NEWS_GO,     /* a world goes on: cause.world, cause.generation; code: its workers; spares */
    TT_NEWS_HOST,   /* a host has joined, leaves or is lost: `text`, and `line` for programs */
    TT_NEWS_AGAIN,  /* the first step after a failure is committed: `seconds` after it was seen;
                     * cause.kind RESIZE: after a resize, `seconds` after the last step before  */
    TT_NEWS_LETTER, /* from another command of ours: `line`; tt_supervisor_answer           */
    TT_NEWS_EXIT,   /* all is over: code, cause                                            */
} tt_news_kind;
typedef struct tt_news {
    tt_news_kind kind;
    json_t *line;     /* borrowed until the next take */
    const char *text; /* a sentence for people */
    tt_cause cause;
    int code, spares;
    double seconds;
    tt_hub_from from;
} tt_news;
bool tt_supervisor_take(tt_supervisor *s, tt_news *out);
void tt_supervisor_answer(tt_supervisor *s, tt_hub_from to, json_t *o); /* takes the reference */
/* The last lines that the workers and launcher of a world printed and that were no news; oldest
 * first. For worlds that ended without a word. */
int tt_supervisor_said(const tt_supervisor *s, const char *const **lines);
tt_policy_view tt_supervisor_look(const tt_supervisor *s);
/* The members of the active world, for display: name of the host and process by rank; how many. */
typedef struct tt_worker {
    const char *host;
    int pid;
    tt_phase phase;
    int64_t step;
} tt_worker;
int tt_supervisor_workers(const tt_supervisor *s, tt_worker *out, int room);
void tt_supervisor_close(tt_supervisor *s); /* ends what is left; accepts NULL */

#endif
