/* criteo: clicks on advertisements: a label, 13 numbers and 26 categories to a sample.
 *
 *   criteo  lines of 40 cells between tabs, or 39 without the label; numbers are whole and may be
 *           negative, categories are up to 8 hexadecimal digits, and any of them may be empty
 *   dlrm    records of 40 int32, little-endian: label, numbers, categories
 *
 * As DLRM treats them: what is missing is 0, a number is log(x + 1) with negative ones as 0, and a
 * category is its number modulo the rows of its table. */
#include "data/source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NUMBERS = 13, CATEGORIES = 26, CELLS = 1 + NUMBERS + CATEGORIES, RECORD = 4 * CELLS };

typedef struct criteo_keys {
    int format;
    const char *file;
    tt_ints rows;
} criteo_keys;

static const tt_key keys[] = {
    TT_FORMAT_KEY(criteo_keys),
    {"file", TT_STRING, offsetof(criteo_keys, file), NULL, 0, 0, NULL, "the file, plain or gzip"},
    {"rows", TT_INTS, offsetof(criteo_keys, rows), "-", 1, INT32_MAX, NULL,
     "categories are taken modulo so many: one number, or 26; by default as many as the model's "
     "tables have rows, and for dlrm none is too large"},
};

/* What is read into; of what the model does not take there is none. */
typedef struct clicks {
    tt_source *s;
    const tt_data_want *want;
    float *x;                   /* (rows, 13)              */
    int32_t *ids;               /* (rows, 26)              */
    int32_t *label;             /* NULL: nobody wants them */
    int64_t divide[CATEGORIES]; /* 0: it stays as it is, and must be below ... */
    int64_t below[CATEGORIES];  /* ... this; 0: nobody looks at it             */
} clicks;

static tt_err fail_input(const tt_data_want *want, const tt_source *s)
{
    char has[64];
    const char *text = "%s has 13 numbers and 26 categories, but the model takes %s numbers and "
                       "%lld ids: say input: {features: [13], ids: 26}";

    tt_shape_show(want->input, has, sizeof has);
    if (want->input_at)
        return tt_node_fail(want->input_at, text, s->name, has, (long long)want->ids);
    return tt_fail(TT_EINVAL, text, s->name, has, (long long)want->ids);
}

/* A model may leave out the numbers, or the categories. `hashes`: they are so large that they mean
 * nothing without a division. */
static tt_err set_rows(clicks *c, const tt_node *at, const tt_ints *rows, bool hashes)
{
    const tt_data_want *w = c->want;
    int64_t features = tt_shape_count(w->input);

    if ((features && features != NUMBERS) || (w->ids && w->ids != CATEGORIES))
        return fail_input(w, c->s);
    if (rows->count > 1 && rows->count != CATEGORIES)
        return tt_node_fail(at, "rows is one number, or one for each of the %d categories, not %d",
                            CATEGORIES, rows->count);
    for (int i = 0; i < CATEGORIES && w->ids; i++) {
        int64_t have = w->id_rows ? w->id_rows[i] : 0;
        int64_t said = rows->count ? rows->item[rows->count > 1 ? i : 0] : 0;
        if (have && said > have)
            return tt_node_fail(at,
                                "rows: %lld for category %d, but the model's table for it has %lld",
                                (long long)said, i + 1, (long long)have);
        c->below[i] = have;
        c->divide[i] = said ? said : !hashes ? 0 : have ? have : INT32_MAX;
        bool used = !w->id_rows || w->id_rows[i];
        have = c->divide[i] && used ? c->divide[i] : have; /* ids below it stay what they are */
        tt_source_name_word(c->s, &have, sizeof have);
    }
    return TT_OK;
}

static tt_err open_rows(clicks *c, int64_t rows, bool labels)
{
    tt_source *s = c->s;
    bool numbers = tt_shape_count(c->want->input) > 0;
    tt_err err;

    s->count = s->kept = rows;
    s->keep = TT_KEEP_F32;
    s->shape = numbers ? (tt_shape){1, {NUMBERS}} : (tt_shape){1, {0}};
    if ((err = tt_source_block(s, rows, numbers ? NUMBERS : 0, sizeof *c->x, &c->x))) return err;
    s->f32 = c->x;
    if (c->want->ids) {
        if ((err = tt_source_block(s, rows, CATEGORIES, sizeof *c->ids, &c->ids))) return err;
        s->ids = c->ids;
        s->ids_each = CATEGORIES;
    }
    if (!labels || c->want->only_x) return TT_OK;
    if ((err = tt_source_block(s, rows, 1, sizeof *c->label, &c->label))) return err;
    s->label = c->label;
    s->classes = 2;
    return TT_OK;
}

