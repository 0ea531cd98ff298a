// SPDX-License-Identifier: Apache-2.0
// The engines of a graph: listed by heuristics and by index, filtered by what they do to numbers,
// named so that they can be made again. Heuristics' mode B is not safe to run twice at once: a
// lock.
#include "kernels/cuda/dnn_call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENGINE_RESULTS 64 // of one mode
#define ENGINE_KNOBS   16
#define ENGINE_NOTES   16
#define ENGINE_MODEST  ((int64_t)16 << 20) // of workspace

typedef struct engine_knob {
    cudnnBackendKnobType_t type;
    int64_t value;
} engine_knob;

static pthread_mutex_t engine_lock = PTHREAD_MUTEX_INITIALIZER;

// An engine of f32 tensors that uses tensor cores rounds its inputs to TF32; where it also notes
// that it converts them, to 16 bits.
bool hth_dnn_precise(hth_precision precision, uint64_t notes)
{
    uint64_t bad = UINT64_C(1) << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS |
                   UINT64_C(1) << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION |
                   UINT64_C(1) << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    bad |= precision == HTH_PRECISION_FP32 ? UINT64_C(1) << CUDNN_NUMERICAL_NOTE_TENSOR_CORE : 0;
    return (notes & bad) == 0;
}

static const hth_cuda_api *engine_api(const hth_dnn_graph *graph)
{
    return graph->device->api;
}

static void engine_end(const hth_dnn_graph *graph, cudnnBackendDescriptor_t d)
{
    if (d != NULL) {
        (void)engine_api(graph)->cudnnBackendDestroyDescriptor(d);
    }
}

static bool engine_get(const hth_dnn_graph *graph, cudnnBackendDescriptor_t d,
                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t cap, int64_t *count, void *out)
{
    *count = 0;
    return engine_api(graph)->cudnnBackendGetAttribute(d, name, type, cap, count, out) ==
           CUDNN_STATUS_SUCCESS;
}

static bool engine_set(const hth_dnn_graph *graph, cudnnBackendDescriptor_t d,
                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t count, const void *value)
{
    return engine_api(graph)->cudnnBackendSetAttribute(d, name, type, count, value) ==
           CUDNN_STATUS_SUCCESS;
}

static uint64_t engine_notes(const hth_dnn_graph *graph, cudnnBackendDescriptor_t engine)
{
    cudnnBackendNumericalNote_t note[ENGINE_NOTES];
    int64_t n;
    uint64_t bits = 0;
    if (!engine_get(graph, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                    ENGINE_NOTES, &n, note)) {
        return 0;
    }
    for (int64_t i = 0; i < n && i < ENGINE_NOTES; i++) {
        bits |= UINT64_C(1) << note[i];
    }
    return bits;
}

// Engine number `index` of the graph, finalized; NULL: it cannot run it.
static cudnnBackendDescriptor_t engine_open(const hth_dnn_graph *graph, int64_t index)
{
    const hth_dnn_device *d = graph->device;
    cudnnBackendDescriptor_t e;
    if (d->api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &e) !=
        CUDNN_STATUS_SUCCESS) {
        return NULL;
    }
    bool ok = engine_set(graph, e, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                         1, &graph->graph) &&
              engine_set(graph, e, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    if (d->description != NULL) {
        ok = ok && engine_set(graph, e, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                              1, &d->description);
    }
    if (ok && d->api->cudnnBackendFinalize(e) == CUDNN_STATUS_SUCCESS) {
        return e;
    }
    engine_end(graph, e);
    return NULL;
}

static bool engine_set_knobs(const hth_dnn_graph *graph, cudnnBackendDescriptor_t config,
                             const engine_knob *knob, int n, cudnnBackendDescriptor_t *made)
{
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        ok = engine_api(graph)->cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                                                             &made[i]) == CUDNN_STATUS_SUCCESS &&
             engine_set(graph, made[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1,
                        &knob[i].type) &&
             engine_set(graph, made[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1,
                        &knob[i].value) &&
             engine_api(graph)->cudnnBackendFinalize(made[i]) == CUDNN_STATUS_SUCCESS;
    }
    return ok && (n == 0 || engine_set(graph, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, n, made));
}

// A configuration, finalized; NULL: the engine refuses these knobs.
static cudnnBackendDescriptor_t engine_configure(const hth_dnn_graph *graph,
                                                 cudnnBackendDescriptor_t engine,
                                                 const engine_knob *knob, int n)
{
    cudnnBackendDescriptor_t c, made[ENGINE_KNOBS] = {NULL};
    if (engine_api(graph)->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &c) !=
        CUDNN_STATUS_SUCCESS) {
        return NULL;
    }
    bool ok = engine_set(graph, c, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                         &engine) &&
              engine_set_knobs(graph, c, knob, n, made) &&
              engine_api(graph)->cudnnBackendFinalize(c) == CUDNN_STATUS_SUCCESS;
    for (int i = 0; i < n; i++) {
        engine_end(graph, made[i]);
    }
    if (!ok) {
        engine_end(graph, c);
    }
    return ok ? c : NULL;
}

