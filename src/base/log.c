#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "failpoint.h"
#include "file.h"
#include "text.h"

static const char *const level_names[] = {"error", "warn", "info"};
enum { LEVEL_COUNT = sizeof level_names / sizeof *level_names };

/* `most` is read on every call, so that a line which is off costs one load. */
static atomic_int most = TT_LOG_INFO, rank_now;
static atomic_bool quiet_now;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1, lines_lost; /* under lock */

static void read_environment(void)
{
    const char *want = getenv("TUTTI_LOG");

    if (!want || !*want) return;
    for (int i = 0; i < LEVEL_COUNT; i++) {
        if (strcmp(want, level_names[i])) continue;
        atomic_store(&most, i);
        return;
    }
    fprintf(stderr, "tutti: warning: TUTTI_LOG is '%s', not error, warn or info\n", want);
}

void tt_log_rank(int rank)
{
    atomic_store(&rank_now, rank);
}

void tt_log_quiet(bool quiet)
{
    atomic_store(&quiet_now, quiet);
}

static void use_fd(int fd)
{
    pthread_mutex_lock(&lock);
    if (log_fd >= 0) close(log_fd);
    log_fd = fd;
    lines_lost = 0;
    pthread_mutex_unlock(&lock);
}

int tt_log_open(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);

    if (fd < 0) return errno;
    use_fd(fd);
    return 0;
}

void tt_log_close(void)
{
    use_fd(-1);
}

/* The lines after the first are set in, so that whatever starts a line of the file is a time. */
static void add_indented(tt_str *out, const char *text)
{
    for (const char *line = text, *end;; line = end + 1) {
        end = strchrnul(line, '\n');
        if (line != text) tt_str_add(out, "    ");
        tt_str_put(out, line, (size_t)(end - line));
        tt_str_add(out, "\n");
        if (!*end) return;
    }
}

void tt_logf(tt_level level, const char *fmt, ...)
{
    static const char *const labels[] = {"error: ", "warning: ", ""};
    char text[4096];
    va_list ap;
    struct timespec now;
    struct tm utc;
    tt_str line = {0};
    int kept_errno = errno;

    pthread_once(&once, read_environment);
    if ((int)level > atomic_load_explicit(&most, memory_order_relaxed)) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);

    if (level <= TT_LOG_WARN && !atomic_load(&quiet_now)) {
        tt_str_add(&line, "tutti: %s%s\n", labels[level], text);
        (void)tt_write_all(STDERR_FILENO, line.data, line.size, NULL);
        line.size = 0;
    }
    pthread_mutex_lock(&lock);
    if (log_fd >= 0) {
        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &utc);
        tt_str_add(&line, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ rank %d %s", utc.tm_year + 1900,
                   utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                   now.tv_nsec / 1000000, atomic_load(&rank_now), labels[level]);
        if (lines_lost)
            tt_str_add(&line, "[%d line%s before this one could not be written] ", lines_lost,
                       lines_lost == 1 ? "" : "s");
        add_indented(&line, text);
        /* One call: O_APPEND keeps lines whole. That a disk is full must not stop training. */
        if (TT_FAILPOINT("log.write") || !tt_write_all(log_fd, line.data, line.size, NULL))
            lines_lost++;
        else
            lines_lost = 0;
    }
    pthread_mutex_unlock(&lock);
    tt_str_free(&line);
    errno = kept_errno;
}

static double clock_read(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double tt_clock_s(void)
{
    return clock_read(CLOCK_MONOTONIC);
}

double tt_wall_s(void)
{
    return clock_read(CLOCK_REALTIME);
}
