#define _GNU_SOURCE
#include "vault_help.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

/* ---- halves ---- */

TT_TEST(vault, a_commit_is_found_again_and_not_before_it_is_one)
{
    const char *folder = new_folder();
    tt_vault *v;

    EXPECT_OK(tt_vault_open(folder, 3, KEY, HALF, 0, &v));
    expect_halves(v, -1, -1);
    fill(tt_vault_data(v, tt_vault_begin(v)), 0);
    expect_halves(v, -1, -1);
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 3, KEY, HALF, 0, &v));
    expect_halves(v, -1, -1);
    commit(v, 0); /* the state before the first step is one */
    expect_halves(v, 0, -1);
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 3, KEY, HALF, 0, &v));
    expect_halves(v, 0, -1);
    commit(v, 1);
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 3, KEY, HALF, 0, &v));
    expect_halves(v, 1, 0);
    tt_vault_close(v);
    tt_vault_close(NULL);
}

TT_TEST(vault, the_half_before_is_there_until_the_next_is_begun)
{
    const char *folder = new_folder();
    tt_vault *v;
    tt_vault_half back = what_of(4);
    int next;

    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    commit(v, 9);
    commit(v, 10);
    expect_halves(v, 10, 9);
    next = tt_vault_begin(v);
    EXPECT(next == !tt_vault_current(v));
    EXPECT_INT(next, tt_vault_begin(v)); /* again is the same */
    expect_halves(v, 10, -1);
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    expect_halves(v, 10, -1); /* although nothing was written yet */
    tt_vault_begin(v);
    back.label.generation = 99; /* a rollback: steps need not grow */
    tt_vault_commit(v, &back);
    EXPECT(is_described(tt_vault_look(v, !tt_vault_current(v)), 10));
    EXPECT(tt_vault_undo(v));
    expect_halves(v, 10, -1);
    commit(v, 4); /* an older state, of which 10 is not the one before: it was passed over */
    expect_halves(v, 4, -1);
    EXPECT(!tt_vault_undo(v));
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    expect_halves(v, 4, -1);
    tt_vault_close(v);
}

TT_TEST(vault, the_last_commit_can_be_taken_back_once)
{
    const char *folder = new_folder();
    tt_vault *v;

    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    EXPECT(!tt_vault_undo(v));
    commit(v, 1);
    EXPECT(!tt_vault_undo(v));
    commit(v, 2);
    EXPECT(tt_vault_undo(v));
    expect_halves(v, 1, -1);
    EXPECT(!tt_vault_undo(v));
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    expect_halves(v, 1, -1);
    EXPECT(!tt_vault_undo(v));
    commit(v, 2);
    commit(v, 3);
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    tt_vault_begin(v);
    EXPECT(!tt_vault_undo(v)); /* too late */
    expect_halves(v, 3, -1);
    commit(v, 4);
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    EXPECT(tt_vault_undo(v)); /* who comes after may do it as well */
    expect_halves(v, 3, -1);
    tt_vault_close(v);
}

TT_TEST(vault, halves_are_pages_of_the_file_and_do_not_meet)
{
    const size_t sizes[] = {1, 4096, VAULT_PAGE, VAULT_PAGE + 1, HALF};
    tt_vault *v;
    struct stat st;

    for (int i = 0; i < 5; i++) {
        const char *folder = new_folder();
        size_t n = sizes[i], a, b;
        EXPECT_OK(tt_vault_open(folder, 0, KEY, n, 0, &v));
        a = tt_vault_at(v, 0);
        b = tt_vault_at(v, 1);
        EXPECT(a % 4096 == 0 && b % 4096 == 0 && a >= sizeof(vault_head) && b >= a + n);
        EXPECT(!fstat(tt_vault_fd(v), &st));
        EXPECT_INT((long long)tt_vault_need(n), st.st_size);
        EXPECT(b + n <= (size_t)st.st_size && st.st_blocks * 512 >= st.st_size);
        EXPECT(fcntl(tt_vault_fd(v), F_GETFD) & FD_CLOEXEC);
        memset(tt_vault_data(v, 0), 1, n);
        memset(tt_vault_data(v, 1), 2, n);
        EXPECT(((char *)tt_vault_data(v, 0))[n - 1] == 1);
        expect_halves(v, -1, -1);
        tt_vault_close(v);
    }
}

