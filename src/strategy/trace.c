/* trace: what each thread did when, for a window of steps, as Chrome and Perfetto show it.
 *
 * Every thread writes into a list of its own, made at the start, so recording costs a few
 * nanoseconds and no lock. At the end rank 0 gets all lists. Clocks of hosts differ: rank 0 asks
 * each rank for the time, many times, and takes the answer that came back fastest; it is right to
 * half of that way and back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"

enum { EVENTS = 1 << 16, ROUNDS = 30, MESSAGES = 900 /* the lane of exchanges */ };

static const char *const names[] = {
    [TRACE_STEP] = "step",          [TRACE_DATA] = "data",
    [TRACE_FORWARD] = "forward",    [TRACE_BACKWARD] = "backward",
    [TRACE_SUM] = "sum bucket",     [TRACE_WAIT] = "wait",
    [TRACE_OPTIM] = "optimiser",    [TRACE_BUCKET] = "exchange bucket",
    [TRACE_READY] = "bucket ready", [TRACE_WEIGHTS] = "new weights"};

typedef struct event {
    double begin, end;
    int kind, number;
    int64_t step;
} event;

typedef struct lane {
    event *events;
    int count;
    int64_t lost; /* that there was no room for */
} lane;

struct trace {
    lane *lanes; /* of each thread, and one for messages */
    int count;
    bool on;
    double offset; /* added to this rank's clock it is rank 0's */
    double error;
};

tt_err tt_strategy_trace(tt_strategy *s, bool on)
{
    struct trace *t = s->trace;

    if (!t && on) {
        int threads = tt_crew_size(s->crew);
        if (!(t = calloc(1, sizeof *t)) ||
            !(t->lanes = calloc((size_t)threads + 1, sizeof *t->lanes)))
            tt_mem_out(sizeof *t);
        t->count = threads + 1;
        s->trace = t;
        for (int i = 0; i < t->count; i++)
            if (!(t->lanes[i].events = malloc(EVENTS * sizeof(event))))
                return tt_fail(TT_ENOMEM, "no memory for a trace of %d threads", threads);
    }
    if (t) t->on = on;
    return TT_OK;
}

bool trace_on(const tt_strategy *s)
{
    return s->trace && s->trace->on;
}

void trace_add(tt_strategy *s, int me, trace_kind kind, int number, double begin, double end)
{
    struct trace *t = s->trace;

    if (!t || !t->on) return;
    lane *l = &t->lanes[me < 0 ? t->count - 1 : me];
    if (l->count == EVENTS)
        l->lost++;
    else
        l->events[l->count++] = (event){begin, end, kind, number, s->step + 1};
}

void trace_close(tt_strategy *s)
{
    if (!s->trace) return;
    for (int i = 0; i < s->trace->count; i++) free(s->trace->lanes[i].events);
    free(s->trace->lanes);
    free(s->trace);
}

/* ---- Clocks ---- */

static tt_err align(tt_strategy *s)
{
    const tt_group *g = tt_world_all(s->world);
    struct trace *t = s->trace;
    double best = 1e30;
    tt_err err;

    for (int r = 1; r < g->size; r++)
        for (int i = 0; i < ROUNDS; i++) {
            double sent = tt_clock_s(), theirs = 0, got;
            tt_op op;
            if (g->me == 0) {
                if ((err = tt_send_start(g, r, TAG_CLOCK, &sent, sizeof sent, &op)) ||
                    (err = tt_op_wait(&op)) ||
                    (err = tt_recv_start(g, r, TAG_CLOCK, &theirs, sizeof theirs, &op)) ||
                    (err = tt_op_wait(&op)))
                    return err;
                double answer[2] = {sent, tt_clock_s()};
                if ((err = tt_send_start(g, r, TAG_CLOCK, answer, sizeof answer, &op)) ||
                    (err = tt_op_wait(&op)))
                    return err;
            } else if (g->me == r) {
                double seen[2];
                if ((err = tt_recv_start(g, 0, TAG_CLOCK, &sent, sizeof sent, &op)) ||
                    (err = tt_op_wait(&op)))
                    return err;
                got = tt_clock_s();
                if ((err = tt_send_start(g, 0, TAG_CLOCK, &got, sizeof got, &op)) ||
                    (err = tt_op_wait(&op)) ||
                    (err = tt_recv_start(g, 0, TAG_CLOCK, seen, sizeof seen, &op)) ||
                    (err = tt_op_wait(&op)))
                    return err;
                if (seen[1] - seen[0] < best) {
                    best = seen[1] - seen[0];
                    t->offset = (seen[0] + seen[1]) / 2 - got;
                    t->error = best / 2;
                }
            }
        }
    return TT_OK;
}

/* ---- Writing ---- */

typedef struct head { /* what a rank sends before its events */
    int threads;
    int64_t count, lost;
    double offset, error;
} head;

typedef struct sheet {
    FILE *file;
    double zero; /* rank 0's clock at the first event: the trace begins there */
    bool any;
} sheet;

static void put_meta(sheet *o, int rank, int tid, const char *what, const char *text)
{
    fprintf(o->file,
            "%s{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
            o->any ? ",\n" : "\n", what, rank, tid, text);
    o->any = true;
}

