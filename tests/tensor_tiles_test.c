/* The instructions of AMX themselves, where there are none: the kernel of bf16_gemm.c is compiled
 * with the real ones, and what a CPU without tiles does not know is done by a handler of SIGILL,
 * as the manual says it is to be done. So what the emulation in bf16_tiles.h leaves out is seen as
 * well: shapes that LDTILECFG refuses, tiles that do not fit each other, steps in the wrong unit,
 * and what the compiler makes of the intrinsics. On a CPU with tiles they run as they are. */
#define _GNU_SOURCE
#include <signal.h>
#include <ucontext.h>

#include "tensor/tables.h"
#include "tensor_help.h"

extern const tt_kernels tt_kernels_emulated, tt_kernels_trapped;

#if defined(__x86_64__)
/* ---- the tiles ---- */

static struct {
    bool on;
    uint8_t rows[16];
    uint16_t bytes[16];
    union {
        uint16_t half[16][32];
        float number[16][16];
    } tile[8];
    long configs, dots;
    const char *wrong; /* the first thing that a CPU would not have done */
} amx;

static void expect_of_cpu(bool fine, const char *wrong)
{
    if (!fine && !amx.wrong) amx.wrong = wrong;
}

static void load_config(const uint8_t *from)
{
    bool clean = from[0] == 1 && from[1] == 0;

    memset(&amx.tile, 0, sizeof amx.tile);
    memcpy(amx.bytes, from + 16, sizeof amx.bytes);
    memcpy(amx.rows, from + 48, sizeof amx.rows);
    for (int i = 2; i < 16; i++) clean &= !from[i];
    for (int i = 0; i < 16; i++)
        clean &= i < 8 ? amx.rows[i] <= 16 && amx.bytes[i] <= 64 && !amx.rows[i] == !amx.bytes[i]
                       : !amx.rows[i] && !amx.bytes[i];
    expect_of_cpu(clean, "a configuration that is none");
    amx.on = true;
    amx.configs++;
}

static void use_tile(int t)
{
    expect_of_cpu(amx.on && amx.rows[t], "a tile that is not configured");
}

static void move_tile(int t, char *at, int64_t step, bool load)
{
    use_tile(t);
    if (load) memset(&amx.tile[t], 0, sizeof amx.tile[t]);
    for (int i = 0; i < amx.rows[t]; i++, at += step)
        load ? memcpy(amx.tile[t].half[i], at, amx.bytes[t])
             : memcpy(at, amx.tile[t].half[i], amx.bytes[t]);
}

/* Tiles take and make no denormal numbers, whatever MXCSR says. */
static float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

static void dot(int c, int a, int b)
{
    use_tile(a), use_tile(b), use_tile(c);
    expect_of_cpu(a != b && a != c && b != c, "a tile that is used twice");
    expect_of_cpu(amx.rows[c] == amx.rows[a] && amx.bytes[c] == amx.bytes[b] &&
                      amx.bytes[a] == 4 * amx.rows[b],
                  "tiles that do not fit each other");
    for (int i = 0; i < amx.rows[c]; i++)
        for (int j = 0; j < amx.bytes[c] / 4; j++) {
            float sum[2] = {0, 0};
            for (int p = 0; p < amx.bytes[a] / 2; p++) {
                tt_bf16 x = {amx.tile[a].half[i][p]}, y = {amx.tile[b].half[p / 2][2 * j + p % 2]};
                float term = flushed(tt_bf16_get(x)) * flushed(tt_bf16_get(y));
                sum[p % 2] = flushed(sum[p % 2] + term);
            }
            float *to = &amx.tile[c].number[i][j];
            *to = flushed(flushed(*to) + flushed(sum[0] + sum[1]));
        }
    amx.dots++;
}

/* ---- the instructions ---- */

static int64_t reg_of(const ucontext_t *u, int n)
{
    static const int at[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                               REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                               REG_R12, REG_R13, REG_R14, REG_R15};
    return u->uc_mcontext.gregs[at[n]];
}

