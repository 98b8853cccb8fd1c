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
    CODEC_LOWRANK /* PowerSGD: see below; not by codec_encode                                */
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
 * `parts` times count elements are not zero. This encodes them all, exactly, in
 * codec_sparse_bytes() bytes.
 */
size_t codec_sparse_bytes(const codec *c, int64_t n, int parts);
void codec_sparse_encode(const codec *c, int64_t n, int parts, const float *x, void *wire);
tt_err codec_sparse_decode(const codec *c, int64_t n, int parts, const void *wire, size_t bytes,
                           float *out);

/* ---- PowerSGD: a matrix M (rows, cols) as P Q', P (rows, rank), Q (cols, rank) ----
 *
 *   v = M + residual;  P = v Q;  sum P over all;  orthonormalise P's columns;
 *   Q = v' P;          sum Q over all;            M = P Q';  residual = v - own P Q'
 *
 * All ranks begin with the same random Q and keep the summed Q of the step before (warm start). The
 * caller sums between the calls. Low rank pays only where rows * cols > rank * (rows + cols).
 *
 * A direction that is lost (a matrix that is zero for a step, or of lower rank) would be lost for
 * ever, because its column of Q, once zero, stays so; and a NaN would stay too. lowrank_renew,
 * before each step and with a seed of that step, puts random columns for those, and makes Q
 * orthonormal again, so that P has the scale of M and not of its square.
 *
 * Ranks are 1 .. LOWRANK_MOST. What is computed has the same bits on every CPU. */
enum { LOWRANK_MOST = 256 };
bool lowrank_pays(int64_t rows, int64_t cols, int rank);
void lowrank_start(int64_t cols, int rank, uint64_t seed, float *q); /* random, orthonormal */
void lowrank_renew(int64_t cols, int rank, uint64_t seed, float *q);
void lowrank_p(int64_t rows, int64_t cols, int rank, const float *v, const float *q, float *p);
/* A zero column stays zero, and one that is a sum of those before it becomes zero. */
void lowrank_orthonormalise(int64_t rows, int rank, float *p);
void lowrank_q(int64_t rows, int64_t cols, int rank, const float *v, const float *p, float *q);
void lowrank_product(int64_t rows, int64_t cols, int rank, const float *p, const float *q,
                     float *m);

/* For tests: the loops of one instruction set, "any", "avx2" or "avx512", from now on; NULL: the
 * best there are. False if this CPU has it not. */
bool codec_use(const char *isa);

#endif
