/* MPI as a transport: point-to-point, non-blocking, and nothing else of it.
 *
 * A blocking call on a dead peer hangs for ever with every MPI we know, and none of them repairs a
 * world. So: MPI_Isend, MPI_Irecv and MPI_Test alone, deadlines above them, and sums of our own,
 * whose order is the same with every MPI. MPI_Init and MPI_Finalize are the two calls that may
 * wait; the launcher watches over those. */
#define _GNU_SOURCE
#include <mpi.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/carrier.h"

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request must fit a handle");

static tt_err mpi_failed(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int size = 0;

    MPI_Error_string(code, text, &size);
    return tt_fail(TT_EPEER, "%s: %.*s", what, size, text);
}

static void put_request(uint64_t *handle, MPI_Request r)
{
    *handle = 0;
    memcpy(handle, &r, sizeof r);
}

static tt_err mpi_send(tt_world *w, int to, int tag, const void *data, size_t bytes,
                       uint64_t *handle)
{
    MPI_Request r;
    int code;

    (void)w;
    TT_ASSERT(bytes <= INT_MAX);
    code = MPI_Isend(data, (int)bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD, &r);
    if (code) return mpi_failed(code, "MPI_Isend");
    put_request(handle, r);
    return TT_OK;
}

static tt_err mpi_recv(tt_world *w, int from, int tag, void *data, size_t bytes, uint64_t *handle)
{
    MPI_Request r;
    int code;

    (void)w;
    TT_ASSERT(bytes <= INT_MAX);
    code = MPI_Irecv(data, (int)bytes, MPI_BYTE, from, tag, MPI_COMM_WORLD, &r);
    if (code) return mpi_failed(code, "MPI_Irecv");
    put_request(handle, r);
    return TT_OK;
}

static tt_err mpi_test(tt_world *w, tt_op *op, size_t *came)
{
    MPI_Request r;
    MPI_Status status;
    int code, flag = 0, bytes = 0;

    (void)w;
    memcpy(&r, &op->handle, sizeof r);
    code = MPI_Test(&r, &flag, &status);
    put_request(&op->handle, r);
    if (code) return mpi_failed(code, "MPI_Test");
    op->done = flag;
    if (flag && !op->sends) {
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        *came = (size_t)bytes;
    }
    return TT_OK;
}

/* ---- The end ----
 *
 * MPI_Finalize is left to the end of the program: MPICH 4.0 hangs in it now and then between hosts,
 * and by then there is nothing to lose. All ranks have left and have nothing more to say, so the
 * process ends all the same, with the code it was to end with. */

enum { FINALIZE_S = 3 };
static bool finalize; /* MPI was begun by us */
static volatile sig_atomic_t exit_code;

static void end_here(int sig)
{
    (void)sig;
    _exit(exit_code);
}

static void end_mpi(int code, void *arg)
{
    (void)arg;
    exit_code = code;
    fflush(NULL);
    signal(SIGALRM, end_here);
    alarm(FINALIZE_S);
    MPI_Finalize();
    alarm(0);
}

static void mpi_leave(tt_world *w, int failed)
{
    if (failed) {
        fflush(NULL);
        MPI_Abort(MPI_COMM_WORLD, failed);
        _exit(failed);
    }
    /* Who waits in MPI_Finalize for somebody who never comes has no deadline. */
    if (tt_group_barrier(tt_world_all(w))) mpi_leave(w, 4);
    tt_world_drop(w);
    if (finalize) on_exit(end_mpi, NULL);
}

/* "Open MPI v4.1.4, package: ..." is "Open MPI 4.1.4", "MPICH Version: 4.0.2 ..." "MPICH 4.0.2". */
const char *tt_mpi_name(void)
{
    static char name[64];
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int size;

    MPI_Get_library_version(text, &size);
    bool open = strstr(text, "Open MPI") != NULL, mpich = strstr(text, "MPICH") != NULL;
    char *p = strpbrk(text, "0123456789");
    snprintf(name, sizeof name, "%s %.*s",
             open    ? "Open MPI"
             : mpich ? "MPICH"
                     : "MPI",
             p ? (int)strspn(p, "0123456789.") : 0, p ? p : "");
    return name;
}

/* Without these words of srun's each rank would be alone, or MPI end the process with half a page
 * of advice on how to build Slurm. */
static tt_err check_srun(const tt_started *by)
{
#ifdef TT_MPICH
    static const char sign[] = "PMI_FD", option[] = "pmi2";
#else
    static const char sign[] = "PMIX_NAMESPACE", option[] = "pmix";
#endif
    if (strcmp(by->by, "srun") || by->size < 2 || getenv(sign)) return TT_OK;
    return tt_fail(TT_EENV,
                   "srun started this as one of %d ranks, but did not tell %s how to find the "
                   "others: say srun --mpi=%s (if srun --mpi=list has it); or leave srun out, for "
                   "'tutti train' starts the ranks of an allocation by itself",
                   by->size, tt_mpi_name(), option);
}

/* A group has TT_TAGS tags of its own. */
static tt_err check_tags(const tt_world *w)
{
    int *most = NULL, found = 0;

    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found);
    if (found && *most >= CONTEXTS * TT_TAGS - 1) return TT_OK;
    return tt_fail(TT_EENV, "%s has tags up to %d over this network, and %d are needed",
                   w->transport, found ? *most : 32767, CONTEXTS * TT_TAGS - 1);
}

tt_err tt_mpi_join(const tt_started *by, tt_world **out)
{
    static const tt_carrier_calls calls = {mpi_send, mpi_recv, mpi_test, mpi_leave};
    char host[MPI_MAX_PROCESSOR_NAME] = "host";
    int given, code, begun = 0;
    tt_world *w;
    tt_err err;

    *out = NULL;
    MPI_Initialized(&begun); /* by a program that uses MPI itself: then it ends it, too */
    if (!begun && (err = check_srun(by))) return err;
    if (!begun && (code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given)))
        return tt_fail(TT_EENV, "MPI does not start (code %d)", code);
    finalize = !begun;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (!(w = calloc(1, sizeof *w)) || !(w->carrier = calloc(1, sizeof *w->carrier)))
        tt_mem_out(sizeof *w);
    w->carrier->calls = &calls;
    w->transport = tt_mpi_name();
    w->timeout_s = 60;
    MPI_Comm_rank(MPI_COMM_WORLD, &w->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &w->size);
    if (by->size > 1 && w->size == 1) {
        err = tt_fail(TT_EENV,
                      "%s started this as one of %d ranks, but it is built for %s, which sees only "
                      "itself: use the launcher of that MPI, or build with the other one (make "
                      "MPI=mpich, MPI=openmpi)",
                      by->by, by->size, w->transport);
        goto out;
    }
    if ((err = check_tags(w))) goto out;
    gethostname(host, sizeof host - 1);
    if ((err = tt_world_fill(w, host))) return err;
    *out = w;
    return TT_OK;
out:
    if (finalize) MPI_Finalize();
    free(w->carrier);
    free(w);
    return err;
}
