#define _GNU_SOURCE
#include "test.h"

#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "store/store.h"

#define HEADER "{\"type\":\"header\",\"schema\":1,\"t\":1}\n"

/* Line `n` (from 0) of the journal "j", parsed; NULL if there are fewer. */
static json_t *line_of(int n)
{
    char *line = NULL;
    size_t room = 0;
    json_t *root = NULL;
    FILE *f = fopen("j", "r");

    EXPECT(f != NULL);
    for (int i = 0; getline(&line, &room, f) > 0; i++) {
        if (i != n) continue;
        root = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        EXPECT(root != NULL);
    }
    free(line);
    fclose(f);
    return root;
}

static int line_count(void)
{
    json_t *root;
    int n = 0;

    while ((root = line_of(n))) {
        json_decref(root);
        n++;
    }
    return n;
}

static void write_text(const char *text)
{
    tt_test_write("j", text, strlen(text));
}

TT_TEST(journal, lines_are_json_with_time_and_step)
{
    tt_journal *j;
    json_t *l;

    EXPECT_OK(tt_journal_open("j", -1, &j));
    EXPECT_OK(LINE(j, 100, "train", {"loss", 0.1}, {"lr", 1e-3}, {"samples", 25600.0}));
    l = line_of(0);
    EXPECT_STR("header", json_string_value(json_object_get(l, "type")));
    EXPECT_INT(1, json_integer_value(json_object_get(l, "schema")));
    json_decref(l);
    l = line_of(1); /* there without any flush: a crash costs at most the line being written */
    EXPECT_INT(6, json_object_size(l));
    EXPECT_NEAR(tt_wall_s(), json_number_value(json_object_get(l, "t")), 60);
    EXPECT_INT(100, json_integer_value(json_object_get(l, "step")));
    EXPECT_STR("train", json_string_value(json_object_get(l, "split")));
    EXPECT(json_real_value(json_object_get(l, "loss")) == 0.1);
    EXPECT(json_real_value(json_object_get(l, "lr")) == 1e-3);
    EXPECT_INT(25600, json_integer_value(json_object_get(l, "samples")));
    json_decref(l);
    EXPECT_OK(tt_journal_flush(j));
    tt_journal_close(j);
    tt_journal_close(NULL);
}

TT_TEST(journal, every_number_comes_back_as_it_was)
{
    double x[] = {1.0 / 3, 4.9e-324, 1.7976931348623157e308, -0.1f, 123456789.123456789};
    tt_journal *j;
    json_t *l;

    EXPECT_OK(tt_journal_open("j", -1, &j));
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(LINE(j, i, NULL, {"x", x[i]}));
        l = line_of(i + 1);
        EXPECT(json_number_value(json_object_get(l, "x")) == x[i]);
        EXPECT(json_object_get(l, "split") == NULL);
        json_decref(l);
    }
    tt_journal_close(j);
}

TT_TEST(journal, nan_becomes_null_and_is_named)
{
    tt_journal *j;
    json_t *l, *names;

    EXPECT_OK(tt_journal_open("j", -1, &j));
    EXPECT_OK(LINE(j, 1, "train", {"loss", NAN}, {"lr", 0.5}, {"norm", -INFINITY}));
    l = line_of(1);
    EXPECT(json_is_null(json_object_get(l, "loss")));
    EXPECT(json_is_null(json_object_get(l, "norm")));
    EXPECT_NEAR(0.5, json_number_value(json_object_get(l, "lr")), 0);
    names = json_object_get(l, "nonfinite");
    EXPECT_INT(2, json_array_size(names));
    EXPECT_STR("loss", json_string_value(json_array_get(names, 0)));
    EXPECT_STR("norm", json_string_value(json_array_get(names, 1)));
    json_decref(l);
    tt_journal_close(j);
}

TT_TEST(journal, sentences_of_any_bytes_make_valid_lines)
{
    const char *odd =
        "\"a\\b\"\n\t\x01 \xC3\xA9 \xFF \xC0\x80 \xED\xA0\x80 \xF0\x9F\x8E\xBB \xE2\x82";
    tt_journal *j;
    json_t *l;

    EXPECT_OK(tt_journal_open("j", -1, &j));
    EXPECT_OK(tt_journal_event(j, 7, "resize", odd));
    EXPECT_OK(tt_journal_event(j, -1, "start", "no step yet"));
    l = line_of(1);
    EXPECT_STR("resize", json_string_value(json_object_get(l, "event")));
    EXPECT(!strncmp(json_string_value(json_object_get(l, "text")),
                    "\"a\\b\"\n\t\x01 \xC3\xA9 \xEF\xBF\xBD ", 16));
    EXPECT_INT(7, json_integer_value(json_object_get(l, "step")));
    json_decref(l);
    l = line_of(2);
    EXPECT(json_object_get(l, "step") == NULL);
    json_decref(l);
    tt_journal_close(j);
}

