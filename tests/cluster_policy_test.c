/* The supervisor's policy, one promise at a time: starting and failing. */
#define _GNU_SOURCE
#include "policy_help.h"

/* ---- starting ---- */

TT_TEST(policy, a_world_gets_go_when_all_are_ready_and_the_next_stands_by)
{
    begin(fixed(3));
    give_host(0, 2);
    expect_log("");
    give_host(1, 1);
    expect_log("start1:0.0,0.1,1.0 ");
    world_of(1)->not_ready[2] = true;
    pass(0.5);
    expect_log("");
    world_of(1)->not_ready[2] = false;
    pass(0.1);
    expect_log("persist1 go1 start2:0.0,0.1,1.0 ");
    pass(10);
    expect_log("");
    EXPECT_INT(1, tt_policy_look(x.p).active);
    EXPECT_INT(2, tt_policy_look(x.p).standby);
    EXPECT(tt_policy_look(x.p).standby_ready && tt_policy_look(x.p).workers == 3);
    EXPECT(tt_policy_look(x.p).step > 100);
    end();
}

TT_TEST(policy, generations_go_on_where_the_supervisor_before_has_left_off)
{
    tt_policy_opts o = fixed(1);

    o.generation = 41;
    o.standby = false;
    begin(o);
    give_host(0, 1);
    pass(1);
    expect_log("start1:0.0 persist42 go1 ");
    end();
}

TT_TEST(policy, a_world_that_does_not_come_up_is_blamed_on_who_never_said_hello)
{
    begin(fixed(3));
    give_host(0, 2);
    give_host(7, 1);
    world_of(1)->mute[2] = true;
    for (int r = 0; r < 2; r++) world_of(1)->not_ready[r] = true; /* they wait for it */
    pass(59);
    expect_log("start1:0.0,0.1,7.0 ");
    pass(1.5);
    expect_log("tell:start kill1 start2:0.0,0.1,7.0 persist1 go2 start3:0.0,0.1,7.0 ");
    EXPECT(x.told[0].rank == 2 && x.told[0].host == 7 && x.told[0].slot == 0);
    EXPECT(x.told[0].world == 1 && x.told[0].generation == -1);
    end();
}

TT_TEST(policy, a_launcher_that_fails_is_tried_slower_and_slower_and_no_slot_is_blamed)
{
    static const double want[] = {0, 0.1, 0.5, 1, 2, 5, 5};

    begin(fixed(1));
    give_host(0, 1);
    for (int i = 0; i < 7; i++) {
        double failed = x.now;
        int starts = x.starts;
        give_gone(starts, 127);
        for (int k = 0; k < 200 && x.starts == starts; k++) {
            x.now += 0.05;
            give((tt_event){.kind = TT_EV_TICK});
        }
        EXPECT(x.now - failed >= want[i] - 1e-9 && x.now - failed <= want[i] + 0.11);
    }
    EXPECT(!was_told(TT_CAUSE_OUT) && was_told(TT_CAUSE_START));
    end();
}

/* ---- failures ---- */

TT_TEST(policy, after_a_death_the_world_that_stands_by_gets_go_as_soon_as_the_old_one_is_gone)
{
    begin(fixed(2));
    give_host(5, 2);
    pass(2);
    x.log[0] = 0;
    x.stays = true;
    give_dead(1, 1, 137);
    expect_log("tell:dead kill1 ");
    EXPECT(x.told[0].world == 1 && x.told[0].generation == 1 && x.told[0].rank == 1);
    EXPECT(x.told[0].host == 5 && x.told[0].slot == 1 && x.told[0].code == 137);
    EXPECT(x.told[0].phase == TT_PHASE_STEP && x.told[0].step > 10);
    give_dead(1, 0, 137);
    pass(3);
    expect_log(""); /* it is not gone */
    give_gone(1, 137);
    expect_log("persist2 go2 start3:5.0,5.1 ");
    end();
}

TT_TEST(policy, a_process_that_exits_well_in_the_middle_of_training_has_failed)
{
    begin(fixed(2));
    give_host(0, 2);
    pass(2);
    x.log[0] = 0;
    give_dead(1, 0, 0);
    expect_log("tell:dead kill1 ");
    end();
}

