/* Rows with ids: Criteo's lines and DLRM's records, columns of categories, synthetic clicks; alone
 * and in common with others. */
#include "data_help.h"

#include <zlib.h>

static int64_t table_rows[26];

static tt_data_want wants_clicks(int64_t rows)
{
    tt_data_want w = wants_vector(13, 2, 0);

    for (int i = 0; i < 26; i++) table_rows[i] = rows;
    w.ids = 26;
    w.id_rows = table_rows;
    return w;
}

/* A line of Criteo's: cell k is what `change` says at the place `at`, else plain. */
static void add_line(tt_str *out, int label, int first, int at, const char *change)
{
    for (int k = label < 0; k < 40; k++) {
        if (k > (label < 0)) tt_str_add(out, "\t");
        if (k == at)
            tt_str_add(out, "%s", change);
        else if (!k)
            tt_str_add(out, "%d", label);
        else if (k < 14)
            tt_str_add(out, "%d", first + k);
        else
            tt_str_add(out, "%08x", (unsigned)(first + 1000003u * (unsigned)k));
    }
    tt_str_add(out, "\n");
}

static void expect_row(const whole *w, int i, int label, int first, int64_t rows)
{
    EXPECT_INT(label, w->b.label ? w->b.label[i] : -1);
    for (int k = 1; k < 14; k++) EXPECT_NEAR(log(first + k + 1.0), w->b.x[i * 13 + k - 1], 1e-6);
    for (int k = 14; k < 40; k++)
        EXPECT_INT((int64_t)((unsigned)(first + 1000003u * (unsigned)k) % rows),
                   w->b.ids[i * 26 + k - 14]);
}

static const char criteo_job[] = "dir: .\ntrain: {format: criteo, file: t.txt}\n";

