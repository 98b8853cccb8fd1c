/* Content in common: decoded by one process, the same for all, whatever becomes of that one. */
#define _GNU_SOURCE
#include "data_help.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static tt_err open_common(const char *text, tt_data_want want, const char *folders,
                          double timeout_s, opened *o)
{
    *o = (opened){0};
    EXPECT_OK(tt_tree_parse("job.yaml", text, strlen(text), &o->tree));
    return tt_data_open_common(tt_tree_root(o->tree), &want, 7, folders, timeout_s, &o->data);
}

/* Without EXPECT, for threads and other processes: the sha, or "" if it does not open. `file`: what
 * it is mapped from, "" if it is not. */
static void try_common(const char *text, tt_data_want want, const char *folders, char sha[65],
                       char file[256])
{
    tt_tree *tree = NULL;
    tt_data *d = NULL;

    *sha = *file = 0;
    if (!tt_tree_parse("job.yaml", text, strlen(text), &tree) &&
        !tt_data_open_common(tt_tree_root(tree), &want, 7, folders, 20, &d)) {
        snprintf(sha, 65, "%s", tt_data_sha(d));
        snprintf(file, 256, "%s", tt_data_common(d, NULL) ? tt_data_common(d, NULL) : "");
    }
    tt_data_close(d);
    tt_tree_close(tree);
}

static char *print(const opened *o)
{
    tt_str s = {0};

    tt_tree_print(tt_tree_root(o->tree), true, &s);
    return s.data;
}

/* ---- Files of every format ---- */

static void write_npy(const char *path, const char *type, const char *order, const char *shape,
                      const void *x, size_t size)
{
    uint8_t buf[4096] = "\x93NUMPY\1";
    int head = snprintf((char *)buf + 10, 200,
                        "{'descr': '%s', 'fortran_order': %s, 'shape': %s}\n", type, order, shape);

    buf[8] = (uint8_t)head;
    memcpy(buf + 10 + head, x, size);
    tt_test_write(path, buf, 10 + (size_t)head + size);
}

static void write_cifar(const char *path, int n, int label_bytes)
{
    size_t record = 3072 + (size_t)label_bytes;
    uint8_t *buf = calloc((size_t)n, record);

    for (int i = 0; i < n; i++) {
        for (size_t k = 0; k < record; k++) buf[(size_t)i * record + k] = (uint8_t)(i * 7 + k * 3);
        for (int k = 0; k < label_bytes; k++)
            buf[(size_t)i * record + (size_t)k] = (uint8_t)(i % 5);
    }
    tt_test_write(path, buf, (size_t)n * record);
    free(buf);
}

static void write_images(uint8_t first)
{
    uint8_t x[20 * 4], y[20];
    int dim[] = {20, 2, 2};

    for (int i = 0; i < 80; i++) x[i] = (uint8_t)(first + 3 * i);
    for (int i = 0; i < 20; i++) y[i] = (uint8_t)(i % 3);
    write_idx("x", 3, dim, x, 80);
    write_idx("y", 1, dim, y, 20);
}

static void write_everything(void)
{
    float f[60];
    double d[20];
    int32_t label[20];

    write_images(1);
    for (int i = 0; i < 60; i++) f[i] = (float)i / 7;
    for (int i = 0; i < 20; i++) d[i] = i % 4 ? i / 3.0 : NAN, label[i] = i % 3 - 1;
    write_npy("x3.npy", "<f4", "False", "(20, 3)", f, sizeof f);
    write_npy("fortran.npy", ">f4", "True", "(20, 3)", f, sizeof f);
    write_npy("label.npy", "<i4", "False", "(20,)", label, sizeof label);
    write_npy("target.npy", "<f8", "False", "(20, 1)", d, sizeof d);
    write_cifar("c10.bin", 6, 1);
    write_cifar("c100.bin", 6, 2);
    write_text("batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n");
    write_text("a.csv",
               "size,colour,kind\n1,red,yes\n2.5,blue,no\n-3,red,\n4,green,yes\n5,red,no\n");
    write_text("b.csv", "size,colour,kind\n9,green,no\n8,red,yes\n");
    write_text("n.tsv", "1\t2\t0.5\n3\t4\t1.5\n5\t7\t2.5\n");
    write_text("a.svm", "+1 1:0.5 3:2\n-1 2:1\n+1\n-1 1:3 2:4 4:5\n");
    write_text("b.svm", "-1 4:1\n+1 2:2\n");
}

