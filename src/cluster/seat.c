/* The thread between lease.h, which decides, and etcd.h, which asks.
 *
 * It alone touches the machine and the client. What others want to know is copied: until when it
 * leads to an atomic, the rest under the lock. The copy of `until` changes only while this thread
 * knows what the machine knows, so a process that was stopped finds its own clock beyond it. */
#define _GNU_SOURCE
#include "seat.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "etcd.h"
#include "inner.h"
#include "lease.h"

enum { TURN_MS = 50, KEEP_S = 3600, LEADER = 0, GENERATION, RESULT, KEYS };
static const double ASK_S = 0.7, KEEP_AGAIN_S = 600, HUNG_S = 15;
static const char *const NAME[KEYS] = {"leader", "generation", "result"};

struct tt_seat {
    tt_etcd *etcd;
    tt_lease lease;
    char folder[128], key[KEYS][160];
    char me[64], host[256]; /* me: a name that nobody else has */
    char cluster[32];
    int64_t began;    /* the revision when we came: a result before that is not ours */
    int64_t id, made; /* of our lease; the revision of our key */
    int64_t kept;     /* the lease of what outlives us */
    double kept_at;
    pthread_t thread;
    bool running;

    _Atomic double until, asked; /* leading until then (0: not); when that was last asked for */
    _Atomic bool lapsed;         /* who asked was told no: it stays so until it leads again   */
    _Atomic int generation;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    tt_seat_view view;
    int persist; /* what is to be persisted; 0: nothing */
    bool ended, closing;
    tt_seat_end_kind end;
    int code;
};

static double clock_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t); /* goes on while the machine sleeps */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- what others see ---- */

