/* saver: checkpoints written by a thread of their own.
 *
 * The training loop copies into the staging area and goes on. The thread then
 *   1 writes every file to <folder>/step-N.tmp and fsyncs it,
 *   2 writes the manifest there, and fsyncs file and folder,
 *   3 opens the folder as any reader would and hashes all of it,
 *   4 renames it to step-N and fsyncs the parent: from here on it exists,
 *   5 removes what is no longer to be kept.
 * A crash or an error before 4 leaves the older checkpoints as they were; one after it leaves at
 * most a checkpoint too many. `busy` is set by the loop and cleared by the thread; while it is set
 * the staging area and the job belong to the thread, else to the loop. */
#define _GNU_SOURCE
#include "inner.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FOLDER_ROOM = 3800, ALIGN = 64 };

typedef struct part { /* one file of the checkpoint */
    const char *name;
    int first, count; /* its entries among the staged */
} part;

struct tt_saver {
    char folder[FOLDER_ROOM];
    int keep, best;
    tt_arena *arena; /* names and lists */
    tt_entry *staged;
    const tt_entry **source; /* the caller's, in the order of the staged */
    int count;
    part *parts;
    int part_count;
    char *stage;
    size_t stage_bytes;
    const tt_entry *entries; /* the caller's, as it gave them */
    void (*fill)(void *who, int i, void *to);
    void *who;
    size_t *room;      /* of copies that grow: how large each is */
    int helpers, part; /* see tt_saver_opts */
    uint64_t token;
    double wait_s;

    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool busy, quit;
    int64_t step;
    json_t *meta;
    double score;
    bool ended; /* a save has, and nobody was told yet: */
    int64_t ended_step;
    tt_err err; /* of the last save */
    char message[2048];

    _Atomic int64_t last_step;
};

/* ---- writing one ---- */

static tt_err write_parts(tt_saver *s, const char *folder, json_t *files)
{
    char path[PATH_ROOM], sha[65];
    int64_t bytes;
    tt_err err;

    for (int i = 0; i < s->part_count; i++) {
        const part *p = &s->parts[i];
        if ((err = path_join(folder, p->name, path))) return err;
        if (s->part) unlink(path); /* of an earlier attempt */
        if ((err = tt_tensors_put(path, s->staged + p->first, p->count, NULL, sha, &bytes)))
            return err;
        if (json_array_append_new(files, json_pack("{s:s, s:I, s:s}", "name", p->name, "bytes",
                                                   (json_int_t)bytes, "sha256", sha)))
            return tt_fail(TT_ENOMEM, "%s: no memory for its manifest", folder);
    }
    return TT_OK;
}

static json_t *score_json(double score)
{
    return isfinite(score) ? json_real(score) : json_null();
}

static tt_err write_manifest(tt_saver *s, const char *folder, json_t *files, bool finite)
{
    char path[PATH_ROOM], *text = NULL;
    json_t *root;
    tt_err err;

    if ((err = path_join(folder, "manifest.json", path))) return err;
    if (!s->meta) s->meta = json_object(); /* here, because the loop allocates nothing */
    root = json_pack("{s:s, s:i, s:I, s:f, s:b, s:o, s:s?, s:O, s:O}", "format", "tutti-checkpoint",
                     "version", 1, "step", (json_int_t)s->step, "time", tt_wall_s(), "finite",
                     finite, "score", score_json(s->score), "better",
                     s->best > 0   ? "larger"
                     : s->best < 0 ? "smaller"
                                   : NULL,
                     "files", files, "meta", s->meta);
    if (root) text = tt_manifest_seal(root);
    err = text ? tt_file_write(path, text, strlen(text))
               : tt_fail(TT_ENOMEM, "%s: no memory for it", path);
    free(text);
    json_decref(root);
    return err;
}

static tt_err remove_any(const char *path)
{
    return unlink(path) ? tt_dir_remove(path) : TT_OK;
}

/* Gives `temp` the name `final`. One of that step may be there already, if the run went back to an
 * older checkpoint and came here again: it is then at `temp` or `old` afterwards. */
