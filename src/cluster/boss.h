/* boss: the private face of the supervisor: its worlds, and what its files do for each other.
 *
 * supervisor.c carries out what the policy decides, hear.c turns letters, lines and deaths into
 * events, closer.c looks at who is silent, places.c knows the hosts, cause.c says in words what
 * happened. */
#ifndef TT_BOSS_H
#define TT_BOSS_H

#include "inner.h"
#include "supervisor.h"

enum { TT_KEPT_LINES = 20 };

typedef struct stream {
    char *text;
    size_t used;
    bool ended;
} stream;

typedef struct member {
    tt_hub_from from;
    int pid, pidfd; /* 0: not heard of; -1: on another host, or dead */
    bool here, dead;
    double heard;  /* from it, last                */
    double at;     /* ... by its own clock         */
    bool answered; /* that it came                 */
    tt_phase phase;
    int64_t step, kept; /* made, and committed */
    bool waits;
    double looked, cpu_s; /* when closer.c first looked since it was heard, and what it saw */
} member;

typedef struct world {
    int id; /* 0: none */
    bool launched;
    tt_launch launch;
    int keeper; /* a pidfd: readable when it ends */
    member *member;
    int members, workers, generation;
    double went;       /* when it had GO                         */
    bool found;        /* it has told from where it goes on: ... */
    int64_t from;      /* ... this step                          */
    double held;       /* 0: not; else until when it waits for hosts that may come back ... */
    tt_record lost;    /* ... and what is recorded if none does  */
    bool yields;       /* it was told to make room               */
    double kill_at;    /* 0: not; else when, for one that tells its stacks first */
    bool killed, left; /* left: nothing of it is here any more  */
    int code;
    stream out, err;
} world;

typedef struct place {
    char name[256];
    char reach[256]; /* what the launcher calls it; "": by its name */
    int slots;
    bool here, joined, leaving;
} place;

struct tt_supervisor {
    tt_supervisor_opts o;
    tt_policy *policy;
    tt_book book;
    world world[TT_WORLDS_MOST];
    place *place; /* of hosts, by the policy's numbers */
    int places, threads;
    bool began; /* a world has told of its start */
    bool saved; /* the last one has saved all it had done, and left */
    tt_news *news, held;
    int first, end, room;
    char *kept[TT_KEPT_LINES];
    int kept_count;
    double told, recorded;
    double left;   /* when the last step before a resize was told; 0: none to be made good */
    double failed; /* when a failure was seen that is not made good yet; 0: none */
    int64_t failed_step;
    int failed_generation;
    char why[512], renewed[128], host[64];
    char id[TT_MARK]; /* ours alone: workers of another supervisor are not heard */
};

/* ---- supervisor.c ---- */
bool boss_deposed(const tt_supervisor *s); /* another may lead: what we do must not be seen */
void boss_news(tt_supervisor *s, tt_news n);
void boss_keep(tt_supervisor *s, const char *line); /* one that is no news, for the end */
world *boss_world(tt_supervisor *s, int id);        /* NULL: there is none */
world *boss_active(tt_supervisor *s);
void boss_kill(tt_supervisor *s, world *w);
void boss_part(tt_supervisor *s, world *w); /* it is at its end: kill it, now or soon */
void boss_forget(world *w);
bool boss_all_gone(const tt_supervisor *s, const world *w);
void boss_record(tt_supervisor *s, const tt_record *r, bool safe);
void boss_record_told(tt_supervisor *s, bool safe); /* how far the active world has come */
void boss_take(tt_supervisor *s, tt_event e);       /* the policy decides, and it is done */

/* ---- hear.c ---- */
void boss_hear(tt_supervisor *s);     /* all letters that have come */
void boss_tell_run(tt_supervisor *s); /* hosts that join, which run it is */
void boss_answer(tt_supervisor *s, world *w);
void boss_see_dead(tt_supervisor *s, world *w);
void boss_look(tt_supervisor *s, world *w); /* what its processes print, and whether it is gone */

/* ---- closer.c ---- */
void boss_look_closer(tt_supervisor *s);

/* ---- places.c ---- */
const char *boss_host(const tt_supervisor *s, int host); /* its name */
void boss_hear_hosts(tt_supervisor *s);
void boss_release_hosts(tt_supervisor *s);

/* ---- cause.c ---- */
void boss_describe(const tt_supervisor *s, const tt_cause *c, tt_str *out);
bool boss_is_failure(tt_cause_kind k);

#endif
