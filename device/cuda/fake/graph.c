// SPDX-License-Identifier: Apache-2.0
// CUDA graphs of the fake driver. While a stream is captured, what is issued to it and to streams
// that waited for its events becomes a node with an edge from what its stream had before; a wait is
// a node with two edges. A launch is one job of its stream, which runs the nodes in a random order
// that edges allow: any of the ready ones, or those that became ready last first, or the oldest.
//
// Invariant: a node's edges come from nodes with smaller numbers.
//
// As in the driver, an illegal call spoils the capture, which its end then says; a stream that was
// drawn in and not waited for, and an event from outside, are errors. Stricter than the driver:
// whatever might be illegal is, on any stream, and one capture is under way at a time.
#include "device/cuda/fake/impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct fake_node {
    int from[2]; // edges; -1: none
    hth_err (*fn)(void *job);
    size_t bytes;
    void *job;
} fake_node;

typedef struct fake_graph {
    int n, cap;
    fake_node *nodes;
} fake_graph;

static struct {
    bool on, spoiled;
    CUstream origin;
    unsigned id;
    fake_graph *graph;
    int last[FAKE_STREAMS]; // what a stream has captured last; -1: it is not captured
    uint64_t random;
} capture;

static uint64_t graph_random(uint64_t below)
{
    capture.random = capture.random * 6364136223846793005u + 1442695040888963407u;
    return (capture.random >> 33) % below;
}

void hth_cuda_fake_captures_open(uint64_t seed)
{
    memset(&capture, 0, sizeof capture);
    capture.random = seed * 2654435761u + 1;
}

static void graph_free(fake_graph *graph)
{
    for (int i = 0; graph != NULL && i < graph->n; i++) {
        free(graph->nodes[i].job);
    }
    if (graph != NULL) {
        free(graph->nodes);
        free(graph);
    }
}

// Returns the node's number, -1: no memory.
static int graph_add(fake_graph *graph, int a, int b, hth_err (*fn)(void *job), const void *job,
                     size_t bytes)
{
    if (graph->n == graph->cap) {
        int cap = graph->cap == 0 ? 64 : 2 * graph->cap;
        fake_node *nodes = realloc(graph->nodes, (size_t)cap * sizeof *nodes);
        if (nodes == NULL) {
            return -1;
        }
        graph->nodes = nodes;
        graph->cap = cap;
    }
    fake_node *x = &graph->nodes[graph->n];
    *x = (fake_node){{a, b}, fn, bytes, malloc(bytes + 1)};
    if (x->job == NULL) {
        return -1;
    }
    if (bytes > 0) {
        memcpy(x->job, job, bytes);
    }
    return graph->n++;
}

static fake_graph *graph_copy(const fake_graph *graph)
{
    fake_graph *c = calloc(1, sizeof *c);
    for (int i = 0; c != NULL && i < graph->n; i++) {
        const fake_node *x = &graph->nodes[i];
        if (graph_add(c, x->from[0], x->from[1], x->fn, x->job, x->bytes) < 0) {
            graph_free(c);
            c = NULL;
        }
    }
    return c;
}

// Capturing.

bool hth_cuda_fake_capture_spoil(void)
{
    capture.spoiled = capture.spoiled || capture.on;
    return capture.on;
}

bool hth_cuda_fake_capturing(CUstream stream)
{
    int i = hth_cuda_fake_slot(stream);
    return capture.on && i >= 0 && capture.last[i] >= 0;
}

