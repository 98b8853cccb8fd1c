/* vault: a slot, from taking it to leaving it. vault_inner.h has the file and its states.
 *
 * Who may do what to the files of a slot, so that no two processes ever have one:
 *
 *   (1) "slot-3" is written to, or removed, only by who holds its lock; and a lock counts only
 *       if the name still leads to the file that was locked.
 *
 *   (2) The name is given only to a finished file, by renaming "slot-3.new", by who holds the
 *       lock of that one, and only where there is none. The lock goes along with the file.
 *
 *   (3) No file is cut or made longer once it has the name: others may have it mapped. One that
 *       does not fit loses its name, and lives until the last of them is gone.
 *
 * The mapping is made from the descriptor that is locked, so it holds the lock as well: the kernel
 * cannot drop that before the last page of the mapping is gone. A fork would share both with the
 * child, which might outlive us: it gets neither. */
#define _GNU_SOURCE
#include "vault_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* RESERVE: a signal makes fallocate undo its whole call on tmpfs, so its calls are short, and get
 * shorter. */
enum { RESERVE = 16 << 20, SHORT_NS = 200 * 1000, LONG_NS = 2 * 1000 * 1000 };

struct tt_vault {
    int lock, fd;     /* the file twice: the second without the lock, for others */
    vault_head *head; /* the mapping of it all; NULL in the child of a fork      */
    size_t size, room;
    bool in_memory; /* or on a disk */
    uint64_t word;
    int next; /* the half that was begun; -1: none */
    tt_vault_half half[2];
    tt_vault *other; /* the list of what is open in this process */
};

/* What is asked for, and where. */
typedef struct slot {
    const char *folder;
    int dir, number;
    char name[VAULT_NAME], fresh[VAULT_NAME];
    uint64_t key, bytes, size;
    double wait_s, until_s;
} slot;

/* ---- forks ---- */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static tt_vault *list;

static void before_fork(void)
{
    pthread_mutex_lock(&list_lock);
}
static void after_fork(void)
{
    pthread_mutex_unlock(&list_lock);
}

static void in_child(void)
{
    for (tt_vault *v = list; v; v = v->other) {
        close(v->lock); /* the parent's lock stays: this was one more reference to it */
        v->lock = -1;
        v->head = NULL; /* MADV_DONTFORK */
    }
    after_fork();
}

static void watch_forks(void)
{
    TT_ASSERT(!pthread_atfork(before_fork, after_fork, in_child));
}

static void list_add(tt_vault *v)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&list_lock);
    v->other = list;
    list = v;
    pthread_mutex_unlock(&list_lock);
}

static void list_drop(const tt_vault *v)
{
    pthread_mutex_lock(&list_lock);
    for (tt_vault **p = &list; *p; p = &(*p)->other)
        if (*p == v) {
            *p = v->other;
            break;
        }
    pthread_mutex_unlock(&list_lock);
}

/* ---- locks ---- */

bool tt_vault_lock(int fd, int kind, double until_s)
{
    long pause = SHORT_NS;

    while (flock(fd, kind | LOCK_NB)) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK || tt_clock_s() >= until_s) return false;
        nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
        if (pause < LONG_NS) pause *= 2;
    }
    return true;
}

char *tt_vault_holder(int fd, char *buf, size_t size)
{
    int64_t pid = 0;

    if (pread(fd, &pid, sizeof pid, offsetof(vault_head, pid)) == sizeof pid && pid > 0 &&
        pid <= INT32_MAX && (!kill((pid_t)pid, 0) || errno == EPERM))
        snprintf(buf, size, "process %d", (int)pid);
    else
        snprintf(buf, size, "another process");
    return buf;
}

static tt_err taken(const slot *s, int fd)
{
    char who[64];

    return tt_fail(TT_EPEER,
                   "slot %d of %s: %s still has it after %.1f s: wait for it to end, or end it",
                   s->number, s->folder, tt_vault_holder(fd, who, sizeof who), s->wait_s);
}

