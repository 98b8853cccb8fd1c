/* display: a training as it goes on.
 *
 * On a terminal a small panel is redrawn in place, up to ten times a second, and a line for each
 * epoch and validation scrolls away above it. Elsewhere: lines, at most one a second and one for
 * each epoch and validation. With --json the same as objects. A draw is one write, made in a buffer
 * that is part of the display, so a step allocates nothing. The cursor is never hidden: however the
 * program ends, the terminal is fine. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

#define DRAW_S 0.1
#define LINE_S 1.0
#define SMOOTH 0.05 /* weight of one step in the shares of time */
#define BOLD   "1"
#define DIM    "2"
#define RED    "31"
#define GREEN  "32"
#define PLAIN  ""

enum { SPARK = 32, SHARES = 5, OUT = 32768, LABEL = 7, ROWS = 16 };

static const char *const share_names[SHARES] = {"data", "forward", "backward", "wait", "optimiser"};

struct cli_display {
    cli_display_mode mode;
    char name[128], goal[64];
    int rank_count;
    char (*host)[64];     /* of each rank */
    tt_rank_times *ranks; /* smoothed     */
    cli_screen screen;
    bool dead; /* nobody reads any more; training goes on */
    char out[OUT];
    size_t used;
    int width, limit; /* of the line being made: columns so far and at most */
    int lines;        /* of the panel that stands on the screen */
    double drawn, printed;

    double step_s, share_s[SHARES], scaling; /* smoothed */
    /* The whole history of the loss: when it is full, neighbours are merged and each column stands
     * for twice as many steps. */
    double spark[SPARK], spark_sum;
    int spark_count;
    int64_t spark_each, spark_steps;

    int64_t saved_step;
    double saved_at;
    char note[160], trouble[512];
    tt_progress p;
    bool any; /* p is set */
};

/* ---- the buffer ---- */

static void flush(cli_display *d)
{
    size_t at = 0;

    while (at < d->used && !d->dead) {
        ssize_t n = write(STDOUT_FILENO, d->out + at, d->used - at);
        if (n > 0)
            at += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            break; /* a reader too slow misses a picture */
        else if (n < 0 && errno != EINTR)
            d->dead = true;
    }
    d->used = 0;
}

static void add_raw(cli_display *d, const char *text, size_t size)
{
    if (d->used + size > OUT) return;
    memcpy(d->out + d->used, text, size);
    d->used += size;
}

