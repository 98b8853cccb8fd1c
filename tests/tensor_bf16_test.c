/* bf16: rounding by itself, products in all three orientations against sums in double, and which
 * tables there are. What layers make of it is in model_layers_test.c. */
#include <signal.h>
#include <unistd.h>

#include "tensor/tables.h"
#include "tensor_help.h"

extern const tt_kernels tt_kernels_emulated; /* the kernel of AMX, with tiles in plain C */

/* Each table that runs here, and the emulated one. */
static int bf16_tables(const tt_kernels *out[16])
{
    const tt_kernels *const *all;
    int count = tt_kernels_with(TT_IN_BF16, &all), n = 0;

    for (int i = 0; i < count; i++) out[n++] = all[i];
    out[n++] = &tt_kernels_emulated;
    return n;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- rounding ---- */

/* All patterns at once through a table's own loads and stores. */
static void all_patterns(const tt_kernels *k)
{
    enum { ALL = 1 << 16 };
    tt_bf16 *x = help_bytes(ALL * sizeof *x), *back = help_bytes(ALL * sizeof *back);
    float *wide = help_floats(ALL);

    for (int i = 0; i < ALL; i++) x[i].bits = (uint16_t)i;
    k->widen(ALL, (void *)x, wide);
    k->narrow(ALL, wide, (void *)back, false);
    for (int i = 0; i < ALL; i++) {
        EXPECT(bits_of(wide[i]) == (uint32_t)i << 16);
        if (isnan(wide[i]))
            EXPECT(isnan(tt_bf16_get(back[i]))); /* a quiet one */
        else
            EXPECT_INT(i, back[i].bits);
    }
    help_free();
}

TT_TEST(tensor_bf16, every_pattern_widens_and_rounds_back)
{
    const tt_kernels *k[16];
    int count = bf16_tables(k);

    for (int i = 0; i < count; i++) all_patterns(k[i]);
}

TT_TEST(tensor_bf16, rounding_is_to_the_nearest_and_of_two_to_the_even)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80}, /* ties: to even, down */
        {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82}, {0x3f817fff, 0x3f81}, /* ... and up          */
        {0xbf818000, 0xbf82}, {0x80000000, 0x8000}, {0x00008000, 0x0000}, /* denormals as well   */
        {0x00018000, 0x0002}, {0x007fffff, 0x0080}, {0x7f7fffff, 0x7f80}, /* up to infinity      */
        {0x7f7f7fff, 0x7f7f}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
    };
    const tt_kernels *k[16];
    int count = bf16_tables(k);

    for (int t = 0; t < count; t++)
        for (int i = 0; i < TT_COUNT(cases); i++) {
            float x[17]; /* a whole vector, and a part of one */
            tt_bf16 y[17];
            for (int q = 0; q < 17; q++) x[q] = float_of(cases[i].from);
            k[t]->narrow(17, x, (void *)y, false);
            EXPECT_INT(cases[i].to, tt_bf16_of(x[0]).bits);
            for (int q = 0; q < 17; q++) EXPECT_INT(cases[i].to, y[q].bits);
        }
}

TT_TEST(tensor_bf16, what_is_not_a_number_stays_so)
{
    static const uint32_t none[] = {0x7fc00000, 0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff};
    const tt_kernels *k[16];
    int count = bf16_tables(k);

    for (int t = 0; t < count; t++)
        for (int i = 0; i < TT_COUNT(none); i++) {
            float x[17];
            tt_bf16 y[17];
            for (int q = 0; q < 17; q++) x[q] = float_of(none[i]);
            k[t]->narrow(17, x, (void *)y, false);
            for (int q = 0; q < 17; q++) EXPECT(isnan(tt_bf16_get(y[q])));
        }
}

/* ---- products ---- */

static tt_bf16 *random_bf16(int64_t n)
{
    tt_bf16 *x = help_bytes((size_t)n * sizeof *x);

    for (int64_t i = 0; i < n; i++) x[i] = tt_bf16_of((float)(2 * help_uniform() - 1));
    return x;
}

/* The sum, within what float32 loses of so many terms; `got` is rounded to bf16 where it is stored
 * so, which may go either way. */
static void expect_sum(const char *what, const tt_kernels *k, double want, double got, double size,
                       bool stored)
{
    double off = 1e-6 * size + 1e-6;

    if (stored) off += fabs(want) / 256;
    if (!(fabs(want - got) <= off)) FAIL("%s, %s: %.9g, wanted %.9g", k->name, what, got, want);
}

