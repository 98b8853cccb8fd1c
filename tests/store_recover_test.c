/* The commit protocol of a slot, and which state a new world goes on from. */
#define _GNU_SOURCE
#include "test.h"

#include <pthread.h>

#include "store/recover.h"

/* ---- commit ---- */

static tt_commit made(uint32_t generation, uint32_t attempt, int64_t step)
{
    return (tt_commit){{generation, attempt, step}, (uint64_t)step * 1000 + generation};
}

static void commit(tt_commit_head *h, tt_commit what)
{
    int half = tt_commit_begin(h);

    tt_commit_describe(h, half, &what);
    tt_commit_flip(h, half);
}

/* "4 3": the current step and the one before; "-": nothing there. */
static const char *steps(const tt_commit_head *h)
{
    static char text[64];
    int current = tt_commit_current(h);
    tt_commit c;

    if (current < 0) return "empty";
    snprintf(text, sizeof text, "%s", "-");
    if (tt_commit_read(h, current, &c))
        snprintf(text, sizeof text, "%lld", (long long)c.label.step);
    if (tt_commit_read(h, 1 - current, &c))
        snprintf(text + strlen(text), 32, " %lld", (long long)c.label.step);
    else
        strcat(text, " -");
    return text;
}

TT_TEST(commit, each_operation_leaves_the_last_state_and_until_begin_the_one_before)
{
    tt_commit_head h = {0};
    tt_commit what = made(1, 0, 2), c;
    int half;

    EXPECT_STR("empty", steps(&h));
    EXPECT(!tt_commit_read(&h, 0, &c) && !tt_commit_read(&h, 1, &c));
    commit(&h, made(1, 0, 0));
    EXPECT_STR("0 -", steps(&h));
    commit(&h, made(1, 0, 1));
    EXPECT_STR("1 0", steps(&h));

    half = tt_commit_begin(&h);
    EXPECT(half != tt_commit_current(&h));
    EXPECT_STR("1 -", steps(&h)); /* being written */
    tt_commit_describe(&h, half, &what);
    EXPECT_STR("1 -", steps(&h)); /* whole, but not the state */
    tt_commit_flip(&h, half);
    EXPECT_STR("2 1", steps(&h));
    EXPECT(tt_commit_read(&h, half, &c) && c.hash == what.hash && c.label.generation == 1);
}

TT_TEST(commit, undo_takes_back_one_commit_and_no_more)
{
    tt_commit_head h = {0};

    EXPECT(!tt_commit_undo(&h));
    commit(&h, made(1, 0, 7));
    EXPECT(!tt_commit_undo(&h));
    EXPECT_STR("7 -", steps(&h));
    commit(&h, made(2, 0, 8));
    EXPECT(tt_commit_undo(&h));
    EXPECT_STR("7 -", steps(&h));
    EXPECT(!tt_commit_undo(&h));
    commit(&h, made(3, 0, 8));
    EXPECT_STR("8 7", steps(&h));
    tt_commit_begin(&h);
    EXPECT(!tt_commit_undo(&h)); /* the one before is being overwritten */
    EXPECT_STR("8 -", steps(&h));
}

TT_TEST(commit, a_rollback_is_newer_than_what_it_goes_back_from)
{
    tt_commit_head h = {0};

    commit(&h, made(1, 1, 99));
    commit(&h, made(1, 1, 100));
    commit(&h, made(1, 2, 90));
    EXPECT_STR("90 100", steps(&h));
    EXPECT(tt_commit_undo(&h));
    EXPECT_STR("100 -", steps(&h));
}

TT_TEST(commit, a_damaged_head_says_nothing)
{
    tt_commit_head h = {0};

    commit(&h, made(1, 0, 1));
    commit(&h, made(1, 0, 2));
    h.word ^= 1;
    EXPECT_STR("- -", steps(&h));
    h.word ^= 1;
    EXPECT_STR("2 1", steps(&h));
    h.half[tt_commit_current(&h)].next = 0;
    EXPECT_STR("- -", steps(&h));
    memset(&h, 0xff, sizeof h);
    EXPECT_STR("- -", steps(&h));
}

