/* supervise: starts a world of workers, shows what rank 0 tells, and sees to it that all ends.
 *
 * Workers speak by lines of JSON on their standard output, which the launcher forwards: rank 0
 * tells start, steps and end, and any rank the error that it alone has met. What else they or the
 * launcher print is kept, and shown only if the world ends without a word of ours.
 *
 * Ctrl-C once asks the workers to finish the step and save; twice ends them at once. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

enum { LINE_MOST = 1 << 20, FIRST_LINES = 10, KEPT_LINES = 40, SHOWN_WARNINGS = 8 };
static const double START_S = 60; /* until MPI has begun: a rank that hangs there is not heard of */

typedef struct stream {
    char *text;
    size_t used;
    bool ended;
} stream;

typedef struct watch {
    const cli_world_opts *o;
    tt_launch launch;
    tt_hub *hub; /* for hosts that wait; NULL: none */
    stream out, err;
    json_t *start, *end;
    cli_display *display;
    char *trouble; /* the first error that was told */
    int trouble_code;
    char *kept[KEPT_LINES]; /* lines that were nobody's: the first ones, and the last */
    int kept_count;
    char *warned[SHOWN_WARNINGS]; /* what has been shown: all ranks may say it */
    int warnings;
    double begun;
    bool joined;  /* rank 0 is there */
    int64_t step; /* the last that was told */
} watch;

/* ---- signals ---- */

static volatile sig_atomic_t asked, times_asked;

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
    act.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &act, NULL);
}

/* ---- what is heard ---- */

static void keep(watch *w, const char *line)
{
    if (!*line) return;
    if (w->kept_count == KEPT_LINES) { /* the first are often the cause: those stay */
        free(w->kept[FIRST_LINES]);
        memmove(w->kept + FIRST_LINES, w->kept + FIRST_LINES + 1,
                (KEPT_LINES - FIRST_LINES - 1) * sizeof *w->kept);
        w->kept_count--;
    }
    if (!(w->kept[w->kept_count++] = strdup(line))) tt_mem_out(strlen(line));
}

/* Warnings of workers come with the rest of what they print; each is shown once. */
static void hear_warning(watch *w, const char *line)
{
    for (int i = 0; i < w->warnings; i++)
        if (!strcmp(w->warned[i], line)) return;
    if (w->warnings == SHOWN_WARNINGS) return; /* all are in the logs */
    if (!(w->warned[w->warnings++] = strdup(line))) tt_mem_out(strlen(line));
    if (w->o->mode == CLI_QUIET) return;
    if (w->display) cli_display_leave(w->display);
    fprintf(stderr, "%s\n", line);
}

static void hear_step(watch *w, const json_t *o)
{
    static tt_rank_times times[CLI_RANKS];
    tt_progress p;
    int ranks;

    cli_step_take(o, &p, times, &ranks);
    w->step = p.step;
    if (w->display) cli_display_step(w->display, &p, times, ranks);
}

static void hear_trouble(watch *w, const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));

    if (w->trouble || !text || !*text) return;
    if (!(w->trouble = strdup(text))) tt_mem_out(strlen(text));
    w->trouble_code = (int)json_integer_value(json_object_get(o, "exit_code"));
}