static float squash(int64_t x)
{
    return x > 0 ? (float)log((double)x + 1) : 0;
}

static void put_category(clicks *c, int64_t row, int i, uint32_t v)
{
    if (c->divide[i]) v = (uint32_t)(v % (uint64_t)c->divide[i]);
    if (c->ids) c->ids[row * CATEGORIES + i] = (int32_t)v;
}

/* ---- lines ---- */

typedef struct cells {
    const char *at[CELLS];
    size_t size[CELLS];
    int count; /* that there are; more than CELLS are not kept */
} cells;

/* The cells of a line; without its end. */
static void cut(const char *line, const char *end, cells *out)
{
    out->count = 0;
    for (;;) {
        const char *tab = memchr(line, '\t', (size_t)(end - line)), *stop = tab ? tab : end;
        if (out->count < CELLS) {
            out->at[out->count] = line;
            out->size[out->count] = (size_t)(stop - line);
        }
        out->count++;
        if (!tab) return;
        line = tab + 1;
    }
}

/* The next line that is not empty; NULL: there is none. *end is without the line's end. */
static const char *next_line(const char **p, const char *last, int64_t *number, const char **end)
{
    while (*p < last) {
        const char *line = *p, *stop = memchr(line, '\n', (size_t)(last - line));
        *p = stop ? stop + 1 : last;
        *end = stop ? stop : last;
        if (*end > line && (*end)[-1] == '\r') --*end;
        ++*number;
        if (*end > line) return line;
    }
    return NULL;
}

static bool whole_number(const char *s, size_t n, int64_t *out)
{
    bool minus = n && *s == '-';
    int64_t v = 0;

    if (n == (size_t)minus || n > 18) return false;
    for (size_t i = (size_t)minus; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        v = 10 * v + (s[i] - '0');
    }
    *out = minus ? -v : v;
    return true;
}

static bool hexadecimal(const char *s, size_t n, uint32_t *out)
{
    uint32_t v = 0;

    if (n > 8) return false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return false;
        v = v << 4 | (uint32_t)digit;
    }
    *out = v;
    return true;
}

static tt_err bad_cell(const clicks *c, int64_t line, const cells *k, int at, const char *what)
{
    return tt_fail(TT_EDATA, "%s: line %lld, column %d: '%.*s' %s", c->s->name, (long long)line,
                   at + 1, (int)(k->size[at] > 40 ? 40 : k->size[at]), k->at[at], what);
}

static tt_err read_line(clicks *c, int64_t line, const cells *k, int64_t row)
{
    int first = k->count - NUMBERS - CATEGORIES;
    int64_t v;
    uint32_t hash;

    if (c->label) {
        bool right = k->size[0] == 1 && (*k->at[0] == '0' || *k->at[0] == '1');
        if (!right) return bad_cell(c, line, k, 0, "is no label: it must be 0 or 1");
        c->label[row] = *k->at[0] - '0';
    }
    for (int i = 0; i < NUMBERS; i++) {
        int at = first + i;
        v = 0;
        if (k->size[at] && !whole_number(k->at[at], k->size[at], &v))
            return bad_cell(c, line, k, at, "is no whole number");
        if (c->s->shape.dim[0]) c->x[row * NUMBERS + i] = squash(v);
    }
    for (int i = 0; i < CATEGORIES; i++) {
        int at = first + NUMBERS + i;
        if (!hexadecimal(k->at[at], k->size[at], &hash))
            return bad_cell(c, line, k, at,
                            "is no category: it must be up to 8 hexadecimal digits");
        put_category(c, row, i, hash);
    }
    return TT_OK;
}

static tt_err bad_count(const clicks *c, int64_t line, int have, int first)
{
    if (first)
        return tt_fail(TT_EDATA, "%s: line %lld has %d columns, the lines before have %d",
                       c->s->name, (long long)line, have, first);
    return tt_fail(TT_EDATA,
                   "%s: line %lld has %d columns between tabs; Criteo's have %d, or %d without a "
                   "label",
                   c->s->name, (long long)line, have, CELLS, CELLS - 1);
}

/* How many lines, all of as many cells. */
static tt_err survey(const clicks *c, const char *text, const char *last, int64_t *rows, int *count)
{
    const char *line, *end;
    int64_t number = 0;
    cells k;

    *rows = *count = 0;
    while ((line = next_line(&text, last, &number, &end))) {
        cut(line, end, &k);
        if ((k.count != CELLS && k.count != CELLS - 1) || (*count && k.count != *count))
            return bad_count(c, number, k.count, *count);
        *count = k.count;
        ++*rows;
    }
    return TT_OK;
}

