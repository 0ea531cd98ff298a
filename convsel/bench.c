// SPDX-License-Identifier: Apache-2.0
// One node alone: runs on warm caches, or, where the node belongs to a step that is planned, each
// after what brings the caches to the state in which the step would leave them (bench_warm.c).
// Other processes only ever add to a run: one in which a thread had to make room for another
// process is marked. How often which choice is run is up to successive_halving.c.
#include "convsel/bench_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "convsel/convsel.h"
#include "kernels/cpu/cpu.h"

#include <string.h>
#include <sys/resource.h>

#define MAX_RUNS    8       // of a turn ..
#define ENOUGH_US   2000.0  // .. and no more after this much time
#define LONG_RUN_US 20000.0 // such a run needs no warm-up
#define SWITCH_US   10000.0 // of a run may pass for every time that it was interrupted
#define FILL_BLOCK  1000003 // random numbers, repeated
#define KEEP_BYTES  ((size_t)64 << 20)

uint64_t hth_bench_next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return *seed >> 33;
}

// Numbers from `low` to low + 2 * scale.
static void bench_fill(float *p, size_t n, uint64_t seed, float low, float scale)
{
    for (size_t i = 0; i < n && i < FILL_BLOCK; i++) {
        p[i] = (float)(int32_t)hth_bench_next(&seed) * 0x1p-30F * scale + low;
    }
    for (size_t at = FILL_BLOCK; at < n; at += FILL_BLOCK) {
        memcpy(p + at, p, (n - at < FILL_BLOCK ? n - at : FILL_BLOCK) * sizeof *p);
    }
}

static void bench_fill_half(uint16_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n && i < FILL_BLOCK; i++) {
        p[i] = hth_f32_to_bf16((float)(int32_t)hth_bench_next(&seed) * 0x1p-30F - 1);
    }
    for (size_t at = FILL_BLOCK; at < n; at += FILL_BLOCK) {
        memcpy(p + at, p, (n - at < FILL_BLOCK ? n - at : FILL_BLOCK) * sizeof *p);
    }
}

// An optimizer step divides by roots of its operands, and fails where the parameter is lost.
static bool bench_positive(const hth_node *node)
{
    return node->op == HTH_OP_SGD_STEP || node->op == HTH_OP_ADAM_STEP;
}

// Random numbers, except that a constant of another operator or type keeps its content: it may be
// an index or an axis.
static hth_err bench_content(hth_bench *bench, const hth_value *value, void *plain, size_t bytes,
                             int i)
{
    if (value->constant != NULL &&
        (value->dtype != HTH_DT_F32 || !hth_convsel_has_menu(bench->node->op))) {
        const void *data;
        HTH_TRY(hth_const_map(value->constant, &data));
        memcpy(plain, data, bytes);
        hth_const_unmap(value->constant);
    } else if (value->dtype == HTH_DT_F32) {
        bool positive = bench_positive(bench->node);
        float low = positive ? 0.5F : -1;
        bench_fill(plain, bytes / sizeof(float), (uint64_t)i + 1, low, positive ? 0.25F : 1);
    } else if (value->dtype == HTH_DT_BF16) {
        bench_fill_half(plain, bytes / sizeof(uint16_t), (uint64_t)i + 1);
    } else {
        memset(plain, 0, bytes);
    }
    return HTH_OK;
}

static void *bench_take(const hth_bench *bench, size_t bytes)
{
    if (bench->cache != NULL && bench->cache->take != NULL) {
        return bench->cache->take(bench->cache->owner, bytes > 0 ? bytes : 1);
    }
    return hth_alloc_aligned(bytes, HTH_DEVICE_ALIGN);
}

static void bench_give(const hth_bench *bench, void *p)
{
    if (bench->cache != NULL && bench->cache->take != NULL && p != NULL) {
        bench->cache->give(bench->cache->owner, p);
    } else {
        hth_free(p);
    }
}

// Input i's content, in its layout.
static hth_err bench_make_input(hth_bench *bench, const hth_value *value, int i)
{
    bench_input *in = &bench->in[i];
    size_t bytes;
    HTH_TRY(hth_tensor_bytes(value->dtype, &value->shape, HTH_LAYOUT_PLAIN, &bytes));
    in->plain = value->layout == HTH_LAYOUT_PLAIN ? in->placed : bench_take(bench, bytes);
    if (in->plain == NULL) {
        return hth_no_memory("measuring node '%s'", bench->node->name);
    }
    HTH_TRY(bench_content(bench, value, in->plain, bytes, i));
    if (value->layout != HTH_LAYOUT_PLAIN) {
        hth_cpu_relayout(hth_dtype_bytes(value->dtype), &value->shape, HTH_LAYOUT_PLAIN, in->plain,
                         value->layout, in->placed);
    }
    return HTH_OK;
}

