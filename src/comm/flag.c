/* Flags, idling, and memory in common.
 *
 * A flag is changed before `sleepers` is read; a sleeper counts itself before it looks again. Both
 * are sequentially consistent, so either the changer sees the sleeper and wakes it, or the sleeper
 * sees the change. Sleeps are short all the same: whoever sleeps has a deadline to keep. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/carrier.h"

enum { YIELDS = 50, SHORT_NS = 50 * 1000, LONG_NS = 20 * 1000 * 1000 };

void tt_flag_set(tt_flag *f, uint32_t v)
{
    atomic_store(&f->value, v);
    if (atomic_load(&f->sleepers) > 0)
        syscall(SYS_futex, &f->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void sleep_on(tt_flag *f, uint32_t v, long ns)
{
    struct timespec t = {0, ns};
    uint32_t seen;

    if (!f) {
        nanosleep(&t, NULL);
        return;
    }
    atomic_fetch_add(&f->sleepers, 1);
    seen = atomic_load(&f->value);
    if ((int32_t)(seen - v) < 0) syscall(SYS_futex, &f->value, FUTEX_WAIT, seen, &t, NULL, 0);
    atomic_fetch_sub(&f->sleepers, 1);
}

bool tt_idle_once(tt_idle *i, const tt_world *w, tt_flag *f, uint32_t v, bool busy)
{
    int round = i->rounds++;
    double now;

    if (round < w->spins) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        return true;
    }
    if (round == w->spins) i->since = tt_clock_s();
    if (round < w->spins + YIELDS) {
        sched_yield();
        return true;
    }
    sleep_on(f, v, busy ? SHORT_NS : LONG_NS);
    now = tt_clock_s();
    tt_vital_wait(now);
    return now - i->since < (i->limit_s > 0 ? i->limit_s : w->timeout_s);
}

tt_err tt_flag_wait(const tt_world *w, tt_flag *f, uint32_t v, int rank)
{
    tt_idle idle = {0};

    while (!tt_flag_has(f, v))
        if (!tt_idle_once(&idle, w, f, v, false)) return tt_world_missed(w, rank, 0);
    return TT_OK;
}

/* ---- Memory in common ----
 *
 * Each member has a file, and the others open it by way of /proc: an anonymous one, so that there
 * is no name that could be left behind and no limit on /dev/shm that could be met; or one that its
 * owner brings, to outlive it. That it is the right one is told by its number. */

typedef struct offer {
    int64_t pid;
    int fd;
    uint64_t bytes, dev, ino;
} offer;

static void *map_file(int fd, size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED) return NULL;
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static void *map_other(const offer *o)
{
    char path[64];
    struct stat st;
    void *p;
    int fd;

    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)o->pid, o->fd);
    if (stat(path, &st)) return NULL;
    if (st.st_dev != o->dev || st.st_ino != o->ino || (uint64_t)st.st_size < o->bytes) {
        errno = ENXIO; /* of a process that only has the same number, in another namespace */
        return NULL;
    }
    if ((fd = open(path, O_RDWR | O_CLOEXEC)) < 0) return NULL;
    p = map_file(fd, o->bytes);
    close(fd);
    return p;
}

static tt_err share_files(const tt_group *host, int fd, size_t bytes, tt_share *s)
{
    offer mine = {.pid = getpid(), .fd = fd, .bytes = bytes},
          *all = calloc((size_t)host->size, sizeof *all);
    struct stat st;
    tt_err err = TT_OK;

    if (!all) tt_mem_out(sizeof *all);
    s->bytes[host->me] = bytes;
    if (fd < 0 || fstat(fd, &st) || !(s->at[host->me] = map_file(fd, bytes)))
        err = tt_fail(TT_EENV, "no %zu bytes of memory to share: %s", bytes, strerror(errno));
    if ((err = tt_group_agree(host, err))) goto out;
    mine.dev = st.st_dev;
    mine.ino = st.st_ino;
    if ((err = tt_group_gather(host, &mine, sizeof mine, all))) goto out;
    for (int i = 0; i < host->size; i++) {
        s->bytes[i] = all[i].bytes;
        if (i == host->me) continue;
        if (!(s->at[i] = map_other(&all[i])) && !err)
            err = tt_fail(TT_EENV, "the memory of rank %d is not to be seen from rank %d: %s",
                          host->rank[i], host->rank[host->me], strerror(errno));
    }
    err = tt_group_agree(host, err); /* and until then the descriptor stays open */
out:
    free(all);
    return err;
}

/* Ranks that are threads: the world keeps what they share until it ends. */
static tt_err share_blocks(const tt_group *host, int fd, size_t bytes, tt_share *s)
{
    size_t n = (size_t)host->size;
    tt_kept *keep = calloc(1, sizeof *keep);
    void *own = fd < 0 ? tt_block_alloc(bytes) : map_file(fd, bytes);
    uint64_t mine[2] = {(uint64_t)(uintptr_t)own, bytes}, *all = calloc(2 * n, sizeof *all);
    tt_err err = TT_OK;

    if (!all || !keep) tt_mem_out(2 * n * sizeof *all);
    *keep = (tt_kept){host->world->carrier->kept, own, bytes, fd >= 0};
    host->world->carrier->kept = keep;
    if (!own) err = tt_fail(TT_ENOMEM, "no %zu bytes of memory to share", bytes);
    if (!(err = tt_group_agree(host, err))) err = tt_group_gather(host, mine, sizeof mine, all);
    for (size_t i = 0; i < n && !err; i++) {
        s->at[i] = (void *)(uintptr_t)all[2 * i];
        s->bytes[i] = all[2 * i + 1];
    }
    s->threads = true;
    free(all);
    return err;
}

tt_err tt_share_open_file(const tt_group *host, int fd, size_t bytes, tt_share *out)
{
    size_t n = (size_t)host->size;
    tt_err err;

    *out = (tt_share){.size = host->size};
    out->at = calloc(n, sizeof *out->at);
    out->bytes = calloc(n, sizeof *out->bytes);
    if (!out->at || !out->bytes) tt_mem_out(n * sizeof *out->at);
    err = (host->world->threads ? share_blocks : share_files)(host, fd, bytes, out);
    if (err) tt_share_close(out);
    return err;
}

tt_err tt_share_open(const tt_group *host, size_t bytes, tt_share *out)
{
    int fd = -1;
    tt_err err;

    if (!host->world->threads && (fd = memfd_create("tutti", MFD_CLOEXEC)) >= 0 &&
        ftruncate(fd, (off_t)bytes)) {
        close(fd);
        fd = -1;
    }
    err = tt_share_open_file(host, fd, bytes, out);
    if (fd >= 0) close(fd);
    return err;
}

void tt_kept_free(tt_kept *k)
{
    for (tt_kept *next; k; k = next) {
        next = k->next;
        if (k->block && k->mapped) munmap(k->block, k->bytes);
        if (k->block && !k->mapped) tt_block_free(k->block, k->bytes);
        free(k);
    }
}

void tt_share_close(tt_share *s)
{
    for (int i = 0; i < s->size && s->at && !s->threads; i++)
        if (s->at[i]) munmap(s->at[i], s->bytes[i]);
    free(s->at);
    free(s->bytes);
    *s = (tt_share){0};
}
