/* Content in common: a dataset is decoded by one process of a host and mapped by all.
 *
 * In a folder there are, of each content, by its key:
 *
 *   KEY        the content: a head, then the arrays, each with a checksum. It gets this name when
 *              it is whole, and is never written again
 *   KEY.tmp    the same in the making
 *   KEY.lock   locked by whoever makes it, with its process number; or why it is not to be had
 *
 *              +-> KEY is there and whole ------------------------------------------> mapped
 *   a process -+-> locked by another: looks again in a while, as long as that one works
 *              +-> lock taken -> decodes -> KEY.tmp -> rename -> goes over to it ---> mapped
 *                                   +-> cannot be made: says so in KEY.lock --------> its own
 *
 * (1) Only who has the lock writes or removes KEY and KEY.tmp. A lock ends with its process,
 *     however that ends: the next one finds at most a KEY.tmp, and removes it.
 * (2) All space is there before the first byte is written, so nobody who has mapped KEY ever meets
 *     a page that cannot be had. The head comes last: without it the rest is no content.
 * (3) KEY is a hash of all that the content depends on. Files that change while they are decoded
 *     change the key; then the content is not given to others.
 *
 * The lock file is in the first folder that takes it; the content may lie in a later one. Lock
 * files stay: to remove one that another process waits for would make two locks of it.
 *
 * A process that finds that the content cannot be in common (no room) says so before it lets go of
 * the lock. Without that, all others would decode in vain one after the other. */
#define _GNU_SOURCE
#include "data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { LOOK_MS = 5, ALIGN = 64, TMPFS = 0x01021994, HUGE_PAGE = 2 << 20 };

/* ---- The file ---- */

static const char MAGIC[16] = "tutti content 6";

enum {
    NAME,
    CLASS_NAMES,
    SAMPLES,
    ROW,
    COL,
    VAL,
    IDS,
    LABEL,
    TARGET,
    STANDARDISE,
    TOKEN_SIZE,
    LEARNED,
    SPANS
};

typedef struct span {
    uint64_t at, size; /* 0: there is no such array */
    uint64_t crc;
} span;

/* A source. What only the opening of a second one asks of it (schema, bases) is kept as it is told
 * to those who have not the training set. */
typedef struct kept {
    int64_t there, count, rows, labels, targets, classes, keep, bytes, pixels;
    int64_t tokens, window, edge, text_bytes, ids_each;
    tt_shape shape;
    uint64_t words;
    span span[SPANS];
} kept;

typedef struct head {
    char magic[16];
    char key[72], sha[72];
    uint64_t size; /* of the file */
    kept source[2];
    span stats;   /* means, then deviations */
    uint64_t crc; /* of all before it */
} head;

static uint64_t head_crc(const head *h)
{
    return tt_crc32c(h, offsetof(head, crc));
}

/* The bytes that belong to the spans of a head. */
typedef struct body {
    const void *array[2][SPANS];
    tt_str class_names[2];
    double *both; /* means and deviations */
} body;

static void lay_out(head *h, span *s, const void *data, size_t size)
{
    if (!data || !size) return;
    h->size = (h->size + ALIGN - 1) / ALIGN * ALIGN;
    *s = (span){h->size, size, tt_crc32c(data, size)};
    h->size += size;
}

