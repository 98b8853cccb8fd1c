/* Opening and closing a strategy; its state as a whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "strategy/inner.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ  22 /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

static tt_err read_compress(const tt_node *at, const char *text, tt_plan *p)
{
    codec c;
    tt_err err = codec_parse(at, text, &c);

    if (err) return err;
    snprintf(p->compress, sizeof p->compress, "%s", text);
    if (c.kind == CODEC_NONE) return TT_OK;
    if (p->exact)
        return tt_node_fail(at,
                            "compress and exact exclude each other: what compression rounds away "
                            "depends on who computed what");
    if (p->aggregate == TT_AVERAGE)
        return tt_node_fail(at,
                            "compress is for gradients, and with aggregate: average none travel");
    return TT_OK;
}

tt_err tt_plan_read(tt_node *parallel, tt_plan *out)
{
    struct {
        int aggregate, balance;
        bool exact;
        const char *grains, *compress, *copies;
        int64_t bucket, backup;
        double timeout, audit;
        tt_node *average;
    } p = {0};
    struct {
        const char *every;
        tt_node *outer;
    } average = {0};
    struct {
        double lr, momentum;
        bool nesterov;
    } outer = {0};
    static const tt_key keys[] = {
        {"aggregate", TT_CHOICE, offsetof(__typeof__(p), aggregate), "allreduce", 0, 0,
         "allreduce|chief|shard|average", "who holds the summed gradient and updates the weights"},
        {"exact", TT_BOOL, offsetof(__typeof__(p), exact), "false", 0, 0, NULL,
         "the same bits for any number of workers and threads"},
        {"grains", TT_STRING, offsetof(__typeof__(p), grains), "auto", 0, 0, NULL,
         "exact: in how many parts a batch is cut and summed; auto: by measured speed"},
        {"balance", TT_CHOICE, offsetof(__typeof__(p), balance), "auto", 0, 0, "auto|off|random",
         "exact: grains move to faster workers; random, for tests: to any, after every step"},
        {"backup", TT_INT, offsetof(__typeof__(p), backup), "0", 0, 16, NULL,
         "exact: so many grains of a worker that is late are computed by others of its host too"},
        {"audit", TT_NUMBER, offsetof(__typeof__(p), audit), "0", 0, 1, NULL,
         "exact: this share of all grains is computed by two workers, and compared bit for bit"},
        {"bucket", TT_SIZE, offsetof(__typeof__(p), bucket), "2MiB", 4096, 1 << 30, NULL,
         "gradients are exchanged in runs of about this size"},
        {"compress", TT_STRING, offsetof(__typeof__(p), compress), "none", 0, 0, NULL,
         "none, bf16, fp16, int8, topk:0.01, 1bit or powersgd:4: between hosts, or between "
         "the workers if there is but one host"},
        {"copies", TT_STRING, offsetof(__typeof__(p), copies), "auto", 0, 0, NULL,
         "chief, shard: on how many hosts the vault has each part of the optimiser's state, 1 or "
         "2; auto: 2 if there are several"},
        {"timeout", TT_TIME, offsetof(__typeof__(p), timeout), "60s", 0.1, 1e6, NULL,
         "how long a worker is waited for"},
        {"average", TT_NODE, offsetof(__typeof__(p), average), "-", 0, 0, NULL,
         "aggregate: average: {every: 16, outer: {lr: 0.7, momentum: 0.9, nesterov: true}}"},
    };
    static const tt_key average_keys[] = {
        {"every", TT_STRING, offsetof(__typeof__(average), every), "16", 0, 0, NULL,
         "steps from one meeting to the next, or end"},
        {"outer", TT_NODE, offsetof(__typeof__(average), outer), "-", 0, 0, NULL,
         "an optimiser for the mean: lr, momentum, nesterov (DiLoCo)"},
    };
    static const tt_key outer_keys[] = {
        {"lr", TT_NUMBER, offsetof(__typeof__(outer), lr), "0.7", 1e-9, 100, NULL,
         "1 takes the mean as it is"},
        {"momentum", TT_NUMBER, offsetof(__typeof__(outer), momentum), "0.9", 0, 0.9999, NULL,
         "kept from meeting to meeting"},
        {"nesterov", TT_BOOL, offsetof(__typeof__(outer), nesterov), "true", 0, 0, NULL,
         "looks ahead"},
    };
    int64_t grains = 0;
    tt_err err = tt_node_read(parallel, "parallel", keys, TT_COUNT(keys), &p);

    if (err) return err;
    if (strcmp(p.grains, "auto") &&
        (!tt_parse_int(p.grains, &grains) || grains < 1 || grains > MOST_UNITS))
        return tt_node_fail(tt_node_get(parallel, "grains"),
                            "'%s' is no number of grains: say auto, or 1 to %d", p.grains,
                            MOST_UNITS);
    if (strcmp(p.copies, "auto") && strcmp(p.copies, "1") && strcmp(p.copies, "2"))
        return tt_node_fail(tt_node_get(parallel, "copies"), "copies is auto, 1 or 2, not '%s'",
                            p.copies);
    if (p.balance == TT_BALANCE_RANDOM && !p.exact)
        return tt_node_fail(tt_node_get(parallel, "balance"),
                            "without exact the sums depend on who does what: balance: random tests "
                            "that with exact they do not");
    if (p.backup && !p.exact)
        return tt_node_fail(tt_node_get(parallel, "backup"),
                            "backup is for exact: without, the sums depend on who provides what");
    if (p.audit > 0 && !p.exact)
        return tt_node_fail(tt_node_get(parallel, "audit"),
                            "audit compares grains bit for bit, which needs exact: true");
    if (p.audit > 0 && p.backup)
        return tt_node_fail(tt_node_get(parallel, "audit"),
                            "audit and backup exclude each other: of a grain that another worker "
                            "has provided nobody is left to blame");
    *out = (tt_plan){.aggregate = (tt_aggregate)p.aggregate,
                     .audit = p.audit,
                     .exact = p.exact,
                     .balance = (tt_balance)p.balance,
                     .backup = (int)p.backup,
                     .grains = (int)grains,
                     .bucket_bytes = p.bucket,
                     .accumulate = 1,
                     .copies = strcmp(p.copies, "1") != 0,
                     .timeout_s = p.timeout};
    if ((err = read_compress(tt_node_get(parallel, "compress"), p.compress, out))) return err;
    if (!p.average && out->aggregate != TT_AVERAGE) return TT_OK;
    if (out->aggregate != TT_AVERAGE)
        return tt_node_fail(p.average, "average says how with aggregate: average, which is %s",
                            tt_aggregate_name(out->aggregate));
    if (p.exact)
        return tt_node_fail(tt_node_get(parallel, "exact"),
                            "exact and aggregate: average exclude each other: workers that train "
                            "apart give a result that depends on how many they are");
    if ((err = tt_node_read(p.average, "parallel.average", average_keys, TT_COUNT(average_keys),
                            &average)))
        return err;
    if (strcmp(average.every, "end") &&
        (!tt_parse_int(average.every, &out->every) || out->every < 1))
        return tt_node_fail(tt_node_get(p.average, "every"),
                            "'%s' is no number of steps: say 16, or end", average.every);
    if (!average.outer) return TT_OK;
    if ((err = tt_node_read(average.outer, "outer", outer_keys, TT_COUNT(outer_keys), &outer)))
        return err;
    out->outer_lr = outer.lr;
    out->outer_momentum = outer.momentum;
    out->outer_nesterov = outer.nesterov;
    return TT_OK;
}

const char *tt_aggregate_name(tt_aggregate a)
{
    static const char *const names[] = {"allreduce", "chief", "shard", "average"};
    return names[a];
}

/* ---- Opening ---- */

