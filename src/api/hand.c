/* Training by hand, in a world of any size: an optimiser over sums, and checkpoints of what a
 * program calls its state. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "inner.h"

/* ---- Optimisers ---- */

struct tutti_optim {
    tutti_world *world;
    tt_arena *arena; /* names and params */
    tt_optim *rule;
    tt_param *params;
    int param_count;
    float *w; /* the program's */
    int64_t n;
    /* A step goes from the old vectors to the new, so that one that is not finite never was. */
    float *block, *w_new, *slot[TT_OPTIM_SLOTS], *slot_new[TT_OPTIM_SLOTS];
    size_t block_bytes;
    int64_t step;
};

static tt_err check_tensor(const tutti_tensor *t, int i, const char *what)
{
    if (!t->name || !*t->name) return tt_fail(TT_EINVAL, "%s: tensor %d has no name", what, i);
    if (!tutti_shape_count(t->shape))
        return tt_fail(TT_EINVAL, "%s: the shape of '%s' is none: rank 1 to 6, all sizes above 0",
                       what, t->name);
    return TT_OK;
}

static tt_err check_parts(const tutti_tensor *tensors, int count, int64_t n)
{
    int64_t left = n;
    tt_err err;

    for (int i = 0; i < count; i++) {
        if ((err = check_tensor(&tensors[i], i, "tutti_optim_open"))) return err;
        for (int k = 0; k < i; k++)
            if (!strcmp(tensors[k].name, tensors[i].name))
                return tt_fail(TT_EINVAL, "tutti_optim_open: two tensors are named '%s'",
                               tensors[i].name);
        if (tutti_shape_count(tensors[i].shape) > left)
            return tt_fail(TT_EINVAL, "tutti_optim_open: '%s' ends past the %lld parameters",
                           tensors[i].name, (long long)n);
        left -= tutti_shape_count(tensors[i].shape);
    }
    if (count && left)
        return tt_fail(TT_EINVAL, "tutti_optim_open: the tensors are %lld numbers, params has %lld",
                       (long long)(n - left), (long long)n);
    return TT_OK;
}

static void list_params(tutti_optim *o, const tutti_tensor *tensors, int count)
{
    tutti_tensor whole = {.name = "params", .shape = {1, {o->n}}};
    int64_t at = 0;

    o->param_count = count ? count : 1;
    o->params = tt_arena_take(o->arena, (size_t)o->param_count * sizeof *o->params, 16);
    for (int i = 0; i < o->param_count; i++) {
        const tutti_tensor *t = count ? &tensors[i] : &whole;
        tt_param *p = &o->params[i];
        *p = (tt_param){.name = tt_arena_strdup(o->arena, t->name),
                        .at = at,
                        .n = tutti_shape_count(t->shape),
                        .rank = t->shape.rank,
                        .role = count && t->shape.rank == 1 ? TT_BIAS : TT_WEIGHT};
        memcpy(p->shape, t->shape.dim, sizeof p->shape);
        at += p->n;
    }
}

/* An optimiser alone, or a map with `optimizer` in it. */
static tt_err read_rule(tutti_optim *o, const char *text)
{
    struct {
        tt_node *optimizer, *schedule, *clip, *groups;
        int64_t steps, epoch_steps;
    } c = {0};
    const tt_key keys[] = {
        {"optimizer", TT_NODE, offsetof(__typeof__(c), optimizer), NULL},
        {"schedule", TT_NODE, offsetof(__typeof__(c), schedule), "-"},
        {"clip", TT_NODE, offsetof(__typeof__(c), clip), "-"},
        {"groups", TT_NODE, offsetof(__typeof__(c), groups), "-"},
        {"steps", TT_INT, offsetof(__typeof__(c), steps), "-", 1, 1e12},
        {"steps_per_epoch", TT_INT, offsetof(__typeof__(c), epoch_steps), "-", 1, 1e12},
    };
    tt_tree *tree;
    tt_node *root;
    tt_err err;

    if ((err = tt_tree_parse("optimizer", text, strlen(text), &tree))) return err;
    root = tt_tree_root(tree);
    if (root->kind == TT_MAP && tt_node_get(root, "optimizer"))
        err = tt_node_read(root, "the optimizer's text", keys, TT_COUNT(keys), &c);
    else
        c.optimizer = root;
    if (!err)
        err = tt_optim_open(c.optimizer, c.schedule, c.clip, c.groups, o->params, o->param_count,
                            c.steps, c.epoch_steps, &o->rule);
    tt_tree_close(tree);
    return err;
}

