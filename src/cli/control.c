/* control: how other commands of ours reach the supervisor of a run.
 *
 * Its address is in <run>/supervisor.json, which it holds locked: a socket in a folder of mode
 * 0700, so whoever gets there is this user. A letter is an object {"say": "ask", "ask": WORD, ...},
 * and so is the answer, {"say": "answer", ...}, with "error" if it is no:
 *
 *   status                              what is known of the run
 *   stop     now                        save and end, or end
 *   resize   least, most, threads, wait_s   all may be absent; answered when a world of that size
 *                                       has made its first step, or wait_s are over
 *   leave    host                       it is to leave at a step boundary */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "cli.h"
#include "cluster/supervisor.h"
#include "comm/wire.h"
#include "store/store.h"

enum { GENERATIONS = 64 };

/* ---- who trains it ---- */

static bool is_held(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;

    if (fd >= 0) close(fd);
    return held;
}

static bool is_this_host(const char *host)
{
    char own[256] = "";

    gethostname(own, sizeof own - 1);
    return !strcmp(own, host);
}

static bool read_boss(const char *path, cli_boss *out)
{
    json_t *o = json_load_file(path, 0, NULL);
    const char *host = json_string_value(json_object_get(o, "host")),
               *address = json_string_value(json_object_get(o, "address"));

    out->pid = (int)json_integer_value(json_object_get(o, "pid"));
    snprintf(out->host, sizeof out->host, "%s", host ? host : "");
    snprintf(out->address, sizeof out->address, "%s", address ? address : "");
    json_decref(o);
    return *out->host && *out->address && out->pid > 0;
}

void cli_boss_find(const char *run, cli_boss *out)
{
    char path[CLI_PATH + 32], text[300] = "";
    FILE *f;

    *out = (cli_boss){.kind = CLI_NOBODY};
    snprintf(path, sizeof path, "%s/supervisor.json", run);
    if (is_held(path) && read_boss(path, out)) {
        out->kind = CLI_SUPERVISED;
        out->here = is_this_host(out->host);
        return;
    }
    snprintf(path, sizeof path, "%s/lock", run);
    if (!is_held(path) || !(f = fopen(path, "re"))) return;
    if (fgets(text, sizeof text, f) && sscanf(text, "%d %255s", &out->pid, out->host) == 2) {
        out->kind = CLI_ALONE;
        out->here = is_this_host(out->host);
    }
    fclose(f);
}

/* ---- asking ---- */

static tt_err send_letter(tt_wire *w, json_t *o)
{
    char *text = json_dumps(o, JSON_COMPACT);
    tt_err err;

    if (!text) return tt_fail(TT_EINVAL, "this cannot be asked: it is not UTF-8");
    err = tt_wire_send(w, 0, text, strlen(text));
    free(text);
    return err;
}

/* The answer, if it has come. */
static json_t *take_answer(tt_wire *w)
{
    tt_letter l;

    while (tt_wire_take(w, &l)) {
        json_t *o = json_loadb(l.data, l.size, 0, NULL);
        const char *word = json_string_value(json_object_get(o, "say"));
        if (word && !strcmp(word, "answer")) return o;
        json_decref(o);
    }
    return NULL;
}

static tt_err wait_answer(tt_wire *w, const char *run, double timeout_s, json_t **out)
{
    double until = tt_clock_s() + timeout_s, now;
    cli_boss boss;

    while (!(*out = take_answer(w))) {
        struct pollfd p = {.fd = tt_wire_fd(w), .events = POLLIN};
        bool late = (now = tt_clock_s()) >= until;
        if (late || tt_wire_lost(w)) cli_boss_find(run, &boss);
        if ((late || tt_wire_lost(w)) && boss.kind != CLI_SUPERVISED)
            return tt_fail(TT_EPEER, "the supervisor of run %s has ended meanwhile", run);
        if (late)
            return tt_fail(
                TT_EPEER, "the supervisor of run %s, process %d, did not answer within %.3g s%s%s",
                run, boss.pid, timeout_s, *tt_wire_trouble(w) ? ": " : "", tt_wire_trouble(w));
        poll(&p, 1, until - now < 0.1 ? (int)(1000 * (until - now)) + 1 : 100);
    }
    return TT_OK;
}

