/* tutti.h: train neural networks from C.
 *
 * A job says what to train: model, data, optimiser. It is a YAML file, a text, or built by your
 * program; all three are the same thing here. A trainer turns a job into a trained model; a model
 * predicts. That is all there is:
 *
 *     job  --open-->  trainer  --step, step, ...-->  model  -->  predict, eval, export
 *
 * Chapters, each with a program in examples/c that does what it tells:
 *
 *     Before you start     errors, threads, memory
 *     1  Train a job       train_job.c     a job file, trained at once or step by step
 *     2  Build a model     build_model.c   the same job without a file; models, and what they tell
 *     3  A layer of yours  own_layer.c     forward and backward in C, checked, used like any other
 *     4  Data from memory  feed_data.c     arrays of your program instead of files
 *     5  Many processes    world.c         sums, an optimiser and checkpoints for mpirun and srun
 *
 * Compile with:  cc program.c $(pkg-config --cflags --libs tutti) */
#ifndef TUTTI_H
#define TUTTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TUTTI_API              __attribute__((visibility("default")))
#define TUTTI_PRINTF(fmt, arg) __attribute__((format(printf, fmt, arg)))
#else
#define TUTTI_API
#define TUTTI_PRINTF(fmt, arg)
#endif

/* ---- Before you start ----
 *
 * Errors. Functions that can fail return a status; what they give comes through the last argument
 * and is NULL (or untouched) unless the status is TUTTI_OK. The status says what to do next, the
 * message says what happened, in sentences meant to be shown: file, line and a caret where a job is
 * wrong. Wrong arguments are errors too, also NULL where a handle belongs.
 *
 * Ownership. What you open, you close; every close accepts NULL. Pointers you pass are borrowed for
 * the call unless a line says otherwise. Strings you get belong to the handle that gave them.
 *
 * Threads. A handle is used by one thread at a time, whichever that is (but see chapter 5 for
 * worlds). Different handles may be used side by side; of several run folders written at once, the
 * one opened last gets the log. Functions block until they are done; inside, they use
 * `train.threads` threads of their own. The library leaves signals to you (but for SIGILL, for a
 * moment, when the first model opens: it tries what the CPU can do; and SIGALRM, when a world of
 * several is left), never changes the working folder and prints nothing but warnings, to standard
 * error.
 *
 * Memory. Large blocks that cannot be had are TUTTI_ENOMEM. If even a few bytes cannot be had the
 * program ends, with a line that says so. */

typedef enum tutti_status {
    TUTTI_OK = 0,
    TUTTI_EINVAL,    /* fix the arguments or the job */
    TUTTI_ENOMEM,    /* use less, or give up */
    TUTTI_EIO,       /* retry, or use another place */
    TUTTI_EFORMAT,   /* this file is bad: try an older one */
    TUTTI_EDATA,     /* get, or repair, the dataset */
    TUTTI_ECKPT,     /* no checkpoint or weights that fit */
    TUTTI_EDIVERGED, /* the numbers ran away: change the job */
    TUTTI_EENV,      /* this machine lacks something */
    TUTTI_EPEER,     /* another process of this training is lost */
    TUTTI_ESTOP,     /* asked to stop: leave cleanly */
} tutti_status;

/* The message of the calling thread's last error; "" if there was none. May have several lines.
 * Valid until this thread's next error. */
TUTTI_API const char *tutti_message(void);

/* Sets that message and returns `status`: for layers of your own (chapter 3). */
TUTTI_API tutti_status tutti_fail(tutti_status status, const char *fmt, ...) TUTTI_PRINTF(2, 3);

/* "0.1.0". Up to version 1 structs may grow: compile again for a new version. */
TUTTI_API const char *tutti_version(void);
TUTTI_API void tutti_quiet(bool quiet); /* true: no warnings to standard error; any thread */

/* ======== Chapter 1: train a job ========
 *
 *     tutti_job *job = NULL;
 *     tutti_model *model = NULL;
 *     if (tutti_job_open("job.yaml", &job) || tutti_job_set(job, "train.epochs=%d", epochs) ||
 *         tutti_train(job, NULL, NULL, &model))
 *         fprintf(stderr, "%s\n", tutti_message());
 *
 * trains job.yaml and gives the model. `tutti_options` says more: where to write the run folder
 * (metrics, log, checkpoints; the program `tutti` reads it), whether to resume. For a display of
 * your own, or to stop early, go step by step with a tutti_trainer instead. */

