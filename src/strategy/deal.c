/* deal: who sits where and does what. All of it follows from the plan, the world and the threads of
 * each rank, so every rank works it out for itself and all come to the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"

void *take(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size);
    if (!p) tt_mem_out(count * size);
    return p;
}

/* ---- Ranks that see each other's memory ---- */

/* A page is shared on trial. If one host cannot, its ranks go on with messages, each a node. */
static tt_err find_nodes(tt_strategy *s, int **color)
{
    tt_world *w = s->world;
    tt_group *host = NULL;
    tt_share trial = {0};
    int mine = w->host, *all = take((size_t)w->size, sizeof *all);
    tt_err err;

    if ((err = tt_group_split(tt_world_all(w), w->host, &host))) goto out;
    err = s->plan.apart ? TT_EENV : tt_share_open(host, 4096, &trial);
    tt_share_close(&trial);
    if (err == TT_EENV) {
        if (host->size > 1 && !s->plan.apart)
            tt_warn("ranks on %s work by messages: %s", w->peer[w->rank].name, tt_message());
        mine = w->host_count + w->rank;
        err = TT_OK;
    }
    if (!err) err = tt_group_gather(tt_world_all(w), &mine, sizeof mine, all);
out:
    tt_group_close(host);
    *color = all;
    return err;
}

static void seat_ranks(tt_strategy *s, const int *color)
{
    tt_world *w = s->world;

    s->nodes = take((size_t)w->size, sizeof *s->nodes);
    for (int r = 0; r < w->size; r++) {
        int h = 0;
        while (h < s->node_count && color[s->nodes[h].rank[0]] != color[r]) h++;
        struct node *n = &s->nodes[h];
        if (h == s->node_count) {
            n->rank = take((size_t)w->size, sizeof *n->rank);
            s->node_count++;
        }
        if (r == w->rank) s->node = h, s->local = n->ranks;
        n->rank[n->ranks++] = r;
        s->seat_count += s->threads[r];
    }
    s->seats = take((size_t)s->seat_count, sizeof *s->seats);
    s->columns = s->nodes[0].ranks;
    int at = 0, place = 0;
    for (int h = 0; h < s->node_count; h++) {
        struct node *n = &s->nodes[h];
        if (n->ranks < s->columns) s->columns = n->ranks;
        n->places = (range){place, place + n->ranks};
        place += n->ranks;
        n->seats.a = at;
        for (int l = 0; l < n->ranks; l++) {
            if (n->rank[l] == w->rank) s->first_seat = at;
            for (int t = 0; t < s->threads[n->rank[l]]; t++)
                s->seats[at++] = (seat){.rank = n->rank[l], .thread = t};
        }
        n->seats.b = at;
    }
    if (s->plan.aggregate == TT_CHIEF || s->codec.kind == CODEC_LOWRANK) s->columns = 1;
}

static bool is_spare(const tt_strategy *s, int at)
{
    return s->plan.workers && s->seats[at].rank >= s->plan.workers;
}

static int count_working(const tt_strategy *s, range seats)
{
    int count = 0;

    for (int i = seats.a; i < seats.b; i++) count += !is_spare(s, i);
    return count;
}

/* Units to the seats of a range, in order, but for spares, unless there is nobody else. */
static void deal_range(tt_strategy *s, range seats, range units)
{
    int64_t n = units.b - units.a, count = count_working(s, seats), at = 0;
    bool all = !count;

    if (all) count = seats.b - seats.a;
    for (int i = seats.a; i < seats.b; i++) {
        int64_t next = at + (all || !is_spare(s, i));
        s->seats[i].units =
            (range){units.a + (int)(n * at / count), units.a + (int)(n * next / count)};
        at = next;
    }
}

