/* Jobs: files, texts and what programs build of them; and the messages of all calls. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inner.h"

_Static_assert((int)TUTTI_EINVAL == (int)TT_EINVAL && (int)TUTTI_ENOMEM == (int)TT_ENOMEM &&
                   (int)TUTTI_EIO == (int)TT_EIO && (int)TUTTI_EFORMAT == (int)TT_EFORMAT &&
                   (int)TUTTI_EDATA == (int)TT_EDATA && (int)TUTTI_ECKPT == (int)TT_ECKPT &&
                   (int)TUTTI_EDIVERGED == (int)TT_EDIVERGED && (int)TUTTI_EENV == (int)TT_EENV &&
                   (int)TUTTI_EPEER == (int)TT_EPEER && (int)TUTTI_ESTOP == (int)TT_ESTOP,
               "a public code differs from the internal one");

const char *tutti_message(void)
{
    return tt_message();
}

tutti_status tutti_fail(tutti_status status, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    tt_vfail((tt_err)status, fmt, ap);
    va_end(ap);
    return status;
}

const char *tutti_version(void)
{
    return TT_VERSION;
}

void tutti_quiet(bool quiet)
{
    tt_log_quiet(quiet);
}

/* ---- opening ---- */

/* Takes over the tree. */
static tt_err job_new(tt_tree *tree, const char *path, tutti_job **out)
{
    tutti_job *job = calloc(1, sizeof *job);
    char *copy = path ? strdup(path) : NULL;

    if (!job || (path && !copy)) {
        free(job);
        free(copy);
        tt_tree_close(tree);
        return tt_fail(TT_ENOMEM, "no memory for a job");
    }
    job->tree = tree;
    job->path = copy;
    *out = job;
    return TT_OK;
}

tutti_status tutti_job_open(const char *path, tutti_job **out)
{
    tt_tree *tree;
    tt_err err;

    if (!out) return status_of(tt_fail(TT_EINVAL, "tutti_job_open: out is NULL"));
    *out = NULL;
    if (!path) return status_of(tt_fail(TT_EINVAL, "tutti_job_open: path is NULL"));
    if ((err = tt_tree_load(path, &tree))) return status_of(err);
    return status_of(job_new(tree, path, out));
}

tutti_status tutti_job_parse(const char *name, const char *text, tutti_job **out)
{
    tt_tree *tree;
    tt_err err;

    if (!out) return status_of(tt_fail(TT_EINVAL, "tutti_job_parse: out is NULL"));
    *out = NULL;
    if (!name || !text)
        return status_of(tt_fail(TT_EINVAL, "tutti_job_parse: name or text is NULL"));
    if ((err = tt_tree_parse(name, text, strlen(text), &tree))) return status_of(err);
    return status_of(job_new(tree, NULL, out));
}

/* As text, so that messages about the job as a whole have a line to show. */
tutti_status tutti_job_new(const char *name, tutti_job **out)
{
    tt_str text = {0};
    tutti_status status;

    if (!out) return status_of(tt_fail(TT_EINVAL, "tutti_job_new: out is NULL"));
    *out = NULL;
    if (!name) return status_of(tt_fail(TT_EINVAL, "tutti_job_new: name is NULL"));
    tt_str_add(&text, "name: '");
    for (const char *p = name; *p; p++) tt_str_add(&text, *p == '\'' ? "''" : "%c", *p);
    tt_str_add(&text, "'\n");
    status = tutti_job_parse("job", text.data, out);
    tt_str_free(&text);
    return status;
}

void tutti_job_close(tutti_job *job)
{
    if (!job) return;
    tt_tree_close(job->tree);
    free(job->path);
    free(job->message);
    tt_str_free(&job->text);
    free(job);
}

/* ---- building ---- */

static tt_err mistake_of(const tutti_job *job)
{
    if (!job) return tt_fail(TT_EINVAL, "there is no job: NULL was given");
    return job->err ? tt_repeat(job->err, job->message) : TT_OK;
}

