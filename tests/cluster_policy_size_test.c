/* The supervisor's policy, one promise at a time: resizing and ending. */
#define _GNU_SOURCE
#include "policy_help.h"

/* ---- resizing ---- */

TT_TEST(policy, a_host_that_joins_is_taken_in_at_a_step_boundary_by_a_world_that_is_ready)
{
    tt_policy_opts o = fixed(4);

    o.least = 1;
    begin(o);
    give_host(0, 2);
    pass(2);
    expect_log("start1:0.0,0.1 persist1 go1 start2:0.0,0.1 ");
    give_host(1, 4);
    expect_log("kill2 start3:0.0,0.1,1.0,1.1 "); /* 4 at most: nobody else is waited for */
    pass(0.5);
    expect_log("tell:resize yield1 persist2 go3 start4:0.0,0.1,1.0,1.1 ");
    pass(5);
    expect_log("");
    end();
}

TT_TEST(policy, a_storm_of_joins_makes_few_worlds)
{
    tt_policy_opts o = fixed(100);

    o.least = 1;
    begin(o);
    give_host(0, 1);
    pass(2);
    x.starts = 0;
    for (int i = 1; i <= 50; i++) {
        give_host(i, 1);
        pass(0.05);
    }
    pass(3);
    EXPECT_INT(51, tt_policy_look(x.p).workers);
    EXPECT(x.starts <= 8);
    end();
}

TT_TEST(policy, fifty_joins_in_a_second_make_one_resize)
{
    tt_policy_opts o = fixed(100);
    int go;

    o.least = 1;
    begin(o);
    give_host(0, 1);
    pass(2);
    x.starts = x.tolds = 0;
    go = tt_policy_look(x.p).generation;
    for (int i = 1; i <= 50; i++) {
        give_host(i, 1);
        if (i % 5 == 0) pass(0.1);
    }
    pass(3);
    EXPECT_INT(51, tt_policy_look(x.p).workers);
    EXPECT_INT(go + 1, tt_policy_look(x.p).generation);
    EXPECT_INT(1, x.tolds);
    EXPECT_INT(TT_CAUSE_RESIZE, x.told[0].kind);
    end();
}

TT_TEST(policy, a_world_that_does_not_yield_is_killed)
{
    tt_policy_opts o = fixed(2);

    o.least = 1;
    o.standby = false;
    begin(o);
    give_host(0, 1);
    pass(2);
    x.log[0] = 0;
    x.deaf = true;
    give_host(1, 1);
    pass(4);
    expect_log("start2:0.0,1.0 tell:resize yield1 ");
    pass(2);
    expect_log("kill1 persist2 go2 ");
    end();
}

TT_TEST(policy, a_host_that_leaves_is_replaced_before_its_world_ends)
{
    begin(fixed(2));
    give_host(0, 1);
    give_host(1, 1);
    give_host(2, 1);
    pass(2);
    expect_log("start1:0.0,1.0 persist1 go1 start2:0.0,1.0 ");
    give_host(1, 0);
    expect_log("kill2 start3:0.0,2.0 ");
    pass(0.5);
    expect_log("tell:leave yield1 persist2 go3 start4:0.0,2.0 ");
    EXPECT(x.told[0].host == 1 && x.told[0].rank == 1 && x.told[0].generation == 1);
    give_host(1, 1); /* it comes back: nothing to gain */
    pass(5);
    expect_log("");
    end();
}

TT_TEST(policy, a_host_that_takes_fewer_is_not_called_gone)
{
    tt_policy_opts o = fixed(3);

    o.least = 1;
    begin(o);
    give_host(0, 3);
    pass(2);
    x.log[0] = 0;
    give_host(0, 2);
    pass(0.5);
    expect_log("kill2 start3:0.0,0.1 tell:resize yield1 persist2 go3 start4:0.0,0.1 ");
    end();
}

