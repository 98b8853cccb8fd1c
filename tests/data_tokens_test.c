/* Token shards: what is read, in which windows, what is refused; text as tokens of GPT-2; and the
 * way from text to shards. */
#include "bpe_help.h"
#include "data/source.h"
#include "data_help.h"

#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static int64_t rows_of[64];

/* A model that takes so many tokens, of `vocab` kinds. */
static tt_data_want wants_tokens(int64_t ids, int vocab)
{
    for (int i = 0; i < 64; i++) rows_of[i] = vocab;
    return (tt_data_want){
        .input = {1, {0}}, .ids = ids, .labels = ids, .classes = vocab, .id_rows = rows_of};
}

static void write_plain(const char *path, int first, int count)
{
    uint16_t token[4096];

    for (int i = 0; i < count; i++) token[i] = (uint16_t)(first + i);
    tt_test_write(path, token, (size_t)count * sizeof *token);
}

/* As llm.c writes them: `claim` tokens in the header, `count` in the file. */
static void write_shard(const char *path, bool wide, int first, int claim, int count)
{
    uint8_t file[TT_SHARD_HEAD + 4096] = {0};
    int32_t head[3] = {wide ? 20240801 : 20240520, wide ? 7 : 1, claim};

    memcpy(file, head, sizeof head);
    for (int i = 0; i < count; i++) {
        uint32_t v = (uint32_t)(first + i);
        memcpy(file + TT_SHARD_HEAD + i * (wide ? 4 : 2), &v, wide ? 4 : 2);
    }
    tt_test_write(path, file, TT_SHARD_HEAD + (size_t)count * (wide ? 4 : 2));
}

/* Sample i of a split has the tokens first, first + 1 ... and their next ones for labels. */
static void expect_window(const tt_data *d, tt_split split, tt_data_want want, int i, int first)
{
    whole w = take_all(d, split, want);

    for (int k = 0; k < want.ids; k++) {
        EXPECT_INT(first + k, w.b.ids[i * want.ids + k]);
        EXPECT_INT(first + k + 1, w.b.label[i * want.ids + k]);
    }
    free_all(&w);
}

static const char plain_job[] = "dir: .\ntrain: {format: tokens, files: t.bin}";

/* In the order of the file, unmoved: as validation sees it. */
static whole take_unmoved(const tt_data *d, tt_split split, tt_data_want want)
{
    whole w = {.row = tt_data_row_of(&want)};
    int64_t n = tt_data_count(d, split);
    tt_order o = {.count = n, .batch = n, .by_pass = true};

    EXPECT_OK(tt_batch_open((int)n, &w.row, &w.b));
    EXPECT_OK(tt_data_fill(d, split, &o, 0, 0, (int)n, &w.b));
    return w;
}

TT_TEST(data_tokens, files_of_both_kinds_are_read_in_windows)
{
    tt_data_want want = wants_tokens(4, 60000);
    opened o;
    whole w;

    write_plain("t.bin", 50000, 14); /* 3 windows, the last label is token 12 */
    EXPECT_OK(open_text(plain_job, want, &o));
    EXPECT_INT(3, tt_data_count(o.data, TT_TRAIN));
    w = take_unmoved(o.data, TT_TRAIN, want);
    for (int i = 0; i < 12; i++) {
        EXPECT_INT(50000 + i, w.b.ids[i]);
        EXPECT_INT(50001 + i, w.b.label[i]);
    }
    free_all(&w);
    shut(&o);
    write_shard("t.bin", false, 100, 9, 9);
    EXPECT_OK(open_text(plain_job, want, &o));
    EXPECT_INT(2, tt_data_count(o.data, TT_TRAIN));
    w = take_unmoved(o.data, TT_TRAIN, want);
    EXPECT_INT(104, w.b.ids[4]);
    EXPECT_INT(108, w.b.label[7]);
    free_all(&w);
    shut(&o);
    want = wants_tokens(4, 128256);
    write_shard("t.bin", true, 100000, 9, 9);
    EXPECT_OK(open_text(plain_job, want, &o));
    w = take_unmoved(o.data, TT_TRAIN, want);
    EXPECT_INT(100004, w.b.ids[4]);
    EXPECT_INT(100008, w.b.label[7]);
    free_all(&w);
    shut(&o);
}

