/* Datasets: the job's `data` map, splitting, and what is done to values. */
#define _GNU_SOURCE
#include "data/source.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct data_keys {
    const char *dir, *scale;
    tt_node *train, *val, *normalize, *augment;
    bool shuffle;
    int shards;
    const char *threads;
    int64_t prefetch;
    double unlabelled;
} data_keys;

static const tt_key keys[] = {
    {"dir", TT_STRING, offsetof(data_keys, dir), TT_DATA_DIR, 0, 0, NULL,
     "folder of the files; $NAME is taken from the environment"},
    {"train", TT_NODE, offsetof(data_keys, train), NULL, 0, 0, NULL,
     "the training set: {format: ..., and the format's keys}"},
    {"val", TT_NODE, offsetof(data_keys, val), "-", 0, 0, NULL,
     "the validation set, keys as in train; or {split: 0.1} of the training set"},
    {"normalize", TT_NODE, offsetof(data_keys, normalize), "-", 0, 0, NULL,
     "auto, or {mean: ..., std: ...}: after scaling; one number or one per channel, or auto"},
    {"scale", TT_STRING, offsetof(data_keys, scale), "auto", 0, 0, NULL,
     "values are multiplied by it; auto: 1/255 for images of bytes, else 1, each file by its own "
     "kind"},
    {"augment", TT_NODE, offsetof(data_keys, augment), "-", 0, 0, NULL,
     "{crop: pixels, flip: true}: random shifts and mirroring of training images"},
    {"shards", TT_CHOICE, offsetof(data_keys, shards), "same", 0, 0, "same|local",
     "same: all hosts see the same rows; local: each host has rows of its own"},
    {"shuffle", TT_BOOL, offsetof(data_keys, shuffle), "true", 0, 0, NULL,
     "each pass over the training set in another order"},
    {"threads", TT_STRING, offsetof(data_keys, threads), "auto", 0, 0, NULL,
     "threads that make batches ahead; 0: none; auto: 1, unless the one that trains has no other "
     "CPU beside it"},
    {"prefetch", TT_INT, offsetof(data_keys, prefetch), "4", 1, 1024, NULL, "batches made ahead"},
    {"unlabelled", TT_NUMBER, offsetof(data_keys, unlabelled), "0", 0, 1, NULL,
     "fraction of training samples whose label is hidden"},
};

/* ---- Values: x = a * raw + b ---- */

/* The source whose shape and names count for both. */
static const tt_source *leading(const tt_data *d)
{
    return d->train ? d->train : d->val;
}

/* Channels and planes: of the file's shape if that is an image, else of the model's input. */
static void set_geometry(tt_data *d)
{
    const tt_source *leader = leading(d);
    tt_shape s = leader->shape.rank > 1 ? leader->shape : d->want.input;

    d->features = tt_shape_count(d->want.input);
    d->channels = s.rank >= 3 ? s.dim[0] : s.rank == 2 ? 1 : d->features;
    d->plane = d->channels ? d->features / d->channels : 1;
    if (s.rank == 2 || s.rank == 3) {
        d->height = s.dim[s.rank - 2];
        d->width = s.dim[s.rank - 1];
    }
}

static int64_t rows_in(const tt_part *p)
{
    return p->count < p->src->kept ? p->count : p->src->kept;
}

/* Sums of v - about[c], to the power of 1 or 2, over the training samples. */
static void add_up(const tt_data *d, const double *about, int power, double *sum)
{
    const tt_part *p = &d->part[TT_TRAIN];
    const tt_source *s = p->src;
    int64_t n = rows_in(p);

    for (int64_t c = 0; c < d->channels; c++) sum[c] = 0;
    if (s->keep == TT_KEEP_SPARSE) /* first as if all were 0, then correct the entries */
        for (int64_t c = 0; c < d->channels; c++)
            sum[c] = (double)n * (double)d->plane * (power == 1 ? -about[c] : about[c] * about[c]);
    for (int64_t i = 0; i < n; i++) {
        int64_t r = tt_part_row(p, i), at = r * d->features;
        if (s->keep == TT_KEEP_SPARSE) {
            for (int64_t k = s->row[r]; k < s->row[r + 1]; k++) {
                int64_t c = s->col[k] / d->plane;
                double v = s->val[k] - about[c];
                sum[c] += power == 1 ? s->val[k] : v * v - about[c] * about[c];
            }
            continue;
        }
        for (int64_t c = 0; c < d->channels; c++)
            for (int64_t k = 0; k < d->plane; k++, at++) {
                double v = (s->keep == TT_KEEP_U8 ? s->u8[at] : s->f32[at]) - about[c];
                sum[c] += power == 1 ? v : v * v;
            }
    }
}

