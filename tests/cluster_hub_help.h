/* Helpers of the tests of hub and agents: hub, agents and remote shells, each in a process of its
 * own. The test itself has no threads then and can fork at will. What they tell is in memory that
 * all share. */
#ifndef CLUSTER_HUB_HELP_H
#define CLUSTER_HUB_HELP_H

#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster/inner.h"

static const double PATIENCE_S = 20; /* with what is due at once */
static const char MARK[] = "0123456789abcdef0123456789abcdef";

/* ---- processes ---- */

static pid_t kid[128];
static int kids;

/* Ends with this program, whatever happens. */
static inline pid_t fork_kid(void)
{
    pid_t parent = getpid(), pid = fork();

    if (pid < 0) FAIL("cannot fork");
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        return 0;
    }
    kid[kids++ % TT_COUNT(kid)] = pid;
    return pid;
}

/* Those that are left over, by a test that failed. */
static inline void end_kids(void)
{
    while (kids) {
        pid_t pid = kid[--kids % TT_COUNT(kid)];
        if (waitpid(pid, NULL, WNOHANG)) continue; /* it was waited for, or is now */
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
}

static inline int wait_code(pid_t pid)
{
    double until = tt_clock_s() + PATIENCE_S;
    int status;

    while (waitpid(pid, &status, WNOHANG) != pid) {
        if (tt_clock_s() > until) FAIL("process %d does not end", (int)pid);
        poll(NULL, 0, 2);
    }
    return tt_exit_code(status);
}

enum { EXITING = 4 }; /* the kernel's PF_EXITING */

/* Not there, or being taken apart, or a zombie that nobody waits for. */
static inline bool is_dead(int pid)
{
    char path[64], state;
    unsigned flags = EXITING;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!(f = fopen(path, "r"))) return true;
    if (fscanf(f, "%*d (%*[^)]) %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2 || state == 'Z')
        flags = EXITING;
    fclose(f);
    return flags & EXITING;
}

static inline void wait_dead(int pid)
{
    double until = tt_clock_s() + PATIENCE_S;

    while (!is_dead(pid)) {
        if (tt_clock_s() > until) FAIL("process %d lives on", pid);
        poll(NULL, 0, 2);
    }
}

static inline char *read_text(const char *path)
{
    static char text[4096];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;

    text[n] = 0;
    if (f) fclose(f);
    return text;
}

static inline void wait_text(const char *path, const char *part)
{
    double until = tt_clock_s() + PATIENCE_S;

    while (!strstr(read_text(path), part)) {
        if (tt_clock_s() > until) FAIL("%s holds '%s', not '%s'", path, read_text(path), part);
        poll(NULL, 0, 2);
    }
}

/* The number a command has written into a file. */
static inline int wait_pid(const char *path)
{
    wait_text(path, "\n");
    EXPECT(atoi(read_text(path)) > 1);
    return atoi(read_text(path));
}

/* ---- the world of a test ---- */

typedef struct result {
    volatile int done;
    int err, code;
    char message[2048];
} result;

static struct shared {
    volatile int opened, has_a, has_b;
    result hub, agent[4];
} * shared;

static char address[64];
static volatile int stopped;

static inline int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT(!bind(fd, (struct sockaddr *)&at, sizeof at));
    EXPECT(!getsockname(fd, (struct sockaddr *)&at, &size));
    close(fd);
    return ntohs(at.sin_port);
}

static inline void set_up(void)
{
    end_kids();
    tt_silence_s = 10;
    if (!shared)
        shared =
            mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(shared != MAP_FAILED);
    memset(shared, 0, sizeof *shared);
    EXPECT_OK(tt_cluster_key_make("key"));
    EXPECT(!mkdir("hub", 0700) || errno == EEXIST);
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", free_port());
}

static inline void keep(result *r, tt_err err, int code)
{
    r->err = err;
    r->code = code;
    snprintf(r->message, sizeof r->message, "%s", tt_message());
    r->done = 1;
}

static inline void on_signal(int sig)
{
    stopped = sig;
}

static int control[2]; /* to the hub: a byte is the code to close with */

_Noreturn static inline void be_hub(const char *at)
{
    tt_hub_opts o = {"hub", at, "key", "a:1,b:2"};
    tt_hub *h;
    tt_err err = tt_hub_open(&o, &h);
    unsigned char code;

    tt_log_quiet(true);
    keep(&shared->hub, err, 0);
    if (err) _exit(1);
    shared->opened++;
    for (;;) {
        struct pollfd p[8] = {{.fd = control[0], .events = POLLIN}};
        poll(p, (nfds_t)(1 + tt_hub_poll(h, p + 1, 7)), 100);
        tt_hub_turn(h);
        shared->has_a = tt_hub_has(h, "a");
        shared->has_b = tt_hub_has(h, "b");
        if ((p[0].revents & POLLIN) && read(control[0], &code, 1) == 1) break;
    }
    tt_hub_close(h, code);
    _exit(0);
}

static inline void wait_true(volatile int *what, int value, const char *name)
{
    double until = tt_clock_s() + PATIENCE_S;

    while (*what != value) {
        if (tt_clock_s() > until) FAIL("%s is %d, not %d", name, *what, value);
        poll(NULL, 0, 2);
    }
}
#define WAIT_TRUE(what, value) wait_true(&(what), value, #what)

static inline pid_t start_hub_at(const char *at)
{
    int before = shared->opened;
    pid_t pid;

    EXPECT(!pipe(control));
    if (!(pid = fork_kid())) be_hub(at);
    close(control[0]);
    WAIT_TRUE(shared->hub.done, 1);
    if (shared->hub.err) FAIL("no hub: %s", shared->hub.message);
    WAIT_TRUE(shared->opened, before + 1);
    return pid;
}

static inline pid_t start_hub(void)
{
    return start_hub_at(address);
}

static inline void close_hub(pid_t hub, int code)
{
    unsigned char byte = (unsigned char)code;

    EXPECT(write(control[1], &byte, 1) == 1);
    close(control[1]);
    EXPECT_INT(0, wait_code(hub));
}

/* An agent whose result goes to agent[which]. */
static inline pid_t start_agent_as(int which, tt_agent_opts o)
{
    pid_t pid = fork_kid();
    struct sigaction act = {.sa_handler = on_signal};
    tt_agent_end end;
    tt_err err;

    if (pid) return pid;
    sigaction(SIGTERM, &act, NULL);
    setenv("TF_CONFIG", "{}", 1);
    err = tt_agent_run(&o, &stopped, &end);
    keep(&shared->agent[which], err, end.code);
    _exit(0);
}

static inline pid_t start_agent(const char *host)
{
    return start_agent_as(*host - 'a', (tt_agent_opts){address, "key", host, "a:1,b:2", 20});
}

/* A hub, and an agent for host a. */
static inline void start_both(pid_t *hub, pid_t *agent)
{
    set_up();
    *hub = start_hub();
    *agent = start_agent("a");
    WAIT_TRUE(shared->has_a, 1);
}

static inline void end_both(pid_t hub, pid_t agent)
{
    close_hub(hub, 0);
    EXPECT_INT(0, wait_code(agent));
    EXPECT_INT(TT_OK, shared->agent[0].err);
}

/* What the command prints goes to the file. */
static inline pid_t start_rsh_when(volatile int *when, const char *host, const char *command,
                                   const char *mark, const char *file)
{
    const char *argv[] = {"hub/hub", "-x", "-l", "me", host, command, NULL};
    pid_t pid = fork_kid();
    int fd;

    if (pid) return pid;
    while (!*when) poll(NULL, 0, 2);
    fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, 2);
    if (mark)
        setenv("TUTTI_WORLD", mark, 1);
    else
        unsetenv("TUTTI_WORLD");
    _exit(tt_rsh_run(6, argv));
}

static inline pid_t start_rsh(const char *host, const char *command, const char *mark,
                              const char *file)
{
    static volatile int now = 1;

    return start_rsh_when(&now, host, command, mark, file);
}

static inline void expect_run(const char *host, const char *command, int code, const char *printed)
{
    int got = wait_code(start_rsh(host, command, MARK, "said"));

    if (got != code || strcmp(read_text("said"), printed))
        FAIL("%s: exit code %d, wanted %d; printed '%s', wanted '%s'", command, got, code,
             read_text("said"), printed);
}

#endif
