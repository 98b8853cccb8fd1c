/* commit: how a slot of a vault tells which of its two halves is the state.
 *
 *   half = tt_commit_begin(h) -> write the bytes of that half -> tt_commit_describe(h, half, &what)
 *   -> tt_commit_flip(h, half)
 *
 * The head of a slot lies in memory that outlives its process, beside the two halves. A process may
 * be killed between any two stores, so each operation is made of stores of one word, in this order.
 *
 * What it must hold, wherever that happens:
 * (1) The half that the word names is whole and described; it is never written to.
 * (2) The half before it is whole until the next begin.
 * (3) A half that is being written is described as empty (step -1) from before its first byte is
 *     changed until after its last one is, and its begins are counted: who has read its bytes
 *     between two readings of the same count has read what was described.
 * (4) Beside the current state goes a note, which may be replaced: it is the old one or the new.
 *
 * Only who holds the slot's lock may change a head; anybody may read it. No locks, no failures. */
#ifndef TT_COMMIT_H
#define TT_COMMIT_H

#include <stdatomic.h>

#include "base/base.h"

/* Which state it is. The world that made it (`generation`) comes first when two are compared: what
 * a later world has committed follows from the state it went on from, and whatever an earlier one
 * had beyond that, on a host nobody could reach then, is no part of history any more. */
typedef struct tt_label {
    uint32_t generation; /* in which it was committed                         */
    uint32_t attempt;    /* which line of history: a rollback opens a new one */
    int64_t step;
} tt_label;
/* Below, at or above 0, as a is older than b, the same, or newer. */
int tt_label_compare(tt_label a, tt_label b);
/* The next line of history, opened in `generation`: newer than `attempt`, and another one than any
 * other world has ever opened or will, also one of which nothing can be seen now. At most 4095 in
 * one generation. */
uint32_t tt_attempt_next(uint32_t attempt, uint32_t generation);

/* What is known to be committed, of the ledger and of checkpoints: the newest label, and the last
 * generation that has made it or went on from it. What worlds between the two have made is no part
 * of history, although its generation is newer than the label's. */
typedef struct tt_told {
    tt_label label;
    uint32_t by;
} tt_told;
/* Is it that, or what came of it? */
bool tt_told_leads_to(const tt_told *t, tt_label l);
/* This is committed, too. */
void tt_told_raise(tt_told *t, tt_label l);

typedef struct tt_commit {
    tt_label label;
    uint64_t hash; /* as the owner counts it */
    /* Told by read, not by who describes. */
    uint64_t begun; /* how often the half was begun: as long as it is the same, so are its bytes */
    uint64_t noted; /* how often its note was replaced: it is in place noted % 2                 */
} tt_commit;

typedef struct tt_commit_head { /* zeroed: an empty slot */
    _Atomic uint64_t word;      /* ((step + 1) << 1) | half; 0: nothing was ever committed */
    struct {
        _Atomic uint64_t begun;
        _Atomic uint64_t next; /* step + 1; 0: empty, or being written */
        _Atomic uint64_t line; /* generation << 32 | attempt           */
        _Atomic uint64_t hash;
        _Atomic uint64_t noted;
    } half[2];
} tt_commit_head;

int tt_commit_current(const tt_commit_head *h); /* the half committed last; -1: none */
/* What is in a half: the current one, or the one before it. False if there is nothing whole: empty,
 * being written, not (or no longer) committed, newer than the current one, or the head is damaged.
 * Safe beside an owner who goes on: read it again after the half's bytes, and if it was not begun
 * since, they are what was described; after its note, and if that was not replaced either, so is
 * that. */
bool tt_commit_read(const tt_commit_head *h, int half, tt_commit *out);

/* The half that is not current: it may be written from here on, streaming or not. */
int tt_commit_begin(tt_commit_head *h);
/* What begin does to the half that is not current: 0 is stored to the first, then one is added to
 * the second, both sequentially consistent. For who is about to write to it and knows nothing of
 * heads. */
void tt_commit_marks(tt_commit_head *h, _Atomic uint64_t **whole, _Atomic uint64_t **begun);
/* All bytes are there, and the note. (Other threads fence their streaming stores before they say
 * that they are done; those of this one are seen to.) Not yet the state. */
void tt_commit_describe(tt_commit_head *h, int half, const tt_commit *what);
void tt_commit_flip(tt_commit_head *h, int half);
/* The half before is the state again; what was the last is nothing. False if it is not there. */
bool tt_commit_undo(tt_commit_head *h);

/* A half has two places for its note, 0 and 1. The one that is not in use, to be written: */
int tt_commit_spare(tt_commit_head *h, int half);
void tt_commit_amend(tt_commit_head *h, int half); /* ... and is in use from here on */

#endif