typedef struct known {
    const char *job;
    int rank;
    int64_t c, h, w;
    int classes, targets, labels; /* labels 0: one */
} known;

static const known jobs[] = {
    {"train: {format: idx, images: x, labels: y}\nval: {split: 0.3}\nnormalize: auto", 3, 1, 2, 2,
     3, 0},
    {"train: {format: idx, images: x, labels: y}\nval: {format: idx, images: x, labels: y}\n"
     "augment: {crop: 1, flip: true}\nunlabelled: 0.5\nshuffle: false\nshards: local",
     3, 1, 2, 2, 3, 0},
    {"train: {format: idx, images: x}", 1, 4, 0, 0, 0, 0},
    {"train: {format: npy, x: x3.npy, y: label.npy}\nval: {x: fortran.npy}\nnormalize: auto", 1, 3,
     0, 0, 0, 0},
    {"train: {format: npy, x: fortran.npy, y: label.npy}", 1, 3, 0, 0, 3, 0},
    {"train: {format: npy, x: x3.npy, y: target.npy}\nscale: 3\nval: {split: 0.2}", 1, 3, 0, 0, 0,
     1},
    {"train: {format: idx, images: x, labels: y}", 1, 4, 0, 0, 0, 1}, /* labels become targets */
    {"train: {format: cifar10, files: [c10.bin, c10.bin]}\nval: {files: c10.bin}\n"
     "normalize: {mean: auto, std: 1}",
     3, 3, 32, 32, 10, 0},
    {"train: {format: cifar100, files: c100.bin, labels: coarse}", 3, 3, 32, 32, 20, 0},
    {"train: {format: csv, file: a.csv, columns: [{name: size, normalize: true}, {name: colour, "
     "type: category}, {name: kind, type: label}]}\nval: {file: b.csv}",
     1, 4, 0, 0, 2, 0},
    {"train: {format: csv, file: a.csv, columns: [{name: size}, {name: colour, type: category, "
     "hash: 6}]}",
     1, 7, 0, 0, 0, 0},
    {"train: {format: tsv, file: n.tsv, label: -1}\nval: {split: 0.4}", 1, 2, 0, 0, 0, 1},
    {"train: {format: libsvm, file: a.svm}\nval: {file: b.svm}\nnormalize: auto", 1, 4, 0, 0, 2, 0},
    {"train: {format: synth, kind: images, count: 5000}", 3, 2, 9, 8, 4, 0},
    {"train: {format: synth, kind: vectors, count: 100}\nval: {count: 10, kind: vectors}", 1, 5, 0,
     0, 0, 2},
    {"train: {format: synth, kind: blobs, count: 50, classes: 3}\nval: {split: 0.1}", 1, 5, 0, 0, 3,
     0},
    {"train: {format: synth, kind: regression, count: 50}\nval: {format: synth, count: 9}", 1, 5, 0,
     0, 0, 2},
    {"train: {format: synth, kind: shapes, count: 20}\nval: {split: 0.3}", 3, 1, 12, 11, 4, 0, 132},
};

static void expect_same_split(const tt_data *a, const tt_data *b, tt_split split, tt_data_want want)
{
    int64_t n = tt_data_count(a, split);
    whole x, y;

    EXPECT_INT(n, tt_data_count(b, split));
    EXPECT_STR(tt_data_describe(a, split), tt_data_describe(b, split));
    EXPECT_INT(tt_data_labelled(a, split), tt_data_labelled(b, split));
    if (!n) return;
    for (int64_t i = 0; i < n; i++) {
        const float *t = tt_data_target(a, split, i), *u = tt_data_target(b, split, i);
        EXPECT_INT(tt_data_row(a, split, i), tt_data_row(b, split, i));
        EXPECT_INT(tt_data_label(a, split, i), tt_data_label(b, split, i));
        EXPECT(!t == !u && (!t || !want.targets || !memcmp(t, u, 4 * (size_t)want.targets)));
    }
    x = take_all(a, split, want);
    y = take_all(b, split, want);
    EXPECT(!memcmp(x.b.x, y.b.x, sizeof *x.b.x * (size_t)(n * x.row.features)));
    if (want.classes)
        EXPECT(!memcmp(x.b.label, y.b.label, sizeof *x.b.label * (size_t)(n * want.labels)));
    if (want.targets)
        EXPECT(!memcmp(x.b.target, y.b.target, sizeof(float) * (size_t)(n * want.targets)));
    free_all(&x);
    free_all(&y);
}

