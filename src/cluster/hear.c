/* hear: what workers tell and print, and that they die: for the ledger, the policy and the screen.
 */
#define _GNU_SOURCE
#include "boss.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/store.h"

/* Hosts that were with a run look for it about twice a second; a start with them takes a few more. */
static const double COME_BACK_S = 8;

enum { LINE_MOST = 1 << 20 };

/* ---- for the ledger ---- */

/* When rank 0 tells that all went well, all ranks have done all of its steps, whatever their last
 * beats said. */
static void record_end(tt_supervisor *s, const world *w, const json_t *o, int code)
{
    int64_t steps = json_integer_value(json_object_get(o, "steps"));

    boss_record_told(s, true);
    if (code || !w->found || steps <= s->book.ledger.told.label.step) return;
    boss_record(
        s, &(tt_record){.kind = TT_REC_TOLD, .generation = (uint32_t)w->generation, .step = steps},
        true);
}

/* What was committed is on hosts that are gone: nobody should find out by the numbers. */
static void tell_lost(tt_supervisor *s, int64_t step)
{
    tt_str text = {0};

    /* The last world began there, no more; or somebody has gone on without a supervisor. */
    if (step >= s->book.ledger.told.label.step) return;
    tt_str_add(
        &text,
        "tutti: warning: no complete copy of the state is left, which was told of up to step "
        "%lld: training goes on from step %lld, %s",
        (long long)s->book.ledger.told.label.step, (long long)step,
        step ? "the newest there is" : "the start");
    boss_news(s, (tt_news){.kind = TT_NEWS_TEXT, .text = text.data});
}

/* From where a world goes on. It writes nothing before it hears that this is known. */
static void take_found(tt_supervisor *s, world *w, tt_record r, bool lost)
{
    w->found = true;
    w->held = 0;
    w->from = r.step;
    if (lost) {
        tt_record line = r;
        line.kind = TT_REC_LOST;
        tell_lost(s, r.step);
        boss_record(s, &line, false);
    }
    boss_record(s, &r, true);
    if (boss_deposed(s)) return;
    TT_FAILPOINT("supervisor.found");
    tt_hub_say(s->o.hub, w->member[0].from, json_pack("{s:s}", "say", "heard"));
}

/* Where the state is in parts, those of hosts that are missing are missing, too. They may be back
 * in a moment, as after a supervisor was killed, and a world with them finds all of it. */
static bool may_come_back(const tt_supervisor *s)
{
    return s->book.ledger.workers < s->book.ledger.before;
}

static void hold_no_more(tt_supervisor *s, world *w)
{
    if (w->held > 0 && tt_clock_s() >= w->held && w == boss_active(s) && !w->killed)
        take_found(s, w, w->lost, true);
}

static void hear_found(tt_supervisor *s, world *w, const json_t *o)
{
    tt_record r = {.kind = TT_REC_FOUND,
                   .generation = (uint32_t)w->generation,
                   .attempt = (uint32_t)json_integer_value(json_object_get(o, "attempt")),
                   .step = json_integer_value(json_object_get(o, "step")),
                   .made = (uint32_t)json_integer_value(json_object_get(o, "made"))};

    bool lost = json_is_true(json_object_get(o, "lost")) && s->book.ledger.committed;

    if (w != boss_active(s) || w->killed || w->found || w->held > 0) return;
    if (!lost || !may_come_back(s)) {
        take_found(s, w, r, lost);
        return;
    }
    w->held = tt_clock_s() + COME_BACK_S;
    w->lost = r;
}

/* A world has gone back. What its ranks told before is no more. */
static void hear_rollback(tt_supervisor *s, world *w, const json_t *o)
{
    tt_record r = {.kind = TT_REC_ROLLBACK,
                   .generation = (uint32_t)w->generation,
                   .attempt = (uint32_t)json_integer_value(json_object_get(o, "attempt")),
                   .step = json_integer_value(json_object_get(o, "step"))};

    if (!w->generation || !w->found || w->killed) return;
    for (int i = 0; i < w->members && w->member; i++)
        w->member[i].step = w->member[i].kept = r.step;
    boss_record(s, &r, true);
}

