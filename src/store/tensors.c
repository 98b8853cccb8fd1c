/* tensors: safetensors files, read by mapping and written whole or not at all.
 *
 * u64 N | N bytes of JSON | data to the end of the file. The header gives type, shape and place of
 * every tensor. A file is believed only if the places cover the data exactly, without hole or
 * overlap, and fit the shapes: then no later reader has to check anything. */
#define _GNU_SOURCE
#include "inner.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { HEADER_MOST = 100000000, RANK_MOST = 8, ALIGN = 64, CHUNK = 4 << 20 };

/* `order` is that of the reference writer: widest first, so that everything lies aligned. */
static const struct {
    const char *name;
    size_t size;
    int order;
} types[] = {
    [TT_F32] = {"F32", 4, 3},   [TT_F64] = {"F64", 8, 2}, [TT_F16] = {"F16", 2, 7},
    [TT_BF16] = {"BF16", 2, 6}, [TT_I8] = {"I8", 1, 10},  [TT_U8] = {"U8", 1, 11},
    [TT_I16] = {"I16", 2, 9},   [TT_U16] = {"U16", 2, 8}, [TT_I32] = {"I32", 4, 5},
    [TT_U32] = {"U32", 4, 4},   [TT_I64] = {"I64", 8, 1}, [TT_U64] = {"U64", 8, 0},
    [TT_B8] = {"BOOL", 1, 12},
};

size_t tt_dtype_size(tt_dtype t)
{
    TT_ASSERT((unsigned)t < (unsigned)TT_COUNT(types));
    return types[t].size;
}

const char *tt_dtype_name(tt_dtype t)
{
    TT_ASSERT((unsigned)t < (unsigned)TT_COUNT(types));
    return types[t].name;
}

/* Bytes of a shape, or false if 64 bits do not hold them. Overflows on the way to a product of 0
 * count too, as in the reference reader. */
static bool shape_bytes(tt_dtype type, int rank, const int64_t *shape, int64_t *out)
{
    int64_t n = 1;

    for (int i = 0; i < rank; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(n, shape[i], &n)) return false;
    return !__builtin_mul_overflow(n, (int64_t)types[type].size, out);
}

/* ---- reading ---- */

struct tt_tensors {
    void *map;
    size_t size;
    json_t *header; /* names and notes live here */
    json_t *notes;  /* borrowed from header, or NULL */
    tt_entry *entries;
    int *by_name;
    int count;
};

static tt_err read_type(const char *path, const char *name, const json_t *info, tt_dtype *out)
{
    const char *word = json_string_value(json_object_get(info, "dtype"));

    if (!word)
        return tt_fail(TT_EFORMAT, "%s: tensor %.200s: \"dtype\" is not a string", path, name);
    for (int i = 0; i < TT_COUNT(types); i++) {
        if (strcmp(word, types[i].name)) continue;
        *out = (tt_dtype)i;
        return TT_OK;
    }
    return tt_fail(TT_EFORMAT,
                   "%s: tensor %.200s: dtype \"%.40s\", which is not one of those read here "
                   "(F64 F32 F16 BF16, I and U of 8 to 64 bits, BOOL)",
                   path, name, word);
}

static tt_err read_shape(const char *path, const char *name, const json_t *info, tt_entry *e)
{
    const json_t *shape = json_object_get(info, "shape");
    size_t rank = json_array_size(shape);

    if (!json_is_array(shape))
        return tt_fail(TT_EFORMAT, "%s: tensor %.200s: \"shape\" is not a list", path, name);
    if (rank > RANK_MOST)
        return tt_fail(TT_EFORMAT, "%s: tensor %.200s: %zu dimensions, at most %d are read here",
                       path, name, rank, RANK_MOST);
    e->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        const json_t *n = json_array_get(shape, i);
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return tt_fail(TT_EFORMAT, "%s: tensor %.200s: dimension %zu is not a whole number",
                           path, name, i);
        e->shape[i] = json_integer_value(n);
    }
    if (!shape_bytes(e->type, e->rank, e->shape, &e->bytes))
        return tt_fail(TT_EFORMAT, "%s: tensor %.200s: the shape's size overflows 64 bits", path,
                       name);
    return TT_OK;
}

