/* Hub and agents: commands, their ends, and who belongs together. */
#define _GNU_SOURCE
#include "cluster_hub_help.h"

/* ---- commands ---- */

TT_TEST(hub, a_command_runs_and_its_output_and_exit_code_arrive)
{
    pid_t hub, agent;

    start_both(&hub, &agent);
    expect_run("a", "echo hello; echo there >&2", 0, "hello\nthere\n");
    expect_run("a", "exit 3", 3, "");
    expect_run("a", "exit 255", 255, "");
    expect_run("a", "printf 'no line end'; kill -9 $$", 128 + SIGKILL, "no line end");
    expect_run("a", "kill -TERM $$", 128 + SIGTERM, "");
    expect_run("a", "cat; echo $?", 0, "0\n");              /* there is nothing to read */
    expect_run("a", "ls /proc/self/fd", 0, "0\n1\n2\n3\n"); /* 3 is of ls */
    expect_run("a", "awk '/SigBlk/ || /SigIgn/ {print substr($2, 10)}' /proc/self/status", 0,
               "0000000\n0000000\n"); /* beyond that a shell may ignore what the C library keeps */
    EXPECT_INT(127, wait_code(start_rsh("a", "/no/such/program", MARK, "said")));
    end_both(hub, agent);
}

TT_TEST(hub, commands_carry_the_mark_of_their_world)
{
    pid_t hub, agent;
    char one[64], two[64];

    start_both(&hub, &agent);
    expect_run("a", "echo \"$TUTTI_WORLD [$TF_CONFIG]\"", 0,
               "0123456789abcdef0123456789abcdef []\n");
    EXPECT_INT(0,
               wait_code(start_rsh("a", "echo $TUTTI_WORLD", NULL, "said"))); /* one of its own */
    snprintf(one, sizeof one, "%s", read_text("said"));
    EXPECT_INT(0, wait_code(start_rsh("a", "echo $TUTTI_WORLD", "x;y \xff", "said")));
    snprintf(two, sizeof two, "%s", read_text("said"));
    EXPECT(strspn(one, "0123456789abcdef") == 32 && strspn(two, "0123456789abcdef") == 32);
    EXPECT(strcmp(one, two));
    end_both(hub, agent);
}

TT_TEST(hub, a_host_without_an_agent_is_told_at_once)
{
    pid_t hub, agent;

    start_both(&hub, &agent);
    expect_run("b", "true", 255, "tutti: host b: no agent waits there\n");
    expect_run("", "true", 255, "tutti: host : no agent waits there\n");
    EXPECT_INT(255, wait_code(start_rsh("\xff\xfe", "true", MARK, "said")));
    end_both(hub, agent);
    hub = start_hub_at(NULL); /* of this host alone */
    expect_run("a", "true", 255, "tutti: host a: no agent waits there\n");
    close_hub(hub, 0);
}

TT_TEST(hub, what_is_printed_arrives_whatever_it_is)
{
    pid_t hub, agent;
    tt_bytes said, blob;

    start_both(&hub, &agent);
    EXPECT_INT(0, wait_code(start_rsh("a",
                                      "printf 'a\\000b\\377\\200\\033[1m\\t\\303\\274\\303'; "
                                      "echo '\xc3\xbc\xff'",
                                      MARK, "said")));
    EXPECT_OK(tt_file_read("said", 0, &said));
    EXPECT_INT(17, said.size);
    EXPECT(!memcmp(said.data, "a\0b\xff\x80\x1b[1m\t\xc3\xbc\xc3\xc3\xbc\xff\n", 17));
    tt_file_release(&said);
    EXPECT_INT(0,
               wait_code(start_rsh("a", "head -c 300000 /dev/urandom | tee blob", MARK, "said")));
    EXPECT_OK(tt_file_read("said", 0, &said));
    EXPECT_OK(tt_file_read("blob", 0, &blob));
    EXPECT_INT(blob.size, said.size);
    EXPECT(!memcmp(blob.data, said.data, said.size));
    tt_file_release(&said);
    tt_file_release(&blob);
    end_both(hub, agent);
}

TT_TEST(hub, several_commands_run_at_once)
{
    enum { MANY = 8 };
    char command[128], file[16], want[16];
    pid_t hub, agent, other, rsh[MANY];

    start_both(&hub, &agent);
    other = start_agent("b");
    WAIT_TRUE(shared->has_b, 1);
    for (int i = 0; i < MANY; i++) { /* each waits until all are there */
        snprintf(command, sizeof command,
                 "touch at.%d; while [ $(ls at.* | wc -l) -lt %d ]; do sleep .01; done; echo %d; "
                 "exit %d",
                 i, MANY, i, i);
        snprintf(file, sizeof file, "said.%d", i);
        rsh[i] = start_rsh(i % 2 ? "a" : "b", command, MARK, file);
    }
    for (int i = 0; i < MANY; i++) {
        EXPECT_INT(i, wait_code(rsh[i]));
        snprintf(file, sizeof file, "said.%d", i);
        snprintf(want, sizeof want, "%d\n", i);
        EXPECT_FILE(file, want);
    }
    end_both(hub, agent);
    EXPECT_INT(0, wait_code(other));
}