TT_TEST(commit, a_new_attempt_is_one_that_nobody_else_has_opened)
{
    uint32_t first = tt_attempt_next(0, 1), second = tt_attempt_next(first, 1);

    EXPECT(second > first);
    /* A world that cannot see these two opens another one. */
    EXPECT(tt_attempt_next(0, 2) > second);
    EXPECT(tt_attempt_next(first, 2) > second);
    EXPECT(tt_attempt_next(second, 2) > second);
    EXPECT(tt_attempt_next(tt_attempt_next(0, 5), 3) > tt_attempt_next(0, 5));
}

static void *write_on(void *arg)
{
    tt_commit_head *h = arg;

    for (int64_t s = 1; s < 300000; s++) commit(h, made((uint32_t)(s / 7), 0, s));
    return NULL;
}

TT_TEST(commit, a_reader_beside_the_owner_never_sees_a_mixture)
{
    static tt_commit_head h;
    pthread_t owner;
    int64_t last = 0, seen = 0;
    tt_commit c;

    commit(&h, made(0, 0, 0));
    EXPECT(!pthread_create(&owner, NULL, write_on, &h));
    while (last < 299999) {
        int half = tt_commit_current(&h);
        if (!tt_commit_read(&h, half, &c)) continue;
        if (c.hash != (uint64_t)c.label.step * 1000 + c.label.generation ||
            c.label.generation != c.label.step / 7 || c.label.step < last)
            break;
        last = c.label.step;
        seen++;
    }
    pthread_join(owner, NULL);
    EXPECT_INT(299999, last);
    EXPECT(seen > 0);
}

/* ---- choosing ---- */

typedef struct sight {
    tt_found f[64];
    int n;
    tt_recovery r;
} sight;

/* part of parts at generation.attempt.step, on host.slot; current unless `before`. */
static void add(sight *s, int host, int slot, bool current, uint32_t g, uint32_t a, int64_t step,
                int part, int parts)
{
    s->f[s->n++] = (tt_found){.host = host,
                              .slot = slot,
                              .half = current ? 0 : 1,
                              .current = current,
                              .label = {g, a, step},
                              .hash = (uint64_t)step + 1,
                              .part = part,
                              .parts = parts};
}

static void choose(sight *s, const tt_told *told)
{
    tt_recover_choose(s->f, s->n, told, &s->r);
}

static const char *chosen(const sight *s)
{
    static char text[64];

    if (!s->r.any) return "none";
    snprintf(text, sizeof text, "g%u a%u s%lld /%d%s%s", s->r.label.generation, s->r.label.attempt,
             (long long)s->r.label.step, s->r.parts, s->r.behind ? " behind" : "",
             s->r.disputed ? " disputed" : "");
    return text;
}

TT_TEST(recover, nothing_found_is_none)
{
    sight s = {0};

    choose(&s, NULL);
    EXPECT_STR("none", chosen(&s));
    choose(&s, &(tt_told){{3, 0, 7}, 3});
    EXPECT_STR("none", chosen(&s));
    EXPECT(!s.r.behind);
}

TT_TEST(recover, of_replicas_the_newest_is_taken_and_one_is_enough)
{
    sight s = {0};

    add(&s, 0, 0, true, 1, 0, 41, 0, 1);
    add(&s, 0, 0, false, 1, 0, 40, 0, 1);
    add(&s, 1, 0, true, 1, 0, 42, 0, 1); /* the only one that flipped */
    add(&s, 1, 0, false, 1, 0, 41, 0, 1);
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s42 /1", chosen(&s));
}

TT_TEST(recover, a_later_world_is_newer_and_so_is_a_later_attempt_whatever_their_steps)
{
    sight s = {0};

    add(&s, 0, 0, true, 1, 4, 900, 0, 1); /* was not in reach when generation 2 began */
    add(&s, 1, 0, true, 2, 4, 100, 0, 1);
    add(&s, 2, 0, true, 2, 4, 101, 0, 1);
    add(&s, 3, 0, true, 2, 8, 50, 0, 1); /* a rollback */
    choose(&s, NULL);
    EXPECT_STR("g2 a8 s50 /1", chosen(&s));
    s.n = 3;
    add(&s, 3, 0, true, 1, 4, 5000, 0, 1);
    choose(&s, NULL);
}