TT_TEST(policy, below_least_it_waits_and_then_ends)
{
    tt_policy_opts o = fixed(2);

    o.wait_s = 20;
    begin(o);
    give_host(0, 1);
    give_host(1, 1);
    pass(2);
    x.log[0] = 0;
    give_host(1, 0);
    pass(1);
    expect_log("tell:leave kill2 move1 tell:below ");
    EXPECT(tt_policy_look(x.p).waiting && tt_policy_look(x.p).active == -1);
    give_host(1, 1);
    pass(2);
    EXPECT_INT(2, tt_policy_look(x.p).workers);
    give_host(1, 0);
    pass(19);
    EXPECT(!strstr(x.log, "exit"));
    pass(2);
    EXPECT(strstr(x.log, "exit4 ") && x.end.kind == TT_CAUSE_BELOW);
    end();
}

TT_TEST(policy, workers_that_are_started_otherwise_take_over_at_a_step_boundary)
{
    begin(fixed(2));
    give_host(0, 2);
    pass(2);
    expect_log("start1:0.0,0.1 persist1 go1 start2:0.0,0.1 ");
    give((tt_event){.kind = TT_EV_RENEW});
    expect_log("kill2 start3:0.0,0.1 ");
    pass(0.5);
    expect_log("tell:renew yield1 persist2 go3 start4:0.0,0.1 ");
    EXPECT_INT(1, last_told().generation);
    pass(5);
    expect_log("");
    end();
}

TT_TEST(policy, a_renewal_is_not_forgotten_if_a_worker_dies_meanwhile)
{
    begin(fixed(2));
    give_host(0, 2);
    pass(2);
    x.log[0] = 0;
    give((tt_event){.kind = TT_EV_RENEW});
    give((tt_event){.kind = TT_EV_RENEW}); /* twice is once, if it comes before the first is done */
    give_dead(1, 0, 137);
    pass(1);
    EXPECT(was_told(TT_CAUSE_DEAD) && !was_told(TT_CAUSE_RENEW));
    EXPECT_INT(2, tt_policy_look(x.p).generation);
    pass(5);
    EXPECT_INT(2, tt_policy_look(x.p).generation); /* the one that went on is new already */
    end();
}

TT_TEST(policy, a_host_that_is_lost_ends_its_worlds_at_once)
{
    tt_policy_opts o = fixed(3);

    o.least = 1;
    begin(o);
    give_host(0, 1);
    give_host(1, 2);
    pass(2);
    expect_log("start1:0.0,1.0,1.1 persist1 go1 start2:0.0,1.0,1.1 ");
    x.stays = true; /* its processes there end when their lease does */
    give((tt_event){.kind = TT_EV_LOST, .host = 1});
    expect_log("tell:host tell:host kill1 kill2 start3:0.0 "); /* it is made meanwhile ... */
    EXPECT(x.told[0].host == 1 && x.told[0].rank == 1 && x.told[0].generation == 1);
    give_gone(2, 137);
    pass(0.5);
    expect_log("");
    give_gone(1, 137);
    pass(0.05);
    expect_log("persist2 go3 start4:0.0 "); /* ... but has no GO before */
    x.stays = false;
    give_host(1, 2); /* the host is back: nothing is held against its slots */
    pass(1);
    EXPECT_INT(3, tt_policy_look(x.p).workers);
    end();
}

TT_TEST(policy, a_world_saves_before_it_makes_room_for_one_on_other_hosts)
{
    tt_policy_opts o = fixed(2);

    o.least = 1;
    begin(o);
    give_host(0, 1);
    pass(2);
    expect_log("start1:0.0 persist1 go1 start2:0.0 ");
    give_host(1, 1);
    give_host(0, 0);
    pass(0.5);
    expect_log("kill2 start3:0.0,1.0 kill3 start4:1.0 tell:leave move1 persist2 go4 start5:1.0 ");
    end();
}

TT_TEST(policy, a_host_that_is_lost_while_it_leaves_is_not_waited_for)
{
    tt_policy_opts o = fixed(2);

    o.least = 1;
    o.standby = false;
    begin(o);
    give_host(0, 1);
    give_host(1, 1);
    pass(2);
    x.log[0] = 0;
    x.deaf = true;
    give_host(1, 0);
    pass(0.5);
    expect_log("start2:0.0 tell:leave yield1 ");
    give((tt_event){.kind = TT_EV_LOST, .host = 1});
    pass(0.1);
    expect_log("kill1 persist2 go2 ");
    end();
}

