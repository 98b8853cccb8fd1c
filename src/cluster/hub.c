/* hub: the supervisor's side of hosts that wait.
 *
 *   launcher ── tutti rsh ──(Unix socket)── hub ──(CURVE)── agent ── /bin/sh -c "orted ..."
 *
 * Letters are JSON objects; `say` tells which:
 *
 *   agent to hub    here   agent, host, world, protocol, running: four times a second, so it is a
 *                          sign of life too. `agent` is a random name, `running` lists ids. One
 *                          that joins: slots (0 before the first alive), machine, address, leaving
 *                   said   id, text      what the command printed
 *                   ended  id, code
 *   hub to agent    alive  program, folder, rooms, run: twice a second
 *                   run    id, command, mark, shm: a folder it needs
 *                   stop   id            end it: nobody waits for it any more
 *                   no     why, later    we do not belong together; or not now
 *                   bye    code, done    the whole has ended; done: the state is not needed
 *   rsh to hub      run    host, command, mark, shm, pid
 *   hub to rsh      said, ended          as they came
 *
 * `text` and `command` are bytes of any kind: a character of JSON for each.
 *
 * An errand is one command on its way. That its `tutti rsh` was killed is seen by a pidfd. An agent
 * whose connection breaks comes back with another number but the same name, and its errands go on;
 * what was lost with the connection shows in what it says is running. One whose agent does not know
 * of it has failed; a command nobody waits for is stopped. */
#define _GNU_SOURCE
#include "inner.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const double ALIVE_S = 0.5, TURN_S = 0.05;
/* Without a word for so long, a host that has joined is lost; another of its name may take its
 * place a little earlier. A gap between two turns of ours longer than LATE_S is our own fault. */
static const double LOST_S = 1.5, REPLACED_S = 1, LATE_S = 0.25;
enum { SLOTS_MOST = 1024, LATER_MOST = 64 };
double tt_silence_s = 10;

typedef struct agent {
    int id;
    uint32_t peer, before; /* its number, and the one it had before */
    char name[TT_MARK], host[256];
    double heard;
    /* of one that has joined: */
    char address[64];
    int slots; /* that were told; 0: none yet */
    bool leaving;
} agent;

typedef struct errand {
    int id, agent;
    uint32_t rsh;
    int pid, pidfd; /* of rsh; pidfd -1: the kernel has none */
    double known;   /* when its agent last knew of it */
    int code;       /* -1: it has not ended */
} errand;

typedef struct mail {
    tt_hub_from from;
    json_t *o;
} mail;

struct tt_hub {
    tt_wire *near, *far; /* far NULL: no other hosts */
    char *world;
    agent *agent;
    int agents;
    errand *errand;
    int errands, last_id;
    double told; /* when we last said that we are alive */
    double turned;
    bool joins, saved;
    uint32_t later[LATER_MOST]; /* peers that were told to try again: the last ones ... */
    int laters;                 /* ... of so many                                       */
    json_t *about;              /* what hosts that join must know */
    tt_hub_change *change;
    int changes, change_first;
    bool more;  /* not all was heard in the last turn */
    int null;   /* can always be read */
    int lock;   /* held as long as the folder is in use: tt_leftovers */
    mail *mail; /* for whoever has the hub */
    int mail_first, mail_end, mail_room;
};

/* ---- letters ---- */

bool tt_say(tt_wire *w, uint32_t to, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    tt_err err;

    json_decref(o);
    if (!text) return false; /* of text that is no UTF-8 there is no letter */
    err = tt_wire_send(w, to, text, strlen(text));
    free(text);
    return !err;
}

