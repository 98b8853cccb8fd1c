#define _GNU_SOURCE
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

/* In place of the C library's: keeps account of what was synced. */
static char synced[4096];

int fsync(int fd)
{
    char link[64], path[PATH_MAX];
    ssize_t n;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    if (n > 0 && strlen(synced) + (size_t)n + 2 < sizeof synced) {
        path[n] = 0;
        strcat(synced, strrchr(path, '/'));
        strcat(synced, " ");
    }
    return (int)syscall(SYS_fsync, fd);
}

static void write_text(const char *path, const char *text)
{
    tt_test_write(path, text, strlen(text));
}

/* `size` bytes as a gzip member, appended to `out`. */
static void pack(const void *data, size_t size, tt_str *out)
{
    z_stream z = {0};
    size_t room;
    unsigned char *to;

    EXPECT_INT(Z_OK, deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY));
    room = deflateBound(&z, size);
    to = malloc(room);
    z.next_in = (Bytef *)data;
    z.avail_in = (uInt)size;
    z.next_out = to;
    z.avail_out = (uInt)room;
    EXPECT_INT(Z_STREAM_END, deflate(&z, Z_FINISH));
    tt_str_put(out, to, room - z.avail_out);
    deflateEnd(&z);
    free(to);
}

TT_TEST(file, a_plain_file_is_mapped)
{
    tt_bytes b;

    write_text("f", "hello");
    EXPECT_OK(tt_file_read("f", 5, &b));
    EXPECT(b.mapped && b.size == 5 && !memcmp(b.data, "hello", 5));
    tt_file_release(&b);
    EXPECT(!b.data);
    tt_file_release(&b);
}

TT_TEST(file, an_empty_file_is_fine)
{
    tt_bytes b;

    write_text("f", "");
    EXPECT_OK(tt_file_read("f", 1, &b));
    EXPECT_INT(0, b.size);
    tt_file_release(&b);
}

TT_TEST(file, a_file_of_unknown_size_is_read_to_its_end)
{
    tt_bytes b;

    EXPECT_OK(tt_file_read("/proc/self/status", 0, &b));
    EXPECT(b.size > 100 && memmem(b.data, b.size, "Threads:", 8));
    tt_file_release(&b);
    EXPECT_ERR(TT_EFORMAT, tt_file_read("/proc/self/status", 20, &b));
}

TT_TEST(file, what_cannot_be_read_is_named)
{
    tt_bytes b;

    EXPECT_ERR(TT_EIO, tt_file_read("nowhere", 0, &b));
    EXPECT_MESSAGE("nowhere: No such file");
    EXPECT_ERR(TT_EIO, tt_file_read(".", 0, &b));
    EXPECT_MESSAGE("directory");
    write_text("f", "123456");
    EXPECT_ERR(TT_EFORMAT, tt_file_read("f", 5, &b));
    EXPECT_MESSAGE("f: ");
    EXPECT(!b.data);
}

TT_TEST(file, gzip_is_inflated_member_after_member)
{
    tt_str packed = {0};
    tt_bytes b;
    char *text = malloc(300000);

    for (int i = 0; i < 300000; i++) text[i] = (char)(i * 7919L >> 5);
    pack(text, 300000, &packed);
    pack("tail", 4, &packed);
    tt_str_put(&packed, "\0\0\0", 3); /* padding */
    tt_test_write("f.gz", packed.data, packed.size);
    EXPECT_OK(tt_file_read("f.gz", 300004, &b));
    EXPECT(!b.mapped && b.size == 300004 && !memcmp(b.data, text, 300000) &&
           !memcmp(b.data + 300000, "tail", 4));
    tt_file_release(&b);
    EXPECT_ERR(TT_EFORMAT, tt_file_read("f.gz", 300003, &b));
    tt_str_free(&packed);
    free(text);
}

TT_TEST(file, a_gzip_bomb_stops_at_the_bound)
{
    tt_str packed = {0};
    tt_bytes b;
    char *zeros = calloc(1, 20 << 20);

    pack(zeros, 20 << 20, &packed);
    tt_test_write("bomb", packed.data, packed.size);
    EXPECT_ERR(TT_EFORMAT, tt_file_read("bomb", 1 << 20, &b));
    EXPECT_MESSAGE("1048576");
    tt_str_free(&packed);
    free(zeros);
}

/* A made-up format: a content begins with its size in decimal. */
static size_t told_size(const uint8_t *head, size_t size)
{
    char text[16] = "";

    memcpy(text, head, size < 15 ? size : 15);
    return (size_t)atol(text);
}

