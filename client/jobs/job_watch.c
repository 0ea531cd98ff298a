// SPDX-License-Identifier: Apache-2.0
// hearth_job_watch and hearth_job_wait. The server holds a request ("watch") until something has
// happened to the job after the event that was heard of last, and answers with all that has. So it
// works wherever requests do. Where an answer has no number to go on from, or says that events are
// missing, the job's row is in it, or is asked for. A server that does not know "watch", or has too
// many of them, is asked for the job's state instead, and the events are derived from what changed.
//
// A server that goes away is tried again for a while: it may be starting anew, and the job with it.
#include "client/jobs/job_document.h"
#include "client/query.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "client/exchange.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WATCH_TICK_MS 1000  // from one call of the watcher to the next, at most
#define WATCH_WAIT_MS 10000 // .. of a request to the next, where there is none
#define WATCH_POLL_MS 250   // from one look at the job to the next, where it must be asked about
#define WATCH_AWAY_NS 60000000000u // that a server may be away
#define WATCH_TEXT    400

typedef struct job_watch {
    hearth *h;
    hearth_job job;
    hearth_job_watcher fn; // NULL: nobody looks
    void *ctx;
    uint64_t end_ns;          // 0: as long as it takes
    bool polls;               // the server knows no watches
    uint64_t after;           // the event that was heard of last; 0: none
    uint64_t away_ns;         // since when the server is away; 0: it is not
    bool over;                // the caller has had enough: its function, or its time
    json_t *row;              // where the job stands
    bool told;                // .. as the server says, and not as events do
    uint64_t known;           // .. its step then: events of before that are no news
    uint64_t first, first_ns; // step that was heard of first, since the state changed; 0: none
} job_watch;

static bool watch_goes_on(const job_watch *watch)
{
    return hth_job_goes_on(hth_job_state_of(watch->row));
}

static hth_err watch_report(job_watch *watch, const char *event)
{
    hearth_job_info *info;
    if (watch->fn == NULL) {
        return HTH_OK;
    }
    HTH_TRY(hth_job_row(watch->row, event, &info));
    watch->over = watch->fn(watch->ctx, info) != 0;
    hth_free(info);
    return !watch->over ? HTH_OK
                        : hth_fail(HTH_ECANCELED, "the watching was ended; the job goes on");
}

// ---- events

// watch_left guesses how long the job takes yet, from the steps that were heard of.
static json_t *watch_left(job_watch *watch, uint64_t done, uint64_t total)
{
    uint64_t now = hth_now_ns();
    if (watch->first == 0 || done < watch->first) {
        watch->first = done;
        watch->first_ns = now;
    }
    double passed = (double)(now - watch->first_ns) / 1e9;
    return done > watch->first && total >= done
               ? json_real(passed / (double)(done - watch->first) * (double)(total - done))
               : json_null();
}

// watch_step notes a step that was heard of in the row.
static void watch_step(job_watch *watch, json_t *json, uint64_t done, uint64_t total)
{
    static const char *const same[] = {"step",          "loss",          "stall_ms",  "peak_bytes",
                                       "budget_bytes",  "held_out_loss", "accuracy",  "lr",
                                       "held_out_step", "top5",          "perplexity"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        json_t *v = json_object_get(json, same[i]);
        if (v != NULL) {
            json_object_set(watch->row, same[i], v);
        }
    }
    json_object_set(watch->row, "step_ms", json_object_get(json, "ms"));
    json_object_set_new(watch->row, "steps", json_integer((json_int_t)total));
    json_object_set_new(watch->row, "state", json_string("running"));
    json_object_set_new(watch->row, "seconds_left", watch_left(watch, done, total));
}

static char *watch_text(const json_t *what)
{
    return json_dumps(what, JSON_COMPACT | JSON_REAL_PRECISION(9));
}

static uint64_t watch_count(const json_t *json, const char *key)
{
    json_int_t v = json_integer_value(json_object_get(json, key));
    return v > 0 ? (uint64_t)v : 0;
}

// watch_event notes an event in the row, and reports it.
static hth_err watch_event(job_watch *watch, const json_t *event)
{
    json_t *what = json_object_get(event, "what"), *state = json_object_get(what, "state");
    if (json_object_get(what, "step") != NULL) {
        if (watch_count(event, "done") < watch->known) {
            return HTH_OK;
        }
        watch_step(watch, what, watch_count(event, "done"), watch_count(event, "total"));
    } else if (json_is_string(state)) {
        json_object_set(watch->row, "state", state);
        json_object_set_new(watch->row, "seconds_left", json_null());
        watch->first = watch->known = 0; // it may go back to a checkpoint
    }
    watch->told = false;
    char *text = watch_text(what);
    hth_err err = text != NULL ? watch_report(watch, text) : HTH_OK;
    free(text);
    return err;
}

