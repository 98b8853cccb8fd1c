/* Prefetch: a ring of batches, filled ahead by threads.
 *
 * Step s lives in slot (s - first) % slots. Threads claim steps in order and fill them side by
 * side; the taker waits for the one it needs. One slot more than `depth`, because the batch handed
 * out last stays untouched until the next take.
 *
 *   free --claim (thread)--> filling --done--> full --take--> held --next take--> free
 *
 * (1) claimed - released <= slots: no slot is claimed twice.  (2) a slot's batch is touched by its
 * filler alone until `full`, by the taker alone after. Which thread fills a step changes nothing:
 * filling is pure.
 *
 * What part of a step is wanted may change while batches are made ahead. Each knows its own; one
 * that is not what the taker wants is filled anew when it is taken, so no sample is lost or comes
 * twice. */
#include "data/source.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct slot {
    tt_batch batch;
    int most;   /* samples it has room for */
    tt_cut cut; /* what part of its step it is, or becomes */
    bool full;
    tt_err err;
    char message[512];
} slot;

struct tt_feed {
    const tt_data *data;
    tt_split split;
    tt_order order;
    tt_cut cut;
    tt_row row;
    int threads, slots;
    slot *slot, more;
    pthread_t *thread;
    int started;

    pthread_mutex_t lock;
    pthread_cond_t room, ready;
    int64_t first, claimed, taken, released; /* steps counted from `first` */
    bool stop;
};

static tt_err make_room(tt_feed *f, slot *s, int n)
{
    tt_err err;

    if (n <= s->most) return TT_OK;
    tt_batch_close(&s->batch, s->most, &f->row);
    s->most = 0;
    if ((err = tt_batch_open(n, &f->row, &s->batch))) return err;
    s->most = n;
    return TT_OK;
}

/* Its cut is set. */
static void fill(tt_feed *f, int64_t i)
{
    slot *s = &f->slot[i % f->slots];
    int64_t n = tt_order_size(&f->order, f->first + i), most = tt_order_most(&f->order);
    int64_t a = n * s->cut.first / s->cut.of, b = n * s->cut.end / s->cut.of;

    most = (most * (s->cut.end - s->cut.first) + s->cut.of - 1) / s->cut.of;
    if (!(s->err = make_room(f, s, most > 0 ? (int)most : 1)))
        s->err = tt_data_fill(f->data, f->split, &f->order, f->first + i, (int)a, (int)(b - a),
                              &s->batch);
    if (s->err) snprintf(s->message, sizeof s->message, "%s", tt_message());
}

static bool same_cut(const tt_cut *a, const tt_cut *b)
{
    return a->first == b->first && a->end == b->end && a->of == b->of;
}

