/* rundir: the folder of a run, its lock, and what can be told of a run from outside.
 *
 * The folder is the interface: everything that shows runs reads it and talks to no trainer. Whether
 * one is still running is told by the lock, which the kernel releases however its owner ends. */
#define _GNU_SOURCE
#include "inner.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

enum {
    NAME_MOST = 100,
    TRIES = 100,
    LOCK_TRIES = 5,
    LOCK_PAUSE_NS = 20000000,
    SUMMARY_MOST = 64 << 20,
    TAIL = 64 << 10,
    STAMP = 21, /* -yyyymmdd-hhmmss-xxxx */
};

typedef struct run_dir {
    tt_run_dir open; /* first: what the caller sees */
    int lock;
} run_dir;

static bool is_there(const char *folder, const char *name)
{
    char path[PATH_ROOM];
    return !path_join(folder, name, path) && tt_file_exists(path);
}

/* Any of these makes a folder a run's. */
static bool holds_run(const char *folder)
{
    static const char *const signs[] = {"lock", "resolved.yaml", "metrics.jsonl", "summary.json",
                                        "checkpoints"};

    for (int i = 0; i < TT_COUNT(signs); i++)
        if (is_there(folder, signs[i])) return true;
    return false;
}

/* ---- making and entering ---- */

/* A name that is safe in a path and on a command line. */
static void clean_name(const char *name, char out[NAME_MOST + 1])
{
    size_t n = 0;

    for (const char *p = name ? name : ""; *p && n < NAME_MOST; p++) {
        bool fine = isalnum((unsigned char)*p) || *p == '_' || (n && (*p == '.' || *p == '-'));
        if (fine)
            out[n++] = *p;
        else if (n && out[n - 1] != '-')
            out[n++] = '-';
    }
    while (n && out[n - 1] == '-') n--;
    out[n] = 0;
    if (!n) strcpy(out, "run");
}

static tt_err make_new(const char *parent, const char *name, char path[PATH_ROOM])
{
    char clean[NAME_MOST + 1], stamp[32];
    time_t now = (time_t)tt_wall_s();
    struct tm tm;
    uint16_t mark;
    tt_err err;

    clean_name(name, clean);
    localtime_r(&now, &tm);
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &tm);
    if ((err = tt_dir_make(parent))) return err;
    for (int i = 0; i < TRIES; i++) {
        if (getrandom(&mark, sizeof mark, 0) != sizeof mark) mark = (uint16_t)(getpid() + i);
        if (snprintf(path, PATH_ROOM, "%s/%s-%s-%04x", parent, clean, stamp, mark) >= PATH_ROOM)
            return tt_fail(TT_EINVAL, "%.200s...: the path is too long", parent);
        if (!mkdir(path, 0777)) return tt_dir_sync(parent);
        if (errno != EEXIST) break;
    }
    return tt_fail(TT_EIO, "make the folder %s: %s", path, strerror(errno));
}

/* "process 123 on host a", as its owner wrote it into the lock. */
static void describe_owner(int fd, char *out, size_t room)
{
    char text[300] = "", host[256] = "";
    int pid = 0;
    ssize_t n = pread(fd, text, sizeof text - 1, 0);

    if (n > 0 && sscanf(text, "%d %255s", &pid, host) == 2 && pid > 0)
        snprintf(out, room, "process %d on host %s", pid, host);
    else
        snprintf(out, room, "another process");
}

static tt_err take_lock(const char *folder, bool resume, int *out)
{
    char path[PATH_ROOM], owner[400], text[300], host[256] = "";
    int fd, tries = 0, size;
    tt_err err;

    if ((err = path_join(folder, "lock", path))) return err;
    /* Without `resume` the lock file itself must be new: of two who start at once one wins. */
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | (resume ? 0 : O_EXCL), 0666);
    if (fd < 0 && errno == EEXIST)
        return tt_fail(TT_EINVAL,
                       "%s already holds a run: go on with --resume, or choose another folder",
                       folder);
    /* A run that goes on does so on a disk that cannot be written to, too: to lock is enough. */
    if (fd < 0 && resume && errno != ENOENT) fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return tt_fail(TT_EIO, "open %s: %s", path, strerror(errno));
    /* A look at the run (tt_run_look) holds the lock for a moment, so one refusal is none. */
    while (flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) {
            err = tt_fail(TT_EIO, "lock %s: %s", path, strerror(errno));
            goto fail;
        }
        if (++tries == LOCK_TRIES) {
            describe_owner(fd, owner, sizeof owner);
            err = tt_fail(TT_EINVAL, "run %s is in use by %s", folder, owner);
            goto fail;
        }
        nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
    }
    gethostname(host, sizeof host - 1);
    size = snprintf(text, sizeof text, "%d %s\n", (int)getpid(), *host ? host : "localhost");
    if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)size, 0) != size) {
        err = tt_fail(TT_EIO, "write %s: %s", path, strerror(errno));
        if (!resume) goto fail;
        tt_warn("%s", tt_message());
    }
    *out = fd;
    return TT_OK;
