/* One split at a time: what predicting and evaluating open, and what each file's numbers mean. */
#include "data_help.h"

#include <sys/stat.h>
#include <zlib.h>

static tt_err open_learned(const char *text, tt_data_want want, tt_split split,
                           const json_t *learned, opened *o)
{
    *o = (opened){0};
    EXPECT_OK(tt_tree_parse("job.yaml", text, strlen(text), &o->tree));
    return tt_data_open_split(tt_tree_root(o->tree), &want, 7, split, learned, &o->data);
}
static tt_err open_split(const char *text, tt_data_want want, tt_split split, opened *o)
{
    return open_learned(text, want, split, NULL, o);
}

static tt_data_want to_predict(tt_data_want want)
{
    want.only_x = true;
    return want;
}

static void expect_same_values(const opened *x, const opened *y, tt_split split, tt_data_want want)
{
    whole a = take_all(x->data, split, want), b = take_all(y->data, split, want);

    EXPECT_INT(a.b.n, b.b.n);
    EXPECT(!memcmp(a.b.x, b.b.x, sizeof *a.b.x * (size_t)(a.b.n * a.row.features)));
    free_all(&a);
    free_all(&b);
}

/* The split opened alone, for its samples, has the values it has beside the other; and also by what
 * is written down of the other. */
static void expect_same_alone(const char *job, tt_data_want want, tt_split split)
{
    opened both, alone, learned;

    EXPECT_OK(open_text(job, want, &both));
    EXPECT_OK(open_split(job, to_predict(want), split, &alone));
    expect_same_values(&both, &alone, split, want);
    json_t *j = tt_data_learned(both.data);
    EXPECT_OK(open_learned(job, to_predict(want), split, j, &learned));
    expect_same_values(&both, &learned, split, want);
    EXPECT(tt_data_meaning(alone.data).words == tt_data_meaning(learned.data).words);
    json_decref(j);
    shut(&learned);
    shut(&both);
    shut(&alone);
}

static void write_images(const char *path, int n, int rank, uint8_t first)
{
    uint8_t x[64];
    int dim[] = {n, rank == 3 ? 2 : 4, 2};

    for (int i = 0; i < 4 * n; i++) x[i] = (uint8_t)(first + 10 * i);
    write_idx(path, rank, dim, x, (size_t)(4 * n));
}

static void write_floats(const char *path, const char *shape, const float *x, size_t n)
{
    uint8_t buf[1024] = "\x93NUMPY\1";
    int head = snprintf((char *)buf + 10, 200,
                        "{'descr': '<f4', 'fortran_order': False, 'shape': %s}\n", shape);

    buf[8] = (uint8_t)head;
    memcpy(buf + 10 + head, x, 4 * n);
    tt_test_write(path, buf, 10 + (size_t)head + 4 * n);
}

/* ---- Each file's numbers ---- */

TT_TEST(data_scale, bytes_and_floats_of_the_same_pictures_are_the_same)
{
    static const char job[] = "dir: .\n"
                              "train: {format: idx, images: x, labels: y}\n"
                              "val: {format: npy, x: x.npy, y: y.npy}\n"
                              "normalize: {mean: 0.25, std: 0.5}\n";
    tt_data_want want = wants(3, 1, 2, 2, 3, 0);
    uint8_t label[] = {0, 1, 2};
    int dim[] = {3};
    float x[12], y[] = {0, 1, 2};
    opened o;
    whole t, v;

    write_images("x", 3, 3, 5);
    write_idx("y", 1, dim, label, 3);
    for (int i = 0; i < 12; i++) x[i] = (float)(5 + 10 * i) / 255; /* scaled already */
    write_floats("x.npy", "(3, 2, 2)", x, 12);
    write_floats("y.npy", "(3,)", y, 3);
    EXPECT_OK(open_text(job, want, &o));
    t = take_all(o.data, TT_TRAIN, want);
    v = take_all(o.data, TT_VAL, want);
    for (int i = 0; i < 12; i++) {
        EXPECT_NEAR((x[i] - 0.25) / 0.5, t.b.x[i], 1e-6);
        EXPECT_NEAR(t.b.x[i], v.b.x[i], 1e-6);
    }
    free_all(&t);
    free_all(&v);
    shut(&o);
    expect_same_alone(job, want, TT_VAL);
}

