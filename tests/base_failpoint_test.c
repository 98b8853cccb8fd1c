/* Failpoints: each does what it was told, when it was told, where it was told. */
#define _GNU_SOURCE
#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int pass(void)
{
    return TT_FAILPOINT("test.place");
}

static int pass_other(void)
{
    return TT_FAILPOINT("test.other");
}

/* How a process ends that comes by `times` times: an exit code, 128 + signal, 200 + signal if it
 * stopped. */
static int end_of(const char *list, const char *folder, int rank, int times)
{
    pid_t pid = fork();
    int status = 0;

    if (!pid) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        if (tt_failpoint_set(list, folder)) _exit(99);
        tt_failpoint_rank(rank);
        for (int i = 0; i < times; i++) pass();
        _exit(50);
    }
    waitpid(pid, &status, WUNTRACED);
    if (!WIFSTOPPED(status))
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return 200 + WSTOPSIG(status);
}

static void done(void)
{
    EXPECT_OK(tt_failpoint_set(NULL, NULL));
}

TT_TEST(failpoint, without_a_list_nothing_happens)
{
    done();
    EXPECT(!tt_failpoints_on);
    EXPECT_INT(0, pass());
    EXPECT_INT(50, end_of("", NULL, 0, 3));
}

TT_TEST(failpoint, each_does_what_it_is_told)
{
    EXPECT_INT(128 + SIGKILL, end_of("test.place=kill", NULL, 0, 1));
    EXPECT_INT(128 + SIGABRT, end_of("test.place=abort", NULL, 0, 1));
    EXPECT_INT(0, end_of("test.place=exit", NULL, 0, 1));
    EXPECT_INT(7, end_of("test.place=exit:7", NULL, 0, 1));
    EXPECT_INT(200 + SIGSTOP, end_of("test.place=stop", NULL, 0, 1));
    EXPECT_INT(50, end_of("test.other=kill", NULL, 0, 1));
}

/* A sanitizer has a handler of its own, which ends the process otherwise. */
TT_TEST(failpoint, a_segv_comes_to_a_thread_that_has_signals_blocked)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = end_of("test.place=segv", NULL, 0, 1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    EXPECT_INT(128 + SIGSEGV, code);
}

TT_TEST(failpoint, sleeps_as_long_as_it_is_told)
{
    double begun = tt_clock_s();

    EXPECT_OK(tt_failpoint_set("test.place=sleep:0.2", NULL));
    EXPECT_INT(0, pass());
    double once = tt_clock_s() - begun;
    EXPECT_INT(0, pass());
    done();
    EXPECT(once >= 0.199);
    EXPECT(tt_clock_s() - begun - once < 0.19);
}

TT_TEST(failpoint, a_place_is_told_to_fail)
{
    EXPECT_OK(tt_failpoint_set("test.place=fail test.other=fail:28", NULL));
    EXPECT_INT(EIO, pass());
    EXPECT_INT(0, pass()); /* once */
    EXPECT_INT(ENOSPC, pass_other());
    done();
}

TT_TEST(failpoint, the_time_and_the_rank_count)
{
    EXPECT_OK(tt_failpoint_set("test.place=fail@3,test.other=fail@2+", NULL));
    for (int i = 1; i <= 5; i++) {
        EXPECT_INT(i == 3 ? EIO : 0, pass());
        EXPECT_INT(i >= 2 ? EIO : 0, pass_other());
    }
    EXPECT_OK(tt_failpoint_set("test.place=fail@1,test.place=fail:28@3", NULL));
    for (int i = 1; i <= 4; i++) EXPECT_INT(i == 1 ? EIO : i == 3 ? ENOSPC : 0, pass());
    EXPECT_OK(tt_failpoint_set("test.place=fail/rank:2@2", NULL));
    for (int i = 0; i < 3; i++) EXPECT_INT(0, pass()); /* no rank, and it does not count */
    tt_failpoint_rank(1);
    EXPECT_INT(0, pass());
    tt_failpoint_rank(2);
    EXPECT_INT(0, pass());
    EXPECT_INT(EIO, pass());
    tt_failpoint_rank(-1);
    done();
}

