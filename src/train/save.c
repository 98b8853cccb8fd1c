/* save: the state of a training on disk: what is saved, and taking it up again.
 *
 * model.safetensors holds the parameters under their names, optim.safetensors the optimiser's
 * vectors as "<slot>.<name>"; the manifest's meta holds the rest: step, early stopping, figures for
 * the summary, and all that the bits of the result depend on (threads, kernels, seed, batch). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "trainer.h"

tt_entry entry_of(const tt_param *p, const char *name, const float *base)
{
    tt_entry e = {
        .name = name, .type = TT_F32, .rank = p->rank, .data = base + p->at, .bytes = p->n * 4};
    memcpy(e.shape, p->shape, sizeof p->shape);
    return e;
}

/* Frozen tensors and running statistics have no optimiser state. */
static bool has_slots(const tt_param *p)
{
    return !p->frozen && p->role != TT_STAT;
}

/* Vector k of the state: the weights, the optimiser's slots, the outer optimiser's momentum. Its
 * name in the checkpoint begins with *prefix. NULL: there are no more. */
static float *vector_of(const tt_trainer *t, int k, const char **prefix)
{
    *prefix = "";
    if (!k) return t->state.w;
    if (k <= t->slot_count) {
        *prefix = tt_optim_slot_name(t->optim, k - 1);
        return t->state.slot[k - 1];
    }
    k -= t->slot_count + 1;
    if (!tt_strategy_outer(t->strategy)) k++; /* the one or the other */
    *prefix = k ? "residual" : "outer";
    return k == 0   ? tt_strategy_outer(t->strategy)
           : k == 1 ? tt_strategy_residual(t->strategy)
                    : NULL;
}

/* With shard each rank writes the state of its pieces, if all see the folder. */
static bool shared(const tt_trainer *t)
{
    return t->together && t->plan.aggregate == TT_SHARD && t->world->size > 1;
}

static void add_entry(tt_trainer *t, tt_entry e, const char *file, int k, int64_t at)
{
    t->entries[t->entry_count] = e;
    t->entry_files[t->entry_count] = file;
    t->entry_from[t->entry_count++] = (entry_from){k, at};
}

/* Whole tensors: what is restored, and what is saved unless it is shared out. */
static void list_whole(tt_trainer *t, int k, const char *prefix, const float *base)
{
    for (int i = 0; i < t->param_count; i++) {
        const tt_param *p = &t->params[i];
        if (k && !has_slots(p)) continue;
        const char *name = k ? tt_arena_printf(t->arena, "%s.%s", prefix, p->name) : p->name;
        add_entry(t, entry_of(p, name, base), k ? "optim.safetensors" : "model.safetensors", k,
                  p->at);
    }
}

/* The pieces of this rank. A part of a tensor has its first element in its name. */
static void list_pieces(tt_trainer *t, int k, const char *prefix, const float *base)
{
    const char *file = tt_arena_printf(t->arena, "optim-%05d.safetensors", t->world->rank);

    for (int i = 0; i < tt_optim_piece_count(t->optim); i++) {
        tt_piece piece = tt_optim_piece(t->optim, i);
        const tt_param *p = &t->params[piece.param];
        tt_entry e = {.type = TT_F32, .rank = 1, .data = base + piece.at, .bytes = piece.n * 4};
        if (!has_slots(p) || tt_strategy_owner(t->strategy, i) != t->world->rank) continue;
        if (piece.n == p->n) {
            e = entry_of(p, tt_arena_printf(t->arena, "%s.%s", prefix, p->name), base);
        } else {
            e.name = tt_arena_printf(t->arena, "%s.%s@%lld", prefix, p->name,
                                     (long long)(piece.at - p->at));
            e.shape[0] = piece.n;
        }
        add_entry(t, e, file, k, piece.at);
    }
}

/* Their size is known when they are saved. */
static void list_tables(tt_trainer *t)
{
    for (int k = 0; k < tables_entries(t); k++) {
        int i = k % t->table_count, vector = TABLE_HEAD - k / t->table_count;
        tt_entry e;
        const char *file = tables_entry(t, i, vector, &e);
        e.shape[0] = e.bytes = 0;
        add_entry(t, e, file, vector, i);
    }
}

static void fill_entry(void *who, int i, void *to)
{
    const tt_trainer *t = who;

    tables_fill(t, (int)t->entry_from[i].at, t->entry_from[i].vector, to);
}

