/* The saver: the loop pays one copy, and at every moment a good checkpoint is on disk. */
#define _GNU_SOURCE
#include "test.h"

#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "allocs.h"
#include "store/store.h"

enum { N = 5000 };

static float weights[N];
static double moments[3];
static const char *const files[] = {"optim.safetensors", "model.safetensors"};
static tt_entry entries[] = {{"m", TT_F64, 1, {3}, moments, sizeof moments},
                             {"w", TT_F32, 1, {N}, weights, sizeof weights}};

static void set_state(int64_t step)
{
    for (int i = 0; i < N; i++) weights[i] = (float)(step * 10 + i);
    for (int i = 0; i < 3; i++) moments[i] = (double)step / (i + 1);
}

static tt_saver *open_saver(int keep, int best)
{
    tt_saver_opts o = {"ck", keep, best, entries, files, 2};
    tt_saver *s;

    tt_log_quiet(true);
    EXPECT_OK(tt_saver_open(&o, &s));
    return s;
}

static void save(tt_saver *s, int64_t step, double score)
{
    set_state(step);
    EXPECT_OK(tt_saver_save(s, step, NULL, score));
    EXPECT_OK(tt_saver_wait(s));
}

/* "10 20* 30+": the steps on disk that are valid, * the best, + the newest, ! not finite. */
static void expect_steps(const char *want)
{
    tt_ckpt_info *list;
    char got[1024] = "";
    size_t at = 0;
    int count;

    EXPECT_OK(tt_ckpt_list("ck", true, &list, &count));
    for (int i = 0; i < count; i++)
        at += (size_t)snprintf(got + at, sizeof got - at, "%s%lld%s%s%s%s", i ? " " : "",
                               (long long)list[i].step, list[i].valid ? "" : "?",
                               list[i].best ? "*" : "", list[i].newest ? "+" : "",
                               list[i].valid && !list[i].finite ? "!" : "");
    free(list);
    EXPECT_STR(want, got);
}

static void expect_newest(int64_t step)
{
    float got[N];
    tt_ckpt *c;

    EXPECT_OK(tt_ckpt_open("ck", -1, true, &c));
    EXPECT_INT(step, tt_ckpt_step(c));
    set_state(step);
    EXPECT_OK(tt_entry_floats(tt_ckpt_find(c, "w"), got, N));
    EXPECT(!memcmp(got, weights, sizeof got));
    EXPECT(!memcmp(tt_ckpt_find(c, "m")->data, moments, sizeof moments));
    tt_ckpt_close(c);
}

static int leftovers(void)
{
    char **names;
    int count, n = 0;

    EXPECT_OK(tt_dir_list("ck", &names, &count));
    for (int i = 0; i < count; i++) n += strchr(names[i], '.') != NULL;
    tt_dir_free(names, count);
    return n;
}

TT_TEST(saver, what_is_saved_is_what_was_there_at_the_call)
{
    tt_saver *s = open_saver(0, 0);
    tt_ckpt *c;

    EXPECT_INT(-1, tt_saver_last(s));
    set_state(7);
    EXPECT_OK(tt_saver_save(s, 7, json_pack("{s:i, s:f}", "epoch", 3, "x", 0.1), NAN));
    memset(weights, 0, sizeof weights); /* the loop goes on at once */
    EXPECT_OK(tt_saver_wait(s));
    EXPECT_INT(7, tt_saver_last(s));
    expect_newest(7);
    EXPECT_OK(tt_ckpt_open("ck", 7, true, &c));
    EXPECT_INT(3, json_integer_value(json_object_get(tt_ckpt_meta(c), "epoch")));
    EXPECT(json_real_value(json_object_get(tt_ckpt_meta(c), "x")) == 0.1);
    tt_ckpt_close(c);
    EXPECT(tt_file_exists("ck/step-00000007/model.safetensors"));
    EXPECT(tt_file_exists("ck/step-00000007/optim.safetensors"));
    EXPECT_FILE("ck/LATEST", "step-00000007\n");
    EXPECT(!tt_file_exists("ck/BEST"));
    EXPECT_INT(0, leftovers());
    tt_saver_close(s);
    tt_saver_close(NULL);
}

