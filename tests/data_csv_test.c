/* CSV and TSV: columns, vocabularies, missing values, and what is refused. */
#include "data_help.h"

static void expect_rows(const char *job, tt_data_want want, tt_split split, const float *x,
                        const int32_t *label, const float *target)
{
    opened o;
    whole w;

    tt_log_quiet(true); /* of words that are not in a vocabulary */
    EXPECT_OK(open_text(job, want, &o));
    tt_log_quiet(false);
    w = take_all(o.data, split, want);
    for (int64_t i = 0; i < w.b.n * w.row.features; i++)
        if (!(fabsf(w.b.x[i] - x[i]) < 1e-5f))
            FAIL("value %lld is %g, wanted %g", (long long)i, w.b.x[i], x[i]);
    for (int i = 0; label && i < w.b.n; i++) EXPECT_INT(label[i], w.b.label[i]);
    for (int64_t i = 0; target && i < w.b.n * w.row.targets; i++)
        EXPECT(isnan(target[i]) ? isnan(w.b.target[i]) : target[i] == w.b.target[i]);
    free_all(&w);
    shut(&o);
}

TT_TEST(data_csv, label_by_name_and_the_rest_numeric)
{
    float x[] = {1, 2.5f, -3, 4e2f};
    int32_t label[] = {1, 0};
    tt_data_want want = wants_vector(2, 2, 0);
    opened o;

    write_text("a.csv", "width,kind,height\r\n1, spruce ,2.5\r\n-3,fir,4e2\r\n");
    expect_rows("dir: .\ntrain: {format: csv, file: a.csv, label: kind}", want, TT_TRAIN, x, label,
                NULL);
    expect_rows("dir: .\ntrain: {format: csv, file: a.csv, label: 1}", want, TT_TRAIN, x, label,
                NULL);
    expect_rows("dir: .\ntrain: {format: csv, file: a.csv, label: -2, header: true}", want,
                TT_TRAIN, x, label, NULL);
    EXPECT_OK(open_text("dir: .\ntrain: {format: csv, file: a.csv, label: kind}", want, &o));
    EXPECT_INT(2, tt_data_classes(o.data));
    EXPECT_STR("fir",
               tt_data_class_name(o.data, 0)); /* sorted: the order of rows does not matter */
    EXPECT_STR("spruce", tt_data_class_name(o.data, 1));
    shut(&o);
    write_text("a.tsv",
               "1\tb\t2.5\n-3\ta\t4e2\n"); /* no header, and label text is no hint of one */
    expect_rows("dir: .\ntrain: {format: tsv, file: a.tsv, label: 1}", want, TT_TRAIN, x, label,
                NULL);
    write_text("a.ssv", "1;1;2.5\n-3;0;4e2");
    expect_rows("dir: .\ntrain: {format: csv, file: a.ssv, label: 1, separator: ;}", want, TT_TRAIN,
                x, label, NULL);
}

TT_TEST(data_csv, quotes_comments_and_a_byte_order_mark)
{
    float x[] = {1, 0, 0, 2, 1, 0, 3, 0, 1};
    tt_data_want want = wants_vector(3, 0, 0);

    write_text("a.csv", "\xef\xbb\xbf"
                        "\"the \"\"n\"\"\",text\n| a comment, with a comma\n1,?\n\n"
                        "\"2\" ,\"a, \"\"b\"\"\"\n3,\"line\nbreak\"\n");
    expect_rows("dir: .\ntrain: {format: csv, file: a.csv, comment: '|', columns: [\n"
                "{name: 'the \"n\"'}, {name: text, type: category}]}",
                want, TT_TRAIN, x, NULL, NULL);
}