static void list_entries(tt_trainer *t, bool whole)
{
    size_t most = (size_t)(2 + t->slot_count) *
                      ((size_t)t->param_count + (size_t)tt_optim_piece_count(t->optim)) +
                  (size_t)tables_entries(t);
    const char *prefix;
    const float *base;

    if (!t->arena) t->arena = tt_arena_open(1 << 14);
    t->entries = tt_arena_take(t->arena, most * sizeof *t->entries + 1, 16);
    t->entry_files = tt_arena_take(t->arena, most * sizeof *t->entry_files + 1, 16);
    t->entry_from = tt_arena_take(t->arena, most * sizeof *t->entry_from + 1, 16);
    t->entry_count = 0;
    for (int k = 0; (base = vector_of(t, k, &prefix)); k++) {
        bool slot = k && k <= t->slot_count;
        if (!whole && slot)
            list_pieces(t, k, prefix, base);
        else if (!t->world->rank)
            list_whole(t, k, prefix, base);
    }
    if (!t->world->rank) list_tables(t);
}

/* The entries again, where the current half of the state is now. */
static void follow_state(tt_trainer *t)
{
    const char *prefix;

    for (int i = 0; i < t->entry_count; i++) {
        tt_entry *e = &t->entries[i], now;
        entry_from from = t->entry_from[i];
        if (from.vector >= 0) {
            e->data = vector_of(t, from.vector, &prefix) + from.at;
            continue;
        }
        tables_measure(t, (int)from.at, from.vector, &now);
        e->shape[0] = now.shape[0];
        e->bytes = now.bytes;
    }
}

/* Ranks other than 0 that have pieces, and how many of those come before this one. */
static int count_helpers(const tt_trainer *t, int *before)
{
    int count = 0;

    *before = 0;
    for (int r = 1; r < t->world->size; r++) {
        bool any = false;
        for (int i = 0; i < tt_optim_piece_count(t->optim) && !any; i++)
            any = tt_strategy_owner(t->strategy, i) == r &&
                  has_slots(&t->params[tt_optim_piece(t->optim, i).param]);
        if (r < t->world->rank) *before += any;
        count += any;
    }
    return t->slot_count ? count : 0;
}

tt_err trainer_saver_open(tt_trainer *t)
{
    char folder[4200];
    int before = 0, helpers = shared(t) ? count_helpers(t, &before) : 0;

    if (t->world->rank && !shared(t)) return TT_OK; /* rank 0 writes it all */
    list_entries(t, !shared(t));
    if (!t->entry_count) return TT_OK;
    if (t->world->rank)
        snprintf(folder, sizeof folder, "%s", t->folder);
    else
        snprintf(folder, sizeof folder, "%s/checkpoints", t->dir->path);
    tt_saver_opts o = {.folder = folder,
                       .keep = (int)t->save.keep,
                       .best = t->save.best.sign,
                       .entries = t->entries,
                       .file = t->entry_files,
                       .count = t->entry_count,
                       .fill = t->table_count ? fill_entry : NULL,
                       .who = t,
                       .parts = t->world->rank ? 0 : helpers,
                       .part = t->world->rank ? before + 1 : 0,
                       .token = t->token,
                       .wait_s = t->plan.timeout_s};
    return tt_saver_open(&o, &t->saver);
}

static void put(json_t *meta, const char *key, double v)
{
    if (isfinite(v)) json_object_set_new(meta, key, json_real(v));
}

static json_t *make_meta(const tt_trainer *t, double score)
{
    json_t *meta = json_pack(
        "{s:I, s:f, s:I, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:I}", "step",
        (json_int_t)t->step, "epoch", (double)t->step / (double)t->epoch_steps, "seed",
        (json_int_t)t->conf.seed, "name", t->job.name, "optimizer", tt_optim_name(t->optim),
        "kernels", tt_model_kernels(t->model)->name, "precision",
        precision_name(tt_model_kernels(t->model)->precision), "threads", (json_int_t)t->threads,
        "workers", (json_int_t)working(t), "units", (json_int_t)tt_strategy_units(t->strategy),
        "accumulate", (json_int_t)t->conf.accumulate, "batch", (json_int_t)t->order.batch,
        "version", TT_VERSION, "early_bad", (json_int_t)t->early_bad);

    tt_label l = keep_label(t);
    if (l.generation) {
        json_object_set_new(meta, "generation", json_integer(l.generation));
        json_object_set_new(meta, "attempt", json_integer(l.attempt));
    }
    if (t->order.turns) {
        json_t *turns = json_array();
        for (int i = 0; i < t->order.turns; i++)
            json_array_append_new(turns, json_pack("[I, I]", (json_int_t)t->order.turn[i].step,
                                                   (json_int_t)t->order.turn[i].key));
        json_object_set_new(meta, "turns", turns);
    }
    json_object_set_new(meta, "witness", json_integer((json_int_t)t->witness.sum));
    json_object_set_new(meta, "witness_count", json_integer((json_int_t)t->witness.count));
    if (t->data) meaning_put(meta, t->data);
    put(meta, "early_best", t->early_best);
    put(meta, "epoch_loss", t->epoch_loss);
    put(meta, "epoch_weight", t->epoch_weight);
    put(meta, "train_loss", t->final_loss);
    put(meta, "samples_per_s", t->progress.samples_per_s);
    if (t->progress.tokens_per_s > 0) put(meta, "tokens_per_s", t->progress.tokens_per_s);
    if (t->save.best.sign) put(meta, t->save.best.metric, score);
    put(meta, "best", t->best);
    return meta;
}

