/* book: what must outlive a supervisor: the generation, and the ledger of the run.
 *
 * Both are in the run folder. The generation is safe on disk before a world gets it; a line of the
 * ledger is, before the world it is about writes anything. A disk that fails does not end a
 * training: the judge goes on in memory, and the trouble is told once.
 *
 * Locks say who has the run, unless a coordinator does: then the one before may be stopped, or on a
 * host that is gone, and its locks still held. So whoever has the run from a coordinator makes
 * these files anew, by rename. What the one before has open is then no file of the run any more: a
 * line that it writes when it wakes up, whatever it checked before, goes nowhere. */
#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { LOCK_TRIES = 5, LOCK_PAUSE_US = 20000 };

static void lament(tt_book *b)
{
    if (!b->troubled)
        tt_warn("%s; the training goes on, but another supervisor would not know of it",
                tt_message());
    b->troubled = true;
}

/* Opens and locks a file; *held: another has it. */
static tt_err open_locked(const char *path, int *fd, bool *held)
{
    int err;

    *held = false;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) return tt_fail(TT_EIO, "open %s: %s", path, strerror(errno));
    /* Who looks whether the run is alive holds the lock for a moment: one refusal is none. */
    for (int i = 0; (err = flock(*fd, LOCK_EX | LOCK_NB)) && i < LOCK_TRIES; i++)
        if (errno == EWOULDBLOCK) usleep(LOCK_PAUSE_US);
    *held = err && errno == EWOULDBLOCK;
    return err && !*held ? tt_fail(TT_EIO, "lock %s: %s", path, strerror(errno)) : TT_OK;
}

/* The lock of a world whose supervisor has been deposed: that world is over, whoever still holds
 * it. */
static void drop_lock(const tt_book *b)
{
    char path[4200];
    bool held = false;
    int fd;

    snprintf(path, sizeof path, "%s/lock", b->run);
    if (!tt_file_exists(path)) return;
    if (!open_locked(path, &fd, &held) && held) unlink(path);
    if (fd >= 0) close(fd);
}

/* One supervisor at a time has a run; the file says who, and how it is reached. */
static tt_err take_run(tt_book *b, const char *address, const char *coordinator)
{
    char path[4200], host[256] = "", *line;
    json_t *o, *other;
    bool held, ours;
    int pid;
    tt_err err;

    snprintf(path, sizeof path, "%s/supervisor.json", b->run);
    if ((err = open_locked(path, &b->lock, &held))) return err;
    other = json_load_file(path, 0, NULL);
    pid = tt_number_of(other, "pid");
    snprintf(host, sizeof host, "%s", tt_text_of(other, "host"));
    ours = coordinator && !strcmp(tt_text_of(other, "coordinator"), coordinator);
    json_decref(other);
    if (ours) drop_lock(b);
    if (ours && held) { /* another file of that name */
        close(b->lock);
        b->lock = -1;
        if (unlink(path)) return tt_fail(TT_EIO, "remove %s: %s", path, strerror(errno));
        if ((err = open_locked(path, &b->lock, &held))) return err;
    }
    if (held)
        return tt_fail(TT_EINVAL, "run %s is being trained by process %d on host %s", b->run, pid,
                       host);
    gethostname(host, sizeof host - 1);
    o = json_pack("{s:i, s:s, s:s, s:f, s:s}", "pid", (int)getpid(), "host", host, "address",
                  address, "since", tt_wall_s(), "coordinator", coordinator ? coordinator : "");
    line = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!line) return tt_fail(TT_ENOMEM, "no memory for %s", path);
    if (ftruncate(b->lock, 0) || pwrite(b->lock, line, strlen(line), 0) != (ssize_t)strlen(line)) {
        tt_fail(TT_EIO, "write %s: %s", path, strerror(errno));
        lament(b);
    }
    free(line);
    return TT_OK;
}

tt_err tt_book_open(const char *run, const char *address, const char *coordinator, tt_book *out)
{
    char path[4200];
    tt_bytes text = {0};
    tt_err err = TT_OK;

    *out = (tt_book){.fd = -1, .lock = -1};
    snprintf(out->run, sizeof out->run, "%s", run);
    if ((err = take_run(out, address, coordinator))) return err;
    snprintf(path, sizeof path, "%s/generation", run);
    if (tt_file_exists(path)) {
        if ((err = tt_file_read(path, 64, &text))) return err;
        out->generation = text.size ? atoi((const char *)text.data) : 0;
        tt_file_release(&text);
    }
    snprintf(path, sizeof path, "%s/ledger.jsonl", run);
    if (tt_file_exists(path)) {
        if ((err = tt_file_read(path, 0, &text))) return err;
        err = tt_ledger_read(&out->ledger, (const char *)text.data, text.size);
        if (err) tt_context(err, "%s", path);
        if (!err && coordinator && tt_file_write(path, text.data, text.size)) lament(out);
        tt_file_release(&text);
        if (err) return err;
    }
    if ((int)out->ledger.generation > out->generation)
        out->generation = (int)out->ledger.generation;
    out->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (out->fd < 0) {
        tt_fail(TT_EIO, "open %s: %s", path, strerror(errno));
        lament(out);
    } else { /* a torn last line never counted: the next begins a line of its own */
        char last = '\n';
        off_t end = lseek(out->fd, 0, SEEK_END);
        if (end > 0 && pread(out->fd, &last, 1, end - 1) == 1 && last != '\n')
            (void)!write(out->fd, "\n", 1);
    }
    return TT_OK;
}

void tt_book_persist(tt_book *b, int generation)
{
    char path[4200], text[32];

    b->generation = generation;
    snprintf(path, sizeof path, "%s/generation", b->run);
    snprintf(text, sizeof text, "%d\n", generation);
    if (tt_file_write(path, text, strlen(text))) lament(b);
}

const char *tt_book_record(tt_book *b, const tt_record *r, bool safe)
{
    const char *wrong = tt_ledger_take(&b->ledger, r);
    tt_str line = {0};

    tt_record_print(r, &line);
    if (b->fd >= 0 &&
        (write(b->fd, line.data, line.size) != (ssize_t)line.size || (safe && fdatasync(b->fd)))) {
        tt_fail(TT_EIO, "write %s/ledger.jsonl: %s", b->run, strerror(errno));
        lament(b);
    }
    tt_str_free(&line);
    return wrong;
}

void tt_book_close(tt_book *b)
{
    if (b->fd >= 0) close(b->fd);
    if (b->lock >= 0) close(b->lock);
    b->fd = b->lock = -1;
}
