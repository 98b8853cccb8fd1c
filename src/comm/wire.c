/* Wires on ZeroMQ: who serves is a ROUTER, who reaches is a DEALER.
 *
 * A sender's number is what ZeroMQ itself calls it by: a zero and four bytes. Who has the key can
 * make the server's public half and is answered; who has not cannot even greet, for in CURVE the
 * greeting is sealed with that half, which never goes over the wire. */
#define _GNU_SOURCE
#include "comm/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

enum {
    KEY_BYTES = 32,
    LETTER_MOST = 64 << 20,
    SEAL_MOST = 256, /* what encryption adds to a letter */
    QUEUE_MOST = 1000,
    RETRY_MS = 100,
    RETRY_MOST_MS = 1000,
    GREETING_MS = 10000, /* who connects and says nothing is cut off after this */
};
static const double REDIAL_S = 1;

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
        if ((err = tt_dir_make(part))) return tt_context(err, "make the key %s", path);
    }
    snprintf(part, sizeof part, "%s.XXXXXX", path);
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return tt_fail(TT_EENV, "no random bytes for a key: %s", strerror(errno));
    to_hex(bytes, sizeof bytes, hex);
    strcat(hex, "\n");
    fd = mkostemp(part, O_CLOEXEC); /* of mode 0600 */
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

/* A line of digits, which need not end. */
static bool is_key(const tt_bytes *b)
{
    size_t n = 0;

    while (n < b->size && n <= 2 * KEY_BYTES &&
           ((b->data[n] >= '0' && b->data[n] <= '9') || (b->data[n] >= 'a' && b->data[n] <= 'f')))
        n++;
    return n == 2 * KEY_BYTES && (n == b->size || b->data[n] == '\n');
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
    if (!S_ISREG(st.st_mode)) return tt_fail(TT_EENV, "%s: no key of a cluster: no file", path);
    if (st.st_mode & 077)
        return tt_fail(TT_EENV, "%s: others may read this key: chmod 600 it", path);
    if ((err = tt_file_read(path, 4096, &b))) return tt_context(TT_EENV, "the cluster's key");
    if (!is_key(&b))
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
    bool serves, bound;
    bool connected, reached, turned_away; /* of one who reaches, as the monitor told */
    const char *trouble;
    double redial; /* when to try anew, for ZeroMQ will not; 0: never */
    char address[256];
    zmq_msg_t held; /* what was taken last */
    char *text;     /* the same with a NUL behind */
    size_t room;
};

static bool is_near(const char *address)
{
    return !strncmp(address, "ipc://", 6);
}

/* Heartbeats are for other hosts. On this one the kernel tells who is gone, and one that is stopped
 * for a while is not. */
