/* The executor of the policy: processes, sockets and time become events, actions become processes
 * and letters.
 *
 * A rank is known from its first beat, with its process; on this host a pidfd then tells its death
 * at once. That a world is gone its keeper tells by ending. Between the order to kill a world and
 * that, nothing of it is believed any more: its letters are dropped by the policy.
 *
 * With a helm, all workers live by its lease: an answer to a beat says for how long, counted from
 * that beat. And once it is lost nothing is written, ordered or granted any more. */
#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/store.h"
#include "supervisor.h"

enum { LINE_MOST = 1 << 20, KEPT_LINES = 20, TURN_MS = 50, POLLS = 512 };
static const double ALIVE_S = 0.25, STACK_S = 0.3, TOLD_S = 1;
static const double LEASE_MARGIN_S = 0.5; /* for workers that look at their clock late */

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
} member;

typedef struct world {
    int id; /* 0: none */
    bool launched;
    tt_launch launch;
    int keeper; /* a pidfd: readable when it ends */
    member *member;
    int members, workers, generation;
    bool found;        /* it has told from where it goes on      */
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
    tt_news *news, held;
    int first, end, room;
    char *kept[KEPT_LINES];
    int kept_count;
    double told, recorded;
    double left;   /* when the last step before a resize was told; 0: none to be made good */
    double failed; /* when a failure was seen that is not made good yet; 0: none */
    int64_t failed_step;
    int failed_generation;
    char why[512], renewed[128], host[64];
};

/* ---- the helm ---- */

/* Another may lead by now: what we do must not be seen. */
static bool is_deposed(const tt_supervisor *s)
{
    return s->o.helm && tt_helm_left(s->o.helm) <= 0;
}

/* ---- news ---- */

static void free_news(tt_news *n)
{
    json_decref(n->line);
    free((void *)(uintptr_t)n->text);
    *n = (tt_news){0};
}

static void add_news(tt_supervisor *s, tt_news n)
{
    if (s->end == s->room) {
        s->room = s->room ? 2 * s->room : 64;
        if (!(s->news = realloc(s->news, (size_t)s->room * sizeof n))) tt_mem_out(sizeof n);
    }
    s->news[s->end++] = n;
}

bool tt_supervisor_take(tt_supervisor *s, tt_news *out)
{
    free_news(&s->held);
    *out = (tt_news){0};
    if (s->first == s->end) {
        s->first = s->end = 0;
        return false;
    }
    *out = s->held = s->news[s->first++];
    return true;
}

static void keep(tt_supervisor *s, const char *line)
{
    if (!*line) return;
    if (s->kept_count == KEPT_LINES) {
        free(s->kept[0]);
        memmove(s->kept, s->kept + 1, (KEPT_LINES - 1) * sizeof *s->kept);
        s->kept_count--;
    }
    if (!(s->kept[s->kept_count++] = strdup(line))) tt_mem_out(strlen(line));
}

int tt_supervisor_said(const tt_supervisor *s, const char *const **lines)
{
    *lines = (const char *const *)s->kept;
    return s->kept_count;
}

/* ---- worlds ---- */

static world *find_world(tt_supervisor *s, int id)
{
    for (int i = 0; id && i < TT_WORLDS_MOST; i++)
        if (s->world[i].id == id) return &s->world[i];
    return NULL;
}

static const char *host_name(const tt_supervisor *s, int host)
{
    return host >= 0 && host < s->places ? s->place[host].name : s->host;
}

static world *active_world(tt_supervisor *s)
{
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (s->world[i].id && s->world[i].generation) return &s->world[i];
    return NULL;
}

/* The members of a world as the launcher takes them: hosts in the order of ranks. */
static void list_hosts(const tt_supervisor *s, const tt_member *m, int count, tt_arena *a,
                       tt_hosts *out)
{
    bool all_here = true;

    *out = (tt_hosts){.host = tt_arena_take(a, (size_t)(count + 1) * sizeof *out->host, 8)};
    for (int i = 0; i < count; i++) {
        if (!i || m[i].host != m[i - 1].host) {
            tt_host *h = &out->host[out->count++];
            memset(h, 0, sizeof *h);
            const place *p = &s->place[m[i].host];
            snprintf(h->name, sizeof h->name, "%s", *p->reach ? p->reach : p->name);
            all_here &= p->here;
        }
        out->host[out->count - 1].slots++;
    }
    if (all_here) out->count = 0;
}

static const char **list_command(const tt_supervisor *s, tt_arena *a)
{
    const char *const *from = s->began ? s->o.next : s->o.argv;
    const char **words;
    int n = 0, count = 0;

    while (from[n]) n++;
    words = tt_arena_take(a, (size_t)(n + 3) * sizeof *words, 8);
    for (int i = 0; i < n; i++) {
        if (s->threads && !strcmp(from[i], "--")) { /* behind all options: the last one counts */
            words[count++] = "--threads";
            words[count++] = tt_arena_printf(a, "%d", s->threads);
        }
        words[count++] = from[i];
    }
    words[count] = NULL;
    return words;
}

