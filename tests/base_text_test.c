#include "test.h"

#include <locale.h>

TT_TEST(text, integers_with_units_are_exact)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},
                {"-12", -12},
                {"+7", 7},
                {"64k", 64000},
                {"64K", 64000},
                {"2M", 2000000},
                {"4Ki", 4096},
                {"3Gi", 3221225472},
                {"1e6", 1000000},
                {"1E+3", 1000},
                {"1.5k", 1500},
                {"-0", 0},
                {"1.0", 1},
                {"2e-0", 2},
                {"500e-2", 5},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN},
                {"0e99999999999", 0},
                {"007", 7}};
    int64_t v;

    for (int i = 0; i < TT_COUNT(good); i++) {
        if (!tt_parse_int(good[i].text, &v)) FAIL("'%s' is refused", good[i].text);
        EXPECT_INT(good[i].value, v);
    }
}

TT_TEST(text, what_is_no_integer_is_refused_and_changes_nothing)
{
    static const char *const bad[] = {"",
                                      "-",
                                      "k",
                                      ".",
                                      "1.5",
                                      "1e-1",
                                      "12 ",
                                      " 12",
                                      "1k2",
                                      "0x10",
                                      "1_000",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "1e19",
                                      "1e999999999",
                                      "1e-999999999",
                                      "10000000000T",
                                      "nan",
                                      "1kB",
                                      "4kib",
                                      "--1",
                                      "1..0",
                                      "1e",
                                      "1m",
                                      "99999999999999999999"};
    int64_t v = 77;

    for (int i = 0; i < TT_COUNT(bad); i++)
        if (tt_parse_int(bad[i], &v)) FAIL("'%s' is taken for %lld", bad[i], (long long)v);
    EXPECT_INT(77, v);
}

TT_TEST(text, numbers)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {{"1e-3", 1e-3},  {".5", .5},
                {"5.", 5},       {"64k", 64000},
                {"-0.25", -.25}, {"1.5Ki", 1536},
                {"0.1", 0.1},    {"123456789012345678901234", 123456789012345678901234.}};
    static const char *const bad[] = {"",    "inf",      "-inf",   "nan", "1e999", "0x1p3",
                                      "1,5", "infinity", "1e308T", "1 2", "e5",    "."};
    double v = 77;

    for (int i = 0; i < TT_COUNT(bad); i++)
        if (tt_parse_number(bad[i], &v)) FAIL("'%s' is taken for %g", bad[i], v);
    EXPECT_NEAR(77, v, 0);
    for (int i = 0; i < TT_COUNT(good); i++) {
        if (!tt_parse_number(good[i].text, &v)) FAIL("'%s' is refused", good[i].text);
        EXPECT_NEAR(good[i].value, v, 0);
    }
}

/* Makes a locale of our own and uses it: no test should depend on what is installed. */
static bool use_comma_locale(void)
{
    static const char source[] = "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\n"
                                 "grouping 3;3\nEND LC_NUMERIC\n";

    tt_test_write("source", source, strlen(source));
    if (system("localedef -c -i ./source -f UTF-8 ./comma >/dev/null 2>&1") < 0) return false;
    setenv("LOCPATH", ".", 1);
    return setlocale(LC_NUMERIC, "comma") != NULL;
}

TT_TEST(text, a_comma_locale_plays_no_part)
{
    double v = 0, w = 0, plain;
    bool ok;
    char *end;

    if (!use_comma_locale()) {
        unsetenv("LOCPATH");
        tt_test_skip("localedef made no locale: install the package locales");
    }
    plain = strtod("1,5", NULL);
    ok = tt_parse_number("1.5", &v);
    w = tt_strtod("2.5,5", &end);
    setlocale(LC_NUMERIC, "C");
    unsetenv("LOCPATH");
    EXPECT_NEAR(1.5, plain, 0); /* the locale was in force */
    EXPECT(ok);
    EXPECT_NEAR(1.5, v, 0);
    EXPECT_NEAR(2.5, w, 0);
    EXPECT_STR(",5", end);
}

