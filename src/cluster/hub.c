/* hub: the supervisor's side of hosts that wait, and the stand-in for a remote shell.
 *
 *   launcher ── tutti rsh ──(Unix socket)── hub ──(CURVE)── agent ── /bin/sh -c "orted ..."
 *
 * Letters are JSON objects; `say` tells which:
 *
 *   agent to hub    here   host, world, protocol: twice a second, so it is a sign of life too
 *                   said   id, text      what the command printed
 *                   ended  id, code
 *   hub to agent    alive                twice a second
 *                   run    id, command, mark
 *                   stop   id            end it: nobody waits for it any more
 *                   no     why           we do not belong together
 *                   bye    code          the whole has ended
 *   rsh to hub      run    host, command, mark, pid
 *   hub to rsh      said, ended          as they came
 *
 * An errand is one command on its way. That its `tutti rsh` was killed is seen by a pidfd. */
#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const double ALIVE_S = 0.5, SILENT_S = 10;

typedef struct agent {
    uint32_t peer;
    char host[256];
    double heard;
} agent;

typedef struct errand {
    int id, pidfd;
    uint32_t rsh, agent;
} errand;

struct tt_hub {
    tt_wire *near, *far; /* far NULL: no other hosts */
    char *world;
    agent *agent;
    int agents;
    errand *errand;
    int errands, last_id;
    double told; /* when we last said that we are alive */
};

/* ---- letters ---- */

void tt_say(tt_wire *w, uint32_t to, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;

    json_decref(o);
    if (!text) tt_mem_out(256);
    (void)tt_wire_send(w, to, text, strlen(text)); /* who is gone is missed by its silence */
    free(text);
}

json_t *tt_hear(tt_wire *w, uint32_t *from, const char **word)
{
    tt_letter l;

    while (tt_wire_take(w, &l)) {
        json_t *o = json_loadb(l.data, l.size, JSON_REJECT_DUPLICATES, NULL);
        if ((*word = json_string_value(json_object_get(o, "say")))) {
            *from = l.from;
            return o;
        }
        json_decref(o);
    }
    return NULL;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static int number_of(const json_t *o, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(o, key));
    return n < INT32_MIN || n > INT32_MAX ? 0 : (int)n;
}

static void *grown(void *p, size_t bytes)
{
    if (!(p = realloc(p, bytes))) tt_mem_out(bytes);
    return p;
}

/* ---- opening ---- */

/* A folder that others may enter is no place for a socket that runs commands. */
static tt_err check_folder(const char *folder)
{
    struct stat st;

    if (stat(folder, &st)) return tt_fail(TT_EIO, "%s: %s", folder, strerror(errno));
    if (st.st_uid != geteuid() || (st.st_mode & 077))
        return tt_fail(TT_EENV, "%s: must be ours alone (mode 0700)", folder);
    return TT_OK;
}

tt_err tt_hub_open(const tt_hub_opts *o, tt_hub **out)
{
    tt_hub *h = calloc(1, sizeof *h);
    tt_cluster_key key;
    char near[256];
    tt_err err;

    *out = NULL;
    if (!h || !(h->world = strdup(o->world))) tt_mem_out(sizeof *h);
    if (snprintf(near, sizeof near, "ipc://%s/hub", o->folder) >= 100)
        err = tt_fail(TT_EENV, "%s/hub: too long for the name of a socket: set TMPDIR", o->folder);
    else
        err = check_folder(o->folder);
    if (!err) err = tt_wire_serve(near, NULL, &h->near);
    if (!err && o->address && !(err = tt_cluster_key_load(o->key, &key)))
        err = tt_wire_serve(o->address, &key, &h->far);
    if (err) {
        tt_hub_close(h, 0);
        return err;
    }
    *out = h;
    return TT_OK;
}

/* A link to our program beside the socket, under a name by which it knows what it is. Launchers cut
 * a command at blanks, and Open MPI at colons; MPICH puts options between it and its arguments: so
 * it has none. */
tt_err tt_hub_rsh(const tt_hub *h, const char *program, tt_arena *a, const char **out)
{
    const char *socket = tt_wire_address(h->near) + strlen("ipc://");
    char *link =
        tt_arena_printf(a, "%.*s/" TT_RSH_NAME, (int)(strrchr(socket, '/') - socket), socket);

    *out = NULL;
    if (strpbrk(link, " :"))
        return tt_fail(TT_EENV, "%s: a launcher takes no blank or colon there: set TMPDIR", link);
    if (symlink(program, link) && errno != EEXIST)
        return tt_fail(TT_EIO, "%s: %s", link, strerror(errno));
    *out = link;
    return TT_OK;
}

