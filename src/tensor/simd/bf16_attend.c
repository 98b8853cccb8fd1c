/* Attention in bf16: for each head, QUERIES rows of scores at a time, as in attend.c. Products take
 * probabilities and gradients of scores in bf16, too; what becomes of scores between is float32. */
#include "tensor/simd/bf16_gemm.h"
#include "tensor/simd/table.h"
#include "tensor/simd/vmath.h"

enum { QUERIES = 64 }; /* a multiple of DEPTH: blocks of them are rows of packed matrices */
_Static_assert(QUERIES % DEPTH == 0, "a block of queries begins where a depth does");
_Static_assert(QUERIES % WIDTH == 0, "the keys that it sees end where a panel does, or all do");

typedef struct head {
    const tt_attend_args *a;
    float scale;
    int64_t x_step, y_step;    /* from position to position, of x and of y  */
    const tt_act *q, *k, *v;   /* of this head, as they lie in x            */
    const tt_act *y, *dy;      /* ... in y                                  */
    tt_act *to, *dq, *dk, *dv; /* where results go                          */
    float *lse;                /* (t)                                       */
    const tt_act *qa, *ga;     /* rows of q and dy, as products take them   */
    int64_t qa_step, ga_step;
    tt_act *q_room, *g_room;   /* ... if those in x and y are not           */
    int64_t room;              /* of a row of scores                        */
    float *s, *ds;             /* (QUERIES, room)                           */
    tt_act *p, *dp;            /* the same for products: what is summed ... */
    tt_act *pt, *dpt;          /* ... and turned, (t, QUERIES)              */
    tt_act *kt, *vt;           /* packed, (dim, t)                          */
    tt_act *kp, *vp, *qp, *gp; /* packed, (t, dim)                          */
    float *sum;                /* (QUERIES, dim)                            */
    float *sk, *sv;            /* (t, dim): gradients of keys and values    */
    void *wide;                /* of products                               */
} head;

static void lay_out(head *h, bool back, cutter *c)
{
    const tt_attend_args *a = h->a;
    const int64_t t = a->t, dim = a->dim, most = t > dim ? t : dim;
    const size_t act = sizeof(tt_act);

    h->room = whole(t, 32);
    if (dim != deep(dim)) h->q_room = cut(c, (size_t)(t * deep(dim)) * act);
    h->s = cut(c, (size_t)(QUERIES * h->room) * sizeof(float));
    h->p = cut(c, (size_t)(QUERIES * h->room) * act);
    h->kt = cut(c, (size_t)packed_size(dim, t) * act);
    h->vp = cut(c, (size_t)packed_size(t, dim) * act);
    h->sum = cut(c, (size_t)(QUERIES * dim) * sizeof(float));
    /* Of keys by queries there may be as many rows as a block has; of others, QUERIES. */
    size_t rows_of_keys =
        TT_PROD(gemm_scratch)(min_int((int)t, TT_PROD(gemm_block)(QUERIES)), QUERIES);
    size_t rows_of_queries = TT_PROD(gemm_scratch)(QUERIES, most);
    h->wide = cut(c, rows_of_keys > rows_of_queries ? rows_of_keys : rows_of_queries);
    if (!back) return;
    if (dim != deep(dim)) h->g_room = cut(c, (size_t)(t * deep(dim)) * act);
    h->ds = cut(c, (size_t)(QUERIES * h->room) * sizeof(float));
    h->dp = cut(c, (size_t)(QUERIES * h->room) * act);
    h->pt = cut(c, (size_t)(QUERIES * t) * act);
    h->dpt = cut(c, (size_t)(QUERIES * t) * act);
    h->vt = cut(c, (size_t)packed_size(dim, t) * act);
    h->kp = cut(c, (size_t)packed_size(t, dim) * act);
    h->qp = cut(c, (size_t)packed_size(t, dim) * act);
    h->gp = cut(c, (size_t)packed_size(t, dim) * act);
    h->sk = cut(c, (size_t)(t * dim) * sizeof(float));
    h->sv = cut(c, (size_t)(t * dim) * sizeof(float));
}

size_t TT_PROD(attend_scratch)(const tt_attend_args *a)
{
    head h = {.a = a};
    cutter c = {0};

    lay_out(&h, true, &c);
    return c.used;
}

