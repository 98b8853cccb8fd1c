/* keep: the state of a training in the vault: finding what worlds before this one have left, taking
 * it up, and committing each step.
 *
 * Every rank has a slot in its host's folder of the run. All hear what halves there are on all
 * hosts, and come to the same choice (store/recover.h). A rank then has the chosen state in its own
 * slot already, or copies it from another slot of its host, or gets it from another host.
 *
 * With allreduce a slot holds all of the state; with `shard` and `chief` all weights and the
 * optimiser's state of some pieces, and a tail that says of which; with several hosts it also has
 * copies for one of them (mirror.c). With `average` the ranks
 * have weights of their own between meetings: the state is in memory of its own, and copied to the
 * vault when they meet. */
#include <stdlib.h>
#include <string.h>

#include "keep.h"

/* ---- where ---- */

uint64_t keep_key(const tt_trainer *t, const char *id, size_t bytes)
{
    tt_str text = {0};
    char hex[65];
    tt_sha *sha = tt_sha_begin();

    tt_str_add(&text, "%s %s %d %zu %d %llx", id, tt_optim_name(t->optim), t->slot_count, bytes,
               (int)t->plan.aggregate,
               (unsigned long long)(t->data && !t->local ? tt_data_meaning(t->data).words : 0));
    for (int i = 0; i < t->param_count; i++)
        tt_str_add(&text, " %s@%lld+%lld", t->params[i].name, (long long)t->params[i].at,
                   (long long)t->params[i].n);
    for (int i = 0; i < t->table_count; i++) {
        tt_table_shape shape;
        tt_strategy_table_shape(t->strategy, i, &shape);
        tt_str_add(&text, " %s:%lldx%d %lld %s %llx", t->tables[i].name, (long long)shape.rows,
                   shape.floats, (long long)shape.most, tt_optim_rows_name(t->optim),
                   (unsigned long long)tables_begin(t, i));
    }
    tt_sha_add(sha, text.data, text.size);
    tt_sha_end(sha, hex);
    tt_str_free(&text);
    hex[16] = 0;
    return strtoull(hex, NULL, 16);
}

static uint64_t shape_of(const tt_trainer *t)
{
    const tt_world *w = t->world;
    uint64_t h = tt_mix((uint64_t)w->size);

    for (const char *c = t->plan.compress; *c; c++) h = tt_mix(h ^ (uint64_t)*c);
    for (int r = 0; r < w->size; r++) h = tt_mix(h ^ (uint64_t)w->peer[r].host);
    for (int i = 0; i < tt_optim_piece_count(t->optim); i++)
        h = tt_mix(h ^ (uint64_t)tt_strategy_owner(t->strategy, i));
    return h;
}

static bool has_copy(const mirror *m, int part)
{
    for (int i = 0; m && i < m->count; i++)
        if (m->part[i] == part) return true;
    return false;
}

tt_err keep_measure(tt_trainer *t, keep *k)
{
    size_t pieces = (size_t)tt_optim_piece_count(t->optim);
    tt_err err;

    k->flat = ((size_t)t->size * sizeof(float) + 4095) / 4096 * 4096;
    k->state = k->bytes = tt_strategy_bytes(t->strategy);
    k->parts = 1;
    if (t->plan.aggregate == TT_AVERAGE) {
        k->copies = true;
        k->bytes += k->flat; /* the outer optimiser's momentum */
    } else if (t->plan.aggregate == TT_CHIEF && t->world->rank) {
        k->part = -1;
    } else if (t->plan.aggregate == TT_SHARD && t->world->size > 1) {
        k->part = t->world->rank;
        k->parts = t->world->size;
    }
    if (strcmp(t->plan.compress, "none")) {
        k->shape = shape_of(t);
        k->feedback = k->bytes + (in_parts(t) ? sizeof(tail) + pieces * sizeof *k->map : 0);
        k->feedback = (k->feedback + 63) / 64 * 64;
    }
    if (in_parts(t)) k->bytes += sizeof(tail) + pieces * sizeof *k->map;
    if (k->feedback) k->bytes = k->feedback + 2 * k->flat;
    if (!in_parts(t)) return TT_OK;
    if ((err = mirror_open(t, &k->mirror))) return err;
    if (!(k->map = calloc(pieces + 1, sizeof *k->map))) tt_mem_out(pieces * sizeof *k->map);
    for (size_t i = 0; i < pieces; i++) {
        int owner = tt_strategy_owner(t->strategy, (int)i);
        if (owner == k->part || has_copy(k->mirror, owner)) k->map[i] = (uint16_t)(owner + 1);
    }
    return TT_OK;
}

