/* safetensors: what the reference reader refuses is refused here, and what we write it would take.
 */
#define _GNU_SOURCE
#include "test.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/store.h"

static const char golden_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]}}    ";
static const float four[] = {1, -2, 0.5f, 1e30f};
static const int64_t seven = 7;

/* Header and `data_size` bytes of data, with any N. */
static size_t build(uint8_t *out, uint64_t n, const char *header, const void *data,
                    size_t data_size)
{
    size_t size = strlen(header);

    memcpy(out, &n, 8);
    memcpy(out + 8, header, size);
    if (data_size) memcpy(out + 8 + size, data, data_size);
    return 8 + size + data_size;
}

static size_t build_golden(uint8_t *out)
{
    uint8_t data[24];

    memcpy(data, &seven, 8);
    memcpy(data + 8, four, 16);
    return build(out, strlen(golden_header), golden_header, data, 24);
}

static tt_err open_bytes(const void *bytes, size_t size, tt_tensors **out)
{
    tt_test_write("t.safetensors", bytes, size);
    return tt_tensors_open("t.safetensors", out);
}

/* Opens a file of this header and `data_size` zero bytes. */
static tt_err open_header(const char *header, size_t data_size, tt_tensors **out)
{
    static uint8_t bytes[4096];
    static const uint8_t zeros[1024];

    return open_bytes(bytes, build(bytes, strlen(header), header, zeros, data_size), out);
}

static void refuse(const char *header, size_t data_size, const char *why)
{
    tt_tensors *t = (void *)1;

    EXPECT_ERR(TT_EFORMAT, open_header(header, data_size, &t));
    EXPECT(t == NULL);
    EXPECT_MESSAGE(why);
    EXPECT_MESSAGE("t.safetensors");
}

static void accept(const char *header, size_t data_size, int count)
{
    tt_tensors *t;

    EXPECT_OK(open_header(header, data_size, &t));
    EXPECT_INT(count, tt_tensors_count(t));
    tt_tensors_close(t);
}

TT_TEST(tensors, golden_file_is_read)
{
    uint8_t bytes[256];
    size_t size = build_golden(bytes);
    tt_tensors *t;
    const tt_entry *s, *w;

    EXPECT_INT(176, size);
    EXPECT_OK(open_bytes(bytes, size, &t));
    EXPECT_INT(2, tt_tensors_count(t));
    s = tt_tensors_at(t, 0);
    w = tt_tensors_find(t, "w");
    EXPECT(w == tt_tensors_at(t, 1));
    EXPECT_STR("s", s->name);
    EXPECT(s->type == TT_I64 && s->rank == 0 && s->bytes == 8);
    EXPECT(!memcmp(s->data, &seven, 8));
    EXPECT(w->type == TT_F32 && w->rank == 2 && w->shape[0] == 2 && w->shape[1] == 2);
    EXPECT(w->bytes == 16 && !memcmp(w->data, four, 16));
    EXPECT(tt_tensors_find(t, "x") == NULL);
    EXPECT(tt_tensors_find(t, "__metadata__") == NULL);
    EXPECT_STR("pt", tt_tensors_note(t, "format"));
    EXPECT(tt_tensors_note(t, "step") == NULL);
    tt_tensors_close(t);
    tt_tensors_close(NULL);
}

TT_TEST(tensors, what_we_write_is_the_golden_header_on_a_cache_line)
{
    /* Given in the other order: wide types come first in the file, whatever the caller's order. */
    tt_entry entries[] = {{"w", TT_F32, 2, {2, 2}, four, 16}, {"s", TT_I64, 0, {0}, &seven, 8}};
    uint8_t want[256];
    char padded[192], sha[65], again[65];
    size_t size;
    uint8_t data[24];

    memset(padded, ' ', 184);
    padded[184] = 0;
    memcpy(padded, golden_header, strlen(golden_header));
    memcpy(data, &seven, 8);
    memcpy(data + 8, four, 16);
    size = build(want, 184, padded, data, 24);
    EXPECT_OK(tt_tensors_write("out.safetensors", entries, 2, NULL, sha));
    tt_test_file(__FILE__, __LINE__, "out.safetensors", (char *)want, size);
    EXPECT_OK(tt_sha_file("out.safetensors", again));
    EXPECT_STR(again, sha);
    EXPECT(!tt_file_exists("out.safetensors.tmp"));
}

