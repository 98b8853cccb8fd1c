/* Which tables of kernels there are, and which of them this CPU runs.
 *
 * What CPUID says is not enough: under some hypervisors announced instructions fault. So a table
 * counts as runnable only once a piece of its arithmetic has been executed, under a handler for
 * SIGILL, when the first caller asks; the answer is kept. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

tt_err tt_kernels_find(const char *name, const tt_kernels **out)
{
    const tt_kernels *const *all;
    int count = tt_kernels_all(&all);
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
        if (!strcmp(name, all[i]->name)) {
            *out = all[i];
            return TT_OK;
        }
    for (int i = 0; i < TT_COUNT(entries); i++)
        if (!strcmp(name, entries[i].kernels->name))
            return tt_fail(TT_EENV, "%skernels %s need %s, which this CPU does not run; it runs %s",
                           whose, name, entries[i].needs, all[0]->name);
    return tt_fail(TT_EINVAL,
                   "%sthere are no kernels named \"%s\": "
                   "auto, avx512, avx2, generic or ref",
                   whose, name);
}

double tt_peak_gflops(const tt_kernels *k)
{
    int64_t (*arithmetic)(int64_t) = NULL;
    double best = 0, end = tt_clock_s() + 0.020;

    for (int i = 0; i < TT_COUNT(entries); i++)
        if (entries[i].kernels == k) arithmetic = entries[i].arithmetic;
    TT_ASSERT(arithmetic);
    /* Many short pieces, and the best of them: a neighbour's interruption spoils only one. */
    for (double now = tt_clock_s(); now < end;) {
        double begun = now;
        int64_t operations = arithmetic(20000);
        now = tt_clock_s();
        if (now > begun && (double)operations / (now - begun) > best)
            best = (double)operations / (now - begun);
    }
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