void tt_data_stats(const tt_data *d, double *mean, double *deviation)
{
    double n = (double)rows_in(&d->part[TT_TRAIN]) * (double)d->plane;

    for (int64_t c = 0; c < d->channels; c++) mean[c] = 0;
    add_up(d, mean, 1, deviation);
    for (int64_t c = 0; c < d->channels; c++) mean[c] = deviation[c] / n;
    add_up(d, mean, 2, deviation); /* about the mean: no cancellation */
    for (int64_t c = 0; c < d->channels; c++) {
        deviation[c] = sqrt(deviation[c] > 0 ? deviation[c] / n : 0);
        if (deviation[c] < 1e-12) deviation[c] = 1; /* a constant channel stays one */
    }
}

static bool says(const tt_node *n, const char *word)
{
    return n && n->kind == TT_SCALAR && !n->quoted && !strcmp(n->text, word);
}

/* `mean` or `std`: auto leaves out[] alone, else one number or one per channel. */
static tt_err read_numbers(const tt_data *d, tt_node *n, const char *what, double *out)
{
    tt_key key = {what, TT_NUMBERS, 0, NULL, 0, 0, NULL, ""};
    tt_numbers v;
    tt_err err;

    if (says(n, "auto")) return TT_OK;
    if ((err = tt_node_value(n, what, &key, &v))) return err;
    if (v.count != 1 && v.count != d->channels)
        return tt_node_fail(n, "%s: %d numbers for %lld channels", what, v.count,
                            (long long)d->channels);
    for (int64_t c = 0; c < d->channels; c++) out[c] = v.item[v.count == 1 ? 0 : c];
    return TT_OK;
}

typedef struct moments {
    double *mean, *std; /* (channels), of scaled values */
} moments;

static tt_err read_normalize(const tt_data *d, tt_node *n, moments *m)
{
    struct normalize_keys {
        tt_node *mean, *std;
    } k;
    static const tt_key normalize_keys[] = {
        {"mean", TT_NODE, offsetof(struct normalize_keys, mean), NULL, 0, 0, NULL,
         "subtracted: auto, a number, or one per channel"},
        {"std", TT_NODE, offsetof(struct normalize_keys, std), NULL, 0, 0, NULL,
         "divided by: auto, a number, or one per channel"},
    };
    tt_err err;

    if (says(n, "auto")) return TT_OK;
    if (n->kind != TT_MAP)
        return tt_node_fail(n, "normalize must be auto or {mean: ..., std: ...}");
    if ((err = tt_node_read(n, "normalize", normalize_keys, TT_COUNT(normalize_keys), &k)))
        return err;
    if ((err = read_numbers(d, k.mean, "mean", m->mean))) return err;
    if ((err = read_numbers(d, k.std, "std", m->std))) return err;
    for (int64_t c = 0; c < d->channels; c++)
        if (!(m->std[c] > 0)) return tt_node_fail(k.std, "std must be above 0");
    return TT_OK;
}

static bool normalizes(const data_keys *k)
{
    return k->normalize && !says(k->normalize, "none") && !says(k->normalize, "false");
}

/* Going over all samples takes a while: only where a number is not given. */
static bool wants_stats(const tt_node *n)
{
    return n->kind != TT_MAP || says(tt_node_get(n, "mean"), "auto") ||
           says(tt_node_get(n, "std"), "auto");
}

/* What brings a file's numbers to those the model sees: each file by its own kind. Bytes in plain
 * rows do not tell whether they are pixels; they are if the training set's are. */
static double natural_scale(const tt_data *d, const tt_source *s)
{
    bool pixels = s->pixels || (s->bytes && d->train && d->train->pixels);

    return pixels ? 1.0 / 255 : 1;
}

static tt_err read_scale(tt_node *map, const data_keys *k, double *fixed)
{
    *fixed = 0;
    if (!strcmp(k->scale, "auto") || (tt_parse_number(k->scale, fixed) && *fixed != 0))
        return TT_OK;
    return tt_node_fail(tt_node_get(map, "scale"), "scale must be auto or a number other than 0");
}

