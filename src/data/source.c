/* What all formats share: finding files, memory, numbers, labels. */
#define _GNU_SOURCE
#include "data/source.h"
#include "data/bpe.h"

#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tt_source *tt_source_new(void)
{
    tt_source *s = calloc(1, sizeof *s);

    if (!s) tt_mem_out(sizeof *s);
    s->arena = tt_arena_open(4096);
    s->name = "";
    s->labels = 1;
    return s;
}

void tt_source_close(tt_source *s)
{
    if (!s) return;
    for (int i = 0; i < s->block_count; i++) tt_block_free(s->block[i].p, s->block[i].size);
    for (int i = 0; i < 2; i++) tt_file_release(&s->file[i]);
    for (int i = 0; i < s->shard_count; i++) tt_file_release(&s->shard[i].file);
    tt_bpe_close(s->bpe);
    tt_arena_close(s->arena);
    free(s);
}

tt_err tt_source_block(tt_source *s, int64_t count, int64_t each, size_t element, void *out)
{
    size_t size = tt_mul_size(tt_mul_size((size_t)count, (size_t)each), element);
    void *p;

    TT_ASSERT(count >= 0 && each >= 0 && s->block_count < TT_SOURCE_BLOCKS);
    if (!size) size = 1; /* an empty dataset has memory too: no NULL to tell apart */
    p = size > PTRDIFF_MAX ? NULL : tt_block_alloc(size);
    if (!p)
        return tt_fail(TT_ENOMEM, "%s: no memory for %lld rows of %lld values", s->name,
                       (long long)count, (long long)each);
    s->block[s->block_count].p = p;
    s->block[s->block_count++].size = size;
    *(void **)out = p;
    return TT_OK;
}

/* ---- Names of files ---- */

static tt_err bad_text(const tt_node *at, const char *text, const char *what)
{
    if (at) return tt_node_fail(at, "'%s': %s", text, what);
    return tt_fail(TT_EINVAL, "'%s': %s", text, what);
}

/* One variable; *s stands behind the '$' and is moved behind the whole. */
static tt_err expand_one(const tt_node *at, const char *text, const char **s, tt_str *out)
{
    bool brace = **s == '{';
    const char *name = *s + brace, *end = name, *fallback = NULL, *close, *value;
    char key[128], why[200];

    while (isalnum((unsigned char)*end) || *end == '_') end++;
    if (end == name || isdigit((unsigned char)*name))
        return bad_text(at, text, "'$' must be followed by the name of an environment variable");
    close = end;
    if (brace) {
        if (end[0] == ':' && end[1] == '-') fallback = end + 2;
        close = strchr(end, '}');
        if (!close || (!fallback && close != end))
            return bad_text(at, text, "'${' is not closed; write ${NAME} or ${NAME:-fallback}");
    }
    if ((size_t)(end - name) >= sizeof key) return bad_text(at, text, "name is too long");
    memcpy(key, name, (size_t)(end - name));
    key[end - name] = 0;
    value = getenv(key);
    if (value && (*value || !fallback))
        tt_str_put(out, value, strlen(value));
    else if (fallback)
        tt_str_put(out, fallback, (size_t)(close - fallback));
    else {
        snprintf(why, sizeof why, "the environment variable %s is not set", key);
        return bad_text(at, text, why);
    }
    *s = close + brace;
    return TT_OK;
}

tt_err tt_data_expand(const tt_node *at, const char *text, tt_str *out)
{
    tt_err err = TT_OK;

    for (const char *s = text; *s && !err;) {
        const char *dollar = strchrnul(s, '$');
        tt_str_put(out, s, (size_t)(dollar - s));
        s = dollar;
        if (*s) {
            s++;
            err = expand_one(at, text, &s, out);
        }
    }
    return err;
}

tt_err tt_source_expand(tt_arena *a, const tt_node *at, const char *text, const char **out)
{
    tt_str grown = {0};
    tt_err err = tt_data_expand(at, text, &grown);

    if (!err) *out = tt_arena_strdup(a, grown.data ? grown.data : "");
    tt_str_free(&grown);
    return err;
}

