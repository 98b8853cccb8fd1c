/* GPT-2's tokens: against the reference, both forms of its files, any bytes there and back. */
#include "bpe_help.h"

#include <unistd.h>

static const char golden[] =
    "Hello world! I've 123 tokens,  two spaces\n\n\tand \xe4\xb8\xad\xe6\x96\x87 "
    "\xe2\x80\x94 na\xc3\xafve caf\xc3\xa9 \xf0\x9f\x8e\x89.   ";
#define GOLDEN_IDS                                                                                 \
    15496, 995, 0, 314, 1053, 17031, 16326, 11, 220, 734, 9029, 628, 197, 392, 220, 40792, 23877,  \
        229, 851, 41492, 40304, 12520, 236, 231, 13, 220, 220, 220

static void expect_back(tt_bpe *b, const void *text, size_t size)
{
    id_list l = encode(b, text, size);
    tt_str back = {0};

    EXPECT_OK(tt_bpe_decode(b, l.id, l.count, &back));
    EXPECT_INT((long long)size, (long long)back.size);
    EXPECT(!size || !memcmp(back.data, text, size));
    tt_str_free(&back);
    free(l.id);
}

/* ---- GPT-2's own files ---- */

TT_TEST(data_bpe, gpt2_encodes_as_the_reference_does)
{
    const char *folder = tt_test_data("gpt2-bpe");
    tt_bpe *b;

    NEEDS_PCRE2;
    EXPECT_OK(tt_bpe_open(folder, &b));
    EXPECT_INT(50257, tt_bpe_count(b));
    EXPECT_INT(50256, tt_bpe_end(b));
    EXPECT_IDS(b, golden, GOLDEN_IDS);
    EXPECT_IDS(b, golden, GOLDEN_IDS); /* and from its cache */
    expect_back(b, golden, sizeof golden - 1);
    EXPECT_IDS(b, "<|endoftext|>", 27, 91, 437, 1659, 5239, 91, 29); /* text is text */
    EXPECT_IDS(b, "don't", 9099, 470);
    tt_bpe_close(b);
}

/* Contractions, numbers that are no digits, white space of all kinds, marks that are no letters,
 * signs of no width, NUL. The ids are those of the reference's pattern by another engine. */
TT_TEST(data_bpe, gpt2_cuts_all_scripts_as_the_reference_does)
{
    const char *folder = tt_test_data("gpt2-bpe");
    tt_bpe *b;

    NEEDS_PCRE2;
    EXPECT_OK(tt_bpe_open(folder, &b));
    EXPECT_IDS(b, "I'M sure they've we'll 12ab34 _x_ \xc2\xbd\xc2\xb2 \xe2\x85\xa7", 40, 6, 44,
               1654, 484, 1053, 356, 1183, 1105, 397, 2682, 4808, 87, 62, 25208, 31185, 2343, 227,
               100);
    EXPECT_IDS(b, "\xc2\xa0\xe2\x80\x83 tabs\t\tand\r\nCRLF \n", 1849, 447, 225, 22524, 197, 197,
               392, 201, 198, 34, 7836, 37, 220, 198);
    EXPECT_IDS(b,
               "\xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d\xe0\xa4\xa4\xe0\xa5\x87 "
               "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d",
               11976, 101, 11976, 106, 11976, 116, 24231, 235, 11976, 97, 24231, 229, 14360, 102,
               40010, 27072, 147, 251);
    EXPECT_IDS(b,
               "a \xe1\xa0\x8e"
               "b \xe2\x80\x8b"
               "c \xef\xbb\xbf"
               "d\xc2\x85"
               "e",
               64, 28053, 254, 236, 65, 20126, 66, 27332, 119, 123, 67, 126, 227, 68);
    EXPECT_IDS(b, "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 ok\x00\x01\x7f  ", 41840, 102, 447,
               235, 41840, 100, 12876, 188, 189, 221, 220, 220);
    tt_bpe_close(b);
}