// watch_change makes of two documents of a job what was missed from one to the other: its present
// step, or another state. NULL: nothing.
static char *watch_change(const json_t *last, const json_t *doc)
{
    static const char *const keys[][2] = {{"step", "step"},
                                          {"loss", "loss"},
                                          {"step_ms", "ms"},
                                          {"stall_ms", "stall_ms"},
                                          {"peak_bytes", "peak_bytes"},
                                          {"budget_bytes", "budget_bytes"},
                                          {"held_out_loss", "held_out_loss"},
                                          {"accuracy", "accuracy"},
                                          {"held_out_step", "held_out_step"},
                                          {"top5", "top5"},
                                          {"perplexity", "perplexity"},
                                          {"lr", "lr"}};
    json_t *state = json_object_get(doc, "state"), *e = json_object();
    if (!json_equal(state, json_object_get(last, "state"))) {
        json_object_set(e, "state", state);
    } else if (!json_equal(json_object_get(doc, "step"), json_object_get(last, "step"))) {
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
            json_t *v = json_object_get(doc, keys[i][0]);
            if (json_is_number(v)) {
                json_object_set(e, keys[i][1], v);
            }
        }
    }
    char *text = json_object_size(e) > 0 ? watch_text(e) : NULL;
    json_decref(e);
    return text;
}

// watch_row takes a row over, and reports what has changed; nothing follows the end.
static hth_err watch_row(job_watch *watch, json_t *row)
{
    bool over =
        watch->row != NULL && !watch_goes_on(watch) && !hth_job_goes_on(hth_job_state_of(row));
    char *event = watch->row != NULL && !over ? watch_change(watch->row, row) : NULL;
    bool begins = watch->row == NULL;
    json_decref(watch->row);
    watch->row = row;
    watch->told = true;
    watch->known = watch_count(row, "step");
    hth_err err = begins || event != NULL ? watch_report(watch, event) : HTH_OK;
    free(event);
    return err;
}

// ---- requests

static json_t *watch_arguments(const job_watch *watch)
{
    return json_pack("{s:I}", "id", (json_int_t)watch->job.id);
}

// watch_wait is for how long nobody needs to hear anything.
static hth_err watch_wait(job_watch *watch, uint64_t *ms)
{
    uint64_t now = hth_now_ns();
    *ms = watch->fn != NULL ? WATCH_TICK_MS : WATCH_WAIT_MS;
    watch->over = watch->end_ns > 0 && now >= watch->end_ns;
    if (watch->over) {
        return hth_fail(HTH_ETIMEDOUT, "job %" PRIu64 " has not ended in time", watch->job.id);
    }
    uint64_t left_ms = (watch->end_ns - now) / 1000000 + 1;
    *ms = watch->end_ns > 0 && left_ms < *ms ? left_ms : *ms;
    return HTH_OK;
}

static hth_err watch_pause(job_watch *watch)
{
    uint64_t ms;
    HTH_TRY(watch_wait(watch, &ms));
    ms = ms < WATCH_POLL_MS ? ms : WATCH_POLL_MS;
    nanosleep(&(struct timespec){.tv_nsec = (long)ms * 1000000}, NULL);
    return HTH_OK;
}

// watch_held is for how long the server may hold a request, at most.
static uint64_t watch_held(const job_watch *watch)
{
    return watch->h->timeout_ms / 2;
}

// watch_look asks where the job stands.
static hth_err watch_look(job_watch *watch)
{
    json_t *args = watch_arguments(watch), *doc;
    json_object_set_new(args, "points", json_integer(1));
    HTH_TRY(hth_query_document(watch->h, "job", args, &doc));
    return watch_row(watch, doc);
}

// watch_answer reads an answer.
static hth_err watch_answer(job_watch *watch, const json_t *doc)
{
    const json_t *events = json_object_get(doc, "events"), *e;
    json_t *row = json_object_get(doc, "job");
    bool missed = json_is_true(json_object_get(doc, "missed"));
    bool again = watch->row != NULL;
    size_t i;
    watch->after = watch_count(doc, "next");
    if (missed && again) {
        HTH_TRY(watch_report(watch, "{\"missed\":true}"));
    }
    json_array_foreach(events, i, e)
    {
        HTH_TRY(watch_goes_on(watch) ? watch_event(watch, e) : HTH_OK);
    }
    if (json_is_object(row)) {
        HTH_TRY(watch_row(watch, json_incref(row)));
        return again && watch_goes_on(watch) ? watch_pause(watch) : HTH_OK; // not at once again
    }
    if (missed) {
        return watch_look(watch);
    }
    if (json_array_size(events) > 0) {
        return HTH_OK;
    }
    HTH_TRY(watch_report(watch, NULL));
    return watch_held(watch) < WATCH_POLL_MS ? watch_pause(watch) : HTH_OK;
}

