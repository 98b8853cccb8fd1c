/* What the state is and should be, and the checks of everything that is committed or found. */

static const char *show(tt_label l)
{
    static char text[4][64];
    static int next;
    char *t = text[next++ % 4];

    snprintf(t, sizeof *text, "g%u a%u.%u s%lld", l.generation, l.attempt >> 12, l.attempt & 4095,
             (long long)l.step);
    return t;
}

/* In the simulator's own order, whatever is planted in the product's. */
static int older(tt_label a, tt_label b)
{
    if (a.generation != b.generation) return a.generation < b.generation;
    if (a.attempt != b.attempt) return a.attempt < b.attempt;
    return a.step < b.step;
}

static bool leads_to(tt_told t, tt_label l)
{
    if (l.generation < t.by && (l.generation != t.label.generation || l.attempt != t.label.attempt))
        return false;
    return l.attempt > t.label.attempt || (l.attempt == t.label.attempt && l.step >= t.label.step);
}

static bool same_label(tt_label a, tt_label b)
{
    return a.generation == b.generation && a.attempt == b.attempt && a.step == b.step;
}

/* ---- content ---- */

static uint64_t opt_of(uint64_t v, int part, int parts)
{
    return tt_mix(v ^ (uint64_t)(part * 64 + parts));
}

static content initial(void)
{
    content c = {.v = tt_mix(S.seed), .epoch = -1, .parts = 1};

    c.check = tt_mix(c.v);
    c.opt = opt_of(c.v, 0, 1);
    return c;
}

/* Which part of how many; what it holds of the weights stays. */
static content cut(content c, int part, int parts)
{
    c.part = part;
    c.parts = parts;
    c.opt = opt_of(c.v, part, parts);
    return c;
}

static uint64_t next_v(uint64_t v, tt_label from, uint32_t generation)
{
    /* In exact mode nothing matters but the step. */
    uint64_t line = S.exact ? 0 : (uint64_t)generation << 32 | from.attempt;

    return tt_mix(v + tt_mix((uint64_t)from.step) + line * 0xD1342543DE82EF95u);
}

static void count_samples(content *c, int64_t step)
{
    tt_witness_add(&c->witness, (uint64_t)(step % EPOCH_STEPS) * STEP_SAMPLES, STEP_SAMPLES);
}

/* The state after the step that follows `from`. */
static content next_content(content c, tt_label from, uint32_t generation)
{
    if (!PLANTED(PLANT_COUNT_TWICE)) count_samples(&c, from.step);
    c.v = next_v(c.v, from, generation);
    c.check = tt_mix(c.v);
    if ((from.step + 1) % EPOCH_STEPS == 0) {
        c.epoch = from.step / EPOCH_STEPS;
        c.last = c.witness;
        c.witness = (tt_witness){0};
    }
    return cut(c, c.part, c.parts);
}

static uint64_t hash_of(const content *c)
{
    return tt_mix(c->v) | 1;
}

static bool is_whole(const content *c)
{
    return c->check == tt_mix(c->v) && c->opt == opt_of(c->v, c->part, c->parts);
}

/* Is this part in it, as it should be: its own, or a copy? */
static bool holds(const content *c, int part)
{
    if (!is_whole(c) || part == c->part) return is_whole(c);
    for (int i = 0; i < c->copies; i++)
        if (c->copy_part[i] == part) return c->copy_opt[i] == opt_of(c->v, part, c->parts);
    return false;
}

/* ---- the truth of each label ---- */

static truth *truth_of(tt_label l)
{
    uint64_t k =
        tt_mix((uint64_t)l.generation << 40 ^ (uint64_t)l.attempt << 16 ^ (uint64_t)l.step);
    truth *t;

    for (int i = 0; i < TRUTHS; i++) {
        t = &S.truth[(k + (uint64_t)i) % TRUTHS];
        if (t->run != S.run || same_label(t->label, l)) return t;
    }
    violate("too many labels");
    return S.truth;
}

