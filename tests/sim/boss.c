/* The supervisor: the real policy, an executor around it, and a watch over what it asks for. */

static void policy_step(const tt_event *e);

static bool boss_works(void)
{
    return S.boss.up && !S.boss.paused;
}

static world *known_world(int id)
{
    for (int i = 0; i < WORLDS; i++)
        if (S.world[i].there && S.world[i].known && S.world[i].id == id) return &S.world[i];
    return NULL;
}

/* Can the supervisor ask the host something and have its answer? */
static bool reaches(const host *h)
{
    return h->up && !h->frozen && !h->cut_in && !h->cut_out;
}

/* ---- the ledger ---- */

static void record(const tt_record *r)
{
    const char *what = tt_ledger_take(&S.ledger, r);

    if (S.writes) tt_record_print(r, &S.text);
    if (what) violate("ledger: %s", what);
}

/* What rank 0 of the active world has told. One of another generation is refused. */
static void keep_ledger(const letter *l, world *w)
{
    uint32_t g = (uint32_t)l->generation;
    tt_ledger *k = &S.ledger;

    if (!l->tells || g != k->generation) return;
    if (!w->found_recorded) {
        tt_record found = {.kind = TT_REC_FOUND,
                           .generation = g,
                           .attempt = l->source.attempt,
                           .step = l->source.step,
                           .made = l->source.generation};
        tt_record lost = {.kind = TT_REC_LOST,
                          .generation = g,
                          .attempt = l->source.attempt,
                          .step = l->source.step};
        w->found_recorded = true;
        if (l->lost && k->committed) record(&lost);
        record(&found);
        if (!S.bad) goes_on(w);
    }
    if (l->asks)
        at(S.now + uniform(0.0005, 0.01), EV_ACK, (int)(w - S.world), 0, w->proc[0].serial, 0);
    if (!l->has_known) return;
    if (l->known.attempt > k->told.label.attempt)
        record(&(tt_record){.kind = TT_REC_ROLLBACK,
                            .generation = g,
                            .attempt = l->known.attempt,
                            .step = l->known.step});
    if (l->known.attempt == k->told.label.attempt && l->known.step > k->told.label.step)
        record(&(tt_record){.kind = TT_REC_TOLD, .generation = g, .step = l->known.step});
    if (l->epoch >= 0 && (!k->epochs || l->epoch != k->epoch))
        record(&(tt_record){.kind = TT_REC_EPOCH,
                            .generation = g,
                            .epoch = l->epoch,
                            .samples = EPOCH_STEPS * STEP_SAMPLES,
                            .witness = l->last});
}

/* ---- letters ---- */

static void boss_handle(const letter *l)
{
    world *w = known_world(l->e.world);

    if (w) {
        keep_ledger(l, w);
        if (l->e.kind == TT_EV_BEAT) w->hello[l->e.rank] = true, S.boss.mutes = 0;
        if (l->e.kind == TT_EV_BEAT && l->e.phase >= TT_PHASE_READY) w->ready[l->e.rank] = true;
        if (l->e.kind == TT_EV_DEAD) w->dead[l->e.rank] = true;
        if (l->e.kind == TT_EV_RESULT) w->result_taken = true;
    }
    policy_step(&l->e); /* also a word from the grave: it must not matter */
}

static void drain(void)
{
    boss *b = &S.boss;

    if (b->draining || b->paused) return;
    b->draining = true;
    for (int i = 0; i < b->queued && b->up && !S.bad; i++) {
        letter l = b->queue[i]; /* more may be added meanwhile */
        boss_handle(&l);
    }
    b->queued = 0;
    b->draining = false;
}

static void boss_deliver(const letter *l)
{
    boss *b = &S.boss;

    if (!b->up || l->boss != S.boss_starts) return; /* for another supervisor */
    if (b->queued < MAIL_MOST)
        b->queue[b->queued++] = *l;
    else if (l->e.kind != TT_EV_BEAT)
        violate("the supervisor's box is full");
    drain();
}

