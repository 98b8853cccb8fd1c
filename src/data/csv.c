/* CSV and TSV: columns become features, labels and targets.
 *
 * Two passes. The first checks every row's width, counts, and collects vocabularies; then the
 * layout of the features is known, and the second fills them in. Rows with categories are kept
 * sparse: a one-hot column costs one entry however many words there are. The validation file uses
 * the training file's vocabularies, so that feature 17 means the same in both. */
#include "data/csv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMERIC, CATEGORY, LABEL, TARGET, SKIP };
enum { HEADER_AUTO, HEADER_YES, HEADER_NO };

typedef struct csv_keys {
    int format, header;
    const char *file, *separator, *comment, *missing;
    tt_node *columns, *label;
} csv_keys;

typedef struct column {
    const char *name;    /* as the job or the header has it; NULL: by index alone      */
    int64_t index;       /* from 0, negative from the end; only without a name         */
    const char *missing; /* stands for '?' and empty cells; NULL: none                 */
    const char *strip;   /* characters cut from the end of a cell                      */
    tt_node *vocabulary;
    const tt_node *node; /* for messages                                               */
    int64_t hash;
    int type;
    bool normalize, by_name;

    int at;               /* place in a row                                             */
    tt_vocab *vocab;      /* CATEGORY without hash; LABEL by name                       */
    bool fixed;           /* the vocabulary is given: by the job or the training file   */
    bool integers;        /* LABEL: all are numbers and stand for themselves            */
    double missing_value; /* NUMERIC, TARGET                                            */
    int64_t first, width; /* features                                                   */
} column;

struct tt_schema {
    column *col;
    int count;
    int width; /* cells of a row */
    char separator, comment;
    bool header;
    bool sparse;
    int64_t features, targets;
    int label; /* which column, -1: none */
};

typedef struct column_keys {
    const char *name, *missing, *strip;
    int64_t index, hash;
    tt_node *vocabulary;
    int type;
    bool normalize;
} column_keys;

#define NO_INDEX INT64_MIN

static tt_err read_column(tt_node *n, const csv_keys *k, column *c)
{
    static const tt_key keys[] = {
        {"name", TT_STRING, offsetof(column_keys, name), "-", 0, 0, NULL, "name in the header"},
        {"index", TT_INT, offsetof(column_keys, index), "-", 0, 0, NULL,
         "or its place, from 0; negative from the end"},
        {"type", TT_CHOICE, offsetof(column_keys, type), "numeric", 0, 0,
         "numeric|category|label|target|skip", "what the column becomes"},
        {"vocabulary", TT_NODE, offsetof(column_keys, vocabulary), "-", 0, 0, NULL,
         "category, label: auto (what occurs, sorted), or a list"},
        {"hash", TT_INT, offsetof(column_keys, hash), "-", 1, 1 << 30, NULL,
         "category: so many buckets instead of a vocabulary"},
        {"missing", TT_STRING, offsetof(column_keys, missing), "-", 0, 0, NULL,
         "stands for '?' and empty cells"},
        {"normalize", TT_BOOL, offsetof(column_keys, normalize), "false", 0, 0, NULL,
         "numeric: to mean 0 and deviation 1 over the training set"},
        {"strip", TT_STRING, offsetof(column_keys, strip), "-", 0, 0, NULL,
         "characters to cut from the end of cells"},
    };
    column_keys ck = {.index = NO_INDEX};
    tt_err err;

    if ((err = tt_node_read(n, "column", keys, TT_COUNT(keys), &ck))) return err;
    if (!ck.name == (ck.index == NO_INDEX))
        return tt_node_fail(n, "a column needs either 'name' or 'index'");
    if (ck.hash && (ck.type != CATEGORY || ck.vocabulary))
        return tt_node_fail(n, "'hash' is for columns of type category without vocabulary");
    if (ck.vocabulary && ck.type != CATEGORY && ck.type != LABEL)
        return tt_node_fail(ck.vocabulary, "only columns of type category and label have one");
    if (ck.normalize && ck.type != NUMERIC)
        return tt_node_fail(n, "'normalize' is for columns of type numeric");
    if (!ck.missing && ck.type == NUMERIC) ck.missing = k->missing;
    *c = (column){.name = ck.name,
                  .index = ck.index,
                  .missing = ck.missing,
                  .strip = ck.strip,
                  .vocabulary = ck.vocabulary,
                  .node = n,
                  .hash = ck.hash,
                  .type = ck.type,
                  .normalize = ck.normalize,
                  .by_name = ck.name != NULL};
    return TT_OK;
}