/* Samples, names, numbers, and the job with its defaults. */
static void expect_same(const opened *a, const opened *b, tt_data_want want)
{
    tt_data_flow f = tt_data_feeding(a->data), g = tt_data_feeding(b->data);
    char *one = print(a), *other = print(b);

    EXPECT_STR(one, other);
    free(one);
    free(other);
    EXPECT_STR(tt_data_sha(a->data), tt_data_sha(b->data));
    EXPECT_INT(tt_data_classes(a->data), tt_data_classes(b->data));
    for (int i = 0; i < tt_data_classes(a->data); i++) {
        const char *name = tt_data_class_name(a->data, i);
        if (name)
            EXPECT_STR(name, tt_data_class_name(b->data, i));
        else
            EXPECT(!tt_data_class_name(b->data, i));
    }
    EXPECT(f.shuffle == g.shuffle && f.local == g.local && f.threads == g.threads);
    expect_same_split(a->data, b->data, TT_TRAIN, want);
    expect_same_split(a->data, b->data, TT_VAL, want);
}

static ino_t inode_of(const char *path)
{
    struct stat st;

    EXPECT(!stat(path, &st));
    return st.st_ino;
}

/* What a checkpoint keeps is the same, whoever decoded it. */
static void expect_same_learned(const tt_data *x, const tt_data *y)
{
    json_t *a = tt_data_learned(x), *b = tt_data_learned(y);

    EXPECT(!a == !b && (!a || json_equal(a, b)));
    json_decref(a);
    json_decref(b);
}

TT_TEST(data_common, every_format_is_the_same_as_alone)
{
    write_everything();
    for (int i = 0; i < TT_COUNT(jobs); i++) {
        const known *k = &jobs[i];
        tt_data_want want = wants(k->rank, k->c, k->h, k->w, k->classes, k->targets);
        char job[512];
        opened alone, first, second;

        if (k->labels) want.labels = k->labels;

        snprintf(job, sizeof job, "dir: .\n%s\n", k->job);
        EXPECT_OK(open_text(job, want, &alone));
        EXPECT(!tt_data_common(alone.data, NULL));
        EXPECT_OK(open_common(job, want, "here", 5, &first));
        EXPECT(tt_data_common(first.data, NULL));
        ino_t made = inode_of(tt_data_common(first.data, NULL));
        EXPECT_OK(open_common(job, want, "here", 5, &second));
        EXPECT_STR(tt_data_common(first.data, NULL), tt_data_common(second.data, NULL));
        EXPECT(made == inode_of(tt_data_common(second.data, NULL))); /* nobody made it again */
        expect_same(&alone, &first, want);
        expect_same(&alone, &second, want);
        expect_same_learned(alone.data, second.data);
        shut(&first);
        expect_same(&alone, &second, want); /* it does not depend on who made it */
        shut(&second);
        shut(&alone);
    }
}

TT_TEST(data_common, real_images_are_the_same_as_alone)
{
    tt_data_want want = wants(3, 1, 28, 28, 10, 0);
    char job[8600];
    opened alone, first, second;

    snprintf(job, sizeof job,
             "dir: %s\ntrain: {format: idx, images: train-images-idx3-ubyte, labels: "
             "train-labels-idx1-ubyte}\nval: {images: t10k-images-idx3-ubyte, labels: "
             "t10k-labels-idx1-ubyte}\nnormalize: auto\n",
             tt_test_data("mnist"));
    EXPECT_OK(open_text(job, want, &alone));
    EXPECT_OK(open_common(job, want, "here", 5, &first));
    EXPECT_OK(open_common(job, want, "here", 5, &second));
    EXPECT(tt_data_common(second.data, NULL));
    expect_same(&alone, &second, want);
    shut(&first);
    shut(&second);
    shut(&alone);
}

