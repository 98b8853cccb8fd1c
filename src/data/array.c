/* Arrays in files: IDX (MNIST) and NPY (numpy), and making samples, labels and targets of them. */
#include "data/source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int element_size[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8};

/* Bytes of all elements; SIZE_MAX if no machine could hold them. */
static size_t data_size(const tt_array *a)
{
    size_t bytes = (size_t)element_size[a->type];

    for (int i = 0; i < a->rank; i++) bytes = tt_mul_size(bytes, (size_t)a->dim[i]);
    return bytes;
}

/* The elements must fill the rest of the file exactly: a wrong count is a damaged file. */
static tt_err check_size(const tt_array *a, size_t size)
{
    size_t bytes = data_size(a);

    /* No dimension is 0 from here on, so no product of some of them is larger than the file. */
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] == 0) return tt_fail(TT_EDATA, "%s: no samples in it", a->name);
    if (bytes == SIZE_MAX)
        return tt_fail(TT_EDATA, "%s: its header announces an impossible size", a->name);
    if (bytes != size - a->offset)
        return tt_fail(
            TT_EDATA,
            "%s: its header announces %zu bytes of data after offset %zu, the file has %zu",
            a->name, bytes, a->offset, size - a->offset);
    return TT_OK;
}

/* ---- IDX: 00 00 type rank, dimensions (big-endian), elements ---- */

static tt_err idx_header(const char *name, const uint8_t *data, size_t size, tt_array *out)
{
    static const struct {
        uint8_t code;
        tt_element type;
    } types[] = {{8, TT_E_U8},    {9, TT_E_I8},    {0xb, TT_E_I16},
                 {0xc, TT_E_I32}, {0xd, TT_E_F32}, {0xe, TT_E_F64}};
    int k = 0;

    memset(out, 0, sizeof *out);
    out->name = name;
    if (size < 4) return tt_fail(TT_EDATA, "%s: too short for an IDX file (%zu bytes)", name, size);
    while (k < TT_COUNT(types) && types[k].code != data[2]) k++;
    if (data[0] || data[1] || k == TT_COUNT(types))
        return tt_fail(TT_EDATA, "%s: no IDX file: it starts with %02x%02x%02x%02x at offset 0",
                       name, data[0], data[1], data[2], data[3]);
    out->type = types[k].type;
    out->rank = data[3];
    if (out->rank < 1 || out->rank > 6)
        return tt_fail(TT_EDATA, "%s: %d dimensions at offset 3; 1 to 6 are supported", name,
                       out->rank);
    out->offset = 4 + 4 * (size_t)out->rank;
    if (size < out->offset)
        return tt_fail(TT_EDATA, "%s: the header is cut off at offset %zu", name, size);
    for (int i = 0; i < out->rank; i++) {
        const uint8_t *p = data + 4 + 4 * i;
        out->dim[i] = (int64_t)p[0] << 24 | (int64_t)p[1] << 16 | p[2] << 8 | p[3];
    }
    out->swap = true;
    out->data = data + out->offset;
    return TT_OK;
}

tt_err tt_array_idx(const char *name, const uint8_t *data, size_t size, tt_array *out)
{
    tt_err err = idx_header(name, data, size, out);

    return err ? err : check_size(out, size);
}

static size_t whole_size(tt_err err, const tt_array *a)
{
    size_t bytes = err ? SIZE_MAX : data_size(a), whole;

    return bytes == SIZE_MAX || __builtin_add_overflow(bytes, a->offset, &whole) ? 0 : whole;
}

size_t tt_array_idx_size(const uint8_t *head, size_t size)
{
    tt_array a;

    return whole_size(idx_header("", head, size, &a), &a);
}

/* ---- NPY: a Python dict literal, strictly parsed, then elements ---- */

typedef struct literal {
    const char *name, *start, *p, *end;
    size_t offset; /* of `start` in the file */
} literal;

static tt_err bad_literal(const literal *l, const char *what)
{
    return tt_fail(TT_EDATA, "%s: offset %zu: %s", l->name, l->offset + (size_t)(l->p - l->start),
                   what);
}

