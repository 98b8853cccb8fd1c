/* The executor of the policy: processes, sockets and time become events, actions become processes
 * and letters.
 *
 * A rank is known from its first beat, with its process; on this host a pidfd then tells its death
 * at once. That a world is gone its keeper tells by ending. Between the order to kill a world and
 * that, nothing of it is believed any more: its letters are dropped by the policy. */
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

#include "supervisor.h"

enum { LINE_MOST = 1 << 20, KEPT_LINES = 20, TURN_MS = 50, NEWS = 256, POLLS = 512 };
static const double ALIVE_S = 0.5;

typedef struct stream {
    char *text;
    size_t used;
    bool ended;
} stream;

typedef struct member {
    tt_hub_from from;
    int pid, pidfd; /* 0, -1: not heard of, or on another host */
    char host[64];
} member;

typedef struct world {
    int id; /* 0: none */
    tt_launch launch;
    int keeper; /* a pidfd: readable when it ends */
    member *member;
    int members, generation;
    stream out, err;
} world;

struct tt_supervisor {
    tt_supervisor_opts o;
    tt_policy *policy;
    world world[TT_WORLDS_MOST];
    char run[4096]; /* told by the first world; "" before */
    tt_news *news, held;
    int first, end, room;
    char *kept[KEPT_LINES];
    int kept_count;
    double told;
    char host[64];
};

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
    const tt_hosts *h = s->o.hosts;
    return h && host >= 0 && host < h->count ? h->host[host].name : s->host;
}

/* The members of a world as the launcher takes them: hosts in the order of ranks. */
static void list_hosts(const tt_supervisor *s, const tt_member *m, int count, tt_arena *a,
                       tt_hosts *out)
{
    *out = (tt_hosts){.host = tt_arena_take(a, (size_t)(count + 1) * sizeof *out->host, 8)};
    for (int i = 0; i < count; i++) {
        if (!i || m[i].host != m[i - 1].host) {
            tt_host *h = &out->host[out->count++];
            memset(h, 0, sizeof *h);
            snprintf(h->name, sizeof h->name, "%s", host_name(s, m[i].host));
        }
        out->host[out->count - 1].slots++;
    }
}

static const char **list_command(const tt_supervisor *s, tt_arena *a)
{
    const char *const *from = *s->run ? s->o.next : s->o.argv;
    const char **words;
    int n = 0;

    while (from[n]) n++;
    words = tt_arena_take(a, (size_t)(n + 2) * sizeof *words, 8);
    memcpy(words, from, (size_t)n * sizeof *words);
    if (*s->run) words[n++] = tt_arena_strdup(a, s->run);
    words[n] = NULL;
    return words;
}

