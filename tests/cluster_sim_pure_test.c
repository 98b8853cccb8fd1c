/* What tests/cluster_sim_test.c simulates: the product's files, compiled once more so that mistakes
 * can be planted in them. There are no tests here. */
#include "sim/plant.h"

int tt_planted;
void (*tt_plant_store)(void);

#include "../src/cluster/happen.c"
#include "../src/cluster/policy.c"
#include "../src/cluster/roster.c"
#include "../src/store/commit.c"
#include "../src/store/recover.c"
#include "../src/store/ledger.c"