TT_TEST(hub, no_more_commands_run_at_once_than_an_agent_takes)
{
    pid_t hub, agent, rsh[TT_COMMANDS];
    char file[TT_COMMANDS][16];

    start_both(&hub, &agent);
    for (int i = 0; i < TT_COMMANDS; i++) {
        snprintf(file[i], sizeof file[i], "said.%d", i);
        rsh[i] = start_rsh("a", "echo $$; exec sleep 1000", MARK, file[i]);
    }
    for (int i = 0; i < TT_COMMANDS; i++) wait_pid(file[i]);
    expect_run("a", "true", 255,
               "tutti: host a: its agent cannot start this: it runs too many commands already\n");
    end_both(hub, agent);
    for (int i = 0; i < TT_COMMANDS; i++) EXPECT_INT(255, wait_code(rsh[i]));
}

/* ---- ends ---- */

/* A command with all kinds of children: in a session of its own, and left behind. */
static const char FAMILY[] =
    "setsid sleep 1000 & echo $! >one; (sleep 1000 & echo $! >two); echo $$ >three; sleep 1000; :";

static void wait_family(int pid[3])
{
    pid[0] = wait_pid("one");
    pid[1] = wait_pid("two");
    pid[2] = wait_pid("three");
    for (int i = 0; i < 3; i++) EXPECT(!is_dead(pid[i]));
}

static void wait_family_dead(const int pid[3])
{
    for (int i = 0; i < 3; i++) wait_dead(pid[i]);
}

TT_TEST(hub, a_command_ends_when_its_remote_shell_is_killed)
{
    pid_t hub, agent, rsh;
    int pid[3];

    start_both(&hub, &agent);
    rsh = start_rsh("a", FAMILY, MARK, "said");
    wait_family(pid);
    kill(rsh, SIGKILL);
    EXPECT_INT(128 + SIGKILL, wait_code(rsh));
    wait_family_dead(pid);
    expect_run("a", "echo fine", 0, "fine\n"); /* the agent is as before */
    end_both(hub, agent);
}

TT_TEST(hub, commands_end_when_their_agent_is_killed)
{
    pid_t hub, agent, rsh, again;
    int pid[3];

    set_up();
    tt_silence_s = 1.5;
    hub = start_hub();
    agent = start_agent("a");
    WAIT_TRUE(shared->has_a, 1);
    rsh = start_rsh("a", FAMILY, NULL, "said"); /* no mark is no way out */
    wait_family(pid);
    kill(agent, SIGKILL);
    EXPECT_INT(128 + SIGKILL, wait_code(agent));
    wait_family_dead(pid);
    again = start_agent("a"); /* is used although the other is not missed yet */
    WAIT_TRUE(shared->has_a, 1);
    EXPECT_INT(255, wait_code(rsh));
    EXPECT_FILE("said", "tutti: host a: its agent is gone\n");
    expect_run("a", "echo fine", 0, "fine\n");
    end_both(hub, again);
}

TT_TEST(hub, an_agent_started_again_takes_the_place_of_the_one_that_died)
{
    pid_t hub, agent, again;
    double until;

    start_both(&hub, &agent);
    kill(agent, SIGKILL);
    EXPECT_INT(128 + SIGKILL, wait_code(agent));
    again = start_agent("a");
    until =
        tt_clock_s() + PATIENCE_S; /* not before it is known; but long before the silence ends */
    while (wait_code(start_rsh("a", "exit 5", MARK, "said")) != 5)
        if (tt_clock_s() > until) FAIL("%s", read_text("said"));
    end_both(hub, again);
}

TT_TEST(hub, agents_end_with_the_hub_and_its_code)
{
    pid_t hub, agent, rsh;
    int pid[3];

    start_both(&hub, &agent);
    rsh = start_rsh("a", FAMILY, MARK, "said");
    wait_family(pid);
    close_hub(hub, 7);
    EXPECT_INT(0, wait_code(agent));
    EXPECT_INT(TT_OK, shared->agent[0].err);
    EXPECT_INT(7, shared->agent[0].code);
    for (int i = 0; i < 3; i++) EXPECT(is_dead(pid[i])); /* by then, not some time later */
    EXPECT_INT(255, wait_code(rsh));
    EXPECT(strstr(read_text("said"), "the supervisor is gone"));
    EXPECT(access("hub/hub", F_OK));
}

