/* Jobs as programs open and build them. */
#include "api_help.h"

static const char cnn[] = "name: small\n"
                          "model:\n"
                          "  input: [1, 8, 8]\n"
                          "  layers:\n"
                          "    - conv: {name: first, out: 4, kernel: 3, padding: 1}\n"
                          "    - relu\n"
                          "    - add: {from: [prev, first]}\n"
                          "    - flatten\n"
                          "    - dense: {out: 3}\n"
                          "  loss: softmax_cross_entropy\n"
                          "train:\n"
                          "  epochs: 2\n"
                          "  optimizer: {adam: {lr: 1e-3}}\n";

TT_TEST(api_job, built_in_code_it_is_what_the_file_says)
{
    tutti_job *file, *built, *again;

    OK(tutti_job_parse("small", cnn, &file));
    OK(tutti_job_new("small", &built));
    OK(tutti_job_set(built, "model.input=[1, %d, %d]", 8, 8));
    OK(tutti_job_layer(built, "conv: {name: %s, out: %d, kernel: 3, padding: 1}", "first", 4));
    OK(tutti_job_layer(built, "relu"));
    OK(tutti_job_layer(built, "add: {from: [prev, first]}"));
    OK(tutti_job_layer(built, "flatten"));
    OK(tutti_job_layer(built, "dense: {out: 3}"));
    OK(tutti_job_set(built, "model.loss=softmax_cross_entropy"));
    OK(tutti_job_set(built, "train={epochs: 2, optimizer: {adam: {lr: 1e-3}}}"));
    OK(tutti_job_check(built));
    OK(tutti_job_parse("again", tutti_job_text(built), &again));
    EXPECT_STR(strstr(tutti_job_text(file), "\nmodel:"), strstr(tutti_job_text(built), "\nmodel:"));
    EXPECT_STR(tutti_job_text(built), tutti_job_text(again));
    tutti_job_close(file);
    tutti_job_close(built);
    tutti_job_close(again);
}

TT_TEST(api_job, the_example_of_the_header_works)
{
    tutti_job *job;

    OK(tutti_job_new("cnn", &job));
    tutti_job_set(job, "model.input=[3, 32, 32]");
    for (int i = 0; i < 4; i++) {
        tutti_job_layer(job, "conv: {name: c%d, out: %d, kernel: 3, padding: 1}", i, 16);
        tutti_job_layer(job, "relu");
    }
    tutti_job_layer(job, "add: {from: [prev, c2]}");
    tutti_job_layer(job, "flatten");
    tutti_job_layer(job, "dense: {out: 10}");
    tutti_job_set(job, "model.loss=softmax_cross_entropy");
    tutti_job_set(job, "train={epochs: 3, batch: 64, optimizer: {adam: {lr: 1e-3}}}");
    OK(tutti_job_check(job));
    tutti_job_close(job);
}

TT_TEST(api_job, the_first_mistake_is_told_by_every_later_call)
{
    tutti_options o = {0};
    tutti_trainer *t = (tutti_trainer *)1;
    tutti_job *job;

    OK(tutti_job_new("wrong", &job));
    REFUSED(TUTTI_EINVAL, tutti_job_set(job, "model.input"));
    EXPECT_MESSAGE("no '='");
    REFUSED(TUTTI_EINVAL, tutti_job_layer(job, "relu"));
    EXPECT_MESSAGE("no '='");
    tutti_model_layer(NULL, 0, NULL); /* another error in between */
    REFUSED(TUTTI_EINVAL, tutti_job_check(job));
    EXPECT_MESSAGE("no '='");
    EXPECT(!tutti_job_text(job));
    REFUSED(TUTTI_EINVAL, tutti_trainer_open(job, &o, &t));
    EXPECT_MESSAGE("no '='");
    EXPECT(!t);
    tutti_job_close(job);
}

TT_TEST(api_job, a_misspelt_key_is_shown_where_the_program_wrote_it)
{
    tutti_job *job = points_job();

    OK(tutti_job_layer(job, "dense: {out: 2, bais: false}"));
    REFUSED(TUTTI_EINVAL, tutti_job_check(job));
    EXPECT_MESSAGE("layer:1:17: unknown key 'bais' in dense: did you mean 'bias'?");
    EXPECT_MESSAGE("dense: {out: 2, bais: false}");
    tutti_job_close(job);
}

TT_TEST(api_job, a_layer_that_is_no_layer_is_refused_at_once)
{
    static const char *const wrong[] = {"conv: {out: 3", "[relu, relu]", "conv: 3", " "};

    for (int i = 0; i < TT_COUNT(wrong); i++) {
        tutti_job *job = points_job();
        REFUSED(TUTTI_EINVAL, tutti_job_layer(job, "%s", wrong[i]));
        EXPECT(*tutti_message());
        tutti_job_close(job);
    }
}

