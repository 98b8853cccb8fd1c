/* train: a job becomes a run: by this process, or by a world that it supervises. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train.h"

enum { MOST_JOINED = 1024 };

static const tt_option options[] = {
    {"set", 's', TT_OPT_LIST, offsetof(train_opts, set), "KEY=VALUE",
     "override a key of the job; may be repeated"},
    {"workers", 'n', TT_OPT_STRING, offsetof(train_opts, workers), "N|A:B",
     "train with N processes, or with A to B of them, as many as there are CPUs; with --hosts or "
     "--hostfile, N on all hosts together, or as many as these have slots; inside an "
     "allocation of Slurm as many as it has tasks, if not given"},
    {"hosts", 'H', TT_OPT_STRING, offsetof(train_opts, hosts), "A:4,B:4",
     "the hosts, and how many workers each takes"},
    {"hostfile", 0, TT_OPT_STRING, offsetof(train_opts, hostfile), "FILE",
     "the same from a file: 'a slots=4', 'a:4' or a name a line"},
    {"elastic", 0, TT_OPT_STRING, offsetof(train_opts, elastic), "A:B", "the same as -n A:B"},
    {"listen", 0, TT_OPT_ADDRESS, offsetof(train_opts, listen), "[tcp://*:PORT]",
     "let other machines join while it runs, by 'tutti join'; at any free port if none is given. "
     "This "
     "one takes as many workers as it has CPUs, or as --hosts says"},
    {"key", 0, TT_OPT_STRING, offsetof(train_opts, key), "FILE",
     "with --listen: the key that machines which join must have; else $TUTTI_KEY or "
     "~/.config/tutti/key, which is made if it is missing"},
    {"spares", 0, TT_OPT_INT, offsetof(train_opts, spares), "K",
     "keep K more workers that hold the state but have no work, to replace lost ones"},
    {"max-restarts", 0, TT_OPT_STRING, offsetof(train_opts, max_restarts), "N",
     "give up after more than N failures in a row without progress between them; 10"},
    {"wait", 0, TT_OPT_STRING, offsetof(train_opts, wait), "TIME",
     "how long too few workers wait for more before the run gives up; 10m, or 10s for a fixed "
     "number on this host"},
    {"coordinator", 0, TT_OPT_STRING, offsetof(train_opts, coordinator), "etcd://HOST:PORT,...",
     "start the same command on several hosts, with the same --run: one supervises, the others "
     "stand by and go on with the run if it is lost"},
    {"threads", 't', TT_OPT_INT, offsetof(train_opts, threads), "N",
     "threads of each worker; 0: as the job says, else as the resumed run had, else its share of "
     "the CPUs"},
    {"run", 0, TT_OPT_STRING, offsetof(train_opts, run), "DIR",
     "the run folder; else a new one below --runs"},
    {"runs", 0, TT_OPT_STRING, offsetof(train_opts, runs), "DIR", "where run folders are; runs"},
    {"resume", 'r', TT_OPT_STRING, offsetof(train_opts, resume), "auto|RUN",
     "go on with a run from its last committed step, if its state is still in memory, else from "
     "its "
     "newest valid checkpoint, with as many threads as it had; auto: the "
     "one of --run, else the newest of this name, model and data that is not done, else start "
     "anew"},
    {"trace-steps", 0, TT_OPT_STRING, offsetof(train_opts, trace), "A:B",
     "record what each thread of each worker does in steps A to B, for Perfetto, in the run's "
     "trace/steps.json"},
    {"detach", 0, TT_OPT_FLAG, offsetof(train_opts, detach), NULL,
     "without a terminal: return when the run has begun; it goes on in a session of its own and "
     "prints to its console.log"},
    {"dry-run", 0, TT_OPT_FLAG, offsetof(train_opts, dry_run), NULL,
     "with several workers: show the launcher's command instead of running it"},
    {"init", 0, TT_OPT_STRING, offsetof(train_opts, init), "FILE",
     "start from these weights: a run, a checkpoint or a safetensors file"},
    {"partial", 0, TT_OPT_FLAG, offsetof(train_opts, partial), NULL,
     "with --init: take what matches and list the rest"},
    {"quiet", 'q', TT_OPT_FLAG, offsetof(train_opts, quiet), NULL, "print nothing but errors"},
    {"json", 0, TT_OPT_FLAG, offsetof(train_opts, json), NULL,
     "print progress and summary as JSON, one object per line"},
};

static tt_err check_options(const train_opts *o, int argc)
{
    bool named = o->resume && strcmp(o->resume, "auto");

    if (!argc && !named)
        return tt_fail(TT_EINVAL,
                       "'tutti train' needs a JOB, or --resume RUN; see 'tutti train --help'");
    if (named && o->run)
        return tt_fail(TT_EINVAL, "--run and --resume %s both name a run: give one", o->resume);
    if (o->init && named)
        return tt_fail(TT_EINVAL,
                       "--init starts a new run, --resume %s goes on with an old one, which knows "
                       "what it was started from: give one",
                       o->resume);
    if (o->partial && !o->init)
        return tt_fail(TT_EINVAL, "--partial says how to take --init: give both");
    if (o->quiet && o->json) return tt_fail(TT_EINVAL, "--quiet and --json: give one");
    if (o->detach && o->dry_run)
        return tt_fail(TT_EINVAL, "--dry-run starts nothing that could be detached");
    if (o->elastic && o->workers)
        return tt_fail(TT_EINVAL, "--elastic and --workers both say how many: give one");
    if (o->spares < 0 || o->spares > 1024)
        return tt_fail(TT_EINVAL, "--spares: %lld is not 0 to 1024", (long long)o->spares);
    if (o->listen && *o->listen && strncmp(o->listen, "tcp://", 6))
        return tt_fail(TT_EINVAL, "--listen: '%s' is no address such as tcp://*:4444", o->listen);
    if (o->key && !o->listen)
        return tt_fail(TT_EINVAL, "--key is for machines that join: give --listen too");
    if (o->hosts && o->hostfile)
        return tt_fail(TT_EINVAL, "--hosts and --hostfile both name the hosts: give one");
    if (o->coordinator && !o->run && !named)
        return tt_fail(TT_EINVAL, "--coordinator needs --run DIR, a folder that all supervisors "
                                  "of the run see");
    return TT_OK;
}

/* "4", "2:8" */
static tt_err read_workers(const char *option, const char *text, int *least, int *most)
{
    const char *colon = text ? strchr(text, ':') : NULL;
    char first[32] = "";
    int64_t a = 0, b = 0;

    *least = *most = 0;
    if (!text) return TT_OK;
    if (colon) snprintf(first, sizeof first, "%.*s", (int)(colon - text), text);
    bool fine = tt_parse_int(colon ? colon + 1 : text, &b) && b >= 1 && b <= 65536;
    if (fine && colon) fine = tt_parse_int(first, &a) && a >= 1 && a <= b;
    if (!fine)
        return tt_fail(TT_EINVAL, "--%s: '%s' is neither 1 to 65536 nor a range such as 2:8",
                       option, text);
    *least = (int)a;
    *most = (int)b;
    return TT_OK;
}

