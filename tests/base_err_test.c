/* err, mem, log. */
#define _GNU_SOURCE
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

TT_TEST(err, message_is_built_from_the_inside_out)
{
    EXPECT_INT(TT_EIO, tt_fail(TT_EIO, "open %s: %s", "weights", "no such file"));
    EXPECT_INT(TT_ECKPT, tt_context(TT_ECKPT, "resuming run %s", "r42"));
    EXPECT_STR("resuming run r42: open weights: no such file", tt_message());
}

TT_TEST(err, message_may_be_its_own_argument)
{
    tt_fail(TT_EIO, "inner");
    tt_fail(TT_EIO, "outer (%s)", tt_message());
    EXPECT_STR("outer (inner)", tt_message());
    tt_repeat(TT_EIO, tt_message());
    EXPECT_STR("outer (inner)", tt_message());
}

TT_TEST(err, a_percent_sign_in_a_repeated_message_is_harmless)
{
    EXPECT_INT(TT_EDATA, tt_repeat(TT_EDATA, "100%s of %n"));
    EXPECT_STR("100%s of %n", tt_message());
}

TT_TEST(err, an_endless_message_is_cut_and_says_so)
{
    char text[10000];

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    tt_fail(TT_EIO, "%s", text);
    EXPECT(strlen(tt_message()) > 1000);
    EXPECT_STR("...", tt_message() + strlen(tt_message()) - 3);
    for (int i = 0; i < 100; i++) tt_context(TT_EIO, "level %d", i);
    EXPECT_INT(0, strncmp(tt_message(), "level 99: level 98: ", 20));
}

static void *fail_elsewhere(void *arg)
{
    EXPECT_STR("", tt_message());
    tt_fail(TT_EIO, "theirs");
    *(char **)arg = strdup(tt_message());
    return NULL;
}

TT_TEST(err, each_thread_has_its_own_message)
{
    pthread_t thread;
    char *theirs = NULL;

    tt_fail(TT_EIO, "mine");
    EXPECT_INT(0, pthread_create(&thread, NULL, fail_elsewhere, &theirs));
    pthread_join(thread, NULL);
    EXPECT_STR("mine", tt_message());
    EXPECT_STR("theirs", theirs);
    EXPECT_INT(TT_EIO, tt_repeat(TT_EIO, theirs));
    EXPECT_STR("theirs", tt_message());
    free(theirs);
}

/* Runs fn in a child whose standard error goes to the file "stderr"; gives the wait status. */
static int in_child(void (*fn)(void))
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        int fd = open("stderr", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (fd < 0 || dup2(fd, STDERR_FILENO) < 0) _exit(9);
        fn();
        _exit(0);
    }
    EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid);
    return status;
}

static bool stderr_has(const char *part)
{
    tt_bytes b;
    bool has;

    EXPECT_OK(tt_file_read("stderr", 0, &b));
    has = memmem(b.data, b.size, part, strlen(part)) != NULL;
    tt_file_release(&b);
    return has;
}

static void assert_false(void)
{
    TT_ASSERT(1 + 1 == 3);
}

static void run_out(void)
{
    tt_arena *a = tt_arena_open(0);
    tt_arena_take(a, SIZE_MAX / 2, 8);
}

TT_TEST(err, a_broken_assertion_names_itself_and_aborts)
{
    EXPECT_INT(SIGABRT, WTERMSIG(in_child(assert_false)));
    EXPECT(stderr_has("base_err_test.c"));
    EXPECT(stderr_has("1 + 1 == 3"));
}

TT_TEST(mem, an_arena_without_memory_ends_the_program_with_a_clear_line)
{
    EXPECT_INT(SIGABRT, WTERMSIG(in_child(run_out)));
    EXPECT(stderr_has("out of memory"));
}

TT_TEST(mem, an_arena_gives_aligned_zeroed_memory)
{
    tt_arena *a = tt_arena_open(100); /* small: most of it must come from further blocks */

    for (size_t i = 0; i < 300; i++) {
        size_t align = (size_t)1 << i % 9, bytes = i * 7 % 500;
        unsigned char *p = tt_arena_take(a, bytes, align);
        EXPECT_INT(0, (uintptr_t)p % align);
        for (size_t k = 0; k < bytes; k++) EXPECT(p[k] == 0);
        memset(p, 0xAA, bytes);
    }
    tt_arena_close(a);
    tt_arena_close(NULL);
}

TT_TEST(mem, what_an_arena_hands_out_does_not_overlap)
{
    enum { N = 500 };
    tt_arena *a = tt_arena_open(0);
    unsigned char *p[N];

    for (int i = 0; i < N; i++) memset(p[i] = tt_arena_take(a, (size_t)i, 8), i & 255, (size_t)i);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < i; k++) EXPECT(p[i][k] == (i & 255));
    EXPECT(tt_arena_take(a, 0, 1) != tt_arena_take(a, 0, 1));
    tt_arena_close(a);
}

TT_TEST(mem, strings_in_an_arena)
{
    tt_arena *a = tt_arena_open(0);
    char *s = tt_arena_strdup(a, "conv1");

    EXPECT_STR("conv1.weight", tt_arena_printf(a, "%s.%s", s, "weight"));
    EXPECT_STR("", tt_arena_strdup(a, ""));
    tt_arena_close(a);
}