TT_TEST(hub, what_a_command_left_behind_ends_with_the_agent)
{
    pid_t hub, agent;
    int pid;

    start_both(&hub, &agent);
    expect_run("a", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >one", 0, "");
    pid = wait_pid("one");
    EXPECT(!is_dead(pid)); /* as orted does when it becomes a daemon */
    end_both(hub, agent);
    EXPECT(is_dead(pid));
}

TT_TEST(hub, an_agent_may_be_told_to_stop)
{
    pid_t hub, agent, rsh;
    int pid[3];

    start_both(&hub, &agent);
    rsh = start_rsh("a", FAMILY, MARK, "said");
    wait_family(pid);
    kill(agent, SIGTERM);
    EXPECT_INT(0, wait_code(agent));
    EXPECT_INT(TT_ESTOP, shared->agent[0].err);
    for (int i = 0; i < 3; i++) EXPECT(is_dead(pid[i]));
    kill(rsh, SIGKILL);
    close_hub(hub, 0);
}

TT_TEST(hub, an_agent_that_hears_nothing_more_ends)
{
    pid_t hub, agent, rsh;
    int pid[3];

    set_up();
    tt_silence_s = 1.5;
    hub = start_hub();
    agent = start_agent("a");
    WAIT_TRUE(shared->has_a, 1);
    rsh = start_rsh("a", FAMILY, MARK, "said");
    wait_family(pid);
    kill(hub, SIGKILL);
    EXPECT_INT(0, wait_code(agent));
    EXPECT_INT(TT_EPEER, shared->agent[0].err);
    if (!strstr(shared->agent[0].message, "no word from tcp://127.0.0.1:"))
        FAIL("%s", shared->agent[0].message);
    for (int i = 0; i < 3; i++) EXPECT(is_dead(pid[i]));
    EXPECT_INT(255, wait_code(rsh));
}

TT_TEST(hub, a_hub_misses_an_agent_that_is_silent)
{
    pid_t hub, agent;

    set_up();
    tt_silence_s = 1.5;
    hub = start_hub();
    agent = start_agent("a");
    WAIT_TRUE(shared->has_a, 1);
    kill(agent, SIGSTOP);
    WAIT_TRUE(shared->has_a, 0);
    kill(agent, SIGKILL);
    close_hub(hub, 0);
}

TT_TEST(hub, another_hub_at_the_same_place_takes_over)
{
    pid_t hub, agent, rsh;
    int pid[3];

    start_both(&hub, &agent);
    rsh = start_rsh("a", FAMILY, MARK, "said");
    wait_family(pid);
    kill(hub, SIGKILL);
    EXPECT_INT(128 + SIGKILL, wait_code(hub));
    EXPECT_INT(255, wait_code(rsh));
    shared->has_a = 0;
    hub = start_hub();
    WAIT_TRUE(shared->has_a, 1);
    wait_family_dead(pid); /* nobody waits for it any more */
    expect_run("a", "echo fine", 0, "fine\n");
    end_both(hub, agent);
}

/* ---- who belongs together ---- */

static void expect_agent(tt_agent_opts o, tt_err err, const char *part, const char *more)
{
    result *r = &shared->agent[2];

    memset(r, 0, sizeof *r);
    EXPECT_INT(0, wait_code(start_agent_as(2, o)));
    EXPECT_INT(err, r->err);
    if (!strstr(r->message, part) || !strstr(r->message, more)) FAIL("%s", r->message);
}

TT_TEST(hub, an_agent_of_another_world_is_refused)
{
    pid_t hub, agent;

    start_both(&hub, &agent);
    expect_agent((tt_agent_opts){address, "key", "c", "a:1,c:3", 20}, TT_EENV,
                 "does not take us: it makes a:1,b:2, this one wants a:1,c:3", address);
    expect_agent((tt_agent_opts){address, "key", "c", "\xff", 20}, TT_EENV, "wants ?", address);
    expect_agent((tt_agent_opts){address, "key", "", "a:1,b:2", 20}, TT_EENV, "what host it is",
                 "");
    expect_run("a", "echo fine", 0, "fine\n");
    end_both(hub, agent);
}

TT_TEST(hub, an_agent_that_waits_in_vain_says_why)
{
    pid_t hub, agent;

    set_up();
    EXPECT_OK(tt_cluster_key_make("other"));
    expect_agent((tt_agent_opts){address, "key", "a", "w", 0.2}, TT_EPEER, "nobody listens there",
                 address);
    expect_agent((tt_agent_opts){address, "nowhere", "a", "w", 0.4}, TT_EENV, "nowhere",
                 "TUTTI_KEY");
    expect_agent((tt_agent_opts){"tcp://a", "key", "a", "w", 0.4}, TT_EINVAL, "tcp://a", "");
    start_both(&hub, &agent);
    expect_agent((tt_agent_opts){address, "other", "a", "w", 1}, TT_EPEER,
                 "it does not take our key", "in vain");
    end_both(hub, agent);
}

TT_TEST(hub, a_long_world_is_no_other)
{
    tt_str world = {0};
    tt_hub *h;
    pid_t agent;
    double until = tt_clock_s() + PATIENCE_S;

    set_up();
    for (int i = 0; i < 5000; i++) tt_str_add(&world, "%snode%d:2222", i ? "," : "", i);
    agent = start_agent_as(0, (tt_agent_opts){address, "key", "a", world.data, 20});
    EXPECT_OK(tt_hub_open(&(tt_hub_opts){"hub", address, "key", world.data}, &h));
    while (!tt_hub_has(h, "a")) {
        if (tt_clock_s() > until) FAIL("it does not come: %s", shared->agent[0].message);
        poll(NULL, 0, 2);
        tt_hub_turn(h);
    }
    tt_hub_close(h, 3);
    EXPECT_INT(0, wait_code(agent));
    EXPECT_INT(3, shared->agent[0].code);
    tt_str_free(&world);
}

/* ---- opening ---- */

TT_TEST(hub, its_folder_must_be_ours_alone)
{
    tt_hub_opts o = {"hub", NULL, NULL, "w"};
    char deep[128] = "hub/";
    tt_hub *h;

    set_up();
    EXPECT(!chmod("hub", 0755));
    EXPECT_ERR(TT_EENV, tt_hub_open(&o, &h));
    EXPECT_MESSAGE("hub: must be ours alone (mode 0700)");
    EXPECT(!h);
    EXPECT(!chmod("hub", 0701));
    EXPECT_ERR(TT_EENV, tt_hub_open(&o, &h));
    o.folder = "nowhere";
    EXPECT_ERR(TT_EIO, tt_hub_open(&o, &h));
    memset(deep + 4, 'x', 110);
    o.folder = deep;
    EXPECT_ERR(TT_EENV, tt_hub_open(&o, &h));
    EXPECT_MESSAGE("too long for the name of a socket: set TMPDIR");
    EXPECT(!chmod("hub", 0700));
    o = (tt_hub_opts){"hub", address, "nowhere/key", "w"};
    EXPECT_ERR(TT_EENV, tt_hub_open(&o, &h));
    EXPECT_MESSAGE("nowhere/key");
    EXPECT(!h && access("hub/hub", F_OK));
    tt_hub_close(NULL, 0);
}

TT_TEST(hub, the_command_for_a_remote_shell_has_no_blanks_to_be_cut_at)
{
    tt_arena *a = tt_arena_open(1024);
    tt_hub_opts o = {"hub", NULL, NULL, "w"};
    const char *rsh;
    tt_hub *h;

    set_up();
    EXPECT_OK(tt_hub_open(&o, &h));
    EXPECT_OK(tt_hub_rsh(h, "/my bin/a:b/tutti", a, &rsh));
    EXPECT_STR("hub/" TT_RSH_NAME, rsh);
    char to[64] = "";
    EXPECT(readlink(rsh, to, sizeof to - 1) > 0);
    EXPECT_STR("/my bin/a:b/tutti", to);
    EXPECT_OK(tt_hub_rsh(h, "/my bin/a:b/tutti", a, &rsh)); /* again, for the next world */
    tt_hub_close(h, 0);
    EXPECT(!mkdir("my hub", 0700));
    o.folder = "my hub";
    EXPECT_OK(tt_hub_open(&o, &h));
    EXPECT_ERR(TT_EENV, tt_hub_rsh(h, "/bin/tutti", a, &rsh));
    EXPECT_MESSAGE("my hub/" TT_RSH_NAME);
    EXPECT_MESSAGE("set TMPDIR");
    tt_hub_close(h, 0);
    tt_arena_close(a);
}

TT_TEST(hub, a_remote_shell_without_a_command_says_what_it_needs)
{
    static const char *const lines[][4] = {{0}, {"s"}, {"s", "host"}, {"s", "-l", "me", "host"}};

    set_up();
    for (int i = 0; i < TT_COUNT(lines); i++) {
        pid_t pid = fork_kid();
        if (!pid) {
            dup2(open("said", O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
            _exit(tt_rsh_run(i ? i + (i == 3) : 0, (const char **)lines[i]));
        }
        EXPECT_INT(255, wait_code(pid));
        EXPECT_FILE("said", "tutti rsh: needs SOCKET HOST COMMAND\n");
    }
}