TT_TEST(data_tokens, several_files_are_one_text)
{
    static const char list[] = "dir: .\ntrain: {format: tokens, files: [a.bin, b.bin, c.bin]}";
    static const char like[] = "dir: .\ntrain: {format: tokens, files: '*.bin'}";
    tt_data_want want = wants_tokens(4, 100);
    opened o;
    whole w, v;

    write_plain("a.bin", 10, 3);
    write_shard("b.bin", true, 13, 2, 2); /* shorter than a window */
    write_shard("c.bin", false, 15, 6, 6);
    EXPECT_OK(open_text(list, want, &o));
    EXPECT_INT(2, tt_data_count(o.data, TT_TRAIN)); /* 11 tokens */
    w = take_unmoved(o.data, TT_TRAIN, want);
    for (int i = 0; i < 8; i++) {
        EXPECT_INT(10 + i, w.b.ids[i]);
        EXPECT_INT(11 + i, w.b.label[i]);
    }
    shut(&o);
    EXPECT_OK(open_text(like, want, &o)); /* in the order of their names */
    v = take_unmoved(o.data, TT_TRAIN, want);
    EXPECT(!memcmp(w.b.ids, v.b.ids, 8 * sizeof *w.b.ids));
    EXPECT_OK(tt_tree_set(o.tree, "val={files: [b.bin, '[ac].bin']}"));
    EXPECT_OK(tt_data_find(tt_tree_root(o.tree)));
    EXPECT_OK(tt_tree_set(o.tree, "val={files: [b.bin, '[xy].bin']}"));
    EXPECT_ERR(TT_EDATA, tt_data_find(tt_tree_root(o.tree)));
    shut(&o);
    free_all(&w);
    free_all(&v);
    EXPECT_REFUSED(TT_EDATA, "no file is named like ./*.tok",
                   "dir: .\ntrain: {format: tokens, files: '*.tok'}", want);
    EXPECT_REFUSED(TT_EDATA, "no such file", "dir: .\ntrain: {format: tokens, files: x.bin}", want);
    EXPECT_REFUSED(TT_EINVAL, "'files' is empty", "dir: .\ntrain: {format: tokens, files: []}",
                   want);
}

TT_TEST(data_tokens, validation_is_another_list_or_the_end)
{
    tt_data_want want = wants_tokens(4, 1000);
    opened o;

    write_plain("t.bin", 0, 41);
    write_plain("v.bin", 500, 9);
    EXPECT_OK(
        open_text("dir: .\ntrain: {format: tokens, files: t.bin}\nval: {files: v.bin}", want, &o));
    EXPECT_INT(10, tt_data_count(o.data, TT_TRAIN));
    EXPECT_INT(2, tt_data_count(o.data, TT_VAL));
    shut(&o);
    EXPECT_OK(
        open_text("dir: .\ntrain: {format: tokens, files: t.bin}\nval: {split: 0.2}", want, &o));
    EXPECT_INT(8, tt_data_count(o.data, TT_TRAIN));
    EXPECT_INT(2, tt_data_count(o.data, TT_VAL));
    /* the last window is cut where it stands, however windows are moved */
    expect_window(o.data, TT_VAL, want, 1, 36);
    shut(&o);
}

/* Each pass moves its windows, all by as much, and stays within the part. */
TT_TEST(data_tokens, windows_are_moved_with_each_pass)
{
    tt_data_want want = wants_tokens(8, 4000);
    int starts[8] = {0}, kinds = 0;
    opened o;
    whole w;

    write_plain("t.bin", 0, 801);
    EXPECT_OK(
        open_text("dir: .\ntrain: {format: tokens, files: t.bin}\nval: {split: 0.1}", want, &o));
    w = (whole){.row = tt_data_row_of(&want)};
    EXPECT_OK(tt_batch_open(90, &w.row, &w.b));
    for (int pass = 0; pass < 40; pass++) {
        tt_order order = {.count = 90, .batch = 90, .by_pass = true, .augment = true};
        EXPECT_OK(tt_data_fill(o.data, TT_TRAIN, &order, pass, 0, 90, &w.b));
        starts[w.b.ids[0] % 8]++;
        for (int i = 0; i < 90; i++) {
            int want_at = i < 89 ? w.b.ids[0] + 8 * i : w.b.ids[89 * 8];
            EXPECT_INT(want_at, w.b.ids[8 * i]);
            EXPECT(w.b.label[8 * i + 7] <= 720); /* val begins at 720; a label may be its first */
        }
    }
    for (int i = 0; i < 8; i++) kinds += starts[i] > 0;
    EXPECT(kinds > 4);
    free_all(&w);
    shut(&o);
}

