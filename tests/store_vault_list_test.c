#define _GNU_SOURCE
#include "vault_help.h"

#include <fcntl.h>

/* ---- looking ---- */

TT_TEST(vault, all_slots_are_listed_in_order)
{
    const char *folder = new_folder();
    tt_vault *v, *w;
    tt_vault_info *list;
    int count;

    EXPECT_OK(tt_vault_list(folder, &list, &count));
    EXPECT_INT(0, count);
    free(list);
    EXPECT_OK(tt_vault_open(folder, 10, KEY + 1, 100, 0, &v));
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 2, KEY, HALF, 0, &v));
    commit(v, 7);
    commit(v, 8);
    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &w));
    commit(w, 9);
    commit(w, 10);
    tt_vault_begin(w);
    EXPECT_OK(tt_vault_list(folder, &list, &count));
    EXPECT_INT(3, count);
    EXPECT(list[0].slot == 0 && list[1].slot == 2 && list[2].slot == 10);
    EXPECT(list[1].key == KEY && list[2].key == KEY + 1);
    EXPECT(list[1].bytes == HALF && list[2].bytes == 100);
    EXPECT(list[0].current == tt_vault_current(w) && list[2].current == -1);
    EXPECT(is_described(&list[0].half[list[0].current], 10));
    EXPECT_INT(-1, list[0].half[!list[0].current].label.step);
    EXPECT(is_described(&list[1].half[list[1].current], 8));
    EXPECT(is_described(&list[1].half[!list[1].current], 7));
    EXPECT(list[2].half[0].label.step == -1 && list[2].half[1].label.step == -1);
    free(list);
    tt_vault_close(v);
    tt_vault_close(w);
    EXPECT_OK(tt_vault_list(folder, &list, &count));
    EXPECT_INT(3, count);
    free(list);
    EXPECT_ERR(TT_EIO, tt_vault_list("absent", &list, &count));
}

static void put_word(const char *path, size_t at, uint64_t value)
{
    int fd = open(path, O_RDWR);

    EXPECT(fd >= 0 && pwrite(fd, &value, 8, (off_t)at) == 8);
    close(fd);
}

/* What one bad word makes of a good slot. */
static const struct {
    size_t at;
    uint64_t value;
} bad[] = {
    {offsetof(vault_head, magic), 0}, /* its birth was not finished */
    {offsetof(vault_head, magic), VAULT_MAGIC + 1},
    {offsetof(vault_head, bytes), 0},
    {offsetof(vault_head, bytes), UINT64_MAX},
    {offsetof(vault_head, bytes), (uint64_t)1 << 62},
    {offsetof(vault_head, bytes), HALF + VAULT_PAGE},
    {offsetof(vault_head, commit.word), (9 + 1) << 1},
    {offsetof(vault_head, commit.word), 0 | 1},
    {offsetof(vault_head, commit.word), UINT64_MAX},
    {offsetof(vault_head, commit.half[0].next), 0},
    {offsetof(vault_head, commit.half[0].next), 8 + 1},
    {offsetof(vault_head, note[0][0]), TT_VAULT_NOTE + 1},
    {offsetof(vault_head, note[1][1]), UINT32_MAX},
};

enum { BAD = TT_COUNT(bad), GOOD = 50, SHORT, TINY, EMPTY, LONG, HOLES, PIPE, LINK, NOISE, END };

static const char *slot_path(const char *folder, int slot)
{
    static char path[2][5000];
    static int n;

    n = !n;
    snprintf(path[n], sizeof *path, "%s/slot-%d", folder, slot);
    return path[n];
}

static bool is_damaged(int slot)
{
    return slot < BAD || (slot > GOOD && slot < END);
}

