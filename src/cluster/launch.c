/* launch: the command line that starts a world, and starting, signalling and ending it.
 *
 * Two launchers, two ways each. On one host all goes through memory and the settings are those that
 * start fastest; the launcher is told not to look at Slurm and its like, for they would hand it
 * other hosts. On several hosts names, remote shell, folder and environment must be given. What the
 * user has set in the environment (OMPI_MCA_..., UCX_..., HYDRA_...) is never set again: it wins.
 *
 * A folder of a world holds whatever its MPI writes, so that nothing is left of a world that was
 * killed. Shared memory has a folder too, in /dev/shm, whose name follows from that of the first.
 * The file `world` in it has the mark of the world and is locked by its keeper: who finds it knows
 * what to clear away, and when nobody else does. */
#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORD_MOST = 100000 }; /* bytes of an argument; the kernel takes 128 KiB */

static const struct launcher {
    const char *name, *package; /* of Debian */
    const char *programs[4];
    const char *own[3]; /* parts of names that only its programs have */
} launchers[] = {
    [TT_BY_OPENMPI] = {"mpirun (Open MPI)",
                       "openmpi-bin",
                       {"mpirun.openmpi", "mpirun"},
                       {"openmpi", "orterun", "prterun"}},
    [TT_BY_MPICH] = {"mpiexec (MPICH)",
                     "mpich",
                     {"mpiexec.mpich", "mpiexec.hydra", "mpiexec"},
                     {"mpich", "hydra"}},
};

tt_mpi tt_launch_mpi(void)
{
#ifdef TT_MPICH
    return TT_BY_MPICH;
#else
    return TT_BY_OPENMPI;
#endif
}

const char *tt_launcher_name(void)
{
    return launchers[tt_launch_mpi()].name;
}

/* ---- words ---- */

typedef struct words {
    const char **word; /* ended by NULL */
    int count, room;
} words;

typedef struct plan {
    tt_mpi mpi;
    const tt_launch_opts *o;
    tt_arena *arena;
    const char *mark;
    const char *rsh; /* NULL: the launcher's own choice */
    const char *folder, *shm;
    words argv, env;
} plan;

static void add_word(plan *p, words *w, const char *text)
{
    if (w->count + 1 >= w->room) {
        int room = w->room ? w->room * 2 : 32;
        const char **more = tt_arena_take(p->arena, (size_t)room * sizeof *more, sizeof *more);
        if (w->count) memcpy(more, w->word, (size_t)w->count * sizeof *more);
        w->word = more;
        w->room = room;
    }
    w->word[w->count++] = text;
    w->word[w->count] = NULL;
}

static void say(plan *p, const char *word)
{
    add_word(p, &p->argv, tt_arena_strdup(p->arena, word));
}

static void say2(plan *p, const char *word, const char *value)
{
    say(p, word);
    say(p, value);
}

/* Does `entry` ("NAME=value") set this name? */
static bool sets(const char *entry, const char *name)
{
    size_t n = strlen(name);
    return !strncmp(entry, name, n) && entry[n] == '=';
}

/* Has the user, or the caller, set this variable? */
static bool is_set(const plan *p, const char *name)
{
    for (const char *const *e = p->o->env; e && *e; e++)
        if (sets(*e, name)) return true;
    return getenv(name) != NULL;
}

/* Of two entries with one name the later counts. */
static void put_entry(plan *p, const char *entry)
{
    size_t n = strcspn(entry, "=") + 1;

    for (int i = 0; i < p->env.count; i++)
        if (!strncmp(p->env.word[i], entry, n)) {
            p->env.word[i] = entry;
            return;
        }
    add_word(p, &p->env, entry);
}

static void put_env(plan *p, const char *name, const char *value)
{
    put_entry(p, tt_arena_printf(p->arena, "%s=%s", name, value));
}

static void want_env(plan *p, const char *name, const char *value)
{
    if (!is_set(p, name)) put_env(p, name, value);
}