TT_TEST(saver, the_loop_allocates_nothing)
{
    tt_saver *s = open_saver(2, -1);
    json_t *meta[4];
    long before;

    if (!COUNTS_ALLOCATIONS) {
        tt_saver_close(s);
        tt_test_skip("the sanitizer has its own malloc");
    }
    for (int i = 0; i < 4; i++) meta[i] = json_pack("{s:i}", "step", i);
    before = own_allocations;
    for (int i = 0; i < 4; i++) {
        EXPECT(!tt_saver_save(s, i, meta[i], i)); /* waits for the one before */
        tt_saver_last(s);
    }
    EXPECT(!tt_saver_wait(s));
    EXPECT_INT(before, own_allocations);
    free(malloc(1));
    EXPECT(own_allocations > before); /* the counter works */
    tt_saver_close(s);
    expect_steps("0* 2 3+");
}

TT_TEST(saver, metrics_allocate_nothing_either)
{
    tt_journal *j;
    tt_events *e;
    long before;

    if (!COUNTS_ALLOCATIONS) tt_test_skip("the sanitizer has its own malloc");
    EXPECT_OK(tt_journal_open("metrics.jsonl", -1, &j));
    EXPECT_OK(tt_events_open("logs", &e));
    before = own_allocations;
    for (int i = 0; i < 3000; i++) { /* enough to fill the buffer of the events */
        EXPECT(!LINE(j, i, "train", {"loss", 1.0 / (i + 1)}, {"norm", NAN}));
        EXPECT(!tt_events_scalar(e, i, "train/loss", i));
    }
    EXPECT(!tt_journal_event(j, 1, "resize", "a sentence"));
    EXPECT(!tt_journal_flush(j));
    EXPECT(!tt_events_flush(e));
    EXPECT_INT(before, own_allocations);
    tt_journal_close(j);
    tt_events_close(e);
}

static void fill_bytes(void *who, int i, void *to)
{
    tt_entry *e = who;

    memset(to, 1 + i, (size_t)e[i].bytes);
}

/* A copy that grows may find no memory: that save is lost, and the training goes on. */
TT_TEST(saver, no_memory_for_a_copy_is_told_as_a_disk_is_that_is_full)
{
    tt_entry e[] = {{.name = "rows", .type = TT_I8, .rank = 1}};
    const char *file[] = {"model.safetensors"};
    tt_saver_opts o = {.folder = "ck",
                       .keep = 2,
                       .entries = e,
                       .file = file,
                       .count = 1,
                       .fill = fill_bytes,
                       .who = e};
    tt_saver *s;
    int64_t step;
    tt_err err;

    tt_log_quiet(true);
    EXPECT_OK(tt_saver_open(&o, &s));
    e[0].shape[0] = e[0].bytes = 3;
    EXPECT_OK(tt_saver_save(s, 1, NULL, NAN));
    EXPECT_OK(tt_saver_wait(s));
    EXPECT(tt_saver_ended(s, &step, &err) && step == 1 && !err);
    e[0].shape[0] = e[0].bytes = (int64_t)tt_mem_free() * 2;
    EXPECT_OK(tt_saver_save(s, 2, NULL, NAN));
    EXPECT(tt_saver_ended(s, &step, &err) && step == 2 && err == TT_ENOMEM);
    EXPECT_MESSAGE("no memory for a copy of rows");
    EXPECT_ERR(TT_ENOMEM, tt_saver_wait(s));
    EXPECT_INT(1, tt_saver_last(s));
    e[0].shape[0] = e[0].bytes = 500;
    EXPECT_OK(tt_saver_save(s, 3, NULL, NAN));
    EXPECT_OK(tt_saver_wait(s));
    EXPECT_INT(3, tt_saver_last(s));
    tt_saver_close(s);
    expect_steps("1 3+");
}