static tt_err read_flow(tt_node *map, const data_keys *k, tt_data_flow *flow)
{
    int64_t threads = TT_THREADS_AUTO;

    if (strcmp(k->threads, "auto") &&
        !(tt_parse_int(k->threads, &threads) && threads >= 0 && threads <= 256))
        return tt_node_fail(tt_node_get(map, "threads"), "threads must be auto or 0 to 256");
    *flow = (tt_data_flow){k->shuffle, (int)threads, (int)k->prefetch, k->shards == 1};
    return TT_OK;
}

static double *take_doubles(tt_data *d)
{
    return tt_arena_take(d->arena, (size_t)d->channels * sizeof(double), sizeof(double));
}

/* Goes over all samples, unless another process has, or a checkpoint says it. */
static tt_err need_stats(tt_data *d)
{
    double *mean, *deviation;

    if (d->mean) return TT_OK;
    d->mean = mean = take_doubles(d);
    d->deviation = deviation = take_doubles(d);
    if (!d->part[TT_TRAIN].src) return tt_data_recall_stats(d, mean, deviation);
    tt_data_stats(d, mean, deviation);
    return TT_OK;
}

static tt_err set_values(tt_data *d, tt_node *map, const data_keys *k)
{
    moments m = {take_doubles(d), take_doubles(d)};
    float *b = tt_arena_take(d->arena, (size_t)d->channels * sizeof *b, 64);
    const bool *standardise = d->train ? d->train->standardise : NULL;
    bool normalize = normalizes(k);
    double fixed, scale;
    tt_err err;

    if ((err = read_scale(map, k, &fixed))) return err;
    if (leading(d)->keep == TT_KEEP_TOKENS && (normalize || fixed != 0))
        return tt_node_fail(normalize ? k->normalize : tt_node_get(map, "scale"),
                            "%s is for numbers, and %s has tokens",
                            normalize ? "normalize" : "scale", leading(d)->name);
    if (normalize && standardise)
        return tt_node_fail(k->normalize,
                            "columns have a normalize of their own; give one of the two");
    if (standardise || (normalize && wants_stats(k->normalize))) {
        scale = fixed != 0 ? fixed : natural_scale(d, d->train);
        if ((err = need_stats(d))) return err;
        for (int64_t c = 0; c < d->channels; c++) {
            m.mean[c] = d->mean[c] * scale;
            m.std[c] = d->deviation[c] * fabs(scale);
        }
    }
    if (normalize && (err = read_normalize(d, k->normalize, &m))) return err;
    for (int split = 0; split < 2; split++) {
        tt_part *p = &d->part[split];
        float *a = tt_arena_take(d->arena, (size_t)d->channels * sizeof *a, 64);
        if (!p->src) continue;
        scale = fixed != 0 ? fixed : natural_scale(d, p->src);
        for (int64_t c = 0; c < d->channels; c++) {
            bool on = normalize || (standardise && standardise[c]);
            a[c] = (float)(on ? scale / m.std[c] : scale);
            b[c] = (float)(on ? -m.mean[c] / m.std[c] : 0);
        }
        p->a = a;
    }
    d->b = b;
    return TT_OK;
}

static tt_err read_augment(tt_data *d, tt_node *n)
{
    struct augment_keys {
        int64_t crop;
        bool flip;
    } k;
    static const tt_key augment_keys[] = {
        {"crop", TT_INT, offsetof(struct augment_keys, crop), "0", 0, 4096, NULL,
         "pixels of zero padding around the image, of which a random part is cut"},
        {"flip", TT_BOOL, offsetof(struct augment_keys, flip), "false", 0, 0, NULL,
         "mirror every other image left to right"},
    };
    tt_err err;

    if ((err = tt_node_read(n, "augment", augment_keys, TT_COUNT(augment_keys), &k))) return err;
    if (!d->part[TT_TRAIN].src || (!k.crop && !k.flip)) return TT_OK;
    if (!d->height || d->train->keep == TT_KEEP_SPARSE)
        return tt_node_fail(n, "augment is for images, and %s has none", d->train->name);
    if (d->want.classes > 0 && d->want.labels > 1 && d->want.labels != d->height * d->width)
        return tt_node_fail(n,
                            "augment moves pixels, and with %lld labels for %lld x %lld of them "
                            "it cannot move those, too",
                            (long long)d->want.labels, (long long)d->height, (long long)d->width);
    if (k.crop >= d->height || k.crop >= d->width)
        return tt_node_fail(n, "crop: %lld pixels of padding for images of %lld x %lld",
                            (long long)k.crop, (long long)d->height, (long long)d->width);
    d->crop = (int)k.crop;
    d->flip = k.flip;
    return TT_OK;
}

