/* pulse: a worker's line to its supervisor.
 *
 *   worker to supervisor   beat    world, rank, pid, host, phase, step: ten times a second
 *   supervisor to worker   go      generation
 *                          yield, save
 *                          stacks  tell where the threads are: a step takes too long
 *                          alive   twice a second
 *
 * A worker outlives its supervisor by no more than a tenth of a second on the same host, where a
 * pidfd tells; by a few seconds on others. It then ends without a word: its state is in the vault.
 */
#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <execinfo.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

static const double BEAT_S = 0.1, LOST_S = 10;
enum { FRAMES = 64 };

struct tt_pulse {
    tt_vital vital;
    tt_wire *wire;
    int world, rank, supervisor, wake; /* a pidfd (-1: on another host), an eventfd */
    char host[64];
    pthread_t thread, owner;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int generation; /* 0: no GO yet */
    bool closing;
    _Atomic int wish;
};

/* ---- stacks ---- */

/* What backtrace needs is loaded at the first call, so that it is not done in a handler. */
static void on_stacks(int sig)
{
    static const char head[] = "stack of the thread that trains:\n";
    void *frame[FRAMES];
    int n = backtrace(frame, FRAMES), saved = errno;

    (void)sig;
    (void)!write(STDERR_FILENO, head, sizeof head - 1);
    backtrace_symbols_fd(frame, n, STDERR_FILENO);
    errno = saved;
}

static void prepare_stacks(void)
{
    struct sigaction act = {.sa_handler = on_stacks, .sa_flags = SA_RESTART};
    void *frame[2];

    backtrace(frame, 2);
    sigaction(SIGUSR2, &act, NULL);
}

/* ---- the thread ---- */

static void beat(tt_pulse *p)
{
    tt_say(p->wire, 0,
           json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:I}", "say", "beat", "world", p->world,
                     "rank", p->rank, "pid", (int)getpid(), "host", p->host, "phase",
                     atomic_load(&p->vital.phase), "step",
                     (json_int_t)atomic_load(&p->vital.step)));
}

