/* predict: the outputs of the model, or of one of its layers, for each row of a split or a file. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { CHUNK_ROWS = 4096, CHUNK_FLOATS = 16 << 20 };

typedef struct predict_opts {
    tt_opt_list set;
    const char *data, *weights, *split, *runs, *layer, *format, *out;
    int64_t threads, batch, limit;
    bool partial;
} predict_opts;

static const tt_option options[] = {
    {"data", 'd', TT_OPT_STRING, offsetof(predict_opts, data), "FILE",
     "rows to predict for instead of the job's: a file like the training set's (its images, its "
     "x), "
     "with labels or without"},
    {"weights", 'w', TT_OPT_STRING, offsetof(predict_opts, weights), "FILE",
     "a run, a checkpoint or a safetensors file; a run given instead of a job has its own"},
    {"format", 'f', TT_OPT_STRING, offsetof(predict_opts, format), "csv|jsonl", "csv"},
    {"layer", 0, TT_OPT_STRING, offsetof(predict_opts, layer), "NAME",
     "the output of this layer, for embeddings; 'tutti summary' lists them"},
    {"split", 0, TT_OPT_STRING, offsetof(predict_opts, split), "val|train", "which data; val"},
    {"limit", 'n', TT_OPT_INT, offsetof(predict_opts, limit), "N", "the first N rows; 0: all"},
    {"out", 'o', TT_OPT_STRING, offsetof(predict_opts, out), "FILE",
     "write there; else standard output"},
    {"set", 's', TT_OPT_LIST, offsetof(predict_opts, set), "KEY=VALUE",
     "override a key of the job"},
    {"threads", 't', TT_OPT_INT, offsetof(predict_opts, threads), "N",
     "threads; 0: as the job says"},
    {"batch", 0, TT_OPT_INT, offsetof(predict_opts, batch), "N",
     "samples a thread takes at once; 64"},
    {"partial", 0, TT_OPT_FLAG, offsetof(predict_opts, partial), NULL,
     "take the weights that match and list the rest"},
    {"runs", 0, TT_OPT_STRING, offsetof(predict_opts, runs), "DIR", "where run folders are; runs"},
};

/* What the outputs mean, if they are those of a classifier. */
typedef enum meaning { NUMBERS, LOGITS, LOG_PROBABILITIES, BINARY_LOGIT, PLACES } meaning;

typedef struct table {
    FILE *f;
    bool json;
    meaning meaning;
    tt_split split;
    const tt_data *data; /* knows the names of the classes, the rows and what is true of them */
    int64_t features, targets;
    /* PLACES: pixels or positions, each with a class; how far the numbers of a place and of a class
     * lie from those of the next. */
    int64_t places, classes, place_step, class_step;
} table;

/* Is something said of each pixel of an image, or of each position of a sequence? */
static bool has_places(const tt_model *m, table *t)
{
    tt_shape out = tt_model_output(m);

    if (out.rank == 3 && tt_model_pixel_classes(m) == (int)out.dim[0]) {
        t->classes = out.dim[0];
        t->places = t->class_step = out.dim[1] * out.dim[2];
        t->place_step = 1;
    } else if (out.rank == 2 && tt_model_row(m).labels == out.dim[0] &&
               tt_model_wants(m).classes == (int)out.dim[1]) {
        t->places = out.dim[0];
        t->classes = t->place_step = out.dim[1];
        t->class_step = 1;
    }
    return t->places > 0;
}

static meaning meaning_of(const tt_use *u, const char *layer, table *t)
{
    const tt_model *m = tt_use_model(u);
    const char *loss = tt_model_judged_by(m);

    if (layer) return NUMBERS;
    if (has_places(m, t)) return PLACES;
    if (!strncmp(loss, "softmax", 7)) return LOGITS;
    if (!strncmp(loss, "nll", 3)) return LOG_PROBABILITIES;
    return !strncmp(loss, "bce", 3) && tt_use_features(u) == 1 ? BINARY_LOGIT : NUMBERS;
}

/* The class and how probable the model finds it. */
static int judge(const table *t, const float *y, double *probability)
{
    int best = 0;
    double sum = 0;

    if (t->meaning == BINARY_LOGIT) {
        *probability = 1 / (1 + exp(-fabs((double)y[0])));
        return y[0] > 0;
    }
    for (int64_t i = 1; i < t->features; i++)
        if (y[i] > y[best]) best = (int)i;
    for (int64_t i = 0; i < t->features; i++) sum += exp((double)y[i] - (double)y[best]);
    *probability = t->meaning == LOGITS ? 1 / sum : exp((double)y[best]);
    return best;
}

/* The class of each place, a comma before each but the first. */
static void put_places(const table *t, const float *y)
{
    for (int64_t p = 0; p < t->places; p++, y += t->place_step) {
        int64_t best = 0;
        for (int64_t c = 1; c < t->classes; c++)
            if (y[c * t->class_step] > y[best * t->class_step]) best = c;
        fprintf(t->f, p ? ",%lld" : "%lld", (long long)best);
    }
}