/* ---- Splits ---- */

/* What `val` leaves out it takes from `train`, but for the files. */
static void inherit(tt_node *val, const tt_node *train)
{
    tt_node *mine = tt_node_get(val, "format"), *theirs = tt_node_get(train, "format");

    if (!theirs || (mine && (mine->kind != TT_SCALAR || strcmp(mine->text, theirs->text)))) return;
    for (int i = 0; i < train->count; i++) {
        const char *key = train->key[i]->text;
        if (train->item[i]->is_default || tt_node_get(val, key)) continue;
        if (!tt_source_is_file(theirs->text, key))
            tt_node_add(val, key, tt_node_copy(val->tree, train->item[i]));
    }
}

static tt_err cut_val(tt_data *d, tt_node *map, uint64_t seed)
{
    struct split_keys {
        double split;
    } k;
    static const tt_key split_keys[] = {
        {"split", TT_NUMBER, offsetof(struct split_keys, split), NULL, 1e-9, 0.999999999, NULL,
         "fraction of the training set to validate on instead"},
    };
    int64_t n = d->train->count, cut;
    tt_err err;

    if ((err = tt_node_read(map, "val", split_keys, TT_COUNT(split_keys), &k))) return err;
    if (n < 2) return tt_node_fail(map, "%s has only %lld samples", d->train->name, (long long)n);
    cut = llround((double)n * k.split);
    if (cut < 1) cut = 1;
    if (cut > n - 1) cut = n - 1;
    if (d->train->keep == TT_KEEP_TOKENS && !d->train->row) { /* a text: its end */
        d->part[TT_TRAIN] = (tt_part){.src = d->train, .count = n - cut};
        d->part[TT_VAL] = (tt_part){.src = d->train, .count = cut, .first = n - cut};
        return TT_OK;
    }
    uint64_t key = tt_random_key(seed, "data split");
    d->part[TT_TRAIN] = (tt_part){.src = d->train, .count = n - cut, .cut = true, .key = key};
    d->part[TT_VAL] =
        (tt_part){.src = d->train, .count = cut, .cut = true, .first = n - cut, .key = key};
    return TT_OK;
}

/* "1x28x28", "13 and 26 ids", "256 tokens" */
static const char *show_sample(const tt_data *d, const tt_source *s)
{
    bool numbers = tt_shape_count(d->want.input) > 0;
    char shape[96] = "";

    if (numbers) tt_shape_show(d->want.input, shape, sizeof shape);
    if (!d->want.ids) return tt_arena_strdup(d->arena, shape);
    return tt_arena_printf(d->arena, "%s%s%lld %s", shape, numbers ? " and " : "",
                           (long long)d->want.ids, s->keep == TT_KEEP_TOKENS ? "tokens" : "ids");
}

static void describe(tt_data *d, tt_split split)
{
    tt_part *p = &d->part[split];
    char count[32];
    const char *slash;

    if (!p->src) {
        p->describe = "none";
        return;
    }
    slash = strrchr(p->src->name, '/');
    p->describe =
        tt_arena_printf(d->arena, "%s of %s %s %s", tt_show_count(p->count, count, sizeof count),
                        show_sample(d, p->src), p->cut && split == TT_VAL ? "cut from" : "from",
                        slash ? slash + 1 : p->src->name);
}

/* ---- Opening and closing ---- */

tt_data *tt_data_new(const tt_data_want *want, uint64_t seed)
{
    tt_data *d = calloc(1, sizeof *d);

    if (!d) tt_mem_out(sizeof *d);
    d->want = *want;
    d->arena = tt_arena_open(4096);
    d->augment_key = tt_random_key(seed, "data augment");
    d->hide_key = tt_random_key(seed, "data unlabelled");
    d->flow = (tt_data_flow){.shuffle = true, .threads = TT_THREADS_AUTO, .prefetch = 4};
    pthread_mutex_init(&d->sha_lock, NULL);
    return d;
}

tt_row tt_data_row_of(const tt_data_want *w)
{
    return (tt_row){.features = tt_shape_count(w->input),
                    .ids = w->ids,
                    .labels = w->classes > 0 ? w->labels : 0,
                    .targets = w->targets};
}

