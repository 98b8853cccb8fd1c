/* Wires: letters, peers that come and go, and strangers at the door. */
#define _GNU_SOURCE
#include "test.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "comm/wire.h"

static tt_cluster_key new_key(const char *path)
{
    tt_cluster_key key;

    EXPECT_OK(tt_cluster_key_make(path));
    EXPECT_OK(tt_cluster_key_load(path, &key));
    return key;
}

/* ---- letters ---- */

static const double PATIENCE_S = 20; /* with what is due at once */

static bool take_within(tt_wire *w, tt_letter *out, double s)
{
    double until = tt_clock_s() + s;

    while (!tt_wire_take(w, out)) {
        struct pollfd p = {.fd = tt_wire_fd(w), .events = POLLIN};
        if (tt_clock_s() > until) return false;
        poll(&p, 1, 20);
    }
    return true;
}

static void send_text(tt_wire *w, uint32_t to, const char *text)
{
    EXPECT_OK(tt_wire_send(w, to, text, strlen(text)));
}

/* The next letter is this one; its sender. */
static uint32_t expect_text(tt_wire *w, const char *text)
{
    tt_letter l;

    if (!take_within(w, &l, PATIENCE_S)) FAIL("'%s' did not come", text);
    EXPECT_STR(text, l.data);
    EXPECT_INT(strlen(text), l.size);
    return l.from;
}

static void expect_trouble(tt_wire *w, const char *what)
{
    double until = tt_clock_s() + PATIENCE_S;
    tt_letter l;

    while (strcmp(tt_wire_trouble(w), what)) {
        if (tt_clock_s() > until) FAIL("trouble is '%s', not '%s'", tt_wire_trouble(w), what);
        EXPECT(!tt_wire_take(w, &l));
        poll(NULL, 0, 5);
    }
}

/* A question and its answer: both are there and take the same key. */
static void expect_talk(tt_wire *server, tt_wire *client)
{
    send_text(client, 0, "question");
    send_text(server, expect_text(server, "question"), "answer");
    EXPECT_INT(0, expect_text(client, "answer"));
    EXPECT_STR("", tt_wire_trouble(client));
}

static void open_pair(const char *address, const tt_cluster_key *key, tt_wire **server,
                      tt_wire **client)
{
    EXPECT_OK(tt_wire_serve(address, key, server));
    EXPECT_OK(tt_wire_reach(tt_wire_address(*server), key, client));
}

static void close_both(tt_wire *a, tt_wire *b)
{
    tt_wire_close(a, 0);
    tt_wire_close(b, 0);
}

