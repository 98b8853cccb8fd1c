/* top: a run as it goes on, from another terminal.
 *
 * It asks and looks, twice a second, and changes nothing: whoever leaves it leaves the run as it
 * is. What is drawn is made anew each time from one object (control.c), the same that --json
 * prints. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

typedef struct top_opts {
    const char *runs;
    bool once, json;
} top_opts;

static const tt_option options[] = {
    {"once", 0, TT_OPT_FLAG, offsetof(top_opts, once), NULL,
     "print it once; so it is anyway where there is no terminal"},
    {"runs", 0, TT_OPT_STRING, offsetof(top_opts, runs), "DIR", "where run folders are; runs"},
    {"json", 0, TT_OPT_FLAG, offsetof(top_opts, json), NULL, "print JSON, once"},
};

static const double ASK_S = 2;
enum { REFRESH_MS = 500, SHOWN_GENERATIONS = 8 };

/* ---- the picture ---- */

typedef struct picture {
    tt_str text;
    cli_screen screen;
    int lines;
} picture;

static double number_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

__attribute__((format(printf, 3, 4))) static void put(picture *p, const char *style,
                                                      const char *fmt, ...)
{
    bool styled = *style && p->screen.color;
    char text[2048];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' '; /* a log may hold anything */
    tt_str_add(&p->text, styled ? "\033[%sm%s\033[0m" : "%s%s", styled ? style : "", text);
}

static void end_line(picture *p)
{
    tt_str_add(&p->text, "\n");
    p->lines++;
}

static void put_head(picture *p, const json_t *o)
{
    char up[32];
    double since = number_of(o, "since");
    bool alive = json_object_get(o, "pid") != NULL;

    put(p, "1", "%s", text_of(o, "name"));
    put(p, "", "  %s", text_of(o, "state"));
    if (alive) put(p, "", "  process %.0f on %s", number_of(o, "pid"), text_of(o, "host"));
    if (alive && since > 0)
        put(p, "2", "  up %s", tt_show_time(fmax(0, tt_wall_s() - since), up, sizeof up));
    end_line(p);
    put(p, "2", "%-8s", "run");
    put(p, "", "%s", text_of(o, "run"));
    end_line(p);
}

static void put_progress(picture *p, const json_t *o)
{
    double step = number_of(o, "step"), steps = number_of(o, "steps"), eta = number_of(o, "eta_s");
    char a[32], b[32], full[CLI_BAR * 4 + 1], rest[CLI_BAR * 4 + 1];

    if (isnan(step)) return;
    put(p, "2", "%-8s", "step");
    put(p, "", "%s", tt_show_count(llround(step), a, sizeof a));
    if (!isnan(steps)) put(p, "", " of %s", tt_show_count(llround(steps), b, sizeof b));
    if (!isnan(number_of(o, "epoch"))) put(p, "", "  epoch %.2f", number_of(o, "epoch"));
    if (!isnan(number_of(o, "epochs"))) put(p, "", " of %.6g", number_of(o, "epochs"));
    end_line(p);
    if (isnan(steps)) return;
    double done = steps > 0 ? fmin(1, step / steps) : 0;
    cli_bar(done, p->screen.utf8, full, rest);
    put(p, "32", "%s", full);
    put(p, "2", "%s", rest);
    put(p, "", " %3.0f %%", floor(100 * done));
    if (!isnan(eta) && step < steps) put(p, "", "  %s left", tt_show_time(eta, a, sizeof a));
    end_line(p);
}

static void put_numbers(picture *p, const json_t *o)
{
    const json_t *val = json_object_get(o, "val");
    tt_metrics m = cli_metrics_read(val);
    double rate = number_of(o, "samples_per_s");
    char text[200];

    if (!isnan(number_of(o, "loss"))) {
        put(p, "2", "%-8s", "loss");
        put(p, "1", "%.4g", number_of(o, "loss"));
        end_line(p);
    }
    if (val && !isnan(m.loss)) {
        cli_metrics_show(&m, text, sizeof text);
        put(p, "2", "%-8s", "val");
        put(p, "", "%s", text);
        end_line(p);
    }
    if (!(rate > 0)) return;
    put(p, "2", "%-8s", "speed");
    put(p, "", "%s", cli_rate_show(rate, number_of(o, "tokens_per_s"), text, sizeof text));
    if (!isnan(number_of(o, "lr"))) put(p, "", "  lr %.4g", number_of(o, "lr"));
    end_line(p);
}