TT_TEST(policy, another_number_of_workers_can_be_asked_for)
{
    begin(fixed(4));
    give_host(0, 4);
    pass(2);
    give((tt_event){.kind = TT_EV_WANT, .least = 1, .most = 2});
    pass(1);
    EXPECT_INT(2, tt_policy_look(x.p).workers);
    give((tt_event){.kind = TT_EV_WANT, .least = 6, .most = 8});
    pass(1);
    EXPECT(tt_policy_look(x.p).waiting && tt_policy_look(x.p).active == -1);
    give_host(1, 3);
    pass(1);
    EXPECT_INT(7, tt_policy_look(x.p).workers);
    end();
}

TT_TEST(policy, spares_give_way_to_workers)
{
    tt_policy_opts o = fixed(3);

    o.spares = 2;
    o.standby = false;
    begin(o);
    give_host(0, 5);
    pass(1);
    expect_log("start1:0.0,0.1,0.2,0.3s,0.4s persist1 go1 ");
    give_host(0, 3);
    pass(1);
    expect_log("start2:0.0,0.1,0.2 tell:resize yield1 persist2 go2 ");
    end();
}

TT_TEST(policy, one_that_is_fit_gets_go_even_if_another_is_wanted)
{
    tt_policy_opts o = fixed(8);

    o.least = 1;
    begin(o);
    give_host(0, 2);
    pass(2);
    x.log[0] = 0;
    give_host(1, 1); /* wanted are three, but the storm may go on */
    give_dead(1, 0, 137);
    pass(0.05);
    expect_log("tell:dead kill1 persist2 go2 ");
    pass(1);
    EXPECT_INT(3, tt_policy_look(x.p).workers);
    end();
}

/* ---- ending ---- */

TT_TEST(policy, a_result_ends_the_run_when_all_is_gone)
{
    begin(fixed(2));
    give_host(0, 2);
    pass(2);
    x.log[0] = 0;
    world_of(1)->phase = TT_PHASE_END;
    pass(0.1);
    give((tt_event){.kind = TT_EV_RESULT, .world = 1, .code = 0});
    give((tt_event){.kind = TT_EV_RESULT, .world = 1, .code = 0});
    expect_log("kill2 ");
    give_dead(1, 1, 0);
    give_dead(1, 0, 0);
    pass(0.5);
    expect_log("");
    give_gone(1, 0);
    expect_log("exit0 ");
    EXPECT(x.end.kind == TT_CAUSE_NONE);
    give_host(1, 5);
    give((tt_event){.kind = TT_EV_STOP, .code = 75});
    pass(1);
    expect_log("");
    end();
}

TT_TEST(policy, after_a_result_the_rest_is_killed_in_time)
{
    begin(fixed(1));
    give_host(0, 1);
    pass(2);
    x.log[0] = 0;
    give((tt_event){.kind = TT_EV_RESULT, .world = 1, .code = 3});
    pass(4.8);
    expect_log("kill2 ");
    pass(1);
    expect_log("kill1 exit3 ");
    end();
}

TT_TEST(policy, what_a_world_says_after_it_was_declared_dead_does_not_count)
{
    begin(fixed(2));
    give_host(0, 2);
    pass(2);
    x.stays = true;
    give_dead(1, 0, 137);
    x.log[0] = 0;
    give((tt_event){.kind = TT_EV_RESULT, .world = 1, .code = 0});
    give((tt_event){.kind = TT_EV_TROUBLE, .world = 1, .rank = 1, .code = 5, .fatal = true});
    expect_log("");
    give_gone(1, 0);
    expect_log("persist2 go2 start3:0.0,0.1 ");
    for (int rank = -1; rank < 200; rank += 67) {
        give((tt_event){.kind = TT_EV_BEAT, .world = 1, .rank = rank, .phase = TT_PHASE_STEP});
        give((tt_event){.kind = TT_EV_DEAD, .world = 1, .rank = rank, .code = 1});
        give((tt_event){.kind = TT_EV_DEAD, .world = 2, .rank = rank ? rank : -7, .code = 1});
        give(
            (tt_event){.kind = TT_EV_TROUBLE, .world = 99, .rank = rank, .code = 5, .fatal = true});
    }
    give((tt_event){.kind = TT_EV_GONE, .world = 1});
    give((tt_event){.kind = TT_EV_RESULT, .world = 1});
    expect_log("");
    end();
}

