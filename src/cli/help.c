/* help, version, man and completion: all made from the tables of the commands. */
#include <string.h>

#include "cli.h"

static const char *const exit_codes[] = {
    "0",   "done",
    "1",   "something else failed: a full disk, no memory",
    "2",   "the command or the job file must be changed",
    "3",   "the data is missing or bad",
    "4",   "a worker was lost",
    "5",   "training diverged",
    "6",   "no checkpoint, or weights that do not fit",
    "7",   "this machine lacks something",
    "75",  "asked to stop (SIGTERM, SIGUSR1): saved, start it again",
    "130", "Ctrl-C",
    NULL,
};

static const char *const variables[] = {
    "TUTTI_DATA",
    "where datasets are",
    "TUTTI_KERNELS",
    "kernels to use: ref, generic, avx2, avx512; of bf16 also avx512-amx, avx512-dot",
    "TUTTI_LOG",
    "how much the log tells: error, warn, info",
    "TUTTI_MIRROR",
    "a URL or folder that 'tutti data get' tries first",
    "TUTTI_VAULT",
    "0: workers keep no state for those who replace them",
    "NO_COLOR, FORCE_COLOR",
    "colours never, always",
    "COLUMNS",
    "width of the display",
    NULL,
};

static void print_pairs(const char *title, const char *const *pairs, int width)
{
    printf("\n%s:\n", title);
    for (; *pairs; pairs += 2) printf("  %-*s  %s\n", width, pairs[0], pairs[1]);
}

static void print_overview(void)
{
    printf("tutti %s: trains neural networks from a job file\n\n"
           "Start here:\n"
           "  tutti init mnist-cnn            write a commented job file\n"
           "  tutti data get mnist            fetch its data\n"
           "  tutti train mnist-cnn.yaml      train it\n"
           "\nCommands:\n",
           TT_VERSION);
    for (int i = 0; i < cli_command_count; i++)
        printf("  %-10s  %s\n", cli_commands[i]->name, cli_commands[i]->brief);
    printf("\n'tutti COMMAND --help' shows examples and options of each.\n");
    print_pairs("Exit codes", exit_codes, 3);
    print_pairs("Environment", variables, 21);
}

static int help_run(const void *opts, int argc, const char **argv)
{
    const tt_command *c;
    tt_str text = {0};

    (void)opts;
    if (argc == 0) {
        print_overview();
        return 0;
    }
    if (!(c = cli_command_find(argv[0]))) return cli_fail(cli_command_unknown(argv[0]));
    tt_option_help(c, &text);
    fputs(text.data, stdout);
    tt_str_free(&text);
    return 0;
}

const tt_command cli_help = {
    .name = "help",
    .args = "[COMMAND]",
    .args_most = 1,
    .brief = "tell about all commands, or one",
    .examples = (const char *const[]){"tutti help", "list the commands", "tutti help train",
                                      "examples and options of one", NULL},
    .run = help_run,
};

static int version_run(const void *opts, int argc, const char **argv)
{
    (void)opts, (void)argc, (void)argv;
    printf("tutti %s\n", TT_VERSION);
    return 0;
}

const tt_command cli_version = {
    .name = "version",
    .brief = "print the version",
    .run = version_run,
};

/* ---- for packagers: hidden from the list ---- */

static void add_man_pairs(const char *title, const char *const *pairs, tt_str *out)
{
    tt_str_add(out, ".SH %s\n", title);
    for (; *pairs; pairs += 2) tt_str_add(out, ".TP\n.B %s\n%s\n", pairs[0], pairs[1]);
}

static void man_overview(tt_str *out)
{
    tt_str_add(
        out,
        ".TH TUTTI 1 \"\" \"Tutti %s\" \"Tutti\"\n.SH NAME\n"
        "tutti \\- trains neural networks from a job file\n.SH SYNOPSIS\n.B tutti\n"
        "\\fICOMMAND\\fR [\\fIoptions\\fR] [\\fIarguments\\fR]\n.SH DESCRIPTION\n"
        "A job is one YAML file: model, data, optimiser. The program trains it, evaluates it and\n"
        "predicts with it; each run has a folder that holds all there is to know of it.\n"
        ".SH COMMANDS\n",
        TT_VERSION);
    for (int i = 0; i < cli_command_count; i++)
        tt_str_add(out, ".TP\n.BR tutti\\-%s (1)\n%s\n", cli_commands[i]->name,
                   cli_commands[i]->brief);
    add_man_pairs("EXIT STATUS", exit_codes, out);
    add_man_pairs("ENVIRONMENT", variables, out);
}

typedef struct man_opts {
    bool list;
} man_opts;

static const tt_option man_options[] = {
    {"list", 0, TT_OPT_FLAG, offsetof(man_opts, list), NULL,
     "print the names of the commands instead"},
};

static int man_run(const void *opts, int argc, const char **argv)
{
    const tt_command *c;
    tt_str text = {0};

    if (((const man_opts *)opts)->list) {
        for (int i = 0; i < cli_command_count; i++)
            tt_str_add(&text, "%s\n", cli_commands[i]->name);
    } else if (argc == 0) {
        man_overview(&text);
    } else {
        if (!(c = cli_command_find(argv[0]))) return cli_fail(cli_command_unknown(argv[0]));
        tt_option_man(c, TT_VERSION, &text);
    }
    fputs(text.data, stdout);
    tt_str_free(&text);
    return 0;
}

const tt_command cli_man = {
    .name = "man",
    .args = "[COMMAND]",
    .args_most = 1,
    .brief = "print the man page of the program or of a command, as troff",
    .examples = (const char *const[]){"tutti man > tutti.1", "of the program", "tutti man train",
                                      "of a command", NULL},
    .options = man_options,
    .option_count = TT_COUNT(man_options),
    .out_size = sizeof(man_opts),
    .run = man_run,
};

static int completion_run(const void *opts, int argc, const char **argv)
{
    static const char *const shells[] = {"bash"};
    tt_str text = {0};

    (void)opts, (void)argc;
    if (cli_choose("completion", argv[0], shells, TT_COUNT(shells)) < 0) return cli_fail(TT_EINVAL);
    tt_option_completion(cli_commands, cli_command_count, &text);
    fputs(text.data, stdout);
    tt_str_free(&text);
    return 0;
}

const tt_command cli_completion = {
    .name = "completion",
    .args = "bash",
    .args_least = 1,
    .args_most = 1,
    .brief = "print the shell's completion script",
    .examples =
        (const char *const[]){"source <(tutti completion bash)", "use it in this shell", NULL},
    .run = completion_run,
};
