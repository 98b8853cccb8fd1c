/* inner: what the files of api/ share. The public face is include/tutti.h; this module checks what
 * strangers pass, copies what must outlive them, and hands the rest to train/ and model/. */
#ifndef TT_API_INNER_H
#define TT_API_INNER_H

#include "comm/comm.h"
#include "train/train.h"
#include "tutti.h"

struct tutti_job {
    tt_tree *tree;
    char *path;    /* NULL: not from a file                      */
    tt_err err;    /* the first mistake, with its message ...    */
    char *message; /* ... which every later call gives again     */
    tt_str text;   /* what tutti_job_text gave                   */
};

/* A copy of the job for somebody who reads it, and thereby changes it. The job's mistake, if any.
 */
tt_err job_copy(const tutti_job *job, tt_tree **out);

/* Takes over the tree, also if it fails. `params`: weights in memory, copied, or NULL. */
tt_err model_open(tt_tree *job, const char *weights, const tt_trainer *trained, const char *layer,
                  tutti_model **out);

/* ---- Worlds ---- */

/* A public world over one that stays the caller's: for tests on simulated ranks. */
tutti_world *world_wrap(tt_world *inner);
tt_world *world_inner(const tutti_world *w); /* NULL for NULL */

/* Every call with a world begins with the one (an error if it is NULL, or lost) and ends with the
 * other, which remembers that it is lost and returns `err`; done accepts NULL. */
tt_err world_enter(tutti_world *w, const char *what);
tt_err world_done(tutti_world *w, tt_err err);

/* What each rank has met, to all; what rank 0 has, to all. */
tt_err world_agree(tutti_world *w, tt_err mine);
tt_err world_spread(tutti_world *w, void *data, size_t bytes);

typedef enum call_kind {
    CALL_BARRIER,
    CALL_SUM,
    CALL_MEAN,
    CALL_BCAST,
    CALL_ALLOC,
    CALL_OPTIM,
    CALL_STEP,
    CALL_SAVE,
    CALL_LATEST,
    CALL_RESTORE,
} call_kind;

/* What a rank is about to do. Kind, count and place must be the same everywhere. */
typedef struct call {
    int64_t kind, count, place;
    int64_t trouble; /* why it cannot; world_compare sets it */
    double weight;   /* CALL_STEP */
} call;
/* All ranks say what they are about to do. If one does something else or cannot (`trouble`, with
 * its message), all get the error. */
tt_err world_compare(tutti_world *w, call mine, tt_err trouble);
const call *world_call(const tutti_world *w, int rank); /* as it was last compared */
const char *world_call_name(call_kind kind);            /* "tutti_world_sum" */
tutti_status world_leave_call(tutti_world *w, call_kind kind, tt_err err);

/* Where x lies, as a number that is the same on all ranks for vectors that can be summed with each
 * other. */
int64_t world_place(const tutti_world *w, const float *x, int64_t n);
tt_err world_sum(tutti_world *w, float *x, int64_t n, float scale);

/* ---- From inside to outside ---- */

tutti_metrics metrics_from(const tt_metrics *m);
tutti_shape shape_from(tt_shape s);

/* The public codes are the internal ones. */
static inline tutti_status status_of(tt_err err)
{
    return (tutti_status)err;
}

#endif