tt_err cli_ask(const char *run, json_t *ask, double timeout_s, json_t **answer)
{
    const char *no;
    tt_wire *w = NULL;
    cli_boss boss;
    tt_err err = TT_OK;

    *answer = NULL;
    cli_boss_find(run, &boss);
    if (boss.kind == CLI_NOBODY)
        err = tt_fail(TT_EINVAL,
                      "nobody trains run %s now: 'tutti train --resume %s' goes on with "
                      "it",
                      run, run);
    else if (!boss.here)
        err = tt_fail(TT_EENV, "run %s is trained by process %d on host %s: ask there", run,
                      boss.pid, boss.host);
    else if (boss.kind == CLI_ALONE)
        err = tt_fail(TT_EINVAL,
                      "run %s is trained by process %d without a supervisor: only runs that were "
                      "started with -n can be asked",
                      run, boss.pid);
    json_object_set_new(ask, "say", json_string("ask"));
    json_object_set_new(ask, "pid", json_integer(getpid()));
    if (!err && !(err = tt_wire_reach(boss.address, NULL, &w)) && !(err = send_letter(w, ask)))
        err = wait_answer(w, run, timeout_s, answer);
    tt_wire_close(w, 0);
    json_decref(ask);
    if (err || !(no = json_string_value(json_object_get(*answer, "error")))) return err;
    err = tt_fail(TT_EINVAL, "%s", no);
    json_decref(*answer);
    *answer = NULL;
    return err;
}

/* ---- the supervisor's end ---- */

typedef struct generation {
    int number, workers;
    double began, ended; /* since 1970; 0: not yet */
    int64_t from;        /* the step it went on after; -1: not known yet */
    double stood_s;      /* from the last step before to its first; < 0: not known */
    char why[512];       /* it ended */
    bool planned;        /* ... because it was asked to */
} generation;

struct cli_control {
    tt_supervisor *s;
    const cli_world_opts *o;
    bool hosts; /* the user has named hosts: their slots are what there is */
    cli_steer *steer;
    cli_order order;
    int least; /* of an elastic run, whatever its size is now; 0: it is not elastic */
    json_t *start, *progress;
    double since;

    int world; /* whose progress was heard last */
    double heard;
    double stood_s; /* what the supervisor has measured of the change just now; 0: nothing */
    generation past[GENERATIONS];
    int pasts;

    struct {
        bool on;
        tt_hub_from from;
        int pid;                 /* of who asks */
        int generation, workers; /* before */
        double until;
        char trouble[512];
    } resize;
    tt_str said;
    size_t told; /* of `said` */
};

static void answer(cli_control *c, tt_hub_from to, json_t *o)
{
    json_object_set_new(o, "say", json_string("answer"));
    tt_supervisor_answer(c->s, to, o);
}

__attribute__((format(printf, 3, 4))) static void refuse(cli_control *c, tt_hub_from to,
                                                         const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    answer(c, to, json_pack("{s:o}", "error", tt_json_text(text)));
}

/* ---- status ---- */

static json_t *list_workers(const cli_control *c)
{
    static tt_worker w[CLI_RANKS];
    int n = tt_supervisor_workers(c->s, w, CLI_RANKS);
    json_t *list = json_array();

    for (int i = 0; i < n && i < CLI_RANKS; i++)
        json_array_append_new(list,
                              json_pack("{s:i, s:o, s:i, s:s, s:I}", "rank", i, "host",
                                        tt_json_text(w[i].host), "pid", w[i].pid, "phase",
                                        tt_phase_name(w[i].phase), "step", (json_int_t)w[i].step));
    return list;
}

