/* Who has a run, and what becomes of the book of the one who had it before. */
#define _GNU_SOURCE
#include <sys/file.h>
#include <unistd.h>
#include <fcntl.h>

#include "cluster/inner.h"
#include "test.h"

static tt_book a, b;

static tt_record go(int generation)
{
    return (tt_record){.kind = TT_REC_GO, .generation = (uint32_t)generation, .workers = 2};
}

static void expect_ledger(int lines, uint32_t generation)
{
    tt_bytes text = {0};
    tt_ledger l = {0};
    int count = 0;

    EXPECT_OK(tt_file_read("r/ledger.jsonl", 0, &text));
    EXPECT_OK(tt_ledger_read(&l, (const char *)text.data, text.size));
    for (size_t i = 0; i < text.size; i++) count += ((const char *)text.data)[i] == '\n';
    tt_file_release(&text);
    EXPECT_INT(lines, count);
    EXPECT_INT(generation, l.generation);
    EXPECT(!l.bad);
}

TT_TEST(book, a_run_that_somebody_has_is_refused)
{
    EXPECT_OK(tt_dir_make("r"));
    EXPECT_OK(tt_book_open("r", &(tt_book_opts){"ipc://x", NULL, NULL}, &a));
    EXPECT_ERR(TT_EINVAL, tt_book_open("r", &(tt_book_opts){"ipc://y", NULL, NULL}, &b));
    EXPECT_MESSAGE("is being trained by process");
    tt_book_close(&b);
    /* who has it from nobody, or from another coordinator, is not deposed */
    EXPECT_ERR(TT_EINVAL, tt_book_open("r", &(tt_book_opts){"ipc://y", NULL, "77"}, &b));
    tt_book_close(&b);
    tt_book_close(&a);
    EXPECT_OK(tt_book_open("r", &(tt_book_opts){"ipc://x", NULL, "78"}, &a));
    EXPECT_ERR(TT_EINVAL, tt_book_open("r", &(tt_book_opts){"ipc://y", NULL, "77"}, &b));
    EXPECT_MESSAGE("is being trained by process");
    tt_book_close(&b);
    EXPECT_ERR(TT_EINVAL, tt_book_open("r", &(tt_book_opts){"ipc://y", NULL, NULL}, &b));
    tt_book_close(&b);
    tt_book_close(&a);
    EXPECT_OK(tt_book_open("r", &(tt_book_opts){"ipc://y", NULL, NULL}, &b));
    tt_book_close(&b);
}

TT_TEST(book, who_was_deposed_writes_into_nothing)
{
    EXPECT_OK(tt_dir_make("r"));
    EXPECT_OK(tt_book_open("r", &(tt_book_opts){"ipc://x", NULL, "77"}, &a));
    tt_book_persist(&a, 1);
    EXPECT(
        !tt_book_record(&a, &(tt_record){.kind = TT_REC_GO, .generation = 1, .workers = 2}, true));
    int world = open("r/lock", O_RDWR | O_CREAT, 0666); /* its rank 0 is stopped, too */
    EXPECT(world >= 0 && !flock(world, LOCK_EX));

    EXPECT_OK(tt_book_open("r", &(tt_book_opts){"ipc://y", NULL, "77"}, &b));
    EXPECT_INT(1, b.generation);
    tt_record two = go(2), late = go(1);
    EXPECT(!tt_book_record(&b, &two, true));
    tt_book_record(&a, &late, true); /* it wakes up in the middle of this */
    expect_ledger(2, 2);
    EXPECT(!tt_file_exists("r/lock")); /* free for the world that comes */
    tt_book_close(&a);                 /* nor does its end free the run */
    EXPECT_ERR(TT_EINVAL, tt_book_open("r", &(tt_book_opts){"ipc://x", NULL, NULL}, &a));
    tt_book_close(&a);
    tt_book_close(&b);
    close(world);
}

TT_TEST(book, a_lock_of_a_run_that_nobody_was_deposed_of_stays)
{
    EXPECT_OK(tt_dir_make("r"));
    int world = open("r/lock", O_RDWR | O_CREAT, 0666); /* a run of one process */
    EXPECT(world >= 0 && !flock(world, LOCK_EX));
    EXPECT_OK(tt_book_open("r", &(tt_book_opts){"ipc://x", NULL, "77"}, &a));
    EXPECT(tt_file_exists("r/lock"));
    tt_book_close(&a);
    close(world);
}