/* Slots as they never should be, one that is good, and names that are nearly those of slots. */
static void make_damage(const char *folder)
{
    static const char *const others[] = {"slot-",   "slot-x",           "slot-00",
                                         "slot--1", "slot-99999999999", "slot-0.new"};
    char noise[5000], path[5000];
    tt_vault *v;
    tt_bytes b;

    for (int i = 0; i <= LONG; i++) {
        if (i != GOOD && !is_damaged(i)) continue;
        EXPECT_OK(tt_vault_open(folder, i, KEY, HALF, 0, &v));
        commit(v, 8);
        commit(v, 9);
        commit(v, 10); /* in half 0, and 9 in half 1 */
        tt_vault_close(v);
        if (i < BAD) put_word(slot_path(folder, i), bad[i].at, bad[i].value);
    }
    EXPECT(!truncate(slot_path(folder, SHORT), VAULT_PAGE + 4096));
    put_word(slot_path(folder, TINY), offsetof(vault_head, bytes), UINT64_MAX);
    EXPECT(!truncate(slot_path(folder, TINY), VAULT_PAGE)); /* right, in 64 bits */
    EXPECT(!truncate(slot_path(folder, EMPTY), 0));
    EXPECT(!truncate(slot_path(folder, LONG), 1 << 20));
    EXPECT_OK(tt_file_read(slot_path(folder, GOOD), 0, &b));
    tt_test_write(slot_path(folder, HOLES), b.data, sizeof(vault_head));
    EXPECT(!truncate(slot_path(folder, HOLES), (off_t)b.size));
    tt_file_release(&b);
    EXPECT(!mkfifo(slot_path(folder, PIPE), 0600));
    EXPECT(!symlink(slot_path(folder, GOOD), slot_path(folder, LINK)));
    EXPECT(!mkdir(slot_path(folder, END), 0700));
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (char)tt_philox(3, 4, i).v[0];
    tt_test_write(slot_path(folder, NOISE), noise, sizeof noise);
    for (int i = 0; i < TT_COUNT(others); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, others[i]);
        tt_test_write(path, noise, sizeof noise);
    }
}

TT_TEST(vault, damaged_slots_are_left_out_and_made_new)
{
    const char *folder = new_folder();
    tt_vault *v;
    tt_vault_info *list;
    int count;

    make_damage(folder);
    EXPECT_OK(tt_vault_list(folder, &list, &count));
    EXPECT_INT(1, count);
    EXPECT_INT(GOOD, list[0].slot);
    free(list);
    for (int i = 0; i < END; i++) {
        tt_vault_view view;
        tt_err err;
        if (!is_damaged(i)) continue;
        err = tt_vault_peek(folder, i, 0, 10, &view);
        EXPECT_INT(i == PIPE || i == LINK ? TT_EPEER : TT_EFORMAT, err);
        EXPECT(!view.data && !tt_vault_unpeek(&view));
        EXPECT_OK(tt_vault_open(folder, i, KEY, HALF, 0, &v));
        expect_halves(v, -1, -1);
        EXPECT_ERR(TT_EPEER, tt_vault_peek(folder, i, 0, 10, &view)); /* not damaged any more */
        commit(v, 1);
        expect_halves(v, 1, -1);
        tt_vault_close(v);
    }
    EXPECT_ERR(TT_EIO, tt_vault_open(folder, END, KEY, HALF, 0, &v)); /* a folder */
    EXPECT_OK(tt_vault_open(folder, GOOD, KEY, HALF, 0, &v));
    expect_halves(v, 10, 9); /* what a link led to was not touched */
    tt_vault_close(v);
}

/* A disk may have got the word and not the half. */
TT_TEST(vault, on_disk_nothing_counts_that_is_older_than_the_machines_start)
{
    char folder[4096];
    tt_vault_info *list;
    tt_vault_view view;
    tt_vault *v;
    int count, dir;

    EXPECT(!mkdir("disk", 0700) && getcwd(folder, sizeof folder - 8));
    strcat(folder, "/disk");
    EXPECT_OK(tt_vault_dir(folder, &dir));
    bool in_memory = tt_vault_on_tmpfs(dir);
    close(dir);
    if (in_memory) tt_test_skip("/tmp is in memory");
    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    commit(v, 4);
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    expect_halves(v, 4, -1);
    tt_vault_close(v);
    put_word(slot_path(folder, 0), offsetof(vault_head, boot), 0x2d31323334353637);
    EXPECT_OK(tt_vault_list(folder, &list, &count));
    EXPECT_INT(0, count);
    free(list);
    EXPECT_ERR(TT_EFORMAT, tt_vault_peek(folder, 0, 0, 4, &view));
    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    expect_halves(v, -1, -1);
    tt_vault_close(v);
}

