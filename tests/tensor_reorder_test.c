/* Layouts, and dropout, in which they must play no part. */
#include "tensor_help.h"

static void reorder_trial(const tt_kernels *k, tt_layout from, tt_layout to)
{
    int n = help_int(1, 40), c = help_int(1, 40), hw = help_coin() ? help_int(1, 60) : 1;
    help_form f = {from, k->lanes, n, c, hw}, t = {to, k->lanes, n, c, hw};
    float *x = help_random((int64_t)n * c * hw), *src = help_into(f, x, from == to ? 0 : 9);
    float *y = help_floats(help_size(t));

    for (int64_t i = 0; i < help_size(t); i++) y[i] = 5;
    k->reorder(n, c, hw, from, src, to, y, false);
    EXPECT_ALL_NEAR(x, help_plain(t, y), (int64_t)n * c * hw, 0);
    EXPECT(help_padded(t, y, 0)); /* whatever the padding was before, and wherever it came from */
    k->reorder(n, c, hw, from, src, to, y, true);
    help_ref()->scale((int64_t)n * c * hw, 2, x);
    EXPECT_ALL_NEAR(x, help_plain(t, y), (int64_t)n * c * hw, 0);
    EXPECT(help_padded(t, y, 0));
    help_free();
}

TT_TEST(tensor_reorder, every_layout_goes_to_every_other)
{
    EACH_FAST(k) EACH_LAYOUT(from) EACH_LAYOUT(to) for (int t = 0; t < 15; t++)
    {
        reorder_trial(k, from, to);
    }
}

TT_TEST(tensor_reorder, ref_knows_images_with_channels_innermost)
{
    for (int t = 0; t < 15; t++) {
        reorder_trial(help_ref(), TT_PLAIN, TT_NHWC);
        reorder_trial(help_ref(), TT_NHWC, TT_PLAIN);
        reorder_trial(help_ref(), TT_NHWC, TT_NHWC);
    }
}

TT_TEST(tensor_reorder, ref_copies_and_adds)
{
    float x[] = {1, 2, 3, 4}, y[4];

    help_ref()->reorder(1, 2, 2, TT_PLAIN, x, TT_PLAIN, y, false);
    help_ref()->reorder(1, 2, 2, TT_PLAIN, x, TT_PLAIN, y, true);
    EXPECT(y[0] == 2 && y[3] == 8);
}

/* ---- Dropout ---- */

static uint64_t *places(int n)
{
    uint64_t *p = help_bytes((size_t)n * 2 * sizeof *p);
    for (int i = 0; i < n; i++) p[2 * i] = 3, p[2 * i + 1] = (uint64_t)i << 33 | 17;
    return p;
}

static void dropout_trial(const tt_kernels *k, tt_layout layout)
{
    int n = help_int(1, 20), c = help_int(1, 30);
    int hw = help_coin() ? help_int(1, 30) : help_coin() ? 1 : 333;
    int64_t all = (int64_t)n * c * hw;
    help_form f = {layout, k->lanes, n, c, hw};
    float *x = help_random(all), *y = help_random(all), *fast = help_into(f, y, 0);
    tt_drop_args a = {.n = n,
                      .c = c,
                      .hw = hw,
                      .p = (float)help_int(0, 10) / 10,
                      .key = 99,
                      .place = places(n),
                      .x = x,
                      .y = y,
                      .add = help_coin()};

    help_ref()->dropout(&a);
    a.layout = layout;
    a.x = help_into(f, x, 0);
    a.y = fast;
    k->dropout(&a);
    EXPECT_ALL_NEAR(y, help_plain(f, fast), all, a.add ? 1e-7 : 0); /* bit for bit */
    EXPECT(help_padded(f, fast, 0));
    help_free();
}

TT_TEST(tensor_reorder, dropout_takes_the_same_elements_in_every_layout)
{
    EACH_FAST(k) EACH_LAYOUT(l) for (int t = 0; t < 20; t++) dropout_trial(k, l);
}

/* Forward on ones gives the mask; the same call on a gradient is the backward pass. */
TT_TEST(tensor_reorder, dropout_keeps_a_share_and_scales_it)
{
    enum { N = 4, D = 25000 };
    const tt_kernels *const *all;
    int count = tt_kernels_all(&all);

    for (int i = 0; i < count; i++) {
        float *x = help_floats(N * D), *y = help_floats(N * D), *z = help_floats(N * D);
        tt_drop_args a = {
            .n = N, .c = D, .hw = 1, .p = 0.25f, .key = 7, .place = places(N), .x = x, .y = y};
        int64_t kept = 0, same = 0;
        for (int64_t e = 0; e < N * D; e++) x[e] = 1;
        all[i]->dropout(&a);
        for (int64_t e = 0; e < N * D; e++) {
            EXPECT(y[e] == 0 || y[e] == 1 / 0.75f);
            kept += y[e] != 0;
            same += (y[e] != 0) == (y[e % D] != 0);
        }
        EXPECT_NEAR(0.75, (double)kept / (N * D), 0.01);
        EXPECT(same <
               N * D * 3 / 4); /* samples differ (0.25 + 0.75 * 0.625 if they are independent) */
        a.key = 8, a.y = z;
        all[i]->dropout(&a);
        EXPECT(memcmp(y, z, N * D * sizeof *y)); /* layers differ */
        a.p = 0;
        all[i]->dropout(&a);
        EXPECT_ALL_NEAR(x, z, N * D, 0); /* nothing is dropped, nothing scaled */
        a.p = 1;
        all[i]->dropout(&a);
        for (int64_t e = 0; e < N * D; e++) EXPECT(z[e] == 0);
        help_free();
    }
}