/* Hosts with rows of their own: each gets units in proportion, and at least one. */
static tt_err deal_quarters(tt_strategy *s, const int64_t *rows)
{
    const tt_world *w = s->world;
    int64_t all = 0, sum = 0, grains = s->units;
    int at = 0;

    s->quarters = take((size_t)w->host_count, sizeof *s->quarters);
    for (int h = 0; h < w->host_count; h++) all += rows[h];
    for (int i = 0; i < s->seat_count; i++) {
        quarter *q = &s->quarters[w->peer[s->seats[i].rank].host];
        if (q->seats.b && q->seats.b != i)
            return tt_fail(TT_EINVAL, "data.shards: local needs the ranks of a host in a row: have "
                                      "the launcher place them by slot");
        if (!q->seats.b) q->seats.a = i;
        q->seats.b = i + 1;
    }
    for (int h = 0; h < w->host_count; h++) {
        quarter *q = &s->quarters[h];
        int64_t before = grains * sum / all, n;
        q->rows = rows[h];
        sum += rows[h];
        n = s->plan.exact ? grains * sum / all - before : q->seats.b - q->seats.a;
        if (n < 1) n = 1;
        q->units = (range){at, at + (int)n};
        at += (int)n;
        deal_range(s, q->seats, q->units);
    }
    s->units = at;
    return at <= MOST_UNITS ? TT_OK
                            : tt_fail(TT_EINVAL, "%d grains are more than %d", at, MOST_UNITS);
}

void unit_samples(const tt_strategy *s, int u, int *first, int *count)
{
    int64_t n = s->n, at = u, of = s->units;

    for (int h = 0; s->quarters && h < s->world->host_count; h++) {
        range r = s->quarters[h].units;
        if (u < r.a || u >= r.b) continue;
        n = s->host_n[h];
        at = u - r.a;
        of = r.b - r.a;
    }
    *first = (int)(n * at / of);
    *count = (int)(n * (at + 1) / of) - *first;
}

static void settle_units(tt_strategy *s)
{
    for (int h = 0; h < s->node_count; h++) {
        struct node *n = &s->nodes[h];
        n->units = (range){s->seats[n->seats.a].units.a, s->seats[n->seats.b - 1].units.b};
    }
}

/* Units go from rank to rank. */
static bool moves(const tt_strategy *s)
{
    return s->plan.exact && s->plan.balance != TT_BALANCE_OFF && s->world->size > 1;
}

/* How many gradients a seat may have to hold at a time. */
static void count_buffers(tt_strategy *s)
{
    s->buffers = 1;
    if (moves(s)) { /* whatever it will be dealt; what it never uses takes no memory */
        s->buffers = tree_most(s->units) + 1 + 2 * backup_most(s);
        return;
    }
    for (int i = 0; i < s->seat_count; i++) {
        int most = fold_most(s->units, s->seats[i].units);
        if (most > s->buffers) s->buffers = most;
    }
    for (int h = 0; h < s->node_count && s->node_count > 1 && s->plan.exact; h++) {
        ranges r;
        tree_cover(s->units, s->nodes[h].units, &r);
        if (r.count > s->buffers) s->buffers = r.count; /* where its sums are put */
    }
    s->buffers += 2 * backup_most(s); /* units that stay alone, and those of others */
}

/* ---- Dealing anew ---- */

/* Units of a host that has rows of its own stay there: it is a table for itself. Where none move
 * there are no tables, and it is only told who is slow. Spares have no place: wherever they sit,
 * nothing is dealt to them. */