/* The rows of one part of the head: as they are, or with zeros behind them in `room`. */
static const tt_act *rows_of(const head *h, const tt_act *x, int64_t x_step, tt_act *room,
                             int64_t *step)
{
    const int64_t dim = h->a->dim, high = deep(dim);

    *step = room ? high : x_step;
    for (int t = 0; t < h->a->t && room; t++) {
        memcpy(room + t * high, x + t * x_step, (size_t)dim * sizeof *room);
        memset(room + t * high + dim, 0, (size_t)(high - dim) * sizeof *room);
    }
    return room ? room : x;
}

static head head_of(const tt_attend_args *a, int i, int n, bool back)
{
    int64_t wide = (int64_t)a->heads * a->dim, at = (int64_t)i * a->t * wide + n * a->dim;
    int64_t in = (int64_t)i * a->t * 3 * wide + n * a->dim;
    head h = {.a = a, .x_step = 3 * wide, .y_step = wide, .scale = 1 / sqrtf((float)a->dim)};
    cutter c = {a->scratch, 0};

    h.q = a->x + in, h.k = h.q + wide, h.v = h.k + wide;
    h.lse = a->lse ? a->lse + ((int64_t)i * a->heads + n) * a->t : NULL;
    h.y = h.to = a->y + at;
    lay_out(&h, back, &c);
    h.qa = rows_of(&h, h.q, h.x_step, h.q_room, &h.qa_step);
    if (back) {
        h.dy = a->dy + at;
        h.dq = a->dx + in, h.dk = h.dq + wide, h.dv = h.dk + wide;
        h.ga = rows_of(&h, h.dy, h.y_step, h.g_room, &h.ga_step);
    }
    return h;
}

/* Keys that any of the queries first .. first + m sees. */
static int reach(const head *h, int first, int m)
{
    return h->a->causal ? first + m : h->a->t;
}

/* (m, dim) of queries or gradients by turned keys or values: scores of n keys. */
static void score(const head *h, const tt_act *a, int64_t step, const tt_act *b, int m, int n,
                  float *to)
{
    TT_PROD(gemm)
    (&(gemm){.m = m,
             .n = n,
             .k = h->a->dim,
             .a = a,
             .lda = step,
             .b = b,
             .high = h->a->dim,
             .c = to,
             .ldc = h->room,
             .scratch = h->wide});
}

/* (m, n) by packed rows of n positions: (m, dim) into sum. */
static void combine(const head *h, const tt_act *a, const tt_act *b, int m, int n)
{
    TT_PROD(gemm)
    (&(gemm){.m = m,
             .n = h->a->dim,
             .k = n,
             .a = a,
             .lda = h->room,
             .b = b,
             .high = h->a->t,
             .c = h->sum,
             .ldc = h->a->dim,
             .scratch = h->wide});
}

/* Rows of dim numbers to bf16. */
static void put_rows(const head *h, const float *from, int m, tt_act *to, int64_t step, bool add)
{
    for (int t = 0; t < m; t++, from += h->a->dim, to += step)
        for (int d = 0; d < h->a->dim; d += VW) {
            int take = vtake(d, h->a->dim);
            vput_n(to + d, vload_n(from + d, take), take, add);
        }
}

static void clear(tt_act *p, int64_t from, int64_t to)
{
    if (from < to) memset(p + from, 0, (size_t)(to - from) * sizeof *p);
}

/* A row of scores to probabilities; those of keys that are not seen are 0. */
static float soften(const head *h, float *s, int seen, int n, tt_act *p)
{
    float total, high = vexp_row(s, seen, h->scale, &total);

    for (int j = 0; j < seen; j += VW) {
        int take = vtake(j, seen);
        vstore_n(p + j, vload_n(s + j, take) * (1 / total), take);
    }
    clear(p, seen, deep(n));
    return high * h->scale + logf(total);
}