static tt_err launch_world(tt_supervisor *s, world *w)
{
    tt_arena *a = tt_arena_open(16 << 10);
    const tt_member *m;
    tt_hosts hosts;
    tt_err err = TT_OK;

    w->members = tt_policy_members(s->policy, w->id, &m);
    list_hosts(s, m, w->members, a, &hosts);
    const char *const env[] = {
        "TUTTI_SUPERVISED=1",
        tt_arena_printf(a, "TUTTI_LAUNCHED_BY=%s (%s)", s->o.launched_by, tt_launcher_name()),
        tt_arena_printf(a, "TUTTI_CONTROL=%s", tt_hub_address(s->o.hub)),
        tt_arena_printf(a, "TUTTI_CONTROL_HOST=%s", s->host),
        tt_arena_printf(a, "TUTTI_CONTROL_PID=%d", (int)getpid()),
        tt_arena_printf(a, "TUTTI_CONTROL_WORLD=%d", w->id),
        s->o.far ? tt_arena_printf(a, "TUTTI_CONTROL_FAR=%s", s->o.far) : NULL,
        NULL};
    const char **command = list_command(s, a);
    tt_launch_opts l = {.hosts = s->o.hosts && s->o.hosts->count ? &hosts : NULL,
                        .ranks = w->members,
                        .argv = command,
                        .env = env,
                        .folder = tt_arena_printf(a, "%s/world-%d", s->o.folder, w->id)};
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

/* All of it at once: those we know by their descriptors, the rest by the keeper. */
static void kill_world(world *w)
{
    for (int i = 0; i < w->members; i++)
        if (w->member[i].pidfd >= 0)
            syscall(SYS_pidfd_send_signal, w->member[i].pidfd, SIGKILL, NULL, 0);
    tt_launch_signal(&w->launch, SIGKILL);
}

/* ---- actions ---- */

static void take_event(tt_supervisor *s, tt_event e);

/* "rank 2 (host b) was killed by signal 9 in step 120": what is known. */
static void describe(const tt_supervisor *s, const tt_cause *c, tt_str *out)
{
    char span[32];

    if (c->rank >= 0) tt_str_add(out, "rank %d (%s) ", c->rank, host_name(s, c->host));
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
        tt_str_add(out, "met an error");
        break;
    case TT_CAUSE_START:
        tt_str_add(out, "world %d did not come up", c->world);
        break;
    case TT_CAUSE_HOST:
        tt_str_add(out, "host %s is gone", host_name(s, c->host));
        break;
    case TT_CAUSE_RESIZE:
        tt_str_add(out, "another number of workers is wanted");
        break;
    case TT_CAUSE_BELOW:
        tt_str_add(out, "too few workers are left: waiting for more");
        break;
    case TT_CAUSE_OUT:
        tt_str_add(out, "slot %d of %s failed too often and is left out", c->slot,
                   host_name(s, c->host));
        break;
    case TT_CAUSE_BACK:
        tt_str_add(out, "slot %d of %s is taken in again", c->slot, host_name(s, c->host));
        break;
    case TT_CAUSE_STOP:
        tt_str_add(out, "told to stop");
        break;
    case TT_CAUSE_NONE:
        break;
    }
    if (c->step > 0) tt_str_add(out, ", after step %lld", (long long)c->step);
    if (c->kind == TT_CAUSE_DEAD || c->kind == TT_CAUSE_HUNG || c->kind == TT_CAUSE_STUCK)
        tt_str_add(out, ", in %s", tt_phase_name(c->phase));
}

static void tell(tt_supervisor *s, const tt_cause *c)
{
    tt_str text = {0};

    describe(s, c, &text);
    add_news(s, (tt_news){.kind = TT_NEWS_CAUSE, .text = text.data, .cause = *c});
}

static void say_to_all(tt_supervisor *s, const world *w, const char *word, int generation)
{
    for (int i = 0; i < w->members; i++)
        if (w->member[i].pid)
            tt_hub_say(s->o.hub, w->member[i].from,
                       json_pack("{s:s, s:i}", "say", word, "generation", generation));
}

static void start_world(tt_supervisor *s, int id)
{
    world *w = NULL;

    for (int i = 0; i < TT_WORLDS_MOST && !w; i++)
        if (!s->world[i].id) w = &s->world[i];
    TT_ASSERT(w);
    *w = (world){.id = id, .keeper = -1};
    if (!launch_world(s, w)) return;
    keep(s, tt_message());
    tt_warn("%s", tt_message());
    *w = (world){.keeper = -1};
    take_event(s, (tt_event){.kind = TT_EV_GONE, .world = id, .code = 7});
}

static void persist(const tt_supervisor *s, int generation)
{
    char path[4200], text[32];

    if (!*s->run) return; /* the first: there is nothing it could be taken for */
    snprintf(path, sizeof path, "%s/generation", s->run);
    snprintf(text, sizeof text, "%d\n", generation);
    if (tt_file_write(path, text, strlen(text))) tt_warn("%s", tt_message());
}

