/* source: one dataset decoded into memory; private to data/.
 *
 * A format (idx, npy, cifar, csv, libsvm, text, tokens, criteo, synth) checks its files whole and
 * fills a tt_source; all that comes after (splitting, normalising, augmenting, batches) sees
 * sources alone and knows no format. Decoders take bytes and a name for messages, so the fuzzers
 * can call them without files.
 */
#ifndef TT_SOURCE_H
#define TT_SOURCE_H

#include <pthread.h>

#include "data/data.h"

typedef enum tt_keep { TT_KEEP_U8, TT_KEEP_F32, TT_KEEP_SPARSE, TT_KEEP_TOKENS } tt_keep;

typedef struct tt_schema tt_schema; /* csv: columns and their vocabularies */

#define TT_SOURCE_BLOCKS 8

/* A file of tokens, as it is: see tokens.c. */
typedef struct tt_shard {
    const void *data;     /* uint16_t, or (wide) uint32_t                                    */
    int64_t first, count; /* tokens before it in the source, and in it                       */
    bool wide;
    bool plain; /* it has no header: nanoGPT's                                               */
    tt_bytes file;
} tt_shard;

typedef struct tt_source {
    const char *name; /* of the file, for messages                                      */
    int64_t count;    /* samples                                                        */
    int64_t kept;     /* rows in memory; sample i is row i % kept (fewer: synthetic)    */
    tt_shape shape;   /* of a sample, as the file has it                                */
    bool bytes;       /* values are uint8                                               */
    bool pixels;      /* ... of images: divided by 255 unless the job says otherwise    */

    tt_keep keep;
    const uint8_t *u8;  /* (kept, features)                                               */
    const float *f32;   /* (kept, features)                                               */
    const int64_t *row; /* (kept + 1): row r has entries row[r] .. row[r + 1]             */
    const int32_t *col; /* feature of each entry, ascending in a row                      */
    const float *val;
    /* Tokens, classes of them: see text.c. With `row`, lines; else windows of so many. */
    const uint16_t *token; /* NULL: they are in shards                                    */
    tt_shard *shard;
    int shard_count;
    int64_t tokens, window, text_bytes; /* bytes they were made of; 0: unknown            */
    int edge;
    struct tt_bpe *bpe; /* of tokens that are GPT-2's; NULL, too, where the content is in common */
    bool nameless;      /* it is not known what tokens stand for: no names, no bytes          */
    const int32_t *token_size; /* of each of those, bytes that it stands for; NULL: not GPT-2's  */
    int token_sizes;

    const int32_t *ids; /* (kept, ids_each), -1: none; NULL: there are none             */
    int64_t ids_each;
    const int32_t *label;    /* (kept, labels), -1: none; NULL: no labels at all             */
    bool minus;              /* some of them are -1 in the file, which may be meant as a class */
    const float *target;     /* (kept, targets), NAN in the first: none                      */
    int64_t labels, targets; /* of a row; labels: 1, or of each pixel                     */
    int classes;             /* highest label + 1, or names known                            */
    const char *const *class_name; /* (classes) or NULL                                   */

    const bool *standardise; /* csv: features to bring to mean 0, deviation 1; or NULL    */
    uint64_t words;          /* of what ids and tokens stand for; 0: not known, or nothing    */
    tt_schema *schema;       /* csv: so that the validation file uses the same one        */
    int index_base;          /* libsvm: as found in the training file ...                 */
    int label_base;          /* ... TT_LABEL_SIGN, 0 or 1                                 */
    const char *learned;     /* those, as JSON: {"columns": ...}; NULL: there is nothing to say,
                              * "": it cannot be said                                      */

    tt_arena *arena; /* names                                                             */
    tt_bytes file[2];
    struct {
        void *p;
        size_t size;
    } block[TT_SOURCE_BLOCKS];
    int block_count;
} tt_source;

#define TT_LABEL_SIGN (-1) /* -1 and +1 stand for classes 0 and 1 */

#define TT_DATA_DIR "${TUTTI_DATA:-data}" /* what `dir` is where nothing is said */

/* What a format needs to know besides its own keys. */
typedef struct tt_source_ctx {
    const tt_data_want *want;
    const char *dir; /* expanded                                                          */
    tt_split split;
    const tt_source *train; /* val: the training set if it was opened, else NULL          */
    bool look; /* read the keys, which fills in their defaults, and open no file          */
} tt_source_ctx;

/* Reads a `train:` or `val:` map. On error *out is NULL. */
tt_err tt_source_open(tt_node *map, const char *what, const tt_source_ctx *c, tt_source **out);
/* Reads the keys alone and finds the files. Adds to `out` all that decides on what would be
 * decoded: the map with its defaults, and of each file its path, place, size and date. */
