/* vault, from outside: where the folder of a run is, what its slots hold, and what may go.
 *
 * /dev/shm is open to every user of the machine, so a name there proves nothing: a folder is used
 * only if it is no link, ours, and closed to all others. What lies in it is still read as if it
 * were anybody's: files of earlier versions, or cut by a full disk, must cost a state, never the
 * run. */
#define _GNU_SOURCE
#include "vault_inner.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SHM "/dev/shm"

enum { PATH_ROOM = 4096, HEX = 16, TRIES = 1000 };

/* ---- folders and files ---- */

tt_err tt_vault_dir(const char *folder, int *out)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    tt_err err;

    *out = -1;
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return tt_fail(
            TT_EENV,
            "%s is a link or no folder, so it is not used for the state of a run: remove "
            "it, or find out who put it there",
            folder);
    if (fd < 0 || fstat(fd, &st)) {
        int why = errno;
        err = tt_fail(TT_EIO, "open the folder %s: %s", folder, strerror(why));
        if (fd >= 0) close(fd);
        errno = why;
        return err;
    }
    if (st.st_uid == geteuid() && !(st.st_mode & 077)) {
        *out = fd;
        return TT_OK;
    }
    close(fd);
    if (st.st_uid != geteuid())
        return tt_fail(
            TT_EENV,
            "%s belongs to user %d, not to you (%d), so it is not used for the state of a "
            "run: have it removed",
            folder, (int)st.st_uid, (int)geteuid());
    return tt_fail(
        TT_EENV,
        "%s is open to other users (mode %03o), so it is not used for the state of a run: "
        "remove it",
        folder, (unsigned)st.st_mode & 0777);
}

int tt_vault_openat(int dir, const char *name, int flags, struct stat *st)
{
    /* Without waiting: to open a pipe that nobody writes to would take for ever. */
    int fd = openat(dir, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600), why;

    if (fd < 0) return -1;
    if (!fstat(fd, st) && S_ISREG(st->st_mode)) return fd;
    why = S_ISREG(st->st_mode) ? errno : EINVAL;
    close(fd);
    errno = why;
    return -1;
}

bool tt_vault_on_tmpfs(int fd)
{
    struct statfs s;

    return !fstatfs(fd, &s) && (s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC);
}

uint64_t tt_vault_free(int fd)
{
    struct statvfs s;
    uint64_t there, memory;

    if (fstatvfs(fd, &s)) return 0;
    there = (uint64_t)s.f_bavail * s.f_frsize;
    if (!tt_vault_on_tmpfs(fd)) return there;
    memory = tt_mem_free();
    /* A tmpfs without a size of its own says 0 blocks. */
    return s.f_blocks && there < memory ? there : memory;
}

static uint64_t free_at(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint64_t n = fd < 0 || faccessat(fd, ".", W_OK, AT_EACCESS) ? 0 : tt_vault_free(fd);

    if (fd >= 0) close(fd);
    return n;
}

/* The number of "slot-3", -1 if it is no such name. *fresh (may be NULL): it is "slot-3.new". */
static int slot_of(const char *name, bool *fresh)
{
    char again[VAULT_NAME];
    int n = -1;

    if (fresh) *fresh = false;
    if (sscanf(name, "slot-%9d", &n) != 1 || n < 0) return -1;
    snprintf(again, sizeof again, VAULT_SLOT, n);
    if (!strcmp(name, again)) return n;
    snprintf(again, sizeof again, VAULT_FRESH, n);
    if (!fresh || strcmp(name, again)) return -1;
    *fresh = true;
    return n;
}

static bool is_table(const char *name)
{
    char again[64];
    int slot, table;

    if (sscanf(name, VAULT_TABLE, &slot, &table) != 2 || slot < 0 || table < 0) return false;
    snprintf(again, sizeof again, VAULT_TABLE, slot, table);
    return !strcmp(name, again);
}

void tt_vault_table(const char *folder, int slot, int table, char out[4200])
{
    snprintf(out, 4200, "%s/" VAULT_TABLE, folder, slot, table);
}

static bool has_slots(const char *folder)
{
    char **names;
    int count;
    bool found = false;

    if (tt_dir_list(folder, &names, &count)) return false;
    for (int i = 0; i < count && !found; i++) found = slot_of(names[i], NULL) >= 0;
    tt_dir_free(names, count);
    return found;
}

/* ---- the folder of a run ---- */

