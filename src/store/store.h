/* store: what outlives a process: weights files, checkpoints, the metrics journal, the run folder.
 *
 * It knows neither layers nor ranks: only named ranges of numbers and lines of JSON. Everything
 * that is written appears whole or not at all; everything that is read is checked before it is
 * believed. */
#ifndef TT_STORE_H
#define TT_STORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

/* ---- Named tensors ---- */

typedef enum tt_dtype {
    TT_F32,
    TT_F64,
    TT_F16,
    TT_BF16,
    TT_I8,
    TT_U8,
    TT_I16,
    TT_U16,
    TT_I32,
    TT_U32,
    TT_I64,
    TT_U64,
    TT_B8
} tt_dtype;
size_t tt_dtype_size(tt_dtype t);
const char *tt_dtype_name(tt_dtype t); /* as safetensors has it: "F32" */

typedef struct tt_entry {
    const char *name;
    tt_dtype type;
    int rank;
    int64_t shape[8];
    const void *data; /* row-major, little-endian; in a foreign file of any alignment */
    int64_t bytes;
} tt_entry;

/* ---- safetensors ---- */

typedef struct tt_tensors tt_tensors;

/* Maps a file and validates all of it (formats: every rule of the reference reader). Errors are
 * TT_EIO or TT_EFORMAT with path and offset or tensor name. Entries are in file order, data points
 * into the map. */
tt_err tt_tensors_open(const char *path, tt_tensors **out);
int tt_tensors_count(const tt_tensors *t);
const tt_entry *tt_tensors_at(const tt_tensors *t, int i);
const tt_entry *tt_tensors_find(const tt_tensors *t, const char *name); /* NULL if absent */
const char *tt_tensors_note(const tt_tensors *t, const char *key);      /* __metadata__; NULL */
void tt_tensors_close(tt_tensors *t);                                   /* accepts NULL */

/* Converts entry's numbers (F32, F64, F16, BF16) to n floats; TT_ECKPT if type or count do not fit.
 */
tt_err tt_entry_floats(const tt_entry *e, float *out, int64_t n);

/* Writes atomically. `notes` (may be NULL) is an object of strings for __metadata__; "format":"pt"
 * is always there. If sha is not NULL it gets the file's SHA-256. */
tt_err tt_tensors_write(const char *path, const tt_entry *entries, int count, json_t *notes,
                        char sha[65]);

/* ---- Checkpoints: <folder>/step-00001200/{manifest.json, *.safetensors} ----
 *
 * The manifest is written last and lists every file with size and SHA-256, so a checkpoint without
 * a manifest that checks out does not exist. A save goes to a temporary folder name, files and
 * folder are fsynced, then it is renamed, then the parent fsynced; old ones are removed only after
 * the new one has been read back. */

typedef struct tt_ckpt tt_ckpt;

/* Opens step's checkpoint, or with step < 0 the newest that is valid and finite: others are
 * skipped, each with a tt_warn that names file and defect. TT_ECKPT if there is none. `verify`:
 * re-hash all files. */
tt_err tt_ckpt_open(const char *folder, int64_t step, bool verify, tt_ckpt **out);
tt_err tt_ckpt_open_path(const char *path, bool verify, tt_ckpt **out); /* one checkpoint folder */
int64_t tt_ckpt_step(const tt_ckpt *c);
bool tt_ckpt_finite(const tt_ckpt *c);        /* no number in it is NaN or infinite */
const json_t *tt_ckpt_meta(const tt_ckpt *c); /* what the saver gave, as it was   */
const tt_tensors *tt_ckpt_file(const tt_ckpt *c, const char *name); /* one of its files, or NULL */
const tt_entry *tt_ckpt_find(const tt_ckpt *c, const char *name);
int tt_ckpt_count(const tt_ckpt *c);
const tt_entry *tt_ckpt_at(const tt_ckpt *c, int i);
void tt_ckpt_close(tt_ckpt *c);

typedef struct tt_ckpt_info {
    int64_t step;
    char path[4096];
    int64_t bytes;
    double time; /* when it was made, seconds since 1970 */
    bool valid; /* manifest present, files present with the right sizes (and hashes, if verified) */
    char defect[512]; /* why not, if not */
    bool finite, best;
    bool newest;  /* of those that are valid and finite: where a run is resumed */
    double score; /* of the `best` metric, NAN if none */
} tt_ckpt_info;
/* All of a folder, oldest first, valid or not. free() the array. */
tt_err tt_ckpt_list(const char *folder, bool verify, tt_ckpt_info **out, int *count);

/* For a run that goes on at `step`: what is newer was passed over, and is no part of the run any
 * more. It is renamed to step-N.bad, which nothing here reads; whoever has no use for it may remove
 * it. */
tt_err tt_ckpt_set_aside(const char *folder, int64_t step);

/* The saver: a background thread and a staging copy allocated at open, so that a save costs the
 * training loop one memcpy and never an allocation. */