bool tt_vault_is_named(int dir, const char *name, int fd)
{
    struct stat a, b;

    return !fstat(fd, &a) && !fstatat(dir, name, &b, AT_SYMLINK_NOFOLLOW) && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static tt_err no_room(const slot *s, int why)
{
    char need[32], there[32];

    if (why != ENOSPC && why != EDQUOT && why != ENOMEM && why != EFBIG)
        return tt_fail(TT_EIO, "make slot %d of %s: %s", s->number, s->folder, strerror(why));
    return tt_fail(TT_EENV,
                   "slot %d of %s: %s are needed, %s free (%s): make room there (what killed runs "
                   "left, a larger /dev/shm), or use fewer workers on this host",
                   s->number, s->folder, tt_show_bytes((double)s->size, need, sizeof need),
                   tt_show_bytes((double)tt_vault_free(s->dir), there, sizeof there),
                   strerror(why));
}

/* Opens a file of the slot and takes its lock. *fd -1: there is none by that name. What is no
 * regular file is none of ours and goes. */
static tt_err lock_name(const slot *s, const char *name, int flags, int *fd)
{
    struct stat st;
    tt_err err;

    for (;;) {
        *fd = tt_vault_openat(s->dir, name, O_RDWR | flags, &st);
        if (*fd < 0 && errno == ENOENT && !(flags & O_CREAT)) return TT_OK;
        if (*fd < 0) {
            int why = errno;
            bool odd = why == EINVAL || why == ELOOP || why == ENXIO;
            if (odd && (!unlinkat(s->dir, name, 0) || errno == ENOENT)) continue;
            return why == ENOENT ? tt_fail(TT_EIO, "the folder %s was removed", s->folder)
                                 : no_room(s, why);
        }
        if (!tt_vault_lock(*fd, LOCK_EX, s->until_s)) {
            err = errno == EWOULDBLOCK ? taken(s, *fd)
                                       : tt_fail(TT_EIO, "lock slot %d of %s: %s", s->number,
                                                 s->folder, strerror(errno));
            break;
        }
        if (tt_vault_is_named(s->dir, name, *fd)) return TT_OK; /* keeps (1) */
        close(*fd);
    }
    close(*fd);
    *fd = -1;
    return err;
}

/* ---- memory ---- */

static tt_err map_file(const slot *s, tt_vault *v)
{
    void *p = mmap(NULL, v->size, PROT_READ | PROT_WRITE, MAP_SHARED, v->lock, 0);

    if (p == MAP_FAILED) return no_room(s, errno);
    v->head = p;
    if (madvise(p, v->size, MADV_DONTFORK))
        return tt_fail(TT_EIO, "map slot %d of %s: %s", s->number, s->folder, strerror(errno));
    madvise(p, v->size, MADV_HUGEPAGE); /* where the file system has them: tmpfs with huge=advise */
    return TT_OK;
}

/* Page tables now instead of faults in the first step; in memory only: it would read a disk. */
static void populate(tt_vault *v, size_t at, size_t n)
{
    if (v->in_memory) madvise((char *)v->head + at, n, MADV_POPULATE_WRITE);
}

/* All of the file's memory, so that no store can find that there is none. Through the mapping
 * first: only so may pages be huge, and it is one pass instead of two. Its failures are left to
 * fallocate to tell. */
static tt_err reserve(const slot *s, tt_vault *v)
{
    struct rlimit most;
    tt_err err;

    /* Of a file over the limit the kernel tells by a signal that kills. */
    if (!getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur < s->size) return no_room(s, EFBIG);
    /* To be refused is better than to be killed: memory is given until there is none. */
    if (tt_vault_free(s->dir) + VAULT_PAGE < s->size) return no_room(s, ENOSPC);
    if (ftruncate(v->lock, (off_t)s->size)) return no_room(s, errno);
    if ((err = map_file(s, v))) return err;
    for (size_t at = 0, n, most_now = RESERVE; at < s->size; at += n) {
        int why;
        n = s->size - at < most_now ? s->size - at : most_now;
        populate(v, at, n);
        why = posix_fallocate(v->lock, (off_t)at, (off_t)n);
        if (why && why != EINTR) return no_room(s, why);
        if (why) n = 0;
        if (why && most_now > VAULT_PAGE) most_now /= 2;
    }
    return TT_OK;
}

void tt_vault_boot(char out[40])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, 36);

    if (fd >= 0) close(fd);
    memset(out + (n > 0 ? n : 0), 0, 40 - (size_t)(n > 0 ? n : 0));
}

/* ---- taking a slot ---- */