static tt_err launch_world(tt_supervisor *s, world *w)
{
    tt_arena *a = tt_arena_open(16 << 10);
    const tt_member *m;
    tt_hosts hosts;
    tt_err err = TT_OK;

    TT_FAILPOINT("supervisor.launch");
    w->launched = true;
    w->members = tt_policy_members(s->policy, w->id, &m);
    for (int i = 0; i < w->members; i++) w->workers += !m[i].spare;
    list_hosts(s, m, w->members, a, &hosts);
    const char *const env[] = {
        "TUTTI_SUPERVISED=1",
        tt_arena_printf(a, "TUTTI_LAUNCHED_BY=%s (%s)", s->o.launched_by, tt_launcher_name()),
        tt_arena_printf(a, "TUTTI_CONTROL=%s", tt_hub_address(s->o.hub)),
        tt_arena_printf(a, "TUTTI_CONTROL_HOST=%s", s->host),
        tt_arena_printf(a, "TUTTI_CONTROL_PID=%d", (int)getpid()),
        tt_arena_printf(a, "TUTTI_CONTROL_WORLD=%d", w->id),
        tt_arena_printf(a, "TUTTI_WORKERS=%d", w->workers),
        tt_arena_printf(a, "TUTTI_SHARE=%s", s->o.rooms && *s->o.rooms ? s->o.rooms : "0"),
        tt_arena_printf(a, "TUTTI_CONTROL_LEASE=%g", s->o.helm ? tt_helm_lease_s(s->o.helm) : 0),
        s->o.far ? tt_arena_printf(a, "TUTTI_CONTROL_FAR=%s", s->o.far) : NULL,
        NULL};
    const char **command = list_command(s, a);
    tt_launch_opts l = {.hosts = hosts.count ? &hosts : NULL,
                        .ranks = w->members,
                        .argv = command,
                        .env = env,
                        .folder = tt_arena_printf(a, "%s/world-%d", s->o.folder, w->id),
                        .rooms = s->o.rooms,
                        .home = s->o.folder};
    if (s->o.agents) err = tt_hub_rsh(s->o.hub, command[0], a, &l.rsh);
    if (!err && !(err = tt_launch_start(&l, &w->launch))) {
        w->member = calloc((size_t)w->members, sizeof *w->member);
        if (!w->member) tt_mem_out(sizeof *w->member);
        for (int i = 0; i < w->members; i++) w->member[i].pidfd = -1;
        w->keeper = (int)syscall(SYS_pidfd_open, w->launch.pid, 0);
    }
    tt_arena_close(a);
    return err;
}

static void forget_world(world *w)
{
    for (int i = 0; w->member && i < w->members; i++)
        if (w->member[i].pidfd >= 0) close(w->member[i].pidfd);
    if (w->keeper >= 0) close(w->keeper);
    free(w->member);
    free(w->out.text);
    free(w->err.text);
    tt_launch_close(&w->launch);
    *w = (world){.keeper = -1};
}

/* All of it at once: those we know by their descriptors, those on other hosts by a letter, the rest
 * by the keeper. */
static void kill_world(tt_supervisor *s, world *w)
{
    w->killed = true;
    w->kill_at = 0;
    for (int i = 0; i < w->members && w->member; i++) {
        member *m = &w->member[i];
        if (m->pidfd >= 0) syscall(SYS_pidfd_send_signal, m->pidfd, SIGKILL, NULL, 0);
        if (!m->here && m->pid && !m->dead)
            tt_hub_say(s->o.hub, m->from, json_pack("{s:s}", "say", "die"));
    }
    if (w->launched) tt_launch_signal(&w->launch, SIGKILL);
}

/* Of ranks on other hosts we know that they do nothing any more when they have said so, the last
 * thing being that they are at their end, or when they have heard nothing of us for longer than
 * they live without. */
static bool all_gone(const tt_supervisor *s, const world *w)
{
    double now = tt_clock_s(), lease_s = s->o.helm ? tt_helm_lease_s(s->o.helm) : TT_LEASE_S;

    for (int i = 0; i < w->members && w->member; i++) {
        const member *m = &w->member[i];
        if (!m->here && m->pid && !m->dead && m->phase != TT_PHASE_END &&
            now - m->heard < lease_s + LEASE_MARGIN_S)
            return false;
    }
    return true;
}

/* ---- actions ---- */

static void take_event(tt_supervisor *s, tt_event e);

