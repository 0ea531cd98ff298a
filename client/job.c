// SPDX-License-Identifier: Apache-2.0
// The calls of hearth.h about models on the device and about training jobs: questions
// (hearth_query), whose documents job_document.h reads. Who watches a job hears what its server
// publishes, or asks; either way it asks now and then, for who listens late, or slowly, has missed
// something.
#include "client/job_document.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "client/events.h"
#include "client/exchange.h"
#include "client/passed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define JOB_POLL_MS    250  // where nothing is published, from one look at the job to the next
#define JOB_SILENCE_MS 1000 // without events, after which the job is asked about

// ---- questions

// job_ask asks `what`, taking `args`, and reads the answer; *doc is the caller's.
static hth_err job_ask(hearth *h, const char *what, json_t *args, json_t **doc)
{
    char *text = args != NULL ? json_dumps(args, JSON_COMPACT) : NULL, *json = NULL;
    json_decref(args);
    *doc = NULL;
    if (text == NULL) {
        return hth_fail(HTH_EINVAL, "an argument of '%s' is not UTF-8", what);
    }
    hth_err err = (hth_err)hearth_query(h, what, text, NULL, NULL, &json);
    free(text);
    HTH_TRY(err);
    *doc = json_loads(json, 0, NULL);
    hth_free(json);
    return *doc != NULL ? HTH_OK
                        : hth_fail(HTH_ECORRUPT, "%s sent an unexpected kind of reply", h->url);
}

// job_question asks about a job by its number; points: so many of its losses, 0: all.
static hth_err job_question(hearth *h, const char *what, hearth_job job, int points,
                            const char *budget, json_t **doc)
{
    json_t *args = json_pack("{s:I}", "id", (json_int_t)job.id);
    if (args != NULL && points > 0) {
        json_object_set_new(args, "points", json_integer(points));
    }
    if (args != NULL && budget != NULL) {
        json_object_set_new(args, "budget", json_string(budget));
    }
    return job_ask(h, what, args, doc);
}

static uint64_t doc_count(const json_t *doc, const char *key)
{
    json_int_t v = json_integer_value(json_object_get(doc, key));
    return v > 0 ? (uint64_t)v : 0;
}

// ---- models on the device

hearth_status hearth_load(hearth *h, const char *model, const hearth_load_options *options,
                          hearth_load_result *out)
{
    hearth_load_options o = {.size = sizeof o};
    json_t *doc;
    if (options != NULL && hth_options_read(options, &o, sizeof o, sizeof o) != HTH_OK) {
        return HEARTH_ENOTSUP;
    }
    if (o.pin != 0 && o.unpin != 0) {
        return (hearth_status)hth_fail(HTH_EINVAL, "pin or unpin '%s', not both", model);
    }
    json_t *args = json_pack("{s:s}", "model", model);
    const struct {
        const char *key;
        int set;
    } switches[] = {{"pin", o.pin}, {"unpin", o.unpin}, {"no-wait", o.no_wait}};
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        if (switches[i].set != 0) { // false is not the same as not said
            json_object_set_new(args, switches[i].key, json_true());
        }
    }
    if (o.on != NULL) {
        json_object_set_new(args, "on", json_string(o.on));
    }
    hth_err err = job_ask(h, "load", args, &doc);
    if (err == HTH_OK && out != NULL) {
        *out = (hearth_load_result){.version = (int)doc_count(doc, "version"),
                                    .pinned = json_is_true(json_object_get(doc, "pinned")),
                                    .moved_bytes = doc_count(doc, "moved_bytes")};
    }
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_unload(hearth *h, const char *model, uint64_t *freed_bytes)
{
    json_t *doc;
    hth_err err = job_ask(h, "unload", json_pack("{s:s}", "model", model), &doc);
    if (err == HTH_OK && freed_bytes != NULL) {
        *freed_bytes = doc_count(doc, "freed_bytes");
    }
    json_decref(doc);
    return (hearth_status)err;
}

// ---- datasets of the store

hearth_status hearth_data_put(hearth *h, const char *name, const char *path,
                              const hearth_data_options *options, hearth_data_result *out)
{
    hearth_data_options o = {.size = sizeof o};
    json_t *doc = NULL;
    char *whole;
    if (options != NULL && hth_options_read(options, &o, sizeof o, sizeof o) != HTH_OK) {
        return HEARTH_ENOTSUP;
    }
    hth_err err = hth_passed_path(path, &whole);
    if (err != HTH_OK) {
        return (hearth_status)err;
    }
    json_t *args = json_pack("{s:s, s:s, s:s*, s:s*}", "name", name, "data", whole, "label",
                             o.label, "size", o.image_size);
    hth_free(whole);
    err = job_ask(h, "dataset_put", args, &doc);
    if (err == HTH_OK && out != NULL) {
        *out = (hearth_data_result){doc_count(doc, "bytes"), doc_count(doc, "moved")};
    }
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_data_remove(hearth *h, const char *name)
{
    json_t *doc;
    hth_err err = job_ask(h, "dataset_rm", json_pack("{s:s}", "name", name), &doc);
    json_decref(doc);
    return (hearth_status)err;
}

// ---- jobs

// job_taken reads which job a document is about.
static hth_err job_taken(const json_t *doc, hearth_job *out)
{
    out->id = doc_count(doc, "id");
    return out->id > 0
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "an older hearth gave this job no number; a job that "
                                       "it stopped has one once it is resumed");
}

