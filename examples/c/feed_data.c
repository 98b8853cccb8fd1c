/* Chapter 4: data from memory: learns z = x * y from arrays of this program, judges the model on
 * points it has not seen, saves it, and takes it up again as another program would. */
#include <stdio.h>
#include <stdlib.h>
#include <tutti.h>

enum { TRAIN = 2000, VAL = 500 };
static float points[TRAIN + VAL][2], products[TRAIN + VAL];

static const char text[] = "name: product\n"
                           "model:\n"
                           "  input: [2]\n"
                           "  layers:\n"
                           "    - mlp: {hidden: [32, 32], out: 1, activation: tanh}\n"
                           "  loss: mse\n"
                           "train: {epochs: 30, batch: 50, optimizer: {adam: {lr: 5e-3}}}\n";

static void make_data(void)
{
    for (int i = 0; i < TRAIN + VAL; i++) {
        for (int k = 0; k < 2; k++) points[i][k] = (float)(rand() % 2001 - 1000) / 1000;
        products[i] = points[i][0] * points[i][1];
    }
}

/* A model from a file, as a program has it that does not train. */
static tutti_status use(const tutti_job *job, const char *weights)
{
    static const float asked[3][2] = {{0.5f, 0.5f}, {-0.8f, 0.6f}, {0.9f, -0.1f}};
    float answer[3];
    tutti_model *model = NULL;
    tutti_status err = tutti_model_open(job, weights, NULL, &model);

    if (!err) err = tutti_model_predict(model, &asked[0][0], 3, answer);
    for (int i = 0; i < 3 && !err; i++)
        printf("%5.2f x %5.2f = %6.3f\n", (double)asked[i][0], (double)asked[i][1],
               (double)answer[i]);
    tutti_model_close(model);
    return err;
}

int main(void)
{
    tutti_rows train = {.count = TRAIN, .x = &points[0][0], .target = products};
    tutti_rows val = {.count = VAL, .x = &points[TRAIN][0], .target = products + TRAIN};
    tutti_options options = {.train = &train, .val = &val};
    tutti_metrics metrics = {.loss = 1};
    tutti_model *model = NULL;
    tutti_job *job = NULL;
    tutti_status err;

    make_data();
    err = tutti_job_parse("product", text, &job);
    if (!err) err = tutti_train(job, &options, NULL, &model);
    if (!err) err = tutti_model_eval(model, &val, &metrics);
    if (!err)
        printf("squared error on %lld new points: %.5f\n", (long long)metrics.samples,
               metrics.loss);
    if (!err) err = tutti_model_export(model, "product.safetensors");
    if (!err) err = use(job, "product.safetensors");
    if (err) fprintf(stderr, "feed_data: %s\n", tutti_message());
    tutti_model_close(model);
    tutti_job_close(job);
    remove("product.safetensors");
    return err || !(metrics.loss < 0.01);
}