static void hear(watch *w, const char *line)
{
    json_t *o = *line == '{' ? json_loads(line, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const char *event = json_string_value(json_object_get(o, "event"));

    w->joined |= event != NULL;
    if (!event) {
        keep(w, line);
    } else if (!strcmp(event, "start")) {
        json_decref(w->start);
        w->start = json_incref(o);
        cli_start_show(w->o->mode, o);
        w->display = cli_display_open(w->o->mode, o);
    } else if (!strcmp(event, "progress")) {
        hear_step(w, o);
    } else if (!strcmp(event, "note")) {
        const char *text = json_string_value(json_object_get(o, "text"));
        if (w->display && text) cli_display_note(w->display, text);
    } else if (!strcmp(event, "end")) {
        json_decref(w->end);
        w->end = json_incref(o);
        hear_trouble(w, o, "trouble");
    } else if (!strcmp(event, "error")) {
        hear_trouble(w, o, "message");
    }
    json_decref(o);
}

/* Reads what is there; whole lines are heard. `words`: they may be events. */
static void drain(watch *w, stream *s, int fd, bool words)
{
    ssize_t n;

    if (!s->text && !(s->text = malloc(LINE_MOST))) tt_mem_out(LINE_MOST);
    while ((n = read(fd, s->text + s->used, LINE_MOST - 1 - s->used)) > 0) {
        char *from = s->text, *end;
        s->used += (size_t)n;
        s->text[s->used] = 0;
        while ((end = strchr(from, '\n'))) {
            *end = 0;
            if (end > from && end[-1] == '\r') end[-1] = 0;
            if (words)
                hear(w, from);
            else if (!strncmp(from, "tutti: warning: ", 16))
                hear_warning(w, from);
            else
                keep(w, from);
            from = end + 1;
        }
        s->used -= (size_t)(from - s->text);
        memmove(s->text, from, s->used);
        if (s->used >= LINE_MOST - 1) s->used = 0; /* no line of ours */
    }
    s->ended = n == 0;
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
    return TT_OK;
}

/* ---- the watch ---- */

static void show_kept(const watch *w)
{
    for (int i = 0; i < w->kept_count; i++) fprintf(stderr, "  %s\n", w->kept[i]);
}

/* What the launchers say of a worker that died: Open MPI "process rank 2 with PID 77 on node vm
 * exited on signal 9 (Killed)", MPICH "PID 77 RUNNING AT vm" and "EXIT CODE: 9". rank -1: not told.
 */
static bool find_death(const watch *w, int *rank, char host[64], int *sig)
{
    bool found = false;

    *rank = -1;
    *sig = 0;
    for (int i = 0; i < w->kept_count; i++) {
        const char *at, *line = w->kept[i];
        if ((at = strstr(line, "process rank ")) &&
            sscanf(at, "process rank %d with PID %*d on node %63s exited on signal %d", rank, host,
                   sig) == 3)
            return true;
        if ((at = strstr(line, "RUNNING AT ")) && sscanf(at, "RUNNING AT %63s", host) == 1)
            found = true;
        if (found && (at = strstr(line, "EXIT CODE: "))) sscanf(at, "EXIT CODE: %d", sig);
    }
    return found && *sig > 0;
}

/* The last that a rank wrote to its log. */
static void show_log(const watch *w, int rank)
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
    while (from > 0 && lines < 4) lines += ((const char *)b.data)[--from] == '\n';
    if (lines == 4) from++;
    fprintf(stderr, "the end of its log, %s:\n%.*s", path, (int)(b.size - from),
            (const char *)b.data + from);
    tt_file_release(&b);
}

static int tell_death(const watch *w, int rank, const char *host, int sig)
{
    char who[32] = "a worker", when[48] = "";

    if (rank >= 0) snprintf(who, sizeof who, "rank %d", rank);
    if (w->step > 0) snprintf(when, sizeof when, " after step %lld", (long long)w->step);
    fprintf(stderr, "tutti: %s (%s) was ended by signal %d (%s)%s\n", who, host, sig,
            strsignal(sig), when);
    show_log(w, rank);
    return cli_exit_code(TT_EPEER);
}

/* How it ended, in an exit code; what nobody has told yet is told. */
static int conclude(watch *w, int launcher_code)
{
    int code = w->end ? (int)json_integer_value(json_object_get(w->end, "exit_code")) : 0, rank,
        sig;
    char host[64];

    if (w->display) cli_display_leave(w->display);
    if (w->end && asked == SIGINT && code == CLI_REQUEUE) { /* ranks hear of it by SIGUSR1 */
        code = CLI_INTERRUPTED;
        json_object_set_new(w->end, "exit_code", json_integer(code));
    }
    if (w->end) cli_end_show(w->o->mode, w->start, w->end);
    if (w->trouble) {
        fprintf(stderr, "tutti: %s\n", w->trouble);
        return w->trouble_code ? w->trouble_code : 1;
    }
    if (w->end && code == CLI_REQUEUE && !asked) {
        fprintf(stderr,
                "tutti: the workers were told to stop, but not by us (%s: exit code %d)%s\n",
                tt_launcher_name(), launcher_code, w->kept_count ? "; last they said:" : "");
        show_kept(w);
        return cli_exit_code(TT_EPEER);
    }
    if (w->end) return code;
    if (times_asked > 1 || (asked && !w->start)) {
        fprintf(stderr, "tutti: quit %s\n", w->start ? "without saving" : "before the start");
        return asked == SIGINT ? CLI_INTERRUPTED : CLI_REQUEUE;
    }
    if (find_death(w, &rank, host, &sig)) return tell_death(w, rank, host, sig);
    if (!w->joined && launcher_code < 0)
        fprintf(stderr, "tutti: the workers have not come up in %.0f s%s\n", START_S,
                w->kept_count ? "; they said:" : "");
    else
        fprintf(stderr, "tutti: the workers ended without a word (%s: exit code %d)%s\n",
                tt_launcher_name(), launcher_code, w->kept_count ? "; they said:" : "");
    show_kept(w);
    return cli_exit_code(w->joined ? TT_EPEER : TT_EENV);
}

