/* Which tables of kernels there are, and which of them this CPU runs.
 *
 * What CPUID says is not enough: under some hypervisors announced instructions fault. So a table
 * counts as runnable only once a piece of its arithmetic has been executed, under a handler for
 * SIGILL, when the first caller asks; the answer is kept. Tiles and dot products of bf16 are tried
 * in a child process, whatever CPUID says, and what they compute is compared. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tensor/tables.h"

typedef struct entry {
    const tt_kernels *kernels;
    int64_t (*arithmetic)(int64_t rounds);
    const char *needs; /* features, for people */
} entry;

static const entry entries[] = {
    /* best first */
    {&tt_kernels_avx512, tt_arithmetic_avx512, "avx512f, avx512bw, avx512dq and avx512vl"},
    {&tt_kernels_avx2, tt_arithmetic_avx2, "avx2, fma and f16c"},
    {&tt_kernels_generic, tt_arithmetic_generic, "sse2"},
    {&tt_kernels_ref, tt_arithmetic_ref, "nothing"},
};

static const tt_kernels *runnable[TT_COUNT(entries)];
static int runnable_count;
static pthread_once_t tried = PTHREAD_ONCE_INIT;

/* The builtin looks at the operating system's share (saved registers) too. */
static bool announced(const entry *e)
{
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                __builtin_cpu_supports("f16c");
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#ifdef TT_WIDE /* "avx512" is 16-wide code made of AVX2 instructions: see simd.h */
    avx512 = avx2;
#endif
    if (e->kernels == &tt_kernels_avx512) return avx2 && avx512;
    if (e->kernels == &tt_kernels_avx2) return avx2;
#endif
    (void)e;
    return true;
}

static sigjmp_buf not_here;
static pthread_t trying;

static void on_sigill(int sig)
{
    if (pthread_equal(pthread_self(), trying)) siglongjmp(not_here, 1);
    signal(sig, SIG_DFL); /* another thread's own trouble: it faults again, for good */
}

static bool runs(const entry *e)
{
    struct sigaction act = {.sa_handler = on_sigill}, old;
    volatile bool ok = false;

    if (!announced(e)) return false;
    trying = pthread_self();
    sigemptyset(&act.sa_mask);
    if (sigaction(SIGILL, &act, &old)) return false;
    if (!sigsetjmp(not_here, 1)) {
        e->arithmetic(1);
        ok = true;
    }
    sigaction(SIGILL, &old, NULL);
    return ok;
}

static void try_all(void)
{
    for (int i = 0; i < TT_COUNT(entries); i++)
        if (runs(&entries[i])) runnable[runnable_count++] = entries[i].kernels;
}

int tt_kernels_all(const tt_kernels *const **out)
{
    pthread_once(&tried, try_all);
    *out = runnable;
    return runnable_count;
}

/* ---- bf16 ---- */

typedef struct half {
    const tt_kernels *kernels;
    const tt_kernels *whole; /* of the same instruction set, in float32: it must run, too */
    bool (*trial)(void);     /* NULL: then nothing else is needed */
    const char *needs;
} half;

static const half halves[] = {
    /* best first, but for what halves_try does */
    {&tt_kernels_avx512_amx, &tt_kernels_avx512, tt_trial_avx512_amx,
     "amx-tile, amx-bf16 and avx512_bf16"},
    {&tt_kernels_avx512_bf16, &tt_kernels_avx512, NULL, "avx512f, avx512bw, avx512dq and avx512vl"},
    {&tt_kernels_avx512_dot, &tt_kernels_avx512, tt_trial_avx512_dot, "avx512_bf16"},
    {&tt_kernels_avx2_bf16, &tt_kernels_avx2, NULL, "avx2, fma and f16c"},
    {&tt_kernels_generic_bf16, &tt_kernels_generic, NULL, "sse2"},
    {&tt_kernels_ref_bf16, &tt_kernels_ref, NULL, "nothing"},
};

