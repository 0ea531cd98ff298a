// SPDX-License-Identifier: Apache-2.0
// What the engine's thread does aside - measured algorithms, programs that are compiled - while
// requests keep coming: in pieces, with runs behind them. No piece begins that would make somebody
// late who was promised an answer in time (batcher.h), unless for ASIDE_WAIT_NS none could begin.
#include "server/serve_parts.h"

#include "base/clock.h"
#include "server/infer.h"

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

// tune_hurries says that something waits that a measurement holds up: then requests have no more of
// the time than it has.
static bool tune_hurries(const hth_serve *s)
{
    return s->first != NULL || s->wished != NULL || s->await.n > 0;
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
    s->piece_ns = now_ns;
    return true;
}

uint64_t hth_serve_ends(hth_serve *s)
{
    uint64_t now_ns = hth_now_ns();
    hth_batcher_aside(&s->batcher, now_ns - s->piece_ns, now_ns);
    s->piece_ns = now_ns;
    return now_ns;
}

// aside_waits says that runs come before the next piece, whatever its part of the time, since
// from_ns.
static bool aside_waits(const hth_serve *s, uint64_t from_ns)
{
    uint64_t now_ns = hth_now_ns();
    return s->batcher.n > 0 && now_ns - from_ns < ASIDE_WAIT_NS &&
           !hth_batcher_spares(&s->batcher, now_ns);
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

void hth_serve_in_compile(void *ctx)
{
    hth_serve *s = ctx;
    hth_serve_look(s);
    if (s->nested || s->join.n > 0) {
        return;
    }
    uint64_t from_ns = hth_serve_ends(s);
    if (s->batcher.n > 0 && (from_ns >= s->compile_ns || aside_waits(s, from_ns))) {
        while (aside_run(s) && aside_waits(s, from_ns)) {
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
    uint64_t from_ns = hth_serve_ends(s);
    bool ran = false, more = true;
    hth_serve_look(s);
    s->idle = s->idle && hth_serve_empty(s);
    while (more && !s->idle) {
        uint64_t others = tune_hurries(s) ? 1 : TUNE_OTHERS;
        bool due = hth_now_ns() - from_ns < piece_ns * others;
        if (s->batcher.n > 0) {
            more = (due || aside_waits(s, from_ns)) && aside_run(s);
            ran = ran || more;
        } else {
            more = due && !tune_hurries(s) && s->wait(s->ctx, TUNE_WAIT_NS);
            hth_serve_look(s);
        }
    }
    s->piece_ns = hth_now_ns();
    return ran;
}

bool hth_serve_measure(hth_serve *s, bool idle)
{
    s->tuning = true;
    s->idle = idle;
    s->piece_ns = hth_now_ns();
    bool some = hth_infer_tune_idle(s->ms);
    s->tuning = false;
    if (some) {
        hth_serve_ends(s);
    }
    return some;
}

void hth_serve_tune(hth_serve *s)
{
    uint64_t from_ns = hth_now_ns();
    if (from_ns < s->tune_ns || tune_hurries(s) || !hth_serve_begins(s)) {
        return;
    }
    bool some = hth_serve_measure(s, false);
    uint64_t now_ns = hth_now_ns();
    s->tune_ns = now_ns + (some ? (now_ns - from_ns) * TUNE_OTHERS : TUNE_LOOK_NS);
}
