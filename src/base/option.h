/* option: the command line as tables. One table parses the arguments, prints --help with its
 * examples first, and makes the man page and the shell completion, so that they cannot disagree. */
#ifndef TT_OPTION_H
#define TT_OPTION_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"
#include "text.h"

typedef enum tt_opt_type {
    TT_OPT_FLAG,
    TT_OPT_STRING,
    TT_OPT_INT,
    TT_OPT_TIME,
    TT_OPT_LIST,   /* may be repeated */
    TT_OPT_ADDRESS /* a const char *; the value may be left out ("" then): what follows is taken for
                    * it only if it has "://" in it */
} tt_opt_type;

typedef struct tt_opt_list {
    int count;
    const char **item;
} tt_opt_list; /* points into argv */

typedef struct tt_option {
    const char *name; /* "set": --set                                           */
    char letter;      /* 'n': -n; 0 for none                                    */
    tt_opt_type type;
    size_t at;         /* bool, const char *, int64_t, double or tt_opt_list     */
    const char *value; /* what stands for the value in the help: "KEY=VALUE"     */
    const char *help;
} tt_option;

typedef struct tt_command {
    const char *name;            /* "train"                                        */
    const char *args;            /* "JOB", "RUN [STEP]": shown, and checked ...    */
    int args_least, args_most;   /* ... for their number; -1: any                  */
    const char *brief;           /* one line                                       */
    const char *about;           /* paragraphs for help and man page               */
    const char *const *examples; /* "tutti train job.yaml", "train a job", ..., NULL */
    const tt_option *options;
    int option_count;
    size_t out_size;      /* of the struct that is filled ...               */
    const void *defaults; /* ... in a copy of this; NULL: of zeros          */
    int (*run)(const void *opts, int argc, const char **argv); /* returns the exit code */
} tt_command;

/* Parses argv (without program and command name) into *out, which the caller has set to defaults.
 * `--name value`, `--name=value`, `-n4`, `-n 4`, `--` ends options. Positional arguments are moved
 * to rest[0 .. *rest_count), which may be argv itself; argv is reordered. `--help` or `-h` gives
 * TT_ESTOP after setting *help. Unknown options are TT_EINVAL with "did you mean". */
tt_err tt_option_parse(const tt_command *c, int argc, const char **argv, void *out,
                       const char **rest, int *rest_count, bool *help);

void tt_option_help(const tt_command *c, tt_str *out);
void tt_option_man(const tt_command *c, const char *version, tt_str *out);     /* troff */
void tt_option_completion(const tt_command *const *c, int count, tt_str *out); /* bash */

#endif
