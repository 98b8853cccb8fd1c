/* ledger: judges what a run has committed, by its own records.
 *
 * The supervisor writes down each world that went on, from where, how far it came, and for each
 * epoch a witness of the samples that were taken. Whoever knows the rules (store/ledger.h) can tell
 * afterwards whether a step or a sample was lost or counted twice. And of an exact job any other
 * run of it is a measure: same weights, same numbers, however either was disturbed. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "store/ledger.h"
#include "store/store.h"

typedef struct ledger_opts {
    const char *runs, *golden;
    bool json;
} ledger_opts;

static const tt_option options[] = {
    {"runs", 0, TT_OPT_STRING, offsetof(ledger_opts, runs), "DIR", "where run folders are; runs"},
    {"golden", 0, TT_OPT_STRING, offsetof(ledger_opts, golden), "RUN",
     "another run of the same exact job: weights and metrics must be the same, bit for bit"},
    {"json", 0, TT_OPT_FLAG, offsetof(ledger_opts, json), NULL, "print JSON"},
};

typedef struct verdict {
    tt_ledger ledger;
    int generations, lines; /* lines: of metrics that were compared */
    tt_str difference;      /* the first one, a sentence            */
} verdict;

static tt_err read_file(const char *run, const char *name, tt_bytes *out)
{
    char path[CLI_PATH + 32];

    snprintf(path, sizeof path, "%s/%s", run, name);
    return tt_file_read(path, 0, out);
}

static tt_err judge(const char *run, verdict *v)
{
    tt_bytes b = {0};
    tt_err err = read_file(run, "ledger.jsonl", &b);
    const char *text = (const char *)b.data;

    if (err) return err;
    err = tt_ledger_read(&v->ledger, text, b.size);
    for (size_t at = 0, n; at < b.size && !err; at += n + 1) {
        const char *end = memchr(text + at, '\n', b.size - at);
        tt_record r;
        bool ours;
        if (!end) break;
        n = (size_t)(end - (text + at));
        if (!tt_record_parse(text + at, n, &r, &ours) && ours)
            v->generations += r.kind == TT_REC_GO;
    }
    tt_file_release(&b);
    return tt_context(err, "%s/ledger.jsonl", run);
}

/* ---- beside another run ---- */

static json_t *read_summary(const char *run)
{
    char path[CLI_PATH + 32];

    snprintf(path, sizeof path, "%s/summary.json", run);
    return json_load_file(path, 0, NULL);
}

static void compare_weights(const char *run, const char *golden, verdict *v)
{
    json_t *a = read_summary(run), *b = read_summary(golden);
    const char *ours = json_string_value(json_object_get(a, "weights_sha256")),
               *theirs = json_string_value(json_object_get(b, "weights_sha256"));

    if (!ours || !theirs)
        tt_str_add(&v->difference, "%s has not ended", ours ? golden : run);
    else if (strcmp(ours, theirs))
        tt_str_add(&v->difference, "the weights are others: %.12s, not %.12s", ours, theirs);
    json_decref(a);
    json_decref(b);
}

/* The next line of metrics that is of a step, from *at on; NULL at the end. */
static json_t *next_line(const tt_bytes *b, size_t *at)
{
    const char *text = (const char *)b->data;

    while (*at < b->size) {
        const char *end = memchr(text + *at, '\n', b->size - *at);
        size_t n = end ? (size_t)(end - (text + *at)) : b->size - *at;
        json_t *o = json_loadb(text + *at, n, 0, NULL);
        *at += n + 1;
        if (json_object_get(o, "split")) return o;
        json_decref(o);
    }
    return NULL;
}

static void name_line(const json_t *o, tt_str *out)
{
    if (!o)
        tt_str_add(out, "the end");
    else
        tt_str_add(out, "step %lld (%s)", (long long)json_integer_value(json_object_get(o, "step")),
                   json_string_value(json_object_get(o, "split")));
}

/* Do both tell of the same? Times differ, what was computed does not. */
static bool same_line(const json_t *a, const json_t *b, const char **key)
{
    static const char *const keys[] = {"step", "split", "epoch", "loss", "lr", "grad_norm"};
    const int first = TT_COUNT(keys);

    for (int i = 0; i < first + TT_METRICS; i++) {
        *key = i < first ? keys[i] : tt_metric_table[i - first].name;
        json_t *x = json_object_get(a, *key), *y = json_object_get(b, *key);
        if (!x != !y || (x && !json_equal(x, y))) return false;
    }
    return true;
}