static void hear_epoch(tt_supervisor *s, const world *w, const json_t *o)
{
    tt_record r = {.kind = TT_REC_EPOCH,
                   .generation = (uint32_t)w->generation,
                   .epoch = json_integer_value(json_object_get(o, "epoch")),
                   .samples = (uint64_t)json_integer_value(json_object_get(o, "samples")),
                   .witness = {(uint64_t)json_integer_value(json_object_get(o, "sum")),
                               (uint64_t)json_integer_value(json_object_get(o, "count"))}};

    if (!w->generation || !w->found || w->killed) return;
    if (!tt_ledger_has(&s->book.ledger, &r, json_is_true(json_object_get(o, "again"))))
        boss_record(s, &r, false);
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
    boss_record_told(s, true);
    boss_part(s, w);
}

/* In answer to a beat: a worker that we do not hear is not to take our word for life. It lives so
 * long from that beat on; with a helm, until we do not lead any more. */
void boss_answer(tt_supervisor *s, world *w)
{
    double for_s = s->o.helm ? tt_helm_left(s->o.helm) : TT_LEASE_S;

    if (boss_deposed(s)) return;
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
    boss_news(s,
              (tt_news){.kind = TT_NEWS_AGAIN,
                        .seconds = tt_clock_s() - s->failed,
                        .cause = {.world = w->id, .generation = w->generation, .step = m->step}});
    s->failed = 0;
}

/* The first one after a resize. */
static void note_resized(tt_supervisor *s, const world *w, const json_t *progress)
{
    if (!(s->left > 0) || w->killed || w != boss_active(s)) return;
    boss_news(s,
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
    world *w = boss_world(s, whole(o, "world"));
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
    m->waits = json_is_true(json_object_get(o, "waits"));
    note_step(s, w, m);
    if (first) boss_answer(s, w);
    boss_take(s, (tt_event){.kind = TT_EV_BEAT,
                            .world = w->id,
                            .rank = rank,
                            .phase = m->phase,
                            .step = m->step,
                            .waits = m->waits});
    if (m->phase == TT_PHASE_END && boss_world(s, whole(o, "world")) == w) hurry(s, w);
}

/* A job, a dataset or numbers that are bad will be so the next time. */
static bool is_fatal(int code)
{
    return code == 2 || code == 3 || code == 5 || code == 6 || code == 7;
}

/* Hosts that join are told which run it is, so that they can clear away what it leaves there. */
void boss_tell_run(tt_supervisor *s)
{
    char id[TT_RUN_ID];

    if (tt_run_id(s->o.run, id)) tt_hub_set_run(s->o.hub, id);
}

/* Ranks whose numbers were not those of the others. */
static void hear_blame(tt_supervisor *s, int id, const json_t *list, bool ends)
{
    json_t *rank;
    size_t i;

    json_array_foreach(list, i, rank)
    {
        boss_take(s, (tt_event){.kind = TT_EV_CORRUPT,
                                .world = id,
                                .rank = (int)json_integer_value(rank),
                                .fatal = ends});
    }
}

/* What a worker tells: for the ledger, for the policy, and most of it for the screen. */
static void hear_told(tt_supervisor *s, const json_t *letter)
{
    world *w = boss_world(s, whole(letter, "world"));
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
        boss_tell_run(s);
    }
    if (!strcmp(event, "left")) { /* its last step is committed */
        s->left = tt_clock_s();
        return;
    }
    if (!strcmp(event, "saved all")) {
        s->saved = true;
        return;
    }
    if (!strcmp(event, "progress")) note_resized(s, w, o);
    /* Too late: another world goes on, or nobody cares any more what went wrong in this one. */
    if ((w->killed || w->kill_at > 0) && (!strcmp(event, "end") || !strcmp(event, "error"))) return;
    boss_news(s, (tt_news){.kind = TT_NEWS_LINE,
                           .line = json_incref(o),
                           .cause = {.world = w->id, .rank = rank}});
    if (!strcmp(event, "end")) {
        record_end(s, w, o, code);
        boss_take(s, (tt_event){.kind = TT_EV_RESULT, .world = w->id, .code = code});
        if (!boss_deposed(s))
            tt_hub_say(s->o.hub, w->member[rank].from, json_pack("{s:s}", "say", "heard"));
    }
    hear_blame(s, w->id, json_object_get(o, "blame"), !strcmp(event, "error"));
    if (!strcmp(event, "error") && json_object_get(o, "rank")) rank = whole(o, "rank");
    if (!strcmp(event, "error"))
        boss_take(s, (tt_event){.kind = TT_EV_TROUBLE,
                                .world = w->id,
                                .rank = rank,
                                .code = code,
                                .fatal = is_fatal(code)});
}

