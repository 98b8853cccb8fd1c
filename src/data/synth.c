/* Datasets made on the spot: for benchmarks (images, vectors, tokens: noise) and for
 * tests and examples that must be able to learn (blobs, regression, clicks, shapes).
 *
 * Every value is a pure function of (seed, set, row, element). Noise is kept as a pool of distinct
 * rows that repeat, so a benchmark of a billion samples opens at once and gathers like a real
 * dataset. */
#include "data/source.h"

#include <math.h>
#include <string.h>

enum { IMAGES, VECTORS, REGRESSION, BLOBS, CLICKS, SHAPES, TOKENS };

typedef struct synth_keys {
    int format, kind;
    int64_t count, classes, seed, skew;
    double noise;
} synth_keys;

#define POOL_ROWS  4096
#define CLICK_ROWS (1 << 18) /* more than a table has rows that are seen often */
#define POOL_BYTES (256ll << 20)

static const tt_key keys[] = {
    TT_FORMAT_KEY(synth_keys),
    {"kind", TT_CHOICE, offsetof(synth_keys, kind), "blobs", 0, 0,
     "images|vectors|regression|blobs|clicks|shapes|tokens",
     "images, vectors: noise, random labels; blobs, regression, clicks: can be learnt; clicks has "
     "ids, too; shapes: circles, squares and triangles, a label for each pixel; tokens: a text of "
     "noise"},
    {"count", TT_INT, offsetof(synth_keys, count), "1000", 1, 1e15, NULL, "number of samples"},
    {"noise", TT_NUMBER, offsetof(synth_keys, noise), "0.1", 0, 1e6, NULL,
     "blobs: deviation around a centre; regression: of the target; shapes: of pixels from 0 to 1"},
    {"skew", TT_INT, offsetof(synth_keys, skew), "2", 0, 20, NULL,
     "clicks: how much more often every other category has its first values; 0: not at all"},
    {"classes", TT_INT, offsetof(synth_keys, classes), "0", 0, 1e6, NULL,
     "number of classes; 0: as many as the model has"},
    {"seed", TT_INT, offsetof(synth_keys, seed), "0", 0, 9e15, NULL,
     "another seed gives other centres and other samples"},
};

/* n standard normals of the stream `key`, row r. */
static void normals(uint64_t key, uint64_t r, int64_t n, float scale, float *out)
{
    float four[4];

    for (int64_t i = 0; i < n; i += 4) {
        tt_normal4(key, r, (uint64_t)i / 4, four);
        for (int64_t k = 0; k < 4 && i + k < n; k++) out[i + k] = scale * four[k];
    }
}

static uint64_t pick(uint64_t key, uint64_t r, uint64_t n)
{
    tt_u128 v = tt_philox(key, r, 0);

    return ((uint64_t)v.v[0] << 32 | v.v[1]) % n;
}

static tt_err make_x(tt_source *s, int kind, uint64_t key, int64_t features)
{
    uint8_t *bytes;
    float *x;
    tt_err err;

    if (kind != IMAGES) {
        s->keep = TT_KEEP_F32;
        if ((err = tt_source_block(s, s->kept, features, sizeof *x, &x))) return err;
        for (int64_t r = 0; r < s->kept; r++)
            normals(key, (uint64_t)r, features, 1, x + r * features);
        s->f32 = x;
        return TT_OK;
    }
    s->keep = TT_KEEP_U8;
    s->bytes = s->pixels = true;
    if ((err = tt_source_block(s, s->kept, features, 1, &bytes))) return err;
    for (int64_t r = 0; r < s->kept; r++)
        for (int64_t i = 0; i < features; i += 16) {
            tt_u128 v = tt_philox(key, (uint64_t)r, (uint64_t)i / 16);
            memcpy(bytes + r * features + i, &v, (size_t)(features - i < 16 ? features - i : 16));
        }
    s->u8 = bytes;
    return TT_OK;
}