static tt_err check_want(const tt_data_want *w)
{
    if (w->input.rank < 1 || w->input.rank > 6 || tt_shape_count(w->input) + w->ids < 1)
        return tt_fail(TT_EINVAL, "the model's input has no elements");
    if (w->classes < 0 || w->targets < 0 || (w->classes > 0 && w->targets > 0))
        return tt_fail(TT_EINVAL, "either labels or targets can be wanted");
    return TT_OK;
}

/* To predict, answers are nice to have: with them if that works, else without. Not where what they
 * mean is known only to a training set that was not opened. */
static tt_err open_asked(tt_node *map, const char *what, tt_source_ctx c, tt_source **out)
{
    const tt_data_want *asked = c.want;
    tt_data_want whole = *asked;

    whole.only_x = false;
    c.want = &whole;
    if (asked->only_x && (c.split == TT_TRAIN || c.train || !tt_source_leans(map, &whole)) &&
        !tt_source_open(map, what, &c, out))
        return TT_OK;
    c.want = asked;
    return tt_source_open(map, what, &c, out);
}

/* All samples of a source. */
static tt_part whole_of(const tt_source *s)
{
    return (tt_part){.src = s, .count = s->count};
}

/* For its own sake, or for what the validation set needs of it? */
static tt_err open_train(tt_data *d, const data_keys *k, tt_source_ctx c, bool asked)
{
    tt_data_want want = *c.want;
    tt_err err;

    c.split = TT_TRAIN;
    c.want = &want;
    want.only_x &= !tt_source_is_text(k->train); /* words that are labels name the classes */
    err = asked ? open_asked(k->train, "train", c, &d->train)
                : tt_source_open(k->train, "train", &c, &d->train);
    if (!err) d->part[TT_TRAIN] = whole_of(d->train);
    return err;
}

/* Do tokens and ids mean the same in both? Of shards that do not say what they are, nobody knows.
 */
static tt_err check_alike(const tt_source *train, const tt_source *val)
{
    bool tokens = train->keep == TT_KEEP_TOKENS;

    if (tokens != (val->keep == TT_KEEP_TOKENS))
        return tt_fail(TT_EDATA, "%s has tokens, and %s has none: both sets must be alike",
                       tokens ? train->name : val->name, tokens ? val->name : train->name);
    if (tokens && !train->row != !val->row)
        return tt_fail(TT_EDATA, "%s is read by lines, and %s is not: both sets must be alike",
                       train->row ? train->name : val->name, train->row ? val->name : train->name);
    if (train->words && val->words && train->words != val->words)
        return tt_fail(TT_EDATA,
                       "the %s of %s mean something else than those of the training set, %s",
                       tokens ? "tokens" : "ids", val->name, train->name);
    return TT_OK;
}

static tt_err open_val(tt_data *d, const data_keys *k, tt_source_ctx c)
{
    tt_err err;

    c.split = TT_VAL;
    c.train = d->train;
    if ((err = open_asked(k->val, "val", c, &d->val))) return err;
    d->part[TT_VAL] = whole_of(d->val);
    return d->train ? check_alike(d->train, d->val) : TT_OK;
}

/* Is all written down that would be asked of the training set? */
static bool is_told(const json_t *learned, bool stats, bool leans)
{
    bool words = json_object_get(learned, "columns") || json_object_get(learned, "tokens") ||
                 json_object_get(learned, "index_base");

    return learned && (!leans || words) && (!stats || json_object_get(learned, "mean"));
}

/* The validation set, and of the training set what that needs. */
static tt_err open_val_alone(tt_data *d, tt_node *map, const data_keys *k, tt_node *cut,
                             tt_source_ctx c, uint64_t seed)
{
    const bool stats = normalizes(k) && wants_stats(k->normalize),
               leans = tt_source_leans(k->val, &d->want), told = is_told(d->learned, stats, leans);
    tt_err err;

    if (stats || leans) {
        if ((err = told ? tt_data_recall(d, map) : open_train(d, k, c, false))) return err;
        if (cut && !told && (err = cut_val(d, cut, seed))) return err; /* of the rest */
    }
    if ((err = open_val(d, k, c))) return err;
    if (!d->train && d->val->bytes && !d->val->pixels && !strcmp(k->scale, "auto"))
        return told ? tt_data_recall(d, map) /* to know whether these bytes are pixels */
                    : open_train(d, k, c, false);
    return TT_OK;
}

