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
static bool bench_positive(const hth_node *n)
{
    return n->op == HTH_OP_SGD_STEP || n->op == HTH_OP_ADAM_STEP;
}

// Random numbers, except that a constant of another operator or type keeps its content: it may be
// an index or an axis.
static hth_err bench_content(hth_bench *b, const hth_value *v, void *plain, size_t bytes, int i)
{
    if (v->constant != NULL && (v->dtype != HTH_DT_F32 || !hth_convsel_has_menu(b->node->op))) {
        const void *data;
        HTH_TRY(hth_const_map(v->constant, &data));
        memcpy(plain, data, bytes);
        hth_const_unmap(v->constant);
    } else if (v->dtype == HTH_DT_F32) {
        bool positive = bench_positive(b->node);
        bench_fill(plain, bytes / sizeof(float), (uint64_t)i + 1, positive ? 0.5F : -1,
                   positive ? 0.25F : 1);
    } else if (v->dtype == HTH_DT_BF16) {
        bench_fill_half(plain, bytes / sizeof(uint16_t), (uint64_t)i + 1);
    } else {
        memset(plain, 0, bytes);
    }
    return HTH_OK;
}

static void *bench_take(const hth_bench *b, size_t bytes)
{
    return b->cache != NULL && b->cache->take != NULL
               ? b->cache->take(b->cache->owner, bytes > 0 ? bytes : 1)
               : hth_alloc_aligned(bytes, HTH_DEVICE_ALIGN);
}

static void bench_give(const hth_bench *b, void *p)
{
    if (b->cache != NULL && b->cache->take != NULL && p != NULL) {
        b->cache->give(b->cache->owner, p);
    } else {
        hth_free(p);
    }
}

static hth_err bench_no_memory(const hth_bench *b)
{
    return hth_fail(HTH_ENOMEM, "out of memory to measure node '%s'", b->node->name);
}

// Input i's content, in its layout.
static hth_err bench_make_input(hth_bench *b, const hth_value *v, int i)
{
    bench_input *in = &b->in[i];
    size_t bytes;
    HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &bytes));
    in->plain = v->layout == HTH_LAYOUT_PLAIN ? in->placed : bench_take(b, bytes);
    if (in->plain == NULL) {
        return bench_no_memory(b);
    }
    HTH_TRY(bench_content(b, v, in->plain, bytes, i));
    if (v->layout != HTH_LAYOUT_PLAIN) {
        hth_cpu_relayout(hth_dtype_bytes(v->dtype), &v->shape, HTH_LAYOUT_PLAIN, in->plain,
                         v->layout, in->placed);
    }
    return HTH_OK;
}

// Gives operand k (outputs after inputs) its place in the operands' memory, or, before there is
// any, counts its bytes.
static hth_err bench_place(hth_bench *b, int k, size_t *at)
{
    const hth_node *n = b->node;
    bool input = k < n->n_inputs;
    int id = input ? n->inputs[k] : n->outputs[k - n->n_inputs];
    if (id < 0) {
        return HTH_OK;
    }
    const hth_value *v = &b->graph->values[id];
    size_t bytes;
    HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, v->layout, &bytes));
    if (b->operands != NULL) {
        void *to = (char *)b->operands + *at;
        if (input) {
            b->in[k].placed = to;
            b->in[k].bytes = bytes;
            HTH_TRY(bench_make_input(b, v, k));
        } else {
            b->out[k - n->n_inputs] = to;
            if (hth_convsel_has_menu(b->node->op)) { // else the first of the runs meets fresh pages
                memset(to, 0, bytes);
            }
        }
    }
    *at += (bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
    return HTH_OK;
}

static hth_err bench_make(hth_bench *b)
{
    int n = b->node->n_inputs + b->node->n_outputs;
    for (int round = 0; round < 2; round++) {
        size_t at = 0;
        for (int k = 0; k < n; k++) {
            HTH_TRY(bench_place(b, k, &at));
        }
        if (round == 0) {
            b->operand_bytes = at;
            b->operands = bench_take(b, at);
            HTH_TRY(b->operands == NULL ? bench_no_memory(b) : HTH_OK);
        }
    }
    return HTH_OK;
}