/* Text in a style, cut where the line is full. */
static void put(cli_display *d, const char *style, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void put(cli_display *d, const char *style, const char *fmt, ...)
{
    char text[1024];
    const char *p, *end;
    bool colored = d->screen.color && *style;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (p = text, end = text; *end && *end != '\n' && d->width < d->limit; d->width++)
        for (end++; ((unsigned char)*end & 0xC0) == 0x80;) end++;
    if (end == p) return;
    if (colored) add_raw(d, "\033[", 2), add_raw(d, style, strlen(style)), add_raw(d, "m", 1);
    add_raw(d, p, (size_t)(end - p));
    if (colored) add_raw(d, "\033[0m", 4);
}

static void end_line(cli_display *d, bool panel)
{
    if (panel) add_raw(d, "\033[K", 3), d->lines++;
    add_raw(d, "\n", 1);
    d->width = 0;
}

/* Goes to the top of the panel; what is printed now replaces it. */
static void lift(cli_display *d)
{
    char move[32];

    if (d->lines) add_raw(d, move, (size_t)snprintf(move, sizeof move, "\r\033[%dA", d->lines));
    d->lines = 0;
}

static void erase(cli_display *d)
{
    if (!d->lines) return;
    lift(d);
    add_raw(d, "\033[J", 3);
}

/* ---- what is gathered ---- */

static void gather_spark(cli_display *d, double loss)
{
    d->spark_sum += loss;
    if (++d->spark_steps < d->spark_each) return;
    if (d->spark_count == SPARK) {
        for (int i = 0; i < SPARK / 2; i++)
            d->spark[i] = (d->spark[2 * i] + d->spark[2 * i + 1]) / 2;
        d->spark_count = SPARK / 2;
        d->spark_each *= 2;
        return; /* this column is half full now */
    }
    d->spark[d->spark_count++] = d->spark_sum / (double)d->spark_steps;
    d->spark_sum = 0;
    d->spark_steps = 0;
}

static void smooth(double *to, double v, double weight)
{
    if (isfinite(v)) *to += weight * (v - *to);
}

static void gather_ranks(cli_display *d, const tt_rank_times *times, int count, double weight)
{
    for (int r = 0; r < count && r < d->rank_count; r++) {
        tt_rank_times *to = &d->ranks[r];
        if (!(times[r].step > 0)) continue; /* not known yet */
        if (!(to->step > 0)) weight = 1;
        smooth(&to->data, times[r].data, weight);
        smooth(&to->forward, times[r].forward, weight);
        smooth(&to->backward, times[r].backward, weight);
        smooth(&to->wait, times[r].wait, weight);
        smooth(&to->optim, times[r].optim, weight);
        smooth(&to->step, times[r].step, weight);
        to->units = times[r].units;
        to->backups = times[r].backups;
    }
}

static void gather(cli_display *d, const tt_progress *p)
{
    const double s[SHARES] = {p->data_s, p->forward_s, p->backward_s, p->wait_s, p->optim_s};
    double weight = d->any ? SMOOTH : 1;

    for (int i = 0; i < SHARES; i++) smooth(&d->share_s[i], s[i], weight);
    smooth(&d->step_s, p->step_s, weight);
    if (p->scaling > 0) smooth(&d->scaling, p->scaling, d->scaling > 0 ? SMOOTH : 1);
    if (isfinite(p->loss)) gather_spark(d, p->loss);
    if (p->saved) {
        d->saved_step = p->saved_step[p->saved - 1];
        d->saved_at = tt_clock_s();
    }
    d->p = *p;
    d->any = true;
}

static double percent_of(double part, double whole)
{
    return whole > 0 ? fmin(100, fmax(0, 100 * part / whole)) : 0;
}

static bool has_eta(const tt_progress *p)
{
    return !isnan(p->eta_s) && p->step < p->steps;
}

/* ---- the panel ---- */

static void put_label(cli_display *d, const char *label)
{
    put(d, DIM, "%-*s", LABEL, label);
}

/* On a logarithmic scale where that is possible: the loss falls fast, then slowly. */
static double spark_height(double loss, double least)
{
    return least > 0 ? log(loss) : loss;
}

static void put_spark(cli_display *d)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const ascii[] = {"_", ".", "-", ":", "=", "+", "*", "#"};
    double least = INFINITY, most = -INFINITY, low, high;
    char text[SPARK * 4 + 1] = "";

    for (int i = 0; i < d->spark_count; i++) {
        least = fmin(least, d->spark[i]);
        most = fmax(most, d->spark[i]);
    }
    low = spark_height(least, least);
    high = spark_height(most, least);
    for (int i = 0; i < d->spark_count; i++) {
        double at = high > low ? (spark_height(d->spark[i], least) - low) / (high - low) : 0;
        int level = (int)lround(at * 7);
        strcat(text, d->screen.utf8 ? blocks[level] : ascii[level]);
    }
    put(d, GREEN, "%s", text);
}

void cli_bar(double done, bool utf8, char full[CLI_BAR * 4 + 1], char rest[CLI_BAR * 4 + 1])
{
    int cells = (int)(done * CLI_BAR);

    *full = *rest = 0;
    for (int i = 0; i < cells; i++) strcat(full, utf8 ? "█" : "#");
    for (int i = cells; i < CLI_BAR; i++) strcat(rest, utf8 ? "░" : ".");
}

static void put_bar(cli_display *d, double done)
{
    char full[CLI_BAR * 4 + 1], rest[CLI_BAR * 4 + 1];

    cli_bar(done, d->screen.utf8, full, rest);
    put(d, GREEN, "%s", full);
    put(d, DIM, "%s", rest);
}

static void put_goal(cli_display *d, const char *style)
{
    const char *goal = d->goal;

    if (!*goal || isnan(d->p.best)) return;
    bool percent = false;
    for (int i = 0; i < TT_METRICS; i++)
        percent |= tt_metric_table[i].percent && strstr(goal, tt_metric_table[i].name);
    if (percent)
        put(d, style, "  best %.2f %% (%s)", 100 * d->p.best, goal);
    else
        put(d, style, "  best %.4g (%s)", d->p.best, goal);
}