TT_TEST(text, half_precision_is_exact)
{
    static const struct {
        uint16_t bits;
        float value;
    } cases[] = {{0x3c00, 1},        {0xc100, -2.5f}, {0x0001, 0x1p-24f}, {0x03ff, 0x3ffp-24f},
                 {0x0400, 0x1p-14f}, {0x7bff, 65504}, {0x7c00, INFINITY}, {0xfc00, -INFINITY}};

    for (int i = 0; i < TT_COUNT(cases); i++) EXPECT(tt_half(cases[i].bits) == cases[i].value);
    EXPECT(isnan(tt_half(0x7e00)) && isnan(tt_half(0xfc01)));
    EXPECT(tt_half(0x8000) == 0 && signbit(tt_half(0x8000)));
}

TT_TEST(text, characters_are_well_formed_or_none)
{
    static const struct {
        const char *text;
        size_t size;
    } cases[] = {
        {"a", 1},
        {"\xc3\xa4", 2},
        {"\xe2\x82\xac", 3},
        {"\xf0\x9f\x8e\xb6", 4},
        {"\xf4\x8f\xbf\xbf", 4},
        {"\x80", 0},             /* begins in the middle    */
        {"\xc3", 0},             /* cut off                 */
        {"\xc0\xaf", 0},         /* written too long        */
        {"\xe0\x80\xaf", 0},     /* written too long        */
        {"\xf0\x8f\xbf\xbf", 0}, /* written too long        */
        {"\xed\xa0\x80", 0},     /* half a surrogate        */
        {"\xf4\x90\x80\x80", 0}, /* beyond the last one     */
        {"\xff", 0},
    };

    for (int i = 0; i < TT_COUNT(cases); i++) {
        size_t n = strlen(cases[i].text);
        if (tt_utf8_size(cases[i].text, n) != cases[i].size) FAIL("case %d", i);
        if (n > 1) EXPECT_INT(0, tt_utf8_size(cases[i].text, n - 1));
    }
    EXPECT_INT(0, tt_utf8_size("a", 0));
}

TT_TEST(text, booleans)
{
    bool v;

    EXPECT(tt_parse_bool("true", &v) && v);
    EXPECT(tt_parse_bool("Yes", &v) && v);
    EXPECT(tt_parse_bool("on", &v) && v);
    EXPECT(tt_parse_bool("FALSE", &v) && !v);
    EXPECT(tt_parse_bool("no", &v) && !v);
    EXPECT(tt_parse_bool("off", &v) && !v);
    EXPECT(!tt_parse_bool("1", &v) && !tt_parse_bool("", &v) && !tt_parse_bool("truely", &v));
}

TT_TEST(text, sizes_and_times)
{
    static const char *const bad_size[] = {"", "B", "-1", "10XB", "1.5", "10MBB", "2 GB", "1s"};
    static const char *const bad_time[] = {"", "s", "-1s", "10x", "1h30m", "1e999", "5 s"};
    int64_t n;
    double s;

    EXPECT(tt_parse_size("4096", &n) && n == 4096);
    EXPECT(tt_parse_size("4096B", &n) && n == 4096);
    EXPECT(tt_parse_size("64k", &n) && n == 64000);
    EXPECT(tt_parse_size("10MB", &n) && n == 10000000);
    EXPECT(tt_parse_size("10mb", &n) && n == 10000000);
    EXPECT(tt_parse_size("2GiB", &n) && n == 2147483648);
    EXPECT(tt_parse_size("1.5Gi", &n) && n == 1610612736);
    for (int i = 0; i < TT_COUNT(bad_size); i++)
        if (tt_parse_size(bad_size[i], &n)) FAIL("'%s' is taken for a size", bad_size[i]);

    EXPECT(tt_parse_time("30", &s) && s == 30);
    EXPECT(tt_parse_time("30s", &s) && s == 30);
    EXPECT(tt_parse_time("500ms", &s) && s == .5);
    EXPECT(tt_parse_time("10m", &s) && s == 600);
    EXPECT(tt_parse_time("1.5h", &s) && s == 5400);
    EXPECT(tt_parse_time("1d", &s) && s == 86400);
    for (int i = 0; i < TT_COUNT(bad_time); i++)
        if (tt_parse_time(bad_time[i], &s)) FAIL("'%s' is taken for a time", bad_time[i]);
}

