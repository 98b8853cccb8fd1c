/* mem: arenas for small things that go together, and aligned blocks.
 *
 * An arena hands out memory and takes it all back at once. One thread at a time. */
#ifndef TT_MEM_H
#define TT_MEM_H

#include <stddef.h>

typedef struct tt_arena tt_arena;

tt_arena *tt_arena_open(size_t first_block); /* aborts the program if memory is out: see below   */
void *tt_arena_take(tt_arena *a, size_t bytes, size_t align); /* never NULL; always zeroed */
char *tt_arena_strdup(tt_arena *a, const char *s);
char *tt_arena_printf(tt_arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tt_arena_close(tt_arena *a); /* accepts NULL */

/* Small things (names, nodes, lists) come from arenas, and running out there ends the program with
 * a clear line: no caller could do better. Large blocks, whose size a user chose, come from here
 * and fail politely: 64-byte aligned, zeroed, huge pages advised above 2 MiB. Release with
 * tt_block_free and the same size. */
void *tt_block_alloc(size_t bytes); /* NULL if there is no memory */
void tt_block_free(void *p, size_t bytes);

/* Bytes this process may still take: what the machine has available, its control groups and `ulimit
 * -v` leave. An estimate, for refusing what cannot work; SIZE_MAX if nothing is known. */
size_t tt_mem_free(void);

/* The clear line, for all who cannot do better: "out of memory: 123 bytes more were wanted". */
_Noreturn void tt_mem_out(size_t bytes);

/* a * b, or SIZE_MAX on overflow, which no allocation will grant. */
size_t tt_mul_size(size_t a, size_t b);

#endif
