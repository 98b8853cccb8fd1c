/* hf: GPT-2 as Hugging Face has it, in and out. */
#include "hf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char prefix[] = "transformer.";
enum { PREFIX = sizeof prefix - 1, CONFIG_MOST = 1 << 20 };

/* The dense layers of a block, which are stored turned. */
static const char *const turned[] = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};

static bool ends(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* ---- Names and shapes ---- */

bool hf_is(const tt_tensors *file, bool *turns)
{
    bool named = false, shaped = false;

    *turns = false;
    for (int i = 0; i < tt_tensors_count(file); i++) {
        const tt_entry *e = tt_tensors_at(file, i);
        named |= !strcmp(e->name, "transformer.wte.weight");
        if (!ends(e->name, ".attn.c_attn.weight") || e->rank != 2) continue;
        shaped = true;
        *turns |= e->shape[1] > e->shape[0];
    }
    if (!shaped) *turns = named;
    return named || *turns;
}

hf_use hf_means(char *name, bool turns)
{
    char end[32];

    if (!strncmp(name, prefix, PREFIX)) memmove(name, name + PREFIX, strlen(name + PREFIX) + 1);
    if (ends(name, ".attn.bias") || ends(name, ".attn.masked_bias")) return HF_IGNORE;
    for (int i = 0; i < TT_COUNT(turned); i++) {
        snprintf(end, sizeof end, ".%s.weight", turned[i]);
        if (!strncmp(name, "h.", 2) && ends(name, end)) return turns ? HF_TURN : HF_TAKE;
    }
    return HF_TAKE;
}

void hf_turn(const float *from, int64_t rows, int64_t columns, float *to)
{
    enum { TILE = 32 }; /* both sides of a tile stay in the cache */

    for (int64_t r = 0; r < rows; r += TILE)
        for (int64_t c = 0; c < columns; c += TILE)
            for (int64_t i = r; i < rows && i < r + TILE; i++)
                for (int64_t k = c; k < columns && k < c + TILE; k++)
                    to[k * rows + i] = from[i * columns + k];
}

/* ---- config.json ---- */

/* Numbers as GPT2Config has them; what a file leaves out is as there. */
static tt_err check_count(const char *path, const json_t *config, const char *key, int64_t usual,
                          int64_t have, const char *what)
{
    const json_t *v = json_object_get(config, key);
    int64_t wants = usual;

    if (v && !json_is_null(v)) {
        if (!json_is_integer(v))
            return tt_fail(TT_ECKPT, "%s: %s is not a whole number", path, key);
        wants = json_integer_value(v);
    }
    if (wants == have) return TT_OK;
    return tt_fail(TT_ECKPT, "%s: %s is %lld, but the model has %s %lld", path, key,
                   (long long)wants, what, (long long)have);
}

static tt_err check_counts(const char *path, const json_t *config, const tt_gpt *g)
{
    tt_err err;

    if ((err = check_count(path, config, "n_layer", 12, g->layers, "layers:")) ||
        (err = check_count(path, config, "n_head", 12, g->heads, "heads:")) ||
        (err = check_count(path, config, "n_embd", 768, g->width, "width:")) ||
        (err = check_count(path, config, "vocab_size", 50257, g->vocab, "vocab:")) ||
        (err = check_count(path, config, "n_positions", 1024, g->positions, "positions:")))
        return err;
    return check_count(path, config, "n_inner", 4 * g->width, g->inner, "mlp.c_fc of");
}

static tt_err check_activation(const char *path, const json_t *config, const tt_gpt *g)
{
    static const struct {
        const char *name;
        bool tanh;
    } known[] = {{"gelu_new", true},
                 {"gelu_pytorch_tanh", true},
                 {"gelu_fast", true},
                 {"gelu", false},
                 {"gelu_python", false}};
    const json_t *v = json_object_get(config, "activation_function");
    const char *name = v ? json_string_value(v) : "gelu_new";
    int i = 0;

    if (!name) return tt_fail(TT_ECKPT, "%s: activation_function is not a string", path);
    while (i < TT_COUNT(known) && strcmp(name, known[i].name)) i++;
    if (i == TT_COUNT(known))
        return tt_fail(TT_ECKPT, "%s: activation_function is %.100s, but the model has a gelu",
                       path, name);
    if (known[i].tanh == g->tanh) return TT_OK;
    return tt_fail(TT_ECKPT, "%s: activation_function is %s, but the model has gelu: {tanh: %s}",
                   path, name, g->tanh ? "true" : "false");
}

static tt_err check_eps(const char *path, const json_t *config, const tt_gpt *g)
{
    const json_t *v = json_object_get(config, "layer_norm_epsilon");
    double eps = v ? json_number_value(v) : 1e-5;

    if (v && !json_is_number(v))
        return tt_fail(TT_ECKPT, "%s: layer_norm_epsilon is not a number", path);
    if (fabs(eps - g->eps) <= 1e-6 * g->eps) return TT_OK;
    return tt_fail(TT_ECKPT,
                   "%s: layer_norm_epsilon is %g, but the model's layernorms have eps: %g", path,
                   eps, g->eps);
}

/* Variants of GPT-2 that compute something else, each with what it usually is. */
static tt_err check_variants(const char *path, const json_t *config)
{
    static const struct {
        const char *key;
        bool usual;
    } known[] = {{"scale_attn_weights", true},
                 {"scale_attn_by_inverse_layer_idx", false},
                 {"add_cross_attention", false}};
    const json_t *type = json_object_get(config, "model_type");

    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "gpt2")))
        return tt_fail(TT_ECKPT, "%s: model_type is %.100s, and only gpt2 is known here", path,
                       json_is_string(type) ? json_string_value(type) : "not a string");
    for (int i = 0; i < TT_COUNT(known); i++) {
        const json_t *v = json_object_get(config, known[i].key);
        if (v && json_is_true(v) != known[i].usual)
            return tt_fail(TT_ECKPT, "%s: %s is %s, which no layer here does", path, known[i].key,
                           known[i].usual ? "false" : "true");
    }
    return TT_OK;
}