TT_TEST(saver, close_finishes_the_save)
{
    tt_saver *s = open_saver(0, 0);

    set_state(9);
    EXPECT_OK(tt_saver_save(s, 9, NULL, NAN));
    tt_saver_close(s);
    expect_newest(9);
}

TT_TEST(saver, keeps_the_newest)
{
    tt_saver *s = open_saver(2, 0);

    for (int step = 1; step <= 5; step++) save(s, step, NAN);
    expect_steps("4 5+");
    tt_saver_close(s);
    s = open_saver(1, 0);
    EXPECT_INT(5, tt_saver_last(s)); /* found on disk */
    save(s, 6, NAN);
    expect_steps("6+");
    tt_saver_close(s);
}

TT_TEST(saver, keeps_the_best_however_old)
{
    tt_saver *s = open_saver(1, +1);

    save(s, 1, 0.5);
    save(s, 2, 0.9);
    save(s, 3, 0.7);
    save(s, 4, 0.9); /* no better: the mark does not wander */
    save(s, 5, NAN);
    expect_steps("2* 5+");
    EXPECT_FILE("ck/BEST", "step-00000002\n");
    save(s, 6, 0.95);
    expect_steps("6*+");
    tt_saver_close(s);
}

TT_TEST(saver, smaller_may_be_better)
{
    tt_saver *s = open_saver(1, -1);

    save(s, 1, 2.5);
    save(s, 2, 0.5);
    save(s, 3, 1.5);
    save(s, 4, -INFINITY); /* no score to believe */
    expect_steps("2* 4+");
    tt_saver_close(s);
}

TT_TEST(saver, never_removes_the_last_finite_one)
{
    tt_saver *s = open_saver(1, +1);

    save(s, 1, NAN);
    save(s, 2, NAN);
    for (int step = 3; step <= 5; step++) {
        set_state(step);
        if (step == 4)
            moments[1] = -INFINITY;
        else
            weights[N - 1] = NAN;
        EXPECT_OK(tt_saver_save(s, step, NULL, 1000)); /* a score does not make it the best */
        EXPECT_OK(tt_saver_wait(s));
    }
    expect_steps("2+ 5!");
    EXPECT_FILE("ck/LATEST", "step-00000002\n"); /* where one would go on */
    expect_newest(2);
    save(s, 6, NAN);
    expect_steps("6+");
    tt_saver_close(s);
}

TT_TEST(saver, a_rotten_one_is_not_taken_for_the_last_good_one)
{
    tt_saver *s = open_saver(2, 0);
    FILE *f;

    save(s, 1, NAN);
    save(s, 2, NAN);
    f = fopen("ck/step-00000002/model.safetensors", "r+b");
    EXPECT(f && !fseek(f, -4, SEEK_END) && fputc(0x55, f) == 0x55 && !fclose(f));
    for (int step = 3; step <= 5; step++) {
        set_state(step);
        weights[0] = NAN;
        EXPECT_OK(tt_saver_save(s, step, NULL, NAN));
        EXPECT_OK(tt_saver_wait(s));
    }
    expect_steps("1+ 4! 5!");
    tt_saver_close(s);
}

TT_TEST(saver, a_step_saved_again_replaces_the_old_one)
{
    tt_saver *s = open_saver(3, 0);

    save(s, 10, NAN);
    EXPECT(!truncate("ck/step-00000010/model.safetensors", 9));
    save(s, 10, NAN);
    expect_steps("10+");
    expect_newest(10);
    EXPECT_INT(0, leftovers());
    EXPECT_OK(tt_dir_remove("ck/step-00000010"));
    tt_test_write("ck/step-00000010", "a file in its place", 19);
    save(s, 10, NAN);
    expect_newest(10);
    EXPECT_INT(0, leftovers());
    tt_saver_close(s);
}

TT_TEST(saver, going_back_keeps_what_is_saved_then)
{
    tt_saver *s = open_saver(1, 0);

    save(s, 30, NAN);
    save(s, 11, NAN); /* the run was resumed at step 10 */
    EXPECT(tt_file_exists("ck/step-00000011/manifest.json"));
    tt_saver_close(s);
}

