/* carrier: what a transport has to do: the private face of comm/. */
#ifndef TT_CARRIER_H
#define TT_CARRIER_H

#include "comm/comm.h"

/* Ranks here are those of the world; `tag` has the group's context in it. */
typedef struct tt_carrier_calls {
    tt_err (*send)(tt_world *w, int to, int tag, const void *data, size_t bytes, uint64_t *handle);
    tt_err (*recv)(tt_world *w, int from, int tag, void *data, size_t bytes, uint64_t *handle);
    /* Sets op->done if it is; of a receive also how many bytes came, which may not fit. */
    tt_err (*test)(tt_world *w, tt_op *op, size_t *came);
    void (*leave)(tt_world *w, int failed);
} tt_carrier_calls;

/* A block that ranks which are threads have in common. */
typedef struct tt_kept {
    struct tt_kept *next;
    void *block;
    size_t bytes;
    bool mapped; /* of a file */
} tt_kept;
void tt_kept_free(tt_kept *k);

enum { CONTEXTS = 128 };

struct tt_carrier {
    const tt_carrier_calls *calls;
    tt_group all;
    tt_peer *peers;
    uint64_t contexts[CONTEXTS / 64]; /* bits: in use by groups of this rank */
    tt_kept *kept; /* theirs: a rank that ends early must not pull it away from the others */
};

/* Fills in what follows from rank and size: the group of all, and who is where by asking everybody
 * for its host's name (`host`: what to answer). The world needs rank, size and carrier set. */
tt_err tt_world_fill(tt_world *w, const char *host);
void tt_world_drop(tt_world *w); /* frees what tt_world_fill made */

tt_err tt_mpi_join(const tt_started *by, tt_world **out);

#endif