hth_err hth_bench_open(hth_device *d, const hth_graph *g, const hth_node *n,
                       const hth_timing_cache *cache, const hth_cache_model *cache_state,
                       hth_bench **out)
{
    hth_bench *b = hth_calloc(1, sizeof *b);
    hth_err err = HTH_OK;
    *out = NULL;
    if (b == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory to measure node '%s'", n->name);
    }
    b->device = d;
    b->cache = cache;
    b->graph = g;
    b->node = n;
    b->cache_state = cache_state;
    b->cache_state_text = hth_cache_model_text(cache_state, g, n);
    b->in = hth_calloc((size_t)n->n_inputs, sizeof *b->in);
    b->args_in = hth_calloc((size_t)n->n_inputs, sizeof *b->args_in);
    b->packed = hth_calloc((size_t)n->n_inputs, sizeof *b->packed);
    b->out = hth_calloc((size_t)n->n_outputs, sizeof *b->out);
    if (b->in == NULL || b->args_in == NULL || b->packed == NULL || b->out == NULL) {
        err = bench_no_memory(b);
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

uint64_t hth_bench_bytes(const hth_bench *b)
{
    return b->operand_bytes;
}

void hth_bench_close(hth_bench *b)
{
    if (b == NULL) {
        return;
    }
    for (int i = 0; b->in != NULL && i < b->node->n_inputs; i++) {
        if (b->in[i].plain != b->in[i].placed) {
            bench_give(b, b->in[i].plain);
        }
        bench_give(b, b->in[i].kept);
    }
    bench_give(b, b->operands);
    bench_give(b, b->scratch);
    hth_free(b->in);
    hth_free(b->args_in);
    hth_free(b->packed);
    hth_free(b->out);
    bench_give(b, b->workspace);
    hth_free(b->index);
    hth_free(b->want);
    hth_free(b);
}

void hth_bench_unload(hth_bench *b, const hth_kernel *k)
{
    for (int i = 0; i < k->n_packings; i++) {
        bench_give(b, b->packed[k->packings[i].input]);
        b->packed[k->packings[i].input] = NULL;
    }
}

hth_err hth_bench_forms(hth_bench *b, const hth_kernel *k)
{
    hth_err err = HTH_OK;
    for (int i = 0; i < b->node->n_inputs; i++) {
        b->args_in[i] = b->in[i].placed;
    }
    for (int i = 0; i < k->n_packings && err == HTH_OK; i++) {
        const hth_packing *p = &k->packings[i];
        if (p->pack == NULL) {
            continue;
        }
        b->packed[p->input] = bench_take(b, p->bytes);
        err = b->packed[p->input] == NULL
                  ? HTH_ENOMEM
                  : p->pack(k, p, b->in[p->input].plain, b->packed[p->input]);
        b->args_in[p->input] = b->packed[p->input];
    }
    if (err == HTH_OK) {
        return HTH_OK;
    }
    hth_bench_unload(b, k);
    return err == HTH_ENOMEM ? bench_no_memory(b) : err;
}

hth_err hth_bench_load(hth_bench *b, const hth_kernel *k)
{
    if (b->workspace == NULL || b->workspace_bytes < k->workspace_bytes) {
        bench_give(b, b->workspace);
        b->workspace = bench_take(b, k->workspace_bytes);
        b->workspace_bytes = b->workspace == NULL ? 0 : k->workspace_bytes;
        if (b->workspace != NULL) {
            memset(b->workspace, 0, b->workspace_bytes); // its pages are there before the first run
        }
    }
    return b->workspace == NULL ? bench_no_memory(b) : hth_bench_forms(b, k);
}

// How often a thread of this process had to make room for another process so far.
static long bench_preempted(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? u.ru_nivcsw : 0;
}

// One run after what the step does before it. Long ones are always interrupted once or twice.
static hth_err bench_run(hth_bench *b, const hth_kernel *k, const hth_kernel_args *a,
                         hth_samples *s, double *us)
{
    if (b->cache_state_text != NULL) {
        hth_bench_warm(b, a->out);
    }
    long before = bench_preempted();
    uint64_t start = hth_now_ns();
    HTH_TRY(k->run(k, a));
    *us = (double)(hth_now_ns() - start) / 1e3;
    hth_samples_add(s, *us, (double)(bench_preempted() - before) <= *us / SWITCH_US);
    return HTH_OK;
}

bool hth_bench_between(const hth_timing_cache *cache)
{
    return cache != NULL && cache->between != NULL && cache->between(cache->owner);
}

static hth_err bench_runs(hth_bench *b, const hth_kernel *k, const hth_kernel_args *a,
                          hth_samples *s)
{
    double us;
    hth_samples cold = {.n = 0};
    if (b->cache_state_text != NULL) { // no run warms the next one
        return bench_run(b, k, a, s, &us);
    }
    HTH_TRY(bench_run(b, k, a, &cold, &us));
    if (us > LONG_RUN_US) {
        hth_samples_add(s, us, cold.n_clean > 0);
        return HTH_OK;
    }
    double total = 0;
    for (int i = 0; i < MAX_RUNS && (i == 0 || total < ENOUGH_US); i++) {
        if (i > 0 && hth_bench_between(b->cache)) { // the caches are another's
            HTH_TRY(bench_run(b, k, a, &cold, &us));
        }
        HTH_TRY(bench_run(b, k, a, s, &us));
        total += us;
    }
    return HTH_OK;
}

// Outputs in the places of inputs, as the step has them; a copy of these for every run. Large
// inputs, and those that there is no memory for, are changed by the runs.
static void bench_in_place(hth_bench *b, int inplace_input, void **out)
{
    hth_bench_outputs(b, inplace_input, out);
    for (int k = 0; k < b->node->n_outputs; k++) {
        for (int i = 0; out[k] != NULL && i < b->node->n_inputs; i++) {
            bench_input *in = &b->in[i];
            if (in->placed == out[k] && in->kept == NULL && in->bytes <= KEEP_BYTES) {
                in->kept = bench_take(b, in->bytes);
                if (in->kept != NULL) {
                    memcpy(in->kept, in->placed, in->bytes);
                }
            }
        }
    }
    if (b->cache_state_text != NULL && b->scratch == NULL) {
        b->scratch = bench_take(b, b->cache_state->sweep_bytes + b->cache_state->core_bytes);
    }
}

// The error of what a run has left, unless post ops have changed it by more than a ReLU.
static hth_err bench_error_of_run(hth_bench *b, void *const *out, hth_choice *c)
{
    const hth_node *n = b->node;
    bool relu = hth_bench_relu(b);
    if (c->error >= 0 || (n->n_post > 0 && !relu) || out[0] != b->out[0] ||
        !hth_bench_has_error(b)) {
        return HTH_OK;
    }
    hth_node bare = hth_bench_bare(b);
    HTH_TRY(hth_bench_samples(b, &bare));
    hth_bench_compare(b, relu, c);
    return HTH_OK;
}

hth_err hth_bench_turn(hth_bench *b, hth_choice *c, hth_samples *s)
{
    hth_kernel *k;
    HTH_TRY(hth_kernel_prepare(b->device, b->graph, b->node, c->name, &k));
    void **out = hth_memdup(b->out, (size_t)b->node->n_outputs * sizeof *out);
    hth_err err = out == NULL ? bench_no_memory(b) : hth_bench_load(b, k);
    if (err == HTH_OK) {
        hth_kernel_args a = {b->args_in, out, b->workspace};
        (void)hth_bench_between(b->cache);
        bench_in_place(b, k->inplace_input, out);
        err = bench_runs(b, k, &a, s);
        err = err == HTH_OK ? bench_error_of_run(b, out, c) : err;
        c->workspace_bytes = k->workspace_bytes;
        hth_bench_unload(b, k);
    }
    hth_free(out);
    hth_kernel_close(k);
    (void)hth_bench_between(b->cache);
    return err;
}
