/* Layers that programs add: their keys, their callbacks, and a trial against finite differences. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inner.h"

enum { KEYS_MOST = 16, CHECK_ROWS = 3, CHECK_SAMPLES = 64, GUARD = 16 };

typedef struct entry {
    tutti_layer layer;  /* its strings belong to us         */
    tt_tree *keys_tree; /* holds the names and the defaults */
    tt_key keys[KEYS_MOST];
    int key_count;
    tt_custom custom;
    struct tutti_args *start;
    struct entry *next;
} entry;

struct tutti_args { /* of one layer of one model */
    const entry *of;
    tutti_shape in, out;
    int param_count;
    double value[KEYS_MOST];
};

/* Like the kinds that model/ knows, they stay until the program ends. */
static entry *entries;

double tutti_arg(const tutti_args *args, const char *key)
{
    for (int i = 0; args && key && i < args->of->key_count; i++)
        if (!strcmp(args->of->keys[i].name, key)) return args->value[i];
    return NAN;
}

/* ---- what the shape function gave ---- */

static tt_shape shape_to(tutti_shape s)
{
    tt_shape out = {.rank = s.rank};

    memcpy(out.dim, s.dim, sizeof out.dim);
    return out;
}

/* 2^40 numbers are past any memory and keep every later product inside 64 bits. */
static bool shape_is_possible(tutti_shape s)
{
    int64_t n = tutti_shape_count(s);
    return n > 0 && n <= (int64_t)1 << 40;
}

static tt_err check_params(const entry *e, const tutti_param *p, int count)
{
    if (count < 0 || count > TUTTI_PARAMS)
        return tt_fail(TT_EINVAL, "its shape function gave %d parameters: at most %d are possible",
                       count, TUTTI_PARAMS);
    for (int i = 0; i < count; i++) {
        if (!p[i].name || !*p[i].name || strpbrk(p[i].name, "./"))
            return tt_fail(TT_EINVAL, "parameter %d of %s has no name, or a dot or slash in it", i,
                           e->layer.kind);
        if (!shape_is_possible(p[i].shape))
            return tt_fail(TT_EINVAL, "parameter '%s' has an impossible shape", p[i].name);
        for (int k = 0; k < i; k++)
            if (!strcmp(p[i].name, p[k].name))
                return tt_fail(TT_EINVAL, "two parameters are called '%s'", p[i].name);
    }
    return TT_OK;
}

static tt_err call_shape(tutti_args *a, tutti_shape in, tutti_param *params)
{
    const entry *e = a->of;
    tutti_status status;

    memset(params, 0, TUTTI_PARAMS * sizeof *params);
    a->param_count = 0;
    a->in = a->out = in;
    tt_fail(TT_EINVAL, "its shape function refused"); /* unless it says more itself */
    status = e->layer.shape(a, e->layer.user, in, &a->out, params, &a->param_count);
    if (status) return (tt_err)status;
    if (!shape_is_possible(a->out))
        return tt_fail(TT_EINVAL, "its shape function gave an impossible output shape");
    return check_params(e, params, a->param_count);
}

/* ---- the callbacks that model/ calls ---- */

static tt_err custom_shape(void *args, tt_shape in, tt_shape *out, tt_custom_param *params,
                           int *count)
{
    tutti_args *a = args;
    tutti_param p[TUTTI_PARAMS];
    tt_err err = call_shape(a, shape_from(in), p);

    if (err) return err;
    *out = shape_to(a->out);
    *count = a->param_count;
    for (int i = 0; i < *count; i++) {
        params[i] = (tt_custom_param){.name = p[i].name,
                                      .rank = p[i].shape.rank,
                                      .role = p[i].decay ? TT_WEIGHT : TT_BIAS,
                                      .fan_in = p[i].fan_in,
                                      .fill = p[i].fill};
        memcpy(params[i].shape, p[i].shape.dim, sizeof params[i].shape);
    }
    return TT_OK;
}

static tutti_pass pass_of(const tutti_args *a, int64_t rows, const float *x)
{
    return (tutti_pass){.args = a,
                        .user = a->of->layer.user,
                        .in = a->in,
                        .out = a->out,
                        .rows = rows,
                        .in_count = tutti_shape_count(a->in),
                        .out_count = tutti_shape_count(a->out),
                        .x = x};
}