static tt_err make_labels(tt_source *s, uint64_t key, int64_t classes)
{
    int32_t *label;
    tt_err err;

    if ((err = tt_source_block(s, s->kept, 1, sizeof *label, &label))) return err;
    for (int64_t r = 0; r < s->kept; r++)
        label[r] = (int32_t)pick(key, (uint64_t)r, (uint64_t)classes);
    s->label = label;
    return TT_OK;
}

/* x = centre of its class + noise. */
static void shift_to_centres(tt_source *s, uint64_t centres, int64_t features, float noise)
{
    float *x = (float *)s->f32, four[4];

    for (int64_t r = 0; r < s->kept; r++)
        for (int64_t i = 0; i < features; i += 4) {
            tt_normal4(centres, (uint64_t)s->label[r], (uint64_t)i / 4, four);
            for (int64_t k = 0; k < 4 && i + k < features; k++)
                x[r * features + i + k] = four[k] + noise * x[r * features + i + k];
        }
}

/* target = W x + b + noise, W scaled so that targets have deviation 1 or so. */
static tt_err make_linear(tt_source *s, uint64_t weights, uint64_t noise_key, int64_t features,
                          int64_t m, float noise)
{
    float *target, *w, four[4];
    tt_err err;

    if ((err = tt_source_block(s, s->kept, m, sizeof *target, &target))) return err;
    if ((err = tt_source_block(s, m, features, sizeof *w, &w))) return err;
    for (int64_t o = 0; o < m; o++)
        normals(weights, (uint64_t)o, features, 1 / sqrtf((float)features), w + o * features);
    for (int64_t r = 0; r < s->kept; r++)
        for (int64_t o = 0; o < m; o++) {
            double sum = 0;
            for (int64_t i = 0; i < features; i++)
                sum += (double)w[o * features + i] * s->f32[r * features + i];
            tt_normal4(noise_key, (uint64_t)r, (uint64_t)o, four);
            target[r * m + o] = (float)(sum + (double)noise * four[0] + 0.5);
        }
    s->target = target;
    s->targets = m;
    return TT_OK;
}

static tt_err make_random_targets(tt_source *s, uint64_t key, int64_t m)
{
    float *target;
    tt_err err;

    if ((err = tt_source_block(s, s->kept, m, sizeof *target, &target))) return err;
    for (int64_t r = 0; r < s->kept; r++) normals(key, (uint64_t)r, m, 1, target + r * m);
    s->target = target;
    s->targets = m;
    return TT_OK;
}

/* ---- clicks: rows as Criteo's are, and a hidden model that clicks ---- */

enum { ROWS_UNKNOWN = 1000 }; /* of a table nobody has told the size of */

typedef struct clicker {
    const tt_data_want *want;
    int64_t features, skew;
    uint64_t numbers, categories, click; /* keys of this set's rows ...            */
    uint64_t weight, taste;              /* ... and of the model that both share   */
} clicker;

/* Logarithms of counts: most are small, some are 0. */
static double make_numbers(const clicker *c, uint64_t r, float *x)
{
    double logit = 0;
    float z[4], w[4];

    for (int64_t i = 0; i < c->features; i++) {
        if (i % 4 == 0) {
            tt_normal4(c->numbers, r, (uint64_t)i / 4, z);
            tt_normal4(c->weight, 0, (uint64_t)i / 4, w);
        }
        x[i] = z[i % 4] < -1 ? 0 : 1 + z[i % 4];
        logit += (double)w[i % 4] * (double)(x[i] - 1);
    }
    return c->features ? logit / sqrt((double)c->features) : 0;
}

/* The row of a table: all as often, or u^(1 + skew) of the way through it. */
static int32_t make_category(const clicker *c, int64_t k, float u)
{
    int64_t rows = c->want->id_rows && c->want->id_rows[k] ? c->want->id_rows[k] : ROWS_UNKNOWN;
    double at = u;
    int64_t id;

    for (int64_t i = 0; i < c->skew && k % 2; i++) at *= u;
    id = (int64_t)(at * (double)rows);
    return (int32_t)(id < rows ? id : rows - 1);
}

