/* Fuzz entry for the reader of weights files. With libFuzzer: clang -fsanitize=fuzzer,address. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    static volatile uint8_t sink;
    float f[16];
    tt_tensors *t;

    if (fd < 0) {
        fd = memfd_create("fuzz", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    if (tt_tensors_open(path, &t)) return 0;
    /* What was accepted must be safe to use: touch every byte that an entry claims. */
    for (int i = 0; i < tt_tensors_count(t); i++) {
        const tt_entry *e = tt_tensors_at(t, i);
        for (int64_t k = 0; k < e->bytes; k++) sink ^= ((const uint8_t *)e->data)[k];
        if (tt_tensors_find(t, e->name) != e) abort();
        tt_entry_floats(e, f,
                        e->bytes / (int64_t)tt_dtype_size(e->type) <= 16
                            ? e->bytes / (int64_t)tt_dtype_size(e->type)
                            : -1);
    }
    tt_tensors_note(t, "format");
    tt_tensors_close(t);
    return 0;
}
