/* Hosts that join a run, leave it and are lost: hub and agents, each a process of its own, and the
 * agents with a host name of their own. */
#define _GNU_SOURCE
#include <sched.h>

#include "cluster_hub_help.h"

static struct seen {
    char changes[1024], told[4][1024];
    volatile int lets_go; /* the hub, those who want to leave */
    int saved, done_with; /* the hub's run is; the agent need not keep the state */
    volatile int count;
} * seen;

static const char *program = "/bin/sh";

static void begin(void)
{
    set_up();
    if (!seen)
        seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(seen != MAP_FAILED);
    memset(seen, 0, sizeof *seen);
    program = "/bin/sh";
}

static void note_change(tt_hub *h, const tt_hub_change *c)
{
    static const char *const word[] = {"came", "leaves", "lost"};
    size_t n = strlen(seen->changes);

    snprintf(seen->changes + n, sizeof seen->changes - n, "%s %s %d; ", word[c->kind], c->host,
             c->slots);
    if (c->kind == TT_HOST_LEAVES && seen->lets_go) tt_hub_bye(h, c->host, true);
}

_Noreturn static void be_join_hub(void)
{
    tt_hub *h;
    tt_hub_change c;
    unsigned char code;
    tt_err err = tt_hub_open(&(tt_hub_opts){.folder = "hub",
                                            .address = address,
                                            .key = "key",
                                            .world = "version 1",
                                            .joins = true,
                                            .program = program,
                                            .rooms = "rooms"},
                             &h);

    tt_log_quiet(true);
    keep(&shared->hub, err, 0);
    if (err) _exit(1);
    tt_hub_set_run(h, "the run");
    shared->opened++;
    for (;;) {
        struct pollfd p[8] = {{.fd = control[0], .events = POLLIN}};
        poll(p, (nfds_t)(1 + tt_hub_poll(h, p + 1, 7)), 50);
        tt_hub_turn(h);
        while (tt_hub_next_change(h, &c)) note_change(h, &c);
        seen->count = tt_hub_count(h);
        if ((p[0].revents & POLLIN) && read(control[0], &code, 1) == 1) break;
    }
    if (seen->saved) tt_hub_saved(h);
    tt_hub_close(h, code);
    _exit(0);
}

static pid_t start_join_hub(void)
{
    int before = shared->opened;
    pid_t pid;

    shared->hub.done = 0;
    EXPECT(!pipe(control));
    if (!(pid = fork_kid())) be_join_hub();
    close(control[0]);
    WAIT_TRUE(shared->hub.done, 1);
    if (shared->hub.err) FAIL("no hub: %s", shared->hub.message);
    WAIT_TRUE(shared->opened, before + 1);
    return pid;
}

static int whose;

static void tell(const char *text)
{
    size_t n = strlen(seen->told[whose]);
    snprintf(seen->told[whose] + n, sizeof seen->told[whose] - n, "%s\n", text);
}

static void on_stop(int sig)
{
    (void)sig;
    stopped = stopped + 1;
}

static pid_t join_as(int which, const char *host, const char *world)
{
    struct sigaction act = {.sa_handler = on_stop};
    tt_agent_opts o = {address, "key", host, world, 20, 2, tell};
    tt_agent_end end;
    pid_t pid = fork_kid();
    tt_err err;

    if (pid) return pid;
    if (unshare(CLONE_NEWUTS) && unshare(CLONE_NEWUSER | CLONE_NEWUTS)) _exit(77);
    if (sethostname(host, strlen(host))) _exit(77);
    sigaction(SIGTERM, &act, NULL);
    whose = which;
    err = tt_agent_run(&o, &stopped, &end);
    seen->done_with = end.done_with;
    keep(&shared->agent[which], err, end.code);
    if (!err && strstr(seen->told[which], "taken in") &&
        (strcmp(end.rooms, "rooms") || strcmp(end.run, "the run")))
        _exit(78);
    _exit(0);
}

static void skip_without_names(void)
{
    pid_t pid = fork_kid();

    if (!pid)
        _exit((unshare(CLONE_NEWUTS) && unshare(CLONE_NEWUSER | CLONE_NEWUTS)) ||
              sethostname("x", 1));
    if (wait_code(pid)) tt_test_skip("a host name of its own is not to be had here");
}