fail:
    close(fd);
    return err;
}

static tt_err find_folder(const char *parent, const char *name, const char *path, bool resume,
                          char out[PATH_ROOM])
{
    struct stat st;

    if (!path && resume) return tt_fail(TT_EINVAL, "to resume a run, say which: give its folder");
    if (!path) return make_new(parent ? parent : "runs", name, out);
    if (!*path || snprintf(out, PATH_ROOM, "%s", path) >= PATH_ROOM)
        return tt_fail(TT_EINVAL, "the path of the run folder is empty or too long");
    if (resume && (stat(path, &st) || !S_ISDIR(st.st_mode)))
        return tt_fail(TT_EINVAL, "no run to resume: %s is not a folder", path);
    if (!resume && holds_run(path))
        return tt_fail(TT_EINVAL,
                       "%s already holds a run: go on with --resume, or choose another folder",
                       path);
    return tt_dir_make(path);
}

/* What one before, that was killed while it wrote, has left. Only of files that the holder of the
 * lock writes: others are the supervisor's. */
static void drop_torn(const char *folder)
{
    static const char *const files[] = {"id",           "job.yaml", "resolved.yaml", "command.txt",
                                        "summary.json", "env.json", "world.json"};
    char path[PATH_ROOM];

    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (snprintf(path, sizeof path, "%s/%s.tmp", folder, files[i]) < (int)sizeof path)
            unlink(path);
}

tt_err tt_run_dir_open(const char *parent, const char *name, const char *path, bool resume,
                       tt_run_dir **out)
{
    tt_err err;
    run_dir *d = calloc(1, sizeof *d);

    *out = NULL;
    if (!d) return tt_fail(TT_ENOMEM, "open a run folder: no memory");
    d->lock = -1;
    if ((err = find_folder(parent, name, path, resume, d->open.path))) goto out;
    TT_FAILPOINT("rundir.found");
    if ((err = take_lock(d->open.path, resume, &d->lock))) goto out;
    TT_FAILPOINT("rundir.locked");
    drop_torn(d->open.path);
    d->open.resumed = resume;
    *out = &d->open;
    d = NULL;
out:
    tt_run_dir_close(d ? &d->open : NULL);
    return err;
}

tt_err tt_run_dir_make(const char *parent, const char *name, const char *path, char out[4096])
{
    char made[PATH_ROOM];
    tt_err err = find_folder(parent, name, path, false, made);

    if (!err && snprintf(out, 4096, "%s", made) >= 4096)
        err = tt_fail(TT_EINVAL, "%.200s...: the path is too long", made);
    return err;
}

bool tt_run_begun(const char *path)
{
    return holds_run(path);
}

bool tt_run_id(const char *run, char id[TT_RUN_ID])
{
    char path[PATH_ROOM];
    tt_bytes b = {0};
    bool fine;

    if (path_join(run, "id", path) || !tt_file_exists(path) || tt_file_read(path, 64, &b))
        return false;
    fine = b.size >= TT_RUN_ID - 1;
    if (fine) snprintf(id, TT_RUN_ID, "%.32s", (const char *)b.data);
    tt_file_release(&b);
    return fine && strspn(id, "0123456789abcdef") == TT_RUN_ID - 1;
}