TT_TEST(data_tokens, bad_files_are_refused_with_the_reason)
{
    tt_data_want want = wants_tokens(4, 100);
    uint8_t odd[15] = {0};

    write_shard("t.bin", false, 10, 9, 8);
    EXPECT_REFUSED(TT_EDATA, "announces 9 tokens, which take 1042 bytes, the file has 1040",
                   plain_job, want);
    write_shard("t.bin", false, 10, 9, 10);
    EXPECT_REFUSED(TT_EDATA, "the file has 1044", plain_job, want);
    write_shard("t.bin", false, 10, -1, 9);
    EXPECT_REFUSED(TT_EDATA, "-1 tokens at offset 8", plain_job, want);
    write_shard("t.bin", true, 10, 0, 0);
    EXPECT_REFUSED(TT_EDATA, "no tokens in it", plain_job, want);
    tt_test_write("t.bin", "", 0);
    EXPECT_REFUSED(TT_EDATA, "no tokens in it", plain_job, want);
    tt_test_write("t.bin", odd, sizeof odd);
    EXPECT_REFUSED(TT_EDATA, "15 bytes are no whole number of tokens", plain_job, want);
    tt_test_write("t.bin", (int32_t[]){20240520, 1, 5}, 12);
    EXPECT_REFUSED(TT_EDATA, "the header is cut off at offset 12", plain_job, want);
    tt_test_write("t.bin", (int32_t[256]){20240520, 2, 0}, 1024);
    EXPECT_REFUSED(TT_EDATA, "version 2 at offset 4; 1 is supported", plain_job, want);
    tt_test_write("t.bin", (int32_t[256]){20240522, 1, 0}, 1024);
    EXPECT_REFUSED(TT_EDATA, "an evaluation set of llm.c", plain_job, want);
    write_plain("t.bin", 10, 4);
    EXPECT_REFUSED(TT_EDATA, "has 4 tokens: a window takes 4", plain_job, want);
}

TT_TEST(data_tokens, ids_the_model_does_not_know_are_told_with_their_place)
{
    uint32_t huge[256 + 8] = {20240801, 7, 8};
    opened o;

    write_plain("t.bin", 95, 20);
    EXPECT_REFUSED(TT_EDATA, "t.bin: token 5 is 100, but the model's embedding has 100 rows",
                   plain_job, wants_tokens(4, 100));
    EXPECT_OK(open_text(plain_job, wants_tokens(4, 115), &o));
    EXPECT_INT(115, tt_data_classes(o.data));
    shut(&o);
    huge[256 + 3] = 0xfffffff0u;
    tt_test_write("t.bin", huge, sizeof huge);
    EXPECT_REFUSED(TT_EDATA, "token 3 is 4294967280", plain_job, wants_tokens(4, 100));
    write_plain("t.bin", 0, 20);
    EXPECT_REFUSED(TT_EINVAL, "takes no tokens", plain_job, wants_vector(3, 2, 0));
}

TT_TEST(data_tokens, meta_json_says_what_tokens_are)
{
    tt_data_want want = wants_tokens(4, 100);
    opened o;

    write_plain("t.bin", 0, 20);
    write_text("meta.json", "{\"vocab_size\": 20}");
    EXPECT_OK(open_text(plain_job, want, &o));
    EXPECT_INT(20, tt_data_classes(o.data));
    shut(&o);
    write_text("meta.json", "{\"vocab_size\": 19}");
    EXPECT_REFUSED(TT_EDATA, "token 19 is 19, but meta.json beside it says there are 19", plain_job,
                   want);
    write_text("meta.json", "{\"vocab_size\": 101}");
    EXPECT_REFUSED(TT_EDATA, "has 101 tokens, but the model's embedding 100 rows", plain_job, want);
    write_text("meta.json", "{\"vocab_size\": 0}");
    EXPECT_REFUSED(TT_EDATA, "meta.json: vocab_size", plain_job, want);
    write_text("meta.json", "{\"vocab_size\": 20, \"itos\": [\"a\"]}");
    EXPECT_REFUSED(TT_EDATA, "itos is no list", plain_job, want);
    write_text("meta.json", "{");
    EXPECT_REFUSED(TT_EDATA, "meta.json: line 1", plain_job, want);
}