json_t *tt_hear(tt_wire *w, uint32_t *from, const char **word)
{
    tt_letter l;

    while (tt_wire_take(w, &l)) {
        json_t *o = json_loadb(l.data, l.size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        if ((*word = json_string_value(json_object_get(o, "say")))) {
            *from = l.from;
            return o;
        }
        json_decref(o);
    }
    return NULL;
}

json_t *tt_json_text(const char *text)
{
    size_t size = strlen(text), width;
    tt_str fit = {0};
    json_t *o;

    for (size_t i = 0; i < size; i += width ? width : 1) {
        width = tt_utf8_size(text + i, size - i);
        tt_str_put(&fit, width ? text + i : "?", width ? width : 1);
    }
    o = json_stringn(fit.data ? fit.data : "", fit.size);
    tt_str_free(&fit);
    return o;
}

json_t *tt_json_bytes(const void *data, size_t size)
{
    const unsigned char *from = data;
    char *wide = malloc(2 * size + 1);
    json_t *o;
    size_t n = 0;

    if (!wide) tt_mem_out(2 * size + 1);
    for (size_t i = 0; i < size; i++) {
        if (from[i] >= 128) wide[n++] = (char)(0xc0 | from[i] >> 6);
        wide[n++] = (char)(from[i] < 128 ? from[i] : 0x80 | (from[i] & 63));
    }
    o = json_stringn(wide, n);
    free(wide);
    return o;
}

const char *tt_text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

void tt_bytes_of(const json_t *o, const char *key, tt_str *out)
{
    const json_t *text = json_object_get(o, key);
    const char *wide = json_string_value(text);
    size_t size = json_string_length(text), width;

    for (size_t i = 0; i < size; i += width) { /* it is UTF-8, or JSON would not have taken it */
        unsigned char first = (unsigned char)wide[i];
        width = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
        char c = width == 1     ? wide[i]
                 : first < 0xc4 ? (char)(first << 6 | (wide[i + 1] & 63))
                                : '?';
        tt_str_put(out, &c, 1);
    }
}

int tt_number_of(const json_t *o, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(o, key));
    return n < INT32_MIN || n > INT32_MAX ? 0 : (int)n;
}