static void lay_out_source(head *h, int which, const tt_source *s, body *b)
{
    kept *k = &h->source[which];
    size_t rows = (size_t)s->kept, each = (size_t)tt_shape_count(s->shape);
    size_t entries = s->keep == TT_KEEP_SPARSE ? (size_t)s->row[s->kept] : 0;
    bool text = s->keep == TT_KEEP_TOKENS;
    tt_str *names = &b->class_names[which];

    *k = (kept){true,          s->count,    s->kept,   s->labels, s->targets, s->classes,
                s->keep,       s->bytes,    s->pixels, s->tokens, s->window,  s->edge,
                s->text_bytes, s->ids_each, s->shape,  s->words};
    for (int i = 0; s->class_name && i < s->classes; i++)
        tt_str_put(names, s->class_name[i], strlen(s->class_name[i]) + 1);
    const void *array[SPANS] = {[NAME] = s->name,
                                [CLASS_NAMES] = names->data,
                                [SAMPLES] = text                    ? (const void *)s->token
                                            : s->keep == TT_KEEP_U8 ? (const void *)s->u8
                                                                    : s->f32,
                                [ROW] = s->row,
                                [COL] = s->col,
                                [VAL] = s->val,
                                [IDS] = s->ids,
                                [LABEL] = s->label,
                                [TARGET] = s->target,
                                [STANDARDISE] = s->standardise,
                                [TOKEN_SIZE] = s->token_size,
                                [LEARNED] = s->learned};
    const size_t size[SPANS] = {[NAME] = strlen(s->name) + 1,
                                [CLASS_NAMES] = names->size,
                                [SAMPLES] = text ? (size_t)s->tokens * sizeof *s->token
                                                 : rows * each * (s->keep == TT_KEEP_U8 ? 1 : 4),
                                [ROW] = s->row ? (rows + 1) * sizeof *s->row : 0,
                                [COL] = entries * sizeof *s->col,
                                [VAL] = entries * sizeof *s->val,
                                [IDS] = rows * (size_t)s->ids_each * sizeof *s->ids,
                                [LABEL] = rows * (size_t)s->labels * sizeof *s->label,
                                [TARGET] = rows * (size_t)s->targets * sizeof *s->target,
                                [STANDARDISE] = each * sizeof *s->standardise,
                                [TOKEN_SIZE] = (size_t)s->token_sizes * sizeof *s->token_size,
                                [LEARNED] = s->learned ? strlen(s->learned) + 1 : 0};
    for (int i = 0; i < SPANS; i++) lay_out(h, &k->span[i], array[i], size[i]);
    memcpy(b->array[which], array, sizeof array);
}

static void lay_out_all(tt_data *d, const char *key, head *h, body *b)
{
    size_t stats = d->mean ? (size_t)d->channels * sizeof(double) : 0;

    memset(h, 0, sizeof *h);
    memcpy(h->magic, MAGIC, sizeof MAGIC);
    snprintf(h->key, sizeof h->key, "%s", key);
    snprintf(h->sha, sizeof h->sha, "%s", tt_data_sha(d));
    h->size = sizeof *h;
    lay_out_source(h, 0, d->train, b);
    if (d->val) lay_out_source(h, 1, d->val, b);
    if (stats) {
        if (!(b->both = malloc(2 * stats))) tt_mem_out(2 * stats);
        memcpy(b->both, d->mean, stats);
        memcpy(b->both + d->channels, d->deviation, stats);
        lay_out(h, &h->stats, b->both, 2 * stats);
    }
    h->crc = head_crc(h);
}

static bool put_span(int fd, const span *s, const void *data)
{
    return !s->size || (lseek(fd, (off_t)s->at, SEEK_SET) == (off_t)s->at &&
                        tt_write_all(fd, data, s->size, NULL));
}

static bool put_all(int fd, const head *h, const body *b)
{
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < SPANS; k++)
            if (!put_span(fd, &h->source[i].span[k], b->array[i][k])) return false;
    return put_span(fd, &h->stats, b->both) && !lseek(fd, 0, SEEK_SET) &&
           tt_write_all(fd, h, sizeof *h, NULL); /* last: keeps (2) */
}

/* ---- Taking it ---- */

static const void *bytes_of(const char *map, const span *s)
{
    return s->size ? map + s->at : NULL;
}

static bool whole_span(const char *map, uint64_t file_size, const span *s)
{
    if (!s->size) return !s->at && !s->crc;
    return s->at % ALIGN == 0 && s->at >= sizeof(head) && s->at <= file_size &&
           s->size <= file_size - s->at && tt_crc32c(map + s->at, s->size) == s->crc;
}

/* As many texts as there are classes, one behind the other. */
static bool take_class_names(const char *map, const kept *k, tt_source *s)
{
    const span *at = &k->span[CLASS_NAMES];
    const char *text = bytes_of(map, at), *end = text + at->size;
    const char **names;

    if (!text) return true;
    names = tt_arena_take(s->arena, sizeof *names * (size_t)k->classes, sizeof *names);
    for (int i = 0; i < k->classes; i++) {
        const char *stop = text < end ? memchr(text, 0, (size_t)(end - text)) : NULL;
        if (!stop) return false;
        names[i] = text;
        text = stop + 1;
    }
    s->class_name = names;
    return text == end;
}

