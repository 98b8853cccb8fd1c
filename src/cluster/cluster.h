/* cluster: which hosts take part, and starting a world of processes on them.
 *
 * The launcher of the MPI this program was built for does the starting (mpirun of Open MPI, mpiexec
 * of MPICH); what it must be told differs from one to the other and is hidden here. It runs in a
 * session of its own, so that Ctrl-C reaches the supervisor alone. */
#ifndef TT_CLUSTER_H
#define TT_CLUSTER_H

#include <jansson.h>

#include "base/base.h"
#include "store/commit.h"

/* ---- Hosts ---- */

typedef struct tt_host {
    char name[256];
    int slots; /* ranks it takes; 0: not said */
} tt_host;

typedef struct tt_hosts {
    tt_host *host;
    int count;
} tt_hosts;

/* "a:4,b:4", "a,b", "[fe80::1]:2". A host that comes twice gets both numbers of slots. */
tt_err tt_hosts_parse(const char *list, tt_hosts *out);
/* A file in the manner of Open MPI ("a slots=4 max_slots=8"), MPICH ("a:4") or one name a line; '#'
 * begins a comment. Errors are TT_EINVAL with file and line. */
tt_err tt_hosts_read(const char *path, tt_hosts *out);
/* The allocation of Slurm this process is in: SLURM_JOB_NODELIST "n[01-03,7],gpu" and
 * SLURM_TASKS_PER_NODE "4(x2),1" (absent: 1 each), for so many ranks; 0: as many as srun would
 * start, which is one a host if nobody has asked for tasks. If this host is all of it, it takes as
 * many ranks as are wanted; else TT_EINVAL if there is not room for them. *out has count 0 outside
 * of an allocation, and in a step of srun's, which is a part of one that is this process's own. */
tt_err tt_hosts_slurm(int ranks, tt_hosts *out);
int tt_hosts_slots(const tt_hosts *h);  /* in all; a host that does not say counts 1 */
bool tt_host_is_here(const char *name); /* by its name: no lookup */
void tt_hosts_free(tt_hosts *h);        /* accepts a zeroed one */

/* ---- TF_CONFIG ---- */

/* A cluster specification as TensorFlow has it: {"cluster": {"chief": ["h0:p"], "worker": [...],
 * "ps": [...]}, "task": {"type": "worker", "index": 0}}. Workers are ranks: the chief (or worker 0)
 * first. */
typedef struct tt_tf_task {
    char host[256];
    int port;
} tt_tf_task;
typedef struct tt_tf_config {
    tt_tf_task *rank; /* chief, then workers */
    int ranks;
    int servers;   /* parameter servers named; they take no part in synchronous training */
    char type[16]; /* of this process: chief, worker, ps, evaluator; "" if there is no task */
    int index;
    int me; /* its rank; -1: it is none of them */
} tt_tf_config;
/* TT_EINVAL says what is wrong and where: bad JSON with line and column, an unknown role (did you
 * mean), an address that is none or comes twice, a task outside the cluster. `text` NULL or without
 * a cluster: TT_OK and ranks 0. */
tt_err tt_tf_config_parse(const char *text, tt_tf_config *out);
/* The hosts in the order of their first rank, with their ranks as slots. A world launched on them
 * numbers its ranks host by host, also where TF_CONFIG mixes the hosts. */
tt_err tt_tf_config_hosts(const tt_tf_config *c, tt_hosts *out);
/* All addresses in the order of ranks, "a:2222,b:2222": what its processes must agree about. Added
 * to `out`. */
void tt_tf_config_show(const tt_tf_config *c, tt_str *out);
void tt_tf_config_free(tt_tf_config *c);

/* ---- Rooms ---- */

/* Folders of a run on each of its hosts, for what its workers have in common and leave to those who
 * come after them: one in memory and, for what does not fit there, one on disk, in a list as PATH
 * is. The name is all that is agreed on: who needs a room makes it. */
