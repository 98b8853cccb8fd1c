/* detach: a training that needs no terminal.
 *
 * The parent stays until the run has begun, so that whoever typed the command sees what is wrong
 * with it, and gets its exit code. Until then the child prints into a file without a name, which
 * both have: the parent shows it if the child ends; else it becomes the beginning of the run's
 * console.log. The child has a session of its own, which no terminal can hang up. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"

static int early = -1, tell = -1; /* in the child: what was printed; the pipe to the parent */

static bool copy_all(int from, int to)
{
    char part[1 << 14];
    off_t at = 0;
    ssize_t n;

    while ((n = pread(from, part, sizeof part, at)) > 0) {
        if (!tt_write_all(to, part, (size_t)n, NULL)) return false;
        at += n;
    }
    return n == 0;
}

/* ---- the child ---- */

static void be_detached(int kept, int pipe)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    early = kept;
    tell = pipe;
    setsid();
    fflush(NULL);
    if (null >= 0) dup2(null, STDIN_FILENO);
    dup2(kept, STDOUT_FILENO);
    dup2(kept, STDERR_FILENO);
    if (null > STDERR_FILENO) close(null);
}

void cli_detach_begun(const char *run)
{
    char path[CLI_PATH + 16];
    int fd;

    if (early < 0) return;
    fflush(NULL);
    snprintf(path, sizeof path, "%s/console.log", run);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || !copy_all(early, fd))
        tt_warn("%s: %s: what is printed is lost", path, strerror(errno));
    if (fd < 0) fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
    (void)tt_write_all(tell, run, strlen(run), NULL);
    close(tell);
    close(early);
    early = tell = -1;
}

/* ---- the parent ---- */

static void show_begun(bool json, const char *run, int pid)
{
    tt_str p = {0}, r = {0};

    if (json) {
        cli_json_print(stdout,
                       json_pack("{s:s, s:s, s:i}", "event", "detached", "run", run, "pid", pid),
                       true);
        return;
    }
    cli_quote(cli_program, &p);
    cli_quote(run, &r);
    printf("run %s has begun: process %d\n\nNext:\n", run, pid);
    printf("  %s top %s\n  %s logs %s -f\n  %s stop %s\n", p.data, r.data, p.data, r.data, p.data,
           r.data);
    tt_str_free(&p);
    tt_str_free(&r);
}

/* The child alone can save or quit: whoever waits passes on what it is asked, and stays. */
static volatile sig_atomic_t asked, times_asked;

static void on_signal(int sig)
{
    asked = sig;
    times_asked = times_asked + 1;
}

static void catch_signals(int so_far)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1};
    struct sigaction act = {.sa_handler = on_signal};

    for (int i = 0; i < TT_COUNT(signals); i++) sigaction(signals[i], &act, NULL);
    if (so_far && !asked) on_signal(so_far);
}

/* The name of the run, or "" if the child has closed the pipe without one. */
static void hear_child(int pid, int fd, char run[CLI_PATH])
{
    size_t used = 0;
    int passed = 0;
    ssize_t n = 1;

    while (n > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        for (; passed < times_asked; passed++) kill(pid, asked);
        if (poll(&p, 1, 100) <= 0) continue;
        n = read(fd, run + used, CLI_PATH - 1 - used);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            used += (size_t)n;
    }
    run[used] = 0;
}

static int wait_for(int pid)
{
    int status, passed = times_asked;

    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        for (; passed < times_asked; passed++) kill(pid, asked);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool cli_detach(bool json, const volatile int *stop, int *code)
{
    int kept = memfd_create("tutti-console", MFD_CLOEXEC), ends[2] = {-1, -1}, pid = -1;
    char run[CLI_PATH];

    /* Appended to by two descriptors, and so the flag, which a memory file does not open with. */
    if (kept < 0 || fcntl(kept, F_SETFL, O_APPEND) || pipe2(ends, O_CLOEXEC) ||
        (fflush(NULL), pid = fork()) < 0) {
        *code = cli_fail(tt_fail(TT_EENV, "detach: %s", strerror(errno)));
        return true;
    }
    if (!pid) {
        close(ends[0]);
        be_detached(kept, ends[1]);
        return false;
    }
    close(ends[1]);
    catch_signals(*stop);
    hear_child(pid, ends[0], run);
    if (*run && !asked) {
        show_begun(json, run, pid);
        *code = 0;
    } else { /* it failed, or whoever waits has changed their mind */
        *code = wait_for(pid);
        (void)copy_all(kept, STDERR_FILENO);
    }
    close(ends[0]);
    close(kept);
    return true;
}
