/* Tables: rows come into being as they are changed, and a step can be taken back, wherever the
 * process that made it was killed. */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/table.h"
#include "test.h"

enum { ROWS = 1000, FLOATS = 6, MOST = 64 };
static const tt_table_shape shape = {.rows = ROWS, .floats = FLOATS, .parts = 2, .most = MOST};

static void put(tt_table *t, int part, int32_t row, float value)
{
    bool fresh;
    EXPECT_OK(tt_table_reserve(t, part, &row, 1));
    float *r = tt_table_change(t, part, row, &fresh);
    for (int i = 0; i < FLOATS; i++) r[i] = value + (float)i;
}

static bool is(const tt_table *t, int64_t row, float value)
{
    const float *r = tt_table_look(t, row);
    for (int i = 0; r && i < FLOATS; i++)
        if (r[i] != value + (float)i) return false;
    return r != NULL;
}

TT_TEST(table, rows_are_there_once_they_were_changed)
{
    tt_table *t;
    bool fresh;

    EXPECT_OK(tt_table_open(NULL, &shape, 1, &t));
    EXPECT(!tt_table_look(t, 0) && tt_table_next(t, 0) < 0 && tt_table_step(t) < 0);
    tt_table_begin(t, 0);
    put(t, 0, 3, 10);
    put(t, 1, 999, 20);
    put(t, 1, 64, 30);
    EXPECT(is(t, 3, 10) && is(t, 999, 20) && is(t, 64, 30) && !tt_table_look(t, 4));
    EXPECT_INT(3, tt_table_count(t));
    EXPECT_INT(3, tt_table_next(t, 0));
    EXPECT_INT(64, tt_table_next(t, 4));
    EXPECT_INT(999, tt_table_next(t, 65));
    EXPECT_INT(-1, tt_table_next(t, 1000));
    tt_table_begin(t, 1);
    int32_t row = 5;
    EXPECT_OK(tt_table_reserve(t, 0, &row, 1));
    float *r = tt_table_change(t, 0, 5, &fresh);
    EXPECT(fresh && r[0] == 0 && r[FLOATS - 1] == 0);
    row = 3;
    EXPECT_OK(tt_table_reserve(t, 0, &row, 1));
    tt_table_change(t, 0, 3, &fresh);
    EXPECT(!fresh);
    tt_table_close(t);
}

TT_TEST(table, the_last_step_can_be_taken_back)
{
    tt_table *t;
    uint64_t hash;

    EXPECT_OK(tt_table_open("table", &shape, 1, &t));
    tt_table_begin(t, 0);
    put(t, 0, 1, 1);
    put(t, 1, 2, 2);
    hash = tt_table_hash(t);
    tt_table_begin(t, 1);
    put(t, 0, 1, 100);
    put(t, 1, 700, 200);
    EXPECT(hash != tt_table_hash(t));
    EXPECT_INT(1, tt_table_step(t));
    tt_table_close(t);
    EXPECT_OK(tt_table_open("table", &shape, 1, &t)); /* by another process */
    EXPECT(is(t, 1, 100) && tt_table_step(t) == 1);
    tt_table_back(t);
    EXPECT(is(t, 1, 1) && is(t, 2, 2) && !tt_table_look(t, 700) && tt_table_step(t) == -1);
    EXPECT(hash == tt_table_hash(t));
    tt_table_back(t); /* there is nothing left to take back */
    EXPECT(hash == tt_table_hash(t));
    tt_table_close(t);
}

TT_TEST(table, one_of_another_key_or_shape_is_made_new)
{
    tt_table_shape other = shape;
    tt_table *t;

    EXPECT_OK(tt_table_open("table", &shape, 1, &t));
    tt_table_begin(t, 0);
    put(t, 0, 1, 1);
    tt_table_close(t);
    EXPECT_OK(tt_table_open("table", &shape, 2, &t));
    EXPECT(!tt_table_look(t, 1) && tt_table_step(t) < 0);
    tt_table_begin(t, 0);
    put(t, 0, 1, 1);
    tt_table_close(t);
    other.floats++;
    EXPECT_OK(tt_table_open("table", &other, 2, &t));
    EXPECT(!tt_table_look(t, 1));
    tt_table_close(t);
    EXPECT_ERR(TT_EINVAL, tt_table_open(NULL, &(tt_table_shape){0}, 1, &t));
}

/* Of none, while it is filled; not of the step before the first, which there is not. */
TT_TEST(table, one_that_is_being_filled_is_of_no_step)
{
    tt_table *t, *seen;

    EXPECT_OK(tt_table_open("table", &shape, 1, &t));
    EXPECT_INT(-1, tt_table_at(t));
    EXPECT_ERR(TT_EPEER, tt_table_peek("table", &shape, 1, 0, &seen));
    tt_table_settle(t, 0);
    EXPECT_OK(tt_table_peek("table", &shape, 1, 0, &seen));
    tt_table_close(seen);
    tt_table_clear(t);
    EXPECT_ERR(TT_EPEER, tt_table_peek("table", &shape, 1, 0, &seen));
    tt_table_close(t);
}

