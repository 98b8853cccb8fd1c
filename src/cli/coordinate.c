/* coordinate: several supervisors of one run, on several hosts: one leads, the others stand by.
 *
 *   campaign ── the helm is free ──> lead (cli_supervise) ── the run has ended ──> all end so
 *      ^                                 │
 *      └── stands by again <── deposed ──┘
 *
 * What was told to the screen of the one that led is its own; who takes over begins anew, from the
 * state it finds, as `--resume auto` does. Ctrl-C at the one that leads ends the run; at one that
 * stands by, that one alone. A leader that is told to go by SIGTERM or SIGUSR1 saves and leaves the
 * helm to others: the host goes, not the run. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "cli.h"

enum { TURN_MS = 200 };

/* ---- signals, while it stands by ---- */

static volatile sig_atomic_t asked;

static void on_signal(int sig)
{
    if (!asked) asked = sig;
}

static void catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1};
    struct sigaction act = {.sa_handler = on_signal};

    for (int i = 0; i < TT_COUNT(signals); i++) sigaction(signals[i], &act, NULL);
    act.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &act, NULL);
}

/* ---- which run ---- */

/* The run's identity. Who comes first to a new folder makes it; by link, so that of two who come at
 * once both get the same. */
static tt_err find_id(const char *run, char id[TT_RUN_ID])
{
    char path[CLI_PATH + 8], mine[CLI_PATH + 64];
    uint64_t r[2];
    tt_err err;

    snprintf(path, sizeof path, "%s/id", run);
    if (tt_run_id(run, id)) return TT_OK;
    if ((err = tt_dir_make(run))) return err;
    if (getrandom(r, sizeof r, 0) != sizeof r)
        return tt_fail(TT_EENV, "no random numbers: %s", strerror(errno));
    snprintf(id, TT_RUN_ID, "%016llx%016llx", (unsigned long long)r[0], (unsigned long long)r[1]);
    snprintf(mine, sizeof mine, "%s/id-%s", run, id);
    if ((err = tt_file_write(mine, id, TT_RUN_ID - 1))) return err;
    if (link(mine, path) && errno != EEXIST)
        err = tt_fail(TT_EIO, "make %s: %s", path, strerror(errno));
    unlink(mine);
    if (!err && !tt_run_id(run, id))
        err = tt_fail(TT_EFORMAT, "%s is not the identity of a run", path);
    return err;
}

/* ---- what is told ---- */

static void say(const cli_coordinate_opts *o, const char *event, const tt_helm_view *v,
                const char *text)
{
    if (o->mode == CLI_JSON) {
        json_t *j = json_pack("{s:s, s:s}", "event", event, "text", text);
        if (v && *v->host) json_object_set_new(j, "host", json_string(v->host));
        if (v && v->pid) json_object_set_new(j, "pid", json_integer(v->pid));
        cli_json_print(stdout, j, true);
        fflush(stdout);
    } else if (o->mode == CLI_SHOW) {
        fprintf(stderr, "tutti: %s\n", text);
    }
}

static void tell_standby(const cli_coordinate_opts *o, const tt_helm_view *v)
{
    char text[400];

    snprintf(text, sizeof text, "standing by for %s (process %d), which supervises", v->host,
             v->pid);
    say(o, "standby", v, text);
    cli_detach_begun(o->run); /* all is well, and whoever waits may go */
}

static void tell_silent(const cli_coordinate_opts *o, const tt_helm_view *v, bool ended)
{
    tt_str text = {0};

    tt_str_add(&text, "%s: the coordinator does not answer: %s",
               ended ? "the others cannot be told of the end" : "standing by", v->trouble);
    say(o, "standby", NULL, text.data);
    tt_str_free(&text);
}

static void tell_over(const cli_coordinate_opts *o, const tt_helm_view *v)
{
    char text[400];

    snprintf(text, sizeof text, "the run has ended under %s (process %d), with exit code %d",
             v->host, v->pid, v->code);
    say(o, "over", v, text);
}

static void tell_deposed(const cli_coordinate_opts *o, tt_helm *helm)
{
    tt_helm_view v = {.role = TT_HELM_LOOKING};
    tt_str text = {0};

    tt_helm_wait(helm, 0, &v);
    tt_str_add(&text,
               "this process does not supervise any more: its lease is over%s%s%s; its workers are "
               "ended, their state is kept",
               *v.trouble ? " (" : "", v.trouble, *v.trouble ? ")" : "");
    say(o, "deposed", NULL, text.data);
    tt_str_free(&text);
}

/* ---- the helm ---- */

/* It has the helm: supervises, and says what became of it. The exit code if it is to end at once,
 * else -1; *ended: it waits for the others to be told. */
static int lead(const cli_coordinate_opts *o, tt_helm *helm, bool *ended)
{
    int code;

    say(o, "leading", NULL, "this process supervises from now on");
    code = o->lead(o->arg, helm);
    catch_signals(); /* the supervisor had its own */
    if (code == CLI_DEPOSED) {
        tell_deposed(o, helm);
        tt_helm_end(helm, TT_HELM_STOPPED, 0);
        return -1;
    }
    if (tt_helm_left(helm) <= 0 && cli_supervise_told()) return code; /* it was told to end */
    *ended = true;
    /* What ended it before any world had GO may be this host's: others may try theirs. */
    bool goes = cli_supervise_told() ? code == CLI_REQUEUE : code && !tt_helm_went(helm);
    tt_helm_end(helm, goes ? TT_HELM_LEFT : TT_HELM_ENDED, code);
    return -1;
}

/* One look at the helm; -1: it goes on. */
static int turn(const cli_coordinate_opts *o, tt_helm *helm, tt_helm_view *v, bool *ended)
{
    tt_helm_role before = v->role;
    int pid = v->pid, code;

    tt_helm_wait(helm, TURN_MS, v);
    if (v->role == TT_HELM_OVER) {
        if (!*ended) tell_over(o, v);
        return v->code;
    }
    if (asked) return asked == SIGINT ? CLI_INTERRUPTED : CLI_REQUEUE;
    if (v->role == TT_HELM_STANDBY && (before != v->role || pid != v->pid)) tell_standby(o, v);
    if (v->role == TT_HELM_SILENT && before != v->role) tell_silent(o, v, *ended);
    if (v->role == TT_HELM_STANDBY) *ended = false; /* who leads will tell how it ends */
    if (v->role != TT_HELM_LEADING) return -1;
    code = lead(o, helm, ended);
    v->role = TT_HELM_LOOKING;
    return code;
}

int cli_coordinate(const cli_coordinate_opts *o)
{
    tt_helm_view v = {.role = TT_HELM_LOOKING};
    char id[TT_RUN_ID] = "";
    tt_helm *helm = NULL;
    bool ended = false;
    int code = -1;
    tt_err err;

    catch_signals();
    if ((err = tt_helm_try(o->address)) || /* before a folder is made for nothing */
        (err = find_id(o->run, id)) || (err = tt_helm_open(&(tt_helm_opts){o->address, id}, &helm)))
        return cli_fail(err);
    while (code < 0) code = turn(o, helm, &v, &ended);
    tt_helm_close(helm);
    return code;
}
