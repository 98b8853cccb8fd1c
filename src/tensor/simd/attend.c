/* Attention: for each head, QUERIES rows of scores at a time, which stay in the second-level cache
 * from the products to the softmax and back to products.
 *
 * All products are those of panel.h. What is in panels is packed once for a head: keys and values,
 * on the way back queries and gradients, too. Where it is causal, a tile of queries goes with the
 * keys that the last of them sees, and a tile of keys with the queries from its first one on: what
 * is computed in vain is half a tile. Both count tiles from 0, and so they meet. */
#include "tensor/simd/panel.h"
#include "tensor/simd/table.h"
#include "tensor/simd/vmath.h"

enum { QUERIES = 12 * TILE_M };

/* ---- one head ---- */

typedef struct head {
    const tt_attend_args *a;
    int64_t step, out;      /* from position to position, of x and of y */
    const float *q, *k, *v; /* of this head                             */
    const float *dy, *y;
    float *to, *dq, *dk, *dv, *lse;
    int64_t room;                       /* of a row of scores                       */
    float *s, *ds;                      /* (QUERIES, room)                          */
    float *kt, *vt, *kp, *vp, *qp, *gp; /* panels                          */
    float *sk, *sv;                     /* (t, dim): sums of gradients              */
} head;

static int64_t room_of(const tt_attend_args *a)
{
    return (int64_t)panels_of(a->t) * PANEL;
}

static int64_t lay_out(const tt_attend_args *a, bool back, float *at, head *h)
{
    int64_t turned = packed(a->dim, a->t), plain = packed(a->t, a->dim), used = 0;
    int64_t score = QUERIES * room_of(a), sums = ((int64_t)a->t * a->dim + 15) / 16 * 16;
    struct {
        float **where;
        int64_t n;
        bool back;
    } part[] = {{&h->s, score, false}, {&h->kt, turned, false}, {&h->vp, plain, false},
                {&h->ds, score, true}, {&h->vt, turned, true},  {&h->kp, plain, true},
                {&h->qp, plain, true}, {&h->gp, plain, true},   {&h->sk, sums, true},
                {&h->sv, sums, true}};

    for (int i = 0; i < TT_COUNT(part); i++) {
        if (part[i].back && !back) continue;
        *part[i].where = at ? at + used : NULL;
        used += part[i].n;
    }
    return used;
}

size_t TT_SIMD(attend_scratch)(const tt_attend_args *a)
{
    head h;
    return (size_t)lay_out(a, true, NULL, &h) * sizeof(float);
}

static head head_of(const tt_attend_args *a, int i, int n, bool back)
{
    int64_t wide = (int64_t)a->heads * a->dim, at = (int64_t)i * a->t * wide + n * a->dim;
    int64_t in = (int64_t)i * a->t * 3 * wide + n * a->dim;
    head h = {.a = a, .step = 3 * wide, .out = wide, .room = room_of(a)};

    h.q = a->x + in, h.k = h.q + wide, h.v = h.k + wide;
    h.lse = a->lse ? a->lse + ((int64_t)i * a->heads + n) * a->t : NULL;
    h.y = h.to = a->y + at;
    if (back) {
        h.dy = a->dy + at;
        h.dq = a->dx + in, h.dk = h.dq + wide, h.dv = h.dk + wide;
    }
    lay_out(a, back, a->scratch, &h);
    return h;
}

/* Keys that any of the queries of the tile from `first` on sees. */
static int reach(const head *h, int first)
{
    return h->a->causal ? min_int(first + TILE_M, h->a->t) : h->a->t;
}

/* Of m queries from `first` on: their rows in t.a, by keys in t.b, to scores in t.c. */
static void by_keys(const head *h, int first, int m, product t)
{
    t.k = h->a->dim, t.ldc = h->room, t.ak = 1;
    for (int i = 0; i < m; i += TILE_M, t.a += TILE_M * t.am, t.c += TILE_M * t.ldc)
        multiply(min_int(TILE_M, m - i), reach(h, first + i), t, t.k);
}

/* The same way back: scores in t.a, by what the keys have in t.b. */
static void by_scores(const head *h, int first, int m, product t)
{
    t.am = h->room, t.ak = 1;
    for (int i = 0; i < m; i += TILE_M, t.a += TILE_M * t.am, t.c += TILE_M * t.ldc) {
        t.k = reach(h, first + i);
        multiply(min_int(TILE_M, m - i), h->a->dim, t, h->a->t);
    }
}

/* For keys, sums over these queries: scores in t.a, by what the queries have in t.b. */
static void by_queries(const head *h, int first, int m, product t)
{
    int n = h->a->causal ? first + m : h->a->t;

    t.am = 1, t.ak = h->room, t.ldc = h->a->dim, t.add = true;
    t.b += first * PANEL;
    for (int j = 0; j < n; j += TILE_M) {
        int skip = h->a->causal && j > first ? j - first : 0;
        product u = t;
        u.k = m - skip;
        u.a += j + skip * t.ak, u.b += skip * PANEL, u.c += j * t.ldc;
        multiply(min_int(TILE_M, n - j), h->a->dim, u, h->a->t);
    }
}