/* Has each array the size that follows from the numbers? */
static bool sizes_fit(const kept *k, const int64_t *row)
{
    size_t rows = (size_t)k->rows, each = (size_t)tt_shape_count(k->shape);
    size_t cells = tt_mul_size(rows, each), targets = tt_mul_size(rows, (size_t)k->targets),
           labels = tt_mul_size(rows, (size_t)k->labels);
    bool sparse = k->keep == TT_KEEP_SPARSE;
    size_t entries = sparse ? tt_mul_size((size_t)row[rows], 4) : 0;
    const span *s = k->span;
    size_t samples = sparse ? 0
                     : k->keep == TT_KEEP_TOKENS
                         ? tt_mul_size((size_t)k->tokens, 2)
                         : tt_mul_size(cells, k->keep == TT_KEEP_U8 ? 1 : 4);

    return s[SAMPLES].size == samples && s[COL].size == entries && s[VAL].size == entries &&
           s[IDS].size == tt_mul_size(tt_mul_size(rows, (size_t)k->ids_each), 4) &&
           (!s[LABEL].size || s[LABEL].size == tt_mul_size(labels, 4)) &&
           (!s[TARGET].size || s[TARGET].size == tt_mul_size(targets, 4)) &&
           (!s[STANDARDISE].size || s[STANDARDISE].size == each) && s[TOKEN_SIZE].size % 4 == 0;
}

/* Lines, or as many windows as there are tokens for. */
static bool text_fits(const kept *k, const int64_t *row)
{
    int64_t windows;

    if (k->keep != TT_KEEP_TOKENS) return true;
    if (k->tokens < 1 || k->window < 1 || k->edge < 0 || k->edge > UINT16_MAX) return false;
    if (row) return row[k->rows] <= k->tokens;
    return !__builtin_mul_overflow(k->rows, k->window, &windows) && windows < k->tokens;
}

/* NULL: it is not whole. */
static tt_source *take_source(const char *map, uint64_t file_size, const kept *k)
{
    const span *at = k->span;
    tt_source *s;
    const char *name, *learned;

    for (int i = 0; i < SPANS; i++)
        if (!whole_span(map, file_size, &at[i])) return NULL;
    name = bytes_of(map, &at[NAME]);
    learned = bytes_of(map, &at[LEARNED]);
    if ((learned && learned[at[LEARNED].size - 1]) || !name || name[at[NAME].size - 1] ||
        k->rows < 1 || k->rows > INT64_MAX / 16 || k->count < k->rows || k->labels < 1 ||
        k->shape.rank < 1 || k->shape.rank > 6 || k->classes < 0 || k->classes > INT32_MAX ||
        k->ids_each < 0 || k->keep < TT_KEEP_U8 || k->keep > TT_KEEP_TOKENS ||
        (at[ROW].size && at[ROW].size != ((size_t)k->rows + 1) * sizeof(int64_t)) ||
        (k->keep == TT_KEEP_SPARSE && !at[ROW].size) || !sizes_fit(k, bytes_of(map, &at[ROW])) ||
        !text_fits(k, bytes_of(map, &at[ROW])))
        return NULL;
    s = tt_source_new();
    s->name = name;
    s->count = k->count;
    s->kept = k->rows;
    s->shape = k->shape;
    s->bytes = k->bytes;
    s->pixels = k->pixels;
    s->keep = (tt_keep)k->keep;
    if (s->keep == TT_KEEP_U8) s->u8 = bytes_of(map, &at[SAMPLES]);
    if (s->keep == TT_KEEP_F32) s->f32 = bytes_of(map, &at[SAMPLES]);
    if (s->keep == TT_KEEP_TOKENS) s->token = bytes_of(map, &at[SAMPLES]);
    s->tokens = k->tokens;
    s->window = k->window;
    s->edge = (int)k->edge;
    s->text_bytes = k->text_bytes;
    s->words = k->words;
    s->row = bytes_of(map, &at[ROW]);
    s->col = bytes_of(map, &at[COL]);
    s->val = bytes_of(map, &at[VAL]);
    s->ids = bytes_of(map, &at[IDS]);
    s->ids_each = k->ids_each;
    s->label = bytes_of(map, &at[LABEL]);
    s->target = bytes_of(map, &at[TARGET]);
    s->labels = k->labels;
    s->targets = k->targets;
    s->classes = (int)k->classes;
    s->standardise = bytes_of(map, &at[STANDARDISE]);
    s->token_size = bytes_of(map, &at[TOKEN_SIZE]);
    s->token_sizes = (int)(at[TOKEN_SIZE].size / sizeof *s->token_size);
    s->learned = learned;
    if (take_class_names(map, k, s)) return s;
    tt_source_close(s);
    return NULL;
}

