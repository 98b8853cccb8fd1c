#define _GNU_SOURCE
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gzip.h"
#include "mem.h"

/* ---- reading ---- */

static const char ALLOWED[] = "allowed here";

/* read until `size` bytes are there or the file ends; -1 with errno on error. */
static ssize_t read_full(int fd, void *data, size_t size)
{
    size_t got = 0;

    while (got < size) {
        ssize_t n = read(fd, (char *)data + got, size - got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

/* Makes room for more in a buffer that grows to at most one byte over `most`: that byte tells that
 * the content is too large. */
static tt_err grow(const char *path, uint8_t **data, size_t *room, size_t most)
{
    size_t next = *room ? tt_mul_size(*room, 2) : 1 << 16;
    uint8_t *p;

    if (most && next > most) next = most + 1;
    p = next > PTRDIFF_MAX ? NULL : realloc(*data, next);
    if (!p) return tt_fail(TT_ENOMEM, "reading %s: no memory for %zu bytes", path, next);
    *data = p;
    *room = next;
    return TT_OK;
}

/* Everything from a descriptor whose size is not known: a pipe, a file of /proc. */
static tt_err read_stream(const char *path, int fd, size_t most, tt_bytes *out)
{
    tt_err err = TT_OK;
    uint8_t *data = NULL;
    size_t size = 0, room = 0;
    ssize_t n;

    for (;;) {
        if (size == room && (err = grow(path, &data, &room, most))) goto out;
        n = read_full(fd, data + size, room - size);
        if (n < 0) {
            err = tt_fail(TT_EIO, "reading %s: %s", path, strerror(errno));
            goto out;
        }
        size += (size_t)n;
        if (most && size > most) {
            err = tt_too_large(path, (tt_bound){most, ALLOWED});
            goto out;
        }
        if (size < room) break; /* the end: read_full fills what it can */
    }
    *out = (tt_bytes){.data = data, .size = size};
    data = NULL;
out:
    free(data);
    return err;
}

static tt_err read_mapped(const char *path, int fd, size_t size, size_t most, tt_bytes *out)
{
    void *p;

    if (most && size > most) return tt_too_large(path, (tt_bound){most, ALLOWED});
    p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) return tt_fail(TT_EIO, "mapping %s: %s", path, strerror(errno));
    *out = (tt_bytes){.data = p, .size = size, .mapped = true};
    return TT_OK;
}

/* Opens a file to read and looks at it. On error *fd is -1. */
static tt_err open_file(const char *path, int flags, int *fd, struct stat *st)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (*fd < 0) return tt_fail(TT_EIO, "cannot open %s: %s", path, strerror(errno));
    if (fstat(*fd, st) == 0) {
        if (!S_ISDIR(st->st_mode)) return TT_OK;
        errno = EISDIR;
    }
    tt_fail(TT_EIO, "cannot read %s: %s", path, strerror(errno));
    close(*fd);
    *fd = -1;
    return TT_EIO;
}

static bool starts_packed(int fd)
{
    uint8_t magic[2];

    return pread(fd, magic, 2, 0) == 2 && tt_gzip_is(magic, 2);
}

tt_err tt_file_read(const char *path, size_t most, tt_bytes *out)
{
    tt_err err;
    struct stat st;
    tt_bytes raw = {0};
    int fd;

    *out = (tt_bytes){0};
    if ((err = open_file(path, 0, &fd, &st))) return err;
    if (S_ISREG(st.st_mode) && st.st_size > 0)
        err = read_mapped(path, fd, (size_t)st.st_size, starts_packed(fd) ? 0 : most, &raw);
    else
        err = read_stream(path, fd, most, &raw);
    if (err) goto out;
    if (tt_gzip_is(raw.data, raw.size))
        err = tt_gzip_inflate(path, &raw, (tt_bound){most, ALLOWED}, 0, out);
    else {
        *out = raw;
        raw = (tt_bytes){0};
    }
out:
    tt_file_release(&raw);
    close(fd);
    return err;
}

/* A header is read to be believed, within what the machine can hold. */
static tt_err inflate_promised(const char *path, const tt_bytes *in, tt_promise *promise,
                               tt_bytes *out)
{
    size_t available = tt_mem_free(), promised = 0;
    uint8_t head[4096];

    if (promise) promised = promise(head, tt_gzip_peek(in, head, sizeof head));
    if (promised > available)
        return tt_fail(TT_EFORMAT,
                       "%s: its header announces %zu bytes, more than the %zu bytes of memory "
                       "that are free",
                       path, promised, available);
    if (promised)
        return tt_gzip_inflate(path, in, (tt_bound){promised, "its header announces"}, promised,
                               out);
    return tt_gzip_inflate(path, in, (tt_bound){available, "of memory that are free"}, 0, out);
}

tt_err tt_file_map(const char *path, tt_bytes *out)
{
    tt_err err;
    struct stat st;
    int fd;

    *out = (tt_bytes){0};
    /* Without waiting: to open a pipe that nobody writes to would take for ever. */
    if ((err = open_file(path, O_NONBLOCK, &fd, &st))) return err;
    if (!S_ISREG(st.st_mode)) {
        err = tt_fail(TT_EFORMAT, "%s is no regular file, but a device or a pipe", path);
        goto out;
    }
    if (st.st_size > 0) err = read_mapped(path, fd, (size_t)st.st_size, 0, out);
out:
    close(fd);
    return err;
}

tt_err tt_file_read_data(const char *path, tt_promise *promise, tt_bytes *out)
{
    tt_bytes raw;
    tt_err err;

    *out = (tt_bytes){0};
    if ((err = tt_file_map(path, &raw))) return err;
    if (!tt_gzip_is(raw.data, raw.size)) {
        *out = raw;
        return TT_OK;
    }
    err = inflate_promised(path, &raw, promise, out);
    tt_file_release(&raw);
    return err;
}

void tt_file_release(tt_bytes *b)
{
    if (b->mapped)
        munmap((void *)b->data, b->size);
    else if (b->room)
        tt_block_free((void *)b->data, b->room);
    else
        free((void *)b->data);
    *b = (tt_bytes){0};
}

/* ---- writing ---- */

bool tt_write_all(int fd, const void *data, size_t size, size_t *done)
{
    size_t at = 0;

    while (at < size) {
        ssize_t n = write(fd, (const char *)data + at, size - at);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC;
        if (n <= 0) break;
        at += (size_t)n;
    }
    if (done) *done = at;
    return at == size;
}

/* The folder that holds `path`, opened: fsync of it makes a rename in it last. */
static int open_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir;
    int fd;

    if (!slash) return open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    dir = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (!dir) tt_mem_out((size_t)(slash - path));
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    return fd;
}

