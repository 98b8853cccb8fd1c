/* leftovers: what runs that died have left on this host, apart from their vaults: rooms that nobody
 * holds, and folders of supervisors whose lock nobody holds. Usually a keeper clears these away;
 * this is for when it was killed, too. */
#define _GNU_SOURCE
#include "inner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLACES = 3, PATH_ROOM = 4096, DEPTH = 8, MAKING_S = 60 };

/* mkdtemp's: "tutti-XXXXXX". */
static bool is_hub_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

    return !strncmp(name, "tutti-", 6) && strlen(name) == 12 && strspn(name + 6, letters) == 6;
}

/* A hub holds a lock in its folder: nobody does any more. One that has none is just being made, or
 * taken away; not for long, unless who did it was killed. */
static bool is_hub_left(const char *folder)
{
    char path[PATH_ROOM + 8];
    struct stat st;
    bool left;
    int fd;

    snprintf(path, sizeof path, "%s/lock", folder);
    if (lstat(folder, &st) || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 077)
        return false;
    if ((fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)) < 0)
        return errno == ENOENT && tt_wall_s() - (double)st.st_mtim.tv_sec > MAKING_S;
    left = !flock(fd, LOCK_EX | LOCK_NB);
    close(fd);
    return left;
}

static uint64_t bytes_in(const char *path, int depth)
{
    char inner[PATH_ROOM];
    struct dirent *e;
    struct stat st;
    uint64_t sum;
    DIR *d;

    if (lstat(path, &st)) return 0;
    sum = (uint64_t)st.st_blocks * 512;
    if (!S_ISDIR(st.st_mode) || !depth || !(d = opendir(path))) return sum;
    while ((e = readdir(d)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") &&
            snprintf(inner, sizeof inner, "%s/%s", path, e->d_name) < (int)sizeof inner)
            sum += bytes_in(inner, depth - 1);
    closedir(d);
    return sum;
}

static void add(tt_leftover **list, int *count, const char *path, bool hub)
{
    struct stat st;
    tt_leftover *l;

    if (!(*list = realloc(*list, (size_t)(*count + 1) * sizeof **list))) tt_mem_out(sizeof **list);
    l = &(*list)[(*count)++];
    *l = (tt_leftover){.hub = hub, .bytes = bytes_in(path, DEPTH)};
    if (!lstat(path, &st)) l->changed = (double)st.st_mtim.tv_sec;
    snprintf(l->path, sizeof l->path, "%s", path);
}

/* TMPDIR may be one of the others, by whatever name. */
static bool is_seen(const char *const *place, int i)
{
    struct stat a, b;

    for (int k = 0; k < i; k++)
        if (!stat(place[k], &a) && !stat(place[i], &b) && a.st_dev == b.st_dev &&
            a.st_ino == b.st_ino)
            return true;
    return false;
}

tt_err tt_leftovers(tt_leftover **out, int *count)
{
    const char *tmp = getenv("TMPDIR"),
               *place[PLACES] = {"/dev/shm", "/tmp", tmp && *tmp == '/' ? tmp : NULL};
    char path[PATH_ROOM];
    struct dirent *e;
    DIR *d;

    *out = NULL;
    *count = 0;
    for (int i = 0; i < PLACES; i++) {
        if (!place[i] || is_seen(place, i) || !(d = opendir(place[i]))) continue;
        while ((e = readdir(d))) {
            bool hub = is_hub_name(e->d_name);
            if ((!hub && !tt_room_is_named(e->d_name)) ||
                snprintf(path, sizeof path, "%s/%s", place[i], e->d_name) >= (int)sizeof path)
                continue;
            if (hub ? is_hub_left(path) : tt_room_is_left(path)) add(out, count, path, hub);
        }
        closedir(d);
    }
    return TT_OK;
}

tt_err tt_leftover_remove(const tt_leftover *l)
{
    char **names, path[PATH_ROOM + 300];
    int count;
    tt_err err;

    if (!l->hub) return tt_dir_remove(l->path);
    if ((err = tt_dir_list(l->path, &names, &count))) return err;
    for (int i = 0; i < count && !err; i++) {
        if (strncmp(names[i], "world-", 6)) continue;
        snprintf(path, sizeof path, "%s/%s", l->path, names[i]);
        err = tt_launch_clear(path);
    }
    tt_dir_free(names, count);
    return err ? err : tt_dir_remove(l->path);
}

void tt_leftovers_sweep(void)
{
    tt_leftover *list;
    int count;

    if (tt_leftovers(&list, &count)) return;
    for (int i = 0; i < count; i++)
        if (list[i].hub && tt_leftover_remove(&list[i])) tt_info("%s", tt_message());
    free(list);
}