typedef struct tutti_job tutti_job;         /* what to train */
typedef struct tutti_trainer tutti_trainer; /* a training under way */
typedef struct tutti_model tutti_model;     /* layers and weights, at work */
typedef struct tutti_world tutti_world;     /* processes that train together: chapter 5 */

/* A job from a file, or from text (`name` stands for the file's name in messages). The YAML must
 * be well-formed; whether it makes sense is found by tutti_job_check, or when it is used. */
TUTTI_API tutti_status tutti_job_open(const char *path, tutti_job **out);
TUTTI_API tutti_status tutti_job_parse(const char *name, const char *text, tutti_job **out);

/* Sets or adds one key, "train.batch=32", as --set of the program does; layers go by their name or
 * number: "model.layers.conv1.out=20". The text is a printf format.
 *
 * A job remembers its first mistake: from then on every call with it returns that same error, so a
 * row of calls may be checked once, at the end. */
TUTTI_API tutti_status tutti_job_set(tutti_job *job, const char *fmt, ...) TUTTI_PRINTF(2, 3);

/* All that can be checked without touching data. Trainers and models check it too. */
TUTTI_API tutti_status tutti_job_check(const tutti_job *job);

/* The job as YAML, for `tutti train`; NULL if the job has a mistake. Valid until the next call
 * with this job. */
TUTTI_API const char *tutti_job_text(tutti_job *job);
TUTTI_API void tutti_job_close(tutti_job *job);

typedef struct tutti_rows { /* samples in memory: chapter 4 */
    int64_t count;
    const float *x;       /* (count, numbers of the model's input) */
    const int32_t *label; /* (count), for losses that compare classes; -1: has none. Where each
                             pixel of an image is judged: (count, height, width); each position of
                             a sequence: (count, positions) */
    const float *target;  /* (count, numbers of the output), for losses that compare numbers */
    const int32_t *ids;   /* (count, ids of the model's input): tokens or categories, as rows of its
                             tables, from 0; -1: none */
} tutti_rows;

typedef struct tutti_options { /* zero it ({0}), then set what you need */
    const char *run;           /* folder to write the run to, new or empty */
    const char *runs;          /* or: a folder in which to make a new one. Both NULL: no files */
    bool resume;               /* if `run` holds a run, go on from its newest valid checkpoint */
    const char *init;          /* weights to start from: a run, a checkpoint or a .safetensors */
    bool partial;              /* of init, take what matches */
    int threads;               /* 0: as the job says */
    const tutti_rows *train, *val; /* instead of the job's `data`; val may be NULL */
    tutti_world *world;            /* train together, chapter 5; NULL: alone */
} tutti_options;

typedef struct tutti_metrics {        /* NAN where it does not apply */
    double loss, accuracy, top5;      /* fractions, not percent */
    double auc;                       /* area under the ROC curve, where there are two classes */
    double perplexity, bits_per_byte; /* of tokens, of a text */
    double miou; /* where pixels are judged: mean over classes of intersection / union */
    int64_t samples;
    double logloss, calibration; /* of two classes; mean probability of class 1, by its share */
    double entropy;              /* ... logloss, by that of who always tells this share       */
} tutti_metrics;

typedef struct tutti_progress {
    int64_t step, steps;    /* done, and in all */
    double epoch, epochs;   /* 1.25 of 3 */
    double loss, loss_mean; /* of this step; of the epoch so far */
    double lr, grad_norm;
    double samples_per_s;             /* training alone, steady state */
    double eta_s;                     /* seconds to go; NAN: not known yet */
    tutti_metrics val;                /* the last validation */
    bool validated, saved, epoch_end; /* happened with this step */
    const char *save_trouble;         /* NULL, or why the last checkpoint could not be written */
    const char *end;                  /* NULL, or why there is nothing left: "done", "early stop" */
    double tokens_per_s;              /* where tokens are judged, those with a label; else 0 */
} tutti_progress;

/* The whole training: open, all steps, finish, close. `options`, `last` (the progress at the end;
 * its save_trouble is NULL) and `model` may be NULL. Close the model with tutti_model_close. */
TUTTI_API tutti_status tutti_train(const tutti_job *job, const tutti_options *options,
                                   tutti_progress *last, tutti_model **model);

/* Step by step:  open;  do step while (!p.end);  finish;  close.
 *
 * The trainer keeps a copy of the job, which may be changed or closed at once, and of the options;
 * the arrays of rows are borrowed until tutti_trainer_close, and must not change. */