tt_err tt_run_dir_id(tt_run_dir *d, char id[TT_RUN_ID])
{
    char path[PATH_ROOM];
    uint64_t r[2];
    tt_bytes b;
    tt_err err;

    if (tt_run_id(d->path, id)) return TT_OK;
    if ((err = path_join(d->path, "id", path))) return err;
    if (tt_file_exists(path)) { /* one that is damaged is replaced, but not one that is not seen */
        if ((err = tt_file_read(path, 64, &b))) return err;
        tt_file_release(&b);
    }
    if (getrandom(r, sizeof r, 0) != sizeof r)
        return tt_fail(TT_EENV, "no random numbers: %s", strerror(errno));
    snprintf(id, TT_RUN_ID, "%016llx%016llx", (unsigned long long)r[0], (unsigned long long)r[1]);
    return tt_run_dir_write(d, "id", id);
}

tt_err tt_run_dir_begin(tt_run_dir *d)
{
    char path[PATH_ROOM], old[PATH_ROOM];
    tt_err err;

    if ((err = path_join(d->path, "summary.json", path)) ||
        (err = path_join(d->path, "summary.old.json", old)))
        return err;
    if (!tt_file_exists(path)) return TT_OK; /* on a read-only disk rename would not say so */
    if (!rename(path, old)) return tt_dir_sync(d->path);
    return tt_fail(TT_EIO, "rename %s to %s: %s", path, old, strerror(errno));
}

tt_err tt_run_dir_write(tt_run_dir *d, const char *file, const char *text)
{
    char path[PATH_ROOM];
    tt_err err;
    int why;

    if (!*file || *file == '/' || strstr(file, ".."))
        return tt_fail(TT_EINVAL, "\"%s\" is no name for a file of a run", file);
    if ((err = path_join(d->path, file, path))) return err;
    if ((why = TT_FAILPOINT("rundir.write")))
        return tt_fail(TT_EIO, "writing %s: %s", path, strerror(why));
    return tt_file_write(path, text, strlen(text));
}

/* A new folder in which nothing was begun: there is but what was made to begin. */
static bool is_unused(const tt_run_dir *d)
{
    DIR *dir = d->resumed ? NULL : opendir(d->path);
    bool unused = dir != NULL;

    for (struct dirent *e; unused && (e = readdir(dir));)
        unused = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
                 !strcmp(e->d_name, "lock") || !strcmp(e->d_name, "log.txt");
    if (dir) closedir(dir);
    return unused;
}

static void remove_unused(const tt_run_dir *d)
{
    static const char *const files[] = {"log.txt", "lock"};
    char path[PATH_ROOM];

    for (int i = 0; i < TT_COUNT(files); i++)
        if (!path_join(d->path, files[i], path)) unlink(path);
    rmdir(d->path);
}

void tt_run_dir_close(tt_run_dir *d)
{
    run_dir *r = (run_dir *)d;

    if (!d) return;
    if (r->lock >= 0 && is_unused(d)) {
        remove_unused(d);
        close(r->lock);
    } else if (r->lock >= 0) {
        /* The file stays: to remove it would let two processes lock two files of the same name. */
        if (ftruncate(r->lock, 0) && errno != EINVAL) /* EINVAL: it could only be read */
            tt_warn("clear %s/lock: %s", d->path, strerror(errno));
        close(r->lock);
    }
    free(r);
}

/* ---- looking from outside ---- */

static bool is_locked(const char *folder, const char *file)
{
    char path[PATH_ROOM];
    bool held;
    int fd = path_join(folder, file, path) ? -1 : open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) return false;
    held = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    close(fd);
    return held;
}