/* ---- Once ---- */

static const char idx_job[] = "dir: .\ntrain: {format: idx, images: x, labels: y}\n";
static tt_data_want idx_want(void)
{
    return wants(3, 1, 2, 2, 3, 0);
}

/* How many such events came since the last call. Equal ones in a row count once, but for renames.
 */
static int events(int watch)
{
    char buf[1 << 14];
    ssize_t n;
    int count = 0;

    while ((n = read(watch, buf, sizeof buf)) > 0)
        for (char *p = buf; p < buf + n;) {
            struct inotify_event e;
            memcpy(&e, p, sizeof e);
            count++;
            p += sizeof e + e.len;
        }
    return count;
}

static int watch_for(uint32_t mask, const char *path)
{
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);

    EXPECT(fd >= 0 && inotify_add_watch(fd, path, mask) >= 0);
    return fd;
}

/* An empty folder; each content that is made becomes an event, and only who decodes makes one. */
static int watch_folder(void)
{
    EXPECT_OK(tt_dir_remove("here"));
    EXPECT(!mkdir("here", 0700));
    return watch_for(IN_MOVED_TO, "here");
}

TT_TEST(data_common, the_second_does_not_open_the_files)
{
    opened first, second;
    int watch;

    write_images(1);
    watch = watch_for(IN_OPEN, "x");
    EXPECT_OK(open_common(idx_job, idx_want(), "here", 5, &first));
    EXPECT(events(watch) > 0);
    EXPECT_OK(open_common(idx_job, idx_want(), "here", 5, &second));
    EXPECT_INT(0, events(watch));
    shut(&first);
    shut(&second);
    EXPECT_OK(open_common(idx_job, idx_want(), "here", 5, &second)); /* and nor does a later one */
    EXPECT_INT(0, events(watch));
    shut(&second);
    close(watch);
}

enum { CROWD = 6 };

typedef struct visitor {
    pthread_t thread;
    char sha[65], file[256];
} visitor;

static void *visit(void *arg)
{
    visitor *v = arg;

    try_common(idx_job, idx_want(), "here", v->sha, v->file);
    return NULL;
}

TT_TEST(data_common, of_many_threads_one_decodes)
{
    visitor v[CROWD];
    int watch;

    write_images(1);
    watch = watch_folder();
    for (int i = 0; i < CROWD; i++) EXPECT(!pthread_create(&v[i].thread, NULL, visit, &v[i]));
    for (int i = 0; i < CROWD; i++) pthread_join(v[i].thread, NULL);
    EXPECT_INT(1, events(watch));
    for (int i = 0; i < CROWD; i++) EXPECT(*v[i].sha && !strcmp(v[i].sha, v[0].sha) && *v[i].file);
    close(watch);
}

/* Calls fn in another process. It must not use EXPECT. */
static pid_t start(int (*fn)(void))
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) _exit(fn());
    EXPECT(pid > 0);
    return pid;
}