/* "rank 2 (host b) was killed by signal 9 in step 120": what is known. */
static void describe(const tt_supervisor *s, const tt_cause *c, tt_str *out)
{
    char span[32];

    if (c->rank >= 0 && c->kind != TT_CAUSE_HOST && c->kind != TT_CAUSE_LEAVE &&
        c->kind != TT_CAUSE_OUT)
        tt_str_add(out, "rank %d (%s) ", c->rank, host_name(s, c->host));
    tt_show_time(c->silent_s, span, sizeof span);
    switch (c->kind) {
    case TT_CAUSE_DEAD:
        if (c->code > 128)
            tt_str_add(out, "was ended by signal %d (%s)", c->code - 128, strsignal(c->code - 128));
        else if (c->code > 0)
            tt_str_add(out, "ended with exit code %d", c->code);
        else
            tt_str_add(out, "%s", c->rank >= 0 ? "died" : "the workers ended without a word");
        break;
    case TT_CAUSE_HUNG:
        tt_str_add(out, "gives no sign of life for %s", span);
        break;
    case TT_CAUSE_STUCK:
        tt_str_add(out, "lives, but makes no progress for %s", span);
        break;
    case TT_CAUSE_TROUBLE:
        tt_str_add(out, c->code == 4 ? "misses another one" : "met an error");
        break;
    case TT_CAUSE_START:
        tt_str_add(out, "world %d did not come up", c->world);
        break;
    case TT_CAUSE_HOST:
        tt_str_add(out, "host %s is gone", host_name(s, c->host));
        break;
    case TT_CAUSE_LEAVE:
        tt_str_add(out, "host %s leaves", host_name(s, c->host));
        break;
    case TT_CAUSE_RESIZE:
        tt_str_add(out, "another number of workers is wanted");
        break;
    case TT_CAUSE_BELOW:
        tt_str_add(out, "too few workers are left: waiting for more");
        break;
    case TT_CAUSE_OUT:
        tt_str_add(out,
                   c->code ? "slot %d of %s failed too often and is left out"
                           : "slot %d of %s had wrong numbers before and is left out for good",
                   c->slot, host_name(s, c->host));
        break;
    case TT_CAUSE_BACK:
        tt_str_add(out, "slot %d of %s is taken in again", c->slot, host_name(s, c->host));
        break;
    case TT_CAUSE_STOP:
        tt_str_add(out, "told to stop");
        break;
    case TT_CAUSE_RENEW:
        tt_str_add(out, "%s", s->renewed);
        break;
    case TT_CAUSE_CORRUPT:
        tt_str_add(out, "has other numbers than the others");
        break;
    case TT_CAUSE_NONE:
        break;
    }
    if (c->step > 0) tt_str_add(out, ", after step %lld", (long long)c->step);
    if (c->kind == TT_CAUSE_DEAD || c->kind == TT_CAUSE_HUNG || c->kind == TT_CAUSE_STUCK)
        tt_str_add(out, ", in %s", tt_phase_name(c->phase));
}

static bool is_failure(tt_cause_kind k)
{
    return k == TT_CAUSE_DEAD || k == TT_CAUSE_HUNG || k == TT_CAUSE_STUCK ||
           k == TT_CAUSE_TROUBLE || k == TT_CAUSE_HOST || k == TT_CAUSE_CORRUPT;
}

static void tell(tt_supervisor *s, const tt_cause *c)
{
    const world *w = find_world(s, c->world);
    tt_str text = {0};

    describe(s, c, &text);
    if (w && w->generation) snprintf(s->why, sizeof s->why, "%s", text.data);
    if (w && w->generation && is_failure(c->kind) && !(s->failed > 0)) {
        s->failed = tt_clock_s();
        s->failed_generation = w->generation;
        s->failed_step = tt_policy_look(s->policy).step;
    }
    add_news(s, (tt_news){.kind = TT_NEWS_CAUSE, .text = text.data, .cause = *c});
}

static void say_to_all(tt_supervisor *s, const world *w, const json_t *o)
{
    for (int i = 0; i < w->members && w->member; i++)
        if (w->member[i].pid && !w->member[i].dead)
            tt_hub_say(s->o.hub, w->member[i].from, json_copy((json_t *)(uintptr_t)o));
}

static void say_word(tt_supervisor *s, const world *w, const char *word)
{
    json_t *o = json_pack("{s:s}", "say", word);

    say_to_all(s, w, o);
    json_decref(o);
}

/* ---- the ledger ---- */

static void record(tt_supervisor *s, const tt_record *r, bool safe)
{
    const char *wrong;

    if (is_deposed(s)) return;
    wrong = tt_book_record(&s->book, r, safe);
    if (wrong) tt_warn("the ledger of the run: %s", wrong);
}

static void tell_of_book(tt_supervisor *s)
{
    char alarm[768];
    tt_str text = {0};

    if (!tt_book_news(&s->book, alarm)) return;
    tt_str_add(&text, "tutti: warning: %s", alarm);
    add_news(s, (tt_news){.kind = TT_NEWS_TEXT, .text = text.data});
}

/* How far all ranks of the active world have come: the farthest that the slowest one has told. */
static void record_told(tt_supervisor *s, bool safe)
{
    const world *w = active_world(s);
    const tt_ledger *k = &s->book.ledger;
    int64_t least = INT64_MAX;

    if (!w || !w->found || !w->member) return;
    for (int i = 0; i < w->members; i++)
        if (w->member[i].phase < TT_PHASE_STEP || w->member[i].kept < least)
            least = w->member[i].phase < TT_PHASE_STEP ? -1 : w->member[i].kept;
    if (least <= k->told.label.step || least == INT64_MAX) return;
    record(s,
           &(tt_record){.kind = TT_REC_TOLD, .generation = (uint32_t)w->generation, .step = least},
           safe);
}

/* When rank 0 tells that all went well, all ranks have done all of its steps, whatever their last
 * beats said. */
static void record_end(tt_supervisor *s, const world *w, const json_t *o, int code)
{
    int64_t steps = json_integer_value(json_object_get(o, "steps"));

    record_told(s, true);
    if (code || !w->found || steps <= s->book.ledger.told.label.step) return;
    record(s,
           &(tt_record){.kind = TT_REC_TOLD, .generation = (uint32_t)w->generation, .step = steps},
           true);
}

