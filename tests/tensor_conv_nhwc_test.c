/* Convolution with channels innermost against the reference. */
#include "tensor_help.h"

static tt_window window(int c, int h, int w, int o, int k, int stride, int pad)
{
    tt_window win = {c, h, w, o, 0, 0, k, k, stride, stride, pad, pad, 1, 1, 1};
    win.oh = (h + 2 * pad - k) / stride + 1;
    win.ow = (w + 2 * pad - k) / stride + 1;
    return win;
}

static int pick_channels(void)
{
    static const int some[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  12, 15,
                               16, 17, 20, 24, 31, 33, 48, 64, 67, 100};
    return some[help_int(0, TT_COUNT(some) - 1)];
}

/* One axis: kernel, stride, padding, dilation, and an output that may need more padding behind. */
static void pick_axis(int *len, int *out, int *k, int *s, int *p, int *d)
{
    *k = help_int(1, 4), *s = help_int(1, 3), *d = help_coin() ? 1 : help_int(1, 3);
    *p = help_int(0, *k + 1);
    *len = help_int(1, 12);
    *out = (*len + 2 * *p - (*k - 1) * *d - 1) / *s + 1 + help_int(0, 1);
    if (*out < 1) *out = 1;
}

static tt_window pick_window(void)
{
    tt_window w = {0};

    pick_axis(&w.h, &w.oh, &w.kh, &w.sh, &w.ph, &w.dh);
    pick_axis(&w.w, &w.ow, &w.kw, &w.sw, &w.pw, &w.dw);
    w.groups = 1;
    w.c = pick_channels(), w.o = pick_channels();
    if (help_uniform() < 0.25) { /* groups; half of them depthwise */
        w.groups = help_int(2, 9);
        w.c = w.groups * (help_coin() ? 1 : help_int(1, 5));
        w.o = w.groups * (help_coin() ? 1 : help_int(1, 5));
    }
    return w;
}

typedef struct sizes {
    int64_t x, y, w;
    help_form in, out;
} sizes;

static sizes sizes_of(const tt_window *w, int n)
{
    return (sizes){(int64_t)n * w->c * w->h * w->w,
                   (int64_t)n * w->o * w->oh * w->ow,
                   (int64_t)w->o * (w->c / w->groups) * w->kh * w->kw,
                   {TT_NHWC, 1, n, w->c, (int64_t)w->h * w->w},
                   {TT_NHWC, 1, n, w->o, (int64_t)w->oh * w->ow}};
}

/* Memory that was never written is not a number, so that reading it shows. */
static bool lean; /* dense: no packed copy of the weights for dx */

static void against_ref(const tt_kernels *k, const tt_window *win, int n, bool bias, bool relu,
                        bool add)
{
    const tt_kernels *ref = help_ref();
    tt_conv plain = {.win = *win, .layout = TT_PLAIN, .bias = bias, .relu = relu, .lean = lean},
            c = plain;
    sizes s = sizes_of(win, n);
    tt_conv_args r = {
        .n = n, .x = help_random(s.x), .w = help_random(s.w), .dx_add = add, .dw_add = add};
    tt_conv_args a = r;
    double tol = 2e-5 * sqrt((double)win->c * win->kh * win->kw + n * win->oh * win->ow);
    float *packed;

    c.layout = TT_NHWC;
    r.b = a.b = bias ? help_random(win->o) : NULL;
    packed = help_unwritten(k->conv_packed(&c) * sizeof(float));
    k->conv_pack(&c, a.w, packed);
    a.packed = packed;
    a.scratch = help_unwritten(k->conv_scratch(&c, n));
    a.x = help_into(s.in, r.x, 0);
    r.y = help_floats(s.y), a.y = help_unwritten((size_t)s.y * sizeof(float));
    ref->conv_forward(&plain, &r);
    k->conv_forward(&c, &a);
    EXPECT_ALL_NEAR(r.y, help_plain(s.out, a.y), s.y, tol);

    /* A sum that rounds to the other side of zero must not look like a wrong gradient. */
    a.y = help_into(s.out, r.y, 0);
    r.dy = help_random(s.y), a.dy = help_into(s.out, r.dy, 0);
    r.dx = help_random(s.x), a.dx = help_into(s.in, r.dx, 0);
    r.dw = help_random(s.w), a.dw = help_copy(r.dw, s.w);
    r.db = help_random(win->o), a.db = help_copy(r.db, win->o);
    a.scratch = help_unwritten(k->conv_scratch(&c, n));
    ref->conv_backward(&plain, &r);
    k->conv_backward(&c, &a);
    EXPECT_ALL_NEAR(r.dx, help_plain(s.in, a.dx), s.x, tol);
    EXPECT_ALL_NEAR(r.dw, a.dw, s.w, tol);
    EXPECT_ALL_NEAR(r.db, a.db, win->o, tol);
    help_free();
}