/* The short form: `label: NAME` (or none), all other columns numeric. */
static void short_form(tt_source *s, const csv_keys *k, int width, tt_schema *m)
{
    m->col = tt_arena_take(s->arena, sizeof *m->col * (size_t)(width + 1), sizeof(void *));
    for (int i = 0; i < width; i++)
        m->col[m->count++] = (column){.index = i, .type = NUMERIC, .missing = k->missing};
    if (k->label) {
        int64_t at;
        bool number = !k->label->quoted && tt_parse_int(k->label->text, &at);
        m->col[m->count++] = (column){.name = number ? NULL : k->label->text,
                                      .index = number ? at : 0,
                                      .node = k->label,
                                      .type = LABEL,
                                      .by_name = !number};
    }
}

static tt_err build_columns(tt_source *s, const csv_keys *k, int width, tt_schema *m)
{
    tt_err err;

    if (!k->columns) {
        if (k->label && k->label->kind != TT_SCALAR)
            return tt_node_fail(k->label, "'label' must be the name or the index of a column");
        short_form(s, k, width, m);
        return TT_OK;
    }
    if (k->label) return tt_node_fail(k->label, "give either 'label' or 'columns', not both");
    if (k->columns->kind != TT_LIST || !k->columns->count)
        return tt_node_fail(k->columns, "'columns' must be a list of {name: ..., type: ...}");
    m->count = k->columns->count;
    m->col = tt_arena_take(s->arena, sizeof *m->col * (size_t)m->count, sizeof(void *));
    for (int i = 0; i < m->count; i++)
        if ((err = read_column(k->columns->item[i], k, &m->col[i]))) return err;
    return TT_OK;
}

static tt_err fail_at(const tt_node *n, const char *name, const char *what, const char *which)
{
    if (n) return tt_node_fail(n, "%s: %s %s", name, what, which);
    return tt_fail(TT_EINVAL, "%s: %s %s", name, what, which);
}

/* Finds each column's place. `head` is the header (count cells) or NULL. */
static tt_err place_columns(tt_source *s, tt_schema *m, const char *const *head, int head_count)
{
    for (int i = 0; i < m->count; i++) {
        column *c = &m->col[i];
        char index[32];
        if (c->by_name) {
            const char *near;
            for (c->at = 0; c->at < head_count && strcmp(head[c->at], c->name);) c->at++;
            if (c->at == head_count) {
                near = head_count ? tt_nearest(c->name, head, head_count) : NULL;
                if (near)
                    return tt_node_fail(c->node, "%s has no column '%s'; did you mean '%s'?",
                                        s->name, c->name, near);
                return fail_at(c->node, s->name, "no such column:", c->name);
            }
            continue;
        }
        c->at = (int)(c->index < 0 ? c->index + m->width : c->index);
        if (c->index >= m->width || c->index < -m->width) {
            snprintf(index, sizeof index, "%lld", (long long)c->index);
            return fail_at(c->node, s->name, "no column with index", index);
        }
        if (head && c->at < head_count && head_count == m->width) c->name = head[c->at];
    }
    return TT_OK;
}

/* In the short form the label was listed among the numeric columns too. */
static void drop_label_feature(tt_schema *m)
{
    int at, kept = 0;

    if (m->col[m->count - 1].type != LABEL) return;
    at = m->col[m->count - 1].at;
    for (int i = 0; i < m->count; i++)
        if (m->col[i].type == LABEL || m->col[i].at != at) m->col[kept++] = m->col[i];
    m->count = kept;
}

/* ---- Cells ---- */

static tt_cell trimmed(const column *c, tt_cell cell)
{
    while (c->strip && cell.n && strchr(c->strip, cell.s[cell.n - 1])) cell.n--;
    return cell;
}