static void put_world(picture *p, const json_t *o)
{
    double workers = number_of(o, "workers"), least = number_of(o, "least"),
           most = number_of(o, "most");

    if (isnan(workers)) return;
    put(p, "2", "%-8s", "workers");
    put(p, "", "%.0f", workers);
    if (least < most) put(p, "", " of %.0f to %.0f", least, most);
    if (!isnan(number_of(o, "threads")))
        put(p, "", ", %.0f thread%s each", number_of(o, "threads"),
            number_of(o, "threads") == 1 ? "" : "s");
    if (!isnan(least))
        put(p, "2", "; the next world %s",
            json_is_true(json_object_get(o, "standby")) ? "stands by" : "is not ready");
    if (number_of(o, "restarts") > 0) put(p, "", "; %.0f failures", number_of(o, "restarts"));
    end_line(p);
}

static void put_ranks(picture *p, const json_t *o, int room)
{
    const json_t *ranks = json_object_get(o, "ranks"), *times = json_object_get(o, "times"), *r;
    size_t i, count = json_array_size(ranks);

    if (!count) return;
    put(p, "2", "%6s %-20s %8s %-12s %10s %10s %10s %10s", "rank", "host", "process", "phase",
        "step", "compute", "wait", "data");
    end_line(p);
    json_array_foreach(ranks, i, r)
    {
        const json_t *t = json_array_get(times, i);
        if ((int)i >= room && i + 1 < count) {
            put(p, "2", "%6s and %zu more", "", count - i);
            end_line(p);
            return;
        }
        put(p, "", "%6zu %-20.20s %8.0f %-12.12s %10.0f", i, text_of(r, "host"),
            number_of(r, "pid"), text_of(r, "phase"), number_of(r, "step"));
        if (t)
            put(p, "", " %7.1f ms %7.1f ms %7.1f ms", 1e3 * number_of(t, "compute_s"),
                1e3 * number_of(t, "wait_s"), 1e3 * number_of(t, "data_s"));
        end_line(p);
    }
}

static void put_generation(picture *p, const json_t *g)
{
    double stood = number_of(g, "stood_s"), from = number_of(g, "after_step");
    int workers = (int)number_of(g, "workers");
    time_t began = (time_t)number_of(g, "began");
    char clock[32] = "", text[32];
    struct tm tm;

    if (localtime_r(&began, &tm)) strftime(clock, sizeof clock, "%H:%M:%S", &tm);
    put(p, "", "%6.0f  %s  %d worker%s", number_of(g, "generation"), clock, workers,
        workers == 1 ? "" : "s");
    if (from > 0) put(p, "", " from step %s", tt_show_count(llround(from) + 1, text, sizeof text));
    if (stood >= 0)
        put(p, "2", ", after standing still for %s", tt_show_time(stood, text, sizeof text));
    if (*text_of(g, "why")) put(p, "", "; ended: %s", text_of(g, "why"));
    end_line(p);
}

static void put_past(picture *p, const json_t *o)
{
    const json_t *list = json_object_get(o, "generations"), *events = json_object_get(o, "events");
    size_t n = json_array_size(list), m = json_array_size(events);

    if (n || m) {
        put(p, "2", "generations");
        end_line(p);
    }
    for (size_t i = n > SHOWN_GENERATIONS ? n - SHOWN_GENERATIONS : 0; i < n; i++)
        put_generation(p, json_array_get(list, i));
    for (size_t i = m > SHOWN_GENERATIONS ? m - SHOWN_GENERATIONS : 0; i < m; i++) {
        const char *text = json_string_value(json_array_get(events, i));
        put(p, "", "        %s", text ? text : "");
        end_line(p);
    }
}

static void put_alarms(picture *p, const json_t *o)
{
    const json_t *a;
    size_t i;

    json_array_foreach(json_object_get(o, "alarms"), i, a)
    {
        put(p, "31", "alarm   %s", json_string_value(a) ? json_string_value(a) : "");
        end_line(p);
    }
}

/* `rows`: how many lines there are; 0: any. */
static void draw(picture *p, const json_t *o, int rows)
{
    put_head(p, o);
    put_progress(p, o);
    put_numbers(p, o);
    put_alarms(p, o);
    put_world(p, o);
    put_ranks(p, o,
              rows ? (rows - p->lines - SHOWN_GENERATIONS - 3 > 2
                          ? rows - p->lines - SHOWN_GENERATIONS - 3
                          : 2)
                   : CLI_RANKS);
    put_past(p, o);
}

/* ---- the terminal ---- */

static volatile sig_atomic_t leaving;

static void on_signal(int sig)
{
    leaving = sig;
}