tt_err tt_source_look(tt_node *map, const char *what, const tt_source_ctx *c, tt_str *out);
/* Can this `val:` map not be understood without the training set's file? */
bool tt_source_leans(const tt_node *map, const tt_data_want *want);
bool tt_source_is_text(const tt_node *map); /* csv, tsv: labels may be words            */
bool tt_source_is_mapped(
    const tt_node *map); /* tokens: processes have the files' pages in common */
/* Does this key of a map of that format name files? NULL: of any format. */
bool tt_source_is_file(const char *format, const char *key);
const char *tt_source_file_key(const char *format); /* of the samples; NULL: it has no files    */
tt_source *tt_source_new(void);     /* empty                                            */
void tt_source_close(tt_source *s); /* accepts NULL                                     */

/* The format of a map, as its functions see it: the table starts with TT_FORMAT_KEY. */
#define TT_FORMATS "idx|cifar10|cifar100|npy|csv|tsv|libsvm|text|lines|tokens|criteo|dlrm|synth"
#define TT_FORMAT_KEY(type_)                                                                       \
    {                                                                                              \
        "format", TT_CHOICE, offsetof(type_, format), NULL, 0, 0, TT_FORMATS,                      \
            "format of the files"                                                                  \
    }
typedef tt_err tt_source_fn(tt_node *map, const char *what, const tt_source_ctx *c, tt_source *s);
tt_source_fn tt_source_idx, tt_source_npy, tt_source_cifar10, tt_source_cifar100, tt_source_csv,
    tt_source_tsv, tt_source_libsvm, tt_source_text, tt_source_lines, tt_source_tokens,
    tt_source_criteo, tt_source_dlrm, tt_source_synth;

/* ---- Helpers of the formats ---- */

/* Adds to s->words. */
void tt_source_name_word(tt_source *s, const void *word, size_t size);
void tt_source_name_words(tt_source *s, const char *const *word, int count);

/* What a second file asks of this one: adds a value, which it takes over, to s->learned; NULL: it
 * cannot be said. */
void tt_source_tell(tt_source *s, const char *key, json_t *value);
enum { TT_LEARNED_MOST = UINT16_MAX }; /* words or numbers: every checkpoint has them */

/* Zeroed memory that lives as long as the source: count * each bytes, overflow-checked. */
tt_err tt_source_block(tt_source *s, int64_t count, int64_t each, size_t element, void *out);

/* tt_data_expand into the arena. */
tt_err tt_source_expand(tt_arena *a, const tt_node *at, const char *text, const char **out);

/* Finds `name` below c->dir, with or without ".gz", and reads it; `promise` as in
 * tt_file_read_data. Missing: TT_EDATA with the command that gets it, if we know one. *path (in the
 * source's arena) is for messages. */
tt_err tt_source_read(tt_source *s, const tt_source_ctx *c, const tt_node *at, const char *name,
                      tt_promise *promise, tt_bytes *out, const char **path);

/* The files that a name below c->dir stands for, sorted: `*`, `?` and `[...]` in it are matched,
 * unless a file has that very name. TT_EDATA if there is none. */
tt_err tt_source_glob(tt_arena *a, const char *dir, const tt_node *at, const char *name,
                      const char *const **paths, int *count);

/* A decimal number that fills all of s[0 .. n); no units, no locale, finite. */
bool tt_cell_number(const char *s, size_t n, double *out);

/* Checks a label against want->classes; `where` is "row 12" or "line 3, column 'y'". */
tt_err tt_source_label(const tt_data_want *want, const char *name, const char *where, double value,
                       int32_t *out);

/* Files of names that CIFAR's files may have beside them, ended by NULL. */
extern const char *const tt_cifar_names[];

/* ---- Decoders ---- */

/* An array file, IDX or NPY: type, shape, and where the elements start. */
typedef enum tt_element {
    TT_E_BOOL,
    TT_E_U8,
    TT_E_I8,
    TT_E_U16,
    TT_E_I16,
    TT_E_U32,
    TT_E_I32,
    TT_E_U64,
    TT_E_I64,
    TT_E_F16,
    TT_E_F32,
    TT_E_F64,
} tt_element;
typedef struct tt_array {
    const char *name;
    const uint8_t *data; /* first element, in the bytes that were decoded */
    size_t offset;       /* of it in the file                             */
    tt_element type;
    bool swap;    /* big-endian                                    */
    bool fortran; /* first index fastest                           */
    int rank;
    int64_t dim[8];
} tt_array;
tt_err tt_array_idx(const char *name, const uint8_t *data, size_t size, tt_array *out);
tt_promise tt_array_idx_size, tt_array_npy_size; /* of the whole file, by its header */
tt_err tt_array_npy(const char *name, const uint8_t *data, size_t size, tt_array *out);

