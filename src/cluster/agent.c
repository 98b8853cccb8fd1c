/* agent: waits on a host for the supervisor, and starts there what its launcher wants to start.
 *
 * What it must hold: when it ends, however that is, nothing that it started is alive. Commands get
 * the mark of their world, so that all of it is found; and SIGKILL when the agent is killed, at
 * which the launcher's daemon takes its ranks along. */
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
#include <sys/wait.h>
#include <unistd.h>

static const double HERE_S = 0.5, LOST_S = 10;
enum { COMMANDS = 64 };

typedef struct command {
    int id, out;
    pid_t pid;
    char mark[TT_MARK];
} command;

typedef struct life {
    const tt_agent_opts *o;
    tt_wire *wire;
    command command[COMMANDS];
    int commands;
    double began, heard, told; /* heard 0: never yet */
    bool bye;
    int code;
} life;

/* ---- commands ---- */

_Noreturn static void become_command(const char *text, const char *mark, int out, pid_t agent)
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
    if (*mark) setenv("TUTTI_WORLD", mark, 1);
    unsetenv("TF_CONFIG"); /* ranks are told who they are by their MPI */
    execl("/bin/sh", "sh", "-c", text, (char *)NULL);
    _exit(127);
}

static void tell_ended(life *l, int id, int code)
{
    tt_say(l->wire, 0, json_pack("{s:s, s:i, s:i}", "say", "ended", "id", id, "code", code));
}

/* Text that comes from a pipe may be cut within a character, which JSON does not take. */
static void tell_said(life *l, int id, char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)text[i] >= 127 || ((unsigned char)text[i] < 32 && text[i] != '\n'))
            text[i] = '?';
    tt_say(l->wire, 0, json_pack("{s:s, s:i, s:s%}", "say", "said", "id", id, "text", text, size));
}

static bool is_mark(const char *text)
{
    return strlen(text) == TT_MARK - 1 && strspn(text, "0123456789abcdef") == TT_MARK - 1;
}

static void start_command(life *l, const json_t *o)
{
    const char *text = json_string_value(json_object_get(o, "command")),
               *mark = json_string_value(json_object_get(o, "mark"));
    command c = {.id = (int)json_integer_value(json_object_get(o, "id"))};
    char why[] = "tutti: the agent cannot start a process\n";
    int fd[2] = {-1, -1};
    pid_t self = getpid();

    if (mark && is_mark(mark)) strcpy(c.mark, mark);
    if (!text || l->commands == COMMANDS || pipe2(fd, O_CLOEXEC | O_NONBLOCK) ||
        (c.pid = fork()) < 0) {
        if (fd[0] >= 0) close(fd[0]), close(fd[1]);
        tell_said(l, c.id, why, sizeof why - 1);
        tell_ended(l, c.id, 255);
        return;
    }
    if (!c.pid) {
        fcntl(fd[1], F_SETFL, 0);
        become_command(text, c.mark, fd[1], self);
    }
    close(fd[1]);
    c.out = fd[0];
    l->command[l->commands++] = c;
}

static void pass_output(life *l, const command *c)
{
    char text[4096];
    ssize_t n;

    while ((n = read(c->out, text, sizeof text)) > 0) tell_said(l, c->id, text, (size_t)n);
}

static void forget_command(life *l, command *c)
{
    close(c->out);
    *c = l->command[--l->commands];
}

/* Ends it, with all of its world on this host. */
static void end_command(life *l, command *c)
{
    kill(c->pid, SIGKILL);
    if (*c->mark) tt_mark_end(c->mark);
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR) continue;
    forget_command(l, c);
}

static void look_after_commands(life *l)
{
    int status;

    for (int i = l->commands; i-- > 0;) {
        command *c = &l->command[i];
        pass_output(l, c);
        if (waitpid(c->pid, &status, WNOHANG) != c->pid) continue;
        pass_output(l, c);
        tell_ended(l, c->id, tt_exit_code(status));
        forget_command(l, c);
    }
}

/* ---- the hub ---- */

static tt_err obey(life *l, const char *word, const json_t *o)
{
    l->heard = tt_clock_s();
    if (!strcmp(word, "run")) {
        start_command(l, o);
    } else if (!strcmp(word, "stop")) {
        int id = (int)json_integer_value(json_object_get(o, "id"));
        for (int i = l->commands; i-- > 0;)
            if (l->command[i].id == id) end_command(l, &l->command[i]);
    } else if (!strcmp(word, "bye")) {
        l->bye = true;
        l->code = (int)json_integer_value(json_object_get(o, "code")) & 255;
    } else if (!strcmp(word, "no")) {
        const char *why = json_string_value(json_object_get(o, "why"));
        return tt_fail(TT_EENV, "%s does not take us: %s", l->o->address, why ? why : "?");
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

    if (l->heard && now - l->heard > LOST_S)
        return tt_fail(TT_EPEER,
                       "no word from %s for %.0f s: it is gone, and what ran here is "
                       "ended",
                       l->o->address, LOST_S);
    if (l->heard || now - l->began < l->o->wait_s) return TT_OK;
    tt_show_time(l->o->wait_s, span, sizeof span);
    return tt_fail(TT_EPEER, "waited %s for %s in vain: %s", span, l->o->address,
                   *tt_wire_trouble(l->wire) ? tt_wire_trouble(l->wire) : "it does not answer");
}

static void say_here(life *l)
{
    double now = tt_clock_s();

    if (now - l->told < HERE_S) return;
    l->told = now;
    tt_say(l->wire, 0,
           json_pack("{s:s, s:s, s:s, s:i}", "say", "here", "host", l->o->host, "world",
                     l->o->world, "protocol", TT_HUB_PROTOCOL));
}

static tt_err live(life *l, const volatile int *stop)
{
    struct pollfd p[1 + COMMANDS];
    tt_err err;

    for (;;) {
        p[0] = (struct pollfd){.fd = tt_wire_fd(l->wire), .events = POLLIN};
        for (int i = 0; i < l->commands; i++)
            p[1 + i] = (struct pollfd){.fd = l->command[i].out, .events = POLLIN};
        say_here(l);
        poll(p, (nfds_t)(1 + l->commands), 100);
        if ((err = listen_hub(l)) || l->bye) return err;
        look_after_commands(l);
        if (stop && *stop) return tt_fail(TT_ESTOP, "told to stop");
        if ((err = check_patience(l))) return err;
    }
}

tt_err tt_agent_run(const tt_agent_opts *o, const volatile int *stop, int *code)
{
    life l = {.o = o, .began = tt_clock_s()};
    tt_cluster_key key;
    tt_err err;

    *code = 0;
    if ((err = tt_cluster_key_load(o->key, &key)) ||
        (err = tt_wire_reach(o->address, &key, &l.wire)))
        return err;
    err = live(&l, stop);
    while (l.commands) end_command(&l, &l.command[l.commands - 1]);
    tt_wire_close(l.wire, 0);
    *code = l.code;
    return err;
}
