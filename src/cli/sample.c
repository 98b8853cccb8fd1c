/* sample: a model of tokens goes on with a text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct sample_opts {
    tt_opt_list set;
    const char *weights, *prompt, *runs, *warmth;
    double temperature; /* what `warmth` says */
    int64_t tokens, top_k, seed, count, threads;
    bool greedy, json;
} sample_opts;

static const tt_option options[] = {
    {"prompt", 'p', TT_OPT_STRING, offsetof(sample_opts, prompt), "TEXT",
     "what to go on with; by default from the start"},
    {"tokens", 'n', TT_OPT_INT, offsetof(sample_opts, tokens), "N", "how many at most; 200"},
    {"temperature", 0, TT_OPT_STRING, offsetof(sample_opts, warmth), "X",
     "below 1 what is likely comes more often, above 1 less; 0: as --greedy; 1"},
    {"greedy", 0, TT_OPT_FLAG, offsetof(sample_opts, greedy), NULL, "always the likeliest"},
    {"top-k", 'k', TT_OPT_INT, offsetof(sample_opts, top_k), "K",
     "only of the K likeliest; 0: of all"},
    {"seed", 0, TT_OPT_INT, offsetof(sample_opts, seed), "N", "another one, another text; 1"},
    {"count", 0, TT_OPT_INT, offsetof(sample_opts, count), "N", "how many texts; 1"},
    {"weights", 'w', TT_OPT_STRING, offsetof(sample_opts, weights), "FILE",
     "a run, a checkpoint or a safetensors file; best: of a run, its best checkpoint"},
    {"set", 's', TT_OPT_LIST, offsetof(sample_opts, set), "KEY=VALUE", "override a key of the job"},
    {"threads", 't', TT_OPT_INT, offsetof(sample_opts, threads), "N",
     "threads; 0: as the job says"},
    {"runs", 0, TT_OPT_STRING, offsetof(sample_opts, runs), "DIR", "where run folders are; runs"},
    {"json", 0, TT_OPT_FLAG, offsetof(sample_opts, json), NULL, "print JSON, a line for each text"},
};

enum { TOKENS_MOST = 10000000 };

/* What is drawn from. */
typedef struct urn {
    const sample_opts *o;
    uint64_t key, drawn;
    float *score; /* (tt_use_next_most) */
    int *order;
    int count; /* tokens that may be drawn: the model can go on from them, and they mean something
                */
} urn;

static const float *sorted_by;
static int likelier_first(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;

    if (sorted_by[x] != sorted_by[y]) return sorted_by[x] < sorted_by[y] ? 1 : -1;
    return x - y;
}

/* The next token, by the scores there are: the first whose share of the sum goes beyond a random
 * number, likeliest first. */
static int draw(urn *u)
{
    int kept = u->o->top_k > 0 && u->o->top_k < u->count ? (int)u->o->top_k : u->count, k = 0;
    double sum = 0, at, most;

    for (int i = 0; i < u->count; i++) u->order[i] = i;
    sorted_by = u->score;
    qsort(u->order, (size_t)u->count, sizeof *u->order, likelier_first);
    if (u->o->greedy) return u->order[0];
    most = u->score[u->order[0]];
    for (int i = 0; i < kept; i++) sum += exp((u->score[u->order[i]] - most) / u->o->temperature);
    at = tt_philox(u->key, 0, u->drawn++).v[0] * 0x1p-32 * sum;
    for (; k < kept - 1; k++) {
        at -= exp((u->score[u->order[k]] - most) / u->o->temperature);
        if (at < 0) break;
    }
    return u->order[k];
}

/* The tokens so far, of which the model sees the last, and the text that they are. */
typedef struct text {
    int32_t *token;
    int64_t count, room, context;
    tt_str made; /* behind the prompt */
} text;

/* Without prompt and edge a text begins as the one did that the model was trained on. */
static tt_err begin_text(const tt_data *d, const char *prompt, text *t)
{
    int edge = tt_data_edge(d);
    int64_t n = 0, most = (int64_t)strlen(prompt) + 2;
    tt_err err;

    if (!t->token && !(t->token = malloc(tt_mul_size((size_t)(most + t->room), sizeof *t->token))))
        tt_mem_out(0);
    t->count = 0;
    if (edge >= 0) t->token[t->count++] = edge;
    if ((err = tt_data_encode(d, prompt, strlen(prompt), t->token + t->count, &n)))
        return tt_context(err, "--prompt");
    t->count += n;
    if (t->count) return TT_OK;
    t->token[t->count++] = tt_data_first(d);
    tt_data_decode(d, t->token[0], &t->made);
    return TT_OK;
}

/* The bytes of a character that its first one promises; 0: none begins with it. */
static size_t promised(unsigned char c)
{
    return c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
}

/* What of the bytes from *at on is whole characters goes to `out`. Tokens may be parts of them: the
 * beginning of one waits for the rest, unless there is no more to come. What is no character
 * becomes U+FFFD. */
static void put_whole(const char *bytes, size_t size, size_t *at, bool end, tt_str *out)
{
    while (*at < size) {
        size_t left = size - *at, n = tt_utf8_size(bytes + *at, left), have = 1;
        if (n) {
            tt_str_put(out, bytes + *at, n);
            *at += n;
            continue;
        }
        while (have < left && ((unsigned char)bytes[*at + have] & 0xC0) == 0x80) have++;
        bool begun = have == left && left < promised((unsigned char)bytes[*at]);
        if (begun && !end) return;
        tt_str_add(out, "\xEF\xBF\xBD");
        *at += begun ? left : 1;
    }
}