static tt_err read_restarts(const char *text, int *out)
{
    int64_t n;

    if (!text) return TT_OK;
    if (!tt_parse_int(text, &n) || n < 0 || n > 1000000)
        return tt_fail(TT_EINVAL, "--max-restarts: '%s' is not 0 to 1000000", text);
    *out = (int)n;
    return TT_OK;
}

/* All workers read the job: what can be read but once will not do. */
static tt_err check_file(const char *job)
{
    struct stat st;

    if (stat(job, &st) || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) return TT_OK;
    return tt_fail(TT_EINVAL, "%s: each worker reads the job, so it must be a file", job);
}

/* The same command for a worker: what says how many and where is the supervisor's, and so is which
 * run it is. */
typedef struct command {
    tt_arena *a;
    const char **word;
    int count;
} command;

static void add_word(command *c, const char *option, const char *value)
{
    if (option && !value) return;
    if (option) c->word[c->count++] = option;
    c->word[c->count++] = value;
}

static void begin_command(command *c, const train_opts *o, const char *program)
{
    c->word = tt_arena_take(c->a, (size_t)(o->set.count * 2 + 32) * sizeof *c->word, 8);
    memset(c->word, 0, (size_t)(o->set.count * 2 + 32) * sizeof *c->word);
    add_word(c, NULL, program);
    add_word(c, NULL, "train");
    add_word(c, "--trace-steps", o->trace);
    add_word(c, "--runs", o->runs);
    if (o->threads) add_word(c, "--threads", tt_arena_printf(c->a, "%lld", (long long)o->threads));
}

/* The first world has the job as it was given; those after it as the first has resolved it, but for
 * the threads, which are as many as were wanted: a world between may have had others. */
