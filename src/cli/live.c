/* live: which runs are alive on this host, whoever started them in whatever folder.
 *
 * Each has a file in a folder of its user's, and whoever leads the run holds a lock on it: the
 * kernel drops that however the process ends, so a file that can be locked is of a dead one, and
 * whoever looks removes it. A file appears under its name with its lock held, so nobody takes a run
 * that is just starting for a dead one.
 *
 * Beside these there is a link from the identity of each run to its folder. It outlives the run:
 * what a killed one left in memory is known by that identity alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "store/store.h"

enum { PLACES = 3, PLACE = 1024, ENTRY_MOST = 64 << 10 };

typedef struct place {
    char path[PLACE];
} place;

/* Where such folders may be: the first is ours to write to. A session without a runtime folder (of
 * cron, say) uses the last one, and must be seen by one that has it. */
static int list_places(place list[PLACES])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char usual[64];
    int n = 0;

    snprintf(usual, sizeof usual, "/run/user/%u", (unsigned)geteuid());
    if (runtime && *runtime == '/' && strlen(runtime) < PLACE / 2 && !access(runtime, W_OK))
        snprintf(list[n++].path, PLACE, "%s/tutti", runtime);
    if ((!runtime || strcmp(runtime, usual)) && !access(usual, W_OK))
        snprintf(list[n++].path, PLACE, "%s/tutti", usual);
    snprintf(list[n++].path, PLACE, "/tmp/tutti-%u", (unsigned)geteuid());
    return n;
}

/* Anybody may make a folder of that name in /tmp: only one that is ours alone is believed. */
static bool is_ours(const char *folder)
{
    struct stat st;

    return !lstat(folder, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           !(st.st_mode & 077);
}

static tt_err own_place(char out[PLACE])
{
    place list[PLACES];

    list_places(list);
    memcpy(out, list[0].path, PLACE);
    if (mkdir(out, 0700) && errno != EEXIST)
        return tt_fail(TT_EIO, "make %s: %s", out, strerror(errno));
    if (!is_ours(out)) return tt_fail(TT_EENV, "%s is not a folder of this user alone", out);
    return TT_OK;
}

/* ---- being there ---- */

static tt_err write_entry(const char *run, const char *address, const char *path, int fd)
{
    char whole[CLI_PATH], host[256] = "", *text;
    tt_err err = TT_OK;
    json_t *o;

    if (!realpath(run, whole)) return tt_fail(TT_EIO, "%s: %s", run, strerror(errno));
    gethostname(host, sizeof host - 1);
    o = json_pack("{s:i, s:s, s:s, s:s, s:f}", "pid", (int)getpid(), "host", host, "run", whole,
                  "address", address ? address : "", "since", tt_wall_s());
    text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text) return tt_fail(TT_EINVAL, "%s: the name of the run is not UTF-8", whole);
    if (!tt_write_all(fd, text, strlen(text), NULL))
        err = tt_fail(TT_EIO, "write %s: %s", path, strerror(errno));
    free(text);
    return err;
}

tt_err cli_live_open(const char *run, const char *address, cli_live *out)
{
    char folder[PLACE], made[CLI_PATH + 64];
    tt_err err;

    *out = (cli_live){.fd = -1};
    if ((err = own_place(folder))) return err;
    snprintf(made, sizeof made, "%s/.%d", folder, (int)getpid());
    snprintf(out->path, sizeof out->path, "%s/%d.json", folder, (int)getpid());
    unlink(made); /* of a process that had this number before */
    out->fd = open(made, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out->fd < 0) return tt_fail(TT_EIO, "make %s: %s", made, strerror(errno));
    if (!(err = write_entry(run, address, made, out->fd)) &&
        (flock(out->fd, LOCK_EX | LOCK_NB) || rename(made, out->path)))
        err = tt_fail(TT_EIO, "%s: %s", out->path, strerror(errno));
    if (!err) return TT_OK;
    unlink(made);
    close(out->fd);
    out->fd = -1;
    return err;
}

void cli_live_close(cli_live *l)
{
    if (l->fd < 0) return;
    unlink(l->path);
    close(l->fd);
    l->fd = -1;
}

/* ---- identities ---- */

