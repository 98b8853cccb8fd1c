/* Orders, batches, splits, augmentation and prefetch. */
#include "data_help.h"

#include <pthread.h>

static const char images[] = "train: {format: synth, kind: images, count: 103}\n"
                             "augment: {crop: 2, flip: true}\n"
                             "normalize: {mean: [0.5, 0.4], std: [0.2, 0.3]}\n";

/* The samples of all steps of the first three passes, as they come with these turns. */
static void expect_each_once(const tt_order *last, const tt_order *first, int64_t turned)
{
    int seen[3][103] = {{0}};
    int64_t all = 3 * 103, at = 0;

    for (int64_t s = 0; at < all; s++)
        for (int i = 0; i < tt_order_size(last, s) && at < all; i++, at++) {
            tt_place p = tt_order_place(last, s, i);
            int64_t row = tt_order_sample(last, p);
            EXPECT(row >= 0 && row < 103);
            seen[p.pass][row]++;
            if (s < turned) EXPECT_INT(tt_order_sample(first, p), row); /* what is done is done */
        }
    for (int i = 0; i < 3 * 103; i++) EXPECT_INT(1, seen[i / 103][i % 103]);
}

TT_TEST(data_order, after_a_turn_the_rest_comes_in_another_order_and_each_sample_still_once)
{
    for (int by_pass = 0; by_pass < 2; by_pass++)
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            tt_order o = {.count = 103,
                          .batch = 10,
                          .by_pass = by_pass,
                          .shuffle = shuffle,
                          .seed = 3},
                     before = o;
            static const int64_t steps[] = {4, 4, 7, 11, 14};
            for (int i = 0; i < TT_COUNT(steps); i++) {
                tt_order next = o;
                int other = 0;
                EXPECT(tt_order_turn(&next, steps[i]));
                expect_each_once(&next, &before, steps[0]);
                expect_each_once(&next, &o, steps[i]);
                for (int k = 0; k < 10; k++) {
                    tt_place p = tt_order_place(&o, steps[i], k);
                    other += tt_order_sample(&o, p) != tt_order_sample(&next, p);
                }
                EXPECT(other > 5);
                o = next;
            }
        }
}

TT_TEST(data_order, turns_of_one_pass_come_to_an_end)
{
    tt_order o = {.count = 103, .batch = 10, .by_pass = true, .shuffle = true};

    for (int i = 0; i < TT_TURNS; i++) EXPECT(tt_order_turn(&o, 5));
    EXPECT(!tt_order_turn(&o, 6));
    EXPECT(tt_order_turn(&o, 500));
}

TT_TEST(data_order, every_sample_comes_once_in_a_pass)
{
    tt_order o = {.count = 103, .batch = 10, .by_pass = true, .shuffle = true, .seed = 3};
    int order[3][103], seen[103] = {0};

    EXPECT_INT(11, tt_order_steps(&o));
    for (int pass = 0; pass < 3; pass++)
        for (int step = 0, at = 0; step < 11; step++) {
            int64_t s = pass * 11 + step;
            EXPECT_INT(step < 10 ? 10 : 3, tt_order_size(&o, s)); /* the last one is shorter */
            for (int i = 0; i < tt_order_size(&o, s); i++, at++) {
                tt_place p = tt_order_place(&o, s, i);
                EXPECT_INT(pass, p.pass);
                EXPECT_INT(at, p.at);
                order[pass][at] = (int)tt_order_sample(&o, p);
                seen[order[pass][at]]++;
            }
        }
    for (int i = 0; i < 103; i++) EXPECT_INT(3, seen[i]);
    EXPECT(memcmp(order[0], order[1], sizeof order[0]) != 0);
    o.seed = 4;
    int same = 0;
    for (int i = 0; i < 103; i++) same += order[0][i] == tt_order_sample(&o, (tt_place){0, i});
    EXPECT(same < 20);
}