static void hear_found(tt_supervisor *s, world *w, const json_t *o)
{
    tt_record r = {.kind = TT_REC_FOUND,
                   .generation = (uint32_t)w->generation,
                   .attempt = (uint32_t)json_integer_value(json_object_get(o, "attempt")),
                   .step = json_integer_value(json_object_get(o, "step")),
                   .made = (uint32_t)json_integer_value(json_object_get(o, "made"))};

    if (w != active_world(s) || w->killed || w->found) return;
    w->found = true;
    if (json_is_true(json_object_get(o, "lost")) && s->book.ledger.committed) {
        tt_record lost = r;
        lost.kind = TT_REC_LOST;
        record(s, &lost, false);
    }
    record(s, &r, true);
    if (is_deposed(s)) return;
    TT_FAILPOINT("supervisor.found");
    tt_hub_say(s->o.hub, w->member[0].from, json_pack("{s:s}", "say", "heard"));
}

/* A world has gone back. What its ranks told before is no more. */
static void hear_rollback(tt_supervisor *s, world *w, const json_t *o)
{
    tt_record r = {.kind = TT_REC_ROLLBACK,
                   .generation = (uint32_t)w->generation,
                   .attempt = (uint32_t)json_integer_value(json_object_get(o, "attempt")),
                   .step = json_integer_value(json_object_get(o, "step"))};

    if (!w->generation || !w->found || w->killed) return;
    for (int i = 0; i < w->members && w->member; i++) w->member[i].step = r.step;
    record(s, &r, true);
}

static void hear_epoch(tt_supervisor *s, const world *w, const json_t *o)
{
    tt_record r = {.kind = TT_REC_EPOCH,
                   .generation = (uint32_t)w->generation,
                   .epoch = json_integer_value(json_object_get(o, "epoch")),
                   .samples = (uint64_t)json_integer_value(json_object_get(o, "samples")),
                   .witness = {(uint64_t)json_integer_value(json_object_get(o, "sum")),
                               (uint64_t)json_integer_value(json_object_get(o, "count"))}};

    if (w->generation && w->found && !w->killed) record(s, &r, false);
}

/* ---- actions ---- */

static void start_world(tt_supervisor *s, int id)
{
    world *w = NULL;

    for (int i = 0; i < TT_WORLDS_MOST && !w; i++)
        if (!s->world[i].id) w = &s->world[i];
    TT_ASSERT(w);
    *w = (world){.id = id, .keeper = -1};
}

/* A world that is to follow one that has just begun waits for it to say what it is: the job as it
 * was resolved is in the run folder then. */
static void launch_started(tt_supervisor *s)
{
    for (int i = 0; i < TT_WORLDS_MOST; i++) {
        world *w = &s->world[i];
        int id = w->id;
        if (!id || w->launched || (!s->began && active_world(s))) continue;
        if (!launch_world(s, w)) continue;
        keep(s, tt_message());
        tt_warn("%s", tt_message());
        forget_world(w);
        take_event(s, (tt_event){.kind = TT_EV_GONE, .world = id, .code = 7});
    }
}

static void give_go(tt_supervisor *s, world *w, int generation)
{
    const tt_ledger *k = &s->book.ledger;
    json_t *o = json_pack("{s:s, s:i, s:o}", "say", "go", "generation", generation, "why",
                          tt_json_text(s->why));

    if (k->committed)
        json_object_set_new(
            o, "told",
            json_pack("{s:I, s:I, s:I, s:I}", "generation", (json_int_t)k->told.label.generation,
                      "attempt", (json_int_t)k->told.label.attempt, "step",
                      (json_int_t)k->told.label.step, "by", (json_int_t)k->told.by));
    w->generation = generation;
    tt_record r = {.kind = TT_REC_GO, .generation = (uint32_t)generation, .workers = w->workers};
    snprintf(r.why, sizeof r.why, "%.*s", (int)sizeof r.why - 1, s->why);
    record(s, &r, false);
    TT_FAILPOINT("supervisor.go");
    say_to_all(s, w, o);
    json_decref(o);
    TT_FAILPOINT("supervisor.went");
    add_news(s, (tt_news){.kind = TT_NEWS_GO,
                          .code = w->workers,
                          .spares = w->members - w->workers,
                          .cause = {.world = w->id, .generation = generation}});
}

static void end_world(tt_supervisor *s, world *w, bool stacks)
{
    if (w->generation) record_told(s, true);
    if (!stacks) {
        TT_FAILPOINT("supervisor.kill");
        kill_world(s, w);
        TT_FAILPOINT("supervisor.killed");
        return;
    }
    say_word(s, w, "stacks");
    w->kill_at = tt_clock_s() + STACK_S;
}

static void act(tt_supervisor *s, const tt_action *a, bool stuck)
{
    world *w = find_world(s, a->world);

    switch (a->kind) {
    case TT_ACT_START:
        start_world(s, a->world);
        break;
    case TT_ACT_PERSIST:
        if (!s->o.helm || tt_helm_persist(s->o.helm, a->generation))
            tt_book_persist(&s->book, a->generation); /* else it is deposed, and does no more */
        break;
    case TT_ACT_GO:
        if (w) give_go(s, w, a->generation);
        break;
    case TT_ACT_YIELD:
        if (w) w->yields = true;
        if (w) say_word(s, w, "yield");
        break;
    case TT_ACT_SAVE:
        if (w) say_word(s, w, "save");
        break;
    case TT_ACT_KILL:
        if (w) end_world(s, w, stuck);
        break;
    case TT_ACT_TELL:
        tell(s, &a->cause);
        break;
    case TT_ACT_EXIT:
        TT_FAILPOINT("supervisor.exit");
        record(s,
               &(tt_record){
                   .kind = TT_REC_END, .step = s->book.ledger.told.label.step, .code = a->code},
               true);
        add_news(s, (tt_news){.kind = TT_NEWS_EXIT, .code = a->code, .cause = a->cause});
        break;
    }
}