void cli_live_remember(const char *run)
{
    char folder[PLACE], link[PLACE + TT_RUN_ID + 8], whole[CLI_PATH], id[TT_RUN_ID];

    if (own_place(folder) || !realpath(run, whole) || !tt_run_id(run, id)) return;
    snprintf(link, sizeof link, "%s/%s.run", folder, id);
    unlink(link); /* the run may have been moved */
    if (symlink(whole, link)) tt_info("%s: %s", link, strerror(errno));
}

/* Is this the folder of that run, still? */
static bool leads_to(const char *link, const char *id, char run[CLI_PATH], bool *known)
{
    char found[TT_RUN_ID];
    ssize_t n = readlink(link, run, CLI_PATH - 1);

    if (n <= 0) return false;
    *known = true;
    run[n] = 0;
    return tt_run_id(run, found) && !strcmp(found, id);
}

bool cli_live_recall(const char *id, char run[CLI_PATH], bool *known)
{
    place list[PLACES];
    char link[CLI_PATH + 300];
    int n = list_places(list);

    *known = false;
    for (int i = 0; i < n; i++) {
        snprintf(link, sizeof link, "%s/%.250s.run", list[i].path, id);
        if (is_ours(list[i].path) && leads_to(link, id, run, known)) return true;
    }
    return false;
}

void cli_live_forget(const char *id)
{
    place list[PLACES];
    char link[CLI_PATH + 300];
    int n = list_places(list);

    for (int i = 0; i < n; i++) {
        snprintf(link, sizeof link, "%s/%.250s.run", list[i].path, id);
        if (is_ours(list[i].path)) unlink(link);
    }
}

/* ---- looking ---- */

static bool take_entry(const json_t *o, cli_live_run *out)
{
    const char *run = json_string_value(json_object_get(o, "run")),
               *host = json_string_value(json_object_get(o, "host")),
               *address = json_string_value(json_object_get(o, "address"));

    if (!run || !host || !address) return false;
    *out = (cli_live_run){.pid = (int)json_integer_value(json_object_get(o, "pid")),
                          .since = json_number_value(json_object_get(o, "since"))};
    return snprintf(out->run, sizeof out->run, "%s", run) < (int)sizeof out->run &&
           snprintf(out->host, sizeof out->host, "%s", host) < (int)sizeof out->host &&
           snprintf(out->address, sizeof out->address, "%s", address) < (int)sizeof out->address;
}

/* A file that nobody holds is removed. */
static bool look_at(const char *path, cli_live_run *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool alive = false;

    if (fd < 0) return false;
    if (!flock(fd, LOCK_SH | LOCK_NB)) {
        unlink(path);
    } else if (errno == EWOULDBLOCK) {
        tt_bytes b = {0};
        if (!tt_file_read(path, ENTRY_MOST, &b)) {
            json_t *o = json_loadb((const char *)b.data, b.size, 0, NULL);
            alive = json_is_object(o) && take_entry(o, out);
            json_decref(o);
        }
        tt_file_release(&b);
    }
    close(fd);
    return alive;
}

static int by_age(const void *a, const void *b)
{
    const cli_live_run *x = a, *y = b;
    return x->since < y->since ? -1 : x->since > y->since;
}

tt_err cli_live_list(cli_live_run **out, int *count)
{
    place list[PLACES];
    char path[CLI_PATH + 300], **names;
    int places = list_places(list), n;
    tt_err err;

    *out = NULL;
    *count = 0;
    for (int i = 0; i < places; i++) {
        if (!is_ours(list[i].path)) continue;
        if ((err = tt_dir_list(list[i].path, &names, &n))) return err;
        *out = realloc(*out, (size_t)(*count + n + 1) * sizeof **out);
        if (!*out) tt_mem_out((size_t)n * sizeof **out);
        for (int k = 0; k < n; k++) {
            size_t size = strlen(names[k]);
            if (*names[k] == '.' || size < 5 || strcmp(names[k] + size - 5, ".json")) continue;
            snprintf(path, sizeof path, "%s/%s", list[i].path, names[k]);
            if (look_at(path, *out + *count)) ++*count;
        }
        tt_dir_free(names, n);
    }
    if (*count) qsort(*out, (size_t)*count, sizeof **out, by_age);
    return TT_OK;
}
