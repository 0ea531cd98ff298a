// SPDX-License-Identifier: Apache-2.0
// Wherever samples are proven independent, joined equals alone: ONNX's node tests with every choice
// of inputs that hold samples, and graphs made at random. The reference kernels compute a batch,
// and each of its samples alone; rows must have the same bits, also when all other samples are NaN.
#include "base/alloc.h"
#include "graph/independence.h"
#include "graph/specialize.h"
#include "graph/test_words.h"
#include "kernels/kernel.h"
#include "tests/rig/ref_cases.h"

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

static hth_err run_nodes(const hth_graph *graph, hth_tensor *tensor)
{
    for (int i = 0; i < graph->n_nodes; i++) {
        const hth_node *n = &graph->nodes[i];
        hth_tensor in[64] = {{0}}, out[16] = {{0}};
        assert_true(n->n_inputs <= 64 && n->n_outputs <= 16);
        for (int k = 0; k < n->n_inputs; k++) {
            in[k] = n->inputs[k] < 0 ? in[k] : tensor[n->inputs[k]];
        }
        for (int k = 0; k < n->n_outputs; k++) {
            out[k] = n->outputs[k] < 0 ? out[k] : tensor[n->outputs[k]];
        }
        HTH_TRY(hth_ref_eval(NULL, graph, n, in, out));
    }
    return HTH_OK;
}