/* Some file systems have no fsync for folders and say EINVAL; their renames last anyway. */
static int sync_dir(int fd)
{
    return fsync(fd) && errno != EINVAL ? -1 : 0;
}

tt_err tt_file_write(const char *path, const void *data, size_t size)
{
    tt_err err = TT_OK;
    size_t room = strlen(path) + 5;
    char *tmp = malloc(room);
    int dir = -1, fd = -1;
    bool made = false;

    if (!tmp) return tt_fail(TT_ENOMEM, "writing %s", path);
    snprintf(tmp, room, "%s.tmp", path);
    if ((dir = open_parent(path)) < 0) goto fail;
    fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) goto fail;
    made = true;
    if (!tt_write_all(fd, data, size, NULL) || fsync(fd)) goto fail;
    if (close(fd)) {
        fd = -1;
        goto fail;
    }
    fd = -1;
    if (rename(tmp, path)) goto fail;
    made = false;
    if (sync_dir(dir)) goto fail;
    goto out;
fail:
    err = tt_fail(TT_EIO, "writing %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    if (made) unlink(tmp);
out:
    if (dir >= 0) close(dir);
    free(tmp);
    return err;
}

/* ---- folders ---- */

bool tt_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* One folder, and the word of it in the one above; true if it is there. */
static bool make_one(const char *path)
{
    struct stat st;
    bool ok;
    int why, fd;

    if (mkdir(path, 0777)) {
        /* A link to a folder is one too, so ask what is there instead of trusting EEXIST. */
        why = errno;
        ok = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
        errno = why;
        return ok;
    }
    if ((fd = open_parent(path)) < 0) return false;
    ok = sync_dir(fd) == 0;
    why = errno;
    close(fd);
    errno = why;
    return ok;
}

tt_err tt_dir_make(const char *path)
{
    tt_err err = TT_OK;
    char *part = strdup(path);

    if (!part) return tt_fail(TT_ENOMEM, "making the folder %s", path);
    for (char *p = part + (*part != 0); !err; p++) {
        char c = *p;
        if (c && (c != '/' || p[-1] == '/')) continue;
        *p = 0;
        if ((c || p == part || p[-1] != '/') && !make_one(part))
            err = tt_fail(TT_EIO, "making the folder %s: %s: %s", path, part, strerror(errno));
        *p = c;
        if (!c) break;
    }
    free(part);
    return err;
}

tt_err tt_dir_sync(const char *path)
{
    tt_err err = TT_OK;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 || sync_dir(fd))
        err = tt_fail(TT_EIO, "syncing the folder %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return err;
}

/* Removes what is in the folder `name` of `at`, and the folder. Returns 0, or -1 with errno. */
static int remove_tree(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), rc = 0, kept;
    DIR *d;
    struct dirent *e;

    if (fd < 0) return -1;
    if (!(d = fdopendir(fd))) {
        close(fd);
        return -1;
    }
    while (!rc && (errno = 0, e = readdir(d))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        /* unlink first: whatever is no folder goes, and a link is never entered. */
        if (unlinkat(fd, e->d_name, 0) == 0 || errno == ENOENT) continue;
        if (errno != EISDIR && errno != EPERM)
            rc = -1;
        else
            rc = remove_tree(fd, e->d_name);
    }
    if (!rc && errno) rc = -1;
    kept = errno;
    closedir(d);
    errno = kept;
    return rc ? rc : unlinkat(at, name, AT_REMOVEDIR);
}

