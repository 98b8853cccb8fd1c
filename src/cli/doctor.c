/* doctor: what this machine offers, what is used of it, and what to do about each problem. */
#define _GNU_SOURCE
#include <jansson.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <yaml.h>
#include <zlib.h>
#ifdef TT_HAVE_CURL
#include <curl/curl.h>
#endif
#ifdef TT_HAVE_PNG
#include <png.h>
#endif
#ifdef TT_HAVE_DEFLATE
#include <libdeflate.h>
#endif
#ifdef TT_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

#include "cli.h"
#include "comm/wire.h"

#define MB 1e6

typedef struct doctor_opts {
    bool json, failpoints;
} doctor_opts;

static const tt_option options[] = {
    {"json", 0, TT_OPT_FLAG, offsetof(doctor_opts, json), NULL, "print JSON"},
    {"failpoints", 0, TT_OPT_FLAG, offsetof(doctor_opts, failpoints), NULL,
     "list the places where tests can make this program fail (TUTTI_FAILPOINTS)"},
};

/* What was found, as JSON, from which the text is printed too; and what is wrong with it. */
typedef struct report {
    json_t *root, *problems;
    bool grave; /* training cannot work */
} report;

static void problem(report *r, bool grave, const char *fix, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void problem(report *r, bool grave, const char *fix, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->grave |= grave;
    json_array_append_new(
        r->problems, json_pack("{s:s, s:s, s:b}", "problem", text, "fix", fix, "grave", grave));
}

/* ---- processor ---- */

static json_t *about_kernels(const tt_kernels *k, bool used)
{
    bool bf16 = k->precision == TT_IN_BF16;
    json_t *j = json_pack("{s:s, s:s, s:s, s:b}", "name", k->name, "precision",
                          bf16 ? "bf16" : "float32", "product", k->product, "in_use", used);

    if (k->plain) return j; /* it is to be right, not fast: a product would take seconds */
    if (!bf16) json_object_set_new(j, "peak_gflops", json_real(tt_peak_gflops(k)));
    json_object_set_new(j, "product_gflops", json_real(tt_product_gflops(k)));
    return j;
}

/* Those of train.precision: bf16; of the faster ones also that they are not there. */
static void look_at_bf16(json_t *list)
{
    static const char *const fast[] = {"avx512-amx", "avx512-dot"};
    const tt_kernels *used = NULL, *const * all, *k;
    int count = tt_kernels_with(TT_IN_BF16, &all);

    tt_kernels_pick("auto", TT_IN_BF16, &used);
    for (int i = 0; i < count; i++)
        json_array_append_new(list, about_kernels(all[i], all[i] == used));
    for (int i = 0; i < TT_COUNT(fast); i++)
        if (tt_kernels_pick(fast[i], TT_IN_BF16, &k) == TT_EENV)
            json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:b}", "name", fast[i],
                                                  "precision", "bf16", "product",
                                                  strchr(fast[i], '-') + 1, "in_use", false));
}

static void look_at_kernels(report *r)
{
    const tt_kernels *used = NULL, *half, *const * all;
    json_t *list = json_array();
    int count = tt_kernels_all(&all);
    const char *wanted = getenv("TUTTI_KERNELS");
    char text[600];

    if (tt_kernels_find("auto", &used)) {
        snprintf(text, sizeof text, "%s", tt_message());
        if (!tt_kernels_pick("auto", TT_IN_BF16, &half))
            problem(r, false, "unset TUTTI_KERNELS",
                    "TUTTI_KERNELS chose the %s kernels: jobs in float32 are refused", half->name);
        else
            problem(r, true,
                    wanted && *wanted ? "unset TUTTI_KERNELS"
                                      : "use a machine with an x86-64 processor",
                    "no kernels can be used: %s", text);
    }
    for (int i = 0; i < count; i++)
        json_array_append_new(list, about_kernels(all[i], all[i] == used));
    look_at_bf16(list);
    json_object_set_new(r->root, "kernels", list);
    if (used && count && used != all[0])
        problem(r, false, "unset TUTTI_KERNELS",
                "TUTTI_KERNELS chose the %s kernels; %s would be faster", used->name, all[0]->name);
    else if (used && (!strcmp(used->name, "generic") || !strcmp(used->name, "ref")))
        problem(r, false,
                "use a machine with AVX2, or let the virtual machine pass it on (host CPU type)",
                "this processor has no AVX2: training is several times slower than it could be");
}

