/* events: scalars for TensorBoard.
 *
 * A record is u64 length | u32 crc of the length | data | u32 crc of the data; the data is a
 * protobuf message Event. We write three kinds of field, so the encoder is written out by hand.
 * Records gather in a fixed buffer; a reader that meets a torn last record waits for the rest of
 * it. */
#define _GNU_SOURCE
#include "inner.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { BUFFER = 64 << 10, TAG_MOST = 1024, FRAME = 16, TRIES = 1000, FLUSH_S = 10 };
enum { GO_ON_MOST = 256 << 20 }; /* bytes of a file that is gone on with: it is read when opened */

struct tt_events {
    int fd;
    char path[4096];
    double flushed; /* tt_clock_s of the last write */
    size_t size;
    uint8_t buffer[BUFFER];
};

/* ---- encoding ---- */

/* CRCs of data that holds CRCs are weak; the format therefore stores them rotated and shifted. */
static uint32_t masked_crc(const void *data, size_t size)
{
    uint32_t c = tt_crc32c(data, size);
    return (c >> 15 | c << 17) + 0xA282EAD8u;
}

static uint8_t *put_varint(uint8_t *p, uint64_t v)
{
    for (; v > 127; v >>= 7) *p++ = (uint8_t)(v | 128);
    *p++ = (uint8_t)v;
    return p;
}

static size_t varint_size(uint64_t v)
{
    size_t n = 1;
    while (v >>= 7) n++;
    return n;
}

static uint8_t *put_bytes(uint8_t *p, const void *data, size_t size)
{
    memcpy(p, data, size);
    return p + size;
}

/* Field numbers and wire types in one byte: number << 3 | type. */
enum {
    EVENT_WALL_TIME = 1 << 3 | 1,
    EVENT_STEP = 2 << 3 | 0,
    EVENT_VERSION = 3 << 3 | 2,
    EVENT_SUMMARY = 5 << 3 | 2,
    SUMMARY_VALUE = 1 << 3 | 2,
    VALUE_TAG = 1 << 3 | 2,
    VALUE_SIMPLE = 2 << 3 | 5,
};

/* Puts length and checksums around the message that lies at out + 12 and ends at `end`. */
static size_t frame(uint8_t *out, uint8_t *end)
{
    uint64_t size = (uint64_t)(end - out - 12);
    uint32_t crc;

    memcpy(out, &size, 8);
    crc = masked_crc(out, 8);
    memcpy(out + 8, &crc, 4);
    crc = masked_crc(out + 12, size);
    memcpy(end, &crc, 4);
    return size + FRAME;
}

size_t tt_event_version(uint8_t *out, size_t room, double wall_s)
{
    static const char version[] = "brain.Event:2";
    uint8_t *p = out + 12;

    if (room < FRAME + 9 + 2 + sizeof version) return 0;
    *p++ = EVENT_WALL_TIME;
    p = put_bytes(p, &wall_s, 8);
    *p++ = EVENT_VERSION;
    p = put_varint(p, sizeof version - 1);
    p = put_bytes(p, version, sizeof version - 1);
    return frame(out, p);
}

size_t tt_event_scalar(uint8_t *out, size_t room, double wall_s, int64_t step, const char *tag,
                       float value)
{
    size_t tag_size = strlen(tag);
    size_t inner = 1 + varint_size(tag_size) + tag_size + 1 + 4;
    size_t outer = 1 + varint_size(inner) + inner;
    uint8_t *p = out + 12;

    if (room < FRAME + 9 + 11 + 1 + varint_size(outer) + outer) return 0;
    *p++ = EVENT_WALL_TIME;
    p = put_bytes(p, &wall_s, 8);
    *p++ = EVENT_STEP;
    p = put_varint(p, (uint64_t)step);
    *p++ = EVENT_SUMMARY;
    p = put_varint(p, outer);
    *p++ = SUMMARY_VALUE;
    p = put_varint(p, inner);
    *p++ = VALUE_TAG;
    p = put_varint(p, tag_size);
    p = put_bytes(p, tag, tag_size);
    *p++ = VALUE_SIMPLE;
    p = put_bytes(p, &value, 4);
    return frame(out, p);
}

/* ---- the file ---- */

/* The length of the record that begins here, if it is whole; 0: it is torn, or none. */
static size_t record_at(const uint8_t *at, size_t room)
{
    uint64_t n;
    uint32_t crc;

    if (room < FRAME) return 0;
    memcpy(&n, at, 8);
    memcpy(&crc, at + 8, 4);
    return crc == masked_crc(at, 8) && n <= room - FRAME ? (size_t)n + FRAME : 0;
}