static tt_err take_vectors(tutti_optim *o)
{
    size_t each = ((size_t)o->n + 15) / 16 * 16;
    int slots = tt_optim_slots(o->rule);
    float *at;

    o->block_bytes = tt_mul_size(each, sizeof *o->block * (size_t)(1 + 2 * slots));
    if (!(at = o->block = tt_block_alloc(o->block_bytes)))
        return tt_fail(TT_ENOMEM, "no memory for the state of an optimiser of %lld parameters",
                       (long long)o->n);
    o->w_new = at;
    for (int k = 0; k < slots; k++) {
        o->slot[k] = at += each;
        o->slot_new[k] = at += each;
        for (int64_t i = 0; i < o->n; i++) o->slot[k][i] = (float)tt_optim_initial(o->rule);
    }
    return TT_OK;
}

/* What this rank can do by itself. */
static tt_err build(tutti_optim *o, const char *text, const tutti_tensor *tensors, int count)
{
    tt_err err;

    if (!text || !o->w) return tt_fail(TT_EINVAL, "tutti_optim_open: text or params is NULL");
    if (o->n < 1 || o->n > INT64_MAX / 64)
        return tt_fail(TT_EINVAL, "tutti_optim_open: %lld parameters", (long long)o->n);
    if (count < 0 || (count && !tensors))
        return tt_fail(TT_EINVAL, "tutti_optim_open: %d tensors, or they are NULL", count);
    if ((err = check_parts(tensors, count, o->n))) return err;
    list_params(o, tensors, count);
    if ((err = read_rule(o, text))) return err;
    return take_vectors(o);
}

static int64_t mark_of(const tutti_optim *o, const char *text)
{
    uint64_t mark = tt_random_key(0, text);

    for (int i = 0; i < o->param_count; i++) {
        mark = tt_random_key(mark, o->params[i].name) ^ (uint64_t)o->params[i].rank;
        for (int d = 0; d < o->params[i].rank; d++)
            mark = mark * 0x9e3779b97f4a7c15u + (uint64_t)o->params[i].shape[d];
    }
    return (int64_t)mark;
}

tutti_status tutti_optim_open(tutti_world *w, const char *text, float *params, int64_t n,
                              const tutti_tensor *tensors, int count, tutti_optim **out)
{
    tt_err err = world_enter(w, "tutti_optim_open"), bad;
    tutti_optim *o = NULL;
    call mine = {.kind = CALL_OPTIM, .count = n};

    if (out) *out = NULL;
    if (err) return status_of(err);
    if (!(o = calloc(1, sizeof *o))) tt_mem_out(sizeof *o);
    *o = (tutti_optim){.world = w, .arena = tt_arena_open(0), .w = params, .n = n};
    bad =
        out ? build(o, text, tensors, count) : tt_fail(TT_EINVAL, "tutti_optim_open: out is NULL");
    if (!bad) mine.place = mark_of(o, text);
    if ((err = world_compare(w, mine, bad))) goto out;
    if ((err = world_spread(w, params, (size_t)n * sizeof *params))) goto out;
    *out = o;
    o = NULL;
out:
    tutti_optim_close(o);
    return world_leave_call(w, CALL_OPTIM, err);
}

void tutti_optim_close(tutti_optim *o)
{
    if (!o) return;
    tt_optim_close(o->rule);
    tt_block_free(o->block, o->block_bytes);
    tt_arena_close(o->arena);
    free(o);
}

/* How much the gradients of all weigh: in rank order, so that all get the same bits. */
static tt_err add_weights(const tutti_world *w, double *out)
{
    *out = 0;
    for (int r = 0; r < tutti_world_size(w); r++) {
        double weight = world_call(w, r)->weight;
        if (!(weight >= 0 && weight <= 1e300))
            return tt_fail(
                TT_EINVAL,
                "tutti_optim_step: the weight of rank %d (%s) is %g: it is the number of "
                "its samples",
                r, world_inner(w)->peer[r].name, weight);
        *out += weight;
    }
    return TT_OK;
}

static void swap(float **a, float **b)
{
    float *c = *a;
    *a = *b;
    *b = c;
}

