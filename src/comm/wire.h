/* wire: messages between processes that come and go, on ZeroMQ. The other face of comm: a world is
 * one fixed membership in step, here somebody serves and others reach it when they can.
 *
 * A message is whole or it does not come. Nothing here blocks: sending queues, taking takes what is
 * there, and whoever waits does so in poll() with a deadline of its own. A wire belongs to one
 * thread.
 *
 * On one host, addresses are Unix sockets ("ipc:///path", in a folder of mode 0700). Others
 * ("tcp://host:port") need a key, which both sides have in a file: it encrypts, and nobody without
 * it is heard (CURVE). */
#ifndef TT_WIRE_H
#define TT_WIRE_H

#include "base/base.h"

/* ---- The key ---- */

typedef struct tt_key_pair {
    char secret[41], public[41];
} tt_key_pair;
typedef struct tt_cluster_key {
    tt_key_pair server, client; /* made of what is in the file; the server's public half is as
                                 * secret as the file: who does not know it is not answered */
} tt_cluster_key;

/* Where it is unless told otherwise: $TUTTI_KEY, else tutti/key in $XDG_CONFIG_HOME or ~/.config.
 * TT_EENV: there is no home. */
tt_err tt_cluster_key_path(char out[4096]);
/* A new key in a file of mode 0600, with its folder. If there is one already it stays. */
tt_err tt_cluster_key_make(const char *path);
/* TT_EENV with what to do: there is none, others may read it, it is no key. */
tt_err tt_cluster_key_load(const char *path, tt_cluster_key *out);

/* ---- Wires ---- */

const char *tt_wire_version(void); /* of ZeroMQ */

typedef struct tt_wire tt_wire;

/* Serves: others reach us here, at an address or name of ours ("tcp://10.0.0.1:2222") or at all of
 * them (a star in its place). Port 0 is a free one. `key` may be NULL for ipc alone. TT_EENV: the
 * address is taken or none of ours. Looks up a host's name, which may take a while. */
tt_err tt_wire_serve(const char *address, const tt_cluster_key *key, tt_wire **out);
const char *tt_wire_address(const tt_wire *w); /* as it is reached; a free port has its number */
/* Reaches one who serves, now or later: who is not there yet is tried again and again. */
tt_err tt_wire_reach(const char *address, const tt_cluster_key *key, tt_wire **out);

/* Readable in poll() when something may have come. It tells of changes alone, and sending may use
 * them up: the last thing to do before polling it is to take until there is nothing more. */
int tt_wire_fd(const tt_wire *w);

/* One message, if there is one. `from` is its sender's number, for the answer (0: who serves); a
 * sender that comes back after a break may have another. The bytes, with a NUL behind, are valid
 * until the next call. */
typedef struct tt_letter {
    uint32_t from;
    const char *data;
    size_t size;
} tt_letter;
bool tt_wire_take(tt_wire *w, tt_letter *out);

/* Queues one of up to 64 MB. TT_EPEER: nobody of that number is there any more, or so much is
 * queued for it already that it does not listen. */
tt_err tt_wire_send(tt_wire *w, uint32_t to, const void *data, size_t size);

/* Why nothing comes from the one we try to reach, as the clause of a sentence: "nobody listens
 * there", "it does not take our key", "what listens there is none of ours"; "" if we are connected.
 */
const char *tt_wire_trouble(tt_wire *w);
bool tt_wire_lost(tt_wire *w); /* we were connected, and are not now */

/* What is queued has up to `linger_s` to go out. Accepts NULL. */
void tt_wire_close(tt_wire *w, double linger_s);

#endif
