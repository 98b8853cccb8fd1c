/* Paths into a job: what can be set can be found, and a map that was read knows its keys. */
#include "test.h"

static const char job[] = "train: {batch: 64}\n"
                          "layers:\n"
                          "  - conv: {out: 10}\n"
                          "  - relu\n"
                          "  - dense: {out: 5, name: head}\n"
                          "  - conv: {out: 20}\n";

static const char *text_at(tt_tree *t, const char *path)
{
    const tt_node *n = tt_tree_get(t, path);
    return !n ? "absent" : n->kind == TT_SCALAR ? n->text : "not a scalar";
}

TT_TEST(get, finds_keys_numbers_and_names)
{
    tt_tree *t;

    EXPECT_OK(tt_tree_parse("job.yaml", job, sizeof job - 1, &t));
    EXPECT_STR("64", text_at(t, "train.batch"));
    EXPECT_STR("not a scalar", text_at(t, "train"));
    EXPECT_STR("10", text_at(t, "layers.0.conv.out"));
    EXPECT_STR("10", text_at(t, "layers.conv1.out"));
    EXPECT_STR("20", text_at(t, "layers.conv2.out"));
    EXPECT_STR("5", text_at(t, "layers.head.out"));
    EXPECT_STR("relu", text_at(t, "layers.relu1"));
    tt_tree_close(t);
}

TT_TEST(get, gives_null_for_what_is_not_there)
{
    static const char *const paths[] = {"",
                                        ".",
                                        "train.",
                                        "train.seed",
                                        "train.batch.x",
                                        "layers.4",
                                        "layers.conv3",
                                        "layers.relu1.x",
                                        "layers..out",
                                        "layers.99999999999999999999"};
    tt_tree *t;

    EXPECT_OK(tt_tree_parse("job.yaml", job, sizeof job - 1, &t));
    for (int i = 0; i < TT_COUNT(paths); i++)
        if (tt_tree_get(t, paths[i])) FAIL("'%s' was found", paths[i]);
    tt_tree_close(t);
}

TT_TEST(get, finds_what_was_set)
{
    tt_tree *t;

    EXPECT_OK(tt_tree_parse("job.yaml", job, sizeof job - 1, &t));
    EXPECT_OK(tt_tree_set(t, "layers.conv2.out=7"));
    EXPECT_OK(tt_tree_set(t, "train.clip.norm=1"));
    EXPECT_STR("7", text_at(t, "layers.conv2.out"));
    EXPECT_STR("10", text_at(t, "layers.conv1.out"));
    EXPECT_STR("1", text_at(t, "train.clip.norm"));
    tt_tree_close(t);
}

TT_TEST(get, a_map_that_was_read_knows_its_keys)
{
    static const tt_key keys[] = {{"batch", TT_INT, 0, "1", 0, 0, NULL, "samples of a step"}};
    tt_tree *t;
    tt_node *train;
    int64_t batch;

    EXPECT_OK(tt_tree_parse("job.yaml", job, sizeof job - 1, &t));
    train = tt_tree_get(t, "train");
    EXPECT(train && !train->table);
    EXPECT_OK(tt_node_read(train, "train", keys, TT_COUNT(keys), &batch));
    EXPECT(train->table == keys);
    EXPECT_INT(1, train->table_count);
    tt_tree_close(t);
}
