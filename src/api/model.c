/* Models at work: predicting, judging, exporting, and what they consist of. */
#include <stdlib.h>
#include <string.h>

#include "inner.h"

/* Rows that are handed on at once: their number must fit an int, and a crew is sized for it. */
enum { CHUNK_ROWS = 1 << 16 };

struct tutti_model {
    tt_tree *job;
    char *layer; /* whose output is given; NULL: the last */
    tt_use *use;
};

/* A model at work needs no optimiser, but a job has one. */
static void add_train(tt_tree *job)
{
    tt_node *root = tt_tree_root(job), *train;

    if (root->kind != TT_MAP || tt_node_get(root, "train")) return;
    train = tt_node_map(job, root);
    tt_node_add(train, "steps", tt_node_scalar(job, root, "1"));
    tt_node_add(train, "optimizer", tt_node_scalar(job, root, "sgd"));
    tt_node_add(root, "train", train);
}

tt_err model_open(tt_tree *job, const char *weights, const tt_trainer *trained, const char *layer,
                  tutti_model **out)
{
    tutti_model *m = calloc(1, sizeof *m);
    tt_use_opts o = {.job = job, .weights = weights, .trained = trained};
    tt_err err;

    *out = NULL;
    if (!m || (layer && !(m->layer = strdup(layer)))) {
        tt_tree_close(job);
        free(m);
        return tt_fail(TT_ENOMEM, "no memory for a model");
    }
    m->job = job;
    add_train(job);
    o.layer = m->layer;
    if ((err = tt_use_open(&o, &m->use))) {
        tutti_model_close(m);
        return err;
    }
    *out = m;
    return TT_OK;
}

tutti_status tutti_model_open(const tutti_job *job, const char *weights, const char *layer,
                              tutti_model **out)
{
    tt_tree *copy;
    tt_err err;

    if (!out) return status_of(tt_fail(TT_EINVAL, "tutti_model_open: out is NULL"));
    *out = NULL;
    if ((err = job_copy(job, &copy))) return status_of(err);
    return status_of(model_open(copy, weights, NULL, layer, out));
}

void tutti_model_close(tutti_model *m)
{
    if (!m) return;
    tt_use_close(m->use);
    tt_tree_close(m->job);
    free(m->layer);
    free(m);
}

/* ---- shapes ---- */

tutti_shape shape_from(tt_shape s)
{
    tutti_shape out = {.rank = s.rank};

    memcpy(out.dim, s.dim, sizeof out.dim);
    return out;
}

int64_t tutti_shape_count(tutti_shape s)
{
    int64_t n = 1;

    if (s.rank < 1 || s.rank > 6) return 0;
    for (int i = 0; i < s.rank; i++)
        if (s.dim[i] < 1 || __builtin_mul_overflow(n, s.dim[i], &n)) return 0;
    return n;
}

tutti_shape tutti_model_input(const tutti_model *m)
{
    return m ? shape_from(tt_model_input(tt_use_model(m->use))) : (tutti_shape){0};
}

tutti_shape tutti_model_output(const tutti_model *m)
{
    const tt_model *inner;

    if (!m) return (tutti_shape){0};
    inner = tt_use_model(m->use);
    for (int i = 0; m->layer && i < tt_model_layer_count(inner); i++)
        if (!strcmp(tt_model_layer(inner, i).name, m->layer))
            return shape_from(tt_model_layer(inner, i).out);
    return shape_from(tt_model_output(inner));
}

/* ---- at work ---- */

static tt_err check_model(const tutti_model *m, const char *what)
{
    return m ? TT_OK : tt_fail(TT_EINVAL, "%s: there is no model: NULL was given", what);
}

int64_t tutti_model_ids(const tutti_model *m)
{
    return m ? tt_model_row(tt_use_model(m->use)).ids : 0;
}

static tt_err predict(tutti_model *m, const tutti_rows *r, float *y)
{
    tt_row row = tt_model_row(tt_use_model(m->use));
    int64_t out = tt_use_features(m->use);
    tt_err err = TT_OK;

    for (int64_t at = 0; at < r->count && !err; at += CHUNK_ROWS) {
        int n = (int)(r->count - at < CHUNK_ROWS ? r->count - at : CHUNK_ROWS);
        err = tt_use_predict_rows(m->use, r->x ? r->x + at * row.features : NULL,
                                  r->ids ? r->ids + at * row.ids : NULL, n, y + at * out);
        if (err == TT_EINVAL && at)
            err = tt_context(err, "of the rows from %lld on", (long long)at);
    }
    return err;
}