TT_TEST(file, a_data_file_holds_what_its_head_announces)
{
    tt_str packed = {0};
    tt_bytes b;
    char *text = calloc(1, 100001);

    memset(text, 'x', 100000);
    memcpy(text, "100000 ", 7);
    pack(text, 100000, &packed);
    tt_test_write("f.gz", packed.data, packed.size);
    EXPECT_OK(tt_file_read_data("f.gz", told_size, &b));
    EXPECT(b.size == 100000 && !memcmp(b.data, text, b.size));
    tt_file_release(&b);
    EXPECT_OK(tt_file_read_data("f.gz", NULL, &b));
    EXPECT_INT(100000, b.size);
    tt_file_release(&b);

    packed.size = 0;
    memcpy(text, "099999 ", 7); /* one byte more than announced */
    pack(text, 100000, &packed);
    tt_test_write("f.gz", packed.data, packed.size);
    EXPECT_ERR(TT_EFORMAT, tt_file_read_data("f.gz", told_size, &b));
    EXPECT_MESSAGE("f.gz: its content is larger than the 99999 bytes its header announces");
    EXPECT(!b.data);

    packed.size = 0;
    memcpy(text, "99999999999999 ", 15); /* what no machine holds is not tried */
    pack(text, 100000, &packed);
    tt_test_write("f.gz", packed.data, packed.size);
    EXPECT_ERR(TT_EFORMAT, tt_file_read_data("f.gz", told_size, &b));
    EXPECT_MESSAGE("announces 99999999999999 bytes, more than the");

    packed.size = 0;
    memcpy(text, "200000 ", 7); /* less: the reader of the format will say what is missing */
    pack(text, 100000, &packed);
    tt_test_write("f.gz", packed.data, packed.size);
    EXPECT_OK(tt_file_read_data("f.gz", told_size, &b));
    EXPECT_INT(100000, b.size);
    tt_file_release(&b);
    tt_test_write("cut.gz", packed.data, packed.size / 2);
    EXPECT_ERR(TT_EFORMAT, tt_file_read_data("cut.gz", told_size, &b));
    EXPECT_MESSAGE("ends early");
    tt_str_free(&packed);
    free(text);
}

TT_TEST(file, only_a_regular_file_holds_data)
{
    tt_bytes b;

    EXPECT_ERR(TT_EFORMAT, tt_file_read_data("/dev/zero", NULL, &b)); /* it would never end */
    EXPECT_MESSAGE("/dev/zero is no regular file");
    EXPECT_INT(0, mkfifo("pipe", 0666));
    EXPECT_ERR(TT_EFORMAT, tt_file_read_data("pipe", NULL, &b)); /* nobody writes to it */
    EXPECT_ERR(TT_EIO, tt_file_read_data(".", NULL, &b));
    EXPECT_ERR(TT_EIO, tt_file_read_data("nowhere", NULL, &b));
    write_text("f", "hello");
    EXPECT_OK(tt_file_read_data("f", NULL, &b));
    EXPECT(b.mapped && b.size == 5);
    tt_file_release(&b);
    write_text("f", "");
    EXPECT_OK(tt_file_read_data("f", NULL, &b));
    EXPECT_INT(0, b.size);
    tt_file_release(&b);
}

/* 0 if reading the bombs with 64 MB left to take says that they are too large. */
static int read_bomb(void)
{
    long pages;
    FILE *f = fopen("/proc/self/statm", "r");
    struct rlimit limit;
    tt_bytes b;

    if (!f || fscanf(f, "%ld", &pages) != 1) return 8;
    fclose(f);
    limit.rlim_cur = limit.rlim_max = (rlim_t)(pages * sysconf(_SC_PAGESIZE)) + (64 << 20);
    if (setrlimit(RLIMIT_AS, &limit)) return 7;
    if (tt_file_read_data("bomb", NULL, &b) != TT_EFORMAT) return 6;
    if (!strstr(tt_message(), "of memory that are free")) return 5;
    return tt_file_read_data("liar", NULL, &b) == TT_ENOMEM ? 0 : 4;
}

TT_TEST(file, a_gzip_bomb_stops_where_memory_does)
{
    tt_str packed = {0};
    char *zeros = calloc(1, 100 << 20);
    int status;
    pid_t pid;

#ifdef __SANITIZE_ADDRESS__
    free(zeros);
    tt_test_skip("the address sanitizer needs all addresses for itself");
#endif
    pack(zeros, 100 << 20, &packed);
    tt_test_write("bomb", packed.data, packed.size);
    memset(packed.data + packed.size - 4, 0, 4); /* of its size */
    tt_test_write("liar", packed.data, packed.size);
    tt_str_free(&packed);
    free(zeros);
    if ((pid = fork()) == 0) _exit(read_bomb());
    EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid);
    EXPECT_INT(0, status);
}

