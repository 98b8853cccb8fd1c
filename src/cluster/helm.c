/* The thread between lease.h, which decides, and etcd.h, which asks.
 *
 * It alone touches the machine and the client. What others want to know is copied: until when it
 * leads to an atomic, the rest under the lock. The copy of `until` changes only while this thread
 * knows what the machine knows, so a process that was stopped finds its own clock beyond it. */
#define _GNU_SOURCE
#include "helm.h"

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

struct tt_helm {
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
    _Atomic double lease_s;      /* what the etcd gives: it may have a minimum of its own      */
    _Atomic bool lapsed;         /* who asked was told no: it stays so until it leads again   */
    _Atomic int generation;
    bool went; /* of who supervises: it has given GO since it leads */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    tt_helm_view view;
    int persist; /* what is to be persisted; 0: nothing */
    bool ended, closing;
    tt_helm_end_kind end;
    int code;
};

static double clock_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t); /* goes on while the machine sleeps */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- what others see ---- */

static void show(tt_helm *h, tt_helm_role role)
{
    pthread_mutex_lock(&h->lock);
    h->view.role = role;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

/* Who it is, as they wrote it themselves. */
static void show_other(tt_helm *h, const char *text)
{
    json_t *o = text ? json_loads(text, 0, NULL) : NULL;

    pthread_mutex_lock(&h->lock);
    snprintf(h->view.host, sizeof h->view.host, "%s", tt_text_of(o, "host"));
    h->view.pid = tt_number_of(o, "pid");
    pthread_mutex_unlock(&h->lock);
    json_decref(o);
}

static tt_lease_event failed(tt_helm *h)
{
    pthread_mutex_lock(&h->lock);
    snprintf(h->view.trouble, sizeof h->view.trouble, "%s", tt_message());
    if (h->view.role == TT_HELM_LOOKING || h->view.role == TT_HELM_STANDBY)
        h->view.role = TT_HELM_SILENT;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    return (tt_lease_event){.kind = TT_LEASE_FAILED};
}

/* ---- what is asked ---- */

static void describe_me(const tt_helm *h, int code, tt_str *out)
{
    json_t *o = json_pack("{s:o, s:i, s:s, s:i}", "host", tt_json_text(h->host), "pid",
                          (int)getpid(), "name", h->me, "code", code);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;

    if (!text) tt_mem_out(256);
    tt_str_add(out, "%s", text);
    free(text);
    json_decref(o);
}

static bool is_me(const tt_helm *h, const char *value)
{
    return strstr(value, h->me) != NULL;
}

static int code_in(const char *value)
{
    json_t *o = json_loads(value, 0, NULL);
    int code = json_is_object(o) ? tt_number_of(o, "code") : 1;

    json_decref(o);
    return code >= 0 && code < 256 ? code : 1;
}

/* The lease of what outlives this process: renewed now and then, so that it ends an hour after. */
static tt_err keep_memory(tt_helm *h, bool now)
{
    double ttl_s;
    tt_err err = TT_OK;

    if (h->kept && !now && clock_now() - h->kept_at < KEEP_AGAIN_S) return TT_OK;
    if (h->kept && (err = tt_etcd_renew(h->etcd, h->kept, &ttl_s))) return err;
    if (!h->kept || !(ttl_s > 0)) err = tt_etcd_grant(h->etcd, KEEP_S, &h->kept, &ttl_s);
    h->kept_at = clock_now();
    return err;
}

static void free_keys(tt_etcd_key key[KEYS])
{
    for (int i = 0; i < KEYS; i++) tt_etcd_key_free(&key[i]);
}

/* The helm is free: a lease, and the key under it if it is still absent. */
static tt_lease_event take(tt_helm *h)
{
    double sent = clock_now(), ttl_s;
    tt_etcd_key key[KEYS];
    tt_etcd_head head;
    tt_str me = {0};
    bool done = false;
    tt_err err;

    if (tt_etcd_grant(h->etcd, (int64_t)h->lease.o.ttl_s, &h->id, &ttl_s)) return failed(h);
    describe_me(h, 0, &me);
    err = tt_etcd_do(h->etcd,
                     &(tt_etcd_deed){.if_key = h->key[LEADER],
                                     .put_key = h->key[LEADER],
                                     .value = me.data,
                                     .lease = h->id,
                                     .remove_key = h->key[RESULT]},
                     &done, &h->made);
    tt_str_free(&me);
    if (err) return failed(h); /* if it was done after all, we shall find our own key */
    if (!done) {
        tt_etcd_revoke(h->etcd, h->id);
        return (tt_lease_event){.kind = TT_LEASE_REFUSED};
    }
    /* From here on nobody but us changes the token. */
    if (tt_etcd_look(h->etcd, h->folder, NAME, KEYS, key, &head)) return failed(h);
    atomic_store(&h->generation, key[GENERATION].value ? atoi(key[GENERATION].value) : 0);
    atomic_store(&h->lease_s, ttl_s);
    free_keys(key);
    return (tt_lease_event){.kind = TT_LEASE_GRANTED, .sent = sent, .ttl_s = ttl_s};
}

static tt_lease_event campaign(tt_helm *h)
{
    tt_lease_event e = {.kind = TT_LEASE_REFUSED};
    tt_etcd_key key[KEYS];
    tt_etcd_head head;

    tt_etcd_patience(h->etcd, 2 * ASK_S);
    if (tt_etcd_look(h->etcd, h->folder, NAME, KEYS, key, &head)) return failed(h);
    if (key[RESULT].value && key[RESULT].changed > h->began) {
        show_other(h, key[RESULT].value);
        e = (tt_lease_event){.kind = TT_LEASE_RESULT, .code = code_in(key[RESULT].value)};
    } else if (key[LEADER].value && is_me(h, key[LEADER].value)) {
        /* of a lease that we have given up: whatever we did under it has ended */
        if (tt_etcd_revoke(h->etcd, key[LEADER].lease)) e = failed(h);
    } else if (key[LEADER].value) {
        show_other(h, key[LEADER].value);
        show(h, TT_HELM_STANDBY);
    } else {
        e = take(h);
    }
    free_keys(key);
    return e;
}

static tt_lease_event renew(tt_helm *h)
{
    tt_lease_event e = {.kind = TT_LEASE_RENEWED, .sent = clock_now()};
    tt_etcd_key key[KEYS];
    tt_etcd_head head;

    if (e.sent - atomic_load(&h->asked) > HUNG_S) {
        tt_fail(TT_EPEER, "the supervisor does not move for %.0f s", HUNG_S);
        return failed(h);
    }
    tt_etcd_patience(h->etcd, ASK_S);
    if (tt_etcd_renew(h->etcd, h->id, &e.ttl_s) ||
        tt_etcd_look(h->etcd, h->folder, NAME, KEYS, key, &head))
        return failed(h);
    if (!(e.ttl_s > 0) || key[LEADER].made != h->made) e.kind = TT_LEASE_LOST;
    free_keys(key);
    pthread_mutex_lock(&h->lock);
    snprintf(h->view.trouble, sizeof h->view.trouble, "%s",
             e.kind == TT_LEASE_LOST ? "the coordinator does not have it any more" : "");
    pthread_mutex_unlock(&h->lock);
    keep_memory(h, false); /* there is another time */
    return e;
}

static tt_lease_event close_run(tt_helm *h)
{
    tt_etcd_deed d = {.if_key = h->key[LEADER], .made = h->made, .remove_key = h->key[LEADER]};
    tt_str value = {0};
    int64_t revision;
    bool done;
    tt_err err = TT_OK;

    tt_etcd_patience(h->etcd, 2 * ASK_S);
    if (h->end == TT_HELM_ENDED) {
        describe_me(h, h->code, &value);
        d.put_key = h->key[RESULT];
        d.value = value.data;
        if (!(err = keep_memory(h, true))) d.lease = h->kept;
    }
    if (!err) err = tt_etcd_do(h->etcd, &d, &done, &revision);
    tt_str_free(&value);
    if (err) return failed(h);
    if (done) tt_etcd_revoke(h->etcd, h->id);
    return (tt_lease_event){.kind = done ? TT_LEASE_CLOSED : TT_LEASE_REFUSED};
}

/* The token, before a world gets GO. */
static tt_lease_event persist(tt_helm *h, int generation)
{
    char text[16];
    tt_etcd_deed d = {
        .if_key = h->key[LEADER], .made = h->made, .put_key = h->key[GENERATION], .value = text};
    int64_t revision;
    bool done;

    snprintf(text, sizeof text, "%d", generation);
    tt_etcd_patience(h->etcd, ASK_S);
    if (keep_memory(h, false)) return failed(h);
    d.lease = h->kept;
    if (tt_etcd_do(h->etcd, &d, &done, &revision)) return failed(h);
    if (!done) return (tt_lease_event){.kind = TT_LEASE_LOST};
    pthread_mutex_lock(&h->lock);
    if (h->persist == generation) h->persist = 0;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    return (tt_lease_event){.kind = TT_LEASE_TIMER};
}

/* ---- the thread ---- */

/* Does what the machine wants; the answer is its next event. */
static tt_lease_event carry_out(tt_helm *h, tt_lease_action a)
{
    switch (a) {
    case TT_LEASE_CAMPAIGN:
        return campaign(h);
    case TT_LEASE_RENEW:
        return renew(h);
    case TT_LEASE_CLOSE:
        return close_run(h);
    case TT_LEASE_LEAD:
        atomic_store(&h->asked, clock_now());
        atomic_store(&h->lapsed, false);
        atomic_store(&h->until, h->lease.until);
        show(h, TT_HELM_LEADING);
        break;
    case TT_LEASE_STEP_DOWN:
        atomic_store(&h->until, 0);
        show(h, TT_HELM_LEAVING);
        break;
    case TT_LEASE_EXIT:
        pthread_mutex_lock(&h->lock);
        h->view.code = h->lease.code;
        pthread_mutex_unlock(&h->lock);
        show(h, TT_HELM_OVER);
        break;
    case TT_LEASE_NOTHING:
        break;
    }
    return (tt_lease_event){.kind = TT_LEASE_TIMER};
}

/* What the process itself has to tell, if anything; else waits a turn. *generation: what is to be
 * persisted; before, what was tried in vain. False: it is to end. */
static bool next_event(tt_helm *h, bool idle, tt_lease_event *e, int *generation)
{
    struct timespec until;
    bool going;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TURN_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&h->lock);
    if (idle && !h->ended && !h->closing && (!h->persist || h->persist == *generation))
        pthread_cond_timedwait(&h->changed, &h->lock, &until);
    *generation = h->persist;
    if (h->ended)
        *e = (tt_lease_event){.kind = h->end == TT_HELM_STOPPED ? TT_LEASE_STOPPED : TT_LEASE_ENDED,
                              .code = h->code};
    if (h->ended && h->view.role == TT_HELM_LEAVING) h->view.role = TT_HELM_LOOKING;
    h->ended = false;
    going = !h->closing;
    pthread_mutex_unlock(&h->lock);
    return going;
}