TT_TEST(data_order, steps_that_cross_passes_have_one_size)
{
    tt_order o = {.count = 7, .batch = 5, .shuffle = true, .seed = 1};
    int seen[7] = {0};

    for (int step = 0; step < 7; step++) { /* 35 samples are 5 passes */
        EXPECT_INT(5, tt_order_size(&o, step));
        for (int i = 0; i < 5; i++) {
            tt_place p = tt_order_place(&o, step, i);
            EXPECT_INT((step * 5 + i) / 7, p.pass);
            seen[tt_order_sample(&o, p)]++;
        }
    }
    for (int i = 0; i < 7; i++) EXPECT_INT(5, seen[i]);
    o.shuffle = false;
    EXPECT_INT(6, tt_order_sample(&o, tt_order_place(&o, 1, 1)));
    EXPECT_INT(0, tt_order_sample(&o, tt_order_place(&o, 1, 2)));
}

TT_TEST(data_fill, a_step_is_the_sum_of_its_grains)
{
    tt_data_want want = wants(3, 2, 9, 8, 10, 0);
    tt_order order = {
        .count = 103, .batch = 24, .by_pass = true, .shuffle = true, .augment = true, .seed = 5};
    tt_batch full, grain;
    opened o;

    EXPECT_OK(open_text(images, want, &o));
    EXPECT_OK(tt_batch_open(24, ROW(144, 1, 0), &full));
    EXPECT_OK(tt_batch_open(24, ROW(144, 1, 0), &grain));
    for (int step = 0; step < 10; step++) {
        int n = tt_order_size(&order, step);
        EXPECT_OK(tt_data_fill(o.data, TT_TRAIN, &order, step, 0, n, &full));
        EXPECT_INT(n, full.n);
        for (int first = 0; first < n; first += 5) {
            int k = n - first < 5 ? n - first : 5;
            EXPECT_OK(tt_data_fill(o.data, TT_TRAIN, &order, step, first, k, &grain));
            tt_batch cut = tt_batch_cut(&full, first, k, ROW(144, 1, 0));
            EXPECT(!memcmp(cut.x, grain.x, (size_t)k * 144 * 4));
            EXPECT(!memcmp(cut.label, grain.label, (size_t)k * 4));
            EXPECT(!memcmp(cut.place, grain.place, (size_t)k * 16));
        }
    }
    tt_batch_close(&full, 24, ROW(144, 1, 0));
    tt_batch_close(&grain, 24, ROW(144, 1, 0));
    shut(&o);
}

TT_TEST(data_fill, asks_beyond_the_step_are_refused)
{
    tt_data_want want = wants(3, 2, 9, 8, 10, 0);
    tt_order order = {.count = 103, .batch = 24, .by_pass = true};
    tt_batch b;
    opened o;

    EXPECT_OK(open_text(images, want, &o));
    EXPECT_OK(tt_batch_open(24, ROW(144, 1, 0), &b));
    EXPECT_ERR(TT_EINVAL, tt_data_fill(o.data, TT_TRAIN, &order, 4, 0, 8, &b)); /* 7 are left */
    EXPECT_ERR(TT_EINVAL, tt_data_fill(o.data, TT_TRAIN, &order, 0, 20, 5, &b));
    EXPECT_ERR(TT_EINVAL, tt_data_fill(o.data, TT_TRAIN, &order, -1, 0, 1, &b));
    EXPECT_ERR(TT_EINVAL, tt_data_fill(o.data, TT_VAL, &order, 0, 0, 1, &b));
    EXPECT_MESSAGE("no validation data");
    order.count = 100;
    EXPECT_ERR(TT_EINVAL, tt_data_fill(o.data, TT_TRAIN, &order, 0, 0, 1, &b));
    tt_batch_close(&b, 24, ROW(144, 1, 0));
    shut(&o);
}

