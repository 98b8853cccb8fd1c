/* Launching, with both MPIs: which one the program was built for only decides the default. */
#define _GNU_SOURCE
#include "test.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster/inner.h"

static const char *const SETTINGS[] = {"OMPI_MCA_btl",         "OMPI_MCA_plm", "UCX_TLS",
                                       "HYDRA_IFACE",          "SLURM_JOB_ID", "SLURM_JOB_NODELIST",
                                       "SLURM_TASKS_PER_NODE", "SLURM_JOBID",  "SLURM_NODELIST",
                                       "HWLOC_COMPONENTS"};

/* Each test begins with an environment in which nobody has set anything: all that is ours by name
 * would reach the ranks. */
static void forget_settings(void)
{
    for (int i = 0; i < TT_COUNT(SETTINGS); i++) unsetenv(SETTINGS[i]);
    for (char **e = environ; *e;) {
        char *name = strndup(*e, strcspn(*e, "="));
        bool ours = !strncmp(name, "TUTTI_", 6);
        if (ours) unsetenv(name);
        free(name);
        e = ours ? environ : e + 1; /* the rest has moved up */
    }
}

static void write_script(const char *path, const char *text)
{
    tt_test_write(path, text, strlen(text));
    EXPECT(chmod(path, 0755) == 0);
}

/* ---- the command line ---- */

/* Folders with names of their own that no test knows are shown as D and S, this folder as CWD. */
static char *join(const char **words, tt_arena *a)
{
    tt_str s = {0};
    char cwd[4096], *text;

    EXPECT(getcwd(cwd, sizeof cwd));
    for (; words && *words; words++) {
        const char *w = *words, *shm = strstr(w, "/dev/shm/tutti-"), *folder = strstr(w, "/w1");
        if (!strncmp(w, "OMPI_ALLOW_RUN_AS_ROOT", 22)) continue; /* only root needs it */
        tt_str_add(&s, "%s", s.size ? " " : "");
        if (shm)
            tt_str_add(&s, "%.*sS", (int)(shm - w), w);
        else if (folder && strstr(w, cwd))
            tt_str_add(&s, "%.*sD", (int)(strstr(w, cwd) - w), w);
        else
            tt_str_add(&s, "%s", strcmp(w, cwd) ? w : "CWD");
    }
    text = tt_arena_strdup(a, s.data ? s.data : "");
    tt_str_free(&s);
    return text;
}

static const char *const WORKER[] = {"/bin/worker", "an argument", NULL};

static void expect_plan(tt_mpi mpi, const char *hosts, const char *const *env, const char *argv,
                        const char *set)
{
    tt_arena *a = tt_arena_open(4096);
    tt_launch_opts o = {.ranks = 3, .argv = WORKER, .env = env, .folder = "w1"};
    tt_launch_line line;
    tt_hosts h = {0};

    if (hosts) EXPECT_OK(tt_hosts_parse(hosts, &h));
    o.hosts = &h;
    EXPECT_OK(tt_launch_plan_by(mpi, &o, NULL, a, &line));
    EXPECT_STR(argv, join(line.argv, a));
    EXPECT_STR(set, join(line.env, a));
    tt_hosts_free(&h);
    tt_arena_close(a);
}

/* Programs that are there whatever is installed: PATH has this folder alone. */
static void pretend_programs(const char *names)
{
    char name[64], cwd[4096];
    int n;

    EXPECT(mkdir("bin", 0755) == 0 && getcwd(cwd, sizeof cwd - 8));
    for (; sscanf(names, "%63s%n", name, &n) == 1; names += n) {
        char path[128];
        snprintf(path, sizeof path, "bin/%s", name);
        write_script(path, "#!/bin/sh\n");
    }
    setenv("PATH", strcat(cwd, "/bin"), 1);
}

static char *saved_path;
static void save_path(void)
{
    if (!saved_path) saved_path = strdup(getenv("PATH"));
    setenv("PATH", saved_path, 1);
    forget_settings();
}

TT_TEST(plan, one_host_takes_the_fast_settings)
{
    save_path();
    pretend_programs("mpirun.openmpi mpiexec.mpich");
    expect_plan(TT_BY_OPENMPI, NULL, NULL,
                "mpirun.openmpi -n 3 --bind-to none --mca pml ob1 --mca btl vader,self --mca osc "
                "^ucx --mca shmem ^posix --mca mpi_yield_when_idle 1 --oversubscribe --mca plm "
                "isolated --mca ras ^slurm,gridengine,tm,lsf,alps --mca orte_tmpdir_base D --mca "
                "btl_vader_backing_directory S /bin/worker an argument",
                "TMPDIR=D HWLOC_COMPONENTS=linux,stop");
    expect_plan(TT_BY_MPICH, NULL, NULL,
                "mpiexec.mpich -n 3 -disable-auto-cleanup -iface lo -launcher fork -rmk user "
                "/bin/worker an argument",
                "TMPDIR=D HWLOC_COMPONENTS=linux,stop UCX_TLS=posix,self UCX_POSIX_DIR=S "
                "MPIR_CVAR_NOLOCAL=1");
    save_path();
}

