#define _GNU_SOURCE
#include "test.h"

#include <limits.h>
#include <unistd.h>

#include "cluster/inner.h"

/* "a:4 b:0", for comparing. */
static const char *show(const tt_hosts *h)
{
    static char text[4096];
    size_t n = 0;

    text[0] = 0;
    for (int i = 0; i < h->count && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s:%d", i ? " " : "", h->host[i].name,
                              h->host[i].slots);
    return text;
}

static void expect_list(const char *want, const char *list)
{
    tt_hosts h;

    EXPECT_OK(tt_hosts_parse(list, &h));
    EXPECT_STR(want, show(&h));
    tt_hosts_free(&h);
}

static void expect_bad_list(const char *part, const char *list)
{
    tt_hosts h = {(tt_host *)&h, 7};

    EXPECT_ERR(TT_EINVAL, tt_hosts_parse(list, &h));
    EXPECT_MESSAGE(part);
    EXPECT(h.count == 0 && !h.host);
}

static void expect_file(const char *want, const char *text)
{
    tt_hosts h;

    tt_test_write("hosts", text, strlen(text));
    EXPECT_OK(tt_hosts_read("hosts", &h));
    EXPECT_STR(want, show(&h));
    tt_hosts_free(&h);
}

static void expect_bad_file(const char *part, const char *text)
{
    tt_hosts h;

    tt_test_write("hosts", text, strlen(text));
    EXPECT_ERR(TT_EINVAL, tt_hosts_read("hosts", &h));
    EXPECT_MESSAGE(part);
    EXPECT(h.count == 0 && !h.host);
}

static void expect_slurm(const char *want, const char *nodes, const char *tasks)
{
    tt_hosts h;

    EXPECT_OK(tt_hosts_slurm_parse(nodes, tasks, &h));
    EXPECT_STR(want, show(&h));
    tt_hosts_free(&h);
}

static void expect_bad_slurm(const char *part, const char *nodes, const char *tasks)
{
    tt_hosts h;

    EXPECT_ERR(TT_EINVAL, tt_hosts_slurm_parse(nodes, tasks, &h));
    EXPECT_MESSAGE(part);
    EXPECT(h.count == 0 && !h.host);
}

/* ---- lists ---- */

TT_TEST(hosts, a_list_has_names_and_slots)
{
    expect_list("a:4 b:4", "a:4,b:4");
    expect_list("a:0 b:0", "a,b");
    expect_list("node-1.cluster.org:2 10.0.0.7:1", " node-1.cluster.org:2 , 10.0.0.7:1\n");
    expect_list("fe80::1:2 ::1:0 fe80::1%eth0:3", "[fe80::1]:2,[::1],[fe80::1%eth0]:3");
}

TT_TEST(hosts, a_host_that_comes_twice_gets_both)
{
    expect_list("a:5 b:1", "a:2,b:1,a:3");
    expect_list("a:2", "a,a");
    expect_list("a:4", "a,a:3");
    expect_list("a:4", "a:3,a");
}

TT_TEST(hosts, slots_not_said_count_one)
{
    tt_hosts h;

    EXPECT_OK(tt_hosts_parse("a,b:3", &h));
    EXPECT_INT(4, tt_hosts_slots(&h));
    tt_hosts_free(&h);
    EXPECT_INT(0, tt_hosts_slots(&h));
    tt_hosts_free(&h);
}

TT_TEST(hosts, a_sum_of_slots_never_overflows)
{
    tt_str list = {0};
    tt_hosts h;

    for (int i = 0; i < 3000; i++) tt_str_add(&list, "%sh%d:1000000", i ? "," : "", i);
    EXPECT_OK(tt_hosts_parse(list.data, &h));
    EXPECT_INT(INT_MAX, tt_hosts_slots(&h));
    tt_hosts_free(&h);
    tt_str_free(&list);
    expect_bad_list("host a has 1000001 slots", "a:1000000,a");
}