/* The state may move: each save copies from where it is then. */
TT_TEST(saver, entries_may_move_between_saves)
{
    static float other[N];
    tt_saver *s = open_saver(0, 0);
    float got[N];
    tt_ckpt *c;

    save(s, 1, NAN);
    for (int i = 0; i < N; i++) other[i] = -(float)i;
    entries[1].data = other;
    EXPECT_OK(tt_saver_save(s, 2, NULL, NAN));
    entries[1].data = weights;
    EXPECT_OK(tt_saver_wait(s));
    EXPECT_OK(tt_ckpt_open("ck", 2, true, &c));
    EXPECT_OK(tt_entry_floats(tt_ckpt_find(c, "w"), got, N));
    EXPECT(!memcmp(got, other, sizeof got));
    tt_ckpt_close(c);
    tt_saver_close(s);
}

/* A run that goes on at an older step leaves behind what it passed over: it does not count as the
 * last, and is not kept in the place of a good one. */
TT_TEST(saver, what_was_passed_over_is_set_aside)
{
    tt_saver *s = open_saver(3, +1);

    save(s, 1, 0.5);
    save(s, 2, 0.4);
    set_state(3);
    weights[7] = NAN;
    EXPECT_OK(tt_saver_save(s, 3, NULL, NAN));
    EXPECT_OK(tt_saver_wait(s));
    save(s, 4, 0.9);
    expect_steps("2 3! 4*+");
    tt_saver_close(s);
    EXPECT(!truncate("ck/step-00000004/model.safetensors", 9));
    EXPECT_OK(tt_ckpt_set_aside("ck", 2));
    expect_steps("2*+");
    EXPECT(tt_file_exists("ck/step-00000003.bad/manifest.json"));
    EXPECT(tt_file_exists("ck/step-00000004.bad/manifest.json"));
    EXPECT_FILE("ck/LATEST", "step-00000002\n");
    EXPECT_FILE("ck/BEST", "step-00000002\n");
    s = open_saver(1, +1);
    EXPECT_INT(2, tt_saver_last(s));
    save(s, 4, 0.3);
    expect_steps("2* 4+");
    tt_saver_close(s);
    EXPECT_OK(tt_ckpt_set_aside("ck", 2)); /* at the same step again */
    EXPECT(tt_file_exists("ck/step-00000004.bad/manifest.json"));
    expect_steps("2*+");
}

TT_TEST(saver, what_became_of_a_save_is_told_once)
{
    tt_saver *s = open_saver(0, 0);
    int64_t step;
    tt_err err;

    EXPECT(!tt_saver_ended(s, &step, &err));
    save(s, 5, NAN);
    EXPECT(tt_saver_ended(s, &step, &err));
    EXPECT_INT(5, step);
    EXPECT_INT(TT_OK, err);
    EXPECT(!tt_saver_ended(s, &step, &err));
    EXPECT_OK(tt_dir_remove("ck"));
    tt_test_write("ck", "", 0);
    EXPECT_OK(tt_saver_save(s, 6, NULL, NAN));
    EXPECT_ERR(TT_EIO, tt_saver_wait(s));
    tt_fail(TT_EINVAL, "something else");
    EXPECT(tt_saver_ended(s, &step, &err));
    EXPECT_INT(6, step);
    EXPECT_INT(TT_EIO, err);
    EXPECT_MESSAGE("ck");
    EXPECT(!tt_saver_ended(s, &step, &err));
    tt_saver_close(s);
}

TT_TEST(saver, what_a_crash_left_is_cleared_at_open)
{
    tt_saver *s = open_saver(0, 0);

    save(s, 1, NAN);
    save(s, 2, NAN);
    tt_saver_close(s);
    EXPECT_OK(tt_dir_make("ck/step-00000003.tmp"));
    tt_test_write("ck/step-00000003.tmp/model.safetensors", "half", 4);
    EXPECT(!rename("ck/step-00000002", "ck/step-00000002.old")); /* died between two renames */
    EXPECT_OK(tt_dir_make("ck/step-00000001.old"));
    EXPECT_OK(tt_dir_make("ck/notes.tmp")); /* not ours */
    s = open_saver(0, 0);
    expect_steps("1 2+");
    expect_newest(2);
    EXPECT_INT(1, leftovers());
    EXPECT_INT(2, tt_saver_last(s));
    tt_saver_close(s);
}

