/* vault: a slot, from taking it to leaving it. vault_inner.h has the file, commit.h its states.
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
 * The mapping is made from the descriptor that is locked, then or later, so it holds the lock as
 * well: the kernel cannot drop that before the last page of the mapping is gone. A fork would share
 * both with the child, which might outlive us: it gets neither. */
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

/* What is asked for, and where. */
typedef struct slot {
    char *folder;
    int dir, number; /* dir: open while that goes on */
    char name[VAULT_NAME], fresh[VAULT_NAME];
    uint64_t key, bytes, size;
    double wait_s, until_s;
} slot;

struct tt_vault {
    slot slot;
    int lock, fd;     /* the file twice: the second without the lock, for others */
    vault_head *head; /* the mapping of it all; NULL in the child of a fork      */
    size_t room;
    bool in_memory;      /* or on a disk */
    bool ours;           /* its lock is  */
    int next;            /* the half that was begun; -1: none */
    tt_vault_half *half; /* (2) what look tells */
    tt_vault *other;     /* the list of all there are in this process */
};

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
        v->ours = false;
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

/* Opens a file as the one to be locked; not while another thread forks, whose child would keep a
 * descriptor that nobody knows of. -1 and errno. */
static int open_listed(tt_vault *v, const char *name, int flags)
{
    struct stat st;
    int why;

    pthread_mutex_lock(&list_lock);
    v->lock = tt_vault_openat(v->slot.dir, name, O_RDWR | flags, &st);
    why = errno;
    pthread_mutex_unlock(&list_lock);
    errno = why;
    return v->lock;
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

static tt_err not_locked(const tt_vault *v, int why)
{
    const slot *s = &v->slot;
    char who[64];

    if (why != EWOULDBLOCK)
        return tt_fail(TT_EIO, "lock slot %d of %s: %s", s->number, s->folder, strerror(why));
    return tt_fail(TT_EPEER,
                   "slot %d of %s: %s still has it after %.1f s: wait for it to end, or end it",
                   s->number, s->folder, tt_vault_holder(v->lock, who, sizeof who), s->wait_s);
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

/* Gives up the file, as if it had not been opened. */
static void unmap(tt_vault *v)
{
    void *map = v->head;

    pthread_mutex_lock(&list_lock);
    v->head = NULL;
    if (v->lock >= 0) close(v->lock);
    v->lock = -1;
    pthread_mutex_unlock(&list_lock);
    if (map) munmap(map, v->slot.size);
}

/* Opens a file of the slot and takes its lock. v->lock is -1 if there is none by that name. What is
 * no regular file is none of ours and goes. */
static tt_err lock_name(tt_vault *v, const char *name, int flags)
{
    const slot *s = &v->slot;
    tt_err err;

    for (;;) {
        if (open_listed(v, name, flags) < 0) {
            int why = errno;
            bool odd = why == EINVAL || why == ELOOP || why == ENXIO;
            if (why == ENOENT && !(flags & O_CREAT)) return TT_OK;
            if (odd && (!unlinkat(s->dir, name, 0) || errno == ENOENT)) continue;
            return why == ENOENT ? tt_fail(TT_EIO, "the folder %s was removed", s->folder)
                                 : no_room(s, why);
        }
        if (!tt_vault_lock(v->lock, LOCK_EX, s->until_s)) {
            err = not_locked(v, errno);
            unmap(v);
            return err;
        }
        if (tt_vault_is_named(s->dir, name, v->lock)) return TT_OK; /* keeps (1) */
        unmap(v);
    }
}

/* ---- memory ---- */

static tt_err map_file(tt_vault *v)
{
    const slot *s = &v->slot;
    void *p;
    int why = 0;

    pthread_mutex_lock(&list_lock); /* no fork between the two */
    p = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_SHARED, v->lock, 0);
    if (p == MAP_FAILED) {
        why = errno;
    } else if (madvise(p, s->size, MADV_DONTFORK)) {
        why = errno;
        munmap(p, s->size);
    } else {
        v->head = p;
    }
    pthread_mutex_unlock(&list_lock);
    if (why) return no_room(s, why);
    madvise(p, s->size, MADV_HUGEPAGE); /* where the file system has them: tmpfs, huge=advise */
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
static tt_err reserve(tt_vault *v)
{
    const slot *s = &v->slot;
    struct rlimit most;
    tt_err err;

    /* Of a file over the limit the kernel tells by a signal that kills. */
    if (!getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur < s->size) return no_room(s, EFBIG);
    /* To be refused is better than to be killed: memory is given until there is none. */
    if (tt_vault_free(s->dir) + VAULT_PAGE < s->size) return no_room(s, ENOSPC);
    if (ftruncate(v->lock, (off_t)s->size)) return no_room(s, errno);
    if ((err = map_file(v))) return err;
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

/* The file that is open: is it what is asked for? Then what is in it is the state. */
static bool fits(tt_vault *v)
{
    struct stat st;
    vault_head h;

    if (fstat(v->lock, &st) || !tt_vault_head_read(v->lock, &st, &h)) return false;
    if (h.key != v->slot.key || h.bytes != v->slot.bytes) return false;
    tt_vault_halves(&h, v->half);
    return true;
}

/* Takes the slot if it is there and fits; else sees to it that it is not there. */
static tt_err take_old(tt_vault *v, bool *done)
{
    const slot *s = &v->slot;
    tt_err err = TT_OK;

    if ((err = lock_name(v, s->name, 0)) || v->lock < 0) return err;
    if (fits(v)) {
        if (!(err = map_file(v))) *done = true;
        return err;
    }
    tt_info("slot %d of %s holds something else: it is made new", s->number, s->folder);
    /* Before there is a new one, since there may be no room for both. */
    if (unlinkat(s->dir, s->name, 0))
        err = tt_fail(TT_EIO, "remove the old slot %d of %s: %s", s->number, s->folder,
                      strerror(errno));
    unmap(v);
    return err;
}

static tt_err fill_new(tt_vault *v)
{
    const slot *s = &v->slot;
    int64_t pid = getpid();
    vault_head *h;
    tt_err err;

    /* First of all, for those who wait; and it marks the file as begun. */
    if (pwrite(v->lock, &pid, sizeof pid, offsetof(vault_head, pid)) != sizeof pid)
        return no_room(s, errno);
    if ((err = reserve(v))) return err;
    h = v->head;
    h->key = s->key;
    h->bytes = s->bytes;
    tt_vault_boot(h->boot);
    snprintf(h->version, sizeof h->version, "%s", TT_VERSION);
    atomic_store(&h->magic, VAULT_MAGIC);
    if (renameat(s->dir, s->fresh, s->dir, s->name)) return no_room(s, errno);
    return TT_OK;
}

/* Makes the slot, unless somebody was faster. */
static tt_err make_new(tt_vault *v, bool *done)
{
    const slot *s = &v->slot;
    struct stat st;
    tt_err err;

    for (;;) {
        if ((err = lock_name(v, s->fresh, O_CREAT))) return err;
        if (!fstat(v->lock, &st) && st.st_size == 0) break;
        unlinkat(s->dir, s->fresh, 0); /* its maker was killed */
        unmap(v);
    }
    if (fstatat(s->dir, s->name, &st, AT_SYMLINK_NOFOLLOW)) { /* and it stays so, by (2) */
        v->half[0] = v->half[1] = (tt_vault_half){.label.step = -1};
        err = fill_new(v);
        if (!err) *done = true;
    }
    if (*done) return TT_OK;
    unlinkat(s->dir, s->fresh, 0);
    unmap(v);
    return err;
}

/* The other descriptor, and the pid for those who wait. */
static tt_err enter(tt_vault *v)
{
    const slot *s = &v->slot;
    struct stat st;

    v->fd = tt_vault_openat(s->dir, s->name, O_RDWR, &st);
    if (v->fd < 0 || !tt_vault_is_named(s->dir, s->name, v->lock))
        return tt_fail(TT_EIO, "slot %d of %s was removed while it was opened", s->number,
                       s->folder);
    atomic_store(&v->head->pid, (int64_t)getpid());
    futimens(v->lock, NULL); /* stores do not show in its times */
    v->ours = true;
    return TT_OK;
}

uint64_t tt_vault_need(size_t bytes)
{
    return bytes > VAULT_MOST ? UINT64_MAX : VAULT_PAGE + 2 * vault_room(bytes);
}

/* Nothing but what is asked for is known of it. */
static tt_err new_vault(const char *folder, int number, uint64_t key, size_t bytes, tt_vault **out)
{
    tt_vault *v;
    slot *s;

    *out = NULL;
    if (number < 0 || !bytes) return tt_fail(TT_EINVAL, "slot %d of %zu bytes", number, bytes);
    if (bytes > VAULT_MOST) return tt_fail(TT_EENV, "a slot with halves of %zu bytes", bytes);
    if (!(v = calloc(1, sizeof *v))) return tt_fail(TT_ENOMEM, "open slot %d: no memory", number);
    s = &v->slot;
    *s = (slot){.dir = -1, .number = number, .key = key, .bytes = bytes};
    s->size = tt_vault_need(bytes);
    snprintf(s->name, sizeof s->name, VAULT_SLOT, number);
    snprintf(s->fresh, sizeof s->fresh, VAULT_FRESH, number);
    v->lock = v->fd = v->next = -1;
    v->room = vault_room(bytes);
    list_add(v);
    s->folder = strdup(folder);
    v->half = calloc(2, sizeof *v->half);
    if (!s->folder || !v->half) {
        tt_vault_close(v);
        return tt_fail(TT_ENOMEM, "open slot %d: no memory", number);
    }
    v->half[0].label.step = v->half[1].label.step = -1;
    *out = v;
    return TT_OK;
}

static void close_dir(tt_vault *v)
{
    if (v->slot.dir >= 0) close(v->slot.dir);
    v->slot.dir = -1;
}

static tt_err take_slot(tt_vault *v, double wait_s)
{
    bool done = false;
    tt_err err;

    v->slot.wait_s = wait_s;
    v->slot.until_s = tt_clock_s() + (wait_s > VAULT_GRACE_S ? wait_s : VAULT_GRACE_S);
    if ((err = tt_vault_dir(v->slot.folder, &v->slot.dir))) return err;
    v->in_memory = tt_vault_on_tmpfs(v->slot.dir);
    while (!done) {
        if ((err = take_old(v, &done))) return err;
        if (!done && (err = make_new(v, &done))) return err;
    }
    if ((err = enter(v))) return err;
    close_dir(v);
    TT_FAILPOINT("vault.taken");
    return TT_OK;
}

tt_err tt_vault_open(const char *folder, int number, uint64_t key, size_t bytes, double wait_s,
                     tt_vault **out)
{
    tt_err err = new_vault(folder, number, key, bytes, out);

    if (err || !(err = take_slot(*out, wait_s))) return err;
    tt_vault_close(*out);
    *out = NULL;
    return err;
}

void tt_vault_close(tt_vault *v)
{
    if (!v) return;
    list_drop(v);
    close_dir(v);
    if (v->head && v->ours) {
        atomic_store(&v->head->pid, 0);
        munmap(v->head, v->slot.size);
        v->head = NULL;
        /* Said, not left to close(): a program that is just being started may have a copy. */
        flock(v->lock, LOCK_UN);
    }
    unmap(v);
    if (v->fd >= 0) close(v->fd);
    free(v->slot.folder);
    free(v->half);
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
    return v->ours ? tt_commit_current(&v->head->commit) : -1;
}

const tt_vault_half *tt_vault_look(const tt_vault *v, int half)
{
    TT_ASSERT(half == 0 || half == 1);
    return &v->half[half];
}

/* What look tells, after a change: the description as it is in the head. */
static void look_again(tt_vault *v)
{
    tt_vault_halves(v->head, v->half);
}

int tt_vault_begin(tt_vault *v)
{
    TT_ASSERT(v->ours && v->head);
    if (v->next >= 0) return v->next;
    v->next = tt_commit_begin(&v->head->commit);
    v->half[v->next].label.step = -1;
    return v->next;
}

void tt_vault_marks(tt_vault *v, _Atomic uint64_t **whole, _Atomic uint64_t **begun)
{
    tt_commit_marks(&v->head->commit, whole, begun);
}

static void write_note(tt_vault *v, int half, const void *note, size_t size)
{
    vault_note *to = &v->head->note[half][tt_commit_spare(&v->head->commit, half)];

    TT_ASSERT(size <= TT_VAULT_NOTE);
    to->size = (uint32_t)size;
    if (size) memcpy(to->text, note, size);
    tt_commit_amend(&v->head->commit, half);
}

void tt_vault_commit(tt_vault *v, const tt_vault_half *what)
{
    tt_commit c = {.label = what->label, .hash = what->hash};
    int next = v->next;

    TT_ASSERT(v->ours && v->head && next >= 0);
    TT_ASSERT(what->label.step >= 0 && what->label.step < INT64_MAX / 4);
    write_note(v, next, what->note, what->note_size);
    TT_FAILPOINT("vault.noted");
    tt_commit_describe(&v->head->commit, next, &c);
    TT_FAILPOINT("vault.described");
    tt_commit_flip(&v->head->commit, next);
    TT_FAILPOINT("vault.flipped");
    v->next = -1;
    look_again(v);
}

void tt_vault_amend(tt_vault *v, const void *note, size_t size)
{
    int now;

    TT_ASSERT(v->ours && v->head);
    now = tt_commit_current(&v->head->commit);
    TT_ASSERT(now >= 0);
    write_note(v, now, note, size);
    TT_FAILPOINT("vault.amended");
    look_again(v);
}

bool tt_vault_undo(tt_vault *v)
{
    TT_ASSERT(v->ours && v->head);
    if (!tt_commit_undo(&v->head->commit)) return false;
    TT_FAILPOINT("vault.undone");
    look_again(v);
    return true;
}
