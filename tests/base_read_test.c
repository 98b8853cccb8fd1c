/* Reading trees by table. */
#include "test.h"

#include <stddef.h>

typedef struct all {
    int64_t integer;
    double number;
    bool flag;
    const char *string;
    int choice;
    int64_t size;
    double time;
    int64_t pair[2];
    tt_ints ints;
    tt_numbers numbers;
    tt_strings strings;
    tt_node *node;
    int64_t optional;
} all;

#define AT(field) offsetof(all, field)
static const tt_key all_keys[] = {
    {"integer", TT_INT, AT(integer), "64", 1, 1000, NULL, "h"},
    {"number", TT_NUMBER, AT(number), "1e-3", 0, 1, NULL, "h"},
    {"flag", TT_BOOL, AT(flag), "yes", 0, 0, NULL, "h"},
    {"string", TT_STRING, AT(string), "some text", 0, 0, NULL, "h"},
    {"choice", TT_CHOICE, AT(choice), "valid", 0, 0, "same|valid|full", "h"},
    {"size", TT_SIZE, AT(size), "4MiB", 1, 0, NULL, "h"},
    {"time", TT_TIME, AT(time), "10m", 0, 0, NULL, "h"},
    {"pair", TT_PAIR, AT(pair), "3", 1, 99, NULL, "h"},
    {"ints", TT_INTS, AT(ints), "[1, 2k]", 0, 0, NULL, "h"},
    {"numbers", TT_NUMBERS, AT(numbers), "[.5]", 0, 0, NULL, "h"},
    {"strings", TT_STRINGS, AT(strings), "[]", 0, 0, NULL, "h"},
    {"node", TT_NODE, AT(node), "{a: 1}", 0, 0, NULL, "h"},
    {"optional", TT_INT, AT(optional), "-", 0, 0, NULL, "h"},
};
static const tt_key needed[] = {{"out", TT_INT, 0, NULL, 1, 0, NULL, "h"},
                                {"kernel", TT_INT, 8, "3", 0, 0, NULL, "h"}};

static tt_tree *parse(const char *text)
{
    tt_tree *t;

    EXPECT_OK(tt_tree_parse("job.yaml", text, strlen(text), &t));
    return t;
}

static void expect_defaults(const all *a)
{
    EXPECT_INT(64, a->integer);
    EXPECT_NEAR(1e-3, a->number, 0);
    EXPECT(a->flag);
    EXPECT_STR("some text", a->string);
    EXPECT_INT(1, a->choice);
    EXPECT_INT(4 << 20, a->size);
    EXPECT_NEAR(600, a->time, 0);
    EXPECT_INT(3, a->pair[0]);
    EXPECT_INT(3, a->pair[1]);
    EXPECT_INT(2, a->ints.count);
    EXPECT_INT(2000, a->ints.item[1]);
    EXPECT_INT(1, a->numbers.count);
    EXPECT_NEAR(.5, a->numbers.item[0], 0);
    EXPECT_INT(0, a->strings.count);
    EXPECT_INT(77, a->optional);
}

TT_TEST(read, defaults_are_read_and_become_part_of_the_tree)
{
    tt_tree *t = parse("string: mine\n");
    all a = {.optional = 77};
    tt_str s = {0};

    EXPECT_OK(tt_node_read(tt_tree_root(t), "all", all_keys, TT_COUNT(all_keys), &a));
    EXPECT_STR("mine", a.string);
    a.string = "some text";
    expect_defaults(&a);
    EXPECT_STR("1", tt_node_get(a.node, "a")->text);
    EXPECT(a.node->is_default && !tt_node_get(tt_tree_root(t), "string")->is_default);
    tt_tree_print(tt_tree_root(t), true, &s);
    EXPECT_STR("string: mine\n"
               "integer: 64 # default\n"
               "number: 1e-3 # default\n"
               "flag: yes # default\n"
               "choice: valid # default\n"
               "size: 4MiB # default\n"
               "time: 10m # default\n"
               "pair: 3 # default\n"
               "ints: [1, 2k] # default\n"
               "numbers: [.5] # default\n"
               "strings: [] # default\n"
               "node: # default\n"
               "  a: 1\n",
               s.data);
    tt_str_free(&s);
    EXPECT_OK(tt_node_read(tt_tree_root(t), "all", all_keys, TT_COUNT(all_keys), &a));
    EXPECT_INT(12, tt_tree_root(t)->count); /* once, however often it is read */
    tt_tree_close(t);
}