static void show(tt_seat *s, tt_seat_role role)
{
    pthread_mutex_lock(&s->lock);
    s->view.role = role;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Who it is, as they wrote it themselves. */
static void show_other(tt_seat *s, const char *text)
{
    json_t *o = text ? json_loads(text, 0, NULL) : NULL;

    pthread_mutex_lock(&s->lock);
    snprintf(s->view.host, sizeof s->view.host, "%s", tt_text_of(o, "host"));
    s->view.pid = tt_number_of(o, "pid");
    pthread_mutex_unlock(&s->lock);
    json_decref(o);
}

static tt_lease_event failed(tt_seat *s)
{
    pthread_mutex_lock(&s->lock);
    snprintf(s->view.trouble, sizeof s->view.trouble, "%s", tt_message());
    if (s->view.role == TT_SEAT_LOOKING || s->view.role == TT_SEAT_STANDBY)
        s->view.role = TT_SEAT_SILENT;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return (tt_lease_event){.kind = TT_LEASE_FAILED};
}

/* ---- what is asked ---- */

static void describe_me(const tt_seat *s, int code, tt_str *out)
{
    json_t *o = json_pack("{s:o, s:i, s:s, s:i}", "host", tt_json_text(s->host), "pid",
                          (int)getpid(), "name", s->me, "code", code);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;

    if (!text) tt_mem_out(256);
    tt_str_add(out, "%s", text);
    free(text);
    json_decref(o);
}

static bool is_me(const tt_seat *s, const char *value)
{
    return strstr(value, s->me) != NULL;
}

static int code_in(const char *value)
{
    json_t *o = json_loads(value, 0, NULL);
    int code = json_is_object(o) ? tt_number_of(o, "code") : 1;

    json_decref(o);
    return code >= 0 && code < 256 ? code : 1;
}

/* The lease of what outlives this process: renewed now and then, so that it ends an hour after. */
static tt_err keep_memory(tt_seat *s, bool now)
{
    double ttl_s;
    tt_err err = TT_OK;

    if (s->kept && !now && clock_now() - s->kept_at < KEEP_AGAIN_S) return TT_OK;
    if (s->kept && (err = tt_etcd_renew(s->etcd, s->kept, &ttl_s))) return err;
    if (!s->kept || !(ttl_s > 0)) err = tt_etcd_grant(s->etcd, KEEP_S, &s->kept, &ttl_s);
    s->kept_at = clock_now();
    return err;
}

static void free_keys(tt_etcd_key key[KEYS])
{
    for (int i = 0; i < KEYS; i++) tt_etcd_key_free(&key[i]);
}

/* The seat is free: a lease, and the key under it if it is still absent. */
static tt_lease_event take(tt_seat *s)
{
    double sent = clock_now(), ttl_s;
    tt_etcd_key key[KEYS];
    tt_etcd_head head;
    tt_str me = {0};
    bool done = false;
    tt_err err;

    if (tt_etcd_grant(s->etcd, (int64_t)s->lease.o.ttl_s, &s->id, &ttl_s)) return failed(s);
    describe_me(s, 0, &me);
    err = tt_etcd_do(s->etcd,
                     &(tt_etcd_deed){.if_key = s->key[LEADER],
                                     .put_key = s->key[LEADER],
                                     .value = me.data,
                                     .lease = s->id,
                                     .remove_key = s->key[RESULT]},
                     &done, &s->made);
    tt_str_free(&me);
    if (err) return failed(s); /* if it was done after all, we shall find our own key */
    if (!done) {
        tt_etcd_revoke(s->etcd, s->id);
        return (tt_lease_event){.kind = TT_LEASE_REFUSED};
    }
    /* From here on nobody but us changes the token. */
    if (tt_etcd_look(s->etcd, s->folder, NAME, KEYS, key, &head)) return failed(s);
    atomic_store(&s->generation, key[GENERATION].value ? atoi(key[GENERATION].value) : 0);
    free_keys(key);
    return (tt_lease_event){.kind = TT_LEASE_GRANTED, .sent = sent, .ttl_s = ttl_s};
}

static tt_lease_event campaign(tt_seat *s)
{
    tt_lease_event e = {.kind = TT_LEASE_REFUSED};
    tt_etcd_key key[KEYS];
    tt_etcd_head head;

    tt_etcd_patience(s->etcd, 2 * ASK_S);
    if (tt_etcd_look(s->etcd, s->folder, NAME, KEYS, key, &head)) return failed(s);
    if (key[RESULT].value && key[RESULT].changed > s->began) {
        show_other(s, key[RESULT].value);
        e = (tt_lease_event){.kind = TT_LEASE_RESULT, .code = code_in(key[RESULT].value)};
    } else if (key[LEADER].value && is_me(s, key[LEADER].value)) {
        /* of a lease that we have given up: whatever we did under it has ended */
        if (tt_etcd_revoke(s->etcd, key[LEADER].lease)) e = failed(s);
    } else if (key[LEADER].value) {
        show_other(s, key[LEADER].value);
        show(s, TT_SEAT_STANDBY);
    } else {
        e = take(s);
    }
    free_keys(key);
    return e;
}

static tt_lease_event renew(tt_seat *s)
{
    tt_lease_event e = {.kind = TT_LEASE_RENEWED, .sent = clock_now()};
    tt_etcd_key key[KEYS];
    tt_etcd_head head;

    if (e.sent - atomic_load(&s->asked) > HUNG_S) {
        tt_fail(TT_EPEER, "the supervisor does not move for %.0f s", HUNG_S);
        return failed(s);
    }
    tt_etcd_patience(s->etcd, ASK_S);
    if (tt_etcd_renew(s->etcd, s->id, &e.ttl_s) ||
        tt_etcd_look(s->etcd, s->folder, NAME, KEYS, key, &head))
        return failed(s);
    if (!(e.ttl_s > 0) || key[LEADER].made != s->made) e.kind = TT_LEASE_LOST;
    free_keys(key);
    keep_memory(s, false); /* there is another time */
    pthread_mutex_lock(&s->lock);
    *s->view.trouble = 0;
    pthread_mutex_unlock(&s->lock);
    return e;
}

static tt_lease_event close_run(tt_seat *s)
{
    tt_etcd_deed d = {.if_key = s->key[LEADER], .made = s->made, .remove_key = s->key[LEADER]};
    tt_str value = {0};
    int64_t revision;
    bool done;
    tt_err err = TT_OK;

    tt_etcd_patience(s->etcd, 2 * ASK_S);
    if (s->end == TT_SEAT_ENDED) {
        describe_me(s, s->code, &value);
        d.put_key = s->key[RESULT];
        d.value = value.data;
        if (!(err = keep_memory(s, true))) d.lease = s->kept;
    }
    if (!err) err = tt_etcd_do(s->etcd, &d, &done, &revision);
    tt_str_free(&value);
    if (err) return failed(s);
    if (done) tt_etcd_revoke(s->etcd, s->id);
    return (tt_lease_event){.kind = done ? TT_LEASE_CLOSED : TT_LEASE_REFUSED};
}

/* The token, before a world gets GO. */
static tt_lease_event persist(tt_seat *s, int generation)
{
    char text[16];
    tt_etcd_deed d = {
        .if_key = s->key[LEADER], .made = s->made, .put_key = s->key[GENERATION], .value = text};
    int64_t revision;
    bool done;

    snprintf(text, sizeof text, "%d", generation);
    tt_etcd_patience(s->etcd, ASK_S);
    if (keep_memory(s, false)) return failed(s);
    d.lease = s->kept;
    if (tt_etcd_do(s->etcd, &d, &done, &revision)) return failed(s);
    if (!done) return (tt_lease_event){.kind = TT_LEASE_LOST};
    pthread_mutex_lock(&s->lock);
    if (s->persist == generation) s->persist = 0;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return (tt_lease_event){.kind = TT_LEASE_TIMER};
}

/* ---- the thread ---- */

/* Does what the machine wants; the answer is its next event. */
static tt_lease_event carry_out(tt_seat *s, tt_lease_action a)
{
    switch (a) {
    case TT_LEASE_CAMPAIGN:
        return campaign(s);
    case TT_LEASE_RENEW:
        return renew(s);
    case TT_LEASE_CLOSE:
        return close_run(s);
    case TT_LEASE_LEAD:
        atomic_store(&s->asked, clock_now());
        atomic_store(&s->lapsed, false);
        atomic_store(&s->until, s->lease.until);
        show(s, TT_SEAT_LEADING);
        break;
    case TT_LEASE_STEP_DOWN:
        atomic_store(&s->until, 0);
        show(s, TT_SEAT_LEAVING);
        break;
    case TT_LEASE_EXIT:
        pthread_mutex_lock(&s->lock);
        s->view.code = s->lease.code;
        pthread_mutex_unlock(&s->lock);
        show(s, TT_SEAT_OVER);
        break;
    case TT_LEASE_NOTHING:
        break;
    }
    return (tt_lease_event){.kind = TT_LEASE_TIMER};
}

/* What the process itself has to tell, if anything; else waits a turn. *generation: what is to be
 * persisted; before, what was tried in vain. False: it is to end. */
static bool next_event(tt_seat *s, bool idle, tt_lease_event *e, int *generation)
{
    struct timespec until;
    bool going;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TURN_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&s->lock);
    if (idle && !s->ended && !s->closing && (!s->persist || s->persist == *generation))
        pthread_cond_timedwait(&s->changed, &s->lock, &until);
    *generation = s->persist;
    if (s->ended)
        *e = (tt_lease_event){.kind = s->end == TT_SEAT_STOPPED ? TT_LEASE_STOPPED : TT_LEASE_ENDED,
                              .code = s->code};
    if (s->ended && s->view.role == TT_SEAT_LEAVING) s->view.role = TT_SEAT_LOOKING;
    s->ended = false;
    going = !s->closing;
    pthread_mutex_unlock(&s->lock);
    return going;
}

