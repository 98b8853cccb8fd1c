/* adopt: TF_CONFIG with a process started by hand on every host. The first one launches; the others
 * are agents, through which its launcher reaches their hosts. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "comm/wire.h"

/* ---- the first ---- */

/* How many hosts have nobody yet; their names are added to `names`. The first is our own, whatever
 * it is called. */
static int missing(const tt_hub *h, const tt_hosts *hosts, tt_str *names)
{
    int n = 0;

    for (int i = 1; i < hosts->count; i++) {
        const char *name = hosts->host[i].name;
        if (tt_host_is_here(name) || tt_hub_has(h, name)) continue;
        tt_str_add(names, "%s%s", n++ ? ", " : "", name);
    }
    return n;
}

tt_err cli_adopt(tt_hub *h, const cli_world_opts *o, const tt_hosts *hosts,
                 const volatile int *stop)
{
    double until = tt_clock_s() + o->wait_s;
    int told = -1, left;
    tt_err err = TT_OK;

    for (;;) {
        struct pollfd p[8];
        tt_str names = {0};
        char span[32];
        tt_hub_turn(h);
        left = missing(h, hosts, &names);
        tt_show_time(o->wait_s, span, sizeof span);
        if (left && *stop)
            err = tt_fail(TT_ESTOP, "stopped while waiting for %s", names.data);
        else if (left && tt_clock_s() > until)
            err = tt_fail(TT_EPEER,
                          "waited %s for %s in vain: start 'tutti train' there too, with its own "
                          "TF_CONFIG and the same key (or set TUTTI_RSH=ssh, and they are started "
                          "from here)",
                          span, names.data);
        else if (left && left != told && o->mode == CLI_SHOW)
            fprintf(stderr, "waiting up to %s for 'tutti train' on %s\n", span, names.data);
        told = left;
        tt_str_free(&names);
        if (err || !left) return err;
        poll(p, (nfds_t)tt_hub_poll(h, p, TT_COUNT(p)), 100);
    }
}

/* All of it on this host? Then nobody else need reach us. What other hosts call us may mean a
 * loopback address here, so that for them we listen at all. */
static bool is_alone(const tt_tf_config *c)
{
    for (int i = 0; i < c->ranks; i++)
        if (!tt_host_is_here(c->rank[i].host)) return false;
    return true;
}

tt_err cli_adopter_open(const tt_tf_config *c, cli_adopter *out)
{
    const char *tmp = getenv("TMPDIR");
    char key[CLI_PATH], address[300];
    tt_str world = {0};
    tt_err err;

    *out = (cli_adopter){.c = c};
    if (getenv("TUTTI_RSH")) return TT_OK;
    if ((err = tt_cluster_key_path(key)) || (err = tt_cluster_key_make(key))) return err;
    snprintf(out->folder, sizeof out->folder, "%s/tutti-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(out->folder)) {
        err = tt_fail(TT_EIO, "make a folder like %s: %s", out->folder, strerror(errno));
        *out->folder = 0;
        return err;
    }
    snprintf(address, sizeof address, "tcp://%s:%d", is_alone(c) ? "127.0.0.1" : "*",
             c->rank[0].port);
    tt_tf_config_show(c, &world);
    err = tt_hub_open(&(tt_hub_opts){out->folder, address, key, world.data}, &out->hub);
    tt_str_free(&world);
    return err ? tt_context(err, "TF_CONFIG") : TT_OK;
}

/* Who has not come yet has a moment to do so, to be told how it ended. */
void cli_adopter_close(cli_adopter *a, int code)
{
    static const double MOMENT_S = 2;
    double until = tt_clock_s() + MOMENT_S;

    while (a->hub && tt_hub_count(a->hub) < a->c->ranks - 1 && tt_clock_s() < until) {
        tt_hub_turn(a->hub);
        poll(NULL, 0, 20);
    }
    tt_hub_close(a->hub, code);
    if (*a->folder) tt_dir_remove(a->folder);
}

/* ---- the others ---- */

static volatile int asked;

static void on_signal(int sig)
{
    asked = sig;
}

/* The first one makes it, and where homes are common it is there for all; where they are not, one
 * made here would be another. */
static tt_err wait_for_key(const char *path, double wait_s)
{
    static const double MOMENT_S = 5;
    double until = tt_clock_s() + (wait_s < MOMENT_S ? wait_s : MOMENT_S);
    tt_cluster_key key;

    while (!tt_file_exists(path) && !asked && tt_clock_s() < until) poll(NULL, 0, 50);
    return tt_cluster_key_load(path, &key);
}

int cli_be_adopted(const tt_tf_config *c, double wait_s, bool quiet)
{
    struct sigaction act = {.sa_handler = on_signal};
    char key[CLI_PATH], address[300];
    tt_agent_end end;
    tt_str world = {0};
    tt_err err;

    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGUSR1, &act, NULL);
    if ((err = tt_cluster_key_path(key)) || (err = wait_for_key(key, wait_s))) return cli_fail(err);
    snprintf(address, sizeof address, "tcp://%s:%d", c->rank[0].host, c->rank[0].port);
    tt_tf_config_show(c, &world);
    if (!quiet)
        fprintf(stderr, "%s %d: waiting to be taken in by %s, which trains and shows\n", c->type,
                c->index, address);
    err = tt_agent_run(&(tt_agent_opts){address, key, c->rank[c->me].host, world.data, wait_s},
                       &asked, &end);
    tt_str_free(&world);
    if (err) return err == TT_ESTOP && asked == SIGINT ? CLI_INTERRUPTED : cli_fail(err);
    if (end.code && !quiet)
        fprintf(stderr, "tutti: %s ended with exit code %d; it says why\n", address, end.code);
    return end.code;
}
