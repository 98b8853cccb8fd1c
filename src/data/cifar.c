/* CIFAR-10 and CIFAR-100, binary version: records of one or two label bytes and 3 x 32 x 32 pixels.
 */
#define _GNU_SOURCE
#include "data/source.h"

#include <stdio.h>
#include <string.h>

#define PIXELS 3072

typedef struct cifar_keys {
    int format;
    tt_strings files;
    int labels; /* cifar100: 0 fine, 1 coarse */
} cifar_keys;

const char *const tt_cifar_names[] = {"batches.meta.txt", "fine_label_names.txt",
                                      "coarse_label_names.txt", NULL};
enum { TEN, FINE, COARSE };

/* Names stand one per line beside the data; without them classes are numbers. */
static void read_names(tt_source *s, const char *beside, const char *file, int classes)
{
    const char *slash = strrchr(beside, '/');
    int folder = slash ? (int)(slash - beside + 1) : 0, n = 0;
    const char *path = tt_arena_printf(s->arena, "%.*s%s", folder, beside, file);
    const char **names = tt_arena_take(s->arena, sizeof *names * (size_t)classes, sizeof *names);
    tt_bytes text = {0};

    if (!tt_file_exists(path) || tt_file_read_data(path, NULL, &text)) return;
    for (const char *p = (const char *)text.data, *end = p + text.size; p < end && n < classes;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        int length = (int)((stop ? stop : end) - p);
        while (length && (p[length - 1] == '\r' || p[length - 1] == ' ')) length--;
        if (length) names[n++] = tt_arena_printf(s->arena, "%.*s", length, p);
        p = stop ? stop + 1 : end;
    }
    tt_file_release(&text);
    if (n == classes) {
        s->class_name = names;
        s->classes = classes;
    }
}

static tt_err copy_records(const tt_data_want *want, const char *path, const tt_bytes *file,
                           int label_bytes, int label_at, int classes, uint8_t *x, int32_t *label)
{
    int64_t record = PIXELS + label_bytes, n = (int64_t)file->size / record;
    char where[96];
    tt_err err;

    for (int64_t i = 0; i < n; i++) {
        const uint8_t *r = file->data + i * record;
        snprintf(where, sizeof where, "row %lld (offset %lld)", (long long)i,
                 (long long)(i * record + label_at));
        if (r[label_at] >= classes)
            return tt_fail(TT_EDATA, "%s: %s: label %d, but this format has %d classes", path,
                           where, r[label_at], classes);
        if ((err = tt_source_label(want, path, where, r[label_at], &label[i]))) return err;
        memcpy(x + i * PIXELS, r + label_bytes, PIXELS);
    }
    return TT_OK;
}

static tt_err open_files(tt_source *s, const tt_source_ctx *c, const tt_node *at,
                         const cifar_keys *k, int label_bytes, int label_at, int classes)
{
    int64_t record = PIXELS + label_bytes, done = 0;
    int count = k->files.count;
    tt_bytes *file = tt_arena_take(s->arena, sizeof *file * (size_t)count, sizeof(void *));
    const char **path = tt_arena_take(s->arena, sizeof *path * (size_t)count, sizeof(void *));
    uint8_t *x;
    int32_t *label;
    tt_err err = TT_OK;

    for (int i = 0; i < count; i++) {
        if ((err = tt_source_read(s, c, at, k->files.item[i], NULL, &file[i], &path[i]))) goto out;
        if (!file[i].size || file[i].size % (size_t)record) {
            err = tt_fail(TT_EDATA, "%s: %zu bytes are no whole number of records of %lld bytes",
                          path[i], file[i].size, (long long)record);
            goto out;
        }
        s->count += (int64_t)file[i].size / record;
    }
    s->kept = s->count;
    s->name = path[0];
    if ((err = tt_source_block(s, s->kept, PIXELS, 1, &x))) goto out;
    if ((err = tt_source_block(s, s->kept, 1, sizeof *label, &label))) goto out;
    for (int i = 0; i < count; i++) {
        err = copy_records(c->want, path[i], &file[i], label_bytes, label_at, classes,
                           x + done * PIXELS, label + done);
        if (err) goto out;
        done += (int64_t)file[i].size / record;
        tt_file_release(&file[i]);
        file[i] = (tt_bytes){0};
    }
    s->keep = TT_KEEP_U8;
    s->bytes = s->pixels = true;
    s->u8 = x;
    s->label = label;
    s->shape = (tt_shape){3, {3, 32, 32}};
out:
    for (int i = 0; i < count; i++) tt_file_release(&file[i]);
    return err;
}

static tt_err check_files(tt_node *map, const cifar_keys *k)
{
    if (k->files.count) return TT_OK;
    return tt_node_fail(tt_node_get(map, "files"), "'files' is empty");
}

tt_err tt_source_cifar10(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    static const tt_key keys[] = {
        TT_FORMAT_KEY(cifar_keys),
        {"files", TT_STRINGS, offsetof(cifar_keys, files), NULL, 0, 0, NULL,
         "binary files, data_batch_1.bin ..."},
    };
    cifar_keys k = {0};
    tt_err err;

    if ((err = tt_node_read(map, what, keys, TT_COUNT(keys), &k))) return err;
    if ((err = check_files(map, &k)) || c->look) return err;
    if ((err = open_files(s, c, tt_node_get(map, "files"), &k, 1, 0, 10))) return err;
    read_names(s, s->name, tt_cifar_names[TEN], 10);
    return TT_OK;
}

tt_err tt_source_cifar100(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s)
{
    static const tt_key keys[] = {
        TT_FORMAT_KEY(cifar_keys),
        {"files", TT_STRINGS, offsetof(cifar_keys, files), NULL, 0, 0, NULL,
         "binary files, train.bin"},
        {"labels", TT_CHOICE, offsetof(cifar_keys, labels), "fine", 0, 0, "fine|coarse",
         "the 100 fine classes or the 20 coarse ones"},
    };
    cifar_keys k = {0};
    bool coarse;
    tt_err err;

    if ((err = tt_node_read(map, what, keys, TT_COUNT(keys), &k))) return err;
    if ((err = check_files(map, &k)) || c->look) return err;
    coarse = k.labels == 1;
    err = open_files(s, c, tt_node_get(map, "files"), &k, 2, coarse ? 0 : 1, coarse ? 20 : 100);
    if (err) return err;
    read_names(s, s->name, tt_cifar_names[coarse ? COARSE : FINE], coarse ? 20 : 100);
    return TT_OK;
}