// Gives operand k (outputs after inputs) its place in the operands' memory, or, before there is
// any, counts its bytes.
static hth_err bench_place(hth_bench *bench, int k, size_t *at)
{
    const hth_node *n = bench->node;
    bool input = k < n->n_inputs;
    int id = input ? n->inputs[k] : n->outputs[k - n->n_inputs];
    if (id < 0) {
        return HTH_OK;
    }
    const hth_value *v = &bench->graph->values[id];
    size_t bytes;
    HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, v->layout, &bytes));
    if (bench->operands != NULL) {
        void *to = (char *)bench->operands + *at;
        if (input) {
            bench->in[k].placed = to;
            bench->in[k].bytes = bytes;
            HTH_TRY(bench_make_input(bench, v, k));
        } else {
            bench->out[k - n->n_inputs] = to;
            if (hth_convsel_has_menu(
                    bench->node->op)) { // else the first of the runs meets fresh pages
                memset(to, 0, bytes);
            }
        }
    }
    *at += (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
    return HTH_OK;
}

static hth_err bench_make(hth_bench *bench)
{
    int n = bench->node->n_inputs + bench->node->n_outputs;
    for (int round = 0; round < 2; round++) {
        size_t at = 0;
        for (int k = 0; k < n; k++) {
            HTH_TRY(bench_place(bench, k, &at));
        }
        if (round == 0) {
            bench->operand_bytes = at;
            bench->operands = bench_take(bench, at);
            HTH_TRY(bench->operands == NULL
                        ? hth_no_memory("measuring node '%s'", bench->node->name)
                        : HTH_OK);
        }
    }
    return HTH_OK;
}

hth_err hth_bench_open(hth_device *device, const hth_graph *graph, const hth_node *node,
                       const hth_timing_cache *cache, const hth_cache_model *cache_state,
                       hth_bench **out)
{
    hth_bench *b = hth_calloc(1, sizeof *b);
    hth_err err = HTH_OK;
    *out = NULL;
    if (b == NULL) {
        return hth_no_memory("measuring node '%s'", node->name);
    }
    b->device = device;
    b->cache = cache;
    b->graph = graph;
    b->node = node;
    b->cache_state = cache_state;
    b->cache_state_text = hth_cache_model_text(cache_state, graph, node);
    b->in = hth_calloc((size_t)node->n_inputs, sizeof *b->in);
    b->args_in = hth_calloc((size_t)node->n_inputs, sizeof *b->args_in);
    b->packed = hth_calloc((size_t)node->n_inputs, sizeof *b->packed);
    b->out = hth_calloc((size_t)node->n_outputs, sizeof *b->out);
    if (b->in == NULL || b->args_in == NULL || b->packed == NULL || b->out == NULL) {
        err = hth_no_memory("measuring node '%s'", node->name);
    } else {
        err = bench_make(b);
    }
    if (err != HTH_OK) {
        hth_bench_close(b);
        return err;
    }
    *out = b;
    return HTH_OK;
}

uint64_t hth_bench_bytes(const hth_bench *bench)
{
    return bench->operand_bytes;
}

void hth_bench_close(hth_bench *bench)
{
    if (bench == NULL) {
        return;
    }
    for (int i = 0; bench->in != NULL && i < bench->node->n_inputs; i++) {
        if (bench->in[i].plain != bench->in[i].placed) {
            bench_give(bench, bench->in[i].plain);
        }
        bench_give(bench, bench->in[i].kept);
    }
    bench_give(bench, bench->operands);
    bench_give(bench, bench->scratch);
    hth_free(bench->in);
    hth_free(bench->args_in);
    hth_free(bench->packed);
    hth_free(bench->out);
    bench_give(bench, bench->workspace);
    hth_free(bench->index);
    hth_free(bench->want);
    hth_free(bench);
}

void hth_bench_unload(hth_bench *bench, const hth_kernel *kernel)
{
    for (int i = 0; i < kernel->n_packings; i++) {
        bench_give(bench, bench->packed[kernel->packings[i].input]);
        bench->packed[kernel->packings[i].input] = NULL;
    }
}

hth_err hth_bench_forms(hth_bench *bench, const hth_kernel *kernel)
{
    hth_err err = HTH_OK;
    for (int i = 0; i < bench->node->n_inputs; i++) {
        bench->args_in[i] = bench->in[i].placed;
    }
    for (int i = 0; i < kernel->n_packings && err == HTH_OK; i++) {
        const hth_packing *p = &kernel->packings[i];
        if (p->pack == NULL) {
            continue;
        }
        bench->packed[p->input] = bench_take(bench, p->bytes);
        err = bench->packed[p->input] == NULL
                  ? HTH_ENOMEM
                  : p->pack(kernel, p, bench->in[p->input].plain, bench->packed[p->input]);
        bench->args_in[p->input] = bench->packed[p->input];
    }
    if (err == HTH_OK) {
        return HTH_OK;
    }
    hth_bench_unload(bench, kernel);
    return err == HTH_ENOMEM ? hth_no_memory("measuring node '%s'", bench->node->name) : err;
}