/* What a ModRM at `code` addresses, with no index; returns the bytes it takes. */
static int address(const ucontext_t *u, const uint8_t *code, bool x, bool b, char **at,
                   int64_t *index)
{
    int mod = code[0] >> 6, rm = code[0] & 7, used = 1;
    int64_t base;

    *index = 0;
    if (rm == 4) {
        int number = (code[1] >> 3 & 7) | x << 3;
        rm = code[1] & 7;
        if (number != 4) *index = reg_of(u, number) << (code[1] >> 6);
        used = 2;
    }
    base = reg_of(u, rm | b << 3);
    if (mod == 1) base += (int8_t)code[used];
    if (mod == 2) {
        int32_t far;
        memcpy(&far, code + used, sizeof far);
        base += far;
    }
    expect_of_cpu(mod || rm != 5, "an address that this test does not know"); /* by RIP */
    *at = (char *)base;
    return used + (mod == 1 ? 1 : mod == 2 ? 4 : 0);
}

/* The length of a tile instruction, which is then done; 0: it is another. */
static int perform(const ucontext_t *u)
{
    enum { NONE, X66, XF3, XF2 };
    const uint8_t *code = (const uint8_t *)u->uc_mcontext.gregs[REG_RIP];
    bool x = !(code[1] & 0x40), b = !(code[1] & 0x20), held = code[4] >> 6 != 3;
    int prefix = code[2] & 3, reg = code[4] >> 3 & 7, other = ~code[2] >> 3 & 15;
    char *at;
    int64_t step;

    if (code[0] != 0xc4 || (code[1] & 31) != 2 || code[2] & 0x84) return 0;
    if (code[3] == 0x49 && !held && prefix == NONE) {
        amx.on = false;
        return 5;
    }
    if (code[3] == 0x49 && !held && prefix == XF2) {
        use_tile(reg);
        memset(&amx.tile[reg], 0, sizeof amx.tile[reg]);
        return 5;
    }
    if (code[3] == 0x5c && !held && prefix == XF3) {
        dot(reg, code[4] & 7, other);
        return 5;
    }
    if (!held || (code[3] != 0x49 && code[3] != 0x4b)) return 0;
    int length = 4 + address(u, code + 4, x, b, &at, &step);
    if (code[3] == 0x49 && prefix == NONE)
        load_config((const uint8_t *)(at + step));
    else if (code[3] == 0x4b && (prefix == XF2 || prefix == XF3))
        move_tile(reg, at, step, prefix == XF2);
    else
        return 0;
    return length;
}

static void on_sigill(int sig, siginfo_t *info, void *context)
{
    ucontext_t *u = context;
    int length = perform(u);

    (void)info;
    if (!length) signal(sig, SIG_DFL); /* it faults again, for good */
    u->uc_mcontext.gregs[REG_RIP] += length;
}

static struct sigaction before;

/* False: the code around the tiles is AVX2, and does not run here. Where there are tiles, but not
 * for this process, some of the instructions would run as they are. */
static bool trap(void)
{
    struct sigaction act = {.sa_sigaction = on_sigill, .sa_flags = SA_SIGINFO};
    const tt_kernels *k;

    if (tt_kernels_pick("avx2", TT_IN_BF16, &k)) return false;
    if (__builtin_cpu_supports("amx-tile") && tt_kernels_pick("avx512-amx", TT_IN_BF16, &k))
        tt_test_skip("this CPU has tiles, and this process may not use them");
    memset(&amx, 0, sizeof amx);
    EXPECT_INT(0, sigaction(SIGILL, &act, &before));
    return true;
}

static void untrap(void)
{
    EXPECT_INT(0, sigaction(SIGILL, &before, NULL));
    EXPECT_STR("", amx.wrong ? amx.wrong : "");
    EXPECT(!amx.on); /* released */
}

/* ---- what kernels make of them ---- */

TT_TEST(tensor_tiles, the_trial_succeeds)
{
    if (!trap()) return;
    EXPECT(tt_trial_trapped());
    untrap();
}

static tt_bf16 *random_bf16(int64_t n)
{
    tt_bf16 *x = help_bytes((size_t)n * sizeof *x);

    for (int64_t i = 0; i < n; i++) x[i] = tt_bf16_of((float)(2 * help_uniform() - 1));
    return x;
}