static void put_csv_text(FILE *f, const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, f);
        return;
    }
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"') fputc('"', f);
        fputc(*text, f);
    }
    fputc('"', f);
}

static void put_class(const table *t, int class)
{
    const char *name = tt_data_class_name(t->data, class);
    json_t *text;

    if (!name) {
        fprintf(t->f, "%d", class);
    } else if (t->json) {
        text = json_string(name);
        json_dumpf(text, t->f, JSON_ENCODE_ANY);
        json_decref(text);
    } else {
        put_csv_text(t->f, name);
    }
}

/* What is true comes as the data has it: a class, a number, or several of those. */
typedef enum truth { UNKNOWN, CLASS, ONE_NUMBER, SEVERAL } truth;

static truth truth_in(const table *t)
{
    if (tt_data_labelled(t->data, t->split)) return CLASS;
    if (!tt_data_target(t->data, t->split, 0)) return UNKNOWN;
    if (t->targets > 1) return SEVERAL;
    return t->meaning == BINARY_LOGIT ? CLASS : ONE_NUMBER;
}

/* The true class of a row; -1: not known. */
static int true_class(const table *t, int64_t i)
{
    const float *target = tt_data_target(t->data, t->split, i);

    if (tt_data_labelled(t->data, t->split)) return tt_data_label(t->data, t->split, i);
    return isnan(*target) ? -1 : *target > 0.5f;
}

static void put_header(const table *t)
{
    truth known = truth_in(t);

    if (t->json) return;
    fputs("row", t->f);
    if (known == CLASS || known == ONE_NUMBER) fputs(",label", t->f);
    for (int64_t i = 0; known == SEVERAL && i < t->targets; i++)
        fprintf(t->f, ",label%lld", (long long)i);
    bool places = t->meaning == PLACES;
    if (t->meaning != NUMBERS && !places) fputs(",class,probability", t->f);
    for (int64_t i = 0; i < (places ? t->places : t->features); i++)
        fprintf(t->f, places ? ",class%lld" : ",y%lld", (long long)i);
    fputc('\n', t->f);
}

static void put_csv_truth(const table *t, int64_t i)
{
    const float *target = tt_data_target(t->data, t->split, i);
    truth known = truth_in(t);
    int class;

    if (known == UNKNOWN) return;
    if (known == CLASS) {
        fputc(',', t->f);
        if ((class = true_class(t, i)) >= 0) put_class(t, class);
        return;
    }
    for (int64_t k = 0; k < t->targets; k++) { /* a row without has NAN in the first */
        fputc(',', t->f);
        if (!isnan(target[0])) fprintf(t->f, "%.9g", (double)target[k]);
    }
}

static void put_csv(const table *t, int64_t i, const float *y)
{
    double probability;

    fprintf(t->f, "%lld", (long long)tt_data_row(t->data, t->split, i));
    put_csv_truth(t, i);
    if (t->meaning == PLACES) {
        fputc(',', t->f);
        put_places(t, y);
        fputc('\n', t->f);
        return;
    }
    if (t->meaning != NUMBERS) {
        int class = judge(t, y, &probability);
        fputc(',', t->f);
        put_class(t, class);
        fprintf(t->f, ",%.6g", probability);
    }
    for (int64_t k = 0; k < t->features; k++) fprintf(t->f, ",%.9g", (double)y[k]);
    fputc('\n', t->f);
}

static void put_json_number(FILE *f, double v, const char *format)
{
    if (isfinite(v))
        fprintf(f, format, v);
    else
        fputs("null", f);
}

static void put_json_truth(const table *t, int64_t i)
{
    const float *target = tt_data_target(t->data, t->split, i);
    truth known = truth_in(t);
    int class;

    if (known == UNKNOWN) return;
    fputs(",\"label\":", t->f);
    if (known == CLASS) {
        if ((class = true_class(t, i)) >= 0)
            put_class(t, class);
        else
            fputs("null", t->f);
        return;
    }
    if (known == SEVERAL) fputc('[', t->f);
    for (int64_t k = 0; k < t->targets; k++) {
        if (k) fputc(',', t->f);
        put_json_number(t->f, isnan(target[0]) ? NAN : target[k], "%.9g");
    }
    if (known == SEVERAL) fputc(']', t->f);
}

static void put_json(const table *t, int64_t i, const float *y)
{
    double probability;

    fprintf(t->f, "{\"row\":%lld", (long long)tt_data_row(t->data, t->split, i));
    put_json_truth(t, i);
    if (t->meaning == PLACES) {
        fputs(",\"classes\":[", t->f);
        put_places(t, y);
        fputs("]}\n", t->f);
        return;
    }
    if (t->meaning != NUMBERS) {
        int class = judge(t, y, &probability);
        fputs(",\"class\":", t->f);
        put_class(t, class);
        fputs(",\"probability\":", t->f);
        put_json_number(t->f, probability, "%.6g");
    }
    fputs(",\"y\":[", t->f);
    for (int64_t k = 0; k < t->features; k++) {
        if (k) fputc(',', t->f);
        put_json_number(t->f, y[k], "%.9g");
    }
    fputs("]}\n", t->f);
}