static bool is_missing(tt_cell c)
{
    return c.n == 0 || (c.n == 1 && c.s[0] == '?' && !c.quoted);
}

static const char *where_is(const tt_csv *r, const column *c, char *buf, size_t size)
{
    if (c->name)
        snprintf(buf, size, "line %lld, column '%.60s'", (long long)r->line, c->name);
    else
        snprintf(buf, size, "line %lld, column %d", (long long)r->line, c->at);
    return buf;
}

static tt_err bad_cell(const tt_csv *r, const column *c, tt_cell cell, const char *what)
{
    char where[128];

    return tt_fail(TT_EDATA, "%s: %s: '%.*s' %s", r->name, where_is(r, c, where, sizeof where),
                   (int)(cell.n > 40 ? 40 : cell.n), cell.s, what);
}

static tt_err number_cell(const tt_csv *r, const column *c, tt_cell cell, float *out)
{
    double v;

    if (is_missing(cell)) {
        if (c->missing) {
            *out = (float)c->missing_value;
            return TT_OK;
        }
        if (c->type == TARGET) {
            *out = NAN;
            return TT_OK;
        }
        return bad_cell(r, c, cell, "has no value; `missing: 0` would fill it in");
    }
    if (!tt_cell_number(cell.s, cell.n, &v)) return bad_cell(r, c, cell, "is no number");
    *out = (float)v;
    return isfinite(*out) ? TT_OK : bad_cell(r, c, cell, "is too large");
}

/* The category's or label's text after `missing`; false if there is none. */
static bool word_cell(const column *c, tt_cell cell, tt_cell *out)
{
    *out = cell;
    if (!is_missing(cell)) return true;
    if (!c->missing) return false;
    *out = (tt_cell){c->missing, strlen(c->missing), true, 0};
    return true;
}

/* ---- The header ---- */

static bool looks_like_header(const tt_schema *m, const tt_csv *first, int second_count)
{
    double v;

    if (second_count && second_count != first->count) return true;
    for (int i = 0; i < m->count; i++) {
        const column *c = &m->col[i];
        int64_t at = c->index < 0 ? c->index + first->count : c->index;
        if (c->by_name) return true;
        if ((c->type != NUMERIC && c->type != TARGET) || at < 0 || at >= first->count) continue;
        tt_cell cell = trimmed(c, first->cell[at]);
        /* In the short form the label may be text in every row: it tells nothing. */
        bool is_label =
            m->col[m->count - 1].type == LABEL && !m->col[m->count - 1].by_name &&
            (m->col[m->count - 1].index == at || m->col[m->count - 1].index + first->count == at);
        if (!is_label && !is_missing(cell) && !tt_cell_number(cell.s, cell.n, &v)) return true;
    }
    return false;
}

static tt_err check_missing(tt_source *s, tt_schema *m)
{
    for (int i = 0; i < m->count; i++) {
        column *c = &m->col[i];
        if (!c->missing || (c->type != NUMERIC && c->type != TARGET)) continue;
        if (!tt_cell_number(c->missing, strlen(c->missing), &c->missing_value))
            return fail_at(c->node, s->name, "'missing' of a numeric column must be a number, not",
                           c->missing);
    }
    return TT_OK;
}

/* Reads the first rows, decides on the header and finds the columns. *r is left at the first row of
 * data. */
