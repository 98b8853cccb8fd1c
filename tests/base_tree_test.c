#include "test.h"

#include <stddef.h>

static tt_tree *parse(const char *text)
{
    tt_tree *t;

    EXPECT_OK(tt_tree_parse("job.yaml", text, strlen(text), &t));
    return t;
}

static void expect_print(const tt_node *n, bool mark, const char *want)
{
    tt_str s = {0};

    tt_tree_print(n, mark, &s);
    EXPECT_STR(want, s.data);
    tt_str_free(&s);
}

/* ---- parsing ---- */

TT_TEST(tree, nodes_know_their_place)
{
    tt_tree *t = parse("# a job\ntrain:\n  batch: 64\n  lr: [1e-3, 'x']\nend: ~\n");
    tt_node *root = tt_tree_root(t), *train = tt_node_get(root, "train"), *lr;

    EXPECT_INT(TT_MAP, root->kind);
    EXPECT_INT(2, root->count);
    EXPECT_STR("train", root->key[0]->text);
    EXPECT_INT(2, root->key[0]->line);
    EXPECT_INT(3, train->line);
    EXPECT_INT(3, train->column);
    EXPECT_STR("64", tt_node_get(train, "batch")->text);
    EXPECT_INT(10, tt_node_get(train, "batch")->column);
    lr = tt_node_get(train, "lr");
    EXPECT_INT(TT_LIST, lr->kind);
    EXPECT_INT(2, lr->count);
    EXPECT(!lr->item[0]->quoted && lr->item[1]->quoted);
    EXPECT_INT(4, lr->item[1]->line);
    EXPECT_INT(14, lr->item[1]->column);
    EXPECT_STR("", tt_node_get(root, "end")->text);
    EXPECT(!tt_node_get(root, "nothing") && !tt_node_get(lr, "x"));
    tt_tree_close(t);
    tt_tree_close(NULL);
}

TT_TEST(tree, an_empty_file_is_null_and_a_byte_order_mark_is_nothing)
{
    tt_tree *t = parse("");

    EXPECT_INT(TT_SCALAR, tt_tree_root(t)->kind);
    EXPECT_STR("", tt_tree_root(t)->text);
    tt_tree_close(t);
    t = parse("# only a comment\n");
    EXPECT_STR("", tt_tree_root(t)->text);
    tt_tree_close(t);
    t = parse("\xEF\xBB\xBF"
              "a: 1\n");
    EXPECT_INT(1, tt_tree_root(t)->key[0]->column);
    tt_tree_close(t);
}

TT_TEST(tree, an_alias_is_a_copy_with_the_places_of_its_anchor)
{
    tt_tree *t = parse("a: &x {k: [1, 2]}\nb: *x\n");
    tt_node *a = tt_node_get(tt_tree_root(t), "a"), *b = tt_node_get(tt_tree_root(t), "b");

    EXPECT(a != b);
    EXPECT_STR("2", tt_node_get(b, "k")->item[1]->text);
    EXPECT_INT(1, tt_node_get(b, "k")->line);
    EXPECT_OK(tt_tree_set(t, "b.k.0=9"));
    EXPECT_STR("1", tt_node_get(a, "k")->item[0]->text);
    tt_tree_close(t);
}

TT_TEST(tree, merged_keys_come_after_and_lose_against_the_maps_own)
{
    tt_tree *t = parse("base: &b {lr: 1, batch: 2}\nmore: &m {batch: 3, x: 4}\n"
                       "train:\n  <<: [*b, *m]\n  lr: 9\n");

    expect_print(tt_node_get(tt_tree_root(t), "train"), false, "lr: 9\nbatch: 2\nx: 4\n");
    tt_tree_close(t);
}

