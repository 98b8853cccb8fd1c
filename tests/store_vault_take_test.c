/* What goes with a state afterwards, and who takes over from the killed. */
#define _GNU_SOURCE
#include "vault_help.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <time.h>

/* ---- notes ---- */

TT_TEST(vault, the_note_of_the_last_commit_can_be_replaced)
{
    const char *folder = new_folder();
    char longest[TT_VAULT_NOTE];
    tt_vault_info *list;
    tt_vault *v;
    int now, count;

    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    commit(v, 1);
    commit(v, 2);
    now = tt_vault_current(v);
    tt_vault_amend(v, "closed", 6);
    EXPECT(has_note(tt_vault_look(v, now), "closed") && is_of(tt_vault_look(v, now), 2));
    EXPECT(is_described(tt_vault_look(v, !now), 1)); /* the one before keeps its own */
    EXPECT(is_whole(tt_vault_data(v, now), 2) && is_whole(tt_vault_data(v, !now), 1));
    EXPECT_OK(tt_vault_list(folder, &list, &count));
    EXPECT(list->current == now && has_note(&list->half[now], "closed"));
    free(list);
    tt_vault_begin(v); /* also while the next is being made */
    memset(longest, 'x', sizeof longest);
    tt_vault_amend(v, longest, sizeof longest);
    tt_vault_close(v);
    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    EXPECT_INT(now, tt_vault_current(v));
    EXPECT(tt_vault_look(v, now)->note_size == sizeof longest);
    EXPECT(!memcmp(tt_vault_look(v, now)->note, longest, sizeof longest));
    tt_vault_amend(v, NULL, 0);
    EXPECT(has_note(tt_vault_look(v, now), ""));
    commit(v, 3);
    expect_halves(v, 3, -2);
    EXPECT(has_note(tt_vault_look(v, now), "")); /* now it is the one before */
    tt_vault_amend(v, "gone", 4);
    EXPECT(tt_vault_undo(v));
    tt_vault_amend(v, "back", 4);
    EXPECT(tt_vault_current(v) == now && has_note(tt_vault_look(v, now), "back"));
    commit(v, 3);
    expect_halves(v, 3, -2); /* with the note it was committed with */
    tt_vault_close(v);
}

TT_TEST(vault, who_reads_a_state_may_go_on_when_its_note_is_replaced)
{
    const char *folder = new_folder();
    tt_vault_view view;
    tt_vault *v;

    EXPECT_OK(tt_vault_open(folder, 0, KEY, HALF, 0, &v));
    commit(v, 1);
    EXPECT_OK(tt_vault_peek(folder, 0, tt_vault_current(v), 1, &view));
    for (int i = 0; i < 3; i++) tt_vault_amend(v, "closed", 6);
    EXPECT(is_whole(view.data, 1) && is_described(&view.what, 1));
    EXPECT_OK(tt_vault_unpeek(&view));
    EXPECT_OK(tt_vault_peek(folder, 0, tt_vault_current(v), 1, &view));
    EXPECT(has_note(&view.what, "closed"));
    EXPECT_OK(tt_vault_unpeek(&view));
    tt_vault_close(v);
}

/* A note of step `step` as it is committed (round 0) or amended, which shows if it is torn. */
static size_t note_of(int64_t step, int round, char out[TT_VAULT_NOTE])
{
    size_t n = (size_t)snprintf(out, 64, "step %lld round %d ", (long long)step, round);
    size_t end = 100 + (size_t)((step * 31 + round * 57) % 900);

    memset(out + n, 'a' + (int)((step + round) % 26), end - n);
    return end;
}

static bool is_note_of(const tt_vault_half *h, int64_t step, int *round)
{
    char want[TT_VAULT_NOTE], text[64] = "";

    memcpy(text, h->note, sizeof text - 1);
    if (h->note_size < 100 || sscanf(text, "step %*d round %d", round) != 1) return false;
    return h->note_size == note_of(step, *round, want) && !memcmp(want, h->note, h->note_size);
}

/* Steps for ever, each of which is amended some times. */
static void train_and_note(void *arg)
{
    const part *p = arg;
    tt_vault *v;
    int64_t step;

    MUST(!tt_vault_open(p->folder, 0, KEY, HALF, 5, &v));
    step = tt_vault_current(v) < 0 ? 0 : tt_vault_look(v, tt_vault_current(v))->label.step + 1;
    for (bool first = true;; first = false, step++) {
        tt_vault_half w = what_of(step);
        w.note_size = (uint32_t)note_of(step, 0, w.note);
        fill(tt_vault_data(v, tt_vault_begin(v)), step);
        tt_vault_commit(v, &w);
        for (int round = 1; round < 200; round++) {
            char note[TT_VAULT_NOTE];
            size_t size = note_of(step, round, note);
            tt_vault_amend(v, note, size);
        }
        if (first) MUST(write(p->tell, "", 1) == 1);
    }
}