/* The dataset a path seems to belong to, or NULL. */
static const char *known_for(const char *path)
{
    if (strcasestr(path, "fashion")) return "fashion-mnist";
    if (strcasestr(path, "cifar100") || strcasestr(path, "cifar-100")) return NULL;
    if (strcasestr(path, "cifar") || strstr(path, "data_batch_")) return "cifar10";
    if (strcasestr(path, "mnist") || strstr(path, "train-images-idx3") ||
        strstr(path, "t10k-images-idx3"))
        return "mnist";
    return NULL;
}

/* Where one has files from that cannot be got by a command, by the folder that examples have them
 * in; NULL: who knows. */
static const char *origin_of(const char *path)
{
    static const struct {
        const char *folder, *origin;
    } known[] = {
        {"tinyshakespeare/", "input.txt of Tiny Shakespeare, in the repository karpathy/char-rnn"},
        {"makemore-names/", "names.txt, in the repository karpathy/makemore"},
        {"uci-adult/", "adult.data and adult.test of the dataset Adult, in the UCI Machine "
                       "Learning Repository"},
        {"uci-online-shoppers/", "online_shoppers_intention.csv of the dataset Online Shoppers "
                                 "Purchasing Intention, in the UCI Machine Learning Repository"},
    };

    for (int i = 0; i < TT_COUNT(known); i++)
        if (strstr(path, known[i].folder)) return known[i].origin;
    return NULL;
}

static const char *find_variant(tt_arena *a, const char *path)
{
    size_t n = strlen(path);
    char *other;

    if (tt_file_exists(path)) return path;
    if (n > 3 && !strcmp(path + n - 3, ".gz")) {
        other = tt_arena_strdup(a, path);
        other[n - 3] = 0;
    } else {
        other = tt_arena_printf(a, "%s.gz", path);
    }
    return tt_file_exists(other) ? other : NULL;
}

/* "data/a.csv: no such file in /home/me": a relative name tells only half of where it was sought.
 */
static tt_err not_here(const char *path)
{
    const char *known = known_for(path), *origin = known ? NULL : origin_of(path);
    char *here = *path == '/' ? NULL : getcwd(NULL, 0);
    tt_err err =
        tt_fail(TT_EDATA, "%s: no such file%s%s%s%s%s", path, here ? " in " : "", here ? here : "",
                known    ? "; get it with: tutti data get "
                : origin ? "; `data get` has it not: put there "
                         : "",
                known    ? known
                : origin ? origin
                         : "",
                origin ? " (as it is, or by gzip)" : "");

    free(here);
    return err;
}

static tt_err find_file(tt_arena *a, const char *dir, const tt_node *at, const char *name,
                        const char **path)
{
    const char *full;
    tt_err err;

    if ((err = tt_source_expand(a, at, name, &full))) return err;
    if (!*full) return bad_text(at, name, "the name of a file is empty");
    if (*full != '/' && *dir) full = tt_arena_printf(a, "%s/%s", dir, full);
    *path = find_variant(a, full);
    return *path ? TT_OK : not_here(full);
}

tt_err tt_source_glob(tt_arena *a, const char *dir, const tt_node *at, const char *name,
                      const char *const **paths, int *count)
{
    const char *full, **list;
    glob_t found;
    tt_err err;
    int code;

    *count = 0;
    if ((err = tt_source_expand(a, at, name, &full))) return err;
    if (*full != '/' && *dir) full = tt_arena_printf(a, "%s/%s", dir, full);
    if (!strpbrk(full, "*?[") || find_variant(a, full)) {
        *paths = list = tt_arena_take(a, sizeof *list, sizeof *list);
        if (!(err = find_file(a, dir, at, name, list))) *count = 1;
        return err;
    }
    code = glob(full, 0, NULL, &found);
    if (code)
        return code == GLOB_NOMATCH ? tt_fail(TT_EDATA, "no file is named like %s", full)
                                    : tt_fail(TT_EIO, "looking for %s failed", full);
    *paths = list = tt_arena_take(a, found.gl_pathc * sizeof *list, sizeof *list);
    for (; *count < (int)found.gl_pathc; (*count)++)
        list[*count] = tt_arena_strdup(a, found.gl_pathv[*count]);
    globfree(&found);
    return TT_OK;
}

