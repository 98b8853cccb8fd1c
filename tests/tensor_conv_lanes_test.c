/* Convolution and dense layers in the LANES layout against `ref`.
 *
 * All data are small integers, so sums are exact in any order and results must agree bit for bit;
 * ties in pooling windows and zeros before the relu are then common, too. */
#include "test.h"
#include "tensor/tensor.h"

/* ---- Small random numbers ---- */
static uint64_t seed;
static int pick_int(int lo, int hi) /* both included */
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return lo + (int)((seed >> 33) % (uint64_t)(hi - lo + 1));
}
static bool coin(void)
{
    return pick_int(0, 1);
}

/* ---- One layer, and what ref makes of it ---- */
typedef struct layer {
    tt_conv c;
    int n;
    bool want_dx, want_dw, dx_add, dw_add;
    int64_t x_size, y_size, z_size, w_size; /* of a sample; z: before pooling */
    float *x, *w, *b, *dy;                  /* PLAIN                          */
    float *y, *dx, *dw, *db;                /* as ref has them                */
    float *old_dx, *old_dw, *old_db;        /* what is added to               */
    uint8_t *pick;
} layer;

static void *take(size_t bytes) /* exactly so many, that a sanitizer sees the one too far */
{
    void *p = NULL;

    if (posix_memalign(&p, 64, bytes ? bytes : 1)) FAIL("no memory for %zu bytes", bytes);
    return p;
}

static float *integers(int64_t count, int most)
{
    float *p = take((size_t)count * sizeof *p);

    for (int64_t i = 0; i < count; i++) p[i] = (float)pick_int(-most, most);
    return p;
}

static float *copy(const float *from, int64_t count)
{
    float *p = take((size_t)count * sizeof *p);

    memcpy(p, from, (size_t)count * sizeof *p);
    return p;
}

static tt_window pool_window(const tt_conv *c)
{
    return (tt_window){.c = 1,
                       .h = c->win.oh,
                       .w = c->win.ow,
                       .o = 1,
                       .oh = c->poh,
                       .ow = c->pow_,
                       .kh = c->pkh,
                       .kw = c->pkw,
                       .sh = c->psh,
                       .sw = c->psw,
                       .dh = 1,
                       .dw = 1,
                       .groups = 1};
}

static void run_ref(layer *l)
{
    const tt_kernels *ref;
    tt_conv plain = l->c;
    float *z = take((size_t)(l->n * l->z_size) * sizeof *z);
    float *dz = copy(z, l->n * l->z_size), *dy = copy(l->dy, l->n * l->y_size);
    tt_conv_args a = {.n = l->n,
                      .x = l->x,
                      .w = l->w,
                      .b = l->b,
                      .y = z,
                      .dy = dz,
                      .dx = l->want_dx ? l->dx : NULL,
                      .dx_add = l->dx_add,
                      .dw = l->want_dw ? l->dw : NULL,
                      .db = l->want_dw ? l->db : NULL,
                      .dw_add = l->dw_add};
    tt_pool_args p = {.win = pool_window(&l->c),
                      .outer = (int64_t)l->n * l->c.win.o,
                      .inner = 1,
                      .x = z,
                      .y = l->y,
                      .pick = l->pick,
                      .dy = dy,
                      .dx = dz};

    EXPECT_OK(tt_kernels_find("ref", &ref));
    plain.layout = TT_PLAIN;
    plain.pool = false;
    plain.relu = l->c.relu && !l->c.pool;
    ref->conv_forward(&plain, &a);
    if (l->c.pool) {
        ref->maxpool_forward(&p);
        for (int64_t i = 0; l->c.relu && i < l->n * l->y_size; i++)
            if (l->y[i] <= 0) l->y[i] = dy[i] = 0, l->pick[i] = 255;
        ref->maxpool_backward(&p);
    } else {
        memcpy(l->y, z, (size_t)(l->n * l->y_size) * sizeof *z);
        memcpy(dz, dy, (size_t)(l->n * l->y_size) * sizeof *z);
    }
    ref->conv_backward(&plain, &a);
    free(z);
    free(dz);
    free(dy);
}

