/* data: datasets as pure functions. A batch depends on (seed, step, grain) and nothing else, so
 * that any worker can make any batch, and starting at step s costs nothing.
 *
 * Files are opened, checked whole and decoded at open (kept compact: bytes stay bytes); making a
 * batch only gathers, normalises and augments. tt_data_fill may be called from many threads at
 * once. */
#ifndef TT_DATA_H
#define TT_DATA_H

#include <jansson.h>

#include "base/base.h"
#include "tensor/tensor.h"

typedef enum tt_split { TT_TRAIN, TT_VAL } tt_split;

/* What the model and its loss expect; the data is checked against it at open. */
typedef struct tt_data_want {
    tt_shape input; /* per sample, e.g. (1, 28, 28); (0): it has no numbers                 */
    int64_t ids;    /* per sample                                                           */
    const int64_t
        *id_rows;   /* of each id: it must be below that; 0: it may be anything. Only at open */
    int classes;    /* > 0: integer labels 0 .. classes-1 ...                               */
    int64_t labels; /* ... so many per sample                                               */
    int targets;    /* > 0: that many float targets per sample                              */
    bool only_x;    /* to predict: labels and targets may be absent or bad; then there are none */
    const tt_node *input_at; /* the job's `model.input`, for messages */
} tt_data_want;

tt_row tt_data_row_of(const tt_data_want *w);

typedef struct tt_data tt_data;

/* Reads the job's `data` map. A missing file is TT_EDATA whose message ends with the command that
 * gets it where we know one; a bad one is TT_EDATA with file and offset (or line). `seed` keys
 * shuffling and augmentation. */
tt_err tt_data_open(tt_node *data, const tt_data_want *want, uint64_t seed, tt_data **out);

/* The same content, decoded once for all processes of a host that open it so. It is in a file in
 * one of the folders (one or several with ':' between, as in PATH; the first that has the room for
 * it is taken; the last part of a path is made, for this user alone), which whoever comes first
 * makes and all map. Its name follows from the job, the model's wants and the files' places and
 * dates, so nobody meets another's content. Who makes the folders removes them; that harms nobody
 * who has the content open.
 *
 * While another process decodes, it is waited for; if it ends, somebody else does it. TT_EIO: it
 * has done nothing for timeout_s; the message says which process. What cannot be in common (no
 * room, no such folder) each process has for itself, and the log says why. `folders` NULL:
 * tt_data_open. */
tt_err tt_data_open_common(tt_node *data, const tt_data_want *want, uint64_t seed,
                           const char *folders, double timeout_s, tt_data **out);
/* The file it is mapped from; NULL: none, and *why_not (may be NULL) says why, or is NULL too. */
const char *tt_data_common(const tt_data *d, const char **why_not);

/* One split alone, with the same values as above. The training set is opened for the other one's
 * sake only where that is made of it or cannot be understood without: `val: {split: ...}`,
 * statistics (normalize: auto), the words of a CSV file, the first index of a LIBSVM file.
 *
 * Here, `val` may name files beside `split`: those are then the validation set, and the training
 * set is still what the split left of it, so that values mean what they meant in training.
 *
 * With `learned`, what tt_data_learned said of the training set (else NULL), a validation set with
 * files of its own is opened without it. TT_EFORMAT: that is none of ours. */
tt_err tt_data_open_split(tt_node *data, const tt_data_want *want, uint64_t seed, tt_split split,
                          const json_t *learned, tt_data **out);

/* Makes `file` the validation set that tt_data_open_split reads: in the training set's format, with
 * its keys, and with labels only if the file itself has them. A relative name is one of the working
 * directory. TT_EINVAL: the training set has no files. */
tt_err tt_data_aim(tt_node *data, const char *file);

/* Are the files here that a `data` map names, once it has been read? They are not opened. TT_EDATA
 * as above for the first that is not. */
tt_err tt_data_find(const tt_node *data);

/* `$NAME`, `${NAME}` and `${NAME:-text}` in the name of a file or folder become what the
 * environment says; added to `out`. `at` (may be NULL) is where it stands. */
tt_err tt_data_expand(const tt_node *at, const char *text, tt_str *out);

/* Rows in memory, for programs that embed us: x is (n, features), ids (n, ids), and labels or
 * targets by `want`. Borrowed until close. */