TT_TEST(data_scale, statistics_are_those_of_the_training_set)
{
    static const char job[] = "dir: .\n"
                              "train: {format: npy, x: x.npy}\n"
                              "val: {format: idx, images: x}\n"
                              "normalize: auto\n";
    tt_data_want want = wants(3, 1, 2, 2, 0, 0);
    float x[] = {0, 1, 0, 1};
    opened o;
    whole v;

    write_floats("x.npy", "(1, 2, 2)", x, 4); /* mean and deviation 1/2 */
    write_images("x", 1, 3, 0);
    EXPECT_OK(open_text(job, want, &o));
    v = take_all(o.data, TT_VAL, want);
    for (int i = 0; i < 4; i++) EXPECT_NEAR((10 * i / 255.0 - 0.5) / 0.5, v.b.x[i], 1e-6);
    free_all(&v);
    shut(&o);
    expect_same_alone(job, want, TT_VAL);
}

TT_TEST(data_scale, plain_rows_of_bytes_are_what_the_training_set_is)
{
    static const char images[] = "dir: .\ntrain: {format: idx, images: x}\nval: {images: flat}\n",
                      rows[] = "dir: .\ntrain: {format: idx, images: flat}\nval: {images: flat}\n";
    tt_data_want want = wants(1, 4, 0, 0, 0, 0);
    opened o;
    whole v;

    write_images("x", 3, 3, 1);
    write_images("flat", 3, 2, 1);
    EXPECT_OK(open_text(images, want, &o));
    v = take_all(o.data, TT_VAL, want);
    EXPECT_NEAR(1 / 255.0, v.b.x[0], 1e-7);
    free_all(&v);
    shut(&o);
    expect_same_alone(images, want, TT_VAL);
    EXPECT_OK(open_text(rows, want, &o)); /* counts, say, and no pixels */
    v = take_all(o.data, TT_VAL, want);
    EXPECT(v.b.x[0] == 1);
    free_all(&v);
    shut(&o);
    expect_same_alone(rows, want, TT_VAL);
}

/* ---- Predicting ---- */

TT_TEST(data_predict, needs_neither_labels_nor_the_training_set)
{
    static const char job[] = "dir: .\n"
                              "train: {format: idx, images: gone, labels: gone}\n"
                              "val: {images: x, labels: of-other-pictures}\n"
                              "normalize: {mean: 0.5, std: 0.5}\n"
                              "augment: {crop: 1, flip: true}\n";
    tt_data_want want = wants(3, 1, 2, 2, 10, 0);
    uint8_t label[] = {0, 1};
    int dim[] = {2};
    opened o;
    whole v;

    write_images("x", 3, 3, 0);
    write_idx("of-other-pictures", 1, dim, label, 2);
    EXPECT_OK(open_split(job, to_predict(want), TT_VAL, &o));
    EXPECT_INT(3, tt_data_count(o.data, TT_VAL));
    EXPECT_INT(0, tt_data_count(o.data, TT_TRAIN));
    EXPECT_STR("none", tt_data_describe(o.data, TT_TRAIN));
    EXPECT_INT(64, (long long)strlen(tt_data_sha(o.data)));
    v = take_all(o.data, TT_VAL, want);
    EXPECT_NEAR((110 / 255.0 - 0.5) / 0.5, v.b.x[11], 1e-6);
    EXPECT_INT(-1, v.b.label[0]);
    free_all(&v);
    shut(&o);
    EXPECT_ERR(TT_EDATA, open_split(job, want, TT_VAL, &o)); /* to judge, they are needed */
    EXPECT_MESSAGE("has 2 rows, but ./x has 3 samples");
    shut(&o);
    EXPECT_ERR(TT_EDATA, open_split(job, to_predict(want), TT_TRAIN, &o));
    EXPECT_MESSAGE("gone: no such file");
    shut(&o);
    EXPECT_ERR(TT_EDATA,
               open_split("dir: .\ntrain: {format: idx, images: x}", to_predict(want), TT_VAL, &o));
    EXPECT_MESSAGE("no validation data");
    shut(&o);
}

