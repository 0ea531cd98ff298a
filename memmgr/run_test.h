// SPDX-License-Identifier: Apache-2.0
// memmgr/run_test.h - plans run with kernels that mix all their input words into all their output
// words, against a plain evaluation with a buffer per tensor: a byte in the wrong place at the
// wrong time changes an output. For tests.
#ifndef HTH_MEMMGR_RUN_TEST_H
#define HTH_MEMMGR_RUN_TEST_H

#include "planner/plan_test.h"
#include "memmgr/run.h"

#define RIG_MAX_ARGS 8

typedef struct mix {
    hth_kernel base;
    const hth_problem *p;
    int node;
    size_t workspace;
    atomic_int *cancel; // set when run
} mix;

static inline uint32_t mix_word(uint32_t h, uint32_t w)
{
    return (h ^ w) * 0x9E3779B1u + (h >> 15);
}

// Whether output k of the node depends on input i: on all, except that what the node updates itself
// is read for the update only.
static inline bool mix_depends(const hth_problem *problem, const hth_plan_node *node, int k, int i)
{
    bool own = false;
    for (int j = 0; j < node->n_outputs; j++) {
        own = own || problem->tensors[node->outputs[j]].replaces == node->inputs[i] + 1;
    }
    return !own || problem->tensors[node->outputs[k]].replaces > 0;
}

static inline size_t mix_words(const hth_problem *problem, int t)
{
    return problem->tensors[t].bytes / 4;
}

static inline hth_err mix_run(const hth_kernel *kernel, const hth_kernel_args *args)
{
    const mix *m = (const mix *)kernel;
    const hth_plan_node *n = &m->p->nodes[m->node];
    if (m->workspace > 0) {
        memset(args->workspace, 0xEE, m->workspace);
    }
    if (m->cancel != NULL) {
        *m->cancel = 1;
    }
    for (int o = n->n_outputs - 1; o >= 0; o--) { // an output in place is the first, written last
        uint32_t *out = args->out[o];
        const uint32_t *in[RIG_MAX_ARGS];
        size_t words[RIG_MAX_ARGS];
        int n_in = 0;
        for (int i = 0; i < n->n_inputs; i++) {
            if (mix_depends(m->p, n, o, i)) {
                in[n_in] = args->in[i];
                words[n_in++] = mix_words(m->p, n->inputs[i]);
            }
        }
        for (size_t j = 0; j < mix_words(m->p, n->outputs[o]); j++) {
            uint32_t h = ((uint32_t)m->node + 77u * (uint32_t)o) * 2654435761u + (uint32_t)j;
            for (int i = 0; i < n_in; i++) {
                h = mix_word(h, in[i][j % words[i]]);
            }
            out[j] = h;
        }
    }
    return HTH_OK;
}

static inline hth_err mix_fail(const hth_kernel *kernel, const hth_kernel_args *args)
{
    return hth_fail(HTH_ENOTSUP, "node 'n%d' cannot", ((const mix *)kernel)->node);
}

// Everything that a run needs, and the reference.
typedef struct rig {
    hth_problem p;
    hth_plan *plan;
    const char *spill_dir;
    hth_device *device;
    mix *mixes;
    hth_kernel **kernels;
    const int **ins, **outs;
    int *n_in, *n_out;
    void **host, **fixed,
        **want;              // per tensor: host copy (inputs, weights), binding, reference content
    hth_run_far *places;     // per tensor: its host copy, or its place in `file`
    const hth_run_far **far; // per tensor: places[t], NULL: none
    hth_spill *file;         // with spill_dir
    void *arena;
    hth_run *run;
} rig;

static inline void rig_plan(rig *r, hth_problem problem)
{
    memset(r, 0, sizeof *r);
    r->p = problem;
    assert_ok(hth_plan_inference(&r->p, &r->plan));
    assert_ok(hth_plan_verify(&r->p, r->plan));
}

