/* Hub and agents under strain: floods, broken connections, letters that are none. */
#define _GNU_SOURCE
#include "cluster_hub_help.h"

#include <time.h>

/* ---- under strain ---- */

TT_TEST(hub, commands_that_print_without_end_are_no_hindrance)
{
    enum { MANY = 4 };
    static const char *const file[MANY] = {"0", "1", "2", "3"};
    pid_t hub, agent, other, rsh[MANY];
    char command[64];
    int pid[MANY];

    start_both(&hub, &agent);
    other = start_agent("b");
    WAIT_TRUE(shared->has_b, 1);
    for (int i = 0; i < MANY; i++) {
        snprintf(command, sizeof command, "echo $$ >%s; exec yes", file[i]);
        rsh[i] = start_rsh(i % 2 ? "a" : "b", command, MARK, "/dev/null");
        pid[i] = wait_pid(file[i]);
    }
    expect_run("a", "echo fine", 0, "fine\n");
    expect_run("b", "echo fine", 0, "fine\n");
    kill(rsh[0], SIGKILL);
    wait_dead(pid[0]);
    end_both(hub, agent);
    EXPECT_INT(0, wait_code(other));
    for (int i = 0; i < MANY; i++) EXPECT(is_dead(pid[i]));
}

TT_TEST(hub, a_child_that_prints_without_end_does_not_keep_its_command)
{
    pid_t hub, agent;

    start_both(&hub, &agent);
    EXPECT_INT(4, wait_code(start_rsh("a", "yes & exit 4", MARK, "/dev/null")));
    end_both(hub, agent);
}

TT_TEST(hub, one_that_does_not_read_for_a_while_hears_the_end)
{
    static const char command[] = "echo $$ >one; while [ ! -e go ]; do sleep .01; done; head -c "
                                  "12000000 /dev/zero | tr '\\0' x; echo done >two; exit 6";
    pid_t hub, agent, rsh;

    start_both(&hub, &agent);
    rsh = start_rsh("a", command, MARK, "/dev/null");
    wait_pid("one");
    kill(rsh, SIGSTOP);
    tt_test_write("go", "", 0);
    wait_text("two", "done"); /* more than is queued for it */
    expect_run("a", "echo fine", 0, "fine\n");
    kill(rsh, SIGCONT);
    EXPECT_INT(6, wait_code(rsh));
    end_both(hub, agent);
}

static double time_used(pid_t pid)
{
    struct timespec t;
    clockid_t clock;

    EXPECT(!clock_getcpuclockid(pid, &clock) && !clock_gettime(clock, &t));
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

TT_TEST(hub, an_agent_that_waits_uses_no_time)
{
    pid_t hub, agent, rsh;
    double used;

    start_both(&hub, &agent);
    rsh = start_rsh("a", "exec >/dev/null 2>&1; echo $$ >one; exec sleep 1000", MARK, "said");
    wait_pid("one");
    used = time_used(agent);
    poll(NULL, 0, 400);
    used = time_used(agent) - used;
    if (used > 0.04) FAIL("%.2f s", used);
    kill(rsh, SIGKILL);
    end_both(hub, agent);
}

/* Between agent and hub: passes bytes on, and breaks all connections at SIGTERM. */
_Noreturn static void be_proxy(int fd, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sigaction act = {.sa_handler = on_signal};
    int one = -1, other = -1;
    char data[4096];

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sigaction(SIGTERM, &act, NULL);
    for (;;) {
        struct pollfd p[3] = {{fd, POLLIN, 0}, {one, POLLIN, 0}, {other, POLLIN, 0}};
        if (stopped) {
            close(one);
            close(other);
            one = other = -1;
            stopped = 0;
            continue;
        }
        if (poll(p, 3, 20) <= 0) continue;
        for (int i = 1; i < 3; i++)
            if (p[i].revents) {
                ssize_t n = read(p[i].fd, data, sizeof data);
                if (n <= 0 || !tt_write_all(i == 1 ? other : one, data, (size_t)n, NULL))
                    stopped = 1;
            }
        if (!(p[0].revents & POLLIN)) continue;
        close(one);
        close(other);
        one = accept(fd, NULL, NULL);
        other = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(other, (struct sockaddr *)&to, sizeof to)) stopped = 1;
    }
}

