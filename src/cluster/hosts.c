/* hosts: lists of hosts as people, files and Slurm write them.
 *
 * All of it is input from outside: every mistake gets a sentence that shows the piece that is
 * wrong, and no input can make a list longer than TT_HOSTS_MOST. Names are checked here once and
 * for all: they go onto the command lines of remote shells, so one that begins with '-' must not
 * pass. */
#define _GNU_SOURCE
#include "inner.h"

#include "comm/comm.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FILE_MOST = 64 << 20, SHOWN = 60, DIGITS_MOST = 18 };

/* ---- words ---- */

const char *tt_show_text(const char *text, size_t size, char buf[96])
{
    size_t n = size < SHOWN ? size : SHOWN;

    for (size_t i = 0; i < n; i++)
        buf[i] = (unsigned char)text[i] < 0x20 || (unsigned char)text[i] > 0x7E ? '?' : text[i];
    strcpy(buf + n, size > SHOWN ? "..." : "");
    return buf;
}

int tt_digits(const char *text, size_t size, int most)
{
    long long n = 0;

    if (size == 0) return -1;
    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        n = n * 10 + (text[i] - '0');
        if (n > most) return -1;
    }
    return (int)n;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f' || c == '\v';
}

static void trim(const char **text, size_t *size)
{
    while (*size && is_blank(**text)) ++*text, --*size;
    while (*size && is_blank((*text)[*size - 1])) --*size;
}

/* ---- names ---- */

static bool is_plain(char c) /* whatever the locale says */
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool is_name(const char *text, size_t size)
{
    if (!size || !is_plain(*text)) return false;
    for (size_t i = 0; i < size; i++)
        if (!is_plain(text[i]) && text[i] != '.' && text[i] != '-' && text[i] != '_') return false;
    return true;
}

/* "fe80::1", "fe80::1%eth0" */
static bool is_ipv6(const char *text, size_t size)
{
    const char *zone = memchr(text, '%', size);
    char address[INET6_ADDRSTRLEN + 1];
    unsigned char bits[16];
    size_t n = zone ? (size_t)(zone - text) : size;

    if (n >= sizeof address || (zone && !is_name(zone + 1, size - n - 1))) return false;
    memcpy(address, text, n);
    address[n] = 0;
    return strlen(address) == n && inet_pton(AF_INET6, address, bits) == 1;
}

const char *tt_host_split(const char *text, size_t size, char name[256], const char **rest,
                          size_t *rest_size)
{
    const char *end = text + size, *colon = memchr(text, ':', size), *stop;

    *rest = NULL;
    *rest_size = 0;
    if (!size) return "is empty";
    if (*text == '[') {
        stop = memchr(text, ']', size);
        if (!stop) return "has a '[' without a ']'";
        if (!is_ipv6(text + 1, (size_t)(stop - text) - 1))
            return "has no IPv6 address between its brackets";
        if (stop + 1 < end && stop[1] != ':') return "has something other than ':' after its ']'";
        colon = stop + 1 < end ? stop + 1 : NULL;
        text++;
    } else {
        stop = colon ? colon : end;
        if (colon && memchr(colon + 1, ':', (size_t)(end - colon) - 1))
            return "has several colons: an IPv6 address stands in brackets, as in [fe80::1]:4";
        if (stop == text) return "has no name before its ':'";
        if (!is_name(text, (size_t)(stop - text)))
            return "is no host name: these are letters, digits, '.', '-' and '_', and begin with a "
                   "letter or a digit";
    }
    if (stop - text > 255) return "is longer than 255 characters";
    memcpy(name, text, (size_t)(stop - text));
    name[stop - text] = 0;
    if (colon) {
        *rest = colon + 1;
        *rest_size = (size_t)(end - colon) - 1;
    }
    return NULL;
}

/* Is it an address, and one of this host? Then a socket can be bound to it. */
static bool is_own_address(const char *name)
{
    struct addrinfo want = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_DGRAM}, *a = NULL;
    bool own = false;
    int fd;

    if (getaddrinfo(name, NULL, &want, &a)) return false;
    fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        own = !bind(fd, a->ai_addr, a->ai_addrlen);
        close(fd);
    }
    freeaddrinfo(a);
    return own;
}