TT_TEST(vault, whoever_is_killed_leaves_the_old_note_or_the_new)
{
    part p = {.folder = new_folder()};
    int64_t last = -1;
    int pipes[2], amended = 0;

    EXPECT(!pipe(pipes));
    p.tell = pipes[1];
    for (int i = 0; i < 60; i++) {
        pid_t pid = spawn(train_and_note, &p);
        tt_vault *v;
        const tt_vault_half *h;
        float r[4];
        int round;
        tt_uniform4(1, 3, (uint64_t)i, r);
        EXPECT(told(pipes[0], 20000));
        nanosleep(&(struct timespec){.tv_nsec = (long)(r[0] * 2e6f)}, NULL);
        end(pid);
        EXPECT_OK(tt_vault_open(p.folder, 0, KEY, HALF, 5, &v));
        h = tt_vault_look(v, tt_vault_current(v));
        EXPECT(h->label.step > last && is_of(h, h->label.step));
        EXPECT(is_whole(tt_vault_data(v, tt_vault_current(v)), h->label.step));
        if (!is_note_of(h, h->label.step, &round)) FAIL("the note '%.1024s' is torn", h->note);
        amended += round > 0 && round < 199;
        last = h->label.step;
        tt_vault_close(v);
    }
    EXPECT(amended > 0);
    close(pipes[0]);
    close(pipes[1]);
}

TT_TEST(vault, a_note_that_is_read_meanwhile_is_whole_and_of_its_state)
{
    part p = {.folder = new_folder()};
    int count, pipes[2], seen = 0, last_round = 0;
    int64_t last = -1;
    tt_vault_info *list;
    pid_t pid;

    EXPECT(!pipe(pipes));
    p.tell = pipes[1];
    pid = spawn(train_and_note, &p);
    EXPECT(told(pipes[0], 20000));
    for (double until = tt_clock_s() + 0.2; tt_clock_s() < until; seen++) {
        const tt_vault_half *h;
        int round;
        EXPECT_OK(tt_vault_list(p.folder, &list, &count));
        EXPECT_INT(1, count);
        h = &list->half[list->current];
        if (!is_note_of(h, h->label.step, &round)) FAIL("the note '%.1024s' is torn", h->note);
        EXPECT(h->label.step > last || (h->label.step == last && round >= last_round));
        last = h->label.step;
        last_round = round;
        h = &list->half[!list->current];
        if (h->label.step >= 0) EXPECT(is_note_of(h, last - 1, &round) && round == 199);
        free(list);
    }
    EXPECT(seen > 10);
    end(pid);
    close(pipes[0]);
    close(pipes[1]);
}

/* ---- killed at any instruction ---- */

enum { SMALL = 16 };

static tt_vault_half small_of(int64_t step)
{
    return (tt_vault_half){.label = {1, 1, step}, .note_size = 3, .note = "new"};
}

static void commit_small(tt_vault *v, int64_t step)
{
    tt_vault_half w = small_of(step);
    uint64_t *to = tt_vault_data(v, tt_vault_begin(v));

    to[0] = to[1] = ~0ull;
    to[0] = word_at(step, 0);
    to[1] = word_at(step, 1);
    tt_vault_commit(v, &w);
}

/* Between the two signals is what is looked at. */
static void be_looked_at(void *arg)
{
    const part *p = arg;
    tt_vault *v;

    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) _exit(2);
    MUST(!tt_vault_open(p->folder, 0, KEY, SMALL, 5, &v));
    commit_small(v, 1);
    raise(SIGSTOP);
    commit_small(v, 2);
    tt_vault_amend(v, "closed", 6);
    MUST(tt_vault_undo(v));
    commit_small(v, 3);
    raise(SIGSTOP);
}

/* What the slot says, as one number that only ever grows while the above goes on. */
static int place_in_story(const tt_vault_info *slot)
{
    const tt_vault_half *now = &slot->half[slot->current], *before = &slot->half[!slot->current];
    static const struct {
        int64_t now, before;
        const char *note;
    } story[] = {{1, -1, "new"}, {2, 1, "new"}, {2, 1, "closed"}, {1, -1, "new"}, {3, 1, "new"}};
    static int at;

    for (int i = at; i < TT_COUNT(story); i++)
        if (story[i].now == now->label.step && story[i].before == before->label.step &&
            has_note(now, story[i].note) && (before->label.step < 0 || has_note(before, "new"))) {
            at = i;
            return i;
        }
    return -1;
}

static bool small_is_whole(const char *folder, const tt_vault_info *slot)
{
    tt_vault_view view;
    int64_t step = slot->half[slot->current].label.step;
    bool whole;

    if (tt_vault_peek(folder, 0, slot->current, step, &view)) return false;
    whole = ((const uint64_t *)view.data)[0] == word_at(step, 0) &&
            ((const uint64_t *)view.data)[1] == word_at(step, 1);
    return !tt_vault_unpeek(&view) && whole;
}

