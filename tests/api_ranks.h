/* What the tests of worlds share: ranks that are threads, and what they expect. */
#ifndef TT_API_RANKS_H
#define TT_API_RANKS_H

#include <unistd.h>

#include "../src/api/inner.h"
#include "api_help.h"

/* A rank has no test to leave: what it expects comes back as an error. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        tt_err e_ = (tt_err)(call);                                                                \
        if (e_) return tt_context(e_, "line %d", __LINE__);                                        \
    } while (0)
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) return tt_fail(TT_EFORMAT, "line %d: expected %s", __LINE__, #cond);          \
    } while (0)
/* The call fails with this code, and the message has this in it. */
#define CHECK_ERR(code, call, part)                                                                \
    do {                                                                                           \
        int e_ = (int)(call);                                                                      \
        if (e_ != (int)(code) || !strstr(tt_message(), part))                                      \
            return tt_fail(TT_EFORMAT, "line %d: %s: %d, \"%s\"", __LINE__, #call, e_,             \
                           e_ ? tt_message() : "");                                                \
    } while (0)

typedef tt_err (*rank_fn)(tutti_world *w, int rank, int size, void *arg);
typedef struct part {
    rank_fn fn;
    void *arg;
} part;

static inline tt_err run_part(tt_world *inner, void *arg)
{
    part *p = arg;
    tutti_world *w = world_wrap(inner);
    tt_err err = p->fn(w, inner->rank, inner->size, p->arg);

    tutti_world_leave(w, 0);
    return err;
}

static inline void on_ranks(int size, const int *host, rank_fn fn, void *arg)
{
    part p = {fn, arg};

    EXPECT_OK(tt_sim_run(size, host, 20, run_part, &p));
}

static const int mixed[] = {0, 1, 0, 1, 1};
static const int apart[] = {0, 1, 2, 3, 4};
static const int *const layouts[] = {NULL, mixed, apart};

static inline void on_worlds(rank_fn fn, void *arg)
{
    static const int sizes[] = {1, 2, 3, 5};

    for (int i = 0; i < TT_COUNT(sizes); i++)
        for (int k = 0; k < TT_COUNT(layouts); k++) on_ranks(sizes[i], layouts[k], fn, arg);
}

/* TT_EFORMAT unless all ranks have the same bytes. */
static inline tt_err same_on_all(tutti_world *w, const void *data, size_t bytes)
{
    void *first = malloc(bytes);
    bool same;

    memcpy(first, data, bytes);
    TRY(tutti_world_bcast(w, 0, first, bytes));
    same = !memcmp(first, data, bytes);
    free(first);
    CHECK(same);
    return TT_OK;
}

#endif
