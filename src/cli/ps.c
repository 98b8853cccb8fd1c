/* ps: the runs of this user that are alive on this host. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct ps_opts {
    bool json;
} ps_opts;

static const tt_option options[] = {
    {"json", 0, TT_OPT_FLAG, offsetof(ps_opts, json), NULL, "print JSON"},
};

static const double ASK_S = 2;

/* A row of texts, so that columns can be as wide as they need to be. */
enum { COLUMNS = 10, CELL = 40 };
typedef char row[COLUMNS][CELL];

static double number_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void show_number(char cell[CELL], const char *format, double v)
{
    if (isnan(v))
        snprintf(cell, CELL, "-");
    else
        snprintf(cell, CELL, format, v);
}

static void show_steps(char cell[CELL], const json_t *o)
{
    double step = number_of(o, "step"), steps = number_of(o, "steps");
    char a[CELL / 2 - 4], b[CELL / 2 - 4];

    if (isnan(step))
        snprintf(cell, CELL, "-");
    else if (isnan(steps))
        tt_show_count(llround(step), cell, CELL);
    else
        snprintf(cell, CELL, "%s of %s", tt_show_count(llround(step), a, sizeof a),
                 tt_show_count(llround(steps), b, sizeof b));
}

static void fill_row(const json_t *o, row r)
{
    const char *state = json_string_value(json_object_get(o, "state"));
    double up = tt_wall_s() - number_of(o, "since");

    show_number(r[0], "%.0f", number_of(o, "pid"));
    snprintf(r[1], CELL, "%s", state ? state : "-");
    show_number(r[2], "%.0f", number_of(o, "workers"));
    show_number(r[3], "%.0f", number_of(o, "generation"));
    show_steps(r[4], o);
    show_number(r[5], "%.2f", number_of(o, "epoch"));
    show_number(r[6], "%.4g", number_of(o, "loss"));
    show_number(r[7], "%.0f", number_of(o, "samples_per_s"));
    tt_show_time(isnan(up) || up < 0 ? 0 : up, r[8], CELL);
}

static void print_rows(const json_t *all)
{
    static const char *const heads[COLUMNS] = {"pid",   "state", "workers",   "gen", "step",
                                               "epoch", "loss",  "samples/s", "up",  "run"};
    static const bool left[COLUMNS] = {[1] = true, [9] = true};
    size_t n = json_array_size(all);
    row *rows = calloc(n + 1, sizeof *rows);
    int width[COLUMNS] = {0};

    if (!rows) tt_mem_out(n * sizeof *rows);
    for (size_t i = 0; i < n; i++) fill_row(json_array_get(all, i), rows[i + 1]);
    for (int c = 0; c < COLUMNS; c++) snprintf(rows[0][c], CELL, "%s", heads[c]);
    for (size_t i = 0; i <= n; i++)
        for (int c = 0; c < COLUMNS; c++)
            if ((int)strlen(rows[i][c]) > width[c]) width[c] = (int)strlen(rows[i][c]);
    for (size_t i = 0; i <= n; i++) {
        const json_t *o = i ? json_array_get(all, i - 1) : NULL, *alarm;
        const char *run = json_string_value(json_object_get(o, "run"));
        size_t k;
        for (int c = 0; c < COLUMNS - 1; c++)
            printf(left[c] ? "%-*s  " : "%*s  ", width[c], rows[i][c]);
        printf("%s\n", run ? run : heads[COLUMNS - 1]);
        json_array_foreach(json_object_get(o, "alarms"), k, alarm)
            printf("%*s  ! %s\n", width[0], "", json_string_value(alarm));
    }
    free(rows);
}

/* Of one that leads no world: what it says of itself, and what its folder says. */
static json_t *look_at(const cli_live_run *l)
{
    json_t *o;

    if (cli_status_get(l->run, ASK_S, &o))
        o = json_pack("{s:o, s:s}", "run", tt_json_text(l->run), "state", "starting");
    json_object_set_new(o, "pid", json_integer(l->pid));
    json_object_set_new(o, "host", tt_json_text(l->host));
    json_object_set_new(o, "since", json_real(l->since));
    json_object_set_new(o, "uptime_s", json_real(tt_wall_s() - l->since));
    return o;
}

static int ps_run(const void *opts, int argc, const char **argv)
{
    const ps_opts *o = opts;
    json_t *all = json_array();
    cli_live_run *list;
    int count;
    tt_err err;

    (void)argc;
    (void)argv;
    if ((err = cli_live_list(&list, &count))) {
        json_decref(all);
        return cli_fail(err);
    }
    for (int i = 0; i < count; i++) json_array_append_new(all, look_at(&list[i]));
    free(list);
    if (o->json)
        cli_json_print(stdout, json_incref(all), false);
    else if (count)
        print_rows(all);
    else
        printf("no run of yours is alive on this host\n");
    json_decref(all);
    return 0;
}

const tt_command cli_ps = {
    .name = "ps",
    .args = "",
    .brief = "list the runs that are alive",
    .about = "All runs of this user on this host, in whatever folder they are: process, state, "
             "workers, generation, how far they are, and alarms, such as a checkpoint that cannot "
             "be written.",
    .examples =
        (const char *const[]){"tutti ps", "what runs now", "tutti ps --json", "for programs", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(ps_opts),
    .run = ps_run,
};