static void unmap(tt_vault *v)
{
    if (v->head) munmap(v->head, v->size);
    v->head = NULL;
    if (v->lock >= 0) close(v->lock);
    v->lock = -1;
}

/* The file whose lock is held: is it what is asked for? Then what is in it is the state. */
static bool fits(const slot *s, tt_vault *v)
{
    struct stat st;
    vault_head h;

    if (fstat(v->lock, &st) || !tt_vault_head_read(v->lock, &st, &h)) return false;
    if (h.key != s->key || h.bytes != s->bytes) return false;
    v->word = h.word;
    tt_vault_halves(&h, v->half);
    return true;
}

/* Takes the slot if it is there and fits; else sees to it that it is not there. */
static tt_err take_old(const slot *s, tt_vault *v, bool *done)
{
    tt_err err = lock_name(s, s->name, 0, &v->lock);

    if (err || v->lock < 0) return err;
    if (fits(s, v)) {
        if ((err = map_file(s, v))) return err;
        populate(v, 0, v->size);
        *done = true;
        return TT_OK;
    }
    tt_info("slot %d of %s holds something else: it is made new", s->number, s->folder);
    /* Before there is a new one, since there may be no room for both. */
    if (unlinkat(s->dir, s->name, 0))
        err = tt_fail(TT_EIO, "remove the old slot %d of %s: %s", s->number, s->folder,
                      strerror(errno));
    unmap(v);
    return err;
}

static tt_err fill_new(const slot *s, tt_vault *v)
{
    int64_t pid = getpid();
    vault_head *h;
    tt_err err;

    /* First of all, for those who wait; and it marks the file as begun. */
    if (pwrite(v->lock, &pid, sizeof pid, offsetof(vault_head, pid)) != sizeof pid)
        return no_room(s, errno);
    if ((err = reserve(s, v))) return err;
    h = v->head;
    h->key = s->key;
    h->bytes = s->bytes;
    tt_vault_boot(h->boot);
    atomic_store(&h->magic, VAULT_MAGIC);
    if (renameat(s->dir, s->fresh, s->dir, s->name)) return no_room(s, errno);
    return TT_OK;
}

/* Makes the slot, unless somebody was faster. */
static tt_err make_new(const slot *s, tt_vault *v, bool *done)
{
    struct stat st;
    tt_err err;

    for (;;) {
        if ((err = lock_name(s, s->fresh, O_CREAT, &v->lock))) return err;
        if (!fstat(v->lock, &st) && st.st_size == 0) break;
        unlinkat(s->dir, s->fresh, 0); /* its maker was killed */
        unmap(v);
    }
    if (fstatat(s->dir, s->name, &st, AT_SYMLINK_NOFOLLOW)) { /* and it stays so, by (2) */
        v->half[0].step = v->half[1].step = -1;
        err = fill_new(s, v);
        if (!err) *done = true;
    }
    if (*done) return TT_OK;
    unlinkat(s->dir, s->fresh, 0);
    unmap(v);
    return err;
}

/* The other descriptor, and the pid for those who wait. */
static tt_err enter(const slot *s, tt_vault *v)
{
    struct stat st;

    v->fd = tt_vault_openat(s->dir, s->name, O_RDWR, &st);
    if (v->fd < 0 || !tt_vault_is_named(s->dir, s->name, v->lock))
        return tt_fail(TT_EIO, "slot %d of %s was removed while it was opened", s->number,
                       s->folder);
    atomic_store(&v->head->pid, (int64_t)getpid());
    futimens(v->lock, NULL); /* stores do not show in its times */
    list_add(v);
    return TT_OK;
}

uint64_t tt_vault_need(size_t bytes)
{
    return bytes > VAULT_MOST ? UINT64_MAX : VAULT_PAGE + 2 * vault_room(bytes);
}

