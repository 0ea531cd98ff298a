// SPDX-License-Identifier: Apache-2.0
// Trace settings. Each model uses the settings for all but for those that were set for it alone.
// Whoever owns a count or a rate counts by it: requests seen, traces left.
#include "server/http/trace/http_trace.h"

#include "server/http/http_call.h"
#include "server/http/trace/http_trace_file.h"

#include "base/alloc.h"
#include "base/hash.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Models with settings of their own.
#define TRACE_MAX_MODELS 4096

// A bit for each setting that was given.
enum { TRACE_LEVEL = 1, TRACE_RATE = 2, TRACE_COUNT = 4, TRACE_FREQUENCY = 8 };

typedef struct trace_settings {
    char model[201]; // ""
    unsigned given;
    unsigned level;
    uint64_t rate, log_frequency;
    int64_t count; // traces that may still be made; -1: any number
    uint64_t seen; // requests, for the rate
    UT_hash_handle hh;
} trace_settings;

struct hth_tracer {
    trace_settings all;
    trace_settings *models; // those with settings of their own
    hth_trace_file *file;   // NULL: requests cannot be traced
    char path[HTH_TRACE_PATH];
    bool on; // for all or for some model
    uint64_t last_id;
};

static const trace_settings trace_defaults = {.rate = 1000, .count = -1};

// ---- which requests

static trace_settings *trace_of(const hth_tracer *tracer, const char *model)
{
    trace_settings *s;
    HASH_FIND_STR(tracer->models, model, s);
    return s;
}

// trace_owner is whose value of `setting` holds for the model whose own settings are `own`.
static trace_settings *trace_owner(hth_tracer *tracer, trace_settings *own, unsigned setting)
{
    return own != NULL && (own->given & setting) != 0 ? own : &tracer->all;
}

bool hth_tracer_on(const hth_tracer *tracer)
{
    return tracer->on;
}

hth_trace *hth_trace_begin(hth_tracer *tracer, const char *model)
{
    trace_settings *own = tracer->on ? trace_of(tracer, model) : NULL;
    unsigned level = tracer->on ? trace_owner(tracer, own, TRACE_LEVEL)->level : 0;
    if (level == 0) {
        return NULL;
    }
    trace_settings *rate = trace_owner(tracer, own, TRACE_RATE);
    trace_settings *count = trace_owner(tracer, own, TRACE_COUNT);
    if (++rate->seen % rate->rate != 0 || count->count == 0) {
        return NULL;
    }
    hth_trace *trace = hth_calloc(1, sizeof *trace);
    if (trace == NULL) {
        return NULL; // the request goes on without
    }
    count->count -= count->count > 0;
    trace->tracer = tracer;
    trace->id = ++tracer->last_id;
    trace->level = level;
    trace->log_frequency = trace_owner(tracer, own, TRACE_FREQUENCY)->log_frequency;
    snprintf(trace->model, sizeof trace->model, "%s", model);
    return trace;
}

void hth_trace_end(hth_trace *trace)
{
    if (trace->tracer->file != NULL) {
        hth_trace_file_add(trace->tracer->file, trace);
    }
    hth_text_fini(&trace->tensors);
    hth_free(trace);
}

void hth_tracer_flush(hth_tracer *tracer)
{
    if (tracer->file != NULL) {
        hth_trace_file_flush(tracer->file);
    }
}

// ---- settings

// set_number reads a setting that is a number or, as clients send it, a number's text.
static hth_err set_number(const json_t *json, const char *key, int64_t least, int64_t *out)
{
    const char *text = json_string_value(json);
    char *end = NULL;
    errno = 0;
    *out = text != NULL ? strtoll(text, &end, 10) : json_integer_value(json);
    bool number = text != NULL ? end != text && *end == 0 && errno == 0 : json_is_integer(json);
    return number && *out >= least
               ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "Unable to parse '%s': it is not a whole number of %" PRId64 " or more",
                          key, least);
}

static const char *const trace_level[] = {"TIMESTAMPS", "TENSORS"}; // by their bits

