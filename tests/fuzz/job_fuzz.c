/* Whatever a job file and a --set hold, parsing them ends, and what they print reads back. Built
 * with -fsanitize=fuzzer,address,undefined from this file and the module base. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct values {
    int64_t batch, kernel[2];
    double lr;
    const char *name;
    int mode;
    tt_ints shape;
    tt_node *layers;
} values;

static const tt_key keys[] = {
    {"batch", TT_INT, offsetof(values, batch), "64", 1, 1e6},
    {"kernel", TT_PAIR, offsetof(values, kernel), "[3, 3]"},
    {"lr", TT_NUMBER, offsetof(values, lr), "1e-3", 0, 10},
    {"name", TT_STRING, offsetof(values, name), "-"},
    {"mode", TT_CHOICE, offsetof(values, mode), "same", .choices = "same|valid"},
    {"shape", TT_INTS, offsetof(values, shape), "[]"},
    {"layers", TT_NODE, offsetof(values, layers), "[]"},
};

static void read_values(tt_node *root)
{
    values v = {0};
    tt_node *at, *args;
    const char *kind;

    if (tt_node_read(root, "job", keys, TT_COUNT(keys), &v) || v.layers->kind != TT_LIST) return;
    for (int i = 0; i < v.layers->count; i++)
        if (!tt_node_kind_of(v.layers->item[i], "layer", &kind, &at, &args))
            (void)tt_node_read(args, kind, keys, TT_COUNT(keys), &v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* Up to the first zero byte: the file; then assignments, each up to the next. */
    const char *text = (const char *)data, *end = text + size;
    size_t head = strnlen(text, size);
    tt_tree *t, *again;
    tt_str printed = {0};

    if (tt_tree_parse("fuzz", text, head, &t)) {
        TT_ASSERT(*tt_message());
        return 0;
    }
    for (const char *set = text + head + 1; set < end; set += strlen(set) + 1) {
        if (!memchr(set, 0, (size_t)(end - set))) break;
        (void)tt_tree_set(t, set);
    }
    (void)tt_tree_set(t, "layers.conv1.out=3");
    (void)tt_tree_set(t, "layers.0=relu");
    (void)tt_tree_set(t, "batch={a: [1, 2]}");
    (void)tt_tree_set(t, "batch=7");
    read_values(tt_tree_root(t));
    tt_tree_print(tt_tree_root(t), true, &printed);
    if (tt_tree_parse("printed", printed.data, printed.size, &again)) {
        /* Assignments may nest deeper, and defaults add more, than a file may. */
        TT_ASSERT(strstr(tt_message(), "nested more than") ||
                  strstr(tt_message(), "more than 200000"));
    } else
        tt_tree_close(again);
    tt_str_free(&printed);
    tt_tree_close(t);
    return 0;
}