static void skip_space(literal *l)
{
    while (l->p < l->end && (*l->p == ' ' || *l->p == '\n' || *l->p == '\t' || *l->p == '\r'))
        l->p++;
}

static bool take(literal *l, char c)
{
    skip_space(l);
    if (l->p == l->end || *l->p != c) return false;
    l->p++;
    return true;
}

static bool take_string(literal *l, char *out, size_t room)
{
    const char *close;

    skip_space(l);
    if (l->p == l->end || (*l->p != '\'' && *l->p != '"')) return false;
    close = memchr(l->p + 1, *l->p, (size_t)(l->end - l->p - 1));
    if (!close || (size_t)(close - l->p - 1) >= room) return false;
    memcpy(out, l->p + 1, (size_t)(close - l->p - 1));
    out[close - l->p - 1] = 0;
    l->p = close + 1;
    return true;
}

static bool take_word(literal *l, const char *word)
{
    size_t n = strlen(word);

    skip_space(l);
    if ((size_t)(l->end - l->p) < n || memcmp(l->p, word, n)) return false;
    l->p += n;
    return true;
}

static tt_err take_shape(literal *l, tt_array *out)
{
    if (!take(l, '(')) return bad_literal(l, "'shape' must be a tuple");
    out->rank = 0;
    while (!take(l, ')')) {
        int64_t dim = 0;
        const char *first;
        if (out->rank == TT_COUNT(out->dim)) return bad_literal(l, "more than 8 dimensions");
        skip_space(l);
        for (first = l->p; l->p < l->end && *l->p >= '0' && *l->p <= '9'; l->p++) {
            if (dim > INT64_MAX / 16) return bad_literal(l, "a dimension is too large");
            dim = dim * 10 + (*l->p - '0');
        }
        if (l->p == first) return bad_literal(l, "a dimension must be a number");
        if (l->p < l->end && *l->p == 'L') l->p++; /* Python 2 */
        out->dim[out->rank++] = dim;
        if (take(l, ',')) continue;
        if (!take(l, ')')) return bad_literal(l, "'shape' is not closed");
        break;
    }
    return TT_OK;
}

static tt_err take_descr(literal *l, tt_array *out)
{
    static const struct {
        const char *code;
        tt_element type;
    } types[] = {{"b1", TT_E_BOOL}, {"u1", TT_E_U8},  {"i1", TT_E_I8},  {"u2", TT_E_U16},
                 {"i2", TT_E_I16},  {"u4", TT_E_U32}, {"i4", TT_E_I32}, {"u8", TT_E_U64},
                 {"i8", TT_E_I64},  {"f2", TT_E_F16}, {"f4", TT_E_F32}, {"f8", TT_E_F64}};
    char descr[32];

    skip_space(l);
    if (l->p < l->end && *l->p == '[')
        return bad_literal(l, "structured arrays are not supported; save one plain array");
    if (!take_string(l, descr, sizeof descr))
        return bad_literal(l, "'descr' must be a short string");
    if (descr[0] && strchr(descr, 'O'))
        return bad_literal(l, "Python objects (pickle) are refused: they could run code");
    for (int k = 0; k < TT_COUNT(types); k++)
        if (descr[0] && strchr("<>|=", descr[0]) && !strcmp(descr + 1, types[k].code)) {
            out->type = types[k].type;
            out->swap = descr[0] == '>';
            return TT_OK;
        }
    return tt_fail(TT_EDATA, "%s: element type '%s' is not supported", l->name, descr);
}

