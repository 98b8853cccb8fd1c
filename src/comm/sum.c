/* Sums of long vectors.
 *
 * On a host: a vector that lies in shared memory is added up where it is, each rank a part of it,
 * and the part written to everybody's copy. One that does not goes through a window in shared
 * memory, chunk by chunk: put in, add up, take out.
 *
 * Between hosts the i-th ranks of all hosts exchange the i-th part of the host's sum: each adds up
 * an even share of it in host order and gives it back.
 *
 * Rounds are counted in flags that only grow: a rank's numbers are there (`put`), its part is
 * summed over all hosts (`summed`). When all parts are, nobody else touches a rank's vector or
 * window any more until it says `put` again. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "comm/carrier.h"

enum { WINDOW = 1 << 18 }; /* floats: 1 MB, which stays in the second-level cache */
enum { TAG_SUM = TT_TAGS - 16 };

typedef struct board {
    tt_flag put, summed;
    char rest[4096 - 2 * sizeof(tt_flag)];
} board;

struct tt_summer {
    const tt_group *group;
    tt_group *host, *column;
    tt_share share; /* of each: board, window, then what tt_summer_memory gives */
    int columns;    /* ranks of each host that exchange: as many as the smallest has */
    int hosts;
    uint32_t phase;
    size_t bytes;
    float *inbox;
    tt_parcel *in, *out; /* of each host */
    tt_op *ops;
};

/* ThreadSanitizer is not up yet when the linker asks which clone to take. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define CLONES
#endif
CLONES static void add(int64_t n, const float *restrict x, float *restrict y)
{
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}
CLONES static void add_two(int64_t n, const float *restrict x, const float *restrict y,
                           float *restrict z)
{
    for (int64_t i = 0; i < n; i++) z[i] = x[i] + y[i];
}
CLONES static void multiply(int64_t n, float by, float *restrict x)
{
    for (int64_t i = 0; i < n; i++) x[i] *= by;
}

static board *board_of(const tt_summer *s, int member)
{
    return s->share.at[member];
}
static float *window_of(const tt_summer *s, int member)
{
    return (float *)((char *)s->share.at[member] + sizeof(board));
}

/* Shares memory with the ranks of this host; where that cannot be, each rank is a host of its own.
 * `color` tells hosts apart. */
static tt_err join_host(tt_summer *s, int *color)
{
    const tt_group *g = s->group;
    const tt_world *w = g->world;
    size_t bytes = sizeof(board) + WINDOW * sizeof(float) + s->bytes;
    tt_err err;

    *color = w->host;
    if ((err = tt_group_split(g, *color, &s->host))) return err;
    if ((err = tt_share_open(s->host, bytes, &s->share)) == TT_EENV) {
        tt_group_close(s->host);
        s->host = NULL;
        *color = w->host_count + w->rank;
    }
    /* All take part in a split, those too who need none. */
    tt_group *own = NULL;
    bool apart = err == TT_EENV;
    if (err && !apart) return err;
    if ((err = tt_group_split(g, apart ? *color : -1, &own))) return err;
    if (!apart) return TT_OK;
    s->host = own;
    return tt_share_open(own, bytes, &s->share);
}

tt_err tt_summer_open(const tt_group *g, size_t bytes, tt_summer **out)
{
    tt_summer *s = calloc(1, sizeof *s);
    int mine, *color = calloc((size_t)g->size, sizeof *color);
    tt_err err;

    *out = NULL;
    if (!s || !color) tt_mem_out(sizeof *s);
    s->group = g;
    s->bytes = bytes;
    if ((err = join_host(s, &mine)) || (err = tt_group_gather(g, &mine, sizeof mine, color)))
        goto out;
    /* How many hosts take part, and the size of the smallest. */
    s->columns = g->size;
    for (int i = 0; i < g->size; i++) {
        int before = 0, mates = 0;
        for (int k = 0; k < g->size; k++) {
            mates += color[k] == color[i];
            before += k < i && color[k] == color[i];
        }
        s->hosts += !before;
        if (mates < s->columns) s->columns = mates;
    }
    if ((err = tt_group_split(g, s->host->me < s->columns ? s->host->me : -1, &s->column)))
        goto out;
    s->inbox = malloc((WINDOW + (size_t)s->hosts) * sizeof *s->inbox);
    s->in = calloc((size_t)s->hosts, sizeof *s->in);
    s->out = calloc((size_t)s->hosts, sizeof *s->out);
    s->ops = calloc((size_t)(2 * s->hosts), sizeof *s->ops);
    if (!s->inbox || !s->in || !s->out || !s->ops) tt_mem_out(WINDOW * sizeof *s->inbox);
    *out = s;
    s = NULL;
out:
    free(color);
    tt_summer_close(s);
    return err;
}

void tt_summer_close(tt_summer *s)
{
    if (!s) return;
    tt_share_close(&s->share);
    tt_group_close(s->host);
    tt_group_close(s->column);
    free(s->inbox);
    free(s->in);
    free(s->out);
    free(s->ops);
    free(s);
}

void *tt_summer_memory(tt_summer *s)
{
    if (!s->bytes) return NULL;
    return (char *)s->share.at[s->host->me] + sizeof(board) + WINDOW * sizeof(float);
}