int tt_code_of(const json_t *o)
{
    const json_t *code = json_object_get(o, "code");
    json_int_t n = json_is_integer(code) ? json_integer_value(code) : 255;
    return n < 0 || n > 255 ? 255 : (int)n;
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

static json_t *describe_run(const tt_hub_opts *o)
{
    char folder[4096];
    json_t *about = json_pack("{s:s}", "say", "alive");

    if (!getcwd(folder, sizeof folder)) *folder = 0;
    if (o->program) json_object_set_new(about, "program", tt_json_text(o->program));
    if (o->joins) json_object_set_new(about, "folder", tt_json_text(folder));
    if (o->rooms) json_object_set_new(about, "rooms", tt_json_text(o->rooms));
    return about;
}

void tt_hub_set_run(tt_hub *h, const char *id)
{
    json_object_set_new(h->about, "run", tt_json_text(id));
}

static tt_err hold_folder(tt_hub *h, const char *folder)
{
    char made[4200], path[4200];

    snprintf(made, sizeof made, "%s/new", folder);
    snprintf(path, sizeof path, "%s/lock", folder);
    /* It gets its name when it is held: others must not find it free. */
    h->lock = open(made, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (h->lock < 0 || flock(h->lock, LOCK_EX | LOCK_NB) || rename(made, path))
        return tt_fail(TT_EIO, "lock %s: %s", path, strerror(errno));
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
    /* An agent that has outlived another hub may still speak of that one's errands. */
    if (getrandom(&h->last_id, sizeof h->last_id, 0) < 0) h->last_id = getpid();
    h->last_id &= 0x3fffffff;
    h->null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    h->lock = -1;
    h->joins = o->joins;
    h->about = describe_run(o);
    h->turned = tt_clock_s();
    if (snprintf(near, sizeof near, "ipc://%s/hub", o->folder) >= 100)
        err = tt_fail(TT_EENV, "%s/hub: too long for the name of a socket: set TMPDIR", o->folder);
    else
        err = check_folder(o->folder);
    if (!err) err = hold_folder(h, o->folder);
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

    if (h->more && n < room) p[n++] = (struct pollfd){.fd = h->null, .events = POLLIN};
    if (n < room) p[n++] = (struct pollfd){.fd = tt_wire_fd(h->near), .events = POLLIN};
    if (h->far && n < room) p[n++] = (struct pollfd){.fd = tt_wire_fd(h->far), .events = POLLIN};
    for (int i = 0; i < h->errands && n < room; i++)
        p[n++] = (struct pollfd){.fd = h->errand[i].pidfd, .events = POLLIN};
    return n;
}

/* ---- errands ---- */

static errand *find_errand(tt_hub *h, int id)
{
    for (int i = 0; i < h->errands; i++)
        if (h->errand[i].id == id) return &h->errand[i];
    return NULL;
}

static void forget_errand(tt_hub *h, errand *e)
{
    if (e->pidfd >= 0) close(e->pidfd);
    *e = h->errand[--h->errands];
}

/* One that does not read what was printed may lose some of it, but never the end. */
static void end_errand(tt_hub *h, errand *e, int code)
{
    e->code = code;
    if (tt_say(h->near, e->rsh, json_pack("{s:s, s:i}", "say", "ended", "code", code)))
        forget_errand(h, e);
}

static void say_why(tt_hub *h, uint32_t rsh, const char *host, const char *why)
{
    tt_str text = {0};

    tt_str_add(&text, "tutti: host %.255s: %s\n", host, why);
    tt_say(h->near, rsh,
           json_pack("{s:s, s:o}", "say", "said", "text", tt_json_bytes(text.data, text.size)));
    tt_str_free(&text);
}

static void refuse(tt_hub *h, uint32_t rsh, const char *host, const char *why)
{
    say_why(h, rsh, host, why);
    tt_say(h->near, rsh, json_pack("{s:s, s:i}", "say", "ended", "code", 255));
}

/* The newest first: one that was started again may have left its name behind. */
static const agent *send_run(tt_hub *h, const char *host, int id, const json_t *o, bool *known)
{
    *known = false;
    for (int i = h->agents; i-- > 0;) {
        const agent *a = &h->agent[i];
        if (strcmp(a->host, host) && (!*a->address || strcmp(a->address, host))) continue;
        *known = true;
        if (tt_say(h->far, a->peer,
                   json_pack("{s:s, s:i, s:O, s:O, s:o}", "say", "run", "id", id, "command",
                             json_object_get(o, "command"), "mark", json_object_get(o, "mark"),
                             "shm", tt_json_text(tt_text_of(o, "shm")))))
            return a;
    }
    return NULL;
}

static void start_errand(tt_hub *h, uint32_t rsh, const json_t *o)
{
    const char *host = tt_text_of(o, "host");
    int pid = tt_number_of(o, "pid"), pidfd = -1;
    const agent *a;
    bool known;

    if (pid > 0 && (pidfd = (int)syscall(SYS_pidfd_open, pid, 0)) < 0 && errno == ESRCH)
        return; /* gone already */
    if (pid <= 0 || !json_is_string(json_object_get(o, "command")) ||
        !json_is_string(json_object_get(o, "mark"))) {
        refuse(h, rsh, host, "this is no command");
    } else if (!(a = send_run(h, host, h->last_id + 1, o, &known))) {
        refuse(h, rsh, host, known ? "its agent is gone" : "no agent waits there");
    } else {
        h->errand = grown(h->errand, (size_t)(h->errands + 1) * sizeof *h->errand);
        h->errand[h->errands++] = (errand){.id = ++h->last_id,
                                           .agent = a->id,
                                           .rsh = rsh,
                                           .pid = pid,
                                           .pidfd = pidfd,
                                           .known = tt_clock_s(),
                                           .code = -1};
        return;
    }
    if (pidfd >= 0) close(pidfd);
}

static bool is_over(const errand *e)
{
    struct pollfd p = {.fd = e->pidfd, .events = POLLIN};

    return e->pidfd >= 0 ? poll(&p, 1, 0) > 0 : kill(e->pid, 0) && errno == ESRCH;
}

/* ---- agents ---- */

static agent *agent_of_peer(const tt_hub *h, uint32_t peer)
{
    for (int i = 0; i < h->agents; i++)
        if (h->agent[i].peer == peer || h->agent[i].before == peer) return &h->agent[i];
    return NULL;
}

static agent *agent_of_id(const tt_hub *h, int id)
{
    for (int i = 0; i < h->agents; i++)
        if (h->agent[i].id == id) return &h->agent[i];
    return NULL;
}

static agent *agent_of_name(const tt_hub *h, const char *name)
{
    for (int i = 0; i < h->agents; i++)
        if (!strcmp(h->agent[i].name, name)) return &h->agent[i];
    return NULL;
}

int tt_hub_count(const tt_hub *h)
{
    return h->agents;
}

bool tt_hub_has(const tt_hub *h, const char *host)
{
    for (int i = 0; i < h->agents; i++)
        if (!strcmp(h->agent[i].host, host)) return true;
    return false;
}

static void say_stop(tt_hub *h, const agent *a, int id)
{
    tt_say(h->far, a->peer, json_pack("{s:s, s:i}", "say", "stop", "id", id));
}

static void stop_errand(tt_hub *h, errand *e)
{
    const agent *a = agent_of_id(h, e->agent);

    if (a && e->code < 0) say_stop(h, a, e->id);
    forget_errand(h, e);
}

/* Compares what an agent says it runs with what we wait for. */
static void compare_running(tt_hub *h, agent *a, const json_t *running)
{
    double now = tt_clock_s();
    size_t count = json_array_size(running);

    for (size_t i = 0; i < count && i < TT_COMMANDS; i++) {
        const json_t *id = json_array_get(running, i);
        json_int_t n = json_is_integer(id) ? json_integer_value(id) : 0;
        errand *e = n > 0 && n <= INT32_MAX ? find_errand(h, (int)n) : NULL;
        if (e && e->agent == a->id)
            e->known = now;
        else if (n > 0 && n <= INT32_MAX)
            say_stop(h, a, (int)n);
    }
    for (int i = h->errands; i-- > 0;) {
        errand *e = &h->errand[i];
        if (e->agent != a->id || e->code >= 0 || now - e->known <= tt_silence_s) continue;
        say_why(h, e->rsh, a->host, "its agent does not know of the command any more");
        end_errand(h, e, 255);
    }
}

static void lose_agent(tt_hub *h, agent *a);

/* A host joins once. Who was started again may find its predecessor still there: *later. */
static void find_double(tt_hub *h, const json_t *o, tt_str *why, bool *later)
{
    const char *host = tt_text_of(o, "host"), *machine = tt_text_of(o, "machine");
    char own[256] = "";

    gethostname(own, sizeof own - 1);
    if (!strcmp(host, own) || !strcmp(machine, own)) {
        tt_str_add(why, "it is on a host called %s too: if that is this one, it takes part already",
                   own);
        return;
    }
    for (int i = h->agents; i-- > 0 && !why->size;) {
        agent *a = &h->agent[i];
        if (strcmp(a->host, host) || !strcmp(a->name, tt_text_of(o, "agent"))) continue;
        if (tt_clock_s() - a->heard > REPLACED_S) {
            lose_agent(h, a);
            continue;
        }
        tt_str_add(why, "a host called %.255s takes part already: give this one another --name",
                   host);
        *later = true;
    }
}

static void find_fault(tt_hub *h, const json_t *o, tt_str *why, bool *later)
{
    const char *host = tt_text_of(o, "host"), *world = tt_text_of(o, "world");

    if (tt_number_of(o, "protocol") != TT_HUB_PROTOCOL)
        tt_str_add(why, "it speaks protocol %d, this one %d: use one version of tutti",
                   TT_HUB_PROTOCOL, tt_number_of(o, "protocol"));
    else if (strcmp(world, h->world))
        tt_str_add(why, "it makes %.500s, this one wants %.500s", h->world, world);
    else if (!*host || strlen(host) >= sizeof h->agent->host)
        tt_str_add(why, "this one does not say what host it is");
    else if (strlen(tt_text_of(o, "agent")) != TT_MARK - 1)
        tt_str_add(why, "this one does not say who it is");
    else if (h->joins)
        find_double(h, o, why, later);
}

/* ---- hosts that join ---- */

static void add_change(tt_hub *h, tt_hub_change_kind kind, const agent *a)
{
    tt_hub_change c = {.kind = kind, .slots = a->slots};
    bool alone = *a->address && !tt_host_is_here(a->address);

    for (int i = 0; i < h->agents; i++)
        alone &= &h->agent[i] == a || strcmp(h->agent[i].address, a->address);
    snprintf(c.host, sizeof c.host, "%s", a->host);
    snprintf(c.reach, sizeof c.reach, "%s", alone ? a->address : a->host);
    h->change = grown(h->change, (size_t)(h->changes + 1) * sizeof c);
    h->change[h->changes++] = c;
}

bool tt_hub_next_change(tt_hub *h, tt_hub_change *out)
{
    if (h->change_first == h->changes) {
        h->change_first = h->changes = 0;
        return false;
    }
    *out = h->change[h->change_first++];
    return true;
}

static void say_bye(tt_hub *h, uint32_t peer, int code, bool done_with)
{
    tt_say(h->far, peer,
           json_pack("{s:s, s:i, s:b}", "say", "bye", "code", code, "done", done_with));
}

static void let_go(tt_hub *h, agent *a, bool done_with)
{
    say_bye(h, a->peer, 0, done_with);
    *a = h->agent[--h->agents];
}

void tt_hub_bye(tt_hub *h, const char *host, bool done_with)
{
    for (int i = h->agents; i-- > 0;)
        if (!strcmp(h->agent[i].host, host)) let_go(h, &h->agent[i], done_with);
}

void tt_hub_saved(tt_hub *h)
{
    h->saved = true;
}

/* What it has to offer, or that it wants to go. */
static void take_offer(tt_hub *h, agent *a, const json_t *o)
{
    int slots = tt_number_of(o, "slots");

    if (slots < 0 || slots > SLOTS_MOST) slots = 0;
    snprintf(a->address, sizeof a->address, "%.63s", tt_text_of(o, "address"));
    if (json_is_true(json_object_get(o, "leaving"))) {
        if (!a->slots) { /* nothing of the run can be there */
            let_go(h, a, false);
            return;
        }
        if (!a->leaving) add_change(h, TT_HOST_LEAVES, a);
        a->leaving = true;
    } else if (slots && !a->slots) {
        a->slots = slots;
        add_change(h, TT_HOST_CAME, a);
    }
}

static void note_later(tt_hub *h, uint32_t peer)
{
    for (int i = 0; i < h->laters && i < LATER_MOST; i++)
        if (h->later[i] == peer) return;
    h->later[h->laters++ % LATER_MOST] = peer;
}

static void greet(tt_hub *h, uint32_t from, const json_t *o)
{
    agent *a = agent_of_peer(h, from);
    tt_str why = {0};
    bool later = false;

    if (!a) {
        find_fault(h, o, &why, &later);
        if (why.size) {
            tt_say(h->far, from,
                   json_pack("{s:s, s:o, s:b}", "say", "no", "why", tt_json_text(why.data), "later",
                             later));
            tt_str_free(&why);
            if (later) note_later(h, from);
            return;
        }
        if ((a = agent_of_name(h, tt_text_of(o, "agent")))) {
            a->before = a->peer;
            a->peer = from;
        } else {
            h->agent = grown(h->agent, (size_t)(h->agents + 1) * sizeof *h->agent);
            a = &h->agent[h->agents++];
            *a = (agent){.id = ++h->last_id, .peer = from, .before = from};
            snprintf(a->name, sizeof a->name, "%s", tt_text_of(o, "agent"));
            snprintf(a->host, sizeof a->host, "%s", tt_text_of(o, "host"));
        }
        tt_say(h->far, from, json_incref(h->about));
    }
    a->heard = tt_clock_s();
    compare_running(h, a, json_object_get(o, "running"));
    if (h->joins) take_offer(h, a, o);
}

static void lose_agent(tt_hub *h, agent *a)
{
    char shown[96];

    for (int i = h->errands; i-- > 0;) {
        errand *e = &h->errand[i];
        if (e->agent != a->id || e->code >= 0) continue;
        say_why(h, e->rsh, a->host, "its agent is gone");
        end_errand(h, e, 255);
    }
    if (h->joins && a->slots)
        add_change(h, TT_HOST_LOST, a);
    else
        tt_warn("host %s: no word from its agent for %.0f s",
                tt_show_text(a->host, strlen(a->host), shown), tt_silence_s);
    *a = h->agent[--h->agents];
}

/* ---- the turn ---- */

/* A letter for whoever has the hub. */
static void put_by(tt_hub *h, tt_hub_from from, json_t *o)
{
    if (h->mail_end == h->mail_room) {
        h->mail_room = h->mail_room ? 2 * h->mail_room : 64;
        h->mail = grown(h->mail, (size_t)h->mail_room * sizeof *h->mail);
    }
    h->mail[h->mail_end++] = (mail){from, json_incref(o)};
}

json_t *tt_hub_next(tt_hub *h, tt_hub_from *from, const char **word)
{
    if (h->mail_first == h->mail_end) {
        h->mail_first = h->mail_end = 0;
        return NULL;
    }
    mail *m = &h->mail[h->mail_first++];
    *from = m->from;
    *word = json_string_value(json_object_get(m->o, "say"));
    return m->o;
}

void tt_hub_say(tt_hub *h, tt_hub_from to, json_t *o)
{
    tt_say(to.far ? h->far : h->near, to.peer, o);
}

const char *tt_hub_address(const tt_hub *h)
{
    return tt_wire_address(h->near);
}

void tt_hub_addresses(const tt_hub *h, tt_str *out)
{
    const char *address = h->far ? tt_wire_address(h->far) : "", *port = strrchr(address, ':');
    struct ifaddrs *list = NULL;
    char text[INET_ADDRSTRLEN];

    if (!port) return;
    if (!strchr(address, '*') && !strstr(address, "0.0.0.0")) {
        tt_str_add(out, "%s", address);
        return;
    }
    if (getifaddrs(&list)) return;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_LOOPBACK))
            continue;
        const struct sockaddr_in *a = (const void *)i->ifa_addr;
        inet_ntop(AF_INET, &a->sin_addr, text, sizeof text);
        tt_str_add(out, "%stcp://%s%s", out->size ? "," : "", text, port);
    }
    freeifaddrs(list);
}

