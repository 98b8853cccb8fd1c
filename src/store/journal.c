/* journal: the metrics of a run, one JSON object per line.
 *
 * A line is put together in a fixed buffer and written by one call, so a process that dies tears at
 * most the line it was writing; a disk that fills up tears none, because the piece is cut off
 * again. */
#define _GNU_SOURCE
#include "inner.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MOST = 64 << 10 };

struct tt_journal {
    int fd;
    char path[4096];
    int64_t end; /* of the last whole line */
    bool torn;   /* a piece of a line lies beyond `end` and could not be cut off yet */
    bool full;   /* the line in the making is too long */
    size_t size;
    char line[LINE_MOST];
};

/* ---- opening ---- */

/* The step of a line as this program writes it, {"t":1.5,"step":20 and so on; -1: it is none. To
 * parse all the lines of a long run takes seconds, in which nobody trains. */
static int64_t plain_step(const char *line, size_t size)
{
    static const char front[] = "{\"t\":", middle[] = ",\"step\":";
    const char *at = line + sizeof front - 1, *end = line + size;
    int64_t n = 0;

    if (size < 64 || memcmp(line, front, sizeof front - 1)) return -1;
    while (at < end - 40 && strchr("0123456789.", *at)) at++;
    if (memcmp(at, middle, sizeof middle - 1)) return -1;
    at += sizeof middle - 1;
    for (int digits = 0; at < end && *at >= '0' && *at <= '9'; at++, digits++) {
        if (digits == 18) return -1;
        n = 10 * n + (*at - '0');
    }
    return at < end && *at == ',' ? n : -1;
}

/* The "step" of a line, or -1 if it has none (the header) or is no JSON. */
static int64_t step_of(const char *line, size_t size)
{
    int64_t plain = plain_step(line, size);
    if (plain >= 0) return plain;

    json_t *root = json_loadb(line, size, 0, NULL);
    const json_t *step = json_object_get(root, "step");
    int64_t n = json_is_integer(step) ? json_integer_value(step) : -1;

    json_decref(root);
    return n;
}

/* Copies the lines up to after_step to *kept. */
static void keep_lines(const char *text, size_t size, int64_t after_step, tt_str *kept)
{
    for (size_t at = 0, n; at < size; at += n) {
        n = (size_t)((const char *)memchr(text + at, '\n', size - at) - (text + at)) + 1;
        if (step_of(text + at, n) <= after_step) tt_str_put(kept, text + at, n);
    }
}

/* Leaves whole lines in the file, and of those only the ones that still count. */
static tt_err mend(const char *path, int64_t after_step)
{
    tt_bytes b = {0};
    tt_str kept = {0};
    const char *text, *end;
    size_t size;
    tt_err err = TT_OK;

    if (!tt_file_exists(path)) return TT_OK;
    if ((err = tt_file_read(path, 0, &b))) return err;
    text = (const char *)b.data;
    size = b.size;
    /* A machine that lost power may leave zeros where a line was to be. */
    if (size && (end = memchr(text, 0, size))) size = (size_t)(end - text);
    while (size && text[size - 1] != '\n') size--;
    if (after_step >= 0) {
        keep_lines(text, size, after_step, &kept);
        if (kept.size != size && memcmp(kept.data ? kept.data : "", text, kept.size)) {
            err = tt_file_write(path, kept.data, kept.size);
            goto out;
        }
        size = kept.size;
    }
    /* What goes is at the end, so readers may keep the file open. */
    if (size != b.size && truncate(path, (off_t)size))
        err = tt_fail(TT_EIO, "cut %s to its last whole line: %s", path, strerror(errno));
out:
    tt_str_free(&kept);
    tt_file_release(&b);
    return err;
}

/* ---- putting a line together ---- */

static void add(tt_journal *j, const char *bytes, size_t size)
{
    if (size > sizeof j->line - j->size) {
        j->full = true;
        return;
    }
    memcpy(j->line + j->size, bytes, size);
    j->size += size;
}

static void add_text(tt_journal *j, const char *s)
{
    add(j, s, strlen(s));
}

static void add_string(tt_journal *j, const char *s)
{
    const char *end = s + strlen(s);

    add_text(j, "\"");
    for (const char *p = s; p < end;) {
        size_t n = tt_utf8_size(p, (size_t)(end - p));
        char code[8];
        if (n == 0) {
            add_text(j, "\xEF\xBF\xBD"); /* U+FFFD: there was something */
            n = 1;
        } else if (*p == '"' || *p == '\\') {
            add(j, (char[]){'\\', *p}, 2);
        } else if (n == 1 && *p < 0x20) {
            snprintf(code, sizeof code, "\\u%04x", (unsigned)*p);
            add_text(j, code);
        } else {
            add(j, p, n);
        }
        p += n;
    }
    add_text(j, "\"");
}

