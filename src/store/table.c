/* Records in place, see table.h. The file, or the memory, is
 *
 *   head | bits: which rows are there | records | log of each part
 *
 * each from a page on. Records have holes where nothing was ever written, which are not read
 * either: in /dev/shm that would take a page. All else is reserved when it is opened. */
#define _GNU_SOURCE
#include "table.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, PIECE = 1 << 20, SMALL = 1 << 14, PARTS_MOST = 1024, RESERVE = 16 << 20 };
static const uint64_t MAGIC = 0x32656c6261747474; /* "tttable2" */

typedef struct head {
    _Atomic uint64_t magic;
    uint64_t key;
    int64_t rows, most;
    int32_t floats, parts;
    _Atomic int64_t word; /* 2 (step + 1), and 1: there is a log of what came then; 0: of none */
    _Atomic int64_t logged[]; /* of each part: entries that are whole */
} head;

/* What a row was. `row` is -1 - row if it was not there. */
typedef struct entry {
    int64_t row;
    float record[];
} entry;

struct tt_table {
    tt_table_shape shape;
    int fd; /* -1: in memory */
    char *map;
    size_t size, bits_at, records_at, log_at, entry, log;
    size_t piece;   /* what is reserved at once           */
    size_t granted; /* what memory is free for, by the lock */
    head *head;
    _Atomic uint64_t *bits;
    pthread_mutex_t lock;   /* of reserving */
    _Atomic uint8_t *there; /* of each piece of the map: it is reserved */
};

/* ---- where things are ---- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static size_t record_bytes(const tt_table *t)
{
    return (size_t)t->shape.floats * sizeof(float);
}

static float *record_of(const tt_table *t, int64_t row)
{
    return (float *)(t->map + t->records_at + (size_t)row * record_bytes(t));
}

static entry *entry_of(const tt_table *t, int part, int64_t i)
{
    return (entry *)(t->map + t->log_at + (size_t)part * t->log + (size_t)i * t->entry);
}

static tt_err lay_out(tt_table *t)
{
    const tt_table_shape *s = &t->shape;
    size_t bits, records, logs;

    if (s->rows < 1 || s->rows > INT64_MAX / 64 || s->floats < 1 || s->parts < 1 ||
        s->parts > PARTS_MOST || s->most < 1)
        return tt_fail(TT_EINVAL, "a table of %lld rows of %d numbers", (long long)s->rows,
                       s->floats);
    bits = round_up((size_t)(s->rows + 63) / 64 * 8, PAGE);
    records = tt_mul_size((size_t)s->rows, record_bytes(t));
    t->entry = round_up(sizeof(entry) + record_bytes(t), 8);
    t->log = round_up(tt_mul_size((size_t)s->most, t->entry), PAGE);
    logs = tt_mul_size(t->log, (size_t)s->parts);
    t->bits_at = round_up(sizeof(head) + (size_t)s->parts * 8, PAGE);
    t->records_at = t->bits_at + bits;
    if (records > SIZE_MAX / 8 || logs > SIZE_MAX / 8)
        return tt_fail(TT_ENOMEM, "a table of %lld rows of %d numbers is too large",
                       (long long)s->rows, s->floats);
    t->log_at = t->records_at + round_up(records, PAGE);
    t->size = t->log_at + logs;
    return TT_OK;
}

/* ---- memory ---- */

/* In short calls, which get shorter: a signal makes fallocate undo its whole call on tmpfs. */
static tt_err reserve_bytes(tt_table *t, size_t at, size_t n)
{
    int why = 0;

    if (t->fd < 0) return TT_OK;
    for (size_t most = RESERVE, end = at + n; at < end && (!why || why == EINTR);) {
        size_t some = end - at < most ? end - at : most;
        why = posix_fallocate(t->fd, (off_t)at, (off_t)some);
        if (!why) at += some;
        if (why == EINTR && most > PAGE) most /= 2;
    }
    if (!why) return TT_OK;
    return tt_fail(
        TT_ENOMEM,
        "no room for more rows in the vault: %s: make room there (a larger /dev/shm), or "
        "use fewer workers on this host",
        strerror(why));
}

/* The kernel promises memory that it has not, and ends who takes it at its word: so it is asked
 * what is free, but not for every row. */