static tt_err check_config(const char *path, const tt_gpt *g)
{
    tt_bytes text;
    json_error_t e;
    json_t *config;
    tt_err err = tt_file_read(path, CONFIG_MOST, &text);

    if (err) return tt_repeat(TT_ECKPT, tt_message());
    config = json_loadb((const char *)text.data, text.size, 0, &e);
    if (!json_is_object(config))
        err = tt_fail(TT_ECKPT, "%s:%d: not a JSON object: %s", path, config ? 1 : e.line,
                      config ? "something else" : e.text);
    else if (!(err = check_variants(path, config)) && !(err = check_counts(path, config, g)) &&
             !(err = check_eps(path, config, g)))
        err = check_activation(path, config, g);
    json_decref(config);
    tt_file_release(&text);
    return err;
}

tt_err hf_check(const tt_model *m, const char *file)
{
    const char *slash = strrchr(file, '/');
    char path[4300];
    tt_gpt g;

    if (tt_model_gpt(m, &g))
        return tt_context(TT_ECKPT,
                          "%s is a GPT-2 as Hugging Face has it, which the model is not (a layer "
                          "`gpt` would be)",
                          file);
    snprintf(path, sizeof path, "%.*sconfig.json", slash ? (int)(slash - file + 1) : 0, file);
    return tt_file_exists(path) ? check_config(path, &g) : TT_OK;
}

/* ---- Writing ---- */

static json_t *make_config(const tt_gpt *g)
{
    enum { END = 50256 }; /* GPT-2's end of text; other vocabularies have none that we know of */
    json_t *end = g->vocab == END + 1 ? json_integer(END) : json_null();

    return json_pack(
        "{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s, s:f, s:f, s:f, s:f, s:O, "
        "s:o, s:b, s:s}",
        "architectures", "GPT2LMHeadModel", "model_type", "gpt2", "vocab_size",
        (json_int_t)g->vocab, "n_positions", (json_int_t)g->positions, "n_ctx",
        (json_int_t)g->positions, "n_embd", (json_int_t)g->width, "n_layer", (json_int_t)g->layers,
        "n_head", (json_int_t)g->heads, "n_inner",
        g->inner == 4 * g->width ? json_null() : json_integer(g->inner), "activation_function",
        g->tanh ? "gelu_new" : "gelu", "layer_norm_epsilon", g->eps, "embd_pdrop", g->embed_dropout,
        "resid_pdrop", g->branch_dropout, "attn_pdrop", 0.0, "bos_token_id", end, "eos_token_id",
        end, "tie_word_embeddings", g->tied, "torch_dtype", "float32");
}

