/* Which CPUs a rank keeps to.
 *
 * Ranks of a host that may all use the same CPUs share them out by their threads, none twice, and
 * none left over: what makes batches and saves files runs beside the threads that train. Whole
 * cores come first, so that two threads share a core only when there are more of them than cores.
 * Who was given CPUs of its own by a launcher or a batch system keeps those. Where threads are more
 * than CPUs nobody is bound: the system shares out better than we could. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#ifdef TT_HAVE_HWLOC
#include <hwloc.h>
#endif

#include "comm/carrier.h"

enum { CPUS = CPU_SETSIZE };

/* The CPUs of a set in the order in which they are handed out; how many. */
static int order_of(const cpu_set_t *allowed, int *out)
{
    int n = 0;

#ifdef TT_HAVE_HWLOC
    hwloc_topology_t t;
    if (!hwloc_topology_init(&t) && !hwloc_topology_load(t)) {
        int cores = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_CORE), depth = 0, was = -1;
        while (n != was) { /* the first thread of each core, then the second, ... */
            was = n;
            for (int c = 0; c < cores; c++) {
                hwloc_obj_t core = hwloc_get_obj_by_type(t, HWLOC_OBJ_CORE, (unsigned)c);
                int at = hwloc_bitmap_first(core->cpuset);
                for (int i = 0; i < depth && at >= 0; i++) at = hwloc_bitmap_next(core->cpuset, at);
                if (at >= 0 && at < CPUS && CPU_ISSET(at, allowed)) out[n++] = at;
            }
            depth++;
        }
    }
    hwloc_topology_destroy(t);
#endif
    if (n) return n;
    for (int i = 0; i < CPUS; i++)
        if (CPU_ISSET(i, allowed)) out[n++] = i;
    return n;
}

tt_err tt_world_pin(const tt_world *w, int threads, int *bound)
{
    struct {
        int threads;
        cpu_set_t allowed;
    } mine = {.threads = threads}, *all;
    const char *wish = getenv("TUTTI_PIN");
    int *order, total = 0, before = 0, count;
    bool common = true;
    tt_err err;

    *bound = 0;
    if (w->threads) return TT_OK;
    if (sched_getaffinity(0, sizeof mine.allowed, &mine.allowed)) CPU_ZERO(&mine.allowed);
    all = calloc((size_t)w->size, sizeof *all);
    order = calloc(CPUS, sizeof *order);
    if (!all || !order) tt_mem_out((size_t)w->size * sizeof *all);
    if ((err = tt_group_gather(tt_world_all(w), &mine, sizeof mine, all))) goto out;
    for (int r = 0; r < w->size; r++) {
        if (w->peer[r].host != w->host) continue;
        if (r < w->rank) before += all[r].threads;
        total += all[r].threads;
        common &= CPU_EQUAL(&all[r].allowed, &mine.allowed) != 0;
    }
    count = order_of(&mine.allowed, order);
    /* A quota of CPU time below the number of CPUs counts too. */
    if (!common || total > count || total > tt_cpu_count() || (wish && !strcmp(wish, "0")))
        goto out;
    CPU_ZERO(&mine.allowed);
    for (int i = count * before / total; i < count * (before + threads) / total; i++)
        CPU_SET(order[i], &mine.allowed);
    if (!sched_setaffinity(0, sizeof mine.allowed, &mine.allowed))
        *bound = CPU_COUNT(&mine.allowed);
out:
    free(all);
    free(order);
    return err;
}
