/* What a file is, by going through all of it: `tutti data inspect` and `verify`.
 *
 * Formats that begin with a mark are known by it; the others by what must be true of all of their
 * bytes, text last. Each teller adds to an object: `summary`, a line for people; `first`, what the
 * file begins with; and the numbers behind both. */
#define _GNU_SOURCE
#include "data/bpe.h"
#include "data/csv.h"
#include "data/source.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SHOWN = 12, SHOWN_TOKENS = 64, SHOWN_TEXT = 240, GUESS_ROWS = 10, PIXELS = 3072 };

typedef struct look {
    const char *path;
    const tt_inspect_opts *o;
    tt_arena *arena;
    tt_bytes file;
    json_t *out;
} look;

static const char *count_text(const look *l, int64_t n)
{
    char buf[32];

    return tt_arena_strdup(l->arena, tt_show_count(n, buf, sizeof buf));
}

static void say(const look *l, const char *key, json_t *value)
{
    json_object_set_new(l->out, key, value);
}

static bool ends(const char *path, const char *end)
{
    size_t n = strlen(path), k = strlen(end);

    if (n > 3 && !strcasecmp(path + n - 3, ".gz")) n -= 3;
    return n > k && !strncasecmp(path + n - k, end, k);
}

/* Bytes as text that JSON takes: what is not UTF-8 becomes U+FFFD. */
static json_t *as_text(const void *bytes, size_t size)
{
    const char *s = bytes;
    tt_str text = {0};
    json_t *j;

    for (size_t i = 0; i < size;) {
        size_t n = tt_utf8_size(s + i, size - i);
        if (n)
            tt_str_put(&text, s + i, n);
        else
            tt_str_put(&text, "\xef\xbf\xbd", 3);
        i += n ? n : 1;
    }
    j = json_stringn(text.data ? text.data : "", text.size);
    tt_str_free(&text);
    return j;
}

/* ---- Arrays: idx, npy ---- */

static double value_at(const tt_source *s, int64_t i)
{
    return s->keep == TT_KEEP_U8 ? s->u8[i] : (double)s->f32[i];
}

static json_t *number(double v)
{
    return fabs(v) < 1e15 && v == floor(v) ? json_integer((json_int_t)v) : json_real(v);
}