static const tt_kernels *halves_runnable[TT_COUNT(halves)];
static int halves_count;
static pthread_once_t halves_tried = PTHREAD_ONCE_INIT;

/* The kernel hands out the tiles' registers to who asks for them: if it knows of any, and no thread
 * has a signal stack that is too small for them. */
enum { GET_XCOMP_SUPP = 0x1021, REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 }; /* of arch_prctl */

#if !defined(__x86_64__)
#define SYS_arch_prctl (-1)
#endif
static bool may_use_tiles(void)
{
    return !syscall(SYS_arch_prctl, REQ_XCOMP_PERM, TILE_DATA);
}
static bool has_tiles(void)
{
    uint64_t known = 0;
    return !syscall(SYS_arch_prctl, GET_XCOMP_SUPP, &known) && known >> TILE_DATA & 1;
}

/* In the child: nothing of what the process does about signals is to keep it from dying. */
static void be_mortal(double timeout_s)
{
    struct rlimit none = {0, 0};
    struct sigaction die = {.sa_handler = SIG_DFL};
    sigset_t all;

    setrlimit(RLIMIT_CORE, &none);
    for (int sig = 1; sig < NSIG; sig++) sigaction(sig, &die, NULL);
    sigemptyset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    alarm((unsigned)timeout_s + 1); /* should the parent die meanwhile */
}

/* Waits for the child's word; one that dies gives none. */
static tt_trial hear(int fd, double timeout_s)
{
    double end = tt_clock_s() + timeout_s;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char word = 0;

    for (double left; (left = end - tt_clock_s()) > 0;) {
        int ready = poll(&p, 1, (int)(left * 1e3) + 1);
        if (ready < 0 && errno != EINTR) break;
        if (ready <= 0) continue;
        ssize_t got = read(fd, &word, 1);
        if (got < 0 && errno == EINTR) continue;
        return word == 'y' ? TT_TRIAL_WORKED : TT_TRIAL_FAILED;
    }
    return TT_TRIAL_UNTOLD;
}

tt_trial tt_trial_in_child(bool (*trial)(void), double timeout_s)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC)) return TT_TRIAL_UNTOLD;
    pid_t child = fork();
    if (!child) {
        be_mortal(timeout_s);
        _exit(!trial() || write(ends[1], "y", 1) != 1);
    }
    close(ends[1]);
    tt_trial told = child > 0 ? hear(ends[0], timeout_s) : TT_TRIAL_UNTOLD;
    close(ends[0]);
    if (child > 0 && told == TT_TRIAL_UNTOLD) kill(child, SIGKILL);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) {
    }
    return told;
}

static bool tiles_work(void)
{
    return may_use_tiles() && tt_trial_avx512_amx();
}

/* What a CPU can do does not change: a trial that came to no end is made once more, and if it is in
 * vain again somebody must hear why training is slow. */
static bool works_in_child(const half *h)
{
    bool tiles = h->kernels == &tt_kernels_avx512_amx;
    tt_trial told = TT_TRIAL_UNTOLD;

    for (int i = 0; i < 2 && told == TT_TRIAL_UNTOLD; i++)
        told = tt_trial_in_child(tiles ? tiles_work : h->trial, 5);
    if (told == TT_TRIAL_FAILED && tiles && has_tiles() &&
        tt_trial_in_child(may_use_tiles, 5) == TT_TRIAL_FAILED)
        told = TT_TRIAL_UNTOLD;
    /* The permission is the process's: threads that are there have it from now on, and so do
     * others. */
    if (told == TT_TRIAL_WORKED && tiles && !may_use_tiles()) told = TT_TRIAL_UNTOLD;
    if (told == TT_TRIAL_UNTOLD)
        tt_warn("kernels %s could not be tried, so others are used, which may be slower",
                h->kernels->name);
    return told == TT_TRIAL_WORKED;
}

static bool is_runnable(const tt_kernels *k)
{
    for (int i = 0; i < runnable_count; i++)
        if (runnable[i] == k) return true;
    return false;
}