static tt_err put_in_place(const char *temp, const char *final, const char *old)
{
    int why;

    if (!rename(temp, final)) return TT_OK;
    if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR) goto fail;
    if (!renameat2(AT_FDCWD, temp, AT_FDCWD, final, RENAME_EXCHANGE)) return TT_OK;
    /* Not every file system can exchange. tidy() undoes this if we do not get to the end of it. */
    if (rename(final, old)) goto fail;
    if (!rename(temp, final)) return TT_OK;
    why = errno;
    if (rename(old, final)) tt_warn("checkpoint %s is now named %s", final, old);
    errno = why;
fail:
    return tt_fail(TT_EIO, "rename %s to %s: %s", temp, final, strerror(errno));
}

/* Clears away what a process that died, or a disk that failed, left behind; but for the parts of
 * `step`, which may be in the making. What cannot be removed now is tried again with the next save.
 */
static void tidy(const char *folder, int64_t step)
{
    char **names, path[PATH_ROOM], final[PATH_ROOM], parts[64];
    int count;

    snprintf(parts, sizeof parts, TT_STEP_DIR ".parts", (long long)step);
    if (tt_dir_list(folder, &names, &count)) {
        tt_info("not looked for leftovers: %s", tt_message());
        return;
    }
    for (int i = 0; i < count; i++) {
        char *end = strrchr(names[i], '.');
        bool pointer = !strcmp(names[i], "LATEST.tmp") || !strcmp(names[i], "BEST.tmp");
        tt_err err = TT_OK;
        if ((strncmp(names[i], "step-", 5) && !pointer) || !end || !strcmp(names[i], parts))
            continue;
        if (path_join(folder, names[i], path)) continue;
        snprintf(final, sizeof final, "%s/%.*s", folder, (int)(end - names[i]), names[i]);
        if (!strcmp(end, ".tmp") || !strcmp(end, ".parts") ||
            (!strcmp(end, ".old") && tt_file_exists(final)))
            err = remove_any(path);
        else if (!strcmp(end, ".old") && rename(path, final))
            err = tt_fail(TT_EIO, "rename %s to %s: %s", path, final, strerror(errno));
        if (err) tt_info("a leftover stays for now: %s", tt_message());
    }
    tt_dir_free(names, count);
}

static tt_err write_checkpoint(tt_saver *s, bool *finite)
{
    char temp[PATH_ROOM], final[PATH_ROOM], old[PATH_ROOM], message[sizeof s->message];
    json_t *files = json_array();
    const char *bad = tt_entries_nonfinite(s->staged, s->count);
    tt_ckpt *back = NULL;
    bool placed = false;
    tt_err err;

    *finite = !bad;
    if (bad)
        tt_warn("step %lld: tensor %.200s holds numbers that are not finite; the checkpoint is "
                "marked, and the last good one is kept",
                (long long)s->step, bad);
    snprintf(final, sizeof final, "%s/" TT_STEP_DIR, s->folder, (long long)s->step);
    snprintf(temp, sizeof temp, "%s/" TT_STEP_DIR ".tmp", s->folder, (long long)s->step);
    snprintf(old, sizeof old, "%s/" TT_STEP_DIR ".old", s->folder, (long long)s->step);
    if ((err = tt_dir_make(s->folder))) goto out;
    tidy(s->folder, s->step);
    if (mkdir(temp, 0777)) {
        err = tt_fail(TT_EIO, "make the folder %s: %s", temp, strerror(errno));
        goto out;
    }
    TT_FAILPOINT("saver.made");
    if ((err = write_parts(s, temp, files))) goto out;
    TT_FAILPOINT("saver.written");
    if (s->helpers && (err = tt_parts_take(s->folder, s->step, s->helpers, s->token, s->wait_s,
                                           temp, files, finite)))
        goto out;
    if ((err = write_manifest(s, temp, files, *finite))) goto out;
    TT_FAILPOINT("saver.described");
    if ((err = tt_ckpt_open_path(temp, true, &back))) {
        err = tt_context(err, "reading back what was written");
        goto out;
    }
    tt_ckpt_close(back);
    TT_FAILPOINT("saver.checked");
    if ((err = put_in_place(temp, final, old))) goto out;
    placed = true;
    TT_FAILPOINT("saver.renamed");
    if ((err = tt_dir_sync(s->folder))) goto out;
    TT_FAILPOINT("saver.synced");
    /* Only now: until the new name is on disk the old content has to be there too. */
    if (remove_any(temp) || remove_any(old)) tt_warn("old checkpoint: %s", tt_message());
out:
    if (err) {
        snprintf(message, sizeof message, "%s", tt_message());
        if (!placed) remove_any(temp);
        tt_repeat(err, message);
    }
    json_decref(files);
    return err;
}

