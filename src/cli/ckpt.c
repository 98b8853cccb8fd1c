/* ckpt: the checkpoints of a run. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct ckpt_opts {
    const char *runs;
    bool json;
} ckpt_opts;

static const tt_option options[] = {
    {"runs", 0, TT_OPT_STRING, offsetof(ckpt_opts, runs), "DIR", "where run folders are; runs"},
    {"json", 0, TT_OPT_FLAG, offsetof(ckpt_opts, json), NULL, "print JSON"},
};

/* The folder of checkpoints that is meant, and the step, -1 if none was said: a run, its folder of
 * checkpoints, or one checkpoint. */
static tt_err find_folder(const char *name, const char *runs, char folder[CLI_PATH], int64_t *step)
{
    char inner[CLI_PATH + 16], path[CLI_PATH];
    const char *base;
    tt_err err;

    if ((err = cli_run_find(name, runs, path))) return err;
    *step = -1;
    base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (!strncmp(base, "step-", 5) && tt_parse_int(base + 5, step)) {
        snprintf(folder, CLI_PATH, "%.*s", base == path ? 1 : (int)(base - path - 1),
                 base == path ? "." : path);
        return TT_OK;
    }
    snprintf(inner, sizeof inner, "%s/checkpoints", path);
    if (!tt_file_exists(inner)) memcpy(inner, path, CLI_PATH);
    if (strlen(inner) >= CLI_PATH)
        return tt_fail(TT_EINVAL, "the path of the checkpoints is too long");
    memcpy(folder, inner, CLI_PATH);
    return TT_OK;
}

/* ---- ls and verify ---- */

static json_t *json_info(const tt_ckpt_info *c)
{
    json_t *j = json_pack("{s:I, s:s, s:I, s:b, s:b, s:b, s:b}", "step", (json_int_t)c->step,
                          "path", c->path, "bytes", (json_int_t)c->bytes, "valid", c->valid,
                          "finite", c->finite, "best", c->best, "newest", c->newest);

    json_object_set_new(j, "score", cli_json_real(c->score));
    if (c->valid)
        json_object_set_new(j, "time", json_real(c->time));
    else
        json_object_set_new(j, "defect", json_string(c->defect));
    return j;
}

static void print_info(const tt_ckpt_info *c, bool verified)
{
    char bytes[32], time[32] = "", score[32] = "";

    if (c->valid) cli_time_show(c->time, time, sizeof time);
    if (!isnan(c->score)) snprintf(score, sizeof score, "%.6g", c->score);
    printf("%10lld  %10s  %-16s  %10s  ", (long long)c->step,
           tt_show_bytes((double)c->bytes, bytes, sizeof bytes), time, score);
    if (!c->valid)
        printf("bad: %s\n", c->defect);
    else
        printf("%s%s%s%s\n", verified ? "intact" : "ok", c->newest ? ", newest" : "",
               c->best ? ", best" : "", c->finite ? "" : ", holds numbers that are not finite");
}

/* TT_ECKPT if there is none, or (verify) if one is bad. */
static tt_err list(const char *folder, int64_t step, bool verify, bool json)
{
    tt_ckpt_info *infos = NULL;
    json_t *all = json_array();
    int count = 0, shown = 0, bad = 0;
    tt_err err;

    if ((err = tt_ckpt_list(folder, verify, &infos, &count))) goto out;
    for (int i = 0; i < count; i++) {
        if (step >= 0 && infos[i].step != step) continue;
        if (!shown++ && !json)
            printf("%10s  %10s  %-16s  %10s  %s\n", "step", "size", "saved", "score", "state");
        if (json)
            json_array_append_new(all, json_info(&infos[i]));
        else
            print_info(&infos[i], verify);
        bad += !infos[i].valid;
    }
    if (json) cli_json_print(stdout, json_incref(all), false);
    if (!shown && step >= 0)
        err = tt_fail(TT_ECKPT, "no checkpoint of step %lld in %s", (long long)step, folder);
    else if (!shown)
        err = tt_fail(TT_ECKPT, "no checkpoint in %s", folder);
    else if (verify && bad)
        err = tt_fail(TT_ECKPT, "%d of %d checkpoints are bad", bad, shown);
out:
    json_decref(all);
    free(infos);
    return err;
}

/* ---- show ---- */

static void shape_text(const tt_entry *e, tt_str *out)
{
    for (int i = 0; i < e->rank; i++)
        tt_str_add(out, "%s%lld", i ? "x" : "", (long long)e->shape[i]);
    if (!e->rank) tt_str_add(out, "1");
}