void trainer_poll_saver(tt_trainer *t)
{
    tt_progress *p = &t->progress;
    int64_t step;
    tt_err err;

    if (!t->saver || !tt_saver_ended(t->saver, &step, &err)) return;
    t->saving = false;
    if (!err && *t->trouble)
        tt_info("checkpoint of step %lld is saved: the trouble is over", (long long)step);
    t->trouble[0] = 0;
    if (err)
        snprintf(t->trouble, sizeof t->trouble, "checkpoint of step %lld not saved: %s",
                 (long long)step, tt_message());
    else if (p->saved < TT_COUNT(p->saved_step))
        p->saved_step[p->saved++] = step;
    report_trouble(t);
}

/* What others hold of the optimiser's state, once a step. */
static tt_err collect(tt_trainer *t)
{
    tt_err err;

    if (t->collected == t->step) return TT_OK;
    if ((err = tt_strategy_collect(t->strategy, !shared(t))))
        return tt_context(err, "state for the checkpoint");
    t->collected = t->step;
    return TT_OK;
}

/* A disk may be slower than the deadline of steps: who waits for its own says so from time to time,
 * and is not taken for dead. */
tt_err trainer_await_saver(tt_trainer *t)
{
    const tt_group *all = tt_world_all(t->world);
    struct timespec nap = {0, 1000000};
    tt_err err = TT_OK;
    char *busy = calloc((size_t)all->size, 1);

    if (!busy) tt_mem_out((size_t)all->size);
    do {
        double until = tt_clock_s() + t->plan.timeout_s / 4;
        for (trainer_poll_saver(t); t->saving && tt_clock_s() < until; trainer_poll_saver(t))
            nanosleep(&nap, NULL);
        char mine = t->saving;
        if ((err = tt_group_gather(all, &mine, 1, busy))) err = tt_context(err, "saving");
    } while (!err && memchr(busy, true, (size_t)all->size));
    free(busy);
    return err;
}

/* Of the state as it is, by who has a saver, whose writer is idle. */
static tt_err begin_save(tt_trainer *t)
{
    double score =
        t->progress.validated || !is_val(&t->save.best) ? metric_of(t, &t->save.best) : NAN;
    tt_err err;

    if (!isnan(score) && (isnan(t->best) || t->save.best.sign * (score - t->best) > 0))
        t->best = score;
    t->progress.best = t->best;
    t->last_save = tt_clock_s();
    if (!t->saver) return TT_OK; /* rank 0 does it */
    follow_state(t);
    if (!(err = tt_saver_save(t->saver, t->step, make_meta(t, score), score))) t->saving = true;
    return err;
}

/* Made by rank 0, of what all have. A disk that fails does not stop training: the older checkpoint
 * stays, and the trouble is shown when it is known. The save before is waited for: its news would
 * be lost with this one's. */
tt_err trainer_save(tt_trainer *t)
{
    tt_err err;

    if ((err = collect(t)) || (err = trainer_await_saver(t))) return err;
    return begin_save(t);
}

tt_err tt_train_save(tt_trainer *t)
{
    tt_err err = TT_OK;

    if (t->no_files) return tt_fail(TT_EINVAL, "this training has no run folder to save in");
    if ((err = tt_strategy_meet(t->strategy)) || (err = numbers_agree(t)) || (err = collect(t)) ||
        (err = all_agree(t, t->saver ? TT_OK : trainer_saver_open(t))) ||
        (err = trainer_await_saver(t))) /* an earlier save's trouble was shown when it happened */
        return err;
    if ((!t->saver || tt_saver_last(t->saver) != t->step) && (err = begin_save(t))) return err;
    if ((err = trainer_await_saver(t))) return err;
    return all_agree(t, t->saver ? tt_saver_wait(t->saver) : TT_OK);
}