/* Takes `split` out of a `val` that names files too, into a map of its own. The job's own map stays
 * as it is. */
static tt_node *take_split(tt_node **val)
{
    tt_node *all = *val, *cut = tt_node_map(all->tree, all), *rest = tt_node_map(all->tree, all);

    for (int i = 0; i < all->count; i++) {
        const char *key = all->key[i]->text;
        tt_node_add(strcmp(key, "split") ? rest : cut, key, tt_node_copy(all->tree, all->item[i]));
    }
    *val = rest;
    return cut;
}

/* The key of a `val` that names a set of its own, beside `split`; NULL: none. */
static const tt_node *beside_split(const tt_node *val)
{
    for (int i = 0; i < val->count; i++)
        if (tt_source_is_file(NULL, val->key[i]->text) || !strcmp(val->key[i]->text, "format"))
            return val->key[i];
    return NULL;
}

enum { BOTH = -1 };

/* With whom it is to be in common; no folders: with nobody. */
typedef struct share {
    const char *folders;
    double timeout_s;
} share;

/* The content in common, if there is any: then nothing is left to decode. */
static tt_err find_common(tt_data *d, const data_keys *k, const tt_source_ctx *c, uint64_t seed,
                          const share *s)
{
    char key[65];
    tt_err err;

    if (tt_common_key(k->train, k->val, c, seed, normalizes(k), key))
        return TT_OK; /* who opens the files tells what is wrong with them */
    if ((err = tt_common_find(d, s->folders, key, s->timeout_s)) || !d->train) return err;
    d->part[TT_TRAIN] = whole_of(d->train);
    if (d->val) d->part[TT_VAL] = whole_of(d->val);
    return TT_OK;
}

/* Hands what was decoded to the others, if that is up to us. */
static tt_err make_common(tt_data *d, const data_keys *k, const tt_node *dir_at, uint64_t seed)
{
    tt_source_ctx c = {.want = &d->want};
    char key[65] = "";
    tt_err err;

    if (!d->common.claim) return TT_OK;
    if ((err = tt_source_expand(d->arena, dir_at, k->dir, &c.dir))) return err;
    if (tt_common_key(k->train, k->val, &c, seed, normalizes(k), key))
        *key = 0; /* files are gone */
    tt_common_make(d, key);
    return TT_OK;
}

static tt_err open_sources(tt_data *d, tt_node *map, data_keys *k, int split, uint64_t seed,
                           const share *s)
{
    static const share none = {0};
    tt_source_ctx c = {.want = &d->want, .dir = ""};
    tt_node *cut = k->val && tt_node_get(k->val, "split") ? k->val : NULL;
    const tt_node *own = cut ? beside_split(cut) : NULL;
    tt_err err;

    if ((err = tt_source_expand(d->arena, tt_node_get(map, "dir"), k->dir, &c.dir))) return err;
    if (k->val && k->val->kind != TT_MAP)
        return tt_node_fail(k->val, "val must be a map: keys as in train, or {split: 0.1}");
    if (own && split == BOTH)
        return tt_node_fail(own,
                            "val has both 'split' and '%s': it is either a part of the training "
                            "set or a set of its own. To predict for a file: tutti predict RUN "
                            "--data FILE",
                            own->text);
    if (own) cut = take_split(&k->val);
    if (k->val && k->val != cut) inherit(k->val, k->train);
    if (split == TT_VAL && k->val && k->val != cut) return open_val_alone(d, map, k, cut, c, seed);
    if (tt_source_is_mapped(k->train) || (k->val && tt_source_is_mapped(k->val)))
        s = &none; /* the system has the pages of mapped files once */
    if (s->folders && (err = find_common(d, k, &c, seed, s))) return err;
    if (!d->train && (err = open_train(d, k, c, split != BOTH))) return err;
    if (cut) return cut_val(d, cut, seed);
    return split == BOTH && k->val && !d->val ? open_val(d, k, c) : TT_OK;
}