static void halves_try(void)
{
    pthread_once(&tried, try_all);
    for (int i = 0; i < TT_COUNT(halves); i++)
        if (is_runnable(halves[i].whole) && (!halves[i].trial || works_in_child(&halves[i])))
            halves_runnable[halves_count++] = halves[i].kernels;
#if defined(__x86_64__)
    /* AMD's dot products of bf16 do twice what float32 does, Intel's half. */
    for (int i = 0; i + 1 < halves_count && __builtin_cpu_is("amd"); i++)
        if (halves_runnable[i + 1] == &tt_kernels_avx512_dot) {
            halves_runnable[i + 1] = halves_runnable[i];
            halves_runnable[i] = &tt_kernels_avx512_dot;
        }
#endif
}

int tt_kernels_with(tt_precision p, const tt_kernels *const **out)
{
    if (p == TT_IN_FLOAT32) return tt_kernels_all(out);
    pthread_once(&halves_tried, halves_try);
    *out = halves_runnable;
    return halves_count;
}

const tt_kernels *tt_kernels_float32(const tt_kernels *k)
{
    for (int i = 0; i < TT_COUNT(halves); i++)
        if (halves[i].kernels == k) return halves[i].whole;
    return k;
}

/* ---- choosing ---- */

/* By its name, or, in bf16, by that of its instruction set alone. */
static bool is_named(const tt_kernels *k, const char *name)
{
    size_t n = strlen(name);

    if (!strcmp(k->name, name)) return true;
    return k->precision == TT_IN_BF16 && !strncmp(k->name, name, n) &&
           !strcmp(k->name + n, "-bf16");
}

static tt_err not_found(const char *name, tt_precision p, const char *whose, const tt_kernels *best)
{
    const char *needs = NULL, *other = p == TT_IN_BF16 ? "float32" : "bf16";
    bool elsewhere = false; /* of the other precision */

    for (int i = 0; i < TT_COUNT(entries); i++)
        if (is_named(entries[i].kernels, name)) {
            if (p == TT_IN_FLOAT32) needs = entries[i].needs;
            elsewhere |= p == TT_IN_BF16;
        }
    for (int i = 0; i < TT_COUNT(halves); i++)
        if (is_named(halves[i].kernels, name)) {
            if (p == TT_IN_BF16) needs = halves[i].needs;
            elsewhere |= p == TT_IN_FLOAT32;
        }
    if (needs)
        return tt_fail(TT_EENV, "%skernels %s need %s, which this CPU does not run; it runs %s",
                       whose, name, needs, best->name);
    if (elsewhere)
        return tt_fail(TT_EINVAL, "%skernels %s are for train.precision: %s", whose, name, other);
    if (p == TT_IN_BF16)
        return tt_fail(TT_EINVAL,
                       "%sthere are no kernels named \"%s\": auto, avx512-amx, avx512-bf16, "
                       "avx512-dot, avx2-bf16, generic-bf16 or ref-bf16",
                       whose, name);
    return tt_fail(TT_EINVAL,
                   "%sthere are no kernels named \"%s\": "
                   "auto, avx512, avx2, generic or ref",
                   whose, name);
}

tt_err tt_kernels_pick(const char *name, tt_precision p, const tt_kernels **out)
{
    const tt_kernels *const *all;
    int count = tt_kernels_with(p, &all);
    const char *wish = getenv("TUTTI_KERNELS"), *whose = "";

    *out = NULL;
    if (!strcmp(name, "auto")) {
        if (wish && *wish) name = wish, whose = "TUTTI_KERNELS: ";
        if (!strcmp(name, "auto")) {
            *out = all[0];
            return TT_OK;
        }
    }
    for (int i = 0; i < count; i++)
        if (is_named(all[i], name)) {
            *out = all[i];
            return TT_OK;
        }
    return not_found(name, p, whose, all[0]);
}

