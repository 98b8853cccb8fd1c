/* Whole runs against PyTorch: a job, its weights from a file, ten steps on one batch (so that the
 * order of the samples plays no part), and the validation behind them, for several numbers of
 * threads. */
#include "golden.h"
#include "train/train.h"

typedef struct rows {
    float *x;
    int32_t *label;
    tt_data_rows data;
} rows;

static void rows_open(rows *r, const golden *g)
{
    r->x = malloc((size_t)(g->batch * g->features) * sizeof *r->x);
    r->label = malloc((size_t)g->batch * sizeof *r->label);
    golden_batch(g, 0, r->x, NULL, r->label);
    r->data = (tt_data_rows){.x = r->x, .label = r->label, .n = g->batch};
}

static void rows_close(rows *r)
{
    free(r->x);
    free(r->label);
}

/* The formula's weights as anybody's program would hand them over. */
static void write_weights(tt_node *model, const char *path)
{
    tt_model *m;
    int count;

    EXPECT_OK(tt_model_open(model, &(tt_model_opts){0}, &m));
    const tt_param *params = tt_model_params(m, &count);
    float *w = malloc((size_t)tt_model_size(m) * sizeof *w);
    tt_entry *entries = calloc((size_t)count, sizeof *entries);
    golden_weights(params, count, w);
    for (int i = 0; i < count; i++) {
        const tt_param *p = &params[i];
        entries[i] = (tt_entry){.name = p->name,
                                .type = TT_F32,
                                .rank = p->rank,
                                .data = w + p->at,
                                .bytes = p->n * (int64_t)sizeof *w};
        for (int d = 0; d < p->rank; d++) entries[i].shape[d] = p->shape[d];
    }
    EXPECT_OK(tt_tensors_write(path, entries, count, NULL, NULL));
    free(entries);
    free(w);
    tt_model_close(m);
}

static void run_job(const golden *g, const char *model, int threads, int accumulate)
{
    tt_str text = {0};
    tt_tree *job;
    tt_trainer *t;
    tt_metrics val;
    rows r;

    tt_str_add(
        &text,
        "name: golden\nmodel: {%s, loss: softmax_cross_entropy}\ntrain: {steps: %d, batch: %d, "
        "accumulate: %d, validate: never, optimizer: {sgd: {lr: %g, momentum: %g}}}\n",
        model, GOLDEN_STEPS, g->batch, accumulate, g->lr, g->momentum);
    EXPECT_OK(tt_tree_parse("golden", text.data, text.size, &job));
    tt_str_free(&text);
    write_weights(tt_tree_get(job, "model"), "w.safetensors");
    rows_open(&r, g);
    tt_train_opts o = {.job = job,
                       .init = "w.safetensors",
                       .no_files = true,
                       .threads = threads,
                       .train_rows = &r.data,
                       .val_rows = &r.data};
    EXPECT_OK(tt_train_open(&o, &t));
    EXPECT_INT(threads, tt_train_threads(t));
    for (int i = 0; i < GOLDEN_STEPS; i++) {
        tt_progress p;
        EXPECT_OK(tt_train_step(t, &p));
        if (!(fabs(p.loss - g->same[i]) <= 5e-5 * g->same[i]))
            FAIL("%s with %d threads: loss of step %d is %.8f, in PyTorch %.8f", g->name, threads,
                 i, p.loss, g->same[i]);
    }
    EXPECT_OK(tt_train_validate(t, &val));
    EXPECT_INT(g->batch, val.samples);
    if (!(fabs(val.loss - g->eval) <= 5e-5 * g->eval))
        FAIL("%s with %d threads: validation is %.8f, in PyTorch %.8f", g->name, threads, val.loss,
             g->eval);
    tt_train_close(t);
    rows_close(&r);
    tt_tree_close(job);
}

TT_TEST(train_golden, small_cnn_has_the_losses_of_pytorch)
{
    static const char model[] =
        "input: [1, 28, 28], layers: [conv: {out: 10, kernel: 5}, maxpool: {size: 2}, relu, "
        "conv: {out: 20, kernel: 5}, maxpool: {size: 2}, relu, flatten, dense: {out: 50}, relu, "
        "dense: {out: 10}]";
    golden g;

    golden_load("mnist-cnn", &g);
    for (int threads = 1; threads <= 5; threads += 2)
        for (int accumulate = 1; accumulate <= 3; accumulate += 2)
            run_job(&g, model, threads, accumulate);
    golden_free(&g);
}

/* Threads share out the batch, and their batch norms are still those of the whole. */
TT_TEST(train_golden, resnet_has_the_losses_of_pytorch_on_any_number_of_threads)
{
    static const char model[] =
        "input: [3, 64, 64], layers: [resnet: {depth: 50, classes: 10, width: 8}]";
    golden g;

    golden_load("resnet50-narrow", &g);
    for (int threads = 1; threads <= 3; threads++) run_job(&g, model, threads, 1);
    golden_free(&g);
}
