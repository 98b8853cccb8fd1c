/* tf_config: the cluster as TensorFlow is told of it, in the environment variable TF_CONFIG. */
#define _GNU_SOURCE
#include "inner.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const roles[] = {"chief", "worker", "ps", "evaluator", "master"};

/* Where a task was found, for messages. */
typedef struct place {
    const tt_tf_task *task;
    const char *role;
    int index;
} place;

typedef struct reader {
    tt_tf_config *out;
    place *place; /* of all tasks: ranks, then servers; in step with out->rank */
    int count;
    bool has_chief;
    const char *chief_role; /* "chief", or "master" as it was once called */
} reader;

static bool is_role(const char *name)
{
    for (int i = 0; i < TT_COUNT(roles); i++)
        if (!strcmp(name, roles[i])) return true;
    return false;
}

static tt_err fail_role(const char *where, const char *name)
{
    const char *near = tt_nearest(name, roles, TT_COUNT(roles));
    char shown[96];

    tt_show_text(name, strlen(name), shown);
    if (near)
        return tt_fail(TT_EINVAL, "TF_CONFIG: %s: unknown role '%s': did you mean '%s'?", where,
                       shown, near);
    return tt_fail(TT_EINVAL, "TF_CONFIG: %s: unknown role '%s': there are chief, worker and ps",
                   where, shown);
}

/* ---- the cluster ---- */

static tt_err read_address(const char *role, int index, const char *text, tt_tf_task *out)
{
    const char *rest, *wrong = tt_host_split(text, strlen(text), out->host, &rest, &(size_t){0});
    char shown[96];

    tt_show_text(text, strlen(text), shown);
    if (wrong)
        return tt_fail(TT_EINVAL, "TF_CONFIG: cluster.%s[%d]: the address '%s' %s", role, index,
                       shown, wrong);
    if (!rest)
        return tt_fail(TT_EINVAL,
                       "TF_CONFIG: cluster.%s[%d]: the address '%s' has no port: write %s:2222",
                       role, index, shown, shown);
    out->port = tt_digits(rest, strlen(rest), 65535);
    if (out->port < 1)
        return tt_fail(TT_EINVAL,
                       "TF_CONFIG: cluster.%s[%d]: the address '%s' has a port that is no number "
                       "from 1 to 65535",
                       role, index, shown);
    return TT_OK;
}

/* All tasks of a role, behind those that were read before. */
static tt_err read_role(reader *r, const char *role, const json_t *list)
{
    for (int i = 0; i < (int)json_array_size(list); i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        tt_tf_task *task = &r->out->rank[r->count];
        tt_err err;
        if (!json_is_string(item))
            return tt_fail(TT_EINVAL,
                           "TF_CONFIG: cluster.%s[%d] must be a string, as in \"host:2222\"", role,
                           i);
        if ((err = read_address(role, i, json_string_value(item), task))) return err;
        r->place[r->count++] = (place){task, role, i};
    }
    return TT_OK;
}

static int compare_places(const void *a, const void *b)
{
    const place *x = a, *y = b;
    int order = strcmp(x->task->host, y->task->host);

    if (!order) order = x->task->port - y->task->port;
    return order ? order : (x->task > y->task) - (x->task < y->task);
}

static tt_err check_unique(reader *r)
{
    const place *p = r->place;

    qsort(r->place, (size_t)r->count, sizeof *r->place, compare_places);
    for (int i = 1; i < r->count; i++)
        if (p[i].task->port == p[i - 1].task->port && !strcmp(p[i].task->host, p[i - 1].task->host))
            return tt_fail(TT_EINVAL,
                           "TF_CONFIG: cluster.%s[%d] and cluster.%s[%d] have the same address "
                           "%.255s:%d: each task needs one of its own",
                           p[i - 1].role, p[i - 1].index, p[i].role, p[i].index, p[i].task->host,
                           p[i].task->port);
    return TT_OK;
}

/* Looks at the roles before any address: who is there, and how many. */
static tt_err check_roles(reader *r, json_t *cluster, int *count)
{
    const char *name;
    json_t *list;
    size_t sum = 0;

    json_object_foreach(cluster, name, list)
    {
        if (!is_role(name)) return fail_role("cluster", name);
        if (!strcmp(name, "evaluator"))
            return tt_fail(TT_EINVAL, "TF_CONFIG: cluster.evaluator: an evaluator takes no part in "
                                      "the cluster; name it in \"task\" alone");
        if (!json_is_array(list))
            return tt_fail(TT_EINVAL, "TF_CONFIG: cluster.%s must be a list, as in [\"host:2222\"]",
                           name);
        sum += json_array_size(list);
        if (strcmp(name, "chief") && strcmp(name, "master")) continue;
        if (r->chief_role)
            return tt_fail(TT_EINVAL, "TF_CONFIG: cluster has both chief and master, which is the "
                                      "old word for it: leave master out");
        if (json_array_size(list) > 1)
            return tt_fail(TT_EINVAL, "TF_CONFIG: cluster.%s names %zu tasks: there is one %s",
                           name, json_array_size(list), name);
        r->chief_role = name;
        r->has_chief = json_array_size(list) == 1;
    }
    if (sum > TT_HOSTS_MOST)
        return tt_fail(TT_EINVAL, "TF_CONFIG: %zu tasks: at most %d are possible", sum,
                       TT_HOSTS_MOST);
    *count = (int)sum;
    return TT_OK;
}

