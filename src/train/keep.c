/* keep: the state of a training in the vault: finding what worlds before this one have left, taking
 * it up, and committing each step.
 *
 * Every rank has a slot in its host's folder of the run. All hear what halves there are on all
 * hosts, and come to the same choice (store/recover.h). A rank then has the chosen state in its own
 * slot already, or copies it from another slot of its host, or gets it from another host.
 *
 * With allreduce a slot holds all of the state; with `shard` all weights and the optimiser's state
 * of some pieces, and a map of which; with `chief` only rank 0's counts. With `average` the ranks
 * have weights of their own between meetings: the state is in memory of its own, and copied to the
 * vault when they meet. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

enum { TAG_HALF = 1 << 18 };
static const size_t CHUNK = 64u << 20;
static const double LOCK_S = 5; /* a process that was killed lets go of its slot when it is gone */

/* What goes with a commit beside the numbers. `closed`: what came with the step is done, too. */
typedef struct note {
    int64_t early_bad;
    double early_best, best, final_loss, epoch_loss, epoch_weight, loss, grad_norm;
    tt_witness witness;
    tt_turn turn[TT_TURNS];
    int32_t turns;
    int32_t rank, part, parts;
    uint8_t early_end, closed;
} note;
_Static_assert(sizeof(note) <= TT_VAULT_NOTE, "a note has room");

/* A half, as its host tells of it. */
typedef struct seen {
    int32_t slot, half, current;
    tt_label label;
    uint64_t hash;
    note note;
} seen;

typedef struct keep keep;
struct keep {
    char folder[4096];
    bool on_disk;
    uint64_t key;
    size_t flat, state, bytes; /* of a vector, the strategy's state, and a half */
    bool copies;               /* the strategy has its state elsewhere: average */
    tt_vault *vault;
    uint8_t *map; /* shard: of each piece, is it ours? */
    int part, parts;
    uint32_t generation;
    tt_label label; /* under which this world has the state */
    tt_found *found;
    note *notes; /* of each found */
    int count;
    tt_recovery recovery;
    tt_train_told go;
};

/* ---- where ---- */

static uint64_t key_of(const tt_trainer *t, const char *id, size_t bytes)
{
    tt_str text = {0};
    char hex[65];
    tt_sha *sha = tt_sha_begin();

    tt_str_add(&text, "%s %s %d %zu %d", id, tt_optim_name(t->optim), t->slot_count, bytes,
               (int)t->plan.aggregate);
    for (int i = 0; i < t->param_count; i++)
        tt_str_add(&text, " %s@%lld+%lld", t->params[i].name, (long long)t->params[i].at,
                   (long long)t->params[i].n);
    tt_sha_add(sha, text.data, text.size);
    tt_sha_end(sha, hex);
    tt_str_free(&text);
    hex[16] = 0;
    return strtoull(hex, NULL, 16);
}

static void measure(tt_trainer *t, keep *k)
{
    size_t pieces = (size_t)tt_optim_piece_count(t->optim);

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
    if (t->plan.aggregate != TT_SHARD) return;
    k->bytes += pieces;
    if (!(k->map = calloc(pieces + 1, 1))) tt_mem_out(pieces);
    for (size_t i = 0; i < pieces; i++)
        k->map[i] = k->parts == 1 || tt_strategy_owner(t->strategy, (int)i) == t->world->rank;
}

/* ---- what there is ---- */

static int list_own(keep *k, seen **out)
{
    tt_vault_info *list = NULL;
    int slots = 0, count = 0;

    *out = NULL;
    if (tt_vault_list(k->folder, &list, &slots)) {
        tt_warn("the vault cannot be looked at: %s", tt_message());
        return 0;
    }
    if (!(*out = calloc((size_t)(2 * slots) + 1, sizeof **out))) tt_mem_out(sizeof **out);
    for (int i = 0; i < slots; i++)
        for (int h = 0; h < 2; h++) {
            const tt_vault_half *half = &list[i].half[h];
            seen *s = &(*out)[count];
            if (list[i].key != k->key || list[i].bytes != k->bytes || half->label.step < 0 ||
                half->note_size != sizeof s->note)
                continue;
            *s = (seen){.slot = list[i].slot,
                        .half = h,
                        .current = list[i].current == h,
                        .label = half->label,
                        .hash = half->hash};
            memcpy(&s->note, half->note, sizeof s->note);
            count++;
        }
    free(list);
    return count;
}

