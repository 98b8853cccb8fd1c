/* resize: another number of workers, or of threads, for a run that goes on. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct resize_opts {
    const char *runs, *threads, *wait;
    bool json;
} resize_opts;

static const tt_option options[] = {
    {"threads", 't', TT_OPT_STRING, offsetof(resize_opts, threads), "N",
     "threads of each worker; 0: as at the start"},
    {"wait", 0, TT_OPT_STRING, offsetof(resize_opts, wait), "TIME",
     "how long to wait until it has happened; 60s"},
    {"runs", 0, TT_OPT_STRING, offsetof(resize_opts, runs), "DIR", "where run folders are; runs"},
    {"json", 0, TT_OPT_FLAG, offsetof(resize_opts, json), NULL, "print JSON"},
};

/* "6", "2:8"; least 0: exactly so many. */
static tt_err read_size(const char *text, json_t *ask)
{
    const char *colon = strchr(text, ':');
    char first[32] = "";
    int64_t least = 0, most = 0;

    if (colon) snprintf(first, sizeof first, "%.*s", (int)(colon - text), text);
    bool fine = tt_parse_int(colon ? colon + 1 : text, &most) && most >= 1 && most <= 65536;
    if (fine && colon) fine = tt_parse_int(first, &least) && least >= 1 && least <= most;
    if (!fine)
        return tt_fail(TT_EINVAL, "'%s' is neither 1 to 65536 workers nor a range such as 2:8",
                       text);
    if (least) json_object_set_new(ask, "least", json_integer(least));
    json_object_set_new(ask, "most", json_integer(most));
    return TT_OK;
}

static void show(const json_t *a)
{
    int before = (int)json_integer_value(json_object_get(a, "before")),
        workers = (int)json_integer_value(json_object_get(a, "workers")),
        least = (int)json_integer_value(json_object_get(a, "least")),
        most = (int)json_integer_value(json_object_get(a, "most"));
    const json_t *stood = json_object_get(a, "stood_s");
    const char *warning = json_string_value(json_object_get(a, "warning"));
    char span[32];

    if (warning) fprintf(stderr, "tutti: warning: %s\n", warning);
    printf("%d worker%s", workers, workers == 1 ? "" : "s");
    if (!stood)
        printf(", as before");
    else if (before != workers)
        printf(", %d before", before);
    if (least < most) printf(", of %d to %d", least, most);
    if (stood)
        printf("; generation %d; training stood still for %s",
               (int)json_integer_value(json_object_get(a, "generation")),
               tt_show_time(json_number_value(stood), span, sizeof span));
    printf("\n");
}

static tt_err fill_ask(const resize_opts *o, int argc, const char **argv, json_t *ask,
                       double *wait_s)
{
    int64_t threads;
    tt_err err;

    if (argc < 2 && !o->threads)
        return tt_fail(TT_EINVAL, "'tutti resize' needs a number of workers, such as 6 or 2:8, or "
                                  "--threads");
    if (argc > 1 && (err = read_size(argv[1], ask))) return err;
    if (o->threads) {
        if (!tt_parse_int(o->threads, &threads) || threads < 0 || threads > 1024)
            return tt_fail(TT_EINVAL, "--threads: '%s' is not 0 to 1024", o->threads);
        json_object_set_new(ask, "threads", json_integer(threads));
    }
    if (o->wait && (!tt_parse_time(o->wait, wait_s) || *wait_s < 0 || *wait_s > 86400))
        return tt_fail(TT_EINVAL, "--wait: '%s' is no time up to a day: say 60s", o->wait);
    json_object_set_new(ask, "wait_s", json_integer((json_int_t)ceil(*wait_s)));
    return TT_OK;
}

static int resize_run(const void *opts, int argc, const char **argv)
{
    const resize_opts *o = opts;
    json_t *ask = json_pack("{s:s}", "ask", "resize"), *answer = NULL;
    char run[CLI_PATH];
    double wait_s = 60;
    tt_err err;

    if ((err = fill_ask(o, argc, argv, ask, &wait_s)) ||
        (err = cli_run_find(argv[0], o->runs, run))) {
        json_decref(ask);
        return cli_fail(err);
    }
    if ((err = cli_ask(run, ask, wait_s + 5, &answer))) return cli_fail(err);
    json_object_del(answer, "say");
    if (o->json)
        cli_json_print(stdout, json_incref(answer), false);
    else
        show(answer);
    json_decref(answer);
    return 0;
}

const tt_command cli_resize = {
    .name = "resize",
    .args = "RUN|last [N|A:B]",
    .args_least = 1,
    .args_most = 2,
    .brief = "change the number of workers of a run",
    .about = "The next world is made ready while the old one trains; it takes over at a step "
             "boundary, and nothing is lost. Says for how long training stood still. With "
             "'parallel.exact', the default of elastic jobs, the result is the same bit for "
             "bit.\n\nOn one host there is room for as many as are wanted; with --hosts or "
             "--hostfile for as many as these have slots.",
    .examples =
        (const char *const[]){"tutti resize last 6", "six workers from now on",
                              "tutti resize last 2:8", "two to eight, as many as there is room for",
                              "tutti resize last --threads 4", "other threads", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(resize_opts),
    .run = resize_run,
};