static tt_err open_header(tt_source *s, const csv_keys *k, tt_schema *m, tt_csv *r)
{
    tt_csv second = {0};
    const char **head = NULL;
    int second_count = 0, head_count = 0;
    bool more;
    tt_csv start = *r;
    tt_err err;

    if ((err = tt_csv_next(r, &more))) goto out;
    if (!more) {
        err = tt_fail(TT_EDATA, "%s: no rows in it", s->name);
        goto out;
    }
    second = *r;
    second.cell = NULL;
    second.room = 0;
    second.unquoted = (tt_str){0};
    if ((err = tt_csv_next(&second, &more))) goto out;
    second_count = more ? second.count : 0;
    if ((err = build_columns(s, k,
                             k->header == HEADER_NO || !second_count ? r->count : second_count, m)))
        goto out;
    m->header = k->header == HEADER_YES ||
                (k->header == HEADER_AUTO && looks_like_header(m, r, second_count));
    m->width = m->header ? second_count : r->count;
    if (!m->width) {
        err = tt_fail(TT_EDATA, "%s: a header and no rows", s->name);
        goto out;
    }
    if (m->header) {
        head_count = r->count;
        head = tt_arena_take(s->arena, sizeof *head * (size_t)head_count, sizeof *head);
        for (int i = 0; i < head_count; i++)
            head[i] = tt_arena_printf(s->arena, "%.*s", (int)r->cell[i].n, r->cell[i].s);
    }
    if (m->header && head_count != m->width)
        for (int i = 0; i < m->count; i++)
            if (m->col[i].by_name) {
                err = tt_fail(TT_EDATA, "%s: the header has %d fields, line %lld has %d", s->name,
                              head_count, (long long)second.line, m->width);
                goto out;
            }
    if ((err = place_columns(s, m, head, head_count))) goto out;
    if (!k->columns) drop_label_feature(m);
    if (!m->header) { /* the first row is data: read it again */
        start.cell = r->cell;
        start.room = r->room;
        start.unquoted = r->unquoted;
        *r = start;
    }
out:
    tt_csv_stop(&second);
    return err;
}

/* ---- Vocabularies ---- */

static tt_err given_vocabulary(tt_source *s, column *c)
{
    tt_node *v = c->vocabulary;

    c->vocab = tt_vocab_new(s->arena);
    if (!v || (v->kind == TT_SCALAR && !v->quoted && !strcmp(v->text, "auto"))) return TT_OK;
    if (v->kind != TT_LIST || !v->count)
        return tt_node_fail(v, "'vocabulary' must be auto or a list of words");
    for (int i = 0; i < v->count; i++) {
        if (v->item[i]->kind != TT_SCALAR) return tt_node_fail(v->item[i], "must be a word");
        if (tt_vocab_add(c->vocab, v->item[i]->text, strlen(v->item[i]->text)) != i)
            return tt_node_fail(v->item[i], "'%s' stands in the vocabulary twice",
                                v->item[i]->text);
    }
    c->fixed = true;
    return TT_OK;
}

/* The training file's words, by position: its columns and ours must be of the same kinds. */
static tt_err borrow_vocabularies(tt_source *s, tt_schema *m, const tt_schema *train)
{
    if (m->count != train->count)
        return tt_fail(TT_EDATA, "%s: %d columns are used, of the training file %d", s->name,
                       m->count, train->count);
    for (int i = 0; i < m->count; i++) {
        column *c = &m->col[i];
        const column *t = &train->col[i];
        if (c->type == LABEL && t->type == TARGET) c->type = TARGET;
        if (c->type != t->type || c->hash != t->hash)
            return tt_fail(TT_EDATA, "%s: column %d is of another type than in the training file",
                           s->name, c->at);
        c->vocab = t->vocab;
        c->integers = t->integers;
        c->fixed = true;
    }
    return TT_OK;
}

/* First pass: widths, words. */
static tt_err survey_rows(tt_schema *m, tt_csv *r, bool label_is_target, int64_t *rows)
{
    bool more;
    double v;
    tt_err err;

    for (*rows = 0;; ++*rows) {
        if ((err = tt_csv_next(r, &more))) return err;
        if (!more) break;
        if (r->count != m->width)
            return tt_fail(TT_EDATA, "%s: line %lld has %d fields, the rows before have %d",
                           r->name, (long long)r->line, r->count, m->width);
        for (int i = 0; i < m->count; i++) {
            column *c = &m->col[i];
            tt_cell word;
            if (!c->vocab || c->fixed) continue;
            if (!word_cell(c, trimmed(c, r->cell[c->at]), &word)) continue;
            if (c->type == LABEL && c->integers) {
                bool number = tt_cell_number(word.s, word.n, &v);
                c->integers = number && (label_is_target || v == floor(v));
            }
            if (tt_vocab_count(c->vocab) >= 10000000)
                return bad_cell(r, c, word, "is word 10,000,001 of its column; use `hash`");
            tt_vocab_add(c->vocab, word.s, word.n);
        }
    }
    for (int i = 0; i < m->count; i++)
        if (m->col[i].vocab && !m->col[i].fixed) tt_vocab_sort(m->col[i].vocab);
    return TT_OK;
}

