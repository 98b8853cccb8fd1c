/* use: what was trained, at work: evaluating, predicting, exporting. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hf.h"
#include "trainer.h"

struct tt_use {
    tt_job job;
    train_conf conf;
    tt_model *model;
    const tt_param *params;
    int param_count;
    float *w;
    size_t bytes;
    tt_crew *crew;
    judge judge;
    int threads, grain;
    const char *layer;
    tt_data *data;  /* the split used last, ...                  */
    tt_split split; /* ... which that is, ...                    */
    bool only_x;    /* ... and whether without labels or targets */
    json_t *meta;   /* of the checkpoint it is from; NULL: none  */
    tt_data *text;  /* what its tokens are; NULL before, or not known */
    float *scores;  /* of all positions; NULL before the first */
    tt_use_opts o;
};

/* A folder of a run has checkpoints, one of a checkpoint a manifest; a file beside a manifest is
 * part of one. */
static bool is_ours(const char *weights)
{
    const char *slash = strrchr(weights, '/');
    char path[4300];

    snprintf(path, sizeof path, "%s/manifest.json", weights);
    if (tt_file_exists(path)) return true;
    snprintf(path, sizeof path, "%s/checkpoints", weights);
    if (tt_file_exists(path)) return true;
    snprintf(path, sizeof path, "%.*smanifest.json", slash ? (int)(slash - weights + 1) : 0,
             weights);
    return tt_file_exists(path);
}

static tt_err load_weights(tt_use *u, const tt_use_opts *o)
{
    const tt_node *rename = tt_node_get(u->job.model, "rename");

    if (is_ours(o->weights) || (rename && tt_node_is_null(rename))) rename = NULL;
    return weights_load(o->weights, rename, o->partial, u->model, u->w, NULL, false, &u->meta);
}

/* Numbers that a thread puts out at once: of 64 texts with a large vocabulary they would fill the
 * memory. */
enum { OUTPUT_MOST = 32 << 20 };

/* The job of an exact run names the kernels that its bits depend on. It may be used all the same
 * where those do not run, or in the other precision. */
static tt_err kernels_of_use(tt_use *u, const tt_kernels **k)
{
    const bool half = u->conf.precision == TT_IN_BF16;
    tt_err err = find_kernels(u->job.train, &u->conf, k), other;
    char why[512];

    if (!err || !strcmp(u->conf.kernels, "auto")) return err;
    snprintf(why, sizeof why, "%s", tt_message());
    other = tt_kernels_pick(u->conf.kernels, half ? TT_IN_FLOAT32 : TT_IN_BF16, k);
    if (err != TT_EENV && other == TT_EINVAL) return tt_fail(err, "%s", why); /* there are none */
    if ((err = tt_kernels_pick("auto", (tt_precision)u->conf.precision, k))) return err;
    tt_warn("trained with %s kernels, used with %s", u->conf.kernels, (*k)->name);
    return TT_OK;
}

tt_err tt_use_open(const tt_use_opts *o, tt_use **out)
{
    tt_use *u = calloc(1, sizeof *u);
    const tt_kernels *k;
    tt_err err;

    *out = NULL;
    if (!u) return tt_fail(TT_ENOMEM, "no memory");
    u->o = *o;
    if ((err = tt_job_read(o->job, &u->job)) || (err = read_train(u->job.train, &u->conf)) ||
        (err = kernels_of_use(u, &k)))
        goto fail;
    /* The run may come from a larger machine; in use, the number of threads changes no result. */
    int threads = (int)u->conf.threads, cpus = tt_cpu_count();
    u->threads = o->threads ? o->threads : threads && threads < cpus ? threads : cpus;
    u->grain = o->batch ? o->batch : 64;
    u->layer = o->layer;
    tt_model_opts mo = {.kernels = k, .samples = u->grain, .keep = o->layer};
    if ((err = tt_model_open(u->job.model, &mo, &u->model))) goto fail;
    while (!o->batch && u->grain > 1 && u->grain * tt_use_features(u) > OUTPUT_MOST) u->grain /= 2;
    u->params = tt_model_params(u->model, &u->param_count);
    u->bytes = (size_t)tt_model_size(u->model) * sizeof(float);
    if (u->bytes > tt_mem_free()) { /* the kernel would promise it, and end somebody later */
        char need[32], have[32];
        err = tt_fail(TT_ENOMEM, "all weights of the model are %s, and %s are free",
                      tt_show_bytes((double)u->bytes, need, sizeof need),
                      tt_show_bytes((double)tt_mem_free(), have, sizeof have));
        goto fail;
    }
    if (!(u->w = tt_block_alloc(u->bytes))) {
        err = tt_fail(TT_ENOMEM, "no memory for the weights");
        goto fail;
    }
    tt_model_init(u->model, (uint64_t)u->conf.seed, u->w);
    if (o->trained) tables_whole(o->trained, u->params, u->param_count, u->w);
    if (o->weights && (err = load_weights(u, o))) goto fail;
    tt_model_bind(u->model, u->w);
    tt_model_refresh(u->model, 0, 1);
    *out = u;
    return TT_OK;
fail:
    tt_use_close(u);
    return err;
}

