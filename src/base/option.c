#define _GNU_SOURCE
#include "option.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

/* ---- parsing ---- */

typedef struct parser {
    const tt_command *command;
    int argc, next; /* next: the argument to look at */
    const char **argv;
    char *out;
    const tt_option **list_option; /* for each value of a list option, in order: whose it is ... */
    const char **list_value;       /* ... and what it is */
    int list_count;
} parser;

static const tt_option *find_name(const tt_command *c, const char *name, size_t size)
{
    for (int i = 0; i < c->option_count; i++)
        if (strlen(c->options[i].name) == size && !memcmp(c->options[i].name, name, size))
            return &c->options[i];
    return NULL;
}

static const tt_option *find_letter(const tt_command *c, char letter)
{
    for (int i = 0; i < c->option_count; i++)
        if (c->options[i].letter && c->options[i].letter == letter) return &c->options[i];
    return NULL;
}

static tt_err fail_unknown(const tt_command *c, const char *name, size_t size)
{
    const char **names = calloc((size_t)c->option_count + 1, sizeof *names), *near;
    char word[80];
    tt_err err;

    if (!names) tt_mem_out((size_t)c->option_count * sizeof *names);
    snprintf(word, sizeof word, "%.*s", size < 79 ? (int)size : 79, name);
    for (int i = 0; i < c->option_count; i++) names[i] = c->options[i].name;
    names[c->option_count] = "help";
    if ((near = tt_nearest(word, names, c->option_count + 1)))
        err = tt_fail(TT_EINVAL, "unknown option '--%s': did you mean '--%s'?", word, near);
    else
        err = tt_fail(TT_EINVAL, "unknown option '--%s': see 'tutti %s --help'", word, c->name);
    free(names);
    return err;
}

static tt_err put_value(parser *p, const tt_option *o, const char *value)
{
    void *at = p->out + o->at;

    switch (o->type) {
    case TT_OPT_FLAG:
        *(bool *)at = true;
        return TT_OK;
    case TT_OPT_STRING:
    case TT_OPT_ADDRESS:
        *(const char **)at = value;
        return TT_OK;
    case TT_OPT_LIST:
        p->list_option[p->list_count] = o;
        p->list_value[p->list_count++] = value;
        return TT_OK;
    case TT_OPT_INT:
        if (tt_parse_int(value, at)) return TT_OK;
        return tt_fail(TT_EINVAL, "--%s %s: '%s' is not a whole number", o->name, o->value, value);
    case TT_OPT_TIME:
        if (tt_parse_time(value, at)) return TT_OK;
        return tt_fail(TT_EINVAL, "--%s %s: '%s' is not a time such as 30, 500ms, 10m or 2h",
                       o->name, o->value, value);
    }
    TT_ASSERT(!"a type of tt_opt_type");
    return TT_EINVAL;
}

/* The value is `joined`, or else the next argument. */
static tt_err take_value(parser *p, const tt_option *o, const char *joined)
{
    if (!joined && o->type == TT_OPT_ADDRESS &&
        (p->next == p->argc || !strstr(p->argv[p->next], "://")))
        joined = "";
    if (!joined && p->next < p->argc) joined = p->argv[p->next++];
    if (!joined)
        return tt_fail(TT_EINVAL, "--%s needs a value: --%s %s", o->name, o->name, o->value);
    return put_value(p, o, joined);
}

/* --name, --name=value, --name value */
static tt_err parse_long(parser *p, const char *arg, bool *help)
{
    const char *equals = strchr(arg, '=');
    size_t size = equals ? (size_t)(equals - arg) : strlen(arg);
    const tt_option *o = find_name(p->command, arg, size);

    if (!o && size == 4 && !memcmp(arg, "help", 4)) {
        *help = true;
        return TT_ESTOP;
    }
    if (!o) return fail_unknown(p->command, arg, size);
    if (o->type != TT_OPT_FLAG) return take_value(p, o, equals ? equals + 1 : NULL);
    if (equals) return tt_fail(TT_EINVAL, "--%s takes no value", o->name);
    return put_value(p, o, NULL);
}

/* -v, -vq, -n4, -n 4 */
static tt_err parse_letters(parser *p, const char *letters, bool *help)
{
    tt_err err;

    for (const char *l = letters; *l; l++) {
        const tt_option *o = find_letter(p->command, *l);
        if (!o && *l == 'h') {
            *help = true;
            return TT_ESTOP;
        }
        if (!o)
            return tt_fail(TT_EINVAL, "unknown option '-%c': see 'tutti %s --help'", *l,
                           p->command->name);
        if (o->type != TT_OPT_FLAG) return take_value(p, o, l[1] ? l + 1 : NULL);
        if ((err = put_value(p, o, NULL))) return err;
    }
    return TT_OK;
}

/* The values of each list go side by side to the end of argv, where no argument is needed any more:
 * every one of them took at least its own place. */