/* No room for the next save, as RLIMIT_FSIZE has it: writes fail in the middle of a file. */
TT_TEST(saver, a_full_disk_leaves_the_older_one_and_the_loop_goes_on)
{
    tt_saver *s = open_saver(1, 0);
    struct rlimit small, before;
    tt_err err;

    save(s, 1, NAN);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    for (rlim_t room = 0; room < 20480; room += 5000) {
        small = before;
        small.rlim_cur = room;
        setrlimit(RLIMIT_FSIZE, &small);
        set_state(2);
        err = tt_saver_save(s, 2, NULL, NAN);
        if (!err) err = tt_saver_wait(s);
        setrlimit(RLIMIT_FSIZE, &before);
        EXPECT_INT(TT_EIO, err);
        EXPECT_MESSAGE("step-00000002.tmp");
        EXPECT_ERR(TT_EIO, tt_saver_wait(s)); /* until the next save */
        EXPECT_INT(1, tt_saver_last(s));
        EXPECT_INT(0, leftovers());
        expect_newest(1);
    }
    save(s, 3, NAN); /* room again */
    expect_steps("3+");
    tt_saver_close(s);
}

TT_TEST(saver, a_folder_that_is_gone_is_made_again)
{
    tt_saver *s = open_saver(1, 0);

    save(s, 1, NAN);
    EXPECT_OK(tt_dir_remove("ck"));
    save(s, 2, NAN);
    expect_newest(2);
    EXPECT_OK(tt_dir_remove("ck"));
    tt_test_write("ck", "", 0);
    EXPECT_OK(tt_saver_save(s, 3, NULL, NAN));
    EXPECT_ERR(TT_EIO, tt_saver_wait(s));
    EXPECT_MESSAGE("ck");
    tt_saver_close(s);
}

/* Exit codes of the child that has a small file system to itself. */
enum { FINE, NO_MOUNT, NOT_SAVED, WRONG_ERROR, LEFT_TEMP, LOST_OLD, NOT_AGAIN };

static int on_small_disk(void)
{
    tt_saver_opts o = {"m/ck", 0, 0, entries, files, 2};
    tt_saver *s;
    tt_ckpt *c;

    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mkdir("m", 0777) || mount("tmpfs", "m", "tmpfs", 0, "size=64k"))
        return NO_MOUNT;
    tt_log_quiet(true);
    if (tt_saver_open(&o, &s) || tt_saver_save(s, 1, NULL, NAN) || tt_saver_wait(s))
        return NOT_SAVED;
    tt_test_write("m/filler", weights, sizeof weights);
    if (tt_saver_save(s, 2, NULL, NAN) || tt_saver_wait(s) != TT_EIO ||
        !strstr(tt_message(), "No space left"))
        return WRONG_ERROR;
    if (tt_file_exists("m/ck/step-00000002.tmp")) return LEFT_TEMP;
    if (mount(NULL, "m", NULL, MS_REMOUNT | MS_RDONLY, NULL)) return NO_MOUNT;
    if (tt_saver_save(s, 3, NULL, NAN) || tt_saver_wait(s) != TT_EIO ||
        !strstr(tt_message(), "Read-only"))
        return WRONG_ERROR;
    if (tt_ckpt_open("m/ck", -1, true, &c) || tt_ckpt_step(c) != 1) return LOST_OLD;
    tt_ckpt_close(c);
    if (mount(NULL, "m", NULL, MS_REMOUNT, "size=256k")) return NO_MOUNT;
    if (tt_saver_save(s, 4, NULL, NAN) || tt_saver_wait(s)) return NOT_AGAIN;
    tt_saver_close(s);
    return FINE;
}

