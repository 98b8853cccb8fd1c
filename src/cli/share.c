/* share: where the workers of a host have the data in common.
 *
 * In rooms of the run, which the supervisor names and removes. Without one (mpirun by hand) rank 0
 * names them, and they are removed as soon as all have the data open: nobody comes after. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

_Static_assert(sizeof((cli_share *)0)->rooms == TT_ROOMS, "rooms fit");

bool cli_shares(void)
{
    const char *text = getenv("TUTTI_SHARE");

    return !text || strcmp(text, "0");
}

tt_err cli_share_open(const tt_world *w, cli_share *out)
{
    const char *named = getenv("TUTTI_SHARE");
    tt_err err = TT_OK;

    memset(out, 0, sizeof *out);
    if (w->size == 1) return TT_OK;
    if (!w->rank && cli_shares()) {
        out->kept = named && getenv("TUTTI_SUPERVISED") && tt_rooms_valid(named);
        if (out->kept)
            snprintf(out->rooms, sizeof out->rooms, "%s", named);
        else
            err = tt_rooms_name(out->rooms);
    }
    if ((err = tt_group_agree(tt_world_all(w), err)) ||
        (err = tt_group_bcast(tt_world_all(w), 0, out, sizeof *out)))
        return err;
    if (w->local_size == 1) *out->rooms = 0; /* with whom? */
    if (!*out->rooms) return TT_OK;
    if (!w->local) tt_rooms_sweep(out->rooms);
    tt_rooms_hold(out->rooms);
    return TT_OK;
}

void cli_share_opened(const tt_world *w, const cli_share *s)
{
    if (!*s->rooms) return;
    tt_rooms_hold(s->rooms); /* the one on disk is made when it is needed */
    if (!s->kept && !w->local) tt_rooms_remove(s->rooms);
}

void cli_share_close(const tt_world *w, const cli_share *s)
{
    if (*s->rooms && !w->local) tt_rooms_remove(s->rooms);
}
