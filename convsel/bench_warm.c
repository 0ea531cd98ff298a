// SPDX-License-Identifier: Apache-2.0
// The caches before a run. What the step touches between two runs of a node is walked first: it
// takes the caches from everything, the kernel's own code and tables included, and is left
// modified, as most of what a step touches last is, so that the run pays for writing it back. Then
// the inputs that the step would have in the shared cache are read, then as much else as the cores'
// own caches hold, then the inputs that would be there. The team's threads share each walk, as they
// share the work of most kernels.
#include "convsel/bench_impl.h"

#include "device/cpu/team.h"

#include <string.h>

#define WARM_LINE 64

typedef struct warm_walk {
    volatile char *at;
    size_t bytes;
    bool modify;
} warm_walk;

static void warm_part(void *arg, int i, int n)
{
    const warm_walk *w = arg;
    size_t begin, end;
    hth_team_range(w->bytes / WARM_LINE, i, n, &begin, &end);
    for (size_t k = begin; k < end; k++) {
        char c = w->at[k * WARM_LINE];
        if (w->modify) {
            w->at[k * WARM_LINE] = c;
        }
    }
}

static void warm_touch(void *at, size_t bytes, bool modify)
{
    warm_walk w = {at, bytes, modify};
    hth_team_run(warm_part, &w);
}

static void warm_inputs(const hth_bench *bench, int level)
{
    for (int i = 0; i < bench->node->n_inputs; i++) {
        bool dies;
        if (hth_cache_model_level(bench->cache_state_text[1 + i], &dies) == level) {
            warm_touch(bench->args_in[i], bench->in[i].bytes, false);
        }
    }
}

static bool warm_same_bytes(const hth_bench *bench, int input, int output)
{
    size_t bytes;
    const hth_value *v = &bench->graph->values[bench->node->outputs[output]];
    return hth_tensor_bytes(v->dtype, &v->shape, v->layout, &bytes) == HTH_OK &&
           bytes == bench->in[input].bytes;
}

void hth_bench_outputs(const hth_bench *bench, int inplace_input, void **out)
{
    const hth_node *n = bench->node;
    for (int k = 0; bench->cache_state_text != NULL && k < n->n_outputs; k++) {
        char c = bench->cache_state_text[1 + n->n_inputs + 1 + k];
        int place = c >= 'A' && c <= 'Z' ? c - 'A' : -1;
        bool dies = false;
        if (k == 0 && c == 'n' && inplace_input >= 0 && inplace_input < n->n_inputs) {
            (void)hth_cache_model_level(bench->cache_state_text[1 + inplace_input], &dies);
            place = dies ? inplace_input : -1;
        }
        if (place >= 0 && warm_same_bytes(bench, place, k)) {
            out[k] = bench->in[place].placed;
        }
    }
}

// Inputs that a run in place has overwritten.
static void warm_restore(const hth_bench *bench, void *const *out)
{
    for (int k = 0; k < bench->node->n_outputs; k++) {
        for (int i = 0; out[k] != NULL && i < bench->node->n_inputs; i++) {
            const bench_input *in = &bench->in[i];
            if (in->placed == out[k] && in->kept != NULL) {
                memcpy(in->placed, in->kept, in->bytes);
            }
        }
    }
}

void hth_bench_warm(const hth_bench *bench, void *const *out)
{
    const hth_cache_model *h = bench->cache_state;
    warm_restore(bench, out);
    hth_team_set(bench->device->props.n_threads);
    warm_touch(bench->scratch, bench->scratch == NULL ? 0 : h->sweep_bytes, true);
    warm_inputs(bench, 1);
    warm_touch((char *)bench->scratch + h->sweep_bytes, bench->scratch == NULL ? 0 : h->core_bytes,
               false);
    warm_inputs(bench, 0);
}
