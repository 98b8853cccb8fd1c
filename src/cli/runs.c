/* runs: what was trained here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct runs_opts {
    const char *runs;
    bool json, dry_run, all;
} runs_opts;

static const tt_option options[] = {
    {"runs", 0, TT_OPT_STRING, offsetof(runs_opts, runs), "DIR", "where run folders are; runs"},
    {"dry-run", 0, TT_OPT_FLAG, offsetof(runs_opts, dry_run), NULL,
     "with clean: show what would be removed"},
    {"all", 0, TT_OPT_FLAG, offsetof(runs_opts, all), NULL,
     "with clean: also the state in memory of runs that could still be resumed from it"},
    {"json", 0, TT_OPT_FLAG, offsetof(runs_opts, json), NULL, "print JSON"},
};

static json_t *json_run(const tt_run_info *r)
{
    json_t *j = json_pack("{s:s, s:s, s:s, s:f, s:f, s:I}", "path", r->path, "name", r->name,
                          "status", r->status, "started", r->started, "updated", r->updated, "step",
                          (json_int_t)r->step);

    if (r->summary) json_object_set(j, "summary", r->summary);
    return j;
}

/* What the model is best known by: of several numbers the one that fewer models have. */
static void show_result(const tt_run_info *r, char *buf, size_t size)
{
    static const struct {
        const char *split, *key, *format;
        double times;
    } known[] = {{"val", "miou", "mIoU %.4f", 1},     {"val", "perplexity", "perplexity %.4g", 1},
                 {"val", "auc", "AUC %.4f", 1},       {"val", "accuracy", "accuracy %.2f %%", 100},
                 {"val", "loss", "val loss %.4g", 1}, {"train", "loss", "loss %.4g", 1}};

    snprintf(buf, size, "-");
    for (int i = 0; i < TT_COUNT(known); i++) {
        const json_t *v =
            json_object_get(json_object_get(r->summary, known[i].split), known[i].key);
        if (!json_is_number(v)) continue;
        snprintf(buf, size, known[i].format, known[i].times * json_number_value(v));
        return;
    }
}

static tt_err list(const runs_opts *o)
{
    tt_run_info *runs;
    json_t *all = json_array();
    char started[32], result[64];
    int count, width = 3;
    tt_err err;

    if ((err = tt_run_list(o->runs, &runs, &count))) goto out;
    for (int i = 0; i < count; i++) {
        int n = (int)strlen(runs[i].name);
        if (n > width) width = n;
        if (o->json) json_array_append_new(all, json_run(&runs[i]));
    }
    if (o->json)
        cli_json_print(stdout, json_incref(all), false);
    else if (!count)
        printf("no runs below %s\n", o->runs ? o->runs : "runs");
    else
        printf("%-*s  %-8s  %10s  %-16s  %s\n", width, "run", "status", "step", "started",
               "result");
    for (int i = 0; i < count && !o->json; i++) {
        show_result(&runs[i], result, sizeof result);
        cli_time_show(runs[i].started, started, sizeof started);
        printf("%-*s  %-8s  %10lld  %-16s  %s\n", width, runs[i].name, runs[i].status,
               (long long)runs[i].step, started, result);
    }
    tt_run_free(runs, count);
out:
    json_decref(all);
    return err;
}

static void print_run(const tt_run_info *r)
{
    char time[32];
    char *text =
        r->summary ? json_dumps(r->summary, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;

    printf("%s\n  status   %s\n  step     %lld\n", r->path, r->status, (long long)r->step);
    cli_time_show(r->started, time, sizeof time);
    printf("  started  %s\n", time);
    cli_time_show(r->updated, time, sizeof time);
    printf("  updated  %s\n", time);
    if (text) printf("%s\n", text);
    free(text);
}

static tt_err show(const runs_opts *o, const char *name)
{
    char path[CLI_PATH];
    tt_run_info r;
    tt_err err;

    if ((err = cli_run_find(name, o->runs, path)) || (err = tt_run_look(path, &r))) return err;
    if (o->json)
        cli_json_print(stdout, json_run(&r), false);
    else
        print_run(&r);
    json_decref(r.summary);
    return TT_OK;
}

static int runs_run(const void *opts, int argc, const char **argv)
{
    static const char *const words[] = {"ls", "show", "clean"};
    const runs_opts *o = opts;
    int word = argc ? cli_choose("runs", argv[0], words, TT_COUNT(words)) : 0;
    tt_err err;

    if (word < 0) return cli_fail(TT_EINVAL);
    if (word != 1 && argc > 1)
        err = tt_fail(TT_EINVAL, "'tutti runs %s' takes no more: '%s'", words[word], argv[1]);
    else if (word != 2 && (o->dry_run || o->all))
        err = tt_fail(TT_EINVAL, "--dry-run and --all go with 'tutti runs clean'");
    else if (word == 2)
        err = cli_clean(&(cli_clean_opts){o->runs, o->dry_run, o->all, o->json});
    else
        err = word ? show(o, argc > 1 ? argv[1] : "last") : list(o);
    return err ? cli_fail(err) : 0;
}

const tt_command cli_runs = {
    .name = "runs",
    .args = "[ls|show|clean] [RUN|last]",
    .args_most = 2,
    .brief = "list runs, show one, clean up after dead ones",
    .about = "A run is running, done, stopped, diverged, failed, or lost: its process went without "
             "a word.\n\n"
             "clean removes what runs of this user that died have left in memory and in temporary "
             "folders of this host. The state of a run that was killed stays, with its size and "
             "age shown: 'tutti train --resume RUN' goes on from it without losing a step. "
             "--all removes that, too.",
    .examples =
        (const char *const[]){"tutti runs ls", "all of them", "tutti runs show last", "the newest",
                              "tutti runs ls --json", "for programs", "tutti runs clean --dry-run",
                              "what dead runs have left", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(runs_opts),
    .run = runs_run,
};
