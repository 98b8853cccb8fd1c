/* save: the state of a training on disk: what is saved, and taking it up again.
 *
 * model.safetensors holds the parameters under their names, optim.safetensors the optimiser's vectors as
 * "<slot>.<name>"; the manifest's meta holds the rest (step, early stopping, what the job looked like). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

static void fill_entry(tt_entry *e, const tt_param *p, const char *name, const float *base)
{
    *e = (tt_entry){.name = name, .type = TT_F32, .rank = p->rank, .data = base + p->at, .bytes = p->n * 4};
    memcpy(e->shape, p->shape, sizeof p->shape);
}

/* Frozen tensors and running statistics have no optimiser state. */
static bool has_slots(const tt_param *p) { return !p->frozen && p->role != TT_STAT; }

static void list_entries(tt_trainer *t)
{
    size_t most = (size_t)(t->param_count * (1 + t->slot_count));
    if (!t->arena) t->arena = tt_arena_open(1 << 14);
    t->entries = tt_arena_take(t->arena, most * sizeof *t->entries + 1, 16);
    t->entry_files = tt_arena_take(t->arena, most * sizeof *t->entry_files + 1, 16);
    t->entry_count = 0;
    for (int s = -1; s < t->slot_count; s++)
        for (int i = 0; i < t->param_count; i++) {
            const tt_param *p = &t->params[i];
            if (s >= 0 && !has_slots(p)) continue;
            const char *name = s < 0 ? p->name : tt_arena_printf(t->arena, "%s.%s", tt_optim_slot_name(t->optim, s), p->name);
            t->entry_files[t->entry_count] = s < 0 ? "model.safetensors" : "optim.safetensors";
            fill_entry(&t->entries[t->entry_count++], p, name, s < 0 ? t->w : t->slot[s]);
        }
}

tt_err trainer_saver_open(tt_trainer *t)
{
    char folder[4200];

    snprintf(folder, sizeof folder, "%s/checkpoints", t->dir->path);
    if (!t->entries) list_entries(t);
    tt_saver_opts o = {.folder = folder, .keep = (int)t->save.keep, .best = t->save.best.sign, .entries = t->entries,
                       .file = t->entry_files, .count = t->entry_count};
    return tt_saver_open(&o, &t->saver);
}

tt_err trainer_save(tt_trainer *t)
{
    double score = t->progress.validated || !strncmp(t->save.best.metric, "train", 5) ? metric_of(t, &t->save.best) : NAN;
    json_t *meta = json_pack("{s:I, s:f, s:I, s:s, s:s, s:s, s:I, s:s, s:I}", "step", (json_int_t)t->step, "epoch",
                             (double)t->step / (double)t->epoch_steps, "seed", (json_int_t)t->conf.seed, "name", t->job.name,
                             "optimizer", tt_optim_name(t->optim), "kernels", tt_model_kernels(t->model)->name, "batch",
                             (json_int_t)t->order.batch, "version", TT_VERSION, "early_bad", (json_int_t)t->early_bad);

    if (!isnan(t->early_best)) json_object_set_new(meta, "early_best", json_real(t->early_best));
    json_object_set_new(meta, "epoch_loss", json_real(t->epoch_loss));
    json_object_set_new(meta, "epoch_weight", json_real(t->epoch_weight));
    if (t->save.best.sign && !isnan(score)) {
        json_object_set_new(meta, t->save.best.metric, json_real(score));
        if (isnan(t->best) || t->save.best.sign * (score - t->best) > 0) t->best = score;
    }
    if (!isnan(t->best)) json_object_set_new(meta, "best", json_real(t->best));
    t->progress.best = t->best;
    t->last_save = tt_clock_s();
    /* A disk that fails does not stop training: the older checkpoint stays, and the trouble is shown. */
    tt_err err = tt_saver_save(t->saver, t->step, meta, score);
    if (err) {
        snprintf(t->trouble, sizeof t->trouble, "%s", tt_message());
        tt_warn("%s", t->trouble);
    } else {
        t->trouble[0] = 0;
    }
    t->progress.save_trouble = t->trouble[0] ? t->trouble : NULL;
    return TT_OK;
}

tt_err tt_train_save(tt_trainer *t)
{
    tt_err err;

    if (!t->dir) return tt_fail(TT_EINVAL, "this training has no run folder to save in");
    if (!t->saver && (err = trainer_saver_open(t))) return err;
    double ignored;
    tt_saver_wait(t->saver); /* an earlier save's trouble was shown when it happened */
    if (tt_saver_last(t->saver, &ignored) != t->step) trainer_save(t);
    return tt_saver_wait(t->saver);
}

static tt_err restore_floats(const tt_ckpt *c, const tt_entry *want, float *to)
{
    const tt_entry *have = tt_ckpt_find(c, want->name);

    if (!have) return tt_fail(TT_ECKPT, "the checkpoint has no '%s': it belongs to another model or optimiser", want->name);
    if (have->rank != want->rank || memcmp(have->shape, want->shape, (size_t)want->rank * sizeof *want->shape))
        return tt_fail(TT_ECKPT, "'%s' has another shape in the checkpoint: it belongs to another model", want->name);
    return tt_entry_floats(have, to, want->bytes / 4);
}

tt_err trainer_restore(tt_trainer *t, const char *folder, bool *found)
{
    tt_ckpt *c = NULL;
    tt_ckpt_info *list = NULL;
    int count = 0;
    tt_err err;

    *found = false;
    if (!tt_file_exists(folder)) return TT_OK; /* stopped before its first checkpoint: from the start */
    if ((err = tt_ckpt_list(folder, false, &list, &count))) return err;
    free(list);
    if (!count) return TT_OK;
    if ((err = tt_ckpt_open(folder, -1, true, &c))) return err;
    list_entries(t);
    for (int i = 0; i < t->entry_count && !err; i++) err = restore_floats(c, &t->entries[i], (float *)(uintptr_t)t->entries[i].data);
    if (!err) {
        const json_t *meta = tt_ckpt_meta(c);
        const json_t *early = json_object_get(meta, "early_best"), *best = json_object_get(meta, "best");
        t->step = tt_ckpt_step(c);
        t->early_bad = json_integer_value(json_object_get(meta, "early_bad"));
        if (early) t->early_best = json_number_value(early);
        if (best) t->best = t->progress.best = json_number_value(best);
        t->epoch_loss = json_number_value(json_object_get(meta, "epoch_loss"));
        t->epoch_weight = json_number_value(json_object_get(meta, "epoch_weight"));
        if (t->step % t->epoch_steps == 0) t->epoch_loss = t->epoch_weight = 0;
        *found = true;
        tt_info("resumed from %s at step %lld", folder, (long long)t->step);
    }
    tt_ckpt_close(c);
    return err;
}

static int by_name(const void *a, const void *b)
{
    const tt_param *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

void tt_params_sha(const tt_param *params, int count, const float *w, char hex[65])
{
    const tt_param **order = calloc((size_t)count + 1, sizeof *order);
    tt_sha *s = tt_sha_begin();

    TT_ASSERT(order);
    for (int i = 0; i < count; i++) order[i] = &params[i];
    qsort(order, (size_t)count, sizeof *order, by_name);
    for (int i = 0; i < count; i++) tt_sha_add(s, w + order[i]->at, (size_t)order[i]->n * sizeof *w);
    tt_sha_end(s, hex);
    free(order);
}