static void show_whole(const text *t, size_t *shown, bool end)
{
    tt_str out = {0};

    put_whole(t->made.data, t->made.size, shown, end, &out);
    fwrite(out.data ? out.data : "", 1, out.size, stdout);
    fflush(stdout);
    tt_str_free(&out);
}

static tt_err write_text(tt_use *u, const tt_data *d, urn *from, text *t, bool show)
{
    size_t shown = 0;
    tt_err err = TT_OK;

    for (int64_t i = 0; i < from->o->tokens; i++) {
        int64_t first = t->count > t->context ? t->count - t->context : 0;
        int token;
        if (show) show_whole(t, &shown, false);
        if ((err = tt_use_next(u, t->token + first, (int)(t->count - first), from->score))) break;
        if ((token = draw(from)) == tt_data_edge(d)) break;
        t->token[t->count++] = token;
        tt_data_decode(d, token, &t->made);
    }
    if (show) show_whole(t, &shown, true);
    return err;
}

static json_t *json_whole(const char *bytes, size_t size)
{
    tt_str whole = {0};
    size_t at = 0;
    json_t *j;

    put_whole(bytes, size, &at, true, &whole);
    j = json_stringn(whole.data ? whole.data : "", whole.size);
    tt_str_free(&whole);
    return j;
}

static tt_err sample(const sample_opts *o, cli_use *u)
{
    const tt_model *m = tt_use_model(u->use);
    const char *prompt = o->prompt ? o->prompt : "";
    text t = {.room = o->tokens, .context = tt_model_row(m).ids};
    urn from = {.o = o};
    int most = tt_use_next_most(u->use);
    const tt_data *d;
    tt_err err = tt_use_text(u->use, &d);

    if (err) return err;
    from.score = malloc((size_t)most * sizeof *from.score);
    from.order = malloc((size_t)most * sizeof *from.order);
    if (!from.score || !from.order) tt_mem_out((size_t)most * sizeof *from.score);
    from.count = tt_data_token_count(d);
    if (from.count > most) from.count = most;
    for (int64_t i = 0; i < o->count && !err; i++) {
        from.key = tt_random_key((uint64_t)(o->seed + i), "sample");
        from.drawn = 0;
        if ((err = begin_text(d, prompt, &t))) break;
        if (!o->json) printf("%s", prompt);
        err = write_text(u->use, d, &from, &t, !o->json);
        if (o->json && !err)
            cli_json_print(
                stdout,
                json_pack("{s:o, s:o, s:I}", "prompt", json_whole(prompt, strlen(prompt)), "text",
                          json_whole(t.made.data, t.made.size), "seed", (json_int_t)(o->seed + i)),
                true);
        else if (!o->json)
            printf("\n");
        tt_str_free(&t.made);
    }
    tt_str_free(&t.made);
    free(t.token);
    free(from.score);
    free(from.order);
    return err;
}

static tt_err check_numbers(const sample_opts *o)
{
    if (!(o->temperature >= 0))
        return tt_fail(TT_EINVAL, "--temperature: '%s' is not a number from 0 on", o->warmth);
    if (o->tokens < 1 || o->tokens > TOKENS_MOST)
        return tt_fail(TT_EINVAL, "--tokens: %lld is not 1 to %d", (long long)o->tokens,
                       TOKENS_MOST);
    if (o->count < 1)
        return tt_fail(TT_EINVAL, "--count: %lld is not 1 or more", (long long)o->count);
    if (o->top_k < 0)
        return tt_fail(TT_EINVAL, "--top-k: %lld is below 0 (0: all)", (long long)o->top_k);
    return TT_OK;
}

static int sample_run(const void *opts, int argc, const char **argv)
{
    sample_opts o = *(const sample_opts *)opts;
    cli_use u = {0};
    tt_err err;

    (void)argc;
    o.temperature = 1;
    if (o.warmth && !tt_parse_number(o.warmth, &o.temperature)) o.temperature = -1;
    if (o.temperature == 0) o.greedy = true;
    if ((err = check_numbers(&o))) return cli_fail(err);
    if ((err = cli_use_open(&(cli_use_opts){.job = argv[0],
                                            .weights = o.weights,
                                            .runs = o.runs,
                                            .set = &o.set,
                                            .threads = o.threads,
                                            .batch = 1},
                            &u)))
        return cli_fail(err);
    if (!(err = tt_use_check_next(u.use))) err = sample(&o, &u);
    cli_use_close(&u);
    return err ? cli_fail(err) : 0;
}

static const sample_opts defaults = {.tokens = 200, .count = 1, .seed = 1};

const tt_command cli_sample = {
    .name = "sample",
    .args = "JOB|RUN",
    .args_least = 1,
    .args_most = 1,
    .brief = "go on with a text",
    .about =
        "Of a model that was trained to say what token comes next: goes on with the prompt, "
        "token by token, each drawn by the model's own probabilities. With the same seed it "
        "is the same text. The model sees the end of the text, as long as its context. A model of "
        "lines ends where a line does.",
    .examples =
        (const char *const[]){"tutti sample last", "from the start",
                              "tutti sample last --prompt 'ROMEO:' -n 500", "go on with that",
                              "tutti sample last --temperature 0.8 --top-k 40",
                              "only what is likely", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(sample_opts),
    .defaults = &defaults,
    .run = sample_run,
};
