// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/fixture.h - tests of the CPU's kernels: a graph of one node, run by a kernel and by
// the reference.
//
// The kernel's output is compared with the reference's, element by element, relative to the largest
// output; the padding of a blocked output must be zero. Static functions: each test file gets its
// own copy.
#ifndef HTH_KERNELS_CPU_FIXTURE_H
#define HTH_KERNELS_CPU_FIXTURE_H

#include "base/alloc.h"
#include "base/isa.h"
#include "base/settings.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

// What a label that is no class comes to: an error, or (HTH_OK) a loss that is no number.
#ifndef FIXTURE_BAD_LABEL
#define FIXTURE_BAD_LABEL HTH_EINVAL
#endif

typedef struct fixture {
    hth_device device;
    hth_graph *graph;
    int node;
    uint64_t seed;
    int64_t limit; // integer inputs are 0 .. limit - 1
    float grid;    // not 0: floats are multiples of it, a power of two
    float spike;   // not 0: the first number of each input
    double error;  // of the last output checked
} fixture;

// A device without memory or streams: kernels only look at its properties.
static inline hth_device fixture_device(void)
{
    hth_device d = {.props = {.name = "cpu:0", .n_threads = 2}};
    assert_int_equal(hth_isa_limit(getenv("HEARTH_ISA")), HTH_OK);
    assert_int_equal(hth_setting_given("kernels.onednn", getenv("HEARTH_ONEDNN")), HTH_OK);
    d.props.vector_bytes = hth_isa_bytes();
    return d;
}

// For what is asserted of oneDNN's kernels: the rest of a test runs without it, too.
static inline void fixture_needs_onednn(void)
{
    fixture_device();
    if (!hth_dn_here()) {
        skip();
    }
}

static inline float fixture_random(fixture *f)
{
    f->seed = f->seed * 6364136223846793005ULL + 1442695040888963407ULL;
    float x = (float)(int32_t)(f->seed >> 33) / (float)(1 << 30) - 1.0F; // [-1, 1)
    return f->grid > 0 ? floorf(x / f->grid) * f->grid : x;
}

static inline hth_shape fixture_shape(int rank, const int64_t *dims)
{
    hth_shape s = {.rank = rank};
    memcpy(s.dim, dims, (size_t)rank * sizeof dims[0]);
    return s;
}
#define SHAPE(...)                                                                                 \
    fixture_shape((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                       \
                  (const int64_t[]){__VA_ARGS__})

static inline void fixture_open(fixture *f, uint64_t seed)
{
    *f = (fixture){.device = fixture_device(), .seed = seed};
    assert_int_equal(hth_graph_new(&f->graph), HTH_OK);
}

static inline void fixture_close(fixture *f)
{
    hth_graph_free(f->graph);
}

static inline int fixture_value(fixture *f, hth_shape shape)
{
    int v;
    assert_int_equal(hth_graph_add_value(f->graph, NULL, HTH_DT_F32, &shape, &v), HTH_OK);
    return v;
}

static inline float *fixture_fill(fixture *f, const hth_shape *shape)
{
    int64_t n = hth_shape_elements(shape);
    float *p = hth_alloc((size_t)n * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) {
        p[i] = fixture_random(f);
    }
    return p;
}

// Random content of any dtype, row-major.
static inline void *fixture_content(fixture *f, const hth_value *value)
{
    if (value->dtype == HTH_DT_F32) {
        float *x = fixture_fill(f, &value->shape);
        if (f->spike != 0) {
            x[0] = f->spike;
        }
        return x;
    }
    size_t n = (size_t)hth_shape_elements(&value->shape), elem = hth_dtype_bytes(value->dtype);
    char *p = hth_calloc(n, elem);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) {
        int64_t x = (int64_t)(fabsf(fixture_random(f)) * 1e6F) % (f->limit > 0 ? f->limit : 1);
        memcpy(p + i * elem, &x, elem); // little-endian
    }
    return p;
}

static inline int fixture_const(fixture *f, hth_shape shape)
{
    float *p = fixture_fill(f, &shape);
    hth_const *c;
    int v;
    assert_int_equal(hth_const_adopt(HTH_DT_F32, &shape, p, NULL, &c), HTH_OK);
    assert_int_equal(hth_graph_add_const(f->graph, NULL, c, &v), HTH_OK);
    return v;
}

static inline int fixture_const_of(fixture *f, hth_dtype dt, hth_shape shape, const void *data)
{
    hth_const *c;
    int v;
    assert_int_equal(hth_const_new(dt, &shape, data, &c), HTH_OK);
    assert_int_equal(hth_graph_add_const(f->graph, NULL, c, &v), HTH_OK);
    return v;
}