TT_TEST(policy, a_fatal_trouble_ends_the_run_with_its_code)
{
    begin(fixed(2));
    give_host(0, 2);
    pass(2);
    x.log[0] = 0;
    give((tt_event){.kind = TT_EV_TROUBLE, .world = 1, .rank = 1, .code = 5, .fatal = true});
    give((tt_event){.kind = TT_EV_TROUBLE, .world = 1, .rank = 0, .code = 5, .fatal = true});
    pass(1);
    expect_log("tell:trouble kill2 ");
    give_gone(1, 5);
    expect_log("exit5 ");
    EXPECT(x.end.kind == TT_CAUSE_TROUBLE && x.end.rank == 1);
    end();
}

TT_TEST(policy, what_is_fatal_for_a_standby_is_not_for_the_run)
{
    begin(fixed(1));
    give_host(0, 1);
    pass(2);
    give((tt_event){.kind = TT_EV_TROUBLE, .world = 2, .code = 7, .fatal = true});
    pass(2);
    EXPECT(tt_policy_look(x.p).active == 1 && !tt_policy_look(x.p).ending);
    end();
}

/* A world of one trains, and is asked to stop; what it would do is left to the test. */
static void stop_who_does_not_hear(void)
{
    begin(fixed(1));
    x.deaf = true;
    give_host(0, 1);
    pass(2);
    x.log[0] = 0;
    give((tt_event){.kind = TT_EV_STOP, .code = 75});
}

TT_TEST(policy, stop_saves_and_ends)
{
    begin(fixed(1));
    give_host(0, 1);
    pass(2);
    x.log[0] = 0;
    give((tt_event){.kind = TT_EV_STOP, .code = 75});
    give((tt_event){.kind = TT_EV_STOP, .code = 76});
    pass(0.2);
    expect_log("tell:stop save1 kill2 exit75 ");
    EXPECT(x.end.kind == TT_CAUSE_NONE); /* it has ended as it should */
    end();

    stop_who_does_not_hear();
    pass(4.8);
    expect_log("tell:stop save1 ");
    pass(1);
    expect_log("kill1 kill2 exit75 ");
    EXPECT(x.end.kind == TT_CAUSE_STOP);
    end();
}

TT_TEST(policy, a_stop_between_two_worlds_is_saved_by_the_next)
{
    begin(fixed(2)); /* one has failed and is not gone yet */
    x.stays = true;
    give_host(0, 2);
    pass(2);
    x.log[0] = 0;
    give_dead(1, 0, 137);
    give((tt_event){.kind = TT_EV_STOP, .code = 130});
    expect_log("tell:dead kill1 tell:stop ");
    give_gone(1, 137);
    expect_log("persist2 go2 save2 ");
    pass(0.1);
    expect_log("exit75 ");
    end();

    begin(fixed(2)); /* ... and none stands by */
    give_host(0, 2);
    pass(2);
    x.log[0] = 0;
    give_dead(2, 0, 137);
    give_dead(1, 0, 137);
    give((tt_event){.kind = TT_EV_STOP, .code = 75});
    pass(1);
    expect_log("tell:dead kill2 start3:0.0,0.1 tell:dead kill1 tell:stop persist2 go3 save3 "
               "exit75 ");
    end();

    begin(fixed(1)); /* one makes room for another */
    give_host(0, 2);
    pass(2);
    give((tt_event){.kind = TT_EV_WANT, .least = 2, .most = 2});
    pass(0.15);
    x.deaf = true;
    while (!strstr(x.log, "yield")) pass(0.05);
    x.log[0] = 0;
    give((tt_event){.kind = TT_EV_STOP, .code = 75});
    x.deaf = false;
    give_gone(1, 0); /* it had left before it heard */
    pass(0.3);
    expect_log("tell:stop save1 persist2 go3 save3 exit75 ");
    end();
}

