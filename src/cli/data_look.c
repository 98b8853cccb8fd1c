/* data inspect, data verify: what files are, and whether they are whole. */
#define _GNU_SOURCE
#include "data.h"

#include <string.h>
#include <sys/stat.h>

enum { ROWS = 3 };

static bool ends(const char *path, const char *end)
{
    size_t n = strlen(path), k = strlen(end);

    return n > k && !strcmp(path + n - k, end);
}

/* Names and messages may hold any bytes; JSON takes UTF-8. */
static json_t *clean_text(const char *s)
{
    json_t *j = json_string(s);
    tt_str text = {0};

    if (j) return j;
    for (; *s; s++) tt_str_put(&text, (unsigned char)*s < 0x80 ? s : "?", 1);
    j = json_string(text.data ? text.data : "");
    tt_str_free(&text);
    return j;
}

/* ---- safetensors, which are the store's ---- */

static json_t *tensor_list(const tt_tensors *t, int64_t *bytes)
{
    json_t *all = json_array();

    for (int i = 0; i < tt_tensors_count(t); i++) {
        const tt_entry *e = tt_tensors_at(t, i);
        json_t *shape = json_array();
        for (int k = 0; k < e->rank; k++) json_array_append_new(shape, json_integer(e->shape[k]));
        json_array_append_new(all, json_pack("{s:s, s:s, s:o}", "name", e->name, "type",
                                             tt_dtype_name(e->type), "shape", shape));
        *bytes += e->bytes;
    }
    return all;
}

static tt_err look_at_tensors(const char *path, json_t **out)
{
    char count[32], size[32];
    int64_t bytes = 0;
    tt_tensors *t;
    json_t *list;

    if (tt_tensors_open(path, &t)) return TT_EDATA;
    list = tensor_list(t, &bytes);
    *out = json_pack("{s:o, s:s, s:i, s:I, s:o}", "file", clean_text(path), "format", "safetensors",
                     "count", tt_tensors_count(t), "bytes", (json_int_t)bytes, "tensors", list);
    json_object_set_new(*out, "summary",
                        json_sprintf("%s tensors, %s",
                                     tt_show_count(tt_tensors_count(t), count, sizeof count),
                                     tt_show_bytes((double)bytes, size, sizeof size)));
    tt_tensors_close(t);
    return TT_OK;
}

static tt_err look_at(const data_opts *o, const char *path, json_t **out)
{
    char usual[CLI_PATH];

    *out = NULL;
    if (o->format ? !strcmp(o->format, "safetensors") : ends(path, ".safetensors"))
        return look_at_tensors(path, out);
    data_default_tokenizer(usual);
    return tt_data_inspect(path,
                           &(tt_inspect_opts){.format = o->format,
                                              .tokenizer = o->tokenizer,
                                              .usual = usual,
                                              .rows = o->rows ? (int)o->rows : ROWS},
                           out);
}

/* ---- showing it ---- */

static const char *text_of(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "";
}

static void print_value(const char *before, const json_t *v)
{
    printf("    %s", before);
    json_dumpf(v, stdout, JSON_ENCODE_ANY); /* what a terminal should not get is escaped */
    putchar('\n');
}

static void print_counts(const json_t *counts)
{
    const char *key;
    json_t *v;

    if (!json_object_size(counts)) return;
    printf("    values:");
    json_object_foreach((json_t *)counts, key, v)
        printf("  %s: %lld", key, (long long)json_integer_value(v));
    putchar('\n');
}

static void print_columns(const json_t *columns)
{
    json_t *c;
    size_t i;

    json_array_foreach((json_t *)columns, i, c)
    {
        const json_t *name = json_object_get(c, "name");
        printf("    column %zu", i);
        if (name) putchar(' '), json_dumpf(name, stdout, JSON_ENCODE_ANY);
        printf(": %lld numbers, %lld missing\n",
               (long long)json_integer_value(json_object_get(c, "numbers")),
               (long long)json_integer_value(json_object_get(c, "missing")));
    }
}

static void print_tensors(const json_t *tensors)
{
    json_t *t;
    size_t i;

    json_array_foreach((json_t *)tensors, i, t) print_value("", t);
}

