/* launch: starting, signalling and ending a world, by the line of launch_line.c.
 *
 * A folder of a world holds whatever its MPI writes, so that nothing is left of a world that was
 * killed. Shared memory has a folder too, in /dev/shm, whose name follows from that of the first.
 * The file `world` in it has the mark of the world and is locked by its keeper: who finds it knows
 * what to clear away, and when nobody else does. */
#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- starting ---- */

/* What a start has taken so far, to be given back if it fails. */
typedef struct start {
    tt_arena *arena;
    tt_launch_line line;
    const char *folder, *shm, *rooms, *home;
    char mark[TT_MARK];
    bool far;                                  /* on several hosts */
    bool made;                                 /* the folders */
    int lock;                                  /* all descriptors: -1 if not open */
    int control[2], out[2], err[2], status[2]; /* 0 is ours, or to read */
    pid_t keeper;
} start;

static tt_err check_worker(const char *path)
{
    if (*path != '/')
        return tt_fail(TT_EINVAL, "the worker program %s needs an absolute path", path);
    if (tt_is_program(path)) return TT_OK;
    if (!tt_file_exists(path)) return tt_fail(TT_EENV, "the worker program %s is not there", path);
    return tt_fail(TT_EENV, "the worker program %s may not be executed", path);
}

tt_err tt_mark_make(char mark[TT_MARK])
{
    unsigned char raw[(TT_MARK - 1) / 2];

    if (getrandom(raw, sizeof raw, 0) != sizeof raw)
        return tt_fail(TT_EIO, "getrandom: %s", strerror(errno));
    for (size_t i = 0; i < sizeof raw; i++) snprintf(mark + 2 * i, 3, "%02x", raw[i]);
    return TT_OK;
}

/* The mark in the file `world` of a folder; false if it holds none. */
static bool read_mark(int fd, char mark[TT_MARK])
{
    ssize_t n = read(fd, mark, TT_MARK); /* one more than it should have */

    if (n != TT_MARK - 1) return false;
    mark[n] = 0;
    return strspn(mark, "0123456789abcdef") == TT_MARK - 1;
}

/* Clears away what an earlier world has left, and nothing else. Its keeper, if it has just lost its
 * supervisor, does the same: it is waited for. */
static tt_err clear_folders(const start *s)
{
    const char *path = tt_arena_printf(s->arena, "%s/world", s->folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    double until = tt_clock_s() + TT_KEEPER_S;
    char mark[TT_MARK];
    tt_err err = TT_OK;

    if (fd >= 0 && read_mark(fd, mark)) {
        tt_mark_end(mark);
        while (flock(fd, LOCK_EX | LOCK_NB) && tt_clock_s() < until) poll(NULL, 0, 10);
        err = tt_dir_remove(s->folder);
    } else if (rmdir(s->folder) && errno != ENOENT)
        err = tt_fail(TT_EINVAL, "%s is no folder that an earlier world has left: %s", s->folder,
                      errno == ENOTEMPTY || errno == EEXIST ? "it holds other files"
                                                            : strerror(errno));
    if (fd >= 0) close(fd);
    return err ? err : tt_dir_remove(s->shm);
}

tt_err tt_launch_clear(const char *folder)
{
    start s = {.arena = tt_arena_open(1 << 14)};
    tt_err err = tt_launch_folders(folder, s.arena, &s.folder, &s.shm);
    char path[PATH_MAX], mark[TT_MARK];
    int fd = -1;

    if (err) goto out;
    snprintf(path, sizeof path, "%s/world", s.folder);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    /* Without a mark nobody had it yet, or all were ended and its keeper died when it cleared up.
     */
    if (fd >= 0 ? flock(fd, LOCK_EX | LOCK_NB) || (read_mark(fd, mark) && !tt_mark_end(mark))
                : errno != ENOENT)
        err = tt_fail(TT_EPEER, "%s is still in use", s.folder);
    else if (!(err = tt_dir_remove(s.shm)))
        err = tt_dir_remove(s.folder);
out:
    if (fd >= 0) close(fd);
    tt_arena_close(s.arena);
    return err;
}

/* Without fsync, which may take long while a checkpoint is written: none of it need last. */
static tt_err make_folders(start *s)
{
    const char *path = tt_arena_printf(s->arena, "%s/world", s->folder);
    tt_err err;

    if ((err = clear_folders(s))) return err;
    if (mkdir(s->folder, 0700) && (errno != ENOENT || (err = tt_dir_make(s->folder))))
        return err ? err : tt_fail(TT_EIO, "make the folder %s: %s", s->folder, strerror(errno));
    s->made = true;
    if (mkdir(s->shm, 0700))
        return tt_fail(TT_EIO, "make the folder %s: %s", s->shm, strerror(errno));
    s->lock = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (s->lock < 0 || !tt_write_all(s->lock, s->mark, TT_MARK - 1, NULL) ||
        flock(s->lock, LOCK_EX | LOCK_NB))
        return tt_fail(TT_EIO, "write %s: %s", path, strerror(errno));
    return TT_OK;
}

static tt_err open_pipes(start *s)
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s->control) ||
        pipe2(s->out, O_CLOEXEC) || pipe2(s->err, O_CLOEXEC) || pipe2(s->status, O_CLOEXEC) ||
        fcntl(s->out[0], F_SETFL, O_NONBLOCK) || fcntl(s->err[0], F_SETFL, O_NONBLOCK))
        return tt_fail(TT_EIO, "make a pipe to the launcher: %s", strerror(errno));
    return TT_OK;
}