static CUresult capture_node(CUstream stream, int other, hth_err (*fn)(void *job), const void *job,
                             size_t bytes)
{
    int *last = &capture.last[hth_cuda_fake_slot(stream)];
    int node = graph_add(capture.graph, *last, other, fn, job, bytes);
    if (node < 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *last = node;
    return CUDA_SUCCESS;
}

CUresult hth_cuda_fake_capture_add(CUstream stream, hth_err (*fn)(void *job), const void *job,
                                   size_t bytes)
{
    return capture.spoiled ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                           : capture_node(stream, -1, fn, job, bytes);
}

CUresult hth_cuda_fake_capture_wait(CUstream stream, const fake_event *event, bool *taken)
{
    bool inside = capture.on && event->capture == capture.id;
    *taken = true;
    if (inside && !hth_cuda_fake_capturing(stream)) {
        capture.last[hth_cuda_fake_slot(stream)] = event->node;
        return CUDA_SUCCESS;
    }
    if (inside) {
        return capture_node(stream, event->node, NULL, NULL, 0);
    }
    if (hth_cuda_fake_capturing(stream)) {
        (void)hth_cuda_fake_capture_spoil();
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    *taken = event->capture != 0;
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult hth_cuda_fake_capture_record(CUstream stream, fake_event *event, bool *taken)
{
    *taken = hth_cuda_fake_capturing(stream);
    event->capture = *taken ? capture.id : 0;
    event->node = *taken ? capture.last[hth_cuda_fake_slot(stream)] : -1;
    return CUDA_SUCCESS;
}

static CUresult fake_begin(CUstream stream, CUstreamCaptureMode mode)
{
    FAKE_HERE(stream);
    FAKE_ENTER();
    if (capture.on || hth_cuda_fake_slot(stream) < 0) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    fake_graph *g = calloc(1, sizeof *g);
    if (g == NULL || graph_add(g, -1, -1, NULL, NULL, 0) < 0) {
        graph_free(g);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    unsigned id = capture.id + 1;
    uint64_t random = capture.random;
    memset(&capture, 0xFF, sizeof capture); // no stream is captured
    capture.on = true;
    capture.spoiled = false;
    capture.origin = stream;
    capture.id = id;
    capture.graph = g;
    capture.random = random;
    capture.last[hth_cuda_fake_slot(stream)] = 0;
    return CUDA_SUCCESS;
}

// Whether everything captured comes before what the origin has last.
static bool capture_joined(void)
{
    const fake_graph *g = capture.graph;
    bool joined = true;
    bool *before = calloc((size_t)g->n, sizeof *before);
    int end = capture.last[hth_cuda_fake_slot(capture.origin)];
    for (int i = end; before != NULL && i >= 0; i--) {
        before[i] = before[i] || i == end;
        for (int k = 0; k < 2 && before[i]; k++) {
            if (g->nodes[i].from[k] >= 0) {
                before[g->nodes[i].from[k]] = true;
            }
        }
    }
    for (int i = 0; before != NULL && i < FAKE_STREAMS; i++) {
        joined = joined && (capture.last[i] < 0 || before[capture.last[i]]);
    }
    free(before);
    return joined;
}

static CUresult fake_end(CUstream stream, CUgraph *out)
{
    CUresult r = hth_cuda_fake_enter();
    *out = NULL;
    if (!hth_cuda_fake_capturing(stream)) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if (stream != capture.origin) {
        (void)hth_cuda_fake_capture_spoil();
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (r == CUDA_SUCCESS && capture.spoiled) {
        r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (r == CUDA_SUCCESS && !capture_joined()) {
        r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    capture.on = false;
    if (r != CUDA_SUCCESS) {
        graph_free(capture.graph);
        return r;
    }
    *out = (CUgraph)(void *)capture.graph;
    hth_cuda_fake_state()->live++;
    return CUDA_SUCCESS;
}

// Graphs.

static CUresult fake_graph_destroy(CUgraph g)
{
    CUresult r = hth_cuda_fake_enter();
    graph_free((fake_graph *)(void *)g);
    hth_cuda_fake_state()->live--;
    return r;
}

static CUresult fake_instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    FAKE_CURRENT();
    FAKE_UNSAFE();
    FAKE_ENTER();
    fake_graph *copy = flags == 0 ? graph_copy((fake_graph *)(void *)graph) : NULL;
    if (copy == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUgraphExec)(void *)copy;
    hth_cuda_fake_state()->live++;
    return CUDA_SUCCESS;
}

static CUresult fake_exec_destroy(CUgraphExec exec)
{
    CUresult r = hth_cuda_fake_enter();
    (void)hth_cuda_fake_drain(); // a launch may be under way: the driver puts the end off
    graph_free((fake_graph *)(void *)exec);
    hth_cuda_fake_state()->live--;
    return r;
}

static bool graphs_alike(const fake_graph *a, const fake_graph *b)
{
    bool alike = a->n == b->n;
    for (int i = 0; alike && i < a->n; i++) {
        const fake_node *x = &a->nodes[i], *y = &b->nodes[i];
        alike = x->from[0] == y->from[0] && x->from[1] == y->from[1] && x->fn == y->fn &&
                x->bytes == y->bytes;
    }
    return alike;
}

static CUresult fake_update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    FAKE_UNSAFE();
    FAKE_ENTER();
    const fake_graph *from = (fake_graph *)(void *)graph;
    fake_graph *to = (fake_graph *)(void *)exec;
    memset(info, 0, sizeof *info);
    if (!graphs_alike(to, from)) {
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    for (int i = 0; i < to->n; i++) {
        memcpy(to->nodes[i].job, from->nodes[i].job, to->nodes[i].bytes);
    }
    hth_cuda_fake_state()->graph_updates++;
    return CUDA_SUCCESS;
}

// The next of the n ready nodes, by how: 0: any, 1: the newest, 2: the oldest.
static int ready_take(int *ready, int *n, uint64_t how)
{
    int at = how == 1 ? *n - 1 : 0;
    at = how == 0 ? (int)graph_random((uint64_t)*n) : at;
    int node = ready[at];
    memmove(&ready[at], &ready[at + 1], (size_t)(*n - at - 1) * sizeof *ready);
    (*n)--;
    return node;
}

static int missing_of(const fake_node *node, const bool *done)
{
    return (node->from[0] >= 0 && !done[node->from[0]]) +
           (node->from[1] >= 0 && !done[node->from[1]]);
}

static hth_err graph_run(void *job)
{
    const fake_graph *g = *(fake_graph **)job;
    int n = 1; // the root is the first
    int *ready = calloc((size_t)g->n + 1, sizeof *ready);
    bool *done = calloc((size_t)g->n, sizeof *done);
    uint64_t how = graph_random(3);
    hth_err err = ready != NULL && done != NULL ? HTH_OK : HTH_ENOMEM;
    while (err == HTH_OK && n > 0) {
        int i = ready_take(ready, &n, how);
        err = g->nodes[i].fn != NULL ? g->nodes[i].fn(g->nodes[i].job) : HTH_OK;
        done[i] = true;
        for (int k = i + 1; k < g->n; k++) {
            const fake_node *x = &g->nodes[k];
            if ((x->from[0] == i || x->from[1] == i) && missing_of(x, done) == 0) {
                ready[n++] = k;
            }
        }
    }
    free(ready);
    free(done);
    return err;
}

static CUresult fake_graph_launch(CUgraphExec exec, CUstream stream)
{
    FAKE_HERE(stream);
    FAKE_ENTER();
    if (hth_cuda_fake_capturing(stream)) {
        (void)hth_cuda_fake_capture_spoil();
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    hth_cuda_fake_state()->graph_launches++;
    return hth_cuda_fake_run(stream, graph_run, &exec, sizeof exec);
}

void hth_cuda_fake_fill_graphs(hth_cuda_api *api)
{
    api->cuStreamBeginCapture = fake_begin;
    api->cuStreamEndCapture = fake_end;
    api->cuGraphInstantiate = fake_instantiate;
    api->cuGraphExecUpdate = fake_update;
    api->cuGraphLaunch = fake_graph_launch;
    api->cuGraphExecDestroy = fake_exec_destroy;
    api->cuGraphDestroy = fake_graph_destroy;
}
