/* Shapes, and batches. */
#include <stdio.h>
#include <stdlib.h>

#include "tensor/tensor.h"

int64_t tt_shape_count(tt_shape s)
{
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) n *= s.dim[i];
    return n;
}

char *tt_shape_show(tt_shape s, char *buf, size_t size)
{
    size_t at = 0;

    if (size) *buf = 0;
    for (int i = 0; i < s.rank && at < size; i++)
        at += (size_t)snprintf(buf + at, size - at, "%s%lld", i ? "x" : "", (long long)s.dim[i]);
    return buf;
}

bool tt_shape_equal(tt_shape a, tt_shape b)
{
    if (a.rank != b.rank) return false;
    for (int i = 0; i < a.rank; i++)
        if (a.dim[i] != b.dim[i]) return false;
    return true;
}

/* Bytes of n rows of `width` elements; SIZE_MAX if there is no such number. */
static size_t rows_bytes(int n, int64_t width, size_t element)
{
    if (n < 0 || width < 0) return SIZE_MAX;
    return tt_mul_size(tt_mul_size((size_t)n, (size_t)width), element);
}

/* Zero bytes need a block too: NULL means that the batch has no such part. */
static void *rows_alloc(int n, int64_t width, size_t element)
{
    size_t bytes = rows_bytes(n, width, element);
    return tt_block_alloc(bytes ? bytes : 1);
}

static void rows_free(const void *p, int n, int64_t width, size_t element)
{
    size_t bytes = rows_bytes(n, width, element);
    if (p) tt_block_free((void *)p, bytes ? bytes : 1);
}

tt_err tt_batch_open(int n_most, const tt_row *row, tt_batch *out)
{
    tt_batch b = {0};

    *out = b;
    bool all = (!row->features || (b.x = rows_alloc(n_most, row->features, sizeof *b.x))) &&
               (!row->ids || (b.ids = rows_alloc(n_most, row->ids, sizeof *b.ids))) &&
               (!row->labels || (b.label = rows_alloc(n_most, row->labels, sizeof *b.label))) &&
               (!row->targets || (b.target = rows_alloc(n_most, row->targets, sizeof *b.target))) &&
               (b.place = rows_alloc(n_most, 2, sizeof *b.place));
    if (!all) {
        tt_batch_close(&b, n_most, row);
        return tt_fail(TT_ENOMEM, "no memory for a batch of %d samples of %lld numbers", n_most,
                       (long long)(row->features + row->ids + row->labels + row->targets));
    }
    *out = b;
    return TT_OK;
}

void tt_batch_close(tt_batch *b, int n_most, const tt_row *row)
{
    rows_free(b->place, n_most, 2, sizeof *b->place);
    rows_free(b->x, n_most, row->features, sizeof *b->x);
    rows_free(b->ids, n_most, row->ids, sizeof *b->ids);
    rows_free(b->label, n_most, row->labels, sizeof *b->label);
    rows_free(b->target, n_most, row->targets, sizeof *b->target);
    *b = (tt_batch){0};
}

tt_batch tt_batch_cut(const tt_batch *b, int first, int n, const tt_row *row)
{
    TT_ASSERT(first >= 0 && n >= 0 && first <= b->n && n <= b->n - first);
    return (tt_batch){
        .n = n,
        .x = b->x ? b->x + first * row->features : NULL,
        .ids = b->ids ? b->ids + first * row->ids : NULL,
        .label = b->label ? b->label + first * row->labels : NULL,
        .target = b->target ? b->target + first * row->targets : NULL,
        .place = b->place ? b->place + 2 * (int64_t)first : NULL,
    };
}
