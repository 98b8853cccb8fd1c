/* CSV and TSV: columns become features, ids, labels and targets.
 *
 * Two passes. The first checks every row's width, counts, and collects vocabularies; then the
 * layout of the features is known, and the second fills them in. Rows with categories are kept
 * sparse: a one-hot column costs one entry however many words there are. The validation file uses
 * the training file's vocabularies, so that feature 17 means the same in both; csv_learned.c writes
 * them down for those who have not the training file. */
#include "data/csv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Cells ---- */

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

    if (tt_cell_missing(cell)) {
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
    if (!tt_cell_number(cell.s, cell.n, &v))
        return bad_cell(r, c, cell,
                        c->type == TARGET
                            ? "is no number, which a target must be"
                            : "is no number; in `columns`, words are `type: category`, and what "
                              "is of no use `type: skip`");
    *out = (float)v;
    return isfinite(*out) ? TT_OK : bad_cell(r, c, cell, "is too large");
}

/* The category's or label's text after `missing`; false if there is none. */
static bool word_cell(const column *c, tt_cell cell, tt_cell *out)
{
    *out = cell;
    if (!tt_cell_missing(cell)) return true;
    if (!c->missing) return false;
    *out = (tt_cell){c->missing, strlen(c->missing), true, 0};
    return true;
}