/* The samples (first dimension) of an array; takes over `file` if it can be used as it is. */
tt_err tt_source_samples(tt_source *s, const tt_array *a, tt_bytes *file);
/* Labels or targets, as wanted, from an array of as many rows. */
tt_err tt_source_answers(tt_source *s, const tt_data_want *want, const tt_array *a);

/* Figures and their masks, of s->kept rows and s->shape: see shapes.c. */
enum { TT_SHAPES = 4 }; /* classes: the ground, circles, squares, triangles */
tt_err tt_shapes_make(tt_source *s, uint64_t key, float noise);

/* Text formats; s->name is set. Zeroed libsvm keys are the defaults; csv reads `map`. */
typedef struct tt_libsvm_keys {
    int format;
    const char *file;
    int64_t features; /* 0: the model's input         */
    int index_base;   /* 0: auto, 1: 0, 2: 1          */
    int labels;       /* 0: auto, 1: 0, 2: 1, 3: sign */
} tt_libsvm_keys;
tt_err tt_libsvm_decode(tt_source *s, const tt_source_ctx *c, const tt_libsvm_keys *k,
                        const char *text, size_t size);
tt_err tt_text_decode(tt_source *s, const tt_source_ctx *c, int kind, bool lines,
                      const uint8_t *text, size_t size);
/* `divide`: what the job says of `rows`, at `rows_at` (may be NULL if it says nothing). */
tt_err tt_criteo_decode(tt_source *s, const tt_source_ctx *c, const tt_node *rows_at,
                        const tt_ints *divide, const char *text, size_t size);
tt_err tt_dlrm_decode(tt_source *s, const tt_source_ctx *c, const tt_node *rows_at,
                      const tt_ints *divide, const uint8_t *data, size_t size);
/* The tokenizer in a folder below c->dir becomes the source's; `at` is where that stands. */
tt_err tt_source_bpe(tt_source *s, const tt_source_ctx *c, const tt_node *at,
                     const char *tokenizer);
/* Text by that tokenizer. */
tt_err tt_text_bpe(tt_source *s, const tt_source_ctx *c, const tt_node *at, const char *tokenizer,
                   bool lines, const tt_bytes *text);
tt_err tt_csv_decode(tt_source *s, tt_node *map, const char *what, const tt_source_ctx *c,
                     bool tabs, const char *text, size_t size);

/* ---- Tokens ---- */

enum { TT_CHARS = 0x110000 }; /* code points of Unicode */
/* The character at text[*at], and moves behind it; -1: that is no UTF-8. */
int32_t tt_char_next(const uint8_t *text, size_t size, size_t *at);
const char *tt_char_name(tt_arena *a, int32_t c); /* as UTF-8 */

/* Begins a source of tokens. `out` (may be NULL): room for as many as the text has bytes. */
tt_err tt_tokens_begin(tt_source *s, const tt_source_ctx *c, size_t text_bytes, uint16_t **out);
/* Does the model have a row, and tell apart, all s->classes of them? */
tt_err tt_tokens_check(const tt_source *s, const tt_source_ctx *c);
tt_err tt_tokens_windows(tt_source *s, int64_t window); /* cuts all tokens into samples */
void tt_source_name_tokens(tt_source *s); /* by their names, or as bytes: sets s->words */
/* n tokens from the at-th on, wherever they are. */
void tt_tokens_get(const tt_source *s, int64_t at, int64_t n, int32_t *out);

/* A file of tokens: llm.c's by its header, else nanoGPT's. Checked as a whole. `first` and `file`
 * are the caller's. */
tt_err tt_shard_decode(const char *name, const uint8_t *data, size_t size, tt_shard *out);
tt_promise tt_shard_size;
/* Maps it. Only one named .gz is inflated: numbers may begin as a gzip file does. */
tt_err tt_shard_read(const char *path, tt_bytes *out);
uint32_t tt_shard_at(const tt_shard *h, int64_t i);
uint32_t tt_shard_most(const tt_shard *h); /* the highest id in it */
enum { TT_SHARD_MAGIC = 20240520, TT_SHARD_MAGIC_WIDE = 20240801, TT_SHARD_HEAD = 1024 };

/* What the file meta.json beside `path` says of tokens, and of those in that file; *there is false
 * without one. Names are in the arena. */
typedef struct tt_tokens_meta {
    bool there;
    const char *path, *kind; /* bytes, chars, gpt2 or another word */
    int vocab;
    const char *const *name; /* (vocab), or NULL */
    double bytes_per_token;  /* 0: unknown */
} tt_tokens_meta;
tt_err tt_tokens_meta_read(tt_arena *a, const char *path, tt_tokens_meta *out);

/* ---- The dataset: sources, how they are split, and what is done to their values ---- */