TT_TEST(file, broken_gzip_is_told_with_its_offset_wherever_it_breaks)
{
    tt_str packed = {0};
    tt_bytes b;
    char *bad;

    pack("some text that is packed, some text that is packed", 50, &packed);
    for (size_t cut = 2; cut < packed.size; cut++) {
        tt_test_write("cut", packed.data, cut);
        EXPECT_ERR(TT_EFORMAT, tt_file_read("cut", 0, &b));
        EXPECT_MESSAGE("byte");
    }
    bad = malloc(packed.size);
    memcpy(bad, packed.data, packed.size);
    bad[packed.size - 6] ^= 1; /* the checksum */
    tt_test_write("bad", bad, packed.size);
    EXPECT_ERR(TT_EFORMAT, tt_file_read("bad", 0, &b));
    EXPECT_MESSAGE("bad: broken gzip stream near byte");
    tt_str_put(&packed, "junk", 4);
    tt_test_write("junk", packed.data, packed.size);
    EXPECT_ERR(TT_EFORMAT, tt_file_read("junk", 0, &b));
    EXPECT_MESSAGE("follow the stream");
    tt_str_free(&packed);
    free(bad);
}

TT_TEST(file, writing_replaces_the_whole_file)
{
    EXPECT_OK(tt_file_write("f", "old, and longer", 15));
    EXPECT_OK(tt_file_write("f", "new", 3));
    EXPECT_FILE("f", "new");
    EXPECT(!tt_file_exists("f.tmp"));
    EXPECT_OK(tt_file_write("empty", NULL, 0));
    EXPECT_FILE("empty", "");
}

TT_TEST(file, a_write_that_fails_leaves_the_old_file)
{
    char **names;
    int n;

    EXPECT_ERR(TT_EIO, tt_file_write("no/folder/f", "x", 1));
    EXPECT_MESSAGE("no/folder/f");
    EXPECT_OK(tt_dir_make("d/full")); /* a folder cannot be replaced by a file */
    write_text("d/full/old", "old");
    EXPECT_ERR(TT_EIO, tt_file_write("d/full", "new", 3));
    EXPECT_FILE("d/full/old", "old");
    EXPECT_OK(tt_dir_list("d", &names, &n));
    EXPECT_INT(1, n);
    tt_dir_free(names, n);
}

TT_TEST(file, a_full_disk_leaves_no_temporary_file)
{
    EXPECT_OK(tt_file_write("f", "old", 3));
    if (symlink("/dev/full", "f.tmp")) FAIL("symlink");
    EXPECT_ERR(TT_EIO, tt_file_write("f", "new", 3)); /* and a link in its place is not followed */
    EXPECT_FILE("f", "old");
}

TT_TEST(file, folders_are_made_with_parents_and_removed_with_children)
{
    EXPECT_OK(tt_dir_make("a/b//c/"));
    EXPECT_OK(tt_dir_make("a/b/c"));
    EXPECT_OK(tt_dir_sync("a/b"));
    write_text("a/b/c/f", "x");
    write_text("outside", "kept");
    if (symlink("../outside", "a/link") || symlink(".", "a/b/loop")) FAIL("symlink");
    EXPECT_OK(tt_dir_remove("a"));
    EXPECT(!tt_file_exists("a"));
    EXPECT_FILE("outside", "kept");
    EXPECT_OK(tt_dir_remove("a")); /* it is not there: fine */
    EXPECT_ERR(TT_EIO, tt_dir_remove("outside"));
    EXPECT_FILE("outside", "kept");
    EXPECT_ERR(TT_EIO, tt_dir_make("outside/x"));
    EXPECT_MESSAGE("outside");
    EXPECT_ERR(TT_EIO, tt_dir_make("outside"));
    EXPECT_ERR(TT_EIO, tt_dir_make(""));
    EXPECT_ERR(TT_EIO, tt_dir_sync("nowhere"));
}

TT_TEST(file, a_folder_is_on_disk_with_all_its_parents)
{
    *synced = 0;
    EXPECT_OK(tt_dir_make("one/two//three/"));
    char here[PATH_MAX], want[PATH_MAX];
    EXPECT(getcwd(here, sizeof here) != NULL);
    snprintf(want, sizeof want, "%s /one /two ", strrchr(here, '/'));
    EXPECT_STR(want, synced); /* what got a new name, and nothing else */
    *synced = 0;
    EXPECT_OK(tt_dir_make("one/two/three/four"));
    EXPECT_STR("/three ", synced);
    *synced = 0;
    EXPECT_OK(tt_dir_make("one/two/three/four"));
    EXPECT_STR("", synced);
}