static void print_tensors(const tt_ckpt *c)
{
    char bytes[32];
    int width = 6;

    for (int i = 0; i < tt_ckpt_count(c); i++) {
        int n = (int)strlen(tt_ckpt_at(c, i)->name);
        if (n > width) width = n;
    }
    for (int i = 0; i < tt_ckpt_count(c); i++) {
        const tt_entry *e = tt_ckpt_at(c, i);
        tt_str shape = {0};
        shape_text(e, &shape);
        printf("  %-*s  %-4s  %-18s  %s\n", width, e->name, tt_dtype_name(e->type), shape.data,
               tt_show_bytes((double)e->bytes, bytes, sizeof bytes));
        tt_str_free(&shape);
    }
}

static json_t *json_tensors(const tt_ckpt *c)
{
    json_t *all = json_array();

    for (int i = 0; i < tt_ckpt_count(c); i++) {
        const tt_entry *e = tt_ckpt_at(c, i);
        json_t *shape = json_array();
        for (int k = 0; k < e->rank; k++) json_array_append_new(shape, json_integer(e->shape[k]));
        json_array_append_new(all, json_pack("{s:s, s:s, s:o}", "name", e->name, "dtype",
                                             tt_dtype_name(e->type), "shape", shape));
    }
    return all;
}

/* For people: of long lists, which are words and means, how long they are. */
static json_t *shortened(const json_t *j)
{
    enum { LONG = 16 };
    const char *key;
    json_t *copy, *value;

    if (json_array_size(j) > LONG) return json_sprintf("%zu of them", json_array_size(j));
    if (!json_is_object(j) && !json_is_array(j)) return json_deep_copy(j);
    copy = json_is_object(j) ? json_object() : json_array();
    for (size_t i = 0; i < json_array_size(j); i++)
        json_array_append_new(copy, shortened(json_array_get(j, i)));
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
        json_object_set_new(copy, key, shortened(value));
    return copy;
}

static tt_err show(const char *folder, int64_t step, bool json)
{
    tt_ckpt *c;
    const json_t *meta;
    json_t *brief;
    char *text;
    tt_err err;

    err = tt_ckpt_open(folder, step, true, &c);
    if (err == TT_EFORMAT)
        return tt_repeat(TT_ECKPT, tt_message()); /* this bad file is a checkpoint */
    if (err) return err;
    meta = tt_ckpt_meta(c);
    if (json) {
        cli_json_print(stdout,
                       json_pack("{s:I, s:O, s:o}", "step", (json_int_t)tt_ckpt_step(c), "meta",
                                 meta, "tensors", json_tensors(c)),
                       false);
    } else {
        brief = shortened(meta);
        text = json_dumps(brief, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        json_decref(brief);
        printf("step %lld of %s\n%s\n%d tensors:\n", (long long)tt_ckpt_step(c), folder,
               text ? text : "", tt_ckpt_count(c));
        free(text);
        print_tensors(c);
    }
    tt_ckpt_close(c);
    return TT_OK;
}

static int ckpt_run(const void *opts, int argc, const char **argv)
{
    static const char *const words[] = {"ls", "show", "verify"};
    const ckpt_opts *o = opts;
    int word = cli_choose("ckpt", argv[0], words, TT_COUNT(words));
    char folder[CLI_PATH];
    int64_t step;
    tt_err err;

    if (word < 0) return cli_fail(TT_EINVAL);
    if ((err = find_folder(argc > 1 ? argv[1] : "last", o->runs, folder, &step)))
        return cli_fail(err);
    if (argc > 2 && (!tt_parse_int(argv[2], &step) || step < 0))
        return cli_fail(tt_fail(TT_EINVAL, "'%s' is not the number of a step", argv[2]));
    if (word == 1)
        err = show(folder, step, o->json);
    else
        err = list(folder, step, word == 2, o->json);
    return err ? cli_fail(err) : 0;
}

const tt_command cli_ckpt = {
    .name = "ckpt",
    .args = "ls|show|verify [RUN|FOLDER] [STEP]",
    .args_least = 1,
    .args_most = 3,
    .brief = "list, show and verify checkpoints",
    .about = "ls lists the checkpoints of a run; show tells what one holds, the newest if no step "
             "is given; "
             "verify reads them all again and compares every hash. Without a run the newest is "
             "taken. Exit "
             "code 6: there is none, or one is bad.",
    .examples = (const char *const[]){"tutti ckpt ls last", "of the newest run",
                                      "tutti ckpt show last 1200", "what one holds",
                                      "tutti ckpt verify runs/a", "are they intact?", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(ckpt_opts),
    .run = ckpt_run,
};