static void *live(void *arg)
{
    tt_helm *h = arg;
    tt_lease_event e = {.kind = TT_LEASE_TIMER};
    tt_lease_action a = TT_LEASE_NOTHING;
    int generation = 0;

    while (next_event(h, a == TT_LEASE_NOTHING && e.kind == TT_LEASE_TIMER, &e, &generation)) {
        do {
            a = tt_lease_step(&h->lease, &e, clock_now());
            if (h->lease.state == TT_LEASE_LEADING && a != TT_LEASE_LEAD)
                atomic_store(&h->until, h->lease.until);
            e = carry_out(h, a);
        } while (e.kind != TT_LEASE_TIMER);
        if (h->lease.state != TT_LEASE_LEADING) atomic_store(&h->until, 0);
        if (generation && h->lease.state == TT_LEASE_LEADING) e = persist(h, generation);
        if (e.kind == TT_LEASE_FAILED) e.kind = TT_LEASE_TIMER; /* it was no answer to a request */
    }
    return NULL;
}

/* ---- calls ---- */

double tt_helm_left(tt_helm *h)
{
    double now = clock_now(), left = atomic_load(&h->until) - h->lease.o.margin_s - now;

    atomic_store(&h->asked, now);
    if (left > 0 && !atomic_load(&h->lapsed)) return left;
    atomic_store(&h->lapsed, true); /* something was left undone: a renewal now comes too late */
    return 0;
}

