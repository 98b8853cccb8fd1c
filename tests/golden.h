/* golden: numbers that PyTorch computed, and the formula of what it computed them from.
 *
 * tests/golden/make_golden.py makes the files and explains both. Inputs, labels and weights are
 * exact in float32 here and there, so a difference is one of arithmetic. */
#ifndef TT_GOLDEN_H
#define TT_GOLDEN_H

#include "tensor/tensor.h"
#include "test.h"

enum { GOLDEN_STEPS = 10, GOLDEN_VALUES = 64, GOLDEN_TENSORS = 400 };

typedef struct golden_tensor {
    char name[80];
    bool stat; /* a running statistic after the first step; else a gradient of the first step */
    int64_t n;
    double norm;
    int told; /* how many of its elements are known, at golden_place */
    double value[GOLDEN_VALUES];
} golden_tensor;

typedef struct golden {
    char name[80];
    int64_t features, ids, id_rows, labels;
    int classes, batch;
    double lr, momentum;
    double loss[GOLDEN_STEPS]; /* each step with a batch of its own    */
    double same[GOLDEN_STEPS]; /* every step with the first batch      */
    double eval;               /* of the first batch, after `same`     */
    golden_tensor *tensor;
    int tensor_count;
    double least; /* gradients below this are rounding: a thousandth of the whole norm */
} golden;

/* ---- The formula ---- */