static void look_at_cpu(report *r)
{
    char model[256], features[1024];
    int usable = tt_cpu_count();
    long online = sysconf(_SC_NPROCESSORS_ONLN);

    json_object_set_new(r->root, "cpu",
                        json_pack("{s:s, s:s, s:i, s:I}", "model",
                                  tt_cpu_model(model, sizeof model), "features",
                                  tt_cpu_features(features, sizeof features), "usable", usable,
                                  "online", (json_int_t)online));
    if (usable < online)
        problem(r, false,
                "raise the container's CPU quota or the affinity mask if that is not meant",
                "%d of the %ld processors may be used (affinity or cgroup quota)", usable, online);
}

/* ---- memory and files ---- */

/* A number from a file of the kernel's, in bytes; -1 if it has none ("max"). */
static double read_bytes(const char *path)
{
    FILE *f = fopen(path, "re");
    double v = -1;

    if (!f) return -1;
    if (fscanf(f, "%lf", &v) != 1) v = -1;
    fclose(f);
    return v;
}

static double meminfo(const char *name)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[256];
    double kb, found = -1;

    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name)) && sscanf(line + strlen(name), ": %lf", &kb) == 1)
            found = kb * 1024;
    if (f) fclose(f);
    return found;
}

/* The limit of our cgroup, versions 2 and 1; -1 if there is none below the machine's memory. */
static double memory_limit(double total)
{
    static const char *const files[] = {"/sys/fs/cgroup/memory.max",
                                        "/sys/fs/cgroup/memory/memory.limit_in_bytes"};

    for (int i = 0; i < TT_COUNT(files); i++) {
        double v = read_bytes(files[i]);
        if (v > 0 && v < total) return v;
    }
    return -1;
}

static void look_at_memory(report *r)
{
    double total = meminfo("MemTotal"), free_now = meminfo("MemAvailable"),
           limit = memory_limit(total);
    json_t *m = json_pack("{s:f, s:f}", "total_bytes", total, "available_bytes", free_now);

    if (limit > 0) json_object_set_new(m, "limit_bytes", json_real(limit));
    json_object_set_new(r->root, "memory", m);
    if (free_now >= 0 && free_now < 500 * MB)
        problem(r, false, "end other programs, or train with a smaller train.batch",
                "only %.0f MB of memory are available", free_now / MB);
    if (limit > 0 && limit < 1000 * MB)
        problem(r, false, "raise the container's memory limit", "the memory limit is %.0f MB",
                limit / MB);
}

static double space_in(const char *path, double *size)
{
    struct statvfs s;

    if (statvfs(path, &s)) return *size = -1;
    *size = (double)s.f_blocks * (double)s.f_frsize;
    return (double)s.f_bavail * (double)s.f_frsize;
}

static void look_at_files(report *r)
{
    const char *data = getenv("TUTTI_DATA");
    double size, space = space_in(".", &size);

    json_object_set_new(
        r->root, "here",
        json_pack("{s:f, s:b}", "free_bytes", space, "writable", !access(".", W_OK)));
    if (access(".", W_OK))
        problem(r, false, "change to a folder that is yours, or give --runs DIR",
                "this folder cannot be written to: runs have no place here");
    else if (space >= 0 && space < 500 * MB)
        problem(r, false, "make room, or give --runs DIR on another disk",
                "only %.0f MB are free here", space / MB);
    space = space_in("/dev/shm", &size);
    json_object_set_new(r->root, "dev_shm",
                        json_pack("{s:f, s:f}", "size_bytes", size, "free_bytes", space));
    if (size >= 0 && size < 100 * MB)
        problem(r, false, "give the container more: docker run --shm-size=1g",
                "/dev/shm has %.0f MB: little for exchange between processes", size / MB);
    json_object_set_new(r->root, "data", json_string(data && *data ? data : "data"));
    if (data && *data && !tt_file_exists(data))
        problem(r, false, "make the folder, or set TUTTI_DATA to where the datasets are",
                "TUTTI_DATA is %.300s, which does not exist", data);
}

