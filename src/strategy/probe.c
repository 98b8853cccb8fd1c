/* probe: a step whose numbers are none: who has them, and leaving it out. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "strategy/inner.h"

static void take_fault(const tt_fault *f, const tt_batch *in, tt_blame *out)
{
    int n = f->samples ? f->samples : in->n; /* not told apart: all of them */

    snprintf(out->layer, sizeof out->layer, "%s", f->layer);
    out->backward = f->backward;
    out->samples = n;
    for (int i = 0; i < n && i < TT_FAULT_SAMPLES && in->place; i++) {
        int k = f->samples ? f->sample[i] : i;
        out->place[i][0] = in->place[2 * k];
        out->place[i][1] = in->place[2 * k + 1];
        out->places = i + 1;
    }
}

/* As run_unit of replicate.c does, one part after the other, until one is bad. */
static bool probe_unit(tt_strategy *s, int u, float *grad, tt_blame *out)
{
    int first, count, skip, none;
    int64_t parts = s->plan.accumulate;

    unit_samples(s, u, &first, &count);
    unit_samples(s, s->ran.a, &skip, &none);
    if (parts > count) parts = count;
    for (int64_t i = 0; i < parts; i++) {
        int64_t a = (int64_t)count * i / parts, b = (int64_t)count * (i + 1) / parts;
        tt_batch in = tt_batch_cut(s->mine, (int)(first - skip + a), (int)(b - a), &s->sample);
        tt_fault f;
        if (!tt_run_probe(tt_crew_run(s->crew, 0), &in, grad, s->seed, &f)) continue;
        out->unit = u;
        take_fault(&f, &in, out);
        return true;
    }
    return false;
}

bool tt_strategy_probe(tt_strategy *s, tt_blame *out)
{
    bool by_loss = !isfinite(s->stats.sum.loss), found = false;
    size_t flat = (size_t)s->size * sizeof(float);
    float *grad = tt_block_alloc(flat); /* others may still read what the step has made */

    *out = (tt_blame){.unit = -1};
    if (!grad) tt_mem_out(flat);
    for (int u = s->ran.a; u < s->ran.b && !found; u++)
        if (s->present[u] && (!by_loss || !isfinite(results_of(s)[u].loss)))
            found = probe_unit(s, u, grad, out);
    tt_block_free(grad, flat);
    return found;
}

void tt_strategy_skip(tt_strategy *s)
{
    size_t flat = (size_t)s->size * sizeof(float);

    if (w_at(s, s->local, 0) == w_at(s, s->local, 1)) return; /* in place: it stays as it is */
    begin_half(s);                                            /* all have kept the step before */
    memcpy(w_at(s, s->local, !s->half), w_at(s, s->local, s->half), flat);
    for (int i = 0; i < s->slot_count; i++)
        memcpy(slot_at(s, i, !s->half), slot_at(s, i, s->half), flat);
    s->half = !s->half;
    tt_model_bind(s->model, w_at(s, s->local, s->half));
    strategy_refresh(s);
}