TT_TEST(data_tokens, only_a_name_makes_a_file_a_packed_one)
{
    uint16_t token[20] = {0x8b1f, 8}; /* as a gzip file begins */
    tt_data_want want = wants_tokens(4, 60000);
    tt_bytes plain;
    gzFile gz;
    opened o;
    whole w;

    tt_test_write("t.bin", token, sizeof token);
    EXPECT_OK(open_text(plain_job, want, &o));
    w = take_unmoved(o.data, TT_TRAIN, want);
    EXPECT_INT(0x8b1f, w.b.ids[0]);
    free_all(&w);
    shut(&o);
    write_shard("t.bin", false, 7, 9, 9);
    EXPECT_OK(tt_file_read("t.bin", 0, &plain));
    EXPECT((gz = gzopen("t.bin.gz", "wb")));
    EXPECT_INT((long long)plain.size, gzwrite(gz, plain.data, (unsigned)plain.size));
    gzclose(gz);
    tt_file_release(&plain);
    EXPECT_INT(0, unlink("t.bin"));
    EXPECT_OK(open_text(plain_job, want, &o));
    w = take_unmoved(o.data, TT_TRAIN, want);
    EXPECT_INT(7, w.b.ids[0]);
    free_all(&w);
    shut(&o);
}

/* ---- tokens: gpt2 ---- */

static const char gpt2_job[] =
    "dir: .\ntrain: {format: text, file: t.txt, tokens: gpt2, tokenizer: small}";

TT_TEST(data_tokens, text_may_be_tokens_of_gpt2)
{
    tt_data_want want = wants_tokens(2, SMALL_COUNT);
    opened o;
    whole w;

    NEEDS_PCRE2;
    write_small("small");
    write_text("t.txt", "hello hellaaa he");
    EXPECT_OK(open_text(gpt2_job, want, &o)); /* hello, ' ', hell, aaa, ' ', he */
    EXPECT_INT(2, tt_data_count(o.data, TT_TRAIN));
    w = take_unmoved(o.data, TT_TRAIN, want);
    EXPECT_INT(259, w.b.ids[0]);
    EXPECT_INT(small_id(' '), w.b.label[0]);
    EXPECT_INT(258, w.b.label[1]);
    EXPECT_INT(263, w.b.ids[3]);
    free_all(&w);
    shut(&o);
    EXPECT_REFUSED(TT_EDATA, "has 266 tokens, but the model's embedding 265 rows", gpt2_job,
                   wants_tokens(2, 265));
    want = wants_tokens(2, SMALL_COUNT);
    /* validation needs nothing of training but its keys */
    write_text("v.txt", "hello\xff hello hello");
    EXPECT_OK(open_text("dir: .\nval: {file: v.txt}\n"
                        "train: {format: text, file: t.txt, tokens: gpt2, tokenizer: small}",
                        want, &o));
    EXPECT_INT(2, tt_data_count(o.data, TT_VAL));
    shut(&o);
}

TT_TEST(data_tokens, lines_of_gpt2_end_with_its_end)
{
    static const char job[] =
        "dir: .\ntrain: {format: lines, file: t.txt, tokens: gpt2, tokenizer: small}";
    tt_data_want want = wants_tokens(3, SMALL_COUNT);
    opened o;
    whole w;

    NEEDS_PCRE2;
    write_small("small");
    write_text("t.txt", "hello\r\n\nhe world\nhell"); /* 1, and he, ' w', or, l, d; 1 */
    EXPECT_REFUSED(TT_EDATA, "line 3 has 5 tokens", job, want);
    write_text("t.txt", "hello\r\n\nheaaa\nhell");
    EXPECT_OK(open_text(job, want, &o));
    EXPECT_INT(3, tt_data_count(o.data, TT_TRAIN));
    w = take_unmoved(o.data, TT_TRAIN, want);
    for (int i = 0; i < 3; i++) EXPECT_INT(SMALL_END, w.b.ids[3 * i]);
    EXPECT_INT(259, w.b.label[0]);
    EXPECT_INT(SMALL_END, w.b.label[1]);
    EXPECT_INT(-1, w.b.label[2]);
    EXPECT_INT(256, w.b.ids[4]);
    EXPECT_INT(263, w.b.label[4]);
    EXPECT_INT(SMALL_END, w.b.label[5]);
    EXPECT_INT(258, w.b.label[6]);
    free_all(&w);
    shut(&o);
}