static void open_balance(tt_strategy *s)
{
    const tt_peer *peer = s->world->peer;
    int ranks = s->world->size, places = 0, *number = take((size_t)ranks, sizeof *number);

    s->news = take((size_t)ranks, sizeof *s->news);
    s->pending = take((size_t)ranks, sizeof *s->pending);
    s->paces = take((size_t)ranks, sizeof *s->paces);
    s->places = take((size_t)ranks, sizeof *s->places);
    for (int at = 0; at < s->seat_count;) {
        int rank = s->seats[at].rank, end = at + s->threads[rank];
        if (!is_spare(s, at)) {
            number[places] = s->threads[rank];
            s->places[places++] = (rank_place){rank, {at, end}};
        }
        at = end;
    }
    balance_open(&s->balance, places, number);
    for (int i = 0; i < places; i++) {
        range own = s->places[i].seats;
        number[i] = s->seats[own.b - 1].units.b - s->seats[own.a].units.a;
    }
    for (int first = 0, end; first < places && moves(s); first = end) {
        for (end = first + 1; end < places; end++)
            if (s->quarters && peer[s->places[end].rank].host != peer[s->places[first].rank].host)
                break;
        balance_add(&s->balance, first, end, number + first);
    }
    free(number);
}

/* Who is held up for a moment is not slow: of short steps it takes many to say so. */
static const double SURE_S = 0.2;

static void tell_slow(const tt_strategy *s, const balance_news *n)
{
    int rank = s->places[n->place].rank;
    const char *host = s->world->peer[rank].name;

    if (n->slow)
        tt_warn("step %lld: rank %d on %s is slow: a %s takes it %.1f times as long as most "
                "others%s",
                (long long)s->step + 1, rank, host, s->plan.exact ? "grain" : "sample", n->factor,
                moves(s) ? "; its share of the batch follows" : "");
    else
        tt_warn("step %lld: rank %d on %s keeps up again", (long long)s->step + 1, rank, host);
}

static void take_news(tt_strategy *s, const balance_news *n)
{
    pending *p = &s->pending[n->place];

    if (p->told && !n->slow) tell_slow(s, n);
    p->told = false;
    p->news = *n;
}

/* Rank 0 says who is slow, when it is sure. What counts is how long it has been behind so far: its
 * share follows at once, and then the steps are short again. */
static void tell_news(tt_strategy *s, int news)
{
    double now = tt_clock_s();

    if (s->world->rank) return;
    for (int i = 0; i < news; i++) take_news(s, &s->news[i]);
    for (int i = 0; i < s->balance.ranks; i++) {
        pending *p = &s->pending[i];
        const pace *at = &s->balance.ranks_at[i];
        if (!at->slow && at->other == 1) p->since = now - s->row.times.step;
        if (!p->news.slow || p->told || now - p->since < SURE_S) continue;
        p->told = true;
        tell_slow(s, &p->news);
    }
}

static void tell_deal(const tt_strategy *s)
{
    char text[256];
    int at = 0;

    if (s->world->rank || s->plan.balance == TT_BALANCE_RANDOM) return;
    for (int i = 0; i < s->balance.ranks && at < (int)sizeof text - 32; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%d to rank %d", i ? ", " : "",
                       s->balance.ranks_at[i].units, s->places[i].rank);
    tt_info("step %lld: grains are dealt anew: %s", (long long)s->step + 1, text);
}

void deal_again(tt_strategy *s)
{
    balance *b = &s->balance;
    int news = 0;

    if (!b->ranks) return;
    for (int i = 0; i < b->ranks; i++) s->paces[i] = s->times[s->places[i].rank].unit;
    bool changed = balance_hear(b, s->paces, s->news, &news);
    tell_news(s, news);
    if (s->plan.balance == TT_BALANCE_RANDOM) balance_shuffle(b, (uint64_t)s->step);
    if (!changed && (s->plan.balance != TT_BALANCE_RANDOM || !moves(s))) return;
    for (const table *t = b->tables; t < b->tables + b->table_count; t++) {
        int at = s->seats[s->places[t->first].seats.a].units.a;
        for (int i = t->first; i < t->end; at += b->ranks_at[i++].units)
            deal_range(s, s->places[i].seats, (range){at, at + b->ranks_at[i].units});
    }
    for (int i = 1; i < s->seat_count; i++) /* the first is rank 0's, who is none */
        if (is_spare(s, i)) s->seats[i].units.a = s->seats[i].units.b = s->seats[i - 1].units.b;
    settle_units(s);
    s->planned = false;
    tell_deal(s);
}