static void take_event(tt_supervisor *s, tt_event e)
{
    tt_action a[TT_WORLDS_MOST * 4];
    int n = tt_policy_step(s->policy, &e, tt_clock_s(), a, TT_COUNT(a));

    bool stuck = false;

    for (int i = 0; i < n; i++) {
        stuck |= a[i].kind == TT_ACT_TELL && a[i].cause.kind == TT_CAUSE_STUCK;
        if (is_deposed(s)) return;
        act(s, &a[i], stuck);
    }
}

/* ---- what is heard ---- */

static int whole(const json_t *o, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(o, key));
    return n < -1 || n > INT32_MAX ? -1 : (int)n;
}

/* One that makes room has done so when all its ranks have: their state is in the vault and closed.
 * How long the launcher takes to notice is not waited for. */
static void hurry(tt_supervisor *s, world *w)
{
    if (!w->yields || w->killed) return;
    for (int i = 0; i < w->members; i++)
        if (w->member[i].phase != TT_PHASE_END) return;
    record_told(s, true);
    kill_world(s, w);
}

/* In answer to a beat: a worker that we do not hear is not to take our word for life. It lives so
 * long from that beat on; with a helm, until we do not lead any more. */
static void say_alive(tt_supervisor *s, world *w)
{
    double for_s = s->o.helm ? tt_helm_left(s->o.helm) : TT_LEASE_S;

    if (is_deposed(s)) return;
    for (int r = 0; r < w->members && w->member && !w->killed; r++) {
        member *m = &w->member[r];
        if (!m->pid || (m->here && !s->o.helm) || m->dead || m->answered) continue;
        tt_hub_say(s->o.hub, m->from,
                   json_pack("{s:s, s:f, s:f}", "say", "alive", "at", m->at, "for", for_s));
        m->answered = true;
    }
}

/* The first step after a failure. */
static void note_step(tt_supervisor *s, const world *w, const member *m)
{
    if (!(s->failed > 0) || w->generation <= s->failed_generation || w->killed) return;
    if (m->phase != TT_PHASE_STEP || m->step <= s->failed_step) return;
    add_news(s, (tt_news){.kind = TT_NEWS_AGAIN,
                          .seconds = tt_clock_s() - s->failed,
                          .cause = {.world = w->id, .generation = w->generation, .step = m->step}});
    s->failed = 0;
}

/* The first one after a resize. */
static void note_resized(tt_supervisor *s, const world *w, const json_t *progress)
{
    if (!(s->left > 0) || w->killed || w != active_world(s)) return;
    add_news(s,
             (tt_news){.kind = TT_NEWS_AGAIN,
                       .seconds = tt_clock_s() - s->left,
                       .cause = {.kind = TT_CAUSE_RESIZE,
                                 .world = w->id,
                                 .generation = w->generation,
                                 .step = json_integer_value(json_object_get(progress, "step"))}});
    s->left = 0;
}

static void hear_beat(tt_supervisor *s, tt_hub_from from, const json_t *o)
{
    world *w = find_world(s, whole(o, "world"));
    int rank = whole(o, "rank"), phase = whole(o, "phase"), pid = whole(o, "pid");

    if (!w || !w->member || rank < 0 || rank >= w->members || phase < 0 || phase >= TT_PHASES ||
        pid <= 0)
        return;
    member *m = &w->member[rank];
    bool first = !m->pid;
    if (first) {
        m->pid = pid;
        m->here = !from.far;
        if (m->here) m->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    }
    m->from = from;
    m->heard = tt_clock_s();
    m->at = json_number_value(json_object_get(o, "at"));
    m->answered = false;
    m->phase = (tt_phase)phase;
    m->step = json_integer_value(json_object_get(o, "step"));
    m->kept = json_integer_value(json_object_get(o, "kept"));
    note_step(s, w, m);
    if (first) say_alive(s, w);
    take_event(s, (tt_event){.kind = TT_EV_BEAT,
                             .world = w->id,
                             .rank = rank,
                             .phase = m->phase,
                             .step = m->step,
                             .waits = json_is_true(json_object_get(o, "waits"))});
    if (m->phase == TT_PHASE_END && find_world(s, whole(o, "world")) == w) hurry(s, w);
}

/* A job, a dataset or numbers that are bad will be so the next time. */
static bool is_fatal(int code)
{
    return code == 2 || code == 3 || code == 5 || code == 6 || code == 7;
}

/* Hosts that join are told which run it is, so that they can clear away what it leaves there. */
static void tell_run(tt_supervisor *s)
{
    char path[4200], id[TT_RUN_ID];
    tt_bytes b;

    snprintf(path, sizeof path, "%s/id", s->o.run);
    if (!tt_file_exists(path) || tt_file_read(path, 64, &b)) return;
    snprintf(id, sizeof id, "%.*s", (int)(b.size < 32 ? b.size : 32), (const char *)b.data);
    tt_file_release(&b);
    tt_hub_set_run(s->o.hub, id);
}