/* ---- keeping and removing ---- */

/* The newest that is finite and, hashes and all, still what it was: bits rot. -1 if there is none.
 */
static int find_good(const tt_ckpt_info *list, int count)
{
    for (int i = count - 1; i >= 0; i--) {
        tt_ckpt *c;
        if (!list[i].valid || !list[i].finite) continue;
        if (tt_ckpt_open_path(list[i].path, true, &c)) continue;
        tt_ckpt_close(c);
        return i;
    }
    return -1;
}

/* Renamed first, so that it vanishes at once however long the removal takes. */
static void remove_checkpoint(const char *path)
{
    char temp[PATH_ROOM + 8];

    snprintf(temp, sizeof temp, "%s.tmp", path);
    if (rename(path, temp)) {
        tt_warn("old checkpoint %s cannot be removed: %s", path, strerror(errno));
        return;
    }
    TT_FAILPOINT("saver.removing");
    if (remove_any(temp)) tt_warn("old checkpoint: %s", tt_message());
}

static void prune(const tt_saver *s, const tt_ckpt_info *list, int count, bool finite)
{
    int good = -1, kept = 1; /* the one just saved */

    if (s->keep == 0) return;
    if (!finite) good = find_good(list, count); /* else the one just saved and read back is it */
    for (int i = count - 1; i >= 0; i--) {
        const tt_ckpt_info *c = &list[i];
        if (c->step == s->step) continue;
        if (kept < s->keep) {
            kept += c->valid;
            continue;
        }
        if (c->best || i == good) continue;
        remove_checkpoint(c->path);
    }
}

/* For people and shell scripts; nothing here reads it. */
static void write_pointer(const char *folder, const char *name, int64_t step)
{
    char path[PATH_ROOM], text[64];

    snprintf(text, sizeof text, TT_STEP_DIR "\n", (long long)step);
    if (path_join(folder, name, path) || tt_file_write(path, text, strlen(text)))
        tt_warn("%s", tt_message());
}

static void settle(tt_saver *s, bool finite)
{
    tt_ckpt_info *list;
    int count;

    if (finite) write_pointer(s->folder, "LATEST", s->step);
    TT_FAILPOINT("saver.pointed");
    if (tt_ckpt_list(s->folder, false, &list, &count)) {
        tt_warn("old checkpoints are not removed: %s", tt_message());
        return;
    }
    tt_ckpt_mark_best(list, count, s->best);
    for (int i = 0; i < count; i++)
        if (list[i].best) write_pointer(s->folder, "BEST", list[i].step);
    prune(s, list, count, finite);
    TT_FAILPOINT("saver.pruned");
    free(list);
}

/* A helper's share of a checkpoint. */
static tt_err write_share(tt_saver *s)
{
    char folder[PATH_ROOM];
    json_t *files = json_array();
    bool finite = !tt_entries_nonfinite(s->staged, s->count);
    tt_err err = tt_part_begin(s->folder, s->step, folder);

    if (!err) err = write_parts(s, folder, files);
    TT_FAILPOINT("parts.written");
    if (!err) err = tt_part_note(s->folder, s->step, s->part, s->token, files, finite);
    json_decref(files);
    if (err) tt_warn("part of the checkpoint of step %lld: %s", (long long)s->step, tt_message());
    if (!err) atomic_store(&s->last_step, s->step);
    return err;
}