static tt_err set_up(tt_wire *w, const tt_cluster_key *key)
{
    bool near = is_near(w->address), bad;
    struct {
        int option, value;
    } set[] = {{ZMQ_SNDHWM, QUEUE_MOST},
               {ZMQ_RCVHWM, QUEUE_MOST},
               {ZMQ_LINGER, 0},
               {ZMQ_RECONNECT_IVL, RETRY_MS},
               {ZMQ_RECONNECT_IVL_MAX, RETRY_MOST_MS},
               {ZMQ_HANDSHAKE_IVL, GREETING_MS},
               {ZMQ_HEARTBEAT_IVL, near ? 0 : 1000},
               {ZMQ_HEARTBEAT_TIMEOUT, near ? 0 : 5000}};
    int64_t letter = LETTER_MOST + SEAL_MOST;
    int one = 1;

    w->context = zmq_ctx_new();
    w->socket = w->context ? zmq_socket(w->context, w->serves ? ZMQ_ROUTER : ZMQ_DEALER) : NULL;
    if (!w->socket) return tt_fail(TT_EENV, "no socket of ZeroMQ: %s", zmq_strerror(errno));
    bad = zmq_setsockopt(w->socket, ZMQ_MAXMSGSIZE, &letter, sizeof letter);
    for (int i = 0; i < TT_COUNT(set); i++)
        bad = bad || zmq_setsockopt(w->socket, set[i].option, &set[i].value, sizeof(int));
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

/* The port of "tcp://host:port", -1 if it is no such thing; *host is how long "host" is. */
static int find_port(const char *address, int *host)
{
    const char *name = address + strlen("tcp://"), *port;
    size_t digits;

    if (strncmp(address, "tcp://", 6) || !(port = strrchr(name, ':')) || port == name) return -1;
    *host = (int)(port++ - name);
    digits = strspn(port, "0123456789");
    if (name[strcspn(name, " /")] || !digits || digits > 5 || port[digits]) return -1;
    return atoi(port) > 65535 ? -1 : atoi(port);
}

static tt_err check(const char *address, const tt_cluster_key *key, bool serves)
{
    int host = 0, port = find_port(address, &host);

    if (strlen(address) >= sizeof((tt_wire *)0)->address)
        return tt_fail(TT_EINVAL, "'%.100s...' is too long for an address", address);
    if (is_near(address) && address[6]) return TT_OK;
    if (port < 0 || (port == 0 && !serves))
        return tt_fail(TT_EINVAL, "'%.100s' is no address: say tcp://host:port", address);
    if (memchr(address + 6, ':', (size_t)host))
        return tt_fail(TT_EINVAL, "%s: IPv6 addresses are not taken; give the host a name",
                       address);
    return key ? TT_OK : tt_fail(TT_EINVAL, "%s: needs the key of the cluster", address);
}

static const char NOBODY[] = "nobody listens there", OTHER_KEY[] = "it does not take our key",
                  STRANGER[] = "what listens there is none of ours";

static tt_err open_wire(const char *address, const tt_cluster_key *key, bool serves, tt_wire **out)
{
    tt_wire *w;
    tt_err err;

    *out = NULL;
    if ((err = check(address, key, serves))) return err;
    if (!(w = calloc(1, sizeof *w))) tt_mem_out(sizeof *w);
    w->serves = serves;
    w->trouble = NOBODY;
    zmq_msg_init(&w->held);
    snprintf(w->address, sizeof w->address, "%s", address);
    if ((err = set_up(w, key))) {
        tt_wire_close(w, 0);
        return err;
    }
    *out = w;
    return TT_OK;
}

/* ZeroMQ would take the place of a file, or of one who serves there. */
static tt_err bind_near(tt_wire *w)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *path = w->address + strlen("ipc://");
    bool taken = false;
    struct stat st;
    int fd;

    if (!lstat(path, &st) && strlen(path) < sizeof at.sun_path) {
        strcpy(at.sun_path, path);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        taken = !S_ISSOCK(st.st_mode) || fd < 0 ||
                !connect(fd, (struct sockaddr *)&at, sizeof at) || errno != ECONNREFUSED;
        if (fd >= 0) close(fd);
    }
    errno = EADDRINUSE;
    if (taken || zmq_bind(w->socket, w->address))
        return tt_fail(TT_EENV, "cannot listen at %s: %s", w->address, zmq_strerror(errno));
    return TT_OK;
}

/* ZeroMQ listens at numbers alone, so names are looked up here. To itself a host is often 127.0.1.1
 * (on Debian), where others do not find it: it then listens at all its addresses. */
static tt_err bind_far(tt_wire *w)
{
    struct addrinfo want = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL, *a;
    char name[256], at[300], number[INET_ADDRSTRLEN], *colon;
    int size, port = find_port(w->address, &size), why;
    size_t room = sizeof at;

    snprintf(name, sizeof name, "%.*s", size, w->address + strlen("tcp://"));
    if (!strcmp(name, "*")) strcpy(name, "0.0.0.0");
    if ((why = getaddrinfo(name, NULL, &want, &found)))
        return tt_fail(TT_EENV, "cannot listen at %s: %s", w->address, gai_strerror(why));
    for (a = found; a; a = a->ai_next) {
        const struct in_addr *in = &((struct sockaddr_in *)a->ai_addr)->sin_addr;
        bool own = ntohl(in->s_addr) >> 24 == 127 && strcmp(name, "localhost") &&
                   !inet_aton(name, &(struct in_addr){0});
        inet_ntop(AF_INET, in, number, sizeof number);
        snprintf(at, sizeof at, port ? "tcp://%s:%d" : "tcp://%s:*", own ? "*" : number, port);
        if (!zmq_bind(w->socket, at)) break;
    }
    freeaddrinfo(found);
    if (!a) return tt_fail(TT_EENV, "cannot listen at %s: %s", w->address, zmq_strerror(errno));
    if (!port && !zmq_getsockopt(w->socket, ZMQ_LAST_ENDPOINT, at, &room) &&
        (colon = strrchr(at, ':')))
        snprintf(w->address, sizeof w->address, "tcp://%s%s", name, colon);
    return TT_OK;
}