enum { TT_ROOMS = 1024 };
tt_err tt_rooms_name(char rooms[TT_ROOMS]); /* new ones; "" if there is no place for any */
bool tt_rooms_valid(const char *rooms);     /* are these names of rooms of this user? */
/* Makes the first of them, and holds those that are there until this process ends. */
void tt_rooms_hold(const char *rooms);
/* Removes all rooms beside these that nobody holds: their run has died, and whoever should have
 * removed them too. */
void tt_rooms_sweep(const char *rooms);
void tt_rooms_remove(const char *rooms); /* whoever has mapped a file in them keeps it */

/* ---- Hosts that wait: hub and agents ----
 *
 * A host may be taken into a world without a remote shell: a process of ours waits there, the
 * agent, and speaks with the supervisor's hub over an encrypted wire. When the launcher wants to
 * start its daemon on that host, what it takes for a remote shell is `tutti rsh`, which asks the
 * hub, which asks the agent. The agent ends with the exit code of the whole. Who has the cluster's
 * key may run commands where an agent is, as one could with ssh. */

typedef struct tt_hub tt_hub;
typedef struct tt_hub_opts {
    const char *folder;  /* of mode 0700; the hub's socket for this host is made in it  */
    const char *address; /* for agents, "tcp://host:port"; NULL: this host alone */
    const char *key;   /* file of the cluster's key; NULL if there is no address                  */
    const char *world; /* what agents must want to be part of; others are refused with both texts */
    /* Hosts may join at any time, each under one name: tt_hub_change tells. They are told where the
     * program of the workers is, which they must have too, and the run's rooms, to remove. */
    bool joins;
    const char *program, *rooms;
} tt_hub_opts;
tt_err tt_hub_open(const tt_hub_opts *o, tt_hub **out);
/* The command that stands for a remote shell: a link to `program`, which is ours, in the hub's
 * folder. */
#define TT_RSH_NAME "tutti-rsh"
tt_err tt_hub_rsh(const tt_hub *h, const char *program, tt_arena *a, const char **out);
/* What to poll for input, at most `room`; how many there are. Poll for 100 ms at most. */
struct pollfd;
int tt_hub_poll(const tt_hub *h, struct pollfd *p, int room);
/* Hears and answers all that has come. Never blocks. */
void tt_hub_turn(tt_hub *h);
/* Is there an agent that answers for this host? */
bool tt_hub_has(const tt_hub *h, const char *host);
int tt_hub_count(const tt_hub *h); /* agents in all */
/* What became of hosts that join, in order; false: nothing more. */
typedef enum tt_hub_change_kind {
    TT_HOST_CAME,   /* it has so many slots                                     */
    TT_HOST_LEAVES, /* it wants to: tt_hub_bye when nothing of the run is there */
    TT_HOST_LOST,   /* no word from it                                          */
} tt_hub_change_kind;
typedef struct tt_hub_change {
    tt_hub_change_kind kind;
    char host[256];
    char reach[256]; /* what to call it when it is told to the launcher: needs no lookup */
    int slots;
} tt_hub_change;
bool tt_hub_next_change(tt_hub *h, tt_hub_change *out);
/* It may go: its agent ends with 0. `done_with`: its copy of the state is of no use any more. */
void tt_hub_bye(tt_hub *h, const char *host, bool done_with);
void tt_hub_saved(tt_hub *h); /* all of the run is on disk: so are the copies of all others */
void tt_hub_set_run(tt_hub *h, const char *id); /* of the run (tt_run_dir_id): as for `rooms` */
/* Letters that are not about agents and their commands: of workers (tt_pulse) and of other commands
 * of ours. NULL: there is none; else `word` is its `say`, and the object is to be released. */
typedef struct tt_hub_from {
    uint32_t peer;
    bool far;
} tt_hub_from;
json_t *tt_hub_next(tt_hub *h, tt_hub_from *from, const char **word);
void tt_hub_say(tt_hub *h, tt_hub_from to, json_t *o); /* takes the reference */
const char *tt_hub_address(const tt_hub *h);           /* for those on this host */
/* For those on others: all addresses of this host, in a list: "tcp://10.0.0.1:4444,tcp://...".
 * Added to `out`; nothing if the hub is for this host alone. */
