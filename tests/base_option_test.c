#define _GNU_SOURCE
#include "test.h"

#include <stddef.h>
#include <unistd.h>

typedef struct opts {
    bool quiet, force;
    const char *resume;
    int64_t workers;
    double timeout_s;
    tt_opt_list set, tag;
} opts;

static const tt_option options[] = {
    {"quiet", 'q', TT_OPT_FLAG, offsetof(opts, quiet), NULL, "print nothing"},
    {"force", 'f', TT_OPT_FLAG, offsetof(opts, force), NULL, "do it anyway"},
    {"resume", 0, TT_OPT_STRING, offsetof(opts, resume), "RUN", "go on with a run"},
    {"workers", 'n', TT_OPT_INT, offsetof(opts, workers), "N", "processes"},
    {"timeout", 't', TT_OPT_TIME, offsetof(opts, timeout_s), "TIME",
     "how long a silent worker is waited for before the world is formed anew without it"},
    {"set", 's', TT_OPT_LIST, offsetof(opts, set), "KEY=VALUE", "change the job; may be repeated"},
    {"tag", 0, TT_OPT_LIST, offsetof(opts, tag), "WORD", "label the run; may be repeated"},
};
static const char *const examples[] = {"tutti train job.yaml", "train a job",
                                       "tutti train -n 4 job.yaml", "on four processes", NULL};
static const tt_command train = {
    "train",
    "JOB [RUN]",
    1,
    2,
    "train a model",
    "Trains the model that the job file describes, on as many processes as asked for, whatever "
    "happens "
    "to them meanwhile.\n\n.A line that begins with a dot and a \\ backslash.",
    examples,
    options,
    TT_COUNT(options),
    sizeof(opts),
    NULL};
static const tt_command runs = {"runs", "", 0, 0, "list the runs", NULL, NULL, NULL, 0, 0, NULL};

typedef struct result {
    opts o;
    const char *argv[32], *rest[32];
    int rest_count;
    bool help;
} result;

/* Words are separated by blanks; r keeps them. */
static tt_err run(const tt_command *c, const char *line, result *r)
{
    static char words[512];
    int argc = 0;

    *r = (result){.o = {.workers = 1, .resume = "auto"}};
    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " ")) r->argv[argc++] = w;
    return tt_option_parse(c, argc, r->argv, &r->o, r->rest, &r->rest_count, &r->help);
}

TT_TEST(option, every_way_to_write_a_value)
{
    static const char *const lines[] = {"-n4 job",         "-n 4 job", "--workers 4 job",
                                        "--workers=4 job", "job -n4",  "-qfn4 job",
                                        "-n 9 job -n 4"};
    result r;

    for (int i = 0; i < TT_COUNT(lines); i++) {
        EXPECT_OK(run(&train, lines[i], &r));
        EXPECT_INT(4, r.o.workers);
        EXPECT_INT(1, r.rest_count);
        EXPECT_STR("job", r.rest[0]);
        EXPECT_STR("auto", r.o.resume); /* what the caller had set */
    }
    EXPECT_OK(run(&train, "-qfn4 job", &r));
    EXPECT(r.o.quiet && r.o.force);
    EXPECT_OK(run(&train, "--quiet --resume= --timeout 10m job", &r));
    EXPECT(r.o.quiet && !r.o.force);
    EXPECT_STR("", r.o.resume);
    EXPECT_NEAR(600, r.o.timeout_s, 0);
    EXPECT_OK(run(&train, "-q -- -n --help", &r));
    EXPECT_INT(2, r.rest_count);
    EXPECT_STR("-n", r.rest[0]);
    EXPECT_STR("--help", r.rest[1]);
    EXPECT_OK(run(&train, "-", &r));
    EXPECT_STR("-", r.rest[0]);
}

TT_TEST(option, an_address_may_be_left_out)
{
    static const tt_option listen[] = {
        {"listen", 0, TT_OPT_ADDRESS, offsetof(opts, resume), "[tcp://*:PORT]", "be reached"}};
    tt_command c = train;
    result r;

    c.options = listen;
    c.option_count = 1;
    EXPECT_OK(run(&c, "--listen tcp://*:4444 job", &r));
    EXPECT_STR("tcp://*:4444", r.o.resume);
    EXPECT_OK(run(&c, "--listen job", &r));
    EXPECT_STR("", r.o.resume);
    EXPECT_STR("job", r.rest[0]);
    EXPECT_OK(run(&c, "job --listen", &r));
    EXPECT_STR("", r.o.resume);
    EXPECT_OK(run(&c, "--listen=here job", &r));
    EXPECT_STR("here", r.o.resume);
    EXPECT_OK(run(&c, "job", &r));
    EXPECT_STR("auto", r.o.resume);
}

TT_TEST(option, lists_keep_their_order_and_stay_apart)
{
    result r;

    EXPECT_OK(run(&train, "--set a=1 job --tag x -sb=2 --tag=y --set c=3", &r));
    EXPECT_INT(3, r.o.set.count);
    EXPECT_STR("a=1", r.o.set.item[0]);
    EXPECT_STR("b=2", r.o.set.item[1]);
    EXPECT_STR("c=3", r.o.set.item[2]);
    EXPECT_INT(2, r.o.tag.count);
    EXPECT_STR("x", r.o.tag.item[0]);
    EXPECT_STR("y", r.o.tag.item[1]);
    EXPECT_STR("job", r.rest[0]);
}

