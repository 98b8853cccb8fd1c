/* The step. Tensors are cut into pieces, which are what threads share out, and pieces into chunks
 * that stay in the first-level cache while their gradient is first prepared (divided, regularised,
 * clipped by value, measured) and then used.
 *
 * A pass ends where a number of all pieces is needed to go on:
 *   no clipping by norm   0 prepare and update
 *   clipping by norm      0 prepare, join the norm, 1 update
 *   LAMB                  where others update it puts its direction in the place of the gradient;
 * then join the ratios, and one more pass applies the direction */
#include "optim.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "plan.h"
#include "rules.h"
#include "schedule.h"

/* The rule for rows of tables. */
typedef struct row_rule {
    tt_settings set;
    bool own;       /* not the optimiser's */
    tt_rule update; /* NULL: row-wise      */
    int slot_count;
    const char *slot_name[TT_OPTIM_SLOTS];
    int first, count; /* plans of tables */
    int *dims;
    tt_piece_result (*results)[TT_ROW_SHARES];
    double lr, unbias; /* of the current step */
    tt_factors factors;
} row_rule;

enum { CHUNK = 1024 }; /* 4 kB each of up to eight vectors; a multiple of TT_SUM_LANES */
_Static_assert(CHUNK % TT_SUM_LANES == 0 && TT_PIECE % CHUNK == 0, "lanes must not shift");

struct tt_optim {
    tt_arena *arena; /* holds all of it, this struct included */
    tt_settings set;
    tt_schedule schedule;
    double clip_norm, clip_value; /* 0: none */
    bool look_first;
    const tt_rules *rules;
    tt_rule update;
    int slot_count;
    const char *slot_name[TT_OPTIM_SLOTS];
    tt_plan *plans;
    double *ratios; /* LAMB, per tensor, from a join to the pass after it */
    int plan_count;
    tt_piece *pieces;
    tt_piece_result *results;
    int piece_count;

    row_rule rows; /* of tables, if there are any */

    /* of the current step */
    double lr;
    double unbias;        /* of the first moment: 1 / (1 - beta1^(step + 1)) */
    float share, samples; /* share: what a sample weighs, 1 / weight */
    tt_factors factors;   /* those that all tensors share */
    double grad_norm;
    bool finite;
};

/* ---- opening ---- */

/* Returns how many slots it has, and their names. */
static int choose_rule(const tt_rules *r, const tt_settings *s, tt_rule *update,
                       const char *names[TT_OPTIM_SLOTS])
{
    switch (s->family) {
    case TT_SGD:
        names[0] = "momentum";
        *update = s->momentum == 0 ? r->sgd : s->nesterov ? r->nesterov : r->momentum;
        return s->momentum != 0;
    case TT_ADAGRAD:
    case TT_ROWWISE:
        names[0] = "sum";
        *update = s->family == TT_ADAGRAD ? r->adagrad : NULL;
        return 1;
    case TT_RMSPROP:
        names[0] = "square_avg";
        names[1] = "momentum";
        *update = s->momentum == 0 ? r->rmsprop : r->rmsprop_momentum;
        return s->momentum == 0 ? 1 : 2;
    case TT_ADAM:
    case TT_LAMB:
        names[0] = "exp_avg";
        names[1] = "exp_avg_sq";
        *update = s->family == TT_ADAM ? r->adam : r->lamb;
        return 2;
    }
    return 0;
}

static tt_err cut_pieces(tt_optim *o, const tt_param *params, int count)
{
    int64_t total = 0;
    int at = 0;

    for (int i = 0; i < count; i++) {
        TT_ASSERT(params[i].n >= 0 && params[i].at >= 0);
        total += params[i].n / TT_PIECE + (params[i].n % TT_PIECE != 0);
        if (total > INT_MAX)
            return tt_fail(TT_EINVAL, "the model has more parameters than can be cut in %d pieces",
                           INT_MAX);
    }
    o->pieces = tt_arena_take(o->arena, tt_mul_size((size_t)total + 1, sizeof *o->pieces), 8);
    o->results = tt_arena_take(o->arena, tt_mul_size((size_t)total + 1, sizeof *o->results), 8);
    o->piece_count = (int)total;
    for (int i = 0; i < count; i++) {
        o->plans[i].piece = at;
        for (int64_t done = 0; done < params[i].n; done += TT_PIECE) {
            int64_t rest = params[i].n - done;
            o->pieces[at++] =
                (tt_piece){params[i].at + done, rest < TT_PIECE ? (int)rest : TT_PIECE, i};
        }
        o->plans[i].piece_count = at - o->plans[i].piece;
    }
    return TT_OK;
}