/* A setting of Open MPI. */
static void want_mca(plan *p, const char *name, const char *value)
{
    if (is_set(p, tt_arena_printf(p->arena, "OMPI_MCA_%s", name))) return;
    say(p, "--mca");
    say2(p, name, value);
}

/* ---- programs ---- */

static bool is_program(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK);
}

/* Is there such a program, as execvp would find it? */
static bool find_program_at(const char *name, char full[PATH_MAX])
{
    const char *path = getenv("PATH");

    if (strchr(name, '/')) return snprintf(full, PATH_MAX, "%s", name) && is_program(name);
    for (const char *p = path ? path : "/bin:/usr/bin";; p++) {
        size_t n = strcspn(p, ":");
        if (snprintf(full, PATH_MAX, "%.*s%s%s", (int)n, p, n ? "/" : "", name) < PATH_MAX &&
            is_program(full))
            return true;
        p += n;
        if (!*p) return false;
    }
}

static bool find_program(const char *name)
{
    char full[PATH_MAX];

    return find_program_at(name, full);
}

/* Plain `mpirun` and `mpiexec` are often links to whichever MPI came first. */
static bool is_of(tt_mpi mpi, const char *program)
{
    const struct launcher *other = &launchers[mpi == TT_BY_MPICH ? TT_BY_OPENMPI : TT_BY_MPICH];
    char full[PATH_MAX], real[PATH_MAX];

    if (!find_program_at(program, full)) return false;
    if (!realpath(full, real)) return true;
    const char *name = strrchr(real, '/') + 1;
    for (int i = 0; i < TT_COUNT(other->own); i++)
        if (other->own[i] && strstr(name, other->own[i])) return false;
    return true;
}

/* By its name alone, not its path: called by a path, Open MPI's mpirun tells other hosts to look
 * for their part in the same place. */
static tt_err find_launcher(plan *p)
{
    const struct launcher *l = &launchers[p->mpi];
    const char *own = getenv("TUTTI_MPIRUN");

    if (own && *own) {
        if (!find_program(own))
            return tt_fail(TT_EENV, "TUTTI_MPIRUN is %s: there is no such program", own);
        say(p, own);
        return TT_OK;
    }
    for (int i = 0; l->programs[i]; i++)
        if (is_of(p->mpi, l->programs[i])) {
            say(p, l->programs[i]);
            return TT_OK;
        }
    return tt_fail(TT_EENV,
                   "%s, which starts the ranks, is not installed: install it (on Debian: apt "
                   "install %s), or name it in TUTTI_MPIRUN",
                   l->name, l->package);
}

/* Only for several hosts. TUTTI_RSH may have arguments: "ssh -p 2222". */
static tt_err find_rsh(plan *p)
{
    const char *own = getenv("TUTTI_RSH");
    char *program;

    if (p->o->rsh) {
        p->rsh = p->o->rsh;
        return TT_OK;
    }
    if (own && own[strspn(own, " ")]) {
        own += strspn(own, " ");
        program = tt_arena_strdup(p->arena, own);
        program[strcspn(program, " ")] = 0;
        if (!find_program(program))
            return tt_fail(TT_EENV, "TUTTI_RSH is %s: there is no such program", own);
        p->rsh = own;
        return TT_OK;
    }
    /* In Slurm its srun does it; and a user may have set another way. */
    if (getenv("SLURM_JOB_ID") || is_set(p, "OMPI_MCA_plm") ||
        is_set(p, "OMPI_MCA_plm_rsh_agent") || is_set(p, "HYDRA_LAUNCHER") ||
        is_set(p, "HYDRA_LAUNCHER_EXEC") || find_program("ssh"))
        return TT_OK;
    return tt_fail(TT_EENV, "ssh, which starts the ranks on other hosts, is not installed: install "
                            "it (on Debian: apt install openssh-client), or name another remote "
                            "shell in TUTTI_RSH");
}

/* ---- hosts ---- */

/* All ranks on this host, whatever it is called? */
static bool is_alone(const tt_hosts *h)
{
    for (int i = 0; h && i < h->count; i++)
        if (!tt_host_is_here(h->host[i].name)) return false;
    return true;
}

