/* Text in windows and in lines: which tokens are where, and what is no text. */
#include "data/source.h"
#include "data_help.h"

static tt_data_want tokens(int64_t ids, int classes)
{
    static int64_t rows[64];

    for (int i = 0; i < 64; i++) rows[i] = classes;
    return (tt_data_want){
        .input = {1, {0}}, .ids = ids, .id_rows = rows, .classes = classes, .labels = ids};
}

static tt_err open_with(const char *job, tt_data_want want, tt_tree **tree, tt_data **out)
{
    EXPECT_OK(tt_tree_parse("job", job, strlen(job), tree));
    return tt_data_open(tt_tree_root(*tree), &want, 1, out);
}

/* Sample i of a split as text: its ids, then its labels, a dot for none. */
static const char *sample(const tt_data *d, tt_split split, int64_t i, int64_t pass, bool moved)
{
    static char text[256];
    static int32_t ids[64], label[64];
    int64_t n = tt_data_count(d, split), w = d->want.ids;
    tt_order o = {.count = n, .batch = 1, .by_pass = true, .augment = moved};
    tt_batch b = {.ids = ids, .label = label};
    tt_str out = {0};

    EXPECT_OK(tt_data_fill(d, split, &o, pass * n + i, 0, 1, &b));
    for (int k = 0; k < w; k++) tt_data_decode(d, ids[k], &out);
    tt_str_add(&out, "|");
    for (int k = 0; k < w; k++)
        if (label[k] < 0)
            tt_str_add(&out, ".");
        else
            tt_data_decode(d, label[k], &out);
    snprintf(text, sizeof text, "%s", out.data);
    tt_str_free(&out);
    return text;
}

TT_TEST(text, windows_follow_one_another_and_labels_are_one_further_on)
{
    tt_tree *tree;
    tt_data *d;

    write_text("abc.txt", "hello world, hello");
    EXPECT_OK(
        open_with("{dir: '', train: {format: text, file: abc.txt}}", tokens(4, 10), &tree, &d));
    EXPECT_INT(4, tt_data_count(d, TT_TRAIN)); /* 18 characters: 17 have one behind them */
    EXPECT_STR("hell|ello", sample(d, TT_TRAIN, 0, 0, false));
    EXPECT_STR("o wo| wor", sample(d, TT_TRAIN, 1, 0, false));
    EXPECT_STR("rld,|ld, ", sample(d, TT_TRAIN, 2, 0, false));
    EXPECT_NEAR(1, tt_data_token_bytes(d, TT_TRAIN), 0);
    tt_data_close(d);
    tt_tree_close(tree);
}

/* Every pass moves all windows by as much, another one by something else, and none leaves the text.
 */
TT_TEST(text, each_pass_cuts_it_elsewhere)
{
    tt_tree *tree;
    tt_data *d;
    char text[4 * 26 + 2] = "", first[64];
    int moved = 0;

    for (int i = 0; i < 4 * 26 + 1; i++) text[i] = (char)('a' + i % 26);
    write_text("abc.txt", text);
    EXPECT_OK(open_with("{dir: '', train: {format: text, file: abc.txt}, val: {split: 0.2}}",
                        tokens(4, 26), &tree, &d));
    int64_t n = tt_data_count(d, TT_TRAIN);
    EXPECT_INT(21, n);
    EXPECT_INT(5, tt_data_count(d, TT_VAL));
    for (int pass = 0; pass < 8; pass++) {
        snprintf(first, sizeof first, "%s", sample(d, TT_TRAIN, 0, pass, true));
        moved += first[0] != 'a';
        for (int64_t i = 0; i < n; i++) {
            const char *s = sample(d, TT_TRAIN, i, pass, true);
            EXPECT(s[1] == 'a' + (s[0] - 'a' + 1) % 26 && s[5] == s[1]);
            if (i < n - 1) EXPECT_INT((first[0] - 'a' + 4 * i) % 26, s[0] - 'a');
        }
        /* What is validated on is behind it, and no window of the rest reaches into it. */
        EXPECT_STR("ghij|hijk", sample(d, TT_VAL, 0, pass, false));
        EXPECT(sample(d, TT_TRAIN, n - 1, pass, true)[0] <= 'c');
    }
    EXPECT(moved > 3);
    tt_data_close(d);
    tt_tree_close(tree);
}

TT_TEST(text, lines_have_edges_and_what_is_left_has_no_labels)
{
    tt_tree *tree;
    tt_data *d;

    write_text("names.txt", "ann\r\nbo\n\nmia");
    EXPECT_OK(
        open_with("{dir: '', train: {format: lines, file: names.txt}}", tokens(5, 27), &tree, &d));
    EXPECT_INT(3, tt_data_count(d, TT_TRAIN));
    EXPECT_STR("\nann\n|ann\n.", sample(d, TT_TRAIN, 0, 0, false));
    EXPECT_STR("\nbo\n\n|bo\n..", sample(d, TT_TRAIN, 1, 0, false));
    EXPECT_STR("\nmia\n|mia\n.", sample(d, TT_TRAIN, 2, 0, false));
    EXPECT_INT(6, tt_data_edge(d)); /* a b i m n o */
    tt_data_close(d);
    tt_tree_close(tree);
}

