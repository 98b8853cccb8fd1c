/* backup: the last units of each rank may be computed by another rank of its node too, and who is
 * done first provides them. Bits are the same whoever does, so sums stay exact.
 *
 * The j-th unit from the end of rank l is backed up by rank l + 1 + j of the node, round about: who
 * falls behind is helped by several, with a unit each. A helper begins when it is done with its own
 * units, and only with one that its owner has not begun, or has been at for longer than it should.
 *
 * Each such unit has a claim in the memory of the node's leader:
 *
 *   free --owner or helper begins--> begun --first to be done--> provided
 *
 * An owner that comes to a unit whose helper has begun gives it as much time as it would take
 * itself, and then computes it too.
 *
 * (1) A claim is taken once in a step, by compare and swap, after the gradient of its unit is
 * whole. (2) Who has not taken it changes nothing: it gives up between two layers when it sees
 * that. (3) A seat says that its gradients are ready when all its units are provided, by itself or
 * by others. So when all are ready, who provides what does not change any more, and sums take each
 * unit from there. Such units are not folded with others of their seat, and their gradients not
 * announced in parts. */
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"

int backup_most(const tt_strategy *s)
{
    return s->plan.exact && s->world->size > 1 ? s->plan.backup : 0;
}

/* Of each rank of our node. */
static int count_here(const tt_strategy *s)
{
    int others = s->nodes[s->node].ranks - 1, most = backup_most(s);
    return most < others ? most : others;
}

/* The seats of a rank of the node. */
static range seats_of(const tt_strategy *s, int local)
{
    range r = {s->nodes[s->node].seats.a, 0};

    for (int l = 0; l < local; l++) r.a += node_threads(s, l);
    r.b = r.a + node_threads(s, local);
    return r;
}

int backup_alone(const tt_strategy *s, int local, int index)
{
    int last = s->seats[index].units.b - 1,
        first = s->seats[seats_of(s, local).b - 1].units.b - count_here(s);
    return first < last ? first : last;
}

void backup_plan(tt_strategy *s, const range *term, int terms)
{
    int ranks = s->nodes[s->node].ranks, count = count_here(s);

    if (!backup_most(s)) return;
    if (!s->backups) s->backups = take((size_t)(ranks * count), sizeof *s->backups);
    for (int u = 0; u < s->units; u++) s->backup_of[u] = NULL;
    s->backup_count = 0;
    for (int j = 0; j < count; j++)
        for (int l = 0; l < ranks; l++) {
            range seats = seats_of(s, l);
            int u = s->seats[seats.b - 1].units.b - 1 - j;
            if (u < s->seats[seats.a].units.a || !s->present[u]) continue;
            backup *b = &s->backups[s->backup_count++];
            *b = (backup){.unit = u, .owner = l, .helper = (l + 1 + j) % ranks};
            b->spare = s->buffers - 1 - j;
            while (b->term < terms && (term[b->term].a != u || term[b->term].b != u + 1)) b->term++;
            TT_ASSERT(b->term < terms);
            s->backup_of[u] = b;
        }
}

/* ---- Claims ---- */

static claim *claim_of(const tt_strategy *s, const backup *b)
{
    return (claim *)(part_at(s, 0) + s->layouts[0].claims) + b->unit;
}

/* Its rank in the node, plus one; 0: nobody has provided it yet. */
static int provider_of(const tt_strategy *s, const backup *b)
{
    uint64_t v = atomic_load_explicit(&claim_of(s, b)->provider, memory_order_acquire);
    return v >> 16 == s->turn ? (int)(v & 0xffff) : 0;
}

bool backup_provided(const tt_strategy *s, const backup *b)
{
    return provider_of(s, b) > 0;
}

bool backup_helped(const tt_strategy *s, const backup *b)
{
    return atomic_load(&claim_of(s, b)->helped) == s->turn;
}

void backup_begin(const tt_strategy *s, const backup *b)
{
    claim *c = claim_of(s, b);

    atomic_store(&c->since_us, (uint64_t)(tt_clock_s() * 1e6));
    atomic_store_explicit(&c->begun, s->turn, memory_order_release);
}

bool backup_take(const tt_strategy *s, const backup *b)
{
    claim *c = claim_of(s, b);
    uint64_t was = atomic_load(&c->provider);

    return was >> 16 != s->turn &&
           atomic_compare_exchange_strong(&c->provider, &was,
                                          (uint64_t)s->turn << 16 | (uint64_t)(s->local + 1));
}

/* ---- Helping ---- */

bool backup_left(const tt_strategy *s)
{
    for (int i = 0; i < s->backup_count; i++)
        if (s->backups[i].helper == s->local && !backup_provided(s, &s->backups[i])) return true;
    return false;
}

backup *backup_next(tt_strategy *s, double patience_s, double until)
{
    for (int i = 0; i < s->backup_count; i++) {
        backup *b = &s->backups[i];
        claim *c = claim_of(s, b);
        if (b->helper != s->local || b->tried == s->turn || backup_provided(s, b)) continue;
        bool begun = atomic_load_explicit(&c->begun, memory_order_acquire) == s->turn;
        double since = (double)atomic_load(&c->since_us) * 1e-6;
        if (begun ? !(tt_clock_s() - since > patience_s) : tt_clock_s() < until) continue;
        b->tried = s->turn;
        atomic_store(&c->helped, s->turn);
        return b;
    }
    return NULL;
}

const float *const *backup_terms(const tt_strategy *s, const float **room)
{
    if (!s->backup_count) return s->term;
    memcpy(room, s->term, (size_t)s->node_sum.terms * sizeof *room);
    for (int i = 0; i < s->backup_count; i++) {
        const backup *b = &s->backups[i];
        int from = provider_of(s, b) - 1;
        TT_ASSERT(from == b->owner || from == b->helper); /* keeps (3) */
        if (from != b->owner) room[b->term] = grad_at(s, from, 0, b->spare);
    }
    return room;
}
