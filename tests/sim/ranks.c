/* The processes: what a rank does from its start to its end, operation by operation. Stands in for
 * train/, and keeps to what design.md says of it: a rank flips before it contributes to the next
 * step's sum, and begins the next half after that sum. */

static bool runs(const proc *p)
{
    const host *h = &S.host[p->host];
    return p->alive && !p->stopped && h->up && !h->frozen;
}

/* ---- life and death ---- */

static void beat(proc *p, bool first);

static void post(const letter *l, double delay)
{
    int i = S.next_mail;

    if (delay <= 0 || S.mail[i].used) {
        boss_deliver(l);
        return;
    }
    S.next_mail = (i + 1) % MAIL_MOST;
    S.mail[i] = *l;
    S.mail[i].used = true;
    at(S.now + delay, EV_MAIL, 0, 0, 0, i);
}

/* Letters of one sender do not overtake each other. */
static void post_after(const letter *l, double *last, double delay)
{
    double t = S.now + delay;

    if (t < *last) t = *last;
    *last = t;
    post(l, t - S.now);
}

static void die(proc *p, int code)
{
    const host *h = &S.host[p->host];
    letter l = {.boss = p->w->boss,
                .e = {.kind = TT_EV_DEAD, .world = p->w->id, .rank = p->rank, .code = code}};

    if (!p->alive) return;
    TRACE("world %d rank %d on %d.%d dies, code %d (%s, pc %d, %s)", p->w->id, p->rank, p->host,
          p->slot, code, tt_phase_name(p->phase), p->pc, show(p->label));
    if (p->waiting && chance(0.5)) p->w->arrived = -RANKS; /* else what it gave was on its way */
    p->alive = p->stopped = p->deferred = false;
    p->serial = 0;
    p->code = code;
    p->died_at = S.now;
    if (!h->up || h->frozen || h->cut_out || !p->w->known) return;
    p->dead_told = true;
    post(&l, uniform(0.001, 0.02));
}

static void trouble(proc *p, int code, bool fatal)
{
    letter l = {.boss = p->w->boss,
                .e = {.kind = TT_EV_TROUBLE,
                      .world = p->w->id,
                      .rank = p->rank,
                      .code = code,
                      .fatal = fatal}};

    TRACE("world %d rank %d: trouble %d", p->w->id, p->rank, code);
    if (!S.host[p->host].cut_out) post_after(&l, &p->posted_at, uniform(0, 0.002));
    die(p, code);
}

static void spawn(proc *p)
{
    const host *h = &S.host[p->host];

    if (p->w->killing || p->w->mute || !h->up || h->frozen || h->cut_in) return;
    p->born = p->alive = true;
    p->phase = TT_PHASE_START;
    p->pc = PC_START;
    at(S.now + uniform(0, BEAT_S), EV_BEAT, (int)(p->w - S.world), p->rank, p->serial, 0);
    if (S.now < h->bad_until[p->slot] && chance(0.7)) {
        p->fuse = 1 + below(30);
        p->fuse_stops = false;
    }
    beat(p, true);
    run_soon(p, uniform(0.005, 0.05));
}

/* What rank 0 knows of the whole goes with its beats. */
static void beat(proc *p, bool first)
{
    const host *h = &S.host[p->host];
    world *w = p->w;
    letter l = {.boss = w->boss,
                .e = {.kind = TT_EV_BEAT,
                      .world = w->id,
                      .rank = p->rank,
                      .phase = p->phase,
                      .step = p->label.step,
                      .waits = p->waiting}};

    if (!runs(p) || h->cut_out) return;
    if (p->rank == 0 && w->has_found) {
        l.tells = true;
        l.generation = w->generation;
        l.lost = w->lost;
        l.has_found = true;
        l.asks = p->pc == PC_ASKED;
        l.source = w->source;
        l.has_known = w->has_known;
        l.known = w->known_label;
        l.epoch = w->has_known ? w->known_content.epoch : -1;
        l.last = w->known_content.last;
    }
    post_after(&l, &p->posted_at, first || chance(0.2) ? uniform(0.0001, S.delay_s) : 0);
    if (p->rank == 0 && w->result) {
        int code = w->known_label.step < S.steps ? 75 : 0;
        l = (letter){.boss = w->boss, .e = {.kind = TT_EV_RESULT, .world = w->id, .code = code}};
        post_after(&l, &p->posted_at, uniform(0.0001, S.delay_s));
    }
}

