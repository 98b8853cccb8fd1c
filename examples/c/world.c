/* Chapter 5: many processes: a regression with a gradient of its own, on as many processes as it is
 * started with.
 *
 *     world                 alone
 *     mpirun -n 4 world     with four, each on a quarter of the samples
 *
 * Half way it saves a checkpoint. At the end it goes back there and trains the second half again:
 * the same numbers come out, to the last bit. */
#define _XOPEN_SOURCE 700
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tutti.h>

enum { FEATURES = 8, COUNT = FEATURES + 1, SAMPLES = 4000, STEPS = 200 };

/* y = w x + b, and some noise. Sample i is the same on every rank. */
static float sample(int i, float x[FEATURES])
{
    uint64_t state = (uint64_t)i * 2654435761u + 1;
    float y = 0.5f;

    for (int k = 0; k <= FEATURES; k++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        float v = (float)(state >> 40) / (1 << 23) - 1;
        if (k < FEATURES) x[k] = v;
        y += k < FEATURES ? (float)(k - 3) * v : 0.01f * v;
    }
    return y;
}

/* Squared errors and their gradient, summed over the samples of this rank: the number of them. */
static int gradient(const tutti_world *world, const float *w, float *grad, float *loss)
{
    int rank = tutti_world_rank(world), size = tutti_world_size(world), n = 0;

    memset(grad, 0, COUNT * sizeof *grad);
    *loss = 0;
    for (int i = rank; i < SAMPLES; i += size, n++) {
        float x[FEATURES], error = -sample(i, x) + w[FEATURES];
        for (int k = 0; k < FEATURES; k++) error += w[k] * x[k];
        for (int k = 0; k < FEATURES; k++) grad[k] += 2 * error * x[k];
        grad[FEATURES] += 2 * error;
        *loss += error * error;
    }
    return n;
}

/* To the last step. What it saves on the way, and where, `state` says. */
static tutti_status train(tutti_world *world, const tutti_state *state, int64_t step, float *w,
                          float *grad, float *mean_loss)
{
    tutti_update u;
    tutti_status err;

    while (step < STEPS) {
        float loss;
        int n = gradient(world, w, grad, &loss);
        if ((err = tutti_optim_step(state->optim, grad, n, &u))) return err;
        step = u.step;
        if (step == STEPS / 2 && (err = tutti_world_save(world, state, step))) return err;
        if (step < STEPS) continue;
        if ((err = tutti_world_sum(world, &loss, 1))) return err;
        *mean_loss = loss / (float)u.weight;
    }
    return TUTTI_OK;
}

static tutti_status run(tutti_world *world, const char *folder)
{
    static const tutti_tensor parts[] = {{.name = "weight", .shape = {2, {1, FEATURES}}},
                                         {.name = "bias", .shape = {1, {1}}}};
    static const char text[] = "optimizer: {adamw: {lr: 0.1, weight_decay: 1e-4}}\n"
                               "schedule: {cosine: {warmup: 10}}\n"
                               "clip: {norm: 10}\n"
                               "steps: 200\n";
    float w[COUNT] = {0}, first[COUNT], *grad, loss, again;
    tutti_state state = {.folder = folder, .keep = 2};
    tutti_status err;
    int64_t step;

    if ((err = tutti_optim_open(world, text, w, COUNT, parts, 2, &state.optim))) return err;
    if ((err = tutti_world_alloc(world, COUNT, &grad))) goto out;
    if ((err = train(world, &state, 0, w, grad, &loss))) goto out;
    memcpy(first, w, sizeof w);

    memset(w, 0, sizeof w);
    if ((err = tutti_world_restore(world, &state, -1, &step))) goto out;
    if ((err = train(world, &state, step, w, grad, &again))) goto out;
    if (loss != again || memcmp(first, w, sizeof w))
        err = tutti_fail(TUTTI_EINVAL, "from the checkpoint it went another way");
    else if (!(loss < 1e-3))
        err =
            tutti_fail(TUTTI_EINVAL, "this should have learnt more: the loss is %g", (double)loss);
    else if (!tutti_world_rank(world))
        printf("%d processes, %d samples: loss %.6f, and again from step %lld: %.6f\n",
               tutti_world_size(world), SAMPLES, (double)loss, (long long)step, (double)again);
out:
    tutti_optim_close(state.optim);
    return err;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

int main(void)
{
    char folder[] = "/tmp/tutti-world-XXXXXX";
    tutti_world *world = NULL;
    tutti_status err;

    if ((err = tutti_world_join(&world))) {
        fprintf(stderr, "world: %s\n", tutti_message());
        return 1;
    }
    /* Only rank 0 writes there, and reads. */
    if (!tutti_world_rank(world) && !mkdtemp(folder))
        err = tutti_fail(TUTTI_EIO, "%s cannot be made", folder);
    if (!(err = tutti_world_agree(world, err))) {
        err = run(world, folder);
        if (!tutti_world_rank(world)) nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    }
    if (err) fprintf(stderr, "world: rank %d: %s\n", tutti_world_rank(world), tutti_message());
    tutti_world_leave(world, err ? 1 : 0);
    return err ? 1 : 0;
}
