/* GPT-2 as Hugging Face has it: what it says here is what it says there, and what is written here
 * is what would be read there. tests/golden/make_hf.py made the model and, with PyTorch, its
 * logits. */
#include "golden.h"
#include "test.h"
#include "train/train.h"

#include <sys/stat.h>
#include <unistd.h>

enum { VOCAB = 13, CONTEXT = 7, TEXTS = 2 };

#define GPT "vocab: 13, layers: 2, heads: 3, width: 12, positions: 10"

static const char tiny[] = "name: t\nmodel:\n  input: {ids: 7}\n  layers: [gpt: {" GPT
                           "}]\n  loss: softmax_cross_entropy\n";

static const char *golden_path(const char *file)
{
    char path[200];

    snprintf(path, sizeof path, "tests/golden/gpt2-tiny%s", file);
    return tt_test_source(path);
}

/* What `u` is made of lives as long as its job. */
typedef struct used {
    tt_tree *job;
    tt_use *u;
} used;

static void close_use(used *x)
{
    tt_use_close(x->u);
    tt_tree_close(x->job);
}

static tt_err open_use(const char *job, const char *weights, bool partial, used *x)
{
    tt_err err;

    EXPECT_OK(tt_tree_parse("job", job, strlen(job), &x->job));
    EXPECT_OK(tt_tree_set(x->job, "train={steps: 1, optimizer: {sgd: {lr: 1}}}"));
    x->u = (void *)1;
    err = tt_use_open(
        &(tt_use_opts){.job = x->job, .weights = weights, .partial = partial, .threads = 1}, &x->u);
    if (!err) return TT_OK;
    EXPECT(!x->u);
    close_use(x);
    return err;
}

static used use(const char *job, const char *weights)
{
    used x;

    EXPECT_OK(open_use(job, weights, false, &x));
    return x;
}

static bool same_weights(used x, used y)
{
    const tt_use *a = x.u, *b = y.u;
    size_t bytes = (size_t)tt_model_size(tt_use_model(a)) * sizeof(float);

    EXPECT_INT(tt_model_size(tt_use_model(a)), tt_model_size(tt_use_model(b)));
    return !memcmp(tt_use_params(a), tt_use_params(b), bytes);
}

/* ---- Reading ---- */

static void expect_logits(const tt_kernels *k, const char *weights)
{
    tt_tree *tree;
    tt_model *m;
    tt_run *r;
    tt_yield y;
    int32_t id[TEXTS * CONTEXT];
    uint64_t place[2 * TEXTS] = {0};
    float out[TEXTS * CONTEXT * VOCAB];
    FILE *f = fopen(golden_path("/logits.txt"), "r");
    int64_t features;

    EXPECT(f);
    EXPECT_OK(tt_tree_parse("job", tiny, strlen(tiny), &tree));
    EXPECT_OK(tt_model_open(tt_tree_get(tree, "model"), &(tt_model_opts){.kernels = k}, &m));
    float *w = tt_block_alloc((size_t)tt_model_size(m) * sizeof *w);
    EXPECT_OK(tt_weights_load(weights, NULL, false, m, w));
    tt_model_bind(m, w);
    tt_model_refresh(m, 0, 1);
    for (int i = 0; i < TEXTS * CONTEXT; i++) id[i] = (int32_t)(golden_bits("id", "", i) % VOCAB);
    EXPECT_OK(tt_run_open(m, TEXTS, false, &r));
    tt_batch b = {.n = TEXTS, .ids = id, .place = place};
    tt_run_begin(r, TT_PASS_PREDICT, &b, NULL, false, 1);
    do tt_run_advance(r, &y);
    while (y.kind != TT_PASS_DONE);
    EXPECT_OK(tt_run_output(r, NULL, out, &features));
    EXPECT_INT(CONTEXT * VOCAB, features);
    for (int i = 0; i < TEXTS * CONTEXT * VOCAB; i++) {
        double want;
        EXPECT_INT(1, fscanf(f, "%lf", &want));
        EXPECT_NEAR(want, out[i], 1e-5);
    }
    fclose(f);
    tt_run_close(r);
    tt_block_free(w, (size_t)tt_model_size(m) * sizeof *w);
    tt_model_close(m);
    tt_tree_close(tree);
}