TT_TEST(policy, who_dies_while_it_saves_is_replaced_but_not_for_ever)
{
    stop_who_does_not_hear();
    give_dead(1, 0, 137);
    pass(0.1);
    expect_log("tell:stop save1 kill1 persist2 go2 save2 ");
    pass(5.2);
    expect_log("kill2 exit75 ");
    EXPECT(x.end.kind == TT_CAUSE_STOP);
    end();

    begin(fixed(1)); /* nobody can: there is no room any more */
    give_host(0, 1);
    pass(2);
    give((tt_event){.kind = TT_EV_LOST, .host = 0});
    x.log[0] = 0;
    give((tt_event){.kind = TT_EV_STOP, .code = 75});
    pass(0.2);
    EXPECT(strstr(x.log, "exit75"));
    end();
}

TT_TEST(policy, stop_ends_when_nothing_is_active)
{
    begin(fixed(2));
    give_host(0, 1);
    give((tt_event){.kind = TT_EV_STOP, .code = 75});
    expect_log("tell:stop exit75 ");
    end();

    begin(fixed(1));
    x.stays = true;
    give_host(0, 1);
    give((tt_event){.kind = TT_EV_STOP, .code = 75});
    expect_log("start1:0.0 tell:stop kill1 ");
    give_gone(1, 137);
    expect_log("exit75 ");
    end();
}

TT_TEST(policy, quit_does_not_wait)
{
    stop_who_does_not_hear();
    give((tt_event){.kind = TT_EV_QUIT, .code = 130});
    pass(0.2);
    expect_log("tell:stop save1 kill1 kill2 exit75 ");
    end();
}

TT_TEST(policy, a_result_wins_over_a_stop)
{
    stop_who_does_not_hear();
    give((tt_event){.kind = TT_EV_RESULT, .world = 1, .code = 0});
    give_gone(1, 0);
    pass(0.1);
    expect_log("tell:stop save1 kill2 exit0 ");
    end();
}

/* ---- hosts on which nothing can be started ---- */

/* The launcher fails as long as one of these takes part, before anybody says a word. */
static void launch_for(double seconds)
{
    for (double until = x.now + seconds; x.now < until - 1e-9;) {
        pass(0.05);
        for (int i = 0; i < x.fakes; i++)
            if (x.fake[i].broken && x.fake[i].alive && x.now > x.fake[i].started + 0.1)
                give_gone(x.fake[i].id, 1);
    }
}

static tt_policy_opts elastic(int least, int most)
{
    tt_policy_opts o = fixed(most);

    o.least = least;
    o.max_restarts = 10;
    return o;
}

TT_TEST(policy, a_host_on_which_nothing_can_be_started_is_left_out)
{
    for (int broken = 0; broken < 3; broken++) {
        begin(elastic(1, 3));
        x.broken = 1u << broken;
        for (int h = 0; h < 3; h++) give_host(h, 1);
        launch_for(8);
        EXPECT(tt_policy_look(x.p).active > 0);
        EXPECT_INT(2, tt_policy_look(x.p).slots);
        EXPECT_INT(2,
                   tt_policy_look(x.p).workers); /* the others, however many were tried without */
        EXPECT(was_told(TT_CAUSE_OUT) && !tt_policy_look(x.p).ending);
        for (int i = 0; i < x.tolds; i++)
            if (x.told[i].kind == TT_CAUSE_OUT) EXPECT(x.told[i].host == broken);
        end();
    }
}

TT_TEST(policy, a_host_of_which_nobody_is_heard_while_others_are_is_left_out_at_once)
{
    begin(elastic(1, 2));
    give_host(0, 1);
    give_host(1, 1);
    for (int i = 0; i < 100 && !x.starts; i++) pass(0.05);
    world_of(1)->mute[1] = true; /* its launcher waits for it */
    pass(59);
    EXPECT(!was_told(TT_CAUSE_OUT));
    pass(5);
    EXPECT(was_told(TT_CAUSE_OUT));
    EXPECT_INT(1, tt_policy_look(x.p).workers);
    end();
}

TT_TEST(policy, two_hosts_on_which_nothing_can_be_started_are_left_out)
{
    tt_policy_opts o = elastic(1, 4);

    o.penance_s = 1000;
    begin(o);
    x.broken = 1u << 1 | 1u << 3;
    for (int h = 0; h < 4; h++) give_host(h, 1);
    launch_for(60);
    EXPECT_INT(2, tt_policy_look(x.p).slots);
    EXPECT_INT(2, tt_policy_look(x.p).workers);
    end();
}