/* Leaves whole records in the file; false if it has none, or cannot be cut. */
static bool cut_torn(int fd)
{
    struct stat st;
    size_t size, at = 0, last = 0, n;
    uint32_t crc;
    uint8_t *b;

    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || !st.st_size || st.st_size > GO_ON_MOST)
        return false;
    size = (size_t)st.st_size;
    b = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (b == MAP_FAILED) return false;
    for (; (n = record_at(b + at, size - at)); at += n) last = at;
    if (at) { /* a machine that lost power may leave zeros for the data of the last one */
        memcpy(&crc, b + at - 4, 4);
        if (crc != masked_crc(b + last + 12, at - last - FRAME)) at = last;
    }
    munmap(b, size);
    return at && (at == size || !ftruncate(fd, (off_t)at));
}

/* One file of a run, however many worlds train it: the newest there is, unless somebody has it. */
static bool go_on(tt_events *e, const char *folder)
{
    static const char front[] = "events.out.tfevents.";
    char **names;
    int count;

    if (tt_dir_list(folder, &names, &count)) return false;
    for (int i = 0; i < count; i++) /* they are sorted, and the time is in the name */
        if (!strncmp(names[i], front, sizeof front - 1))
            snprintf(e->path, sizeof e->path, "%s/%s", folder, names[i]);
    tt_dir_free(names, count);
    if (!*e->path) return false;
    e->fd = open(e->path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (e->fd >= 0 && !flock(e->fd, LOCK_EX | LOCK_NB) && cut_torn(e->fd)) return true;
    if (e->fd >= 0) close(e->fd);
    e->fd = -1;
    return false;
}

static tt_err create_file(tt_events *e, const char *folder)
{
    char host[256] = "";

    gethostname(host, sizeof host - 1);
    for (int n = 0; n < TRIES; n++) {
        if (snprintf(e->path, sizeof e->path, "%s/events.out.tfevents.%010lld.%s.%d.%d", folder,
                     (long long)tt_wall_s(), *host ? host : "localhost", (int)getpid(),
                     n) >= (int)sizeof e->path)
            return tt_fail(TT_EINVAL, "%.200s...: the path is too long", folder);
        e->fd = open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (e->fd >= 0) {
            flock(e->fd, LOCK_EX | LOCK_NB); /* nobody else has it yet */
            return tt_dir_sync(folder);
        }
        if (errno != EEXIST) break;
    }
    return tt_fail(TT_EIO, "create %s: %s", e->path, strerror(errno));
}

tt_err tt_events_open(const char *folder, tt_events **out)
{
    tt_err err;
    tt_events *e = calloc(1, sizeof *e);

    *out = NULL;
    if (!e) return tt_fail(TT_ENOMEM, "events in %s: no memory", folder);
    e->fd = -1;
    if ((err = tt_dir_make(folder))) goto out;
    if (go_on(e, folder)) {
        e->flushed = tt_clock_s();
        *out = e;
        return TT_OK;
    }
    if ((err = create_file(e, folder))) goto out;
    e->size = tt_event_version(e->buffer, sizeof e->buffer, tt_wall_s());
    if ((err = tt_events_flush(e))) { /* so that TensorBoard knows the file for what it is */
        e->size = 0;
        unlink(e->path);
        goto out;
    }
    *out = e;
    e = NULL;
out:
    tt_events_close(e);
    return err;
}

tt_err tt_events_flush(tt_events *e)
{
    size_t done;
    bool fine = tt_write_all(e->fd, e->buffer, e->size, &done);
    int why = errno;

    /* What was written stays written, even half a record: the rest follows with the next flush. */
    memmove(e->buffer, e->buffer + done, e->size - done);
    e->size -= done;
    e->flushed = tt_clock_s();
    return fine ? TT_OK : tt_fail(TT_EIO, "write %s: %s", e->path, strerror(why));
}

tt_err tt_events_scalar(tt_events *e, int64_t step, const char *tag, double value)
{
    size_t n;
    tt_err err;

    if (!*tag || strlen(tag) > TAG_MOST)
        return tt_fail(TT_EINVAL, "a tag for TensorBoard has 1 to %d bytes: \"%.80s\"", TAG_MOST,
                       tag);
    n = tt_event_scalar(e->buffer + e->size, sizeof e->buffer - e->size, tt_wall_s(), step, tag,
                        (float)value);
    if (!n) {
        if ((err = tt_events_flush(e))) return err;
        n = tt_event_scalar(e->buffer, sizeof e->buffer, tt_wall_s(), step, tag, (float)value);
    }
    e->size += n;
    return tt_clock_s() - e->flushed < FLUSH_S ? TT_OK : tt_events_flush(e);
}

void tt_events_close(tt_events *e)
{
    if (!e) return;
    if (e->fd >= 0) {
        if (tt_events_flush(e)) tt_warn("%s", tt_message());
        close(e->fd);
    }
    free(e);
}