TT_TEST(hub, a_connection_that_breaks_is_taken_up_again)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    int fd, port;
    pid_t hub, agent, proxy, rsh;
    char by_proxy[64];

    set_up();
    hub = start_hub();
    EXPECT(sscanf(address, "tcp://127.0.0.1:%d", &port) == 1);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT(!bind(fd, (struct sockaddr *)&at, sizeof at) && !listen(fd, 8));
    EXPECT(!getsockname(fd, (struct sockaddr *)&at, &size));
    signal(SIGPIPE, SIG_IGN);
    if (!(proxy = fork_kid())) be_proxy(fd, port);
    signal(SIGPIPE, SIG_DFL);
    snprintf(by_proxy, sizeof by_proxy, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    agent = start_agent_as(0, (tt_agent_opts){by_proxy, "key", "a", "a:1,b:2", 20});
    WAIT_TRUE(shared->has_a, 1);
    rsh = start_rsh("a", "echo one; while [ ! -e go ]; do sleep .01; done; echo two; exit 9", MARK,
                    "said");
    wait_text("said", "one");
    for (int i = 0; i < 2; i++) {
        kill(proxy, SIGTERM);
        poll(NULL, 0, 300);
    }
    tt_test_write("go", "", 0);
    EXPECT_INT(9, wait_code(rsh));
    EXPECT_FILE("said", "one\ntwo\n");
    end_both(hub, agent);
    kill(proxy, SIGKILL);
    close(fd);
}

/* ---- letters of a wrong shape, from one who has the key ---- */

/* All that may be wrong with a letter of these fields: each in turn missing, and of other types. */
static void send_wrong(tt_wire *w, uint32_t to, json_t *right)
{
    static const char *const other[] = {"null",
                                        "true",
                                        "0",
                                        "-1",
                                        "1e300",
                                        "4294967297",
                                        "-9223372036854775808",
                                        "9223372036854775807",
                                        "\"\"",
                                        "\"x\"",
                                        "[]",
                                        "{}",
                                        "[[[[{\"a\":[null]}]]]]",
                                        "[-1, 0, 1, 4294967297, \"x\", null, {}, 1.5]",
                                        "\"\\u0000\\uffff\\ud83d\\ude00\""};
    json_t *value, *o, *endless;
    tt_str text = {0};
    const char *key;
    void *at;

    for (int i = 0; i < 20000; i++) tt_str_add(&text, "\xc3\xbc and ");
    endless = json_string(text.data);
    tt_str_free(&text);

    for (at = json_object_iter(right); at; at = json_object_iter_next(right, at)) {
        key = json_object_iter_key(at);
        o = json_copy(right);
        json_object_del(o, key);
        tt_say(w, to, o);
        for (int i = 0; i < TT_COUNT(other); i++) {
            o = json_copy(right);
            value = json_loads(other[i], JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            EXPECT(value);
            json_object_set_new(o, key, value);
            tt_say(w, to, o);
        }
        o = json_copy(right);
        json_object_set(o, key, endless);
        tt_say(w, to, o);
    }
    json_decref(endless);
    json_decref(right);
}

static void send_nonsense(tt_wire *w, uint32_t to)
{
    static const char *const texts[] = {"",
                                        "x",
                                        "{",
                                        "[]",
                                        "null",
                                        "1",
                                        "\"say\"",
                                        "{}",
                                        "{\"say\":null}",
                                        "{\"say\":1}",
                                        "{\"say\":\"\"}",
                                        "{\"say\":\"sing\"}",
                                        "{\"say\":\"stop\",\"say\":\"run\"}",
                                        "{\"say\":\"\\u0000\"}",
                                        "{\"\\u0000\":1,\"say\":\"run\"}",
                                        "{\"say\":\"\xff\"}",
                                        "{\"say\":\"run\",\"id\":99999999999999999999}",
                                        "{\"say\":\"run\"} and more"};
    char *deep = malloc(200001);

    for (int i = 0; i < TT_COUNT(texts); i++)
        EXPECT_OK(tt_wire_send(w, to, texts[i], strlen(texts[i])));
    EXPECT_OK(tt_wire_send(w, to, "\0\1\2{", 4));
    memset(deep, '[', 200000);
    EXPECT_OK(tt_wire_send(w, to, deep, 200000));
    for (int i = 0; i < 200000; i += 5) memcpy(deep + i, "{\"a\":", 5);
    EXPECT_OK(tt_wire_send(w, to, deep, 200000));
    free(deep);
}

static json_t *right_here(const char *name, const char *host)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:[i]}", "say", "here", "agent", name, "host", host,
                     "world", "a:1,b:2", "protocol", TT_HUB_PROTOCOL, "running", 1);
}

