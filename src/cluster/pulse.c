/* pulse: a worker's line to its supervisor.
 *
 *   worker to supervisor   beat    world, rank, pid, host, phase, step, kept, waits, at: ten times a
 *                                  second; at: when, by the worker's clock
 *                          tell    world, rank, what: an object, for the display or the ledger
 *                          dying   world, rank: told to, it ends now
 *                                  ... and in each, boss: whose it is (TUTTI_CONTROL_ID)
 *   supervisor to worker   go      generation, and what is committed
 *                          heard   the ledger has what was found, or the end
 *                          yield, move, save
 *                          stacks  tell where the thread that trains is: a step takes too long
 *                          alive   at, for: in answer to the beat of that time, four times a second
 *                          die
 *
 * A worker outlives its supervisor by no more than a tenth of a second on the same host, where a
 * pidfd tells. On others it has a lease: `alive` says for how long, counted from when the worker
 * sent the beat that is answered. The supervisor, which heard that beat no earlier, takes it for
 * gone after a lease from then. Counted from when the answer came, an answer that lay in a queue
 * while the link was down would make the lease longer than the supervisor knows. It ends without a
 * word: its state is in the vault.
 *
 * Where several supervisors stand by for each other (TUTTI_CONTROL_LEASE), near workers live by a
 * lease, too: it ends when that of their supervisor does. Then another one may start a world, and
 * this one must be gone. */
#define _GNU_SOURCE
#include "inner.h"

#include <arpa/inet.h>
#include <errno.h>
#include <execinfo.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const double BEAT_S = 0.1, STACK_S = 0.1, HEARD_S = 60, REACH_S = 15;
const double TT_LEASE_S = 2;
enum {
    FRAMES = 64,
    HANDLER = 2 /* the first frames are of our handler, and the kernel's return */
};

struct tt_pulse {
    tt_vital vital;
    tt_wire *wire;
    int world, rank, supervisor, wake; /* a pidfd (-1: on another host), an eventfd */
    char host[64], boss[TT_MARK];
    bool leased, answered; /* it lives by a lease, though it is near; it has heard of one */
    double until;          /* when its lease ends, by lease_clock */
    pthread_t thread, owner;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    tt_go go;                  /* generation 0: not yet */
    bool heard, closing, mute; /* mute: a test wants it so */
    json_t *told;              /* an array: what is still to be said */
    _Atomic int wish;
};

/* All that it says has in it whose it is. */
static void say(tt_pulse *p, json_t *o)
{
    json_object_set_new(o, "boss", tt_json_text(p->boss));
    json_object_set_new(o, "world", json_integer(p->world));
    json_object_set_new(o, "rank", json_integer(p->rank));
    tt_say(p->wire, 0, o);
}

/* ---- stacks ---- */

static void *frames[FRAMES];
static _Atomic int frame_count;

/* What backtrace needs is loaded at the first call, so that it is not done in a handler. */
static void on_stacks(int sig)
{
    int saved = errno;

    (void)sig;
    atomic_store(&frame_count, backtrace(frames, FRAMES));
    errno = saved;
}

static void prepare_stacks(void)
{
    struct sigaction act = {.sa_handler = on_stacks, .sa_flags = SA_RESTART};

    backtrace(frames, 2);
    sigaction(SIGUSR2, &act, NULL);
}

static void tell_stack(tt_pulse *p)
{
    double until = tt_clock_s() + STACK_S;
    struct timespec nap = {0, 1000000};
    json_t *lines = json_array();
    char name[512];
    int n;

    atomic_store(&frame_count, 0);
    pthread_kill(p->owner, SIGUSR2);
    while (!(n = atomic_load(&frame_count)) && tt_clock_s() < until) nanosleep(&nap, NULL);
    for (int i = HANDLER; i < n; i++) { /* what is returned to: the call is just before */
        tt_function_name((const char *)frames[i] - (i > HANDLER), name, sizeof name);
        json_array_append_new(lines, tt_json_text(name));
    }
    if (!n) json_array_append_new(lines, json_string("it does not answer, not even to a signal"));
    say(p, json_pack("{s:s, s:{s:s, s:i, s:o}}", "say", "tell", "what", "event", "stack", "rank",
                     p->rank, "lines", lines));
}

/* ---- the thread ---- */

/* Goes on while the machine sleeps: leases do. */
static double lease_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void beat(tt_pulse *p)
{
    if (p->mute || (p->mute = TT_FAILPOINT("pulse.beat"))) return;
    say(p, json_pack("{s:s, s:i, s:o, s:i, s:I, s:I, s:b, s:f}", "say", "beat", "pid",
                     (int)getpid(), "host", tt_json_text(p->host), "phase",
                     atomic_load(&p->vital.phase), "step", (json_int_t)atomic_load(&p->vital.step),
                     "kept", (json_int_t)atomic_load(&p->vital.kept), "waits",
                     tt_vital_waits(tt_clock_s()), "at", lease_clock()));
}