/* What follows "tutti-<user>-vault-<run>" on a disk, which several hosts may share. */
static void host_suffix(char out[80])
{
    char host[64] = "";

    gethostname(host, sizeof host - 1);
    for (char *p = host; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '.' && *p != '-') *p = '_';
    snprintf(out, 80, "-%s", *host ? host : "localhost");
}

static void shm_path(const char *run, char out[PATH_ROOM])
{
    char hex[65];
    tt_sha *sha = tt_sha_begin();

    tt_sha_add(sha, run, strlen(run));
    tt_sha_end(sha, hex);
    snprintf(out, PATH_ROOM, SHM "/tutti-%d-vault-%.*s", (int)geteuid(), HEX, hex);
}

/* The run whose folder it is; empty if it does not say. */
static void read_run(int dir, char out[PATH_ROOM])
{
    struct stat st;
    int fd = tt_vault_openat(dir, "owner", O_RDONLY, &st);
    ssize_t n = fd < 0 ? 0 : pread(fd, out, PATH_ROOM, 0);

    if (fd >= 0) close(fd);
    out[n > 0 && out[n - 1] == '\n' ? n - 1 : 0] = 0; /* a torn one is none */
}

static bool is_of(int dir, const char *run)
{
    char owner[PATH_ROOM];

    read_run(dir, owner);
    return !strcmp(owner, run);
}

static tt_err make_folder(const char *path, const char *run)
{
    char owner[PATH_ROOM + 8], text[PATH_ROOM + 1];
    tt_err err;
    int dir;

    if (mkdir(path, 0700) && errno != EEXIST)
        return tt_fail(TT_EIO, "make the folder %s: %s", path, strerror(errno));
    if ((err = tt_vault_dir(path, &dir))) return err;
    if (!is_of(dir, run)) {
        snprintf(owner, sizeof owner, "%s/owner", path);
        snprintf(text, sizeof text, "%s\n", run);
        err = tt_file_write(owner, text, strlen(text));
        if (err && is_of(dir, run)) err = TT_OK; /* another process of the run was at it too */
    }
    close(dir);
    return err;
}

/* *found: there are slots in it. TT_EENV if something else has the name. */
static tt_err look_for(const char *path, bool *found)
{
    tt_err err;
    int fd;

    *found = false;
    if ((err = tt_vault_dir(path, &fd))) return errno == ENOENT && err == TT_EIO ? TT_OK : err;
    close(fd);
    *found = has_slots(path);
    return TT_OK;
}

tt_err tt_vault_folder(const char *run, uint64_t bytes, const char *spare, char out[4096],
                       bool *on_disk)
{
    char shm[PATH_ROOM], disk[PATH_ROOM] = "", suffix[80], need[32], there[32], below[32];
    uint64_t memory, room = 0;
    bool found;
    tt_err err;

    *out = 0;
    *on_disk = false;
    if (!*run || strlen(run) >= PATH_ROOM)
        return tt_fail(TT_EINVAL, "the identity of a run has 1 to %d characters", PATH_ROOM - 1);
    shm_path(run, shm);
    host_suffix(suffix);
    if (spare && snprintf(disk, sizeof disk, "%s/%s%s", spare, strrchr(shm, '/') + 1, suffix) >=
                     PATH_ROOM - VAULT_NAME)
        return tt_fail(TT_EINVAL, "%.200s...: the path is too long", spare);
    if ((err = look_for(shm, &found))) return err;
    if (!found && spare && (err = look_for(disk, on_disk))) return err;
    if (!found && !*on_disk && (memory = free_at(SHM)) < bytes) {
        if (spare && (err = tt_dir_make(spare))) return err;
        if (spare) room = free_at(spare);
        if (room < bytes || !spare)
            return tt_fail(
                TT_EENV, "no room for the state of the run: %s are needed, %s are free in %s%s%s%s",
                tt_show_bytes((double)bytes, need, sizeof need),
                tt_show_bytes((double)memory, there, sizeof there), SHM, spare ? ", " : "",
                spare ? tt_show_bytes((double)room, below, sizeof below) : "",
                spare ? " on disk" : "");
        *on_disk = true;
    }
    if ((err = make_folder(*on_disk ? disk : shm, run))) return err;
    strcpy(out, *on_disk ? disk : shm);
    return TT_OK;
}

/* ---- reading slots ---- */

static bool read_at(int fd, void *to, size_t size, size_t at)
{
    bool ok = pread(fd, to, size, (off_t)at) == (ssize_t)size;

    __sync_synchronize(); /* what is read next is read later */
    return ok;
}

