/* use: what was trained, at work: evaluating, predicting, exporting. */
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

struct tt_use {
    tt_job job;
    train_conf conf;
    tt_model *model;
    const tt_param *params;
    int param_count;
    float *w;
    size_t bytes;
    crew crew;
    int threads, grain;
    const char *layer;
    tt_data *data;
    tt_use_opts o;
};

tt_err tt_use_open(const tt_use_opts *o, tt_use **out)
{
    tt_use *u = calloc(1, sizeof *u);
    const tt_kernels *k;
    tt_err err;

    *out = NULL;
    if (!u) return tt_fail(TT_ENOMEM, "no memory");
    u->o = *o;
    if ((err = tt_job_read(o->job, &u->job)) || (err = read_train(u->job.train, &u->conf)) ||
        (err = tt_kernels_find(u->conf.kernels, &k)))
        goto fail;
    u->threads = o->threads ? o->threads : u->conf.threads ? (int)u->conf.threads : tt_cpu_count();
    u->grain = o->batch ? o->batch : 64;
    u->layer = o->layer;
    tt_model_opts mo = {.kernels = k, .samples = u->grain, .keep = o->layer};
    if ((err = tt_model_open(u->job.model, &mo, &u->model))) goto fail;
    u->params = tt_model_params(u->model, &u->param_count);
    u->bytes = (size_t)tt_model_size(u->model) * sizeof(float);
    if (!(u->w = tt_block_alloc(u->bytes))) {
        err = tt_fail(TT_ENOMEM, "no memory for the weights");
        goto fail;
    }
    if (o->params) memcpy(u->w, o->params, u->bytes);
    else tt_model_init(u->model, (uint64_t)u->conf.seed, u->w);
    if (o->weights &&
        (err = tt_weights_load(o->weights, tt_node_get(u->job.model, "rename"), o->partial, u->params, u->param_count, u->w)))
        goto fail;
    tt_model_bind(u->model, u->w);
    tt_model_refresh(u->model, 0, 1);
    *out = u;
    return TT_OK;
fail:
    tt_use_close(u);
    return err;
}

static tt_err need_crew(tt_use *u, int64_t samples)
{
    if (u->crew.team && u->crew.part_count * u->grain >= samples) return TT_OK;
    crew_close(&u->crew);
    return crew_open(&u->crew, u->model, u->threads, u->grain, false, samples);
}

static tt_data_want want_of(const tt_use *u)
{
    tt_wants w = tt_model_wants(u->model);
    return (tt_data_want){.input = tt_model_input(u->model), .classes = w.classes, .targets = w.targets,
                          .input_at = tt_model_input_at(u->model)};
}

static tt_err need_data(tt_use *u)
{
    tt_data_want want = want_of(u);
    if (u->data) return TT_OK;
    if (!u->job.data) return tt_node_fail(tt_tree_root(u->o.job), "the job has no data");
    return tt_data_open(u->job.data, &want, (uint64_t)u->conf.seed, &u->data);
}

static tt_err need_split(tt_use *u, tt_split split)
{
    tt_err err = need_data(u);
    if (err) return err;
    if (!tt_data_count(u->data, split))
        return tt_fail(TT_EDATA, "the job has no %s data", split == TT_VAL ? "validation (data.val)" : "training");
    return TT_OK;
}

tt_err tt_use_eval(tt_use *u, tt_split split, tt_metrics *out)
{
    tt_err err = need_split(u, split);
    if (!err) err = need_crew(u, tt_data_count(u->data, split));
    return err ? err : crew_eval(&u->crew, u->data, split, (uint64_t)u->conf.seed, out);
}

tt_err tt_use_eval_rows(tt_use *u, const tt_data_rows *rows, tt_metrics *out)
{
    tt_data_want want = want_of(u);
    tt_data *d = NULL;
    tt_err err = tt_data_open_rows(&want, rows, NULL, (uint64_t)u->conf.seed, &d);

    if (!err) err = need_crew(u, rows->n);
    if (!err) err = crew_eval(&u->crew, d, TT_TRAIN, (uint64_t)u->conf.seed, out);
    tt_data_close(d);
    return err;
}

typedef struct predict_job {
    tt_use *u;
    tt_split split;
    const float *rows; /* or NULL: rows of the split */
    int64_t first;
    int n;
    float *out;
    tt_err err;
    char message[1024];
} predict_job;