TT_TEST(journal, torn_last_line_is_forgotten)
{
    tt_journal *j;
    json_t *l;

    write_text(HEADER "{\"step\":1}\n{\"st"); /* the process died here */
    EXPECT_OK(tt_journal_open("j", -1, &j));
    EXPECT_FILE("j", HEADER "{\"step\":1}\n");
    EXPECT_OK(LINE(j, 2, "train"));
    tt_journal_close(j);
    EXPECT_INT(3, line_count());
    l = line_of(2);
    EXPECT_INT(2, json_integer_value(json_object_get(l, "step")));
    json_decref(l);
}

TT_TEST(journal, zeros_left_by_a_power_cut_are_forgotten)
{
    static const char text[] = HEADER "{\"step\":1}\n\0\0\0\0\0\n\0\0";
    tt_journal *j;

    tt_test_write("j", text, sizeof text - 1);
    EXPECT_OK(tt_journal_open("j", -1, &j));
    tt_journal_close(j);
    EXPECT_FILE("j", HEADER "{\"step\":1}\n");
}

TT_TEST(journal, nothing_but_a_torn_line_starts_anew)
{
    tt_journal *j;

    write_text("{\"type\":\"hea");
    EXPECT_OK(tt_journal_open("j", 5, &j));
    tt_journal_close(j);
    EXPECT_INT(1, line_count());
}

TT_TEST(journal, a_resumed_run_drops_later_steps)
{
    tt_journal *j;

    write_text(HEADER "{\"step\":10}\n{\"step\":20}\n{\"step\":30}\n{\"step\":40}\n{\"st");
    EXPECT_OK(tt_journal_open("j", 20, &j));
    tt_journal_close(j);
    EXPECT_FILE("j", HEADER "{\"step\":10}\n{\"step\":20}\n");
    EXPECT_OK(tt_journal_open("j", 0, &j));
    tt_journal_close(j);
    EXPECT_FILE("j", HEADER);
}

TT_TEST(journal, later_steps_go_even_from_between_lines_that_stay)
{
    tt_journal *j;

    write_text(HEADER "{\"step\":10}\n{\"step\":30,\"event\":\"x\"}\nnot json\n{\"step\":20}\n");
    EXPECT_OK(tt_journal_open("j", 20, &j));
    tt_journal_close(j);
    EXPECT_FILE("j", HEADER "{\"step\":10}\nnot json\n{\"step\":20}\n");
}

TT_TEST(journal, without_a_step_nothing_is_dropped)
{
    tt_journal *j;

    write_text(HEADER "{\"step\":10}\n{\"step\":20}\n");
    EXPECT_OK(tt_journal_open("j", -1, &j));
    tt_journal_close(j);
    EXPECT_FILE("j", HEADER "{\"step\":10}\n{\"step\":20}\n");
}

TT_TEST(journal, a_line_too_long_is_refused_whole)
{
    static char text[100000];
    tt_journal *j;

    memset(text, 'x', sizeof text - 1);
    EXPECT_OK(tt_journal_open("j", -1, &j));
    EXPECT_ERR(TT_EINVAL, tt_journal_event(j, 1, "what", text));
    EXPECT_OK(tt_journal_event(j, 1, "what", "short"));
    tt_journal_close(j);
    EXPECT_INT(2, line_count());
}

TT_TEST(journal, a_full_disk_tears_no_line)
{
    struct rlimit small, before;
    tt_journal *j;
    tt_err err;

    EXPECT_OK(tt_journal_open("j", -1, &j));
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 70; /* in the middle of the next line */
    setrlimit(RLIMIT_FSIZE, &small);
    err = LINE(j, 1, "train", {"loss", 0.5}, {"accuracy", 0.25}, {"lr", 0.125});
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_INT(TT_EIO, err);
    EXPECT_MESSAGE("write j");
    EXPECT_INT(1, line_count());
    EXPECT_OK(LINE(j, 2, "train", {"loss", 0.5})); /* room again */
    tt_journal_close(j);
    EXPECT_INT(2, line_count());
}

TT_TEST(journal, a_path_that_cannot_be_opened_is_named)
{
    tt_journal *j = (void *)1;

    EXPECT_ERR(TT_EIO, tt_journal_open("absent/j", -1, &j));
    EXPECT_MESSAGE("absent/j");
    EXPECT(j == NULL);
}
