/* tables: rows that are not in the flat array: whether a job has any, and their place in
 * checkpoints.
 *
 * A checkpoint has of each table `<name>.rows`, the numbers of the rows that are there, ascending,
 * `<name>`, their weights, and of each vector of the optimiser `<slot>.<name>`. A tensor without
 * .rows has all rows. So what was saved by a job with tables can be loaded into one that has the
 * same rows as parameters, and the other way round. What of a table is not on disk is told by
 * `<name>.table`: a hash of how its first row begins, for what nobody has named follows from
 * train.seed and the layer's init, and how many rows each of its parts has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/table.h"
#include "trainer.h"

/* ---- Whether there are any ---- */

/* Why rows are parameters like all others; NULL: they need not be. */
static const char *why_dense(const tt_trainer *t, bool rule)
{
    if (t->plan.aggregate == TT_AVERAGE)
        return "with aggregate: average every worker has weights of its own";
    if (t->plan.backup) return "parallel.backup takes whole gradients";
    if (t->plan.audit > 0) return "parallel.audit compares whole gradients";
    if (!rule) return "the optimizer has no rule for rows: name another one in train.tables";
    return NULL;
}

tt_err tables_model(tt_trainer *t, tt_model_opts *mo)
{
    const char *why;
    bool rule;
    tt_err err;

    if ((err = tt_optim_has_rows(t->conf.optimizer, t->conf.tables, &rule))) return err;
    mo->tables = true;
    if ((err = tt_model_open(t->job.model, mo, &t->model))) return err;
    t->tables = tt_model_tables(t->model, &t->table_count);
    if (!t->table_count || !(why = why_dense(t, rule))) return TT_OK;
    t->dense_rows = why;
    tt_model_close(t->model);
    t->model = NULL;
    t->table_count = 0;
    mo->tables = false;
    return tt_model_open(t->job.model, mo, &t->model);
}

tt_err tables_optim(tt_trainer *t)
{
    const train_conf *c = &t->conf;
    size_t count = (size_t)(t->param_count + t->table_count);
    tt_param *all = calloc(count + 1, sizeof *all);
    tt_err err;

    if (!all) return tt_fail(TT_ENOMEM, "no memory for a list of %zu parameters", count);
    memcpy(all, t->params, (size_t)t->param_count * sizeof *all);
    for (int i = 0; i < t->table_count; i++)
        all[t->param_count + i] = (tt_param){.name = t->tables[i].name,
                                             .at = t->size,
                                             .rank = 2,
                                             .shape = {t->tables[i].rows, t->tables[i].dim},
                                             .role = TT_WEIGHT,
                                             .frozen = t->tables[i].frozen};
    err = tt_optim_open(c->optimizer, c->schedule, c->clip, c->groups, all, (int)count, t->steps,
                        t->epoch_steps, &t->optim);
    free(all);
    if (err || !t->table_count) return err;
    if ((err = tt_optim_set_tables(t->optim, c->tables, t->table_count))) return err;
    return TT_OK;
}

/* Does the job ask for decay, rather than the optimiser by its default? */
static bool decay_asked(const train_conf *c)
{
    static const char *const keys[] = {"weight_decay", "l2", "l1"};
    const tt_node *o = c->optimizer && c->optimizer->count ? c->optimizer->item[0] : NULL;

    for (int i = 0; o && o->kind == TT_MAP && i < TT_COUNT(keys); i++)
        if (tt_node_get(o, keys[i]) && !tt_node_get(o, keys[i])->is_default) return true;
    return c->tables || c->groups;
}

void tables_tell(const tt_trainer *t)
{
    if (t->dense_rows)
        tt_info("sparse: all rows are read and written with each step, because %s", t->dense_rows);
    if (t->dense_rows && t->conf.tables)
        tt_warn("train.tables is for rows that are no parameters, and here they are: "
                "train.optimizer is theirs, too");
    else if (!t->table_count && t->conf.tables)
        tt_warn("train.tables is for layers that are sparse, and the model has none");
    if (t->table_count && tt_optim_rows_decay(t->optim) && decay_asked(&t->conf))
        tt_warn("l2, l1 and weight_decay do not apply to rows of tables: they would change every "
                "row with each step; with sparse: false they do");
}

/* ---- Saving ---- */

static tt_table *rows_of(const tt_trainer *t, int i)
{
    return tt_strategy_table(t->strategy, i);
}

int tables_entries(const tt_trainer *t)
{
    return t->table_count ? t->table_count * (3 + tt_optim_rows_slots(t->optim)) : 0;
}

static int64_t hash_row(const float *row, int64_t dim)
{
    uint64_t h = (uint64_t)dim;

    for (int64_t d = 0; d < dim; d++) {
        uint32_t bits;
        memcpy(&bits, row + d, sizeof bits);
        h = tt_mix(h ^ bits);
    }
    return (int64_t)h;
}

