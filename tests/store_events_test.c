/* TensorBoard events: golden bytes, checked against TensorBoard's own reader when they were made.
 */
#define _GNU_SOURCE
#include "test.h"

#include <sys/resource.h>
#include <signal.h>
#include <unistd.h>

#include "store/inner.h"

static void expect_hex(const char *want, const uint8_t *got, size_t size)
{
    char hex[512] = "";

    for (size_t i = 0; i < size && i < 255; i++) sprintf(hex + 2 * i, "%02x", got[i]);
    EXPECT_STR(want, hex);
}

TT_TEST(events, records_are_the_golden_bytes)
{
    uint8_t out[256];

    expect_hex("1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d",
               out, tt_event_version(out, sizeof out, 1700000000));
    expect_hex("200000000000000029eda9500900004040fc54d94110012a130a110a0a747261696e2f6c6f73731500"
               "00003f34d0099c",
               out, tt_event_scalar(out, sizeof out, 1700000001, 1, "train/loss", 0.5f));
}

TT_TEST(events, a_record_that_does_not_fit_writes_nothing)
{
    uint8_t out[256] = {0};

    EXPECT_INT(0, tt_event_scalar(out, 40, 1700000001, 1, "train/loss", 0.5f));
    EXPECT_INT(0, tt_event_version(out, 20, 1700000001));
    EXPECT_INT(0, out[0]);
}

/* The one event file of a folder, read whole. */
static size_t read_events(const char *folder, uint8_t *out, size_t room)
{
    char **names, path[4096];
    int count;
    FILE *f;
    size_t n;

    EXPECT_OK(tt_dir_list(folder, &names, &count));
    EXPECT_INT(1, count);
    EXPECT(!strncmp(names[0], "events.out.tfevents.1", 21));
    snprintf(path, sizeof path, "%s/%s", folder, names[0]);
    tt_dir_free(names, count);
    EXPECT((f = fopen(path, "rb")) != NULL);
    n = fread(out, 1, room, f);
    fclose(f);
    return n;
}

static uint64_t record_size(const uint8_t *p)
{
    uint64_t n;
    memcpy(&n, p, 8);
    return n + 16;
}

TT_TEST(events, a_file_begins_with_its_version_and_waits_for_a_flush)
{
    uint8_t bytes[4096];
    tt_events *e;
    double wall;
    float value;

    EXPECT_OK(tt_events_open("logs/run", &e));
    EXPECT_INT(40, read_events("logs/run", bytes, sizeof bytes));
    EXPECT(!memcmp(bytes + 23, "brain.Event:2", 13));
    EXPECT_OK(tt_events_scalar(e, 1, "train/loss", 0.5));
    EXPECT_INT(40, read_events("logs/run", bytes, sizeof bytes));
    EXPECT_OK(tt_events_flush(e));
    EXPECT_INT(40 + 48, read_events("logs/run", bytes, sizeof bytes));
    memcpy(&wall, bytes + 40 + 13, 8);
    EXPECT_NEAR(tt_wall_s(), wall, 60);
    EXPECT(!memcmp(bytes + 40 + 29, "train/loss", 10));
    memcpy(&value, bytes + 40 + 40, 4);
    EXPECT_NEAR(0.5, value, 0);
    EXPECT_OK(tt_events_scalar(e, -1, "x", NAN));
    tt_events_close(e); /* writes what is left */
    EXPECT_INT(40 + 48 + 48, read_events("logs/run", bytes, sizeof bytes));
    tt_events_close(NULL);
}

TT_TEST(events, a_full_buffer_is_written_and_no_record_is_lost)
{
    static uint8_t bytes[1 << 20];
    tt_events *e;
    size_t size, at, records = 0;

    EXPECT_OK(tt_events_open("logs", &e));
    for (int i = 0; i < 5000; i++) EXPECT_OK(tt_events_scalar(e, i, "val/accuracy", i));
    EXPECT(read_events("logs", bytes, sizeof bytes) > 3 * 60000);
    tt_events_close(e);
    size = read_events("logs", bytes, sizeof bytes);
    for (at = 0; at < size; at += record_size(bytes + at)) records++;
    EXPECT_INT(size, at);
    EXPECT_INT(5001, records);
}