TT_TEST(data_predict, values_are_those_of_training)
{
    tt_data_want vector = wants_vector(8, 3, 0), pair = wants_vector(2, 0, 2);

    expect_same_alone("train: {format: synth, kind: blobs, count: 50}\nval: {count: 20}", vector,
                      TT_VAL);
    expect_same_alone("train: {format: synth, kind: blobs, count: 50}\nval: {count: 20}\n"
                      "normalize: auto",
                      vector, TT_VAL);
    expect_same_alone("train: {format: synth, kind: blobs, count: 50}\nval: {split: 0.3}", vector,
                      TT_VAL);
    expect_same_alone("train: {format: synth, kind: blobs, count: 50}\nval: {split: 0.3}", vector,
                      TT_TRAIN);
    expect_same_alone("train: {format: synth, kind: regression, count: 50}\nval: {count: 20}", pair,
                      TT_VAL);
    write_text("t", "+1 0:1 3:2\n-1 2:3\n");
    write_text("v", "-1 1:1 2:2\n"); /* alone it would look as if indices began at 1 */
    expect_same_alone("dir: .\ntrain: {format: libsvm, file: t}\nval: {file: v}",
                      wants_vector(4, 2, 0), TT_VAL);
}

TT_TEST(data_predict, a_csv_file_may_lack_the_answers)
{
    static const char by_name[] = "dir: .\ntrain: {format: csv, file: t.csv, label: kind}\n"
                                  "val: {file: v.csv}\n",
                      by_place[] = "dir: .\ntrain: {format: csv, file: t.csv, label: -1}\n"
                                   "val: {file: v.csv}\n",
                      columns[] = "dir: .\n"
                                  "train: {format: csv, file: t.csv, columns: [\n"
                                  "  {name: kind, type: label}, {name: w, normalize: true},\n"
                                  "  {name: h}]}\n"
                                  "val: {file: v.csv}\n";
    tt_data_want want = wants_vector(2, 2, 0);
    static const char *const jobs[] = {by_name, by_place, columns};
    opened o;
    whole v;

    write_text("t.csv", "w,h,kind\n1,2,fir\n3,4,spruce\n");
    for (int i = 0; i < TT_COUNT(jobs); i++) {
        write_text("v.csv", "w,h,kind\n5,6,fir\n7,8,oak\n"); /* a label, and even one unheard of */
        EXPECT_OK(open_split(jobs[i], to_predict(want), TT_VAL, &o));
        v = take_all(o.data, TT_VAL, want);
        EXPECT(v.b.x[0] == (i == 2 ? 3 : 5) && v.b.x[3] == 8);
        free_all(&v);
        shut(&o);
        write_text("v.csv", "w,h\n5,6\n7,8\n");
        EXPECT_OK(open_split(jobs[i], to_predict(want), TT_VAL, &o));
        v = take_all(o.data, TT_VAL, want);
        EXPECT_INT(2, v.b.n);
        EXPECT(v.b.x[0] == (i == 2 ? 3 : 5) && v.b.x[3] == 8);
        EXPECT_STR("spruce", tt_data_class_name(o.data, 1)); /* as in training */
        free_all(&v);
        shut(&o);
        EXPECT(open_split(jobs[i], want, TT_VAL, &o) != TT_OK);
        shut(&o);
    }
    write_text("v.csv", "w,kind\n5,fir\n"); /* a feature is never optional */
    EXPECT_ERR(TT_EDATA, open_split(by_name, to_predict(want), TT_VAL, &o));
    EXPECT_MESSAGE("1 columns are used, of the training file 2");
    shut(&o);
    EXPECT_ERR(TT_EINVAL, open_split(columns, to_predict(want), TT_VAL, &o));
    EXPECT_MESSAGE("'h'");
    shut(&o);
}

TT_TEST(data_predict, a_csv_file_that_says_all_itself_stands_alone)
{
    static const char job[] =
        "dir: .\n"
        "train: {format: csv, file: gone.csv, columns: [\n"
        "  {name: c, type: category, vocabulary: [red, sad]}, {name: n}, {name: y, type: target},\n"
        "  {name: kind, type: label, vocabulary: [fir, spruce]}]}\n"
        "val: {file: v.csv}\n";
    tt_data_want want = wants_vector(3, 2, 0);
    float x[] = {0, 1, 7, 1, 0, 8};
    opened o;
    whole v;

    write_text("v.csv", "n,c\n7,sad\n8,red\n");
    EXPECT_OK(open_split(job, to_predict(want), TT_VAL, &o));
    v = take_all(o.data, TT_VAL, want);
    EXPECT(!memcmp(x, v.b.x, sizeof x));
    EXPECT_STR("spruce", tt_data_class_name(o.data, 1));
    free_all(&v);
    shut(&o);
}

