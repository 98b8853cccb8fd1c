/* A reader of tar archives in memory: ustar headers, files and folders; what else there is, is
 * skipped. */
#include "data/source.h"

#include <stdio.h>
#include <string.h>

#define BLOCK 512

/* Octal digits, then spaces or NULs; false if there is anything else. */
static bool octal(const uint8_t *p, int n, uint64_t *out)
{
    int i = 0;

    *out = 0;
    while (i < n && p[i] == ' ') i++;
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++) *out = *out * 8 + (uint64_t)(p[i] - '0');
    for (; i < n; i++)
        if (p[i] != ' ' && p[i]) return false;
    return true;
}

/* The sum of all bytes of the header, its own field taken as spaces. */
static bool sum_is_right(const uint8_t *h)
{
    uint64_t stored, sum = 0;

    for (int i = 0; i < BLOCK; i++) sum += i >= 148 && i < 156 ? ' ' : h[i];
    return octal(h + 148, 8, &stored) && stored == sum;
}

static bool is_zero(const uint8_t *p)
{
    for (int i = 0; i < BLOCK; i++)
        if (p[i]) return false;
    return true;
}

tt_err tt_tar_next(tt_tar *t, tt_tar_entry *e, bool *more)
{
    const uint8_t *h = t->data + t->at;
    uint64_t size, padded;

    *more = false;
    if (t->at == t->size) return TT_OK;
    if (t->size - t->at < BLOCK)
        return tt_fail(TT_EFORMAT, "the archive is cut off at offset %zu", t->size);
    if (is_zero(h)) return TT_OK; /* the end mark */
    if (!sum_is_right(h) || !octal(h + 124, 12, &size))
        return tt_fail(TT_EFORMAT, "offset %zu of the archive: no valid header", t->at);
    if (size > t->size - t->at - BLOCK)
        return tt_fail(TT_EFORMAT, "offset %zu of the archive: a member of %llu bytes is cut off",
                       t->at, (unsigned long long)size);
    if (!memcmp(h + 257, "ustar", 5) && h[345])
        snprintf(e->name, sizeof e->name, "%.155s/%.100s", (const char *)h + 345, (const char *)h);
    else
        snprintf(e->name, sizeof e->name, "%.100s", (const char *)h);
    e->type = h[156] ? (char)h[156] : '0';
    e->data = h + BLOCK;
    e->size = (size_t)size;
    padded = (size + BLOCK - 1) / BLOCK * BLOCK;
    t->at += BLOCK;
    t->at +=
        padded < t->size - t->at ? (size_t)padded : t->size - t->at; /* the last may lack padding */
    *more = true;
    return TT_OK;
}

tt_err tt_tar_find(const uint8_t *data, size_t size, const char *name, tt_tar_entry *e)
{
    tt_tar t = {data, size, 0};
    bool more;
    tt_err err;

    while (!(err = tt_tar_next(&t, e, &more)) && more)
        if (e->type == '0' && !strcmp(e->name, name)) return TT_OK;
    return err ? err : tt_fail(TT_EDATA, "%s is not in the archive", name);
}