static int end_of(pid_t pid)
{
    int status;

    EXPECT(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int take_part(void)
{
    char sha[65], file[256];

    try_common(idx_job, idx_want(), "here", sha, file);
    return *sha && *file ? 0 : 1;
}

TT_TEST(data_common, of_many_processes_one_decodes)
{
    for (int round = 0; round < 5; round++) {
        pid_t pid[CROWD];
        int watch;

        write_images((uint8_t)round);
        watch = watch_folder();
        for (int i = 0; i < CROWD; i++) pid[i] = start(take_part);
        for (int i = 0; i < CROWD; i++) EXPECT_INT(0, end_of(pid[i]));
        EXPECT_INT(1, events(watch));
        close(watch);
    }
}

/* ---- What changes ---- */

static float first_value(const opened *o)
{
    whole w = take_all(o->data, TT_TRAIN, idx_want());
    float v = w.b.x[0];

    free_all(&w);
    return v;
}

TT_TEST(data_common, a_file_that_changes_is_decoded_again)
{
    struct timespec times[2];
    opened before, after, other;
    struct stat st;

    write_images(1);
    EXPECT_OK(open_common(idx_job, idx_want(), "here", 5, &before));
    EXPECT(!stat("x", &st));
    write_images(51); /* as long as before, in the same place */
    times[0] = st.st_atim;
    times[1] = st.st_mtim;
    times[1].tv_nsec += times[1].tv_nsec < 999999999 ? 1 : -1;
    EXPECT(!utimensat(AT_FDCWD, "x", times, 0));
    EXPECT_OK(open_common(idx_job, idx_want(), "here", 5, &after));
    EXPECT_NEAR(1 / 255.0, first_value(&before), 1e-7);
    EXPECT_NEAR(51 / 255.0, first_value(&after), 1e-7);
    shut(&before);
    write_text("z", ""); /* another in its place, of the same date */
    EXPECT(!rename("x", "old"));
    write_images(101);
    EXPECT(!utimensat(AT_FDCWD, "x", times, 0));
    EXPECT_OK(open_common(idx_job, idx_want(), "here", 5, &other));
    EXPECT_NEAR(101 / 255.0, first_value(&other), 1e-7);
    shut(&after);
    shut(&other);
}

TT_TEST(data_common, names_beside_the_files_count_too)
{
    static const char job[] = "dir: .\ntrain: {format: cifar10, files: c.bin}\n";
    tt_data_want want = wants(3, 3, 32, 32, 10, 0);
    opened o;

    write_cifar("c.bin", 3, 1);
    EXPECT_OK(open_common(job, want, "here", 5, &o));
    EXPECT(!tt_data_class_name(o.data, 0));
    shut(&o);
    write_text("batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n");
    EXPECT_OK(open_common(job, want, "here", 5, &o));
    EXPECT_STR("a", tt_data_class_name(o.data, 0));
    shut(&o);
}

TT_TEST(data_common, another_job_or_model_has_another_content)
{
    static const char *const texts[] = {
        "train: {format: synth, count: 40}\n",
        "train: {format: synth, count: 41}\n",
        "train: {format: synth, count: 40, seed: 1}\n",
        "train: {format: synth, count: 40}\nval: {split: 0.5}\n",
        "train: {format: synth, count: 40}\nval: {split: 0.25}\n",
        "train: {format: synth, count: 40}\nval: {format: synth, count: 3}\n",
        "train: {format: synth, count: 40}\nnormalize: auto\n"};
    tt_data_want want = wants_vector(4, 3, 0), wide = wants_vector(5, 3, 0);
    char **names;
    opened o[TT_COUNT(texts) + 1], again;
    int count;

    for (int i = 0; i < TT_COUNT(texts); i++)
        EXPECT_OK(open_common(texts[i], want, "here", 5, &o[i]));
    EXPECT_OK(open_common(texts[0], wide, "here", 5, &o[TT_COUNT(texts)]));
    EXPECT_OK(tt_dir_list("here", &names, &count));
    EXPECT_INT(2 * (TT_COUNT(texts) + 1), count); /* contents and locks */
    tt_dir_free(names, count);
    /* What is written out that was a default, or only says how to feed, changes nothing. */
    EXPECT_OK(open_common("threads: 0\ntrain: {count: 40, format: synth, kind: blobs}\n", want,
                          "here", 5, &again));
    EXPECT(tt_data_common(again.data, NULL));
    shut(&again);
    for (int i = 0; i <= TT_COUNT(texts); i++) shut(&o[i]);
}

TT_TEST(data_common, stays_valid_when_the_folder_is_gone)
{
    opened alone, first, second;

    write_images(9);
    EXPECT_OK(open_text(idx_job, idx_want(), &alone));
    EXPECT_OK(open_common(idx_job, idx_want(), "here", 5, &first));
    EXPECT_OK(open_common(idx_job, idx_want(), "here", 5, &second));
    EXPECT_OK(tt_dir_remove("here"));
    expect_same(&alone, &first, idx_want());
    expect_same(&alone, &second, idx_want());
    shut(&first);
    shut(&second);
    shut(&alone);
}

/* ---- Damage ---- */

/* Makes the content and returns its path. */
static const char *make_content(char path[256])
{
    opened o;

    EXPECT_OK(open_common(idx_job, idx_want(), "here", 5, &o));
    snprintf(path, 256, "%s", tt_data_common(o.data, NULL));
    shut(&o);
    return path;
}

static void write_new(const char *path, const uint8_t *data, size_t size)
{
    unlink(path);
    tt_test_write(path, data, size);
}

/* The content is what it should be, and in common, whatever was there before. */
static void expect_made_anew(const opened *alone)
{
    opened o;

    tt_log_quiet(true);
    EXPECT_OK(open_common(idx_job, idx_want(), "here", 5, &o));
    tt_log_quiet(false);
    EXPECT(tt_data_common(o.data, NULL));
    expect_same(alone, &o, idx_want());
    shut(&o);
}

TT_TEST(data_common, a_damaged_file_is_made_anew)
{
    char path[256];
    opened alone;
    tt_bytes good;
    uint8_t *bad;

    write_images(1);
    EXPECT_OK(open_text(idx_job, idx_want(), &alone));
    make_content(path);
    EXPECT_OK(tt_file_read(path, 0, &good));
    bad = malloc(good.size + 1);
    for (size_t cut = 0; cut < good.size; cut += 1 + cut / 3) {
        write_new(path, good.data, cut);
        expect_made_anew(&alone);
    }
    memcpy(bad, good.data, good.size);
    bad[good.size] = 0;
    write_new(path, bad, good.size + 1); /* too long */
    expect_made_anew(&alone);
    for (int i = 0; i < 300; i++) { /* one byte; in a gap between arrays it harms nobody */
        tt_u128 r = tt_philox(5, 0, (uint64_t)i);
        size_t at = r.v[0] % good.size;
        memcpy(bad, good.data, good.size);
        bad[at] ^= (uint8_t)(1 << r.v[1] % 8);
        write_new(path, bad, good.size);
        expect_made_anew(&alone);
    }
    for (int i = 0; i < 30; i++) { /* garbage all over, with or without the magic */
        for (size_t k = i % 2 ? 16 : 0; k < good.size; k++)
            bad[k] = (uint8_t)tt_philox(6, (uint64_t)i, k).v[0];
        write_new(path, bad, good.size);
        expect_made_anew(&alone);
    }
    unlink(path);
    EXPECT(!mkdir(path, 0700)); /* no file at all */
    tt_log_quiet(true);
    opened o;
    EXPECT_OK(open_common(idx_job, idx_want(), "here", 5, &o));
    tt_log_quiet(false);
    expect_same(&alone, &o, idx_want());
    shut(&o);
    free(bad);
    tt_file_release(&good);
    shut(&alone);
}

TT_TEST(data_common, leftovers_of_a_dead_writer_are_removed)
{
    char path[256], tmp[300];
    opened alone;

    write_images(1);
    EXPECT_OK(open_text(idx_job, idx_want(), &alone));
    make_content(path);
    unlink(path);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    write_text(tmp, "it came so far");
    expect_made_anew(&alone);
    EXPECT(!tt_file_exists(tmp));
    shut(&alone);
}

/* ---- Who decodes dies, hangs, or works long ---- */

static const char slow_job[] = "train: {format: synth, kind: blobs, count: 100000}\n";
static tt_data_want slow_want(void)
{
    return wants_vector(16, 3, 0);
}

static int decode_slowly(void)
{
    char sha[65], file[256];

    try_common(slow_job, slow_want(), "here", sha, file);
    return *file ? 0 : 1;
}

/* The names in the folder with this end. */
static int count_names(const char *end)
{
    char **names;
    int count, found = 0;

    if (!tt_file_exists("here")) return 0;
    EXPECT_OK(tt_dir_list("here", &names, &count));
    for (int i = 0; i < count; i++) {
        size_t n = strlen(names[i]), m = strlen(end);
        found += n >= m && !strcmp(names[i] + n - m, end) && (m || n == 32);
    }
    tt_dir_free(names, count);
    return found;
}

TT_TEST(data_common, who_decodes_may_be_killed)
{
    int caught = 0;

    for (int i = 0; i < 20 && caught < 3; i++) {
        char sha[65], file[256];
        pid_t pid;

        EXPECT_OK(tt_dir_remove("here"));
        pid = start(decode_slowly);
        while (!count_names(".lock")) usleep(200);
        usleep((useconds_t)(caught * 3000)); /* at once, or a little later */
        kill(pid, SIGKILL);
        EXPECT_INT(128 + SIGKILL, end_of(pid));
        if (count_names("")) continue; /* it was faster */
        caught++;
        try_common(slow_job, slow_want(), "here", sha, file);
        EXPECT(*sha && *file);
        EXPECT_INT(0, count_names(".tmp"));
    }
    EXPECT_INT(3, caught);
}

static int lock_file(const char *content)
{
    char path[300], pid[32];
    int fd;

    snprintf(path, sizeof path, "%s.lock", content);
    fd = open(path, O_RDWR | O_CREAT, 0600);
    snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (fd < 0 || flock(fd, LOCK_EX) || ftruncate(fd, 0) || pwrite(fd, pid, strlen(pid), 0) < 0)
        _exit(9);
    return fd;
}

static char held[256]; /* for the processes below: the content they claim to make */
static int told[2];    /* a pipe: the lock is taken */

static int hang(void)
{
    lock_file(held);
    if (write(told[1], "x", 1) != 1) return 9;
    for (;;) pause();
}

/* 0.8 s of work, then it gives up. */
static int work_long(void)
{
    double until = tt_clock_s() + 0.8;

    lock_file(held);
    if (write(told[1], "x", 1) != 1) return 9;
    while (tt_clock_s() < until) continue;
    return 0;
}

static pid_t start_holder(int (*fn)(void))
{
    pid_t pid;
    char c;

    make_content(held);
    unlink(held);
    EXPECT(!pipe(told));
    pid = start(fn);
    EXPECT(read(told[0], &c, 1) == 1);
    close(told[0]);
    close(told[1]);
    return pid;
}

TT_TEST(data_common, who_does_nothing_is_named_when_time_is_up)
{
    char want[300];
    double begun;
    opened o;
    pid_t pid;

    write_images(1);
    pid = start_holder(hang);
    begun = tt_clock_s();
    EXPECT_ERR(TT_EIO, open_common(idx_job, idx_want(), "here", 0.2, &o));
    EXPECT(tt_clock_s() - begun > 0.15);
    snprintf(want, sizeof want, "process %d,", (int)pid);
    EXPECT_MESSAGE(want);
    snprintf(want, sizeof want, "%s.lock", held);
    EXPECT_MESSAGE(want);
    EXPECT(!o.data);
    shut(&o);
    kill(pid, SIGKILL);
    end_of(pid);
    EXPECT_OK(open_common(idx_job, idx_want(), "here", 0.2, &o)); /* its lock went with it */
    EXPECT(tt_data_common(o.data, NULL));
    shut(&o);
}

TT_TEST(data_common, who_works_is_waited_for_longer)
{
    opened o;
    pid_t pid;

    write_images(1);
    pid = start_holder(work_long);
    EXPECT_OK(open_common(idx_job, idx_want(), "here", 0.25, &o));
    EXPECT(tt_data_common(o.data, NULL));
    shut(&o);
    EXPECT_INT(0, end_of(pid));
}

/* ---- Where there is no place for it ---- */

static void expect_private(const char *folders, const opened *alone)
{
    const char *why;
    opened o;

    tt_log_quiet(true);
    EXPECT_OK(open_common(idx_job, idx_want(), folders, 5, &o));
    tt_log_quiet(false);
    EXPECT(!tt_data_common(o.data, &why) && why && *why);
    expect_same(alone, &o, idx_want());
    shut(&o);
}

TT_TEST(data_common, without_a_folder_each_has_its_own)
{
    opened alone, o;

    write_images(1);
    EXPECT_OK(open_text(idx_job, idx_want(), &alone));
    write_text("file", "");
    EXPECT(!mkdir("open", 0700) && !chmod("open", 0777));
    expect_private("file", &alone);
    expect_private("file/below", &alone);
    expect_private("no/parent", &alone);
    expect_private("open", &alone); /* anybody could put something there */
    expect_private("", &alone);
    EXPECT_OK(open_common(idx_job, idx_want(), NULL, 5, &o));
    EXPECT(!tt_data_common(o.data, NULL));
    shut(&o);
    if (geteuid()) { /* root may write anywhere */
        EXPECT(!mkdir("shut", 0500));
        expect_private("shut", &alone);
    }
    EXPECT_OK(open_common(idx_job, idx_want(), "file:here", 5, &o)); /* the next one is tried */
    EXPECT(!strncmp(tt_data_common(o.data, NULL), "here/", 5));
    shut(&o);
    shut(&alone);
}

/* No file may have more than 1000 bytes: lock files may. */
static int without_room(void)
{
    struct rlimit r = {1000, 1000};
    char sha[65], file[256], alone[65];
    tt_err bad = TT_OK;

    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &r)) return 9;
    tt_log_quiet(true);
    try_common(idx_job, idx_want(), NULL, alone, file);
    for (int i = 0; i < 2; i++) {
        try_common(idx_job, idx_want(), "here", sha, file);
        bad |= strcmp(sha, alone) || *file;
    }
    return bad;
}

