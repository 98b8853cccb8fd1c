#define _GNU_SOURCE
#include "text.h"

#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "err.h"
#include "mem.h"

/* ---- numbers ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A decimal number at the start of a string: digits * 10^exponent. */
typedef struct decimal {
    bool negative;
    bool fits;       /* in `digits`; a double may be had from the text all the same */
    uint64_t digits; /* without the point */
    int exponent;
    const char *end; /* where the number stops and a unit may begin */
} decimal;

/* [+-] (digits [. digits*] | . digits) [e [+-] digits] */
static bool scan_decimal(const char *s, decimal *out)
{
    decimal d = {.fits = true};
    bool any = false, point = false;
    int exponent = 0, sign = 1;
    const char *e;

    if (*s == '-' || *s == '+') d.negative = *s++ == '-';
    for (; is_digit(*s) || (*s == '.' && !point); s++) {
        if (*s == '.') {
            point = true;
            continue;
        }
        any = true;
        if (__builtin_mul_overflow(d.digits, 10, &d.digits) ||
            __builtin_add_overflow(d.digits, (uint64_t)(*s - '0'), &d.digits))
            d.fits = false;
        if (point && d.exponent > -100000) d.exponent--;
    }
    if (!any) return false;
    if (*s == 'e' || *s == 'E') {
        e = s + 1;
        if (*e == '-' || *e == '+') sign = *e++ == '-' ? -1 : 1;
        if (is_digit(*e)) {
            for (; is_digit(*e); e++)
                if (exponent < 100000) exponent = exponent * 10 + (*e - '0');
            s = e;
        }
    }
    d.exponent += sign * exponent;
    d.end = s;
    *out = d;
    return true;
}

/* "", k, M, G, T: powers of 1000; with an i, of 1024. False if `s` is none of these. */
static bool unit_of(const char *s, bool any_case, uint64_t *out)
{
    static const char letters[] = "kMGT";
    uint64_t base = 1000, unit = 1;
    char c = *s;

    *out = 1;
    if (!c) return true;
    for (int i = 0; i < 4; i++) {
        bool same = c == letters[i] || (c == 'K' && i == 0) ||
                    (any_case && tolower((unsigned char)c) == tolower((unsigned char)letters[i]));
        if (!same) continue;
        if (s[1] == 'i') base = 1024;
        for (int k = 0; k <= i; k++) unit *= base;
        *out = unit;
        return s[base == 1024 ? 2 : 1] == 0;
    }
    return false;
}

/* The exact integer, or false: 1.5k is one, 1.5 is none. */
static bool to_integer(const decimal *d, uint64_t unit, int64_t *out)
{
    unsigned __int128 v = (unsigned __int128)d->digits * unit;
    uint64_t limit = (uint64_t)INT64_MAX + d->negative;

    if (!d->fits) return false;
    if (d->digits == 0) {
        *out = 0;
        return true;
    }
    for (int e = d->exponent; e < 0; e++) {
        if (v % 10) return false; /* also ends the loop: v > 0 runs out of factors */
        v /= 10;
    }
    for (int e = d->exponent; e > 0; e--) {
        if (v > limit) return false;
        v *= 10;
    }
    if (v > limit) return false;
    *out = d->negative ? (int64_t)(0 - (uint64_t)v) : (int64_t)v;
    return true;
}

bool tt_parse_int(const char *s, int64_t *out)
{
    decimal d;
    uint64_t unit;

    return scan_decimal(s, &d) && unit_of(d.end, false, &unit) && to_integer(&d, unit, out);
}

static locale_t c_locale;
static void open_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

double tt_strtod(const char *s, char **end)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, open_locale);
    if (!c_locale) tt_mem_out(sizeof c_locale);
    return strtod_l(s, end, c_locale);
}

float tt_half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float v;

    if (exponent == 31)
        v = fraction ? NAN : INFINITY;
    else if (exponent)
        v = ldexpf((float)(1024 + fraction), exponent - 25);
    else
        v = ldexpf((float)fraction, -24);
    return bits >> 15 ? -v : v;
}

bool tt_parse_number(const char *s, double *out)
{
    decimal d;
    uint64_t unit;
    double v;

    if (!scan_decimal(s, &d) || !unit_of(d.end, false, &unit)) return false;
    v = tt_strtod(s, NULL) * (double)unit;
    if (!isfinite(v)) return false;
    *out = v;
    return true;
}

bool tt_parse_bool(const char *s, bool *out)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};

    for (int i = 0; i < 6; i++) {
        if (strcasecmp(s, words[i])) continue;
        *out = i % 2;
        return true;
    }
    return false;
}

bool tt_parse_size(const char *s, int64_t *out)
{
    decimal d;
    uint64_t unit;
    int64_t v;
    char suffix[4] = "";
    size_t n;

    if (!scan_decimal(s, &d) || (n = strlen(d.end)) >= sizeof suffix) return false;
    memcpy(suffix, d.end, n);
    if (n && (suffix[n - 1] == 'B' || suffix[n - 1] == 'b')) suffix[n - 1] = 0;
    if (!unit_of(suffix, true, &unit) || !to_integer(&d, unit, &v) || v < 0) return false;
    *out = v;
    return true;
}

bool tt_parse_time(const char *s, double *out_s)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    decimal d;
    double v;

    if (!scan_decimal(s, &d)) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(d.end, units[i].name)) continue;
        v = tt_strtod(s, NULL) * units[i].seconds;
        if (!isfinite(v) || v < 0) return false;
        *out_s = v;
        return true;
    }
    return false;
}

