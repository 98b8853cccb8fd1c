/* How fast is a rank, and when is it worth while to deal anew?
 *
 * Times are smoothed: one that is late once (a page that was not there, a daemon) is not slow. Who
 * is far off twice in a row has another speed now; faster it is only when it has been so for longer
 * than a CPU quota lets it run at a time. A deal must promise to be a good deal faster, some steps
 * in a row; after it there is a rest, which doubles with each that follows soon, so that ranks
 * whose speed depends on what they have been dealt (threads that share one CPU) come to rest too.
 *
 * Who has no units does not show how fast it is. Once in a while it gets one, if it would be of use
 * as fast as the others are: seldom enough that if it is as slow as it was, this costs little. */
#include "strategy/balance.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum {
    COLD = 2,        /* steps that do not count: pages and caches are cold   */
    KNOWN = 8,       /* steps that are smoothed, about                       */
    SURE = 3,        /* steps in a row until something is believed           */
    FAST = 6,        /* ... and until who was slow is believed not to be     */
    REST = 4,        /* steps from deal to deal, at least ...                */
    REST_FIRST = 8,  /* ... and before the first                             */
    REST_MOST = 64,  /* ... and if deals follow each other                   */
    TRY_AFTER = 16,  /* steps without units until it is tried, at least ...  */
    TRY_MOST = 2000, /* ... and at most                                      */
    TRY_STEPS = 3,   /* that a trial lasts                                   */
};
static const double FAR = 1.5, TOO_FAR = 8, GAIN = 0.9, BEHIND = 2, BACK = 1.5;
static const double GAIN_S = 0.0005, BEHIND_S = 0.001; /* less schedulers do to anybody */
static const double TRY_SHARE = 0.02;                  /* of the time, for trials */

static void *room_for(size_t count, size_t size)
{
    void *p = calloc(count, size);
    if (!p) tt_mem_out(count * size);
    return p;
}

void balance_open(balance *b, int ranks, const int *threads)
{
    *b = (balance){.ranks = ranks};
    b->ranks_at = room_for((size_t)ranks, sizeof *b->ranks_at);
    b->tables = room_for((size_t)ranks, sizeof *b->tables);
    b->deal = room_for((size_t)ranks, sizeof *b->deal);
    b->sorted = room_for((size_t)ranks, sizeof *b->sorted);
    for (int i = 0; i < ranks; i++) b->ranks_at[i].threads = threads[i];
}

void balance_add(balance *b, int first, int end, const int *units)
{
    table *t = &b->tables[b->table_count++];

    *t = (table){.first = first, .end = end, .rest = REST_FIRST};
    for (int i = first; i < end; i++) t->units += b->ranks_at[i].units = units[i - first];
}

void balance_close(balance *b)
{
    free(b->ranks_at);
    free(b->tables);
    free(b->deal);
    free(b->sorted);
    *b = (balance){0};
}

/* ---- How fast ---- */