static tt_err await_all(const tt_summer *s, size_t flag, int members)
{
    tt_err err = TT_OK;

    for (int i = 0; i < members && !err; i++)
        err = tt_flag_wait(s->group->world, (tt_flag *)((char *)board_of(s, i) + flag), s->phase,
                           s->host->rank[i]);
    return err;
}

/* Our part of the sum over this host, in `x`, becomes that over all hosts. */
static tt_err across(tt_summer *s, float *x, int64_t n)
{
    const tt_group *g = s->column;
    int64_t own_at = n * g->me / g->size, own = n * (g->me + 1) / g->size - own_at;
    size_t bytes = (size_t)own * sizeof *x;
    int count = 0;
    tt_err err;

    for (int h = 0; h < g->size; h++) {
        int64_t at = n * h / g->size, len = n * (h + 1) / g->size - at;
        s->in[h] = (tt_parcel){s->inbox + h * own, bytes};
        s->out[h] = (tt_parcel){x + at, (size_t)len * sizeof *x};
    }
    if ((err = tt_trade_start(g, TAG_SUM, s->in, s->out, s->ops, &count)) ||
        (err = tt_ops_wait(s->ops, count)))
        return err;
    if (g->me) { /* in host order: ours where its turn is */
        memcpy(s->inbox + g->me * own, x + own_at, bytes);
        memcpy(x + own_at, s->inbox, bytes);
    }
    for (int h = 1; h < g->size; h++) add(own, s->inbox + h * own, x + own_at);
    for (int h = 0; h < g->size; h++) {
        s->in[h] = s->out[h]; /* their parts come to where they went from */
        s->out[h] = (tt_parcel){x + own_at, bytes};
    }
    count = 0;
    if ((err = tt_trade_start(g, TAG_SUM + 1, s->in, s->out, s->ops, &count))) return err;
    return tt_ops_wait(s->ops, count);
}

/* Member i's vector is at at[i]; our part [a, b) of the sum goes to everybody's. */
static tt_err sum_part(tt_summer *s, float *const *at, int64_t a, int64_t b, float scale)
{
    int me = s->host->me, size = s->host->size;
    float *own = at[me] + a;
    tt_err err;

    if (b <= a) return TT_OK;
    for (int64_t x = a; x < b; x += 4096) { /* a piece that stays in the first-level cache */
        int64_t n = b - x < 4096 ? b - x : 4096;
        float sum[4096];
        if (size == 1) break;
        add_two(n, at[0] + x, at[1] + x, sum);
        for (int i = 2; i < size; i++) add(n, at[i] + x, sum);
        if (scale != 1 && s->hosts == 1) multiply(n, scale, sum);
        for (int i = 0; i < size; i++)
            if (i == me || s->hosts == 1) memcpy(at[i] + x, sum, (size_t)n * sizeof *sum);
    }
    if (s->hosts == 1) {
        if (size == 1 && scale != 1) multiply(b - a, scale, own);
        return TT_OK;
    }
    for (int64_t x = 0; x < b - a; x += WINDOW)
        if ((err = across(s, own + x, b - a - x < WINDOW ? b - a - x : WINDOW))) return err;
    if (scale != 1) multiply(b - a, scale, own);
    for (int i = 0; i < size; i++)
        if (i != me) memcpy(at[i] + a, own, (size_t)(b - a) * sizeof *own);
    return TT_OK;
}

/* One round: all vectors at `at`, n floats each. */
static tt_err round_of(tt_summer *s, float *const *at, int64_t n, float scale)
{
    board *mine = board_of(s, s->host->me);
    int me = s->host->me, parts = s->hosts > 1 ? s->columns : s->host->size;
    tt_err err;

    s->phase++;
    tt_flag_set(&mine->put, s->phase);
    if ((err = await_all(s, offsetof(board, put), s->host->size))) return err;
    if (me < parts) {
        if ((err = sum_part(s, at, n * me / parts, n * (me + 1) / parts, scale))) return err;
        tt_flag_set(&mine->summed, s->phase);
    }
    return await_all(s, offsetof(board, summed), parts);
}

tt_err tt_summer_run(tt_summer *s, float *x, int64_t n, float scale)
{
    char *memory = tt_summer_memory(s);
    int size = s->host->size;
    bool there = memory && (char *)x >= memory && (char *)(x + n) <= memory + s->bytes;
    float **at = calloc((size_t)size, sizeof *at);
    tt_err err = TT_OK;

    if (!at) tt_mem_out((size_t)size * sizeof *at);
    if (there) { /* at the same place in everybody's memory */
        size_t offset = (size_t)((char *)x - (char *)s->share.at[s->host->me]);
        for (int i = 0; i < size; i++) at[i] = (float *)((char *)s->share.at[i] + offset);
        err = round_of(s, at, n, scale);
    }
    for (int64_t done = 0; done < n && !there && !err; done += WINDOW) {
        int64_t len = n - done < WINDOW ? n - done : WINDOW;
        for (int i = 0; i < size; i++) at[i] = window_of(s, i);
        memcpy(at[s->host->me], x + done, (size_t)len * sizeof *x);
        if ((err = round_of(s, at, len, scale))) break;
        memcpy(x + done, at[s->host->me], (size_t)len * sizeof *x);
    }
    free(at);
    return err ? tt_context(err, "sum of %lld numbers", (long long)n) : TT_OK;
}