static void boss_event(tt_event e)
{
    letter l = {.e = e, .boss = S.boss_starts};
    boss_deliver(&l);
}

/* ---- ending worlds ---- */

static void forget(world *w)
{
    bool left = w->known;

    for (int r = 0; r < w->members; r++) left |= w->proc[r].alive;
    if (!left) w->there = false;
}

/* For certain, as far as the supervisor can know: it has asked, or the lease is over. */
static bool has_ended(const proc *p)
{
    const host *h = &S.host[p->host];

    if (reaches(h)) return !p->alive;
    return p->dead_told || S.now - h->heard_at > GONE_S;
}

static void sweep(world *w)
{
    bool gone = w->killing;
    int code = 0;

    if (!boss_works() || !w->there) return;
    for (int r = 0; r < w->members; r++) {
        proc *p = &w->proc[r];
        if (w->killing && p->alive && reaches(&S.host[p->host])) die(p, 137);
        p->confirmed |= w->killing && has_ended(p);
        gone &= p->confirmed;
        if (p->code) code = p->code;
    }
    if (!gone) { /* it may have ended by itself */
        gone = true;
        for (int r = 0; r < w->members; r++) gone &= w->proc[r].born && has_ended(&w->proc[r]);
    }
    if (w->mute && S.now - w->made_at > 0.2) gone = true, code = 1;
    if (!gone) return;
    w->killing = true; /* who was not born yet never will be */
    w->known = false;
    TRACE("world %d is gone", w->id);
    boss_event((tt_event){.kind = TT_EV_GONE, .world = w->id, .code = code});
    if (w->generation && w->causes == 0 && !w->result_taken && boss_works() &&
        !tt_policy_look(S.boss.policy).ending)
        violate("world %d of generation %d ended, and no cause was told", w->id, w->generation);
    forget(w);
}

/* ---- what the policy asks for ---- */

static world *free_world(void)
{
    for (int i = 0; i < WORLDS; i++)
        if (!S.world[i].there) return &S.world[i];
    return NULL;
}

static void do_start(const tt_action *a)
{
    const tt_member *m;
    int n = tt_policy_members(S.boss.policy, a->world, &m);
    world *w = free_world();

    if (!w || n < 1 || n > RANKS) {
        violate("world %d cannot be started: %d members", a->world, n);
        return;
    }
    memset(w, 0, offsetof(world, proc));
    memset((char *)w + offsetof(world, killing), 0, sizeof *w - offsetof(world, killing));
    if (a->world <= S.boss.last_id) violate("world %d again", a->world);
    S.boss.last_id = a->world;
    w->there = w->known = true;
    w->boss = S.boss_starts;
    w->made_at = S.now;
    w->id = a->world;
    w->members = n;
    for (int r = 0; r < n; r++) {
        proc *p = &w->proc[r];
        *p = (proc){.w = w, .rank = r, .host = m[r].host, .slot = m[r].slot, .serial = ++S.serial};
        p->label.step = -1;
        w->workers += !m[r].spare;
        w->mute |= S.host[p->host].mute;
        at(S.now + uniform(0.005, 0.08), EV_SPAWN, (int)(w - S.world), r, p->serial, 0);
        if (S.boss.slot[p->host][p->slot].out)
            violate("a world is started on slot %d.%d, which is left out", p->host, p->slot);
        if (p->slot >= S.host[p->host].announced)
            violate("a world is started on slot %d.%d, which is not there", p->host, p->slot);
    }
    n = 0;
    for (int i = 0; i < WORLDS; i++) n += S.world[i].there && S.world[i].known;
    if (n > TT_WORLDS_MOST) violate("%d worlds at a time", n);
    if (w->workers < S.boss.least || w->workers > S.boss.most)
        violate("a world of %d workers is started, wanted are %d to %d", w->workers, S.boss.least,
                S.boss.most);
}