tt_err tt_strategy_open(tt_world *w, const tt_plan *plan, int threads, int64_t batch,
                        const int64_t *rows, tt_strategy **out)
{
    tt_strategy *s = calloc(1, sizeof *s);
    tt_err err;

    *out = NULL;
    if (!s) tt_mem_out(sizeof *s);
    s->world = w;
    s->plan = *plan;
    s->batch = batch;
    if ((err = codec_parse(NULL, plan->compress, &s->codec))) {
        free(s);
        return err;
    }
    /* On one host nothing travels; who wants to see what compression does there, lets it. */
    if (s->codec.kind != CODEC_NONE && w->host_count == 1) s->plan.apart = true;
    if ((err = deal_open(s, threads, rows))) {
        tt_strategy_close(s);
        return err;
    }
    const struct node *n = &s->nodes[s->node];
    w->spins = n->seats.b - n->seats.a <= tt_cpu_count() ? 2000 : 0;
    *out = s;
    return TT_OK;
}

int tt_strategy_units(const tt_strategy *s)
{
    return s->units;
}
int tt_strategy_seats(const tt_strategy *s)
{
    return s->seat_count;
}
int tt_strategy_nodes(const tt_strategy *s)
{
    return s->node_count;
}

int tt_strategy_room(const tt_strategy *s)
{
    int64_t unit = (s->batch + s->units - 1) / s->units, all = 0;

    for (int h = 0; s->quarters && h < s->world->host_count; h++) all += s->quarters[h].rows;
    for (int h = 0; s->quarters && h < s->world->host_count; h++) {
        const quarter *q = &s->quarters[h];
        int64_t units = q->units.b - q->units.a;
        int64_t most = (int64_t)(((__int128)s->batch * q->rows + all - 1) / all);
        if (!h || (most + units - 1) / units > unit) unit = (most + units - 1) / units;
    }
    return (int)((unit + s->plan.accumulate - 1) / s->plan.accumulate);
}

