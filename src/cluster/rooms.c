/* rooms: the folders of a run on a host, in memory and on disk.
 *
 * They outlive the worlds of a run, so no world can clear them away. The supervisor does at the
 * end, or if it dies, the keeper of its world. That leaves hosts without either, and those where
 * both were killed: so whoever is in a room holds a lock on it, and rooms that nobody holds are
 * removed by the next run that comes to the host. Only what has such a name is ever removed. */
#define _GNU_SOURCE
#include "inner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TOKEN = 16, SETTLED_S = 60 };

/* "tutti-<uid>-data-": rooms of this user. Not "tutti-<uid>-", as vaults are called: those are
 * never to be swept. */
static size_t prefix_of(char out[32])
{
    return (size_t)snprintf(out, 32, "tutti-%u-data-", (unsigned)geteuid());
}

static bool is_room_name(const char *name, size_t size)
{
    char prefix[32];
    size_t n = prefix_of(prefix);

    return size == n + TOKEN && !strncmp(name, prefix, n) &&
           strspn(name + n, "0123456789abcdef") >= TOKEN;
}

/* The next of "a:b", into `out`; false: there are no more, or it is no room. */
static bool next_room(const char **rooms, char out[TT_ROOMS])
{
    size_t n = strcspn(*rooms, ":");
    const char *slash;

    if (!n || n >= TT_ROOMS) return false;
    snprintf(out, TT_ROOMS, "%.*s", (int)n, *rooms);
    slash = strrchr(out, '/');
    if (*out != '/' || !is_room_name(slash + 1, strlen(slash + 1))) return false;
    *rooms += n + ((*rooms)[n] != 0);
    return true;
}

tt_err tt_rooms_name(char rooms[TT_ROOMS])
{
    const char *tmp = getenv("TMPDIR"), *place[2] = {"/dev/shm", tmp && *tmp == '/' ? tmp : "/tmp"};
    char prefix[32];
    uint64_t token;
    size_t used = 0;

    *rooms = 0;
    prefix_of(prefix);
    if (getrandom(&token, sizeof token, 0) != sizeof token)
        return tt_fail(TT_EIO, "getrandom: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        if (strchr(place[i], ':') || strlen(place[i]) > TT_ROOMS / 4 || access(place[i], W_OK))
            continue;
        used += (size_t)snprintf(rooms + used, TT_ROOMS - used, "%s%s/%s%016llx", used ? ":" : "",
                                 place[i], prefix, (unsigned long long)token);
    }
    return TT_OK;
}

bool tt_rooms_valid(const char *rooms)
{
    char room[TT_ROOMS];

    if (!*rooms) return false;
    while (next_room(&rooms, room)) continue;
    return !*rooms;
}

/* A folder of ours, opened; -1: it is none. */
static int open_room(const char *room, struct stat *st)
{
    int fd = open(room, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0 && (fstat(fd, st) || st->st_uid != geteuid())) {
        close(fd);
        return -1;
    }
    return fd;
}

void tt_rooms_hold(const char *rooms)
{
    char room[TT_ROOMS];
    struct stat st;

    for (int i = 0; next_room(&rooms, room); i++) {
        if (i == 0 && mkdir(room, 0700) && errno != EEXIST) continue;
        int fd = open_room(room, &st); /* until this process ends */
        if (fd >= 0) flock(fd, LOCK_SH | LOCK_NB);
    }
}

bool tt_room_is_named(const char *name)
{
    return is_room_name(name, strlen(name));
}

/* Nobody holds it, and nobody is just about to. */
bool tt_room_is_left(const char *room)
{
    struct stat st;
    int fd = open_room(room, &st);
    bool left =
        fd >= 0 && st.st_mtim.tv_sec + SETTLED_S < time(NULL) && !flock(fd, LOCK_EX | LOCK_NB);

    if (fd >= 0) close(fd);
    return left;
}

static void sweep_room(const char *room)
{
    if (!tt_room_is_left(room)) return;
    tt_info("removing %s, which a run that died has left", room);
    if (tt_dir_remove(room)) tt_warn("%s", tt_message());
}

void tt_rooms_sweep(const char *rooms)
{
    char room[TT_ROOMS], path[TT_ROOMS + 300];
    struct dirent *e;
    DIR *d;

    while (next_room(&rooms, room)) {
        *strrchr(room, '/') = 0;
        if (!(d = opendir(*room ? room : "/"))) continue;
        while ((e = readdir(d))) {
            if (!is_room_name(e->d_name, strlen(e->d_name))) continue;
            snprintf(path, sizeof path, "%s/%s", room, e->d_name);
            sweep_room(path);
        }
        closedir(d);
    }
}

void tt_rooms_remove(const char *rooms)
{
    char room[TT_ROOMS];

    while (next_room(&rooms, room)) tt_dir_remove(room); /* if not, the next run sweeps it */
}
