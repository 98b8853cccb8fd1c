/* cli: what the commands share. One file per command; each has a table of its options, from which
 * parsing, help, man pages and completion are made.
 *
 * Only this module prints. Results go to standard output, everything else to standard error, so
 * that every command can be piped. */
#ifndef TT_CLI_H
#define TT_CLI_H

#include <stdio.h>

#include "base/base.h"
#include "cluster/cluster.h"
#include "cluster/helm.h"
#include "train/train.h"

#define CLI_OPTIONS(table) .options = (table), .option_count = TT_COUNT(table)

enum { CLI_PATH = 4096 };

extern const tt_command cli_train, cli_eval, cli_predict, cli_sample, cli_summary, cli_init,
    cli_config, cli_ckpt, cli_ledger, cli_export, cli_runs, cli_ps, cli_top, cli_stop, cli_logs,
    cli_resize, cli_join, cli_leave, cli_data, cli_doctor, cli_bench, cli_version, cli_help,
    cli_man, cli_completion;

/* Those that users are told of, in the order of the help. */
extern const tt_command *const cli_commands[];
extern const int cli_command_count;
const tt_command *cli_command_find(const char *name); /* hidden ones too; NULL */
tt_err cli_command_unknown(const char *name);         /* TT_EINVAL, with "did you mean" */

/* How this program was called: "tutti", or the path that was given. For commands to repeat. */
extern const char *cli_program;

/* ---- Errors: printed here, once ---- */
enum { CLI_REQUEUE = 75, CLI_INTERRUPTED = 130 };
int cli_exit_code(tt_err err);
int cli_fail(tt_err err); /* prints the message, returns the exit code */

/* The word of a command that has several: its place in `words`, or -1 after tt_fail. */
int cli_choose(const char *command, const char *word, const char *const *words, int count);

/* ---- Jobs and runs as people name them ---- */

/* `name` is a run folder, the name of one below `runs` (NULL: "runs"), or "last", the newest. */
tt_err cli_run_find(const char *name, const char *runs, char path[CLI_PATH]);

/* A job file, or a run (as above), whose job is then taken as it was resolved. The assignments of
 * --set are made and, unless quiet, shown on standard error. Close with cli_job_close. */
typedef struct cli_job {
    tt_tree *tree;
    char path[CLI_PATH]; /* the file that was read            */
    char run[CLI_PATH];  /* the run it is of; "" for a file   */
} cli_job;
tt_err cli_job_load(const char *name, const char *runs, const tt_opt_list *set, bool quiet,
                    cli_job *out);
void cli_job_close(cli_job *j); /* accepts a zeroed one */

/* Where weights are: a path, or else a run as above. */
tt_err cli_weights_find(const char *name, const char *runs, char path[CLI_PATH]);

tt_err cli_threads(int64_t wanted, int *out); /* of --threads: 0 as the job says, else 1 .. 1024 */

/* Opens what eval, predict and export work with: a job or run and its weights (NULL: the run's
 * own). */
typedef struct cli_use_opts {
    const char *job, *weights, *runs, *layer;
    const char *data; /* a file that is to be the validation set; NULL: the job's own */
    const tt_opt_list *set;
    bool partial;
    int64_t threads, batch;
} cli_use_opts;
typedef struct cli_use {
    cli_job job;
    char weights[CLI_PATH];
    tt_use *use;
} cli_use;
tt_err cli_use_open(const cli_use_opts *o, cli_use *out);
void cli_use_close(cli_use *u);                    /* accepts a zeroed one */
tt_err cli_split(const char *name, tt_split *out); /* val (also for NULL) or train */

/* ---- Output ---- */
json_t *cli_json_real(double v);                /* null for what JSON has no number for */
json_t *cli_json_metrics(const tt_metrics *m);  /* loss, accuracy ..., samples: those there are */
tt_metrics cli_metrics_read(const json_t *val); /* of such an object, but for the samples */
void cli_json_print(FILE *f, json_t *j, bool lines); /* takes the reference; lines: on one line */
void cli_metrics_show(const tt_metrics *m, char *buf,
                      size_t size); /* "loss 0.0412  accuracy 98.61 %  auc 0.9931" */
/* "1,234 samples/s", or of tokens, if there are any. Returns buf. */
char *cli_rate_show(double samples, double tokens, char *buf, size_t size);
void cli_quote(const char *word, tt_str *out); /* as the shell takes it; quotes only if needed */
void cli_time_show(double wall_s, char *buf, size_t size); /* "2024-05-01 12:30" */

/* What a terminal can do: NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE, TERM and COLUMNS are respected. */
typedef struct cli_screen {
    bool live; /* a terminal on which lines can be redrawn */
    bool color;
    bool utf8;
} cli_screen;
cli_screen cli_screen_of(int fd);
int cli_screen_width(int fd);

