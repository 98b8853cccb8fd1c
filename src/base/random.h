/* random: Philox4x32-10, a pure function from (key, counter) to 128 random bits, and what is built
 * on it. No state, so any element of any stream can be computed anywhere, in any order. */
#ifndef TT_RANDOM_H
#define TT_RANDOM_H

#include <stdint.h>

typedef struct tt_u128 {
    uint32_t v[4];
} tt_u128;

tt_u128 tt_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo);

/* Four floats in [0,1) / four standard normals at once. Normals use no log or sin of
 * libm, whose last bit differs between processors: the same bits everywhere. */
void tt_uniform4(uint64_t key, uint64_t hi, uint64_t lo, float out[4]);
void tt_normal4(uint64_t key, uint64_t hi, uint64_t lo, float out[4]);

/* A 64-bit key from a seed and a name, so that streams never meet:
 * tt_random_key(seed, "init conv1.weight"). */
uint64_t tt_random_key(uint64_t seed, const char *name);

/* The i-th element of a pseudo-random permutation of 0 .. n-1 (Feistel network, cycle walking):
 * constant memory, and starting in the middle costs nothing. 0 <= i < n. */
uint64_t tt_permute(uint64_t key, uint64_t n, uint64_t i);

uint64_t tt_mix(uint64_t x); /* a permutation of 64-bit numbers that looks like chance */

#endif