static tt_err check_hosts(const plan *p)
{
    const tt_hosts *h = p->o->hosts;
    int slots = tt_hosts_slots(h);

    if (p->o->ranks > slots)
        return tt_fail(TT_EINVAL,
                       "%d ranks do not fit into the %d slot%s of the %d host%s given: name more "
                       "hosts, or give them more slots, as in %s:%d",
                       p->o->ranks, slots, slots == 1 ? "" : "s", h->count,
                       h->count == 1 ? "" : "s", h->host[0].name, p->o->ranks);
    if (is_alone(h)) return TT_OK;
    for (int i = 0; i < h->count; i++) {
        const char *name = h->host[i].name;
        if (strchr(name, ':'))
            return tt_fail(TT_EINVAL, "host %s: %s takes no IPv6 addresses; give the host a name",
                           name, launchers[p->mpi].name);
        if (p->mpi == TT_BY_OPENMPI && strchr(name, '_'))
            return tt_fail(TT_EINVAL, "host %s: %s takes no names with '_'; use its address", name,
                           launchers[p->mpi].name);
    }
    return TT_OK;
}

/* The list of hosts as an argument. */
static tt_err say_list(plan *p, const char *option, tt_str *list)
{
    tt_err err = TT_OK;

    if (list->size > WORD_MOST)
        err = tt_fail(TT_EINVAL, "%d hosts are more than fit into a command line",
                      p->o->hosts->count);
    else
        say2(p, option, list->data);
    tt_str_free(list);
    return err;
}

/* "a:4,b:4": both launchers take this form. */
static tt_err say_hosts(plan *p, const char *option)
{
    const tt_hosts *h = p->o->hosts;
    tt_str list = {0};

    for (int i = 0; i < h->count; i++)
        tt_str_add(&list, "%s%s:%d", i ? "," : "", h->host[i].name,
                   h->host[i].slots ? h->host[i].slots : 1);
    return say_list(p, option, &list);
}

/* "a,a,b", an entry for each rank: Open MPI keeps to this order, where else it would begin with the
 * host it runs on. */
static tt_err say_ranks(plan *p, const char *option)
{
    const tt_host *host = p->o->hosts->host;
    tt_str list = {0};

    for (int rank = 0, slot = 0; rank < p->o->ranks && list.size <= WORD_MOST; rank++) {
        tt_str_add(&list, "%s%s", rank ? "," : "", host->name);
        if (++slot >= host->slots) {
            host++;
            slot = 0;
        }
    }
    return say_list(p, option, &list);
}

/* Is this host in the list, but not its first? */
static bool is_here_later(const tt_hosts *h)
{
    int i = 0;

    while (i < h->count && !tt_host_is_here(h->host[i].name)) i++;
    return i > 0 && i < h->count;
}

/* This host's address as the first of the others sees it, "" if that cannot be told. Hydra gives
 * its proxies the host's name, which may mean something else there: on Debian it is often
 * 127.0.1.1. */
static void find_own_address(const tt_hosts *h, char out[INET6_ADDRSTRLEN])
{
    struct addrinfo want = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM}, *a = NULL;
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    int i = 0, fd;

    *out = 0;
    while (tt_host_is_here(h->host[i].name)) i++;
    if (getaddrinfo(h->host[i].name, "9", &want, &a)) return;
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    /* Connecting a datagram socket sends nothing: it only looks up the route. */
    if (fd >= 0 && !connect(fd, a->ai_addr, a->ai_addrlen) &&
        !getsockname(fd, (struct sockaddr *)&own, &size) &&
        getnameinfo((struct sockaddr *)&own, size, out, INET6_ADDRSTRLEN, NULL, 0, NI_NUMERICHOST))
        *out = 0;
    if (fd >= 0) close(fd);
    freeaddrinfo(a);
}

/* Is the folder in shared memory made on all hosts? */
static bool has_agents(const plan *p)
{
    return p->o->rsh && !strncmp(p->shm, "/dev/shm/", 9);
}