static void score(const head *h, int first, int m)
{
    by_keys(h, first, m,
            (product){.a = h->q + first * h->step, .am = h->step, .b = h->kt, .c = h->s});
}

/* A row of scores to probabilities; those of keys that are not seen become 0. */
static float soften(float *s, int seen, int n)
{
    float total, high = vexp_row(s, seen, 1, &total);

    for (int j = 0; j < seen; j += VW) {
        int take = vtake(j, seen);
        vstore_n(s + j, vload_n(s + j, take) * (1 / total), take);
    }
    for (int j = seen; j < n; j++) s[j] = 0;
    return high + logf(total);
}

static void forward_head(const head *h)
{
    const tt_attend_args *a = h->a;

    pack_turned(h->k, h->step, a->dim, a->t, 1 / sqrtf((float)a->dim), h->kt);
    pack(h->v, h->step, a->t, a->dim, h->vp);
    for (int first = 0; first < a->t; first += QUERIES) {
        int m = min_int(QUERIES, a->t - first);
        score(h, first, m);
        for (int i = 0; i < m; i++) {
            int n = reach(h, first + i / TILE_M * TILE_M);
            float lse = soften(h->s + i * h->room, a->causal ? first + i + 1 : n, n);
            if (h->lse) h->lse[first + i] = lse;
        }
        by_scores(h, first, m,
                  (product){.a = h->s, .b = h->vp, .c = h->to + first * h->out, .ldc = h->out});
    }
}

void TT_SIMD(attend_forward)(const tt_attend_args *a)
{
    for (int i = 0; i < a->n; i++)
        for (int n = 0; n < a->heads; n++) {
            head h = head_of(a, i, n, false);
            forward_head(&h);
        }
}

/* ---- backward ---- */

/* Scores to probabilities again, and to the gradient of the scores. */
static void slope(const head *h, int i, int at, int seen, int n)
{
    const tt_attend_args *a = h->a;
    float *s = h->s + i * h->room, *ds = h->ds + i * h->room, mean, lse = h->lse[at];
    float scale = 1 / sqrtf((float)a->dim);
    vf sum = vzero();

    for (int d = 0; d < a->dim; d += VW) {
        int take = vtake(d, a->dim);
        sum += vload_part(h->dy + at * h->out + d, take) * vload_part(h->y + at * h->out + d, take);
    }
    mean = vsum(sum);
    for (int j = 0; j < seen; j += VW) {
        int take = vtake(j, seen);
        vf p = vexp(vload_n(s + j, take) - lse);
        vstore_n(s + j, p, take);
        vstore_n(ds + j, p * (vload_n(ds + j, take) - mean) * scale, take);
    }
    for (int j = seen; j < n; j++) s[j] = ds[j] = 0;
}

static void backward_rows(const head *h, int first, int m)
{
    const tt_attend_args *a = h->a;

    score(h, first, m);
    by_keys(h, first, m,
            (product){.a = h->dy + first * h->out, .am = h->out, .b = h->vt, .c = h->ds});
    for (int i = 0; i < m; i++) {
        int n = reach(h, first + i / TILE_M * TILE_M);
        slope(h, i, first + i, a->causal ? first + i + 1 : n, n);
    }
    by_scores(h, first, m,
              (product){.a = h->ds,
                        .b = h->kp,
                        .c = h->dq + first * h->step,
                        .ldc = h->step,
                        .add = a->dx_add});
    by_queries(h, first, m, (product){.a = h->ds, .b = h->qp, .c = h->sk});
    by_queries(h, first, m, (product){.a = h->s, .b = h->gp, .c = h->sv});
}

static void put_rows(const head *h, const float *from, float *to)
{
    const tt_attend_args *a = h->a;

    for (int t = 0; t < a->t; t++, from += a->dim, to += h->step)
        for (int d = 0; d < a->dim; d += VW) {
            int take = vtake(d, a->dim);
            vput_n(to + d, vload_n(from + d, take), take, a->dx_add);
        }
}

static void backward_head(const head *h)
{
    const tt_attend_args *a = h->a;

    pack_turned(h->k, h->step, a->dim, a->t, 1 / sqrtf((float)a->dim), h->kt);
    pack_turned(h->v, h->step, a->dim, a->t, 1, h->vt);
    pack(h->k, h->step, a->t, a->dim, h->kp);
    pack(h->q, h->step, a->t, a->dim, h->qp);
    pack(h->dy, h->out, a->t, a->dim, h->gp);
    memset(h->sk, 0, (size_t)a->t * (size_t)a->dim * sizeof *h->sk);
    memset(h->sv, 0, (size_t)a->t * (size_t)a->dim * sizeof *h->sv);
    for (int first = 0; first < a->t; first += QUERIES)
        backward_rows(h, first, min_int(QUERIES, a->t - first));
    put_rows(h, h->sk, h->dk);
    put_rows(h, h->sv, h->dv);
}

void TT_SIMD(attend_backward)(const tt_attend_args *a)
{
    for (int i = 0; i < a->n; i++)
        for (int n = 0; n < a->heads; n++) {
            head h = head_of(a, i, n, true);
            backward_head(&h);
        }
}