TT_TEST(plan, this_host_by_name_is_one_host_too)
{
    static const char argv[] = "mpiexec.mpich -n 3 -disable-auto-cleanup -iface lo -launcher fork "
                               "-rmk user /bin/worker an argument";
    char own[300] = "";

    save_path();
    pretend_programs("mpiexec.mpich");
    setenv("UCX_TLS", "x", 1);
    expect_plan(TT_BY_MPICH, "localhost:3", NULL, argv,
                "TMPDIR=D HWLOC_COMPONENTS=linux,stop UCX_POSIX_DIR=S MPIR_CVAR_NOLOCAL=1");
    EXPECT(gethostname(own, 256) == 0);
    expect_plan(TT_BY_MPICH, strcat(own, ":2,[::1]:1"), NULL, argv,
                "TMPDIR=D HWLOC_COMPONENTS=linux,stop UCX_POSIX_DIR=S MPIR_CVAR_NOLOCAL=1");
    save_path();
}

TT_TEST(plan, several_hosts_are_given_in_the_launchers_form)
{
    static const char *const env[] = {"A=1 2", "TUTTI_JOB=x=y", NULL};

    save_path();
    pretend_programs("mpirun.openmpi mpiexec.mpich ssh");
    expect_plan(TT_BY_OPENMPI, "hosta:2,hostb", env,
                "mpirun.openmpi -n 3 --bind-to none --mca pml ob1 --mca btl vader,tcp,self --mca "
                "osc ^ucx --mca shmem ^posix --mca mpi_yield_when_idle 1 --mca "
                "orte_keep_fqdn_hostnames 1 --host "
                "hosta:2,hostb:1 --map-by slot --wdir "
                "CWD -x A -x TUTTI_JOB /bin/worker an argument",
                "TMPDIR=D A=1 2 TUTTI_JOB=x=y");
    expect_plan(TT_BY_OPENMPI, "hosta:2,localhost:4", NULL, /* it would begin with this host */
                "mpirun.openmpi -n 3 --bind-to none --mca pml ob1 --mca btl vader,tcp,self --mca "
                "osc ^ucx --mca shmem ^posix --mca mpi_yield_when_idle 1 --mca "
                "orte_keep_fqdn_hostnames 1 --host "
                "hosta,hosta,localhost --map-by seq --wdir CWD /bin/worker an argument",
                "TMPDIR=D");
    expect_plan(TT_BY_MPICH, "hosta.invalid:2,hostb", env,
                "mpiexec.mpich -n 3 -disable-auto-cleanup -hosts hosta.invalid:2,hostb:1 -wdir CWD "
                "-genv A 1 2 -genv "
                "TUTTI_JOB x=y /bin/worker an argument",
                "UCX_TLS=tcp,posix,self A=1 2 TUTTI_JOB=x=y");
    save_path();
}

TT_TEST(plan, srun_takes_no_folder_of_ours_along)
{
    save_path();
    pretend_programs("mpirun.openmpi");
    setenv("SLURM_JOB_ID", "7", 1);
    expect_plan(TT_BY_OPENMPI, "hosta:2,hostb", NULL,
                "mpirun.openmpi -n 3 --bind-to none --mca pml ob1 --mca btl vader,tcp,self --mca "
                "osc ^ucx --mca shmem ^posix --mca mpi_yield_when_idle 1 --mca "
                "orte_keep_fqdn_hostnames 1 --host "
                "hosta:2,hostb:1 --map-by slot --wdir CWD /bin/worker an argument",
                "");
    save_path();
}

