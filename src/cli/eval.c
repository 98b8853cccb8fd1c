/* eval: how good trained weights are on a split of the data. */
#include <string.h>

#include "cli.h"

typedef struct eval_opts {
    tt_opt_list set;
    const char *data, *weights, *split, *runs;
    int64_t threads, batch;
    bool partial, json;
} eval_opts;

static const tt_option options[] = {
    {"data", 'd', TT_OPT_STRING, offsetof(eval_opts, data), "FILE",
     "rows to judge by instead of the job's: a file like the training set's, which has their "
     "labels, too; where those are in a file of their own, --set data.val.images=... and "
     "data.val.labels=... (or x and y) name both"},
    {"weights", 'w', TT_OPT_STRING, offsetof(eval_opts, weights), "FILE",
     "a run, a checkpoint or a safetensors file; best: of a run, its best checkpoint; a run given "
     "instead of a job has its own newest"},
    {"split", 0, TT_OPT_STRING, offsetof(eval_opts, split), "val|train", "which data; val"},
    {"set", 's', TT_OPT_LIST, offsetof(eval_opts, set), "KEY=VALUE", "override a key of the job"},
    {"threads", 't', TT_OPT_INT, offsetof(eval_opts, threads), "N", "threads; 0: as the job says"},
    {"batch", 0, TT_OPT_INT, offsetof(eval_opts, batch), "N", "samples a thread takes at once; 64"},
    {"partial", 0, TT_OPT_FLAG, offsetof(eval_opts, partial), NULL,
     "take the weights that match and list the rest"},
    {"runs", 0, TT_OPT_STRING, offsetof(eval_opts, runs), "DIR", "where run folders are; runs"},
    {"json", 0, TT_OPT_FLAG, offsetof(eval_opts, json), NULL, "print JSON"},
};

static void print_json(const cli_use *u, const char *split, const tt_metrics *m, double took)
{
    json_t *j = cli_json_metrics(m);

    json_object_set_new(j, "split", json_string(split));
    json_object_set_new(j, "weights", json_string(u->weights));
    json_object_set_new(j, "seconds", json_real(took));
    cli_json_print(stdout, j, true);
}

static void print_text(const cli_use *u, const char *split, const tt_metrics *m, double took)
{
    int losses = tt_model_loss_count(tt_use_model(u->use));
    char text[200], count[32], time[32];

    cli_metrics_show(m, text, sizeof text);
    printf("%s: %s  (%s samples in %s)\n", split, text,
           tt_show_count(m->samples, count, sizeof count), tt_show_time(took, time, sizeof time));
    for (int i = 0; losses > 1 && i < losses; i++)
        printf("  %-24s  %.4g\n", tt_model_loss_name(tt_use_model(u->use), i), m->part[i]);
}

static int eval_run(const void *opts, int argc, const char **argv)
{
    const eval_opts *o = opts;
    const char *name = o->split ? o->split : "val";
    tt_metrics m;
    cli_use u = {0};
    tt_split split;
    double begun;
    tt_err err;

    (void)argc;
    if (o->data && o->split)
        return cli_fail(tt_fail(TT_EINVAL, "give either --data or --split, not both"));
    if (o->data) name = o->data;
    if ((err = cli_split(o->split, &split)) ||
        (err = cli_use_open(&(cli_use_opts){.job = argv[0],
                                            .weights = o->weights,
                                            .runs = o->runs,
                                            .data = o->data,
                                            .set = &o->set,
                                            .partial = o->partial,
                                            .threads = o->threads,
                                            .batch = o->batch},
                            &u)))
        return cli_fail(err);
    begun = tt_clock_s();
    if (!(err = tt_use_eval(u.use, split, &m)))
        (o->json ? print_json : print_text)(&u, name, &m, tt_clock_s() - begun);
    cli_use_close(&u);
    return err ? cli_fail(err) : 0;
}

const tt_command cli_eval = {
    .name = "eval",
    .args = "JOB|RUN",
    .args_least = 1,
    .args_most = 1,
    .brief = "measure trained weights on the validation data",
    .about =
        "Gives loss and accuracy, of two classes the area under the ROC curve (auc), and of pixels "
        "the mean intersection over union (miou), of the weights on a split of the job's data. Of "
        "a run the newest valid checkpoint is taken; "
        "--weights best, or RUN/checkpoints/step-..., takes another. A run knows the words, means "
        "and deviations of its training data: files given by --data need no others.",
    .examples =
        (const char *const[]){"tutti eval last", "the newest run", "tutti eval last --data new.csv",
                              "on other rows", "tutti eval job.yaml --weights model.safetensors",
                              "weights from elsewhere", "tutti eval last --split train",
                              "on the training data", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(eval_opts),
    .run = eval_run,
};