TT_TEST(recover, all_parts_of_one_label_or_an_older_one_that_has_them)
{
    sight s = {0};

    for (int k = 0; k < 3; k++) add(&s, k, 0, k == 2, 1, 0, 9, k, 3);
    for (int k = 0; k < 2; k++) add(&s, k, 0, true, 1, 0, 10, k, 3); /* rank 2 did not flip */
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s9 /3", chosen(&s));
    add(&s, 5, 5, true, 2, 0, 10, 2, 3); /* of another world: it may be another state */
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s9 /3", chosen(&s));
    add(&s, 5, 6, true, 1, 0, 10, 2, 4); /* of another cut */
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s9 /3", chosen(&s));
    add(&s, 5, 7, true, 1, 0, 10, 2, 3); /* a copy of what was missing */
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s10 /3", chosen(&s));
}

TT_TEST(recover, numbers_that_make_no_sense_are_left_out)
{
    sight s = {0};

    add(&s, 0, 0, true, 9, 0, 10, 0, 0);
    add(&s, 0, 1, true, 9, 0, 10, -1, 1);
    add(&s, 0, 2, true, 9, 0, 10, 5, 2);
    add(&s, 0, 3, true, 9, 0, -1, 0, 1);
    add(&s, 0, 4, true, 9, 0, 11, 2000000000, 2000000001);
    choose(&s, NULL);
    EXPECT_STR("none", chosen(&s));
    add(&s, 0, 5, true, 1, 0, 3, 0, 1);
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s3 /1", chosen(&s));
}

TT_TEST(recover, the_order_in_which_halves_are_found_does_not_matter)
{
    sight s = {0}, t;
    int from[3], want[3];

    for (int k = 0; k < 6; k++) {
        add(&s, k / 2, k % 2, true, 1, 0, 20, k % 3, 3);
        add(&s, k / 2, k % 2, false, 1, 0, 19, k % 3, 3);
    }
    s.f[4].hash = 77;
    t = s;
    choose(&s, NULL);
    tt_recover_share(&s.r, s.f, s.n, (tt_holder){1, 0, 2}, s.r.label, want);
    for (uint64_t shuffle = 0; shuffle < 50; shuffle++) {
        sight u = t;
        for (int i = 0; i < u.n; i++) u.f[i] = t.f[tt_permute(shuffle, (uint64_t)u.n, (uint64_t)i)];
        choose(&u, NULL);
        EXPECT(!memcmp(&u.r.label, &s.r.label, sizeof u.r.label) && u.r.odd == s.r.odd);
        tt_recover_share(&u.r, u.f, u.n, (tt_holder){1, 0, 2}, u.r.label, from);
        EXPECT(!memcmp(from, want, sizeof from) && !memcmp(u.f, s.f, sizeof u.f));
    }
}

/* ---- hashes ---- */

TT_TEST(recover, a_replica_that_differs_from_most_is_left_out_and_reported)
{
    sight s = {0};
    int from[1];

    for (int k = 0; k < 3; k++) add(&s, k, 0, true, 1, 0, 5, 0, 1);
    s.f[0].hash = 99;
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s5 /1", chosen(&s));
    EXPECT_INT(1, s.r.odd);
    for (int i = 0; i < s.n; i++) EXPECT(s.f[i].odd == (s.f[i].host == 0));
    /* Its own rank takes it anew from another. */
    EXPECT(tt_recover_share(&s.r, s.f, s.n, (tt_holder){0, 0, 0}, s.r.label, from).copy);
    EXPECT(s.f[from[0]].host != 0);
}

TT_TEST(recover, a_slot_has_one_vote)
{
    sight s = {0};

    /* Slot 0 was repaired, and beside the copy lies what was wrong; slot 1 is wrong now. */
    for (int k = 0; k < 3; k++) add(&s, 0, k, true, 1, 0, 5, 0, 1);
    add(&s, 0, 0, false, 1, 0, 5, 0, 1);
    s.f[3].hash = s.f[1].hash = 99;
    choose(&s, NULL);
    EXPECT(!s.r.disputed && s.r.odd == 2);
    for (int i = 0; i < s.n; i++) EXPECT(s.f[i].odd == (s.f[i].hash == 99));
}

