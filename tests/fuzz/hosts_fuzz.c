/* Fuzz entry for all that tells of hosts: the first byte chooses the reader ('l'ist, 'f'ile,
 * 's'lurm, 't'f_config), the rest is its text. With libFuzzer: clang -fsanitize=fuzzer,address. */
#include <stdlib.h>
#include <string.h>

#include "cluster/inner.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was accepted must be fit for a command line. */
static void check(const tt_hosts *h)
{
    if (h->count < 0 || h->count > TT_HOSTS_MOST || (h->count && tt_hosts_slots(h) < h->count))
        abort();
    for (int i = 0; i < h->count; i++) {
        const tt_host *host = &h->host[i];
        size_t n = strnlen(host->name, sizeof host->name);
        if (n == 0 || n > 255 || *host->name == '-' || host->slots < 0 ||
            host->slots > TT_SLOTS_MOST)
            abort();
        for (size_t k = 0; k < n; k++)
            if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%",
                        host->name[k]))
                abort();
    }
}

static void read_tf(const char *text)
{
    tt_tf_config c;
    tt_hosts h;

    if (!tt_tf_config_parse(text, &c)) {
        if (c.me < -1 || c.me >= (c.ranks ? c.ranks : 1) || tt_tf_config_hosts(&c, &h)) abort();
        if (c.ranks && tt_hosts_slots(&h) != c.ranks) abort();
        check(&h);
        tt_hosts_free(&h);
    }
    tt_tf_config_free(&c);
}

/* The nodes, and behind a line break the tasks. */
static tt_err read_slurm(char *text, tt_hosts *h)
{
    char *tasks = strchr(text, '\n');

    if (tasks) *tasks++ = 0;
    return tt_hosts_slurm_parse(text, tasks, h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text; /* of its exact size, so that reading past the end is seen */
    tt_hosts h = {0};
    tt_err err = TT_OK;

    if (!size) return 0;
    text = malloc(size);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    if (*data == 'l') err = tt_hosts_parse(text, &h);
    if (*data == 'f') {
        char *whole = malloc(size - 1 ? size - 1 : 1); /* no NUL behind it */
        memcpy(whole, text, size - 1);
        err = tt_hosts_read_text("fuzz", whole, size - 1, &h);
        free(whole);
    }
    if (*data == 's') err = read_slurm(text, &h);
    if (*data == 't') read_tf(text);
    if (err && (err != TT_EINVAL || !*tt_message() || h.count)) abort();
    check(&h);
    tt_hosts_free(&h);
    free(text);
    return 0;
}
