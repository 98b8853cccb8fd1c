/* Worlds, groups, messages, flags and shared memory, on simulated ranks. The same file is a program
 * for real MPI: tests/world/run starts it with ranks as processes (COMM_WORLD_TEST_MPI). */
#include <unistd.h>

#include "comm/comm.h"
#include "test.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        tt_err e_ = (call);                                                                        \
        if (e_) return e_;                                                                         \
    } while (0)
#define NEED(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond)) return tt_fail(TT_EINVAL, "line %d: expected %s", __LINE__, #cond);           \
    } while (0)

/* ---- what each rank does ---- */

static tt_err small_things(tt_world *w, void *arg)
{
    const tt_group *g = tt_world_all(w);
    int64_t mine[2] = {w->rank, 100 + w->rank}, all[16];
    (void)arg;

    for (int round = 0; round < 20; round++) {
        mine[0] = w->rank + round;
        TRY(tt_group_gather(g, mine, sizeof mine, all));
        for (int r = 0; r < w->size; r++)
            NEED(all[2 * r] == r + round && all[2 * r + 1] == 100 + r);
    }
    for (int root = 0; root < w->size; root++) {
        static const size_t lengths[] = {1, 4096, 3u << 20};
        for (int k = 0; k < 3; k++) {
            char *data = malloc(lengths[k]);
            memset(data, w->rank == root ? 'a' + root : 0, lengths[k]);
            tt_err err = tt_group_bcast(g, root, data, lengths[k]);
            bool right = data[0] == 'a' + root && data[lengths[k] - 1] == 'a' + root;
            free(data);
            TRY(err);
            NEED(right);
        }
    }
    return tt_group_barrier(g);
}

static tt_err in_order(tt_world *w, void *arg)
{
    const tt_group *g = tt_world_all(w);
    int next = (w->rank + 1) % w->size, before = (w->rank + w->size - 1) % w->size;
    int sent[50], got[50];
    tt_op ops[100];
    (void)arg;

    if (w->size == 1) return TT_OK;
    for (int i = 0; i < 50; i++) {
        sent[i] = 1000 * w->rank + i;
        /* two tags, so that the order within one is told from arrival */
        TRY(tt_send_start(g, next, i % 2, &sent[i], sizeof sent[i], &ops[i]));
    }
    for (int i = 0; i < 50; i++)
        TRY(tt_recv_start(g, before, i % 2, &got[i], sizeof got[i], &ops[50 + i]));
    TRY(tt_ops_wait(ops, 100));
    for (int i = 0; i < 50; i++) NEED(got[i] == 1000 * before + i);
    return TT_OK;
}

static tt_err groups(tt_world *w, void *arg)
{
    tt_group *odd, *none;
    int mine = w->rank, all[16];
    (void)arg;

    TRY(tt_group_split(tt_world_all(w), w->rank % 2, &odd));
    NEED(odd->size == (w->size + 1 - w->rank % 2) / 2);
    NEED(odd->rank[odd->me] == w->rank);
    TRY(tt_group_gather(odd, &mine, sizeof mine, all));
    for (int i = 0; i < odd->size; i++) NEED(all[i] == 2 * i + w->rank % 2);
    TRY(tt_group_split(odd, odd->me == 0 ? -1 : 7, &none));
    NEED((none == NULL) == (odd->me == 0));
    if (none) TRY(tt_group_barrier(none));
    tt_group_close(none);
    tt_group_close(odd);
    return TT_OK;
}

static tt_err agreement(tt_world *w, void *arg)
{
    const tt_group *g = tt_world_all(w);
    tt_err err;
    (void)arg;

    TRY(tt_group_agree(g, TT_OK));
    err = tt_group_agree(g, w->rank == w->size - 1 ? tt_fail(TT_EDATA, "no such file") : TT_OK);
    NEED(err == TT_EDATA && strstr(tt_message(), "no such file"));
    NEED((strstr(tt_message(), "rank ") != NULL) == (w->size > 1));
    err = tt_group_agree(g, tt_fail(TT_EINVAL, "a bad job"));
    NEED(err == TT_EINVAL && !strcmp(tt_message(), "a bad job"));
    return TT_OK;
}