/* ---- What is no dataset ---- */

TT_TEST(data_bound, what_never_ends_is_refused)
{
    tt_data_want want = wants(3, 1, 2, 2, 0, 0);

    EXPECT_REFUSED(TT_EDATA, "/dev/zero is no regular file",
                   "train: {format: idx, images: /dev/zero}", want);
    EXPECT_REFUSED(TT_EDATA, "/dev/zero is no regular file",
                   "train: {format: csv, file: /dev/zero}", want);
    EXPECT_INT(0, mkfifo("pipe", 0666));
    EXPECT_REFUSED(TT_EDATA, "is no regular file", "dir: .\ntrain: {format: npy, x: pipe}", want);
}

/* A gzip file of `head` and so many zeros. */
static void write_bomb(const char *path, const void *head, size_t size, size_t zeros)
{
    gzFile f = gzopen(path, "wb");
    char *nothing = calloc(1, zeros);

    EXPECT(f && nothing);
    EXPECT(gzwrite(f, head, (unsigned)size) == (int)size);
    EXPECT(gzwrite(f, nothing, (unsigned)zeros) == (int)zeros);
    gzclose(f);
    free(nothing);
}

TT_TEST(data_bound, a_gzip_file_holds_no_more_than_its_header_announces)
{
    static const uint8_t idx[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2},
                         huge[] = {0,    0,    8,    3,    0x7f, 0xff, 0xff, 0xff,
                                   0x7f, 0xff, 0xff, 0xff, 0,    0,    0,    2};
    static const char npy[] = "\x93NUMPY\1\0\x42\0{'descr': '|u1', 'fortran_order': False, "
                              "'shape': (2, 2, 2)}     \n";
    tt_data_want want = wants(3, 1, 2, 2, 0, 0);
    opened o;

    write_bomb("x.gz", idx, sizeof idx, 8);
    EXPECT_OK(open_text("dir: .\ntrain: {format: idx, images: x}", want, &o));
    shut(&o);
    write_bomb("x.gz", idx, sizeof idx, 20 << 20);
    EXPECT_REFUSED(TT_EDATA, "x.gz: its content is larger than the 24 bytes its header announces",
                   "dir: .\ntrain: {format: idx, images: x}", want);
    write_bomb("x.gz", idx, sizeof idx, 7);
    EXPECT_REFUSED(TT_EDATA, "announces 8 bytes of data after offset 16, the file has 7",
                   "dir: .\ntrain: {format: idx, images: x}", want);
    write_bomb("x.gz", huge, sizeof huge, 8); /* no memory is taken for what is only announced */
    EXPECT_REFUSED(TT_EDATA, "more than the", "dir: .\ntrain: {format: idx, images: x}", want);
    write_bomb("x.npy.gz", npy, sizeof npy - 1, 8);
    EXPECT_OK(open_text("dir: .\ntrain: {format: npy, x: x.npy}", want, &o));
    shut(&o);
    write_bomb("x.npy.gz", npy, sizeof npy - 1, 20 << 20);
    EXPECT_REFUSED(TT_EDATA, "its header announces", "dir: .\ntrain: {format: npy, x: x.npy}",
                   want);
}

/* ---- Other files than the job's, and what is known of their rows ---- */

static const char split_job[] =
    "dir: .\n"
    "train: {format: csv, file: t.csv, columns: [{name: n, normalize: true},\n"
    "  {name: city, type: category}, {name: y, type: label}]}\n"
    "val: {split: 0.25}\n";

static void write_towns(const char *path, bool labels)
{
    tt_str text = {0};

    tt_str_add(&text, "n,city%s\n", labels ? ",y" : "");
    for (int i = 0; i < 16; i++)
        tt_str_add(&text, "%d,%s%s\n", i * i, i % 2 ? "Rome" : "Bern",
                   !labels     ? ""
                   : i / 2 % 2 ? ",no"
                               : ",yes");
    write_text(path, text.data);
    tt_str_free(&text);
}

