/* clean: what runs that died have left on this host: vaults in memory, rooms, folders of
 * supervisors.
 *
 * A vault is what a killed run goes on from, so it stays as long as its run could: that is so if
 * its folder is there, the run has not ended, and nobody trains it. One that is being trained is
 * nobody's to touch: between two worlds nobody has its slots. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "store/store.h"
#include "store/vault.h"

typedef enum fate { REMOVE, KEEP, ALIVE } fate;

/* Below --runs, for one that this host does not know of. */
static bool find_below(const char *runs, const char *id, char run[CLI_PATH])
{
    char found[TT_RUN_ID];
    tt_run_info *list;
    bool any = false;
    int count;

    if (tt_run_list(runs, &list, &count)) return false;
    for (int i = 0; i < count && !any; i++)
        if ((any = tt_run_id(list[i].path, found) && !strcmp(found, id)))
            memcpy(run, list[i].path, CLI_PATH);
    tt_run_free(list, count);
    return any;
}

static bool is_alive(const char *id, const cli_live_run *live, int lives)
{
    char found[TT_RUN_ID];

    for (int i = 0; i < lives; i++)
        if (tt_run_id(live[i].run, found) && !strcmp(found, id)) return true;
    return false;
}

/* What becomes of the vault of a run; `what` says why. */
static fate judge(const char *runs, const tt_vault_left *v, const cli_live_run *live, int lives,
                  char *what, size_t size)
{
    char run[CLI_PATH], other[TT_RUN_ID];
    cli_boss boss;
    tt_run_info r;
    bool known, ended;

    if (is_alive(v->run, live, lives)) return ALIVE;
    if (!cli_live_recall(v->run, run, &known) && !find_below(runs, v->run, run)) {
        bool gone = known && (access(run, F_OK) ? errno == ENOENT || errno == ENOTDIR
                                                : tt_run_id(run, other)); /* of another run */
        snprintf(what, size,
                 !known ? "its run folder is not known here"
                 : gone ? "its run folder is gone"
                        : "its run folder cannot be read");
        return gone ? REMOVE : KEEP;
    }
    cli_boss_find(run, &boss);
    if (boss.kind != CLI_NOBODY) return ALIVE;
    if (tt_run_look(run, &r)) {
        snprintf(what, size, "it cannot be told how far it is: %.300s", tt_message());
        return KEEP;
    }
    ended = !strcmp(r.status, "done") || !strcmp(r.status, "stopped");
    snprintf(what, size, ended ? "run %.200s is %s" : "run %.200s is %s and can be resumed from it",
             run, r.status);
    json_decref(r.summary);
    return ended ? REMOVE : KEEP;
}

typedef struct report {
    const cli_clean_opts *o;
    json_t *list;
    uint64_t bytes;
    int removed, kept, failed;
} report;

static void show(report *r, const char *path, uint64_t bytes, double changed, const char *what,
                 bool removed)
{
    double age = fmax(0, tt_wall_s() - changed);
    char size[32], since[32];

    if (removed) {
        r->removed++;
        r->bytes += bytes;
    } else {
        r->kept++;
    }
    if (r->o->json) {
        json_array_append_new(r->list,
                              json_pack("{s:o, s:I, s:f, s:o, s:b}", "path", tt_json_text(path),
                                        "bytes", (json_int_t)bytes, "age_s", age, "what",
                                        tt_json_text(what), "removed", removed && !r->o->dry_run));
        return;
    }
    printf("%s  %s, %s, %s old: %s\n",
           !removed        ? "kept    "
           : r->o->dry_run ? "would go"
                           : "removed ",
           path, tt_show_bytes((double)bytes, size, sizeof size),
           tt_show_time(age, since, sizeof since), what);
}

static void fail(report *r)
{
    fprintf(stderr, "tutti: %s\n", tt_message());
    r->failed++;
}

static tt_err clean_vaults(report *r)
{
    tt_vault_left *left;
    cli_live_run *live;
    int count, lives;
    tt_err err;

    if ((err = cli_live_list(&live, &lives))) return err;
    if ((err = tt_vault_leftovers("/var/tmp", &left, &count))) {
        free(live);
        return err;
    }
    for (int i = 0; i < count; i++) {
        char what[512] = "";
        fate f = judge(r->o->runs, &left[i], live, lives, what, sizeof what);
        if (f == ALIVE) continue;
        if (f == KEEP && r->o->all) f = REMOVE;
        if (f == REMOVE && !r->o->dry_run) {
            if (tt_vault_remove(left[i].folder)) {
                fail(r);
                continue;
            }
            cli_live_forget(left[i].run);
        }
        show(r, left[i].folder, left[i].bytes, left[i].changed, what, f == REMOVE);
    }
    free(left);
    free(live);
    return TT_OK;
}

void cli_vault_drop(const char *run)
{
    char id[TT_RUN_ID];
    tt_vault_left *left;
    int count;

    if (!tt_run_id(run, id) || tt_vault_leftovers("/var/tmp", &left, &count)) return;
    for (int i = 0; i < count; i++)
        if (!strcmp(left[i].run, id) && tt_vault_remove(left[i].folder))
            tt_info("%s", tt_message());
    free(left);
}

static tt_err clean_rest(report *r)
{
    tt_leftover *left;
    int count;
    tt_err err;

    if ((err = tt_leftovers(&left, &count))) return err;
    for (int i = 0; i < count; i++) {
        if (!r->o->dry_run && tt_leftover_remove(&left[i]))
            fail(r);
        else
            show(r, left[i].path, left[i].bytes, left[i].changed,
                 left[i].hub ? "of a supervisor that died" : "data of a run that died", true);
    }
    free(left);
    return TT_OK;
}

tt_err cli_clean(const cli_clean_opts *o)
{
    report r = {.o = o, .list = json_array()};
    char size[32];
    tt_err err;

    if (!(err = clean_vaults(&r))) err = clean_rest(&r);
    if (!err && o->json)
        cli_json_print(stdout, json_incref(r.list), false);
    else if (!err && r.removed)
        printf("%s%s\n", tt_show_bytes((double)r.bytes, size, sizeof size),
               o->dry_run ? " would be free" : " freed");
    else if (!err)
        printf("nothing to remove\n");
    if (!err && r.kept && !o->json) printf("'tutti runs clean --all' removes what was kept\n");
    json_decref(r.list);
    if (!err && r.failed) err = tt_fail(TT_EIO, "not all could be removed");
    return err;
}
