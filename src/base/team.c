/* Every wait here is on a 32-bit word that changes: the work number, the count of members still at
 * work, the phase of the barrier. A waiter spins a little, gives way a little, then sleeps in a
 * futex.
 *
 * Invariants:
 *  (1) A word is changed before `sleepers` is read; a sleeper counts itself before it looks at the
 *      word again. Both are sequentially consistent, so either the changer sees the sleeper and
 *      wakes it, or the sleeper sees the change.
 *  (2) The phase cannot change between a member's reading it and its arrival, since the barrier
 *      opens only when all have arrived.
 *  (3) fn and arg are written before the work number changes and read after: no lock is needed. */
#define _GNU_SOURCE
#include "team.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_MEMBERS = 1024, SPINS = 1000, YIELDS = 4 };

/* On a cache line of its own, so that waiting on one word does not slow a change of another. */
typedef struct word {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
} word;

typedef struct member {
    tt_team *team;
    int number;
    pthread_t thread;
} member;

struct tt_team {
    int size, started; /* `started`: threads that must be joined */
    int spins; /* none if the members are more than the CPUs: they would spin each other out */
    bool running;
    bool closing; /* like fn and arg: (3) */
    void (*fn)(void *arg, int member);
    void *arg;
    word work;  /* grows by one for each tt_team_run */
    word busy;  /* members other than 0 still at it */
    word phase; /* grows by one each time the barrier opens */
    _Alignas(64) _Atomic uint32_t arrived;
    member *members;
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Returns once w differs from `seen`. */
static void word_wait(word *w, uint32_t seen, int spins)
{
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&w->value, memory_order_acquire) != seen) return;
        relax();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (atomic_load_explicit(&w->value, memory_order_acquire) != seen) return;
        sched_yield();
    }
    atomic_fetch_add(&w->sleepers, 1); /* keeps (1) */
    while (atomic_load(&w->value) == seen)
        syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
}

/* After a change of w. */
static void word_wake(word *w)
{
    if (atomic_load(&w->sleepers) > 0)
        syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void *member_main(void *arg)
{
    member *m = arg;
    tt_team *t = m->team;

    for (uint32_t seen = 0;; seen++) {
        word_wait(&t->work, seen, t->spins);
        if (t->closing) return NULL;
        t->fn(t->arg, m->number);
        if (atomic_fetch_sub(&t->busy.value, 1) == 1) word_wake(&t->busy);
    }
}

static int start_member(tt_team *t, int number)
{
    member *m = &t->members[number];
    char name[32];
    sigset_t all, before;
    int rc;

    /* Signals are for the threads of the program, never for a member in the middle of a kernel. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    m->team = t;
    m->number = number;
    rc = pthread_create(&m->thread, NULL, member_main, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) return rc;
    snprintf(name, sizeof name, "member %d", number);
    pthread_setname_np(m->thread, name);
    return 0;
}

tt_err tt_team_open(int size, tt_team **out)
{
    tt_err err = TT_OK;
    tt_team *t = NULL;
    int rc;

    *out = NULL;
    if (size < 1 || size > MOST_MEMBERS)
        return tt_fail(TT_EINVAL, "a team of %d threads: 1 to %d are possible", size, MOST_MEMBERS);
    if (posix_memalign((void **)&t, 64, sizeof *t))
        return tt_fail(TT_ENOMEM, "a team of %d threads: no memory", size);
    memset(t, 0, sizeof *t);
    t->size = size;
    t->spins = size <= tt_cpu_count() ? SPINS : 0;
    t->members = calloc((size_t)size, sizeof *t->members);
    if (!t->members) {
        err = tt_fail(TT_ENOMEM, "a team of %d threads: no memory", size);
        goto out;
    }
    for (int i = 1; i < size; i++, t->started++) {
        if (!(rc = start_member(t, i))) continue;
        err = tt_fail(TT_EENV, "starting thread %d of %d: %s", i + 1, size, strerror(rc));
        goto out;
    }
    *out = t;
    t = NULL;
out:
    tt_team_close(t);
    return err;
}

int tt_team_size(const tt_team *t)
{
    return t->size;
}

static void start_work(tt_team *t)
{
    atomic_fetch_add(&t->work.value, 1);
    word_wake(&t->work);
}

void tt_team_run(tt_team *t, void (*fn)(void *arg, int member), void *arg)
{
    uint32_t left;

    TT_ASSERT(!t->running);
    t->running = true;
    t->fn = fn;
    t->arg = arg;
    atomic_store(&t->busy.value, (uint32_t)(t->size - 1));
    if (t->size > 1) start_work(t);
    fn(arg, 0);
    while ((left = atomic_load(&t->busy.value)) > 0) word_wait(&t->busy, left, t->spins);
    t->running = false;
}

void tt_team_barrier(tt_team *t)
{
    uint32_t phase = atomic_load(&t->phase.value); /* (2) */

    if (atomic_fetch_add(&t->arrived, 1) + 1 < (uint32_t)t->size) {
        word_wait(&t->phase, phase, t->spins);
        return;
    }
    atomic_store(&t->arrived, 0);
    atomic_fetch_add(&t->phase.value, 1);
    word_wake(&t->phase);
}

void tt_team_close(tt_team *t)
{
    if (!t) return;
    TT_ASSERT(!t->running);
    t->closing = true;
    start_work(t);
    for (int i = 1; i <= t->started; i++) pthread_join(t->members[i].thread, NULL);
    free(t->members);
    free(t);
}