static tt_err save_now(tt_saver *s)
{
    bool finite;
    if (s->part) return write_share(s);
    tt_err err = write_checkpoint(s, &finite);
    long long last = atomic_load(&s->last_step);

    if (err && last >= 0)
        tt_warn("checkpoint of step %lld not saved, that of step %lld stays: %s",
                (long long)s->step, last, tt_message());
    else if (err)
        tt_warn("checkpoint of step %lld not saved: %s", (long long)s->step, tt_message());
    if (err) return err;
    atomic_store(&s->last_step, s->step);
    settle(s, finite);
    return TT_OK;
}

static void *work(void *arg)
{
    tt_saver *s = arg;
    tt_err err;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->busy && !s->quit) pthread_cond_wait(&s->changed, &s->lock);
        if (!s->busy) break;
        pthread_mutex_unlock(&s->lock);
        TT_FAILPOINT("saver.begin");
        err = save_now(s);
        json_decref(s->meta);
        s->meta = NULL;
        pthread_mutex_lock(&s->lock);
        s->err = err;
        snprintf(s->message, sizeof s->message, "%s", err ? tt_message() : "");
        s->ended = true;
        s->ended_step = s->step;
        s->busy = false;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- opening ---- */

static tt_err check_opts(const tt_saver_opts *o)
{
    tt_err err;

    if (!o->folder || !*o->folder || strlen(o->folder) >= FOLDER_ROOM)
        return tt_fail(TT_EINVAL, "the folder for checkpoints is not given, or its path too long");
    if (o->keep < 0) return tt_fail(TT_EINVAL, "%d checkpoints cannot be kept", o->keep);
    if (o->best < -1 || o->best > 1)
        return tt_fail(TT_EINVAL, "best is %d, and must be -1, 0 or 1", o->best);
    if (o->count < 1) return tt_fail(TT_EINVAL, "there is nothing to save");
    if ((err = tt_entries_check(o->entries, o->count))) return err;
    for (int i = 0; i < o->count; i++) {
        const char *f = o->file[i], *end = f ? strrchr(f, '.') : NULL;
        if (!end || *f == '.' || strchr(f, '/') || strcmp(end, ".safetensors") || strlen(f) > 200)
            return tt_fail(TT_EINVAL, "tensor %.200s: \"%.200s\" is no name for a weights file",
                           o->entries[i].name, f ? f : "");
    }
    return TT_OK;
}

static part *part_of(tt_saver *s, const char *file)
{
    for (int i = 0; i < s->part_count; i++)
        if (!strcmp(s->parts[i].name, file)) return &s->parts[i];
    s->parts[s->part_count].name = tt_arena_strdup(s->arena, file);
    return &s->parts[s->part_count++];
}

