/* The judge of a run's history. */
#define _GNU_SOURCE
#include "test.h"

#include "store/ledger.h"

/* ---- witness ---- */

TT_TEST(witness, each_sample_once_in_any_order_is_the_whole)
{
    tt_witness a = {0}, whole = tt_witness_whole(1000);

    tt_witness_add(&a, 600, 400);
    tt_witness_add(&a, 0, 123);
    tt_witness_add(&a, 123, 477);
    EXPECT(a.sum == whole.sum && a.count == 1000);
    EXPECT(tt_witness_whole(0).sum == 0 && tt_witness_whole(0).count == 0);
}

TT_TEST(witness, one_twice_and_another_not_at_all_is_seen)
{
    tt_witness whole = tt_witness_whole(100);

    for (uint64_t twice = 0; twice < 100; twice++)
        for (uint64_t never = 0; never < 100; never++) {
            tt_witness w = {0};
            if (twice == never) continue;
            tt_witness_add(&w, 0, never);
            tt_witness_add(&w, never + 1, 99 - never);
            tt_witness_add(&w, twice, 1);
            EXPECT(w.count == 100 && w.sum != whole.sum);
        }
}

/* ---- the judge ---- */

static tt_ledger l;

static const char *take(tt_record r)
{
    return tt_ledger_take(&l, &r);
}

static const char *go(uint32_t g)
{
    return take((tt_record){.kind = TT_REC_GO, .generation = g, .workers = 4});
}

static const char *found(uint32_t g, uint32_t attempt, int64_t step, uint32_t made)
{
    return take((tt_record){
        .kind = TT_REC_FOUND, .generation = g, .attempt = attempt, .step = step, .made = made});
}

static const char *told(uint32_t g, int64_t step)
{
    return take((tt_record){.kind = TT_REC_TOLD, .generation = g, .step = step});
}

static const char *line(tt_record_kind k, uint32_t g, uint32_t attempt, int64_t step)
{
    return take((tt_record){.kind = k, .generation = g, .attempt = attempt, .step = step});
}

static const char *epoch(uint32_t g, int64_t number, uint64_t samples, tt_witness w)
{
    return take((tt_record){
        .kind = TT_REC_EPOCH, .generation = g, .epoch = number, .samples = samples, .witness = w});
}

static void expect_bad(const char *part, const char *what)
{
    if (!what || !strstr(what, part)) FAIL("got \"%s\", wanted \"%s\"", what ? what : "", part);
}

/* Generation 1 has committed up to step 100 of attempt 5. */
static void begin(void)
{
    l = (tt_ledger){0};
    EXPECT(!go(1) && !found(1, 5, 0, 1) && !told(1, 0) && !told(1, 60) && !told(1, 100));
}

TT_TEST(ledger, a_run_that_was_disturbed_and_lost_nothing_is_fine)
{
    begin();
    EXPECT(!epoch(1, 0, 50, tt_witness_whole(50)));
    EXPECT(!go(2)); /* killed before it found anything */
    EXPECT(!go(3) && !found(3, 5, 103, 1) && !told(3, 103) && !told(3, 110));
    EXPECT(!epoch(3, 0, 50, tt_witness_whole(50))); /* told again */
    EXPECT(!epoch(3, 1, 50, tt_witness_whole(50)));
    EXPECT(!line(TT_REC_ROLLBACK, 3, 6, 80) && !told(3, 85));
    EXPECT(!epoch(3, 0, 50, tt_witness_whole(50)));
    EXPECT(!go(7) && !found(7, 6, 85, 3) && !told(7, 120));
    EXPECT(!take((tt_record){.kind = TT_REC_END, .step = 120, .code = 75}));
    EXPECT(!go(8) && !found(8, 6, 120, 7)); /* resumed */
    EXPECT(!take((tt_record){.kind = TT_REC_END, .step = 125}));
    EXPECT(l.ended && !l.bad && !*l.what);
    EXPECT_INT(30, (int)l.steps_lost);
    EXPECT(l.told.label.step == 120 && l.told.label.attempt == 6 && l.told.label.generation == 7);
}

