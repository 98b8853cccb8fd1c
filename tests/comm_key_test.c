/* The key of a cluster, in its file. */
#define _GNU_SOURCE
#include "test.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/wire.h"

static mode_t mode_of(const char *path)
{
    struct stat st;

    EXPECT(stat(path, &st) == 0);
    return st.st_mode & 07777;
}

static void expect_alone(const char *folder)
{
    char **names;
    int count;

    EXPECT_OK(tt_dir_list(folder, &names, &count));
    tt_dir_free(names, count);
    EXPECT_INT(1, count);
}

static tt_cluster_key new_key(const char *path)
{
    tt_cluster_key key;

    EXPECT_OK(tt_cluster_key_make(path));
    EXPECT_OK(tt_cluster_key_load(path, &key));
    return key;
}

TT_TEST(key, a_new_one_is_ours_alone_and_stays)
{
    mode_t mask = umask(0);
    tt_cluster_key a, b;

    a = new_key("x/y/key");
    umask(mask);
    EXPECT_INT(0600, mode_of("x/y/key"));
    EXPECT_INT(40, strlen(a.server.secret));
    EXPECT_INT(40, strlen(a.server.public));
    EXPECT(strcmp(a.server.secret, a.client.secret) && strcmp(a.server.public, a.client.public));
    EXPECT(strcmp(a.server.secret, a.server.public));
    b = new_key("x/y/key");
    EXPECT(!memcmp(&a, &b, sizeof a));
    expect_alone("x/y");
    b = new_key("key");
    EXPECT(strcmp(a.server.secret, b.server.secret) && strcmp(a.client.secret, b.client.secret));
}

TT_TEST(key, makers_at_once_agree)
{
    enum { MAKERS = 8 };
    char keys[MAKERS][41];
    int start[2], out[2], status;

    EXPECT(!pipe(start) && !pipe(out));
    for (int i = 0; i < MAKERS; i++) {
        tt_cluster_key key;
        char go;
        if (fork()) continue;
        close(start[1]);
        if (read(start[0], &go, 1) || tt_cluster_key_make("k/key") ||
            tt_cluster_key_load("k/key", &key) || write(out[1], key.server.public, 41) != 41)
            _exit(1);
        _exit(0);
    }
    close(start[1]); /* now */
    for (int i = 0; i < MAKERS; i++) EXPECT(wait(&status) > 0 && status == 0);
    EXPECT_INT(sizeof keys, read(out[0], keys, sizeof keys));
    for (int i = 1; i < MAKERS; i++) EXPECT_STR(keys[0], keys[i]);
    expect_alone("k");
    close(start[0]);
    close(out[0]);
    close(out[1]);
}

TT_TEST(key, one_who_died_while_making_it_is_in_nobodys_way)
{
    char left[64];

    snprintf(left, sizeof left, "key.%d", (int)getpid());
    tt_test_write(left, "12", 2);
    new_key("key");
}

TT_TEST(key, it_is_not_made_where_it_cannot_be)
{
    char path[5000];

    tt_test_write("file", "", 0);
    EXPECT(tt_cluster_key_make("file/key") != TT_OK);
    EXPECT_MESSAGE("file");
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = 0;
    EXPECT_ERR(TT_EENV, tt_cluster_key_make(path));
    EXPECT_MESSAGE("too long");
}

#define DIGITS "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