/* Lists the entries file by file, each with its place in the staging area. */
static tt_err lay_out(tt_saver *s, const tt_saver_opts *o)
{
    size_t n = (size_t)o->count, at = 0, end;

    s->arena = tt_arena_open(0);
    s->staged = tt_arena_take(s->arena, tt_mul_size(n, sizeof *s->staged), ALIGN);
    s->source = tt_arena_take(s->arena, tt_mul_size(n, sizeof *s->source), ALIGN);
    s->room = tt_arena_take(s->arena, tt_mul_size(n, sizeof *s->room), ALIGN);
    s->parts = tt_arena_take(s->arena, tt_mul_size(n, sizeof *s->parts), ALIGN);
    for (int i = 0; i < o->count; i++) part_of(s, o->file[i]);
    for (part *p = s->parts; p < s->parts + s->part_count; p++) {
        p->first = s->count;
        for (int i = 0; i < o->count; i++) {
            tt_entry *e = &s->staged[s->count];
            if (strcmp(o->file[i], p->name)) continue;
            *e = o->entries[i];
            e->name = tt_arena_strdup(s->arena, e->name);
            s->source[s->count++] = &o->entries[i];
            if (!e->data && s->fill) continue;
            if (__builtin_add_overflow(at, (size_t)e->bytes, &end) || end > SIZE_MAX - ALIGN)
                return tt_fail(TT_EINVAL, "the sizes of the tensors overflow 64 bits");
            at = (end + ALIGN - 1) / ALIGN * ALIGN;
        }
        p->count = s->count - p->first;
    }
    s->stage = tt_block_alloc(at);
    if (!s->stage) return tt_fail(TT_ENOMEM, "no memory for a copy of %zu bytes to save from", at);
    s->stage_bytes = at;
    memset(s->stage, 0, at); /* so that the pages are there, and no save has to wait for them */
    at = 0;
    for (tt_entry *e = s->staged; e < s->staged + s->count; e++) {
        if (!e->data && s->fill) continue;
        e->data = s->stage + at;
        at = (at + (size_t)e->bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    return TT_OK;
}

/* One that was set aside before goes: the place is for the latest that went wrong there. */
static tt_err rename_bad(const char *path)
{
    char bad[PATH_ROOM + 8];
    tt_err err;

    snprintf(bad, sizeof bad, "%s.bad", path);
    if ((err = remove_any(bad))) return err;
    if (rename(path, bad))
        return tt_fail(TT_EIO, "rename %s to %s: %s", path, bad, strerror(errno));
    tt_warn("%s is set aside as %s", path, bad);
    return TT_OK;
}

tt_err tt_ckpt_set_aside(const char *folder, int64_t step)
{
    tt_ckpt_info *list;
    int count, moved = 0;
    tt_err err = tt_ckpt_list(folder, false, &list, &count);

    for (int i = 0; i < count && !err; i++)
        if (list[i].step > step && !(err = rename_bad(list[i].path))) moved++;
    free(list);
    if (!moved) return err;
    TT_FAILPOINT("ckpt.aside");
    if (err || (err = tt_dir_sync(folder)) || (err = tt_ckpt_list(folder, false, &list, &count)))
        return err;
    write_pointer(folder, "LATEST", step);
    for (int i = 0; i < count; i++)
        if (list[i].best) write_pointer(folder, "BEST", list[i].step);
    free(list);
    return TT_OK;
}

static tt_err find_last(tt_saver *s)
{
    tt_ckpt_info *list;
    int count;
    tt_err err = tt_ckpt_list(s->folder, false, &list, &count);

    for (int i = 0; i < count; i++)
        if (list[i].newest) atomic_store(&s->last_step, list[i].step);
    free(list);
    return err;
}

/* Signals are for the threads of the program, not for this one. */
static tt_err start_thread(tt_saver *s)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&s->thread, NULL, work, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) return tt_fail(TT_ENOMEM, "start the thread that saves: %s", strerror(rc));
    s->started = true;
    return TT_OK;
}

tt_err tt_saver_open(const tt_saver_opts *o, tt_saver **out)
{
    tt_err err;
    tt_saver *s;

    *out = NULL;
    if ((err = check_opts(o))) return err;
    s = calloc(1, sizeof *s);
    if (!s) return tt_fail(TT_ENOMEM, "no memory to save checkpoints");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    snprintf(s->folder, sizeof s->folder, "%s", o->folder);
    s->keep = o->keep;
    s->best = o->best;
    atomic_init(&s->last_step, -1);
    s->helpers = o->parts;
    s->part = o->part;
    s->token = o->token;
    s->wait_s = o->wait_s;
    s->entries = o->entries;
    s->fill = o->fill;
    s->who = o->who;
    if ((err = tt_dir_make(s->folder))) goto out;
    if (!s->part) {
        tidy(s->folder, -1);
        if ((err = find_last(s))) goto out;
    }
    if ((err = lay_out(s, o)) || (err = start_thread(s))) goto out;
    *out = s;
    s = NULL;
out:
    tt_saver_close(s);
    return err;
}

/* ---- what the training loop calls ---- */

