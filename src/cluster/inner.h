/* inner: what the files of cluster share, and what tests and fuzzing try by itself. */
#ifndef TT_CLUSTER_INNER_H
#define TT_CLUSTER_INNER_H

#include <jansson.h>

#include "cluster.h"
#include "comm/wire.h"
#include "store/ledger.h"

enum {
    TT_HOSTS_MOST = 100000, /* hosts in a list: more is a mistake, or an attack on our memory */
    TT_SLOTS_MOST = 1000000,
};

/* ---- hosts ---- */

/* A list in the making. Zero it to start; it finds a name at once, however long it grows. */
typedef struct tt_hosts_maker {
    tt_hosts hosts;
    int room;
    int *bucket; /* 1 + the place in hosts of a name with this hash; 0: free */
    int bucket_count;
} tt_hosts_maker;
tt_err tt_hosts_add(tt_hosts_maker *m, const char *name, int slots);
/* Hands the list over if all went well, and frees what is left; returns err. */
tt_err tt_hosts_done(tt_hosts_maker *m, tt_err err, tt_hosts *out);

/* Splits "name", "name:rest" or "[v6]:rest". *rest is NULL if there is no colon. Returns what is
 * wrong, to be put behind the text in question ("is empty"), or NULL. */
const char *tt_host_split(const char *text, size_t size, char name[256], const char **rest,
                          size_t *rest_size);
/* A plain decimal number, 0 to most; -1 if it is none. */
int tt_digits(const char *text, size_t size, int most);
/* Text from outside, fit to be shown: cut, and without what a terminal would act on. */
const char *tt_show_text(const char *text, size_t size, char buf[96]);

tt_err tt_hosts_read_text(const char *path, const char *text, size_t size, tt_hosts *out);
tt_err tt_hosts_slurm_parse(const char *nodes, const char *tasks,
                            tt_hosts *out); /* NULL: not set */

/* ---- launching: with either MPI, so that one build can test both ---- */

typedef enum tt_mpi { TT_BY_OPENMPI, TT_BY_MPICH } tt_mpi;
tt_mpi tt_launch_mpi(void); /* the one this program was built for */
/* `mark` goes into the environment of all that is started; NULL: none. */
tt_err tt_launch_plan_by(tt_mpi mpi, const tt_launch_opts *o, const char *mark, tt_arena *a,
                         tt_launch_line *out);
tt_err tt_launch_start_by(tt_mpi mpi, const tt_launch_opts *o, tt_launch *out);
/* The absolute path of a world's folder, and of the one in shared memory that goes with it. */
tt_err tt_launch_folders(const char *folder, tt_arena *a, const char **full, const char **shm);
bool tt_hosts_alone(const tt_hosts *h); /* all ranks on this host, whatever it is called? */
bool tt_is_program(const char *path);   /* a file that may be executed */

/* ---- hub and agents: see hub.c ---- */

enum { TT_HUB_PROTOCOL = 2, TT_COMMANDS = 64 /* at once, of one agent */ };
/* So long without a word, hub and agent take each other for gone. Tests make it shorter. */
extern double tt_silence_s;
/* Takes the reference. False: it was not queued. */
bool tt_say(tt_wire *w, uint32_t to, json_t *o);
/* The next letter that is an object with a `say`, which is *word; NULL: none. To be released. */
json_t *tt_hear(tt_wire *w, uint32_t *from, const char **word);
/* What goes into a letter, beside tt_json_text. Bytes come out as they went in. */
json_t *tt_json_bytes(const void *data, size_t size);
/* What is in one: "", 0 and 255 if there is no such thing. Bytes are added to `out`. */
const char *tt_text_of(const json_t *o, const char *key);
int tt_number_of(const json_t *o, const char *key);
int tt_code_of(const json_t *o);
void tt_bytes_of(const json_t *o, const char *key, tt_str *out);

