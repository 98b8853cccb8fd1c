/* Batches: gather, normalise, augment. Pure, and without allocation.
 *
 * The inner loops are one multiply-add per value over contiguous memory; they are the speed of this
 * module, so they are compiled with the vectoriser on, which -O2 leaves off for loops of unknown
 * length. */
#include "data/source.h"

#include <math.h>
#include <string.h>

#ifdef __clang__ /* does it anyway */
#define VECTORISED
#else
#define VECTORISED __attribute__((optimize("tree-vectorize", "vect-cost-model=dynamic")))
#endif

VECTORISED static void row_u8(float *restrict y, const uint8_t *restrict x, int64_t n, float a,
                              float b)
{
    for (int64_t i = 0; i < n; i++) y[i] = a * (float)x[i] + b;
}

VECTORISED static void row_f32(float *restrict y, const float *restrict x, int64_t n, float a,
                               float b)
{
    for (int64_t i = 0; i < n; i++) y[i] = a * x[i] + b;
}

/* Vectors: each feature has its own factor. */
VECTORISED static void each_u8(float *restrict y, const uint8_t *restrict x, int64_t n,
                               const float *restrict a, const float *restrict b)
{
    for (int64_t i = 0; i < n; i++) y[i] = a[i] * (float)x[i] + b[i];
}

VECTORISED static void each_f32(float *restrict y, const float *restrict x, int64_t n,
                                const float *restrict a, const float *restrict b)
{
    for (int64_t i = 0; i < n; i++) y[i] = a[i] * x[i] + b[i];
}

/* Mirrored: y[n - 1 - i] = x[i]. */
VECTORISED static void back_u8(float *restrict y, const uint8_t *restrict x, int64_t n, float a,
                               float b)
{
    for (int64_t i = 0; i < n; i++) y[i] = a * (float)x[n - 1 - i] + b;
}

VECTORISED static void back_f32(float *restrict y, const float *restrict x, int64_t n, float a,
                                float b)
{
    for (int64_t i = 0; i < n; i++) y[i] = a * x[n - 1 - i] + b;
}

static void fill_sparse(const tt_data *d, const tt_part *p, int64_t row, float *y)
{
    const tt_source *s = p->src;
    int64_t plane = d->plane;

    if (plane == 1)
        memcpy(y, d->b, sizeof *y * (size_t)d->features);
    else
        for (int64_t i = 0; i < d->features; i++) y[i] = d->b[i / plane];
    for (int64_t i = s->row[row]; i < s->row[row + 1]; i++) {
        int64_t at = s->col[i], c = at / plane;
        y[at] = p->a[c] * s->val[i] + d->b[c];
    }
}

static void fill_plain(const tt_data *d, const tt_part *p, int64_t row, float *y)
{
    const tt_source *s = p->src;
    int64_t at = row * d->features, n = d->plane;

    if (s->keep == TT_KEEP_SPARSE) {
        fill_sparse(d, p, row, y);
    } else if (n == 1) {
        if (s->keep == TT_KEEP_U8)
            each_u8(y, s->u8 + at, d->features, p->a, d->b);
        else
            each_f32(y, s->f32 + at, d->features, p->a, d->b);
    } else {
        for (int64_t c = 0; c < d->channels; c++, at += n, y += n) {
            if (s->keep == TT_KEEP_U8)
                row_u8(y, s->u8 + at, n, p->a[c], d->b[c]);
            else
                row_f32(y, s->f32 + at, n, p->a[c], d->b[c]);
        }
    }
}

/* One line of an image, shifted by dx and maybe mirrored. Outside the image pixels are 0, which
 * normalisation turns into b. */
static void fill_line(const tt_source *s, int64_t at, int64_t w, int64_t dx, bool flip, float a,
                      float b, float *y)
{
    int64_t from = dx > 0 ? dx : 0,
            to = dx < 0 ? w + dx : w;        /* columns of the source that are seen */
    int64_t n = to - from, lead = from - dx; /* and where they land                 */

    if (flip) lead = w - lead - n;
    for (int64_t i = 0; i < lead; i++) y[i] = b;
    for (int64_t i = lead + n; i < w; i++) y[i] = b;
    if (s->keep == TT_KEEP_U8)
        (flip ? back_u8 : row_u8)(y + lead, s->u8 + at + from, n, a, b);
    else
        (flip ? back_f32 : row_f32)(y + lead, s->f32 + at + from, n, a, b);
}

/* How a sample's image is moved. */
typedef struct move {
    int64_t dy, dx;
    bool flip;
} move;

