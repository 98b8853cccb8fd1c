#define _GNU_SOURCE
#include "mem.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "err.h"

/* Under the address sanitizer an arena leaves a gap after everything it hands out and poisons what
 * is not handed out, so that a write past the end is caught there as it would be with malloc. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { GAP = 64, ASAN = 1 };
#else
#define ASAN_POISON_MEMORY_REGION(p, size)   ((void)(p), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(p, size) ((void)(p), (void)(size))
enum { GAP = 0, ASAN = 0 };
#endif

enum { LINE = 64, HUGE_PAGE = 2 << 20, LEAST_BLOCK = 4096, MOST_DOUBLING = 64 << 20 };

void tt_mem_out(size_t bytes)
{
    fprintf(stderr, "tutti: out of memory: %zu bytes more were wanted\n", bytes);
    abort();
}

size_t tt_mul_size(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

/* ---- large blocks ---- */

/* A block this large has a mapping of its own, so that huge pages can back all of it. */
static bool is_mapped(size_t bytes)
{
    return bytes >= HUGE_PAGE && !ASAN;
}

static void *map_huge(size_t bytes)
{
    /* Map one huge page more than asked and return the ends, so that the start is aligned. */
    size_t page = 4096, need = (bytes + page - 1) / page * page, all;
    char *p, *start;

    if (need < bytes || __builtin_add_overflow(need, (size_t)HUGE_PAGE, &all)) return NULL;
    p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    start = (char *)(((uintptr_t)p + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (start > p) munmap(p, (size_t)(start - p));
    if (p + all > start + need) munmap(start + need, (size_t)(p + all - start - need));
    madvise(start, need, MADV_HUGEPAGE);
    return start;
}

void *tt_block_alloc(size_t bytes)
{
    void *p;

    if (bytes > PTRDIFF_MAX) return NULL;
    if (bytes == 0) bytes = 1;
    if (is_mapped(bytes)) return map_huge(bytes);
    if (posix_memalign(&p, LINE, bytes)) return NULL;
    return memset(p, 0, bytes);
}

void tt_block_free(void *p, size_t bytes)
{
    if (!p) return;
    if (is_mapped(bytes))
        munmap(p, (bytes + 4095) / 4096 * 4096);
    else
        free(p);
}

/* ---- arenas: a list of blocks, filled in order; what does not fit goes to the next ---- */

typedef struct block {
    struct block *next;
    size_t size, used;
    char *data;
} block;

struct tt_arena {
    block *first, *now;
};

static block *block_new(size_t size)
{
    block *b = calloc(1, sizeof *b);

    if (b) b->data = tt_block_alloc(size);
    if (!b || !b->data) tt_mem_out(size);
    b->size = size;
    ASAN_POISON_MEMORY_REGION(b->data, size);
    return b;
}

tt_arena *tt_arena_open(size_t first_block)
{
    tt_arena *a = calloc(1, sizeof *a);

    if (!a) tt_mem_out(sizeof *a);
    a->first = a->now = block_new(first_block ? first_block : LEAST_BLOCK);
    return a;
}

/* The memory in `b`, or NULL if it does not fit there. */
static void *block_take(block *b, size_t bytes, size_t align)
{
    uintptr_t base = (uintptr_t)b->data;
    size_t at = ((base + b->used + align - 1) & ~(uintptr_t)(align - 1)) - base;
    size_t end;

    if (__builtin_add_overflow(at, bytes, &end) || end > b->size) return NULL;
    b->used = end > b->size - GAP ? b->size : end + GAP;
    ASAN_UNPOISON_MEMORY_REGION(b->data + at, bytes);
    return b->data + at;
}

void *tt_arena_take(tt_arena *a, size_t bytes, size_t align)
{
    void *p;
    size_t need, size;

    TT_ASSERT(align && (align & (align - 1)) == 0);
    if (bytes == 0) bytes = 1; /* so that no two things share an address */
    for (; !(p = block_take(a->now, bytes, align)); a->now = a->now->next) {
        if (a->now->next) continue;
        if (__builtin_add_overflow(bytes, align + GAP, &need)) tt_mem_out(bytes);
        size = a->now->size < MOST_DOUBLING / 2 ? a->now->size * 2 : MOST_DOUBLING;
        a->now->next = block_new(size > need ? size : need);
    }
    return p;
}

char *tt_arena_strdup(tt_arena *a, const char *s)
{
    size_t size = strlen(s) + 1;
    return memcpy(tt_arena_take(a, size, 1), s, size);
}

char *tt_arena_printf(tt_arena *a, const char *fmt, ...)
{
    va_list ap;
    char *s;
    int size;

    va_start(ap, fmt);
    size = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    TT_ASSERT(size >= 0);
    s = tt_arena_take(a, (size_t)size + 1, 1);
    va_start(ap, fmt);
    vsnprintf(s, (size_t)size + 1, fmt, ap);
    va_end(ap);
    return s;
}

void tt_arena_close(tt_arena *a)
{
    if (!a) return;
    for (block *b = a->first, *next; b; b = next) {
        next = b->next;
        ASAN_UNPOISON_MEMORY_REGION(b->data, b->size);
        tt_block_free(b->data, b->size);
        free(b);
    }
    free(a);
}
