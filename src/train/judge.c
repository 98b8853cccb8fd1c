/* judge: validation: fixed parts of a split, run by the threads of all ranks, and their results
 * added in the order of the parts, so that it does not matter who ran what. Where there are two
 * classes the scores of all rows go the same way, for the area under the ROC curve. Of pixels the
 * classes are counted, in whole numbers: whose counts are added to whose does not matter at all. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

static size_t sheet_size(const judge *j)
{
    return 2 + (size_t)j->grain;
}

static tt_err open_sheets(judge *j, int64_t sheets)
{
    size_t rows = (size_t)j->part_count * (size_t)j->grain;

    j->sheets = calloc((size_t)sheets * sheet_size(j), sizeof *j->sheets);
    j->keys = calloc(rows + 1, sizeof *j->keys);
    for (int i = 0; i < j->size; i++)
        if (!(j->desks[i].out = calloc((size_t)j->grain * (size_t)j->columns, sizeof(float))))
            break;
    if (j->sheets && j->keys && j->desks[j->size - 1].out) return TT_OK;
    return tt_fail(TT_ENOMEM, "no memory for the scores of %zu samples", rows);
}

static size_t seen_size(const judge *j)
{
    return 3 * (size_t)j->classes;
}

static tt_err open_seen(judge *j, int64_t ranks)
{
    j->seen = calloc((size_t)ranks * seen_size(j), sizeof *j->seen);
    for (int i = 0; i < j->size; i++)
        if (!(j->desks[i].seen = calloc(seen_size(j), sizeof *j->seen))) break;
    if (j->seen && j->desks[j->size - 1].seen) return TT_OK;
    return tt_fail(TT_ENOMEM, "no memory for the counts of %d classes", j->classes);
}

/* Which of all parts a rank runs. Where hosts have rows of their own their parts follow one
 * another, and are shared out among the ranks of the host; *base is then the first of the host. */
static void share_of(const judge *j, int rank, int64_t *first, int64_t *end, int64_t *base)
{
    int64_t parts = j->parts_now, at = rank, of = j->world ? j->world->size : 1;

    *base = 0;
    if (j->host_parts) {
        const tt_world *w = j->world;
        int host = w->peer[rank].host;
        for (int h = 0; h < host; h++) *base += j->host_parts[h];
        parts = j->host_parts[host];
        at = w->peer[rank].local;
        of = 0;
        for (int r = 0; r < w->size; r++) of += w->peer[r].host == host;
    }
    *first = *base + parts * at / of;
    *end = *base + parts * (at + 1) / of;
}

/* The most parts of a rank: results of ranks lie so far apart. */
static int64_t most_of(const judge *j)
{
    int64_t most = 0, first, end, base;

    for (int r = 0; r < (j->world ? j->world->size : 1); r++) {
        share_of(j, r, &first, &end, &base);
        if (end - first > most) most = end - first;
    }
    return most ? most : 1;
}

/* Parts of each host; all ranks ask together. */
static tt_err ask_hosts(judge *j, int64_t own)
{
    const tt_world *w = j->world;
    int64_t *all = calloc((size_t)w->size, sizeof *all);
    tt_err err;

    j->host_parts = calloc((size_t)w->host_count, sizeof *j->host_parts);
    if (!all || !j->host_parts) tt_mem_out((size_t)w->size * sizeof *all);
    if (!(err = tt_group_gather(tt_world_all(w), &own, sizeof own, all))) {
        j->part_count = 0;
        for (int r = 0; r < w->size; r++) j->host_parts[w->peer[r].host] = all[r];
        for (int h = 0; h < w->host_count && !err; h++) {
            j->part_count += j->host_parts[h];
            if (!j->host_parts[h] != !j->host_parts[0])
                err =
                    tt_fail(TT_EDATA, "data.shards: local: some hosts have rows to validate with, "
                                      "and some have none");
        }
    }
    free(all);
    return err;
}

tt_err judge_open(judge *j, const tt_model *m, tt_crew *crew, tt_world *world, bool local,
                  int64_t val_count)
{
    tt_err err;

    *j = (judge){.crew = crew,
                 .world = world,
                 .model = m,
                 .size = tt_crew_size(crew),
                 .grain = tt_crew_most(crew),
                 .row = tt_model_row(m),
                 .columns = tt_model_scores(m),
                 .classes = tt_model_pixel_classes(m)};
    int64_t ranks = world ? world->size : 1;
    j->part_count = (val_count + j->grain - 1) / j->grain;
    if (local && ranks > 1 && (err = ask_hosts(j, j->part_count))) return err;
    j->parts_now = j->part_count;
    /* for a gather, every rank sends as many as the one that has most */
    int64_t room = most_of(j) * ranks;
    j->desks = calloc((size_t)j->size, sizeof *j->desks);
    j->parts = calloc((size_t)j->part_count + 1, sizeof *j->parts);
    j->gathered = calloc((size_t)(ranks > 1 ? room : 1), sizeof *j->gathered);
    if (!j->desks || !j->parts || !j->gathered)
        return tt_fail(TT_ENOMEM, "no memory for the results of %lld samples",
                       (long long)val_count);
    for (int i = 0; i < j->size; i++)
        if ((err = tt_batch_open(j->grain, &j->row, &j->desks[i].batch))) return err;
    if (j->classes && (err = open_seen(j, ranks))) return err;
    return j->columns ? open_sheets(j, room) : TT_OK;
}