static void set_phase(proc *p, tt_phase phase)
{
    if (p->phase == phase) return;
    p->phase = phase;
    beat(p, true);
}

/* One operation less until it is killed or stopped. True if that is now. */
static bool burns(proc *p)
{
    if (!p->fuse || --p->fuse) return false;
    if (p->fuse_stops) {
        p->stopped = p->deferred = true;
        p->stopped_at = S.now;
        TRACE("world %d rank %d is stopped (pc %d)", p->w->id, p->rank, p->pc);
        at(S.now + uniform(0.1, 4), EV_HEAL, (int)(p->w - S.world), p->rank, p->serial, F_STOP);
    } else {
        die(p, 137);
    }
    return true;
}

/* ---- collectives ---- */

static bool linked(int a, int b)
{
    const host *x = &S.host[a], *y = &S.host[b];

    if (!x->up || !y->up || x->frozen || y->frozen) return false;
    return a == b || (!x->cut_in && !x->cut_out && !x->cut_peers && !y->cut_in && !y->cut_out &&
                      !y->cut_peers);
}

static void arrive(proc *p)
{
    p->waiting = true;
    p->waiting_since = S.now;
    p->w->arrived++;
    world_complete(p->w);
}

/* ---- writing a half ---- */

static void begin_writing(proc *p, tt_label target, pc after)
{
    p->target = target;
    p->after = after;
    p->pc = PC_UNDO;
}

static void on_store(void)
{
    proc *p = S.writer;

    if (!p || S.torn || !p->fuse || p->fuse_stops || --p->fuse) return;
    S.torn = true; /* killed here: what is stored from now on is not */
    S.image = S.written->head;
}

static void open_stores(proc *p, vault *v)
{
    S.writer = p;
    S.written = v;
    S.torn = false;
}

static void close_stores(proc *p, vault *v)
{
    S.writer = NULL;
    if (!S.torn) return;
    memcpy(&v->head, &S.image, sizeof v->head);
    die(p, 137);
}

/* A word of a note; with the last one it is the note. */
static void put_note(vault *v, int half, int word, uint64_t note)
{
    v->note[half][tt_commit_spare(&v->head, half)][word] = word ? tt_mix(note) : note;
    if (word) tt_commit_amend(&v->head, half);
}

/* One operation of the protocol, with a kill between any two of its stores. */
static void write_operation(proc *p)
{
    vault *v = vault_of(p->host, p->slot);
    content *half = &v->half[p->half];
    const content *fresh = &p->fresh;
    tt_commit what = {p->target, hash_of(fresh)};

    open_stores(p, v);
    switch ((int)p->pc) {
    case PC_UNDO:
        if (p->undo && !tt_commit_undo(&v->head))
            violate("rank %d cannot undo what it was told to", p->rank);
        p->undo = false;
        break;
    case PC_BEGIN:
        p->half = tt_commit_begin(&v->head);
        break;
    case PC_DATA:
        half->v = fresh->v;
        put_note(v, p->half, 0, note_of(p->target, false));
        break;
    case PC_DATA + 1:
        half->check = fresh->check;
        half->witness = fresh->witness;
        half->epoch = fresh->epoch;
        half->last = fresh->last;
        break;
    case PC_DATA + 2:
        half->opt = fresh->opt;
        half->part = fresh->part;
        half->parts = fresh->parts;
        half->copies = fresh->copies;
        half->mark = fresh->mark;
        memcpy(half->copy_part, fresh->copy_part, sizeof half->copy_part);
        memcpy(half->copy_opt, fresh->copy_opt, sizeof half->copy_opt);
        put_note(v, p->half, 1, note_of(p->target, false));
        break;
    case PC_DESCRIBE:
        tt_commit_describe(&v->head, p->half, &what);
        break;
    case PC_FLIP:
        tt_commit_flip(&v->head, p->half);
        break;
    }
    close_stores(p, v);
    if (!S.torn && p->pc == PC_FLIP) check_flip(p, half, p->target);
}

