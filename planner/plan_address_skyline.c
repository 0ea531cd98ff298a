// SPDX-License-Identifier: Apache-2.0
// Orders for placing rectangles, bottom up. What has been placed forms a skyline over the stages; a
// rectangle comes to lie on the highest point of the skyline under it, and what is lower under it
// is lost. A stage can lose what its load leaves of the goal, a full one nothing. So the stage that
// must go on lowest is served first, by the rectangle that does least harm: that lies low, and
// whose losses are small in the stages that can spare little. Every placement that cannot be pushed
// down can be made in this way (Moffitt 2023, the MiniMalloc solver, which searches all of them);
// here one descent is made, then others at random, where what reached too high is preferred.
//
// Small rectangles take no part: they find their places in what is lost. Stages between which no
// other rectangle begins or ends are one section.
#include "planner/plan_address_impl.h"
#include "planner/plan_work.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SKYLINE_SPARE  0.002 // of the peak: bytes that every section can lose, at least
#define SKYLINE_HARM   5     // losses beyond this many times what a section can spare are alike
#define SKYLINE_JITTER 0.1   // of the peak, at most
#define SKYLINE_TURN   16    // descents between two turns
#define SKYLINE_FORGET 0.97  // of a preference, per descent
#define SKYLINE_FAIL   0.01  // of the peak: a preference; and how near the top it is given
#define SKYLINE_PER    16    // .. and what a descent and its passes take per rectangle besides
#define SKYLINE_COST   2     // elementary steps that take as long as looking at a neighbour

// Below these parts of the peak a rectangle is small, in turn: few large ones are placed well, many
// leave little to be found by the others.
static const uint64_t skyline_small[] = {150, 1000};

typedef struct skyline_rect {
    int i, first, last; // rectangle; sections
    double height;      // / peak
    double at, harm;    // where it would lie, what it would do there
    double prefer;
    bool fresh, placed; // at and harm hold; it lies at `at`
} skyline_rect;

typedef struct skyline {
    hth_address *a;
    int n, n_sections;
    skyline_rect *r;
    int *start, *of;           // rectangles of section k: of[start[k] .. start[k + 1])
    int *large;                // per rectangle: its number in r[], -1: small
    double *full;              // per section: bytes of its rectangles, / peak
    double *sky, *left;        // .. that are lost or taken; not yet placed
    double goal;               // / peak
    double harm, mean, length; // what these count in the score of a rectangle
    uint64_t random;
} skyline;

static double skyline_random(skyline *x)
{
    x->random = x->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(x->random >> 40) / (1 << 24);
}

static void skyline_look(skyline *x, skyline_rect *rect)
{
    double at = 0, worst = 0, sum = 0;
    for (int k = rect->first; k <= rect->last; k++) {
        at = x->sky[k] > at ? x->sky[k] : at;
    }
    for (int k = rect->first; k <= rect->last; k++) {
        double lost = at - x->sky[k], spare = x->goal - x->sky[k] - x->left[k];
        spare = spare > 0 ? spare + SKYLINE_SPARE : SKYLINE_SPARE;
        worst = lost > worst * spare ? lost / spare : worst;
        sum += lost;
    }
    int length = rect->last - rect->first + 1;
    rect->at = at;
    rect->harm = x->harm * fmin(worst, SKYLINE_HARM) + x->mean * sum / length;
    rect->fresh = true;
    x->a->visits += 1 + 2 * length / SKYLINE_COST;
}

// The section that has to go on lowest if it is not to reach above the goal, -1: none.
static int skyline_section(const skyline *x)
{
    int best = -1;
    double least = INFINITY;
    for (int k = 0; k < x->n_sections; k++) {
        double base = x->goal - x->left[k];
        if (x->left[k] > 1e-12 && base < least) {
            least = base;
            best = k;
        }
    }
    x->a->visits += 1 + x->n_sections / SKYLINE_COST;
    return best;
}