TT_TEST(data_tokens, a_tokenizer_is_asked_for_and_only_where_it_is_used)
{
    tt_data_want want = wants_tokens(2, 300);

    write_text("t.txt", "hello hello");
    EXPECT_REFUSED(TT_EINVAL, "needs `tokenizer:`",
                   "dir: .\ntrain: {format: text, file: t.txt, tokens: gpt2}", want);
    EXPECT_REFUSED(TT_EINVAL, "a tokenizer is for tokens: gpt2",
                   "dir: .\ntrain: {format: text, file: t.txt, tokenizer: small}", want);
    EXPECT_REFUSED(TT_EDATA, "./gone: no tokenizer there",
                   "dir: .\ntrain: {format: text, file: t.txt, tokens: gpt2, tokenizer: gone}",
                   want);
}

TT_TEST(data_tokens, other_texts_are_encoded_as_the_training_set_is)
{
    tt_data_want want = wants_tokens(2, SMALL_COUNT);
    int32_t id[16];
    tt_str text = {0};
    int64_t n;
    opened o;

    write_plain("t.bin", 250, 12);
    EXPECT_OK(open_text(plain_job, want, &o)); /* who knows what these are? */
    EXPECT_ERR(TT_EDATA, tt_data_encode(o.data, "hello", 5, id, &n));
    EXPECT_MESSAGE("name a `tokenizer:`");
    EXPECT_INT(250, tt_data_first(o.data));
    tt_data_decode(o.data, 255, &text);
    EXPECT_STR("255 ", text.data);
    shut(&o);
    NEEDS_PCRE2;
    write_small("small");
    write_text("t.txt", "hello hello hello");
    for (int shards = 0; shards < 2; shards++) {
        EXPECT_OK(open_text(
            shards ? "dir: .\ntrain: {format: tokens, files: t.bin, tokenizer: small}" : gpt2_job,
            want, &o));
        EXPECT_OK(tt_data_encode(o.data, "hello he", 8, id, &n));
        EXPECT(n == 3 && id[0] == 259 && id[1] == small_id(' ') && id[2] == 256);
        tt_str_free(&text);
        for (int i = 0; i < n; i++) tt_data_decode(o.data, id[i], &text);
        EXPECT_STR("hello he", text.data);
        shut(&o);
    }
    tt_str_free(&text);
}

/* A number must mean the same wherever it stands. */
TT_TEST(data_tokens, validation_is_in_the_tokens_of_training)
{
    static const char texts[] = "dir: .\ntrain: {format: text, file: t.txt, tokens: %s}\n"
                                "val: {format: %s, file: v.txt, tokens: %s}";
    static const struct {
        const char *train, *format, *val, *says;
    } cases[] = {{"bytes", "text", "chars", "mean something else than those of the training set"},
                 {"chars", "text", "bytes", "mean something else than those of the training set"},
                 {"chars", "lines", "chars", "is read by lines"},
                 {"bytes", "lines", "bytes", "is read by lines"}};
    tt_data_want want = wants_tokens(5, 300);

    write_text("t.txt", "abc\nabcabc");
    write_text("v.txt", "bc\nbcbc");
    for (int i = 0; i < TT_COUNT(cases); i++) {
        char job[300];
        snprintf(job, sizeof job, texts, cases[i].train, cases[i].format, cases[i].val);
        EXPECT_REFUSED(TT_EDATA, cases[i].says, job, want);
    }
}

TT_TEST(data_tokens, files_that_are_none_are_told)
{
    uint32_t wide[40];
    tt_data_want want = wants_tokens(4, 50257);

    for (int i = 0; i < 40; i++) wide[i] = (uint32_t)i + 1;
    EXPECT_OK(tt_file_write("w.bin", wide, sizeof wide));
    EXPECT_REFUSED(TT_EDATA, "w.bin: every second token is 0",
                   "dir: .\ntrain: {format: tokens, files: w.bin}", want);
    write_shard("s.bin", false, 15, 6, 6);
    write_text("s.json", "{\"a\": \"b\"}");
    EXPECT_REFUSED(TT_EDATA, "s.json has no header",
                   "dir: .\ntrain: {format: tokens, files: [s.bin, s.json]}", want);
    EXPECT_REFUSED(TT_EDATA, "s.json has no header as ./s.bin has",
                   "dir: .\ntrain: {format: tokens, files: [s.json, s.bin]}", want);
}