static void place_lists(parser *p)
{
    const char **at = p->argv + p->argc - p->list_count;

    for (int i = 0; i < p->command->option_count; i++) {
        const tt_option *o = &p->command->options[i];
        tt_opt_list list = {0, at};
        for (int k = 0; k < p->list_count; k++)
            if (p->list_option[k] == o) list.item[list.count++] = p->list_value[k];
        at += list.count;
        if (list.count) memcpy(p->out + o->at, &list, sizeof list);
    }
}

static tt_err check_count(const tt_command *c, const char **rest, int count)
{
    const char *args = c->args && *c->args ? c->args : "no arguments";

    if (count < c->args_least)
        return tt_fail(TT_EINVAL, "'tutti %s' needs %s: %s; see 'tutti %s --help'", c->name, args,
                       count ? "too few were given" : "none was given", c->name);
    if (c->args_most >= 0 && count > c->args_most)
        return tt_fail(TT_EINVAL, "'tutti %s' takes %s: '%s' is too many", c->name, args,
                       rest[c->args_most]);
    return TT_OK;
}

tt_err tt_option_parse(const tt_command *c, int argc, const char **argv, void *out,
                       const char **rest, int *rest_count, bool *help)
{
    tt_err err = TT_OK;
    parser p = {.command = c, .argc = argc, .argv = argv, .out = out};
    bool only_rest = false;
    int n = 0;

    *rest_count = 0;
    *help = false;
    p.list_option = calloc((size_t)argc + 1, sizeof *p.list_option);
    p.list_value = calloc((size_t)argc + 1, sizeof *p.list_value);
    if (!p.list_option || !p.list_value) tt_mem_out((size_t)argc * sizeof *p.list_value);
    while (p.next < argc) {
        const char *arg = argv[p.next++];
        if (only_rest || arg[0] != '-' || !arg[1])
            rest[n++] = arg;
        else if (!strcmp(arg, "--"))
            only_rest = true;
        else if (arg[1] == '-')
            err = parse_long(&p, arg + 2, help);
        else
            err = parse_letters(&p, arg + 1, help);
        if (err) goto out;
    }
    if ((err = check_count(c, rest, n))) goto out;
    place_lists(&p);
    *rest_count = n;
out:
    free(p.list_option);
    free(p.list_value);
    return err;
}

/* ---- help ---- */

enum { WIDTH = 79 };

/* Adds text broken at blanks to lines that begin at `column`, where the first one stands already.
 * Lines that begin with a blank are kept as they are, and so are empty ones. */
static void add_wrapped(tt_str *out, const char *text, int column)
{
    int at = column;

    for (const char *p = text; *p;) {
        size_t blanks = strspn(p, " "), size;
        if (*p == '\n') {
            bool kept = p[1] == '\n' || p[1] == ' ' || (p > text && p[-1] == '\n');
            p++;
            if (kept)
                tt_str_add(out, "\n%*s", *p == '\n' ? 0 : column, ""), at = column;
            else if (*p && at > column)
                tt_str_add(out, " "), at++;
            continue;
        }
        size = strcspn(p + blanks, " \n");
        if (at > column && at + (int)(blanks + size) > WIDTH) {
            tt_str_add(out, "\n%*s", column, "");
            at = column;
            p += blanks;
            blanks = 0;
        }
        tt_str_put(out, p, blanks + size);
        at += (int)(blanks + size);
        p += blanks + size;
    }
    tt_str_add(out, "\n");
}

static bool takes_value(const tt_option *o)
{
    return o->type != TT_OPT_FLAG;
}

static void add_usage(const tt_command *c, tt_str *out)
{
    tt_str_add(out, "tutti %s", c->name);
    if (c->option_count) tt_str_add(out, " [options]");
    if (c->args && *c->args) tt_str_add(out, " %s", c->args);
}

static void add_option_help(tt_str *out, char letter, const char *name, const char *value,
                            const char *help)
{
    enum { COLUMN = 26 };
    char left[128], front[] = "      ";
    int size;

    if (letter) snprintf(front, sizeof front, "  -%c, ", letter);
    size = snprintf(left, sizeof left, "%s--%s%s%s", front, name, value ? " " : "",
                    value ? value : "");
    if (size > COLUMN - 2)
        tt_str_add(out, "%s\n%*s", left, COLUMN, "");
    else
        tt_str_add(out, "%-*s", COLUMN, left);
    add_wrapped(out, help ? help : "", COLUMN);
}

void tt_option_help(const tt_command *c, tt_str *out)
{
    const char *const *e;
    int longest = 0;

    tt_str_add(out, "tutti %s: %s\n", c->name, c->brief);
    for (e = c->examples; e && e[0]; e += 2)
        if ((int)strlen(e[0]) > longest) longest = (int)strlen(e[0]);
    if (longest) tt_str_add(out, "\nExamples:\n");
    for (e = c->examples; e && e[0]; e += 2) tt_str_add(out, "  %-*s   %s\n", longest, e[0], e[1]);
    tt_str_add(out, "\nUsage: ");
    add_usage(c, out);
    tt_str_add(out, "\n");
    if (c->about && *c->about) {
        tt_str_add(out, "\n");
        add_wrapped(out, c->about, 0);
    }
    tt_str_add(out, "\nOptions:\n");
    for (int i = 0; i < c->option_count; i++) {
        const tt_option *o = &c->options[i];
        add_option_help(out, o->letter, o->name, takes_value(o) ? o->value : NULL, o->help);
    }
    add_option_help(out, find_letter(c, 'h') ? 0 : 'h', "help", NULL, "show this");
}