/* May what the header says be believed of the rest of the file? */
static bool is_sound(int fd, const struct stat *st, const vault_head *h)
{
    char boot[40];

    if (h->magic != VAULT_MAGIC || !h->bytes || h->bytes > VAULT_MOST ||
        VAULT_PAGE + 2 * vault_room(h->bytes) != (uint64_t)st->st_size)
        return false;
    /* None of ours has holes, and in memory they may be SIGBUS. */
    if (tt_vault_on_tmpfs(fd)) return (uint64_t)st->st_blocks * 512 >= (uint64_t)st->st_size;
    /* A disk gets the pages in any order: after a crash the word may be newer than its half. */
    tt_vault_boot(boot);
    return !memcmp(boot, h->boot, sizeof boot);
}

static size_t begun_at(int half)
{
    return half ? offsetof(vault_head, commit.half[1].begun)
                : offsetof(vault_head, commit.half[0].begun);
}

/* The counts of begins before all else, as commit.c does. */
static bool read_commit(int fd, tt_commit_head *out)
{
    uint64_t begun[2];

    for (int i = 0; i < 2; i++)
        if (!read_at(fd, &begun[i], sizeof begun[i], begun_at(i))) return false;
    if (!read_at(fd, out, sizeof *out, offsetof(vault_head, commit))) return false;
    for (int i = 0; i < 2; i++) out->half[i].begun = begun[i]; /* else the next reading differs */
    return true;
}

/* By pread, not by a mapping: a file that is shorter than it was is an error then, not a signal. */
bool tt_vault_head_read(int fd, const struct stat *st, vault_head *h)
{
    const size_t front = offsetof(vault_head, commit), note = offsetof(vault_head, note);
    tt_commit_head again;
    tt_vault_half halves[2];
    int tries = TRIES;

    for (;;) {
        if (!read_at(fd, h, front, 0) || !read_commit(fd, &h->commit) ||
            !read_at(fd, (char *)h + note, sizeof *h - note, note) || !read_commit(fd, &again))
            return false;
        if (!memcmp(&h->commit, &again, sizeof again)) break;
        if (!--tries) return false; /* none of ours can change that often */
        sched_yield();
    }
    if (!is_sound(fd, st, h)) return false;
    for (int i = 0; i < 2; i++)
        if (h->note[i][h->commit.half[i].noted & 1].size > TT_VAULT_NOTE) return false;
    /* The word names what is described, or there is none. */
    return tt_vault_halves(h, halves) < 0 ? !h->commit.word
                                          : halves[h->commit.word & 1].label.step >= 0;
}

int tt_vault_halves(const vault_head *h, tt_vault_half out[2])
{
    for (int i = 0; i < 2; i++) {
        const vault_note *note;
        tt_commit c;
        out[i] = (tt_vault_half){.label.step = -1};
        if (!tt_commit_read(&h->commit, i, &c)) continue;
        note = &h->note[i][c.noted & 1];
        out[i].label = c.label;
        out[i].hash = c.hash;
        out[i].note_size = note->size;
        memcpy(out[i].note, note->text, note->size);
    }
    return tt_commit_current(&h->commit);
}

static int by_slot(const void *a, const void *b)
{
    const tt_vault_info *x = a, *y = b;

    return (x->slot > y->slot) - (x->slot < y->slot);
}

static bool is_foreign(int fd)
{
    uint64_t magic;

    return read_at(fd, &magic, sizeof magic, 0) && magic != VAULT_MAGIC &&
           !((magic ^ VAULT_MAGIC) & VAULT_NAMED);
}

static bool read_slot(int dir, const char *name, tt_vault_info *out)
{
    struct stat st;
    vault_head h;
    bool ok;
    int fd = tt_vault_openat(dir, name, O_RDONLY, &st);

    if (fd < 0) return false;
    ok = tt_vault_head_read(fd, &st, &h);
    if (!ok && is_foreign(fd)) {
        out->foreign = true;
        out->current = -1;
        out->half[0].label.step = out->half[1].label.step = -1;
        close(fd);
        return true;
    }
    if (ok) {
        snprintf(out->version, sizeof out->version, "%.*s", (int)sizeof h.version - 1, h.version);
        out->key = h.key;
        out->bytes = h.bytes;
        out->current = tt_vault_halves(&h, out->half);
    }
    close(fd);
    return ok;
}