tt_err tt_vault_open(const char *folder, int number, uint64_t key, size_t bytes, double wait_s,
                     tt_vault **out)
{
    slot s = {.folder = folder,
              .dir = -1,
              .number = number,
              .key = key,
              .bytes = bytes,
              .size = tt_vault_need(bytes),
              .wait_s = wait_s};
    tt_vault *v;
    bool done = false;
    tt_err err;

    *out = NULL;
    if (number < 0 || !bytes) return tt_fail(TT_EINVAL, "slot %d of %zu bytes", number, bytes);
    if (bytes > VAULT_MOST) return tt_fail(TT_EENV, "a slot with halves of %zu bytes", bytes);
    if (!(v = calloc(1, sizeof *v))) return tt_fail(TT_ENOMEM, "open slot %d: no memory", number);
    v->lock = v->fd = v->next = -1;
    v->size = s.size;
    v->room = vault_room(bytes);
    s.until_s = tt_clock_s() + (wait_s > VAULT_GRACE_S ? wait_s : VAULT_GRACE_S);
    snprintf(s.name, sizeof s.name, VAULT_SLOT, number);
    snprintf(s.fresh, sizeof s.fresh, VAULT_FRESH, number);
    if ((err = tt_vault_dir(folder, &s.dir))) goto out;
    v->in_memory = tt_vault_on_tmpfs(s.dir);
    while (!done) {
        if ((err = take_old(&s, v, &done))) goto out;
        if (!done && (err = make_new(&s, v, &done))) goto out;
    }
    if ((err = enter(&s, v))) goto out;
    *out = v;
    v = NULL;
out:
    if (s.dir >= 0) close(s.dir);
    tt_vault_close(v);
    return err;
}

void tt_vault_close(tt_vault *v)
{
    if (!v) return;
    list_drop(v);
    if (v->head) {
        atomic_store(&v->head->pid, 0);
        munmap(v->head, v->size);
        v->head = NULL;
        /* Said, not left to close(): a program that is just being started may have a copy. */
        flock(v->lock, LOCK_UN);
    }
    unmap(v);
    if (v->fd >= 0) close(v->fd);
    free(v);
}

/* ---- the halves ---- */

int tt_vault_fd(const tt_vault *v)
{
    return v->fd;
}

size_t tt_vault_at(const tt_vault *v, int half)
{
    TT_ASSERT(half == 0 || half == 1);
    return VAULT_PAGE + (size_t)half * v->room;
}

void *tt_vault_data(const tt_vault *v, int half)
{
    return v->head ? (char *)v->head + tt_vault_at(v, half) : NULL;
}

int tt_vault_current(const tt_vault *v)
{
    return word_half(v->word);
}

const tt_vault_half *tt_vault_look(const tt_vault *v, int half)
{
    TT_ASSERT(half == 0 || half == 1);
    return &v->half[half];
}

int tt_vault_begin(tt_vault *v)
{
    int now = word_half(v->word), next = now == 0;
    vault_head *h = v->head;

    TT_ASSERT(h);
    if (v->next == next) return next;
    v->next = next;
    v->half[next].step = -1;
    if (now >= 0) atomic_store_explicit(&h->before[now], 0, memory_order_relaxed);
    atomic_fetch_add(&h->begun[next], 1);
    /* Nothing that is written to the half from here on, streaming or not, may be seen sooner. */
    vault_fence();
    return next;
}

void tt_vault_marks(tt_vault *v, _Atomic uint64_t **begun, _Atomic uint64_t **before)
{
    int now = word_half(v->word);

    *begun = &v->head->begun[now == 0];
    *before = now < 0 ? NULL : &v->head->before[now];
}

static void describe(tt_vault_half *to, const tt_vault_half *what)
{
    memcpy(to, what, offsetof(tt_vault_half, note) + what->note_size);
}

void tt_vault_commit(tt_vault *v, const tt_vault_half *what)
{
    int next = v->next;
    vault_head *h = v->head;

    TT_ASSERT(h && next >= 0);
    TT_ASSERT(what->step >= 0 && what->step < INT64_MAX / 4 && what->note_size <= TT_VAULT_NOTE);
    describe(&v->half[next], what);
    describe(&h->half[next], what);
    atomic_store_explicit(&h->before[next], v->word, memory_order_relaxed);
    v->word = word_of(what->step, next);
    v->next = -1;
#ifdef __x86_64__
    __builtin_ia32_sfence(); /* a release does not order streaming stores */
#else
    vault_fence();
#endif
    atomic_store_explicit(&h->word, v->word, memory_order_release);
}

bool tt_vault_undo(tt_vault *v)
{
    int now = word_half(v->word);

    TT_ASSERT(v->head);
    if (now < 0 || v->half[!now].step < 0) return false;
    v->half[now].step = -1;
    v->word = word_of(v->half[!now].step, !now);
    atomic_store_explicit(&v->head->word, v->word, memory_order_release);
    return true;
}