static inline uint64_t golden_bits(const char *name, const char *suffix, int64_t i)
{
    uint64_t key = 0xCBF29CE484222325u;

    for (; *name; name++) key = (key ^ (uint8_t)*name) * 0x100000001B3u;
    for (; *suffix; suffix++) key = (key ^ (uint8_t)*suffix) * 0x100000001B3u;
    uint64_t z = key + (uint64_t)i * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline float golden_value(const char *name, int64_t i)
{
    return ((float)(golden_bits(name, "", i) >> 52) - 2048) / 2048;
}

static inline int64_t golden_place(const golden_tensor *t, int i)
{
    return t->n == t->told ? i : (int64_t)(golden_bits(t->name, "#", i) % (uint64_t)t->n);
}

static inline bool golden_ends(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

static inline void golden_weights(const tt_param *params, int count, float *w)
{
    for (int k = 0; k < count; k++) {
        const tt_param *p = &params[k];
        bool scale = p->rank == 1 && golden_ends(p->name, ".weight");
        bool shift = golden_ends(p->name, ".bias") && k + 1 < count && /* of a batch norm */
                     params[k + 1].role == TT_STAT;
        float unit = 1;
        for (int64_t e = 6; p->rank > 1 && e < p->n / p->shape[0]; e *= 4) unit /= 2;
        for (int64_t i = 0; i < p->n; i++) {
            float v = golden_value(p->name, i), *to = w + p->at + i;
            if (p->role == TT_STAT)
                *to = golden_ends(p->name, "running_var");
            else if (p->rank > 1)
                *to = v * unit;
            else if (scale)
                *to = 0.5f + v / 8;
            else if (shift)
                *to = golden_bits(p->name, "", i) % 8 ? 1 : -32;
            else
                *to = v / 8;
        }
    }
}

/* The samples of a step. */
static inline void golden_batch(const golden *g, int step, float *x, int32_t *id, int32_t *label)
{
    int64_t first = (int64_t)step * g->batch;

    for (int64_t i = 0; i < g->batch * g->features; i++)
        x[i] = golden_value("x", first * g->features + i);
    for (int64_t i = 0; i < g->batch * g->ids; i++)
        id[i] = (int32_t)(golden_bits("id", "", first * g->ids + i) % (uint64_t)g->id_rows);
    for (int64_t i = 0; i < g->batch * g->labels; i++)
        label[i] =
            (int32_t)(golden_bits("label", "", first * g->labels + i) % (uint64_t)g->classes);
}

/* ---- The file ---- */

static inline void golden_line(golden *g, const char *line)
{
    golden_tensor *t = g->tensor_count ? &g->tensor[g->tensor_count - 1] : NULL;
    char word[16], name[80];
    long long n, dim[3] = {1, 1, 1};
    double v;
    int at;

    if (*line == '#') return;
    if (*line == ' ') {
        for (; sscanf(line, "%lf%n", &v, &at) == 1; line += at) {
            if (!t || t->told == GOLDEN_VALUES) FAIL("%s: values without a tensor", g->name);
            t->value[t->told++] = v;
        }
    } else if (sscanf(line, "input %lld %lld %lld", &dim[0], &dim[1], &dim[2]) > 0) {
        g->features = dim[0] * dim[1] * dim[2];
    } else if (sscanf(line, "ids %lld %lld", &dim[0], &dim[1]) == 2) {
        g->ids = dim[0];
        g->id_rows = dim[1];
    } else if (sscanf(line, "loss %lld %lf", &n, &v) == 2 && n >= 0 && n < GOLDEN_STEPS) {
        g->loss[n] = v;
    } else if (sscanf(line, "same %lld %lf", &n, &v) == 2 && n >= 0 && n < GOLDEN_STEPS) {
        g->same[n] = v;
    } else if (sscanf(line, "%15s %79s %lld %lf", word, name, &n, &v) == 4) {
        if (g->tensor_count == GOLDEN_TENSORS) FAIL("%s: too many tensors", g->name);
        t = &g->tensor[g->tensor_count++];
        *t = (golden_tensor){.n = n, .norm = v, .stat = !strcmp(word, "stat")};
        memcpy(t->name, name, sizeof name);
        if (!t->stat) g->least = sqrt(g->least * g->least + v * v);
    } else if (sscanf(line, "%15s %lf", word, &v) == 2) {
        if (!strcmp(word, "classes"))
            g->classes = (int)v;
        else if (!strcmp(word, "batch"))
            g->batch = (int)v;
        else if (!strcmp(word, "labels"))
            g->labels = (int)v;
        else if (!strcmp(word, "lr"))
            g->lr = v;
        else if (!strcmp(word, "momentum"))
            g->momentum = v;
        else if (!strcmp(word, "eval"))
            g->eval = v;
        else if (strcmp(word, "values"))
            FAIL("%s: what is '%s'?", g->name, line);
    } else {
        FAIL("%s: what is '%s'?", g->name, line);
    }
}

static inline void golden_load(const char *name, golden *g)
{
    char path[128], line[1024];
    FILE *f;

    *g = (golden){.labels = 1, .tensor = calloc(GOLDEN_TENSORS, sizeof *g->tensor)};
    snprintf(g->name, sizeof g->name, "%s", name);
    snprintf(path, sizeof path, "tests/golden/%s.txt", name);
    if (!(f = fopen(tt_test_source(path), "r"))) FAIL("cannot read %s", tt_test_source(path));
    while (fgets(line, sizeof line, f)) golden_line(g, line);
    fclose(f);
    g->least /= 1000;
    EXPECT((g->features || g->ids) && g->classes && g->batch && g->lr > 0 && g->eval > 0 &&
           g->tensor_count);
    for (int t = 0; t < GOLDEN_STEPS; t++) EXPECT(g->loss[t] > 0 && g->same[t] > 0);
}

static inline void golden_free(golden *g)
{
    free(g->tensor);
}

/* ---- Comparing ---- */

/* `have` is the tensor of that name, whole. The known elements must agree as a vector, relative to
 * their share of the norm, and the norm must be the same, which the other elements enter. */
static inline void golden_check(const golden *g, const golden_tensor *t, const float *have,
                                double tolerance, const char *what)
{
    double norm = 0, diff = 0, least = t->stat ? 0 : g->least;

    for (int64_t i = 0; i < t->n; i++) norm += (double)have[i] * have[i];
    norm = sqrt(norm);
    if (!(fabs(norm - t->norm) <= tolerance * (t->norm + least)))
        FAIL("%s, %s: %s has norm %.8g, in PyTorch %.8g", g->name, what, t->name, norm, t->norm);
    for (int i = 0; i < t->told; i++) diff += pow(have[golden_place(t, i)] - t->value[i], 2);
    diff = sqrt(diff * (double)t->n / t->told);
    if (!(diff <= tolerance * (t->norm + least)))
        FAIL("%s, %s: %s is off by %.3g, its norm is %.3g", g->name, what, t->name, diff, t->norm);
}

#endif
