/* file: whole files in, whole files out, and fingerprints.
 *
 * Reading is bounded and checked; writing is all or nothing. Messages name the path. */
#ifndef TT_FILE_H
#define TT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

/* A file in memory. A plain file is mapped; one that starts with the gzip magic is inflated. */
typedef struct tt_bytes {
    const uint8_t *data;
    size_t size;
    size_t room; /* of its tt_block_alloc; 0: mapped, or of malloc */
    bool mapped;
} tt_bytes;

/* `most`: refuse a larger (inflated) content with TT_EFORMAT; 0 for no bound. TT_EIO if it cannot
 * be opened or read, TT_EFORMAT if the gzip stream is broken (with the offset). An empty file is
 * fine. */
tt_err tt_file_read(const char *path, size_t most, tt_bytes *out);
void tt_file_release(tt_bytes *b); /* accepts a zeroed one */

/* The size of a content in all, as its first bytes announce it; 0 if they do not. */
typedef size_t tt_promise(const uint8_t *head, size_t size);

/* A file of data, of any size: as tt_file_read, but nothing except a regular file will do, and what
 * is inflated may be no larger than its own head announces (`promise`, NULL: never) nor than the
 * memory that is free; TT_EFORMAT if it is. */
tt_err tt_file_read_data(const char *path, tt_promise *promise, tt_bytes *out);

/* A regular file as it is: never inflated, whatever its first bytes look like. */
tt_err tt_file_map(const char *path, tt_bytes *out);

/* All of it, or false and errno; *done (may be NULL) says how far it came. */
bool tt_write_all(int fd, const void *data, size_t size, size_t *done);

/* Writes to "<path>.tmp", fsyncs, renames over `path`, fsyncs the folder. On error the old file is
 * untouched and the temporary one is gone. */
tt_err tt_file_write(const char *path, const void *data, size_t size);

bool tt_file_exists(const char *path);
tt_err tt_dir_make(const char *path);   /* with parents, each synced; fine if it is there */
tt_err tt_dir_sync(const char *path);   /* fsync of the folder                            */
tt_err tt_dir_remove(const char *path); /* recursively; follows no links; fine if it is not there */

/* The names in a folder, sorted, without "." and ".."; free each and the array with tt_dir_free. */
tt_err tt_dir_list(const char *path, char ***out, int *count);
void tt_dir_free(char **names, int count);

/* SHA-256, hexadecimal, 64 characters and NUL. Begin, add any number of times, end. */
typedef struct tt_sha tt_sha;
tt_sha *tt_sha_begin(void);
void tt_sha_add(tt_sha *s, const void *data, size_t size);
void tt_sha_end(tt_sha *s, char hex[65]);           /* frees s */
tt_err tt_sha_file(const char *path, char hex[65]); /* of the bytes as stored, not inflated */

uint32_t tt_crc32c(const void *data, size_t size);
uint32_t tt_crc32c_soft(const void *data,
                        size_t size); /* the same, where the instruction is missing */

#endif