static hth_err run_concrete(const hth_graph *graph, const batch *b, hth_tensor *out)
{
    hth_tensor *v = hth_calloc((size_t)graph->n_values + 1, sizeof *v);
    assert_non_null(v);
    for (int i = 0; i < graph->n_values; i++) {
        const hth_value *val = &graph->values[i];
        v[i] = (hth_tensor){.dtype = val->dtype, .shape = val->shape};
        assert_int_equal(hth_tensor_bytes(val->dtype, &val->shape, HTH_LAYOUT_PLAIN, &v[i].bytes),
                         HTH_OK);
        const void *data = NULL;
        if (val->constant != NULL) {
            assert_int_equal(hth_const_map(val->constant, &data), HTH_OK);
            v[i].data = copy_of(data, v[i].bytes);
            hth_const_unmap(val->constant);
        } else {
            v[i].data = hth_alloc_aligned(v[i].bytes + 64, 64);
            memset(v[i].data, 0xFF, v[i].bytes); // NaN: what is not written shows
        }
    }
    for (int i = 0; i < graph->n_inputs; i++) {
        memcpy(v[graph->inputs[i]].data, b->t[i].data, b->t[i].bytes);
    }
    hth_err err = run_nodes(graph, v);
    for (int i = 0; i < graph->n_outputs && err == HTH_OK; i++) {
        out[i] = v[graph->outputs[i]];
        out[i].data = copy_of(out[i].data, out[i].bytes);
    }
    for (int i = 0; i < graph->n_values; i++) {
        hth_free(v[i].data);
    }
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

// Sample i of a batch.
static batch batch_row(const batch *b, int i)
{
    batch one = {.n = b->n};
    for (int k = 0; k < b->n; k++) {
        hth_tensor *t = &one.t[k];
        *t = b->t[k];
        t->bytes /= (size_t)t->shape.dim[0];
        t->data = copy_of((char *)b->t[k].data + (size_t)i * t->bytes, t->bytes);
        t->shape.dim[0] = 1;
    }
    return one;
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

// Is row i of `all` what `one` holds? One NaN is as good as another.
static bool same_row(const hth_tensor *all, const hth_tensor *one, int i)
{
    size_t size = hth_dtype_bytes(one->dtype);
    if (all->shape.rank < 1 || all->shape.rank != one->shape.rank || one->shape.dim[0] != 1 ||
        all->dtype != one->dtype || i >= all->shape.dim[0] ||
        memcmp(all->shape.dim + 1, one->shape.dim + 1,
               (size_t)(one->shape.rank - 1) * sizeof one->shape.dim[0]) != 0) {
        return false;
    }
    const char *a = (const char *)all->data + (size_t)i * one->bytes, *b = one->data;
    for (size_t k = 0; k < one->bytes; k += size) {
        if (memcmp(a + k, b + k, size) != 0 &&
            !(size > 1 && element_is_nan(one->dtype, a + k) && element_is_nan(one->dtype, b + k))) {
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

static bool may_refuse(hth_err err)
{
    return err == HTH_OK || err == HTH_EDENIED;
}

// compare runs a batch, each of its samples alone, and each among others that are NaN.
static outcome compare(const hth_graph *model, const batch *b)
{
    hth_tensor all[MAX_OUTPUTS], one[MAX_OUTPUTS], among[MAX_OUTPUTS];
    int64_t samples = b->t[0].shape.dim[0];
    hth_err err = run_model(model, b, all);
    outcome result = err == HTH_OK && !whole_shapes(model, all, samples) ? DIFFERS : EQUAL;
    bool any = false;
    for (int i = 0; i < samples && result == EQUAL; i++) {
        batch row = batch_row(b, i), others = batch_others(b, i);
        hth_err own = run_model(model, &row, one);
        hth_err with = run_model(model, &others, among);
        any = any || own == HTH_OK;
        if (own == HTH_OK && !(may_refuse(err) && may_refuse(with))) {
            result = DIFFERS; // it can be run alone, and not with others
        }
        for (int k = 0; k < model->n_outputs && result == EQUAL && own == HTH_OK; k++) {
            bool same = (err != HTH_OK || same_row(&all[k], &one[k], i)) &&
                        (with != HTH_OK || same_row(&among[k], &one[k], i));
            result = same ? EQUAL : DIFFERS;
        }
        tensors_free(one, MAX_OUTPUTS);
        tensors_free(among, MAX_OUTPUTS);
        batch_free(&row);
        batch_free(&others);
    }
    tensors_free(all, MAX_OUTPUTS);
    return result == EQUAL && !any ? NEVER_RUN : result;
}

// ---- ONNX's node tests

// A batch of the case's rows, at least 3 of them: more are made from those that there are.
static hth_tensor widen(const hth_tensor *tensor, int64_t samples)
{
    hth_tensor w = *tensor;
    size_t row = tensor->bytes / (size_t)tensor->shape.dim[0];
    w.shape.dim[0] = samples;
    w.bytes = row * (size_t)samples;
    w.data = hth_alloc_aligned(w.bytes + 64, 64);
    assert_non_null(w.data);
    for (int64_t i = 0; i < samples; i++) {
        char *to = (char *)w.data + (size_t)i * row;
        memcpy(to, (char *)tensor->data + (size_t)(i % tensor->shape.dim[0]) * row, row);
        for (size_t k = 0; k < row / sizeof(float) && i >= tensor->shape.dim[0]; k++) {
            float f;
            memcpy(&f, to + k * sizeof f, sizeof f);
            f = f * -0.75F + 0.125F * (float)i;
            if (tensor->dtype == HTH_DT_F32) {
                memcpy(to + k * sizeof f, &f, sizeof f);
            }
        }
    }
    return w;
}

// case_graph makes a model of the case: inputs in `mask` hold samples, the others are constants.
// false: the case is none with these.
static bool case_graph(const ref_case *c, unsigned mask, hth_graph **out, batch *b)
{
    hth_graph *g;
    int in[REF_CASE_TENSORS], to[REF_CASE_TENSORS], v, node;
    int64_t samples = 0;
    for (int i = 0; i < c->node.n_inputs; i++) {
        const hth_shape *s = &c->in[i].shape;
        if ((mask >> i & 1) == 0) {
            continue;
        }
        if (c->node.inputs[i] < 0 || s->rank < 1 || s->dim[0] < 1 ||
            (samples != 0 && s->dim[0] != samples)) {
            return false;
        }
        samples = s->dim[0];
    }
    if (samples == 0 || samples > MAX_SAMPLES) {
        return false;
    }
    samples = samples < 3 ? 3 : samples;
    *b = (batch){.n = 0};
    assert_int_equal(hth_graph_new(&g), HTH_OK);
    (void)words_symbol(g, "N");
    for (int i = 0; i < c->node.n_inputs; i++) {
        hth_const *k;
        hth_shape s = c->in[i].shape;
        in[i] = -1;
        if (c->node.inputs[i] >= 0 && (mask >> i & 1) != 0) {
            s.dim[0] = HTH_DIM_SYMBOL(0);
            assert_int_equal(hth_graph_add_value(g, NULL, c->in[i].dtype, &s, &in[i]), HTH_OK);
            assert_int_equal(hth_graph_add_input(g, in[i]), HTH_OK);
            b->t[b->n++] = widen(&c->in[i], samples);
        } else if (c->node.inputs[i] >= 0) {
            assert_int_equal(hth_const_new(c->in[i].dtype, &s, c->in[i].data, &k), HTH_OK);
            assert_int_equal(hth_graph_add_const(g, NULL, k, &in[i]), HTH_OK);
        }
    }
    for (int i = 0; i < c->node.n_outputs; i++) {
        to[i] = -1;
        if (c->node.outputs[i] >= 0) {
            assert_int_equal(hth_graph_add_value(g, NULL, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, &v),
                             HTH_OK);
            assert_int_equal(hth_graph_add_output(g, v), HTH_OK);
            to[i] = v;
        }
    }
    assert_int_equal(hth_graph_add_node(g, c->node.op, c->name, in, c->node.n_inputs, to,
                                        c->node.n_outputs, &node),
                     HTH_OK);
    assert_int_equal(hth_node_copy_attrs(&g->nodes[node], &c->node), HTH_OK);
    *out = g;
    return true;
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
        printf("# %s: proven, and joined is not what alone is\n", name);
        t->wrong++;
    }
}

static void test_node_cases(void **state)
{
    ref_cases f;
    ref_case *c = calloc(1, sizeof *c);
    tally t = {.graphs = 0};
    int ops = 0;
    assert_non_null(c);
    assert_true(ref_cases_open(&f, "tests/data/ref_cases.bin"));
    while (ref_cases_next(&f, c)) {
        int n = c->node.n_inputs < 6 ? c->node.n_inputs : 6;
        for (unsigned mask = 1; mask < 1U << n && c->node.n_outputs <= MAX_OUTPUTS; mask++) {
            hth_graph *g;
            batch b;
            if (case_graph(c, mask, &g, &b)) {
                check(&t, g, &b, c->name, true);
                batch_free(&b);
                hth_graph_free(g);
            }
        }
        ref_case_clear(c);
    }
    ref_case_clear(c);
    assert_false(f.bad);
    ref_cases_close(&f);
    free(c);
    for (int op = 0; op < HTH_N_OPS; op++) {
        ops += t.op[op];
    }
    printf("# %d one-node models, %d proven, %d run, of %d operators; %d not proven, of which %d "
           "differ\n",
           t.graphs, t.proven, t.run, ops, t.dependent, t.differ);
    assert_int_equal(t.wrong, 0);
    assert_true(t.run > 600 && ops > 120); // it does look
    assert_true(t.differ > 900);           // .. and sees
}

// ---- graphs made at random
//
// Each is a text (graph/test_words.h) that grows by one idea at a time. An idea that the shape
// inference refuses, for one, two or three samples, is dropped; most of the others mix samples.

#ifndef GRAPHS // -DGRAPHS=150000: two minutes, no differences were found
#define GRAPHS 1500
#endif
#define IDEAS      9
#define TEXT       4096
#define MAX_VALUES 64

typedef struct known {
    char name[12];
    hth_dtype dtype;
    hth_shape s; // of three samples
} known;

typedef struct sketch {
    char text[TEXT];
    known v[MAX_VALUES];
    int n, named;
    uint64_t state;
} sketch;

static unsigned draw(sketch *k, unsigned n)
{
    uint64_t z = k->state += 0x9E3779B97F4A7C15u; // splitmix64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (unsigned)((z ^ z >> 31) % n);
}

static const char *one_of(sketch *k, const char *const *list, unsigned n)
{
    return list[draw(k, n)];
}
#define ONE_OF(k, ...)                                                                             \
    one_of(k, (const char *const[]){__VA_ARGS__},                                                  \
           sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

// A value of floats, one of the later ones rather.
static const known *pick(sketch *k)
{
    for (int tries = 0; tries < 64; tries++) {
        int back = (int)draw(k, draw(k, 2) == 0 ? 3 : (unsigned)k->n);
        const known *v = &k->v[back < k->n ? k->n - 1 - back : 0];
        if (v->dtype == HTH_DT_F32) {
            return v;
        }
    }
    return &k->v[0];
}

static int64_t dim_from_end(const known *v, int back)
{
    return v->s.rank > back ? v->s.dim[v->s.rank - 1 - back] : 1;
}

static int axis_of(sketch *k, const known *v)
{
    return v->s.rank > 0 ? (int)draw(k, (unsigned)v->s.rank) : 0;
}

// idea_shape writes a target for Reshape.
static void idea_shape(sketch *k, const known *v, char out[64])
{
    long long last = dim_from_end(v, 0), next = dim_from_end(v, 1);
    switch (draw(k, 9)) {
    case 0:
        snprintf(out, 64, "#-1");
        break;
    case 1:
        snprintf(out, 64, "#0,-1");
        break;
    case 2:
        snprintf(out, 64, "#-1,%lld", last);
        break;
    case 3:
        snprintf(out, 64, "#1,-1");
        break;
    case 4:
        snprintf(out, 64, "#-1,1,%lld", last);
        break;
    case 5:
        snprintf(out, 64, "#-1,%lld,%lld", next, last);
        break;
    case 6:
        snprintf(out, 64, "#%lld,-1", last);
        break;
    case 7:
        snprintf(out, 64, "#0,%lld,%d", last % 2 == 0 ? last / 2 : last, last % 2 == 0 ? 2 : 1);
        break;
    default:
        snprintf(out, 64, "#-1,%d", 1 + (int)draw(k, 6));
    }
}

static void idea_moves(sketch *k, char *t, size_t cap, const char *y)
{
    const known *v = pick(k), *w = pick(k);
    char shape[64];
    int perm[HTH_MAX_RANK], a = axis_of(k, v);
    switch (draw(k, 11)) {
    case 0: {
        int at = snprintf(t, cap, "%s=Transpose(%s) perm=", y, v->name);
        for (int d = 0; d < v->s.rank; d++) {
            perm[d] = d;
        }
        for (int d = 0; d < v->s.rank; d++) {
            int other = (int)draw(k, (unsigned)v->s.rank), kept = perm[d];
            perm[d] = perm[other];
            perm[other] = kept;
        }
        for (int d = 0; d < v->s.rank; d++) {
            at += snprintf(t + at, cap - (size_t)at, d > 0 ? ",%d" : "%d", perm[d]);
        }
        break;
    }
    case 1:
    case 2:
        idea_shape(k, v, shape);
        snprintf(t, cap, "%s=Reshape(%s %s)", y, v->name, shape);
        break;
    case 3:
        snprintf(t, cap, "%s_s=Shape(%s); %s=Reshape(%s %s_s)", y, w->name, y, v->name, y);
        break;
    case 4:
        snprintf(t, cap, "%s=Flatten(%s) axis=%d", y, v->name, (int)draw(k, 4));
        break;
    case 5:
        snprintf(t, cap, "%s=Unsqueeze(%s #%d)", y, v->name, (int)draw(k, 3));
        break;
    case 6:
        snprintf(t, cap, "%s=Squeeze(%s #%d)", y, v->name, a);
        break;
    case 7:
        snprintf(t, cap, "%s_s=Shape(%s); %s=Expand(%s %s_s)", y, w->name, y, v->name, y);
        break;
    case 8:
        snprintf(t, cap,
                 "%s_s=Shape(%s); %s_n=Gather(%s_s #%d); %s_c=Concat(%s_n #-1) axis=0; "
                 "%s=Reshape(%s %s_c)",
                 y, w->name, y, y, axis_of(k, w), y, y, y, v->name, y);
        break;
    case 9:
        snprintf(t, cap, "%s_s=Shape(%s); %s_t=Tile(#f1 #%d); %s=Add(%s %s_t)", y, v->name, y,
                 1 + (int)draw(k, 3), y, v->name, y);
        break;
    default:
        snprintf(t, cap, "%s_s=Shape(%s); %s_c=ConstantOfShape(%s_s); %s=Add(%s %s_c)", y, w->name,
                 y, y, y, v->name, y);
    }
}

static void idea_lines(sketch *k, char *t, size_t cap, const char *y)
{
    const known *v = pick(k), *w = pick(k);
    int a = axis_of(k, v);
    switch (draw(k, 13)) {
    case 0:
        snprintf(t, cap, "%s=%s(%s) axis=%d", y,
                 ONE_OF(k, "Softmax", "LogSoftmax", "Hardmax", "LpNormalization"), v->name, a);
        break;
    case 1:
        snprintf(t, cap, "%s=%s(%s #%d) keepdims=%d", y,
                 ONE_OF(k, "ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"), v->name, a,
                 (int)draw(k, 2));
        break;
    case 2:
        snprintf(t, cap, "%s=CumSum(%s #s%d)", y, v->name, a);
        break;
    case 3:
        snprintf(t, cap, "%s=Concat(%s %s) axis=%d", y, v->name, w->name, a);
        break;
    case 4:
        snprintf(t, cap, "%s=Slice(%s #%d #%s #%d)", y, v->name, (int)draw(k, 2),
                 ONE_OF(k, "9223372036854775807", "2147483647", "1", "-1"), a);
        break;
    case 5:
        snprintf(t, cap, "%s=Gather(%s #%s) axis=%d", y, v->name, ONE_OF(k, "0", "0,0", "-1", "s0"),
                 a);
        break;
    case 6:
        snprintf(t, cap, "%s %s_i=TopK(%s #1) axis=%d", y, y, v->name, a);
        break;
    case 7:
        snprintf(t, cap, "%s=LayerNormalization(%s #f%lld) axis=%d", y, v->name,
                 (long long)dim_from_end(v, 0), (int)draw(k, 2) == 0 ? -1 : a);
        break;
    case 8:
        snprintf(t, cap, "%s_a %s_b=Split(%s) axis=%d num_outputs=2; %s=Concat(%s_b %s_a) axis=%d",
                 y, y, v->name, a, y, y, y, a);
        break;
    case 9:
        snprintf(t, cap, "%s_i=ArgMax(%s) axis=%d keepdims=1; %s=GatherElements(%s %s_i) axis=%d",
                 y, v->name, a, y, v->name, y, a);
        break;
    case 10:
        snprintf(t, cap, "%s=Tile(%s #%s)", y, v->name, ONE_OF(k, "1,2", "2,1", "1,1,2", "1,2,1"));
        break;
    case 11:
        snprintf(t, cap, "%s=Trilu(%s)", y, v->name);
        break;
    default:
        snprintf(t, cap, "%s=BatchNormalization(%s #f%lld #f%lld #f%lld #f%lld)", y, v->name,
                 (long long)(v->s.rank > 1 ? v->s.dim[1] : 1),
                 (long long)(v->s.rank > 1 ? v->s.dim[1] : 1),
                 (long long)(v->s.rank > 1 ? v->s.dim[1] : 1),
                 (long long)(v->s.rank > 1 ? v->s.dim[1] : 1));
    }
}

static void idea_joins(sketch *k, char *t, size_t cap, const char *y)
{
    const known *v = pick(k), *w = pick(k);
    long long last = dim_from_end(v, 0), next = dim_from_end(v, 1);
    const char *op = ONE_OF(k, "Add", "Mul", "Sub", "Max");
    switch (draw(k, 13)) {
    case 0:
        snprintf(t, cap, "%s=%s(%s)", y, ONE_OF(k, "Relu", "Neg", "Sigmoid", "Abs"), v->name);
        break;
    case 1:
    case 2:
        snprintf(t, cap, "%s=%s(%s %s)", y, op, v->name, w->name);
        break;
    case 3:
        snprintf(t, cap, "%s=%s(%s #f%lld)", y, op, v->name, draw(k, 3) == 0 ? 1 : last);
        break;
    case 4:
        snprintf(t, cap, "%s=%s(#f%lld,%lld %s)", y, op, draw(k, 2) == 0 ? 1 : next, last, v->name);
        break;
    case 5:
        snprintf(t, cap, "%s=MatMul(%s #f%lld,%d)", y, v->name, last, 1 + (int)draw(k, 4));
        break;
    case 6:
        snprintf(t, cap, "%s=MatMul(%s %s)", y, v->name, w->name);
        break;
    case 7:
        snprintf(t, cap, "%s=Gemm(%s %s) transA=%d transB=%d", y, v->name, w->name, (int)draw(k, 2),
                 (int)draw(k, 2));
        break;
    case 8:
        snprintf(t, cap, "%s=Einsum(%s %s) equation='%s'", y, v->name, w->name,
                 ONE_OF(k, "ij,jk->ik", "ij,kj->ik", "ij,ij->i", "ij,ij->ij", "bij,bjk->bik",
                        "bij,bkj->bik", "bi,bj->bij", "ij,ik->jk", "...i,...i->..."));
        break;
    case 9:
        snprintf(t, cap, "%s_g=Greater(%s #v0); %s=Where(%s_g %s %s)", y, v->name, y, y, v->name,
                 w->name);
        break;
    case 10:
        snprintf(t, cap,
                 "%s_s=Shape(%s); %s_n=Gather(%s_s #s%d); %s_f=Cast(%s_n) to=1; "
                 "%s=%s(%s %s_f)",
                 y, w->name, y, y, axis_of(k, w), y, y, y, op, v->name, y);
        break;
    case 11:
        snprintf(t, cap,
                 "%s_s=Shape(%s) end=1; %s_n=Squeeze(%s_s #0); %s_r=Range(#s0 %s_n #s1); "
                 "%s=Gather(%s %s_r) axis=%d",
                 y, v->name, y, y, y, y, y, w->name, y, axis_of(k, w));
        break;
    default:
        snprintf(t, cap,
                 "%s_s=Shape(%s) end=1; %s_n=Squeeze(%s_s #0); %s_r=Range(#s0 %s_n #s1); "
                 "%s_u=Unsqueeze(%s_r #1); %s_i=ArgMax(%s) axis=1 keepdims=1; "
                 "%s_c=Concat(%s_u %s_i) axis=1; %s=GatherND(%s %s_c)",
                 y, v->name, y, y, y, y, y, y, y, v->name, y, y, y, y, w->name, y);
    }
}

static batch sketch_batch(const hth_graph *graph, int64_t samples)
{
    batch b = {.n = graph->n_inputs};
    for (int i = 0; i < graph->n_inputs; i++) {
        hth_tensor *t = &b.t[i];
        *t = (hth_tensor){.dtype = HTH_DT_F32, .shape = graph->values[graph->inputs[i]].shape};
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

// sketch_take has `text` be the sketch, if its shapes can be inferred and stay small.
static bool sketch_take(sketch *k, const char *text)
{
    hth_graph *g = words_graph(text);
    bool fits = true;
    for (int v = 0; v < g->n_values; v++) {
        if (g->values[v].producer >= 0) {
            assert_int_equal(hth_graph_add_output(g, v), HTH_OK);
        }
    }
    for (int64_t samples = 1; samples <= 3 && fits; samples++) {
        batch b = sketch_batch(g, samples);
        hth_stage stage;
        fits = hth_specialize(g, b.t, hth_ref_eval, NULL, &stage) == HTH_OK;
        fits = fits && stage.rest == NULL && stage.value_inputs == 0;
        for (int i = 0; fits && i < stage.graph->n_outputs; i++) {
            fits = hth_shape_elements(&stage.graph->values[stage.graph->outputs[i]].shape) < 4096;
        }
        if (fits && samples == 3) {
            k->n = 0;
            for (int i = 0; i < g->n_inputs; i++) {
                snprintf(k->v[k->n].name, sizeof k->v[0].name, "%s", g->values[g->inputs[i]].name);
                k->v[k->n].dtype = HTH_DT_F32;
                k->v[k->n++].s = b.t[i].shape;
            }
            for (int i = 0; i < g->n_outputs && k->n < MAX_VALUES; i++) {
                const hth_value *v = &stage.graph->values[stage.graph->outputs[i]];
                snprintf(k->v[k->n].name, sizeof k->v[0].name, "%s", g->values[g->outputs[i]].name);
                k->v[k->n].dtype = v->dtype;
                k->v[k->n++].s = v->shape;
            }
            snprintf(k->text, sizeof k->text, "%s", text);
        }
        hth_stage_fini(&stage);
        batch_free(&b);
    }
    hth_graph_free(g);
    return fits;
}

static void sketch_grow(sketch *k)
{
    char idea[768], text[TEXT + 1024], y[8];
    for (int tries = 0; tries < 12; tries++) {
        snprintf(y, sizeof y, "t%d", k->named++ % 1000);
        switch (draw(k, 3)) {
        case 0:
            idea_moves(k, idea, sizeof idea, y);
            break;
        case 1:
            idea_lines(k, idea, sizeof idea, y);
            break;
        default:
            idea_joins(k, idea, sizeof idea, y);
        }
        size_t n = strlen(k->text);
        if (n + strlen(idea) + 3 < TEXT) {
            snprintf(text, sizeof text, "%s; %s", k->text, idea);
            if (sketch_take(k, text)) {
                return;
            }
        }
    }
}

static void sketch_check(sketch *k, tally *t)
{
    char text[TEXT + 64];
    // The last value, and often one before: an output that fits does not excuse one that does not.
    snprintf(text, sizeof text, "%s; -> %s", k->text, k->v[k->n - 1].name);
    if (draw(k, 3) == 0) {
        snprintf(text, sizeof text, "%s; -> %s %s", k->text, k->v[k->n - 1].name, pick(k)->name);
    }
    hth_graph *g = words_graph(text);
    batch b = sketch_batch(g, 5);
    check(t, g, &b, text, k->state % 4 == 0);
    batch_free(&b);
    hth_graph_free(g);
}

static void test_random_graphs(void **state)
{
    static const char *const inputs[] = {
        "x:N,4", "x:N,2,3; z:N,4", "x:N; z:N,4", "x:N,1,4; z:N,4,2", "x:N,3,3", "x:N,6; z:N,6"};
    tally t = {.graphs = 0};
    sketch *k = calloc(1, sizeof *k);
    assert_non_null(k);
    for (int i = 0; i < GRAPHS; i++) {
        *k = (sketch){.state = (uint64_t)i << 20};
        assert_true(sketch_take(
            k, ONE_OF(k, inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], inputs[5])));
        int ideas = 1 + (int)draw(k, IDEAS);
        for (int n = 0; n < ideas; n++) {
            sketch_grow(k);
            if (n + 1 == ideas || draw(k, 3) == 0) {
                sketch_check(k, &t);
            }
        }
    }
    free(k);
    printf("# %d graphs, %d proven, %d run; %d not proven, of which %d of a quarter differ\n",
           t.graphs, t.proven, t.run, t.dependent, t.differ);
    assert_int_equal(t.wrong, 0);
    assert_true(t.run > 400 && t.differ > 200);
}

// ---- graphs that come close
//
// In each, a fact that is nearly true would be enough for the proof.

// All positions of a tensor hold the same: its samples lie as those of what it meets, not as its
// own shape says. "f" is [2 * N, ..] with the samples apart: sample 0, 1, .., 0, 1, ..
#define APART_X   "x:N,2,4; t=Transpose(x) perm=1,0,2; f=Reshape(t #-1,4); "
#define EQUAL_4   "s=Shape(f); c=ConstantOfShape(s); "
#define ALIKE_4   "s=Shape(f); c=Expand(#v1,2,3,4 s); "
#define PAIRS_8   "y=Reshape(g #-1,8); -> y"
#define LENGTHS_2 "x:N,2,4; a=ArgMax(x) axis=2 keepdims=0; t=Transpose(a); l=Reshape(t #-1); "
// Reshapes [N,4] to [N,e] and back by other numbers: as e is not 4, samples meet.
#define BY_E                                                                                       \
    "c=Concat(#-1 e) axis=0; r=Reshape(x c); t=Transpose(r); q=Reshape(t #4,-1); y=Transpose(q); " \
    "-> y"

// u is a vector with a 0, which nothing but the run knows. "e" is 4 if g is true, else 1, or turned
// round.
#define HIDDEN_0 "a=Sin(#v0); b=Cast(a) to=7; u=Identity(b); "
#define THEN_4   "h=Cast(g) to=7; o=Mul(h #3); e=Add(o #1); " BY_E
#define ELSE_4   "h=Cast(g) to=7; o=Mul(h #3); e=Sub(#4 o); " BY_E
// m = 2 * u is 4, as u is 2 - 2^63. z has m elements; its half is not u.
#define HIDDEN_4 "v=BitwiseOr(#-9223372036854775806 #0); u=Identity(v); m=Mul(u #2); "
#define HALF_Z   "w=Reshape(z #2,-1); s=Shape(w); d=Gather(s #1); g=Equal(d u); " THEN_4

static const char *const close_calls[] = {
    APART_X EQUAL_4 "i=Cast(c) to=7; g=GatherElements(f i) axis=1; " PAIRS_8,
    APART_X EQUAL_4 "i=Cast(c) to=7; g=ScatterElements(c i f) axis=1; " PAIRS_8,
    APART_X "s=Shape(f) end=1; d=Concat(s #1) axis=0; z=ConstantOfShape(d); i=Cast(z) to=7; "
            "g=GatherND(f i) batch_dims=1; y=Reshape(g #-1,2); -> y",
    APART_X ALIKE_4 "g=Einsum(f c) equation='ij,ij->ij'; " PAIRS_8,
    APART_X ALIKE_4 "g=Einsum(c f) equation='ij,ij->ij'; " PAIRS_8,
    "x:N,2; t=Transpose(x); f=Reshape(t #-1); u=Unsqueeze(f #0); s=Shape(u); "
    "c=ConstantOfShape(s); z=Unsqueeze(#0 #0); g=ScatterND(c z u); y=Reshape(g #-1,2); -> y",
    LENGTHS_2 "k=Add(l #s1); s=Shape(l); d=Concat(s #4) axis=0; e=Expand(#v1,2,3,4 d); "
              "g=ReverseSequence(e k) batch_axis=0 time_axis=1; " PAIRS_8,
    "x:N,2,2; t=Transpose(x) perm=1,0,2; f=Reshape(t #1,-1,2); s=Shape(f); c=ConstantOfShape(s); "
    "_ h=RNN(c #f1,2,2 #f1,2,2 _ _ f) hidden_size=2; y=Reshape(h #-1,4); -> y",
    "x:N,2,3,4; t=Transpose(x) perm=1,0,2,3; f=Reshape(t #-1,3,4); s=Shape(f); "
    "c=ConstantOfShape(s); g=Attention(c f f) q_num_heads=1 kv_num_heads=1; "
    "y=Reshape(g #-1,24); -> y",
    "x:N,2,1,3,3; t=Transpose(x) perm=1,0,2,3,4; f=Reshape(t #-1,1,3,3); s=Shape(f); "
    "c=ConstantOfShape(s); v=Expand(#f3,3 s); g=Attention(c c v f); y=Reshape(g #-1,18); -> y",
    "x:N,2,2,2,2; t=Transpose(x) perm=1,0,2,3,4; f=Reshape(t #-1,2,2,2); s=Shape(f) end=1; "
    "d=Concat(s #1,3,3) axis=0; i=Expand(#f1,1,3,3 d); g=GridSample(i f); y=Reshape(g #-1,8); -> y",
    APART_X EQUAL_4 "h=Reshape(x #-1,4); k=Concat(c f h) axis=1; r=Reshape(k #2,-1,12); "
                    "y=Transpose(r) perm=1,0,2; -> y",
    // numbers of samples in a type that does not have them
    "x:N,4; s=Shape(x) end=1; n=Squeeze(s #0); r=Range(#s0 n #s1); b=Cast(r) to=9; j=Cast(b) to=7; "
    "y=Gather(x j); -> y",
    "x:N,4; s=Shape(x) end=1; n=Squeeze(s #0); r=Range(#s0 n #s1); u=Unsqueeze(r #1); "
    "b=Cast(u) to=9; j=Cast(b) to=7; y=GatherND(x j); -> y",
    // what is read, and is no shape
    "x:N,8; s=Shape(x); n=Slice(s #0 #1); f=Cast(n) to=1; h=Div(f #v16); "
    "r=Concat(#v0 h #v1,1) axis=0; "
    "y=Resize(x r _ s) coordinate_transformation_mode='tf_crop_and_resize' mode='linear'; -> y",
    // int32, which wraps around
    "x:N,4; s=Shape(x) end=1; i=Cast(s) to=6; k=Cast(#1073741824) to=6; m=Mul(i k); d=Div(m k); "
    "n=Cast(d) to=7; c=Concat(n #-1) axis=0; r=Reshape(x c); t=Transpose(r); q=Reshape(t #4,-1); "
    "y=Transpose(q); -> y",
    "x:N,4; s=Shape(x) end=1; i=Cast(s) to=6; k=Cast(#1073741824) to=6; m=Mul(i k); j=Cast(m) "
    "to=7; "
    "n=Div(j #1073741824); c=Concat(n #-1) axis=0; r=Reshape(x c); t=Transpose(r); "
    "q=Reshape(t #4,-1); y=Transpose(q); -> y",
    "x:N,4; s=Shape(x) end=1; i=Cast(s) to=6; k=Cast(#536870912) to=6; m=Mul(i k); "
    "l=Cast(#-1) to=6; g=Greater(m l); h=Cast(g) to=7; o=Mul(h #3); e=Add(o #1); " BY_E,
    "x:N,4; s=Shape(x) end=1; m=Mul(s #2305843009213693952); g=Greater(m #-1); h=Cast(g) to=7; "
    "o=Mul(h #3); e=Add(o #1); " BY_E,
    "x:N,4; s=Shape(x) end=1; m=Mul(s #4611686018427387904); n=Div(m #4611686018427387904); "
    "c=Concat(n #-1) axis=0; r=Reshape(x c); t=Transpose(r); q=Reshape(t #4,-1); "
    "y=Transpose(q); -> y",
    "x:N,4; s=Shape(x) end=1; m=Mul(s #1073741824); i=Cast(m) to=6; k=Cast(#1073741824) to=6; "
    "d=Div(i k); n=Cast(d) to=7; c=Concat(n #-1) axis=0; r=Reshape(x c); t=Transpose(r); "
    "q=Reshape(t #4,-1); y=Transpose(q); -> y",
    "x:N,4; k=Cast(#4294967294) to=6; e=Cast(k) to=7; y=Slice(x #0 e #0); -> y",
    "x:N,4; k=Cast(#2147483647,2147483647) to=6; m=ReduceSum(k #0) keepdims=1; e=Cast(m) to=7; "
    "y=Slice(x #0 e #0); -> y",
    // two results that differ in their attributes, their type, or the sign of a zero
    "x:N,4; a=Mod(#-7 #3); b=Mod(#-7 #3) fmod=1; d=Sub(a b); e=Sub(#4 d); " BY_E,
    "x:N,4; a=Cast(#v1) to=11; b=Cast(#v49) to=11; f=Div(a b); g=Mul(f b); h=Cast(g) to=7; "
    "i=Div(#v1 #v49); j=Mul(i #v49); k=Cast(j) to=7; d=Sub(k h); m=Mul(d #3); e=Sub(#4 m); " BY_E,
    "x:N,4; z=Mul(#v0 #v-1); a=Div(#v1 z); b=Div(#v1 #v0); g=Greater(a #v0); h=Greater(b #v0); "
    "i=Cast(g) to=7; j=Cast(h) to=7; d=Sub(j i); m=Mul(d #3); e=Sub(#4 m); " BY_E,
    "x:N,4; z=Neg(#v0); a=Div(#v1 z); b=Div(#v1 #v0); g=Greater(a #v0); h=Greater(b #v0); "
    "i=Cast(g) to=7; j=Cast(h) to=7; d=Sub(j i); m=Mul(d #3); e=Sub(#4 m); " BY_E,
    // Reshape by 0 copies a dimension, by -1 it is what is left: N becomes 1, what is e is 4
    "x:N,4; " HIDDEN_0 "s=Shape(x) end=1; p=Mul(s u); m=Mul(p #4); t=Transpose(x); "
    "c=Concat(m #-1) axis=0; f=Reshape(t c); r=ReduceSum(f #1) keepdims=1; d=Unsqueeze(r #2); "
    "k=Concat(#4,-1 u) axis=0; h=Reshape(d k); w=Transpose(h) perm=1,0,2; "
    "v=ReduceSum(w #2) keepdims=0; y=Add(x v); -> y",
    "x:N,4; " HIDDEN_0 "n=Sub(u #1); s=Shape(x) end=1; k=Concat(s n) axis=0; f=Reshape(x k); "
    "l=Shape(f); d=Gather(l #1); g=Equal(d n); " THEN_4,
    // the least integer has no absolute value, and sums become negative
    "x:N,4; a=Abs(#-9223372036854775808); g=Less(a #-1); " ELSE_4,
    "x:N,4; u=BitwiseOr(#4611686018427387904 #0); a=Abs(u); v=BitwiseOr(#4611686018427387905 #0); "
    "b=Abs(v); s=Add(a b); g=Less(s #-1); " ELSE_4,
    "x:N,4; u=BitwiseOr(#9223372036854775807 #0); a=Relu(u); f=Cast(a) to=1; b=Cast(f) to=7; "
    "g=Less(b #-1); " ELSE_4,
    // a filter of a length that is not known
    "x:N,4; " HIDDEN_0 "k=Add(u #2); l=Concat(#1,1 k) axis=0; w=ConstantOfShape(l); "
    "i=Reshape(#f3 #1,1,3); z=ConvTranspose(i w); s=Shape(z); d=Gather(s #2); g=Equal(d "
    "#4098); " THEN_4,
    // 0 / 0
    "x:N,4; " HIDDEN_0 "h=Div(u u); o=Mul(h #3); e=Add(o #1); " BY_E,
    "x:N,4; a=Cast(#0,0) to=9; k=Compress(#5,6 a); u=Shape(k); s=Shape(x) end=1; m=Mul(s u); "
    "d=Div(m u); g=Equal(d s); " THEN_4,
    // half of 2^40 is 0 in int32
    "x:N,4; u=BitwiseOr(#1099511627776 #0); l=Concat(u #0) axis=0; z=ConstantOfShape(l); "
    "v w=Split(z) axis=0 num_outputs=2; s=Shape(v); d=Gather(s #0); i=Cast(d) to=6; "
    "j=Cast(i) to=7; g=Equal(d j); " THEN_4,
    // 0 and 1 broadcast to 0
    "x:N,4; " HIDDEN_0 "k=Add(u #1); l=Identity(k); v=ConstantOfShape(u); w=ConstantOfShape(l); "
    "z=Add(v w); s=Shape(z); m=Max(u l); g=Equal(s m); " THEN_4,
    "x:N,4; " HIDDEN_0 "k=Add(u #1); l=Identity(k); m=Min(u l); v=ConstantOfShape(m); "
    "w=ConstantOfShape(l); z=Add(v w); s=Shape(z); g=Equal(s l); " THEN_4,
    // Reshape has no elements left for -1 where there are none
    "x:N,4; " HIDDEN_0 "z=ConstantOfShape(u); l=Concat(u #-1) axis=0; w=Reshape(z l); s=Shape(w); "
    "d=Gather(s #1); g=Equal(d #1); " THEN_4,
    "x:N,4; " HIDDEN_0 "s=Shape(x) end=1; k=Concat(s u) axis=0; z=ConstantOfShape(k); "
    "l=Concat(#-1 u) axis=0; w=Reshape(z l); d=Shape(w) end=1; g=Equal(d s); " THEN_4,
    // what is never computed holds nothing
    "x:N,4; " HIDDEN_0 "v=Sub(u #2); k=Identity(v); w=Add(u #6); l=Identity(w); "
    "z=ConstantOfShape(l); i=Concat(k #-1) axis=0; _=Reshape(z i); d=Div(l k); g=Less(d "
    "#-1); " ELSE_4,
    "x:N,4; " HIDDEN_0 "v=Sub(u #2); k=Identity(v); w=Sub(u #6); l=Identity(w); "
    "z=ConstantOfShape(l); _=Expand(z k); m=Max(k l); g=Less(m #-1); " ELSE_4,
    // a product that wrapped around is no length
    "x:N,4; " HIDDEN_4 "z=ConstantOfShape(m); " HALF_Z,
    "x:N,4; " HIDDEN_4 "z=Tile(#f1 m); " HALF_Z,
    "x:N,4; " HIDDEN_4 "z=Expand(#f1 m); " HALF_Z,
    "x:N,4; " HIDDEN_4 "z=Reshape(#f4 m); " HALF_Z,
    "x:N,4; " HIDDEN_4 "z l=TopK(#f4 m); " HALF_Z,
    "x:N,4; " HIDDEN_4 "z=Split(#f4 m) axis=0; " HALF_Z,
    "x:N,4; " HIDDEN_4 "k=Squeeze(m); z=OneHot(#s1 k #v0,1); " HALF_Z,
    "x:N,4; " HIDDEN_4 "z=Resize(#f4 _ _ m) mode='nearest'; " HALF_Z,
};

static void test_close_calls(void **state)
{
    tally t = {.graphs = 0};
    int same = 0;
    for (size_t i = 0; i < sizeof close_calls / sizeof close_calls[0]; i++) {
        hth_graph *g = words_graph(close_calls[i]);
        batch b = sketch_batch(g, 5);
        int differ = t.differ + t.wrong;
        check(&t, g, &b, close_calls[i], true);
        if (t.differ + t.wrong == differ) {
            printf("# joined is what alone is: %s\n", close_calls[i]);
            same++;
        }
        batch_free(&b);
        hth_graph_free(g);
    }
    assert_int_equal(same, 0); // the test looks at what it is to look at
    assert_int_equal(t.wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_node_cases),
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_close_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