static void custom_forward(const void *args, int n, const float *x, const float *const *w, float *y,
                           bool train)
{
    const tutti_args *a = args;
    tutti_pass p = pass_of(a, n, x);

    p.train = train;
    p.y = y;
    for (int i = 0; i < a->param_count; i++) p.w[i] = w[i];
    a->of->layer.forward(&p);
}

static void custom_backward(const void *args, int n, const float *x, const float *y,
                            const float *dy, const float *const *w, float *dx, float *const *dw)
{
    const tutti_args *a = args;
    tutti_pass p = pass_of(a, n, x);

    p.train = true;
    p.y = (float *)(uintptr_t)y; /* read again, not written: the header says so */
    p.dy = dy;
    p.dx = dx;
    for (int i = 0; i < a->param_count; i++) p.w[i] = w[i], p.dw[i] = dw[i];
    a->of->layer.backward(&p);
}

/* ---- adding ---- */

static void entry_close(entry *e)
{
    if (!e) return;
    tt_tree_close(e->keys_tree);
    free(e->start);
    free((char *)(uintptr_t)e->layer.kind);
    free(e);
}

/* "out, slope: 1" is a YAML map but for its braces; a key without a value is required. */
static tt_err read_keys(entry *e, const char *keys)
{
    static const char *const common[] = {"name", "from", "freeze"};
    tt_str text = {0};
    const tt_node *map;
    double ignored;
    tt_err err;

    tt_str_add(&text, "{%s}", keys ? keys : "");
    err = tt_tree_parse("keys", text.data, text.size, &e->keys_tree);
    tt_str_free(&text);
    if (err) return err;
    map = tt_tree_root(e->keys_tree);
    if (map->kind != TT_MAP) return tt_fail(TT_EINVAL, "keys are written as in \"out, slope: 1\"");
    if (map->count > KEYS_MOST)
        return tt_node_fail(map, "%d keys: at most %d are possible", map->count, KEYS_MOST);
    for (int i = 0; i < map->count; i++) {
        const tt_node *key = map->key[i], *value = map->item[i];
        bool required = value->kind == TT_SCALAR && !value->quoted && !*value->text;
        for (int k = 0; k < TT_COUNT(common); k++)
            if (!strcmp(key->text, common[k]))
                return tt_node_fail(key, "every layer has the key '%s'", key->text);
        if (!required && (value->kind != TT_SCALAR || !tt_parse_number(value->text, &ignored)))
            return tt_node_fail(value, "the default of '%s' must be a number", key->text);
        e->keys[i] = (tt_key){.name = key->text,
                              .type = TT_NUMBER,
                              .at = offsetof(tutti_args, value) + (size_t)i * sizeof(double),
                              .preset = required ? NULL : value->text,
                              .help = "a key of a layer that a program added"};
    }
    e->key_count = map->count;
    return TT_OK;
}

static bool is_name(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return n && !s[n] && !(s[0] >= '0' && s[0] <= '9') && !(s[n - 1] >= '0' && s[n - 1] <= '9');
}

static tt_err add(const tutti_layer *l, entry *e)
{
    tt_err err;

    e->layer = *l;
    e->layer.keys = NULL;
    if (!(e->layer.kind = strdup(l->kind)) || !(e->start = calloc(1, sizeof *e->start)))
        return tt_fail(TT_ENOMEM, "no memory for a layer kind");
    if ((err = read_keys(e, l->keys))) return tt_context(err, "layer kind '%s'", l->kind);
    e->start->of = e;
    e->custom = (tt_custom){.kind = e->layer.kind,
                            .keys = e->keys,
                            .key_count = e->key_count,
                            .args_size = sizeof(tutti_args),
                            .args_start = e->start,
                            .shape = custom_shape,
                            .forward = custom_forward,
                            .backward = custom_backward};
    return tt_custom_add(&e->custom);
}