TUTTI_API tutti_status tutti_trainer_open(const tutti_job *job, const tutti_options *options,
                                          tutti_trainer **out);

/* One step, and what is due with it: validation, checkpoint. At the end it does nothing but tell
 * so again. An error ends the training: TUTTI_EDIVERGED if loss or gradient are not finite (that
 * step was not applied). `out` may be NULL; strings in it are valid until the next step. */
TUTTI_API tutti_status tutti_trainer_step(tutti_trainer *t, tutti_progress *out);

/* At any time between steps. save waits until the checkpoint is on disk. */
TUTTI_API tutti_status tutti_trainer_validate(tutti_trainer *t, tutti_metrics *out);
TUTTI_API tutti_status tutti_trainer_save(tutti_trainer *t);
TUTTI_API const char *tutti_trainer_run(const tutti_trainer *t); /* run folder; "" if none */

/* A model with the weights of this moment: a copy, that training on does not change. */
TUTTI_API tutti_status tutti_trainer_model(tutti_trainer *t, tutti_model **out);

/* Ends the run: waits for checkpoints, writes summary.json. A training that is stopped before its
 * end is saved first, so that it can be resumed. Without files there is nothing to do. */
TUTTI_API tutti_status tutti_trainer_finish(tutti_trainer *t);
TUTTI_API void tutti_trainer_close(tutti_trainer *t); /* without finish, the run counts as lost */

/* ======== Chapter 2: build a model ========
 *
 * The keys and layers are those of job files; docs/job.md and `tutti config keys` list them.
 *
 *     tutti_job_new("cnn", &job);
 *     tutti_job_set(job, "model.input=[3, 32, 32]");
 *     for (int i = 0; i < 4; i++) {
 *         tutti_job_layer(job, "conv: {name: c%d, out: %d, kernel: 3, padding: 1}", i, 16);
 *         tutti_job_layer(job, "relu");
 *     }
 *     tutti_job_layer(job, "add: {from: [prev, c2]}");      `from` joins branches
 *     tutti_job_layer(job, "flatten");
 *     tutti_job_layer(job, "dense: {out: 10}");
 *     tutti_job_set(job, "model.loss=softmax_cross_entropy");
 *     tutti_job_set(job, "train={epochs: 3, batch: 64, optimizer: {adam: {lr: 1e-3}}}");
 *     err = tutti_job_check(job);                           the first mistake, if there was one */

TUTTI_API tutti_status tutti_job_new(const char *name, tutti_job **out);

/* Adds a layer behind those that are there: one item of `layers`, as a job file has it. The text is
 * a printf format. Layers without `name:` are called by kind and number: conv1, conv2. */
TUTTI_API tutti_status tutti_job_layer(tutti_job *job, const char *fmt, ...) TUTTI_PRINTF(2, 3);

/* The job's model with weights from a run, a checkpoint, a .safetensors file or a folder with a
 * model.safetensors (a GPT-2 of Hugging Face is known by its names); NULL: fresh ones.
 * `layer` names the layer whose output is wanted, for embeddings; NULL: the last. The job needs no
 * `train` for this, is copied, and may be closed at once. */
TUTTI_API tutti_status tutti_model_open(const tutti_job *job, const char *weights,
                                        const char *layer, tutti_model **out);
TUTTI_API void tutti_model_close(tutti_model *m);

typedef struct tutti_shape { /* of a sample, or a parameter: rank 1 to 6 */
    int rank;
    int64_t dim[6];
} tutti_shape;
/* The product; 0 if it is no shape, or too large. */
TUTTI_API int64_t tutti_shape_count(tutti_shape s);

/* What predict takes and gives for a row. 0 numbers for NULL, and where a row has ids alone. */
TUTTI_API tutti_shape tutti_model_input(const tutti_model *m);
TUTTI_API int64_t tutti_model_ids(const tutti_model *m); /* ids of a row; 0: none */
TUTTI_API tutti_shape tutti_model_output(const tutti_model *m);

/* Outputs of `rows` rows: x is (rows, input), y has room for (rows, output); what the last layer
 * gives, so logits where the loss takes logits. Values are as the model was trained on: what
 * `data.normalize` did to files is yours to do here. */
TUTTI_API tutti_status tutti_model_predict(tutti_model *m, const float *x, int64_t rows, float *y);
/* The same for a model whose rows have ids, or numbers and ids; label and target are not looked at.
 * An id that is beyond its table is TUTTI_EINVAL and names the row. */
