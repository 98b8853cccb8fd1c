/* shapes: images of circles, squares and triangles on a noisy ground, and of each pixel what it
 * shows: for models that judge pixels.
 *
 * As everywhere in synth, a pure function of (key, row, element), and with nothing of libm but
 * square roots: the same bits on every processor. */
#include "data/source.h"

#include <math.h>
#include <string.h>

static const char *const names[TT_SHAPES] = {"ground", "circle", "square", "triangle"};

typedef struct figure {
    int kind;         /* 1 .. 3                                         */
    float x, y, size; /* centre; radius of the circle of the same area  */
    float cos, sin;   /* turned by                                      */
    float light[4];   /* by channel modulo 4, 0 to 1 */
} figure;

static bool covers(const figure *f, float x, float y)
{
    float dx = x - f->x, dy = y - f->y;
    float u = dx * f->cos + dy * f->sin, v = dy * f->cos - dx * f->sin;

    switch (f->kind) {
    case 1:
        return u * u + v * v <= f->size * f->size;
    case 2:
        return fabsf(u) <= 0.8862f * f->size && fabsf(v) <= 0.8862f * f->size;
    default: /* of equal sides: below the distance of its sides from the centre, thrice */
        return u <= 0.7776f * f->size && -0.5f * u + 0.8660254f * v <= 0.7776f * f->size &&
               -0.5f * u - 0.8660254f * v <= 0.7776f * f->size;
    }
}

/* Figure i of a row. Lighter than the ground, by a quarter at least. */
static figure draw(uint64_t key, uint64_t row, uint64_t i, int64_t height, int64_t width,
                   const float ground[4])
{
    float a[4], b[4], side = (float)(height < width ? height : width), t;
    figure f = {0};

    tt_uniform4(key, row, 4 * i + 1, a);
    tt_uniform4(key, row, 4 * i + 2, b);
    f.kind = 1 + (int)(a[0] * 3);
    f.size = side * (0.15f + 0.1f * a[1]);
    f.x = f.size + a[2] * ((float)width - 2 * f.size);
    f.y = f.size + a[3] * ((float)height - 2 * f.size);
    t = 2 * b[0] - 1; /* an angle of -90 to 90 degrees, without its sine */
    f.cos = (1 - t * t) / (1 + t * t);
    f.sin = 2 * t / (1 + t * t);
    tt_uniform4(key, row, 4 * i + 3, a);
    for (int c = 0; c < 4; c++) {
        float far = 0.25f + 0.25f * a[c];
        f.light[c] = ground[c] + far;
    }
    return f;
}

/* Would figure i lie on one before it, by more than a corner? Then it is left out: who could tell
 * what is below? */
static bool meets(const figure *f, int i)
{
    for (int k = 0; k < i; k++) {
        float dx = f[i].x - f[k].x, dy = f[i].y - f[k].y, near = f[i].size + f[k].size;
        if (dx * dx + dy * dy < near * near) return true;
    }
    return false;
}

static uint8_t byte_of(float v)
{
    return v <= 0 ? 0 : v >= 1 ? 255 : (uint8_t)(v * 255 + 0.5f);
}

/* One image, and its labels. */
static void paint(uint64_t key, uint64_t noise_key, uint64_t row, tt_shape s, float noise,
                  uint8_t *x, int32_t *label)
{
    int64_t channels = s.rank == 3 ? s.dim[0] : 1, height = s.dim[s.rank - 2],
            width = s.dim[s.rank - 1], plane = height * width;
    enum { MOST = 3 };
    figure f[MOST];
    float ground[4], few[4], four[4] = {0};
    int count = 0, most;

    tt_uniform4(key, row, 0, ground);
    for (int c = 0; c < 4; c++) ground[c] = 0.2f + 0.2f * ground[c];
    tt_uniform4(key, row, 4 * (MOST + 1), few);
    most = 1 + (int)(few[0] * MOST);
    for (int i = 0; i < most; i++) {
        f[count] = draw(key, row, (uint64_t)i, height, width, ground);
        if (!meets(f, count)) count++;
    }
    for (int64_t p = 0; p < plane; p++) { /* which of them, from 1; the later ones lie on top */
        label[p] = 0;
        for (int i = 0; i < count; i++)
            if (covers(&f[i], (float)(p % width) + 0.5f, (float)(p / width) + 0.5f))
                label[p] = i + 1;
    }
    for (int64_t e = 0; e < channels * plane; e++) {
        int64_t c = e / plane % 4;
        int32_t i = label[e % plane];
        if (e % 4 == 0) tt_normal4(noise_key, row, (uint64_t)e / 4, four);
        x[e] = byte_of((i ? f[i - 1].light[c] : ground[c]) + noise * four[e % 4]);
    }
    for (int64_t p = 0; p < plane; p++) label[p] = label[p] ? f[label[p] - 1].kind : 0;
}

tt_err tt_shapes_make(tt_source *s, uint64_t key, float noise)
{
    int64_t each = tt_shape_count(s->shape), plane;
    uint8_t *x;
    int32_t *label;
    tt_err err;

    plane = s->shape.dim[s->shape.rank - 2] * s->shape.dim[s->shape.rank - 1];
    if ((err = tt_source_block(s, s->kept, each, 1, &x)) ||
        (err = tt_source_block(s, s->kept, plane, sizeof *label, &label)))
        return err;
    uint64_t figures = tt_random_key(key, "figure"), grain = tt_random_key(key, "noise");
    for (int64_t r = 0; r < s->kept; r++)
        paint(figures, grain, (uint64_t)r, s->shape, noise, x + r * each, label + r * plane);
    s->keep = TT_KEEP_U8;
    s->bytes = s->pixels = true;
    s->u8 = x;
    s->label = label;
    s->labels = plane;
    s->classes = TT_SHAPES;
    s->class_name = names;
    return TT_OK;
}