// watch_refused finds out what it means that a watch was refused: there is no such job, or the
// server knows no watches, or has as many as it takes.
static hth_err watch_refused(job_watch *watch, hth_err err)
{
    watch->polls = watch->polls || err != HTH_EBUSY;
    HTH_TRY(watch_look(watch));
    return watch_goes_on(watch) ? watch_pause(watch) : HTH_OK;
}

static hth_err watch_ask(job_watch *watch)
{
    uint64_t ms;
    json_t *args, *doc;
    HTH_TRY(watch_wait(watch, &ms));
    if (watch->row != NULL && !watch_goes_on(watch)) { // so it was heard: now all about its end
        return watch_look(watch);
    }
    if (watch->polls) {
        HTH_TRY(watch_look(watch));
        return watch_goes_on(watch) ? watch_pause(watch) : HTH_OK;
    }
    args = watch_arguments(watch);
    if (watch->row != NULL && watch->after > 0) {
        uint64_t most = watch_held(watch);
        json_object_set_new(args, "after", json_integer((json_int_t)watch->after));
        json_object_set_new(args, "wait_ms", json_integer((json_int_t)(ms < most ? ms : most)));
    }
    hth_err err = hth_query_document(watch->h, "watch", args, &doc);
    if (err == HTH_ENOENT || err == HTH_EDENIED || err == HTH_EBUSY) {
        return watch_refused(watch, err);
    }
    HTH_TRY(err);
    err = watch_answer(watch, doc);
    json_decref(doc);
    return err;
}

// ---- a server that goes away

static bool watch_is_away(hth_err err)
{
    return err == HTH_EIO || err == HTH_ETIMEDOUT || err == HTH_ECANCELED;
}

// watch_away waits before the next try.
static hth_err watch_away(job_watch *watch, hth_err err)
{
    char why[WATCH_TEXT];
    uint64_t now = hth_now_ns();
    snprintf(why, sizeof why, "%s", hth_err_detail());
    if (watch->away_ns == 0) {
        watch->away_ns = now;
        watch->polls = false; // the next one may be newer
    }
    if (now - watch->away_ns >= WATCH_AWAY_NS) {
        return hth_fail(err, "%s; job %" PRIu64 " goes on when its server does", why,
                        watch->job.id);
    }
    HTH_TRY(watch_report(watch, NULL)); // who watches may have had enough
    return watch_pause(watch);
}

// watch_run: before there is a row, an error is one: there was no server to lose.
static hth_err watch_run(job_watch *watch)
{
    while (watch->row == NULL || watch_goes_on(watch) || !watch->told) {
        hth_err err = watch_ask(watch);
        if (err == HTH_OK) {
            watch->away_ns = 0;
        } else if (watch->row == NULL || watch->over || !watch_is_away(err)) {
            return err;
        } else {
            HTH_TRY(watch_away(watch, err));
        }
    }
    return HTH_OK;
}

static hearth_status job_watch_until(hearth *h, hearth_job job, hearth_job_watcher fn, void *ctx,
                                     uint64_t timeout_ms, hearth_job_info **out)
{
    uint64_t now_ns = hth_now_ns();
    bool ends = timeout_ms > 0 && timeout_ms <= (UINT64_MAX - now_ns) / 1000000; // else never
    uint64_t end_ns = ends ? now_ns + timeout_ms * 1000000 : 0;
    job_watch w = {.h = h, .job = job, .fn = fn, .ctx = ctx, .end_ns = end_ns};
    if (out != NULL) {
        *out = NULL;
    }
    if (hth_exchange_check(h) != HTH_OK) {
        return HEARTH_EINVAL;
    }
    hth_exchange_hold(h); // between its requests, too
    hth_err err = watch_run(&w);
    if (err == HTH_OK && out != NULL) {
        err = hth_job_row(w.row, NULL, out);
    }
    hth_exchange_rele(h);
    json_decref(w.row);
    return (hearth_status)err;
}

hearth_status hearth_job_watch(hearth *h, hearth_job job, hearth_job_watcher watcher, void *ctx,
                               hearth_job_info **out)
{
    return job_watch_until(h, job, watcher, ctx, 0, out);
}

hearth_status hearth_job_wait(hearth *h, hearth_job job, uint64_t timeout_ms, hearth_job_info **out)
{
    return job_watch_until(h, job, NULL, NULL, timeout_ms, out);
}
