/* summary: what a model consists of. */
#include <string.h>

#include "cli.h"

typedef struct summary_opts {
    tt_opt_list set;
    const char *runs;
    bool calls, json;
} summary_opts;

static const tt_option options[] = {
    {"calls", 0, TT_OPT_FLAG, offsetof(summary_opts, calls), NULL,
     "show the kernel calls it is compiled to"},
    {"set", 's', TT_OPT_LIST, offsetof(summary_opts, set), "KEY=VALUE",
     "override a key of the job"},
    {"runs", 0, TT_OPT_STRING, offsetof(summary_opts, runs), "DIR", "where run folders are; runs"},
    {"json", 0, TT_OPT_FLAG, offsetof(summary_opts, json), NULL, "print JSON"},
};

static int64_t frozen_count(const tt_model *m, int64_t *stats)
{
    int count;
    const tt_param *p = tt_model_params(m, &count);
    int64_t frozen = 0;

    *stats = 0;
    for (int i = 0; i < count; i++) {
        if (p[i].role == TT_STAT)
            *stats += p[i].n;
        else if (p[i].frozen)
            frozen += p[i].n;
    }
    return frozen;
}

static int64_t total_of(const tt_model *m)
{
    int64_t n = 0;
    for (int i = 0; i < tt_model_layer_count(m); i++) n += tt_model_layer(m, i).params;
    return n;
}

static json_t *json_shape(tt_shape s)
{
    json_t *a = json_array();
    for (int i = 0; i < s.rank; i++) json_array_append_new(a, json_integer(s.dim[i]));
    return a;
}

static json_t *json_of(const tt_model *m)
{
    json_t *layers = json_array(), *losses = json_array();
    int64_t stats, frozen = frozen_count(m, &stats);

    for (int i = 0; i < tt_model_layer_count(m); i++) {
        tt_layer_info l = tt_model_layer(m, i);
        json_array_append_new(layers, json_pack("{s:s, s:s, s:s, s:s, s:o, s:I, s:f, s:b}", "name",
                                                l.name, "kind", l.kind, "detail", l.detail,
                                                "inputs", l.inputs, "output", json_shape(l.out),
                                                "parameters", (json_int_t)l.params, "flops",
                                                l.flops, "frozen", l.frozen));
    }
    for (int i = 0; i < tt_model_loss_count(m); i++)
        json_array_append_new(losses, json_string(tt_model_loss_name(m, i)));
    return json_pack("{s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:f, s:f}", "input",
                     json_shape(tt_model_input(m)), "output", json_shape(tt_model_output(m)),
                     "layers", layers, "losses", losses, "parameters", (json_int_t)total_of(m),
                     "frozen", (json_int_t)frozen, "statistics", (json_int_t)stats, "forward_flops",
                     tt_model_flops(m), "train_flops", tt_model_train_flops(m));
}

/* Columns are as wide as their longest cell. */
static int name_width(const tt_model *m, int least)
{
    int width = least;

    for (int i = 0; i < tt_model_layer_count(m); i++) {
        int n = (int)strlen(tt_model_layer(m, i).name);
        if (n > width) width = n;
    }
    return width;
}

static void print_layers(const tt_model *m, int width)
{
    char shape[96], count[32], what[160];

    printf("%-*s  %-26s  %14s  %13s  %10s\n", width, "layer", "kind", "output", "parameters",
           "MFLOPs");
    printf("%-*s  %-26s  %14s\n", width, "input", "",
           tt_shape_show(tt_model_input(m), shape, sizeof shape));
    for (int i = 0; i < tt_model_layer_count(m); i++) {
        tt_layer_info l = tt_model_layer(m, i);
        snprintf(what, sizeof what, "%s%s%s", l.kind, *l.detail ? " " : "", l.detail);
        printf("%-*s  %-26s  %14s  %13s  %10.4g%s%s%s\n", width, l.name, what,
               tt_shape_show(l.out, shape, sizeof shape),
               tt_show_count(l.params, count, sizeof count), l.flops / 1e6,
               *l.inputs ? "  from " : "", l.inputs, l.frozen ? "  frozen" : "");
    }
}

static void print_text(const tt_model *m, const char *name)
{
    int64_t stats, frozen = frozen_count(m, &stats);
    char count[32];

    printf("%s\n\n", name);
    print_layers(m, name_width(m, 5));
    printf("\nloss        ");
    for (int i = 0; i < tt_model_loss_count(m); i++)
        printf("%s%s", i ? ", " : "", tt_model_loss_name(m, i));
    printf("\nparameters  %s", tt_show_count(total_of(m), count, sizeof count));
    if (frozen) printf(" (%s frozen)", tt_show_count(frozen, count, sizeof count));
    if (stats) printf(", and %s running statistics", tt_show_count(stats, count, sizeof count));
    printf("\nMFLOPs      %.4g forward, %.4g forward and backward, a sample\n",
           tt_model_flops(m) / 1e6, tt_model_train_flops(m) / 1e6);
}

static void print_calls(const tt_model *m)
{
    tt_str calls = {0};

    tt_model_show_calls(m, &calls);
    printf("\ncalls, with %s kernels:\n%s", tt_model_kernels(m)->name,
           calls.data ? calls.data : "");
    tt_str_free(&calls);
}

static tt_precision precision_of(tt_tree *job)
{
    const tt_node *n = tt_tree_get(job, "train.precision");

    return n && n->kind == TT_SCALAR && !strcmp(n->text, "bf16") ? TT_IN_BF16 : TT_IN_FLOAT32;
}

static int summary_run(const void *opts, int argc, const char **argv)
{
    const summary_opts *o = opts;
    cli_job job = {0};
    tt_job parts;
    tt_model *m = NULL;
    tt_model_opts mo = {0};
    tt_err err;

    (void)argc;
    if (o->json && o->calls)
        return cli_fail(tt_fail(TT_EINVAL, "--calls is for people: leave --json out"));
    if (!(err = cli_job_load(argv[0], o->runs, &o->set, false, &job)) &&
        !(err = tt_job_read(job.tree, &parts)) &&
        !(err = tt_kernels_pick("auto", precision_of(job.tree), &mo.kernels)) &&
        !(err = tt_model_open(parts.model, &mo, &m))) {
        if (o->json)
            cli_json_print(stdout, json_of(m), false);
        else
            print_text(m, parts.name);
        if (o->calls) print_calls(m);
    }
    tt_model_close(m);
    cli_job_close(&job);
    return err ? cli_fail(err) : 0;
}

const tt_command cli_summary = {
    .name = "summary",
    .args = "JOB",
    .args_least = 1,
    .args_most = 1,
    .brief = "show the layers of a model",
    .about =
        "A table of layers with output shape, parameters and the arithmetic of a sample's forward "
        "pass "
        "(a multiply and an add count as two). Presets are shown as the layers they stand for.",
    .examples = (const char *const[]){"tutti summary job.yaml", "the layers",
                                      "tutti summary job.yaml --calls",
                                      "and what is computed, with kernel and layout", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(summary_opts),
    .run = summary_run,
};