static void compare_metrics(const tt_bytes *a, const tt_bytes *b, verdict *v)
{
    size_t at = 0, other = 0;
    json_t *x, *y;
    const char *key;
    bool same;

    do {
        x = next_line(a, &at);
        y = next_line(b, &other);
        same = x && y ? same_line(x, y, &key) : x == y;
        v->lines += x && y;
        if (!same) {
            bool here = x && y && strcmp(key, "step") && strcmp(key, "split");
            tt_str_add(&v->difference, here ? "metrics: another %s at " : "metrics: there is %s",
                       here ? key : "");
            name_line(x, &v->difference);
            if (!here) {
                tt_str_add(&v->difference, " where there should be ");
                name_line(y, &v->difference);
            }
        }
        json_decref(x);
        json_decref(y);
    } while (same && x);
}

static tt_err compare(const char *run, const char *golden, verdict *v)
{
    tt_bytes a = {0}, b = {0};
    tt_err err;

    compare_weights(run, golden, v);
    if (!(err = read_file(run, "metrics.jsonl", &a)) &&
        !(err = read_file(golden, "metrics.jsonl", &b)) && !v->difference.size)
        compare_metrics(&a, &b, v);
    tt_file_release(&a);
    tt_file_release(&b);
    return err;
}

/* ---- the verdict ---- */

static void print_json(const verdict *v, bool compared)
{
    const tt_ledger *l = &v->ledger;
    json_t *o =
        json_pack("{s:i, s:I, s:I, s:I, s:b, s:i}", "generations", v->generations, "step",
                  (json_int_t)l->told.label.step, "epochs", (json_int_t)(l->epochs ? l->epoch : 0),
                  "steps_lost", (json_int_t)l->steps_lost, "ended", l->ended, "violations", l->bad);

    if (l->bad) json_object_set_new(o, "violation", json_string(l->what));
    if (compared) json_object_set_new(o, "compared", json_integer(v->lines));
    if (v->difference.size) json_object_set_new(o, "difference", json_string(v->difference.data));
    cli_json_print(stdout, o, false);
}

static void print_text(const verdict *v, bool compared)
{
    const tt_ledger *l = &v->ledger;

    printf("%d generation%s, %lld steps%s\n", v->generations, v->generations == 1 ? "" : "s",
           (long long)l->told.label.step, l->ended ? "" : ", not ended");
    if (l->steps_lost)
        printf("%llu steps had to be done again: every copy of the state was lost, or bad numbers "
               "were taken back\n",
               (unsigned long long)l->steps_lost);
    if (l->bad)
        printf("violated: %s%s\n", l->what, l->bad > 1 ? ", and more" : "");
    else
        printf("each step was committed once%s\n",
               l->epochs ? ", each sample of each epoch taken once" : "");
    if (v->difference.size)
        printf("differs: %s\n", v->difference.data);
    else if (compared)
        printf("the same weights, the same %d lines of metrics\n", v->lines);
}

static int ledger_run(const void *opts, int argc, const char **argv)
{
    const ledger_opts *o = opts;
    char run[CLI_PATH], golden[CLI_PATH];
    verdict v = {0};
    tt_err err;
    int code;

    if ((err = cli_run_find(argc ? argv[0] : "last", o->runs, run)) ||
        (o->golden && (err = cli_run_find(o->golden, o->runs, golden))) || (err = judge(run, &v)) ||
        (o->golden && (err = compare(run, golden, &v)))) {
        tt_str_free(&v.difference);
        return cli_fail(err);
    }
    if (o->json)
        print_json(&v, o->golden);
    else
        print_text(&v, o->golden);
    code = v.ledger.bad || v.difference.size;
    tt_str_free(&v.difference);
    return code;
}

const tt_command cli_ledger = {
    .name = "ledger",
    .args = "[RUN]",
    .args_most = 1,
    .brief = "judge what a run has committed, from its records",
    .about = "Reads the ledger that the supervisor of a run keeps (with -n) and tells whether each "
             "step was committed once, and each sample of each epoch taken once, whatever died "
             "meanwhile. Exit code 1: it was not so, or the runs compared are not the same.",
    .examples = (const char *const[]){"tutti ledger", "the newest run",
                                      "tutti ledger runs/a --golden runs/b",
                                      "has it come to the same as another one?", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(ledger_opts),
    .run = ledger_run,
};