void tt_strategy_cut(const tt_strategy *s, int *first, int *end, int *of)
{
    range whole = s->quarters ? s->quarters[s->world->host].units : (range){0, s->units};

    *first = s->seats[s->first_seat].units.a - whole.a;
    *end = s->seats[s->first_seat + s->threads[s->world->rank] - 1].units.b - whole.a;
    *of = whole.b - whole.a;
}

static size_t reserve(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at += (bytes + 4095) / 4096 * 4096;
    return here;
}

static layout lay_out(const tt_strategy *s, int threads)
{
    size_t flat = tt_mul_size((size_t)s->size, sizeof(float)), at = 0;
    layout l = {0};

    l.ranks = reserve(&at, sizeof(rank_flags));
    l.seats = reserve(&at, (size_t)threads * sizeof(seat_flags));
    l.results = reserve(&at, (size_t)s->units * sizeof(tt_result));
    l.rows = reserve(&at, (size_t)s->world->size * sizeof(row));
    l.claims = reserve(&at, backup_most(s) ? (size_t)s->units * sizeof(claim) : 0);
    /* one more than there are threads: the leader's totals */
    l.sums = reserve(&at, (size_t)(2 * (threads + 1)) * (size_t)s->sums_most * sizeof(double));
    l.grad = reserve(&at, tt_mul_size(flat, (size_t)(threads * s->buffers)));
    l.lists = reserve(&at, rows_bytes(s, threads));
    l.bytes = at;
    return l;
}

tt_err tt_strategy_start(tt_strategy *s, tt_model *m, tt_optim *o, uint64_t seed)
{
    const struct node *n = &s->nodes[s->node];
    int threads = s->threads[s->world->rank];
    tt_err err;

    s->model = m;
    s->optim = o;
    s->seed = seed;
    s->k = tt_kernels_float32(tt_model_kernels(m));
    s->size = tt_model_size(m);
    s->slot_count = tt_optim_slots(o);
    s->sums_most = tt_model_sum_most(m);
    s->lockstep = s->sums_most > 0;
    s->sample = tt_model_row(m);
    if ((err = rows_open(s))) return err;
    s->layouts = take((size_t)n->ranks, sizeof *s->layouts);
    for (int l = 0; l < n->ranks; l++) s->layouts[l] = lay_out(s, s->threads[n->rank[l]]);
    if ((err = tt_share_open(s->node_group, s->layouts[s->local].bytes, &s->share))) {
        char size[32];
        return tt_context(err, "%s for gradients of %d threads",
                          tt_show_bytes((double)s->layouts[s->local].bytes, size, sizeof size),
                          threads);
    }
    if ((err = deal_buckets(s)) || (err = exchange_open(s)) ||
        (compressed(s) && s->column_group && (err = squeeze_open(s))) ||
        (s->squeeze && s->codec.kind == CODEC_LOWRANK && (err = factor_open(s))) ||
        (err = tt_crew_open(m, threads, tt_strategy_room(s), true, &s->crew)))
        return err;
    if (tt_optim_passes(o) > 1 && s->staged && !sharded(s) &&
        !(s->scaled = tt_block_alloc((size_t)s->size * sizeof(float))))
        return tt_fail(TT_ENOMEM, "no memory for a copy of the gradient");
    size_t flat = (size_t)s->size * sizeof(float);
    if (s->plan.aggregate == TT_AVERAGE && s->world->size > 1 &&
        (err = tt_summer_open(tt_world_all(s->world), 0, &s->summer)))
        return err;
    if (s->plan.aggregate == TT_AVERAGE && s->plan.outer_lr > 0 &&
        (!(s->met = tt_block_alloc(flat)) || !(s->outer = tt_block_alloc(flat))))
        return tt_fail(TT_ENOMEM, "no memory for the outer optimiser");
    s->rounds = take((size_t)threads, sizeof *s->rounds);
    s->spent = take((size_t)threads, sizeof *s->spent);
    s->offered = take((size_t)threads, sizeof *s->offered);
    s->total = take((size_t)s->sums_most, sizeof *s->total);
    s->times = take((size_t)s->world->size, sizeof *s->times);
    s->hashes = take((size_t)s->world->size, sizeof *s->hashes);
    if ((err = audit_open(s)) || (err = rows_start(s))) return err;
    s->odd = take((size_t)s->world->size, sizeof *s->odd);
    s->hash_part = take((size_t)threads, sizeof *s->hash_part);
    s->own_pieces = take((size_t)s->piece_count, sizeof *s->own_pieces);
    for (int i = 0; i < s->piece_count; i++)
        if (owns(s, i)) s->own_pieces[s->own_count++] = i;
    return TT_OK;
}