static json_t *list_generations(const cli_control *c)
{
    json_t *list = json_array();

    for (int i = 0; i < c->pasts; i++) {
        const generation *g = &c->past[i];
        json_t *o = json_pack("{s:i, s:i, s:f}", "generation", g->number, "workers", g->workers,
                              "began", g->began);
        if (g->from >= 0) json_object_set_new(o, "after_step", json_integer(g->from));
        if (g->stood_s >= 0) json_object_set_new(o, "stood_s", json_real(g->stood_s));
        if (g->ended > 0) json_object_set_new(o, "ended", json_real(g->ended));
        if (*g->why) json_object_set_new(o, "why", tt_json_text(g->why));
        json_array_append_new(list, o);
    }
    return list;
}

/* The numbers of a step by their names. */
static void add_progress(json_t *o, const json_t *line)
{
    static tt_rank_times times[CLI_RANKS];
    json_t *rows = json_array();
    tt_progress p;
    int ranks;

    cli_step_take(line, &p, times, &ranks);
    json_object_set_new(o, "step", json_integer(p.step));
    json_object_set_new(o, "steps", json_integer(p.steps));
    json_object_set_new(o, "epoch", cli_json_real(p.epoch));
    json_object_set_new(o, "epochs", cli_json_real(p.epochs));
    json_object_set_new(o, "loss", cli_json_real(p.loss));
    json_object_set_new(o, "lr", cli_json_real(p.lr));
    json_object_set_new(o, "samples_per_s", cli_json_real(p.samples_per_s));
    if (p.tokens_per_s > 0) json_object_set_new(o, "tokens_per_s", cli_json_real(p.tokens_per_s));
    json_object_set_new(o, "eta_s", cli_json_real(p.eta_s));
    if (p.val.samples > 0) json_object_set_new(o, "val", cli_json_metrics(&p.val));
    for (int r = 0; r < ranks; r++)
        json_array_append_new(rows, json_pack("{s:f, s:f, s:f}", "compute_s",
                                              times[r].forward + times[r].backward + times[r].optim,
                                              "wait_s", times[r].wait, "data_s", times[r].data));
    json_object_set_new(o, "times", rows);
}

static json_t *status_of(const cli_control *c)
{
    tt_policy_view v = tt_supervisor_look(c->s);
    char host[256] = "", whole[CLI_PATH];
    const char *trouble = json_string_value(json_object_get(c->progress, "trouble"));
    json_t *o, *alarms = json_array();

    gethostname(host, sizeof host - 1);
    if (!realpath(c->o->run, whole)) snprintf(whole, sizeof whole, "%s", c->o->run);
    if (trouble) json_array_append_new(alarms, tt_json_text(trouble));
    o = json_pack(
        "{s:o, s:o, s:i, s:s, s:f, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:o, s:o, s:o}", "run",
        tt_json_text(whole), "host", tt_json_text(host), "pid", (int)getpid(), "state",
        v.ending    ? "stopping"
        : v.waiting ? "waiting for workers"
        : !c->start ? "starting"
                    : "running",
        "since", c->since, "generation", v.generation, "workers", v.workers, "least", v.least,
        "most", v.most, "slots", v.slots, "restarts", v.restarts, "standby", v.standby_ready,
        "ranks", list_workers(c), "generations", list_generations(c), "alarms", alarms);
    if (c->start) {
        json_object_set(o, "name", json_object_get(c->start, "name"));
        json_object_set(o, "threads", json_object_get(c->start, "threads"));
        json_object_set(o, "parameters", json_object_get(c->start, "parameters"));
        json_object_set(o, "grains", json_object_get(json_object_get(c->start, "world"), "grains"));
    }
    if (c->progress) add_progress(o, c->progress);
    return o;
}

/* ---- resizing ---- */

/* A whole number that may be absent; false: it is there and wrong. */
static bool take_number(const json_t *o, const char *key, int most, int *out)
{
    const json_t *v = json_object_get(o, key);

    if (!v) return true;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > most)
        return false;
    *out = (int)json_integer_value(v);
    return true;
}

/* How many slots this host is to have, so that `need` workers can be had now. Hosts that have
 * joined bring some, and then nobody is to have more than there are CPUs. */