static tt_err parse_dict(literal *l, tt_array *out)
{
    bool descr = false, order = false, shape = false;
    char key[32];
    tt_err err = TT_OK;

    if (!take(l, '{')) return bad_literal(l, "the header must be a dict");
    while (!take(l, '}')) {
        if (!take_string(l, key, sizeof key) || !take(l, ':'))
            return bad_literal(l, "the header must hold 'key': value");
        if (!strcmp(key, "descr") && !descr) {
            descr = true;
            err = take_descr(l, out);
        } else if (!strcmp(key, "shape") && !shape) {
            shape = true;
            err = take_shape(l, out);
        } else if (!strcmp(key, "fortran_order") && !order) {
            order = true;
            out->fortran = take_word(l, "True");
            if (!out->fortran && !take_word(l, "False"))
                err = bad_literal(l, "'fortran_order' must be True or False");
        } else {
            err = bad_literal(l, "an unknown or repeated key");
        }
        if (err) return err;
        if (take(l, ',')) continue;
        if (!take(l, '}')) return bad_literal(l, "the header is not closed");
        break;
    }
    if (!descr || !order || !shape)
        return bad_literal(l, "the header lacks 'descr', 'fortran_order' or 'shape'");
    skip_space(l);
    return l->p == l->end ? TT_OK : bad_literal(l, "text after the header");
}

static tt_err npy_header(const char *name, const uint8_t *data, size_t size, tt_array *out)
{
    size_t head, length;
    literal l;
    tt_err err;

    memset(out, 0, sizeof *out);
    out->name = name;
    if (size < 12 || memcmp(data, "\x93NUMPY", 6))
        return tt_fail(TT_EDATA, "%s: no NPY file: the magic at offset 0 is missing", name);
    if (data[6] < 1 || data[6] > 3)
        return tt_fail(TT_EDATA, "%s: NPY version %d.%d; 1 to 3 are supported", name, data[6],
                       data[7]);
    head = data[6] == 1 ? 10 : 12;
    length = data[8] | (size_t)data[9] << 8;
    if (data[6] > 1) length |= (size_t)data[10] << 16 | (size_t)data[11] << 24;
    if (length > size - head)
        return tt_fail(TT_EDATA, "%s: the header of %zu bytes is cut off at offset %zu", name,
                       length, size);
    l = (literal){name, (const char *)data + head, (const char *)data + head,
                  (const char *)data + head + length, head};
    if ((err = parse_dict(&l, out))) return err;
    out->offset = head + length;
    out->data = data + out->offset;
    return TT_OK;
}

tt_err tt_array_npy(const char *name, const uint8_t *data, size_t size, tt_array *out)
{
    tt_err err = npy_header(name, data, size, out);

    return err ? err : check_size(out, size);
}

size_t tt_array_npy_size(const uint8_t *head, size_t size)
{
    tt_array a;

    return whole_size(npy_header("", head, size, &a), &a);
}

/* ---- Elements ---- */

static double element(const tt_array *a, int64_t i)
{
    int size = element_size[a->type];
    const uint8_t *p = a->data + i * size;
    uint64_t bits = 0;
    float f;
    double d;

    for (int k = 0; k < size; k++) bits |= (uint64_t)p[a->swap ? size - 1 - k : k] << 8 * k;
    switch (a->type) {
    case TT_E_BOOL:
    case TT_E_U8:
    case TT_E_U16:
    case TT_E_U32:
    case TT_E_U64:
        return (double)bits;
    case TT_E_I8:
        return (int8_t)bits;
    case TT_E_I16:
        return (int16_t)bits;
    case TT_E_I32:
        return (int32_t)bits;
    case TT_E_I64:
        return (double)(int64_t)bits;
    case TT_E_F16:
        return tt_half((uint16_t)bits);
    case TT_E_F32:
        memcpy(&f, &(uint32_t){(uint32_t)bits}, sizeof f);
        return f;
    case TT_E_F64:
        memcpy(&d, &bits, sizeof d);
        return d;
    }
    return NAN;
}

/* Element i of the row-major order, wherever the file has it. */
static int64_t file_index(const tt_array *a, int64_t i)
{
    int64_t at = 0;

    if (!a->fortran || a->rank < 2) return i;
    /* Row-major digits of i, last one fastest; in the file the first one is. */
    int64_t digit[TT_COUNT(a->dim)], stride = 1;
    for (int k = a->rank - 1; k >= 0; k--) {
        digit[k] = i % a->dim[k];
        i /= a->dim[k];
    }
    for (int k = 0; k < a->rank; k++) {
        at += digit[k] * stride;
        stride *= a->dim[k];
    }
    return at;
}