static bool hear_near(tt_hub *h)
{
    const char *word;
    uint32_t from;
    json_t *o = tt_hear(h->near, &from, &word);

    if (!o) return false;
    if (!strcmp(word, "run"))
        start_errand(h, from, o);
    else
        put_by(h, (tt_hub_from){from, false}, o);
    json_decref(o);
    return true;
}

static bool hear_far(tt_hub *h)
{
    const char *word;
    uint32_t from;
    json_t *o = h->far ? tt_hear(h->far, &from, &word) : NULL;
    agent *a = o ? agent_of_peer(h, from) : NULL;
    errand *e = a ? find_errand(h, tt_number_of(o, "id")) : NULL;

    if (!o) return false;
    if (a) a->heard = tt_clock_s();
    if (e && (e->agent != a->id || e->code >= 0)) e = NULL;
    if (!strcmp(word, "here"))
        greet(h, from, o);
    else if (e && !strcmp(word, "said"))
        tt_say(h->near, e->rsh, json_incref(o));
    else if (e && !strcmp(word, "ended"))
        end_errand(h, e, tt_code_of(o));
    else if (!a)
        put_by(h, (tt_hub_from){from, true}, o);
    json_decref(o);
    return true;
}

/* In turns, so that one who says a lot is in nobody's way; and not for ever. The last thing done to
 * either wire is to find nothing in it, as poll() needs it. */