/* As many lines as there are ends of either kind, and none that is empty. */
TT_TEST(text, a_line_may_end_in_a_carriage_return_alone)
{
    char text[3 * 4000 + 1];
    tt_tree *tree;
    tt_data *d;

    for (int i = 0; i < 4000; i++) memcpy(text + 3 * i, "ab\r", 4);
    write_text("names.txt", text);
    EXPECT_OK(open_with("{dir: '', train: {format: lines, file: names.txt, tokens: bytes}}",
                        tokens(5, 257), &tree, &d));
    EXPECT_INT(4000, tt_data_count(d, TT_TRAIN));
    EXPECT_STR("ab|ab..", sample(d, TT_TRAIN, 3999, 0, false));
    EXPECT_INT(8000, d->train->row[4000]);
    tt_data_close(d);
    tt_tree_close(tree);
}

/* Nothing has a name that ends before it begins. */
TT_TEST(text, nul_is_a_byte_and_no_character)
{
    static const char text[] = "ab\nc\0d, and so on";
    tt_tree *tree;
    tt_data *d;

    tt_test_write("nul.txt", text, sizeof text - 1);
    EXPECT_ERR(TT_EDATA, open_with("{dir: '', train: {format: text, file: nul.txt}}",
                                   tokens(4, 300), &tree, &d));
    EXPECT_MESSAGE("nul.txt: line 2 (byte 4) has a NUL");
    tt_tree_close(tree);
    EXPECT_OK(open_with("{dir: '', train: {format: text, file: nul.txt, tokens: bytes}}",
                        tokens(4, 256), &tree, &d));
    tt_data_close(d);
    tt_tree_close(tree);
}

TT_TEST(text, characters_are_those_of_the_training_text)
{
    static const char job[] =
        "{dir: '', train: {format: text, file: train.txt}, val: {format: text, "
        "file: val.txt}}";
    tt_tree *tree;
    tt_data *d;
    int32_t ids[16];
    int64_t n;

    write_text("train.txt", "naïve café — z");
    write_text("val.txt", "fézéanv");
    EXPECT_OK(open_with(job, tokens(3, 20), &tree, &d));
    EXPECT_STR("féz|ézé", sample(d, TT_VAL, 0, 0, false));
    EXPECT_OK(tt_data_encode(d, "éa", strlen("éa"), ids, &n));
    EXPECT_INT(2, n);
    EXPECT_ERR(TT_EDATA, tt_data_encode(d, "ax", 2, ids, &n));
    EXPECT_MESSAGE("'x' is nowhere in the training text");
    tt_data_close(d);
    tt_tree_close(tree);
    write_text("val.txt", "féz\nq");
    EXPECT_ERR(TT_EDATA, open_with(job, tokens(3, 20), &tree, &d));
    EXPECT_MESSAGE("val.txt: line 1 has");
    tt_tree_close(tree);
}

TT_TEST(text, tokens_are_spelled_without_the_text)
{
    tt_tree *tree;
    tt_data *d, *again;
    tt_str text = {0};
    int32_t ids[16];
    int64_t n;

    write_text("names.txt", "zoé\nab\n");
    EXPECT_OK(
        open_with("{dir: '', train: {format: lines, file: names.txt}}", tokens(8, 20), &tree, &d));
    json_t *j = tt_data_learned(d);
    EXPECT(j);
    EXPECT_OK(tt_data_open_text(j, NULL, &again));
    EXPECT_INT(tt_data_edge(d), tt_data_edge(again));
    EXPECT_INT(tt_data_first(d), tt_data_first(again));
    EXPECT_INT(tt_data_token_count(d), tt_data_token_count(again));
    EXPECT(tt_data_meaning(d).words == tt_data_meaning(again).words);
    EXPECT_OK(tt_data_encode(again, "éz", strlen("éz"), ids, &n));
    EXPECT_INT(2, n);
    for (int i = 0; i < n; i++) tt_data_decode(again, ids[i], &text);
    EXPECT_STR("éz", text.data);
    EXPECT_ERR(TT_EDATA, tt_data_encode(again, "x", 1, ids, &n));
    EXPECT_INT(0, tt_data_count(again, TT_TRAIN));
    tt_str_free(&text);
    json_decref(j);
    tt_data_close(again);
    tt_data_close(d);
    tt_tree_close(tree);
}

