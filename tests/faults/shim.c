/* shim: a disk that fails at one chosen call, or for a while. For LD_PRELOAD; tests/faults/disk
 * builds and uses it.
 *
 * Looks at the calls on files whose path contains SHIM_FOLDER. Counts them from the first whose
 * path contains SHIM_FROM to the mkdir of that folder, with which the next save begins. At the
 * SHIM_AT-th it does SHIM_DO: "kill" the process before the call, "torn" the same but for a write,
 * of which half is done, or fail with the error of that number; with SHIM_STAY all calls after it
 * fail too. It then writes the name of the call to the file SHIM_SAY. Calls that only read are
 * counted for errors alone: before and after them the disk is the same. With SHIM_WHILE instead,
 * all calls that change something fail with the error as long as a file of that name is there. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FDS = 4096 };
typedef enum kind { READS, CHANGES } kind;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool ours[FDS], armed, over;
static int count;
static __thread bool inside;

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static const char *want(const char *name)
{
    const char *v = getenv(name);
    return v ? v : "";
}

static bool is_ours(int fd)
{
    return fd >= 0 && fd < FDS && ours[fd];
}

static bool ends(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);

    return n >= m && !strcmp(text + n - m, with);
}

static void say(const char *call, const char *path)
{
    char text[4200];
    int n = snprintf(text, sizeof text, "%s %s\n", call, path ? path : ""),
        fd = REAL(open)(want("SHIM_SAY"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    if (fd < 0) return;
    if (REAL(write)(fd, text, (size_t)n) < 0) _exit(99);
    REAL(close)(fd);
}

/* True: the call is to fail, with errno. *torn is set if half of it is to be done first, and then
 * die(). */
static bool hit(kind k, const char *call, const char *path, bool below, bool *torn)
{
    const char *todo = want("SHIM_DO");
    int error = atoi(todo), at = atoi(want("SHIM_AT"));
    bool due = false;

    if (inside) return false;
    if (path && *want("SHIM_FOLDER") && strstr(path, want("SHIM_FOLDER"))) below = true;
    if (!below || (!error && k == READS)) return false;
    if (*want("SHIM_WHILE")) {
        due = k == CHANGES && !REAL(access)(want("SHIM_WHILE"), F_OK);
        errno = due ? error : errno;
        return due;
    }
    pthread_mutex_lock(&lock);
    inside = true;
    if (path && strstr(path, want("SHIM_FROM"))) armed = true;
    if (armed && path && !strcmp(call, "mkdir") && ends(path, want("SHIM_FOLDER"))) over = true;
    if (armed && !over && (torn || strcmp(todo, "torn"))) {
        count++;
        due = count == at || (count > at && *want("SHIM_STAY"));
        if (due) say(call, path);
    }
    if (due && !error && !torn) kill(getpid(), SIGKILL);
    if (due && torn && !error) *torn = true;
    inside = false;
    pthread_mutex_unlock(&lock);
    if (due && error) errno = error;
    return due && error;
}

static void mark(int fd, const char *path, bool below)
{
    if (fd < 0 || fd >= FDS) return;
    ours[fd] = below || (path && *want("SHIM_FOLDER") && strstr(path, want("SHIM_FOLDER")));
}

/* ---- the calls ---- */

int open(const char *path, int flags, ...)
{
    va_list ap;
    mode_t mode;
    int fd;

    va_start(ap, flags);
    mode = (mode_t)va_arg(ap, int);
    va_end(ap);
    if (hit(flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR) ? CHANGES : READS, "open", path, false,
            NULL))
        return -1;
    fd = REAL(open)(path, flags, mode);
    mark(fd, path, false);
    return fd;
}

int __open_2(const char *path, int flags)
{
    return open(path, flags, 0);
}