TT_TEST(option, the_rest_may_be_argv_itself)
{
    const char *argv[] = {"-sa", "one", "--set=b", "two"};
    opts o = {0};
    int n;
    bool help;

    EXPECT_OK(tt_option_parse(&train, 4, argv, &o, argv, &n, &help));
    EXPECT_INT(2, n);
    EXPECT_STR("one", argv[0]);
    EXPECT_STR("two", argv[1]);
    EXPECT_INT(2, o.set.count);
    EXPECT_STR("a", o.set.item[0]);
    EXPECT_STR("b", o.set.item[1]);
}

TT_TEST(option, what_is_wrong_is_named)
{
    static const struct {
        const char *line, *want;
    } bad[] = {
        {"--reusme x job", "unknown option '--reusme': did you mean '--resume'?"},
        {"--wokers=3 job", "unknown option '--wokers': did you mean '--workers'?"},
        {"--hepl job", "did you mean '--help'?"},
        {"--xyzzy job", "unknown option '--xyzzy': see 'tutti train --help'"},
        {"-x job", "unknown option '-x'"},
        {"-qx job", "unknown option '-x'"},
        {"job -n", "--workers needs a value: --workers N"},
        {"job --set", "--set needs a value: --set KEY=VALUE"},
        {"--quiet=yes job", "--quiet takes no value"},
        {"-n x job", "--workers N: 'x' is not a whole number"},
        {"-n 1.5 job", "'1.5' is not a whole number"},
        {"--workers= job", "'' is not a whole number"},
        {"--timeout 5y job", "--timeout TIME: '5y' is not a time"},
        {"", "'tutti train' needs JOB [RUN]: none was given"},
        {"a b c", "'tutti train' takes JOB [RUN]: 'c' is too many"},
    };
    result r;

    for (int i = 0; i < TT_COUNT(bad); i++) {
        EXPECT_ERR(TT_EINVAL, run(&train, bad[i].line, &r));
        EXPECT_MESSAGE(bad[i].want);
        EXPECT(!r.help && r.rest_count == 0);
    }
    EXPECT_ERR(TT_EINVAL, run(&runs, "x", &r));
    EXPECT_MESSAGE("'tutti runs' takes no arguments: 'x' is too many");
    EXPECT_OK(run(&runs, "", &r));
}

TT_TEST(option, help_is_given_whatever_else_is_missing)
{
    result r;

    EXPECT_ERR(TT_ESTOP, run(&train, "--help", &r));
    EXPECT(r.help);
    EXPECT_ERR(TT_ESTOP, run(&train, "-qh", &r));
    EXPECT(r.help);
    EXPECT_ERR(TT_ESTOP, run(&runs, "-h", &r));
    EXPECT(r.help);
}

TT_TEST(option, help_shows_examples_first_and_fits_the_screen)
{
    tt_str s = {0};

    tt_option_help(&train, &s);
    EXPECT_STR("tutti train: train a model\n"
               "\n"
               "Examples:\n"
               "  tutti train job.yaml        train a job\n"
               "  tutti train -n 4 job.yaml   on four processes\n"
               "\n"
               "Usage: tutti train [options] JOB [RUN]\n"
               "\n"
               "Trains the model that the job file describes, on as many processes as asked\n"
               "for, whatever happens to them meanwhile.\n"
               "\n"
               ".A line that begins with a dot and a \\ backslash.\n"
               "\n"
               "Options:\n"
               "  -q, --quiet             print nothing\n"
               "  -f, --force             do it anyway\n"
               "      --resume RUN        go on with a run\n"
               "  -n, --workers N         processes\n"
               "  -t, --timeout TIME      how long a silent worker is waited for before the\n"
               "                          world is formed anew without it\n"
               "  -s, --set KEY=VALUE     change the job; may be repeated\n"
               "      --tag WORD          label the run; may be repeated\n"
               "  -h, --help              show this\n",
               s.data);
    tt_str_free(&s);
}

TT_TEST(option, the_man_page_pleases_groff)
{
    tt_str s = {0};

    tt_option_man(&train, "0.1.0", &s);
    EXPECT(strstr(s.data, ".TH TUTTI-TRAIN 1 \"\" \"Tutti 0.1.0\""));
    EXPECT(strstr(s.data, "\n\\&.A line that begins with a dot and a \\e backslash.\n"));
    EXPECT(strstr(s.data, "\\fB\\-s\\fR, \\fB\\-\\-set\\fR \\fIKEY=VALUE\\fR\n"));
    tt_test_write("train.1", s.data, s.size);
    tt_str_free(&s);
    if (system("command -v groff >/dev/null")) tt_test_skip("no groff");
    EXPECT_INT(0, system("groff -man -ww -z train.1 2>warnings && test ! -s warnings"));
}

TT_TEST(option, bash_completes_commands_options_and_files)
{
    static const char *const script =
        ". ./completion\n"
        "try() { COMP_WORDS=(tutti \"$@\"); COMP_CWORD=$#; COMPREPLY=(); _tutti; echo "
        "\"${COMPREPLY[*]}\"; }\n"
        "try tr; try train --re; try train --; try runs --; try train jo\n";
    static const tt_command *const commands[] = {&train, &runs};
    tt_str s = {0};

    tt_option_completion(commands, 2, &s);
    tt_test_write("completion", s.data, s.size);
    tt_test_write("try", script, strlen(script));
    tt_test_write("job.yaml", "", 0);
    tt_str_free(&s);
    if (system("command -v bash >/dev/null")) tt_test_skip("no bash");
    EXPECT_INT(0, system("bash try >got 2>&1"));
    EXPECT_FILE("got", "train\n"
                       "--resume\n"
                       "--quiet --force --resume --workers --timeout --set --tag --help\n"
                       "--help\n"
                       "job.yaml\n");
}