TT_TEST(text, a_spelling_that_is_none_is_refused)
{
    static const char *const bad[] = {
        "{}",
        "[]",
        "{\"names\": [], \"first\": 0}",
        "{\"names\": {\"a\": 1}, \"first\": 0}",
        "{\"names\": [\"a\", 7], \"first\": 0}",
        "{\"names\": [\"a\", \"b\"], \"first\": 2}",
        "{\"names\": [\"a\", \"b\"], \"first\": -1}",
        "{\"names\": [\"a\", \"b\"], \"first\": 0.5}",
        "{\"names\": [\"a\", \"b\"], \"first\": 0, \"edge\": 2}",
        "{\"names\": [\"a\", \"b\"], \"first\": 0, \"edge\": \"a\"}",
        "{\"bytes\": 70000, \"first\": 0}",
        "{\"bytes\": \"256\", \"first\": 0}",
    };

    for (int i = 0; i < TT_COUNT(bad); i++) {
        json_t *j = json_pack("{s:o}", "tokens", json_loads(bad[i], 0, NULL));
        tt_data *d;
        EXPECT(j);
        if (tt_data_open_text(j, NULL, &d) != TT_EFORMAT) FAIL("taken: %s", bad[i]);
        EXPECT(!d);
        EXPECT_MESSAGE("what it says of its data is damaged");
        json_decref(j);
    }
    EXPECT_ERR(TT_EFORMAT, tt_data_open_text(NULL, NULL, &(tt_data *){NULL}));
    /* a token may stand for nothing, and a text begin with any */
    json_t *j = json_loads("{\"tokens\": {\"names\": [\"\", \"a\"]}}", 0, NULL);
    tt_data *d;
    EXPECT_OK(tt_data_open_text(j, NULL, &d));
    EXPECT_INT(0, tt_data_first(d));
    EXPECT_INT(2, tt_data_token_count(d));
    tt_data_close(d);
    json_decref(j);
}

TT_TEST(text, bytes_are_tokens_too)
{
    tt_tree *tree;
    tt_data *d;

    write_text("abc.txt", "caf\xe9 au lait");
    EXPECT_ERR(TT_EDATA, open_with("{dir: '', train: {format: text, file: abc.txt}}",
                                   tokens(4, 300), &tree, &d));
    EXPECT_MESSAGE("abc.txt: line 1 (byte 3) is not UTF-8: say tokens: bytes");
    tt_tree_close(tree);
    EXPECT_OK(open_with("{dir: '', train: {format: text, file: abc.txt, tokens: bytes}}",
                        tokens(4, 256), &tree, &d));
    EXPECT_STR("caf\xe9|af\xe9 ", sample(d, TT_TRAIN, 0, 0, false));
    tt_data_close(d);
    tt_tree_close(tree);
}

/* Those that are not kept are the ones before, as often as it takes, wherever a pass cuts. */
TT_TEST(text, of_synthetic_tokens_there_are_as_many_samples_as_were_asked_for)
{
    char first[256];
    tt_tree *tree;
    tt_data *d;

    EXPECT_OK(open_with("{dir: '', train: {format: synth, kind: tokens, count: 10000, classes: 9}}",
                        tokens(4, 9), &tree, &d));
    EXPECT_INT(10000, tt_data_count(d, TT_TRAIN));
    snprintf(first, sizeof first, "%s", sample(d, TT_TRAIN, 0, 0, false));
    EXPECT_STR(first, sample(d, TT_TRAIN, d->train->kept, 0, false));
    for (int pass = 0; pass < 4; pass++)
        for (int64_t i = 0; i < 10000; i++)
            EXPECT(strspn(sample(d, TT_TRAIN, i, pass, true), "012345678 |") == 17);
    tt_data_close(d);
    tt_tree_close(tree);
}

TT_TEST(text, what_does_not_fit_is_told)
{
    static const struct {
        const char *text, *job, *message;
        int64_t ids;
        int classes;
    } bad[] = {
        {"abcdef", "{dir: '', train: {format: text, file: t}}", "has 6 tokens, but the model's", 2,
         5},
        {"abc", "{dir: '', train: {format: text, file: t}}",
         "a window takes 3 and the one behind it", 3, 9},
        {"", "{dir: '', train: {format: text, file: t}}", "t has 0 tokens", 3, 9},
        {"abcdef", "{dir: '', train: {format: text, file: t}, scale: 2}",
         "scale is for numbers, and", 2, 9},
        {"abcdef", "{dir: '', train: {format: text, file: t}, normalize: auto}",
         "normalize is for numbers, and", 2, 9},
        {"", "{dir: '', train: {format: lines, file: t}}", "no lines in it", 3, 9},
        {"abc\nabcde\n", "{dir: '', train: {format: lines, file: t}}", "line 2 has", 5, 9},
        {"abc\r\n\r\n\nabcde\n", "{dir: '', train: {format: lines, file: t}}", "line 4 has", 5, 9},
        {"abc", "{dir: '', train: {format: text, file: t, tokens: words}}",
         "must be bytes, chars or gpt2", 2, 9},
    };

    for (int i = 0; i < TT_COUNT(bad); i++) {
        tt_tree *tree;
        tt_data *d;
        write_text("t", bad[i].text);
        if (!open_with(bad[i].job, tokens(bad[i].ids, bad[i].classes), &tree, &d))
            FAIL("'%s' was taken", bad[i].text);
        if (!strstr(tt_message(), bad[i].message))
            FAIL("'%s' lacks '%s'", tt_message(), bad[i].message);
        tt_tree_close(tree);
    }
}