tt_err tt_vault_list(const char *folder, tt_vault_info **out, int *count)
{
    char **names = NULL;
    int name_count = 0, n = 0, dir;
    tt_vault_info *list = NULL;
    tt_err err;

    *out = NULL;
    *count = 0;
    if ((err = tt_vault_dir(folder, &dir))) return err;
    if ((err = tt_dir_list(folder, &names, &name_count))) goto out;
    list = calloc((size_t)name_count + 1, sizeof *list);
    if (!list) {
        err = tt_fail(TT_ENOMEM, "list %s: no memory", folder);
        goto out;
    }
    for (int i = 0; i < name_count; i++) {
        list[n].slot = slot_of(names[i], NULL);
        if (list[n].slot >= 0 && read_slot(dir, names[i], &list[n])) n++;
    }
    qsort(list, (size_t)n, sizeof *list, by_slot);
    *out = list;
    *count = n;
out:
    tt_dir_free(names, name_count);
    close(dir);
    return err;
}

tt_err tt_vault_peek(const char *folder, int slot, int half, int64_t step, tt_vault_view *out)
{
    tt_vault_view v = {.fd = -1, .half = half};
    tt_vault_half halves[2];
    char name[VAULT_NAME];
    struct stat st;
    vault_head h;
    int dir;
    tt_err err;

    memset(out, 0, sizeof *out);
    TT_ASSERT(half == 0 || half == 1);
    if ((err = tt_vault_dir(folder, &dir))) return err;
    snprintf(name, sizeof name, VAULT_SLOT, slot);
    v.fd = tt_vault_openat(dir, name, O_RDONLY, &st);
    close(dir);
    if (v.fd < 0)
        return tt_fail(TT_EPEER, "slot %d of %s is not there: %s", slot, folder, strerror(errno));
    if (!tt_vault_head_read(v.fd, &st, &h)) {
        err = tt_fail(TT_EFORMAT, "slot %d of %s is damaged", slot, folder);
        goto fail;
    }
    tt_vault_halves(&h, halves);
    if (step < 0 || halves[half].label.step != step) {
        err = tt_fail(TT_EPEER, "half %d of slot %d of %s is of step %lld, not of step %lld", half,
                      slot, folder, (long long)halves[half].label.step, (long long)step);
        goto fail;
    }
    v.what = halves[half];
    v.bytes = h.bytes;
    v.begun = h.commit.half[half].begun;
    v.map = mmap(NULL, v.bytes, PROT_READ, MAP_SHARED, v.fd,
                 (off_t)(VAULT_PAGE + (uint64_t)half * vault_room(h.bytes)));
    if (v.map == MAP_FAILED) {
        err = tt_fail(TT_ENOMEM, "map slot %d of %s: %s", slot, folder, strerror(errno));
        goto fail;
    }
    v.data = v.map;
    *out = v;
    return TT_OK;
fail:
    close(v.fd);
    return err;
}

tt_err tt_vault_unpeek(tt_vault_view *v)
{
    uint64_t begun = 0;
    bool same;

    if (!v->map) return TT_OK;
    __sync_synchronize(); /* after all that was read */
    same = read_at(v->fd, &begun, sizeof begun, begun_at(v->half)) && begun == v->begun;
    munmap(v->map, v->bytes);
    close(v->fd);
    memset(v, 0, sizeof *v);
    return same ? TT_OK
                : tt_fail(TT_EPEER, "the half was written to by its owner while it was read");
}

/* ---- clearing away ---- */

/* The locks of all files of slots; who has them all, and nobody else, may remove the folder. */
static tt_err lock_all(const char *folder, int dir, char *const *names, int count, int *fds)
{
    struct stat st;
    char who[64];

    for (int i = 0; i < count; i++) {
        bool fresh, ours = slot_of(names[i], &fresh) >= 0 || is_table(names[i]) ||
                           !strcmp(names[i], "owner") || !strcmp(names[i], "owner.tmp");
        if (!ours)
            return tt_fail(TT_EIO, "%s/%s is not of a vault, so the folder is left as it is",
                           folder, names[i]);
        fds[i] = tt_vault_openat(dir, names[i], O_RDONLY, &st);
        if (fds[i] < 0) {
            /* Links, pipes: nobody's slot. */
            if (errno == ENOENT || errno == ELOOP || errno == EINVAL || errno == ENXIO) continue;
            return tt_fail(TT_EIO, "open %s/%s: %s", folder, names[i], strerror(errno));
        }
        if (!tt_vault_lock(fds[i], LOCK_EX, tt_clock_s() + VAULT_GRACE_S))
            return tt_fail(TT_EPEER, "%s: %s has %s", folder,
                           tt_vault_holder(fds[i], who, sizeof who), names[i]);
        if (!tt_vault_is_named(dir, names[i], fds[i]))
            return tt_fail(TT_EPEER, "%s: somebody took %s just now", folder, names[i]);
    }
    return TT_OK;
}

