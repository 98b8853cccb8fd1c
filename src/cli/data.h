/* data: what the parts of the command `data` share. */
#ifndef TT_CLI_DATA_H
#define TT_CLI_DATA_H

#include "cli.h"

typedef struct data_opts {
    const char *dir;
    tt_opt_list mirror;
    const char *tokens, *tokenizer, *out, *val, *shard_tokens;
    const char *format;
    int64_t rows;
    bool json, quiet;
} data_opts;

/* Where jobs look unless they say otherwise; below it, the tokenizer that is used unless one is
 * named. */
const char *data_default_dir(void);
void data_default_tokenizer(char path[CLI_PATH]);

tt_err data_inspect(const data_opts *o, int count, const char **files);
/* Files, jobs (*.yaml) and runs. TT_EDATA if one is bad. */
tt_err data_verify(const data_opts *o, int count, const char **names);

#endif
