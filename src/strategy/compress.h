/* compress: gradients in fewer bytes, and what that loses kept for the next time.
 *
 * A codec turns n floats into exactly codec_bytes(c, n) bytes and back. Encoding adds the residual
 * of the step before, and leaves in it what the bytes do not say (error feedback), so that in the
 * long run nothing is lost:   v = x + residual;  wire = encode(v);  residual = v - decode(wire).
 *
 * The bytes, and what is decoded from them, are the same on every CPU: ranks must stay equal.
 * Nothing is allocated; scratch memory is the caller's. NaN and infinity in x must still be seen
 * after decoding (as a NaN or infinity anywhere), so that a step that ran away is not applied. */
#ifndef TT_COMPRESS_H
#define TT_COMPRESS_H

#include "base/base.h"

typedef enum codec_kind {
    CODEC_NONE,
    CODEC_BF16,   /* round to nearest even                                                   */
    CODEC_FP16,   /* the same, in runs of 1024 with a power of two as common scale, so that
                   * neither large nor small gradients leave the range                       */
    CODEC_INT8,   /* runs of 1024 with a float scale: max |v| / 127                          */
    CODEC_TOPK,   /* the share of largest magnitude: u32 count, then u32 index and float pairs;
                   * unused pairs are zero                                                   */
    CODEC_1BIT,   /* signs, and per run of 1024 the mean magnitude of those above and below  */
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
size_t codec_scratch(const codec *c, int64_t n); /* bytes of scratch for encoding */
/* `residual` is n floats, or NULL: without feedback. */
void codec_encode(const codec *c, int64_t n, const float *x, float *residual, void *wire,
                  void *scratch);
/* TT_EFORMAT if the bytes are none of ours (an index out of range, say). `out` is overwritten. */
tt_err codec_decode(const codec *c, int64_t n, const void *wire, size_t bytes, float *out);

/* Sums of sparse gradients are sparse: after adding up `parts` decoded TOPK vectors, at most parts
 * * count elements are not zero. This encodes them all, exactly, in codec_sparse_bytes() bytes. */
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
 * caller sums between the calls. Low rank pays only where rows * cols > rank * (rows + cols). */
bool lowrank_pays(int64_t rows, int64_t cols, int rank);
void lowrank_start(int64_t cols, int rank, uint64_t seed, float *q); /* random, orthonormal */
void lowrank_p(int64_t rows, int64_t cols, int rank, const float *v, const float *q, float *p);
void lowrank_orthonormalise(int64_t rows, int rank, float *p); /* a zero column stays zero */
void lowrank_q(int64_t rows, int64_t cols, int rank, const float *v, const float *p, float *q);
void lowrank_product(int64_t rows, int64_t cols, int rank, const float *p, const float *q,
                     float *m);

#endif