static inline hth_node *fixture_node(fixture *f, hth_op op, const int *in, int n_in, const int *out,
                                     int n_out)
{
    assert_int_equal(hth_graph_add_node(f->graph, op, "node", in, n_in, out, n_out, &f->node),
                     HTH_OK);
    return &f->graph->nodes[f->node];
}

static inline void *fixture_buffer(size_t bytes)
{
    void *p = hth_alloc_aligned(bytes + 64, 64);
    assert_non_null(p);
    memset(p, 0xA5, bytes); // garbage that a kernel must overwrite, padding included
    return p;
}

// In the layout of its value, from row-major content.
static inline void *fixture_place(const hth_value *value, const void *plain)
{
    size_t bytes, elem = hth_dtype_bytes(value->dtype);
    assert_int_equal(hth_tensor_bytes(value->dtype, &value->shape, value->layout, &bytes), HTH_OK);
    void *p = fixture_buffer(bytes);
    hth_cpu_relayout(elem, &value->shape, HTH_LAYOUT_PLAIN, plain, value->layout, p);
    return p;
}

static inline const hth_packing *fixture_packing(const hth_kernel *kernel, int input)
{
    for (int i = 0; i < kernel->n_packings; i++) {
        if (kernel->packings[i].input == input) {
            return &kernel->packings[i];
        }
    }
    return NULL;
}

// Compares the blocked (or plain) `got` with the plain `want`; also that padding is zero.
static inline double fixture_compare(const hth_value *value, const void *got, const float *want)
{
    int64_t n = hth_shape_elements(&value->shape);
    float *plain = hth_alloc((size_t)n * sizeof *plain);
    double worst = 0, largest = 1e-30;
    hth_cpu_relayout(4, &value->shape, value->layout, got, HTH_LAYOUT_PLAIN, plain);
    for (int64_t i = 0; i < n; i++) {
        bool same = plain[i] == want[i] || (isnan(plain[i]) && isnan(want[i])); // infinities too
        double diff = same ? 0 : fabs((double)plain[i] - want[i]);
        worst = isnan(diff) ? (double)INFINITY : fmax(worst, diff);
        largest = isinf(want[i]) ? largest : fmax(largest, fabs(want[i]));
    }
    if (value->layout != HTH_LAYOUT_PLAIN) {
        size_t bytes;
        assert_int_equal(hth_tensor_bytes(value->dtype, &value->shape, value->layout, &bytes),
                         HTH_OK);
        void *again = fixture_buffer(bytes);
        hth_cpu_relayout(4, &value->shape, HTH_LAYOUT_PLAIN, plain, value->layout, again);
        assert_memory_equal(again, got, bytes);
        hth_free(again);
    }
    hth_free(plain);
    return worst / largest;
}

// 1 if any element of another dtype than f32 differs.
static inline double fixture_differs(const hth_value *value, const void *got, const void *want)
{
    size_t bytes = (size_t)hth_shape_elements(&value->shape) * hth_dtype_bytes(value->dtype);
    void *plain = fixture_buffer(bytes);
    hth_cpu_relayout(hth_dtype_bytes(value->dtype), &value->shape, value->layout, got,
                     HTH_LAYOUT_PLAIN, plain);
    bool same = memcmp(plain, want, bytes) == 0;
    hth_free(plain);
    return same ? 0 : 1;
}