static tt_err read_entry(const char *path, const char *name, const json_t *info,
                         const uint8_t *data, int64_t data_size, tt_entry *e)
{
    const json_t *span, *begin, *end;
    json_int_t from, to;
    tt_err err;

    e->name = name;
    if (!json_is_object(info))
        return tt_fail(TT_EFORMAT, "%s: tensor %.200s: its description is not an object", path,
                       name);
    if ((err = read_type(path, name, info, &e->type))) return err;
    if ((err = read_shape(path, name, info, e))) return err;

    span = json_object_get(info, "data_offsets");
    begin = json_array_get(span, 0);
    end = json_array_get(span, 1);
    if (json_array_size(span) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return tt_fail(TT_EFORMAT,
                       "%s: tensor %.200s: \"data_offsets\" is not a list of two whole numbers",
                       path, name);
    from = json_integer_value(begin);
    to = json_integer_value(end);
    if (from < 0 || to < from || to > data_size)
        return tt_fail(TT_EFORMAT,
                       "%s: tensor %.200s: bytes %lld to %lld do not lie in the file's %lld bytes "
                       "of data",
                       path, name, (long long)from, (long long)to, (long long)data_size);
    if (to - from != e->bytes)
        return tt_fail(TT_EFORMAT, "%s: tensor %.200s: type and shape need %lld bytes, it has %lld",
                       path, name, (long long)e->bytes, (long long)(to - from));
    e->data = data + from;
    return TT_OK;
}

static int by_place(const void *a, const void *b)
{
    const tt_entry *x = a, *y = b;

    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; /* empty ones first */
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b, void *entries)
{
    const tt_entry *e = entries;
    return strcmp(e[*(const int *)a].name, e[*(const int *)b].name);
}

/* The places must cover the data exactly. */
static tt_err check_cover(const char *path, const tt_tensors *t, const uint8_t *data,
                          int64_t data_size)
{
    int64_t at = 0;

    for (int i = 0; i < t->count; i++) {
        const tt_entry *e = &t->entries[i];
        int64_t from = (const uint8_t *)e->data - data;
        if (from != at)
            return tt_fail(TT_EFORMAT,
                           "%s: tensor %.200s begins at byte %lld of the data, the one before ends "
                           "at %lld: %s",
                           path, e->name, (long long)from, (long long)at,
                           from > at ? "a hole" : "an overlap");
        at += e->bytes;
    }
    if (at != data_size)
        return tt_fail(TT_EFORMAT, "%s: %lld bytes after the last tensor belong to none", path,
                       (long long)(data_size - at));
    return TT_OK;
}

static tt_err check_notes(const char *path, json_t *notes)
{
    const char *key;
    json_t *value;

    if (!json_is_object(notes))
        return tt_fail(TT_EFORMAT, "%s: __metadata__ is not an object", path);
    json_object_foreach(notes, key, value) if (!json_is_string(value)) return tt_fail(
        TT_EFORMAT, "%s: __metadata__ %.200s is not a string", path, key);
    return TT_OK;
}

static tt_err read_entries(const char *path, tt_tensors *t, const uint8_t *data, int64_t data_size)
{
    size_t room = json_object_size(t->header) + 1;
    const char *name;
    json_t *info;
    tt_err err;

    if (room > INT32_MAX) return tt_fail(TT_EFORMAT, "%s: too many tensors", path);
    t->entries = calloc(room, sizeof *t->entries);
    t->by_name = calloc(room, sizeof *t->by_name);
    if (!t->entries || !t->by_name) return tt_fail(TT_ENOMEM, "%s: no memory for its list", path);
    json_object_foreach(t->header, name, info)
    {
        if (!strcmp(name, "__metadata__")) {
            if ((err = check_notes(path, info))) return err;
            t->notes = info;
            continue;
        }
        if ((err = read_entry(path, name, info, data, data_size, &t->entries[t->count])))
            return err;
        t->count++;
    }
    qsort(t->entries, (size_t)t->count, sizeof *t->entries, by_place);
    for (int i = 0; i < t->count; i++) t->by_name[i] = i;
    qsort_r(t->by_name, (size_t)t->count, sizeof *t->by_name, by_name, t->entries);
    return check_cover(path, t, data, data_size);
}

static tt_err read_header(const char *path, tt_tensors *t)
{
    const uint8_t *bytes = t->map;
    const char *text = (const char *)bytes + 8;
    uint64_t n;
    size_t end;
    json_error_t e;

    memcpy(&n, bytes, 8);
    if (n > HEADER_MOST)
        return tt_fail(TT_EFORMAT,
                       "%s: byte 0: a header of %llu bytes, the format allows %d: no safetensors "
                       "file",
                       path, (unsigned long long)n, HEADER_MOST);
    if (n > t->size - 8)
        return tt_fail(TT_EFORMAT, "%s: byte 0: a header of %llu bytes in a file of %zu: cut short",
                       path, (unsigned long long)n, t->size);
    if (n == 0 || text[0] != '{')
        return tt_fail(TT_EFORMAT, "%s: byte 8: the header does not begin with {", path);
    for (end = n; text[end - 1] == ' '; end--) {
    } /* stops at the { at the latest */
    if (text[end - 1] != '}')
        return tt_fail(TT_EFORMAT, "%s: byte %zu: the header does not end with } and spaces", path,
                       8 + end - 1);
    t->header = json_loadb(text, end, JSON_REJECT_DUPLICATES, &e);
    if (!t->header)
        return tt_fail(TT_EFORMAT, "%s: byte %d: the header is not JSON: %s", path, 8 + e.position,
                       e.text);
    return read_entries(path, t, bytes + 8 + n, (int64_t)(t->size - 8 - n));
}

static tt_err map_file(const char *path, tt_tensors *t)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    tt_err err = TT_OK;

    if (fd < 0) return tt_fail(TT_EIO, "open %s: %s", path, strerror(errno));
    if (fstat(fd, &st))
        err = tt_fail(TT_EIO, "look at %s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        err = tt_fail(TT_EIO, "%s is not a plain file", path);
    else if (st.st_size < 8)
        err = tt_fail(TT_EFORMAT, "%s: %lld bytes are too few for a safetensors file", path,
                      (long long)st.st_size);
    if (err) goto out;
    t->map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (t->map == MAP_FAILED) {
        t->map = NULL;
        err = tt_fail(errno == ENOMEM ? TT_ENOMEM : TT_EIO, "map %s: %s", path, strerror(errno));
        goto out;
    }
    t->size = (size_t)st.st_size;
out:
    close(fd);
    return err;
}

tt_err tt_tensors_open(const char *path, tt_tensors **out)
{
    tt_err err;
    tt_tensors *t = calloc(1, sizeof *t);

    *out = NULL;
    if (!t) return tt_fail(TT_ENOMEM, "open %s: no memory", path);
    if ((err = map_file(path, t))) goto out;
    if ((err = read_header(path, t))) goto out;
    *out = t;
    t = NULL;
out:
    tt_tensors_close(t);
    return err;
}

void tt_tensors_close(tt_tensors *t)
{
    if (!t) return;
    free(t->by_name);
    free(t->entries);
    json_decref(t->header);
    if (t->map) munmap(t->map, t->size);
    free(t);
}

int tt_tensors_count(const tt_tensors *t)
{
    return t->count;
}

const tt_entry *tt_tensors_at(const tt_tensors *t, int i)
{
    TT_ASSERT(i >= 0 && i < t->count);
    return &t->entries[i];
}

const tt_entry *tt_tensors_find(const tt_tensors *t, const char *name)
{
    int low = 0, high = t->count;

    while (low < high) {
        int mid = low + (high - low) / 2;
        const tt_entry *e = &t->entries[t->by_name[mid]];
        int side = strcmp(name, e->name);
        if (!side) return e;
        if (side < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

const char *tt_tensors_note(const tt_tensors *t, const char *key)
{
    return json_string_value(json_object_get(t->notes, key));
}

/* ---- numbers ---- */

tt_err tt_entry_floats(const tt_entry *e, float *out, int64_t n)
{
    const char *from = e->data; /* of any alignment: a foreign file may put it anywhere */
    int64_t size = (int64_t)tt_dtype_size(e->type);

    if (e->type != TT_F32 && e->type != TT_F64 && e->type != TT_F16 && e->type != TT_BF16)
        return tt_fail(TT_ECKPT, "tensor %.200s is of type %s, not floating point", e->name,
                       tt_dtype_name(e->type));
    if (e->bytes / size != n)
        return tt_fail(TT_ECKPT, "tensor %.200s has %lld numbers, %lld are wanted", e->name,
                       (long long)(e->bytes / size), (long long)n);
    if (e->type == TT_F32) {
        if (n) memcpy(out, from, (size_t)n * 4);
        return TT_OK;
    }
    for (int64_t i = 0; i < n; i++, from += size) {
        double wide;
        uint16_t half;
        if (e->type == TT_F64) {
            memcpy(&wide, from, 8);
            out[i] = (float)wide;
            continue;
        }
        memcpy(&half, from, 2);
        if (e->type == TT_F16) {
            out[i] = tt_half(half);
        } else {
            uint32_t bits = (uint32_t)half << 16;
            memcpy(&out[i], &bits, 4);
        }
    }
    return TT_OK;
}

/* A number is finite unless all its exponent bits are set. Works on blocks without an early way
 * out, so that the compiler can use vectors. */
#define FINITE_SCAN(type, exponent)                                                                \
    static bool finite_##type(const type *x, int64_t n)                                            \
    {                                                                                              \
        for (int64_t at = 0; at < n; at += 4096) {                                                 \
            int64_t end = n - at < 4096 ? n : at + 4096;                                           \
            unsigned bad = 0;                                                                      \
            for (int64_t i = at; i < end; i++) bad |= (x[i] & (exponent)) == (exponent);           \
            if (bad) return false;                                                                 \
        }                                                                                          \
        return true;                                                                               \
    }
FINITE_SCAN(uint64_t, 0x7FF0000000000000u)
FINITE_SCAN(uint32_t, 0x7F800000u)

static bool finite_half(const uint16_t *x, int64_t n, uint16_t exponent)
{
    for (int64_t i = 0; i < n; i++)
        if ((x[i] & exponent) == exponent) return false;
    return true;
}

const char *tt_entries_nonfinite(const tt_entry *entries, int count)
{
    for (int i = 0; i < count; i++) {
        const tt_entry *e = &entries[i];
        int64_t n = e->bytes / (int64_t)tt_dtype_size(e->type);
        bool fine = true;
        switch (e->type) {
        case TT_F64:
            fine = finite_uint64_t(e->data, n);
            break;
        case TT_F32:
            fine = finite_uint32_t(e->data, n);
            break;
        case TT_F16:
            fine = finite_half(e->data, n, 0x7C00);
            break;
        case TT_BF16:
            fine = finite_half(e->data, n, 0x7F80);
            break;
        default:
            break;
        }
        if (!fine) return e->name;
    }
    return NULL;
}

/* ---- writing ---- */

static tt_err check_entry(const tt_entry *e)
{
    int64_t bytes;

    if (!e->name || !*e->name) return tt_fail(TT_EINVAL, "a tensor to be saved has no name");
    if (!strcmp(e->name, "__metadata__"))
        return tt_fail(TT_EINVAL, "no tensor can be named __metadata__: the format needs the name");
    if ((unsigned)e->type >= (unsigned)TT_COUNT(types) || e->rank < 0 || e->rank > RANK_MOST)
        return tt_fail(TT_EINVAL, "tensor %.200s: type %d, %d dimensions: out of range", e->name,
                       (int)e->type, e->rank);
    if (!shape_bytes(e->type, e->rank, e->shape, &bytes))
        return tt_fail(TT_EINVAL, "tensor %.200s: the shape is negative or overflows 64 bits",
                       e->name);
    if (bytes != e->bytes || (bytes && !e->data))
        return tt_fail(TT_EINVAL, "tensor %.200s: type and shape need %lld bytes, it has %lld",
                       e->name, (long long)bytes, e->data ? (long long)e->bytes : 0);
    return TT_OK;
}

tt_err tt_entries_check(const tt_entry *entries, int count)
{
    json_t *seen = json_object();
    tt_err err = seen ? TT_OK : tt_fail(TT_ENOMEM, "no memory to check %d tensors", count);

    for (int i = 0; i < count && !err; i++) {
        if ((err = check_entry(&entries[i]))) break;
        if (json_object_get(seen, entries[i].name))
            err = tt_fail(TT_EINVAL, "two tensors are named %.200s", entries[i].name);
        else if (json_object_set_new(seen, entries[i].name, json_true()))
            err = tt_fail(TT_EINVAL, "tensor %.200s: the name is not UTF-8", entries[i].name);
    }
    json_decref(seen);
    return err;
}

static int by_order(const void *a, const void *b)
{
    const tt_entry *x = *(const tt_entry *const *)a, *y = *(const tt_entry *const *)b;
    int side = types[x->type].order - types[y->type].order;

    return side ? side : strcmp(x->name, y->name);
}

static json_t *make_notes(json_t *notes)
{
    json_t *out = json_pack("{s:s}", "format", "pt"), *value;
    const char *key;

    json_object_foreach(notes, key, value) if (strcmp(key, "format"))
        json_object_set(out, key, value);
    return out;
}

/* The header's text in *out, padded so that the data begins on a cache line. */
static tt_err make_header(const char *path, const tt_entry *const *order, int count, json_t *notes,
                          tt_str *out)
{
    json_t *header = json_object(), *shape;
    char *text = NULL;
    int64_t at = 0, end;
    size_t size;
    tt_err err = TT_OK;

    json_object_set_new(header, "__metadata__", make_notes(notes));
    for (int i = 0; i < count; i++, at = end) {
        const tt_entry *e = order[i];
        if (__builtin_add_overflow(at, e->bytes, &end)) {
            err = tt_fail(TT_EINVAL, "%s: the tensors' sizes overflow 64 bits", path);
            goto out;
        }
        shape = json_array();
        for (int k = 0; k < e->rank; k++) json_array_append_new(shape, json_integer(e->shape[k]));
        json_object_set_new(header, e->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", tt_dtype_name(e->type),
                                      "shape", shape, "data_offsets", (json_int_t)at,
                                      (json_int_t)end));
    }
    text = json_dumps(header, JSON_COMPACT);
    if (!text || json_object_size(header) != (size_t)count + 1) {
        err = tt_fail(TT_ENOMEM, "%s: no memory for its header", path);
        goto out;
    }
    size = strlen(text);
    if (size > HEADER_MOST - ALIGN) {
        err = tt_fail(TT_EINVAL, "%s: a header of %zu bytes, the format allows %d", path, size,
                      HEADER_MOST);
        goto out;
    }
    tt_str_put(out, text, size);
    while ((8 + out->size) % ALIGN) tt_str_put(out, " ", 1);
out:
    free(text);
    json_decref(header);
    return err;
}

/* Hash and write piece by piece: each is still in the cache for the second of the two. */
static bool put_bytes(int fd, tt_sha *sha, const void *data, size_t size)
{
    const char *p = data;

    for (size_t n; size; p += n, size -= n) {
        n = size < CHUNK ? size : CHUNK;
        tt_sha_add(sha, p, n);
        if (!tt_write_all(fd, p, n, NULL)) return false;
    }
    return true;
}

tt_err tt_tensors_put(const char *path, const tt_entry *entries, int count, json_t *notes,
                      char sha[65], int64_t *bytes)
{
    tt_err err = TT_OK;
    tt_str header = {0};
    tt_sha *hash = tt_sha_begin();
    const tt_entry **order = calloc((size_t)count + 1, sizeof *order);
    uint64_t n;
    char hex[65];
    int fd = -1, why;
    bool fine;

    if (!order) {
        err = tt_fail(TT_ENOMEM, "write %s: no memory", path);
        goto out;
    }
    for (int i = 0; i < count; i++) order[i] = &entries[i];
    qsort(order, (size_t)count, sizeof *order, by_order);
    if ((err = make_header(path, order, count, notes, &header))) goto out;

    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        err = tt_fail(TT_EIO, "create %s: %s", path, strerror(errno));
        goto out;
    }
    n = header.size;
    *bytes = 8 + (int64_t)n;
    TT_FAILPOINT("tensors.opened");
    fine = put_bytes(fd, hash, &n, 8) && put_bytes(fd, hash, header.data, header.size);
    for (int i = 0; i < count && fine; i++) {
        fine = put_bytes(fd, hash, order[i]->data, (size_t)order[i]->bytes);
        *bytes += order[i]->bytes;
    }
    if (fine && (why = TT_FAILPOINT("tensors.written"))) {
        errno = why;
        fine = false;
    }
    if (!fine || fsync(fd)) {
        err = tt_fail(TT_EIO, "write %s: %s", path, strerror(errno));
        goto out;
    }
    TT_FAILPOINT("tensors.synced");
    /* Out of the cache, so that whoever reads it back reads the disk. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (close(fd)) err = tt_fail(TT_EIO, "write %s: %s", path, strerror(errno));
    fd = -1;
    if (err) unlink(path);
out:
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    tt_sha_end(hash, hex);
    if (!err && sha) memcpy(sha, hex, sizeof hex);
    tt_str_free(&header);
    free(order);
    return err;
}

tt_err tt_parent_sync(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_ROOM];

    if (!slash) return tt_dir_sync(".");
    snprintf(folder, sizeof folder, "%.*s", (int)(slash == path ? 1 : slash - path), path);
    return tt_dir_sync(folder);
}

tt_err tt_tensors_write(const char *path, const tt_entry *entries, int count, json_t *notes,
                        char sha[65])
{
    char temp[4096];
    const char *key;
    json_t *value;
    int64_t bytes;
    tt_err err;

    if (snprintf(temp, sizeof temp, "%s.tmp", path) >= (int)sizeof temp)
        return tt_fail(TT_EINVAL, "write %.200s...: the path is too long", path);
    if (notes && !json_is_object(notes))
        return tt_fail(TT_EINVAL, "write %s: the notes are not an object", path);
    json_object_foreach(notes, key, value) if (!json_is_string(value)) return tt_fail(
        TT_EINVAL, "write %s: note %.200s is not a string", path, key);
    if ((err = tt_entries_check(entries, count))) return tt_context(err, "write %s", path);

    unlink(temp); /* left by a process that died; nobody reads under this name */
    if ((err = tt_tensors_put(temp, entries, count, notes, sha, &bytes))) return err;
    if (rename(temp, path)) {
        err = tt_fail(TT_EIO, "rename %s to %s: %s", temp, path, strerror(errno));
        unlink(temp);
        return err;
    }
    return tt_parent_sync(path);
}