TT_TEST(recover, a_tie_is_told_and_goes_back_to_where_all_agree)
{
    const tt_told told = {{1, 0, 5}, 1};
    tt_holder place[] = {{0, 0, 0}, {1, 0, 0}};
    sight s = {0};
    tt_label l;
    int from[1];

    add(&s, 0, 0, true, 1, 0, 5, 0, 1);
    add(&s, 1, 0, true, 1, 0, 5, 0, 1);
    s.f[0].hash = 99;
    choose(&s, NULL);
    EXPECT_STR("none", chosen(&s));
    EXPECT_INT(2, s.r.odd);

    add(&s, 0, 0, false, 1, 0, 4, 0, 1);
    add(&s, 1, 0, false, 1, 0, 4, 0, 1);
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s4 /1 behind disputed", chosen(&s));
    l = tt_recover_label(&s.r, s.f, s.n, place, 2, 1, 2);
    EXPECT(l.attempt > 0 && l.generation == 2 && l.step == 4); /* another line of history */
    tt_refill f = tt_recover_share(&s.r, s.f, s.n, place[0], l, from);
    EXPECT(f.undo && f.copy);

    /* One of the two has taken it back when the world dies: the other is not the truth by that. */
    sight t = {0};
    add(&t, 0, 0, true, 1, 0, 4, 0, 1);
    add(&t, 1, 0, true, 1, 0, 5, 0, 1);
    add(&t, 1, 0, false, 1, 0, 4, 0, 1);
    choose(&t, &(tt_told){l, 2});
    EXPECT_STR("g1 a0 s4 /1 behind", chosen(&t));
    choose(&t, &told); /* whereas if nobody ever disputed it, it is */
    EXPECT_STR("g1 a0 s5 /1", chosen(&t));
}

TT_TEST(recover, who_holds_no_part_has_a_vote)
{
    sight s = {0};

    for (int k = 0; k < 3; k++) {
        add(&s, 0, k, true, 1, 0, 5, k ? -1 : 0, 1);
        add(&s, 0, k, false, 1, 0, 4, k ? -1 : 0, 1);
    }
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s5 /1", chosen(&s));
    for (int i = 0; i < s.n; i++)
        if (!s.f[i].slot && s.f[i].label.step == 5) s.f[i].hash = 99;
    choose(&s, NULL); /* the chief's weights are odd */
    EXPECT_STR("g1 a0 s4 /1", chosen(&s));
}

/* Its tables would be left to it as they are, and its hash be taken for that of all. */
TT_TEST(recover, who_holds_no_part_may_be_odd)
{
    sight s = {0};

    for (int k = 0; k < 3; k++) add(&s, 0, k, true, 1, 0, 5, k ? -1 : 0, 1);
    for (int i = 0; i < s.n; i++)
        if (s.f[i].slot == 2) s.f[i].hash = 99;
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s5 /1", chosen(&s));
    for (int i = 0; i < s.n; i++) EXPECT(s.f[i].odd == (s.f[i].slot == 2));
}

TT_TEST(recover, a_half_whose_bytes_are_not_its_own_is_left_out)
{
    sight s = {0};

    for (int k = 0; k < 2; k++) add(&s, 0, k, true, 1, 0, 5, 0, 1);
    s.f[0].bad = true;
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s5 /1", chosen(&s));
    s.f[0].bad = s.f[1].bad = true;
    choose(&s, NULL);
    EXPECT_STR("none", chosen(&s));
}

TT_TEST(recover, what_was_made_with_the_gradient_of_a_bad_half_is_left_out_everywhere)
{
    sight s = {0};

    for (int k = 0; k < 3; k++) {
        add(&s, 0, k, true, 1, 0, 5, 0, 1);
        add(&s, 0, k, false, 1, 0, 4, 0, 1);
    }
    s.f[0].hash = 99;
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s5 /1", chosen(&s));
    for (int i = 0; i < s.n; i++) s.f[i].suspect = s.f[i].odd;
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s4 /1 behind disputed", chosen(&s));
}

TT_TEST(recover, an_unknown_hash_neither_votes_nor_is_odd)
{
    sight s = {0};

    for (int k = 0; k < 4; k++) add(&s, k, 0, true, 1, 0, 5, k % 2, 2);
    for (int k = 0; k < 3; k++) s.f[k].hash = 0;
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s5 /2", chosen(&s));
    EXPECT_INT(0, s.r.odd);
}

TT_TEST(recover, where_the_right_ones_are_not_complete_an_older_state_is)
{
    sight s = {0};

    for (int k = 0; k < 3; k++) add(&s, k, 0, true, 1, 0, 5, k, 3);
    for (int k = 0; k < 3; k++) add(&s, k, 0, false, 1, 0, 4, k, 3);
    s.f[1].hash = 99; /* the only copy of part 1 */
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s4 /3", chosen(&s));
}