/* Sizes that follow from the window, data, and ref's results. */
static void layer_open(layer *l)
{
    tt_window *w = &l->c.win;

    l->c.layout = TT_LANES;
    w->groups = 1;
    l->x_size = (int64_t)w->c * w->h * w->w;
    l->z_size = (int64_t)w->o * w->oh * w->ow;
    l->y_size = l->c.pool ? (int64_t)w->o * l->c.poh * l->c.pow_ : l->z_size;
    l->w_size = (int64_t)w->o * w->c * w->kh * w->kw;
    l->x = integers(l->n * l->x_size, 4);
    l->w = integers(l->w_size, 3);
    l->b = l->c.bias ? integers(w->o, 5) : NULL;
    l->dy = integers(l->n * l->y_size, 3);
    l->y = integers(l->n * l->y_size, 9);
    l->pick = take((size_t)(l->n * l->y_size));
    l->old_dx = integers(l->n * l->x_size, 9);
    l->old_dw = integers(l->w_size, 9);
    l->old_db = integers(w->o, 9);
    l->dx = copy(l->old_dx, l->n * l->x_size);
    l->dw = copy(l->old_dw, l->w_size);
    l->db = copy(l->old_db, w->o);
    run_ref(l);
}

static void layer_close(layer *l)
{
    void *all[] = {l->x,      l->w,      l->b,      l->dy, l->y,  l->pick,
                   l->old_dx, l->old_dw, l->old_db, l->dx, l->dw, l->db};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static const char *layer_show(const layer *l, const tt_kernels *k)
{
    static char text[400];
    const tt_window *w = &l->c.win;

    snprintf(text, sizeof text,
             "%s n %d: %dx%dx%d -> %dx%dx%d, kernel %dx%d, stride %d,%d, padding %d,%d, dilation "
             "%d,%d%s%s%s, pool %dx%d stride %d,%d -> %dx%d",
             k->name, l->n, w->c, w->h, w->w, w->o, w->oh, w->ow, w->kh, w->kw, w->sh, w->sw, w->ph,
             w->pw, w->dh, w->dw, l->c.relu ? ", relu" : "", l->dx_add ? ", dx_add" : "",
             l->dw_add ? ", dw_add" : "", l->c.pool ? l->c.pkh : 1, l->c.pkw, l->c.psh, l->c.psw,
             l->c.poh, l->c.pow_);
    return text;
}

/* ---- Layouts ---- */
static int64_t lanes_count(const tt_kernels *k, int n, int64_t size)
{
    return (n + k->lanes - 1) / k->lanes * k->lanes * size;
}

static int64_t lanes_at(const tt_kernels *k, int64_t size, int n, int64_t i)
{
    return ((int64_t)(n / k->lanes) * size + i) * k->lanes + n % k->lanes;
}

static float *to_lanes(const tt_kernels *k, int n, int64_t size, const float *from, float padding)
{
    int64_t count = lanes_count(k, n, size);
    float *p = take((size_t)count * sizeof *p);

    for (int64_t i = 0; i < count; i++) p[i] = padding;
    for (int s = 0; s < n; s++)
        for (int64_t i = 0; i < size; i++) p[lanes_at(k, size, s, i)] = from[s * size + i];
    return p;
}

/* ---- The same by the kernels ---- */
typedef struct result {
    float *y, *dx, *dw, *db;
    uint8_t *pick;
} result;

static result run_lanes(const layer *l, const tt_kernels *k)
{
    const int64_t y_count = lanes_count(k, l->n, l->y_size);
    result r;
    float *x = to_lanes(k, l->n, l->x_size, l->x, 77);
    float *dy = to_lanes(k, l->n, l->y_size, l->dy, 0);
    float *packed = take(k->conv_packed(&l->c) * sizeof *packed);
    void *scratch = take(k->conv_scratch(&l->c, l->n));
    tt_conv_args a = {.n = l->n,
                      .x = x,
                      .w = l->w,
                      .b = l->b,
                      .packed = packed,
                      .dy = dy,
                      .dx_add = l->dx_add,
                      .dw_add = l->dw_add,
                      .scratch = scratch};

    memset(scratch, 0xff,
           k->conv_scratch(&l->c, l->n)); /* NaN: it must be written before it is read */
    r.y = take((size_t)y_count * sizeof *r.y);
    r.pick = take((size_t)y_count);
    r.dx = to_lanes(k, l->n, l->x_size, l->old_dx, 0);
    r.dw = copy(l->old_dw, l->w_size);
    r.db = copy(l->old_db, l->c.win.o);
    a.y = r.y;
    a.pick = l->c.pool ? r.pick : NULL;
    if (l->want_dx) a.dx = r.dx;
    if (l->want_dw) a.dw = r.dw, a.db = r.db;
    k->conv_pack(&l->c, l->w, packed);
    k->conv_forward(&l->c, &a);
    memset(scratch, 0xff, k->conv_scratch(&l->c, l->n));
    k->conv_backward(&l->c, &a);
    free(x);
    free(dy);
    free(packed);
    free(scratch);
    return r;
}

static void result_close(result *r)
{
    free(r->y);
    free(r->dx);
    free(r->dw);
    free(r->db);
    free(r->pick);
}

/* size < 0: one block of -size numbers that are not a batch. */
static void expect_same(const layer *l, const tt_kernels *k, const char *what, int64_t size,
                        const float *want, const float *got)
{
    int n = size < 0 ? 1 : l->n;

    for (int s = 0; s < n; s++)
        for (int64_t i = 0; i < llabs(size); i++) {
            float w = want[s * llabs(size) + i], g = got[size < 0 ? i : lanes_at(k, size, s, i)];

            if (w != g)
                FAIL("%s: %s of sample %d, element %lld: got %g, wanted %g", layer_show(l, k), what,
                     s, (long long)i, (double)g, (double)w);
        }
}

static void expect_padding(const layer *l, const tt_kernels *k, const result *r)
{
    for (int s = l->n; s % k->lanes; s++) {
        for (int64_t i = 0; i < l->y_size; i++)
            if (!isfinite(r->y[lanes_at(k, l->y_size, s, i)]))
                FAIL("%s: y is not finite in a padded lane", layer_show(l, k));
        for (int64_t i = 0; i < l->x_size; i++)
            if (r->dx[lanes_at(k, l->x_size, s, i)] != 0)
                FAIL("%s: dx is not zero in a padded lane", layer_show(l, k));
    }
}

/* Every table that knows the layout. */
static void expect_ref(layer *l)
{
    const tt_kernels *const *all;
    int count = tt_kernels_all(&all);

    layer_open(l);
    for (int i = 0; i < count; i++) {
        const tt_kernels *k = all[i];
        result r;

        if (!k->lanes) continue;
        r = run_lanes(l, k);
        expect_same(l, k, "y", l->y_size, l->y, r.y);
        for (int s = 0; l->c.pool && s < l->n; s++)
            for (int64_t e = 0; e < l->y_size; e++)
                if (l->pick[s * l->y_size + e] != r.pick[lanes_at(k, l->y_size, s, e)])
                    FAIL("%s: pick of sample %d, element %lld: got %d, wanted %d", layer_show(l, k),
                         s, (long long)e, r.pick[lanes_at(k, l->y_size, s, e)],
                         l->pick[s * l->y_size + e]);
        expect_same(l, k, "dx", l->x_size, l->dx, r.dx);
        expect_same(l, k, "dw", -l->w_size, l->dw, r.dw);
        expect_same(l, k, "db", -l->c.win.o, l->db, r.db);
        expect_padding(l, k, &r);
        result_close(&r);
    }
    layer_close(l);
}

/* Output size of a window over `size` and what is padded. */
static int out_size(int size, int before, int after, int k, int dil, int stride)
{
    return (size + before + after - (k - 1) * dil - 1) / stride + 1;
}

static layer plain_layer(int n, int c, int h, int w, int o, int kh, int kw, int ph, int pw)
{
    layer l = {.n = n, .want_dx = true, .want_dw = true};

    l.c.bias = true;
    l.c.win = (tt_window){.c = c,
                          .h = h,
                          .w = w,
                          .o = o,
                          .kh = kh,
                          .kw = kw,
                          .sh = 1,
                          .sw = 1,
                          .ph = ph,
                          .pw = pw,
                          .dh = 1,
                          .dw = 1,
                          .oh = out_size(h, ph, ph, kh, 1, 1),
                          .ow = out_size(w, pw, pw, kw, 1, 1)};
    return l;
}

static void pool_by(layer *l, int kh, int kw, int sh, int sw)
{
    tt_conv *c = &l->c;

    c->pool = true;
    c->pkh = kh, c->pkw = kw, c->psh = sh, c->psw = sw;
    c->poh = (c->win.oh - kh) / sh + 1;
    c->pow_ = (c->win.ow - kw) / sw + 1;
}

/* A window that fits, of any stride, padding and dilation; maybe pooling and relu behind it. */
static layer random_layer(void)
{
    static const int windows[][2] = {{2, 2}, {2, 2}, {3, 3}, {2, 1},
                                     {1, 2}, {1, 4}, {4, 3}, {1, 1}};
    layer l = {.n = pick_int(1, 40),
               .want_dx = coin() || coin(),
               .want_dw = coin() || coin(),
               .dx_add = coin(),
               .dw_add = coin()};
    tt_window *w = &l.c.win;
    int after;

    w->c = pick_int(1, coin() ? 5 : 19), w->o = pick_int(1, coin() ? 7 : 27);
    w->kh = pick_int(1, coin() ? 5 : 9), w->kw = coin() ? w->kh : pick_int(1, 9);
    w->sh = pick_int(1, coin() ? 1 : 3), w->sw = coin() ? w->sh : pick_int(1, 3);
    w->dh = pick_int(1, coin() ? 1 : 3), w->dw = coin() ? w->dh : pick_int(1, 2);
    w->ph = coin() ? 0 : pick_int(0, w->kh), w->pw = coin() ? 0 : pick_int(0, w->kw);
    w->h = (w->kh - 1) * w->dh + pick_int(1, 12), w->w = (w->kw - 1) * w->dw + pick_int(1, 12);
    after = pick_int(0, 2);
    w->oh = out_size(w->h, w->ph, w->ph + after, w->kh, w->dh, w->sh);
    w->ow = out_size(w->w, w->pw, w->pw + after, w->kw, w->dw, w->sw);
    l.c.bias = coin(), l.c.relu = coin();
    if (coin()) {
        const int *p = windows[pick_int(0, 7)];

        if (p[0] <= w->oh && p[1] <= w->ow)
            pool_by(&l, p[0], p[1], p[0] + !pick_int(0, 5), p[1] + !pick_int(0, 5));
    }
    return l;
}

TT_TEST(conv_lanes, random_windows_agree_with_ref)
{
    seed = 1;
    for (int i = 0; i < (TT_TEST_SLOW ? 100 : 400); i++) {
        layer l = random_layer();

        expect_ref(&l);
    }
}

/* Weight gradients behind pooling have a way of their own for small windows; these take it. */
TT_TEST(conv_lanes, pooled_layers_of_usual_nets_agree_with_ref)
{
    static const struct {
        int n, c, size, o, k, pad, pool;
    } usual[] = {{19, 1, 28, 10, 5, 0, 2}, {19, 10, 12, 20, 5, 0, 2}, {9, 3, 32, 12, 3, 1, 2},
                 {9, 12, 16, 24, 3, 1, 2}, {5, 16, 12, 33, 7, 3, 3},  {33, 2, 13, 7, 2, 0, 2},
                 {17, 40, 8, 6, 3, 1, 2},  {8, 130, 6, 5, 9, 4, 2},   {20, 6, 14, 16, 5, 0, 2}};

    seed = 2;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        layer l = plain_layer(usual[i].n, usual[i].c, usual[i].size, usual[i].size, usual[i].o,
                              usual[i].k, usual[i].k, usual[i].pad, usual[i].pad);

        l.c.relu = true;
        pool_by(&l, usual[i].pool, usual[i].pool, usual[i].pool, usual[i].pool);
        expect_ref(&l);
    }
}

