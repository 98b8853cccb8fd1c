/* One seed from its beginning to its end. */

static void choose_hosts(void)
{
    tt_policy_opts *o = &S.boss.o;
    int total = 0;

    S.hosts = S.diverged ? 1 : S.wanders ? 2 + below(2) : 1 + below(5);
    for (int i = 0; i < S.hosts; i++) {
        S.host[i].slots = S.diverged ? 3 : S.wanders ? 1 : 1 + below(SLOTS);
        if (total + S.host[i].slots > RANKS - 5) S.host[i].slots = 1;
        total += S.host[i].slots;
        S.host[i].up = true;
        S.host[i].in = i == 0 || chance(0.85);
        S.host[i].thawed_at = S.host[i].healed_at = -1;
    }
    *o = tt_policy_defaults();
    o->most = S.diverged ? 3 : S.wanders ? 1 : 1 + below(total);
    o->least = S.diverged || chance(0.4) ? o->most : 1 + below(o->most);
    o->spares = chance(0.8) ? 0 : 1;
    o->stuck_s = uniform(0.6, 1.5);
    o->slow_s = uniform(1.5, 2);
    o->start_s = uniform(1, 2);
    o->yield_s = uniform(0.3, 1);
    o->stop_s = uniform(0.3, 1);
    o->wait_s = chance(0.5) ? uniform(1, 5) : 30;
    o->penance_s = uniform(0.2, 1);
    o->max_restarts = chance(0.95) ? -1 : 1 + below(20);
    o->standby = chance(0.75);
    S.boss.least = o->least;
    S.boss.most = o->most;
}

static void choose_ways(void)
{
    S.diverged = chance(0.04);
    S.wanders = !S.diverged && chance(0.15);
    S.exact = chance(0.5);
    S.sharded = !S.diverged && chance(0.5);
    S.mirrored = S.sharded && chance(0.6);
    S.rotates = S.sharded && chance(0.4);
    S.slow_ops = chance(0.2);
    S.compute_s = uniform(0.005, 0.06);
    S.comm_s = chance(0.5) ? uniform(0.5, 1.5) : 1e9;
    S.delay_s = chance(0.8) ? 0.01 : 0.1;
    S.gap_s = exp(uniform(log(0.05), log(1.5)));
    S.end_of_faults = uniform(0.5, 5);
    S.steps = 20 + below(20 + below(STEPS_MOST - 40));
    S.whole = chance(0.1);
    S.writes = chance(0.02);
    for (int f = 0; f < FAULTS; f++) S.weight[f] = chance(0.35) ? uniform(0.05, 1) : 0;
    if (S.diverged) {
        memset(S.weight, 0, sizeof S.weight);
        S.weight[F_DIVERGE] = 1;
        S.weight[F_KILL] = chance(0.5);
        S.weight[F_NAN] = chance(0.5);
        S.weight[F_BOSS_CRASH] = chance(0.3);
    } else {
        S.weight[F_DIVERGE] = 0;
    }
    if (S.wanders) { /* a small world that goes from host to host, and leaves its state behind */
        static const fault some[] = {F_LEAVE, F_LEAVE, F_BOSS_CRASH, F_KILL, F_NAN, F_CUT};
        memset(S.weight, 0, sizeof S.weight);
        for (int i = 0; i < 6; i++) S.weight[some[i]] += uniform(0, 1);
        S.gap_s = uniform(0.1, 0.3);
        S.compute_s = uniform(0.005, 0.03);
        S.end_of_faults = uniform(2, 6);
    }
    if (S.weight[F_SAVE_AND_STOP] > 0) S.weight[F_SAVE_AND_STOP] = 0.1;
    if (S.weight[F_FATAL] > 0) S.weight[F_FATAL] = 0.05;
    for (int f = 0; f < FAULTS; f++) S.weights += S.weight[f];
    if (S.weights <= 0) S.weights = S.weight[F_KILL] = 1;
}