/* The environment of this process with that of the plan laid over it. */
static const char *const *merge_env(const start *s)
{
    size_t most = 1, n = 0;
    const char **all;

    for (char **e = environ; *e; e++) most++;
    for (const char **l = s->line.env; l && *l; l++) most++;
    all = tt_arena_take(s->arena, most * sizeof *all, sizeof *all);
    for (char **e = environ; *e; e++) {
        bool again = false;
        for (const char **l = s->line.env; l && *l && !again; l++)
            again = !strncmp(*l, *e, strcspn(*l, "=") + 1);
        if (!again) all[n++] = *e;
    }
    for (const char **l = s->line.env; l && *l; l++) all[n++] = *l;
    return all;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static tt_err fork_keeper(start *s)
{
    tt_keeper k = {.argv = s->line.argv,
                   .env = merge_env(s),
                   .mark = s->mark,
                   .folder = s->folder,
                   .shm = s->shm,
                   .far = s->far,
                   .rooms = s->rooms,
                   .home = s->home,
                   .lock = s->lock,
                   .control = s->control[1],
                   .out = s->out[1],
                   .err = s->err[1],
                   .status = s->status[1]};
    sigset_t all, before;
    int why = 0;
    ssize_t n;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* our handlers are not for the keeper */
    s->keeper = fork();
    if (s->keeper == 0) tt_keeper_run(&k);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (s->keeper < 0) return tt_fail(TT_EIO, "start a process: %s", strerror(errno));
    close_fd(&s->status[1]);
    close_fd(&s->control[1]);
    close_fd(&s->out[1]);
    close_fd(&s->err[1]);
    close_fd(&s->lock);
    while ((n = read(s->status[0], &why, sizeof why)) < 0 && errno == EINTR) continue;
    if (n == sizeof why)
        return tt_fail(TT_EENV, "cannot start %s: %s", s->line.argv[0], strerror(why));
    return TT_OK;
}

static void undo(start *s)
{
    int *fds[] = {&s->lock,   &s->control[0], &s->control[1], &s->out[0],   &s->out[1],
                  &s->err[0], &s->err[1],     &s->status[0],  &s->status[1]};

    for (int i = 0; i < TT_COUNT(fds); i++) close_fd(fds[i]);
    if (s->keeper > 0)
        while (waitpid(s->keeper, NULL, 0) < 0 && errno == EINTR) continue;
    if (s->made) {
        tt_dir_remove(s->shm);
        tt_dir_remove(s->folder);
    }
}

tt_err tt_launch_start_by(tt_mpi mpi, const tt_launch_opts *o, tt_launch *out)
{
    start s = {.arena = tt_arena_open(16 << 10),
               .far = !tt_hosts_alone(o->hosts),
               .rooms = o->rooms,
               .home = o->home,
               .lock = -1,
               .control = {-1, -1},
               .out = {-1, -1},
               .err = {-1, -1},
               .status = {-1, -1}};
    char *message;
    tt_err err;

    *out = (tt_launch){0};
    if ((err = tt_mark_make(s.mark)) ||
        (err = tt_launch_plan_by(mpi, o, s.mark, s.arena, &s.line)) ||
        (err = check_worker(o->argv[0])) ||
        (err = tt_launch_folders(o->folder, s.arena, &s.folder, &s.shm)) ||
        (err = make_folders(&s)) || (err = open_pipes(&s)) || (err = fork_keeper(&s)))
        goto fail;
    close_fd(&s.status[0]);
    *out = (tt_launch){.pid = s.keeper, .out = s.out[0], .err = s.err[0], .control = s.control[0]};
    strcpy(out->mark, s.mark);
    strcpy(out->folder, s.folder);
    tt_arena_close(s.arena);
    return TT_OK;
fail:
    message = tt_arena_strdup(s.arena, tt_message()); /* clearing away may fail too */
    undo(&s);
    tt_repeat(err, message);
    tt_arena_close(s.arena);
    return err;
}

tt_err tt_launch_start(const tt_launch_opts *o, tt_launch *out)
{
    return tt_launch_start_by(tt_launch_mpi(), o, out);
}

/* ---- a world that runs ---- */

void tt_launch_signal(tt_launch *l, int sig)
{
    unsigned char byte = (unsigned char)sig;

    if (l->pid > 0 && !l->ended && sig > 0 && sig < NSIG)
        (void)!send(l->control, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool tt_launch_ended(tt_launch *l, int *code)
{
    int status = 0;
    pid_t pid = l->ended || l->pid <= 0 ? 0 : waitpid(l->pid, &status, WNOHANG);

    if (pid == l->pid && pid > 0) {
        l->ended = true;
        l->code = tt_exit_code(status);
    } else if (pid < 0 && errno == ECHILD) { /* somebody else has waited for it */
        l->ended = true;
        l->code = 255;
    }
    if (l->ended && code) *code = l->code;
    return l->ended;
}

/* Reads what nobody will see, so that nobody waits for it to be read. */
static void drain(int fd)
{
    char buf[4096];
    while (read(fd, buf, sizeof buf) > 0) continue;
}

void tt_launch_close(tt_launch *l)
{
    tt_arena *a = NULL;
    const char *folder, *shm;
    double until = tt_clock_s() + TT_KEEPER_S;

    if (l->pid <= 0) return;
    (void)!send(l->control, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT); /* we have not died */
    close(l->control); /* the keeper takes it for the order to end the world */
    while (!tt_launch_ended(l, NULL) && tt_clock_s() < until) {
        poll(NULL, 0, 2);
        drain(l->out);
        drain(l->err);
    }
    if (!l->ended) kill(l->pid, SIGKILL);
    if (!tt_mark_end(l->mark))
        tt_warn("%d processes of an ended world cannot be killed: they hang in the kernel",
                tt_mark_signal(l->mark, 0, 0));
    while (!tt_launch_ended(l, NULL)) poll(NULL, 0, 1);
    close(l->out);
    close(l->err);
    a = tt_arena_open(8192); /* the keeper removes the folders, unless it was killed */
    if (!tt_launch_folders(l->folder, a, &folder, &shm) &&
        (tt_dir_remove(folder) || tt_dir_remove(shm)))
        tt_warn("%s", tt_message());
    tt_arena_close(a);
    *l = (tt_launch){0};
}
