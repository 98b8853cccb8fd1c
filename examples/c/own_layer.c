/* Chapter 3: a layer of your own: softsign with a slope that is learnt for every feature,
 *
 *     y = x / (1 + a |x|)      dy/dx = 1 / (1 + a |x|)^2      dy/da = -x |x| / (1 + a |x|)^2 */
#include <stdio.h>
#include <stdlib.h>
#include <tutti.h>

static tutti_status shape(const tutti_args *args, void *user, tutti_shape in, tutti_shape *out,
                          tutti_param params[TUTTI_PARAMS], int *param_count)
{
    double start = tutti_arg(args, "start");

    (void)user;
    if (start <= 0) return tutti_fail(TUTTI_EINVAL, "start must be above 0, not %g", start);
    *out = in;
    params[0] = (tutti_param){.name = "slope", .shape = in, .fill = (float)start};
    *param_count = 1;
    return TUTTI_OK;
}

static float size_of(float x)
{
    return x < 0 ? -x : x;
}

static void forward(const tutti_pass *p)
{
    const float *a = p->w[0];

    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t i = 0; i < p->in_count; i++) {
            float x = p->x[r * p->in_count + i];
            p->y[r * p->out_count + i] = x / (1 + a[i] * size_of(x));
        }
}

static void backward(const tutti_pass *p)
{
    const float *a = p->w[0];

    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t i = 0; i < p->in_count; i++) {
            int64_t at = r * p->in_count + i;
            float x = p->x[at], d = 1 + a[i] * size_of(x), g = p->dy[at] / (d * d);
            if (p->dx) p->dx[at] = g;                        /* overwrite */
            if (p->dw[0]) p->dw[0][i] -= g * x * size_of(x); /* add       */
        }
}

static const tutti_layer softsign = {.kind = "softsign",
                                     .keys = "start: 1",
                                     .shape = shape,
                                     .forward = forward,
                                     .backward = backward};

/* The second input decides the sign of the first: no straight line tells the classes apart. */
enum { COUNT = 1000 };
static float x[COUNT][2];
static int32_t label[COUNT];

int main(void)
{
    tutti_shape two = {.rank = 1, .dim = {2}};
    tutti_rows rows = {.count = COUNT, .x = &x[0][0], .label = label};
    tutti_options options = {.train = &rows, .val = &rows};
    tutti_progress last = {0};
    tutti_job *job = NULL;
    tutti_status err = tutti_layer_add(&softsign);

    for (int i = 0; i < COUNT; i++) {
        for (int k = 0; k < 2; k++) x[i][k] = (float)(rand() % 2001 - 1000) / 1000;
        label[i] = x[i][0] * x[i][1] > 0;
    }
    if (!err) err = tutti_layer_check("softsign: {start: 0.5}", two, 1e-2);
    if (!err) printf("gradients agree with finite differences\n");
    if (!err) err = tutti_job_new("own-layer", &job);
    if (!err) {
        tutti_job_set(job, "model.input=[2]");
        tutti_job_layer(job, "dense: {out: 16}");
        tutti_job_layer(job, "softsign: {start: 2}");
        tutti_job_layer(job, "dense: {out: 2}");
        tutti_job_set(job, "model.loss=softmax_cross_entropy");
        tutti_job_set(job, "train={epochs: 30, batch: 50, optimizer: {adam: {lr: 0.02}}}");
        err = tutti_train(job, &options, &last, NULL);
    }
    if (!err) printf("accuracy %.1f %% after %.0f epochs\n", 100 * last.val.accuracy, last.epoch);
    if (err) fprintf(stderr, "own_layer: %s\n", tutti_message());
    tutti_job_close(job);
    return err || !(last.val.accuracy > 0.9);
}
