/* parts: a checkpoint that several processes write together.
 *
 * Each helper writes its files to <folder>/step-N.parts/ and, last, a note K.json that lists them
 * with size and hash and has the token of this run's world in it: what an earlier attempt left
 * behind has another. The one who makes the checkpoint waits for all notes, moves the files to
 * where its own are and puts them in the manifest; reading back then checks the hashes. Nothing but
 * the file system is between them, so no background thread needs to talk to another process. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "inner.h"

enum { LOOK_NS = 5 * 1000 * 1000 };

static tt_err parts_path(const char *folder, int64_t step, const char *name, char path[PATH_ROOM])
{
    char dir[PATH_ROOM];

    snprintf(dir, sizeof dir, "%s/" TT_STEP_DIR ".parts", folder, (long long)step);
    if (!name) {
        memcpy(path, dir, PATH_ROOM);
        return TT_OK;
    }
    return path_join(dir, name, path);
}

tt_err tt_part_begin(const char *folder, int64_t step, char path[PATH_ROOM])
{
    parts_path(folder, step, NULL, path);
    return tt_dir_make(path);
}

tt_err tt_part_note(const char *folder, int64_t step, int part, uint64_t token, json_t *files,
                    bool finite)
{
    char path[PATH_ROOM], name[32], hex[20], *text;
    json_t *root;
    tt_err err;

    snprintf(name, sizeof name, "%d.json", part);
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)token);
    if ((err = parts_path(folder, step, name, path))) return err;
    root = json_pack("{s:s, s:b, s:O}", "token", hex, "finite", finite, "files", files);
    text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    err = text ? tt_file_write(path, text, strlen(text)) : tt_fail(TT_ENOMEM, "%s", path);
    free(text);
    json_decref(root);
    TT_FAILPOINT("parts.noted");
    return err;
}

/* The note of a part, if it is there and of this world. */
static json_t *read_note(const char *path, uint64_t token)
{
    json_t *note = tt_file_exists(path) ? json_load_file(path, 0, NULL) : NULL;
    const char *hex = json_string_value(json_object_get(note, "token"));

    if (hex && strtoull(hex, NULL, 16) == token) return note;
    json_decref(note);
    return NULL;
}

static tt_err move_files(const char *folder, int64_t step, const char *to, json_t *note,
                         json_t *files)
{
    char from[PATH_ROOM], path[PATH_ROOM];
    json_t *file;
    size_t i;
    tt_err err;

    json_array_foreach(json_object_get(note, "files"), i, file)
    {
        const char *name = json_string_value(json_object_get(file, "name"));
        if (!name || strchr(name, '/')) return tt_fail(TT_EFORMAT, "%s: a note names no file", to);
        if ((err = parts_path(folder, step, name, from)) || (err = path_join(to, name, path)))
            return err;
        if (rename(from, path))
            return tt_fail(TT_EIO, "rename %s to %s: %s", from, path, strerror(errno));
        if (json_array_append(files, file)) return tt_fail(TT_ENOMEM, "%s: its manifest", to);
    }
    return TT_OK;
}

tt_err tt_parts_take(const char *folder, int64_t step, int parts, uint64_t token, double wait_s,
                     const char *to, json_t *files, bool *finite)
{
    double begun = tt_clock_s();
    char path[PATH_ROOM], name[32];
    tt_err err = TT_OK;

    for (int k = 1; k <= parts && !err; k++) {
        json_t *note;
        snprintf(name, sizeof name, "%d.json", k);
        if ((err = parts_path(folder, step, name, path))) break;
        while (!(note = read_note(path, token))) {
            struct timespec t = {0, LOOK_NS};
            if (tt_clock_s() - begun > wait_s) {
                err = tt_fail(TT_EIO, "part %d of %d was not written within %.3g s", k, parts,
                              wait_s);
                break;
            }
            nanosleep(&t, NULL);
        }
        if (err) break;
        *finite &= json_is_true(json_object_get(note, "finite"));
        TT_FAILPOINT("parts.take");
        err = move_files(folder, step, to, note, files);
        json_decref(note);
    }
    char message[1024];
    snprintf(message, sizeof message, "%s", err ? tt_message() : "");
    parts_path(folder, step, NULL, path);
    if (tt_file_exists(path)) tt_dir_remove(path);
    return err ? tt_repeat(err, message) : TT_OK;
}
