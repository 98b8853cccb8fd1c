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
#include "boss.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TURN_MS = 50, POLLS = 512 };
static const double ALIVE_S = 0.25, STACK_S = 0.3, TOLD_S = 1, PART_S = 2, TAKE_OVER_S = 1;
static const double LEASE_MARGIN_S = 0.5; /* for workers that look at their clock late */

/* ---- the helm ---- */

/* Another may lead by now: what we do must not be seen. */
bool boss_deposed(const tt_supervisor *s)
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

void boss_news(tt_supervisor *s, tt_news n)
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

void boss_keep(tt_supervisor *s, const char *line)
{
    if (!*line) return;
    if (s->kept_count == TT_KEPT_LINES) {
        free(s->kept[0]);
        memmove(s->kept, s->kept + 1, (TT_KEPT_LINES - 1) * sizeof *s->kept);
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

world *boss_world(tt_supervisor *s, int id)
{
    for (int i = 0; id && i < TT_WORLDS_MOST; i++)
        if (s->world[i].id == id) return &s->world[i];
    return NULL;
}

world *boss_active(tt_supervisor *s)
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
        tt_arena_printf(a, "TUTTI_CONTROL_ID=%s", s->id),
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

void boss_forget(world *w)
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
void boss_kill(tt_supervisor *s, world *w)
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
bool boss_all_gone(const tt_supervisor *s, const world *w)
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

static void tell(tt_supervisor *s, const tt_cause *c)
{
    const world *w = boss_world(s, c->world);
    tt_str text = {0};

    boss_describe(s, c, &text);
    if (w && w->generation) snprintf(s->why, sizeof s->why, "%s", text.data);
    if (w && w->generation && boss_is_failure(c->kind) && !(s->failed > 0)) {
        s->failed = tt_clock_s();
        s->failed_generation = w->generation;
        s->failed_step = tt_policy_look(s->policy).step;
    }
    boss_news(s, (tt_news){.kind = TT_NEWS_CAUSE, .text = text.data, .cause = *c});
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

void boss_record(tt_supervisor *s, const tt_record *r, bool safe)
{
    const char *wrong;

    if (boss_deposed(s)) return;
    wrong = tt_book_record(&s->book, r, safe);
    if (wrong) tt_warn("the ledger of the run: %s", wrong);
}

static void tell_of_book(tt_supervisor *s)
{
    char alarm[768];
    tt_str text = {0};

    if (!tt_book_news(&s->book, alarm)) return;
    tt_str_add(&text, "tutti: warning: %s", alarm);
    boss_news(s, (tt_news){.kind = TT_NEWS_TEXT, .text = text.data});
}

/* How far all ranks of the active world have come: the farthest that the slowest one has told. */
void boss_record_told(tt_supervisor *s, bool safe)
{
    const world *w = boss_active(s);
    const tt_ledger *k = &s->book.ledger;
    int64_t least = INT64_MAX;

    if (!w || !w->found || !w->member) return;
    for (int i = 0; i < w->members; i++)
        if (w->member[i].phase < TT_PHASE_STEP || w->member[i].kept < least)
            least = w->member[i].phase < TT_PHASE_STEP ? -1 : w->member[i].kept;
    if (least <= k->told.label.step || least == INT64_MAX) return;
    boss_record(
        s, &(tt_record){.kind = TT_REC_TOLD, .generation = (uint32_t)w->generation, .step = least},
        safe);
}

/* ---- worlds, from their start to their end ---- */

static void start_world(tt_supervisor *s, int id)
{
    world *w = NULL;

    for (int i = 0; i < TT_WORLDS_MOST && !w; i++)
        if (!s->world[i].id) w = &s->world[i];
    TT_ASSERT(w);
    *w = (world){.id = id, .keeper = -1};
}

/* A world that has just taken over has the CPUs for itself until its first step is committed: to
 * start the next one costs about as much as that, and where there are few CPUs, as much time. */
static bool takes_over(tt_supervisor *s)
{
    const world *w = boss_active(s);
    bool stepped = w && w->found && w->member;

    if (!w || w->killed || tt_clock_s() - w->went > TAKE_OVER_S) return false;
    for (int i = 0; stepped && i < w->members; i++) stepped = w->member[i].kept > w->from;
    return !stepped;
}

/* A world that is to follow one that has just begun waits for it to say what it is: the job as it
 * was resolved is in the run folder then. But one that is held says nothing before the next comes.
 */
static void launch_started(tt_supervisor *s)
{
    const world *a = boss_active(s);
    bool wait = a && !(a->held > 0) && (!s->began || takes_over(s));

    for (int i = 0; i < TT_WORLDS_MOST; i++) {
        world *w = &s->world[i];
        int id = w->id;
        if (!id || w->launched || wait) continue;
        if (!launch_world(s, w)) continue;
        boss_keep(s, tt_message());
        tt_warn("%s", tt_message());
        boss_forget(w);
        boss_take(s, (tt_event){.kind = TT_EV_GONE, .world = id, .code = 7});
    }
}

/* The run had ended, and all that it had come to was saved: not if it gave up. */
static bool ended_well(const tt_ledger *k)
{
    return k->ended && (k->code == 0 || k->code == 75 || k->code == 130);
}

static void give_go(tt_supervisor *s, world *w, int generation)
{
    const tt_ledger *k = &s->book.ledger;
    json_t *o = json_pack("{s:s, s:i, s:o}", "say", "go", "generation", generation, "why",
                          tt_json_text(s->why));

    if (k->committed)
        json_object_set_new(o, "told",
                            json_pack("{s:I, s:I, s:I, s:I, s:b}", "generation",
                                      (json_int_t)k->told.label.generation, "attempt",
                                      (json_int_t)k->told.label.attempt, "step",
                                      (json_int_t)k->told.label.step, "by", (json_int_t)k->told.by,
                                      "ended", ended_well(k) || s->saved));
    s->saved = false;
    w->generation = generation;
    w->went = tt_clock_s();
    tt_record r = {.kind = TT_REC_GO, .generation = (uint32_t)generation, .workers = w->workers};
    snprintf(r.why, sizeof r.why, "%.*s", (int)sizeof r.why - 1, s->why);
    boss_record(s, &r, false);
    TT_FAILPOINT("supervisor.go");
    say_to_all(s, w, o);
    json_decref(o);
    TT_FAILPOINT("supervisor.went");
    boss_news(s, (tt_news){.kind = TT_NEWS_GO,
                           .code = w->workers,
                           .spares = w->members - w->workers,
                           .cause = {.world = w->id, .generation = generation}});
}

/* An MPI that is killed on another host leaves files there, which only an agent would clear away.
 */
static bool leaves_litter(const tt_supervisor *s, const world *w)
{
    for (int i = 0; i < w->members && w->member && !s->o.agents; i++)
        if (w->member[i].pid && !w->member[i].here) return true;
    return false;
}

void boss_part(tt_supervisor *s, world *w)
{
    if (!leaves_litter(s, w))
        boss_kill(s, w);
    else if (!(w->kill_at > 0))
        w->kill_at = tt_clock_s() + PART_S;
}

static void end_world(tt_supervisor *s, world *w, bool stacks)
{
    if (w->generation) boss_record_told(s, true);
    if (!w->generation && leaves_litter(s, w)) { /* it stands by: it can go by itself */
        say_word(s, w, "yield");
        boss_part(s, w);
        return;
    }
    if (!stacks) {
        TT_FAILPOINT("supervisor.kill");
        boss_kill(s, w);
        TT_FAILPOINT("supervisor.killed");
        return;
    }
    say_word(s, w, "stacks");
    w->kill_at = tt_clock_s() + STACK_S;
}

static void act(tt_supervisor *s, const tt_action *a, bool stuck)
{
    world *w = boss_world(s, a->world);

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
    case TT_ACT_MOVE:
        if (w && w->held > 0) { /* it has done nothing yet, and waits */
            boss_kill(s, w);
            break;
        }
        if (w) w->yields = true;
        if (w) say_word(s, w, a->kind == TT_ACT_MOVE ? "move" : "yield");
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
        boss_record(s,
                    &(tt_record){.kind = TT_REC_END,
                                 .step = s->book.ledger.told.label.step,
                                 .code = a->code},
                    true);
        boss_news(s, (tt_news){.kind = TT_NEWS_EXIT, .code = a->code, .cause = a->cause});
        break;
    }
}

void boss_take(tt_supervisor *s, tt_event e)
{
    tt_action a[TT_WORLDS_MOST * 4];
    int n = tt_policy_step(s->policy, &e, tt_clock_s(), a, TT_COUNT(a));

    bool stuck = false;

    for (int i = 0; i < n; i++) {
        stuck |= a[i].kind == TT_ACT_TELL && a[i].cause.kind == TT_CAUSE_STUCK;
        if (boss_deposed(s)) return;
        act(s, &a[i], stuck);
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

    boss_hear(s);
    poll(p, (nfds_t)list_polls(s, p), s->first < s->end ? 0 : ms < TURN_MS ? ms : TURN_MS);
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        for (int r = 0; s->world[i].member && r < s->world[i].members; r++) {
            struct pollfd d = {.fd = s->world[i].member[r].pidfd, .events = POLLIN};
            dead[i] |= d.fd >= 0 && poll(&d, 1, 0) > 0;
        }
    boss_hear(s);
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (dead[i]) boss_see_dead(s, &s->world[i]);
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (s->world[i].id) boss_look(s, &s->world[i]);
    boss_look_closer(s);
    boss_take(s, (tt_event){.kind = TT_EV_TICK});
    launch_started(s);
    boss_release_hosts(s);
    if ((now = tt_clock_s()) - s->told >= (s->o.helm ? ALIVE_S / 2 : ALIVE_S)) {
        s->told = now;
        for (int i = 0; i < TT_WORLDS_MOST; i++) boss_answer(s, &s->world[i]);
    }
    tell_of_book(s);
    if (now - s->recorded < TOLD_S) return;
    s->recorded = now;
    boss_record_told(s, false);
}

void tt_supervisor_want(tt_supervisor *s, int least, int most)
{
    boss_take(s, (tt_event){.kind = TT_EV_WANT, .least = least, .most = most});
}

void tt_supervisor_renew(tt_supervisor *s, int threads, const char *why)
{
    s->threads = threads;
    snprintf(s->renewed, sizeof s->renewed, "%s", why);
    boss_take(s, (tt_event){.kind = TT_EV_RENEW});
}

void tt_supervisor_stop(tt_supervisor *s, int code)
{
    boss_take(s, (tt_event){.kind = TT_EV_STOP, .code = code});
}

void tt_supervisor_quit(tt_supervisor *s, int code)
{
    boss_take(s, (tt_event){.kind = TT_EV_QUIT, .code = code});
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
    const world *w = boss_active((tt_supervisor *)(uintptr_t)s);
    const tt_member *m;
    int count = w && w->member ? tt_policy_members(s->policy, w->id, &m) : 0;

    for (int i = 0; i < count && i < room; i++)
        out[i] = (tt_worker){boss_host(s, m[i].host), w->member[i].pid, w->member[i].phase,
                             w->member[i].step};
    return count;
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
    if ((err = tt_mark_make(s->id)) ||
        (err = tt_book_open(o->run,
                            &(tt_book_opts){tt_hub_address(o->hub), o->rooms,
                                            o->helm ? tt_helm_cluster(o->helm) : NULL},
                            &s->book))) {
        tt_supervisor_close(s);
        return err;
    }
    if (p.generation < s->book.generation) p.generation = s->book.generation;
    boss_tell_run(s);
    s->policy = tt_policy_open(&p);
    *out = s;
    return TT_OK;
}

void tt_supervisor_close(tt_supervisor *s)
{
    if (!s) return;
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (s->world[i].id) boss_kill(s, &s->world[i]);
    for (int i = 0; i < TT_WORLDS_MOST; i++)
        if (s->world[i].id) boss_forget(&s->world[i]);
    if (s->policy) tt_policy_close(s->policy);
    tt_book_close(&s->book);
    while (s->first < s->end) free_news(&s->news[s->first++]);
    free_news(&s->held);
    free(s->news);
    free(s->place);
    for (int i = 0; i < s->kept_count; i++) free(s->kept[i]);
    free(s);
}