/* Step k of a batch of one sample is row k, so any row can be asked for by itself. */
static tt_err fill_rows(const predict_job *j, tt_batch *b, int64_t at, int n)
{
    const crew *c = &j->u->crew;
    tt_order one = {.count = j->rows ? j->n : tt_data_count(j->u->data, j->split), .batch = 1, .by_pass = true};

    b->n = n;
    if (j->rows) {
        b->x = j->rows + at * c->features;
        return TT_OK;
    }
    for (int i = 0; i < n; i++) {
        tt_batch row = tt_batch_cut(b, i, 1, c->features, c->targets);
        tt_err err = tt_data_fill(j->u->data, j->split, &one, j->first + at + i, 0, 1, &row);
        if (err) return err;
    }
    return TT_OK;
}

static void predict_member(void *arg, int me)
{
    predict_job *j = arg;
    crew *c = &j->u->crew;
    int64_t features = tt_use_features(j->u);

    for (int at = me * c->grain; at < j->n; at += c->size * c->grain) {
        tt_batch b = c->workers[me].eval;
        int n = j->n - at < c->grain ? j->n - at : c->grain;
        int64_t got;
        tt_err err = fill_rows(j, &b, at, n);
        if (!err) {
            crew_run(c, me, TT_PASS_PREDICT, &b, false, 0, false);
            err = tt_run_output(c->workers[me].run, j->u->layer, j->out + at * features, &got);
        }
        if (err) {
            j->err = err;
            strncpy(j->message, tt_message(), sizeof j->message - 1);
            return;
        }
    }
}

static tt_err predict(tt_use *u, predict_job *j)
{
    tt_err err = need_crew(u, j->n);
    if (err) return err;
    tt_team_run(u->crew.team, predict_member, j);
    return j->err ? tt_repeat(j->err, j->message) : TT_OK;
}

tt_err tt_use_predict(tt_use *u, tt_split split, int64_t first, int n, float *out)
{
    predict_job j = {.u = u, .split = split, .first = first, .n = n, .out = out};
    tt_err err = need_split(u, split);
    if (!err && (first < 0 || n < 0 || first + n > tt_data_count(u->data, split)))
        err = tt_fail(TT_EINVAL, "rows %lld to %lld of %lld", (long long)first, (long long)first + n, (long long)tt_data_count(u->data, split));
    return err ? err : predict(u, &j);
}

tt_err tt_use_predict_rows(tt_use *u, const float *x, int n, float *out)
{
    predict_job j = {.u = u, .rows = x, .n = n, .out = out};
    return predict(u, &j);
}

int64_t tt_use_features(const tt_use *u)
{
    tt_shape s = tt_model_output(u->model);
    for (int i = 0; u->layer && i < tt_model_layer_count(u->model); i++)
        if (!strcmp(tt_model_layer(u->model, i).name, u->layer)) s = tt_model_layer(u->model, i).out;
    return tt_shape_count(s);
}

int64_t tt_use_count(tt_use *u, tt_split split) { return need_data(u) ? 0 : tt_data_count(u->data, split); }
const tt_model *tt_use_model(const tt_use *u) { return u->model; }
const tt_data *tt_use_data(const tt_use *u) { return u->data; }
const float *tt_use_params(const tt_use *u) { return u->w; }

tt_err tt_use_export(const tt_use *u, const char *path)
{
    tt_entry *e = calloc((size_t)u->param_count + 1, sizeof *e);
    tt_err err;

    if (!e) return tt_fail(TT_ENOMEM, "no memory");
    for (int i = 0; i < u->param_count; i++) {
        const tt_param *p = &u->params[i];
        e[i] = (tt_entry){.name = p->name, .type = TT_F32, .rank = p->rank, .data = u->w + p->at, .bytes = p->n * 4};
        memcpy(e[i].shape, p->shape, sizeof p->shape);
    }
    err = tt_tensors_write(path, e, u->param_count, NULL, NULL);
    free(e);
    return err;
}

void tt_use_close(tt_use *u)
{
    if (!u) return;
    crew_close(&u->crew);
    if (u->w) tt_block_free(u->w, u->bytes);
    tt_data_close(u->data);
    tt_model_close(u->model);
    free(u);
}