static tt_err remember(tutti_job *job, tt_err err)
{
    if (!err) return TT_OK;
    job->message = strdup(tt_message());
    if (!job->message) tt_mem_out(strlen(tt_message()));
    job->err = err;
    return err;
}

static char *format(const char *fmt, va_list ap)
{
    char *text = NULL;

    if (vasprintf(&text, fmt, ap) < 0) tt_mem_out(strlen(fmt));
    return text;
}

tutti_status tutti_job_set(tutti_job *job, const char *fmt, ...)
{
    tt_err err = mistake_of(job);
    va_list ap;
    char *text;

    if (err) return status_of(err);
    if (!fmt) return status_of(tt_fail(TT_EINVAL, "tutti_job_set: the assignment is NULL"));
    va_start(ap, fmt);
    text = format(fmt, ap);
    va_end(ap);
    err = tt_tree_set(job->tree, text);
    free(text);
    return status_of(remember(job, err));
}

/* The map or list below `parent`, made if it is not there yet. */
static tt_err child_of(tt_node *parent, const char *key, tt_node_kind kind, tt_node **out)
{
    tt_node *n = tt_node_get(parent, key);

    if (n && n->kind == TT_SCALAR && !n->quoted && !*n->text) n = NULL; /* `layers:` and no more */
    if (!n) {
        n = kind == TT_MAP ? tt_node_map(parent->tree, parent) : tt_node_list(parent->tree, parent);
        tt_node_add(parent, key, n);
    }
    if (n->kind != kind)
        return tt_node_fail(n, "%s is no %s that a layer could be added to", key,
                            kind == TT_MAP ? "map" : "list");
    *out = n;
    return TT_OK;
}

static tt_err add_layer(tt_tree *job, const char *text)
{
    tt_node *root = tt_tree_root(job), *model, *layers, *copy, *at, *args;
    const char *kind;
    tt_tree *item = NULL;
    tt_err err;

    if (root->kind != TT_MAP) return tt_node_fail(root, "a job is a map: name, model, data, train");
    if ((err = child_of(root, "model", TT_MAP, &model)) ||
        (err = child_of(model, "layers", TT_LIST, &layers)) ||
        (err = tt_tree_parse("layer", text, strlen(text), &item)))
        return err;
    copy = tt_node_copy(job, tt_tree_root(item)); /* before it is read: `relu` stays `relu` */
    if (!(err = tt_node_kind_of(tt_tree_root(item), "layer", &kind, &at, &args)))
        tt_node_add(layers, NULL, copy);
    tt_tree_close(item);
    return err;
}

tutti_status tutti_job_layer(tutti_job *job, const char *fmt, ...)
{
    tt_err err = mistake_of(job);
    va_list ap;
    char *text;

    if (err) return status_of(err);
    if (!fmt) return status_of(tt_fail(TT_EINVAL, "tutti_job_layer: the layer is NULL"));
    va_start(ap, fmt);
    text = format(fmt, ap);
    va_end(ap);
    err = add_layer(job->tree, text);
    free(text);
    return status_of(remember(job, err));
}

/* ---- looking ---- */

tt_err job_copy(const tutti_job *job, tt_tree **out)
{
    tt_err err = mistake_of(job);

    *out = err ? NULL : tt_tree_copy(job->tree);
    return err;
}

tutti_status tutti_job_check(const tutti_job *job)
{
    tt_tree *copy;
    tt_err err = job_copy(job, &copy);

    if (!err) err = tt_job_check(copy);
    tt_tree_close(copy);
    return status_of(err);
}

const char *tutti_job_text(tutti_job *job)
{
    if (mistake_of(job)) return NULL;
    tt_str_free(&job->text);
    tt_tree_print(tt_tree_root(job->tree), false, &job->text);
    return job->text.data ? job->text.data : "";
}
