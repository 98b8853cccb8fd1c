/* Columns of delimited text: what the job says of them, whether the file has a header, and where
 * each column stands. What cannot be found is most often a matter of a separator or a header other
 * than was thought, so messages look at the first row and say which. */
#include "data/csv.h"

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
         "numeric|category|id|label|target|skip",
         "what the column becomes; category: a feature for each word; id: a row of a table"},
        {"vocabulary", TT_NODE, offsetof(column_keys, vocabulary), "-", 0, 0, NULL,
         "category, id, label: auto (what occurs, sorted), or a list"},
        {"hash", TT_INT, offsetof(column_keys, hash), "-", 1, 1 << 30, NULL,
         "category, id: so many buckets instead of a vocabulary"},
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
    bool words = ck.type == CATEGORY || ck.type == ID;
    if (ck.hash && (!words || ck.vocabulary))
        return tt_node_fail(n, "'hash' is for columns of type category or id without vocabulary");
    if (ck.vocabulary && !words && ck.type != LABEL)
        return tt_node_fail(ck.vocabulary, "only columns of type category, id and label have one");
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

tt_err tt_csv_look(tt_source *s, const csv_keys *k, tt_schema *m)
{
    tt_schema none = {0};

    return build_columns(s, k, 0, m ? m : &none);
}

tt_err tt_csv_fail(const tt_node *n, const char *name, const char *what, const char *which)
{
    if (n) return tt_node_fail(n, "%s: %s %s", name, what, which);
    return tt_fail(TT_EINVAL, "%s: %s %s", name, what, which);
}

static bool is_answer(const column *c)
{
    return c->type == LABEL || c->type == TARGET;
}

/* Its place in the header; head_count if it is not there. */
static int find_name(const column *c, const char *const *head, int head_count)
{
    int at = 0;

    while (at < head_count && strcmp(head[at], c->name)) at++;
    return at;
}

/* Files to predict from often lack the columns of the answers. Those are told to stand where any
 * column is: nobody will look. In the short form, where all the others are features, the label goes
 * off the list; by number alone it is missed in rows that are no longer than the model's input. */
static void allow_absent_answers(tt_schema *m, bool short_form, const char *const *head,
                                 int head_count, int64_t features)
{
    for (int i = 0; i < m->count; i++) {
        column *c = &m->col[i];
        bool there = c->by_name ? find_name(c, head, head_count) < head_count
                                : c->index < m->width && c->index >= -m->width &&
                                      !(short_form && m->width == features);
        if (there || !is_answer(c)) continue;
        if (short_form) {
            m->count--; /* it is the last */
        } else {
            c->by_name = false;
            c->index = 0;
        }
    }
}

/* ---- What is not there, and why it might be ---- */

/* Names of columns are seldom numbers. */
static bool looks_like_data(const char *const *first, int count)
{
    int numbers = 0;
    double v;

    for (int i = 0; i < count; i++) numbers += tt_cell_number(first[i], strlen(first[i]), &v);
    return 2 * numbers >= count;
}

/* What seems to be the separator of a row that was not cut; 0: nothing does. */
static char likely_separator(const char *row, char used)
{
    for (const char *c = ";\t|,"; *c; c++)
        if (*c != used && strchr(row, *c)) return *c;
    return 0;
}

/* A first row that was not cut: adds by what it could be. */
static bool suspect_separator(const tt_schema *m, const char *const *first, int count, tt_str *out)
{
    char separator = count == 1 ? likely_separator(first[0], m->separator) : 0;

    if (!separator) return false;
    tt_str_add(out, ": its first line is one field, '%.80s'; `separator: %s` would cut it",
               first[0], separator == '\t' ? "tab" : (char[]){'\'', separator, '\'', 0});
    return true;
}

/* `first` is the first row (count cells), a header or not. Adds to `out` why a column is missing,
 * as far as that row tells. */
