/* Pooling: the window's largest element, or its mean. */
#include <math.h>
#include <string.h>

#include "tensor/ref/ref.h"

static int64_t x_at(const tt_pool_args *a, int64_t outer, int y, int x, int64_t inner)
{
    return ((outer * a->win.h + y) * a->win.w + x) * a->inner + inner;
}

static int64_t y_at(const tt_pool_args *a, int64_t outer, int y, int x, int64_t inner)
{
    return ((outer * a->win.oh + y) * a->win.ow + x) * a->inner + inner;
}

/* The input element under element k of a window; false if that is padding. */
static bool under(const tt_window *w, int oy, int ox, int k, int *y, int *x)
{
    *y = oy * w->sh - w->ph + k / w->kw * w->dh;
    *x = ox * w->sw - w->pw + k % w->kw * w->dw;
    return *y >= 0 && *y < w->h && *x >= 0 && *x < w->w;
}

/* A window that lies in the padding altogether gives 0, and takes no gradient. */
static void max_at(const tt_pool_args *a, int64_t o, int oy, int ox, int64_t i)
{
    double most = 0;
    int pick = 255, y, x;

    for (int k = 0; k < a->win.kh * a->win.kw; k++) {
        if (!under(&a->win, oy, ox, k, &y, &x)) continue;
        double v = get(a->x[x_at(a, o, y, x, i)]);
        if (pick != 255 && !(v > most) && !isnan(v)) continue;
        most = v;
        pick = k;
    }
    set(&a->y[y_at(a, o, oy, ox, i)], most);
    if (a->pick) a->pick[y_at(a, o, oy, ox, i)] = (uint8_t)pick;
}

static void max_back(const tt_pool_args *a, int64_t o, int oy, int ox, int64_t i)
{
    int y, x, pick = a->pick[y_at(a, o, oy, ox, i)];

    if (pick == 255 || !under(&a->win, oy, ox, pick, &y, &x)) return;
    put(&a->dx[x_at(a, o, y, x, i)], get(a->dy[y_at(a, o, oy, ox, i)]), true);
}

/* Padding counts as far as it is the same behind as before; what a window reaches beyond does not.
 */
static int divisor(const tt_pool_args *a, int oy, int ox)
{
    const tt_window *w = &a->win;
    int n = 0, y, x;

    for (int k = 0; k < w->kh * w->kw; k++) {
        bool inside = under(w, oy, ox, k, &y, &x);
        n += inside || (a->count_pad && y < w->h + w->ph && x < w->w + w->pw);
    }
    return n ? n : 1;
}

static void avg_at(const tt_pool_args *a, int64_t o, int oy, int ox, int64_t i)
{
    double sum = 0;
    int y, x;

    for (int k = 0; k < a->win.kh * a->win.kw; k++)
        if (under(&a->win, oy, ox, k, &y, &x)) sum += get(a->x[x_at(a, o, y, x, i)]);
    set(&a->y[y_at(a, o, oy, ox, i)], sum / divisor(a, oy, ox));
}

static void avg_back(const tt_pool_args *a, int64_t o, int oy, int ox, int64_t i)
{
    double share = get(a->dy[y_at(a, o, oy, ox, i)]) / divisor(a, oy, ox);
    int y, x;

    for (int k = 0; k < a->win.kh * a->win.kw; k++)
        if (under(&a->win, oy, ox, k, &y, &x)) put(&a->dx[x_at(a, o, y, x, i)], share, true);
}

static void each(const tt_pool_args *a,
                 void (*fn)(const tt_pool_args *a, int64_t o, int oy, int ox, int64_t i))
{
    for (int64_t o = 0; o < a->outer; o++)
        for (int oy = 0; oy < a->win.oh; oy++)
            for (int ox = 0; ox < a->win.ow; ox++)
                for (int64_t i = 0; i < a->inner; i++) fn(a, o, oy, ox, i);
}

static void clear_dx(const tt_pool_args *a)
{
    if (!a->dx_add) memset(a->dx, 0, (size_t)x_at(a, a->outer, 0, 0, 0) * sizeof *a->dx);
}

void REF(maxpool_forward)(const tt_pool_args *a)
{
    TT_ASSERT(a->win.kh * a->win.kw <= 255);
    each(a, max_at);
}

void REF(maxpool_backward)(const tt_pool_args *a)
{
    clear_dx(a);
    each(a, max_back);
}

void REF(avgpool_forward)(const tt_pool_args *a)
{
    each(a, avg_at);
}

void REF(avgpool_backward)(const tt_pool_args *a)
{
    clear_dx(a);
    each(a, avg_back);
}