static void wait_changes(const char *wanted)
{
    double until = tt_clock_s() + PATIENCE_S;

    while (strcmp(seen->changes, wanted)) {
        if (tt_clock_s() > until) FAIL("changes are '%s', not '%s'", seen->changes, wanted);
        poll(NULL, 0, 2);
    }
}

TT_TEST(join, a_host_is_told_with_its_slots_and_ends_with_the_hub)
{
    pid_t hub, agent;

    skip_without_names();
    begin();
    hub = start_join_hub();
    agent = join_as(0, "b", "version 1");
    wait_changes("came b 2; ");
    expect_run("b", "echo here", 0, "here\n");
    close_hub(hub, 3);
    EXPECT_INT(0, wait_code(agent));
    EXPECT_INT(TT_OK, shared->agent[0].err);
    EXPECT_INT(3, shared->agent[0].code);
    EXPECT(strstr(seen->told[0], "taken in by tcp://"));
}

TT_TEST(join, what_was_not_saved_is_kept_whatever_the_exit_code)
{
    for (int saved = 0; saved < 2; saved++) {
        pid_t hub, agent;
        skip_without_names();
        begin();
        seen->saved = saved;
        hub = start_join_hub();
        agent = join_as(0, "b", "version 1");
        wait_changes("came b 2; ");
        close_hub(hub, 130);
        EXPECT_INT(0, wait_code(agent));
        EXPECT_INT(130, shared->agent[0].code);
        EXPECT_INT(saved, seen->done_with);
    }
}

TT_TEST(join, a_host_that_leaves_waits_until_it_is_let_go)
{
    pid_t hub, agent;

    skip_without_names();
    begin();
    hub = start_join_hub();
    agent = join_as(0, "b", "version 1");
    wait_changes("came b 2; ");
    kill(agent, SIGTERM);
    wait_changes("came b 2; leaves b 2; "); /* said once, however often it is heard */
    poll(NULL, 0, 600);
    EXPECT(!shared->agent[0].done);
    seen->lets_go = 1;
    close_hub(hub, 9);
    EXPECT_INT(0, wait_code(agent));
    EXPECT_INT(TT_OK, shared->agent[0].err);
    EXPECT_INT(0, shared->agent[0].code); /* it has left: how the run ended is not its concern */
}

TT_TEST(join, a_host_that_is_let_go_is_not_lost)
{
    pid_t hub, agent;

    skip_without_names();
    begin();
    seen->lets_go = 1;
    hub = start_join_hub();
    agent = join_as(0, "b", "version 1");
    wait_changes("came b 2; ");
    kill(agent, SIGTERM);
    EXPECT_INT(0, wait_code(agent));
    EXPECT_INT(TT_OK, shared->agent[0].err);
    poll(NULL, 0, 2000);
    EXPECT_STR("came b 2; leaves b 2; ", seen->changes);
    EXPECT_INT(0, seen->count);
    close_hub(hub, 0);
}

TT_TEST(join, who_is_impatient_leaves_at_once)
{
    pid_t hub, agent;

    skip_without_names();
    begin();
    hub = start_join_hub();
    agent = join_as(0, "b", "version 1");
    wait_changes("came b 2; ");
    kill(agent, SIGTERM);
    wait_changes("came b 2; leaves b 2; ");
    kill(agent, SIGTERM);
    EXPECT_INT(0, wait_code(agent));
    EXPECT_INT(TT_ESTOP, shared->agent[0].err);
    close_hub(hub, 0);
}

TT_TEST(join, a_host_that_dies_is_lost_and_its_name_is_free_again)
{
    pid_t hub, first, second;

    skip_without_names();
    begin();
    hub = start_join_hub();
    first = join_as(0, "b", "version 1");
    wait_changes("came b 2; ");
    kill(first, SIGKILL);
    second = join_as(1, "b", "version 1"); /* at once: it has to wait until the first is missed */
    wait_changes("came b 2; lost b 2; came b 2; ");
    close_hub(hub, 0);
    EXPECT_INT(0, wait_code(second));
    EXPECT_INT(TT_OK, shared->agent[1].err);
}