int tt_hub_poll(const tt_hub *h, struct pollfd *p, int room)
{
    int n = 0;

    if (n < room) p[n++] = (struct pollfd){.fd = tt_wire_fd(h->near), .events = POLLIN};
    if (h->far && n < room) p[n++] = (struct pollfd){.fd = tt_wire_fd(h->far), .events = POLLIN};
    for (int i = 0; i < h->errands && n < room; i++)
        p[n++] = (struct pollfd){.fd = h->errand[i].pidfd, .events = POLLIN};
    return n;
}

/* ---- agents ---- */

static agent *find_agent(const tt_hub *h, const char *host)
{
    for (int i = 0; i < h->agents; i++)
        if (!strcmp(h->agent[i].host, host)) return &h->agent[i];
    return NULL;
}

bool tt_hub_has(const tt_hub *h, const char *host)
{
    return find_agent(h, host) != NULL;
}

int tt_hub_count(const tt_hub *h)
{
    return h->agents;
}

static void greet(tt_hub *h, uint32_t from, const json_t *o)
{
    const char *host = text_of(o, "host"), *world = text_of(o, "world");
    char why[512];
    agent *a = NULL;

    for (int i = 0; i < h->agents && !a; i++)
        if (h->agent[i].peer == from) a = &h->agent[i];
    if (a) {
        a->heard = tt_clock_s();
        return;
    }
    *why = 0;
    if (number_of(o, "protocol") != TT_HUB_PROTOCOL)
        snprintf(why, sizeof why, "it speaks protocol %d, this one %d: use one version of tutti",
                 TT_HUB_PROTOCOL, number_of(o, "protocol"));
    else if (strcmp(world, h->world))
        snprintf(why, sizeof why, "it makes %.200s, this one wants %.200s", h->world, world);
    else if (!*host || strlen(host) >= sizeof a->host)
        snprintf(why, sizeof why, "this one does not say what host it is");
    if (*why) {
        tt_say(h->far, from, json_pack("{s:s, s:s}", "say", "no", "why", why));
        return;
    }
    h->agent = grown(h->agent, (size_t)(h->agents + 1) * sizeof *h->agent);
    a = &h->agent[h->agents++];
    *a = (agent){.peer = from, .heard = tt_clock_s()};
    snprintf(a->host, sizeof a->host, "%s", host);
    tt_say(h->far, from, json_pack("{s:s}", "say", "alive"));
}

/* ---- errands ---- */

static errand *find_errand(tt_hub *h, const json_t *o)
{
    int id = number_of(o, "id");

    for (int i = 0; i < h->errands; i++)
        if (h->errand[i].id == id) return &h->errand[i];
    return NULL;
}

static void forget_errand(tt_hub *h, errand *e)
{
    close(e->pidfd);
    *e = h->errand[--h->errands];
}

static void refuse(tt_hub *h, uint32_t rsh, const char *host, const char *why)
{
    char text[512];

    snprintf(text, sizeof text, "tutti: host %s: %s\n", host, why);
    tt_say(h->near, rsh, json_pack("{s:s, s:s}", "say", "said", "text", text));
    tt_say(h->near, rsh, json_pack("{s:s, s:i}", "say", "ended", "code", 255));
}

static void start_errand(tt_hub *h, uint32_t rsh, const json_t *o)
{
    const char *host = text_of(o, "host");
    const agent *a = find_agent(h, host);
    int pid = number_of(o, "pid"), pidfd;

    if (!a) {
        refuse(h, rsh, host, "no agent waits there");
        return;
    }
    if (pid <= 0 || (pidfd = (int)syscall(SYS_pidfd_open, pid, 0)) < 0) return; /* gone already */
    h->errand = grown(h->errand, (size_t)(h->errands + 1) * sizeof *h->errand);
    h->errand[h->errands++] =
        (errand){.id = ++h->last_id, .pidfd = pidfd, .rsh = rsh, .agent = a->peer};
    tt_say(h->far, a->peer,
           json_pack("{s:s, s:i, s:s, s:s}", "say", "run", "id", h->last_id, "command",
                     text_of(o, "command"), "mark", text_of(o, "mark")));
}

static void stop_errand(tt_hub *h, errand *e)
{
    tt_say(h->far, e->agent, json_pack("{s:s, s:i}", "say", "stop", "id", e->id));
    forget_errand(h, e);
}

static void lose_agent(tt_hub *h, int which)
{
    const agent *a = &h->agent[which];

    for (int i = h->errands; i-- > 0;) {
        errand *e = &h->errand[i];
        if (e->agent != a->peer) continue;
        refuse(h, e->rsh, a->host, "its agent is gone");
        forget_errand(h, e);
    }
    tt_warn("host %s: no word from its agent for %.0f s", a->host, SILENT_S);
    h->agent[which] = h->agent[--h->agents];
}