static tt_err ask_memory(tt_table *t, size_t n)
{
    bool full = TT_FAILPOINT("table.reserve");

    if (n > t->granted || full) {
        t->granted = tt_mem_free() / 32;
        if (n > t->granted || full)
            return tt_fail(TT_ENOMEM,
                           "no memory for more rows, of which %lld are there: use fewer workers on "
                           "this host, or smaller tables",
                           (long long)tt_table_count(t));
    }
    t->granted -= n;
    return TT_OK;
}

static tt_err reserve_piece(tt_table *t, size_t piece)
{
    tt_err err = TT_OK;

    if (atomic_load_explicit(&t->there[piece], memory_order_acquire)) return TT_OK;
    pthread_mutex_lock(&t->lock);
    if (!atomic_load(&t->there[piece])) {
        size_t at = piece * t->piece, n = t->size - at < t->piece ? t->size - at : t->piece;
        if (!(err = ask_memory(t, n)) && !(err = reserve_bytes(t, at, n)))
            atomic_store(&t->there[piece], 1);
    }
    pthread_mutex_unlock(&t->lock);
    return err;
}

static tt_err reserve_range(tt_table *t, size_t at, size_t n)
{
    tt_err err = TT_OK;

    for (size_t p = at / t->piece; p <= (at + n - 1) / t->piece && !err; p++)
        err = reserve_piece(t, p);
    return err;
}

tt_err tt_table_reserve(tt_table *t, int part, const int32_t *row, int64_t n)
{
    tt_err err = TT_OK;

    if (atomic_load(&t->head->logged[part]) + n > t->shape.most)
        return tt_fail(TT_ENOMEM, "more than %lld rows in a part of a table's log",
                       (long long)t->shape.most);
    for (int64_t i = 0; i < n && !err; i++) {
        TT_ASSERT(row[i] >= 0 && row[i] < t->shape.rows);
        err = reserve_range(t, t->records_at + (size_t)row[i] * record_bytes(t), record_bytes(t));
    }
    return err;
}

/* ---- opening ---- */

static bool is_ours(const tt_table *t, int fd, uint64_t key)
{
    const tt_table_shape *s = &t->shape;
    struct stat st;
    head h = {0};

    return !fstat(fd, &st) && S_ISREG(st.st_mode) && (size_t)st.st_size == t->size &&
           pread(fd, &h, sizeof h, 0) == sizeof h && h.magic == MAGIC && h.key == key &&
           h.rows == s->rows && h.floats == s->floats && h.parts == s->parts && h.most == s->most;
}

/* The file, if it is ours; else an empty one in its place: the other may be looked at by somebody,
 * who would not survive that it is cut. *old: it keeps its content. */
static tt_err open_file(tt_table *t, const char *path, uint64_t key, bool *old)
{
    struct rlimit most;

    t->fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    *old = t->fd >= 0 && is_ours(t, t->fd, key);
    if (*old) return TT_OK;
    if (t->fd >= 0) close(t->fd);
    if (unlink(path) && errno != ENOENT)
        return tt_fail(TT_EIO, "remove %s: %s", path, strerror(errno));
    /* Of a file over the limit the kernel tells by a signal that kills. */
    if (!getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur < t->size)
        return tt_fail(TT_EENV, "%s: a file may not be as large as the table (ulimit -f)", path);
    t->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (t->fd < 0 || ftruncate(t->fd, (off_t)t->size))
        return tt_fail(TT_EIO, "make %s: %s", path, strerror(errno));
    return TT_OK;
}

static void take_map(tt_table *t, void *p)
{
    t->map = p;
    t->head = p;
    t->bits = (_Atomic uint64_t *)(t->map + t->bits_at);
}

