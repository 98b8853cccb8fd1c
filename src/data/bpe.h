/* bpe: GPT-2's tokens: byte-level byte-pair encoding. Private to data/.
 *
 * A text is cut into pieces (words with the space before them, numbers, signs, white space) by one
 * pattern. A piece begins as its bytes; of all neighbours that may be joined, those of the lowest
 * rank are, until none may. What is left are its tokens. Any bytes can be encoded, and decoding
 * gives them back: bytes that are not UTF-8 are pieces of their own.
 *
 * The tables come from files, in one of two forms:
 *
 *   vocab.bpe (or merges.txt)       "#version: 0.2", then "A B" a line: what is joined, by rank
 *   encoder.json (or vocab.json)    {"token": id, ...}
 *
 *   gpt2.json                       tiktoken's: "bpe_ranks", in which the order of tokens is both
 *
 * One thread at a time: there is a cache of pieces in it. */
#ifndef TT_BPE_H
#define TT_BPE_H

#include "base/base.h"

typedef struct tt_bpe tt_bpe;

/* A folder with the files of either form, or a file of the second. TT_EDATA with file and line (or
 * token) for what is wrong with them; TT_EENV with what to install if this build cannot cut text
 * into pieces. On error *out is NULL. */
tt_err tt_bpe_open(const char *path, tt_bpe **out);
void tt_bpe_close(tt_bpe *b); /* accepts NULL */

/* The files a folder may have, ended by NULL. */
extern const char *const tt_bpe_files[];

int tt_bpe_count(const tt_bpe *b); /* ids are 0 .. count - 1                            */
int tt_bpe_end(const tt_bpe *b);   /* of <|endoftext|>, which no text encodes to; -1: none */

int tt_bpe_size(const tt_bpe *b, int id); /* bytes of text; <|endoftext|> is none */

/* Takes the ids of a piece; what it returns ends the encoding. */
typedef tt_err tt_bpe_put(void *to, const int32_t *id, int count);
tt_err tt_bpe_encode(tt_bpe *b, const void *text, size_t size, tt_bpe_put *put, void *to);

/* Adds the bytes of tokens to `out`. TT_EDATA: there is no such id. */
tt_err tt_bpe_decode(const tt_bpe *b, const int32_t *id, int64_t count, tt_str *out);

/* ---- Tables, as files are read into them ---- */

typedef struct tt_bpe_token {
    const uint8_t *s;
    int n;
} tt_bpe_token;

typedef struct tt_bpe_merge {
    int32_t left, right, joined; /* ids */
} tt_bpe_merge;

typedef struct tt_bpe_table {
    tt_arena *arena; /* of all that follows                  */
    tt_bpe_token *token;
    int count, end;
    int32_t byte[256]; /* ids                                */
    tt_bpe_merge *merge;
    int merges; /* in the order of their rank                */
} tt_bpe_table;

enum { TT_BPE_MOST = 1 << 20, TT_BPE_LONGEST = 256 }; /* tokens; bytes of one */

/* From the contents of files; names are for messages. On error nothing is to be freed. */
tt_err tt_bpe_read_pair(const char *merges_name, const char *merges, size_t merges_size,
                        const char *vocab_name, const char *vocab, size_t vocab_size,
                        tt_bpe_table *out);
tt_err tt_bpe_read_ranks(const char *name, const char *json, size_t size, tt_bpe_table *out);
tt_err tt_bpe_new(tt_bpe_table *t, tt_bpe **out); /* takes the table over, also if it fails */

#endif
