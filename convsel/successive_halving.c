// SPDX-License-Identifier: Apache-2.0
// A convolution has up to thirty choices, of which five or so end on the front of time against
// memory. So each gets one turn at first; then those stay that no other beats by a clear margin,
// which narrows from turn to turn as the times get surer (successive halving). What is beaten is
// not run again: it keeps its time, or, should its better turn out slower, that one's.
//
// Disturbances only ever add, and can double a run's time. So times are compared by the least of a
// choice's runs, which errs only upwards, and one that a single run would put out by less than a
// disturbance explains gets a second one before.
//
// Variants - chunks of an algorithm, Winograd with smaller blocks - do the same work in less
// memory, never much faster. They come after what they vary, and are not run at all when a choice
// that needs no more memory is clearly faster than that already.
#include "convsel/successive_halving.h"

#include "base/compare.h"
#include "convsel/convsel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TURNS   5       // at most
#define SURE    1.03    // the least two times of a choice that differ by less are to be believed ..
#define LONG_US 20000.0 // .. of runs longer than this after two turns, else after three
#define CLOSE   1.1     // times the best: gets more turns
#define BURST   1.8     // what a disturbance makes of a run's time
#define LESS    0.75    // of the workspace is clearly less: at equal times it is better
#define VARIANT 1.1     // times as fast as all variants can be expected to become
#define FEWER   8       // resident bytes count as fewer when an eighth of them is saved
#define BEATEN  1.001   // times its better's: the time of one that is beaten, at least
#define REPEATS 1.1     // times the least run: the next one of a choice that was not disturbed

static const double margins[TURNS] = {1.25, 1.08, 1.03, 1.0, 1.0};

typedef struct race_entry {
    hth_samples s;
    double us;      // the least so far ..
    double next_us; // .. and the next
    int base;       // what it is a variant of, -1: nothing
    int by;         // who beat it, -1: nobody
    bool runs;      // still in the race
    bool left;      // failed, or never run
} race_entry;

typedef struct race {
    const hth_racer *r;
    hth_choice *list;
    int n;
    race_entry e[HTH_MAX_CHOICES];
    hth_err err;
    bool whole;
} race;

void hth_samples_add(hth_samples *samples, double us, bool clean)
{
    if (samples->n < HTH_RACE_SAMPLES) {
        samples->all[samples->n++] = us;
    }
    if (clean && samples->n_clean < HTH_RACE_SAMPLES) {
        samples->clean[samples->n_clean++] = us;
    }
}

static bool samples_clean(const hth_samples *samples)
{
    return samples->n_clean > 0 && (samples->n_clean > 1 || samples->n < 3);
}

bool hth_samples_disturbed(const hth_samples *samples)
{
    double least = INFINITY, next = INFINITY;
    for (int k = 0; k < samples->n; k++) {
        next = fmin(next, fmax(least, samples->all[k]));
        least = fmin(least, samples->all[k]);
    }
    return !samples_clean(samples) || (samples->n > 1 && next > REPEATS * least);
}

double hth_samples_time(const hth_samples *samples, bool step)
{
    bool clean = samples_clean(samples);
    int n = clean ? samples->n_clean : samples->n;
    double us[HTH_RACE_SAMPLES];
    memcpy(us, clean ? samples->clean : samples->all, (size_t)n * sizeof *us);
    qsort(us, (size_t)n, sizeof *us, hth_compare_double);
    if (!clean || !step) {
        return us[(n - 1) / 4];
    }
    double middle = us[(n - 1) / 2];
    return middle > 1.5 * us[0] ? us[0] : middle;
}

static void race_turn(race *a, int i)
{
    race_entry *e = &a->e[i];
    hth_err err = a->r->turn(a->r->ctx, &a->list[i], &e->s);
    if (err != HTH_OK || e->s.n == 0) {
        a->err = err;
        a->whole = a->whole && err != HTH_ENOMEM;
        e->runs = false;
        e->left = true;
        return;
    }
    e->s.turns++;
    e->us = e->next_us = INFINITY;
    for (int k = 0; k < e->s.n; k++) {
        e->next_us = fmin(e->next_us, fmax(e->us, e->s.all[k]));
        e->us = fmin(e->us, e->s.all[k]);
    }
}

static bool race_exact(race *a, int i)
{
    hth_choice *c = &a->list[i];
    if (c->error < 0) {
        hth_err err = a->r->check(a->r->ctx, c);
        if (err != HTH_OK) {
            a->err = err;
            a->whole = a->whole && err != HTH_ENOMEM;
            a->e[i].runs = false;
            a->e[i].left = true;
            return false;
        }
    }
    return !(c->error > a->r->tolerance) && !isnan(c->error);
}

// Whether j needs no more memory than i, and is faster than `us` by that margin, or, with clearly
// less, as fast.
static bool race_beats(race *a, int j, int i, double us, double margin)
{
    const hth_choice *x = &a->list[j], *y = &a->list[i];
    const race_entry *e = &a->e[j];
    if (e->s.turns > 1 && a->e[i].s.turns > 1 &&
        (double)x->workspace_bytes < LESS * (double)y->workspace_bytes) {
        margin = fmin(margin, sqrt(margin));
    }
    return j != i && e->runs && e->s.turns > 0 &&
           x->workspace_bytes <= y->workspace_bytes + a->r->slack_bytes &&
           x->resident_bytes / FEWER * (FEWER - 1) <= y->resident_bytes && e->us * margin <= us &&
           race_exact(a, j);
}

