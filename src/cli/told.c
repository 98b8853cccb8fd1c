/* told: what a training tells of itself before and after, and of each step.
 *
 * The same objects serve all who listen: people (shown here), programs (--json prints them), and
 * the supervisor of a world, to which rank 0 sends them as lines on its standard output. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* ---- Before ---- */

static json_t *hosts_of(const tt_world *w)
{
    json_t *list = json_array();
    for (int r = 0; r < w->size; r++) json_array_append_new(list, json_string(w->peer[r].name));
    return list;
}

json_t *cli_told_start(const tt_trainer *t, tt_tree *job)
{
    const tt_model *m = tt_train_model(t);
    const tt_data *d = tt_train_data(t);
    const tt_world *w = tt_train_world(t);
    const tt_plan *p = tt_train_plan(t);
    const char *by = getenv("TUTTI_LAUNCHED_BY"), *started = tt_world_started().by;
    json_t *s = json_pack(
        "{s:s, s:s, s:s, s:I, s:f, s:I, s:I, s:s, s:s, s:i, s:I, s:s, s:b}", "event", "start",
        "name", tt_train_name(t), "run", tt_train_run(t), "parameters",
        (json_int_t)tt_train_parameters(t), "flops", tt_model_flops(m), "train_samples",
        (json_int_t)tt_data_count(d, TT_TRAIN), "val_samples", (json_int_t)tt_data_count(d, TT_VAL),
        "train", tt_data_describe(d, TT_TRAIN), "kernels", tt_model_kernels(m)->name, "threads",
        tt_train_threads(t), "first_step", (json_int_t)tt_train_first_step(t), "best",
        tt_train_best(t), "by_steps", tt_tree_get(job, "train.steps") != NULL);

    if (tt_model_kernels(m)->precision == TT_IN_BF16) {
        json_object_set_new(s, "precision", json_string("bf16"));
        json_object_set_new(s, "product", json_string(tt_model_kernels(m)->product));
    }
    if (tt_data_count(d, TT_VAL))
        json_object_set_new(s, "val", json_string(tt_data_describe(d, TT_VAL)));
    if (w->size > 1 || started)
        json_object_set_new(s, "world",
                            json_pack("{s:i, s:i, s:i, s:o, s:s, s:s, s:s, s:b, s:i}", "ranks",
                                      w->size, "hosts", w->host_count, "nodes", tt_train_nodes(t),
                                      "host_of", hosts_of(w), "transport", w->transport, "launcher",
                                      by        ? by
                                      : started ? started
                                                : "",
                                      "aggregate", tt_aggregate_name(p->aggregate), "exact",
                                      p->exact, "grains", p->grains));
    if (w->size > 1 && p->workers)
        json_object_set_new(json_object_get(s, "world"), "spares",
                            json_integer(w->size - p->workers));
    return s;
}

