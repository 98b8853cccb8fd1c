/* agent: waits on a host for the supervisor, and starts there what its launcher wants to start.
 *
 *   agent ── guard
 *     └───── /bin/sh -c "orted ..." ── ranks
 *
 * What it must hold: when it ends, however that is, nothing that it started is alive. Commands get
 * the mark of their world, or one of their own, so that all of it is found; and for the case that
 * the agent is killed there is a guard, a process that knows the marks, waits for the agent's end
 * and then ends all that carry them.
 *
 * What commands print goes no faster than the hub takes it: their pipes are full meanwhile. */
#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const double HERE_S = 0.5;
enum { CHUNK = 4096, CHUNKS = 16 /* in a turn */, PIPE_CHUNKS = 256 /* what a pipe may hold */ };

typedef struct command {
    int id;
    int out;   /* what it prints; -1: it has closed it */
    pid_t pid; /* 0: it has ended */
    int code;
    int left; /* chunks to read once it has ended: others may have its pipe */
    char mark[TT_MARK];
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
    int code;
    pid_t guard;
    int marks; /* to the guard */
} life;

/* ---- the guard ---- */

/* Reads marks until the agent is gone, and ends what carries them. */
_Noreturn static void be_guard(int marks)
{
    char mark[TT_MARK] = "";
    tt_str all = {0};
    sigset_t every;
    int null;

    sigfillset(&every);
    sigprocmask(SIG_SETMASK, &every, NULL);
    setsid(); /* Ctrl-C is for the agent */
    prctl(PR_SET_NAME, "tutti-guard");
    marks = dup2(marks, 3);
    closefrom(4);
    null = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3; i++) dup2(null, i);
    while (recv(marks, mark, TT_MARK - 1, MSG_WAITALL) == TT_MARK - 1)
        if (!all.size || !strstr(all.data, mark)) tt_str_add(&all, "%s ", mark);
    for (size_t i = 0; i < all.size; i += TT_MARK) {
        memcpy(mark, all.data + i, TT_MARK - 1);
        tt_mark_end(mark);
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
    l->marks = fd[0];
    return TT_OK;
}

/* Then all has ended that was started. */
static void end_guard(life *l)
{
    close(l->marks);
    while (waitpid(l->guard, NULL, 0) < 0 && errno == EINTR) continue;
}

/* ---- commands ---- */

/* Our environment with the mark, and without TF_CONFIG: ranks are told who they are by their MPI.
 * Made before the fork, after which a program with threads may not allocate. */
static char **make_env(const char *mark)
{
    size_t count = 0, n = 0;
    char **env, *world = NULL;

    while (environ[count]) count++;
    if (!(env = calloc(count + 2, sizeof *env)) || asprintf(&world, "TUTTI_WORLD=%s", mark) < 0)
        tt_mem_out(count * sizeof *env);
    env[n++] = world;
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], "TUTTI_WORLD=", 12) && strncmp(environ[i], "TF_CONFIG=", 10))
            env[n++] = environ[i];
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

/* What is wrong if it cannot be. */
static const char *try_command(life *l, const char *text, command *c)
{
    pid_t self = getpid();
    char **env;
    int fd[2];

    if (!*text) return "there is no command";
    if (l->commands == TT_COMMANDS) return "it runs too many commands already";
    if (send(l->marks, c->mark, TT_MARK - 1, MSG_NOSIGNAL) != TT_MARK - 1) return "it has no guard";
    if (pipe2(fd, O_CLOEXEC)) return strerror(errno);
    env = make_env(c->mark);
    if (!(c->pid = fork())) become_command(text, env, fd[1], self);
    free(env[0]);
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

    take_mark(tt_text_of(o, "mark"), c.mark);
    tt_bytes_of(o, "command", &text);
    if ((wrong = try_command(l, text.data ? text.data : "", &c))) {
        tt_str_free(&text);
        tt_str_add(&text, "tutti: host %.255s: its agent cannot start this: %s\n", l->o->host,
                   wrong);
        tell_said(l, c.id, text.data, text.size);
        tell_ended(l, c.id, 255);
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
    *c = l->command[--l->commands];
}

/* Ends it, with all of its world on this host. */
static void end_command(life *l, command *c)
{
    if (c->pid) kill(c->pid, SIGKILL);
    tt_mark_end(c->mark);
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
        l->code = tt_code_of(o);
    } else if (!strcmp(word, "no")) {
        return tt_fail(TT_EENV, "%s does not take us: %s", l->o->address, tt_text_of(o, "why"));
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

static tt_err check_patience(const life *l)
{
    double now = tt_clock_s();
    char span[32];

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
           json_pack("{s:s, s:s, s:o, s:o, s:i, s:o}", "say", "here", "agent", l->name, "host",
                     tt_json_text(l->o->host), "world", tt_json_text(l->o->world), "protocol",
                     TT_HUB_PROTOCOL, "running", running));
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
        if (stop && *stop) return tt_fail(TT_ESTOP, "told to stop");
        if ((err = check_patience(l))) return err;
        p[0] = (struct pollfd){.fd = tt_wire_fd(l->wire), .events = POLLIN};
        for (int i = 0; i < l->commands; i++) {
            const command *c = &l->command[i];
            p[1 + i] = (struct pollfd){.fd = c->size ? -1 : c->out, .events = POLLIN};
        }
        poll(p, (nfds_t)(1 + l->commands), 100);
    }
}

tt_err tt_agent_run(const tt_agent_opts *o, const volatile int *stop, int *code)
{
    life *l = calloc(1, sizeof *l);
    tt_cluster_key key;
    tt_err err;

    if (!l) tt_mem_out(sizeof *l);
    *code = 0;
    l->o = o;
    l->began = tt_clock_s();
    take_mark("", l->name);
    /* The guard first: then it has nothing of the wire and its threads. */
    if ((err = tt_cluster_key_load(o->key, &key)) || (err = start_guard(l))) goto out;
    if (!(err = tt_wire_reach(o->address, &key, &l->wire))) err = live(l, stop);
    while (l->commands) end_command(l, &l->command[l->commands - 1]);
    end_guard(l);
    tt_wire_close(l->wire, 0);
    *code = l->code;
out:
    free(l);
    return err;
}
