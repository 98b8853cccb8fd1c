/* supervisor: carries out what the policy decides. It starts worlds, hears their workers, sees them
 * die, ends them for certain, and hands on what they say; what is to be done it asks the policy.
 *
 *   tt_supervisor_open -> [tt_supervisor_turn -> tt_supervisor_take ...] ... -> close
 *
 * It shows nothing: what happens comes out as news, for whoever has a screen. */
#ifndef TT_SUPERVISOR_H
#define TT_SUPERVISOR_H

#include "cluster/cluster.h"
#include "cluster/policy.h"

typedef struct tt_supervisor_opts {
    const tt_hosts *hosts; /* with their slots; NULL or count 0: this host, `policy.most` slots */
    tt_policy_opts policy;
    /* The worker's command, ended by NULL. The first world has `argv`; when it has told of its run
     * folder, those after it have `next` with that folder behind it. */
    const char *const *argv, *const *next;
    const char *launched_by; /* for the banner: "-n 4" */
    const char *folder; /* of mode 0700, for sockets and files of launchers                   */
    tt_hub *hub;        /* in that folder; how workers and agents reach us                    */
    bool agents;        /* other hosts are reached by their agents, not by a remote shell     */
    const char *far;    /* where workers on other hosts reach the hub; NULL: they do not      */
} tt_supervisor_opts;

typedef struct tt_supervisor tt_supervisor;
tt_err tt_supervisor_open(const tt_supervisor_opts *o, tt_supervisor **out);

/* What has happened since the last turn; waits up to `ms` for something. Never longer than 50 ms.
 */
void tt_supervisor_turn(tt_supervisor *s, int ms);
void tt_supervisor_want(tt_supervisor *s, int least, int most);
void tt_supervisor_stop(tt_supervisor *s, int code); /* save, and end with this exit code */
void tt_supervisor_quit(tt_supervisor *s);           /* end */

typedef enum tt_news_kind {
    TT_NEWS_NONE,
    TT_NEWS_LINE,  /* an object that a worker of the active world told: see `line`       */
    TT_NEWS_CAUSE, /* why a world ends, a slot is left out, it waits: see `text`, `cause` */
    TT_NEWS_GO,    /* a world goes on: cause.world, cause.generation; code: its workers  */
    TT_NEWS_EXIT,  /* all is over: code                                                  */
} tt_news_kind;
typedef struct tt_news {
    tt_news_kind kind;
    json_t *line;     /* borrowed until the next take */
    const char *text; /* a sentence for people */
    tt_cause cause;
    int code;
} tt_news;
bool tt_supervisor_take(tt_supervisor *s, tt_news *out);
/* The last lines that the workers and launcher of a world printed and that were no news; oldest
 * first. For worlds that ended without a word. */
int tt_supervisor_said(const tt_supervisor *s, const char *const **lines);
tt_policy_view tt_supervisor_look(const tt_supervisor *s);
void tt_supervisor_close(tt_supervisor *s); /* ends what is left; accepts NULL */

#endif