/* ---- characters ---- */

size_t tt_utf8_size(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t size;

    if (n == 0) return 0;
    size = u[0] < 0x80 ? 1 : u[0] < 0xC2 ? 0 : u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
    if (size > n || u[0] > 0xF4) return 0;
    for (size_t i = 1; i < size; i++)
        if (u[i] >> 6 != 2) return 0;
    if (u[0] == 0xE0 && u[1] < 0xA0) return 0; /* written too long */
    if (u[0] == 0xED && u[1] > 0x9F) return 0; /* half of a surrogate pair */
    if (u[0] == 0xF0 && u[1] < 0x90) return 0;
    if (u[0] == 0xF4 && u[1] > 0x8F) return 0;
    return size;
}

/* ---- names that were nearly right ---- */

enum { MOST_NAME = 64 };

/* A dash for an underscore, or a capital, is no mistake worth counting. */
static char fold(char c)
{
    return c == '-' ? '_' : (char)tolower((unsigned char)c);
}

/* Insertions, deletions, substitutions and swaps of neighbours that turn a into b. */
static int edit_distance(const char *a, int na, const char *b, int nb)
{
    int row[3][MOST_NAME + 1];

    for (int j = 0; j <= nb; j++) row[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *now = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= nb; j++) {
            int best = up[j - 1] + (fold(a[i - 1]) != fold(b[j - 1]));
            if (up[j] + 1 < best) best = up[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                fold(a[i - 2]) == fold(b[j - 1]) && up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[na % 3][nb];
}

const char *tt_nearest(const char *word, const char *const *names, int count)
{
    const char *best = NULL;
    int best_cost = INT32_MAX, n = (int)strnlen(word, MOST_NAME + 1);

    if (n == 0 || n > MOST_NAME) return NULL;
    for (int i = 0; i < count; i++) {
        int m = (int)strnlen(names[i], MOST_NAME + 1), shorter = n < m ? n : m, cost, k = 0;
        if (m == 0 || m > MOST_NAME) continue;
        cost = edit_distance(word, n, names[i], m);
        if (cost > (shorter + 2) / 3) {
            /* Far, unless one is the beginning of the other: batchsize for batch. */
            while (k < shorter && fold(word[k]) == fold(names[i][k])) k++;
            if (k < shorter || k < 3) continue;
            cost += MOST_NAME;
        }
        if (cost < best_cost) best_cost = cost, best = names[i];
    }
    return best;
}

/* ---- for people ---- */

char *tt_show_count(int64_t n, char *buf, size_t size)
{
    char digits[24], text[32];
    int len = snprintf(digits, sizeof digits, "%llu",
                       n < 0 ? 0ULL - (unsigned long long)n : (unsigned long long)n);
    int at = 0;

    if (n < 0) text[at++] = '-';
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0) text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = 0;
    snprintf(buf, size, "%s", text);
    return buf;
}

char *tt_show_bytes(double bytes, char *buf, size_t size)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double v = fabs(bytes);
    int u = 0;

    /* 999.95 would be shown as 1000.0: go to the next unit before. */
    for (; v >= (u ? 999.95 : 999.5) && u < 6; u++) v /= 1000;
    snprintf(buf, size, "%s%.*f %s", bytes < 0 ? "-" : "", u > 0, v, units[u]);
    return buf;
}

char *tt_show_time(double s, char *buf, size_t size)
{
    const char *sign = s < 0 ? "-" : "";
    double v = fabs(s);
    long long whole;

    if (!(v < 1e15))
        snprintf(buf, size, "%s", isnan(v) ? "?" : "for ever");
    else if (v < 1e-3)
        snprintf(buf, size, "%s%.0f us", sign, v * 1e6);
    else if (v < 0.9995)
        snprintf(buf, size, "%s%.0f ms", sign, v * 1e3);
    else if (v < 59.95)
        snprintf(buf, size, "%s%.1f s", sign, v);
    else if ((whole = llround(v)) < 3600)
        snprintf(buf, size, "%s%lld m %02lld s", sign, whole / 60, whole % 60);
    else if ((whole = llround(v / 60)) < 24 * 60)
        snprintf(buf, size, "%s%lld h %02lld m", sign, whole / 60, whole % 60);
    else {
        whole = llround(v / 3600);
        snprintf(buf, size, "%s%lld d %02lld h", sign, whole / 24, whole % 24);
    }
    return buf;
}

/* ---- strings that grow ---- */

static void reserve(tt_str *s, size_t more)
{
    size_t need, room = s->room ? s->room : 64;

    if (__builtin_add_overflow(s->size, more, &need) || need >= PTRDIFF_MAX) tt_mem_out(more);
    if (need < s->room) return;
    while (room <= need) room *= 2;
    s->data = realloc(s->data, room);
    if (!s->data) tt_mem_out(room);
    s->room = room;
}

void tt_str_put(tt_str *s, const void *bytes, size_t size)
{
    reserve(s, size);
    if (size) memcpy(s->data + s->size, bytes, size);
    s->size += size;
    s->data[s->size] = 0;
}

void tt_str_add(tt_str *s, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    TT_ASSERT(n >= 0);
    reserve(s, (size_t)n);
    va_start(ap, fmt);
    vsnprintf(s->data + s->size, (size_t)n + 1, fmt, ap);
    va_end(ap);
    s->size += (size_t)n;
}

void tt_str_free(tt_str *s)
{
    free(s->data);
    *s = (tt_str){0};
}