/* Ranks whose numbers were not those of the others. */
static void hear_blame(tt_supervisor *s, int id, const json_t *list, bool ends)
{
    json_t *rank;
    size_t i;

    json_array_foreach(list, i, rank)
    {
        take_event(s, (tt_event){.kind = TT_EV_CORRUPT,
                                 .world = id,
                                 .rank = (int)json_integer_value(rank),
                                 .fatal = ends});
    }
}

/* What a worker tells: for the ledger, for the policy, and most of it for the screen. */
static void hear_told(tt_supervisor *s, const json_t *letter)
{
    world *w = find_world(s, whole(letter, "world"));
    json_t *o = json_object_get(letter, "what");
    const char *event = json_string_value(json_object_get(o, "event"));
    int code = whole(o, "exit_code"), rank = whole(letter, "rank");

    if (!w || !event || rank < 0 || rank >= w->members) return;
    if (!strcmp(event, "found")) {
        hear_found(s, w, o);
        return;
    }
    if (!strcmp(event, "rollback")) {
        hear_rollback(s, w, o);
        return;
    }
    if (!strcmp(event, "epoch")) {
        hear_epoch(s, w, o);
        return;
    }
    if (!strcmp(event, "start")) {
        s->began = true;
        tell_run(s);
    }
    if (!strcmp(event, "left")) { /* its last step is committed */
        s->left = tt_clock_s();
        return;
    }
    if (!strcmp(event, "progress")) note_resized(s, w, o);
    if (!strcmp(event, "end") && w->killed) return; /* it was too late */
    add_news(s, (tt_news){.kind = TT_NEWS_LINE,
                          .line = json_incref(o),
                          .cause = {.world = w->id, .rank = rank}});
    if (!strcmp(event, "end")) {
        record_end(s, w, o, code);
        take_event(s, (tt_event){.kind = TT_EV_RESULT, .world = w->id, .code = code});
        if (!is_deposed(s))
            tt_hub_say(s->o.hub, w->member[rank].from, json_pack("{s:s}", "say", "heard"));
    }
    hear_blame(s, w->id, json_object_get(o, "blame"), !strcmp(event, "error"));
    if (!strcmp(event, "error") && json_object_get(o, "rank")) rank = whole(o, "rank");
    if (!strcmp(event, "error"))
        take_event(s, (tt_event){.kind = TT_EV_TROUBLE,
                                 .world = w->id,
                                 .rank = rank,
                                 .code = code,
                                 .fatal = is_fatal(code)});
}

static void hear_dying(tt_supervisor *s, const json_t *o)
{
    world *w = find_world(s, whole(o, "world"));
    int rank = whole(o, "rank");

    if (w && w->member && rank >= 0 && rank < w->members) w->member[rank].dead = true;
}

/* What a launcher or worker prints: warnings are passed on, the rest is kept. */
static void hear_line(tt_supervisor *s, const char *line)
{
    char *text;

    if (strncmp(line, "tutti: warning: ", 16)) {
        keep(s, line);
        return;
    }
    if (!(text = strdup(line))) tt_mem_out(strlen(line));
    add_news(s, (tt_news){.kind = TT_NEWS_TEXT, .text = text});
}

static void drain(tt_supervisor *s, stream *f, int fd)
{
    ssize_t n = 0;

    if (!f->text && !(f->text = malloc(LINE_MOST))) tt_mem_out(LINE_MOST);
    while (!f->ended && (n = read(fd, f->text + f->used, LINE_MOST - 1 - f->used)) > 0) {
        char *from = f->text, *end;
        f->used += (size_t)n;
        f->text[f->used] = 0;
        while ((end = strchr(from, '\n'))) {
            *end = 0;
            if (end > from && end[-1] == '\r') end[-1] = 0;
            hear_line(s, from);
            from = end + 1;
        }
        f->used -= (size_t)(from - f->text);
        memmove(f->text, from, f->used);
        if (f->used >= LINE_MOST - 1) f->used = 0; /* no line of ours */
    }
    f->ended = f->ended || n == 0;
}

/* Its last words were heard before: they were out when it ended. */
static void see_dead(tt_supervisor *s, world *w)
{
    int id = w->id;

    for (int i = 0; i < w->members && w->id == id && w->member; i++) {
        member *m = &w->member[i];
        struct pollfd p = {.fd = m->pidfd, .events = POLLIN};
        if (p.fd < 0 || poll(&p, 1, 0) <= 0) continue;
        close(p.fd);
        m->pidfd = -1;
        m->dead = true;
        take_event(s, (tt_event){.kind = TT_EV_DEAD,
                                 .world = id,
                                 .rank = i,
                                 .code = m->phase == TT_PHASE_END ? 0 : -1});
    }
}

/* Have all said that they are at their end? What is left then is the launcher clearing up. */
static bool is_through(const world *w)
{
    for (int i = 0; i < w->members && w->member; i++)
        if (!w->member[i].pid || w->member[i].phase != TT_PHASE_END) return false;
    return w->member && w->generation;
}