/* A tensor in parts, each with its first element in its name. False: there is no such. */
static bool restore_parts(const tt_ckpt *c, const tt_entry *want, float *to, tt_err *err)
{
    int64_t done = 0, all = want->bytes / 4;
    char name[512];

    *err = TT_OK;
    while (done < all && !*err) {
        snprintf(name, sizeof name, "%s@%lld", want->name, (long long)done);
        const tt_entry *have = tt_ckpt_find(c, name);
        if (!have && !done) return false;
        if (!have || have->rank != 1 || have->shape[0] > all - done || have->shape[0] < 1)
            *err = tt_fail(TT_ECKPT, "'%s' is not whole in the checkpoint: %s is missing",
                           want->name, name);
        else if (!(*err = tt_entry_floats(have, to + done, have->shape[0])))
            done += have->shape[0];
    }
    return true;
}

tt_err restore_floats(const tt_ckpt *c, const tt_entry *want, float *to)
{
    const tt_entry *have = tt_ckpt_find(c, want->name);
    tt_err err;

    if (!have && restore_parts(c, want, to, &err)) return err;
    if (!have && (!strncmp(want->name, "outer.", 6) || !strncmp(want->name, "residual.", 9)))
        return TT_OK; /* it begins now */
    if (!have)
        return tt_fail(TT_ECKPT,
                       "the checkpoint has no '%s': it belongs to another model or optimiser",
                       want->name);
    if (have->rank != want->rank ||
        memcmp(have->shape, want->shape, (size_t)want->rank * sizeof *want->shape))
        return tt_fail(TT_ECKPT,
                       "'%s' has another shape in the checkpoint: it belongs to another model",
                       want->name);
    return tt_entry_floats(have, to, want->bytes / 4);
}

/* A tensor of which the checkpoint has some rows alone: the others are as a training begins with
 * them, which they are by now. */
static tt_err restore_entry(tt_trainer *t, const tt_ckpt *c, int i)
{
    const tt_entry *want = &t->entries[i], *have = tt_ckpt_find(c, want->name), *rows;
    const char *name = t->entry_from[i].vector ? strchr(want->name, '.') + 1 : want->name;
    float *to = (float *)(uintptr_t)want->data;
    char list[512];

    snprintf(list, sizeof list, "%s.rows", name);
    if (!have || want->rank != 2 || !(rows = tt_ckpt_find(c, list)))
        return restore_floats(c, want, to);
    for (int64_t k = 0; k < want->bytes / 4 && t->entry_from[i].vector; k++)
        to[k] = (float)tt_optim_initial(t->optim);
    snprintf(list, sizeof list, "%s.table", name);
    const tt_param *p = t->params;
    while (p->at != t->entry_from[i].at) p++;
    return tables_scatter(t->entry_from[i].vector ? NULL : tt_ckpt_find(c, list), rows, have, p,
                          to);
}

static void compare_count(const json_t *meta, const char *key, int64_t now, tt_str *out)
{
    const json_t *v = json_object_get(meta, key);

    if (json_is_integer(v) && json_integer_value(v) != now)
        tt_str_add(out, "%s%s %lld, now %lld", out->size ? "; " : "", key,
                   (long long)json_integer_value(v), (long long)now);
}

/* All that the order of the sums depends on, and so the bits. */
static void compare_conditions(const tt_trainer *t, const json_t *meta)
{
    const char *kernels = json_string_value(json_object_get(meta, "kernels"));
    const char *now = tt_model_kernels(t->model)->name;
    tt_str changed = {0};

    if (t->plan.exact) {
        compare_count(meta, "units", tt_strategy_units(t->strategy), &changed);
    } else {
        compare_count(meta, "threads", t->threads, &changed);
        compare_count(meta, "workers", working(t), &changed);
    }
    compare_count(meta, "accumulate", t->conf.accumulate, &changed);
    compare_count(meta, "batch", t->order.batch, &changed);
    compare_count(meta, "seed", t->conf.seed, &changed);
    const char *precision = json_string_value(json_object_get(meta, "precision"));
    const char *precise = precision_name(tt_model_kernels(t->model)->precision);
    if (precision && strcmp(precision, precise))
        tt_str_add(&changed, "%sprecision %s, now %s", changed.size ? "; " : "", precision,
                   precise);
    if (kernels && strcmp(kernels, now))
        tt_str_add(&changed, "%skernels %s, now %s", changed.size ? "; " : "", kernels, now);
    if (tt_strategy_residual(t->strategy))
        tt_str_add(&changed, "%swhat compression owes is sent by the first host%s",
                   changed.size ? "; " : "",
                   strncmp(t->plan.compress, "powersgd", 8) ? "" : ", and its factors begin anew");
    if (changed.size)
        tt_warn("the result will not be bit for bit that of the uninterrupted run: %s",
                changed.data);
    tt_str_free(&changed);
}