static int64_t row_size(const tt_array *a)
{
    int64_t n = 1;

    for (int i = 1; i < a->rank; i++) n *= a->dim[i];
    return n;
}

static tt_err not_finite(const tt_array *a, int64_t i, int64_t each, double v)
{
    return tt_fail(TT_EDATA, "%s: row %lld, value %lld (offset %zu) is %f", a->name,
                   (long long)(i / each), (long long)(i % each),
                   a->offset + (size_t)(file_index(a, i) * element_size[a->type]), v);
}

static bool as_it_is(const tt_array *a)
{
    if (a->fortran && a->rank > 1) return false;
    if (a->type == TT_E_U8 || a->type == TT_E_BOOL) return true;
    return a->type == TT_E_F32 && !a->swap && (uintptr_t)a->data % sizeof(float) == 0;
}

tt_err tt_source_samples(tt_source *s, const tt_array *a, tt_bytes *file)
{
    int64_t each = row_size(a), n;
    float *x;
    tt_err err;

    s->name = a->name;
    if (a->rank < 1 || a->rank - 1 > 6)
        return tt_fail(TT_EDATA, "%s: an array of %d dimensions is no list of samples", a->name,
                       a->rank);
    s->count = s->kept = a->dim[0];
    s->shape.rank = a->rank > 1 ? a->rank - 1 : 1;
    s->shape.dim[0] = 1;
    for (int i = 1; i < a->rank; i++) s->shape.dim[i - 1] = a->dim[i];
    n = s->count * each;
    if (as_it_is(a) && a->type != TT_E_F32) {
        s->keep = TT_KEEP_U8;
        s->u8 = a->data;
        s->bytes = a->type == TT_E_U8;
        s->pixels = s->bytes && a->rank > 2;
        s->file[0] = *file;
        *file = (tt_bytes){0};
        return TT_OK;
    }
    s->keep = TT_KEEP_F32;
    if (as_it_is(a)) {
        s->f32 = (const float *)a->data;
        for (int64_t i = 0; i < n; i++)
            if (!isfinite(s->f32[i])) return not_finite(a, i, each, s->f32[i]);
        s->file[0] = *file;
        *file = (tt_bytes){0};
        return TT_OK;
    }
    if ((err = tt_source_block(s, s->count, each, sizeof *x, &x))) return err;
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)element(a, file_index(a, i));
        if (!isfinite(x[i])) return not_finite(a, i, each, x[i]);
    }
    s->f32 = x;
    return TT_OK;
}

static tt_err read_labels(tt_source *s, const tt_data_want *want, const tt_array *a)
{
    int64_t each = want->labels;
    char where[128];
    int32_t *label;
    tt_err err;

    if ((err = tt_source_block(s, s->kept, each, sizeof *label, &label))) return err;
    for (int64_t i = 0; i < s->kept * each; i++) {
        int64_t at = file_index(a, i);
        double v = element(a, at);
        if (v >= 0 && v < want->classes && v == floor(v)) { /* as mostly; there may be many */
            label[i] = (int32_t)v;
            continue;
        }
        int n = snprintf(where, sizeof where, "row %lld", (long long)(i / each));
        if (each > 1)
            n += snprintf(where + n, sizeof where - (size_t)n, ", label %lld",
                          (long long)(i % each));
        snprintf(where + n, sizeof where - (size_t)n, " (offset %zu)",
                 a->offset + (size_t)(at * element_size[a->type]));
        if ((err = tt_source_label(want, a->name, where, v, &label[i]))) return err;
        s->minus |= v < 0;
    }
    s->label = label;
    s->labels = each;
    return TT_OK;
}

