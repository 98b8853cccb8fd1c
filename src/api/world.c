/* Worlds of processes for programs, and sums over them.
 *
 * All ranks make the same calls, but nobody checks a stranger's program except us. So:
 *   1 A call that is new (by kind, size and place) is first compared between all ranks; one that
 *     was seen before is not, so that a training loop does not pay for it. The list of calls seen
 *     follows from the calls alone: ranks that did the same have the same list.
 *   2 Vectors in memory of ours lie at the same place in blocks of the same size on every rank, so
 *     that even ranks that disagree never reach past the memory of another.
 *   3 Where calls are compared anyway, a rank that cannot go on says so instead of staying away.
 *   4 TT_EPEER ends a world. It is remembered, and no message is sent any more. */
#include <stdlib.h>
#include <string.h>

#include "inner.h"

/* ---- Calls that must be the same everywhere ---- */

static const struct {
    const char *name, *counts; /* what `count` and `place` are, NULL: not to be shown */
    const char *place;
} call_names[] = {
    [CALL_BARRIER] = {"tutti_world_barrier", NULL, NULL},
    [CALL_SUM] = {"tutti_world_sum", "numbers", "memory at another place"},
    [CALL_MEAN] = {"tutti_world_mean", "numbers", "memory at another place"},
    [CALL_BCAST] = {"tutti_world_bcast", "bytes", "another root"},
    [CALL_ALLOC] = {"tutti_world_alloc", "numbers", NULL},
    [CALL_OPTIM] = {"tutti_optim_open", "parameters", "another text or other tensors"},
    [CALL_STEP] = {"tutti_optim_step", "steps done", "memory at another place"},
    [CALL_SAVE] = {"tutti_world_save", "as the step", "other tensors"},
    [CALL_LATEST] = {"tutti_world_latest", NULL, NULL},
    [CALL_RESTORE] = {"tutti_world_restore", "as the step", "other tensors"},
};

/* Memory for vectors: one block of each rank, cut up in order. */
typedef struct pool {
    tt_summer *summer;
    char *memory;
    size_t bytes, used;
} pool;

enum { SEEN = 64, LINE = 64, LEAST_POOL = 1 << 20 };

struct tutti_world {
    tt_world *inner;
    bool borrowed;    /* inner is not ours to leave */
    double timeout_s; /* as the program wants it; a trainer waits as its job says */
    tt_err lost;      /* keeps (4) */
    char *message;
    call seen[SEEN];
    call *calls; /* of each rank: the last that was compared */
    pool *pools;
    int pool_count;
};

static const tt_group *all_of(const tutti_world *w)
{
    return tt_world_all(w->inner);
}

tt_err world_enter(tutti_world *w, const char *what)
{
    if (!w) return tt_fail(TT_EINVAL, "%s: there is no world: NULL was given", what);
    if (w->lost) return tt_repeat(w->lost, w->message);
    w->inner->timeout_s = w->timeout_s;
    return TT_OK;
}

tt_err world_done(tutti_world *w, tt_err err)
{
    if (!w || err != TT_EPEER || w->lost) return err;
    w->lost = err;
    w->message = strdup(tt_message());
    if (!w->message) tt_mem_out(strlen(tt_message()));
    return err;
}

tutti_status world_leave_call(tutti_world *w, call_kind kind, tt_err err)
{
    if (w && err == TT_EPEER && !w->lost) tt_context(err, "%s", call_names[kind].name);
    return status_of(world_done(w, err));
}

