/* weights: taking weights from a file by name, whoever wrote it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

/* What is loaded from: the model's file of a checkpoint of ours, or any safetensors file. */
typedef struct source {
    tt_ckpt *ckpt;
    tt_tensors *opened;
    const tt_tensors *file;
} source;

/* The optimiser's state is in files of its own, and nobody's weights. */
static tt_err take_model(const char *path, source *s)
{
    if (!tt_ckpt_finite(s->ckpt))
        tt_warn("%s: step %lld holds numbers that are not finite", path,
                (long long)tt_ckpt_step(s->ckpt));
    s->file = tt_ckpt_file(s->ckpt, "model.safetensors");
    return s->file ? TT_OK : tt_fail(TT_ECKPT, "%s: the checkpoint has no model.safetensors", path);
}

static tt_err source_open(const char *path, source *s)
{
    char inner[4300];
    size_t n = strlen(path);

    if (!tt_file_exists(path)) return tt_fail(TT_ECKPT, "%s: no such file or folder", path);
    tt_err err;
    snprintf(inner, sizeof inner, "%s/manifest.json", path);
    if (tt_file_exists(inner)) {
        err = tt_ckpt_open_path(path, true, &s->ckpt);
    } else {
        snprintf(inner, sizeof inner, "%s/checkpoints", path);
        if (tt_file_exists(inner))
            err = tt_ckpt_open(inner, -1, true, &s->ckpt);
        else if (n > 12 && !strcmp(path + n - 12, ".safetensors"))
            err = tt_tensors_open(path, &s->opened);
        else
            err = tt_fail(TT_ECKPT,
                          "%s is neither a run folder, nor a checkpoint, nor a .safetensors file",
                          path);
    }
    if (!err && s->ckpt) err = take_model(path, s);
    if (!err && s->opened) s->file = s->opened;
    /* To whoever wants weights a file that is bad or unreadable is all the same. */
    return err == TT_EFORMAT || err == TT_EIO ? tt_repeat(TT_ECKPT, tt_message()) : err;
}

static void source_close(source *s)
{
    tt_ckpt_close(s->ckpt);
    tt_tensors_close(s->opened);
}

/* A rule is `from: to`; one '*' on each side stands for the same text. The first rule that fits
 * applies. */
static void renamed(const tt_node *rules, const char *name, char *out, size_t size)
{
    size_t n = strlen(name);

    snprintf(out, size, "%s", name);
    for (int i = 0; rules && i < rules->count; i++) {
        const char *from = rules->key[i]->text, *to = rules->item[i]->text;
        const char *star = strchr(from, '*'), *put = strchr(to, '*');
        if (!star) {
            if (strcmp(from, name)) continue;
            snprintf(out, size, "%s", to);
            return;
        }
        size_t before = (size_t)(star - from), after = strlen(star + 1);
        if (n < before + after || strncmp(name, from, before) || strcmp(name + n - after, star + 1))
            continue;
        int middle = (int)(n - before - after);
        if (put)
            snprintf(out, size, "%.*s%.*s%s", (int)(put - to), to, middle, name + before, put + 1);
        else
            snprintf(out, size, "%s", to);
        return;
    }
}

/* What a file may hold beside the weights without being wrong: PyTorch's batch norm counts. */
static bool is_extra(const tt_entry *e)
{
    static const char counter[] = "num_batches_tracked";
    size_t n = strlen(e->name), tail = sizeof counter - 1;

    return n >= tail && !strcmp(e->name + n - tail, counter);
}

static bool same_shape(const tt_entry *e, const tt_param *p)
{
    return e->rank == p->rank && !memcmp(e->shape, p->shape, (size_t)p->rank * sizeof *p->shape);
}

static void list_name(tt_str *s, int *count, const char *name)
{
    if (++*count <= 20)
        tt_str_add(s, "\n  %s", name);
    else if (*count == 21)
        tt_str_add(s, "\n  ...");
}

static tt_err check_rules(const tt_node *rules)
{
    if (!rules || tt_node_is_null(rules)) return TT_OK;
    if (rules->kind != TT_MAP)
        return tt_node_fail(rules, "rename is a map of names: {old.*: new.*}");
    for (int i = 0; i < rules->count; i++)
        if (rules->item[i]->kind != TT_SCALAR)
            return tt_node_fail(rules->item[i], "rename gives one name for another");
    return TT_OK;
}

/* The list of the rows that a tensor has, if it has not all; its name is that of the tensor and
 * this. */
static const char list_tail[] = ".rows";