static tt_err read_cluster(reader *r, json_t *cluster)
{
    tt_err err;
    int count = 0;

    if (!json_is_object(cluster))
        return tt_fail(TT_EINVAL,
                       "TF_CONFIG: cluster must be an object, as in {\"worker\": [\"host:2222\"]}");
    if ((err = check_roles(r, cluster, &count)) || !count) return err;
    r->out->rank = calloc((size_t)count, sizeof *r->out->rank);
    r->place = calloc((size_t)count, sizeof *r->place);
    if (!r->out->rank || !r->place) tt_mem_out((size_t)count * sizeof *r->out->rank);
    if (r->has_chief &&
        (err = read_role(r, r->chief_role, json_object_get(cluster, r->chief_role))))
        return err;
    if ((err = read_role(r, "worker", json_object_get(cluster, "worker")))) return err;
    r->out->ranks = r->count;
    if ((err = read_role(r, "ps", json_object_get(cluster, "ps")))) return err;
    r->out->servers = r->count - r->out->ranks;
    if (!r->out->ranks)
        return tt_fail(TT_EINVAL, "TF_CONFIG: cluster names no chief and no worker: nobody would "
                                  "train");
    return check_unique(r);
}

/* ---- the task: who of them is this process ---- */

static tt_err read_task(reader *r, const json_t *cluster, const json_t *task)
{
    tt_tf_config *c = r->out;
    const json_t *index = json_object_get(task, "index"), *list;
    const char *type = json_string_value(json_object_get(task, "type"));
    long long i;

    if (!json_is_object(task))
        return tt_fail(TT_EINVAL, "TF_CONFIG: task must be an object, as in {\"type\": \"worker\", "
                                  "\"index\": 0}");
    if (!json_object_size(task)) return TT_OK;
    if (!type)
        return tt_fail(TT_EINVAL, "TF_CONFIG: task.type is missing or no string: write \"worker\"");
    if (!is_role(type)) return fail_role("task.type", type);
    if (!json_is_integer(index))
        return tt_fail(TT_EINVAL,
                       "TF_CONFIG: task.index is missing or no number: write 0, without quotes");
    i = json_integer_value(index);
    snprintf(c->type, sizeof c->type, "%s", strcmp(type, "master") ? type : "chief");
    if (!strcmp(type, "evaluator")) {
        if (i < 0 || i > TT_HOSTS_MOST)
            return tt_fail(TT_EINVAL, "TF_CONFIG: task.index is %lld: it counts from 0", i);
        c->index = (int)i;
        return TT_OK;
    }
    list = json_object_get(cluster, type);
    if (!json_array_size(list))
        return tt_fail(TT_EINVAL, "TF_CONFIG: task is a %s, but cluster names none", type);
    if (i < 0 || i >= (long long)json_array_size(list))
        return tt_fail(TT_EINVAL,
                       "TF_CONFIG: task.index is %lld, but cluster.%s names %zu: it must be from 0 "
                       "to %zu",
                       i, type, json_array_size(list), json_array_size(list) - 1);
    c->index = (int)i;
    if (!strcmp(type, "worker")) c->me = r->has_chief + c->index;
    if (!strcmp(c->type, "chief")) c->me = 0;
    return TT_OK;
}

/* ---- the whole ---- */

static tt_err fail_json(const char *text, const json_error_t *e)
{
    char shown[96];
    bool single = strchr(text, '\'') && !strchr(text, '"');

    return tt_fail(TT_EINVAL, "TF_CONFIG:%d:%d: not JSON: %s%s", e->line, e->column,
                   tt_show_text(e->text, strlen(e->text), shown),
                   single ? " (JSON takes double quotes alone)" : "");
}

tt_err tt_tf_config_parse(const char *text, tt_tf_config *out)
{
    reader r = {.out = out};
    json_t *root = NULL, *cluster, *task;
    json_error_t e;
    tt_err err = TT_OK;

    *out = (tt_tf_config){.me = -1};
    if (!text || !text[strspn(text, " \t\r\n")]) return TT_OK;
    root = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (!root) return fail_json(text, &e);
    if (!json_is_object(root)) {
        err = tt_fail(TT_EINVAL,
                      "TF_CONFIG must be a JSON object: {\"cluster\": ..., \"task\": ...}");
        goto out;
    }
    cluster = json_object_get(root, "cluster");
    task = json_object_get(root, "task");
    if (!cluster || json_is_null(cluster)) goto out;
    if ((err = read_cluster(&r, cluster)) || !r.count) goto out;
    if (task && !json_is_null(task)) err = read_task(&r, cluster, task);
out:
    if (err) tt_tf_config_free(out);
    free(r.place);
    json_decref(root);
    return err;
}

tt_err tt_tf_config_hosts(const tt_tf_config *c, tt_hosts *out)
{
    tt_hosts_maker m = {0};
    tt_err err = TT_OK;

    *out = (tt_hosts){0};
    for (int i = 0; !err && i < c->ranks; i++) err = tt_hosts_add(&m, c->rank[i].host, 1);
    return tt_hosts_done(&m, err, out);
}

void tt_tf_config_show(const tt_tf_config *c, tt_str *out)
{
    for (int i = 0; i < c->ranks; i++)
        tt_str_add(out, "%s%s:%d", i ? "," : "", c->rank[i].host, c->rank[i].port);
}

void tt_tf_config_free(tt_tf_config *c)
{
    free(c->rank);
    *c = (tt_tf_config){.me = -1};
}