void judge_close(judge *j)
{
    for (int i = 0; j->desks && i < j->size; i++) {
        tt_batch_close(&j->desks[i].batch, j->grain, &j->row);
        free(j->desks[i].out);
        free(j->desks[i].seen);
    }
    free(j->desks);
    free(j->parts);
    free(j->gathered);
    free(j->sheets);
    free(j->keys);
    free(j->seen);
    free(j->host_parts);
    *j = (judge){0};
}

typedef struct hearing {
    judge *j;
    const tt_data *d;
    tt_split split;
    tt_order order;
    int64_t rank, first, end; /* this one, and its parts    */
    int64_t base, each;       /* see share_of, most_of      */
} hearing;

static uint32_t *sheet_of(const judge *j, const hearing *h, int64_t rank, int64_t i)
{
    return j->sheets + (size_t)(rank * h->each + i) * sheet_size(j);
}

/* What a row of either class adds: `score` is how much likelier class 1 is, as a logarithm. */
static void note_odds(tt_result *r, double score, bool yes)
{
    double wrong = yes ? -score : score, small = exp(-fabs(score));

    r->scored++;
    r->yes += yes;
    r->logloss += fmax(wrong, 0) + log1p(small);
    r->expected += score < 0 ? small / (1 + small) : 1 / (1 + small);
}

/* Fills the sheet of a part that was just run. Rows without a label are not on it. */
static tt_err note_scores(const judge *j, int me, tt_result *r, uint32_t *sheet)
{
    const desk *w = &j->desks[me];
    uint32_t *keys = sheet + 2, no = 0, yes = 0;
    int64_t columns;
    tt_err err = tt_run_output(tt_crew_run(j->crew, me), NULL, w->out, &columns);

    if (err) return err;
    TT_ASSERT(columns == j->columns);
    for (int i = 0; i < w->batch.n; i++) {
        const float *x = w->out + i * columns;
        float score = columns == 2 ? x[1] - x[0] : x[0];
        if (w->batch.label[i] >= 0) note_odds(r, score, w->batch.label[i] > 0);
        if (w->batch.label[i] > 0)
            keys[j->grain - 1 - (int)yes++] = auc_key(score);
        else if (!w->batch.label[i])
            keys[no++] = auc_key(score);
    }
    sheet[0] = no;
    sheet[1] = yes;
    return TT_OK;
}

/* All ranks have all sheets, and make the same of them. */
static double auc_over(const judge *j, const hearing *h, int64_t ranks)
{
    uint32_t *end = j->keys + j->part_count * j->grain, *no = j->keys, *yes = end;

    for (int64_t r = 0; r < ranks; r++) {
        int64_t first, last, base;
        share_of(j, (int)r, &first, &last, &base);
        for (int64_t i = 0; i < last - first; i++) {
            const uint32_t *sheet = sheet_of(j, h, r, i), *keys = sheet + 2;
            memcpy(no, keys, sheet[0] * sizeof *no);
            no += sheet[0];
            yes -= sheet[1];
            memcpy(yes, keys + j->grain - sheet[1], sheet[1] * sizeof *yes);
        }
    }
    return auc_of(j->keys, no - j->keys, yes, end - yes, j->sheets); /* which are not needed now */
}

static void note_seen(const judge *j, int me)
{
    const int64_t *seen = tt_run_seen(tt_crew_run(j->crew, me));

    for (size_t i = 0; i < seen_size(j); i++) j->desks[me].seen[i] += seen[i];
}

/* The mean over the classes that some pixel is of, or was taken for. */
static double miou_of(const int64_t *seen, int classes)
{
    const int64_t *is = seen, *taken = seen + classes, *both = taken + classes;
    double sum = 0;
    int count = 0;

    for (int c = 0; c < classes; c++) {
        int64_t any = is[c] + taken[c] - both[c];
        if (!any) continue;
        sum += (double)both[c] / (double)any;
        count++;
    }
    return count ? sum / count : NAN;
}

