/* job: the parts of a job file that belong to training, read by table. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer.h"

tt_err tt_job_read(tt_tree *job, tt_job *out)
{
    static const tt_key keys[] = {
        {"name", TT_STRING, offsetof(tt_job, name), "job", 0, 0, NULL, "names the run folder"},
        {"model", TT_NODE, offsetof(tt_job, model), NULL, 0, 0, NULL, "input, layers and loss"},
        {"data", TT_NODE, offsetof(tt_job, data), "-", 0, 0, NULL, "where the samples come from"},
        {"train", TT_NODE, offsetof(tt_job, train), NULL, 0, 0, NULL, "how long and by which rule"},
        {"parallel", TT_NODE, offsetof(tt_job, parallel), "{}", 0, 0, NULL,
         "how several workers train together"},
        {"checkpoint", TT_NODE, offsetof(tt_job, checkpoint), "{}", 0, 0, NULL,
         "when to save and what to keep"},
    };
    tt_node *root = tt_tree_root(job);
    tt_err err;

    memset(out, 0, sizeof *out);
    if ((err = tt_node_read(root, "the job", keys, TT_COUNT(keys), out))) return err;
    for (const char *p = out->name; *p; p++)
        if (*p == '/' || (unsigned char)*p < ' ' || p - out->name > 100 || *out->name == '.')
            return tt_node_fail(
                tt_node_get(root, "name"),
                "name becomes a folder's name: no '/', no leading '.', at most 100 characters");
    return *out->name ? TT_OK : tt_node_fail(tt_node_get(root, "name"), "name is empty");
}

static bool is_unit(const char *text, const char *unit) /* or several of them */
{
    size_t n = strlen(unit);

    return !strncmp(text, unit, n) && (!text[n] || !strcmp(text + n, "s"));
}

/* "100", "100 steps", "1 epoch", "2 epochs", "10m", "never" */
static tt_err read_cadence(tt_node *n, const char *text, cadence *out)
{
    char number[64], unit[16] = "step", rest;
    double s;
    int64_t k;

    *out = (cadence){0};
    if (!strcmp(text, "never")) return TT_OK;
    int words = sscanf(text, "%63s %15s %c", number, unit, &rest);
    if ((words == 1 || words == 2) && tt_parse_int(number, &k) && k > 0) {
        if (is_unit(unit, "epoch")) out->epochs = k;
        if (is_unit(unit, "step")) out->steps = k;
        if (out->epochs || out->steps) return TT_OK;
    }
    if (tt_parse_time(text, &s) && s > 0) {
        out->seconds = s;
        return TT_OK;
    }
    return tt_node_fail(n, "'%s' is no interval: say 500 steps, 1 epoch, 10m (a time) or never",
                        text);
}

static tt_err read_goal(tt_node *n, const char *text, goal *out)
{
    char held[TT_METRICS][32];
    const char *names[2 + TT_METRICS] = {"val.loss", "train.loss"};
    char metric[32], way[8], rest;
    tt_err err;
    int k;

    *out = (goal){{0}, 0};
    if (!*text || !strcmp(text, "none")) return TT_OK;
    if (sscanf(text, "%31s %7s %c", metric, way, &rest) != 2 ||
        (strcmp(way, "min") && strcmp(way, "max")))
        return tt_node_fail(
            n, "'%s' is no goal: say a metric and min or max, like val.accuracy max", text);
    for (int i = 0; i < TT_METRICS; i++) {
        snprintf(held[i], sizeof held[i], "val.%s", tt_metric_table[i].name);
        names[2 + i] = held[i];
    }
    if ((err = tt_node_pick(n, "metric", metric, names, sizeof *names, TT_COUNT(names), &k)))
        return err;
    out->sign = strcmp(way, "max") ? -1 : 1;
    memcpy(out->metric, metric, sizeof metric);
    return TT_OK;
}