static void put_event(sheet *o, int rank, int tid, const event *e, double offset)
{
    double at = 1e6 * (e->begin + offset - o->zero), took = 1e6 * (e->end - e->begin);
    char name[48];

    if (e->kind == TRACE_SUM || e->kind == TRACE_BUCKET || e->kind == TRACE_READY)
        snprintf(name, sizeof name, "%s %d", names[e->kind], e->number);
    else
        snprintf(name, sizeof name, "%s", names[e->kind]);
    fprintf(o->file, "%s{\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,", o->any ? ",\n" : "\n",
            name, rank, tid, at);
    o->any = true;
    if (e->kind == TRACE_READY) {
        fprintf(o->file, "\"ph\":\"i\",\"s\":\"t\",\"args\":{\"step\":%lld}}", (long long)e->step);
    } else if (e->kind == TRACE_BUCKET) { /* they overlap: begun and ended by id */
        fprintf(
            o->file,
            "\"ph\":\"b\",\"cat\":\"exchange\",\"id\":\"%d.%lld.%d\",\"args\":{\"step\":%lld}},\n"
            "{\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"ph\":\"e\",\"cat\":"
            "\"exchange\",\"id\":\"%d.%lld.%d\"}",
            rank, (long long)e->step, e->number, (long long)e->step, name, rank, tid, at + took,
            rank, (long long)e->step, e->number);
    } else {
        fprintf(o->file, "\"ph\":\"X\",\"dur\":%.3f,\"cat\":\"%s\",\"args\":{\"step\":%lld}}", took,
                e->kind == TRACE_WAIT || e->kind == TRACE_SUM || e->kind == TRACE_WEIGHTS
                    ? "communication"
                    : "compute",
                (long long)e->step);
    }
}

/* Of each rank: head, then for each event its lane and itself. */
typedef struct told {
    int lane;
    event e;
} told;

static told *pack(const struct trace *t, head *h)
{
    told *all, *to;

    *h = (head){.threads = t->count - 1, .offset = t->offset, .error = t->error};
    for (int i = 0; i < t->count; i++) {
        h->count += t->lanes[i].count;
        h->lost += t->lanes[i].lost;
    }
    if (!(all = to = malloc((size_t)(h->count + 1) * sizeof *all))) tt_mem_out(sizeof *all);
    for (int i = 0; i < t->count; i++)
        for (int k = 0; k < t->lanes[i].count; k++)
            *to++ = (told){i == t->count - 1 ? MESSAGES : i, t->lanes[i].events[k]};
    return all;
}

static void put_rank(tt_strategy *s, sheet *o, int rank, const head *h, const told *all)
{
    char text[128];

    snprintf(text, sizeof text, "rank %d on %s", rank, s->world->peer[rank].name);
    put_meta(o, rank, 0, "process_name", text);
    for (int i = 0; i < h->threads; i++) {
        snprintf(text, sizeof text, "thread %d", i);
        put_meta(o, rank, i, "thread_name", text);
    }
    put_meta(o, rank, MESSAGES, "thread_name", "messages");
    for (int64_t i = 0; i < h->count; i++) put_event(o, rank, all[i].lane, &all[i].e, h->offset);
}

static double earliest(const told *all, int64_t count)
{
    double t = 1e300;
    for (int64_t i = 0; i < count; i++)
        if (all[i].e.begin < t) t = all[i].e.begin;
    return count ? t : 0;
}

static tt_err receive(tt_strategy *s, int rank, head *h, told **all)
{
    const tt_group *g = tt_world_all(s->world);
    tt_op op;
    tt_err err;

    *all = NULL;
    if ((err = tt_recv_start(g, rank, TAG_CLOCK, h, sizeof *h, &op)) || (err = tt_op_wait(&op)))
        return err;
    if (!(*all = malloc((size_t)(h->count + 1) * sizeof **all))) tt_mem_out(sizeof **all);
    if ((err = tt_recv_start(g, rank, TAG_CLOCK, *all, (size_t)h->count * sizeof **all, &op)))
        return err;
    return tt_op_wait(&op);
}

static tt_err write_all(tt_strategy *s, const char *path, const head *mine, const told *own)
{
    sheet o = {.file = fopen(path, "w"), .zero = earliest(own, mine->count)};
    tt_str notes = {0};
    tt_err err = TT_OK;

    if (o.file) fprintf(o.file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (int r = 0; r < s->world->size && !err; r++) {
        head h = *mine;
        told *all = NULL;
        if (r && (err = receive(s, r, &h, &all))) break; /* also when there is no file to write */
        if (o.file) put_rank(s, &o, r, &h, r ? all : own);
        tt_str_add(&notes, "%s\"rank %d\":\"clock %+.1f us, +-%.1f us; %lld events did not fit\"",
                   r ? "," : "", r, 1e6 * h.offset, 1e6 * h.error, (long long)h.lost);
        free(all);
    }
    if (!o.file && !err) err = tt_fail(TT_EIO, "cannot write %s", path);
    if (o.file) {
        fprintf(o.file, "\n],\"otherData\":{%s}}\n", notes.data ? notes.data : "");
        bool bad = ferror(o.file) != 0;
        if ((fclose(o.file) || bad) && !err) err = tt_fail(TT_EIO, "writing %s failed", path);
    }
    tt_str_free(&notes);
    return err;
}

tt_err tt_strategy_trace_write(tt_strategy *s, const char *path)
{
    const tt_group *g = tt_world_all(s->world);
    head h;
    told *own;
    tt_op op;
    tt_err err;

    if (!s->trace) return TT_OK;
    s->trace->on = false;
    if ((err = align(s))) return tt_context(err, "clocks for the trace");
    own = pack(s->trace, &h);
    if (!g->me) {
        err = write_all(s, path, &h, own);
    } else if (!(err = tt_send_start(g, 0, TAG_CLOCK, &h, sizeof h, &op)) &&
               !(err = tt_op_wait(&op)) &&
               !(err = tt_send_start(g, 0, TAG_CLOCK, own, (size_t)h.count * sizeof *own, &op))) {
        err = tt_op_wait(&op);
    }
    free(own);
    trace_close(s);
    s->trace = NULL;
    return err;
}
