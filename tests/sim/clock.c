/* Chance, time, and what is remembered of a run. */

/* ---- chance ---- */

static uint64_t draw(void)
{
    return tt_mix(S.seed * 0x9E3779B97F4A7C15u + S.draws++);
}

static double uniform(double least, double most)
{
    return least + (most - least) * (double)(draw() >> 11) * 0x1p-53;
}

static int below(int n)
{
    return (int)(draw() % (uint64_t)n);
}

static bool chance(double p)
{
    return uniform(0, 1) < p;
}

/* ---- violations and trace ---- */

static void violate(const char *fmt, ...)
{
    va_list ap;

    if (S.bad) return; /* the first one counts */
    S.bad = true;
    va_start(ap, fmt);
    vsnprintf(S.what, sizeof S.what, fmt, ap);
    va_end(ap);
    TRACE("VIOLATED: %s", S.what);
}

static void trace_line(const char *fmt, ...)
{
    char *line = S.trace[S.traced++ % TRACE_LINES];
    int n = snprintf(line, sizeof *S.trace, "%9.4f ", S.now);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line + n, sizeof *S.trace - (size_t)n, fmt, ap);
    va_end(ap);
}

void tt_plant_found(const char *cond)
{
    violate("asserted: %s", cond);
}

/* ---- events: a binary heap, by time and then by age ---- */

static bool before(const event *a, const event *b)
{
    return a->t < b->t || (a->t == b->t && a->seq < b->seq);
}

static void at(double t, kind k, int w, int rank, uint32_t serial, int arg)
{
    event e = {t, S.seq++, serial, (uint8_t)k, (uint8_t)w, (uint8_t)rank, 0, arg};
    int i = S.heaped++;

    if (S.heaped > (int)(sizeof S.heap / sizeof *S.heap)) {
        S.heaped--;
        violate("too many events");
        return;
    }
    for (; i && before(&e, &S.heap[(i - 1) / 2]); i = (i - 1) / 2) S.heap[i] = S.heap[(i - 1) / 2];
    S.heap[i] = e;
}

static event next_event(void)
{
    event first = S.heap[0], last = S.heap[--S.heaped];
    int i = 0;

    for (int child; (child = 2 * i + 1) < S.heaped; i = child) {
        if (child + 1 < S.heaped && before(&S.heap[child + 1], &S.heap[child])) child++;
        if (!before(&S.heap[child], &last)) break;
        S.heap[i] = S.heap[child];
    }
    S.heap[i] = last;
    return first;
}

static void run_soon(proc *p, double delay)
{
    at(S.now + delay, EV_RUN, (int)(p->w - S.world), p->rank, p->serial, 0);
}
