/* Helpers of the data tests: jobs from text, small files, whole splits as one batch. */
#ifndef DATA_HELP_H
#define DATA_HELP_H

#include "data/data.h"
#include "test.h"

typedef struct opened {
    tt_tree *tree;
    tt_data *data;
} opened;

static inline tt_data_want wants(int rank, int64_t c, int64_t h, int64_t w, int classes,
                                 int targets)
{
    tt_data_want want = {.classes = classes, .targets = targets, .labels = 1};
    want.input.rank = rank;
    want.input.dim[0] = c;
    want.input.dim[1] = h;
    want.input.dim[2] = w;
    return want;
}
static inline tt_data_want wants_vector(int64_t n, int classes, int targets)
{
    return wants(1, n, 0, 0, classes, targets);
}

/* `text` is the `data` map. */
static inline tt_err open_text(const char *text, tt_data_want want, opened *o)
{
    *o = (opened){0};
    EXPECT_OK(tt_tree_parse("job.yaml", text, strlen(text), &o->tree));
    return tt_data_open(tt_tree_root(o->tree), &want, 7, &o->data);
}

static inline void shut(opened *o)
{
    tt_data_close(o->data);
    tt_tree_close(o->tree);
    *o = (opened){0};
}

/* Opens, expects `code` and `part` in the message, closes. */
#define EXPECT_REFUSED(code, part, text, want)                                                     \
    do {                                                                                           \
        opened o_;                                                                                 \
        EXPECT_ERR(code, open_text(text, want, &o_));                                              \
        EXPECT_MESSAGE(part);                                                                      \
        EXPECT(!o_.data);                                                                          \
        shut(&o_);                                                                                 \
    } while (0)

/* All samples of a split, in the order of the file. */
typedef struct whole {
    tt_batch b;
    tt_row row;
} whole;

static inline whole take_all(const tt_data *d, tt_split split, tt_data_want want)
{
    whole w = {.row = tt_data_row_of(&want)};
    int64_t n = tt_data_count(d, split);
    tt_order o = {.count = n, .batch = n, .by_pass = true, .augment = true};

    EXPECT_OK(tt_batch_open((int)n, &w.row, &w.b));
    EXPECT_OK(tt_data_fill(d, split, &o, 0, 0, (int)n, &w.b));
    return w;
}

static inline void free_all(whole *w)
{
    tt_batch_close(&w->b, w->b.n, &w->row);
}

/* IDX file of bytes: `rank` dimensions, then n bytes of data. */
static inline void write_idx(const char *path, int rank, const int *dim, const uint8_t *data,
                             size_t n)
{
    uint8_t *buf = calloc(1, 64 + n);
    size_t at = 4;

    buf[2] = 8;
    buf[3] = (uint8_t)rank;
    for (int i = 0; i < rank; i++, at += 4) {
        buf[at] = (uint8_t)(dim[i] >> 24), buf[at + 1] = (uint8_t)(dim[i] >> 16);
        buf[at + 2] = (uint8_t)(dim[i] >> 8), buf[at + 3] = (uint8_t)dim[i];
    }
    if (n) memcpy(buf + at, data, n);
    tt_test_write(path, buf, at + n);
    free(buf);
}

static inline void write_text(const char *path, const char *text)
{
    tt_test_write(path, text, strlen(text));
}

#endif