TT_TEST(hub, letters_of_a_wrong_shape_do_not_harm_a_hub)
{
    tt_cluster_key key;
    tt_wire *far, *near;
    pid_t hub, agent;

    start_both(&hub, &agent);
    EXPECT_OK(tt_cluster_key_load("key", &key));
    EXPECT_OK(tt_wire_reach(address, &key, &far));
    EXPECT_OK(tt_wire_reach("ipc://hub/hub", NULL, &near));
    send_nonsense(far, 0);
    send_nonsense(near, 0);
    send_wrong(near, 0,
               json_pack("{s:s, s:s, s:s, s:s, s:i}", "say", "run", "host", "a", "command", "true",
                         "mark", MARK, "pid", (int)getpid()));
    for (int i = 0; i < 2; i++) { /* before it is known as an agent, and after */
        static const char *const words[] = {"said", "ended"};
        for (int k = 0; k < 2; k++)
            send_wrong(far, 0,
                       json_pack("{s:s, s:i, s:s, s:i}", "say", words[k], "id", 1, "text", "x",
                                 "code", 0));
        send_wrong(far, 0, right_here(MARK, "c"));
    }
    tt_wire_close(near, 1);
    tt_wire_close(far, 1);
    EXPECT_OK(tt_wire_reach(address, &key, &far)); /* and one with nothing wrong is taken */
    tt_say(far, 0, right_here("another name of 32 bytes you see", "b"));
    WAIT_TRUE(shared->has_b, 1);
    tt_wire_close(far, 0);
    expect_run("a", "echo fine", 0, "fine\n");
    end_both(hub, agent);
}

static json_t *hear_within(tt_wire *w, uint32_t *from, const char **word)
{
    double until = tt_clock_s() + PATIENCE_S;
    json_t *o;

    while (!(o = tt_hear(w, from, word)))
        if (tt_clock_s() > until)
            FAIL("no letter comes");
        else
            poll(NULL, 0, 2);
    return o;
}

/* Until it does not change any more. */
static void wait_still(const char *path)
{
    double since = tt_clock_s();
    int last = -1;

    while (tt_clock_s() < since + 0.2) {
        int now = atoi(read_text(path));
        if (now != last) since = tt_clock_s();
        last = now;
        poll(NULL, 0, 5);
    }
}

TT_TEST(hub, what_is_printed_waits_for_a_hub_that_does_not_listen)
{
    static const char command[] = "i=0; while [ $i -lt 20 ]; do head -c 1000000 /dev/zero | tr "
                                  "'\\0' x; i=$((i+1)); echo $i >at; done; exit 6";
    size_t size = 0;
    tt_cluster_key key;
    const char *word = "";
    uint32_t from;
    tt_wire *w;
    pid_t agent;

    set_up();
    agent = start_agent("a");
    EXPECT_OK(tt_cluster_key_load("key", &key));
    EXPECT_OK(tt_wire_serve(address, &key, &w));
    json_decref(hear_within(w, &from, &word));
    tt_say(w, from, json_pack("{s:s, s:i, s:s}", "say", "run", "id", 5, "command", command));
    wait_text("at", "\n");
    wait_still("at");
    for (int code = -1; code < 0;) {
        json_t *o = hear_within(w, &from, &word);
        if (!strcmp(word, "said")) size += json_string_length(json_object_get(o, "text"));
        if (!strcmp(word, "ended")) code = tt_code_of(o);
        json_decref(o);
        if (code >= 0) EXPECT_INT(6, code);
    }
    EXPECT_INT(20000000, size);
    tt_say(w, from, json_pack("{s:s, s:i}", "say", "bye", "code", 0));
    EXPECT_INT(0, wait_code(agent));
    tt_wire_close(w, 0);
}

TT_TEST(hub, an_agent_of_another_version_is_refused)
{
    tt_cluster_key key;
    const char *word;
    uint32_t from;
    tt_wire *w;
    pid_t hub;
    json_t *o = right_here(MARK, "b");

    set_up();
    hub = start_hub();
    EXPECT_OK(tt_cluster_key_load("key", &key));
    EXPECT_OK(tt_wire_reach(address, &key, &w));
    json_object_set_new(o, "protocol", json_integer(TT_HUB_PROTOCOL + 1));
    tt_say(w, 0, o);
    o = hear_within(w, &from, &word);
    EXPECT_STR("no", word);
    EXPECT_STR("it speaks protocol 2, this one 3: use one version of tutti", tt_text_of(o, "why"));
    json_decref(o);
    tt_wire_close(w, 0);
    EXPECT(!shared->has_b);
    close_hub(hub, 0);
}

