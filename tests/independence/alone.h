// SPDX-License-Identifier: Apache-2.0
// tests/independence/alone.h - for tests: is a joined batch's answer what its parts' are alone?
//
// The reference kernels compute a batch, each of its samples alone, among others that are NaN, and
// some splits of it. Rows must have the same bits; one NaN is as good as another.
#ifndef HTH_TESTS_INDEPENDENCE_ALONE_H
#define HTH_TESTS_INDEPENDENCE_ALONE_H

#include "base/alloc.h"
#include "graph/independence.h"
#include "graph/specialize.h"
#include "graph/test_words.h"
#include "kernels/kernel.h"

#include <math.h>

#define MAX_INPUTS  8
#define MAX_OUTPUTS 8
#define MAX_SAMPLES 6

// A batch of samples for a model's inputs, all of the same first dimension.
typedef struct batch {
    int n;
    hth_tensor t[MAX_INPUTS];
} batch;

static void *copy_of(const void *data, size_t bytes)
{
    void *p = hth_alloc_aligned(bytes > 0 ? bytes : 64, 64);
    assert_non_null(p);
    if (bytes > 0) {
        memcpy(p, data, bytes);
    }
    return p;
}

static void tensors_free(hth_tensor *tensor, int n)
{
    for (int i = 0; i < n; i++) {
        hth_free(tensor[i].data);
    }
}

// ---- running a model graph on the reference kernels

#define MAX_BYTES (64U << 20) // of a tensor

// What a run needs of a graph's values: shape arithmetic leaves tensors that no memory holds.
static bool *needed_values(const hth_graph *graph)
{
    bool *needed = hth_calloc((size_t)graph->n_values + 1, sizeof *needed);
    assert_non_null(needed);
    for (int i = 0; i < graph->n_outputs; i++) {
        needed[graph->outputs[i]] = true;
    }
    for (int i = graph->n_nodes - 1; i >= 0; i--) {
        const hth_node *n = &graph->nodes[i];
        bool runs = false;
        for (int k = 0; k < n->n_outputs; k++) {
            runs = runs || (n->outputs[k] >= 0 && needed[n->outputs[k]]);
        }
        for (int k = 0; k < n->n_outputs && runs; k++) {
            needed[n->outputs[k] < 0 ? graph->n_values : n->outputs[k]] = true;
        }
        for (int k = 0; k < n->n_inputs && runs; k++) {
            needed[n->inputs[k] < 0 ? graph->n_values : n->inputs[k]] = true;
        }
    }
    return needed;
}

static hth_err run_nodes(const hth_graph *graph, hth_tensor *tensor)
{
    for (int i = 0; i < graph->n_nodes; i++) {
        const hth_node *n = &graph->nodes[i];
        hth_tensor in[64] = {{0}}, out[16] = {{0}};
        bool runs = false;
        assert_true(n->n_inputs <= 64 && n->n_outputs <= 16);
        for (int k = 0; k < n->n_inputs; k++) {
            in[k] = n->inputs[k] < 0 ? in[k] : tensor[n->inputs[k]];
        }
        for (int k = 0; k < n->n_outputs; k++) {
            out[k] = n->outputs[k] < 0 ? out[k] : tensor[n->outputs[k]];
            runs = runs || out[k].data != NULL;
        }
        if (runs) {
            HTH_TRY(hth_ref_eval(NULL, graph, n, in, out));
        }
    }
    return HTH_OK;
}

// A value's tensor: a constant's elements, or room. HTH_EDENIED: it is too large for a test.
static hth_err value_tensor(const hth_value *value, hth_tensor *out)
{
    const void *data;
    *out = (hth_tensor){.dtype = value->dtype, .shape = value->shape};
    hth_err err = hth_tensor_bytes(value->dtype, &value->shape, HTH_LAYOUT_PLAIN, &out->bytes);
    if (err != HTH_OK || out->bytes > MAX_BYTES) {
        return HTH_EDENIED;
    }
    if (value->constant != NULL) {
        assert_int_equal(hth_const_map(value->constant, &data), HTH_OK);
        out->data = copy_of(data, out->bytes);
        hth_const_unmap(value->constant);
    } else {
        out->data = hth_alloc_aligned(out->bytes + 64, 64);
        assert_non_null(out->data);
        memset(out->data, 0xFF, out->bytes); // NaN: what is not written shows
    }
    return HTH_OK;
}

static hth_err run_concrete(const hth_graph *graph, const batch *b, hth_tensor *out)
{
    hth_tensor *v = hth_calloc((size_t)graph->n_values + 1, sizeof *v);
    bool *needed = needed_values(graph);
    hth_err err = HTH_OK;
    assert_non_null(v);
    for (int i = 0; i < graph->n_values && err == HTH_OK; i++) {
        err = needed[i] ? value_tensor(&graph->values[i], &v[i]) : HTH_OK;
    }
    for (int i = 0; i < graph->n_inputs && err == HTH_OK; i++) {
        if (needed[graph->inputs[i]]) {
            memcpy(v[graph->inputs[i]].data, b->t[i].data, b->t[i].bytes);
        }
    }
    if (err == HTH_OK) {
        err = run_nodes(graph, v);
    }
    for (int i = 0; i < graph->n_outputs && err == HTH_OK; i++) {
        out[i] = v[graph->outputs[i]];
        out[i].data = copy_of(out[i].data, out[i].bytes);
    }
    tensors_free(v, graph->n_values);
    hth_free(needed);
    hth_free(v);
    return err;
}

