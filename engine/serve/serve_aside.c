// SPDX-License-Identifier: Apache-2.0
// What the engine's thread does aside - measured algorithms, programs that are compiled - while
// requests keep coming: in pieces, with runs behind them. No piece begins that would make somebody
// late who was promised an answer in time (batcher.h), unless for ASIDE_WAIT_NS none could begin.
#include "engine/serve/serve_impl.h"

#include "base/clock.h"
#include "engine/serve/infer.h"

// Measuring's part of the time while requests come, as what others have for each of its own; and
// how often it is looked for something to measure where there was nothing. What is shorter than a
// piece goes on.
#define TUNE_OTHERS   19
#define TUNE_LOOK_NS  1000000000u
#define TUNE_WAIT_NS  5000000u
#define TUNE_PIECE_NS 1000000u
// A compilation has the thread for the 4th part of what the run took that it was interrupted for.
#define COMPILE_PART 4
// For how long requests with short timeouts can hold up what is done aside.
#define ASIDE_WAIT_NS 1000000000u

// aside_hurries says that somebody waits for the end of what is done aside.
static bool aside_hurries(const hth_serve *s)
{
    return s->first != NULL || s->await.n > 0 || s->batcher.passed;
}

// tune_hurries says that a measurement holds something up: then requests have no more of the time
// than it has.
static bool tune_hurries(const hth_serve *s)
{
    return s->wished != NULL || aside_hurries(s);
}

bool hth_serve_begins(hth_serve *s)
{
    uint64_t now_ns = hth_now_ns();
    s->aside_ns = s->aside_ns != 0 ? s->aside_ns : now_ns;
    if (s->batcher.n > 0 && now_ns - s->aside_ns < ASIDE_WAIT_NS &&
        !hth_batcher_spares(&s->batcher, now_ns)) {
        hth_batcher_aside(&s->batcher, 0, now_ns);
        return false;
    }
    s->aside_ns = 0;
    s->aside = true;
    s->piece_ns = now_ns;
    return true;
}

// aside_piece counts the piece that ends now; the time.
static uint64_t aside_piece(hth_serve *s)
{
    uint64_t now_ns = hth_now_ns();
    hth_batcher_aside(&s->batcher, now_ns - s->piece_ns, now_ns);
    s->piece_ns = now_ns;
    return now_ns;
}

void hth_serve_ends(hth_serve *s)
{
    aside_piece(s);
    s->aside = false;
}

// aside_waits says that runs come before the next piece, which could begin since *due_ns (0: now).
static bool aside_waits(hth_serve *s, uint64_t *due_ns)
{
    uint64_t now_ns = hth_now_ns();
    *due_ns = *due_ns != 0 ? *due_ns : now_ns;
    if (!s->aside || s->batcher.n == 0 || aside_hurries(s) || now_ns - *due_ns >= ASIDE_WAIT_NS ||
        hth_batcher_spares(&s->batcher, now_ns)) {
        return false;
    }
    hth_batcher_aside(&s->batcher, 0, now_ns);
    return true;
}

// aside_run does one run for requests that have their program. false: there is none.
static bool aside_run(hth_serve *s)
{
    uint64_t wake_ns;
    uint32_t priority;
    s->nested = true;
    bool ran =
        hth_serve_batch(s, (hth_batch_ask){.hurry = true, .ready = true}, &wake_ns, &priority);
    s->nested = false;
    hth_serve_look(s);
    return ran;
}

// aside_query answers what was asked and needs no turn, so that a model that takes long to be made
// ready keeps nobody from looking at others.
static void aside_query(hth_serve *s)
{
    for (hth_request **at = &s->first; *at != NULL;) {
        hth_request *r = *at, *next = r->next;
        if (r->query == NULL || !s->at_once(s->ctx, r)) {
            at = &r->next;
            continue;
        }
        *at = next;
        s->last = next == NULL ? at : s->last;
        atomic_fetch_sub(&s->waiting, 1);
    }
}

void hth_serve_in_compile(void *ctx)
{
    hth_serve *s = ctx;
    hth_serve_look(s);
    if (s->nested) {
        return;
    }
    aside_query(s);
    if (s->join.n > 0) {
        return;
    }
    uint64_t from_ns = s->aside ? aside_piece(s) : hth_now_ns(), due_ns = 0;
    s->idle = s->idle && hth_serve_empty(s);
    if (s->batcher.n > 0 && (from_ns >= s->compile_ns || aside_waits(s, &due_ns))) {
        while (aside_run(s) && aside_waits(s, &due_ns)) {
        }
        s->piece_ns = hth_now_ns();
        s->compile_ns = s->piece_ns + (s->piece_ns - from_ns) / COMPILE_PART;
    }
}

bool hth_serve_in_measure(void *ctx)
{
    hth_serve *s = ctx;
    uint64_t piece_ns = s->tuning && !s->nested ? hth_now_ns() - s->piece_ns : 0;
    if (piece_ns < TUNE_PIECE_NS) {
        return false;
    }
    uint64_t from_ns = aside_piece(s), due_ns = 0;
    bool ran = false, more = true;
    hth_serve_look(s);
    s->idle = s->idle && hth_serve_empty(s);
    s->batcher.passed = false;
    while (more && !s->idle) {
        uint64_t others = tune_hurries(s) ? 1 : TUNE_OTHERS;
        bool theirs = hth_now_ns() - from_ns < piece_ns * others;
        if (s->batcher.n > 0) {
            more = (theirs || aside_waits(s, &due_ns)) && aside_run(s);
            ran = ran || more;
        } else {
            more = theirs && !tune_hurries(s) && s->wait(s->ctx, TUNE_WAIT_NS);
            hth_serve_look(s);
        }
    }
    s->piece_ns = hth_now_ns();
    return ran;
}

// aside_tune takes a step towards measured algorithms, `idle`: at full pace until requests come.
// *last_ns: when its last piece began. false: there was nothing to measure.
static bool aside_tune(hth_serve *s, bool idle, uint64_t *last_ns)
{
    s->tuning = true;
    s->idle = idle;
    bool some = hth_infer_tune_idle(s->ms);
    *last_ns = s->piece_ns;
    s->tuning = false;
    hth_serve_ends(s);
    return some;
}

bool hth_serve_measure(hth_serve *s)
{
    uint64_t last_ns;
    return hth_infer_tunes(s->ms) && hth_serve_begins(s) && aside_tune(s, true, &last_ns) &&
           s->idle;
}

void hth_serve_tune(hth_serve *s)
{
    uint64_t now_ns = hth_now_ns(), last_ns;
    if (now_ns < s->tune_ns || tune_hurries(s)) {
        return;
    }
    if (!hth_infer_tunes(s->ms)) {
        s->tune_ns = now_ns + TUNE_LOOK_NS;
    } else if (hth_serve_begins(s)) {
        (void)aside_tune(s, false, &last_ns);
        now_ns = hth_now_ns();
        s->tune_ns = now_ns + (now_ns - last_ns) * TUNE_OTHERS;
    }
}
