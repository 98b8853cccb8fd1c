/* join: lends this machine to a run on another one, for as long as both want.
 *
 * What runs here is an agent (cluster/agent.c). A file of it in a folder of this user's, locked as
 * long as it lives, is how `tutti leave` finds it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "comm/wire.h"
#include "store/vault.h"

enum { SLOTS_MOST = 1024 };

typedef struct join_opts {
    const char *key, *name, *wait;
    int64_t slots;
    bool detach, quiet;
} join_opts;

static const tt_option options[] = {
    {"key", 0, TT_OPT_STRING, offsetof(join_opts, key), "FILE",
     "the cluster's key, a copy of the one the run has, of mode 0600; else $TUTTI_KEY or "
     "~/.config/tutti/key"},
    {"slots", 0, TT_OPT_INT, offsetof(join_opts, slots), "N",
     "how many workers this machine takes; as many as it has CPUs"},
    {"name", 0, TT_OPT_STRING, offsetof(join_opts, name), "HOST",
     "what the run calls this machine; its host name"},
    {"wait", 0, TT_OPT_STRING, offsetof(join_opts, wait), "TIME",
     "how long to try to reach the run, now and when it is lost; 10m"},
    {"detach", 0, TT_OPT_FLAG, offsetof(join_opts, detach), NULL,
     "go on in the background once it is taken in"},
    {"quiet", 'q', TT_OPT_FLAG, offsetof(join_opts, quiet), NULL, "print nothing but errors"},
};

void cli_join_world(char out[256])
{
    snprintf(out, 256, "tutti %s with %s", TT_VERSION, tt_mpi_name());
}

/* ---- the folder of agents ---- */

tt_err cli_agents_folder(char out[CLI_PATH])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;

    if (runtime && *runtime == '/')
        snprintf(out, CLI_PATH, "%.3900s/tutti-agents", runtime);
    else
        snprintf(out, CLI_PATH, "/tmp/tutti-agents-%u", (unsigned)geteuid());
    if (mkdir(out, 0700) && errno != EEXIST)
        return tt_fail(TT_EIO, "make %s: %s", out, strerror(errno));
    if (lstat(out, &st)) return tt_fail(TT_EIO, "%s: %s", out, strerror(errno));
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
        return tt_fail(TT_EENV, "%s: must be a folder of yours alone (mode 0700): remove it", out);
    return TT_OK;
}

/* The lock is held by the file's descriptor, until this process ends. The file appears under its
 * name with its lock held, so that nobody takes it for one of a dead agent. */