static tt_err open_aimed_learned(const char *text, const char *file, tt_data_want want,
                                 const json_t *learned, opened *o)
{
    tt_err err;

    *o = (opened){0};
    EXPECT_OK(tt_tree_parse("job.yaml", text, strlen(text), &o->tree));
    if ((err = tt_data_aim(tt_tree_root(o->tree), file))) return err;
    return tt_data_open_split(tt_tree_root(o->tree), &want, 7, TT_VAL, learned, &o->data);
}
static tt_err open_aimed(const char *text, const char *file, tt_data_want want, opened *o)
{
    return open_aimed_learned(text, file, want, NULL, o);
}

TT_TEST(data_predict, rows_of_a_split_are_known_by_their_row_in_the_file)
{
    tt_data_want want = wants_vector(3, 2, 0);
    bool moved = false;
    opened o;

    write_towns("t.csv", true);
    EXPECT_OK(open_split(split_job, to_predict(want), TT_VAL, &o));
    EXPECT_INT(4, tt_data_count(o.data, TT_VAL));
    EXPECT(tt_data_labelled(o.data, TT_VAL));
    for (int i = 0; i < 4; i++) {
        int64_t row = tt_data_row(o.data, TT_VAL, i);
        moved |= row != i;
        EXPECT(row >= 0 && row < 16);
        EXPECT_STR(row / 2 % 2 ? "no" : "yes",
                   tt_data_class_name(o.data, tt_data_label(o.data, TT_VAL, i)));
    }
    EXPECT(moved); /* else this shows nothing */
    shut(&o);
}

TT_TEST(data_predict, a_file_of_new_rows_means_what_it_meant_in_training)
{
    tt_data_want want = wants_vector(3, 2, 0);
    opened cut, o;
    whole a, b;

    write_towns("t.csv", true);
    write_towns("new.csv", false);
    EXPECT_OK(open_split(split_job, to_predict(want), TT_VAL, &cut));
    EXPECT_OK(open_aimed(split_job, "new.csv", to_predict(want), &o));
    EXPECT_INT(16, tt_data_count(o.data, TT_VAL));
    EXPECT(!tt_data_labelled(o.data, TT_VAL));
    EXPECT_INT(-1, tt_data_label(o.data, TT_VAL, 0));
    a = take_all(cut.data, TT_VAL, want);
    b = take_all(o.data, TT_VAL, want);
    for (int i = 0; i < 4; i++) /* by the statistics of the rows that were trained on */
        EXPECT(!memcmp(a.b.x + 3 * i, b.b.x + 3 * tt_data_row(cut.data, TT_VAL, i),
                       3 * sizeof *a.b.x));
    free_all(&a);
    free_all(&b);
    shut(&o);
    shut(&cut);
    write_towns("new.csv", true); /* and what is true of them is known, if they say so */
    EXPECT_OK(open_aimed(split_job, "new.csv", to_predict(want), &o));
    EXPECT(tt_data_labelled(o.data, TT_VAL));
    EXPECT_INT(1, tt_data_label(o.data, TT_VAL, 0));
    shut(&o);
    write_text("new.csv", "n,city,y\n1,Rome,maybe\n"); /* nonsense is as good as nothing */
    EXPECT_OK(open_aimed(split_job, "new.csv", to_predict(want), &o));
    EXPECT(!tt_data_labelled(o.data, TT_VAL));
    shut(&o);
    EXPECT_ERR(TT_EDATA, open_aimed(split_job, "nwe.csv", to_predict(want), &o));
    EXPECT_MESSAGE("/nwe.csv: no such file");
    shut(&o);
    EXPECT_ERR(TT_EINVAL, open_aimed("train: {format: synth}", "new.csv", to_predict(want), &o));
    EXPECT_MESSAGE("that has no files");
    shut(&o);
}

/* What is written down of a training set, as a checkpoint has it. */
static json_t *learn(const char *job, tt_data_want want)
{
    opened o;
    char *text;

    EXPECT_OK(open_text(job, want, &o));
    json_t *j = tt_data_learned(o.data), *again;
    EXPECT(j);
    text = json_dumps(j, 0);
    again = json_loads(text, 0, NULL);
    free(text);
    json_decref(j);
    shut(&o);
    return again;
}

