/* leave: takes a machine out of a run: on that machine, by a signal to its agent; or where the run
 * is, by a letter to its supervisor. Either way the run goes on without it from a step boundary. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli.h"

enum { AGENTS = 64 };
static const double ANSWER_S = 10;

typedef struct leave_opts {
    const char *wait, *runs;
} leave_opts;

static const tt_option options[] = {
    {"wait", 0, TT_OPT_STRING, offsetof(leave_opts, wait), "TIME",
     "how long to wait until this machine has left; 2m"},
    {"runs", 0, TT_OPT_STRING, offsetof(leave_opts, runs), "DIR", "where run folders are; runs"},
};

/* ---- this machine ---- */

typedef struct found {
    int pid;
    char address[256], name[256];
} found;

/* False: there is none behind this file any more. */
static bool read_agent(const char *path, found *out)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    json_t *o;

    if (fd < 0) return false;
    if (!flock(fd, LOCK_SH | LOCK_NB)) { /* nobody holds it */
        unlink(path);
        close(fd);
        return false;
    }
    o = json_loadfd(fd, 0, NULL);
    close(fd);
    const char *address = json_string_value(json_object_get(o, "address")),
               *name = json_string_value(json_object_get(o, "name"));
    out->pid = (int)json_integer_value(json_object_get(o, "pid"));
    snprintf(out->address, sizeof out->address, "%s", address ? address : "");
    snprintf(out->name, sizeof out->name, "%s", name ? name : "");
    json_decref(o);
    return out->pid > 0;
}

static tt_err find_agents(const char *address, found *out, int *count)
{
    char folder[CLI_PATH], path[CLI_PATH + 300];
    tt_err err = cli_agents_folder(folder);
    struct dirent *e;
    DIR *d;

    *count = 0;
    if (err) return err;
    if (!(d = opendir(folder))) return tt_fail(TT_EIO, "open %s: %s", folder, strerror(errno));
    while ((e = readdir(d)) && *count < AGENTS) {
        size_t n = strlen(e->d_name);
        if (n < 6 || strcmp(e->d_name + n - 5, ".json")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (read_agent(path, &out[*count]) && (!address || !strcmp(address, out[*count].address)))
            (*count)++;
    }
    closedir(d);
    return TT_OK;
}

static tt_err leave_here(const char *address, double wait_s)
{
    found agent[AGENTS];
    struct pollfd p = {.events = POLLIN};
    int count;
    tt_err err = find_agents(address, agent, &count);

    if (err) return err;
    if (!count)
        return tt_fail(TT_EINVAL, "no 'tutti join' of yours runs on this machine%s%s",
                       address ? " for " : "", address ? address : "");
    if (count > 1 && !address) {
        tt_str all = {0};
        for (int i = 0; i < count; i++) tt_str_add(&all, "%s%s", i ? ", " : "", agent[i].address);
        err = tt_fail(TT_EINVAL, "this machine has joined several runs: say which to leave: %s",
                      all.data);
        tt_str_free(&all);
        return err;
    }
    if ((p.fd = (int)syscall(SYS_pidfd_open, agent[0].pid, 0)) < 0 ||
        syscall(SYS_pidfd_send_signal, p.fd, SIGTERM, NULL, 0))
        return tt_fail(TT_EIO, "signal process %d: %s", agent[0].pid, strerror(errno));
    if (poll(&p, 1, wait_s > 1e6 ? -1 : (int)(1000 * wait_s)) <= 0)
        err = tt_fail(TT_EPEER, "%s has not left %s yet: process %d there goes on trying",
                      agent[0].name, agent[0].address, agent[0].pid);
    else
        printf("%s has left %s\n", agent[0].name, agent[0].address);
    close(p.fd);
    return err;
}

/* ---- where the run is ---- */

static tt_err leave_run(const char *name, const char *runs, const char *host)
{
    char run[CLI_PATH];
    json_t *answer = NULL, *ask = json_pack("{s:s, s:s}", "ask", "leave", "host", host);
    tt_err err;

    if (!ask) return tt_fail(TT_EINVAL, "'%.80s' is no name of a host", host);
    if ((err = cli_run_find(name, runs, run)))
        json_decref(ask);
    else
        err = cli_ask(run, ask, ANSWER_S, &answer);
    if (!err) printf("%s leaves %s at its next step boundary\n", host, run);
    json_decref(answer);
    return err;
}

static int leave(const void *opts, int argc, const char **argv)
{
    const leave_opts *o = opts;
    double wait_s = 120;
    tt_err err;

    if (o->wait && (!tt_parse_time(o->wait, &wait_s) || wait_s < 0))
        err = tt_fail(TT_EINVAL, "--wait: '%s' is no time: say 2m", o->wait);
    else if (argc == 2)
        err = leave_run(argv[0], o->runs, argv[1]);
    else if (argc && !strstr(argv[0], "://"))
        err = tt_fail(TT_EINVAL, "which host is to leave %s? say 'tutti leave %s HOST'", argv[0],
                      argv[0]);
    else
        err = leave_here(argc ? argv[0] : NULL, wait_s);
    return err ? cli_fail(err) : 0;
}

const tt_command cli_leave = {
    .name = "leave",
    .args = "[ADDRESS | RUN HOST]",
    .args_most = 2,
    .brief = "take a machine out of a run that goes on without it",
    .about =
        "On a machine that has joined a run ('tutti join'): it leaves at the next step boundary, "
        "and this returns when it has. ADDRESS is needed only if it has joined several.\n\n"
        "Where the run is: 'tutti leave RUN HOST' sends that host away.",
    .examples = (const char *const[]){"tutti leave", "this machine leaves",
                                      "tutti leave tcp://10.0.0.1:4444", "one run of several",
                                      "tutti leave last b", "host b leaves the newest run", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(leave_opts),
    .run = leave,
};