TT_TEST(data_common, without_room_each_has_its_own)
{
    int watch;

    write_images(1);
    EXPECT_INT(0, end_of(start(without_room)));
    EXPECT_INT(0, count_names(""));
    EXPECT_INT(0, count_names(".tmp"));
    /* That there is none is known now: nobody tries again while others wait. */
    watch = watch_for(IN_CREATE, "here");
    EXPECT_INT(0, end_of(start(without_room)));
    EXPECT_INT(0, events(watch));
    close(watch);
}

static int in_a_full_place(void)
{
    char sha[65], file[256];

    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mkdir("small", 0700) || mount("none", "small", "tmpfs", 0, "size=8k,mode=700"))
        return 77;
    try_common(idx_job, idx_want(), "small:here", sha, file);
    return strncmp(file, "here/", 5) ? 1 : 0;
}

TT_TEST(data_common, what_does_not_fit_in_the_first_folder_goes_to_the_next)
{
    uint8_t x[20000] = {0}, y[5000] = {0};
    int dim[] = {5000, 2, 2}, code;

    write_idx("x", 3, dim, x, sizeof x);
    write_idx("y", 1, dim, y, sizeof y);
    if ((code = end_of(start(in_a_full_place))) == 77) tt_test_skip("mounting needs root");
    EXPECT_INT(0, code);
    EXPECT_INT(1, count_names(""));
}