/* In the environment of what an agent starts: the file of the key that it has. */
#define TT_AGENT_KEY "TUTTI_AGENT_KEY"
/* In that of a launcher which reaches hosts by their agents: the folder of its world in shared
 * memory, which there must be on all of them. */
#define TT_WORLD_SHM "TUTTI_WORLD_SHM"

/* ---- pulse.c ---- */
extern const double TT_LEASE_S;       /* a worker that hears nothing for so long ends */
#define TT_PULSE_THREAD "tutti-pulse" /* its name */

/* "function in file", or what is known of it. */
void tt_function_name(const void *address, char *out, size_t size);

/* ---- the book: see book.c ---- */

typedef struct tt_book {
    char run[4096];
    int fd, lock;
    int generation; /* the last that was persisted; 0: none */
    tt_ledger ledger;
    int64_t end;   /* of the last whole line of the ledger */
    tt_str owed;   /* lines that are not on disk           */
    bool owes;     /* ... or the generation is not         */
    bool troubled; /* and it was told                      */
    double tried;
    char alarm[768]; /* what is to be told; "": nothing      */
} tt_book;
typedef struct tt_book_opts {
    const char *address;     /* where this supervisor is reached on its host              */
    const char *rooms;       /* of its run there; NULL: none                              */
    const char *coordinator; /* which of them has given it the run; NULL: none            */
} tt_book_opts;
/* TT_EINVAL: another one has the run, and not from that coordinator; TT_EFORMAT: what is there is
 * damaged. */
tt_err tt_book_open(const char *run, const tt_book_opts *o, tt_book *out);
void tt_book_persist(tt_book *b, int generation);
/* What the record violates; NULL: nothing. `safe`: on disk when it returns. */
const char *tt_book_record(tt_book *b, const tt_record *r, bool safe);
/* That the disk fails, or works again: told once each. False: nothing new. From time to time it
 * tries again to write what it owes. */
bool tt_book_news(tt_book *b, char out[768]);
void tt_book_close(tt_book *b);

/* ---- rooms and other leftovers ---- */

bool tt_room_is_named(const char *name);
bool tt_room_is_left(const char *room); /* nobody holds it, and nobody is just about to */
/* Ends what is left of a world that was started with this folder, and removes its folders. */
tt_err tt_launch_clear(const char *folder);
/* What an MPI has left in /dev/shm outside of all folders: when a world has ended. See litter.c. */
void tt_litter_sweep(void);

/* ---- the keeper: see keeper.c ---- */

enum { TT_MARK = 33 };           /* 32 hexadecimal digits and NUL */
extern const double TT_KEEPER_S; /* the longest an ending keeper takes */

typedef struct tt_keeper {
    const char *const *argv, *const *env; /* of the launcher; env is all of it */
    const char *mark;
    const char *folder, *shm; /* to remove in the end; shm may be NULL */
    bool far;                 /* other hosts take part: the launcher has to clear up there, too */
    const char *rooms, *home; /* to remove if the supervisor dies; may be NULL */
    int lock;                 /* held as long as the keeper lives                            */
    int control;              /* bytes from the supervisor, each a signal for the launcher, 0: it
                               * is about to close it; its end, or that of the supervisor, ends
                               * the world                                                   */
    int out, err;             /* for the world to write to                                   */
    int status;               /* told errno if the launcher cannot be executed, else closed  */
} tt_keeper;
/* Life of the keeper, in a process just forked. Its exit code is that of the launcher. */
_Noreturn void tt_keeper_run(const tt_keeper *k);

tt_err tt_mark_make(char mark[TT_MARK]); /* nobody else has it */
/* Sends `sig` (0: nothing) to all processes of this host that carry the mark, but for `except` and
 * the caller; returns how many there are. */
int tt_mark_signal(const char *mark, int sig, int except);
/* SIGKILL until nobody carries the mark; false if somebody still does after 10 s. */
bool tt_mark_end(const char *mark);
int tt_exit_code(int status); /* of waitpid: 128 + signal if it was killed */

#endif