/* What follows a step is done, and said in its note, word by word. */
static void close_state(proc *p)
{
    vault *v = vault_of(p->host, p->slot);
    int word = p->pc - PC_CLOSE;

    open_stores(p, v);
    put_note(v, tt_commit_current(&v->head), word, note_of(p->label, true));
    close_stores(p, v);
    p->pc = word ? p->after : PC_CLOSE + 1;
}

static void written(proc *p)
{
    world *w = p->w;

    p->label = p->target;
    TRACE("world %d rank %d has %s", w->id, p->rank, show(p->label));
    if (!S.mirrored && ++w->flipped == w->members) committed(w);
    p->pc = PC_CLOSE;
}

/* Keeps on until there is something to wait for. True while it writes. */
static bool writes(proc *p)
{
    if (p->pc < PC_UNDO || p->pc > PC_WRITTEN) return false;
    if (p->pc == PC_BEGIN && !p->copy) p->pc = PC_WRITTEN;
    if (p->pc == PC_WRITTEN) {
        written(p);
        return true;
    }
    if (burns(p)) return true;
    write_operation(p);
    if (p->alive) p->pc++;
    return true;
}

/* ---- recovery ---- */

static int part_of(const world *w, int rank)
{
    return (rank + w->rotation) % w->parts;
}

/* Who has a copy of this one's part: the next on another host; -1: there is no other. */
static int holder_of(const world *w, int owner)
{
    for (int k = 1; k < w->members; k++) {
        int r = (owner + k) % w->members;
        if (w->proc[r].host != w->proc[owner].host) return r;
    }
    return -1;
}

/* Spares have the part of a worker, too: copies are of the worker's. */
static int owner_of(const world *w, int part)
{
    int r = 0;
    while (part_of(w, r) != part) r++;
    return r;
}

/* What this rank is to have of other hosts. None of it is there yet. */
static void plan_copies(const world *w, int rank, content *c)
{
    c->copies = 0;
    c->mark = PLANTED(PLANT_MARK_EARLY) ? w->label.step + 1 : 0;
    memset(c->copy_opt, 0, sizeof c->copy_opt);
    for (int r = 0; S.mirrored && r < w->parts; r++)
        if (holder_of(w, r) == rank) c->copy_part[c->copies++] = part_of(w, r);
}

static int places_of(const world *w, int rank, tt_holder *out)
{
    const proc *p = &w->proc[rank];
    content c;
    int n = 0;

    plan_copies(w, rank, &c);
    out[n++] = (tt_holder){p->host, p->slot, part_of(w, rank)};
    for (int i = 0; i < c.copies; i++) out[n++] = (tt_holder){p->host, p->slot, c.copy_part[i]};
    return n;
}

/* All ranks have told what they found: each now knows the same. */
static void choose(world *w)
{
    tt_holder place[RANKS * 2];
    int places = 0;

    find_halves(w);
    tt_recover_choose(w->found, w->founds, w->has_told ? &w->told : NULL, &w->recovery);
    w->parts = S.sharded ? w->workers : 1;
    w->rotation = S.rotates ? w->generation : 0;
    for (int r = 0; r < w->members; r++) places += places_of(w, r, place + places);
    w->source = w->recovery.label;
    w->lost = !w->recovery.any || w->recovery.behind;
    if (w->recovery.any)
        w->label = tt_recover_label(&w->recovery, w->found, w->founds, place, places, w->parts,
                                    (uint32_t)w->generation);
    /* From disk, if nothing is complete, or nothing as new. Without a checkpoint: from the start.
     */
    if (!w->recovery.any || (w->recovery.behind && S.disk.any && older(w->source, S.disk.label))) {
        uint32_t attempt = S.disk.any ? S.disk.label.attempt : 0;
        w->recovery.any = false;
        w->base = S.disk.any ? S.disk.c : initial();
        w->label =
            (tt_label){(uint32_t)w->generation, tt_attempt_next(attempt, (uint32_t)w->generation),
                       S.disk.any ? S.disk.label.step : 0};
        w->source = w->label;
    }
    TRACE("world %d, generation %d: goes on from %s%s as %s, %d parts", w->id, w->generation,
          w->recovery.any ? show(w->source) : "disk", w->lost ? " (LOST)" : "", show(w->label),
          w->parts);
    check_found(w);
    S.recoveries++;
    S.losses += w->lost;
    if (w->lost) w->source = w->label;
    w->has_found = true;
}

