/* recover: from which of the halves that were found does a new world go on?
 *
 *   all whole halves on all hosts of the world -> tt_recover_choose: the freshest complete state
 *   -> tt_recover_label: the name under which this world has it
 *   -> the ledger has FOUND (and LOST, if it goes back), and the supervisor says so: see (3)
 *   -> tt_recover_share, for each rank: what it does so that its own slot holds its share of it
 *   -> all have flipped: the first step may begin
 *
 * Pure, and the same on every rank that is given the same halves in whatever order. A half holds
 * all weights, and part k of n of the optimiser's state (0 of 1 where it is not sharded), of which
 * there may be several copies. A state is complete if all n parts of one label are there. A half
 * that has copies of other parts besides its own is told of once for each part that it has.
 *
 * What it must hold:
 * (1) A share never writes to a half of the chosen state: who dies meanwhile, wherever, loses none.
 * (2) A slot never exchanges one part of a label for another: its last commit of a label has all
 * that an earlier one of the same label had. (If ranks swapped parts under one label, a slot might
 * have the only copy of one part in one half, of another part in the other, and be asked for a
 * third.) So where a part has to move, or the state is cut anew, all write all of it anew under a
 * label of this generation; until that is complete, the old one stays the freshest. (3) A world
 * writes nothing before the ledger says from where it goes on. Else what it commits on hosts that
 * are then lost would be unknown to the next, which might go on from what an earlier world had left
 * elsewhere; and when those hosts return, there would be two histories. */
#ifndef TT_RECOVER_H
#define TT_RECOVER_H

#include "commit.h"

typedef struct tt_found { /* one half, as tt_commit_read tells it */
    int host, slot, half;
    bool current; /* of its slot */
    tt_label label;
    uint64_t hash; /* of what all copies share: the weights; 0: not known */
    int part, parts;
    bool bad;     /* its bytes do not give its hash: it is left out */
    bool suspect; /* its slot made it from a half that is bad: what others have under its label came
                   * of that rank's gradient, too. The label is as if disputed */
    bool odd;     /* out: left out, because its hash is not that of the others of the same label, or
                   * nobody can say which of them is right */
} tt_found;

typedef struct tt_recovery {
    bool any; /* else nothing is complete: go on from disk, under a new attempt */
    tt_label label;
    int parts;
    int odd;       /* halves left out for their hash */
    bool disputed; /* a newer state was left out: as many copies of it had one hash as another */
    bool behind;   /* it does not come of what was told: committed steps are on hosts that are gone,
                    * or disputed. Go on from it, or from disk if that is newer, under a new attempt
                    */
} tt_recovery;

/* Sorts `found`. Takes the freshest complete state that comes of what was told (NULL: nothing is
 * known), or else the freshest. Where hashes differ within a label, the most frequent one is right;
 * if there is none, the label is disputed and left out, and what is before it opens a new attempt.
 * Halves whose numbers make no sense (part not below parts, step below 0) are left out, too, and so
 * are those of a line of history that was left, beyond the step at which that was: the next world
 * may meet half of what was disputed, and must not take it for the truth. */
void tt_recover_choose(tt_found *found, int count, const tt_told *told, tt_recovery *out);

/* Where the ranks of a world have their slots, and which part of the state each is to hold. A rank
 * that holds several (its own, and copies for other hosts, in the same slot or in another) has
 * several places. */
typedef struct tt_holder {
    int host, slot, part;
} tt_holder;
/* The label under which a world of this generation, cut into `parts`, has the chosen state: that of
 * the state itself, unless it must be written anew or opens a new attempt. */
tt_label tt_recover_label(const tt_recovery *r, const tt_found *found, int count,
                          const tt_holder *place, int places, int parts, uint32_t generation);

typedef struct tt_refill {
    bool undo; /* first: the slot's last commit is of a state that was not chosen: take it back */
    bool copy; /* then: begin, fill in from `from`, describe as the label, flip. Else it is there */
} tt_refill;
/* What the rank that has this place does; with several in one slot: undo and copy, if any says so.
 * from[p] (there is room for r->parts) becomes the index of the half to take part p from: of the
 * same slot, or else the same host, if there is one. */
tt_refill tt_recover_share(const tt_recovery *r, const tt_found *found, int count, tt_holder place,
                           tt_label label, int *from);

#endif