/* A crew for so many rows, no larger than they need: one row of a large model does not take memory
 * for 64, nor for a thread that has nothing to do. */
static tt_err need_crew(tt_use *u, int64_t rows)
{
    judge *j = &u->judge;
    int grain = rows < u->grain ? (rows > 0 ? (int)rows : 1) : u->grain;
    int64_t parts = (rows + grain - 1) / grain;
    int threads = parts < u->threads ? (parts > 0 ? (int)parts : 1) : u->threads;
    tt_err err;

    if (u->crew && j->grain >= grain && j->size >= threads && j->part_count * j->grain >= rows)
        return TT_OK;
    judge_close(j);
    tt_crew_close(u->crew);
    u->crew = NULL;
    if (!(err = tt_crew_open(u->model, threads, grain, false, &u->crew)) &&
        !(err = judge_open(j, u->model, u->crew, NULL, false, rows)))
        return TT_OK;
    judge_close(j); /* half open it would be taken for whole */
    tt_crew_close(u->crew);
    u->crew = NULL;
    if (err != TT_ENOMEM) return err;
    return tt_fail(TT_ENOMEM,
                   "no memory for %d rows at once on each of %d threads: a smaller batch or fewer "
                   "threads need less",
                   grain, threads);
}

tt_data_want tt_job_want(const tt_model *m)
{
    tt_wants w = tt_model_wants(m);

    tt_row row = tt_model_row(m);

    return (tt_data_want){.input = tt_model_input(m),
                          .ids = row.ids,
                          .id_rows = w.id_rows,
                          .labels = row.labels,
                          .classes = w.classes,
                          .targets = w.targets,
                          .input_at = tt_model_input_at(m)};
}

static tt_err need_split(tt_use *u, tt_split split, bool only_x)
{
    tt_data_want want = tt_job_want(u->model);
    tt_err err;

    if (u->data && u->split == split && u->only_x == only_x) return TT_OK;
    if (!u->job.data) return tt_node_fail(tt_tree_root(u->o.job), "the job has no data");
    tt_data_close(u->data);
    want.only_x = only_x;
    if ((err = tt_data_open_split(u->job.data, &want, (uint64_t)u->conf.seed, split,
                                  json_object_get(u->meta, "learned"), &u->data)))
        return u->meta && err == TT_EFORMAT ? tt_context(TT_ECKPT, "%s", u->o.weights) : err;
    u->split = split;
    u->only_x = only_x;
    if ((err = meaning_compare(u->o.weights ? u->o.weights : "the model", meaning_of(u->meta),
                               tt_data_meaning(u->data)))) {
        tt_data_close(u->data);
        u->data = NULL;
    }
    return err;
}

tt_err tt_use_eval(tt_use *u, tt_split split, tt_metrics *out)
{
    tt_err err = need_split(u, split, false);
    if (!err) err = need_crew(u, tt_data_count(u->data, split));
    return err ? err : judge_eval(&u->judge, u->data, split, (uint64_t)u->conf.seed, out);
}

tt_err tt_use_eval_rows(tt_use *u, const tt_data_rows *rows, tt_metrics *out)
{
    tt_data_want want = tt_job_want(u->model);
    tt_data *d = NULL;
    tt_err err = tt_data_open_rows(&want, rows, NULL, (uint64_t)u->conf.seed, &d);

    if (!err) err = need_crew(u, rows->n);
    if (!err) err = judge_eval(&u->judge, d, TT_TRAIN, (uint64_t)u->conf.seed, out);
    tt_data_close(d);
    return err;
}

typedef struct predict_job {
    tt_use *u;
    tt_split split;
    bool given; /* rows in memory: these, else rows of the split */
    const float *x;
    const int32_t *ids;
    int64_t first;
    int n;
    float *out;
} predict_job;