/* average: the batch is dealt as ever, but each rank sums and updates by itself. */
static void stay_apart(tt_strategy *s)
{
    struct node *own = &s->nodes[0];
    int threads = s->threads[s->world->rank];

    for (int h = 1; h < s->node_count; h++) free(s->nodes[h].rank);
    own->rank[0] = s->world->rank;
    own->ranks = 1;
    own->seats = (range){s->first_seat, s->first_seat + threads};
    own->units = (range){s->seats[own->seats.a].units.a, s->seats[own->seats.b - 1].units.b};
    own->places = (range){0, 1};
    s->node_count = s->columns = 1;
    s->node = s->local = 0;
}

tt_err deal_open(tt_strategy *s, int threads, const int64_t *rows)
{
    tt_world *w = s->world;
    int *color = NULL;
    tt_err err;

    s->threads = take((size_t)w->size, sizeof *s->threads);
    if ((err = tt_group_gather(tt_world_all(w), &threads, sizeof threads, s->threads)) ||
        (err = find_nodes(s, &color)))
        goto out;
    seat_ranks(s, color);
    if (rows || s->plan.aggregate == TT_AVERAGE) s->plan.workers = 0;
    int64_t units = s->plan.exact ? s->plan.grains * s->plan.accumulate
                                  : count_working(s, (range){0, s->seat_count});
    if (units > MOST_UNITS) {
        err = tt_fail(TT_EINVAL, "%lld %s are more than the %d there can be", (long long)units,
                      s->plan.exact ? "grains" : "threads of all ranks", MOST_UNITS);
        goto out;
    }
    s->units = (int)units;
    if (s->plan.exact) s->plan.accumulate = 1;
    if (rows) {
        if ((err = deal_quarters(s, rows))) goto out;
    } else {
        deal_range(s, (range){0, s->seat_count}, (range){0, s->units});
    }
    settle_units(s);
    if (s->plan.aggregate != TT_AVERAGE && w->size > 1) open_balance(s);
    count_buffers(s);
    if (s->plan.aggregate == TT_AVERAGE) stay_apart(s);
    bool has_column = s->local < s->columns;
    int self = s->plan.aggregate == TT_AVERAGE ? w->rank : -1;
    if ((err = tt_group_split(tt_world_all(w), self < 0 ? s->node : self, &s->node_group)) ||
        (err = tt_group_split(tt_world_all(w),
                              self >= 0    ? self
                              : has_column ? s->local
                                           : -1,
                              &s->column_group)))
        goto out;
    s->member = take((size_t)s->node_count, sizeof *s->member);
    for (int h = 0; has_column && h < s->node_count; h++)
        while (s->column_group->rank[s->member[h]] != s->nodes[h].rank[s->local]) s->member[h]++;
    s->staged =
        s->node_count > 1 || (s->plan.aggregate == TT_ALLREDUCE && s->nodes[s->node].ranks > 1);
out:
    free(color);
    return err;
}

/* ---- Buckets ---- */

/* Pieces [first, end) in `parts` runs of about equal size: where each begins. */
static void cut(const tt_strategy *s, int first, int end, int parts, int *begin)
{
    int64_t all = 0, before = 0;
    int i = first;

    for (int p = first; p < end; p++) all += tt_optim_piece(s->optim, p).n;
    for (int k = 0; k < parts; k++) {
        /* a piece goes to the part in which its middle lies */
        while (i < end && 2 * (before * parts) + (int64_t)tt_optim_piece(s->optim, i).n * parts <=
                              2 * all * k) {
            before += tt_optim_piece(s->optim, i).n;
            i++;
        }
        begin[k] = i;
    }
    begin[parts] = end;
}

static tt_span span_of(const tt_strategy *s, int first, int end)
{
    if (first >= end) return (tt_span){0, 0};
    tt_piece a = tt_optim_piece(s->optim, first), b = tt_optim_piece(s->optim, end - 1);
    return (tt_span){a.at, b.at + b.n - a.at};
}