/* Up and running, and not just now: its agent has had time to see that its lease is over. */
static bool is_awake(const host *h)
{
    return h->up && !h->frozen && S.now - h->thawed_at > 2 * AGENT_S;
}

/* What is owed before the next try, after so many failures in a row. */
static double owed_s(int failures)
{
    static const double s[] = {0, 0, 0.1, 0.5, 1, 2, 5};
    return s[failures < 6 ? failures : 6];
}

/* Promises (1) to (4), and the delay of (5). */
static void check_go(const world *w, int generation)
{
    const boss *b = &S.boss;

    for (int i = 0; i < WORLDS; i++) {
        const world *o = &S.world[i];
        if (o->there && o->known && o != w && o->generation)
            violate("GO for world %d while world %d is not gone", w->id, o->id);
        for (int r = 0; o->there && o != w && o->generation && r < o->members; r++)
            if (o->proc[r].alive && is_awake(&S.host[o->proc[r].host]))
                violate("GO for world %d while rank %d of world %d is alive", w->id, r, o->id);
    }
    if (b->persist_now != generation) violate("generation %d was not persisted", generation);
    if (generation <= b->go_generation) violate("generation %d again", generation);
    for (int r = 0; r < w->members; r++)
        if (!w->ready[r] || w->dead[r])
            violate("GO for world %d, but rank %d is not ready", w->id, r);
    if (w->workers < b->least || w->workers > b->most)
        violate("GO for %d workers, wanted are %d to %d", w->workers, b->least, b->most);
    if (b->o.max_restarts >= 0 && tt_policy_look(b->policy).in_a_row > b->o.max_restarts)
        violate("GO after %d failures", tt_policy_look(b->policy).in_a_row);
    if (S.now - b->failed_at < owed_s(b->barren) - 1e-9)
        violate("GO %.3f s after failure %d in a row", S.now - b->failed_at, b->barren);
}

static void do_persist(int generation)
{
    if (generation != S.boss.persisted + 1)
        violate("generation %d again, or one was left out: %d was persisted", generation,
                S.boss.persisted);
    S.boss.persisted = S.boss.persist_now = generation;
    if (S.weight[F_BOSS_CRASH] > 0 && !S.calm && chance(0.03)) boss_crash(); /* before GO */
}

static void do_go(world *w, int generation)
{
    bool first = !S.boss.went;

    check_go(w, generation);
    w->generation = generation;
    S.boss.went = true;
    S.boss.start_failures = 0;
    w->told = S.ledger.told;
    w->has_told = S.ledger.committed || S.disk.any;
    if (!S.ledger.committed) w->told = (tt_told){S.disk.label, S.disk.label.generation};
    if (S.disk.any && first) tt_told_raise(&w->told, S.disk.label);
    S.boss.go_generation = generation;
    record(
        &(tt_record){.kind = TT_REC_GO, .generation = (uint32_t)generation, .workers = w->workers});
    for (int r = 0; r < w->members; r++)
        at(S.now + uniform(0.0005, 0.01), EV_GO, (int)(w - S.world), r, w->proc[r].serial, 0);
}

/* Was this rank, in truth, as lively as can be for all the time in which it was missed? */
static bool is_healthy(const proc *p)
{
    const host *h = &S.host[p->host];

    return runs(p) && reaches(h) && S.now - h->healed_at > 1 && S.now - p->woken_at > 1;
}

/* Nothing moved for too long. If all were well, that was not so; if one alone stood still, it is
 * the one to name. */