TT_TEST(conv_nhwc, random_windows_are_as_the_reference)
{
    for (int i = 0; i < 400; i++) {
        tt_window w = pick_window();
        int n = help_coin() ? 1 : help_int(2, 9);
        bool bias = help_coin(), relu = help_coin(), add = help_coin();
        EACH_FAST(k) against_ref(k, &w, n, bias, relu, add);
    }
}

/* Large enough for several blocks of pixels, of rows of one image, of the sum, and of panels. */
TT_TEST(conv_nhwc, windows_of_many_blocks_are_as_the_reference)
{
    tt_window some[] = {
        window(3, 66, 70, 24, 3, 1, 1),  window(3, 41, 43, 20, 7, 2, 3),
        window(130, 7, 5, 36, 3, 1, 1),  window(70, 30, 29, 20, 3, 2, 1),
        window(40, 33, 31, 70, 1, 2, 0), window(700, 1, 1, 90, 1, 1, 0),
        window(64, 8, 8, 64, 3, 1, 1),   window(520, 6, 6, 40, 1, 1, 0),
        window(64, 4, 4, 150, 3, 2, 1),
    };

    EACH_FAST(k)
    for (int i = 0; i < TT_COUNT(some); i++)
        against_ref(k, &some[i], some[i].h > 10 ? 2 : 13, true, false, i % 2);
}

TT_TEST(conv_nhwc, dense_layers_are_as_the_reference)
{
    static const int n[] = {1, 2, 7, 64, 300}, c[] = {1, 10, 50, 512}, o[] = {1, 10, 64, 130};

    EACH_FAST(k)
    for (int i = 0; i < TT_COUNT(n); i++)
        for (int j = 0; j < TT_COUNT(c); j++) {
            tt_window w = window(c[j], 1, 1, o[(i + j) % TT_COUNT(o)], 1, 1, 0);
            against_ref(k, &w, n[i], true, true, i % 2);
        }
}

/* Zero times infinity is not a number; a tap on padding has no part in the sum at all. */
TT_TEST(conv_nhwc, lean_dense_layers_are_as_the_reference)
{
    static const int shapes[][3] = {{1, 1, 1},     {7, 130, 65},   {33, 321, 64},
                                    {400, 20, 19}, {5, 640, 1030}, {390, 131, 48}};

    lean = true;
    for (int i = 0; i < TT_COUNT(shapes); i++) {
        tt_window w = window(shapes[i][2], 1, 1, shapes[i][1], 1, 1, 0);
        EACH_FAST(k) against_ref(k, &w, shapes[i][0], i % 2, i % 3 == 1, i % 2);
    }
    lean = false;
}

/* A row's gradient is the same in any company, and takes about half the room. */
TT_TEST(conv_nhwc, lean_rows_are_alone)
{
    enum { N = 385, O = 300, C = 70 };

    EACH_FAST(k)
    {
        tt_conv c = {.win = window(C, 1, 1, O, 1, 1, 0), .layout = TT_NHWC}, half = c;
        half.lean = true;
        EXPECT(k->conv_packed(&half) < k->conv_packed(&c) * 6 / 10);
        float *packed = help_unwritten(k->conv_packed(&half) * sizeof *packed),
              *w = help_random(O * C), *one = help_floats(C);
        tt_conv_args a = {.n = N,
                          .w = w,
                          .packed = packed,
                          .dy = help_random(N * O),
                          .dx = help_floats(N * C),
                          .scratch = help_unwritten(k->conv_scratch(&half, N))};
        k->conv_pack(&half, w, packed);
        k->conv_backward(&half, &a);
        for (int i = 0; i < N; i += 77) {
            tt_conv_args b = a;
            b.n = 1;
            b.dy = a.dy + i * O;
            b.dx = one;
            k->conv_backward(&half, &b);
            EXPECT(!memcmp(one, a.dx + i * C, C * sizeof *one));
        }
        help_free();
    }
}

TT_TEST(conv_nhwc, padding_is_left_out_not_multiplied)
{
    tt_window w = window(5, 4, 4, 3, 3, 1, 1);
    sizes s = sizes_of(&w, 2);

    EACH_FAST(k)
    {
        tt_conv c = {.win = w, .layout = TT_NHWC};
        float *x = help_random(s.x), *wt = help_random(s.w), *y = help_floats(s.y);
        float *packed = help_floats((int64_t)k->conv_packed(&c));
        void *scratch = help_bytes(k->conv_scratch(&c, 2));
        tt_conv_args a = {.n = 2, .x = x, .w = wt, .packed = packed, .y = y, .scratch = scratch};
        for (int64_t i = 0; i < s.x; i++) x[i] = fabsf(x[i]) + 0.1f;
        for (int64_t i = 0; i < s.w; i += 9) wt[i] = INFINITY; /* the tap above and to the left */
        k->conv_pack(&c, wt, packed);
        k->conv_forward(&c, &a);
        for (int p = 0; p < 2 * 16; p++)
            for (int o = 0; o < w.o; o++) {
                bool edge = p % 4 == 0 || p % 16 < 4;
                EXPECT(edge ? isfinite(y[p * w.o + o]) : y[p * w.o + o] == INFINITY);
            }
        help_free();
    }
}

