/* optim: update rules over spans of the flat parameter array.
 *
 * It knows no layers and no ranks. Parameters, gradients and optimiser state are flat vectors; work
 * is cut in *pieces* of at most 64 Ki elements, none of which crosses a tensor. Whoever owns a
 * piece runs it; numbers that need all pieces (gradient norm, LAMB's ratios) are added from
 * per-piece results in piece order, so it does not matter who ran what: sharding or threading the
 * optimiser changes no bit.
 *
 * The order of a step, for unnormalised gradient sums:
 *   g = sum / weight; g += l2 * w + l1 * sign(w); clip by value; clip by norm; update rule;
 * decoupled decay. Updates go from the old vectors to the new ones, which may be the same memory.
 */
#ifndef TT_OPTIM_H
#define TT_OPTIM_H

#include "base/base.h"
#include "tensor/tensor.h"

enum { TT_PIECE = 65536, TT_OPTIM_SLOTS = 2 };

typedef struct tt_piece {
    int64_t at;
    int n;
    int param;
} tt_piece;

typedef struct tt_optim tt_optim;

/* Biases and norm parameters are neither decayed nor regularised, nor scaled by LAMB's ratio,
 * unless the optimiser has decay_all. A group may change a tensor's lr, l2, l1 and weight_decay,
 * and freeze it; it cannot thaw what the model froze. Frozen tensors and their state go from old to
 * new unchanged.
 *
 * Reads `train.optimizer` (e.g. {adam: {lr: 1e-3, betas: [0.9, 0.999]}}), `train.schedule`,
 * `train.clip` and `train.groups` from the given train map (other keys are not touched); see
 * docs/job.md for keys. total_steps (for linear and cosine; 0 if unknown, then those schedules need
 * `steps:`) and steps_per_epoch (for schedules given in epochs). */
tt_err tt_optim_open(tt_node *optimizer, tt_node *schedule, tt_node *clip, tt_node *groups,
                     const tt_param *params, int param_count, int64_t total_steps,
                     int64_t steps_per_epoch, tt_optim **out);

const char *tt_optim_name(const tt_optim *o); /* "adam" */
int tt_optim_slots(const tt_optim *o);        /* state vectors of the parameters' size: 0, 1 or 2 */
const char *tt_optim_slot_name(const tt_optim *o,
                               int slot);            /* "momentum", "exp_avg", for checkpoints */
double tt_optim_lr(const tt_optim *o, int64_t step); /* of step 0, 1, 2, ...: pure */
/* What the state vectors begin with: who makes them puts it there. Of most rules it is 0. */
double tt_optim_initial(const tt_optim *o);

int tt_optim_piece_count(const tt_optim *o);
tt_piece tt_optim_piece(const tt_optim *o, int i);

/* One step. Per pass, each piece is run once, by anybody, in any order; then one thread joins.
 *
 *   tt_optim_begin(o, step, weight, samples);
 *   for (pass = 0; pass < tt_optim_passes(o); pass++) {
 *       for each piece i: tt_optim_run(o, pass, i, &v);      // threads may share these out
 *       tt_optim_join(o, pass);                              // one thread, after all
 *   }
 *
 * Without clipping by norm, LAMB and tt_optim_look_first there is exactly one pass, which leaves
 * the gradient as it is; with more of them, it is theirs to change. Weight 0 (no label in the
 * batch) leaves the sums as they are, samples 0 the statistics. Step 0 is the first: state starts
 * as zeros. */
typedef struct tt_optim_view {
    float *grad; /* flat, whole array: sums                    */
    const float *w_old;
    float *w_new;
    const float *slot_old[TT_OPTIM_SLOTS];
    float *slot_new[TT_OPTIM_SLOTS];
} tt_optim_view;

/* From the next step on nothing is written before it is known whether the gradient is finite; if it
 * is not, nothing is. That takes a pass more, unless clipping by norm has it anyway, and changes no
 * bit of the results. For who has no old vectors to go back to. */
void tt_optim_look_first(tt_optim *o);

void tt_optim_begin(tt_optim *o, int64_t step, double weight, double samples);
int tt_optim_passes(const tt_optim *o);
void tt_optim_run(tt_optim *o, int pass, int piece, const tt_optim_view *v);
void tt_optim_join(tt_optim *o, int pass);

/* Where pieces are run by different ranks: what each piece tells the join, to be brought to those
 * who did not run it, between a pass and its join. */
typedef struct tt_piece_result {
    double grad, clipped;     /* sums of squares, before and after clipping by value */
    double weight, direction; /* LAMB                                                */
    double finite;            /* 1, or 0                                             */
} tt_piece_result;
tt_piece_result tt_optim_told(const tt_optim *o, int piece);
void tt_optim_tell(tt_optim *o, int piece, const tt_piece_result *r);

/* After the step: norm of the normalised, regularised gradient before clipping (always computed,
 * per piece and in piece order), and whether it is finite: no NaN, no infinity, and, once
 * clipped, not so large that its square is no float. If it is not, the step was not applied when
 * clipping by norm was on, or look_first; else the caller decides (it still has the old vectors, or
 * stops). */
double tt_optim_grad_norm(const tt_optim *o);
bool tt_optim_finite(const tt_optim *o);

/* ---- Rows of tables ----
 *
 * A table's rows are changed where they lie, and only those that a step has touched. A row's
 * *record* is its weights and behind them its state. Schedule, clipping and groups (lr, freeze)
 * apply; decay, l1 and l2 do not: they would touch every row. Moments of rows that are not touched
 * stay as they are; Adam's bias correction is by the step, as for all others.
 *
 *   between tt_optim_begin and the first join:  tt_optim_rows_prepare of all shares of all tables
 *   after the last join, if it is finite:       tt_optim_rows_update of each row */

/* Is there a rule for rows: by train.tables or, if that is NULL, the optimiser's? */
tt_err tt_optim_has_rows(tt_node *optimizer, tt_node *tables, bool *out);
/* Once, after open: the last `count` of the parameters it was opened with are tables. They have no
 * numbers of the flat array (n is 0), and the shape (rows, dim). */
tt_err tt_optim_set_tables(tt_optim *o, tt_node *tables, int count);
const char *tt_optim_rows_name(const tt_optim *o); /* of the rule: "rowwise_adagrad" */
bool tt_optim_rows_decay(const tt_optim *o); /* the job has decay, l1 or l2 for them, in vain */
bool tt_optim_rows_frozen(const tt_optim *o, int table);
int tt_optim_rows_slots(const tt_optim *o);
/* Of a slot: its name, for checkpoints, and how many numbers of each row, in the order in which
 * they stand behind the weights. */
int tt_optim_rows_slot(const tt_optim *o, int table, int slot, const char **name);
int tt_optim_rows_record(const tt_optim *o, int table); /* numbers of a record */

enum { TT_ROW_SHARES = 16 }; /* in which the rows of a table are prepared: any thread, any order */
/* g: the sums of the share's rows, n numbers; becomes what update takes. */
void tt_optim_rows_prepare(tt_optim *o, int table, int share, float *g, int64_t n);
void tt_optim_rows_fresh(const tt_optim *o, int table, float *record); /* the state of a new one */
/* fresh: it is changed for the first time. */
void tt_optim_rows_update(const tt_optim *o, int table, float *g, float *record, bool fresh);

void tt_optim_close(tt_optim *o); /* accepts NULL */

#endif
