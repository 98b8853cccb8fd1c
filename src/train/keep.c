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
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

enum { TAG_HALF = 1 << 18 };
static const size_t CHUNK = 64u << 20;
static const double LOCK_S = 5; /* a process that was killed lets go of its slot when it is gone */

/* What goes with a commit beside the numbers. `closed`: what came with the step is done, too.
 * `copy`: the parts of other ranks that are in it beside its own, once the half's mark says so. */
typedef struct note {
    int64_t early_bad;
    double early_best, best, final_loss, epoch_loss, epoch_weight, loss, grad_norm;
    tt_witness witness;
    tt_turn turn[TT_TURNS];
    int32_t turns;
    int32_t rank, part, parts, copies;
    uint16_t copy[MIRROR_MOST];
    uint64_t shape; /* of the world, and does the second vector of the feedback count in a sum? */
    uint8_t both, early_end, closed;
} note;
_Static_assert(sizeof(note) <= TT_VAULT_NOTE, "a note has room");

/* What stands behind the state where it is in parts. */
typedef struct tail {
    _Alignas(64) _Atomic uint64_t mark; /* step + 1: the copies of that step are there */
    uint16_t map[];                     /* of each piece: 1 + the part it is of; 0: not here */
} tail;

/* A part in a half, as its host tells of it. */
typedef struct seen {
    int32_t slot, half, current, part;
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
    uint16_t *map;   /* as in the tail; NULL: there is none */
    mirror *mirror;  /* NULL: no copies on other hosts */
    size_t feedback; /* where in a half compression's is, two vectors; 0: there is none */
    uint64_t shape;  /* who has which place, and how it is compressed                   */
    bool in_shape;   /* what was found is of a world of the same shape, and all there    */
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

static tt_err measure(tt_trainer *t, keep *k)
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

static tail *tail_of(const keep *k, const void *half)
{
    return (tail *)(uintptr_t)((const char *)half + k->state);
}

/* ---- what there is ---- */

/* Are the copies there that the note speaks of? */
static bool is_marked(const keep *k, int slot, int half, const tt_vault_half *h)
{
    tt_vault_view v;
    bool marked;

    if (!k->map || tt_vault_peek(k->folder, slot, half, h->label.step, &v)) return false;
    marked = atomic_load(&tail_of(k, v.data)->mark) == (uint64_t)h->label.step + 1;
    return !tt_vault_unpeek(&v) && marked;
}

static int list_own(keep *k, seen **out)
{
    tt_vault_info *list = NULL;
    int slots = 0, count = 0, most = 0;

    *out = NULL;
    if (tt_vault_list(k->folder, &list, &slots)) {
        tt_warn("the vault cannot be looked at: %s", tt_message());
        return 0;
    }
    for (int i = 0; i < slots; i++)
        for (int h = 0; h < 2; h++) {
            const tt_vault_half *half = &list[i].half[h];
            if (most < count + 1 + MIRROR_MOST) {
                most = 2 * most + 1 + MIRROR_MOST;
                if (!(*out = realloc(*out, (size_t)most * sizeof **out))) tt_mem_out(sizeof **out);
            }
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
            s->part = s->note.part;
            count++;
            if (s->note.copies < 1 || s->note.copies > MIRROR_MOST ||
                !is_marked(k, list[i].slot, h, half))
                continue;
            for (int c = 0; c < s->note.copies; c++) {
                (*out)[count] = *s;
                (*out)[count++].part = s->note.copy[c];
            }
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
                                              .part = s->part,
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

/* Its own part, and copies of others; with `chief` every rank that takes up the state has all. */
static int places_of(const tt_trainer *t, int rank, tt_holder out[1 + MIRROR_MOST])
{
    const keep *k = t->keep;
    int part[MIRROR_MOST], count = k->mirror && k->parts > 1 ? mirror_parts(t, rank, part) : 0;

    out[0] = place_of(t, rank);
    for (int i = 0; i < count; i++) {
        out[1 + i] = out[0];
        out[1 + i].part = part[i];
    }
    return 1 + count;
}

static tt_label choose_label(const tt_trainer *t)
{
    const keep *k = t->keep;
    int size = t->world->size, count = 0;
    tt_holder *place = calloc((size_t)size * 2 + MIRROR_MOST + 1, sizeof *place);
    tt_label label;

    if (!place) tt_mem_out(sizeof *place);
    for (int r = 0; r < size; r++) count += places_of(t, r, place + count);
    label =
        tt_recover_label(&k->recovery, k->found, k->count, place, count, k->parts, k->generation);
    free(place);
    return label;
}

static bool is_chosen(const keep *k, int i)
{
    return !k->found[i].odd && !tt_label_compare(k->found[i].label, k->recovery.label);
}

/* Has every rank what compression kept for it, in its own slot? Else all write all of it anew, so
 * that none of it is there twice (recover.h, 2). */
static void check_shape(const tt_trainer *t)
{
    keep *k = t->keep;
    int have = 0;

    for (int r = 0; r < t->world->size; r++) {
        tt_holder p = place_of(t, r);
        bool has = false;
        for (int i = 0; i < k->count; i++)
            has |= is_chosen(k, i) && k->found[i].host == p.host && k->found[i].slot == p.slot &&
                   k->notes[i].rank == r && k->notes[i].shape == k->shape;
        have += has;
    }
    k->in_shape = have == t->world->size;
    if (!k->in_shape) k->label.generation = k->generation;
}

tt_err keep_find(tt_trainer *t, const char *id, const tt_train_told *go)
{
    const tt_world *w = t->world;
    keep *k = calloc(1, sizeof *k);
    tt_err err;

    if (!k) tt_mem_out(sizeof *k);
    TT_FAILPOINT("keep.find");
    t->keep = k;
    if ((err = measure(t, k))) return err;
    k->key = key_of(t, id, k->bytes);
    k->generation = go->generation ? go->generation : 1;
    k->go = *go;
    uint64_t need = tt_vault_need(k->bytes) * (uint64_t)w->local_size;
    char name[TT_RUN_ID + 80];
    snprintf(name, sizeof name, w->threads ? "%s-%s" : "%s", id,
             w->peer[w->rank].name); /* hosts of a simulation */
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
    if (k->recovery.any) k->label = choose_label(t);
    if (k->recovery.any && k->feedback) check_shape(t);
    TT_FAILPOINT("keep.found");
    return TT_OK;
}

/* ---- taking it up ---- */

static int leader_of(const tt_world *w, int host)
{
    int r = 0;
    while (w->peer[r].host != host) r++;
    return r;
}

/* Bytes, from one rank to another; these two call it. */
static tt_err pass(const tt_trainer *t, int from, int to, char *at, size_t bytes)
{
    const tt_group *all = tt_world_all(t->world);
    tt_err err = TT_OK;

    for (size_t done = 0; done < bytes && !err; done += CHUNK) {
        size_t n = bytes - done < CHUNK ? bytes - done : CHUNK;
        tt_op op;
        err = t->world->rank == from ? tt_send_start(all, to, TAG_HALF, at + done, n, &op)
                                     : tt_recv_start(all, from, TAG_HALF, at + done, n, &op);
        if (!err) err = tt_op_wait(&op);
    }
    return err;
}

/* The bytes of a half go from its host's first rank to another one. */
static tt_err move_half(tt_trainer *t, const tt_found *f, int to, void *buffer)
{
    const keep *k = t->keep;
    int from = leader_of(t->world, f->host);
    tt_vault_view view = {0};
    tt_err err = TT_OK, gone;
    char *at = buffer;

    if (t->world->rank != from && t->world->rank != to) return TT_OK;
    if (t->world->rank == from) {
        if ((err = tt_vault_peek(k->folder, f->slot, f->half, f->label.step, &view))) return err;
        at = (char *)(uintptr_t)view.data;
    }
    err = pass(t, from, to, at, k->bytes);
    if (t->world->rank == from && (gone = tt_vault_unpeek(&view)) && !err) err = gone;
    return err;
}

/* A part of the state goes there: which pieces those are, and their vectors. */
static tt_err pass_part(const tt_trainer *t, int from, int to, uint16_t *map, int part, char *half)
{
    const keep *k = t->keep;
    int pieces = tt_optim_piece_count(t->optim);
    tt_err err = pass(t, from, to, (char *)map, (size_t)pieces * sizeof *map);

    for (int i = 0, end; i < pieces && !err; i = end) {
        int64_t first = tt_optim_piece(t->optim, i).at, n = 0;
        for (end = i; end < pieces && map[end] == part + 1; end++) {
            tt_piece p = tt_optim_piece(t->optim, end);
            if (p.at != first + n) break;
            n += p.n;
        }
        if (end == i) end++;
        for (int s = 0; s < t->slot_count && n && !err; s++)
            err =
                pass(t, from, to, half + (size_t)(s + 1) * k->flat + (size_t)first * sizeof(float),
                     (size_t)n * sizeof(float));
    }
    return err;
}

/* ... from its host's first rank, with the weights if they are wanted. */
static tt_err move_part(const tt_trainer *t, const tt_found *f, int to, char *half, bool weights)
{
    const keep *k = t->keep;
    int from = leader_of(t->world, f->host), rank = t->world->rank;
    size_t size = (size_t)tt_optim_piece_count(t->optim) * sizeof(uint16_t);
    tt_vault_view view = {0};
    tt_err err = TT_OK, gone;
    uint16_t *map;

    if (rank != from && rank != to) return TT_OK;
    if (rank == from) {
        if ((err = tt_vault_peek(k->folder, f->slot, f->half, f->label.step, &view))) return err;
        half = (char *)(uintptr_t)view.data;
    }
    if (!(map = malloc(size + 1))) tt_mem_out(size);
    if (rank == from) memcpy(map, tail_of(k, half)->map, size);
    if (weights) err = pass(t, from, to, half, k->flat);
    if (!err) err = pass_part(t, from, to, map, f->part, half);
    if (rank == from && (gone = tt_vault_unpeek(&view)) && !err) err = gone;
    free(map);
    return err;
}

/* A part, from a half that has it. */
static void take_part(const tt_trainer *t, const char *from, int part, char *to, bool weights)
{
    const keep *k = t->keep;
    const uint16_t *map = tail_of(k, from)->map;

    if (weights) memcpy(to, from, k->flat);
    for (int i = 0; i < tt_optim_piece_count(t->optim); i++) {
        tt_piece p = tt_optim_piece(t->optim, i);
        if (map[i] != part + 1) continue;
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
        take_part(t, view.data, f->part, to, weights);
    return tt_vault_unpeek(&view);
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
static void commit_half(tt_trainer *t, int half, bool closed, bool copied)
{
    keep *k = t->keep;
    tt_vault_half what = describe(t, closed);
    tail *behind = tail_of(k, tt_vault_data(k->vault, half));

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

    if (k->copies) copy_state(t, data, true);
    TT_FAILPOINT("keep.commit");
    commit_half(t, half, closed, false);
    TT_FAILPOINT("keep.committed");
    if (TT_FAILPOINT("vault.flip_weight")) ((uint8_t *)data)[k->flat / 3] ^= 4;
    if (!k->mirror) return TT_OK;
    return mirror_start(t, k->mirror, data, k->flat, &tail_of(k, data)->mark,
                        (uint64_t)k->label.step + 1);
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
        if (!err && w->rank == leader) commit_half(t, *half, false, true);
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
    commit_half(t, *half, false, true);
    return TT_OK;
}

static tt_refill share_of(const tt_trainer *t, int rank, int *from)
{
    const keep *k = t->keep;
    tt_holder place[1 + MIRROR_MOST];
    int count = places_of(t, rank, place);
    tt_refill all = {0};

    for (int i = 0; i < count; i++) {
        tt_refill s = tt_recover_share(&k->recovery, k->found, k->count, place[i], k->label, from);
        all.undo |= s.undo;
        all.copy |= s.copy;
    }
    return all;
}

/* Parts: each rank needs some of every part. */
static tt_err fetch_parts(tt_trainer *t, int *half)
{
    keep *k = t->keep;
    const tt_world *w = t->world;
    int parts = k->recovery.parts, *from = calloc((size_t)parts, sizeof *from);
    char *to = NULL;
    tt_err err = TT_OK;

    if (!from) tt_mem_out(sizeof *from);
    for (int r = 0; r < w->size && !err; r++) {
        tt_refill s = share_of(t, r, from);
        if (r == w->rank && s.undo) tt_vault_undo(k->vault);
        if (r == w->rank) *half = s.copy ? tt_vault_begin(k->vault) : tt_vault_current(k->vault);
        if (r == w->rank) to = tt_vault_data(k->vault, *half);
        for (int p = 0; p < parts && s.copy && !err; p++) {
            const tt_found *f = &k->found[from[p]];
            if (f->host != w->peer[r].host)
                err = move_part(t, f, r, to, p == 0);
            else if (r == w->rank)
                err = copy_near(t, f, to, false, p == 0);
        }
        if (r == w->rank && s.copy && !err) commit_half(t, *half, false, true);
    }
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
                       .at = {tt_vault_at(k->vault, 0), tt_vault_at(k->vault, 1)},
                       .in_memory = !k->on_disk};
    tt_err err = tt_strategy_place(t->strategy, k->copies ? NULL : &f);

    if (!err && !k->copies) err = tt_strategy_use(t->strategy, half);
    if (!err) t->state = tt_strategy_state(t->strategy);
    return err;
}

/* ---- what compression keeps ---- */

/* One half of each slot of this host, of the chosen state, one slot after the other. */
static tt_err add_feedback(const tt_trainer *t, float *total)
{
    const keep *k = t->keep;

    for (int slot = 0, next; slot < INT_MAX; slot = next) {
        const tt_found *f;
        int i = -1;
        tt_vault_view v;
        tt_err err;
        next = INT_MAX;
        for (int j = 0; j < k->count; j++) {
            int at = k->found[j].slot;
            if (!is_chosen(k, j) || k->found[j].host != t->world->host) continue;
            if (at == slot && i < 0) i = j;
            if (at > slot && at < next) next = at;
        }
        if (i < 0) continue;
        f = &k->found[i];
        if ((err = tt_vault_peek(k->folder, f->slot, f->half, f->label.step, &v))) return err;
        const float *first = (const float *)((const char *)v.data + k->feedback),
                    *second = first + k->flat / sizeof *first;
        for (int64_t e = 0; e < t->size; e++)
            total[e] += k->notes[i].both ? first[e] + second[e] : first[e];
        if ((err = tt_vault_unpeek(&v))) return err;
    }
    return TT_OK;
}

/* Worlds of another shape: all that was owed comes to rank 0, and from there to who sends it. */
static tt_err sum_feedback(tt_trainer *t)
{
    const tt_world *w = t->world;
    const tt_group *all = tt_world_all(w);
    size_t bytes = (size_t)t->size * sizeof(float);
    float *total = calloc(1, bytes + 4), *theirs = w->rank ? NULL : malloc(bytes + 4);
    tt_op op;
    tt_err err = TT_OK;

    if (!total || (!theirs && !w->rank)) tt_mem_out(bytes);
    if (!w->local) err = add_feedback(t, total);
    if ((err = all_agree(t, err))) goto out;
    for (int h = 1; h < w->host_count && !err; h++)
        for (size_t at = 0; at < bytes && !err; at += CHUNK) {
            size_t n = bytes - at < CHUNK ? bytes - at : CHUNK;
            int from = leader_of(w, h);
            if (w->rank && w->rank != from) continue;
            err = w->rank ? tt_send_start(all, 0, TAG_HALF, (char *)total + at, n, &op)
                          : tt_recv_start(all, from, TAG_HALF, (char *)theirs + at, n, &op);
            if (!err) err = tt_op_wait(&op);
            for (size_t e = at / 4; !w->rank && !err && e < (at + n) / 4; e++)
                total[e] += theirs[e];
        }
    if (!err && !w->rank && tt_strategy_residual(t->strategy))
        memcpy(tt_strategy_residual(t->strategy), total, bytes);
    if (!err) err = tt_strategy_owe(t->strategy);
out:
    free(total);
    free(theirs);
    return err;
}

static tt_err take_feedback(tt_trainer *t)
{
    keep *k = t->keep;

    if (!k->in_shape) return sum_feedback(t);
    for (int half = 0; half < 2; half++) {
        float *at = (float *)((char *)tt_vault_data(k->vault, half) + k->feedback);
        if (tt_label_compare(tt_vault_look(k->vault, half)->label, k->recovery.label)) continue;
        tt_strategy_feedback(t->strategy, at, at + k->flat / sizeof *at, true);
    }
    return TT_OK;
}

tt_err keep_take(tt_trainer *t, bool *recovered)
{
    keep *k = t->keep;
    int half = 0;
    tt_err err;

    *recovered = false;
    TT_FAILPOINT("keep.open");
    err = tt_vault_open(k->folder, t->world->local, k->key, k->bytes, LOCK_S, &k->vault);
    if ((err = all_agree(t, err))) return tt_context(err, "the vault");
    *recovered = k->recovery.any;
    if (!k->recovery.any) {
        half = tt_vault_begin(k->vault);
    } else {
        TT_FAILPOINT("keep.take");
        if (k->feedback && (err = all_agree(t, take_feedback(t))))
            return tt_context(err, "what compression owes");
        take_note(t); /* what is committed on the way carries it on */
        err = k->recovery.parts == 1 && k->parts == 1 ? fetch_replica(t, &half)
                                                      : fetch_parts(t, &half);
        if ((err = all_agree(t, err))) return tt_context(err, "the state of the training");
    }
    if ((err = all_agree(t, place_state(t, half)))) return err;
    if (*recovered && k->copies) copy_state(t, tt_vault_data(k->vault, half), false);
    if (*recovered) tt_strategy_settle(t->strategy);
    TT_FAILPOINT("keep.taken");
    return TT_OK;
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

tt_err keep_settle(tt_trainer *t)
{
    return t->keep ? mirror_wait(t->keep->mirror) : TT_OK;
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
    if ((err = commit_own(t, true))) return err;
    return keep_settle(t);
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
