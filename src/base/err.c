#include "err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fixed buffers: reporting that memory is out must need none. */
enum { MESSAGE_SIZE = 4096 };
static _Thread_local char message[MESSAGE_SIZE];

/* Marks a message that did not fit, so that nobody takes the cut for its end. */
static void mark_cut(char *text, int wanted)
{
    if (wanted >= MESSAGE_SIZE) memcpy(text + MESSAGE_SIZE - 4, "...", 4);
}

tt_err tt_vfail(tt_err code, const char *fmt, va_list ap)
{
    char next[MESSAGE_SIZE]; /* apart, because an argument may be tt_message() itself */

    mark_cut(next, vsnprintf(next, sizeof next, fmt, ap));
    memcpy(message, next, strlen(next) + 1);
    return code;
}

tt_err tt_fail(tt_err code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    tt_vfail(code, fmt, ap);
    va_end(ap);
    return code;
}

tt_err tt_context(tt_err code, const char *fmt, ...)
{
    char front[MESSAGE_SIZE], next[MESSAGE_SIZE];
    va_list ap;

    va_start(ap, fmt);
    mark_cut(front, vsnprintf(front, sizeof front, fmt, ap));
    va_end(ap);
    if (*message)
        mark_cut(next, snprintf(next, sizeof next, "%s: %s", front, message));
    else
        memcpy(next, front, sizeof next);
    memcpy(message, next, strlen(next) + 1);
    return code;
}

const char *tt_message(void)
{
    return message;
}

tt_err tt_repeat(tt_err code, const char *text)
{
    return tt_fail(code, "%s", text);
}

void tt_assert_failed(const char *file, int line, const char *cond)
{
    fprintf(stderr, "tutti: %s:%d: this is a mistake in Tutti: %s does not hold\n", file, line,
            cond);
    abort();
}
