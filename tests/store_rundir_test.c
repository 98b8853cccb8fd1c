#define _GNU_SOURCE
#include "test.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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
    tt_run_dir_close(d); /* nothing was begun */
    EXPECT(!tt_file_exists("deep/mine"));
    EXPECT_OK(tt_run_dir_open(NULL, NULL, "deep/mine", false, &d));
    EXPECT_OK(tt_run_dir_write(d, "job.yaml", "name: x\n"));
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
    EXPECT_OK(tt_run_dir_write(d, "summary.json", "{\"status\":\"stopped\",\"steps\":12}"));
    expect_status("mine", "stopped");
    tt_run_dir_close(d);
    expect_status("mine", "stopped");
    EXPECT_OK(tt_run_dir_open(NULL, NULL, "mine", true, &d)); /* and something went wrong */
    tt_run_dir_close(d);
    expect_status("mine", "stopped");
    EXPECT_OK(tt_run_dir_open(NULL, NULL, "mine", true, &d));
    EXPECT_OK(tt_run_dir_begin(d));
    expect_status("mine", "running");
    tt_run_dir_close(d);
    expect_status("mine", "lost");
    EXPECT_FILE("mine/summary.old.json", "{\"status\":\"stopped\",\"steps\":12}");
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
    tt_test_write("runs/a-20250102-030405-beef/summary.json", "{\"status\":\"done\",\"steps\":7}",
                  27);
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
    EXPECT_INT(7, json_integer_value(json_object_get(runs[1].summary, "steps")));
    tt_run_free(runs, count);
}

/* The stamp in a name counts seconds, and a small training takes less. */
TT_TEST(rundir, of_two_runs_of_one_second_the_first_comes_first)
{
    static const char *const names[] = {"runs/a-20250102-030405-f000",
                                        "runs/a-20250102-030405-8000",
                                        "runs/a-20250102-030405-0000"};
    char path[64];
    tt_run_info *runs;
    int count;

    for (int i = 0; i < 3; i++) {
        struct timespec times[2] = {{.tv_sec = 1735787045, .tv_nsec = 1000000 * (i + 1)},
                                    {.tv_sec = 1735787045, .tv_nsec = 1000000 * (i + 1)}};
        EXPECT_OK(tt_dir_make(names[i]));
        snprintf(path, sizeof path, "%s/resolved.yaml", names[i]);
        tt_test_write(path, "", 0);
        snprintf(path, sizeof path, "%s/job.yaml", names[i]);
        tt_test_write(path, "", 0);
        EXPECT(!utimensat(AT_FDCWD, path, times, 0));
    }
    EXPECT_OK(tt_run_list("runs", &runs, &count));
    EXPECT_INT(3, count);
    for (int i = 0; i < 3; i++) EXPECT_STR(names[i], runs[i].path);
    tt_run_free(runs, count);
}

/* A run in a folder of the user's own choice has no stamp; that it is resumed makes it no newer. */
TT_TEST(rundir, a_run_without_a_stamp_began_when_its_job_was_written)
{
    struct timespec times[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000}};
    tt_run_info *info = calloc(1, sizeof *info);

    EXPECT_OK(tt_dir_make("mine"));
    tt_test_write("mine/job.yaml", "", 0);
    tt_test_write("mine/resolved.yaml", "", 0);
    EXPECT(!utimensat(AT_FDCWD, "mine/job.yaml", times, 0));
    EXPECT_OK(tt_run_look("mine", info));
    EXPECT_NEAR(1700000000, info->started, 0);
    tt_run_free(info, 1);
}

/* ---- what must outlive a power cut ---- */

static char synced[64][512];
static int synced_count = -1; /* -1: nobody wants to know */

/* In the place of libc's: notes which files and folders it is called for. */
int fsync(int fd)
{
    char link[64];
    ssize_t n;

    if (synced_count >= 0 && synced_count < 64) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        n = readlink(link, synced[synced_count], sizeof synced[0] - 1);
        if (n > 0) synced[synced_count++][n] = 0;
    }
    return (int)syscall(SYS_fsync, fd);
}

static void expect_synced(const char *folder)
{
    char *path = realpath(folder, NULL);
    bool found = false;

    for (int i = 0; path && i < synced_count; i++) found |= !strcmp(synced[i], path);
    free(path);
    if (!found) FAIL("%s was not synced", folder);
}

/* A new name lasts once the folder that holds it is synced. */
TT_TEST(rundir, every_folder_with_a_new_name_in_it_is_synced)
{
    tt_run_dir *d;
    tt_journal *j;
    tt_events *e;
    char path[PATH_MAX + 32];

    EXPECT(!mkdir("runs", 0777));
    synced_count = 0;
    EXPECT_OK(tt_run_dir_open("runs", "x", NULL, false, &d));
    expect_synced("runs");
    synced_count = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", d->path);
    EXPECT_OK(tt_journal_open(path, -1, &j));
    expect_synced(d->path);
    synced_count = 0;
    EXPECT_OK(tt_events_open(d->path, &e));
    expect_synced(d->path);
    EXPECT_OK(tt_run_dir_write(d, "summary.json", "{}"));
    synced_count = 0;
    EXPECT_OK(tt_run_dir_begin(d));
    expect_synced(d->path);
    EXPECT_OK(tt_dir_make("ck/step-00000003"));
    synced_count = 0;
    tt_log_quiet(true);
    EXPECT_OK(tt_ckpt_set_aside("ck", 2));
    expect_synced("ck");
    synced_count = -1;
    tt_events_close(e);
    tt_journal_close(j);
    tt_run_dir_close(d);
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
