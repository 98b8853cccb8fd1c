/* Chapter 2: build a model in C: a small residual network, layer by layer in a loop. Shows what it
 * consists of, trains it on synthetic images and reads a weight. */
#include <stdio.h>
#include <tutti.h>

static tutti_status build(int blocks, int channels, tutti_job **out)
{
    tutti_status err = tutti_job_new("small-resnet", out);
    tutti_job *job = *out;

    /* Calls after a mistake repeat it, so it is enough to look once, at the end. */
    if (err) return err;
    tutti_job_set(job, "model.input=[1, 12, 12]");
    tutti_job_layer(job, "conv: {name: stem, out: %d, kernel: 3, padding: 1}", channels);
    tutti_job_layer(job, "relu");
    for (int i = 0; i < blocks; i++) {
        tutti_job_layer(job, "maxpool: {name: begin%d, size: 2}", i);
        tutti_job_layer(job, "conv: {out: %d, kernel: 3, padding: 1, bias: false}", channels);
        tutti_job_layer(job, "batchnorm");
        tutti_job_layer(job, "relu");
        tutti_job_layer(job, "conv: {out: %d, kernel: 3, padding: 1}", channels);
        tutti_job_layer(job, "add: {from: [prev, begin%d]}", i);
        tutti_job_layer(job, "relu");
    }
    tutti_job_layer(job, "flatten");
    tutti_job_layer(job, "dense: {out: 5}");
    tutti_job_set(job, "model.loss=softmax_cross_entropy");
    tutti_job_set(job, "data.train={format: synth, kind: blobs, count: 1000, noise: 0.5}");
    tutti_job_set(job, "data.val={split: 0.2}");
    tutti_job_set(job, "train={epochs: 2, batch: 50, optimizer: {adam: {lr: 3e-3}}}");
    return tutti_job_check(job);
}

static tutti_status show(const tutti_job *job)
{
    tutti_model *model = NULL;
    tutti_status err = tutti_model_open(job, NULL, NULL, &model);

    for (int i = 0; i < tutti_model_layer_count(model) && !err; i++) {
        tutti_layer_info l;
        if ((err = tutti_model_layer(model, i, &l))) break;
        printf("%-12s %-10s %6lld numbers out %6lld parameters\n", l.name, l.kind,
               (long long)tutti_shape_count(l.out), (long long)l.params);
    }
    tutti_model_close(model);
    return err;
}

static tutti_status train(const tutti_job *job, tutti_progress *last)
{
    tutti_model *model = NULL;
    tutti_shape shape;
    const float *w;
    tutti_status err = tutti_train(job, NULL, last, &model);

    if (!err && !(err = tutti_model_param(model, "stem.weight", &shape, &w))) {
        printf("trained %lld steps: validation accuracy %.1f %%\n", (long long)last->steps,
               100 * last->val.accuracy);
        printf("first filter:");
        for (int i = 0; i < 9; i++) printf(" %.3f", (double)w[i]);
        printf("\n");
    }
    tutti_model_close(model);
    return err;
}

int main(void)
{
    tutti_progress last = {0};
    tutti_job *job = NULL;
    tutti_status err = build(2, 8, &job);

    if (!err) err = show(job);
    if (!err) err = train(job, &last);
    if (!err) printf("\nas a file, for `tutti train`:\n%s", tutti_job_text(job));
    if (err) fprintf(stderr, "build_model: %s\n", tutti_message());
    tutti_job_close(job);
    return err || !(last.val.accuracy > 0.9);
}