TT_TEST(policy, silence_is_a_hang_and_the_longest_silence_is_named)
{
    begin(fixed(3));
    give_host(0, 3);
    pass(2);
    x.log[0] = 0;
    world_of(1)->mute[2] = true;
    pass(0.1);
    world_of(1)->mute[1] = true;
    pass(0.35);
    expect_log("");
    pass(0.2);
    expect_log("tell:hung kill1 persist2 go2 start3:0.0,0.1,0.2 ");
    EXPECT(x.told[0].rank == 2);
    EXPECT(x.told[0].silent_s > 0.5 && x.told[0].silent_s < 0.65);
    end();
}

TT_TEST(policy, of_one_that_is_stopped_half_the_silence_is_enough)
{
    begin(fixed(2));
    give_host(0, 2);
    pass(2);
    x.log[0] = 0;
    give((tt_event){.kind = TT_EV_STILL, .world = 1, .rank = 1}); /* just now, perhaps */
    pass(0.1);
    expect_log("");
    world_of(1)->mute[1] = true;
    pass(0.3);
    expect_log("");
    give((tt_event){.kind = TT_EV_STILL, .world = 1, .rank = 1});
    expect_log("tell:hung kill1 ");
    EXPECT(x.told[0].rank == 1 && x.told[0].silent_s < 0.4);
    end();
}

TT_TEST(policy, a_hang_is_seen_in_every_phase)
{
    for (int phase = TT_PHASE_READY; phase < TT_PHASE_END; phase++) {
        begin(fixed(2));
        give_host(0, 2);
        pass(0.5);
        world_of(1)->phase = (tt_phase)phase;
        world_of(1)->step_s = 0;
        pass(0.5);
        EXPECT_INT(0, x.tolds);
        world_of(1)->mute[0] = true;
        pass(0.65);
        EXPECT(x.tolds == 1 && x.told[0].kind == TT_CAUSE_HUNG);
        EXPECT_INT(phase, (int)x.told[0].phase);
        end();
    }
}

TT_TEST(policy, when_the_supervisor_was_late_itself_nobody_is_blamed)
{
    begin(fixed(2));
    give_host(0, 2);
    pass(2);
    x.log[0] = 0;
    x.now += 300;
    give((tt_event){.kind = TT_EV_TICK});
    pass(0.4);
    world_of(1)->mute[0] = world_of(1)->mute[1] = true;
    x.now += 0.26;
    give((tt_event){.kind = TT_EV_TICK});
    pass(0.45);
    expect_log("");
    pass(0.1);
    EXPECT(was_told(TT_CAUSE_HUNG));
    end();
}

TT_TEST(policy, beats_without_progress_have_a_deadline_of_eight_usual_steps)
{
    begin(fixed(2));
    x.step_s = 1;
    give_host(0, 2);
    pass(20);
    world_of(1)->step_s = 0;
    pass(7);
    EXPECT_INT(0, x.tolds);
    pass(2);
    EXPECT(x.tolds == 1 && x.told[0].kind == TT_CAUSE_STUCK && x.told[0].silent_s > 7.5);
    end();

    begin(fixed(2));
    x.step_s = 0.01;
    give_host(0, 2);
    pass(5);
    world_of(1)->step_s = 0;
    pass(1.9);
    EXPECT_INT(0, x.tolds);
    pass(0.25);
    EXPECT(x.tolds == 1 && x.told[0].kind == TT_CAUSE_STUCK);
    end();
}

TT_TEST(policy, the_first_step_and_phases_without_steps_may_take_long)
{
    begin(fixed(1));
    x.step_s = 0; /* a first step that takes 100 s */
    give_host(0, 1);
    pass(100);
    EXPECT_INT(0, x.tolds);
    world_of(1)->phase = TT_PHASE_JUDGE;
    pass(115);
    EXPECT_INT(0, x.tolds);
    pass(10);
    EXPECT(x.tolds == 1 && x.told[0].kind == TT_CAUSE_STUCK && x.told[0].phase == TT_PHASE_JUDGE);
    end();
}

TT_TEST(policy, who_waits_for_others_is_not_the_one_that_is_stuck)
{
    begin(fixed(3));
    give_host(0, 3);
    pass(3);
    world_of(1)->step_s = 0;
    world_of(1)->waits[0] = world_of(1)->waits[2] = true;
    pass(2.5);
    EXPECT(x.tolds == 1 && x.told[0].kind == TT_CAUSE_STUCK && x.told[0].rank == 1);
    end();
}

