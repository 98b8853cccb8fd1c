/* Wires on ZeroMQ: who serves is a ROUTER, who reaches is a DEALER.
 *
 * A sender's number is what ZeroMQ itself calls it by: a zero and four bytes. Who has the key can
 * make the server's public half and is answered; who has not cannot even greet, for in CURVE the
 * greeting is sealed with that half, which never goes over the wire. */
#define _GNU_SOURCE
#include "comm/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum {
    KEY_BYTES = 32,
    LETTER_MOST = 64 << 20,
    QUEUE_MOST = 10000,
    RETRY_MS = 100,
    RETRY_MOST_MS = 1000,
};

/* ---- The key ---- */

tt_err tt_cluster_key_path(char out[4096])
{
    const char *own = getenv("TUTTI_KEY"), *config = getenv("XDG_CONFIG_HOME"),
               *home = getenv("HOME");
    int n = own && *own         ? snprintf(out, 4096, "%s", own)
            : config && *config ? snprintf(out, 4096, "%s/tutti/key", config)
            : home && *home     ? snprintf(out, 4096, "%s/.config/tutti/key", home)
                                : -1;

    if (n < 0)
        return tt_fail(TT_EENV, "there is no home folder for the key of the cluster: name a file "
                                "in TUTTI_KEY");
    if (n >= 4096) return tt_fail(TT_EENV, "the path of the cluster's key is too long");
    return TT_OK;
}

static void to_hex(const unsigned char *data, size_t size, char *out)
{
    for (size_t i = 0; i < size; i++) snprintf(out + 2 * i, 3, "%02x", data[i]);
}

/* Two may make it at once: each writes a file of its own, and one of them gets the name. */
tt_err tt_cluster_key_make(const char *path)
{
    unsigned char bytes[KEY_BYTES];
    char hex[2 * KEY_BYTES + 2], part[4096 + 16], *end;
    tt_err err = TT_OK;
    int fd;

    if (tt_file_exists(path)) return TT_OK;
    if (snprintf(part, sizeof part, "%s", path) >= 4096)
        return tt_fail(TT_EENV, "%.200s...: the path is too long", path);
    if ((end = strrchr(part, '/')) && end > part) {
        *end = 0;
        if ((err = tt_dir_make(part))) return err;
    }
    snprintf(part, sizeof part, "%s.%d", path, (int)getpid());
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return tt_fail(TT_EENV, "no random bytes for a key: %s", strerror(errno));
    to_hex(bytes, sizeof bytes, hex);
    strcat(hex, "\n");
    fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return tt_fail(TT_EENV, "make the key %s: %s", path, strerror(errno));
    if (!tt_write_all(fd, hex, strlen(hex), NULL) || fsync(fd) ||
        (link(part, path) && errno != EEXIST))
        err = tt_fail(TT_EENV, "make the key %s: %s", path, strerror(errno));
    close(fd);
    unlink(part);
    return err;
}

static tt_err make_pair(const char *what, const char *hex, tt_key_pair *out)
{
    uint8_t secret[32];
    char sum[65];
    tt_sha *sha = tt_sha_begin();

    tt_sha_add(sha, what, strlen(what) + 1);
    tt_sha_add(sha, hex, 2 * KEY_BYTES);
    tt_sha_end(sha, sum);
    for (int i = 0; i < 32; i++) sscanf(sum + 2 * i, "%2hhx", &secret[i]);
    if (!zmq_z85_encode(out->secret, secret, 32) || zmq_curve_public(out->public, out->secret))
        return tt_fail(TT_EENV, "ZeroMQ was built without CURVE");
    return TT_OK;
}

tt_err tt_cluster_key_load(const char *path, tt_cluster_key *out)
{
    struct stat st;
    tt_bytes b = {0};
    tt_err err;

    if (stat(path, &st))
        return tt_fail(TT_EENV,
                       "no key of the cluster: %s: %s (copy it from the host that leads, or name "
                       "it in TUTTI_KEY)",
                       path, strerror(errno));
    if (st.st_mode & 077)
        return tt_fail(TT_EENV, "%s: others may read this key: chmod 600 it", path);
    if ((err = tt_file_read(path, 4096, &b))) return tt_context(TT_EENV, "the cluster's key");
    if (b.size < 2 * KEY_BYTES ||
        strspn((const char *)b.data, "0123456789abcdef") != 2 * KEY_BYTES ||
        (b.size > 2 * KEY_BYTES && b.data[2 * KEY_BYTES] != '\n'))
        err = tt_fail(TT_EENV, "%s: no key of a cluster: it must be a line of %d digits 0 to f",
                      path, 2 * KEY_BYTES);
    if (!err) err = make_pair("tutti server", (const char *)b.data, &out->server);
    if (!err) err = make_pair("tutti client", (const char *)b.data, &out->client);
    tt_file_release(&b);
    return err;
}

/* ---- Wires ---- */