tt_err tt_kernels_find(const char *name, const tt_kernels **out)
{
    return tt_kernels_pick(name, TT_IN_FLOAT32, out);
}

static double thread_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double tt_peak_gflops(const tt_kernels *k)
{
    int64_t (*arithmetic)(int64_t) = NULL;
    double best = 0, end = tt_clock_s() + 0.020;

    if (!strcmp(k->product, "amx") || !strcmp(k->product, "dot")) return tt_product_gflops(k);
    for (int i = 0; i < TT_COUNT(entries); i++)
        if (entries[i].kernels == tt_kernels_float32(k)) arithmetic = entries[i].arithmetic;
    TT_ASSERT(arithmetic);
    /* Many short pieces, and the best of them: a neighbour's interruption spoils only one. Some
     * also where others leave this process hardly a CPU. */
    for (int pieces = 0; pieces < 10 || tt_clock_s() < end; pieces++) {
        double begun = thread_s();
        int64_t operations = arithmetic(20000);
        double took = thread_s() - begun;
        if (took > 0 && (double)operations / took > best) best = (double)operations / took;
    }
    return best * 1e-9;
}

double tt_product_gflops(const tt_kernels *k)
{
    enum { SIZE = 1024 };
    tt_window w = {.c = SIZE, .h = 1, .w = 1, .o = SIZE, .oh = 1, .ow = 1, .kh = 1, .kw = 1};
    w.sh = w.sw = w.dh = w.dw = w.groups = 1;
    tt_conv c = {.win = w, .layout = k->plain ? TT_PLAIN : k->conv_layout(&w, SIZE)};
    size_t count = (size_t)SIZE * SIZE, packed = k->conv_packed(&c),
           scratch = k->conv_scratch(&c, SIZE);
    size_t bytes = (3 * count + packed) * sizeof(float) + scratch + 256;
    char *block = tt_block_alloc(bytes);
    double best = 0;

    if (!block) return 0;
    float *x = (float *)block, *y = x + count, *weights = y + count, *room = weights + count;
    memset(block, 0, bytes); /* numbers of either type, which are as fast as others */
    k->conv_pack(&c, weights, (void *)room);
    tt_conv_args a = {
        .n = SIZE, .x = (void *)x, .w = weights, .packed = (void *)room, .y = (void *)y};
    a.scratch = (char *)room + (packed * sizeof(float) + 63) / 64 * 64;
    /* By the thread's own clock: what others do meanwhile is not its fault. */
    for (double end = tt_clock_s() + 0.1; !best || tt_clock_s() < end;) {
        double begun = thread_s(), took;
        k->conv_forward(&c, &a);
        if ((took = thread_s() - begun) > 0 && 2.0 * SIZE * SIZE * SIZE / took > best)
            best = 2.0 * SIZE * SIZE * SIZE / took;
    }
    tt_block_free(block, bytes);
    return best * 1e-9;
}

const char *tt_cpu_features(char *buf, size_t size)
{
    size_t at = 0;

    if (size) *buf = 0;
#if defined(__x86_64__)
#define FEATURE(f)                                                                                 \
    if (at < size && __builtin_cpu_supports(f))                                                    \
    at += (size_t)snprintf(buf + at, size - at, "%s%s", at ? " " : "", f)
    FEATURE("sse2");
    FEATURE("sse4.2");
    FEATURE("avx");
    FEATURE("avx2");
    FEATURE("fma");
    FEATURE("f16c");
    FEATURE("avx512f");
    FEATURE("avx512bw");
    FEATURE("avx512dq");
    FEATURE("avx512vl");
    FEATURE("avx512vnni");
    FEATURE("avx512bf16");
    FEATURE("amx-tile");
    FEATURE("amx-bf16");
#undef FEATURE
#endif
    return buf;
}

const char *tt_cpu_model(char *buf, size_t size)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");

    snprintf(buf, size, "unknown CPU");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(buf, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    if (f) fclose(f);
    return buf;
}
