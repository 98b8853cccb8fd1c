/* Fuzz entry for the reader of CSV and TSV. With libFuzzer: clang -fsanitize=fuzzer,address. */
#include <stdlib.h>
#include <string.h>

#include "data/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const jobs[] = {
    "{format: csv, file: x, label: -1, missing: 0}",
    "{format: csv, file: x, label: y, comment: '#'}",
    "{format: csv, file: x, columns: [{index: 0, type: category}, {index: 1, type: label},"
    " {index: -1, type: category, hash: 7, strip: .}]}",
    "{format: csv, file: x, header: true, columns: [{name: a, normalize: true}, {index: 1, type: "
    "target}]}",
    "{format: csv, file: x, columns: [{index: 0, type: id}, {index: 1, type: id, hash: 3}, {index: "
    "-1, type: label}]}",
};
static const int64_t id_rows[] = {5, 3}; /* of the last one */

static void check(const tt_source *s, int classes)
{
    int64_t features = s->shape.dim[0];

    for (int64_t r = 0; s->label && r < s->kept; r++)
        if (s->label[r] < -1 || (classes && s->label[r] >= classes)) abort();
    for (int64_t i = 0; i < s->kept * s->ids_each; i++)
        if (s->ids[i] < -1 || s->ids[i] >= id_rows[i % 2]) abort();
    if (s->keep != TT_KEEP_SPARSE) return;
    for (int64_t i = 0; i < s->row[s->kept]; i++)
        if (s->col[i] < 0 || s->col[i] >= features) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text =
        malloc(size ? size : 1); /* of its exact size, so that reading past the end is seen */

    memcpy(text, data, size);
    for (int i = 0; i < TT_COUNT(jobs); i++) {
        tt_data_want want = {.input = {1, {1}},
                             .classes = i % 2 ? 0 : 4,
                             .targets = i % 2,
                             .ids = i == 4 ? 2 : 0,
                             .id_rows = id_rows};
        tt_source_ctx c = {.want = &want, .dir = ""};
        tt_source *train = tt_source_new(), *val = tt_source_new(), *x = tt_source_new();
        tt_tree *tree;
        if (tt_tree_parse("fuzz", jobs[i], strlen(jobs[i]), &tree)) abort();
        train->name = val->name = x->name = "fuzz";
        if (!tt_csv_decode(train, tt_tree_root(tree), "train", &c, i == 2, text, size)) {
            check(train, want.classes);
            c.train = train; /* the same text as validation set must fit */
            if (tt_csv_decode(val, tt_tree_root(tree), "val", &c, i == 2, text, size)) abort();
            check(val, want.classes);
            want.only_x = true; /* to predict from: the same features, and no answers */
            if (!tt_csv_decode(x, tt_tree_root(tree), "val", &c, i == 2, text, size)) {
                check(x, want.classes);
                if (x->label || x->target) abort();
            }
        }
        tt_source_close(x);
        tt_source_close(val);
        tt_source_close(train);
        tt_tree_close(tree);
    }
    free(text);
    return 0;
}
