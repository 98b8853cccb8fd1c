/* log: what happens, in lower-case plain sentences. The level says how often a line may appear.
 *
 * Lines go to the log file, if one is open, with time and rank; warnings and errors also to
 * standard error unless a display owns the terminal (tt_log_quiet). TUTTI_LOG=error or warn in the
 * environment keeps the rest out. */
#ifndef TT_LOG_H
#define TT_LOG_H

#include <stdbool.h>

typedef enum tt_level { TT_LOG_ERROR, TT_LOG_WARN, TT_LOG_INFO } tt_level;

void tt_logf(tt_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define tt_warn(...) tt_logf(TT_LOG_WARN, __VA_ARGS__) /* something a user should look at */
#define tt_info(...) tt_logf(TT_LOG_INFO, __VA_ARGS__) /* once per event of the run       */

int tt_log_open(const char *path); /* appends; 0, or an errno; closes the one before        */
void tt_log_rank(int rank);        /* who writes, for the file; 0 at first                  */
void tt_log_quiet(bool quiet);     /* true: warnings go to the file alone                   */
void tt_log_close(void);

double tt_clock_s(void); /* monotonic seconds: for deadlines and durations, never jumps           */
double tt_wall_s(void);  /* seconds since 1970: for people and file names                         */

#endif