static void panel_progress(cli_display *d)
{
    const tt_progress *p = &d->p;
    double done = p->steps > 0 ? fmin(1, (double)p->step / (double)p->steps) : 0;
    char a[32], b[32];

    put(d, BOLD, "%s", d->name);
    put(d, PLAIN, "  step %s of %s  epoch %.2f of %.6g", tt_show_count(p->step, a, sizeof a),
        tt_show_count(p->steps, b, sizeof b), p->epoch, p->epochs);
    end_line(d, true);
    put_bar(d, done);
    put(d, PLAIN, " %3.0f %%", floor(100 * done));
    if (has_eta(p)) put(d, PLAIN, "  %s left", tt_show_time(p->eta_s, a, sizeof a));
    end_line(d, true);
}

static void panel_numbers(cli_display *d)
{
    const tt_progress *p = &d->p;
    char text[200];

    put_label(d, "loss");
    put(d, BOLD, "%-8.4g ", p->loss);
    put_spark(d);
    put(d, DIM, "  epoch mean %.4g", p->loss_mean);
    end_line(d, true);
    put_label(d, "val");
    if (p->val.samples > 0) {
        cli_metrics_show(&p->val, text, sizeof text);
        put(d, PLAIN, "%s", text);
        put_goal(d, DIM);
    } else {
        put(d, DIM, "not yet");
    }
    end_line(d, true);
}

static void panel_speed(cli_display *d)
{
    const tt_progress *p = &d->p;
    char rate[32];

    put_label(d, "speed");
    if (p->samples_per_s > 0)
        put(d, PLAIN, "%s  ", cli_rate_show(p->samples_per_s, p->tokens_per_s, rate, sizeof rate));
    put(d, PLAIN, "lr %.4g", p->lr);
    if (d->rank_count > 1) put(d, DIM, "  %.2fx of one worker", d->scaling);
    if (p->bytes_sent > 0 && d->step_s > 0)
        put(d, DIM, "  %s/s sent",
            tt_show_bytes((double)p->bytes_sent / d->step_s, rate, sizeof rate));
    end_line(d, true);
    put_label(d, "time");
    for (int i = 0; i < SHARES; i++)
        if (d->rank_count > 1 || i != 3)
            put(d, PLAIN, "%s%s %.0f %%", i ? "  " : "", share_names[i],
                percent_of(d->share_s[i], d->step_s));
    end_line(d, true);
}

/* A row for each worker. Who waits least is whom the others wait for. */
static void panel_ranks(cli_display *d)
{
    int slowest = 0;
    double least = INFINITY, most = 0;

    if (d->rank_count < 2) return;
    for (int r = 0; r < d->rank_count; r++) {
        if (d->ranks[r].wait < least) least = d->ranks[r].wait, slowest = r;
        most = fmax(most, d->ranks[r].wait);
    }
    bool lags = most - least > 0.1 * d->step_s;
    for (int r = 0; r < d->rank_count && r < ROWS; r++) {
        const tt_rank_times *t = &d->ranks[r];
        put_label(d, r ? "" : "workers");
        put(d, lags && r == slowest ? RED : PLAIN,
            "%4d %-16.16s compute %6.1f ms  wait %6.1f ms  data %5.1f ms%s", r, d->host[r],
            1e3 * (t->forward + t->backward + t->optim), 1e3 * t->wait, 1e3 * t->data,
            lags && r == slowest ? "  slowest" : "");
        end_line(d, true);
    }
    if (d->rank_count > ROWS) {
        put_label(d, "");
        put(d, DIM, "and %d more; the slowest is %d on %s", d->rank_count - ROWS, slowest,
            d->host[slowest]);
        end_line(d, true);
    }
}

static void panel_state(cli_display *d, double now)
{
    char ago[32];

    put_label(d, "saved");
    if (d->saved_step >= 0)
        put(d, PLAIN, "step %lld, %s ago", (long long)d->saved_step,
            tt_show_time(fmax(0, now - d->saved_at), ago, sizeof ago));
    else
        put(d, DIM, "not yet");
    if (*d->trouble) put(d, RED, "  %s", d->trouble);
    end_line(d, true);
    if (!*d->note) return;
    put(d, BOLD, "%s", d->note);
    end_line(d, true);
}

static void draw(cli_display *d, double now)
{
    if (!d->any) return;
    d->drawn = now;
    d->limit = cli_screen_width(STDOUT_FILENO) - 1;
    lift(d);
    panel_progress(d);
    panel_numbers(d);
    panel_speed(d);
    panel_ranks(d);
    panel_state(d, now);
    add_raw(d, "\033[J", 3);
    flush(d);
}

/* ---- lines ---- */

