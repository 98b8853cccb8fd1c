#include "ledger.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- witness ---- */

void tt_witness_add(tt_witness *w, uint64_t from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) w->sum += tt_mix(from + i);
    w->count += count;
}

tt_witness tt_witness_whole(uint64_t count)
{
    tt_witness w = {0};

    tt_witness_add(&w, 0, count);
    return w;
}

/* ---- lines ---- */

static const char *const KIND[TT_RECORDS] = {"go",       "lost",  "found", "told",
                                             "rollback", "epoch", "end"};

/* Which fields a record has, besides its kind. */
enum {
    GENERATION = 1,
    ATTEMPT = 2,
    STEP = 4,
    MADE = 8,
    WORKERS = 16,
    CODE = 32,
    EPOCH = 64, /* with samples and witness */
};
static const unsigned FIELDS[TT_RECORDS] = {
    [TT_REC_GO] = GENERATION | WORKERS,
    [TT_REC_LOST] = GENERATION | ATTEMPT | STEP,
    [TT_REC_FOUND] = GENERATION | ATTEMPT | STEP | MADE,
    [TT_REC_TOLD] = GENERATION | STEP,
    [TT_REC_ROLLBACK] = GENERATION | ATTEMPT | STEP,
    [TT_REC_EPOCH] = GENERATION | EPOCH,
    [TT_REC_END] = STEP | CODE,
};

static void put(json_t *o, const char *key, json_t *value)
{
    if (json_object_set_new(o, key, value)) tt_mem_out(sizeof *value);
}

static void put_int(json_t *o, bool wanted, const char *key, int64_t value)
{
    if (wanted) put(o, key, json_integer(value));
}

void tt_record_print(const tt_record *r, tt_str *out)
{
    unsigned has = FIELDS[r->kind];
    json_t *o = json_object();
    char sum[17], *text;

    put(o, "ledger", json_string(KIND[r->kind]));
    put_int(o, has & GENERATION, "generation", r->generation);
    put_int(o, has & ATTEMPT, "attempt", r->attempt);
    put_int(o, has & STEP, "step", r->step);
    put_int(o, has & MADE, "made", r->made);
    put_int(o, has & WORKERS, "workers", r->workers);
    put_int(o, has & CODE, "code", r->code);
    if (has & EPOCH) {
        snprintf(sum, sizeof sum, "%016llx", (unsigned long long)r->witness.sum);
        put_int(o, true, "epoch", r->epoch);
        put_int(o, true, "samples", (int64_t)r->samples);
        put_int(o, true, "count", (int64_t)r->witness.count);
        put(o, "witness", json_string(sum));
    }
    if (*r->why) { /* text from elsewhere may be no UTF-8 */
        json_t *why = json_string(r->why);
        put(o, "why", why ? why : json_string("?"));
    }
    text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    if (!text) tt_mem_out(256);
    tt_str_add(out, "%s\n", text);
    free(text);
}

/* An integer from 0 to most; else the name of the key becomes *bad. */
static int64_t get_int(const json_t *o, bool wanted, const char *key, int64_t most,
                       const char **bad)
{
    const json_t *v = json_object_get(o, key);

    if (!wanted) return 0;
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= most)
        return json_integer_value(v);
    *bad = key;
    return 0;
}

static uint64_t get_sum(const json_t *o, const char **bad)
{
    const char *text = json_string_value(json_object_get(o, "witness"));
    unsigned long long sum = 0;
    int used = 0;

    if (text && strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16 &&
        sscanf(text, "%16llx%n", &sum, &used) == 1 && used == 16)
        return sum;
    *bad = "witness";
    return 0;
}

static int kind_of(const char *name)
{
    int k = 0;

    while (k < TT_RECORDS && strcmp(name, KIND[k])) k++;
    return k;
}