/* ---- libraries ---- */

static void look_at_libraries(report *r)
{
    json_t *features = json_object();

    json_object_set_new(r->root, "libraries",
                        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "mpi", tt_mpi_name(), "libyaml",
                                  yaml_get_version_string(), "jansson", jansson_version_str(),
                                  "zlib", zlibVersion(), "libcrypto",
                                  OpenSSL_version(OPENSSL_VERSION), "zeromq", tt_wire_version()));
#ifdef TT_HAVE_CURL
    json_object_set_new(features, "download", json_string(curl_version()));
    json_object_set_new(features, "etcd", json_string("by libcurl"));
#else
    json_object_set_new(features, "download", json_null());
    json_object_set_new(features, "etcd", json_null());
    problem(r, false, "apt-get install libcurl4-openssl-dev, and build again",
            "'tutti data get' cannot download, nor does --coordinator reach an etcd: built without "
            "libcurl");
#endif
#ifdef TT_HAVE_PNG
    json_object_set_new(features, "pictures", json_pack("s+", "libpng/", png_get_libpng_ver(NULL)));
#else
    json_object_set_new(features, "pictures", json_null());
    problem(r, false, "apt-get install libpng-dev, and build again",
            "'tutti data get cifar10' cannot use its npm package: built without libpng");
#endif
#ifdef TT_HAVE_DEFLATE
    json_object_set_new(features, "fast gzip",
                        json_string("libdeflate/" LIBDEFLATE_VERSION_STRING));
#else
    json_object_set_new(features, "fast gzip", json_null());
    problem(r, false, "apt-get install libdeflate-dev, and build again",
            "gzipped data is read by zlib, at half the speed: built without libdeflate");
#endif
#ifdef TT_HAVE_HWLOC
    json_object_set_new(features, "topology", json_string("hwloc"));
#else
    json_object_set_new(features, "topology", json_null());
    problem(r, false, "apt-get install libhwloc-dev, and build again",
            "workers are bound to CPUs without knowing which share a core: built without hwloc");
#endif
#ifdef TT_HAVE_PCRE2
    json_object_set_new(features, "gpt2 tokens",
                        json_sprintf("pcre2/%d.%d", PCRE2_MAJOR, PCRE2_MINOR));
#else
    json_object_set_new(features, "gpt2 tokens", json_null());
    problem(r, false, "apt-get install libpcre2-dev, and build again",
            "text cannot be cut into tokens of GPT-2: built without PCRE2");
#endif
    json_object_set_new(r->root, "features", features);
}

/* ---- printing ---- */

static const char *text_at(const json_t *j, const char *group, const char *key)
{
    const char *s = json_string_value(json_object_get(json_object_get(j, group), key));
    return s ? s : "?";
}

static const char *bytes_at(const json_t *j, const char *group, const char *key, char *buf,
                            size_t size)
{
    const json_t *v = json_object_get(json_object_get(j, group), key);
    if (!json_is_number(v) || json_number_value(v) < 0) return "?";
    return tt_show_bytes(json_number_value(v), buf, size);
}

/* One line for each table of kernels: what it multiplies in, what one core makes of a product of
 * matrices of 1024 x 1024 and, in float32, of multiplications in registers. */
static void print_kernels(const json_t *list)
{
    const json_t *k;
    size_t i;

    printf("%-10s %-13s %-8s %-8s %9s %9s\n", "kernels", "", "", "product", "GFLOP/s", "peak");
    json_array_foreach(list, i, k)
    {
        const json_t *peak = json_object_get(k, "peak_gflops"),
                     *rate = json_object_get(k, "product_gflops");
        const char *product = json_string_value(json_object_get(k, "product"));
        printf("%-10s %-13s %-8s %-8s ", "", json_string_value(json_object_get(k, "name")),
               json_string_value(json_object_get(k, "precision")), product);
        if (rate)
            printf("%9.1f ", json_number_value(rate));
        else
            printf("%9s ", "");
        if (peak) printf("%9.1f", json_number_value(peak));
        if (json_is_true(json_object_get(k, "in_use")))
            printf("%s  in use", peak ? "" : "         ");
        if (!rate && strcmp(product, "double")) printf("not on this machine");
        printf("\n");
    }
}