static void act(tt_supervisor *s, const tt_action *a)
{
    world *w = find_world(s, a->world);

    switch (a->kind) {
    case TT_ACT_START:
        start_world(s, a->world);
        break;
    case TT_ACT_PERSIST:
        persist(s, a->generation);
        break;
    case TT_ACT_GO:
        if (!w) break;
        w->generation = a->generation;
        say_to_all(s, w, "go", a->generation);
        add_news(s, (tt_news){.kind = TT_NEWS_GO,
                              .code = w->members,
                              .cause = {.world = w->id, .generation = w->generation}});
        break;
    case TT_ACT_YIELD:
        if (w) say_to_all(s, w, "yield", 0);
        break;
    case TT_ACT_SAVE:
        if (w) say_to_all(s, w, "save", 0);
        break;
    case TT_ACT_KILL:
        if (w) kill_world(w);
        break;
    case TT_ACT_TELL:
        tell(s, &a->cause);
        if (w && a->cause.kind == TT_CAUSE_STUCK) say_to_all(s, w, "stacks", 0);
        break;
    case TT_ACT_EXIT:
        add_news(s, (tt_news){.kind = TT_NEWS_EXIT, .code = a->code});
        break;
    }
}

static void take_event(tt_supervisor *s, tt_event e)
{
    tt_action a[TT_WORLDS_MOST * 4];
    int n = tt_policy_step(s->policy, &e, tt_clock_s(), a, TT_COUNT(a));

    for (int i = 0; i < n; i++) act(s, &a[i]);
}

/* ---- what is heard ---- */

static int whole(const json_t *o, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(o, key));
    return n < -1 || n > INT32_MAX ? -1 : (int)n;
}

static void hear_beat(tt_supervisor *s, tt_hub_from from, const json_t *o)
{
    world *w = find_world(s, whole(o, "world"));
    int rank = whole(o, "rank"), phase = whole(o, "phase"), pid = whole(o, "pid");
    const char *host = json_string_value(json_object_get(o, "host"));

    if (!w || rank < 0 || rank >= w->members || phase < 0 || phase >= TT_PHASES || pid <= 0) return;
    member *m = &w->member[rank];
    if (!m->pid) {
        m->pid = pid;
        snprintf(m->host, sizeof m->host, "%s", host ? host : "?");
        if (!strcmp(m->host, s->host)) m->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    }
    m->from = from;
    take_event(s, (tt_event){.kind = TT_EV_BEAT,
                             .world = w->id,
                             .rank = rank,
                             .phase = (tt_phase)phase,
                             .step = json_integer_value(json_object_get(o, "step"))});
}

/* A job, a dataset or numbers that are bad will be so the next time. */
static bool is_fatal(int code)
{
    return code == 2 || code == 3 || code == 5 || code == 6 || code == 7;
}

/* A line of a worker: an object of ours, or something to keep. */
static void hear_line(tt_supervisor *s, world *w, const char *line)
{
    json_t *o = *line == '{' ? json_loads(line, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const char *event = json_string_value(json_object_get(o, "event")),
               *run = json_string_value(json_object_get(o, "run"));
    int code = whole(o, "exit_code");

    if (!event) {
        keep(s, line);
        json_decref(o);
        return;
    }
    if (!strcmp(event, "start") && run && !*s->run) snprintf(s->run, sizeof s->run, "%s", run);
    add_news(s, (tt_news){.kind = TT_NEWS_LINE, .line = o, .cause = {.world = w->id}});
    if (!strcmp(event, "end"))
        take_event(s, (tt_event){.kind = TT_EV_RESULT, .world = w->id, .code = code});
    if (!strcmp(event, "error"))
        take_event(s, (tt_event){.kind = TT_EV_TROUBLE,
                                 .world = w->id,
                                 .rank = json_object_get(o, "rank") ? whole(o, "rank") : -1,
                                 .code = code,
                                 .fatal = is_fatal(code)});
}

static void drain(tt_supervisor *s, world *w, stream *f, int fd, bool words)
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
            if (words)
                hear_line(s, w, from);
            else
                keep(s, from);
            from = end + 1;
        }
        f->used -= (size_t)(from - f->text);
        memmove(f->text, from, f->used);
        if (f->used >= LINE_MOST - 1) f->used = 0; /* no line of ours */
    }
    f->ended = f->ended || n == 0;
}