// Runs the node with `algorithm` and with the reference; outputs must agree within `tolerance`.
// `in_place`: output 0 shares the buffer of the kernel's inplace_input, if it has one.
static inline void fixture_check(fixture *f, const char *algorithm, bool in_place, double tolerance)
{
    hth_graph *g = f->graph;
    const hth_node *n = &g->nodes[f->node];
    hth_kernel *k;
    void *in[64] = {NULL}, *out[8] = {NULL}, *ws;
    hth_tensor tin[64] = {{0}}, tout[8] = {{0}};
    hth_err err = hth_kernel_prepare(&f->device, g, n, algorithm, &k);
    if (err != HTH_OK) {
        fail_msg("prepare %s: %s", algorithm ? algorithm : "default", hth_err_detail());
    }
    for (int i = 0; i < n->n_inputs; i++) {
        if (n->inputs[i] < 0) {
            continue;
        }
        const hth_value *v = &g->values[n->inputs[i]];
        const hth_packing *p = fixture_packing(k, i);
        tin[i] = (hth_tensor){v->dtype, HTH_LAYOUT_PLAIN, v->shape, NULL, 0};
        hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &tin[i].bytes);
        tin[i].data =
            v->constant ? hth_memdup(v->constant->data, tin[i].bytes) : fixture_content(f, v);
        if (p != NULL && p->pack != NULL) {
            in[i] = fixture_buffer(p->bytes);
            assert_int_equal(p->pack(k, p, tin[i].data, in[i]), HTH_OK);
        } else {
            in[i] = fixture_place(v, tin[i].data);
        }
    }
    for (int i = 0; i < n->n_outputs; i++) {
        if (n->outputs[i] < 0) {
            continue;
        }
        const hth_value *v = &g->values[n->outputs[i]];
        size_t bytes;
        tout[i] = (hth_tensor){v->dtype, HTH_LAYOUT_PLAIN, v->shape, NULL, 0};
        hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &tout[i].bytes);
        tout[i].data = hth_calloc(tout[i].bytes, 1);
        hth_tensor_bytes(v->dtype, &v->shape, v->layout, &bytes);
        out[i] = i == 0 && in_place && k->inplace_input >= 0 ? in[k->inplace_input]
                                                             : fixture_buffer(bytes);
    }
    ws = fixture_buffer(k->workspace_bytes);
    hth_kernel_args a = {in, out, ws, NULL};
    for (int run = 0; run < (in_place ? 1 : 2); run++) { // twice: nothing may depend on the first
        err = k->run(k, &a);
        if (err != HTH_OK) {
            fail_msg("run: %s", hth_err_detail());
        }
    }
    assert_int_equal(hth_ref_eval(NULL, g, n, tin, tout), HTH_OK);
    for (int i = 0; i < n->n_outputs; i++) {
        if (n->outputs[i] < 0) {
            continue;
        }
        f->error = g->values[n->outputs[i]].dtype == HTH_DT_F32
                       ? fixture_compare(&g->values[n->outputs[i]], out[i], tout[i].data)
                       : fixture_differs(&g->values[n->outputs[i]], out[i], tout[i].data);
        if (!(f->error <= tolerance)) {
            fail_msg("%s by %s: output %d differs by %g", hth_op_name(n->op), k->implementation, i,
                     f->error);
        }
    }
    for (int i = 0; i < n->n_outputs; i++) {
        if (!(i == 0 && in_place && k->inplace_input >= 0)) {
            hth_free(out[i]);
        }
        hth_free(tout[i].data);
    }
    for (int i = 0; i < n->n_inputs; i++) {
        hth_free(in[i]);
        hth_free(tin[i].data);
    }
    hth_free(ws);
    hth_kernel_close(k);
}

// Prepares the node while the first, second, .. allocation fails: HTH_ENOMEM until it succeeds, and
// nothing left behind.
static inline void fixture_faults(fixture *f, const char *algorithm)
{
    const hth_node *n = &f->graph->nodes[f->node];
    int64_t live = hth_alloc_live();
    hth_kernel *k = NULL;
    hth_err err = HTH_ENOMEM;
    for (uint64_t nth = 1; err != HTH_OK; nth++) {
        hth_fault_alloc(nth);
        err = hth_kernel_prepare(&f->device, f->graph, n, algorithm, &k);
        hth_fault_alloc(0);
        assert_true(nth > 1 || err != HTH_OK);
        assert_true(err == HTH_OK || err == HTH_ENOMEM);
        if (err == HTH_OK) {
            hth_kernel_close(k);
        }
        assert_true(hth_alloc_live() == live);
    }
}

// A kernel of our own, not the fall-back, with one to three threads, in place and not; all tensors
// of rank > 2 in layout `layout`. Closes the fixture.
static inline void fixture_check_own(fixture *f, hth_layout layout, double tolerance)
{
    const hth_node *n = &f->graph->nodes[f->node];
    for (int v = 0; v < f->graph->n_values; v++) {
        bool image = f->graph->values[v].shape.rank > 2;
        f->graph->values[v].layout = image ? layout : HTH_LAYOUT_PLAIN;
    }
    for (int threads = 1; threads <= 3; threads++) {
        hth_kernel *k;
        f->device.props.n_threads = threads;
        assert_int_equal(hth_kernel_prepare(&f->device, f->graph, n, NULL, &k), HTH_OK);
        assert_string_not_equal(k->implementation, "ref");
        hth_kernel_close(k);
        fixture_check(f, NULL, false, tolerance);
        fixture_check(f, NULL, true, tolerance);
    }
    fixture_faults(f, NULL);
    fixture_close(f);
}

#endif
