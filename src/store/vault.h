/* vault: committed training state in memory that outlives the process.
 *
 * A run has a folder of vaults on each host, usually in /dev/shm, and each worker of the host a
 * *slot* in it: a file with two halves. The committed half is never written to: the next state is
 * made in the other one, and committing it is storing one word. So whoever is killed, wherever,
 * leaves the last committed state behind, and the one before it until the next is begun.
 *
 *   tt_vault_folder -> tt_vault_open -> [tt_vault_begin -> write the half -> tt_vault_commit] ...
 *
 * How a half becomes the state is commit.h's; this is the memory, the files and the locks around
 * it. A slot belongs to who holds its lock (flock, dropped by the kernel when the holder is gone,
 * after its mappings): a stopped process can never write under its successor.
 *
 * It knows neither ranks nor tensors: a half is bytes, and what they mean its owner tells by `key`.
 */
#ifndef TT_VAULT_H
#define TT_VAULT_H

#include "commit.h"

enum { TT_VAULT_NOTE = 1024, TT_VAULT_VERSION = 24 };

/* What is known of a half. label.step -1: nothing in it, or it is being written. */
typedef struct tt_vault_half {
    tt_label label; /* which state it is */
    uint64_t hash;  /* of its bytes, as the owner counts them */
    uint32_t note_size;
    char note[TT_VAULT_NOTE]; /* what else goes with the state, the owner's */
} tt_vault_half;

uint64_t tt_vault_need(size_t bytes); /* what a slot with halves of so many bytes takes */

/* Where the vaults of a run are on this host: a folder of mode 0700 in /dev/shm, whose name follows
 * from the user and `run` (an identity of the run, not its path); made if absent, with a file that
 * says whose it is. `bytes`: what all slots of this host will take; if /dev/shm, or the memory
 * behind it, has not that much free, it is below `spare` instead (a folder on disk, with the host
 * in its name: slower, told by *on_disk; and what is there is worth nothing after the machine went
 * down). An existing folder with slots in it is kept to. TT_EENV: no room in either (`spare` may be
 * NULL), or what has that name is not this user's alone. */
tt_err tt_vault_folder(const char *run, uint64_t bytes, const char *spare, char out[4096],
                       bool *on_disk);

typedef struct tt_vault tt_vault;
/* Takes slot `slot` (0, 1, ...) of a folder, waiting up to wait_s for who still has it: TT_EPEER
 * names its pid. If it is there with the same key and size, its content stays; else it is made new
 * and empty. All its memory is reserved at once: TT_EENV, not SIGBUS later, if there is not enough.
 * `key`: fingerprint of what the halves mean (run, model, optimiser, layout). Of a slot that was
 * there the process gets its pages as it touches them: who maps the file anew needs none here.
 *
 * Of one vault, one thread at a time. The child of a fork has it no more: it keeps neither the lock
 * nor the mapping (tt_vault_data is NULL there), and tt_vault_close is all it may call. */
tt_err tt_vault_open(const char *folder, int slot, uint64_t key, size_t bytes, double wait_s,
                     tt_vault **out);
/* The file, to share its mapping with others: it does not carry the lock, whoever keeps it. What
 * is mapped from it stays valid, whatever becomes of the slot. Closed by tt_vault_close. */
int tt_vault_fd(const tt_vault *v);
size_t tt_vault_at(const tt_vault *v, int half); /* where in the file a half begins; page-aligned */
void *tt_vault_data(const tt_vault *v, int half);
int tt_vault_current(const tt_vault *v); /* the half committed last; -1: none yet */
/* Where a table (table.h) of a slot is: who has the slot may change it. It counts as part of the
 * vault, and is removed with it. */
void tt_vault_table(const char *folder, int slot, int table, char out[4200]);
const tt_vault_half *tt_vault_look(const tt_vault *v, int half); /* never NULL, and stays there */

/* The half that may be written now: the one that is not current. It counts as empty from here on.
 */
int tt_vault_begin(tt_vault *v);
/* For an owner who begins later, on another thread: as tt_commit_marks. Before the commit begin is
 * called all the same. */
void tt_vault_marks(tt_vault *v, _Atomic uint64_t **whole, _Atomic uint64_t **begun);
/* What was begun is now the state. All stores to it come before, streaming ones of this thread too;
 * other threads fence theirs themselves before they say that they are done. `what` is copied. Never
 * fails and takes no locks: it is one store after the half's description. label.step is 0 or more.
 * The half before counts as long as its label is no newer than this one. */
void tt_vault_commit(tt_vault *v, const tt_vault_half *what);
/* Another note (at most TT_VAULT_NOTE bytes) for what was committed last; there is such a state.
 * Who looks, or comes after a kill, finds the old one or the new. */
void tt_vault_amend(tt_vault *v, const void *note, size_t size);
/* Takes back the last commit, if the half before is still there; else false. What was taken back
 * counts as empty. */
bool tt_vault_undo(tt_vault *v);
void tt_vault_close(tt_vault *v); /* the slot stays, free for others; accepts NULL */

/* ---- Looking at all slots of a folder ---- */

typedef struct tt_vault_info {
    int slot;
    uint64_t key;
    size_t bytes;
    int current;
    tt_vault_half half[2]; /* those of other keys too */
    bool foreign; /* of a version of the program that lays out slots otherwise: nothing is known */
    char version[TT_VAULT_VERSION]; /* of who made it; "": not told */
} tt_vault_info;
/* Sorted by slot. A damaged or half-made file is left out, and one on disk that is older than the
 * machine's last start. free() the array. */
tt_err tt_vault_list(const char *folder, tt_vault_info **out, int *count);
/* The bytes of a half of a slot that somebody else may have, mapped to read. TT_EPEER if the half
 * is not (any more) that of `step`; TT_EFORMAT if the file is damaged. Its owner does not wait for
 * who looks: what was read counts only once tt_vault_unpeek says so. */
typedef struct tt_vault_view {
    const void *data;
    size_t bytes;
    tt_vault_half what;
    void *map; /* the rest is for unpeek */
    uint64_t begun;
    int fd, half;
} tt_vault_view;
tt_err tt_vault_peek(const char *folder, int slot, int half, int64_t step, tt_vault_view *out);
/* Unmaps it. TT_EPEER: it has been written to meanwhile, forget what you read. Accepts a view that
 * is zeroed, as a failed peek leaves it. */
tt_err tt_vault_unpeek(tt_vault_view *v);

/* ---- Clearing away ---- */

/* Removes a run's folder on this host, unless somebody has a slot of it: TT_EPEER with the pid.
 * Fine if it is not there; TT_EIO if there are files in it that are not of a vault. */
tt_err tt_vault_remove(const char *folder);
/* Folders of this user on this host, in /dev/shm and below `spare` (may be NULL), in which nobody
 * has a slot: of runs that were killed, or of one between two worlds: ask the lock of `run` before
 * removing any. free() the array. */
typedef struct tt_vault_left {
    char folder[4096], run[4096]; /* run: as given to tt_vault_folder; empty if unknown */
    uint64_t bytes;
    double changed; /* when a slot was last made or taken, seconds since 1970 */
} tt_vault_left;
tt_err tt_vault_leftovers(const char *spare, tt_vault_left **out, int *count);

#endif
