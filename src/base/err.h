/* err: one error type for the whole system.
 *
 * The code says what the caller should do next; the message, one sentence per thread, says what
 * happened. Libraries return errors; only cli/ prints them, once. */
#ifndef TT_ERR_H
#define TT_ERR_H

#include <stdarg.h>

typedef enum tt_err {
    TT_OK = 0,
    TT_EINVAL,    /* fix the arguments or the job file          (exit 2) */
    TT_ENOMEM,    /* use less, or give up                       (exit 1) */
    TT_EIO,       /* retry, or use another place                (exit 1) */
    TT_EFORMAT,   /* this file is bad: try an older one         (exit 3) */
    TT_EDATA,     /* get, or repair, the dataset                (exit 3) */
    TT_ECKPT,     /* no checkpoint or weights that fit          (exit 6) */
    TT_EDIVERGED, /* the numbers ran away: change the job       (exit 5) */
    TT_EENV,      /* this machine lacks something               (exit 7) */
    TT_EPEER,     /* this world is broken: form the next        (exit 4) */
    TT_ESTOP,     /* asked to stop: leave cleanly        (exit 75 or 130) */
} tt_err;

/* Sets this thread's message and returns `code`, so that callers write `return tt_fail(...)`. */
tt_err tt_fail(tt_err code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
tt_err tt_vfail(tt_err code, const char *fmt, va_list ap);

/* Adds what only the caller knows, in front: "resuming run r42: <message so far>". Returns `code`.
 */
tt_err tt_context(tt_err code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The message of this thread's last error; "" if none. May have several lines (a job file's line
 * with its caret). Valid until this thread's next tt_fail or tt_context. */
const char *tt_message(void);

/* Hands an error from one thread to another: the worker keeps tt_message(), the waiter repeats it.
 */
tt_err tt_repeat(tt_err code, const char *message);

/* Our own mistakes only; stays on in release builds. Prints file, line and condition, then aborts.
 */
#define TT_ASSERT(cond) ((cond) ? (void)0 : tt_assert_failed(__FILE__, __LINE__, #cond))
_Noreturn void tt_assert_failed(const char *file, int line, const char *cond);

#endif