TT_TEST(plan, the_remote_shell_may_be_another)
{
    save_path();
    pretend_programs("mpirun.openmpi mpiexec.mpich myrsh");
    setenv("TUTTI_RSH", "myrsh -p 22 -q", 1);
    expect_plan(TT_BY_OPENMPI, "hosta:2,hostb", NULL,
                "mpirun.openmpi -n 3 --bind-to none --mca pml ob1 --mca btl vader,tcp,self --mca "
                "osc ^ucx --mca shmem ^posix --mca mpi_yield_when_idle 1 --mca "
                "orte_keep_fqdn_hostnames 1 --host "
                "hosta:2,hostb:1 --map-by slot --mca "
                "plm rsh --mca ras ^slurm,gridengine,tm,lsf,alps --mca plm_rsh_agent myrsh -p 22 "
                "-q --wdir CWD /bin/worker an argument",
                "TMPDIR=D");
    expect_plan(TT_BY_MPICH, "hosta.invalid:2,hostb", NULL,
                "mpiexec.mpich -n 3 -disable-auto-cleanup -hosts hosta.invalid:2,hostb:1 -launcher "
                "ssh -launcher-exec "
                "myrsh -wdir CWD /bin/worker an argument",
                "HYDRA_LAUNCHER_EXTRA_ARGS=-p 22 -q UCX_TLS=tcp,posix,self");
    save_path();
}

TT_TEST(plan, what_the_user_has_set_wins)
{
    static const char *const env[] = {"TMPDIR=/mine", NULL};

    save_path();
    pretend_programs("mpirun.openmpi mpiexec.mpich");
    setenv("OMPI_MCA_btl", "tcp,self", 1);
    setenv("OMPI_MCA_plm", "rsh", 1);
    expect_plan(TT_BY_OPENMPI, NULL, env,
                "mpirun.openmpi -n 3 --bind-to none --mca pml ob1 --mca osc ^ucx --mca "
                "shmem ^posix --mca mpi_yield_when_idle 1 --oversubscribe --mca ras "
                "^slurm,gridengine,tm,lsf,alps "
                "--mca orte_tmpdir_base D --mca btl_vader_backing_directory S /bin/worker an "
                "argument",
                "TMPDIR=/mine HWLOC_COMPONENTS=linux,stop");
    setenv("HYDRA_IFACE", "eth0", 1);
    setenv("UCX_TLS", "tcp", 1);
    setenv("HWLOC_COMPONENTS", "x86", 1);
    expect_plan(
        TT_BY_MPICH, NULL, NULL,
        "mpiexec.mpich -n 3 -disable-auto-cleanup -launcher fork -rmk user /bin/worker an argument",
        "TMPDIR=D UCX_POSIX_DIR=S MPIR_CVAR_NOLOCAL=1");
    save_path();
}

TT_TEST(plan, hydra_is_told_how_others_reach_this_host)
{
    tt_arena *a = tt_arena_open(4096);
    tt_launch_opts o = {.ranks = 1, .argv = WORKER, .folder = "w1"};
    tt_launch_line line;
    tt_host there = {.name = "192.0.2.77", .slots = 1}; /* an address for examples */
    tt_hosts h = {&there, 1};
    const char *argv, *at;

    save_path();
    pretend_programs("mpiexec.mpich ssh");
    o.hosts = &h;
    EXPECT_OK(tt_launch_plan_by(TT_BY_MPICH, &o, NULL, a, &line));
    argv = join(line.argv, a);
    at = strstr(argv, " -localhost ");
    if (at) EXPECT(strspn(at + 12, "0123456789.") >= 7 && strncmp(at + 12, "127.", 4));
    tt_arena_close(a);
    save_path();
}

TT_TEST(plan, the_launcher_is_found_by_its_names)
{
    tt_arena *a = tt_arena_open(4096);
    tt_launch_opts o = {.ranks = 1, .argv = WORKER, .folder = "w1"};
    tt_launch_line line;

    save_path();
    pretend_programs("mpirun mpiexec");
    EXPECT_OK(tt_launch_plan_by(TT_BY_OPENMPI, &o, NULL, a, &line));
    EXPECT_STR("mpirun", line.argv[0]);
    EXPECT_OK(tt_launch_plan_by(TT_BY_MPICH, &o, NULL, a, &line));
    EXPECT_STR("mpiexec", line.argv[0]);
    write_script("bin/mpirun.openmpi", "#!/bin/sh\n");
    EXPECT_OK(tt_launch_plan_by(TT_BY_OPENMPI, &o, NULL, a, &line));
    EXPECT_STR("mpirun.openmpi", line.argv[0]);
    write_script("other", "#!/bin/sh\n");
    setenv("TUTTI_MPIRUN", "./other", 1);
    EXPECT_OK(tt_launch_plan_by(TT_BY_MPICH, &o, NULL, a, &line));
    EXPECT_STR("./other", line.argv[0]);
    tt_arena_close(a);
    save_path();
}