static void *live(void *arg)
{
    tt_seat *s = arg;
    tt_lease_event e = {.kind = TT_LEASE_TIMER};
    tt_lease_action a = TT_LEASE_NOTHING;
    int generation = 0;

    while (next_event(s, a == TT_LEASE_NOTHING && e.kind == TT_LEASE_TIMER, &e, &generation)) {
        do {
            a = tt_lease_step(&s->lease, &e, clock_now());
            if (s->lease.state == TT_LEASE_LEADING && a != TT_LEASE_LEAD)
                atomic_store(&s->until, s->lease.until);
            e = carry_out(s, a);
        } while (e.kind != TT_LEASE_TIMER);
        if (s->lease.state != TT_LEASE_LEADING) atomic_store(&s->until, 0);
        if (generation && s->lease.state == TT_LEASE_LEADING) e = persist(s, generation);
        if (e.kind == TT_LEASE_FAILED) e.kind = TT_LEASE_TIMER; /* it was no answer to a request */
    }
    return NULL;
}

/* ---- calls ---- */

double tt_seat_left(tt_seat *s)
{
    double now = clock_now(), left = atomic_load(&s->until) - s->lease.o.margin_s - now;

    atomic_store(&s->asked, now);
    if (left > 0 && !atomic_load(&s->lapsed)) return left;
    atomic_store(&s->lapsed, true); /* something was left undone: a renewal now comes too late */
    return 0;
}