/* ---- what a world does with it ---- */

TT_TEST(recover, an_old_copy_is_not_taken_in_silence)
{
    sight s = {0};
    tt_label label;

    add(&s, 0, 0, true, 3, 4096 * 3, 70, 0, 1);
    choose(&s, &(tt_told){{3, 4096 * 3, 70}, 4});
    EXPECT_STR("g3 a12288 s70 /1", chosen(&s));
    choose(&s, &(tt_told){{3, 4096 * 3, 71}, 3});
    EXPECT_STR("g3 a12288 s70 /1 behind", chosen(&s));
    choose(&s, &(tt_told){{4, 4096 * 3, 60}, 4});
    EXPECT_STR("g3 a12288 s70 /1 behind", chosen(&s));
    label = tt_recover_label(&s.r, s.f, s.n, &(tt_holder){0, 0, 0}, 1, 1, 5);
    EXPECT(label.generation == 5 && label.step == 70 && label.attempt == 5 * 4096);
}

TT_TEST(recover, what_a_world_made_that_was_passed_over_does_not_count)
{
    sight s = {0};
    tt_told told = {{1, 4096, 40}, 3}; /* generation 3 went on from there, without host 1 ... */

    add(&s, 0, 0, true, 1, 4096, 40, 0, 1);
    add(&s, 1, 0, true, 2, 8192, 3, 0, 1); /* ... where generation 2 had begun anew */
    choose(&s, &told);
    EXPECT_STR("g1 a4096 s40 /1", chosen(&s));
    s.n = 0;
    add(&s, 1, 0, true, 2, 8192, 3, 0, 1); /* host 0 is gone: that is all there is */
    choose(&s, &told);
    EXPECT_STR("g2 a8192 s3 /1 behind", chosen(&s));
    add(&s, 2, 0, true, 3, 4096, 41, 0, 1); /* what generation 3 has made of it */
    choose(&s, &told);
    EXPECT_STR("g3 a4096 s41 /1", chosen(&s));
}

TT_TEST(recover, what_is_told_is_raised_by_what_comes_of_it)
{
    tt_told t = {{1, 4096, 40}, 3};

    tt_told_raise(&t, (tt_label){2, 8192, 99});
    EXPECT(t.label.generation == 1 && t.label.step == 40 && t.by == 3);
    tt_told_raise(&t, (tt_label){1, 4096, 41});
    EXPECT(t.label.generation == 1 && t.label.step == 41 && t.by == 3);
    tt_told_raise(&t, (tt_label){4, 4096, 50});
    EXPECT(t.label.generation == 4 && t.label.step == 50 && t.by == 4);
}

TT_TEST(recover, a_slot_that_is_ahead_takes_back_its_last_commit)
{
    sight s = {0};
    tt_refill share;
    int from[2];

    add(&s, 0, 0, true, 1, 0, 10, 0, 2);
    add(&s, 0, 0, false, 1, 0, 9, 0, 2);
    add(&s, 0, 1, true, 1, 0, 9, 1, 2);
    choose(&s, NULL);
    EXPECT_STR("g1 a0 s9 /2", chosen(&s));
    share = tt_recover_share(&s.r, s.f, s.n, (tt_holder){0, 0, 0}, s.r.label, from);
    EXPECT(share.undo && !share.copy);
    EXPECT(s.f[from[0]].slot == 0 && s.f[from[1]].slot == 1);
    share = tt_recover_share(&s.r, s.f, s.n, (tt_holder){0, 1, 1}, s.r.label, from);
    EXPECT(!share.undo && !share.copy);
}

TT_TEST(recover, who_has_nothing_copies_from_its_own_host_if_it_can)
{
    sight s = {0};
    int from[1];
    tt_refill share;

    for (int h = 0; h < 3; h++) add(&s, h, 1, true, 1, 0, 9, 0, 1);
    choose(&s, NULL);
    share = tt_recover_share(&s.r, s.f, s.n, (tt_holder){2, 0, 0}, s.r.label, from);
    EXPECT(share.copy && !share.undo && s.f[from[0]].host == 2);
    share = tt_recover_share(&s.r, s.f, s.n, (tt_holder){7, 0, 0}, s.r.label, from);
    EXPECT(share.copy && s.f[from[0]].host == 0);
}

