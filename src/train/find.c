/* find: what halves there are in the vaults of all hosts, whether their bytes are what was
 * committed, and from which of them this world goes on (store/recover.h). All ranks come to the
 * same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keep.h"
#include "store/table.h"

/* A part in a half, as its host tells of it. */
typedef struct seen {
    int32_t slot, half, current, part;
    tt_label label;
    uint64_t hash;
    note note;
} seen;

/* ---- what there is ---- */

/* Are the copies there that the note speaks of? */
static bool is_marked(const keep *k, int slot, int half, const tt_vault_half *h)
{
    tt_vault_view v;
    bool marked;

    if (!k->map || tt_vault_peek(k->folder, slot, half, h->label.step, &v)) return false;
    marked = atomic_load(&keep_tail(k, v.data)->mark) == (uint64_t)h->label.step + 1;
    return !tt_vault_unpeek(&v) && marked;
}

/* What is there and cannot be gone on from: of another version of the program, or of a job that has
 * been changed since. In one line: the slots of a run are as a rule all of one kind. */
static void tell_strange(const keep *k, bool tables, const tt_vault_info *list, int slots)
{
    int first = -1, count = 0;
    bool version = false;

    for (int i = 0; i < slots; i++) {
        const tt_vault_info *v = &list[i];
        bool noted = true, any = false;
        for (int h = 0; h < 2; h++) {
            if (v->half[h].label.step < 0) continue;
            any = true;
            noted &= v->half[h].note_size == sizeof(note);
        }
        if (!v->foreign && (!any || (noted && v->key == k->key && v->bytes == k->bytes))) continue;
        count++;
        if (first < 0) first = i, version = v->foreign || !noted;
    }
    if (first < 0) return;
    tt_str why = {0}, more = {0};
    if (count > 1) tt_str_add(&more, " and %d more", count - 1);
    if (version)
        tt_str_add(&why, "is of %s%s, and this is tutti %s", *list[first].version ? "tutti " : "",
                   *list[first].version ? list[first].version : "another version of tutti",
                   TT_VERSION);
    else
        tt_str_add(&why, "is of a job with another model, optimiser%s or parallel.aggregate",
                   tables ? ", batch" : "");
    tt_warn("the vault, slot %d%s of %s: what is in it %s: it is not used, but made new; without "
            "another copy the run goes on from its newest checkpoint",
            list[first].slot, more.data ? more.data : "", k->folder, why.data);
    tt_str_free(&why);
    tt_str_free(&more);
}

static int list_own(keep *k, bool tables, seen **out)
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
    tell_strange(k, tables, list, slots);
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

/* What is in the half, and in the tables beside its slot, as they were then. */
static bool is_sound(const tt_trainer *t, const keep *k, const tt_found *f, const float *w)
{
    uint64_t rows = 0;
    char path[4200];

    for (int i = 0; i < t->table_count; i++) {
        tt_table_shape shape;
        tt_table *table;
        tt_strategy_table_shape(t->strategy, i, &shape);
        tt_vault_table(k->folder, f->slot, i, path);
        if (tt_table_peek(path, &shape, k->key, f->label.step, &table)) return false;
        rows += tt_strategy_table_weight(i) * tt_table_hash(table);
        tt_table_close(table);
    }
    return tt_strategy_hash(t->strategy, w, rows) == f->hash;
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
        bad[i] = !is_sound(t, k, f, view.data);
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
                        "it was committed%s: it is left out",
                        f->slot, f->host, (long long)f->label.step,
                        t->table_count ? ", or a table beside it" : "");
        }
    }
    if (k->recovery.disputed && !w->rank)
        tt_warn("the vault: of a newer state as many copies have one hash as another: nobody can "
                "say which is right, and it goes on from step %lld",
                (long long)k->recovery.label.step);
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
    int count = w->local ? 0 : list_own(k, t->table_count > 0, &mine), most = 0;
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

int keep_leader(const tt_world *w, int host)
{
    int r = 0;
    while (w->peer[r].host != host) r++;
    return r;
}

tt_holder keep_place(const tt_trainer *t, int rank)
{
    const keep *k = t->keep;
    int part = k->parts > 1 ? rank : 0;

    return (tt_holder){t->world->peer[rank].host, t->world->peer[rank].local, part};
}

