/* Rooms: folders of a run that nobody but a run of this user removes, and only when they are empty
 * of people. */
#define _GNU_SOURCE
#include "test.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cluster/inner.h"
#include "store/vault.h"

/* "<here>/tutti-<uid>-data-<digit, 16 times>", made as one that was left long ago. */
static void make_room(char digit, char out[512])
{
    struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    char *here = getcwd(NULL, 0), file[600];
    size_t n = (size_t)snprintf(out, 512, "%s/tutti-%u-data-", here, (unsigned)geteuid());

    memset(out + n, digit, 16);
    out[n + 16] = 0;
    EXPECT(!mkdir(out, 0700));
    snprintf(file, sizeof file, "%s/content", out);
    tt_test_write(file, "x", 1);
    EXPECT(!utimensat(AT_FDCWD, out, long_ago, 0));
    free(here);
}

TT_TEST(rooms, names_are_new_and_known_again)
{
    char a[TT_ROOMS], b[TT_ROOMS];

    EXPECT_OK(tt_rooms_name(a));
    EXPECT_OK(tt_rooms_name(b));
    EXPECT(strcmp(a, b));
    EXPECT(tt_rooms_valid(a) && tt_rooms_valid(b));
    EXPECT(!tt_rooms_valid("") && !tt_rooms_valid("0") && !tt_rooms_valid("/home/me"));
    strcat(b, ":/home/me");
    EXPECT(!tt_rooms_valid(b));
    EXPECT(!tt_rooms_valid("tutti-0-data-0123456789abcdef")); /* from wherever we are */
    setenv("TMPDIR", "/a:b", 1);
    EXPECT_OK(tt_rooms_name(a));
    EXPECT(!strstr(a, "/a:b"));
    unsetenv("TMPDIR");
}

/* The state of a run may be all there is of it, and nobody holds its folder between two worlds. */
TT_TEST(rooms, a_vault_is_no_room)
{
    struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    char folder[4096], run[64], rooms[TT_ROOMS];
    bool on_disk;

    snprintf(run, sizeof run, "a_vault_is_no_room-%d", (int)getpid());
    EXPECT_OK(tt_vault_folder(run, 4096, NULL, folder, &on_disk));
    EXPECT(!utimensat(AT_FDCWD, folder, long_ago, 0));
    EXPECT_OK(tt_rooms_name(rooms));
    tt_rooms_sweep(rooms);
    EXPECT(tt_file_exists(folder));
    EXPECT(!tt_rooms_valid(folder));
    EXPECT_OK(tt_vault_remove(folder));
}

TT_TEST(rooms, only_rooms_are_removed)
{
    char room[512], both[1100];

    make_room('a', room);
    EXPECT(!mkdir("kept", 0700));
    snprintf(both, sizeof both, "%s:kept", room);
    tt_rooms_remove(both);
    EXPECT(!tt_file_exists(room));
    EXPECT(tt_file_exists("kept"));
    tt_rooms_remove("kept");
    tt_rooms_remove(".");
    tt_rooms_remove("/");
    tt_rooms_remove("");
    EXPECT(tt_file_exists("kept"));
}

TT_TEST(rooms, those_that_nobody_holds_are_swept)
{
    char mine[512], dead[512], held[512], fresh[512], link[512];
    int fd;

    make_room('a', mine);
    tt_rooms_hold(mine);
    make_room('b', dead);
    make_room('c', held);
    fd = open(held, O_RDONLY | O_DIRECTORY);
    EXPECT(fd >= 0 && !flock(fd, LOCK_SH));
    make_room('d', fresh); /* its run is about to hold it */
    EXPECT(!utimensat(AT_FDCWD, fresh, NULL, 0));
    make_room('e', link);
    EXPECT(!rename(link, "elsewhere") && !symlink("elsewhere", link));
    EXPECT(!mkdir("tutti-0-abc", 0700)); /* no room */
    tt_rooms_sweep(mine);
    EXPECT(!tt_file_exists(dead));
    EXPECT(tt_file_exists(mine) && tt_file_exists(held) && tt_file_exists(fresh));
    EXPECT(tt_file_exists("elsewhere/content") && tt_file_exists("tutti-0-abc"));
    close(fd); /* it dies */
    tt_rooms_sweep(mine);
    EXPECT(!tt_file_exists(held));
    tt_rooms_remove(mine); /* who holds it may */
    EXPECT(!tt_file_exists(mine));
}

TT_TEST(rooms, a_place_with_two_names_is_listed_once)
{
    static const char *const names[] = {"/dev/shm", "/dev/../dev/shm/", "/tmp/."};
    tt_leftover *list;
    char room[512];
    int count, ours;

    snprintf(room, sizeof room, "/dev/shm/tutti-%u-data-%016x", (unsigned)geteuid(),
             (unsigned)getpid());
    EXPECT(!mkdir(room, 0700));
    EXPECT(!utimensat(AT_FDCWD, room, (struct timespec[2]){{.tv_sec = 1}, {.tv_sec = 1}}, 0));
    for (int i = 0; i < TT_COUNT(names); i++) {
        setenv("TMPDIR", names[i], 1);
        EXPECT_OK(tt_leftovers(&list, &count));
        ours = 0;
        for (int k = 0; k < count; k++) ours += strstr(list[k].path, room + 9) != NULL;
        free(list);
        EXPECT_INT(1, ours);
    }
    EXPECT(!rmdir(room));
}

TT_TEST(rooms, what_a_killed_mpich_has_left_goes_and_what_is_in_use_stays)
{
    char path[3][64]; /* left, open, mapped */
    void *map = NULL;
    int fd[3];

    for (int i = 0; i < 3; i++) {
        snprintf(path[i], sizeof path[i], "/dev/shm/mpich_shar_tmpXXXXXX");
        EXPECT((fd[i] = mkstemp(path[i])) >= 0 && !ftruncate(fd[i], 4096));
        if (i == 2) map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd[i], 0);
        if (i != 1) close(fd[i]);
    }
    tt_litter_sweep();
    EXPECT(!tt_file_exists(path[0]) && tt_file_exists(path[1]) && tt_file_exists(path[2]));
    close(fd[1]);
    munmap(map, 4096);
    tt_litter_sweep();
    EXPECT(!tt_file_exists(path[1]) && !tt_file_exists(path[2]));
}

TT_TEST(rooms, the_first_is_made_for_this_user_alone)
{
    char room[512], rooms[1100];
    struct stat st;

    make_room('a', room);
    tt_rooms_remove(room);
    snprintf(rooms, sizeof rooms, "%s:%.*sb", room, (int)strlen(room) - 1, room);
    tt_rooms_hold(rooms);
    EXPECT(!stat(room, &st) && (st.st_mode & 0777) == 0700);
    room[strlen(room) - 1] = 'b';
    EXPECT(!tt_file_exists(room));
}