static tt_err lay_out(tt_source *s, tt_schema *m)
{
    for (int i = 0; i < m->count; i++) {
        column *c = &m->col[i];
        c->width = 0;
        if (c->type == NUMERIC) c->width = 1;
        if (c->type == CATEGORY) {
            c->width = c->hash ? c->hash : tt_vocab_count(c->vocab);
            m->sparse = true;
        }
        if (c->type == TARGET) m->targets++;
        c->first = m->features;
        m->features += c->width;
        if (m->features > INT32_MAX) return tt_fail(TT_EDATA, "%s: too many features", s->name);
    }
    if (!m->features) return tt_fail(TT_EDATA, "%s: no column becomes a feature", s->name);
    return TT_OK;
}

/* ---- Second pass ---- */

typedef struct filling {
    float *x; /* dense */
    int64_t *row;
    int32_t *col; /* sparse */
    float *val;
    int64_t entries;
    int32_t *label;
    float *target;
} filling;

static tt_err label_cell(const tt_data_want *want, const tt_csv *r, const column *c, tt_cell cell,
                         int32_t *out)
{
    char where[128];
    tt_cell word;
    double v;

    *out = -1;
    if (!word_cell(c, cell, &word)) return TT_OK;
    if (c->integers) {
        if (!tt_cell_number(word.s, word.n, &v)) return bad_cell(r, c, word, "is no class number");
        return tt_source_label(want, r->name, where_is(r, c, where, sizeof where), v, out);
    }
    *out = tt_vocab_find(c->vocab, word.s, word.n);
    if (*out < 0) return bad_cell(r, c, word, "is no class of the vocabulary");
    return TT_OK;
}

static void put(filling *f, const tt_schema *m, int64_t row, int64_t feature, float v)
{
    if (!m->sparse) {
        f->x[row * m->features + feature] = v;
    } else if (v != 0) {
        f->col[f->entries] = (int32_t)feature;
        f->val[f->entries++] = v;
    }
}

static tt_err fill_row(const tt_schema *m, const tt_data_want *want, const tt_csv *r, int64_t row,
                       filling *f)
{
    int64_t targets = 0;
    tt_err err = TT_OK;

    for (int i = 0; i < m->count && !err; i++) {
        const column *c = &m->col[i];
        tt_cell cell = trimmed(c, r->cell[c->at]), word;
        float v;
        int id;
        switch (c->type) {
        case NUMERIC:
            if ((err = number_cell(r, c, cell, &v))) break;
            put(f, m, row, c->first, v);
            break;
        case TARGET:
            if ((err = number_cell(r, c, cell, &v))) break;
            if (isnan(v) && targets) {
                err = bad_cell(r, c, cell, "has no value; only the first target may lack one");
                break;
            }
            f->target[row * m->targets + targets++] = v;
            break;
        case CATEGORY:
            if (!word_cell(c, cell, &word)) break;
            id = c->hash ? (int)(tt_vocab_hash(word.s, word.n) % (uint64_t)c->hash)
                         : tt_vocab_find(c->vocab, word.s, word.n);
            if (id >= 0) put(f, m, row, c->first + id, 1);
            break;
        case LABEL:
            err = label_cell(want, r, c, cell, &f->label[row]);
            break;
        }
    }
    return err;
}

static tt_err allocate(tt_source *s, const tt_schema *m, int64_t rows, filling *f)
{
    int64_t each = 0;
    tt_err err;

    for (int i = 0; i < m->count; i++) each += m->col[i].type <= CATEGORY;
    if (m->sparse) {
        if ((err = tt_source_block(s, rows + 1, 1, sizeof *f->row, &f->row))) return err;
        if ((err = tt_source_block(s, rows, each, sizeof *f->col, &f->col))) return err;
        if ((err = tt_source_block(s, rows, each, sizeof *f->val, &f->val))) return err;
    } else if ((err = tt_source_block(s, rows, m->features, sizeof *f->x, &f->x))) {
        return err;
    }
    if (m->label >= 0 && (err = tt_source_block(s, rows, 1, sizeof *f->label, &f->label)))
        return err;
    if (m->targets && (err = tt_source_block(s, rows, m->targets, sizeof *f->target, &f->target)))
        return err;
    return TT_OK;
}