typedef struct tt_part {
    const tt_source *src; /* NULL: no such split                                          */
    int64_t count;
    bool cut; /* samples are those at first, first + 1 ... of a permutation; else of the source */
    int64_t first;
    uint64_t key;
    const float *a; /* (channels)                                                         */
    const char *describe;
} tt_part;

/* Content in common with other processes: see common.c. */
typedef struct tt_common {
    const char *file; /* it is mapped from; NULL: this process has its own ...           */
    const char *why;  /* ... for this reason; NULL: nobody wanted it in common            */
    void *map;
    size_t size;
    struct tt_claim *claim; /* this process is to make it; else NULL                      */
} tt_common;

struct tt_data {
    tt_data_want want;
    tt_source *train; /* NULL: the validation set alone was opened. Recalled, it has no part */
    tt_source *val;   /* NULL: none, not opened, or cut from train                        */
    tt_part part[2];  /* by tt_split                                                */
    int64_t features;
    /* x = a[channel] * raw + b[channel]; a vector's features are its channels. What is added is
     * the same for both splits; the factor brings each from the numbers of its own file.   */
    int64_t channels, plane;
    const float *b;
    const double *mean, *deviation; /* of tt_data_stats; NULL: nobody has asked            */
    const json_t *learned;          /* while it is opened: instead of the training set     */
    int64_t height, width; /* of a plane, 0 if it is no image                             */
    int crop;
    bool flip;
    uint64_t augment_key;
    int64_t hidden; /* training labels hidden: those the permutation puts before this     */
    uint64_t hide_key;
    tt_data_flow flow;
    tt_arena *arena;
    pthread_mutex_t sha_lock;
    char sha[65];          /* "" until asked for                                          */
    double token_bytes[2]; /* of a split; 0 until asked for                               */
    tt_common common;
};

tt_data *tt_data_new(const tt_data_want *want, uint64_t seed); /* without sources */

/* Sample i of a split among those of its source, and its row in memory. */
static inline int64_t tt_part_sample(const tt_part *p, int64_t i)
{
    return p->cut ? (int64_t)tt_permute(p->key, (uint64_t)p->src->count, (uint64_t)(p->first + i))
                  : p->first + i;
}
static inline int64_t tt_part_row(const tt_part *p, int64_t i)
{
    return tt_part_sample(p, i) % p->src->kept;
}

/* The ids and labels (may be NULL) of a sample of tokens; `moved`: as this pass cuts the text. */
void tt_fill_tokens(const tt_data *d, const tt_part *p, int64_t sample, tt_place at, bool moved,
                    int32_t *ids, int32_t *label);

/* Mean and deviation of each channel over the training samples, before scaling. */
void tt_data_stats(const tt_data *d, double *mean, double *deviation);

/* ---- Without the training set: learned.c ---- */

/* Makes d->train of d->learned: without samples, but with all that a second set asks of it. `data`
 * is the job's. TT_EFORMAT: it is none of ours. */
tt_err tt_data_recall(tt_data *d, tt_node *data);
/* Instead of tt_data_stats. */
tt_err tt_data_recall_stats(const tt_data *d, double *mean, double *deviation);

/* ---- Content in common: common.c ---- */

/* The name of the content these maps would be decoded to, `val` NULL or cut from the other: it
 * changes with whatever the content depends on. `normalize`: there are to be statistics. On error
 * who opens the files will hear the same. */
tt_err tt_common_key(tt_node *train, tt_node *val, const tt_source_ctx *c, uint64_t seed,
                     bool normalize, char key[65]);
/* Takes the content of that name from one of the folders: sets train, val, mean, deviation and sha.
 * If it is not there, either it is ours to make (`claim` is set) or not to be had in common, which
 * the log then says. TT_EIO: who makes it has done nothing for timeout_s. */
tt_err tt_common_find(tt_data *d, const char *folders, const char *key, double timeout_s);
/* Puts what was decoded there, and goes over to it. If that fails the log says so. `key` is that of
 * now: if files have changed meanwhile, it is not for others. Without a claim it does nothing. */
void tt_common_make(tt_data *d, const char *key);
void tt_common_close(tt_common *c); /* accepts a zeroed one */

/* ---- tar, for `tutti data get` ---- */
typedef struct tt_tar {
    const uint8_t *data;
    size_t size, at;
} tt_tar;
typedef struct tt_tar_entry {
    char name[260]; /* with the prefix            */
    char type;      /* '0' a file, '5' a folder   */
    const uint8_t *data;
    size_t size;
} tt_tar_entry;
/* The next member; *more is false at the end. TT_EFORMAT with the offset if the archive is damaged.
 */
tt_err tt_tar_next(tt_tar *t, tt_tar_entry *e, bool *more);
/* The first file of that name, with its folders. TT_EDATA if there is none. */
tt_err tt_tar_find(const uint8_t *data, size_t size, const char *name, tt_tar_entry *e);

#endif