static void hear_dying(tt_supervisor *s, const json_t *o)
{
    world *w = boss_world(s, whole(o, "world"));
    int rank = whole(o, "rank");

    if (w && w->member && rank >= 0 && rank < w->members) w->member[rank].dead = true;
}

/* What a launcher or worker prints: warnings are passed on, the rest is kept. */
static void hear_line(tt_supervisor *s, const char *line)
{
    char *text;

    if (strncmp(line, "tutti: warning: ", 16)) {
        boss_keep(s, line);
        return;
    }
    if (!(text = strdup(line))) tt_mem_out(strlen(line));
    boss_news(s, (tt_news){.kind = TT_NEWS_TEXT, .text = text});
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
void boss_see_dead(tt_supervisor *s, world *w)
{
    int id = w->id;

    for (int i = 0; i < w->members && w->id == id && w->member; i++) {
        member *m = &w->member[i];
        struct pollfd p = {.fd = m->pidfd, .events = POLLIN};
        if (p.fd < 0 || poll(&p, 1, 0) <= 0) continue;
        close(p.fd);
        m->pidfd = -1;
        m->dead = true;
        boss_take(s, (tt_event){.kind = TT_EV_DEAD,
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

void boss_look(tt_supervisor *s, world *w)
{
    int id = w->id;

    if (!w->killed && is_through(w)) boss_part(s, w); /* the next one need not wait for that */
    if (w->kill_at > 0 && tt_clock_s() >= w->kill_at) boss_kill(s, w);
    hold_no_more(s, w);
    if (!w->launched) {
        if (!w->killed) return;
        boss_forget(w);
        boss_take(s, (tt_event){.kind = TT_EV_GONE, .world = id});
        return;
    }
    if (!w->left) {
        drain(s, &w->out, w->launch.out);
        drain(s, &w->err, w->launch.err);
        if (!tt_launch_ended(&w->launch, &w->code)) return;
        drain(s, &w->out, w->launch.out);
        drain(s, &w->err, w->launch.err);
        w->left = true;
        if (!w->killed) boss_kill(s, w); /* whatever is left of it elsewhere */
    }
    if (!boss_all_gone(s, w)) return;
    int code = w->code;
    boss_forget(w);
    boss_take(s, (tt_event){.kind = TT_EV_GONE, .world = id, .code = code});
}

void boss_hear(tt_supervisor *s)
{
    const char *word;
    tt_hub_from from;
    json_t *o;

    tt_hub_turn(s->o.hub);
    boss_hear_hosts(s);
    while ((o = tt_hub_next(s->o.hub, &from, &word))) {
        bool beats = !strcmp(word, "beat"), tells = !strcmp(word, "tell"),
             dies = !strcmp(word, "dying"), ours = !strcmp(tt_text_of(o, "boss"), s->id);
        /* Far workers of a supervisor that died may reach the next one at the same address. They
         * are not answered, and so their lease ends. */
        if (beats && ours)
            hear_beat(s, from, o);
        else if (tells && ours)
            hear_told(s, o);
        else if (dies && ours)
            hear_dying(s, o);
        else if (!beats && !tells && !dies)
            boss_news(s, (tt_news){.kind = TT_NEWS_LETTER, .line = json_incref(o), .from = from});
        json_decref(o);
    }
}
