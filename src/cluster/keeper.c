/* keeper: the process between the supervisor and the launcher of a world.
 *
 *   supervisor ── keeper ── launcher (mpirun, mpiexec) ── proxies, remote shells, ranks
 *
 * What it must hold:
 * (1) When it ends, nothing of the world is alive on this host, nor are its folders. If the
 *     supervisor has died, nor are the rooms of the run, which no world will come back to.
 * (2) It ends when the launcher does, when it is told to, and when the supervisor is gone, however
 *     that went: then its end of the control socket is closed by the kernel. (A parent-death signal
 *     would follow the thread that forked, which may end before its process does.)
 * (3) SIGTERM is not for keeper and launcher. A batch system sends it to every process of a job it
 *     ends, and waits a while: supervisor and ranks use that to save, but a launcher that hears it
 *     kills the ranks.
 *
 * Neither process group nor session holds a world together: Open MPI gives each rank a group of its
 * own, Hydra each proxy and rank a session. So a world is known by a mark in its environment, which
 * all inherit, and whoever carries it is found in /proc. And the keeper is a subreaper: what the
 * world leaves behind becomes its child, also a process that has thrown its environment away, and
 * can be killed and reaped without a look at the children of the supervisor.
 *
 * Open MPI's mpirun may never exit once a rank has died in the wrong moment: when all others of its
 * world are gone, it is not waited for.
 *
 * It is forked without exec, from a program that may have threads: it must close what it inherits
 * (a lock would outlive its owner) and never write to the log. */
#define _GNU_SOURCE
#include "inner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const double GRACE_S = 2, FAR_GRACE_S = 4, SWEEP_S = 10;
const double TT_KEEPER_S = 4 + 2 * 10 + 3;
enum { LOOK_MS = 20, CHUNK = 16 << 10 };

static void sleep_ms(int ms)
{
    poll(NULL, 0, ms);
}

int tt_exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* ---- marks ---- */

/* Does the environment of a process hold `text`? It may be longer than any buffer, so it is read in
 * pieces that overlap. A zombie has none. */
static bool environ_has(int pid, const char *text)
{
    char path[64], buf[CHUNK];
    size_t want = strlen(text), have = 0;
    bool found = false;
    ssize_t n;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) return false;
    while (!found && (n = read(fd, buf + have, sizeof buf - have)) > 0) {
        have += (size_t)n;
        found = memmem(buf, have, text, want) != NULL;
        if (have >= want) {
            memmove(buf, buf + have - (want - 1), want - 1);
            have = want - 1;
        }
    }
    close(fd);
    return found;
}

/* Tells one process. By a descriptor that was opened before its environment was read: then the
 * number cannot have passed on to another process meanwhile. */
static bool signal_one(int pid, const char *text, int sig)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    bool found = environ_has(pid, text);

    if (found && sig && fd >= 0) syscall(SYS_pidfd_send_signal, fd, sig, NULL, 0);
    if (found && sig && fd < 0) kill(pid, sig); /* a kernel before 5.3 */
    if (fd >= 0) close(fd);
    return found;
}

int tt_mark_signal(const char *mark, int sig, int except)
{
    DIR *d = opendir("/proc");
    struct dirent *e;
    char text[64];
    int found = 0, pid;

    snprintf(text, sizeof text, "TUTTI_WORLD=%s", mark);
    while (d && (e = readdir(d))) {
        pid = tt_digits(e->d_name, strlen(e->d_name), 1 << 30);
        if (pid > 1 && pid != except && pid != getpid()) found += signal_one(pid, text, sig);
    }
    if (d) closedir(d);
    return found;
}

bool tt_mark_end(const char *mark)
{
    double until = tt_clock_s() + SWEEP_S;

    for (int pause = 1; tt_mark_signal(mark, SIGKILL, 0); pause = pause < 16 ? pause * 2 : 16) {
        if (tt_clock_s() > until) return false; /* in a system call that does not end */
        sleep_ms(pause);
    }
    return true;
}

/* ---- the launcher ---- */

/* Moves the descriptors to 3, 4, ... and closes all others beyond standard error. */
static void keep_only(int **fd, int count)
{
    for (int i = 0; i < count; i++) *fd[i] = fcntl(*fd[i], F_DUPFD_CLOEXEC, 64);
    for (int i = 0; i < count; i++) *fd[i] = dup3(*fd[i], 3 + i, O_CLOEXEC);
    closefrom(3 + count);
}

static void use_streams(int in, int out, int err)
{
    int from[3] = {in, out, err};

    for (int i = 0; i < 3; i++) from[i] = fcntl(from[i], F_DUPFD_CLOEXEC, 64);
    for (int i = 0; i < 3; i++) dup2(from[i], i);
}

_Noreturn static void become_launcher(const tt_keeper *k, int null, pid_t keeper)
{
    int status = k->status, why;
    sigset_t deaf;

    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a keeper that is killed takes it along */
    if (getppid() != keeper) _exit(127);
    use_streams(null, k->out, k->err);
    keep_only((int *[]){&status}, 1);
    for (int s = 1; s < NSIG; s++) signal(s, SIG_DFL); /* what is ignored would stay so */
    sigemptyset(&deaf);
    sigaddset(&deaf, SIGTERM); /* keeps (3) */
    sigprocmask(SIG_SETMASK, &deaf, NULL);
    execvpe(k->argv[0], (char *const *)k->argv, (char *const *)k->env);
    why = errno;
    if (write(status, &why, sizeof why) < 0) _exit(126);
    _exit(127);
}

