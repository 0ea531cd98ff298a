// SPDX-License-Identifier: Apache-2.0
// A step's caches as one queue of bytes: what is written, and what is read from memory, moves a
// clock on; a tensor that was last touched less than a cache's size ago is still in that cache.
// Nodes walk their operands together, from end to end: between two uses of a piece of a tensor lie,
// on the average, half of all that the one node touches, and half of what the other does. The step
// runs again and again, so it is walked twice: in the second round the first nodes find what the
// last ones left.
//
// An output has a place of its own, which a step with memory to spare gives it far from what was
// used last; it is in no cache if the step touches more than the cache holds. Places that are taken
// over - in-place kernels, new values of parameters - are as warm as what lay there.
#include "convsel/cache_model.h"

#include "base/alloc.h"

#include <string.h>

#define CACHE_STATE_MIB      20 // log2: sweeps are told apart by powers of two of a MiB
#define CACHE_STATE_START    ((uint64_t)1 << 62) // before it lies more than any node touches
#define CACHE_STATE_LETTERS  26
#define CACHE_STATE_REPLACED 26 // inputs that an output can name

typedef struct cache_state_walk {
    const hth_graph *g;
    const int *replaces;
    uint64_t core, shared, clock;
    uint64_t *touched; // [n_values]: the clock then; 0: never
    int *last;         // [n_values]: the last node that reads it
} cache_state_walk;

static uint64_t cache_state_bytes(const hth_graph *graph, int v)
{
    size_t bytes;
    const hth_value *x = &graph->values[v];
    return hth_tensor_bytes(x->dtype, &x->shape, x->layout, &bytes) == HTH_OK ? bytes : 0;
}

// How far away the last use of v is, in the middle of a node that touches so many bytes.
static int cache_state_age(const cache_state_walk *walk, int v, uint64_t touches)
{
    if (walk->touched[v] == 0) {
        return 2;
    }
    uint64_t age = walk->clock + touches / 2 - walk->touched[v];
    if (age < walk->core) {
        return 0;
    }
    return age < walk->shared ? 1 : 2;
}

static bool cache_state_dies(const cache_state_walk *walk, int v, int node)
{
    const hth_value *x = &walk->g->values[v];
    return walk->last[v] == node && x->constant == NULL && !x->is_input && !x->is_output;
}

// The input whose place output `v` takes, -1: none.
static int cache_state_place(const cache_state_walk *walk, const hth_node *node, int v)
{
    for (int i = 0; walk->replaces != NULL && i < node->n_inputs && i < CACHE_STATE_REPLACED; i++) {
        if (node->inputs[i] >= 0 && node->inputs[i] == walk->replaces[v]) {
            return i;
        }
    }
    return -1;
}

static uint64_t cache_state_touches(const cache_state_walk *walk, const hth_node *node)
{
    uint64_t bytes = 0;
    for (int k = 0; k < node->n_inputs; k++) {
        bytes += node->inputs[k] < 0 ? 0 : cache_state_bytes(walk->g, node->inputs[k]);
    }
    for (int k = 0; k < node->n_outputs; k++) {
        int v = node->outputs[k];
        bytes += v < 0 || cache_state_place(walk, node, v) >= 0 ? 0 : cache_state_bytes(walk->g, v);
    }
    return bytes;
}

// Walks node i; with `text`, writes its description there.
static void cache_state_node(cache_state_walk *walk, int i, char *text)
{
    const hth_node *n = &walk->g->nodes[i];
    char sink[2] = {0};
    uint64_t fresh = 0, touches = cache_state_touches(walk, n);
    for (int k = 0; k < n->n_inputs; k++) {
        int v = n->inputs[k];
        char *at = text == NULL ? sink : text + k;
        *at = '-';
        if (v >= 0) {
            int age = cache_state_age(walk, v, touches);
            *at = (char)((cache_state_dies(walk, v, i) ? 'a' : '0') + age);
            fresh += age == 2 ? cache_state_bytes(walk->g, v) : 0;
        }
    }
    for (int k = 0; k < n->n_outputs; k++) {
        int v = n->outputs[k];
        char *at = text == NULL ? sink : text + n->n_inputs + 1 + k;
        *at = '-';
        if (v >= 0) {
            int place = cache_state_place(walk, n, v);
            *at = place < 0 ? 'n' : (char)('A' + place);
            fresh += place < 0 ? cache_state_bytes(walk->g, v) : 0;
        }
    }
    walk->clock += fresh;
    for (int k = 0; k < n->n_inputs + n->n_outputs; k++) {
        int v = k < n->n_inputs ? n->inputs[k] : n->outputs[k - n->n_inputs];
        if (v >= 0) {
            walk->touched[v] = walk->clock - touches / 2;
            int old = k < n->n_inputs || walk->replaces == NULL ? -1 : walk->replaces[v];
            if (old >= 0) {
                walk->touched[old] = walk->touched[v];
            }
        }
    }
}

