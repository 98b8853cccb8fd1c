/* book: what must outlive a supervisor: the generation, and the ledger of the run.
 *
 * Both are in the run folder. The generation is safe on disk before a world gets it; a line of the
 * ledger is, before the world it is about writes anything. A disk that fails does not end a
 * training: the judge goes on in memory, and the trouble is told once. */
#include "inner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static void lament(tt_book *b)
{
    if (!b->troubled)
        tt_warn("%s; the training goes on, but another supervisor would not know of it",
                tt_message());
    b->troubled = true;
}

/* Those that cannot be cleared away now stay in the list. */
static void clear_left(tt_book *b)
{
    for (size_t i = json_array_size(b->left); i-- > 0;)
        if (tt_leftover_clear(json_string_value(json_array_get(b->left, i))))
            json_array_remove(b->left, i);
}

/* The supervisor before this one has ended, or it would hold the lock. If it was killed, together
 * with the keepers of its worlds, there was nobody to clear up after it. */
static void list_left(tt_book *b, const json_t *before, const char *host)
{
    const char *address = tt_text_of(before, "address");
    json_t *one;
    size_t i;

    b->left = json_array();
    if (strcmp(tt_text_of(before, "host"), host)) return;
    if (tt_rooms_valid(tt_text_of(before, "rooms"))) tt_rooms_remove(tt_text_of(before, "rooms"));
    json_array_foreach(json_object_get(before, "left"), i, one) if (json_is_string(one))
        json_array_append(b->left, one);
    if (!strncmp(address, "ipc:///", 7) && strrchr(address, '/') > address + 6)
        json_array_append_new(
            b->left, json_stringn(address + 6, (size_t)(strrchr(address, '/') - (address + 6))));
    clear_left(b);
    tt_leftover_sweep();
}

/* One supervisor at a time has a run; the file says who, and how it is reached. */
static tt_err take_run(tt_book *b, const char *address, const char *rooms)
{
    char path[4200], host[256] = "", *line;
    json_t *o, *other;
    int pid, err;

    snprintf(path, sizeof path, "%s/supervisor.json", b->run);
    b->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (b->lock < 0) return tt_fail(TT_EIO, "open %s: %s", path, strerror(errno));
    while ((err = flock(b->lock, LOCK_EX | LOCK_NB)) && errno == EINTR) {
    }
    if (err) {
        if (errno != EWOULDBLOCK) return tt_fail(TT_EIO, "lock %s: %s", path, strerror(errno));
        other = json_load_file(path, 0, NULL);
        pid = tt_number_of(other, "pid");
        snprintf(host, sizeof host, "%s", tt_text_of(other, "host"));
        json_decref(other);
        return tt_fail(TT_EINVAL, "run %s is being trained by process %d on host %s", b->run, pid,
                       host);
    }
    gethostname(host, sizeof host - 1);
    other = json_load_file(path, 0, NULL);
    list_left(b, other, host);
    json_decref(other);
    o = json_pack("{s:i, s:s, s:s, s:f, s:s, s:O}", "pid", (int)getpid(), "host", host, "address",
                  address, "since", tt_wall_s(), "rooms", rooms ? rooms : "", "left", b->left);
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

tt_err tt_book_open(const char *run, const char *address, const char *rooms, tt_book *out)
{
    char path[4200];
    tt_bytes text = {0};
    tt_err err = TT_OK;

    *out = (tt_book){.fd = -1, .lock = -1};
    snprintf(out->run, sizeof out->run, "%s", run);
    if ((err = take_run(out, address, rooms))) return err;
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
        tt_file_release(&text);
        if (err) return tt_context(err, "%s", path);
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
    clear_left(b);
    json_decref(b->left);
    b->left = NULL;
    if (b->fd >= 0) close(b->fd);
    if (b->lock >= 0) close(b->lock);
    b->fd = b->lock = -1;
}
