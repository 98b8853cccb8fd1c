/* sim: ranks are threads of one process, messages are copies in a list. For tests: the same calls,
 * the same errors, and ThreadSanitizer sees all of it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/carrier.h"

typedef struct message {
    struct message *next;
    int from, tag;
    size_t bytes;
    char data[];
} message;

/* A receive that waits for its message. */
typedef struct wanted {
    struct wanted *next, **back;
    int from, tag;
    void *data;
    size_t bytes;
} wanted;

typedef struct inbox {
    pthread_mutex_t lock;
    message *first, **last;
} inbox;

typedef struct sim {
    struct tt_carrier carrier; /* first: a carrier is a sim */
    inbox *boxes;              /* of all ranks */
    wanted *waiting;
    tt_kept **kept; /* where to leave what the others may still use */
} sim;

static tt_err sim_send(tt_world *w, int to, int tag, const void *data, size_t bytes,
                       uint64_t *handle)
{
    inbox *box = &((sim *)w->carrier)->boxes[to];
    message *m = malloc(sizeof *m + bytes);

    if (!m) return tt_fail(TT_ENOMEM, "a message of %zu bytes", bytes);
    *m = (message){NULL, w->rank, tag, bytes};
    memcpy(m->data, data, bytes);
    pthread_mutex_lock(&box->lock);
    *box->last = m;
    box->last = &m->next;
    pthread_mutex_unlock(&box->lock);
    *handle = 0; /* it is done when it is made */
    return TT_OK;
}

static tt_err sim_recv(tt_world *w, int from, int tag, void *data, size_t bytes, uint64_t *handle)
{
    sim *s = (sim *)w->carrier;
    wanted *r = malloc(sizeof *r);

    if (!r) return tt_fail(TT_ENOMEM, "a receive");
    *r = (wanted){s->waiting, &s->waiting, from, tag, data, bytes};
    if (r->next) r->next->back = &r->next;
    s->waiting = r;
    *handle = (uint64_t)(uintptr_t)r;
    return TT_OK;
}

static void forget(wanted *r)
{
    if ((*r->back = r->next)) r->next->back = r->back;
    free(r);
}

static message *take(inbox *box, const wanted *r)
{
    message **at = &box->first, *m;

    pthread_mutex_lock(&box->lock);
    while ((m = *at) && (m->from != r->from || m->tag != r->tag)) at = &m->next;
    if (m && !(*at = m->next)) box->last = at;
    pthread_mutex_unlock(&box->lock);
    return m;
}

static tt_err sim_test(tt_world *w, tt_op *op, size_t *came)
{
    wanted *r = (wanted *)(uintptr_t)op->handle;
    message *m;

    if (op->sends) {
        op->done = true;
        return TT_OK;
    }
    if (!(m = take(&((sim *)w->carrier)->boxes[w->rank], r))) return TT_OK;
    *came = m->bytes;
    memcpy(r->data, m->data, m->bytes < r->bytes ? m->bytes : r->bytes);
    free(m);
    forget(r);
    op->done = true;
    return TT_OK;
}

static void sim_leave(tt_world *w, int failed)
{
    sim *s = (sim *)w->carrier;

    (void)failed;
    while (s->waiting) forget(s->waiting);
    *s->kept = s->carrier.kept;
    s->carrier.kept = NULL;
    tt_world_drop(w);
}

/* ---- Running ---- */

typedef struct rank {
    int number, size;
    const int *host;
    double timeout_s;
    inbox *boxes;
    tt_sim_fn fn;
    void *arg;
    tt_err err;
    char message[1024];
    pthread_t thread;
    tt_kept *kept;
} rank;

static void *run_rank(void *arg)
{
    static const tt_carrier_calls calls = {sim_send, sim_recv, sim_test, sim_leave};
    rank *r = arg;
    tt_world *w = calloc(1, sizeof *w);
    sim *s = calloc(1, sizeof *s);
    char host[32];

    if (!w || !s) tt_mem_out(sizeof *s);
    s->carrier = (struct tt_carrier){.calls = &calls};
    s->boxes = r->boxes;
    s->kept = &r->kept;
    *w = (tt_world){.rank = r->number,
                    .size = r->size,
                    .transport = "sim",
                    .timeout_s = r->timeout_s,
                    .threads = true,
                    .carrier = &s->carrier};
    snprintf(host, sizeof host, "sim%d", r->host ? r->host[r->number] : 0);
    if (!(r->err = tt_world_fill(w, host))) r->err = r->fn(w, r->arg);
    if (r->err) snprintf(r->message, sizeof r->message, "%s", tt_message());
    tt_world_leave(w, r->err != TT_OK);
    return NULL;
}

tt_err tt_sim_run(int size, const int *host, double timeout_s, tt_sim_fn fn, void *arg)
{
    rank *ranks = calloc((size_t)size, sizeof *ranks);
    inbox *boxes = calloc((size_t)size, sizeof *boxes);
    tt_err err = TT_OK;
    int started = 0;

    if (!ranks || !boxes) tt_mem_out((size_t)size * sizeof *ranks);
    for (int i = 0; i < size; i++) {
        pthread_mutex_init(&boxes[i].lock, NULL);
        boxes[i].last = &boxes[i].first;
        ranks[i] = (rank){i, size, host, timeout_s, boxes, fn, arg};
    }
    for (; started < size; started++)
        if (pthread_create(&ranks[started].thread, NULL, run_rank, &ranks[started])) {
            err = tt_fail(TT_EENV, "cannot start simulated rank %d", started);
            break;
        }
    for (int i = 0; i < started; i++) pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < started; i++) tt_kept_free(ranks[i].kept);
    for (int i = 0; i < started && !err; i++)
        if (ranks[i].err) err = tt_repeat(ranks[i].err, ranks[i].message);
    for (int i = 0; i < size; i++) {
        for (message *m = boxes[i].first, *next; m; m = next) {
            next = m->next;
            free(m);
        }
        pthread_mutex_destroy(&boxes[i].lock);
    }
    free(ranks);
    free(boxes);
    return err;
}