TT_TEST(data_predict, new_rows_need_no_training_set)
{
    tt_data_want want = wants_vector(3, 2, 0);
    opened with, without;

    write_towns("t.csv", true);
    write_towns("new.csv", true);
    json_t *j = learn(split_job, want);
    EXPECT_OK(open_aimed(split_job, "new.csv", want, &with));
    EXPECT(!remove("t.csv"));
    EXPECT_ERR(TT_EDATA, open_aimed(split_job, "new.csv", want, &without));
    shut(&without);
    EXPECT_OK(open_aimed_learned(split_job, "new.csv", want, j, &without));
    expect_same_values(&with, &without, TT_VAL, want);
    for (int i = 0; i < 16; i++)
        EXPECT_INT(tt_data_label(with.data, TT_VAL, i), tt_data_label(without.data, TT_VAL, i));
    EXPECT(tt_data_meaning(with.data).words == tt_data_meaning(without.data).words);
    EXPECT_INT(0, tt_data_count(without.data, TT_TRAIN));
    shut(&without);
    EXPECT_OK(open_aimed_learned(split_job, "new.csv", to_predict(want), j, &without));
    EXPECT_STR("no", tt_data_class_name(without.data, 0));
    EXPECT_STR("yes", tt_data_class_name(without.data, 1));
    expect_same_values(&with, &without, TT_VAL, want);
    shut(&without);
    shut(&with);
    write_text("new.csv", "n,city\n1,Oslo\n"); /* a word that training never saw */
    EXPECT_OK(open_aimed_learned(split_job, "new.csv", to_predict(want), j, &without));
    shut(&without);
    json_decref(j);
}

/* Words are taken by position, so that columns that have changed places would be confused. */
TT_TEST(data_predict, other_columns_than_those_of_training_are_refused)
{
    static const char job[] = "dir: .\n"
                              "train: {format: csv, file: t.csv, columns: [%s]}\n"
                              "val: {split: 0.25}\n";
    static const char *const lists[] = {
        "{name: a, type: category}, {name: b, type: category}, {name: y, type: label}",
        "{name: b, type: category}, {name: a, type: category}, {name: y, type: label}",
        "{name: a, type: category}, {name: y, type: label}",
        "{index: 0, type: category}, {index: 1, type: category}, {name: y, type: label}",
        "{name: a, type: category, hash: 2}, {name: b, type: category}, {name: y, type: label}",
        "{name: a}, {name: b, type: category}, {name: y, type: label}",
    };
    tt_data_want want = wants_vector(4, 2, 0);
    char text[400];
    json_t *j = NULL;

    write_text("t.csv", "a,b,y\nu,v,0\nv,u,1\nu,u,0\nv,v,1\n");
    for (int i = 0; i < TT_COUNT(lists); i++) {
        opened o;
        snprintf(text, sizeof text, job, lists[i]);
        if (!i) j = learn(text, want);
        tt_err err = open_aimed_learned(text, "t.csv", to_predict(want), j, &o);
        if (err != (i ? TT_EINVAL : TT_OK)) FAIL("%s: %d", lists[i], err);
        if (i) EXPECT_MESSAGE("trained with other columns than the job has now");
        shut(&o);
    }
    json_decref(j);
}

TT_TEST(data_predict, rows_of_another_shape_are_scaled_as_in_training)
{
    static const char job[] = "dir: .\ntrain: {format: idx, images: x}\nnormalize: auto\n",
                      plain[] = "dir: .\ntrain: {format: idx, images: x}\n";
    tt_data_want want = wants(1, 4, 0, 0, 0, 0);
    opened with, without;

    write_images("x", 3, 3, 1);
    write_images("flat", 3, 2, 7);
    json_t *j = learn(job, want), *less = learn(plain, want);
    EXPECT_OK(open_aimed(job, "flat", to_predict(want), &with));
    EXPECT_OK(open_aimed_learned(job, "flat", to_predict(want), less, &without));
    expect_same_values(&with, &without, TT_VAL, want); /* what is not said, the training set says */
    shut(&without);
    EXPECT(!remove("x"));
    EXPECT_OK(open_aimed_learned(job, "flat", to_predict(want), j, &without));
    expect_same_values(&with, &without, TT_VAL, want);
    shut(&without);
    shut(&with);
    EXPECT_OK(open_aimed_learned(plain, "flat", to_predict(want), less, &without));
    whole v = take_all(without.data, TT_VAL, want);
    EXPECT_NEAR(7 / 255.0, v.b.x[0], 1e-7);
    free_all(&v);
    shut(&without);
    json_decref(less);
    json_decref(j);
}

