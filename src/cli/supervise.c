/* supervise: `tutti train` with several workers: starts the supervisor, and shows what it tells.
 *
 * Ctrl-C once asks the workers to finish the step and save; twice ends them at once. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster/supervisor.h"
#include "comm/wire.h"
#include "train.h"

enum { SHOWN_WARNINGS = 16 }; /* in WARNINGS_S; all are in the logs */
static const double WARNINGS_S = 60;
static const double PATIENCE_S = 10; /* an order that comes before the start waits for that */

typedef struct watch {
    const cli_world_opts *o;
    tt_supervisor *s;
    cli_control *control;
    json_t *start, *end;
    bool far; /* other hosts take part, or did */
    cli_display *display;
    char *trouble; /* the first error that was told of the world that trains */
    int trouble_code;
    char *warned[SHOWN_WARNINGS]; /* what has been shown last: all ranks may say it */
    int warnings, warned_of_late;
    double warned_since;
    int code; /* -1: it goes on */
    tt_cause last;
    char *last_text; /* of the last failure */
} watch;

/* ---- signals ---- */

static volatile sig_atomic_t asked, times_asked;
static bool ordered; /* by `tutti stop`, which means the run and not this host */

static void on_signal(int sig)
{
    /* Only Ctrl-C twice is impatience: a queue may send SIGUSR1, and SIGTERM some time later. */
    if (!asked || (sig == SIGINT && asked == SIGINT)) times_asked = times_asked + 1;
    if (!asked || sig == SIGINT) asked = sig;
}

static void catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1};
    struct sigaction act = {.sa_handler = on_signal};

    for (int i = 0; i < TT_COUNT(signals); i++) sigaction(signals[i], &act, NULL);
    if (work_asked && !asked) on_signal(work_asked); /* it came before there was anybody to stop */
    act.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &act, NULL);
}

static int stop_code(void)
{
    return asked == SIGINT ? CLI_INTERRUPTED : CLI_REQUEUE;
}

/* What was asked for from elsewhere (tutti stop) is like a signal of a queue. */
static void take_order(cli_order order)
{
    int times = order == CLI_STOP_NOW ? 2 : 1;

    if (order == CLI_GO_ON) return;
    ordered = true;
    if (!asked) asked = SIGTERM;
    if (times_asked < times) times_asked = times;
}

bool cli_supervise_told(void)
{
    return asked != 0 && !ordered;
}

static void pass_signals(watch *w)
{
    static int passed;
    static double since;

    if (times_asked && !(since > 0)) since = tt_clock_s();
    if (times_asked == passed || w->code >= 0) return;
    if (times_asked > 1 || (!w->start && tt_clock_s() - since > PATIENCE_S)) {
        tt_supervisor_quit(w->s, stop_code());
        passed = times_asked;
        return;
    }
    if (!w->start) return; /* there is nothing to save yet, but soon */
    passed = times_asked;
    if (w->display)
        cli_display_note(w->display, "stopping: the workers finish the step and save "
                                     "(Ctrl-C again quits without)");
    tt_supervisor_stop(w->s, stop_code());
}

/* ---- what is heard ---- */

/* A line above the display, which comes back with the next step. */
static void say(const watch *w, const char *text)
{
    if (w->o->mode == CLI_QUIET) return;
    if (w->display) cli_display_leave(w->display);
    fprintf(stderr, "tutti: %s\n", text);
}

static void say_json(const watch *w, json_t *o)
{
    if (w->o->mode == CLI_JSON) {
        cli_json_print(stdout, o, true);
        fflush(stdout);
    } else {
        json_decref(o);
    }
}

static void hear_start(watch *w, json_t *o)
{
    bool first = !w->start;
    const json_t *hosts = json_object_get(json_object_get(o, "world"), "hosts");

    json_decref(w->start);
    w->start = json_incref(o);
    if (first) cli_start_show(w->o->mode, o);
    if (first) cli_detach_begun(w->o->run);
    if (!first && !w->far && json_integer_value(hosts) > 1 && w->o->mode == CLI_SHOW)
        say(w, cli_trust);
    w->far |= json_integer_value(hosts) > 1;
    if (w->display) cli_display_leave(w->display);
    cli_display_close(w->display); /* there may be other workers now */
    w->display = cli_display_open(w->o->mode, o);
}