TT_TEST(hf, logits_are_those_of_pytorch)
{
    const tt_kernels *const *all;
    int count = tt_kernels_all(&all);
    char folder[4096];

    snprintf(folder, sizeof folder, "%s", golden_path(""));
    for (int i = 0; i < count; i++) expect_logits(all[i], folder);
    snprintf(folder, sizeof folder, "%s", golden_path("/model.safetensors"));
    expect_logits(NULL, folder);
}

/* The golden file's tensors, to be changed and written again. */
typedef struct copy {
    tt_tensors *file;
    tt_entry e[64];
    char name[64][80];
    int count;
} copy;

static void copy_open(copy *c)
{
    memset(c, 0, sizeof *c);
    EXPECT_OK(tt_tensors_open(golden_path("/model.safetensors"), &c->file));
    for (int i = 0; i < tt_tensors_count(c->file); i++)
        c->e[c->count++] = *tt_tensors_at(c->file, i);
}

static tt_entry *copy_find(copy *c, const char *name)
{
    for (int i = 0; i < c->count; i++)
        if (!strcmp(c->e[i].name, name)) return &c->e[i];
    FAIL("no tensor %s", name);
}

static void copy_drop(copy *c, const char *name)
{
    *copy_find(c, name) = c->e[--c->count];
}

static void copy_write(copy *c, const char *path)
{
    EXPECT_OK(tt_tensors_write(path, c->e, c->count, NULL, NULL));
    tt_tensors_close(c->file);
}

TT_TEST(hf, names_may_lack_their_prefix_and_the_head_may_be_there)
{
    used want = use(tiny, golden_path("")), got;
    copy c;

    copy_open(&c);
    for (int i = 0; i < c.count; i++) c.e[i].name += strlen("transformer.");
    copy_write(&c, "bare.safetensors");
    got = use(tiny, "bare.safetensors");
    EXPECT(same_weights(want, got));
    close_use(&got);

    copy_open(&c); /* the head beside the table that it is */
    c.e[c.count] = *copy_find(&c, "transformer.wte.weight");
    c.e[c.count++].name = "lm_head.weight";
    copy_write(&c, "both.safetensors");
    got = use(tiny, "both.safetensors");
    EXPECT(same_weights(want, got));
    close_use(&got);

    copy_open(&c); /* or instead of it */
    copy_find(&c, "transformer.wte.weight")->name = "lm_head.weight";
    copy_write(&c, "head.safetensors");
    got = use(tiny, "head.safetensors");
    EXPECT(same_weights(want, got));
    close_use(&got);
    close_use(&want);
}

/* nanoGPT calls them as Hugging Face does, and has them as they are here. */
TT_TEST(hf, shapes_tell_which_way_weights_lie)
{
    static const char *const names[] = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};
    used want = use(tiny, golden_path("")), got;
    float *turned[8];
    int n = 0;
    copy c;

    copy_open(&c);
    for (int h = 0; h < 2; h++)
        for (int k = 0; k < 4; k++) {
            char name[80];
            snprintf(name, sizeof name, "transformer.h.%d.%s.weight", h, names[k]);
            tt_entry *e = copy_find(&c, name);
            int64_t rows = e->shape[0], columns = e->shape[1];
            float *to = turned[n++] = malloc((size_t)e->bytes), *from = malloc((size_t)e->bytes);
            EXPECT(to && from);
            EXPECT_OK(tt_entry_floats(e, from, rows * columns));
            for (int64_t i = 0; i < rows * columns; i++)
                to[i % columns * rows + i / columns] = from[i];
            free(from);
            e->data = to;
            e->shape[0] = columns, e->shape[1] = rows;
        }
    copy_write(&c, "nano.safetensors");
    got = use(tiny, "nano.safetensors");
    EXPECT(same_weights(want, got));
    close_use(&got);
    close_use(&want);
    while (n) free(turned[--n]);
}