TT_TEST(vault, what_cannot_be_is_refused)
{
    const char *folder = new_folder();
    tt_vault *v;
    struct rlimit was, low;

    EXPECT_ERR(TT_EINVAL, tt_vault_open(folder, -1, KEY, HALF, 0, &v));
    EXPECT_ERR(TT_EINVAL, tt_vault_open(folder, 0, KEY, 0, 0, &v));
    EXPECT_ERR(TT_EENV, tt_vault_open(folder, 0, KEY, SIZE_MAX, 0, &v));
    EXPECT_ERR(TT_EENV, tt_vault_open(folder, 0, KEY, (size_t)1 << 60, 0, &v));
    EXPECT_MESSAGE("needed");
    EXPECT(v == NULL);
    EXPECT_ERR(TT_EIO, tt_vault_open("absent", 0, KEY, HALF, 0, &v));
    EXPECT_MESSAGE("absent");
    EXPECT(!getrlimit(RLIMIT_FSIZE, &was));
    low = was;
    low.rlim_cur = 1 << 16;
    EXPECT(!setrlimit(RLIMIT_FSIZE, &low)); /* beyond it there is a signal that kills */
    tt_err err = tt_vault_open(folder, 0, KEY, HALF, 0, &v);
    EXPECT(!setrlimit(RLIMIT_FSIZE, &was));
    EXPECT_INT(TT_EENV, err);
    EXPECT(!rmdir(folder)); /* nothing is left in it */
}

/* ---- kills ---- */

/* Killed anywhere, in opening as well: what counts is always whole, and time does not go back. */
TT_TEST(vault, whoever_is_killed_leaves_the_last_commit)
{
    const char *folder = new_folder();
    int64_t last = -1;
    int torn = 0, pipes[2];

    EXPECT(!pipe(pipes));
    for (int i = 0; i < 200; i++) {
        part p = {.folder = folder, .tell = pipes[1]};
        pid_t pid = spawn(train, &p);
        float r[4];
        tt_vault *v;
        int64_t step;
        char rest[16];
        tt_uniform4(1, 2, (uint64_t)i, r);
        if (i % 2) EXPECT(told(pipes[0], 20000));
        nanosleep(&(struct timespec){.tv_nsec = (long)(r[0] * 2e6f)}, NULL);
        end(pid);
        EXPECT(!fcntl(pipes[0], F_SETFL, O_NONBLOCK));
        while (read(pipes[0], rest, sizeof rest) > 0) continue;
        EXPECT(!fcntl(pipes[0], F_SETFL, 0));

        EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 5, &v));
        step = tt_vault_current(v) < 0 ? -1 : tt_vault_look(v, tt_vault_current(v))->label.step;
        if (step < last + i % 2) FAIL("step %lld after %lld", (long long)step, (long long)last);
        if (step < 0 || tt_vault_look(v, !tt_vault_current(v))->label.step < 0) {
            torn++;
            expect_halves(v, step, -1);
        } else {
            expect_halves(v, step, step - 1);
        }
        last = step;
        tt_vault_close(v);
    }
    EXPECT(torn > 20);
    close(pipes[0]);
    close(pipes[1]);
}

/* Ends by its own hand after `round` calls. */
static void die_after(void *arg)
{
    const part *p = arg;
    tt_vault *v;
    tt_vault_half w = what_of(3);
    int half = -1;

    MUST(!tt_vault_open(p->folder, 0, KEY, HALF, 5, &v));
    if (p->round > 0) half = tt_vault_begin(v);
    if (p->round > 1) memset(tt_vault_data(v, half), 0xAB, HALF / 2);
    if (p->round > 2) fill(tt_vault_data(v, half), 3);
    if (p->round > 3) tt_vault_commit(v, &w);
    if (p->round > 4) MUST(tt_vault_undo(v));
    if (p->round > 5) MUST(tt_vault_begin(v) == half);
    raise(SIGKILL);
}

TT_TEST(vault, between_any_two_calls_there_is_a_state)
{
    const int64_t now[] = {2, 2, 2, 2, 3, 2, 2}, before[] = {1, -1, -1, -1, 2, -1, -1};
    tt_vault *v;

    for (int i = 0; i < 7; i++) {
        part p = {.folder = new_folder(), .round = i};
        EXPECT_OK(tt_vault_open(p.folder, 0, KEY, HALF, 5, &v));
        commit(v, 1);
        commit(v, 2);
        tt_vault_close(v);
        wait_for(spawn(die_after, &p));
        EXPECT_OK(tt_vault_open(p.folder, 0, KEY, HALF, 5, &v));
        expect_halves(v, now[i], before[i]);
        tt_vault_close(v);
    }
}