hearth_status hearth_train_submit(hearth *h, const char *model, const char *data,
                                  const hearth_train_options *options, hearth_job *out)
{
    hearth_train_options o = {.size = 0};
    char *path = NULL, *eval = NULL, *arguments = NULL, *json = NULL;
    json_t *doc = NULL;
    out->id = 0;
    hth_err err = hth_passed_data(data, &path);
    if (err == HTH_OK && options != NULL) {
        err = hth_options_read(options, &o, sizeof o, offsetof(hearth_train_options, class_axis));
    }
    if (err == HTH_OK && o.eval != NULL) {
        err = hth_passed_data(o.eval, &eval);
        o.eval = eval;
    }
    err = err == HTH_OK ? hth_job_arguments(model, path, &o, &arguments) : err;
    if (err == HTH_OK) {
        err = (hth_err)hearth_query(h, "train", arguments, NULL, NULL, &json);
    }
    if (err == HTH_OK) {
        doc = json_loads(json, 0, NULL);
        err = job_taken(doc, out);
    }
    json_decref(doc);
    hth_free(json);
    hth_free(arguments);
    hth_free(eval);
    hth_free(path);
    return (hearth_status)err;
}

hearth_status hearth_job_find(hearth *h, const char *name, hearth_job *out)
{
    json_t *doc;
    out->id = 0;
    hth_err err = job_ask(h, "job", json_pack("{s:s, s:i}", "job", name, "points", 1), &doc);
    err = err == HTH_OK ? job_taken(doc, out) : err;
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_job_list(hearth *h, hearth_job_info **out)
{
    json_t *doc;
    *out = NULL;
    hth_err err = job_ask(h, "jobs", json_object(), &doc);
    err = err == HTH_OK ? hth_job_rows(doc, out) : err;
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_job_status(hearth *h, hearth_job job, hearth_job_info **out)
{
    json_t *doc;
    *out = NULL;
    hth_err err = job_question(h, "job", job, 1, NULL, &doc);
    err = err == HTH_OK ? hth_job_row(doc, NULL, out) : err;
    json_decref(doc);
    return (hearth_status)err;
}

static hearth_status job_change(hearth *h, const char *what, hearth_job job, const char *budget)
{
    json_t *doc;
    hth_err err = job_question(h, what, job, 0, budget, &doc);
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_job_pause(hearth *h, hearth_job job)
{
    return job_change(h, "pause", job, NULL);
}

hearth_status hearth_job_resume(hearth *h, hearth_job job, const char *budget)
{
    return job_change(h, "resume", job, budget);
}

hearth_status hearth_job_cancel(hearth *h, hearth_job job)
{
    return job_change(h, "cancel", job, NULL);
}

hearth_status hearth_job_result(hearth *h, hearth_job job, hearth_train_result **out)
{
    json_t *doc;
    *out = NULL;
    hth_err err = job_question(h, "job", job, 0, NULL, &doc);
    err = err == HTH_OK ? hth_job_result(doc, out) : err;
    json_decref(doc);
    return (hearth_status)err;
}

// ---- watching

typedef struct job_watch {
    hearth *h;
    hearth_job job;
    hearth_job_watcher fn; // NULL: nobody looks
    void *ctx;
    uint64_t end_ns;          // 0: as long as it takes
    hth_events *events;       // NULL: nothing is published
    json_t *row;              // where the job stands
    uint64_t first, first_ns; // step that was heard of first, since the state changed; 0: none
} job_watch;

static bool watch_goes_on(const job_watch *w)
{
    return hth_job_goes_on(hth_job_state_of(w->row));
}

static hth_err watch_report(const job_watch *w, const char *event)
{
    hearth_job_info *info;
    if (w->fn == NULL) {
        return HTH_OK;
    }
    HTH_TRY(hth_job_row(w->row, event, &info));
    int stop = w->fn(w->ctx, info);
    hth_free(info);
    return stop == 0 ? HTH_OK : hth_fail(HTH_ECANCELED, "the watching was ended; the job goes on");
}

// watch_left guesses how long the job takes yet, from the steps that were heard of.
static json_t *watch_left(job_watch *w, uint64_t done, uint64_t total)
{
    uint64_t now = hth_now_ns();
    if (w->first == 0 || done < w->first) {
        w->first = done;
        w->first_ns = now;
    }
    double passed = (double)(now - w->first_ns) / 1e9;
    return done > w->first && total >= done
               ? json_real(passed / (double)(done - w->first) * (double)(total - done))
               : json_null();
}

// watch_step notes a step that was heard of in the row.
static void watch_step(job_watch *w, json_t *o, uint64_t done, uint64_t total)
{
    static const char *const same[] = {"step",          "loss",          "stall_ms",  "peak_bytes",
                                       "budget_bytes",  "held_out_loss", "accuracy",  "lr",
                                       "held_out_step", "top5",          "perplexity"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        json_t *v = json_object_get(o, same[i]);
        if (v != NULL) {
            json_object_set(w->row, same[i], v);
        }
    }
    json_object_set(w->row, "step_ms", json_object_get(o, "ms"));
    json_object_set_new(w->row, "steps", json_integer((json_int_t)total));
    json_object_set_new(w->row, "state", json_string("running"));
    json_object_set_new(w->row, "seconds_left", watch_left(w, done, total));
}

static hth_err watch_event(job_watch *w, const hth_event *e)
{
    json_t *o = json_loads(e->what, 0, NULL), *state = json_object_get(o, "state");
    if (json_object_get(o, "step") != NULL) {
        watch_step(w, o, e->done, e->total);
    } else if (json_is_string(state)) {
        json_object_set(w->row, "state", state);
        json_object_set_new(w->row, "seconds_left", json_null());
        w->first = 0;
    }
    json_decref(o);
    return watch_report(w, e->what);
}

// watch_wait is for how long the next event is waited for.
static hth_err watch_wait(const job_watch *w, uint64_t most_ms, uint64_t *ms)
{
    uint64_t now = hth_now_ns();
    *ms = most_ms;
    if (w->end_ns > 0 && now >= w->end_ns) {
        return hth_fail(HTH_ETIMEDOUT, "job %" PRIu64 " has not ended in time", w->job.id);
    }
    uint64_t left_ms = (w->end_ns - now) / 1000000 + 1;
    *ms = w->end_ns > 0 && left_ms < most_ms ? left_ms : most_ms;
    return HTH_OK;
}

// watch_hear tells what is published, until that is an end, or nothing for a while.
static hth_err watch_hear(job_watch *w)
{
    hth_event e;
    uint64_t ms;
    do {
        HTH_TRY(watch_wait(w, JOB_SILENCE_MS, &ms));
        if (hth_events_next(w->events, ms, &e) != HTH_OK) {
            return HTH_OK;
        }
        HTH_TRY(watch_event(w, &e));
    } while (watch_goes_on(w));
    return HTH_OK;
}

// watch_change makes of two documents of a job what would have been published from one to the
// other: its present step, or another state. NULL: nothing.
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
    char *text =
        json_object_size(e) > 0 ? json_dumps(e, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(e);
    return text;
}

// watch_poll queries the job; report: reports what changed, because no event does.
static hth_err watch_poll(job_watch *w, bool report)
{
    json_t *doc;
    HTH_TRY(job_question(w->h, "job", w->job, 1, NULL, &doc));
    char *event = report ? watch_change(w->row, doc) : NULL;
    json_decref(w->row);
    w->row = doc;
    hth_err err = event != NULL ? watch_report(w, event) : HTH_OK;
    free(event);
    return err;
}

static hth_err watch_run(job_watch *w)
{
    uint64_t ms;
    HTH_TRY(watch_poll(w, false));
    const char *name = json_string_value(json_object_get(w->row, "job"));
    if (watch_goes_on(w) && !w->h->plain) { // nng is of no use there
        (void)hth_events_open(w->h, name != NULL ? name : "", &w->events);
    }
    HTH_TRY(watch_report(w, NULL));
    while (watch_goes_on(w)) {
        if (w->events != NULL) {
            HTH_TRY(watch_hear(w));
        } else {
            HTH_TRY(watch_wait(w, JOB_POLL_MS, &ms));
            nanosleep(&(struct timespec){.tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
        }
        HTH_TRY(watch_poll(w, w->events == NULL));
    }
    return HTH_OK;
}

static hearth_status job_watch_until(hearth *h, hearth_job job, hearth_job_watcher fn, void *ctx,
                                     uint64_t timeout_ms, hearth_job_info **out)
{
    uint64_t end_ns = timeout_ms > 0 ? hth_now_ns() + timeout_ms * 1000000 : 0;
    job_watch w = {.h = h, .job = job, .fn = fn, .ctx = ctx, .end_ns = end_ns};
    if (out != NULL) {
        *out = NULL;
    }
    if (hth_exchange_check(h) != HTH_OK) {
        return HEARTH_EINVAL;
    }
    hth_exchange_hold(h); // between its questions, too
    hth_err err = watch_run(&w);
    if (err == HTH_OK && out != NULL) {
        err = hth_job_row(w.row, NULL, out);
    }
    hth_events_close(w.events);
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