/* A buffer of something that the model has not. */
TT_TEST(hf, what_is_no_number_is_listed)
{
    static const uint8_t mask[4] = {1, 1, 1, 1};
    used got;
    copy c;

    copy_open(&c);
    c.e[c.count++] = (tt_entry){.name = "transformer.h.0.crossattention.bias",
                                .type = TT_U8,
                                .rank = 1,
                                .shape = {4},
                                .data = mask,
                                .bytes = 4};
    copy_write(&c, "cross.safetensors");
    EXPECT_ERR(TT_ECKPT, open_use(tiny, "cross.safetensors", false, &got));
    EXPECT_MESSAGE("not in the model");
    EXPECT_MESSAGE("crossattention.bias");
    EXPECT_OK(open_use(tiny, "cross.safetensors", true, &got));
    close_use(&got);
}

TT_TEST(hf, smaller_numbers_are_widened)
{
    used want = use(tiny, golden_path("")), got;
    uint16_t *half = calloc(1 << 14, sizeof *half);
    size_t at = 0;
    int count;
    copy c;

    copy_open(&c);
    for (int i = 0; i < c.count; i++) {
        const uint8_t *from = c.e[i].data;
        int64_t n = c.e[i].bytes / 4;
        c.e[i].type = TT_BF16;
        c.e[i].bytes = n * 2;
        c.e[i].data = half + at;
        for (int64_t k = 0; k < n; k++) memcpy(half + at + k, from + 4 * k + 2, 2);
        at += (size_t)n;
    }
    copy_write(&c, "bf16.safetensors");
    got = use(tiny, "bf16.safetensors");
    const tt_param *params = tt_model_params(tt_use_model(got.u), &count);
    for (int k = 0; k < count; k++)
        for (int64_t i = params[k].at; i < params[k].at + params[k].n; i++) {
            uint32_t a, b;
            memcpy(&a, &tt_use_params(want.u)[i], 4);
            memcpy(&b, &tt_use_params(got.u)[i], 4);
            EXPECT_INT(a & 0xFFFF0000u, b);
        }
    close_use(&want);
    close_use(&got);
    free(half);
}

/* ---- Writing ---- */

TT_TEST(hf, what_is_written_is_what_was_read)
{
    used u = use(tiny, golden_path("")), back;
    tt_tensors *was, *is;
    json_t *config;
    int count = 0;

    EXPECT_OK(tt_use_export_hf(u.u, "deep/out"));
    EXPECT_OK(tt_tensors_open(golden_path("/model.safetensors"), &was));
    EXPECT_OK(tt_tensors_open("deep/out/model.safetensors", &is));
    for (int i = 0; i < tt_tensors_count(was); i++) {
        const tt_entry *a = tt_tensors_at(was, i), *b = tt_tensors_find(is, a->name);
        if (strstr(a->name, ".attn.bias") || strstr(a->name, "masked_bias")) continue;
        if (!b || b->type != a->type || b->rank != a->rank || b->bytes != a->bytes)
            FAIL("%s is missing or another", a->name);
        EXPECT(!memcmp(a->shape, b->shape, sizeof a->shape));
        EXPECT(!memcmp(a->data, b->data, (size_t)a->bytes));
        count++;
    }
    EXPECT_INT(tt_tensors_count(is), count);
    tt_tensors_close(was);
    tt_tensors_close(is);

    EXPECT((config = json_load_file("deep/out/config.json", 0, NULL)));
    EXPECT_STR("gpt2", json_string_value(json_object_get(config, "model_type")));
    EXPECT_STR("gelu_new", json_string_value(json_object_get(config, "activation_function")));
    EXPECT_INT(3, json_integer_value(json_object_get(config, "n_head")));
    EXPECT_INT(10, json_integer_value(json_object_get(config, "n_positions")));
    EXPECT_NEAR(1e-5, json_real_value(json_object_get(config, "layer_norm_epsilon")), 1e-18);
    EXPECT(json_is_true(json_object_get(config, "tie_word_embeddings")));
    json_decref(config);

    back = use(tiny, "deep/out");
    EXPECT(same_weights(u, back));
    close_use(&back);
    /* Our own file has the same names, and the shapes that we have. */
    EXPECT_OK(tt_use_export(u.u, "ours.safetensors"));
    back = use(tiny, "ours.safetensors");
    EXPECT(same_weights(u, back));
    close_use(&back);
    close_use(&u);
}