tt_err tt_vault_remove(const char *folder)
{
    char **names = NULL;
    int count = 0, dir, *fds = NULL;
    tt_err err;

    if ((err = tt_vault_dir(folder, &dir))) return err == TT_EIO && errno == ENOENT ? TT_OK : err;
    if ((err = tt_dir_list(folder, &names, &count))) goto out;
    if (!(fds = malloc(((size_t)count + 1) * sizeof *fds))) {
        err = tt_fail(TT_ENOMEM, "remove %s: no memory", folder);
        goto out;
    }
    for (int i = 0; i < count; i++) fds[i] = -1;
    if ((err = lock_all(folder, dir, names, count, fds))) goto out;
    for (int i = 0; i < count && !err; i++)
        if (unlinkat(dir, names[i], 0) && errno != ENOENT)
            err = tt_fail(TT_EIO, "remove %s/%s: %s", folder, names[i], strerror(errno));
    if (!err && rmdir(folder) && errno != ENOENT)
        err = errno == ENOTEMPTY || errno == EEXIST
                  ? tt_fail(TT_EPEER, "%s: somebody took a slot while it was removed", folder)
                  : tt_fail(TT_EIO, "remove %s: %s", folder, strerror(errno));
out:
    for (int i = 0; fds && i < count; i++)
        if (fds[i] >= 0) close(fds[i]);
    free(fds);
    tt_dir_free(names, count);
    close(dir);
    return err;
}

/* Fills in bytes and changed; false if somebody has a slot. */
static bool is_left(int dir, tt_vault_left *left)
{
    char **names;
    int count;
    bool free_of_users = true;

    if (tt_dir_list(left->folder, &names, &count)) return false;
    for (int i = 0; i < count && free_of_users; i++) {
        struct stat st;
        bool fresh;
        int fd;
        double changed;
        if ((slot_of(names[i], &fresh) < 0 && !is_table(names[i])) ||
            (fd = tt_vault_openat(dir, names[i], O_RDONLY, &st)) < 0)
            continue;
        free_of_users = tt_vault_lock(fd, LOCK_SH, 0);
        close(fd);
        changed = (double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec * 1e-9;
        if (changed > left->changed) left->changed = changed;
        left->bytes += (uint64_t)st.st_blocks * 512;
    }
    tt_dir_free(names, count);
    return free_of_users;
}

/* "tutti-<this user>-vault-<16 digits>" and the suffix, nothing else. */
static bool is_folder_name(const char *name, const char *suffix)
{
    char front[32];
    size_t n = (size_t)snprintf(front, sizeof front, "tutti-%d-vault-", (int)geteuid());

    return !strncmp(name, front, n) && strspn(name + n, "0123456789abcdef") >= HEX &&
           !strcmp(name + n + HEX, suffix);
}

static tt_err find_left(const char *parent, const char *suffix, tt_vault_left **list, int *count)
{
    char **names;
    int name_count;
    tt_err err = TT_OK;

    if (!tt_file_exists(parent)) return TT_OK;
    if ((err = tt_dir_list(parent, &names, &name_count))) return err;
    for (int i = 0; i < name_count; i++) {
        tt_vault_left *more, *left;
        struct stat st;
        int dir;
        if (!is_folder_name(names[i], suffix)) continue;
        if (!(more = realloc(*list, ((size_t)*count + 1) * sizeof **list))) {
            err = tt_fail(TT_ENOMEM, "list %s: no memory", parent);
            break;
        }
        *list = more;
        left = &more[*count];
        memset(left, 0, sizeof *left);
        if (snprintf(left->folder, PATH_ROOM, "%s/%s", parent, names[i]) >= PATH_ROOM ||
            tt_vault_dir(left->folder, &dir))
            continue;
        if (!fstat(dir, &st))
            left->changed = (double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec * 1e-9;
        read_run(dir, left->run);
        if (is_left(dir, left)) ++*count;
        close(dir);
    }
    tt_dir_free(names, name_count);
    return err;
}

tt_err tt_vault_leftovers(const char *spare, tt_vault_left **out, int *count)
{
    char suffix[80];
    tt_err err;

    *out = NULL;
    *count = 0;
    host_suffix(suffix);
    if ((err = find_left(SHM, "", out, count)) ||
        (spare && (err = find_left(spare, suffix, out, count)))) {
        free(*out);
        *out = NULL;
        *count = 0;
    }
    return err;
}