int64_t tables_begin(const tt_trainer *t, int i)
{
    int64_t dim = t->tables[i].dim, h;
    float *row = malloc((size_t)dim * sizeof *row);

    if (!row) tt_mem_out((size_t)dim * sizeof *row);
    tt_model_table_init(t->model, i, 0, row);
    h = hash_row(row, dim);
    free(row);
    return h;
}

/* What of a record a vector has: where it begins, and how many numbers. */
static int part_of(const tt_trainer *t, int i, int vector, const char **slot, int *n)
{
    int at = (int)t->tables[i].dim;

    *n = at;
    if (vector == TABLE_WEIGHTS) return 0;
    for (int k = 0; k < TABLE_SLOTS - vector; k++) at += tt_optim_rows_slot(t->optim, i, k, slot);
    *n = tt_optim_rows_slot(t->optim, i, TABLE_SLOTS - vector, slot);
    return at;
}

void tables_measure(const tt_trainer *t, int i, int vector, tt_entry *out)
{
    int64_t count = tt_table_count(rows_of(t, i)), dim = t->tables[i].dim;
    const char *slot;
    int n;

    if (vector == TABLE_HEAD) count = 1 + t->tables[i].parts.count;
    *out = (tt_entry){.type = TT_I64, .rank = 1, .shape = {count}, .bytes = count * 8};
    if (vector == TABLE_ROWS || vector == TABLE_HEAD) return;
    part_of(t, i, vector, &slot, &n);
    out->type = TT_F32;
    out->bytes = count * n * 4;
    if (n != dim) return; /* one number for the row */
    out->rank = 2;
    out->shape[1] = dim;
}

const char *tables_entry(const tt_trainer *t, int i, int vector, tt_entry *out)
{
    const char *name = t->tables[i].name, *slot = NULL;
    int n;

    tables_measure(t, i, vector, out);
    if (vector <= TABLE_SLOTS) part_of(t, i, vector, &slot, &n);
    out->name = slot                   ? tt_arena_printf(t->arena, "%s.%s", slot, name)
                : vector == TABLE_ROWS ? tt_arena_printf(t->arena, "%s.rows", name)
                : vector == TABLE_HEAD ? tt_arena_printf(t->arena, "%s.table", name)
                                       : name;
    return slot ? "optim.safetensors" : "model.safetensors";
}

void tables_fill(const tt_trainer *t, int i, int vector, void *to)
{
    const tt_table *rows = rows_of(t, i);
    const char *slot;
    int n = 0, at = vector > TABLE_WEIGHTS ? 0 : part_of(t, i, vector, &slot, &n);

    if (vector == TABLE_HEAD) {
        const tt_parts *p = &t->tables[i].parts;
        *(int64_t *)to = tables_begin(t, i);
        memcpy((int64_t *)to + 1, p->rows, (size_t)p->count * sizeof *p->rows);
        return;
    }
    for (int64_t r = tt_table_next(rows, 0), k = 0; r >= 0; r = tt_table_next(rows, r + 1), k++)
        if (vector == TABLE_ROWS)
            ((int64_t *)to)[k] = r;
        else
            memcpy((float *)to + k * n, tt_table_look(rows, r) + at, (size_t)n * sizeof(float));
}

/* ---- Restoring ---- */

static int64_t number_at(const tt_entry *rows, int64_t k)
{
    int64_t r;

    memcpy(&r, (const char *)rows->data + 8 * k, sizeof r);
    return r;
}

/* Are they numbers of rows, ascending, and is there something for each? */
static tt_err check_rows(const tt_entry *rows, const tt_entry *values, int64_t most)
{
    int64_t before = -1;

    if (rows->type != TT_I64 || rows->rank != 1 || values->rank < 1 ||
        values->shape[0] != rows->shape[0])
        return tt_fail(TT_ECKPT, "'%s' is no list of the rows of '%s'", rows->name, values->name);
    for (int64_t k = 0; k < rows->shape[0]; k++) {
        int64_t r = number_at(rows, k);
        if (r <= before || r >= most)
            return tt_fail(TT_ECKPT, "'%s' has row %lld behind %lld: they ascend, below %lld",
                           rows->name, (long long)r, (long long)before, (long long)most);
        before = r;
    }
    return TT_OK;
}

static tt_err fail_shape(const char *name)
{
    return tt_fail(TT_ECKPT,
                   "'%s' has another shape in the checkpoint: it belongs to another model", name);
}