/* ---- Where the state lies ---- */

size_t tt_strategy_bytes(const tt_strategy *s)
{
    size_t at = 0, flat = tt_mul_size((size_t)s->size, sizeof(float));

    for (int i = 0; i <= s->slot_count; i++) reserve(&at, flat);
    return at ? at : 4096; /* a model of tables alone has no parameters */
}

/* Half 0 of a rank is the one that is current now, wherever it lies. */
static void place_state(tt_strategy *s, layout *l, const size_t at[2], int current)
{
    size_t flat = (size_t)s->size * sizeof(float);

    for (int half = 0; half < 2; half++) {
        size_t from = at[half ^ current];
        l->w[half] = reserve(&from, flat);
        for (int i = 0; i < s->slot_count; i++) l->slot[half][i] = reserve(&from, flat);
    }
}

/* Two halves are for those who may have to go back to the older one: a world that takes up what
 * another has left, ranks that may not all get to the end of a step. For a rank alone there is only
 * a gradient that is not finite, which can be known before anything is written. Small states are
 * not worth the pass that this takes. */
enum { IN_PLACE = 256 << 20 };

static bool in_place(const tt_strategy *s, const tt_state_file *f)
{
    return !f && s->world->size == 1 && s->plan.aggregate != TT_AVERAGE &&
           tt_strategy_bytes(s) >= IN_PLACE;
}

tt_err tt_strategy_place(tt_strategy *s, const tt_state_file *f)
{
    bool once = in_place(s, f);
    size_t half = tt_strategy_bytes(s), own[2] = {0, once ? 0 : half}, all = half + own[1];
    tt_err err = f ? tt_share_open_file(s->node_group, f->fd, f->bytes, &s->state)
                   : tt_share_open(s->node_group, all, &s->state);
    char size[32];

    if (err)
        return tt_context(err, "%s for the state of the training",
                          tt_show_bytes((double)all, size, sizeof size));
    if (once) tt_optim_look_first(s->optim);
    memcpy(s->halves, f ? f->at : own, sizeof s->halves);
    if (f && f->in_memory) madvise(s->state.at[s->local], f->bytes, MADV_POPULATE_WRITE);
    /* Who has no room for its tables must not leave the others waiting. */
    if ((err = tt_group_agree(s->node_group, rows_place(s, f)))) return err;
    return tt_strategy_use(s, 0);
}

tt_err tt_strategy_use(tt_strategy *s, int half)
{
    int *all = take((size_t)s->node_group->size, sizeof *all);
    tt_err err = tt_group_gather(s->node_group, &half, sizeof half, all);

    for (int l = 0; l < s->node_group->size && !err; l++)
        place_state(s, &s->layouts[l], s->halves, all[l]);
    s->half = 0;
    s->first_half = half;
    if (!err) tt_model_bind(s->model, w_at(s, s->local, 0));
    free(all);
    return err;
}

void tt_strategy_init(tt_strategy *s)
{
    tt_state st = tt_strategy_state(s);

    tt_model_init(s->model, s->seed, st.w);
    rows_clear(s);
    for (int i = 0; i < s->slot_count; i++)
        for (int64_t k = 0; k < s->size; k++) st.slot[i][k] = (float)tt_optim_initial(s->optim);
}