tt_err tt_optim_open(tt_node *optimizer, tt_node *schedule, tt_node *clip, tt_node *groups,
                     const tt_param *params, int param_count, int64_t total_steps,
                     int64_t steps_per_epoch, tt_optim **out)
{
    tt_err err;
    tt_arena *arena = tt_arena_open(4096);
    tt_optim *o = tt_arena_take(arena, sizeof *o, _Alignof(tt_optim));
    size_t count = (size_t)param_count + 1; /* nobody asks for nothing */

    *out = NULL;
    o->arena = arena;
    o->plan_count = param_count;
    o->plans = tt_arena_take(arena, tt_mul_size(count, sizeof *o->plans), _Alignof(tt_plan));
    o->ratios = tt_arena_take(arena, tt_mul_size(count, sizeof *o->ratios), _Alignof(double));
    if ((err = tt_settings_read(optimizer, false, &o->set))) goto out;
    if ((err = tt_schedule_read(schedule, total_steps, steps_per_epoch, arena, &o->schedule)))
        goto out;
    if ((err = tt_clip_read(clip, &o->clip_norm, &o->clip_value))) goto out;
    if ((err = tt_plans_read(groups, &o->set, params, param_count, o->plans))) goto out;
    if ((err = cut_pieces(o, params, param_count))) goto out;
    const tt_rules *sets[3];
    tt_rules_list(sets);
    o->rules = sets[0];
    o->slot_count = choose_rule(o->rules, &o->set, &o->update, o->slot_name);
    *out = o;
    o = NULL;
out:
    tt_optim_close(o);
    return err;
}

void tt_optim_close(tt_optim *o)
{
    if (o) tt_arena_close(o->arena);
}

const char *tt_optim_name(const tt_optim *o)
{
    return o->set.name;
}

int tt_optim_slots(const tt_optim *o)
{
    return o->slot_count;
}

const char *tt_optim_slot_name(const tt_optim *o, int slot)
{
    TT_ASSERT(slot >= 0 && slot < o->slot_count);
    return o->slot_name[slot];
}

static double lr_of(const tt_optim *o, const tt_settings *s, int64_t step)
{
    double lr = s->lr * tt_schedule_factor(&o->schedule, step);
    return lr / (1 + (double)step * s->lr_decay);
}

double tt_optim_lr(const tt_optim *o, int64_t step)
{
    return lr_of(o, &o->set, step);
}

double tt_optim_initial(const tt_optim *o)
{
    return o->set.initial;
}

int tt_optim_piece_count(const tt_optim *o)
{
    return o->piece_count;
}

tt_piece tt_optim_piece(const tt_optim *o, int i)
{
    TT_ASSERT(i >= 0 && i < o->piece_count);
    return o->pieces[i];
}

/* ---- a step ---- */

/* The pass in which weights and state are written, all but LAMB's weights. */
static int update_pass(const tt_optim *o)
{
    return o->clip_norm > 0 || o->look_first;
}

void tt_optim_look_first(tt_optim *o)
{
    o->look_first = true;
}

int tt_optim_passes(const tt_optim *o)
{
    return update_pass(o) + 1 + (o->set.family == TT_LAMB);
}

static tt_factors factors_at(const tt_settings *s, int64_t step, double unbias)
{
    double beta2 = s->family == TT_RMSPROP ? s->alpha : s->beta[1];

    return (tt_factors){
        .scale = 1,
        .momentum = (float)s->momentum,
        .fresh = step ? (float)(1 - s->dampening) : 1,
        .beta = {(float)s->beta[0], (float)beta2},
        .rest = {(float)(1 - s->beta[0]), (float)(1 - beta2)},
        .unbias = {(float)unbias, (float)(1 / sqrt(1 - tt_power(s->beta[1], step + 1)))},
        .eps = (float)s->eps,
    };
}

