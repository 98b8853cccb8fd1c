/* allocs: counts allocations, of all threads and of the calling one, where no sanitizer does it in
 * its own way. Replaces malloc: for one file of a test program. */
#ifndef TT_ALLOCS_H
#define TT_ALLOCS_H

#include <stdatomic.h>
#include <stddef.h>

static __attribute__((unused)) atomic_long allocations;
static __attribute__((unused)) _Thread_local long own_allocations;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);

static void count_allocation(void)
{
    allocations++;
    own_allocations++;
}

void *malloc(size_t size)
{
    count_allocation();
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    count_allocation();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
    count_allocation();
    return __libc_realloc(p, size);
}
#else
#define COUNTS_ALLOCATIONS 0
#endif

#endif