/* A line that stays: above the panel, if there is one. It may be longer than the screen is wide. */
static void begin_line(cli_display *d)
{
    erase(d);
    d->limit = 1 << 20;
    d->width = 0;
}

static void line_step(cli_display *d)
{
    const tt_progress *p = &d->p;
    char a[32], b[32], rate[32];

    begin_line(d);
    put(d, PLAIN, "step %s of %s  epoch %.2f  loss %.4g  lr %.4g",
        tt_show_count(p->step, a, sizeof a), tt_show_count(p->steps, b, sizeof b), p->epoch,
        p->loss, p->lr);
    if (p->samples_per_s > 0)
        put(d, PLAIN, "  %s", cli_rate_show(p->samples_per_s, p->tokens_per_s, rate, sizeof rate));
    if (has_eta(p)) put(d, PLAIN, "  %s left", tt_show_time(p->eta_s, a, sizeof a));
    end_line(d, false);
    flush(d);
}

static void line_event(cli_display *d)
{
    const tt_progress *p = &d->p;
    char text[200], count[32];

    begin_line(d);
    if (p->epoch_end)
        put(d, BOLD, "epoch %.6g of %.6g", p->epoch, p->epochs);
    else
        put(d, BOLD, "step %s", tt_show_count(p->step, count, sizeof count));
    if (!isnan(p->loss_mean)) put(d, PLAIN, "  loss %.4g", p->loss_mean);
    if (p->validated) {
        cli_metrics_show(&p->val, text, sizeof text);
        put(d, PLAIN, "  val %s", text);
        put_goal(d, DIM);
    }
    end_line(d, false);
    flush(d);
}

static void line_text(cli_display *d, const char *style, const char *text)
{
    begin_line(d);
    put(d, style, "%s", text);
    end_line(d, false);
    flush(d);
}

/* ---- JSON ---- */

static void json_number(cli_display *d, const char *name, double v)
{
    char text[96];
    int n;

    if (isfinite(v))
        n = snprintf(text, sizeof text, ",\"%s\":%.9g", name, v);
    else
        n = snprintf(text, sizeof text, ",\"%s\":null", name);
    add_raw(d, text, (size_t)n);
}

static void json_begin(cli_display *d, const char *event, int64_t step)
{
    char text[128];
    int n = snprintf(text, sizeof text, "{\"event\":\"%s\",\"step\":%lld,\"steps\":%lld", event,
                     (long long)step, (long long)d->p.steps);
    add_raw(d, text, (size_t)n);
}

static void json_end(cli_display *d)
{
    add_raw(d, "}\n", 2);
    flush(d);
}

static void json_step(cli_display *d)
{
    const tt_progress *p = &d->p;

    json_begin(d, p->epoch_end ? "epoch" : "step", p->step);
    json_number(d, "epoch", p->epoch);
    json_number(d, "loss", p->loss);
    json_number(d, "loss_mean", p->loss_mean);
    json_number(d, "lr", p->lr);
    json_number(d, "grad_norm", p->grad_norm);
    json_number(d, "samples_per_s", p->samples_per_s);
    if (p->tokens_per_s > 0) json_number(d, "tokens_per_s", p->tokens_per_s);
    json_number(d, "step_s", d->step_s);
    for (int i = 0; i < SHARES; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s_s", share_names[i]);
        json_number(d, name, d->share_s[i]);
    }
    json_number(d, "eta_s", p->eta_s);
    if (d->rank_count > 1) {
        json_number(d, "scaling", d->scaling);
        json_number(d, "bytes_sent", (double)p->bytes_sent);
        for (int r = 0; r < d->rank_count && r < CLI_RANKS; r++) {
            char text[192];
            int n = snprintf(text, sizeof text,
                             "%s{\"rank\":%d,\"compute_s\":%.6g,\"wait_s\":%.6g,\"data_s\":%.6g,"
                             "\"units\":%d,\"backups\":%d}",
                             r ? "," : ",\"ranks\":[", r,
                             d->ranks[r].forward + d->ranks[r].backward + d->ranks[r].optim,
                             d->ranks[r].wait, d->ranks[r].data, d->ranks[r].units,
                             d->ranks[r].backups);
            add_raw(d, text, (size_t)n);
        }
        add_raw(d, "]", 1);
    }
    json_end(d);
}