/* The bytes of this rank's share, from the halves it is taken from. False: one of them is not what
 * it was a moment ago. */
static bool fill_share(proc *p)
{
    const world *w = p->w;
    const tt_recovery *r = &w->recovery;
    int part = part_of(w, p->rank), from[RANKS], places;
    tt_holder place[1 + RANKS];
    bool whole = true;

    p->copy = !r->any;
    p->undo = false;
    if (!r->any) {
        p->fresh = cut(w->base, part, w->parts);
        plan_copies(w, p->rank, &p->fresh);
        return true;
    }
    places = places_of(w, p->rank, place);
    for (int i = 0; i < places; i++) {
        tt_refill s = tt_recover_share(r, w->found, w->founds, place[i], w->label, from);
        p->copy |= s.copy;
        p->undo |= s.undo;
    }
    if (!p->copy) return true;
    for (int k = 0; k < r->parts; k++) {
        const tt_found *f = from[k] < 0 ? NULL : &w->found[from[k]];
        const vault *v = f ? vault_of(f->host, f->slot) : NULL;
        tt_commit now;
        if (!f || !tt_commit_read(&v->head, f->half, &now) || !same_label(now.label, f->label))
            return false;
        whole &= holds(&v->half[f->half], k);
        p->fresh = cut(v->half[f->half], part, w->parts);
    }
    plan_copies(w, p->rank, &p->fresh);
    p->fresh.mark = w->label.step + 1;
    for (int i = 0; i < p->fresh.copies; i++)
        p->fresh.copy_opt[i] = opt_of(p->fresh.v, p->fresh.copy_part[i], w->parts) ^ !whole;
    if (!whole) p->fresh.opt ^= 1;
    return true;
}

/* Nothing is written before the ledger says from where this world goes on. */
static void ask(proc *p)
{
    p->pc = PC_ASKED;
    if (p->rank == 0 && !PLANTED(PLANT_UNTOLD))
        beat(p, true);
    else
        arrive(p);
}

static void recover(proc *p)
{
    world *w = p->w;

    if (!fill_share(p)) {
        trouble(p, 4, false);
        return;
    }
    if (S.in_recovery > 0 && chance(0.5)) {
        S.in_recovery--;
        p->fuse = 1 + below(16);
        p->fuse_stops = chance(0.3);
    }
    begin_writing(p, w->label, PC_COMPUTE);
}

/* ---- a step ---- */

/* A checkpoint. The persisted generation is its fence: a world that is over, and does not know it,
 * must not put an old state beside the newer ones. */
static void save(const world *w, tt_label label, const content *c)
{
    if (w->generation < S.boss.persisted) return;
    if (S.disk.any && older(label, S.disk.label))
        violate("checkpoint %s is saved after %s", show(label), show(S.disk.label));
    S.disk.any = true;
    S.disk.saved_at = S.now;
    S.disk.label = label;
    S.disk.c = *c;
}

/* The sum is there: the state before it is committed by all. */
static void apply(proc *p)
{
    world *w = p->w;
    vault *v = vault_of(p->host, p->slot);
    content *now = &v->half[tt_commit_current(&v->head)];

    if (p->rank == 0) {
        w->has_known = true;
        w->known_label = p->label;
        w->known_content = *now;
        if (p->label.step % 16 == 0 && !w->rolling) save(w, p->label, now);
    }
    if (PLANTED(PLANT_COUNT_TWICE)) count_samples(now, p->label.step);
    p->copy = true;
    p->undo = false;
    p->fresh = w->rolling ? w->base : next_content(*now, p->label, (uint32_t)w->generation);
    p->fresh = cut(p->fresh, part_of(w, p->rank), w->parts); /* what it had may have been a copy */
    plan_copies(w, p->rank, &p->fresh);
    if (w->rolling) set_phase(p, TT_PHASE_SYNC);
    begin_writing(p, w->label, PC_COMPUTE);
}