static tt_err not_whole(const char *path, const char *what)
{
    return tt_fail(TT_EFORMAT, "%s is damaged: %s", path, what);
}

/* Goes over from what the dataset had, if anything, to what is mapped. */
static void go_over(tt_data *d, tt_source *train, tt_source *val)
{
    for (int i = 0; i < 2; i++) {
        if (d->part[i].src && d->part[i].src == d->train) d->part[i].src = train;
        if (d->part[i].src && d->part[i].src == d->val) d->part[i].src = val;
    }
    tt_source_close(d->val);
    tt_source_close(d->train);
    d->train = train;
    d->val = val;
}

static tt_err take_all(tt_data *d, const char *path, const char *map, size_t size, const char *key)
{
    tt_source *train, *val = NULL;
    const double *stats;
    head h;

    if (size < sizeof h) return not_whole(path, "it ends within its head");
    memcpy(&h, map, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof MAGIC)) return not_whole(path, "it has no head");
    if (h.crc != head_crc(&h) || h.size != size || strcmp(h.key, key))
        return not_whole(path, "its head is not right");
    if (!whole_span(map, size, &h.stats)) return not_whole(path, "its statistics are not right");
    if (!(train = take_source(map, size, &h.source[0])))
        return not_whole(path, "its training set is not right");
    if (h.source[1].there && !(val = take_source(map, size, &h.source[1]))) {
        tt_source_close(train);
        return not_whole(path, "its validation set is not right");
    }
    go_over(d, train, val);
    stats = bytes_of(map, &h.stats);
    d->mean = stats;
    d->deviation = stats ? stats + h.stats.size / (2 * sizeof *stats) : NULL;
    memcpy(d->sha, h.sha, sizeof d->sha);
    return TT_OK;
}

/* Rows are taken at random, so large pages help (by a tenth, on images). A page of the file can be
 * one of memory only where both are aligned alike. */