static void expect_all_sizes(const char *address, const tt_cluster_key *key)
{
    static const size_t sizes[] = {0, 1, 2, 255, 256, 8191, 70000, 10 << 20, 3, 0};
    tt_wire *server, *client;
    uint8_t *data = malloc((10 << 20) + TT_COUNT(sizes));
    tt_letter l;
    uint32_t from;

    for (size_t i = 0; i < (10 << 20) + TT_COUNT(sizes); i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    open_pair(address, key, &server, &client);
    for (int i = 0; i < TT_COUNT(sizes); i++)
        EXPECT_OK(tt_wire_send(client, 0, data + i, sizes[i]));
    for (int i = 0; i < TT_COUNT(sizes); i++) {
        size_t size = sizes[i];
        EXPECT(take_within(server, &l, PATIENCE_S));
        EXPECT_INT(size, l.size);
        EXPECT(!memcmp(l.data, data + i, size) && !l.data[size]);
        from = l.from;
        EXPECT_OK(tt_wire_send(server, from, l.data, l.size));
        EXPECT(take_within(client, &l, PATIENCE_S));
        EXPECT_INT(0, l.from);
        EXPECT_INT(size, l.size);
        EXPECT(!memcmp(l.data, data + i, size) && !l.data[size]);
    }
    EXPECT(!tt_wire_take(server, &l) && !tt_wire_take(client, &l) && !l.data && !l.size);
    close_both(client, server);
    free(data);
}

TT_TEST(wire, letters_of_any_size_and_content_go_both_ways_whole)
{
    tt_cluster_key key = new_key("key");

    expect_all_sizes("ipc://s", NULL);
    expect_all_sizes("ipc://s", &key);
    expect_all_sizes("tcp://127.0.0.1:0", &key);
}

TT_TEST(wire, one_that_is_larger_than_any_may_be_is_refused_by_its_sender)
{
    enum { MOST = 64 << 20 };
    tt_wire *server, *client;
    char *data = calloc(1, MOST + 1); /* never touched, so it costs nothing */

    open_pair("ipc://s", NULL, &server, &client);
    EXPECT_ERR(TT_EINVAL, tt_wire_send(client, 0, data, MOST + 1));
    EXPECT_MESSAGE("67108865 bytes");
    expect_talk(server, client);
    close_both(client, server);
    free(data);
}

TT_TEST(wire, a_free_port_is_named_and_names_are_understood)
{
    tt_cluster_key key = new_key("key");
    tt_wire *server, *client;
    int port;

    open_pair("tcp://127.0.0.1:0", &key, &server, &client);
    EXPECT(sscanf(tt_wire_address(server), "tcp://127.0.0.1:%d", &port) == 1 && port > 0);
    expect_talk(server, client);
    close_both(client, server);
    open_pair("tcp://localhost:0", &key, &server, &client);
    expect_talk(server, client);
    close_both(client, server);
    open_pair("ipc://s", NULL, &server, &client);
    EXPECT_STR("ipc://s", tt_wire_address(server));
    close_both(client, server);
}

TT_TEST(wire, a_host_whose_name_means_loopback_to_itself_is_reached_by_others)
{
    struct addrinfo want = {.ai_family = AF_INET}, *a;
    tt_cluster_key key = new_key("key");
    tt_wire *server, *client, *other;
    char name[128], address[300];
    bool loopback;

    EXPECT(gethostname(name, sizeof name) == 0);
    if (getaddrinfo(name, NULL, &want, &a)) tt_test_skip("this host does not know its own name");
    loopback = ntohl(((struct sockaddr_in *)a->ai_addr)->sin_addr.s_addr) >> 24 == 127;
    freeaddrinfo(a);
    snprintf(address, sizeof address, "tcp://%s:0", name);
    open_pair(address, &key, &server, &client);
    expect_talk(server, client);
    if (loopback) { /* another address stands for the one others see */
        snprintf(address, sizeof address, "tcp://127.7.7.7%s",
                 strrchr(tt_wire_address(server), ':'));
        EXPECT_OK(tt_wire_reach(address, &key, &other));
        expect_talk(server, other);
        tt_wire_close(other, 0);
    }
    close_both(client, server);
}

TT_TEST(wire, peers_have_numbers_of_their_own)
{
    enum { PEERS = 20 };
    tt_cluster_key key = new_key("key");
    tt_wire *server, *peer[PEERS];
    uint32_t number[PEERS];
    char text[PEERS][16];
    tt_letter l;

    EXPECT_OK(tt_wire_serve("tcp://127.0.0.1:0", &key, &server));
    for (int i = 0; i < PEERS; i++) {
        snprintf(text[i], sizeof text[i], "peer %d", i);
        EXPECT_OK(tt_wire_reach(tt_wire_address(server), &key, &peer[i]));
        send_text(peer[i], 0, text[i]);
    }
    for (int i = 0; i < PEERS; i++) {
        int who;
        EXPECT(take_within(server, &l, PATIENCE_S) && sscanf(l.data, "peer %d", &who) == 1);
        number[who] = l.from;
    }
    for (int i = 0; i < PEERS; i++)
        for (int k = 0; k < i; k++) EXPECT(number[i] != number[k]);
    for (int i = 0; i < PEERS; i++) send_text(server, number[i], text[i]);
    for (int i = 0; i < PEERS; i++) {
        expect_text(peer[i], text[i]);
        EXPECT(!tt_wire_take(peer[i], &l));
        send_text(peer[i], 0, text[i]);
        EXPECT_INT(number[i], expect_text(server, text[i])); /* it keeps its number */
    }
    for (int i = 0; i < PEERS; i++) tt_wire_close(peer[i], 0);
    tt_wire_close(server, 0);
}

TT_TEST(wire, poll_wakes_up_when_something_comes)
{
    tt_wire *server, *client;
    tt_letter l;

    open_pair("ipc://s", NULL, &server, &client);
    expect_talk(server, client);
    for (int i = 0; i < 20; i++) {
        double begun = tt_clock_s();
        EXPECT(!tt_wire_take(server, &l));
        send_text(client, 0, "x");
        while (!tt_wire_take(server, &l)) {
            struct pollfd p = {.fd = tt_wire_fd(server), .events = POLLIN};
            EXPECT(poll(&p, 1, 10000) == 1);
        }
        EXPECT(tt_clock_s() - begun < 8);
    }
    close_both(client, server);
}

static volatile int signals;
static void on_alarm(int sig)
{
    (void)sig;
    signals++;
}

TT_TEST(wire, signals_break_no_letter)
{
    enum { LETTERS = 30000, AHEAD = 1000 };
    struct sigaction act = {.sa_handler = on_alarm}, old;
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    tt_wire *server, *client;
    uint32_t from;
    tt_letter l;
    char text[32], want[32];
    int sent = 0, heard = 0, back = 0;
    double until = tt_clock_s() + 60; /* ten of which a busy machine may take */

    open_pair("ipc://s", NULL, &server, &client);
    send_text(client, 0, "first");
    from = expect_text(server, "first");
    sigaction(SIGALRM, &act, &old);
    setitimer(ITIMER_REAL, &often, NULL);
    while (back < LETTERS && tt_clock_s() < until) {
        if (sent < LETTERS && sent - back < AHEAD) {
            snprintf(text, sizeof text, "letter %d", sent);
            if (!tt_wire_send(client, 0, text, strlen(text))) sent++;
        }
        while (tt_wire_take(server, &l)) {
            snprintf(want, sizeof want, "letter %d", heard++);
            if (strcmp(l.data, want) || tt_wire_send(server, from, l.data, l.size)) break;
        }
        while (tt_wire_take(client, &l)) {
            snprintf(want, sizeof want, "letter %d", back++);
            if (strcmp(l.data, want)) back = -LETTERS;
        }
    }
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_IGN); /* forgets one that is on its way */
    sigaction(SIGALRM, &old, NULL);
    EXPECT(signals > 0);
    EXPECT_INT(LETTERS, heard);
    EXPECT_INT(LETTERS, back);
    close_both(client, server);
}