tt_err read_train(tt_node *train, train_conf *out)
{
    static const tt_key keys[] = {
        {"epochs", TT_INT, offsetof(train_conf, epochs), "-", 1, 1e9, NULL,
         "how often to go over the data"},
        {"steps", TT_INT, offsetof(train_conf, steps), "-", 1, 1e15, NULL,
         "how many steps, instead of epochs"},
        {"steps_per_epoch", TT_INT, offsetof(train_conf, steps_per_epoch), "-", 1, 1e12, NULL,
         "length of an epoch; the data order then goes on across epochs"},
        {"batch", TT_INT, offsetof(train_conf, batch), "64", 1, 1 << 24, NULL,
         "samples of a step, over all workers"},
        {"accumulate", TT_INT, offsetof(train_conf, accumulate), "1", 1, 65536, NULL,
         "grains a thread works through for one step"},
        {"seed", TT_INT, offsetof(train_conf, seed), "1", 0, 9e15, NULL,
         "of weights, order, dropout and augmentation"},
        {"threads", TT_INT, offsetof(train_conf, threads), "0", 0, 1024, NULL,
         "0: as many as there are CPUs"},
        {"optimizer", TT_NODE, offsetof(train_conf, optimizer), NULL, 0, 0, NULL,
         "sgd, momentum, nesterov, adagrad, rmsprop, adam, adamw or lamb"},
        {"tables", TT_NODE, offsetof(train_conf, tables), "-", 0, 0, NULL,
         "another rule for the rows of tables: sgd, momentum, nesterov, adagrad, rowwise_adagrad, "
         "adam or adamw"},
        {"schedule", TT_NODE, offsetof(train_conf, schedule), "-", 0, 0, NULL,
         "constant, step, linear or cosine, with warmup"},
        {"clip", TT_NODE, offsetof(train_conf, clip), "-", 0, 0, NULL, "{norm: x, value: y}"},
        {"groups", TT_NODE, offsetof(train_conf, groups), "-", 0, 0, NULL,
         "other settings for parameters whose name matches"},
        {"on_nan", TT_CHOICE, offsetof(train_conf, on_nan), "stop", 0, 0, "stop|skip|rollback",
         "when a loss or gradient is not finite: end, leave the step out, or go back to the last "
         "checkpoint and on in another order"},
        {"validate", TT_STRING, offsetof(train_conf, validate_text), "1 epoch", 0, 0, NULL,
         "when: 500 steps, 1 epoch, 10m or never"},
        {"early_stop", TT_NODE, offsetof(train_conf, early_stop), "-", 0, 0, NULL,
         "{metric: val.loss min, patience: 3, min_delta: 0}"},
        {"log_every", TT_INT, offsetof(train_conf, log_every), "10", 1, 1e9, NULL,
         "steps from line to line of metrics.jsonl"},
        {"precision", TT_CHOICE, offsetof(train_conf, precision), "float32", 0, 0, "float32|bf16",
         "of activations and of the weights that products read; master weights and sums are "
         "float32"},
        {"kernels", TT_STRING, offsetof(train_conf, kernels), "auto", 0, 0, NULL,
         "auto, or one of those that doctor lists"},
    };
    struct {
        const char *metric;
        int64_t patience;
        double min_delta;
    } early = {0};
    static const tt_key early_keys[] = {
        {"metric", TT_STRING, offsetof(__typeof__(early), metric), "val.loss min", 0, 0, NULL,
         "what must get better"},
        {"patience", TT_INT, offsetof(__typeof__(early), patience), "3", 1, 1e9, NULL,
         "validations without getting better"},
        {"min_delta", TT_NUMBER, offsetof(__typeof__(early), min_delta), "0", 0, 1e9, NULL,
         "what counts as better"},
    };
    tt_err err;

    memset(out, 0, sizeof *out);
    if ((err = tt_node_read(train, "train", keys, TT_COUNT(keys), out))) return err;
    if (!out->epochs && !out->steps) return tt_node_fail(train, "train needs epochs or steps");
    if (out->epochs && out->steps)
        return tt_node_fail(tt_node_get(train, "steps"),
                            "train takes epochs or steps, not both: -s train.epochs=null or -s "
                            "train.steps=null takes one of them out");
    if (out->batch < out->accumulate)
        return tt_node_fail(tt_node_get(train, "accumulate"),
                            "accumulate: %lld grains cannot be cut from a batch of %lld",
                            (long long)out->accumulate, (long long)out->batch);
    if ((err = read_cadence(tt_node_get(train, "validate"), out->validate_text, &out->validate)))
        return err;
    if (!out->early_stop) return TT_OK;
    if ((err =
             tt_node_read(out->early_stop, "early_stop", early_keys, TT_COUNT(early_keys), &early)))
        return err;
    out->patience = early.patience;
    out->min_delta = early.min_delta;
    return read_goal(tt_node_get(out->early_stop, "metric"), early.metric, &out->early);
}

