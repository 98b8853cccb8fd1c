/* keep: the private face of what train/ does with the vault: keep.c commits each step, find.c looks
 * for what worlds before this one have left, refill.c takes it up. */
#ifndef TT_KEEP_H
#define TT_KEEP_H

#include "trainer.h"

/* What goes with a commit beside the numbers. `closed`: what came with the step is done, too.
 * `copy`: the parts of other ranks that are in it beside its own, once the half's mark says so. */
typedef struct note {
    int64_t early_bad;
    double early_best, best, final_loss, epoch_loss, epoch_weight, loss, grad_norm;
    double seconds; /* of the run so far */
    tt_witness witness;
    tt_epoch last;
    tt_turn turn[TT_TURNS];
    int32_t turns;
    int32_t rank, part, parts, copies;
    uint16_t copy[MIRROR_MOST];
    uint64_t shape; /* of the world, and does the second vector of the feedback count in a sum? */
    uint8_t both, early_end, closed;
} note;
_Static_assert(sizeof(note) <= TT_VAULT_NOTE, "a note has room");

/* What stands behind the state where it is in parts. */
typedef struct tail {
    _Alignas(64) _Atomic uint64_t mark; /* step + 1: the copies of that step are there */
    uint16_t map[];                     /* of each piece: 1 + the part it is of; 0: not here */
} tail;

typedef struct keep keep;
struct keep {
    char folder[4096];
    bool on_disk;
    uint64_t key;
    size_t flat, state, bytes; /* of a vector, the strategy's state, and a half */
    bool copies;               /* the strategy has its state elsewhere: average */
    tt_vault *vault;
    uint16_t *map;   /* as in the tail; NULL: there is none */
    mirror *mirror;  /* NULL: no copies on other hosts */
    size_t feedback; /* where in a half compression's is, two vectors; 0: there is none */
    uint64_t shape;  /* who has which place, and how it is compressed                   */
    bool in_shape;   /* what was found is of a world of the same shape, and all there    */
    int part, parts;
    uint32_t generation;
    tt_label label; /* under which this world has the state */
    tt_found *found;
    note *notes; /* of each found */
    int count;
    tt_recovery recovery;
    tt_train_told go;
};

/* ---- keep.c ---- */
uint64_t keep_key(const tt_trainer *t, const char *id, size_t bytes);
tt_err keep_measure(tt_trainer *t, keep *k);
tail *keep_tail(const keep *k, const void *half);
void keep_copy_state(tt_trainer *t, char *vault, bool out); /* average: to the vault, or from it */
void keep_commit_half(tt_trainer *t, int half, bool closed, bool copied);

/* ---- find.c ---- */
int keep_leader(const tt_world *w, int host); /* its first rank: what is of the host, it does */
tt_holder keep_place(const tt_trainer *t, int rank);
int keep_places(const tt_trainer *t, int rank, tt_holder out[1 + MIRROR_MOST]);
bool keep_is_chosen(const keep *k, int i); /* this half is of the chosen state */

#endif