/* Room for a copy, and for what it will have grown by the next time. What the kernel promises and
 * has not it takes from whoever uses it: so it is asked what is free. */
static void *take_room(size_t bytes, size_t *room)
{
    size_t free = tt_mem_free() / 8 * 7;

    if (!bytes) bytes = 1; /* no rows yet: it is a block all the same, and closing looks for one */
    *room = bytes + bytes / 4 < free ? bytes + bytes / 4 : bytes;
    return *room < free ? tt_block_alloc(*room) : NULL;
}

/* One that grows: its data is the caller's to write. */
static tt_err stage_grown(tt_saver *s, int i)
{
    tt_entry *e = &s->staged[i];
    const tt_entry *from = s->source[i];
    size_t bytes = (size_t)from->bytes;

    if (bytes > s->room[i] || !e->data) {
        tt_block_free((void *)(uintptr_t)e->data, s->room[i]);
        e->bytes = 0;
        if (!(e->data = take_room(bytes, &s->room[i]))) {
            s->room[i] = 0;
            return tt_fail(TT_ENOMEM, "no memory for a copy of %.200s, of %zu bytes, to save from",
                           e->name, bytes);
        }
    }
    memcpy(e->shape, from->shape, sizeof e->shape);
    e->bytes = from->bytes;
    s->fill(s->who, (int)(from - s->entries), (void *)(uintptr_t)e->data);
    return TT_OK;
}

static tt_err stage_all(tt_saver *s)
{
    tt_err err = TT_OK;

    for (int i = 0; i < s->count && !err; i++) {
        if (!s->source[i]->data && s->fill)
            err = stage_grown(s, i);
        else if (s->staged[i].bytes)
            memcpy((void *)s->staged[i].data, s->source[i]->data, (size_t)s->staged[i].bytes);
    }
    return err;
}

tt_err tt_saver_save(tt_saver *s, int64_t step, json_t *meta, double score)
{
    if (step < 0 || (meta && !json_is_object(meta))) {
        json_decref(meta);
        return tt_fail(TT_EINVAL, "a checkpoint needs a step of at least 0 and an object as meta");
    }
    pthread_mutex_lock(&s->lock);
    while (s->busy) pthread_cond_wait(&s->changed, &s->lock);
    tt_err err = stage_all(s);
    if (err) { /* as if the disk were full: there may be memory for the next one */
        s->err = err;
        snprintf(s->message, sizeof s->message, "%s", tt_message());
        s->ended = true;
        s->ended_step = step;
        pthread_mutex_unlock(&s->lock);
        json_decref(meta);
        return TT_OK;
    }
    TT_FAILPOINT("saver.staged");
    s->step = step;
    s->meta = meta;
    s->score = score;
    s->busy = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return TT_OK;
}

tt_err tt_saver_wait(tt_saver *s)
{
    tt_err err;

    pthread_mutex_lock(&s->lock);
    while (s->busy) pthread_cond_wait(&s->changed, &s->lock);
    err = s->err;
    if (err) tt_repeat(err, s->message);
    pthread_mutex_unlock(&s->lock);
    return err;
}

bool tt_saver_ended(tt_saver *s, int64_t *step, tt_err *err)
{
    bool ended;

    pthread_mutex_lock(&s->lock);
    ended = s->ended;
    s->ended = false;
    *step = s->ended_step;
    *err = s->err;
    if (ended && *err) tt_repeat(*err, s->message);
    pthread_mutex_unlock(&s->lock);
    return ended;
}

int64_t tt_saver_last(tt_saver *s)
{
    return atomic_load(&s->last_step);
}

void tt_saver_close(tt_saver *s)
{
    if (!s) return;
    if (s->started) {
        pthread_mutex_lock(&s->lock);
        s->quit = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    tt_block_free(s->stage, s->stage_bytes);
    for (int i = 0; i < s->count; i++)
        if (s->room[i]) tt_block_free((void *)(uintptr_t)s->staged[i].data, s->room[i]);
    tt_arena_close(s->arena);
    json_decref(s->meta);
    free(s);
}