bool tt_host_is_here(const char *name)
{
    char own[256] = "";
    size_t n = strcspn(name, "."), m;

    if (!strcasecmp(name, "localhost") || is_own_address(name)) return true;
    if (gethostname(own, sizeof own - 1) || !*own) return false;
    if (!strcasecmp(name, own)) return true;
    /* node1 and node1.cluster are one; node1.here and node1.there are two. */
    m = strcspn(own, ".");
    return n == m && !strncasecmp(name, own, n) && (!name[n] || !own[m]);
}

/* ---- lists ---- */

static uint32_t hash(const char *s)
{
    uint32_t h = 2166136261u;

    for (; *s; s++) h = (h ^ (unsigned char)*s) * 16777619u;
    return h;
}

static void grow(tt_hosts_maker *m)
{
    int room = m->room ? m->room * 2 : 16;
    tt_host *host = realloc(m->hosts.host, (size_t)room * sizeof *host);
    int *bucket = calloc((size_t)room * 2, sizeof *bucket);

    if (!host || !bucket) tt_mem_out((size_t)room * sizeof *host);
    free(m->bucket);
    m->hosts.host = host;
    m->bucket = bucket;
    m->room = room;
    m->bucket_count = room * 2;
    for (int i = 0; i < m->hosts.count; i++) {
        uint32_t b = hash(host[i].name) % (uint32_t)m->bucket_count;
        while (bucket[b]) b = (b + 1) % (uint32_t)m->bucket_count;
        bucket[b] = 1 + i;
    }
}

tt_err tt_hosts_add(tt_hosts_maker *m, const char *name, int slots)
{
    tt_host *h;
    uint32_t b;

    if (m->hosts.count == m->room) grow(m);
    b = hash(name) % (uint32_t)m->bucket_count;
    for (; m->bucket[b]; b = (b + 1) % (uint32_t)m->bucket_count) {
        h = &m->hosts.host[m->bucket[b] - 1];
        if (strcmp(h->name, name)) continue;
        h->slots = (h->slots ? h->slots : 1) + (slots ? slots : 1);
        if (h->slots > TT_SLOTS_MOST)
            return tt_fail(TT_EINVAL, "host %s has %d slots in all: at most %d are possible", name,
                           h->slots, TT_SLOTS_MOST);
        return TT_OK;
    }
    if (m->hosts.count == TT_HOSTS_MOST)
        return tt_fail(TT_EINVAL, "more than %d hosts", TT_HOSTS_MOST);
    m->bucket[b] = 1 + m->hosts.count;
    h = &m->hosts.host[m->hosts.count++];
    snprintf(h->name, sizeof h->name, "%s", name);
    h->slots = slots;
    return TT_OK;
}

tt_err tt_hosts_done(tt_hosts_maker *m, tt_err err, tt_hosts *out)
{
    if (!err) *out = m->hosts;
    if (err) free(m->hosts.host);
    free(m->bucket);
    *m = (tt_hosts_maker){0};
    return err;
}

int tt_hosts_slots(const tt_hosts *h)
{
    int64_t sum = 0;

    for (int i = 0; i < h->count; i++) sum += h->host[i].slots ? h->host[i].slots : 1;
    return sum > INT_MAX ? INT_MAX : (int)sum;
}

void tt_hosts_free(tt_hosts *h)
{
    free(h->host);
    *h = (tt_hosts){0};
}

/* "a:4", "a", "[fe80::1]:2": name and slots (0: not said). The message is for the caller to place.
 */
static tt_err read_entry(const char *text, size_t size, char name[256], int *slots)
{
    char shown[96], number[96];
    const char *wrong, *rest;
    size_t n;

    *slots = 0;
    wrong = tt_host_split(text, size, name, &rest, &n);
    if (wrong)
        return tt_fail(TT_EINVAL, "the host '%s' %s", tt_show_text(text, size, shown), wrong);
    if (!rest) return TT_OK;
    *slots = tt_digits(rest, n, TT_SLOTS_MOST);
    if (*slots < 1)
        return tt_fail(TT_EINVAL, "the host '%s' has '%s' slots: write a number from 1 to %d",
                       tt_show_text(text, size, shown), tt_show_text(rest, n, number),
                       TT_SLOTS_MOST);
    return TT_OK;
}