TT_TEST(hub, a_command_its_agent_does_not_know_of_has_failed)
{
    tt_cluster_key key;
    const char *word;
    uint32_t from;
    tt_wire *w;
    pid_t hub, rsh;
    int status, id = 0;
    double until = tt_clock_s() + PATIENCE_S;

    set_up();
    tt_silence_s = 1;
    hub = start_hub();
    rsh = start_rsh_when(&shared->has_b, "b", "true", MARK, "said"); /* before there are threads */
    EXPECT_OK(tt_cluster_key_load("key", &key));
    EXPECT_OK(tt_wire_reach(address, &key, &w));
    while (waitpid(rsh, &status, WNOHANG) != rsh) { /* hears of it and forgets it */
        json_t *o;
        if (tt_clock_s() > until) FAIL("it does not end");
        tt_say(w, 0, right_here(MARK, "b"));
        while ((o = tt_hear(w, &from, &word))) {
            if (!strcmp(word, "run")) id = tt_number_of(o, "id");
            json_decref(o);
        }
        poll(NULL, 0, 50);
    }
    tt_wire_close(w, 0);
    EXPECT(id > 1);
    EXPECT_INT(255, tt_exit_code(status));
    EXPECT_FILE("said", "tutti: host b: its agent does not know of the command any more\n");
    close_hub(hub, 0);
}

TT_TEST(hub, letters_of_a_wrong_shape_do_not_harm_an_agent)
{
    tt_cluster_key key;
    tt_wire *w;
    pid_t agent;
    const char *word;
    uint32_t from;
    json_t *o;
    int pid;

    set_up();
    agent = start_agent("a");
    EXPECT_OK(tt_cluster_key_load("key", &key));
    EXPECT_OK(tt_wire_serve(address, &key, &w));
    o = hear_within(w, &from, &word);
    EXPECT_STR("here", word);
    EXPECT(json_is_array(json_object_get(o, "running")));
    json_decref(o);
    send_nonsense(w, from);
    send_wrong(
        w, from,
        json_pack("{s:s, s:i, s:s, s:s}", "say", "run", "id", 5, "command", "true", "mark", MARK));
    send_wrong(w, from, json_pack("{s:s, s:i}", "say", "stop", "id", 5));
    tt_say(
        w, from,
        json_pack("{s:s, s:i, s:s}", "say", "run", "id", -5, "command", "echo $$ >one; sleep 99"));
    pid = wait_pid("one");
    tt_say(w, from, json_pack("{s:s, s:i}", "say", "stop", "id", -6));
    tt_say(w, from, json_pack("{s:s, s:s}", "say", "bye", "code", "seven")); /* no code: not 0 */
    EXPECT_INT(0, wait_code(agent));
    tt_wire_close(w, 0);
    EXPECT(is_dead(pid));
    EXPECT_INT(TT_OK, shared->agent[0].err);
    EXPECT_INT(255, shared->agent[0].code);
}

TT_TEST(hub, letters_of_a_wrong_shape_do_not_harm_a_remote_shell)
{
    const char *word;
    uint32_t from;
    tt_wire *w;
    pid_t rsh;
    json_t *o;

    set_up();
    rsh = start_rsh("a", "true", MARK, "said");
    EXPECT_OK(tt_wire_serve("ipc://hub/hub", NULL, &w));
    o = hear_within(w, &from, &word);
    EXPECT_STR("run", word);
    EXPECT_INT(rsh, json_integer_value(json_object_get(o, "pid")));
    json_decref(o);
    send_nonsense(w, from);
    send_wrong(w, from, json_pack("{s:s, s:s}", "say", "said", "text", ""));
    tt_say(w, from, json_pack("{s:s, s:i}", "say", "ended", "code", 1000));
    EXPECT_INT(255, wait_code(rsh));
    tt_wire_close(w, 0);
}

TT_TEST(hub, bytes_come_out_as_they_went_in)
{
    char all[256];
    tt_str back = {0};
    json_t *o;

    for (int i = 0; i < 256; i++) all[i] = (char)i;
    o = json_pack("{s:o, s:s, s:i}", "x", tt_json_bytes(all, 256), "wide", "\xc4\x80\xe2\x82\xac",
                  "n", 1);
    EXPECT(o);
    tt_bytes_of(o, "x", &back);
    EXPECT(back.size == 256 && !memcmp(back.data, all, 256));
    tt_str_free(&back);
    tt_bytes_of(o, "wide", &back); /* none of ours */
    EXPECT_STR("\?\?", back.data);
    tt_bytes_of(o, "n", &back);
    tt_bytes_of(o, "nothing", &back);
    EXPECT_INT(2, back.size);
    tt_str_free(&back);
    json_decref(o);
    o = json_pack("{s:o}", "x",
                  tt_json_text("a\xff"
                               "b\xed\xa0\x80\xc3\xbc\xc3"));
    EXPECT(o);
    EXPECT_STR("a?b\?\?\?\xc3\xbc?", tt_text_of(o, "x"));
    json_decref(o);
}