static int slots_for(const cli_control *c, int need, int most)
{
    int joined = tt_supervisor_look(c->s).slots - tt_supervisor_slots_here(c->s), slots;

    if (!c->o->listen) return cli_slots_here(need, most) + c->o->spares;
    if (joined < 0) joined = 0;
    slots = cli_slots_here(need > joined ? need - joined : 1, most) + c->o->spares;
    return slots < tt_cpu_count() ? slots : tt_cpu_count();
}

/* Says so many are wanted, `need` of them now, if there is room. On this host alone room is made:
 * before more are wanted, and taken back after fewer are, so that there is never too little. */
static bool want(cli_control *c, tt_hub_from from, int need, int least, int most)
{
    tt_policy_view v = tt_supervisor_look(c->s);
    int own = tt_supervisor_slots_here(c->s), slots = slots_for(c, need, most),
        all = c->hosts ? v.slots : v.slots - own + slots;

    if ((c->hosts || c->o->listen) && need > all) {
        refuse(c, from, "%d workers are wanted, but %s %d slot%s in all", need,
               c->hosts ? "the hosts have" : "this host and those that joined have", all,
               all == 1 ? "" : "s");
        return false;
    }
    if (!c->hosts && !c->o->listen && cli_ranks_check(&(tt_hosts){0}, slots)) {
        refuse(c, from, "%s", tt_message());
        return false;
    }
    if (!c->hosts && slots > own) tt_supervisor_host(c->s, NULL, slots);
    tt_supervisor_want(c->s, least, most);
    if (!c->hosts && slots < own) tt_supervisor_host(c->s, NULL, slots);
    cli_steer_decided(c->steer, true, false);
    return true;
}

static void note_grains(const cli_control *c, int most, json_t *o)
{
    const json_t *world = json_object_get(c->start, "world");
    int grains = (int)json_integer_value(json_object_get(world, "grains"));
    char text[160];

    if (!json_is_true(json_object_get(world, "exact")) || most <= grains) return;
    snprintf(text, sizeof text, "the batch has %d grains: of %d workers %d find no work", grains,
             most, most - grains);
    json_object_set_new(o, "warning", json_string(text));
}

static json_t *resized(const cli_control *c)
{
    tt_policy_view v = tt_supervisor_look(c->s);
    json_t *o =
        json_pack("{s:i, s:i, s:i, s:i, s:i}", "generation", v.generation, "before",
                  c->resize.workers, "workers", v.workers, "least", v.least, "most", v.most);

    note_grains(c, v.workers, o);
    return o;
}

/* "6" is given as least 0. Elastic runs keep their minimum, others have a new fixed number. */
static bool want_size(cli_control *c, tt_hub_from from, int least, int most)
{
    tt_policy_view v = tt_supervisor_look(c->s);
    bool exactly = !least;

    if (exactly) least = c->least ? c->least : most;
    if (least <= most) {
        if (!want(c, from, exactly ? most : least, least, most)) return false;
        if (!exactly) c->least = least < most ? least : 0;
        return true;
    }
    refuse(c, from,
           "the run is to have %d workers at least: to have %d, say what it may have, %d:%d",
           c->least, most, most, v.most);
    return false;
}

/* Who asked may have been killed: then nobody waits for the answer. */
static void forget_dead_asker(cli_control *c)
{
    if (c->resize.on && c->resize.pid > 0 && kill(c->resize.pid, 0) && errno == ESRCH)
        c->resize.on = false;
}