static tt_err take_fields(const json_t *o, tt_record *out)
{
    const char *name = json_string_value(json_object_get(o, "ledger")), *why, *bad = NULL;
    unsigned has;

    *out = (tt_record){0};
    out->kind = (tt_record_kind)kind_of(name ? name : "");
    if (out->kind == TT_RECORDS)
        return tt_fail(TT_EFORMAT, "a record of the ledger has no known kind");
    has = FIELDS[out->kind];
    out->generation = (uint32_t)get_int(o, has & GENERATION, "generation", UINT32_MAX, &bad);
    out->attempt = (uint32_t)get_int(o, has & ATTEMPT, "attempt", UINT32_MAX, &bad);
    out->step = get_int(o, has & STEP, "step", INT64_MAX, &bad);
    out->made = (uint32_t)get_int(o, has & MADE, "made", UINT32_MAX, &bad);
    out->workers = (int)get_int(o, has & WORKERS, "workers", INT32_MAX, &bad);
    out->code = (int)get_int(o, has & CODE, "code", INT32_MAX, &bad);
    if (has & EPOCH) {
        out->epoch = get_int(o, true, "epoch", INT64_MAX, &bad);
        out->samples = (uint64_t)get_int(o, true, "samples", INT64_MAX, &bad);
        out->witness.count = (uint64_t)get_int(o, true, "count", INT64_MAX, &bad);
        out->witness.sum = get_sum(o, &bad);
    }
    why = json_string_value(json_object_get(o, "why"));
    if (why) snprintf(out->why, sizeof out->why, "%s", why);
    return bad ? tt_fail(TT_EFORMAT, "the record '%s' of the ledger has no sound '%s'", name, bad)
               : TT_OK;
}

tt_err tt_record_parse(const char *line, size_t size, tt_record *out, bool *ours)
{
    json_error_t why;
    json_t *o = json_loadb(line, size, JSON_REJECT_DUPLICATES, &why);
    tt_err err = TT_OK;

    *ours = false;
    if (!json_is_object(o)) {
        err = tt_fail(TT_EFORMAT, "no JSON object: %s", o ? "another value" : why.text);
    } else if (json_object_get(o, "ledger")) {
        *ours = true;
        err = take_fields(o, out);
    }
    json_decref(o);
    return err;
}

/* ---- the judge ---- */

__attribute__((format(printf, 2, 3))) static const char *violated(tt_ledger *l, const char *fmt,
                                                                  ...)
{
    static _Thread_local char what[sizeof l->what];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (!l->bad++) snprintf(l->what, sizeof l->what, "%s", what);
    return what;
}

static const char *take_go(tt_ledger *l, const tt_record *r)
{
    uint32_t before = l->generation;

    l->generation = r->generation;
    if (l->found) l->before = l->workers;
    l->workers = r->workers;
    l->found = false;
    if (before && r->generation <= before)
        return violated(l, "generation %u was active after generation %u", r->generation, before);
    return NULL;
}

/* A line of history may begin before the last step of the one before; what is in between is done
 * again, and so may be its epochs. */
static void open_line(tt_ledger *l, tt_label to, uint32_t by)
{
    if (l->committed && to.step < l->told.label.step)
        l->steps_lost += (uint64_t)(l->told.label.step - to.step);
    l->told = (tt_told){to, by};
    l->committed = true;
    l->epochs = false;
}

static const char *take_line(tt_ledger *l, const tt_record *r)
{
    uint32_t before = l->told.label.attempt;
    bool first = !l->committed;

    open_line(l, (tt_label){r->generation, r->attempt, r->step}, r->generation);
    if (!first && r->attempt <= before)
        return violated(l, "generation %u: attempt %u was opened after attempt %u", r->generation,
                        r->attempt, before);
    return NULL;
}

static const char *take_found(tt_ledger *l, const tt_record *r)
{
    tt_told before = l->told;
    tt_label now = {r->made, r->attempt, r->step}, was = before.label;
    bool first = !l->committed, again = l->found;

    l->found = true;
    /* A rollback that was committed when its world died may not have been told. */
    if (first || r->attempt > was.attempt)
        open_line(l, now, r->generation);
    else
        l->told = (tt_told){now, r->generation};
    if (again) return violated(l, "generation %u found its state twice", r->generation);
    if (first || tt_told_leads_to(&before, now)) return NULL;
    if (r->attempt < was.attempt)
        return violated(l, "generation %u went on from attempt %u, but attempt %u was committed",
                        r->generation, r->attempt, was.attempt);
    if (r->attempt == was.attempt && r->step < was.step)
        return violated(l,
                        "generation %u went on from step %lld, but step %lld was committed: steps "
                        "were lost, or done twice",
                        r->generation, (long long)r->step, (long long)was.step);
    return violated(l,
                    "generation %u went on from step %lld of generation %u, but generation %u had "
                    "gone on from elsewhere since",
                    r->generation, (long long)r->step, r->made, before.by);
}

