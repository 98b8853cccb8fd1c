/* The supervisor's policy, the commit protocol and the recovery under every mix of faults: see
 * tests/sim/sim.h.
 *
 *   SIM_SEED=n   one seed alone, with its events (and SIM_PLANT=k with mistake k)
 *   SIM_S=60     seconds of seeds; 20 if not said
 *   SIM_FIRST=n  the first of them; 1 if not said */
#define _GNU_SOURCE
#include "test.h"

#include "sim/sim.h"

#include "sim/clock.c"
#include "sim/truth.c"
#include "sim/ranks.c"
#include "sim/boss.c"
#include "sim/faults.c"
#include "sim/run.c"
#include "sim/stores.c"

static double number_of(const char *name, double if_unset)
{
    const char *text = getenv(name);
    return text && *text ? atof(text) : if_unset;
}

TT_TEST(sim, whatever_fails_nothing_is_lost_and_nothing_is_done_twice)
{
    double begun = tt_clock_s(), seconds = number_of("SIM_S", 20);
    uint64_t alone = (uint64_t)number_of("SIM_SEED", 0), n = 0;
    uint64_t commits = 0, recoveries = 0, losses = 0, faults = 0;

    tt_planted = (int)number_of("SIM_PLANT", PLANT_NONE);
    if (alone) {
        show_seed(alone);
        if (S.bad) FAIL("seed %llu: %s", (unsigned long long)alone, S.what);
        return;
    }
    for (uint64_t seed = (uint64_t)number_of("SIM_FIRST", 1); tt_clock_s() - begun < seconds;
         seed++, n++) {
        if (!run_seed(seed)) {
            show_seed(seed);
            FAIL("seed %llu: %s", (unsigned long long)seed, S.what);
        }
        commits += S.commits;
        recoveries += S.recoveries;
        losses += S.losses;
        faults += S.faults;
    }
    printf(
        "     %llu seeds, %.0f a second: %llu steps committed, %llu faults, %llu recoveries, %llu "
        "from disk\n",
        (unsigned long long)n, (double)n / (tt_clock_s() - begun), (unsigned long long)commits,
        (unsigned long long)faults, (unsigned long long)recoveries, (unsigned long long)losses);
}

TT_TEST(sim, at_every_store_there_is_a_state_and_who_reads_is_told_when_it_goes)
{
    tt_planted = (int)number_of("SIM_PLANT", PLANT_NONE);
    if (!live_a_life()) FAIL("%s", S.what);
    printf("     %d stores\n", L.count - 1);
}

/* Each mistake must be found within so many seeds; 0: in the life of one slot. */
static const struct {
    plant bug;
    const char *name;
    uint64_t seeds;
} planted[] = {
    {PLANT_STEP_ALONE, "the freshest by step alone", 2000},
    {PLANT_ATTEMPT_REUSED, "an attempt's number is used again", 20000},
    {PLANT_BRANCH, "what was passed over is taken", 80000},
    {PLANT_BEGIN_UNMARKED, "begin does not mark the half", 40000},
    {PLANT_FLIP_FIRST, "flip before describe", 2000},
    {PLANT_UNDO_WRONG, "undo of the wrong half", 2000},
    {PLANT_UNDO_KEPT, "what was undone still counts", 0},
    {PLANT_UNCOUNTED, "begin does not count", 0},
    {PLANT_COUNT_FIRST, "begin counts before it marks the half", 0},
    {PLANT_NOTE_IN_PLACE, "a note is written over the one in use", 2000},
    {PLANT_INCOMPLETE, "an incomplete set of parts is taken", 2000},
    {PLANT_NO_VOTE, "a replica that differs is taken", 2000},
    {PLANT_TOLD_IGNORED, "an old copy is taken without a word", 20000},
    {PLANT_SWAP_PARTS, "parts are swapped under one label", 40000},
    {PLANT_NO_FENCE, "GO before the old world is gone", 2000},
    {PLANT_GO_UNREADY, "GO before all are ready", 2000},
    {PLANT_NOT_PERSISTED, "a generation is not persisted", 2000},
    {PLANT_GENERATION_REUSED, "a new supervisor begins at generation 1", 2000},
    {PLANT_SYNC_HUNG, "a hang is not seen in phase sync", 5000},
    {PLANT_LATE, "a late supervisor blames the workers", 2000},
    {PLANT_NO_STRIKES, "a slot that fails is never left out", 20000},
    {PLANT_NEVER_BACK, "a slot that is left out never returns", 2000},
    {PLANT_NO_BACKOFF, "restarts without delay", 2000},
    {PLANT_UNFIT, "an outdated standby is kept", 2000},
    {PLANT_EXIT_EARLY, "EXIT while worlds are there", 2000},
    {PLANT_LEFT_BEHIND, "a world yields to one on other hosts", 2000},
    {PLANT_LOST_KEPT, "worlds on a host that is lost go on", 2000},
    {PLANT_MUTE_HOST, "a host where nothing starts is kept", 5000},
    {PLANT_STOP_BETWEEN, "a stop between two worlds saves nothing", 20000},
    {PLANT_COUNT_TWICE, "samples count twice on redo", 2000},
    {PLANT_BEGIN_EARLY, "the next half is begun before all have flipped", 2000},
    {PLANT_UNTOLD, "a world goes on before the ledger says from where", 2000},
    {PLANT_MARK_EARLY, "copies count before they are there", 20000},
    {PLANT_COPY_UNAWAITED, "copies are not waited for", 20000},
};

TT_TEST(sim, planted_mistakes_are_found)
{
    int missed = 0;

    for (int i = 0; i < (int)(sizeof planted / sizeof *planted); i++) {
        uint64_t seed = 1;
        tt_planted = planted[i].bug;
        if (!planted[i].seeds && !live_a_life()) seed = 0;
        while (seed && seed <= planted[i].seeds && run_seed(seed)) seed++;
        tt_planted = PLANT_NONE;
        missed += seed > planted[i].seeds;
        if (seed > planted[i].seeds)
            fprintf(stderr, "not found in %llu seeds: %s\n", (unsigned long long)planted[i].seeds,
                    planted[i].name);
        else
            printf("     %-50s seed %5llu: %s\n", planted[i].name, (unsigned long long)seed,
                   S.what);
    }
    EXPECT_INT(0, missed);
    EXPECT_INT(PLANTS - 1, (int)(sizeof planted / sizeof *planted));
}