TT_TEST(hf, biases_that_are_not_there_are_zero)
{
    static const char bare[] = "name: t\nmodel:\n  input: {ids: 7}\n  layers: [gpt: {" GPT
                               ", bias: false}]\n  loss: softmax_cross_entropy\n";
    used u = use(bare, NULL), back;
    tt_tensors *t;

    EXPECT_OK(tt_use_export_hf(u.u, "out"));
    EXPECT_OK(tt_tensors_open("out/model.safetensors", &t));
    EXPECT_INT(4 + 2 * 12, tt_tensors_count(t));
    tt_tensors_close(t);
    back = use(bare, "out");
    EXPECT(same_weights(u, back));
    close_use(&back);
    back = use(tiny, "out");
    close_use(&back);
    close_use(&u);
    EXPECT_ERR(TT_ECKPT, open_use(bare, golden_path(""), false, &u));
    EXPECT_MESSAGE("not in the model:");
    EXPECT_MESSAGE("transformer.h.1.mlp.c_proj.bias");
}

/* By hand, with a head that has weights of its own, dropout and the exact gelu. */
TT_TEST(hf, a_model_by_hand_is_known_by_its_layers)
{
    static const char text[] =
        "name: t\nmodel:\n  input: {ids: 5}\n  layers:\n"
        "    - embedding: {name: wte, rows: 9, dim: 4}\n    - positions: {name: wpe}\n"
        "    - dropout: {p: 0.1}\n"
        "    - layernorm: {name: h.0.ln_1, eps: 1e-6}\n"
        "    - dense: {name: h.0.attn.c_attn, out: 12}\n    - attention: {name: h.0.attn, heads: "
        "2}\n"
        "    - dense: {name: h.0.attn.c_proj, out: 4}\n"
        "    - add: {name: sum, from: [prev, dropout1]}\n"
        "    - layernorm: {name: h.0.ln_2, eps: 1e-6}\n    - dense: {name: h.0.mlp.c_fc, out: 10}\n"
        "    - gelu\n    - dense: {name: h.0.mlp.c_proj, out: 4}\n    - dropout: {p: 0.2}\n"
        "    - add: {from: [prev, sum]}\n    - layernorm: {name: ln_f, eps: 1e-6}\n"
        "    - dense: {name: lm_head, out: 9, bias: false}\n  loss: softmax_cross_entropy\n";
    static const char want[] = "{\n  \"architectures\": [\n    \"GPT2LMHeadModel\"\n  ],\n"
                               "  \"model_type\": \"gpt2\",\n  \"vocab_size\": 9,\n"
                               "  \"n_positions\": 5,\n  \"n_ctx\": 5,\n  \"n_embd\": 4,\n"
                               "  \"n_layer\": 1,\n  \"n_head\": 2,\n  \"n_inner\": 10,\n"
                               "  \"activation_function\": \"gelu\",\n"
                               "  \"layer_norm_epsilon\": 1e-6,\n  \"embd_pdrop\": 0.1,\n"
                               "  \"resid_pdrop\": 0.2,\n  \"attn_pdrop\": 0.0,\n"
                               "  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n"
                               "  \"tie_word_embeddings\": false,\n"
                               "  \"torch_dtype\": \"float32\"\n}\n";
    used u = use(text, NULL), back;

    EXPECT_OK(tt_use_export_hf(u.u, "out"));
    EXPECT_FILE("out/config.json", want);
    back = use(text, "out");
    EXPECT(same_weights(u, back));
    close_use(&back);
    close_use(&u);
}

/* ---- What does not fit ---- */

static void refuse(const char *weights, const char *what)
{
    used u;

    EXPECT_ERR(TT_ECKPT, open_use(tiny, weights, false, &u));
    EXPECT_MESSAGE(what);
}

