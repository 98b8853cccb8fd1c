/* text: numbers with units, characters, names that were nearly right, and strings that grow. */
#ifndef TT_TEXT_H
#define TT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The whole string must be the number, else false. Locale plays no part. */
bool tt_parse_int(const char *s, int64_t *out);   /* -12, 64k (64,000), 2M, 4Ki, 1e6          */
bool tt_parse_number(const char *s, double *out); /* 1e-3, .5, 64k, inf and nan refused       */
bool tt_parse_bool(const char *s, bool *out);     /* true false yes no on off                 */
bool tt_parse_size(const char *s, int64_t *out);  /* bytes: 4096, 64k, 10MB, 2GiB             */
bool tt_parse_time(const char *s, double *out_s); /* seconds: 30, 30s, 10m, 2h, 500ms, 1d     */

double tt_strtod(const char *s, char **end); /* strtod with a point, whatever the locale says  */
float tt_half(uint16_t bits);                /* IEEE 754 half precision                        */

/* Bytes of the well-formed UTF-8 character at s (n of them are there), 0 if there is none. */
size_t tt_utf8_size(const char *s, size_t n);

/* Of `count` names the one a user most likely meant by `word`, or NULL if none is near. */
const char *tt_nearest(const char *word, const char *const *names, int count);

/* "1,234,567", "12.3 MB", "1 h 02 m", for people. Each returns buf. */
char *tt_show_count(int64_t n, char *buf, size_t size);
char *tt_show_bytes(double bytes, char *buf, size_t size);
char *tt_show_time(double s, char *buf, size_t size);

/* A string that grows. Zero it to start; data is NUL-terminated (or NULL while empty). */
typedef struct tt_str {
    char *data;
    size_t size, room;
} tt_str;
void tt_str_add(tt_str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tt_str_put(tt_str *s, const void *bytes, size_t size);
void tt_str_free(tt_str *s); /* leaves it zeroed */

#endif
