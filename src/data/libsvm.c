/* LIBSVM text: `label index:value index:value ... # comment`, kept sparse.
 *
 * Two passes: the first checks every line and learns how large things are and what the labels look
 * like, the second fills memory of the right size. */
#include "data/source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct cursor {
    const char *name, *p, *end; /* of the current line                 */
    const char *next, *stop;    /* where the next one starts; the end  */
    int64_t line;
} cursor;

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The next line that is not empty, without its comment. */
static bool next_line(cursor *c)
{
    while (c->next < c->stop) {
        const char *newline = memchr(c->next, '\n', (size_t)(c->stop - c->next)), *hash;
        c->p = c->next;
        c->end = newline ? newline : c->stop;
        c->next = newline ? newline + 1 : c->stop;
        c->line++;
        hash = memchr(c->p, '#', (size_t)(c->end - c->p));
        if (hash) c->end = hash;
        while (c->p < c->end && is_space(*c->p)) c->p++;
        while (c->end > c->p && is_space(c->end[-1])) c->end--;
        if (c->p < c->end) return true;
    }
    return false;
}

static size_t next_word(cursor *c, const char **word)
{
    while (c->p < c->end && is_space(*c->p)) c->p++;
    *word = c->p;
    while (c->p < c->end && !is_space(*c->p)) c->p++;
    return (size_t)(c->p - *word);
}

static tt_err bad(const cursor *c, const char *word, size_t n, const char *what)
{
    return tt_fail(TT_EDATA, "%s: line %lld: '%.*s' %s", c->name, (long long)c->line,
                   (int)(n > 40 ? 40 : n), word, what);
}

static tt_err take_label(cursor *c, double *label)
{
    const char *word;
    size_t n = next_word(c, &word);

    if (memchr(word, ',', n)) return bad(c, word, n, "is a list of labels; one is supported");
    if (!tt_cell_number(word, n, label)) return bad(c, word, n, "is no number for a label");
    return TT_OK;
}

/* One index:value; *more is false at the end of the line. */
static tt_err take_entry(cursor *c, int64_t *index, double *value, bool *more)
{
    const char *word, *colon;
    size_t n;

    do n = next_word(c, &word);
    while (n > 4 && !memcmp(word, "qid:", 4)); /* groups of ranking files play no part here */
    *more = n > 0;
    if (!n) return TT_OK;
    colon = memchr(word, ':', n);
    if (!colon || colon == word) return bad(c, word, n, "is no index:value");
    *index = 0;
    for (const char *p = word; p < colon; p++) {
        if (*p < '0' || *p > '9' || p - word > 9) return bad(c, word, n, "has no index before ':'");
        *index = *index * 10 + (*p - '0');
    }
    if (*index > INT32_MAX - 1) return bad(c, word, n, "has too large an index");
    if (!tt_cell_number(colon + 1, n - (size_t)(colon + 1 - word), value))
        return bad(c, word, n, "has no number after ':'");
    return TT_OK;
}

typedef struct survey {
    int64_t rows, entries, highest, highest_line;
    bool zero_index, sign, below_zero;
    double label_most, label_least;
} survey;

static tt_err look(cursor c, survey *v)
{
    double label, value;
    int64_t index, before;
    bool more;
    tt_err err;

    *v = (survey){.highest = -1, .sign = true, .label_most = -INFINITY, .label_least = INFINITY};
    while (next_line(&c)) {
        if ((err = take_label(&c, &label))) return err;
        if (label != 1 && label != -1) v->sign = false;
        v->below_zero |= label < 0;
        v->label_most = fmax(v->label_most, label);
        v->label_least = fmin(v->label_least, label);
        for (before = -1;; before = index) {
            if ((err = take_entry(&c, &index, &value, &more))) return err;
            if (!more) break;
            if (index <= before)
                return tt_fail(TT_EDATA, "%s: line %lld: index %lld after %lld; they must ascend",
                               c.name, (long long)c.line, (long long)index, (long long)before);
            if (index == 0) v->zero_index = true;
            if (index > v->highest) v->highest = index, v->highest_line = c.line;
            if (value != 0) v->entries++;
        }
        v->rows++;
    }
    return TT_OK;
}

/* How labels become class numbers: as the job says, else as in the training file, else by their
 * look. Targets (a regression) are numbers that stand for themselves. */
static int choose_label_base(const tt_libsvm_keys *k, const tt_source_ctx *c, const survey *v)
{
    if (k->labels) return k->labels == 3 ? TT_LABEL_SIGN : k->labels - 1;
    if (c->train) return c->train->label_base;
    if (c->want->classes <= 0) return 0;
    if (v->sign && v->below_zero) return TT_LABEL_SIGN;
    return v->label_least >= 1 && v->label_most == c->want->classes;
}