static tt_err check_missing(tt_source *s, tt_schema *m)
{
    for (int i = 0; i < m->count; i++) {
        column *c = &m->col[i];
        if (!c->missing || (c->type != NUMERIC && c->type != TARGET)) continue;
        if (!tt_cell_number(c->missing, strlen(c->missing), &c->missing_value))
            return tt_csv_fail(c->node, s->name,
                               "'missing' of a numeric column must be a number, not", c->missing);
    }
    return TT_OK;
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

/* Whatever answers nobody asks for are fine. What a given vocabulary calls the classes stays known.
 */
static void skip_answers(tt_source *s, const tt_data_want *want, tt_schema *m)
{
    bool labels = !want->only_x && (want->classes > 0 || want->targets == 1);

    for (int i = 0; i < m->count; i++) {
        column *c = &m->col[i];
        if (c->type == LABEL && want->only_x && c->fixed) {
            s->classes = tt_vocab_count(c->vocab);
            s->class_name = tt_vocab_words(c->vocab);
        }
        if ((c->type == LABEL && !labels) || (c->type == TARGET && want->only_x)) {
            c->type = SKIP;
            c->vocab = NULL;
        }
    }
}

/* The training file's words, by position: its columns and ours must be of the same kinds. */
static tt_err borrow_vocabularies(tt_source *s, const tt_data_want *want, tt_schema *m,
                                  const tt_schema *train)
{
    int used = 0, theirs = 0, k = 0;

    /* Only what becomes features must match in a file to predict from. */
    for (int i = 0; i < m->count; i++) used += !want->only_x || m->col[i].type <= ID;
    for (int i = 0; i < train->count; i++) theirs += !want->only_x || train->col[i].type <= ID;
    if (used != theirs)
        return tt_fail(TT_EDATA, "%s: %d columns are used, of the training file %d", s->name, used,
                       theirs);
    for (int i = 0; i < m->count; i++) {
        column *c = &m->col[i];
        const column *t;
        if (want->only_x && c->type > ID) continue;
        while (want->only_x && train->col[k].type > ID) k++;
        t = &train->col[k++];
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
            if (!word_cell(c, tt_cell_trim(c, r->cell[c->at]), &word)) continue;
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

/* The k-th id of a sample: the model's table for it must have a row for each word. */
static tt_err check_id(const tt_source *s, const tt_data_want *want, const column *c, int64_t k)
{
    int64_t words = c->hash ? c->hash : tt_vocab_count(c->vocab);
    int64_t rows = k < want->ids && want->id_rows ? want->id_rows[k] : 0;
    char text[160];

    if (!rows || words <= rows) return TT_OK;
    snprintf(text, sizeof text, "has %lld %s, but the model's table for id %lld has %lld rows",
             (long long)words, c->hash ? "buckets" : "words", (long long)k, (long long)rows);
    if (c->name) return tt_fail(TT_EDATA, "%s: column '%.60s' %s", s->name, c->name, text);
    return tt_fail(TT_EDATA, "%s: column %d %s", s->name, c->at, text);
}

static tt_err lay_out(tt_source *s, const tt_data_want *want, tt_schema *m)
{
    tt_err err;

    for (int i = 0; i < m->count; i++) {
        column *c = &m->col[i];
        c->width = 0;
        if (c->type == ID) {
            if ((err = check_id(s, want, c, m->ids))) return err;
            c->first = m->ids++;
            continue;
        }
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
    if (!m->features && !m->ids)
        return tt_fail(TT_EDATA, "%s: no column becomes a feature", s->name);
    if (m->ids != want->ids)
        return tt_fail(TT_EDATA, "%s: the model takes %lld ids, but %lld columns are `type: id`",
                       s->name, (long long)want->ids, (long long)m->ids);
    return TT_OK;
}

/* ---- Second pass ---- */

/* Words of a category that are not in its vocabulary: how many, and the first. */
typedef struct strange {
    int64_t count, line;
    char word[41];
} strange;

typedef struct filling {
    float *x; /* dense */
    int64_t *row;
    int32_t *col; /* sparse */
    float *val;
    int64_t entries;
    int32_t *ids;
    int32_t *label;
    float *target;
    bool minus;       /* a label is -1 */
    strange *strange; /* (columns) */
} filling;

static tt_err label_cell(const tt_data_want *want, const tt_csv *r, const column *c, tt_cell cell,
                         int32_t *out, bool *minus)
{
    char where[128];
    tt_cell word;
    double v;

    *out = -1;
    if (!word_cell(c, cell, &word)) return TT_OK;
    if (c->integers) {
        if (!tt_cell_number(word.s, word.n, &v)) return bad_cell(r, c, word, "is no class number");
        *minus |= v < 0;
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

static void note_strange(strange *s, const tt_csv *r, tt_cell word)
{
    if (s->count++) return;
    s->line = r->line;
    snprintf(s->word, sizeof s->word, "%.*s", (int)(word.n > 40 ? 40 : word.n), word.s);
}

/* They count as no word at all, which is sensible for a few and a mistake if it is most. */
static void tell_strange(const tt_source *src, const tt_schema *m, int64_t rows, const strange *s)
{
    char column_name[80];

    for (int i = 0; i < m->count; i++) {
        const column *c = &m->col[i];
        if (!s[i].count) continue;
        if (c->name)
            snprintf(column_name, sizeof column_name, "'%.60s'", c->name);
        else
            snprintf(column_name, sizeof column_name, "%d", c->at);
        tt_warn("%s: column %s: %lld of %lld rows have a word that is not in the vocabulary, such "
                "as '%s' in line %lld; the model sees none of its words there",
                src->name, column_name, (long long)s[i].count, (long long)rows, s[i].word,
                (long long)s[i].line);
    }
}

static tt_err fill_row(const tt_schema *m, const tt_data_want *want, const tt_csv *r, int64_t row,
                       filling *f)
{
    int64_t targets = 0;
    tt_err err = TT_OK;

    for (int i = 0; i < m->count && !err; i++) {
        const column *c = &m->col[i];
        tt_cell cell = tt_cell_trim(c, r->cell[c->at]), word;
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
        case ID:
            if (c->type == ID) f->ids[row * m->ids + c->first] = -1;
            if (!word_cell(c, cell, &word)) break;
            id = c->hash ? (int)(tt_vocab_hash(word.s, word.n) % (uint64_t)c->hash)
                         : tt_vocab_find(c->vocab, word.s, word.n);
            if (id < 0)
                note_strange(&f->strange[i], r, word);
            else if (c->type == ID)
                f->ids[row * m->ids + c->first] = id;
            else
                put(f, m, row, c->first + id, 1);
            break;
        case LABEL:
            err = label_cell(want, r, c, cell, &f->label[row], &f->minus);
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
    if (m->ids && (err = tt_source_block(s, rows, m->ids, sizeof *f->ids, &f->ids))) return err;
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
    f.strange = tt_arena_take(s->arena, sizeof *f.strange * (size_t)m->count, sizeof(int64_t));
    for (int64_t row = 0; row < rows; row++) {
        if ((err = tt_csv_next(r, &more))) return err;
        if (f.row) f.row[row] = f.entries;
        if ((err = fill_row(m, want, r, row, &f))) return err;
    }
    if (f.row) f.row[rows] = f.entries;
    tell_strange(s, m, rows, f.strange);
    s->keep = m->sparse ? TT_KEEP_SPARSE : TT_KEEP_F32;
    s->f32 = f.x;
    s->row = f.row;
    s->col = f.col;
    s->val = f.val;
    s->ids = f.ids;
    s->ids_each = m->ids;
    s->label = f.label;
    s->minus = f.minus;
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
        if (m->label >= 0) return tt_csv_fail(c->node, s->name, "two columns of type", "label");
        m->label = i;
        if (c->vocab && !c->fixed) c->integers = true; /* until a word shows up */
    }
    if (want->classes > 0 && m->label < 0 && !want->only_x)
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

void tt_csv_name_words(tt_source *s, const tt_schema *m)
{
    for (int i = 0; i < m->count; i++) {
        const column *c = &m->col[i];
        if (c->type != CATEGORY && c->type != ID) continue;
        if (c->vocab)
            tt_source_name_words(s, tt_vocab_words(c->vocab), tt_vocab_count(c->vocab));
        else
            tt_source_name_word(s, &c->hash, sizeof c->hash);
    }
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
    if ((err = tt_csv_columns(s, k, c->want, m, &r))) goto out;
    for (int i = 0; i < m->count; i++)
        if (m->col[i].type == LABEL ||
            ((m->col[i].type == CATEGORY || m->col[i].type == ID) && !m->col[i].hash))
            if ((err = given_vocabulary(s, &m->col[i]))) goto out;
    skip_answers(s, c->want, m);
    if (c->train && c->train->schema &&
        (err = borrow_vocabularies(s, c->want, m, c->train->schema)))
        goto out;
    if ((err = find_label(s, c->want, m))) goto out;
    again = r;
    again.cell = NULL;
    again.room = 0;
    again.unquoted = (tt_str){0};
    if ((err = survey_rows(m, &r, as_target, &rows))) goto out;
    if ((err = finish_label(s, c->want, m, as_target))) goto out;
    if ((err = check_missing(s, m))) goto out;
    if ((err = lay_out(s, c->want, m))) goto out;
    if ((err = fill_rows(s, m, c->want, &again, rows))) goto out;
    if ((err = mark_standardised(s, m))) goto out;
    tt_csv_name_words(s, m);
    s->schema = m;
    if (!c->train) tt_source_tell(s, "columns", tt_csv_tell(m));
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
     "list of {name or index, type, ...}; columns not listed are skipped. Ids are in their order"},
    {"label", TT_NODE, offsetof(csv_keys, label), "-", 0, 0, NULL,
     "instead of columns: name or index of the label, the others are numeric"},
    {"separator", TT_STRING, offsetof(csv_keys, separator), "-", 0, 0, NULL,
     "between fields; csv: a comma, tsv: a tab"},
    {"comment", TT_STRING, offsetof(csv_keys, comment), "-", 0, 0, NULL,
     "lines that start with this character are skipped"},
    {"missing", TT_STRING, offsetof(csv_keys, missing), "-", 0, 0, NULL,
     "stands for '?' and empty cells of numeric columns that say nothing of their own"},
};

tt_err tt_csv_keys(tt_node *map, const char *what, csv_keys *out)
{
    *out = (csv_keys){0};
    return tt_node_read(map, what, keys, TT_COUNT(keys), out);
}

tt_err tt_csv_decode(tt_source *s, tt_node *map, const char *what, const tt_source_ctx *c,
                     bool tabs, const char *text, size_t size)
{
    csv_keys k;
    tt_err err = tt_csv_keys(map, what, &k);

    return err ? err : decode(s, map, &k, c, tabs, text, size);
}

static tt_err open_text(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s,
                        bool tabs)
{
    csv_keys k;
    tt_bytes file = {0};
    tt_err err;

    if ((err = tt_csv_keys(map, what, &k))) return err;
    if (c->look) return tt_csv_look(s, &k, NULL);
    if ((err = tt_source_read(s, c, tt_node_get(map, "file"), k.file, NULL, &file, &s->name)))
        return err;
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