TT_TEST(saver, a_disk_truly_full_or_read_only_is_survived)
{
    int status;
    pid_t child = fork();

    if (child == 0) _exit(on_small_disk());
    EXPECT(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_MOUNT) tt_test_skip("no right to mount a small disk");
    EXPECT_INT(FINE, WEXITSTATUS(status));
}

/* Saves until it is killed, telling through a pipe which steps are safe. */
static void save_for_ever(int64_t from, int tell)
{
    tt_saver *s = open_saver(1, 0);

    for (int64_t step = from;; step++) {
        int64_t last;
        set_state(step);
        if (tt_saver_save(s, step, NULL, NAN)) _exit(1);
        last = tt_saver_last(s);
        if (write(tell, &last, sizeof last) != sizeof last) _exit(1);
    }
}

TT_TEST(saver, killed_at_any_moment_one_checkpoint_loads)
{
    int64_t next = 1;
    tt_ckpt *c;

    for (uint64_t round = 0; round < 25; round++) {
        int64_t told = -1, last;
        int tell[2], status;
        pid_t child;
        EXPECT(!pipe(tell));
        child = fork();
        if (child == 0) save_for_ever(next, tell[1]);
        EXPECT(child > 0);
        close(tell[1]);
        while (told < next) /* at least one is safe; then anywhere in the ones after it */
            if (read(tell[0], &told, sizeof told) != sizeof told) FAIL("the child gave up");
        usleep(tt_philox(3, 0, round).v[0] % 12000);
        kill(child, SIGKILL);
        EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        while (read(tell[0], &last, sizeof last) == sizeof last) told = last;
        close(tell[0]);
        EXPECT_OK(tt_ckpt_open("ck", -1, true, &c));
        EXPECT(tt_ckpt_step(c) >= told);
        next = tt_ckpt_step(c) + 1;
        tt_ckpt_close(c);
        expect_newest(next - 1);
    }
    tt_saver_close(open_saver(1, 0));
    EXPECT_INT(0, leftovers());
}

TT_TEST(saver, what_a_dead_process_left_is_cleared_away)
{
    tt_saver_close(open_saver(1, 0));
    EXPECT_OK(tt_dir_make("ck/step-00000003.tmp"));
    tt_test_write("ck/LATEST.tmp", "step", 4);
    tt_test_write("ck/BEST.tmp", "step", 4);
    tt_test_write("ck/notes.tmp", "mine", 4);
    tt_saver_close(open_saver(1, 0));
    EXPECT_INT(1, leftovers()); /* the user's own file */
}

/* ---- several who write one ---- */

static float mine[100], theirs[50];

static tt_saver *open_part(int parts, int part, uint64_t token)
{
    static const tt_entry entry[2] = {
        {.name = "a", .type = TT_F32, .rank = 1, .shape = {100}, .data = mine, .bytes = 400},
        {.name = "b", .type = TT_F32, .rank = 1, .shape = {50}, .data = theirs, .bytes = 200}};
    static const char *const file[2] = {"optim-0.safetensors", "optim-1.safetensors"};
    tt_saver_opts o = {.folder = "pk",
                       .keep = 2,
                       .entries = &entry[part > 0],
                       .file = &file[part > 0],
                       .count = 1,
                       .parts = parts,
                       .part = part,
                       .token = token,
                       .wait_s = 0.5};
    tt_saver *s;

    EXPECT_OK(tt_saver_open(&o, &s));
    return s;
}

TT_TEST(saver, two_write_one_checkpoint)
{
    tt_saver *one = open_part(1, 0, 77), *helper = open_part(0, 1, 77);
    tt_ckpt *c;

    for (int step = 1; step <= 3; step++) {
        mine[7] = (float)step;
        theirs[7] = (float)(10 * step);
        EXPECT_OK(tt_saver_save(one, step, NULL, NAN)); /* it waits for the other */
        EXPECT_OK(tt_saver_save(helper, step, NULL, NAN));
        EXPECT_OK(tt_saver_wait(helper));
        EXPECT_OK(tt_saver_wait(one));
    }
    EXPECT_OK(tt_ckpt_open("pk", -1, true, &c));
    EXPECT_INT(3, tt_ckpt_step(c));
    EXPECT(((const float *)tt_ckpt_find(c, "a")->data)[7] == 3);
    EXPECT(((const float *)tt_ckpt_find(c, "b")->data)[7] == 30);
    tt_ckpt_close(c);
    EXPECT(!tt_file_exists("pk/step-00000003.parts"));
    tt_saver_close(helper);
    tt_saver_close(one);
}

