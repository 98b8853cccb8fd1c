/* logs: what the workers of a run have logged, of one or of all by time, to the end of the run. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

typedef struct logs_opts {
    const char *runs, *rank, *lines;
    bool follow;
} logs_opts;

static const tt_option options[] = {
    {"rank", 0, TT_OPT_STRING, offsetof(logs_opts, rank), "K|all",
     "the log of this rank, or of all, merged by time; 0"},
    {"follow", 'f', TT_OPT_FLAG, offsetof(logs_opts, follow), NULL,
     "go on printing until the run ends"},
    {"lines", 'n', TT_OPT_STRING, offsetof(logs_opts, lines), "LINES",
     "only so many of the last lines; all"},
    {"runs", 0, TT_OPT_STRING, offsetof(logs_opts, runs), "DIR", "where run folders are; runs"},
};

static const long PAUSE_NS = 200000000;

typedef struct source {
    int rank;
    off_t at; /* printed up to here */
} source;

typedef struct reader {
    char run[CLI_PATH];
    source *source;
    int count;
} reader;

/* A message: a line that begins with a time, and those after it that do not. */
typedef struct message {
    const char *text;
    size_t size;
    int rank;
} message;

typedef struct batch {
    message *message;
    int count, room;
    char **text; /* of the sources, freed in the end */
} batch;

static void path_of(const char *run, int rank, char path[CLI_PATH + 32])
{
    if (rank)
        snprintf(path, CLI_PATH + 32, "%s/rank-%05d.log", run, rank);
    else
        snprintf(path, CLI_PATH + 32, "%s/log.txt", run);
}

/* ---- which ---- */

static void add_source(reader *r, int rank)
{
    for (int i = 0; i < r->count; i++)
        if (r->source[i].rank == rank) return;
    r->source = realloc(r->source, (size_t)(r->count + 1) * sizeof *r->source);
    if (!r->source) tt_mem_out(sizeof *r->source);
    r->source[r->count++] = (source){.rank = rank};
}

/* There may be more of them as the run goes on. */
static tt_err find_all(reader *r)
{
    char **names;
    int count, rank, end;
    tt_err err;

    if ((err = tt_dir_list(r->run, &names, &count))) return err;
    for (int i = 0; i < count; i++) {
        if (!strcmp(names[i], "log.txt")) add_source(r, 0);
        if (sscanf(names[i], "rank-%5d.log%n", &rank, &end) == 1 && !names[i][end])
            add_source(r, rank);
    }
    tt_dir_free(names, count);
    return TT_OK;
}

static tt_err find_one(reader *r, int64_t rank)
{
    char path[CLI_PATH + 32];
    int most = -1;
    tt_err err;

    path_of(r->run, (int)rank, path);
    if (tt_file_exists(path)) {
        add_source(r, (int)rank);
        return TT_OK;
    }
    if ((err = find_all(r))) return err;
    for (int i = 0; i < r->count; i++)
        if (r->source[i].rank > most) most = r->source[i].rank;
    if (most < 0) return tt_fail(TT_EINVAL, "run %s has no log", r->run);
    return tt_fail(TT_EINVAL, "run %s has no log of rank %lld here: there are ranks 0 to %d",
                   r->run, (long long)rank, most);
}

/* ---- reading ---- */

static bool begins(const char *line)
{
    return isdigit((unsigned char)line[0]) && strlen(line) > 24 && line[4] == '-' &&
           line[10] == 'T' && line[23] == 'Z';
}

static void add_message(batch *b, const char *text, size_t size, int rank)
{
    if (b->count == b->room) {
        b->room = b->room ? 2 * b->room : 256;
        b->message = realloc(b->message, (size_t)b->room * sizeof *b->message);
        if (!b->message) tt_mem_out((size_t)b->room * sizeof *b->message);
    }
    b->message[b->count++] = (message){text, size, rank};
}

/* Whole lines alone: what is being written comes the next time. */
static char *read_new(source *s, const char *run)
{
    char path[CLI_PATH + 32], *text, *end;
    struct stat st;
    ssize_t n = 0;
    int fd;

    path_of(run, s->rank, path);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) return NULL;
    if (fstat(fd, &st)) st.st_size = 0;
    if (st.st_size < s->at) s->at = 0; /* it was begun anew */
    if (!(text = malloc((size_t)(st.st_size - s->at) + 1)))
        tt_mem_out((size_t)(st.st_size - s->at) + 1);
    if (st.st_size > s->at) n = pread(fd, text, (size_t)(st.st_size - s->at), s->at);
    close(fd);
    end = n > 0 ? memrchr(text, '\n', (size_t)n) : NULL;
    text[end ? end + 1 - text : 0] = 0;
    s->at += end ? end + 1 - text : 0;
    return text;
}