static tt_err open_data(tt_node *map, const tt_data_want *want, uint64_t seed, int split,
                        share with, const json_t *learned, tt_data **out)
{
    data_keys k = {0};
    tt_data *d;
    tt_err err;

    *out = NULL;
    if (!map) return tt_fail(TT_EINVAL, "the job has no `data`");
    if ((err = check_want(want))) return err;
    if ((err = tt_node_read(map, "data", keys, TT_COUNT(keys), &k))) return err;
    if (split == TT_VAL && !k.val)
        return tt_fail(TT_EDATA, "the job has no validation data (data.val)");
    d = tt_data_new(want, seed);
    d->learned = learned;
    if ((err = open_sources(d, map, &k, split, seed, &with))) goto out;
    set_geometry(d);
    if ((err = set_values(d, map, &k))) goto out;
    if (k.augment && (err = read_augment(d, k.augment))) goto out;
    if (k.unlabelled > 0 && want->classes <= 0 && want->targets <= 0) {
        err = tt_node_fail(tt_node_get(map, "unlabelled"),
                           "the loss uses no labels that could be hidden");
        goto out;
    }
    d->hidden = llround(k.unlabelled * (double)d->part[TT_TRAIN].count);
    if ((err = read_flow(map, &k, &d->flow))) goto out;
    describe(d, TT_TRAIN);
    describe(d, TT_VAL);
    if ((err = make_common(d, &k, tt_node_get(map, "dir"), seed))) goto out;
    d->want.input_at = NULL; /* the job may be closed before us, and the model, too */
    d->want.id_rows = NULL;
    d->learned = NULL;
    *out = d;
    d = NULL;
out:
    tt_data_close(d);
    return err;
}

tt_err tt_data_open(tt_node *map, const tt_data_want *want, uint64_t seed, tt_data **out)
{
    return open_data(map, want, seed, BOTH, (share){0}, NULL, out);
}

tt_err tt_data_open_common(tt_node *map, const tt_data_want *want, uint64_t seed,
                           const char *folders, double timeout_s, tt_data **out)
{
    return open_data(map, want, seed, BOTH, (share){folders, timeout_s}, NULL, out);
}

tt_err tt_data_open_split(tt_node *map, const tt_data_want *want, uint64_t seed, tt_split split,
                          const json_t *learned, tt_data **out)
{
    return open_data(map, want, seed, (int)split, (share){0}, learned, out);
}

static tt_err rows_source(const tt_data_want *want, const tt_data_rows *rows, const char *name,
                          tt_source **out)
{
    int64_t features = tt_shape_count(want->input);
    tt_source *s;

    *out = NULL;
    if (rows->name) name = rows->name;
    if (rows->n < 1)
        return tt_fail(TT_EINVAL, "%s: there must be at least one, not %lld", name,
                       (long long)rows->n);
    if (features && !rows->x) return tt_fail(TT_EINVAL, "%s: x is NULL", name);
    if (want->ids && !rows->ids) return tt_fail(TT_EINVAL, "%s: no ids", name);
    if (want->classes > 0 && !rows->label) return tt_fail(TT_EINVAL, "%s: no labels", name);
    if (want->targets > 0 && !rows->target) return tt_fail(TT_EINVAL, "%s: no targets", name);
    for (int64_t i = 0; want->classes > 0 && i < rows->n * want->labels; i++)
        if (rows->label[i] < -1 || rows->label[i] >= want->classes)
            return tt_fail(TT_EINVAL, "%s: row %lld: label %d, but the model has %d classes", name,
                           (long long)(i / want->labels), rows->label[i], want->classes);
    for (int64_t i = 0; i < rows->n * want->ids; i++) {
        int64_t most = want->id_rows[i % want->ids];
        if (rows->ids[i] < -1 || (most && rows->ids[i] >= most))
            return tt_fail(TT_EINVAL, "%s: row %lld: id %d, but its table has %lld rows", name,
                           (long long)(i / want->ids), rows->ids[i], (long long)most);
    }
    for (int64_t i = 0; i < rows->n; i++)
        for (int64_t k = 0; k < features; k++)
            if (!isfinite(rows->x[i * features + k]))
                return tt_fail(TT_EINVAL, "%s: row %lld, value %lld is %f", name, (long long)i,
                               (long long)k, rows->x[i * features + k]);
    s = tt_source_new();
    s->name = name;
    s->count = s->kept = rows->n;
    s->shape = want->input;
    s->keep = TT_KEEP_F32;
    s->f32 = rows->x;
    s->ids = rows->ids;
    s->ids_each = want->ids;
    s->label = want->classes > 0 ? rows->label : NULL;
    s->labels = want->labels;
    s->target = want->targets > 0 ? rows->target : NULL;
    s->targets = want->targets;
    for (int64_t i = 0; s->label && i < s->kept * want->labels; i++)
        if (s->label[i] >= s->classes) s->classes = s->label[i] + 1;
    *out = s;
    return TT_OK;
}