static void hear_step(watch *w, const json_t *o)
{
    static tt_rank_times times[CLI_RANKS];
    tt_progress p;
    int ranks;

    cli_step_take(o, &p, times, &ranks);
    if (w->display) cli_display_step(w->display, &p, times, ranks);
}

static void hear_trouble(watch *w, const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));

    if (w->trouble || !text || !*text) return;
    if (!(w->trouble = strdup(text))) tt_mem_out(strlen(text));
    w->trouble_code = (int)json_integer_value(json_object_get(o, "exit_code"));
}

static void hear_stack(const watch *w, const json_t *o)
{
    json_t *line;
    size_t i;

    if (w->o->mode == CLI_QUIET) return;
    if (w->display) cli_display_leave(w->display);
    fprintf(stderr, "rank %d is at:\n", (int)json_integer_value(json_object_get(o, "rank")));
    json_array_foreach(json_object_get(o, "lines"), i, line)
        fprintf(stderr, "  %s\n", json_string_value(line));
}

static void hear_line(watch *w, json_t *o)
{
    const char *event = json_string_value(json_object_get(o, "event")),
               *text = json_string_value(json_object_get(o, "text"));

    if (!strcmp(event, "start")) {
        hear_start(w, o);
    } else if (!strcmp(event, "progress")) {
        hear_step(w, o);
    } else if (!strcmp(event, "note")) {
        if (w->display && text) cli_display_note(w->display, text);
    } else if (!strcmp(event, "stack")) {
        hear_stack(w, o);
    } else if (!strcmp(event, "end")) {
        json_decref(w->end);
        w->end = json_incref(o);
        hear_trouble(w, o, "trouble");
    } else if (!strcmp(event, "error")) {
        hear_trouble(w, o, "message");
    }
}

static void hear_warning(watch *w, const char *line)
{
    double now = tt_clock_s();
    char **place = &w->warned[w->warnings % SHOWN_WARNINGS];

    for (int i = 0; i < SHOWN_WARNINGS; i++)
        if (w->warned[i] && !strcmp(w->warned[i], line)) return;
    if (now - w->warned_since > WARNINGS_S) {
        w->warned_since = now;
        w->warned_of_late = 0;
    }
    if (w->warned_of_late++ >= SHOWN_WARNINGS) return;
    free(*place);
    if (!(*place = strdup(line))) tt_mem_out(strlen(line));
    w->warnings++;
    say(w, line + strlen("tutti: "));
}

/* The last that a rank wrote to its log. */
static void show_log(const watch *w, int rank, size_t most)
{
    const char *run = json_string_value(json_object_get(w->start, "run"));
    char path[CLI_PATH + 32];
    tt_bytes b = {0};

    if (!run || !*run || rank < 0) return;
    if (rank)
        snprintf(path, sizeof path, "%s/rank-%05d.log", run, rank);
    else
        snprintf(path, sizeof path, "%s/log.txt", run);
    if (!tt_file_exists(path) || tt_file_read(path, 0, &b)) return;
    size_t from = b.size, lines = 0;
    while (from > 0 && lines <= most) lines += ((const char *)b.data)[--from] == '\n';
    if (lines > most) from++;
    fprintf(stderr, "the end of its log, %s:\n%.*s", path, (int)(b.size - from),
            (const char *)b.data + from);
    tt_file_release(&b);
}