static void make_large(void *arg)
{
    const part *p = arg;
    tt_vault *v;

    MUST(!tt_vault_open(p->folder, 0, KEY, p->bytes, 5, &v));
    tt_vault_close(v);
}

TT_TEST(vault, who_is_killed_while_a_slot_is_made_leaves_nothing)
{
    part p = {.folder = new_folder(), .bytes = 8 << 20};
    char **names, path[5000];
    tt_vault *v;
    int count;

    snprintf(path, sizeof path, "%s/slot-0", p.folder);
    for (int i = 0; i < 20; i++) {
        pid_t pid = spawn(make_large, &p);
        nanosleep(&(struct timespec){.tv_nsec = i * 300000L}, NULL);
        end(pid);
        EXPECT_OK(tt_vault_open(p.folder, 0, KEY, p.bytes, 5, &v));
        expect_halves(v, -1, -1);
        tt_vault_close(v);
        EXPECT_OK(tt_dir_list(p.folder, &names, &count));
        EXPECT_INT(1, count);
        EXPECT_STR("slot-0", names[0]);
        tt_dir_free(names, count);
        EXPECT(!unlink(path));
    }
}

static void on_alarm(int sig)
{
    (void)sig;
}

/* On tmpfs a signal makes fallocate start anew, and these come faster than it gets on. */
TT_TEST(vault, signals_do_not_keep_a_slot_from_being_made)
{
    const char *folder = new_folder();
    struct sigaction act = {.sa_handler = on_alarm}, was;
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    tt_vault *v;
    tt_err err;

    EXPECT(!sigaction(SIGALRM, &act, &was));
    EXPECT(!setitimer(ITIMER_REAL, &often, NULL));
    err = tt_vault_open(folder, 0, KEY, 64 << 20, 0, &v);
    EXPECT(!setitimer(ITIMER_REAL, &never, NULL));
    EXPECT(!sigaction(SIGALRM, &was, NULL));
    EXPECT_OK(err);
    tt_vault_close(v);
}

/* ---- one slot, one owner ---- */

TT_TEST(vault, the_second_waits_and_is_told_for_whom)
{
    part a = {.folder = new_folder(), .wait_s = 1}, b = {.folder = a.folder, .wait_s = 30};
    int first[2], second[2];
    char who[64];
    tt_vault *v;
    pid_t p, q;

    EXPECT(!pipe(first) && !pipe(second));
    a.tell = first[1];
    b.tell = second[1];
    p = spawn(hold, &a);
    EXPECT(told(first[0], 20000));
    EXPECT_ERR(TT_EPEER, tt_vault_open(a.folder, 0, KEY, HALF, 0.02, &v));
    snprintf(who, sizeof who, "slot 0 of %s: process %d ", a.folder, (int)p);
    EXPECT_MESSAGE(who);
    EXPECT_ERR(TT_EPEER, tt_vault_open(a.folder, 0, KEY + 1, 2 * HALF, 0.02, &v));
    EXPECT_MESSAGE(who);
    q = spawn(hold, &b);
    EXPECT(!told(second[0], 50));
    kill(p, SIGSTOP); /* who is stopped is still there */
    EXPECT(!told(second[0], 50));
    kill(p, SIGCONT);
    EXPECT(!told(second[0], 20));
    end(p);
    EXPECT(told(second[0], 20000));
    snprintf(who, sizeof who, "process %d ", (int)q);
    EXPECT_ERR(TT_EPEER, tt_vault_open(a.folder, 0, KEY, HALF, 0.02, &v));
    EXPECT_MESSAGE(who);
    EXPECT_OK(tt_vault_open(a.folder, 1, KEY, HALF, 0, &v)); /* the next slot is free */
    tt_vault_close(v);
    end(q);
    EXPECT_OK(tt_vault_open(a.folder, 0, KEY, HALF, 5, &v));
    tt_vault_close(v);
    for (int i = 0; i < 2; i++) close(first[i]), close(second[i]);
}