typedef struct tt_saver tt_saver;
typedef struct tt_saver_opts {
    const char *folder; /* .../checkpoints, made if absent                                     */
    int keep;           /* newest ones kept; 0: all. The best one, and the newest that is finite and
                         * valid, are never removed                                            */
    int best;           /* 0 none, +1 larger score is better, -1 smaller                       */
    const tt_entry *entries; /* what is saved: names, shapes, and where to copy the data from.
                              * Borrowed until close: `data` is read at each save, so it may move */
    const char *const *file; /* per entry: "model.safetensors", "optim.safetensors"              */
    int count;
    /* Entries that grow: with data NULL. Their shape is looked at with each save, and this writes
     * entry i; the copy grows with it, which is the one allocation there may be. NULL: none do. */
    void (*fill)(void *who, int i, void *to);
    void *who;
    /* Several processes that see the same folder may write one checkpoint together: one has `parts`
     * helpers, and each helper a saver of its own with `part` 1 .. parts and files of other names.
     * All save the same steps. */
    int parts, part;
    uint64_t token; /* the same for all of them, and never used before */
    double wait_s;  /* how long the one waits for the helpers          */
} tt_saver_opts;
tt_err tt_saver_open(const tt_saver_opts *o, tt_saver **out);
/* Copies all entries now and returns; if the save before is still being written it waits for that
 * one first. If there is no memory for copies that grow, the save has ended with that. `meta` is
 * taken over (a reference is stolen). `score` NAN if there is none. */
tt_err tt_saver_save(tt_saver *s, int64_t step, json_t *meta, double score);
/* Waits for the writer. The error, if any, of the last save; training may go on: the older
 * checkpoint stays. */
tt_err tt_saver_wait(tt_saver *s);
/* Has a save ended since this was asked last? Then true, once, with its step and its error (and
 * tt_message). Does not wait for the writer. */
bool tt_saver_ended(tt_saver *s, int64_t *step, tt_err *err);
int64_t tt_saver_last(tt_saver *s); /* last step safely on disk, -1 if none; never blocks */
void tt_saver_close(tt_saver *s);   /* waits; accepts NULL */

/* ---- Run folder: runs/<name>-<yyyymmdd-hhmmss>-<4 hex>/ ---- */

typedef struct tt_run_dir {
    char path[4096];
    bool resumed; /* the folder was there before */
} tt_run_dir;

/* `path` NULL: a new folder below `parent` (default "runs"). With `resume` an existing folder is
 * entered, else one that already holds a run is TT_EINVAL. One process at a time: a lock in the
 * folder (flock) names the other's pid. The lock is held until tt_run_dir_close. */
tt_err tt_run_dir_open(const char *parent, const char *name, const char *path, bool resume,
                       tt_run_dir **out);
/* The run goes on from here: the summary of how it ended before becomes summary.old.json. Not part
 * of open, so that a run that cannot be resumed stays as it was. */
tt_err tt_run_dir_begin(tt_run_dir *d);
/* A folder for a run that somebody else will open: made below `parent` if path is NULL, else that
 * one, which must not hold a run. */
tt_err tt_run_dir_make(const char *parent, const char *name, const char *path, char out[4096]);
bool tt_run_begun(const char *path); /* is there a run in it? */
/* The run's identity, whatever its folder is called: made the first time. */
enum { TT_RUN_ID = 33 };
tt_err tt_run_dir_id(tt_run_dir *d, char id[TT_RUN_ID]);
bool tt_run_id(const char *run, char id[TT_RUN_ID]); /* ... if it has one */
tt_err tt_run_dir_write(tt_run_dir *d, const char *file, const char *text);
void tt_run_dir_close(tt_run_dir *d); /* a new folder in which nothing was begun goes */

typedef struct tt_run_info {
    char path[4096], name[256],
        status[32]; /* name: the folder's; status: running, done, stopped, diverged, failed, lost */
    double started, updated;
    double made; /* when its job was written: of two that started in one second tells the first */
    int64_t step;
    json_t *summary; /* NULL if there is none yet */
} tt_run_info;
tt_err tt_run_list(const char *parent, tt_run_info **out, int *count); /* oldest first */
tt_err tt_run_look(const char *path, tt_run_info *out); /* one; "last" below parent: see cli */
void tt_run_free(tt_run_info *runs, int count);

/* ---- Journal: metrics.jsonl, one JSON object per line ----
 * Append-only, so a crash costs at most the last line and a reader needs no lock. */
typedef struct tt_journal tt_journal;
/* A torn last line is cut off: it never counted as written. With after_step >= 0, lines whose
 * "step" is greater are dropped as well (a resumed run takes up at its checkpoint, and no step is
 * there twice). */
tt_err tt_journal_open(const char *path, int64_t after_step, tt_journal **out);
typedef struct tt_field {
    const char *name;
    double value;
} tt_field;
/* NaN and infinities become null plus "nonfinite":[names]. Allocates nothing. Time and step are
 * added. */
tt_err tt_journal_line(tt_journal *j, int64_t step, const char *split, const tt_field *field,
                       int count);
tt_err tt_journal_event(tt_journal *j, int64_t step, const char *what, const char *sentence);
tt_err tt_journal_flush(tt_journal *j);
void tt_journal_close(tt_journal *j);

/* ---- TensorBoard events ---- */
typedef struct tt_events tt_events;
/* Goes on with the newest file events.out.tfevents.<t>.<host>.<pid>.<n> of the folder, without what
 * may be torn at its end; or makes one, if there is none, it is none, or somebody writes to it. */
tt_err tt_events_open(const char *folder, tt_events **out);
tt_err tt_events_scalar(tt_events *e, int64_t step, const char *tag,
                        double value); /* "train/loss" */
tt_err tt_events_flush(tt_events *e);
void tt_events_close(tt_events *e);

#endif