TT_TEST(join, a_host_that_is_silent_is_lost_soon)
{
    pid_t hub, agent;
    double since;

    skip_without_names();
    begin();
    hub = start_join_hub();
    agent = join_as(0, "b", "version 1");
    wait_changes("came b 2; ");
    kill(agent, SIGSTOP);
    since = tt_clock_s();
    wait_changes("came b 2; lost b 2; ");
    EXPECT(tt_clock_s() - since > 1 && tt_clock_s() - since < 8);
    kill(agent, SIGCONT);
    wait_changes("came b 2; lost b 2; came b 2; ");
    close_hub(hub, 0);
    EXPECT_INT(0, wait_code(agent));
}

TT_TEST(join, a_name_is_taken_by_one_at_a_time)
{
    pid_t hub, first, second;

    skip_without_names();
    begin();
    hub = start_join_hub();
    first = join_as(0, "b", "version 1");
    wait_changes("came b 2; ");
    second = join_as(1, "b", "version 1");
    EXPECT_INT(0, wait_code(second));
    EXPECT_INT(TT_EENV, shared->agent[1].err);
    EXPECT(strstr(shared->agent[1].message, "a host called b takes part already"));
    EXPECT_STR("came b 2; ", seen->changes);
    close_hub(hub, 0);
    wait_code(first);
}

TT_TEST(join, who_still_waits_for_its_name_is_told_that_the_run_has_ended)
{
    pid_t hub, first, second;
    double since;

    skip_without_names();
    begin();
    hub = start_join_hub();
    first = join_as(0, "b", "version 1");
    wait_changes("came b 2; ");
    second = join_as(1, "b", "version 1");
    poll(NULL, 0, 400);
    since = tt_clock_s();
    close_hub(hub, 0);
    EXPECT_INT(0, wait_code(second));
    EXPECT_INT(TT_OK, shared->agent[1].err);
    EXPECT(tt_clock_s() - since < 2);
    wait_code(first);
}

TT_TEST(join, a_host_without_the_program_says_so_and_is_never_offered)
{
    pid_t hub, agent;

    skip_without_names();
    begin();
    program = "/no/such/program";
    hub = start_join_hub();
    agent = join_as(0, "b", "version 1");
    EXPECT_INT(0, wait_code(agent));
    EXPECT_INT(TT_EENV, shared->agent[0].err);
    EXPECT(strstr(shared->agent[0].message, "/no/such/program, and that is not on this host"));
    poll(NULL, 0, 300);
    EXPECT_STR("", seen->changes);
    close_hub(hub, 0);
}

TT_TEST(join, another_version_is_refused_with_both)
{
    pid_t hub, agent;

    skip_without_names();
    begin();
    hub = start_join_hub();
    agent = join_as(0, "b", "version 2");
    EXPECT_INT(0, wait_code(agent));
    EXPECT_INT(TT_EENV, shared->agent[0].err);
    EXPECT(strstr(shared->agent[0].message, "it makes version 1, this one wants version 2"));
    EXPECT_STR("", seen->changes);
    close_hub(hub, 0);
}

TT_TEST(join, an_agent_outlives_its_hub_and_joins_the_next)
{
    pid_t hub, agent, rsh;

    skip_without_names();
    begin();
    tt_silence_s = 1;
    hub = start_join_hub();
    agent = join_as(0, "b", "version 1");
    wait_changes("came b 2; ");
    rsh = start_rsh("b", "echo $$ >running; exec sleep 1000", MARK, "said");
    int pid = wait_pid("running");
    kill(hub, SIGKILL);
    wait_code(hub);
    wait_dead(pid); /* what ran there ends; the agent does not */
    wait_code(rsh);
    unlink("running");
    EXPECT(!shared->agent[0].done);
    hub = start_join_hub();
    wait_changes("came b 2; came b 2; ");
    close_hub(hub, 0);
    EXPECT_INT(0, wait_code(agent));
    EXPECT_INT(TT_OK, shared->agent[0].err);
    EXPECT(strstr(seen->told[0], "what ran here is ended") &&
           strstr(seen->told[0], "is heard of again"));
}
