#define _GNU_SOURCE
#include "test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

static tt_test *first, **last = &first;
static jmp_buf leave;
static char start_dir[4096];
static int failed_now;
static const char *skipped_why;

void tt_test_add(tt_test *t)
{
    *last = t;
    last = &t->next;
}

void tt_test_fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    failed_now = 1;
}

void tt_test_stop(void)
{
    longjmp(leave, 1);
}

void tt_test_skip(const char *why)
{
    skipped_why = why;
    longjmp(leave, 1);
}

void tt_test_write(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f)) FAIL("cannot write %s", path);
}

void tt_test_file(const char *file, int line, const char *path, const char *want, size_t size)
{
    FILE *f = fopen(path, "rb");
    char *got = calloc(1, size + 4096);
    size_t n = f ? fread(got, 1, size + 4095, f) : 0;

    if (f) fclose(f);
    if (n != size || memcmp(got, want, size)) {
        tt_test_fail(file, line, "%s holds\n%s\nwanted\n%s", path, f ? got : "(no file)", want);
        free(got);
        tt_test_stop();
    }
    free(got);
}

const char *tt_test_data(const char *name)
{
    static char path[8192], why[8300];
    const char *base = getenv("TUTTI_DATA");

    if (base && *base)
        snprintf(path, sizeof path, "%s/%s", base, name);
    else
        snprintf(path, sizeof path, "%s/../shared/data/%s", start_dir, name);
    if (access(path, R_OK)) {
        snprintf(why, sizeof why, "no %s (set TUTTI_DATA)", name);
        tt_test_skip(why);
    }
    return path;
}

const char *tt_test_source(const char *path)
{
    static char full[8192];

    snprintf(full, sizeof full, "%s/%s", start_dir, path);
    return full;
}

static void run_one(tt_test *t, const char *base)
{
    char dir[4200];

    failed_now = 0;
    skipped_why = NULL;
    snprintf(dir, sizeof dir, "%s/%s-%s", base, t->group, t->name);
    if (tt_dir_make(dir) || chdir(dir)) FAIL("cannot enter %s", dir);
    t->fn();
}

int main(int argc, char **argv)
{
    static int passed, failed, skipped; /* static: they outlive the longjmp */
    char base[] = "/tmp/tutti-test-XXXXXX";

    if (!getcwd(start_dir, sizeof start_dir) || !mkdtemp(base)) return 2;
    for (tt_test *volatile t = first; t; t = t->next) {
        char full[256];
        bool wanted = argc < 2;
        snprintf(full, sizeof full, "%s %s", t->group, t->name);
        for (int i = 1; i < argc; i++) wanted |= strstr(full, argv[i]) != NULL;
        if (!wanted) continue;
        double begun = tt_clock_s();
        if (!setjmp(leave)) run_one(t, base);
        if (skipped_why)
            printf("skip %s: %s\n", full, skipped_why), skipped++;
        else if (failed_now)
            printf("FAIL %s\n", full), failed++;
        else
            passed++;
        double took = tt_clock_s() - begun;
        if (took > 2) printf("     %s took %.1f s\n", full, took);
        fflush(stdout);
    }
    if (chdir("/") || tt_dir_remove(base)) fprintf(stderr, "left behind: %s\n", base);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    fflush(stdout); /* a sanitizer that finds leaks may end here */
    return failed ? 1 : 0;
}