static void obey(tt_pulse *p, const char *word, const json_t *o)
{
    if (!strcmp(word, "yield")) {
        atomic_store(&p->wish, TT_WISH_YIELD);
    } else if (!strcmp(word, "save")) {
        atomic_store(&p->wish, TT_WISH_SAVE);
    } else if (!strcmp(word, "stacks")) {
        pthread_kill(p->owner, SIGUSR2);
    } else if (strcmp(word, "go")) {
        return;
    }
    pthread_mutex_lock(&p->lock);
    if (!strcmp(word, "go"))
        p->generation = (int)json_integer_value(json_object_get(o, "generation"));
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static bool hear_all(tt_pulse *p)
{
    const char *word;
    bool any = false;
    uint32_t from;
    json_t *o;

    while ((o = tt_hear(p->wire, &from, &word))) {
        any = true;
        obey(p, word, o);
        json_decref(o);
    }
    return any;
}

static bool is_closing(tt_pulse *p)
{
    pthread_mutex_lock(&p->lock);
    bool closing = p->closing;
    pthread_mutex_unlock(&p->lock);
    return closing;
}

static void *live(void *arg)
{
    tt_pulse *p = arg;
    double told = 0, heard = tt_clock_s(), now;
    uint64_t count;

    while (!is_closing(p)) {
        struct pollfd f[3] = {{.fd = tt_wire_fd(p->wire), .events = POLLIN},
                              {.fd = p->wake, .events = POLLIN},
                              {.fd = p->supervisor, .events = POLLIN}};
        if ((now = tt_clock_s()) - told >= BEAT_S) {
            beat(p);
            told = now;
        }
        poll(f, 3, (int)(1000 * (told + BEAT_S - now)) + 1);
        if (read(p->wake, &count, sizeof count) > 0) told = 0; /* something to be told at once */
        if (hear_all(p)) heard = tt_clock_s();
        if (f[2].revents || (p->supervisor < 0 && tt_clock_s() - heard > LOST_S)) {
            static const char bye[] = "tutti: the supervisor is gone: this worker ends\n";
            (void)!write(STDERR_FILENO, bye, sizeof bye - 1);
            _exit(4);
        }
    }
    beat(p); /* the last phase */
    return NULL;
}

/* ---- calls ---- */

/* On the supervisor's host its socket and its process are looked at, on others its address. */
static tt_err reach(tt_pulse *p, const char *near)
{
    const char *host = getenv("TUTTI_CONTROL_HOST"), *far = getenv("TUTTI_CONTROL_FAR"),
               *pid = getenv("TUTTI_CONTROL_PID");
    tt_cluster_key key;
    char path[4096];
    tt_err err;

    if (!host || !strcmp(host, p->host)) {
        p->supervisor = pid ? (int)syscall(SYS_pidfd_open, atoi(pid), 0) : -1;
        if (p->supervisor < 0) return tt_fail(TT_EPEER, "the supervisor is gone");
        return tt_wire_reach(near, NULL, &p->wire);
    }
    if (!far) return tt_fail(TT_EENV, "no way to the supervisor on %s", host);
    if ((err = tt_cluster_key_path(path)) || (err = tt_cluster_key_load(path, &key))) return err;
    return tt_wire_reach(far, &key, &p->wire);
}

tt_err tt_pulse_open(int rank, tt_pulse **out)
{
    const char *near = getenv("TUTTI_CONTROL"), *world = getenv("TUTTI_CONTROL_WORLD");
    sigset_t all, before;
    tt_pulse *p;
    tt_err err;
    int code;

    *out = NULL;
    if (!near || !*near) return TT_OK;
    if (!(p = calloc(1, sizeof *p))) tt_mem_out(sizeof *p);
    p->world = world ? atoi(world) : 0;
    p->rank = rank;
    p->supervisor = -1;
    p->owner = pthread_self();
    gethostname(p->host, sizeof p->host - 1);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if ((err = reach(p, near))) goto fail;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    prepare_stacks();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the thread that trains */
    code = pthread_create(&p->thread, NULL, live, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!code) {
        *out = p;
        return TT_OK;
    }
    err = tt_fail(TT_EENV, "no thread for the line to the supervisor: %s", strerror(code));
fail:
    tt_wire_close(p->wire, 0);
    if (p->wake >= 0) close(p->wake);
    if (p->supervisor >= 0) close(p->supervisor);
    free(p);
    return err;
}

tt_vital *tt_pulse_vital(tt_pulse *p)
{
    return p ? &p->vital : NULL;
}

static void wake(tt_pulse *p)
{
    uint64_t one = 1;
    (void)!write(p->wake, &one, sizeof one);
}

tt_err tt_pulse_ready(tt_pulse *p, int *generation)
{
    tt_err err = TT_OK;

    tt_vital_set(&p->vital, TT_PHASE_READY, 0);
    wake(p);
    pthread_mutex_lock(&p->lock);
    while (!p->generation && atomic_load(&p->wish) == TT_WISH_NONE)
        pthread_cond_wait(&p->changed, &p->lock); /* without a supervisor the process ends */
    *generation = p->generation;
    if (!p->generation) err = tt_fail(TT_ESTOP, "told to end before it began");
    pthread_mutex_unlock(&p->lock);
    return err;
}

tt_wish tt_pulse_wish(const tt_pulse *p)
{
    return p ? (tt_wish)atomic_load_explicit(&p->wish, memory_order_relaxed) : TT_WISH_NONE;
}

void tt_pulse_close(tt_pulse *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_mutex_unlock(&p->lock);
    wake(p);
    pthread_join(p->thread, NULL);
    tt_wire_close(p->wire, 0.2);
    close(p->wake);
    if (p->supervisor >= 0) close(p->supervisor);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    free(p);
}