TT_TEST(file, what_keeps_a_folder_from_being_made_is_told)
{
    if (symlink("nowhere", "link")) FAIL("symlink");
    EXPECT_ERR(TT_EIO, tt_dir_make("link")); /* it is there, but leads to nothing */
    EXPECT_MESSAGE("link: File exists");
}

TT_TEST(file, all_is_written_or_how_far_it_came_is_known)
{
    size_t done = 0;
    int fd = open("f", O_WRONLY | O_CREAT, 0666);

    EXPECT(fd >= 0 && tt_write_all(fd, "hello", 5, &done) && done == 5);
    close(fd);
    EXPECT_FILE("f", "hello");
    EXPECT((fd = open("/dev/full", O_WRONLY)) >= 0);
    EXPECT(!tt_write_all(fd, "hello", 5, &done));
    EXPECT_INT(ENOSPC, errno);
    EXPECT_INT(0, done);
    close(fd);
}

TT_TEST(file, a_link_to_a_folder_is_not_followed_when_removing)
{
    EXPECT_OK(tt_dir_make("real"));
    write_text("real/f", "x");
    if (symlink("real", "link")) FAIL("symlink");
    EXPECT_ERR(TT_EIO, tt_dir_remove("link"));
    EXPECT_FILE("real/f", "x");
}

TT_TEST(file, names_are_listed_sorted)
{
    char **names;
    int n;

    for (int i = 40; i > 0; i--) {
        char path[32];
        snprintf(path, sizeof path, "step-%03d", i);
        write_text(path, "");
    }
    write_text(".hidden", "");
    EXPECT_OK(tt_dir_list(".", &names, &n));
    EXPECT_INT(41, n);
    EXPECT_STR(".hidden", names[0]);
    EXPECT_STR("step-001", names[1]);
    EXPECT_STR("step-040", names[40]);
    tt_dir_free(names, n);
    EXPECT_ERR(TT_EIO, tt_dir_list("nowhere", &names, &n));
    EXPECT_INT(0, n);
    tt_dir_free(names, n);
}

TT_TEST(file, sha256_of_known_texts)
{
    static const char abc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    static const char none[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    char hex[65];
    tt_sha *s = tt_sha_begin();

    tt_sha_add(s, "a", 1);
    tt_sha_add(s, "", 0);
    tt_sha_add(s, "bc", 2);
    tt_sha_end(s, hex);
    EXPECT_STR(abc, hex);
    tt_sha_end(tt_sha_begin(), hex);
    EXPECT_STR(none, hex);
    write_text("f", "abc");
    EXPECT_OK(tt_sha_file("f", hex));
    EXPECT_STR(abc, hex);
    EXPECT_ERR(TT_EIO, tt_sha_file("nowhere", hex));
    EXPECT_STR("", hex);
}

TT_TEST(file, sha256_of_a_gzip_is_that_of_its_bytes)
{
    tt_str packed = {0};
    char a[65], b[65];
    tt_sha *s = tt_sha_begin();

    pack("text", 4, &packed);
    tt_test_write("f.gz", packed.data, packed.size);
    EXPECT_OK(tt_sha_file("f.gz", a));
    tt_sha_add(s, packed.data, packed.size);
    tt_sha_end(s, b);
    EXPECT_STR(b, a);
    tt_str_free(&packed);
}

TT_TEST(file, crc32c_of_known_texts_with_and_without_the_instruction)
{
    unsigned char zeros[32] = {0}, noise[1000];

    EXPECT_INT(0xE3069283, tt_crc32c("123456789", 9));
    EXPECT_INT(0xE3069283, tt_crc32c_soft("123456789", 9));
    EXPECT_INT(0x8A9136AA, tt_crc32c(zeros, 32));
    EXPECT_INT(0x8A9136AA, tt_crc32c_soft(zeros, 32));
    EXPECT_INT(0, tt_crc32c("", 0));
    for (int i = 0; i < 1000; i++) noise[i] = (unsigned char)(i * 7919 >> 4);
    for (size_t at = 0; at < 9; at++)
        for (size_t n = 0; n < 40; n++)
            EXPECT_INT(tt_crc32c_soft(noise + at, n), tt_crc32c(noise + at, n));
}