static double changed(const char *folder, const char *name)
{
    char path[PATH_ROOM];
    struct stat st;

    if (path_join(folder, name, path) || stat(path, &st)) return 0;
    return (double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec * 1e-9;
}

/* When the run began, from the end of its folder's name; 0 if it has none of ours. */
static double stamp_of(const char *name)
{
    size_t n = strlen(name);
    struct tm tm = {.tm_isdst = -1};
    const char *end;
    unsigned mark;
    int used = 0;

    if (n <= STAMP) return 0;
    end = strptime(name + n - STAMP, "-%Y%m%d-%H%M%S", &tm);
    if (!end || sscanf(end, "-%4x%n", &mark, &used) != 1 || end[used]) return 0;
    return (double)mktime(&tm);
}

/* The step of the last line that has one, from the end of the journal; -1 if there is none. A line
 * that is being written has no newline yet and does not count. */
static int64_t last_step(const char *folder)
{
    char path[PATH_ROOM], *text = malloc(TAIL + 1), *end, *line;
    int fd =
        text && !path_join(folder, "metrics.jsonl", path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    int64_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END), step = -1;
    ssize_t n = 0;

    if (size > 0) n = pread(fd, text, TAIL, size > TAIL ? size - TAIL : 0);
    if (fd >= 0) close(fd);
    for (end = n > 0 ? memrchr(text, '\n', (size_t)n) : NULL; end && step < 0; end = line) {
        json_t *root, *value;
        line = memrchr(text, '\n', (size_t)(end - text));
        root =
            json_loadb(line ? line + 1 : text, (size_t)(end - (line ? line + 1 : text)), 0, NULL);
        value = json_object_get(root, "step");
        if (json_is_integer(value)) step = json_integer_value(value);
        json_decref(root);
    }
    free(text);
    return step;
}

static void read_summary(tt_run_info *out)
{
    char path[PATH_ROOM];

    if (path_join(out->path, "summary.json", path) || !tt_file_exists(path)) return;
    if (tt_json_read(path, SUMMARY_MOST, &out->summary))
        tt_warn("the summary of a run is ignored: %s", tt_message());
}

tt_err tt_run_look(const char *path, tt_run_info *out)
{
    static const char *const written[] = {"metrics.jsonl", "summary.json", "log.txt"};
    const char *name, *status;
    size_t size = strlen(path);

    memset(out, 0, sizeof *out);
    while (size > 1 && path[size - 1] == '/') size--;
    if (size >= sizeof out->path) return tt_fail(TT_EINVAL, "the path of the run is too long");
    memcpy(out->path, path, size);
    if (!holds_run(out->path)) return tt_fail(TT_EINVAL, "no run at %s", path);

    name = strrchr(out->path, '/');
    snprintf(out->name, sizeof out->name, "%.255s", name && name[1] ? name + 1 : out->path);
    read_summary(out);
    status = json_string_value(json_object_get(out->summary, "status"));
    /* Between two worlds a run has its supervisor alone. */
    if (!status && (is_locked(out->path, "lock") || is_locked(out->path, "supervisor.json")))
        status = "running";
    if (!status) status = "lost";
    snprintf(out->status, sizeof out->status, "%s", status);
    out->step = last_step(out->path);
    if (out->step < 0) {
        const json_t *steps = json_object_get(out->summary, "steps");
        out->step = json_is_integer(steps) ? json_integer_value(steps) : 0;
    }
    for (int i = 0; i < TT_COUNT(written); i++)
        out->updated = fmax(out->updated, changed(out->path, written[i]));
    if (!out->updated) out->updated = changed(out->path, ".");
    out->made = changed(out->path, "job.yaml"); /* written once: a resumed run leaves it alone */
    out->started = stamp_of(out->name);
    if (!out->started) out->started = out->made;
    if (!out->started) out->started = out->updated;
    return TT_OK;
}

static int by_start(const void *a, const void *b)
{
    const tt_run_info *x = a, *y = b;

    if (x->started != y->started) return x->started < y->started ? -1 : 1;
    if (x->made != y->made) return x->made < y->made ? -1 : 1; /* stamps are of whole seconds */
    return strcmp(x->name, y->name);
}

tt_err tt_run_list(const char *parent, tt_run_info **out, int *count)
{
    char **names = NULL, path[PATH_ROOM];
    int name_count = 0, n = 0;
    tt_run_info *runs = NULL;
    tt_err err;

    *out = NULL;
    *count = 0;
    if (!parent) parent = "runs";
    if (!tt_file_exists(parent)) return TT_OK; /* nothing was run yet */
    if ((err = tt_dir_list(parent, &names, &name_count))) return err;
    runs = calloc((size_t)name_count + 1, sizeof *runs);
    if (!runs) {
        err = tt_fail(TT_ENOMEM, "list %s: no memory", parent);
        goto out;
    }
    for (int i = 0; i < name_count; i++) {
        if ((err = path_join(parent, names[i], path))) goto out;
        if (holds_run(path) && !tt_run_look(path, &runs[n])) n++;
    }
    qsort(runs, (size_t)n, sizeof *runs, by_start);
    *out = runs;
    *count = n;
    runs = NULL;
    n = 0;
out:
    tt_run_free(runs, n);
    tt_dir_free(names, name_count);
    return err;
}

void tt_run_free(tt_run_info *runs, int count)
{
    if (!runs) return;
    for (int i = 0; i < count; i++) json_decref(runs[i].summary);
    free(runs);
}
