/* Jobs and runs as people name them on the command line. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

static bool is_folder(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static tt_err join(const char *folder, const char *name, char out[CLI_PATH])
{
    if (snprintf(out, CLI_PATH, "%s/%s", folder, name) < CLI_PATH) return TT_OK;
    return tt_fail(TT_EINVAL, "%.200s...: the path is too long", folder);
}

static tt_err find_last(const char *runs, char path[CLI_PATH])
{
    tt_run_info *list;
    int count;
    tt_err err;

    if ((err = tt_run_list(runs, &list, &count))) return err;
    if (count)
        memcpy(path, list[count - 1].path, CLI_PATH);
    else
        err = tt_fail(TT_EINVAL, "there is no run below %s yet: 'tutti train' makes one", runs);
    tt_run_free(list, count);
    return err;
}

static tt_err fail_no_run(const char *name, const char *runs)
{
    tt_run_info *list;
    const char **names, *near = NULL;
    char meant[256] = "";
    int count;
    tt_err err;

    if ((err = tt_run_list(runs, &list, &count))) return err;
    names = calloc((size_t)count + 1, sizeof *names);
    if (!names) tt_mem_out((size_t)count * sizeof *names);
    for (int i = 0; i < count; i++) names[i] = list[i].name;
    if ((near = tt_nearest(name, names, count))) snprintf(meant, sizeof meant, "%s", near);
    free(names);
    tt_run_free(list, count);
    if (near) return tt_fail(TT_EINVAL, "no run '%s': did you mean '%s'?", name, meant);
    return tt_fail(TT_EINVAL, "no run '%s', neither here nor below %s: 'tutti runs ls' lists them",
                   name, runs);
}

tt_err cli_run_find(const char *name, const char *runs, char path[CLI_PATH])
{
    tt_err err;

    if (!runs) runs = "runs";
    if (is_folder(name)) {
        size_t size = strlen(name);
        if (size >= CLI_PATH) return tt_fail(TT_EINVAL, "the path of the run is too long");
        while (size > 1 && name[size - 1] == '/') size--;
        memcpy(path, name, size);
        path[size] = 0;
        return TT_OK;
    }
    if (!strcmp(name, "last")) return find_last(runs, path);
    if ((err = join(runs, name, path))) return err;
    return is_folder(path) ? TT_OK : fail_no_run(name, runs);
}

/* The job of a run: as resolved, so that --set and the defaults of its day count. */
static tt_err find_job_of(const char *run, char path[CLI_PATH])
{
    tt_err err;

    if ((err = join(run, "resolved.yaml", path))) return err;
    if (!tt_file_exists(path) && (err = join(run, "job.yaml", path))) return err;
    if (tt_file_exists(path)) return TT_OK;
    return tt_fail(TT_EINVAL, "%s is a folder, but not of a run: it has no job.yaml", run);
}

/* One value on one line; what is longer is left as it was written. */
static void show_value(const tt_node *n, tt_str *out)
{
    tt_str text = {0};

    tt_tree_print(n, false, &text);
    while (text.size && text.data[text.size - 1] == '\n') text.data[--text.size] = 0;
    if (n->kind == TT_SCALAR || !memchr(text.data, '\n', text.size))
        tt_str_add(out, "%s", text.data);
    else
        tt_str_add(out, n->kind == TT_MAP ? "a map of %d" : "a list of %d", n->count);
    tt_str_free(&text);
}

/* `set train.optimizer.sgd.lr = 0.02 (was 0.01)` */
static tt_err assign(tt_tree *t, const char *assignment, bool quiet)
{
    tt_str before = {0}, after = {0};
    const char *equals = strchr(assignment, '=');
    char path[1024];
    const tt_node *n;
    tt_err err;

    snprintf(path, sizeof path, "%.*s", (int)(equals ? equals - assignment : 0), assignment);
    if ((n = tt_tree_get(t, path))) show_value(n, &before);
    if ((err = tt_tree_set(t, assignment))) goto out;
    if ((n = tt_tree_get(t, path)))
        show_value(n, &after);
    else
        tt_str_add(&after, "%s", equals + 1); /* a layer that got another kind */
    if (quiet) goto out;
    if (before.data)
        fprintf(stderr, "set %s = %s (was %s)\n", path, after.data, before.data);
    else
        fprintf(stderr, "set %s = %s (was not in the job)\n", path, after.data);
out:
    tt_str_free(&before);
    tt_str_free(&after);
    return err;
}

/* There is no such run; is there a job of that name? */
static tt_err hint_job(tt_err err, const char *name)
{
    char file[CLI_PATH];

    if (snprintf(file, sizeof file, "%s.yaml", name) >= CLI_PATH || !tt_file_exists(file))
        return err;
    return tt_fail(TT_EINVAL, "no job or run '%s': did you mean '%s'?", name, file);
}

/* A name without a dot that is no file can only mean a run: jobs are called something.yaml. */
static bool means_run(const char *name, const char *runs)
{
    char path[CLI_PATH];

    if (is_folder(name)) return true;
    if (tt_file_exists(name)) return false;
    return !strchr(name, '.') || (!join(runs ? runs : "runs", name, path) && is_folder(path));
}