tutti_status tutti_layer_add(const tutti_layer *l)
{
    entry *e;
    tt_err err;

    if (!l || !l->kind || !l->shape || !l->forward || !l->backward)
        return status_of(tt_fail(TT_EINVAL, "a layer needs kind, shape, forward and backward"));
    if (!is_name(l->kind) || !strcmp(l->kind, "repeat"))
        return status_of(tt_fail(TT_EINVAL,
                                 "'%s' cannot name a layer kind: use letters, digits and _, and "
                                 "no digit at its ends",
                                 l->kind));
    e = calloc(1, sizeof *e);
    if (!e) return status_of(tt_fail(TT_ENOMEM, "no memory for a layer kind"));
    if ((err = add(l, e))) {
        entry_close(e);
        return status_of(err);
    }
    e->next = entries;
    entries = e;
    return TUTTI_OK;
}

/* ---- trying ----
 *
 * L = sum of r * y for random r, so dL/dy is r. Backward tells dL/dx and dL/dw; L is computed again
 * with single numbers moved up and down by H. In float32, H = 2^-6 balances what the straight line
 * misses (H^2) against what rounding costs (2^-24 / H). */

#define H (1.0f / 64)

typedef struct block { /* numbers, with guards behind them that nobody may touch */
    float *at;
    int64_t n;
} block;

typedef struct trial {
    tutti_args args;
    block x, y, r, dx, w[TUTTI_PARAMS], dw[TUTTI_PARAMS];
    tutti_param params[TUTTI_PARAMS];
    const entry *of;
} trial;

static const float guard_value = -12345.5f;

static tt_err block_open(int64_t n, block *b)
{
    b->at = calloc((size_t)n + GUARD, sizeof *b->at); /* n is at most 3 x 2^40: no overflow */
    if (!b->at) return tt_fail(TT_ENOMEM, "no memory for %lld numbers", (long long)n);
    b->n = n;
    for (int i = 0; i < GUARD; i++) b->at[n + i] = guard_value;
    return TT_OK;
}

static bool block_is_whole(const block *b)
{
    for (int i = 0; i < GUARD; i++)
        if (b->at[b->n + i] != guard_value) return false;
    return true;
}

static void fill(const block *b, float value)
{
    for (int64_t i = 0; i < b->n; i++) b->at[i] = value;
}

static void fill_normal(const block *b, const char *key, float scale, float about)
{
    float four[4];

    for (int64_t i = 0; i < b->n; i += 4) {
        tt_normal4(tt_random_key(1, key), 0, (uint64_t)i, four);
        for (int k = 0; k < 4 && i + k < b->n; k++) b->at[i + k] = about + scale * four[k];
    }
}

static tutti_pass trial_pass(const trial *t)
{
    tutti_pass p = pass_of(&t->args, CHECK_ROWS, t->x.at);

    p.train = true;
    p.y = t->y.at;
    for (int i = 0; i < t->args.param_count; i++) p.w[i] = t->w[i].at;
    return p;
}

static double loss_of(const trial *t)
{
    tutti_pass p = trial_pass(t);
    double sum = 0;

    t->of->layer.forward(&p);
    for (int64_t i = 0; i < t->y.n; i++) sum += (double)t->r.at[i] * (double)t->y.at[i];
    return sum;
}

static void backward(const trial *t, bool wanted)
{
    tutti_pass p = trial_pass(t);

    p.dy = t->r.at;
    if (wanted) p.dx = t->dx.at;
    for (int i = 0; wanted && i < t->args.param_count; i++) p.dw[i] = t->dw[i].at;
    t->of->layer.backward(&p);
}

/* One tensor's gradient against differences; `before` is what it held when backward added to it. */
static tt_err compare(const trial *t, const char *what, const block *value, const block *grad,
                      double before, double tolerance)
{
    int64_t stride = value->n <= CHECK_SAMPLES ? 1 : value->n / CHECK_SAMPLES;

    for (int64_t i = 0; i < value->n; i += stride) {
        float kept = value->at[i], up = kept + H, down = kept - H;
        double higher, lower, want, got = (double)grad->at[i] - before;
        value->at[i] = up;
        higher = loss_of(t);
        value->at[i] = down;
        lower = loss_of(t);
        value->at[i] = kept;
        want = (higher - lower) / ((double)up - (double)down);
        if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want))))
            return tt_fail(TT_EINVAL,
                           "backward of %s: the gradient of %s[%lld] is %.6g, but finite "
                           "differences say %.6g",
                           t->of->layer.kind, what, (long long)i, got, want);
    }
    return TT_OK;
}

