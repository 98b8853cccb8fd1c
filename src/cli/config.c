/* config: checks a job, shows it with all defaults filled in, and tells of its keys. */
#include <string.h>

#include "cli.h"

typedef struct config_opts {
    tt_opt_list set;
    const char *runs;
} config_opts;

static const tt_option options[] = {
    {"set", 's', TT_OPT_LIST, offsetof(config_opts, set), "KEY=VALUE", "override a key of the job"},
    {"runs", 0, TT_OPT_STRING, offsetof(config_opts, runs), "DIR", "where run folders are; runs"},
};

/* ---- keys ---- */

static const char *type_name(const tt_key *k)
{
    switch (k->type) {
    case TT_INT:
        return "a whole number";
    case TT_NUMBER:
        return "a number";
    case TT_BOOL:
        return "true or false";
    case TT_STRING:
        return "a text";
    case TT_CHOICE:
        return k->choices;
    case TT_SIZE:
        return "a size";
    case TT_TIME:
        return "a time";
    case TT_PAIR:
        return "one or two whole numbers";
    case TT_INTS:
        return "whole numbers";
    case TT_NUMBERS:
        return "numbers";
    case TT_STRINGS:
        return "texts";
    case TT_NODE:
        return "a value or a map";
    }
    return "";
}

static void print_range(const tt_key *k)
{
    if (k->least == 0 && k->most == 0) return;
    if (k->most < k->least)
        printf(", at least %.15g", k->least);
    else
        printf(", %.15g to %.15g", k->least, k->most);
}

static void print_key(const char *path, const tt_key *k, const tt_node *now)
{
    tt_str value = {0};

    if (now) tt_tree_print(now, false, &value);
    while (value.size && value.data[value.size - 1] == '\n') value.data[--value.size] = 0;
    printf("%s", path);
    if (now && !strchr(value.data, '\n'))
        printf(" = %s%s", value.data, now->is_default ? " (default)" : "");
    else if (!now)
        printf(" (not set)");
    printf("\n    %s", type_name(k));
    print_range(k);
    if (k->help && *k->help) printf("; %s", k->help);
    printf("\n");
    tt_str_free(&value);
}

static void print_keys(const tt_node *n, const char *path)
{
    char inner[1024];

    for (int i = 0; i < n->table_count; i++) {
        const tt_key *k = &n->table[i];
        const tt_node *now = tt_node_get(n, k->name);
        snprintf(inner, sizeof inner, "%s%s%s", path, *path ? "." : "", k->name);
        print_key(inner, k, now);
        if (now && now->kind != TT_SCALAR) print_keys(now, inner);
    }
    for (int i = 0; i < n->count && !n->table; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        snprintf(inner, sizeof inner, "%s%s%s", path, *path ? "." : "",
                 n->kind == TT_MAP ? n->key[i]->text : number);
        if (n->item[i]->kind != TT_SCALAR) print_keys(n->item[i], inner);
    }
}

/* ---- the command ---- */

enum { CHECK, SHOW, KEYS };

/* That the data is not on this machine is no mistake of the job; but data that is here must fit.
 * `trouble`: it could not be opened, and tt_message() says why. */
static tt_err check_data(tt_tree *tree, const char *path, bool trouble)
{
    if (trouble && !tt_data_find(tt_tree_get(tree, "data")))
        return tt_repeat(TT_EDATA, tt_message());
    printf("%s: job '%s' has no mistakes\n", path, tt_tree_get(tree, "name")->text);
    if (trouble) printf("its data was not checked: %s\n", tt_message());
    return TT_OK;
}

static int config_run(const void *opts, int argc, const char **argv)
{
    static const char *const words[] = {"check", "show", "keys"};
    const config_opts *o = opts;
    tt_str text = {0};
    cli_job job = {0};
    bool absent;
    int word = cli_choose("config", argv[0], words, TT_COUNT(words));
    tt_err err;

    (void)argc;
    if (word < 0) return cli_fail(TT_EINVAL);
    if ((err = cli_job_load(argv[1], o->runs, &o->set, false, &job)) ||
        (err = tt_job_check_data(job.tree, &absent)))
        goto out;
    if (word == CHECK) err = check_data(job.tree, job.path, absent);
    if (word == KEYS) print_keys(tt_tree_root(job.tree), "");
    if (word == SHOW) {
        tt_tree_print(tt_tree_root(job.tree), true, &text);
        fputs(text.data, stdout);
    }
out:
    cli_job_close(&job);
    tt_str_free(&text);
    return err ? cli_fail(err) : 0;
}

const tt_command cli_config = {
    .name = "config",
    .args = "check|show|keys JOB",
    .args_least = 2,
    .args_most = 2,
    .brief = "check a job, show it with all defaults, list its keys",
    .about = "check finds mistakes without training, also those of the data if it is here. show "
             "prints the job as it is understood, with "
             "what was "
             "left out marked as default. keys tells of each key its value, type, range and "
             "meaning; any of them "
             "may be given to --set.",
    .examples = (const char *const[]){"tutti config check job.yaml", "is it right?",
                                      "tutti config show job.yaml", "with the defaults",
                                      "tutti config keys job.yaml", "what can be set", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(config_opts),
    .run = config_run,
};