TT_TEST(data_predict, words_that_cannot_be_written_down_need_the_training_set)
{
    tt_data_want want = wants_vector(3, 2, 0);
    tt_str text = {0};
    opened o;

    write_towns("t.csv", true);
    tt_str_add(&text, "n,city,y\n1,K\xf6ln,no\n2,Bern,yes\n3,Bern,yes\n4,Bern,no\n");
    write_text("t.csv", text.data); /* which is no UTF-8 */
    EXPECT_OK(open_text(split_job, want, &o));
    EXPECT(!tt_data_learned(o.data));
    shut(&o);
    tt_str_free(&text);
}

TT_TEST(data_predict, what_is_written_down_may_be_damaged)
{
    static const char *const bad[] = {
        "7",
        "[]",
        "{}",
        "{\"columns\": 7}",
        "{\"columns\": []}",
        "{\"columns\": [7, 7, 7]}",
        "{\"columns\": [{\"type\": \"number\"}]}",
        "{\"columns\": [{\"type\": \"numeric\"}, {\"type\": \"category\"}]}",
        "{\"columns\": [{\"type\": \"category\", \"words\": [\"a\", \"a\"]}]}",
        "{\"columns\": [{\"type\": \"category\", \"words\": [\"a\", 7]}]}",
        "{\"columns\": [{\"type\": \"id\", \"hash\": -1}]}",
        "{\"columns\": %s, \"scaled\": [3]}",
        "{\"columns\": %s, \"scaled\": [-1]}",
        "{\"columns\": %s, \"scaled\": [0.5]}",
        "{\"columns\": %s, \"scaled\": [0]}",
        "{\"columns\": %s, \"scaled\": [0], \"mean\": [1, 2], \"deviation\": [1, 2, 3]}",
        "{\"columns\": %s, \"scaled\": [0], \"mean\": [1, 2, 3], \"deviation\": [1, \"2\", 3]}",
        "{\"columns\": %s, \"scaled\": [0], \"mean\": [1, 2, 3], \"deviation\": [1, 0, 3]}",
        "{\"columns\": %s, \"index_base\": 4294967297}",
        "{\"columns\": %s, \"shape\": []}",
        "{\"columns\": %s, \"shape\": [-3]}",
        "{\"columns\": %s, \"classes\": [\"a\", 7]}",
        "{\"columns\": [{\"type\": \"category\", \"words\": \"a\"}]}",
        "{\"columns\": %s, \"label_base\": \"1\"}",
        "{\"columns\": %s, \"tokens\": {}}",
    };
    static const char columns[] =
        "[{\"type\": \"numeric\", \"name\": \"n\", \"scaled\": true}, {\"type\": \"category\", "
        "\"name\": "
        "\"city\", \"words\": [\"Bern\", \"Rome\"]}, {\"type\": \"label\"}]";
    tt_data_want want = wants_vector(3, 2, 0);

    write_towns("new.csv", false);
    for (int i = 0; i < TT_COUNT(bad); i++) {
        tt_str text = {0};
        opened o;
        const char *at = strstr(bad[i], "%s");
        tt_str_put(&text, bad[i], at ? (size_t)(at - bad[i]) : strlen(bad[i]));
        if (at) tt_str_add(&text, "%s%s", columns, at + 2);
        json_t *j = json_loads(text.data, JSON_DECODE_ANY, NULL);
        EXPECT(j);
        tt_err err = open_aimed_learned(split_job, "new.csv", to_predict(want), j, &o);
        bool nothing = i < 3; /* then the training set is asked, and it is not there */
        if (err != (nothing ? TT_EDATA : TT_EFORMAT)) FAIL("%s: %d", text.data, err);
        shut(&o);
        json_decref(j);
        tt_str_free(&text);
    }
}