/* ---- the two dialects ---- */

/* Open MPI. TMPDIR: where mpirun has its files; on other hosts it has those of the host. But srun
 * takes TMPDIR along, and Slurm makes such a folder on each of them and leaves it: there mpirun has
 * its files where it would have them by itself. */
static tt_err say_openmpi(plan *p, bool alone)
{
    static const char no_allocation[] = "^slurm,gridengine,tm,lsf,alps";
    char cwd[PATH_MAX];
    bool is_mapped, in_turn;
    tt_err err;

    if (!geteuid()) {
        want_env(p, "OMPI_ALLOW_RUN_AS_ROOT", "1");
        want_env(p, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
    if (alone || p->rsh || !getenv("SLURM_JOB_ID")) put_env(p, "TMPDIR", p->folder);
    if (!is_set(p, "OMPI_MCA_hwloc_base_binding_policy")) say2(p, "--bind-to", "none");
    want_mca(p, "pml", "ob1");
    want_mca(p, "btl", alone ? "vader,self" : "vader,tcp,self");
    want_mca(p, "osc", "^ucx");
    /* To see whether it would work it makes a file in /dev/shm, outside of our folder, which it
     * leaves there if it is killed then; and it is not used. */
    want_mca(p, "shmem", "^posix");
    want_mca(p, "mpi_yield_when_idle", "1");
    if (alone) {
        say(p, "--oversubscribe");
        want_mca(p, "plm", "isolated");
        want_mca(p, "ras", no_allocation);
        want_mca(p, "orte_tmpdir_base", p->folder);
        want_mca(p, "btl_vader_backing_directory", p->shm);
        want_env(p, "HWLOC_COMPONENTS", "linux,stop");
        return TT_OK;
    }
    want_mca(p, "orte_keep_fqdn_hostnames", "1"); /* else it calls a.b.c by the name a */
    is_mapped = is_set(p, "OMPI_MCA_rmaps_base_mapping_policy");
    in_turn = !is_mapped && is_here_later(p->o->hosts);
    err = in_turn ? say_ranks(p, "--host") : say_hosts(p, "--host");
    if (err) return err;
    if (!is_mapped) say2(p, "--map-by", in_turn ? "seq" : "slot");
    if (p->rsh) {
        want_mca(p, "plm", "rsh");
        want_mca(p, "ras", no_allocation);
        want_mca(p, "plm_rsh_agent", p->rsh);
        if (has_agents(p)) want_mca(p, "btl_vader_backing_directory", p->shm);
    }
    if (getcwd(cwd, sizeof cwd)) say2(p, "--wdir", cwd);
    for (const char *const *e = p->o->env; e && *e; e++)
        say2(p, "-x", tt_arena_printf(p->arena, "%.*s", (int)strcspn(*e, "="), *e));
    /* What a user says by the environment counts on all hosts; a job may name files by it. */
    for (char **e = environ; *e; e++) {
        const char *name = tt_arena_printf(p->arena, "%.*s", (int)strcspn(*e, "="), *e);
        bool again = !strcmp(name, "TUTTI_WORLD") || !strcmp(name, "TUTTI_RSH") ||
                     !strcmp(name, "TUTTI_MPIRUN");
        for (const char *const *o = p->o->env; o && *o && !again; o++) again = sets(*o, name);
        if (!strncmp(name, "TUTTI_", 6) && !again) say2(p, "-x", name);
    }
    if (p->mark) say2(p, "-x", "TUTTI_WORLD");
    return TT_OK;
}

/* MPICH. It binds nothing unless told to, and passes all of its environment on, unless the user has
 * told it otherwise: what the workers need is said by name. */
static tt_err say_mpich(plan *p, bool alone)
{
    char cwd[PATH_MAX], own[INET6_ADDRSTRLEN];
    tt_err err;

    /* Whoever is lost, it is ours to end the others: of several that die together nobody can tell
     * who was the first. */
    say(p, "-disable-auto-cleanup");
    if (alone) {
        if (!is_set(p, "HYDRA_IFACE")) say2(p, "-iface", "lo");
        say2(p, "-launcher", "fork");
        say2(p, "-rmk", "user");
        put_env(p, "TMPDIR", p->folder);
        want_env(p, "HWLOC_COMPONENTS", "linux,stop");
        want_env(p, "UCX_TLS", "posix,self");
        want_env(p, "UCX_POSIX_DIR", p->shm);
        want_env(p, "MPIR_CVAR_NOLOCAL", "1");
        return TT_OK;
    }
    if ((err = say_hosts(p, "-hosts"))) return err;
    find_own_address(p->o->hosts, own);
    if (*own && !is_set(p, "HYDRA_IFACE")) say2(p, "-localhost", own);
    if (p->rsh) {
        size_t n = strcspn(p->rsh, " ");
        say2(p, "-launcher", "ssh");
        say2(p, "-launcher-exec", tt_arena_printf(p->arena, "%.*s", (int)n, p->rsh));
        if (p->rsh[n]) want_env(p, "HYDRA_LAUNCHER_EXTRA_ARGS", p->rsh + n + 1);
    }
    if (getcwd(cwd, sizeof cwd)) say2(p, "-wdir", cwd);
    for (const char *const *e = p->o->env; e && *e; e++) {
        size_t n = strcspn(*e, "=");
        say(p, "-genv");
        say2(p, tt_arena_printf(p->arena, "%.*s", (int)n, *e), *e + n + 1);
    }
    if (p->mark) {
        say(p, "-genv");
        say2(p, "TUTTI_WORLD", p->mark);
    }
    want_env(p, "UCX_TLS", "tcp,posix,self");
    if (has_agents(p)) want_env(p, "UCX_POSIX_DIR", p->shm);
    return TT_OK;
}

/* ---- folders ---- */

/* The absolute path of a folder, and of the one in shared memory that goes with it. */
static tt_err name_folders(const char *folder, tt_arena *a, const char **full, const char **shm)
{
    char cwd[PATH_MAX], hex[65];
    tt_sha *sha = tt_sha_begin();

    if (*folder != '/' && !getcwd(cwd, sizeof cwd)) *cwd = 0;
    *full = *folder == '/' ? tt_arena_strdup(a, folder) : tt_arena_printf(a, "%s/%s", cwd, folder);
    tt_sha_add(sha, *full, strlen(*full));
    tt_sha_end(sha, hex);
    if (strlen(*full) >= sizeof((tt_launch *)0)->folder - 16)
        return tt_fail(TT_EINVAL, "%.200s...: the path is too long", *full);
    if (!access("/dev/shm", W_OK))
        *shm = tt_arena_printf(a, "/dev/shm/tutti-%.16s", hex);
    else
        *shm = tt_arena_printf(a, "%s/shm", *full);
    return TT_OK;
}

/* ---- the plan ---- */

tt_err tt_launch_plan_by(tt_mpi mpi, const tt_launch_opts *o, const char *mark, tt_arena *a,
                         tt_launch_line *out)
{
    plan p = {.mpi = mpi, .o = o, .arena = a, .mark = mark};
    bool alone = is_alone(o->hosts);
    char number[16];
    tt_err err;

    *out = (tt_launch_line){0};
    if (o->ranks < 1) return tt_fail(TT_EINVAL, "%d ranks: a world has at least one", o->ranks);
    if (o->hosts && o->hosts->count && (err = check_hosts(&p))) return err;
    if ((err = find_launcher(&p)) || (!alone && (err = find_rsh(&p))) ||
        (err = name_folders(o->folder, a, &p.folder, &p.shm)))
        return err;
    snprintf(number, sizeof number, "%d", o->ranks);
    say2(&p, "-n", number);
    err = mpi == TT_BY_OPENMPI ? say_openmpi(&p, alone) : say_mpich(&p, alone);
    if (err) return err;
    for (const char *const *e = o->env; e && *e; e++) {
        TT_ASSERT(strchr(*e, '=') && **e != '=');
        put_entry(&p, tt_arena_strdup(a, *e));
    }
    if (!alone && has_agents(&p)) put_env(&p, TT_WORLD_SHM, p.shm);
    if (mark) put_env(&p, "TUTTI_WORLD", mark);
    for (const char *const *w = o->argv; *w; w++) say(&p, *w);
    *out = (tt_launch_line){.argv = p.argv.word, .env = p.env.word};
    return TT_OK;
}

tt_err tt_launch_plan(const tt_launch_opts *o, tt_arena *a, tt_launch_line *out)
{
    return tt_launch_plan_by(tt_launch_mpi(), o, NULL, a, out);
}

/* ---- starting ---- */

/* What a start has taken so far, to be given back if it fails. */
typedef struct start {
    tt_arena *arena;
    tt_launch_line line;
    const char *folder, *shm, *rooms, *home;
    char mark[TT_MARK];
    bool far;                                  /* on several hosts */
    bool made;                                 /* the folders */
    int lock;                                  /* all descriptors: -1 if not open */
    int control[2], out[2], err[2], status[2]; /* 0 is ours, or to read */
    pid_t keeper;
} start;

static tt_err check_worker(const char *path)
{
    if (*path != '/')
        return tt_fail(TT_EINVAL, "the worker program %s needs an absolute path", path);
    if (is_program(path)) return TT_OK;
    if (!tt_file_exists(path)) return tt_fail(TT_EENV, "the worker program %s is not there", path);
    return tt_fail(TT_EENV, "the worker program %s may not be executed", path);
}

tt_err tt_mark_make(char mark[TT_MARK])
{
    unsigned char raw[(TT_MARK - 1) / 2];

    if (getrandom(raw, sizeof raw, 0) != sizeof raw)
        return tt_fail(TT_EIO, "getrandom: %s", strerror(errno));
    for (size_t i = 0; i < sizeof raw; i++) snprintf(mark + 2 * i, 3, "%02x", raw[i]);
    return TT_OK;
}

/* The mark in the file `world` of a folder; false if it holds none. */
static bool read_mark(int fd, char mark[TT_MARK])
{
    ssize_t n = read(fd, mark, TT_MARK); /* one more than it should have */

    if (n != TT_MARK - 1) return false;
    mark[n] = 0;
    return strspn(mark, "0123456789abcdef") == TT_MARK - 1;
}

/* Clears away what an earlier world has left, and nothing else. Its keeper, if it has just lost its
 * supervisor, does the same: it is waited for. */
static tt_err clear_folders(const start *s)
{
    const char *path = tt_arena_printf(s->arena, "%s/world", s->folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    double until = tt_clock_s() + TT_KEEPER_S;
    char mark[TT_MARK];
    tt_err err = TT_OK;

    if (fd >= 0 && read_mark(fd, mark)) {
        tt_mark_end(mark);
        while (flock(fd, LOCK_EX | LOCK_NB) && tt_clock_s() < until) poll(NULL, 0, 10);
        err = tt_dir_remove(s->folder);
    } else if (rmdir(s->folder) && errno != ENOENT)
        err = tt_fail(TT_EINVAL, "%s is no folder that an earlier world has left: %s", s->folder,
                      errno == ENOTEMPTY || errno == EEXIST ? "it holds other files"
                                                            : strerror(errno));
    if (fd >= 0) close(fd);
    return err ? err : tt_dir_remove(s->shm);
}

tt_err tt_launch_clear(const char *folder)
{
    start s = {.arena = tt_arena_open(1 << 14)};
    tt_err err = name_folders(folder, s.arena, &s.folder, &s.shm);
    char path[PATH_MAX], mark[TT_MARK];
    int fd = -1;

    if (err) goto out;
    snprintf(path, sizeof path, "%s/world", s.folder);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    /* Without a mark nobody had it yet, or all were ended and its keeper died when it cleared up.
     */
    if (fd >= 0 ? flock(fd, LOCK_EX | LOCK_NB) || (read_mark(fd, mark) && !tt_mark_end(mark))
                : errno != ENOENT)
        err = tt_fail(TT_EPEER, "%s is still in use", s.folder);
    else if (!(err = tt_dir_remove(s.shm)))
        err = tt_dir_remove(s.folder);
out:
    if (fd >= 0) close(fd);
    tt_arena_close(s.arena);
    return err;
}

/* Without fsync, which may take long while a checkpoint is written: none of it need last. */
static tt_err make_folders(start *s)
{
    const char *path = tt_arena_printf(s->arena, "%s/world", s->folder);
    tt_err err;

    if ((err = clear_folders(s))) return err;
    if (mkdir(s->folder, 0700) && (errno != ENOENT || (err = tt_dir_make(s->folder))))
        return err ? err : tt_fail(TT_EIO, "make the folder %s: %s", s->folder, strerror(errno));
    s->made = true;
    if (mkdir(s->shm, 0700))
        return tt_fail(TT_EIO, "make the folder %s: %s", s->shm, strerror(errno));
    s->lock = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (s->lock < 0 || !tt_write_all(s->lock, s->mark, TT_MARK - 1, NULL) ||
        flock(s->lock, LOCK_EX | LOCK_NB))
        return tt_fail(TT_EIO, "write %s: %s", path, strerror(errno));
    return TT_OK;
}

static tt_err open_pipes(start *s)
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s->control) ||
        pipe2(s->out, O_CLOEXEC) || pipe2(s->err, O_CLOEXEC) || pipe2(s->status, O_CLOEXEC) ||
        fcntl(s->out[0], F_SETFL, O_NONBLOCK) || fcntl(s->err[0], F_SETFL, O_NONBLOCK))
        return tt_fail(TT_EIO, "make a pipe to the launcher: %s", strerror(errno));
    return TT_OK;
}