int tt_strategy_half(const tt_strategy *s)
{
    return s->half ^ s->first_half;
}

void tt_strategy_close(tt_strategy *s)
{
    if (!s) return;
    tt_crew_close(s->crew);
    tt_summer_close(s->summer);
    exchange_close(s);
    trace_close(s);
    squeeze_close(s);
    factor_close(s);
    rows_close(s);
    tt_share_close(&s->share);
    tt_share_close(&s->state);
    deal_close(s);
    size_t flat = (size_t)s->size * sizeof(float);
    if (s->scaled) tt_block_free(s->scaled, flat);
    if (s->met) tt_block_free(s->met, flat);
    if (s->outer) tt_block_free(s->outer, flat);
    free(s->layouts);
    free(s->rounds);
    free(s->spent);
    free(s->offered);
    free(s->total);
    free(s->times);
    free(s->hashes);
    audit_close(s);
    free(s->odd);
    free(s->hash_part);
    free(s->own_pieces);
    free(s);
}

/* ---- The state ---- */

tt_crew *tt_strategy_crew(tt_strategy *s)
{
    return s->crew;
}

tt_state tt_strategy_state(const tt_strategy *s)
{
    tt_state st = {.w = w_at(s, s->local, s->half)};
    for (int i = 0; i < s->slot_count; i++) st.slot[i] = slot_at(s, i, s->half);
    return st;
}

float *tt_strategy_outer(const tt_strategy *s)
{
    return s->outer;
}

float *tt_strategy_residual(const tt_strategy *s)
{
    return s->squeeze ? s->squeeze->total : NULL;
}

void tt_strategy_feedback(tt_strategy *s, float *first, float *second, bool back)
{
    size_t flat = (size_t)s->size * sizeof(float);

    if (s->squeeze && back) {
        memcpy(s->squeeze->residual, first, flat);
        memcpy(s->squeeze->owed, second, flat);
        if (s->factor) memset(s->squeeze->owed, 0, flat);
    } else if (s->squeeze) {
        memcpy(first, s->squeeze->residual, flat);
        memcpy(second, s->squeeze->owed, flat);
    } else if (!back) {
        memset(first, 0, flat);
        memset(second, 0, flat);
    }
    if (s->factor) factor_move(s, second, back);
}

tt_err tt_strategy_owe(tt_strategy *s)
{
    return squeeze_spread(s);
}

const tt_rank_times *tt_strategy_times(const tt_strategy *s)
{
    return s->times;
}

int tt_strategy_owner(const tt_strategy *s, int piece)
{
    return s->nodes[s->piece_node[piece]].rank[s->piece_column[piece]];
}

tt_err move_piece(tt_strategy *s, float *base, int piece, int from, int to)
{
    const tt_group *all = tt_world_all(s->world);
    tt_piece p = tt_optim_piece(s->optim, piece);
    size_t bytes = (size_t)p.n * sizeof *base;
    tt_op op;
    tt_err err = TT_OK;

    if (from == to || (all->me != from && all->me != to)) return TT_OK;
    err = all->me == from ? tt_send_start(all, to, TAG_STATE, base + p.at, bytes, &op)
                          : tt_recv_start(all, from, TAG_STATE, base + p.at, bytes, &op);
    return err ? err : tt_op_wait(&op);
}

/* Optimiser state of pieces that others own, from rank 0 to them or from them to it. */
static tt_err move_slots(tt_strategy *s, bool to_owner)
{
    tt_err err = TT_OK;

    for (int k = 0; k < s->slot_count; k++)
        for (int i = 0; i < s->piece_count && !err; i++) {
            int owner = tt_strategy_owner(s, i);
            err = move_piece(s, slot_at(s, k, s->half), i, to_owner ? 0 : owner,
                             to_owner ? owner : 0);
        }
    return err;
}

tt_err tt_strategy_spread(tt_strategy *s)
{
    const tt_group *all = tt_world_all(s->world);
    tt_state st = tt_strategy_state(s);
    size_t flat = (size_t)s->size * sizeof(float);
    tt_err err = tt_group_bcast(all, 0, st.w, flat);

    for (int i = 0; i < s->slot_count && !err && !sharded(s); i++)
        err = tt_group_bcast(all, 0, st.slot[i], flat);
    if (!err && sharded(s)) err = move_slots(s, true);
    if (!err) err = squeeze_spread(s);
    if (!err) err = rows_spread(s);
    if (!err && s->outer) err = tt_group_bcast(all, 0, s->outer, flat);
    if (err) return tt_context(err, "the state of the training, from rank 0");
    tt_strategy_settle(s, 0);
    return TT_OK;
}