TT_TEST(ledger, a_committed_step_that_is_gone_is_a_violation)
{
    begin();
    EXPECT(!go(2));
    expect_bad("went on from step 99, but step 100 was committed", found(2, 5, 99, 1));
    EXPECT_INT(1, l.bad);
    EXPECT(!told(2, 120)); /* told once */
    EXPECT(strstr(l.what, "step 99"));
}

TT_TEST(ledger, going_back_is_fine_when_it_is_said)
{
    begin();
    EXPECT(!go(2) && !line(TT_REC_LOST, 2, 9, 40) && !found(2, 9, 40, 2) && !told(2, 41));
    EXPECT_INT(60, (int)l.steps_lost);
    EXPECT(!go(3));
    expect_bad("went on from attempt 5, but attempt 9 was committed", found(3, 5, 100, 1));
}

TT_TEST(ledger, a_loss_must_open_a_new_attempt)
{
    begin();
    EXPECT(!go(2));
    expect_bad("attempt 5 was opened after attempt 5", line(TT_REC_LOST, 2, 5, 40));
    begin();
    expect_bad("attempt 4 was opened after attempt 5", line(TT_REC_ROLLBACK, 1, 4, 40));
}

TT_TEST(ledger, a_rollback_that_was_not_told_shows_in_what_is_found)
{
    begin();
    EXPECT(!go(2) && !found(2, 6, 90, 1) && !told(2, 91));
    EXPECT(l.told.label.step == 91 && l.steps_lost == 10);
}

TT_TEST(ledger, an_older_line_of_the_same_attempt_is_a_violation)
{
    begin();
    EXPECT(!go(2) && !found(2, 5, 100, 1) && !told(2, 101) && !go(3));
    expect_bad("step 105 of generation 1, but generation 2 had gone on from elsewhere since",
               found(3, 5, 105, 1));
    begin();
    EXPECT(!go(2) && !found(2, 5, 100, 1) && !go(3) && !found(3, 5, 101, 1) && !go(7));
    expect_bad("step 5 of generation 2, but generation 3 had gone on from elsewhere",
               found(7, 6, 5, 2));
}

TT_TEST(ledger, one_world_at_a_time_and_none_that_is_over)
{
    begin();
    expect_bad("generation 1 was active after generation 1", go(1));
    begin();
    EXPECT(!go(2));
    expect_bad("a record 'told' of generation 1 while generation 2 was active", told(1, 101));
    expect_bad("generation 2 committed step 101 before it had found its state", told(2, 101));
    EXPECT(!found(2, 5, 100, 1));
    expect_bad("generation 2 found its state twice", found(2, 5, 100, 1));
    EXPECT_INT(3, l.bad);
}

TT_TEST(ledger, steps_do_not_go_back_within_a_world)
{
    begin();
    expect_bad("step 99 was committed after step 100", told(1, 99));
}

TT_TEST(ledger, the_first_record_is_go_and_after_the_end_comes_only_go)
{
    l = (tt_ledger){0};
    expect_bad("the first record is 'told'", told(1, 5));
    begin();
    expect_bad("ended at step 99, but step 100 was committed",
               take((tt_record){.kind = TT_REC_END, .step = 99}));
    expect_bad("after the end of the run there is a record 'told'", told(1, 101));
}