static tt_bf16 *copy_bf16(const tt_bf16 *x, int64_t n)
{
    return memcpy(help_bytes((size_t)n * sizeof *x), x, (size_t)n * sizeof *x);
}

/* Forward and back by one table; results as bytes behind each other. */
static void convolve(const tt_kernels *k, const tt_conv *v, tt_conv_args a, const float *w,
                     int64_t ny, int64_t nx, int64_t nw, tt_bf16 **y, tt_bf16 **dx, float **dw)
{
    tt_bf16 *packed = help_unwritten(k->conv_packed(v) * sizeof *packed);

    *y = help_unwritten((size_t)ny * sizeof **y);
    *dx = help_unwritten((size_t)nx * sizeof **dx);
    *dw = help_floats(nw);
    a.packed = (void *)packed;
    a.scratch = help_unwritten(k->conv_scratch(v, a.n));
    a.y = (void *)*y, a.dx = (void *)*dx, a.dw = *dw;
    a.dy = (void *)copy_bf16((void *)a.dy, ny);
    k->conv_pack(v, w, (void *)packed);
    k->conv_forward(v, &a);
    k->conv_backward(v, &a);
}

static void conv_trial(int n, tt_window w)
{
    tt_conv v = {.win = w, .layout = TT_NHWC};
    int64_t nx = (int64_t)n * w.h * w.w * w.c, ny = (int64_t)n * w.oh * w.ow * w.o;
    int64_t nw = (int64_t)w.o * (w.c / w.groups) * w.kh * w.kw;
    float *weights = help_random(nw), *dw[2];
    tt_bf16 *y[2], *dx[2];
    tt_conv_args a = {.n = n, .x = (void *)random_bf16(nx), .w = weights};

    a.dy = (void *)random_bf16(ny);
    convolve(&tt_kernels_emulated, &v, a, weights, ny, nx, nw, &y[0], &dx[0], &dw[0]);
    convolve(&tt_kernels_trapped, &v, a, weights, ny, nx, nw, &y[1], &dx[1], &dw[1]);
    EXPECT(!memcmp(y[0], y[1], (size_t)ny * sizeof *y[0]));
    EXPECT(!memcmp(dx[0], dx[1], (size_t)nx * sizeof *dx[0]));
    EXPECT(!memcmp(dw[0], dw[1], (size_t)nw * sizeof *dw[0]));
    help_free();
}

TT_TEST(tensor_tiles, instructions_and_emulation_make_the_same_bits)
{
    static const int sizes[][3] = {{1, 1, 1},    {16, 32, 16}, {32, 64, 32},  {31, 33, 17},
                                   {33, 31, 65}, {47, 70, 90}, {20, 1100, 9}, {600, 40, 30}};

    if (!trap()) return;
    for (int i = 0; i < TT_COUNT(sizes); i++)
        conv_trial(sizes[i][0], tt_window_dense(sizes[i][1], sizes[i][2]));
    for (int i = 0; i < 10; i++)
        conv_trial(help_int(1, 70), tt_window_dense(help_int(1, 100), help_int(1, 100)));
    tt_window w = tt_window_dense(6, 12); /* and a convolution in groups, with gaps and padding */
    w.h = w.w = 9, w.kh = w.kw = 3, w.sh = 2, w.sw = 1, w.ph = w.pw = 2, w.dh = 1, w.dw = 2;
    w.groups = 2, w.oh = 6, w.ow = 9;
    conv_trial(3, w);
    EXPECT(!amx.configs || amx.dots > 1000);
    untrap();
}

/* Gates and exponentials are rounded by other instructions in the other table. */
static void expect_near(const char *what, const tt_bf16 *a, const tt_bf16 *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x = tt_bf16_get(a[i]), y = tt_bf16_get(b[i]);
        if (!(fabs(x - y) <= 0.02 * (1 + fabs(x))))
            FAIL("%s[%lld]: %g by emulation, %g by instructions", what, (long long)i, x, y);
    }
}

