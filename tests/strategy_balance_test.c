/* Who gets how much: simulated ranks of given speeds, which tell of each step as real ones do, two
 * steps late. */
#include "strategy/balance.h"

#include <math.h>

#include "strategy/inner.h"
#include "test.h"

enum { MOST = 64 };

typedef struct sim {
    balance b;
    int ranks;
    double speed[MOST]; /* 1: a unit a second; 0.2: the same at 20 % CPU */
    double noise;
    double told[MOST]; /* of the step before */
    int64_t step, deals;
    balance_news news[MOST];
    int news_count;
} sim;

static void sit_down(sim *s, int ranks, int units, const int *threads)
{
    int t[MOST], u[MOST];

    *s = (sim){.ranks = ranks};
    for (int i = 0; i < ranks; i++) {
        t[i] = threads ? threads[i] : 1;
        u[i] = units * (i + 1) / ranks - units * i / ranks;
        s->speed[i] = 1;
    }
    balance_open(&s->b, ranks, t);
    balance_add(&s->b, 0, ranks, u);
}

/* How long the step takes. */
static double one_step(sim *s)
{
    double now[MOST], most = 0;
    int sum = 0;

    for (int i = 0; i < s->ranks; i++) {
        const pace *p = &s->b.ranks_at[i];
        float r[4];
        tt_normal4(77, (uint64_t)s->step, (uint64_t)i, r);
        now[i] = p->units ? fmax(0.1, 1 + s->noise * r[0]) / s->speed[i] : 0;
        most = fmax(most, (p->units + p->threads - 1) / p->threads * now[i]);
    }
    if (balance_hear(&s->b, s->told, s->news, &s->news_count)) s->deals++;
    memcpy(s->told, now, sizeof now);
    for (int i = 0; i < s->ranks; i++) {
        EXPECT(s->b.ranks_at[i].units >= 0);
        sum += s->b.ranks_at[i].units;
    }
    for (int i = 0, all = 0; i < s->b.table_count; i++) {
        all += s->b.tables[i].units;
        if (i + 1 == s->b.table_count) EXPECT_INT(all, sum);
    }
    s->step++;
    return most;
}

static double steps(sim *s, int n)
{
    double sum = 0;
    while (n--) sum += one_step(s);
    return sum;
}

TT_TEST(balance, equal_ranks_stay_as_they_are)
{
    static const int ranks[] = {2, 3, 4, 8}, units[] = {1, 4, 16, 100};
    sim s;

    for (int i = 0; i < TT_COUNT(ranks); i++)
        for (int k = 0; k < TT_COUNT(units); k++) {
            sit_down(&s, ranks[i], units[k], NULL);
            steps(&s, 1000);
            EXPECT_INT(0, s.deals);
            balance_close(&s.b);
        }
}

TT_TEST(balance, noise_moves_nothing)
{
    static const int ranks[] = {2, 4, 8, 16}, units[] = {8, 16, 64, 256};
    sim s;

    for (int i = 0; i < TT_COUNT(ranks); i++)
        for (int k = 0; k < TT_COUNT(units); k++) {
            sit_down(&s, ranks[i], units[k], NULL);
            s.noise = 0.1;
            for (int n = 0; n < 3000; n++) {
                one_step(&s);
                EXPECT_INT(0, s.news_count);
            }
            EXPECT_INT(0, s.deals);
            balance_close(&s.b);
        }
}

TT_TEST(balance, one_late_step_is_no_slow_rank)
{
    sim s;

    sit_down(&s, 4, 16, NULL);
    steps(&s, 50);
    s.speed[1] = 0.05;
    one_step(&s);
    s.speed[1] = 1;
    for (int n = 0; n < 200; n++) {
        one_step(&s);
        EXPECT_INT(0, s.news_count);
    }
    EXPECT(s.b.ranks_at[1].units >= 3); /* whatever was thought of it meanwhile */
    balance_close(&s.b);
}

TT_TEST(balance, a_rank_at_a_fifth_is_named_within_10_steps_and_costs_its_share)
{
    static const int ranks[] = {2, 3, 4, 8}, each[] = {4, 8, 32};
    sim s;

    for (int i = 0; i < TT_COUNT(ranks); i++)
        for (int k = 0; k < TT_COUNT(each); k++) {
            int named = 0, n = ranks[i];
            double best, last = 0;
            sit_down(&s, n, n * each[k], NULL);
            s.noise = 0.05;
            steps(&s, 40);
            s.speed[n - 1] = 0.2;
            for (int at = 1; at <= 10; at++) {
                last = one_step(&s);
                if (!s.news_count) continue;
                EXPECT(s.news_count == 1 && s.news[0].slow && s.news[0].place == n - 1);
                EXPECT(s.news[0].factor >= 2 && s.news[0].factor < 8);
                named = at;
            }
            EXPECT(named > 0);
            /* What is left of all speed, and a unit that cannot be halved. */
            s.noise = 0;
            steps(&s, 40);
            best = n * each[k] / (n - 0.8);
            last = one_step(&s);
            if (last > 1.12 * ceil(best))
                FAIL("%d ranks, %d units: %.1f s, %.1f can be had", n, n * each[k], last, best);
            EXPECT(s.deals <= 8);
            balance_close(&s.b);
        }
}

/* A CPU quota lets a rank run at full speed for a while and then not at all: of short steps most
 * are fast, and some last for ever. */
TT_TEST(balance, who_is_slow_in_bursts_is_found)
{
    sim s;
    int named = 0;

    sit_down(&s, 4, 16, NULL);
    steps(&s, 40);
    for (int n = 0; n < 40; n++) {
        s.speed[1] = n % 5 ? 1 : 1.0 / 21;
        one_step(&s);
        named += s.news_count && s.news[0].slow && s.news[0].place == 1;
    }
    EXPECT_INT(1, named);
    EXPECT(s.b.ranks_at[1].units <= 2);
    balance_close(&s.b);
}