tt_err cli_job_load(const char *name, const char *runs, const tt_opt_list *set, bool quiet,
                    cli_job *out)
{
    tt_err err;

    memset(out, 0, sizeof *out);
    if (means_run(name, runs)) {
        if ((err = cli_run_find(name, runs, out->run))) return hint_job(err, name);
        if ((err = find_job_of(out->run, out->path))) return err;
    } else if (snprintf(out->path, CLI_PATH, "%s", name) >= CLI_PATH) {
        return tt_fail(TT_EINVAL, "the path of the job is too long");
    }
    if ((err = tt_tree_load(out->path, &out->tree))) return err;
    for (int i = 0; set && i < set->count; i++)
        if ((err = assign(out->tree, set->item[i], quiet))) break;
    if (err) cli_job_close(out);
    return err;
}

void cli_job_close(cli_job *j)
{
    tt_tree_close(j->tree);
    j->tree = NULL;
}

tt_err cli_threads(int64_t wanted, int *out)
{
    if (wanted < 0 || wanted > 1024)
        return tt_fail(TT_EINVAL,
                       "--threads %lld: it must lie between 1 and 1024, or be 0 for what "
                       "the job says",
                       (long long)wanted);
    *out = (int)wanted;
    return TT_OK;
}

/* checkpoints/BEST and LATEST are files with a checkpoint's name in them: RUN/checkpoints/step-N.
 */
static tt_err follow(char path[CLI_PATH])
{
    char *base = strrchr(path, '/');
    tt_bytes file;
    tt_err err;

    base = base ? base + 1 : path;
    if (strcmp(base, "BEST") && strcmp(base, "LATEST")) return TT_OK;
    if ((err = tt_file_read(path, 255, &file))) return err;
    size_t n = strnlen((const char *)file.data, file.size);
    while (n && file.data[n - 1] <= ' ') n--;
    if (snprintf(base, (size_t)(path + CLI_PATH - base), "%.*s", (int)n, (const char *)file.data) >=
        path + CLI_PATH - base)
        err = tt_fail(TT_EINVAL, "the path of the weights is too long");
    tt_file_release(&file);
    return err;
}

tt_err cli_weights_find(const char *name, const char *runs, char path[CLI_PATH])
{
    bool is_path = tt_file_exists(name) || strchr(name, '/') || strchr(name, '.');

    if (!is_path) return cli_run_find(name, runs, path);
    if (snprintf(path, CLI_PATH, "%s", name) < CLI_PATH) return follow(path);
    return tt_fail(TT_EINVAL, "the path of the weights is too long");
}

/* The best of a run, by its checkpoint.best. */
static tt_err find_best(const char *run, char path[CLI_PATH])
{
    if (snprintf(path, CLI_PATH, "%s/checkpoints/BEST", run) >= CLI_PATH)
        return tt_fail(TT_EINVAL, "the path of the weights is too long");
    if (!tt_file_exists(path))
        return tt_fail(TT_ECKPT,
                       "%s has no best checkpoint: its job has no checkpoint.best, or none was "
                       "saved yet",
                       run);
    return follow(path);
}

tt_err cli_split(const char *name, tt_split *out)
{
    if (!name || !strcmp(name, "val"))
        *out = TT_VAL;
    else if (!strcmp(name, "train"))
        *out = TT_TRAIN;
    else
        return tt_fail(TT_EINVAL, "--split %s: there are val and train", name);
    return TT_OK;
}

static tt_err aim(tt_tree *job, const char *file)
{
    tt_node *data = tt_tree_get(job, "data");

    if (!data || data->kind != TT_MAP)
        return tt_fail(TT_EINVAL, "--data %s: the job has no data, so its format is unknown", file);
    return tt_data_aim(data, file);
}

tt_err cli_use_open(const cli_use_opts *o, cli_use *out)
{
    tt_use_opts uo = {.partial = o->partial, .layer = o->layer};
    tt_err err;

    memset(out, 0, sizeof *out);
    if ((err = cli_threads(o->threads, &uo.threads))) return err;
    if (o->batch < 0 || o->batch > 1 << 20)
        return tt_fail(TT_EINVAL, "--batch %lld: it must lie between 1 and 1048576",
                       (long long)o->batch);
    uo.batch = (int)o->batch;
    if ((err = cli_job_load(o->job, o->runs, o->set, false, &out->job))) goto out;
    if (o->weights && !strcmp(o->weights, "best") && *out->job.run)
        err = find_best(out->job.run, out->weights);
    else if (o->weights)
        err = cli_weights_find(o->weights, o->runs, out->weights);
    else if (*out->job.run)
        memcpy(out->weights, out->job.run, CLI_PATH);
    else
        err =
            tt_fail(TT_EINVAL,
                    "%s has no weights: give --weights RUN, or the run instead of the job", o->job);
    if (err) goto out;
    uo.job = out->job.tree;
    uo.weights = out->weights;
    err = tt_use_open(&uo, &out->use);
    if (err == TT_EFORMAT)
        err = tt_repeat(TT_ECKPT, tt_message()); /* the bad file is the weights' */
    if (!err && o->data) err = aim(out->job.tree, o->data);
out:
    if (err) cli_use_close(out);
    return err;
}

void cli_use_close(cli_use *u)
{
    tt_use_close(u->use);
    u->use = NULL;
    cli_job_close(&u->job);
}