tt_err read_checkpoint(tt_node *checkpoint, save_conf *out)
{
    static const tt_key keys[] = {
        {"every", TT_STRING, offsetof(save_conf, every_text), "1 epoch", 0, 0, NULL,
         "when: 500 steps, 1 epoch, 10m or never"},
        {"keep", TT_INT, offsetof(save_conf, keep), "3", 0, 1e6, NULL,
         "how many of the newest; 0: all"},
        {"best", TT_STRING, offsetof(save_conf, best_text), "none", 0, 0, NULL,
         "also keep the best, by e.g. val.accuracy max"},
        {"retry", TT_TIME, offsetof(save_conf, retry_s), "1m", 0.1, 1e6, NULL,
         "a checkpoint that could not be written is tried again with the next one that is due, and "
         "at the latest after this time"},
    };
    tt_err err;

    memset(out, 0, sizeof *out);
    if ((err = tt_node_read(checkpoint, "checkpoint", keys, TT_COUNT(keys), out))) return err;
    if ((err = read_cadence(tt_node_get(checkpoint, "every"), out->every_text, &out->every)))
        return err;
    return read_goal(tt_node_get(checkpoint, "best"), out->best_text, &out->best);
}

/* Where a layer below `n` asks for statistics of the whole batch; NULL: none does. */
static const tt_node *find_sync(const tt_node *n)
{
    const tt_node *found = NULL;

    for (int i = 0; i < n->count && !found; i++) {
        const tt_node *at = n->item[i], *sync = NULL;
        bool on = false;
        if (n->kind == TT_MAP && !strcmp(n->key[i]->text, "batchnorm"))
            sync = tt_node_get(at, "sync");
        if (sync && sync->kind == TT_SCALAR && tt_parse_bool(sync->text, &on) && on) return sync;
        found = find_sync(at);
    }
    return found;
}

tt_err read_plan(const tt_job *job, tt_plan *out)
{
    const tt_node *sync;
    tt_err err = tt_plan_read(job->parallel, out);

    if (err || (!out->exact && out->aggregate != TT_AVERAGE)) return err;
    if (!(sync = find_sync(job->model))) return TT_OK;
    return tt_node_fail(sync, "sync takes statistics over the whole batch, and with %s",
                        out->exact ? "parallel.exact they are of each grain: so they do not depend "
                                     "on who runs what"
                                   : "aggregate: average the workers train apart");
}

tt_err check_nan(const tt_job *job, const train_conf *c, const tt_plan *p)
{
    const tt_node *at = tt_node_get(job->train, "on_nan");

    if (c->on_nan == ON_NAN_STOP) return TT_OK;
    if (p->aggregate == TT_AVERAGE)
        return tt_node_fail(at,
                            "with aggregate: average the workers train apart, and the others do "
                            "not see what one of them does: on_nan can but stop");
    if (strcmp(p->compress, "none"))
        return tt_node_fail(at, "what parallel.compress still owes to the gradient would not be "
                                "finite, either: on_nan can but stop");
    return TT_OK;
}

tt_err find_kernels(tt_node *train, const train_conf *c, const tt_kernels **out)
{
    tt_err err = tt_kernels_pick(c->kernels, (tt_precision)c->precision, out);
    char message[512];

    if (err != TT_EINVAL || !strcmp(c->kernels, "auto")) return err; /* else of the environment */
    snprintf(message, sizeof message, "%s", tt_message());
    return tt_node_fail(tt_node_get(train, "kernels"), "%s", message);
}

/* ---- what can be told ---- */

bool is_val(const goal *g)
{
    return g->sign && !strncmp(g->metric, "val.", 4);
}

static tt_err check_goal(const tt_node *at, const goal *g, const tt_model *m, bool has_val,
                         const tt_data *d)
{
    if (!is_val(g)) return TT_OK;
    if (!has_val)
        return tt_node_fail(at, "%s needs validation data: give data.val, or another metric",
                            g->metric);
    for (int i = 0; i < TT_METRICS; i++)
        if (!strcmp(g->metric + 4, tt_metric_table[i].name) && !metric_applies(m, i))
            return tt_node_fail(at, "%s needs %s: use val.loss", g->metric,
                                tt_metric_table[i].needs);
    if (!strcmp(g->metric, "val.calibration"))
        return tt_node_fail(at, "val.calibration is best at 1, which is neither min nor max: use "
                                "val.logloss min");
    if (d && !strcmp(g->metric, "val.bits_per_byte") && !(tt_data_token_bytes(d, TT_VAL) > 0))
        return tt_node_fail(at, "val.bits_per_byte needs to know how many bytes a token stands "
                                "for: of a text, or of shards with meta.json beside them; use "
                                "val.perplexity");
    return TT_OK;
}