tt_err tt_wire_serve(const char *address, const tt_cluster_key *key, tt_wire **out)
{
    tt_err err = open_wire(address, key, true, out);

    if (err) return err;
    if ((err = is_near(address) ? bind_near(*out) : bind_far(*out))) {
        tt_wire_close(*out, 0);
        *out = NULL;
        return err;
    }
    (*out)->bound = true;
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
                           ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                               ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_DISCONNECTED |
                               ZMQ_EVENT_CLOSED | ZMQ_EVENT_CONNECT_RETRIED) ||
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

/* One frame into `m`, which was initialised; false: there is none. */
static bool receive(zmq_msg_t *m, void *socket)
{
    int n;

    do n = zmq_msg_recv(m, socket, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR); /* were it to end here, the next frame were taken for this */
    return n >= 0;
}

/* Who has another key hangs up in the middle of our greeting. Words that are no greeting at all
 * make ZeroMQ hang up, which it tells by no event of its own. */
static void note_event(tt_wire *w, int event)
{
    switch (event) {
    case ZMQ_EVENT_CONNECTED:
        w->turned_away = false;
        break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        w->connected = w->reached = true;
        w->trouble = "";
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        w->turned_away = true;
        break;
    case ZMQ_EVENT_DISCONNECTED:
        w->trouble = w->connected ? NOBODY : w->turned_away ? OTHER_KEY : STRANGER;
        w->connected = false;
        w->redial = tt_clock_s() + REDIAL_S;
        break;
    case ZMQ_EVENT_CLOSED: /* nobody was there to connect to */
        w->trouble = NOBODY;
        break;
    case ZMQ_EVENT_CONNECT_RETRIED:
        w->redial = 0;
        break;
    }
}

/* After a stranger ZeroMQ does not try again by itself. */
static void hear_monitor(tt_wire *w)
{
    zmq_msg_t m;
    uint16_t event;

    zmq_msg_init(&m);
    while (receive(&m, w->monitor)) {
        event = 0;
        if (zmq_msg_size(&m) >= 2) memcpy(&event, zmq_msg_data(&m), 2);
        while (zmq_msg_more(&m) && receive(&m, w->monitor)) continue; /* the address: we know it */
        note_event(w, event);
    }
    zmq_msg_close(&m);
    if (!w->redial || tt_clock_s() < w->redial) return;
    w->redial = tt_clock_s() + REDIAL_S;
    zmq_disconnect(w->socket, w->address);
    zmq_connect(w->socket, w->address);
}

const char *tt_wire_trouble(tt_wire *w)
{
    if (w->monitor) hear_monitor(w);
    return w->trouble;
}

bool tt_wire_lost(tt_wire *w)
{
    if (w->monitor) hear_monitor(w);
    return w->reached && !w->connected;
}

/* Takes one frame into w->held; false: there is none. */
static bool take_frame(tt_wire *w)
{
    zmq_msg_close(&w->held);
    zmq_msg_init(&w->held);
    return receive(&w->held, w->socket);
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
            if (!take_frame(w)) break;
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
    *out = (tt_letter){0};
    if (w->monitor) hear_monitor(w);
    return false;
}

static bool send_frame(tt_wire *w, const void *data, size_t size, int more)
{
    int n;

    do n = zmq_send(w->socket, data, size, ZMQ_DONTWAIT | more);
    while (n < 0 && errno == EINTR); /* were it to end here, a letter would begin with an address */
    return n >= 0;
}

tt_err tt_wire_send(tt_wire *w, uint32_t to, const void *data, size_t size)
{
    uint8_t id[5] = {0};

    if (size > LETTER_MOST)
        return tt_fail(TT_EINVAL, "a letter of %zu bytes: at most %d go into one", size,
                       LETTER_MOST);
    memcpy(id + 1, &to, 4);
    if (w->serves && !send_frame(w, id, sizeof id, ZMQ_SNDMORE))
        return tt_fail(TT_EPEER, "cannot send to one who %s",
                       errno == EAGAIN ? "does not listen" : "is gone");
    if (!send_frame(w, data, size, 0))
        return tt_fail(TT_EPEER, "cannot send to %s: %s", w->serves ? "a peer" : w->address,
                       errno == EAGAIN ? "it does not listen" : zmq_strerror(errno));
    return TT_OK;
}

void tt_wire_close(tt_wire *w, double linger_s)
{
    int linger = (int)(linger_s * 1000);

    if (!w) return;
    if (w->bound && is_near(w->address)) unlink(w->address + strlen("ipc://"));
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
    free(w->text);
    free(w);
}