// Computes what a run has to give, from what `want` holds of the tensors without a producer.
static inline void rig_compute(rig *r)
{
    for (int i = 0; i < r->p.n_nodes; i++) {
        const hth_plan_node *node = &r->p.nodes[i];
        void *in[RIG_MAX_ARGS], *out[RIG_MAX_ARGS];
        for (int j = 0; j < node->n_inputs; j++) {
            in[j] = r->want[node->inputs[j]];
        }
        for (int j = 0; j < node->n_outputs; j++) {
            out[j] = r->want[node->outputs[j]];
        }
        mix m = {.p = &r->p, .node = i};
        assert_ok(mix_run(&m.base, &(hth_kernel_args){.in = in, .out = out}));
    }
}

// The next step begins with what this one updated.
static inline void rig_next(rig *r)
{
    for (int t = 0; t < r->p.n_tensors; t++) {
        int old = r->p.tensors[t].replaces - 1;
        if (old >= 0) {
            memcpy(r->want[old], r->want[t], r->p.tensors[t].bytes);
        }
    }
    rig_compute(r);
}

static inline void rig_reference(rig *r)
{
    size_t n = (size_t)r->p.n_tensors;
    r->host = hth_calloc(n, sizeof(void *));
    r->fixed = hth_calloc(n, sizeof(void *));
    r->want = hth_calloc(n, sizeof(void *));
    for (int t = 0; t < r->p.n_tensors; t++) {
        const hth_plan_tensor *x = &r->p.tensors[t];
        r->want[t] = hth_alloc(x->bytes);
        for (size_t j = 0; j < mix_words(&r->p, t); j++) {
            ((uint32_t *)r->want[t])[j] = mix_word((uint32_t)t, (uint32_t)j);
        }
        if (x->producer < 0) {
            r->host[t] = hth_memdup(r->want[t], x->bytes);
        }
        if (hth_plan_home(x) != HTH_HOME_ARENA && !r->plan->streamed[t] && x->replaces == 0) {
            r->fixed[t] = x->producer < 0 ? r->host[t] : hth_calloc(1, x->bytes);
        }
    }
    for (int t = 0; t < r->p.n_tensors; t++) { // one buffer; what is streamed has none for good
        int old = r->p.tensors[t].replaces - 1;
        r->fixed[t] = old >= 0 ? r->fixed[old] : r->fixed[t];
    }
    rig_compute(r);
}

// What is away is in host copies, or with spill_dir in a file.
static inline void rig_far(rig *r)
{
    uint64_t end = 0;
    size_t n = (size_t)r->p.n_tensors;
    r->places = hth_calloc(n, sizeof *r->places);
    r->far = hth_calloc(n, sizeof *r->far);
    for (size_t t = 0; t < n; t++) {
        r->far[t] = r->host[t] != NULL ? &r->places[t] : NULL;
        r->places[t] = (hth_run_far){r->spill_dir != NULL ? NULL : r->host[t], NULL, end};
        end += (r->p.tensors[t].bytes + HTH_SPILL_ALIGN - 1) / HTH_SPILL_ALIGN * HTH_SPILL_ALIGN;
    }
    if (r->spill_dir == NULL) {
        return;
    }
    assert_ok(hth_spill_open(r->spill_dir, end, &r->file));
    for (size_t t = 0; t < n; t++) {
        r->places[t].file = r->file;
        if (r->host[t] != NULL) {
            assert_ok(hth_spill_write(r->file, r->places[t].at, r->host[t], r->p.tensors[t].bytes));
        }
    }
}

static inline void rig_open(rig *r, const char *device)
{
    size_t n = (size_t)r->p.n_nodes;
    rig_reference(r);
    rig_far(r);
    r->mixes = hth_calloc(n, sizeof *r->mixes);
    r->kernels = hth_calloc(n, sizeof *r->kernels);
    r->ins = hth_calloc(n, sizeof *r->ins);
    r->outs = hth_calloc(n, sizeof *r->outs);
    r->n_in = hth_calloc(n, sizeof *r->n_in);
    r->n_out = hth_calloc(n, sizeof *r->n_out);
    for (size_t i = 0; i < n; i++) {
        const hth_plan_node *node = &r->p.nodes[i];
        r->mixes[i] = (mix){.base.run = mix_run, .p = &r->p, .node = (int)i};
        r->kernels[i] = &r->mixes[i].base;
        r->ins[i] = node->inputs;
        r->outs[i] = node->outputs;
        r->n_in[i] = node->n_inputs;
        r->n_out[i] = node->n_outputs;
    }
    for (int i = 0; i < r->plan->n_instrs; i++) {
        const hth_instr *in = &r->plan->instrs[i];
        if (in->kind == HTH_INSTR_COMPUTE) {
            r->mixes[in->node].workspace = hth_plan_workspace(&r->p.nodes[in->node], in->alt);
        }
    }
    assert_ok(hth_device_open(device, &r->device));
    assert_ok(hth_device_reserve(r->device, r->plan->arena_bytes + 64, &r->arena));
    hth_run_spec spec = {r->device, &r->p,   r->plan,  r->kernels, r->ins,
                         r->n_in,   r->outs, r->n_out, r->far,     r->spill_dir};
    assert_ok(hth_run_open(&spec, &r->run));
    assert_ok(hth_run_bind(r->run, r->arena, r->fixed));
    assert_ok(hth_run_bind(r->run, r->arena, r->fixed));
}