/* Its own part, and copies of others; with `chief` every rank that takes up the state has all. */
int keep_places(const tt_trainer *t, int rank, tt_holder out[1 + MIRROR_MOST])
{
    const keep *k = t->keep;
    int part[MIRROR_MOST], count = k->mirror && k->parts > 1 ? mirror_parts(t, rank, part) : 0;

    out[0] = keep_place(t, rank);
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
    for (int r = 0; r < size; r++) count += keep_places(t, r, place + count);
    label =
        tt_recover_label(&k->recovery, k->found, k->count, place, count, k->parts, k->generation);
    free(place);
    return label;
}

bool keep_is_chosen(const keep *k, int i)
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
        tt_holder p = keep_place(t, r);
        bool has = false;
        for (int i = 0; i < k->count; i++)
            has |= keep_is_chosen(k, i) && k->found[i].host == p.host &&
                   k->found[i].slot == p.slot && k->notes[i].rank == r &&
                   k->notes[i].shape == k->shape;
        have += has;
    }
    k->in_shape = have == t->world->size;
    if (!k->in_shape) k->label.generation = k->generation;
}

/* ---- where it is ---- */

typedef struct home {
    char folder[4096];
    bool on_disk, used; /* used: there are slots in it */
} home;

/* Of tables without rows: those take room when they come. */
static uint64_t tables_need(const tt_trainer *t)
{
    uint64_t need = 0;

    for (int i = 0; i < t->table_count; i++) {
        tt_table_shape shape;
        tt_strategy_table_shape(t->strategy, i, &shape);
        need += tt_table_need(&shape);
    }
    return need;
}

/* The first rank of each host decides, for who looked a moment later might find less room. Where no
 * host has a vault yet and one of them has no room, nobody has one. But once there is one, a host
 * without room is no reason to forget it: its rank fails, and is left out. */
static tt_err find_home(tt_trainer *t, keep *k, const char *name, bool *used)
{
    const tt_world *w = t->world;
    uint64_t need = tt_vault_need(k->bytes) + tables_need(t);
    home mine = {.used = false}, *all = calloc((size_t)w->size, sizeof *all);
    tt_vault_info *list = NULL;
    int slots = 0;
    tt_err err = TT_OK, heard;

    if (!all) tt_mem_out(sizeof *all);
    need *= (uint64_t)w->local_size;
    *used = false;
    if (!w->local) {
        err = tt_vault_folder(name, need, "/var/tmp", mine.folder, &mine.on_disk);
        mine.used = !err && !tt_vault_list(mine.folder, &list, &slots) && slots;
        free(list);
    }
    if ((heard = tt_group_gather(tt_world_all(w), &mine, sizeof mine, all))) {
        free(all);
        return heard;
    }
    for (int r = 0; r < w->size; r++) *used |= all[r].used;
    mine = all[keep_leader(w, w->host)];
    free(all);
    snprintf(k->folder, sizeof k->folder, "%s", mine.folder);
    k->on_disk = mine.on_disk;
    if (err && *used) err = tt_context(TT_EIO, "the vault");
    return all_agree(t, err);
}

tt_err keep_find(tt_trainer *t, const char *id, const tt_train_told *go)
{
    const tt_world *w = t->world;
    keep *k = calloc(1, sizeof *k);
    char name[TT_RUN_ID + 80];
    bool used;
    tt_err err;

    if (!k) tt_mem_out(sizeof *k);
    TT_FAILPOINT("keep.find");
    t->keep = k;
    if ((err = keep_measure(t, k))) return err;
    k->key = keep_key(t, id, k->bytes);
    k->generation = go->generation ? go->generation : 1;
    k->go = *go;
    snprintf(name, sizeof name, w->threads ? "%s-%s" : "%s", id,
             w->peer[w->rank].name); /* hosts of a simulation */
    err = find_home(t, k, name, &used);
    if (err && (used || err == TT_EPEER)) return err;
    if (err) {
        if (!w->rank)
            tt_warn("no vault: if a worker is lost, the steps since the last checkpoint are, too: "
                    "%s",
                    tt_message());
        keep_close(t, false);
        return TT_OK;
    }
    if (k->on_disk && !w->local)
        tt_warn("the vault is on disk, in %s: there is too little room in /dev/shm", k->folder);
    if ((err = hear_all(t, k))) return err;
    if (k->recovery.any) k->label = choose_label(t);
    if (k->recovery.any && k->feedback) check_shape(t);
    TT_FAILPOINT("keep.found");
    return TT_OK;
}