/* Each value of a category has a liking of its own, and a side: neighbours of one side click more
 * often than a sum of likings would tell. */
static double make_categories(const clicker *c, uint64_t r, int32_t *ids)
{
    double logit = 0, side_before = 0;
    float u[4], taste[4];

    for (int64_t k = 0; k < c->want->ids; k++) {
        if (k % 4 == 0) tt_uniform4(c->categories, r, (uint64_t)k / 4, u);
        ids[k] = make_category(c, k, u[k % 4]);
        tt_uniform4(c->taste, (uint64_t)k, (uint64_t)ids[k], taste);
        double side = taste[1] < 0.5f ? -1 : 1;
        logit += 4 * ((double)taste[0] - 0.5) + side * side_before;
        side_before = side;
    }
    return logit / sqrt((double)c->want->ids);
}

/* About a quarter of the rows are clicked. */
static tt_err make_clicks(tt_source *s, const clicker *c)
{
    int32_t *ids = NULL, *label;
    float *x, u[4];
    tt_err err;

    if ((err = tt_source_block(s, s->kept, c->features, sizeof *x, &x))) return err;
    if (c->want->ids && (err = tt_source_block(s, s->kept, c->want->ids, sizeof *ids, &ids)))
        return err;
    if ((err = tt_source_block(s, s->kept, 1, sizeof *label, &label))) return err;
    for (int64_t r = 0; r < s->kept; r++) {
        double logit = -1.4 + make_numbers(c, (uint64_t)r, x + r * c->features);
        if (ids) logit += make_categories(c, (uint64_t)r, ids + r * c->want->ids);
        tt_uniform4(c->click, (uint64_t)r, 0, u);
        label[r] = u[0] < 1 / (1 + exp(-logit));
    }
    s->keep = TT_KEEP_F32;
    s->f32 = x;
    s->ids = ids;
    s->ids_each = ids ? c->want->ids : 0;
    s->label = label;
    s->classes = 2;
    return TT_OK;
}

static int64_t rows_to_keep(const synth_keys *k, int64_t features)
{
    int64_t bytes = features * (k->kind == IMAGES ? 1 : (int64_t)sizeof(float));
    int64_t most = POOL_BYTES / (bytes > 0 ? bytes : 1);

    if (k->kind == BLOBS || k->kind == REGRESSION || k->kind == SHAPES) return k->count;
    if (k->kind == CLICKS) return k->count < CLICK_ROWS ? k->count : CLICK_ROWS;
    if (most > POOL_ROWS) most = POOL_ROWS;
    if (most < 1) most = 1;
    return k->count < most ? k->count : most;
}

static tt_err make_shapes(tt_node *map, const tt_source_ctx *c, const synth_keys *k, uint64_t key,
                          tt_source *s)
{
    if (s->shape.rank != 2 && s->shape.rank != 3)
        return tt_node_fail(map, "kind shapes makes images: the model's input must be [channels, "
                                 "height, width]");
    if ((c->want->classes > 0 && c->want->classes < TT_SHAPES) ||
        (k->classes > 0 && k->classes < TT_SHAPES))
        return tt_node_fail(map,
                            "kind shapes has %d classes, ground, circle, square and triangle, but "
                            "there are %lld",
                            TT_SHAPES, (long long)(k->classes > 0 ? k->classes : c->want->classes));
    if (c->want->targets > 0)
        return tt_node_fail(map, "kind shapes makes labels, but the loss wants targets");
    return tt_shapes_make(s, key, (float)k->noise);
}

