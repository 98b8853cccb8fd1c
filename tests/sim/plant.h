/* plant: the pure files once more, with mistakes in them that can be switched on.
 *
 * Included before src/cluster/happen.c, policy.c, roster.c and src/store/commit.c, recover.c,
 * ledger.c (see tests/cluster_sim_pure_test.c), and by the simulator, which calls the functions by
 * the names they get here. tt_planted chooses the mistake; with 0 they are what the product is. */
#ifndef SIM_PLANT_H
#define SIM_PLANT_H

#define TT_PLANT
#include "base/base.h"

#define tt_policy_defaults  sim_policy_defaults
#define tt_policy_open      sim_policy_open
#define tt_policy_step      sim_policy_step
#define tt_policy_members   sim_policy_members
#define tt_policy_look      sim_policy_look
#define tt_policy_close     sim_policy_close
#define mind_act            sim_mind_act
#define mind_tell           sim_mind_tell
#define mind_no_cause       sim_mind_no_cause
#define mind_cause_of       sim_mind_cause_of
#define mind_world          sim_mind_world
#define mind_active         sim_mind_active
#define mind_set_state      sim_mind_set_state
#define mind_kill           sim_mind_kill
#define mind_finish         sim_mind_finish
#define mind_take           sim_mind_take
#define mind_fail_rank      sim_mind_fail_rank
#define mind_fail_hung      sim_mind_fail_hung
#define mind_fail_start     sim_mind_fail_start
#define mind_drop_suspects  sim_mind_drop_suspects
#define mind_is_on          sim_mind_is_on
#define mind_saves          sim_mind_saves
#define tt_roster_host      sim_roster_host
#define tt_roster_slot      sim_roster_slot
#define tt_roster_slots     sim_roster_slots
#define tt_roster_usable    sim_roster_usable
#define tt_roster_count     sim_roster_count
#define tt_roster_strike    sim_roster_strike
#define tt_roster_catch     sim_roster_catch
#define tt_roster_bar       sim_roster_bar
#define tt_roster_heard     sim_roster_heard
#define tt_roster_set_aside sim_roster_set_aside
#define tt_roster_take_back sim_roster_take_back
#define tt_roster_back      sim_roster_back
#define tt_roster_use       sim_roster_use
#define tt_roster_choose    sim_roster_choose
#define tt_roster_free      sim_roster_free
#define tt_label_compare    sim_label_compare
#define tt_told_leads_to    sim_told_leads_to
#define tt_told_raise       sim_told_raise
#define tt_attempt_next     sim_attempt_next
#define tt_commit_current   sim_commit_current
#define tt_commit_read      sim_commit_read
#define tt_commit_begin     sim_commit_begin
#define tt_commit_marks     sim_commit_marks
#define tt_commit_describe  sim_commit_describe
#define tt_commit_flip      sim_commit_flip
#define tt_commit_undo      sim_commit_undo
#define tt_commit_spare     sim_commit_spare
#define tt_commit_amend     sim_commit_amend
#define tt_recover_choose   sim_recover_choose
#define tt_recover_label    sim_recover_label
#define tt_recover_share    sim_recover_share
#define tt_witness_add      sim_witness_add
#define tt_witness_whole    sim_witness_whole
#define tt_record_print     sim_record_print
#define tt_record_parse     sim_record_parse
#define tt_ledger_has       sim_ledger_has
#define tt_ledger_take      sim_ledger_take
#define tt_ledger_read      sim_ledger_read

typedef enum plant {
    PLANT_NONE,
    /* commit.c */
    PLANT_STEP_ALONE,     /* the freshest by step alone                          */
    PLANT_ATTEMPT_REUSED, /* the next attempt is one more than the last one seen */
    PLANT_BRANCH,         /* what was passed over counts, if it is newer         */
    PLANT_BEGIN_UNMARKED, /* begin does not say that the half is being written   */
    PLANT_FLIP_FIRST,     /* flip before the half is described                   */
    PLANT_UNDO_WRONG,     /* undo names the wrong half                           */
    PLANT_UNDO_KEPT,      /* undo leaves what it took back described             */
    PLANT_UNCOUNTED,      /* begin does not count                                */
    PLANT_COUNT_FIRST,    /* begin counts before the half is marked              */
    PLANT_NOTE_IN_PLACE,  /* a note is written over the one in use               */
    /* recover.c */
    PLANT_INCOMPLETE,   /* some parts are enough                            */
    PLANT_NO_VOTE,      /* hashes are not compared                          */
    PLANT_TOLD_IGNORED, /* an old copy is taken without a word              */
    PLANT_SWAP_PARTS,   /* parts move under one label                       */
    /* policy.c, roster.c */
    PLANT_NO_FENCE,          /* GO before the old world is gone           */
    PLANT_GO_UNREADY,        /* GO when rank 0 is ready                   */
    PLANT_NOT_PERSISTED,     /* GO without PERSIST                        */
    PLANT_GENERATION_REUSED, /* a new supervisor begins at 1              */
    PLANT_SYNC_HUNG,         /* a hang is not seen in phase SYNC          */
    PLANT_LATE,              /* our own pause is held against the workers */
    PLANT_NO_STRIKES,        /* a slot that fails is never left out       */
    PLANT_NEVER_BACK,        /* ... or for ever                           */
    PLANT_NO_BACKOFF,        /* restarts come as fast as they can         */
    PLANT_UNFIT,             /* an outdated standby is kept               */
    PLANT_EXIT_EARLY,        /* EXIT while worlds are there               */
    PLANT_LEFT_BEHIND,       /* a world yields that has the only state    */
    PLANT_LOST_KEPT,         /* worlds on a host that is lost go on       */
    PLANT_MUTE_HOST,         /* a host where nothing starts is kept       */
    PLANT_STOP_BETWEEN,      /* a stop between two worlds saves nothing   */
    /* the ranks of the simulator, in place of train/ */
    PLANT_COUNT_TWICE,    /* samples are counted before the commit, not with it */
    PLANT_BEGIN_EARLY,    /* the next half is begun before all have flipped     */
    PLANT_UNTOLD,         /* the ledger is not waited for                       */
    PLANT_MARK_EARLY,     /* copies count before they are there                 */
    PLANT_COPY_UNAWAITED, /* ... and are not waited for before the next sum  */
    PLANTS,
} plant;

extern int tt_planted;
#define PLANTED(bug) (tt_planted == (bug))

/* Called before each store to a head: there a process may be killed. */
extern void (*tt_plant_store)(void);
#define STORE(where, value)                                                                        \
    (tt_plant_store(), atomic_store_explicit(where, value, memory_order_release))

/* A planted mistake may break what is asserted: then it has been found. */
void tt_plant_found(const char *cond);
#undef TT_ASSERT
#define TT_ASSERT(cond) ((cond) ? (void)0 : tt_plant_found(#cond))

#endif