/* ---- the turn ---- */

static void hear_near(tt_hub *h)
{
    const char *word;
    uint32_t from;
    json_t *o;

    while ((o = tt_hear(h->near, &from, &word))) {
        if (!strcmp(word, "run")) start_errand(h, from, o);
        json_decref(o);
    }
}

static void hear_far(tt_hub *h)
{
    const char *word;
    uint32_t from;
    json_t *o;

    while ((o = tt_hear(h->far, &from, &word))) {
        errand *e = find_errand(h, o);
        if (!strcmp(word, "here")) {
            greet(h, from, o);
        } else if (e && e->agent == from && !strcmp(word, "said")) {
            tt_say(h->near, e->rsh, json_incref(o));
        } else if (e && e->agent == from && !strcmp(word, "ended")) {
            tt_say(h->near, e->rsh, json_incref(o));
            forget_errand(h, e);
        }
        json_decref(o);
    }
}

void tt_hub_turn(tt_hub *h)
{
    double now = tt_clock_s();

    hear_near(h);
    if (!h->far) return;
    hear_far(h);
    for (int i = h->errands; i-- > 0;) {
        struct pollfd p = {.fd = h->errand[i].pidfd, .events = POLLIN};
        if (poll(&p, 1, 0) > 0) stop_errand(h, &h->errand[i]);
    }
    for (int i = h->agents; i-- > 0;)
        if (now - h->agent[i].heard > SILENT_S) lose_agent(h, i);
    if (now - h->told < ALIVE_S) return;
    h->told = now;
    for (int i = 0; i < h->agents; i++)
        tt_say(h->far, h->agent[i].peer, json_pack("{s:s}", "say", "alive"));
}

void tt_hub_close(tt_hub *h, int code)
{
    if (!h) return;
    if (h->far) hear_far(h); /* who came last is told too */
    for (int i = 0; i < h->agents; i++)
        tt_say(h->far, h->agent[i].peer, json_pack("{s:s, s:i}", "say", "bye", "code", code));
    while (h->errands) forget_errand(h, h->errand);
    tt_wire_close(h->near, 0);
    tt_wire_close(h->far, 1);
    free(h->agent);
    free(h->errand);
    free(h->world);
    free(h);
}

/* ---- the stand-in for a remote shell ---- */

/* Launchers put options before the host that are ssh's: -x, -q, -l NAME. */
static int skip_options(int argc, const char **argv)
{
    int i = 1;

    while (i < argc && argv[i][0] == '-')
        i += argv[i][1] && strchr("lpoiFcmbeDILRSWw", argv[i][1]) && !argv[i][2] ? 2 : 1;
    return i;
}

int tt_rsh_run(int argc, const char **argv)
{
    static const double PATIENCE_S = 30;
    int host = skip_options(argc, argv), code = -1;
    const char *mark = getenv("TUTTI_WORLD"), *word;
    double since = tt_clock_s();
    tt_str command = {0};
    char address[256];
    tt_wire *w = NULL;
    uint32_t from;
    bool heard = false;
    json_t *o;

    snprintf(address, sizeof address, "ipc://%s", argc ? argv[0] : "");
    if (host + 1 >= argc) tt_fail(TT_EINVAL, "needs SOCKET HOST COMMAND");
    if (host + 1 >= argc || tt_wire_reach(address, NULL, &w)) {
        fprintf(stderr, "tutti rsh: %s\n", tt_message());
        return 255;
    }
    for (int i = host + 1; i < argc; i++)
        tt_str_add(&command, "%s%s", i > host + 1 ? " " : "", argv[i]);
    tt_say(w, 0,
           json_pack("{s:s, s:s, s:s, s:s, s:i}", "say", "run", "host", argv[host], "command",
                     command.data, "mark", mark ? mark : "", "pid", (int)getpid()));
    while (code < 0) {
        struct pollfd p = {.fd = tt_wire_fd(w), .events = POLLIN};
        poll(&p, 1, 100);
        while (code < 0 && (o = tt_hear(w, &from, &word))) {
            heard = true;
            if (!strcmp(word, "said")) fputs(text_of(o, "text"), stderr);
            if (!strcmp(word, "ended")) code = number_of(o, "code") & 255;
            json_decref(o);
        }
        /* Once connected, an end of the connection is the supervisor's: then the launcher and we
         * are ended by its keeper. */
        if (code < 0 && !heard && *tt_wire_trouble(w) && tt_clock_s() - since > PATIENCE_S) {
            fprintf(stderr, "tutti rsh: %s: %s\n", address, tt_wire_trouble(w));
            code = 255;
        }
    }
    tt_wire_close(w, 0);
    tt_str_free(&command);
    return code;
}