static tt_err update(tutti_optim *o, float *grad, double weight)
{
    tt_optim_view v = {.grad = grad, .w_old = o->w, .w_new = o->w_new};
    tt_optim *r = o->rule;

    for (int k = 0; k < tt_optim_slots(r); k++) {
        v.slot_old[k] = o->slot[k];
        v.slot_new[k] = o->slot_new[k];
    }
    tt_optim_begin(r, o->step, weight, weight);
    for (int pass = 0; pass < tt_optim_passes(r); pass++) {
        for (int i = 0; i < tt_optim_piece_count(r); i++) tt_optim_run(r, pass, i, &v);
        tt_optim_join(r, pass);
    }
    if (!tt_optim_finite(r))
        return tt_fail(TT_EDIVERGED,
                       "step %lld: the gradient is not finite, or too large (its norm is %.3g): "
                       "the step was not applied",
                       (long long)o->step + 1, tt_optim_grad_norm(r));
    memcpy(o->w, o->w_new, (size_t)o->n * sizeof *o->w);
    for (int k = 0; k < tt_optim_slots(r); k++) swap(&o->slot[k], &o->slot_new[k]);
    o->step++;
    return TT_OK;
}

tutti_status tutti_optim_step(tutti_optim *o, float *grad, double weight, tutti_update *out)
{
    call mine = {.kind = CALL_STEP, .weight = weight};
    tutti_world *w;
    double total;
    tt_err err, bad = TT_OK;

    if (!o)
        return status_of(
            tt_fail(TT_EINVAL, "tutti_optim_step: there is no optimiser: NULL was given"));
    w = o->world;
    if ((err = world_enter(w, "tutti_optim_step"))) return status_of(err);
    mine.count = o->step;
    if (grad)
        mine.place = world_place(w, grad, o->n);
    else
        bad = tt_fail(TT_EINVAL, "tutti_optim_step: grad is NULL");
    if (!(err = world_compare(w, mine, bad)) && !(err = add_weights(w, &total)) &&
        !(err = world_sum(w, grad, o->n, 1)))
        err = update(o, grad, total);
    if (!err && out)
        *out = (tutti_update){.step = o->step,
                              .weight = total,
                              .lr = tt_optim_lr(o->rule, o->step - 1),
                              .grad_norm = tt_optim_grad_norm(o->rule)};
    return world_leave_call(w, CALL_STEP, err);
}

/* ---- Checkpoints ---- */

/* What a state consists of, as the store wants it. */
typedef struct listing {
    tt_arena *arena;
    tt_entry *entries;
    const char **files;
    int count;
} listing;

static void add_entry(listing *l, const char *file, const char *name, int rank,
                      const int64_t shape[6], float *data, int64_t n)
{
    tt_entry *e = &l->entries[l->count];

    *e = (tt_entry){.name = name, .type = TT_F32, .rank = rank, .data = data, .bytes = n * 4};
    memcpy(e->shape, shape, 6 * sizeof *shape);
    l->files[l->count++] = file;
}

static void list_optim(listing *l, const tutti_optim *o)
{
    for (int k = -1; k < tt_optim_slots(o->rule); k++)
        for (int i = 0; i < o->param_count; i++) {
            const tt_param *p = &o->params[i];
            const char *name = p->name;
            float *from = k < 0 ? o->w : o->slot[k];
            if (k >= 0)
                name = tt_arena_printf(l->arena, "%s.%s", tt_optim_slot_name(o->rule, k), p->name);
            add_entry(l, k < 0 ? "model.safetensors" : "optim.safetensors", name, p->rank, p->shape,
                      from + p->at, p->n);
        }
}