static int skyline_choose(skyline *x, int section, double jitter)
{
    int best = -1;
    double least = INFINITY;
    x->a->visits += (x->start[section + 1] - x->start[section]) / SKYLINE_COST;
    for (int j = x->start[section]; j < x->start[section + 1]; j++) {
        skyline_rect *r = &x->r[x->of[j]];
        if (r->placed) {
            continue;
        }
        if (!r->fresh) {
            skyline_look(x, r);
        }
        double score = r->at + r->harm - r->prefer -
                       x->length * (r->last - r->first + 1) / x->n_sections +
                       (jitter > 0 ? jitter * skyline_random(x) : 0);
        if (score < least) {
            least = score;
            best = x->of[j];
        }
    }
    return best;
}

static void skyline_place(skyline *x, skyline_rect *rect)
{
    hth_address *a = x->a;
    double top = rect->at + rect->height;
    rect->placed = true;
    for (int k = rect->first; k <= rect->last; k++) {
        x->sky[k] = top;
        x->left[k] -= rect->height;
    }
    for (int k = a->start[rect->i]; k < a->start[rect->i + 1]; k++) {
        int j = x->large[a->neighbour[k]];
        if (j >= 0) {
            x->r[j].fresh = false;
        }
    }
    a->visits +=
        1 + (rect->last - rect->first + a->start[rect->i + 1] - a->start[rect->i]) / SKYLINE_COST;
}

// One descent: writes the order; returns the height, / peak. Gives up above `limit`.
static double skyline_descend(skyline *x, double jitter, double limit)
{
    double height = 0;
    memset(x->sky, 0, (size_t)x->n_sections * sizeof *x->sky);
    memcpy(x->left, x->full, (size_t)x->n_sections * sizeof *x->left);
    for (int j = 0; j < x->n; j++) {
        x->r[j].fresh = x->r[j].placed = false;
    }
    for (int n = 0; n < x->n && height < limit; n++) {
        int section = skyline_section(x),
            j = section >= 0 ? skyline_choose(x, section, jitter) : -1;
        if (j < 0) {
            break;
        }
        x->a->order[n] = x->r[j].i;
        skyline_place(x, &x->r[j]);
        height = fmax(height, x->r[j].at + x->r[j].height);
    }
    for (int j = 0; j < x->n; j++) {
        skyline_rect *r = &x->r[j];
        r->prefer *= SKYLINE_FORGET;
        if (r->placed && r->at + r->height > fmin(limit, height) - SKYLINE_FAIL) {
            r->prefer += 3 * SKYLINE_FAIL * skyline_random(x);
        }
    }
    return height;
}

static int skyline_cmp(const void *a, const void *b)
{
    const hth_rect *const *x = a, *const *y = b;
    if ((*x)->bytes != (*y)->bytes) {
        return (*x)->bytes > (*y)->bytes ? -1 : 1;
    }
    return (*x > *y) - (*x < *y);
}