static json_t *first_rows(const look *l, const tt_source *s, int64_t each)
{
    json_t *rows = json_array();

    for (int64_t r = 0; r < s->kept && r < l->o->rows; r++) {
        json_t *row = json_array();
        for (int64_t i = 0; i < each && i < SHOWN; i++)
            json_array_append_new(row, number(value_at(s, r * each + i)));
        if (each > SHOWN) json_array_append_new(row, json_string("..."));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* A vector of small numbers: they may be labels. */
static void say_counts(const look *l, const int64_t *count, int n)
{
    json_t *counts = json_object();
    char key[16];

    for (int i = 0; i < n; i++) {
        if (!count[i]) continue;
        snprintf(key, sizeof key, "%d", i);
        json_object_set_new(counts, key, json_integer(count[i]));
    }
    say(l, "counts", counts);
}

static void say_values(const look *l, const tt_source *s, int64_t each)
{
    int64_t n = s->kept * each, count[256] = {0};
    double least = value_at(s, 0), most = least;
    bool small = each == 1;

    for (int64_t i = 0; i < n; i++) {
        double v = value_at(s, i);
        if (v < least) least = v;
        if (v > most) most = v;
        small = small && v >= 0 && v < 256 && v == (int)v;
        if (small) count[(int)v]++;
    }
    say(l, "least", number(least));
    say(l, "most", number(most));
    if (small) say_counts(l, count, 256);
}

static tt_err tell_array(look *l, bool npy)
{
    static const char *const types[] = {"bool",  "uint8",   "int8",    "uint16",
                                        "int16", "uint32",  "int32",   "uint64",
                                        "int64", "float16", "float32", "float64"};
    tt_source *s = tt_source_new();
    json_t *shape = json_array();
    tt_str text = {0};
    tt_array a;
    tt_err err = (npy ? tt_array_npy : tt_array_idx)(l->path, l->file.data, l->file.size, &a);

    s->name = l->path;
    if (err || (err = tt_source_samples(s, &a, &l->file))) goto out;
    for (int i = 0; i < a.rank; i++) {
        json_array_append_new(shape, json_integer(a.dim[i]));
        tt_str_add(&text, "%s%s", i ? " x " : "", count_text(l, a.dim[i]));
    }
    tt_str_add(&text, " of %s", types[a.type]);
    say(l, "type", json_string(types[a.type]));
    say(l, "shape", json_incref(shape));
    say(l, "count", json_integer(s->kept));
    say_values(l, s, tt_shape_count(s->shape));
    say(l, "first", first_rows(l, s, tt_shape_count(s->shape)));
    say(l, "summary", json_string(text.data));
out:
    json_decref(shape);
    tt_str_free(&text);
    tt_source_close(s);
    return err;
}

static tt_err tell_idx(look *l)
{
    return tell_array(l, false);
}

static tt_err tell_npy(look *l)
{
    return tell_array(l, true);
}

/* ---- CIFAR ---- */

/* Are these records of so many label bytes, each label below its bound? */
static bool are_records(const tt_bytes *f, int labels)
{
    static const int most[2][2] = {{10, 0}, {20, 100}};
    size_t record = PIXELS + (size_t)labels;

    if (!f->size || f->size % record) return false;
    for (size_t at = 0; at < f->size; at += record)
        for (int i = 0; i < labels; i++)
            if (f->data[at + (size_t)i] >= most[labels - 1][i]) return false;
    return true;
}

static tt_err tell_cifar(look *l, int labels)
{
    int64_t record = PIXELS + labels, n = (int64_t)l->file.size / record, count[256] = {0};

    if (!are_records(&l->file, labels))
        return tt_fail(TT_EDATA,
                       "%s: no records of %lld bytes that begin with %s: %zu bytes in all", l->path,
                       (long long)record, labels == 1 ? "a label of 0 to 9" : "labels of CIFAR-100",
                       l->file.size);
    for (int64_t i = 0; i < n; i++) count[l->file.data[i * record + labels - 1]]++;
    say(l, "count", json_integer(n));
    say(l, "shape", json_pack("[i, i, i]", 3, 32, 32));
    say_counts(l, count, 256);
    say(l, "summary",
        json_string(
            tt_arena_printf(l->arena, "%s images of 3 x 32 x 32, with labels", count_text(l, n))));
    return TT_OK;
}

static tt_err tell_cifar10(look *l)
{
    return tell_cifar(l, 1);
}

static tt_err tell_cifar100(look *l)
{
    return tell_cifar(l, 2);
}

/* ---- Tokens ---- */

/* As text, if it is known what the tokens stand for. */
static tt_err tokens_text(look *l, const tt_shard *h, const tt_tokens_meta *m, json_t **out)
{
    int64_t n = h->count < SHOWN_TOKENS ? h->count : SHOWN_TOKENS;
    bool gpt2 = m->there ? !strcmp(m->kind, "gpt2") : !h->plain;
    const char *folder = l->o->tokenizer;
    int32_t id[SHOWN_TOKENS];
    tt_str text = {0};
    tt_bpe *b;
    tt_err err = TT_OK;

    *out = NULL;
    for (int64_t i = 0; i < n; i++) id[i] = (int32_t)tt_shard_at(h, i);
    if (!folder && gpt2 && l->o->usual && tt_file_exists(l->o->usual)) folder = l->o->usual;
    if (folder) {
        if ((err = tt_bpe_open(folder, &b))) return l->o->tokenizer ? err : TT_OK;
        err = tt_bpe_decode(b, id, n, &text);
        tt_bpe_close(b);
        if (!l->o->tokenizer) err = TT_OK; /* they were not said to be of this one */
    } else {
        for (int64_t i = 0; i < n && m->name; i++)
            if (id[i] < m->vocab) tt_str_put(&text, m->name[id[i]], strlen(m->name[id[i]]));
        for (int64_t i = 0; i < n && !strcmp(m->kind, "bytes"); i++)
            tt_str_put(&text, &(char){(char)id[i]}, 1);
    }
    if (!err && text.size) *out = as_text(text.data, text.size);
    tt_str_free(&text);
    return err;
}

static tt_err tell_tokens(look *l)
{
    tt_tokens_meta m;
    tt_shard h;
    json_t *first, *text;
    uint32_t most;
    tt_err err;

    if ((err = tt_shard_decode(l->path, l->file.data, l->file.size, &h))) return err;
    if ((err = tt_tokens_meta_read(l->arena, l->path, &m))) return err;
    if (!m.kind) m.kind = "";
    most = tt_shard_most(&h);
    if (m.there && most >= (uint32_t)m.vocab) {
        int64_t at = 0;
        while (tt_shard_at(&h, at) < (uint32_t)m.vocab) at++;
        return tt_fail(TT_EDATA, "%s: token %lld is %u, but %s says there are %d", l->path,
                       (long long)at, tt_shard_at(&h, at), m.path, m.vocab);
    }
    if ((err = tokens_text(l, &h, &m, &text))) return err;
    first = json_array();
    for (int64_t i = 0; i < h.count && i < SHOWN; i++)
        json_array_append_new(first, json_integer(tt_shard_at(&h, i)));
    say(l, "count", json_integer(h.count));
    say(l, "token_bytes", json_integer(h.wide ? 4 : 2));
    say(l, "header", json_string(h.plain ? "none" : "llm.c"));
    say(l, "most", json_integer(most));
    if (m.there) say(l, "vocab_size", json_integer(m.vocab));
    if (*m.kind) say(l, "tokens", json_string(m.kind));
    say(l, "first", json_pack("[o]", first));
    if (text) say(l, "text", text);
    say(l, "summary",
        json_string(tt_arena_printf(l->arena, "%s tokens of %d bits (%s), the highest is %u",
                                    count_text(l, h.count), h.wide ? 32 : 16,
                                    h.plain ? "no header: nanoGPT's" : "llm.c's", most)));
    return TT_OK;
}

/* ---- Tables: csv, tsv ---- */

/* Cells of a row, if the first rows all have as many; else 0. */
static int even_cells(const look *l, char separator)
{
    int cells = 0;
    bool more;
    tt_csv r;

    tt_csv_start(&r, l->path, (const char *)l->file.data, l->file.size, separator, 0);
    for (int i = 0; i < GUESS_ROWS; i++) {
        if (tt_csv_next(&r, &more) || (more && cells && r.count != cells)) {
            cells = 0;
            break;
        }
        if (!more) break;
        cells = r.count;
    }
    tt_csv_stop(&r);
    return cells > 1 ? cells : 0;
}

static char find_separator(const look *l, bool tabs)
{
    if (tabs) return '\t';
    return even_cells(l, ',') ? ',' : even_cells(l, ';') ? ';' : even_cells(l, '\t') ? '\t' : ',';
}

typedef struct column_tale {
    const char *name;
    int64_t numbers, missing;
} column_tale;

static json_t *row_text(const tt_csv *r)
{
    json_t *row = json_array();

    for (int i = 0; i < r->count; i++)
        json_array_append_new(row, as_text(r->cell[i].s, r->cell[i].n));
    return row;
}

/* Words above numbers are a header. */
static bool is_header(const tt_csv *first, const bool *numeric, int cells)
{
    bool below = false;
    double v;

    for (int i = 0; i < cells; i++) {
        if (tt_cell_number(first->cell[i].s, first->cell[i].n, &v)) return false;
        below |= numeric[i];
    }
    return below;
}

/* Is the first row a header? Looks at the second. */
static bool has_header(const look *l, char separator)
{
    tt_csv one, two;
    bool more = false, header = false, *numeric;
    double v;

    tt_csv_start(&one, l->path, (const char *)l->file.data, l->file.size, separator, 0);
    tt_csv_start(&two, l->path, (const char *)l->file.data, l->file.size, separator, 0);
    if (!tt_csv_next(&one, &more) && more && !tt_csv_next(&two, &more) &&
        !tt_csv_next(&two, &more) && more && two.count == one.count) {
        numeric = tt_arena_take(l->arena, (size_t)two.count, 1);
        for (int i = 0; i < two.count; i++)
            numeric[i] = tt_cell_number(two.cell[i].s, two.cell[i].n, &v);
        header = is_header(&one, numeric, one.count);
    }
    tt_csv_stop(&one);
    tt_csv_stop(&two);
    return header;
}

static void count_cells(const tt_csv *r, column_tale *c)
{
    double v;

    for (int i = 0; i < r->count; i++) {
        if (tt_cell_missing(r->cell[i]))
            c[i].missing++;
        else if (tt_cell_number(r->cell[i].s, r->cell[i].n, &v))
            c[i].numbers++;
    }
}

static json_t *say_columns(const column_tale *c, int cells)
{
    json_t *all = json_array();

    for (int i = 0; i < cells; i++) {
        json_t *j = json_pack("{s:I, s:I}", "numbers", (json_int_t)c[i].numbers, "missing",
                              (json_int_t)c[i].missing);
        if (c[i].name) json_object_set_new(j, "name", as_text(c[i].name, strlen(c[i].name)));
        json_array_append_new(all, j);
    }
    return all;
}

static tt_err tell_table(look *l, bool tabs)
{
    char separator = find_separator(l, tabs), sign[2] = {separator, 0};
    bool header = has_header(l, separator), more;
    json_t *first = json_array();
    column_tale *tale = NULL;
    int64_t rows = 0;
    int cells = 0;
    const uint8_t *nul = memchr(l->file.data, 0, l->file.size);
    tt_csv r;
    tt_err err;

    if (nul) {
        json_decref(first);
        return tt_fail(TT_EDATA, "%s: a NUL byte at offset %zu: this is no text", l->path,
                       (size_t)(nul - l->file.data));
    }
    tt_csv_start(&r, l->path, (const char *)l->file.data, l->file.size, separator, 0);
    while (!(err = tt_csv_next(&r, &more)) && more) {
        if (!tale) {
            cells = r.count;
            tale = tt_arena_take(l->arena, (size_t)cells * sizeof *tale, sizeof(void *));
            for (int i = 0; header && i < cells; i++)
                tale[i].name = tt_arena_printf(l->arena, "%.*s", (int)r.cell[i].n, r.cell[i].s);
            if (header) continue;
        }
        if (r.count != cells) {
            err = tt_fail(TT_EDATA, "%s: line %lld has %d cells, the first row %d", l->path,
                          (long long)r.line, r.count, cells);
            break;
        }
        count_cells(&r, tale);
        if (rows++ < l->o->rows) json_array_append_new(first, row_text(&r));
    }
    tt_csv_stop(&r);
    if (!err && !rows) err = tt_fail(TT_EDATA, "%s: no rows in it", l->path);
    say(l, "first", first);
    if (err) return err;
    say(l, "count", json_integer(rows));
    say(l, "separator", json_string(sign));
    say(l, "header", json_boolean(header));
    say(l, "columns", say_columns(tale, cells));
    say(l, "summary",
        json_string(tt_arena_printf(l->arena, "%s rows of %d columns%s", count_text(l, rows), cells,
                                    header ? ", with a header" : "")));
    return TT_OK;
}

static tt_err tell_csv(look *l)
{
    return tell_table(l, false);
}

static tt_err tell_tsv(look *l)
{
    return tell_table(l, true);
}

/* ---- LIBSVM ---- */

static json_t *first_entries(const look *l, const tt_source *s)
{
    json_t *rows = json_array();

    for (int64_t r = 0; r < s->kept && r < l->o->rows; r++) {
        json_t *row = json_pack("[o]", number(s->target[r]));
        for (int64_t i = s->row[r]; i < s->row[r + 1] && i < s->row[r] + SHOWN; i++)
            json_array_append_new(
                row, json_sprintf("%d:%g", s->col[i] + s->index_base, (double)s->val[i]));
        json_array_append_new(rows, row);
    }
    return rows;
}

static tt_err tell_libsvm(look *l)
{
    tt_data_want want = {.targets = 1};
    tt_source_ctx c = {.want = &want, .dir = ""};
    tt_libsvm_keys k = {.features = INT32_MAX};
    tt_source *s = tt_source_new();
    int64_t highest = -1;
    tt_err err;

    s->name = l->path;
    if ((err = tt_libsvm_decode(s, &c, &k, (const char *)l->file.data, l->file.size))) goto out;
    for (int64_t i = 0; i < s->row[s->kept]; i++)
        if (s->col[i] > highest) highest = s->col[i];
    say(l, "count", json_integer(s->kept));
    say(l, "entries", json_integer(s->row[s->kept]));
    say(l, "index_base", json_integer(s->index_base));
    say(l, "features", json_integer(highest + 1));
    say(l, "first", first_entries(l, s));
    say(l, "summary",
        json_string(tt_arena_printf(l->arena, "%s rows of %s features, the first of which is %d",
                                    count_text(l, s->kept), count_text(l, highest + 1),
                                    s->index_base)));
out:
    tt_source_close(s);
    return err;
}

static bool is_index(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9') return false;
    return n > 0;
}

/* A line of it: a number, then index:value. */
static bool is_libsvm_line(const char *s, size_t n, bool *entries)
{
    for (int word = 0; n; word++) {
        const char *colon;
        size_t k = 0;
        double v;
        while (n && (*s == ' ' || *s == '\t' || *s == '\r')) s++, n--;
        if (!n || *s == '#') return word > 0;
        while (k < n && s[k] != ' ' && s[k] != '\t' && s[k] != '\r') k++;
        colon = memchr(s, ':', k);
        if (!word && !tt_cell_number(s, k, &v)) return false;
        if (word && (!colon || !is_index(s, (size_t)(colon - s)))) return false;
        *entries |= word > 0;
        s += k, n -= k;
    }
    return true;
}

static bool is_libsvm(const look *l)
{
    const char *p = (const char *)l->file.data, *end = p + l->file.size;
    bool entries = false;

    for (int i = 0; i < GUESS_ROWS && p < end; i++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        if (stop > p && *p != '#' && !is_libsvm_line(p, (size_t)(stop - p), &entries)) return false;
        p = stop < end ? stop + 1 : end;
    }
    return entries;
}

/* ---- Text ---- */

static tt_err tell_text(look *l)
{
    uint8_t *seen = calloc(TT_CHARS / 8, 1);
    int64_t chars = 0, lines = 0, bad = 0, nuls = 0;
    const tt_bytes *f = &l->file;
    size_t shown = 0;
    int distinct = 0;

    if (!seen) tt_mem_out(TT_CHARS / 8);
    for (size_t at = 0; at < f->size;) {
        int32_t c = tt_char_next(f->data, f->size, &at);
        if (c < 0) {
            bad++, at++;
        } else if (!(seen[c / 8] >> c % 8 & 1)) {
            seen[c / 8] |= (uint8_t)(1 << c % 8);
            distinct++;
        }
        if (++chars <= SHOWN_TEXT) shown = at;
        lines += c == '\n';
        nuls += c == 0;
    }
    free(seen);
    if (f->size && f->data[f->size - 1] != '\n') lines++;
    if (!f->size) return tt_fail(TT_EDATA, "%s is empty", l->path);
    say(l, "count", json_integer(chars));
    say(l, "lines", json_integer(lines));
    say(l, "distinct", json_integer(distinct));
    say(l, "not_utf8", json_integer(bad));
    say(l, "text", as_text(f->data, shown));
    say(l, "summary",
        bad ? json_string(tt_arena_printf(
                  l->arena, "%s lines, %s bytes of which are not UTF-8 (tokens: bytes or gpt2)",
                  count_text(l, lines), count_text(l, bad)))
        : nuls
            ? json_string(tt_arena_printf(
                  l->arena,
                  "%s lines, with %s NUL bytes, which are no characters (tokens: bytes or "
                  "gpt2)",
                  count_text(l, lines), count_text(l, nuls)))
            : json_string(tt_arena_printf(l->arena, "%s lines, %s characters, %d different ones",
                                          count_text(l, lines), count_text(l, chars), distinct)));
    return TT_OK;
}

static bool is_text(const tt_bytes *f)
{
    size_t n = f->size < 65536 ? f->size : 65536;

    return !memchr(f->data, 0, n);
}

/* ---- Click logs ---- */

enum { CLICK_RECORD = 160, CLICK_CELLS = 40, CLICK_HASHES = 26, CLICK_NUMBERS = 13 };

/* Of each category, any 32 bits may be a hash: there is nothing to be told of them. */
static tt_err tell_clicks(look *l, bool text)
{
    tt_data_want want = {.input = {1, {CLICK_NUMBERS}}, .classes = 2, .labels = 1};
    tt_source_ctx c = {.want = &want, .dir = ""};
    tt_source *s = tt_source_new();
    tt_ints none = {0};
    int64_t clicks = 0;
    tt_err err;

    s->name = l->path;
    err = text ? tt_criteo_decode(s, &c, NULL, &none, (const char *)l->file.data, l->file.size)
               : tt_dlrm_decode(s, &c, NULL, &none, l->file.data, l->file.size);
    if (!err && !s->kept) err = tt_fail(TT_EDATA, "%s is empty", l->path);
    if (err) goto out;
    for (int64_t r = 0; s->label && r < s->kept; r++) clicks += s->label[r];
    say(l, "count", json_integer(s->kept));
    if (s->label)
        say(l, "counts",
            json_pack("{s:I, s:I}", "0", (json_int_t)(s->kept - clicks), "1", (json_int_t)clicks));
    say(l, "summary",
        json_string(tt_arena_printf(l->arena, "%s rows of %s13 numbers and 26 categories",
                                    count_text(l, s->kept), s->label ? "a label, " : "")));
out:
    tt_source_close(s);
    return err;
}

static tt_err tell_criteo(look *l)
{
    return tell_clicks(l, true);
}

static tt_err tell_dlrm(look *l)
{
    return tell_clicks(l, false);
}

/* Tabs between 39 or 40 cells, the last 26 of which are empty or 8 digits of a hash. */
static bool is_criteo_line(const char *s, size_t n)
{
    int cells = 1, hashes = 0;

    if (n && s[n - 1] == '\r') n--;
    for (size_t i = 0; i < n; i++) cells += s[i] == '\t';
    if (cells != CLICK_CELLS && cells != CLICK_CELLS - 1) return false;
    for (int left = cells; left; left--) {
        const char *tab = memchr(s, '\t', n);
        size_t k = tab ? (size_t)(tab - s) : n;
        if (left <= CLICK_HASHES && k) {
            for (size_t i = 0; i < k; i++)
                if (k != 8 || !isxdigit((unsigned char)s[i])) return false;
            hashes++;
        }
        if (tab) k++;
        s += k, n -= k;
    }
    return hashes > 0;
}

static bool is_criteo(const look *l)
{
    const char *p = (const char *)l->file.data, *end = p + l->file.size;
    int lines = 0;

    for (; lines < GUESS_ROWS && p < end; lines++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        if (!is_criteo_line(p, (size_t)(stop - p))) return false;
        p = stop < end ? stop + 1 : end;
    }
    return lines > 0;
}

/* Tokens would have to be 0, or 1 and 0, wherever a label is. Of a file that was cut, that must be
 * so often enough to be no chance. */
static bool is_dlrm(const tt_bytes *f)
{
    static const uint8_t no[4] = {0}, yes[4] = {1};
    enum { ENOUGH = 8 };

    if (f->size < CLICK_RECORD || (f->size % CLICK_RECORD && f->size / CLICK_RECORD < ENOUGH))
        return false;
    for (size_t at = 0; at + 4 <= f->size; at += CLICK_RECORD)
        if (memcmp(f->data + at, no, 4) && memcmp(f->data + at, yes, 4)) return false;
    return true;
}

/* Cut, or damaged: its header may still be one. */
static bool begins_as_idx(const tt_bytes *f)
{
    return f->size >= 4 && !f->data[0] && !f->data[1] && f->data[2] &&
           memchr("\x08\x09\x0b\x0c\x0d\x0e", f->data[2], 6);
}

/* ---- Which ---- */

static const struct teller {
    const char *format;
    tt_err (*tell)(look *);
} tellers[] = {{"idx", tell_idx},           {"npy", tell_npy},       {"cifar10", tell_cifar10},
               {"cifar100", tell_cifar100}, {"tokens", tell_tokens}, {"csv", tell_csv},
               {"tsv", tell_tsv},           {"libsvm", tell_libsvm}, {"text", tell_text},
               {"lines", tell_text},        {"criteo", tell_criteo}, {"dlrm", tell_dlrm}};

static const char *guess(const look *l)
{
    const tt_bytes *f = &l->file;
    int32_t magic = 0;

    if (!f->size) return NULL;
    if (f->size >= 4) memcpy(&magic, f->data, 4);
    if (f->size >= 6 && !memcmp(f->data, "\x93NUMPY", 6)) return "npy";
    if (magic / 10000 == 2024) return "tokens"; /* llm.c's, also those that are none */
    if (f->size >= 4 && !f->data[0] && !f->data[1] && tt_array_idx_size(f->data, f->size) > 4 &&
        (ends(l->path, "ubyte") || tt_array_idx_size(f->data, f->size) == f->size))
        return "idx";
    if (are_records(f, 1)) return "cifar10";
    if (are_records(f, 2)) return "cifar100";
    if (ends(l->path, ".csv")) return "csv";
    if (ends(l->path, ".tsv")) return "tsv";
    if (ends(l->path, ".npy")) return "npy";
    if (is_text(f) && !ends(l->path, ".bin")) {
        if (is_libsvm(l)) return "libsvm";
        if (is_criteo(l)) return "criteo";
        if (ends(l->path, ".txt")) return "text";
        return even_cells(l, ',') || even_cells(l, ';') ? "csv"
               : even_cells(l, '\t')                    ? "tsv"
                                                        : "text";
    }
    if (!ends(l->path, ".bin")) return begins_as_idx(f) ? "idx" : NULL;
    return is_dlrm(f) ? "dlrm" : "tokens";
}

static tt_err pick(const look *l, const struct teller **out)
{
    const char *names[TT_COUNT(tellers)], *format = l->o->format ? l->o->format : guess(l);
    const char *near;

    for (int i = 0; i < TT_COUNT(tellers); i++) {
        *out = &tellers[i];
        names[i] = tellers[i].format;
        if (format && !strcmp(format, names[i])) return TT_OK;
    }
    if (!format)
        return tt_fail(TT_EDATA,
                       l->file.size ? "%s is of no format that is known; if it is, say "
                                      "--format"
                                    : "%s is empty",
                       l->path);
    near = tt_nearest(format, names, TT_COUNT(names));
    return tt_fail(TT_EINVAL, "no format '%s'%s%s%s", format, near ? ": did you mean " : "",
                   near ? near : "", near ? "?" : "");
}

tt_err tt_data_inspect(const char *path, const tt_inspect_opts *o, json_t **out)
{
    look l = {.path = path, .o = o, .out = json_object()};
    const struct teller *teller;
    bool shard = ends(path, ".bin") || (o->format && !strcmp(o->format, "tokens"));
    tt_err err;

    *out = NULL;
    l.arena = tt_arena_open(4096);
    say(&l, "file", as_text(path, strlen(path)));
    err = shard ? tt_shard_read(path, &l.file) : tt_file_read_data(path, NULL, &l.file);
    if (err) {
        err = tt_context(TT_EDATA, "dataset");
        goto out;
    }
    say(&l, "bytes", json_integer((json_int_t)l.file.size));
    if ((err = pick(&l, &teller))) goto out;
    say(&l, "format", json_string(teller->format));
    if ((err = teller->tell(&l))) goto out;
    *out = json_incref(l.out);
out:
    json_decref(l.out);
    tt_file_release(&l.file);
    tt_arena_close(l.arena);
    return err;
}