/* Lines are cut where the screen ends, by columns; styles have none. */
static void add_cut(tt_str *out, const char *line, size_t size, int width)
{
    int column = 0;

    for (size_t i = 0; i < size;) {
        size_t n = 1;
        if (line[i] == '\033') {
            while (i + n < size && line[i + n - 1] != 'm') n++;
        } else {
            while (i + n < size && ((unsigned char)line[i + n] & 0xC0) == 0x80) n++;
            if (column++ >= width) n = 0;
        }
        if (!n) { /* the styles behind it still count */
            i++;
            while (i < size && ((unsigned char)line[i] & 0xC0) == 0x80) i++;
            continue;
        }
        tt_str_put(out, line + i, n);
        i += n;
    }
    tt_str_add(out, "\033[K\n");
}

static void show_picture(const picture *p, int rows)
{
    tt_str out = {0};
    int width = cli_screen_width(STDOUT_FILENO), n = 0;

    tt_str_add(&out, "\033[H");
    for (const char *line = p->text.data, *end; line && (end = strchr(line, '\n')) && n < rows - 1;
         line = end + 1, n++)
        add_cut(&out, line, (size_t)(end - line), width);
    tt_str_add(&out, "\033[J\033[2mq leaves; the run goes on\033[0m");
    (void)tt_write_all(STDOUT_FILENO, out.data, out.size, NULL);
    tt_str_free(&out);
}

static int screen_rows(void)
{
    struct winsize w;
    return !ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) && w.ws_row > 4 ? w.ws_row : 24;
}

/* Waits for the next picture; true: whoever looks has had enough. */
static bool wait_key(void)
{
    struct pollfd f = {.fd = STDIN_FILENO, .events = POLLIN};
    char key;

    if (leaving) return true;
    if (poll(&f, 1, REFRESH_MS) <= 0) return leaving != 0;
    if (read(STDIN_FILENO, &key, 1) <= 0) return true;
    return key == 'q' || key == 'Q' || key == 3;
}

static tt_err look_on(const char *run)
{
    struct sigaction act = {.sa_handler = on_signal};
    picture p = {.screen = cli_screen_of(STDOUT_FILENO)};
    struct termios before, raw;
    bool keys = !tcgetattr(STDIN_FILENO, &before), over = false;
    json_t *o = NULL;
    tt_err err = TT_OK;

    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGHUP, &act, NULL);
    if (keys) {
        raw = before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    (void)tt_write_all(STDOUT_FILENO, "\033[?1049h", 8, NULL);
    do {
        cli_boss boss;
        json_decref(o);
        o = NULL;
        cli_boss_find(run, &boss);
        over = boss.kind == CLI_NOBODY;
        if ((err = cli_status_get(run, ASK_S, &o))) break;
        p.text.size = 0;
        p.lines = 0;
        draw(&p, o, screen_rows());
        show_picture(&p, screen_rows());
    } while (!over && !wait_key());
    (void)tt_write_all(STDOUT_FILENO, "\033[?1049l", 8, NULL);
    if (keys) tcsetattr(STDIN_FILENO, TCSANOW, &before);
    if (!err && over) fputs(p.text.data, stdout); /* how it ended stays on the screen */
    tt_str_free(&p.text);
    json_decref(o);
    return err;
}

/* ---- the command ---- */

static int top_run(const void *opts, int argc, const char **argv)
{
    const top_opts *o = opts;
    picture p = {.screen = cli_screen_of(STDOUT_FILENO)};
    char run[CLI_PATH];
    json_t *status;
    tt_err err;

    (void)argc;
    if ((err = cli_run_find(argv[0], o->runs, run))) return cli_fail(err);
    if (!o->once && !o->json && p.screen.live && isatty(STDIN_FILENO)) {
        err = look_on(run);
        return err ? cli_fail(err) : 0;
    }
    if ((err = cli_status_get(run, ASK_S, &status))) return cli_fail(err);
    if (o->json) {
        cli_json_print(stdout, status, false);
        return 0;
    }
    draw(&p, status, 0);
    fputs(p.text.data, stdout);
    tt_str_free(&p.text);
    json_decref(status);
    return 0;
}

const tt_command cli_top = {
    .name = "top",
    .args = "RUN|last",
    .args_least = 1,
    .args_most = 1,
    .brief = "watch a run",
    .about = "How far the run is, what each worker does, and its generations: every world of "
             "workers that trained it, and why it ended. q or Ctrl-C leaves; the run goes on. A "
             "run that is over, or is trained elsewhere, is shown from its folder.",
    .examples =
        (const char *const[]){"tutti top last", "watch the newest run", "tutti top last --once",
                              "print how it stands", "tutti top last --json", "for programs", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(top_opts),
    .run = top_run,
};