static void take_go(tt_pulse *p, const json_t *o)
{
    const json_t *told = json_object_get(o, "told");

    p->go.known = told != NULL;
    p->go.told = (tt_told){{(uint32_t)tt_number_of(told, "generation"),
                            (uint32_t)json_integer_value(json_object_get(told, "attempt")),
                            json_integer_value(json_object_get(told, "step"))},
                           (uint32_t)tt_number_of(told, "by")};
    p->go.ended = json_is_true(json_object_get(told, "ended"));
    snprintf(p->go.why, sizeof p->go.why, "%s", tt_text_of(o, "why"));
    p->go.generation = (uint32_t)tt_number_of(o, "generation");
}

static void take_lease(tt_pulse *p, const json_t *o)
{
    double at = json_number_value(json_object_get(o, "at")),
           until = at + json_number_value(json_object_get(o, "for"));

    if (at <= lease_clock() && (until > p->until || !p->answered)) p->until = until;
    p->answered = true;
}

static bool is_over(const tt_pulse *p)
{
    return (p->leased || p->supervisor < 0) && lease_clock() > p->until;
}

static void obey(tt_pulse *p, const char *word, const json_t *o)
{
    if (!strcmp(word, "alive")) {
        take_lease(p, o);
        return;
    }
    if (!strcmp(word, "die")) {
        say(p, json_pack("{s:s}", "say", "dying"));
        tt_wire_close(p->wire, 0.2);
        _exit(4);
    }
    if (!strcmp(word, "yield")) atomic_store(&p->wish, TT_WISH_YIELD);
    if (!strcmp(word, "move")) atomic_store(&p->wish, TT_WISH_MOVE);
    if (!strcmp(word, "save")) atomic_store(&p->wish, TT_WISH_SAVE);
    if (!strcmp(word, "stacks")) tell_stack(p);
    pthread_mutex_lock(&p->lock);
    if (!strcmp(word, "go")) take_go(p, o);
    if (!strcmp(word, "heard")) p->heard = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* False: it is to end, and all is said. */
static bool say_all(tt_pulse *p)
{
    json_t *told, *what;
    size_t i;
    bool closing;

    pthread_mutex_lock(&p->lock);
    told = p->told;
    p->told = json_array();
    closing = p->closing;
    pthread_mutex_unlock(&p->lock);
    json_array_foreach(told, i, what) say(p, json_pack("{s:s, s:O}", "say", "tell", "what", what));
    json_decref(told);
    return !closing;
}

static void hear_all(tt_pulse *p)
{
    const char *word;
    uint32_t from;
    json_t *o;

    while ((o = tt_hear(p->wire, &from, &word))) {
        obey(p, word, o);
        json_decref(o);
    }
}

static void *live(void *arg)
{
    tt_pulse *p = arg;
    double told = 0, now;
    uint64_t count;

    pthread_setname_np(pthread_self(), TT_PULSE_THREAD);
    while (say_all(p)) {
        struct pollfd f[3] = {{.fd = tt_wire_fd(p->wire), .events = POLLIN},
                              {.fd = p->wake, .events = POLLIN},
                              {.fd = p->supervisor, .events = POLLIN}};
        if ((now = tt_clock_s()) - told >= BEAT_S) {
            beat(p);
            told = now;
        }
        poll(f, 3, (int)(1000 * (told + BEAT_S - now)) + 1);
        if (read(p->wake, &count, sizeof count) > 0) told = 0; /* something to be told at once */
        hear_all(p);
        if (f[2].revents || is_over(p)) {
            static const char bye[] = "tutti: the supervisor is gone: this worker ends\n";
            (void)!write(STDERR_FILENO, bye, sizeof bye - 1);
            _exit(4);
        }
    }
    beat(p); /* the last phase */
    return NULL;
}

/* ---- calls ---- */

/* Of the addresses of a host, the one that is in a net of ours; else the first. */
static void choose_address(const char *list, char out[256])
{
    struct ifaddrs *ours = NULL;
    char copy[4096], *save, *one;

    snprintf(copy, sizeof copy, "%s", list);
    *out = 0;
    if (getifaddrs(&ours)) ours = NULL;
    for (one = strtok_r(copy, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
        char text[64];
        struct in_addr a;
        if (!*out) snprintf(out, 256, "%s", one);
        if (sscanf(one, "tcp://%63[0-9.]", text) != 1 || inet_pton(AF_INET, text, &a) != 1)
            continue;
        for (const struct ifaddrs *i = ours; i; i = i->ifa_next) {
            if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !i->ifa_netmask ||
                (i->ifa_flags & IFF_LOOPBACK))
                continue;
            uint32_t mask = ((const struct sockaddr_in *)(const void *)i->ifa_netmask)
                                ->sin_addr.s_addr,
                     own = ((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr.s_addr;
            if ((own & mask) != (a.s_addr & mask)) continue;
            snprintf(out, 256, "%s", one);
            goto out;
        }
    }
out:
    if (ours) freeifaddrs(ours);
}

/* On the supervisor's host its socket and its process are looked at, on others its address. */
static tt_err reach(tt_pulse *p, const char *near)
{
    const char *host = getenv("TUTTI_CONTROL_HOST"), *far = getenv("TUTTI_CONTROL_FAR"),
               *pid = getenv("TUTTI_CONTROL_PID"), *agents = getenv(TT_AGENT_KEY);
    tt_cluster_key key;
    char path[4096], address[256];
    tt_err err;

    if (!host || !strcmp(host, p->host)) {
        p->supervisor = pid ? (int)syscall(SYS_pidfd_open, atoi(pid), 0) : -1;
        if (p->supervisor < 0) return tt_fail(TT_EPEER, "the supervisor is gone");
        return tt_wire_reach(near, NULL, &p->wire);
    }
    if (!far) return tt_fail(TT_EENV, "no way to the supervisor on %s", host);
    snprintf(path, sizeof path, "%s", agents && *agents ? agents : "");
    if ((!*path && (err = tt_cluster_key_path(path))) || (err = tt_cluster_key_load(path, &key)))
        return err;
    choose_address(far, address);
    return tt_wire_reach(address, &key, &p->wire);
}

tt_err tt_pulse_open(int rank, tt_pulse **out)
{
    const char *near = getenv("TUTTI_CONTROL"), *world = getenv("TUTTI_CONTROL_WORLD"),
               *lease = getenv("TUTTI_CONTROL_LEASE"), *boss = getenv("TUTTI_CONTROL_ID");
    sigset_t all, before;
    tt_pulse *p;
    tt_err err;
    int code;

    *out = NULL;
    if (!near || !*near) return TT_OK;
    if (!(p = calloc(1, sizeof *p))) tt_mem_out(sizeof *p);
    p->world = world ? atoi(world) : 0;
    p->rank = rank;
    snprintf(p->boss, sizeof p->boss, "%s", boss ? boss : "");
    p->supervisor = -1;
    p->leased = lease && atof(lease) > 0;
    p->until = lease_clock() + (p->leased ? atof(lease) : REACH_S); /* until the first answer */
    p->owner = pthread_self();
    gethostname(p->host, sizeof p->host - 1);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if ((err = reach(p, near))) goto fail;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->told = json_array();
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

tt_err tt_pulse_ready(tt_pulse *p, tt_go *out)
{
    tt_err err = TT_OK;

    tt_vital_set(&p->vital, TT_PHASE_READY, 0);
    wake(p);
    pthread_mutex_lock(&p->lock);
    while (!p->go.generation && atomic_load(&p->wish) == TT_WISH_NONE)
        pthread_cond_wait(&p->changed, &p->lock); /* without a supervisor the process ends */
    *out = p->go;
    if (!p->go.generation) err = tt_fail(TT_ESTOP, "told to end before it began");
    pthread_mutex_unlock(&p->lock);
    return err;
}

void tt_pulse_tell(tt_pulse *p, json_t *o)
{
    if (!p) {
        json_decref(o);
        return;
    }
    pthread_mutex_lock(&p->lock);
    json_array_append_new(p->told, o);
    pthread_mutex_unlock(&p->lock);
    wake(p);
}

static tt_err await_heard(tt_pulse *p)
{
    struct timespec until;
    int code = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)HEARD_S;
    pthread_mutex_lock(&p->lock);
    while (!p->heard && !code)
        code = pthread_cond_clockwait(&p->changed, &p->lock, CLOCK_MONOTONIC, &until);
    pthread_mutex_unlock(&p->lock);
    return code ? tt_fail(TT_EPEER, "the supervisor did not answer in %.0f s", HEARD_S) : TT_OK;
}

tt_err tt_pulse_found(tt_pulse *p, tt_label l, uint32_t made, bool lost)
{
    tt_pulse_tell(p, json_pack("{s:s, s:I, s:I, s:I, s:I, s:b}", "event", "found", "generation",
                               (json_int_t)l.generation, "attempt", (json_int_t)l.attempt, "step",
                               (json_int_t)l.step, "made", (json_int_t)made, "lost", lost));
    return await_heard(p);
}

tt_err tt_pulse_end(tt_pulse *p, json_t *o)
{
    pthread_mutex_lock(&p->lock);
    p->heard = false; /* of the beginning; nothing else is answered so */
    pthread_mutex_unlock(&p->lock);
    tt_pulse_tell(p, o);
    return await_heard(p);
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
    tt_wire_close(p->wire, 1);
    json_decref(p->told);
    close(p->wake);
    if (p->supervisor >= 0) close(p->supervisor);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    free(p);
}