static tt_err list_state(const tutti_world *w, const tutti_state *s, const char *what, listing *l)
{
    size_t most;
    tt_err err;

    if (!s || !s->folder || !*s->folder)
        return tt_fail(TT_EINVAL, "%s: there is no state, or it has no folder", what);
    if (s->count < 0 || (s->count && !s->tensors) || s->keep < 0)
        return tt_fail(TT_EINVAL, "%s: %d tensors, or they are NULL; %d to keep", what, s->count,
                       s->keep);
    if (!s->count && !s->optim)
        return tt_fail(TT_EINVAL, "%s: the state has neither tensors nor an optimiser", what);
    if (s->optim && s->optim->world != w)
        return tt_fail(TT_EINVAL, "%s: the optimiser is of another world", what);
    most = (size_t)s->count;
    if (s->optim) most += (size_t)s->optim->param_count * (1 + TT_OPTIM_SLOTS);
    l->entries = tt_arena_take(l->arena, most * sizeof *l->entries, 16);
    l->files = tt_arena_take(l->arena, most * sizeof *l->files, 16);
    for (int i = 0; i < s->count; i++) {
        const tutti_tensor *t = &s->tensors[i];
        if ((err = check_tensor(t, i, what))) return err;
        if (!t->data) return tt_fail(TT_EINVAL, "%s: '%s' has no data", what, t->name);
        add_entry(l, "model.safetensors", t->name, t->shape.rank, t->shape.dim, t->data,
                  tutti_shape_count(t->shape));
    }
    if (s->optim) list_optim(l, s->optim);
    return TT_OK;
}

/* Lists, and makes sure that all ranks mean the same. */
static tt_err agree_state(tutti_world *w, const tutti_state *s, int64_t step, call_kind kind,
                          listing *l)
{
    const char *what = world_call_name(kind);
    uint64_t mark = 0;
    tt_err bad;

    l->arena = tt_arena_open(0);
    bad = list_state(w, s, what, l);
    if (!bad && step < 0 && kind == CALL_SAVE)
        bad = tt_fail(TT_EINVAL, "%s: step %lld: they count from 0", what, (long long)step);
    for (int i = 0; i < l->count; i++)
        mark = tt_random_key(mark, l->entries[i].name) ^ (uint64_t)l->entries[i].bytes;
    return world_compare(w, (call){.kind = kind, .count = step, .place = (int64_t)mark}, bad);
}

static json_t *make_meta(const tutti_world *w, const tutti_state *s, int64_t step)
{
    json_t *meta = json_pack("{s:I, s:I, s:s}", "step", (json_int_t)step, "workers",
                             (json_int_t)tutti_world_size(w), "version", TT_VERSION);

    if (s->optim) {
        json_object_set_new(meta, "optimizer", json_string(tt_optim_name(s->optim->rule)));
        json_object_set_new(meta, "optim_step", json_integer(s->optim->step));
    }
    return meta;
}

/* Rank 0: has the writer ended? Looks for a part of the deadline, which the others keep. */
static bool is_written(tt_saver *saver, double most_s)
{
    double until = tt_clock_s() + most_s;
    struct timespec nap = {0, 1000000};
    int64_t step;
    tt_err err;

    for (;;) {
        if (tt_saver_ended(saver, &step, &err)) return true;
        if (tt_clock_s() >= until) return false;
        nanosleep(&nap, NULL);
    }
}

static tt_err save(tutti_world *w, const tutti_state *s, int64_t step, const listing *l)
{
    tt_saver_opts o = {.folder = s->folder,
                       .keep = s->keep,
                       .entries = l->entries,
                       .file = l->files,
                       .count = l->count};
    tt_saver *saver = NULL;
    tt_err err = TT_OK, lost = TT_OK;
    int ended = 0;

    if (!tutti_world_rank(w)) {
        /* The newest by number shall be the newest that was made. */
        if (tt_file_exists(s->folder)) err = tt_ckpt_set_aside(s->folder, step);
        if (!err && !(err = tt_saver_open(&o, &saver)))
            err = tt_saver_save(saver, step, make_meta(w, s, step), NAN);
    }
    /* A disk may be slower than the deadline: rank 0 says from time to time that it still writes.
     */
    if ((err = world_agree(w, err))) goto out;
    while (!ended && !lost) {
        if (saver) ended = is_written(saver, world_inner(w)->timeout_s / 4);
        lost = world_spread(w, &ended, sizeof ended);
    }
    if (saver) err = tt_saver_wait(saver);
    err = lost ? lost : world_agree(w, err);
out:
    tt_saver_close(saver);
    return err;
}

tutti_status tutti_world_save(tutti_world *w, const tutti_state *state, int64_t step)
{
    tt_err err = world_enter(w, "tutti_world_save");
    listing l = {0};

    if (!err && !(err = agree_state(w, state, step, CALL_SAVE, &l))) err = save(w, state, step, &l);
    tt_arena_close(l.arena);
    return world_leave_call(w, CALL_SAVE, err);
}

