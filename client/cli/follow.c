// SPDX-License-Identifier: Apache-2.0
// The time that is left is taken from the steps that were seen, evaluations and checkpoints
// included. Plain lines come with every hundredth of the job, but once a second at most.
#include "client/cli/follow.h"

#include "base/clock.h"
#include "client/cli/table.h"
#include "client/terminal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define FOLLOW_LINE_NS 1000000000u

void hth_follow_init(hth_follow *follow, bool lines)
{
    *follow = (hth_follow){.lines = lines};
    hth_progress_init(&follow->bar);
}

static double follow_number(const json_t *json, const char *key)
{
    return json_number_value(json_object_get(json, key));
}

// "3 s", "4 min 10 s", "2 h 5 min"
static void follow_time(double s, char *out, size_t cap)
{
    long n = (long)(s + 0.5);
    if (n < 60) {
        snprintf(out, cap, "%ld s", n);
    } else if (n < 3600) {
        snprintf(out, cap, "%ld min %ld s", n / 60, n % 60);
    } else {
        snprintf(out, cap, "%ld h %ld min", n / 3600, n / 60 % 60);
    }
}

// follow_add appends as much as there is room for: numbers are the server's, and "%.4f" of one may
// have 300 digits.
__attribute__((format(printf, 3, 4))) static void follow_add(char *out, size_t cap, const char *fmt,
                                                             ...)
{
    size_t n = strlen(out);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out + n, cap - n, fmt, ap);
    va_end(ap);
}

// One step: epoch, losses, time left; its time, how long it waited for the link, its memory.
static void follow_text(const hth_follow *follow, const json_t *json, uint64_t done, uint64_t total,
                        char *out, size_t cap)
{
    char peak[32], budget[32], left[40];
    out[0] = 0;
    if (json_object_get(json, "epoch") != NULL) {
        follow_add(out, cap, "epoch %.0f  ", follow_number(json, "epoch"));
    }
    if (json_object_get(json, "inertia") != NULL) {
        follow_add(out, cap, "inertia %.6g", follow_number(json, "inertia"));
    } else {
        follow_add(out, cap, "loss %.4f", follow_number(json, "loss"));
    }
    if (json_object_get(json, "held_out_loss") != NULL) {
        follow_add(out, cap, "  held out %.4f", follow_number(json, "held_out_loss"));
    }
    if (json_object_get(json, "accuracy") != NULL) {
        follow_add(out, cap, " %.1f %%", 100 * follow_number(json, "accuracy"));
    }
    if (follow->first > 0 && done > follow->first) {
        double passed = (double)(hth_now_ns() - follow->started_ns) / 1e9;
        follow_time(passed / (double)(done - follow->first) * (double)(total - done), left,
                    sizeof left);
        follow_add(out, cap, "  %s left", left);
    }
    follow_add(out, cap, "  %.1f ms", follow_number(json, "ms"));
    if (json_object_get(json, "stall_ms") != NULL) {
        follow_add(out, cap, ", stall %.1f", follow_number(json, "stall_ms"));
    }
    follow_add(out, cap, "  %s of %s",
               hth_table_bytes(follow_number(json, "peak_bytes"), peak, sizeof peak),
               hth_table_bytes(follow_number(json, "budget_bytes"), budget, sizeof budget));
}

static void follow_step(hth_follow *follow, const json_t *json, uint64_t done, uint64_t total)
{
    char text[300];
    uint64_t now = hth_now_ns(), hundredth = total > 0 ? done * 100 / total : 0;
    if (follow->first == 0) {
        follow->first = done;
        follow->started_ns = follow->reported_ns = now;
    }
    follow_text(follow, json, done, total, text, sizeof text);
    hth_progress_show(&follow->bar, text, done, total);
    if (follow->lines && !follow->bar.terminal && hundredth > follow->reported &&
        now - follow->reported_ns >= FOLLOW_LINE_NS) {
        fprintf(stderr, "step %" PRIu64 "/%" PRIu64 "  %s\n", done, total, text);
        follow->reported = hundredth;
        follow->reported_ns = now;
    }
}

// follow_death says that the engine's process died, and where the job is now.
static void follow_death(hth_follow *follow, const json_t *from_step)
{
    json_int_t from = json_integer_value(from_step);
    hth_progress_fini(&follow->bar);
    follow->reported = 0;
    if (from > 0) { // the checkpoint of step 0 holds what was asked for only
        fprintf(stderr, "hearth: the engine process died; the job continues after step %lld\n",
                (long long)from);
    } else {
        fprintf(stderr, "hearth: the engine process died before the job's first checkpoint; the "
                        "job starts over\n");
    }
}

// follow_early says that the job ends before its last epoch.
static void follow_early(hth_follow *follow, const json_t *early)
{
    hth_progress_fini(&follow->bar);
    if (follow->lines) {
        fprintf(stderr,
                "hearth: held-out data have not been better since epoch %.0f: the job ends after "
                "epoch %.0f\n",
                follow_number(early, "best_epoch"), follow_number(early, "epoch"));
    }
}

// follow_replanned says that steps are planned to be faster from now on.
static void follow_replanned(hth_follow *follow, const json_t *swap)
{
    if (follow->lines) {
        hth_progress_fini(&follow->bar);
        fprintf(stderr,
                "hearth: a better plan after step %.0f: %.4g ms a step predicted in place of "
                "%.4g ms\n",
                follow_number(swap, "step"), follow_number(swap, "to_ms"),
                follow_number(swap, "from_ms"));
    }
}

// follow_seeded shows how far k-means++ is.
static void follow_seeded(hth_follow *follow, const json_t *json)
{
    uint64_t done = (uint64_t)follow_number(json, "seeded");
    hth_progress_show(&follow->bar, "k-means++", done, (uint64_t)follow_number(json, "centroids"));
}

void hth_follow_event(hth_follow *follow, const char *what, uint64_t done, uint64_t total)
{
    json_t *o = hth_terminal_load(what);
    hth_train_log_event(follow->log, o);
    const char *warning = json_string_value(json_object_get(o, "warning"));
    const char *state = json_string_value(json_object_get(o, "state"));
    if (warning != NULL) {
        hth_progress_fini(&follow->bar);
        fprintf(stderr, "hearth: %s\n", warning);
    } else if (json_object_get(o, "early_stop") != NULL) {
        follow_early(follow, json_object_get(o, "early_stop"));
    } else if (json_object_get(o, "replanned") != NULL) {
        follow_replanned(follow, json_object_get(o, "replanned"));
    } else if (json_object_get(o, "step") != NULL) {
        follow_step(follow, o, done, total);
    } else if (json_object_get(o, "seeded") != NULL) {
        follow_seeded(follow, o);
    } else if (state != NULL) {
        follow->first = 0; // what is left is guessed anew
        if (json_object_get(o, "deaths") != NULL) {
            follow_death(follow, json_object_get(o, "from_step"));
        }
        hth_progress_show(&follow->bar, state, done, total);
    }
    json_decref(o);
}

int hth_follow_show(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    hth_follow *f = ctx;
    if (what[0] == '{') {
        hth_follow_event(f, what, done, total);
    } else {
        hth_progress_show(&f->bar, what, done, total);
    }
    return 0;
}

void hth_follow_fini(hth_follow *follow)
{
    hth_progress_fini(&follow->bar);
}