TT_TEST(hosts, a_bad_list_is_told_by_its_entry)
{
    expect_bad_list("the list of hosts is empty", "");
    expect_bad_list("the list of hosts is empty", "  ");
    expect_bad_list("entry 2 of the list of hosts: the host '' is empty", "a,,b");
    expect_bad_list("entry 2 of the list of hosts: the host '' is empty", "a,");
    expect_bad_list("the host 'a:x' has 'x' slots: write a number from 1 to 1000000", "a:x");
    expect_bad_list("'0' slots", "a:0");
    expect_bad_list("'' slots", "a:");
    expect_bad_list("'-1' slots", "a:-1");
    expect_bad_list("'4k' slots", "a:4k");
    expect_bad_list("'99999999999999999999' slots", "a:99999999999999999999");
    expect_bad_list("has no name before its ':'", ":4");
    expect_bad_list("entry 2 of the list of hosts: the host 'a b' is no host name", "c,a b");
    expect_bad_list("'a?b' is no host name", "a\033b");
    expect_bad_list("has several colons", "a:4:");
}

TT_TEST(hosts, a_name_cannot_pass_for_an_option)
{
    expect_bad_list("is no host name", "-oProxyCommand=x");
    expect_bad_list("is no host name", "--host");
    expect_bad_list("is no host name", "a;reboot");
    expect_bad_list("is no host name", "$(reboot)");
    expect_bad_list("is no host name", "_a");
    expect_bad_list("is no host name", "me@a");
}

TT_TEST(hosts, ipv6_stands_in_brackets)
{
    expect_bad_list("stands in brackets, as in [fe80::1]:4", "fe80::1");
    expect_bad_list("has a '[' without a ']'", "[fe80::1");
    expect_bad_list("no IPv6 address between its brackets", "[fe80::1::2]:2");
    expect_bad_list("no IPv6 address between its brackets", "[]");
    expect_bad_list("no IPv6 address between its brackets", "[a]");
    expect_bad_list("no IPv6 address between its brackets", "[fe80::1%]");
    expect_bad_list("after its ']'", "[fe80::1]2");
}

TT_TEST(hosts, a_name_may_have_255_characters)
{
    char name[300];
    tt_hosts h;

    memset(name, 'a', sizeof name);
    name[255] = 0;
    EXPECT_OK(tt_hosts_parse(name, &h));
    EXPECT_INT(255, strlen(h.host[0].name));
    tt_hosts_free(&h);
    name[255] = 'a';
    name[256] = 0;
    expect_bad_list("longer than 255", name);
}

TT_TEST(hosts, this_host_has_many_names)
{
    char own[256] = "";

    EXPECT(gethostname(own, sizeof own - 1) == 0);
    EXPECT(tt_host_is_here("localhost") && tt_host_is_here("127.0.0.1") && tt_host_is_here("::1"));
    EXPECT(tt_host_is_here(own));
    EXPECT(!tt_host_is_here("10.9.8.7") && !tt_host_is_here("surely-not-this-host"));
    if (strlen(own) > 240 || strchr(own, '.')) return;
    strcat(own, ".cluster");
    EXPECT(tt_host_is_here(own));
}

/* ---- files ---- */

TT_TEST(hosts, a_file_may_be_in_any_manner)
{
    expect_file("a:4 b:2 c:0 d:3 e:5 fe80::1:2", "# our cluster\n"
                                                 "a slots=4 max_slots=8\n"
                                                 "\n"
                                                 "  b:2   # MPICH\r\n"
                                                 "c\n"
                                                 "d\tslots = 3 max-slots=3\n"
                                                 "e max_slots=9 slots =5#\n"
                                                 "[fe80::1]:2");
}

TT_TEST(hosts, a_line_for_each_slot_adds_up)
{
    expect_file("a:2 b:1", "a:1\na\nb:1\n");
}

TT_TEST(hosts, a_bad_file_is_told_by_its_line)
{
    expect_bad_file("hosts:2: the host 'a,b' is no host name", "a\na,b\n");
    expect_bad_file("hosts:5: the host 'b:0' has '0' slots", "# x\n\n\na\nb:0 # none\nc\n");
}

