/* What all transports have in common: groups, waiting, and small things for a whole group. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/carrier.h"

/* Tags of our own, at the end of what callers may use. */
enum { TAG_GATHER = TT_TAGS - 1, TAG_BCAST = TT_TAGS - 2 };
/* A long broadcast goes in parts, so that a rank can pass on one while it receives the next. */
enum { BCAST_PART = 1 << 20 };

/* ---- Worlds ---- */

/* The first words between ranks: of the same length in all versions, so that two that differ can
 * tell each other. */
enum { PROTOCOL = 2 };
typedef struct hello {
    int64_t pid, protocol;
    char version[40], name[64];
    uint64_t cpus; /* which it may use */
} hello;
_Static_assert(sizeof(hello) == 128, "the hello keeps its length");

static tt_err same_protocol(const tt_world *w, const hello *all)
{
    for (int r = 1; r < w->size; r++)
        if (all[r].protocol != all[0].protocol)
            return tt_fail(TT_EENV,
                           "rank %d (%s) is tutti %s with protocol %lld, rank 0 (%s) is %s with "
                           "%lld: all hosts need the same build",
                           r, all[r].name, all[r].version, (long long)all[r].protocol, all[0].name,
                           all[0].version, (long long)all[0].protocol);
    return TT_OK;
}

static uint64_t hash_cpus(void)
{
    cpu_set_t set;
    uint64_t h = 14695981039346656037u;

    if (sched_getaffinity(0, sizeof set, &set)) return 0;
    for (size_t i = 0; i < sizeof set; i++) h = (h ^ ((const uint8_t *)&set)[i]) * 1099511628211u;
    return h;
}

tt_err tt_world_fill(tt_world *w, const char *host)
{
    struct tt_carrier *c = w->carrier;
    size_t n = (size_t)w->size;
    hello me = {.pid = getpid(), .protocol = PROTOCOL, .version = TT_VERSION, .cpus = hash_cpus()},
          *all = calloc(n, sizeof *all);
    tt_err err;

    c->peers = calloc(n, sizeof *c->peers);
    c->all = (tt_group){.world = w, .me = w->rank, .size = w->size};
    c->all.rank = calloc(n, sizeof *c->all.rank);
    if (!all || !c->peers || !c->all.rank) tt_mem_out(n * sizeof *all);
    for (int i = 0; i < w->size; i++) c->all.rank[i] = i;
    w->peer = c->peers;
    snprintf(me.name, sizeof me.name, "%s", host);
    if ((err = tt_group_gather(&c->all, &me, sizeof me, all))) {
        free(all);
        return tt_context(err, "hello of all ranks");
    }
    if ((err = same_protocol(w, all))) {
        free(all);
        return err;
    }
    w->host_count = w->local_size = 0;
    for (int i = 0; i < w->size; i++) {
        tt_peer *p = &c->peers[i];
        int k = 0;
        while (k < i && strcmp(all[k].name, all[i].name)) k++;
        p->host = k < i ? c->peers[k].host : w->host_count++;
        for (int j = 0; j < i; j++) p->local += c->peers[j].host == p->host;
        p->pid = all[i].pid;
        snprintf(p->name, sizeof p->name, "%s", all[i].name);
    }
    w->host = c->peers[w->rank].host;
    w->local = c->peers[w->rank].local;
    w->sharing = 0;
    for (int i = 0; i < w->size; i++) {
        bool here = c->peers[i].host == w->host;
        w->local_size += here;
        w->sharing += here && all[i].cpus == me.cpus;
    }
    w->spins = w->sharing <= tt_cpu_count() ? 2000 : 0;
    free(all);
    return TT_OK;
}

void tt_world_drop(tt_world *w)
{
    tt_kept_free(w->carrier->kept);
    free(w->carrier->peers);
    free(w->carrier->all.rank);
    free(w->carrier);
    free(w);
}

static void leave_alone(tt_world *w, int failed)
{
    (void)failed;
    tt_world_drop(w);
}