TT_TEST(vault, what_is_read_of_a_busy_slot_is_of_one_moment)
{
    part p = {.folder = new_folder()};
    tt_vault_info *list;
    int count, pipes[2], seen = 0, peeked = 0, lost = 0;
    int64_t last = -1;
    pid_t pid;

    EXPECT(!pipe(pipes));
    p.tell = pipes[1];
    pid = spawn(train, &p);
    EXPECT(told(pipes[0], 20000));
    for (double until = tt_clock_s() + 0.3; tt_clock_s() < until;) {
        tt_vault_view view;
        EXPECT_OK(tt_vault_list(p.folder, &list, &count));
        EXPECT_INT(1, count);
        EXPECT(list->current >= 0);
        int64_t now = list->half[list->current].label.step,
                before = list->half[!list->current].label.step;
        EXPECT(is_described(&list->half[list->current], now));
        EXPECT(before == -1 ||
               (before == now - 1 && is_described(&list->half[!list->current], before)));
        if (now < last) FAIL("step %lld after %lld", (long long)now, (long long)last);
        last = now;
        seen++;
        tt_err err = tt_vault_peek(p.folder, 0, list->current, now, &view);
        if (!err) {
            bool whole = is_whole(view.data, now), described = is_described(&view.what, now);
            EXPECT(described && view.bytes == HALF);
            err = tt_vault_unpeek(&view);
            if (!err) peeked++;
            if (!err && !whole) FAIL("half of step %lld is torn", (long long)now);
        }
        EXPECT(!err || err == TT_EPEER);
        lost += err != TT_OK;
        free(list);
    }
    end(pid);
    close(pipes[0]);
    close(pipes[1]);
    EXPECT(seen > 10 && peeked + lost == seen);
}

TT_TEST(vault, a_half_that_is_rewritten_is_not_to_be_read)
{
    const char *folder = new_folder();
    tt_vault_view view, other;
    tt_vault *v;

    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    EXPECT_ERR(TT_EPEER, tt_vault_peek(folder, 0, 0, 1, &view));
    EXPECT_ERR(TT_EPEER, tt_vault_peek(folder, 0, 0, -1, &view)); /* none is no step */
    EXPECT_ERR(TT_EPEER, tt_vault_peek(folder, 1, 0, 1, &view));
    commit(v, 1);
    commit(v, 2);
    EXPECT_ERR(TT_EPEER, tt_vault_peek(folder, 0, 0, 2, &view)); /* that is the other half */
    EXPECT_MESSAGE("is of step 1, not of step 2");
    EXPECT_OK(tt_vault_peek(folder, 0, 0, 1, &view));
    EXPECT(is_whole(view.data, 1) && is_described(&view.what, 1));
    EXPECT_OK(tt_vault_unpeek(&view));
    EXPECT_OK(tt_vault_unpeek(&view)); /* is zeroed */
    EXPECT_OK(tt_vault_peek(folder, 0, 0, 1, &view));
    EXPECT_OK(tt_vault_peek(folder, 0, 1, 2, &other));
    tt_vault_begin(v);
    EXPECT_ERR(TT_EPEER, tt_vault_unpeek(&view));
    EXPECT_ERR(TT_EPEER, tt_vault_peek(folder, 0, 0, 1, &view));
    commit(v, 1); /* the same step again, but not the same bytes */
    EXPECT(is_whole(other.data, 2));
    EXPECT_OK(tt_vault_unpeek(&other));
    EXPECT_OK(tt_vault_peek(folder, 0, 0, 1, &view));
    tt_vault_begin(v);
    commit(v, 2);
    commit(v, 1);
    EXPECT_ERR(TT_EPEER, tt_vault_unpeek(&view));
    EXPECT_OK(tt_vault_peek(folder, 0, 0, 1, &view));
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 0, KEY + 1, HALF, 0, &v)); /* made new: this is another file */
    EXPECT(is_whole(view.data, 1));
    EXPECT_OK(tt_vault_unpeek(&view));
    tt_vault_close(v);
}

/* ---- folders ---- */