TT_TEST(hosts, each_mistake_of_a_line_has_its_sentence)
{
    expect_bad_file("hosts:1: 'b' stands behind the host: write slots=4", "a b\n");
    expect_bad_file("hosts:3: '4' stands behind the host", "a\n\nb 4");
    expect_bad_file("unknown word 'slot': did you mean 'slots'?", "a slot=4");
    expect_bad_file("unknown word 'user': a host takes slots and max_slots", "a user=me");
    expect_bad_file("unknown word ''", "a =4");
    expect_bad_file("slots is '': write a number", "a slots=");
    expect_bad_file("slots is 'many': write a number", "a slots=many");
    expect_bad_file("max_slots is '0': write a number", "a max_slots=0");
    expect_bad_file("slots is given twice", "a slots=4 slots=4");
    expect_bad_file("slots is given twice", "a:4 slots=4");
    expect_bad_file("host a has 4 slots but at most 2", "a slots=4 max_slots=2");
    expect_bad_file("hosts:2: the host '-x' is no host name", "a\n-x slots=1\n");
    expect_bad_file("unknown word 'slots?'", "a slots\001=1");
}

TT_TEST(hosts, a_file_without_hosts_is_a_mistake)
{
    tt_hosts h;

    expect_bad_file("hosts names no host", "");
    expect_bad_file("hosts names no host", "# nobody\n\n");
    EXPECT_ERR(TT_EINVAL, tt_hosts_read("nowhere", &h));
    EXPECT_MESSAGE("the file of hosts: cannot open nowhere");
}

TT_TEST(hosts, a_binary_file_is_no_list)
{
    static const char bytes[] = "a\n\0\0\x7f"
                                "ELF\n";
    tt_hosts h;

    tt_test_write("hosts", bytes, sizeof bytes);
    EXPECT_ERR(TT_EINVAL, tt_hosts_read("hosts", &h));
    EXPECT_MESSAGE("hosts:2: the host '???ELF' is no host name");
}

TT_TEST(hosts, a_list_has_at_most_100000_hosts)
{
    tt_str text = {0};
    tt_hosts h;
    double begun = tt_clock_s();

    for (int i = 0; i < 100000; i++) tt_str_add(&text, "n%d slots=2\n", i);
    EXPECT_OK(tt_hosts_read_text("x", text.data, text.size, &h));
    EXPECT_INT(100000, h.count);
    EXPECT_STR("n99999", h.host[99999].name);
    tt_hosts_free(&h);
    tt_str_add(&text, "n7\n"); /* one that is there already */
    EXPECT_OK(tt_hosts_read_text("x", text.data, text.size, &h));
    EXPECT_INT(3, h.host[7].slots);
    tt_hosts_free(&h);
    tt_str_add(&text, "one-more\n");
    EXPECT_ERR(TT_EINVAL, tt_hosts_read_text("x", text.data, text.size, &h));
    EXPECT_MESSAGE("x:100002: more than 100000 hosts");
    tt_str_free(&text);
    EXPECT(tt_clock_s() - begun < 5); /* not by comparing each with each */
}

/* ---- Slurm ---- */

TT_TEST(slurm, brackets_are_expanded)
{
    expect_slurm("n01:1 n02:1 n03:1 n7:1 gpu:1", "n[01-03,7],gpu", NULL);
    expect_slurm("a:1", "a", "");
    expect_slurm("n9:1 n10:1 n11:1", "n[9-11]", NULL);
    expect_slurm("n008:1 n009:1 n010:1", "n[008-010]", NULL);
    expect_slurm("n99:1 n100:1", "n[99-100]", NULL);
    expect_slurm("n1-ib:1 n2-ib:1", "n[1-2]-ib", NULL);
    expect_slurm("1:1 2:1", "[1-2]", NULL);
}

TT_TEST(slurm, several_brackets_are_all_pairs)
{
    expect_slurm("r1n01:1 r1n02:1 r2n01:1 r2n02:1 r4n01:1 r4n02:1", "r[1-2,4]n[01-02]", NULL);
    expect_slurm("a12:1 a13:1", "a[1][2-3]", NULL);
}