/* ---- from text to shards ---- */

static tt_err prepare(const char *tokens, const char *out, double val, int64_t most,
                      tt_prepared *made)
{
    static const char *const files[] = {"one.txt", "two.txt"};

    return tt_data_prepare(&(tt_prepare_opts){.input = files,
                                              .inputs = 2,
                                              .tokens = tokens,
                                              .tokenizer = strcmp(tokens, "gpt2") ? NULL : "small",
                                              .out = out,
                                              .val = val,
                                              .shard_tokens = most},
                           made);
}

static json_t *read_meta(const char *path)
{
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, NULL);

    EXPECT(j);
    return j;
}

TT_TEST(data_prepare, shards_are_the_text)
{
    tt_data_want want = wants_tokens(4, 300);
    opened text, shards;
    tt_prepared made;
    whole a, b;
    json_t *meta;

    write_text("one.txt", "na\xc3\xafve \xe4\xb8\xad");
    write_text("two.txt", "\xe6\x96\x87 ends here.");
    write_text("both.txt", "na\xc3\xafve \xe4\xb8\xad\xe6\x96\x87 ends here.");
    EXPECT_OK(prepare("chars", "s", 0, 5, &made));
    EXPECT_INT(19, made.tokens[TT_TRAIN]);
    EXPECT_INT(4, made.shards[TT_TRAIN]);
    EXPECT_INT(0, made.shards[TT_VAL]);
    EXPECT(tt_file_exists("s/train-000003.bin") && !tt_file_exists("s/train-000004.bin"));
    EXPECT(!tt_file_exists("s.part") && !tt_file_exists("s/tokens"));
    EXPECT_OK(open_text("dir: .\ntrain: {format: text, file: both.txt}", want, &text));
    EXPECT_OK(open_text("dir: s\ntrain: {format: tokens, files: 'train-*.bin'}", want, &shards));
    EXPECT_INT(tt_data_classes(text.data), tt_data_classes(shards.data));
    EXPECT_INT(made.vocab, tt_data_classes(shards.data));
    for (int i = 0; i < made.vocab; i++)
        EXPECT_STR(tt_data_class_name(text.data, i), tt_data_class_name(shards.data, i));
    a = take_all(text.data, TT_TRAIN, want);
    b = take_all(shards.data, TT_TRAIN, want);
    EXPECT_INT(4, a.b.n);
    EXPECT(!memcmp(a.b.ids, b.b.ids, 16 * sizeof *a.b.ids));
    EXPECT(!memcmp(a.b.label, b.b.label, 16 * sizeof *a.b.label));
    free_all(&a);
    free_all(&b);
    shut(&text);
    shut(&shards);
    meta = read_meta("s/meta.json");
    EXPECT_STR("chars", json_string_value(json_object_get(meta, "tokens")));
    EXPECT_INT(19, json_integer_value(json_object_get(meta, "count")));
    EXPECT_INT(24, json_integer_value(json_object_get(meta, "bytes")));
    json_decref(meta);
}

TT_TEST(data_prepare, the_end_is_to_validate_on)
{
    tt_prepared made;
    tt_data_want want = wants_tokens(2, 256);
    opened o;
    whole w;

    write_text("one.txt", "abcdefgh");
    tt_test_write("two.txt", "\xff\x00kl", 4); /* any bytes */
    EXPECT_OK(prepare("bytes", "deep/er/s", 0.25, 100, &made));
    EXPECT_INT(9, made.tokens[TT_TRAIN]);
    EXPECT_INT(3, made.tokens[TT_VAL]);
    EXPECT_INT(256, made.vocab);
    EXPECT_OK(open_text("dir: deep/er/s\ntrain: {format: tokens, files: train-000000.bin}\n"
                        "val: {files: val-000000.bin}",
                        want, &o));
    w = take_unmoved(o.data, TT_VAL, want);
    EXPECT_INT(0, w.b.ids[0]);
    EXPECT_INT('l', w.b.label[1]);
    free_all(&w);
    shut(&o);
}

