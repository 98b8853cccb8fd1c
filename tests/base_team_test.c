#define _GNU_SOURCE
#include "test.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 16 };

typedef struct counts {
    int by_member[MOST]; /* plain: only its member writes it */
    tt_team *team;
    int values[MOST], rounds;
    atomic_int wrong;
} counts;

static void count_one(void *arg, int member)
{
    ((counts *)arg)->by_member[member]++;
}

TT_TEST(team, every_member_runs_once_per_run)
{
    for (int size = 1; size <= MOST; size += 5) {
        counts c = {0};
        tt_team *t;
        EXPECT_OK(tt_team_open(size, &t));
        EXPECT_INT(size, tt_team_size(t));
        for (int i = 0; i < 200; i++) tt_team_run(t, count_one, &c);
        for (int m = 0; m < MOST; m++) EXPECT_INT(m < size ? 200 : 0, c.by_member[m]);
        tt_team_close(t);
    }
}

static void write_then_read(void *arg, int member)
{
    counts *c = arg;
    int size = tt_team_size(c->team);

    for (int r = 1; r <= c->rounds; r++) {
        c->values[member] = r;
        tt_team_barrier(c->team);
        for (int m = 0; m < size; m++) /* plain reads of the others' plain writes */
            if (c->values[m] != r) atomic_fetch_add(&c->wrong, 1);
        tt_team_barrier(c->team);
    }
}

TT_TEST(team, what_was_written_before_a_barrier_is_seen_after)
{
    /* Also with far more members than CPUs, where a barrier that only spins would take minutes. */
    static const int sizes[] = {1, 2, 3, MOST};

    for (int i = 0; i < TT_COUNT(sizes); i++) {
        counts c = {.rounds = 1000};
        double begun = tt_clock_s();
        EXPECT_OK(tt_team_open(sizes[i], &c.team));
        tt_team_run(c.team, write_then_read, &c);
        EXPECT_INT(0, c.wrong);
        EXPECT(tt_clock_s() - begun < 60);
        tt_team_close(c.team);
    }
}

static void run_late(void *arg, int member)
{
    if (member == 1) usleep(20000);
    count_one(arg, member);
}

TT_TEST(team, a_late_member_is_waited_for_and_a_sleeping_team_wakes)
{
    counts c = {0};
    tt_team *t;

    EXPECT_OK(tt_team_open(3, &t));
    for (int i = 1; i <= 5; i++) {
        tt_team_run(t, run_late, &c);
        EXPECT_INT(i, c.by_member[1]);
        usleep(5000); /* long past the spin: the members sleep now */
    }
    tt_team_close(t);
}

TT_TEST(team, a_sleeping_team_uses_no_cpu)
{
    tt_team *t;
    struct timespec a, b;

    EXPECT_OK(tt_team_open(4, &t));
    usleep(50000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    usleep(200000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    EXPECT((double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9 < 0.05);
    tt_team_close(t);
}

TT_TEST(team, teams_live_side_by_side)
{
    tt_team *t[3];

    for (int i = 0; i < 3; i++) EXPECT_OK(tt_team_open(i + 1, &t[i]));
    for (int i = 0; i < 3; i++) {
        counts c = {0};
        tt_team_run(t[i], count_one, &c);
        EXPECT_INT(1, c.by_member[i]);
    }
    for (int i = 0; i < 3; i++) tt_team_close(t[i]);
    tt_team_close(NULL);
}

TT_TEST(team, impossible_sizes_are_refused)
{
    tt_team *t = (tt_team *)1;

    EXPECT_ERR(TT_EINVAL, tt_team_open(0, &t));
    EXPECT(!t);
    EXPECT_ERR(TT_EINVAL, tt_team_open(1025, &t));
    EXPECT_ERR(TT_EINVAL, tt_team_open(-1, &t));
}

TT_TEST(team, the_affinity_mask_is_respected)
{
    cpu_set_t before, one;
    int cpu = sched_getcpu();

    EXPECT(tt_cpu_count() >= 1);
    EXPECT_INT(0, sched_getaffinity(0, sizeof before, &before));
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    EXPECT_INT(0, sched_setaffinity(0, sizeof one, &one));
    EXPECT_INT(1, tt_cpu_count());
    EXPECT_INT(0, sched_setaffinity(0, sizeof before, &before));
}