static void *map_file(int fd, size_t size)
{
    size_t room = size < SIZE_MAX / 2 ? size + HUGE_PAGE : size;
    char *p = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *at;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), end = (size + page - 1) / page * page;

    if (p == MAP_FAILED) return NULL;
    at = (char *)(((uintptr_t)p + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (mmap(at, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        munmap(p, room);
        return NULL;
    }
    if (at > p) munmap(p, (size_t)(at - p));
    if (p + room > at + end) munmap(at + end, (size_t)(p + room - at) - end);
    madvise(at, size, MADV_HUGEPAGE);
    return at;
}

/* Makes large pages of those the file has, for all who map it. /dev/shm is seldom mounted so that
 * they would come by themselves. */
static void collapse(const tt_common *c)
{
    enum { COLLAPSE = 25 }; /* MADV_COLLAPSE, of Linux 6.1 */

    madvise(c->map, c->size / HUGE_PAGE * HUGE_PAGE, COLLAPSE);
}

/* TT_EIO: it is not there. TT_EFORMAT: it is, and of no use. TT_ENOMEM: it cannot be mapped. */
static tt_err take_file(tt_data *d, const char *path, const char *key)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    tt_err err = TT_OK;
    struct stat st;
    size_t size = 0;
    void *map = NULL;

    if (fd < 0) return tt_fail(TT_EIO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_size < 1) {
        err = not_whole(path, "it is no file of ours");
        goto out;
    }
    size = (size_t)st.st_size;
    if (!(map = map_file(fd, size))) {
        err = tt_fail(TT_ENOMEM, "mapping %s: %s", path, strerror(errno));
        goto out;
    }
    if ((err = take_all(d, path, map, size, key))) goto out;
    d->common.map = map;
    d->common.size = size;
    d->common.file = tt_arena_strdup(d->arena, path);
    map = NULL;
out:
    if (map) munmap(map, size);
    close(fd);
    return err;
}

/* ---- Folders ---- */

enum { PLACES = 8 };

typedef struct place {
    const char *folder, *file, *tmp;
} place;

/* Who looks for a content, and may have to make it; in the arena of the dataset. */
struct tt_claim {
    char key[65];
    place place[PLACES];
    int place_count;
    const char *lock_path;
    int lock;
};

static struct tt_claim *claim_new(tt_arena *a, const char *folders, const char *key)
{
    struct tt_claim *c = tt_arena_take(a, sizeof *c, sizeof(void *));

    c->lock = -1;
    snprintf(c->key, sizeof c->key, "%s", key);
    for (const char *p = folders, *end; *p && c->place_count < PLACES; p = *end ? end + 1 : end) {
        end = strchrnul(p, ':');
        if (end == p) continue;
        place *at = &c->place[c->place_count++];
        at->folder = tt_arena_printf(a, "%.*s", (int)(end - p), p);
        at->file = tt_arena_printf(a, "%s/%.32s", at->folder, key);
        at->tmp = tt_arena_printf(a, "%s.tmp", at->file);
    }
    return c;
}

/* Is it there, or can it be made; and may others write to it? In a place like /dev/shm they could
 * have been first. */
static tt_err need_folder(const char *folder)
{
    struct stat st;

    if (mkdir(folder, 0700) && errno != EEXIST)
        return tt_fail(TT_EIO, "making the folder %s: %s", folder, strerror(errno));
    if (lstat(folder, &st)) return tt_fail(TT_EIO, "%s: %s", folder, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return tt_fail(TT_EIO, "%s is no folder", folder);
    if (st.st_uid != geteuid() || (st.st_mode & 022))
        return tt_fail(TT_EIO, "%s is a folder that others may write to", folder);
    return TT_OK;
}

/* From whichever folder has it. TT_EIO: it is nowhere, or nowhere whole. */
static tt_err take_any(tt_data *d, const struct tt_claim *c)
{
    tt_err err = TT_EIO;

    for (int i = 0; i < c->place_count && err && err != TT_ENOMEM; i++)
        err = take_file(d, c->place[i].file, c->key);
    return err == TT_EFORMAT ? TT_EIO : err;
}

/* ---- The lock ---- */

/* In the first folder that takes it. */
static tt_err open_lock(tt_data *d, struct tt_claim *c)
{
    tt_err err = tt_fail(TT_EIO, "no folder was given");

    for (int i = 0; i < c->place_count && c->lock < 0; i++) {
        if ((err = need_folder(c->place[i].folder))) continue;
        c->lock_path = tt_arena_printf(d->arena, "%s.lock", c->place[i].file);
        c->lock = open(c->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (c->lock < 0) err = tt_fail(TT_EIO, "%s: %s", c->lock_path, strerror(errno));
    }
    return err;
}

/* Who has it, or why nobody will. */
static void write_lock(int fd, const char *text)
{
    if (ftruncate(fd, 0) || pwrite(fd, text, strlen(text), 0) < 0)
        tt_info("writing to the lock of a content in common: %s", strerror(errno));
}

static void read_lock(int fd, char text[512])
{
    ssize_t n = pread(fd, text, 511, 0);

    text[n > 0 ? n : 0] = 0;
}

/* `why`: it is not to be had in common; NULL: it is. */
static void release(struct tt_claim *c, const char *why)
{
    char text[512] = "";

    if (why) snprintf(text, sizeof text, "no: %s", why);
    write_lock(c->lock, text);
    close(c->lock);
}

/* A process that decodes uses the CPU; one that was stopped, or hangs in a disk, does not. */
typedef struct patience {
    double timeout_s, until;
    int pid;
    long long ticks; /* of the CPU, that it had used */
} patience;

static long long ticks_of(int pid)
{
    char path[64], text[1024], *name_end;
    long long user = 0, kernel = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!pid || !(f = fopen(path, "re"))) return 0;
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    name_end = strrchr(text, ')'); /* the name may hold anything */
    if (!name_end || sscanf(name_end + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld",
                            &user, &kernel) != 2)
        return 0;
    return user + kernel;
}

/* Has the one who is waited for done nothing for as long as we would wait? */
static bool is_stuck(patience *p, int lock)
{
    double now = tt_clock_s();
    long long ticks;
    char text[512];
    bool stuck;
    int pid;

    if (now < p->until) return false;
    read_lock(lock, text);
    pid = (int)strtol(text, NULL, 10);
    ticks = ticks_of(pid);
    stuck = p->until > 0 && pid == p->pid && ticks <= p->ticks;
    *p = (patience){p->timeout_s, now + p->timeout_s, pid, ticks};
    return stuck;
}

/* Waits for the content, or for the lock: then *locked. TT_ENOMEM: for neither. */
static tt_err wait_for(tt_data *d, struct tt_claim *c, double timeout_s, bool *locked)
{
    patience p = {.timeout_s = timeout_s};
    tt_err err;

    while ((err = take_any(d, c)) == TT_EIO) {
        *locked = !flock(c->lock, LOCK_EX | LOCK_NB);
        if (*locked) return TT_OK;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return tt_fail(TT_ENOMEM, "locking %s: %s", c->lock_path, strerror(errno));
        if (is_stuck(&p, c->lock))
            return tt_fail(TT_EIO,
                           "process %d, which decodes the data, has done nothing for %g s (it "
                           "holds %s): end it, or see what it waits for",
                           p.pid, timeout_s, c->lock_path);
        poll(NULL, 0, LOOK_MS);
    }
    return err;
}

static void keep_private(tt_data *d, const char *why)
{
    d->common.why = tt_arena_strdup(d->arena, why);
    if (*why) tt_warn("each process of this host holds the data for itself: %s", why);
}

/* The lock is ours. The content may have come just before; else removes what a process that died,
 * or a bad disk, has left, and makes it ours to make, unless somebody has found that it cannot be.
 */
static tt_err begin(tt_data *d, struct tt_claim *c)
{
    char text[512];
    tt_err err;

    for (int i = 0; i < c->place_count; i++) {
        const place *p = &c->place[i];
        if (!(err = take_file(d, p->file, c->key)) || err == TT_ENOMEM) return err;
        if (err == TT_EFORMAT && !unlink(p->file)) tt_warn("%s: it is made anew", tt_message());
        unlink(p->tmp);
    }
    read_lock(c->lock, text);
    if (!strncmp(text, "no: ", 4)) {
        keep_private(d, text + 4);
        return TT_OK;
    }
    snprintf(text, sizeof text, "%d\n", (int)getpid());
    write_lock(c->lock, text);
    d->common.claim = c;
    return TT_OK;
}

tt_err tt_common_find(tt_data *d, const char *folders, const char *key, double timeout_s)
{
    struct tt_claim *c = claim_new(d->arena, folders, key);
    bool locked = false;
    tt_err err = take_any(d, c);

    if (!err) return TT_OK;
    if (err == TT_ENOMEM || open_lock(d, c)) {
        keep_private(d, tt_message());
        return TT_OK;
    }
    err = wait_for(d, c, timeout_s, &locked);
    if (!err && locked) err = begin(d, c);
    if (!d->common.claim) close(c->lock);
    if (err != TT_ENOMEM) return err;
    keep_private(d, tt_message());
    return TT_OK;
}

/* ---- Making it ---- */

/* Why there should not be a file of that size; 0: nothing is against it. */
static int refuse_size(int fd, uint64_t size)
{
    struct statfs fs;

    if (fstatfs(fd, &fs) || fs.f_bsize < 1) return 0;
    /* Memory that is not there would be taken from whoever has some, at the worst by a kill. */
    if (fs.f_type == TMPFS && size > tt_mem_free()) return ENOMEM;
    /* Half of what is free is for others: the MPI has segments in /dev/shm that still grow. */
    return size / (uint64_t)fs.f_bsize >= (uint64_t)fs.f_bavail / 2 ? ENOSPC : 0;
}

/* Space for all of it, now. */
static tt_err reserve(int fd, const char *path, uint64_t size)
{
    int why = refuse_size(fd, size);
    char text[32];

    if (!why)
        while ((why = posix_fallocate(fd, 0, (off_t)size)) == EINTR) continue;
    if (!why) return TT_OK;
    return tt_fail(TT_EIO, "%s: no room for %s: %s", path,
                   tt_show_bytes((double)size, text, sizeof text), strerror(why));
}

static tt_err write_content(const place *p, const head *h, const body *b)
{
    int fd = open(p->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    tt_err err = TT_OK;

    if (fd < 0) return tt_fail(TT_EIO, "%s: %s", p->tmp, strerror(errno));
    if ((err = reserve(fd, p->tmp, h->size))) goto out;
    if (!put_all(fd, h, b) || rename(p->tmp, p->file))
        err = tt_fail(TT_EIO, "writing %s: %s", p->tmp, strerror(errno));
out:
    close(fd);
    if (err) unlink(p->tmp);
    return err;
}

static tt_err make_in(tt_data *d, const place *p, const head *h, const body *b)
{
    tt_err err;

    if ((err = need_folder(p->folder)) || (err = write_content(p, h, b))) return err;
    if ((err = take_file(d, p->file, h->key))) unlink(p->file);
    return err;
}

void tt_common_make(tt_data *d, const char *key)
{
    struct tt_claim *c = d->common.claim;
    tt_err err = TT_EIO;
    tt_str why = {0};
    body b = {0};
    head h;

    if (!c) return;
    if (strcmp(key, c->key)) {
        tt_str_add(&why, "its files were changed while they were read");
    } else {
        lay_out_all(d, key, &h, &b);
        for (int i = 0; i < c->place_count && err; i++)
            if ((err = make_in(d, &c->place[i], &h, &b)))
                tt_str_add(&why, "%s%s", why.size ? "; " : "", tt_message());
    }
    if (err) keep_private(d, why.data);
    release(c, err ? why.data : NULL);
    d->common.claim = NULL;
    if (!err) collapse(&d->common); /* nobody need wait for it */
    for (int i = 0; i < 2; i++) tt_str_free(&b.class_names[i]);
    free(b.both);
    tt_str_free(&why);
}

void tt_common_close(tt_common *c)
{
    if (c->claim) release(c->claim, ""); /* it could not be decoded: others will say why */
    if (c->map) munmap(c->map, c->size);
    *c = (tt_common){0};
}

/* ---- The key ---- */

tt_err tt_common_key(tt_node *train, tt_node *val, const tt_source_ctx *c, uint64_t seed,
                     bool normalize, char key[65])
{
    tt_source_ctx of_train = *c, of_val = *c;
    bool cut = val && tt_node_get(val, "split");
    const tt_data_want *w = c->want;
    tt_str text = {0};
    tt_err err;

    of_train.split = TT_TRAIN;
    of_val.split = TT_VAL;
    tt_str_add(&text, "%s %s %zu\n%d %d %lld %d %d %lld", TT_VERSION, MAGIC, sizeof(head),
               normalize, w->classes, (long long)w->labels, w->targets, w->only_x,
               (long long)w->ids);
    for (int i = 0; i < w->input.rank; i++) tt_str_add(&text, " %lld", (long long)w->input.dim[i]);
    /* Ids are checked against the rows there are, and divided by them. */
    for (int64_t i = 0, same = 0; w->id_rows && i < w->ids; i++) {
        bool changes = i + 1 == w->ids || w->id_rows[i + 1] != w->id_rows[i];
        same++;
        if (!changes) continue;
        tt_str_add(&text, " %lld of %lld", (long long)same, (long long)w->id_rows[i]);
        same = 0;
    }
    tt_str_add(&text, "\ntrain\n");
    err = tt_source_look(train, "train", &of_train, &text);
    if (!err && val) tt_str_add(&text, "\nval\n");
    if (!err && val && !cut) err = tt_source_look(val, "val", &of_val, &text);
    if (!err && cut) {
        tt_tree_print(val, false, &text);
        tt_str_add(&text, "%llu\n", (unsigned long long)seed);
    }
    if (!err) {
        tt_sha *sha = tt_sha_begin();
        tt_sha_add(sha, text.data, text.size);
        tt_sha_end(sha, key);
    }
    tt_str_free(&text);
    return err;
}