static void open_sim(uint64_t seed)
{
    static truth truths[TRUTHS];
    static char lines[TRACE_LINES][160];
    static uint64_t runs_so_far;
    bool tracing = S.tracing;
    int heap = (int)offsetof(sim, heap), heap_end = (int)offsetof(sim, heaped);

    /* The heap and the worlds need no cleaning: what is used is counted. */
    memset(&S, 0, (size_t)heap);
    memset((char *)&S + heap_end, 0, sizeof S - (size_t)heap_end);
    S.tracing = tracing;
    S.trace = lines;
    S.truth = truths;
    S.run = ++runs_so_far;
    S.seed = seed;
    tt_plant_store = on_store;
    choose_ways();
    choose_hosts();
    S.golden[0] = initial().v;
    for (int64_t s = 0; s < S.steps && S.exact; s++)
        S.golden[s + 1] = next_v(S.golden[s], (tt_label){0, 0, s}, 0);
    TRACE("seed %llu: %d hosts, workers %d to %d, spares %d, %s, %s%s%s, %lld steps of %.0f ms",
          (unsigned long long)seed, S.hosts, S.boss.least, S.boss.most, S.boss.o.spares,
          S.exact ? "exact" : "fast", S.sharded ? "sharded" : "replicated",
          S.mirrored ? ", mirrored" : "", S.rotates ? ", rotating" : "", (long long)S.steps,
          S.compute_s * 1000);
}

/* Invariant 8: after the last fault heals a step commits within 5 s; later only by a delay that the
 * policy owes. */
static void check_liveness(void)
{
    const boss *b = &S.boss;
    double since = S.end_of_faults;

    if (!S.calm || !b->up || b->exited) return;
    if (S.committed_at > since) since = S.committed_at;
    if (b->up_since > since) since = b->up_since;
    if (b->owed_until > since) since = b->owed_until;
    for (int h = 0; h < S.hosts; h++)
        for (int i = 0; i < S.host[h].slots; i++) {
            double back = b->slot[h][i].out_at + b->o.penance_s * (1 << b->slot[h][i].outs) / 2;
            if (b->slot[h][i].out && back > since) since = back;
        }
    if (S.now - since > RECOVER_S)
        violate("no step was committed for %.1f s, and nothing is wrong any more", S.now - since);
}

/* When it is calm for long, there are as many workers as can be. */
static void check_size(void)
{
    const boss *b = &S.boss;
    double last = b->failed_at > b->start_failed_at ? b->failed_at : b->start_failed_at;
    int workers = -b->o.spares, got;

    if (!S.calm || !boss_works() || b->exited || S.now - S.end_of_faults < 4 || S.now - last < 10 ||
        S.now - b->up_since < 4)
        return;
    for (int h = 0; h < S.hosts; h++)
        for (int i = 0; i < S.host[h].slots; i++) {
            workers++;
            if (b->slot[h][i].outs || S.host[h].mute) return; /* it may be back just now */
        }
    if (workers > b->most) workers = b->most;
    if (workers < b->least) workers = b->least;
    got = tt_policy_look(b->policy).workers;
    if (got != workers) violate("%d workers, and there could be %d", got, workers);
}

static void on_tick(void)
{
    at(S.now + TICK_S, EV_TICK, 0, 0, 0, 0);
    if (boss_works()) boss_tick();
    check_liveness();
    check_size();
}

/* The run has ended, or is taken up again. */
static void after_exit(void)
{
    boss *b = &S.boss;

    if (!b->up || !b->exited) return;
    if (b->exit_code == 0) {
        S.done = true;
        if (!S.disk.any || S.disk.label.step < S.steps)
            violate("the run has ended, and its last checkpoint is of step %lld",
                    S.disk.any ? (long long)S.disk.label.step : -1);
        return;
    }
    boss_close();
    at(S.now + uniform(0, 0.5), EV_BOSS, 0, 0, 0, 0);
}