/* ---- are the bytes what was committed? ---- */

static bool same_slot(const tt_found *a, const tt_found *b)
{
    return a->host == b->host && a->slot == b->slot;
}

/* One of the chosen state, or one from which a rank has made what is odd. */
static bool is_to_check(const keep *k, const tt_found *f)
{
    if (f->odd || !f->hash) return false;
    if (!tt_label_compare(f->label, k->recovery.label)) return true;
    for (int i = 0; i < k->count; i++)
        if (k->found[i].odd && same_slot(&k->found[i], f)) return true;
    return false;
}

/* Each rank looks at some of its host's halves; `bad` is of all of them. */
static void check_own(const tt_trainer *t, keep *k, uint8_t *bad)
{
    const tt_world *w = t->world;
    tt_vault_view view;

    for (int i = 0; i < k->count; i++) {
        const tt_found *f = &k->found[i];
        if (f->host != w->host || f->slot % w->local_size != w->local || !is_to_check(k, f))
            continue;
        if (tt_vault_peek(k->folder, f->slot, f->half, f->label.step, &view)) continue;
        bad[i] = tt_strategy_hash(t->strategy, view.data) != f->hash;
        if (tt_vault_unpeek(&view)) bad[i] = false; /* its owner goes on with it */
    }
}

/* A bit may have changed since. What is found so is left out, and the choice made again. */
static tt_err choose_sound(tt_trainer *t, keep *k)
{
    const tt_world *w = t->world;
    size_t n = (size_t)k->count;
    uint8_t *mine = calloc(n + 1, 1), *all = calloc(n * (size_t)w->size + 1, 1);
    bool again = true;
    tt_err err = TT_OK;

    if (!mine || !all) tt_mem_out(n * (size_t)w->size);
    while (again && !err) {
        again = false;
        tt_recover_choose(k->found, k->count, k->go.known ? &k->go.told : NULL, &k->recovery);
        if (!k->recovery.any) break;
        memset(mine, 0, n);
        check_own(t, k, mine);
        if ((err = tt_group_gather(tt_world_all(w), mine, n, all))) break;
        for (size_t i = 0; i < n * (size_t)w->size; i++) {
            tt_found *f = &k->found[i % n];
            if (!all[i] || f->bad) continue;
            f->bad = again = true;
            for (int j = 0; j < k->count; j++)
                if (k->found[j].odd && same_slot(&k->found[j], f)) k->found[j].suspect = true;
            if (!w->rank)
                tt_warn("the vault, slot %d of host %d: the state of step %lld has changed since "
                        "it was committed: it is left out",
                        f->slot, f->host, (long long)f->label.step);
        }
    }
    for (int i = 0; i < k->count && !w->rank; i++)
        if (k->found[i].odd && k->found[i].part >= 0)
            tt_warn("the vault, slot %d of host %d: the weights of step %lld have the hash "
                    "%016llx, others have another one: they are left out",
                    k->found[i].slot, k->found[i].host, (long long)k->found[i].label.step,
                    (unsigned long long)k->found[i].hash);
    free(mine);
    free(all);
    return err;
}