tt_err tt_criteo_decode(tt_source *s, const tt_source_ctx *ctx, const tt_node *rows_at,
                        const tt_ints *divide, const char *text, size_t size)
{
    clicks c = {.s = s, .want = ctx->want};
    const char *p = text, *last = text + size, *line, *end;
    int64_t rows, row = 0, number = 0;
    cells k;
    int count;
    tt_err err;

    if ((err = set_rows(&c, rows_at, divide, true))) return err;
    if ((err = survey(&c, text, last, &rows, &count))) return err;
    if ((err = open_rows(&c, rows, count == CELLS))) return err;
    while ((line = next_line(&p, last, &number, &end))) {
        cut(line, end, &k);
        if ((err = read_line(&c, number, &k, row++))) return err;
    }
    return TT_OK;
}

/* ---- records ---- */

static int32_t int_at(const uint8_t *p)
{
    return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                     (uint32_t)p[3] << 24);
}

static tt_err bad_record(const clicks *c, int64_t row, int at, int32_t v, const char *what)
{
    return tt_fail(TT_EDATA, "%s: record %lld (byte %lld), column %d: %d %s", c->s->name,
                   (long long)row, (long long)(row * RECORD + 4 * at), at + 1, v, what);
}

static tt_err read_record(clicks *c, int64_t row, const uint8_t *p)
{
    char buf[160];

    if (c->label) {
        int32_t label = int_at(p);
        if (label != 0 && label != 1)
            return bad_record(c, row, 0, label, "is no label: it must be 0 or 1");
        c->label[row] = label;
    }
    for (int i = 0; i < NUMBERS && c->s->shape.dim[0]; i++)
        c->x[row * NUMBERS + i] = squash(int_at(p + 4 * (1 + i)));
    for (int i = 0; i < CATEGORIES; i++) {
        int at = 1 + NUMBERS + i;
        int32_t v = int_at(p + 4 * at);
        if (c->ids && !c->divide[i] && !c->below[i] && c->want->id_rows)
            v = v < 0 ? -1 : v; /* nobody looks at it */
        else if (c->ids && !c->divide[i] && (v < 0 || (c->below[i] && v >= c->below[i]))) {
            snprintf(buf, sizeof buf,
                     "is no row of the model's table of %lld; with `rows` it is "
                     "divided by them",
                     (long long)c->below[i]);
            return bad_record(c, row, at, v, v < 0 ? "is no row of a table" : buf);
        }
        put_category(c, row, i, (uint32_t)v);
    }
    return TT_OK;
}

tt_err tt_dlrm_decode(tt_source *s, const tt_source_ctx *ctx, const tt_node *rows_at,
                      const tt_ints *divide, const uint8_t *data, size_t size)
{
    clicks c = {.s = s, .want = ctx->want};
    int64_t rows = (int64_t)(size / RECORD);
    tt_err err;

    if (size % RECORD)
        return tt_fail(
            TT_EDATA,
            "%s: it ends at byte %zu within record %lld: records have %d bytes, a label, "
            "13 numbers and 26 categories of 4",
            s->name, size, (long long)rows, RECORD);
    if ((err = set_rows(&c, rows_at, divide, false))) return err;
    if ((err = open_rows(&c, rows, true))) return err;
    for (int64_t row = 0; row < rows; row++)
        if ((err = read_record(&c, row, data + row * RECORD))) return err;
    return TT_OK;
}

/* ---- formats ---- */

static tt_err open_file(tt_node *map, const char *what, const tt_source_ctx *c, bool text,
                        tt_source *s)
{
    const tt_node *rows_at;
    criteo_keys k = {0};
    tt_bytes file;
    tt_err err;

    if ((err = tt_node_read(map, what, keys, TT_COUNT(keys), &k)) || c->look) return err;
    if ((err = tt_source_read(s, c, tt_node_get(map, "file"), k.file, NULL, &file, &s->name)))
        return err;
    rows_at = tt_node_get(map, "rows");
    err = text ? tt_criteo_decode(s, c, rows_at, &k.rows, (const char *)file.data, file.size)
               : tt_dlrm_decode(s, c, rows_at, &k.rows, file.data, file.size);
    tt_file_release(&file);
    return err;
}

tt_err tt_source_criteo(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    return open_file(map, what, c, true, s);
}

tt_err tt_source_dlrm(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    return open_file(map, what, c, false, s);
}
