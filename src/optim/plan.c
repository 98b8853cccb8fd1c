#define _GNU_SOURCE
#include "plan.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

enum { NO_MOST = -1 }; /* a key's upper bound below its lower: there is none */

/* Whether an optional key was written, and not taken back by `null`. */
static bool is_given(const tt_node *map, const char *key)
{
    const tt_node *n = tt_node_get(map, key);
    return n && (n->kind != TT_SCALAR || *n->text);
}

/* ---- train.optimizer ---- */

/* What the tables fill: the settings, and what is checked before it goes there. */
typedef struct draft {
    tt_settings s;
    tt_numbers betas;
} draft;

#define NUMBER(key, field, preset_, most_, help_)                                                  \
    {                                                                                              \
        key, TT_NUMBER, offsetof(draft, s.field), preset_, 0, most_, NULL, help_                   \
    }
#define FLAG(key, field, help_)                                                                    \
    {                                                                                              \
        key, TT_BOOL, offsetof(draft, s.field), "false", .help = help_                             \
    }
#define LR(preset_)       NUMBER("lr", lr, preset_, NO_MOST, "learning rate")
#define MOMENTUM(preset_) NUMBER("momentum", momentum, preset_, 1, "share of the last update kept")
#define EPS(preset_)      NUMBER("eps", eps, preset_, NO_MOST, "added to the denominator")
#define BETAS                                                                                      \
    {                                                                                              \
        "betas", TT_NUMBERS, offsetof(draft, betas), "[0.9, 0.999]", 0, 1, NULL,                   \
            "decay of the means of the gradient and of its square"                                 \
    }
#define DAMPENING                                                                                  \
    NUMBER("dampening", dampening, "0", 1,                                                         \
           "share of the gradient kept out of the momentum, from the second step on")
#define DECAY(preset_)                                                                             \
    NUMBER("l2", l2, "0", NO_MOST,                                                                 \
           "times w, added to the gradient (weight_decay in PyTorch's SGD)"),                      \
        NUMBER("l1", l1, "0", NO_MOST, "times the sign of w, added to the gradient"),              \
        NUMBER("weight_decay", weight_decay, preset_, NO_MOST,                                     \
               "decoupled: w shrinks by lr * weight_decay a step"),                                \
        FLAG("decay_all", decay_all, "decay and regularise biases and norm parameters too")

static const tt_key sgd_keys[] = {
    LR(NULL), MOMENTUM("0"), DAMPENING, FLAG("nesterov", nesterov, "look ahead"), DECAY("0"),
};
static const tt_key momentum_keys[] = {LR(NULL), MOMENTUM("0.9"), DAMPENING, DECAY("0")};
static const tt_key nesterov_keys[] = {LR(NULL), MOMENTUM("0.9"), DECAY("0")};
static const tt_key adagrad_keys[] = {
    LR("0.01"),
    EPS("1e-10"),
    NUMBER("initial", initial, "0", NO_MOST, "where the sums of squares begin"),
    NUMBER("lr_decay", lr_decay, "0", NO_MOST, "lr is divided by 1 + step * lr_decay"),
    DECAY("0"),
};
static const tt_key rowwise_keys[] = {
    LR("0.01"),
    EPS("1e-10"),
    NUMBER("initial", initial, "0", NO_MOST, "where the sum of squares of a row begins"),
    NUMBER("lr_decay", lr_decay, "0", NO_MOST, "lr is divided by 1 + step * lr_decay"),
};
static const tt_key rmsprop_keys[] = {
    LR("0.01"),  NUMBER("alpha", alpha, "0.99", 1, "decay of the mean of the gradient's square"),
    EPS("1e-8"), MOMENTUM("0"),
    DECAY("0"),
};
static const tt_key adam_keys[] = {LR("1e-3"), BETAS, EPS("1e-8"), DECAY("0")};
static const tt_key adamw_keys[] = {LR("1e-3"), BETAS, EPS("1e-8"), DECAY("0.01")};
static const tt_key lamb_keys[] = {LR("1e-3"), BETAS, EPS("1e-6"), DECAY("0.01")};

static const struct {
    const char *name;
    tt_family family;
    bool nesterov;
    const tt_key *keys;
    int key_count;
} kinds[] = {
    {"sgd", TT_SGD, false, sgd_keys, TT_COUNT(sgd_keys)},
    {"momentum", TT_SGD, false, momentum_keys, TT_COUNT(momentum_keys)},
    {"nesterov", TT_SGD, true, nesterov_keys, TT_COUNT(nesterov_keys)},
    {"adagrad", TT_ADAGRAD, false, adagrad_keys, TT_COUNT(adagrad_keys)},
    {"rmsprop", TT_RMSPROP, false, rmsprop_keys, TT_COUNT(rmsprop_keys)},
    {"adam", TT_ADAM, false, adam_keys, TT_COUNT(adam_keys)},
    {"adamw", TT_ADAM, false, adamw_keys, TT_COUNT(adamw_keys)},
    {"lamb", TT_LAMB, false, lamb_keys, TT_COUNT(lamb_keys)},
    {"rowwise_adagrad", TT_ROWWISE, false, rowwise_keys, TT_COUNT(rowwise_keys)},
};