/* Has the slot, a child of its own, and a program it started; all three stay. */
static void hold_with_children(void *arg)
{
    const part *p = arg;
    char *sleep[] = {"sleep", "20", NULL}, *none[] = {NULL};
    pid_t ids[2];
    tt_vault *v;

    MUST(!tt_vault_open(p->folder, 0, KEY, HALF, 5, &v));
    MUST(!posix_spawnp(&ids[0], "sleep", NULL, NULL, sleep, none));
    if (!(ids[1] = fork())) {
        MUST(!tt_vault_data(v, 0) && tt_vault_fd(v) >= 0);
        tt_vault_close(v); /* not the parent's */
        MUST(tt_vault_open(p->folder, 0, KEY, HALF, 0, &v) == TT_EPEER);
        ids[1] = getpid();
        alarm(20);
        MUST(write(p->tell, ids, sizeof ids) == sizeof ids);
        for (;;) pause();
    }
    for (;;) pause();
}

TT_TEST(vault, children_of_the_owner_do_not_hold_its_slot)
{
    part p = {.folder = new_folder()};
    int pipes[2];
    pid_t pid, ids[2];
    tt_vault *v;
    tt_err err;

    EXPECT(!pipe(pipes));
    p.tell = pipes[1];
    pid = spawn(hold_with_children, &p);
    EXPECT(told_all(pipes[0], ids, sizeof ids, 20000));
    EXPECT_ERR(TT_EPEER, tt_vault_open(p.folder, 0, KEY, HALF, 0, &v));
    end(pid);
    err = tt_vault_open(p.folder, 0, KEY, HALF, 2, &v);
    EXPECT(!kill(ids[0], 0) && !kill(ids[1], 0)); /* they are there all right */
    for (int i = 0; i < 2; i++) kill(ids[i], SIGKILL);
    EXPECT_OK(err);
    tt_vault_close(v);
    close(pipes[0]);
    close(pipes[1]);
}

TT_TEST(vault, a_shared_mapping_neither_holds_the_slot_nor_breaks)
{
    const char *folder = new_folder();
    tt_vault *v;
    int fd, c;
    char *map;

    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    commit(v, 5);
    c = tt_vault_current(v);
    fd = dup(tt_vault_fd(v));
    map = mmap(NULL, HALF, PROT_READ, MAP_SHARED, fd, (off_t)tt_vault_at(v, c));
    EXPECT(map != MAP_FAILED && is_whole(map, 5));
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v)); /* fd and map are still there */
    expect_halves(v, 5, -1);
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 0, KEY, 100, 0, &v)); /* smaller: nothing is cut off */
    EXPECT(is_whole(map, 5));
    tt_vault_close(v);
    EXPECT_OK(tt_vault_remove(folder));
    EXPECT(is_whole(map, 5));
    munmap(map, HALF);
    close(fd);
}

TT_TEST(vault, another_key_or_size_begins_empty)
{
    const char *folder = new_folder();
    const struct {
        uint64_t key;
        size_t bytes;
    } next[] = {{KEY + 1, HALF}, {KEY, HALF}, {KEY, HALF + 1}, {KEY, 3 * HALF}, {KEY, HALF}};
    tt_vault *v;

    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    for (int i = 0; i < 5; i++) {
        commit(v, i);
        commit(v, i + 1);
        tt_vault_close(v);
        EXPECT_OK(tt_vault_open(folder, 0, next[i].key, next[i].bytes, 0, &v));
        expect_halves(v, -1, -1);
        EXPECT(((char *)tt_vault_data(v, 1))[0] == 0);
    }
    tt_vault_close(v);
}

enum { ROUNDS = 25, CROWD = 4 };

static void count_up(void *arg)
{
    const part *p = arg;
    tt_vault *v;

    for (int i = 0; i < ROUNDS; i++) {
        int c;
        MUST(!tt_vault_open(p->folder, 0, p->key, p->bytes, 60, &v));
        c = tt_vault_current(v);
        MUST(c < 0 || is_whole(tt_vault_data(v, c), tt_vault_look(v, c)->label.step));
        commit(v, c < 0 ? 1 : tt_vault_look(v, c)->label.step + 1);
        tt_vault_close(v);
    }
}

static void *count_up_too(void *arg)
{
    count_up(arg);
    return NULL;
}

