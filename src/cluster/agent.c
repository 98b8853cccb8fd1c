/* agent: waits on a host for the supervisor, and starts there what its launcher wants to start.
 *
 *   agent ── guard
 *     └───── /bin/sh -c "orted ..." ── ranks
 *
 * What it must hold: when it ends, however that is, nothing that it started is alive, and no files
 * of an MPI stay. Commands get the mark of their world, or one of their own, so that all of it is
 * found, and folders for what the MPI writes, on disk and in shared memory, which go when they have
 * ended; and for the case that the agent is killed there is a guard, a process that knows marks and
 * folders, waits for the agent's end and then ends all that carry them.
 *
 * What commands print goes no faster than the hub takes it: their pipes are full meanwhile.
 *
 * One that joins a run outlives its worlds, and a link that is down for a while: then it ends what
 * it has started and goes on saying that it is here. To leave, it says so and waits to be let go.
 */
#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const double HERE_S = 0.25;
/* Somebody of our name may have died a moment ago; a run may need a new world before it lets go. */
static const double LATER_S = 5, LEAVE_S = 90;
enum { CHUNK = 4096, CHUNKS = 16 /* in a turn */, PIPE_CHUNKS = 256 /* what a pipe may hold */ };

typedef struct charge { /* what the guard is told of a command */
    char mark[TT_MARK];
    char tmp[256], shm[64]; /* folders; "": none */
} charge;

typedef struct command {
    int id;
    int out;   /* what it prints; -1: it has closed it */
    pid_t pid; /* 0: it has ended */
    int code;
    int left; /* chunks to read once it has ended: others may have its pipe */
    charge charge;
    char text[CHUNK]; /* printed and not yet told */
    size_t size;
} command;

typedef struct life {
    const tt_agent_opts *o;
    tt_wire *wire;
    char name[TT_MARK];
    command command[TT_COMMANDS];
    int commands;
    double began, heard, told; /* heard 0: never yet */
    bool bye;
    tt_agent_end end;
    /* of one that joins: */
    char address[64], machine[256];
    bool taken;         /* its slots are offered */
    bool lost, leaving; /* the hub is gone; we want to go */
    double lost_at, leave_at, refused;
    char key[PATH_MAX];
    pid_t guard;
    int charges; /* to the guard */
} life;

/* ---- the guard ---- */

static void clear_folders(const charge *c)
{
    if (*c->tmp) tt_dir_remove(c->tmp);
    if (*c->shm) tt_dir_remove(c->shm);
    tt_litter_sweep();
}

/* Hears of commands until the agent is gone, and ends what carries their marks. */
_Noreturn static void be_guard(int charges)
{
    charge *all = NULL, one;
    sigset_t every;
    int null, count = 0;

    sigfillset(&every);
    sigprocmask(SIG_SETMASK, &every, NULL);
    setsid(); /* Ctrl-C is for the agent */
    prctl(PR_SET_NAME, "tutti-guard");
    charges = dup2(charges, 3);
    closefrom(4);
    null = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3; i++) dup2(null, i);
    while (recv(charges, &one, sizeof one, MSG_WAITALL) == sizeof one) {
        if (!(all = realloc(all, (size_t)(count + 1) * sizeof one))) tt_mem_out(sizeof one);
        all[count++] = one;
    }
    for (int i = 0; i < count; i++) {
        tt_mark_end(all[i].mark);
        clear_folders(&all[i]);
    }
    _exit(0);
}

static tt_err start_guard(life *l)
{
    int fd[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd))
        return tt_fail(TT_EENV, "start a guard: %s", strerror(errno));
    if ((l->guard = fork()) < 0) {
        close(fd[0]);
        close(fd[1]);
        return tt_fail(TT_EENV, "start a guard: %s", strerror(errno));
    }
    if (!l->guard) {
        close(fd[0]);
        be_guard(fd[1]);
    }
    close(fd[1]);
    l->charges = fd[0];
    return TT_OK;
}