/* Has anything in the file changed since the last time? What has is kept in `last`. */
static bool has_changed(const char *file, char *last)
{
    static const size_t at[] = {0, VAULT_PAGE, 2 * VAULT_PAGE},
                        size[] = {sizeof(vault_head), SMALL, SMALL};
    bool changed = false;

    for (int i = 0; i < 3; i++) {
        if (!memcmp(file + at[i], last + at[i], size[i])) continue;
        memcpy(last + at[i], file + at[i], size[i]);
        changed = true;
    }
    return changed;
}

static void look_at_story(const char *folder, int *at)
{
    tt_vault_info *list;
    int count;

    EXPECT_OK(tt_vault_list(folder, &list, &count));
    EXPECT_INT(1, count);
    *at = place_in_story(list);
    if (*at < 0)
        FAIL("step %lld with '%.10s', before it %lld",
             (long long)list->half[list->current].label.step, list->half[list->current].note,
             (long long)list->half[!list->current].label.step);
    EXPECT(small_is_whole(folder, list));
    free(list);
}

/* A kill leaves what is in memory, so it is enough to look at that after each instruction. */
TT_TEST(vault, at_every_instruction_there_is_one_state_with_one_note)
{
    static char last[3 * VAULT_PAGE];
    part p = {.folder = new_folder()};
    char path[5000];
    int status, fd, changes = 0, at = -1;
    char *file;
    pid_t pid;

#ifdef __SANITIZE_THREAD__
    tt_test_skip("there is but one thread, and all steps are the sanitizer's");
#endif
    snprintf(path, sizeof path, "%s/slot-0", p.folder);
    pid = spawn(be_looked_at, &p);
    EXPECT(waitpid(pid, &status, 0) == pid);
    if (!WIFSTOPPED(status)) tt_test_skip("this process may not be traced");
    EXPECT((fd = open(path, O_RDONLY)) >= 0);
    file = mmap(NULL, sizeof last, PROT_READ, MAP_SHARED, fd, 0);
    EXPECT(file != MAP_FAILED);
    for (;;) {
        if (has_changed(file, last)) {
            look_at_story(p.folder, &at);
            changes++;
        }
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL)) tt_test_skip("no single steps here");
        EXPECT(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
        if (WSTOPSIG(status) == SIGSTOP) break;
        EXPECT_INT(SIGTRAP, WSTOPSIG(status));
    }
    EXPECT(changes > 15);
    EXPECT_INT(4, at);
    end(pid);
    munmap(file, sizeof last);
    close(fd);
}

/* ---- taking over ---- */

/* Waits, takes over, commits a few, and is killed by who comes next: as workers do. */
static void relieve(void *arg)
{
    const part *p = arg;
    tt_vault *v;
    int64_t step;

    MUST(write(p->tell, "", 1) == 1);
    MUST(!tt_vault_open(p->folder, 0, KEY, HALF, 20, &v));
    step = tt_vault_current(v) < 0 ? 0 : tt_vault_look(v, tt_vault_current(v))->label.step + 1;
    for (;; step++) commit(v, step);
}

TT_TEST(vault, who_takes_over_from_the_killed_has_the_last_commit)
{
    part p = {.folder = new_folder()};
    int pipes[2];
    int64_t last = -1;
    pid_t pid, next;

    EXPECT(!pipe(pipes));
    p.tell = pipes[1];
    pid = spawn(relieve, &p);
    EXPECT(told(pipes[0], 20000));
    for (int i = 0; i < 100; i++) {
        tt_vault_info *list;
        int count;
        float r[4];
        tt_uniform4(1, 4, (uint64_t)i, r);
        next = spawn(relieve, &p);
        EXPECT(told(pipes[0], 20000));
        nanosleep(&(struct timespec){.tv_nsec = (long)(r[0] * 2e6f)}, NULL);
        if (i % 4 == 3) { /* who stands by may go first */
            end(next);
            next = pid;
        } else {
            end(pid);
        }
        EXPECT_OK(tt_vault_list(p.folder, &list, &count));
        if (count && list->current >= 0) {
            int64_t step = list->half[list->current].label.step;
            EXPECT(step == -1 || step >= last);
            if (step >= 0) last = step;
        }
        free(list);
        pid = next;
    }
    end(pid);
    tt_vault *v;
    EXPECT_OK(tt_vault_open(p.folder, 0, KEY, HALF, 5, &v));
    int now = tt_vault_current(v);
    EXPECT(now >= 0 && tt_vault_look(v, now)->label.step >= last && last > 0);
    EXPECT(is_whole(tt_vault_data(v, now), tt_vault_look(v, now)->label.step));
    tt_vault_close(v);
    close(pipes[0]);
    close(pipes[1]);
}