/* Windows as long as the model's context; those beyond the pool are the first ones again. */
static tt_err make_tokens(tt_node *map, const tt_source_ctx *c, const synth_keys *k, uint64_t key,
                          tt_source *s)
{
    int64_t window = c->want->ids, rows = k->classes, count = k->count;
    uint16_t *token;
    tt_err err;

    if (!window || c->want->labels != window)
        return tt_node_fail(map, "kind tokens makes texts: the model must take tokens, "
                                 "input: {ids: N}, and its loss judge each by the next");
    for (int64_t i = 0; i < window && c->want->id_rows; i++)
        if (c->want->id_rows[i] && c->want->id_rows[i] < rows) rows = c->want->id_rows[i];
    if (rows > UINT16_MAX) rows = UINT16_MAX;
    if (count > POOL_ROWS) count = POOL_ROWS;
    s->tokens = count * window + 1;
    if ((err = tt_tokens_begin(s, c, (size_t)s->tokens, &token))) return err;
    for (int64_t i = 0; i < s->tokens; i++)
        token[i] = (uint16_t)pick(key, (uint64_t)i, (uint64_t)rows);
    s->text_bytes = 0;
    s->classes = (int)rows;
    s->nameless = true;
    if ((err = tt_tokens_windows(s, window))) return err;
    s->count = k->count;
    return TT_OK;
}

tt_err tt_source_synth(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    static const char *const kinds[] = {"images", "vectors", "regression", "blobs",
                                        "clicks", "shapes",  "tokens"};
    int64_t features = tt_shape_count(c->want->input), m = c->want->targets;
    synth_keys k;
    uint64_t shared, own;
    tt_err err;

    if ((err = tt_node_read(map, what, keys, TT_COUNT(keys), &k)) || c->look) return err;
    /* Centres and weights are shared by training and validation set, samples are not. */
    shared = tt_random_key((uint64_t)k.seed, kinds[k.kind]);
    own = tt_random_key(shared, c->split == TT_VAL ? "val" : "train");
    s->name = tt_arena_printf(s->arena, "synthetic %s", kinds[k.kind]);
    s->shape = c->want->input;
    s->count = k.count;
    s->kept = rows_to_keep(&k, features);
    if (k.classes == 0) k.classes = c->want->classes;
    if (c->want->classes > 0 && k.classes > c->want->classes)
        return tt_node_fail(tt_node_get(map, "classes"), "%lld classes, but the model has %d",
                            (long long)k.classes, c->want->classes);
    if (k.kind == REGRESSION && c->want->classes > 0)
        return tt_node_fail(map, "kind regression makes targets, but the loss wants labels; "
                                 "use kind: blobs");
    if (k.kind == CLICKS) {
        const clicker who = {.want = c->want,
                             .features = features,
                             .skew = k.skew,
                             .numbers = tt_random_key(own, "numbers"),
                             .categories = tt_random_key(own, "categories"),
                             .click = tt_random_key(own, "click"),
                             .weight = tt_random_key(shared, "weight"),
                             .taste = tt_random_key(shared, "taste")};
        return make_clicks(s, &who);
    }
    if (k.kind == SHAPES) return make_shapes(map, c, &k, own, s);
    if (k.kind == TOKENS) return make_tokens(map, c, &k, tt_random_key(own, "token"), s);
    if (k.kind == BLOBS && k.classes == 0) k.classes = 2;
    if ((err = make_x(s, k.kind, tt_random_key(own, "x"), features))) return err;
    if (k.classes > 0 && k.kind != REGRESSION)
        if ((err = make_labels(s, tt_random_key(own, "label"), k.classes))) return err;
    if (k.kind == BLOBS)
        shift_to_centres(s, tt_random_key(shared, "centre"), features, (float)k.noise);
    if (m <= 0) return TT_OK;
    if (k.kind == REGRESSION)
        return make_linear(s, tt_random_key(shared, "weight"), tt_random_key(own, "noise"),
                           features, m, (float)k.noise);
    if (k.kind == BLOBS) return TT_OK; /* one target: the label becomes it */
    return make_random_targets(s, tt_random_key(own, "target"), m);
}