TT_TEST(slurm, tasks_become_slots)
{
    expect_slurm("n1:4 n2:4 g:1", "n[1-2],g", "4(x2),1");
    expect_slurm("a:3", "a", "3");
    expect_slurm("a:16 b:16", "a,b", "16(x2)");
    expect_slurm("a:5 b:1", "a,b,a", "2,1,3");
}

/* The words of Slurm 22.05 for an allocation, as "NAME=value ..."; all others are unset. */
static void set_slurm(const char *words)
{
    static const char *const names[] = {"SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE",
                                        "SLURM_NTASKS", "SLURM_STEP_ID",
                                        "SLURM_STEP_TASKS_PER_NODE"};
    char text[512], *rest = text, *word;

    for (int i = 0; i < TT_COUNT(names); i++) unsetenv(names[i]);
    snprintf(text, sizeof text, "%s", words);
    while ((word = strsep(&rest, " ")))
        if (*word) {
            char *value = strchr(word, '=');
            *value++ = 0;
            setenv(word, value, 1);
        }
}

static void expect_allocation(const char *want, int ranks, const char *words)
{
    tt_hosts h;

    set_slurm(words);
    EXPECT_OK(tt_hosts_slurm(ranks, &h));
    EXPECT_STR(want, show(&h));
    tt_hosts_free(&h);
    set_slurm("");
}

TT_TEST(slurm, the_environment_tells_it)
{
    expect_allocation("", 0, "");
    expect_allocation("", 4, "");
    expect_allocation("n1:2 n2:2", 0,
                      "SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2(x2) SLURM_NTASKS=4");
    expect_allocation("n1:2 n2:1", 3,
                      "SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2,1 SLURM_NTASKS=3");
}

TT_TEST(slurm, without_tasks_there_is_one_a_host) /* sbatch --nodes=2 --exclusive */
{
    expect_allocation("n1:1 n2:1", 0, "SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=64(x2)");
    expect_allocation("n1:64 n2:64", 8, "SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=64(x2)");
}

TT_TEST(slurm, this_host_takes_as_many_as_are_wanted) /* sbatch -n 1 -c 8 */
{
    char words[400], want[300], here[256];
    tt_hosts h;

    EXPECT(!gethostname(here, sizeof here));
    snprintf(words, sizeof words, "SLURM_JOB_NODELIST=%s SLURM_TASKS_PER_NODE=1 SLURM_NTASKS=1",
             here);
    snprintf(want, sizeof want, "%s:8", here);
    expect_allocation(want, 8, words);
    set_slurm("SLURM_JOB_NODELIST=elsewhere SLURM_TASKS_PER_NODE=1 SLURM_NTASKS=1");
    EXPECT_ERR(TT_EINVAL, tt_hosts_slurm(8, &h));
    EXPECT_MESSAGE("has 1 task on 1 host: ask sbatch or salloc for --ntasks=8");
    set_slurm("SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2(x2) SLURM_NTASKS=4");
    EXPECT_ERR(TT_EINVAL, tt_hosts_slurm(5, &h));
    EXPECT_MESSAGE(
        "5 ranks do not fit into this allocation of Slurm, which has 4 tasks on 2 hosts");
    EXPECT(h.count == 0 && !h.host);
    set_slurm("");
}

/* srun -N 1 -n 1 in an allocation of two hosts: the list is of the job, the tasks are of the step.
 */
TT_TEST(slurm, a_step_is_no_allocation)
{
    static const char step[] = "SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=1 SLURM_NTASKS=1 "
                               "SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=1";
    expect_allocation("", 0, step);
    expect_allocation("", 4, step);
    /* the shell of salloc, where it runs on the first host */
    expect_allocation("n1:2 n2:1", 0,
                      "SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2,1 SLURM_NTASKS=3 "
                      "SLURM_STEP_ID=4294967290 SLURM_STEP_TASKS_PER_NODE=1");
}