// Takes the large ones, and their sections; `mark` is scratch per stage, `small` per rectangle. The
// small ones go last in the order, largest first.
static void skyline_init(skyline *x, uint64_t part, int *mark, const hth_rect **small)
{
    hth_address *a = x->a;
    int n_small = 0;
    size_t ns = (size_t)a->n_stages + 3;
    memset(mark, 0, ns * sizeof *mark);
    memset(x->start, 0, ns * sizeof *x->start);
    memset(x->full, 0, ns * sizeof *x->full);
    x->n = 0;
    for (int i = 0; i < a->n; i++) {
        x->large[i] = -1;
        if (a->r[i].bytes < a->peak / part || a->r[i].bytes == 0) {
            small[n_small++] = &a->r[i];
        } else {
            mark[a->r[i].first] = mark[a->r[i].last + 1] = 1;
            x->large[i] = x->n;
            x->r[x->n++] =
                (skyline_rect){.i = i, .height = (double)a->r[i].bytes / (double)a->peak};
        }
    }
    qsort(small, (size_t)n_small, sizeof(const hth_rect *), skyline_cmp);
    for (int k = 0; k < n_small; k++) {
        a->order[x->n + k] = (int)(small[k] - a->r);
    }
    for (int s = 0, k = 0; s < a->n_stages; s++) {
        k += s > 0 && mark[s];
        mark[s] = k;
        x->n_sections = k + 1;
    }
    for (int j = 0; j < x->n; j++) {
        skyline_rect *r = &x->r[j];
        r->first = mark[a->r[r->i].first];
        r->last = mark[a->r[r->i].last];
        for (int k = r->first; k <= r->last; k++) {
            x->full[k] += r->height;
            x->start[k + 2]++;
        }
    }
    for (int k = 0; k < x->n_sections; k++) {
        x->start[k + 2] += x->start[k + 1];
    }
    for (int j = 0; j < x->n; j++) {
        for (int k = x->r[j].first; k <= x->r[j].last; k++) {
            x->of[x->start[k + 1]++] = j;
        }
    }
}

// One descent from the given choice of what counts, then others at random.
static void skyline_search(skyline *x, int *mark, const hth_rect **small)
{
    hth_address *a = x->a;
    const int n_parts = (int)(sizeof skyline_small / sizeof *skyline_small);
    double peak = (double)a->peak, jitter = 0;
    x->goal = (double)a->goal / peak + SKYLINE_SPARE;
    x->harm = 0.3;
    x->mean = 0.5;
    x->length = 0.1;
    for (int k = 0; !hth_address_done(a); k++) {
        double best = (double)a->best_height / peak, limit = k < n_parts ? INFINITY : best;
        if (k % SKYLINE_TURN == 0 || k < n_parts) {
            skyline_init(x, skyline_small[(k < n_parts ? k : k / SKYLINE_TURN) % n_parts], mark,
                         small);
        }
        if (skyline_descend(x, jitter, limit) < limit) {
            hth_address_pass(a, true);
            hth_address_pass(a, false);
        }
        a->visits += SKYLINE_PER * x->n;
        if (k + 1 >= n_parts) {
            jitter = skyline_random(x);
            jitter = SKYLINE_JITTER * jitter * jitter;
            x->harm = 0.1 + 0.9 * skyline_random(x);
            x->mean = 1.5 * skyline_random(x);
            x->length = 0.2 * skyline_random(x);
        }
    }
}

hth_err hth_address_skyline(hth_address *address)
{
    size_t n = (size_t)address->n + 1, ns = (size_t)address->n_stages + 3, sum = 1;
    for (int i = 0; i < address->n; i++) {
        sum += (size_t)(address->r[i].last - address->r[i].first) + 1;
    }
    skyline x = {.a = address,
                 .r = hth_calloc(n, sizeof *x.r),
                 .start = hth_calloc(ns, sizeof(int)),
                 .of = hth_calloc(sum, sizeof(int)),
                 .large = hth_calloc(n, sizeof(int)),
                 .full = hth_calloc(ns, sizeof(double)),
                 .sky = hth_calloc(ns, sizeof(double)),
                 .left = hth_calloc(ns, sizeof(double))};
    int *mark = hth_calloc(ns, sizeof(int));
    const hth_rect **small = hth_calloc(n, sizeof *small);
    hth_err err = HTH_OK;
    int64_t from = address->visits;
    if (x.r && x.start && x.of && x.large && x.full && x.sky && x.left && mark && small) {
        skyline_search(&x, mark, small);
    } else {
        err = hth_no_memory("placing %d buffers", address->n);
    }
    hth_plan_work_add(HTH_WORK_SKYLINE, address->visits - from);
    hth_free(x.r);
    hth_free(x.start);
    hth_free(x.of);
    hth_free(x.large);
    hth_free(x.full);
    hth_free(x.sky);
    hth_free(x.left);
    hth_free(mark);
    hth_free(small);
    return err;
}