static hth_err cache_state_texts(cache_state_walk *walk, hth_cache_model *out)
{
    uint64_t begin = 0;
    for (int round = 0; round < 2; round++) {
        begin = walk->clock;
        for (int i = 0; i < walk->g->n_nodes; i++) {
            const hth_node *n = &walk->g->nodes[i];
            char *text = NULL;
            if (round == 1) {
                text = hth_calloc((size_t)(n->n_inputs + n->n_outputs) + 3, 1);
                if (text == NULL) {
                    return hth_no_memory("describing a step");
                }
                text[1 + n->n_inputs] = '>';
                out->of[i] = text++;
            }
            cache_state_node(walk, i, text);
        }
    }
    // Half as much again as the cache, so that little stays whatever it keeps.
    uint64_t step = walk->clock - begin, most = walk->shared + walk->shared / 2;
    out->sweep_bytes = step < most ? step : most;
    char letter = 'a';
    while (letter < 'a' + CACHE_STATE_LETTERS - 1 &&
           out->sweep_bytes >> CACHE_STATE_MIB >> (letter - 'a') > 0) {
        letter++;
    }
    for (int i = 0; i < walk->g->n_nodes; i++) {
        out->of[i][0] = letter;
    }
    return HTH_OK;
}

hth_err hth_cache_model_make(const hth_device_props *props, const hth_graph *graph,
                             const int *replaces, hth_cache_model *out)
{
    size_t values = (size_t)graph->n_values + 1;
    *out = (hth_cache_model){.n_nodes = graph->n_nodes,
                             .core_bytes = props->core_cache_bytes * (uint64_t)props->n_threads};
    out->of = hth_calloc((size_t)graph->n_nodes + 1, sizeof *out->of);
    cache_state_walk w = {.g = graph,
                          .replaces = replaces,
                          .core = out->core_bytes,
                          .shared = props->cache_bytes,
                          .clock = CACHE_STATE_START,
                          .touched = hth_calloc(values, sizeof *w.touched),
                          .last = hth_calloc(values, sizeof *w.last)};
    hth_err err = out->of == NULL || w.touched == NULL || w.last == NULL
                      ? hth_no_memory("describing a step")
                      : HTH_OK;
    for (int i = 0; err == HTH_OK && i < graph->n_nodes; i++) {
        for (int k = 0; k < graph->nodes[i].n_inputs; k++) {
            if (graph->nodes[i].inputs[k] >= 0) {
                w.last[graph->nodes[i].inputs[k]] = i;
            }
        }
    }
    if (err == HTH_OK && props->cache_bytes > 0) {
        err = cache_state_texts(&w, out);
    }
    hth_free(w.touched);
    hth_free(w.last);
    return err;
}

void hth_cache_model_fini(hth_cache_model *model)
{
    for (int i = 0; model->of != NULL && i < model->n_nodes; i++) {
        hth_free(model->of[i]);
    }
    hth_free(model->of);
    *model = (hth_cache_model){.n_nodes = 0};
}

const char *hth_cache_model_text(const hth_cache_model *model, const hth_graph *graph,
                                 const hth_node *node)
{
    return model == NULL || model->of == NULL ? NULL : model->of[node - graph->nodes];
}

int hth_cache_model_level(char c, bool *dies)
{
    *dies = c >= 'a' && c <= 'c';
    if (*dies) {
        return c - 'a';
    }
    return c >= '0' && c <= '2' ? c - '0' : -1;
}