static void expect_no_plan(tt_err code, const char *part, tt_mpi mpi, const char *hosts, int ranks)
{
    tt_arena *a = tt_arena_open(4096);
    tt_launch_opts o = {.ranks = ranks, .argv = WORKER, .folder = "w1"};
    tt_launch_line line;
    tt_hosts h = {0};
    tt_err err;

    if (hosts) EXPECT_OK(tt_hosts_parse(hosts, &h));
    o.hosts = &h;
    err = tt_launch_plan_by(mpi, &o, NULL, a, &line);
    tt_hosts_free(&h);
    EXPECT_INT(code, err);
    EXPECT_MESSAGE(part);
    EXPECT(!line.argv && !line.env);
    tt_arena_close(a);
}

TT_TEST(plan, the_launcher_of_another_mpi_is_not_taken_for_ours)
{
    save_path();
    pretend_programs("orterun mpiexec.hydra");
    EXPECT(!symlink("orterun", "bin/mpiexec") && !symlink("mpiexec.hydra", "bin/mpirun"));
    expect_no_plan(TT_EENV, "apt install openmpi-bin", TT_BY_OPENMPI, NULL, 2);
    EXPECT(!unlink("bin/mpiexec.hydra"));
    expect_no_plan(TT_EENV, "apt install mpich", TT_BY_MPICH, NULL, 2);
    save_path();
}

TT_TEST(plan, what_is_not_installed_is_named)
{
    save_path();
    pretend_programs("");
    expect_no_plan(TT_EENV, "mpirun (Open MPI), which starts the ranks, is not installed",
                   TT_BY_OPENMPI, NULL, 2);
    EXPECT_MESSAGE("apt install openmpi-bin");
    expect_no_plan(TT_EENV, "apt install mpich", TT_BY_MPICH, NULL, 2);
    setenv("TUTTI_MPIRUN", "nowhere/mpirun", 1);
    expect_no_plan(TT_EENV, "TUTTI_MPIRUN is nowhere/mpirun: there is no such program",
                   TT_BY_OPENMPI, NULL, 2);
    write_script("bin/mpirun", "#!/bin/sh\n");
    setenv("TUTTI_MPIRUN", "mpirun", 1);
    expect_no_plan(TT_EENV, "apt install openssh-client", TT_BY_OPENMPI, "hosta:2", 2);
    setenv("TUTTI_RSH", "nossh -q", 1);
    expect_no_plan(TT_EENV, "TUTTI_RSH is nossh -q: there is no such program", TT_BY_OPENMPI,
                   "hosta:2", 2);
    save_path();
}

TT_TEST(plan, ranks_must_fit_the_slots)
{
    save_path();
    pretend_programs("mpirun.openmpi mpiexec.mpich ssh");
    expect_no_plan(TT_EINVAL, "4 ranks do not fit into the 3 slots of the 2 hosts given",
                   TT_BY_OPENMPI, "hosta:2,hostb", 4);
    expect_no_plan(TT_EINVAL, "2 ranks do not fit into the 1 slot of the 1 host given", TT_BY_MPICH,
                   "localhost", 2);
    expect_no_plan(TT_EINVAL, "0 ranks", TT_BY_OPENMPI, NULL, 0);
    save_path();
}

TT_TEST(plan, hosts_the_launcher_cannot_take_are_refused)
{
    tt_str many = {0};

    save_path();
    pretend_programs("mpirun.openmpi mpiexec.mpich ssh");
    expect_no_plan(TT_EINVAL, "host fe80::1: mpirun (Open MPI) takes no IPv6 addresses",
                   TT_BY_OPENMPI, "[fe80::1]:2", 2);
    expect_no_plan(TT_EINVAL, "host fe80::1: mpiexec (MPICH) takes no IPv6 addresses", TT_BY_MPICH,
                   "[fe80::1]:2", 2);
    expect_no_plan(TT_EINVAL, "host a_b: mpirun (Open MPI) takes no names with '_'", TT_BY_OPENMPI,
                   "a_b:2", 2);
    for (int i = 0; i < 20000; i++) tt_str_add(&many, "%snode%05d:64", i ? "," : "", i);
    expect_no_plan(TT_EINVAL, "20000 hosts are more than fit", TT_BY_OPENMPI, many.data, 2);
    tt_str_free(&many);
    save_path();
}

/* ---- worlds ---- */

typedef struct world {
    tt_launch l;
    tt_str out, err;
    int code;
} world;

static bool installed(tt_mpi mpi)
{
    tt_arena *a = tt_arena_open(4096);
    tt_launch_opts o = {.ranks = 1, .argv = WORKER, .folder = "w1"};
    tt_launch_line line;
    tt_err err = tt_launch_plan_by(mpi, &o, NULL, a, &line);

    tt_arena_close(a);
    return !err;
}

