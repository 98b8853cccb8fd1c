/* etcd: requests to an etcd over its JSON gateway (HTTP, by libcurl).
 *
 *   tt_etcd_open -> [tt_etcd_range, tt_etcd_grant, tt_etcd_txn ...] -> tt_etcd_close
 *
 * Each call waits for its answer, up to the time that was set, and is for one thread at a time. Of
 * several addresses the one that answered last is asked first, then the others in turn.
 *
 * TT_EPEER: no answer, so it is not known whether it was done. TT_EENV: this build has no libcurl,
 * or what answers is no etcd, or it refuses. */
#ifndef TT_ETCD_H
#define TT_ETCD_H

#include <jansson.h>

#include "base/base.h"

typedef struct tt_etcd tt_etcd;

/* "etcd://host:port[,host:port...]"; "etcds:" for HTTPS, by the certificates of the system, or
 * those in the file that SSL_CERT_FILE names. Asks nothing yet. TT_EINVAL: it is no such address.
 */
tt_err tt_etcd_open(const char *address, tt_etcd **out);
void tt_etcd_patience(tt_etcd *e, double timeout_s); /* for each address of a request; 2 at first */
void tt_etcd_close(tt_etcd *e);                      /* accepts NULL */

typedef struct tt_etcd_head {
    char cluster[32]; /* which etcd it is  */
    int64_t revision; /* grows with each change, of any key */
} tt_etcd_head;

/* Values are text; `value` NULL: there is no such key. */
typedef struct tt_etcd_key {
    char *value;                  /* to be freed: tt_etcd_key_free */
    int64_t made, changed, lease; /* revisions; 0: none */
} tt_etcd_key;
void tt_etcd_key_free(tt_etcd_key *k); /* accepts a zeroed one */

/* All keys below `folder` ("/tutti/x/") that have one of the names, in their order. */
tt_err tt_etcd_look(tt_etcd *e, const char *folder, const char *const *names, int count,
                    tt_etcd_key *out, tt_etcd_head *head);

/* A lease; *ttl_s is what it was given, which may be more. */
tt_err tt_etcd_grant(tt_etcd *e, int64_t wanted_s, int64_t *id, double *ttl_s);
tt_err tt_etcd_renew(tt_etcd *e, int64_t id,
                     double *ttl_s);           /* 0: there is no such lease (any more) */
tt_err tt_etcd_revoke(tt_etcd *e, int64_t id); /* also if there is none */

/* All or nothing: if key `if_key` was made by revision `made` (0: there is none), `put_key` gets
 * `value` under `lease`, and `remove_key` goes. Any of the last two may be NULL. *done: whether it
 * was so; *revision: of the etcd after that. */
typedef struct tt_etcd_deed {
    const char *if_key;
    int64_t made;
    const char *put_key, *value;
    int64_t lease;
    const char *remove_key;
} tt_etcd_deed;
tt_err tt_etcd_do(tt_etcd *e, const tt_etcd_deed *d, bool *done, int64_t *revision);

/* ---- for tests ---- */
/* The addresses as URLs, by commas. */
tt_err tt_etcd_urls(const char *address, tt_str *out);

#endif