tt_err tt_data_open_rows(const tt_data_want *want, const tt_data_rows *train,
                         const tt_data_rows *val, uint64_t seed, tt_data **out)
{
    data_keys k = {.scale = "auto"};
    tt_data *d;
    tt_err err;

    *out = NULL;
    if ((err = check_want(want))) return err;
    d = tt_data_new(want, seed);
    if ((err = rows_source(want, train, "training rows", &d->train))) goto out;
    if (val && (err = rows_source(want, val, "validation rows", &d->val))) goto out;
    d->part[TT_TRAIN] = (tt_part){.src = d->train, .count = train->n};
    if (val) d->part[TT_VAL] = (tt_part){.src = d->val, .count = val->n};
    set_geometry(d);
    if ((err = set_values(d, NULL, &k))) goto out;
    describe(d, TT_TRAIN);
    describe(d, TT_VAL);
    d->want.input_at = NULL;
    d->want.id_rows = NULL;
    *out = d;
    d = NULL;
out:
    tt_data_close(d);
    return err;
}

tt_err tt_data_aim(tt_node *data, const char *file)
{
    tt_node *train = tt_node_get(data, "train"), *val = tt_node_get(data, "val"), *aimed, *name;
    const tt_node *format = train ? tt_node_get(train, "format") : NULL, *split;
    const char *key = format ? tt_source_file_key(format->text) : NULL;
    char *here = NULL;
    tt_str path = {0};

    if (!key)
        return tt_node_fail(train ? train : data,
                            "%s cannot be read as the training set is: that has no files", file);
    if (*file != '/' && !(here = getcwd(NULL, 0)))
        return tt_fail(TT_EIO, "the working directory has no name: %s", strerror(errno));
    tt_str_add(&path, "%s%s%s", here ? here : "", here ? "/" : "", file);
    free(here);
    aimed = tt_node_map(data->tree, train);
    name = tt_node_scalar(data->tree, train, path.data);
    tt_str_free(&path);
    if (!strcmp(key, "files")) {
        tt_node *list = tt_node_list(data->tree, train);
        tt_node_add(list, NULL, name);
        name = list;
    }
    tt_node_add(aimed, key, name);
    if ((split = val ? tt_node_get(val, "split") : NULL))
        tt_node_add(aimed, "split", tt_node_copy(data->tree, split));
    tt_node_add(data, "val", aimed);
    return TT_OK;
}

void tt_data_close(tt_data *d)
{
    if (!d) return;
    tt_source_close(d->val); /* first: it borrows the training set's words */
    tt_source_close(d->train);
    tt_common_close(&d->common);
    tt_arena_close(d->arena);
    pthread_mutex_destroy(&d->sha_lock);
    free(d);
}

/* ---- Questions ---- */

int64_t tt_data_count(const tt_data *d, tt_split split)
{
    return d->part[split].count;
}

tt_data_flow tt_data_feeding(const tt_data *d)
{
    return d->flow;
}

int tt_data_classes(const tt_data *d)
{
    int train = d->train ? d->train->classes : 0, val = d->val ? d->val->classes : 0;

    return train > val ? train : val;
}

const char *tt_data_class_name(const tt_data *d, int i)
{
    const tt_source *s = leading(d);

    return s->class_name && i >= 0 && i < s->classes ? s->class_name[i] : NULL;
}

const char *tt_data_common(const tt_data *d, const char **why_not)
{
    if (why_not) *why_not = d->common.why;
    return d->common.file;
}

const char *tt_data_describe(const tt_data *d, tt_split split)
{
    return d->part[split].describe;
}

int64_t tt_data_row(const tt_data *d, tt_split split, int64_t i)
{
    return tt_part_sample(&d->part[split], i);
}

bool tt_data_labelled(const tt_data *d, tt_split split)
{
    const tt_source *s = d->part[split].src;

    return s && s->label && s->labels == 1;
}

int tt_data_label(const tt_data *d, tt_split split, int64_t i)
{
    const tt_part *p = &d->part[split];

    return tt_data_labelled(d, split) ? p->src->label[tt_part_row(p, i)] : -1;
}

const float *tt_data_target(const tt_data *d, tt_split split, int64_t i)
{
    const tt_part *p = &d->part[split];

    return p->src->target ? p->src->target + tt_part_row(p, i) * p->src->targets : NULL;
}
