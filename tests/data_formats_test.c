/* Array files, CIFAR, LIBSVM, synthetic data: what is read, and what is refused. */
#include "data_help.h"
#include "data/source.h"

#include <unistd.h>

/* ---- IDX ---- */

static const char idx_job[] = "dir: .\nscale: 1\ntrain: {format: idx, images: x, labels: y}";

static void write_small_idx(void)
{
    uint8_t x[12], y[] = {0, 2, 1};
    int dim[] = {3, 2, 2}, n[] = {3};

    for (int i = 0; i < 12; i++) x[i] = (uint8_t)(20 * i);
    write_idx("x", 3, dim, x, 12);
    write_idx("y", 1, n, y, 3);
}

TT_TEST(data_idx, images_and_labels_are_read_as_they_stand)
{
    tt_data_want want = wants(3, 1, 2, 2, 3, 0), flat = wants_vector(4, 3, 0);
    opened o;
    whole w;

    write_small_idx();
    EXPECT_OK(open_text(idx_job, want, &o));
    EXPECT_STR("3 of 1x2x2 from x", tt_data_describe(o.data, TT_TRAIN));
    EXPECT_INT(3, tt_data_classes(o.data));
    w = take_all(o.data, TT_TRAIN, want);
    for (int i = 0; i < 12; i++) EXPECT(w.b.x[i] == (float)(20 * i));
    EXPECT_INT(2, w.b.label[1]);
    free_all(&w);
    shut(&o);
    EXPECT_OK(open_text(idx_job, flat, &o)); /* a model that takes vectors takes images too */
    shut(&o);
    EXPECT_OK(open_text("dir: .\ntrain: {format: idx, images: x, labels: y}", want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT_NEAR(220 / 255.0, w.b.x[11], 1e-6); /* bytes of images are divided by 255 */
    free_all(&w);
    shut(&o);
}

TT_TEST(data_idx, big_endian_types_are_converted)
{
    uint8_t f32[] = {0, 0, 0xd, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0x3f, 0x80, 0, 0, 0xc0, 0x20, 0, 0};
    uint8_t i16[] = {0, 0, 0xb, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, 0xfe, 1, 2};
    tt_data_want want = wants_vector(2, 0, 0);
    opened o;
    whole w;

    tt_test_write("f", f32, sizeof f32);
    EXPECT_OK(open_text("dir: .\ntrain: {format: idx, images: f}", want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT(w.b.x[0] == 1.0f && w.b.x[1] == -2.5f);
    free_all(&w);
    shut(&o);
    tt_test_write("i", i16, sizeof i16);
    EXPECT_OK(open_text("dir: .\ntrain: {format: idx, images: i}", want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT(w.b.x[0] == -2 && w.b.x[1] == 258);
    free_all(&w);
    shut(&o);
}

TT_TEST(data_idx, damage_is_refused_with_its_place)
{
    tt_data_want want = wants(3, 1, 2, 2, 3, 0);
    uint8_t y[] = {0, 2, 1}, high[] = {0, 3, 1}, x[12] = {0};
    int n3[] = {3}, n2[] = {2}, dim[] = {3, 2, 2}, huge[] = {-1, -1, -1}, empty[] = {0, -1, -1};

    write_small_idx();
    write_idx("y", 1, n2, y, 2);
    EXPECT_REFUSED(TT_EDATA, "y has 2 rows, but ./x has 3 samples", idx_job, want);
    write_idx("y", 1, n3, high, 3);
    EXPECT_REFUSED(TT_EDATA, "y: row 1 (offset 9): label 3, but the model has 3 classes", idx_job,
                   want);
    write_idx("y", 1, n3, y, 2);
    EXPECT_REFUSED(TT_EDATA, "announces 3 bytes of data after offset 8, the file has 2", idx_job,
                   want);
    write_idx("y", 1, n3, y, 3);
    write_idx("x", 3, dim, x, 11); /* cut off */
    EXPECT_REFUSED(TT_EDATA, "announces 12 bytes", idx_job, want);
    write_idx("x", 3, huge, x, 12);
    EXPECT_REFUSED(TT_EDATA, "./x", idx_job, want);
    write_idx("x", 3, empty, x, 0);
    EXPECT_REFUSED(TT_EDATA, "no samples in it", idx_job, want);
    tt_test_write("x", "\0\0\7\3aaaa", 8);
    EXPECT_REFUSED(TT_EDATA, "no IDX file: it starts with 00000703", idx_job, want);
    tt_test_write("x", "\0\0\10\3\0\0", 6);
    EXPECT_REFUSED(TT_EDATA, "cut off at offset 6", idx_job, want);
    tt_test_write("x", "", 0);
    EXPECT_REFUSED(TT_EDATA, "too short", idx_job, want);
    tt_test_write("x", "\x1f\x8b\x08 no gzip", 10);
    EXPECT_REFUSED(TT_EDATA, "x", idx_job, want);
}

TT_TEST(data_idx, another_size_than_the_models_input_cites_both)
{
    tt_data_want want = wants(3, 1, 28, 28, 3, 0);
    opened o = {0};
    const char *job =
        "input: [1, 28, 28]\ndata: {dir: ., train: {format: idx, images: x, labels: y}}";

    write_small_idx();
    EXPECT_REFUSED(TT_EINVAL, "the model's input is 1x28x28, but ./x has samples of 2x2", idx_job,
                   want);
    EXPECT_OK(tt_tree_parse("job.yaml", job, strlen(job), &o.tree));
    want.input_at = tt_node_get(tt_tree_root(o.tree), "input");
    EXPECT_ERR(TT_EINVAL,
               tt_data_open(tt_node_get(tt_tree_root(o.tree), "data"), &want, 1, &o.data));
    EXPECT_MESSAGE("job.yaml:1:8");
    EXPECT_MESSAGE("1x28x28");
    EXPECT_MESSAGE("2x2");
    shut(&o);
}

TT_TEST(data_idx, a_missing_known_file_says_how_to_get_it)
{
    tt_data_want want = wants(3, 1, 28, 28, 10, 0);
    const char *m = "get it with: tutti data get ";
    char *here = getcwd(NULL, 0);

    EXPECT_REFUSED(TT_EDATA, "mnist/train-images: no such file in ",
                   "dir: .\ntrain: {format: idx, images: mnist/train-images, labels: y}", want);
    EXPECT(!strcmp(tt_message() + strlen(tt_message()) - strlen(m) - 5,
                   "get it with: tutti data get mnist"));
    EXPECT_REFUSED(TT_EDATA, "tutti data get fashion-mnist",
                   "dir: fashion-mnist\ntrain: {format: idx, images: a, labels: y}", want);
    EXPECT_REFUSED(TT_EDATA, "tutti data get cifar10",
                   "dir: .\ntrain: {format: cifar10, files: cifar-10/data_batch_1.bin}", want);
    EXPECT_REFUSED(TT_EDATA,
                   "; `data get` has it not: put there adult.data and adult.test of the dataset "
                   "Adult, in the UCI Machine Learning Repository",
                   "dir: data/uci-adult\ntrain: {format: csv, file: adult.data.gz}", want);
    EXPECT_REFUSED(TT_EDATA, "other: no such file", "dir: .\ntrain: {format: idx, images: other}",
                   want);
    EXPECT(!strstr(tt_message(), "put there"));
    EXPECT(!strstr(tt_message(), "get it with"));
    EXPECT_MESSAGE(here); /* a relative name alone does not tell where it was sought */
    free(here);
    EXPECT_REFUSED(TT_EDATA, "/nowhere/at/all: no such file",
                   "dir: .\ntrain: {format: idx, images: /nowhere/at/all}", want);
    EXPECT(!strstr(tt_message(), " in "));
}

TT_TEST(data_idx, folders_come_from_the_environment)
{
    tt_data_want want = wants(3, 1, 2, 2, 3, 0);
    opened o;

    EXPECT_OK(tt_dir_make("deep/er"));
    write_small_idx();
    EXPECT(!rename("x", "deep/er/x") && !rename("y", "deep/y"));
    setenv("TT_TEST_DEEP", "deep", 1);
    EXPECT_OK(open_text(
        "dir: $TT_TEST_DEEP\ntrain: {format: idx, images: '${TT_TEST_ER:-er}/x', labels: y}", want,
        &o));
    shut(&o);
    unsetenv("TT_TEST_DEEP");
}

TT_TEST(data_idx, mnist_as_everybody_has_it)
{
    tt_data_want want = wants(3, 1, 28, 28, 10, 0);
    tt_str job = {0};
    opened o;
    whole w;
    double sum = 0, squares = 0;
    int of_class[10] = {0};

    tt_str_add(&job,
               "dir: %s\n"
               "train: {format: idx, images: train-images-idx3-ubyte, labels: "
               "train-labels-idx1-ubyte.gz}\n"
               "val: {images: t10k-images-idx3-ubyte.gz, labels: t10k-labels-idx1-ubyte.gz}\n"
               "normalize: {mean: 0.1307, std: 0.3081}\n",
               tt_test_data("mnist"));
    EXPECT_OK(open_text(job.data, want, &o));
    EXPECT_STR("60,000 of 1x28x28 from train-images-idx3-ubyte.gz",
               tt_data_describe(o.data, TT_TRAIN));
    EXPECT_STR("10,000 of 1x28x28 from t10k-images-idx3-ubyte.gz",
               tt_data_describe(o.data, TT_VAL));
    EXPECT_INT(10, tt_data_classes(o.data));
    w = take_all(o.data, TT_VAL, want);
    EXPECT_INT(7, w.b.label[0]); /* the well-known first test digits: 7, 2, 1, 0, 4 */
    EXPECT_INT(2, w.b.label[1]);
    EXPECT_INT(4, w.b.label[4]);
    free_all(&w);
    w = take_all(o.data, TT_TRAIN, want);
    for (int64_t i = 0; i < 60000ll * 784; i++)
        sum += w.b.x[i], squares += (double)w.b.x[i] * w.b.x[i];
    EXPECT_NEAR(0, sum / (60000 * 784.0), 1e-3); /* the usual constants do normalise it */
    EXPECT_NEAR(1, squares / (60000 * 784.0), 1e-3);
    for (int i = 0; i < 60000; i++) of_class[w.b.label[i]]++;
    EXPECT_INT(5923, of_class[0]);
    EXPECT_INT(5949, of_class[9]);
    free_all(&w);
    shut(&o);
    tt_str_free(&job);
}

/* ---- NPY ---- */

static void write_npy(const char *path, const char *header, const void *data, size_t size)
{
    uint8_t buf[1024] = "\x93NUMPY\1";
    size_t n = strlen(header);

    buf[8] = (uint8_t)n;
    buf[9] = (uint8_t)(n >> 8);
    memcpy(buf + 10, header, n);
    memcpy(buf + 10 + n, data, size);
    tt_test_write(path, buf, 10 + n + size);
}

static const char npy_job[] = "dir: .\ntrain: {format: npy, x: x.npy, y: y.npy}";

TT_TEST(data_npy, types_orders_and_versions_are_understood)
{
    float x[] = {1, 2, 3, 4, 5, 6};
    double column_major[] = {1, 4, 2, 5, 3, 6};
    int64_t label[] = {1, 0};
    uint16_t half[] = {0x3c00, 0xc100, 0x0001, 0x7bff, 0, 0x8000};
    tt_data_want want = wants_vector(3, 2, 0);
    opened o;
    whole w;

    write_npy("x.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n", x,
              sizeof x);
    write_npy("y.npy", "{\"shape\": (2L,), \"descr\": \"<i8\", \"fortran_order\": False}\n", label,
              sizeof label);
    EXPECT_OK(open_text(npy_job, want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT(!memcmp(w.b.x, x, sizeof x));
    EXPECT(w.b.label[0] == 1 && w.b.label[1] == 0);
    free_all(&w);
    shut(&o);
    write_npy("x.npy", "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3), }\n", column_major,
              sizeof column_major);
    EXPECT_OK(open_text(npy_job, want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT(!memcmp(w.b.x, x, sizeof x));
    free_all(&w);
    shut(&o);
    write_npy("x.npy", "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3)}\n", half,
              sizeof half);
    EXPECT_OK(open_text(npy_job, want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT(w.b.x[0] == 1 && w.b.x[1] == -2.5f && w.b.x[2] == 0x1p-24f && w.b.x[3] == 65504);
    free_all(&w);
    shut(&o);
}

TT_TEST(data_npy, targets_may_be_absent_in_a_row)
{
    float x[] = {1, 2}, y[] = {1, 2, NAN, 4};
    tt_data_want want = wants_vector(1, 0, 2);
    opened o;
    whole w;

    write_npy("x.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\n", x, sizeof x);
    write_npy("y.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}\n", y, sizeof y);
    EXPECT_OK(open_text(npy_job, want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT(w.b.target[1] == 2 && isnan(w.b.target[2]));
    free_all(&w);
    shut(&o);
    y[1] = NAN;
    write_npy("y.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}\n", y, sizeof y);
    EXPECT_REFUSED(TT_EDATA, "y.npy: row 0, value 1", npy_job, want);
    want.targets = 3;
    y[1] = 2;
    write_npy("y.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}\n", y, sizeof y);
    EXPECT_REFUSED(TT_EDATA, "wants 3 targets per sample, the data has 2", npy_job, want);
}

TT_TEST(data_npy, labels_may_be_of_pixels)
{
    uint8_t x[12];
    int8_t y[] = {0, 1, 2, -1, 1, 1, 2, 0, 0, 2, 1, 1}, turned[12];
    tt_data_want want = wants(3, 1, 2, 3, 3, 0);
    opened o;
    whole w;

    want.labels = 6;
    for (int i = 0; i < 12; i++) {
        x[i] = (uint8_t)i;
        turned[i % 6 / 3 * 2 + i % 3 * 4 + i / 6] = y[i]; /* (2, 2, 3), the first index fastest */
    }
    write_npy("x.npy", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 1, 2, 3)}\n", x, 12);
    for (int i = 0; i < 2; i++) {
        write_npy("y.npy",
                  i ? "{'descr': '|i1', 'fortran_order': True, 'shape': (2, 2, 3)}\n"
                    : "{'descr': '|i1', 'fortran_order': False, 'shape': (2, 2, 3)}\n",
                  i ? turned : y, 12);
        EXPECT_OK(open_text(npy_job, want, &o));
        EXPECT_INT(3, tt_data_classes(o.data));
        EXPECT(!tt_data_labelled(o.data, TT_TRAIN) && tt_data_label(o.data, TT_TRAIN, 1) == -1);
        w = take_all(o.data, TT_TRAIN, want);
        for (int k = 0; k < 12; k++) EXPECT_INT(y[k], w.b.label[k]);
        free_all(&w);
        shut(&o);
    }
    y[7] = 3;
    write_npy("y.npy", "{'descr': '|i1', 'fortran_order': False, 'shape': (2, 2, 3)}\n", y, 12);
    EXPECT_REFUSED(TT_EDATA, "row 1, label 1 (offset", npy_job, want);
    want.labels = 12;
    EXPECT_REFUSED(TT_EDATA, "6 values per row, but the loss judges 12 pixels", npy_job, want);
    want.labels = 1;
    EXPECT_REFUSED(TT_EDATA, "labels are one class number per row", npy_job, want);
}

TT_TEST(data_npy, damage_and_danger_are_refused)
{
    static const struct {
        const char *header, *message;
    } bad[] = {
        {"{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}\n", "pickle"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}\n", "structured"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (2, 3)}\n", "'<c8' is not supported"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4)}\n", "announces 32 bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (46116860184273879040, 16)}\n",
         "too large"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (576460752303423487, 255)}\n",
         "impossible"},
        {"{'descr': '<f4', 'fortran_order': False}\n", "lacks"},
        {"{'descr': '<f4', 'fortran_order': 1, 'shape': (2, 3)}\n", "True or False"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3)}\n", "must be a number"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)", "not closed"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'x': 1}\n",
         "unknown or repeated key"},
        {"['descr']\n", "must be a dict"},
    };
    float x[] = {1, 2, 3, 4, 5, INFINITY}, fraction[] = {0, 0.5f};
    tt_data_want want = wants_vector(3, 2, 0);

    for (int i = 0; i < TT_COUNT(bad); i++) {
        write_npy("x.npy", bad[i].header, x, sizeof x);
        EXPECT_REFUSED(TT_EDATA, bad[i].message, npy_job, want);
    }
    write_npy("x.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}\n", x, sizeof x);
    EXPECT_REFUSED(TT_EDATA, "row 1, value 2", npy_job, want);
    x[5] = 6;
    write_npy("x.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}\n", x, sizeof x);
    write_npy("y.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\n", fraction, 8);
    EXPECT_REFUSED(TT_EDATA, "y.npy: row 1", npy_job, want);
    EXPECT_MESSAGE("0.5 is no class number");
    tt_test_write("x.npy", "\x93NUMPY\1\0\xff\xff{}", 12);
    EXPECT_REFUSED(TT_EDATA, "cut off", npy_job, want);
    tt_test_write("x.npy", "\x93NUMPY\7\0\2\0{}", 12);
    EXPECT_REFUSED(TT_EDATA, "version 7.0", npy_job, want);
    tt_test_write("x.npy", "PK\3\4 a zip file", 15);
    EXPECT_REFUSED(TT_EDATA, "no NPY file", npy_job, want);
}

/* ---- CIFAR ---- */

TT_TEST(data_cifar, records_of_several_files_follow_each_other)
{
    static uint8_t record[2 * 3074];
    tt_data_want want = wants(3, 3, 32, 32, 10, 0);
    opened o;
    whole w;

    for (int i = 0; i < 3073; i++) record[i] = record[3073 + i] = (uint8_t)i;
    record[0] = 4;
    record[3073] = 9;
    tt_test_write("a.bin", record, 2 * 3073);
    record[0] = 1;
    tt_test_write("b.bin", record, 3073);
    write_text("batches.meta.txt",
               "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n");
    EXPECT_OK(
        open_text("dir: .\nscale: 1\ntrain: {format: cifar10, files: [a.bin, b.bin]}", want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT_INT(3, w.b.n);
    EXPECT(w.b.label[0] == 4 && w.b.label[1] == 9 && w.b.label[2] == 1);
    EXPECT(w.b.x[0] == 1 && w.b.x[3071] == 3072 % 256 && w.b.x[2 * 3072 + 5] == 6);
    EXPECT_STR("deer", tt_data_class_name(o.data, 4));
    EXPECT(!tt_data_class_name(o.data, 10));
    free_all(&w);
    shut(&o);

    record[0] = 10;
    tt_test_write("b.bin", record, 3073);
    EXPECT_REFUSED(TT_EDATA, "b.bin: row 0 (offset 0): label 10",
                   "dir: .\ntrain: {format: cifar10, files: [a.bin, b.bin]}", want);
    tt_test_write("b.bin", record, 3072);
    EXPECT_REFUSED(TT_EDATA, "3072 bytes are no whole number of records",
                   "dir: .\ntrain: {format: cifar10, files: [a.bin, b.bin]}", want);
    EXPECT_REFUSED(TT_EINVAL, "empty", "dir: .\ntrain: {format: cifar10, files: []}", want);

    record[0] = 19;
    record[1] = 99;
    tt_test_write("c.bin", record, 3074);
    want.classes = 100;
    EXPECT_OK(open_text("dir: .\ntrain: {format: cifar100, files: c.bin}", want, &o));
    EXPECT_INT(100, tt_data_classes(o.data));
    shut(&o);
    want.classes = 20;
    EXPECT_OK(
        open_text("dir: .\ntrain: {format: cifar100, files: c.bin, labels: coarse}", want, &o));
    EXPECT_INT(20, tt_data_classes(o.data));
    shut(&o);
}

/* ---- LIBSVM ---- */

TT_TEST(data_libsvm, sparse_rows_become_dense_in_the_batch)
{
    tt_data_want want = wants_vector(4, 2, 0);
    opened o;
    whole w;
    float expected[] = {0.5f, 0, -2, 0, 0, 0, 0, 1e-3f, 0, 0, 0, 0};

    write_text("a", "# a comment\n+1 1:0.5 3:-2 # behind\n\n-1 qid:7 4:1e-3\r\n-1\n");
    EXPECT_OK(open_text("dir: .\ntrain: {format: libsvm, file: a}\nval: {split: 0.34}", want, &o));
    shut(&o);
    EXPECT_OK(open_text("dir: .\ntrain: {format: libsvm, file: a}", want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT_INT(3, w.b.n);
    EXPECT(!memcmp(w.b.x, expected, sizeof expected));
    EXPECT(w.b.label[0] == 1 && w.b.label[1] == 0 && w.b.label[2] == 0);
    free_all(&w);
    shut(&o);
    write_text("b", "2 0:1\n1 3:1\n"); /* an index 0 occurs; labels 1 and 2 of two classes */
    EXPECT_OK(open_text("dir: .\ntrain: {format: libsvm, file: b}", want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT(w.b.x[0] == 1 && w.b.x[7] == 1 && w.b.label[0] == 1 && w.b.label[1] == 0);
    free_all(&w);
    shut(&o);
    want = wants_vector(4, 0, 1);
    write_text("c", "1.25 1:1\n-3 2:1\n");
    EXPECT_OK(open_text("dir: .\ntrain: {format: libsvm, file: c}\nnormalize: auto", want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT(w.b.target[0] == 1.25f && w.b.target[1] == -3);
    EXPECT_NEAR(1, w.b.x[0], 1e-6); /* two values 1 and 0 are one deviation from their mean */
    EXPECT_NEAR(-1, w.b.x[1], 1e-6);
    EXPECT_NEAR(0, w.b.x[3], 1e-6);
    free_all(&w);
    shut(&o);
}

TT_TEST(data_libsvm, signs_are_classes_only_where_classes_are_wanted)
{
    static const char job[] = "dir: .\ntrain: {format: libsvm, file: a}\nval: {file: a}",
                      sign[] = "dir: .\ntrain: {format: libsvm, file: a, labels: sign}",
                      one[] = "dir: .\ntrain: {format: libsvm, file: b, labels: 1}";
    tt_data_want classes = wants_vector(2, 2, 0), targets = wants_vector(2, 0, 1);
    opened o;
    whole w;

    write_text("a", "+1 1:1\n-1 2:1\n");
    EXPECT_OK(open_text(job, classes, &o));
    w = take_all(o.data, TT_VAL, classes);
    EXPECT(w.b.label[0] == 1 && w.b.label[1] == 0);
    free_all(&w);
    shut(&o);
    for (int split = 0; split < 2; split++) { /* a regression hits -1, and not 0 */
        EXPECT_OK(open_text(job, targets, &o));
        w = take_all(o.data, (tt_split)split, targets);
        EXPECT(w.b.target[0] == 1 && w.b.target[1] == -1);
        free_all(&w);
        shut(&o);
    }
    EXPECT_OK(open_text(sign, targets, &o)); /* unless the job says so */
    w = take_all(o.data, TT_TRAIN, targets);
    EXPECT(w.b.target[0] == 1 && w.b.target[1] == 0);
    free_all(&w);
    shut(&o);
    write_text("b", "2 1:1\n1 2:1\n");
    EXPECT_OK(open_text(one, targets, &o));
    w = take_all(o.data, TT_TRAIN, targets);
    EXPECT(w.b.target[0] == 1 && w.b.target[1] == 0);
    free_all(&w);
    shut(&o);
}

TT_TEST(data_libsvm, damage_is_refused_with_its_line)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"1 1:1\nx 1:1\n", "line 2: 'x' is no number for a label"},
        {"1,2 1:1\n", "list of labels"},
        {"1 1:1 1:2\n", "line 1: index 1 after 1"},
        {"1 2:1 1:2\n", "must ascend"},
        {"1 1:\n", "'1:' has no number"},
        {"1 :1\n", "no index:value"},
        {"1 a:1\n", "has no index"},
        {"1 1:1:1\n", "has no number"},
        {"1 1:nan\n", "has no number"},
        {"1 1:1e300\n", "too large"},
        {"1 5:1\n", "line 1: index 5, but there are 4 features (1 to 4)"},
        {"1 99999999999:1\n", "index"},
        {"# nothing\n", "no samples"},
        {"7 1:1\n", "line 1: label 7, but the model has 2 classes"},
    };
    tt_data_want want = wants_vector(4, 2, 0);

    for (int i = 0; i < TT_COUNT(bad); i++) {
        write_text("a", bad[i].text);
        EXPECT_REFUSED(TT_EDATA, bad[i].message, "dir: .\ntrain: {format: libsvm, file: a}", want);
    }
    write_text("a", "1 0:1\n");
    EXPECT_REFUSED(TT_EDATA, "index 0", "dir: .\ntrain: {format: libsvm, file: a, index_base: 1}",
                   want);
    write_text("a", "1 1:1\n");
    EXPECT_REFUSED(TT_EINVAL, "samples of 9",
                   "dir: .\ntrain: {format: libsvm, file: a, features: 9}", want);
}

TT_TEST(data_libsvm, a9a_has_its_known_size)
{
    tt_data_want want = wants_vector(123, 2, 0);
    tt_str job = {0};
    opened o;
    whole w;
    int ones = 0;

    tt_str_add(&job, "dir: %s\ntrain: {format: libsvm, file: a9a}\nval: {file: a9a.t}",
               tt_test_data("libsvm-a9a"));
    EXPECT_OK(open_text(job.data, want, &o));
    EXPECT_INT(32561, tt_data_count(o.data, TT_TRAIN));
    EXPECT_INT(16281, tt_data_count(o.data, TT_VAL));
    w = take_all(o.data, TT_TRAIN, want);
    for (int i = 0; i < w.b.n; i++) ones += w.b.label[i];
    EXPECT_INT(7841, ones);
    free_all(&w);
    shut(&o);
    tt_str_free(&job);
}

/* ---- Synthetic ---- */

TT_TEST(data_synth, blobs_lie_around_centres_both_splits_share)
{
    tt_data_want want = wants_vector(8, 3, 0);
    double centre[3][8] = {{0}};
    int n[3] = {0}, right = 0;
    opened o;
    whole t, v;

    EXPECT_OK(
        open_text("train: {format: synth, kind: blobs, count: 300, noise: 0.1}\nval: {count: 100}",
                  want, &o));
    t = take_all(o.data, TT_TRAIN, want);
    v = take_all(o.data, TT_VAL, want);
    for (int i = 0; i < 300; n[t.b.label[i]]++, i++)
        for (int k = 0; k < 8; k++) centre[t.b.label[i]][k] += t.b.x[i * 8 + k];
    for (int i = 0; i < 100; i++) {
        int best = 0;
        double least = 1e9;
        for (int c = 0; c < 3; c++) {
            double far = 0;
            for (int k = 0; k < 8; k++) far += pow(v.b.x[i * 8 + k] - centre[c][k] / n[c], 2);
            if (far < least) least = far, best = c;
        }
        right += best == v.b.label[i];
    }
    EXPECT_INT(100, right);
    EXPECT(memcmp(t.b.x, v.b.x, 100 * 8 * 4) != 0);
    free_all(&t);
    free_all(&v);
    shut(&o);
}

static tt_data_want wants_pixels(void)
{
    tt_data_want want = wants(3, 1, 16, 20, 4, 0);
    want.labels = 16 * 20;
    return want;
}

TT_TEST(data_synth, shapes_have_a_class_for_each_pixel)
{
    static const char job[] = "train: {format: synth, kind: shapes, count: 200, noise: 0.01}\n"
                              "val: {count: 200}";
    tt_data_want want = wants_pixels();
    int64_t each[4] = {0}, images[4] = {0}, near = 0, edges = 0;
    opened o, again;
    whole t, v, u;

    EXPECT_OK(open_text(job, want, &o));
    EXPECT_OK(open_text(job, want, &again));
    EXPECT_STR(tt_data_sha(o.data), tt_data_sha(again.data));
    EXPECT_INT(4, tt_data_classes(o.data));
    EXPECT_STR("triangle", tt_data_class_name(o.data, 3));
    t = take_all(o.data, TT_TRAIN, want);
    v = take_all(o.data, TT_VAL, want);
    u = take_all(again.data, TT_TRAIN, want);
    EXPECT(!memcmp(t.b.x, u.b.x, 200 * 320 * 4) && !memcmp(t.b.label, u.b.label, 200 * 320 * 4));
    EXPECT(memcmp(t.b.label, v.b.label, 200 * 320 * 4) != 0);
    for (int i = 0; i < 200; i++) {
        bool has[4] = {false};
        for (int p = 0; p < 320; p++) {
            int at = i * 320 + p, c = t.b.label[at];
            EXPECT(c >= 0 && c < 4);
            each[c]++;
            has[c] = true;
            if (p % 20 == 19) continue;
            /* with little noise, light changes where the class does */
            bool edge = (c == 0) != (t.b.label[at + 1] == 0);
            bool step = fabsf(t.b.x[at] - t.b.x[at + 1]) > 0.12f;
            edges += edge;
            near += edge && step;
            if (c == t.b.label[at + 1] && c == 0) EXPECT(!step);
        }
        EXPECT(has[0] && (has[1] || has[2] || has[3]));
        for (int c = 0; c < 4; c++) images[c] += has[c];
    }
    EXPECT(near == edges && edges > 1000);
    for (int c = 1; c < 4; c++) EXPECT(images[c] > 60 && each[c] > 2000);
    EXPECT(each[0] > each[1] + each[2] + each[3]);
    free_all(&t);
    free_all(&v);
    free_all(&u);
    shut(&again);
    shut(&o);
}

TT_TEST(data_synth, shapes_want_images_and_their_classes)
{
    static const char job[] = "train: {format: synth, kind: shapes, count: 3}";
    tt_data_want want = wants_pixels();

    want.labels = 1;
    EXPECT_REFUSED(TT_EDATA, "wants 1 label per sample, the data has 320", job, want);
    want = wants_pixels();
    want.classes = 3;
    EXPECT_REFUSED(TT_EINVAL, "has 4 classes, ground, circle", job, want);
    want = wants_vector(320, 4, 0);
    EXPECT_REFUSED(TT_EINVAL, "kind shapes makes images", job, want);
    want = wants_pixels();
    EXPECT_REFUSED(TT_EDATA, "not one for each pixel",
                   "train: {format: synth, kind: blobs, count: 3}", want);
}

TT_TEST(data_synth, a_billion_images_open_at_once)
{
    tt_data_want want = wants(3, 3, 32, 32, 1000, 0);
    tt_order order = {.count = 1000000000, .batch = 4, .shuffle = true};
    tt_batch b;
    opened o;

    EXPECT_OK(open_text("train: {format: synth, kind: images, count: 1000000000}", want, &o));
    EXPECT_INT(1000000000, tt_data_count(o.data, TT_TRAIN));
    EXPECT_OK(tt_batch_open(4, ROW(3072, 1, 0), &b));
    EXPECT_OK(tt_data_fill(o.data, TT_TRAIN, &order, 123456789, 0, 4, &b));
    for (int i = 0; i < 4 * 3072; i++) EXPECT(b.x[i] >= 0 && b.x[i] <= 1);
    tt_batch_close(&b, 4, ROW(3072, 1, 0));
    shut(&o);
}

/* ---- Numbers ---- */

TT_TEST(data_number, cells_are_read_as_the_c_library_would)
{
    static const char *const good[] = {"0",
                                       "-0",
                                       "+1",
                                       "1.",
                                       ".5",
                                       "1e5",
                                       "1E-5",
                                       "123456789012345678901234",
                                       "0.1",
                                       "3.14159265358979323846",
                                       "1e-300",
                                       "9007199254740993",
                                       "2.5e22",
                                       "0.000000000000000000000000000000001234",
                                       "1e0000000000000000001"};
    static const char *const bad[] = {"",    "-",   ".",     "e5",  "1e",  "1e+", "1x", "0x10",
                                      "inf", "nan", "1e999", "64k", "1,5", " 1",  "1 "};
    double v;

    for (int i = 0; i < TT_COUNT(good); i++) {
        if (!tt_cell_number(good[i], strlen(good[i]), &v)) FAIL("'%s' was refused", good[i]);
        if (v != strtod(good[i], NULL)) FAIL("'%s' gave %.17g", good[i], v);
    }
    for (int i = 0; i < TT_COUNT(bad); i++)
        if (tt_cell_number(bad[i], strlen(bad[i]), &v)) FAIL("'%s' was taken as %g", bad[i], v);
}