static tt_err fail_differs(const tutti_world *w, int rank)
{
    const call *x = &w->calls[rank], *y = &w->calls[0];
    const char *host = w->inner->peer[rank].name;
    call_kind kind = (call_kind)y->kind, other = (call_kind)x->kind;

    if (x->kind < 0 || x->kind >= TT_COUNT(call_names) || y->kind < 0 ||
        y->kind >= TT_COUNT(call_names))
        return tt_fail(TT_EPEER, "rank %d (%s) or rank 0 says what is no call", rank, host);
    if (kind != other)
        return tt_fail(TT_EINVAL,
                       "rank %d (%s) calls %s while rank 0 calls %s: all ranks make the same calls "
                       "in the same order",
                       rank, host, call_names[other].name, call_names[kind].name);
    if (x->count != y->count)
        return tt_fail(TT_EINVAL, "%s: rank %d (%s) has %lld %s, rank 0 has %lld",
                       call_names[kind].name, rank, host, (long long)x->count,
                       call_names[kind].counts, (long long)y->count);
    return tt_fail(TT_EINVAL, "%s: rank %d (%s) gives %s than rank 0", call_names[kind].name, rank,
                   host, call_names[kind].place);
}

static bool is_same(const call *a, const call *b)
{
    return a->kind == b->kind && a->count == b->count && a->place == b->place;
}

tt_err world_compare(tutti_world *w, call mine, tt_err trouble)
{
    const call *all = w->calls;
    bool troubled = false;
    tt_err err;

    if (w->inner->size == 1) {
        w->calls[0] = mine;
        return trouble;
    }
    mine.trouble = trouble;
    if ((err = tt_group_gather(all_of(w), &mine, sizeof mine, w->calls))) return err;
    for (int r = 0; r < w->inner->size; r++) {
        if (all[r].kind != all[0].kind) return fail_differs(w, r);
        troubled |= all[r].trouble != 0;
    }
    if (troubled) return world_agree(w, trouble);
    for (int r = 1; r < w->inner->size; r++)
        if (!is_same(&all[r], &all[0])) return fail_differs(w, r);
    return TT_OK;
}

/* The same for calls that come again and again: keeps (1). */
static tt_err compare_once(tutti_world *w, call mine)
{
    uint64_t mix = ((uint64_t)mine.kind * 31 + (uint64_t)mine.count) * 31 + (uint64_t)mine.place;
    call *seen = &w->seen[mix * 0x9e3779b97f4a7c15u >> 58];
    tt_err err;

    _Static_assert(SEEN == 1 << 6, "as many as the bits that are left");
    if (is_same(seen, &mine)) return TT_OK;
    if (!(err = world_compare(w, mine, TT_OK))) *seen = mine;
    return err;
}

tt_err world_agree(tutti_world *w, tt_err mine)
{
    return w->inner->size > 1 ? tt_group_agree(all_of(w), mine) : mine;
}

tt_err world_spread(tutti_world *w, void *data, size_t bytes)
{
    return tt_group_bcast(all_of(w), 0, data, bytes);
}

tt_world *world_inner(const tutti_world *w)
{
    return w ? w->inner : NULL;
}

const call *world_call(const tutti_world *w, int rank)
{
    return &w->calls[rank];
}

const char *world_call_name(call_kind kind)
{
    return call_names[kind].name;
}

/* ---- Joining and leaving ---- */

tutti_world *world_wrap(tt_world *inner)
{
    tutti_world *w = calloc(1, sizeof *w);

    if (!w || !(w->calls = calloc((size_t)inner->size, sizeof *w->calls))) tt_mem_out(sizeof *w);
    w->inner = inner;
    w->borrowed = true;
    w->timeout_s = inner->timeout_s;
    for (int i = 0; i < SEEN; i++) w->seen[i].kind = -1;
    return w;
}

tutti_status tutti_world_join(tutti_world **out)
{
    static bool joined;
    bool launched = tt_world_started().by != NULL;
    const tt_kernels *const *tried;
    tt_world *inner;
    tt_err err;

    if (!out) return status_of(tt_fail(TT_EINVAL, "tutti_world_join: out is NULL"));
    *out = NULL;
    if (launched && joined)
        return status_of(tt_fail(TT_EINVAL, "tutti_world_join: this process has joined its world "
                                            "before: MPI can be started only once"));
    joined |= launched;
    if (launched) tt_kernels_with(TT_IN_BF16, &tried); /* in child processes: before MPI begins */
    if ((err = tt_world_join(&inner))) return status_of(err);
    *out = world_wrap(inner);
    (*out)->borrowed = false;
    return TUTTI_OK;
}