/* ---- the keeper ---- */

typedef struct life {
    const tt_keeper *k;
    int control, signals, lock;
    pid_t launcher;
    bool ended, ending;
    bool told;    /* the supervisor closes the control; else it has died */
    double until; /* ending: patience with the launcher */
    int code;
} life;

/* What the supervisor wants. */
static void listen_control(life *l)
{
    unsigned char sig[64];
    ssize_t n = recv(l->control, sig, sizeof sig, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    for (ssize_t i = 0; i < n; i++) {
        if (sig[i] && !l->ended) kill(l->launcher, sig[i]);
        l->told |= !sig[i];
    }
    if (n > 0) return;
    close(l->control);
    l->control = -1;
    l->ending = true;
}

/* What others want: a child has ended, or somebody tells us to go. */
static void listen_signals(life *l)
{
    struct signalfd_siginfo s;

    while (read(l->signals, &s, sizeof s) == sizeof s)
        if (s.ssi_signo != SIGCHLD) l->ending = true;
}

static void reap(life *l)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == l->launcher) {
            l->ended = true;
            l->code = tt_exit_code(status);
        }
}

/* Has the launcher had its time? */
static bool is_late(life *l)
{
    if (!l->ending) return false;
    if (!l->until) {
        l->until = tt_clock_s() + (l->k->far ? FAR_GRACE_S : GRACE_S);
        kill(l->launcher, SIGINT);
        kill(l->launcher, SIGCONT); /* one that is stopped would not hear */
    }
    if (tt_clock_s() > l->until) return true;
    return !l->k->far && !tt_mark_signal(l->k->mark, 0, l->launcher);
}

static void watch(life *l)
{
    for (;;) {
        struct pollfd p[2] = {{l->control, POLLIN, 0}, {l->signals, POLLIN, 0}};
        poll(p, 2, l->ending ? LOOK_MS : -1);
        if (p[0].revents) listen_control(l);
        if (p[1].revents) listen_signals(l);
        reap(l);
        if (l->ended || is_late(l)) return;
    }
}

/* Blocks all signals, for good; those we care for are read. */
static int open_signals(void)
{
    sigset_t some, all;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&some);
    sigaddset(&some, SIGCHLD);
    sigaddset(&some, SIGINT);
    sigaddset(&some, SIGHUP);
    return signalfd(-1, &some, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* SIGKILL to all that are now our children. */
static void kill_children(void)
{
    char path[64];
    FILE *f;
    int pid;

    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    if (!(f = fopen(path, "re"))) return; /* a kernel without it: the marks must do */
    while (fscanf(f, "%d", &pid) == 1) kill(pid, SIGKILL);
    fclose(f);
}

/* Keeps (1). Children come as long as their parents die, so it takes several rounds. */
static void end_all(life *l)
{
    double until = tt_clock_s() + SWEEP_S;
    siginfo_t any;

    if (!l->ended) {
        kill(l->launcher, SIGKILL);
        l->code = 128 + SIGKILL;
    }
    tt_mark_end(l->k->mark);
    for (;;) {
        kill_children();
        reap(l);
        if (waitid(P_ALL, 0, &any, WEXITED | WNOHANG | WNOWAIT) && errno == ECHILD) return;
        if (tt_clock_s() > until) return;
        sleep_ms(1);
    }
}

/* The folder of a hub whose process has died: the last of its worlds takes it away. What a world
 * whose keeper was killed has left there is for tt_leftovers_sweep, which goes by the lock. */
static void leave_home(const char *home)
{
    static const char *const files[] = {"hub", TT_RSH_NAME, "lock"};
    char path[4200], **names;
    int count;
    bool last = true;

    if (tt_dir_list(home, &names, &count)) return;
    for (int i = 0; i < count; i++) last &= strncmp(names[i], "world-", 6) != 0;
    tt_dir_free(names, count);
    if (!last) return;
    for (int i = 0; i < TT_COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", home, files[i]);
        unlink(path);
    }
    rmdir(home);
}

void tt_keeper_run(const tt_keeper *k)
{
    life l = {.k = k, .control = k->control, .lock = k->lock, .code = 127};
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), why;
    pid_t self = getpid();

    setsid(); /* Ctrl-C at the terminal is for the supervisor */
    prctl(PR_SET_NAME, "tutti-world");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    l.signals = open_signals();
    l.launcher = fork();
    if (l.launcher == 0) become_launcher(k, null, self);
    if (l.launcher < 0) {
        why = errno;
        if (write(k->status, &why, sizeof why) < 0) _exit(126);
        _exit(127);
    }
    use_streams(null, null, null);
    keep_only((int *[]){&l.control, &l.signals, &l.lock}, 3);
    watch(&l);
    end_all(&l);
    tt_dir_remove(k->folder);
    if (k->shm) tt_dir_remove(k->shm);
    tt_litter_sweep();
    while (l.control >= 0 && poll(&(struct pollfd){l.control, POLLIN, 0}, 1, 0) > 0)
        listen_control(&l); /* it may have died since the launcher ended */
    if (k->rooms && l.control < 0 && !l.told) tt_rooms_remove(k->rooms);
    if (k->home && l.control < 0 && !l.told) leave_home(k->home);
    _exit(l.code);
}
