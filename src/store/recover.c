#include "recover.h"

#include <stdlib.h>

#ifndef TT_PLANT /* tests plant mistakes here, and see to it that they are found: tests/sim */
#define PLANTED(bug) false
#endif

/* ---- choosing ---- */

static int by_int(int a, int b)
{
    return (a > b) - (a < b);
}

/* Newest first; then by cut, part and place, so that the order of finding plays no part. */
static int by_age(const void *x, const void *y)
{
    const tt_found *a = x, *b = y;
    int c = tt_label_compare(b->label, a->label);

    if (!c) c = by_int(a->parts, b->parts);
    if (!c) c = by_int(a->part, b->part);
    if (!c) c = by_int(a->host, b->host);
    if (!c) c = by_int(a->slot, b->slot);
    return c ? c : by_int(b->current, a->current);
}

static bool makes_sense(const tt_found *f)
{
    return !f->bad && f->label.step >= 0 && f->parts > 0 && f->part >= 0 && f->part < f->parts;
}

/* Halves of one label stand together: found[at .. end). */
static int end_of_label(const tt_found *found, int count, int at)
{
    int end = at + 1;

    while (end < count && tt_label_compare(found[end].label, found[at].label) == 0) end++;
    return end;
}

static bool takes_part(const tt_found *f, uint64_t hash)
{
    return makes_sense(f) && (!f->hash || !hash || f->hash == hash);
}

static bool same_slot(const tt_found *a, int host, int slot)
{
    return a->host == host && a->slot == slot;
}

/* Who holds no part (chief) has the weights all the same. */
static bool has_vote(const tt_found *f)
{
    return f->hash && !f->bad && f->label.step >= 0;
}

/* A slot has one vote, by its current half, which stands before the other: that may be a wrong one
 * of the same label, beside the copy by which it was repaired. */
static int votes(const tt_found *found, int at, int end, uint64_t hash)
{
    int n = 0;

    for (int i = at; i < end; i++) {
        const tt_found *f = &found[i];
        bool second = false;
        for (int k = at; k < i && !second; k++)
            second = has_vote(&found[k]) && same_slot(&found[k], f->host, f->slot);
        n += f->hash == hash && has_vote(f) && !second;
    }
    return n;
}

/* The first cut of which all parts are there with this hash (0: any), in found[at .. end); 0: none.
 * By parts and part they are sorted already. */
static int complete_parts(const tt_found *found, int at, int end, uint64_t hash)
{
    int parts = 0, have = 0;

    for (int i = at; i < end; i++) {
        if (!takes_part(&found[i], hash)) continue;
        if (PLANTED(PLANT_INCOMPLETE)) return found[i].parts;
        if (found[i].parts != parts) parts = found[i].parts, have = 0;
        if (found[i].part == have) have++;
        if (have == parts) return parts;
    }
    return 0;
}

/* The most frequent hash of a label. */
static uint64_t right_hash(const tt_found *found, int at, int end, bool *disputed)
{
    uint64_t best = 0;
    int best_votes = 0;

    *disputed = false;
    for (int i = at; i < end; i++) {
        uint64_t hash = found[i].hash;
        int n;
        if (found[i].suspect) {
            *disputed = true;
            break;
        }
        if (hash == best || !has_vote(&found[i])) continue;
        n = votes(found, at, end, hash);
        if (n < best_votes) continue;
        *disputed = n == best_votes;
        best = hash;
        best_votes = n;
    }
    return best;
}

/* Also who holds no part: its weights and tables are taken for right by what comes after. */
static void mark_odd(tt_found *found, int at, int end, uint64_t hash, bool all, tt_recovery *out)
{
    for (int i = at; i < end; i++) {
        tt_found *f = &found[i];
        bool differs = f->hash && hash && f->hash != hash;
        f->odd = (makes_sense(f) || has_vote(f)) && (all || differs);
        out->odd += f->odd;
    }
}

/* Is it beyond where its line of history was left? */
static bool was_left(const tt_told *told, tt_label l)
{
    return l.attempt < told->label.attempt && l.generation < told->by && l.step > told->label.step;
}