static void explain_absence(const tt_schema *m, const column *c, const char *const *first,
                            int count, tt_str *out)
{
    const char *near;

    if (suspect_separator(m, first, count, out)) return;
    if (!c->by_name) {
        tt_str_add(out, ": its rows have %d fields, and indices count from 0", m->width);
    } else if (!m->header) {
        tt_str_add(out, ": without a header columns are known by `index`, from 0");
    } else if (looks_like_data(first, count)) {
        tt_str_add(out, ": its first line has numbers; if that is no header, write `header: false` "
                        "and name columns by their index, from 0");
    } else if ((near = tt_nearest(c->name, first, count))) {
        tt_str_add(out, "; did you mean '%s'?", near);
    } else {
        tt_str_add(out, "; it has");
        for (int i = 0; i < count && i < 20; i++)
            tt_str_add(out, "%s '%.40s'", i ? "," : "", first[i]);
        if (count > 20) tt_str_add(out, " and %d more", count - 20);
    }
}

static tt_err fail_absent(const tt_source *s, const tt_schema *m, const column *c,
                          const char *const *first, int count)
{
    tt_str text = {0};
    tt_err err;

    if (c->by_name)
        tt_str_add(&text, "'%s'", c->name);
    else
        tt_str_add(&text, "%lld", (long long)c->index);
    explain_absence(m, c, first, count, &text);
    err = tt_csv_fail(c->node, s->name, "it has no column", text.data);
    tt_str_free(&text);
    return err;
}

/* Finds each column's place. `first` is the first row (count cells), a header or not. */
static tt_err place_columns(tt_source *s, tt_schema *m, const char *const *first, int count)
{
    int head_count = m->header ? count : 0;

    for (int i = 0; i < m->count; i++) {
        column *c = &m->col[i];
        if (c->by_name) {
            if ((c->at = find_name(c, first, head_count)) == head_count)
                return fail_absent(s, m, c, first, count);
            continue;
        }
        c->at = (int)(c->index < 0 ? c->index + m->width : c->index);
        if (c->index >= m->width || c->index < -m->width) return fail_absent(s, m, c, first, count);
        if (c->at < head_count && head_count == m->width) c->name = first[c->at];
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

/* ---- The header ---- */

/* Half or more of what should be numbers is not. One among numbers is a mistake, and its row must
 * not be skipped for it. */
static bool looks_like_header(const tt_schema *m, const tt_csv *first, int second_count)
{
    int numbers = 0, words = 0;
    double v;

    if (second_count && second_count != first->count) return true;
    for (int i = 0; i < m->count; i++) {
        const column *c = &m->col[i];
        int64_t at = c->index < 0 ? c->index + first->count : c->index;
        if (c->by_name) return true;
        if ((c->type != NUMERIC && c->type != TARGET) || at < 0 || at >= first->count) continue;
        tt_cell cell = tt_cell_trim(c, first->cell[at]);
        /* In the short form the label may be text in every row: it tells nothing. */
        bool is_label =
            m->col[m->count - 1].type == LABEL && !m->col[m->count - 1].by_name &&
            (m->col[m->count - 1].index == at || m->col[m->count - 1].index + first->count == at);
        if (is_label || tt_cell_missing(cell)) continue;
        if (tt_cell_number(cell.s, cell.n, &v))
            numbers++;
        else
            words++;
    }
    return words >= numbers && words > (numbers > 0);
}

tt_err tt_csv_columns(tt_source *s, const csv_keys *k, const tt_data_want *want, tt_schema *m,
                      tt_csv *r)
{
    tt_csv second = {0};
    const char **first;
    int second_count = 0, head_count;
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
    first = tt_arena_take(s->arena, sizeof *first * (size_t)r->count, sizeof *first);
    for (int i = 0; i < r->count; i++)
        first[i] = tt_arena_printf(s->arena, "%.*s", (int)r->cell[i].n, r->cell[i].s);
    head_count = m->header ? r->count : 0;
    if (want->only_x)
        allow_absent_answers(m, !k->columns, first, head_count, tt_shape_count(want->input));
    if (m->header && head_count != m->width)
        for (int i = 0; i < m->count; i++)
            if (m->col[i].by_name) {
                tt_str why = {0};
                suspect_separator(m, first, head_count, &why);
                err =
                    tt_fail(TT_EDATA, "%s: the header has %d fields, line %lld has %d%s", s->name,
                            head_count, (long long)second.line, m->width, why.size ? why.data : "");
                tt_str_free(&why);
                goto out;
            }
    if ((err = place_columns(s, m, first, r->count))) goto out;
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