TT_TEST(ledger, samples_lost_or_taken_twice_are_a_violation)
{
    tt_witness w = tt_witness_whole(49);

    begin();
    expect_bad("epoch 0: 49 samples were taken, it has 50", epoch(1, 0, 50, w));
    tt_witness_add(&w, 7, 1);
    begin();
    expect_bad("a sample was taken twice", epoch(1, 0, 50, w));
    begin();
    EXPECT(!epoch(1, 1, 50, tt_witness_whole(50)));
    expect_bad("epoch 0 was over after epoch 1", epoch(1, 0, 50, tt_witness_whole(50)));
    begin();
    EXPECT(!epoch(1, 1, 50, tt_witness_whole(50)));
    expect_bad("two witnesses", epoch(1, 1, 60, tt_witness_whole(60)));
}

/* A world tells again of the epoch that ended last before it: the same need not be there twice. */
TT_TEST(ledger, an_epoch_that_is_known_is_known_by_its_witness_and_its_line)
{
    tt_record r = {.kind = TT_REC_EPOCH, .generation = 1, .epoch = 1, .samples = 50};

    r.witness = tt_witness_whole(50);
    begin();
    EXPECT(!tt_ledger_has(&l, &r, false));
    EXPECT(!take(r));
    EXPECT(tt_ledger_has(&l, &r, false));
    r.epoch = 2;
    EXPECT(!tt_ledger_has(&l, &r, false));
    EXPECT(!take(r));
    r.epoch = 1; /* of a state that knows less: it was told before, unless it is new to its world */
    EXPECT(tt_ledger_has(&l, &r, true) && !tt_ledger_has(&l, &r, false));
    r.epoch = 2;
    r.witness = tt_witness_whole(49); /* that is to be told: it is a violation */
    EXPECT(!tt_ledger_has(&l, &r, false));
    r.witness = tt_witness_whole(50);
    EXPECT(!take((tt_record){.kind = TT_REC_ROLLBACK, .generation = 1, .attempt = 4096}));
    EXPECT(!tt_ledger_has(&l, &r, false));
}

/* ---- text ---- */

static void expect_line(const char *want, tt_record r)
{
    tt_str s = {0};
    tt_record back;
    bool ours;

    tt_record_print(&r, &s);
    EXPECT_STR(want, s.data);
    EXPECT_OK(tt_record_parse(s.data, s.size, &back, &ours));
    EXPECT(ours && !memcmp(&back, &r, sizeof r));
    tt_str_free(&s);
}

static tt_record blank(tt_record_kind k)
{
    tt_record r;

    memset(&r, 0, sizeof r);
    r.kind = k;
    return r;
}

TT_TEST(ledger, records_are_lines_of_json)
{
    tt_record r = blank(TT_REC_GO);

    r.generation = 4000000000u;
    r.workers = 4;
    strcpy(r.why, "rank 3 \"hung\"");
    expect_line("{\"ledger\":\"go\",\"generation\":4000000000,\"workers\":4,"
                "\"why\":\"rank 3 \\\"hung\\\"\"}\n",
                r);
    r = blank(TT_REC_LOST);
    r.generation = 2, r.attempt = 8192, r.step = 40;
    expect_line("{\"ledger\":\"lost\",\"generation\":2,\"attempt\":8192,\"step\":40}\n", r);
    r = blank(TT_REC_FOUND);
    r.generation = 2, r.attempt = 1, r.step = 1ll << 60, r.made = 1;
    expect_line("{\"ledger\":\"found\",\"generation\":2,\"attempt\":1,\"step\":1152921504606846976,"
                "\"made\":1}\n",
                r);
    r = blank(TT_REC_TOLD);
    r.generation = 2, r.step = 7;
    expect_line("{\"ledger\":\"told\",\"generation\":2,\"step\":7}\n", r);
    r = blank(TT_REC_ROLLBACK);
    r.generation = 2, r.attempt = 3, r.step = 7;
    expect_line("{\"ledger\":\"rollback\",\"generation\":2,\"attempt\":3,\"step\":7}\n", r);
    r = blank(TT_REC_EPOCH);
    r.generation = 2, r.epoch = 1, r.samples = 60000;
    r.witness = (tt_witness){0xfedcba9876543210u, 60000};
    expect_line(
        "{\"ledger\":\"epoch\",\"generation\":2,\"epoch\":1,\"samples\":60000,\"count\":60000,"
        "\"witness\":\"fedcba9876543210\"}\n",
        r);
    r = blank(TT_REC_END);
    r.step = 9, r.code = 75;
    expect_line("{\"ledger\":\"end\",\"step\":9,\"code\":75}\n", r);
}

