#define _GNU_SOURCE
#include "failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { POINTS_MOST = 64, WORD = 96 };

typedef struct point {
    char name[WORD], what[WORD];
    double value; /* behind a colon; < 0: none */
    int time, rank;
    int passed;
} point;

bool tt_failpoints_on;
static point points[POINTS_MOST];
static int point_count, own_rank = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* "name=what:1@2/rank:3" */
static void parse(const char *text)
{
    point p = {.value = -1, .time = 1, .rank = -1};
    const char *at;

    if (sscanf(text, "%95[^=]=%95[a-z]", p.name, p.what) != 2 || point_count == POINTS_MOST) {
        fprintf(stderr, "tutti: TUTTI_FAILPOINTS: '%s' is no 'name=what'\n", text);
        _exit(2);
    }
    at = strchr(text, '=') + 1 + strlen(p.what);
    if (*at == ':') p.value = strtod(at + 1, (char **)(uintptr_t)&at);
    while (*at) {
        if (sscanf(at, "@%d", &p.time) != 1 && sscanf(at, "/rank:%d", &p.rank) != 1) break;
        at += 1 + strcspn(at + 1, "@/");
    }
    points[point_count++] = p;
}

__attribute__((constructor)) static void read_environment(void)
{
    const char *text = getenv("TUTTI_FAILPOINTS");
    char *copy = text ? strdup(text) : NULL, *save = NULL;

    for (char *one = copy ? strtok_r(copy, ", ", &save) : NULL; one;
         one = strtok_r(NULL, ", ", &save))
        parse(one);
    free(copy);
    tt_failpoints_on = point_count > 0;
}

void tt_failpoint_rank(int rank)
{
    own_rank = rank;
}

/* Whoever makes the file fires. */
static bool is_first(const char *name)
{
    const char *dir = getenv("TUTTI_FAILPOINT_DIR");
    char path[4096];
    int fd;

    if (!dir || !*dir) return true;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if ((fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0) return false;
    dprintf(fd, "rank %d process %d\n", own_rank, (int)getpid());
    close(fd);
    return true;
}

static int fire(const point *p)
{
    static const struct {
        const char *word;
        int sig;
    } signals[] = {{"kill", SIGKILL}, {"segv", SIGSEGV}, {"abort", SIGABRT}, {"stop", SIGSTOP}};

    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (!strcmp(p->what, signals[i].word)) kill(getpid(), signals[i].sig);
    if (!strcmp(p->what, "exit")) _exit(p->value < 0 ? 0 : (int)p->value);
    if (!strcmp(p->what, "sleep")) {
        double s = p->value < 0 ? 1 : p->value;
        struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
        while (nanosleep(&t, &t) && errno == EINTR) continue;
    }
    if (!strcmp(p->what, "fail")) return p->value < 0 ? EIO : (int)p->value;
    return 0;
}

int tt_failpoint_hit(const char *name)
{
    const point *due = NULL;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < point_count && !due; i++) {
        point *p = &points[i];
        if (strcmp(p->name, name) || (p->rank >= 0 && p->rank != own_rank)) continue;
        if (++p->passed == p->time && is_first(name)) due = p;
    }
    pthread_mutex_unlock(&lock);
    return due ? fire(due) : 0;
}

extern const char *const __start_tt_failpoints[] __attribute__((weak));
extern const char *const __stop_tt_failpoints[] __attribute__((weak));

int tt_failpoint_names(const char *const **out)
{
    *out = __start_tt_failpoints;
    return (int)(__stop_tt_failpoints - __start_tt_failpoints);
}