TT_TEST(data_predict, any_format_can_be_pointed_at_another_file)
{
    uint8_t picture[3073] = {7};
    float x[] = {1, 2, 3, 4}, y[] = {5, 6};
    opened o;

    write_images("x", 2, 3, 0);
    EXPECT_OK(open_aimed("dir: gone\ntrain: {format: idx, images: a, labels: b}", "x",
                         to_predict(wants(3, 1, 2, 2, 10, 0)), &o));
    EXPECT_INT(2, tt_data_count(o.data, TT_VAL));
    shut(&o);
    tt_test_write("c.bin", picture, sizeof picture);
    EXPECT_OK(open_aimed("dir: gone\ntrain: {format: cifar10, files: [a, b]}", "c.bin",
                         to_predict(wants(3, 3, 32, 32, 10, 0)), &o));
    EXPECT_INT(7, tt_data_label(o.data, TT_VAL, 0)); /* the file has them anyway */
    shut(&o);
    write_floats("x.npy", "(2, 2)", x, 4);
    write_floats("y.npy", "(2, 1)", y, 2);
    EXPECT_OK(open_aimed("dir: gone\ntrain: {format: npy, x: a, y: b}", "x.npy",
                         to_predict(wants_vector(2, 0, 1)), &o));
    EXPECT(!tt_data_target(o.data, TT_VAL, 0));
    shut(&o);
    EXPECT_OK(open_split("dir: .\ntrain: {format: npy, x: a, y: b}\nval: {x: x.npy, y: y.npy}",
                         to_predict(wants_vector(2, 0, 1)), TT_VAL, &o));
    EXPECT_NEAR(6, tt_data_target(o.data, TT_VAL, 1)[0], 0);
    shut(&o);
}

TT_TEST(data_predict, a_file_beside_a_split_is_for_use_not_for_training)
{
    static const char job[] = "dir: .\ntrain: {format: csv, file: t.csv, label: y}\n"
                              "val: {split: 0.5, file: v.csv}\n";
    tt_data_want want = wants_vector(1, 2, 0);
    opened o;

    write_text("t.csv", "a,y\n1,0\n2,1\n3,0\n4,1\n");
    write_text("v.csv", "a,y\n5,0\n6,1\n7,1\n");
    EXPECT_REFUSED(TT_EINVAL, "tutti predict RUN --data FILE", job, want);
    EXPECT_OK(open_split(job, want, TT_VAL, &o));
    EXPECT_INT(3, tt_data_count(o.data, TT_VAL));
    shut(&o);
    EXPECT_OK(open_split(job, want, TT_TRAIN, &o)); /* what was trained on */
    EXPECT_INT(2, tt_data_count(o.data, TT_TRAIN));
    shut(&o);
    EXPECT_REFUSED(TT_EINVAL, "unknown key 'splat'",
                   "dir: .\ntrain: {format: csv, file: t.csv, label: y}\n"
                   "val: {split: 0.5, splat: 1}\n",
                   want);
}

TT_TEST(data_find, files_are_looked_for_and_not_opened)
{
    opened o;

    write_text("t.csv", "\"no CSV at all");
    EXPECT_OK(tt_tree_parse("job.yaml", split_job, strlen(split_job), &o.tree));
    EXPECT_OK(tt_data_find(tt_tree_root(o.tree)));
    EXPECT_OK(tt_tree_set(o.tree, "val={file: v.csv}"));
    EXPECT_ERR(TT_EDATA, tt_data_find(tt_tree_root(o.tree)));
    EXPECT_MESSAGE("./v.csv: no such file");
    EXPECT_OK(tt_tree_set(o.tree, "train={format: cifar100, files: [t.csv, u.bin], labels: fine}"));
    EXPECT_ERR(TT_EDATA, tt_data_find(tt_tree_root(o.tree)));
    EXPECT_MESSAGE("./u.bin: no such file");
    EXPECT_OK(tt_tree_set(o.tree, "train={format: cifar100, files: t.csv, labels: fine}"));
    EXPECT_OK(tt_tree_set(o.tree, "val=null"));
    EXPECT_OK(tt_data_find(tt_tree_root(o.tree)));
    EXPECT_OK(tt_tree_set(o.tree, "train={format: synth}"));
    EXPECT_OK(tt_data_find(tt_tree_root(o.tree)));
    tt_tree_close(o.tree);
}