TT_TEST(events, who_comes_after_goes_on_in_the_same_file_after_its_last_whole_record)
{
    static uint8_t bytes[4096];
    static const size_t torn[] = {0, 3, 12, 30, 47};
    char **names, path[4096] = "";
    tt_events *e;
    size_t size = 40;

    for (int i = 0; i < TT_COUNT(torn); i++) {
        int count;
        FILE *f;
        EXPECT_OK(tt_events_open("logs", &e));
        EXPECT_OK(tt_events_scalar(e, i, "train/loss", i));
        tt_events_close(e);
        size += 48;
        EXPECT_INT(size, read_events("logs", bytes, sizeof bytes));
        EXPECT_INT(48, record_size(bytes + size - 48));
        EXPECT_OK(tt_dir_list("logs", &names, &count));
        snprintf(path, sizeof path, "logs/%s", names[0]);
        tt_dir_free(names, count);
        EXPECT((f = fopen(path, "ab")) && fwrite(bytes + 40, 1, torn[i], f) == torn[i]);
        EXPECT(!fclose(f)); /* killed there */
    }
    EXPECT_OK(tt_events_open("logs", &e));
    tt_events_close(e);
    EXPECT_INT(size, read_events("logs", bytes, sizeof bytes));
    /* The data of the last record is none. */
    EXPECT(!truncate(path, (off_t)size - 10) && !truncate(path, (off_t)size));
    EXPECT_OK(tt_events_open("logs", &e));
    tt_events_close(e);
    EXPECT_INT(size - 48, read_events("logs", bytes, sizeof bytes));
}

TT_TEST(events, a_file_that_is_none_is_left_as_it_is)
{
    tt_events *e;
    char **names;
    int count;

    EXPECT_OK(tt_dir_make("logs"));
    tt_test_write("logs/events.out.tfevents.0000000001.a.1.0", "nonsense of some length", 23);
    EXPECT_OK(tt_events_open("logs", &e));
    tt_events_close(e);
    EXPECT_OK(tt_dir_list("logs", &names, &count));
    EXPECT_INT(2, count);
    tt_dir_free(names, count);
    EXPECT_FILE("logs/events.out.tfevents.0000000001.a.1.0", "nonsense of some length");
}

TT_TEST(events, two_writers_of_one_process_get_two_files)
{
    tt_events *a, *b;
    char **names;
    int count;

    EXPECT_OK(tt_events_open("logs", &a));
    EXPECT_OK(tt_events_open("logs", &b));
    EXPECT_OK(tt_dir_list("logs", &names, &count));
    EXPECT_INT(2, count);
    tt_dir_free(names, count);
    tt_events_close(a);
    tt_events_close(b);
}

TT_TEST(events, bad_tags_and_folders_are_refused)
{
    char tag[2000];
    tt_events *e;

    memset(tag, 'x', sizeof tag - 1);
    tag[sizeof tag - 1] = 0;
    EXPECT_OK(tt_events_open("logs", &e));
    EXPECT_ERR(TT_EINVAL, tt_events_scalar(e, 1, tag, 1));
    EXPECT_ERR(TT_EINVAL, tt_events_scalar(e, 1, "", 1));
    tt_events_close(e);
    tt_test_write("file", "", 0);
    EXPECT_ERR(TT_EIO, tt_events_open("file", &e));
    EXPECT(e == NULL);
}

TT_TEST(events, what_a_full_disk_refused_is_written_later)
{
    static uint8_t bytes[4096];
    struct rlimit small = {100, RLIM_INFINITY}, before;
    tt_events *e;
    size_t size, at, records = 0;
    tt_err err;

    EXPECT_OK(tt_events_open("logs", &e));
    for (int i = 0; i < 5; i++) EXPECT_OK(tt_events_scalar(e, i, "train/loss", i));
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    err = tt_events_flush(e);
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_INT(TT_EIO, err);
    EXPECT_MESSAGE("events.out.tfevents");
    EXPECT_INT(100, read_events("logs", bytes, sizeof bytes)); /* half a record: a reader waits */
    tt_events_close(e);
    size = read_events("logs", bytes, sizeof bytes);
    for (at = 0; at < size; at += record_size(bytes + at)) records++;
    EXPECT_INT(size, at);
    EXPECT_INT(6, records);
}