static void check_stuck(const world *w, const tt_cause *c)
{
    int still = 0, who = -1;
    double slow = 1;

    if (c->phase <= TT_PHASE_READY) return; /* GO was lost on the way */
    for (int r = 0; r < w->members; r++) {
        const proc *p = &w->proc[r];
        if (!is_healthy(p) || S.host[p->host].cut_peers) return;
        if (p->was_slow > slow) slow = p->was_slow;
        if (p->stuck) still++, who = r;
    }
    if (!still && S.compute_s * 1.3 * slow < S.boss.o.stuck_s - 0.2)
        violate("world %d is called stuck, but is well", w->id);
    if (still == 1 && slow <= 1 && c->rank != who)
        violate("rank %d of world %d is called stuck, but it is rank %d", c->rank, w->id, who);
}

static bool is_failure(tt_cause_kind k)
{
    return k >= TT_CAUSE_DEAD && k <= TT_CAUSE_START;
}

static void slot_failed(const tt_cause *c)
{
    if (c->host < 0 || c->kind == TT_CAUSE_STUCK || c->kind == TT_CAUSE_TROUBLE) return;
    if (++S.boss.slot[c->host][c->slot].failures > S.boss.o.strikes)
        violate("slot %d.%d has failed %d times in a row, and is not left out", c->host, c->slot,
                S.boss.slot[c->host][c->slot].failures);
}

/* Also one that is gone by what is just being handled. */
static world *told_world(int id)
{
    for (int i = 0; i < WORLDS; i++)
        if (S.world[i].there && S.world[i].boss == S.boss_starts && S.world[i].id == id)
            return &S.world[i];
    return NULL;
}

/* A host on which nothing can be started is found, if there is enough without it. */
static void check_mute(void)
{
    boss *b = &S.boss;
    int usable = 0;

    for (int h = 0; h < S.hosts; h++)
        for (int i = 0; i < S.host[h].announced && !S.host[h].mute; i++)
            usable += !b->slot[h][i].out;
    if (usable >= b->least && ++b->mutes > 2 * (b->o.strikes + 2 * S.hosts))
        violate("%d worlds came to nothing for a host that could be done without", b->mutes);
}

static void leave_out(int h, int slot)
{
    S.boss.slot[h][slot].out = true;
    S.boss.slot[h][slot].out_at = S.now;
    S.boss.slot[h][slot].failures = 0;
    S.boss.slot[h][slot].outs++;
}

/* Promises (5) and (6). */
static void check_tell(const tt_cause *c)
{
    boss *b = &S.boss;
    world *w = told_world(c->world);

    TRACE("told: cause %d, world %d, generation %d, rank %d on %d.%d, code %d, %s, step %lld",
          c->kind, c->world, c->generation, c->rank, c->host, c->slot, c->code,
          tt_phase_name(c->phase), (long long)c->step);
    if (c->kind == TT_CAUSE_OUT) {
        for (int i = 0; i < S.host[c->host].announced && c->slot < 0; i++)
            if (!b->slot[c->host][i].out) leave_out(c->host, i);
        if (c->slot >= 0) leave_out(c->host, c->slot);
    }
    if (c->kind == TT_CAUSE_BACK) {
        double due = b->o.penance_s * (1 << (b->slot[c->host][c->slot].outs - 1));
        if (S.now - b->slot[c->host][c->slot].out_at < due - 1e-9)
            violate("slot %d.%d is back before its penance is over", c->host, c->slot);
        b->slot[c->host][c->slot].out = false;
    }
    if (!w || c->kind == TT_CAUSE_OUT) return;
    if (++w->causes > 1) violate("world %d ends for a second cause", w->id);
    if (!is_failure(c->kind)) return;
    if (c->kind == TT_CAUSE_HUNG && is_healthy(&w->proc[c->rank]))
        violate("rank %d of world %d is called hung after %.3f s, but is well", c->rank, w->id,
                c->silent_s);
    if (c->kind == TT_CAUSE_STUCK) check_stuck(w, c);
    if (!w->generation) {
        b->start_failed_at = S.now;
        b->owed_until = fmax(b->owed_until, S.now + owed_s(++b->start_failures));
        if (w->mute && S.calm) check_mute();
        return;
    }
    slot_failed(c);
    b->barren++;
    b->failed_at = S.now;
    b->owed_until = fmax(b->owed_until, S.now + owed_s(++b->unproved));
}