/* Step k of a batch of one sample is row k, so any row can be asked for by itself. */
static tt_err fill_rows(const predict_job *j, tt_batch *b, int64_t at, int n)
{
    const judge *c = &j->u->judge;
    tt_order one = {.count = j->given ? j->n : tt_data_count(j->u->data, j->split),
                    .batch = 1,
                    .by_pass = true};

    b->n = n;
    if (j->given) {
        if (c->row.features) b->x = j->x + at * c->row.features;
        if (c->row.ids) b->ids = j->ids + at * c->row.ids;
        return TT_OK;
    }
    for (int i = 0; i < n; i++) {
        tt_batch row = tt_batch_cut(b, i, 1, &c->row);
        tt_err err = tt_data_fill(j->u->data, j->split, &one, j->first + at + i, 0, 1, &row);
        if (err) return err;
    }
    return TT_OK;
}

static void predict_member(void *arg, int me)
{
    const predict_job *j = arg;
    judge *c = &j->u->judge;
    desk *w = &c->desks[me];
    int64_t features = tt_use_features(j->u), got;

    w->err = TT_OK;
    for (int64_t at = (int64_t)me * c->grain; at < j->n; at += (int64_t)c->size * c->grain) {
        tt_batch b = w->batch;
        int n = j->n - at < c->grain ? (int)(j->n - at) : c->grain;
        if (!(w->err = fill_rows(j, &b, at, n))) {
            tt_crew_pass(c->crew, me, TT_PASS_PREDICT, &b);
            w->err =
                tt_run_output(tt_crew_run(c->crew, me), j->u->layer, j->out + at * features, &got);
        }
        if (w->err) {
            snprintf(w->message, sizeof w->message, "%s", tt_message());
            return;
        }
    }
}

static tt_err predict(tt_use *u, predict_job *j)
{
    const judge *c = &u->judge;
    tt_err err = need_crew(u, j->n);

    if (err) return err;
    tt_team_run(tt_crew_team(u->crew), predict_member, j);
    for (int i = 0; i < c->size; i++)
        if (c->desks[i].err) return tt_repeat(c->desks[i].err, c->desks[i].message);
    return TT_OK;
}

tt_err tt_use_predict(tt_use *u, tt_split split, int64_t first, int n, float *out)
{
    predict_job j = {.u = u, .split = split, .first = first, .n = n, .out = out};
    tt_err err = need_split(u, split, true);
    if (!err && (first < 0 || n < 0 || first + n > tt_data_count(u->data, split)))
        err = tt_fail(TT_EINVAL, "rows %lld to %lld of %lld", (long long)first,
                      (long long)first + n, (long long)tt_data_count(u->data, split));
    return err ? err : predict(u, &j);
}

static tt_err check_ids(const tt_use *u, const int32_t *ids, int n)
{
    const int64_t *rows = tt_model_wants(u->model).id_rows, each = tt_model_row(u->model).ids;

    if (each && !ids)
        return tt_node_fail(tt_model_input_at(u->model),
                            "the model takes ids, and these rows have numbers alone");
    for (int64_t i = 0; i < n * each; i++) {
        int64_t most = rows[i % each];
        if (ids[i] < -1 || (most && ids[i] >= most))
            return tt_fail(TT_EINVAL, "row %lld: id %d, but its table has %lld rows",
                           (long long)(i / each), ids[i], (long long)most);
    }
    return TT_OK;
}

tt_err tt_use_predict_rows(tt_use *u, const float *x, const int32_t *ids, int n, float *out)
{
    predict_job j = {.u = u, .given = true, .x = x, .ids = ids, .n = n, .out = out};
    tt_err err = check_ids(u, ids, n);

    if (!err && tt_model_row(u->model).features && !x)
        err = tt_fail(TT_EINVAL, "the model takes numbers, and these rows have ids alone");
    return err ? err : predict(u, &j);
}

tt_err tt_use_check_next(const tt_use *u)
{
    const char *ahead = tt_model_looks_ahead(u->model);

    if (!tt_model_next_classes(u->model) || tt_model_row(u->model).features)
        return tt_node_fail(tt_model_input_at(u->model),
                            "the model does not say what token comes next: that takes input: {ids: "
                            "N}, and a loss that judges classes for each of them at the last "
                            "layer");
    if (ahead)
        return tt_node_fail(tt_model_input_at(u->model),
                            "the model looks at tokens behind the one it judges: by layer '%s'",
                            ahead);
    return TT_OK;
}

int tt_use_next_most(const tt_use *u)
{
    const int64_t *rows = tt_model_wants(u->model).id_rows, ids = tt_model_row(u->model).ids;
    int64_t most = tt_model_next_classes(u->model);

    for (int64_t i = 0; i < ids; i++)
        if (rows[i] && rows[i] < most) most = rows[i];
    return (int)most;
}