/* ---- told.c: what a training tells of itself; display.c shows it as it goes on ---- */
enum { CLI_RANKS = 256 }; /* rows that are passed on */
typedef enum cli_display_mode { CLI_SHOW, CLI_JSON, CLI_QUIET } cli_display_mode;
json_t *cli_told_start(const tt_trainer *t, tt_tree *job);
json_t *cli_told_end(tt_trainer *t, const char *status, const char *end, int code,
                     const char *trouble);
void cli_start_show(cli_display_mode mode, const json_t *start);
extern const char cli_trust[]; /* what to know when several hosts take part; the start shows it */
/* How to go on with a run whose end is not shown; both may be what it told at its start. */
void cli_resume_show(const json_t *start, const json_t *end);
void cli_end_show(cli_display_mode mode, const json_t *start, const json_t *end);

/* To and from the supervisor. */
json_t *cli_step_pack(const tt_progress *p, const tt_rank_times *times, int ranks);
/* `times` has room for CLI_RANKS; texts in *p are the object's. */
void cli_step_take(const json_t *o, tt_progress *p, tt_rank_times *times, int *ranks);

/* How far it is, `done` of 1: the part that is full and the rest. */
enum { CLI_BAR = 30 };
void cli_bar(double done, bool utf8, char full[CLI_BAR * 4 + 1], char rest[CLI_BAR * 4 + 1]);

typedef struct cli_display cli_display;
cli_display *cli_display_open(cli_display_mode mode, const json_t *start);
/* Allocates nothing. */
void cli_display_step(cli_display *d, const tt_progress *p, const tt_rank_times *times, int ranks);
void cli_display_note(cli_display *d, const char *text); /* "saving ..." */
void cli_display_leave(cli_display *d);                  /* the terminal is as it was before */
void cli_display_close(cli_display *d);                  /* accepts NULL */

/* That nobody reads what we print any more is no failure of the training. */
void cli_forget_reader(void);

/* ---- resume.c ---- */
typedef struct cli_run_opts {
    const char *run, *runs, *resume;
    bool quiet;
} cli_run_opts;
/* What was committed last is in memory of this host, and is not saved: with so many workers it goes
 * on from there. 0: it is not. */
int cli_run_kept(const char *run);
tt_err cli_run_choose(const cli_run_opts *o, const cli_job *j, char run[CLI_PATH], bool *resume);

/* ---- share.c: the data in common with other workers of the host ---- */
bool cli_shares(void); /* false: TUTTI_SHARE=0 */
/* A worker's folders, for tt_train_opts. All ranks call it. "" if each is to have its own. */
typedef struct cli_share {
    char rooms[1024]; /* of the run                                                      */
    bool kept;        /* for those who come after this world; else of this world alone   */
} cli_share;
tt_err cli_share_open(const tt_world *w, cli_share *out);
/* The data is open on all ranks, or will be on none. */
void cli_share_opened(const tt_world *w, const cli_share *s);
void cli_share_close(const tt_world *w,
                     const cli_share *s); /* the run has ended; accepts a zeroed one */

/* ---- supervise.c: a world of workers, started and watched ---- */
typedef struct cli_world_opts {
    int ranks;                         /* at most; 0: as many as the hosts take              */
    int least;                         /* 0: as many as `ranks`                              */
    int spares, max_restarts;          /* see tt_policy_opts                                 */
    const char *list, *file;           /* -H, --hostfile; NULL: none                         */
    const struct cli_adopter *adopter; /* of the hosts of TF_CONFIG; NULL: none              */
    const char *listen, *key;          /* for hosts that join; NULL: none may, the usual key */
    double wait_s;                     /* for them, and for lost ones; < 0: not said         */
    bool dry_run;                      /* show what would be started                         */
    cli_display_mode mode;
    const char *const *worker, *const *next; /* commands of workers: tt_supervisor_opts      */
    const char *run;                         /* its folder                                   */
    bool own_threads; /* nobody has said how many threads: workers share the CPUs out */
    tt_helm *helm;    /* see coordinate.c; NULL: none                 */
} cli_world_opts;
int cli_supervise(const cli_world_opts *o);               /* the exit code, or CLI_DEPOSED */
bool cli_supervise_told(void);                            /* by a signal, to end */
tt_err cli_ranks_check(const tt_hosts *hosts, int ranks); /* TT_EINVAL: a slip of the finger */

/* ---- live.c: runs that are alive on this host ---- */
typedef struct cli_live {
    int fd;
    char path[CLI_PATH];
} cli_live;
/* Until close, or the end of this process, others see the run. `address`: where its supervisor is
 * reached; NULL: there is none. */
tt_err cli_live_open(const char *run, const char *address, cli_live *out);
void cli_live_close(cli_live *l); /* accepts one that failed to open */
typedef struct cli_live_run {
    char run[CLI_PATH], host[256], address[CLI_PATH]; /* run: absolute */
    int pid;
    double since;
} cli_live_run;
tt_err cli_live_list(cli_live_run **out, int *count); /* oldest first; free() the array */
/* From the identity of a run (tt_run_id) back to its folder. */
void cli_live_remember(const char *run);
/* False: it is not where it was, or (*known stays false) nobody knows where that is. */
bool cli_live_recall(const char *id, char run[CLI_PATH], bool *known);
void cli_live_forget(const char *id);