/* The first rank of each host tells what is there; all hear of all. */
static tt_err hear_all(tt_trainer *t, keep *k)
{
    const tt_world *w = t->world;
    const tt_group *all = tt_world_all(w);
    seen *mine = NULL, *send = NULL, *got = NULL;
    int count = w->local ? 0 : list_own(k, &mine), most = 0;
    int *counts = calloc((size_t)w->size, sizeof *counts);
    tt_err err;

    if (!counts) tt_mem_out(sizeof *counts);
    if ((err = tt_group_gather(all, &count, sizeof count, counts))) goto out;
    for (int r = 0; r < w->size; r++)
        if (counts[r] > most) most = counts[r];
    if (!most) goto out;
    send = calloc((size_t)most, sizeof *send);
    got = calloc((size_t)most * (size_t)w->size, sizeof *got);
    k->found = calloc((size_t)most * (size_t)w->size, sizeof *k->found);
    if (!send || !got || !k->found) tt_mem_out((size_t)most * sizeof *got);
    if (count) memcpy(send, mine, (size_t)count * sizeof *send);
    if ((err = tt_group_gather(all, send, (size_t)most * sizeof *send, got))) goto out;
    for (int r = 0; r < w->size; r++)
        for (int i = 0; i < counts[r]; i++) {
            const seen *s = &got[r * most + i];
            k->found[k->count++] = (tt_found){.host = w->peer[r].host,
                                              .slot = s->slot,
                                              .half = s->half,
                                              .current = s->current,
                                              .label = s->label,
                                              .hash = s->hash,
                                              .part = s->note.part,
                                              .parts = s->note.parts};
        }
    /* Sorted by the choice: what belongs to each is found again by where it is. */
    k->notes = calloc((size_t)k->count + 1, sizeof *k->notes);
    if (!k->notes) tt_mem_out(sizeof *k->notes);
    if ((err = choose_sound(t, k))) goto out;
    for (int r = 0; r < w->size; r++)
        for (int i = 0; i < counts[r]; i++)
            for (int f = 0; f < k->count; f++)
                if (k->found[f].host == w->peer[r].host &&
                    k->found[f].slot == got[r * most + i].slot &&
                    k->found[f].half == got[r * most + i].half)
                    k->notes[f] = got[r * most + i].note;
out:
    free(mine);
    free(send);
    free(got);
    free(counts);
    return err;
}

static tt_holder place_of(const tt_trainer *t, int rank)
{
    const keep *k = t->keep;
    int part = k->parts > 1 ? rank : 0;

    return (tt_holder){t->world->peer[rank].host, t->world->peer[rank].local, part};
}

tt_err keep_find(tt_trainer *t, const char *id, const tt_train_told *go)
{
    const tt_world *w = t->world;
    keep *k = calloc(1, sizeof *k);
    tt_holder *place;
    tt_err err;

    if (!k) tt_mem_out(sizeof *k);
    t->keep = k;
    measure(t, k);
    k->key = key_of(t, id, k->bytes);
    k->generation = go->generation ? go->generation : 1;
    k->go = *go;
    uint64_t need = tt_vault_need(k->bytes) * (uint64_t)w->local_size;
    char name[TT_RUN_ID + 16];
    snprintf(name, sizeof name, w->threads ? "%s-%d" : "%s", id,
             w->host); /* hosts of a simulation */
    err = tt_vault_folder(name, need, "/var/tmp", k->folder, &k->on_disk);
    if ((err = all_agree(t, err))) { /* nobody has one, then */
        if (!w->rank)
            tt_warn("no vault: if a worker is lost, the steps since the last checkpoint are, too: "
                    "%s",
                    tt_message());
        keep_close(t, false);
        return err == TT_EPEER ? err : TT_OK;
    }
    if (k->on_disk && !w->local)
        tt_warn("the vault is on disk, in %s: there is too little room in /dev/shm", k->folder);
    if ((err = hear_all(t, k))) return err;
    if (!(place = calloc((size_t)w->size, sizeof *place))) tt_mem_out(sizeof *place);
    for (int r = 0; r < w->size; r++) place[r] = place_of(t, r);
    if (k->recovery.any)
        k->label = tt_recover_label(&k->recovery, k->found, k->count, place, w->size, k->parts,
                                    k->generation);
    free(place);
    return TT_OK;
}

/* ---- taking it up ---- */

static int leader_of(const tt_world *w, int host)
{
    int r = 0;
    while (w->peer[r].host != host) r++;
    return r;
}

