/* One slot, and all who may look at it. Where the seeds of the simulator are samples, this is all
 * of a life: what a kill leaves at each of its stores; and for any two of them, what somebody has
 * who looked at the head at the first, read what he wanted, and looked again at the second. */

enum { IMAGES = 8192, LIFE = 160 };

typedef struct state { /* what is in a half; v 0: nothing */
    uint64_t v, note;
    tt_label label;
} state;

typedef struct image {
    tt_commit_head head;
    uint64_t bytes[2][2];   /* (half, word)        */
    uint64_t note[2][2][2]; /* (half, place, word) */
    state was, will;        /* the state before and after what is being done */
} image;

static struct {
    image now;
    image *at; /* (IMAGES) before each store, and at the end */
    int count;
    state current, before;
    uint64_t made; /* states and notes: no two are the same */
} L;

static void keep_image(void)
{
    if (L.count < IMAGES)
        memcpy(&L.at[L.count++], &L.now, sizeof L.now);
    else
        violate("a life has more than %d stores", IMAGES);
}

static void put(uint64_t *where, uint64_t value)
{
    keep_image();
    *where = value;
}

/* ---- what is done ---- */

static void do_note(int half, uint64_t note)
{
    uint64_t *to = L.now.note[half][tt_commit_spare(&L.now.head, half)];

    put(&to[0], note);
    put(&to[1], tt_mix(note));
    tt_commit_amend(&L.now.head, half);
}

/* As a step begins it, which knows nothing of heads; and who commits begins it again. */
static int do_marks(void)
{
    _Atomic uint64_t *whole, *begun;

    tt_commit_marks(&L.now.head, &whole, &begun);
    keep_image();
    atomic_store(whole, 0);
    keep_image();
    atomic_fetch_add(begun, 1);
    return tt_commit_begin(&L.now.head);
}

static void do_commit(tt_label label, uint64_t v)
{
    tt_commit what = {.label = label, .hash = v};
    state was = L.current;
    int half;

    L.now.was = was;
    L.now.will = L.current = (state){v, ++L.made, label};
    half = L.made % 2 ? tt_commit_begin(&L.now.head) : do_marks();
    put(&L.now.bytes[half][0], ~v); /* it goes through something else */
    put(&L.now.bytes[half][1], 0);
    put(&L.now.bytes[half][0], v);
    put(&L.now.bytes[half][1], tt_mix(v));
    do_note(half, L.current.note);
    tt_commit_describe(&L.now.head, half, &what);
    tt_commit_flip(&L.now.head, half);
    L.before = older(label, was.label) ? (state){0} : was;
}

static void do_undo(void)
{
    L.now.was = L.current;
    L.now.will = L.before.v ? L.before : L.current;
    if (tt_commit_undo(&L.now.head) != (L.before.v != 0))
        violate("undo of %s: %s before it", show(L.current.label),
                L.before.v ? "there was a state" : "there was nothing");
    L.current = L.now.will;
    L.before = (state){0};
}

static void do_amend(void)
{
    L.now.was = L.current;
    L.current.note = ++L.made;
    L.now.will = L.current;
    do_note(tt_commit_current(&L.now.head), L.current.note);
}

/* What a slot may go through: steps, above all, the same one again after it was taken back, another
 * copy of the same state, a rollback, a state that is older than what was there. */
static void do_something(uint64_t chance)
{
    tt_label l = L.current.label;
    state was = L.current;

    switch (chance % 12) {
    case 0:
        do_undo();
        break;
    case 1:
    case 2:
        do_undo();
        do_commit(was.label, was.v);
        break;
    case 3:
        do_commit(l, ++L.made << 8);
        break;
    case 4:
        l.attempt++;
        l.step = l.step > 3 ? l.step - 3 : 0;
        do_commit(l, ++L.made << 8);
        break;
    case 5:
        if (l.generation) l.generation--;
        do_commit(l, ++L.made << 8);
        break;
    case 6:
        l.generation += 2;
        do_commit(l, was.v);
        break;
    case 7:
    case 8:
        do_amend();
        break;
    default:
        l.step++;
        do_commit(l, ++L.made << 8);
    }
}