void tt_hub_addresses(const tt_hub *h, tt_str *out);
/* Tells all agents the exit code; they end what they have started. Accepts NULL. */
void tt_hub_close(tt_hub *h, int code);

typedef struct tt_agent_opts {
    const char *address, *key; /* as above */
    const char *host;          /* the name under which the hub knows this host */
    const char *world;
    double wait_s; /* for the hub to be there */
    /* A host that joins: so many slots; 0: none. When the hub is not heard of for a while, what
     * runs here is ended, but it is waited for once more. */
    int slots;
    void (*tell)(const char *text); /* what happens, for people; NULL: nobody listens */
} tt_agent_opts;
typedef struct tt_agent_end {
    int code;                      /* the hub's exit code; 0 if we have left     */
    bool done_with;                /* the run's copy of its state here is of no use any more */
    char rooms[TT_ROOMS], run[64]; /* what the run may have left here; "": unknown */
} tt_agent_end;
/* Waits for the hub, does what it is told, ends with it. *stop (NULL: none) may become true in a
 * signal handler: TT_ESTOP. One that joins leaves, as soon as the run can do without it: TT_OK; and
 * at once if *stop grows to more than 1. TT_EPEER: nobody came, or it is gone; TT_EENV: we are
 * refused. What was started here has then ended. */
tt_err tt_agent_run(const tt_agent_opts *o, const volatile int *stop, tt_agent_end *out);

/* What a program does that is called by the name TT_RSH_NAME: argv is the hub's socket, which is
 * `hub` beside the link, ssh's options, a host, and a command, which is run there by way of the
 * hub. What it prints comes out here. The exit code is the command's; 255 if it could not be run.
 */
int tt_rsh_run(int argc, const char **argv);

/* Text for people, and names, in a letter or a file: what is not UTF-8 becomes '?'. */
json_t *tt_json_text(const char *text);

/* ---- A worker's line to its supervisor ----
 *
 * A thread of its own tells ten times a second that the process lives, with phase and step, and
 * hears orders; so that a worker that computes is heard, one that is stopped is missed at once, and
 * one that hangs in its work is seen to live without progress. It begins before MPI does. */

typedef struct tt_pulse tt_pulse;
/* By what the environment says (TUTTI_CONTROL and others, set by the supervisor): *out is NULL if
 * nobody supervises. `rank`: as the launcher told it. TT_EENV: no key for a supervisor on another
 * host, or no thread. */
tt_err tt_pulse_open(int rank, tt_pulse **out);
tt_vital *tt_pulse_vital(tt_pulse *p); /* to be kept up to date; NULL for NULL */
/* Says READY and waits for GO. TT_ESTOP: told to end, or the supervisor is gone. */
typedef struct tt_go {
    uint32_t generation;
    bool known;    /* something is committed, as far as the ledger has it ... */
    tt_told told;  /* ... and this is it */
    bool ended;    /* the run had come to its end, was stopped or moved: all of it was saved */
    char why[512]; /* how the world before ended; "": there was none */
} tt_go;
tt_err tt_pulse_ready(tt_pulse *p, tt_go *out);
/* Something for the supervisor, in order; takes the reference. Does nothing for NULL. */
void tt_pulse_tell(tt_pulse *p, json_t *o);
/* Rank 0, before its world writes anything: from where it goes on. Waits until that is in the
 * ledger. */
tt_err tt_pulse_found(tt_pulse *p, tt_label label, uint32_t made, bool lost);
/* Rank 0: how it ended; waits until the supervisor knows. Takes the reference. */
tt_err tt_pulse_end(tt_pulse *p, json_t *o);
typedef enum tt_wish {
    TT_WISH_NONE,
    TT_WISH_YIELD, /* end at a step boundary: the state stays in the vault */
    TT_WISH_MOVE,  /* the same, and save: none of its hosts is in the next world */
    TT_WISH_SAVE,  /* save a checkpoint and end                            */
} tt_wish;
tt_wish tt_pulse_wish(const tt_pulse *p); /* of the supervisor; NONE for NULL */
void tt_pulse_close(tt_pulse *p);         /* what was told is out by then; accepts NULL */

/* ---- Launching ---- */

