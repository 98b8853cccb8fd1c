/* Helpers of the vault's tests: folders that do not stay, states that show if they are torn, and
 * processes that have a slot. */
#ifndef VAULT_HELP_H
#define VAULT_HELP_H

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/vault_inner.h"
#include "test.h"

enum { HALF = 8 * 12345, KEY = 77, MADE = 32 };

/* Everything in /dev/shm is removed at the end, also by a test that fails. */
static char made[MADE][4096];
static int made_count;

static void clean_up(void)
{
    for (int i = 0; i < made_count; i++)
        if (unlink(made[i])) tt_dir_remove(made[i]);
}

static inline void will_clean(const char *path)
{
    if (!made_count) EXPECT(!atexit(clean_up));
    EXPECT(made_count < MADE);
    snprintf(made[made_count++], sizeof *made, "%s", path);
}

/* A folder in memory. Valid until the end of the program. */
static inline const char *new_folder(void)
{
    static char base[] = "/dev/shm/tutti-test-XXXXXX", names[MADE][64];
    static int count;

    if (access("/dev/shm", W_OK)) tt_test_skip("no /dev/shm");
    if (!count) {
        EXPECT(mkdtemp(base));
        will_clean(base);
    }
    EXPECT(count < MADE);
    snprintf(names[count], sizeof *names, "%s/%d", base, count);
    EXPECT(!mkdir(names[count], 0700));
    return names[count++];
}

/* A run nobody else has. */
static inline void new_run(char out[100])
{
    static int n;
    snprintf(out, 100, "test %d %d %.6f", (int)getpid(), n++, tt_wall_s());
}

static inline uint64_t word_at(int64_t step, size_t i)
{
    return (uint64_t)(step + 1) * 0x9E3779B97F4A7C15u ^ i * 0xD1342543DE82EF95u;
}

/* As the optimiser does it, past the cache. */
static inline void fill(void *half, int64_t step)
{
    for (size_t i = 0; i < HALF / 8; i++) {
#ifdef __x86_64__
        __builtin_ia32_movnti64((long long *)half + i, (long long)word_at(step, i));
#else
        ((uint64_t *)half)[i] = word_at(step, i);
#endif
    }
}

static inline bool is_whole(const void *half, int64_t step)
{
    for (size_t i = 0; i < HALF / 8; i++)
        if (((const uint64_t *)half)[i] != word_at(step, i)) return false;
    return true;
}

static inline tt_vault_half what_of(int64_t step)
{
    tt_vault_half w = {.label = {(uint32_t)step + 7, (uint32_t)step / 2, step},
                       .hash = word_at(step, 1)};

    w.note_size = (uint32_t)snprintf(w.note, sizeof w.note, "step %lld", (long long)step);
    return w;
}

static inline bool has_note(const tt_vault_half *h, const char *note)
{
    return h->note_size == strlen(note) && !memcmp(h->note, note, h->note_size);
}

/* But for the note. */
static inline bool is_of(const tt_vault_half *h, int64_t step)
{
    tt_vault_half w = what_of(step);

    return tt_label_compare(h->label, w.label) == 0 && h->hash == w.hash;
}

static inline bool is_described(const tt_vault_half *h, int64_t step)
{
    char note[64];

    snprintf(note, sizeof note, "step %lld", (long long)step);
    return is_of(h, step) && has_note(h, note);
}

static inline void commit(tt_vault *v, int64_t step)
{
    tt_vault_half w = what_of(step);

    fill(tt_vault_data(v, tt_vault_begin(v)), step);
    tt_vault_commit(v, &w);
}

/* -1: nothing there. before -2: whatever it is. */
static inline void expect_halves(const tt_vault *v, int64_t now, int64_t before)
{
    int c = tt_vault_current(v);

    if (now < 0) {
        EXPECT_INT(-1, c);
        EXPECT_INT(-1, tt_vault_look(v, 0)->label.step);
        EXPECT_INT(-1, tt_vault_look(v, 1)->label.step);
        return;
    }
    EXPECT(c == 0 || c == 1);
    EXPECT(is_described(tt_vault_look(v, c), now));
    EXPECT(is_whole(tt_vault_data(v, c), now));
    if (before < -1) return;
    EXPECT_INT(before, tt_vault_look(v, !c)->label.step);
    if (before < 0) return;
    EXPECT(is_described(tt_vault_look(v, !c), before));
    EXPECT(is_whole(tt_vault_data(v, !c), before));
}

/* In a child, which must not run into the tests that follow. */
#define MUST(cond)                                                                                 \
    do {                                                                                           \
        if (cond) break;                                                                           \
        fprintf(stderr, "%s:%d: in a child: not %s: %s\n", __FILE__, __LINE__, #cond,              \
                tt_message());                                                                     \
        _exit(1);                                                                                  \
    } while (0)

static inline pid_t spawn(void (*fn)(void *), void *arg)
{
    pid_t pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody */
        fn(arg);
        _exit(0);
    }
    EXPECT(pid > 0);
    return pid;
}

static inline int wait_for(pid_t pid)
{
    int status = 0;

    EXPECT(waitpid(pid, &status, 0) == pid);
    return status;
}

static inline void end(pid_t pid)
{
    kill(pid, SIGKILL);
    wait_for(pid);
}

/* So many bytes come through the pipe within that time. */
static inline bool told_all(int fd, void *what, size_t size, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, ms) == 1 && read(fd, what, size) == (ssize_t)size;
}

static inline bool told(int fd, int ms)
{
    char c;
    return told_all(fd, &c, 1, ms);
}

typedef struct part {
    const char *folder;
    int tell;
    uint64_t key;
    size_t bytes;
    double wait_s;
    int round;
} part;

/* Opens, says so, and stays. */
static inline void hold(void *arg)
{
    const part *p = arg;
    tt_vault *v;

    MUST(!tt_vault_open(p->folder, 0, KEY, HALF, p->wait_s, &v));
    MUST(write(p->tell, "", 1) == 1);
    for (;;) pause();
}

/* Commits one step after the other for ever, and tells of the first. */
static inline void train(void *arg)
{
    const part *p = arg;
    tt_vault *v;
    int64_t step;

    MUST(!tt_vault_open(p->folder, 0, KEY, HALF, 5, &v));
    step = tt_vault_current(v) < 0 ? 0 : tt_vault_look(v, tt_vault_current(v))->label.step + 1;
    for (bool first = true;; first = false, step++) {
        tt_vault_half w = what_of(step);
        fill(tt_vault_data(v, tt_vault_begin(v)), step);
        tt_vault_commit(v, &w);
        if (first) MUST(write(p->tell, "", 1) == 1);
    }
}

#endif