static void start_world(world *w, tt_mpi mpi, int ranks, const char *hosts, const char *script)
{
    const char *argv[] = {"/bin/sh", "-c", script, NULL}, *env[] = {"NOTE=a;b \"c\"", NULL};
    tt_launch_opts o = {.ranks = ranks, .argv = argv, .env = env, .folder = "w1"};
    tt_hosts h = {0};
    tt_err err;

    *w = (world){.code = -1};
    if (hosts) EXPECT_OK(tt_hosts_parse(hosts, &h));
    o.hosts = &h;
    err = tt_launch_start_by(mpi, &o, &w->l);
    tt_hosts_free(&h);
    EXPECT_OK(err);
}

static void read_some(world *w)
{
    char buf[4096];
    ssize_t n;

    while ((n = read(w->l.out, buf, sizeof buf)) > 0) tt_str_put(&w->out, buf, (size_t)n);
    while ((n = read(w->l.err, buf, sizeof buf)) > 0) tt_str_put(&w->err, buf, (size_t)n);
}

static int count_lines(const world *w, const char *with)
{
    int n = 0;

    for (const char *p = w->out.data; p && (p = strstr(p, with)); p++) n++;
    return n;
}

/* Until so many lines have come that hold `with`. */
static void wait_lines(world *w, const char *with, int count)
{
    double until = tt_clock_s() + 20;

    while (count_lines(w, with) < count) {
        if (tt_clock_s() > until || tt_launch_ended(&w->l, NULL))
            FAIL("no %d lines with '%s' but\n%s\n%s", count, with, w->out.data ? w->out.data : "",
                 w->err.data ? w->err.data : "");
        poll(NULL, 0, 2);
        read_some(w);
    }
}

static void wait_end(world *w)
{
    double until = tt_clock_s() + 20;

    while (!tt_launch_ended(&w->l, &w->code)) {
        if (tt_clock_s() > until) FAIL("no end");
        poll(NULL, 0, 2);
        read_some(w);
    }
    read_some(w);
}

static void end_world(world *w)
{
    tt_launch_close(&w->l);
    tt_str_free(&w->out);
    tt_str_free(&w->err);
}

static bool is_alive(int pid)
{
    char path[64], state = 'X';
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!(f = fopen(path, "r"))) return false;
    if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
    fclose(f);
    return state != 'Z' && state != 'X';
}

/* The processes that wrote "pid 123" are gone, and so are the folders. */
static void expect_gone(const world *w, int count)
{
    int n = 0, pid;

    for (const char *p = w->out.data; p && (p = strstr(p, "pid ")); p += 4, n++) {
        EXPECT(sscanf(p, "pid %d", &pid) == 1);
        if (is_alive(pid)) FAIL("process %d is still there", pid);
    }
    EXPECT_INT(count, n);
    EXPECT(!tt_file_exists("w1"));
}

static void each_mpi(void (*fn)(tt_mpi mpi))
{
    int tried = 0;

    save_path();
    for (tt_mpi mpi = TT_BY_OPENMPI; mpi <= TT_BY_MPICH; mpi++)
        if (installed(mpi)) {
            fn(mpi);
            tried++;
        }
    if (!tried) tt_test_skip("no MPI is installed");
}

static void say_ranks(tt_mpi mpi)
{
    world w;
    char line[64];

    start_world(&w, mpi, 3, NULL,
                "echo \"rank $OMPI_COMM_WORLD_RANK$PMI_RANK note $NOTE mark $TUTTI_WORLD\"");
    EXPECT(tt_file_exists("w1"));
    wait_end(&w);
    EXPECT_INT(0, w.code);
    for (int i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "rank %d note a;b \"c\" mark %.8s", i, w.l.mark);
        EXPECT_INT(1, count_lines(&w, line));
    }
    EXPECT(!tt_file_exists("w1"));
    EXPECT(tt_launch_ended(&w.l, &w.code) && w.code == 0); /* it may be asked again */
    end_world(&w);
    end_world(&w);
}

TT_TEST(launch, a_world_has_its_ranks)
{
    each_mpi(say_ranks);
}

static void fail_with_7(tt_mpi mpi)
{
    world w;

    setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 1); /* else it takes 2 s to believe it */
    start_world(&w, mpi, 2, NULL, "exit 7");
    unsetenv("OMPI_MCA_odls_base_sigkill_timeout");
    wait_end(&w);
    EXPECT_INT(7, w.code);
    end_world(&w);
}

TT_TEST(launch, exit_codes_are_passed_on)
{
    each_mpi(fail_with_7);
}