/* What a table cannot say. */
static tt_err check_settings(tt_node *args, draft *d)
{
    tt_settings *s = &d->s;

    if (s->nesterov && (s->momentum == 0 || s->dampening != 0))
        return tt_node_fail(args, "nesterov wants a momentum above 0 and no dampening");
    if (s->dampening != 0 && s->momentum == 0)
        return tt_node_fail(tt_node_get(args, "dampening"),
                            "dampening does nothing without momentum");
    if (s->family != TT_ADAM && s->family != TT_LAMB) return TT_OK;
    if (d->betas.count != 2 || d->betas.item[0] >= 1 || d->betas.item[1] >= 1)
        return tt_node_fail(tt_node_get(args, "betas"),
                            "betas wants two numbers from 0 to below 1, such as [0.9, 0.999]");
    for (int i = 0; i < 2; i++) s->beta[i] = d->betas.item[i];
    return TT_OK;
}

bool tt_settings_have_rows(const tt_settings *s)
{
    return s->family != TT_LAMB && s->family != TT_RMSPROP;
}

tt_err tt_settings_read(tt_node *optimizer, bool rows, tt_settings *out)
{
    const char *name, *key = rows ? "tables" : "optimizer";
    tt_node *at, *args;
    draft d = {0};
    tt_err err;
    int kind = 0, count = TT_COUNT(kinds) - !rows; /* the last is of rows alone */

    if (!optimizer)
        return tt_fail(TT_EINVAL,
                       "train has no optimizer: write, say, optimizer: {adam: {lr: 1e-3}}");
    if ((err = tt_node_kind_of(optimizer, key, &name, &at, &args))) return err;
    if (!rows && !strcmp(name, kinds[count].name))
        return tt_node_fail(at, "%s is for the rows of tables: say train.tables: {%s: {lr: 0.01}}",
                            name, name);
    if ((err = tt_node_pick(at, key, name, kinds, sizeof *kinds, count, &kind))) return err;
    if ((err = tt_node_read(args, name, kinds[kind].keys, kinds[kind].key_count, &d))) return err;
    d.s.name = kinds[kind].name;
    d.s.family = kinds[kind].family;
    d.s.nesterov |= kinds[kind].nesterov;
    if ((err = check_settings(args, &d))) return err;
    if (rows && !tt_settings_have_rows(&d.s))
        return tt_node_fail(at,
                            "%s has no rule for the rows of tables: say sgd, momentum, nesterov, "
                            "adagrad, rowwise_adagrad, adam or adamw",
                            name);
    *out = d.s;
    return TT_OK;
}

/* ---- train.clip ---- */

typedef struct clips {
    double norm, value;
} clips;

static const tt_key clip_keys[] = {
    {"norm", TT_NUMBER, offsetof(clips, norm), "-", 0, NO_MOST, NULL,
     "the gradient as a whole is made no longer than this"},
    {"value", TT_NUMBER, offsetof(clips, value), "-", 0, NO_MOST, NULL,
     "each element of the gradient is made no larger than this"},
};

tt_err tt_clip_read(tt_node *clip, double *norm, double *value)
{
    clips c = {0, 0};
    tt_err err;

    *norm = *value = 0;
    if (!clip) return TT_OK;
    if ((err = tt_node_read(clip, "clip", clip_keys, TT_COUNT(clip_keys), &c))) return err;
    for (int i = 0; i < TT_COUNT(clip_keys); i++) {
        const char *key = clip_keys[i].name;
        if (is_given(clip, key) && (i ? c.value : c.norm) == 0)
            return tt_node_fail(tt_node_get(clip, key),
                                "clip by %s 0 would stop all learning: give more, or leave it out",
                                key);
    }
    *norm = c.norm;
    *value = c.value;
    return TT_OK;
}

/* ---- train.groups ---- */

typedef struct group {
    const char *match;
    double lr, l2, l1, weight_decay; /* NAN: not given */
    bool freeze, has_freeze;
} group;

