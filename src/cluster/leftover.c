/* leftover: what a supervisor that was killed has left on this host.
 *
 * Its worlds end by themselves, and their keepers clear up after them; but its own folder stays,
 * and all of it does if the keepers were killed, too. The next supervisor of the run is told by the
 * run folder where that was. Anybody may have written to that file, so nothing is removed but what
 * has the name, the owner and the make of such a folder. */
#define _GNU_SOURCE
#include "inner.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SETTLED_S = 60 };

/* "/tmp/tutti-aB3xY9", ours alone, and no link. */
static bool is_supervisors(const char *folder)
{
    const char *name = strrchr(folder, '/');
    struct stat st;

    return *folder == '/' && name && strlen(name) == strlen("/tutti-XXXXXX") &&
           !strncmp(name, "/tutti-", 7) && !lstat(folder, &st) && S_ISDIR(st.st_mode) &&
           st.st_uid == geteuid() && !(st.st_mode & 077);
}

/* One who was killed before the run folder knew of it leaves an empty folder. */
static void sweep_empty(const char *tmp)
{
    char path[4200];
    struct dirent *e;
    struct stat st;
    DIR *d = opendir(tmp);

    while (d && (e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", tmp, e->d_name);
        if (is_supervisors(path) && !lstat(path, &st) && st.st_mtim.tv_sec + SETTLED_S < time(NULL))
            rmdir(path); /* if it is empty */
    }
    if (d) closedir(d);
}

void tt_leftover_sweep(void)
{
    const char *tmp = getenv("TMPDIR");

    sweep_empty(tmp && *tmp == '/' ? tmp : "/tmp");
}

bool tt_leftover_clear(const char *folder)
{
    char path[4200];
    struct dirent *e;
    struct stat st;
    DIR *d;

    if (lstat(folder, &st) && errno == ENOENT) return true;
    if (!is_supervisors(folder) || !(d = opendir(folder))) return false;
    while ((e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (!strncmp(e->d_name, "world-", 6))
            tt_launch_clear(path);
        else if (!lstat(path, &st) && (S_ISSOCK(st.st_mode) || S_ISLNK(st.st_mode)))
            unlink(path); /* the hub's, and the names by which launchers call us */
    }
    closedir(d);
    return !rmdir(folder);
}