// HTH_EBUSY: the shapes depend on values; such models are never joined. HTH_EDENIED: a kernel
// refuses the values; requests of a joined run that fails are run one by one.
static hth_err run_model(const hth_graph *model, const batch *b, hth_tensor *out)
{
    hth_stage stage;
    assert_true(model->n_inputs <= MAX_INPUTS && model->n_outputs <= MAX_OUTPUTS);
    memset(out, 0, MAX_OUTPUTS * sizeof *out);
    HTH_TRY(hth_specialize(model, b->t, hth_ref_eval, NULL, &stage));
    hth_err err = stage.rest != NULL || stage.value_inputs != 0 ? HTH_EBUSY
                                                                : run_concrete(stage.graph, b, out);
    hth_stage_fini(&stage);
    return err == HTH_EINVAL ? HTH_EDENIED : err;
}

// ---- samples

// Samples `from` to `from + n` of a batch.
static batch batch_part(const batch *b, int from, int n)
{
    batch part = {.n = b->n};
    for (int k = 0; k < b->n; k++) {
        hth_tensor *t = &part.t[k];
        *t = b->t[k];
        size_t row = t->bytes / (size_t)t->shape.dim[0];
        t->bytes = row * (size_t)n;
        t->data = copy_of((char *)b->t[k].data + (size_t)from * row, t->bytes);
        t->shape.dim[0] = n;
    }
    return part;
}

// The same batch, whose other samples are NaN where they are floating-point numbers.
static batch batch_others(const batch *b, int i)
{
    batch others = *b;
    for (int k = 0; k < b->n; k++) {
        hth_tensor *t = &others.t[k];
        size_t row = t->bytes / (size_t)t->shape.dim[0];
        t->data = copy_of(t->data, t->bytes);
        for (int64_t s = 0; s < t->shape.dim[0] && hth_dtype_is_float(t->dtype); s++) {
            if (s != i) {
                memset((char *)t->data + (size_t)s * row, 0xFF, row);
            }
        }
    }
    return others;
}

static void batch_free(batch *b)
{
    tensors_free(b->t, b->n);
}

static bool element_is_nan(hth_dtype dt, const void *p)
{
    float f;
    double d;
    uint16_t h;
    memcpy(&h, p, sizeof h);
    if (dt == HTH_DT_F32) {
        memcpy(&f, p, sizeof f);
        return isnan(f);
    }
    if (dt == HTH_DT_F64) {
        memcpy(&d, p, sizeof d);
        return isnan(d);
    }
    if (dt == HTH_DT_F16) {
        return isnan(hth_f16_to_f32(h));
    }
    return dt == HTH_DT_BF16 && isnan(hth_bf16_to_f32(h));
}

// Does `all` hold the n rows of `part` from row `from` on?
static bool same_rows(const hth_tensor *all, const hth_tensor *part, int from, int n)
{
    size_t size = hth_dtype_bytes(part->dtype);
    if (all->shape.rank < 1 || all->shape.rank != part->shape.rank || part->shape.dim[0] != n ||
        all->dtype != part->dtype || from + n > all->shape.dim[0] ||
        memcmp(all->shape.dim + 1, part->shape.dim + 1,
               (size_t)(part->shape.rank - 1) * sizeof part->shape.dim[0]) != 0) {
        return false;
    }
    const char *a = (const char *)all->data + (size_t)from * (part->bytes / (size_t)n);
    const char *b = part->data;
    for (size_t k = 0; k < part->bytes; k += size) {
        if (memcmp(a + k, b + k, size) != 0 && !(size > 1 && element_is_nan(part->dtype, a + k) &&
                                                 element_is_nan(part->dtype, b + k))) {
            return false;
        }
    }
    return true;
}

typedef enum outcome { EQUAL, DIFFERS, NEVER_RUN } outcome;

static bool whole_shapes(const hth_graph *graph, const hth_tensor *out, int64_t samples)
{
    for (int i = 0; i < graph->n_outputs; i++) {
        if (out[i].shape.rank < 1 || out[i].shape.dim[0] != samples) {
            return false;
        }
    }
    return true;
}

// Says that what a run of a part gave, alone, is what it gives among others: an answer with the
// same rows from row `from` on. The kernels may refuse others' values: then each request is run by
// itself.
static bool same_answer(const hth_graph *model, hth_err own, const hth_tensor *part, hth_err err,
                        const hth_tensor *all, int from, int n)
{
    bool same = own == HTH_OK ? err == HTH_OK || err == HTH_EDENIED : err != HTH_OK;
    for (int k = 0; k < model->n_outputs && own == HTH_OK && err == HTH_OK; k++) {
        same = same && same_rows(&all[k], &part[k], from, n);
    }
    return same;
}