/* One image of 4 x 4, pixel value 16 y + x + 1, cropped and mirrored by hand for every shift. */
TT_TEST(data_fill, augmentation_is_a_shifted_and_mirrored_image)
{
    uint8_t pixel[16];
    int dim[] = {1, 4, 4}, flips = 0;
    bool shift_seen[3][3] = {{false}};
    tt_data_want want = wants(3, 1, 4, 4, 0, 0);
    tt_order order = {.count = 1, .batch = 1, .by_pass = true, .augment = true, .seed = 1};
    tt_batch b;
    opened o;

    for (int i = 0; i < 16; i++) pixel[i] = (uint8_t)(i / 4 * 16 + i % 4 + 1);
    write_idx("x", 3, dim, pixel, 16);
    EXPECT_OK(open_text("dir: .\nscale: 1\ntrain: {format: idx, images: x}\n"
                        "val: {images: x}\naugment: {crop: 1, flip: true}",
                        want, &o));
    EXPECT_OK(tt_batch_open(1, ROW(16, 0, 0), &b));
    for (int step = 0; step < 200; step++) {
        int found = 0, fdy = 0, fdx = 0, fflip = 0;
        EXPECT_OK(tt_data_fill(o.data, TT_TRAIN, &order, step, 0, 1, &b));
        for (int k = 0; k < 18; k++) {
            int dy = k / 6 - 1, dx = k / 2 % 3 - 1, flip = k % 2, equal = 1;
            for (int i = 0; i < 16; i++) {
                int y = i / 4 + dy, x = (flip ? 3 - i % 4 : i % 4) + dx;
                int want_pixel = y < 0 || y > 3 || x < 0 || x > 3 ? 0 : pixel[y * 4 + x];
                equal &= b.x[i] == (float)want_pixel;
            }
            if (equal) found++, fdy = dy, fdx = dx, fflip = flip;
        }
        EXPECT_INT(1, found);
        shift_seen[fdy + 1][fdx + 1] = true;
        flips += fflip;
    }
    for (int i = 0; i < 9; i++) EXPECT(shift_seen[i / 3][i % 3]);
    EXPECT(flips > 60 && flips < 140);
    order.augment = false;
    EXPECT_OK(tt_data_fill(o.data, TT_VAL, &order, 3, 0, 1, &b));
    for (int i = 0; i < 16; i++) EXPECT(b.x[i] == (float)pixel[i]);
    tt_batch_close(&b, 1, ROW(16, 1, 0));
    shut(&o);
}

/* Pixels that are their own labels stay so, wherever they go. */
TT_TEST(data_fill, labels_of_pixels_move_with_them)
{
    uint8_t pixel[2 * 16];
    int dim[] = {2, 4, 4}, outside = 0;
    tt_data_want want = wants(3, 1, 4, 4, 20, 0);
    tt_order order = {.count = 2, .batch = 2, .by_pass = true, .augment = true, .seed = 1};
    static const char job[] = "dir: .\nscale: 1\ntrain: {format: idx, images: x, labels: x}\n"
                              "augment: {crop: 1, flip: true}";
    tt_batch b;
    opened o;

    want.labels = 16;
    for (int i = 0; i < 32; i++) pixel[i] = (uint8_t)(i % 16 + 1 + i / 16);
    write_idx("x", 3, dim, pixel, 32);
    EXPECT_OK(open_text(job, want, &o));
    EXPECT_OK(tt_batch_open(2, ROW(16, 16, 0), &b));
    for (int step = 0; step < 50; step++) {
        EXPECT_OK(tt_data_fill(o.data, TT_TRAIN, &order, step, 0, 2, &b));
        for (int i = 0; i < 32; i++) {
            EXPECT_INT(b.x[i] == 0 ? -1 : (int)b.x[i], b.label[i]);
            outside += b.label[i] < 0;
        }
    }
    EXPECT(outside > 100);
    tt_batch_close(&b, 2, ROW(16, 16, 0));
    shut(&o);
    dim[1] = dim[2] = 2;
    write_idx("y", 3, dim, pixel, 8);
    want.labels = 4;
    EXPECT_REFUSED(TT_EINVAL, "augment moves pixels",
                   "dir: .\ntrain: {format: idx, images: x, labels: y}\naugment: {flip: true}",
                   want);
}