static tt_err sharing(tt_world *w, void *arg)
{
    tt_group *host;
    tt_share s;
    (void)arg;

    TRY(tt_group_split(tt_world_all(w), w->host, &host));
    TRY(tt_share_open(host, 4096 + 8192 * (size_t)w->local, &s));
    NEED(s.size == w->local_size && s.bytes[w->local] == 4096 + 8192 * (size_t)w->local);
    tt_flag *mine = s.at[w->local];
    NEED(tt_flag_get(mine) == 0);
    int *numbers = (int *)((char *)mine + 128);
    for (uint32_t round = 1; round <= 200; round++) {
        *numbers = (int)(round * 1000) + w->rank;
        tt_flag_set(mine, 2 * round - 1);
        for (int l = 0; l < s.size; l++) {
            tt_flag *f = s.at[l];
            TRY(tt_flag_wait(w, f, 2 * round - 1, host->rank[l]));
            NEED(*(int *)((char *)f + 128) == (int)(round * 1000) + host->rank[l]);
        }
        tt_flag_set(mine, 2 * round);
        for (int l = 0; l < s.size; l++) TRY(tt_flag_wait(w, s.at[l], 2 * round, host->rank[l]));
    }
    TRY(tt_group_barrier(host));
    tt_share_close(&s);
    tt_group_close(host);
    return TT_OK;
}

static tt_err sums(tt_world *w, void *arg)
{
    static const int64_t lengths[] = {1, 7, 1000, 262144, 700001};
    const int64_t room = 700001;
    tt_summer *s;
    float *own = calloc((size_t)room, sizeof *own);
    (void)arg;

    tt_err err = tt_summer_open(tt_world_all(w), (size_t)room * sizeof(float), &s);
    for (int k = 0; k < 4 * TT_COUNT(lengths) && !err; k++) {
        int64_t n = lengths[k / 4];
        float *x = k % 2 ? tt_summer_memory(s) : own, want = 0, scale = k % 4 < 2 ? 1 : 0.5f;
        for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 1000) * (float)(w->rank + 1) + (float)k;
        if ((err = tt_summer_run(s, x, n, scale))) break;
        for (int64_t i = 0; i < n && !err; i++) {
            want =
                ((float)(i % 1000) * (float)(w->size * (w->size + 1) / 2) + (float)(k * w->size)) *
                scale;
            if (x[i] != want)
                err = tt_fail(TT_EINVAL, "%lld of %lld: %g, wanted %g", (long long)i, (long long)n,
                              x[i], want);
        }
    }
    if (!err) err = tt_group_barrier(tt_world_all(w));
    tt_summer_close(s);
    free(own);
    return err;
}

/* Rank 1 sends too little, then too much. */
static tt_err wrong_length(tt_world *w, void *arg)
{
    const tt_group *g = tt_world_all(w);
    char data[24] = {0};
    tt_op op;
    (void)arg;

    if (w->size == 1 || w->rank > 1) return TT_OK;
    for (size_t bytes = 8; bytes <= 24; bytes += 16) {
        if (w->rank) {
            TRY(tt_send_start(g, 0, 3, data, bytes, &op));
            TRY(tt_op_wait(&op));
            continue;
        }
        TRY(tt_recv_start(g, 1, 3, data, 16, &op));
        NEED(tt_op_wait(&op) == TT_EPEER && strstr(tt_message(), "from rank 1 ("));
        NEED(bytes > 16 || strstr(tt_message(), "got 8 bytes, expected 16"));
    }
    return TT_OK;
}

#ifdef COMM_WORLD_TEST_MPI
static const struct {
    const char *name;
    tt_sim_fn fn;
} jobs[] = {{"small things", small_things}, {"messages in order", in_order}, {"groups", groups},
            {"agreement", agreement},       {"shared memory", sharing},      {"sums", sums},
            {"wrong length", wrong_length}};

int main(void)
{
    tt_world *w;
    int failed = 0;

    if (tt_world_join(&w)) {
        fprintf(stderr, "%s\n", tt_message());
        return 7;
    }
    for (int i = 0; i < TT_COUNT(jobs); i++) {
        tt_err err = tt_group_agree(tt_world_all(w), jobs[i].fn(w, NULL));
        if (err && !w->rank)
            printf("FAIL comm over %s: %s: %s\n", w->transport, jobs[i].name, tt_message());
        failed += err != TT_OK;
    }
    if (!w->rank) printf("%d passed, %d failed, 0 skipped\n", TT_COUNT(jobs) - failed, failed);
    tt_world_leave(w, 0);
    return failed > 0;
}
#else

static void on_all_sizes(tt_sim_fn fn)
{
    static const int hosts[] = {0, 1, 0, 1, 2, 0, 2, 2}, sizes[] = {1, 2, 3, 5, 8};

    for (int i = 0; i < TT_COUNT(sizes); i++) {
        EXPECT_OK(tt_sim_run(sizes[i], NULL, 20, fn, NULL));
        EXPECT_OK(tt_sim_run(sizes[i], hosts, 20, fn, NULL));
    }
}