static void show_verdict(const char *name, const json_t *j)
{
    if (json_is_true(json_object_get(j, "ok")))
        printf("ok   %s: %s, %s\n", name, text_of(j, "format"), text_of(j, "summary"));
    else
        printf("bad  %s\n", text_of(j, "error"));
}

static void show_look(const char *name, const json_t *j)
{
    const json_t *text = json_object_get(j, "text");
    json_t *row;
    size_t i;

    if (json_is_false(json_object_get(j, "ok"))) {
        show_verdict(name, j);
        return;
    }
    printf("%s: %s, %s\n", text_of(j, "file"), text_of(j, "format"), text_of(j, "summary"));
    print_columns(json_object_get(j, "columns"));
    print_tensors(json_object_get(j, "tensors"));
    if (json_object_get(j, "least") && !json_object_get(j, "counts")) {
        print_value("least: ", json_object_get(j, "least"));
        print_value("most: ", json_object_get(j, "most"));
    }
    print_counts(json_object_get(j, "counts"));
    json_array_foreach(json_object_get(j, "first"), i, row) print_value("", row);
    if (text) print_value("text: ", text);
}

/* ---- inspect, verify ---- */

static bool is_job(const char *name)
{
    struct stat st;

    if (ends(name, ".yaml") || ends(name, ".yml")) return true;
    return !stat(name, &st) ? S_ISDIR(st.st_mode) : !strcmp(name, "last");
}

/* Opens all data of a job, as training does. */
static tt_err check_job(const char *name, json_t **out)
{
    bool absent = false;
    cli_job job = {0};
    tt_err err;

    *out = NULL;
    if ((err = cli_job_load(name, NULL, &(tt_opt_list){0}, true, &job))) return err;
    if (!(err = tt_job_check_data(job.tree, &absent)) && absent) err = TT_EDATA;
    if (!err)
        *out =
            json_pack("{s:o, s:s, s:s}", "file", clean_text(job.path), "format", "job", "summary",
                      tt_tree_get(job.tree, "data") ? "its data is there, whole, and fits"
                                                    : "it names no data");
    cli_job_close(&job);
    return err;
}

/* One name. What is wrong with the question, or with this machine, ends it all. */
static tt_err check_one(const data_opts *o, const char *name, bool jobs, json_t **out)
{
    tt_err err = jobs && is_job(name) ? check_job(name, out) : look_at(o, name, out);

    if (err && err != TT_EDATA && err != TT_EFORMAT) return err;
    if (err)
        *out = json_pack("{s:o, s:b, s:o}", "file", clean_text(name), "ok", 0, "error",
                         clean_text(tt_message()));
    else
        json_object_set_new(*out, "ok", json_true());
    return TT_OK;
}

/* All of them; each is shown by `show` as soon as it is known. */
static tt_err check_all(const data_opts *o, int count, const char **names, bool jobs,
                        void (*show)(const char *name, const json_t *j))
{
    json_t *all = json_array(), *j;
    tt_err err = TT_OK;
    int bad = 0;

    for (int i = 0; i < count && !err; i++) {
        if ((err = check_one(o, names[i], jobs, &j))) break;
        bad += json_is_false(json_object_get(j, "ok"));
        if (!o->json) show(names[i], j);
        json_array_append_new(all, j);
    }
    if (o->json && !err) cli_json_print(stdout, json_incref(all), false);
    json_decref(all);
    if (!err && bad) err = tt_fail(TT_EDATA, "%d of %d are bad", bad, count);
    return err;
}

tt_err data_inspect(const data_opts *o, int count, const char **files)
{
    json_t *j;
    tt_err err;

    if (count == 1 && !o->json) { /* what is wrong with it is the error */
        if ((err = look_at(o, files[0], &j))) return err;
        show_look(files[0], j);
        json_decref(j);
        return TT_OK;
    }
    return check_all(o, count, files, false, show_look);
}

tt_err data_verify(const data_opts *o, int count, const char **names)
{
    return check_all(o, count, names, true, show_verdict);
}
