/* metrics: what a validation tells beside its loss: one table for goals, files and displays. */
#include <math.h>

#include "trainer.h"

#define AT(field) offsetof(tt_metrics, field)
#define TWO_CLASSES                                                                                \
    "two classes judged at the last layer, by bce of one output with labels, or by "               \
    "softmax_cross_entropy or nll of two"
const tt_metric tt_metric_table[TT_METRICS] = {
    {"accuracy", AT(accuracy), true, "a loss with classes"},
    {"top5", AT(top5), true, "more than 5 classes"},
    {"auc", AT(auc), false, TWO_CLASSES},
    {"logloss", AT(logloss), false, TWO_CLASSES},
    {"calibration", AT(calibration), false, TWO_CLASSES},
    {"entropy", AT(entropy), false, TWO_CLASSES},
    {"perplexity", AT(perplexity), false,
     "softmax_cross_entropy or nll of tokens, without smoothing and class_weights"},
    {"bits_per_byte", AT(bits_per_byte), false,
     "softmax_cross_entropy or nll of a text, without smoothing and class_weights"},
    {"miou", AT(miou), false,
     "a loss that judges pixels: softmax_cross_entropy or nll of an image whose channels are the "
     "classes"},
};

tt_metrics tt_metrics_none(void)
{
    tt_metrics m = {.loss = NAN};

    for (int i = 0; i < TT_METRICS; i++) *tt_metric_at(&m, i) = NAN;
    for (int i = 0; i < TT_LOSSES; i++) m.part[i] = NAN;
    return m;
}

bool judges_tokens(const tt_model *m)
{
    tt_row row = tt_model_row(m);
    return row.ids > 0 && row.labels == row.ids;
}

bool metric_applies(const tt_model *m, int k)
{
    int classes = tt_model_wants(m).classes;

    switch (tt_metric_table[k].at) {
    case AT(accuracy):
        return classes > 0;
    case AT(top5):
        return classes > 5;
    case AT(auc):
    case AT(logloss):
    case AT(calibration):
    case AT(entropy):
        return tt_model_scores(m) > 0;
    case AT(miou):
        return tt_model_pixel_classes(m) > 0;
    default:
        return judges_tokens(m) && tt_model_plain_loss(m) >= 0;
    }
}

/* How good the probabilities are, where there are two classes. */
static void set_odds(const tt_result *r, tt_metrics *out)
{
    double rows = (double)r->scored, yes = (double)r->yes, share = yes / rows;

    if (!r->scored) return;
    out->logloss = r->logloss / rows;
    if (!r->yes) return;
    out->calibration = r->expected / yes;
    if (r->yes < r->scored)
        out->entropy = -out->logloss / (share * log(share) + (1 - share) * log1p(-share));
}

/* How surprising a token was, on the mean: of the loss that judges it, whatever others add. */
static void set_surprise(const tt_model *m, const tt_data *d, tt_split split, const tt_result *r,
                         tt_metrics *out)
{
    int loss = judges_tokens(m) ? tt_model_plain_loss(m) : -1;
    double nats, bytes;

    if (loss < 0 || !(r->part_weight[loss] > 0)) return;
    nats = r->part[loss] / r->part_weight[loss];
    bytes = tt_data_token_bytes(d, split);
    out->perplexity = exp(nats);
    if (bytes > 0) out->bits_per_byte = nats / log(2) / bytes;
}

tt_metrics metrics_of(const tt_model *m, const tt_data *d, tt_split split, const tt_result *r)
{
    tt_metrics out = tt_metrics_none();
    tt_wants wants = tt_model_wants(m);

    out.samples = (int64_t)r->samples;
    if (r->weight > 0) out.loss = r->loss / r->weight;
    if (wants.classes && r->rows) out.accuracy = (double)r->correct / (double)r->rows;
    if (wants.classes > 5 && r->rows) out.top5 = (double)r->top5 / (double)r->rows;
    set_odds(r, &out);
    set_surprise(m, d, split, r, &out);
    for (int i = 0; i < tt_model_loss_count(m); i++)
        if (r->part_weight[i] > 0) out.part[i] = r->part[i] / r->part_weight[i];
    return out;
}