/* Invariants 3 and 4: all copies of a label are the same, and what they should be. */
static void check_flip(const proc *p, const content *c, tt_label l)
{
    truth *t = truth_of(l);

    if (!is_whole(c)) {
        violate("rank %d committed %s, which is not whole", p->rank, show(l));
        return;
    }
    if (S.exact && c->v != S.golden[l.step]) {
        violate("rank %d committed %s, which is not what an undisturbed run has", p->rank, show(l));
        return;
    }
    if (t->run != S.run)
        *t = (truth){S.run, l, c->v, c->parts};
    else if (t->v != c->v || t->parts != c->parts)
        violate("rank %d committed another %s than a rank before", p->rank, show(l));
}

/* All ranks of a world have flipped. */
static void committed(world *w)
{
    tt_label last = S.committed.label;

    if (w->generation < S.boss.go_generation) return; /* a world that nobody waits for */
    if (!w->found_recorded)
        violate("%s was committed before the ledger says from where", show(w->label));
    if (S.has_committed && w->label.attempt == last.attempt && w->label.step > last.step + 1)
        violate("%s was committed after %s: a step is missing", show(w->label), show(last));
    S.committed = (tt_told){w->label, (uint32_t)w->generation};
    S.committed_parts = w->parts;
    S.has_committed = true;
    S.committed_on = S.committed_gone = 0;
    for (int r = 0; r < w->members; r++) {
        unsigned h = 1u << w->proc[r].host;
        S.committed_on |= h;
        if (S.host[w->proc[r].host].died_at > w->made_at) S.committed_gone |= h;
    }
    S.committed_twice = (!S.sharded || S.mirrored) && __builtin_popcount(S.committed_on) > 1;
    S.committed_at = S.now;
    S.commits++;
    if (!w->stepped) return;
    S.boss.barren = 0;
    if (++w->commits == 20) S.boss.unproved = 0;
    for (int r = 0; r < w->members; r++) S.boss.slot[w->proc[r].host][w->proc[r].slot].failures = 0;
}

/* ---- what a world finds ---- */

static vault *vault_of(int h, int slot)
{
    return &S.host[h].slot[slot];
}

static bool has_host(const world *w, int h)
{
    for (int r = 0; r < w->members; r++)
        if (w->proc[r].host == h) return true;
    return false;
}

/* The first word of the note of a state, as it is committed or when it is closed. */
static uint64_t note_of(tt_label l, bool closed)
{
    uint64_t line = (uint64_t)l.generation << 32 | l.attempt;

    return tt_mix(tt_mix(line) + (uint64_t)l.step) + closed;
}

static void check_note(const vault *v, int half, const tt_commit *c)
{
    const uint64_t *note = v->note[half][c->noted & 1];

    if (note[1] != tt_mix(note[0]) ||
        (note[0] != note_of(c->label, false) && note[0] != note_of(c->label, true)))
        violate("the note of %s is torn, or another's", show(c->label));
}

static void add_found(world *w, int h, int slot)
{
    vault *v = vault_of(h, slot);

    for (int half = 0; half < 2; half++) {
        tt_commit c;
        if (!tt_commit_read(&v->head, half, &c)) continue;
        check_note(v, half, &c);
        const content *there = &v->half[half];
        tt_found f = {
            .host = h,
            .slot = slot,
            .half = half,
            .current = tt_commit_current(&v->head) == half,
            .label = c.label,
            .hash = c.hash,
            .part = there->part,
            .parts = there->parts,
        };
        w->found[w->founds++] = f;
        for (int i = 0; i < there->copies && there->mark == c.label.step + 1; i++) {
            f.part = there->copy_part[i];
            w->found[w->founds++] = f;
        }
    }
}

/* All slots of the world's hosts, also those that no rank has. */
static void find_halves(world *w)
{
    w->founds = 0;
    for (int h = 0; h < S.hosts; h++)
        for (int i = 0; has_host(w, h) && i < S.host[h].slots; i++) add_found(w, h, i);
    for (int i = w->founds - 1; i > 0; i--) { /* the order is nobody's promise */
        int k = below(i + 1);
        tt_found f = w->found[i];
        w->found[i] = w->found[k];
        w->found[k] = f;
    }
}