static tt_err check_survey(tt_source *s, const tt_source_ctx *c, const tt_libsvm_keys *k,
                           const survey *v)
{
    int64_t features = tt_shape_count(c->want->input);

    if (!v->rows) return tt_fail(TT_EDATA, "%s: no samples in it", s->name);
    if (k->index_base)
        s->index_base = k->index_base - 1;
    else
        s->index_base = c->train ? c->train->index_base : !v->zero_index;
    if (s->index_base == 1 && v->zero_index)
        return tt_fail(TT_EDATA, "%s: index 0, but indices start at 1 here (index_base)", s->name);
    s->label_base = choose_label_base(k, c, v);
    if (!c->train) {
        tt_source_tell(s, "index_base", json_integer(s->index_base));
        tt_source_tell(s, "label_base", json_integer(s->label_base));
    }
    if (k->features > 0) features = k->features;
    if (v->highest - s->index_base >= features)
        return tt_fail(
            TT_EDATA, "%s: line %lld: index %lld, but there are %lld features (%d to %lld)",
            s->name, (long long)v->highest_line, (long long)v->highest, (long long)features,
            s->index_base, (long long)(features - 1 + s->index_base));
    s->count = s->kept = v->rows;
    s->shape = (tt_shape){1, {features}};
    return TT_OK;
}

static tt_err class_of(const tt_source *s, const cursor *at, double *y)
{
    if (s->label_base != TT_LABEL_SIGN)
        *y -= s->label_base;
    else if (*y == 1 || *y == -1)
        *y = *y > 0;
    else
        return bad(at, "label", 5, "must be -1 or +1 in this file");
    return TT_OK;
}

static tt_err fill(tt_source *s, const tt_source_ctx *c, cursor at, const survey *v)
{
    int32_t *col, *label = NULL;
    float *val, *target = NULL;
    int64_t *row, index, n = 0, r = 0;
    double y, value;
    char where[64];
    bool more;
    tt_err err;

    if ((err = tt_source_block(s, v->rows + 1, 1, sizeof *row, &row))) return err;
    if ((err = tt_source_block(s, v->entries, 1, sizeof *col, &col))) return err;
    if ((err = tt_source_block(s, v->entries, 1, sizeof *val, &val))) return err;
    if (c->want->classes > 0 && !c->want->only_x)
        if ((err = tt_source_block(s, v->rows, 1, sizeof *label, &label))) return err;
    if (c->want->targets > 0 && !c->want->only_x)
        if ((err = tt_source_block(s, v->rows, 1, sizeof *target, &target))) return err;
    for (; next_line(&at); r++) {
        if ((err = take_label(&at, &y))) return err;
        if ((label || target) && (err = class_of(s, &at, &y))) return err;
        snprintf(where, sizeof where, "line %lld", (long long)at.line);
        if (label && (err = tt_source_label(c->want, s->name, where, y, &label[r]))) return err;
        if (target) target[r] = (float)y;
        row[r] = n;
        for (;;) {
            if ((err = take_entry(&at, &index, &value, &more))) return err;
            if (!more) break;
            if (value == 0) continue;
            col[n] = (int32_t)(index - s->index_base);
            val[n] = (float)value;
            if (!isfinite(val[n])) return bad(&at, "value", 5, "is too large for a float");
            n++;
        }
    }
    row[r] = n;
    s->keep = TT_KEEP_SPARSE;
    s->row = row;
    s->col = col;
    s->val = val;
    s->label = label;
    s->target = target;
    s->targets = target ? 1 : 0;
    return TT_OK;
}

tt_err tt_libsvm_decode(tt_source *s, const tt_source_ctx *c, const tt_libsvm_keys *k,
                        const char *text, size_t size)
{
    cursor at = {.name = s->name, .next = text, .stop = text + size};
    survey v;
    tt_err err;

    if ((err = look(at, &v))) return err;
    if ((err = check_survey(s, c, k, &v))) return err;
    return fill(s, c, at, &v);
}

/* features: a number, or `auto`. */
static tt_err read_features(tt_node *map, const char *text, int64_t *out)
{
    *out = 0;
    if (!strcmp(text, "auto")) return TT_OK;
    if (!tt_parse_int(text, out) || *out < 1 || *out > INT32_MAX)
        return tt_node_fail(tt_node_get(map, "features"), "features must be a number or auto");
    return TT_OK;
}

tt_err tt_source_libsvm(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    struct svm_keys {
        int format;
        const char *file, *features;
        int index_base, labels;
    } read;
    static const tt_key keys[] = {
        TT_FORMAT_KEY(struct svm_keys),
        {"file", TT_STRING, offsetof(struct svm_keys, file), NULL, 0, 0, NULL, "LIBSVM text file"},
        {"features", TT_STRING, offsetof(struct svm_keys, features), "auto", 0, 0, NULL,
         "number of features; auto: that of model.input"},
        {"index_base", TT_CHOICE, offsetof(struct svm_keys, index_base), "auto", 0, 0, "auto|0|1",
         "the first feature's index; auto: 0 if index 0 occurs, else 1"},
        {"labels", TT_CHOICE, offsetof(struct svm_keys, labels), "auto", 0, 0, "auto|0|1|sign",
         "labels start at 0, at 1, or are -1 and +1; auto: by what occurs (targets: as they are)"},
    };
    tt_libsvm_keys k = {0};
    tt_bytes file = {0};
    tt_err err;

    if ((err = tt_node_read(map, what, keys, TT_COUNT(keys), &read)) || c->look) return err;
    k.index_base = read.index_base;
    k.labels = read.labels;
    if ((err = read_features(map, read.features, &k.features))) return err;
    if ((err = tt_source_read(s, c, tt_node_get(map, "file"), read.file, NULL, &file, &s->name)))
        return err;
    err = tt_libsvm_decode(s, c, &k, (const char *)file.data, file.size);
    tt_file_release(&file);
    return err;
}