/* ---- peers that come and go ---- */

TT_TEST(wire, an_answer_to_one_who_is_gone_never_blocks)
{
    tt_cluster_key key = new_key("key");
    tt_wire *server, *client;
    double until = tt_clock_s() + PATIENCE_S;
    uint32_t from;
    tt_err err;

    open_pair("tcp://127.0.0.1:0", &key, &server, &client);
    send_text(client, 0, "hello");
    from = expect_text(server, "hello");
    tt_wire_close(client, 0);
    while (!(err = tt_wire_send(server, from, "x", 1)) && tt_clock_s() < until) poll(NULL, 0, 5);
    EXPECT_INT(TT_EPEER, err);
    EXPECT_MESSAGE("gone");
    EXPECT_ERR(TT_EPEER, tt_wire_send(server, from ^ 0x55555555, "x", 1)); /* never was */
    EXPECT_OK(tt_wire_reach(tt_wire_address(server), &key, &client));
    expect_talk(server, client); /* what was not sent has left nothing behind */
    close_both(client, server);
}

TT_TEST(wire, to_one_who_does_not_listen_so_much_is_queued_and_no_more)
{
    tt_wire *server, *client;
    static char data[4096];
    uint32_t from;
    tt_letter l;
    int sent = 0, got = 0;

    open_pair("ipc://s", NULL, &server, &client);
    send_text(client, 0, "hello");
    from = expect_text(server, "hello");
    while (sent < 100000 && !tt_wire_send(server, from, data, sizeof data)) sent++;
    EXPECT(sent >= 1000 && sent < 100000);
    while (got < sent && take_within(client, &l, PATIENCE_S)) got++;
    EXPECT_INT(sent, got); /* all that was taken goes out */
    expect_talk(server, client);
    close_both(client, server);
}

