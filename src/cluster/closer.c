/* closer: a second look at workers of this host that are silent.
 *
 * Silence has two causes that a clock cannot tell apart: a process that is stopped or hangs, and
 * one that would speak but gets no CPU, because others have them all. The kernel can: of a stopped
 * process it says so, and that is not waited for any longer. A thread that is ready to run, and
 * does not, is starved: its process is as good as heard, though not for ever. Only the threads that
 * carry the beat are looked at, so one that computes does not speak for one that hangs. */
#define _GNU_SOURCE
#include "boss.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double SILENT_S = 0.2; /* two beats are missing                                   */
static const double EXCUSED_S = 5;  /* the longest that nobody is heard who is said to be starved */
static const double BUSY_PART = 0.5; /* of the time: who runs so much is not starved            */

typedef struct look {
    bool stopped; /* by a signal                                     */
    bool ready;   /* a thread that carries the beat waits for a CPU, or for a page */
    double cpu_s; /* what those threads have used so far             */
} look;

static bool carries_beat(const char *name)
{
    return !strcmp(name, TT_PULSE_THREAD) || !strncmp(name, "ZMQbg", 5);
}

/* "123 (name) S ...": the state behind the last bracket, utime and stime the 12th and 13th from it.
 */
static void look_at_thread(const char *path, bool main, look *out)
{
    char text[1024], *name, *rest;
    unsigned long user = 0, kernel = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    char state;

    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    if (!(name = strchr(text, '(')) || !(rest = strrchr(text, ')')) || rest[1] != ' ') return;
    *rest = 0;
    state = rest[2];
    if (main) out->stopped = state == 'T';
    if (!carries_beat(name + 1) ||
        sscanf(rest + 3, " %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) != 2)
        return;
    out->ready |= state == 'R' || state == 'D';
    out->cpu_s += (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static look look_at(int pid)
{
    char folder[64], path[384];
    look l = {0};
    struct dirent *e;
    DIR *d;

    snprintf(folder, sizeof folder, "/proc/%d/task", pid);
    if (!(d = opendir(folder))) return l;
    while ((e = readdir(d))) {
        if (*e->d_name == '.') continue;
        snprintf(path, sizeof path, "%s/%s/stat", folder, e->d_name);
        look_at_thread(path, atoi(e->d_name) == pid, &l);
    }
    closedir(d);
    return l;
}

static void look_closer(tt_supervisor *s, const world *w, int r, double now)
{
    member *m = &w->member[r];
    tt_event e = {.world = w->id, .rank = r, .phase = m->phase, .step = m->step, .waits = m->waits};
    look l = look_at(m->pid);
    bool first = !(m->looked > m->heard);

    if (l.stopped) {
        e.kind = TT_EV_STILL;
        boss_take(s, e);
        return;
    }
    if (first) {
        m->looked = now;
        m->cpu_s = l.cpu_s;
        return;
    }
    if (!l.ready || now - m->heard > EXCUSED_S ||
        l.cpu_s - m->cpu_s > BUSY_PART * (now - m->looked))
        return;
    e.kind = TT_EV_BEAT;
    boss_take(s, e);
}

void boss_look_closer(tt_supervisor *s)
{
    double now = tt_clock_s();

    for (int i = 0; i < TT_WORLDS_MOST; i++)
        for (int r = 0; s->world[i].member && r < s->world[i].members; r++) {
            const world *w = &s->world[i];
            const member *m = &w->member[r];
            if (m->pid && m->here && !m->dead && !w->killed && m->phase != TT_PHASE_END &&
                now - m->heard > SILENT_S)
                look_closer(s, w, r, now);
        }
}
