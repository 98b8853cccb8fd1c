/* leftovers: what runs that died have left on this host, apart from their vaults: rooms that nobody
 * holds, and folders of supervisors whose socket nobody answers any more. Usually a keeper clears
 * these away; this is for when it was killed, too. */
#define _GNU_SOURCE
#include "inner.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { PLACES = 3, PATH_ROOM = 4096, DEPTH = 8, SETTLED_S = 60 };

/* mkdtemp's: "tutti-XXXXXX". */
static bool is_hub_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

    return !strncmp(name, "tutti-", 6) && strlen(name) == 12 && strspn(name + 6, letters) == 6;
}

/* It has the socket of a hub, and nobody is at the other end, or about to be. */
static bool is_hub_left(const char *folder)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    bool refused;
    int fd;

    if (lstat(folder, &st) || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
        snprintf(a.sun_path, sizeof a.sun_path, "%s/hub", folder) >= (int)sizeof a.sun_path ||
        lstat(a.sun_path, &st) || !S_ISSOCK(st.st_mode) ||
        st.st_mtim.tv_sec + SETTLED_S > time(NULL) ||
        (fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) < 0)
        return false;
    refused = connect(fd, (struct sockaddr *)&a, sizeof a) && errno == ECONNREFUSED;
    close(fd);
    return refused;
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
        if (!place[i] || (i == 2 && !strcmp(place[2], "/tmp")) || !(d = opendir(place[i])))
            continue;
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