/* nanoGPT's data/shakespeare_char has so many. */
TT_TEST(data_prepare, shakespeare_is_cut_as_elsewhere)
{
    char path[4096];
    tt_prepared made;

    snprintf(path, sizeof path, "%s/input.txt", tt_test_data("tinyshakespeare"));
    EXPECT_OK(tt_data_prepare(&(tt_prepare_opts){.input = (const char *const[]){path},
                                                 .inputs = 1,
                                                 .tokens = "chars",
                                                 .out = "s",
                                                 .val = 0.1,
                                                 .shard_tokens = 100000000},
                              &made));
    EXPECT_INT(65, made.vocab);
    EXPECT_INT(1003854, made.tokens[TT_TRAIN]);
    EXPECT_INT(111540, made.tokens[TT_VAL]);
}

TT_TEST(data_prepare, files_of_gpt2_are_documents)
{
    tt_bytes file;
    tt_prepared made;
    tt_shard h;
    json_t *meta;

    NEEDS_PCRE2;
    write_small("small");
    write_text("one.txt", "hello");
    write_text("two.txt", "he world");
    EXPECT_OK(prepare("gpt2", "s", 0, 100, &made));
    EXPECT_INT(SMALL_COUNT, made.vocab);
    EXPECT_OK(tt_file_map("s/train-000000.bin", &file));
    EXPECT_OK(tt_shard_decode("s", file.data, file.size, &h));
    EXPECT_INT(8, h.count);
    EXPECT_INT(259, tt_shard_at(&h, 0));
    EXPECT_INT(SMALL_END, tt_shard_at(&h, 1));
    EXPECT_INT(260, tt_shard_at(&h, 3));
    EXPECT_INT(SMALL_END, tt_shard_at(&h, 7));
    tt_file_release(&file);
    meta = read_meta("s/meta.json");
    EXPECT_INT(SMALL_END, json_integer_value(json_object_get(meta, "end_of_text")));
    json_decref(meta);
}

/* Of texts that were prepared one by one, numbers mean something else. */
TT_TEST(data_prepare, folders_of_other_words_are_told_apart)
{
    tt_data_want want = wants_tokens(2, 300);
    tt_prepared made;

    write_text("one.txt", "abcabc");
    write_text("two.txt", "abc");
    EXPECT_OK(prepare("chars", "s", 0, 100, &made));
    write_text("one.txt", "bcdbcd");
    write_text("two.txt", "bcd");
    EXPECT_OK(prepare("chars", "t", 0, 100, &made));
    EXPECT_REFUSED(TT_EDATA, "t/meta.json: its tokens mean something else",
                   "dir: .\ntrain: {format: tokens, files: ['s/*.bin', 't/*.bin']}", want);
    EXPECT_REFUSED(TT_EDATA, "mean something else than those of the training set",
                   "dir: .\ntrain: {format: tokens, files: 's/*.bin'}\nval: {files: 't/*.bin'}",
                   want);
}

/* What a token stands for, on the mean of a split, whoever is asked. */
TT_TEST(data_prepare, bytes_of_a_token_are_those_of_its_split)
{
    static const char bare[] = "dir: .\ntrain: {format: tokens, files: 's/train*.bin'}\n"
                               "val: {files: 's/val*.bin'%s}";
    tt_data_want want = wants_tokens(2, SMALL_COUNT);
    char job[200];
    tt_prepared made;
    opened o;

    NEEDS_PCRE2;
    write_small("small");
    write_text("one.txt", "hellohellohellohellohello");
    write_text("two.txt", "aaaaa");
    EXPECT_OK(prepare("gpt2", "s", 0.5, 100, &made));
    snprintf(job, sizeof job, bare, "");
    EXPECT_OK(open_text(job, want, &o));
    double train = tt_data_token_bytes(o.data, TT_TRAIN), val = tt_data_token_bytes(o.data, TT_VAL);
    EXPECT(val > 0 && train > 2 * val);
    shut(&o);
    snprintf(job, sizeof job, bare, ", tokenizer: small");
    EXPECT_OK(open_text(job, want, &o));
    val = tt_data_token_bytes(o.data, TT_VAL); /* of those that are judged */
    EXPECT(val > 0 && train > 2 * val);
    shut(&o);
}