const char *tt_wire_version(void)
{
    static char text[32];
    int major, minor, patch;

    zmq_version(&major, &minor, &patch);
    snprintf(text, sizeof text, "%d.%d.%d%s", major, minor, patch,
             zmq_has("curve") ? "" : " without CURVE");
    return text;
}

struct tt_wire {
    void *context, *socket, *monitor;
    bool serves, connected, refused;
    char address[256];
    zmq_msg_t held; /* what was taken last */
    char *text;     /* the same with a NUL behind */
    size_t room;
};

static tt_err set_up(tt_wire *w, const tt_cluster_key *key)
{
    int most = QUEUE_MOST, zero = 0, one = 1, retry = RETRY_MS, retry_most = RETRY_MOST_MS,
        alive = 1000, dead = 5000;
    int64_t letter = LETTER_MOST;
    bool bad;

    w->context = zmq_ctx_new();
    w->socket = w->context ? zmq_socket(w->context, w->serves ? ZMQ_ROUTER : ZMQ_DEALER) : NULL;
    if (!w->socket) return tt_fail(TT_EENV, "no socket of ZeroMQ: %s", zmq_strerror(errno));
    bad = zmq_setsockopt(w->socket, ZMQ_SNDHWM, &most, sizeof most) ||
          zmq_setsockopt(w->socket, ZMQ_RCVHWM, &most, sizeof most) ||
          zmq_setsockopt(w->socket, ZMQ_LINGER, &zero, sizeof zero) ||
          zmq_setsockopt(w->socket, ZMQ_MAXMSGSIZE, &letter, sizeof letter) ||
          zmq_setsockopt(w->socket, ZMQ_RECONNECT_IVL, &retry, sizeof retry) ||
          zmq_setsockopt(w->socket, ZMQ_RECONNECT_IVL_MAX, &retry_most, sizeof retry_most) ||
          zmq_setsockopt(w->socket, ZMQ_HEARTBEAT_IVL, &alive, sizeof alive) ||
          zmq_setsockopt(w->socket, ZMQ_HEARTBEAT_TIMEOUT, &dead, sizeof dead);
    if (w->serves) bad = bad || zmq_setsockopt(w->socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    if (key && w->serves)
        bad = bad || zmq_setsockopt(w->socket, ZMQ_CURVE_SERVER, &one, sizeof one) ||
              zmq_setsockopt(w->socket, ZMQ_CURVE_SECRETKEY, key->server.secret, 41);
    if (key && !w->serves)
        bad = bad || zmq_setsockopt(w->socket, ZMQ_CURVE_SERVERKEY, key->server.public, 41) ||
              zmq_setsockopt(w->socket, ZMQ_CURVE_PUBLICKEY, key->client.public, 41) ||
              zmq_setsockopt(w->socket, ZMQ_CURVE_SECRETKEY, key->client.secret, 41);
    if (bad) return tt_fail(TT_EENV, "set up a socket of ZeroMQ: %s", zmq_strerror(errno));
    return TT_OK;
}

static tt_err check(const char *address, const tt_cluster_key *key)
{
    if (!strncmp(address, "ipc://", 6) && address[6]) return TT_OK;
    if (strncmp(address, "tcp://", 6) || !strchr(address + 6, ':'))
        return tt_fail(TT_EINVAL, "'%.100s' is no address: say tcp://host:port", address);
    return key ? TT_OK : tt_fail(TT_EINVAL, "%s: needs the key of the cluster", address);
}

static tt_err open_wire(const char *address, const tt_cluster_key *key, bool serves, tt_wire **out)
{
    tt_wire *w;
    tt_err err;

    *out = NULL;
    if ((err = check(address, key))) return err;
    if (!(w = calloc(1, sizeof *w))) tt_mem_out(sizeof *w);
    w->serves = serves;
    zmq_msg_init(&w->held);
    snprintf(w->address, sizeof w->address, "%s", address);
    if ((err = set_up(w, key))) {
        tt_wire_close(w, 0);
        return err;
    }
    *out = w;
    return TT_OK;
}

tt_err tt_wire_serve(const char *address, const tt_cluster_key *key, tt_wire **out)
{
    size_t size = sizeof(*out)->address;
    tt_err err = open_wire(address, key, true, out);
    char bound[256];

    if (err) return err;
    /* A name of port 0 has to become "*" for ZeroMQ, which gives the number back. */
    size_t n = strlen(address);
    bool any = n > 2 && !strcmp(address + n - 2, ":0");
    snprintf(bound, sizeof bound, "%.*s%s", (int)(any ? n - 1 : n), address, any ? "*" : "");
    if (zmq_bind((*out)->socket, bound)) {
        err = tt_fail(TT_EENV, "cannot listen at %s: %s", address, zmq_strerror(errno));
        tt_wire_close(*out, 0);
        *out = NULL;
        return err;
    }
    zmq_getsockopt((*out)->socket, ZMQ_LAST_ENDPOINT, (*out)->address, &size);
    return TT_OK;
}

const char *tt_wire_address(const tt_wire *w)
{
    return w->address;
}

/* What becomes of the connection is told by a socket of its own. */
static tt_err watch(tt_wire *w)
{
    static _Atomic int made;
    char name[64];

    snprintf(name, sizeof name, "inproc://monitor-%d", made++);
    if (zmq_socket_monitor(w->socket, name,
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_DISCONNECTED) ||
        !(w->monitor = zmq_socket(w->context, ZMQ_PAIR)) || zmq_connect(w->monitor, name))
        return tt_fail(TT_EENV, "watch a socket of ZeroMQ: %s", zmq_strerror(errno));
    return TT_OK;
}

tt_err tt_wire_reach(const char *address, const tt_cluster_key *key, tt_wire **out)
{
    tt_err err = open_wire(address, key, false, out);

    if (err) return err;
    if ((err = watch(*out)) || zmq_connect((*out)->socket, address)) {
        if (!err) err = tt_fail(TT_EINVAL, "cannot reach %s: %s", address, zmq_strerror(errno));
        tt_wire_close(*out, 0);
        *out = NULL;
    }
    return err;
}

int tt_wire_fd(const tt_wire *w)
{
    int fd = -1;
    size_t size = sizeof fd;

    zmq_getsockopt(w->socket, ZMQ_FD, &fd, &size);
    return fd;
}

static void hear_monitor(tt_wire *w)
{
    for (;;) {
        zmq_msg_t m;
        uint16_t event = 0;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, w->monitor, ZMQ_DONTWAIT) < 0) return;
        if (zmq_msg_size(&m) >= 2) memcpy(&event, zmq_msg_data(&m), 2);
        zmq_msg_close(&m);
        zmq_msg_init(&m); /* the address, which we know */
        zmq_msg_recv(&m, w->monitor, ZMQ_DONTWAIT);
        zmq_msg_close(&m);
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
            w->connected = true;
            w->refused = false;
        } else {
            if (event != ZMQ_EVENT_DISCONNECTED) w->refused = true;
            w->connected = false;
        }
    }
}