TT_TEST(balance, it_is_dealt_anew_within_10_steps)
{
    sim s;

    sit_down(&s, 4, 16, NULL);
    EXPECT_NEAR(4 * 40, steps(&s, 40), 1e-9);
    s.speed[2] = 0.2;
    steps(&s, 9);
    EXPECT_NEAR(5, one_step(&s), 1e-9); /* 5, 5, 1 and 5 */
    EXPECT_INT(1, s.b.ranks_at[2].units);
    EXPECT_INT(1, s.deals);
    balance_close(&s.b);
}

TT_TEST(balance, who_is_fast_again_is_told_of_and_gets_its_share_back)
{
    sim s;
    int back = 0;

    sit_down(&s, 4, 16, NULL);
    s.speed[3] = 0.2;
    steps(&s, 60);
    EXPECT_INT(1, s.b.ranks_at[3].units);
    s.speed[3] = 1;
    for (int n = 0; n < 60; n++) {
        one_step(&s);
        back += s.news_count == 1 && !s.news[0].slow && s.news[0].place == 3;
    }
    EXPECT_INT(1, back);
    EXPECT_NEAR(4, one_step(&s), 1e-9);
    balance_close(&s.b);
}

TT_TEST(balance, who_has_nothing_to_do_is_tried_now_and_then)
{
    sim s;
    double before;

    sit_down(&s, 4, 4, NULL);
    s.speed[0] = 0.2;
    steps(&s, 30);
    EXPECT_INT(0, s.b.ranks_at[0].units);
    before = steps(&s, 2000);
    EXPECT(before < 1.04 * 2 * 2000); /* trials are seldom */
    EXPECT(before > 2 * 2000);
    s.speed[0] = 1;
    steps(&s, 600);
    EXPECT_INT(1, s.b.ranks_at[0].units);
    EXPECT_NEAR(1, one_step(&s), 1e-9);
    balance_close(&s.b);
}

TT_TEST(balance, who_is_of_no_use_is_not_tried)
{
    sim s;

    sit_down(&s, 5, 3, NULL); /* two have nothing to do from the start */
    s.speed[1] = 0.1;
    steps(&s, 2000);
    EXPECT_INT(1, s.deals);
    balance_close(&s.b);
}

TT_TEST(balance, threads_run_side_by_side)
{
    static const int threads[] = {1, 3};
    sim s;

    sit_down(&s, 2, 16, threads);
    steps(&s, 40);
    EXPECT_INT(4, s.b.ranks_at[0].units);
    EXPECT_INT(12, s.b.ranks_at[1].units);
    balance_close(&s.b);
}

/* Two threads that share one CPU: alone a unit takes half as long, so what is measured depends on
 * what was dealt. */
TT_TEST(balance, ranks_whose_speed_depends_on_the_deal_come_to_rest)
{
    static const int threads[] = {4, 4};
    sim s;

    sit_down(&s, 2, 8, threads);
    for (int n = 0; n < 2000; n++) {
        int u = s.b.ranks_at[0].units;
        s.speed[0] = 1.0 / (u < 1 ? 1 : u < 4 ? u : 4);
        one_step(&s);
    }
    EXPECT(s.deals < 2000 / 32 + 8);
    balance_close(&s.b);
}

TT_TEST(balance, hosts_with_rows_of_their_own_deal_among_themselves)
{
    static const int threads[] = {1, 1, 1, 1}, units[] = {4, 4, 4, 4};
    sim s = {.ranks = 4, .speed = {1, 0.2, 1, 1}};
    int named = 0;

    balance_open(&s.b, 4, threads);
    balance_add(&s.b, 0, 2, units);
    balance_add(&s.b, 2, 4, units + 2);
    for (int n = 0; n < 60; n++) {
        one_step(&s);
        named += s.news_count;
    }
    EXPECT_INT(7, s.b.ranks_at[0].units);
    EXPECT_INT(1, s.b.ranks_at[1].units);
    EXPECT_INT(4, s.b.ranks_at[2].units);
    EXPECT_INT(1, named);
    balance_close(&s.b);
}

TT_TEST(balance, chance_deals_all_units_and_the_same_to_all)
{
    sim a, b;
    int none = 0, all = 0;

    sit_down(&a, 5, 11, NULL);
    sit_down(&b, 5, 11, NULL);
    for (uint64_t n = 0; n < 500; n++) {
        int sum = 0;
        balance_shuffle(&a.b, n);
        balance_shuffle(&b.b, n);
        for (int i = 0; i < 5; i++) {
            EXPECT_INT(a.b.ranks_at[i].units, b.b.ranks_at[i].units);
            sum += a.b.ranks_at[i].units;
            none += a.b.ranks_at[i].units == 0;
            all += a.b.ranks_at[i].units == 11;
        }
        EXPECT_INT(11, sum);
    }
    EXPECT(none > 100 && all > 20);
    balance_close(&a.b);
    balance_close(&b.b);
}

TT_TEST(balance, any_run_has_room_for_its_sums)
{
    for (int units = 1; units <= 70; units++) {
        int most = 0;
        for (int a = 0; a < units; a++)
            for (int b = a + 1; b <= units; b++) {
                ranges r;
                tree_cover(units, (range){a, b}, &r);
                most = r.count > most ? r.count : most;
                EXPECT(fold_most(units, (range){a, b}) <= tree_most(units) + 1);
            }
        EXPECT_INT(most, tree_most(units));
    }
}