TT_TEST(policy, a_go_that_never_arrived_is_noticed)
{
    begin(fixed(2));
    give_host(0, 2);
    pass(0.15);
    EXPECT_INT(1, tt_policy_look(x.p).active);
    world_of(1)->phase = TT_PHASE_READY;
    world_of(1)->step_s = 0;
    pass(2.3);
    EXPECT(x.tolds == 1 && x.told[0].kind == TT_CAUSE_STUCK && x.told[0].phase == TT_PHASE_READY);
    end();
}

TT_TEST(policy, failures_without_progress_are_followed_by_longer_and_longer_delays)
{
    static const double want[] = {0, 0.1, 0.5, 1, 2, 5, 5};
    tt_policy_opts o = fixed(2);

    o.strikes = 100;
    begin(o);
    give_host(0, 2);
    pass(1);
    for (int i = 0; i < 7; i++) {
        int active = tt_policy_look(x.p).active;
        double failed = x.now;
        pass(0.3); /* the next stands by */
        failed = x.now;
        give_dead(active, 0, 139);
        while (x.last_go <= failed && x.now < failed + 10) pass(0.05);
        EXPECT(x.last_go - failed >= want[i] - 1e-9 && x.last_go - failed <= want[i] + 0.2);
    }
    pass(3); /* progress */
    give_dead(tt_policy_look(x.p).active, 0, 139);
    pass(0.1);
    EXPECT(x.now - x.last_go < 0.11);
    EXPECT_INT(8, tt_policy_look(x.p).restarts);
    end();
}

/* Without progress the second failure costs 0.1 s. */
static void expect_delay_after_failure(void)
{
    double failed = x.now;

    pass(0.05);
    EXPECT(x.last_go < failed);
    pass(0.1);
    EXPECT(x.last_go >= failed + 0.1 - 1e-9);
}

TT_TEST(policy, what_other_ranks_still_tell_after_a_rollback_is_no_progress)
{
    begin(fixed(2));
    x.step_s = 0;
    give_host(0, 2);
    pass(0.3);
    world_of(2)->step = 50;
    give_dead(1, 0, 137);
    pass(0.3);
    EXPECT_INT(2, tt_policy_look(x.p).active);
    for (int r = 0; r < 2; r++) /* rank 0 has rolled back to step 3, rank 1 tells that later */
        give((tt_event){
            .kind = TT_EV_BEAT, .world = 2, .rank = r, .phase = TT_PHASE_STEP, .step = r ? 50 : 3});
    give_dead(2, 0, 137);
    expect_delay_after_failure();
    end();
}

TT_TEST(policy, what_a_world_tells_after_its_failure_is_no_progress)
{
    begin(fixed(2));
    give_host(0, 2);
    pass(0.3);
    x.stays = true;
    give_dead(1, 1, 137);
    for (int64_t step = 0; step <= 20; step += 20)
        give(
            (tt_event){.kind = TT_EV_BEAT, .world = 1, .phase = TT_PHASE_STEP, .step = step + 100});
    give_gone(1, 137);
    x.stays = false;
    pass(0.3);
    EXPECT_INT(2, tt_policy_look(x.p).active);
    give_dead(2, 0, 137);
    expect_delay_after_failure();
    end();
}

TT_TEST(policy, failures_with_progress_between_them_end_no_run)
{
    tt_policy_opts o = fixed(2);

    o.max_restarts = 2;
    begin(o);
    give_host(0, 2);
    pass(1);
    for (int i = 0; i < 6; i++) {
        give_dead(tt_policy_look(x.p).active, i % 2, 137);
        pass(3);
    }
    EXPECT(!strstr(x.log, "exit"));
    EXPECT_INT(6, tt_policy_look(x.p).restarts);
    EXPECT_INT(0, tt_policy_look(x.p).in_a_row);
    end();
}

TT_TEST(policy, too_many_failures_end_the_run_with_the_first_cause)
{
    tt_policy_opts o = fixed(1);

    o.max_restarts = 2;
    o.strikes = 100;
    begin(o);
    give_host(0, 1);
    crash_loop(5, 0);
    EXPECT(strstr(x.log, "exit4 "));
    EXPECT(x.end.kind == TT_CAUSE_DEAD && x.end.world == 1 && x.end.code == 139);
    EXPECT_INT(3, tt_policy_look(x.p).restarts);
    x.log[0] = 0;
    pass(5);
    expect_log("");
    end();
}