TT_TEST(data_csv, categories_use_the_training_files_words)
{
    float train[] = {1, 0, 5, 0, 1, 6, 1, 0, 7}, val[] = {0, 0, 8, 0, 1, 9, 0, 0, 1};
    int32_t train_label[] = {0, 1, 0}, val_label[] = {1, 0, -1};
    tt_data_want want = wants_vector(3, 2, 0);
    const char *job =
        "dir: .\n"
        "train: {format: csv, file: t.csv, columns: [{name: c, type: category},\n"
        "  {name: n, type: numeric}, {name: y, type: label, strip: .}, {name: z, type: skip}]}\n"
        "val: {file: v.csv}\n";

    write_text("t.csv", "c,n,y,z,unused\nred,5,no,x,x\nsad,6,yes,x,x\nred,7,no,x,x\n");
    write_text("v.csv",
               "z,y,n,c\n0,yes.,8,blue\n0,no.,9,sad\n0,,1,?\n"); /* other order, an unknown word */
    expect_rows(job, want, TT_TRAIN, train, train_label, NULL);
    expect_rows(job, want, TT_VAL, val, val_label, NULL);
    write_text("v.csv", "z,y,n,c\n0,maybe,8,blue\n");
    EXPECT_REFUSED(TT_EDATA, "v.csv: line 2, column 'y': 'maybe' is no class of the vocabulary",
                   job, want);
}

TT_TEST(data_csv, given_vocabularies_fix_the_order_and_hashes_bound_it)
{
    float x[] = {0, 1, 1, 0, 0, 0};
    int32_t label[] = {1, 0, 1};
    tt_data_want want = wants_vector(2, 2, 0), hashed = wants_vector(16, 0, 0);
    opened o;
    whole w;

    write_text("a.csv", "a,1\nb,2\nc,1\n");
    expect_rows("dir: .\ntrain: {format: csv, file: a.csv, columns: [\n"
                "{index: 0, type: category, vocabulary: [b, a]}, {index: 1, type: label, "
                "vocabulary: [2, 1]}]}",
                want, TT_TRAIN, x, label, NULL);
    EXPECT_OK(open_text("dir: .\ntrain: {format: csv, file: a.csv, columns: [{index: 0, type: "
                        "category, hash: 16}]}",
                        hashed, &o));
    w = take_all(o.data, TT_TRAIN, hashed);
    for (int r = 0; r < 3; r++) {
        float sum = 0;
        for (int i = 0; i < 16; i++) sum += w.b.x[r * 16 + i];
        EXPECT(sum == 1);
    }
    free_all(&w);
    shut(&o);
    EXPECT_REFUSED(TT_EINVAL, "twice",
                   "dir: .\ntrain: {format: csv, file: a.csv, columns: [\n"
                   "{index: 0, type: category, vocabulary: [b, b]}, {index: 1, type: label}]}",
                   want);
    EXPECT_REFUSED(
        TT_EINVAL, "'hash' is for columns",
        "dir: .\ntrain: {format: csv, file: a.csv, columns: [{index: 0, type: label, hash: 4}]}",
        want);
}

TT_TEST(data_csv, missing_values_are_filled_or_named)
{
    float x[] = {1, 7, 2, 9}, y[] = {0.5f, NAN};
    int32_t label[] = {-1, 1};
    tt_data_want want = wants_vector(2, 2, 0), regress = wants_vector(2, 0, 1);

    write_text("a.csv", "a,b,y\n1,?,\n2,9,1\n");
    expect_rows("dir: .\ntrain: {format: csv, file: a.csv, label: y, missing: 7}", want, TT_TRAIN,
                x, label, NULL);
    EXPECT_REFUSED(TT_EDATA,
                   "a.csv: line 2, column 'b': '?' has no value; `missing: 0` would fill it in",
                   "dir: .\ntrain: {format: csv, file: a.csv, label: y}", want);
    EXPECT_REFUSED(TT_EINVAL, "must be a number",
                   "dir: .\ntrain: {format: csv, file: a.csv, label: y, missing: none}", want);
    write_text("a.csv", "a,b,y\n1,7,0.5\n2,9,\n");
    expect_rows("dir: .\ntrain: {format: csv, file: a.csv, columns: [{name: a}, {name: b},\n"
                "{name: y, type: target}]}",
                regress, TT_TRAIN, x, NULL, y);
}

