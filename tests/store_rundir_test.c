#define _GNU_SOURCE
#include "test.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/store.h"

static void expect_status(const char *path, const char *want)
{
    tt_run_info *info = calloc(1, sizeof *info);
    char got[32];

    EXPECT(info != NULL);
    EXPECT_OK(tt_run_look(path, info));
    snprintf(got, sizeof got, "%s", info->status);
    tt_run_free(info, 1);
    EXPECT_STR(want, got);
}

TT_TEST(rundir, a_new_run_gets_a_folder_of_its_own)
{
    tt_run_dir *a, *b;
    unsigned date, time, mark;
    char end;

    EXPECT_OK(tt_run_dir_open(NULL, "mnist cnn/../x", NULL, false, &a));
    EXPECT_OK(tt_run_dir_open(NULL, "mnist cnn/../x", NULL, false, &b));
    EXPECT(strcmp(a->path, b->path));
    EXPECT(!a->resumed);
    if (sscanf(a->path, "runs/mnist-cnn-..-x-%8u-%6u-%4x%c", &date, &time, &mark, &end) != 3)
        FAIL("the folder is %s", a->path);
    EXPECT(date > 20200101 && date < 29991231);
    EXPECT_OK(tt_run_dir_write(a, "config.yaml", "model: mlp\n"));
    tt_run_dir_close(b);
    EXPECT(!chdir(a->path));
    EXPECT_FILE("config.yaml", "model: mlp\n");
    tt_run_dir_close(a);
    tt_run_dir_close(NULL);
}

TT_TEST(rundir, names_that_are_empty_or_dots_are_made_safe)
{
    const char *names[] = {"", NULL, "...", "-rf", "\xFF/"};
    tt_run_dir *d;

    for (int i = 0; i < 5; i++) {
        EXPECT_OK(tt_run_dir_open("r", names[i], NULL, false, &d));
        EXPECT(!strncmp(d->path, i == 3 ? "r/rf-2" : "r/run-2", i == 3 ? 6 : 7));
        tt_run_dir_close(d);
    }
}

TT_TEST(rundir, a_folder_with_a_run_is_entered_only_to_resume)
{
    tt_run_dir *d;

    EXPECT_OK(tt_run_dir_open(NULL, NULL, "deep/mine", false, &d));
    EXPECT(!d->resumed);
    tt_run_dir_close(d);
    EXPECT_ERR(TT_EINVAL, tt_run_dir_open(NULL, NULL, "deep/mine", false, &d));
    EXPECT_MESSAGE("already holds a run");
    EXPECT(d == NULL);
    EXPECT_OK(tt_run_dir_open(NULL, NULL, "deep/mine", true, &d));
    EXPECT(d->resumed);
    EXPECT_STR("deep/mine", d->path);
    tt_run_dir_close(d);
    EXPECT_ERR(TT_EINVAL, tt_run_dir_open(NULL, NULL, "absent", true, &d));
    EXPECT_MESSAGE("absent");
    EXPECT(!tt_file_exists("absent"));
    EXPECT_ERR(TT_EINVAL, tt_run_dir_open(NULL, NULL, NULL, true, &d));
    EXPECT(!mkdir("empty", 0777)); /* an empty folder holds no run */
    EXPECT_OK(tt_run_dir_open(NULL, NULL, "empty", false, &d));
    tt_run_dir_close(d);
    EXPECT(!mkdir("foreign", 0777) && !mkdir("foreign/checkpoints", 0777));
    EXPECT_ERR(TT_EINVAL, tt_run_dir_open(NULL, NULL, "foreign", false, &d));
}

