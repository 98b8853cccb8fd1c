/* Chapter 1: train a job, step by step.
 *
 *     train_job              trains the job below, on data made on the spot
 *     train_job job.yaml     trains that job and writes a run folder below runs/ */
#include <stdio.h>
#include <tutti.h>

static const char blobs[] = "name: blobs\n"
                            "model:\n"
                            "  input: [16]\n"
                            "  layers:\n"
                            "    - dense: {out: 32}\n"
                            "    - relu\n"
                            "    - dense: {out: 4}\n"
                            "  loss: softmax_cross_entropy\n"
                            "data:\n"
                            "  train: {format: synth, kind: blobs, count: 2000, noise: 0.3}\n"
                            "  val: {split: 0.2}\n"
                            "train:\n"
                            "  epochs: 3\n"
                            "  batch: 32\n"
                            "  optimizer: {sgd: {lr: 0.05, momentum: 0.9}}\n";

static tutti_status train(tutti_trainer *t, tutti_progress *p)
{
    tutti_status err;

    do {
        if ((err = tutti_trainer_step(t, p))) return err;
        if (p->save_trouble) fprintf(stderr, "not saved: %s\n", p->save_trouble);
        if (!p->epoch_end && !p->end) continue;
        printf("epoch %.3g of %.3g: loss %.4f", p->epoch, p->epochs, p->loss_mean);
        if (p->val.samples) printf(", validation loss %.4f", p->val.loss);
        if (p->val.accuracy >= 0) printf(", accuracy %.1f %%", 100 * p->val.accuracy);
        printf("\n");
    } while (!p->end);
    printf("%s after %lld steps\n", p->end, (long long)p->step);
    return tutti_trainer_finish(t);
}

int main(int argc, char **argv)
{
    tutti_options options = {.runs = argc > 1 ? "runs" : NULL};
    tutti_progress p = {0};
    tutti_trainer *trainer = NULL;
    tutti_job *job = NULL;
    tutti_status err;

    err = argc > 1 ? tutti_job_open(argv[1], &job) : tutti_job_parse("blobs", blobs, &job);
    if (!err) err = tutti_trainer_open(job, &options, &trainer);
    if (!err) err = train(trainer, &p);
    if (!err && *tutti_trainer_run(trainer)) printf("see %s\n", tutti_trainer_run(trainer));
    if (err) fprintf(stderr, "train_job: %s\n", tutti_message());
    tutti_trainer_close(trainer);
    tutti_job_close(job);
    if (!err && argc == 1 && !(p.val.accuracy > 0.9)) {
        fprintf(stderr, "train_job: this should have learnt more\n");
        return 1;
    }
    return err ? 1 : 0;
}
