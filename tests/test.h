/* test: a test tells a story. TT_TEST(journal, torn_last_line_is_forgotten) { ... EXPECT_OK(...); }
 *
 * Tests register themselves; the program runs those whose "group name" contains an argument given,
 * each in an empty temporary folder of its own (the current directory), and ends with
 * "N passed, N failed, N skipped". */
#ifndef TT_TEST_H
#define TT_TEST_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* Is every access checked? Then what only takes time, and reads and writes nothing else, is left out. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TT_TEST_SLOW 1
#else
#define TT_TEST_SLOW 0
#endif

typedef struct tt_test {
    const char *group, *name;
    void (*fn)(void);
    struct tt_test *next;
} tt_test;
void tt_test_add(tt_test *t);
void tt_test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void tt_test_stop(void); /* leaves the test that failed */
_Noreturn void tt_test_skip(const char *why);

#define TT_TEST(group_, name_)                                                                     \
    static void group_##_##name_(void);                                                            \
    __attribute__((constructor)) static void add_##group_##_##name_(void)                          \
    {                                                                                              \
        static tt_test t = {#group_, #name_, group_##_##name_, NULL};                              \
        tt_test_add(&t);                                                                           \
    }                                                                                              \
    static void group_##_##name_(void)

/* A failed expectation ends its test. */
#define FAIL(...)    (tt_test_fail(__FILE__, __LINE__, __VA_ARGS__), tt_test_stop())
#define EXPECT(cond) ((cond) ? (void)0 : FAIL("expected %s", #cond))
#define EXPECT_OK(call)                                                                            \
    do {                                                                                           \
        tt_err e_ = (call);                                                                        \
        if (e_) FAIL("%s: error %d: %s", #call, e_, tt_message());                                 \
    } while (0)
#define EXPECT_ERR(code, call)                                                                     \
    do {                                                                                           \
        tt_err e_ = (call);                                                                        \
        if (e_ != (code)) FAIL("%s: got %d, wanted %s: %s", #call, e_, #code, tt_message());       \
    } while (0)
#define EXPECT_INT(want, got)                                                                      \
    do {                                                                                           \
        long long w_ = (want), g_ = (got);                                                         \
        if (w_ != g_) FAIL("%s: got %lld, wanted %lld", #got, g_, w_);                             \
    } while (0)
#define EXPECT_STR(want, got)                                                                      \
    do {                                                                                           \
        const char *w_ = (want), *g_ = (got);                                                      \
        if (!g_ || strcmp(w_, g_)) FAIL("%s: got\n%s\nwanted\n%s", #got, g_ ? g_ : "(null)", w_);  \
    } while (0)
#define EXPECT_NEAR(want, got, tol)                                                                \
    do {                                                                                           \
        double w_ = (want), g_ = (got);                                                            \
        if (!(fabs(w_ - g_) <= (tol))) FAIL("%s: got %.9g, wanted %.9g", #got, g_, w_);            \
    } while (0)
#define EXPECT_MESSAGE(part)                                                                       \
    (strstr(tt_message(), (part)) ? (void)0                                                        \
                                  : FAIL("message \"%s\" lacks \"%s\"", tt_message(), (part)))
#define EXPECT_FILE(path, want) tt_test_file(__FILE__, __LINE__, path, want, strlen(want))
void tt_test_file(const char *file, int line, const char *path, const char *want, size_t size);
void tt_test_write(const char *path, const void *data, size_t size);

/* The folder of real datasets ($TUTTI_DATA, else ../shared/data beside the project); skips if
 * absent. */
const char *tt_test_data(const char *name);

/* A file of the project, "tests/golden/x.txt": tests leave the folder they were started in, which
 * must be the project's. Valid until the next call. */
const char *tt_test_source(const char *path);

/* A sample of so many features, labels and targets. */
#define ROW(features_, labels_, targets_) (&(tt_row){features_, 0, labels_, targets_})

/* A line of a journal: LINE(j, 1, "train", {"loss", 0.5}, {"lr", 0.1}). */
#define LINE(j_, step_, split_, ...)                                                               \
    tt_journal_line(j_, step_, split_, (const tt_field[]){__VA_ARGS__},                            \
                    (int)(sizeof((const tt_field[]){__VA_ARGS__}) / sizeof(tt_field)))

#endif
