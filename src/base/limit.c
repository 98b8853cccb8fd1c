/* What this process may use: CPUs and memory, as the machine, its control groups and its own limits
 * allow. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "mem.h"
#include "team.h"

/* The first `count` numbers of a file; "max" and -1 are no limit. False unless all are there. */
static bool read_numbers(const char *path, long long *out, int count)
{
    FILE *f = fopen(path, "re");
    bool ok = f != NULL;

    for (int i = 0; ok && i < count; i++) ok = fscanf(f, "%lld", &out[i]) == 1;
    if (f) fclose(f);
    return ok;
}

/* The number behind `name` in a file of lines "name 123" or "name: 123 kB"; -1 if it is not there.
 */
static long long read_named(const char *path, const char *name)
{
    FILE *f = fopen(path, "re");
    char word[128];
    long long value, found = -1;
    int n;

    while (f && found < 0 && (n = fscanf(f, "%127s %lld%*[^\n]", word, &value)) > 0)
        if (n == 2 && !strcmp(word, name)) found = value;
    if (f) fclose(f);
    return found;
}

/* ---- Control groups ---- */

/* What one group allows; LLONG_MAX if it has no limit. */
typedef long long limit_of(const char *mount, const char *group);

/* The least of a group and all above it. */
static long long least_upwards(limit_of *limit, const char *mount, char *group)
{
    long long least = LLONG_MAX, here;
    char *slash;

    for (;;) {
        here = limit(mount, group);
        if (here < least) least = here;
        slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

/* Is `word` in the comma-separated list? */
static bool lists(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ',') && (p[n] == 0 || p[n] == ',')) return true;
    return false;
}

/* /proc/self/cgroup: "0::/a/b" for version 2, "4:cpu,cpuacct:/a/b" for version 1. */
static long long least_of_groups(const char *controller, limit_of *limit)
{
    char line[4096], mount[64], *list, *group;
    long long least = LLONG_MAX, here;
    FILE *f = fopen("/proc/self/cgroup", "re");

    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (!(list = strchr(line, ':')) || !(group = strchr(++list, ':'))) continue;
        *group++ = 0;
        if (*list && !lists(list, controller)) continue;
        snprintf(mount, sizeof mount, "/sys/fs/cgroup%s%s", *list ? "/" : "",
                 *list ? controller : "");
        here = least_upwards(limit, mount, group);
        if (here < least) least = here;
    }
    if (f) fclose(f);
    return least;
}

/* ---- CPUs ---- */

static int affinity_count(void)
{
    /* The kernel refuses a set smaller than its own: try larger ones. */
    for (int bits = 1024; bits <= 1 << 20; bits *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)bits);
        size_t size = CPU_ALLOC_SIZE((size_t)bits);
        int rc, count;
        if (!set) return 1;
        rc = sched_getaffinity(0, size, set);
        count = rc ? 0 : CPU_COUNT_S(size, set);
        CPU_FREE(set);
        if (!rc) return count > 0 ? count : 1;
        if (errno != EINVAL) return 1;
    }
    return 1;
}

/* CPUs that quota and period of a group amount to, rounded up. */
static long long cpus_of(const char *mount, const char *group)
{
    char path[8192], path2[8192];
    long long v[2];

    snprintf(path, sizeof path, "%s%s/cpu.max", mount, group);
    if (!read_numbers(path, v, 2)) {
        snprintf(path, sizeof path, "%s%s/cpu.cfs_quota_us", mount, group);
        snprintf(path2, sizeof path2, "%s%s/cpu.cfs_period_us", mount, group);
        if (!read_numbers(path, v, 1) || !read_numbers(path2, v + 1, 1)) return LLONG_MAX;
    }
    if (v[0] <= 0 || v[1] <= 0) return LLONG_MAX;
    return v[0] / v[1] + (v[0] % v[1] != 0);
}

int tt_cpu_count(void)
{
    int cpus = affinity_count();
    long long quota = least_of_groups("cpu", cpus_of);

    return quota < cpus ? (int)quota : cpus;
}

/* ---- Memory ---- */

/* What a group has left. Pages of files count as used there, but are given back when needed. */
static long long memory_of(const char *mount, const char *group)
{
    static const char *const names[2][3] = {
        {"memory.max", "memory.current", "file"},
        {"memory.limit_in_bytes", "memory.usage_in_bytes", "cache"}};
    char path[8192];
    long long limit, used, cache;

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s%s/%s", mount, group, names[i][0]);
        if (!read_numbers(path, &limit, 1)) continue;
        snprintf(path, sizeof path, "%s%s/%s", mount, group, names[i][1]);
        if (!read_numbers(path, &used, 1)) continue;
        snprintf(path, sizeof path, "%s%s/memory.stat", mount, group);
        cache = read_named(path, names[i][2]);
        used -= cache > 0 ? cache : 0;
        return limit > used ? limit - used : 0;
    }
    return LLONG_MAX;
}

/* What `ulimit -v` leaves. */
static long long address_room(void)
{
    struct rlimit limit;
    long long pages, used;

    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur > LLONG_MAX || !read_numbers("/proc/self/statm", &pages, 1))
        return LLONG_MAX;
    used = pages * sysconf(_SC_PAGESIZE);
    return (long long)limit.rlim_cur > used ? (long long)limit.rlim_cur - used : 0;
}

size_t tt_mem_free(void)
{
    long long kilobytes = read_named("/proc/meminfo", "MemAvailable:"), least, other;

    least = kilobytes >= 0 ? kilobytes * 1024 : LLONG_MAX;
    if ((other = least_of_groups("memory", memory_of)) < least) least = other;
    if ((other = address_room()) < least) least = other;
    return least == LLONG_MAX ? SIZE_MAX : (size_t)least;
}