/* The environment of this process with that of the plan laid over it. */
static const char *const *merge_env(const start *s)
{
    plan p = {.arena = s->arena};
    words w = {0};

    for (char **e = environ; *e; e++) {
        bool again = false;
        for (const char **l = s->line.env; l && *l && !again; l++) {
            size_t n = strcspn(*l, "=") + 1;
            again = !strncmp(*l, *e, n);
        }
        if (!again) add_word(&p, &w, *e);
    }
    for (const char **l = s->line.env; l && *l; l++) add_word(&p, &w, *l);
    return w.word;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static tt_err fork_keeper(start *s)
{
    tt_keeper k = {.argv = s->line.argv,
                   .env = merge_env(s),
                   .mark = s->mark,
                   .folder = s->folder,
                   .shm = s->shm,
                   .far = s->far,
                   .rooms = s->rooms,
                   .home = s->home,
                   .lock = s->lock,
                   .control = s->control[1],
                   .out = s->out[1],
                   .err = s->err[1],
                   .status = s->status[1]};
    sigset_t all, before;
    int why = 0;
    ssize_t n;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* our handlers are not for the keeper */
    s->keeper = fork();
    if (s->keeper == 0) tt_keeper_run(&k);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (s->keeper < 0) return tt_fail(TT_EIO, "start a process: %s", strerror(errno));
    close_fd(&s->status[1]);
    close_fd(&s->control[1]);
    close_fd(&s->out[1]);
    close_fd(&s->err[1]);
    close_fd(&s->lock);
    while ((n = read(s->status[0], &why, sizeof why)) < 0 && errno == EINTR) continue;
    if (n == sizeof why)
        return tt_fail(TT_EENV, "cannot start %s: %s", s->line.argv[0], strerror(why));
    return TT_OK;
}

static void undo(start *s)
{
    int *fds[] = {&s->lock,   &s->control[0], &s->control[1], &s->out[0],   &s->out[1],
                  &s->err[0], &s->err[1],     &s->status[0],  &s->status[1]};

    for (int i = 0; i < TT_COUNT(fds); i++) close_fd(fds[i]);
    if (s->keeper > 0)
        while (waitpid(s->keeper, NULL, 0) < 0 && errno == EINTR) continue;
    if (s->made) {
        tt_dir_remove(s->shm);
        tt_dir_remove(s->folder);
    }
}

tt_err tt_launch_start_by(tt_mpi mpi, const tt_launch_opts *o, tt_launch *out)
{
    start s = {.arena = tt_arena_open(16 << 10),
               .far = !is_alone(o->hosts),
               .rooms = o->rooms,
               .home = o->home,
               .lock = -1,
               .control = {-1, -1},
               .out = {-1, -1},
               .err = {-1, -1},
               .status = {-1, -1}};
    char *message;
    tt_err err;

    *out = (tt_launch){0};
    if ((err = tt_mark_make(s.mark)) ||
        (err = tt_launch_plan_by(mpi, o, s.mark, s.arena, &s.line)) ||
        (err = check_worker(o->argv[0])) ||
        (err = name_folders(o->folder, s.arena, &s.folder, &s.shm)) || (err = make_folders(&s)) ||
        (err = open_pipes(&s)) || (err = fork_keeper(&s)))
        goto fail;
    close_fd(&s.status[0]);
    *out = (tt_launch){.pid = s.keeper, .out = s.out[0], .err = s.err[0], .control = s.control[0]};
    strcpy(out->mark, s.mark);
    strcpy(out->folder, s.folder);
    tt_arena_close(s.arena);
    return TT_OK;
fail:
    message = tt_arena_strdup(s.arena, tt_message()); /* clearing away may fail too */
    undo(&s);
    tt_repeat(err, message);
    tt_arena_close(s.arena);
    return err;
}

tt_err tt_launch_start(const tt_launch_opts *o, tt_launch *out)
{
    return tt_launch_start_by(tt_launch_mpi(), o, out);
}

/* ---- a world that runs ---- */

void tt_launch_signal(tt_launch *l, int sig)
{
    unsigned char byte = (unsigned char)sig;

    if (l->pid > 0 && !l->ended && sig > 0 && sig < NSIG)
        (void)!send(l->control, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool tt_launch_ended(tt_launch *l, int *code)
{
    int status = 0;
    pid_t pid = l->ended || l->pid <= 0 ? 0 : waitpid(l->pid, &status, WNOHANG);

    if (pid == l->pid && pid > 0) {
        l->ended = true;
        l->code = tt_exit_code(status);
    } else if (pid < 0 && errno == ECHILD) { /* somebody else has waited for it */
        l->ended = true;
        l->code = 255;
    }
    if (l->ended && code) *code = l->code;
    return l->ended;
}

/* Reads what nobody will see, so that nobody waits for it to be read. */
static void drain(int fd)
{
    char buf[4096];
    while (read(fd, buf, sizeof buf) > 0) continue;
}

void tt_launch_close(tt_launch *l)
{
    tt_arena *a = NULL;
    const char *folder, *shm;
    double until = tt_clock_s() + TT_KEEPER_S;

    if (l->pid <= 0) return;
    (void)!send(l->control, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT); /* we have not died */
    close(l->control); /* the keeper takes it for the order to end the world */
    while (!tt_launch_ended(l, NULL) && tt_clock_s() < until) {
        poll(NULL, 0, 2);
        drain(l->out);
        drain(l->err);
    }
    if (!l->ended) kill(l->pid, SIGKILL);
    if (!tt_mark_end(l->mark))
        tt_warn("%d processes of an ended world cannot be killed: they hang in the kernel",
                tt_mark_signal(l->mark, 0, 0));
    while (!tt_launch_ended(l, NULL)) poll(NULL, 0, 1);
    close(l->out);
    close(l->err);
    a = tt_arena_open(8192); /* the keeper removes the folders, unless it was killed */
    if (!name_folders(l->folder, a, &folder, &shm) && (tt_dir_remove(folder) || tt_dir_remove(shm)))
        tt_warn("%s", tt_message());
    tt_arena_close(a);
    *l = (tt_launch){0};
}