TT_TEST(vault, a_run_finds_its_folder_again)
{
    char run[100], path[4096], again[4096], owner[5000], text[200];
    bool on_disk;
    struct stat st;
    tt_vault *v;

    if (access("/dev/shm", W_OK)) tt_test_skip("no /dev/shm");
    new_run(run);
    EXPECT_OK(tt_vault_folder(run, 1 << 20, "spare", path, &on_disk));
    will_clean(path);
    snprintf(text, sizeof text, "/dev/shm/tutti-%d-vault-", (int)geteuid());
    EXPECT(!on_disk && !strncmp(path, text, strlen(text)) && strlen(path) == strlen(text) + 16);
    EXPECT(!stat(path, &st) && (st.st_mode & 0777) == 0700);
    snprintf(owner, sizeof owner, "%s/owner", path);
    snprintf(text, sizeof text, "%s\n", run);
    EXPECT_FILE(owner, text);
    EXPECT(!tt_file_exists("spare"));
    EXPECT_OK(tt_vault_folder(run, 1 << 20, NULL, again, &on_disk));
    EXPECT_STR(path, again);
    /* Without slots it is not bound to the place ... */
    EXPECT_ERR(TT_EENV, tt_vault_folder(run, UINT64_MAX, "spare", again, &on_disk));
    EXPECT_MESSAGE("are needed");
    EXPECT_STR("", again);
    /* ... with them it is, wherever they are. */
    EXPECT_OK(tt_vault_open(path, 0, KEY, HALF, 0, &v));
    tt_vault_close(v);
    EXPECT_OK(tt_vault_folder(run, UINT64_MAX, "spare", again, &on_disk));
    EXPECT_STR(path, again);
    EXPECT(!on_disk);
    EXPECT_OK(tt_vault_remove(path));
    EXPECT(!tt_file_exists(path));
    EXPECT_ERR(TT_EINVAL, tt_vault_folder("", 1, NULL, again, &on_disk));
}

TT_TEST(vault, a_folder_on_disk_is_kept_to_and_is_the_hosts_own)
{
    char run[100], shm[4096], path[4096], want[5000], host[64] = "";
    bool on_disk;
    tt_vault *v;

    if (access("/dev/shm", W_OK)) tt_test_skip("no /dev/shm");
    new_run(run);
    EXPECT_OK(tt_vault_folder(run, 1, NULL, shm, &on_disk));
    will_clean(shm);
    gethostname(host, sizeof host - 1);
    snprintf(want, sizeof want, "spare%s-%s", strrchr(shm, '/'), host);
    EXPECT(!mkdir("spare", 0755) && !mkdir(want, 0700));
    EXPECT_OK(tt_vault_folder(run, 1, "spare", path, &on_disk));
    EXPECT_STR(shm, path); /* there are no slots in the other */
    EXPECT_OK(tt_vault_open(want, 0, KEY, HALF, 0, &v));
    commit(v, 1);
    tt_vault_close(v);
    EXPECT_OK(tt_vault_folder(run, 1, "spare", path, &on_disk));
    EXPECT_STR(want, path);
    EXPECT(on_disk);
    EXPECT_OK(tt_vault_open(path, 0, KEY, HALF, 0, &v));
    expect_halves(v, 1, -1);
    tt_vault_close(v);
    EXPECT_OK(tt_vault_remove(shm));
}

TT_TEST(vault, a_folder_others_could_reach_is_not_used)
{
    char run[100], path[4096], out[4096];
    bool on_disk;
    tt_vault *v;
    tt_vault_info *list;
    int count;

    if (access("/dev/shm", W_OK)) tt_test_skip("no /dev/shm");
    new_run(run);
    EXPECT_OK(tt_vault_folder(run, 1, NULL, path, &on_disk));
    will_clean(path);
    EXPECT(!chmod(path, 0750));
    EXPECT_ERR(TT_EENV, tt_vault_folder(run, 1, "spare", out, &on_disk));
    EXPECT_MESSAGE("mode 750");
    EXPECT_ERR(TT_EENV, tt_vault_open(path, 0, KEY, HALF, 0, &v));
    EXPECT(!chmod(path, 0700));
    EXPECT_OK(tt_vault_folder(run, 1, NULL, out, &on_disk));
    EXPECT_OK(tt_dir_remove(path));
    EXPECT(!mkdir("elsewhere", 0700) && getcwd(out, sizeof out - 16));
    strcat(out, "/elsewhere");
    EXPECT(!symlink(out, path));
    EXPECT_ERR(TT_EENV, tt_vault_folder(run, 1, "spare", out, &on_disk));
    EXPECT_MESSAGE("link");
    EXPECT_ERR(TT_EENV, tt_vault_open(path, 0, KEY, HALF, 0, &v));
    EXPECT_ERR(TT_EENV, tt_vault_list(path, &list, &count));
    EXPECT_ERR(TT_EENV, tt_vault_remove(path));
    EXPECT(!unlink(path));
    tt_test_write(path, "x", 1);
    EXPECT_ERR(TT_EENV, tt_vault_folder(run, 1, "spare", out, &on_disk));
    EXPECT(!unlink(path));
    if (geteuid()) tt_test_skip("the rest is for root");
    EXPECT(!mkdir(path, 0700) && !chown(path, 65534, 65534));
    EXPECT_ERR(TT_EENV, tt_vault_folder(run, 1, "spare", out, &on_disk));
    EXPECT_MESSAGE("belongs to user 65534");
    EXPECT_ERR(TT_EENV, tt_vault_open(path, 0, KEY, HALF, 0, &v));
    EXPECT(!rmdir(path));
}