/* The shorter of 15 and 17 digits that is still the same number. */
static void add_number(tt_journal *j, double x)
{
    char text[40];

    snprintf(text, sizeof text, "%.15g", x);
    if (strtod(text, NULL) != x) snprintf(text, sizeof text, "%.17g", x);
    for (char *p = text; *p; p++)
        if (*p == ',') *p = '.'; /* some locales */
    add_text(j, text);
}

static void add_key(tt_journal *j, const char *key)
{
    if (j->size > 1) add_text(j, ",");
    add_string(j, key);
    add_text(j, ":");
}

static void begin(tt_journal *j)
{
    j->size = 0;
    j->full = false;
    add_text(j, "{");
}

static void add_time_and_step(tt_journal *j, int64_t step)
{
    char text[40];

    add_key(j, "t");
    add_number(j, rint(tt_wall_s() * 1000) / 1000);
    if (step < 0) return;
    add_key(j, "step");
    snprintf(text, sizeof text, "%lld", (long long)step);
    add_text(j, text);
}

static tt_err commit(tt_journal *j)
{
    size_t done;
    int why;

    add_text(j, "}\n");
    if (j->full)
        return tt_fail(TT_EINVAL, "%s: a line of more than %d bytes is not written", j->path,
                       LINE_MOST);
    if (j->torn && ftruncate(j->fd, j->end))
        return tt_fail(TT_EIO, "write %s: %s", j->path, strerror(errno));
    j->torn = false;
    done = 0;
    errno = TT_FAILPOINT("journal.write");
    if (!errno && tt_write_all(j->fd, j->line, j->size, &done)) {
        TT_FAILPOINT("journal.written");
        j->end += (int64_t)j->size;
        return TT_OK;
    }
    why = errno;
    j->torn = done && ftruncate(j->fd, j->end);
    return tt_fail(TT_EIO, "write %s: %s", j->path, strerror(why));
}

/* ---- the calls ---- */

static tt_err write_header(tt_journal *j)
{
    begin(j);
    add_key(j, "type");
    add_string(j, "header");
    add_key(j, "schema");
    add_text(j, "1");
    add_time_and_step(j, -1);
    return commit(j);
}

tt_err tt_journal_open(const char *path, int64_t after_step, tt_journal **out)
{
    tt_err err;
    tt_journal *j = calloc(1, sizeof *j);

    *out = NULL;
    if (!j) return tt_fail(TT_ENOMEM, "journal %s: no memory", path);
    j->fd = -1;
    if (snprintf(j->path, sizeof j->path, "%s", path) >= (int)sizeof j->path) {
        err = tt_fail(TT_EINVAL, "%.200s...: the path is too long", path);
        goto out;
    }
    if ((err = mend(path, after_step))) goto out;
    TT_FAILPOINT("journal.mended");
    j->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    j->end = j->fd < 0 ? -1 : lseek(j->fd, 0, SEEK_END);
    if (j->end < 0) {
        err = tt_fail(TT_EIO, "open %s: %s", path, strerror(errno));
        goto out;
    }
    if (j->end == 0 && ((err = tt_parent_sync(path)) || (err = write_header(j)))) goto out;
    *out = j;
    j = NULL;
out:
    tt_journal_close(j);
    return err;
}

/* NaN and infinities are no JSON: null stands for them, and a list says which they were. */
static void add_fields(tt_journal *j, const tt_field *field, int count)
{
    bool any = false;

    for (int i = 0; i < count; i++) {
        add_key(j, field[i].name);
        if (isfinite(field[i].value))
            add_number(j, field[i].value);
        else
            add_text(j, "null");
    }
    for (int i = 0; i < count; i++) {
        if (isfinite(field[i].value)) continue;
        if (!any) add_key(j, "nonfinite");
        add_text(j, any ? "," : "[");
        add_string(j, field[i].name);
        any = true;
    }
    if (any) add_text(j, "]");
}

tt_err tt_journal_line(tt_journal *j, int64_t step, const char *split, const tt_field *field,
                       int count)
{
    begin(j);
    add_time_and_step(j, step);
    if (split) {
        add_key(j, "split");
        add_string(j, split);
    }
    add_fields(j, field, count);
    return commit(j);
}

tt_err tt_journal_event(tt_journal *j, int64_t step, const char *what, const char *sentence)
{
    begin(j);
    add_time_and_step(j, step);
    add_key(j, "event");
    add_string(j, what);
    add_key(j, "text");
    add_string(j, sentence);
    return commit(j);
}

tt_err tt_journal_flush(tt_journal *j)
{
    if (!fdatasync(j->fd) || errno == EINVAL) return TT_OK; /* EINVAL: a pipe or a terminal */
    return tt_fail(TT_EIO, "write %s: %s", j->path, strerror(errno));
}

void tt_journal_close(tt_journal *j)
{
    if (!j) return;
    if (j->fd >= 0) {
        if (tt_journal_flush(j)) tt_warn("%s", tt_message());
        close(j->fd);
    }
    free(j);
}