TT_TEST(data_csv, where_the_loss_wants_one_number_the_label_is_it)
{
    float x[] = {1, 2}, price[] = {151.5f, 80}, truth[] = {1, 0};
    tt_data_want want = wants_vector(1, 0, 1);

    write_text("a.csv", "x,y\n1,151.5\n2,80\n");
    expect_rows("dir: .\ntrain: {format: csv, file: a.csv, label: y}", want, TT_TRAIN, x, NULL,
                price);
    expect_rows("dir: .\ntrain: {format: csv, file: a.csv, label: y}\nval: {file: a.csv}", want,
                TT_VAL, x, NULL, price);
    write_text("a.csv", "x,y\n1,TRUE\n2,FALSE\n");
    expect_rows("dir: .\ntrain: {format: csv, file: a.csv, label: y}", want, TT_TRAIN, x, NULL,
                truth);
}

TT_TEST(data_csv, columns_are_normalised_by_the_training_set)
{
    float train[] = {-1, 10, 1, 20}, val[] = {3, 5};
    tt_data_want want = wants_vector(2, 0, 0);
    const char *job = "dir: .\ntrain: {format: csv, file: t.csv, columns: [{index: 0, normalize: "
                      "true}, {index: 1}]}\n"
                      "val: {file: v.csv}";

    write_text("t.csv", "2,10\n4,20\n");
    write_text("v.csv", "6,5\n");
    expect_rows(job, want, TT_TRAIN, train, NULL, train);
    expect_rows(job, want, TT_VAL, val, NULL, val);
    EXPECT_REFUSED(TT_EINVAL, "one of the two",
                   "dir: .\ntrain: {format: csv, file: t.csv, columns: [{index: 0, normalize: "
                   "true}, {index: 1}]}\n"
                   "normalize: auto",
                   want);
}

TT_TEST(data_csv, damage_is_refused_with_line_and_column)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"a,y\n1,0\nx,1\n", "a.csv: line 3, column 'a': 'x' is no number"},
        {"a,y\n1,0\n1\n", "line 3 has 1 fields, the rows before have 2"},
        {"a,y\n1,0\n1,1,1\n", "line 3 has 3 fields"},
        {"a,y\n1,0\n\"1,1\n", "line 3, field 1: the quote is never closed"},
        {"a,y\n1,0\n\"1\"x,1\n", "text after the closing quote"},
        {"a,y\n1e99,0\n", "'1e99' is too large"},
        {"a,y\n1,5\n", "line 2, column 'y': label 5, but the model has 2 classes"},
        {"a,y\n1,-2\n", "-2 is no class number"},
        {"a,y\n1,u\n2,v\n3,w\n", "3 different labels ('u', 'v' ...), but the model has 2 classes"},
        {"a,y\n", "a header and no rows"},
        {"", "no rows"},
        {"\n\n", "no rows"},
        {"a,y,z\n1,0\n", "the header has 3 fields, line 2 has 2"},
    };
    tt_data_want want = wants_vector(1, 2, 0);
    const char *job = "dir: .\ntrain: {format: csv, file: a.csv, label: y}";

    for (int i = 0; i < TT_COUNT(bad); i++) {
        write_text("a.csv", bad[i].text);
        EXPECT_REFUSED(TT_EDATA, bad[i].message, job, want);
    }
    tt_test_write("a.csv", "a,y\n1,\0\n", 8);
    EXPECT_REFUSED(TT_EDATA, "a NUL byte at offset 6", job, want);
    write_text("a.csv", "a,y\n1,0\n");
    EXPECT_REFUSED(TT_EINVAL, "no column 'yy'; did you mean 'y'?",
                   "dir: .\ntrain: {format: csv, file: a.csv, label: yy}", want);
    EXPECT_REFUSED(TT_EINVAL, "no column 2: its rows have 2 fields, and indices count from 0",
                   "dir: .\ntrain: {format: csv, file: a.csv, label: 2}", want);
    EXPECT_REFUSED(TT_EINVAL, "not both",
                   "dir: .\ntrain: {format: csv, file: a.csv, label: y, columns: [{name: a}]}",
                   want);
    EXPECT_REFUSED(TT_EDATA, "no column is one",
                   "dir: .\ntrain: {format: csv, file: a.csv, columns: [{name: a}]}", want);
    EXPECT_REFUSED(TT_EINVAL, "either 'name' or 'index'",
                   "dir: .\ntrain: {format: csv, file: a.csv, columns: [{type: label}]}", want);
    EXPECT_REFUSED(TT_EINVAL, "one character",
                   "dir: .\ntrain: {format: csv, file: a.csv, label: y, separator: ';;'}", want);
    EXPECT_REFUSED(TT_EINVAL, "no column 'y': without a header columns are known by `index`",
                   "dir: .\ntrain: {format: csv, file: a.csv, label: y, header: false}", want);
}