static tt_err fill_rows(tt_source *s, const tt_schema *m, const tt_data_want *want, tt_csv *r,
                        int64_t rows)
{
    filling f = {0};
    bool more;
    tt_err err;

    if ((err = allocate(s, m, rows, &f))) return err;
    for (int64_t row = 0; row < rows; row++) {
        if ((err = tt_csv_next(r, &more))) return err;
        if (f.row) f.row[row] = f.entries;
        if ((err = fill_row(m, want, r, row, &f))) return err;
    }
    if (f.row) f.row[rows] = f.entries;
    s->keep = m->sparse ? TT_KEEP_SPARSE : TT_KEEP_F32;
    s->f32 = f.x;
    s->row = f.row;
    s->col = f.col;
    s->val = f.val;
    s->label = f.label;
    s->target = f.target;
    s->targets = m->targets;
    s->count = s->kept = rows;
    s->shape = (tt_shape){1, {m->features}};
    return TT_OK;
}

/* ---- All of it ---- */

static tt_err one_character(tt_node *map, const char *key, const char *text, char preset, char *out)
{
    *out = preset;
    if (!text) return TT_OK;
    if (!strcmp(text, "tab")) text = "\t";
    if (strlen(text) != 1 || *text == '"' || *text == '\n')
        return tt_node_fail(tt_node_get(map, key), "'%s' must be one character, or tab", key);
    *out = *text;
    return TT_OK;
}

static tt_err find_label(tt_source *s, const tt_data_want *want, tt_schema *m)
{
    m->label = -1;
    for (int i = 0; i < m->count; i++) {
        column *c = &m->col[i];
        if (c->type != LABEL) continue;
        if (m->label >= 0) return fail_at(c->node, s->name, "two columns of type", "label");
        m->label = i;
        if (c->vocab && !c->fixed) c->integers = true; /* until a word shows up */
    }
    if (want->classes > 0 && m->label < 0)
        return tt_fail(TT_EDATA,
                       "%s: the loss wants labels, but no column is one; write "
                       "`label: NAME`",
                       s->name);
    return TT_OK;
}

static tt_err finish_label(tt_source *s, const tt_data_want *want, tt_schema *m, bool as_target)
{
    column *c;

    if (m->label < 0) return TT_OK;
    c = &m->col[m->label];
    if (c->integers && as_target) {
        c->type = TARGET; /* numbers of any kind, e.g. 151.5 */
        m->label = -1;
        return TT_OK;
    }
    if (c->integers || c->type != LABEL) return TT_OK;
    if (want->classes > 0 && tt_vocab_count(c->vocab) > want->classes)
        return tt_fail(TT_EDATA,
                       "%s: %d different labels ('%s', '%s' ...), but the model has %d classes",
                       s->name, tt_vocab_count(c->vocab), tt_vocab_words(c->vocab)[0],
                       tt_vocab_words(c->vocab)[1], want->classes);
    s->classes = tt_vocab_count(c->vocab);
    s->class_name = tt_vocab_words(c->vocab);
    return TT_OK;
}

static tt_err mark_standardised(tt_source *s, const tt_schema *m)
{
    bool *mark = NULL;
    tt_err err;

    for (int i = 0; i < m->count; i++) {
        if (!m->col[i].normalize) continue;
        if (!mark && (err = tt_source_block(s, m->features, 1, sizeof *mark, &mark))) return err;
        mark[m->col[i].first] = true;
    }
    s->standardise = mark;
    return TT_OK;
}