/* nanoGPT's data/shakespeare has so many tokens, cut at nine tenths of the characters. */
TT_TEST(data_bpe, shakespeare_has_as_many_tokens_as_elsewhere)
{
    char path[4096];
    tt_bytes text;
    tt_bpe *b;
    id_list l;

    NEEDS_PCRE2;
    snprintf(path, sizeof path, "%s/input.txt", tt_test_data("tinyshakespeare"));
    EXPECT_OK(tt_bpe_open(tt_test_data("gpt2-bpe"), &b));
    EXPECT_OK(tt_file_read(path, 0, &text));
    EXPECT_INT(1115394, (long long)text.size);
    l = encode(b, text.data, 1003854);
    EXPECT_INT(301966, l.count);
    free(l.id);
    l = encode(b, text.data + 1003854, text.size - 1003854);
    EXPECT_INT(36059, l.count);
    free(l.id);
    expect_back(b, text.data, text.size);
    tt_file_release(&text);
    tt_bpe_close(b);
}

/* tiktoken's file, made of the other two: what is joined is found again from the ranks alone. */
TT_TEST(data_bpe, gpt2_by_ranks_is_gpt2)
{
    const char *folder = tt_test_data("gpt2-bpe");
    tt_str text = {0};
    tt_bpe *pair, *ranks;
    char path[4096];
    tt_bytes sample;
    id_list a, c;

    NEEDS_PCRE2;
    EXPECT_OK(tt_bpe_open(folder, &pair));
    tt_str_add(&text, "{\"special_tokens\": {\"<|endoftext|>\": 50256}, \"bpe_ranks\": \"! 0");
    for (int32_t id = 0; id < 50256; id++) {
        tt_str bytes = {0};
        EXPECT_OK(tt_bpe_decode(pair, &id, 1, &bytes));
        tt_str_add(&text, " ");
        put_base64(&text, (const uint8_t *)bytes.data, (int)bytes.size);
        tt_str_free(&bytes);
    }
    tt_str_add(&text, "\"}");
    EXPECT_OK(tt_dir_make("t"));
    write_str("t/gpt2.json", &text);
    EXPECT_OK(tt_bpe_open("t", &ranks));
    EXPECT_INT(50256, tt_bpe_end(ranks));
    EXPECT_IDS(ranks, golden, GOLDEN_IDS);
    snprintf(path, sizeof path, "%s/LICENSE", folder);
    EXPECT_OK(tt_file_read(path, 0, &sample));
    a = encode(pair, sample.data, sample.size);
    c = encode(ranks, sample.data, sample.size);
    EXPECT(a.count == c.count && !memcmp(a.id, c.id, (size_t)a.count * sizeof *a.id));
    free(a.id);
    free(c.id);
    tt_file_release(&sample);
    tt_bpe_close(pair);
    tt_bpe_close(ranks);
}

/* ---- a small one, by hand ---- */

static tt_bpe *open_small(void)
{
    tt_bpe *b;

    write_small("small");
    EXPECT_OK(tt_bpe_open("small", &b));
    return b;
}

TT_TEST(data_bpe, neighbours_are_joined_by_rank_and_the_first_comes_first)
{
    tt_bpe *b;

    NEEDS_PCRE2;
    b = open_small();
    EXPECT_INT(SMALL_COUNT, tt_bpe_count(b));
    EXPECT_INT(SMALL_END, tt_bpe_end(b));
    EXPECT_IDS(b, "hello", 259);
    EXPECT_IDS(b, "hell", 258);
    EXPECT_IDS(b, "hel", 256, small_id('l'));
    EXPECT_IDS(b, " world", 260, 261, small_id('l'), small_id('d'));
    EXPECT_IDS(b, "aaa", 263);       /* aa, then aa a */
    EXPECT_IDS(b, "aaaa", 262, 262); /* both aa before any aa a */
    EXPECT_IDS(b, "aaaaa", 262, 263);
    EXPECT_IDS(b, "he he", 256, small_id(' '), 256); /* no piece goes over the space */
    tt_bpe_close(b);
}

TT_TEST(data_bpe, both_forms_of_files_are_the_same_tokenizer)
{
    static const char text[] = "hello world, aaaaaaa hellohello  or\n";
    tt_str ranks = {0};
    tt_bpe *a, *c;
    id_list x, y;

    NEEDS_PCRE2;
    a = open_small();
    small_ranks(&ranks);
    write_str("other.json", &ranks);
    EXPECT_OK(tt_bpe_open("other.json", &c));
    EXPECT_INT(SMALL_COUNT, tt_bpe_count(c));
    EXPECT_INT(SMALL_END, tt_bpe_end(c));
    x = encode(a, text, sizeof text - 1);
    y = encode(c, text, sizeof text - 1);
    EXPECT_INT(x.count, y.count);
    EXPECT(!memcmp(x.id, y.id, (size_t)x.count * sizeof *x.id));
    free(x.id);
    free(y.id);
    tt_bpe_close(a);
    tt_bpe_close(c);
}