TT_TEST(policy, failures_with_progress_between_them_are_no_reason_to_give_up)
{
    tt_policy_opts o = fixed(1);

    o.max_restarts = 2;
    begin(o);
    give_host(0, 1);
    for (int i = 0; i < 6; i++) {
        pass(8); /* time to prove itself */
        give_dead(tt_policy_look(x.p).active, 0, 137);
    }
    pass(8);
    EXPECT(!strstr(x.log, "exit"));
    EXPECT_INT(6, tt_policy_look(x.p).restarts);
    EXPECT_INT(0, tt_policy_look(x.p).in_a_row);
    end();
}

/* Worlds that die after so many steps each; returns how many of them there were before the run ended. */
static int short_lives(int worlds, int steps, int max_restarts)
{
    tt_policy_opts o = fixed(1);
    int i;

    o.max_restarts = max_restarts;
    o.strikes = 100;
    begin(o);
    give_host(0, 1);
    for (i = 0; i < worlds && !strstr(x.log, "exit"); i++) {
        double until = x.now + 20;
        do pass(0.05);
        while (x.now < until && (tt_policy_look(x.p).active < 0 ||
                                 world_of(tt_policy_look(x.p).active)->step < x.from + steps));
        EXPECT(x.now < until);
        give_dead(tt_policy_look(x.p).active, 0, 137);
        pass(0.05);
        x.from += steps;
    }
    end();
    return i;
}

/* None lives long enough to prove itself, but together they get on. */
TT_TEST(policy, worlds_that_get_on_a_few_steps_each_end_no_run)
{
    EXPECT_INT(8, short_lives(8, 6, 3));
    EXPECT_INT(30, short_lives(30, 4, 10)); /* from one failure to the next */
}

TT_TEST(policy, worlds_that_get_on_by_one_step_each_end_the_run)
{
    EXPECT_INT(11, short_lives(30, 1, 10));
}

/* ---- slots that fail ---- */

TT_TEST(policy, a_worker_caught_twice_with_wrong_numbers_is_left_out_for_good)
{
    tt_policy_opts o = tt_policy_defaults();

    o.least = 2;
    o.most = 3;
    begin(o);
    give_host(0, 3);
    pass(1);
    int a = tt_policy_look(x.p).active;
    for (int r = 0; r < 3; r++) /* all say so; it counts once */
        give((tt_event){.kind = TT_EV_CORRUPT, .world = a, .rank = 1, .fatal = true});
    EXPECT(was_told(TT_CAUSE_CORRUPT) && !was_told(TT_CAUSE_OUT));
    EXPECT(x.told[0].rank == 1 && x.told[0].slot == 1);
    pass(30); /* much progress does not make up for it */
    EXPECT(tt_policy_look(x.p).workers == 3 && tt_policy_look(x.p).active != a);
    a = tt_policy_look(x.p).active;
    give((tt_event){.kind = TT_EV_CORRUPT, .world = a, .rank = 1, .fatal = true});
    give((tt_event){.kind = TT_EV_TROUBLE, .world = a, .rank = 0, .code = 4});
    EXPECT(was_told(TT_CAUSE_OUT) && last_told().slot == 1);
    pass(1000);
    EXPECT_INT(2, tt_policy_look(x.p).workers);
    EXPECT(!was_told(TT_CAUSE_BACK));
    end();
}

TT_TEST(policy, who_is_caught_without_harm_goes_on_once)
{
    tt_policy_opts o = tt_policy_defaults();

    o.least = 2;
    o.most = 3;
    begin(o);
    give_host(0, 3);
    pass(1);
    int a = tt_policy_look(x.p).active;
    give((tt_event){.kind = TT_EV_CORRUPT, .world = a, .rank = 2});
    pass(20);
    EXPECT(was_told(TT_CAUSE_CORRUPT) && tt_policy_look(x.p).active == a);
    give((tt_event){.kind = TT_EV_CORRUPT, .world = a, .rank = 2});
    EXPECT(was_told(TT_CAUSE_OUT) && last_told().slot == 2);
    pass(20);
    EXPECT(tt_policy_look(x.p).active != a && tt_policy_look(x.p).workers == 2);
    end();
}