static void hear_all(tt_hub *h)
{
    double until = tt_clock_s() + TURN_S;
    bool near, far;

    do {
        near = hear_near(h);
        far = hear_far(h);
        h->more = near || far;
    } while (h->more && tt_clock_s() < until);
}

void tt_hub_turn(tt_hub *h)
{
    double now = tt_clock_s();

    for (int i = h->errands; i-- > 0;) {
        errand *e = &h->errand[i];
        if (is_over(e))
            stop_errand(h, e);
        else if (e->code >= 0)
            end_errand(h, e, e->code);
    }
    if (now - h->told >= ALIVE_S) {
        h->told = now;
        for (int i = 0; i < h->agents; i++) tt_say(h->far, h->agent[i].peer, json_incref(h->about));
    }
    if (now - h->turned > LATE_S)
        for (int i = 0; i < h->agents; i++) h->agent[i].heard += now - h->turned;
    h->turned = now;
    hear_all(h);
    if (h->more) return; /* a sign of life may be in what was not heard yet */
    for (int i = h->agents; i-- > 0;)
        if (now - h->agent[i].heard > (h->joins ? LOST_S : tt_silence_s))
            lose_agent(h, &h->agent[i]);
}

void tt_hub_close(tt_hub *h, int code)
{
    if (!h) return;
    if (h->near) hear_all(h); /* who came last is told too */
    for (int i = 0; i < h->agents; i++) say_bye(h, h->agent[i].peer, code, h->saved);
    for (int i = 0; i < h->laters && i < LATER_MOST; i++) say_bye(h, h->later[i], code, false);
    while (h->errands) forget_errand(h, h->errand);
    while (h->mail_first < h->mail_end) json_decref(h->mail[h->mail_first++].o);
    free(h->mail);
    tt_wire_close(h->near, 0);
    tt_wire_close(h->far, 1);
    if (h->null >= 0) close(h->null);
    if (h->lock >= 0) close(h->lock);
    free(h->agent);
    free(h->errand);
    free(h->change);
    json_decref(h->about);
    free(h->world);
    free(h);
}