TT_TEST(data_bpe, any_bytes_come_back)
{
    uint8_t noise[20000];
    static const char torn[] = "he\xffllo \xe4\xb8 \xed\xa0\x80 hello\xf0\x9f\x8e";
    tt_bpe *b;

    NEEDS_PCRE2;
    b = open_small();
    for (int i = 0; i < 256; i++) noise[i] = (uint8_t)i;
    expect_back(b, noise, 256);
    expect_back(b, "", 0);
    expect_back(b, torn, sizeof torn - 1);
    EXPECT_IDS(b, "he\xffhe", 256, small_id(0xff), 256); /* what is no text keeps words apart */
    for (uint64_t k = 0; k < 20; k++) {
        for (size_t i = 0; i < sizeof noise; i++)
            noise[i] = (uint8_t)(tt_philox(k, i, 0).v[0] >> (k % 2 ? 0 : 1)); /* also: ASCII */
        expect_back(b, noise, sizeof noise);
    }
    tt_bpe_close(b);
}

TT_TEST(data_bpe, words_without_an_end_take_their_time_and_no_more)
{
    enum { LONG = 1 << 21 };
    char *text;
    tt_bpe *b;
    id_list l;

    NEEDS_PCRE2;
    b = open_small();
    text = malloc(LONG);
    memset(text, 'a', LONG); /* quadratic would take hours */
    l = encode(b, text, LONG);
    EXPECT_INT(LONG / 2, l.count);
    free(l.id);
    memset(text, ' ', LONG);
    l = encode(b, text, LONG);
    EXPECT_INT(LONG, l.count);
    free(l.id);
    memset(text, 0xff, LONG);
    expect_back(b, text, LONG);
    free(text);
    tt_bpe_close(b);
}

TT_TEST(data_bpe, white_space_is_cut_as_the_pattern_says)
{
    tt_bpe *b;

    NEEDS_PCRE2;
    b = open_small();
    /* The last space of several belongs to the word behind it. */
    EXPECT_IDS(b, "  w", small_id(' '), 260);
    EXPECT_IDS(b, "\n w", small_id('\n'), 260);
    /* U+00A0 is white space; U+180E, since Unicode 6.3, is none: it is a sign that takes the space
     * before it along. */
    EXPECT_IDS(b, " \xc2\xa0w", small_id(' '), small_id(0xc2), small_id(0xa0), small_id('w'));
    EXPECT_IDS(b, " \xe1\xa0\x8ew", 264, small_id(0xa0), small_id(0x8e), small_id('w'));
    tt_bpe_close(b);
}

TT_TEST(data_bpe, ids_that_are_none_are_not_decoded)
{
    int32_t id[] = {256, SMALL_END, SMALL_COUNT};
    tt_str out = {0};
    tt_bpe *b;

    NEEDS_PCRE2;
    b = open_small();
    EXPECT_OK(tt_bpe_decode(b, id, 2, &out));
    EXPECT_STR("he<|endoftext|>", out.data);
    EXPECT_ERR(TT_EDATA, tt_bpe_decode(b, id, 3, &out));
    EXPECT_MESSAGE("token 2 is 266");
    tt_str_free(&out);
    tt_bpe_close(b);
}

/* ---- bad files ---- */

/* The small tokenizer with one text in place of another in its files; "" leaves them alone. */
static void expect_bad(const char *file, const char *from, const char *to, const char *message)
{
    char path[64];
    tt_str text = {0}, changed = {0};
    tt_bpe *b;
    char *at;

    write_small("bad");
    if (!strcmp(file, "vocab.bpe"))
        small_lines(&text);
    else
        small_vocab(&text);
    at = strstr(text.data, from);
    EXPECT(at);
    tt_str_put(&changed, text.data, (size_t)(at - text.data));
    tt_str_add(&changed, "%s%s", to, at + strlen(from));
    snprintf(path, sizeof path, "bad/%s", file);
    write_str(path, &changed);
    tt_str_free(&text);
    EXPECT_ERR(TT_EDATA, tt_bpe_open("bad", &b));
    EXPECT(!b);
    EXPECT_MESSAGE(path);
    EXPECT_MESSAGE(message);
}