TT_TEST(wire, who_serves_may_come_later)
{
    tt_cluster_key key = new_key("key");
    tt_wire *server, *client;
    char address[256];

    EXPECT_OK(tt_wire_reach("ipc://s", NULL, &client));
    send_text(client, 0, "early");
    expect_trouble(client, "nobody listens there");
    EXPECT_OK(tt_wire_serve("ipc://s", NULL, &server));
    expect_text(server, "early");
    expect_talk(server, client);
    close_both(client, server);

    EXPECT_OK(tt_wire_serve("tcp://127.0.0.1:0", &key, &server));
    snprintf(address, sizeof address, "%s", tt_wire_address(server));
    tt_wire_close(server, 0);
    EXPECT_OK(tt_wire_reach(address, &key, &client));
    send_text(client, 0, "early");
    expect_trouble(client, "nobody listens there");
    EXPECT_OK(tt_wire_serve(address, &key, &server));
    expect_text(server, "early");
    expect_talk(server, client);
    close_both(client, server);
}

TT_TEST(wire, who_serves_again_is_reached_again)
{
    tt_cluster_key key = new_key("key"), other = new_key("other");
    tt_wire *server, *client;
    char address[256];

    open_pair("tcp://127.0.0.1:0", &key, &server, &client);
    snprintf(address, sizeof address, "%s", tt_wire_address(server));
    EXPECT(!tt_wire_lost(client));
    for (int i = 0; i < 3; i++) {
        expect_talk(server, client);
        EXPECT(!tt_wire_lost(client));
        tt_wire_close(server, 0);
        expect_trouble(client, "nobody listens there");
        EXPECT(tt_wire_lost(client));
        EXPECT_OK(tt_wire_serve(address, &key, &server));
        expect_trouble(client, "");
    }
    tt_wire_close(server, 0);
    EXPECT_OK(tt_wire_serve(address, &other, &server)); /* somebody else's, for a while */
    expect_trouble(client, "it does not take our key");
    tt_wire_close(server, 0);
    expect_trouble(client, "nobody listens there");
    EXPECT_OK(tt_wire_serve(address, &key, &server));
    expect_trouble(client, "");
    expect_talk(server, client);
    close_both(client, server);
}

TT_TEST(wire, what_is_queued_has_its_time_to_go_out)
{
    tt_cluster_key key = new_key("key");
    tt_wire *server, *client;
    double begun;

    open_pair("tcp://127.0.0.1:0", &key, &server, &client);
    send_text(client, 0, "last words");
    tt_wire_close(client, 5); /* before there was a connection even */
    expect_text(server, "last words");
    tt_wire_close(server, 0);

    EXPECT_OK(tt_wire_reach("ipc://nobody", NULL, &client));
    send_text(client, 0, "in vain");
    begun = tt_clock_s();
    tt_wire_close(client, 0.2);
    EXPECT(tt_clock_s() - begun > 0.1 && tt_clock_s() - begun < 5);
    tt_wire_close(NULL, 1);
}

/* ---- strangers ---- */

TT_TEST(wire, who_has_another_key_is_not_heard)
{
    tt_cluster_key key = new_key("key"), other = new_key("other");
    tt_wire *server, *client, *stranger;
    tt_letter l;

    open_pair("tcp://127.0.0.1:0", &key, &server, &client);
    EXPECT_OK(tt_wire_reach(tt_wire_address(server), &other, &stranger));
    send_text(stranger, 0, "let me in");
    expect_trouble(stranger, "it does not take our key");
    expect_talk(server, client);
    EXPECT(!take_within(server, &l, 0.3));
    EXPECT(!tt_wire_take(stranger, &l));
    tt_wire_close(stranger, 0);
    /* The client's pair is no secret worth anything: it is the server's public half that is. */
    memcpy(&other.client, &key.client, sizeof other.client);
    EXPECT_OK(tt_wire_reach(tt_wire_address(server), &other, &stranger));
    send_text(stranger, 0, "let me in");
    expect_trouble(stranger, "it does not take our key");
    EXPECT(!take_within(server, &l, 0.1));
    tt_wire_close(stranger, 0);
    close_both(client, server);
}