void TT_PROD(attend_forward)(const tt_attend_args *a)
{
    for (int i = 0; i < a->n * a->heads; i++) {
        head h = head_of(a, i / a->heads, i % a->heads, false);
        TT_PROD(gemm_pack)(h.k, 1, h.x_step, a->dim, a->t, h.kt);
        TT_PROD(gemm_pack)(h.v, h.x_step, 1, a->t, a->dim, h.vp);
        for (int first = 0; first < a->t; first += QUERIES) {
            int m = min_int(QUERIES, a->t - first), n = reach(&h, first, m);
            score(&h, h.qa + first * h.qa_step, h.qa_step, h.kt, m, n, h.s);
            for (int q = 0; q < m; q++) {
                float lse = soften(&h, h.s + q * h.room, a->causal ? first + q + 1 : n, n,
                                   h.p + q * h.room);
                if (h.lse) h.lse[first + q] = lse;
            }
            combine(&h, h.p, h.vp, m, n);
            put_rows(&h, h.sum, m, h.to + first * h.y_step, h.y_step, false);
        }
    }
    TT_PROD(gemm_release)();
}

/* ---- backward ---- */

/* Scores to probabilities again, and to the gradient of the scores. */
static void slope(const head *h, int i, int at, int seen, int n)
{
    const tt_attend_args *a = h->a;
    const float *s = h->s + i * h->room, *ds = h->ds + i * h->room, lse = h->lse[at];
    tt_act *p = h->p + i * h->room, *dp = h->dp + i * h->room;
    vf sum = vzero();

    for (int d = 0; d < a->dim; d += VW) {
        int take = vtake(d, a->dim);
        sum += vload_part(h->dy + at * h->y_step + d, take) *
               vload_part(h->y + at * h->y_step + d, take);
    }
    float mean = vsum(sum);
    for (int j = 0; j < seen; j += VW) {
        int take = vtake(j, seen);
        vf e = vexp(vload_n(s + j, take) * h->scale - lse);
        vstore_n(p + j, e, take);
        vstore_n(dp + j, e * (vload_n(ds + j, take) - mean) * h->scale, take);
    }
    clear(p, seen, deep(n));
    clear(dp, seen, deep(n));
}

/* Added to (n, dim) of keys or values: the queries are what is summed over. */
static void spread(const head *h, const tt_act *p, tt_act *turned, const tt_act *b, int first,
                   int m, int n, float *to)
{
    turn(p, h->room, m, n, turned, QUERIES, deep(m));
    TT_PROD(gemm)
    (&(gemm){.m = n,
             .n = h->a->dim,
             .k = m,
             .a = turned,
             .lda = QUERIES,
             .b = b,
             .high = h->a->t,
             .first = first,
             .c = to,
             .ldc = h->a->dim,
             .add = true,
             .scratch = h->wide});
}

static void backward_rows(const head *h, int first, int m)
{
    const tt_attend_args *a = h->a;
    const int n = reach(h, first, m);

    score(h, h->qa + first * h->qa_step, h->qa_step, h->kt, m, n, h->s);
    score(h, h->ga + first * h->ga_step, h->ga_step, h->vt, m, n, h->ds);
    for (int i = 0; i < m; i++) slope(h, i, first + i, a->causal ? first + i + 1 : n, n);
    combine(h, h->dp, h->kp, m, n);
    put_rows(h, h->sum, m, h->dq + first * h->x_step, h->x_step, a->dx_add);
    spread(h, h->dp, h->dpt, h->qp, first, m, n, h->sk);
    spread(h, h->p, h->pt, h->gp, first, m, n, h->sv);
}

void TT_PROD(attend_backward)(const tt_attend_args *a)
{
    const size_t all = (size_t)a->t * (size_t)a->dim * sizeof(float);

    for (int i = 0; i < a->n * a->heads; i++) {
        head h = head_of(a, i / a->heads, i % a->heads, true);
        TT_PROD(gemm_pack)(h.k, 1, h.x_step, a->dim, a->t, h.kt);
        TT_PROD(gemm_pack)(h.v, 1, h.x_step, a->dim, a->t, h.vt);
        TT_PROD(gemm_pack)(h.k, h.x_step, 1, a->t, a->dim, h.kp);
        TT_PROD(gemm_pack)(h.q, h.x_step, 1, a->t, a->dim, h.qp);
        TT_PROD(gemm_pack)(h.dy, h.y_step, 1, a->t, a->dim, h.gp);
        memset(h.sk, 0, all);
        memset(h.sv, 0, all);
        for (int first = 0; first < a->t; first += QUERIES)
            backward_rows(&h, first, min_int(QUERIES, a->t - first));
        put_rows(&h, h.sk, a->t, h.dk, h.x_step, a->dx_add);
        put_rows(&h, h.sv, a->t, h.dv, h.x_step, a->dx_add);
    }
    TT_PROD(gemm_release)();
}