int tt_seat_generation(const tt_seat *s)
{
    return atomic_load(&s->generation);
}

const char *tt_seat_cluster(const tt_seat *s)
{
    return s->cluster;
}

double tt_seat_lease_s(const tt_seat *s)
{
    return s->lease.o.ttl_s;
}

bool tt_seat_persist(tt_seat *s, int generation)
{
    struct timespec until;
    bool done = false;

    pthread_mutex_lock(&s->lock);
    s->persist = generation;
    pthread_cond_broadcast(&s->changed);
    while (!(done = s->persist != generation) && tt_seat_left(s) > 0) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += TURN_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&s->changed, &s->lock, &until);
    }
    if (!done) s->persist = 0;
    pthread_mutex_unlock(&s->lock);
    return done && tt_seat_left(s) > 0;
}

void tt_seat_wait(tt_seat *s, int ms, tt_seat_view *out)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms % 1000 * 1000000L;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&s->lock);
    while (s->view.role == out->role && !pthread_cond_timedwait(&s->changed, &s->lock, &until)) {
    }
    *out = s->view;
    pthread_mutex_unlock(&s->lock);
}

void tt_seat_end(tt_seat *s, tt_seat_end_kind kind, int code)
{
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    s->end = kind;
    s->code = code;
    s->view.role = TT_SEAT_LOOKING;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static tt_err start_thread(tt_seat *s)
{
    sigset_t all, before;
    int code;

    sigfillset(&all); /* signals are for the thread that supervises */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&s->thread, NULL, live, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->running = !code;
    return code ? tt_fail(TT_EENV, "no thread for the coordinator: %s", strerror(code)) : TT_OK;
}

static tt_err first_look(tt_etcd *e, const char *address, const char *folder, tt_etcd_head *out)
{
    tt_etcd_key key[KEYS];

    if (tt_etcd_look(e, folder, NAME, KEYS, key, out))
        return tt_context(TT_EENV, "no coordinator at %s", address);
    free_keys(key);
    return TT_OK;
}

tt_err tt_seat_try(const char *address)
{
    tt_etcd *e;
    tt_etcd_head head;
    tt_err err = tt_etcd_open(address, &e);

    if (!err) err = first_look(e, address, "/tutti/-/", &head) /* which nobody has */;
    tt_etcd_close(e);
    return err;
}

tt_err tt_seat_open(const tt_seat_opts *o, tt_seat **out)
{
    tt_seat *s = calloc(1, sizeof *s);
    tt_lease_opts lo = tt_lease_defaults();
    pthread_condattr_t attr;
    tt_etcd_head head;
    uint64_t random[2] = {0};
    tt_err err;

    *out = NULL;
    if (!s) tt_mem_out(sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    gethostname(s->host, sizeof s->host - 1);
    while (getrandom(random, sizeof random, 0) < 0 && errno == EINTR) continue;
    snprintf(s->me, sizeof s->me, "%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    snprintf(s->folder, sizeof s->folder, "/tutti/%s/", o->run);
    for (int i = 0; i < KEYS; i++)
        snprintf(s->key[i], sizeof s->key[i], "%s%s", s->folder, NAME[i]);
    if ((err = tt_etcd_open(o->address, &s->etcd)) ||
        (err = first_look(s->etcd, o->address, s->folder, &head)))
        goto fail;
    s->began = head.revision;
    snprintf(s->cluster, sizeof s->cluster, "%s", head.cluster);
    tt_lease_begin(&s->lease, &lo, clock_now());
    if ((err = start_thread(s))) goto fail;
    *out = s;
    return TT_OK;
fail:
    tt_seat_close(s);
    return err;
}

void tt_seat_close(tt_seat *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->running) pthread_join(s->thread, NULL);
    tt_etcd_close(s->etcd);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