const char *tt_wire_trouble(tt_wire *w)
{
    if (w->monitor) hear_monitor(w);
    return w->connected ? "" : w->refused ? "it does not take our key" : "nobody listens there";
}

/* Takes one frame into w->held; false: there is none. */
static bool take_frame(tt_wire *w)
{
    zmq_msg_close(&w->held);
    zmq_msg_init(&w->held);
    return zmq_msg_recv(&w->held, w->socket, ZMQ_DONTWAIT) >= 0;
}

static void skip_rest(tt_wire *w)
{
    while (zmq_msg_more(&w->held) && take_frame(w)) continue;
}

/* A letter is one frame; who sends more than that is not one of us. */
bool tt_wire_take(tt_wire *w, tt_letter *out)
{
    *out = (tt_letter){0};
    while (take_frame(w)) {
        if (w->serves) {
            const uint8_t *id = zmq_msg_data(&w->held);
            if (zmq_msg_size(&w->held) != 5 || *id || !zmq_msg_more(&w->held)) {
                skip_rest(w);
                continue;
            }
            memcpy(&out->from, id + 1, 4);
            if (!take_frame(w)) return false;
        }
        if (zmq_msg_more(&w->held)) {
            skip_rest(w);
            continue;
        }
        out->size = zmq_msg_size(&w->held);
        if (w->room < out->size + 1) {
            free(w->text);
            w->room = out->size + 1;
            if (!(w->text = malloc(w->room))) tt_mem_out(w->room);
        }
        memcpy(w->text, zmq_msg_data(&w->held), out->size);
        w->text[out->size] = 0;
        out->data = w->text;
        return true;
    }
    return false;
}

tt_err tt_wire_send(tt_wire *w, uint32_t to, const void *data, size_t size)
{
    uint8_t id[5] = {0};

    memcpy(id + 1, &to, 4);
    if (w->serves && zmq_send(w->socket, id, sizeof id, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
        return tt_fail(TT_EPEER, "cannot send to one who is gone: %s", zmq_strerror(errno));
    if (zmq_send(w->socket, data, size, ZMQ_DONTWAIT) < 0)
        return tt_fail(TT_EPEER, "cannot send to %s: %s", w->serves ? "a peer" : w->address,
                       zmq_strerror(errno));
    return TT_OK;
}

void tt_wire_close(tt_wire *w, double linger_s)
{
    int linger = (int)(linger_s * 1000);

    if (!w) return;
    if (w->monitor) {
        zmq_socket_monitor(w->socket, NULL, 0);
        zmq_close(w->monitor);
    }
    if (w->socket) {
        zmq_setsockopt(w->socket, ZMQ_LINGER, &linger, sizeof linger);
        zmq_close(w->socket);
    }
    zmq_msg_close(&w->held);
    if (w->context)
        while (zmq_ctx_term(w->context) && errno == EINTR) continue;
    if (w->serves && !strncmp(w->address, "ipc://", 6)) unlink(w->address + 6);
    free(w->text);
    free(w);
}