static hth_err set_level(const hth_tracer *tracer, const json_t *json, unsigned *out)
{
    const json_t *level;
    size_t i;
    unsigned on = 0;
    if (!json_is_array(json)) {
        return hth_fail(HTH_EINVAL, "Unable to parse 'trace_level': it is not an array");
    }
    json_array_foreach(json, i, level)
    {
        const char *name = json_string_value(level);
        int bit = 0;
        while (name != NULL && bit < 2 && strcmp(name, trace_level[bit]) != 0) {
            bit++;
        }
        if (name == NULL || (bit == 2 && strcmp(name, "OFF") != 0)) {
            return hth_fail(HTH_EINVAL,
                            "Unable to parse 'trace_level': it is not TIMESTAMPS, TENSORS or OFF");
        }
        on |= bit < 2 ? 1u << bit : 0;
    }
    if (on != 0 && tracer->file == NULL) {
        return hth_fail(HTH_EINVAL,
                        "Attempting to set invalid trace setting: trace file name is not "
                        "given (hearthd's setting trace.file)");
    }
    *out = on;
    return HTH_OK;
}

// set_one takes over the setting `key`; `dflt` is what null makes of it.
static hth_err set_one(const hth_tracer *tracer, const char *key, const json_t *json,
                       trace_settings *settings)
{
    bool clear = json_is_null(json);
    int64_t number = 0;
    unsigned setting;
    if (strcmp(key, "trace_level") == 0) {
        setting = TRACE_LEVEL;
        settings->level = trace_defaults.level;
        HTH_TRY(clear ? HTH_OK : set_level(tracer, json, &settings->level));
    } else if (strcmp(key, "trace_rate") == 0) {
        setting = TRACE_RATE;
        HTH_TRY(clear ? HTH_OK : set_number(json, key, 1, &number));
        settings->rate = clear ? trace_defaults.rate : (uint64_t)number;
        settings->seen = 0;
    } else if (strcmp(key, "trace_count") == 0) {
        setting = TRACE_COUNT;
        HTH_TRY(clear ? HTH_OK : set_number(json, key, -1, &number));
        settings->count = clear ? trace_defaults.count : number;
    } else if (strcmp(key, "log_frequency") == 0) {
        setting = TRACE_FREQUENCY;
        HTH_TRY(clear ? HTH_OK : set_number(json, key, 0, &number));
        settings->log_frequency = clear ? trace_defaults.log_frequency : (uint64_t)number;
    } else if (strcmp(key, "trace_file") == 0) {
        return hth_fail(HTH_ENOTSUP,
                        "trace file location can not be updated through network protocol");
    } else {
        return HTH_OK; // other versions of the protocol have others
    }
    settings->given = clear ? settings->given & ~setting : settings->given | setting;
    return HTH_OK;
}

// trace_keep puts changed settings in the place of the model's.
static hth_err trace_keep(hth_tracer *tracer, const trace_settings *changed)
{
    trace_settings *s = trace_of(tracer, changed->model);
    if (s == NULL && HASH_COUNT(tracer->models) >= TRACE_MAX_MODELS) {
        return hth_fail(HTH_EBUSY, "%d models have trace settings of their own", TRACE_MAX_MODELS);
    }
    if (s != NULL) {
        HASH_DEL(tracer->models, s);
    } else if ((s = hth_calloc(1, sizeof *s)) == NULL) {
        return hth_no_memory("trace settings");
    }
    *s = *changed;
    if (s->given == 0) {
        hth_free(s);
        return HTH_OK;
    }
    HASH_ADD_STR(tracer->models, model, s);
    if (!HTH_HASH_ADDED(s)) {
        hth_free(s);
        return hth_no_memory("trace settings");
    }
    return HTH_OK;
}