void tt_optim_begin(tt_optim *o, int64_t step, double weight, double samples)
{
    TT_ASSERT(step >= 0);
    o->lr = tt_optim_lr(o, step);
    /* Weight 0: every label of the batch was ignored. The sums are 0 then, and shall stay so. */
    o->share = weight > 0 ? (float)(1 / weight) : 1;
    o->samples = (float)samples;
    o->grad_norm = 0;
    o->finite = true;
    o->unbias = 1 / (1 - tt_power(o->set.beta[0], step + 1));
    o->factors = factors_at(&o->set, step, o->unbias);
    row_rule *r = &o->rows;
    if (!r->count) return;
    r->lr = lr_of(o, &r->set, step);
    r->unbias = 1 / (1 - tt_power(r->set.beta[0], step + 1));
    r->factors = factors_at(&r->set, step, r->unbias);
    r->factors.fresh = (float)(1 - r->set.dampening);
}

/* The factors of one tensor, where it is updated. */
static tt_factors factors_of(const tt_optim *o, const tt_plan *p)
{
    tt_factors f = o->factors;
    double lr = o->lr * p->lr;

    f.lr = (float)(o->set.family == TT_ADAM ? lr * o->unbias : lr);
    f.shrink = (float)(lr * p->weight_decay);
    f.decay = (float)p->weight_decay;
    return f;
}

/* The chunk that begins at `at` in the flat array. */
static tt_chunk chunk_of(const tt_optim *o, const tt_optim_view *v, int64_t at, int n)
{
    tt_chunk c = {.n = n, .g = v->grad + at, .w_old = v->w_old + at, .w_new = v->w_new + at};

    for (int k = 0; k < o->slot_count; k++) {
        c.s_old[k] = v->slot_old[k] + at;
        c.s_new[k] = v->slot_new[k] + at;
    }
    return c;
}

static void copy(float *to, const float *from, int n)
{
    if (to != from) memcpy(to, from, (size_t)n * sizeof *to);
}

static void keep_slots(const tt_optim *o, const tt_chunk *c)
{
    for (int k = 0; k < o->slot_count; k++) copy(c->s_new[k], c->s_old[k], c->n);
}

static void keep_all(const tt_optim *o, const tt_chunk *c)
{
    copy(c->w_new, c->w_old, c->n);
    keep_slots(o, c);
}

/* Running statistics are no part of the gradient, but if they are not finite, that shall be known.
 */
static void run_stat(tt_optim *o, int pass, const tt_plan *p, const tt_chunk *c, tt_piece_result *r)
{
    tt_sum sum = {{0}};

    if (pass == 0) {
        o->rules->measure(c->g, c->n, &sum);
        *r = (tt_piece_result){.finite = isfinite(tt_sum_fold(&sum))};
    }
    if (pass != update_pass(o)) return;
    if (!o->finite || !(o->samples > 0)) {
        keep_all(o, c);
        return;
    }
    o->rules->stat(c, o->samples, p->stat_momentum);
    keep_slots(o, c);
}

/* Prepares and updates, or one of both, as the pass wants it. */
static void run_learning(tt_optim *o, int pass, const tt_plan *p, const tt_piece *at,
                         const tt_optim_view *v, tt_piece_result *r)
{
    bool prepare = pass == 0, update = pass == update_pass(o), clips = o->clip_value > 0;
    bool adapt = o->set.family == TT_LAMB && p->adapt, alone = tt_optim_passes(o) == 1;
    float share = o->share, l2 = (float)p->l2, l1 = (float)p->l1, most = (float)o->clip_value;
    tt_sum grad = {{0}}, clipped = {{0}}, weight = {{0}}, direction = {{0}};
    tt_factors f = factors_of(o, p);
    float prepared[CHUNK];

    for (int done = 0; done < at->n; done += CHUNK) {
        int n = at->n - done < CHUNK ? at->n - done : CHUNK;
        tt_chunk c = chunk_of(o, v, at->at + done, n);
        if (prepare) {
            const float *sums = c.g;
            if (alone) c.g = prepared; /* no later pass wants it: it need not go to memory */
            o->rules->prepare(c.g, sums, c.w_old, n, share, l2, l1, &grad);
            if (clips) o->rules->clip(c.g, n, most, &clipped);
        }
        if (!update) continue;
        if (adapt) o->rules->measure(c.w_old, n, &weight);
        o->update(&c, &f);
        if (adapt) o->rules->measure(c.g, n, &direction);
    }
    if (prepare) {
        r->grad = tt_sum_fold(&grad);
        r->clipped = clips ? tt_sum_fold(&clipped) : r->grad;
        /* Squares are summed in double, but second moments are kept in float: what would overflow
         * there is past any training, unless it is clipped. */
        r->finite = isfinite(r->grad) && (o->clip_norm > 0 || r->clipped <= FLT_MAX);
    }
    if (update) {
        r->weight = tt_sum_fold(&weight);
        r->direction = tt_sum_fold(&direction);
    }
}

