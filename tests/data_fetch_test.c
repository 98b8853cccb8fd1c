/* `tutti data get`, against a small server of our own on the loopback; and the tar reader. */
#define _GNU_SOURCE
#include "data_help.h"
#include "data/source.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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
    setenv("all_proxy", "http://127.0.0.1:1",
           1); /* the built-in mirrors must not be asked by a test */
    setenv("no_proxy", "127.0.0.1", 1);
    EXPECT(tt_data_get("cifar10", &o) != TT_OK);
    unsetenv("all_proxy");
    unsetenv("no_proxy");
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

/* ---- tar ---- */

static size_t add_member(uint8_t *at, const char *name, const char *prefix, char type,
                         const char *data)
{
    size_t n = strlen(data);
    unsigned sum = 8 * ' ';

    memset(at, 0, 1024);
    strcpy((char *)at, name);
    snprintf((char *)at + 124, 12, "%011o", (unsigned)n);
    at[156] = (uint8_t)type;
    memcpy(at + 257, "ustar\00000", 8);
    strcpy((char *)at + 345, prefix);
    for (int i = 0; i < 512; i++) sum += i >= 148 && i < 156 ? 0 : at[i];
    snprintf((char *)at + 148, 8, "%06o", sum);
    memcpy(at + 512, data, n);
    return n ? 1024 : 512;
}

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