static tt_err write_config(const tt_gpt *g, const char *folder)
{
    char path[4300];
    json_t *config = make_config(g);
    char *text = config ? json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    tt_str out = {0};
    tt_err err;

    json_decref(config);
    if (!text) return tt_fail(TT_ENOMEM, "no memory");
    tt_str_add(&out, "%s\n", text);
    snprintf(path, sizeof path, "%s/config.json", folder);
    err = tt_file_write(path, out.data, out.size);
    tt_str_free(&out);
    free(text);
    return err;
}

/* What is written: the parameters, turned where they must be, and zeros for biases that the model
 * does without. */
typedef struct parcel {
    tt_entry *entry;
    int count;
    char (*name)[64];
    float *turned, *zeros;
    int64_t turned_count;
} parcel;

static void put(parcel *p, const char *name, const int64_t *shape, int rank, const float *data)
{
    tt_entry *e = &p->entry[p->count];
    bool head = !strcmp(name, "lm_head.weight");

    snprintf(p->name[p->count], sizeof p->name[0], "%s%s", head ? "" : prefix, name);
    *e = (tt_entry){.name = p->name[p->count++], .type = TT_F32, .rank = rank, .data = data};
    e->bytes = sizeof(float);
    for (int i = 0; i < rank; i++) {
        e->shape[i] = shape[i];
        e->bytes *= shape[i];
    }
}

static void put_param(parcel *p, const tt_param *q, const float *w)
{
    char name[64];
    const int64_t flipped[2] = {q->shape[1], q->shape[0]};
    float *to = p->turned + p->turned_count;

    snprintf(name, sizeof name, "%s", q->name);
    if (hf_means(name, true) != HF_TURN) {
        put(p, q->name, q->shape, q->rank, w + q->at);
        return;
    }
    hf_turn(w + q->at, q->shape[0], q->shape[1], to);
    p->turned_count += q->n;
    put(p, q->name, flipped, 2, to);
}

static void put_zeros(parcel *p, const tt_gpt *g, const tt_param *params, int count)
{
    const int64_t out[] = {3 * g->width, g->width, g->inner, g->width};

    for (int64_t i = 0; i < g->layers; i++)
        for (int k = 0; k < TT_COUNT(turned); k++) {
            char name[64];
            int at = 0;
            snprintf(name, sizeof name, "h.%lld.%s.bias", (long long)i, turned[k]);
            while (at < count && strcmp(params[at].name, name)) at++;
            if (at == count) put(p, name, &out[k], 1, p->zeros);
        }
}

static tt_err write_weights(const tt_model *m, const tt_gpt *g, const float *w, const char *folder)
{
    int count;
    const tt_param *params = tt_model_params(m, &count);
    size_t room = (size_t)count + (size_t)g->layers * TT_COUNT(turned);
    int64_t most = 3 * g->width > g->inner ? 3 * g->width : g->inner;
    parcel p = {.entry = calloc(room, sizeof *p.entry),
                .name = calloc(room, sizeof *p.name),
                .turned = malloc(tt_mul_size((size_t)tt_model_size(m), sizeof *p.turned)),
                .zeros = calloc((size_t)most, sizeof *p.zeros)};
    char path[4300];
    tt_err err;

    if (!p.entry || !p.name || !p.turned || !p.zeros) {
        err = tt_fail(TT_ENOMEM, "no memory for a second copy of the weights");
        goto out;
    }
    for (int i = 0; i < count; i++) put_param(&p, &params[i], w);
    put_zeros(&p, g, params, count);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    err = tt_tensors_write(path, p.entry, p.count, NULL, NULL);
out:
    free(p.entry);
    free(p.name);
    free(p.turned);
    free(p.zeros);
    return err;
}

tt_err hf_write(const tt_model *m, const float *w, const char *folder)
{
    tt_gpt g;
    tt_err err;

    if (tt_model_gpt(m, &g))
        return tt_context(TT_EINVAL, "only a GPT-2 can be written for Hugging Face, and the model "
                                     "is none (a layer `gpt` would be)");
    if ((err = tt_dir_make(folder)) || (err = write_weights(m, &g, w, folder))) return err;
    return write_config(&g, folder);
}