static tt_err decode(tt_source *s, tt_node *map, const csv_keys *k, const tt_source_ctx *c,
                     bool tabs, const char *text, size_t size)
{
    const char *nul = size ? memchr(text, 0, size) : NULL;
    tt_schema *m = tt_arena_take(s->arena, sizeof *m, sizeof(void *));
    bool as_target = c->want->classes <= 0 && c->want->targets == 1;
    tt_csv r = {0}, again = {0};
    int64_t rows;
    tt_err err;

    if (nul)
        return tt_fail(TT_EDATA, "%s: a NUL byte at offset %zu: this is no text", s->name,
                       (size_t)(nul - text));
    if ((err = one_character(map, "separator", k->separator, tabs ? '\t' : ',', &m->separator)))
        return err;
    if ((err = one_character(map, "comment", k->comment, 0, &m->comment))) return err;
    tt_csv_start(&r, s->name, text, size, m->separator, m->comment);
    if ((err = open_header(s, k, m, &r))) goto out;
    if (c->want->classes <= 0 && !as_target) /* nobody asks for labels: whatever they are is fine */
        for (int i = 0; i < m->count; i++)
            if (m->col[i].type == LABEL) m->col[i].type = SKIP;
    for (int i = 0; i < m->count; i++)
        if (m->col[i].type == LABEL || (m->col[i].type == CATEGORY && !m->col[i].hash))
            if ((err = given_vocabulary(s, &m->col[i]))) goto out;
    if (c->train && c->train->schema && (err = borrow_vocabularies(s, m, c->train->schema)))
        goto out;
    if ((err = find_label(s, c->want, m))) goto out;
    again = r;
    again.cell = NULL;
    again.room = 0;
    again.unquoted = (tt_str){0};
    if ((err = survey_rows(m, &r, as_target, &rows))) goto out;
    if ((err = finish_label(s, c->want, m, as_target))) goto out;
    if ((err = check_missing(s, m))) goto out;
    if ((err = lay_out(s, m))) goto out;
    if ((err = fill_rows(s, m, c->want, &again, rows))) goto out;
    if ((err = mark_standardised(s, m))) goto out;
    s->schema = m;
out:
    tt_csv_stop(&r);
    tt_csv_stop(&again);
    return err;
}

static const tt_key keys[] = {
    TT_FORMAT_KEY(csv_keys),
    {"file", TT_STRING, offsetof(csv_keys, file), NULL, 0, 0, NULL, "text file, plain or gzip"},
    {"header", TT_CHOICE, offsetof(csv_keys, header), "auto", 0, 0, "auto|true|false",
     "the first row names the columns; auto: if it looks so"},
    {"columns", TT_NODE, offsetof(csv_keys, columns), "-", 0, 0, NULL,
     "list of {name or index, type, ...}; columns not listed are skipped"},
    {"label", TT_NODE, offsetof(csv_keys, label), "-", 0, 0, NULL,
     "instead of columns: name or index of the label, the others are numeric"},
    {"separator", TT_STRING, offsetof(csv_keys, separator), "-", 0, 0, NULL,
     "between fields; csv: a comma, tsv: a tab"},
    {"comment", TT_STRING, offsetof(csv_keys, comment), "-", 0, 0, NULL,
     "lines that start with this character are skipped"},
    {"missing", TT_STRING, offsetof(csv_keys, missing), "-", 0, 0, NULL,
     "stands for '?' and empty cells of numeric columns that say nothing of their own"},
};

tt_err tt_csv_decode(tt_source *s, tt_node *map, const char *what, const tt_source_ctx *c,
                     bool tabs, const char *text, size_t size)
{
    csv_keys k = {0};
    tt_err err = tt_node_read(map, what, keys, TT_COUNT(keys), &k);

    return err ? err : decode(s, map, &k, c, tabs, text, size);
}

static tt_err open_text(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s,
                        bool tabs)
{
    csv_keys k = {0};
    tt_bytes file = {0};
    tt_err err;

    if ((err = tt_node_read(map, what, keys, TT_COUNT(keys), &k))) return err;
    if ((err = tt_source_read(s, c, tt_node_get(map, "file"), k.file, &file, &s->name))) return err;
    err = decode(s, map, &k, c, tabs, (const char *)file.data, file.size);
    tt_file_release(&file);
    return err;
}

tt_err tt_source_csv(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    return open_text(map, what, c, s, false);
}

tt_err tt_source_tsv(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    return open_text(map, what, c, s, true);
}