tt_err tt_world_alone(tt_world **out)
{
    static const tt_carrier_calls calls = {.leave = leave_alone};
    tt_world *w = calloc(1, sizeof *w);
    struct tt_carrier *c = calloc(1, sizeof *c);
    char host[64] = "here";

    if (!w || !c) tt_mem_out(sizeof *w);
    gethostname(host, sizeof host - 1);
    c->calls = &calls;
    *w = (tt_world){.size = 1, .transport = "none", .timeout_s = 60, .threads = true, .carrier = c};
    *out = w;
    return tt_world_fill(w, host);
}

static int number_of(const char *name)
{
    const char *text = getenv(name);
    int64_t n;
    return text && tt_parse_int(text, &n) && n >= 0 && n < 1 << 24 ? (int)n : -1;
}

bool tt_slurm_step(void)
{
    const char *step = getenv("SLURM_STEP_TASKS_PER_NODE"), *all = getenv("SLURM_TASKS_PER_NODE");

    /* srun sets both to the same; where they differ, the second speaks of the allocation. */
    return getenv("SLURM_STEP_ID") && (!step || !all || !strcmp(step, all));
}

tt_started tt_world_started(void)
{
    static const struct {
        const char *by, *rank, *size;
    } known[] = {{"mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                 {"mpiexec (MPICH)", "PMI_RANK", "PMI_SIZE"},
                 {"srun", "SLURM_PROCID", "SLURM_NTASKS"}};

    for (int i = 0; i < TT_COUNT(known); i++) {
        if (!getenv(known[i].rank)) continue;
        /* srun --mpi=pmi2 speaks as mpiexec does, but for this. */
        if (i == 1 && getenv("PMI_JOBID") && tt_slurm_step()) continue;
        /* A batch script has SLURM_PROCID too; a step of one task is nobody's world. */
        if (i == 2 && !(tt_slurm_step() && number_of(known[i].size) > 1)) continue;
        return (tt_started){known[i].by, number_of(known[i].rank), number_of(known[i].size)};
    }
    return (tt_started){NULL, -1, -1};
}

tt_err tt_world_join(tt_world **out)
{
    tt_started by = tt_world_started();

    *out = NULL;
    return by.by ? tt_mpi_join(&by, out) : tt_world_alone(out);
}

void tt_world_leave(tt_world *w, int failed)
{
    if (w) w->carrier->calls->leave(w, failed);
}

/* ---- Groups ---- */

const tt_group *tt_world_all(const tt_world *w)
{
    return &w->carrier->all;
}

tt_err tt_group_split(const tt_group *from, int color, tt_group **out)
{
    struct tt_carrier *c = from->world->carrier;
    struct {
        int64_t color;
        uint64_t used[CONTEXTS / 64];
    } me = {.color = color}, *all;
    int context = 1; /* 0 is the world's */
    tt_err err;

    *out = NULL;
    memcpy(me.used, c->contexts, sizeof me.used);
    if (!(all = calloc((size_t)from->size, sizeof *all))) tt_mem_out(sizeof *all);
    if ((err = tt_group_gather(from, &me, sizeof me, all))) {
        free(all);
        return tt_context(err, "splitting a group of %d", from->size);
    }
    /* A context that none of them uses: groups that share a rank never share one. */
    for (int i = 0; i < from->size; i++)
        for (int k = 0; k < CONTEXTS / 64; k++) me.used[k] |= all[i].used[k];
    while (context < CONTEXTS && me.used[context / 64] >> context % 64 & 1) context++;
    if (context == CONTEXTS) {
        free(all);
        return tt_fail(TT_EINVAL, "more than %d groups at a time", CONTEXTS - 1);
    }
    if (color >= 0) {
        tt_group *g = calloc(1, sizeof *g);
        if (!g || !(g->rank = calloc((size_t)from->size, sizeof *g->rank))) tt_mem_out(sizeof *g);
        g->world = from->world;
        g->context = context;
        c->contexts[context / 64] |= (uint64_t)1 << context % 64;
        for (int i = 0; i < from->size; i++) {
            if (all[i].color != color) continue;
            if (i == from->me) g->me = g->size;
            g->rank[g->size++] = from->rank[i];
        }
        *out = g;
    }
    free(all);
    return TT_OK;
}

void tt_group_close(tt_group *g)
{
    if (!g) return;
    g->world->carrier->contexts[g->context / 64] &= ~((uint64_t)1 << g->context % 64);
    free(g->rank);
    free(g);
}

/* ---- Messages ---- */

static int full_tag(const tt_group *g, int tag)
{
    TT_ASSERT(tag >= 0 && tag < TT_TAGS);
    return g->context * TT_TAGS + tag;
}

tt_err tt_send_start(const tt_group *g, int to, int tag, const void *data, size_t bytes, tt_op *out)
{
    tt_world *w = g->world;
    TT_ASSERT(to >= 0 && to < g->size && to != g->me);
    *out = (tt_op){.group = g, .peer = to, .sends = true, .bytes = bytes};
    return w->carrier->calls->send(w, g->rank[to], full_tag(g, tag), data, bytes, &out->handle);
}

tt_err tt_recv_start(const tt_group *g, int from, int tag, void *data, size_t bytes, tt_op *out)
{
    tt_world *w = g->world;
    TT_ASSERT(from >= 0 && from < g->size && from != g->me);
    *out = (tt_op){.group = g, .peer = from, .bytes = bytes};
    return w->carrier->calls->recv(w, g->rank[from], full_tag(g, tag), data, bytes, &out->handle);
}

tt_err tt_op_test(tt_op *op)
{
    tt_world *w = op->group->world;
    size_t came = op->bytes;
    tt_err err;

    if (op->done) return TT_OK;
    err = w->carrier->calls->test(w, op, &came);
    if (!err && op->done && !op->sends && came != op->bytes)
        err = tt_fail(TT_EPEER, "got %zu bytes, expected %zu", came, op->bytes);
    if (err) {
        const tt_peer *p = &w->peer[op->group->rank[op->peer]];
        return tt_context(err, "message of %zu bytes %s rank %d (%s)", op->bytes,
                          op->sends ? "to" : "from", op->group->rank[op->peer], p->name);
    }
    return TT_OK;
}

tt_err tt_world_missed(const tt_world *w, int rank, double waited_s)
{
    return tt_fail(TT_EPEER, "no word from rank %d (%s) for %.3g s", rank, w->peer[rank].name,
                   waited_s > 0 ? waited_s : w->timeout_s);
}

tt_err tt_ops_wait(tt_op *ops, int count)
{
    tt_idle idle = {0};
    tt_err err;

    for (int i = 0; i < count; i++) {
        const tt_world *w = ops[i].group->world;
        while (!ops[i].done) {
            if ((err = tt_op_test(&ops[i]))) return err;
            if (ops[i].done || tt_idle_once(&idle, w, NULL, 0, true)) continue;
            int rank = ops[i].group->rank[ops[i].peer];
            if (!ops[i].sends) return tt_world_missed(w, rank, 0);
            return tt_fail(TT_EPEER, "rank %d (%s) has not taken a message of %zu bytes for %.3g s",
                           rank, w->peer[rank].name, ops[i].bytes, w->timeout_s);
        }
        idle = (tt_idle){0}; /* the deadline is for silence, not for the whole */
    }
    return TT_OK;
}

tt_err tt_op_wait(tt_op *op)
{
    return tt_ops_wait(op, 1);
}

tt_err tt_trade_start(const tt_group *g, int tag, const tt_parcel *in, const tt_parcel *out,
                      tt_op *ops, int *count)
{
    tt_err err = TT_OK;

    for (int k = 1; k < g->size && !err; k++) {
        int from = (g->me + g->size - k) % g->size;
        if (in[from].bytes)
            err = tt_recv_start(g, from, tag, in[from].data, in[from].bytes, &ops[(*count)++]);
    }
    for (int k = 1; k < g->size && !err; k++) {
        int to = (g->me + k) % g->size;
        if (out[to].bytes)
            err = tt_send_start(g, to, tag, out[to].data, out[to].bytes, &ops[(*count)++]);
    }
    return err;
}

/* ---- Small things for a whole group ---- */

tt_err tt_group_gather(const tt_group *g, const void *mine, size_t bytes, void *all)
{
    char *to = all;
    tt_op few[32], *ops = few;
    int count = 0;
    tt_err err = TT_OK;

    memmove(to + (size_t)g->me * bytes, mine, bytes);
    if (g->size == 1) return TT_OK;
    if (2 * g->size > TT_COUNT(few) && !(ops = calloc((size_t)(2 * g->size), sizeof *ops)))
        tt_mem_out(sizeof *ops);
    /* Each begins with the one after it, so that not all knock at rank 0 first. */
    for (int k = 1; k < g->size && !err; k++) {
        int from = (g->me + g->size - k) % g->size;
        err = tt_recv_start(g, from, TAG_GATHER, to + (size_t)from * bytes, bytes, &ops[count++]);
    }
    for (int k = 1; k < g->size && !err; k++)
        err = tt_send_start(g, (g->me + k) % g->size, TAG_GATHER, to + (size_t)g->me * bytes, bytes,
                            &ops[count++]);
    if (!err) err = tt_ops_wait(ops, count);
    if (ops != few) free(ops);
    return err;
}

tt_err tt_group_barrier(const tt_group *g)
{
    char mine = 0, few[64], *all = g->size > TT_COUNT(few) ? malloc((size_t)g->size) : few;
    tt_err err;

    if (!all) tt_mem_out((size_t)g->size);
    err = tt_group_gather(g, &mine, 1, all);
    if (all != few) free(all);
    return err;
}

/* A binomial tree: in round k, those who have it pass it on to the one 2^k further. */
static tt_err bcast_part(const tt_group *g, int root, void *data, size_t bytes)
{
    int me = (g->me - root + g->size) % g->size, mask = 1, count = 0;
    tt_op ops[32];
    tt_err err;

    while (mask < g->size && !(me & mask)) mask <<= 1;
    if (me) {
        int from = (me - mask + root) % g->size;
        if ((err = tt_recv_start(g, from, TAG_BCAST, data, bytes, &ops[0])) ||
            (err = tt_op_wait(&ops[0])))
            return err;
    }
    for (mask >>= 1; mask; mask >>= 1) {
        if (me + mask >= g->size) continue;
        if ((err = tt_send_start(g, (me + mask + root) % g->size, TAG_BCAST, data, bytes,
                                 &ops[count++])))
            return err;
    }
    return tt_ops_wait(ops, count);
}

tt_err tt_group_bcast(const tt_group *g, int root, void *data, size_t bytes)
{
    tt_err err = TT_OK;

    for (size_t at = 0; at < bytes && !err && g->size > 1; at += BCAST_PART)
        err = bcast_part(g, root, (char *)data + at,
                         bytes - at < BCAST_PART ? bytes - at : BCAST_PART);
    return err;
}

static _Thread_local int blamed = -1;

int tt_group_blamed(void)
{
    return blamed;
}

tt_err tt_group_agree(const tt_group *g, tt_err mine)
{
    const tt_world *w = g->world;
    char message[2048] = "";
    int *all = calloc((size_t)g->size, sizeof *all), code = mine, first = 0;
    tt_err err;

    if (!all) tt_mem_out(sizeof *all);
    if (mine) snprintf(message, sizeof message, "%s", tt_message());
    if ((err = tt_group_gather(g, &code, sizeof code, all))) goto out;
    while (first < g->size && !all[first]) first++;
    if (first == g->size) goto out;
    if ((err = tt_group_bcast(g, first, message, sizeof message))) goto out;
    err = tt_repeat((tt_err)all[first], message);
    /* What all of them say is of the job, not of a rank. */
    blamed = -1;
    for (int i = 0; i < g->size && blamed < 0; i++)
        if (all[i] != all[first]) blamed = g->rank[first];
    if (blamed >= 0) tt_context(err, "rank %d (%s)", blamed, w->peer[blamed].name);
out:
    free(all);
    return err;
}