TT_TEST(mem, large_blocks_are_aligned_zeroed_and_fail_politely)
{
    static const size_t sizes[] = {0, 1, 4095, 2 << 20, (2 << 20) + 1, 5000000};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *p = tt_block_alloc(sizes[i]);
        EXPECT(p != NULL);
        EXPECT_INT(0, (uintptr_t)p % 64);
        for (size_t k = 0; k < sizes[i]; k++) EXPECT(p[k] == 0);
        memset(p, 1, sizes[i]);
        tt_block_free(p, sizes[i]);
    }
    tt_block_free(NULL, 10);
    EXPECT(tt_block_alloc(SIZE_MAX) == NULL);
    EXPECT(tt_block_alloc(tt_mul_size(SIZE_MAX / 2, 3)) == NULL);
    EXPECT(tt_mul_size(SIZE_MAX / 2, 3) == SIZE_MAX);
    EXPECT(tt_mul_size(6, 7) == 42);
}

static void little_room(void)
{
    long pages;
    FILE *f = fopen("/proc/self/statm", "r");
    struct rlimit limit;
    size_t room;

    if (!f || fscanf(f, "%ld", &pages) != 1) _exit(8);
    fclose(f);
    limit.rlim_cur = limit.rlim_max = (rlim_t)(pages * sysconf(_SC_PAGESIZE)) + (64 << 20);
    if (setrlimit(RLIMIT_AS, &limit)) _exit(7);
    room = tt_mem_free();
    _exit(room > 32 << 20 && room <= 64 << 20 ? 0 : 6);
}

TT_TEST(mem, what_is_free_is_what_the_machine_and_the_limits_leave)
{
    size_t room = tt_mem_free();

    EXPECT(room > 1 << 20);
    EXPECT(room <= (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE));
    EXPECT_INT(0, in_child(little_room)); /* as `ulimit -v` would */
}

static char *read_log(void)
{
    tt_bytes b;
    char *text;

    EXPECT_OK(tt_file_read("log", 0, &b));
    text = calloc(1, b.size + 1);
    memcpy(text, b.data, b.size);
    tt_file_release(&b);
    return text;
}

TT_TEST(log, lines_have_time_and_rank)
{
    char *text;

    if (getenv("TUTTI_LOG")) tt_test_skip("TUTTI_LOG is set");
    EXPECT_INT(0, tt_log_open("log"));
    tt_log_rank(3);
    tt_info("world epoch %d", 7);
    tt_log_close();
    tt_info("after the end");
    tt_log_rank(0);
    text = read_log();
    EXPECT(text[4] == '-' && text[10] == 'T' && text[23] == 'Z');
    EXPECT_INT(0, strncmp(text + 24, " rank 3 world epoch 7\n", 22));
    EXPECT(!strstr(text, "after"));
    free(text);
}

static void warn_twice(void)
{
    tt_warn("loud");
    tt_log_quiet(true);
    tt_warn("hushed\nsecond line");
}

TT_TEST(log, warnings_reach_people_unless_a_display_has_the_terminal)
{
    char *text;

    EXPECT_INT(0, tt_log_open("log"));
    EXPECT_INT(0, in_child(warn_twice));
    tt_log_close();
    EXPECT(stderr_has("tutti: warning: loud\n"));
    EXPECT(!stderr_has("hushed"));
    text = read_log();
    EXPECT(strstr(text, "warning: loud\n"));
    EXPECT(strstr(text, "warning: hushed\n    second line\n"));
    free(text);
}

TT_TEST(log, a_file_that_cannot_be_opened_is_an_errno)
{
    EXPECT(tt_log_open("no/such/folder/log") != 0);
}

TT_TEST(log, child_of_a_quiet_environment)
{
    if (!getenv("TT_LOG_CHILD")) return;
    EXPECT_INT(0, tt_log_open(getenv("TT_LOG_CHILD")));
    tt_info("bucket %d", 7);
    tt_warn("bucket %d", 8);
    tt_log_close();
}

TT_TEST(log, the_environment_keeps_lesser_lines_out)
{
    char path[4096], *text;

    if (getenv("TUTTI_LOG")) tt_test_skip("TUTTI_LOG is set");
    EXPECT(getcwd(path, sizeof path - 8) != NULL);
    strcat(path, "/log");
    setenv("TUTTI_LOG", "warn", 1);
    setenv("TT_LOG_CHILD", path, 1);
    if (fork() == 0) {
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(9);
        execl("/proc/self/exe", "test", "log child_of_a_quiet", (char *)NULL);
        _exit(9);
    }
    wait(NULL);
    unsetenv("TUTTI_LOG");
    unsetenv("TT_LOG_CHILD");
    text = read_log();
    EXPECT(!strstr(text, "bucket 7"));
    EXPECT(strstr(text, "bucket 8"));
    free(text);
}

TT_TEST(log, clocks_move_forward)
{
    double a = tt_clock_s(), b = tt_clock_s();

    EXPECT(b >= a);
    EXPECT(tt_wall_s() > 1.6e9);
}
