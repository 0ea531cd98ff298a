// SPDX-License-Identifier: Apache-2.0
#include "engine/train/timeline.h"

#include "base/alloc.h"
#include "planner/plan_walk.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TIMELINE_NAME 56
#define TIMELINE_FINE 1024 // parts of the step that can be told apart, at first

typedef struct timeline_bar {
    double from_us, to_us;
    double longest_us; // of what is in it: that one gives the name
    uint64_t bytes;
    int lane, count;
    bool again;
    char name[TIMELINE_NAME];
} timeline_bar;

typedef struct timeline_step {
    int n;
    uint64_t step, ended_ns;
    double wall_us;
    timeline_bar bar[HTH_TIMELINE_BARS];
} timeline_step;

struct hth_timeline {
    uint64_t begun, begun_ns; // so many measured steps, and when the last one was
    double fine_us;           // what is shorter may be joined; 0: nothing yet
    timeline_step *draft, *last;
    timeline_step step[2];
};

hth_err hth_timeline_open(hth_timeline **out)
{
    *out = hth_calloc(1, sizeof **out);
    if (*out == NULL) {
        return hth_no_memory("a timeline");
    }
    (*out)->draft = &(*out)->step[0];
    (*out)->last = &(*out)->step[1];
    return HTH_OK;
}

void hth_timeline_close(hth_timeline *timeline)
{
    hth_free(timeline);
}

bool hth_timeline_begin(hth_timeline *timeline, uint64_t now_ns)
{
    if (timeline == NULL || (timeline->begun >= HTH_TIMELINE_FIRST &&
                             now_ns - timeline->begun_ns < HTH_TIMELINE_PERIOD_NS)) {
        return false;
    }
    timeline->begun++;
    timeline->begun_ns = now_ns;
    timeline->fine_us = 0;
    timeline->draft->n = 0;
    timeline->draft->wall_us = 0;
    return true;
}

// Joining.

// bar_take makes `b`, the next one on its stream, part of `a` where both are short and close.
static bool bar_take(timeline_bar *a, const timeline_bar *b, double fine_us)
{
    if (a->to_us - a->from_us >= fine_us || b->to_us - b->from_us >= fine_us ||
        b->from_us - a->to_us >= fine_us) {
        return false;
    }
    if (b->longest_us > a->longest_us) {
        a->longest_us = b->longest_us;
        a->again = b->again;
        memcpy(a->name, b->name, sizeof a->name);
    }
    a->to_us = fmax(a->to_us, b->to_us);
    a->bytes += b->bytes;
    a->count += b->count;
    return true;
}

static void draft_join(hth_timeline *timeline)
{
    timeline_step *d = timeline->draft;
    int last[HTH_N_LANES] = {-1, -1, -1}, n = 0;
    for (int i = 0; i < d->n; i++) {
        int *at = &last[d->bar[i].lane];
        if (*at < 0 || !bar_take(&d->bar[*at], &d->bar[i], timeline->fine_us)) {
            *at = n;
            d->bar[n++] = d->bar[i];
        }
    }
    d->n = n;
}

// What came since the last time is joined as what was there before; where that does not do, twice
// as much is: at the latest when a stream is one bar, there is room.
static void draft_reserve(hth_timeline *timeline)
{
    draft_join(timeline);
    while (timeline->draft->n > HTH_TIMELINE_BARS / 2) {
        timeline->fine_us =
            fmax(2 * timeline->fine_us, fmax(timeline->draft->wall_us / TIMELINE_FINE, 1e-3));
        draft_join(timeline);
    }
}

static const char *instr_name(const hth_problem *problem, const hth_instr *in)
{
    const char *name = in->kind == HTH_INSTR_COMPUTE ? problem->nodes[in->node].name
                                                     : problem->tensors[in->tensor].name;
    return name != NULL ? name : "?";
}

void hth_timeline_add(hth_timeline *timeline, const hth_problem *problem, const hth_plan *plan,
                      const double (*times_us)[2], uint64_t from_ns)
{
    timeline_step *d = timeline->draft;
    double offset_us = (double)(from_ns - timeline->begun_ns) / 1e3;
    for (int i = 0; i < plan->n_instrs; i++) {
        const hth_instr *in = &plan->instrs[i];
        if (in->kind == HTH_INSTR_ALLOC || in->kind == HTH_INSTR_FREE) {
            continue;
        }
        if (d->n == HTH_TIMELINE_BARS) {
            draft_reserve(timeline);
        }
        timeline_bar *b = &d->bar[d->n++];
        bool copies = in->kind != HTH_INSTR_COMPUTE;
        *b = (timeline_bar){.from_us = offset_us + times_us[i][0],
                            .to_us = offset_us + times_us[i][1],
                            .longest_us = times_us[i][1] - times_us[i][0],
                            .bytes = copies ? problem->tensors[in->tensor].bytes : 0,
                            .lane = (int)hth_instr_lane(in),
                            .count = 1,
                            .again = in->recompute};
        snprintf(b->name, sizeof b->name, "%s", instr_name(problem, in));
        d->wall_us = fmax(d->wall_us, b->to_us);
    }
}

void hth_timeline_end(hth_timeline *timeline, uint64_t step, uint64_t now_ns)
{
    timeline_step *d = timeline->draft;
    if (timeline->fine_us > 0) { // all of it by the same measure
        draft_join(timeline);
    }
    d->step = step;
    d->ended_ns = now_ns;
    timeline->draft = timeline->last;
    timeline->last = d;
}

uint64_t hth_timeline_ns(const hth_timeline *timeline)
{
    return timeline->last->ended_ns;
}

// A name may have been cut inside a character, and is whatever the model's author wrote.
static json_t *name_json(const char *name)
{
    json_t *out = NULL;
    size_t n = strlen(name);
    for (int cut = 0; out == NULL && cut < 4 && n > 0; cut++, n--) {
        out = json_stringn(name, n);
    }
    return out != NULL ? out : json_string("?");
}

static json_int_t in_ns(double us)
{
    return (json_int_t)llround(us * 1e3);
}

json_t *hth_timeline_json(const hth_timeline *timeline, uint64_t now_ns)
{
    const timeline_step *s = timeline->last;
    json_t *bars = json_array();
    for (int i = 0; i < s->n; i++) {
        const timeline_bar *b = &s->bar[i];
        json_array_append_new(bars, json_pack("[i, I, I, o, i, I, b]", b->lane, in_ns(b->from_us),
                                              in_ns(b->to_us - b->from_us), name_json(b->name),
                                              b->count, (json_int_t)b->bytes, b->again));
    }
    return json_pack("{s:I, s:I, s:I, s:[s, s, s], s:o}", "step", (json_int_t)s->step, "age_ms",
                     (json_int_t)(s->ended_ns > 0 ? (now_ns - s->ended_ns) / 1000000u : 0),
                     "wall_ns", in_ns(s->wall_us), "streams", "compute", "host to device",
                     "device to host", "bars", bars);
}
