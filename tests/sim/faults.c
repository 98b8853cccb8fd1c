/* What can go wrong. Each fault heals by an event of its own, or when calm comes. */

/* A process that is alive; of the active world more often than not. NULL: none. */
static proc *some_proc(void)
{
    proc *all[WORLDS * RANKS];
    int n = 0;

    for (int active = chance(0.8); active >= 0 && !n; active--)
        for (int i = 0; i < WORLDS; i++)
            for (int r = 0; S.world[i].there && r < S.world[i].members; r++)
                if (S.world[i].proc[r].alive && (!active || S.world[i].generation) &&
                    n < WORLDS * RANKS)
                    all[n++] = &S.world[i].proc[r];
    return n ? all[below(n)] : NULL;
}

static void heal_later(proc *p, int h, fault f, double least, double most)
{
    int w = p ? (int)(p->w - S.world) : 0;

    at(S.now + uniform(least, most), EV_HEAL, w, p ? p->rank : 0, p ? p->serial : 0, f | h << 8);
}

static void wake(proc *p)
{
    p->woken_at = S.now;
    if (!p->deferred) return;
    p->deferred = false;
    run_soon(p, uniform(0, 0.002));
}

static void mend_links(void)
{
    for (int i = 0; i < WORLDS; i++)
        if (S.world[i].there && S.world[i].arrived) world_complete(&S.world[i]);
}

static void thaw(int h)
{
    if (!S.host[h].frozen) return;
    TRACE("host %d thaws", h);
    S.host[h].frozen = false;
    S.host[h].thawed_at = S.host[h].healed_at = S.now;
    for (int i = 0; i < WORLDS; i++)
        for (int r = 0; S.world[i].there && r < S.world[i].members; r++)
            if (S.world[i].proc[r].host == h && !S.world[i].proc[r].stopped)
                wake(&S.world[i].proc[r]);
    mend_links();
}

/* All its processes and its memory are gone. */
static void host_dies(int h)
{
    host *o = &S.host[h];

    TRACE("host %d dies", h);
    o->up = false;
    o->died_at = S.now;
    o->frozen = false;
    for (int i = 0; i < WORLDS; i++)
        for (int r = 0; S.world[i].there && r < S.world[i].members; r++)
            if (S.world[i].proc[r].host == h) die(&S.world[i].proc[r], 137);
    S.committed_gone |= S.committed_on & 1u << h;
    memset(o->slot, 0, sizeof o->slot);
}

static void boss_crash(void)
{
    TRACE("the supervisor dies");
    boss_close();
    if (chance(0.6)) /* its processes see that at once, or else when the lease is over */
        for (int i = 0; i < WORLDS; i++)
            for (int r = 0; S.world[i].there && r < S.world[i].members; r++)
                if (runs(&S.world[i].proc[r])) die(&S.world[i].proc[r], 1);
    at(S.now + uniform(0, 1.5), EV_BOSS, 0, 0, 0, 0);
}

/* A replica whose last step came out differently, and a crash by which that is found out. Only
 * where the others are the majority. */
static void diverge(void)
{
    vault *copy[SLOTS], *v;
    int copies = 0, half;

    for (int i = 0; S.has_committed && i < S.host[0].slots; i++) {
        tt_commit c;
        v = &S.host[0].slot[i];
        half = tt_commit_current(&v->head);
        if (half >= 0 && tt_commit_read(&v->head, half, &c) &&
            same_label(c.label, S.committed.label) && v->half[half].v == truth_of(c.label)->v)
            copy[copies++] = v;
    }
    if (copies < 3) return;
    v = copy[below(copies)];
    half = tt_commit_current(&v->head);
    v->half[half].v ^= 1;
    v->half[half] = cut(v->half[half], 0, 1);
    v->half[half].check = tt_mix(v->half[half].v);
    v->head.half[half].hash = hash_of(&v->half[half]);
    TRACE("slot 0.%d has another %s than the others", (int)(v - S.host[0].slot),
          show(S.committed.label));
    for (int i = 0; i < WORLDS; i++)
        for (int r = 0; S.world[i].there && S.world[i].generation && r < S.world[i].members; r++)
            die(&S.world[i].proc[r], 137);
}

