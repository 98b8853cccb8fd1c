/* book: what must outlive a supervisor: the generation, and the ledger of the run.
 *
 * Both are in the run folder. The generation is safe on disk before a world gets it; a line of the
 * ledger is, before the world it is about writes anything. A disk that fails does not end a
 * training: the judge goes on in memory, the trouble is told, and what could not be written is
 * written, in order, as soon as it can be.
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

static const double AGAIN_S = 1;

static void lament(tt_book *b)
{
    if (!b->troubled)
        snprintf(b->alarm, sizeof b->alarm,
                 "%.600s; the training goes on, but another supervisor would not know of it",
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

static void rejoice(tt_book *b)
{
    if (!b->troubled || b->owes || b->owed.size) return;
    b->troubled = false;
    snprintf(b->alarm, sizeof b->alarm,
             "the supervisor's files are written again: nothing is lost");
}

/* One supervisor at a time has a run; the file says who, and how it is reached. */
static tt_err take_run(tt_book *b, const tt_book_opts *o)
{
    char path[4200], before[256] = "", host[256] = "", rooms[TT_ROOMS], *line;
    json_t *about, *other;
    bool held, ours;
    int pid;
    tt_err err;

    snprintf(path, sizeof path, "%s/supervisor.json", b->run);
    if ((err = open_locked(path, &b->lock, &held))) return err;
    other = json_load_file(path, 0, NULL);
    pid = tt_number_of(other, "pid");
    snprintf(before, sizeof before, "%s", tt_text_of(other, "host"));
    ours = o->coordinator && !strcmp(tt_text_of(other, "coordinator"), o->coordinator);
    snprintf(rooms, sizeof rooms, "%s", tt_text_of(other, "rooms"));
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
                       before);
    gethostname(host, sizeof host - 1);
    /* One before that was killed, and its keepers with it, had nobody to clear up after it. */
    if (!strcmp(before, host) && tt_rooms_valid(rooms)) tt_rooms_remove(rooms);
    about =
        json_pack("{s:i, s:s, s:s, s:f, s:s, s:s}", "pid", (int)getpid(), "host", host, "address",
                  o->address, "since", tt_wall_s(), "rooms", o->rooms ? o->rooms : "",
                  "coordinator", o->coordinator ? o->coordinator : "");
    line = about ? json_dumps(about, JSON_COMPACT) : NULL;
    json_decref(about);
    if (!line) return tt_fail(TT_ENOMEM, "no memory for %s", path);
    if (ftruncate(b->lock, 0) || pwrite(b->lock, line, strlen(line), 0) != (ssize_t)strlen(line)) {
        tt_fail(TT_EIO, "write %s: %s", path, strerror(errno));
        lament(b); /* for good: it says who we are to those who ask, and no more */
        b->troubled = false;
    }
    free(line);
    return TT_OK;
}

/* A torn last line never counted, and must not become a line by the next one's beginning. */
static tt_err open_ledger(tt_book *b, const char *path, size_t whole)
{
    b->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (b->fd < 0) return tt_fail(TT_EIO, "open %s: %s", path, strerror(errno));
    b->end = (int64_t)whole;
    if (lseek(b->fd, 0, SEEK_END) == b->end || !ftruncate(b->fd, b->end)) return TT_OK;
    return tt_fail(TT_EIO, "cut %s to its last whole line: %s", path, strerror(errno));
}

/* All that is owed, or none of it. */
static void write_owed(tt_book *b, bool safe)
{
    size_t done = 0;
    int why;

    if (!b->owed.size) return;
    errno = EBADF;
    if (b->fd >= 0 && lseek(b->fd, 0, SEEK_END) != b->end && ftruncate(b->fd, b->end)) goto fail;
    if ((errno = TT_FAILPOINT("book.record"))) goto fail;
    if (!tt_write_all(b->fd, b->owed.data, b->owed.size, &done)) goto fail;
    if (safe && fdatasync(b->fd)) goto fail;
    b->end += (int64_t)b->owed.size;
    b->owed.size = 0;
    TT_FAILPOINT("book.recorded");
    rejoice(b);
    return;
fail:
    why = errno;
    if (done) (void)!ftruncate(b->fd, b->end); /* else the next attempt cuts it off */
    tt_fail(TT_EIO, "write %s/ledger.jsonl: %s", b->run, strerror(why));
    lament(b);
}

tt_err tt_book_open(const char *run, const tt_book_opts *o, tt_book *out)
{
    char path[4200];
    tt_bytes text = {0};
    tt_err err = TT_OK;
    size_t whole = 0;

    *out = (tt_book){.fd = -1, .lock = -1};
    snprintf(out->run, sizeof out->run, "%s", run);
    if ((err = take_run(out, o))) return err;
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
        if (!err && o->coordinator && tt_file_write(path, text.data, text.size)) lament(out);
        for (whole = text.size; whole && text.data[whole - 1] != '\n';) whole--;
        tt_file_release(&text);
        if (err) return err;
    }
    if ((int)out->ledger.generation > out->generation)
        out->generation = (int)out->ledger.generation;
    return open_ledger(out, path, whole);
}

static void write_generation(tt_book *b)
{
    char path[4200], text[32];
    int why = TT_FAILPOINT("book.persist");

    snprintf(path, sizeof path, "%s/generation", b->run);
    snprintf(text, sizeof text, "%d\n", b->generation);
    b->owes = (why ? tt_fail(TT_EIO, "writing %s: %s", path, strerror(why))
                   : tt_file_write(path, text, strlen(text))) != TT_OK;
    if (b->owes) {
        lament(b);
        return;
    }
    TT_FAILPOINT("book.persisted");
    rejoice(b);
}

void tt_book_persist(tt_book *b, int generation)
{
    b->generation = generation;
    write_generation(b);
}

const char *tt_book_record(tt_book *b, const tt_record *r, bool safe)
{
    const char *wrong = tt_ledger_take(&b->ledger, r);

    tt_record_print(r, &b->owed);
    write_owed(b, safe);
    return wrong;
}

bool tt_book_news(tt_book *b, char out[768])
{
    double now = tt_clock_s();

    if (b->troubled && !*b->alarm && now - b->tried >= AGAIN_S) {
        b->tried = now;
        if (b->owes) write_generation(b);
        write_owed(b, true);
    }
    if (!*b->alarm) return false;
    snprintf(out, 768, "%s", b->alarm);
    *b->alarm = 0;
    return true;
}

void tt_book_close(tt_book *b)
{
    write_owed(b, true);
    if (b->owed.size) tt_warn("%s/ledger.jsonl lacks its end: the disk did not take it", b->run);
    tt_str_free(&b->owed);
    if (b->fd >= 0) close(b->fd);
    if (b->lock >= 0) close(b->lock);
    b->fd = b->lock = -1;
}