TT_TEST(data_csv, messages_name_the_key_that_helps)
{
    static const struct {
        const char *text, *message;
        tt_err code;
        int targets;
    } bad[] = {
        {"city,y\nParis,1\n", "'Paris' is no number; in `columns`, words are `type: category`",
         TT_EDATA, 0},
        {"a;b;y\n1;2;0\n", "no column 'y': its first line is one field, 'a;b;y'; `separator: ';'`",
         TT_EINVAL, 0},
        {"a\tb\ty\n1\t2\t0\n", "`separator: tab` would cut it", TT_EINVAL, 0},
        {"a;y\n1,5;0\n", "the header has 1 fields, line 2 has 2: its first line is one field",
         TT_EDATA, 0},
        {"5,1,0\n6,2,1\n",
         "no column 'y': its first line has numbers; if that is no header, "
         "write `header: false`",
         TT_EINVAL, 0},
        {"width,height,kind\n1,2,0\n", "no column 'y'; it has 'width', 'height', 'kind'", TT_EINVAL,
         0},
        {"a,y\n1,0\n",
         "wants 2 targets per sample, the data has 0; in `columns`, each of them is "
         "`type: target`",
         TT_EDATA, 2},
    };

    for (int i = 0; i < TT_COUNT(bad); i++) {
        int targets = bad[i].targets;
        write_text("a.csv", bad[i].text);
        EXPECT_REFUSED(bad[i].code, bad[i].message,
                       "dir: .\ntrain: {format: csv, file: a.csv, label: y}",
                       wants_vector(1, targets ? 0 : 2, targets));
    }
}

/* Elsewhere -1 is a class; here half of the rows would be left out without a word. */
TT_TEST(data_csv, labels_of_minus_one_and_one_are_not_taken_for_none)
{
    write_text("a.csv", "x,y\n1,-1\n2,1\n3,-1\n");
    EXPECT_REFUSED(TT_EDATA, "labels are -1 and 1",
                   "dir: .\ntrain: {format: csv, file: a.csv, label: y}", wants_vector(1, 2, 0));
    opened o;
    write_text("a.csv", "x,y\n1,-1\n2,1\n3,0\n");
    EXPECT_OK(open_text("dir: .\ntrain: {format: csv, file: a.csv, label: y}",
                        wants_vector(1, 2, 0), &o));
    shut(&o);
}

TT_TEST(data_csv, words_that_training_never_saw_are_told_once_a_column)
{
    tt_data_want want = wants_vector(4, 0, 0);
    tt_bytes log;
    opened o;

    write_text("t.csv", "city,kind\nParis,a\nRome,b\n");
    write_text("v.csv", "city,kind\nParis,a\nOslo,b\nBern,?\n");
    EXPECT_INT(0, tt_log_open("log"));
    tt_log_quiet(true);
    EXPECT_OK(
        open_text("dir: .\n"
                  "train: {format: csv, file: t.csv, columns: [{name: city, type: category},\n"
                  "  {name: kind, type: category}]}\n"
                  "val: {file: v.csv}",
                  want, &o));
    tt_log_quiet(false);
    tt_log_close();
    shut(&o);
    EXPECT_OK(tt_file_read("log", 4096, &log));
    EXPECT(strstr((const char *)log.data,
                  "v.csv: column 'city': 2 of 3 rows have a word that is not in the "
                  "vocabulary, such as 'Oslo' in line 3"));
    EXPECT(!strstr((const char *)log.data, "'kind'")); /* what is missing is no strange word */
    EXPECT(memchr(log.data, '\n', log.size) == log.data + log.size - 1);
    tt_file_release(&log);
}