TT_TEST(tensors, notes_and_odd_names_and_shapes_come_back)
{
    static const uint8_t flags[3] = {1, 0, 1};
    static const int8_t eight[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    tt_entry entries[] = {
        {"a \"quoted\" \\ name, \xC3\xA9", TT_B8, 1, {3}, flags, 3},
        {"empty", TT_F32, 2, {0, 5}, NULL, 0},
        {"rank 8", TT_I8, 8, {1, 2, 1, 2, 1, 2, 1, 1}, eight, 8},
        {"void", TT_F32, 1, {0}, NULL, 0},
    };
    json_t *notes = json_pack("{s:s, s:s}", "epoch", "3", "format", "tf");
    tt_tensors *t;
    const tt_entry *e;

    EXPECT_OK(tt_tensors_write("n.safetensors", entries, 4, notes, NULL));
    json_decref(notes);
    EXPECT_OK(tt_tensors_open("n.safetensors", &t));
    EXPECT_INT(4, tt_tensors_count(t));
    EXPECT_STR("pt", tt_tensors_note(t, "format")); /* always */
    EXPECT_STR("3", tt_tensors_note(t, "epoch"));
    for (int i = 0; i < 4; i++) {
        e = tt_tensors_find(t, entries[i].name);
        EXPECT(e && e->type == entries[i].type && e->rank == entries[i].rank);
        EXPECT(!memcmp(e->shape, entries[i].shape, sizeof e->shape));
        EXPECT(e->bytes == entries[i].bytes);
        EXPECT(!e->bytes || !memcmp(e->data, entries[i].data, (size_t)e->bytes));
    }
    tt_tensors_close(t);
}

TT_TEST(tensors, legal_oddities_are_accepted)
{
    accept("{}", 0, 0);
    accept("{}      ", 0, 0);
    accept("{\"__metadata__\":{}}", 0, 0);
    accept("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, 1);
    accept("{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, 1);
    accept("{\"a\":{\"shape\":[2],\"data_offsets\":[0,4],\"dtype\":\"BF16\",\"more\":1}}", 4, 1);
    /* Two in any order of the header, with an empty one between them. */
    accept("{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]},"
           "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[1,1]},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
           3, 3);
}

TT_TEST(tensors, entries_come_in_file_order)
{
    tt_tensors *t;

    EXPECT_OK(open_header("{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]},"
                          "\"z\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                          3, &t));
    EXPECT_STR("z", tt_tensors_at(t, 0)->name);
    EXPECT_STR("b", tt_tensors_at(t, 1)->name);
    tt_tensors_close(t);
}

TT_TEST(tensors, sizes_that_do_not_fit_the_file_are_refused)
{
    uint8_t bytes[256];
    size_t size = build_golden(bytes);
    uint64_t n;
    tt_tensors *t;

    EXPECT_ERR(TT_EFORMAT, open_bytes("", 0, &t));
    EXPECT_ERR(TT_EFORMAT, open_bytes("1234567", 7, &t));
    EXPECT_MESSAGE("7 bytes");
    n = 100000001; /* too big */
    memcpy(bytes, &n, 8);
    EXPECT_ERR(TT_EFORMAT, open_bytes(bytes, size, &t));
    EXPECT_MESSAGE("100000001");
    n = UINT64_MAX; /* 8 + N overflows */
    memcpy(bytes, &n, 8);
    EXPECT_ERR(TT_EFORMAT, open_bytes(bytes, size, &t));
    n = 169; /* one past the end */
    memcpy(bytes, &n, 8);
    EXPECT_ERR(TT_EFORMAT, open_bytes(bytes, size, &t));
    EXPECT_MESSAGE("cut short");
    n = 0;
    memcpy(bytes, &n, 8);
    EXPECT_ERR(TT_EFORMAT, open_bytes(bytes, size, &t));
    build_golden(bytes);
    bytes[size] = 0; /* a trailing byte */
    EXPECT_ERR(TT_EFORMAT, open_bytes(bytes, size + 1, &t));
    EXPECT_MESSAGE("1 bytes after the last tensor");
    for (size_t cut = 0; cut < size; cut++) EXPECT_ERR(TT_EFORMAT, open_bytes(bytes, cut, &t));
}

TT_TEST(tensors, headers_that_are_not_json_objects_are_refused)
{
    refuse("[]", 0, "begin with {");
    refuse(" {}", 0, "begin with {");
    refuse("{}\n", 0, "end with }");
    refuse("{} x", 0, "end with }");
    refuse("{\"a\":}", 0, "not JSON");
    refuse("{\"\xFF\":{}}", 0, "not JSON"); /* no UTF-8 */
    refuse("{\"a\\u0000b\":{}}", 0, "not JSON");
    refuse("{}{}", 0, "not JSON");
    refuse("{\"a\":1}", 0, "tensor a");
    refuse("{\"__metadata__\":{\"n\":1}}", 0, "__metadata__ n");
    refuse("{\"__metadata__\":[]}", 0, "__metadata__");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
           1, "duplicate");
}

TT_TEST(tensors, descriptions_that_do_not_add_up_are_refused)
{
#define ONE(type, shape, span)                                                                     \
    "{\"a\":{\"dtype\":" type ",\"shape\":" shape ",\"data_offsets\":" span "}}"
    refuse(ONE("\"F33\"", "[1]", "[0,4]"), 4, "F33");
    refuse(ONE("7", "[1]", "[0,4]"), 4, "dtype");
    refuse(ONE("\"F32\"", "1", "[0,4]"), 4, "shape");
    refuse(ONE("\"F32\"", "[-1]", "[0,4]"), 4, "dimension 0");
    refuse(ONE("\"F32\"", "[1.0]", "[0,4]"), 4, "dimension 0");
    refuse(ONE("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "9 dimensions");
    refuse(ONE("\"F32\"", "[1]", "[0.0,4]"), 4, "data_offsets");
    refuse(ONE("\"F32\"", "[1]", "[0]"), 4, "data_offsets");
    refuse(ONE("\"F32\"", "[1]", "[0,4,4]"), 4, "data_offsets");
    refuse(ONE("\"F32\"", "[1]", "[4,0]"), 4, "4 to 0");
    refuse(ONE("\"F32\"", "[1]", "[-4,0]"), 4, "-4 to 0");
    refuse(ONE("\"F32\"", "[1]", "[0,8]"), 4, "0 to 8");
    refuse(ONE("\"F32\"", "[1]", "[0,3]"), 3, "need 4 bytes, it has 3");
    refuse(ONE("\"F32\"", "[1]", "[1,5]"), 5, "hole");
    refuse(ONE("\"F32\"", "[8589934592,8589934592]", "[0,4]"), 4, "overflows");
    refuse(ONE("\"F64\"", "[2305843009213693952]", "[0,0]"), 0, "overflows");
    refuse(ONE("\"F32\"", "[8589934592,8589934592,0]", "[0,0]"), 0, "overflows");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
           "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
           3, "overlap");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
           3, "hole");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "data_offsets");
}

TT_TEST(tensors, damaged_files_never_crash)
{
    uint8_t bytes[256];
    size_t size = build_golden(bytes);
    char path[64];
    tt_tensors *t;
    float f[4];
    int fd = memfd_create("damaged", 0); /* 4000 files on a disk would take their time */

    EXPECT(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    for (uint64_t i = 0; i < 4000; i++) {
        uint8_t bad[256];
        tt_u128 r = tt_philox(1, 0, i);
        memcpy(bad, bytes, size);
        for (unsigned k = 0; k <= r.v[3] % 3; k++) bad[r.v[k] % size] = (uint8_t)(r.v[k] >> 16);
        EXPECT(pwrite(fd, bad, size, 0) == (ssize_t)size);
        if (tt_tensors_open(path, &t)) continue;
        for (int k = 0; k < tt_tensors_count(t); k++) {
            const tt_entry *e = tt_tensors_at(t, k);
            EXPECT(e->bytes <= 24);
            tt_entry_floats(e, f, 4);
        }
        tt_tensors_close(t);
    }
    close(fd);
}

TT_TEST(tensors, a_file_that_cannot_be_opened_is_an_io_error)
{
    tt_tensors *t;

    EXPECT_ERR(TT_EIO, tt_tensors_open("absent.safetensors", &t));
    EXPECT_MESSAGE("absent.safetensors");
    EXPECT_ERR(TT_EIO, tt_tensors_open(".", &t));
}

static void convert(tt_dtype type, const void *data, int64_t n, const float *want)
{
    char shifted[64];
    int64_t bytes = n * (int64_t)tt_dtype_size(type);
    tt_entry e = {"x", type, 1, {n}, shifted + 1, bytes}; /* unaligned, as in a foreign file */
    float got[8];

    memcpy(shifted + 1, data, (size_t)bytes);
    EXPECT_OK(tt_entry_floats(&e, got, n));
    for (int64_t i = 0; i < n; i++)
        EXPECT(isnan(want[i]) ? isnan(got[i]) : !memcmp(&want[i], &got[i], 4));
    EXPECT_ERR(TT_ECKPT, tt_entry_floats(&e, got, n + 1));
    EXPECT_MESSAGE("x has");
}

TT_TEST(tensors, every_floating_type_becomes_floats)
{
    convert(TT_F32, (float[]){1.5f, NAN}, 2, (float[]){1.5f, NAN});
    convert(TT_F64, (double[]){0.1, -1e300, 1e-300}, 3, (float[]){0.1f, -INFINITY, 0});
    convert(TT_BF16, (uint16_t[]){0x3F80, 0x3F82, 0x7FC0, 0xFF80}, 4,
            (float[]){1, 1.015625f, NAN, -INFINITY});
    /* 1, -2, the largest, the smallest normal and subnormal, infinity, NaN, -0 */
    convert(TT_F16, (uint16_t[]){0x3C00, 0xC000, 0x7BFF, 0x0400, 0x0001, 0x7C00, 0x7E00, 0x8000}, 8,
            (float[]){1, -2, 65504, 0x1p-14f, 0x1p-24f, INFINITY, NAN, -0.0f});
}

TT_TEST(tensors, integers_are_not_taken_for_floats)
{
    int32_t x = 1;
    tt_entry e = {"ids", TT_I32, 1, {1}, &x, 4};
    float f;

    EXPECT_ERR(TT_ECKPT, tt_entry_floats(&e, &f, 1));
    EXPECT_MESSAGE("ids is of type I32");
}

TT_TEST(tensors, entries_that_contradict_themselves_are_not_written)
{
    tt_entry twice[] = {{"w", TT_F32, 1, {4}, four, 16}, {"w", TT_F32, 1, {4}, four, 16}};
    tt_entry wrong = {"w", TT_F32, 1, {5}, four, 16};
    tt_entry huge = {"w", TT_F32, 2, {1LL << 33, 1LL << 33}, four, 16};
    tt_entry taken = {"__metadata__", TT_F32, 1, {4}, four, 16};
    tt_entry latin = {"\xE9", TT_F32, 1, {4}, four, 16};
    json_t *number = json_pack("{s:i}", "epoch", 3);

    tt_test_write("o.safetensors", "old", 3);
    EXPECT_ERR(TT_EINVAL, tt_tensors_write("o.safetensors", twice, 2, NULL, NULL));
    EXPECT_ERR(TT_EINVAL, tt_tensors_write("o.safetensors", &wrong, 1, NULL, NULL));
    EXPECT_MESSAGE("need 20 bytes, it has 16");
    EXPECT_ERR(TT_EINVAL, tt_tensors_write("o.safetensors", &huge, 1, NULL, NULL));
    EXPECT_ERR(TT_EINVAL, tt_tensors_write("o.safetensors", &taken, 1, NULL, NULL));
    EXPECT_ERR(TT_EINVAL, tt_tensors_write("o.safetensors", &latin, 1, NULL, NULL));
    EXPECT_ERR(TT_EINVAL, tt_tensors_write("o.safetensors", twice, 1, number, NULL));
    EXPECT_MESSAGE("epoch");
    json_decref(number);
    EXPECT_FILE("o.safetensors", "old");
}

TT_TEST(tensors, a_failed_write_leaves_the_old_file)
{
    tt_entry w = {"w", TT_F32, 1, {4}, four, 16};

    EXPECT_ERR(TT_EIO, tt_tensors_write("absent/o.safetensors", &w, 1, NULL, NULL));
    EXPECT_MESSAGE("absent/o.safetensors");
    EXPECT(!mkdir("o.safetensors", 0777) && !mkdir("o.safetensors/full", 0777));
    EXPECT_ERR(TT_EIO, tt_tensors_write("o.safetensors", &w, 1, NULL, NULL));
    EXPECT(!tt_file_exists("o.safetensors.tmp"));
    tt_test_write("p.safetensors.tmp", "left by a crash", 15);
    EXPECT_OK(tt_tensors_write("p.safetensors", &w, 1, NULL, NULL));
    EXPECT(!tt_file_exists("p.safetensors.tmp"));
}