TT_TEST(data_fill, normalisation_is_per_channel_and_auto_finds_it)
{
    uint8_t pixel[] = {0, 255, 10, 10, 255, 0, 30, 30}; /* 2 samples, 2 channels, 1 x 2 */
    int dim[] = {2, 2, 1, 2};
    tt_data_want want = wants(3, 2, 1, 2, 0, 0);
    opened o;
    whole w;

    write_idx("x", 4, dim, pixel, 8);
    EXPECT_OK(open_text("dir: .\ntrain: {format: idx, images: x}\n"
                        "normalize: {mean: [0.5, 0], std: [0.25, 1]}",
                        want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    EXPECT_NEAR(-2, w.b.x[0], 1e-6);
    EXPECT_NEAR(2, w.b.x[1], 1e-6);
    EXPECT_NEAR(10 / 255.0, w.b.x[2], 1e-6);
    EXPECT_NEAR(30 / 255.0, w.b.x[7], 1e-6);
    free_all(&w);
    shut(&o);
    EXPECT_OK(open_text("dir: .\ntrain: {format: idx, images: x}\nnormalize: auto", want, &o));
    w = take_all(o.data, TT_TRAIN, want);
    float expected[] = {-1, 1, -1, -1, 1, -1, 1, 1};
    for (int i = 0; i < 8; i++) EXPECT_NEAR(expected[i], w.b.x[i], 1e-5);
    free_all(&w);
    shut(&o);
    EXPECT_REFUSED(TT_EINVAL, "3 numbers for 2 channels",
                   "dir: .\ntrain: {format: idx, images: x}\nnormalize: {mean: [1, 2, 3], std: 1}",
                   want);
    EXPECT_REFUSED(TT_EINVAL, "above 0",
                   "dir: .\ntrain: {format: idx, images: x}\nnormalize: {mean: 0, std: 0}", want);
    EXPECT_REFUSED(TT_EINVAL, "did you mean",
                   "dir: .\ntrain: {format: idx, images: x}\nnormalise: auto", want);
}

TT_TEST(data_split, training_and_validation_share_no_sample)
{
    int seen[100] = {0};
    tt_data_want want = wants_vector(1, 2, 0);
    opened o;
    whole t, v;
    tt_str csv = {0};

    for (int i = 0; i < 100; i++) tt_str_add(&csv, "%d,%d\n", i, i % 2);
    write_text("d.csv", csv.data);
    tt_str_free(&csv);
    EXPECT_OK(open_text("dir: .\ntrain: {format: csv, file: d.csv, label: 1}\nval: {split: 0.25}",
                        want, &o));
    EXPECT_INT(75, tt_data_count(o.data, TT_TRAIN));
    EXPECT_INT(25, tt_data_count(o.data, TT_VAL));
    EXPECT_STR("25 of 1 cut from d.csv", tt_data_describe(o.data, TT_VAL));
    t = take_all(o.data, TT_TRAIN, want);
    v = take_all(o.data, TT_VAL, want);
    for (int i = 0; i < 75; i++) seen[(int)t.b.x[i]]++;
    for (int i = 0; i < 25; i++) {
        seen[(int)v.b.x[i]]++;
        EXPECT_INT((int)v.b.x[i] % 2, v.b.label[i]);
    }
    for (int i = 0; i < 100; i++) EXPECT_INT(1, seen[i]);
    free_all(&t);
    free_all(&v);
    shut(&o);
    EXPECT_REFUSED(TT_EINVAL, "split",
                   "dir: .\ntrain: {format: csv, file: d.csv, label: 1}\n"
                   "val: {split: 1.5}",
                   want);
}

TT_TEST(data_split, hidden_labels_are_an_exact_fraction_of_training_alone)
{
    tt_data_want want = wants_vector(3, 4, 0), regress = wants_vector(3, 0, 2);
    opened o;
    whole t, v;
    int hidden = 0;

    EXPECT_OK(open_text("train: {format: synth, kind: blobs, count: 200}\nval: {count: 50}\n"
                        "unlabelled: 0.3",
                        want, &o));
    t = take_all(o.data, TT_TRAIN, want);
    v = take_all(o.data, TT_VAL, want);
    for (int i = 0; i < 200; i++) hidden += t.b.label[i] == -1;
    EXPECT_INT(60, hidden);
    for (int i = 0; i < 50; i++) EXPECT(v.b.label[i] >= 0);
    free_all(&t);
    free_all(&v);
    shut(&o);
    EXPECT_OK(open_text("train: {format: synth, kind: regression, count: 200}\nunlabelled: 0.5",
                        regress, &o));
    t = take_all(o.data, TT_TRAIN, regress);
    hidden = 0;
    for (int i = 0; i < 200; i++) hidden += isnan(t.b.target[2 * i]);
    EXPECT_INT(100, hidden);
    free_all(&t);
    shut(&o);
    want.classes = 0;
    EXPECT_REFUSED(TT_EINVAL, "no labels that could be hidden",
                   "train: {format: synth, count: 20}\nunlabelled: 0.5", want);
}

TT_TEST(data_feed, threads_hand_out_what_inline_does)
{
    tt_data_want want = wants(3, 2, 9, 8, 10, 0);
    tt_order order = {
        .count = 103, .batch = 16, .by_pass = true, .shuffle = true, .augment = true, .seed = 5};
    tt_feed *inline_feed, *feed;
    const tt_batch *a, *b;
    opened o;

    EXPECT_OK(open_text(images, want, &o));
    for (int threads = 1; threads <= 3; threads++)
        for (int depth = 1; depth <= 4; depth += 3) {
            EXPECT_OK(tt_feed_open(o.data, TT_TRAIN, &order, NULL, 5, 0, depth, &inline_feed));
            EXPECT_OK(tt_feed_open(o.data, TT_TRAIN, &order, NULL, 5, threads, depth, &feed));
            for (int step = 5; step < 40; step++) {
                EXPECT_OK(tt_feed_take(inline_feed, &a));
                EXPECT_OK(tt_feed_take(feed, &b));
                EXPECT_INT(tt_order_size(&order, step), b->n);
                EXPECT_INT(a->n, b->n);
                EXPECT(!memcmp(a->x, b->x, (size_t)a->n * 144 * 4));
                EXPECT(!memcmp(a->label, b->label, (size_t)a->n * 4));
                EXPECT(!memcmp(a->place, b->place, (size_t)a->n * 16));
            }
            tt_feed_close(inline_feed);
            tt_feed_close(feed); /* with threads in the middle of their work */
        }
    order.batch = 0;
    EXPECT_ERR(TT_EINVAL, tt_feed_open(o.data, TT_TRAIN, &order, NULL, 0, 1, 1, &feed));
    EXPECT_ERR(TT_EINVAL, tt_feed_open(o.data, TT_VAL, &order, NULL, 0, 1, 1, &feed));
    EXPECT(!feed);
    tt_feed_close(NULL);
    shut(&o);
}

/* Two share each step, and who takes what changes while batches are made ahead. */
TT_TEST(data_feed, a_part_that_changes_loses_and_repeats_no_sample)
{
    tt_data_want want = wants(3, 2, 9, 8, 10, 0);
    tt_order order = {
        .count = 103, .batch = 16, .by_pass = true, .shuffle = true, .augment = true, .seed = 5};
    tt_feed *both, *feed[2];
    const tt_batch *all, *part;
    opened o;

    EXPECT_OK(open_text(images, want, &o));
    for (int threads = 0; threads <= 3; threads++) {
        tt_cut cut[2] = {{0, 3, 8}, {3, 8, 8}};
        EXPECT_OK(tt_feed_open(o.data, TT_TRAIN, &order, NULL, 5, 0, 1, &both));
        for (int k = 0; k < 2; k++)
            EXPECT_OK(tt_feed_open(o.data, TT_TRAIN, &order, &cut[k], 5, threads, 3, &feed[k]));
        for (int step = 5; step < 60; step++) {
            int at = 0;
            if (step % 3 == 0) cut[0].end = cut[1].first = (int)(tt_mix((uint64_t)step) % 9);
            EXPECT_OK(tt_feed_take(both, &all));
            for (int k = 0; k < 2; k++) {
                tt_feed_recut(feed[k], &cut[k]);
                EXPECT_OK(tt_feed_take(feed[k], &part));
                EXPECT(at + part->n <= all->n);
                EXPECT(!memcmp(all->x + (size_t)at * 144, part->x, (size_t)part->n * 144 * 4));
                EXPECT(!memcmp(all->label + at, part->label, (size_t)part->n * 4));
                EXPECT(!memcmp(all->place + 2 * at, part->place, (size_t)part->n * 16));
                at += part->n;
            }
            EXPECT_INT(all->n, at);
        }
        tt_feed_close(both);
        for (int k = 0; k < 2; k++) tt_feed_close(feed[k]);
    }
    shut(&o);
}

static void *ask_for_sha(void *arg)
{
    return (void *)tt_data_sha(arg);
}

TT_TEST(data_open, the_fingerprint_follows_content_alone)
{
    tt_data_want want = wants_vector(3, 4, 0);
    pthread_t thread[3];
    char first[65];
    opened o;

    EXPECT_OK(open_text("train: {format: synth, count: 20}", want, &o));
    for (int i = 0; i < 3; i++) pthread_create(&thread[i], NULL, ask_for_sha, o.data);
    for (int i = 0; i < 3; i++) {
        void *sha;
        pthread_join(thread[i], &sha);
        EXPECT_STR(tt_data_sha(o.data), sha);
    }
    EXPECT_INT(64, (int)strlen(tt_data_sha(o.data)));
    snprintf(first, sizeof first, "%s", tt_data_sha(o.data));
    shut(&o);
    EXPECT_OK(open_text("train: {format: synth, count: 20}\nthreads: 3\nshuffle: false", want, &o));
    EXPECT_STR(first, tt_data_sha(o.data));
    EXPECT(!tt_data_feeding(o.data).shuffle);
    EXPECT_INT(3, tt_data_feeding(o.data).threads);
    shut(&o);
    EXPECT_OK(open_text("train: {format: synth, count: 20, seed: 1}", want, &o));
    EXPECT(strcmp(first, tt_data_sha(o.data)) != 0);
    shut(&o);
}

TT_TEST(data_open, rows_in_memory_are_borrowed_and_checked)
{
    float x[] = {1, 2, 3, 4, 5, 6}, y[] = {10, 20, 30};
    int32_t label[] = {0, 1, -1};
    tt_data_rows rows = {.x = x, .label = label, .n = 3};
    tt_data_want want = wants_vector(2, 2, 0);
    tt_data *d;
    whole w;

    EXPECT_OK(tt_data_open_rows(&want, &rows, NULL, 1, &d));
    w = take_all(d, TT_TRAIN, want);
    EXPECT(!memcmp(w.b.x, x, sizeof x) && !memcmp(w.b.label, label, sizeof label));
    EXPECT_INT(0, tt_data_count(d, TT_VAL));
    EXPECT_INT(2, tt_data_classes(d));
    EXPECT(!tt_data_class_name(d, 0));
    free_all(&w);
    tt_data_close(d);

    label[1] = 2;
    EXPECT_ERR(TT_EINVAL, tt_data_open_rows(&want, &rows, NULL, 1, &d));
    EXPECT_MESSAGE("row 1: label 2");
    EXPECT(!d);
    want = wants_vector(2, 0, 1);
    EXPECT_ERR(TT_EINVAL, tt_data_open_rows(&want, &rows, &rows, 1, &d));
    EXPECT_MESSAGE("no targets");
    rows.target = y;
    EXPECT_OK(tt_data_open_rows(&want, &rows, &rows, 1, &d));
    w = take_all(d, TT_VAL, want);
    EXPECT(!memcmp(w.b.target, y, sizeof y));
    free_all(&w);
    tt_data_close(d);
    x[3] = NAN;
    EXPECT_ERR(TT_EINVAL, tt_data_open_rows(&want, &rows, NULL, 1, &d));
    EXPECT_MESSAGE("row 1, value 1");
    rows.x = NULL;
    EXPECT_ERR(TT_EINVAL, tt_data_open_rows(&want, &rows, NULL, 1, &d));
    EXPECT_MESSAGE("training rows: x is NULL");
    rows.n = 0;
    rows.name = "rows to evaluate";
    EXPECT_ERR(TT_EINVAL, tt_data_open_rows(&want, &rows, NULL, 1, &d));
    EXPECT_MESSAGE("rows to evaluate: there must be at least one, not 0");
}

TT_TEST(data_open, wrong_jobs_are_refused_with_their_line)
{
    tt_data_want want = wants(3, 1, 4, 4, 2, 0), vector = wants_vector(16, 2, 0);

    EXPECT_REFUSED(TT_EINVAL, "train", "shuffle: true", want);
    EXPECT_REFUSED(TT_EINVAL, "format", "train: {kind: blobs}", want);
    EXPECT_REFUSED(TT_EINVAL, "job.yaml:1", "train: {format: idxx, images: x}", want);
    EXPECT_REFUSED(TT_EINVAL, "count", "train: {format: synth, count: 0}", want);
    EXPECT_REFUSED(TT_EINVAL, "did you mean 'crop'", "train: {format: synth}\naugment: {corp: 1}",
                   want);
    EXPECT_REFUSED(TT_EINVAL, "augment is for images", "train: {format: synth}\naugment: {crop: 1}",
                   vector);
    EXPECT_REFUSED(TT_EINVAL, "4 pixels of padding", "train: {format: synth}\naugment: {crop: 4}",
                   want);
    EXPECT_REFUSED(TT_EINVAL, "scale must be", "train: {format: synth}\nscale: big", want);
    EXPECT_REFUSED(TT_EINVAL, "NO_SUCH_VARIABLE is not set",
                   "dir: $NO_SUCH_VARIABLE/x\ntrain: {format: synth}", want);
    EXPECT_REFUSED(TT_EINVAL, "not closed", "dir: '${HOME'\ntrain: {format: synth}", want);
    EXPECT_REFUSED(TT_EINVAL, "use kind: blobs", "train: {format: synth, kind: regression}", want);
    EXPECT_REFUSED(TT_EINVAL, "the model has 2", "train: {format: synth, classes: 3}", want);
}

TT_TEST(data_speed, bytes_become_floats_at_memory_speed)
{
    tt_data_want want = wants(3, 1, 28, 28, 10, 0);
    tt_order order = {.count = 60000, .batch = 1000, .shuffle = true, .augment = true, .seed = 5};
    double best = 1e9;
    tt_batch b;
    opened o;

    EXPECT_OK(open_text("train: {format: synth, kind: images, count: 60000}", want, &o));
    EXPECT_OK(tt_batch_open(1000, ROW(784, 1, 0), &b));
    for (int i = 0; i < 50; i++) {
        double begun = tt_clock_s();
        EXPECT_OK(tt_data_fill(o.data, TT_TRAIN, &order, i, 0, 1000, &b));
        double took = tt_clock_s() - begun;
        if (took < best) best = took;
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__OPTIMIZE__)
    EXPECT(1000 * 784 * 4 / best > 0.25e9); /* a quarter of the aim, for noisy machines */
#endif
    tt_batch_close(&b, 1000, ROW(784, 1, 0));
    shut(&o);
}

TT_TEST(data_order, hosts_with_rows_of_their_own_give_each_once_a_pass)
{
    static const int64_t rows[3] = {100, 1, 37};

    for (int way = 0; way < 2; way++) {
        int seen[3][128] = {{0}};
        int64_t first = 0, steps = 0;
        for (int h = 0; h < 3; h++) {
            tt_order o = {.count = rows[h],
                          .batch = 16,
                          .total = 138,
                          .first = first,
                          .by_pass = !way,
                          .shuffle = true,
                          .seed = 5};
            steps = way ? 69 : tt_order_steps(&o); /* 69 x 16 are 8 passes */
            EXPECT_INT(9, tt_order_steps(&o));
            for (int64_t s = 0; s < steps; s++) {
                EXPECT(tt_order_size(&o, s) <= tt_order_most(&o));
                for (int i = 0; i < tt_order_size(&o, s); i++) {
                    tt_place p = tt_order_place(&o, s, i);
                    EXPECT(p.at >= first && p.at < first + rows[h]);
                    seen[h][tt_order_sample(&o, p)]++;
                }
            }
            first += rows[h];
        }
        for (int h = 0; h < 3; h++)
            for (int i = 0; i < rows[h]; i++) EXPECT_INT(way ? 8 : 1, seen[h][i]);
    }
    /* and all steps but the last of a pass have about the batch */
    for (int64_t s = 0; s < 9; s++) {
        int n = 0;
        for (int h = 0; h < 3; h++) {
            tt_order o = {.count = rows[h], .batch = 16, .total = 138, .by_pass = true};
            n += tt_order_size(&o, s);
        }
        EXPECT(s == 8 ? n <= 16 : n >= 14 && n <= 18);
    }
}