static void refresh_member(void *arg, int me)
{
    tt_strategy *s = arg;
    tt_model_refresh(s->model, me, tt_crew_size(s->crew));
}

void strategy_refresh(tt_strategy *s)
{
    tt_team_run(tt_crew_team(s->crew), refresh_member, s);
}

/* How many of a thread's gradients the first step needs: those of its units and, of thread 0, those
 * that the node's sums go to. */
static int first_buffers(const tt_strategy *s, const struct node *n, const seat *at)
{
    int most = fold_most(s->units, at->units);
    ranges sums;

    if (at->thread || s->node_count == 1 || !s->plan.exact) return most > 1 ? most : 1;
    tree_cover(s->units, n->units, &sums);
    return sums.count > most ? sums.count : most;
}

/* What the first step touches of the memory of a rank of the node. */
static size_t populate(const tt_strategy *s, int local, int advice)
{
    const struct node *n = &s->nodes[s->node];
    char *part = part_at(s, local);
    size_t bytes = s->layouts[local].grad;

    if (advice) madvise(part, bytes, advice);
    for (int i = n->seats.a; i < n->seats.b; i++) {
        const seat *at = &s->seats[i];
        if (at->rank != n->rank[local]) continue;
        size_t first = (size_t)((char *)grad_at(s, local, at->thread, 0) - part) / 4096 * 4096,
               end =
                   (size_t)((char *)grad_at(s, local, at->thread, first_buffers(s, n, at)) - part);
        if (advice) madvise(part + first, end - first, advice);
        bytes += end - first;
    }
    return bytes;
}

/* Of gradients that there is room for in case units move, a first step needs few. To populate the
 * others too costs memory, CPU time while another world trains, and time until a killed one is gone
 * (what it does to a recovery was not measured by itself). With 100 MB of state, four workers and
 * four grains a standby has 200 MB instead of 570, and each rank takes 65 ms in the kernel instead
 * of 110. */
tt_err tt_strategy_warm(tt_strategy *s)
{
    int ranks = s->nodes[s->node].ranks;
    tt_err err;

    if (tt_mem_free() / 8 < populate(s, s->local, 0) * (size_t)s->world->local_size) return TT_OK;
    populate(s, s->local, MADV_POPULATE_WRITE);
    if ((err = tt_group_barrier(s->node_group))) return err;
    for (int l = 0; l < ranks; l++)
        if (l != s->local) populate(s, l, MADV_POPULATE_READ);
    /* Any weights will do to make what is made of them: the gradients, which are zero. */
    tt_model_bind(s->model, grad_at(s, s->local, 0, 0));
    strategy_refresh(s);
    tt_model_bind(s->model, NULL);
    return TT_OK;
}

void tt_strategy_settle(tt_strategy *s, uint64_t hash)
{
    if (s->met) memcpy(s->met, w_at(s, s->local, s->half), (size_t)s->size * sizeof(float));
    strategy_refresh(s);
    rows_settle(s);
    if (hash)
        s->row.hash = hash;
    else
        hash_settle(s);
}

tt_err tt_strategy_collect(tt_strategy *s, bool slots)
{
    tt_err err = sharded(s) && slots ? move_slots(s, false) : TT_OK;

    return err ? err : squeeze_collect(s);
}

tt_err tt_strategy_compare(tt_strategy *s)
{
    const tt_world *w = s->world;
    char(*all)[65] = calloc((size_t)w->size, sizeof *all), mine[65];
    tt_sha *sha = tt_sha_begin();
    tt_err err;

    if (!all) tt_mem_out(sizeof *all);
    tt_sha_add(sha, w_at(s, s->local, s->half), (size_t)s->size * sizeof(float));
    rows_sha(s, sha);
    tt_sha_end(sha, mine);
    err = tt_group_gather(tt_world_all(w), mine, sizeof mine, all);
    for (int r = 1; r < w->size && !err; r++)
        if (strcmp(all[r], all[0]))
            err = tt_fail(TT_EPEER,
                          "the weights of rank %d (%s) are not those of rank 0: %.12s and %.12s", r,
                          w->peer[r].name, all[r], all[0]);
    free(all);
    return err;
}
