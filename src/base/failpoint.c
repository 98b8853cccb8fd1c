#define _GNU_SOURCE
#include "failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mem.h"

enum { POINTS_MOST = 64, WORD = 96, FOLDER_ROOM = 3800 };

typedef enum act { KILL, SEGV, ABORT, EXIT, STOP, SLEEP, FAIL, ACTS } act;

/* `most` < 0: it takes no number */
static const struct {
    const char *word;
    double without, most;
} acts[ACTS] = {
    [KILL] = {"kill", 0, -1},     [SEGV] = {"segv", 0, -1}, [ABORT] = {"abort", 0, -1},
    [EXIT] = {"exit", 0, 255},    [STOP] = {"stop", 0, -1}, [SLEEP] = {"sleep", 1, 1e6},
    [FAIL] = {"fail", EIO, 4095},
};

typedef struct point {
    char name[WORD];
    act what;
    double value;
    int time, rank, nth; /* nth: of those of this name in the list, from 1 */
    bool after;          /* and every time after */
    int passed;
} point;

bool tt_failpoints_on;
static point points[POINTS_MOST];
static int point_count, own_rank = -1;
static char folder[FOLDER_ROOM];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- reading the list ---- */

static bool is_known(const char *name)
{
    const char *const *names;
    int n = tt_failpoint_names(&names);

    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

static bool read_count(const char **at, int least, int *out)
{
    char *end;
    long n = strtol(*at, &end, 10);

    if (end == *at || **at < '0' || **at > '9' || n < least || n > 1000000000) return false;
    *out = (int)n;
    *at = end;
    return true;
}

/* ":1@2+/rank:3", each at most once */
static bool read_rest(const char *at, point *p)
{
    bool value = false, time = false, rank = false;

    while (*at) {
        if (*at == ':' && !value && !time && !rank) {
            char *end;
            p->value = strtod(at + 1, &end);
            if (end == at + 1 || !(p->value >= 0 && p->value <= acts[p->what].most)) return false;
            at = end;
            value = true;
        } else if (*at == '@' && !time) {
            at++;
            if (!read_count(&at, 1, &p->time)) return false;
            p->after = *at == '+';
            at += p->after;
            time = true;
        } else if (!strncmp(at, "/rank:", 6) && !rank) {
            at += 6;
            if (!read_count(&at, 0, &p->rank)) return false;
            rank = true;
        } else {
            return false;
        }
    }
    return true;
}

static tt_err parse(const char *text)
{
    point p = {.time = 1, .rank = -1, .nth = 1, .what = ACTS};
    const char *equals = strchr(text, '=');
    size_t size = equals ? (size_t)(equals - text) : 0, word = 0;

    if (!size || size >= sizeof p.name)
        return tt_fail(TT_EINVAL, "'%.200s' is no 'name=what'", text);
    memcpy(p.name, text, size);
    if (!is_known(p.name))
        return tt_fail(TT_EINVAL,
                       "'%s': there is no such failpoint here; 'tutti doctor "
                       "--failpoints' lists them",
                       p.name);
    word = strspn(++equals, "abcdefghijklmnopqrstuvwxyz");
    for (int i = 0; i < ACTS; i++)
        if (strlen(acts[i].word) == word && !strncmp(equals, acts[i].word, word)) p.what = (act)i;
    if (p.what == ACTS)
        return tt_fail(TT_EINVAL,
                       "'%.200s': a failpoint can kill, segv, abort, exit[:code], stop, "
                       "sleep[:seconds] or fail[:errno]",
                       text);
    p.value = acts[p.what].without;
    if (!read_rest(equals + word, &p))
        return tt_fail(TT_EINVAL, "'%.200s': behind '%s' may stand %s@N, @N+ or /rank:K", text,
                       acts[p.what].word, acts[p.what].most < 0 ? "" : "a number after a colon, ");
    if (point_count == POINTS_MOST)
        return tt_fail(TT_EINVAL, "more than %d failpoints", POINTS_MOST);
    for (int i = 0; i < point_count; i++) p.nth += !strcmp(points[i].name, p.name);
    points[point_count++] = p;
    return TT_OK;
}

tt_err tt_failpoint_set(const char *list, const char *dir)
{
    char *copy = strdup(list ? list : ""), *save = NULL;
    tt_err err = TT_OK;

    if (!copy) tt_mem_out(strlen(list));
    point_count = 0;
    if (snprintf(folder, sizeof folder, "%s", dir ? dir : "") >= (int)sizeof folder)
        err = tt_fail(TT_EINVAL, "%.200s...: the path is too long", dir);
    for (char *one = strtok_r(copy, ", ", &save); one && !err; one = strtok_r(NULL, ", ", &save))
        err = parse(one);
    if (!err && point_count && *folder && access(folder, W_OK | X_OK))
        err = tt_fail(TT_EINVAL, "TUTTI_FAILPOINT_DIR: %s: %s", folder, strerror(errno));
    free(copy);
    if (err) point_count = 0;
    tt_failpoints_on = point_count > 0;
    return err;
}

__attribute__((constructor)) static void read_environment(void)
{
    const char *list = getenv("TUTTI_FAILPOINTS");

    if (!list || !tt_failpoint_set(list, getenv("TUTTI_FAILPOINT_DIR"))) return;
    fprintf(stderr, "tutti: TUTTI_FAILPOINTS: %s\n", tt_message());
    _exit(2);
}

void tt_failpoint_rank(int rank)
{
    pthread_mutex_lock(&lock);
    own_rank = rank;
    pthread_mutex_unlock(&lock);
}

/* ---- coming by ---- */

/* Whoever makes the file fires; what fires always only leaves word. */
static bool is_first(const point *p)
{
    char path[FOLDER_ROOM + WORD + 16];
    int fd;

    if (!*folder) return true;
    if (p->nth == 1)
        snprintf(path, sizeof path, "%s/%s", folder, p->name);
    else
        snprintf(path, sizeof path, "%s/%s#%d", folder, p->name, p->nth);
    if ((fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0) return p->after;
    dprintf(fd, "rank %d process %d\n", own_rank, (int)getpid());
    close(fd);
    return true;
}

/* To this thread, which may have all signals blocked; a handler that somebody has set takes it. */
static void raise_here(int sig)
{
    sigset_t one;

    sigemptyset(&one);
    sigaddset(&one, sig);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    raise(sig);
}

static void sleep_for(double s)
{
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};

    while (nanosleep(&t, &t) && errno == EINTR) continue;
}

static int fire(const point *p)
{
    switch (p->what) {
    case KILL:
        kill(getpid(), SIGKILL);
        break;
    case SEGV:
        raise_here(SIGSEGV);
        break;
    case ABORT:
        abort();
    case EXIT:
        _exit((int)p->value);
    case STOP:
        kill(getpid(), SIGSTOP);
        break;
    case SLEEP:
        sleep_for(p->value);
        break;
    case FAIL:
        return (int)p->value;
    case ACTS:
        break;
    }
    return 0;
}

int tt_failpoint_hit(const char *name)
{
    point due;
    bool any = false;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < point_count && !any; i++) {
        point *p = &points[i];
        if (strcmp(p->name, name) || (p->rank >= 0 && p->rank != own_rank)) continue;
        p->passed++;
        if (p->after ? p->passed < p->time : p->passed != p->time) continue;
        if ((any = is_first(p))) due = *p;
    }
    pthread_mutex_unlock(&lock);
    return any ? fire(&due) : 0;
}

extern const char *const __start_tt_failpoints[] __attribute__((weak));
extern const char *const __stop_tt_failpoints[] __attribute__((weak));

int tt_failpoint_names(const char *const **out)
{
    *out = __start_tt_failpoints;
    return (int)(__stop_tt_failpoints - __start_tt_failpoints);
}