TT_TEST(read, a_map_in_no_tree_gives_the_defaults_for_ever)
{
    all a = {.optional = 77, .node = (tt_node *)1}, b = a;

    EXPECT_OK(tt_node_read(NULL, "all", all_keys, TT_COUNT(all_keys), &a));
    EXPECT_OK(tt_node_read(NULL, "all", all_keys, TT_COUNT(all_keys), &b));
    expect_defaults(&a);
    expect_defaults(&b);
    EXPECT(a.ints.item == b.ints.item); /* parsed once */
    EXPECT(!a.node);
    EXPECT_ERR(TT_EINVAL, tt_node_read(NULL, "conv", needed, 2, &a));
    EXPECT_STR("conv lacks the key 'out'", tt_message());
}

TT_TEST(read, values_of_every_type)
{
    tt_tree *t = parse(
        "integer: 1k\nnumber: 1\nflag: off\nstring: 12\nchoice: full\nsize: 10MB\ntime: 500ms\n"
        "pair: [1, 2]\nints: 7\nnumbers: [1, 2e3]\nstrings: [a, \"b\", 3]\nnode: relu\n"
        "optional: 5\n");
    all a;

    EXPECT_OK(tt_node_read(tt_tree_root(t), "all", all_keys, TT_COUNT(all_keys), &a));
    EXPECT_INT(1000, a.integer);
    EXPECT_NEAR(1, a.number, 0);
    EXPECT(!a.flag);
    EXPECT_STR("12", a.string);
    EXPECT_INT(2, a.choice);
    EXPECT_INT(10000000, a.size);
    EXPECT_NEAR(.5, a.time, 0);
    EXPECT_INT(1, a.pair[0]);
    EXPECT_INT(2, a.pair[1]);
    EXPECT_INT(1, a.ints.count);
    EXPECT_INT(7, a.ints.item[0]);
    EXPECT_NEAR(2000, a.numbers.item[1], 0);
    EXPECT_INT(3, a.strings.count);
    EXPECT_STR("b", a.strings.item[1]);
    EXPECT_STR("3", a.strings.item[2]);
    EXPECT_STR("relu", a.node->text);
    EXPECT_INT(5, a.optional);
    tt_tree_close(t);
}