static tt_err write_rows(tt_use *u, int64_t count, table *t)
{
    int64_t chunk = CHUNK_FLOATS / t->features;
    float *y;
    tt_err err = TT_OK;

    if (chunk < 1) chunk = 1;
    if (chunk > CHUNK_ROWS) chunk = CHUNK_ROWS;
    if (chunk > count) chunk = count;
    y = calloc((size_t)chunk, tt_mul_size((size_t)t->features, sizeof *y));
    if (!y) return tt_fail(TT_ENOMEM, "no memory for rows of %lld numbers", (long long)t->features);
    for (int64_t at = 0, n; at < count && !err; at += n) {
        n = count - at < chunk ? count - at : chunk;
        if ((err = tt_use_predict(u, t->split, at, (int)n, y))) break;
        if (!at) {
            t->data = tt_use_data(u);
            put_header(t);
        }
        for (int64_t i = 0; i < n; i++)
            (t->json ? put_json : put_csv)(t, at + i, y + i * t->features);
        if (ferror(t->f)) err = tt_fail(TT_EIO, "write the predictions: %s", strerror(errno));
    }
    free(y);
    return err;
}

static tt_err predict(const predict_opts *o, const char *job, bool json, tt_split split)
{
    table t = {.f = stdout, .json = json, .split = split};
    cli_use u = {0};
    int64_t count = 0;
    tt_err err;

    if ((err = cli_use_open(&(cli_use_opts){.job = job,
                                            .weights = o->weights,
                                            .runs = o->runs,
                                            .layer = o->layer,
                                            .data = o->data,
                                            .set = &o->set,
                                            .partial = o->partial,
                                            .threads = o->threads,
                                            .batch = o->batch},
                            &u)))
        return err;
    if ((err = tt_use_count(u.use, split, &count))) goto out;
    if (o->limit > 0 && o->limit < count) count = o->limit;
    t.meaning = meaning_of(u.use, o->layer, &t);
    t.features = tt_use_features(u.use);
    t.targets = tt_model_wants(tt_use_model(u.use)).targets;
    if (o->out && !(t.f = fopen(o->out, "we"))) {
        err = tt_fail(TT_EIO, "open %s: %s", o->out, strerror(errno));
        goto out;
    }
    err = write_rows(u.use, count, &t);
    if (o->out && fclose(t.f) && !err)
        err = tt_fail(TT_EIO, "write %s: %s", o->out, strerror(errno));
out:
    cli_use_close(&u);
    return err;
}

static int predict_run(const void *opts, int argc, const char **argv)
{
    static const char *const formats[] = {"csv", "jsonl"};
    const predict_opts *o = opts;
    int format = 0;
    tt_split split;
    tt_err err;

    (void)argc;
    if (o->format &&
        (format = cli_choose("predict --format", o->format, formats, TT_COUNT(formats))) < 0)
        return cli_fail(TT_EINVAL);
    if (o->data && o->split)
        return cli_fail(tt_fail(TT_EINVAL, "--split is of the job's data: give it or --data"));
    if (o->limit < 0)
        return cli_fail(tt_fail(TT_EINVAL, "--limit %lld: it is negative", (long long)o->limit));
    if (!(err = cli_split(o->split, &split))) err = predict(o, argv[0], format == 1, split);
    return err ? cli_fail(err) : 0;
}

const tt_command cli_predict = {
    .name = "predict",
    .args = "JOB|RUN",
    .args_least = 1,
    .args_most = 1,
    .brief = "write the model's output for each row",
    .about =
        "Writes a line for each row of the job's validation data or, with --data, of a file in the "
        "training set's format, which needs no labels. The columns: row, its number in the file "
        "from 0 (a header does not count; rows that were split off come in an order of their own); "
        "label, what is true of it, where the data says; for a classifier class and probability; "
        "the outputs y0, y1, ... as the last layer gives them, or those of --layer. Where pixels "
        "or positions are judged there are the classes of all of them, in order, instead. With "
        "--data the training data is not read: a run knows its words, means and deviations, unless "
        "there are very many. Weights from elsewhere do not.",
    .examples =
        (const char *const[]){"tutti predict last --data new.csv", "new rows, by the newest run",
                              "tutti predict last -o out.csv", "the validation data, as CSV",
                              "tutti predict last -f jsonl -n 10", "ten rows as JSON lines",
                              "tutti predict last --layer dense1", "a layer's output: embeddings",
                              NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(predict_opts),
    .run = predict_run,
};