tail *keep_tail(const keep *k, const void *half)
{
    return (tail *)(uintptr_t)((const char *)half + k->state);
}

/* ---- committing ---- */

/* average: between the vault and the memory the strategy has. */
void keep_copy_state(tt_trainer *t, char *vault, bool out)
{
    const keep *k = t->keep;
    float *vector[TT_OPTIM_SLOTS + 2];
    int count = 0;

    vector[count++] = t->state.w;
    for (int i = 0; i < t->slot_count; i++) vector[count++] = t->state.slot[i];
    vector[count++] = tt_strategy_outer(t->strategy);
    for (int i = 0; i < count; i++) {
        size_t n = (size_t)t->size * sizeof(float);
        if (!vector[i]) continue;
        if (out)
            memcpy(vault + (size_t)i * k->flat, vector[i], n);
        else
            memcpy(vector[i], vault + (size_t)i * k->flat, n);
    }
}

static tt_vault_half describe(const tt_trainer *t, bool closed)
{
    const keep *k = t->keep;
    note n = {.early_bad = t->early_bad,
              .early_best = t->early_best,
              .best = t->best,
              .final_loss = t->final_loss,
              .seconds = t->seconds + tt_clock_s() - t->started,
              .epoch_loss = t->epoch_loss,
              .epoch_weight = t->epoch_weight,
              .loss = t->progress.loss,
              .grad_norm = t->progress.grad_norm,
              .witness = t->witness,
              .last = t->last,
              .rank = t->world->rank,
              .part = k->part,
              .parts = k->parts,
              .copies = k->mirror ? k->mirror->count : 0,
              .shape = k->shape,
              .both = strncmp(t->plan.compress, "powersgd", 8) != 0,
              .turns = t->order.turns,
              .early_end = t->early_end,
              .closed = closed};
    tt_vault_half h = {.label = k->label, .hash = t->hash, .note_size = sizeof n};

    for (int i = 0; i < n.copies; i++) n.copy[i] = (uint16_t)k->mirror->part[i];
    memcpy(n.turn, t->order.turn, sizeof n.turn);
    memcpy(h.note, &n, sizeof n);
    return h;
}

/* `copied`: so are the copies for other hosts. */
void keep_commit_half(tt_trainer *t, int half, bool closed, bool copied)
{
    keep *k = t->keep;
    tt_vault_half what = describe(t, closed);
    tail *behind = keep_tail(k, tt_vault_data(k->vault, half));

    if (copied) TT_FAILPOINT("keep.copied");
    if (k->feedback) {
        float *at = (float *)((char *)tt_vault_data(k->vault, half) + k->feedback);
        tt_strategy_feedback(t->strategy, at, at + k->flat / sizeof *at, false);
    }
    if (k->map) {
        atomic_store(&behind->mark, copied ? (uint64_t)k->label.step + 1 : 0);
        memcpy(behind->map, k->map, (size_t)tt_optim_piece_count(t->optim) * sizeof *k->map);
    }
    tt_vault_commit(k->vault, &what);
}

/* A state that this rank has come to, and not taken from the vault. */
static tt_err commit_own(tt_trainer *t, bool closed)
{
    keep *k = t->keep;
    int half = tt_vault_begin(k->vault);
    char *data = tt_vault_data(k->vault, half);

    if (k->copies) keep_copy_state(t, data, true);
    TT_FAILPOINT("keep.commit");
    keep_commit_half(t, half, closed, false);
    TT_FAILPOINT("keep.committed");
    if (TT_FAILPOINT("vault.flip_weight")) ((uint8_t *)data)[k->flat / 3] ^= 4;
    if (!k->mirror) return TT_OK;
    return mirror_start(t, k->mirror, data, k->flat, &keep_tail(k, data)->mark,
                        (uint64_t)k->label.step + 1);
}

/* ---- each step ---- */