int openat(int at, const char *path, int flags, ...)
{
    va_list ap;
    mode_t mode;
    int fd;

    va_start(ap, flags);
    mode = (mode_t)va_arg(ap, int);
    va_end(ap);
    if (hit(READS, "openat", path, is_ours(at), NULL)) return -1;
    fd = REAL(openat)(at, path, flags, mode);
    mark(fd, path, is_ours(at));
    return fd;
}

int close(int fd)
{
    bool was = is_ours(fd);

    /* A close that fails has closed all the same. */
    if (hit(READS, "close", NULL, was, NULL)) {
        int why = errno;
        ours[fd] = false;
        REAL(close)(fd);
        errno = why;
        return -1;
    }
    if (was) ours[fd] = false;
    return REAL(close)(fd);
}

ssize_t write(int fd, const void *data, size_t size)
{
    bool torn = false, dies = !strcmp(want("SHIM_DO"), "torn");

    if (hit(CHANGES, "write", NULL, is_ours(fd), dies ? &torn : NULL)) return -1;
    if (!torn) return REAL(write)(fd, data, size);
    if (REAL(write)(fd, data, size / 2) < 0) _exit(99);
    kill(getpid(), SIGKILL);
    return -1;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    return hit(CHANGES, "pwrite", NULL, is_ours(fd), NULL) ? -1 : REAL(pwrite)(fd, data, size, at);
}

int ftruncate(int fd, off_t size)
{
    return hit(CHANGES, "ftruncate", NULL, is_ours(fd), NULL) ? -1 : REAL(ftruncate)(fd, size);
}

int truncate(const char *path, off_t size)
{
    return hit(CHANGES, "truncate", path, false, NULL) ? -1 : REAL(truncate)(path, size);
}

int fdatasync(int fd)
{
    return hit(CHANGES, "fdatasync", NULL, is_ours(fd), NULL) ? -1 : REAL(fdatasync)(fd);
}

ssize_t read(int fd, void *data, size_t size)
{
    return hit(READS, "read", NULL, is_ours(fd), NULL) ? -1 : REAL(read)(fd, data, size);
}

int fsync(int fd)
{
    return hit(CHANGES, "fsync", NULL, is_ours(fd), NULL) ? -1 : REAL(fsync)(fd);
}

int rename(const char *from, const char *to)
{
    return hit(CHANGES, "rename", from, false, NULL) ? -1 : REAL(rename)(from, to);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    return hit(CHANGES, "renameat2", from, false, NULL) ? -1
                                                        : REAL(renameat2)(a, from, b, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    return hit(CHANGES, "mkdir", path, false, NULL) ? -1 : REAL(mkdir)(path, mode);
}

int unlink(const char *path)
{
    return hit(CHANGES, "unlink", path, false, NULL) ? -1 : REAL(unlink)(path);
}

int unlinkat(int at, const char *path, int flags)
{
    return hit(CHANGES, "unlinkat", path, is_ours(at), NULL) ? -1 : REAL(unlinkat)(at, path, flags);
}

int stat(const char *path, struct stat *st)
{
    return hit(READS, "stat", path, false, NULL) ? -1 : REAL(stat)(path, st);
}

int lstat(const char *path, struct stat *st)
{
    return hit(READS, "lstat", path, false, NULL) ? -1 : REAL(lstat)(path, st);
}

int fstat(int fd, struct stat *st)
{
    return hit(READS, "fstat", NULL, is_ours(fd), NULL) ? -1 : REAL(fstat)(fd, st);
}

DIR *opendir(const char *path)
{
    return hit(READS, "opendir", path, false, NULL) ? NULL : REAL(opendir)(path);
}

void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
    return hit(READS, "mmap", NULL, is_ours(fd), NULL)
               ? MAP_FAILED
               : REAL(mmap)(at, size, prot, flags, fd, offset);
}

int posix_fadvise(int fd, off_t offset, off_t size, int advice)
{
    return hit(READS, "posix_fadvise", NULL, is_ours(fd), NULL)
               ? errno
               : REAL(posix_fadvise)(fd, offset, size, advice);
}