static tt_label label_in(const vault *v, int half)
{
    uint64_t line = v->head.half[half].line;

    return (tt_label){(uint32_t)(line >> 32), (uint32_t)line, (int64_t)v->head.half[half].next - 1};
}

/* Is all of what was committed last there, on the hosts of this world? Looks at the bytes; what was
 * never flipped does not count. */
static bool committed_is_there(const world *w)
{
    const truth *t = truth_of(S.committed.label);
    unsigned have = 0;

    for (int h = 0; h < S.hosts; h++)
        for (int i = 0; has_host(w, h) && i < S.host[h].slots; i++) {
            vault *v = vault_of(h, i);
            for (int half = 0; v->head.word && half < 2; half++) {
                const content *c = &v->half[half];
                tt_label l = label_in(v, half);
                if (!same_label(l, S.committed.label) || older(label_in(v, v->head.word & 1), l) ||
                    c->v != t->v || c->parts != S.committed_parts)
                    continue;
                for (int k = 0; k < c->parts; k++)
                    if (holds(c, k) && (k == c->part || c->mark == l.step + 1)) have |= 1u << k;
            }
        }
    return have + 1 == 1u << S.committed_parts;
}

/* Must what was committed last be there? Unless hosts that had it died or are not asked: with
 * copies one of them may. */
static bool committed_must_be_there(const world *w)
{
    unsigned missing = S.committed_gone;

    for (int h = 0; h < S.hosts; h++)
        if (!has_host(w, h)) missing |= S.committed_on & 1u << h;
    return __builtin_popcount(missing) <= S.committed_twice;
}

/* Invariant 1, and that what is taken is what it should be. */
static void check_found(const world *w)
{
    const tt_recovery *r = &w->recovery;
    int from[RANKS];
    tt_holder nowhere = {-1, -1, -1};

    if (S.has_committed && (!r->any || !leads_to(S.committed, r->label)) &&
        (committed_is_there(w) || committed_must_be_there(w)))
        violate("generation %d goes on from %s, but %s was committed and %s", w->generation,
                r->any ? show(r->label) : "disk", show(S.committed.label),
                committed_is_there(w) ? "is there" : "should be there");
    if (r->any && w->has_told && !leads_to(w->told, r->label) && !w->lost)
        violate("generation %d goes on from %s without a word, but %s was told", w->generation,
                show(r->label), show(w->told.label));
    if (!r->any) return;
    tt_recover_share(r, w->found, w->founds, nowhere, r->label, from);
    for (int k = 0; k < r->parts; k++) {
        const tt_found *f = from[k] < 0 ? NULL : &w->found[from[k]];
        const content *c = f ? &vault_of(f->host, f->slot)->half[f->half] : NULL;
        const truth *t = truth_of(r->label);
        if (!c || !holds(c, k) || t->run != S.run || c->v != t->v)
            violate("generation %d goes on from part %d of %d of %s, which is %s", w->generation, k,
                    r->parts, show(r->label), c ? "not what was committed" : "not there");
    }
}

/* The ledger says that a world goes on from there: that is now the last that was committed. What
 * was beyond it could not be reached, and is no part of history any more. */
static void goes_on(const world *w)
{
    bool known;
    int from[RANKS];
    tt_holder nowhere = {-1, -1, -1};

    if (w->generation < S.boss.go_generation) return;
    known = S.has_committed && same_label(S.committed.label, w->source);
    S.has_committed = !w->lost; /* else when all have it */
    S.committed.by = (uint32_t)w->generation;
    if (w->lost || known) return;
    S.committed.label = w->source;
    S.committed_parts = w->recovery.parts;
    S.committed_on = S.committed_gone = 0;
    S.committed_twice = false;
    tt_recover_share(&w->recovery, w->found, w->founds, nowhere, w->source, from);
    for (int k = 0; k < w->recovery.parts; k++) {
        int h = w->found[from[k]].host;
        S.committed_on |= 1u << h;
        if (S.host[h].died_at > w->made_at) S.committed_gone |= 1u << h;
    }
}