static int usable_if(int without)
{
    int n = 0;

    for (int i = 0; i < S.hosts; i++)
        if (i != without && S.host[i].up && S.host[i].in) n += S.host[i].slots;
    return n;
}

static void strike_proc(fault f)
{
    proc *p = some_proc();

    if (!p) return;
    if (f == F_SLOW) {
        p->slow = uniform(3, 12);
        p->was_slow = fmax(p->was_slow, p->slow);
        heal_later(p, 0, f, 0.3, 2);
    } else if (f == F_STUCK) {
        p->stuck = true;
    } else if (f == F_FATAL) {
        S.fatal = true;
        trouble(p, 5, true);
    } else if (f == F_STOP && chance(0.5)) {
        TRACE("world %d rank %d is stopped", p->w->id, p->rank);
        p->stopped = true;
        p->stopped_at = S.now;
        heal_later(p, 0, f, 0.1, 5);
    } else if (chance(0.4)) {
        if (f == F_KILL) die(p, chance(0.2) ? 0 : 137);
    } else {
        p->fuse = 1 + below(40);
        p->fuse_stops = f == F_STOP;
    }
}

static void strike_host(fault f)
{
    int h = below(S.hosts);
    host *o = &S.host[h];

    if (f == F_JOIN) { /* all who are away, within a moment */
        for (int i = 0; i < S.hosts; i++)
            if (!S.host[i].in || !S.host[i].up) heal_later(NULL, i, F_LEAVE, 0, 0.3);
        return;
    }
    if (!o->up) return;
    TRACE("fault %d on host %d", f, h);
    if (!o->frozen && !o->cut_out) o->silent_at = S.now;
    if (f == F_HOST_DIES) {
        host_dies(h);
        heal_later(NULL, h, f, 0.3, 5);
    } else if (f == F_LEAVE) {
        if (usable_if(h) < S.boss.least && chance(0.7)) return;
        o->in = false;
        heal_later(NULL, h, f, 0.5, 5);
    } else if (f == F_CUT) {
        int ways = below(5);
        o->cut_peers |= ways == 4;
        o->cut_in |= ways == 0 || ways == 2 || ways == 3;
        o->cut_out |= ways == 1 || ways == 2 || ways == 3;
        heal_later(NULL, h, f, 0.1, 4);
    } else if (f == F_FREEZE) {
        o->frozen = true;
        heal_later(NULL, h, f, 0.1, 5);
    } else if (f == F_BAD_SLOT) {
        o->bad_until[below(o->slots)] = S.now + uniform(0.5, 4);
    } else if (f == F_MUTE) {
        o->mute = true;
        heal_later(NULL, h, f, 0.5, 8);
    }
}

static void strike_boss(fault f)
{
    boss *b = &S.boss;

    if (!b->up) return;
    if (f == F_BOSS_CRASH) {
        boss_crash();
    } else if (f == F_BOSS_PAUSE && !b->paused) {
        TRACE("the supervisor is paused");
        b->paused = true;
        b->paused_until = S.now + (chance(0.8) ? uniform(0.05, 1.5) : uniform(1.5, 4));
        at(b->paused_until, EV_RESUME, 0, 0, 0, 0);
    } else if (f == F_WANT) {
        int total = usable_if(-1), most = 1 + below(total > RANKS ? RANKS : total > 0 ? total : 1);
        boss_event((tt_event){.kind = TT_EV_WANT, .least = 1 + below(most), .most = most});
        if (chance(0.3)) boss_event((tt_event){.kind = TT_EV_RENEW});
    } else if (f == F_SAVE_AND_STOP) {
        TRACE("stop");
        if (b->stop_at <= 0) b->stop_at = S.now;
        bool save = chance(0.8);
        b->quit |= !save;
        boss_event((tt_event){.kind = save ? TT_EV_STOP : TT_EV_QUIT, .code = 75});
    }
}

