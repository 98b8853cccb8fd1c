/* vault_inner: the file of a slot, for vault.c and vault_list.c alone. */
#ifndef TT_VAULT_INNER_H
#define TT_VAULT_INNER_H

#include <sys/stat.h>

#include "vault.h"

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "the commit word is shared between processes");

#define VAULT_MAGIC 0x32746c7561767474ull /* "ttvault2", the last letter is the layout */
#define VAULT_NAMED 0x00ffffffffffffffull /* the others */
#define VAULT_SLOT  "slot-%d"
#define VAULT_FRESH "slot-%d.new" /* one that is being made */
#define VAULT_TABLE "slot-%d.table-%d"

/* VAULT_PAGE: room of the header, and what halves are rounded to: whole pages on every machine. */
enum { VAULT_PAGE = 64 << 10, VAULT_NAME = 32 };
#define VAULT_GRACE_S 0.05 /* a look at a slot holds its lock for a moment: one refusal is none */

typedef struct vault_note {
    uint32_t size;
    char text[TT_VAULT_NOTE];
} vault_note;

/* The first bytes of a slot's file; the halves follow at VAULT_PAGE. Which half is the state, and
 * which note is its, commit.h says. */
typedef struct vault_head {
    _Atomic uint64_t magic; /* stored last when a file is made: a torn birth reads as none */
    uint64_t key, bytes;
    char boot[40];       /* the boot it was made in: no file on disk is trusted after a crash */
    _Atomic int64_t pid; /* who has the lock, or had it when killed; 0: closed                */
    tt_commit_head commit;
    vault_note note[2][2]; /* (half, place) */
    char version[TT_VAULT_VERSION];
} vault_head;

_Static_assert(sizeof(vault_head) <= VAULT_PAGE, "the halves begin at VAULT_PAGE");

/* Room of a half in the file; bytes are at most VAULT_MOST. */
#define VAULT_MOST ((uint64_t)1 << 60)
static inline uint64_t vault_room(uint64_t bytes)
{
    return (bytes + VAULT_PAGE - 1) / VAULT_PAGE * VAULT_PAGE;
}

/* Opens a folder of vaults: no link, this user's, closed to all others; else TT_EENV. TT_EIO if it
 * is not there, with errno ENOENT. */
tt_err tt_vault_dir(const char *folder, int *fd);

/* A regular file of a folder. -1 and errno: it cannot be opened, or is something else (EINVAL). */
int tt_vault_openat(int dir, const char *name, int flags, struct stat *st);

/* Polls for the lock of a file (LOCK_EX, LOCK_SH) until then. False and EWOULDBLOCK: it is taken.
 */
bool tt_vault_lock(int fd, int kind, double until_s);
/* Does the name (still) lead to this file? Else its lock is worth nothing. */
bool tt_vault_is_named(int dir, const char *name, int fd);
/* "process 123", from the file of a slot. Returns buf. */
char *tt_vault_holder(int fd, char *buf, size_t size);

/* A whole reading of a header, all of one moment: what commit.h says of this copy is so. False if
 * the file is damaged, of an earlier boot, or no slot's at all. */
bool tt_vault_head_read(int fd, const struct stat *st, vault_head *out);
void tt_vault_boot(char out[40]);
/* Step -1 for those that are not whole. Returns the current one, or -1. */
int tt_vault_halves(const vault_head *h, tt_vault_half out[2]);

bool tt_vault_on_tmpfs(int fd);
uint64_t tt_vault_free(int fd); /* bytes free where the file is; in memory: no more than that has */

#endif