/* A slot that is left out is back when its penance is over: promise (5). */
static void check_penance(void)
{
    const boss *b = &S.boss;

    for (int h = 0; h < S.hosts; h++)
        for (int i = 0; i < S.host[h].slots; i++)
            if (b->slot[h][i].out &&
                S.now - b->slot[h][i].out_at >
                    b->o.penance_s * (1 << (b->slot[h][i].outs - 1)) + 3 * TICK_S &&
                S.now - b->last_turn < 2 * TICK_S)
                violate("slot %d.%d is still left out", h, i);
}

/* A rank that is silent is missed, whatever it was doing: within 0.8 s. */
static void check_silence(void)
{
    const boss *b = &S.boss;
    double patience = b->o.beat_s + 0.3;

    if (S.now - b->resumed_at < 1 || S.now - b->up_since < 1 || tt_policy_look(b->policy).ending)
        return;
    for (int i = 0; i < WORLDS; i++) {
        const world *w = &S.world[i];
        for (int r = 0; w->there && w->known && !w->killing && !w->causes && r < w->members; r++) {
            const proc *p = &w->proc[r];
            const host *h = &S.host[p->host];
            double since = S.now;
            if (p->alive && p->stopped) since = p->stopped_at;
            if (p->born && (!h->up || h->frozen || h->cut_out) && h->silent_at < since)
                since = h->silent_at;
            if (p->born && !p->alive && p->code && S.now - p->died_at > 2)
                violate("rank %d of world %d died %.1f s ago, and nobody says so", r, w->id,
                        S.now - p->died_at);
            if (w->hello[r] && !w->dead[r] && p->phase != TT_PHASE_END && S.now - since > patience)
                violate("rank %d of world %d has been silent for %.2f s, and nobody misses it", r,
                        w->id, S.now - since);
        }
    }
}

/* Who asks it to stop does not wait long. */
static void check_stop(void)
{
    const boss *b = &S.boss;
    double since = b->stop_at > b->resumed_at ? b->stop_at : b->resumed_at;

    if (b->stop_at > 0 && !b->exited && S.now - since > b->o.stop_s + GONE_S + 0.3)
        violate("asked to stop %.1f s ago, and still there", S.now - since);
}

static void do_exit(const tt_action *a)
{
    boss *b = &S.boss;
    tt_policy_view v = tt_policy_look(b->policy);

    TRACE("exit %d", a->code);
    if (a->code == 4 && !v.waiting && (b->o.max_restarts < 0 || v.in_a_row <= b->o.max_restarts))
        violate("EXIT 4 without a reason");
    if (a->code == 75 && b->stop_at <= 0) violate("EXIT 75, and nobody asked for it");
    if (a->code == 75 && b->went && !b->quit && S.disk.saved_at < b->stop_at &&
        S.now < b->stop_at + b->o.stop_s && b->stop_at > b->resumed_at && !b->hopeless &&
        (b->o.max_restarts < 0 || v.in_a_row <= b->o.max_restarts))
        violate("stopped %.2f s after that was asked for, and nothing was saved",
                S.now - b->stop_at);
    if (a->code == 5 && !S.fatal) violate("EXIT 5, and nothing was fatal");
    for (int i = 0; i < WORLDS; i++)
        if (S.world[i].there && S.world[i].known)
            violate("EXIT, but world %d is not gone", S.world[i].id);
    record(&(tt_record){.kind = TT_REC_END, .step = S.ledger.told.label.step, .code = a->code});
    b->exited = true;
    b->exit_code = a->code;
}

/* A world that ends without a checkpoint has its state where the next one will be: of any host that
 * goes, another one has copies. */
