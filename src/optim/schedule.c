#include "schedule.h"

#include <string.h>

enum { NO_MOST = -1 }; /* a key's upper bound below its lower: there is none */

/* ---- reading ---- */

/* As written: lengths are still texts, since they may be counted in epochs. */
typedef struct draft {
    const char *every, *steps, *warmup;
    tt_strings at;
    double gamma, end, warmup_from;
} draft;

#define WARMUP                                                                                     \
    {"warmup", TT_STRING, offsetof(draft, warmup), "0", .help = "steps, or `N epoch`, of rise"},   \
    {                                                                                              \
        "warmup_from", TT_NUMBER, offsetof(draft, warmup_from), "0", 0, 1, NULL,                   \
            "the factor the rise begins above"                                                     \
    }
#define FALL                                                                                       \
    {"end", TT_NUMBER, offsetof(draft, end), "0", 0, NO_MOST, NULL, "the last factor of lr"},      \
    {                                                                                              \
        "steps", TT_STRING, offsetof(draft, steps), "-",                                           \
            .help =                                                                                \
                "length after the warm-up, steps or `N epoch`; else to the end of the training"    \
    }

static const tt_key constant_keys[] = {WARMUP};
static const tt_key step_keys[] = {
    {"every", TT_STRING, offsetof(draft, every), "-", .help = "steps, or `N epoch`, between falls"},
    {"at", TT_STRINGS, offsetof(draft, at), "-", .help = "or a list: after these steps or epochs"},
    {"gamma", TT_NUMBER, offsetof(draft, gamma), "0.1", 0, NO_MOST, NULL, "what a fall multiplies"},
    WARMUP,
};
static const tt_key fall_keys[] = {FALL, WARMUP};

static const struct {
    const char *name;
    const tt_key *keys;
    int key_count;
} kinds[] = {
    [TT_CONSTANT] = {"constant", constant_keys, TT_COUNT(constant_keys)},
    [TT_STEPS] = {"step", step_keys, TT_COUNT(step_keys)},
    [TT_LINEAR] = {"linear", fall_keys, TT_COUNT(fall_keys)},
    [TT_COSINE] = {"cosine", fall_keys, TT_COUNT(fall_keys)},
};

/* "500", "500 steps", "2 epoch", "0.5 epochs" as steps, at least `least`. */
static tt_err read_length(const tt_node *at, const char *key, const char *text, int64_t least,
                          int64_t steps_per_epoch, int64_t *out)
{
    static const struct {
        const char *word;
        bool epoch;
    } units[] = {{"", false}, {"step", false}, {"steps", false}, {"epoch", true}, {"epochs", true}};
    char number[64];
    size_t n = strcspn(text, " ");
    const char *word = text + n + strspn(text + n, " ");
    int64_t steps = -1;
    double epochs;
    bool known = false, epoch = false;

    for (int i = 0; i < TT_COUNT(units); i++)
        if (!strcmp(word, units[i].word)) known = true, epoch = units[i].epoch;
    if (known && n && n < sizeof number) {
        memcpy(number, text, n);
        number[n] = 0;
        if (!epoch) {
            known = tt_parse_int(number, &steps);
        } else if ((known = tt_parse_number(number, &epochs))) {
            if (steps_per_epoch <= 0)
                return tt_node_fail(at,
                                    "%s is given in epochs, but how many steps an epoch has is "
                                    "not known here: give it in steps",
                                    key);
            epochs *= (double)steps_per_epoch;
            if (!(epochs >= 0 && epochs < 1e15))
                known = false;
            else
                steps = (int64_t)(epochs + 0.5);
        }
    } else {
        known = false;
    }
    if (!known || steps < least)
        return tt_node_fail(at, "%s wants a number of steps%s or, say, '2 epoch', not '%s'", key,
                            least ? ", at least 1," : "", text);
    *out = steps;
    return TT_OK;
}