tt_err tt_dir_remove(const char *path)
{
    struct stat st;

    if (lstat(path, &st) && errno == ENOENT) return TT_OK;
    if (remove_tree(AT_FDCWD, path))
        return tt_fail(TT_EIO, "removing the folder %s: %s", path, strerror(errno));
    return TT_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

tt_err tt_dir_list(const char *path, char ***out, int *count)
{
    tt_err err = TT_OK;
    char **names = NULL, **more;
    int n = 0, room = 0;
    struct dirent *e;
    DIR *d = opendir(path);

    *out = NULL;
    *count = 0;
    if (!d) return tt_fail(TT_EIO, "cannot list the folder %s: %s", path, strerror(errno));
    while ((errno = 0, e = readdir(d))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (n == room) {
            room = room ? room * 2 : 16;
            if (room <= 0 || !(more = realloc(names, (size_t)room * sizeof *names))) goto no_memory;
            names = more;
        }
        if (!(names[n] = strdup(e->d_name))) goto no_memory;
        n++;
    }
    if (errno) {
        err = tt_fail(TT_EIO, "cannot list the folder %s: %s", path, strerror(errno));
        goto out;
    }
    if (n) qsort(names, (size_t)n, sizeof *names, compare_names);
    *out = names;
    *count = n;
    names = NULL;
    n = 0;
    goto out;
no_memory:
    err = tt_fail(TT_ENOMEM, "listing the folder %s", path);
out:
    tt_dir_free(names, n);
    closedir(d);
    return err;
}

void tt_dir_free(char **names, int count)
{
    for (int i = 0; i < count; i++) free(names[i]);
    free(names);
}

/* ---- fingerprints ---- */

tt_sha *tt_sha_begin(void)
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();

    if (!c || EVP_DigestInit_ex(c, EVP_sha256(), NULL) != 1) tt_mem_out(256);
    return (tt_sha *)c;
}

void tt_sha_add(tt_sha *s, const void *data, size_t size)
{
    TT_ASSERT(EVP_DigestUpdate((EVP_MD_CTX *)s, data, size) == 1);
}

void tt_sha_end(tt_sha *s, char hex[65])
{
    unsigned char raw[32];

    TT_ASSERT(EVP_DigestFinal_ex((EVP_MD_CTX *)s, raw, NULL) == 1);
    EVP_MD_CTX_free((EVP_MD_CTX *)s);
    for (int i = 0; i < 32; i++) {
        hex[2 * i] = "0123456789abcdef"[raw[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[raw[i] & 15];
    }
    hex[64] = 0;
}

tt_err tt_sha_file(const char *path, char hex[65])
{
    enum { ROOM = 1 << 16 };
    tt_err err;
    struct stat st;
    tt_sha *s;
    uint8_t *buffer;
    ssize_t n;
    int fd;

    hex[0] = 0;
    if ((err = open_file(path, 0, &fd, &st))) return err;
    if (!(buffer = malloc(ROOM))) tt_mem_out(ROOM);
    s = tt_sha_begin();
    while ((n = read_full(fd, buffer, ROOM)) > 0) tt_sha_add(s, buffer, (size_t)n);
    if (n < 0) err = tt_fail(TT_EIO, "reading %s: %s", path, strerror(errno));
    tt_sha_end(s, hex);
    if (err) hex[0] = 0;
    free(buffer);
    close(fd);
    return err;
}

/* ---- CRC-32C ---- */

static uint32_t crc_table[8][256];

static void make_crc_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
        crc_table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++) {
            uint32_t c = crc_table[t - 1][i];
            crc_table[t][i] = c >> 8 ^ crc_table[0][c & 255];
        }
}

/* Eight bytes at a time, each through the table of its distance from the end. */
uint32_t tt_crc32c_soft(const void *data, size_t size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const uint8_t *p = data;
    uint32_t c = 0xFFFFFFFFu;

    pthread_once(&once, make_crc_table);
    for (; size >= 8; size -= 8, p += 8) {
        c ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        c = crc_table[7][c & 255] ^ crc_table[6][c >> 8 & 255] ^ crc_table[5][c >> 16 & 255] ^
            crc_table[4][c >> 24] ^ crc_table[3][p[4]] ^ crc_table[2][p[5]] ^ crc_table[1][p[6]] ^
            crc_table[0][p[7]];
    }
    for (; size > 0; size--, p++) c = c >> 8 ^ crc_table[0][(c ^ *p) & 255];
    return ~c;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse(const void *data, size_t size)
{
    const uint8_t *p = data;
    uint64_t c = 0xFFFFFFFFu, word;

    for (; size >= 8; size -= 8, p += 8) {
        memcpy(&word, p, 8);
        c = __builtin_ia32_crc32di(c, word);
    }
    for (; size > 0; size--, p++) c = __builtin_ia32_crc32qi((uint32_t)c, *p);
    return ~(uint32_t)c;
}
#endif

uint32_t tt_crc32c(const void *data, size_t size)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2")) return crc32c_sse(data, size);
#endif
    return tt_crc32c_soft(data, size);
}