typedef struct tt_launch_opts {
    const tt_hosts *hosts;   /* NULL or count 0: this host alone                                */
    int ranks;               /* in all                                                          */
    const char *const *argv; /* the worker's command, ended by NULL; argv[0] an absolute path   */
    const char *const *env;  /* "NAME=value" that the workers need, ended by NULL; may be NULL  */
    const char *folder;      /* for files of the launcher and the MPI; made and removed by us. It
                              * is of this world alone: what is left in it of an earlier one, whose
                              * supervisor was killed, is ended and cleared away first */
    const char *rsh;         /* the command that reaches other hosts (tt_hub_rsh); NULL: as below */
    const char *rooms; /* of the run; NULL: none. The keeper removes them if the caller dies ... */
    const char *home;  /* ... and the folder of the caller's hub; NULL: it has none              */
} tt_launch_opts;

/* The command line of the launcher and what is set in its environment beside ours, as `tutti train
 * --dry-run` shows them: words ended by NULL in an arena. Starts nothing and changes nothing, so
 * that it can be tested. Ranks fill the hosts in their order. Honours TUTTI_RSH (a remote shell
 * instead of ssh, with arguments if need be) and TUTTI_MPIRUN (the launcher to use); settings of
 * the MPI in the environment (OMPI_MCA_btl, UCX_TLS, HYDRA_IFACE) win over ours. TT_EINVAL: more
 * ranks than slots, or a host the launcher cannot take; TT_EENV: launcher or remote shell is not
 * installed. */
typedef struct tt_launch_line {
    const char **argv, **env;
} tt_launch_line;
tt_err tt_launch_plan(const tt_launch_opts *o, tt_arena *a, tt_launch_line *out);
const char *tt_launcher_name(void); /* "mpirun (Open MPI)" or "mpiexec (MPICH)" */

/* A world that was started. Its standard output and error are pipes to read: if nobody does, it
 * stands still once they are full. All its processes have TUTTI_WORLD=<mark> in their environment.
 * The launcher has a keeper, a process of ours, which sees to it that nothing of the world stays on
 * this host, also if this program is killed; ranks on other hosts are ended by their part of the
 * launcher when it loses touch. */
typedef struct tt_launch {
    int pid;      /* of the keeper, which ends when the world has; 0: none */
    int out, err; /* ends to read; non-blocking */
    int control;  /* to the keeper */
    bool ended;
    int code;
    char mark[33];
    char folder[4096];
} tt_launch;
/* On error nothing is left behind and *out is zeroed. TT_EENV also if the worker is not there. */
tt_err tt_launch_start(const tt_launch_opts *o, tt_launch *out);
/* Sends a signal to the launcher. SIGUSR1 is passed on to all ranks; after SIGINT Open MPI leaves
 * its ranks about 2 s; SIGKILL ends all that carry the mark at once. SIGTERM is not heard. */
void tt_launch_signal(tt_launch *l, int sig);
/* Has it ended, and is nothing of it left on this host? Then true, with the exit code of the
 * launcher (128 + signal if it was killed). Never blocks. */
bool tt_launch_ended(tt_launch *l, int *code);
/* Ends it if it has not ended: SIGINT, after a grace of 2 s, or when the launcher alone is left
 * (with other hosts 4 s, for it clears up there), SIGKILL to all that carry its mark, and removes
 * its folder. What was not read is lost. To end it without grace, signal SIGKILL before. Leaves *l
 * zeroed, and accepts that. */
void tt_launch_close(tt_launch *l);

/* ---- Leftovers ---- */

/* What runs of this user that died have left on this host: rooms, and folders of supervisors with
 * what is in them. Vaults are the store's. free() the array. */
typedef struct tt_leftover {
    char path[4096];
    uint64_t bytes;
    double changed; /* seconds since 1970                 */
    bool hub;       /* of a supervisor; else it is a room */
} tt_leftover;
tt_err tt_leftovers(tt_leftover **out, int *count);
tt_err tt_leftover_remove(const tt_leftover *l); /* and ends processes that should not be there */
void tt_leftovers_sweep(void); /* those of supervisors; rooms are swept by who comes to use some */

#endif
