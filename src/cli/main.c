/* main: finds the command, reads its options by table, runs it, and turns errors into exit codes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

const tt_command *const cli_commands[] = {
    &cli_train,  &cli_eval,   &cli_predict, &cli_sample,  &cli_summary, &cli_init,
    &cli_config, &cli_runs,   &cli_ps,      &cli_top,     &cli_stop,    &cli_logs,
    &cli_resize, &cli_join,   &cli_leave,   &cli_ckpt,    &cli_ledger,  &cli_export,
    &cli_data,   &cli_doctor, &cli_bench,   &cli_version, &cli_help,
};
const int cli_command_count = TT_COUNT(cli_commands);

static const tt_command *const hidden[] = {&cli_man, &cli_completion};

const tt_command *cli_command_find(const char *name)
{
    for (int i = 0; i < cli_command_count; i++)
        if (!strcmp(cli_commands[i]->name, name)) return cli_commands[i];
    for (int i = 0; i < TT_COUNT(hidden); i++)
        if (!strcmp(hidden[i]->name, name)) return hidden[i];
    return NULL;
}

tt_err cli_command_unknown(const char *name)
{
    const char *names[TT_COUNT(cli_commands)], *near;

    for (int i = 0; i < cli_command_count; i++) names[i] = cli_commands[i]->name;
    if ((near = tt_nearest(name, names, cli_command_count)))
        return tt_fail(TT_EINVAL, "unknown command '%.80s': did you mean '%s'?", name, near);
    return tt_fail(TT_EINVAL, "unknown command '%.80s': 'tutti help' lists them", name);
}

int cli_exit_code(tt_err err)
{
    switch (err) {
    case TT_OK:
        return 0;
    case TT_EINVAL:
        return 2;
    case TT_EFORMAT:
    case TT_EDATA:
        return 3;
    case TT_EPEER:
        return 4;
    case TT_EDIVERGED:
        return 5;
    case TT_ECKPT:
        return 6;
    case TT_EENV:
        return 7;
    case TT_ESTOP:
        return CLI_REQUEUE;
    case TT_ENOMEM:
    case TT_EIO:
        return 1;
    }
    return 1;
}

int cli_fail(tt_err err)
{
    fflush(stdout);
    fprintf(stderr, "tutti: %s\n", tt_message());
    return cli_exit_code(err);
}

int cli_choose(const char *command, const char *word, const char *const *words, int count)
{
    const char *near;
    tt_str list = {0};

    for (int i = 0; i < count; i++)
        if (!strcmp(words[i], word)) return i;
    for (int i = 0; i < count; i++)
        tt_str_add(&list, "%s%s", i == 0 ? "" : i == count - 1 ? " or " : ", ", words[i]);
    if ((near = tt_nearest(word, words, count)))
        tt_fail(TT_EINVAL, "'tutti %s %.80s': did you mean 'tutti %s %s'?", command, word, command,
                near);
    else
        tt_fail(TT_EINVAL, "'tutti %s' takes %s, not '%.80s'", command, list.data, word);
    tt_str_free(&list);
    return -1;
}

/* A full disk or a closed pipe must not look like success. */
static int flush(int code)
{
    if (!fflush(stdout) && !ferror(stdout)) return code;
    if (code) return code;
    return cli_fail(tt_fail(TT_EIO, "write to standard output: %s", strerror(errno)));
}

static int run(const tt_command *c, int argc, const char **argv)
{
    tt_str text = {0};
    void *opts = calloc(1, c->out_size ? c->out_size : 1);
    int count = 0, code;
    bool help = false;
    tt_err err;

    if (!opts) tt_mem_out(c->out_size);
    if (c->defaults) memcpy(opts, c->defaults, c->out_size);
    err = tt_option_parse(c, argc, argv, opts, argv, &count, &help);
    if (help) {
        tt_option_help(c, &text);
        fputs(text.data, stdout);
        tt_str_free(&text);
        code = 0;
    } else {
        code = err ? cli_fail(err) : c->run(opts, count, argv);
    }
    free(opts);
    return flush(code);
}

const char *cli_program = "tutti";

/* Launchers call us by another name, in place of a remote shell; the hub is beside that name. */
static bool is_rsh(const char *name, char socket[CLI_PATH])
{
    const char *slash = strrchr(name, '/');

    if (!slash || strcmp(slash + 1, TT_RSH_NAME)) return false;
    return snprintf(socket, CLI_PATH, "%.*s/hub", (int)(slash - name), name) < CLI_PATH;
}

int main(int argc, char **argv)
{
    const char **args = (const char **)argv;
    char socket[CLI_PATH];
    const tt_command *c;

    if (argc > 0 && is_rsh(argv[0], socket)) {
        args[0] = socket;
        return tt_rsh_run(argc, args);
    }
    if (argc > 0 && strchr(argv[0], '/')) cli_program = argv[0];
    if (argc < 2) {
        cli_help.run(NULL, 0, NULL);
        return 2;
    }
    if (!strcmp(args[1], "--help") || !strcmp(args[1], "-h"))
        c = &cli_help;
    else if (!strcmp(args[1], "--version") || !strcmp(args[1], "-V"))
        c = &cli_version;
    else
        c = cli_command_find(args[1]);
    if (!c) return cli_fail(cli_command_unknown(args[1]));
    return run(c, argc - 2, args + 2);
}