static void split(batch *b, const char *text, int rank)
{
    for (const char *line = text, *next; *line; line = next) {
        next = strchr(line, '\n') + 1;
        while (*next && !begins(next)) next = strchr(next, '\n') + 1;
        add_message(b, line, (size_t)(next - line), rank);
    }
}

/* By time, which is at the beginning; of one rank they keep their order. */
static int by_time(const void *a, const void *b)
{
    const message *x = a, *y = b;
    int order = begins(x->text) && begins(y->text) ? strncmp(x->text, y->text, 24) : 0;

    if (order) return order;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->text < y->text ? -1 : x->text > y->text;
}

/* What has come since the last time, added to `out`. */
static void gather(reader *r, tt_str *out)
{
    batch b = {.text = calloc((size_t)r->count + 1, sizeof *b.text)};

    if (!b.text) tt_mem_out((size_t)r->count * sizeof *b.text);
    for (int i = 0; i < r->count; i++)
        if ((b.text[i] = read_new(&r->source[i], r->run))) split(&b, b.text[i], r->source[i].rank);
    if (b.count) qsort(b.message, (size_t)b.count, sizeof *b.message, by_time);
    for (int i = 0; i < b.count; i++) tt_str_put(out, b.message[i].text, b.message[i].size);
    for (int i = 0; i < r->count; i++) free(b.text[i]);
    free(b.text);
    free(b.message);
}

static const char *last_lines(const tt_str *text, int64_t lines)
{
    size_t from = text->size;

    while (from > 0 && lines >= 0)
        if (text->data[--from] == '\n' && --lines < 0) return text->data + from + 1;
    return text->data;
}

static tt_err print_all(reader *r, bool all, bool follow, int64_t lines)
{
    tt_str text = {0};
    cli_boss boss;
    tt_err err = TT_OK;

    do {
        cli_boss_find(r->run, &boss); /* before reading: what comes after its end is nothing */
        if (all) err = find_all(r);
        gather(r, &text);
        if (text.size) fputs(lines >= 0 ? last_lines(&text, lines) : text.data, stdout);
        fflush(stdout);
        text.size = 0;
        lines = -1;
        if (follow && boss.kind != CLI_NOBODY)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    } while (!err && follow && boss.kind != CLI_NOBODY && !ferror(stdout));
    tt_str_free(&text);
    return err;
}

static int logs_run(const void *opts, int argc, const char **argv)
{
    const logs_opts *o = opts;
    bool all = o->rank && !strcmp(o->rank, "all");
    int64_t rank = 0, lines = -1;
    reader r = {.count = 0};
    tt_err err;

    (void)argc;
    if (o->rank && !all && (!tt_parse_int(o->rank, &rank) || rank < 0 || rank > 65535))
        return cli_fail(tt_fail(TT_EINVAL, "--rank: '%s' is neither a rank nor all", o->rank));
    if (o->lines && (!tt_parse_int(o->lines, &lines) || lines < 0))
        return cli_fail(tt_fail(TT_EINVAL, "--lines: '%s' is no number of lines", o->lines));
    if (!(err = cli_run_find(argv[0], o->runs, r.run)) &&
        !(err = all ? find_all(&r) : find_one(&r, rank)))
        err = print_all(&r, all, o->follow, lines);
    free(r.source);
    return err ? cli_fail(err) : 0;
}

const tt_command cli_logs = {
    .name = "logs",
    .args = "RUN|last",
    .args_least = 1,
    .args_most = 1,
    .brief = "print the logs of a run",
    .about = "Each worker logs to the run folder: rank 0 to log.txt, the others to "
             "rank-00001.log and so on, if they see that folder.",
    .examples = (const char *const[]){"tutti logs last", "of rank 0", "tutti logs last -f -n 10",
                                      "the last lines, and those to come",
                                      "tutti logs last --rank all", "of all, by time", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(logs_opts),
    .run = logs_run,
};