// Names.

static bool engine_name(bool fused, int64_t index, const engine_knob *knob, int n,
                        hth_dnn_engine *out)
{
    int at = snprintf(out->name, sizeof out->name, "%c%lld", fused ? 'f' : 'e', (long long)index);
    for (int i = 0; i < n && at < (int)sizeof out->name; i++) {
        at += snprintf(out->name + at, sizeof out->name - (size_t)at, "%c%d=%lld", i ? ',' : ':',
                       (int)knob[i].type, (long long)knob[i].value);
    }
    return at < (int)sizeof out->name;
}

static bool engine_parse(const char *name, int64_t *index, engine_knob *knob, int *n)
{
    char *end;
    *n = 0;
    *index = strtoll(name + 1, &end, 10);
    while (*end == ':' || *end == ',') {
        long type = strtol(end + 1, &end, 10);
        if (*end != '=' || *n == ENGINE_KNOBS) {
            return false;
        }
        knob[*n].type = (cudnnBackendKnobType_t)type;
        knob[(*n)++].value = strtoll(end + 1, &end, 10);
    }
    return (name[0] == 'e' || name[0] == 'f') && end > name + 1 && *end == '\0';
}

// Lists.

typedef struct engine_list {
    hth_dnn_engine *list;
    int n, cap;
} engine_list;

static void engine_keep(const hth_dnn_graph *graph, cudnnBackendDescriptor_t engine,
                        cudnnBackendDescriptor_t config, int64_t index, const engine_knob *knob,
                        int n_knobs, engine_list *list)
{
    hth_dnn_engine e = {.notes = engine_notes(graph, engine)};
    int64_t count;
    if (list->n == list->cap || !hth_dnn_precise(graph->precision, e.notes) ||
        !engine_name(graph->fused, index, knob, n_knobs, &e) ||
        !engine_get(graph, config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                    &e.workspace_bytes)) {
        return;
    }
    for (int i = 0; i < list->n; i++) {
        if (strcmp(list->list[i].name, e.name) == 0) {
            return;
        }
    }
    list->list[list->n++] = e;
}

// Returns their number, -1: they are too many, or cannot be read.
static int engine_read_knobs(const hth_dnn_graph *graph, cudnnBackendDescriptor_t config,
                             engine_knob *knob)
{
    cudnnBackendDescriptor_t made[ENGINE_KNOBS] = {NULL};
    int64_t n = 0, one;
    for (int i = 0; i < ENGINE_KNOBS; i++) {
        (void)engine_api(graph)->cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                                                              &made[i]);
    }
    (void)engine_get(graph, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                     CUDNN_TYPE_BACKEND_DESCRIPTOR, ENGINE_KNOBS, &n, made);
    n = n > ENGINE_KNOBS ? -1 : n;
    for (int64_t i = 0; i < n; i++) {
        bool read = engine_get(graph, made[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                               CUDNN_TYPE_KNOB_TYPE, 1, &one, &knob[i].type) &&
                    engine_get(graph, made[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64,
                               1, &one, &knob[i].value);
        n = read ? n : -1;
    }
    for (int i = 0; i < ENGINE_KNOBS; i++) {
        engine_end(graph, made[i]);
    }
    return (int)n;
}

static void engine_of_config(const hth_dnn_graph *graph, cudnnBackendDescriptor_t config,
                             engine_list *list)
{
    cudnnBackendDescriptor_t engine = NULL;
    engine_knob knob[ENGINE_KNOBS];
    int64_t n, index = -1;
    if (engine_api(graph)->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) !=
        CUDNN_STATUS_SUCCESS) {
        return;
    }
    if (engine_get(graph, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                   &engine) &&
        engine_get(graph, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n,
                   &index)) {
        int knobs = engine_read_knobs(graph, config, knob);
        if (knobs >= 0) { // else its name would be another's
            engine_keep(graph, engine, config, index, knob, knobs, list);
        }
    }
    engine_end(graph, engine);
}

static void engine_by_heuristics(const hth_dnn_graph *graph, cudnnBackendHeurMode_t mode,
                                 engine_list *list)
{
    const hth_dnn_device *d = graph->device;
    cudnnBackendDescriptor_t h, made[ENGINE_RESULTS] = {NULL};
    int64_t n = 0;
    if (d->api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &h) !=
        CUDNN_STATUS_SUCCESS) {
        return;
    }
    bool ok = engine_set(graph, h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph->graph) &&
              engine_set(graph, h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (d->description != NULL) {
        ok = ok && engine_set(graph, h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                              CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d->description);
    }
    ok = ok && d->api->cudnnBackendFinalize(h) == CUDNN_STATUS_SUCCESS;
    for (int i = 0; ok && i < ENGINE_RESULTS; i++) {
        ok = d->api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &made[i]) ==
             CUDNN_STATUS_SUCCESS;
    }
    if (ok && engine_get(graph, h, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                         ENGINE_RESULTS, &n, made)) {
        for (int64_t i = 0; i < n && i < ENGINE_RESULTS; i++) {
            engine_of_config(graph, made[i], list);
        }
    }
    for (int i = 0; i < ENGINE_RESULTS; i++) {
        engine_end(graph, made[i]);
    }
    engine_end(graph, h);
}

