/* weights: taking weights from a file by name, whoever wrote it. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "hf.h"
#include "trainer.h"

/* ---- What the numbers mean that a model was trained with ---- */

static void put_hash(json_t *meta, const char *key, uint64_t hash)
{
    char hex[17];

    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    if (hash) json_object_set_new(meta, key, json_string(hex));
}

void meaning_put(json_t *meta, const tt_data *d)
{
    const tt_meaning m = tt_data_meaning(d);
    json_t *learned = tt_data_learned(d);

    put_hash(meta, "words", m.words);
    put_hash(meta, "scale", m.scale);
    if (learned) json_object_set_new(meta, "learned", learned);
}

static uint64_t take_hash(const json_t *meta, const char *key)
{
    const char *hex = json_string_value(json_object_get(meta, key));

    return hex ? strtoull(hex, NULL, 16) : 0;
}

tt_meaning meaning_of(const json_t *meta)
{
    return (tt_meaning){take_hash(meta, "words"), take_hash(meta, "scale")};
}

tt_err meaning_compare(const char *path, tt_meaning was, tt_meaning now)
{
    if (was.words && now.words && was.words != now.words)
        return tt_fail(TT_EDATA,
                       "%s was trained with other words, characters or buckets than the data has "
                       "now, so that ids would stand for something else: `data` has changed, or "
                       "its files",
                       path);
    if (was.scale && now.scale && was.scale != now.scale)
        tt_warn("%s was trained with other means and deviations than the training data has now: "
                "its numbers are scaled otherwise, for data.train has changed",
                path);
    return TT_OK;
}

/* ---- Files ---- */

