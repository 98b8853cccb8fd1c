/* launch_line: the command line that starts a world, and its environment.
 *
 * Two launchers, two ways each. On one host all goes through memory and the settings are those that
 * start fastest; the launcher is told not to look at Slurm and its like, for they would hand it
 * other hosts. On several hosts names, remote shell, folder and environment must be given. What the
 * user has set in the environment (OMPI_MCA_..., UCX_..., HYDRA_...) is never set again: it wins.
 */
#define _GNU_SOURCE
#include "inner.h"

#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

bool tt_is_program(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK);
}

/* Is there such a program, as execvp would find it? */
static bool find_program_at(const char *name, char full[PATH_MAX])
{
    const char *path = getenv("PATH");

    if (strchr(name, '/')) return snprintf(full, PATH_MAX, "%s", name) && tt_is_program(name);
    for (const char *p = path ? path : "/bin:/usr/bin";; p++) {
        size_t n = strcspn(p, ":");
        if (snprintf(full, PATH_MAX, "%.*s%s%s", (int)n, p, n ? "/" : "", name) < PATH_MAX &&
            tt_is_program(full))
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

bool tt_hosts_alone(const tt_hosts *h)
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
    if (tt_hosts_alone(h)) return TT_OK;
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

tt_err tt_launch_folders(const char *folder, tt_arena *a, const char **full, const char **shm)
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
    bool alone = tt_hosts_alone(o->hosts);
    char number[16];
    tt_err err;

    *out = (tt_launch_line){0};
    if (o->ranks < 1) return tt_fail(TT_EINVAL, "%d ranks: a world has at least one", o->ranks);
    if (o->hosts && o->hosts->count && (err = check_hosts(&p))) return err;
    if ((err = find_launcher(&p)) || (!alone && (err = find_rsh(&p))) ||
        (err = tt_launch_folders(o->folder, a, &p.folder, &p.shm)))
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