static void hear_cause(watch *w, const tt_news *n)
{
    const tt_cause *c = &n->cause;
    bool failure = c->kind == TT_CAUSE_DEAD || c->kind == TT_CAUSE_HUNG ||
                   c->kind == TT_CAUSE_STUCK || c->kind == TT_CAUSE_TROUBLE ||
                   c->kind == TT_CAUSE_START || c->kind == TT_CAUSE_CORRUPT ||
                   c->kind == TT_CAUSE_HOST;
    tt_str text = {0};
    int active = tt_supervisor_look(w->s).active;

    if (c->kind == TT_CAUSE_STOP) return;
    if (c->kind == TT_CAUSE_HOST && c->generation < 0) return; /* of the host it is told anyway */
    tt_str_add(&text, "%s", n->text);
    if ((c->kind == TT_CAUSE_TROUBLE || c->kind == TT_CAUSE_CORRUPT) && w->trouble) {
        if (!strncmp(w->trouble, "rank ", 5)) text.size = 0; /* it says itself whose it is */
        tt_str_add(&text, "%s%s", text.size ? ": " : "", w->trouble);
    }
    if (active >= 0 && c->world != active) { /* of a world that stands by: no trouble of the run */
        free(w->trouble);
        w->trouble = NULL;
    }
    if (failure) {
        free(w->last_text);
        if (!(w->last_text = strdup(text.data))) tt_mem_out(text.size);
        w->last = *c;
    }
    if (tt_supervisor_look(w->s).ending && failure) { /* it is told at the end */
        tt_str_free(&text);
        return;
    }
    say_json(w, json_pack("{s:s, s:o, s:i, s:i, s:I, s:s}", "event", "cause", "text",
                          tt_json_text(text.data), "generation", c->generation, "rank", c->rank,
                          "step", (json_int_t)c->step, "phase", tt_phase_name(c->phase)));
    if (w->o->mode != CLI_JSON) say(w, text.data);
    if (failure && c->generation > 0 && w->o->mode == CLI_SHOW) show_log(w, c->rank, 3);
    tt_str_free(&text);
}

static void hear_go(watch *w, const tt_news *n)
{
    char text[128];

    free(w->trouble); /* of a world that is over */
    w->trouble = NULL;
    if (!w->start) return;
    say_json(w, json_pack("{s:s, s:i, s:i, s:i}", "event", "generation", "generation",
                          n->cause.generation, "workers", n->code, "spares", n->spares));
    if (w->o->mode == CLI_JSON) return;
    snprintf(text, sizeof text, "generation %d goes on with %d worker%s", n->cause.generation,
             n->code, n->code == 1 ? "" : "s");
    if (n->spares)
        snprintf(text + strlen(text), 32, ", %d spare%s", n->spares, n->spares == 1 ? "" : "s");
    say(w, text);
}

static void hear_again(watch *w, const tt_news *n)
{
    char text[128], span[32];

    bool resized = n->cause.kind == TT_CAUSE_RESIZE;

    say_json(w, json_pack("{s:s, s:f, s:I}", "event", resized ? "resized" : "recovered", "seconds",
                          n->seconds, "step", (json_int_t)n->cause.step));
    if (w->o->mode == CLI_JSON || resized) return; /* of a resize the control tells */
    tt_show_time(n->seconds, span, sizeof span);
    snprintf(text, sizeof text, "step %lld is committed, %s after the failure was seen",
             (long long)n->cause.step, span);
    say(w, text);
}

static void hear(watch *w, const tt_news *n)
{
    cli_control_hear(w->control, n);
    switch (n->kind) {
    case TT_NEWS_LINE:
        hear_line(w, n->line);
        break;
    case TT_NEWS_TEXT:
        hear_warning(w, n->text);
        break;
    case TT_NEWS_CAUSE:
        hear_cause(w, n);
        break;
    case TT_NEWS_GO:
        hear_go(w, n);
        break;
    case TT_NEWS_AGAIN:
        hear_again(w, n);
        break;
    case TT_NEWS_HOST:
        say_json(w, json_incref(n->line));
        if (w->o->mode != CLI_JSON) say(w, n->text);
        break;
    case TT_NEWS_EXIT:
        w->code = n->code;
        break;
    case TT_NEWS_LETTER: /* the control's */
    case TT_NEWS_NONE:
        break;
    }
}

/* ---- where ---- */

static tt_err find_hosts(const cli_world_opts *o, tt_hosts *hosts, tt_str *by)
{
    tt_err err;

    if (o->list) {
        tt_str_add(by, "-H %s", o->list);
        return tt_hosts_parse(o->list, hosts);
    }
    if (o->file) {
        tt_str_add(by, "--hostfile %s", o->file);
        return tt_hosts_read(o->file, hosts);
    }
    if (o->adopter) {
        tt_str_add(by, "TF_CONFIG");
        return tt_tf_config_hosts(o->adopter->c, hosts);
    }
    if ((err = tt_hosts_slurm(o->ranks, hosts))) return err;
    if (hosts->count) tt_str_add(by, "Slurm");
    if (o->ranks) tt_str_add(by, "%s-n %d", hosts->count ? ", " : "", o->ranks);
    if (o->listen) tt_str_add(by, "%s--listen", by->size ? ", " : "");
    return TT_OK;
}