/* ---- Wrong jobs and data are told as ever ---- */

TT_TEST(data_common, what_is_wrong_is_told_as_alone)
{
    static const char *const texts[] = {
        "dir: .\ntrain: {format: idx, images: nothere, labels: y}\n",
        "dir: .\ntrain: {format: idx, images: x, labels: x}\n",
        "dir: .\ntrain: {format: idx, imges: x}\n",
        "dir: .\ntrain: {format: idx, images: x, labels: y}\nval: {split: 0.1, images: x}\n",
        "dir: .\ntrain: {format: idx, images: x, labels: y}\nscale: big\n",
        "dir: .\ntrain: {format: csv, file: a.csv, columns: [{name: size, type: strange}]}\n",
        "dir: .\ntrain: {format: csv, file: a.csv, columns: [{name: colour}]}\n",
        "dir: $NOT_SET_AT_ALL\ntrain: {format: synth}\n",
    };
    write_everything();
    for (int i = 0; i < TT_COUNT(texts); i++) {
        char message[2048];
        opened o;
        tt_err err = open_text(texts[i], idx_want(), &o);

        EXPECT(err != TT_OK);
        snprintf(message, sizeof message, "%s", tt_message());
        shut(&o);
        for (int again = 0; again < 2; again++) {
            EXPECT_ERR(err, open_common(texts[i], idx_want(), "here", 5, &o));
            EXPECT_STR(message, tt_message());
            shut(&o);
        }
    }
    EXPECT_INT(0, count_names(""));
}