TT_TEST(saver, a_part_that_does_not_come_or_is_of_another_world_is_not_taken)
{
    tt_saver *one, *helper = open_part(0, 1, 1);

    tt_log_quiet(true);
    theirs[0] = NAN;
    EXPECT_OK(tt_saver_save(helper, 5, NULL, NAN)); /* left by a world that died */
    EXPECT_OK(tt_saver_wait(helper));
    tt_saver_close(helper);
    one = open_part(1, 0, 2);
    EXPECT(!tt_file_exists("pk/step-00000005.parts"));
    helper = open_part(0, 1, 1);
    EXPECT_OK(tt_saver_save(helper, 6, NULL, NAN));
    EXPECT_OK(tt_saver_save(one, 6, NULL, NAN));
    EXPECT_ERR(TT_EIO, tt_saver_wait(one));
    EXPECT_MESSAGE("part 1 of 1 was not written within 0.5 s");
    EXPECT(!tt_file_exists("pk/step-00000006") && !tt_file_exists("pk/step-00000006.parts"));
    tt_saver_close(helper);
    helper = open_part(0, 1, 2);
    EXPECT_OK(tt_saver_save(one, 7, NULL, NAN));
    EXPECT_OK(tt_saver_save(helper, 7, NULL, NAN));
    EXPECT_OK(tt_saver_wait(one)); /* saved, and marked as not finite */
    theirs[0] = 0;
    tt_saver_close(helper);
    tt_saver_close(one);
    tt_log_quiet(false);
}

TT_TEST(saver, options_that_make_no_sense_are_refused)
{
    tt_entry twice[] = {entries[0], entries[0]}, wrong = entries[0];
    const char *const outside[] = {"../model.safetensors"}, *const other[] = {"model.bin"};
    tt_saver_opts good = {"ck", 1, 0, entries, files, 2}, o;
    tt_saver *s = (void *)1;

    wrong.bytes = 5;
    o = good, o.folder = "";
    EXPECT_ERR(TT_EINVAL, tt_saver_open(&o, &s));
    EXPECT(s == NULL);
    o = good, o.keep = -1;
    EXPECT_ERR(TT_EINVAL, tt_saver_open(&o, &s));
    o = good, o.best = 2;
    EXPECT_ERR(TT_EINVAL, tt_saver_open(&o, &s));
    o = good, o.count = 0;
    EXPECT_ERR(TT_EINVAL, tt_saver_open(&o, &s));
    o = good, o.entries = twice; /* in two files, but a checkpoint has one space of names */
    EXPECT_ERR(TT_EINVAL, tt_saver_open(&o, &s));
    EXPECT_MESSAGE("two tensors are named m");
    o = good, o.entries = &wrong, o.count = 1;
    EXPECT_ERR(TT_EINVAL, tt_saver_open(&o, &s));
    o = good, o.file = outside, o.count = 1;
    EXPECT_ERR(TT_EINVAL, tt_saver_open(&o, &s));
    o = good, o.file = other, o.count = 1;
    EXPECT_ERR(TT_EINVAL, tt_saver_open(&o, &s));
    EXPECT_MESSAGE("model.bin");
    EXPECT(!tt_file_exists("ck"));

    s = open_saver(1, 0);
    EXPECT_ERR(TT_EINVAL, tt_saver_save(s, -1, json_object(), NAN));
    EXPECT_ERR(TT_EINVAL, tt_saver_save(s, 1, json_array(), NAN));
    EXPECT_OK(tt_saver_wait(s));
    tt_saver_close(s);
    expect_steps("");
}