static void make_commands(const train_opts *o, const char *job, const cli_job *tree,
                          const char *run, bool elastic, command *first, command *next)
{
    char *path = tt_arena_take(first->a, CLI_PATH, 1);
    ssize_t n = readlink("/proc/self/exe", path, CLI_PATH - 1);
    const tt_node *threads = tt_tree_get(tree->tree, "train.threads");

    path[n > 0 ? n : 0] = 0;
    begin_command(first, o, n > 0 ? path : "tutti");
    begin_command(next, o, n > 0 ? path : "tutti");
    for (int i = 0; i < o->set.count; i++) add_word(first, "--set", o->set.item[i]);
    if (elastic && !tt_tree_get(tree->tree, "parallel.exact"))
        add_word(first, "--set", "parallel.exact=true");
    add_word(first, "--run", run);
    add_word(first, "--init", o->init);
    if (o->partial) add_word(first, NULL, "--partial");
    add_word(first, "--", job); /* its name may begin with a dash */
    if (!o->threads)
        add_word(next, "--set",
                 tt_arena_printf(first->a, "train.threads=%s",
                                 threads && threads->text && *threads->text ? threads->text : "0"));
    add_word(next, "--run", run);
    add_word(next, "--", run);
}

/* A run that never began leaves nothing. */
static void clear_away(const char *run, const char *runs)
{
    static const char *const files[] = {"ledger.jsonl", "generation", "supervisor.json"};
    char path[CLI_PATH + 32];

    for (int i = 0; i < TT_COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", run, files[i]);
        unlink(path);
    }
    if (!rmdir(run)) rmdir(runs ? runs : "runs");
}

static int supervise(const train_opts *o, int argc, const char **argv, const cli_adopter *adopter,
                     double wait_s, tt_helm *helm)
{
    char run[CLI_PATH], made[CLI_PATH];
    cli_run_opts which = {o->run, o->runs, o->resume, o->quiet};
    cli_job job = {0};
    tt_tree *checked = NULL;
    bool resume = false;
    cli_world_opts w = {.list = o->hosts,
                        .file = o->hostfile,
                        .listen = o->listen,
                        .key = o->key,
                        .spares = (int)o->spares,
                        .max_restarts = 10,
                        .adopter = adopter,
                        .wait_s = wait_s,
                        .dry_run = o->dry_run,
                        .helm = helm,
                        .mode = o->json    ? CLI_JSON
                                : o->quiet ? CLI_QUIET
                                           : CLI_SHOW};
    tt_str typed = {0};
    command first = {.a = tt_arena_open(1 << 14)}, next = {.a = first.a};
    int64_t from, to;
    int code;
    tt_err err;

    if (helm && !which.resume) { /* whoever had the helm before may have begun it */
        which.resume = "auto";
        which.quiet = true;
    }
    if ((err = o->elastic ? read_workers("elastic", o->elastic, &w.least, &w.ranks)
                          : read_workers("workers", o->workers, &w.least, &w.ranks)) ||
        (err = read_restarts(o->max_restarts, &w.max_restarts)) ||
        (err = work_read_trace(o->trace, &from, &to)) || (argc && (err = check_file(argv[0]))))
        goto fail;
    if (o->listen && !w.ranks) { /* whoever comes */
        w.least = 1;
        w.ranks = MOST_JOINED;
    }
    if ((err = cli_job_load(argc ? argv[0] : o->resume, o->runs, &o->set, o->quiet, &job)))
        goto fail;
    checked = tt_tree_copy(job.tree); /* checking fills in what the job does not say */
    if ((err = tt_job_check(checked)) || (err = cli_run_choose(&which, &job, run, &resume)))
        goto fail;
    if (resume || o->dry_run)
        snprintf(made, sizeof made, "%s", resume ? run : *run ? run : "RUN");
    else if ((err = tt_run_dir_make(o->runs ? o->runs : "runs", tt_tree_get(checked, "name")->text,
                                    *run ? run : NULL, made)))
        goto fail;
    w.run = made;
    w.own_threads = !o->threads && !tt_tree_get(job.tree, "train.threads");
    make_commands(o, argc ? argv[0] : made, &job, made, w.least && w.least < w.ranks, &first,
                  &next);
    w.worker = first.word;
    w.next = next.word;
    work_command_line(&typed);
    setenv("TUTTI_COMMAND", typed.data, 1);
    code = cli_supervise(&w);
    if (!resume && !o->dry_run && !helm && !tt_run_begun(made))
        clear_away(made, *run ? NULL : o->runs);
    goto out;
fail:
    code = cli_fail(err);
out:
    tt_str_free(&typed);
    tt_tree_close(checked);
    cli_job_close(&job);
    tt_arena_close(first.a);
    return code;
}