TT_TEST(data_criteo, lines_are_numbers_and_rows_of_tables)
{
    tt_data_want want = wants_clicks(1000);
    tt_str text = {0};
    opened o;
    whole w;

    add_line(&text, 1, 5, -1, "");
    tt_str_add(&text, "\n"); /* an empty line is none */
    add_line(&text, 0, 77, -1, "");
    text.size--; /* nor need the last one end */
    tt_test_write("t.txt", text.data, text.size);
    EXPECT_OK(open_text(criteo_job, want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT_INT(2, w.b.n);
    EXPECT_STR("2 of 13 and 26 ids from t.txt", tt_data_describe(o.data, TT_TRAIN));
    expect_row(&w, 0, 1, 5, 1000);
    expect_row(&w, 1, 0, 77, 1000);
    free_all(&w);
    shut(&o);
    EXPECT_OK(open_text("dir: .\ntrain: {format: criteo, file: t.txt, rows: 17}\n", want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    expect_row(&w, 1, 0, 77, 17);
    free_all(&w);
    shut(&o);
    EXPECT_REFUSED(TT_EDATA, "the ids of ./t.txt mean something else",
                   "dir: .\ntrain: {format: criteo, file: t.txt}\nval: {file: t.txt, rows: 17}\n",
                   want);
    gzFile f = gzopen("t.txt.gz", "wb");
    EXPECT(f && gzwrite(f, text.data, (unsigned)text.size) == (int)text.size && !gzclose(f));
    EXPECT(!remove("t.txt"));
    EXPECT_OK(open_text(criteo_job, want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    expect_row(&w, 1, 0, 77, 1000);
    free_all(&w);
    shut(&o);
    tt_str_free(&text);
}

TT_TEST(data_criteo, what_is_missing_or_negative_is_zero)
{
    tt_data_want want = wants_clicks(1000);
    static const struct {
        int at;
        const char *cell;
    } cells[] = {{1, ""}, {13, "-3"}, {14, ""}, {39, ""}, {2, "0"}, {15, "0"}, {39, "\r"}};
    tt_str text = {0};
    opened o;
    whole w;

    for (int i = 0; i < TT_COUNT(cells); i++) add_line(&text, 0, 9, cells[i].at, cells[i].cell);
    tt_test_write("t.txt", text.data, text.size);
    EXPECT_OK(open_text(criteo_job, want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    for (int i = 0; i < TT_COUNT(cells); i++) {
        if (cells[i].at < 14)
            EXPECT(w.b.x[i * 13 + cells[i].at - 1] == 0);
        else
            EXPECT_INT(0, w.b.ids[i * 26 + cells[i].at - 14]);
    }
    free_all(&w);
    shut(&o);
    tt_str_free(&text);
}

TT_TEST(data_criteo, damage_is_refused_with_line_and_column)
{
    tt_data_want want = wants_clicks(1000);
    static const struct {
        int at;
        const char *cell, *says;
    } cells[] = {
        {0, "2", "t.txt: line 2, column 1: '2' is no label: it must be 0 or 1"},
        {0, "", "line 2, column 1: '' is no label"},
        {3, "1.5", "line 2, column 4: '1.5' is no whole number"},
        {13, "-", "line 2, column 14: '-' is no whole number"},
        {13, "1234567890123456789", "line 2, column 14: '1234567890123456789' is no whole number"},
        {14, "12345678g", "line 2, column 15: '12345678g' is no category"},
        {39, "0x12", "line 2, column 40: '0x12' is no category: it must be up to 8"},
        {20, "1\t2", "line 2 has 41 columns, the lines before have 40"},
    };

    for (int i = 0; i < TT_COUNT(cells); i++) {
        tt_str text = {0};
        add_line(&text, 0, 9, -1, "");
        add_line(&text, 0, 9, cells[i].at, cells[i].cell);
        tt_test_write("t.txt", text.data, text.size);
        EXPECT_REFUSED(TT_EDATA, cells[i].says, criteo_job, want);
        tt_str_free(&text);
    }
    write_text("t.txt", "1,2,3\n");
    EXPECT_REFUSED(TT_EDATA, "line 1 has 1 columns between tabs; Criteo's have 40, or 39 without",
                   criteo_job, want);
    write_text("t.txt", "\n\n");
    EXPECT_REFUSED(TT_EDATA, "no samples in it", criteo_job, want);
    want.ids = 25;
    EXPECT_REFUSED(TT_EINVAL, "13 numbers and 26 categories, but the model takes 13 numbers and 25",
                   criteo_job, want);
    want = wants_clicks(1000);
    EXPECT_REFUSED(TT_EINVAL, "rows is one number, or one for each of the 26 categories, not 2",
                   "dir: .\ntrain: {format: criteo, file: t.txt, rows: [3, 4]}\n", want);
    EXPECT_REFUSED(TT_EINVAL, "rows: 1001 for category 1, but the model's table for it has 1000",
                   "dir: .\ntrain: {format: criteo, file: t.txt, rows: 1001}\n", want);
}

TT_TEST(data_criteo, files_without_labels_are_to_predict_from)
{
    tt_data_want want = wants_clicks(1000);
    tt_str text = {0};
    tt_tree *tree;
    tt_data *d;

    add_line(&text, -1, 5, -1, "");
    add_line(&text, -1, 6, -1, "");
    tt_test_write("t.txt", text.data, text.size);
    EXPECT_REFUSED(TT_EDATA, "the loss wants labels, but none were given", criteo_job, want);
    EXPECT_OK(tt_tree_parse("job.yaml", criteo_job, strlen(criteo_job), &tree));
    want.only_x = true;
    EXPECT_OK(tt_data_open_split(tt_tree_root(tree), &want, 7, TT_TRAIN, NULL, &d));
    EXPECT_INT(2, tt_data_count(d, TT_TRAIN));
    EXPECT(!tt_data_labelled(d, TT_TRAIN));
    want.classes = 0;
    whole w = take_all(d, TT_TRAIN, want);
    expect_row(&w, 1, -1, 6, 1000);
    free_all(&w);
    tt_data_close(d);
    tt_tree_close(tree);
    tt_str_free(&text);
}

/* ---- records ---- */

static void put_int(uint8_t *to, int32_t v)
{
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)((uint32_t)v >> 8 * i);
}

/* The same as add_line; `change` at `at`. */
static void make_record(uint8_t *to, int label, int first, int at, int32_t change)
{
    put_int(to, label);
    for (int k = 1; k < 14; k++) put_int(to + 4 * k, first + k);
    for (int k = 14; k < 40; k++) put_int(to + 4 * k, (int32_t)(first + 1000003 * k));
    if (at >= 0) put_int(to + 4 * at, change);
}

TT_TEST(data_dlrm, records_are_what_lines_are)
{
    tt_data_want want = wants_clicks(1000);
    uint8_t data[3 * 160];
    tt_str text = {0};
    opened a, b;

    for (int i = 0; i < 3; i++) {
        /* a hash has no sign */
        make_record(data + 160 * i, i % 2, 100 * i, i ? -1 : 20, -5);
        add_line(&text, i % 2, 100 * i, i ? -1 : 20, "fffffffb");
    }
    tt_test_write("t.bin", data, sizeof data);
    tt_test_write("t.txt", text.data, text.size);
    EXPECT_OK(open_text(criteo_job, want, &a));
    EXPECT_OK(open_text("dir: .\ntrain: {format: dlrm, file: t.bin, rows: 1000}\n", want, &b));
    EXPECT_STR(tt_data_sha(a.data), tt_data_sha(b.data));
    shut(&a);
    shut(&b);
    /* one may be validated on by who was trained on the other, also where some ids have no table */
    int64_t rows[26] = {[3] = 1000};
    want.id_rows = rows;
    EXPECT_OK(open_text("dir: .\ntrain: {format: criteo, file: t.txt}\n"
                        "val: {format: dlrm, file: t.bin, rows: 1000}\n",
                        want, &a));
    shut(&a);
    tt_str_free(&text);
}

TT_TEST(data_dlrm, damage_is_refused_with_its_place)
{
    static const char job[] = "dir: .\ntrain: {format: dlrm, file: t.bin}\n";
    tt_data_want want = wants_clicks(INT32_MAX);
    static const struct {
        int at;
        int32_t value;
        const char *says;
    } cells[] = {
        {0, 2, "t.bin: record 1 (byte 160), column 1: 2 is no label: it must be 0 or 1"},
        {14, -1, "record 1 (byte 216), column 15: -1 is no row of a table"},
        {39, INT32_MAX,
         "record 1 (byte 316), column 40: 2147483647 is no row of the model's table"},
    };
    uint8_t data[2 * 160];
    opened o;

    for (int i = 0; i < TT_COUNT(cells); i++) {
        make_record(data, 0, 1, -1, 0);
        make_record(data + 160, 0, 1, cells[i].at, cells[i].value);
        tt_test_write("t.bin", data, sizeof data);
        EXPECT_REFUSED(TT_EDATA, cells[i].says, job, want);
    }
    make_record(data + 160, 0, 1, 3, -5); /* a number may be negative */
    tt_test_write("t.bin", data, sizeof data);
    EXPECT_OK(open_text(job, want, &o));
    shut(&o);
    tt_test_write("t.bin", data, sizeof data - 1);
    EXPECT_REFUSED(TT_EDATA, "it ends at byte 319 within record 1: records have 160 bytes", job,
                   want);
    tt_test_write("t.bin", data, 0);
    EXPECT_REFUSED(TT_EDATA, "no samples in it", job, want);
}

/* ---- columns ---- */

static const char id_job[] =
    "dir: .\n"
    "train: {format: csv, file: t.csv, columns: [{name: c, type: id}, {name: n},\n"
    "  {name: h, type: id, hash: 5}, {name: y, type: label}, {name: m, type: id, missing: none}]}\n"
    "val: {file: v.csv}\n";

static void write_columns(void)
{
    write_text("t.csv", "c,n,h,y,m\nred,5,a,no,x\nblue,6,b,yes,?\nred,7,a,no,x\n");
    write_text("v.csv", "y,m,c,h,n\nyes,x,green,a,8\nno,?,,b,9\n");
}

TT_TEST(data_ids, columns_become_ids_in_their_order)
{
    static const int64_t rows[] = {2, 5, 2};
    tt_data_want want = wants_vector(1, 2, 0);
    opened o;
    whole t, v;

    want.ids = 3;
    want.id_rows = rows;
    write_columns();
    EXPECT_OK(open_text(id_job, want, &o));
    t = take_all(o.data, TT_TRAIN, want);
    v = take_all(o.data, TT_VAL, want);
    EXPECT(t.b.x[0] == 5 && t.b.x[2] == 7 && v.b.x[1] == 9);
    EXPECT_INT(1, t.b.ids[0]); /* blue, red */
    EXPECT_INT(0, t.b.ids[3]);
    EXPECT_INT(1, t.b.ids[6]);
    EXPECT(t.b.ids[1] >= 0 && t.b.ids[1] < 5);
    EXPECT_INT(t.b.ids[1], t.b.ids[7]);
    EXPECT_INT(1, t.b.ids[2]); /* none, x */
    EXPECT_INT(0, t.b.ids[5]);
    EXPECT_INT(-1, v.b.ids[0]); /* green was never seen */
    EXPECT_INT(-1, v.b.ids[3]); /* nor is there anything */
    EXPECT_INT(t.b.ids[1], v.b.ids[1]);
    EXPECT_INT(0, v.b.ids[5]);
    EXPECT_INT(1, v.b.label[0]);
    free_all(&t);
    free_all(&v);
    shut(&o);
}

TT_TEST(data_ids, tables_that_are_too_small_are_named)
{
    int64_t rows[] = {2, 5, 2, 9};
    tt_data_want want = wants_vector(1, 2, 0);

    want.ids = 3;
    want.id_rows = rows;
    write_columns();
    rows[0] = 1;
    EXPECT_REFUSED(TT_EDATA,
                   "t.csv: column 'c' has 2 words, but the model's table for id 0 has 1 rows",
                   id_job, want);
    rows[0] = 2;
    rows[1] = 4;
    EXPECT_REFUSED(TT_EDATA, "column 'h' has 5 buckets, but the model's table for id 1 has 4 rows",
                   id_job, want);
    rows[1] = 5;
    want.ids = 4;
    EXPECT_REFUSED(TT_EDATA, "the model takes 4 ids, but 3 columns are `type: id`", id_job, want);
    want.ids = 0;
    EXPECT_REFUSED(TT_EDATA, "the model takes 0 ids, but 3 columns are `type: id`", id_job, want);
    want.ids = 3;
    EXPECT_REFUSED(TT_EDATA, "the model takes 3 ids, but there are none in it",
                   "train: {format: synth, kind: blobs, count: 4}", want);
}

/* ---- synthetic clicks ---- */

TT_TEST(data_synth, clicks_are_skewed_and_can_be_told)
{
    enum { N = 20000 };
    static const char job[] =
        "train: {format: synth, kind: clicks, count: 20000}\nval: {count: 500}";
    tt_data_want want = wants_clicks(100);
    opened o, again, other;
    whole t, v;
    int low_plain = 0, low_skewed = 0, clicks = 0, seen[100] = {0}, clicked[100] = {0};

    EXPECT_OK(open_text(job, want, &o));
    EXPECT_OK(open_text(job, want, &again));
    EXPECT_STR(tt_data_sha(o.data), tt_data_sha(again.data));
    EXPECT_OK(open_text("train: {format: synth, kind: clicks, count: 20000, seed: 1}\n"
                        "val: {count: 500}",
                        want, &other));
    EXPECT(strcmp(tt_data_sha(o.data), tt_data_sha(other.data)) != 0);
    t = take_all(o.data, TT_TRAIN, want);
    v = take_all(o.data, TT_VAL, want);
    EXPECT(memcmp(t.b.ids, v.b.ids, 500 * sizeof *v.b.ids) != 0);
    for (int64_t i = 0; i < N; i++) {
        const int32_t *id = t.b.ids + i * 26;
        for (int k = 0; k < 26; k++) EXPECT(id[k] >= 0 && id[k] < 100);
        low_plain += id[0] < 10;
        low_skewed += id[1] < 10;
        clicks += t.b.label[i];
        seen[id[1]]++;
        clicked[id[1]] += t.b.label[i];
    }
    EXPECT(low_plain > N / 10 - N / 50 && low_plain < N / 10 + N / 50);
    EXPECT(low_skewed > N / 3);
    EXPECT(clicks > N / 8 && clicks < N / 2);
    /* Values of a category differ in how often they are clicked, by far more than chance. */
    double spread = 0;
    int told = 0;
    for (int k = 0; k < 100; k++) {
        double p = (double)clicks / N, n = seen[k];
        if (n < 100) continue;
        spread += pow(clicked[k] - n * p, 2) / (n * p * (1 - p));
        told++;
    }
    EXPECT(told > 10 && spread > 2 * told);
    free_all(&t);
    free_all(&v);
    shut(&o);
    shut(&again);
    shut(&other);
}

TT_TEST(data_synth, a_billion_clicks_open_at_once)
{
    tt_data_want want = wants_clicks(100000);
    opened o;

    EXPECT_OK(
        open_text("train: {format: synth, kind: clicks, count: 1000000000, skew: 0}", want, &o));
    EXPECT_INT(1000000000, tt_data_count(o.data, TT_TRAIN));
    shut(&o);
}

/* ---- in common ---- */

static void open_common(const char *text, tt_data_want want, opened *o)
{
    *o = (opened){0};
    EXPECT_OK(tt_tree_parse("job.yaml", text, strlen(text), &o->tree));
    EXPECT_OK(tt_data_open_common(tt_tree_root(o->tree), &want, 7, "here", 5, &o->data));
    EXPECT(tt_data_common(o->data, NULL));
}

static void expect_same(const opened *a, const opened *b, tt_split split, tt_data_want want)
{
    whole x = take_all(a->data, split, want), y = take_all(b->data, split, want);

    EXPECT_INT(x.b.n, y.b.n);
    EXPECT(!memcmp(x.b.ids, y.b.ids, sizeof *x.b.ids * (size_t)(x.b.n * want.ids)));
    EXPECT(!memcmp(x.b.x, y.b.x, sizeof *x.b.x * (size_t)(x.b.n * x.row.features)));
    EXPECT(!memcmp(x.b.label, y.b.label, sizeof *x.b.label * (size_t)x.b.n));
    EXPECT_STR(tt_data_sha(a->data), tt_data_sha(b->data));
    free_all(&x);
    free_all(&y);
}

TT_TEST(data_common, ids_are_the_same_as_alone)
{
    static const int64_t column_rows[] = {2, 5, 2};
    const char *const texts[] = {
        "dir: .\ntrain: {format: criteo, file: t.txt}\nval: {split: 0.5}\n",
        "dir: .\ntrain: {format: dlrm, file: t.bin, rows: 7}\nval: {file: t.bin}\n",
        "train: {format: synth, kind: clicks, count: 30}\nval: {count: 9}\n", id_job};
    uint8_t data[3 * 160];
    tt_str text = {0};

    write_columns();
    for (int i = 0; i < 3; i++) {
        make_record(data + 160 * i, i % 2, 100 * i, -1, 0);
        add_line(&text, i % 2, 100 * i, -1, "");
    }
    tt_test_write("t.bin", data, sizeof data);
    tt_test_write("t.txt", text.data, text.size);
    for (int i = 0; i < TT_COUNT(texts); i++) {
        tt_data_want want = wants_clicks(50);
        opened alone, first, second;
        if (texts[i] == id_job) {
            want = wants_vector(1, 2, 0);
            want.ids = 3;
            want.id_rows = column_rows;
        }
        EXPECT_OK(open_text(texts[i], want, &alone));
        open_common(texts[i], want, &first);
        open_common(texts[i], want, &second);
        EXPECT_STR(tt_data_common(first.data, NULL), tt_data_common(second.data, NULL));
        for (int split = 0; split < 2; split++) {
            expect_same(&alone, &first, (tt_split)split, want);
            expect_same(&alone, &second, (tt_split)split, want);
        }
        shut(&alone);
        shut(&first);
        shut(&second);
    }
    tt_str_free(&text);
}

/* What was divided by the rows of one model's tables is of no use to another's. */
TT_TEST(data_common, models_of_other_tables_have_another_content)
{
    static const char job[] = "train: {format: synth, kind: clicks, count: 30}\n";
    opened a, b;

    open_common(job, wants_clicks(50), &a);
    open_common(job, wants_clicks(20), &b);
    EXPECT(strcmp(tt_data_common(a.data, NULL), tt_data_common(b.data, NULL)) != 0);
    whole w = take_all(b.data, TT_TRAIN, wants_clicks(20));
    for (int64_t i = 0; i < w.b.n * 26; i++) EXPECT(w.b.ids[i] >= 0 && w.b.ids[i] < 20);
    free_all(&w);
    shut(&a);
    shut(&b);
}