/* ---- what is seen of it ---- */

static bool has_bytes(const image *m, int half, uint64_t v)
{
    return m->bytes[half][0] == v && m->bytes[half][1] == tt_mix(v);
}

static bool has_note(const image *m, int half, uint64_t noted, uint64_t note)
{
    const uint64_t *at = m->note[half][noted & 1];

    return at[0] == note && at[1] == tt_mix(note);
}

static bool is_state(const image *m, int half, const tt_commit *c, const state *s)
{
    return s->v == c->hash && same_label(s->label, c->label) &&
           has_note(m, half, c->noted, s->note);
}

/* At any store the state is what it was, or what it will be. */
static void check_kill(const image *m)
{
    int now = tt_commit_current(&m->head);
    tt_commit c;

    for (int half = 0; half < 2; half++) {
        if (!tt_commit_read(&m->head, half, &c)) {
            if (half == now) violate("what is current is not there");
            continue;
        }
        if (!has_bytes(m, half, c.hash)) violate("%s counts and is not whole", show(c.label));
        if (!has_note(m, half, c.noted, m->note[half][c.noted & 1][0]))
            violate("the note of %s is not whole", show(c.label));
        if (half == now && !is_state(m, half, &c, &m->was) && !is_state(m, half, &c, &m->will))
            violate("%s is neither what was there nor what will be", show(c.label));
    }
    if (now < 0 && m->was.v) violate("nothing is current any more");
}

/* Between two things that are done it is exactly what it should be. */
static void check_rest(void)
{
    int now = tt_commit_current(&L.now.head);
    tt_commit c;

    if (now < 0 || !tt_commit_read(&L.now.head, now, &c) || !is_state(&L.now, now, &c, &L.current))
        violate("%s is not current", show(L.current.label));
    else if (tt_commit_read(&L.now.head, !now, &c) != (L.before.v != 0))
        violate("beside %s there is %s", show(L.current.label), L.before.v ? "nothing" : "another");
    else if (L.before.v && !is_state(&L.now, !now, &c, &L.before))
        violate("%s is not before %s", show(L.before.label), show(L.current.label));
}

/* Who reads from image i on, and looks again at any later one. */
static void check_reader(int i, int half)
{
    bool same = true, same_note = true;
    uint64_t note;
    tt_commit c;

    if (!tt_commit_read(&L.at[i].head, half, &c)) return;
    note = L.at[i].note[half][c.noted & 1][0];
    for (int j = i; j < L.count && !S.bad; j++) {
        const image *m = &L.at[j];
        if (m->head.half[half].begun != c.begun) return;
        same &= has_bytes(m, half, c.hash);
        same_note &= has_note(m, half, c.noted, note);
        if (!same) violate("who read %s is not told that it was written to", show(c.label));
        if (!same_note && m->head.half[half].noted == c.noted)
            violate("who read the note of %s is not told that it was replaced", show(c.label));
    }
}

/* True if all held. */
static bool live_a_life(void)
{
    static image images[IMAGES];

    memset(&L, 0, sizeof L);
    L.at = images;
    S.bad = false;
    S.seed = 0;
    tt_plant_store = keep_image;
    do_commit((tt_label){3, 0, 0}, ++L.made << 8);
    for (uint64_t i = 0; i < LIFE && !S.bad; i++) {
        do_something(tt_mix(i));
        check_rest();
    }
    keep_image();
    for (int i = 0; i < L.count && !S.bad; i++) {
        check_kill(&L.at[i]);
        for (int half = 0; half < 2 && !S.bad; half++) check_reader(i, half);
    }
    return !S.bad;
}
