#define _GNU_SOURCE
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

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
