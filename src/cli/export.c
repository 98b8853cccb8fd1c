/* export: trained weights as a file that other programs read. */
#define _GNU_SOURCE
#include <libgen.h>
#include <string.h>

#include "cli.h"

typedef struct export_opts {
    const char *safetensors, *hf, *job, *runs;
    bool force;
} export_opts;

static const tt_option options[] = {
    {"safetensors", 'o', TT_OPT_STRING, offsetof(export_opts, safetensors), "FILE",
     "write a safetensors file"},
    {"hf", 0, TT_OPT_STRING, offsetof(export_opts, hf), "DIR",
     "of a GPT-2: write model.safetensors and config.json as Hugging Face has them"},
    {"job", 0, TT_OPT_STRING, offsetof(export_opts, job), "FILE",
     "the job, for weights that are in no run folder"},
    {"runs", 0, TT_OPT_STRING, offsetof(export_opts, runs), "DIR", "where run folders are; runs"},
    {"force", 0, TT_OPT_FLAG, offsetof(export_opts, force), NULL, "overwrite a file that is there"},
};

/* The run that a checkpoint (RUN/checkpoints/step-N) or RUN itself belongs to. */
static tt_err find_run(const char *weights, char run[CLI_PATH])
{
    char path[CLI_PATH + 16], *up;

    memcpy(run, weights, CLI_PATH);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/resolved.yaml", run);
        if (tt_file_exists(path)) return TT_OK;
        up = dirname(run);
        if (up != run) memmove(run, up, strlen(up) + 1);
    }
    return tt_fail(TT_EINVAL, "%s is in no run folder: say with --job FILE what model it is of",
                   weights);
}

/* What would be overwritten? */
static tt_err check_place(const export_opts *o)
{
    static const char *const files[] = {"model.safetensors", "config.json"};
    char path[CLI_PATH];

    if (!o->safetensors && !o->hf)
        return tt_fail(TT_EINVAL, "'tutti export' needs --safetensors FILE or --hf DIR");
    if (o->force) return TT_OK;
    if (o->safetensors && tt_file_exists(o->safetensors))
        return tt_fail(TT_EINVAL, "%s is there already: --force overwrites it", o->safetensors);
    for (int i = 0; o->hf && i < TT_COUNT(files); i++) {
        if (snprintf(path, sizeof path, "%s/%s", o->hf, files[i]) >= CLI_PATH)
            return tt_fail(TT_EINVAL, "--hf: the path is too long");
        if (tt_file_exists(path))
            return tt_fail(TT_EINVAL, "%s is there already: --force overwrites it", path);
    }
    return TT_OK;
}

static void tell(const tt_use *u, const char *path)
{
    char sha[65], text[32];
    int count;
    const tt_param *params = tt_model_params(tt_use_model(u), &count);
    int64_t numbers = 0;

    tt_params_sha(params, count, tt_use_params(u), sha);
    for (int i = 0; i < count; i++) numbers += params[i].n;
    printf("wrote %s: %d tensors, %s numbers, weights sha256 %s\n", path, count,
           tt_show_count(numbers, text, sizeof text), sha);
}

static tt_err export(const export_opts *o, const char *name)
{
    char weights[CLI_PATH], run[CLI_PATH];
    cli_use u = {0};
    tt_err err;

    if ((err = check_place(o)) || (err = cli_weights_find(name, o->runs, weights))) return err;
    if (!tt_file_exists(weights)) return tt_fail(TT_ECKPT, "%s: no such file or folder", weights);
    if (!o->job && (err = find_run(weights, run))) return err;
    if ((err = cli_use_open(
             &(cli_use_opts){
                 .job = o->job ? o->job : run, .weights = weights, .runs = o->runs, .threads = 1},
             &u)))
        return err;
    if (o->hf && !(err = tt_use_export_hf(u.use, o->hf))) tell(u.use, o->hf);
    if (o->safetensors && !err && !(err = tt_use_export(u.use, o->safetensors)))
        tell(u.use, o->safetensors);
    cli_use_close(&u);
    return err;
}

static int export_run(const void *opts, int argc, const char **argv)
{
    tt_err err = export(opts, argv[0]);

    (void)argc;
    return err ? cli_fail(err) : 0;
}

const tt_command cli_export = {
    .name = "export",
    .args = "RUN|CHECKPOINT",
    .args_least = 1,
    .args_most = 1,
    .brief = "write trained weights for other programs",
    .about =
        "Of a run the newest valid checkpoint is taken. Names and shapes are those that "
        "'tutti summary' and "
        "'tutti ckpt show' tell; PyTorch, NumPy and JAX read the file with the package "
        "safetensors. With --hf a GPT-2 is written as Hugging Face's GPT2LMHeadModel loads it; "
        "the files of its tokenizer are yours to put beside.",
    .examples =
        (const char *const[]){"tutti export last --safetensors model.safetensors", "the newest run",
                              "tutti export runs/a/checkpoints/BEST -o a.safetensors",
                              "one checkpoint", "tutti export last --hf my-gpt2",
                              "for transformers", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(export_opts),
    .run = export_run,
};