enum { EXIT_PEER = 4 }; /* as the program `tutti` has it */

void tutti_world_leave(tutti_world *w, int failed)
{
    tt_err err;

    if (!w) return;
    if (w->lost && !failed) failed = EXIT_PEER;
    w->inner->timeout_s = w->timeout_s;
    if (!failed && !w->borrowed && (err = tt_group_barrier(all_of(w)))) {
        tt_warn("rank %d, leaving the world: %s", w->inner->rank, tt_message());
        failed = EXIT_PEER;
    }
    for (int i = 0; i < w->pool_count; i++) tt_summer_close(w->pools[i].summer);
    if (!w->borrowed) tt_world_leave(w->inner, failed);
    free(w->pools);
    free(w->calls);
    free(w->message);
    free(w);
}

int tutti_world_rank(const tutti_world *w)
{
    return w ? w->inner->rank : 0;
}
int tutti_world_size(const tutti_world *w)
{
    return w ? w->inner->size : 0;
}
int tutti_world_local_rank(const tutti_world *w)
{
    return w ? w->inner->local : 0;
}
int tutti_world_local_size(const tutti_world *w)
{
    return w ? w->inner->local_size : 0;
}

tutti_status tutti_world_timeout(tutti_world *w, double seconds)
{
    tt_err err = world_enter(w, "tutti_world_timeout");

    if (!err && !(seconds > 0 && seconds <= 1e9))
        err = tt_fail(TT_EINVAL, "tutti_world_timeout: %g seconds: it must be above 0", seconds);
    if (!err) w->timeout_s = seconds;
    return status_of(err);
}

/* ---- Small things ---- */

tutti_status tutti_world_barrier(tutti_world *w)
{
    tt_err err = world_enter(w, "tutti_world_barrier");

    if (!err) err = world_compare(w, (call){.kind = CALL_BARRIER}, TT_OK);
    return world_leave_call(w, CALL_BARRIER, err);
}

tutti_status tutti_world_agree(tutti_world *w, tutti_status mine)
{
    tt_err err;

    if (w && w->lost && mine) return mine; /* the message is that of `mine` */
    if ((err = world_enter(w, "tutti_world_agree"))) return status_of(err);
    return status_of(world_done(w, world_agree(w, (tt_err)mine)));
}

tutti_status tutti_world_bcast(tutti_world *w, int root, void *data, size_t bytes)
{
    tt_err err = world_enter(w, "tutti_world_bcast");

    if (!err && (root < 0 || root >= w->inner->size))
        err = tt_fail(TT_EINVAL, "tutti_world_bcast: root %d of a world of %d: ranks count from 0",
                      root, w->inner->size);
    if (!err && bytes && !data) err = tt_fail(TT_EINVAL, "tutti_world_bcast: data is NULL");
    if (!err)
        err = compare_once(w, (call){.kind = CALL_BCAST, .count = (int64_t)bytes, .place = root});
    if (!err) err = tt_group_bcast(all_of(w), root, data, bytes);
    return world_leave_call(w, CALL_BCAST, err);
}

/* ---- Sums ---- */

static tt_err open_pool(tutti_world *w, size_t bytes)
{
    pool *pools = realloc(w->pools, (size_t)(w->pool_count + 1) * sizeof *pools), p = {0};
    tt_err err;

    if (!pools) tt_mem_out(sizeof *pools);
    w->pools = pools;
    if ((err = tt_summer_open(all_of(w), bytes, &p.summer))) return err;
    p.memory = tt_summer_memory(p.summer);
    p.bytes = bytes;
    w->pools[w->pool_count++] = p;
    return TT_OK;
}

/* The pool in which n floats at x lie, NULL: in none. */
static pool *pool_of(const tutti_world *w, const float *x, int64_t n)
{
    for (pool *p = w->pools; p < w->pools + w->pool_count; p++) {
        uintptr_t at = (uintptr_t)x, first = (uintptr_t)p->memory;
        if (p->bytes && at >= first && at - first <= p->used &&
            (size_t)n <= (p->used - (at - first)) / sizeof *x)
            return p;
    }
    return NULL;
}