TT_TEST(data_csv, adult_as_the_archive_has_it)
{
    static const char columns[] =
        "[{index: 0, normalize: true}, {index: 1, type: category}, {index: 2, normalize: true},\n"
        " {index: 3, type: category}, {index: 4, normalize: true}, {index: 5, type: category},\n"
        " {index: 6, type: category}, {index: 7, type: category}, {index: 8, type: category},\n"
        " {index: 9, type: category}, {index: 10, normalize: true}, {index: 11, normalize: true},\n"
        " {index: 12, normalize: true}, {index: 13, type: category}, {index: 14, type: label, "
        "strip: .}]";
    tt_data_want want = wants_vector(105, 2, 0);
    tt_str job = {0};
    opened o;
    whole w;
    int ones = 0;

    tt_str_add(&job,
               "dir: %s\ntrain: {format: csv, file: adult.data, comment: '|', columns: %s}\n"
               "val: {file: adult.test}\n",
               tt_test_data("uci-adult"), columns);
    EXPECT_OK(open_text(job.data, want, &o));
    EXPECT_INT(32561, tt_data_count(o.data, TT_TRAIN));
    EXPECT_INT(16281, tt_data_count(o.data, TT_VAL));
    EXPECT_STR("<=50K", tt_data_class_name(o.data, 0));
    w = take_all(o.data, TT_VAL, want);
    for (int i = 0; i < w.b.n; i++) ones += w.b.label[i];
    EXPECT_INT(3846, ones);
    free_all(&w);
    shut(&o);
    tt_str_free(&job);
}

/* Most cells of a header are words; a row with one that is damaged is no header to be skipped. */
TT_TEST(data_csv, a_first_row_with_a_mistake_is_no_header)
{
    static const char job[] =
        "dir: .\ntrain: {format: csv, file: a.csv, columns: [{index: 0}, {index: 1}, {index: 2}, "
        "{index: 3, type: label}]}";
    tt_data_want want = wants_vector(3, 2, 0);
    opened o;

    write_text("a.csv", "forty,2,3,0\n4,5,6,1\n");
    EXPECT_REFUSED(TT_EDATA, "line 1, column 0: 'forty' is no number", job, want);
    write_text("a.csv", "1,1e400,3,0\n4,5,6,1\n");
    EXPECT_REFUSED(TT_EDATA, "line 1, column 1: '1e400'", job, want);
    write_text("a.csv", "a,b,2019,y\n4,5,6,1\n");
    EXPECT_OK(open_text(job, want, &o));
    EXPECT_INT(1, tt_data_count(o.data, TT_TRAIN));
    shut(&o);
}

TT_TEST(data_csv, iris_has_a_header_of_another_kind)
{
    tt_data_want want = wants_vector(4, 3, 0);
    tt_str job = {0};
    opened o;
    whole w;

    tt_str_add(&job, "dir: %s\ntrain: {format: csv, file: iris.csv, label: -1}\nnormalize: auto",
               tt_test_data("sklearn-toy"));
    EXPECT_OK(open_text(job.data, want, &o));
    EXPECT_INT(150, tt_data_count(o.data, TT_TRAIN));
    w = take_all(o.data, TT_TRAIN, want);
    for (int f = 0; f < 4; f++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < 150; i++) sum += w.b.x[i * 4 + f], squares += pow(w.b.x[i * 4 + f], 2);
        EXPECT_NEAR(0, sum / 150, 1e-5);
        EXPECT_NEAR(1, squares / 150, 1e-5);
    }
    EXPECT_INT(2, w.b.label[149]);
    free_all(&w);
    shut(&o);
    tt_str_free(&job);
}