TT_TEST(text, the_nearest_name_is_what_a_user_meant)
{
    static const char *const names[] = {"kernel", "stride", "batch",   "learning_rate",
                                        "out",    "lr",     "momentum"};
    static const struct {
        const char *word, *meant;
    } cases[] = {{"kernal", "kernel"},
                 {"Kernel", "kernel"},
                 {"strdie", "stride"},
                 {"batchsize", "batch"},
                 {"learning-rate", "learning_rate"},
                 {"outt", "out"},
                 {"rl", "lr"},
                 {"momentun", "momentum"},
                 {"learn", "learning_rate"}};
    static const char *const far[] = {"", "xyzzy", "q", "dropout_probability", "depth"};
    char huge[300];

    for (int i = 0; i < TT_COUNT(cases); i++)
        EXPECT_STR(cases[i].meant, tt_nearest(cases[i].word, names, TT_COUNT(names)));
    for (int i = 0; i < TT_COUNT(far); i++) {
        const char *got = tt_nearest(far[i], names, TT_COUNT(names));
        if (got) FAIL("'%s' for '%s'", got, far[i]);
    }
    memset(huge, 'k', sizeof huge - 1);
    huge[sizeof huge - 1] = 0;
    EXPECT(!tt_nearest(huge, names, TT_COUNT(names)));
    EXPECT(!tt_nearest("kernel", (const char *const[]){huge, ""}, 2));
    EXPECT(!tt_nearest("kernel", NULL, 0));
}

TT_TEST(text, numbers_for_people)
{
    char b[32];

    EXPECT_STR("1,234,567", tt_show_count(1234567, b, sizeof b));
    EXPECT_STR("999", tt_show_count(999, b, sizeof b));
    EXPECT_STR("-1,000", tt_show_count(-1000, b, sizeof b));
    EXPECT_STR("-9,223,372,036,854,775,808", tt_show_count(INT64_MIN, b, sizeof b));
    EXPECT_STR("12.3 MB", tt_show_bytes(12.3e6, b, sizeof b));
    EXPECT_STR("512 B", tt_show_bytes(512, b, sizeof b));
    EXPECT_STR("1.0 kB", tt_show_bytes(999.9, b, sizeof b));
    EXPECT_STR("1.0 MB", tt_show_bytes(999960, b, sizeof b));
    EXPECT_STR("1 h 02 m", tt_show_time(3720, b, sizeof b));
    EXPECT_STR("1 h 00 m", tt_show_time(3599.9, b, sizeof b));
    EXPECT_STR("1 m 00 s", tt_show_time(59.96, b, sizeof b));
    EXPECT_STR("2 m 05 s", tt_show_time(125, b, sizeof b));
    EXPECT_STR("12.3 s", tt_show_time(12.3, b, sizeof b));
    EXPECT_STR("45 ms", tt_show_time(.045, b, sizeof b));
    EXPECT_STR("12 us", tt_show_time(12e-6, b, sizeof b));
    EXPECT_STR("2 d 03 h", tt_show_time(2 * 86400 + 3 * 3600, b, sizeof b));
    EXPECT_STR("?", tt_show_time(NAN, b, sizeof b));
    EXPECT_STR("1,2", tt_show_count(1234567, b, 4)); /* cut, never past the end */
}

TT_TEST(text, a_string_grows)
{
    tt_str s = {0};

    for (int i = 0; i < 1000; i++) tt_str_add(&s, "%d,", i);
    EXPECT_INT(3890, s.size);
    EXPECT_INT(0, strncmp(s.data, "0,1,2,3,", 8));
    EXPECT_STR("998,999,", s.data + s.size - 8);
    tt_str_put(&s, "a\0b", 3);
    EXPECT_INT(3893, s.size);
    EXPECT(s.data[s.size] == 0 && s.data[s.size - 1] == 'b');
    tt_str_free(&s);
    EXPECT(!s.data && !s.size && !s.room);
    tt_str_put(&s, "", 0);
    EXPECT_STR("", s.data);
    tt_str_free(&s);
}