TT_TEST(table, what_was_never_written_takes_no_memory)
{
    tt_table_shape large = {.rows = 50000000, .floats = 32, .parts = 1, .most = MOST};
    struct stat st;
    tt_table *t;

    EXPECT_OK(tt_table_open("table", &large, 1, &t));
    tt_table_begin(t, 0);
    for (int32_t i = 0; i < 8; i++) {
        bool fresh;
        int32_t row = i * 6000000;
        EXPECT_OK(tt_table_reserve(t, 0, &row, 1));
        tt_table_change(t, 0, row, &fresh)[0] = 1;
    }
    for (int64_t i = 0; i < large.rows; i += 12345) tt_table_look(t, i);
    EXPECT_INT(8, tt_table_count(t));
    EXPECT(!stat("table", &st));
    if (st.st_blocks * 512 > 64 << 20)
        FAIL("8 rows take %lld bytes", (long long)st.st_blocks * 512);
    tt_table_close(t);
    EXPECT(!unlink("table"));
}

/* The flags that the kernel has of a mapping of so many kilobytes, at least. */
static void flags_of(long long kb, char *out, size_t size)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    long long is = 0;

    *out = 0;
    EXPECT(f != NULL);
    while (fgets(line, sizeof line, f)) {
        sscanf(line, "Size: %lld kB", &is);
        if (is >= kb && !strncmp(line, "VmFlags:", 8)) snprintf(out, size, "%s", line);
    }
    fclose(f);
}

/* Where the kernel gives huge pages to all who do not say no, a row would take one. */
TT_TEST(table, one_that_memory_cannot_hold_has_no_huge_pages)
{
    tt_table_shape large = {.floats = 64, .parts = 1, .most = MOST};
    char flags[512];
    tt_table *t;

    large.rows = (int64_t)(tt_mem_free() / 256);
    EXPECT_OK(tt_table_open(NULL, &large, 1, &t));
    flags_of((long long)large.rows / 4, flags, sizeof flags);
    tt_table_close(t);
    if (!*flags) tt_test_skip("the kernel does not tell");
    EXPECT(strstr(flags, " nh") != NULL);
}

TT_TEST(table, more_rows_than_were_said_are_an_error)
{
    int32_t rows[MOST + 1];
    tt_table *t;

    for (int i = 0; i <= MOST; i++) rows[i] = i;
    EXPECT_OK(tt_table_open(NULL, &shape, 1, &t));
    tt_table_begin(t, 0);
    EXPECT_OK(tt_table_reserve(t, 0, rows, MOST));
    EXPECT_ERR(TT_ENOMEM, tt_table_reserve(t, 0, rows, MOST + 1));
    tt_table_close(t);
}

/* Changes rows for ever, one step after the other: every row that a step changes says which it was.
 */
static void change_for_ever(void)
{
    tt_table *t;

    if (tt_table_open("table", &shape, 1, &t)) _exit(1);
    for (int64_t step = tt_table_step(t) + 1;; step++) {
        tt_table_begin(t, step);
        for (int i = 0; i < 20; i++) {
            int32_t row = (int32_t)((step * 37 + i * 41) % ROWS);
            bool fresh;
            if (tt_table_reserve(t, i % 2, &row, 1)) _exit(1);
            float *r = tt_table_change(t, i % 2, row, &fresh);
            for (int k = 0; k < FLOATS; k++) r[k] = (float)step;
        }
    }
}

/* As a table must be after that step: what the steps wrote, one after the other. */
static void replay(float (*row)[FLOATS], bool *there, int64_t last)
{
    memset(there, 0, ROWS);
    for (int64_t step = 0; step <= last; step++)
        for (int i = 0; i < 20; i++) {
            int64_t r = (step * 37 + i * 41) % ROWS;
            there[r] = true;
            for (int k = 0; k < FLOATS; k++) row[r][k] = (float)step;
        }
}

TT_TEST(table, killed_anywhere_it_can_be_taken_back_to_the_step_before)
{
    static float row[ROWS][FLOATS];
    static bool there[ROWS];

    for (int n = 0; n < 40; n++) {
        pid_t pid = fork();
        tt_table *t;
        if (!pid) change_for_ever();
        usleep((useconds_t)(1000 + n * 331 % 5000));
        EXPECT(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
        EXPECT_OK(tt_table_open("table", &shape, 1, &t));
        int64_t step = tt_table_step(t), last = step - 1;
        tt_table_back(t);
        /* Between two steps it has none, and is as the last one left it. */
        for (int r = 0; r < ROWS && step < 0; r++)
            if (tt_table_look(t, r) && tt_table_look(t, r)[0] > last)
                last = (int64_t)tt_table_look(t, r)[0];
        replay(row, there, last);
        for (int r = 0; r < ROWS; r++) {
            const float *have = tt_table_look(t, r);
            EXPECT(!have == !there[r]);
            if (have && memcmp(have, row[r], sizeof row[r]))
                FAIL("kill %d: row %d is of step %g, not %g", n, r, have[0], row[r][0]);
        }
        tt_table_close(t);
        EXPECT(!unlink("table"));
    }
}