TT_TEST(ledger, a_reason_that_is_no_text_is_still_a_line)
{
    tt_record r = blank(TT_REC_GO), back;
    tt_str s = {0};
    bool ours;

    memset(r.why, 0xff, sizeof r.why - 1);
    tt_record_print(&r, &s);
    EXPECT_OK(tt_record_parse(s.data, s.size, &back, &ours));
    EXPECT(ours);
    tt_str_free(&s);
}

static void expect_damaged(const char *part, const char *text)
{
    tt_record r;
    bool ours;

    EXPECT_ERR(TT_EFORMAT, tt_record_parse(text, strlen(text), &r, &ours));
    EXPECT_MESSAGE(part);
}

TT_TEST(ledger, a_line_that_is_damaged_is_told_by_its_field)
{
    expect_damaged("no JSON object", "{\"ledger\":\"to");
    expect_damaged("no JSON object", "[1]");
    expect_damaged("no JSON object", "");
    expect_damaged("no known kind", "{\"ledger\":\"party\"}");
    expect_damaged("no known kind", "{\"ledger\":7}");
    expect_damaged("no sound 'step'", "{\"ledger\":\"told\",\"generation\":2}");
    expect_damaged("no sound 'step'", "{\"ledger\":\"told\",\"generation\":2,\"step\":-1}");
    expect_damaged("no sound 'step'", "{\"ledger\":\"told\",\"generation\":2,\"step\":1.5}");
    expect_damaged("no sound 'generation'",
                   "{\"ledger\":\"told\",\"generation\":4294967296,\"step\":1}");
    expect_damaged("no sound 'witness'",
                   "{\"ledger\":\"epoch\",\"generation\":1,\"epoch\":0,\"samples\":1,\"count\":1,"
                   "\"witness\":\"0x00000000000012\"}");
}

TT_TEST(ledger, a_file_is_read_up_to_its_torn_last_line)
{
    static const char text[] = "{\"type\":\"header\",\"schema\":1}\n"
                               "{\"ledger\":\"go\",\"generation\":1,\"workers\":2}\n"
                               "{\"step\":3,\"loss\":0.5}\n"
                               "{\"ledger\":\"found\",\"generation\":1,\"attempt\":0,\"step\":0,"
                               "\"made\":1}\n"
                               "{\"ledger\":\"told\",\"generation\":1,\"step\":12}\n"
                               "{\"ledger\":\"told\",\"generation\":1,\"step\":13}\n";
    size_t whole = sizeof text - 1,
           last = strlen("{\"ledger\":\"told\",\"generation\":1,\"step\":13}\n");

    for (size_t n = 0; n <= whole; n++) { /* the process died here */
        l = (tt_ledger){0};
        EXPECT_OK(tt_ledger_read(&l, text, n));
        EXPECT_INT(0, l.bad);
        if (n >= whole - last) EXPECT_INT(n == whole ? 13 : 12, (int)l.told.label.step);
    }
}

TT_TEST(ledger, a_damaged_line_in_the_middle_is_named)
{
    static const char text[] = "{\"ledger\":\"go\",\"generation\":1,\"workers\":2}\n"
                               "{\"ledger\":\"fou\n"
                               "{\"ledger\":\"go\",\"generation\":2,\"workers\":2}\n";

    l = (tt_ledger){0};
    EXPECT_ERR(TT_EFORMAT, tt_ledger_read(&l, text, sizeof text - 1));
    EXPECT_MESSAGE("line 2");
}