tutti_status tutti_model_predict(tutti_model *m, const float *x, int64_t rows, float *y)
{
    tt_err err = check_model(m, "tutti_model_predict");

    if (!err && rows < 0)
        err = tt_fail(TT_EINVAL, "tutti_model_predict: %lld rows", (long long)rows);
    if (!err && rows && (!x || !y)) err = tt_fail(TT_EINVAL, "tutti_model_predict: x or y is NULL");
    return status_of(err ? err : predict(m, &(tutti_rows){.count = rows, .x = x}, y));
}

tutti_status tutti_model_predict_rows(tutti_model *m, const tutti_rows *rows, float *y)
{
    tt_err err = check_model(m, "tutti_model_predict_rows");

    if (!err && !rows) err = tt_fail(TT_EINVAL, "tutti_model_predict_rows: rows is NULL");
    if (!err && rows->count < 0)
        err = tt_fail(TT_EINVAL, "tutti_model_predict_rows: %lld rows", (long long)rows->count);
    if (!err && rows->count && !y) err = tt_fail(TT_EINVAL, "tutti_model_predict_rows: y is NULL");
    return status_of(err ? err : predict(m, rows, y));
}

tutti_status tutti_model_eval(tutti_model *m, const tutti_rows *rows, tutti_metrics *out)
{
    tt_err err = check_model(m, "tutti_model_eval");
    tt_metrics got;

    if (!err && !out) err = tt_fail(TT_EINVAL, "tutti_model_eval: out is NULL");
    if (err) return status_of(err);
    if (rows) {
        tt_data_rows r = {.x = rows->x,
                          .ids = rows->ids,
                          .label = rows->label,
                          .target = rows->target,
                          .n = rows->count,
                          .name = "rows to evaluate"};
        err = tt_use_eval_rows(m->use, &r, &got);
    } else {
        err = tt_use_eval(m->use, TT_VAL, &got);
    }
    if (!err) *out = metrics_from(&got);
    return status_of(err);
}

tutti_status tutti_model_export(const tutti_model *m, const char *path)
{
    tt_err err = check_model(m, "tutti_model_export");

    if (!err && !path) err = tt_fail(TT_EINVAL, "tutti_model_export: path is NULL");
    return status_of(err ? err : tt_use_export(m->use, path));
}

/* ---- what it consists of ---- */

int tutti_model_layer_count(const tutti_model *m)
{
    return m ? tt_model_layer_count(tt_use_model(m->use)) : 0;
}

tutti_status tutti_model_layer(const tutti_model *m, int i, tutti_layer_info *out)
{
    tt_err err = check_model(m, "tutti_model_layer");
    tt_layer_info l;

    if (!err && !out) err = tt_fail(TT_EINVAL, "tutti_model_layer: out is NULL");
    if (!err && (i < 0 || i >= tutti_model_layer_count(m)))
        err = tt_fail(TT_EINVAL, "layer %d of a model of %d: they count from 0", i,
                      tutti_model_layer_count(m));
    if (err) return status_of(err);
    l = tt_model_layer(tt_use_model(m->use), i);
    *out = (tutti_layer_info){.name = l.name,
                              .kind = l.kind,
                              .out = shape_from(l.out),
                              .params = l.params,
                              .flops = l.flops};
    return TUTTI_OK;
}

static tt_err fail_param(const tt_param *params, int count, const char *name)
{
    const char **names = calloc((size_t)count + 1, sizeof *names), *near;
    tt_err err;

    if (!names) tt_mem_out((size_t)count * sizeof *names);
    for (int i = 0; i < count; i++) names[i] = params[i].name;
    near = tt_nearest(name, names, count);
    err = tt_fail(TT_EINVAL, "there is no parameter '%s'%s%s%s", name,
                  near ? ": did you mean '" : "", near ? near : "", near ? "'?" : "");
    free(names);
    return err;
}

tutti_status tutti_model_param(const tutti_model *m, const char *name, tutti_shape *shape,
                               const float **out)
{
    tt_err err = check_model(m, "tutti_model_param");
    const tt_param *p;
    int count;

    if (out) *out = NULL;
    if (!err && (!name || !out)) err = tt_fail(TT_EINVAL, "tutti_model_param: NULL was given");
    if (err) return status_of(err);
    p = tt_model_params(tt_use_model(m->use), &count);
    for (int i = 0; i < count; i++) {
        if (strcmp(p[i].name, name)) continue;
        tt_shape s = {.rank = p[i].rank};
        memcpy(s.dim, p[i].shape, sizeof s.dim);
        if (shape) *shape = shape_from(s);
        *out = tt_use_params(m->use) + p[i].at;
        return TUTTI_OK;
    }
    return status_of(fail_param(p, count, name));
}