/* Everything here must be refused, with these words and at this place. */
TT_TEST(tree, bad_yaml_is_refused_where_it_is_bad)
{
    static const struct {
        const char *text;
        const char *want;
    } bad[] = {
        {"a: 1\na: 2\n", "job.yaml:2:1: the key 'a' is given twice, first in line 1\na: 2\n^"},
        {"a: {b: 1, c: 2, b: 3}\n", "job.yaml:1:17: the key 'b' is given twice"},
        {"a: 1\n---\nb: 2\n", "job.yaml:2:1: a second document"},
        {"a: [1, 2\n", "job.yaml:2:1: not YAML: "},
        {"a: 'x\n", "job.yaml:2:1: not YAML: while scanning a quoted scalar (from line 1 on), "},
        {"a:\n  b: 1\n c: 2\n", "job.yaml:3:2: not YAML: "},
        {"a:\n\tb: 1\n", "job.yaml:2:1: not YAML: indented with a tab: use spaces\n\tb: 1\n^"},
        {"a: *nope\n", "job.yaml:1:4: *nope: no anchor &nope stands before it\na: *nope\n   ^"},
        {"a: &a [*a]\n", "job.yaml:1:8: *a stands inside &a itself"},
        {"a: &a {b: *a}\n", "*a stands inside &a itself"},
        {"? [a, b]\n: 1\n", "job.yaml:1:3: a key must be a word"},
        {"? {a: b}\n: 1\n", "a key must be a word"},
        {"'': 1\n", "job.yaml:1:1: a key must be a word"},
        {"~: 1\n", "a key must be a word"},
        {"a: !!float 3\n", "job.yaml:1:4: the tag 'tag:yaml.org,2002:float' means nothing here"},
        {"a: !python/object:os.system x\n", "means nothing here"},
        {"a: !!omap [1]\n", "means nothing here"},
        {"a: \"\\0\"\n", "job.yaml:1:4: this text holds a zero byte"},
        {"a: \"\\q\"\n", "not YAML: "},
        {"a: \a\n",
         "job.yaml:1:4: not YAML: control characters are not allowed (U+0007)\na: ?\n   ^"},
        {"a: \xff\n", "job.yaml:1:4: byte 0xff is not UTF-8\na: ?\n   ^"},
        {"ab\n c: \xc3\x28\n", "job.yaml:2:5: byte 0xc3 is not UTF-8"},
        {"a: \xc0\x80", "byte 0xc0"},
        {"a: \xe0\x80\x80", "byte 0xe0"},
        {"a: \xed\xa0\x80", "byte 0xed"},
        {"a: \xf4\x90\x80\x80", "byte 0xf4"},
        {"a: \xf8\x88\x80\x80\x80", "byte 0xf8"},
        {"a: \xe2\x82", "byte 0xe2"},
        {"\xff\xfe"
         "a",
         "job.yaml:1:1: byte 0xff"}, /* UTF-16 */
        {"%YAML 3.0\n---\na: 1\n", "not YAML: "},
        {"a: @x\n", "job.yaml:1:4: not YAML: "},
        {"a: b: c\n", "job.yaml:1:5: not YAML: "},
        {"- a\nb: 1\n", "not YAML: "},
        {"<<: 3\n", "<< takes a map"},
        {"<<: [1]\n", "<< takes maps"},
        {"<<: {a: 1}\n<<: {b: 1}\n", "<< is given twice"},
        {"{a: 1", "not YAML: "},
        {"a: |3x\n", "not YAML: "},
        {"}", "not YAML: "},
        {"&a &b c\n", "not YAML: "},
    };

    for (int i = 0; i < TT_COUNT(bad); i++) {
        tt_tree *t = (tt_tree *)1;
        EXPECT_ERR(TT_EINVAL, tt_tree_parse("job.yaml", bad[i].text, strlen(bad[i].text), &t));
        EXPECT(!t);
        EXPECT_MESSAGE(bad[i].want);
    }
}

TT_TEST(tree, a_zero_byte_is_refused_with_its_place)
{
    tt_tree *t;

    EXPECT_ERR(TT_EINVAL, tt_tree_parse("job.yaml", "a: 1\nb: \0x\n", 12, &t));
    EXPECT_MESSAGE("job.yaml:2:4: a zero byte");
}