static void hear_rank(pace *p, double s)
{
    if (!(s > 0)) {
        p->idle++;
        return;
    }
    p->idle = 0;
    if (!(p->unit_s > 0)) p->unit_s = s, p->known = p->off = 0;
    if (s > FAR * p->unit_s)
        p->off = p->off > 0 ? p->off + 1 : 1;
    else if (FAR * s < p->unit_s)
        p->off = p->off < 0 ? p->off - 1 : -1;
    else
        p->off = 0;
    if (p->off >= 2 || p->off <= -FAST) p->unit_s = s, p->known = p->off = 0; /* no accident */
    if (s > TOO_FAR * p->unit_s) s = TOO_FAR * p->unit_s; /* how late it was is chance */
    if (p->known < KNOWN) p->known++;                     /* at first the mean */
    p->unit_s += (s - p->unit_s) / p->known;
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What most take: of two the faster. 0: nothing is known of anybody. */
static double usual(const balance *b)
{
    size_t known = 0;

    for (int i = 0; i < b->ranks; i++)
        if (b->ranks_at[i].unit_s > 0) b->sorted[known++] = b->ranks_at[i].unit_s;
    qsort(b->sorted, known, sizeof *b->sorted, order);
    return known ? b->sorted[(known - 1) / 2] : 0;
}

static void tell(balance *b, double all, balance_news *news, int *count)
{
    for (int i = 0; i < b->ranks; i++) {
        pace *p = &b->ranks_at[i];
        double factor = p->unit_s / all;
        if (!(p->unit_s > 0) || p->idle) continue;
        bool behind = factor >= BEHIND && p->unit_s - all >= BEHIND_S;
        p->other = (p->slow ? factor <= BACK : behind) ? p->other + 1 : 0;
        if (p->other < SURE) continue;
        p->slow = !p->slow;
        p->other = 0;
        news[(*count)++] = (balance_news){i, p->slow, factor};
    }
}

/* ---- How to deal ---- */

/* Who is not known is taken for one of most. */
static double speed_of(const pace *p, double all)
{
    return p->unit_s > 0 ? p->unit_s : all;
}

/* Enough faster to be worth while? */
static bool is_gain(double now, double then)
{
    return then < GAIN * now && now - then > GAIN_S;
}

static double time_for(const pace *p, int units, double all)
{
    return (units + p->threads - 1) / p->threads * speed_of(p, all);
}

static double time_of(const balance *b, const table *t, const int *units, double all)
{
    double most = 0;

    for (int i = t->first; i < t->end; i++) {
        double s = time_for(&b->ranks_at[i], units[i], all);
        if (s > most) most = s;
    }
    return most;
}

static double time_now(const balance *b, const table *t, double all)
{
    double most = 0;

    for (int i = t->first; i < t->end; i++) {
        double s = time_for(&b->ranks_at[i], b->ranks_at[i].units, all);
        if (s > most) most = s;
    }
    return most;
}

/* Could any deal be a good deal faster than the one there is? Told without making one, as a rule.
 */
static bool can_gain(const balance *b, const table *t, double all)
{
    double speed = 0;

    for (int i = t->first; i < t->end; i++)
        speed += b->ranks_at[i].threads / speed_of(&b->ranks_at[i], all);
    return is_gain(time_now(b, t, all), t->units / speed);
}

/* One unit after the other to who would be done with it first: for equal units nothing is faster.
 * `but` (-1: nobody) gets one and no more. */
static void deal(const balance *b, const table *t, double all, int but, int *units)
{
    int left = t->units;

    for (int i = t->first; i < t->end; i++) units[i] = i == but && left-- > 0;
    for (; left > 0; left--) {
        int to = -1;
        double least = 0;
        for (int i = t->first; i < t->end; i++) {
            double s = time_for(&b->ranks_at[i], units[i] + 1, all);
            if (i == but || (to >= 0 && s >= least)) continue;
            to = i;
            least = s;
        }
        units[to]++;
    }
}

/* Leaves the best deal there is in `deal`, if it is a good deal faster. */
static bool is_better(balance *b, const table *t, double all)
{
    if (!can_gain(b, t, all)) return false;
    deal(b, t, all, -1, b->deal);
    return is_gain(time_now(b, t, all), time_of(b, t, b->deal, all));
}

static bool take_deal(balance *b, table *t)
{
    bool changed = false;

    for (int i = t->first; i < t->end; i++) {
        changed |= b->ranks_at[i].units != b->deal[i];
        b->ranks_at[i].units = b->deal[i];
    }
    t->since = t->better = 0;
    return changed;
}

/* Deals follow each other: each lasts twice as long as the one before. */
static void rest_longer(table *t)
{
    t->rest = t->since > 4 * t->rest ? REST : 2 * t->rest < REST_MOST ? 2 * t->rest : REST_MOST;
}

/* Would it be of use to know how fast an idle rank is now? */
static bool is_worth_a_try(balance *b, const table *t, int i, double all)
{
    pace *p = &b->ranks_at[i];
    double now = time_now(b, t, all), was = p->unit_s;
    double after = TRY_STEPS * (was - now) / (TRY_SHARE * now);

    if (p->units || !(was > 0)) return false;
    if (after > TRY_MOST) after = TRY_MOST;
    if (p->idle < TRY_AFTER || p->idle < after) return false;
    p->unit_s = 0;
    bool use = is_better(b, t, all);
    p->unit_s = was;
    return use;
}

static bool deal_table(balance *b, table *t, double all)
{
    bool shown = false;

    t->since++;
    for (int i = t->first; i < t->end; i++) {
        pace *p = &b->ranks_at[i];
        if (!p->tried) continue;
        if (!(p->unit_s > 0) && p->idle <= TRY_AFTER) return false; /* it is at it */
        p->tried = false;
        shown = true;
    }
    t->better = is_better(b, t, all) ? t->better + 1 : 0;
    if (t->better && (shown || (t->better >= SURE && t->since >= t->rest))) {
        if (!shown) rest_longer(t);
        return take_deal(b, t);
    }
    for (int i = t->first; i < t->end && t->since >= t->rest; i++) {
        if (!is_worth_a_try(b, t, i, all)) continue;
        deal(b, t, all, i, b->deal);
        b->ranks_at[i].tried = true;
        b->ranks_at[i].unit_s = b->ranks_at[i].idle = 0;
        return take_deal(b, t);
    }
    return false;
}

bool balance_hear(balance *b, const double *unit_s, balance_news *news, int *news_count)
{
    bool changed = false;
    double all;

    *news_count = 0;
    if (b->heard < COLD) {
        b->heard++;
        return false;
    }
    for (int i = 0; i < b->ranks; i++) hear_rank(&b->ranks_at[i], unit_s[i]);
    if (!((all = usual(b)) > 0)) return false;
    tell(b, all, news, news_count);
    for (int i = 0; i < b->table_count; i++) changed |= deal_table(b, &b->tables[i], all);
    return changed;
}

void balance_shuffle(balance *b, uint64_t number)
{
    for (int k = 0; k < b->table_count; k++) {
        table *t = &b->tables[k];
        int left = t->units;
        for (int i = t->first; i < t->end; i++) {
            uint64_t r = tt_mix(number * 1000003 + (uint64_t)i);
            /* Nothing and all that is left are as likely as they are worth a test. */
            int n = i + 1 == t->end || r % 7 == 0 ? left
                    : r % 7 == 1                  ? 0
                                                  : (int)(r / 7 % (uint64_t)(left + 1));
            b->ranks_at[i].units = n;
            left -= n;
        }
    }
}