static const char *text_in(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static int64_t count_in(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

const char cli_trust[] =
    "MPI between hosts is neither encrypted nor authenticated: use it on networks "
    "you trust";

static void show_world(const json_t *w)
{
    int ranks = (int)count_in(w, "ranks"), hosts = (int)count_in(w, "hosts");
    int spares = (int)count_in(w, "spares");
    char beside[32] = "";

    if (spares) snprintf(beside, sizeof beside, ", %d spare%s", spares, spares == 1 ? "" : "s");
    ranks -= spares;
    printf("  world    %d worker%s%s on %d host%s, started by %s, over %s\n", ranks,
           ranks == 1 ? "" : "s", beside, hosts, hosts == 1 ? "" : "s", text_in(w, "launcher"),
           text_in(w, "transport"));
    if (hosts > 1) printf("  network  %s\n", cli_trust);
    printf("  gradient %s%s", text_in(w, "aggregate"),
           json_is_true(json_object_get(w, "exact")) ? ", exact" : "");
    if (json_is_true(json_object_get(w, "exact")))
        printf(" in %lld grains", (long long)count_in(w, "grains"));
    printf("\n");
}

static void show_start(const json_t *s)
{
    int threads = (int)count_in(s, "threads");
    char params[32];

    printf("%s: %s parameters, %.4g MFLOPs forward a sample\n", text_in(s, "name"),
           tt_show_count(count_in(s, "parameters"), params, sizeof params),
           json_number_value(json_object_get(s, "flops")) / 1e6);
    printf("  train    %s\n", text_in(s, "train"));
    if (*text_in(s, "val")) printf("  val      %s\n", text_in(s, "val"));
    printf("  kernels  %s, %d thread%s%s\n", text_in(s, "kernels"), threads,
           threads == 1 ? "" : "s", json_object_get(s, "world") ? " a worker" : "");
    if (*text_in(s, "precision"))
        printf("  numbers  %s, products %s%s\n", text_in(s, "precision"), text_in(s, "product"),
               strcmp(text_in(s, "product"), "widened") ? ""
                                                        : ": no faster than float32 on this CPU");
    if (json_object_get(s, "world")) show_world(json_object_get(s, "world"));
    printf("  run      %s\n", text_in(s, "run"));
    if (count_in(s, "first_step") > 0)
        printf("  resumed  at step %s\n",
               tt_show_count(count_in(s, "first_step"), params, sizeof params));
}

void cli_start_show(cli_display_mode mode, const json_t *start)
{
    if (mode == CLI_JSON)
        cli_json_print(stdout, json_incref((json_t *)start), true);
    else if (mode == CLI_SHOW)
        show_start(start);
    fflush(stdout);
}

/* ---- After ---- */

json_t *cli_told_end(tt_trainer *t, const char *status, const char *end, int code,
                     const char *trouble)
{
    json_t *s = tt_train_summary(t);

    if (!s) s = json_object();
    json_object_set_new(s, "event", json_string("end"));
    json_object_set_new(s, "status", json_string(status));
    json_object_set_new(s, "run", json_string(tt_train_run(t)));
    json_object_set_new(s, "exit_code", json_integer(code));
    if (end && strcmp(end, "done")) json_object_set_new(s, "reason", json_string(end));
    if (*trouble) json_object_set_new(s, "trouble", json_string(trouble));
    return s;
}

static double number_in(const json_t *j, const char *group, const char *key)
{
    const json_t *v = json_object_get(group ? json_object_get(j, group) : j, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* As many as there were, unless hosts were named: those may be others the next time. */
static void show_workers(FILE *f, const json_t *start)
{
    const json_t *w = json_object_get(start, "world");

    if (count_in(w, "ranks") > 1 && count_in(w, "hosts") == 1)
        fprintf(f, " -n %lld", (long long)count_in(w, "ranks"));
}

static void show_next(const json_t *start, const json_t *s, bool done)
{
    tt_str p = {0}, r = {0};

    cli_quote(cli_program, &p);
    cli_quote(text_in(s, "run"), &r);
    printf("\nNext:\n");
    if (count_in(start, "val_samples")) printf("  %s eval %s\n", p.data, r.data);
    if (json_object_get(s, "tokens_per_s"))
        printf("  %s sample %s\n", p.data, r.data);
    else if (count_in(start, "val_samples"))
        printf("  %s predict %s --limit 10\n", p.data, r.data);
    printf("  %s train --resume %s", p.data, r.data);
    show_workers(stdout, start);
    if (done && json_is_true(json_object_get(start, "by_steps")))
        printf(" -s train.steps=%lld", 2 * llround(number_in(s, NULL, "steps")));
    else if (done)
        printf(" -s train.epochs=%lld", 2 * llround(ceil(number_in(s, NULL, "epochs"))));
    printf("\n");
    tt_str_free(&p);
    tt_str_free(&r);
}

static void show_end(const json_t *start, const json_t *s)
{
    char text[200], count[32], took[32];
    tt_metrics val = cli_metrics_read(json_object_get(s, "val"));
    const char *sha = text_in(s, "weights_sha256"), *why = text_in(s, "reason"),
               *status = text_in(s, "status");
    double steps = number_in(s, NULL, "steps"), epochs = number_in(s, NULL, "epochs");
    double loss = number_in(s, "train", "loss"), rate = number_in(s, NULL, "samples_per_s");

    printf("\n%s%s%s%s: %s step%s, %.4g epoch%s in %s\n", status, *why ? " (" : "", why,
           *why ? ")" : "", tt_show_count(isnan(steps) ? 0 : llround(steps), count, sizeof count),
           steps == 1 ? "" : "s", epochs, epochs == 1 ? "" : "s",
           tt_show_time(number_in(s, NULL, "seconds"), took, sizeof took));
    if (!isnan(loss)) printf("  train    loss %.4g\n", loss);
    if (!isnan(val.loss)) {
        cli_metrics_show(&val, text, sizeof text);
        printf("  val      %s\n", text);
    }
    if (rate > 0)
        printf("  speed    %s\n",
               cli_rate_show(rate, number_in(s, NULL, "tokens_per_s"), count, sizeof count));
    if (*sha) printf("  weights  sha256 %s\n", sha);
    printf("  run      %s\n", text_in(s, "run"));
    show_next(start, s, !strcmp(status, "done"));
}

void cli_resume_show(const json_t *start, const json_t *end)
{
    tt_str line = {0};

    if (!*text_in(end, "run")) return;
    cli_quote(cli_program, &line);
    tt_str_add(&line, " train --resume ");
    cli_quote(text_in(end, "run"), &line);
    fprintf(stderr, "tutti: go on with: %s", line.data);
    show_workers(stderr, start);
    fprintf(stderr, "\n");
    tt_str_free(&line);
}

void cli_end_show(cli_display_mode mode, const json_t *start, const json_t *end)
{
    bool failed = *text_in(end, "trouble") != 0;

    if (mode == CLI_JSON)
        cli_json_print(stdout, json_incref((json_t *)end), true);
    else if (mode == CLI_SHOW && !failed)
        show_end(start, end);
    if (mode != CLI_SHOW && !failed && !strcmp(text_in(end, "status"), "stopped"))
        cli_resume_show(start, end);
}

/* ---- Each step, from rank 0 to the supervisor ---- */

/* The order in which numbers travel; both ends use this one list. */
enum { NUMBERS = 29 + TT_METRICS };
static void spell(tt_progress *p, double v[NUMBERS], bool write)
{
    double flag[4] = {p->validated, p->epoch_end, p->stopped, p->saved}, step = (double)p->step,
           steps = (double)p->steps, epoch_steps = (double)p->epoch_steps,
           bytes = (double)p->bytes_sent, samples = (double)p->val.samples,
           first = (double)p->saved_step[0], second = (double)p->saved_step[1];
    double *at[NUMBERS] = {
        &step,       &steps,        &epoch_steps,  &p->epoch,       &p->epochs,
        &p->loss,    &p->loss_mean, &p->lr,        &p->grad_norm,   &p->samples_per_s,
        &p->step_s,  &p->data_s,    &p->forward_s, &p->backward_s,  &p->wait_s,
        &p->optim_s, &bytes,        &p->eta_s,     &p->val.loss,    &samples,
        &p->best,    &flag[0],      &flag[1],      &flag[2],        &flag[3],
        &first,      &second,       &p->scaling,   &p->tokens_per_s};

    for (int i = 0; i < TT_METRICS; i++) at[NUMBERS - TT_METRICS + i] = tt_metric_at(&p->val, i);
    for (int i = 0; i < NUMBERS; i++) *(write ? &v[i] : at[i]) = write ? *at[i] : v[i];
    if (write) return;
    p->step = (int64_t)step;
    p->steps = (int64_t)steps;
    p->epoch_steps = (int64_t)epoch_steps;
    p->bytes_sent = (int64_t)bytes;
    p->val.samples = (int64_t)samples;
    p->validated = flag[0] > 0;
    p->epoch_end = flag[1] > 0;
    p->stopped = flag[2] > 0;
    p->saved = (int)flag[3];
    p->saved_step[0] = (int64_t)first;
    p->saved_step[1] = (int64_t)second;
}

json_t *cli_step_pack(const tt_progress *p, const tt_rank_times *times, int ranks)
{
    json_t *numbers = json_array(), *rows = json_array(),
           *o = json_pack("{s:s, s:I, s:o, s:o}", "event", "progress", "step", (json_int_t)p->step,
                          "p", numbers, "ranks", rows);
    tt_progress copy = *p;
    double v[NUMBERS];

    spell(&copy, v, true);
    for (int i = 0; i < NUMBERS; i++) json_array_append_new(numbers, cli_json_real(v[i]));
    for (int r = 0; r < ranks && r < CLI_RANKS; r++)
        json_array_append_new(rows,
                              json_pack("[f, f, f, f, f, f, i, i]", times[r].data, times[r].forward,
                                        times[r].backward, times[r].wait, times[r].optim,
                                        times[r].step, times[r].units, times[r].backups));
    if (p->save_trouble) json_object_set_new(o, "trouble", json_string(p->save_trouble));
    if (p->end) json_object_set_new(o, "end", json_string(p->end));
    return o;
}

void cli_step_take(const json_t *o, tt_progress *p, tt_rank_times *times, int *ranks)
{
    const json_t *numbers = json_object_get(o, "p"), *rows = json_object_get(o, "ranks");
    const json_t *trouble = json_object_get(o, "trouble"), *end = json_object_get(o, "end");
    double v[NUMBERS];

    memset(p, 0, sizeof *p);
    for (int i = 0; i < NUMBERS; i++) {
        const json_t *n = json_array_get(numbers, (size_t)i);
        v[i] = json_is_number(n) ? json_number_value(n) : NAN;
    }
    spell(p, v, false);
    for (int i = 0; i < TT_LOSSES; i++) p->val.part[i] = NAN;
    p->save_trouble = json_string_value(trouble);
    p->end = json_string_value(end);
    *ranks = (int)json_array_size(rows);
    if (*ranks > CLI_RANKS) *ranks = CLI_RANKS;
    for (int r = 0; r < *ranks; r++) {
        double *const to[] = {&times[r].data, &times[r].forward, &times[r].backward,
                              &times[r].wait, &times[r].optim,   &times[r].step};
        for (int i = 0; i < TT_COUNT(to); i++)
            *to[i] = json_number_value(json_array_get(json_array_get(rows, (size_t)r), (size_t)i));
        const json_t *row = json_array_get(rows, (size_t)r);
        times[r].units = (int)json_integer_value(json_array_get(row, TT_COUNT(to)));
        times[r].backups = (int)json_integer_value(json_array_get(row, TT_COUNT(to) + 1));
    }
}