static void check_stays(const world *w)
{
    int next = tt_policy_look(S.boss.policy).standby, go = 0, stay = 0;
    const world *n = next < 0 ? NULL : known_world(next);

    for (int h = 0; h < S.hosts; h++) {
        bool before = false, after = false;
        for (int i = 0; i < w->members; i++) before |= w->proc[i].host == h;
        for (int k = 0; n && k < n->members; k++) after |= n->proc[k].host == h;
        go += before && !after;
        stay += before && after;
    }
    if (!stay || go > 1)
        violate("world %d yields, and %d hosts of it are not in the next one, world %d", w->id, go,
                next);
}

static void boss_act(const tt_action *a)
{
    static const char *const name[] = {"START", "PERSIST", "GO",   "YIELD", "MOVE",
                                       "SAVE",  "KILL",    "TELL", "EXIT"};
    world *w = known_world(a->world);

    if (a->kind != TT_ACT_TELL)
        TRACE("%s world %d generation %d", name[a->kind], a->world, a->generation);
    if (S.boss.exited) violate("after EXIT: %s", name[a->kind]);
    if (!w && (a->kind == TT_ACT_GO || (a->kind >= TT_ACT_YIELD && a->kind <= TT_ACT_KILL))) {
        violate("%s for world %d, which is not there", name[a->kind], a->world);
        return;
    }
    switch (a->kind) {
    case TT_ACT_START:
        do_start(a);
        break;
    case TT_ACT_PERSIST:
        do_persist(a->generation);
        break;
    case TT_ACT_GO:
        do_go(w, a->generation);
        break;
    case TT_ACT_YIELD:
        check_stays(w);
        /* fall through */
    case TT_ACT_MOVE:
    case TT_ACT_SAVE:
        at(S.now + uniform(0.0005, 0.01), a->kind == TT_ACT_SAVE ? EV_SAVE : EV_YIELD,
           (int)(w - S.world), 0, w->proc[0].serial, 0);
        break;
    case TT_ACT_KILL:
        w->killing = true;
        at(S.now + uniform(0.001, 0.02), EV_SWEEP, (int)(w - S.world), 0, 0, w->id);
        break;
    case TT_ACT_TELL:
        check_tell(&a->cause);
        break;
    case TT_ACT_EXIT:
        do_exit(a);
        break;
    }
}

/* No world goes on with a part of it on a host that is lost, unless it is over anyway. */
static void check_lost(int h)
{
    if (tt_policy_look(S.boss.policy).ending) return;
    for (int i = 0; i < WORLDS; i++) {
        const world *w = &S.world[i];
        for (int r = 0; w->there && w->known && !w->killing && r < w->members; r++)
            if (w->proc[r].host == h)
                violate("host %d is lost, and world %d goes on there", h, w->id);
    }
}

static void policy_step(const tt_event *e)
{
    tt_action act[TT_WORLDS_MOST * 4];
    boss *b = &S.boss;
    int n;

    if (e->kind == TT_EV_WANT) {
        b->least = e->least;
        b->most = e->most;
    }
    if (e->kind == TT_EV_HOST) S.host[e->host].announced = e->slots;
    if (e->kind == TT_EV_LOST) S.host[e->host].announced = 0;
    n = tt_policy_step(b->policy, e, S.now, act, TT_WORLDS_MOST * 4);
    b->last_turn = S.now;
    if (b->stop_at > 0) {
        tt_policy_view v = tt_policy_look(b->policy);
        b->hopeless |= v.slots < v.least;
    }
    for (int i = 0; i < n && !S.bad && b->up; i++) boss_act(&act[i]);
    if (e->kind == TT_EV_LOST && boss_works()) check_lost(e->host);
}

/* ---- the supervisor's life ---- */

static void announce(int h, int slots)
{
    if (S.host[h].announced == slots) return;
    TRACE("host %d has %d slots", h, slots);
    boss_event((tt_event){.kind = TT_EV_HOST, .host = h, .slots = slots});
}