static void look_at_world(tt_supervisor *s, world *w)
{
    int id = w->id, code;

    drain(s, w, &w->out, w->launch.out, true);
    drain(s, w, &w->err, w->launch.err, false);
    for (int i = 0; i < w->members; i++) {
        struct pollfd p = {.fd = w->member[i].pidfd, .events = POLLIN};
        if (p.fd < 0 || poll(&p, 1, 0) <= 0) continue;
        close(p.fd);
        w->member[i].pidfd = -1;
        take_event(s, (tt_event){.kind = TT_EV_DEAD, .world = id, .rank = i, .code = -1});
    }
    if (!tt_launch_ended(&w->launch, &code)) return;
    drain(s, w, &w->out, w->launch.out, true);
    drain(s, w, &w->err, w->launch.err, false);
    forget_world(w);
    take_event(s, (tt_event){.kind = TT_EV_GONE, .world = id, .code = code});
}

static void hear_letters(tt_supervisor *s)
{
    const char *word;
    tt_hub_from from;
    json_t *o;

    while ((o = tt_hub_next(s->o.hub, &from, &word))) {
        if (!strcmp(word, "beat")) hear_beat(s, from, o);
        json_decref(o);
    }
}

static int list_polls(const tt_supervisor *s, struct pollfd *p)
{
    int n = tt_hub_poll(s->o.hub, p, POLLS / 2);

    for (int i = 0; i < TT_WORLDS_MOST; i++) {
        const world *w = &s->world[i];
        if (!w->id) continue;
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
    double now;

    poll(p, (nfds_t)list_polls(s, p), s->first < s->end ? 0 : ms < TURN_MS ? ms : TURN_MS);
    hear_letters(s);
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (s->world[i].id) look_at_world(s, &s->world[i]);
    take_event(s, (tt_event){.kind = TT_EV_TICK});
    if ((now = tt_clock_s()) - s->told < ALIVE_S) return;
    s->told = now;
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (s->world[i].id) say_to_all(s, &s->world[i], "alive", 0);
}

void tt_supervisor_want(tt_supervisor *s, int least, int most)
{
    take_event(s, (tt_event){.kind = TT_EV_WANT, .least = least, .most = most});
}

void tt_supervisor_stop(tt_supervisor *s, int code)
{
    take_event(s, (tt_event){.kind = TT_EV_STOP, .code = code});
}

void tt_supervisor_quit(tt_supervisor *s)
{
    take_event(s, (tt_event){.kind = TT_EV_QUIT});
}

tt_policy_view tt_supervisor_look(const tt_supervisor *s)
{
    return tt_policy_look(s->policy);
}

tt_err tt_supervisor_open(const tt_supervisor_opts *o, tt_supervisor **out)
{
    tt_supervisor *s = calloc(1, sizeof *s);
    int hosts = o->hosts ? o->hosts->count : 0;

    if (!s) tt_mem_out(sizeof *s);
    s->o = *o;
    for (int i = 0; i < TT_WORLDS_MOST; i++) s->world[i].keeper = -1;
    gethostname(s->host, sizeof s->host - 1);
    s->policy = tt_policy_open(&o->policy);
    *out = s;
    for (int i = 0; i < hosts; i++)
        take_event(s, (tt_event){.kind = TT_EV_HOST,
                                 .host = i,
                                 .slots = o->hosts->host[i].slots ? o->hosts->host[i].slots : 1});
    if (!hosts)
        take_event(
            s,
            (tt_event){.kind = TT_EV_HOST, .host = 0, .slots = o->policy.most + o->policy.spares});
    return TT_OK;
}

void tt_supervisor_close(tt_supervisor *s)
{
    if (!s) return;
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (s->world[i].id) {
            kill_world(&s->world[i]);
            forget_world(&s->world[i]);
        }
    tt_policy_close(s->policy);
    while (s->first < s->end) free_news(&s->news[s->first++]);
    free_news(&s->held);
    free(s->news);
    for (int i = 0; i < s->kept_count; i++) free(s->kept[i]);
    free(s);
}