/* Then all has ended that was started. */
static void end_guard(life *l)
{
    close(l->charges);
    while (waitpid(l->guard, NULL, 0) < 0 && errno == EINTR) continue;
}

/* ---- commands ---- */

enum { SET_HERE = 3 };

/* Our environment with the mark, a folder and the place of the key, and without TF_CONFIG: ranks
 * are told who they are by their MPI. Made before the fork, after which a program with threads may
 * not allocate.
 */
static char **make_env(const charge *c, const char *key)
{
    static const char *const ours[] = {"TUTTI_WORLD=", TT_AGENT_KEY "=", "TMPDIR=", "TF_CONFIG="};
    size_t count = 0, n = SET_HERE;
    char **env;

    while (environ[count]) count++;
    if (!(env = calloc(count + SET_HERE + 1, sizeof *env)) ||
        asprintf(&env[0], "%s%s", ours[0], c->mark) < 0 ||
        asprintf(&env[1], "%s%s", ours[1], key) < 0 ||
        asprintf(&env[2], "%s%s", ours[2], c->tmp) < 0)
        tt_mem_out(count * sizeof *env);
    for (size_t i = 0; i < count; i++) {
        bool set = false;
        for (int k = 0; k < TT_COUNT(ours); k++)
            set |= !strncmp(environ[i], ours[k], strlen(ours[k]));
        if (!set) env[n++] = environ[i];
    }
    return env;
}

_Noreturn static void become_command(const char *text, char **env, int out, pid_t agent)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent) _exit(127);
    setsid();
    dup2(null, 0);
    dup2(out, 1);
    dup2(out, 2);
    closefrom(3);
    for (int s = 1; s < NSIG; s++) signal(s, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execle("/bin/sh", "sh", "-c", text, (char *)NULL, env);
    _exit(127);
}

static bool tell_ended(life *l, int id, int code)
{
    return tt_say(l->wire, 0, json_pack("{s:s, s:i, s:i}", "say", "ended", "id", id, "code", code));
}

static bool tell_said(life *l, int id, const char *text, size_t size)
{
    return tt_say(
        l->wire, 0,
        json_pack("{s:s, s:i, s:o}", "say", "said", "id", id, "text", tt_json_bytes(text, size)));
}

static void take_mark(const char *text, char out[TT_MARK])
{
    unsigned char random[(TT_MARK - 1) / 2] = {0};

    if (strlen(text) == TT_MARK - 1 && strspn(text, "0123456789abcdef") == TT_MARK - 1) {
        strcpy(out, text);
        return;
    }
    while (getrandom(random, sizeof random, 0) < 0 && errno == EINTR) continue;
    for (size_t i = 0; i < sizeof random; i++) snprintf(out + 2 * i, 3, "%02x", random[i]);
}

/* The name of the one in shared memory comes from another host: only what a launcher of ours calls
 * such a folder is made, or ever removed. */
static void take_shm(const char *text, char out[64])
{
    static const char front[] = "/dev/shm/tutti-";
    const char *rest = text + sizeof front - 1;

    *out = 0;
    if (!strncmp(text, front, sizeof front - 1) && strlen(rest) == 16 &&
        strspn(rest, "0123456789abcdef") == 16)
        snprintf(out, 64, "%s", text);
}

static const char *make_folders(charge *c)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(c->tmp, sizeof c->tmp, "%.200s/tutti-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(c->tmp)) {
        *c->tmp = 0;
        return "it can make no folder for temporary files";
    }
    if (*c->shm && mkdir(c->shm, 0700) && errno != EEXIST)
        return "it can make no folder in /dev/shm";
    return NULL;
}