TT_TEST(tree, depth_has_a_bound)
{
    char text[400] = "";
    tt_tree *t;

    memset(text, '[', 63);
    memset(text + 63, ']', 63);
    tt_tree_close(parse(text));
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    EXPECT_ERR(TT_EINVAL, tt_tree_parse("job.yaml", text, 130, &t));
    EXPECT_MESSAGE("job.yaml:1:65: nested more than 64 levels deep");
    strcpy(text, "a0: &a0 [[[[[[[[[[x]]]]]]]]]]\n"); /* each alias adds ten levels */
    for (int i = 1; i < 8; i++) {
        char line[64];
        snprintf(line, sizeof line, "a%d: &a%d [[[[[[[[[[*a%d]]]]]]]]]]\n", i, i, i - 1);
        strcat(text, line);
    }
    EXPECT_ERR(TT_EINVAL, tt_tree_parse("job.yaml", text, strlen(text), &t));
    EXPECT_MESSAGE("nested more than 64 levels deep, with aliases");
}

TT_TEST(tree, a_billion_laughs_are_not_laughed)
{
    tt_str s = {0};
    tt_tree *t;
    double begun = tt_clock_s();

    tt_str_add(&s, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 10; i++) {
        tt_str_add(&s, "a%d: &a%d [", i, i);
        for (int k = 0; k < 10; k++) tt_str_add(&s, "%s*a%d", k ? ", " : "", i - 1);
        tt_str_add(&s, "]\n");
    }
    EXPECT_ERR(TT_EINVAL, tt_tree_parse("job.yaml", s.data, s.size, &t));
    EXPECT_MESSAGE("more than 200000 values");
    EXPECT(tt_clock_s() - begun < 5);
    tt_str_free(&s);
}

TT_TEST(tree, many_keys_many_anchors_many_bytes)
{
    tt_str s = {0};
    tt_tree *t;
    double begun = tt_clock_s();

    for (int i = 0; i < 50000; i++) tt_str_add(&s, "k%d: 1\n", i);
    t = parse(s.data);
    EXPECT_INT(50000, tt_tree_root(t)->count);
    tt_tree_close(t);
    tt_str_add(&s, "k7: 1\n");
    EXPECT_ERR(TT_EINVAL, tt_tree_parse("job.yaml", s.data, s.size, &t));
    EXPECT_MESSAGE("job.yaml:50001:1: the key 'k7' is given twice, first in line 8");
    s.size = 0;
    for (int i = 0; i < 1001; i++) tt_str_add(&s, "- &a%d x\n", i);
    EXPECT_ERR(TT_EINVAL, tt_tree_parse("job.yaml", s.data, s.size, &t));
    EXPECT_MESSAGE("more than 1000 anchors");
    EXPECT(tt_clock_s() - begun < 10);
    tt_str_free(&s);

    char *huge = calloc(1, (16 << 20) + 1);
    memset(huge, '#', (16 << 20) + 1);
    EXPECT_ERR(TT_EINVAL, tt_tree_parse("job.yaml", huge, (16 << 20) + 1, &t));
    EXPECT_MESSAGE("at most 16777216 are read");
    tt_test_write("huge.yaml", huge, (16 << 20) + 1);
    EXPECT_ERR(TT_EINVAL, tt_tree_load("huge.yaml", &t));
    EXPECT_MESSAGE("huge.yaml");
    free(huge);
}

TT_TEST(tree, a_file_is_loaded_or_named)
{
    tt_tree *t;

    tt_test_write("job.yaml", "a: [1\n", 6);
    EXPECT_ERR(TT_EINVAL, tt_tree_load("job.yaml", &t));
    EXPECT_MESSAGE("job.yaml:2:1: ");
    tt_test_write("job.yaml", "a: 1\n", 5);
    EXPECT_OK(tt_tree_load("job.yaml", &t));
    EXPECT_STR("1", tt_node_get(tt_tree_root(t), "a")->text);
    tt_tree_close(t);
    EXPECT_ERR(TT_EINVAL, tt_tree_load("jop.yaml", &t));
    EXPECT_MESSAGE("jop.yaml: there is no such file");
    EXPECT_ERR(TT_EIO, tt_tree_load(".", &t));
}