typedef struct tt_data_rows {
    const float *x;
    const int32_t *ids;
    const int32_t *label;
    const float *target;
    int64_t n;
    const char *name; /* in messages; NULL: "training rows", "validation rows" */
} tt_data_rows;
tt_err tt_data_open_rows(const tt_data_want *want, const tt_data_rows *train,
                         const tt_data_rows *val, uint64_t seed, tt_data **out);

int64_t tt_data_count(const tt_data *d, tt_split split); /* samples; 0: no such split           */
int tt_data_classes(const tt_data *d);                   /* seen in the labels, 0 if none       */
const char *tt_data_class_name(const tt_data *d, int i); /* NULL if the data has no names       */
const char *tt_data_describe(const tt_data *d,
                             tt_split split); /* "60,000 of 1x28x28 from train-images..." */
/* Sample i of a split: its row in its file, from 0 (a header is none), and what is true of it. */
int64_t tt_data_row(const tt_data *d, tt_split split, int64_t i);
bool tt_data_labelled(const tt_data *d, tt_split split);                  /* one of each sample?  */
int tt_data_label(const tt_data *d, tt_split split, int64_t i);           /* -1: it has none      */
const float *tt_data_target(const tt_data *d, tt_split split, int64_t i); /* as many as wanted;
                                                                           * NULL: no targets */
/* Where the training set is text: the tokens of another text, into `out`, which has room for as
 * many as it has bytes; TT_EDATA if it has something that the training set has not. The text of a
 * token, added to `out`. The token that stands before and behind each line, -1: there is none; one
 * that a text may begin with. */
tt_err tt_data_encode(const tt_data *d, const char *text, size_t size, int32_t *out,
                      int64_t *count);
void tt_data_decode(const tt_data *d, int32_t token, tt_str *out);
int tt_data_edge(const tt_data *d);
int tt_data_token_count(const tt_data *d); /* that stand for something: those below it */
int tt_data_first(const tt_data *d);
/* A dataset without samples, of what tt_data_learned said of a text's tokens: only the five
 * functions above and tt_data_meaning say anything. GPT-2's tokens are by the tokenizer that the
 * job's `data` (else it may be NULL) names. TT_EFORMAT: the object is none of ours. */
tt_err tt_data_open_text(const json_t *learned, tt_node *data, tt_data **out);
/* Bytes of text that a token which is judged in a split stands for, on the mean; the end of a line
 * has one. 0: it is no text, or not known. */
double tt_data_token_bytes(const tt_data *d, tt_split split);
const char *tt_data_sha(const tt_data *d); /* fingerprint of the decoded content, lazily made  */
/* What numbers mean that the model is given, where the training set decides on it: hashes of the
 * words or characters that stand for ids, and of means and deviations; 0: it does not. With others
 * a trained model computes nonsense. */
typedef struct tt_meaning {
    uint64_t words, scale;
} tt_meaning;
tt_meaning tt_data_meaning(const tt_data *d);
/* What those are, for who has not the training set: a new object for JSON, as learned.c describes
 * it. NULL: the training set decides on nothing, or it is too much to be said. */
json_t *tt_data_learned(const tt_data *d);

/* What the job's `data` map says of feeding, for tt_order and tt_feed_open. */
enum { TT_THREADS_AUTO = -1 }; /* as many as there are CPUs to spare for: the caller knows */
typedef struct tt_data_flow {
    bool shuffle;
    int threads, prefetch;
    bool local; /* data.shards: local: each host has rows of its own */
} tt_data_flow;
tt_data_flow tt_data_feeding(const tt_data *d);

/* ---- Which samples make a step ----
 *
 * A *pass* goes over all samples once in the order of a counter-based permutation keyed by (seed,
 * pass). by_pass: a step never crosses the end of a pass; the last one of a pass is shorter if it
 * must be. else: steps go on across passes and all have the same size (`train.steps_per_epoch`). */
enum { TT_TURNS = 16 };
typedef struct tt_turn { /* after a rollback to this step; keys are 1, 2, ... */
    int64_t step;
    uint64_t key;
} tt_turn;
typedef struct tt_order {
    int64_t count; /* samples of the split         */
    int64_t batch; /* global batch                 */
    /* Where hosts have rows of their own (data.shards: local): all samples of all hosts, and how
     * many are those of hosts before this one. A step then takes of each host in proportion to what
     * it has, and of every host all of it once a pass. 0, 0: there is no other. */
    int64_t total, first;
    bool by_pass;
    bool shuffle;
    bool augment; /* as data.augment says; false: the samples as they are */
    uint64_t seed;
    /* Turns: from the turn's step on, what is left of its pass comes in another order, and so do
     * the passes after it, if they are shuffled. Of each pass every sample still comes once. */
    tt_turn turn[TT_TURNS];
    int turns;
} tt_order;
/* Another turn; false: there were too many of late. */
bool tt_order_turn(tt_order *o, int64_t step);
int64_t tt_order_steps(const tt_order *o); /* steps of a pass, by_pass: ceil(count / batch) */
int tt_order_size(const tt_order *o, int64_t step); /* samples in this step, of this host ...  */
int tt_order_most(const tt_order *o);               /* ... and in any, at most */