/* The numbers of an entry of `n` rows of `each`; free them. */
static tt_err take_floats(const tt_entry *e, int64_t n, int64_t each, float **out)
{
    tt_err err;

    *out = NULL;
    if (e->bytes / (int64_t)tt_dtype_size(e->type) != n * each || e->rank < 1 || e->shape[0] != n)
        return fail_shape(e->name);
    if (!(*out = malloc(tt_mul_size((size_t)(n * each) + 1, sizeof **out))))
        return tt_fail(TT_ENOMEM, "no memory for '%s'", e->name);
    if ((err = tt_entry_floats(e, *out, n * each))) {
        free(*out);
        *out = NULL;
    }
    return err;
}

/* "[1000, 5000]", or the beginning of it; of `head`, or of `p` */
static void show_parts(const tt_entry *head, const tt_parts *p, char *out, size_t size)
{
    enum { SOME = 8 };
    int count = head ? (int)(head->shape[0] - 1) : p->count;
    size_t n = (size_t)snprintf(out, size, "[");

    for (int i = 0; i < count && i < SOME && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%lld", i ? ", " : "",
                              (long long)(head ? number_at(head, i + 1) : p->rows[i]));
    if (n < size) snprintf(out + n, size - n, count > SOME ? ", ...]" : "]");
}

/* `begin`: of the model's table; NULL: not known yet. */
static tt_err check_head(const tt_entry *head, const tt_entry *rows, tt_parts parts,
                         const int64_t *begin)
{
    char have[256], want[256];

    if (!head) return TT_OK;
    if (head->type != TT_I64 || head->rank != 1 || head->shape[0] < 1)
        return tt_fail(TT_ECKPT, "'%s' does not describe a table", head->name);
    bool same = !parts.count || head->shape[0] == 1 + parts.count;
    for (int i = 0; i < parts.count && same; i++) same = number_at(head, i + 1) == parts.rows[i];
    if (!same) {
        show_parts(head, NULL, have, sizeof have);
        show_parts(NULL, &parts, want, sizeof want);
        return tt_fail(TT_ECKPT, "'%s': the rows of its tables are %s, of the model's %s",
                       head->name, have, want);
    }
    if (!begin || number_at(head, 0) == *begin) return TT_OK;
    if (!rows->shape[0])
        return tt_fail(TT_ECKPT,
                       "'%s': no row of the table is on disk, for none was ever changed; all "
                       "follow from train.seed and the layer's init, which are others now",
                       rows->name);
    tt_warn("'%s': rows that no sample has named yet are others than before: train.seed or the "
            "layer's init has changed",
            rows->name);
    return TT_OK;
}

tt_err tables_scatter(const tt_entry *head, const tt_entry *rows, const tt_entry *values,
                      const tt_param *p, float *to)
{
    int64_t n = p->shape[0], each = p->shape[1];
    float *from = NULL;
    int64_t begin = head ? hash_row(to, each) : 0; /* so far all is as a training begins */
    tt_err err;

    if ((err = check_head(head, rows, p->parts, &begin)) || (err = check_rows(rows, values, n)) ||
        (err = take_floats(values, rows->shape[0], each, &from)))
        return err;
    for (int64_t k = 0; k < rows->shape[0]; k++)
        memcpy(to + number_at(rows, k) * each, from + k * each, (size_t)each * sizeof *to);
    free(from);
    return TT_OK;
}

/* The records of `n` rows, of which the vectors are in `from`. One of all that is as if it was
 * never touched is left out: it is as well not there. */
static tt_err put_records(tt_trainer *t, int i, const tt_entry *rows, int64_t n, float *const *from,
                          int vectors)
{
    int floats = tt_optim_rows_record(t->optim, i);
    float *record = calloc(2 * (size_t)floats, sizeof *record), *fresh = record + floats;
    tt_err err = TT_OK;

    if (!record) tt_mem_out(2 * (size_t)floats * sizeof *record);
    for (int64_t k = 0; k < n && !err; k++) {
        int64_t r = rows ? number_at(rows, k) : k;
        tt_optim_rows_fresh(t->optim, i, record);
        for (int v = 0; v < vectors; v++) {
            const char *slot;
            int each, at = part_of(t, i, TABLE_WEIGHTS - v, &slot, &each);
            memcpy(record + at, from[v] + k * each, (size_t)each * sizeof *record);
        }
        if (!rows) {
            tt_model_table_init(t->model, i, r, fresh);
            tt_optim_rows_fresh(t->optim, i, fresh);
            if (!memcmp(record, fresh, (size_t)floats * sizeof *record)) continue;
        }
        err = tt_table_put(rows_of(t, i), r, record);
    }
    free(record);
    return err;
}

tt_err tables_fit(const tt_trainer *t, int i, const tt_entry *head, const tt_entry *rows,
                  const tt_entry *values, bool bound)
{
    const tt_model_table *m = &t->tables[i];
    int64_t begin = bound ? tables_begin(t, i) : 0;
    tt_err err = rows ? check_head(head, rows, m->parts, bound ? &begin : NULL) : TT_OK;

    return err || !rows ? err : check_rows(rows, values, m->rows);
}