/* ---- messages ---- */

TT_TEST(tree, a_message_shows_line_and_caret)
{
    tt_tree *t = parse("train:\r\n  batch: \"\xC3\xA4\" # \xC3\xB6\r\n  x: y\r\n");
    tt_node *train = tt_node_get(tt_tree_root(t), "train");

    EXPECT_INT(TT_EINVAL, tt_node_fail(tt_node_get(train, "batch"), "is %d", 7));
    EXPECT_STR("job.yaml:2:10: is 7\n  batch: \"\xC3\xA4\" # \xC3\xB6\n         ^", tt_message());
    tt_node_fail(tt_node_get(train, "x"), "is bad");
    EXPECT_STR("job.yaml:3:6: is bad\n  x: y\n     ^", tt_message());
    tt_tree_close(t);
}

TT_TEST(tree, all_line_breaks_of_yaml_count)
{
    tt_tree *t = parse("a: 1\rb: 2\nc: 3\r\nd: 4\xC2\x85"
                       "e: 5\xE2\x80\xA8"
                       "f: 6\n");

    EXPECT_INT(6, tt_tree_root(t)->count);
    for (int i = 0; i < 6; i++) {
        char want[64];
        snprintf(want, sizeof want, "job.yaml:%d:4: x\n%c: %d\n   ^", i + 1, 'a' + i, i + 1);
        tt_node_fail(tt_tree_root(t)->item[i], "x");
        EXPECT_STR(want, tt_message());
    }
    tt_tree_close(t);
}

TT_TEST(tree, a_long_line_is_shown_around_the_caret)
{
    char text[1000];
    tt_tree *t;
    const char *shown;

    memset(text, 'x', sizeof text);
    memcpy(text, "a: [", 4);
    strcpy(text + 500, ", here, ");
    memset(text + 508, 'y', 400);
    strcpy(text + 908, "]");
    t = parse(text);
    tt_node_fail(tt_tree_root(t)->item[0]->item[1], "bad");
    EXPECT_MESSAGE("job.yaml:1:503: bad\n...");
    shown = strchr(tt_message(), '\n') + 1;
    EXPECT(strlen(shown) < 260);
    /* the caret stands under "here" */
    EXPECT_INT(strstr(shown, "here") - shown, strchr(shown, '^') - strchr(shown, '\n') - 1);
    tt_tree_close(t);
}

/* ---- assignments ---- */

static const char job[] = "model:\n"
                          "  layers:\n"
                          "    - conv: {name: stem, out: 10}\n"
                          "    - relu\n"
                          "    - conv: {out: 20}\n"
                          "    - {name: last, out: 5}\n"
                          "    - flatten:\n"
                          "train:\n"
                          "  batch: 64\n";

static const char *get(tt_tree *t, const char *a, const char *b)
{
    tt_node *n = tt_node_get(tt_tree_root(t), a);
    n = n ? tt_node_get(n, b) : NULL;
    return n ? n->text : NULL;
}