// Where an instruction puts tensor t at last, NULL: nowhere.
static inline char *rig_place(const rig *r, int t)
{
    for (int i = r->plan->n_instrs - 1; i >= 0; i--) {
        const hth_instr *in = &r->plan->instrs[i];
        if ((in->kind == HTH_INSTR_ALLOC || in->kind == HTH_INSTR_PREFETCH) && in->tensor == t) {
            return (char *)r->arena + in->offset;
        }
    }
    return NULL;
}

// .. and where the first one does.
static inline char *rig_first_place(const rig *r, int t)
{
    for (int i = 0; i < r->plan->n_instrs; i++) {
        const hth_instr *in = &r->plan->instrs[i];
        if (in->kind == HTH_INSTR_ALLOC && in->tensor == t) {
            return (char *)r->arena + in->offset;
        }
    }
    return NULL;
}

// Poisons the arena, puts the arena's inputs in place, runs.
static inline hth_err rig_execute(rig *r, const atomic_int *canceled)
{
    memset(r->arena, 0xCB, r->plan->arena_bytes);
    for (int t = 0; t < r->p.n_tensors; t++) {
        if (r->p.tensors[t].producer < 0 && hth_plan_home(&r->p.tensors[t]) == HTH_HOME_ARENA &&
            rig_first_place(r, t)) {
            memcpy(rig_first_place(r, t), r->host[t], r->p.tensors[t].bytes);
        }
    }
    return hth_run_execute(r->run, canceled);
}

// Whether outputs are right, and what was updated in its own place.
static inline bool rig_right(const rig *r)
{
    for (int t = 0; t < r->p.n_tensors; t++) {
        const hth_plan_tensor *x = &r->p.tensors[t];
        int old = x->replaces - 1;
        if (r->file != NULL && old >= 0 && r->plan->streamed[old]) {
            assert_ok(hth_spill_read(r->file, r->places[old].at, r->host[old], x->bytes));
        }
        const void *got = r->fixed[t] ? r->fixed[t] : rig_place(r, t);
        got = old >= 0 ? r->host[old] : got;
        if (x->cls == HTH_MEM_OUTPUT && memcmp(got, r->want[t], x->bytes / 4 * 4) != 0) {
            return false;
        }
    }
    return true;
}

// Closes everything but the problem and its plan.
static inline void rig_close_run(rig *r)
{
    hth_run_close(r->run);
    hth_device_release(r->device, r->arena, r->plan->arena_bytes + 64);
    hth_device_close(r->device);
    for (int t = 0; t < r->p.n_tensors; t++) {
        if (r->fixed[t] != r->host[t] && r->p.tensors[t].replaces == 0) {
            hth_free(r->fixed[t]);
        }
        hth_free(r->host[t]);
        hth_free(r->want[t]);
    }
    hth_spill_close(r->file);
    r->file = NULL;
    hth_free(r->places);
    hth_free(r->far);
    hth_free(r->host);
    hth_free(r->fixed);
    hth_free(r->want);
    hth_free(r->mixes);
    hth_free(r->kernels);
    hth_free(r->ins);
    hth_free(r->outs);
    hth_free(r->n_in);
    hth_free(r->n_out);
}

static inline void rig_close(rig *r)
{
    rig_close_run(r);
    hth_plan_free(r->plan);
    hth_problem_fini(&r->p);
}

#endif
