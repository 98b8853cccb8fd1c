/* status: what is known of a run now, from its supervisor or, where there is none, its folder. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "store/store.h"

enum { TAIL = 256 << 10, EVENTS_MOST = 64 };

/* ---- the folder ---- */

static void take_train(json_t *o, const json_t *line)
{
    static const char *const keys[] = {"epoch", "loss", "lr", "samples_per_s", "tokens_per_s"};

    for (int i = 0; i < TT_COUNT(keys); i++)
        if (json_object_get(line, keys[i]))
            json_object_set(o, keys[i], json_object_get(line, keys[i]));
}

static void take_val(json_t *o, const json_t *line)
{
    json_t *val = json_object();

    for (int i = -1; i < TT_METRICS; i++) {
        const char *key = i < 0 ? "loss" : tt_metric_table[i].name;
        if (json_object_get(line, key)) json_object_set(val, key, json_object_get(line, key));
    }
    json_object_set_new(o, "val", val);
}

static void take_line(json_t *o, json_t *events, const json_t *line)
{
    const char *split = json_string_value(json_object_get(line, "split")),
               *event = json_string_value(json_object_get(line, "event"));

    if (split && !strcmp(split, "train")) take_train(o, line);
    if (split && !strcmp(split, "val")) take_val(o, line);
    if (!event || strcmp(event, "generation")) return;
    if (json_array_size(events) == EVENTS_MOST) json_array_remove(events, 0);
    json_array_append(events, json_object_get(line, "text"));
}

/* The end of the journal: its last numbers. A line that is being written does not count yet. */
static void read_journal(const char *run, json_t *o)
{
    char path[CLI_PATH + 32], *text = malloc(TAIL + 1), *line, *end;
    json_t *events = json_array();
    int fd;

    if (!text) tt_mem_out(TAIL);
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    int64_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t n = size > 0 ? pread(fd, text, TAIL, size > TAIL ? size - TAIL : 0) : 0;
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    line = text;
    if (size > TAIL) line = (end = strchr(text, '\n')) ? end + 1 : text + n;
    for (; (end = strchr(line, '\n')); line = end + 1) {
        json_t *j = json_loadb(line, (size_t)(end - line), 0, NULL);
        if (json_is_object(j)) take_line(o, events, j);
        json_decref(j);
    }
    free(text);
    json_object_set_new(o, "events", events);
}

static tt_err read_folder(const char *run, json_t **out)
{
    char whole[CLI_PATH];
    tt_run_info r;
    cli_boss boss;
    json_t *o;
    tt_err err;

    if ((err = tt_run_look(run, &r))) return err;
    if (!realpath(run, whole)) snprintf(whole, sizeof whole, "%s", run);
    cli_boss_find(run, &boss);
    o = json_pack("{s:o, s:o, s:s, s:I, s:f, s:f, s:[], s:[]}", "run", tt_json_text(whole), "name",
                  tt_json_text(r.name), "state", r.status, "step", (json_int_t)r.step, "since",
                  r.started, "updated", r.updated, "ranks", "alarms");
    if (boss.kind != CLI_NOBODY) {
        json_object_set_new(o, "pid", json_integer(boss.pid));
        json_object_set_new(o, "host", tt_json_text(boss.host));
        json_object_set_new(o, "state", json_string("running"));
    }
    if (boss.kind == CLI_ALONE) json_object_set_new(o, "workers", json_integer(1));
    read_journal(run, o);
    if (r.summary) json_object_set(o, "summary", r.summary);
    json_decref(r.summary);
    *out = o;
    return TT_OK;
}

/* ---- either ---- */

tt_err cli_status_get(const char *run, double timeout_s, json_t **out)
{
    char silent[512] = "";
    cli_boss boss;
    tt_err err;

    cli_boss_find(run, &boss);
    if (boss.kind == CLI_SUPERVISED && boss.here) {
        if (!cli_ask(run, json_pack("{s:s}", "ask", "status"), timeout_s, out)) {
            json_object_del(*out, "say");
            return TT_OK;
        }
        snprintf(silent, sizeof silent, "%s", tt_message());
    }
    if ((err = read_folder(run, out))) return err;
    if (*silent) json_array_append_new(json_object_get(*out, "alarms"), tt_json_text(silent));
    return TT_OK;
}