/* What is wrong if it cannot be. */
static const char *try_command(life *l, const char *text, command *c)
{
    pid_t self = getpid();
    const char *wrong;
    char **env;
    int fd[2];

    if (!*text) return "there is no command";
    if (l->commands == TT_COMMANDS) return "it runs too many commands already";
    if ((wrong = make_folders(&c->charge))) return wrong;
    if (send(l->charges, &c->charge, sizeof c->charge, MSG_NOSIGNAL) != sizeof c->charge)
        return "it has no guard";
    if (pipe2(fd, O_CLOEXEC)) return strerror(errno);
    env = make_env(&c->charge, l->key);
    if (!(c->pid = fork())) become_command(text, env, fd[1], self);
    for (int i = 0; i < SET_HERE; i++) free(env[i]);
    free(env);
    close(fd[1]);
    if (c->pid < 0) {
        close(fd[0]);
        return "no process can be made";
    }
    fcntl(fd[0], F_SETFL, O_NONBLOCK);
    c->out = fd[0];
    return NULL;
}

static void start_command(life *l, const json_t *o)
{
    command c = {.id = tt_number_of(o, "id"), .left = PIPE_CHUNKS};
    tt_str text = {0};
    const char *wrong;

    take_mark(tt_text_of(o, "mark"), c.charge.mark);
    take_shm(tt_text_of(o, "shm"), c.charge.shm);
    tt_bytes_of(o, "command", &text);
    if ((wrong = try_command(l, text.data ? text.data : "", &c))) {
        tt_str_free(&text);
        tt_str_add(&text, "tutti: host %.255s: its agent cannot start this: %s\n", l->o->host,
                   wrong);
        tell_said(l, c.id, text.data, text.size);
        tell_ended(l, c.id, 255);
        clear_folders(&c.charge);
    } else {
        l->command[l->commands++] = c;
    }
    tt_str_free(&text);
}

static size_t read_output(command *c)
{
    ssize_t n;

    if (c->out < 0 || (!c->pid && c->left-- <= 0)) return 0;
    n = read(c->out, c->text, sizeof c->text);
    if (n == 0) { /* nobody writes any more: to poll it would return at once for ever */
        close(c->out);
        c->out = -1;
    }
    return n > 0 ? (size_t)n : 0;
}

/* Passes on what it has printed; true: all of it. */
static bool pass_output(life *l, command *c)
{
    for (int i = 0; i < CHUNKS; i++) {
        if (!c->size) c->size = read_output(c);
        if (!c->size) return true;
        if (!tell_said(l, c->id, c->text, c->size)) return false;
        c->size = 0;
    }
    return false;
}

static void forget_command(life *l, command *c)
{
    if (c->out >= 0) close(c->out);
    clear_folders(&c->charge);
    *c = l->command[--l->commands];
}

/* Ends it, with all of its world on this host. */
static void end_command(life *l, command *c)
{
    if (c->pid) kill(c->pid, SIGKILL);
    tt_mark_end(c->charge.mark);
    while (c->pid && waitpid(c->pid, NULL, 0) < 0 && errno == EINTR) continue;
    forget_command(l, c);
}

static void look_after_commands(life *l)
{
    int status;

    for (int i = l->commands; i-- > 0;) {
        command *c = &l->command[i];
        if (c->pid && waitpid(c->pid, &status, WNOHANG) == c->pid) {
            c->pid = 0;
            c->code = tt_exit_code(status);
        }
        if (pass_output(l, c) && !c->pid && tell_ended(l, c->id, c->code)) forget_command(l, c);
    }
}

/* ---- the hub ---- */

__attribute__((format(printf, 2, 3))) static void tell(const life *l, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    if (!l->o->tell) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    l->o->tell(text);
}

/* Of a run that takes us in: what it needs must be here. */
static tt_err look_around(life *l, const json_t *o)
{
    const char *program = tt_text_of(o, "program"), *folder = tt_text_of(o, "folder");

    l->taken = true;
    l->told = 0; /* at once */
    if (*program && access(program, X_OK))
        return tt_fail(
            TT_EENV,
            "the run's program is %s, and that is not on this host: install tutti at the "
            "same place",
            program);
    if (*folder && access(folder, X_OK))
        return tt_fail(TT_EENV,
                       "the run was started in %s, and there is no such folder on this host: its "
                       "job, data and run folder must be seen here by the same names",
                       folder);
    tell(l, "taken in by %s: this host, %s, offers %d slot%s", l->o->address, l->o->host,
         l->o->slots, l->o->slots == 1 ? "" : "s");
    return TT_OK;
}

