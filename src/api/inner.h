/* inner: what the files of api/ share. The public face is include/tutti.h; this module checks what
 * strangers pass, copies what must outlive them, and hands the rest to train/ and model/. */
#ifndef TT_API_INNER_H
#define TT_API_INNER_H

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
tt_err model_open(tt_tree *job, const char *weights, const float *params, const char *layer,
                  tutti_model **out);

tutti_metrics metrics_from(const tt_metrics *m);
tutti_shape shape_from(tt_shape s);

/* The public codes are the internal ones. */
static inline tutti_status status_of(tt_err err)
{
    return (tutti_status)err;
}

#endif