hth_err hth_tracer_set(hth_tracer *tracer, const char *model, const json_t *settings)
{
    const char *key;
    json_t *v;
    const trace_settings *own = trace_of(tracer, model);
    trace_settings s = own != NULL ? *own : trace_defaults;
    if (model[0] == 0) {
        s = tracer->all;
    }
    snprintf(s.model, sizeof s.model, "%s", model);
    json_object_foreach((json_t *)settings, key, v)
    {
        HTH_TRY(set_one(tracer, key, v, &s));
    }
    if (model[0] == 0) {
        tracer->all = s;
    } else {
        HTH_TRY(trace_keep(tracer, &s));
    }
    tracer->on = tracer->all.level != 0;
    for (const trace_settings *m = tracer->models; m != NULL; m = m->hh.next) {
        tracer->on = tracer->on || m->level != 0;
    }
    return HTH_OK;
}

json_t *hth_tracer_get(const hth_tracer *tracer, const char *model)
{
    char rate[24], count[24], frequency[24];
    hth_tracer *all = (hth_tracer *)tracer;
    trace_settings *own = trace_of(tracer, model);
    snprintf(rate, sizeof rate, "%" PRIu64, trace_owner(all, own, TRACE_RATE)->rate);
    snprintf(count, sizeof count, "%" PRId64, trace_owner(all, own, TRACE_COUNT)->count);
    snprintf(frequency, sizeof frequency, "%" PRIu64,
             trace_owner(all, own, TRACE_FREQUENCY)->log_frequency);
    unsigned level = trace_owner(all, own, TRACE_LEVEL)->level;
    json_t *levels = json_array();
    for (int bit = 0; bit < 2; bit++) {
        if ((level >> bit & 1) != 0) {
            json_array_append_new(levels, json_string(trace_level[bit]));
        }
    }
    if (level == 0) {
        json_array_append_new(levels, json_string("OFF"));
    }
    return json_pack("{s:o, s:s, s:s, s:s, s:s, s:s}", "trace_level", levels, "trace_rate", rate,
                     "trace_count", count, "log_frequency", frequency, "trace_file", tracer->path,
                     "trace_mode", "triton");
}

hth_err hth_tracer_open(const char *file, hth_tracer **out)
{
    *out = NULL;
    hth_tracer *t = hth_calloc(1, sizeof *t);
    if (t == NULL) {
        return hth_no_memory("traces");
    }
    t->all = trace_defaults;
    hth_err err = file[0] != 0 ? hth_trace_file_open(file, &t->file) : HTH_OK;
    const char *name = strrchr(file, '/'); // where it lies is nobody's business
    snprintf(t->path, sizeof t->path, "%s", name != NULL ? name + 1 : file);
    if (err != HTH_OK) {
        hth_tracer_close(t);
        return err;
    }
    *out = t;
    return HTH_OK;
}

void hth_tracer_close(hth_tracer *tracer)
{
    trace_settings *s, *next;
    if (tracer == NULL) {
        return;
    }
    HASH_ITER (hh, tracer->models, s, next) {
        HASH_DEL(tracer->models, s);
        hth_free(s);
    }
    hth_trace_file_close(tracer->file);
    hth_free(tracer);
}

// ---- over HTTP

// trace_unknown answers when the path names a model that the store does not have.
static bool trace_unknown(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_manifest m;
    if (args->name[0] == 0) {
        return false;
    }
    if (hth_store_get(http->store, args->name, 0, &m) != HTH_OK) {
        hth_http_fail(http, req, 400, "Request for unknown model: '%s' is not found", args->name);
        return true;
    }
    hth_manifest_fini(&m);
    return false;
}

void hth_http_trace_get(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    if (!trace_unknown(http, req, args)) {
        hth_http_send_json(http, req, hth_tracer_get(http->tracer, args->name));
    }
}

void hth_http_trace_set(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    json_t *q;
    if (trace_unknown(http, req, args) || !hth_http_body(http, req, &q)) {
        return;
    }
    hth_err err = q == NULL || json_is_object(q)
                      ? hth_tracer_set(http->tracer, args->name, q)
                      : hth_fail(HTH_EINVAL, "the trace settings are not a JSON object");
    json_decref(q);
    if (err != HTH_OK) {
        hth_http_fail_err(http, req, err);
    } else {
        hth_http_send_json(http, req, hth_tracer_get(http->tracer, args->name));
    }
}