static int race_better(race *a, int i, double us, double margin)
{
    for (int j = 0; j < a->n; j++) {
        if (race_beats(a, j, i, us, margin)) {
            return j;
        }
    }
    return -1;
}

// Those that have been run once, and that more than a disturbance puts out, get another turn; then
// those leave that are beaten.
static void race_sort_out(race *a, double margin)
{
    for (int i = 0; i < a->n; i++) {
        race_entry *e = &a->e[i];
        if (e->runs && e->s.turns == 1 && race_better(a, i, e->us, margin) >= 0 &&
            race_better(a, i, e->us, BURST) < 0) {
            race_turn(a, i);
        }
    }
    for (int i = 0; i < a->n; i++) {
        race_entry *e = &a->e[i];
        e->by = e->runs && e->s.turns > 0 ? race_better(a, i, e->us, margin) : e->by;
        e->runs = e->runs && e->by < 0;
    }
}

// The choice whose name, with a colon or a slash and more after it, is i's.
static int race_base(const race *a, int i)
{
    for (int k = 0; k < a->n; k++) {
        size_t length = strlen(a->list[k].name);
        const char *name = a->list[i].name;
        if (k != i && strncmp(name, a->list[k].name, length) == 0 &&
            (name[length] == ':' || name[length] == '/')) {
            return k;
        }
    }
    return -1;
}

// What variant i will take at least, as far as the others of its kind tell: those with more memory.
// A single run may have been disturbed.
static double race_expect(const race *a, int i)
{
    double us = 0;
    for (int k = 0; k < a->n; k++) {
        bool kind = k == a->e[i].base || (a->e[k].base == a->e[i].base && k != i);
        if (kind && a->e[k].s.turns > 0 &&
            a->list[k].workspace_bytes >= a->list[i].workspace_bytes) {
            us = fmax(us, a->e[k].s.turns > 1 ? a->e[k].us : a->e[k].us / BURST * VARIANT);
        }
    }
    return us;
}

static void race_first_turns(race *a)
{
    for (int i = 0; i < a->n; i++) {
        a->e[i] = (race_entry){.base = race_base(a, i), .by = -1, .runs = true};
    }
    for (int i = 0; i < a->n; i++) {
        if (a->e[i].base < 0) {
            race_turn(a, i);
        }
    }
    race_sort_out(a, margins[0]);
    for (int i = 0; i < a->n; i++) {
        if (a->e[i].base < 0) {
            continue;
        }
        if (race_better(a, i, race_expect(a, i), VARIANT) >= 0) {
            a->e[i].runs = false;
            a->e[i].left = true;
        } else {
            race_turn(a, i);
        }
    }
    race_sort_out(a, margins[0]);
}

// Whether more turns would say nothing new about entry, or nothing that matters: it may be far from
// the best, while some other needs more memory. What has no rival gets all turns when they are
// short.
static bool race_sure(const race_entry *entry, double best, bool alone)
{
    bool is_long = entry->us > LONG_US, close = !alone && entry->us <= CLOSE * best;
    int needed = alone ? TURNS : 3;
    needed = (is_long ? 2 : needed) + close;
    int limit = close || alone ? TURNS : needed;
    return entry->s.turns >= limit ||
           (entry->s.turns >= needed && entry->next_us <= SURE * entry->us);
}

static void race_more_turns(race *a)
{
    for (int turn = 1; turn < TURNS; turn++) {
        double best = INFINITY;
        int n = 0;
        for (int i = 0; i < a->n; i++) {
            best = a->e[i].runs ? fmin(best, a->e[i].us) : best;
            n += a->e[i].runs;
        }
        for (int i = 0; i < a->n; i++) {
            race_entry *e = &a->e[i];
            if (e->runs && e->s.turns <= turn && !race_sure(e, best, n == 1)) {
                race_turn(a, i);
            }
        }
        race_sort_out(a, margins[turn]);
    }
}

// What those in the race took, and, of the others, no less than who beat them: where that one's
// time came out above theirs, as much more as their least runs differ. So one time that is too high
// does not become that of all whom it beat.
static void race_settle(race *a)
{
    for (int i = 0; i < a->n; i++) {
        if (a->e[i].s.n > 0) {
            a->list[i].time_us = hth_samples_time(&a->e[i].s, a->r->step);
            a->list[i].disturbed = a->e[i].by < 0 && hth_samples_disturbed(&a->e[i].s);
        }
    }
    for (int pass = 0; pass < a->n; pass++) { // who beat it may have been beaten itself
        for (int i = 0; i < a->n; i++) {
            int by = a->e[i].by;
            if (by >= 0 && !a->e[by].left) {
                double more = fmax(BEATEN, a->e[i].us / a->e[by].us);
                double least = more * a->list[by].time_us;
                a->list[i].time_us = fmax(a->list[i].time_us, least);
            }
        }
    }
}

hth_err hth_race(const hth_racer *racer, hth_choice *list, int *count, bool *whole)
{
    race a = {.r = racer, .list = list, .n = *count, .err = HTH_OK, .whole = true};
    race_first_turns(&a);
    race_more_turns(&a);
    for (int i = 0; i < a.n; i++) {
        if (!a.e[i].left) { // others may tolerate less
            (void)race_exact(&a, i);
        }
    }
    race_settle(&a);
    *count = 0;
    for (int i = 0; i < a.n; i++) {
        if (!a.e[i].left) {
            list[(*count)++] = list[i];
        }
    }
    *whole = a.whole;
    return *count > 0 ? HTH_OK : a.err;
}