TT_TEST(rundir, the_other_process_is_named)
{
    tt_run_dir *d, *again;
    char pid[32];
    int status, gate[2];
    pid_t child;

    EXPECT(!pipe(gate));
    child = fork();
    if (child == 0) { /* holds the run until it is killed */
        if (tt_run_dir_open(NULL, NULL, "mine", false, &d) || write(gate[1], "", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(gate[1]);
    EXPECT(child > 0 && read(gate[0], pid, 1) == 1);
    close(gate[0]);
    snprintf(pid, sizeof pid, "process %d", (int)child);
    EXPECT_ERR(TT_EINVAL, tt_run_dir_open(NULL, NULL, "mine", true, &again));
    EXPECT_MESSAGE("mine is in use by");
    EXPECT_MESSAGE(pid);
    expect_status("mine", "running");
    kill(child, SIGKILL);
    EXPECT(waitpid(child, &status, 0) == child);
    expect_status("mine", "lost");
    EXPECT_OK(tt_run_dir_open(NULL, NULL, "mine", true, &again));
    expect_status("mine", "running");
    tt_run_dir_close(again);
}

TT_TEST(rundir, only_files_of_the_run_are_written)
{
    tt_run_dir *d;

    EXPECT_OK(tt_run_dir_open(NULL, NULL, "mine", false, &d));
    EXPECT_ERR(TT_EINVAL, tt_run_dir_write(d, "../x", ""));
    EXPECT_ERR(TT_EINVAL, tt_run_dir_write(d, "/tmp/x", ""));
    EXPECT_ERR(TT_EINVAL, tt_run_dir_write(d, "", ""));
    tt_run_dir_close(d);
}

TT_TEST(rundir, the_summary_says_how_it_ended_until_the_run_goes_on)
{
    tt_run_dir *d;

    EXPECT_OK(tt_run_dir_open(NULL, NULL, "mine", false, &d));
    EXPECT_OK(tt_run_dir_write(d, "summary.json", "{\"status\":\"stopped\",\"step\":12}"));
    expect_status("mine", "stopped");
    tt_run_dir_close(d);
    expect_status("mine", "stopped");
    EXPECT_OK(tt_run_dir_open(NULL, NULL, "mine", true, &d));
    expect_status("mine", "running");
    tt_run_dir_close(d);
    expect_status("mine", "lost");
    EXPECT_FILE("mine/summary.old.json", "{\"status\":\"stopped\",\"step\":12}");
}

TT_TEST(rundir, runs_are_listed_oldest_first)
{
    const char *journal = "{\"type\":\"header\",\"schema\":1,\"t\":1}\n{\"step\":41}\n"
                          "{\"step\":42}\n{\"event\":\"x\"}\n{\"step\":4";
    tt_run_info *runs;
    int count;

    EXPECT_OK(tt_run_list("runs", &runs, &count));
    EXPECT_INT(0, count);
    tt_run_free(runs, count);
    EXPECT_OK(tt_dir_make("runs/a-20250102-030405-beef"));
    EXPECT_OK(tt_dir_make("runs/b-20240102-030405-00ff"));
    EXPECT_OK(tt_dir_make("runs/no run"));
    tt_test_write("runs/file", "", 0);
    tt_test_write("runs/a-20250102-030405-beef/summary.json", "{\"status\":\"done\",\"step\":7}",
                  26);
    tt_test_write("runs/b-20240102-030405-00ff/metrics.jsonl", journal, strlen(journal));
    tt_test_write("runs/b-20240102-030405-00ff/summary.json", "not json", 8);
    tt_log_quiet(true);
    EXPECT_OK(tt_run_list("runs", &runs, &count));
    EXPECT_INT(2, count);
    EXPECT_STR("b-20240102-030405-00ff", runs[0].name);
    EXPECT_STR("runs/b-20240102-030405-00ff", runs[0].path);
    EXPECT_STR("lost", runs[0].status);
    EXPECT_INT(42, runs[0].step);
    EXPECT(runs[0].summary == NULL);
    EXPECT(runs[0].started < runs[1].started);
    EXPECT_NEAR(1704164645, runs[0].started, 86400); /* in whatever zone this is */
    EXPECT_NEAR(tt_wall_s(), runs[0].updated, 60);
    EXPECT_STR("a-20250102-030405-beef", runs[1].name);
    EXPECT_STR("done", runs[1].status);
    EXPECT_INT(7, runs[1].step);
    EXPECT_INT(7, json_integer_value(json_object_get(runs[1].summary, "step")));
    tt_run_free(runs, count);
}

TT_TEST(rundir, a_look_at_nothing_says_so)
{
    tt_run_info *info = calloc(1, sizeof *info);

    EXPECT_ERR(TT_EINVAL, tt_run_look("absent", info));
    EXPECT_MESSAGE("no run at absent");
    EXPECT(!mkdir("empty", 0777));
    EXPECT_ERR(TT_EINVAL, tt_run_look("empty/", info));
    free(info);
}
