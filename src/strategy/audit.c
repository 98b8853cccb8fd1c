/* audit: do all ranks have the same numbers?
 *
 * After each step every rank hashes its new weights, and tells the hash to all with the next step:
 * memory or a CPU that has changed a bit is found before the step after it is applied anywhere. The
 * hash is a sum, over all 32-bit words, of the word times an odd multiplier that follows from its
 * place: any word that changes changes it, and it does not matter who adds what in which order.
 * Stores of a CPU that is wrong for all alike, and what is wrong in the same way on most ranks, it
 * does not find. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"
#include "strategy/isa.h"

typedef uint32_t __attribute__((may_alias)) word;

enum { LANES = 16 }; /* what the compiler makes vectors of */

/* Mixed in 32 bits, which vectors multiply well; the product and the sum are of 64. */
INLINE uint64_t times(uint32_t x, uint32_t at)
{
    uint32_t m = at * 0x9e3779b1u;

    m ^= m >> 15;
    m *= 0x85ebca6bu;
    m ^= m >> 13;
    return (uint64_t)x * (m | 1);
}

INLINE uint64_t add_words_body(const word *x, uint32_t from, int64_t n)
{
    uint64_t lane[LANES] = {0}, sum = 0;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            lane[k] += times(x[i + k], from + (uint32_t)i + (uint32_t)k);
    for (; i < n; i++) sum += times(x[i], from + (uint32_t)i);
    for (int k = 0; k < LANES; k++) sum += lane[k];
    return sum;
}

#define LOOPS(X, isa, target)                                                                      \
    X(isa, target, uint64_t, add_words, (const word *x, uint32_t from, int64_t n), (x, from, n))
ISA_SETS

static uint64_t hash_end(uint64_t sum)
{
    uint64_t hash = tt_mix(sum);
    return hash ? hash : 1; /* 0: not known */
}

/* ---- The hash of the weights ---- */

void hash_share(tt_strategy *s, int me)
{
    int threads = tt_crew_size(s->crew);
    int64_t a = s->size * me / threads, b = s->size * (me + 1) / threads;

    s->hash_part[me] = best_loops()->add_words((const word *)s->hashed + a, (uint32_t)a, b - a);
}

uint64_t hash_join(tt_strategy *s, uint64_t rows)
{
    uint64_t sum = 0;

    for (int i = 0; i < tt_crew_size(s->crew); i++) sum += s->hash_part[i];
    return hash_end(sum + rows);
}

static void hash_member(void *arg, int me)
{
    hash_share(arg, me);
}

uint64_t tt_strategy_hash(tt_strategy *s, const float *w, uint64_t rows)
{
    s->hashed = w;
    tt_team_run(tt_crew_team(s->crew), hash_member, s);
    return hash_join(s, rows);
}

void hash_settle(tt_strategy *s)
{
    s->row.hash = tt_strategy_hash(s, w_at(s, s->local, s->half), rows_hash(s));
}

uint64_t tt_strategy_hashed(const tt_strategy *s)
{
    return s->row.hash;
}

/* Not of what others may just be taking from us: they would all have it, and agree. */
void hash_flip(tt_strategy *s, float *w)
{
    int piece = s->piece_count - 1;

    while (piece > 0 && sharded(s) && owns(s, piece)) piece--;
    ((word *)w)[tt_optim_piece(s->optim, piece).at] ^= 1u << 12;
}

/* ---- Whose is another one? ---- */

static int count_of(const uint64_t *hash, int n, uint64_t one)
{
    int count = 0;

    for (int r = 0; r < n; r++) count += hash[r] == one;
    return count;
}

/* The most frequent; 0: another one is as frequent, and nobody can be named. */
static uint64_t right_one(const uint64_t *hash, int n)
{
    uint64_t right = hash[0];

    for (int r = 1; r < n; r++)
        if (count_of(hash, n, hash[r]) > count_of(hash, n, right)) right = hash[r];
    for (int r = 0; r < n; r++)
        if (hash[r] != right && count_of(hash, n, hash[r]) == count_of(hash, n, right)) return 0;
    return right;
}

tt_err hash_compare(tt_strategy *s, const uint64_t *hash)
{
    const tt_world *w = s->world;
    uint64_t right = hash[0], other = 0;
    int first = -1;
    tt_str odd = {0};
    tt_err err;

    if (count_of(hash, w->size, right) == w->size) return TT_OK;
    right = right_one(hash, w->size);
    for (int r = 0; r < w->size; r++) {
        if (!right && hash[r] != hash[0] && !other) other = hash[r];
        s->odd[r] = right && hash[r] != right;
        if (!s->odd[r]) continue;
        if (first < 0) first = r;
        tt_str_add(&odd, "%s%d (%s)", odd.size ? ", " : "", r, w->peer[r].name);
    }
    if (right)
        err = tt_fail(TT_EPEER,
                      "after step %lld the weights of rank %s are not those of the others: their "
                      "hash is %016llx, elsewhere %016llx",
                      (long long)s->step, odd.data, (unsigned long long)hash[first],
                      (unsigned long long)right);
    else
        err = tt_fail(TT_EPEER,
                      "after step %lld not all ranks have the same weights, and nobody can say "
                      "whose are right: hashes %016llx and %016llx, of as many ranks each",
                      (long long)s->step, (unsigned long long)hash[0], (unsigned long long)other);
    tt_str_free(&odd);
    return err;
}

tt_err tt_strategy_agree(tt_strategy *s)
{
    const tt_world *w = s->world;
    uint64_t *all;
    tt_err err;

    if (w->size == 1) return TT_OK;
    all = take((size_t)w->size, sizeof *all);
    if (!(err = tt_group_gather(tt_world_all(w), &s->row.hash, sizeof *all, all))) {
        int64_t before = s->step;
        s->step++; /* it is the state after the step, not before it */
        err = hash_compare(s, all);
        s->step = before;
    }
    free(all);
    return err;
}