/* A cluster specification in the environment makes this a world of several: its first process
 * starts it, the others wait until they are taken in. */
static int train_listed(const train_opts *o, int argc, const char **argv, const tt_tf_config *c,
                        double wait_s)
{
    if (!*c->type)
        return cli_fail(tt_fail(TT_EINVAL,
                                "TF_CONFIG names %d processes but not which of them "
                                "this is: it has no task",
                                c->ranks));
    if (c->me == 0) {
        cli_adopter adopter;
        tt_err err = cli_adopter_open(c, &adopter);
        int code = err ? cli_fail(err) : supervise(o, argc, argv, &adopter, wait_s, NULL);
        cli_adopter_close(&adopter, code);
        return code;
    }
    if (getenv("TUTTI_RSH"))
        return cli_fail(tt_fail(TT_EENV,
                                "TUTTI_RSH is set, so %s starts all by itself: start 'tutti train' "
                                "there alone, or unset it",
                                c->rank[0].host));
    return cli_be_adopted(c, wait_s, o->quiet || o->json);
}

/* Does an allocation of Slurm with more than one task make this a world? */
static tt_err look_at_slurm(bool *launch)
{
    tt_hosts h;
    tt_err err = tt_hosts_slurm(0, &h);

    *launch = !err && tt_hosts_slots(&h) > 1;
    tt_hosts_free(&h);
    return err;
}

/* ---- several supervisors ---- */

typedef struct candidate {
    const train_opts *o;
    int argc;
    const char **argv;
    double wait_s;
} candidate;

static int lead(void *arg, tt_helm *helm)
{
    const candidate *c = arg;
    return supervise(c->o, c->argc, c->argv, NULL, c->wait_s, helm);
}

/* What would else be found out when it is needed. */
static tt_err check_candidate(const train_opts *o, int argc, const char **argv)
{
    cli_job job = {0};
    tt_hosts hosts = {0};
    int64_t from, to;
    int least, most;
    tt_err err;

    if ((err = read_workers("elastic", o->elastic, &least, &most)) ||
        (err = read_workers("workers", o->workers, &least, &most)) ||
        (err = work_read_trace(o->trace, &from, &to)) ||
        (o->hosts && (err = tt_hosts_parse(o->hosts, &hosts))) ||
        (o->hostfile && (err = tt_hosts_read(o->hostfile, &hosts))) ||
        (argc && (err = check_file(argv[0]))) ||
        (err = cli_job_load(argc ? argv[0] : o->resume, o->runs, &o->set, true, &job)))
        goto out;
    err = tt_job_check(job.tree);
out:
    tt_hosts_free(&hosts);
    cli_job_close(&job);
    return err;
}

static int coordinate(const train_opts *o, bool several, int argc, const char **argv, double wait_s)
{
    candidate c = {o, argc, argv, wait_s};
    bool granted = false;
    char run[CLI_PATH];
    tt_err err;

    if (!several && ((err = look_at_slurm(&granted)) || !granted))
        return cli_fail(err ? err
                            : tt_fail(TT_EINVAL, "--coordinator is for runs with a supervisor: "
                                                 "give --workers, --hosts or --hostfile"));
    if ((err = check_candidate(o, argc, argv))) return cli_fail(err);
    if (o->dry_run) return supervise(o, argc, argv, NULL, wait_s, NULL);
    snprintf(run, sizeof run, "%s", o->run ? o->run : "");
    if (!o->run && (err = cli_run_find(o->resume, o->runs, run))) return cli_fail(err);
    return cli_coordinate(&(cli_coordinate_opts){.address = o->coordinator,
                                                 .run = run,
                                                 .mode = o->json    ? CLI_JSON
                                                         : o->quiet ? CLI_QUIET
                                                                    : CLI_SHOW,
                                                 .lead = lead,
                                                 .arg = &c});
}

/* Of a run whose supervisor was killed the last step is in memory, where one process alone would
 * not look for it: it goes on as it was. 0: it is not so. */