static void json_events(cli_display *d)
{
    const tt_metrics *v = &d->p.val;

    if (d->p.validated) {
        json_begin(d, "validation", d->p.step);
        json_number(d, "epoch", d->p.epoch);
        json_number(d, "loss", v->loss);
        for (int i = 0; i < TT_METRICS; i++)
            if (!isnan(tt_metric_of(v, i)))
                json_number(d, tt_metric_table[i].name, tt_metric_of(v, i));
        if (!isnan(d->p.best)) json_number(d, "best", d->p.best);
        json_end(d);
    }
    for (int i = 0; i < d->p.saved; i++) {
        json_begin(d, "saved", d->p.saved_step[i]);
        json_end(d);
    }
}

/* ---- the calls ---- */

/* A new trouble is told once, the panel shows it while it lasts, and that it is over is told too.
 */
static void tell_trouble(cli_display *d)
{
    const char *now = d->p.save_trouble ? d->p.save_trouble : "";
    bool over = *d->trouble && !*now;

    if (!strncmp(now, d->trouble, sizeof d->trouble - 1)) return;
    snprintf(d->trouble, sizeof d->trouble, "%s", now);
    if (d->dead) return;
    if (d->mode == CLI_SHOW) {
        line_text(d, over ? BOLD : RED,
                  over ? "the disk works again: what is due is written" : now);
    } else if (d->mode == CLI_JSON) {
        json_t *j = json_pack("{s:s, s:I}", "event", over ? "save_trouble_over" : "save_trouble",
                              "step", (json_int_t)d->p.step);
        if (!over) json_object_set_new(j, "trouble", json_string(now));
        cli_json_print(stdout, j, true);
        fflush(stdout);
    }
}

void cli_display_step(cli_display *d, const tt_progress *p, const tt_rank_times *times, int ranks)
{
    double now = tt_clock_s();
    bool event = p->validated || p->epoch_end, due = now - d->printed >= LINE_S;

    gather_ranks(d, times, ranks, d->any ? SMOOTH : 1);
    gather(d, p);
    tell_trouble(d);
    if (d->mode == CLI_QUIET || d->dead) return;
    if (d->mode == CLI_JSON) {
        if (event || due || p->end) json_step(d), d->printed = now;
        json_events(d);
        return;
    }
    if (event) line_event(d), d->printed = now;
    if (!d->screen.live) {
        if (due && !event) line_step(d), d->printed = now;
    } else if (event || now - d->drawn >= DRAW_S) {
        draw(d, now);
    }
}

void cli_display_note(cli_display *d, const char *text)
{
    snprintf(d->note, sizeof d->note, "%s", text);
    if (d->mode != CLI_SHOW || d->dead) return;
    if (d->screen.live && d->any)
        draw(d, tt_clock_s());
    else
        line_text(d, BOLD, text);
}

void cli_display_leave(cli_display *d)
{
    if (d->lines) erase(d);
    flush(d);
    if (d->screen.live) tt_log_quiet(false);
}

cli_display *cli_display_open(cli_display_mode mode, const json_t *start)
{
    cli_display *d = calloc(1, sizeof *d);
    const json_t *world = json_object_get(start, "world"),
                 *hosts = json_object_get(world, "host_of");
    const char *name = json_string_value(json_object_get(start, "name")),
               *goal = json_string_value(json_object_get(start, "best"));

    if (!d) tt_mem_out(sizeof *d);
    d->mode = mode;
    snprintf(d->name, sizeof d->name, "%s", name ? name : "");
    snprintf(d->goal, sizeof d->goal, "%s", goal ? goal : "");
    d->rank_count = (int)json_integer_value(json_object_get(world, "ranks"));
    d->ranks = calloc((size_t)d->rank_count + 1, sizeof *d->ranks);
    d->host = calloc((size_t)d->rank_count + 1, sizeof *d->host);
    if (!d->ranks || !d->host) tt_mem_out((size_t)d->rank_count * sizeof *d->ranks);
    for (int r = 0; r < d->rank_count; r++) {
        const char *host = json_string_value(json_array_get(hosts, (size_t)r));
        snprintf(d->host[r], sizeof d->host[r], "%s", host ? host : "");
    }
    if (mode == CLI_SHOW) d->screen = cli_screen_of(STDOUT_FILENO);
    d->saved_step = -1;
    d->spark_each = 1;
    d->printed = tt_clock_s();
    if (d->screen.live)
        tt_log_quiet(true); /* the panel owns the terminal; the log file has it all */
    return d;
}

void cli_display_close(cli_display *d)
{
    if (!d) return;
    cli_display_leave(d);
    free(d->ranks);
    free(d->host);
    free(d);
}
