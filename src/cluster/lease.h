/* lease: who of several supervisors leads. A pure state machine: no clock, no sockets.
 *
 *   tt_lease_begin -> tt_lease_step(l, &event, now) -> an action ... until TT_LEASE_EXIT
 *
 * A coordinator outside (etcd) keeps one helm for each run. Who has it holds a lease, which ends
 * `ttl_s` after it was last renewed; then the helm is free for others. The machine is told what was
 * answered and what time it is, and says what to do next. One request is under way at a time: what
 * it asked for last is answered before it asks for anything else, be it by TT_LEASE_FAILED.
 *
 *   LOOKING ── granted ──> LEADING ── ended ──> CLOSING ── closed ──> OVER
 *      ^  └─ the run is over: OVER   │                └─ refused: LOOKING
 *      └── stopped, and the lease has ended ── LEAVING <── lost, or time is up
 *
 * What it must hold:
 * (1) It leads only while its lease has more than margin_s left, by its own clock, from when the
 *     request was sent, for the coordinator counts from when it came. An answer that comes late,
 *     because it or this process was held up, is worth what is left of it: nothing, maybe.
 * (2) After STEP_DOWN it asks for the helm again only when its world is gone and its old lease has
 *     ended: workers that could not be told know no later time than that.
 * (3) The result of the run is told by who had the helm when the run ended; if that is not known to
 *     have arrived, it is tried until close_s are over: a standby would find it out by itself.
 *
 * `now` must go on while the machine sleeps (CLOCK_BOOTTIME), and never goes back. */
#ifndef TT_LEASE_H
#define TT_LEASE_H

#include "base/base.h"

typedef struct tt_lease_opts {
    double ttl_s;    /* as it was asked for: 3                                                   */
    double margin_s; /* so long before its end it counts as ended, and the world is: 0.5         */
    double renew_s;  /* between two renewals: 0.4                                                */
    double again_s;  /* after one that was not answered: 0.1                                     */
    double look_s;   /* between two looks at the helm of another: 0.2                            */
    double close_s;  /* how long the result is tried to be told: 10                              */
} tt_lease_opts;
tt_lease_opts tt_lease_defaults(void);

typedef enum tt_lease_event_kind {
    TT_LEASE_TIMER,   /* nothing but time                                                      */
    TT_LEASE_GRANTED, /* to CAMPAIGN: the helm is ours; sent, ttl_s                            */
    TT_LEASE_RENEWED, /* to RENEW: sent, ttl_s                                                 */
    TT_LEASE_REFUSED, /* to CAMPAIGN: another has the helm. To CLOSE: it is not ours any more  */
    TT_LEASE_LOST,    /* to RENEW, or by itself: the helm is not ours any more                 */
    TT_LEASE_FAILED,  /* to any: no answer, so it is not known what became of the request      */
    TT_LEASE_RESULT,  /* to CAMPAIGN: the run has ended; code                                  */
    TT_LEASE_CLOSED,  /* to CLOSE: done                                                        */
    TT_LEASE_STOPPED, /* the world of this supervisor is gone, but the run has not ended       */
    TT_LEASE_ENDED,   /* the world is gone, and so is the run, or our part in it: code         */
} tt_lease_event_kind;
typedef struct tt_lease_event {
    tt_lease_event_kind kind;
    double sent, ttl_s; /* when the request was sent that is answered; what the lease was given */
    int code;
} tt_lease_event;

typedef enum tt_lease_action {
    TT_LEASE_NOTHING,
    TT_LEASE_CAMPAIGN,  /* look at the helm, and take it if it is free                   */
    TT_LEASE_RENEW,     /* the lease, and see that the helm is ours                      */
    TT_LEASE_LEAD,      /* supervise, from now on                                        */
    TT_LEASE_STEP_DOWN, /* end the world at once; then tell STOPPED                      */
    TT_LEASE_CLOSE,     /* tell the result, and leave the helm                           */
    TT_LEASE_EXIT,      /* with `code`                                                   */
} tt_lease_action;

typedef enum tt_lease_state {
    TT_LEASE_LOOKING,
    TT_LEASE_LEADING,
    TT_LEASE_LEAVING,
    TT_LEASE_CLOSING,
    TT_LEASE_OVER,
} tt_lease_state;

typedef struct tt_lease {
    tt_lease_opts o;
    tt_lease_state state;
    double until; /* when our lease may have ended; before any: long ago     */
    double next;  /* when the next request is due                            */
    double since; /* closing                                                 */
    bool asked;   /* a request is under way                                  */
    bool stopped; /* leaving: the world is gone                              */
    int code;
} tt_lease;

void tt_lease_begin(tt_lease *l, const tt_lease_opts *o, double now);
tt_lease_action tt_lease_step(tt_lease *l, const tt_lease_event *e, double now);
/* How long it surely leads from now on; 0 or less: it does not. To be asked before every deed. */
double tt_lease_left(const tt_lease *l, double now);

#endif