static void take_event(const event *e)
{
    world *w = &S.world[e->world];
    proc *p = &w->proc[e->rank];
    bool of_proc = w->there && e->rank < w->members && e->serial && p->serial == e->serial;

    switch ((kind)e->kind) {
    case EV_RUN:
        if (of_proc) run_rank(p);
        break;
    case EV_BEAT:
        if (of_proc && p->alive) on_beat(p);
        break;
    case EV_SPAWN:
        if (of_proc) spawn(p);
        break;
    case EV_GO:
        if (!of_proc || !p->alive || S.host[p->host].cut_in || p->pc != PC_READY) break;
        p->pc = PC_LOOK;
        run_rank(p);
        break;
    case EV_ACK:
        if (of_proc && runs(p) && !S.host[p->host].cut_in && p->pc == PC_ASKED && !p->waiting)
            arrive(p);
        break;
    case EV_YIELD:
    case EV_SAVE:
        if (!of_proc || !runs(p) || S.host[p->host].cut_in) break;
        w->yield_asked |= e->kind == EV_YIELD;
        w->save_asked |= e->kind == EV_SAVE;
        break;
    case EV_MAIL: {
        letter l = S.mail[e->arg];
        S.mail[e->arg].used = false;
        boss_deliver(&l);
        break;
    }
    case EV_SWEEP:
        if (w->there && w->known && w->id == e->arg) sweep(w);
        break;
    case EV_TICK:
        on_tick();
        break;
    case EV_AGENT:
        on_agents();
        break;
    case EV_FAULT:
        on_fault();
        break;
    case EV_HEAL:
        on_heal(e);
        break;
    case EV_CALM:
        on_calm();
        break;
    case EV_BOSS:
        boss_start();
        break;
    case EV_RESUME:
        if (!S.boss.paused || S.now < S.boss.paused_until) break;
        TRACE("the supervisor goes on");
        S.boss.paused = false;
        S.boss.resumed_at = S.now;
        drain();
        break;
    }
}

/* The judge says the same of the text that was written as of the records. */
static void check_text(void)
{
    tt_ledger l = {0};

    if (tt_ledger_read(&l, S.text.data, S.text.size))
        violate("the ledger cannot be read: %s", tt_message());
    else if (l.bad || !l.ended || !same_label(l.told.label, S.ledger.told.label) ||
             l.epoch != S.ledger.epoch)
        violate("the ledger that was read is not what was written: %s", l.what);
}

/* True if all held. */
static bool run_seed(uint64_t seed)
{
    open_sim(seed);
    at(0, EV_BOSS, 0, 0, 0, 0);
    at(0.001, EV_TICK, 0, 0, 0, 0);
    at(0.002, EV_AGENT, 0, 0, 0, 0);
    at(uniform(0, 0.5), EV_FAULT, 0, 0, 0, 0);
    at(S.end_of_faults, EV_CALM, 0, 0, 0, 0);
    while (!S.bad && !S.done) {
        event e = next_event();
        S.now = e.t;
        take_event(&e);
        after_exit();
        if (S.now > 300) violate("the run has not ended after %.0f s", S.now);
    }
    if (S.writes && !S.bad) check_text();
    tt_str_free(&S.text);
    if (S.boss.policy) tt_policy_close(S.boss.policy);
    S.boss.policy = NULL;
    return !S.bad;
}

static void print_trace(void)
{
    uint64_t first = S.traced > TRACE_LINES ? S.traced - TRACE_LINES : 0;

    for (uint64_t i = first; i < S.traced; i++) fprintf(stderr, "%s\n", S.trace[i % TRACE_LINES]);
}

/* Runs a seed that failed once more, and prints how it came to that. */
static void show_seed(uint64_t seed)
{
    S.tracing = true;
    run_seed(seed);
    S.tracing = false;
    print_trace();
    fprintf(stderr, "seed %llu: %s\nagain: SIM_SEED=%llu\n", (unsigned long long)seed, S.what,
            (unsigned long long)seed);
}