TUTTI_API tutti_status tutti_model_predict_rows(tutti_model *m, const tutti_rows *rows, float *y);

/* Loss and accuracy over rows, or with NULL over the job's validation data (`data.val`), which is
 * read at the first such call. */
TUTTI_API tutti_status tutti_model_eval(tutti_model *m, const tutti_rows *rows, tutti_metrics *out);

/* Writes a .safetensors file, which tutti_model_open, PyTorch, NumPy and JAX read. */
TUTTI_API tutti_status tutti_model_export(const tutti_model *m, const char *path);

typedef struct tutti_layer_info {
    const char *name, *kind; /* "conv1", "conv" */
    tutti_shape out;
    int64_t params; /* trained numbers */
    double flops;   /* of a sample, forward; 0 where not known */
} tutti_layer_info;
TUTTI_API int tutti_model_layer_count(const tutti_model *m);
TUTTI_API tutti_status tutti_model_layer(const tutti_model *m, int i, tutti_layer_info *out);

/* A parameter by name, "conv1.weight"; valid until the model is closed. */
TUTTI_API tutti_status tutti_model_param(const tutti_model *m, const char *name, tutti_shape *shape,
                                         const float **out);

/* ======== Chapter 3: a layer of your own ========
 *
 * Describe it, add it once, and it is a layer like any other, in job files and in tutti_job_layer:
 *
 *     static const tutti_layer squash = {
 *         .kind = "squash", .keys = "out, slope: 1", .shape = shape, .forward = forward,
 *         .backward = backward};
 *     tutti_layer_add(&squash);
 *     tutti_job_layer(job, "squash: {out: 10, slope: 0.5}");
 *
 * A layer has one input and one output, which may differ in shape, and up to TUTTI_PARAMS trained
 * tensors. Numbers lie row after row: image rows are (channels, height, width). */

typedef struct tutti_args tutti_args; /* the keys of one layer, as the job gives them */

/* A key's value; NAN if `keys` does not list it. */
TUTTI_API double tutti_arg(const tutti_args *args, const char *key);

enum { TUTTI_PARAMS = 4 };

typedef struct tutti_param {
    const char *name; /* "weight"; copied */
    tutti_shape shape;
    double fan_in; /* > 0: begins uniform in +-1/sqrt(fan_in); else ... */
    float fill;    /* ... with this */
    bool decay;    /* weight decay applies, as to weights; not to biases, scales and such */
} tutti_param;

typedef struct tutti_pass { /* what forward and backward work on */
    const tutti_args *args;
    void *user;          /* as in tutti_layer */
    tutti_shape in, out; /* of a row */
    int64_t rows, in_count, out_count;
    bool train;                   /* forward: for training, not for use */
    const float *x;               /* (rows, in_count) */
    const float *w[TUTTI_PARAMS]; /* parameters, as `shape` listed them */
    float *y;                     /* (rows, out_count): forward writes it all */
    const float *dy;              /* backward: gradient of y */
    float *dx;                    /* backward: write it all; NULL: not wanted */
    float *dw[TUTTI_PARAMS];      /* backward: ADD to it; NULL: not wanted */
} tutti_pass;

typedef struct tutti_layer {
    const char *kind; /* its name in jobs */
    const char *keys; /* its keys, all numbers: "out, slope: 1": out is required, slope has a
                       * default. NULL: none. name, from and freeze every layer has */
    void *user;       /* for you */

    /* From keys and input shape: the output's shape (preset to the input's) and the parameters.
     * Refuse what cannot be with tutti_fail(TUTTI_EINVAL, ...). */
    tutti_status (*shape)(const tutti_args *args, void *user, tutti_shape in, tutti_shape *out,
                          tutti_param params[TUTTI_PARAMS], int *param_count);

    /* Called from several threads at once, each with rows of its own; so keep nothing from one
     * call to the next. Backward gets forward's x and y again. They cannot fail. */
    void (*forward)(const tutti_pass *p);
    void (*backward)(const tutti_pass *p);
} tutti_layer;

/* Makes the kind known, for the rest of the program. *layer is copied; `user` and the functions
 * stay yours. Before any job uses it, and not while another thread opens models. */
TUTTI_API tutti_status tutti_layer_add(const tutti_layer *layer);

/* Tries a layer, "squash: {out: 10}", on random rows: its gradients against finite differences,
 * within `tolerance` (1e-2 suits most; for single precision it cannot be much less), and that it
 * writes no more and no less than it should. TUTTI_EINVAL tells what differs. */