/* What is loaded from: the model's file of a checkpoint of ours, or any safetensors file. */
typedef struct source {
    tt_ckpt *ckpt;
    tt_tensors *opened;
    const tt_tensors *file;
    char path[4300]; /* of the file, if it is not in a checkpoint */
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

/* A folder of others: Hugging Face calls the file always the same. */
static tt_err open_folder(const char *path, source *s)
{
    static const struct {
        const char *file, *what;
    } known[] = {{"model.safetensors.index.json", "its weights are split in several files, and one "
                                                  "is read here: join them to model.safetensors"},
                 {"pytorch_model.bin", "its weights are pickled, and that is not read here: save "
                                       "them as model.safetensors"}};
    char other[4300];

    snprintf(s->path, sizeof s->path, "%s/model.safetensors", path);
    if (tt_file_exists(s->path)) return tt_tensors_open(s->path, &s->opened);
    for (int i = 0; i < TT_COUNT(known); i++) {
        snprintf(other, sizeof other, "%s/%s", path, known[i].file);
        if (tt_file_exists(other)) return tt_fail(TT_ECKPT, "%s: %s", path, known[i].what);
    }
    return tt_fail(TT_ECKPT,
                   "%s is neither a run folder, nor a checkpoint, nor has it a model.safetensors",
                   path);
}

static bool is_folder(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static tt_err source_open(const char *path, source *s)
{
    char inner[4300];
    size_t n = strlen(path);
    tt_err err;

    if (!tt_file_exists(path)) return tt_fail(TT_ECKPT, "%s: no such file or folder", path);
    snprintf(inner, sizeof inner, "%s/manifest.json", path);
    if (tt_file_exists(inner)) {
        err = tt_ckpt_open_path(path, true, &s->ckpt);
    } else {
        snprintf(inner, sizeof inner, "%s/checkpoints", path);
        snprintf(s->path, sizeof s->path, "%s", path);
        if (tt_file_exists(inner))
            err = tt_ckpt_open(inner, -1, true, &s->ckpt);
        else if (is_folder(path))
            err = open_folder(path, s);
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

/* Names of one complaint; only the first of very many are told. */
typedef struct list {
    tt_str text;
    int count;
} list;

static void list_add(list *l, const char *fmt, ...)
{
    char line[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (++l->count <= 20)
        tt_str_add(&l->text, "\n  %s", line);
    else if (l->count == 21)
        tt_str_add(&l->text, "\n  ...");
}

typedef struct loading {
    const char *path;
    const tt_tensors *file;
    const tt_node *rules;
    bool hf, partial;
    bool turns;     /* hf: its dense layers are stored turned */
    bool lone_head; /* hf: there is lm_head, but not wte, which is the same */
    const tt_param *params;
    int count, taken;
    bool *got; /* (count, and of each table) */
    float *w;
    tt_trainer *t; /* whose tables have rows, too; NULL: there are none */
    bool put;      /* into them */
    list missing, extra, unfit, odd;
} loading;

static int find_param(const loading *l, const char *name)
{
    int k = 0;

    while (k < l->count && strcmp(l->params[k].name, name)) k++;
    for (int i = 0; k == l->count && l->t && i < l->t->table_count; i++)
        if (!strcmp(l->t->tables[i].name, name)) return l->count + i;
    return k == l->count ? -1 : k;
}

static int all_of(const loading *l)
{
    return l->count + (l->t ? l->t->table_count : 0);
}

static const char *name_of(const loading *l, int k)
{
    return k < l->count ? l->params[k].name : l->t->tables[k - l->count].name;
}

/* What is told of a tensor that has not all of its rows, under its name and this. */
static const char *const tails[] = {".rows", ".table"};

static const tt_entry *tail_of(const loading *l, const tt_entry *e, int k)
{
    char name[1024];

    snprintf(name, sizeof name, "%s%s", e->name, tails[k]);
    return tt_tensors_find(l->file, name);
}

static bool is_tail(const loading *l, const tt_entry *e)
{
    size_t n = strlen(e->name);
    char name[1024];

    for (int k = 0; k < TT_COUNT(tails); k++) {
        size_t tail = strlen(tails[k]);
        if (n <= tail || n >= sizeof name || strcmp(e->name + n - tail, tails[k])) continue;
        snprintf(name, sizeof name, "%.*s", (int)(n - tail), e->name);
        if (tt_tensors_find(l->file, name)) return true;
    }
    return false;
}

static void show_shape(const int64_t *dim, int rank, bool turn, char *out, size_t size)
{
    tt_shape s = {.rank = rank};

    for (int i = 0; i < rank && i < 6; i++) s.dim[i] = dim[turn ? rank - 1 - i : i];
    if (rank > 6)
        snprintf(out, size, "%d dimensions", rank);
    else
        tt_shape_show(s, out, size);
}

/* Rows of a tensor: into a table, or to their places in a parameter. */
static tt_err take_rows(loading *l, const tt_entry *e, const tt_entry *rows, int k)
{
    const tt_model_table *m = k < l->count ? NULL : &l->t->tables[k - l->count];
    const tt_param *p = m ? NULL : &l->params[k];
    const tt_entry *head = tail_of(l, e, 1);
    bool fits = m ? e->rank == 2 && e->shape[1] == m->dim && (rows || e->shape[0] == m->rows)
                  : p->rank == 2;
    tt_err err = TT_OK;

    if (fits && !m)
        err = tables_scatter(head, rows, e, p, l->w + p->at);
    else if (fits && !(err = tables_fit(l->t, k - l->count, head, rows, e, l->put)) && l->put)
        err = tables_put(l->t, k - l->count, rows, e);
    if (err == TT_EFORMAT) return tt_repeat(TT_ECKPT, tt_message());
    if (fits && err != TT_ECKPT) {
        l->taken++;
        return err;
    }
    list_add(&l->unfit, "%.200s%s%s", e->name, err ? ": " : "", err ? tt_message() : "");
    return TT_OK;
}

/* The numbers of a tensor for a parameter, or a complaint. */
static tt_err take_entry(loading *l, const tt_entry *e, int k, bool turn)
{
    const tt_entry *rows = tail_of(l, e, 0);
    char have[80], want[80];
    float *temp;
    tt_err err;

    if (l->got[k]) {
        list_add(&l->odd, "%.200s: another tensor is %s already", e->name, name_of(l, k));
        return TT_OK;
    }
    l->got[k] = true;
    if (rows || k >= l->count) return take_rows(l, e, rows, k);
    const tt_param *p = &l->params[k];
    float *to = l->w + p->at;
    for (int i = 0; i < p->rank || e->rank != p->rank; i++) {
        if (e->rank == p->rank && e->shape[i] == p->shape[turn ? p->rank - 1 - i : i]) continue;
        show_shape(e->shape, e->rank, false, have, sizeof have);
        show_shape(p->shape, p->rank, turn, want, sizeof want);
        list_add(&l->unfit, "%.200s: it is %s, the model's would be %s", e->name, have, want);
        return TT_OK;
    }
    l->taken++;
    if (!turn) return tt_entry_floats(e, to, p->n);
    temp = malloc(tt_mul_size((size_t)p->n, sizeof *temp));
    if (!temp) return tt_fail(TT_ENOMEM, "no memory for tensor %.200s", e->name);
    if (!(err = tt_entry_floats(e, temp, p->n))) hf_turn(temp, e->shape[0], e->shape[1], to);
    free(temp);
    return err;
}

/* A tensor of Hugging Face that the model has no parameter for: biases that are zero do no harm to
 * a model without; lm_head is wte again where they are tied. */
static tt_err take_rest(loading *l, const tt_entry *e, const char *name)
{
    int64_t n = e->bytes / (int64_t)tt_dtype_size(e->type);
    int wte = strcmp(name, "lm_head.weight") ? -1 : find_param(l, "wte.weight");
    size_t tail = strlen(name) > 5 ? strlen(name) - 5 : 0;
    bool same = true;
    float *have;
    tt_err err;

    if (wte >= l->count) wte = -1; /* a table: nothing is tied to it */
    if (e->type > TT_BF16 || (wte < 0 && strcmp(name + tail, ".bias")) ||
        (wte >= 0 && n != l->params[wte].n)) {
        list_add(&l->extra, "%.200s", e->name);
        return TT_OK;
    }
    have = malloc(tt_mul_size((size_t)n + 1, sizeof *have));
    if (!have) return tt_fail(TT_ENOMEM, "no memory for tensor %.200s", e->name);
    if (!(err = tt_entry_floats(e, have, n))) {
        const float *wants = wte < 0 ? NULL : l->w + l->params[wte].at;
        for (int64_t i = 0; i < n && same; i++) same = have[i] == (wants ? wants[i] : 0);
        if (!same && wte < 0)
            list_add(&l->extra, "%.200s", e->name);
        else if (!same)
            list_add(&l->odd, "%.200s: it differs from wte.weight, to which the model ties it",
                     e->name);
    }
    free(have);
    return err;
}

/* The parameter that a tensor is for; -1: none. `name` is what it is called here. */
static int param_of(const loading *l, const tt_entry *e, char *name, size_t size, hf_use *use)
{
    int k;

    renamed(l->rules, e->name, name, size);
    *use = l->hf ? hf_means(name, l->turns) : HF_TAKE;
    k = *use == HF_IGNORE ? -1 : find_param(l, name);
    if (k < 0 && l->lone_head && !strcmp(name, "lm_head.weight")) k = find_param(l, "wte.weight");
    return k;
}

static tt_err take_all(loading *l)
{
    char name[1024];
    hf_use use;
    tt_err err = TT_OK;

    for (int i = 0; i < tt_tensors_count(l->file) && !err; i++) {
        const tt_entry *e = tt_tensors_at(l->file, i);
        int k = param_of(l, e, name, sizeof name, &use);
        if (k >= 0) err = take_entry(l, e, k, use == HF_TURN);
    }
    for (int i = 0; i < tt_tensors_count(l->file) && !err; i++) {
        const tt_entry *e = tt_tensors_at(l->file, i);
        if (param_of(l, e, name, sizeof name, &use) >= 0 || use == HF_IGNORE) continue;
        if (l->hf)
            err = take_rest(l, e, name);
        else if (!is_extra(e) && !is_tail(l, e))
            list_add(&l->extra, "%.200s", e->name);
    }
    for (int k = 0; k < all_of(l); k++)
        if (!l->got[k]) list_add(&l->missing, "%.200s", name_of(l, k));
    return err;
}

/* To train on from them would be blamed on the learning rate. To look at what they give is another
 * matter. */
static tt_err check_finite(const loading *l, bool ours)
{
    for (int k = 0; k < l->count; k++)
        for (int64_t i = 0; i < l->params[k].n; i++) {
            if (isfinite(l->w[l->params[k].at + i])) continue;
            if (l->t)
                return tt_fail(TT_ECKPT, "%s: %s has numbers that are not finite", l->path,
                               l->params[k].name);
            if (!ours) /* a checkpoint says so itself */
                tt_warn("%s: %s has numbers that are not finite", l->path, l->params[k].name);
            return TT_OK;
        }
    return TT_OK;
}

/* What did not fit is an error, or with `partial` a warning if something did. */
static tt_err tell(const loading *l)
{
    tt_str report = {0};
    tt_err err = TT_OK;

    if (l->missing.count) tt_str_add(&report, "\nnot in the file:%s", l->missing.text.data);
    if (l->extra.count) tt_str_add(&report, "\nnot in the model:%s", l->extra.text.data);
    if (l->unfit.count) tt_str_add(&report, "\nof another shape:%s", l->unfit.text.data);
    if (l->odd.count) tt_str_add(&report, "\nin doubt:%s", l->odd.text.data);
    if (report.size && (!l->partial || !l->taken))
        err =
            tt_fail(TT_ECKPT, "%s does not fit the model%s%s", l->path, report.data,
                    l->partial ? "" : "\n(--partial takes what matches; model.rename maps names)");
    else if (report.size)
        tt_warn("%s: took %d of %d tensors%s", l->path, l->taken, all_of(l), report.data);
    tt_str_free(&report);
    return err;
}

/* Is a file of others one whose layout we know? Part of it may be for any model. */
static tt_err know_layout(loading *l, const source *s, const tt_model *m)
{
    tt_err err;

    l->hf = s->opened && hf_is(s->file, &l->turns);
    if (!l->hf) return TT_OK;
    l->lone_head = !tt_tensors_find(s->file, "wte.weight") &&
                   !tt_tensors_find(s->file, "transformer.wte.weight");
    err = hf_check(m, s->path);
    if (err != TT_ECKPT || !l->partial) return err;
    tt_warn("%s", tt_message());
    return TT_OK;
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

tt_err weights_load(const char *path, const tt_node *rules, bool partial, const tt_model *m,
                    float *w, tt_trainer *t, bool put, json_t **meta)
{
    source s = {0};
    loading l = {.path = path, .rules = rules, .partial = partial, .w = w, .t = t, .put = put};
    tt_err err = check_rules(rules);

    l.params = tt_model_params(m, &l.count);
    l.got = calloc((size_t)all_of(&l) + 1, sizeof *l.got);
    if (!l.got) err = tt_fail(TT_ENOMEM, "no memory");
    if (!err) err = source_open(path, &s);
    l.file = s.file;
    if (!err && meta && s.ckpt) *meta = json_incref((json_t *)tt_ckpt_meta(s.ckpt));
    if (!err && !(err = know_layout(&l, &s, m)) && !(err = take_all(&l)) && !(err = tell(&l)))
        err = check_finite(&l, s.ckpt != NULL);
    source_close(&s);
    tt_str_free(&l.missing.text);
    tt_str_free(&l.extra.text);
    tt_str_free(&l.unfit.text);
    tt_str_free(&l.odd.text);
    free(l.got);
    return err;
}

tt_err tt_weights_load(const char *path, const tt_node *rules, bool partial, const tt_model *m,
                       float *w)
{
    return weights_load(path, rules, partial, m, w, NULL, false, NULL);
}