/* The bytes of a half go from its host's first rank to another one. */
static tt_err move_half(tt_trainer *t, const tt_found *f, int to, void *buffer)
{
    const keep *k = t->keep;
    const tt_group *all = tt_world_all(t->world);
    int from = leader_of(t->world, f->host);
    tt_vault_view view = {0};
    tt_err err = TT_OK, gone;
    char *at = buffer;

    if (t->world->rank != from && t->world->rank != to) return TT_OK;
    if (t->world->rank == from) {
        if ((err = tt_vault_peek(k->folder, f->slot, f->half, f->label.step, &view))) return err;
        at = (char *)(uintptr_t)view.data;
    }
    for (size_t done = 0; done < k->bytes && !err; done += CHUNK) {
        size_t n = k->bytes - done < CHUNK ? k->bytes - done : CHUNK;
        tt_op op;
        err = t->world->rank == from ? tt_send_start(all, to, TAG_HALF, at + done, n, &op)
                                     : tt_recv_start(all, from, TAG_HALF, at + done, n, &op);
        if (!err) err = tt_op_wait(&op);
    }
    if (t->world->rank == from && (gone = tt_vault_unpeek(&view)) && !err) err = gone;
    return err;
}

/* What a half that holds part of the state has of it. */
static void take_part(const tt_trainer *t, const char *from, char *to, bool weights)
{
    const keep *k = t->keep;
    const uint8_t *map = (const uint8_t *)from + k->state;

    if (weights) memcpy(to, from, k->flat);
    for (int i = 0; i < tt_optim_piece_count(t->optim); i++) {
        tt_piece p = tt_optim_piece(t->optim, i);
        if (!map[i]) continue;
        for (int s = 0; s < t->slot_count; s++) {
            size_t at = (size_t)(s + 1) * k->flat + (size_t)p.at * sizeof(float);
            memcpy(to + at, from + at, (size_t)p.n * sizeof(float));
        }
    }
}

static tt_err copy_near(const tt_trainer *t, const tt_found *f, char *to, bool whole, bool weights)
{
    const keep *k = t->keep;
    tt_vault_view view;
    tt_err err = tt_vault_peek(k->folder, f->slot, f->half, f->label.step, &view);

    if (err) return err;
    if (whole)
        memcpy(to, view.data, k->bytes);
    else
        take_part(t, view.data, to, weights);
    return tt_vault_unpeek(&view);
}

static tt_vault_half describe(const tt_trainer *t, bool closed)
{
    const keep *k = t->keep;
    note n = {.early_bad = t->early_bad,
              .early_best = t->early_best,
              .best = t->best,
              .final_loss = t->final_loss,
              .epoch_loss = t->epoch_loss,
              .epoch_weight = t->epoch_weight,
              .loss = t->progress.loss,
              .grad_norm = t->progress.grad_norm,
              .witness = t->witness,
              .rank = t->world->rank,
              .part = k->part,
              .parts = k->parts,
              .turns = t->order.turns,
              .early_end = t->early_end,
              .closed = closed};
    tt_vault_half h = {.label = k->label, .hash = t->hash, .note_size = sizeof n};

    memcpy(n.turn, t->order.turn, sizeof n.turn);
    memcpy(h.note, &n, sizeof n);
    return h;
}

static void commit_half(tt_trainer *t, int half, bool closed)
{
    keep *k = t->keep;
    tt_vault_half what = describe(t, closed);

    if (k->map)
        memcpy((char *)tt_vault_data(k->vault, half) + k->state, k->map,
               (size_t)tt_optim_piece_count(t->optim));
    tt_vault_commit(k->vault, &what);
}

/* Replicas: hosts that have none get one first, then all ranks take it from their own host. */
static tt_err fetch_replica(tt_trainer *t, int *half)
{
    keep *k = t->keep;
    const tt_world *w = t->world;
    int from;
    tt_refill s =
        tt_recover_share(&k->recovery, k->found, k->count, place_of(t, w->rank), k->label, &from);
    tt_found near;
    tt_err err = TT_OK;

    if (s.undo) tt_vault_undo(k->vault);
    for (int h = 0; h < w->host_count && !err; h++) {
        int leader = leader_of(w, h), source;
        tt_recover_share(&k->recovery, k->found, k->count, place_of(t, leader), k->label, &source);
        if (k->found[source].host == h) continue;
        if (w->rank == leader) *half = tt_vault_begin(k->vault);
        err = move_half(t, &k->found[source], leader,
                        w->rank == leader ? tt_vault_data(k->vault, *half) : NULL);
        if (!err && w->rank == leader) commit_half(t, *half, false);
    }
    if ((err = all_agree(t, err))) return err;
    near = k->found[from];
    if (near.host == w->host && !s.copy) {
        *half = tt_vault_current(k->vault);
        return TT_OK;
    }
    if (near.host != w->host && !w->local) return TT_OK; /* has it from afar */
    *half = tt_vault_begin(k->vault);
    if (near.host != w->host) { /* the first of the host has it by now, in one of its halves */
        near = (tt_found){.host = w->host, .slot = 0, .half = 0, .label = k->label};
        if (!(err = copy_near(t, &near, tt_vault_data(k->vault, *half), true, true))) goto copied;
        near.half = 1;
    }
    if ((err = copy_near(t, &near, tt_vault_data(k->vault, *half), true, true))) return err;
copied:
    commit_half(t, *half, false);
    return TT_OK;
}