TT_TEST(hf, tensors_that_do_not_fit_are_named)
{
    static float zeros[4096];
    copy c;
    used u;

    copy_open(&c);
    tt_entry *e = copy_find(&c, "transformer.h.1.attn.c_attn.weight");
    e->shape[0] = 36; /* as ours is, which is wrong here */
    e->shape[1] = 12;
    copy_write(&c, "shape.safetensors");
    refuse("shape.safetensors", "of another shape:\n  transformer.h.1.attn.c_attn.weight: it is "
                                "36x12, the model's would be 12x36");

    copy_open(&c);
    copy_drop(&c, "transformer.h.1.mlp.c_fc.bias");
    copy_drop(&c, "transformer.ln_f.weight");
    copy_write(&c, "missing.safetensors");
    refuse("missing.safetensors", "not in the file:\n  h.1.mlp.c_fc.bias\n  ln_f.weight");

    copy_open(&c);
    c.e[c.count] = *copy_find(&c, "transformer.wte.weight");
    c.e[c.count].data = zeros;
    c.e[c.count++].name = "lm_head.weight";
    copy_write(&c, "head.safetensors");
    refuse("head.safetensors", "lm_head.weight: it differs from wte.weight");

    copy_open(&c);
    c.e[c.count] = *copy_find(&c, "transformer.wpe.weight");
    c.e[c.count++].name = "wpe.weight";
    copy_write(&c, "twice.safetensors");
    refuse("twice.safetensors", "another tensor is wpe.weight already");

    copy_open(&c);
    c.e[c.count] = *copy_find(&c, "transformer.ln_f.bias");
    c.e[c.count++].name = "transformer.h.2.ln_1.bias";
    copy_write(&c, "more.safetensors");
    refuse("more.safetensors", "not in the model:\n  transformer.h.2.ln_1.bias");

    copy_open(&c);
    e = copy_find(&c, "transformer.h.0.ln_1.bias");
    e->type = TT_I32;
    copy_write(&c, "type.safetensors");
    refuse("type.safetensors", "transformer.h.0.ln_1.bias is of type I32, not floating point");

    EXPECT_OK(open_use(tiny, "missing.safetensors", true, &u)); /* part of it will do */
    close_use(&u);
}

TT_TEST(hf, files_that_are_cut_are_refused)
{
    tt_bytes whole;
    size_t cut[] = {4, 200, 0};

    EXPECT_OK(tt_file_read(golden_path("/model.safetensors"), 0, &whole));
    cut[2] = whole.size - 1;
    for (int i = 0; i < 3; i++) {
        tt_test_write("cut.safetensors", whole.data, cut[i]);
        refuse("cut.safetensors", "cut.safetensors");
    }
    tt_file_release(&whole);
    EXPECT_INT(0, mkdir("empty", 0777));
    refuse("empty",
           "empty is neither a run folder, nor a checkpoint, nor has it a model.safetensors");
    tt_test_write("empty/pytorch_model.bin", "x", 1);
    refuse("empty", "pickled");
    tt_test_write("empty/model.safetensors.index.json", "{}", 2);
    refuse("empty", "several files");
}