static int watch_over(watch *w)
{
    int code = -1, passed_on = 0;

    w->begun = tt_clock_s();
    while (!w->out.ended || !w->err.ended) {
        if (w->begun && !w->joined && tt_clock_s() - w->begun > START_S) break;
        struct pollfd p[16] = {{.fd = w->out.ended ? -1 : w->launch.out, .events = POLLIN},
                               {.fd = w->err.ended ? -1 : w->launch.err, .events = POLLIN}};
        int more = w->hub ? tt_hub_poll(w->hub, p + 2, TT_COUNT(p) - 2) : 0;
        poll(p, (nfds_t)(2 + more), 100);
        if (w->hub) tt_hub_turn(w->hub);
        if (p[0].revents) drain(w, &w->out, w->launch.out, true);
        if (p[1].revents) drain(w, &w->err, w->launch.err, false);
        if (times_asked > passed_on) {
            if (times_asked > 1 || !w->start) break; /* before the start there is nothing to save */
            passed_on = 1;
            if (w->display)
                cli_display_note(w->display, "stopping: the workers finish the step and save "
                                             "(Ctrl-C again quits without)");
            tt_launch_signal(&w->launch, SIGUSR1);
        }
        /* A launcher that is gone while a grandchild holds its pipes is gone all the same. */
        if (tt_launch_ended(&w->launch, &code)) {
            drain(w, &w->out, w->launch.out, true);
            drain(w, &w->err, w->launch.err, false);
            break;
        }
        if (w->trouble && !w->end) break; /* the first cause is known: no need to wait */
    }
    /* How the launcher ended says more than that it did. */
    double until = tt_clock_s() + (w->end || w->out.ended ? 1 : 0);
    while (!tt_launch_ended(&w->launch, &code) && tt_clock_s() < until) usleep(20000);
    return conclude(w, code);
}

/* Some more than there are CPUs do no harm; very many more are a slip of the finger that would stop
 * the machine. */
static tt_err check_ranks(const tt_hosts *hosts, int ranks)
{
    int most = 32 * tt_cpu_count();

    for (int i = 0; i < hosts->count; i++)
        if (!tt_host_is_here(hosts->host[i].name)) return TT_OK;
    if (ranks <= most) return TT_OK;
    return tt_fail(TT_EINVAL, "%d workers on a host with %d CPU%s: more than %d cannot be meant",
                   ranks, tt_cpu_count(), tt_cpu_count() == 1 ? "" : "s", most);
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

int cli_supervise(const cli_world_opts *o)
{
    watch w = {.o = o, .hub = o->adopter ? o->adopter->hub : NULL};
    tt_hosts hosts = {0};
    tt_str by = {0}, launched = {0}, shared = {0};
    char folder[CLI_PATH], rooms[TT_ROOMS] = "";
    tt_arena *a = tt_arena_open(4096);
    int code;
    tt_err err = find_hosts(o, &hosts, &by);

    if (err) {
        code = cli_fail(err);
        goto out;
    }
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/tutti-%d", tmp && *tmp ? tmp : "/tmp", (int)getpid());
    if (cli_shares() && (err = tt_rooms_name(rooms))) {
        code = cli_fail(err);
        goto out;
    }
    tt_str_add(&launched, "TUTTI_LAUNCHED_BY=%s (%s)", by.data, tt_launcher_name());
    tt_str_add(&shared, "TUTTI_SHARE=%s", *rooms ? rooms : "0");
    const char *const env[] = {"TUTTI_SUPERVISED=1", launched.data, shared.data, NULL};
    tt_launch_opts l = {.hosts = &hosts,
                        .ranks = o->ranks ? o->ranks : tt_hosts_slots(&hosts),
                        .argv = o->worker,
                        .env = env,
                        .folder = folder,
                        .rooms = rooms};
    if ((err = check_ranks(&hosts, l.ranks))) {
        code = cli_fail(err);
        goto out;
    }
    if (o->dry_run) {
        code = show_plan(&l, a);
        goto out;
    }
    catch_signals();
    if (w.hub && !(err = cli_adopt(w.hub, o, &hosts, &asked)))
        err = tt_hub_rsh(w.hub, o->worker[0], a, &l.rsh);
    if (err || (err = tt_launch_start(&l, &w.launch))) {
        code = cli_fail(err);
        goto out;
    }
    code = watch_over(&w);
    tt_launch_close(&w.launch);
    tt_rooms_remove(rooms);
out:
    cli_forget_reader();
    tt_arena_close(a);
    cli_display_close(w.display);
    json_decref(w.start);
    json_decref(w.end);
    for (int i = 0; i < w.kept_count; i++) free(w.kept[i]);
    for (int i = 0; i < w.warnings; i++) free(w.warned[i]);
    free(w.trouble);
    free(w.out.text);
    free(w.err.text);
    tt_hosts_free(&hosts);
    tt_str_free(&by);
    tt_str_free(&launched);
    tt_str_free(&shared);
    return code;
}