static void begin_resize(cli_control *c, tt_hub_from from, const json_t *o)
{
    tt_policy_view v = tt_supervisor_look(c->s);
    int least = 0, most = 0, threads = -1, wait_s = 60;
    char why[96];

    if (!take_number(o, "least", 65536, &least) || !take_number(o, "most", 65536, &most) ||
        !take_number(o, "threads", 1024, &threads) || !take_number(o, "wait_s", 86400, &wait_s) ||
        (most && least > most) || (!most && (least || threads < 0))) {
        refuse(c, from, "'resize' needs least and most, 1 to 65536, or threads, up to 1024");
        return;
    }
    forget_dead_asker(c);
    if (c->resize.on || v.ending || !c->start) {
        refuse(c, from,
               c->resize.on ? "another resize is under way: one at a time"
               : v.ending   ? "the run is stopping"
                            : "the run has not begun yet");
        return;
    }
    c->resize.generation = v.generation;
    c->resize.workers = v.workers;
    if (most && !want_size(c, from, least, most)) return;
    if (threads >= 0) {
        snprintf(why, sizeof why,
                 threads ? "each worker is to have %d thread%s"
                         : "threads are to be as at the start",
                 threads, threads == 1 ? "" : "s");
        cli_steer_decided(c->steer, false, threads > 0);
        tt_supervisor_renew(c->s, threads, why);
    }
    if (tt_supervisor_look(c->s).current) { /* nothing is to be done */
        answer(c, from, resized(c));
        return;
    }
    c->resize.on = true;
    c->resize.from = from;
    c->resize.pid = (int)json_integer_value(json_object_get(o, "pid"));
    c->resize.until = tt_clock_s() + wait_s;
    *c->resize.trouble = 0;
}

static void end_resize(cli_control *c, double stood_s)
{
    tt_policy_view v = tt_supervisor_look(c->s);
    json_t *o;

    if (!c->resize.on || !v.current || v.generation <= c->resize.generation) return;
    o = resized(c);
    json_object_set_new(o, "stood_s", json_real(stood_s));
    answer(c, c->resize.from, o);
    c->resize.on = false;
}

static void give_up_resize(cli_control *c, const char *why)
{
    if (!c->resize.on) return;
    refuse(c, c->resize.from, "%s%s%s", why,
           *c->resize.trouble ? "; the last that was heard: " : "", c->resize.trouble);
    c->resize.on = false;
}

/* ---- what is heard ---- */

static generation *newest(cli_control *c)
{
    return c->pasts ? &c->past[c->pasts - 1] : NULL;
}

static void hear_go(cli_control *c, const tt_news *n)
{
    if (c->pasts == GENERATIONS)
        memmove(c->past, c->past + 1, (size_t)--c->pasts * sizeof *c->past);
    c->past[c->pasts++] = (generation){.number = n->cause.generation,
                                       .workers = n->code,
                                       .began = tt_wall_s(),
                                       .from = -1,
                                       .stood_s = -1};
}

static void hear_cause(cli_control *c, const tt_news *n)
{
    generation *g = newest(c);

    snprintf(c->resize.trouble, sizeof c->resize.trouble, "%s", n->text);
    if (!g || *g->why || n->cause.generation != g->number) return;
    g->ended = tt_wall_s();
    g->planned = n->cause.kind == TT_CAUSE_RESIZE || n->cause.kind == TT_CAUSE_RENEW ||
                 n->cause.kind == TT_CAUSE_LEAVE;
    snprintf(g->why, sizeof g->why, "%s", n->text);
}

/* The first step of another world: for how long did training stand still? After a change that was
 * asked for the supervisor has told; else since the last step that was heard of. */
static void hear_step(cli_control *c, const tt_news *n)
{
    double now = tt_clock_s(), stood_s = c->stood_s > 0 ? c->stood_s : now - c->heard;
    generation *g = newest(c);
    bool another = c->world && c->world != n->cause.world;
    char span[32];

    json_decref(c->progress);
    c->progress = json_incref(n->line);
    if (g && g->from < 0)
        g->from = llround(json_number_value(json_array_get(json_object_get(n->line, "p"), 0))) - 1;
    if (another && g) {
        g->stood_s = stood_s;
        if (c->pasts > 1 && g[-1].planned && c->o->mode != CLI_JSON) /* that has an event of it */
            tt_str_add(&c->said, "training stood still for %s before step %lld\n",
                       tt_show_time(stood_s, span, sizeof span), (long long)g->from + 1);
        end_resize(c, stood_s);
    }
    c->stood_s = 0;
    c->world = n->cause.world;
    c->heard = now;
}