static int workers_before(const train_opts *o, int argc, const char **argv)
{
    cli_run_opts which = {o->run, o->runs, o->resume, true};
    char run[CLI_PATH];
    cli_job job = {0};
    bool resume = false;
    int workers = 0;

    if (!o->resume || o->dry_run) return 0;
    if (!cli_job_load(argc ? argv[0] : o->resume, o->runs, &o->set, true, &job) &&
        !cli_run_choose(&which, &job, run, &resume) && resume)
        workers = cli_run_kept(run);
    cli_job_close(&job);
    return workers;
}

static int supervise_again(const train_opts *o, int workers, int argc, const char **argv,
                           double wait_s)
{
    train_opts again = *o;
    char text[16];

    snprintf(text, sizeof text, "%d", workers);
    again.workers = text;
    if (!o->quiet)
        fprintf(stderr, "its last step is in memory: it goes on with %d worker%s, as before\n",
                workers, workers == 1 ? "" : "s");
    return supervise(&again, argc, argv, NULL, wait_s, NULL);
}

static int train_run(const void *opts, int argc, const char **argv)
{
    const train_opts *o = opts;
    bool several = o->workers || o->elastic || o->hosts || o->hostfile || o->listen,
         granted = false;
    double wait_s = -1;
    tt_started by = tt_world_started();
    tt_tf_config listed = {.ranks = 0};
    tt_err err;
    int code, before;

    work_catch_signals();
    if ((err = check_options(o, argc))) return cli_fail(err);
    if (several && by.by)
        return cli_fail(tt_fail(TT_EINVAL,
                                "%s has already started %d ranks: leave out --workers, --hosts and "
                                "--hostfile",
                                by.by, by.size));
    if (o->detach && by.by)
        return cli_fail(tt_fail(
            TT_EINVAL, "%s has started this: what it starts it waits for, so leave out --detach",
            by.by));
    if (o->wait && (!tt_parse_time(o->wait, &wait_s) || wait_s < 0))
        return cli_fail(tt_fail(TT_EINVAL, "--wait: '%s' is no time: say 10m", o->wait));
    if (o->detach && cli_detach(o->json, &work_asked, &code)) return code;
    if (o->coordinator) return coordinate(o, several, argc, argv, wait_s);
    if (several) return supervise(o, argc, argv, NULL, wait_s, NULL);
    if (!by.by && (err = tt_tf_config_parse(getenv("TF_CONFIG"), &listed))) return cli_fail(err);
    if (!by.by && listed.ranks < 2 && (err = look_at_slurm(&granted))) return cli_fail(err);
    if (!by.by && listed.ranks && *listed.type && listed.me < 0) {
        code = cli_fail(tt_fail(
            TT_EENV, "TF_CONFIG makes this the %s: it takes no part in training", listed.type));
        tt_tf_config_free(&listed);
        return code;
    }
    before = by.by || granted || listed.ranks > 1 ? 0 : workers_before(o, argc, argv);
    code = listed.ranks > 1 ? train_listed(o, argc, argv, &listed, wait_s < 0 ? 600 : wait_s)
           : granted        ? supervise(o, argc, argv, NULL, wait_s, NULL)
           : before         ? supervise_again(o, before, argc, argv, wait_s)
                            : work_run(o, argc, argv);
    tt_tf_config_free(&listed);
    return code;
}

const tt_command cli_train = {
    .name = "train",
    .args = "JOB",
    .args_most = 1,
    .brief = "train a job",
    .about = "Trains the job and writes a run folder: the job, metrics, log, checkpoints and a "
             "summary.\n\n"
             "JOB is a job file, or a run whose job is to be trained anew. Ctrl-C once finishes "
             "the step, "
             "saves and prints the command that resumes; twice quits at once. SIGTERM and SIGUSR1 "
             "save and "
             "end with exit code 75, so that a queue starts the job again.",
    .examples =
        (const char *const[]){"tutti train job.yaml", "train a job", "tutti train job.yaml -n 4",
                              "with four worker processes", "tutti train job.yaml -H a:4,b:4",
                              "on two hosts", "tutti train job.yaml -n 1:8 --listen",
                              "here, and on machines that join",
                              "tutti train job.yaml -s train.epochs=5", "with another value",
                              "tutti train job.yaml --resume auto", "go on where it stopped",
                              "tutti train --resume last", "go on with the newest run",
                              "tutti train job.yaml --init runs/a", "start from other weights",
                              "tutti train job.yaml -n 4 --detach", "without a terminal", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(train_opts),
    .run = train_run,
};