TT_TEST(tree, assignments_replace_and_add)
{
    tt_tree *t = parse(job);
    tt_node *layers = tt_node_get(tt_node_get(tt_tree_root(t), "model"), "layers");

    EXPECT_OK(tt_tree_set(t, "train.batch=128"));
    EXPECT_STR("128", get(t, "train", "batch"));
    EXPECT_OK(tt_tree_set(t, "train.lr=1e-3"));
    EXPECT_STR("1e-3", get(t, "train", "lr"));
    EXPECT_OK(tt_tree_set(t, "a.b.c={d: [1, 2]}"));
    expect_print(tt_node_get(tt_tree_root(t), "a"), false, "b:\n  c:\n    d: [1, 2]\n");
    EXPECT_OK(tt_tree_set(t, "train.name=a=b"));
    EXPECT_STR("a=b", get(t, "train", "name"));
    EXPECT_OK(tt_tree_set(t, "train.name="));
    EXPECT_STR("", get(t, "train", "name"));
    EXPECT_OK(tt_tree_set(t, "model.layers.0.conv.out=11"));
    EXPECT_OK(tt_tree_set(t, "model.layers.stem.kernel=3"));
    expect_print(layers->item[0], false, "conv:\n  name: stem\n  out: 11\n  kernel: 3\n");
    EXPECT_OK(tt_tree_set(t, "model.layers.conv1.out=21")); /* the first conv without a name */
    expect_print(layers->item[2], false, "conv:\n  out: 21\n");
    EXPECT_OK(tt_tree_set(t, "model.layers.last.out=6"));
    expect_print(layers->item[3], false, "name: last\nout: 6\n");
    EXPECT_OK(tt_tree_set(t, "model.layers.relu1.slope=.1"));
    expect_print(layers->item[1], false, "relu:\n  slope: .1\n");
    EXPECT_OK(tt_tree_set(t, "model.layers.flatten1.from=1"));
    expect_print(layers->item[4], false, "flatten:\n  from: 1\n");
    EXPECT_OK(tt_tree_set(t, "model.layers.5=softmax"));
    EXPECT_INT(6, layers->count);
    EXPECT_OK(tt_tree_set(t, "model.layers.last={dense: {out: 3}}"));
    expect_print(layers->item[3], false, "dense:\n  out: 3\n");
    tt_tree_close(t);
    t = parse("");
    EXPECT_OK(tt_tree_set(t, "a.b=1"));
    expect_print(tt_tree_root(t), false, "a:\n  b: 1\n");
    tt_tree_close(t);
}

TT_TEST(tree, paths_find_what_assignments_set)
{
    static const struct {
        const char *path, *text;
    } found[] = {{"train.batch", "64"},
                 {"model.layers.stem.out", "10"},
                 {"model.layers.conv1.out", "20"},
                 {"model.layers.0.conv.out", "10"},
                 {"model.layers.relu1", "relu"},
                 {"model.layers.last.out", "5"}};
    static const char *const absent[] = {"",
                                         ".",
                                         "x",
                                         "train.",
                                         "train.batch.x",
                                         "model.layers.9",
                                         "model.layers.conv2",
                                         "model.layers.",
                                         "model.layers.-1"};
    tt_tree *t = parse(job);

    for (int i = 0; i < TT_COUNT(found); i++) {
        tt_node *n = tt_tree_get(t, found[i].path);
        if (!n) FAIL("%s is not found", found[i].path);
        EXPECT_STR(found[i].text, n->text);
    }
    for (int i = 0; i < TT_COUNT(absent); i++)
        if (tt_tree_get(t, absent[i])) FAIL("'%s' is found", absent[i]);
    tt_tree_close(t);
}

TT_TEST(tree, layers_without_names_take_the_first_free_number)
{
    tt_tree *t = parse("- conv: {out: 1}\n- conv: {name: conv2}\n- conv: {out: 3}\n- conv\n");
    tt_node *root = tt_tree_root(t);

    EXPECT_OK(tt_tree_set(t, "conv1.x=1"));
    EXPECT_OK(tt_tree_set(t, "conv2.x=2"));
    EXPECT_OK(tt_tree_set(t, "conv3.x=3"));
    EXPECT_OK(tt_tree_set(t, "conv4.x=4"));
    for (int i = 0; i < 4; i++)
        EXPECT_INT('1' + i, tt_node_get(root->item[i]->item[0], "x")->text[0]);
    EXPECT_ERR(TT_EINVAL, tt_tree_set(t, "conv5.x=5"));
    EXPECT_ERR(TT_EINVAL, tt_tree_set(t, "conv01.x=5"));
    tt_tree_close(t);
}