/* Parts: each rank needs some of every part. */
static tt_err fetch_parts(tt_trainer *t, int *half)
{
    keep *k = t->keep;
    const tt_world *w = t->world;
    int parts = k->recovery.parts, *from = calloc((size_t)parts, sizeof *from);
    char *buffer = NULL, *to = NULL;
    bool first = true;
    tt_err err = TT_OK;

    if (!from) tt_mem_out(sizeof *from);
    for (int r = 0; r < w->size && !err; r++) {
        tt_refill s =
            tt_recover_share(&k->recovery, k->found, k->count, place_of(t, r), k->label, from);
        if (r == w->rank && s.undo) tt_vault_undo(k->vault);
        if (r == w->rank) *half = s.copy ? tt_vault_begin(k->vault) : tt_vault_current(k->vault);
        if (r == w->rank) to = tt_vault_data(k->vault, *half);
        for (int p = 0; p < parts && s.copy && !err; p++) {
            const tt_found *f = &k->found[from[p]];
            if (f->host == w->peer[r].host) {
                if (r == w->rank) err = copy_near(t, f, to, false, first);
            } else {
                if (r == w->rank && !buffer && !(buffer = malloc(k->bytes))) tt_mem_out(k->bytes);
                err = move_half(t, f, r, buffer);
                if (!err && r == w->rank) take_part(t, buffer, to, first);
            }
            if (r == w->rank) first = false;
        }
        if (r == w->rank && s.copy && !err) commit_half(t, *half, false);
    }
    free(buffer);
    free(from);
    return err;
}

/* The note of whoever was rank 0: it alone tells what came with a step. */
static const note *chosen_note(const keep *k)
{
    const note *best = NULL;

    for (int i = 0; i < k->count; i++) {
        const tt_found *f = &k->found[i];
        if (f->odd || f->bad || tt_label_compare(f->label, k->recovery.label)) continue;
        if (!best || !k->notes[i].rank) best = &k->notes[i];
    }
    return best;
}

static void take_note(tt_trainer *t)
{
    const keep *k = t->keep;
    const note *n = chosen_note(k);

    t->step = k->label.step;
    t->hash = 0;
    for (int i = 0; i < k->count && !t->hash; i++) {
        const tt_found *f = &k->found[i];
        if (!f->odd && !f->bad && !tt_label_compare(f->label, k->recovery.label)) t->hash = f->hash;
    }
    t->early_bad = n->early_bad;
    t->early_best = n->early_best;
    t->best = t->progress.best = n->best;
    t->final_loss = n->final_loss;
    t->epoch_loss = n->epoch_loss;
    t->epoch_weight = n->epoch_weight;
    t->early_end = n->early_end;
    t->witness = n->witness;
    t->order.turns = n->turns;
    memcpy(t->order.turn, n->turn, sizeof n->turn);
    t->progress.loss = n->loss;
    t->progress.grad_norm = n->grad_norm;
    t->open_end = t->step > 0 && (n->rank || !n->closed);
}

/* Where the strategy has its state: in the slot, or in memory of its own. */
static tt_err place_state(tt_trainer *t, int half)
{
    keep *k = t->keep;
    size_t end = tt_vault_at(k->vault, 1) + k->bytes;
    tt_state_file f = {.fd = tt_vault_fd(k->vault),
                       .bytes = (end + 4095) / 4096 * 4096,
                       .at = {tt_vault_at(k->vault, 0), tt_vault_at(k->vault, 1)}};
    tt_err err = tt_strategy_place(t->strategy, k->copies ? NULL : &f);

    if (!err && !k->copies) err = tt_strategy_use(t->strategy, half);
    if (!err) t->state = tt_strategy_state(t->strategy);
    return err;
}