TT_TEST(read, what_is_wrong_is_said_where_it_is)
{
    static const struct {
        const char *text, *want;
    } bad[] = {
        {"integer: x",
         "job.yaml:1:10: integer in all must be a whole number, not 'x'\ninteger: x\n         ^"},
        {"integer: 1.5", "must be a whole number, not '1.5'"},
        {"integer: \"5\"", "must be a whole number, not the text \"5\" (leave the quotes out)"},
        {"integer: [1]", "must be a whole number, not a list"},
        {"integer:", "must be a whole number, not nothing"},
        {"integer: 0", "integer in all is 0: it must lie between 1 and 1000"},
        {"integer: 1001", "between 1 and 1000"},
        {"number: {}", "number in all must be a number, not a map"},
        {"number: 1.01", "between 0 and 1"},
        {"number: nan", "must be a number"},
        {"flag: 1", "flag in all must be true or false, not '1'"},
        {"string: [a]", "string in all must be a text, not a list"},
        {"choice: sam", "choice in all is 'sam', not same, valid or full: did you mean 'same'?"},
        {"choice: zzzzzz", "choice in all must be same, valid or full, not 'zzzzzz'"},
        {"choice: [same]", "must be same, valid or full, not a list"},
        {"size: -1", "size in all must be a number of bytes such as 4096, 64k or 2GiB, not '-1'"},
        {"size: 0", "size in all is 0: it must be at least 1"},
        {"time: 5x", "time in all must be a time such as"},
        {"pair: [1]", "pair in all must be one whole number, or a list of two"},
        {"pair: [1, 2, 3]", "or a list of two"},
        {"pair: [1, 100]", "job.yaml:1:11: item 2 of pair in all is 100"},
        {"ints: [1, x]", "job.yaml:1:11: item 2 of ints in all must be a whole number, not 'x'"},
        {"numbers: [[1]]", "item 1 of numbers in all must be a number, not a list"},
        {"strings: [{a: 1}]", "item 1 of strings in all must be a text, not a map"},
        {"intger: 3",
         "job.yaml:1:1: unknown key 'intger' in all: did you mean 'integer'?\nintger: 3\n^"},
        {"xyzzy: 3", "unknown key 'xyzzy' in all: it takes integer, number, flag, string"},
        {"[1, 2]", "job.yaml:1:1: all must be a map of keys and values, not a list"},
        {"word", "all must be a map of keys and values, not 'word'"},
    };

    for (int i = 0; i < TT_COUNT(bad); i++) {
        tt_tree *t = parse(bad[i].text);
        all a;
        EXPECT_ERR(TT_EINVAL,
                   tt_node_read(tt_tree_root(t), "all", all_keys, TT_COUNT(all_keys), &a));
        EXPECT_MESSAGE(bad[i].want);
        tt_tree_close(t);
    }
}

TT_TEST(read, the_example_of_the_manual)
{
    tt_tree *t = parse("model:\n  layers:\n    - conv:\n        out: 10\n        kernal: 5\n");
    tt_node *conv = tt_node_get(tt_node_get(tt_tree_root(t), "model"), "layers")->item[0]->item[0];
    int64_t out[2];

    EXPECT_ERR(TT_EINVAL, tt_node_read(conv, "conv", needed, 2, out));
    EXPECT_STR("job.yaml:5:9: unknown key 'kernal' in conv: did you mean 'kernel'?\n"
               "        kernal: 5\n"
               "        ^",
               tt_message());
    tt_tree_close(t);
}

TT_TEST(read, a_missing_key_points_at_its_map)
{
    tt_tree *t = parse("conv: {kernel: 3}\n");
    int64_t out[2];

    EXPECT_ERR(TT_EINVAL, tt_node_read(tt_tree_root(t)->item[0], "conv", needed, 2, out));
    EXPECT_STR("job.yaml:1:7: conv lacks the key 'out'\nconv: {kernel: 3}\n      ^", tt_message());
    EXPECT_ERR(TT_EINVAL, tt_node_read(tt_tree_root(t), "nothing", needed, 0, out));
    EXPECT_MESSAGE("unknown key 'conv' in nothing, which takes none");
    tt_tree_close(t);
}

TT_TEST(read, null_is_an_empty_map_and_takes_an_option_back)
{
    tt_tree *t = parse("train:\n");
    tt_node *train = tt_tree_root(t)->item[0];
    all a = {.optional = 77};

    EXPECT_OK(tt_tree_set(t, "train.optional=null"));
    EXPECT_OK(tt_node_read(train, "train", all_keys, TT_COUNT(all_keys), &a));
    expect_defaults(&a);
    tt_tree_close(t);
    t = parse("train:\n");
    EXPECT_OK(tt_node_read(tt_tree_root(t)->item[0], "train", all_keys, TT_COUNT(all_keys), &a));
    EXPECT_INT(12, tt_tree_root(t)->item[0]->count);
    tt_tree_close(t);
}