static void look_at_world(tt_supervisor *s, world *w)
{
    int id = w->id;

    if (!w->killed && is_through(w)) kill_world(s, w); /* the next one need not wait for that */
    if (w->kill_at > 0 && tt_clock_s() >= w->kill_at) kill_world(s, w);
    if (!w->launched) {
        if (!w->killed) return;
        forget_world(w);
        take_event(s, (tt_event){.kind = TT_EV_GONE, .world = id});
        return;
    }
    if (!w->left) {
        drain(s, &w->out, w->launch.out);
        drain(s, &w->err, w->launch.err);
        if (!tt_launch_ended(&w->launch, &w->code)) return;
        drain(s, &w->out, w->launch.out);
        drain(s, &w->err, w->launch.err);
        w->left = true;
        if (!w->killed) kill_world(s, w); /* whatever is left of it elsewhere */
    }
    if (!all_gone(s, w)) return;
    int code = w->code;
    forget_world(w);
    take_event(s, (tt_event){.kind = TT_EV_GONE, .world = id, .code = code});
}

/* ---- hosts that come and go ---- */

static int place_of(tt_supervisor *s, const char *name)
{
    int at = 0;

    while (at < s->places && strcmp(s->place[at].name, name)) at++;
    if (at < s->places) return at;
    s->place = realloc(s->place, (size_t)(at + 1) * sizeof *s->place);
    if (!s->place) tt_mem_out(sizeof *s->place);
    s->place[s->places++] = (place){.here = !strcmp(name, s->host) || tt_host_is_here(name)};
    snprintf(s->place[at].name, sizeof s->place[at].name, "%s", name);
    return at;
}

static void set_slots(tt_supervisor *s, int at, int slots)
{
    s->place[at].slots = slots;
    take_event(s, (tt_event){.kind = TT_EV_HOST, .host = at, .slots = slots});
}

static void tell_host(tt_supervisor *s, const char *what, const char *name, int slots)
{
    tt_str text = {0};

    tt_str_add(&text, "host %s %s", name, what);
    if (slots) tt_str_add(&text, " with %d slot%s", slots, slots == 1 ? "" : "s");
    add_news(s, (tt_news){.kind = TT_NEWS_HOST,
                          .text = text.data,
                          .line = json_pack("{s:s, s:o, s:s, s:i}", "event", "host", "host",
                                            tt_json_text(name), "what", what, "slots", slots)});
}

static void let_leave(tt_supervisor *s, int at)
{
    if (s->place[at].leaving) return;
    s->place[at].leaving = s->place[at].joined;
    tell_host(s, "wants to leave", s->place[at].name, 0);
    set_slots(s, at, 0);
}

static void hear_changes(tt_supervisor *s)
{
    tt_hub_change c;

    while (tt_hub_next_change(s->o.hub, &c)) {
        int at = place_of(s, c.host);
        place *p = &s->place[at];
        if (c.kind == TT_HOST_CAME) {
            snprintf(p->reach, sizeof p->reach, "%s", c.reach);
            p->joined = true;
            p->here = p->leaving = false;
            tell_host(s, "joined", c.host, c.slots);
            set_slots(s, at, c.slots);
        } else if (c.kind == TT_HOST_LEAVES) {
            let_leave(s, at);
        } else {
            p->leaving = false;
            tt_supervisor_lost(s, c.host);
        }
    }
}

/* Hosts that wanted to leave go when no world has a part of it there any more. */
static void release_hosts(tt_supervisor *s)
{
    for (int at = 0; at < s->places; at++) {
        const tt_member *m;
        bool used = false;
        if (!s->place[at].leaving) continue;
        for (int i = 0; i < TT_WORLDS_MOST; i++) {
            int n = s->world[i].id ? tt_policy_members(s->policy, s->world[i].id, &m) : 0;
            for (int r = 0; r < n; r++) used |= m[r].host == at;
        }
        if (used) continue;
        s->place[at].leaving = false;
        tt_hub_bye(s->o.hub, s->place[at].name);
    }
}

static void hear_letters(tt_supervisor *s)
{
    const char *word;
    tt_hub_from from;
    json_t *o;

    tt_hub_turn(s->o.hub);
    hear_changes(s);
    while ((o = tt_hub_next(s->o.hub, &from, &word))) {
        if (!strcmp(word, "beat"))
            hear_beat(s, from, o);
        else if (!strcmp(word, "tell"))
            hear_told(s, o);
        else if (!strcmp(word, "dying"))
            hear_dying(s, o);
        else
            add_news(s, (tt_news){.kind = TT_NEWS_LETTER, .line = json_incref(o), .from = from});
        json_decref(o);
    }
}

static int list_polls(const tt_supervisor *s, struct pollfd *p)
{
    int n = tt_hub_poll(s->o.hub, p, POLLS / 2);

    for (int i = 0; i < TT_WORLDS_MOST; i++) {
        const world *w = &s->world[i];
        if (!w->id || !w->launched) continue;
        const int fds[] = {w->out.ended ? -1 : w->launch.out, w->err.ended ? -1 : w->launch.err,
                           w->keeper};
        for (int k = 0; k < 3 && n < POLLS; k++)
            p[n++] = (struct pollfd){.fd = fds[k], .events = POLLIN};
        for (int k = 0; k < w->members && n < POLLS; k++)
            p[n++] = (struct pollfd){.fd = w->member[k].pidfd, .events = POLLIN};
    }
    return n;
}

/* ---- calls ---- */