int tt_helm_generation(const tt_helm *h)
{
    return atomic_load(&h->generation);
}

const char *tt_helm_cluster(const tt_helm *h)
{
    return h->cluster;
}

double tt_helm_lease_s(const tt_helm *h)
{
    return atomic_load(&h->lease_s);
}

bool tt_helm_persist(tt_helm *h, int generation)
{
    struct timespec until;
    bool done = false;

    pthread_mutex_lock(&h->lock);
    h->persist = generation;
    pthread_cond_broadcast(&h->changed);
    while (!(done = h->persist != generation) && tt_helm_left(h) > 0) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += TURN_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&h->changed, &h->lock, &until);
    }
    if (!done) h->persist = 0;
    h->went |= done;
    pthread_mutex_unlock(&h->lock);
    return done && tt_helm_left(h) > 0;
}

void tt_helm_wait(tt_helm *h, int ms, tt_helm_view *out)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms % 1000 * 1000000L;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&h->lock);
    while (h->view.role == out->role && !pthread_cond_timedwait(&h->changed, &h->lock, &until)) {
    }
    *out = h->view;
    pthread_mutex_unlock(&h->lock);
}

void tt_helm_end(tt_helm *h, tt_helm_end_kind kind, int code)
{
    pthread_mutex_lock(&h->lock);
    h->ended = true;
    h->end = kind;
    h->code = code;
    h->went = false;
    h->view.role = TT_HELM_LOOKING;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

bool tt_helm_went(const tt_helm *h)
{
    return h->went;
}

static tt_err start_thread(tt_helm *h)
{
    sigset_t all, before;
    int code;

    sigfillset(&all); /* signals are for the thread that supervises */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&h->thread, NULL, live, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    h->running = !code;
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

tt_err tt_helm_try(const char *address)
{
    tt_etcd *e;
    tt_etcd_head head;
    tt_err err = tt_etcd_open(address, &e);

    if (!err) err = first_look(e, address, "/tutti/-/", &head) /* which nobody has */;
    tt_etcd_close(e);
    return err;
}

tt_err tt_helm_open(const tt_helm_opts *o, tt_helm **out)
{
    tt_helm *h = calloc(1, sizeof *h);
    tt_lease_opts lo = tt_lease_defaults();
    pthread_condattr_t attr;
    tt_etcd_head head;
    uint64_t random[2] = {0};
    tt_err err;

    *out = NULL;
    if (!h) tt_mem_out(sizeof *h);
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->changed, &attr);
    pthread_condattr_destroy(&attr);
    gethostname(h->host, sizeof h->host - 1);
    while (getrandom(random, sizeof random, 0) < 0 && errno == EINTR) continue;
    snprintf(h->me, sizeof h->me, "%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    snprintf(h->folder, sizeof h->folder, "/tutti/%s/", o->run);
    for (int i = 0; i < KEYS; i++)
        snprintf(h->key[i], sizeof h->key[i], "%s%s", h->folder, NAME[i]);
    if ((err = tt_etcd_open(o->address, &h->etcd)) ||
        (err = first_look(h->etcd, o->address, h->folder, &head)))
        goto fail;
    h->began = head.revision;
    snprintf(h->cluster, sizeof h->cluster, "%s", head.cluster);
    tt_lease_begin(&h->lease, &lo, clock_now());
    atomic_store(&h->lease_s, lo.ttl_s);
    if ((err = start_thread(h))) goto fail;
    *out = h;
    return TT_OK;
fail:
    tt_helm_close(h);
    return err;
}

void tt_helm_close(tt_helm *h)
{
    if (!h) return;
    pthread_mutex_lock(&h->lock);
    h->closing = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    if (h->running) pthread_join(h->thread, NULL);
    tt_etcd_close(h->etcd);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