/* ---- man page ---- */

/* Text as troff takes it: a line may not begin with a dot or a quote, a dash is a minus. */
static void add_troff(tt_str *out, const char *text)
{
    bool start = true;

    for (const char *p = text; *p; p++) {
        if (start && (*p == '.' || *p == '\'')) tt_str_add(out, "\\&");
        if (*p == '\\')
            tt_str_add(out, "\\e");
        else if (*p == '-')
            tt_str_add(out, "\\-");
        else if (*p == '\n' && p[1] == '\n') {
            tt_str_add(out, "\n.PP\n");
            p++;
        } else
            tt_str_put(out, p, 1);
        start = *p == '\n';
    }
}

static void add_bold(tt_str *out, const char *text)
{
    tt_str_add(out, "\\fB");
    add_troff(out, text);
    tt_str_add(out, "\\fR");
}

static void add_option_man(tt_str *out, char letter, const char *name, const char *value,
                           const char *help)
{
    char text[96];

    tt_str_add(out, ".TP\n");
    if (letter) {
        snprintf(text, sizeof text, "-%c", letter);
        add_bold(out, text);
        tt_str_add(out, ", ");
    }
    snprintf(text, sizeof text, "--%s", name);
    add_bold(out, text);
    if (value) {
        tt_str_add(out, " \\fI");
        add_troff(out, value);
        tt_str_add(out, "\\fR");
    }
    tt_str_add(out, "\n");
    add_troff(out, help ? help : "");
    tt_str_add(out, "\n");
}

void tt_option_man(const tt_command *c, const char *version, tt_str *out)
{
    tt_str upper = {0};

    tt_str_add(&upper, "TUTTI-%s", c->name);
    for (size_t i = 0; i < upper.size; i++)
        if (upper.data[i] >= 'a' && upper.data[i] <= 'z') upper.data[i] -= 'a' - 'A';
    tt_str_add(out, ".TH %s 1 \"\" \"Tutti %s\" \"Tutti\"\n.SH NAME\n", upper.data, version);
    tt_str_free(&upper);
    tt_str_add(out, "tutti\\-");
    add_troff(out, c->name);
    tt_str_add(out, " \\- ");
    add_troff(out, c->brief);
    tt_str_add(out, "\n.SH SYNOPSIS\n.B tutti ");
    add_troff(out, c->name);
    tt_str_add(out, "\n");
    if (c->option_count) tt_str_add(out, "[\\fIoptions\\fR]\n");
    if (c->args && *c->args) add_troff(out, c->args), tt_str_add(out, "\n");
    if (c->examples && c->examples[0]) tt_str_add(out, ".SH EXAMPLES\n");
    for (const char *const *e = c->examples; e && e[0]; e += 2) {
        tt_str_add(out, ".TP\n");
        add_bold(out, e[0]);
        tt_str_add(out, "\n");
        add_troff(out, e[1]);
        tt_str_add(out, "\n");
    }
    if (c->about && *c->about) {
        tt_str_add(out, ".SH DESCRIPTION\n");
        add_troff(out, c->about);
        tt_str_add(out, "\n");
    }
    tt_str_add(out, ".SH OPTIONS\n");
    for (int i = 0; i < c->option_count; i++) {
        const tt_option *o = &c->options[i];
        add_option_man(out, o->letter, o->name, takes_value(o) ? o->value : NULL, o->help);
    }
    add_option_man(out, find_letter(c, 'h') ? 0 : 'h', "help", NULL, "Show a summary.");
}

/* ---- completion ---- */

void tt_option_completion(const tt_command *const *c, int count, tt_str *out)
{
    tt_str_add(out, "# bash completion for tutti\n"
                    "_tutti()\n"
                    "{\n"
                    "    local word=${COMP_WORDS[COMP_CWORD]} options= commands='");
    for (int i = 0; i < count; i++) tt_str_add(out, "%s%s", i ? " " : "", c[i]->name);
    tt_str_add(out, "'\n"
                    "    if ((COMP_CWORD == 1)); then\n"
                    "        mapfile -t COMPREPLY < <(compgen -W \"$commands\" -- \"$word\")\n"
                    "        return\n"
                    "    fi\n"
                    "    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < count; i++) {
        tt_str_add(out, "    %s) options='", c[i]->name);
        for (int k = 0; k < c[i]->option_count; k++)
            tt_str_add(out, "--%s ", c[i]->options[k].name);
        tt_str_add(out, "--help' ;;\n");
    }
    tt_str_add(out, "    esac\n"
                    "    if [[ $word == -* ]]; then\n"
                    "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n"
                    "    else\n"
                    "        compopt -o filenames 2>/dev/null\n"
                    "        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
                    "    fi\n"
                    "}\n"
                    "complete -F _tutti tutti\n");
}
