/* steer: what a supervisor sees for itself while it runs: a hosts file that was changed, and CPUs
 * that have become more or fewer.
 *
 * The file is looked at every second. A file that cannot be read, or is half written, changes
 * nothing: it is told once, and the list before it stays. CPUs (affinity, quotas of control groups)
 * are counted every two seconds, and count when they have been the same for five. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "cluster/supervisor.h"

static const double FILE_S = 1, CPUS_S = 2, SETTLED_S = 5;

struct cli_steer {
    tt_supervisor *s;
    const cli_world_opts *o;
    bool elastic;

    bool file; /* it is watched */
    struct stat seen;
    tt_hosts hosts; /* as they were told */
    char complaint[512];
    double file_at;

    bool workers, threads; /* are still ours to choose */
    int cpus, counted;
    double cpus_at, since; /* so many were counted */
};

int cli_slots_here(int least, int most)
{
    int cpus = tt_cpu_count();

    return cpus < least ? least : cpus > most ? most : cpus;
}

/* ---- the hosts file ---- */

static void copy_hosts(const tt_hosts *from, tt_hosts *to)
{
    *to =
        (tt_hosts){.host = calloc((size_t)from->count + 1, sizeof *to->host), .count = from->count};
    if (!to->host) tt_mem_out((size_t)from->count * sizeof *to->host);
    if (from->count) memcpy(to->host, from->host, (size_t)from->count * sizeof *to->host);
}

static int slots_of(const tt_hosts *h, const char *name)
{
    for (int i = 0; i < h->count; i++)
        if (!strcmp(h->host[i].name, name)) return h->host[i].slots ? h->host[i].slots : 1;
    return 0;
}

/* Those that come first, so that those that leave can be replaced. */
static void tell_changes(cli_steer *t, const tt_hosts *now, tt_str *said)
{
    for (int i = 0; i < now->count; i++) {
        const char *name = now->host[i].name;
        int before = slots_of(&t->hosts, name), after = slots_of(now, name);
        if (before == after) continue;
        tt_str_add(
            said, before ? "%s: host %s has %d slot%s now\n" : "%s: host %s joins with %d slot%s\n",
            t->o->file, name, after, after == 1 ? "" : "s");
        tt_supervisor_host(t->s, name, after);
    }
    for (int i = 0; i < t->hosts.count; i++) {
        const char *name = t->hosts.host[i].name;
        if (slots_of(now, name)) continue;
        tt_str_add(said, "%s: host %s leaves\n", t->o->file, name);
        tt_supervisor_host(t->s, name, 0);
    }
}

static void complain(cli_steer *t, const char *what, tt_str *said)
{
    if (!strncmp(what, t->complaint, sizeof t->complaint - 1)) return;
    snprintf(t->complaint, sizeof t->complaint, "%s", what);
    tt_str_add(said, "warning: %s; the hosts stay as they are\n", t->complaint);
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_size == b->st_size && a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

static void look_at_file(cli_steer *t, tt_str *said)
{
    struct stat st;
    tt_hosts now = {0};
    char text[512];

    if (stat(t->o->file, &st)) {
        snprintf(text, sizeof text, "%s: %s", t->o->file, strerror(errno));
        complain(t, text, said);
        t->seen = (struct stat){0};
        return;
    }
    if (is_same(&st, &t->seen)) return;
    t->seen = st; /* from before it is read: a change meanwhile is seen the next time */
    if (tt_hosts_read(t->o->file, &now)) {
        complain(t, tt_message(), said);
    } else {
        *t->complaint = 0;
        tell_changes(t, &now, said);
        tt_hosts_free(&t->hosts);
        t->hosts = now;
        now = (tt_hosts){0};
    }
    tt_hosts_free(&now);
}

/* ---- CPUs ---- */

static int share_of(int cpus, int workers)
{
    return workers > 0 && cpus / workers > 0 ? cpus / workers : 1;
}

/* More workers if it is ours to say how many, else more threads for each; or fewer. */
static void follow_cpus(cli_steer *t, bool exact, int before, tt_str *said)
{
    tt_policy_view v = tt_supervisor_look(t->s);
    char why[96];

    snprintf(why, sizeof why, "there are %d CPUs now, and were %d", t->cpus, before);
    tt_str_add(said, "%s\n", why);
    if (t->elastic && t->workers)
        tt_supervisor_host(t->s, NULL, cli_slots_here(t->o->least, t->o->ranks) + t->o->spares);
    if (!t->threads || (!exact && !t->elastic) || !tt_supervisor_look(t->s).current) return;
    if (share_of(t->cpus, v.workers) == share_of(before, v.workers)) return;
    tt_supervisor_renew(t->s, 0, why);
}

static void look_at_cpus(cli_steer *t, bool exact, double now, tt_str *said)
{
    int n = tt_cpu_count(), before = t->cpus;

    if (n != t->counted) t->since = now;
    t->counted = n;
    if (n == t->cpus || now - t->since < SETTLED_S) return;
    t->cpus = n;
    follow_cpus(t, exact, before, said);
}

/* ---- calls ---- */

cli_steer *cli_steer_open(tt_supervisor *s, const cli_world_opts *o, const tt_hosts *hosts)
{
    cli_steer *t = calloc(1, sizeof *t);

    if (!t) tt_mem_out(sizeof *t);
    t->s = s;
    t->o = o;
    t->elastic = o->least && o->least < o->ranks;
    t->file = o->file && t->elastic;
    copy_hosts(hosts, &t->hosts);
    t->workers = !hosts->count;
    t->threads = !hosts->count && o->own_threads;
    t->cpus = t->counted = tt_cpu_count();
    return t;
}

void cli_steer_decided(cli_steer *t, bool workers, bool threads)
{
    if (workers) t->workers = false;
    if (threads) t->threads = false;
}

void cli_steer_turn(cli_steer *t, bool exact, tt_str *said)
{
    double now = tt_clock_s();

    if (t->file && now - t->file_at >= FILE_S) {
        t->file_at = now;
        look_at_file(t, said);
    }
    if ((t->workers || t->threads) && now - t->cpus_at >= CPUS_S) {
        t->cpus_at = now;
        look_at_cpus(t, exact, now, said);
    }
}

void cli_steer_close(cli_steer *t)
{
    if (!t) return;
    tt_hosts_free(&t->hosts);
    free(t);
}