static tt_err hear_alive(life *l, const json_t *o)
{
    snprintf(l->end.rooms, sizeof l->end.rooms, "%s", tt_text_of(o, "rooms"));
    snprintf(l->end.run, sizeof l->end.run, "%s", tt_text_of(o, "run"));
    if (!l->o->slots) return TT_OK;
    if (l->lost) tell(l, "%s is heard of again: this host is offered anew", l->o->address);
    l->lost = false;
    l->refused = 0;
    return l->taken ? TT_OK : look_around(l, o);
}

static tt_err hear_no(life *l, const json_t *o)
{
    double now = tt_clock_s();

    if (l->o->slots && json_is_true(json_object_get(o, "later"))) {
        if (!(l->refused > 0)) l->refused = now;
        if (now - l->refused < LATER_S) return TT_OK;
    }
    return tt_fail(TT_EENV, "%s does not take us: %s", l->o->address, tt_text_of(o, "why"));
}

static tt_err obey(life *l, const char *word, const json_t *o)
{
    l->heard = tt_clock_s();
    if (!strcmp(word, "run")) {
        start_command(l, o);
    } else if (!strcmp(word, "stop")) {
        int id = tt_number_of(o, "id");
        for (int i = l->commands; i-- > 0;)
            if (l->command[i].id == id) end_command(l, &l->command[i]);
    } else if (!strcmp(word, "bye")) {
        l->bye = true;
        l->end.code = l->leaving ? 0 : tt_code_of(o);
        l->end.done_with = json_is_true(json_object_get(o, "done"));
    } else if (!strcmp(word, "alive")) {
        return hear_alive(l, o);
    } else if (!strcmp(word, "no")) {
        return hear_no(l, o);
    }
    return TT_OK;
}

static tt_err listen_hub(life *l)
{
    const char *word;
    uint32_t from;
    tt_err err = TT_OK;
    json_t *o;

    while (!err && !l->bye && (o = tt_hear(l->wire, &from, &word))) {
        err = obey(l, word, o);
        json_decref(o);
    }
    return err;
}

/* The hub is gone. What ran here is, too, but the hub may come back, or another in its place. */
static tt_err outlive_hub(life *l, double now)
{
    char span[32];

    tt_show_time(l->o->wait_s, span, sizeof span);
    if (!l->lost) {
        while (l->commands) end_command(l, &l->command[l->commands - 1]);
        l->lost = true;
        l->lost_at = now;
        tell(l, "no word from %s for %.0f s: what ran here is ended; trying to reach it for %s",
             l->o->address, tt_silence_s, span);
    }
    if (now - l->lost_at < l->o->wait_s) return TT_OK;
    return tt_fail(TT_EPEER, "%s was gone for %s: given up", l->o->address, span);
}

static tt_err check_patience(life *l)
{
    double now = tt_clock_s();
    char span[32];

    if (l->heard && now - l->heard > tt_silence_s && l->o->slots) return outlive_hub(l, now);
    if (l->heard && now - l->heard > tt_silence_s)
        return tt_fail(TT_EPEER,
                       "no word from %s for %.0f s: it is gone, and what ran here is "
                       "ended",
                       l->o->address, tt_silence_s);
    if (l->heard || now - l->began < l->o->wait_s) return TT_OK;
    tt_show_time(l->o->wait_s, span, sizeof span);
    return tt_fail(TT_EPEER, "waited %s for %s in vain: %s", span, l->o->address,
                   *tt_wire_trouble(l->wire) ? tt_wire_trouble(l->wire) : "it does not answer");
}