static void *work(void *arg)
{
    tt_feed *f = arg;

    pthread_mutex_lock(&f->lock);
    for (;;) {
        while (!f->stop && f->claimed - f->released >= f->slots)
            pthread_cond_wait(&f->room, &f->lock);
        if (f->stop) break;
        int64_t i = f->claimed++; /* keeps (1) */
        f->slot[i % f->slots].cut = f->cut;
        pthread_mutex_unlock(&f->lock);
        fill(f, i);
        pthread_mutex_lock(&f->lock);
        f->slot[i % f->slots].full = true;
        pthread_cond_signal(&f->ready);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static tt_err check(const tt_data *d, tt_split split, const tt_order *o, int64_t first_step,
                    int threads, int depth)
{
    if (!d->part[split].src || o->count != d->part[split].count)
        return tt_fail(TT_EINVAL, "a feed over %lld samples of a split that has %lld",
                       (long long)o->count, (long long)d->part[split].count);
    if (o->batch < 1 || o->batch > INT32_MAX || first_step < 0)
        return tt_fail(TT_EINVAL, "a feed in batches of %lld from step %lld", (long long)o->batch,
                       (long long)first_step);
    if (threads < 0 || threads > 256 || depth < 1 || depth > 1024)
        return tt_fail(TT_EINVAL, "a feed of %d threads, %d steps ahead", threads, depth);
    return TT_OK;
}

tt_err tt_feed_open(const tt_data *d, tt_split split, const tt_order *o, const tt_cut *cut,
                    int64_t first_step, int threads, int depth, tt_feed **out)
{
    tt_feed *f;
    tt_err err;

    *out = NULL;
    if ((err = check(d, split, o, first_step, threads, depth))) return err;
    if (!(f = calloc(1, sizeof *f))) return tt_fail(TT_ENOMEM, "a feed");
    f->data = d;
    f->split = split;
    f->order = *o;
    f->cut = cut ? *cut : (tt_cut){0, 1, 1};
    f->first = first_step;
    f->row = tt_data_row_of(&d->want);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->room, NULL);
    pthread_cond_init(&f->ready, NULL);
    f->slot = calloc(threads ? (size_t)depth + 1 : 1, sizeof *f->slot);
    f->thread = calloc((size_t)threads + 1, sizeof *f->thread);
    if (!f->slot || !f->thread) {
        err = tt_fail(TT_ENOMEM, "a feed of %d threads, %d steps ahead", threads, depth);
        goto out;
    }
    int64_t parts = f->cut.end - f->cut.first;
    int64_t most = ((int64_t)tt_order_most(o) * parts + f->cut.of - 1) / f->cut.of;
    for (int i = 0; i < (threads ? depth + 1 : 1); i++, f->slots++)
        if ((err = make_room(f, &f->slot[i], most > 0 ? (int)most : 1))) goto out;
    f->threads = threads;
    for (; f->started < threads; f->started++)
        if (pthread_create(&f->thread[f->started], NULL, work, f)) {
            err = tt_fail(TT_EENV, "cannot start data thread %d of %d", f->started + 1, threads);
            goto out;
        }
    *out = f;
    f = NULL;
out:
    tt_feed_close(f);
    return err;
}

tt_err tt_feed_take(tt_feed *f, const tt_batch **out)
{
    slot *s = &f->slot[f->taken % f->slots];

    *out = NULL;
    if (!f->threads) {
        s->cut = f->cut;
        fill(f, f->taken);
    } else {
        pthread_mutex_lock(&f->lock);
        if (f->released < f->taken) { /* the batch handed out before is given back */
            f->slot[f->released % f->slots].full = false;
            f->released++;
            pthread_cond_signal(&f->room);
        }
        while (!s->full) pthread_cond_wait(&f->ready, &f->lock);
        pthread_mutex_unlock(&f->lock);
        if (!same_cut(&s->cut, &f->cut)) { /* made ahead for another part */
            s->cut = f->cut;
            fill(f, f->taken);
        }
    }
    f->taken++;
    if (s->err) return tt_repeat(s->err, s->message);
    *out = &s->batch;
    return TT_OK;
}

tt_err tt_feed_more(tt_feed *f, int first, int n, const tt_batch **out)
{
    tt_err err;

    *out = &f->more.batch;
    if ((err = make_room(f, &f->more, n > 0 ? n : 1))) return err;
    return tt_data_fill(f->data, f->split, &f->order, f->first + f->taken - 1, first, n,
                        &f->more.batch);
}

void tt_feed_recut(tt_feed *f, const tt_cut *cut)
{
    if (same_cut(&f->cut, cut)) return; /* who takes is the only one who writes to it */
    pthread_mutex_lock(&f->lock);
    f->cut = *cut;
    pthread_mutex_unlock(&f->lock);
}

void tt_feed_close(tt_feed *f)
{
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_broadcast(&f->room);
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < f->started; i++) pthread_join(f->thread[i], NULL);
    for (int i = 0; i < f->slots; i++) tt_batch_close(&f->slot[i].batch, f->slot[i].most, &f->row);
    tt_batch_close(&f->more.batch, f->more.most, &f->row);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->room);
    pthread_cond_destroy(&f->ready);
    free(f->slot);
    free(f->thread);
    free(f);
}