/* ---- how it ended ---- */

static void show_kept(const watch *w)
{
    const char *const *lines;
    int n = tt_supervisor_said(w->s, &lines);

    if (n) fprintf(stderr, "last they said:\n");
    for (int i = 0; i < n; i++) fprintf(stderr, "  %s\n", lines[i]);
}

/* What nobody has told yet is told. */
static int conclude(watch *w)
{
    if (w->display) cli_display_leave(w->display);
    if (w->end && asked == SIGINT && w->code == CLI_REQUEUE) w->code = CLI_INTERRUPTED;
    if (w->end) {
        json_object_set_new(w->end, "exit_code", json_integer(w->code));
        cli_end_show(w->o->mode, w->start, w->end);
    }
    if (w->trouble) {
        fprintf(stderr, "tutti: %s\n", w->trouble);
        if (w->end && w->trouble_code == 6) { /* the vault has it */
            fprintf(stderr, "tutti: the state is kept in memory: make room on the disk, then\n");
            cli_resume_show(w->start, w->end);
        }
        return w->trouble_code ? w->trouble_code : w->code ? w->code : 1;
    }
    if (w->end) return w->code;
    if (asked) {
        if (w->last_text) fprintf(stderr, "tutti: %s\n", w->last_text);
        fprintf(stderr, "tutti: quit %s\n",
                w->start ? "without saving: the last step is kept in memory" : "before the start");
        if (w->start) cli_resume_show(w->start, w->start);
        return w->code;
    }
    if (w->last_text) {
        fprintf(stderr, "tutti: given up: %s\n", w->last_text);
        show_log(w, w->last.rank, 4);
    }
    show_kept(w);
    if (w->start) cli_resume_show(w->start, w->start);
    return w->code;
}

/* Another leads, or will soon: what our world has told since is not ours to tell. */
static int be_deposed(watch *w)
{
    if (w->display) cli_display_leave(w->display);
    return asked ? stop_code() : CLI_DEPOSED;
}

static void say_line(const watch *w, const char *line)
{
    if (w->o->mode == CLI_JSON)
        say_json(w, json_pack("{s:s, s:o}", "event", "note", "text", tt_json_text(line)));
    else
        say(w, line);
}

/* It has told of its end, and all of it is on disk, or can be had again. */
static bool is_safe(const watch *w)
{
    const char *status = json_string_value(json_object_get(w->end, "status"));

    return status && !w->trouble && (!strcmp(status, "done") || !strcmp(status, "stopped"));
}

static int watch_over(watch *w)
{
    const char *line;
    tt_news n;

    w->code = -1;
    while (w->code < 0) {
        tt_supervisor_turn(w->s, 50);
        if (w->o->helm && tt_helm_left(w->o->helm) <= 0) return be_deposed(w);
        while (tt_supervisor_take(w->s, &n)) hear(w, &n);
        take_order(cli_control_turn(w->control));
        while ((line = cli_control_said(w->control))) say_line(w, line);
        pass_signals(w);
    }
    return conclude(w);
}

/* Some more than there are CPUs do no harm; very many more are a slip of the finger that would stop
 * the machine. */
tt_err cli_ranks_check(const tt_hosts *hosts, int ranks)
{
    int most = 32 * tt_cpu_count();

    for (int i = 0; i < hosts->count; i++)
        if (!tt_host_is_here(hosts->host[i].name)) return TT_OK;
    if (ranks <= most) return TT_OK;
    return tt_fail(TT_EINVAL, "%d workers on a host with %d CPU%s: more than %d cannot be meant",
                   ranks, tt_cpu_count(), tt_cpu_count() == 1 ? "" : "s", most);
}

/* A number that is fixed must find room; of a range, hosts may come later. */
static tt_err check_room(const cli_world_opts *o, const tt_hosts *hosts, int ranks)
{
    int slots = tt_hosts_slots(hosts);

    if (!hosts->count || o->least || ranks <= slots) return TT_OK;
    return tt_fail(
        TT_EINVAL,
        "%d workers are wanted, but the hosts take %d: say how many each takes (a:4), or "
        "a range, -n %d:%d",
        ranks, slots, slots, ranks);
}