TT_TEST(recover, where_parts_must_move_all_is_written_anew_under_this_generation)
{
    sight s = {0};
    tt_holder same[] = {{0, 0, 0}, {0, 1, 1}}, swapped[] = {{0, 0, 1}, {0, 1, 0}};
    tt_label label;
    int from[2];

    add(&s, 0, 0, true, 1, 0, 9, 0, 2);
    add(&s, 0, 1, true, 1, 0, 9, 1, 2);
    choose(&s, NULL);
    EXPECT_INT(1, tt_recover_label(&s.r, s.f, s.n, same, 2, 2, 6).generation);
    EXPECT_INT(6, tt_recover_label(&s.r, s.f, s.n, same, 2, 3, 6).generation);
    label = tt_recover_label(&s.r, s.f, s.n, swapped, 2, 2, 6);
    EXPECT(label.generation == 6 && label.attempt == 0 && label.step == 9);
    EXPECT(tt_recover_share(&s.r, s.f, s.n, swapped[0], label, from).copy);
    EXPECT(tt_recover_share(&s.r, s.f, s.n, same[0], label, from).copy); /* its label is old */
}

/* Host 0 has part 0 and a copy of part 1 in one slot, host 1 the other way round. */
TT_TEST(recover, copies_in_a_slot_count_as_parts_of_it)
{
    sight s = {0};
    tt_holder same[] = {{0, 0, 0}, {0, 0, 1}, {1, 0, 1}, {1, 0, 0}};
    tt_holder turned[] = {{0, 0, 1}, {0, 0, 0}}, fewer[] = {{0, 0, 0}, {1, 0, 1}};
    tt_label label;
    int from[2];

    add(&s, 0, 0, true, 1, 0, 9, 0, 2);
    add(&s, 0, 0, true, 1, 0, 9, 1, 2);
    choose(&s, NULL); /* host 1 is lost */
    EXPECT(s.r.any && s.r.parts == 2 && s.r.label.step == 9);
    label = tt_recover_label(&s.r, s.f, s.n, turned, 2, 2, 6);
    EXPECT_INT(1, label.generation); /* whose own they are does not matter */
    EXPECT(!tt_recover_share(&s.r, s.f, s.n, turned[0], label, from).copy);
    EXPECT(!tt_recover_share(&s.r, s.f, s.n, turned[1], label, from).copy);
    EXPECT_INT(1, tt_recover_label(&s.r, s.f, s.n, fewer, 2, 2, 6).generation);
    EXPECT(!tt_recover_share(&s.r, s.f, s.n, fewer[0], label, from).copy);
    EXPECT(tt_recover_share(&s.r, s.f, s.n, fewer[1], label, from).copy);

    s = (sight){0}; /* the copies of host 0 were still on their way */
    add(&s, 0, 0, true, 1, 0, 9, 0, 2);
    add(&s, 1, 0, true, 1, 0, 9, 1, 2);
    add(&s, 1, 0, true, 1, 0, 9, 0, 2);
    choose(&s, NULL);
    label = tt_recover_label(&s.r, s.f, s.n, same, 4, 2, 6);
    EXPECT_INT(1, label.generation); /* nothing is given up: it is added */
    EXPECT(!tt_recover_share(&s.r, s.f, s.n, same[0], label, from).copy);
    EXPECT(tt_recover_share(&s.r, s.f, s.n, same[1], label, from).copy);
    EXPECT(!tt_recover_share(&s.r, s.f, s.n, same[2], label, from).copy);
    EXPECT(!tt_recover_share(&s.r, s.f, s.n, same[3], label, from).copy);
}

TT_TEST(recover, a_slot_does_not_give_up_one_copy_for_another_under_one_label)
{
    sight s = {0};
    tt_holder other[] = {{0, 0, 0}, {0, 0, 2}, {1, 0, 1}, {2, 0, 2}};

    add(&s, 0, 0, true, 1, 0, 9, 0, 3);
    add(&s, 0, 0, true, 1, 0, 9, 1, 3);
    add(&s, 1, 0, true, 1, 0, 9, 2, 3);
    choose(&s, NULL);
    EXPECT(s.r.any);
    EXPECT_INT(6, tt_recover_label(&s.r, s.f, s.n, other, 4, 3, 6).generation);
}