/* Training replays a step from a seed: the same call gives the same bits, and what a sample gives
 * does not hang on its neighbours. */
TT_TEST(conv_nhwc, results_repeat_to_the_bit_and_samples_are_alone)
{
    tt_window some[] = {window(40, 9, 9, 33, 3, 1, 1), window(16, 8, 8, 24, 3, 2, 1),
                        window(330, 1, 1, 50, 1, 1, 0)};

    EACH_FAST(k)
    for (int i = 0; i < TT_COUNT(some); i++) {
        enum { N = 11 };
        tt_window *w = &some[i];
        tt_conv c = {.win = *w, .layout = TT_NHWC};
        sizes s = sizes_of(w, N);
        float *x = help_random(s.x), *wt = help_random(s.w), *dy = help_random(s.y);
        float *packed = help_floats((int64_t)k->conv_packed(&c));
        tt_conv_args a = {.n = N, .x = x, .w = wt, .packed = packed}, b;
        a.scratch = help_bytes(k->conv_scratch(&c, N));
        a.y = help_floats(s.y), a.dx = help_floats(s.x), a.dw = help_floats(s.w);
        a.dy = help_copy(dy, s.y);
        k->conv_pack(&c, wt, packed);
        k->conv_forward(&c, &a);
        k->conv_backward(&c, &a);
        EXPECT(!memcmp(a.dy, dy, (size_t)s.y * sizeof *dy)); /* no relu: dy is not touched */

        b = a;
        b.y = help_floats(s.y), b.dx = help_floats(s.x), b.dw = help_floats(s.w);
        b.scratch = help_unwritten(k->conv_scratch(&c, N));
        k->conv_backward(&c, &b);
        EXPECT(!memcmp(a.dw, b.dw, (size_t)s.w * sizeof(float)));
        EXPECT(!memcmp(a.dx, b.dx, (size_t)s.x * sizeof(float)));
        b.dw = NULL, b.n = 1;
        for (int n = 0; n < N; n++) {
            b.x = x + s.x / N * n, b.dy = dy + s.y / N * n;
            b.y = help_floats(s.y / N), b.dx = help_floats(s.x / N);
            k->conv_forward(&c, &b);
            k->conv_backward(&c, &b);
            EXPECT(!memcmp(a.y + s.y / N * n, b.y, (size_t)(s.y / N) * sizeof(float)));
            EXPECT(!memcmp(a.dx + s.x / N * n, b.dx, (size_t)(s.x / N) * sizeof(float)));
        }
        help_free();
    }
}

TT_TEST(conv_nhwc, what_is_not_wanted_is_not_touched)
{
    tt_window w = window(12, 5, 5, 7, 3, 1, 1);
    sizes s = sizes_of(&w, 3);

    EACH_FAST(k)
    {
        tt_conv c = {.win = w, .layout = TT_NHWC};
        float *packed = help_floats((int64_t)k->conv_packed(&c));
        tt_conv_args all = {.n = 3, .x = help_random(s.x), .w = help_random(s.w), .packed = packed};
        tt_conv_args one = {0};
        all.dy = help_random(s.y), all.scratch = help_bytes(k->conv_scratch(&c, 3));
        all.dx = help_floats(s.x), all.dw = help_floats(s.w), all.db = help_floats(w.o);
        k->conv_pack(&c, all.w, packed);
        k->conv_backward(&c, &all);
        for (int i = 0; i < 3; i++) {
            one = all;
            one.dx = i == 0 ? help_floats(s.x) : NULL;
            one.dw = i == 1 ? help_floats(s.w) : NULL;
            one.db = i == 2 ? help_floats(w.o) : NULL;
            k->conv_backward(&c, &one);
            if (one.dx) EXPECT(!memcmp(one.dx, all.dx, (size_t)s.x * sizeof(float)));
            if (one.dw) EXPECT(!memcmp(one.dw, all.dw, (size_t)s.w * sizeof(float)));
            if (one.db) EXPECT(!memcmp(one.db, all.db, (size_t)w.o * sizeof(float)));
        }
        help_free();
    }
}