tt_err tt_hosts_parse(const char *list, tt_hosts *out)
{
    tt_hosts_maker m = {0};
    tt_err err = TT_OK;
    char name[256];
    int slots, entry = 1;

    *out = (tt_hosts){0};
    if (!list[strspn(list, " \t\r\n")])
        return tt_fail(TT_EINVAL, "the list of hosts is empty: write it as a:4,b:4");
    for (const char *p = list; !err; p++, entry++) {
        const char *word = p;
        size_t size = strcspn(p, ",");
        p += size;
        trim(&word, &size);
        err = read_entry(word, size, name, &slots);
        if (!err) err = tt_hosts_add(&m, name, slots);
        if (err) err = tt_context(err, "entry %d of the list of hosts", entry);
        if (!*p) break;
    }
    return tt_hosts_done(&m, err, out);
}

/* ---- host files ---- */

/* The next piece up to a blank or '='; it may be empty. */
static void take_word(const char **p, const char *end, const char **word, size_t *size)
{
    while (*p < end && is_blank(**p)) ++*p;
    *word = *p;
    while (*p < end && !is_blank(**p) && **p != '=') ++*p;
    *size = (size_t)(*p - *word);
}

/* "slots=4", "max_slots = 8": what may stand behind the name. */
static tt_err read_setting(const char **p, const char *end, int *slots, int *most)
{
    static const char *const keys[] = {"slots", "max_slots", "max-slots"};
    char shown[96], value[96], key[16] = "";
    const char *word, *near;
    size_t size, n;
    int *to, which, number;

    take_word(p, end, &word, &size);
    tt_show_text(word, size, shown);
    if (size < sizeof key) memcpy(key, shown, size);
    while (*p < end && is_blank(**p)) ++*p;
    if (*p == end || **p != '=')
        return tt_fail(TT_EINVAL, "'%s' stands behind the host: write slots=4, one host a line",
                       shown);
    ++*p;
    for (which = 0; which < TT_COUNT(keys) && strcmp(key, keys[which]);) which++;
    if (which == TT_COUNT(keys)) {
        near = tt_nearest(key, keys, TT_COUNT(keys));
        return tt_fail(TT_EINVAL, "unknown word '%s'%s%s%s", shown,
                       near ? ": did you mean '" : ": a host takes slots and max_slots",
                       near ? near : "", near ? "'?" : "");
    }
    take_word(p, end, &word, &n);
    number = tt_digits(word, n, TT_SLOTS_MOST);
    if (number < 1)
        return tt_fail(TT_EINVAL, "%s is '%s': write a number from 1 to %d", shown,
                       tt_show_text(word, n, value), TT_SLOTS_MOST);
    to = which == 0 ? slots : most;
    if (*to) return tt_fail(TT_EINVAL, "%s is given twice", shown);
    *to = number;
    return TT_OK;
}

static tt_err read_line(const char *text, size_t size, tt_hosts_maker *m)
{
    const char *comment = memchr(text, '#', size), *p, *end;
    char name[256];
    int slots = 0, most = 0;
    size_t n = 0;
    tt_err err;

    if (comment) size = (size_t)(comment - text);
    trim(&text, &size);
    if (!size) return TT_OK;
    end = text + size;
    while (n < size && !is_blank(text[n])) n++;
    if ((err = read_entry(text, n, name, &slots))) return err;
    for (p = text + n; p < end;)
        if ((err = read_setting(&p, end, &slots, &most))) return err;
    if (most && most < slots)
        return tt_fail(TT_EINVAL, "host %s has %d slots but at most %d", name, slots, most);
    return tt_hosts_add(m, name, slots);
}

tt_err tt_hosts_read_text(const char *path, const char *text, size_t size, tt_hosts *out)
{
    tt_hosts_maker m = {0};
    tt_err err = TT_OK;
    int line = 1;

    *out = (tt_hosts){0};
    for (size_t at = 0; !err && at < size; line++) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t n = end ? (size_t)(end - (text + at)) : size - at;
        err = read_line(text + at, n, &m);
        if (err) tt_context(err, "%s:%d", path, line);
        at += n + 1;
    }
    if (!err && !m.hosts.count) err = tt_fail(TT_EINVAL, "%s names no host", path);
    return tt_hosts_done(&m, err, out);
}

tt_err tt_hosts_read(const char *path, tt_hosts *out)
{
    tt_bytes b = {0};
    tt_err err;

    *out = (tt_hosts){0};
    if (tt_file_read(path, FILE_MOST, &b)) return tt_context(TT_EINVAL, "the file of hosts");
    err = tt_hosts_read_text(path, (const char *)b.data, b.size, out);
    tt_file_release(&b);
    return err;
}

