/* train: the private face of `tutti train`: its options, and one process that trains (work.c). */
#ifndef TT_CLI_TRAIN_H
#define TT_CLI_TRAIN_H

#include "cli.h"

typedef struct train_opts {
    tt_opt_list set;
    int64_t threads, spares;
    const char *max_restarts, *elastic, *workers, *hosts, *hostfile, *trace, *wait, *listen, *key;
    const char *coordinator;
    const char *run, *runs, *resume, *init;
    bool partial, quiet, json, dry_run, detach;
} train_opts;

/* ---- work.c ---- */
/* This process trains: alone, or as a worker of a world. The exit code. */
int work_run(const train_opts *o, int argc, const char **argv);
void work_catch_signals(void);
extern volatile int work_asked;      /* the signal that asked to stop; 0: none */
void work_command_line(tt_str *out); /* as it was typed */
tt_err work_read_trace(const char *text, int64_t *from, int64_t *to);

#endif