/* More sums than are kept at once. */
TT_TEST(conv_lanes, many_channels_agree_with_ref)
{
    layer l = plain_layer(3, 310, 4, 4, 40, 3, 3, 1, 1);

    seed = 3;
    expect_ref(&l);
    l = plain_layer(3, 150, 4, 4, 90, 3, 3, 1, 1);
    pool_by(&l, 2, 2, 2, 2);
    expect_ref(&l);
}

TT_TEST(conv_lanes, dense_layers_agree_with_ref)
{
    seed = 4;
    for (int i = 0; i < 150; i++) {
        layer l = plain_layer(pick_int(1, 150), pick_int(1, coin() ? 40 : 600), 1, 1,
                              pick_int(1, coin() ? 20 : 300), 1, 1, 0, 0);

        l.c.bias = coin(), l.c.relu = coin();
        l.want_dx = coin() || coin(), l.want_dw = coin() || coin();
        l.dx_add = coin(), l.dw_add = coin();
        expect_ref(&l);
    }
}

/* Sums of fractions depend on the order, which must not depend on the run or on what scratch holds.
 */
TT_TEST(conv_lanes, the_same_bits_twice)
{
    const tt_kernels *const *all;
    int count = tt_kernels_all(&all);

    seed = 5;
    for (int i = 0; i < 30; i++) {
        layer l = i % 3 ? random_layer() : plain_layer(37, 301, 1, 1, 77, 1, 1, 0, 0);

        layer_open(&l);
        for (int64_t e = 0; e < l.n * l.x_size; e++) l.x[e] *= 0.37f;
        for (int64_t e = 0; e < l.n * l.y_size; e++) l.dy[e] *= 0.73f;
        for (int t = 0; t < count; t++) {
            result a, b;

            if (!all[t]->lanes) continue;
            a = run_lanes(&l, all[t]);
            b = run_lanes(&l, all[t]);
            EXPECT(!memcmp(a.y, b.y, (size_t)lanes_count(all[t], l.n, l.y_size) * sizeof *a.y));
            EXPECT(!memcmp(a.dx, b.dx, (size_t)lanes_count(all[t], l.n, l.x_size) * sizeof *a.dx));
            EXPECT(!memcmp(a.dw, b.dw, (size_t)l.w_size * sizeof *a.dw));
            EXPECT(!memcmp(a.db, b.db, (size_t)l.c.win.o * sizeof *a.db));
            result_close(&a);
            result_close(&b);
        }
        layer_close(&l);
    }
}

/* A run that has gone wrong must show it: neither pooling nor relu hides a NaN. */
TT_TEST(conv_lanes, a_nan_comes_through)
{
    const tt_kernels *const *all;
    int count = tt_kernels_all(&all);

    seed = 6;
    for (int pool = 0; pool < 2; pool++)
        for (int at = 0; at < 4; at++) {
            layer l = plain_layer(4, 1, 2, 2, 1, 1, 1, 0, 0);

            l.c.relu = true;
            if (pool) pool_by(&l, 2, 2, 2, 2);
            layer_open(&l);
            l.w[0] = 1;
            l.x[at] = NAN; /* of sample 0 */
            for (int t = 0; t < count; t++) {
                result r;

                if (!all[t]->lanes) continue;
                r = run_lanes(&l, all[t]);
                EXPECT(isnan(r.y[lanes_at(all[t], l.y_size, 0, pool ? 0 : at)]));
                EXPECT(!isnan(r.y[lanes_at(all[t], l.y_size, 1, 0)]));
                result_close(&r);
            }
            layer_close(&l);
        }
}