// Samples `from` to `from + n` alone. all: what the batch came to, where `err` is HTH_OK. any: one
// was run.
static bool part_equal(const hth_graph *model, const batch *b, hth_err err, const hth_tensor *all,
                       int from, int n, bool *any)
{
    hth_tensor part[MAX_OUTPUTS], among[MAX_OUTPUTS];
    batch own = batch_part(b, from, n);
    if (n == 0) { // such a request shares no run
        assert_false(hth_independence_covers(own.t, own.n, 0));
        batch_free(&own);
        return true;
    }
    hth_err ran = run_model(model, &own, part);
    bool same = same_answer(model, ran, part, err, all, from, n);
    *any = *any || ran == HTH_OK;
    if (n == 1 && same) {
        batch others = batch_others(b, from);
        hth_err with = run_model(model, &others, among);
        same = same_answer(model, ran, part, with, among, from, n);
        tensors_free(among, MAX_OUTPUTS);
        batch_free(&others);
    }
    tensors_free(part, MAX_OUTPUTS);
    batch_free(&own);
    return same;
}

// The parts' numbers of samples, -1: what is left.
static const int splits[][MAX_SAMPLES] = {{1, 1, 1, 1, 1, 1}, {2, 0, 1, -1}, {0, 1, -1}};

// compare runs a batch, and the parts of some splits of it.
static outcome compare(const hth_graph *model, const batch *b)
{
    hth_tensor all[MAX_OUTPUTS];
    int samples = (int)b->t[0].shape.dim[0];
    hth_err err = run_model(model, b, all);
    outcome result = err == HTH_OK && !whole_shapes(model, all, samples) ? DIFFERS : EQUAL;
    bool any = false;
    for (size_t s = 0; s < sizeof splits / sizeof splits[0]; s++) {
        for (int k = 0, at = 0, n; at < samples && result == EQUAL; k++, at += n) {
            n = splits[s][k] < 0 || at + splits[s][k] > samples ? samples - at : splits[s][k];
            result = part_equal(model, b, err, all, at, n, &any) ? EQUAL : DIFFERS;
        }
    }
    tensors_free(all, MAX_OUTPUTS);
    return result == EQUAL && !any ? NEVER_RUN : result;
}

typedef struct tally {
    int graphs, proven, run, wrong;
    int dependent, differ; // not proven; of those, that do differ
    bool op[HTH_N_OPS];    // operators of which a graph was proven and run
} tally;

static void check(tally *t, const hth_graph *graph, const batch *b, const char *name, bool all)
{
    hth_independence got;
    assert_int_equal(hth_independence_prove(graph, &got), HTH_OK);
    t->graphs++;
    t->proven += got.proven;
    t->dependent += !got.proven;
    if (!got.proven && !all) {
        return;
    }
    outcome o = compare(graph, b);
    t->run += got.proven && o != NEVER_RUN;
    t->differ += !got.proven && o == DIFFERS;
    for (int i = 0; i < graph->n_nodes && got.proven && o == EQUAL; i++) {
        t->op[graph->nodes[i].op] = true;
    }
    if (got.proven && o == DIFFERS) {
        printf("# graph %d is proven, and joined is not what alone is: %s\n", t->graphs, name);
        t->wrong++;
    }
}

// A batch of values that differ, for inputs of floats. open: of dimensions other than the first.
static batch sketch_batch(const hth_graph *graph, int64_t samples, int64_t open)
{
    batch b = {.n = graph->n_inputs};
    for (int i = 0; i < graph->n_inputs; i++) {
        hth_tensor *t = &b.t[i];
        *t = (hth_tensor){.dtype = HTH_DT_F32, .shape = graph->values[graph->inputs[i]].shape};
        for (int d = 0; d < t->shape.rank; d++) {
            t->shape.dim[d] = t->shape.dim[d] < 0 ? open : t->shape.dim[d];
        }
        t->shape.dim[0] = samples;
        t->bytes = (size_t)hth_shape_elements(&t->shape) * sizeof(float);
        t->data = hth_alloc_aligned(t->bytes, 64);
        assert_non_null(t->data);
        for (size_t k = 0; k < t->bytes / sizeof(float); k++) {
            ((float *)t->data)[k] = (float)((k * 37 + (size_t)i * 11) % 29) / 8 - 1.5F;
        }
    }
    return b;
}

// ---- texts of graphs

// Reshapes [N,4] to [N,e] and back by other numbers: as e is not 4, samples meet.
#define BY_E                                                                                       \
    "c=Concat(#-1 e) axis=0; r=Reshape(x c); t=Transpose(r); q=Reshape(t #4,-1); y=Transpose(q); " \
    "-> y"

// "e" is 4 if g is true, else 1, or turned round.
#define THEN_4 "h=Cast(g) to=7; o=Mul(h #3); e=Add(o #1); " BY_E
#define ELSE_4 "h=Cast(g) to=7; o=Mul(h #3); e=Sub(#4 o); " BY_E

#endif