/* Which hosts answer; who died unheard; what has ended. */
static void boss_tick(void)
{
    for (int i = 0; i < S.hosts; i++) {
        host *h = &S.host[i];
        if (reaches(h)) h->word_at = h->heard_at = S.now; /* a word is an answer: see LEASE_S */
        if (S.now - h->heard_at > LOST_S) {
            if (!h->lost) boss_event((tt_event){.kind = TT_EV_LOST, .host = i});
            h->lost = true;
            continue;
        }
        h->lost = false;
        if (!h->in)
            announce(i, 0);
        else if (reaches(h))
            announce(i, h->slots);
    }
    for (int i = 0; i < WORLDS && boss_works(); i++) {
        world *w = &S.world[i];
        for (int r = 0; w->there && r < w->members; r++) {
            proc *p = &w->proc[r];
            if (!w->known && p->alive && reaches(&S.host[p->host])) die(p, 137); /* left over */
            if (w->known && p->born && !p->alive && !p->dead_told && reaches(&S.host[p->host])) {
                p->dead_told = true;
                boss_event(
                    (tt_event){.kind = TT_EV_DEAD, .world = w->id, .rank = r, .code = p->code});
            }
        }
        for (int r = 0; w->there && w->known && r < w->members && boss_works(); r++)
            if (w->proc[r].alive && w->proc[r].stopped && reaches(&S.host[w->proc[r].host]))
                boss_event((tt_event){.kind = TT_EV_STILL, .world = w->id, .rank = r});
        if (w->there && w->known) sweep(w);
        if (w->there) forget(w);
    }
    if (boss_works()) boss_event((tt_event){.kind = TT_EV_TICK});
    if (boss_works()) check_penance();
    if (boss_works()) check_silence();
    if (boss_works()) check_stop();
}

static void boss_close(void)
{
    boss *b = &S.boss;

    tt_policy_close(b->policy);
    b->policy = NULL;
    b->up = b->paused = false;
    b->queued = 0;
    for (int i = 0; i < WORLDS; i++) S.world[i].known = false;
}

/* A supervisor may begin when nothing of the one before is left, or its lease is over. */
static void boss_start(void)
{
    boss *b = &S.boss;
    bool clear = true;

    if (b->up) return;
    for (int i = 0; i < WORLDS; i++)
        for (int r = 0; S.world[i].there && r < S.world[i].members; r++) {
            proc *p = &S.world[i].proc[r];
            S.world[i].killing = true;
            if (p->alive && reaches(&S.host[p->host])) die(p, 137);
            clear &= has_ended(p);
        }
    if (!clear) {
        at(S.now + 0.05, EV_BOSS, 0, 0, 0, 0);
        return;
    }
    for (int i = 0; i < WORLDS; i++)
        if (S.world[i].there) forget(&S.world[i]);
    TRACE("a supervisor starts");
    S.boss_starts++;
    b->o.generation = b->persisted;
    b->policy = tt_policy_open(&b->o);
    b->up = true;
    b->up_since = b->last_turn = S.now;
    b->exited = false;
    b->barren = b->unproved = b->mutes = 0;
    b->persist_now = 0;
    b->failed_at = b->start_failed_at = -1e9;
    b->last_id = 0;
    b->owed_until = 0;
    b->stop_at = 0;
    b->quit = b->went = b->hopeless = false;
    b->start_failures = 0;
    memset(b->slot, 0, sizeof b->slot);
    for (int i = 0; i < S.hosts; i++) {
        S.host[i].announced = 0;
        S.host[i].lost = false;
        S.host[i].heard_at = reaches(&S.host[i]) ? S.now : S.now - LOST_S - 1;
    }
    boss_event((tt_event){.kind = TT_EV_WANT, .least = b->least, .most = b->most});
    boss_tick();
}
