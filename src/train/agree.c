/* agree: what all ranks must have in common before the first step: the job, the data, the kernels
 * where bits count, and where rank 0 writes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

tt_err all_agree(const tt_trainer *t, tt_err mine)
{
    return t->world->size > 1 ? tt_group_agree(tt_world_all(t->world), mine) : mine;
}

/* ---- Kernels ---- */

enum { TABLES = 8 };

/* With exact: the best that every rank runs, unless the job names one. Else each its own best. */
tt_err agree_kernels(tt_trainer *t, const tt_kernels **k)
{
    const tt_group *all = tt_world_all(t->world);
    char mine[TABLES][16] = {{0}}, (*theirs)[TABLES][16];
    const tt_kernels *const *here;
    int count = tt_kernels_with((*k)->precision, &here), best = 0;
    tt_err err;

    if (!t->plan.exact || strcmp(t->conf.kernels, "auto") || t->world->size == 1) return TT_OK;
    if (!(theirs = calloc((size_t)all->size, sizeof *theirs))) tt_mem_out(sizeof *theirs);
    while (here[best] != *k) best++; /* TUTTI_KERNELS may forbid the best */
    for (int i = best; i < count && i < TABLES; i++)
        snprintf(mine[i], sizeof mine[i], "%s", here[i]->name);
    if ((err = tt_group_gather(all, mine, sizeof mine, theirs))) goto out;
    for (int i = 0; i < TABLES; i++) { /* by rank 0's order, which is the same everywhere */
        bool everywhere = *theirs[0][i] != 0;
        for (int r = 1; r < all->size && everywhere; r++) {
            int at = 0;
            while (at < TABLES && strcmp(theirs[r][at], theirs[0][i])) at++;
            everywhere = at < TABLES;
        }
        if (!everywhere) continue;
        err = tt_kernels_pick(theirs[0][i], (*k)->precision, k);
        goto out;
    }
    err = tt_fail(TT_EENV, "parallel.exact: there are no kernels that all hosts run");
out:
    free(theirs);
    return err;
}

/* ---- Job and data ---- */

static const char *value_of(const tt_node *n)
{
    return !n ? "absent" : n->kind == TT_SCALAR ? n->text : n->kind == TT_MAP ? "a map" : "a list";
}

/* `text` is rank 0's job. */
static tt_err compare_jobs(tt_tree *job, const char *text, size_t size)
{
    tt_tree *first = NULL;
    const tt_node *x, *y;
    tt_str path = {0};
    tt_err err = tt_tree_parse("the job of rank 0", text, size, &first);

    if (!err && tt_node_differ(tt_tree_root(job), tt_tree_root(first), &path, &x, &y))
        err = tt_fail(TT_EINVAL, "its job is not that of rank 0: %s is %s, there %s", path.data,
                      value_of(x), value_of(y));
    tt_str_free(&path);
    tt_tree_close(first);
    return err;
}

tt_err agree_job(tt_trainer *t, tt_tree *job)
{
    const tt_group *all = tt_world_all(t->world);
    tt_str mine = {0};
    char *first = NULL;
    tt_err err;

    if (t->world->size == 1) return TT_OK;
    tt_tree_print(tt_tree_root(job), false, &mine);
    uint64_t size = mine.size;
    if ((err = tt_group_bcast(all, 0, &size, sizeof size))) goto out;
    if (!(first = calloc(1, size + 1))) tt_mem_out(size);
    if (!t->world->rank) memcpy(first, mine.data, size);
    if ((err = tt_group_bcast(all, 0, first, size))) goto out;
    err = tt_group_agree(all, t->world->rank ? compare_jobs(job, first, size) : TT_OK);
out:
    free(first);
    tt_str_free(&mine);
    return err;
}

tt_err agree_data(tt_trainer *t)
{
    const tt_group *all = tt_world_all(t->world);
    char mine[65], (*theirs)[65];
    tt_err err;

    if (t->world->size == 1 || t->shards) return TT_OK;
    theirs = calloc((size_t)all->size, sizeof *theirs);
    if (!theirs) tt_mem_out(sizeof *theirs);
    snprintf(mine, sizeof mine, "%s", tt_data_sha(t->data));
    if ((err = tt_group_gather(all, mine, sizeof mine, theirs))) goto out;
    for (int r = 1; r < all->size && !err; r++)
        if (strcmp(theirs[r], theirs[0]))
            err = tt_fail(TT_EDATA,
                          "the data of rank %d (%s) is not that of rank 0 (%s): content %.12s and "
                          "%.12s; `data.shards: local` is for hosts with rows of their own",
                          r, t->world->peer[r].name, t->world->peer[0].name, theirs[r], theirs[0]);
out:
    free(theirs);
    return err;
}