/* LAMB: the direction, which lies in the place of the gradient, scaled for its tensor. */
static void run_direction(tt_optim *o, const tt_plan *p, const tt_chunk *c)
{
    tt_factors f = {.scale = 1, .lr = (float)(o->lr * p->lr * o->ratios[p - o->plans])};

    o->rules->sgd(c, &f);
}

void tt_optim_run(tt_optim *o, int pass, int piece, const tt_optim_view *v)
{
    TT_ASSERT(piece >= 0 && piece < o->piece_count && pass >= 0 && pass < tt_optim_passes(o));
    for (int k = 0; k < o->slot_count; k++) TT_ASSERT(v->slot_old[k] && v->slot_new[k]);

    const tt_piece *at = &o->pieces[piece];
    const tt_plan *p = &o->plans[at->param];
    tt_piece_result *r = &o->results[piece];
    tt_chunk whole = chunk_of(o, v, at->at, at->n);

    if (p->frozen) {
        if (pass == 0) *r = (tt_piece_result){.finite = true};
        if (pass == update_pass(o)) keep_all(o, &whole);
    } else if (p->role == TT_STAT) {
        run_stat(o, pass, p, &whole, r);
    } else if (pass && update_pass(o) && !o->finite) {
        if (pass == update_pass(o)) keep_all(o, &whole);
    } else if (pass <= update_pass(o)) {
        run_learning(o, pass, p, at, v, r);
    } else {
        run_direction(o, p, &whole);
    }
}

static void join_norm(tt_optim *o)
{
    double grad = 0, clipped = 0, scale;

    for (int i = 0; i < o->piece_count; i++) {
        grad += o->results[i].grad;
        clipped += o->results[i].clipped;
        o->finite &= o->results[i].finite != 0;
    }
    for (int i = 0; i < o->rows.count * TT_ROW_SHARES; i++) {
        const tt_piece_result *r = &o->rows.results[i / TT_ROW_SHARES][i % TT_ROW_SHARES];
        grad += r->grad;
        clipped += r->clipped;
        o->finite &= r->finite != 0;
    }
    o->grad_norm = sqrt(grad);
    if (!(o->clip_norm > 0)) return;
    scale = o->clip_norm / (sqrt(clipped) + 1e-6); /* as PyTorch has it */
    o->factors.scale = scale < 1 ? (float)scale : 1;
}

static void join_ratios(tt_optim *o)
{
    for (int i = 0; i < o->plan_count; i++) {
        const tt_plan *p = &o->plans[i];
        double weight = 0, direction = 0;
        for (int k = p->piece; k < p->piece + p->piece_count; k++) {
            weight += o->results[k].weight;
            direction += o->results[k].direction;
        }
        o->ratios[i] = weight > 0 && direction > 0 ? sqrt(weight) / sqrt(direction) : 1;
    }
}

void tt_optim_join(tt_optim *o, int pass)
{
    if (pass == 0) join_norm(o);
    if (pass == update_pass(o) && o->set.family == TT_LAMB) join_ratios(o);
}

double tt_optim_grad_norm(const tt_optim *o)
{
    return o->grad_norm;
}

bool tt_optim_finite(const tt_optim *o)
{
    return o->finite;
}

tt_piece_result tt_optim_told(const tt_optim *o, int piece)
{
    return o->results[piece];
}

void tt_optim_tell(tt_optim *o, int piece, const tt_piece_result *r)
{
    o->results[piece] = *r;
}

/* ---- rows of tables ---- */

tt_err tt_optim_has_rows(tt_node *optimizer, tt_node *tables, bool *out)
{
    tt_settings s;
    tt_err err = tt_settings_read(tables ? tables : optimizer, tables != NULL, &s);

    *out = !err && tt_settings_have_rows(&s);
    return err;
}

tt_err tt_optim_set_tables(tt_optim *o, tt_node *tables, int count)
{
    row_rule *r = &o->rows;
    size_t n = (size_t)count;
    tt_err err;

    TT_ASSERT(count <= o->plan_count && !r->count);
    r->set = o->set;
    r->own = tables != NULL;
    if (tables && (err = tt_settings_read(tables, true, &r->set))) return err;
    r->slot_count = choose_rule(o->rules, &r->set, &r->update, r->slot_name);
    r->first = o->plan_count - count;
    r->count = count;
    r->dims = tt_arena_take(o->arena, n * sizeof *r->dims + 1, _Alignof(int));
    r->results = tt_arena_take(o->arena, n * sizeof *r->results + 1, _Alignof(double));
    for (int i = 0; i < count; i++) r->dims[i] = o->plans[r->first + i].dim;
    return TT_OK;
}