void tt_supervisor_turn(tt_supervisor *s, int ms)
{
    struct pollfd p[POLLS];
    bool dead[TT_WORLDS_MOST] = {false};
    double now;

    hear_letters(s);
    poll(p, (nfds_t)list_polls(s, p), s->first < s->end ? 0 : ms < TURN_MS ? ms : TURN_MS);
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        for (int r = 0; s->world[i].member && r < s->world[i].members; r++) {
            struct pollfd d = {.fd = s->world[i].member[r].pidfd, .events = POLLIN};
            dead[i] |= d.fd >= 0 && poll(&d, 1, 0) > 0;
        }
    hear_letters(s);
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (dead[i]) see_dead(s, &s->world[i]);
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (s->world[i].id) look_at_world(s, &s->world[i]);
    take_event(s, (tt_event){.kind = TT_EV_TICK});
    launch_started(s);
    release_hosts(s);
    if ((now = tt_clock_s()) - s->told >= (s->o.helm ? ALIVE_S / 2 : ALIVE_S)) {
        s->told = now;
        for (int i = 0; i < TT_WORLDS_MOST; i++) say_alive(s, &s->world[i]);
    }
    tell_of_book(s);
    if (now - s->recorded < TOLD_S) return;
    s->recorded = now;
    record_told(s, false);
}

void tt_supervisor_want(tt_supervisor *s, int least, int most)
{
    take_event(s, (tt_event){.kind = TT_EV_WANT, .least = least, .most = most});
}

void tt_supervisor_renew(tt_supervisor *s, int threads, const char *why)
{
    s->threads = threads;
    snprintf(s->renewed, sizeof s->renewed, "%s", why);
    take_event(s, (tt_event){.kind = TT_EV_RENEW});
}

void tt_supervisor_stop(tt_supervisor *s, int code)
{
    take_event(s, (tt_event){.kind = TT_EV_STOP, .code = code});
}

void tt_supervisor_quit(tt_supervisor *s, int code)
{
    take_event(s, (tt_event){.kind = TT_EV_QUIT, .code = code});
}

tt_policy_view tt_supervisor_look(const tt_supervisor *s)
{
    return tt_policy_look(s->policy);
}

void tt_supervisor_answer(tt_supervisor *s, tt_hub_from to, json_t *o)
{
    tt_hub_say(s->o.hub, to, o);
}

int tt_supervisor_workers(const tt_supervisor *s, tt_worker *out, int room)
{
    const world *w = active_world((tt_supervisor *)(uintptr_t)s);
    const tt_member *m;
    int count = w && w->member ? tt_policy_members(s->policy, w->id, &m) : 0;

    for (int i = 0; i < count && i < room; i++)
        out[i] = (tt_worker){host_name(s, m[i].host), w->member[i].pid, w->member[i].phase,
                             w->member[i].step};
    return count;
}

void tt_supervisor_host(tt_supervisor *s, const char *name, int slots)
{
    set_slots(s, place_of(s, name ? name : s->host), slots);
}

tt_err tt_supervisor_leave(tt_supervisor *s, const char *name)
{
    tt_str there = {0};
    tt_err err;
    int n = 0;

    for (int at = 0; at < s->places; at++) {
        if (!s->place[at].slots) continue;
        if (!strcmp(s->place[at].name, name)) {
            let_leave(s, at);
            tt_str_free(&there);
            return TT_OK;
        }
        tt_str_add(&there, "%s%s", n++ ? ", " : "", s->place[at].name);
    }
    err = tt_fail(TT_EINVAL, "no host called %.255s takes part: there %s %s", name,
                  n == 1 ? "is" : "are", n ? there.data : "none");
    tt_str_free(&there);
    return err;
}

void tt_supervisor_lost(tt_supervisor *s, const char *name)
{
    int at = place_of(s, name);

    s->place[at].slots = 0;
    tell_host(s, "is gone", name, 0);
    take_event(s, (tt_event){.kind = TT_EV_LOST, .host = at});
}

tt_err tt_supervisor_open(const tt_supervisor_opts *o, tt_supervisor **out)
{
    tt_supervisor *s = calloc(1, sizeof *s);
    tt_policy_opts p = o->policy;
    tt_err err;

    *out = NULL;
    if (!s) tt_mem_out(sizeof *s);
    s->o = *o;
    s->book.fd = s->book.lock = -1;
    for (int i = 0; i < TT_WORLDS_MOST; i++) s->world[i].keeper = -1;
    gethostname(s->host, sizeof s->host - 1);
    if ((err = tt_book_open(o->run,
                            &(tt_book_opts){tt_hub_address(o->hub), o->rooms,
                                            o->helm ? tt_helm_cluster(o->helm) : NULL},
                            &s->book))) {
        tt_supervisor_close(s);
        return err;
    }
    if (p.generation < s->book.generation) p.generation = s->book.generation;
    tell_run(s);
    s->policy = tt_policy_open(&p);
    *out = s;
    return TT_OK;
}

void tt_supervisor_close(tt_supervisor *s)
{
    if (!s) return;
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (s->world[i].id) kill_world(s, &s->world[i]);
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (s->world[i].id) forget_world(&s->world[i]);
    if (s->policy) tt_policy_close(s->policy);
    tt_book_close(&s->book);
    while (s->first < s->end) free_news(&s->news[s->first++]);
    free_news(&s->held);
    free(s->news);
    free(s->place);
    for (int i = 0; i < s->kept_count; i++) free(s->kept[i]);
    free(s);
}