static tt_err check_tokens(const tt_use *u, const int32_t *token, int n)
{
    const int64_t *rows = tt_model_wants(u->model).id_rows;

    for (int i = 0; i < n; i++)
        if (token[i] < 0 || (rows[i] && token[i] >= rows[i]))
            return tt_fail(TT_EDATA, "there is a token %d, but the model's embedding has %lld rows",
                           token[i], (long long)rows[i]);
    return TT_OK;
}

tt_err tt_use_next(tt_use *u, const int32_t *token, int n, float *out)
{
    const tt_row row = tt_model_row(u->model);
    int64_t classes = tt_model_next_classes(u->model), got;
    tt_err err;

    TT_ASSERT(n >= 1 && n <= row.ids && classes);
    if ((err = check_tokens(u, token, n)) || (err = need_crew(u, 1))) return err;
    desk *w = &u->judge.desks[0];
    int32_t *ids = (int32_t *)(uintptr_t)w->batch.ids; /* our own */
    memcpy(ids, token, (size_t)n * sizeof *ids);
    for (int64_t i = n; i < row.ids; i++) ids[i] = 0; /* none of them is looked at */
    if (!u->scores && !(u->scores = malloc((size_t)tt_use_features(u) * sizeof *u->scores)))
        return tt_fail(TT_ENOMEM, "no memory for the scores of %lld positions", (long long)row.ids);
    w->batch.n = 1;
    tt_crew_pass(u->crew, 0, TT_PASS_PREDICT, &w->batch);
    if ((err = tt_run_output(tt_crew_run(u->crew, 0), u->layer, u->scores, &got))) return err;
    memcpy(out, u->scores + (n - 1) * classes, (size_t)tt_use_next_most(u) * sizeof *out);
    for (int i = 0; i < tt_use_next_most(u); i++)
        if (!isfinite(out[i]))
            return tt_fail(TT_EDIVERGED, "the model's scores are not finite: its weights are bad");
    return TT_OK;
}

int64_t tt_use_features(const tt_use *u)
{
    tt_shape s = tt_model_output(u->model);
    for (int i = 0; u->layer && i < tt_model_layer_count(u->model); i++)
        if (!strcmp(tt_model_layer(u->model, i).name, u->layer))
            s = tt_model_layer(u->model, i).out;
    return tt_shape_count(s);
}

tt_err tt_use_count(tt_use *u, tt_split split, int64_t *out)
{
    tt_err err = need_split(u, split, true);

    *out = err ? 0 : tt_data_count(u->data, split);
    return err;
}

/* What it was trained with, whatever has become of the text. */
tt_err tt_use_text(tt_use *u, const tt_data **out)
{
    const json_t *learned = json_object_get(u->meta, "learned");
    tt_err err = TT_OK;

    *out = NULL;
    if (!u->text && json_object_get(learned, "tokens")) {
        if ((err = tt_data_open_text(learned, u->job.data, &u->text)))
            return tt_context(err == TT_EFORMAT ? TT_ECKPT : err, "%s", u->o.weights);
        err = meaning_compare(u->o.weights, meaning_of(u->meta), tt_data_meaning(u->text));
        if (err) tt_data_close(u->text), u->text = NULL;
    } else if (!u->text) {
        err = need_split(u, TT_TRAIN, true);
    }
    if (!err) *out = u->text ? u->text : u->data;
    return err;
}

const tt_model *tt_use_model(const tt_use *u)
{
    return u->model;
}
const tt_data *tt_use_data(const tt_use *u)
{
    return u->data;
}
const float *tt_use_params(const tt_use *u)
{
    return u->w;
}

tt_err tt_use_export(const tt_use *u, const char *path)
{
    tt_entry *e = calloc((size_t)u->param_count + 1, sizeof *e);
    tt_err err;

    if (!e) return tt_fail(TT_ENOMEM, "no memory");
    for (int i = 0; i < u->param_count; i++)
        e[i] = entry_of(&u->params[i], u->params[i].name, u->w);
    err = tt_tensors_write(path, e, u->param_count, NULL, NULL);
    free(e);
    return err;
}

tt_err tt_use_export_hf(const tt_use *u, const char *folder)
{
    return hf_write(u->model, u->w, folder);
}

void tt_use_close(tt_use *u)
{
    if (!u) return;
    judge_close(&u->judge);
    tt_crew_close(u->crew);
    if (u->w) tt_block_free(u->w, u->bytes);
    tt_data_close(u->data);
    tt_data_close(u->text);
    tt_model_close(u->model);
    json_decref(u->meta);
    free(u->scores);
    free(u);
}