static void strike_now(fault f)
{
    S.faults++;
    switch (f) {
    case F_KILL:
    case F_STOP:
    case F_SLOW:
    case F_STUCK:
    case F_FATAL:
        strike_proc(f);
        break;
    case F_KILL_ALL:
        for (int i = 0; i < WORLDS; i++)
            for (int r = 0; S.world[i].there && r < S.world[i].members; r++)
                die(&S.world[i].proc[r], 137);
        break;
    case F_BOSS_PAUSE:
    case F_BOSS_CRASH:
    case F_WANT:
    case F_SAVE_AND_STOP:
        strike_boss(f);
        break;
    case F_IN_RECOVERY:
        S.in_recovery = 1 + below(3);
        break;
    case F_NAN:
        for (int i = 0; i < WORLDS; i++)
            if (S.world[i].there && S.world[i].generation) S.world[i].nan = true;
        break;
    case F_DIVERGE:
        diverge();
        break;
    default:
        strike_host(f);
    }
}

static void on_fault(void)
{
    double w = uniform(0, S.weights);
    int f = 0;

    if (S.calm) return;
    at(S.now - S.gap_s * log(1 - uniform(0, 1)), EV_FAULT, 0, 0, 0, 0);
    while (f < FAULTS - 1 && (w -= S.weight[f]) >= 0) f++;
    strike_now((fault)f);
}

static void heal_host(int h)
{
    host *o = &S.host[h];

    o->in = o->up = true;
    o->cut_in = o->cut_out = o->cut_peers = o->mute = false;
    o->healed_at = S.now;
    thaw(h);
    mend_links();
}

static void on_heal(const event *e)
{
    int h = e->arg >> 8;
    fault f = (fault)(e->arg & 255);
    proc *p = &S.world[e->world].proc[e->rank];

    if (f == F_STOP || f == F_SLOW) {
        if (p->serial != e->serial || !p->alive) return;
        p->slow = 1;
        if (!p->stopped) return;
        TRACE("world %d rank %d goes on", p->w->id, p->rank);
        p->stopped = false;
        wake(p);
    } else if (f == F_MUTE) {
        S.host[h].mute = S.host[h].mute && S.calm; /* then it stays so */
    } else if (f == F_FREEZE) {
        thaw(h);
    } else if (f == F_CUT) {
        S.host[h].cut_in = S.host[h].cut_out = S.host[h].cut_peers = false;
        S.host[h].healed_at = S.now;
        mend_links();
    } else {
        S.host[h].up = S.host[h].in = true;
    }
}

/* A few steps more than any state there is. */
static void cut_short(void)
{
    int64_t most = S.disk.any ? S.disk.label.step : 0;

    for (int h = 0; h < S.hosts; h++)
        for (int i = 0; i < S.host[h].slots; i++)
            for (int half = 0; half < 2; half++) {
                tt_label l = label_in(&S.host[h].slot[i], half);
                if (l.step > most) most = l.step;
            }
    if (most + 20 < S.steps) S.steps = most + 20;
}

/* From here on nothing more goes wrong; all that can heal has. */
static void on_calm(void)
{
    boss *b = &S.boss;
    int mute = below(S.hosts);
    bool stays =
        S.host[mute].mute && !b->paused && usable_if(mute) >= b->least && b->o.max_restarts < 0;

    TRACE("calm");
    S.calm = true;
    S.in_recovery = 0;
    for (int i = 0; i < S.hosts; i++) {
        heal_host(i);
        memset(S.host[i].bad_until, 0, sizeof S.host[i].bad_until);
    }
    S.host[mute].mute = stays; /* one does not heal */
    for (int i = 0; i < WORLDS; i++)
        for (int r = 0; S.world[i].there && r < S.world[i].members; r++) {
            proc *p = &S.world[i].proc[r];
            p->fuse = 0;
            p->slow = 1;
            if (p->stuck && p->pc == PC_COPY && p->alive) die(p, 137);
            p->stuck = false;
            if (p->stopped && chance(0.5)) {
                p->stopped = false;
                wake(p);
            }
        }
    if (!S.whole) cut_short();
    if (b->paused) b->paused_until = S.now;
    at(S.now, EV_RESUME, 0, 0, 0, 0);
}

static void on_agents(void)
{
    at(S.now + AGENT_S, EV_AGENT, 0, 0, 0, 0);
    for (int h = 0; h < S.hosts; h++) {
        if (!S.host[h].up || S.host[h].frozen || S.now - S.host[h].word_at <= LEASE_S) continue;
        for (int i = 0; i < WORLDS; i++)
            for (int r = 0; S.world[i].there && r < S.world[i].members; r++)
                if (S.world[i].proc[r].host == h) die(&S.world[i].proc[r], 137);
    }
}