/* ---- Slurm ----
 *
 * SLURM_JOB_NODELIST is a list of names, each with any number of brackets of numbers:
 * r[1-2]n[01-03] means r1n01, r1n02, r1n03, r2n01 and so on. A number is as wide as the one its
 * range begins with.
 */

typedef struct slurm {
    const char *nodes, *tasks;
    tt_hosts_maker m;
    int *task; /* of each host in turn */
    int task_count, name_count;
    char name[512]; /* in the making: longer than a name may be, and still bounded */
} slurm;

static const char TOO_LONG[] = "the name of a host is too long";

static tt_err nodes_fail(const slurm *s, const char *at, const char *what)
{
    char shown[96];

    return tt_fail(TT_EINVAL, "SLURM_JOB_NODELIST is '%s': %s at character %d",
                   tt_show_text(s->nodes, strlen(s->nodes), shown), what, (int)(at - s->nodes) + 1);
}

static tt_err tasks_fail(const slurm *s, const char *what)
{
    char shown[96];

    return tt_fail(TT_EINVAL,
                   "SLURM_TASKS_PER_NODE is '%s': %s; it is written as 4(x2),1 for 4 ranks on two "
                   "hosts and 1 on a third",
                   tt_show_text(s->tasks, strlen(s->tasks), shown), what);
}

/* "4(x2),1" */
static tt_err read_tasks(slurm *s)
{
    const char *p = s->tasks;

    s->task = malloc(TT_HOSTS_MOST * sizeof *s->task);
    if (!s->task) tt_mem_out(TT_HOSTS_MOST * sizeof *s->task);
    for (;; p++) {
        size_t n = strspn(p, "0123456789"), k;
        int ranks = tt_digits(p, n, TT_SLOTS_MOST), times = 1;
        if (ranks < 1) return tasks_fail(s, "a number of ranks is none, or out of range");
        p += n;
        if (!strncmp(p, "(x", 2)) {
            k = strspn(p + 2, "0123456789");
            times = tt_digits(p + 2, k, TT_HOSTS_MOST);
            if (times < 1 || p[2 + k] != ')')
                return tasks_fail(s, "a number of hosts is none, or out of range");
            p += k + 3;
        }
        if (*p && *p != ',') return tasks_fail(s, "something other than ',' follows a number");
        if (times > TT_HOSTS_MOST - s->task_count) return tasks_fail(s, "too many hosts");
        while (times--) s->task[s->task_count++] = ranks;
        if (!*p) return TT_OK;
    }
}

static tt_err add_node(slurm *s, const char *at)
{
    char shown[96], name[256];
    int slots = s->name_count < s->task_count ? s->task[s->name_count] : 1;
    const char *rest, *wrong;
    size_t n;

    if (s->name_count++ == TT_HOSTS_MOST) return nodes_fail(s, at, "more than 100,000 hosts");
    wrong = tt_host_split(s->name, strlen(s->name), name, &rest, &n);
    if (!wrong && rest) wrong = "has a ':'";
    if (wrong)
        return tt_fail(TT_EINVAL, "SLURM_JOB_NODELIST: the host '%s' %s",
                       tt_show_text(s->name, strlen(s->name), shown), wrong);
    return tt_hosts_add(&s->m, name, slots);
}

/* Puts `size` bytes behind the `have` bytes of the name. */
static tt_err append(slurm *s, size_t have, const char *text, size_t size)
{
    if (have + size >= sizeof s->name) return nodes_fail(s, text, TOO_LONG);
    memcpy(s->name + have, text, size);
    s->name[have + size] = 0;
    return TT_OK;
}

typedef struct range {
    long long lo, hi;
    int width;
} range;

/* "1", "01-03": reads one range of a bracket; *p is left behind it. */
static tt_err read_range(const slurm *s, const char **p, range *r)
{
    const char *start = *p;
    size_t n = strspn(start, "0123456789"), k;

    if (!n) return nodes_fail(s, start, "a number is missing");
    if (n > DIGITS_MOST) return nodes_fail(s, start, "a number is too long");
    r->lo = r->hi = strtoll(start, NULL, 10);
    r->width = (int)n;
    *p = start + n;
    if (**p == '-') {
        k = strspn(*p + 1, "0123456789");
        if (!k) return nodes_fail(s, *p + 1, "a number is missing");
        if (k > DIGITS_MOST) return nodes_fail(s, *p + 1, "a number is too long");
        r->hi = strtoll(*p + 1, NULL, 10);
        *p += 1 + k;
    }
    if (r->hi < r->lo) return nodes_fail(s, start, "a range runs backwards");
    if (r->hi - r->lo >= TT_HOSTS_MOST)
        return nodes_fail(s, start, "a range of more than 100,000 hosts");
    if (**p != ',' && **p != ']')
        return nodes_fail(s, *p, "something other than ',' or ']' stands");
    return TT_OK;
}

