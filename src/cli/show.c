/* How results look: JSON, metrics, shell words, and what the terminal can do. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

json_t *cli_json_real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

json_t *cli_json_metrics(const tt_metrics *m)
{
    json_t *j = json_object();

    if (!isnan(m->loss)) json_object_set_new(j, "loss", cli_json_real(m->loss));
    for (int i = 0; i < TT_METRICS; i++)
        if (!isnan(tt_metric_of(m, i)))
            json_object_set_new(j, tt_metric_table[i].name, cli_json_real(tt_metric_of(m, i)));
    json_object_set_new(j, "samples", json_integer(m->samples));
    return j;
}

void cli_json_print(FILE *f, json_t *j, bool lines)
{
    char *text;

    TT_ASSERT(j); /* json_pack refuses text that is not UTF-8, and objects that are none */
    text = json_dumps(j, (lines ? JSON_COMPACT : JSON_INDENT(2)) | JSON_REAL_PRECISION(12));
    if (!text) tt_mem_out(0);
    fprintf(f, "%s\n", text);
    free(text);
    json_decref(j);
}

void cli_metrics_show(const tt_metrics *m, char *buf, size_t size)
{
    int n = snprintf(buf, size, "loss %.4g", m->loss);

    for (int i = 0; i < TT_METRICS && n < (int)size; i++) {
        const tt_metric *k = &tt_metric_table[i];
        double v = tt_metric_of(m, i);
        if (isnan(v)) continue;
        n += snprintf(buf + n, size - (size_t)n, k->percent ? "  %s %.2f %%" : "  %s %.4f", k->name,
                      k->percent ? 100 * v : v);
    }
}

tt_metrics cli_metrics_read(const json_t *val)
{
    tt_metrics m = tt_metrics_none();
    const json_t *loss = json_object_get(val, "loss");

    if (json_is_number(loss)) m.loss = json_number_value(loss);
    for (int i = 0; i < TT_METRICS; i++) {
        const json_t *v = json_object_get(val, tt_metric_table[i].name);
        if (json_is_number(v)) *tt_metric_at(&m, i) = json_number_value(v);
    }
    return m;
}

char *cli_rate_show(double samples, double tokens, char *buf, size_t size)
{
    double rate = tokens > 0 ? tokens : samples;
    char count[32];

    if (rate < 10) /* large models on small machines */
        snprintf(count, sizeof count, "%.2f", rate);
    else
        tt_show_count(llround(rate), count, sizeof count);
    snprintf(buf, size, "%s %s/s", count, tokens > 0 ? "tokens" : "samples");
    return buf;
}

void cli_quote(const char *word, tt_str *out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./+-@%^=:,";

    if (*word && strspn(word, plain) == strlen(word)) {
        tt_str_add(out, "%s", word);
        return;
    }
    tt_str_add(out, "'");
    for (; *word; word++) {
        if (*word == '\'')
            tt_str_add(out, "'\\''");
        else
            tt_str_put(out, word, 1);
    }
    tt_str_add(out, "'");
}

void cli_time_show(double wall_s, char *buf, size_t size)
{
    time_t t = (time_t)wall_s;
    struct tm tm;

    if (!localtime_r(&t, &tm) || !strftime(buf, size, "%Y-%m-%d %H:%M", &tm))
        snprintf(buf, size, "?");
}

static bool is_set(const char *name)
{
    const char *v = getenv(name);
    return v && *v;
}

/* Blocks and bars are UTF-8. Only a locale that names another charset says no: in containers there
 * is often none at all, and their terminals are UTF-8 all the same. */
static bool has_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};

    for (int i = 0; i < TT_COUNT(names); i++) {
        const char *v = getenv(names[i]);
        if (!v || !*v) continue;
        return !strchr(v, '.') || strcasestr(v, "utf8") || strcasestr(v, "utf-8");
    }
    return true;
}

cli_screen cli_screen_of(int fd)
{
    const char *term = getenv("TERM");
    bool dumb = term && !strcmp(term, "dumb"), tty = isatty(fd);
    bool forced = is_set("FORCE_COLOR") || is_set("CLICOLOR_FORCE");

    return (cli_screen){
        .live = tty && !dumb,
        .color = !is_set("NO_COLOR") && (forced || (tty && !dumb)),
        .utf8 = has_utf8(),
    };
}

int cli_screen_width(int fd)
{
    const char *columns = getenv("COLUMNS");
    struct winsize w;
    int64_t n;

    if (columns && tt_parse_int(columns, &n) && n >= 20 && n <= 1000) return (int)n;
    if (!ioctl(fd, TIOCGWINSZ, &w) && w.ws_col >= 20) return w.ws_col;
    return 80;
}