static void fill_bucket(tt_strategy *s, bucket *b, int index)
{
    int parts = s->columns * s->node_count, *begin = take((size_t)parts + 1, sizeof *begin);

    b->all = span_of(s, b->first_piece, b->end_piece);
    b->part = take((size_t)parts, sizeof *b->part);
    b->pieces = take((size_t)parts, sizeof *b->pieces);
    cut(s, b->first_piece, b->end_piece, parts, begin);
    if (s->plan.aggregate == TT_CHIEF)
        for (int k = 1; k <= parts; k++) begin[k] = b->end_piece;
    for (int k = 0; k < parts; k++) {
        b->part[k] = span_of(s, begin[k], begin[k + 1]);
        b->pieces[k] = (range){begin[k], begin[k + 1]};
        for (int p = begin[k]; p < begin[k + 1]; p++) {
            s->piece_bucket[p] = index;
            s->piece_column[p] = k / s->node_count;
            s->piece_node[p] = k % s->node_count;
        }
    }
    free(begin);
}

tt_span column_of(const tt_strategy *s, const bucket *b, int c)
{
    tt_span all = {0, 0};

    for (int h = 0; h < s->node_count; h++) {
        tt_span p = b->part[c * s->node_count + h];
        if (!p.n) continue;
        if (!all.n) all = p;
        all.n = p.at + p.n - all.at;
    }
    return all;
}

/* PowerSGD takes whole tensors: would a bucket that begins here cut one? */
static bool is_cut(const tt_strategy *s, int first)
{
    return s->codec.kind == CODEC_LOWRANK && first < s->piece_count &&
           tt_optim_piece(s->optim, first).param == tt_optim_piece(s->optim, first - 1).param;
}

tt_err deal_buckets(tt_strategy *s)
{
    int count = tt_model_grads(s->model, NULL, 0);
    tt_span *grad = take((size_t)count, sizeof *grad);
    size_t pieces = (size_t)tt_optim_piece_count(s->optim);

    tt_model_grads(s->model, grad, count);
    s->piece_count = (int)pieces;
    s->piece_bucket = take(pieces, sizeof *s->piece_bucket);
    s->piece_column = take(pieces, sizeof *s->piece_column);
    s->piece_node = take(pieces, sizeof *s->piece_node);
    s->buckets = take(pieces, sizeof *s->buckets);
    for (int end = (int)pieces, first; end > 0; end = first) {
        bucket *b = &s->buckets[s->bucket_count];
        int64_t bytes = 0;
        for (first = end; first > 0 && (bytes < s->plan.bucket_bytes || is_cut(s, first));)
            bytes += 4 * (int64_t)tt_optim_piece(s->optim, --first).n;
        b->first_piece = first;
        b->end_piece = end;
        fill_bucket(s, b, s->bucket_count++);
        for (int y = 0; y < count; y++)
            if (grad[y].at < b->all.at + b->all.n && b->all.at < grad[y].at + grad[y].n)
                b->yields = y + 1;
    }
    free(grad);
    return TT_OK;
}

void deal_close(tt_strategy *s)
{
    for (int h = 0; h < s->node_count; h++) free(s->nodes[h].rank);
    for (int b = 0; b < s->bucket_count; b++) {
        free(s->buckets[b].part);
        free(s->buckets[b].pieces);
    }
    tt_group_close(s->node_group);
    tt_group_close(s->column_group);
    balance_close(&s->balance);
    free(s->news);
    free(s->pending);
    free(s->places);
    free(s->backups);
    free(s->paces);
    free(s->quarters);
    free(s->threads);
    free(s->seats);
    free(s->nodes);
    free(s->member);
    free(s->piece_bucket);
    free(s->piece_column);
    free(s->piece_node);
    free(s->buckets);
}
