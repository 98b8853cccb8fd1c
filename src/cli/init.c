/* init: a commented job to start from. The examples are part of the program. */
#define _GNU_SOURCE
#include <string.h>

#include "cli.h"
#include "examples.h" /* made by tools/embed-examples from examples/ */

typedef struct init_opts {
    const char *out;
    bool list, force;
} init_opts;

static const tt_option options[] = {
    {"list", 'l', TT_OPT_FLAG, offsetof(init_opts, list), NULL, "list the examples"},
    {"out", 'o', TT_OPT_STRING, offsetof(init_opts, out), "FILE",
     "write there; - for standard output; else NAME.yaml"},
    {"force", 0, TT_OPT_FLAG, offsetof(init_opts, force), NULL, "overwrite a file that is there"},
};

enum { EXAMPLES = TT_COUNT(examples) };

static void print_list(void)
{
    int width = 0;

    for (int i = 0; i < EXAMPLES; i++)
        if ((int)strlen(examples[i].name) > width) width = (int)strlen(examples[i].name);
    for (int i = 0; i < EXAMPLES; i++)
        printf("%-*s  %s\n", width, examples[i].name, examples[i].brief);
}

static tt_err write_example(const init_opts *o, const char *name)
{
    const char *names[EXAMPLES];
    char path[CLI_PATH];
    int i;
    tt_err err;

    for (int k = 0; k < EXAMPLES; k++) names[k] = examples[k].name;
    if ((i = cli_choose("init", name, names, EXAMPLES)) < 0) return TT_EINVAL;
    if (o->out && !strcmp(o->out, "-")) {
        fputs(examples[i].text, stdout);
        return TT_OK;
    }
    if (o->out)
        snprintf(path, sizeof path, "%s", o->out);
    else
        snprintf(path, sizeof path, "%s.yaml", name);
    if (tt_file_exists(path) && !o->force)
        return tt_fail(TT_EINVAL,
                       "%s is there already: -o FILE writes elsewhere, --force overwrites it",
                       path);
    if ((err = tt_file_write(path, examples[i].text, strlen(examples[i].text)))) return err;
    printf("wrote %s; next:\n  %s summary %s\n  %s train %s\n", path, cli_program, path,
           cli_program, path);
    return TT_OK;
}

static int init_run(const void *opts, int argc, const char **argv)
{
    const init_opts *o = opts;
    tt_err err;

    if (o->list) {
        print_list();
        return 0;
    }
    if (!argc)
        err = tt_fail(TT_EINVAL, "'tutti init' needs the NAME of an example: --list lists them");
    else
        err = write_example(o, argv[0]);
    return err ? cli_fail(err) : 0;
}

const tt_command cli_init = {
    .name = "init",
    .args = "NAME",
    .args_most = 1,
    .brief = "write a commented job file to start from",
    .examples = (const char *const[]){"tutti init --list", "what there is", "tutti init mnist-cnn",
                                      "write mnist-cnn.yaml", "tutti init mlp -o my.yaml",
                                      "under another name", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(init_opts),
    .run = init_run,
};
