/* ckpt: finding and reading checkpoints.
 *
 * What is believed about a checkpoint is what its manifest says, and the manifest is believed only
 * if its own hash ("check") fits, so that a flipped bit in the training state kept there is found
 * as surely as one in the weights. LATEST and BEST are for people and never read here. */
#define _GNU_SOURCE
#include "inner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MANIFEST_MOST = 256 << 20 };
static const size_t LAYOUT = JSON_INDENT(2) | JSON_REAL_PRECISION(17);

typedef struct manifest {
    json_t *root;
    const json_t *files; /* borrowed from root, as is all below */
    int64_t step, bytes;
    double time, score;
    int better;
    bool finite;
} manifest;

tt_err tt_json_read(const char *path, size_t most, json_t **out)
{
    tt_bytes b;
    json_error_t e;
    tt_err err = tt_file_read(path, most, &b);

    *out = NULL;
    if (err) return err;
    *out = json_loadb(b.data ? (const char *)b.data : "", b.size, JSON_REJECT_DUPLICATES, &e);
    tt_file_release(&b);
    if (!*out) return tt_fail(TT_EFORMAT, "%s:%d:%d: not JSON: %s", path, e.line, e.column, e.text);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return tt_fail(TT_EFORMAT, "%s: not a JSON object", path);
    }
    return TT_OK;
}

/* ---- the manifest ---- */