TT_TEST(key, what_is_none_is_refused_with_what_to_do)
{
    static const struct {
        const char *text;
        size_t size;
    } bad[] = {{"", 0},
               {"\n", 1},
               {"hello\n", 6},
               {DIGITS, 63},
               {DIGITS "0\n", 66},
               {DIGITS " \n", 66},
               {"0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF\n", 65},
               {"0123456789abcdef\0" DIGITS, 81},
               {"\n" DIGITS, 65}};
    static char page[4096];
    tt_cluster_key key;

    for (int i = 0; i < TT_COUNT(bad); i++) {
        tt_test_write("key", bad[i].text, bad[i].size);
        EXPECT(chmod("key", 0600) == 0);
        EXPECT_ERR(TT_EENV, tt_cluster_key_load("key", &key));
        EXPECT_MESSAGE("key: no key of a cluster: it must be a line of 64 digits 0 to f");
    }
    memset(page, 'a', sizeof page); /* all of a page, behind which there is nothing */
    tt_test_write("key", page, sizeof page);
    EXPECT_ERR(TT_EENV, tt_cluster_key_load("key", &key));
    EXPECT_MESSAGE("64 digits");
    tt_test_write("key", DIGITS, 64); /* no line end: fine, an editor may drop it */
    EXPECT_OK(tt_cluster_key_load("key", &key));
}

TT_TEST(key, one_that_others_may_read_is_refused)
{
    static const mode_t modes[] = {0640, 0604, 0620, 0602, 0644, 0666, 0610};
    tt_cluster_key key;

    EXPECT_OK(tt_cluster_key_make("key"));
    for (int i = 0; i < TT_COUNT(modes); i++) {
        EXPECT(chmod("key", modes[i]) == 0);
        EXPECT_ERR(TT_EENV, tt_cluster_key_load("key", &key));
        EXPECT_MESSAGE("key: others may read this key: chmod 600 it");
    }
    EXPECT(chmod("key", 0400) == 0);
    EXPECT_OK(tt_cluster_key_load("key", &key));
}

TT_TEST(key, one_that_is_missing_or_no_file_is_named)
{
    tt_cluster_key key;

    EXPECT_ERR(TT_EENV, tt_cluster_key_load("nowhere/key", &key));
    EXPECT_MESSAGE("nowhere/key: No such file");
    EXPECT_MESSAGE("copy it from the host that leads, or name it in TUTTI_KEY");
    EXPECT(mkdir("folder", 0700) == 0);
    EXPECT_ERR(TT_EENV, tt_cluster_key_load("folder", &key));
    EXPECT_MESSAGE("folder");
    EXPECT(mkfifo("fifo", 0600) == 0); /* nobody writes: reading it would never end */
    EXPECT_ERR(TT_EENV, tt_cluster_key_load("fifo", &key));
    EXPECT_MESSAGE("fifo");
}

static void expect_path(const char *own, const char *config, const char *home, const char *want)
{
    static const char *const names[] = {"TUTTI_KEY", "XDG_CONFIG_HOME", "HOME"};
    const char *values[] = {own, config, home};
    char *old[3], path[4096] = "";
    tt_err err;

    for (int i = 0; i < 3; i++) {
        old[i] = getenv(names[i]) ? strdup(getenv(names[i])) : NULL;
        if (values[i])
            setenv(names[i], values[i], 1);
        else
            unsetenv(names[i]);
    }
    err = tt_cluster_key_path(path);
    for (int i = 0; i < 3; i++) {
        if (old[i])
            setenv(names[i], old[i], 1);
        else
            unsetenv(names[i]);
        free(old[i]);
    }
    EXPECT_INT(want ? TT_OK : TT_EENV, err);
    if (want) EXPECT_STR(want, path);
}

TT_TEST(key, where_it_is_depends_on_the_environment)
{
    char path[5000];

    expect_path("/k", "/c", "/h", "/k");
    expect_path(NULL, "/c", "/h", "/c/tutti/key");
    expect_path("", "/c", "/h", "/c/tutti/key");
    expect_path(NULL, NULL, "/h", "/h/.config/tutti/key");
    expect_path("", "", "/h", "/h/.config/tutti/key");
    expect_path(NULL, NULL, NULL, NULL);
    EXPECT_MESSAGE("name a file in TUTTI_KEY");
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = 0;
    expect_path(path, NULL, NULL, NULL);
    EXPECT_MESSAGE("too long");
}