static tt_err find_latest(const char *folder, int64_t *step)
{
    tt_ckpt_info *list = NULL;
    int count = 0;
    tt_err err = TT_OK;

    if (tt_file_exists(folder)) err = tt_ckpt_list(folder, false, &list, &count);
    for (int i = 0; i < count && !err; i++)
        if (list[i].newest) *step = list[i].step;
    free(list);
    return err;
}

tutti_status tutti_world_latest(tutti_world *w, const char *folder, int64_t *step)
{
    tt_err err = world_enter(w, "tutti_world_latest"), bad = TT_OK;
    int64_t found = -1;

    if (err) return status_of(err);
    if (!folder || !step) bad = tt_fail(TT_EINVAL, "tutti_world_latest: folder or step is NULL");
    if (!bad && !tutti_world_rank(w)) bad = find_latest(folder, &found);
    if (!(err = world_compare(w, (call){.kind = CALL_LATEST}, bad)) &&
        !(err = world_spread(w, &found, sizeof found)))
        *step = found;
    return world_leave_call(w, CALL_LATEST, err);
}

static tt_err check_fit(const tt_ckpt *c, const tt_entry *want)
{
    const tt_entry *have = tt_ckpt_find(c, want->name);

    if (!have)
        return tt_fail(TT_ECKPT,
                       "the checkpoint of step %lld has no '%s': it was saved of another "
                       "program, or another optimiser",
                       (long long)tt_ckpt_step(c), want->name);
    if (have->rank != want->rank ||
        memcmp(have->shape, want->shape, (size_t)want->rank * sizeof *want->shape))
        return tt_fail(TT_ECKPT, "'%s' has another shape in the checkpoint of step %lld",
                       want->name, (long long)tt_ckpt_step(c));
    if (have->type != TT_F32)
        return tt_fail(TT_ECKPT, "'%s' is of type %s in the checkpoint of step %lld, not F32",
                       want->name, tt_dtype_name(have->type), (long long)tt_ckpt_step(c));
    return TT_OK;
}

/* Rank 0: nothing is written before all of it fits. */
static tt_err read_ckpt(const char *folder, int64_t step, const listing *l, int64_t at[2])
{
    tt_ckpt *c;
    const json_t *own;
    tt_err err = tt_ckpt_open(folder, step, true, &c);

    if (err) return err;
    for (int i = 0; i < l->count && !err; i++) err = check_fit(c, &l->entries[i]);
    for (int i = 0; i < l->count && !err; i++) {
        const tt_entry *e = &l->entries[i];
        err = tt_entry_floats(tt_ckpt_find(c, e->name), (float *)(uintptr_t)e->data, e->bytes / 4);
    }
    own = json_object_get(tt_ckpt_meta(c), "optim_step");
    at[0] = at[1] = tt_ckpt_step(c);
    if (json_is_integer(own) && json_integer_value(own) >= 0) at[1] = json_integer_value(own);
    tt_ckpt_close(c);
    return err;
}

static tt_err restore(tutti_world *w, const tutti_state *s, int64_t step, const listing *l,
                      int64_t *found)
{
    int64_t at[2] = {0, 0}; /* the program's step, and the optimiser's */
    tt_err err = tutti_world_rank(w) ? TT_OK : read_ckpt(s->folder, step, l, at);

    if ((err = world_agree(w, err)) || (err = world_spread(w, at, sizeof at))) return err;
    for (int i = 0; i < l->count && !err; i++) {
        const tt_entry *e = &l->entries[i];
        err = world_spread(w, (void *)(uintptr_t)e->data, (size_t)e->bytes);
    }
    if (err) return err;
    if (s->optim) s->optim->step = at[1];
    if (found) *found = at[0];
    return TT_OK;
}

tutti_status tutti_world_restore(tutti_world *w, const tutti_state *state, int64_t step,
                                 int64_t *found)
{
    tt_err err = world_enter(w, "tutti_world_restore");
    listing l = {0};

    if (!err && step < 0) step = -1;
    if (!err && !(err = agree_state(w, state, step, CALL_RESTORE, &l)))
        err = restore(w, state, step, &l, found);
    tt_arena_close(l.arena);
    return world_leave_call(w, CALL_RESTORE, err);
}