int64_t world_place(const tutti_world *w, const float *x, int64_t n)
{
    const pool *p = pool_of(w, x, n);

    return p ? (int64_t)(p - w->pools) << 56 | ((const char *)x - p->memory) : -1;
}

tt_err world_sum(tutti_world *w, float *x, int64_t n, float scale)
{
    pool *p = pool_of(w, x, n);
    tt_err err;

    if (w->inner->size == 1 || !n) return TT_OK;
    if (!p) { /* any will do: it goes by way of the summer's own windows */
        if (!w->pool_count && (err = open_pool(w, 0))) return err;
        p = w->pools;
    }
    return tt_summer_run(p->summer, x, n, scale);
}

static tutti_status sum_call(tutti_world *w, float *x, int64_t n, call_kind kind)
{
    const char *name = call_names[kind].name;
    tt_err err = world_enter(w, name);

    if (!err && (n < 0 || n > INT64_MAX / 8))
        err = tt_fail(TT_EINVAL, "%s: %lld numbers", name, (long long)n);
    if (!err && n && !x) err = tt_fail(TT_EINVAL, "%s: x is NULL", name);
    if (!err)
        err = compare_once(w, (call){.kind = kind, .count = n, .place = world_place(w, x, n)});
    if (!err) err = world_sum(w, x, n, kind == CALL_MEAN ? 1 / (float)w->inner->size : 1);
    return world_leave_call(w, kind, err);
}

tutti_status tutti_world_sum(tutti_world *w, float *x, int64_t n)
{
    return sum_call(w, x, n, CALL_SUM);
}

tutti_status tutti_world_mean(tutti_world *w, float *x, int64_t n)
{
    return sum_call(w, x, n, CALL_MEAN);
}

/* Room for `bytes` more, in the last pool or a new one. Each new one is at least as large as all
 * before it: many small vectors make few pools, and what nobody touches costs no memory. */
static tt_err make_room(tutti_world *w, size_t bytes, pool **out)
{
    pool *last = w->pool_count ? &w->pools[w->pool_count - 1] : NULL;
    size_t grow = LEAST_POOL;
    tt_err err = TT_OK;

    if (!last || last->bytes - last->used < bytes) {
        for (int i = 0; i < w->pool_count; i++) grow += w->pools[i].bytes;
        if (bytes > tt_mem_free() / (size_t)w->inner->local_size)
            err = tt_fail(TT_ENOMEM, "no memory for vectors of %zu bytes on %d ranks of a host",
                          bytes, w->inner->local_size);
        if ((err = world_agree(w, err)) || (err = open_pool(w, grow > bytes ? grow : bytes)))
            return err;
        last = &w->pools[w->pool_count - 1];
    }
    *out = last;
    return TT_OK;
}

tutti_status tutti_world_alloc(tutti_world *w, int64_t n, float **out)
{
    tt_err err = world_enter(w, "tutti_world_alloc"), bad = TT_OK;
    size_t bytes = tt_mul_size(n < 0 ? 0 : (size_t)n, sizeof **out);
    pool *p = NULL;

    if (out) *out = NULL;
    if (err) return status_of(err);
    if (!out || n < 1)
        bad = tt_fail(TT_EINVAL, "tutti_world_alloc: %lld numbers, or out is NULL", (long long)n);
    else if (bytes > PTRDIFF_MAX / 2)
        bad = tt_fail(TT_ENOMEM, "no memory for a vector of %lld numbers", (long long)n);
    bytes = (bytes + LINE - 1) / LINE * LINE;
    err = world_compare(w, (call){.kind = CALL_ALLOC, .count = n}, bad);
    if (!err && !(err = make_room(w, bytes, &p))) {
        *out = (float *)(p->memory + p->used);
        p->used += bytes;
    }
    return world_leave_call(w, CALL_ALLOC, err);
}