static tt_err trial_open(trial *t, tutti_shape in)
{
    tt_err err;

    if ((err = call_shape(&t->args, in, t->params))) return err;
    if ((err = block_open(CHECK_ROWS * tutti_shape_count(in), &t->x)) ||
        (err = block_open(t->x.n, &t->dx)) ||
        (err = block_open(CHECK_ROWS * tutti_shape_count(t->args.out), &t->y)) ||
        (err = block_open(t->y.n, &t->r)))
        return err;
    fill_normal(&t->x, "x", 1, 0);
    fill_normal(&t->r, "r", 1, 0);
    for (int i = 0; i < t->args.param_count; i++) {
        const tutti_param *p = &t->params[i];
        float scale = p->fan_in > 0 ? (float)(1 / sqrt(p->fan_in)) : 0.1f;
        if ((err = block_open(tutti_shape_count(p->shape), &t->w[i])) ||
            (err = block_open(t->w[i].n, &t->dw[i])))
            return err;
        fill_normal(&t->w[i], p->name, scale, p->fan_in > 0 ? 0 : p->fill);
    }
    return TT_OK;
}

static void trial_close(trial *t)
{
    free(t->x.at);
    free(t->y.at);
    free(t->r.at);
    free(t->dx.at);
    for (int i = 0; i < TUTTI_PARAMS; i++) {
        free(t->w[i].at);
        free(t->dw[i].at);
    }
}

static tt_err check_written(const trial *t)
{
    const char *kind = t->of->layer.kind;

    for (int64_t i = 0; i < t->y.n; i++)
        if (!isfinite(t->y.at[i]))
            return tt_fail(TT_EINVAL, "forward of %s: y[%lld] is %g, or was not written", kind,
                           (long long)i, (double)t->y.at[i]);
    if (!block_is_whole(&t->y)) return tt_fail(TT_EINVAL, "forward of %s writes beyond y", kind);
    if (!block_is_whole(&t->dx)) return tt_fail(TT_EINVAL, "backward of %s writes beyond dx", kind);
    for (int i = 0; i < t->args.param_count; i++)
        if (!block_is_whole(&t->dw[i]))
            return tt_fail(TT_EINVAL, "backward of %s writes beyond the gradient of '%s'", kind,
                           t->params[i].name);
    return TT_OK;
}

static tt_err try_out(trial *t, double tolerance)
{
    tt_err err;

    fill(&t->y, NAN);
    fill(&t->dx, NAN);                                                /* must be overwritten */
    for (int i = 0; i < t->args.param_count; i++) fill(&t->dw[i], 1); /* must be added to */
    loss_of(t);
    backward(t, true);
    if ((err = check_written(t))) return err;
    backward(t, false); /* must bear that nothing is wanted */
    if ((err = compare(t, "x", &t->x, &t->dx, 0, tolerance))) return err;
    for (int i = 0; i < t->args.param_count; i++)
        if ((err = compare(t, t->params[i].name, &t->w[i], &t->dw[i], 1, tolerance))) return err;
    return TT_OK;
}

tutti_status tutti_layer_check(const char *layer, tutti_shape in, double tolerance)
{
    trial t = {0};
    tt_tree *tree = NULL;
    const char *kind;
    tt_node *at, *args;
    tt_err err;

    if (!layer || !shape_is_possible(in) || !(tolerance > 0))
        return status_of(tt_fail(TT_EINVAL,
                                 "tutti_layer_check: it takes a layer, a shape of rank 1 "
                                 "to 6 and a tolerance above 0"));
    if ((err = tt_tree_parse("layer", layer, strlen(layer), &tree)) ||
        (err = tt_node_kind_of(tt_tree_root(tree), "layer", &kind, &at, &args)))
        goto out;
    for (t.of = entries; t.of && strcmp(t.of->layer.kind, kind);) t.of = t.of->next;
    if (!t.of) {
        err = tt_node_fail(at, "no layer kind '%s' was added with tutti_layer_add", kind);
        goto out;
    }
    t.args.of = t.of;
    if ((err = tt_node_read(args, kind, t.of->keys, t.of->key_count, &t.args)) ||
        (err = trial_open(&t, in)))
        goto out;
    err = try_out(&t, tolerance);
out:
    trial_close(&t);
    tt_tree_close(tree);
    return status_of(err);
}
