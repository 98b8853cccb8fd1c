/* layers: how fast each case of tests/cases.h trains with every kernel table of this CPU.
 *
 *   make bench-layers [T=conv] [P=bf16]      cases whose name contains T, in bf16
 *
 * Forward, backward to weights and input; one thread, CPU time, the best pass of many. A batch norm
 * stands before the case, so that the input has a gradient to want; the time of its own is taken
 * off. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cases.h"
#include "model/model.h"

enum { SAMPLES = 64 };

static void must(tt_err err)
{
    if (!err) return;
    fprintf(stderr, "layers: %s\n", tt_message());
    exit(1);
}

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *numbers(int64_t n, uint64_t key)
{
    float *x = tt_block_alloc((size_t)n * sizeof *x + 64), four[4];

    if (!x) tt_mem_out((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        if (i % 4 == 0) tt_normal4(key, 0, (uint64_t)i, four);
        x[i] = four[i % 4];
    }
    return x;
}

/* What stands before a case, so that it has a gradient to give: a sequence takes another one, and
 * ids have none. */
static const char *front_of(const char *input)
{
    const char *comma = strchr(input, ',');

    if (*input != '[') return "";
    return comma && !strchr(comma + 1, ',') ? "- layernorm\n" : "- batchnorm\n";
}

/* Seconds of the best training pass, and the floating-point operations of it. */
static double best_pass(const char *input, const char *layers, int n, const tt_kernels *k,
                        double *flops)
{
    const tt_model_opts o = {.kernels = k, .samples = n};
    tt_str text = {0};
    tt_tree *tree;
    tt_model *m;
    tt_run *r;
    double best = 1e9, spent = 0;

    tt_str_add(&text, "input: %s\nlayers:\n%s%s\nloss: mse\n", input, front_of(input), layers);
    must(tt_tree_parse("case", text.data, text.size, &tree));
    must(tt_model_open(tt_tree_root(tree), &o, &m));
    must(tt_run_open(m, n, true, &r));
    const int64_t ids = tt_model_row(m).ids;
    const int64_t size = tt_model_size(m), in = n * tt_shape_count(tt_model_input(m)),
                  out = n * tt_shape_count(tt_model_output(m));
    float *w = numbers(size, 1), *grad = numbers(size, 2), *x = numbers(in, 3),
          *target = numbers(out, 4);
    uint64_t *place = calloc((size_t)n * 2, sizeof *place);
    int32_t *id = calloc((size_t)(n * ids) + 1, sizeof *id);
    const tt_batch b = {.n = n, .x = x, .ids = id, .target = target, .place = place};

    if (!place || !id) tt_mem_out((size_t)n * 2 * sizeof *place);
    for (int64_t i = 0; i < n * ids; i++) id[i] = (int32_t)(i % tt_model_wants(m).id_rows[i % ids]);
    tt_model_init(m, 1, w);
    tt_model_bind(m, w);
    tt_model_refresh(m, 0, 1);
    for (int i = 0; i < 2 || spent < 0.2; i++) {
        double begun = cpu_s(), took;
        tt_yield y;

        tt_run_begin(r, TT_PASS_TRAIN, &b, grad, false, 1);
        do tt_run_advance(r, &y);
        while (y.kind != TT_PASS_DONE);
        took = cpu_s() - begun;
        spent += took;
        if (took < best) best = took;
    }
    *flops = tt_model_train_flops(m) * n;
    free(place);
    free(id);
    tt_block_free(w, (size_t)size * sizeof *w + 64);
    tt_block_free(grad, (size_t)size * sizeof *grad + 64);
    tt_block_free(x, (size_t)in * sizeof *x + 64);
    tt_block_free(target, (size_t)out * sizeof *target + 64);
    tt_run_close(r);
    tt_model_close(m);
    tt_tree_close(tree);
    tt_str_free(&text);
    return best;
}

static void bench_case(const tt_case *c, const tt_kernels *const *all, int tables)
{
    const int n = c->bench ? c->bench : SAMPLES;
    double flops = 0, fastest = 1e9, unused;

    printf("%-32s %5d", c->name, n);
    for (int t = 0; t < tables; t++) {
        double s = best_pass(c->input, c->layers, n, all[t], &flops);

        if (*front_of(c->input)) s -= best_pass(c->input, "", n, all[t], &unused);
        if (s < 1e-8) s = 1e-8; /* all but nothing */
        if (s < fastest) fastest = s;
        printf(" %12.2f", s / n * 1e6);
        fflush(stdout);
    }
    if (flops > 0)
        printf(" %9.1f\n", flops / fastest / 1e9);
    else
        printf(" %9s\n", "-");
}

int main(int argc, char **argv)
{
    const tt_kernels *const *all;
    const bool bf16 = argc > 2 && !strcmp(argv[2], "bf16");
    const int tables = tt_kernels_with(bf16 ? TT_IN_BF16 : TT_IN_FLOAT32, &all);

    printf("%-32s %5s", "microseconds a sample", "batch");
    for (int t = 0; t < tables; t++) printf(" %12s", all[t]->name);
    printf(" %9s\n", "GFLOP/s");
    for (int i = 0; i < TT_COUNT(tt_cases); i++)
        if (argc < 2 || strstr(tt_cases[i].name, argv[1])) bench_case(&tt_cases[i], all, tables);
    return 0;
}