static void catch_usr1(tt_mpi mpi)
{
    world w;

    start_world(&w, mpi, 2, NULL,
                "trap 'echo caught; exit 0' USR1; echo ready; while :; do sleep 0.05; done");
    wait_lines(&w, "ready", 2);
    tt_launch_signal(&w.l, SIGUSR1);
    wait_end(&w);
    EXPECT_INT(2, count_lines(&w, "caught"));
    EXPECT_INT(0, w.code);
    end_world(&w);
}

TT_TEST(launch, sigusr1_reaches_the_ranks)
{
    each_mpi(catch_usr1);
}

/* As a queue does it: to all processes of a job. */
static void tell_all(tt_mpi mpi)
{
    world w;

    start_world(&w, mpi, 2, NULL,
                "trap : TERM; trap 'echo caught; exit 0' USR1; echo ready; while :; do sleep 0.05; "
                "done");
    wait_lines(&w, "ready", 2);
    EXPECT(tt_mark_signal(w.l.mark, SIGTERM, 0) >= 3);
    EXPECT(!kill(w.l.pid, SIGTERM));
    poll(NULL, 0, 300);
    tt_launch_signal(&w.l, SIGUSR1);
    wait_end(&w);
    EXPECT_INT(2, count_lines(&w, "caught"));
    EXPECT_INT(0, w.code);
    end_world(&w);
}

TT_TEST(launch, sigterm_to_all_is_for_the_ranks)
{
    each_mpi(tell_all);
}

static void leave_nothing(tt_mpi mpi)
{
    world w;

    start_world(&w, mpi, 2, NULL, "echo pid $$; exec sleep 100");
    wait_lines(&w, "pid ", 2);
    tt_launch_close(&w.l);
    expect_gone(&w, 2);
    EXPECT(w.l.pid == 0);
    end_world(&w);
}

TT_TEST(launch, nothing_is_left_after_close)
{
    each_mpi(leave_nothing);
}

TT_TEST(launch, who_hides_is_killed_after_the_grace)
{
    double begun;
    world w;

    save_path();
    if (!installed(TT_BY_MPICH)) tt_test_skip("MPICH is not installed");
    /* deaf, with a child in a session of its own and one without our environment */
    start_world(&w, TT_BY_MPICH, 2, NULL,
                "trap '' TERM; setsid sleep 100 & a=$!; env -i setsid /bin/sleep 100 & "
                "echo pid $$ pid $a pid $!; while :; do sleep 0.1; done");
    wait_lines(&w, "pid ", 6);
    begun = tt_clock_s();
    tt_launch_close(&w.l);
    EXPECT(tt_clock_s() - begun > 1.5 && tt_clock_s() - begun < 6);
    expect_gone(&w, 6);
    end_world(&w);
}

static void end_at_once(tt_mpi mpi)
{
    double begun;
    world w;

    start_world(&w, mpi, 2, NULL,
                "trap '' TERM; echo pid $$; kill -STOP $$; while :; do sleep 0.1; done");
    wait_lines(&w, "pid ", 2);
    begun = tt_clock_s();
    tt_launch_signal(&w.l, SIGKILL);
    wait_end(&w);
    EXPECT_INT(128 + SIGKILL, w.code);
    tt_launch_close(&w.l);
    EXPECT(tt_clock_s() - begun < 1.5);
    expect_gone(&w, 2);
    end_world(&w);
}

TT_TEST(launch, sigkill_leaves_no_grace)
{
    each_mpi(end_at_once);
}

/* A supervisor in a process of its own; what its world writes goes to `to`. No expectations here:
 * the child must not go on with the other tests. */
static int fork_supervisor(tt_mpi mpi, const char *home, int to)
{
    const char *argv[] = {"/bin/sh", "-c", "echo pid $$; exec sleep 100", NULL};
    tt_launch_opts o = {.ranks = 2, .argv = argv, .folder = "w1", .home = home};
    int pid = fork();
    world w = {0};

    if (pid) return pid;
    if (tt_launch_start_by(mpi, &o, &w.l)) _exit(1);
    for (double until = tt_clock_s() + 30; count_lines(&w, "\n") < 2;) {
        if (tt_clock_s() > until) _exit(1);
        poll(NULL, 0, 2);
        read_some(&w);
    }
    (void)!write(to, w.out.data, w.out.size);
    for (;;) pause();
}

static void kill_supervisor_of(tt_mpi mpi, const char *home)
{
    int ends[2], status, pid;
    char text[256];
    double until;
    ssize_t n;
    world w = {0};

    EXPECT(pipe2(ends, O_CLOEXEC) == 0);
    pid = fork_supervisor(mpi, home, ends[1]);
    close(ends[1]);
    n = read(ends[0], text, sizeof text);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    close(ends[0]);
    EXPECT(n > 0);
    tt_str_put(&w.out, text, (size_t)n);
    until = tt_clock_s() + 10;
    while (tt_file_exists("w1") && tt_clock_s() < until) poll(NULL, 0, 10);
    expect_gone(&w, 2);
    end_world(&w);
}

