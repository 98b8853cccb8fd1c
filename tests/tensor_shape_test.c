#include "tensor_help.h"

TT_TEST(tensor, shapes_count_show_and_compare)
{
    char buf[64], tiny[6];
    tt_shape s = {3, {10, 24, 24}}, t = {3, {10, 24, 25}}, none = {0, {0}};

    EXPECT_INT(5760, tt_shape_count(s));
    EXPECT_INT(1, tt_shape_count(none));
    EXPECT_STR("10x24x24", tt_shape_show(s, buf, sizeof buf));
    EXPECT_STR("", tt_shape_show(none, buf, sizeof buf));
    EXPECT_STR("10x24", tt_shape_show(s, tiny, sizeof tiny)); /* cut, never overrun */
    EXPECT(tt_shape_equal(s, s) && !tt_shape_equal(s, t) && !tt_shape_equal(s, none));
    t.rank = 2; /* dimensions behind the rank play no part */
    t.dim[2] = 24;
    EXPECT(!tt_shape_equal(s, t));
}

TT_TEST(tensor, a_batch_has_the_parts_that_were_asked_for)
{
    tt_batch b;

    EXPECT_OK(tt_batch_open(8, ROW(3, 1, 0), &b));
    EXPECT(b.x && b.label && !b.target && b.place);
    tt_batch_close(&b, 8, ROW(3, 1, 0));
    EXPECT(!b.x && !b.label && !b.place);
    EXPECT_OK(tt_batch_open(8, ROW(3, 0, 2), &b));
    EXPECT(b.x && !b.label && b.target && b.place);
    tt_batch_close(&b, 8, ROW(3, 1, 2));
    tt_batch_close(&b, 8, ROW(3, 1, 2)); /* closing what is closed does nothing */
}

TT_TEST(tensor, a_batch_too_large_for_memory_is_an_error)
{
    tt_batch b;

    EXPECT_ERR(TT_ENOMEM, tt_batch_open(INT32_MAX, ROW(INT64_MAX / 2, 1, 1), &b));
    EXPECT(!b.x && !b.label && !b.target && !b.place);
    EXPECT_MESSAGE("2147483647 samples");
}

TT_TEST(tensor, a_cut_of_a_batch_is_a_view)
{
    tt_batch b, cut;

    EXPECT_OK(tt_batch_open(8, ROW(3, 1, 2), &b));
    b.n = 8;
    cut = tt_batch_cut(&b, 5, 3, ROW(3, 1, 2));
    EXPECT_INT(3, cut.n);
    EXPECT(cut.x == b.x + 15 && cut.label == b.label + 5);
    EXPECT(cut.target == b.target + 10 && cut.place == b.place + 10);
    tt_batch_close(&b, 8, ROW(3, 1, 2));
    b.n = 8, b.x = (float[24]){0};
    cut = tt_batch_cut(&b, 8, 0,
                       ROW(3, 1, 2)); /* nothing, of a batch that has neither labels nor targets */
    EXPECT(cut.n == 0 && !cut.label && !cut.target && !cut.place);
}

TT_TEST(tensor, kernels_are_found_by_name_or_said_to_be_missing)
{
    const tt_kernels *k, *const *all;
    int count = tt_kernels_all(&all);

    EXPECT(count >= 2); /* generic and ref run everywhere */
    EXPECT_STR("ref", all[count - 1]->name);
    EXPECT_INT(0, all[count - 1]->lanes);
    for (int i = 0; i < count; i++) {
        EXPECT_OK(tt_kernels_find(all[i]->name, &k));
        EXPECT(k == all[i]);
    }
    EXPECT_ERR(TT_EINVAL, tt_kernels_find("avx1024", &k));
    EXPECT(!k);
    EXPECT_MESSAGE("\"avx1024\"");
    tt_err err = tt_kernels_find("avx512", &k);
    EXPECT(err == (strcmp(all[0]->name, "avx512") ? TT_EENV : TT_OK));
}

TT_TEST(tensor, auto_is_the_best_unless_the_environment_says_otherwise)
{
    const tt_kernels *k, *const *all;

    tt_kernels_all(&all);
    unsetenv("TUTTI_KERNELS");
    EXPECT_OK(tt_kernels_find("auto", &k));
    EXPECT(k == all[0]);
    setenv("TUTTI_KERNELS", "ref", 1);
    EXPECT_OK(tt_kernels_find("auto", &k));
    EXPECT_STR("ref", k->name);
    EXPECT_OK(tt_kernels_find("generic", &k)); /* a name that was given stands */
    EXPECT_STR("generic", k->name);
    setenv("TUTTI_KERNELS", "fastest", 1);
    EXPECT_ERR(TT_EINVAL, tt_kernels_find("auto", &k));
    EXPECT_MESSAGE("TUTTI_KERNELS");
    unsetenv("TUTTI_KERNELS");
}

TT_TEST(tensor, the_cpu_is_described_and_measured)
{
    char features[256], model[128], tiny[4];
    const tt_kernels *const *all;
    int count = tt_kernels_all(&all);

    EXPECT(*tt_cpu_model(model, sizeof model));
    tt_cpu_features(features, sizeof features);
    tt_cpu_features(tiny, sizeof tiny);
    EXPECT(strlen(tiny) < sizeof tiny);
    for (int i = 0; i < count; i++) {
        if (!strcmp(all[i]->name, "avx2")) EXPECT(strstr(features, "avx2") != NULL);
        EXPECT(tt_peak_gflops(all[i]) > 0.01);
    }
}