TT_TEST(vault, of_many_at_once_each_has_its_turn)
{
    part p = {.folder = new_folder(), .key = KEY, .bytes = HALF};
    pid_t pids[CROWD];
    pthread_t threads[CROWD];
    tt_vault *v;

    for (int i = 0; i < CROWD; i++) pids[i] = spawn(count_up, &p);
    for (int i = 0; i < CROWD; i++) EXPECT_INT(0, wait_for(pids[i]));
    for (int i = 0; i < CROWD; i++) EXPECT(!pthread_create(&threads[i], NULL, count_up_too, &p));
    for (int i = 0; i < CROWD; i++) EXPECT(!pthread_join(threads[i], NULL));
    EXPECT_OK(tt_vault_open(p.folder, 0, KEY, HALF, 0, &v));
    expect_halves(v, 2 * CROWD * ROUNDS, 2 * CROWD * ROUNDS - 1);
    tt_vault_close(v);
}

/* Each wants the slot to be something else, so it is made anew all the time, and locks are of many
 * files. A file that only one may have tells if there are ever two inside. */
static void quarrel(void *arg)
{
    const part *p = arg;
    tt_vault *v;

    for (int i = 0; i < ROUNDS; i++) {
        int fd;
        MUST(!tt_vault_open(p->folder, 0, p->key, p->bytes, 60, &v));
        fd = open("inside", O_CREAT | O_EXCL | O_RDWR, 0600);
        MUST(fd >= 0);
        close(fd);
        MUST(tt_vault_current(v) < 0 || tt_vault_look(v, tt_vault_current(v))->hash == p->key);
        tt_vault_begin(v);
        memset(tt_vault_data(v, 0), 1, p->bytes);
        tt_vault_commit(v, &(tt_vault_half){.label.step = i, .hash = p->key});
        if (i % 3 == 0) sched_yield();
        MUST(!unlink("inside"));
        tt_vault_close(v);
    }
}

TT_TEST(vault, who_makes_it_anew_is_alone_too)
{
    const char *folder = new_folder();
    part p[CROWD];
    pid_t pids[CROWD];
    char **names;
    int count;

    for (int i = 0; i < CROWD; i++) {
        p[i] = (part){.folder = folder, .key = 1 + (uint64_t)i % 3, .bytes = 1000 + i % 2 * HALF};
        pids[i] = spawn(quarrel, &p[i]);
    }
    for (int i = 0; i < CROWD; i++) EXPECT_INT(0, wait_for(pids[i]));
    EXPECT_OK(tt_dir_list(folder, &names, &count));
    EXPECT_INT(1, count); /* no slot-0.new */
    tt_dir_free(names, count);
}

/* ---- no room ---- */

static void fill_a_small_one(void *arg)
{
    tt_vault *v, *w;
    char **names;
    int count;
    bool on_disk;
    char path[4096];

    (void)arg;
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) _exit(2);
    MUST(!mkdir("small", 0700));
    if (mount("tmpfs", "small", "tmpfs", 0, "size=1m,mode=0700")) _exit(2);
    MUST(tt_vault_open("small", 0, KEY, 1 << 20, 0, &v) == TT_EENV);
    MUST(strstr(tt_message(), "2.2 MB are needed, 1.0 MB free"));
    MUST(!tt_dir_list("small", &names, &count) && count == 0);
    MUST(!tt_vault_open("small", 0, KEY, 300000, 0, &v));
    memset(tt_vault_data(v, 0), 1, 300000);
    memset(tt_vault_data(v, 1), 1, 300000);
    MUST(tt_vault_open("small", 1, KEY, 300000, 0, &w) == TT_EENV);
    MUST(!tt_dir_list("small", &names, &count) && count == 1);
    tt_vault_close(v);
    /* There is no room for the old and the new. */
    MUST(!tt_vault_open("small", 0, KEY + 1, 400000, 0, &v));
    MUST(tt_vault_current(v) == -1);
    memset(tt_vault_data(v, 1), 1, 400000);
    tt_vault_close(v);
    /* With a small /dev/shm a run goes to disk, or is told. */
    if (mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m,mode=1777")) _exit(2);
    MUST(!tt_vault_folder("r", 1 << 19, "below/disk", path, &on_disk) && !on_disk);
    MUST(!tt_vault_folder("r", 2 << 20, "below/disk", path, &on_disk) && on_disk);
    MUST(!strncmp(path, "below/disk/tutti-", 17));
    MUST(tt_vault_folder("r", 2 << 20, NULL, path, &on_disk) == TT_EENV);
    MUST(strstr(tt_message(), "2.1 MB are needed, 1.0 MB"));
}

TT_TEST(vault, a_full_file_system_is_an_error_and_not_a_signal)
{
    int status = wait_for(spawn(fill_a_small_one, NULL));

    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) tt_test_skip("mounts are not allowed here");
    EXPECT_INT(0, status);
}