TUTTI_API tutti_status tutti_layer_check(const char *layer, tutti_shape in, double tolerance);

/* ======== Chapter 4: data from memory ========
 *
 *     tutti_rows train = {.count = n, .x = x, .label = y};
 *     tutti_options o = {.train = &train, .val = &val};
 *     tutti_train(job, &o, NULL, &model);
 *     tutti_model_predict(model, x, n, y);
 *
 * Nothing is copied: x is read while training goes on, in an order shuffled anew each epoch. The
 * loss decides what is needed: softmax_cross_entropy and nll want labels 0 .. classes-1, mse and
 * bce want targets (bce over one output: labels 0 and 1), a loss with `target: input` neither. A
 * row with label -1, or with NAN as its first target, counts only for losses that need none. A
 * model with `input: {ids: 8}` takes `ids` instead of x, or beside it. Of tokens the label of each
 * is the one that follows: `tutti_model_predict_rows` then gives (rows, positions, tokens). Rows
 * are checked when a trainer opens, or an eval begins: what does not fit is TUTTI_EINVAL and names
 * the row. The struct itself stands in chapter 1. */

/* ======== Chapter 5: many processes ========
 *
 *     mpirun -n 4 program       srun program       program
 *
 * Processes that are started together form a world; each has a rank in it, from 0. A program that
 * is started alone is a world of one, and nothing else changes. Each rank works on rows of its own,
 * the optimiser adds up what they found, and all come to the same parameters, bit for bit:
 *
 *     tutti_world_join(&world);
 *     tutti_optim_open(world, "adam: {lr: 1e-3}", w, n, NULL, 0, &optim);
 *     tutti_world_alloc(world, n, &grad);
 *     for (...) {
 *         rows = gradient(w, grad, tutti_world_rank(world), tutti_world_size(world));
 *         tutti_optim_step(optim, grad, rows, NULL);
 *     }
 *     tutti_optim_close(optim);
 *     tutti_world_leave(world, 0);
 *
 * Together. Calls with a world, and with what was opened with it, are made by all ranks, in the
 * same order, with the same sizes, by the thread that joined. Only rank, size and their like, every
 * close, and what a model does are a rank's own affair.
 *
 * Waiting. Nobody is waited for longer than tutti_world_timeout says. Then the call is TUTTI_EPEER,
 * its message names who was missing, and every later call with this world says so again.
 *
 * Errors. What all ranks can know of (a text, a shape, a checkpoint) all of them get, with the name
 * of the rank that met it. A rank that fails alone leaves with an exit code, which ends the others
 * too; or it tells them with tutti_world_agree. */

/* Joins the world this process was started in; starts MPI if mpirun, mpiexec or srun started us,
 * so the program does not start it itself. Under a launcher a program joins once.
 * TUTTI_EENV: MPI does not start, or the launcher is not that of the MPI this library uses. */
TUTTI_API tutti_status tutti_world_join(tutti_world **out);

/* The last call with a world, when all that was opened with it is closed; memory of
 * tutti_world_alloc goes with it. With 0 it waits for the others. If `failed` is an exit code, or
 * the world is lost, or somebody does not come in time, the launcher ends all ranks: then the call
 * does not return, except in a world of one. */
TUTTI_API void tutti_world_leave(tutti_world *w, int failed);

/* 0 for NULL. Local: among those on the same host. */
TUTTI_API int tutti_world_rank(const tutti_world *w);
TUTTI_API int tutti_world_size(const tutti_world *w);
TUTTI_API int tutti_world_local_rank(const tutti_world *w);
TUTTI_API int tutti_world_local_size(const tutti_world *w);

/* How long anybody is waited for, in seconds; 60 at first. Each rank sets its own, at once. */
TUTTI_API tutti_status tutti_world_timeout(tutti_world *w, double seconds);

TUTTI_API tutti_status tutti_world_barrier(tutti_world *w);

/* What has each rank met? TUTTI_OK if nobody met anything; else all get status and message of the
 * first that did. `mine` is the status of this rank's last call. */
TUTTI_API tutti_status tutti_world_agree(tutti_world *w, tutti_status mine);

/* x becomes the sum, or the mean, over all ranks: the same bits on each of them, and each time. */
TUTTI_API tutti_status tutti_world_sum(tutti_world *w, float *x, int64_t n);
TUTTI_API tutti_status tutti_world_mean(tutti_world *w, float *x, int64_t n);