static void attend(const tt_kernels *k, tt_attend_args a, tt_bf16 **y, tt_bf16 **dx)
{
    int64_t n = (int64_t)a.n * a.t * a.heads * a.dim;

    *y = help_unwritten((size_t)n * sizeof **y);
    *dx = help_unwritten((size_t)n * 3 * sizeof **dx);
    a.y = (void *)*y, a.dx = (void *)*dx;
    a.lse = help_floats((int64_t)a.n * a.heads * a.t);
    a.scratch = help_unwritten(k->attend_scratch(&a));
    k->attend_forward(&a);
    k->attend_backward(&a);
}

TT_TEST(tensor_tiles, attention_is_that_of_the_emulation)
{
    static const int sizes[][3] = {{70, 2, 20}, {130, 1, 64}, {33, 3, 7}};

    if (!trap()) return;
    for (int i = 0; i < 2 * TT_COUNT(sizes); i++) {
        const int *size = sizes[i / 2];
        int64_t n = (int64_t)2 * size[0] * size[1] * size[2];
        tt_attend_args a = {.n = 2, .t = size[0], .heads = size[1], .dim = size[2]};
        tt_bf16 *y[2], *dx[2];
        a.causal = i % 2;
        a.x = (void *)random_bf16(3 * n), a.dy = (void *)random_bf16(n);
        attend(&tt_kernels_emulated, a, &y[0], &dx[0]);
        attend(&tt_kernels_trapped, a, &y[1], &dx[1]);
        expect_near("y", y[0], y[1], n);
        expect_near("dx", dx[0], dx[1], 3 * n);
        help_free();
    }
    untrap();
}

static void recur(const tt_kernels *k, tt_recur_args a, tt_bf16 **y, tt_bf16 **dx)
{
    int64_t n = (int64_t)a.n * a.t, gates = tt_recur_gates(a.kind) * a.h;
    tt_bf16 *packed = help_unwritten(k->recur_packed(&a) * sizeof *packed);

    *y = help_unwritten((size_t)(n * a.h) * sizeof **y);
    *dx = help_unwritten((size_t)(n * a.d) * sizeof **dx);
    k->recur_pack(&a, (void *)packed);
    a.packed = (void *)packed, a.y = (void *)*y, a.dx = (void *)*dx;
    a.saved = help_floats(a.n * tt_recur_saved(&a));
    a.dw_ih = help_floats(gates * a.d), a.dw_hh = help_floats(gates * a.h);
    a.db_ih = help_floats(gates), a.db_hh = help_floats(gates);
    a.scratch = help_unwritten(k->recur_scratch(&a));
    k->recur_forward(&a);
    k->recur_backward(&a);
}

TT_TEST(tensor_tiles, recurrent_layers_are_those_of_the_emulation)
{
    if (!trap()) return;
    for (int i = 0; i < 4; i++) {
        tt_recur_args a = {.kind = i % 2 ? TT_GRU : TT_LSTM, .n = 37, .t = 3, .d = 20, .h = 32};
        int64_t gates = tt_recur_gates(a.kind);
        tt_bf16 *y[2], *dx[2];
        if (i / 2) a.n = 5, a.h = 13; /* states that are no whole rows of tiles */
        gates *= a.h;
        a.x = (void *)random_bf16((int64_t)a.n * a.t * a.d);
        a.dy = (void *)random_bf16((int64_t)a.n * a.t * a.h);
        a.w_ih = help_random(gates * a.d), a.w_hh = help_random(gates * a.h);
        a.b_ih = help_random(gates), a.b_hh = help_random(gates);
        recur(&tt_kernels_emulated, a, &y[0], &dx[0]);
        recur(&tt_kernels_trapped, a, &y[1], &dx[1]);
        expect_near("y", y[0], y[1], (int64_t)a.n * a.t * a.h);
        expect_near("dx", dx[0], dx[1], (int64_t)a.n * a.t * a.d);
        help_free();
    }
    untrap();
}

/* It costs as much as a dozen products. */
TT_TEST(tensor_tiles, tiles_are_set_up_once_for_a_layer)
{
    if (!trap()) return;
    conv_trial(64,
               tt_window_dense(64, 160)); /* y, dx and dw: by whole tiles, in five panels and two */
    EXPECT(amx.configs <= 2);             /* forward and back */
    untrap();
}
#endif
