/* The order of stores, and what a kill after each leaves behind (s is the current step):
 *
 *   begin     half.next = 0          s, and nothing beside it
 *             half.begun + 1         the same: what anybody has read of its bytes since it was
 *                                    described is now out of date, and nobody can have begun to
 *                                    read since, by the store before
 *             the bytes of the half  the same
 *   describe  line, hash             the same
 *             half.next = s + 2      the same: the half is newer than the current one, so it does
 *                                    not count
 *   flip      word                   s + 1, and s before it
 *   undo      word                   s, and s + 1 beside it, which does not count
 *             half.next = 0          s, and nothing beside it
 *   amend     the bytes of the note  the note that was
 *             half.noted + 1         the new one
 *
 * What is not current counts only if it is no newer than what is: that is how a half that was
 * never flipped, or was taken back, is known from the one before. Two of the same label (a copy
 * that was repaired beside what was wrong) are both whole, so to take either for the one before
 * does no harm; but what was taken back is gone, whatever its label: hence the second store of
 * undo. If the word names a half that is described otherwise, this order was not kept (or memory
 * is damaged): then nothing counts.
 *
 * Tried and dropped: a word in each half that names the one before it, so that labels need not be
 * compared. Then a slot that is made to go back to an older state (recover.h) would go on showing
 * what was passed over as the state before, until the next begin. */
#include "commit.h"

#include <string.h>

#ifndef TT_PLANT /* tests plant mistakes here, and see to it that they are found: tests/sim */
#define PLANTED(bug)        false
#define STORE(where, value) atomic_store_explicit(where, value, memory_order_release)
#endif

enum { ATTEMPT_BITS = 12 };

/* A full one, because nothing less orders streaming stores. Not atomic_thread_fence: the compiler
 * warns that the thread sanitizer is blind to it. */
static void fence(void)
{
    __sync_synchronize();
}

int tt_label_compare(tt_label a, tt_label b)
{
    if (PLANTED(PLANT_STEP_ALONE)) return (a.step > b.step) - (a.step < b.step);
    if (a.generation != b.generation) return a.generation < b.generation ? -1 : 1;
    if (a.attempt != b.attempt) return a.attempt < b.attempt ? -1 : 1;
    return (a.step > b.step) - (a.step < b.step);
}

uint32_t tt_attempt_next(uint32_t attempt, uint32_t generation)
{
    uint32_t first = generation << ATTEMPT_BITS;

    TT_ASSERT(generation < 1u << (32 - ATTEMPT_BITS));
    if (PLANTED(PLANT_ATTEMPT_REUSED)) return attempt + 1;
    return attempt < first ? first : attempt + 1;
}

/* Within a generation and an attempt states follow each other; a later generation has gone on from
 * what was told, or the ledger would say what else. */
bool tt_told_leads_to(const tt_told *t, tt_label l)
{
    bool same_line = l.generation == t->label.generation && l.attempt == t->label.attempt;

    if (PLANTED(PLANT_BRANCH)) return tt_label_compare(l, t->label) >= 0;
    if (l.generation < t->by && !same_line) return false;
    if (l.attempt != t->label.attempt) return l.attempt > t->label.attempt;
    return l.step >= t->label.step;
}

void tt_told_raise(tt_told *t, tt_label l)
{
    if (!tt_told_leads_to(t, l)) return;
    t->label = l;
    if (l.generation > t->by) t->by = l.generation;
}

static uint64_t word_of(uint64_t next, int half)
{
    return next << 1 | (uint64_t)half;
}

int tt_commit_current(const tt_commit_head *h)
{
    uint64_t word = atomic_load_explicit(&h->word, memory_order_acquire);
    return word ? (int)(word & 1) : -1;
}

typedef struct sight { /* all of a head, as it was at one moment */
    uint64_t begun[2], word, next[2], line[2], hash[2], noted[2];
} sight;

/* The counts come first: then a half that is begun after this look has another one in the next
 * look, and of one that was begun before it all else is seen, too. */