tt_err tt_source_answers(tt_source *s, const tt_data_want *want, const tt_array *a)
{
    int64_t each = row_size(a);
    float *target;
    tt_err err;

    if (a->rank < 1 || a->dim[0] != s->count)
        return tt_fail(TT_EDATA, "%s has %lld rows, but %s has %lld samples", a->name,
                       (long long)(a->rank < 1 ? 1 : a->dim[0]), s->name, (long long)s->count);
    if (want->classes > 0) {
        if (each != want->labels && want->labels == 1)
            return tt_fail(TT_EDATA, "%s: %lld values per row; labels are one class number per row",
                           a->name, (long long)each);
        if (each != want->labels)
            return tt_fail(TT_EDATA,
                           "%s: %lld values per row, but the loss judges %lld pixels of a sample, "
                           "and each has a label",
                           a->name, (long long)each, (long long)want->labels);
        return read_labels(s, want, a);
    }
    if (want->targets <= 0) return TT_OK;
    if (each > INT32_MAX)
        return tt_fail(TT_EDATA, "%s: %lld targets per row", a->name, (long long)each);
    if ((err = tt_source_block(s, s->kept, each, sizeof *target, &target))) return err;
    for (int64_t i = 0; i < s->kept * each; i++) {
        target[i] = (float)element(a, file_index(a, i));
        /* NAN in the first place says "no target"; anywhere else it would poison the weights. */
        if (!isfinite(target[i]) && !(isnan(target[i]) && i % each == 0))
            return not_finite(a, i, each, target[i]);
    }
    s->target = target;
    s->targets = each;
    return TT_OK;
}

/* ---- The two formats ---- */

typedef struct format {
    tt_err (*decode)(const char *name, const uint8_t *data, size_t size, tt_array *out);
    tt_promise *promise;
} format;

static tt_err open_pair(tt_source *s, const tt_source_ctx *c, format f, const tt_node *x_at,
                        const char *x, const tt_node *y_at, const char *y)
{
    tt_bytes file = {0};
    tt_array a;
    const char *path;
    tt_err err;

    if ((err = tt_source_read(s, c, x_at, x, f.promise, &file, &path))) goto out;
    if ((err = f.decode(path, file.data, file.size, &a))) goto out;
    if ((err = tt_source_samples(s, &a, &file))) goto out;
    tt_file_release(&file);
    if (!y || !*y || c->want->only_x) goto out;
    if ((err = tt_source_read(s, c, y_at, y, f.promise, &file, &path))) goto out;
    if ((err = f.decode(path, file.data, file.size, &a))) goto out;
    err = tt_source_answers(s, c->want, &a);
out:
    tt_file_release(&file);
    return err;
}

tt_err tt_source_idx(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    struct idx_keys {
        int format;
        const char *images, *labels;
    } k = {0};
    static const tt_key keys[] = {
        TT_FORMAT_KEY(struct idx_keys),
        {"images", TT_STRING, offsetof(struct idx_keys, images), NULL, 0, 0, NULL,
         "IDX file of the samples, plain or gzip"},
        {"labels", TT_STRING, offsetof(struct idx_keys, labels), "-", 0, 0, NULL,
         "IDX file of the class numbers"},
    };
    tt_err err = tt_node_read(map, what, keys, TT_COUNT(keys), &k);

    if (err || c->look) return err;
    return open_pair(s, c, (format){tt_array_idx, tt_array_idx_size}, tt_node_get(map, "images"),
                     k.images, tt_node_get(map, "labels"), k.labels);
}

tt_err tt_source_npy(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    struct npy_keys {
        int format;
        const char *x, *y;
    } k = {0};
    static const tt_key keys[] = {
        TT_FORMAT_KEY(struct npy_keys),
        {"x", TT_STRING, offsetof(struct npy_keys, x), NULL, 0, 0, NULL,
         "NPY file of the samples, first dimension the sample"},
        {"y", TT_STRING, offsetof(struct npy_keys, y), "-", 0, 0, NULL,
         "NPY file of class numbers or targets"},
    };
    tt_err err = tt_node_read(map, what, keys, TT_COUNT(keys), &k);

    if (err || c->look) return err;
    return open_pair(s, c, (format){tt_array_npy, tt_array_npy_size}, tt_node_get(map, "x"), k.x,
                     tt_node_get(map, "y"), k.y);
}