hth_err hth_bench_load(hth_bench *bench, const hth_kernel *kernel)
{
    if (bench->workspace == NULL || bench->workspace_bytes < kernel->workspace_bytes) {
        bench_give(bench, bench->workspace);
        bench->workspace = bench_take(bench, kernel->workspace_bytes);
        bench->workspace_bytes = bench->workspace == NULL ? 0 : kernel->workspace_bytes;
        if (bench->workspace != NULL) {
            memset(bench->workspace, 0,
                   bench->workspace_bytes); // its pages are there before the first run
        }
    }
    return bench->workspace == NULL ? hth_no_memory("measuring node '%s'", bench->node->name)
                                    : hth_bench_forms(bench, kernel);
}

// How often a thread of this process had to make room for another process so far.
static long bench_preempted(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? u.ru_nivcsw : 0;
}

// One run after what the step does before it. Long ones are always interrupted once or twice.
static hth_err bench_run(hth_bench *bench, const hth_kernel *kernel, const hth_kernel_args *args,
                         hth_samples *samples, double *us)
{
    if (bench->cache_state_text != NULL) {
        hth_bench_warm(bench, args->out);
    }
    long before = bench_preempted();
    uint64_t start = hth_now_ns();
    HTH_TRY(kernel->run(kernel, args));
    *us = (double)(hth_now_ns() - start) / 1e3;
    hth_samples_add(samples, *us, (double)(bench_preempted() - before) <= *us / SWITCH_US);
    return HTH_OK;
}

bool hth_bench_between(const hth_timing_cache *cache)
{
    return cache != NULL && cache->between != NULL && cache->between(cache->owner);
}

static hth_err bench_runs(hth_bench *bench, const hth_kernel *kernel, const hth_kernel_args *args,
                          hth_samples *samples)
{
    double us;
    hth_samples cold = {.n = 0};
    if (bench->cache_state_text != NULL) { // no run warms the next one
        return bench_run(bench, kernel, args, samples, &us);
    }
    HTH_TRY(bench_run(bench, kernel, args, &cold, &us));
    if (us > LONG_RUN_US) {
        hth_samples_add(samples, us, cold.n_clean > 0);
        return HTH_OK;
    }
    double total = 0;
    for (int i = 0; i < MAX_RUNS && (i == 0 || total < ENOUGH_US); i++) {
        if (i > 0 && hth_bench_between(bench->cache)) { // the caches are another's
            HTH_TRY(bench_run(bench, kernel, args, &cold, &us));
        }
        HTH_TRY(bench_run(bench, kernel, args, samples, &us));
        total += us;
    }
    return HTH_OK;
}

// Outputs in the places of inputs, as the step has them; a copy of these for every run. Large
// inputs, and those that there is no memory for, are changed by the runs.
static void bench_in_place(hth_bench *bench, int inplace_input, void **out)
{
    hth_bench_outputs(bench, inplace_input, out);
    for (int k = 0; k < bench->node->n_outputs; k++) {
        for (int i = 0; out[k] != NULL && i < bench->node->n_inputs; i++) {
            bench_input *in = &bench->in[i];
            if (in->placed == out[k] && in->kept == NULL && in->bytes <= KEEP_BYTES) {
                in->kept = bench_take(bench, in->bytes);
                if (in->kept != NULL) {
                    memcpy(in->kept, in->placed, in->bytes);
                }
            }
        }
    }
    if (bench->cache_state_text != NULL && bench->scratch == NULL) {
        bench->scratch =
            bench_take(bench, bench->cache_state->sweep_bytes + bench->cache_state->core_bytes);
    }
}

// The error of what a run has left, unless post ops have changed it by more than a ReLU.
static hth_err bench_error_of_run(hth_bench *bench, void *const *out, hth_choice *choice)
{
    const hth_node *n = bench->node;
    bool relu = hth_bench_relu(bench);
    if (choice->error >= 0 || (n->n_post > 0 && !relu) || out[0] != bench->out[0] ||
        !hth_bench_has_error(bench)) {
        return HTH_OK;
    }
    hth_node bare = hth_bench_bare(bench);
    HTH_TRY(hth_bench_samples(bench, &bare));
    hth_bench_compare(bench, relu, choice);
    return HTH_OK;
}

hth_err hth_bench_turn(hth_bench *bench, hth_choice *choice, hth_samples *samples)
{
    hth_kernel *k;
    HTH_TRY(hth_kernel_prepare(bench->device, bench->graph, bench->node, choice->name, &k));
    void **out = hth_memdup(bench->out, (size_t)bench->node->n_outputs * sizeof *out);
    hth_err err = out == NULL ? hth_no_memory("measuring node '%s'", bench->node->name)
                              : hth_bench_load(bench, k);
    if (err == HTH_OK) {
        hth_kernel_args a = {bench->args_in, out, bench->workspace, NULL};
        (void)hth_bench_between(bench->cache);
        bench_in_place(bench, k->inplace_input, out);
        err = bench_runs(bench, k, &a, samples);
        if (err == HTH_OK) {
            err = bench_error_of_run(bench, out, choice);
        }
        choice->workspace_bytes = k->workspace_bytes;
        hth_bench_unload(bench, k);
    }
    hth_free(out);
    hth_kernel_close(k);
    (void)hth_bench_between(bench->cache);
    return err;
}