static const tt_entry *rows_of(const source *s, const tt_entry *e)
{
    char name[1024];

    snprintf(name, sizeof name, "%s%s", e->name, list_tail);
    return tt_tensors_find(s->file, name);
}

static bool is_list(const source *s, const tt_entry *e)
{
    size_t n = strlen(e->name), tail = sizeof list_tail - 1;
    char name[1024];

    if (n <= tail || n >= sizeof name || strcmp(e->name + n - tail, list_tail)) return false;
    snprintf(name, sizeof name, "%.*s", (int)(n - tail), e->name);
    return tt_tensors_find(s->file, name) != NULL;
}

/* Into the flat array. *fits: it has the parameter's shape, or rows of it. */
static tt_err take_param(const source *s, const tt_entry *e, const tt_param *p, float *w,
                         bool *fits)
{
    const tt_entry *rows = rows_of(s, e);
    tt_err err;

    *fits = rows ? p->rank == 2 : same_shape(e, p);
    if (!*fits) return TT_OK;
    if (!rows) return tt_entry_floats(e, w + p->at, p->n);
    err = tables_scatter(rows, e, p->shape[0], p->shape[1], w + p->at);
    *fits = err != TT_ECKPT;
    return *fits ? err : TT_OK;
}

/* Into a table. */
static tt_err take_rows(const source *s, const tt_entry *e, tt_trainer *t, int i, bool put,
                        bool *fits)
{
    const tt_entry *rows = rows_of(s, e);
    const tt_model_table *m = &t->tables[i];
    tt_err err;

    *fits = e->rank == 2 && e->shape[1] == m->dim && (rows || e->shape[0] == m->rows);
    if (!*fits || !put) return TT_OK;
    err = tables_put(t, i, rows, e);
    *fits = err != TT_ECKPT;
    return *fits ? err : TT_OK;
}

static int find_param(const tt_param *params, int count, const tt_trainer *t, const char *name)
{
    int k = 0;

    while (k < count && strcmp(params[k].name, name)) k++;
    for (int i = 0; k == count && t && i < t->table_count; i++)
        if (!strcmp(t->tables[i].name, name)) return count + i;
    return k < count ? k : -1;
}

tt_err weights_load(const char *path, const tt_node *rules, bool partial, const tt_param *params,
                    int count, float *w, tt_trainer *t, bool put)
{
    source s = {0};
    tt_str missing = {0}, extra = {0}, unfit = {0};
    int missing_count = 0, extra_count = 0, unfit_count = 0, taken = 0;
    int all = count + (t ? t->table_count : 0);
    bool *got = calloc((size_t)all + 1, sizeof *got);
    tt_err err = got ? check_rules(rules) : tt_fail(TT_ENOMEM, "no memory");

    if (err || (err = source_open(path, &s))) goto out;
    for (int i = 0; i < tt_tensors_count(s.file) && !err; i++) {
        const tt_entry *e = tt_tensors_at(s.file, i);
        char name[1024];
        bool fits;
        renamed(rules, e->name, name, sizeof name);
        int k = find_param(params, count, t, name);
        if (k < 0) {
            if (!is_extra(e) && !is_list(&s, e)) list_name(&extra, &extra_count, e->name);
            continue;
        }
        err = k < count ? take_param(&s, e, &params[k], w, &fits)
                        : take_rows(&s, e, t, k - count, put, &fits);
        got[k] = true;
        taken += fits;
        if (!fits) list_name(&unfit, &unfit_count, name);
    }
    for (int k = 0; k < all; k++)
        if (!got[k])
            list_name(&missing, &missing_count,
                      k < count ? params[k].name : t->tables[k - count].name);
    if (err) goto out;
    tt_str report = {0};
    if (missing_count) tt_str_add(&report, "\nnot in the file:%s", missing.data);
    if (extra_count) tt_str_add(&report, "\nnot in the model:%s", extra.data);
    if (unfit_count) tt_str_add(&report, "\nof another shape:%s", unfit.data);
    if (report.size && (!partial || !taken))
        err = tt_fail(TT_ECKPT, "%s does not fit the model%s%s", path, report.data,
                      partial ? "" : "\n(--partial takes what matches; model.rename maps names)");
    else if (report.size)
        tt_warn("%s: took %d of %d tensors%s", path, taken, all, report.data);
    tt_str_free(&report);
out:
    source_close(&s);
    tt_str_free(&missing);
    tt_str_free(&extra);
    tt_str_free(&unfit);
    free(got);
    return err;
}

tt_err tt_weights_load(const char *path, const tt_node *rules, bool partial, const tt_param *params,
                       int count, float *w)
{
    return weights_load(path, rules, partial, params, count, w, NULL, false);
}
