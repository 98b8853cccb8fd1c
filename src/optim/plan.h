/* plan: what the job asks of the optimiser, resolved for each tensor. Internal to optim. */
#ifndef TT_OPTIM_PLAN_H
#define TT_OPTIM_PLAN_H

#include "optim.h"

typedef enum tt_family {
    TT_SGD,
    TT_ADAGRAD,
    TT_RMSPROP,
    TT_ADAM,
    TT_LAMB,
    TT_ROWWISE /* Adagrad with one sum for a row: of tables alone */
} tt_family;

/* The arguments of an optimiser; each kind has some of them. */
typedef struct tt_settings {
    const char *name; /* of the kind: "adamw" */
    tt_family family;
    double lr, momentum, dampening, alpha, eps, initial, lr_decay;
    double beta[2];
    bool nesterov;
    double l2, l1, weight_decay;
    bool decay_all;
} tt_settings;

/* How one tensor is updated. */
typedef struct tt_plan {
    tt_param_role role;
    bool frozen;
    bool adapt;                  /* LAMB's ratio scales it                        */
    double lr;                   /* multiplies the learning rate                  */
    double l2, l1, weight_decay; /* 0 where the tensor's role exempts it          */
    bool decay_given;            /* by a group                                    */
    float stat_momentum;
    int dim;                /* of a row, if it has two dimensions            */
    int piece, piece_count; /* its pieces, one after the other               */
} tt_plan;

/* Each reads its part of the job; nodes may be NULL. `rows`: it is for tables. */
tt_err tt_settings_read(tt_node *optimizer, bool rows, tt_settings *out);
bool tt_settings_have_rows(const tt_settings *s);                /* there is a rule for rows */
tt_err tt_clip_read(tt_node *clip, double *norm, double *value); /* 0: no such clipping */
tt_err tt_plans_read(tt_node *groups, const tt_settings *s, const tt_param *params, int count,
                     tt_plan *out);

#endif