/* All names of the entry text .. end, of which `have` bytes are made; brackets are balanced. */
static tt_err expand(slurm *s, size_t have, const char *text, const char *end)
{
    const char *open = memchr(text, '[', (size_t)(end - text)), *close, *p;
    size_t n = (size_t)((open ? open : end) - text);
    range r = {0};
    tt_err err;

    if ((err = append(s, have, text, n))) return err;
    if (!open) return add_node(s, text);
    have += n;
    close = memchr(open, ']', (size_t)(end - open));
    for (p = open + 1;; p++) {
        if ((err = read_range(s, &p, &r))) return err;
        for (; r.lo <= r.hi; r.lo++) {
            char number[32];
            int size = snprintf(number, sizeof number, "%0*lld", r.width, r.lo);
            if (have + (size_t)size >= sizeof s->name) return nodes_fail(s, open, TOO_LONG);
            memcpy(s->name + have, number, (size_t)size);
            if ((err = expand(s, have + (size_t)size, close + 1, end))) return err;
        }
        if (*p == ']') return TT_OK;
    }
}

/* Where the entry at p ends: at a comma outside of brackets, or at the end of the list. */
static tt_err find_end(const slurm *s, const char *p, const char **end)
{
    const char *open = NULL;

    for (; *p && (open || *p != ','); p++) {
        if (*p == '[' && open) return nodes_fail(s, p, "a '[' inside of brackets");
        if (*p == ']' && !open) return nodes_fail(s, p, "a ']' without a '['");
        if (*p == '[') open = p;
        if (*p == ']') open = NULL;
    }
    if (open) return nodes_fail(s, open, "a '[' without a ']'");
    *end = p;
    return TT_OK;
}

static tt_err read_nodes(slurm *s)
{
    const char *end = s->nodes;
    tt_err err;

    for (const char *p = s->nodes;; p = end + 1) {
        if ((err = find_end(s, p, &end))) return err;
        if (end == p) return nodes_fail(s, p, "a name is missing");
        if ((err = expand(s, 0, p, end))) return err;
        if (!*end) return TT_OK;
    }
}

tt_err tt_hosts_slurm_parse(const char *nodes, const char *tasks, tt_hosts *out)
{
    slurm s = {.nodes = nodes, .tasks = tasks};
    tt_err err = TT_OK;

    *out = (tt_hosts){0};
    if (!nodes || !*nodes) return TT_OK;
    if (tasks && *tasks) err = read_tasks(&s);
    if (!err) err = read_nodes(&s);
    if (!err && s.task && s.task_count != s.name_count)
        err =
            tt_fail(TT_EINVAL, "SLURM_TASKS_PER_NODE speaks of %d hosts, SLURM_JOB_NODELIST of %d",
                    s.task_count, s.name_count);
    free(s.task);
    return tt_hosts_done(&s.m, err, out);
}

tt_err tt_hosts_slurm(int ranks, tt_hosts *out)
{
    const char *tasks = getenv("SLURM_TASKS_PER_NODE");
    tt_err err;
    int slots, count;

    *out = (tt_hosts){0};
    if (tt_slurm_step()) return TT_OK;
    /* sbatch --exclusive makes a task of every CPU, but srun starts only what was asked for. */
    if (!ranks && !getenv("SLURM_NTASKS")) tasks = NULL;
    if ((err = tt_hosts_slurm_parse(getenv("SLURM_JOB_NODELIST"), tasks, out)) || !out->count)
        return err;
    slots = tt_hosts_slots(out);
    count = out->count;
    if (ranks <= slots) return TT_OK;
    if (count == 1 && tt_host_is_here(out->host->name)) {
        out->host->slots = ranks; /* its CPUs are ours, however many tasks they were asked for as */
        return TT_OK;
    }
    tt_hosts_free(out);
    return tt_fail(TT_EINVAL,
                   "%d ranks do not fit into this allocation of Slurm, which has %d task%s on %d "
                   "host%s: ask sbatch or salloc for --ntasks=%d",
                   ranks, slots, slots == 1 ? "" : "s", count, count == 1 ? "" : "s", ranks);
}