/* The run's own folder among what is left; NULL if it is not there. */
static tt_vault_left *find_left(const char *spare, const char *run, tt_vault_left **list)
{
    int count;

    EXPECT_OK(tt_vault_leftovers(spare, list, &count));
    for (int i = 0; i < count; i++)
        if (!strcmp((*list)[i].run, run)) return &(*list)[i];
    return NULL;
}

TT_TEST(vault, what_nobody_has_is_left_over_and_can_be_removed)
{
    part p = {.wait_s = 1};
    char run[100], path[4096], disk[5000], other[5100], who[64], host[64] = "";
    bool on_disk;
    tt_vault *v;
    tt_vault_left *list, *left;
    int pipes[2];
    pid_t pid;

    if (access("/dev/shm", W_OK)) tt_test_skip("no /dev/shm");
    EXPECT(!pipe(pipes));
    new_run(run);
    EXPECT_OK(tt_vault_folder(run, 1, NULL, path, &on_disk));
    will_clean(path);
    p.folder = path;
    p.tell = pipes[1];
    pid = spawn(hold, &p);
    EXPECT(told(pipes[0], 20000));
    EXPECT_OK(tt_vault_open(path, 1, KEY, HALF, 0, &v));
    tt_vault_close(v);
    EXPECT(!find_left(NULL, run, &list));
    free(list);
    EXPECT_ERR(TT_EPEER, tt_vault_remove(path));
    snprintf(who, sizeof who, "process %d has slot-0", (int)pid);
    EXPECT_MESSAGE(who);
    end(pid);
    EXPECT_OK(tt_vault_open(path, 1, KEY, HALF, 0, &v)); /* nothing is gone */
    tt_vault_close(v);
    EXPECT((left = find_left(NULL, run, &list)));
    EXPECT_STR(path, left->folder);
    EXPECT(left->bytes >= 2 * tt_vault_need(HALF) && left->bytes < 3 * tt_vault_need(HALF));
    EXPECT_NEAR(tt_wall_s(), left->changed, 60);
    free(list);
    EXPECT_OK(tt_vault_remove(path));
    EXPECT(!tt_file_exists(path));
    EXPECT_OK(tt_vault_remove(path)); /* fine if it is not there */
    EXPECT(!find_left(NULL, run, &list));
    free(list);

    /* The same below a folder on disk, which other hosts may use as well. */
    gethostname(host, sizeof host - 1);
    snprintf(disk, sizeof disk, "spare%s-%s", strrchr(path, '/'), host);
    EXPECT(!mkdir("spare", 0755) && !mkdir(disk, 0700));
    strcat(disk, "/owner");
    tt_test_write(disk, "me\n", 3);
    *strrchr(disk, '/') = 0;
    EXPECT((left = find_left("spare", "me", &list)));
    EXPECT_STR(disk, left->folder);
    free(list);
    snprintf(other, sizeof other, "%sx", disk);
    EXPECT(!rename(disk, other));
    EXPECT(!find_left("spare", "me", &list));
    free(list);
    for (int i = 0; i < 2; i++) close(pipes[i]);
}

TT_TEST(vault, only_what_is_of_a_vault_is_removed)
{
    const char *folder = new_folder();
    char path[5000];
    tt_vault *v;

    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    tt_vault_close(v);
    snprintf(path, sizeof path, "%s/slot-1.new", folder);
    tt_test_write(path, "of one that was killed", 10);
    snprintf(path, sizeof path, "%s/thesis.tex", folder);
    tt_test_write(path, "x", 1);
    EXPECT_ERR(TT_EIO, tt_vault_remove(folder));
    EXPECT_MESSAGE("thesis.tex");
    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    EXPECT(!unlink(path));
    EXPECT_ERR(TT_EPEER, tt_vault_remove(folder));
    tt_vault_close(v);
    EXPECT_OK(tt_vault_remove(folder));
    EXPECT(!tt_file_exists(folder));
}