void tt_strategy_blame(tt_strategy *s, int rank)
{
    s->odd[rank] = true;
}

bool tt_strategy_odd(const tt_strategy *s, int rank)
{
    return s->odd && s->odd[rank];
}

/* ---- Gradients that two ranks compute ---- */

static int owner_of(const tt_strategy *s, int u)
{
    int i = 0;

    while (u < s->seats[i].units.a || u >= s->seats[i].units.b) i++;
    return s->seats[i].rank;
}

tt_err audit_open(tt_strategy *s)
{
    size_t flat = (size_t)s->size * sizeof(float);

    if (!(s->plan.audit > 0) || s->world->size == 1) return TT_OK;
    if (!(s->audit_grad = tt_block_alloc(flat)))
        return tt_fail(TT_ENOMEM, "no memory for the gradient of audits");
    memset(s->audit_grad, 0, flat);
    s->auditor = take((size_t)s->units, sizeof *s->auditor);
    s->audits = take((size_t)s->world->size, sizeof *s->audits);
    return TT_OK;
}

void audit_close(tt_strategy *s)
{
    if (s->audit_grad) tt_block_free(s->audit_grad, (size_t)s->size * sizeof(float));
    free(s->auditor);
    free(s->audits);
}

/* Any rank but its owner; where hosts have rows of their own, one of the same host. -1: there is
 * none. */
static int pick_auditor(const tt_strategy *s, int u, uint32_t chance)
{
    const tt_world *w = s->world;
    int owner = owner_of(s, u), count = 0;

    for (int pass = 0; pass < 2; pass++) {
        int left = count ? (int)(chance % (uint32_t)count) : 0;
        for (int r = 0; r < w->size; r++) {
            if (r == owner || (s->quarters && w->peer[r].host != w->peer[owner].host)) continue;
            if (pass && !left--) return r;
            count += !pass;
        }
    }
    return -1;
}

void audit_begin(tt_strategy *s)
{
    uint64_t key = tt_random_key(s->seed, "audit");

    memset(s->audits, 0, (size_t)s->world->size * sizeof *s->audits);
    for (int u = 0; u < s->units; u++) {
        tt_u128 chance = tt_philox(key, (uint64_t)s->step, (uint64_t)u);
        bool chosen = s->present[u] && chance.v[0] < s->plan.audit * 4294967296.0;
        s->auditor[u] = chosen ? pick_auditor(s, u, chance.v[1]) : -1;
        if (s->auditor[u] >= 0 && s->audits[s->auditor[u]]++ >= AUDITS_MOST) s->auditor[u] = -1;
    }
}

static uint64_t hash_grad(const tt_strategy *s, const float *grad)
{
    return hash_end(best_loops()->add_words((const word *)grad, 0, s->size));
}

void audit_own(tt_strategy *s, int u, float *grad)
{
    tt_result *r = results_of(s) + u;

    if (TT_FAILPOINT("step.flip_gradient")) hash_flip(s, grad);
    r->hash = hash_grad(s, grad);
    r->rank = s->world->rank;
}

/* A unit of another rank, from its samples on. Within a step (`reduced` is not NULL) others may
 * wait for what this rank has to do meanwhile. */
static tt_err run_again(tt_strategy *s, int u, int *reduced, uint64_t *hash)
{
    tt_run *run = tt_crew_run(s->crew, 0);
    const tt_batch *in;
    int first, count;
    tt_yield y;
    tt_err err;

    unit_samples(s, u, &first, &count);
    if ((err = s->fetch(s->who, first, count, &in))) return err;
    tt_run_begin(run, TT_PASS_TRAIN, in, s->audit_grad, false, s->seed);
    do {
        tt_run_advance(run, &y);
        if (reduced && y.kind == TT_GRAD_READY) look_in(s, 0, reduced);
    } while (y.kind != TT_PASS_DONE);
    *hash = hash_grad(s, s->audit_grad);
    return TT_OK;
}

void audit_others(tt_strategy *s, int *reduced)
{
    row *told = rows_of(s) + s->nodes[s->node].places.a + s->local;
    int count = 0;
    tt_err err;

    for (int u = 0; u < s->units; u++) {
        if (s->auditor[u] != s->world->rank) continue;
        if (!(err = run_again(s, u, reduced, &told->checks[count++]))) continue;
        strategy_fail(s,
                      tt_context(err, "step %lld, audit of grain %d", (long long)s->step + 1, u));
        return;
    }
}

bool audit_compare(tt_strategy *s)
{
    memset(s->audits, 0, (size_t)s->world->size * sizeof *s->audits);
    for (int h = 0; h < s->node_count; h++)
        for (int l = 0; l < s->nodes[h].ranks; l++)
            for (int u = 0; u < s->units; u++) {
                const tt_result *own = results_of(s) + u;
                int rank = s->nodes[h].rank[l];
                if (s->auditor[u] != rank) continue;
                uint64_t other = (rows_of(s) + s->nodes[h].places.a + l)->checks[s->audits[rank]++];
                if (own->hash == other || (s->stats.doubt.unit >= 0 && s->stats.doubt.unit < u))
                    continue;
                s->stats.doubt =
                    (tt_doubt){u, {own->rank, rank}, {own->hash, other}}; /* the first there is */
            }
    return s->stats.doubt.unit < 0;
}

tt_err tt_strategy_again(tt_strategy *s, int unit, uint64_t *hash)
{
    const tt_world *w = s->world;

    *hash = 0;
    if (s->quarters && w->peer[s->stats.doubt.rank[0]].host != w->host) return TT_OK;
    return run_again(s, unit, NULL, hash);
}