static void lose_supervisor(tt_mpi mpi)
{
    kill_supervisor_of(mpi, NULL);
}

TT_TEST(launch, a_world_does_not_outlive_its_supervisor)
{
    each_mpi(lose_supervisor);
}

/* Where another world's folder is left, so is the lock by which the next supervisor knows that it
 * may clear up. */
static void leave_home_behind(tt_mpi mpi)
{
    char home[PATH_MAX];
    double until;

    EXPECT(!mkdir("home", 0700) && !mkdir("home/world-9", 0700));
    EXPECT(realpath("home", home) != NULL);
    EXPECT_OK(tt_file_write("home/lock", "", 0));
    kill_supervisor_of(mpi, home);
    poll(NULL, 0, 100); /* the keeper is at it when its world's folder is gone */
    EXPECT(tt_file_exists("home/lock") && tt_file_exists("home/world-9"));
    EXPECT(!rmdir("home/world-9"));
    kill_supervisor_of(mpi, home);
    until = tt_clock_s() + 10;
    while (tt_file_exists("home") && tt_clock_s() < until) poll(NULL, 0, 10);
    EXPECT(!tt_file_exists("home"));
}

TT_TEST(launch, the_last_world_of_a_dead_supervisor_takes_its_folder_away)
{
    each_mpi(leave_home_behind);
}

TT_TEST(launch, a_leftover_world_is_ended_before_the_next)
{
    tt_mpi mpi = TT_BY_OPENMPI;
    world w = {0}, next;
    int ends[2], pid;
    char text[256];
    ssize_t n;

    save_path();
    if (!installed(mpi)) mpi = TT_BY_MPICH;
    if (!installed(mpi)) tt_test_skip("no MPI is installed");
    EXPECT(pipe2(ends, O_CLOEXEC) == 0);
    pid = fork_supervisor(mpi, NULL, ends[1]);
    close(ends[1]);
    n = read(ends[0], text, sizeof text);
    close(ends[0]);
    kill(pid, SIGKILL);
    EXPECT(n > 0);
    tt_str_put(&w.out, text, (size_t)n);
    start_world(&next, mpi, 1, NULL, "echo next; exec sleep 100"); /* its keeper is still at it */
    waitpid(pid, NULL, 0);
    wait_lines(&next, "next", 1);
    EXPECT(tt_file_exists("w1/world"));
    tt_launch_signal(&next.l, SIGKILL);
    end_world(&next);
    expect_gone(&w, 2);
    end_world(&w);
}

static void lose_keeper(tt_mpi mpi)
{
    world w;

    start_world(&w, mpi, 2, NULL, "echo pid $$; exec sleep 100");
    wait_lines(&w, "pid ", 2);
    kill(w.l.pid, SIGKILL);
    wait_end(&w);
    EXPECT_INT(128 + SIGKILL, w.code);
    tt_launch_close(&w.l);
    expect_gone(&w, 2);
    end_world(&w);
}

TT_TEST(launch, close_clears_away_even_without_the_keeper)
{
    each_mpi(lose_keeper);
}

TT_TEST(launch, a_folder_of_others_is_not_touched)
{
    const char *argv[] = {"/bin/true", NULL};
    tt_launch_opts o = {.ranks = 1, .argv = argv, .folder = "w1"};
    tt_launch l;

    save_path();
    pretend_programs("mpirun mpiexec");
    EXPECT(mkdir("w1", 0755) == 0);
    tt_test_write("w1/thesis", "x", 1);
    EXPECT_ERR(TT_EINVAL, tt_launch_start(&o, &l));
    EXPECT_MESSAGE("w1 is no folder that an earlier world has left: it holds other files");
    tt_test_write("w1/world", "hello", 5);
    EXPECT_ERR(TT_EINVAL, tt_launch_start(&o, &l));
    EXPECT(l.pid == 0);
    EXPECT_FILE("w1/thesis", "x");
    o.folder = "w1/thesis";
    EXPECT_ERR(TT_EINVAL, tt_launch_start(&o, &l));
    EXPECT_MESSAGE("Not a directory");
    EXPECT_FILE("w1/thesis", "x");
    tt_launch_close(&l);
    save_path();
}