/* average: between the vault and the memory the strategy has. */
static void copy_state(tt_trainer *t, char *vault, bool out)
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

tt_err keep_take(tt_trainer *t, bool *recovered)
{
    keep *k = t->keep;
    int half = 0;
    tt_err err;

    *recovered = false;
    err = tt_vault_open(k->folder, t->world->local, k->key, k->bytes, LOCK_S, &k->vault);
    if ((err = all_agree(t, err))) return tt_context(err, "the vault");
    *recovered = k->recovery.any;
    if (!k->recovery.any) {
        half = tt_vault_begin(k->vault);
    } else {
        take_note(t); /* what is committed on the way carries it on */
        err = k->recovery.parts == 1 && k->parts == 1 ? fetch_replica(t, &half)
                                                      : fetch_parts(t, &half);
        if ((err = all_agree(t, err))) return tt_context(err, "the state of the training");
    }
    if ((err = all_agree(t, place_state(t, half)))) return err;
    if (*recovered && k->copies) copy_state(t, tt_vault_data(k->vault, half), false);
    if (*recovered) tt_strategy_settle(t->strategy);
    return TT_OK;
}

/* ---- each step ---- */

void keep_marks(tt_trainer *t, _Atomic uint64_t **whole, _Atomic uint64_t **begun)
{
    *whole = *begun = NULL;
    if (t->keep && !t->keep->copies) tt_vault_marks(t->keep->vault, whole, begun);
}

void keep_commit(tt_trainer *t)
{
    keep *k = t->keep;
    int half;

    if (!k || !t->stats.met) return;
    k->label = (tt_label){k->generation, k->label.attempt, t->step};
    t->hash = tt_strategy_hashed(t->strategy);
    half = tt_vault_begin(k->vault);
    if (k->copies) copy_state(t, tt_vault_data(k->vault, half), true);
    commit_half(t, half, false);
    if (TT_FAILPOINT("vault.flip_weight"))
        ((uint8_t *)tt_vault_data(k->vault, half))[k->flat / 3] ^= 4;
    t->committed = t->step;
}

void keep_close_step(tt_trainer *t)
{
    keep *k = t->keep;

    if (!k || t->committed != t->step) return;
    tt_vault_half what = describe(t, true);
    tt_vault_amend(k->vault, what.note, what.note_size);
}

/* The state this world begins with, when it is not one that was found. */
void keep_first(tt_trainer *t)
{
    keep *k = t->keep;
    int half;

    if (!k) return;
    t->hash = tt_strategy_hashed(t->strategy);
    half = tt_vault_begin(k->vault);
    if (k->copies) copy_state(t, tt_vault_data(k->vault, half), true);
    commit_half(t, half, true);
}

/* From disk, or from the start: another line of history. */
void keep_set_line(tt_trainer *t, int64_t step, uint32_t attempt)
{
    keep *k = t->keep;

    k->recovery.any = false;
    k->label = (tt_label){k->generation, tt_attempt_next(attempt, k->generation), step};
}

void keep_new_line(tt_trainer *t)
{
    keep *k = t->keep;

    if (!k) return;
    k->label = (tt_label){k->generation, tt_attempt_next(k->label.attempt, k->generation), t->step};
}

void keep_use_line(tt_trainer *t, tt_label label)
{
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
    return t->keep ? t->keep->label : (tt_label){0};
}

bool tt_train_kept(const tt_trainer *t)
{
    bool parts = t->plan.aggregate == TT_SHARD || t->plan.aggregate == TT_CHIEF;

    return t->keep && !(parts && t->world->host_count > 1);
}

void keep_close(tt_trainer *t, bool remove)
{
    keep *k = t->keep;

    if (!k) return;
    tt_vault_close(k->vault);
    if (remove && !all_agree(t, TT_OK) && !t->world->local && tt_vault_remove(k->folder))
        tt_info("the vault stays: %s", tt_message());
    free(k->map);
    free(k->found);
    free(k->notes);
    free(k);
    t->keep = NULL;
}
