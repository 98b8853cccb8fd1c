/* rsh: the stand-in for a remote shell, by which a launcher reaches hosts that wait: see hub.c. */
#include "inner.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Launchers put options before the host that are ssh's: -x, -q, -l NAME. */
static int skip_options(int argc, const char **argv)
{
    int i = 1;

    while (i < argc && argv[i][0] == '-')
        i += argv[i][1] && strchr("lpoiFcmbeDILRSWw", argv[i][1]) && !argv[i][2] ? 2 : 1;
    return i;
}

static void say_run(tt_wire *w, const char *host, int argc, const char **argv)
{
    const char *mark = getenv("TUTTI_WORLD"), *shm = getenv(TT_WORLD_SHM);
    tt_str command = {0};

    for (int i = 0; i < argc; i++) tt_str_add(&command, "%s%s", i ? " " : "", argv[i]);
    tt_say(w, 0,
           json_pack("{s:s, s:o, s:o, s:o, s:o, s:i}", "say", "run", "host", tt_json_text(host),
                     "command", tt_json_bytes(command.data, command.size), "mark",
                     tt_json_text(mark ? mark : ""), "shm", tt_json_text(shm ? shm : ""), "pid",
                     (int)getpid()));
    tt_str_free(&command);
}

/* Does what has come; the exit code, -1 if the command has not ended. */
static int hear_hub(tt_wire *w)
{
    const char *word;
    uint32_t from;
    int code = -1;
    json_t *o;

    while (code < 0 && (o = tt_hear(w, &from, &word))) {
        tt_str text = {0};
        if (!strcmp(word, "said")) tt_bytes_of(o, "text", &text);
        if (!strcmp(word, "ended")) code = tt_code_of(o);
        if (text.size) fwrite(text.data, 1, text.size, stderr);
        tt_str_free(&text);
        json_decref(o);
    }
    return code;
}

int tt_rsh_run(int argc, const char **argv)
{
    static const double PATIENCE_S = 30;
    int host = skip_options(argc, argv), code = -1;
    double since = tt_clock_s();
    bool lost, gone;
    char address[256];
    tt_wire *w = NULL;

    snprintf(address, sizeof address, "ipc://%s", argc ? argv[0] : "");
    if (host + 1 >= argc) tt_fail(TT_EINVAL, "needs SOCKET HOST COMMAND");
    if (host + 1 >= argc || tt_wire_reach(address, NULL, &w)) {
        fprintf(stderr, "tutti rsh: %s\n", tt_message());
        return 255;
    }
    say_run(w, argv[host], argc - host - 1, argv + host + 1);
    while (code < 0) {
        struct pollfd p = {.fd = tt_wire_fd(w), .events = POLLIN};
        lost = tt_wire_lost(w);
        gone = lost || (*tt_wire_trouble(w) && tt_clock_s() - since > PATIENCE_S);
        if ((code = hear_hub(w)) < 0 && gone) {
            fprintf(stderr, "tutti rsh: %s: %s\n", address,
                    lost ? "the supervisor is gone" : tt_wire_trouble(w));
            code = 255;
        }
        if (code < 0) poll(&p, 1, 100);
    }
    tt_wire_close(w, 0);
    return code;
}