const char *tt_optim_rows_name(const tt_optim *o)
{
    return o->rows.set.name;
}

bool tt_optim_rows_decay(const tt_optim *o)
{
    const tt_settings *s = &o->rows.set;

    for (int i = 0; i < o->rows.count; i++) {
        const tt_plan *p = &o->plans[o->rows.first + i];
        if (p->frozen || (o->rows.own && !p->decay_given)) continue;
        if (p->l2 != 0 || p->l1 != 0 || p->weight_decay != 0) return true;
    }
    return o->rows.own && (s->l2 != 0 || s->l1 != 0 || s->weight_decay != 0);
}

bool tt_optim_rows_frozen(const tt_optim *o, int table)
{
    return o->plans[o->rows.first + table].frozen;
}

int tt_optim_rows_slots(const tt_optim *o)
{
    return o->rows.slot_count;
}

int tt_optim_rows_slot(const tt_optim *o, int table, int slot, const char **name)
{
    TT_ASSERT(slot >= 0 && slot < o->rows.slot_count);
    *name = o->rows.slot_name[slot];
    return o->rows.set.family == TT_ROWWISE ? 1 : o->rows.dims[table];
}

int tt_optim_rows_record(const tt_optim *o, int table)
{
    const char *name;
    int n = o->rows.dims[table];

    for (int k = 0; k < o->rows.slot_count; k++) n += tt_optim_rows_slot(o, table, k, &name);
    return n;
}

void tt_optim_rows_prepare(tt_optim *o, int table, int share, float *g, int64_t n)
{
    tt_piece_result *r = &o->rows.results[table][share];
    tt_sum grad = {{0}}, clipped = {{0}};
    bool clips = o->clip_value > 0;

    for (int64_t done = 0; done < n; done += CHUNK) {
        int some = n - done < CHUNK ? (int)(n - done) : CHUNK;
        o->rules->prepare(g + done, g + done, g + done, some, o->share, 0, 0, &grad);
        if (clips) o->rules->clip(g + done, some, (float)o->clip_value, &clipped);
    }
    r->grad = tt_sum_fold(&grad);
    r->clipped = clips ? tt_sum_fold(&clipped) : r->grad;
    r->finite = isfinite(r->grad) && (o->clip_norm > 0 || r->clipped <= FLT_MAX);
}

void tt_optim_rows_fresh(const tt_optim *o, int table, float *record)
{
    const row_rule *r = &o->rows;
    bool sums = r->set.family == TT_ADAGRAD || r->set.family == TT_ROWWISE;
    int dim = r->dims[table], n = tt_optim_rows_record(o, table);

    for (int i = dim; i < n; i++) record[i] = sums ? (float)r->set.initial : 0;
}

/* One sum for the row: of the mean of its squares. */
static void update_rowwise(const tt_optim *o, const tt_chunk *c, tt_factors *f, float *state)
{
    tt_sum squares = {{0}};

    o->rules->measure(c->g, c->n, &squares);
    *state += (float)(tt_sum_fold(&squares) * f->scale * f->scale / c->n);
    f->lr /= sqrtf(*state) + f->eps;
    o->rules->sgd(c, f);
}

void tt_optim_rows_update(const tt_optim *o, int table, float *g, float *record, bool fresh)
{
    const row_rule *r = &o->rows;
    int dim = r->dims[table];
    double lr = r->lr * o->plans[r->first + table].lr;
    tt_chunk c = {.n = dim, .g = g, .w_old = record, .w_new = record};
    tt_factors f = r->factors;

    f.scale = o->factors.scale;
    f.lr = (float)(r->set.family == TT_ADAM ? lr * r->unbias : lr);
    if (fresh) f.fresh = 1;
    if (r->set.family == TT_ROWWISE) {
        update_rowwise(o, &c, &f, record + dim);
        return;
    }
    for (int k = 0; k < r->slot_count; k++) c.s_old[k] = c.s_new[k] = record + dim * (k + 1);
    r->update(&c, &f);
}