/* Memory for n floats, zeroed, that sums need not copy: for vectors that are summed often. As many
 * as you like; all are released when the world is left. */
TUTTI_API tutti_status tutti_world_alloc(tutti_world *w, int64_t n, float **out);

/* What rank `root` has in `data` becomes everybody's. */
TUTTI_API tutti_status tutti_world_bcast(tutti_world *w, int root, void *data, size_t bytes);

/* ---- Training by hand ---- */

typedef struct tutti_tensor { /* a part of the program's state */
    const char *name;         /* "hidden.weight" */
    tutti_shape shape;
    float *data; /* for checkpoints; an optimiser goes by the order alone */
} tutti_tensor;

typedef struct tutti_optim tutti_optim;

/* An optimiser for the n numbers of `params`, which stay yours and must outlive it. Those of rank 0
 * become everybody's. `text` is an optimiser as job files have it, "adam: {lr: 1e-3}", or a map
 * with more of `train`:
 *
 *     optimizer: {adamw: {lr: 1e-3}}
 *     schedule: {cosine: {warmup: 100}}
 *     clip: {norm: 1}
 *     groups: [{match: "embed*", lr: 0.1}]
 *     steps: 10000             schedules go by it; steps_per_epoch, if they are given in epochs
 *
 * `tensors` (copied) say what params consists of, one after the other. Those of one dimension are
 * biases and such, which are not decayed unless the optimiser has `decay_all`. With a count of 0
 * params is one tensor, "params", which is. */
TUTTI_API tutti_status tutti_optim_open(tutti_world *w, const char *text, float *params, int64_t n,
                                        const tutti_tensor *tensors, int count, tutti_optim **out);

typedef struct tutti_update {
    int64_t step;  /* done so far */
    double weight; /* of all ranks */
    double lr, grad_norm;
} tutti_update;

/* One step along the gradient of all ranks: the sum of their `grad` (n numbers: of each rank the
 * sum over its samples) divided by the sum of their `weight` (how many samples that were; a rank
 * that has none gives zeros and 0). `grad` is overwritten. `out` may be NULL.
 * TUTTI_EDIVERGED, on all ranks: the gradient is not finite. Nothing was changed; the program may
 * go on with another. */
TUTTI_API tutti_status tutti_optim_step(tutti_optim *o, float *grad, double weight,
                                        tutti_update *out);
TUTTI_API void tutti_optim_close(tutti_optim *o);

/* ---- Checkpoints ---- */

typedef struct tutti_state {     /* zero it, then set what you have */
    const char *folder;          /* of checkpoints, made if absent; only rank 0 must see it */
    int keep;                    /* how many are kept; 0: all */
    const tutti_tensor *tensors; /* what is saved, and where it is restored to ... */
    int count;
    tutti_optim *optim; /* ... and with it params, step and state of this optimiser; or NULL */
} tutti_state;

/* Rank 0 writes <folder>/step-00001200, whole or not at all; all return when it is on disk, or
 * why it is not. Checkpoints of later steps, of a training that went back, are renamed to
 * step-N.bad. */
TUTTI_API tutti_status tutti_world_save(tutti_world *w, const tutti_state *state, int64_t step);

/* The newest step that is intact and finite; -1: there is none. */
TUTTI_API tutti_status tutti_world_latest(tutti_world *w, const char *folder, int64_t *step);

/* Takes up a step's checkpoint, or with -1 the newest: rank 0 reads and checks it, all get it.
 * `found` (may be NULL) is the step. TUTTI_ECKPT if there is none, or it lacks a tensor or has it
 * in another shape: nothing was changed then. */
TUTTI_API tutti_status tutti_world_restore(tutti_world *w, const tutti_state *state, int64_t step,
                                           int64_t *found);

/* ---- Training a job together ----
 *
 *     tutti_options o = {.world = world, .runs = "runs"};
 *     tutti_train(job, &o, NULL, &model);
 *
 * All ranks give the same job, options and rows; `train.batch` is that of all together and
 * `parallel` of the job says how they share the work (docs/parallel.md), `parallel.timeout` how
 * long they wait (for rank 0 to write files, an hour). Rank 0 alone writes the run folder:
 * tutti_trainer_run is "" on the others. Each rank gets the same model. Where several train, the
 * thread is bound to CPUs of its own, and stays so; TUTTI_PIN=0 in the environment prevents it. */

#ifdef __cplusplus
}
#endif

#endif