static tt_err map_it(tt_table *t)
{
    int flags = t->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    void *p = mmap(NULL, t->size, PROT_READ | PROT_WRITE, flags, t->fd, 0);

    if (p == MAP_FAILED)
        return tt_fail(TT_ENOMEM, "map a table of %lld rows: %s", (long long)t->shape.rows,
                       strerror(errno));
    madvise(p, t->size, t->piece == PIECE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (t->fd >= 0) madvise(p, t->size, MADV_DONTFORK); /* as the slot it is of */
    take_map(t, p);
    return TT_OK;
}

tt_err tt_table_open(const char *path, const tt_table_shape *shape, uint64_t key, tt_table **out)
{
    tt_table *t = calloc(1, sizeof *t);
    bool old = false;
    tt_err err;

    *out = NULL;
    if (!t) return tt_fail(TT_ENOMEM, "no memory for a table");
    t->shape = *shape;
    t->fd = -1;
    pthread_mutex_init(&t->lock, NULL);
    if ((err = lay_out(t)) || (path && (err = open_file(t, path, key, &old)))) goto fail;
    /* Gathering rows misses the TLB, too. But of a table that memory could not hold, a row must not
     * take 2 MB. */
    bool fits = t->size < tt_mem_free() / 4 / (size_t)(shape->sharers ? shape->sharers : 1);
    t->piece = fits ? PIECE : SMALL;
    if (!(t->there = calloc(t->size / t->piece + 1, sizeof *t->there))) {
        err = tt_fail(TT_ENOMEM, "no memory for a table");
        goto fail;
    }
    if (path && ((err = reserve_bytes(t, 0, t->records_at)) ||
                 (err = reserve_bytes(t, t->log_at, t->size - t->log_at)))) {
        err = tt_context(TT_EENV, "a table of %lld rows", (long long)shape->rows);
        goto fail;
    }
    if ((err = map_it(t))) goto fail;
    if (!old) {
        head *h = t->head;
        h->key = key;
        h->rows = shape->rows, h->most = shape->most;
        h->floats = shape->floats, h->parts = shape->parts;
        atomic_store(&h->magic, MAGIC);
    }
    *out = t;
    return TT_OK;
fail:
    tt_table_close(t);
    return err;
}

uint64_t tt_table_need(const tt_table_shape *shape)
{
    tt_table t = {.shape = *shape};

    return lay_out(&t) ? 0 : t.records_at + t.size - t.log_at;
}

/* A private mapping: what it takes back it takes back for itself. */
tt_err tt_table_peek(const char *path, const tt_table_shape *shape, uint64_t key, int64_t step,
                     tt_table **out)
{
    tt_table *t = calloc(1, sizeof *t);
    void *p = MAP_FAILED;
    tt_err err;
    int fd;

    *out = NULL;
    if (!t) return tt_fail(TT_ENOMEM, "no memory for a table");
    t->shape = *shape;
    t->fd = -1;
    pthread_mutex_init(&t->lock, NULL);
    if ((err = lay_out(t))) goto fail;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && is_ours(t, fd, key))
        p = mmap(NULL, t->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (fd >= 0) close(fd);
    if (p == MAP_FAILED) {
        err = tt_fail(TT_EPEER, "%s is not there, or of something else", path);
        goto fail;
    }
    take_map(t, p);
    if (tt_table_at(t) == step) tt_table_back(t);
    if (tt_table_at(t) != step && (step < 1 || tt_table_step(t) != step - 1)) {
        err = tt_fail(TT_EPEER, "%s is not of step %lld", path, (long long)step);
        goto fail;
    }
    *out = t;
    return TT_OK;
fail:
    tt_table_close(t);
    return err;
}

void tt_table_close(tt_table *t)
{
    if (!t) return;
    if (t->map) munmap(t->map, t->size);
    if (t->fd >= 0) close(t->fd);
    pthread_mutex_destroy(&t->lock);
    free(t->there);
    free(t);
}

/* ---- rows ---- */

static bool is_there(const tt_table *t, int64_t row)
{
    return atomic_load_explicit(&t->bits[row / 64], memory_order_relaxed) >> (row % 64) & 1;
}

const float *tt_table_look(const tt_table *t, int64_t row)
{
    TT_ASSERT(row >= 0 && row < t->shape.rows);
    return is_there(t, row) ? record_of(t, row) : NULL;
}

int64_t tt_table_next(const tt_table *t, int64_t row)
{
    int64_t words = (t->shape.rows + 63) / 64;

    for (int64_t w = row / 64; row < t->shape.rows && w < words; row = ++w * 64) {
        uint64_t bits = atomic_load(&t->bits[w]) >> (row % 64);
        if (!bits) continue;
        row += __builtin_ctzll(bits);
        return row < t->shape.rows ? row : -1; /* of a file that is spoiled */
    }
    return -1;
}

int64_t tt_table_count(const tt_table *t)
{
    int64_t n = 0;

    for (int64_t w = 0; w < (t->shape.rows + 63) / 64; w++)
        n += __builtin_popcountll(atomic_load(&t->bits[w]));
    return n;
}

const float *tt_table_records(const tt_table *t, const _Atomic uint64_t **bits)
{
    *bits = t->bits;
    return (const float *)(t->map + t->records_at);
}

tt_err tt_table_put(tt_table *t, int64_t row, const float *record)
{
    tt_err err;

    TT_ASSERT(row >= 0 && row < t->shape.rows);
    if ((err = reserve_range(t, t->records_at + (size_t)row * record_bytes(t), record_bytes(t))))
        return err;
    memcpy(record_of(t, row), record, record_bytes(t));
    atomic_fetch_or(&t->bits[row / 64], 1ull << (row % 64));
    return TT_OK;
}

void tt_table_clear(tt_table *t)
{
    atomic_store(&t->head->word, 0);
    for (int64_t r = tt_table_next(t, 0); r >= 0; r = tt_table_next(t, r + 1)) {
        memset(record_of(t, r), 0, record_bytes(t));
        atomic_fetch_and(&t->bits[r / 64], ~(1ull << (r % 64)));
    }
}

/* ---- changes ---- */

void tt_table_begin(tt_table *t, int64_t step)
{
    tt_table_settle(t, step); /* keeps (4): the log of the step before is given up */
    TT_FAILPOINT("table.begin");
    for (int p = 0; p < t->shape.parts; p++) atomic_store(&t->head->logged[p], 0);
    atomic_store(&t->head->word, 2 * (step + 1) + 1);
}

void tt_table_settle(tt_table *t, int64_t step)
{
    atomic_store(&t->head->word, 2 * (step + 1));
}

int64_t tt_table_at(const tt_table *t)
{
    return atomic_load(&t->head->word) / 2 - 1;
}

float *tt_table_change(tt_table *t, int part, int64_t row, bool *fresh)
{
    int64_t n = atomic_load_explicit(&t->head->logged[part], memory_order_relaxed);
    entry *e = entry_of(t, part, n);
    float *record = record_of(t, row);
    uint64_t bit = 1ull << (row % 64);

    TT_ASSERT(n < t->shape.most);
    *fresh = !is_there(t, row);
    e->row = *fresh ? -1 - row : row;
    memcpy(e->record, record, record_bytes(t)); /* zeros, if it is fresh */
    /* keeps (1): the record changes only when its entry counts */
    atomic_store_explicit(&t->head->logged[part], n + 1, memory_order_release);
    /* For the compiler: a process that is killed has made all stores up to some point. */
    atomic_signal_fence(memory_order_seq_cst);
    TT_FAILPOINT("table.logged");
    if (*fresh) atomic_fetch_or_explicit(&t->bits[row / 64], bit, memory_order_relaxed);
    return record;
}

int64_t tt_table_step(const tt_table *t)
{
    return atomic_load(&t->head->word) % 2 ? tt_table_at(t) : -1;
}

void tt_table_back(tt_table *t)
{
    if (tt_table_step(t) < 0) return;
    for (int p = 0; p < t->shape.parts; p++)
        for (int64_t i = 0; i < atomic_load(&t->head->logged[p]) && i < t->shape.most; i++) {
            const entry *e = entry_of(t, p, i);
            int64_t row = e->row < 0 ? -1 - e->row : e->row;
            if (row >= t->shape.rows) continue; /* it is spoiled: its hash will tell */
            memcpy(record_of(t, row), e->record, record_bytes(t));
            if (e->row < 0) atomic_fetch_and(&t->bits[row / 64], ~(1ull << (row % 64)));
        }
    TT_FAILPOINT("table.back");
    tt_table_settle(t, tt_table_at(t));
}

/* ---- hashes ---- */

/* Each number times an odd one that follows from its place: what changes one of them changes the
 * sum. No number waits for the one before, which counts where a step has many rows. */
uint64_t tt_table_row_hash(int64_t row, const float *record, int floats)
{
    uint64_t sum = 0;

    for (int i = 0; i < floats; i++) {
        uint32_t bits, times = (uint32_t)i * 0x9e3779b1u;
        memcpy(&bits, &record[i], sizeof bits);
        times ^= times >> 15;
        sum += (uint64_t)bits * (times * 0x85ebca6bu | 1);
    }
    return tt_mix(sum ^ tt_mix((uint64_t)row + 1));
}

uint64_t tt_table_hash(const tt_table *t)
{
    uint64_t sum = 0;

    for (int64_t r = tt_table_next(t, 0); r >= 0; r = tt_table_next(t, r + 1))
        sum += tt_table_row_hash(r, record_of(t, r), t->shape.floats);
    return sum;
}