TT_TEST(policy, of_two_who_are_caught_together_both_are_counted)
{
    tt_policy_opts o = tt_policy_defaults();

    o.least = 1;
    o.most = 4;
    begin(o);
    give_host(0, 4);
    for (int k = 0; k < 2; k++) {
        pass(20);
        int a = tt_policy_look(x.p).active;
        for (int r = 2; r < 4; r++)
            give((tt_event){.kind = TT_EV_CORRUPT, .world = a, .rank = r, .fatal = true});
    }
    pass(20);
    EXPECT_INT(2, tt_policy_look(x.p).workers);
    end();
}

TT_TEST(policy, a_slot_that_fails_again_and_again_is_left_out_and_taken_back)
{
    tt_policy_opts o = fixed(3);
    double out_at;

    o.least = 1;
    begin(o);
    give_host(0, 3);
    crash_loop(2, 1); /* slot 0.1 */
    EXPECT(was_told(TT_CAUSE_OUT));
    EXPECT(last_told().host == 0 && last_told().slot == 1);
    out_at = x.now;
    x.log[0] = 0;
    pass(5);
    EXPECT_INT(2, tt_policy_look(x.p).workers);
    EXPECT(!strstr(x.log, "0.1"));
    while (!was_told(TT_CAUSE_BACK) && x.now < out_at + 40) pass(1);
    EXPECT(x.now - out_at > 27 && x.now - out_at < 32);
    pass(2);
    EXPECT_INT(3, tt_policy_look(x.p).workers);

    crash_loop(2, 1); /* again: twice as long */
    EXPECT(last_told().kind == TT_CAUSE_OUT);
    out_at = x.now;
    x.tolds = 0;
    while (!was_told(TT_CAUSE_BACK) && x.now < out_at + 100) pass(1);
    EXPECT(x.now - out_at > 56 && x.now - out_at < 62);
    end();
}

TT_TEST(policy, progress_in_between_forgives)
{
    begin(fixed(2));
    give_host(0, 2);
    for (int i = 0; i < 10; i++) {
        pass(2);
        give_dead(tt_policy_look(x.p).active, 0, 139);
    }
    EXPECT(!was_told(TT_CAUSE_OUT));
    end();
}

TT_TEST(policy, a_fixed_world_that_lost_a_slot_for_too_long_ends_at_once_with_the_cause)
{
    tt_policy_opts o = fixed(2);

    o.wait_s = 1; /* the penance is 2: it is waited for */
    begin(o);
    give_host(0, 2);
    crash_loop(3, 1);
    pass(0.1);
    EXPECT(strstr(x.log, "tell:out") && strstr(x.log, "exit4 "));
    EXPECT(x.end.kind == TT_CAUSE_DEAD && x.end.rank == 1 && x.end.code == 139);
    end();

    o.wait_s = 60; /* it may be back in time */
    begin(o);
    give_host(0, 2);
    crash_loop(3, 1);
    pass(0.2);
    EXPECT(strstr(x.log, "tell:out") && strstr(x.log, "tell:below") && !strstr(x.log, "exit"));
    EXPECT(tt_policy_look(x.p).waiting);
    pass(4);
    EXPECT(tt_policy_look(x.p).workers == 2 && !tt_policy_look(x.p).waiting);
    end();
}

TT_TEST(policy, a_standby_that_fails_does_not_cost_the_active_world_its_slot)
{
    begin(fixed(2));
    give_host(0, 2);
    pass(1);
    for (int i = 0; i < 6; i++) {
        int standby = tt_policy_look(x.p).standby;
        if (standby >= 0) give_dead(standby, 1, 1);
        pass(6);
    }
    EXPECT(!was_told(TT_CAUSE_OUT));
    EXPECT_INT(1, tt_policy_look(x.p).active);
    EXPECT_INT(0, tt_policy_look(x.p).restarts);
    end();
}

TT_TEST(policy, who_misses_a_peer_is_not_to_blame_itself)
{
    begin(fixed(1));
    give_host(0, 1);
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 200 && tt_policy_look(x.p).active < 0; k++) pass(0.05);
        give((tt_event){.kind = TT_EV_TROUBLE, .world = tt_policy_look(x.p).active, .code = 4});
        pass(0.1);
    }
    EXPECT(was_told(TT_CAUSE_TROUBLE) && !was_told(TT_CAUSE_OUT));
    end();
}
