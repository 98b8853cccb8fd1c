/* stop: ends a run from another terminal. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "store/store.h"

typedef struct stop_opts {
    const char *runs;
    bool now, json;
    const char *wait;
} stop_opts;

static const tt_option options[] = {
    {"now", 0, TT_OPT_FLAG, offsetof(stop_opts, now), NULL,
     "end it at once, without a checkpoint; the state stays in memory until the run is resumed or "
     "cleaned away"},
    {"wait", 0, TT_OPT_STRING, offsetof(stop_opts, wait), "TIME",
     "how long to wait for its end; 60s. 0: not at all"},
    {"runs", 0, TT_OPT_STRING, offsetof(stop_opts, runs), "DIR", "where run folders are; runs"},
    {"json", 0, TT_OPT_FLAG, offsetof(stop_opts, json), NULL, "print JSON"},
};

static const double ASK_S = 5;

static void nap(double s)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(s * 1e9)}, NULL);
}

/* One without a supervisor has signals: the queue's saves, Ctrl-C twice quits. */
static tt_err stop_alone(const char *run, const cli_boss *boss, bool now)
{
    if (!boss->here)
        return tt_fail(TT_EENV, "run %s is trained by process %d on host %s: stop it there", run,
                       boss->pid, boss->host);
    if (kill(boss->pid, now ? SIGINT : SIGTERM))
        return tt_fail(TT_EENV, "process %d of run %s: %s", boss->pid, run, strerror(errno));
    if (!now) return TT_OK;
    nap(0.1);
    kill(boss->pid, SIGINT);
    return TT_OK;
}

static tt_err wait_for_end(const char *run, double wait_s)
{
    double until = tt_clock_s() + wait_s;
    cli_boss boss;

    for (cli_boss_find(run, &boss); boss.kind != CLI_NOBODY; cli_boss_find(run, &boss)) {
        if (tt_clock_s() >= until)
            return tt_fail(TT_EPEER,
                           "run %s has not ended within %.3g s: process %d is still there; "
                           "'tutti stop --now' does not wait for a checkpoint",
                           run, wait_s, boss.pid);
        nap(0.05);
    }
    return TT_OK;
}

/* Where it stands: the last step, and the one it would be resumed from. */
static tt_err show(const char *run, bool json)
{
    char path[CLI_PATH + 32];
    tt_ckpt_info *list = NULL;
    int64_t saved = -1;
    int count = 0;
    tt_run_info r;
    tt_err err;

    if ((err = tt_run_look(run, &r))) return err;
    snprintf(path, sizeof path, "%s/checkpoints", run);
    if (tt_file_exists(path) && tt_ckpt_list(path, false, &list, &count)) count = 0;
    for (int i = 0; i < count; i++)
        if (list[i].newest) saved = list[i].step;
    free(list);
    if (json) {
        cli_json_print(stdout,
                       json_pack("{s:o, s:s, s:I, s:o}", "run", tt_json_text(run), "status",
                                 r.status, "step", (json_int_t)r.step, "saved",
                                 saved < 0 ? json_null() : json_integer(saved)),
                       false);
    } else {
        tt_str p = {0}, q = {0};
        json_int_t workers = json_integer_value(json_object_get(r.summary, "workers"));
        int kept = cli_run_kept(run);
        cli_quote(cli_program, &p);
        cli_quote(run, &q);
        printf("run %s is %s at step %lld", run, r.status, (long long)r.step);
        if (saved >= 0) printf(", saved at step %lld", (long long)saved);
        printf("\n");
        if (strcmp(r.status, "done")) {
            printf("  %s train --resume %s", p.data, q.data);
            if (kept || workers > 1)
                printf(" -n %lld", kept ? (long long)kept : (long long)workers);
            printf("\n");
        }
        tt_str_free(&p);
        tt_str_free(&q);
    }
    json_decref(r.summary);
    return TT_OK;
}

static tt_err stop(const stop_opts *o, const char *name, double wait_s)
{
    char run[CLI_PATH];
    json_t *answer = NULL;
    cli_boss boss;
    tt_err err;

    if ((err = cli_run_find(name, o->runs, run))) return err;
    cli_boss_find(run, &boss);
    if (boss.kind == CLI_ALONE)
        err = stop_alone(run, &boss, o->now);
    else if (boss.kind == CLI_SUPERVISED)
        err = cli_ask(run, json_pack("{s:s, s:b}", "ask", "stop", "now", o->now), ASK_S, &answer);
    json_decref(answer);
    if (boss.kind == CLI_NOBODY) fprintf(stderr, "tutti: nobody trains run %s now\n", run);
    if (err || !(wait_s > 0)) return err;
    if ((err = wait_for_end(run, wait_s))) return err;
    return show(run, o->json);
}

static int stop_run(const void *opts, int argc, const char **argv)
{
    const stop_opts *o = opts;
    double wait_s = 60;
    tt_err err;

    (void)argc;
    if (o->wait && (!tt_parse_time(o->wait, &wait_s) || wait_s < 0))
        return cli_fail(tt_fail(TT_EINVAL, "--wait: '%s' is no time: say 30s", o->wait));
    err = stop(o, argv[0], wait_s);
    return err ? cli_fail(err) : 0;
}

const tt_command cli_stop = {
    .name = "stop",
    .args = "RUN|last",
    .args_least = 1,
    .args_most = 1,
    .brief = "save and stop a run",
    .about = "The workers finish the step and save a checkpoint; the run then ends with exit code "
             "75, as for a queue that takes its machine. Waits for that, and says where it "
             "stands. 'tutti train --resume RUN' goes on with it.",
    .examples = (const char *const[]){"tutti stop last", "save and stop the newest run",
                                      "tutti stop runs/a --now", "without saving",
                                      "tutti stop last --wait 0", "do not wait for its end", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(stop_opts),
    .run = stop_run,
};