/* What would be started, as the shell takes it. */
static int show_plan(const tt_launch_opts *l, tt_arena *a)
{
    tt_launch_line line;
    tt_str text = {0};
    tt_err err = tt_launch_plan(l, a, &line);

    if (err) return cli_fail(err);
    for (const char **e = line.env; e && *e; e++) {
        cli_quote(*e, &text);
        tt_str_add(&text, " ");
    }
    for (const char **w = line.argv; *w; w++) {
        cli_quote(*w, &text);
        tt_str_add(&text, w[1] ? " " : "\n");
    }
    fputs(text.data, stdout);
    tt_str_free(&text);
    return 0;
}

/* What to type on other machines. */
static void show_way(const cli_world_opts *o, const tt_hub *hub, const char *key)
{
    tt_str all = {0};
    char *save = NULL;

    tt_hub_addresses(hub, &all);
    if (o->mode == CLI_JSON) {
        cli_json_print(stdout,
                       json_pack("{s:s, s:s, s:s}", "event", "listen", "addresses",
                                 all.data ? all.data : "", "key", key),
                       true);
        fflush(stdout);
    } else if (o->mode == CLI_SHOW && all.size) {
        fprintf(stderr, "other machines join with a copy of this key by:\n");
        for (char *one = strtok_r(all.data, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
            tt_str line = {0};
            cli_quote(key, &line);
            fprintf(stderr, "  tutti join %s --key %s\n", one, line.data);
            tt_str_free(&line);
        }
    }
    tt_str_free(&all);
}

/* Machines that join are reached by their agents, others by a remote shell; a launcher takes one of
 * both. */
static tt_err check_listen(const cli_world_opts *o, const tt_hosts *hosts)
{
    if (!o->listen) return TT_OK;
    if (o->adopter)
        return tt_fail(TT_EINVAL, "--listen and TF_CONFIG both say who takes part: give one");
    for (int i = 0; i < hosts->count; i++)
        if (!tt_host_is_here(hosts->host[i].name))
            return tt_fail(
                TT_EINVAL,
                "--listen: hosts join by themselves: leave out %s, and type 'tutti join' "
                "there",
                hosts->host[i].name);
    return TT_OK;
}

/* The hub in a folder of ours, unless there is one already for hosts that wait. */
static tt_err open_hub(const cli_world_opts *o, bool far, const char *rooms, char folder[CLI_PATH],
                       tt_hub **out)
{
    const char *tmp = getenv("TMPDIR");
    char key[CLI_PATH], world[256];
    tt_err err;

    if (o->adopter && o->adopter->hub) {
        snprintf(folder, CLI_PATH, "%s", o->adopter->folder);
        *out = o->adopter->hub;
        return TT_OK;
    }
    snprintf(folder, CLI_PATH, "%s/tutti-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) {
        err = tt_fail(TT_EIO, "make a folder like %s: %s", folder, strerror(errno));
        *folder = 0;
        return err;
    }
    if (!far && !o->listen) return tt_hub_open(&(tt_hub_opts){.folder = folder, .world = ""}, out);
    if (o->key)
        snprintf(key, sizeof key, "%s", o->key);
    else if ((err = tt_cluster_key_path(key)) || (err = tt_cluster_key_make(key)))
        return err;
    if (!o->listen) return tt_hub_open(&(tt_hub_opts){folder, "tcp://*:0", key, ""}, out);
    cli_join_world(world);
    err = tt_hub_open(&(tt_hub_opts){.folder = folder,
                                     .address = *o->listen ? o->listen : "tcp://*:0",
                                     .key = key,
                                     .world = world,
                                     .joins = true,
                                     .program = o->worker[0],
                                     .rooms = rooms},
                      out);
    if (!err) show_way(o, *out, key);
    return err;
}

static void add_hosts(tt_supervisor *s, const tt_hosts *hosts, int slots)
{
    if (!hosts->count) tt_supervisor_host(s, NULL, slots);
    for (int i = 0; i < hosts->count; i++)
        tt_supervisor_host(s, hosts->host[i].name, hosts->host[i].slots ? hosts->host[i].slots : 1);
}

static tt_policy_opts plan_policy(const cli_world_opts *o, int ranks, bool far)
{
    tt_policy_opts p = tt_policy_defaults();

    p.most = ranks;
    p.least = o->least ? o->least : ranks;
    p.spares = o->spares;
    p.max_restarts = o->max_restarts;
    /* Where their number is fixed and all are here, nobody else will come. And to leave out a slot
     * would be to end: how often it may fail says max_restarts alone. */
    p.wait_s = o->wait_s >= 0 ? o->wait_s : p.least < p.most || far ? 600 : 10;
    if (p.least == p.most && !far && !p.spares) p.strikes = INT_MAX;
    return p;
}

int cli_supervise(const cli_world_opts *o)
{
    watch w = {.o = o};
    cli_live live = {.fd = -1};
    tt_hub *hub = NULL;
    tt_hosts hosts = {0};
    tt_str by = {0}, far = {0};
    char folder[CLI_PATH] = "", rooms[TT_ROOMS] = "";
    tt_arena *a = tt_arena_open(4096);
    int code = -1;
    tt_err err;

    if ((err = find_hosts(o, &hosts, &by)) || (err = check_listen(o, &hosts))) goto out;
    int ranks = o->ranks ? o->ranks : tt_hosts_slots(&hosts);
    /* Without hosts: as many as there are CPUs of what is allowed; `tutti resize` takes the rest.
     */
    int slots = hosts.count ? tt_hosts_slots(&hosts)
                            : o->spares + (o->least ? cli_slots_here(o->least, ranks) : ranks);
    if (o->listen && slots > tt_cpu_count()) slots = tt_cpu_count(); /* others have some, too */
    if ((!o->listen &&
         ((err = check_room(o, &hosts, ranks)) || (err = cli_ranks_check(&hosts, slots)))) ||
        (cli_shares() && (err = tt_rooms_name(rooms))))
        goto out;
    if (o->dry_run) {
        tt_launch_opts l = {.hosts = &hosts,
                            .ranks = slots < ranks ? slots : ranks,
                            .argv = o->worker,
                            .folder = "/tmp/tutti"};
        code = show_plan(&l, a);
        goto out;
    }
    catch_signals();
    if ((err = open_hub(o, hosts.count > 0, rooms, folder, &hub)) ||
        (o->adopter && o->adopter->hub && (err = cli_adopt(hub, o, &hosts, &asked))))
        goto out;
    tt_leftovers_sweep();
    tt_hub_addresses(hub, &far);
    tt_supervisor_opts so = {.policy = plan_policy(o, ranks, hosts.count > 0 || o->listen),
                             .run = o->run,
                             .argv = o->worker,
                             .next = o->next,
                             .launched_by = by.data,
                             .folder = folder,
                             .hub = hub,
                             .agents = o->listen || (o->adopter && o->adopter->hub),
                             .far = far.data,
                             .rooms = rooms,
                             .helm = o->helm};
    if (o->helm) so.policy.generation = tt_helm_generation(o->helm);
    if ((err = tt_supervisor_open(&so, &w.s))) goto out;
    if (cli_live_open(o->run, tt_hub_address(hub), &live)) tt_info("%s", tt_message());
    w.control = cli_control_open(w.s, o, &hosts);
    add_hosts(w.s, &hosts, slots);
    code = watch_over(&w);
    cli_control_close(w.control);
    cli_live_close(&live);
    tt_supervisor_close(w.s);
    tt_leftovers_sweep(); /* when we began, what was killed may not have been dead yet */
    if (is_safe(&w)) {
        cli_vault_drop(o->run);
        tt_hub_saved(hub);
    }
    tt_rooms_remove(rooms);
out:
    if (err && code < 0) code = cli_fail(err);
    cli_forget_reader();
    if (!(o->adopter && o->adopter->hub)) {
        tt_hub_close(hub, code);
        if (*folder) tt_dir_remove(folder);
    }
    tt_arena_close(a);
    cli_display_close(w.display);
    json_decref(w.start);
    json_decref(w.end);
    for (int i = 0; i < SHOWN_WARNINGS; i++) free(w.warned[i]);
    free(w.trouble);
    free(w.last_text);
    tt_hosts_free(&hosts);
    tt_str_free(&by);
    tt_str_free(&far);
    return code;
}
