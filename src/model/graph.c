/* graph: reads the `model` map of a job into layers with names, inputs and shapes.
 *
 * A list is a chain. `from:` names other inputs: a layer's name, `prev` (the layer before), `in`
 * (what the enclosing block was given) or `input` (the model's input). `repeat: {times: 3, layers:
 * [...]}` repeats a block; layer `a` of its second round is called `<repeat>.1.a`, and names are
 * looked up in the innermost block first. A preset stands for layers and is expanded in place. */
#include <fnmatch.h>
#include <string.h>

#include "graph.h"

/* Kernels count the elements of one sample's tensor in 32 bits. 2^40 parameters are past any
 * memory, and keep every later product inside 64 bits. */
#define SAMPLE_MOST ((int64_t)INT32_MAX)
#define SIZE_MOST   ((int64_t)1 << 40)

typedef struct scope {
    const char *prefix; /* "", or "blocks.1."                     */
    int in;             /* what the block was given                */
    int depth;
} scope;

static tt_err read_list(graph *g, tt_node *list, const scope *s, int *prev);

bool graph_has_features(const graph *g)
{
    return tt_shape_count(g->input) > 0;
}

tt_shape graph_shape(const graph *g, int input)
{
    return input < 0 ? g->input : g->layers[input].out;
}

/* Elements of a shape, or `most` if there are more. */
static int64_t count_up_to(tt_shape s, int64_t most)
{
    int64_t n = 1;

    for (int i = 0; i < s.rank; i++)
        if (__builtin_mul_overflow(n, s.dim[i], &n) || n > most) return most;
    return n;
}

int graph_param(graph *g, layer *l, const char *name, tt_param_role role, tt_shape shape,
                param_init init, float momentum)
{
    if (g->param_count == g->param_room) {
        int room = g->param_room ? 2 * g->param_room : 64;
        tt_param *p = tt_arena_take(g->arena, (size_t)room * sizeof *p, 16);
        param_init *q = tt_arena_take(g->arena, (size_t)room * sizeof *q, 16);
        if (g->param_count) {
            memcpy(p, g->params, (size_t)g->param_count * sizeof *p);
            memcpy(q, g->inits, (size_t)g->param_count * sizeof *q);
        }
        g->params = p;
        g->inits = q;
        g->param_room = room;
    }
    tt_param *p = &g->params[g->param_count];
    *p = (tt_param){.name = tt_arena_printf(g->arena, "%s.%s", l->name, name),
                    .at = g->size,
                    .n = count_up_to(shape, SIZE_MOST + 1),
                    .rank = shape.rank,
                    .role = role,
                    .frozen = l->frozen,
                    .momentum = momentum};
    memcpy(p->shape, shape.dim, sizeof p->shape);
    g->inits[g->param_count] = init;
    g->size += (p->n + 15) / 16 * 16; /* every tensor starts on a cache line */
    TT_ASSERT(l->param_count < LAYER_PARAMS);
    l->param[l->param_count++] = g->param_count;
    return g->param_count++;
}

tt_err graph_rows(graph *g, layer *l, tt_parts parts, int64_t dim, int64_t touches, bool sparse,
                  param_init init)
{
    int64_t rows = 0;

    for (int i = 0; i < parts.count; i++) rows += parts.rows[i];
    tt_shape shape = {2, {rows, dim}};
    if (!g->has_tables || !sparse) {
        int at = graph_param(g, l, "weight", TT_WEIGHT, shape, init, 0); /* params may move */
        g->params[at].parts = parts;
        return TT_OK;
    }
    if (rows > INT32_MAX)
        return tt_node_fail(l->at,
                            "the tables of '%s' have %lld rows, more than the %d there can be of a "
                            "layer: give some of its ids to another one, by `first` and `tables`",
                            l->name, (long long)rows, INT32_MAX);
    if (g->table_count == TABLES_MOST)
        return tt_node_fail(l->at, "more than %d layers have tables: give some sparse: false",
                            TABLES_MOST);
    if (count_up_to(shape, SIZE_MOST + 1) > SIZE_MOST)
        return tt_node_fail(l->at, "'%s' is too large", l->name);
    g->table_inits[g->table_count] = init;
    g->tables[g->table_count] =
        (tt_model_table){.name = tt_arena_printf(g->arena, "%s.weight", l->name),
                         .rows = rows,
                         .dim = dim,
                         .parts = parts,
                         .touches = touches,
                         .frozen = l->frozen};
    l->table = ++g->table_count;
    return TT_OK;
}