static double miou_over(judge *j, int64_t ranks)
{
    for (int64_t r = 1; r < ranks; r++)
        for (size_t i = 0; i < seen_size(j); i++)
            j->seen[i] += j->seen[(size_t)r * seen_size(j) + i];
    return miou_of(j->seen, j->classes);
}

static void eval_member(void *arg, int me)
{
    hearing *h = arg;
    judge *j = h->j;
    desk *w = &j->desks[me];

    w->err = TT_OK;
    if (j->classes) memset(w->seen, 0, seen_size(j) * sizeof *w->seen);
    for (int64_t g = h->first + me; g < h->end; g += j->size) {
        int n = tt_order_size(&h->order, g - h->base);
        if (!(w->err = tt_data_fill(h->d, h->split, &h->order, g - h->base, 0, n, &w->batch))) {
            j->parts[g] = *tt_crew_pass(j->crew, me, TT_PASS_EVAL, &w->batch);
            if (j->classes) note_seen(j, me);
            if (j->columns)
                w->err = note_scores(j, me, &j->parts[g], sheet_of(j, h, h->rank, g - h->first));
        }
        if (w->err) {
            snprintf(w->message, sizeof w->message, "%s", tt_message());
            return;
        }
    }
}

/* What this rank's threads have counted. */
static void sum_desks(judge *j, int64_t rank)
{
    int64_t *sum = j->seen + (size_t)rank * seen_size(j);

    memset(sum, 0, seen_size(j) * sizeof *sum);
    for (int k = 0; k < j->size; k++)
        for (size_t i = 0; i < seen_size(j); i++) sum[i] += j->desks[k].seen[i];
}

static tt_err gather(judge *j, const hearing *h)
{
    int64_t ranks = j->world->size, each = h->each;
    const tt_group *all = tt_world_all(j->world);
    tt_result *mine = j->gathered + j->world->rank * each;
    tt_err err;

    /* A message has at most so many bytes. */
    if (each * (int64_t)sizeof *mine > INT_MAX ||
        (j->columns && each * (int64_t)(sheet_size(j) * sizeof *j->sheets) > INT_MAX))
        return tt_fail(TT_EINVAL,
                       "the results of the validation are more than 2 GB for a worker: validate on "
                       "fewer samples, or with more workers");
    memcpy(mine, j->parts + h->first, (size_t)(h->end - h->first) * sizeof *mine);
    err = tt_group_gather(all, mine, (size_t)each * sizeof *mine, j->gathered);
    if (!err && j->columns)
        err = tt_group_gather(all, sheet_of(j, h, h->rank, 0),
                              (size_t)each * sheet_size(j) * sizeof *j->sheets, j->sheets);
    if (!err && j->classes)
        err = tt_group_gather(all, j->seen + (size_t)h->rank * seen_size(j),
                              seen_size(j) * sizeof *j->seen, j->seen);
    if (err) return tt_context(err, "results of the validation");
    for (int64_t r = 0; r < ranks; r++) {
        int64_t a, b, base;
        share_of(j, (int)r, &a, &b, &base);
        memcpy(j->parts + a, j->gathered + r * each, (size_t)(b - a) * sizeof *mine);
    }
    return TT_OK;
}

tt_err judge_eval(judge *j, const tt_data *d, tt_split split, uint64_t seed, tt_metrics *out)
{
    hearing h = {
        .j = j,
        .d = d,
        .split = split,
        .order = {
            .count = tt_data_count(d, split), .batch = j->grain, .by_pass = true, .seed = seed}};
    int64_t parts = j->host_parts ? j->part_count : tt_order_steps(&h.order),
            ranks = j->world ? j->world->size : 1, rank = j->world ? j->world->rank : 0;
    tt_result sum = {0};
    tt_err err = TT_OK;

    if (parts > j->part_count)
        return tt_fail(TT_EINVAL, "this split is larger than the one announced");
    j->parts_now = parts;
    h.rank = rank;
    h.each = most_of(j);
    share_of(j, (int)rank, &h.first, &h.end, &h.base);
    tt_team_run(tt_crew_team(j->crew), eval_member, &h);
    for (int i = 0; i < j->size && !err; i++)
        if (j->desks[i].err) err = tt_repeat(j->desks[i].err, j->desks[i].message);
    if (j->classes) sum_desks(j, rank);
    if (ranks > 1) {
        if ((err = tt_group_agree(tt_world_all(j->world), err))) return err;
        if ((err = gather(j, &h))) return err;
    }
    if (err) return err;
    for (int64_t g = 0; g < parts; g++) tt_result_add(&sum, &j->parts[g]);
    *out = metrics_of(j->model, d, split, &sum);
    if (j->columns) out->auc = auc_over(j, &h, ranks);
    if (j->classes) out->miou = miou_over(j, ranks);
    return TT_OK;
}