static void engine_by_index(const hth_dnn_graph *graph, engine_list *list)
{
    int64_t n = 0, one;
    (void)engine_get(graph, graph->graph, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT,
                     CUDNN_TYPE_INT64, 1, &one, &n);
    for (int64_t i = 0; i < n; i++) {
        cudnnBackendDescriptor_t e = engine_open(graph, i);
        cudnnBackendDescriptor_t c = e == NULL ? NULL : engine_configure(graph, e, NULL, 0);
        if (c != NULL) {
            engine_keep(graph, e, c, i, NULL, 0, list);
        }
        engine_end(graph, c);
        engine_end(graph, e);
    }
}

static bool engine_modest(const engine_list *list)
{
    for (int i = 0; i < list->n; i++) {
        if (list->list[i].workspace_bytes <= ENGINE_MODEST) {
            return true;
        }
    }
    return false;
}

// Heuristics, then the sweep. `first`: no further than to an engine that nearly always fits.
static void engine_search(const hth_dnn_graph *graph, engine_list *list, bool first)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B,
                                                   CUDNN_HEUR_MODE_FALLBACK};
    pthread_mutex_lock(&engine_lock);
    for (int i = 0; i < 3 && !(first && engine_modest(list)); i++) {
        engine_by_heuristics(graph, modes[i], list);
    }
    if (!(first && engine_modest(list))) {
        engine_by_index(graph, list);
    }
    pthread_mutex_unlock(&engine_lock);
}

static hth_err engine_found(const hth_dnn_graph *graph, const engine_list *list, int *count)
{
    *count = list->n;
    return list->n > 0 ? HTH_OK
                       : hth_fail(HTH_ENOTSUP, "cuDNN has no engine for this convolution in %s",
                                  hth_precision_name(graph->precision));
}

hth_err hth_dnn_first(const hth_dnn_graph *graph, hth_dnn_engine *list, int cap, int *count)
{
    engine_list l = {.list = list, .cap = cap};
    engine_search(graph, &l, true);
    return engine_found(graph, &l, count);
}

hth_err hth_dnn_list(const hth_dnn_graph *graph, hth_dnn_engine *list, int cap, int *count)
{
    engine_list l = {.list = list, .cap = cap};
    engine_search(graph, &l, false);
    return engine_found(graph, &l, count);
}

// Plans.

static hth_err engine_plan(const hth_dnn_graph *graph, cudnnBackendDescriptor_t config,
                           cudnnBackendDescriptor_t *out, int64_t *workspace_bytes)
{
    const hth_dnn_device *d = graph->device;
    cudnnBackendDescriptor_t p;
    int64_t one;
    HTH_TRY(DNN(d->api, cudnnBackendCreateDescriptor, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p));
    bool ok = engine_set(graph, p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (d->handle != NULL) {
        ok = ok && engine_set(graph, p, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                              &d->handle);
    } else if (d->description != NULL) {
        ok = ok && engine_set(graph, p, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                              CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d->description);
    }
    hth_err err =
        ok ? DNN(d->api, cudnnBackendFinalize, p) : hth_fail(HTH_ENOTSUP, "cuDNN refuses the plan");
    if (err == HTH_OK && !engine_get(graph, p, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                     CUDNN_TYPE_INT64, 1, &one, workspace_bytes)) {
        err = hth_fail(HTH_ENOTSUP, "cuDNN does not report the workspace of a plan");
    }
    if (err != HTH_OK) {
        engine_end(graph, p);
        return err;
    }
    *out = p;
    return HTH_OK;
}

hth_err hth_dnn_plan(const hth_dnn_graph *graph, const char *name, cudnnBackendDescriptor_t *out,
                     int64_t *workspace_bytes)
{
    engine_knob knob[ENGINE_KNOBS];
    int64_t index;
    int n;
    if (!engine_parse(name, &index, knob, &n)) {
        return hth_fail(HTH_ENOTSUP, "'%s' is not an engine's name", name);
    }
    cudnnBackendDescriptor_t e = engine_open(graph, index);
    cudnnBackendDescriptor_t c = e == NULL ? NULL : engine_configure(graph, e, knob, n);
    hth_err err = c == NULL ? hth_fail(HTH_ENOTSUP, "cuDNN has no engine '%s' here", name)
                            : engine_plan(graph, c, out, workspace_bytes);
    engine_end(graph, c);
    engine_end(graph, e);
    return err;
}