void keep_marks(tt_trainer *t, _Atomic uint64_t **whole, _Atomic uint64_t **begun)
{
    *whole = *begun = NULL;
    if (t->keep && !t->keep->copies) tt_vault_marks(t->keep->vault, whole, begun);
}

tt_err keep_commit(tt_trainer *t)
{
    keep *k = t->keep;

    if (!k || !t->stats.met) return TT_OK;
    k->label = (tt_label){k->generation, k->label.attempt, t->step};
    t->hash = tt_strategy_hashed(t->strategy);
    t->committed = t->step;
    return commit_own(t, false);
}

void keep_due(tt_trainer *t, tt_step_in *in)
{
    mirror *m = t->keep ? t->keep->mirror : NULL;

    if (!m || !m->under_way) return;
    in->due = m->ops;
    in->due_count = m->op_count;
    in->mark = m->mark;
    in->value = m->value;
}

void keep_stepped(tt_trainer *t)
{
    if (t->keep && t->keep->mirror) t->keep->mirror->under_way = false;
}

/* Also if another rank dies now, or takes its host along, the next world begins with this step: all
 * have committed it. With `average` the one that is told of is that of the last meeting. */
tt_err keep_settle(tt_trainer *t)
{
    tt_err err = t->keep ? mirror_wait(t->keep->mirror) : TT_OK;

    return t->keep && t->plan.aggregate != TT_AVERAGE ? all_agree(t, err) : err;
}

int64_t keep_safe(const tt_trainer *t)
{
    const mirror *m = t->keep ? t->keep->mirror : NULL;

    if (!t->keep) return t->step; /* as far as there is anything to lose */
    return m && m->under_way ? t->committed - 1 : t->committed;
}

void keep_close_step(tt_trainer *t)
{
    keep *k = t->keep;

    /* Rank 0 alone does what counts. The note of another one stays as it was before that: if it is
     * all there is of this step, the next world closes it, and would count everything twice. */
    if (!k || t->committed != t->step || t->world->rank) return;
    TT_FAILPOINT("keep.amend");
    tt_vault_half what = describe(t, true);
    tt_vault_amend(k->vault, what.note, what.note_size);
}

/* The state this world begins with, when it is not one that was found. */
tt_err keep_first(tt_trainer *t)
{
    tt_err err;

    if (!t->keep) return TT_OK;
    t->hash = tt_strategy_hashed(t->strategy);
    tt_strategy_tables_at(t->strategy, t->step);
    if ((err = commit_own(t, true))) return err;
    return keep_settle(t);
}

/* ---- lines of history ---- */

static uint32_t counted(const tt_trainer *t)
{
    return t->keep ? t->keep->generation : t->told.generation;
}

/* From disk, or from the start: another line of history. */
tt_label keep_set_line(tt_trainer *t, int64_t step, uint32_t attempt)
{
    tt_label l = {counted(t), tt_attempt_next(attempt, counted(t)), step};

    keep_use_line(t, l);
    return l;
}

void keep_new_line(tt_trainer *t)
{
    keep_set_line(t, t->step, keep_label(t).attempt);
}

void keep_use_line(tt_trainer *t, tt_label label)
{
    t->attempt = label.attempt;
    if (!t->keep) return;
    t->keep->recovery.any = false;
    t->keep->label = label;
}

const tt_recovery *keep_recovery(const tt_trainer *t, tt_label *label)
{
    *label = t->keep->label;
    return &t->keep->recovery;
}

tt_label keep_label(const tt_trainer *t)
{
    return t->keep ? t->keep->label : (tt_label){counted(t), t->attempt, t->step};
}

bool tt_train_kept(const tt_trainer *t)
{
    return t->keep && (!in_parts(t) || t->world->host_count == 1 || t->keep->mirror);
}

void keep_close(tt_trainer *t, bool remove)
{
    keep *k = t->keep;

    if (!k) return;
    tt_vault_close(k->vault);
    if (remove && !all_agree(t, TT_OK) && !t->world->local && tt_vault_remove(k->folder))
        tt_info("the vault stays: %s", tt_message());
    mirror_close(k->mirror);
    free(k->map);
    free(k->found);
    free(k->notes);
    free(k);
    t->keep = NULL;
}