TT_TEST(data_bpe, bad_files_are_told_by_line_or_token)
{
    expect_bad("vocab.bpe", "he ll\n", "hell\n", "line 4 is not two words: 'hell'");
    expect_bad("vocab.bpe", "he ll\n", "he l l\n", "line 4 is not two words");
    expect_bad("vocab.bpe", "he ll\n", "he x\n", "line 4 makes 'hex', which is no token");
    expect_bad("vocab.bpe", "he ll\n", "he zz\n", "line 4 joins 'zz', which is no token");
    expect_bad("vocab.bpe", "h e\n", "", "line 3 joins 'he', which no line before it makes");
    expect_bad("vocab.bpe", "he ll\n", "h e\n", "line 4 makes 'he', which is there already");
    expect_bad("encoder.json", "\"he\": 256", "\"he\": 257", "each of 0 to 265 must come once");
    expect_bad("encoder.json", "\"he\": 256", "\"he\": 900", "the token 'he' has the id 900");
    expect_bad("encoder.json", "\"he\": 256", "\"he\": -1", "the token 'he' has the id -1");
    expect_bad("encoder.json", "\"he\": 256", "\"he\": \"x\"", "the token 'he' has no id");
    expect_bad("encoder.json", "\"he\": 256", "\"a\": 256", "line 1: duplicate object key");
    expect_bad("encoder.json", "\"a\":", "\"ab\":", "no token stands for the byte 0x61");
    expect_bad("encoder.json", "{", "[", "line 1");
    expect_bad("encoder.json", "\"he\"", "\"\"", "has 0 bytes");
}

TT_TEST(data_bpe, what_is_missing_is_named)
{
    tt_bpe *b;

    write_small("half");
    EXPECT_INT(0, unlink("half/vocab.bpe"));
    EXPECT_ERR(TT_EDATA, tt_bpe_open("half", &b));
    EXPECT_MESSAGE("half/encoder.json is there, but half/vocab.bpe is not");
    EXPECT_ERR(TT_EDATA, tt_bpe_open("nowhere", &b));
    EXPECT_MESSAGE("nowhere: no tokenizer there");
}

static void expect_bad_ranks(const char *json, const char *message)
{
    tt_bpe_table t;

    EXPECT_ERR(TT_EDATA, tt_bpe_read_ranks("x.json", json, strlen(json), &t));
    EXPECT_MESSAGE("x.json");
    EXPECT_MESSAGE(message);
}

TT_TEST(data_bpe, bad_ranks_are_told)
{
    tt_str all = {0};
    char *at;

    expect_bad_ranks("", "line 1");
    expect_bad_ranks("[]", "no JSON object");
    expect_bad_ranks("{}", "no string 'bpe_ranks'");
    expect_bad_ranks("{\"bpe_ranks\": \"! x IQ==\"}", "'x' is no rank");
    expect_bad_ranks("{\"bpe_ranks\": \"! 0 I?==\"}", "is no base64");
    expect_bad_ranks("{\"bpe_ranks\": \"! 0 IR==\"}", "is no base64"); /* bits left over */
    expect_bad_ranks("{\"bpe_ranks\": \"! 5 IQ==\"}", "rank 5; each of 0 to 0");
    expect_bad_ranks("{\"bpe_ranks\": \"! 0 IQ==\"}", "no token stands for the byte 0x00");
    expect_bad_ranks("{\"bpe_ranks\": \"! 0 IQ==\", \"pat_str\": \"x\"}", "not GPT-2's");
    expect_bad_ranks("{\"bpe_ranks\": \"! 0 IQ==\", \"special_tokens\": {\"a\": 0}}",
                     "'a' has no id of its own");
    small_ranks(&all);
    at = strstr(all.data, "aGU="); /* he */
    EXPECT(at);
    memcpy(at, "enp6", 4); /* zzz */
    expect_bad_ranks(all.data, "token 256 ('zzz') cannot be joined of two before it");
    tt_str_free(&all);
}