static int find_layer(const graph *g, const char *prefix, const char *name)
{
    size_t n = strlen(prefix), m = strlen(name);
    for (int i = g->layer_count - 1; i >= 0; i--) {
        const char *have = g->layers[i].name;
        if (strlen(have) == n + m && !memcmp(have, prefix, n) && !memcmp(have + n, name, m))
            return i;
    }
    return -2;
}

/* Innermost block first: "a.1.b." + name, then "a.1." + name ..., at last the bare name. */
static int look_up(graph *g, const scope *s, const char *name, int prev)
{
    char *prefix = tt_arena_strdup(g->arena, s->prefix);

    if (!strcmp(name, "prev")) return prev;
    if (!strcmp(name, "in")) return s->in;
    if (!strcmp(name, "input")) return -1;
    for (;;) {
        int i = find_layer(g, prefix, name);
        size_t n = strlen(prefix);
        if (i != -2 || !n) return i;
        do prefix[--n] = 0;
        while (n && prefix[n - 1] != '.');
    }
}

int graph_find(graph *g, const layer *l, const char *name)
{
    scope s = {l->prefix, -2, 0};
    return look_up(g, &s, name, -2);
}

static tt_err unknown_input(graph *g, tt_node *at, const layer *l, const char *name)
{
    const char **names = tt_arena_take(g->arena, (size_t)(g->layer_count + 1) * sizeof *names, 8);
    for (int i = 0; i < g->layer_count; i++) names[i] = g->layers[i].name;
    const char *near = tt_nearest(name, names, g->layer_count);
    return tt_node_fail(
        at, "'%s' takes its input from '%s', but no layer before it has that name%s%s%s", l->name,
        name, near ? ": did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static tt_err wire(graph *g, layer *l, const common_args *a, tt_node *args, const scope *s,
                   int prev)
{
    tt_node *from = tt_node_get(args, "from");

    l->input_count = a->from.count ? a->from.count : l->kind->inputs_most > 0;
    if (l->input_count > INPUTS_MOST) return tt_node_fail(from, "at most %d inputs", INPUTS_MOST);
    l->input[0] = prev;
    for (int i = 0; i < a->from.count; i++) {
        l->input[i] = look_up(g, s, a->from.item[i], prev);
        if (l->input[i] == -2)
            return unknown_input(g, from->kind == TT_LIST ? from->item[i] : from, l,
                                 a->from.item[i]);
    }
    if (l->input_count < l->kind->inputs_least)
        return tt_node_fail(l->at,
                            "%s '%s' joins at least %d inputs: name them with from: [prev, other]",
                            l->kind->name, l->name, l->kind->inputs_least);
    if (l->input_count > l->kind->inputs_most)
        return tt_node_fail(from, "%s '%s' takes %d input%s, not %d", l->kind->name, l->name,
                            l->kind->inputs_most, l->kind->inputs_most == 1 ? "" : "s",
                            l->input_count);
    for (int i = 0; i < l->input_count && !graph_has_features(g); i++)
        if (l->input[i] == -1)
            return tt_node_fail(l->at,
                                "%s '%s' takes numbers, but the model's input has ids alone: "
                                "begin with an embedding",
                                l->kind->name, l->name);
    return TT_OK;
}

static tt_err name_layer(graph *g, layer *l, const char *given, const scope *s)
{
    char *name;

    l->prefix = s->prefix;
    if (given && (!*given || strchr(given, '/') || !strcmp(given, "prev") || !strcmp(given, "in") ||
                  !strcmp(given, "input")))
        return tt_node_fail(l->at, "'%s' cannot be a layer's name", given);
    if (given) {
        l->name = tt_arena_printf(g->arena, "%s%s", s->prefix, given);
        if (find_layer(g, s->prefix, given) != -2)
            return tt_node_fail(l->at, "there is a layer '%s' already", l->name);
        return TT_OK;
    }
    /* conv1, conv2, ...: on from the last of its kind */
    for (int i = g->layer_count - 1; i >= 0 && !l->number; i--)
        if (g->layers[i].kind == l->kind && !strcmp(g->layers[i].prefix, s->prefix))
            l->number = g->layers[i].number;
    do {
        name = tt_arena_printf(g->arena, "%s%d", l->kind->name, ++l->number);
    } while (find_layer(g, s->prefix, name) != -2);
    l->name = tt_arena_printf(g->arena, "%s%s", s->prefix, name);
    return TT_OK;
}

static tt_err add_layer(graph *g, const layer_kind *kind, tt_node *at, tt_node *args,
                        const scope *s, int *prev)
{
    if (g->layer_count == LAYERS_MOST) return tt_node_fail(at, "more than %d layers", LAYERS_MOST);
    if (g->layer_count == g->layer_room) {
        int room = g->layer_room ? 2 * g->layer_room : 64;
        layer *more = tt_arena_take(g->arena, (size_t)room * sizeof *more, 16);
        if (g->layer_count) memcpy(more, g->layers, (size_t)g->layer_count * sizeof *more);
        g->layers = more;
        g->layer_room = room;
    }
    layer *l = &g->layers[g->layer_count];
    tt_err err;

    memset(l, 0, sizeof *l);
    l->kind = kind;
    l->at = at;
    l->args_at = args;
    l->detail = "";
    l->args = tt_arena_take(g->arena, kind->args_size, 16);
    if (kind->custom && kind->custom->args_start)
        memcpy((char *)l->args + sizeof(common_args), kind->custom->args_start,
               kind->custom->args_size);
    if ((err = tt_node_read(args, kind->name, kind->keys, kind->key_count, l->args))) return err;
    const common_args *a = l->args;
    if ((err = name_layer(g, l, a->name, s)) || (err = wire(g, l, a, args, s, *prev))) return err;
    l->frozen = a->freeze;
    if (l->input_count) l->in = graph_shape(g, l->input[0]);
    if ((err = kind->shape(g, l))) return err;
    if (count_up_to(l->out, SAMPLE_MOST + 1) > SAMPLE_MOST || g->size > SIZE_MOST)
        return tt_node_fail(at, "'%s' is too large", l->name);
    *prev = g->layer_count++;
    return TT_OK;
}

static tt_err read_repeat(graph *g, tt_node *at, tt_node *args, const scope *s, int *prev)
{
    struct {
        const char *name;
        int64_t times;
        tt_node *layers;
    } a = {0};
    const tt_key keys[] = {
        {"name", TT_STRING, offsetof(__typeof__(a), name), "-", 0, 0, NULL,
         "prefix of its layers' names"},
        {"times", TT_INT, offsetof(__typeof__(a), times), NULL, 1, 10000, NULL, "how often"},
        {"layers", TT_NODE, offsetof(__typeof__(a), layers), NULL, 0, 0, NULL, "the block"},
    };
    tt_err err = tt_node_read(args, "repeat", keys, TT_COUNT(keys), &a);
    if (err) return err;
    if (s->depth == 16) return tt_node_fail(at, "blocks are nested too deeply");

    const char *name = a.name;
    for (int i = 1; !name; i++) { /* repeat1, repeat2, ... */
        char *probe = tt_arena_printf(g->arena, "%srepeat%d.0.", s->prefix, i);
        bool taken = false;
        for (int k = 0; k < g->layer_count && !taken; k++)
            taken = !strncmp(g->layers[k].name, probe, strlen(probe));
        if (!taken) name = tt_arena_printf(g->arena, "repeat%d", i);
    }
    for (int i = 0; i < a.times; i++) {
        scope inner = {tt_arena_printf(g->arena, "%s%s.%d.", s->prefix, name, i), *prev,
                       s->depth + 1};
        if ((err = read_list(g, a.layers, &inner, prev))) return err;
    }
    return TT_OK;
}

static tt_err read_preset(graph *g, const char *name, tt_node *at, tt_node *args, const scope *s,
                          int *prev)
{
    tt_str text = {0};
    tt_tree *tree = NULL;
    tt_err err = preset_expand(name, args, graph_shape(g, *prev), g->ids, &text);

    if (!err) err = tt_tree_parse(name, text.data, text.size, &tree);
    if (!err) {
        /* a mistake inside is shown where the preset stands */
        err = read_list(g, tt_node_copy_at(at->tree, tt_tree_root(tree), at), s, prev);
    }
    tt_tree_close(tree);
    tt_str_free(&text);
    return err;
}

static tt_err read_list(graph *g, tt_node *list, const scope *s, int *prev)
{
    if (list->kind != TT_LIST || !list->count)
        return tt_node_fail(list, "layers must be a list of layers");
    for (int i = 0; i < list->count; i++) {
        const char *name;
        tt_node *at, *args;
        tt_err err = tt_node_kind_of(list->item[i], "layer", &name, &at, &args);
        if (err) return err;
        const layer_kind *kind = kind_find(name);
        if (kind)
            err = add_layer(g, kind, at, args, s, prev);
        else if (!strcmp(name, "repeat"))
            err = read_repeat(g, at, args, s, prev);
        else if (is_preset(name))
            err = read_preset(g, name, at, args, s, prev);
        else {
            const char *names[128] = {"repeat", "mlp",       "resnet", "gpt",
                                      "dlrm",   "wide_deep", "deepfm"};
            const char *near = tt_nearest(name, names, 7 + kind_names(names + 7, 120));
            err = tt_node_fail(at, "there is no layer kind '%s'%s%s%s", name,
                               near ? ": did you mean '" : "", near ? near : "", near ? "'?" : "");
        }
        if (err) return err;
    }
    return TT_OK;
}

/* ---- losses ---- */

static const struct {
    const char *name;
    tt_loss_kind kind;
} loss_kinds[] = {
    {"softmax_cross_entropy", TT_LOSS_SOFTMAX},
    {"nll", TT_LOSS_NLL},
    {"mse", TT_LOSS_MSE},
    {"bce", TT_LOSS_BCE},
};

typedef struct loss_args {
    const char *from;
    double weight, smoothing;
    int target;
    tt_numbers class_weights;
} loss_args;

static const tt_key loss_keys[] = {
    {"from", TT_STRING, offsetof(loss_args, from), "-", 0, 0, NULL,
     "the layer it judges; by default the last"},
    {"weight", TT_NUMBER, offsetof(loss_args, weight), "1", 1e-9, 1e9, NULL,
     "its share where there are several"},
    {"target", TT_CHOICE, offsetof(loss_args, target), "auto", 0, 0, "auto|label|target|input",
     "what the output should be"},
    {"smoothing", TT_NUMBER, offsetof(loss_args, smoothing), "0", 0, 0.999, NULL,
     "label smoothing (softmax_cross_entropy)"},
    {"class_weights", TT_NUMBERS, offsetof(loss_args, class_weights), "-", 0, 1e9, NULL,
     "a weight per class"},
};

static tt_err read_loss(graph *g, tt_node *n)
{
    const char *name;
    tt_node *at, *args;
    loss_args a = {0};
    loss *l = &g->losses[g->loss_count];
    tt_err err = tt_node_kind_of(n, "loss", &name, &at, &args);
    int k;

    if (err ||
        (err = tt_node_pick(at, "loss", name, loss_kinds, sizeof *loss_kinds, TT_COUNT(loss_kinds),
                            &k)) ||
        (err = tt_node_read(args, name, loss_keys, TT_COUNT(loss_keys), &a)))
        return err;
    *l = (loss){.kind = loss_kinds[k].kind,
                .name = loss_kinds[k].name,
                .scale = a.weight,
                .smoothing = (float)a.smoothing,
                .at = at,
                .input = g->layer_count - 1};
    if (a.from) {
        scope top = {"", -1, 0};
        l->input = look_up(g, &top, a.from, g->layer_count - 1);
        if (l->input < 0)
            return tt_node_fail(tt_node_get(args, "from"), "there is no layer '%s'", a.from);
    }
    tt_shape out = g->layers[l->input].out;
    int64_t d = tt_shape_count(out);
    l->rows = 1;
    bool classes = l->kind == TT_LOSS_SOFTMAX || l->kind == TT_LOSS_NLL;
    char buf[64];

    if (classes && out.rank == 2) { /* each position of a sequence */
        l->rows = out.dim[0];
        d = out.dim[1];
    }
    if (classes && out.rank == 3) { /* each pixel of an image, whose channels are classes */
        l->rows = out.dim[1] * out.dim[2];
        d = out.dim[0];
    }
    l->d = d;
    if (classes && out.rank > 3)
        return tt_node_fail(at, "%s judges vectors of classes, but '%s' gives %s", name,
                            g->layers[l->input].name, tt_shape_show(out, buf, sizeof buf));
    l->target = classes || (l->kind == TT_LOSS_BCE && d == 1) ? BY_LABEL : BY_TARGET;
    if (a.target) l->target = a.target - 1;
    if (l->target == BY_LABEL && !classes && !(l->kind == TT_LOSS_BCE && d == 1))
        return tt_node_fail(
            at, "%s compares numbers: its target is 'target' or 'input', not labels", name);
    if (l->target != BY_LABEL && classes) return tt_node_fail(at, "%s needs labels", name);
    if (l->target == BY_INPUT && d != tt_shape_count(g->input))
        return tt_node_fail(
            at, "the input has %lld numbers, but '%s' gives %lld to compare with them",
            (long long)tt_shape_count(g->input), g->layers[l->input].name, (long long)d);
    if (a.smoothing > 0 && l->kind != TT_LOSS_SOFTMAX)
        return tt_node_fail(tt_node_get(args, "smoothing"),
                            "smoothing is for softmax_cross_entropy");
    if (a.class_weights.count) {
        if (!classes || a.class_weights.count != d)
            return tt_node_fail(tt_node_get(args, "class_weights"), "%d weights for %lld classes",
                                a.class_weights.count, classes ? (long long)d : 0LL);
        float *w = tt_arena_take(g->arena, (size_t)d * sizeof *w, 64);
        for (int i = 0; i < d; i++) w[i] = (float)a.class_weights.item[i];
        l->class_weight = w;
    }
    /* Of several the one that judges what the model puts out. */
    int last = g->layer_count - 1;
    if (l->target == BY_LABEL &&
        (g->judged < 0 || (l->input == last && g->losses[g->judged].input != last)))
        g->judged = g->loss_count;
    g->loss_count++;
    return TT_OK;
}

/* Two losses may not want different things in one place of the batch. */
static tt_err check_targets(const graph *g)
{
    const loss *first = NULL;
    for (int i = 0; i < g->loss_count; i++) {
        const loss *l = &g->losses[i];
        if (l->target != BY_TARGET) continue;
        if (first &&
            tt_shape_count(g->layers[first->input].out) != tt_shape_count(g->layers[l->input].out))
            return tt_node_fail(l->at, "two losses want targets of different sizes");
        first = l;
    }
    first = NULL;
    for (int i = 0; i < g->loss_count; i++) {
        const loss *l = &g->losses[i];
        if (l->target != BY_LABEL) continue;
        if (first && first->rows != l->rows)
            return tt_node_fail(l->at, "two losses want different numbers of labels");
        first = l;
    }
    return TT_OK;
}

static tt_err freeze_by_name(graph *g, const tt_strings *globs, tt_node *at)
{
    for (int i = 0; i < globs->count; i++) {
        int hits = 0;
        for (int k = 0; k < g->layer_count; k++) {
            layer *l = &g->layers[k];
            if (fnmatch(globs->item[i], l->name, 0)) continue;
            hits++;
            l->frozen = true;
            for (int p = l->shared; p < l->param_count; p++) g->params[l->param[p]].frozen = true;
            if (l->table) g->tables[l->table - 1].frozen = true;
        }
        if (!hits) return tt_node_fail(at, "freeze: no layer is called '%s'", globs->item[i]);
    }
    return TT_OK;
}

/* Weights that are another layer's are frozen there or nowhere. */
static tt_err check_frozen(const graph *g)
{
    for (int k = 0; k < g->layer_count; k++) {
        const layer *l = &g->layers[k];
        for (int p = 0; p < l->shared && l->frozen; p++)
            if (!g->params[l->param[p]].frozen)
                return tt_node_fail(l->at,
                                    "'%s' is frozen, but its weights are those of another layer "
                                    "('%s'), which is not: freeze that one",
                                    l->name, g->params[l->param[p]].name);
    }
    return TT_OK;
}

typedef struct input_args {
    tt_ints features;
    int64_t ids;
} input_args;

static const tt_key input_keys[] = {
    {"features", TT_INTS, offsetof(input_args, features), "-", 1, 1 << 30, NULL,
     "shape of its numbers: [features] or [channels, height, width]"},
    {"ids", TT_INT, offsetof(input_args, ids), "0", 0, 1 << 24, NULL,
     "how many ids it has: tokens, or categories; for embeddings"},
};

/* A shape, or a map of a shape and how many ids there are. */
static tt_err read_input(graph *g, tt_node *at)
{
    static const tt_key plain = {"input", TT_INTS, 0, NULL, 1, 1 << 30, NULL, ""};
    input_args a = {0};
    tt_err err = at->kind == TT_MAP
                     ? tt_node_read(at, "input", input_keys, TT_COUNT(input_keys), &a)
                     : tt_node_value(at, "input", &plain, &a.features);

    if (err) return err;
    if (!a.features.count && !a.ids) return tt_node_fail(at, "a sample has features, ids, or both");
    if (a.features.count > 4) return tt_node_fail(at, "input has more than 4 dimensions");
    g->input = (tt_shape){.rank = a.features.count ? a.features.count : 1};
    for (int i = 0; i < a.features.count; i++) g->input.dim[i] = a.features.item[i];
    g->ids = a.ids;
    g->id_rows = tt_arena_take(g->arena, (size_t)(a.ids + 1) * sizeof *g->id_rows, 8);
    memset(g->id_rows, 0, (size_t)(a.ids + 1) * sizeof *g->id_rows);
    if (count_up_to(g->input, SAMPLE_MOST + 1) > SAMPLE_MOST)
        return tt_node_fail(at, "a sample of more than %lld numbers is too large",
                            (long long)SAMPLE_MOST);
    return TT_OK;
}

typedef struct model_args {
    tt_node *input, *layers, *loss, *rename;
    tt_strings freeze;
} model_args;

static const tt_key model_keys[] = {
    {"input", TT_NODE, offsetof(model_args, input), NULL, 0, 0, NULL,
     "shape of a sample: [features], [channels, height, width], or {features: [...], ids: N}"},
    {"layers", TT_NODE, offsetof(model_args, layers), NULL, 0, 0, NULL,
     "the layers, first to last"},
    {"loss", TT_NODE, offsetof(model_args, loss), NULL, 0, 0, NULL,
     "softmax_cross_entropy, nll, mse, bce, or a list of them"},
    {"freeze", TT_STRINGS, offsetof(model_args, freeze), "-", 0, 0, NULL,
     "names (with * and ?) of layers that are not trained"},
    {"rename", TT_NODE, offsetof(model_args, rename), "-", 0, 0, NULL,
     "rules {from: to} for names in files given to --init"},
};

tt_err graph_read(tt_node *model, tt_arena *arena, bool tables, graph *g)
{
    model_args a = {0};
    scope top = {"", -1, 0};
    int prev = -1;
    tt_err err = tt_node_read(model, "model", model_keys, TT_COUNT(model_keys), &a);

    *g =
        (graph){.arena = arena, .at = model, .input_at = tt_node_get(model, "input"), .judged = -1};
    g->has_tables = tables;
    if (err) return err;
    if ((err = read_input(g, a.input)) || (err = read_list(g, a.layers, &top, &prev))) return err;
    bool list = a.loss->kind == TT_LIST;
    if (list && (!a.loss->count || a.loss->count > TT_LOSSES))
        return tt_node_fail(a.loss, "1 to %d losses", TT_LOSSES);
    for (int i = 0; i < (list ? a.loss->count : 1); i++)
        if ((err = read_loss(g, list ? a.loss->item[i] : a.loss))) return err;
    if ((err = check_targets(g))) return err;
    err = freeze_by_name(g, &a.freeze, tt_node_get(model, "freeze"));
    return err ? err : check_frozen(g);
}