static tt_err enrol(const char *address, const char *name, char path[CLI_PATH + 32], int *fd)
{
    char folder[CLI_PATH], made[CLI_PATH + 32];
    tt_err err = cli_agents_folder(folder);
    json_t *o;

    *fd = -1;
    *path = 0;
    if (err) return err;
    snprintf(made, sizeof made, "%s/.%d", folder, (int)getpid());
    snprintf(path, CLI_PATH + 32, "%s/%d.json", folder, (int)getpid());
    unlink(made); /* of a process that had this number before */
    if ((*fd = open(made, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0 ||
        flock(*fd, LOCK_EX | LOCK_NB))
        return tt_fail(TT_EIO, "%s: %s", made, strerror(errno));
    o = json_pack("{s:i, s:s, s:s}", "pid", (int)getpid(), "address", address, "name", name);
    if (!o || json_dumpfd(o, *fd, JSON_COMPACT) || rename(made, path)) {
        err = tt_fail(TT_EIO, "write %s: %s", path, strerror(errno));
        unlink(made);
    }
    json_decref(o);
    return err;
}

/* ---- the agent ---- */

static volatile int times_asked;
static int ready_fd = -1; /* to who waits in the foreground until we are taken in */
static bool quiet;

static void on_signal(int sig)
{
    (void)sig;
    times_asked = times_asked + 1;
}

/* What it first tells is that it is taken in. */
static void tell(const char *text)
{
    if (!quiet) fprintf(stderr, "tutti: %s\n", text);
    if (ready_fd < 0) return;
    (void)!write(ready_fd, "+", 1);
    close(ready_fd);
    ready_fd = -1;
}

/* The run's copy of its state on this host, and the data it had decoded. A run that ended without
 * having saved may want the state again, whatever its exit code. */
static void clear_away(const tt_agent_end *e)
{
    tt_vault_left *left = NULL;
    int count = 0;

    if (tt_rooms_valid(e->rooms)) tt_rooms_remove(e->rooms);
    if (!*e->run || !e->done_with || tt_vault_leftovers("/var/tmp", &left, &count)) return;
    for (int i = 0; i < count; i++)
        if (!strcmp(left[i].run, e->run) && tt_vault_remove(left[i].folder))
            tt_warn("%s", tt_message());
    free(left);
}

static int be_agent(const tt_agent_opts *o)
{
    struct sigaction act = {.sa_handler = on_signal};
    char path[CLI_PATH + 32];
    tt_agent_end end = {0};
    tt_err err;
    int fd, code;

    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGHUP, &act, NULL);
    if (!(err = enrol(o->address, o->host, path, &fd))) err = tt_agent_run(o, &times_asked, &end);
    if (*path) unlink(path);
    if (fd >= 0) close(fd);
    if (err && ready_fd >= 0) (void)!write(ready_fd, tt_message(), strlen(tt_message()));
    code = err ? cli_fail(err) : end.code;
    if (!err || err == TT_ESTOP) clear_away(&end);
    if (err) return code;
    if (times_asked)
        tell("this host has left the run");
    else if (end.code)
        fprintf(stderr, "tutti: the run at %s ended with exit code %d; it says why\n", o->address,
                end.code);
    else
        tell("the run has ended");
    return code;
}

/* ---- in the background ---- */

/* Waits until the child is taken in, or has failed. */
static int see_off(int fd, pid_t pid, const char *log)
{
    char text[4096];
    int status = 0;
    ssize_t n;

    while ((n = read(fd, text, sizeof text - 1)) < 0 && errno == EINTR) continue;
    text[n > 0 ? n : 0] = 0;
    if (n <= 0) return cli_fail(tt_fail(TT_EENV, "the agent died: see %s", log));
    if (*text != '+') {
        fprintf(stderr, "tutti: %s\n", text);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    if (!quiet)
        printf("joined in the background, as process %d: 'tutti leave' takes this machine out "
               "again; what happens is in %s\n",
               (int)pid, log);
    return 0;
}

static int detach(const tt_agent_opts *o)
{
    char folder[CLI_PATH], log[CLI_PATH + 64];
    int fd[2], out, code;
    pid_t pid;
    tt_err err;

    if ((err = cli_agents_folder(folder))) return cli_fail(err);
    snprintf(log, sizeof log, "%s/join.log", folder);
    if (pipe2(fd, O_CLOEXEC) || (pid = fork()) < 0)
        return cli_fail(tt_fail(TT_EENV, "go to the background: %s", strerror(errno)));
    if (pid) {
        close(fd[1]);
        code = see_off(fd[0], pid, log);
        close(fd[0]);
        return code;
    }
    close(fd[0]);
    ready_fd = fd[1];
    setsid();
    if ((out = open("/dev/null", O_RDONLY)) >= 0) dup2(out, 0);
    if ((out = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600)) >= 0) {
        dup2(out, 1);
        dup2(out, 2);
        setvbuf(stderr, NULL, _IOLBF, BUFSIZ);
    }
    exit(be_agent(o));
}

/* ---- the command ---- */

static int join_run(const void *opts, int argc, const char **argv)
{
    const join_opts *o = opts;
    char key[CLI_PATH], host[256] = "", world[256], rest;
    double wait_s = 600;
    tt_cluster_key checked;
    unsigned port;
    tt_err err;

    (void)argc;
    if (sscanf(argv[0], "tcp://%*[^:]:%5u%c", &port, &rest) != 1 || !port || port > 65535)
        return cli_fail(
            tt_fail(TT_EINVAL,
                    "'%.200s' is no address of a run: 'tutti train --listen' prints it, "
                    "such as tcp://10.0.0.1:4444",
                    argv[0]));
    if (o->wait && (!tt_parse_time(o->wait, &wait_s) || wait_s < 0))
        return cli_fail(tt_fail(TT_EINVAL, "--wait: '%s' is no time: say 10m", o->wait));
    if (o->slots < 0 || o->slots > SLOTS_MOST)
        return cli_fail(
            tt_fail(TT_EINVAL, "--slots: %lld is not 1 to %d", (long long)o->slots, SLOTS_MOST));
    gethostname(host, sizeof host - 1);
    if (o->name && (!*o->name || strlen(o->name) >= sizeof host || strpbrk(o->name, " ,:/\\'\"")))
        return cli_fail(tt_fail(TT_EINVAL, "--name: '%.80s' is no name of a host", o->name));
    if (o->key)
        snprintf(key, sizeof key, "%s", o->key);
    else if ((err = tt_cluster_key_path(key)))
        return cli_fail(err);
    if ((err = tt_cluster_key_load(key, &checked))) return cli_fail(err);
    memset(&checked, 0, sizeof checked);
    cli_join_world(world);
    quiet = o->quiet;
    tt_agent_opts a = {.address = argv[0],
                       .key = key,
                       .host = o->name ? o->name : host,
                       .world = world,
                       .wait_s = wait_s,
                       .slots = o->slots ? (int)o->slots : tt_cpu_count(),
                       .tell = tell};
    return o->detach ? detach(&a) : be_agent(&a);
}

const tt_command cli_join = {
    .name = "join",
    .args = "ADDRESS",
    .args_least = 1,
    .args_most = 1,
    .brief = "lend this machine to a run on another one",
    .about =
        "Offers this machine to a run that was started with 'tutti train --listen', which prints "
        "the address. The run takes it in at its next step boundary, and goes on without it when "
        "it leaves ('tutti leave', Ctrl-C or SIGTERM) or is lost. No ssh is needed: whoever has "
        "the key may run commands here, as long as this runs.\n\n"
        "The same version of tutti must be at the same place, and the run's job, data and run "
        "folder be seen by the same names. Ends with the run and its exit code, or with 0 when "
        "it has left; Ctrl-C twice leaves at once.",
    .examples = (const char *const[]){"tutti join tcp://10.0.0.1:4444 --key key",
                                      "with as many workers as there are CPUs",
                                      "tutti join tcp://10.0.0.1:4444 --slots 2 --detach",
                                      "with two, in the background", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(join_opts),
    .run = join_run,
};
