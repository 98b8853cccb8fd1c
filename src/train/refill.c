/* refill: the chosen state comes into the slot of every rank: it is there already, or in another
 * slot of the host, or on another host. Nothing of the chosen state is written to meanwhile. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "keep.h"
#include "store/table.h"

enum { TAG_HALF = 1 << 18 };
static const size_t CHUNK = 64u << 20;
static const double LOCK_S = 5; /* a process that was killed lets go of its slot when it is gone */

/* ---- taking it up ---- */

/* A half that was found; TT_EPEER if it is not what it was then. */
static tt_err peek(const keep *k, const tt_found *f, tt_vault_view *out)
{
    tt_err err = tt_vault_peek(k->folder, f->slot, f->half, f->label.step, out);

    if (err || !tt_label_compare(out->what.label, f->label)) return err;
    tt_vault_unpeek(out); /* the same step of another history */
    *out = (tt_vault_view){0};
    return tt_fail(TT_EPEER, "slot %d has another state of step %lld", f->slot,
                   (long long)f->label.step);
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
    int from = keep_leader(t->world, f->host);
    tt_vault_view view = {0};
    tt_err err = TT_OK, gone;
    char *at = buffer;

    if (t->world->rank != from && t->world->rank != to) return TT_OK;
    if (t->world->rank == from) {
        if ((err = peek(k, f, &view))) return err;
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
    int from = keep_leader(t->world, f->host), rank = t->world->rank;
    size_t size = (size_t)tt_optim_piece_count(t->optim) * sizeof(uint16_t);
    tt_vault_view view = {0};
    tt_err err = TT_OK, gone;
    uint16_t *map;

    if (rank != from && rank != to) return TT_OK;
    if (rank == from) {
        if ((err = peek(k, f, &view))) return err;
        half = (char *)(uintptr_t)view.data;
    }
    if (!(map = malloc(size + 1))) tt_mem_out(size);
    if (rank == from) memcpy(map, keep_tail(k, half)->map, size);
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
    const uint16_t *map = keep_tail(k, from)->map;

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
    tt_err err = peek(k, f, &view);

    if (err) return err;
    if (whole)
        memcpy(to, view.data, k->bytes);
    else
        take_part(t, view.data, f->part, to, weights);
    return tt_vault_unpeek(&view);
}

/* The halves of this host, from which others may be sent something: who could not read one of them
 * in the middle of that would be waited for. */
static tt_err look_ahead(const tt_trainer *t)
{
    const keep *k = t->keep;
    tt_vault_view view;
    tt_err err = TT_OK;

    if (t->world->local) return TT_OK;
    for (int i = 0; i < k->count && !err; i++) {
        if (!keep_is_chosen(k, i) || k->found[i].host != t->world->host) continue;
        if (!(err = peek(k, &k->found[i], &view))) err = tt_vault_unpeek(&view);
    }
    return err;
}

/* A host that has none gets one, from afar, into the slot of its first rank: into which half all
 * others of it must know, for in the other one may be what was left out. */
static tt_err fetch_far(tt_trainer *t, int *half)
{
    keep *k = t->keep;
    const tt_world *w = t->world;
    int *halves = calloc((size_t)w->size, sizeof *halves), source, mine = 0;
    tt_err err = TT_OK;

    if (!halves) tt_mem_out(sizeof *halves);
    for (int h = 0; h < w->host_count && !err; h++) {
        int leader = keep_leader(w, h);
        tt_recover_share(&k->recovery, k->found, k->count, keep_place(t, leader), k->label,
                         &source);
        if (k->found[source].host == h) continue;
        if (w->rank == leader) mine = tt_vault_begin(k->vault);
        err = move_half(t, &k->found[source], leader,
                        w->rank == leader ? tt_vault_data(k->vault, mine) : NULL);
        if (!err && w->rank == leader) keep_commit_half(t, mine, !t->open_end, true);
    }
    if (!(err = all_agree(t, err)))
        err = tt_group_gather(tt_world_all(w), &mine, sizeof mine, halves);
    *half = halves[keep_leader(w, w->host)];
    free(halves);
    return err;
}

/* Replicas: hosts that have none get one first, then all ranks take it from their own host. */
static tt_err fetch_replica(tt_trainer *t, int *half)
{
    keep *k = t->keep;
    const tt_world *w = t->world;
    int from;
    tt_refill s =
        tt_recover_share(&k->recovery, k->found, k->count, keep_place(t, w->rank), k->label, &from);
    tt_found near = k->found[from];
    bool far = near.host != w->host;
    tt_err err;

    if (s.undo) TT_ASSERT(tt_vault_undo(k->vault)); /* it is as it was found */
    if (w->host_count > 1 && (err = fetch_far(t, half))) return err;
    if (far && !w->local) return TT_OK;
    if (far) near = (tt_found){.host = w->host, .slot = 0, .half = *half, .label = k->label};
    if (!far && !s.copy) {
        *half = tt_vault_current(k->vault);
        return TT_OK;
    }
    *half = tt_vault_begin(k->vault);
    if ((err = copy_near(t, &near, tt_vault_data(k->vault, *half), true, true))) return err;
    keep_commit_half(t, *half, !t->open_end, true);
    return TT_OK;
}

static tt_refill share_of(const tt_trainer *t, int rank, int *from)
{
    const keep *k = t->keep;
    tt_holder place[1 + MIRROR_MOST];
    int count = keep_places(t, rank, place);
    tt_refill all = {0};

    for (int i = 0; i < count; i++) {
        tt_refill s = tt_recover_share(&k->recovery, k->found, k->count, place[i], k->label, from);
        all.undo |= s.undo;
        all.copy |= s.copy;
    }
    return all;
}

/* Parts: each rank needs some of every part. A rank that cannot read its own still gives others
 * theirs, who would wait for it. */
static tt_err fetch_parts(tt_trainer *t, int *half)
{
    keep *k = t->keep;
    const tt_world *w = t->world;
    int parts = k->recovery.parts, *from = calloc((size_t)parts, sizeof *from);
    char *to = NULL;
    tt_err err = TT_OK, mine = TT_OK;

    if (!from) tt_mem_out(sizeof *from);
    for (int r = 0; r < w->size && !err; r++) {
        tt_refill s = share_of(t, r, from);
        if (r == w->rank && s.undo) TT_ASSERT(tt_vault_undo(k->vault)); /* it is as it was found */
        if (r == w->rank) *half = s.copy ? tt_vault_begin(k->vault) : tt_vault_current(k->vault);
        if (r == w->rank) to = tt_vault_data(k->vault, *half);
        for (int p = 0; p < parts && s.copy && !err; p++) {
            const tt_found *f = &k->found[from[p]];
            if (f->host != w->peer[r].host)
                err = move_part(t, f, r, to, p == 0);
            else if (r == w->rank && !mine)
                mine = copy_near(t, f, to, false, p == 0);
        }
        if (r == w->rank && s.copy && !err && !mine) keep_commit_half(t, *half, !t->open_end, true);
    }
    free(from);
    return err ? err : mine;
}

/* Rank 0 alone does what comes with a step, and its note says when that is done: those of others,
 * of the same step, are as they were before. */
static const note *chosen_note(const keep *k)
{
    const note *best = NULL;

    for (int i = 0; i < k->count; i++) {
        const tt_found *f = &k->found[i];
        if (f->odd || f->bad || tt_label_compare(f->label, k->recovery.label)) continue;
        if (!best || (k->notes[i].closed && !best->closed)) best = &k->notes[i];
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
    t->seconds = n->seconds;
    t->epoch_loss = n->epoch_loss;
    t->epoch_weight = n->epoch_weight;
    t->early_end = n->early_end;
    t->witness = n->witness;
    t->last = n->last;
    t->order.turns = n->turns;
    memcpy(t->order.turn, n->turn, sizeof n->turn);
    t->progress.loss = n->loss;
    t->progress.grad_norm = n->grad_norm;
    t->open_end = t->step > 0 && !n->closed;
}

/* ---- tables ---- */

/* Has this half's slot the chosen state, and its tables? */
static bool has_tables(const keep *k, int i)
{
    return keep_is_chosen(k, i) && !k->found[i].bad;
}

/* Who has them in its own slot, taken back by a step or not, is left with them. Those who have not
 * get them from one who has, or from the first rank of a host where they lie in a slot that nobody
 * has now. */
static tt_err take_tables(tt_trainer *t)
{
    const keep *k = t->keep;
    const tt_world *w = t->world;
    int64_t step = k->recovery.label.step;
    int source = -1, root;
    bool mine = false, all = true;
    tt_err err = TT_OK;
    char path[4200];

    for (int i = k->count - 1; i >= 0; i--) {
        if (!has_tables(k, i)) continue;
        source = i;
        mine |= k->found[i].host == w->host && k->found[i].slot == w->local;
    }
    TT_ASSERT(source >= 0); /* or there is no state to go on from */
    for (int i = 0; i < t->table_count && mine; i++) {
        tt_table *own = tt_strategy_table(t->strategy, i);
        if (tt_table_at(own) == step) tt_table_back(own);
        /* Somebody may have been at it between the look and the lock. */
        mine = tt_table_at(own) == step || (step > 0 && tt_table_step(own) == step - 1);
    }
    bool *have = calloc((size_t)w->size, sizeof *have);
    if (!have) tt_mem_out((size_t)w->size);
    err = tt_group_gather(tt_world_all(w), &mine, sizeof mine, have);
    for (int r = 0; r < w->size; r++) all &= have[r];
    free(have);
    root = keep_leader(w, k->found[source].host);
    for (int i = 0; i < t->table_count && !all && !err; i++) {
        tt_table *from = NULL;
        tt_table_shape shape;
        tt_strategy_table_shape(t->strategy, i, &shape);
        tt_vault_table(k->folder, k->found[source].slot, i, path);
        if (w->rank == root) err = tt_table_peek(path, &shape, k->key, step, &from);
        if (!(err = all_agree(t, err)))
            err = tt_strategy_pass_table(t->strategy, i, root, from, !mine, step);
        tt_table_close(from);
    }
    return err;
}

/* Where the strategy has its state: in the slot, or in memory of its own. */
static tt_err place_state(tt_trainer *t, int half)
{
    keep *k = t->keep;
    size_t end = tt_vault_at(k->vault, 1) + k->bytes, count = (size_t)t->table_count;
    char(*path)[4200] = calloc(count + 1, sizeof *path);
    const char **tables = calloc(count + 1, sizeof *tables);

    if (!path || !tables) tt_mem_out((count + 1) * sizeof *path);
    for (int i = 0; i < t->table_count; i++) {
        tt_vault_table(k->folder, t->world->local, i, path[i]);
        tables[i] = path[i];
    }
    tt_state_file f = {.fd = tt_vault_fd(k->vault),
                       .bytes = (end + 4095) / 4096 * 4096,
                       .at = {tt_vault_at(k->vault, 0), tt_vault_at(k->vault, 1)},
                       .in_memory = !k->on_disk,
                       .tables = tables,
                       .key = k->key};
    tt_err err = tt_strategy_place(t->strategy, k->copies ? NULL : &f);

    free(path);
    free(tables);
    if (err == TT_EENV) err = TT_EIO; /* no room: as in take_slot */
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
            if (!keep_is_chosen(k, j) || k->found[j].host != t->world->host) continue;
            if (at == slot && i < 0) i = j;
            if (at > slot && at < next) next = at;
        }
        if (i < 0) continue;
        f = &k->found[i];
        if ((err = peek(k, f, &v))) return err;
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
            int from = keep_leader(w, h);
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

/* The halves were looked at before the slot was locked: who had it then may have gone on, and what
 * it did is no part of the history that this world has chosen. */
static tt_err is_as_found(const tt_trainer *t)
{
    const keep *k = t->keep;
    int slot = t->world->local;

    for (int half = 0; half < 2; half++) {
        const tt_vault_half *now = tt_vault_look(k->vault, half);
        const tt_found *f = NULL;
        for (int i = 0; i < k->count && !f; i++)
            if (k->found[i].host == t->world->host && k->found[i].slot == slot &&
                k->found[i].half == half)
                f = &k->found[i];
        if (!f && (now->label.step < 0 || now->note_size != sizeof(note))) continue;
        if (f && !tt_label_compare(f->label, now->label) && f->hash == now->hash &&
            f->current == (tt_vault_current(k->vault) == half))
            continue;
        return tt_fail(TT_EPEER,
                       "slot %d was written to while this world began, by a process of one before",
                       slot);
    }
    return TT_OK;
}

static tt_err take_slot(tt_trainer *t)
{
    keep *k = t->keep;
    tt_err err = tt_vault_open(k->folder, t->world->local, k->key, k->bytes, LOCK_S, &k->vault);

    /* No room: the next world may do without this slot, and the run goes on. */
    if (err == TT_EENV) err = TT_EIO;
    return err ? err : is_as_found(t);
}

tt_err keep_take(tt_trainer *t, bool *recovered)
{
    keep *k = t->keep;
    int half = 0;
    tt_err err;

    *recovered = false;
    TT_FAILPOINT("keep.open");
    if ((err = all_agree(t, take_slot(t)))) return tt_context(err, "the vault");
    *recovered = k->recovery.any;
    if (!k->recovery.any) {
        half = tt_vault_begin(k->vault);
    } else {
        TT_FAILPOINT("keep.take");
        if (k->feedback && (err = all_agree(t, take_feedback(t))))
            return tt_context(err, "what compression owes");
        if (t->world->host_count > 1 && (err = all_agree(t, look_ahead(t))))
            return tt_context(err, "the vault");
        take_note(t); /* what is committed on the way carries it on */
        err = k->recovery.parts == 1 && k->parts == 1 ? fetch_replica(t, &half)
                                                      : fetch_parts(t, &half);
        if ((err = all_agree(t, err))) return tt_context(err, "the state of the training");
    }
    if ((err = all_agree(t, place_state(t, half)))) return err;
    if (*recovered && t->table_count && (err = take_tables(t)))
        return tt_context(err, "the tables of the training");
    if (*recovered && k->copies) keep_copy_state(t, tt_vault_data(k->vault, half), false);
    if (*recovered) tt_strategy_settle(t->strategy, t->hash);
    TT_FAILPOINT("keep.taken");
    return TT_OK;
}