static move move_of(const tt_data *d, tt_place at)
{
    tt_u128 r = tt_philox(d->augment_key, (uint64_t)at.pass, (uint64_t)at.at);
    uint32_t span = 2 * (uint32_t)d->crop + 1;

    return (move){(int64_t)(r.v[0] % span) - d->crop, (int64_t)(r.v[1] % span) - d->crop,
                  d->flip && (r.v[2] & 1)};
}

/* Labels of pixels go with them; what comes in from outside has none. */
static void move_labels(const tt_data *d, move m, const int32_t *from, int32_t *to)
{
    for (int64_t y = 0; y < d->height; y++)
        for (int64_t x = 0; x < d->width; x++) {
            int64_t row = y + m.dy, column = (m.flip ? d->width - 1 - x : x) + m.dx;
            bool inside = row >= 0 && row < d->height && column >= 0 && column < d->width;
            *to++ = inside ? from[row * d->width + column] : -1;
        }
}

static void fill_augmented(const tt_data *d, const tt_part *p, int64_t row, move m, float *y)
{
    for (int64_t c = 0; c < d->channels; c++)
        for (int64_t line = 0; line < d->height; line++, y += d->width) {
            int64_t from = line + m.dy;
            if (from < 0 || from >= d->height)
                for (int64_t i = 0; i < d->width; i++) y[i] = d->b[c];
            else
                fill_line(p->src, row * d->features + c * d->plane + from * d->width, d->width,
                          m.dx, m.flip, p->a[c], d->b[c], y);
        }
}

static tt_err check_call(const tt_data *d, tt_split split, const tt_order *o, int64_t step,
                         int first, int n)
{
    if (!d->part[split].src)
        return tt_fail(TT_EINVAL, "the job has no %s data",
                       split == TT_VAL ? "validation" : "training");
    if (o->count != d->part[split].count || o->batch < 1 || o->batch > INT32_MAX)
        return tt_fail(TT_EINVAL, "an order over %lld samples in batches of %lld for %lld samples",
                       (long long)o->count, (long long)o->batch, (long long)d->part[split].count);
    if (step < 0 || first < 0 || n < 0 || n > tt_order_size(o, step) - first)
        return tt_fail(TT_EINVAL, "samples %d to %lld of step %lld, which has %d", first,
                       (long long)first + n - 1, (long long)step,
                       step < 0 ? 0 : tt_order_size(o, step));
    return TT_OK;
}

tt_err tt_data_fill(const tt_data *d, tt_split split, const tt_order *o, int64_t step, int first,
                    int n, tt_batch *out)
{
    const tt_part *part = &d->part[split];
    const tt_source *s = part->src;
    bool augment = o->augment && (d->crop || d->flip), text = s && s->keep == TT_KEEP_TOKENS;
    int64_t m = d->want.targets, each = d->want.labels;
    /* A batch is const to those who take it; we are the one who makes it. */
    float *x = (float *)out->x, *target = (float *)out->target;
    int32_t *label = (int32_t *)out->label, *ids = (int32_t *)out->ids;
    uint64_t *place = (uint64_t *)out->place;
    tt_err err;

    if ((err = check_call(d, split, o, step, first, n))) return err;
    out->n = n;
    for (int i = 0; i < n; i++, x += d->features) {
        tt_place p = tt_order_place(o, step, first + i);
        int64_t sample = tt_order_sample(o, p), row = tt_part_row(part, sample);
        bool hide =
            split == TT_TRAIN && d->hidden &&
            (int64_t)tt_permute(d->hide_key, (uint64_t)part->count, (uint64_t)sample) < d->hidden;

        if (place) place[2 * i] = (uint64_t)p.pass, place[2 * i + 1] = (uint64_t)p.at;
        if (text) {
            tt_fill_tokens(d, part, row, p, o->augment, ids + i * d->want.ids,
                           label ? label + i * each : NULL);
            for (int64_t k = 0; k < each && label && hide; k++) label[i * each + k] = -1;
            continue;
        }
        if (augment)
            fill_augmented(d, part, row, move_of(d, p), x);
        else if (d->features)
            fill_plain(d, part, row, x);
        if (augment && each > 1 && label && s->label && !hide)
            move_labels(d, move_of(d, p), s->label + row * each, label + i * each);
        else
            for (int64_t k = 0; k < each && label; k++)
                label[i * each + k] = s->label && !hide ? s->label[row * each + k] : -1;
        if (ids)
            memcpy(ids + i * d->want.ids, s->ids + row * d->want.ids,
                   (size_t)d->want.ids * sizeof *ids);
        if (target && s->target) {
            memcpy(target + i * m, s->target + row * m, sizeof *target * (size_t)m);
            if (hide) target[i * m] = NAN;
        }
    }
    return TT_OK;
}