/* y = x w, dx = dy w^T, dw = x^T dy of a dense layer, m samples, from c to o numbers. */
static void product_trial(const tt_kernels *k, int m, int c, int o)
{
    tt_conv v = {.win = {.c = c, .h = 1, .w = 1, .o = o, .oh = 1, .ow = 1, .kh = 1, .kw = 1},
                 .layout = k->plain ? TT_PLAIN : TT_NHWC};
    v.win.sh = v.win.sw = v.win.dh = v.win.dw = v.win.groups = 1;
    float *w = help_random((int64_t)o * c), *dw = help_random((int64_t)o * c);
    float *old = help_copy(dw, (int64_t)o * c);
    tt_bf16 *x = random_bf16((int64_t)m * c), *dy = random_bf16((int64_t)m * o);
    tt_bf16 *y = random_bf16((int64_t)m * o), *dx = random_bf16((int64_t)m * c);
    void *packed = help_bytes(k->conv_packed(&v) * sizeof(tt_bf16));
    tt_conv_args a = {.n = m,
                      .x = (void *)x,
                      .w = w,
                      .packed = packed,
                      .y = (void *)y,
                      .dy = (void *)dy,
                      .dx = (void *)dx,
                      .dw = dw,
                      .dw_add = help_coin(),
                      .scratch = help_unwritten(k->conv_scratch(&v, m))};
    char what[64];

    snprintf(what, sizeof what, "%d x %d by %d", m, c, o);
    k->conv_pack(&v, w, packed);
    k->conv_forward(&v, &a);
    k->conv_backward(&v, &a);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < o; j++) {
            double sum = 0;
            for (int p = 0; p < c; p++)
                sum += (double)tt_bf16_get(x[i * c + p]) * tt_bf16_get(tt_bf16_of(w[j * c + p]));
            expect_sum(what, k, sum, tt_bf16_get(y[i * o + j]), c, true);
        }
    for (int i = 0; i < m; i++)
        for (int p = 0; p < c; p++) {
            double sum = 0;
            for (int j = 0; j < o; j++)
                sum += (double)tt_bf16_get(dy[i * o + j]) * tt_bf16_get(tt_bf16_of(w[j * c + p]));
            expect_sum(what, k, sum, tt_bf16_get(dx[i * c + p]), o, true);
        }
    for (int j = 0; j < o; j++)
        for (int p = 0; p < c; p++) {
            double sum = a.dw_add ? old[j * c + p] : 0;
            for (int i = 0; i < m; i++)
                sum += (double)tt_bf16_get(x[i * c + p]) * tt_bf16_get(dy[i * o + j]);
            expect_sum(what, k, sum, dw[j * c + p], m, false);
        }
    help_free();
}

TT_TEST(tensor_bf16, products_of_any_sizes_are_sums_in_float32)
{
    static const int sizes[][3] = {{1, 1, 1},
                                   {16, 32, 16},
                                   {32, 64, 32},
                                   {31, 33, 17},
                                   {33, 31, 65},
                                   {64, 128, 64},
                                   {600, 40, 30},
                                   {20, 1100, 70},
                                   {48, 70, 200},
                                   /* rows in chunks, forward and back; blocks of both in dw */
                                   {70, 3300, 5},
                                   {70, 5, 3300},
                                   {1100, 9, 540}};
    const tt_kernels *k[16];
    int count = bf16_tables(k);

    for (int t = 0; t < count; t++) {
        for (int i = 0; i < TT_COUNT(sizes); i++)
            product_trial(k[t], sizes[i][0], sizes[i][1], sizes[i][2]);
        for (int i = 0; i < 20; i++)
            product_trial(k[t], help_int(1, 90), help_int(1, 150), help_int(1, 150));
    }
}