/* *to stays as it is where the checkpoint says nothing. */
static void take_number(const json_t *meta, const char *key, double *to)
{
    const json_t *v = json_object_get(meta, key);
    if (json_is_number(v)) *to = json_number_value(v);
}

static void restore_meta(tt_trainer *t, const json_t *meta)
{
    compare_conditions(t, meta);
    t->early_bad = json_integer_value(json_object_get(meta, "early_bad"));
    take_number(meta, "early_best", &t->early_best);
    take_number(meta, "best", &t->best);
    t->progress.best = t->best;
    take_number(meta, "train_loss", &t->final_loss);
    take_number(meta, "samples_per_s", &t->progress.samples_per_s);
    take_number(meta, "tokens_per_s", &t->progress.tokens_per_s);
    const json_t *turns = json_object_get(meta, "turns");
    for (size_t i = 0; i < json_array_size(turns) && i < TT_TURNS; i++) {
        const json_t *turn = json_array_get(turns, i);
        t->order.turn[t->order.turns++] =
            (tt_turn){json_integer_value(json_array_get(turn, 0)),
                      (uint64_t)json_integer_value(json_array_get(turn, 1))};
    }
    t->witness = (tt_witness){(uint64_t)json_integer_value(json_object_get(meta, "witness")),
                              (uint64_t)json_integer_value(json_object_get(meta, "witness_count"))};
    if (t->step && t->step % t->epoch_steps == 0) {
        /* Saved before it was told, or else (and with another batch size) not of a whole epoch. */
        tt_epoch e = epoch_ended(t);
        if (e.count == e.samples) t->last = e;
        t->witness = (tt_witness){0};
        return;
    }
    take_number(meta, "epoch_loss", &t->epoch_loss);
    take_number(meta, "epoch_weight", &t->epoch_weight);
}

tt_err trainer_find_ckpt(tt_trainer *t, tt_ckpt **out)
{
    char folder[4200];
    tt_ckpt_info *list = NULL;
    int count = 0;
    tt_err err;

    *out = NULL;
    snprintf(folder, sizeof folder, "%s/checkpoints", t->dir->path);
    if (!tt_file_exists(folder))
        return TT_OK; /* stopped before its first checkpoint: from the start */
    if ((err = tt_ckpt_list(folder, false, &list, &count))) return err;
    free(list);
    return count ? tt_ckpt_open(folder, -1, true, out) : TT_OK;
}

tt_err trainer_restore(tt_trainer *t, const tt_ckpt *c)
{
    char folder[4200];
    tt_err err = TT_OK;

    /* Where it is saved from is another list, and the saver may have it already. */
    tt_entry *entries = t->entries;
    const char **files = t->entry_files;
    entry_from *from = t->entry_from;
    int count = t->entry_count;

    snprintf(folder, sizeof folder, "%s/checkpoints", t->dir->path);
    list_entries(t, true);
    for (int i = 0; i < t->entry_count && !err; i++)
        if (t->entry_from[i].vector >= 0) err = restore_entry(t, c, i);
    if (!err) err = tables_restore(t, c);
    t->entries = entries;
    t->entry_files = files;
    t->entry_from = from;
    t->entry_count = count;
    if (!err && t->data)
        err = meaning_compare(folder, meaning_of(tt_ckpt_meta(c)), tt_data_meaning(t->data));
    if (err) return err;
    bool remembers = t->slot_count || (t->table_count && tt_optim_rows_slots(t->optim));
    const char *before = json_string_value(json_object_get(tt_ckpt_meta(c), "optimizer"));
    if (!remembers && before &&
        (tt_ckpt_file(c, "optim.safetensors") || tt_ckpt_file(c, "optim-00000.safetensors")))
        tt_warn("the checkpoint has what an optimizer (%s) remembers, and this one (%s) remembers "
                "nothing: it is dropped",
                before, tt_optim_name(t->optim));
    t->step = tt_ckpt_step(c);
    restore_meta(t, tt_ckpt_meta(c));
    tt_info("resumed from %s at step %lld", folder, (long long)t->step);
    /* What is newer is bad, and will be passed over again if it cannot be renamed now. */
    if (tt_ckpt_set_aside(folder, t->step)) tt_warn("%s", tt_message());
    return TT_OK;
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
    for (int i = 0; i < count; i++)
        tt_sha_add(s, w + order[i]->at, (size_t)order[i]->n * sizeof *w);
    tt_sha_end(s, hex);
    free(order);
}