tt_err tt_source_read(tt_source *s, const tt_source_ctx *c, const tt_node *at, const char *name,
                      tt_promise *promise, tt_bytes *out, const char **path)
{
    tt_err err;

    if ((err = find_file(s->arena, c->dir, at, name, path))) return err;
    if ((err = tt_file_read_data(*path, promise, out))) return tt_context(TT_EDATA, "dataset");
    return TT_OK;
}

/* What tells a file from one that is put in its place, or written anew. */
static void date_file(const char *path, tt_str *out)
{
    struct stat st;

    if (stat(path, &st))
        tt_str_add(out, "%s: %s\n", path, strerror(errno));
    else
        tt_str_add(out, "%s: %llu %llu %lld %lld.%09ld\n", path, (unsigned long long)st.st_dev,
                   (unsigned long long)st.st_ino, (long long)st.st_size,
                   (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

/* The files of a map are dated, if asked, with those a format reads beside them. */
typedef struct dates {
    const char *const *beside; /* names ended by NULL, or NULL */
    tt_str *out;
} dates;

static tt_err look_at_file(tt_arena *a, const char *dir, const tt_node *at, const dates *d)
{
    const char *path, *slash;
    tt_err err = find_file(a, dir, at, at->text, &path);

    if (err || !d) return err;
    date_file(path, d->out);
    slash = strrchr(path, '/');
    for (int i = 0; d->beside && d->beside[i]; i++)
        date_file(
            tt_arena_printf(a, "%.*s%s", slash ? (int)(slash - path + 1) : 0, path, d->beside[i]),
            d->out);
    return TT_OK;
}

/* Names that stand for several files are those of `tokens`, which are never asked for their dates.
 */
static tt_err look_at_files(tt_arena *a, const char *dir, const tt_node *at)
{
    const char *const *paths;
    int count;

    return tt_source_glob(a, dir, at, at->text, &paths, &count);
}

/* The folder of a tokenizer has several files; which are there, and their dates. */
static tt_err look_at_tokenizer(tt_arena *a, const char *dir, const tt_node *at, const dates *d)
{
    const char *path;
    tt_err err = find_file(a, dir, at, at->text, &path);

    if (err || !d) return err;
    date_file(path, d->out);
    for (int i = 0; tt_bpe_files[i]; i++)
        date_file(tt_arena_printf(a, "%s/%s", path, tt_bpe_files[i]), d->out);
    return TT_OK;
}

/* Are they there? `d` NULL: that is all. */
static tt_err find_files(tt_arena *a, const char *dir, const tt_node *map, const dates *d)
{
    const tt_node *format = map ? tt_node_get(map, "format") : NULL;
    const tt_node *tokenizer = map ? tt_node_get(map, "tokenizer") : NULL;
    bool many = map && (tt_source_is_mapped(map) || !format); /* of `val`, before it is read */
    tt_err err = TT_OK;

    if (tokenizer && tokenizer->kind == TT_SCALAR && !tt_node_is_null(tokenizer))
        err = look_at_tokenizer(a, dir, tokenizer, d);
    for (int i = 0; map && map->kind == TT_MAP && i < map->count && !err; i++) {
        const tt_node *n = map->item[i];
        if (!tt_source_is_file(format ? format->text : NULL, map->key[i]->text)) continue;
        if (n->kind == TT_SCALAR && !tt_node_is_null(n))
            err = many ? look_at_files(a, dir, n) : look_at_file(a, dir, n, d);
        for (int k = 0; n->kind == TT_LIST && k < n->count && !err; k++)
            err = many ? look_at_files(a, dir, n->item[k]) : look_at_file(a, dir, n->item[k], d);
    }
    return err;
}

tt_err tt_data_find(const tt_node *data)
{
    tt_arena *a = tt_arena_open(4096);
    const tt_node *dir_at = tt_node_get(data, "dir");
    const char *dir = "";
    tt_err err = dir_at ? tt_source_expand(a, dir_at, dir_at->text, &dir) : TT_OK;

    if (!err) err = find_files(a, dir, tt_node_get(data, "train"), NULL);
    if (!err) err = find_files(a, dir, tt_node_get(data, "val"), NULL);
    tt_arena_close(a);
    return err;
}

/* ---- Numbers ---- */

/* Digits beyond what a double holds exactly, or a large exponent: the C library rounds right. */
static bool slow_number(const char *s, size_t n, double *out)
{
    char buf[512], *end;

    if (n >= sizeof buf) return false;
    memcpy(buf, s, n);
    buf[n] = 0;
    *out = tt_strtod(buf, &end);
    return end == buf + n && isfinite(*out);
}

bool tt_cell_number(const char *s, size_t n, double *out)
{
    static const double power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char *p = s, *end = s + n;
    bool minus = false, exponent_minus = false;
    uint64_t digits = 0;
    int seen = 0, significant = 0, scale = 0, exponent = 0;

    if (p < end && (*p == '-' || *p == '+')) minus = *p++ == '-';
    for (; p < end && *p >= '0' && *p <= '9'; p++, seen++)
        if (significant || *p != '0')
            if (++significant <= 18) digits = digits * 10 + (uint64_t)(*p - '0');
    if (p < end && *p == '.')
        for (p++; p < end && *p >= '0' && *p <= '9'; p++, seen++, scale--)
            if (significant || *p != '0')
                if (++significant <= 18) digits = digits * 10 + (uint64_t)(*p - '0');
    if (!seen) return false;
    if (p < end && (*p == 'e' || *p == 'E')) {
        if (++p < end && (*p == '-' || *p == '+')) exponent_minus = *p++ == '-';
        if (p == end) return false;
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            if (exponent < 100000) exponent = exponent * 10 + (*p - '0');
    }
    if (p != end) return false;
    scale += exponent_minus ? -exponent : exponent;
    /* Both factors are exact in a double, so one operation rounds once, and right. */
    if (significant > 18 || digits > (1ull << 53) || scale < -22 || scale > 22)
        return slow_number(s, n, out);
    *out = scale < 0 ? (double)digits / power[-scale] : (double)digits * power[scale];
    if (minus) *out = -*out;
    return true;
}

tt_err tt_source_label(const tt_data_want *want, const char *name, const char *where, double value,
                       int32_t *out)
{
    if (value != floor(value) || value < -1 || value > INT32_MAX - 1)
        return tt_fail(TT_EDATA, "%s: %s: label %g is no class number (0, 1, 2 ...; -1 for none)",
                       name, where, value);
    if (want->classes > 0 && value >= want->classes)
        return tt_fail(TT_EDATA, "%s: %s: label %.0f, but the model has %d classes (0 to %d)", name,
                       where, value, want->classes, want->classes - 1);
    *out = (int32_t)value;
    return TT_OK;
}

/* ---- Opening ---- */

/* The sample's shape against model.input. Leading ones do not matter, and a vector may stand for an
 * image of as many values or the other way round. */
static bool shapes_agree(tt_shape a, tt_shape b)
{
    int i = 0, k = 0;

    if (a.rank <= 1 || b.rank <= 1) return tt_shape_count(a) == tt_shape_count(b);
    while (i < a.rank - 1 && a.dim[i] == 1) i++;
    while (k < b.rank - 1 && b.dim[k] == 1) k++;
    if (a.rank - i != b.rank - k) return false;
    for (; i < a.rank; i++, k++)
        if (a.dim[i] != b.dim[k]) return false;
    return true;
}

static tt_err check_fit(const tt_source *s, const tt_data_want *want)
{
    char has[96], wants[96];

    if (s->count == 0) return tt_fail(TT_EDATA, "%s: no samples in it", s->name);
    if (!shapes_agree(s->shape, want->input)) {
        tt_shape_show(s->shape, has, sizeof has);
        tt_shape_show(want->input, wants, sizeof wants);
        if (want->input_at)
            return tt_node_fail(want->input_at, "the model's input is %s, but %s has samples of %s",
                                wants, s->name, has);
        return tt_fail(TT_EINVAL, "the model's input is %s, but %s has samples of %s", wants,
                       s->name, has);
    }
    if (want->ids && s->keep != TT_KEEP_TOKENS && s->ids_each != want->ids)
        return tt_fail(TT_EDATA, "%s: the model takes %lld ids, but there are %s in it", s->name,
                       (long long)want->ids, s->ids_each ? "others" : "none");
    if (want->only_x) return TT_OK;
    if (want->classes > 0 && !s->label && s->keep != TT_KEEP_TOKENS)
        return tt_fail(TT_EDATA, "%s: the loss wants labels, but none were given", s->name);
    if (want->classes > 0 && s->label && s->labels != want->labels)
        return tt_fail(TT_EDATA, "%s: the loss wants %lld label%s per sample, the data has %lld%s",
                       s->name, (long long)want->labels, want->labels == 1 ? "" : "s",
                       (long long)s->labels, want->labels > 1 ? ", not one for each pixel" : "");
    if (want->targets > 0 && s->targets != want->targets)
        return tt_fail(TT_EDATA, "%s: the loss wants %d targets per sample, the data has %lld%s",
                       s->name, want->targets, (long long)s->targets,
                       s->schema ? "; in `columns`, each of them is `type: target`" : "");
    return TT_OK;
}

/* Where the loss wants one number, the label is it: 0 and 1 for binary cross-entropy. */
static tt_err label_as_target(tt_source *s)
{
    float *target;
    tt_err err;

    if ((err = tt_source_block(s, s->kept, 1, sizeof *target, &target))) return err;
    for (int64_t i = 0; i < s->kept; i++) target[i] = s->label[i] < 0 ? NAN : (float)s->label[i];
    s->target = target;
    s->targets = 1;
    return TT_OK;
}

static const struct {
    const char *name;
    tt_source_fn *open;
    const char *samples, *answers; /* keys that name files; NULL: none */
    const char *const *beside;     /* files read beside those, if they are there */
} formats[] = {
    {"idx", tt_source_idx, "images", "labels"},
    {"cifar10", tt_source_cifar10, "files", NULL, tt_cifar_names},
    {"cifar100", tt_source_cifar100, "files", NULL, tt_cifar_names},
    {"npy", tt_source_npy, "x", "y"},
    {"csv", tt_source_csv, "file", NULL},
    {"tsv", tt_source_tsv, "file", NULL},
    {"libsvm", tt_source_libsvm, "file", NULL},
    {"text", tt_source_text, "file", NULL},
    {"lines", tt_source_lines, "file", NULL},
    {"tokens", tt_source_tokens, "files", NULL},
    {"criteo", tt_source_criteo, "file", NULL},
    {"dlrm", tt_source_dlrm, "file", NULL},
    {"synth", tt_source_synth, NULL, NULL},
};

bool tt_source_is_file(const char *format, const char *key)
{
    for (int i = 0; i < TT_COUNT(formats); i++) {
        const char *x = formats[i].samples, *y = formats[i].answers;
        if (format && strcmp(format, formats[i].name)) continue;
        if ((x && !strcmp(x, key)) || (y && !strcmp(y, key))) return true;
    }
    return false;
}

const char *tt_source_file_key(const char *format)
{
    for (int i = 0; i < TT_COUNT(formats); i++)
        if (!strcmp(format, formats[i].name)) return formats[i].samples;
    return NULL;
}

static bool says(const tt_node *map, const char *key, const char *word)
{
    const tt_node *n = tt_node_get(map, key);

    return n && n->kind == TT_SCALAR && !strcmp(n->text, word);
}

bool tt_source_is_text(const tt_node *map)
{
    return says(map, "format", "csv") || says(map, "format", "tsv");
}

bool tt_source_is_mapped(const tt_node *map)
{
    return says(map, "format", "tokens");
}

static bool is_auto(const tt_node *map, const char *key)
{
    return !tt_node_get(map, key) || says(map, key, "auto");
}

static bool column_leans(const tt_node *c)
{
    const tt_node *words = tt_node_get(c, "vocabulary"), *n = tt_node_get(c, "normalize");
    bool on;

    if (n && n->kind == TT_SCALAR && tt_parse_bool(n->text, &on) && on) return true;
    if (words && words->kind == TT_LIST) return false;
    if (says(c, "type", "category") || says(c, "type", "id")) return !tt_node_get(c, "hash");
    return says(c, "type", "label");
}

/* The map has not been read yet and may hold anything; what is wrong with it is told later. */
bool tt_source_leans(const tt_node *map, const tt_data_want *want)
{
    const tt_node *columns = tt_node_get(map, "columns"), *label = tt_node_get(map, "label");

    if (says(map, "format", "libsvm"))
        return is_auto(map, "index_base") || (!want->only_x && is_auto(map, "labels"));
    if (says(map, "format", "text") || says(map, "format", "lines"))
        return !says(map, "tokens", "bytes") && !says(map, "tokens", "gpt2");
    if (!tt_source_is_text(map)) return false;
    for (int i = 0; columns && columns->kind == TT_LIST && i < columns->count; i++)
        if (column_leans(columns->item[i])) return true;
    return label && !tt_node_is_null(label);
}

static tt_err read_format(tt_node *map, const char *what, int *which)
{
    static const tt_key format_key = {"format", TT_CHOICE, 0, NULL, 0, 0, TT_FORMATS, ""};
    tt_node *format = tt_node_get(map, "format");

    if (map->kind != TT_MAP)
        return tt_node_fail(map, "%s must be a map: {format: idx, images: ..., labels: ...}", what);
    if (!format) return tt_node_fail(map, "%s lacks the key 'format' (%s)", what, TT_FORMATS);
    return tt_node_value(format, "format", &format_key, which);
}

tt_err tt_source_look(tt_node *map, const char *what, const tt_source_ctx *c, tt_str *out)
{
    tt_source_ctx look = *c;
    tt_source *s;
    int which;
    tt_err err;

    if ((err = read_format(map, what, &which))) return err;
    look.look = true;
    s = tt_source_new();
    if (!(err = formats[which].open(map, what, &look, s))) {
        tt_tree_print(map, false, out);
        err = find_files(s->arena, c->dir, map, &(dates){formats[which].beside, out});
    }
    tt_source_close(s);
    return err;
}

tt_err tt_source_open(tt_node *map, const char *what, const tt_source_ctx *c, tt_source **out)
{
    tt_source *s;
    int which;
    tt_err err;

    *out = NULL;
    if ((err = read_format(map, what, &which))) return err;
    s = tt_source_new();
    if ((err = formats[which].open(map, what, c, s))) goto out;
    bool ones = false, zeros = false;
    for (int64_t i = 0; s->label && i < s->kept * s->labels; i++) {
        if (s->label[i] >= s->classes) s->classes = s->label[i] + 1;
        ones |= s->label[i] == 1, zeros |= s->label[i] == 0;
    }
    if (s->minus && ones && !zeros && s->classes == 2 && c->want->classes == 2 &&
        !c->want->only_x) {
        err = tt_fail(TT_EDATA,
                      "%s: its labels are -1 and 1, and -1 stands for 'no label': call the two "
                      "classes 0 and 1",
                      s->name);
        goto out;
    }
    if (c->want->only_x) {
        s->label = NULL; /* some formats cannot be read without; what is not wanted is not used */
        s->target = NULL;
    }
    if (c->want->targets == 1 && s->label && s->labels == 1 && !s->target)
        if ((err = label_as_target(s))) goto out;
    if ((err = check_fit(s, c->want))) goto out;
    *out = s;
    s = NULL;
out:
    tt_source_close(s);
    return err;
}