static void compute(proc *p)
{
    const world *w = p->w;
    double spread = uniform(0.7, 1.3) * (p->slow > 1 ? p->slow : 1);

    p->pc = PC_COPY;
    p->then = PC_SUM;
    if (w->leaving || w->saving || p->label.step >= S.steps) {
        p->then = w->leaving ? PC_LEAVE : PC_FINAL;
        return;
    }
    set_phase(p, TT_PHASE_STEP);
    if (PLANTED(PLANT_BEGIN_EARLY)) tt_commit_begin(&vault_of(p->host, p->slot)->head);
    if (!p->stuck) run_soon(p, S.compute_s * spread);
}

/* Copies of what others have committed: before the next results, or before it leaves. False: one is
 * still on its way. */
static bool take_copies(proc *p)
{
    const world *w = p->w;
    vault *v = vault_of(p->host, p->slot);
    content *now = &v->half[tt_commit_current(&v->head)];

    if (now->mark == p->label.step + 1 && !PLANTED(PLANT_MARK_EARLY)) return true; /* as found */
    for (int i = 0; i < now->copies; i++) {
        const proc *o = &w->proc[owner_of(w, now->copy_part[i])];
        const vault *from = vault_of(o->host, o->slot);
        bool sent = o->alive || o->pc == PC_EXIT; /* nobody leaves before it has */
        if (!sent || !same_label(o->label, p->label) || !linked(p->host, o->host)) return false;
        now->copy_opt[i] = from->half[tt_commit_current(&from->head)].opt;
    }
    return true;
}

static void copy_or_wait(proc *p)
{
    if (take_copies(p) || PLANTED(PLANT_COPY_UNAWAITED)) {
        p->waiting = false;
        p->pc = PC_MARK;
        return;
    }
    if (!p->waiting) p->waiting_since = S.now;
    p->waiting = true;
    run_soon(p, 0.002);
}

static void mark_copies(proc *p)
{
    vault *v = vault_of(p->host, p->slot);
    content *now = &v->half[tt_commit_current(&v->head)];

    if (!PLANTED(PLANT_COPY_UNAWAITED) || take_copies(p)) now->mark = p->label.step + 1;
    if (++p->w->flipped == p->w->members) committed(p->w);
    p->pc = p->then;
}

/* The lock of a slot is dropped by the kernel when its holder is gone. */
static bool lock_slot(proc *p)
{
    uint32_t *owner = &S.host[p->host].owner[p->slot];

    for (int i = 0; *owner && i < WORLDS; i++)
        for (int r = 0; S.world[i].there && r < S.world[i].members; r++)
            if (S.world[i].proc[r].alive && S.world[i].proc[r].serial == *owner) return false;
    *owner = p->serial;
    return true;
}

/* Who ends well stays until its last letter has arrived. */
static void leave(proc *p)
{
    set_phase(p, TT_PHASE_END);
    p->pc = PC_EXIT;
    run_soon(p, S.delay_s + uniform(0, 0.1));
}

static void final(proc *p)
{
    world *w = p->w;

    if (p->rank == 0) {
        const vault *v = vault_of(p->host, p->slot);
        w->known_label = p->label;
        w->known_content = v->half[tt_commit_current(&v->head)];
        w->has_known = true;
        save(w, w->known_label, &w->known_content);
        w->result = true;
        if (p->label.step >= S.steps && S.exact && w->known_content.v != S.golden[S.steps])
            violate("the final state is not that of an undisturbed run");
    }
    leave(p);
}

