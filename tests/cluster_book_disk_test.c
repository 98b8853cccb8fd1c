/* The supervisor's files: what was torn never counted, and a disk that fails costs nothing if it
 * works again. */
#include "test.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cluster/inner.h"

static const char *const GO = "{\"ledger\":\"go\",\"generation\":1,\"workers\":2}\n";

static tt_book book;

static void open_book(void)
{
    EXPECT_OK(tt_book_open("r", &(tt_book_opts){"ipc://nowhere", NULL, NULL}, &book));
}

static void record_go(int generation, bool safe)
{
    tt_record r = {.kind = TT_REC_GO, .generation = (uint32_t)generation, .workers = 2};
    EXPECT(!tt_book_record(&book, &r, safe));
}

TT_TEST(book, a_torn_line_does_not_become_a_line)
{
    char text[256];

    EXPECT(!mkdir("r", 0700));
    snprintf(text, sizeof text, "%s{\"ledger\":\"fo", GO); /* the supervisor died here */
    tt_test_write("r/ledger.jsonl", text, strlen(text));
    open_book();
    EXPECT_INT(1, book.ledger.generation);
    record_go(2, true);
    tt_book_close(&book);
    for (int i = 0; i < 2; i++) { /* and the one after reads it, too */
        open_book();
        EXPECT_INT(2, book.ledger.generation);
        EXPECT_INT(2, book.generation);
        tt_book_close(&book);
    }
}

TT_TEST(book, one_supervisor_at_a_time)
{
    tt_book other;

    EXPECT(!mkdir("r", 0700));
    open_book();
    EXPECT_ERR(TT_EINVAL,
               tt_book_open("r", &(tt_book_opts){"ipc://elsewhere", NULL, NULL}, &other));
    EXPECT_MESSAGE("is being trained by process");
    tt_book_close(&other);
    tt_book_close(&book);
}

TT_TEST(book, what_a_full_disk_did_not_take_is_written_when_it_does)
{
    char news[768];

    EXPECT(!mkdir("r", 0700));
    EXPECT_OK(tt_failpoint_set("book.record=fail:28@1 book.record=fail:28@3 book.record=fail:28@4 "
                               "book.persist=fail:28@2",
                               NULL));
    open_book();
    tt_book_persist(&book, 1);
    record_go(1, false); /* fails */
    EXPECT(tt_book_news(&book, news));
    EXPECT(strstr(news, "No space left") && strstr(news, "goes on"));
    EXPECT_FILE("r/ledger.jsonl", "");
    EXPECT(tt_book_news(&book, news)); /* it has tried again */
    EXPECT_FILE("r/ledger.jsonl", GO);
    EXPECT(strstr(news, "nothing is lost"));
    EXPECT(!tt_book_news(&book, news));

    tt_book_persist(&book, 2); /* fails */
    record_go(2, true);        /* fails, too */
    EXPECT(tt_book_news(&book, news) && strstr(news, "r/generation"));
    EXPECT_FILE("r/generation", "1\n");
    book.tried = 0;
    EXPECT(!tt_book_news(&book, news)); /* told once; and of the two only one works again */
    EXPECT_FILE("r/generation", "2\n");
    EXPECT_FILE("r/ledger.jsonl", GO);
    record_go(3, true);
    EXPECT(tt_book_news(&book, news) && strstr(news, "nothing is lost"));
    tt_book_close(&book);
    EXPECT_OK(tt_failpoint_set(NULL, NULL));
    open_book();
    EXPECT_INT(3, book.ledger.generation);
    EXPECT_INT(0, book.ledger.bad);
    tt_book_close(&book);
}