/* Content in common has no tokenizer, and still knows what its tokens stand for. */
TT_TEST(data_tokens, bytes_of_a_token_are_the_same_in_common)
{
    static const char job[] =
        "dir: .\ntrain: {format: lines, file: t.txt, tokens: gpt2, tokenizer: small}\n"
        "val: {split: 0.5}";
    tt_data_want want = wants_tokens(4, SMALL_COUNT);
    opened alone, shared = {0};

    NEEDS_PCRE2;
    write_small("small");
    write_text("t.txt", "hello\nhe\nhellohello\naaa\n");
    EXPECT_OK(open_text(job, want, &alone));
    EXPECT_OK(tt_tree_parse("job.yaml", job, strlen(job), &shared.tree));
    EXPECT_OK(tt_data_open_common(tt_tree_root(shared.tree), &want, 7, "common", 20, &shared.data));
    EXPECT(tt_data_common(shared.data, NULL));
    for (tt_split i = TT_TRAIN; i <= TT_VAL; i++) {
        EXPECT(tt_data_token_bytes(alone.data, i) > 0);
        EXPECT_NEAR(tt_data_token_bytes(alone.data, i), tt_data_token_bytes(shared.data, i), 0);
    }
    EXPECT(tt_data_meaning(alone.data).words &&
           tt_data_meaning(alone.data).words == tt_data_meaning(shared.data).words);
    shut(&alone);
    shut(&shared);
}

TT_TEST(data_prepare, a_folder_is_whole_or_not_there)
{
    tt_prepared made;

    write_text("one.txt", "abc");
    write_text("two.txt", "a\xff");
    EXPECT_ERR(TT_EDATA, prepare("chars", "s", 0, 100, &made));
    EXPECT_MESSAGE("two.txt: byte 1 is not UTF-8");
    EXPECT(!tt_file_exists("s") && !tt_file_exists("s.part"));
    EXPECT_INT(0, unlink("two.txt"));
    EXPECT_ERR(TT_EDATA, prepare("bytes", "s", 0, 100, &made));
    EXPECT_MESSAGE("two.txt");
    EXPECT(!tt_file_exists("s") && !tt_file_exists("s.part"));
    write_text("two.txt", "d");
    EXPECT_OK(tt_dir_make("s.part")); /* of one that was killed */
    write_text("s.part/train-000007.bin", "x");
    write_text("s.part/thesis.txt", "x"); /* and of nobody we know */
    EXPECT_ERR(TT_EINVAL, prepare("bytes", "s", 0, 100, &made));
    EXPECT_MESSAGE("s.part/thesis.txt is in the way");
    EXPECT_INT(0, unlink("s.part/thesis.txt"));
    EXPECT_OK(tt_dir_make("s"));
    EXPECT_OK(prepare("bytes", "s/", 0, 100, &made));
    EXPECT(tt_file_exists("s/train-000000.bin") && !tt_file_exists("s/train-000007.bin"));
    EXPECT(!tt_file_exists("s.part"));
    EXPECT_ERR(TT_EINVAL, prepare("bytes", "s", 0, 100, &made));
    EXPECT_MESSAGE("s is there and not empty");
    EXPECT_ERR(TT_EINVAL, prepare("bytes", ".", 0, 100, &made));
    EXPECT_MESSAGE("name a folder of its own");
    EXPECT_ERR(TT_EINVAL, tt_data_prepare(&(tt_prepare_opts){.input = (const char *[]){"one.txt"},
                                                             .inputs = 1,
                                                             .tokens = "chars",
                                                             .tokenizer = "small",
                                                             .out = "t",
                                                             .shard_tokens = 100},
                                          &made));
    EXPECT_MESSAGE("a tokenizer is for tokens: gpt2");
    EXPECT_ERR(TT_EINVAL, prepare("words", "t", 0, 100, &made));
    EXPECT_MESSAGE("bytes, chars or gpt2");
    EXPECT_ERR(TT_EINVAL, prepare("bytes", "t", 1, 100, &made));
    EXPECT_ERR(TT_EINVAL, prepare("bytes", "t", 0, 0, &made));
    write_text("one.txt", "");
    EXPECT_ERR(TT_EDATA, prepare("bytes", "t", 0.5, 100, &made));
    EXPECT_MESSAGE("too few");
}