tt_err check_goals(const tt_job *job, const train_conf *c, const save_conf *save, const tt_model *m,
                   bool has_val, const tt_data *d)
{
    tt_err err;

    if (c->early.sign) {
        if (is_never(&c->validate))
            return tt_node_fail(c->early_stop, "early_stop judges when it is time to validate, and "
                                               "train.validate is never");
        if ((err = check_goal(tt_node_get(c->early_stop, "metric"), &c->early, m, has_val, d)))
            return err;
    }
    if (!save || is_never(&save->every)) return TT_OK;
    return check_goal(tt_node_get(job->checkpoint, "best"), &save->best, m, has_val, d);
}

/* ---- a job as a whole ---- */

tt_err tt_job_check(tt_tree *tree)
{
    tt_job job;
    train_conf conf;
    save_conf save;
    tt_plan plan;
    const tt_kernels *k;
    tt_model *m = NULL;
    tt_optim *o = NULL;
    tt_err err;
    int count;

    if ((err = tt_job_read(tree, &job)) || (err = read_train(job.train, &conf)) ||
        (err = read_plan(&job, &plan)) || (err = check_nan(&job, &conf, &plan)) ||
        (err = read_checkpoint(job.checkpoint, &save)) ||
        (err = find_kernels(job.train, &conf, &k)))
        return err;
    if ((err = tt_model_open(job.model, &(tt_model_opts){.kernels = k}, &m))) return err;
    const tt_param *params = tt_model_params(m, &count);
    /* Lengths that only the data knows are taken as unknown but possible. */
    err = tt_optim_open(conf.optimizer, conf.schedule, conf.clip, conf.groups, params, count,
                        conf.steps ? conf.steps : 1000 * conf.epochs, 1000, &o);
    bool rows;
    if (!err && conf.tables) err = tt_optim_has_rows(conf.optimizer, conf.tables, &rows);
    /* A job without data gets rows from a program, and those may have a part to validate with. */
    const tt_node *val = job.data ? tt_node_get(job.data, "val") : NULL;
    if (!err)
        err = check_goals(&job, &conf, &save, m, !job.data || (val && !tt_node_is_null(val)), NULL);
    tt_optim_close(o);
    tt_model_close(m);
    return err;
}

tt_err tt_job_check_data(tt_tree *tree, bool *absent)
{
    tt_job job;
    tt_model *m = NULL;
    tt_data *d = NULL;
    tt_data_want want;
    tt_err err;

    *absent = false;
    if ((err = tt_job_check(tree)) || (err = tt_job_read(tree, &job)) || !job.data) return err;
    if ((err = tt_model_open(job.model, &(tt_model_opts){0}, &m))) return err;
    want = tt_job_want(m);
    err = tt_data_open(job.data, &want, 0, &d);
    tt_data_close(d);
    tt_model_close(m);
    if (!err || err == TT_EINVAL || err == TT_ENOMEM) return err;
    *absent = true;
    return TT_OK;
}

tt_err tt_job_settle(tt_tree *job)
{
    tt_node *data = tt_tree_get(job, "data"), *dir = data ? tt_node_get(data, "dir") : NULL;
    char *here = NULL;
    tt_str path = {0};
    tt_err err = TT_OK;

    if (!dir || dir->kind != TT_SCALAR) return TT_OK;
    if ((err = tt_data_expand(dir, dir->text, &path))) goto out;
    if (!path.size || path.data[0] != '/') {
        tt_str whole = {0};
        if (!(here = getcwd(NULL, 0))) {
            err = tt_fail(TT_EIO, "the current folder has no name: %s", strerror(errno));
            goto out;
        }
        tt_str_add(&whole, path.size ? "%s/%s" : "%s", here, path.data);
        tt_str_free(&path);
        path = whole;
    }
    /* A folder with a '$' in its name can only be given by a variable. */
    if (!strchr(path.data, '$')) tt_node_add(data, "dir", tt_node_scalar(job, dir, path.data));
out:
    tt_str_free(&path);
    free(here);
    return err;
}
