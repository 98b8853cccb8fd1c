/* Inflating straight into memory of the right size.
 *
 * A stream ends with the size of its content, modulo 2^32 and unauthenticated: good enough for a
 * first guess of the room, which then is filled in one go, without growing and copying. Where
 * libdeflate is there it does that twice as fast as zlib; whatever it does not like (several
 * members, damage, more than was expected) zlib goes through again, as the judge who names the
 * place. */
#include "gzip.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#ifdef TT_HAVE_DEFLATE
#include <libdeflate.h>
#endif

#include "mem.h"

enum {
    MOST_RATIO = 1032, /* no deflate stream grows by more */
    LEAST_ROOM = 1 << 16,
    GZIP_BITS = 15 + 16, /* zlib: any window, gzip wrapping */
};

bool tt_gzip_is(const uint8_t *data, size_t size)
{
    return size >= 2 && data[0] == 0x1f && data[1] == 0x8b;
}

tt_err tt_too_large(const char *path, tt_bound bound)
{
    return tt_fail(TT_EFORMAT, "%s: its content is larger than the %zu bytes %s", path, bound.most,
                   bound.why);
}

size_t tt_gzip_peek(const tt_bytes *in, uint8_t *head, size_t room)
{
    z_stream z = {0};

    if (inflateInit2(&z, GZIP_BITS) != Z_OK) return 0;
    z.next_in = (Bytef *)in->data;
    z.avail_in = in->size > UINT_MAX ? UINT_MAX : (uInt)in->size;
    z.next_out = head;
    z.avail_out = (uInt)room;
    (void)inflate(&z, Z_SYNC_FLUSH);
    inflateEnd(&z);
    return room - z.avail_out;
}

/* ---- The content, while it grows ---- */

typedef struct content {
    const char *path;
    tt_bound bound;
    uint8_t *data; /* of tt_block_alloc */
    size_t size, room;
} content;

/* Room for `room` bytes, or for one more than the bound: that byte tells that there is too much. */
static tt_err make_room(content *c, size_t room)
{
    uint8_t *p;

    if (c->bound.most && room > c->bound.most) room = c->bound.most + 1;
    if (!(p = tt_block_alloc(room)))
        return tt_fail(TT_ENOMEM, "inflating %s: no memory for %zu bytes", c->path, room);
    if (c->size) memcpy(p, c->data, c->size);
    tt_block_free(c->data, c->room);
    c->data = p;
    c->room = room;
    return TT_OK;
}

static size_t guess_size(const tt_bytes *in)
{
    const uint8_t *p;
    size_t said, most = tt_mul_size(in->size, MOST_RATIO);

    if (in->size < 18) return 0; /* no whole stream is shorter */
    p = in->data + in->size - 4;
    said = (size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
    return said <= most ? said : 0;
}

/* ---- zlib ---- */

/* Where in the compressed bytes the inflater stands. */
static size_t offset_of(const z_stream *z, const tt_bytes *in)
{
    return (size_t)(z->next_in - in->data);
}

/* A gzip file is one stream or several in a row; zeros may pad it (tapes, block devices). */
static bool only_zeros(const tt_bytes *in, size_t at)
{
    while (at < in->size && in->data[at] == 0) at++;
    return at == in->size;
}

static tt_err next_member(const char *path, z_stream *z, const tt_bytes *in, bool *done)
{
    size_t at = offset_of(z, in);

    *done = only_zeros(in, at);
    if (*done) return TT_OK;
    if (in->data[at] != 0x1f || inflateReset(z) != Z_OK)
        return tt_fail(TT_EFORMAT, "%s: bytes that are no gzip follow the stream at byte %zu", path,
                       at);
    return TT_OK;
}

/* One call of inflate, and what its answer means. */
static tt_err inflate_some(content *c, z_stream *z, const tt_bytes *in, bool *done)
{
    size_t left = in->size - offset_of(z, in), slice = c->room - c->size;
    int rc;

    if (slice > UINT_MAX) slice = UINT_MAX;
    z->avail_in = left > UINT_MAX ? UINT_MAX : (uInt)left;
    z->next_out = c->data + c->size;
    z->avail_out = (uInt)slice;
    rc = inflate(z, Z_NO_FLUSH);
    c->size += slice - z->avail_out;
    if (c->bound.most && c->size > c->bound.most) return tt_too_large(c->path, c->bound);
    if (rc == Z_STREAM_END) return next_member(c->path, z, in, done);
    if (rc == Z_BUF_ERROR && offset_of(z, in) == in->size)
        return tt_fail(TT_EFORMAT, "%s: the gzip stream ends early, at byte %zu", c->path,
                       in->size);
    if (rc == Z_MEM_ERROR) return tt_fail(TT_ENOMEM, "inflating %s", c->path);
    if (rc != Z_OK && rc != Z_BUF_ERROR)
        return tt_fail(TT_EFORMAT, "%s: broken gzip stream near byte %zu: %s", c->path,
                       offset_of(z, in), z->msg ? z->msg : "it needs a dictionary");
    return TT_OK;
}

static tt_err inflate_slowly(content *c, const tt_bytes *in)
{
    z_stream z = {0};
    bool done = false;
    tt_err err = TT_OK;

    if (inflateInit2(&z, GZIP_BITS) != Z_OK) return tt_fail(TT_ENOMEM, "inflating %s", c->path);
    z.next_in = (Bytef *)in->data;
    c->size = 0;
    while (!err && !done) {
        if (c->size == c->room) err = make_room(c, tt_mul_size(c->room, 2));
        if (!err) err = inflate_some(c, &z, in, &done);
    }
    inflateEnd(&z);
    return err;
}

/* ---- libdeflate ---- */

/* One whole stream that fits, or false: then nothing is said of why. */
static bool inflate_fast(content *c, const tt_bytes *in)
{
#ifdef TT_HAVE_DEFLATE
    struct libdeflate_decompressor *d = libdeflate_alloc_decompressor();
    size_t most = c->bound.most && c->room > c->bound.most ? c->bound.most : c->room, taken = 0;
    bool ok = d && libdeflate_gzip_decompress_ex(d, in->data, in->size, c->data, most, &taken,
                                                 &c->size) == LIBDEFLATE_SUCCESS;

    if (d) libdeflate_free_decompressor(d);
    return ok && only_zeros(in, taken);
#else
    (void)c;
    (void)in;
    return false;
#endif
}

tt_err tt_gzip_inflate(const char *path, const tt_bytes *in, tt_bound bound, size_t expected,
                       tt_bytes *out)
{
    content c = {.path = path, .bound = bound};
    size_t room = expected ? expected : guess_size(in);
    tt_err err;

    if (bound.most && room > bound.most) return tt_too_large(path, bound);
    if ((err = make_room(&c, room < LEAST_ROOM ? LEAST_ROOM : room + 1))) return err;
    if (!inflate_fast(&c, in) && (err = inflate_slowly(&c, in))) {
        tt_block_free(c.data, c.room);
        return err;
    }
    *out = (tt_bytes){.data = c.data, .size = c.size, .room = c.room};
    return TT_OK;
}