static void say_here(life *l)
{
    double now = tt_clock_s();
    json_t *running;

    if (now - l->told < HERE_S) return;
    l->told = now;
    running = json_array();
    for (int i = 0; i < l->commands; i++)
        json_array_append_new(running, json_integer(l->command[i].id));
    tt_say(l->wire, 0,
           json_pack("{s:s, s:s, s:o, s:o, s:i, s:o, s:i, s:s, s:o, s:b}", "say", "here", "agent",
                     l->name, "host", tt_json_text(l->o->host), "world", tt_json_text(l->o->world),
                     "protocol", TT_HUB_PROTOCOL, "running", running, "slots",
                     l->taken ? l->o->slots : 0, "address", l->address, "machine",
                     tt_json_text(l->machine), "leaving", l->leaving));
}

/* Somebody wants us to end. One that has joined is let go by the run; who is impatient, or has
 * nobody to ask, goes at once. */
static tt_err check_stop(life *l, const volatile int *stop)
{
    double now = tt_clock_s();

    if (!stop || !*stop) return TT_OK;
    if (!l->taken || l->lost || *stop > 1) return tt_fail(TT_ESTOP, "told to stop");
    if (!l->leaving) {
        l->leaving = true;
        l->leave_at = now;
        l->told = 0;
        tell(l, "leaving: the run goes on without this host from its next step boundary");
    }
    if (now - l->leave_at < LEAVE_S) return TT_OK;
    return tt_fail(TT_ESTOP, "%s did not let this host go: left at once", l->o->address);
}

/* This host's address as the hub sees it, for launchers that need one; "" if that cannot be told.
 */
static void find_address(life *l)
{
    struct addrinfo want = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM}, *a = NULL;
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    char host[256] = "";
    int fd;

    gethostname(l->machine, sizeof l->machine - 1);
    if (sscanf(l->o->address, "tcp://%255[^:]:", host) != 1 || getaddrinfo(host, "9", &want, &a))
        return;
    /* Connecting a datagram socket sends nothing: it only looks up the route. */
    if ((fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0 &&
        !connect(fd, a->ai_addr, a->ai_addrlen) &&
        !getsockname(fd, (struct sockaddr *)&own, &size) &&
        getnameinfo((struct sockaddr *)&own, size, l->address, sizeof l->address, NULL, 0,
                    NI_NUMERICHOST))
        *l->address = 0;
    if (fd >= 0) close(fd);
    freeaddrinfo(a);
}

/* Listening comes last, so that poll() is told of what comes after. */
static tt_err live(life *l, const volatile int *stop)
{
    struct pollfd p[1 + TT_COMMANDS];
    tt_err err;

    for (;;) {
        look_after_commands(l);
        say_here(l);
        if ((err = listen_hub(l)) || l->bye) return err;
        if ((err = check_stop(l, stop)) || (err = check_patience(l))) return err;
        p[0] = (struct pollfd){.fd = tt_wire_fd(l->wire), .events = POLLIN};
        for (int i = 0; i < l->commands; i++) {
            const command *c = &l->command[i];
            p[1 + i] = (struct pollfd){.fd = c->size ? -1 : c->out, .events = POLLIN};
        }
        poll(p, (nfds_t)(1 + l->commands), 100);
    }
}

tt_err tt_agent_run(const tt_agent_opts *o, const volatile int *stop, tt_agent_end *out)
{
    life *l = calloc(1, sizeof *l);
    tt_cluster_key key;
    tt_err err;

    if (!l) tt_mem_out(sizeof *l);
    *out = (tt_agent_end){0};
    l->o = o;
    l->began = tt_clock_s();
    take_mark("", l->name);
    /* The guard first: then it has nothing of the wire and its threads. */
    if ((err = tt_cluster_key_load(o->key, &key)) || (err = start_guard(l))) goto out;
    if (!realpath(o->key, l->key)) *l->key = 0;
    if (o->slots) find_address(l);
    if (!(err = tt_wire_reach(o->address, &key, &l->wire))) err = live(l, stop);
    while (l->commands) end_command(l, &l->command[l->commands - 1]);
    end_guard(l);
    tt_wire_close(l->wire, 0);
    *out = l->end;
out:
    free(l);
    return err;
}