static void print_machine(const json_t *j)
{
    const json_t *limit = json_object_get(json_object_get(j, "memory"), "limit_bytes");
    char a[32], b[32];

    printf("tutti %s\n\ncpu        %s\n", TT_VERSION, text_at(j, "cpu", "model"));
    printf("           %lld usable; %s\n",
           (long long)json_integer_value(json_object_get(json_object_get(j, "cpu"), "usable")),
           text_at(j, "cpu", "features"));
    print_kernels(json_object_get(j, "kernels"));
    printf("memory     %s, %s available", bytes_at(j, "memory", "total_bytes", a, sizeof a),
           bytes_at(j, "memory", "available_bytes", b, sizeof b));
    if (limit) printf(", limit %s", tt_show_bytes(json_number_value(limit), a, sizeof a));
    printf("\n/dev/shm   %s, %s free\n", bytes_at(j, "dev_shm", "size_bytes", a, sizeof a),
           bytes_at(j, "dev_shm", "free_bytes", b, sizeof b));
    printf("here       %s free\n", bytes_at(j, "here", "free_bytes", a, sizeof a));
    printf("data       %s\n", json_string_value(json_object_get(j, "data")));
}

static void print_rest(const json_t *j)
{
    const char *name;
    json_t *v;
    size_t i;

    json_object_foreach(json_object_get(j, "libraries"), name, v)
        printf("%-10s %s\n", name, json_string_value(v));
    json_object_foreach(json_object_get(j, "features"), name, v)
        printf("%-10s %s\n", name, json_is_null(v) ? "no" : json_string_value(v));
    json_array_foreach(json_object_get(j, "problems"), i, v) printf(
        "\n%s: %s\n  fix: %s\n", json_is_true(json_object_get(v, "grave")) ? "problem" : "note",
        json_string_value(json_object_get(v, "problem")),
        json_string_value(json_object_get(v, "fix")));
    if (!i) printf("\nno problems found\n");
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* One a line, each once. */
static void list_failpoints(void)
{
    const char *const *names;
    int n = tt_failpoint_names(&names);
    const char **sorted = malloc(((size_t)n + 1) * sizeof *sorted);

    if (!sorted) tt_mem_out((size_t)n * sizeof *sorted);
    memcpy(sorted, names, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_text);
    for (int i = 0; i < n; i++)
        if (!i || strcmp(sorted[i], sorted[i - 1])) printf("%s\n", sorted[i]);
    free(sorted);
}

static int doctor_run(const void *opts, int argc, const char **argv)
{
    const doctor_opts *o = opts;
    report r = {.root = json_object(), .problems = json_array()};

    (void)argc, (void)argv;
    if (o->failpoints) {
        list_failpoints();
        return 0;
    }
    json_object_set_new(r.root, "version", json_string(TT_VERSION));
    look_at_cpu(&r);
    look_at_kernels(&r);
    look_at_memory(&r);
    look_at_files(&r);
    look_at_libraries(&r);
    json_object_set_new(r.root, "problems", r.problems);
    if (o->json) {
        cli_json_print(stdout, json_incref(r.root), false);
    } else {
        print_machine(r.root);
        print_rest(r.root);
    }
    json_decref(r.root);
    return r.grave ? cli_exit_code(TT_EENV) : 0;
}

const tt_command cli_doctor = {
    .name = "doctor",
    .brief = "look at this machine: what is used, what is wrong, how to fix it",
    .about = "Shows processor, kernels with what one core makes of a product of matrices, memory, "
             "libraries and optional "
             "features, and "
             "for each problem its fix. Exit code 7: training cannot work here.",
    .examples = (const char *const[]){"tutti doctor", "look", "tutti doctor --json",
                                      "for a bug report", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(doctor_opts),
    .run = doctor_run,
};