/* Where a number stands in the batch changes no bit of it. */
TT_TEST(tensor_bf16, a_product_does_not_depend_on_the_rows_beside_it)
{
    enum { M = 70, C = 300, O = 90 };
    const tt_kernels *k[16];
    int count = bf16_tables(k);

    for (int t = 0; t < count; t++) {
        tt_conv v = {.win = {.c = C, .h = 1, .w = 1, .o = O, .oh = 1, .ow = 1, .kh = 1, .kw = 1},
                     .layout = k[t]->plain ? TT_PLAIN : TT_NHWC};
        v.win.sh = v.win.sw = v.win.dh = v.win.dw = v.win.groups = 1;
        float *w = help_random(O * C);
        tt_bf16 *x = random_bf16(M * C), *y = random_bf16(M * O), *one = random_bf16(O);
        void *packed = help_bytes(k[t]->conv_packed(&v) * sizeof(tt_bf16));
        tt_conv_args a = {.n = M, .x = (void *)x, .w = w, .packed = packed, .y = (void *)y};
        a.scratch = help_unwritten(k[t]->conv_scratch(&v, M));
        k[t]->conv_pack(&v, w, packed);
        k[t]->conv_forward(&v, &a);
        a.n = 1, a.y = (void *)one;
        for (int i = 0; i < M; i += 23) {
            a.x = (void *)(x + i * C);
            k[t]->conv_forward(&v, &a);
            EXPECT(!memcmp(one, y + i * O, O * sizeof *one));
        }
        help_free();
    }
}

/* ---- tables ---- */

TT_TEST(tensor_bf16, a_table_is_found_by_its_name_and_by_its_instruction_set)
{
    const tt_kernels *const *all, *k;
    int count = tt_kernels_with(TT_IN_BF16, &all);

    EXPECT(count >= 2);
    for (int i = 0; i < count; i++) {
        EXPECT(all[i]->precision == TT_IN_BF16);
        EXPECT_OK(tt_kernels_pick(all[i]->name, TT_IN_BF16, &k));
        EXPECT(k == all[i]);
        EXPECT_ERR(TT_EINVAL, tt_kernels_pick(all[i]->name, TT_IN_FLOAT32, &k));
    }
    EXPECT_OK(tt_kernels_pick("generic", TT_IN_BF16, &k));
    EXPECT_STR("generic-bf16", k->name);
    EXPECT_STR("widened", k->product);
    EXPECT_ERR(TT_EINVAL, tt_kernels_pick("abacus", TT_IN_BF16, &k));
}

/* ---- trials ---- */

static bool fine(void)
{
    return true;
}
static bool wrong(void)
{
    return false;
}
static bool unknown_instruction(void)
{
    return raise(SIGILL) != 0;
}
static bool out_of_place(void)
{
    return raise(SIGSEGV) != 0;
}
static bool endless(void)
{
    for (;;) pause();
    return true;
}

static void survive(int sig)
{
    (void)sig;
}

TT_TEST(tensor_bf16, every_way_of_multiplying_that_runs_passes_its_trial)
{
    const tt_kernels *k;

    EXPECT(tt_trial_generic_bf16() && tt_trial_emulated());
    if (!tt_kernels_pick("avx2", TT_IN_BF16, &k)) EXPECT(tt_trial_avx2_bf16());
    if (!tt_kernels_pick("avx512", TT_IN_BF16, &k)) EXPECT(tt_trial_avx512_bf16());
}

/* Whatever the process has made of its signals: the child dies of them, and nobody waits for ever.
 */
TT_TEST(tensor_bf16, a_trial_that_dies_has_failed_and_one_that_hangs_tells_nothing)
{
    sigset_t all, before;

    sigfillset(&all);
    for (int i = 0; i < 2; i++) {
        EXPECT_INT(TT_TRIAL_WORKED, tt_trial_in_child(fine, 60));
        EXPECT_INT(TT_TRIAL_FAILED, tt_trial_in_child(wrong, 60));
        EXPECT_INT(TT_TRIAL_FAILED, tt_trial_in_child(unknown_instruction, 60));
        EXPECT_INT(TT_TRIAL_FAILED, tt_trial_in_child(out_of_place, 60));
        double begun = tt_clock_s();
        EXPECT_INT(TT_TRIAL_UNTOLD, tt_trial_in_child(endless, 0.2));
        EXPECT(tt_clock_s() - begun < 30);
        if (i) break; /* now with handlers, and everything blocked */
        signal(SIGILL, survive);
        signal(SIGSEGV, survive);
        signal(SIGALRM, SIG_IGN);
        EXPECT_INT(0, sigprocmask(SIG_BLOCK, &all, &before));
    }
    EXPECT_INT(0, sigprocmask(SIG_SETMASK, &before, NULL));
    signal(SIGILL, SIG_DFL);
    signal(SIGSEGV, SIG_DFL);
    signal(SIGALRM, SIG_DFL);
}