TT_TEST(tree, a_bad_assignment_is_shown_and_changes_nothing)
{
    static const struct {
        const char *set, *want;
    } bad[] = {
        {"train.batch", "--set train.batch: no '=': write KEY=VALUE"},
        {"=3", "--set =3: a name is missing"},
        {"train..batch=3", "--set train..batch=3: a name is missing"},
        {"train.=3", "a name is missing"},
        {"train.batch.x=3", "--set train.batch.x=3: 'x' cannot be set inside the value '64'\n"
                            "train.batch.x=3\n            ^"},
        {"model.layers.9=x", "item 9 of a list of 5: they count from 0"},
        {"model.layers.99999999999999999999=x", "of a list of 5"},
        {"model.layers.stemm.out=3", "no item 'stemm' in the list: did you mean 'stem'?"},
        {"model.layers.xyz.out=3", "no item 'xyz' in the list of 5"},
        {"train.batch=[1", "--set train.batch=[1: not YAML: "},
        {"train.batch=a: b: c", "--set train.batch=a: b: c: not YAML: "},
        {"train.batch={a: 1, a: 2}", "the key 'a' is given twice"},
        {"train.batch=\xff", "byte 0xff is not UTF-8\ntrain.batch=?\n            ^"},
        {"train.\xff=1", "byte 0xff is not UTF-8"},
    };
    tt_tree *t = parse(job);
    tt_str before = {0};
    char deep[400];

    tt_tree_print(tt_tree_root(t), true, &before);
    for (int i = 0; i < TT_COUNT(bad); i++) {
        EXPECT_ERR(TT_EINVAL, tt_tree_set(t, bad[i].set));
        EXPECT_MESSAGE(bad[i].want);
    }
    memset(deep, 0, sizeof deep);
    for (int i = 0; i < 70; i++) strcat(deep, "a.");
    strcat(deep, "b=1");
    EXPECT_ERR(TT_EINVAL, tt_tree_set(t, deep));
    EXPECT_MESSAGE("a path of 71 parts");
    expect_print(tt_tree_root(t), true, before.data);
    tt_str_free(&before);
    tt_tree_close(t);
}

TT_TEST(tree, messages_about_a_set_value_show_the_assignment)
{
    tt_tree *t = parse(job);
    tt_node *train = tt_node_get(tt_tree_root(t), "train");

    EXPECT_OK(tt_tree_set(t, "train.batch=x"));
    EXPECT_OK(tt_tree_set(t, "train.lrr=[1, 2]"));
    tt_node_fail(tt_node_get(train, "batch"), "must be a whole number");
    EXPECT_STR("--set train.batch=x: must be a whole number\ntrain.batch=x\n            ^",
               tt_message());
    tt_node_fail(tt_node_get(train, "lrr")->item[1], "no");
    EXPECT_STR("--set train.lrr=[1, 2]: no\ntrain.lrr=[1, 2]\n              ^", tt_message());
    tt_node_fail(train->key[1], "unknown");
    EXPECT_STR("--set train.lrr=[1, 2]: unknown\ntrain.lrr=[1, 2]\n      ^", tt_message());
    tt_tree_close(t);
}

/* ---- printing ---- */

static bool same(const tt_node *a, const tt_node *b)
{
    if (a->kind != b->kind || a->count != b->count) return false;
    if (a->kind == TT_SCALAR && strcmp(a->text, b->text)) return false;
    for (int i = 0; i < a->count; i++) {
        if (a->kind == TT_MAP && strcmp(a->key[i]->text, b->key[i]->text)) return false;
        if (!same(a->item[i], b->item[i])) return false;
    }
    return true;
}

