/* inner: what the files of this module share. Not for other modules. */
#ifndef TT_STORE_INNER_H
#define TT_STORE_INNER_H

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "store.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "files are little-endian and mapped as they are: this machine needs conversions first"
#endif

enum { PATH_ROOM = 4096 };

static inline tt_err path_join(const char *folder, const char *name, char out[PATH_ROOM])
{
    int n = snprintf(out, PATH_ROOM, "%s/%s", folder, name);

    if (n >= 0 && n < PATH_ROOM) return TT_OK;
    return tt_fail(TT_EINVAL, "%.200s...: the path is too long", folder);
}

/* Fsyncs the folder that holds `path`, which is new there. */
tt_err tt_parent_sync(const char *path);

/* TT_EINVAL unless name, shape and bytes of every entry agree and no name is there twice. */
tt_err tt_entries_check(const tt_entry *entries, int count);

/* Name of the first entry that holds a NaN or an infinity, or NULL. */
const char *tt_entries_nonfinite(const tt_entry *entries, int count);

/* Writes and fsyncs a new file `path`, which must not exist; removes it again on error. */
tt_err tt_tensors_put(const char *path, const tt_entry *entries, int count, json_t *notes,
                      char sha[65], int64_t *bytes);

/* A JSON object from a file of at most `most` bytes; names path, line and column if it is none. */
tt_err tt_json_read(const char *path, size_t most, json_t **out);

/* One checkpoint. What has a suffix too is unfinished or left over. */
#define TT_STEP_DIR "step-%08lld"

/* Fills in the manifest's "check", a hash of all the rest, and gives its text; free() it.
 * NULL if memory is out. */
char *tt_manifest_seal(json_t *manifest);

/* parts.c. A helper: the folder for its files; and when they are there, its note. */
tt_err tt_part_begin(const char *folder, int64_t step, char path[PATH_ROOM]);
tt_err tt_part_note(const char *folder, int64_t step, int part, uint64_t token, json_t *files,
                    bool finite);
/* The other side: moves the files of parts 1 .. `parts` to the folder `to` and lists them in
 * `files`. TT_EIO: one did not come in time. *finite is cleared if one is not. */
tt_err tt_parts_take(const char *folder, int64_t step, int parts, uint64_t token, double wait_s,
                     const char *to, json_t *files, bool *finite);

/* Of the valid and finite ones marks the best score: better +1 larger, -1 smaller, 0 marks none. */
void tt_ckpt_mark_best(tt_ckpt_info *list, int count, int better);

/* The framed records of an event file. Returns the bytes written to out, 0 if `room` is too small.
 */
size_t tt_event_version(uint8_t *out, size_t room, double wall_s);
size_t tt_event_scalar(uint8_t *out, size_t room, double wall_s, int64_t step, const char *tag,
                       float value);

#endif