TT_TEST(read, setting_inside_a_default_leaves_its_siblings_defaults)
{
    static const tt_key key = {"node", TT_NODE, 0, "{a: 1, b: {c: 2}}", 0, 0, NULL, "h"};
    tt_tree *t = parse("");
    tt_node *node;
    tt_str s = {0};

    EXPECT_OK(tt_node_read(tt_tree_root(t), "job", &key, 1, &node));
    EXPECT_ERR(TT_EINVAL, tt_tree_set(t, "node.a.x=5"));
    EXPECT(node->is_default); /* an assignment that fails changes nothing */
    EXPECT_OK(tt_tree_set(t, "node.a=5"));
    tt_tree_print(tt_tree_root(t), true, &s);
    EXPECT_STR("node:\n  a: 5\n  b: # default\n    c: 2\n", s.data);
    tt_str_free(&s);
    tt_tree_close(t);
}

TT_TEST(read, a_value_without_a_map)
{
    static const tt_key key = {"", TT_INTS, 1000 /* plays no part */, NULL, 1, 0};
    tt_tree *t = parse("input: [1, 28, 28]\nbad: [1, 0]\n");
    tt_ints v;

    EXPECT_OK(tt_node_value(tt_node_get(tt_tree_root(t), "input"), "input", &key, &v));
    EXPECT_INT(3, v.count);
    EXPECT_INT(28, v.item[2]);
    EXPECT_ERR(TT_EINVAL, tt_node_value(tt_node_get(tt_tree_root(t), "bad"), "input", &key, &v));
    EXPECT_MESSAGE("job.yaml:2:10: item 2 of input is 0: it must be at least 1");
    tt_tree_close(t);
}

TT_TEST(read, kinds_with_and_without_arguments)
{
    tt_tree *t = parse("- relu\n- conv: {out: 10}\n- flatten:\n");
    tt_node *at, *args;
    const char *name;
    int64_t out[2];
    tt_str s = {0};

    EXPECT_OK(tt_node_kind_of(tt_tree_root(t)->item[0], "layer", &name, &at, &args));
    EXPECT_STR("relu", name);
    EXPECT_INT(1, at->line);
    EXPECT_INT(3, at->column);
    EXPECT_INT(0, args->count);
    EXPECT_OK(tt_node_read(args, name, needed + 1, 1, out));
    EXPECT_OK(tt_node_kind_of(tt_tree_root(t)->item[1], "layer", &name, &at, &args));
    EXPECT_STR("conv", name);
    EXPECT_OK(tt_node_read(args, name, needed, 2, out));
    EXPECT_INT(10, out[0]);
    EXPECT_OK(tt_node_kind_of(tt_tree_root(t)->item[2], "layer", &name, &at, &args));
    EXPECT_INT(TT_MAP, args->kind);
    tt_tree_print(tt_tree_root(t), true, &s);
    EXPECT_STR("- relu:\n    kernel: 3 # default\n- conv:\n    out: 10\n    kernel: 3 # default\n"
               "- flatten: {}\n",
               s.data);
    tt_str_free(&s);
    tt_tree_close(t);
}

TT_TEST(read, what_is_no_kind_is_refused)
{
    static const struct {
        const char *text, *want;
    } bad[] = {
        {"[a]", "layer must be a name, or a name with arguments"},
        {"{}", "layer must be a name"},
        {"", "layer must be a name"},
        {"conv: 10", "job.yaml:1:7: the arguments of conv must be a map"},
        {"conv:\nout: 10",
         "job.yaml:2:1: layer has one name, 'conv': is 'out' an argument, to be indented?"},
    };

    for (int i = 0; i < TT_COUNT(bad); i++) {
        tt_tree *t = parse(bad[i].text);
        tt_node *at, *args;
        const char *name;
        EXPECT_ERR(TT_EINVAL, tt_node_kind_of(tt_tree_root(t), "layer", &name, &at, &args));
        EXPECT_MESSAGE(bad[i].want);
        tt_tree_close(t);
    }
}
