/* gzip: inflating, for file.c alone. */
#ifndef TT_GZIP_H
#define TT_GZIP_H

#include "file.h"

/* How much content is accepted, and why no more: "allowed here", "its header announces". */
typedef struct tt_bound {
    size_t most; /* 0: no bound */
    const char *why;
} tt_bound;

bool tt_gzip_is(const uint8_t *data, size_t size); /* by its first bytes */

/* The first bytes of what `in` inflates to, as many as `room` takes and there are. What is broken
 * is left for tt_gzip_inflate to tell. */
size_t tt_gzip_peek(const tt_bytes *in, uint8_t *head, size_t room);

/* All of it. `expected` is how large it will be, if that is known, else 0: then the stream's own
 * word is taken for a guess. Too much, or broken (with the offset), is TT_EFORMAT. */
tt_err tt_gzip_inflate(const char *path, const tt_bytes *in, tt_bound bound, size_t expected,
                       tt_bytes *out);
tt_err tt_too_large(const char *path, tt_bound bound); /* TT_EFORMAT */

#endif