static int dial(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    int port, fd = socket(AF_INET, SOCK_STREAM, 0);

    EXPECT(fd >= 0 && sscanf(address, "tcp://127.0.0.1:%d", &port) == 1);
    to.sin_port = htons((uint16_t)port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

/* The first bytes of ZMTP, and a letter as it looks without encryption. */
#define ZEROS_8      "\0\0\0\0\0\0\0\0"
#define SIGNATURE    "\xff" ZEROS_8 "\x7f"
#define GREETING(by) SIGNATURE "\3\0" by ZEROS_8 "\0" ZEROS_8 ZEROS_8 ZEROS_8 "\0\0\0\0\0\0\0"
#define BY_NULL      GREETING("NULL" ZEROS_8)
#define BY_CURVE     GREETING("CURVE\0\0\0\0\0\0\0")
#define READY        "\4\x1c\5READY\xbSocket-Type\0\0\0\6DEALER"
#define LETTER       "\0\x12{\"say\":\"run\"}....."
#define SAID(text)                                                                                 \
    {                                                                                              \
        text, sizeof(text) - 1                                                                     \
    }

TT_TEST(wire, strangers_are_ignored_whatever_they_say)
{
    static const struct {
        const char *text;
        size_t size;
    } said[] = {SAID(""),
                SAID("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
                SAID("SSH-2.0-x\r\n"),
                SAID(ZEROS_8 ZEROS_8),
                SAID(SIGNATURE),                   /* and then nothing            */
                SAID("\1\0\x13" LETTER),           /* ZMTP 1.0: has no mechanisms */
                SAID(SIGNATURE "\0\5\0\0" LETTER), /* the same with a version     */
                SAID(SIGNATURE "\1\5\0\0" LETTER), /* ZMTP 2.0: has none either   */
                SAID(BY_NULL READY LETTER),
                SAID(BY_CURVE READY LETTER),
                SAID(BY_CURVE LETTER),
                SAID(BY_CURVE "\6\x40\0\0\0\0\0\0\0\5HELLO")}; /* of 2^62 bytes */
    tt_cluster_key key = new_key("key");
    int fd[TT_COUNT(said)], closed[TT_COUNT(said)];
    tt_wire *server, *client;
    tt_letter l;

    open_pair("tcp://127.0.0.1:0", &key, &server, &client);
    expect_talk(server, client);
    for (int i = 0; i < TT_COUNT(said); i++) {
        fd[i] = dial(tt_wire_address(server));
        closed[i] = dial(tt_wire_address(server));
        EXPECT_INT(said[i].size, send(fd[i], said[i].text, said[i].size, MSG_NOSIGNAL));
        EXPECT_INT(said[i].size, send(closed[i], said[i].text, said[i].size, MSG_NOSIGNAL));
        close(closed[i]);
    }
    EXPECT(!take_within(server, &l, 0.3));
    expect_talk(server, client);
    for (int i = 0; i < TT_COUNT(said); i++) close(fd[i]);
    expect_talk(server, client);
    close_both(client, server);
}

/* A socket of ZeroMQ's own, to say what wires never do. */
typedef struct raw {
    void *context, *socket;
} raw;

static raw raw_open(const char *address, const char *id)
{
    raw r = {zmq_ctx_new(), NULL};
    int zero = 0;

    r.socket = zmq_socket(r.context, ZMQ_DEALER);
    zmq_setsockopt(r.socket, ZMQ_LINGER, &zero, sizeof zero);
    if (id) zmq_setsockopt(r.socket, ZMQ_ROUTING_ID, id, strlen(id));
    EXPECT(zmq_connect(r.socket, address) == 0);
    return r;
}

static void raw_close(raw r)
{
    zmq_close(r.socket);
    zmq_ctx_term(r.context);
}

TT_TEST(wire, zeromq_without_a_key_is_not_heard)
{
    tt_cluster_key key = new_key("key");
    tt_wire *server, *client;
    tt_letter l;
    raw r;

    open_pair("tcp://127.0.0.1:0", &key, &server, &client);
    r = raw_open(tt_wire_address(server), NULL);
    EXPECT(zmq_send(r.socket, "hello", 5, ZMQ_DONTWAIT) == 5);
    EXPECT(!take_within(server, &l, 0.3));
    expect_talk(server, client);
    raw_close(r);
    close_both(client, server);
}

TT_TEST(wire, letters_of_several_parts_and_chosen_names_are_none_of_ours)
{
    tt_wire *server, *client;
    tt_letter l;
    raw r, named;

    open_pair("ipc://s", NULL, &server, &client);
    r = raw_open("ipc://s", NULL);
    named = raw_open("ipc://s", "\1abcd");
    zmq_send(r.socket, "one", 3, ZMQ_SNDMORE);
    zmq_send(r.socket, "", 0, ZMQ_SNDMORE);
    zmq_send(r.socket, "three", 5, 0);
    zmq_send(named.socket, "alone", 5, 0);
    zmq_send(named.socket, "one", 3, ZMQ_SNDMORE);
    zmq_send(named.socket, "two", 3, 0);
    EXPECT(!take_within(server, &l, 0.2));
    zmq_send(r.socket, "alone", 5, 0);
    expect_text(server, "alone");
    expect_talk(server, client);
    raw_close(r);
    raw_close(named);
    close_both(client, server);
}

/* Listens, and says this to whoever comes. NULL: nothing, but keeps them. */
static int stranger_listens(int port, const char *text, pid_t *pid)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    EXPECT(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 10) == 0);
    EXPECT(getsockname(fd, (struct sockaddr *)&at, &size) == 0);
    if (!(*pid = fork()))
        for (;;) {
            int peer = accept(fd, NULL, NULL);
            if (text) send(peer, text, strlen(text), MSG_NOSIGNAL);
            if (text) poll(NULL, 0, 20);
            if (text) close(peer);
        }
    close(fd);
    return ntohs(at.sin_port);
}

TT_TEST(wire, after_a_stranger_at_its_address_the_right_one_is_reached)
{
    static const char *const says[] = {
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\nDate: today\r\n\r\n",
        "\xff\x01\x01\x01\x01\x01\x01\x01\x01\x7f\x03\x01NULL and more, so that it is a greeting "
        "of 64 bytes, and more",
        "x"};
    tt_cluster_key key = new_key("key");

    for (int i = 0; i < TT_COUNT(says); i++) {
        tt_wire *server, *client;
        char address[64];
        pid_t pid;
        snprintf(address, sizeof address, "tcp://127.0.0.1:%d", stranger_listens(0, says[i], &pid));
        EXPECT_OK(tt_wire_reach(address, &key, &client));
        expect_trouble(client, "what listens there is none of ours");
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        EXPECT_OK(tt_wire_serve(address, &key, &server));
        expect_trouble(client, "");
        expect_talk(server, client);
        close_both(client, server);
    }
}

/* ---- addresses ---- */

TT_TEST(wire, addresses_that_are_none_are_refused)
{
    static const char *const bad[] = {"",
                                      "tcp",
                                      "tcp://",
                                      "tcp://a",
                                      "a:1",
                                      "ipc://",
                                      "udp://a:1",
                                      "tcp://:1",
                                      "tcp://a:",
                                      "tcp://a:b",
                                      "tcp://a:-1",
                                      "tcp://a:1x",
                                      "tcp://a:65536",
                                      "inproc://x",
                                      "tcp://a:99999999999999",
                                      "tcp:///a:1 ",
                                      "TCP://a:1",
                                      "tcp://a b:1"};
    tt_cluster_key key = new_key("key");
    char longest[600] = "tcp://";
    tt_wire *w;

    memset(longest + 6, 'a', 500);
    for (int i = 0; i < TT_COUNT(bad); i++) {
        w = (tt_wire *)&w;
        if (tt_wire_serve(bad[i], &key, &w) != TT_EINVAL) FAIL("served '%s'", bad[i]);
        EXPECT(!w);
        EXPECT_MESSAGE("say tcp://host:port");
        w = (tt_wire *)&w;
        if (tt_wire_reach(bad[i], &key, &w) != TT_EINVAL) FAIL("reached '%s'", bad[i]);
        EXPECT(!w);
    }
    strcat(longest, ":1");
    EXPECT_ERR(TT_EINVAL, tt_wire_reach(longest, &key, &w));
    EXPECT_ERR(TT_EINVAL, tt_wire_reach("tcp://127.0.0.1:0", &key, &w)); /* whose port? */
    EXPECT_ERR(TT_EINVAL, tt_wire_reach("tcp://[::1]:2222", &key, &w));
    EXPECT_MESSAGE("IPv6");
}

TT_TEST(wire, others_need_a_key)
{
    tt_wire *w;

    EXPECT_ERR(TT_EINVAL, tt_wire_serve("tcp://127.0.0.1:0", NULL, &w));
    EXPECT_MESSAGE("tcp://127.0.0.1:0: needs the key of the cluster");
    EXPECT(!w);
    EXPECT_ERR(TT_EINVAL, tt_wire_reach("tcp://127.0.0.1:1234", NULL, &w));
    EXPECT(!w);
}

TT_TEST(wire, an_address_that_is_taken_or_none_of_ours_is_refused)
{
    static const char *const not_ours[] = {"tcp://192.0.2.1:0", "tcp://no-such-host.invalid:2222"};
    tt_cluster_key key = new_key("key");
    tt_wire *server, *client, *w;
    char part[300];

    open_pair("tcp://127.0.0.1:0", &key, &server, &client);
    EXPECT_ERR(TT_EENV, tt_wire_serve(tt_wire_address(server), &key, &w));
    snprintf(part, sizeof part, "cannot listen at %s: Address already in use",
             tt_wire_address(server));
    EXPECT_MESSAGE(part);
    EXPECT(!w);
    expect_talk(server, client);
    close_both(client, server);
    for (int i = 0; i < TT_COUNT(not_ours); i++) {
        EXPECT_ERR(TT_EENV, tt_wire_serve(not_ours[i], &key, &w));
        EXPECT_MESSAGE(not_ours[i]);
    }
}

static bool is_there(const char *path)
{
    struct stat st;

    return !lstat(path, &st);
}

TT_TEST(wire, a_unix_socket_is_not_taken_from_its_owner)
{
    tt_wire *server, *client, *w;

    open_pair("ipc://s", NULL, &server, &client);
    EXPECT_ERR(TT_EENV, tt_wire_serve("ipc://s", NULL, &w));
    EXPECT_MESSAGE("ipc://s");
    EXPECT(is_there("s"));
    expect_talk(server, client);
    close_both(client, server);
    tt_test_write("file", "precious", 8);
    EXPECT_ERR(TT_EENV, tt_wire_serve("ipc://file", NULL, &w));
    EXPECT_FILE("file", "precious");
    EXPECT_ERR(TT_EENV, tt_wire_serve("ipc://nowhere/s", NULL, &w));
    EXPECT_MESSAGE("ipc://nowhere/s: No such file");
}

TT_TEST(wire, no_socket_stays_behind)
{
    struct sockaddr_un left = {.sun_family = AF_UNIX, .sun_path = "s"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    tt_wire *server, *client;

    EXPECT(bind(fd, (struct sockaddr *)&left, sizeof left) == 0);
    close(fd);
    EXPECT(is_there("s")); /* of one who was killed: no hindrance */
    open_pair("ipc://s", NULL, &server, &client);
    expect_talk(server, client);
    EXPECT(is_there("s"));
    tt_wire_close(client, 0);
    EXPECT(is_there("s"));
    tt_wire_close(server, 0);
    EXPECT(!is_there("s"));
}