/* ---- control.c: how other commands reach the supervisor of a run ---- */
typedef enum cli_boss_kind { CLI_NOBODY, CLI_ALONE, CLI_SUPERVISED } cli_boss_kind;
typedef struct cli_boss { /* who trains a run now */
    cli_boss_kind kind;
    int pid;
    char host[256], address[CLI_PATH];
    bool here; /* on this host */
} cli_boss;
void cli_boss_find(const char *run, cli_boss *out);
/* Asks the supervisor of a run and waits for its answer, an object; takes the reference of `ask`,
 * whose "ask" is the word. TT_EINVAL: nobody supervises it, or the answer is no; TT_EENV: it is on
 * another host; TT_EPEER: no answer in time, or it died meanwhile. */
tt_err cli_ask(const char *run, json_t *ask, double timeout_s, json_t **answer);

/* The other end, in the supervisor. */
typedef struct cli_control cli_control;
struct tt_supervisor;
struct tt_news;
cli_control *cli_control_open(struct tt_supervisor *s, const cli_world_opts *o,
                              const tt_hosts *hosts);
void cli_control_hear(cli_control *c, const struct tt_news *n); /* all of them, as they come */
typedef enum cli_order { CLI_GO_ON, CLI_STOP, CLI_STOP_NOW } cli_order;
cli_order cli_control_turn(cli_control *c);   /* what somebody asked for; call it often */
const char *cli_control_said(cli_control *c); /* the next line for people; NULL: none */
void cli_control_close(cli_control *c);       /* who still waits is told; accepts NULL */
/* status.c: what a supervisor or, without one, the run folder tells of a run. */
tt_err cli_status_get(const char *run, double timeout_s, json_t **out);

/* ---- clean.c: what runs that died have left on this host ---- */
typedef struct cli_clean_opts {
    const char *runs;
    bool dry_run, all, json;
} cli_clean_opts;
tt_err cli_clean(const cli_clean_opts *o);
/* The vault of a run that is over, on this host, if a worker died before it could remove it. */
void cli_vault_drop(const char *run);

/* ---- detach.c: a training without a terminal ---- */
/* In the child false, and what it prints from here on is kept: until the run has begun for the
 * parent, which then has its exit code in *code and true, and after that in <run>/console.log. */
bool cli_detach(bool json, const volatile int *stop, int *code);
void cli_detach_begun(const char *run); /* nothing, if it is not detached */

/* ---- steer.c: what the supervisor sees for itself: hosts file, CPUs ---- */
typedef struct cli_steer cli_steer;
cli_steer *cli_steer_open(struct tt_supervisor *s, const cli_world_opts *o, const tt_hosts *hosts);
void cli_steer_turn(cli_steer *t, bool exact, tt_str *said); /* lines for people */
/* The user has decided how many workers, or how many threads each: that stays. */
void cli_steer_decided(cli_steer *t, bool workers, bool threads);
void cli_steer_close(cli_steer *t);
/* Workers that this host takes of `least` to `most`: as many as it has CPUs. */
int cli_slots_here(int least, int most);

/* ---- join.c, leave.c: machines that come and go ---- */
void cli_join_world(char out[256]);           /* what must be the same on all of them */
tt_err cli_agents_folder(char out[CLI_PATH]); /* of this user's agents on this host */

/* ---- coordinate.c: one of several supervisors leads, the others stand by ---- */
enum { CLI_DEPOSED = -2 };
typedef struct cli_coordinate_opts {
    const char *address; /* of --coordinator                          */
    const char *run;     /* its folder, made if absent: all have it   */
    cli_display_mode mode;
    int (*lead)(void *arg, tt_helm *helm); /* as cli_supervise; may be called several times */
    void *arg;
} cli_coordinate_opts;
int cli_coordinate(const cli_coordinate_opts *o); /* the exit code of the run */

/* ---- adopt.c: processes that were started by hand on every host, by TF_CONFIG ---- */
typedef struct cli_adopter {
    const tt_tf_config *c;
    tt_hub *hub; /* NULL: TUTTI_RSH starts the others */
    char folder[CLI_PATH];
} cli_adopter;
/* The first one: listens from the beginning, so that whatever goes wrong the others hear of it. */
tt_err cli_adopter_open(const tt_tf_config *c, cli_adopter *out);
/* Waits until the hosts of all others have an agent. */
tt_err cli_adopt(tt_hub *h, const cli_world_opts *o, const tt_hosts *hosts,
                 const volatile int *stop);
void cli_adopter_close(cli_adopter *a, int code); /* the others end with this code */
/* The others: they wait to be adopted, and end with the exit code of the first. */
int cli_be_adopted(const tt_tf_config *c, double wait_s, bool quiet);

#endif
