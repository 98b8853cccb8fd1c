/* auc: the area under the ROC curve, exact: of all pairs of a row of class 1 and a row of class 0,
 * the share in which the first has the higher score; a tie counts half.
 *
 * Scores become integers of the same order. Pairs are counted in whole numbers, with one division
 * at the end, so the bits do not depend on the order in which the rows came. */
#include <math.h>
#include <string.h>

#include "trainer.h"

enum { DIGIT = 256, DIGITS = 4 };

uint32_t auc_key(float score)
{
    uint32_t bits;

    if (isnan(score)) return AUC_NAN;
    if (score == 0) score = 0; /* the two zeros are equal */
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

/* By digits, the lowest first: linear, and it allocates nothing, as qsort would. */
static void sort(uint32_t *keys, int64_t n, uint32_t *spare)
{
    int64_t at[DIGITS][DIGIT] = {{0}};

    for (int64_t i = 0; i < n; i++)
        for (int d = 0; d < DIGITS; d++) at[d][keys[i] >> 8 * d & (DIGIT - 1)]++;
    for (int d = 0; d < DIGITS; d++) {
        int64_t before = 0;
        for (int k = 0; k < DIGIT; k++) {
            int64_t count = at[d][k];
            at[d][k] = before;
            before += count;
        }
        for (int64_t i = 0; i < n; i++) spare[at[d][keys[i] >> 8 * d & (DIGIT - 1)]++] = keys[i];
        uint32_t *sorted = spare; /* their number is even: the last lands in `keys` */
        spare = keys;
        keys = sorted;
    }
}

double auc_of(uint32_t *no, int64_t no_count, uint32_t *yes, int64_t yes_count, uint32_t *spare)
{
    int64_t less = 0, upto = 0; /* of `no`, those below this one of `yes`, and with its equals */
    uint64_t twice = 0;

    if (!no_count || !yes_count) return NAN;
    sort(no, no_count, spare);
    sort(yes, yes_count, spare);
    if (no[no_count - 1] == AUC_NAN || yes[yes_count - 1] == AUC_NAN) return NAN;
    for (int64_t i = 0; i < yes_count; i++) {
        while (less < no_count && no[less] < yes[i]) less++;
        if (upto < less) upto = less;
        while (upto < no_count && no[upto] == yes[i]) upto++;
        twice += (uint64_t)(less + upto);
    }
    return (double)twice / (2.0 * (double)no_count * (double)yes_count);
}