TT_TEST(slurm, a_bad_list_is_told_by_its_place)
{
    expect_bad_slurm("'n[1-2': a '[' without a ']' at character 2", "n[1-2", NULL);
    expect_bad_slurm("a '[' without a ']' at character 4", "a,n[1,b", NULL);
    expect_bad_slurm("a ']' without a '[' at character 2", "n]1[", NULL);
    expect_bad_slurm("a '[' inside of brackets at character 4", "n[1[2]]", NULL);
    expect_bad_slurm("a number is missing at character 3", "n[]", NULL);
    expect_bad_slurm("a number is missing at character 5", "n[1,]", NULL);
    expect_bad_slurm("a number is missing at character 5", "n[1-]", NULL);
    expect_bad_slurm("a number is missing at character 3", "n[-1]", NULL);
    expect_bad_slurm("a number is missing at character 3", "n[a]", NULL);
    expect_bad_slurm("a range runs backwards at character 3", "n[9-3]", NULL);
    expect_bad_slurm("something other than ',' or ']' stands at character 6", "n[1-2-3]", NULL);
    expect_bad_slurm("something other than ',' or ']' stands at character 4", "n[1 ]", NULL);
}

TT_TEST(slurm, names_are_checked_too)
{
    expect_bad_slurm("a name is missing at character 1", ",a", NULL);
    expect_bad_slurm("a name is missing at character 3", "a,", NULL);
    expect_bad_slurm("the host '-x1' is no host name", "-x[1-2]", NULL);
    expect_bad_slurm("the host 'a b' is no host name", "a b", NULL);
    expect_bad_slurm("has a ':'", "a:4", NULL);
}

TT_TEST(slurm, absurd_lists_end_soon)
{
    char name[700], deep[1000];
    double begun = tt_clock_s();

    expect_bad_slurm("a range of more than 100,000 hosts at character 3", "n[0-999999999]", NULL);
    expect_bad_slurm("a number is too long at character 3", "n[1234567890123456789]", NULL);
    expect_bad_slurm("a number is too long at character 5", "n[0-99999999999999999999]", NULL);
    expect_bad_slurm("more than 100,000 hosts", "n[0-999][0-999][0-999][0-999]", NULL);
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    expect_bad_slurm("the name of a host is too long", name, NULL);
    memcpy(name + 300, "[1-9]", 6);
    expect_bad_slurm("longer than 255", name, NULL);
    for (int i = 0; i < 300; i++) memcpy(deep + 3 * i, "[1]", 4);
    expect_bad_slurm("is longer than 255", deep, NULL);
    expect_bad_slurm("more than 100,000 hosts", strcpy(deep + 240 * 3, "[1-999][1-999]") - 240 * 3,
                     NULL);
    EXPECT(tt_clock_s() - begun < 5);
}

TT_TEST(slurm, a_hundred_thousand_hosts_are_fine)
{
    tt_hosts h;

    EXPECT_OK(tt_hosts_slurm_parse("n[00000-99999]", "2(x100000)", &h));
    EXPECT_INT(100000, h.count);
    EXPECT_INT(200000, tt_hosts_slots(&h));
    EXPECT_STR("n00042", h.host[42].name);
    tt_hosts_free(&h);
}

TT_TEST(slurm, tasks_must_fit_the_hosts)
{
    expect_bad_slurm("SLURM_TASKS_PER_NODE speaks of 2 hosts, SLURM_JOB_NODELIST of 3", "n[1-3]",
                     "4(x2)");
    expect_bad_slurm("SLURM_TASKS_PER_NODE speaks of 2 hosts, SLURM_JOB_NODELIST of 1", "n", "1,1");
    expect_bad_slurm("SLURM_TASKS_PER_NODE is '4(y2)': something other than ','", "n", "4(y2)");
    expect_bad_slurm("a number of ranks is none", "n", "0");
    expect_bad_slurm("a number of ranks is none", "n", "4,");
    expect_bad_slurm("a number of ranks is none", "n", "x");
    expect_bad_slurm("a number of ranks is none", "n", "99999999999999999999");
    expect_bad_slurm("a number of hosts is none", "n", "4(x0)");
    expect_bad_slurm("a number of hosts is none", "n", "4(x2");
    expect_bad_slurm("a number of hosts is none", "n", "4(x)");
    expect_bad_slurm("too many hosts", "n", "4(x100000),1");
}