TT_TEST(hf, a_config_of_another_model_is_refused)
{
    static const struct {
        const char *config, *why;
    } cases[] = {
        {"{\"n_head\": 4}", "n_layer is 12, but the model has layers: 2"},
        {"{\"n_layer\": 2, \"n_head\": 4}", "n_head is 4, but the model has heads: 3"},
        {"{\"n_layer\": 2, \"n_head\": 3, \"n_embd\": 12, \"vocab_size\": 13}",
         "n_positions is 1024, but the model has positions: 10"},
        {"{\"n_layer\": 2.5}", "n_layer is not a whole number"},
        {"{\"n_layer\": 2, \"n_head\": 3, \"n_embd\": 12, \"vocab_size\": 13, \"n_positions\": 10, "
         "\"n_inner\": 47}",
         "n_inner is 47, but the model has mlp.c_fc of 48"},
        {"{\"n_layer\": 2, \"n_head\": 3, \"n_embd\": 12, \"vocab_size\": 13, \"n_positions\": 10, "
         "\"layer_norm_epsilon\": 1e-6}",
         "layer_norm_epsilon is 1e-06, but the model's layernorms have eps: 1e-05"},
        {"{\"n_layer\": 2, \"n_head\": 3, \"n_embd\": 12, \"vocab_size\": 13, \"n_positions\": 10, "
         "\"activation_function\": \"gelu\"}",
         "activation_function is gelu, but the model has gelu: {tanh: true}"},
        {"{\"n_layer\": 2, \"n_head\": 3, \"n_embd\": 12, \"vocab_size\": 13, \"n_positions\": 10, "
         "\"activation_function\": \"relu\"}",
         "activation_function is relu, but the model has a gelu"},
        {"{\"model_type\": \"llama\"}", "model_type is llama, and only gpt2 is known here"},
        {"{\"scale_attn_by_inverse_layer_idx\": true}", "which no layer here does"},
        {"{\"scale_attn_weights\": false}", "scale_attn_weights is false"},
        {"[1]", "not a JSON object"},
        {"{\"n_layer\": ", "config.json:1: not a JSON object"},
        {"", "config.json"},
    };
    copy c;
    used u;

    EXPECT_INT(0, mkdir("m", 0777));
    copy_open(&c);
    copy_write(&c, "m/model.safetensors");
    for (int i = 0; i < TT_COUNT(cases); i++) {
        tt_test_write("m/config.json", cases[i].config, strlen(cases[i].config));
        refuse("m", cases[i].why);
        EXPECT_MESSAGE("m/config.json");
        refuse("m/model.safetensors", cases[i].why);
    }
    EXPECT_OK(open_use(tiny, "m", true, &u)); /* with a warning */
    close_use(&u);
    EXPECT_INT(0, unlink("m/config.json"));
    EXPECT_OK(open_use(tiny, "m", false, &u)); /* nothing to compare with */
    close_use(&u);
}

TT_TEST(hf, what_is_no_gpt_is_told_why)
{
    static const struct {
        const char *layers, *why;
    } cases[] = {
        {"[dense: {name: a, out: 4}]", "a layer dense 'a' stands where embedding wte should be"},
        {"[gpt: {" GPT "}, log_softmax]",
         "a layer log_softmax 'log_softmax1' stands behind 'lm_head'"},
        {"[embedding: {name: wte, rows: 13, dim: 12}, positions: {name: wpe}, "
         "layernorm: {name: ln_f}]",
         "a layer layernorm 'ln_f' stands where layernorm h.0.ln_1 should be"},
        {"[embedding: {name: wte, rows: 13, dim: 12}]",
         "it ends where a layer positions wpe should"},
        {"[embedding: {name: wte, rows: 13, dim: 12}, positions: {name: wpe}, layernorm: {name: "
         "h.0.ln_1}, dense: {name: h.0.attn.c_attn, out: 36}, attention: {name: h.0.attn, heads: "
         "3, "
         "causal: false}]",
         "'h.0.attn' is not causal"},
        {"[embedding: {name: wte, rows: 13, dim: 12}, positions: {name: wpe}, layernorm: {name: "
         "h.0.ln_1}, dense: {name: h.0.attn.c_attn, out: 36}, attention: {name: h.0.attn, heads: "
         "3}, dense: {name: h.0.attn.c_proj, out: 12}, add: {name: s, from: [prev, h.0.ln_1]}]",
         "'s' does not add a branch to what it began with"},
    };
    tt_str job = {0};
    used u;

    for (int i = 0; i < TT_COUNT(cases); i++) {
        tt_str_add(&job, "name: t\nmodel:\n  input: %s\n  layers: %s\n  loss: %s\n",
                   i ? "{ids: 7}" : "[7]", cases[i].layers,
                   i == 1 ? "nll" : "softmax_cross_entropy");
        EXPECT_OK(open_use(job.data, NULL, false, &u));
        EXPECT_ERR(TT_EINVAL, tt_use_export_hf(u.u, "out"));
        EXPECT_MESSAGE("only a GPT-2 can be written for Hugging Face");
        EXPECT_MESSAGE(cases[i].why);
        EXPECT(!tt_file_exists("out"));
        close_use(&u);
        EXPECT_ERR(TT_ECKPT, open_use(job.data, golden_path(""), false, &u));
        EXPECT_MESSAGE("is a GPT-2 as Hugging Face has it, which the model is not");
        EXPECT_MESSAGE(cases[i].why);
        tt_str_free(&job);
    }
}