static const tt_key group_keys[] = {
    {"match", TT_STRING, offsetof(group, match), NULL,
     .help = "names of parameters, with * and ?: \"conv*.weight\""},
    {"lr", TT_NUMBER, offsetof(group, lr), "-", 0, NO_MOST, NULL, "multiplies the learning rate"},
    {"l2", TT_NUMBER, offsetof(group, l2), "-", 0, NO_MOST, NULL, "instead of the optimizer's"},
    {"l1", TT_NUMBER, offsetof(group, l1), "-", 0, NO_MOST, NULL, "instead of the optimizer's"},
    {"weight_decay", TT_NUMBER, offsetof(group, weight_decay), "-", 0, NO_MOST, NULL,
     "instead of the optimizer's"},
    {"freeze", TT_BOOL, offsetof(group, freeze), "-", .help = "leave them as they are"},
};

static bool is_decayed(const tt_settings *s, tt_param_role role)
{
    return role == TT_WEIGHT || (role == TT_BIAS && s->decay_all);
}

static tt_err fail_unmatched(const tt_node *n, const group *g, const tt_param *params, int count)
{
    const char *names[256] = {0}, *near;
    int n_names = count < TT_COUNT(names) ? count : TT_COUNT(names);

    for (int i = 0; i < n_names; i++) names[i] = params[i].name;
    if ((near = tt_nearest(g->match, names, n_names)))
        return tt_node_fail(n, "no parameter matches '%s': did you mean '%s'?", g->match, near);
    return tt_node_fail(n, "no parameter matches '%s': their names are like '%s'", g->match,
                        count ? params[0].name : "");
}

/* Lays one group over the plans. What it says must mean something for a tensor it matches. */
static tt_err apply_group(const tt_node *n, const group *g, const tt_settings *s,
                          const tt_param *params, int count, tt_plan *plans)
{
    const tt_node *at = tt_node_get(n, "match");
    bool decays = !isnan(g->l2) || !isnan(g->l1) || !isnan(g->weight_decay);
    int matched = 0, learning = 0, decayed = 0;

    if (isnan(g->lr) && !decays && !g->has_freeze)
        return tt_node_fail(n,
                            "this group changes nothing: give lr, l2, l1, weight_decay or freeze");
    for (int i = 0; i < count; i++) {
        tt_plan *p = &plans[i];
        if (fnmatch(g->match, params[i].name, 0)) continue;
        matched++;
        if (g->has_freeze) p->frozen = params[i].frozen || g->freeze;
        if (params[i].role == TT_STAT) continue;
        learning++;
        if (!isnan(g->lr)) p->lr = g->lr;
        if (!is_decayed(s, params[i].role)) continue;
        decayed++;
        p->decay_given |= decays;
        if (!isnan(g->l2)) p->l2 = g->l2;
        if (!isnan(g->l1)) p->l1 = g->l1;
        if (!isnan(g->weight_decay)) p->weight_decay = g->weight_decay;
    }
    if (!matched) return fail_unmatched(at, g, params, count);
    if (!isnan(g->lr) && !learning)
        return tt_node_fail(at, "'%s' matches only running statistics, which have no learning rate",
                            g->match);
    if (decays && !decayed)
        return tt_node_fail(at,
                            "'%s' matches only parameters that are not decayed (biases, norms): "
                            "give the optimizer decay_all: true",
                            g->match);
    return TT_OK;
}

tt_err tt_plans_read(tt_node *groups, const tt_settings *s, const tt_param *params, int count,
                     tt_plan *out)
{
    tt_err err;

    for (int i = 0; i < count; i++) {
        bool decayed = is_decayed(s, params[i].role);
        out[i] = (tt_plan){.role = params[i].role,
                           .frozen = params[i].frozen,
                           .adapt = decayed,
                           .lr = 1,
                           .l2 = decayed ? s->l2 : 0,
                           .l1 = decayed ? s->l1 : 0,
                           .weight_decay = decayed ? s->weight_decay : 0,
                           .dim = params[i].rank == 2 ? (int)params[i].shape[1] : 0,
                           .stat_momentum = params[i].momentum};
    }
    if (!groups || (groups->kind == TT_SCALAR && !*groups->text)) return TT_OK;
    if (groups->kind != TT_LIST)
        return tt_node_fail(groups, "groups wants a list: - {match: \"conv*\", lr: 0.1}");
    for (int i = 0; i < groups->count; i++) {
        tt_node *n = groups->item[i];
        group g = {.lr = NAN, .l2 = NAN, .l1 = NAN, .weight_decay = NAN};
        if ((err = tt_node_read(n, "groups", group_keys, TT_COUNT(group_keys), &g))) return err;
        g.has_freeze = is_given(n, "freeze");
        if ((err = apply_group(n, &g, s, params, count, out))) return err;
    }
    return TT_OK;
}