static void see(const tt_commit_head *h, sight *out)
{
    for (int i = 0; i < 2; i++)
        out->begun[i] = atomic_load_explicit(&h->half[i].begun, memory_order_acquire);
    out->word = atomic_load_explicit(&h->word, memory_order_acquire);
    for (int i = 0; i < 2; i++) {
        out->next[i] = atomic_load_explicit(&h->half[i].next, memory_order_acquire);
        out->line[i] = atomic_load_explicit(&h->half[i].line, memory_order_acquire);
        out->hash[i] = atomic_load_explicit(&h->half[i].hash, memory_order_acquire);
        out->noted[i] = atomic_load_explicit(&h->half[i].noted, memory_order_acquire);
    }
}

static tt_label label_of(const sight *s, int half)
{
    return (tt_label){(uint32_t)(s->line[half] >> 32), (uint32_t)s->line[half],
                      (int64_t)s->next[half] - 1};
}

bool tt_commit_read(const tt_commit_head *h, int half, tt_commit *out)
{
    sight a, b;
    int current;

    fence(); /* bytes read before this call were so before it */
    see(h, &a);
    see(h, &b);
    if (memcmp(&a, &b, sizeof a)) return false; /* its owner is writing */
    current = (int)(a.word & 1);
    if ((int64_t)a.next[half] <= 0 || a.word != word_of(a.next[current], current)) return false;
    if (tt_label_compare(label_of(&a, half), label_of(&a, current)) > 0) return false;
    *out = (tt_commit){label_of(&a, half), a.hash[half], a.begun[half], a.noted[half]};
    return true;
}

/* Only its owner changes a count. */
static void count_up(_Atomic uint64_t *count)
{
    STORE(count, atomic_load_explicit(count, memory_order_relaxed) + 1);
}

int tt_commit_begin(tt_commit_head *h)
{
    int half = tt_commit_current(h) == 0 ? 1 : 0;

    if (PLANTED(PLANT_COUNT_FIRST)) count_up(&h->half[half].begun);
    if (!PLANTED(PLANT_BEGIN_UNMARKED)) STORE(&h->half[half].next, 0);
    if (!PLANTED(PLANT_UNCOUNTED) && !PLANTED(PLANT_COUNT_FIRST)) count_up(&h->half[half].begun);
    fence(); /* keeps (3): the bytes change after this */
    return half;
}

void tt_commit_marks(tt_commit_head *h, _Atomic uint64_t **whole, _Atomic uint64_t **begun)
{
    int half = tt_commit_current(h) == 0 ? 1 : 0;

    *whole = &h->half[half].next;
    *begun = &h->half[half].begun;
}

void tt_commit_describe(tt_commit_head *h, int half, const tt_commit *what)
{
    uint64_t next = (uint64_t)what->label.step + 1;

    TT_ASSERT(what->label.step >= 0);
    fence(); /* a release does not order streaming stores */
    if (PLANTED(PLANT_FLIP_FIRST)) STORE(&h->word, word_of(next, half));
    STORE(&h->half[half].line, (uint64_t)what->label.generation << 32 | what->label.attempt);
    STORE(&h->half[half].hash, what->hash);
    STORE(&h->half[half].next, next);
}

void tt_commit_flip(tt_commit_head *h, int half)
{
    uint64_t next = atomic_load_explicit(&h->half[half].next, memory_order_relaxed);

    TT_ASSERT(next); /* described before */
    STORE(&h->word, word_of(next, half));
}

bool tt_commit_undo(tt_commit_head *h)
{
    int current = tt_commit_current(h), before = current == 0 ? 1 : 0;
    tt_commit what;

    if (current < 0 || !tt_commit_read(h, before, &what)) return false;
    if (PLANTED(PLANT_UNDO_WRONG)) before = current;
    STORE(&h->word, word_of((uint64_t)what.label.step + 1, before));
    if (!PLANTED(PLANT_UNDO_KEPT)) STORE(&h->half[current].next, 0);
    return true;
}

int tt_commit_spare(tt_commit_head *h, int half)
{
    uint64_t noted = atomic_load_explicit(&h->half[half].noted, memory_order_relaxed);

    fence(); /* who still reads what was there before the last amend is told by its count */
    return (int)(PLANTED(PLANT_NOTE_IN_PLACE) ? noted & 1 : !(noted & 1));
}

void tt_commit_amend(tt_commit_head *h, int half)
{
    count_up(&h->half[half].noted);
    if (PLANTED(PLANT_NOTE_IN_PLACE)) count_up(&h->half[half].noted);
}