/* Hosts that have rows of their own: how many each has. Ranks of one host see the same rows. */
tt_err agree_shards(tt_trainer *t)
{
    const tt_world *w = t->world;
    struct {
        int64_t rows;
        char sha[65];
    } mine = {.rows = tt_data_count(t->data, TT_TRAIN)}, *all;
    tt_err err;

    if (!t->local || w->size == 1) return TT_OK;
    all = calloc((size_t)w->size, sizeof *all);
    t->shards = calloc((size_t)w->host_count, sizeof *t->shards);
    t->host_n = calloc((size_t)w->host_count, sizeof *t->host_n);
    if (!all || !t->shards || !t->host_n) tt_mem_out((size_t)w->size * sizeof *all);
    snprintf(mine.sha, sizeof mine.sha, "%s", tt_data_sha(t->data));
    err = tt_group_gather(tt_world_all(w), &mine, sizeof mine, all);
    for (int r = 0; r < w->size && !err; r++) {
        int h = w->peer[r].host, first = 0;
        while (w->peer[first].host != h) first++;
        t->shards[h] = all[r].rows;
        if (strcmp(all[r].sha, all[first].sha))
            err = tt_fail(TT_EDATA,
                          "ranks %d and %d are both on %s and have other rows: content %.12s and "
                          "%.12s",
                          first, r, w->peer[r].name, all[first].sha, all[r].sha);
    }
    free(all);
    return err;
}

/* ---- The run folder ---- */

/* Does this rank see the folder of rank 0, and not one of the same name? */
static bool sees(const char *folder, uint64_t token)
{
    char path[4200], hex[20];
    json_t *world;
    bool same;

    snprintf(path, sizeof path, "%s/world.json", folder);
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)token);
    if (!tt_file_exists(path)) return false;
    world = json_load_file(path, 0, NULL);
    const char *text = json_string_value(json_object_get(world, "token"));
    same = text && !strcmp(text, hex);
    json_decref(world);
    return same;
}

/* world.json: who takes part, and a token by which they know the folder. */
static tt_err write_world(tt_trainer *t)
{
    char hex[20], *text;
    json_t *ranks = json_array(), *root;
    tt_err err;

    t->token = (uint64_t)(tt_wall_s() * 1e6) << 12 ^ (uint64_t)t->world->peer[0].pid;
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)t->token);
    for (int r = 0; r < t->world->size; r++)
        json_array_append_new(ranks, json_pack("{s:i, s:s, s:I}", "rank", r, "host",
                                               t->world->peer[r].name, "pid",
                                               (json_int_t)t->world->peer[r].pid));
    root = json_pack("{s:s, s:s, s:o}", "token", hex, "transport", t->world->transport, "ranks",
                     ranks);
    text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    err = text ? tt_run_dir_write(t->dir, "world.json", text)
               : tt_fail(TT_ENOMEM, "no memory for world.json");
    free(text);
    json_decref(root);
    return err;
}

/* Where rank 0 writes, each other rank has a log of its own, if it sees the folder; and if all do,
 * they write checkpoints together. */
tt_err agree_folder(tt_trainer *t)
{
    const tt_group *all = tt_world_all(t->world);
    struct {
        char path[4096];
        uint64_t token;
    } place = {"", 0};
    char log[4200], mine, *theirs;
    tt_err err = TT_OK;

    if (t->world->size == 1 || t->no_files) return TT_OK;
    if (t->dir && (err = write_world(t)) && t->dir->resumed) {
        tt_warn("%s", tt_message()); /* a run that goes on does so without */
        err = TT_OK;
    }
    if (t->dir && !err) {
        snprintf(place.path, sizeof place.path, "%s", t->dir->path);
        place.token = t->token;
    }
    if ((err = tt_group_agree(all, err)) || (err = tt_group_bcast(all, 0, &place, sizeof place)))
        return err;
    if (!(theirs = calloc((size_t)all->size, 1))) tt_mem_out((size_t)all->size);
    mine = sees(place.path, place.token);
    err = tt_group_gather(all, &mine, 1, theirs);
    t->together = true;
    for (int r = 0; r < all->size && !err; r++) t->together &= theirs[r] != 0;
    free(theirs);
    if (err) return err;
    t->token = place.token;
    snprintf(t->folder, sizeof t->folder, "%s/checkpoints", place.path);
    if (t->world->threads || !mine) return TT_OK;
    const char *path = place.path;
    tt_log_rank(t->world->rank);
    if (!t->world->rank) return TT_OK;
    snprintf(log, sizeof log, "%s/rank-%05d.log", path, t->world->rank);
    t->logging = !tt_log_open(log);
    tt_info("rank %d of %d on %s, %d threads%s", t->world->rank, t->world->size,
            t->world->peer[t->world->rank].name, t->threads,
            t->bound ? ", bound to CPUs of their own" : "");
    return TT_OK;
}
