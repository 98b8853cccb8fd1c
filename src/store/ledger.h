/* ledger: what became of a run, in records, and the judge of them.
 *
 * The supervisor keeps it, in a file that is only appended to: which worlds were active, from which
 * state each went on, how far it came. The same judge looks at each record as it is written and,
 * offline, at the file of any run, however it was disturbed:
 *
 * (1) Each step commits once, after the one before: no world goes on from a state older than what
 *     was known to be committed, nor under an older generation or line of history, except where all
 *     copies are lost, and then the ledger says so (LOST).
 * (2) Each sample of an epoch is in exactly one committed step: the witness of the epoch, a sum
 * over the samples that went into it, is that of each sample taken once.
 *
 * Pure: text in, text out. */
#ifndef TT_LEDGER_H
#define TT_LEDGER_H

#include "commit.h"

/* ---- Witness: which samples took part, in two numbers ---- */

typedef struct tt_witness { /* zeroed: of no samples. Part of the state: committed with each step */
    uint64_t sum;           /* of a mix of the bits of each sample's number, modulo 2^64 */
    uint64_t count;
} tt_witness;
void tt_witness_add(tt_witness *w, uint64_t from, uint64_t count); /* samples from, from + 1 ... */
/* That of samples 0 .. count - 1, each once. */
tt_witness tt_witness_whole(uint64_t count);

/* ---- Records ---- */

typedef enum tt_record_kind {
    TT_REC_GO,       /* generation, workers, why: a world became active                           */
    TT_REC_LOST,     /* generation, attempt, step: no complete copy was left of what was committed;
                      * it goes back to this step, as a new attempt                               */
    TT_REC_FOUND,    /* generation, attempt, step: the state from which that world goes on. made:
                      * the generation in which the state was committed. In the ledger before that
                      * world writes anything: see recover.h                                      */
    TT_REC_TOLD,     /* generation, step: the highest step that all its ranks have committed      */
    TT_REC_ROLLBACK, /* generation, attempt, step: goes on from there, as that attempt            */
    TT_REC_EPOCH,    /* generation, epoch, samples, witness: an epoch is over; it was to have
                      * `samples`. May be told again, with the same witness                       */
    TT_REC_END,      /* step, code: the run has ended                                             */
    TT_RECORDS,
} tt_record_kind;

typedef struct tt_record {
    tt_record_kind kind;
    uint32_t generation, attempt, made;
    int64_t step;
    int workers, code;
    int64_t epoch;
    uint64_t samples;
    tt_witness witness;
    char why[128];
} tt_record;

/* One line, a JSON object with "ledger": "go" and so on, ended by a newline. */
void tt_record_print(const tt_record *r, tt_str *out);
/* TT_EFORMAT says what is wrong. A line without "ledger" is of somebody else: *ours is false. */
tt_err tt_record_parse(const char *line, size_t size, tt_record *out, bool *ours);

/* ---- The judge ---- */

typedef struct tt_ledger { /* zero it to start */
    bool any, found, ended;
    int code;            /* ended: with this exit code                                 */
    uint32_t generation; /* of the world that had GO last ...                          */
    int workers, before; /* ... its workers, and those of the last one that found its state */
    tt_told told;        /* for tt_recover_choose                                      */
    bool committed;      /* `told` means something                                     */
    uint64_t steps_lost; /* that had to be done again, by LOST and ROLLBACK            */
    int64_t epoch;       /* the newest of which the witness is known, in this attempt  */
    tt_witness witness;
    bool epochs;
    tt_witness whole; /* of an epoch as it should be: made once, for it takes long */
    int bad;          /* records that violate */
    char what[512];   /* the first violation, a sentence; "" if there is none */
} tt_ledger;

/* Takes the next record. NULL if all is well; else what is violated, valid until the next call. The
 * record counts all the same, so that one mistake is told once. */
const char *tt_ledger_take(tt_ledger *l, const tt_record *r);
/* Has it this record of an epoch already, in this line of history? A world tells again what the one
 * before may have told. `again`: it says so; what it went on from may know of an epoch less than
 * has been told, and then it is an old one. */
bool tt_ledger_has(const tt_ledger *l, const tt_record *r, bool again);
/* Takes all of a file, from a zeroed judge or one that has read what was before. Other people's
 * lines are passed over; a torn last line never counted. TT_EFORMAT names the line that is damaged;
 * what is violated is in l->what. */
tt_err tt_ledger_read(tt_ledger *l, const char *text, size_t size);

#endif
