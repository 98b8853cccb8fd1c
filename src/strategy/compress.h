/* compress: gradients in fewer bytes, and what that loses kept for the next time.
 *
 * A codec turns n floats into exactly codec_bytes(c, n) bytes and back. Encoding adds the residual
 * of the step before, and leaves in it what the bytes do not say (error feedback), so that in the
 * long run nothing is lost:   v = x + residual;  wire = encode(v);  residual = v - decode(wire).
 *
 * The bytes, and what is decoded from them, are the same on every CPU: ranks must stay equal.
 * Nothing is allocated; scratch memory is the caller's. NaN and infinity in x are still seen after
 * decoding (as a NaN or infinity anywhere), so that a step that ran away is not applied; codecs
 * that round take what is above 3.39e38 for infinite. A residual that was finite stays finite: it
 * becomes 0 where no finite number can be said. */
#ifndef TT_COMPRESS_H
#define TT_COMPRESS_H

#include "base/base.h"

typedef enum codec_kind {
    CODEC_NONE,
    CODEC_BF16,   /* round to nearest even                                                   */
    CODEC_FP16,   /* the same, in runs of 1024 with a power of two as common scale, so that
                   * neither large nor small gradients leave the range                       */
    CODEC_INT8,   /* runs of 1024 with a float scale: max |v| / 127, 2^-126 or more          */
    CODEC_TOPK,   /* the share of largest magnitude, at least one, of equal ones the first; no
                   * zeros: u32 count, then u32 index and float pairs by rising index; unused
                   * pairs are zero. n is below 2^32                                         */
    CODEC_1BIT,   /* signs, and per run of 1024 the mean of those with each sign             */
    CODEC_LOWRANK /* PowerSGD: by lowrank.h, not by codec_encode                            */
} codec_kind;

typedef struct codec {
    codec_kind kind;
    double share; /* TOPK    */
    int rank;     /* LOWRANK */
} codec;

/* "none", "bf16", "fp16", "int8", "topk:0.01", "1bit", "powersgd:4"; `at` (may be NULL) is where it
 * stands in the job, for the message. */
tt_err codec_parse(const tt_node *at, const char *text, codec *out);

size_t codec_bytes(const codec *c, int64_t n);
size_t codec_scratch(const codec *c, int64_t n); /* bytes of scratch for encoding, may be 0 */
/* `residual` is n floats apart from x, or NULL: without feedback. The bytes may lie anywhere, the
 * scratch as malloc would put it. */
void codec_encode(const codec *c, int64_t n, const float *x, float *residual, void *wire,
                  void *scratch);
/* TT_EFORMAT if the bytes are none of ours (too many, or an index out of range, say); `out` is
 * overwritten, in that case with nothing in particular. */
tt_err codec_decode(const codec *c, int64_t n, const void *wire, size_t bytes, float *out);

/* Sums of sparse gradients are sparse: after adding up `parts` decoded TOPK vectors, at most
 * `parts` times count elements are not zero. This encodes them all, exactly, in so many bytes. */
size_t codec_sparse_bytes(const codec *c, int64_t n, int parts);
void codec_sparse_encode(const codec *c, int64_t n, int parts, const float *x, void *wire);
tt_err codec_sparse_decode(const codec *c, int64_t n, int parts, const void *wire, size_t bytes,
                           float *out);

/* For tests: the loops of one instruction set, "any", "avx2" or "avx512", from now on, here and in
 * lowrank.h; NULL: the best there are. False if this CPU has it not. */
bool codec_use(const char *isa);

#endif
