/* resume: which run `tutti train --resume` goes on with. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "store/ledger.h"
#include "store/vault.h"

static bool has_checkpoint(const char *run)
{
    char folder[CLI_PATH + 16];
    tt_ckpt_info *list = NULL;
    int count = 0;
    bool found = false;

    snprintf(folder, sizeof folder, "%s/checkpoints", run);
    if (!tt_file_exists(folder) || tt_ckpt_list(folder, false, &list, &count)) return false;
    for (int i = 0; i < count; i++) found |= list[i].newest;
    free(list);
    return found;
}

int cli_run_kept(const char *run)
{
    char id[TT_RUN_ID], path[CLI_PATH + 16];
    tt_ledger k = {0};
    tt_vault_left *left;
    tt_bytes b = {0};
    int count, found = 0;

    snprintf(path, sizeof path, "%s/ledger.jsonl", run);
    if (!tt_run_id(run, id) || !tt_file_exists(path) ||
        tt_vault_leftovers("/var/tmp", &left, &count))
        return 0;
    for (int i = 0; i < count; i++) found += !strcmp(left[i].run, id);
    free(left);
    if (!found || tt_file_read(path, 0, &b)) return 0;
    if (tt_ledger_read(&k, (const char *)b.data, b.size)) k.committed = false;
    tt_file_release(&b);
    if (!k.committed || (k.ended && (k.code == 0 || k.code == 75))) return 0; /* it was saved */
    return k.before > 0 ? k.before : k.workers > 0 ? k.workers : 1;
}

/* Why a run cannot be one of this job (resolved), in *why; nothing there if it can. A run of
 * another name is no candidate at all: false. */
static bool is_candidate(const char *run, tt_tree *job, tt_str *why)
{
    static const char *const parts[] = {"model", "data"};
    char path[CLI_PATH + 16];
    tt_tree *t = NULL;
    bool named;

    snprintf(path, sizeof path, "%s/resolved.yaml", run);
    if (!tt_file_exists(path) || tt_tree_load(path, &t)) return false;
    const tt_node *name = tt_tree_get(t, "name"), *wanted = tt_tree_get(job, "name");
    named = name && wanted && name->kind == TT_SCALAR && !strcmp(name->text, wanted->text);
    for (int i = 0; named && i < TT_COUNT(parts) && !why->size; i++) {
        const tt_node *x, *y;
        tt_str at = {0};
        tt_str_add(&at, "%s", parts[i]);
        if (tt_node_differ(tt_tree_get(t, parts[i]), tt_tree_get(job, parts[i]), &at, &x, &y))
            tt_str_add(why, "its %s differs from the job's", at.data);
        tt_str_free(&at);
    }
    tt_tree_close(t);
    return named;
}

/* The newest run of this job that is not done; "" if there is none. One that is still running
 * counts: training the same job twice at once is hardly meant, and opening it says who has it. */
static tt_err find_unfinished(const char *runs, tt_tree *given, bool quiet, char out[CLI_PATH])
{
    tt_tree *job = NULL;
    tt_run_info *list;
    bool absent;
    int count;
    tt_err err;

    out[0] = 0;
    if ((err = tt_run_list(runs, &list, &count))) return err;
    for (int i = count - 1; i >= 0 && !*out; i--) {
        tt_str why = {0};
        if (!strcmp(list[i].status, "done")) continue;
        if (!job) { /* as its run folder would have it: then the two can be compared */
            job = tt_tree_copy(given);
            err = tt_job_check_data(job, &absent);
            if (!err && absent) err = tt_repeat(TT_EDATA, tt_message());
            if (err || (err = tt_job_settle(job))) break;
        }
        if (!is_candidate(list[i].path, job, &why)) continue;
        if (!why.size && strcmp(list[i].status, "running") && !has_checkpoint(list[i].path) &&
            !cli_run_kept(list[i].path))
            tt_str_add(&why, "it has no checkpoint");
        if (!why.size)
            memcpy(out, list[i].path, CLI_PATH);
        else if (!quiet)
            fprintf(stderr, "passed over %s: %s\n", list[i].path, why.data);
        tt_str_free(&why);
    }
    tt_tree_close(job);
    tt_run_free(list, count);
    return err;
}

/* With --resume: whether there is something to resume, and where. */
tt_err cli_run_choose(const cli_run_opts *o, const cli_job *j, char run[CLI_PATH], bool *resume)
{
    tt_run_info info = {0};
    tt_err err;

    run[0] = 0;
    *resume = false;
    if (o->run && snprintf(run, CLI_PATH, "%s", o->run) >= CLI_PATH)
        return tt_fail(TT_EINVAL, "--run: the path is too long");
    if (!o->resume) return TT_OK;
    if (strcmp(o->resume, "auto")) {
        *resume = true;
        return cli_run_find(o->resume, o->runs, run);
    }
    if (o->run) {
        *resume = tt_file_exists(run) && !tt_run_look(run, &info);
        json_decref(info.summary);
    } else {
        if ((err = find_unfinished(o->runs, j->tree, o->quiet, run))) return err;
        *resume = *run != 0;
    }
    if (!*resume && !o->quiet) fprintf(stderr, "nothing to resume: a new run starts\n");
    return TT_OK;
}