/* A sample's place: which pass, where in its order. Randomness is keyed by it. */
typedef struct tt_place {
    int64_t pass, at;
} tt_place;
tt_place tt_order_place(const tt_order *o, int64_t step, int i); /* i-th sample of the step */
int64_t tt_order_sample(const tt_order *o, tt_place p); /* its row in the dataset               */

/* Fills samples [first, first + n) of `step` into out (n set, buffers of tt_batch_open).
 * Augmentation is keyed by (seed, place). Pure. */
tt_err tt_data_fill(const tt_data *d, tt_split split, const tt_order *o, int64_t step, int first,
                    int n, tt_batch *out);

/* ---- Prefetch: `threads` threads fill the steps to come, `depth` ahead ----
 * A step's batch, or a rank's part of it, is handed out whole; the caller cuts grains from it.
 * threads 0: filled in tt_feed_take. */
typedef struct tt_feed tt_feed;
/* Of a step's n samples: [n * first / of, n * end / of). */
typedef struct tt_cut {
    int first, end, of;
} tt_cut;
/* `cut` NULL: all of them. */
tt_err tt_feed_open(const tt_data *d, tt_split split, const tt_order *o, const tt_cut *cut,
                    int64_t first_step, int threads, int depth, tt_feed **out);
/* From the next take on another part of each step; by who takes, between two takes. What was made
 * ahead for the old part is made anew when it is taken. */
void tt_feed_recut(tt_feed *f, const tt_cut *cut);
tt_err tt_feed_take(tt_feed *f,
                    const tt_batch **out); /* of the next step; valid until the next take  */
/* Any samples, [first, first + n), of the step taken last, made at once; valid until the next call
 * of this. */
tt_err tt_feed_more(tt_feed *f, int first, int n, const tt_batch **out);
void tt_feed_close(tt_feed *f);

/* ---- Making shards of text: `tutti data prepare` ---- */
typedef struct tt_prepare_opts {
    const char *const *input; /* text files, gzipped or not, in this order */
    int inputs;
    const char *tokens;    /* bytes, chars or gpt2                                           */
    const char *tokenizer; /* gpt2: its folder                                               */
    const char *out;       /* folder: it must not be there, or be empty                      */
    double val;            /* share of the tokens, from the end, to validate on; 0: none     */
    int64_t shard_tokens;  /* in a file, at most                                             */
} tt_prepare_opts;
typedef struct tt_prepared {
    int64_t tokens[2]; /* by tt_split            */
    int shards[2];
    int64_t bytes; /* of text                    */
    int vocab;
} tt_prepared;
/* The folder is there with all of its files or not at all. */
tt_err tt_data_prepare(const tt_prepare_opts *o, tt_prepared *out);

/* ---- What a file is: `tutti data inspect` and `verify` ---- */
typedef struct tt_inspect_opts {
    const char *format;    /* as a job has it; NULL: by its content and name                 */
    const char *tokenizer; /* its folder, to show the text of tokens; NULL: ...              */
    const char *usual;     /* ... this one, if it is there and tokens are said to be GPT-2's */
    int rows;              /* how many to show, at most                                      */
} tt_inspect_opts;
/* Goes through all of a file and says what it is: an object with file, format, bytes, and what
 * there is to say of that format. TT_EDATA: it is bad, or of no format that is known. */
tt_err tt_data_inspect(const char *path, const tt_inspect_opts *o, json_t **out);

/* ---- Getting datasets: `tutti data get NAME` ---- */
typedef struct tt_fetch_opts {
    const char *dir; /* destination: <dir>/<name>/                          */
    const char *const *mirrors;
    int mirror_count; /* base URLs or folders, tried before the built-in ones */
    bool quiet;
} tt_fetch_opts;
tt_err tt_data_get(const char *name, const tt_fetch_opts *o);
int tt_data_known(const char *const **names); /* "mnist", "fashion-mnist", "cifar10" */
void tt_data_close(tt_data *d);

#endif