/* The hash of everything but "check", in a form that does not depend on the layout of the text. */
static bool manifest_hash(json_t *root, char hex[65])
{
    json_t *copy = json_copy(root);
    char *text = NULL;
    tt_sha *sha;

    json_object_del(copy, "check");
    text = json_dumps(copy, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    if (text) {
        sha = tt_sha_begin();
        tt_sha_add(sha, text, strlen(text));
        tt_sha_end(sha, hex);
    }
    json_decref(copy);
    free(text);
    return text != NULL;
}

char *tt_manifest_seal(json_t *root)
{
    char hex[65];

    if (!manifest_hash(root, hex)) return NULL;
    if (json_object_set_new(root, "check", json_string(hex))) return NULL;
    return json_dumps(root, LAYOUT);
}

/* The hash is of what the text means. A flipped bit may leave that as it was, as in the last digit
 * of a number; but what rots in one place rots in others, so it is found too. */
static tt_err check_text(const char *path, const json_t *root)
{
    char *text = json_dumps(root, LAYOUT);
    tt_bytes b = {0};
    size_t at = 0;
    tt_err err = text ? tt_file_read(path, MANIFEST_MOST, &b)
                      : tt_fail(TT_ENOMEM, "%s: no memory to check it", path);

    if (!err) {
        while (at < b.size && text[at] && (char)b.data[at] == text[at]) at++;
        if (at < b.size || text[at])
            err = tt_fail(TT_EFORMAT, "%s: byte %zu is not what was written", path, at);
    }
    tt_file_release(&b);
    free(text);
    return err;
}

static bool is_file_name(const char *s)
{
    return s && *s && *s != '.' && !strchr(s, '/');
}

static tt_err check_file_item(const char *path, const json_t *item, int64_t *bytes)
{
    const char *name = json_string_value(json_object_get(item, "name"));
    const json_t *size = json_object_get(item, "bytes");
    const char *sha = json_string_value(json_object_get(item, "sha256"));

    if (!is_file_name(name))
        return tt_fail(TT_EFORMAT, "%s: a file in the list has no proper name", path);
    if (!json_is_integer(size) || json_integer_value(size) < 0 || !sha || strlen(sha) != 64 ||
        __builtin_add_overflow(*bytes, (int64_t)json_integer_value(size), bytes))
        return tt_fail(TT_EFORMAT, "%s: size or hash of %.200s are missing or malformed", path,
                       name);
    return TT_OK;
}

static tt_err manifest_fields(const char *path, manifest *m)
{
    const json_t *root = m->root, *score = json_object_get(root, "score");
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_t *version = json_object_get(root, "version"), *step = json_object_get(root, "step");
    const char *better = json_string_value(json_object_get(root, "better"));
    const json_t *item;
    size_t i;
    tt_err err;

    if (!format || strcmp(format, "tutti-checkpoint"))
        return tt_fail(TT_EFORMAT, "%s: not the manifest of a checkpoint", path);
    if (json_integer_value(version) != 1)
        return tt_fail(TT_EFORMAT, "%s: version %lld, this build reads 1", path,
                       (long long)json_integer_value(version));
    m->files = json_object_get(root, "files");
    if (!json_is_integer(step) || json_integer_value(step) < 0 ||
        !json_is_number(json_object_get(root, "time")) ||
        !json_is_boolean(json_object_get(root, "finite")) ||
        !(json_is_null(score) || json_is_number(score)) ||
        !json_is_object(json_object_get(root, "meta")) || !json_is_array(m->files))
        return tt_fail(TT_EFORMAT,
                       "%s: step, time, finite, score, files or meta are missing or malformed",
                       path);
    m->step = json_integer_value(step);
    m->time = json_number_value(json_object_get(root, "time"));
    m->finite = json_is_true(json_object_get(root, "finite"));
    m->score = json_is_null(score) ? NAN : json_number_value(score);
    m->better = !better ? 0 : !strcmp(better, "larger") ? 1 : !strcmp(better, "smaller") ? -1 : 0;
    json_array_foreach(m->files, i,
                       item) if ((err = check_file_item(path, item, &m->bytes))) return err;
    return TT_OK;
}

static tt_err manifest_read(const char *folder, manifest *m)
{
    char path[PATH_ROOM], hex[65];
    const char *check;
    tt_err err;

    memset(m, 0, sizeof *m);
    if ((err = path_join(folder, "manifest.json", path))) return err;
    if (!tt_file_exists(path))
        return tt_fail(TT_EFORMAT, "%s: %s", path,
                       tt_file_exists(folder) ? "it is missing: the save was never finished"
                                              : "no such folder");
    if ((err = tt_json_read(path, MANIFEST_MOST, &m->root))) return err;
    if ((err = manifest_fields(path, m))) return err;
    check = json_string_value(json_object_get(m->root, "check"));
    if (!manifest_hash(m->root, hex)) return tt_fail(TT_ENOMEM, "%s: no memory to check it", path);
    if (!check || strcmp(check, hex))
        return tt_fail(TT_EFORMAT, "%s: its own SHA-256 (\"check\") does not fit: it was changed",
                       path);
    return check_text(path, m->root);
}

/* Are the files there, of the right size and, if asked, with the right content? */
static tt_err manifest_files(const char *folder, const manifest *m, bool verify)
{
    const json_t *item;
    size_t i;
    tt_err err;

    json_array_foreach(m->files, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        int64_t bytes = json_integer_value(json_object_get(item, "bytes"));
        char path[PATH_ROOM], hex[65];
        struct stat st;
        if ((err = path_join(folder, name, path))) return err;
        if (stat(path, &st)) return tt_fail(TT_EFORMAT, "%s: %s", path, strerror(errno));
        if (st.st_size != bytes)
            return tt_fail(TT_EFORMAT, "%s: %lld bytes, the manifest says %lld: it was %s", path,
                           (long long)st.st_size, (long long)bytes,
                           st.st_size < bytes ? "cut short" : "extended");
        if (!verify) continue;
        if ((err = tt_sha_file(path, hex))) return err;
        if (strcmp(hex, json_string_value(json_object_get(item, "sha256"))))
            return tt_fail(TT_EFORMAT,
                           "%s: its SHA-256 is not that of the manifest: the content was changed",
                           path);
    }
    return TT_OK;
}

/* ---- one checkpoint ---- */

struct tt_ckpt {
    manifest m;
    tt_tensors **files;
    int file_count;
    const tt_entry **entries;
    int count;
};

static tt_err open_files(const char *folder, tt_ckpt *c)
{
    size_t files = json_array_size(c->m.files);
    char path[PATH_ROOM];
    tt_err err;

    c->files = calloc(files + 1, sizeof *c->files);
    if (!c->files) return tt_fail(TT_ENOMEM, "%s: no memory for its list", folder);
    for (size_t i = 0; i < files; i++) {
        const json_t *item = json_array_get(c->m.files, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        if ((err = path_join(folder, name, path))) return err;
        if ((err = tt_tensors_open(path, &c->files[i]))) return err;
        c->file_count++;
        c->count += tt_tensors_count(c->files[i]);
    }
    c->entries = calloc((size_t)c->count + 1, sizeof *c->entries);
    if (!c->entries) return tt_fail(TT_ENOMEM, "%s: no memory for its list", folder);
    for (int i = 0, at = 0; i < c->file_count; i++) {
        for (int k = 0; k < tt_tensors_count(c->files[i]); k++) {
            const tt_entry *e = tt_tensors_at(c->files[i], k);
            if (tt_ckpt_find(c, e->name) != e)
                return tt_fail(TT_EFORMAT, "%s: two of its files hold a tensor %.200s", folder,
                               e->name);
            c->entries[at++] = e;
        }
    }
    return TT_OK;
}

/* step < 0: whatever the manifest says. */
static tt_err open_step(const char *path, int64_t step, bool verify, tt_ckpt **out)
{
    tt_err err;
    tt_ckpt *c = calloc(1, sizeof *c);

    *out = NULL;
    if (!c) return tt_fail(TT_ENOMEM, "open %s: no memory", path);
    if ((err = manifest_read(path, &c->m))) goto out;
    if (step >= 0 && step != c->m.step) {
        err =
            tt_fail(TT_EFORMAT, "%s/manifest.json: it is of step %lld", path, (long long)c->m.step);
        goto out;
    }
    if ((err = manifest_files(path, &c->m, verify))) goto out;
    if ((err = open_files(path, c))) goto out;
    TT_FAILPOINT("ckpt.opened");
    *out = c;
    c = NULL;
out:
    tt_ckpt_close(c);
    return err;
}

tt_err tt_ckpt_open_path(const char *path, bool verify, tt_ckpt **out)
{
    return open_step(path, -1, verify, out);
}

int64_t tt_ckpt_step(const tt_ckpt *c)
{
    return c->m.step;
}

bool tt_ckpt_finite(const tt_ckpt *c)
{
    return c->m.finite;
}

const json_t *tt_ckpt_meta(const tt_ckpt *c)
{
    return json_object_get(c->m.root, "meta");
}

const tt_tensors *tt_ckpt_file(const tt_ckpt *c, const char *name)
{
    for (int i = 0; i < c->file_count; i++) {
        const json_t *item = json_array_get(c->m.files, (size_t)i);
        if (!strcmp(name, json_string_value(json_object_get(item, "name")))) return c->files[i];
    }
    return NULL;
}

const tt_entry *tt_ckpt_find(const tt_ckpt *c, const char *name)
{
    for (int i = 0; i < c->file_count; i++) {
        const tt_entry *e = tt_tensors_find(c->files[i], name);
        if (e) return e;
    }
    return NULL;
}

int tt_ckpt_count(const tt_ckpt *c)
{
    return c->count;
}

const tt_entry *tt_ckpt_at(const tt_ckpt *c, int i)
{
    TT_ASSERT(i >= 0 && i < c->count);
    return c->entries[i];
}

void tt_ckpt_close(tt_ckpt *c)
{
    if (!c) return;
    for (int i = 0; i < c->file_count; i++) tt_tensors_close(c->files[i]);
    free(c->files);
    free(c->entries);
    json_decref(c->m.root);
    free(c);
}

/* ---- a folder of them ---- */

static int by_step(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The steps for which there is a folder (or anything else of that name), ascending. */
static tt_err list_steps(const char *folder, int64_t **out, int *count)
{
    char **names = NULL, again[64];
    int name_count = 0, n = 0;
    int64_t *steps;
    tt_err err;

    *out = NULL;
    *count = 0;
    if (!tt_file_exists(folder)) return TT_OK;
    if ((err = tt_dir_list(folder, &names, &name_count))) return err;
    steps = calloc((size_t)name_count + 1, sizeof *steps);
    for (int i = 0; i < name_count && steps; i++) {
        if (strncmp(names[i], "step-", 5) || strlen(names[i]) > 5 + 18) continue;
        steps[n] = strtoll(names[i] + 5, NULL, 10);
        snprintf(again, sizeof again, TT_STEP_DIR, (long long)steps[n]);
        if (steps[n] >= 0 && !strcmp(again, names[i])) n++;
    }
    tt_dir_free(names, name_count);
    if (!steps) return tt_fail(TT_ENOMEM, "list %s: no memory", folder);
    qsort(steps, (size_t)n, sizeof *steps, by_step);
    *out = steps;
    *count = n;
    return TT_OK;
}

static tt_err step_path(const char *folder, int64_t step, char path[PATH_ROOM])
{
    char name[64];

    snprintf(name, sizeof name, TT_STEP_DIR, (long long)step);
    return path_join(folder, name, path);
}

/* A checkpoint to go on from: one that is intact but not finite has nothing to offer. */
static tt_err open_good(const char *path, int64_t step, bool verify, tt_ckpt **out)
{
    tt_err err = open_step(path, step, verify, out);

    if (err || tt_ckpt_finite(*out)) return err;
    tt_ckpt_close(*out);
    *out = NULL;
    return tt_fail(TT_EFORMAT, "%s holds numbers that are not finite", path);
}

static tt_err open_newest(const char *folder, bool verify, tt_ckpt **out)
{
    char path[PATH_ROOM], newest[512] = "";
    int64_t *steps;
    int count;
    tt_err err;

    if ((err = list_steps(folder, &steps, &count))) return err;
    for (int i = count - 1; i >= 0; i--) {
        if ((err = step_path(folder, steps[i], path))) break;
        err = open_good(path, steps[i], verify, out);
        if (!err || err == TT_ENOMEM) break;
        tt_warn("checkpoint of step %lld skipped: %s", (long long)steps[i], tt_message());
        if (!*newest) snprintf(newest, sizeof newest, "%s", tt_message());
        err = TT_OK;
    }
    free(steps);
    if (err || *out) return err;
    if (count == 0) return tt_fail(TT_ECKPT, "no checkpoint in %s", folder);
    return tt_fail(TT_ECKPT,
                   "none of the %d checkpoints in %s is intact and finite; the newest: %s", count,
                   folder, newest);
}

tt_err tt_ckpt_open(const char *folder, int64_t step, bool verify, tt_ckpt **out)
{
    char path[PATH_ROOM];
    tt_err err;

    *out = NULL;
    if (step < 0) return open_newest(folder, verify, out);
    if ((err = step_path(folder, step, path))) return err;
    if (!tt_file_exists(path))
        return tt_fail(TT_ECKPT, "no checkpoint of step %lld in %s", (long long)step, folder);
    return open_step(path, step, verify, out);
}

static int64_t bytes_on_disk(const char *folder)
{
    char **names = NULL, path[PATH_ROOM];
    int count = 0;
    int64_t bytes = 0;
    struct stat st;

    if (tt_dir_list(folder, &names, &count)) return 0;
    for (int i = 0; i < count; i++)
        if (!path_join(folder, names[i], path) && !lstat(path, &st)) bytes += st.st_size;
    tt_dir_free(names, count);
    return bytes;
}

/* What there is to know of one; *better as its manifest has it. TT_ENOMEM is the only error. */
static tt_err look(const char *folder, int64_t step, bool verify, tt_ckpt_info *info, int *better)
{
    manifest m;
    tt_err err;

    info->step = step;
    info->score = NAN;
    if ((err = step_path(folder, step, info->path))) return err;
    err = manifest_read(info->path, &m);
    if (!err && m.step != step)
        err = tt_fail(TT_EFORMAT, "%s/manifest.json: it is of step %lld", info->path,
                      (long long)m.step);
    if (!err) err = manifest_files(info->path, &m, verify);
    if (err) {
        snprintf(info->defect, sizeof info->defect, "%s", tt_message());
        info->bytes = bytes_on_disk(info->path);
    } else {
        info->valid = true;
        info->bytes = m.bytes;
        info->time = m.time;
        info->finite = m.finite;
        info->score = m.score;
        *better = m.better;
    }
    json_decref(m.root);
    return err == TT_ENOMEM ? err : TT_OK;
}

void tt_ckpt_mark_best(tt_ckpt_info *list, int count, int better)
{
    tt_ckpt_info *best = NULL;

    for (int i = 0; i < count; i++) {
        tt_ckpt_info *c = &list[i];
        c->best = false;
        if (!better || !c->valid || !c->finite || isnan(c->score)) continue;
        /* Of equals the older one, so that the mark does not wander. */
        if (!best || better * (c->score - best->score) > 0) best = c;
    }
    if (best) best->best = true;
}

tt_err tt_ckpt_list(const char *folder, bool verify, tt_ckpt_info **out, int *count)
{
    tt_ckpt_info *list = NULL, *newest = NULL;
    int64_t *steps = NULL;
    int n, better = 0;
    tt_err err;

    *out = NULL;
    *count = 0;
    if ((err = list_steps(folder, &steps, &n))) return err;
    list = calloc((size_t)n + 1, sizeof *list);
    if (!list) {
        err = tt_fail(TT_ENOMEM, "list %s: no memory", folder);
        goto out;
    }
    for (int i = 0; i < n; i++) {
        if ((err = look(folder, steps[i], verify, &list[i], &better))) goto out;
        if (list[i].valid && list[i].finite) newest = &list[i];
    }
    if (newest) newest->newest = true;
    tt_ckpt_mark_best(list, n, better);
    *out = list;
    *count = n;
    list = NULL;
out:
    free(list);
    free(steps);
    return err;
}