TT_TEST(api_job, layers_go_behind_those_of_the_file)
{
    tutti_layer_info l;
    tutti_model *m;
    tutti_job *job;

    OK(tutti_job_parse("small", cnn, &job));
    OK(tutti_job_layer(job, "relu"));
    OK(tutti_job_layer(job, "dense: {out: 7}"));
    OK(tutti_model_open(job, NULL, NULL, &m));
    EXPECT_INT(7, tutti_model_layer_count(m));
    OK(tutti_model_layer(m, 6, &l));
    EXPECT_STR("dense2", l.name);
    EXPECT_INT(7, tutti_shape_count(l.out));
    EXPECT_INT(3 * 7 + 7, l.params);
    tutti_model_close(m);
    tutti_job_close(job);
}

TT_TEST(api_job, a_job_that_has_no_place_for_layers_says_so)
{
    static const char *const texts[] = {"model: 3\n", "model: {layers: relu}\n", "- a\n"};

    for (int i = 0; i < TT_COUNT(texts); i++) {
        tutti_job *job;
        OK(tutti_job_parse("odd", texts[i], &job));
        REFUSED(TUTTI_EINVAL, tutti_job_layer(job, "relu"));
        EXPECT_MESSAGE("odd:1:");
        tutti_job_close(job);
    }
}

TT_TEST(api_job, checking_leaves_it_as_it_was)
{
    tutti_job *job = points_job();
    char *before = strdup(tutti_job_text(job));

    OK(tutti_job_check(job));
    EXPECT_STR(before, tutti_job_text(job));
    EXPECT(!strstr(before, "seed")); /* a default that reading fills in */
    free(before);
    tutti_job_close(job);
}

TT_TEST(api_job, set_reaches_layers_by_name)
{
    tutti_job *job = points_job();
    tutti_model *m;
    tutti_shape s;
    const float *w;

    OK(tutti_job_set(job, "model.layers.dense1.out=%d", 5));
    OK(tutti_model_open(job, NULL, NULL, &m));
    OK(tutti_model_param(m, "dense1.weight", &s, &w));
    EXPECT_INT(5, s.dim[0]);
    EXPECT_INT(2, s.dim[1]);
    tutti_model_close(m);
    tutti_job_close(job);
}

TT_TEST(api_job, any_name_survives_as_text)
{
    static const char *const names[] = {"it's", "a: b", "12", "true", "\xc3\xa4", ""};

    for (int i = 0; i < TT_COUNT(names); i++) {
        tutti_job *job, *again;
        tt_tree *t;
        OK(tutti_job_new(names[i], &job));
        OK(tutti_job_parse("again", tutti_job_text(job), &again));
        EXPECT_OK(tt_tree_parse("t", tutti_job_text(again), strlen(tutti_job_text(again)), &t));
        EXPECT_STR(names[i], tt_tree_get(t, "name")->text);
        tt_tree_close(t);
        tutti_job_close(job);
        tutti_job_close(again);
    }
}

TT_TEST(api_job, files_are_read_and_named_in_messages)
{
    tutti_job *job;

    REFUSED(TUTTI_EINVAL, tutti_job_open("none.yaml", &job));
    EXPECT_MESSAGE("none.yaml");
    EXPECT(!job);
    tt_test_write("bad.yaml", "name: x\nmodel: [\n", 17);
    REFUSED(TUTTI_EINVAL, tutti_job_open("bad.yaml", &job));
    EXPECT_MESSAGE("bad.yaml:");
    tt_test_write("good.yaml", cnn, sizeof cnn - 1);
    OK(tutti_job_open("good.yaml", &job));
    OK(tutti_job_check(job));
    OK(tutti_job_set(job, "model.loss=sofmax_cross_entropy"));
    REFUSED(TUTTI_EINVAL, tutti_job_check(job));
    EXPECT_MESSAGE("did you mean 'softmax_cross_entropy'?");
    tutti_job_close(job);
}

TT_TEST(api_job, null_is_an_error_and_never_a_crash)
{
    tutti_job *job = (tutti_job *)1;

    REFUSED(TUTTI_EINVAL, tutti_job_open(NULL, &job));
    EXPECT(!job);
    REFUSED(TUTTI_EINVAL, tutti_job_open("a", NULL));
    REFUSED(TUTTI_EINVAL, tutti_job_parse(NULL, "", &job));
    REFUSED(TUTTI_EINVAL, tutti_job_parse("a", NULL, &job));
    REFUSED(TUTTI_EINVAL, tutti_job_parse("a", "", NULL));
    REFUSED(TUTTI_EINVAL, tutti_job_new(NULL, &job));
    REFUSED(TUTTI_EINVAL, tutti_job_new("a", NULL));
    REFUSED(TUTTI_EINVAL, tutti_job_set(NULL, "a=1"));
    REFUSED(TUTTI_EINVAL, tutti_job_layer(NULL, "relu"));
    REFUSED(TUTTI_EINVAL, tutti_job_check(NULL));
    EXPECT(!tutti_job_text(NULL));
    tutti_job_close(NULL);
}
