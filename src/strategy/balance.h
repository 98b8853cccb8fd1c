/* balance: how many units each rank is to run, by how fast it has shown itself to be.
 *
 * Pure: with every step all ranks hear how long a unit took on each of them, and from the same
 * numbers come to the same deal, without a word more. A rank is its place: its number in the order
 * of seats. A *table* is a run of places among which a run of units is dealt: all of them, or those
 * of a host that has rows of its own.
 *
 * What is expected of a deal: a rank of T threads runs n units in ceil(n / T) times what one of its
 * threads takes for a unit, and the step lasts as long as the slowest rank. */
#ifndef TT_STRATEGY_BALANCE_H
#define TT_STRATEGY_BALANCE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct pace { /* of a rank, as all have heard */
    int threads, units;
    double unit_s; /* for a unit, of one thread, smoothed; 0: not known */
    int known;     /* by how many steps, as far as that counts         */
    int off;       /* steps in a row that were far above it, or below: < 0 */
    int idle;      /* steps in a row in which it had none               */
    bool tried;    /* it has one to show how fast it is now             */
    int other;     /* steps in a row that speak against `slow`          */
    bool slow;     /* far behind the others, and told of                */
} pace;

typedef struct table {
    int first, end; /* places */
    int units;
    int since;  /* steps since it was dealt last */
    int rest;   /* steps from deal to deal, at least */
    int better; /* steps in a row in which another deal would have been faster */
} table;

typedef struct balance {
    int ranks, table_count;
    pace *ranks_at;
    table *tables;
    int *deal; /* room for one */
    double *sorted;
    int heard; /* steps */
} balance;

/* Who was or is no longer far behind the others. */
typedef struct balance_news {
    int place;
    bool slow;     /* else it is back */
    double factor; /* a unit takes it so many times what it takes most others */
} balance_news;

/* The threads of each place. Then tables, places from left to right, as they are dealt at first:
 * `units[i]` those of its i-th place. Tables are at most as many as ranks. */
void balance_open(balance *b, int ranks, const int *threads);
void balance_add(balance *b, int first, int end, const int *units);
/* With every step: what a unit took on each place, in seconds; 0: it had none. True: there is a new
 * deal, in ranks_at[].units. `news` has room for all ranks. */
bool balance_hear(balance *b, const double *unit_s, balance_news *news, int *news_count);
/* Deals by chance instead, the same for the same number: exact sums must not notice. */
void balance_shuffle(balance *b, uint64_t number);
void balance_close(balance *b); /* accepts a zeroed one */

#endif