TT_TEST(tree, what_is_printed_reads_back_the_same)
{
    static const char *const texts[] = {
        job,
        "",
        "x",
        "'x: y'",
        "[]",
        "{}",
        "- - - 1\n    - 2\n  - {a: b}\n- [[1, 2], [3]]\n",
        "a: ''\nb: ~\nc: 'null'\nd: \"~\"\ne: 'a # b'\nf: s3://bucket/x?y=1\ng: [s3://x, 'a,b', "
        "'-']\n",
        "a: |\n  two\n  lines\nb: >\n  folded\n  text\nc: 'it''s'\nd: "
        "\"\\t\\\"\\\\\\u263a\\u0085\\u2028\\ufeff\"\n",
        "\"a: b\": 1\n' x ': 3\n'null': 4\n",
        "? |\n  a long\n  key\n: 1\n",
        "a: '-'\nb: '- x'\nc: -x\nd: .5\ne: ...x\nf: '---'\ng: '!x'\nh: '&x'\ni: '*x'\nj: '@'\nk: "
        "'%'\n",
        "a: {b: {c: {d: []}}}\nb: [{}, [], {a: {}}]\n",
        "a: b c\nd: 'e  f'\nh: 'x '\n",
        "u: \xE4\xB8\xAD\xE6\x96\x87\n\xC3\xA4: \"\xF0\x9F\x8E\x89\"\n",
        "l: [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, "
        "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, c, d]\n",
    };

    for (int i = 0; i < TT_COUNT(texts); i++) {
        tt_tree *t = parse(texts[i]), *u;
        tt_str s = {0};
        tt_tree_print(tt_tree_root(t), true, &s);
        EXPECT_OK(tt_tree_parse("printed", s.data, s.size, &u));
        if (!same(tt_tree_root(t), tt_tree_root(u))) FAIL("case %d printed\n%s", i, s.data);
        tt_tree_close(t);
        tt_tree_close(u);
        tt_str_free(&s);
    }
}

TT_TEST(tree, a_very_long_key_reads_back)
{
    tt_str s = {0}, printed = {0};
    tt_tree *t, *u;

    tt_str_add(&s, "- ? ");
    for (int i = 0; i < 3000; i++) tt_str_add(&s, "k");
    tt_str_add(&s, "\n  : {a: [b]}\n");
    t = parse(s.data);
    tt_tree_print(tt_tree_root(t), false, &printed);
    u = parse(printed.data);
    EXPECT(same(tt_tree_root(t), tt_tree_root(u)));
    tt_tree_close(t);
    tt_tree_close(u);
    tt_str_free(&s);
    tt_str_free(&printed);
}

TT_TEST(tree, printing_is_readable_and_keeps_strings_strings)
{
    tt_tree *t =
        parse("model: {layers: [{conv: {out: 10, kernel: [5, 5]}}, relu]}\nname: \"64\"\nx: ~\n");

    expect_print(tt_tree_root(t), false,
                 "model:\n"
                 "  layers:\n"
                 "    - conv:\n"
                 "        out: 10\n"
                 "        kernel: [5, 5]\n"
                 "    - relu\n"
                 "name: \"64\"\n"
                 "x: null\n");
    tt_tree_close(t);
}

/* ---- nodes made by a program ---- */

TT_TEST(tree, programs_build_and_copy_nodes)
{
    tt_tree *a = parse("x: {y: 1}\n"), *b = parse("z: 2\n");
    tt_node *list = tt_node_list(b, NULL), *map = tt_node_map(b, tt_tree_root(b)->item[0]), *copy;

    tt_node_add(map, "k", tt_node_scalar(b, NULL, "v"));
    tt_node_add(map, "k", tt_node_scalar(b, NULL, "w")); /* replaces */
    tt_node_add(list, NULL, map);
    for (int i = 0; i < 20; i++) tt_node_add(list, NULL, tt_node_scalar(b, NULL, "s"));
    tt_node_add(tt_tree_root(b), "list", list);
    copy = tt_node_copy(b, tt_node_get(tt_tree_root(a), "x"));
    tt_node_add(tt_tree_root(b), "copy", copy);
    tt_tree_close(a);
    EXPECT_INT(21, list->count);
    EXPECT_STR("w", tt_node_get(map, "k")->text);
    tt_node_fail(copy->item[0], "copied"); /* its source came along */
    EXPECT_STR("job.yaml:1:8: copied\nx: {y: 1}\n       ^", tt_message());
    tt_node_fail(map, "like");
    EXPECT_STR("job.yaml:1:4: like\nz: 2\n   ^", tt_message());
    tt_node_fail(list, "nowhere");
    EXPECT_STR("nowhere", tt_message());
    tt_tree_close(b);
}