TT_TEST(policy, a_host_that_is_lost_meanwhile_was_at_fault)
{
    begin(elastic(1, 3));
    x.broken = 1u << 1;
    for (int h = 0; h < 3; h++) give_host(h, 1);
    while (!strstr(x.log, "start4:0.0,1.0 ")) launch_for(0.05);
    give((tt_event){.kind = TT_EV_LOST, .host = 1});
    launch_for(5);
    EXPECT(!was_told(TT_CAUSE_OUT));
    EXPECT_INT(2, tt_policy_look(x.p).workers);
    end();
}

TT_TEST(policy, a_host_that_joins_and_cannot_be_started_on_disturbs_nobody)
{
    begin(elastic(1, 3));
    give_host(0, 2);
    pass(2);
    x.broken = 1u << 1;
    give_host(1, 1);
    launch_for(8);
    EXPECT_INT(1, tt_policy_look(x.p).generation);
    EXPECT_INT(2, tt_policy_look(x.p).slots);
    EXPECT(was_told(TT_CAUSE_OUT));
    end();
}

TT_TEST(policy, who_is_needed_is_not_done_without)
{
    begin(elastic(2, 2)); /* both are needed: it ends, and says why */
    x.broken = 1u << 1;
    give_host(0, 1);
    give_host(1, 1);
    launch_for(120);
    EXPECT(!was_told(TT_CAUSE_OUT) && strstr(x.log, "exit4"));
    EXPECT(x.end.kind == TT_CAUSE_START);
    end();
}

/* ---- a start that hangs ---- */

/* Until world `id` is started; these of its ranks never become ready. */
static void pass_to_start(int id, int from, int to)
{
    for (int i = 0; i < 1000 && x.starts < id; i++) pass(0.05);
    for (int r = from; r < to; r++) world_of(id)->not_ready[r] = true;
}

/* A host dies while a world starts there, and the launcher does not notice: the ranks that came
 * wait for the others. How long a start takes is known by then; each that fails gives the next one
 * twice as long, as a machine may have become slow. */
TT_TEST(policy, a_start_that_hangs_is_given_up_when_others_took_less)
{
    tt_policy_opts o = fixed(4);

    o.strikes = 9;
    begin(o);
    give_host(0, 2);
    give_host(1, 2);
    pass(2);
    expect_log("start1:0.0,0.1,1.0,1.1 persist1 go1 start2:0.0,0.1,1.0,1.1 ");
    give_dead(2, 2, 9);
    pass_to_start(3, 2, 4);
    pass(4);
    EXPECT(!was_told(TT_CAUSE_START));
    pass_to_start(4, 2, 4);
    EXPECT(was_told(TT_CAUSE_START) && x.now < 9);
    pass(9);
    EXPECT_INT(4, x.starts);
    pass_to_start(5, 0, 0);
    give_dead(1, 2, 9);
    pass(1);
    EXPECT_INT(2, world_of(5)->generation);
    end();
}

/* Of the first one nothing is known. */
TT_TEST(policy, the_first_start_has_all_the_time)
{
    begin(fixed(2));
    give_host(0, 2);
    pass_to_start(1, 1, 2);
    pass(50);
    EXPECT(!was_told(TT_CAUSE_START));
    pass(12);
    EXPECT(was_told(TT_CAUSE_START));
    end();
}

/* ---- the form ---- */

TT_TEST(policy, more_causes_than_there_is_room_for_come_later_and_before_exit)
{
    tt_policy_opts o = fixed(101);
    int outs = 0;

    o.strikes = 1;
    o.start_s = 1;
    o.wait_s = 1;
    o.standby = false;
    begin(o);
    give_host(0, 101);
    for (int r = 1; r < 101; r++) world_of(1)->mute[r] = true;
    pass(3);
    for (int i = 0; i < x.tolds; i++) outs += x.told[i].kind == TT_CAUSE_OUT;
    EXPECT_INT(100, outs);
    EXPECT(strlen(x.log) > 6 && !strcmp(x.log + strlen(x.log) - 6, "exit4 "));
    end();
}