TT_TEST(failpoint, with_a_folder_it_fires_once_for_all_processes)
{
    EXPECT(!mkdir("hit", 0700));
    EXPECT_INT(50, end_of("test.place=kill@2", "hit", 0, 1));
    EXPECT(access("hit/test.place", F_OK));
    EXPECT_INT(128 + SIGKILL, end_of("test.place=kill@2", "hit", 3, 2));
    EXPECT(!access("hit/test.place", F_OK));
    EXPECT_INT(50, end_of("test.place=kill@2", "hit", 0, 5));
    /* The same name again is another one. */
    EXPECT_INT(9, end_of("test.place=kill@1,test.place=exit:9@2", "hit", 0, 5));
    EXPECT(!access("hit/test.place#2", F_OK));
    EXPECT_INT(50, end_of("test.place=kill@1,test.place=exit:9@2", "hit", 0, 5));
    /* What is to happen always does, and leaves word. */
    EXPECT_OK(tt_failpoint_set("test.other=fail@1+", "hit"));
    for (int i = 0; i < 3; i++) EXPECT_INT(EIO, pass_other());
    EXPECT(!access("hit/test.other", F_OK));
    done();
}

TT_TEST(failpoint, one_may_wait_for_another)
{
    EXPECT(!mkdir("hit", 0700));
    EXPECT_OK(tt_failpoint_set("test.place=fail/after:test.other@2,test.other=fail", "hit"));
    for (int i = 0; i < 3; i++) EXPECT_INT(0, pass());
    EXPECT_INT(EIO, pass_other());
    EXPECT_INT(0, pass());
    EXPECT_INT(EIO, pass());
    EXPECT_ERR(TT_EINVAL, tt_failpoint_set("test.place=fail/after:test.other", NULL));
    EXPECT_ERR(TT_EINVAL, tt_failpoint_set("test.place=fail/after:no.such", "hit"));
    done();
}

static int count_in(const char *path, const char *part)
{
    tt_bytes b;
    int n = 0;

    EXPECT_OK(tt_file_read(path, 0, &b));
    for (size_t at = 0; at + strlen(part) <= b.size; at++)
        n += !memcmp(b.data + at, part, strlen(part));
    tt_file_release(&b);
    return n;
}

TT_TEST(failpoint, a_log_says_how_much_of_it_is_missing)
{
    EXPECT_OK(tt_failpoint_set("log.write=fail:28@2,log.write=fail:28@3", NULL));
    EXPECT_INT(0, tt_log_open("log"));
    for (int i = 1; i <= 5; i++) tt_info("number %d", i);
    tt_log_close();
    done();
    EXPECT_INT(3, count_in("log", "number"));
    EXPECT_INT(1, count_in("log", "[2 lines before this one could not be written] number 4"));
}

TT_TEST(failpoint, mistakes_are_refused_and_named)
{
    static const char *const wrong[] = {
        "test.place",
        "=kill",
        "test.place=",
        "test.place=die",
        "test.place=killed",
        "test.place=kill:3",
        "test.place=exit:256",
        "test.place=exit:x",
        "test.place=kill@0",
        "test.place=kill@",
        "test.place=kill@-1",
        "test.place=kill@2@3",
        "test.place=kill@2++",
        "test.place=kill/2",
        "test.place=kill/rank:",
        "test.place=kill/rank",
        "test.place=kill@1x",
        "test.place=sleep:-1",
        "test.place=Kill",
        "test.place=fail:nan",
        "test.place=kill@1/rank:1/rank:2",
    };

    for (int i = 0; i < TT_COUNT(wrong); i++) {
        tt_err err = tt_failpoint_set(wrong[i], NULL);
        if (err != TT_EINVAL) FAIL("'%s' is taken", wrong[i]);
        if (strchr(wrong[i], '=') != wrong[i]) EXPECT_MESSAGE("test.place");
        EXPECT(!tt_failpoints_on);
    }
    EXPECT_ERR(TT_EINVAL, tt_failpoint_set("test.place=kill,no.such=kill", NULL));
    EXPECT_MESSAGE("no.such");
    EXPECT(!tt_failpoints_on); /* not even the first */
    EXPECT_ERR(TT_EINVAL, tt_failpoint_set("test.place=kill", "no/such/folder"));
    EXPECT_MESSAGE("no/such/folder");
    done();
}

TT_TEST(failpoint, all_names_are_listed)
{
    const char *const *names;
    int n = tt_failpoint_names(&names), here = 0;

    for (int i = 0; i < n; i++)
        here += !strcmp(names[i], "test.place") || !strcmp(names[i], "test.other");
    EXPECT_INT(2, here);
}