TT_TEST(launch, what_cannot_start_is_named)
{
    const char *argv[] = {"/nowhere/tutti", NULL};
    tt_launch_opts o = {.ranks = 1, .argv = argv, .folder = "w1"};
    tt_launch l;

    save_path();
    pretend_programs("mpirun mpiexec");
    EXPECT_ERR(TT_EENV, tt_launch_start(&o, &l));
    EXPECT_MESSAGE("the worker program /nowhere/tutti is not there");
    argv[0] = "/etc/passwd";
    EXPECT_ERR(TT_EENV, tt_launch_start(&o, &l));
    EXPECT_MESSAGE("the worker program /etc/passwd may not be executed");
    argv[0] = "true";
    EXPECT_ERR(TT_EINVAL, tt_launch_start(&o, &l));
    EXPECT_MESSAGE("absolute path");
    argv[0] = "/bin/true";
    write_script("bad", "#!/nowhere/interpreter\n");
    setenv("TUTTI_MPIRUN", "./bad", 1);
    EXPECT_ERR(TT_EENV, tt_launch_start(&o, &l));
    EXPECT_MESSAGE("cannot start ./bad: No such file or directory");
    EXPECT(!tt_file_exists("w1"));
    EXPECT(l.pid == 0);
    save_path();
}

/* Other hosts are played by this one: the remote shell tells its commands which host they are on,
 * and gives them nothing else of our environment. Each has its own folder for temporary files, or
 * two daemons of Open MPI would write the same ones. */
static void use_hosts(tt_mpi mpi)
{
    char cwd[4096], line[8192], shell[4200];
    world w;

    if (tt_file_exists("w1")) FAIL("w1 is left");
    write_script("rsh", "#!/bin/sh\n"
                        "while :; do case $1 in -*) shift;; *) break;; esac; done\n"
                        "host=$1; shift; mkdir -p \"${0%/*}/$host\"; TMPDIR=${0%/*}/$host; cd /\n"
                        "exec env -i PATH=\"$PATH\" TMPDIR=\"$TMPDIR\" PLAYED=$host "
                        "/bin/sh -c \"$*\"\n");
    EXPECT(getcwd(cwd, sizeof cwd));
    snprintf(shell, sizeof shell, "%s/rsh -q", cwd);
    setenv("TUTTI_RSH", shell, 1);
    start_world(&w, mpi, 3, "hosta:2,hostb.invalid:1",
                "echo \"rank $OMPI_COMM_WORLD_RANK$PMI_RANK on $PLAYED in $PWD note $NOTE mark "
                "$TUTTI_WORLD pid $$.\"; exec sleep 100");
    wait_lines(&w, "pid ", 3);
    for (int i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "rank %d on %s in %s note a;b \"c\" mark %s", i,
                 i < 2 ? "hosta" : "hostb.invalid", cwd, w.l.mark);
        EXPECT_INT(1, count_lines(&w, line));
    }
    tt_launch_close(&w.l);
    expect_gone(&w, 3);
    end_world(&w);
    save_path();
}

TT_TEST(launch, ranks_fill_several_hosts_in_order)
{
    each_mpi(use_hosts);
}

TT_TEST(launch, one_host_ignores_the_allocation_it_is_in)
{
    static const char *const slurm[][2] = {{"SLURM_JOBID", "7"},
                                           {"SLURM_JOB_ID", "7"},
                                           {"SLURM_NODELIST", "other[1-2]"},
                                           {"SLURM_JOB_NODELIST", "other[1-2]"},
                                           {"SLURM_TASKS_PER_NODE", "2(x2)"}};
    world w;

    save_path();
    for (tt_mpi mpi = TT_BY_OPENMPI; mpi <= TT_BY_MPICH; mpi++) {
        if (!installed(mpi)) continue;
        for (int i = 0; i < TT_COUNT(slurm); i++) setenv(slurm[i][0], slurm[i][1], 1);
        start_world(&w, mpi, 2, NULL,
                    "echo local $OMPI_COMM_WORLD_LOCAL_SIZE$MPI_LOCALNRANKS of it");
        wait_end(&w);
        EXPECT_INT(0, w.code);
        EXPECT_INT(2, count_lines(&w, "local 2 of it"));
        end_world(&w);
        save_path();
    }
}

TT_TEST(launch, a_world_that_writes_much_can_be_closed)
{
    world w;

    save_path();
    for (tt_mpi mpi = TT_BY_OPENMPI; mpi <= TT_BY_MPICH; mpi++) {
        if (!installed(mpi)) continue;
        start_world(&w, mpi, 1, NULL, "echo pid $$; exec cat /dev/zero");
        wait_lines(&w, "pid ", 1);
        poll(NULL, 0, 50); /* the pipe is full by now */
        tt_launch_close(&w.l);
        expect_gone(&w, 1);
        end_world(&w);
    }
}