/* The main thread, until it has to wait. */
static void run_rank(proc *p)
{
    if (!runs(p)) {
        p->deferred = p->alive;
        return;
    }
    while (runs(p) && !S.bad) {
        if (p->pc >= PC_UNDO && p->pc <= PC_WRITTEN) {
            writes(p);
            if (S.slow_ops && p->pc >= PC_UNDO && p->alive && !p->deferred) {
                run_soon(p, uniform(0, 0.004));
                return;
            }
            continue;
        }
        if (burns(p)) return;
        switch ((int)p->pc) {
        case PC_CLOSE:
        case PC_CLOSE + 1:
            close_state(p);
            break;
        case PC_START:
        case PC_FINAL:
            arrive(p);
            return;
        case PC_READY:
            set_phase(p, TT_PHASE_READY);
            return;
        case PC_LOOK:
            set_phase(p, TT_PHASE_SYNC);
            arrive(p);
            return;
        case PC_ASK:
            ask(p);
            return;
        case PC_LOCK:
            if (lock_slot(p))
                arrive(p);
            else
                run_soon(p, 0.02);
            return;
        case PC_RECOVER:
            recover(p);
            break;
        case PC_COMPUTE:
            compute(p);
            if (p->then == PC_SUM) return;
            break;
        case PC_COPY:
            if (!S.mirrored)
                p->pc = p->then;
            else
                copy_or_wait(p);
            if (p->waiting) return;
            break;
        case PC_MARK:
            mark_copies(p);
            break;
        case PC_SUM:
            arrive(p);
            return;
        case PC_SUMMED:
            apply(p);
            break;
        case PC_LEAVE:
            if (p->w->leaving)
                leave(p);
            else
                final(p);
            return;
        case PC_EXIT:
            die(p, 0);
            return;
        }
    }
}

/* What a collective that is complete means for all. */
static pc conclude(world *w)
{
    switch (w->stage) {
    case AT_INIT:
        w->stage = AT_GATHER;
        return PC_READY;
    case AT_GATHER:
        choose(w);
        w->stage = AT_CONSENT;
        return PC_ASK;
    case AT_CONSENT:
        w->stage = AT_LOCK;
        return PC_LOCK;
    case AT_LOCK:
        w->flipped = 0;
        w->stage = w->label.step >= S.steps ? AT_FINAL : AT_SUM;
        return PC_RECOVER;
    default:
        break;
    }
    for (int r = 0; r < w->members; r++)
        if (!same_label(w->proc[r].label, w->label))
            violate("a sum of rank %d at %s, and others at %s", r, show(w->proc[r].label),
                    show(w->label));
    if (w->stage == AT_FINAL) return PC_LEAVE;
    w->rolling = w->nan;
    w->nan = false;
    w->flipped = 0;
    if (w->rolling) {
        w->base = S.disk.any ? S.disk.c : initial();
        w->label = (tt_label){(uint32_t)w->generation,
                              tt_attempt_next(w->label.attempt, (uint32_t)w->generation),
                              S.disk.any ? S.disk.label.step : 0};
        if (w->label.step >= S.steps) w->stage = AT_FINAL;
        TRACE("world %d: NaN, back to %s", w->id, show(w->label));
    } else {
        w->label.generation = (uint32_t)w->generation;
        w->label.step++;
        w->stepped = true;
        w->leaving = w->yield_asked && !w->save_asked;
        w->saving = w->save_asked;
        if (w->saving || w->label.step >= S.steps) w->stage = AT_FINAL;
        if (w->label.step >= S.steps) w->leaving = false;
    }
    return PC_SUMMED;
}

static void world_complete(world *w)
{
    bool any = false;
    pc next;

    if (w->arrived < w->members) return;
    for (int r = 0; r < w->members; r++) any |= w->proc[r].alive;
    if (!any) return;
    for (int r = 0; r < w->members; r++)
        if (!linked(w->proc[0].host, w->proc[r].host) || !linked(w->proc[r].host, w->proc[r].host))
            return; /* until the network is mended */
    w->arrived = 0;
    next = conclude(w);
    for (int r = 0; r < w->members; r++) {
        proc *p = &w->proc[r];
        p->waiting = false;
        p->pc = next;
        if (p->alive) run_soon(p, uniform(0.0002, 0.003));
    }
}

/* The control thread. */
static void on_beat(proc *p)
{
    at(S.now + BEAT_S, EV_BEAT, (int)(p->w - S.world), p->rank, p->serial, 0);
    if (!runs(p)) return;
    if (p->waiting && p->w->stage != AT_INIT && S.now - p->waiting_since > S.comm_s)
        trouble(p, 4, false);
    else
        beat(p, false);
}