static tt_err read_steps(const tt_node *args, const draft *d, int64_t steps_per_epoch,
                         tt_arena *arena, tt_schedule *out)
{
    const tt_node *at = tt_node_get(args, "at");
    tt_err err;

    if (!d->every == !d->at.count)
        return tt_node_fail(args, "step wants either every: (a distance) or at: (a list)");
    if (d->every)
        return read_length(tt_node_get(args, "every"), "every", d->every, 1, steps_per_epoch,
                           &out->every);
    out->at_count = d->at.count;
    out->at = tt_arena_take(arena, tt_mul_size((size_t)d->at.count + 1, sizeof *out->at), 8);
    for (int i = 0; i < d->at.count; i++) {
        if ((err = read_length(at, "at", d->at.item[i], 0, steps_per_epoch, &out->at[i])))
            return err;
        if (i && out->at[i] <= out->at[i - 1])
            return tt_node_fail(at, "at: '%s' does not come after '%s': the list must rise",
                                d->at.item[i], d->at.item[i - 1]);
    }
    return TT_OK;
}

tt_err tt_schedule_read(tt_node *n, int64_t total_steps, int64_t steps_per_epoch, tt_arena *arena,
                        tt_schedule *out)
{
    const char *name;
    tt_node *at, *args;
    draft d = {0};
    int kind;
    tt_err err;

    *out = (tt_schedule){.kind = TT_CONSTANT};
    if (!n) return TT_OK;
    if ((err = tt_node_kind_of(n, "schedule", &name, &at, &args))) return err;
    if ((err = tt_node_pick(at, "schedule", name, kinds, sizeof *kinds, TT_COUNT(kinds), &kind)))
        return err;
    out->kind = (tt_schedule_kind)kind;
    if ((err = tt_node_read(args, name, kinds[kind].keys, kinds[kind].key_count, &d))) return err;
    out->warmup_from = d.warmup_from;
    out->end = d.end;
    out->gamma = d.gamma;
    if ((err = read_length(tt_node_get(args, "warmup"), "warmup", d.warmup, 0, steps_per_epoch,
                           &out->warmup)))
        return err;
    if (out->kind == TT_CONSTANT) return TT_OK;
    if (out->kind == TT_STEPS) return read_steps(args, &d, steps_per_epoch, arena, out);
    if (d.steps)
        return read_length(tt_node_get(args, "steps"), "steps", d.steps, 1, steps_per_epoch,
                           &out->length);
    if (total_steps <= 0)
        return tt_node_fail(at, "%s needs steps: here, as the training has no fixed length", name);
    /* A training shorter than its warm-up (a quick trial of a long job) never gets to the fall. */
    out->length = total_steps > out->warmup ? total_steps - out->warmup : 1;
    return TT_OK;
}

/* ---- the factor ---- */

double tt_power(double x, int64_t n)
{
    double y = 1;

    for (; n; n >>= 1, x *= x)
        if (n & 1) y *= x;
    return y;
}

/* (1 + cos(pi x)) / 2 for 0 <= x <= 1, by way of sin^2 of at most pi / 4, whose series is short. */
static double half_cosine(double x)
{
    double y = 1.57079632679489661923 * (x <= 0.5 ? x : 1 - x), term = y, sine = y;

    for (int k = 2; k <= 16; k += 2) {
        term *= -y * y / (k * (k + 1));
        sine += term;
    }
    return x <= 0.5 ? 1 - sine * sine : sine * sine;
}

double tt_schedule_factor(const tt_schedule *s, int64_t step)
{
    int64_t clock = step - s->warmup;
    double x;
    int falls = 0;

    if (clock < 0)
        return s->warmup_from + (1 - s->warmup_from) * ((double)(step + 1) / (double)s->warmup);
    switch (s->kind) {
    case TT_CONSTANT:
        break;
    case TT_STEPS:
        if (s->every) return tt_power(s->gamma, clock / s->every);
        while (falls < s->at_count && s->at[falls] <= clock) falls++;
        return tt_power(s->gamma, falls);
    case TT_LINEAR:
    case TT_COSINE:
        x = clock < s->length ? (double)clock / (double)s->length : 1;
        return s->end + (1 - s->end) * (s->kind == TT_LINEAR ? 1 - x : half_cosine(x));
    }
    return 1;
}
