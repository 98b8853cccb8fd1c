/* onnx: reads what the tests need of ONNX's own test vectors: the one node of a model with its
 * attributes, and the tensors beside it. Only tests include it; a broken file ends the test. */
#ifndef TT_TEST_ONNX_H
#define TT_TEST_ONNX_H

#include "test.h"

enum { ONNX_MOST = 16, ONNX_NAME = 40 };

typedef struct onnx_attribute {
    char name[ONNX_NAME], s[ONNX_NAME];
    float f;
    int64_t i;
} onnx_attribute;

/* The model's only node. */
typedef struct onnx_node {
    char op[ONNX_NAME];
    char input[ONNX_MOST][ONNX_NAME], output[ONNX_MOST][ONNX_NAME];
    int input_count, output_count, attribute_count;
    onnx_attribute attribute[ONNX_MOST];
} onnx_node;

/* Numbers of any stored type as doubles. */
typedef struct onnx_tensor {
    int64_t n;
    double x[64];
} onnx_tensor;

/* ---- protobuf: a message is a run of fields; a field is a number, a wire type and a value ---- */

typedef struct onnx_field {
    uint64_t number, value;         /* the value of wire types 0, 1 and 5 */
    const uint8_t *data, *data_end; /* of wire type 2                     */
} onnx_field;

static inline uint64_t onnx_varint(const uint8_t **p, const uint8_t *end)
{
    uint64_t v = 0;

    for (int shift = 0; shift < 64; shift += 7) {
        if (*p >= end) FAIL("the file ends inside a number");
        v |= (uint64_t)(**p & 127) << shift;
        if (!(*(*p)++ & 128)) return v;
    }
    FAIL("a number of more than ten bytes");
}

/* The next field of the message that lasts to `end`; false at its end. */
static inline bool onnx_next(const uint8_t **p, const uint8_t *end, onnx_field *out)
{
    static const uint8_t sizes[] = {[1] = 8, [5] = 4};
    uint64_t tag, size;

    if (*p >= end) return false;
    tag = onnx_varint(p, end);
    *out = (onnx_field){.number = tag >> 3};
    switch (tag & 7) {
    case 0:
        out->value = onnx_varint(p, end);
        return true;
    case 1:
    case 5:
        size = sizes[tag & 7];
        break;
    case 2:
        size = onnx_varint(p, end);
        break;
    default:
        FAIL("a field of an unknown type, %d", (int)(tag & 7));
    }
    if (size > (uint64_t)(end - *p)) FAIL("the file ends inside field %d", (int)out->number);
    if ((tag & 7) == 2)
        out->data = *p, out->data_end = *p + size;
    else
        memcpy(&out->value, *p, size); /* little endian, as the machines of the tests */
    *p += size;
    return true;
}

static inline void onnx_text(const onnx_field *f, char out[ONNX_NAME])
{
    size_t n = (size_t)(f->data_end - f->data);

    if (!f->data || n >= ONNX_NAME) FAIL("a name of %zu bytes", n);
    memcpy(out, f->data, n);
    out[n] = 0;
}

/* ---- what the messages mean ---- */

static inline void onnx_read_attribute(const onnx_field *in, onnx_attribute *out)
{
    const uint8_t *p = in->data;
    uint32_t bits;
    onnx_field f;

    while (onnx_next(&p, in->data_end, &f)) {
        if (f.number == 1) onnx_text(&f, out->name);
        if (f.number == 2) bits = (uint32_t)f.value, memcpy(&out->f, &bits, 4);
        if (f.number == 3) out->i = (int64_t)f.value;
        if (f.number == 4) onnx_text(&f, out->s);
    }
}

static inline void onnx_read_node(const onnx_field *in, onnx_node *out)
{
    const uint8_t *p = in->data;
    onnx_field f;

    while (onnx_next(&p, in->data_end, &f)) {
        if (out->input_count == ONNX_MOST || out->output_count == ONNX_MOST ||
            out->attribute_count == ONNX_MOST)
            FAIL("a larger node than was expected");
        if (f.number == 1) onnx_text(&f, out->input[out->input_count++]);
        if (f.number == 2) onnx_text(&f, out->output[out->output_count++]);
        if (f.number == 4) onnx_text(&f, out->op);
        if (f.number == 5) onnx_read_attribute(&f, &out->attribute[out->attribute_count++]);
    }
}

/* ModelProto: 7 graph; GraphProto: 1 node. */
static inline onnx_node onnx_load_node(const char *path)
{
    onnx_node node = {0};
    onnx_field model, graph;
    const uint8_t *p, *q;
    tt_bytes b;

    EXPECT_OK(tt_file_read(path, 1 << 20, &b));
    p = b.data;
    while (onnx_next(&p, b.data + b.size, &model)) {
        if (model.number != 7) continue;
        q = model.data;
        while (onnx_next(&q, model.data_end, &graph))
            if (graph.number == 1) onnx_read_node(&graph, &node);
    }
    tt_file_release(&b);
    return node;
}

static inline const onnx_attribute *onnx_find(const onnx_node *node, const char *name)
{
    for (int i = 0; i < node->attribute_count; i++)
        if (!strcmp(node->attribute[i].name, name)) return &node->attribute[i];
    FAIL("the node %s has no attribute %s", node->op, name);
}

/* TensorProto: 1 dims, 2 data_type (1 float, 7 int64), 9 raw_data. */
static inline onnx_tensor onnx_load_tensor(const char *path)
{
    onnx_tensor t = {.n = 1};
    const uint8_t *p, *raw = NULL;
    size_t raw_size = 0, item;
    uint64_t type = 0;
    onnx_field f;
    tt_bytes b;

    EXPECT_OK(tt_file_read(path, 1 << 20, &b));
    p = b.data;
    while (onnx_next(&p, b.data + b.size, &f)) {
        if (f.number == 1) t.n *= (int64_t)f.value;
        if (f.number == 2) type = f.value;
        if (f.number == 9) raw = f.data, raw_size = (size_t)(f.data_end - f.data);
    }
    item = type == 1 ? sizeof(float) : sizeof(int64_t);
    if (type != 1 && type != 7) FAIL("%s: type %d, expected float or int64", path, (int)type);
    if (t.n < 0 || t.n > TT_COUNT(t.x) || !raw || raw_size != (size_t)t.n * item)
        FAIL("%s: %lld numbers in %zu bytes", path, (long long)t.n, raw_size);
    for (int64_t i = 0; i < t.n; i++) {
        float single;
        int64_t whole;
        if (type == 1)
            memcpy(&single, raw + 4 * i, 4), t.x[i] = single;
        else
            memcpy(&whole, raw + 8 * i, 8), t.x[i] = (double)whole;
    }
    tt_file_release(&b);
    return t;
}

#endif