static const char *take_told(tt_ledger *l, const tt_record *r)
{
    int64_t before = l->told.label.step;

    if (!l->found)
        return violated(l, "generation %u committed step %lld before it had found its state",
                        r->generation, (long long)r->step);
    if (r->step == before) return NULL; /* the state it found */
    l->told.label.step = r->step;
    l->told.label.generation = r->generation;
    if (r->step < before)
        return violated(l, "generation %u: step %lld was committed after step %lld", r->generation,
                        (long long)r->step, (long long)before);
    return NULL;
}

bool tt_ledger_has(const tt_ledger *l, const tt_record *r, bool again)
{
    if (!l->epochs || r->epoch > l->epoch) return false;
    if (r->epoch < l->epoch) return again;
    return !memcmp(&l->witness, &r->witness, sizeof l->witness);
}

static const char *take_epoch(tt_ledger *l, const tt_record *r)
{
    tt_witness last = l->witness;
    int64_t before = l->epoch;
    bool first = !l->epochs;

    l->epoch = r->epoch;
    l->witness = r->witness;
    l->epochs = true;
    if (r->witness.count != r->samples)
        return violated(l, "epoch %lld: %llu samples were taken, it has %llu", (long long)r->epoch,
                        (unsigned long long)r->witness.count, (unsigned long long)r->samples);
    if (l->whole.count != r->samples) l->whole = tt_witness_whole(r->samples);
    if (r->witness.sum != l->whole.sum)
        return violated(l, "epoch %lld: a sample was taken twice, and another one not at all",
                        (long long)r->epoch);
    if (!first && r->epoch < before)
        return violated(l, "epoch %lld was over after epoch %lld", (long long)r->epoch,
                        (long long)before);
    if (!first && r->epoch == before && memcmp(&r->witness, &last, sizeof last))
        return violated(l, "epoch %lld was told twice, with two witnesses", (long long)r->epoch);
    return NULL;
}

static const char *take_end(tt_ledger *l, const tt_record *r)
{
    l->ended = true;
    l->code = r->code;
    if (l->committed && r->step < l->told.label.step)
        return violated(l, "the run ended at step %lld, but step %lld was committed",
                        (long long)r->step, (long long)l->told.label.step);
    return NULL;
}

const char *tt_ledger_take(tt_ledger *l, const tt_record *r)
{
    bool first = !l->any, over = l->ended;

    l->any = true;
    if (r->kind == TT_REC_END) return take_end(l, r);
    /* A run that was stopped may be resumed: it begins with GO again. */
    if (over && r->kind != TT_REC_GO)
        return violated(l, "after the end of the run there is a record '%s'", KIND[r->kind]);
    l->ended = false;
    if (r->kind == TT_REC_GO) return take_go(l, r);
    if (first) return violated(l, "the first record is '%s': no world was active", KIND[r->kind]);
    if (r->generation != l->generation)
        return violated(l, "a record '%s' of generation %u while generation %u was active",
                        KIND[r->kind], r->generation, l->generation);
    switch (r->kind) {
    case TT_REC_LOST:
    case TT_REC_ROLLBACK:
        return take_line(l, r);
    case TT_REC_FOUND:
        return take_found(l, r);
    case TT_REC_TOLD:
        return take_told(l, r);
    default:
        return take_epoch(l, r);
    }
}

tt_err tt_ledger_read(tt_ledger *l, const char *text, size_t size)
{
    int number = 1;

    for (size_t at = 0; at < size; number++) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t n;
        tt_record r;
        bool ours;
        tt_err err;
        if (!end) return TT_OK; /* torn: it never counted */
        n = (size_t)(end - (text + at));
        err = tt_record_parse(text + at, n, &r, &ours);
        if (err) return tt_context(err, "line %d", number);
        if (ours) tt_ledger_take(l, &r);
        at += n + 1;
    }
    return TT_OK;
}