static void hear_line(cli_control *c, const tt_news *n)
{
    const char *event = json_string_value(json_object_get(n->line, "event"));

    if (!event) return;
    if (!strcmp(event, "start")) {
        if (!c->start) cli_live_remember(c->o->run);
        json_decref(c->start);
        c->start = json_incref(n->line);
    } else if (!strcmp(event, "progress")) {
        hear_step(c, n);
    }
}

static void hear_letter(cli_control *c, tt_hub_from from, const json_t *o)
{
    const char *say = json_string_value(json_object_get(o, "say")),
               *word = json_string_value(json_object_get(o, "ask"));

    if (!say || strcmp(say, "ask") || from.far) return; /* of others, or not for us to answer */
    if (!word) {
        refuse(c, from, "this asks for nothing: status, stop, resize or leave");
    } else if (!strcmp(word, "status")) {
        answer(c, from, status_of(c));
    } else if (!strcmp(word, "stop")) {
        cli_order order = json_is_true(json_object_get(o, "now")) ? CLI_STOP_NOW : CLI_STOP;
        if (order > c->order) c->order = order;
        answer(c, from, json_object());
    } else if (!strcmp(word, "resize")) {
        begin_resize(c, from, o);
    } else if (!strcmp(word, "leave")) {
        const char *host = json_string_value(json_object_get(o, "host"));
        if (tt_supervisor_leave(c->s, host ? host : ""))
            refuse(c, from, "%s", tt_message());
        else
            answer(c, from, json_object());
    } else {
        refuse(c, from, "'%.40s' is nothing that can be asked: status, stop, resize or leave",
               word);
    }
}

void cli_control_hear(cli_control *c, const tt_news *n)
{
    switch (n->kind) {
    case TT_NEWS_LINE:
        hear_line(c, n);
        break;
    case TT_NEWS_CAUSE:
        hear_cause(c, n);
        break;
    case TT_NEWS_GO:
        hear_go(c, n);
        break;
    case TT_NEWS_LETTER:
        hear_letter(c, n->from, n->line);
        break;
    case TT_NEWS_EXIT:
        give_up_resize(c, "the run has ended");
        break;
    case TT_NEWS_AGAIN:
        if (n->cause.kind == TT_CAUSE_RESIZE) c->stood_s = n->seconds;
        break;
    case TT_NEWS_TEXT:
    case TT_NEWS_HOST:
    case TT_NEWS_NONE:
        break;
    }
}

/* ---- calls ---- */

cli_control *cli_control_open(tt_supervisor *s, const cli_world_opts *o, const tt_hosts *hosts)
{
    cli_control *c = calloc(1, sizeof *c);

    if (!c) tt_mem_out(sizeof *c);
    c->s = s;
    c->o = o;
    c->hosts = hosts->count > 0;
    c->least = o->least < o->ranks ? o->least : 0;
    c->since = tt_wall_s();
    c->steer = cli_steer_open(s, o, hosts);
    return c;
}

cli_order cli_control_turn(cli_control *c)
{
    const json_t *world = json_object_get(c->start, "world");

    if (c->start) cli_steer_turn(c->steer, json_is_true(json_object_get(world, "exact")), &c->said);
    if (c->resize.on && tt_clock_s() >= c->resize.until)
        give_up_resize(c, "it did not happen in time, but is still wanted");
    return c->order;
}

const char *cli_control_said(cli_control *c)
{
    const char *line = c->said.data + c->told;

    if (c->told == c->said.size) {
        c->said.size = c->told = 0;
        return NULL;
    }
    c->told += strcspn(line, "\n");
    c->said.data[c->told++] = 0;
    return line;
}

void cli_control_close(cli_control *c)
{
    char id[TT_RUN_ID];
    tt_run_info r;

    if (!c) return;
    give_up_resize(c, "the run has ended");
    if (!tt_run_look(c->o->run, &r)) { /* one that is over has left nothing in memory */
        bool over = !strcmp(r.status, "done") || !strcmp(r.status, "stopped");
        if (over && tt_run_id(c->o->run, id)) cli_live_forget(id);
        json_decref(r.summary);
    }
    cli_steer_close(c->steer);
    json_decref(c->start);
    json_decref(c->progress);
    tt_str_free(&c->said);
    free(c);
}