tt_err tables_put(tt_trainer *t, int i, const tt_entry *rows, const tt_entry *values)
{
    const tt_model_table *m = &t->tables[i];
    int64_t n = rows ? rows->shape[0] : m->rows;
    float *w = NULL;
    tt_err err = take_floats(values, n, m->dim, &w);

    for (int64_t k = 0; k < n * m->dim && !err; k++)
        if (!isfinite(w[k]))
            err = tt_fail(TT_EFORMAT, "%s has numbers that are not finite", m->name);
    if (!err) err = put_records(t, i, rows, n, &w, 1);
    free(w);
    return err;
}

static tt_err restore_table(tt_trainer *t, const tt_ckpt *c, int i)
{
    const tt_model_table *m = &t->tables[i];
    int vectors = 1 + tt_optim_rows_slots(t->optim);
    float *from[1 + TT_OPTIM_SLOTS] = {NULL};
    char name[512];
    tt_err err = TT_OK;

    snprintf(name, sizeof name, "%s.rows", m->name);
    const tt_entry *rows = tt_ckpt_find(c, name), *w = tt_ckpt_find(c, m->name);
    int64_t n = rows ? rows->shape[0] : m->rows;
    snprintf(name, sizeof name, "%s.table", m->name);
    if (w) err = tables_fit(t, i, tt_ckpt_find(c, name), rows, w, true);
    for (int v = 0; v < vectors && !err; v++) {
        tt_entry want;
        tables_entry(t, i, TABLE_WEIGHTS - v, &want);
        if (v && m->frozen && !tt_ckpt_find(c, want.name)) { /* of a parameter: it had none */
            vectors = v;
            break;
        }
        want.shape[0] = n;
        want.bytes = n * (want.rank == 2 ? want.shape[1] : 1) * 4;
        if (!(from[v] = malloc((size_t)want.bytes + 4)))
            err = tt_fail(TT_ENOMEM, "no memory for '%s'", want.name);
        else
            err = restore_floats(c, &want, from[v]);
    }
    if (!err) err = put_records(t, i, rows, n, from, vectors);
    for (int v = 0; v < vectors; v++) free(from[v]);
    return err;
}

tt_err tables_restore(tt_trainer *t, const tt_ckpt *c)
{
    tt_err err = TT_OK;

    for (int i = 0; i < t->table_count && !err; i++) err = restore_table(t, c, i);
    return err;
}

/* ---- In use ---- */

void tables_whole(const tt_trainer *t, const tt_param *params, int count, float *w)
{
    for (int k = 0; k < count; k++) {
        const tt_param *p = &params[k];
        for (int i = 0; i < t->param_count; i++)
            if (!strcmp(t->params[i].name, p->name))
                memcpy(w + p->at, t->state.w + t->params[i].at, (size_t)p->n * sizeof *w);
        for (int i = 0; i < t->table_count; i++) {
            const tt_table *rows = rows_of(t, i);
            if (strcmp(t->tables[i].name, p->name)) continue;
            for (int64_t r = tt_table_next(rows, 0); r >= 0; r = tt_table_next(rows, r + 1))
                memcpy(w + p->at + r * t->tables[i].dim, tt_table_look(rows, r),
                       (size_t)t->tables[i].dim * sizeof *w);
        }
    }
}

typedef struct named {
    const char *name;
    int at;
} named;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

void tt_train_sha(const tt_trainer *t, char hex[65])
{
    int count = t->param_count + t->table_count;
    named *order = calloc((size_t)count + 1, sizeof *order);
    tt_sha *s = tt_sha_begin();

    if (!order) tt_mem_out((size_t)count * sizeof *order);
    for (int i = 0; i < count; i++)
        order[i] =
            (named){i < t->param_count ? t->params[i].name : t->tables[i - t->param_count].name, i};
    qsort(order, (size_t)count, sizeof *order, by_name);
    for (int i = 0; i < count; i++) {
        int at = order[i].at - t->param_count;
        if (at < 0) {
            const tt_param *p = &t->params[order[i].at];
            tt_sha_add(s, t->state.w + p->at, (size_t)p->n * sizeof(float));
            continue;
        }
        const tt_table *rows = rows_of(t, at);
        for (int64_t r = tt_table_next(rows, 0); r >= 0; r = tt_table_next(rows, r + 1)) {
            tt_sha_add(s, &r, sizeof r);
            tt_sha_add(s, tt_table_look(rows, r), (size_t)t->tables[at].dim * sizeof(float));
        }
    }
    tt_sha_end(s, hex);
    free(order);
}