void tt_recover_choose(tt_found *found, int count, const tt_told *told, tt_recovery *out)
{
    bool skipped = false;

    *out = (tt_recovery){0};
    if (count) qsort(found, (size_t)count, sizeof *found, by_age);
    for (int at = 0, end; at < count; at = end) {
        bool disputed, behind = told && !tt_told_leads_to(told, found[at].label);
        uint64_t hash;
        int parts;
        end = end_of_label(found, count, at);
        hash = right_hash(found, at, end, &disputed);
        if (PLANTED(PLANT_NO_VOTE)) hash = disputed = 0;
        if (PLANTED(PLANT_TOLD_IGNORED)) behind = false;
        mark_odd(found, at, end, hash, disputed, out);
        if (out->any && (!out->behind || behind)) continue;
        if (disputed || (told && was_left(told, found[at].label))) {
            skipped |= disputed && !out->any;
            continue;
        }
        if (!(parts = complete_parts(found, at, end, hash))) continue;
        out->any = true;
        out->label = found[at].label;
        out->parts = parts;
        out->disputed = skipped;
        out->behind = behind || skipped;
    }
}

/* ---- what a rank does ---- */

static bool is_chosen(const tt_found *f, const tt_recovery *r)
{
    return !f->odd && makes_sense(f) && f->parts == r->parts &&
           tt_label_compare(f->label, r->label) == 0;
}

/* Is this part of the chosen state in the place's slot? */
static bool has_place(const tt_recovery *r, const tt_found *found, int count, const tt_holder *p)
{
    for (int i = 0; i < count; i++)
        if (is_chosen(&found[i], r) && same_slot(&found[i], p->host, p->slot) &&
            found[i].part == p->part)
            return true;
    return false;
}

static bool is_placed(const tt_holder *place, int places, const tt_found *f)
{
    for (int k = 0; k < places; k++)
        if (same_slot(f, place[k].host, place[k].slot) && f->part == place[k].part) return true;
    return false;
}

/* Is there a slot that has one part of the chosen state and is to have another instead? */
static bool must_move(const tt_recovery *r, const tt_found *found, int count,
                      const tt_holder *place, int places)
{
    if (r->parts == 1) return false;
    for (int k = 0; k < places; k++) {
        if (has_place(r, found, count, &place[k])) continue;
        for (int i = 0; i < count; i++)
            if (is_chosen(&found[i], r) && same_slot(&found[i], place[k].host, place[k].slot) &&
                !is_placed(place, places, &found[i]))
                return !PLANTED(PLANT_SWAP_PARTS);
    }
    return false;
}

tt_label tt_recover_label(const tt_recovery *r, const tt_found *found, int count,
                          const tt_holder *place, int places, int parts, uint32_t generation)
{
    tt_label l = r->label;

    if (r->behind) l.attempt = tt_attempt_next(l.attempt, generation);
    if (r->behind || parts != r->parts || must_move(r, found, count, place, places))
        l.generation = generation;
    return l;
}

/* 3: this slot's, 2: this host's, 1: another's. */
static int nearness(const tt_found *f, tt_holder p)
{
    return f->host != p.host ? 1 : f->slot != p.slot ? 2 : 3;
}

tt_refill tt_recover_share(const tt_recovery *r, const tt_found *found, int count, tt_holder place,
                           tt_label label, int *from)
{
    const tt_found *now = NULL, *before = NULL; /* of this slot and of the chosen state */
    bool has = false;
    tt_refill s = {0};

    for (int i = 0; i < r->parts; i++) from[i] = -1;
    for (int i = 0; i < count; i++) {
        const tt_found *f = &found[i];
        if (!is_chosen(f, r)) continue;
        if (from[f->part] < 0 || nearness(f, place) > nearness(&found[from[f->part]], place))
            from[f->part] = i;
        if (nearness(f, place) < 3) continue;
        if (f->current)
            now = f;
        else
            before = f;
    }
    s.undo = before && !now; /* keeps (1): what is current is not written to */
    if (s.undo) now = before;
    for (int i = 0; i < count && now; i++)
        has |= is_chosen(&found[i], r) && nearness(&found[i], place) == 3 &&
               found[i].half == now->half && found[i].part == place.part;
    s.copy = !has || tt_label_compare(label, r->label) != 0;
    return s;
}