TT_TEST(comm, gathers_and_broadcasts_bring_the_right_bytes)
{
    on_all_sizes(small_things);
}
TT_TEST(comm, messages_with_a_tag_keep_their_order)
{
    on_all_sizes(in_order);
}
TT_TEST(comm, a_group_is_a_world_of_its_own)
{
    on_all_sizes(groups);
}
TT_TEST(comm, all_hear_of_one_error_and_whose_it_is)
{
    on_all_sizes(agreement);
}
TT_TEST(comm, memory_of_a_host_is_seen_by_its_ranks)
{
    on_all_sizes(sharing);
}

TT_TEST(comm, long_vectors_are_summed_wherever_they_lie)
{
    on_all_sizes(sums);
}

static tt_err who_is_where(tt_world *w, void *arg)
{
    static const int host[] = {0, 1, 0, 1, 2}, local[] = {0, 0, 1, 1, 0};
    (void)arg;
    for (int r = 0; r < 5; r++) NEED(w->peer[r].host == host[r] && w->peer[r].local == local[r]);
    NEED(w->host_count == 3 && w->host == host[w->rank] && w->local == local[w->rank]);
    NEED(w->local_size == (w->host == 2 ? 1 : 2));
    return TT_OK;
}

TT_TEST(comm, hosts_count_from_their_first_rank)
{
    static const int hosts[] = {7, 3, 7, 3, 9};
    EXPECT_OK(tt_sim_run(5, hosts, 20, who_is_where, NULL));
}

/* One rank leaves without a word. */
static tt_err deserted(tt_world *w, void *arg)
{
    const int *who = arg;
    int mine = 0, all[8];
    tt_err err;

    w->timeout_s = 0.2;
    if (w->rank == *who) return TT_OK;
    err = tt_group_gather(tt_world_all(w), &mine, sizeof mine, all);
    NEED(err == TT_EPEER);
    char name[64];
    snprintf(name, sizeof name, "no word from rank %d (sim0) for 0.2 s", *who);
    NEED(!strcmp(tt_message(), name));
    return TT_OK;
}

TT_TEST(comm, who_is_missing_is_named_when_time_is_up)
{
    for (int who = 0; who < 4; who++) EXPECT_OK(tt_sim_run(4, NULL, 20, deserted, &who));
}

static tt_err silent_flag(tt_world *w, void *arg)
{
    tt_share s;
    tt_err err = TT_OK;
    (void)arg;

    TRY(tt_share_open(tt_world_all(w), 4096, &s));
    w->timeout_s = 0.2;
    if (w->rank) err = tt_flag_wait(w, s.at[0], 1, 0);
    tt_share_close(&s);
    NEED(!w->rank || (err == TT_EPEER && strstr(tt_message(), "rank 0 (sim0)")));
    return TT_OK;
}

TT_TEST(comm, a_flag_nobody_sets_is_given_up)
{
    EXPECT_OK(tt_sim_run(3, NULL, 20, silent_flag, NULL));
}

TT_TEST(comm, a_message_of_another_length_is_an_error)
{
    on_all_sizes(wrong_length);
}

TT_TEST(comm, the_environment_tells_who_started_us)
{
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("PMI_RANK");
    unsetenv("SLURM_PROCID");
    EXPECT(tt_world_started().by == NULL);
    setenv("SLURM_PROCID", "0", 1);
    EXPECT(tt_world_started().by == NULL); /* a batch script */
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_NTASKS", "4", 1);
    EXPECT_STR("srun", tt_world_started().by);
    setenv("SLURM_TASKS_PER_NODE", "2(x2)", 1);
    setenv("SLURM_STEP_TASKS_PER_NODE", "1", 1); /* the shell of salloc, in a step of its own */
    EXPECT(tt_world_started().by == NULL);
    setenv("SLURM_STEP_TASKS_PER_NODE", "2(x2)", 1);
    EXPECT_STR("srun", tt_world_started().by);
    setenv("PMI_JOBID", "7.0", 1); /* srun --mpi=pmi2 */
    setenv("PMI_RANK", "2", 1);
    setenv("PMI_SIZE", "3", 1);
    EXPECT_STR("srun", tt_world_started().by);
    unsetenv("PMI_JOBID");
    EXPECT_STR("mpiexec (MPICH)", tt_world_started().by);
    EXPECT_INT(2, tt_world_started().rank);
    EXPECT_INT(3, tt_world_started().size);
    setenv("OMPI_COMM_WORLD_RANK", "x", 1);
    EXPECT_STR("mpirun (Open MPI)", tt_world_started().by);
    EXPECT_INT(-1, tt_world_started().rank);
}

TT_TEST(comm, a_world_of_one_needs_nobody)
{
    tt_world *w;
    EXPECT_OK(tt_world_alone(&w));
    EXPECT_INT(1, w->size);
    EXPECT_OK(small_things(w, NULL));
    EXPECT_OK(sharing(w, NULL));
    tt_world_leave(w, 0);
    tt_world_leave(NULL, 0);
}
#endif
