// SPDX-License-Identifier: Apache-2.0
// Inputs of a model: those of a request checked against its signature, and made-up ones for
// questions about it.
#include "runtime/model.h"

#include "base/alloc.h"
#include "base/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// bind_expects writes a signature's shape as clients know it: what is open is -1.
static const char *bind_expects(const hth_shape *shape, char *out, size_t cap)
{
    int n = snprintf(out, cap, "[");
    for (int d = 0; d < shape->rank && n < (int)cap; d++) {
        long long dim = shape->dim[d] < 0 ? -1 : shape->dim[d];
        n += snprintf(out + n, cap - (size_t)n, d > 0 ? ",%lld" : "%lld", dim);
    }
    if (n < (int)cap) {
        snprintf(out + n, cap - (size_t)n, "]");
    }
    return out;
}

// bind_signature lists the inputs, as far as there is room: "'image' FP32 [-1,1,8,8], 'mask' BOOL
// [-1]".
static const char *bind_signature(const hth_model *model, char *out, size_t cap)
{
    const hth_graph *g = model->source.graph;
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < g->n_inputs; i++) {
        char shape[128], one[256];
        const hth_value *v = &g->values[g->inputs[i]];
        int length =
            snprintf(one, sizeof one, "%s'%.80s' %s %s", i > 0 ? ", " : "", v->name,
                     hth_dtype_name(v->dtype), bind_expects(&v->shape, shape, sizeof shape));
        if (n + (size_t)length + 5 > cap) {
            snprintf(out + n, cap - n, ", ..");
            break;
        }
        n += (size_t)snprintf(out + n, cap - n, "%s", one);
    }
    return out;
}

// bind_symbols has one symbol be one size, in all inputs.
static hth_err bind_symbols(const hth_model *model, const hth_value *want, const hth_shape *got,
                            int64_t *symbols)
{
    for (int d = 0; d < want->shape.rank; d++) {
        int64_t w = want->shape.dim[d];
        int64_t *s = w <= -2 ? &symbols[HTH_DIM_TO_SYMBOL(w)] : NULL;
        if (s == NULL || *s < 0) {
            if (s != NULL) {
                *s = got->dim[d];
            }
        } else if (*s != got->dim[d] && d == 0) {
            return hth_fail(HTH_EINVAL,
                            "input '%s' batch size does not match other inputs for '%s': %lld, "
                            "and %lld elsewhere",
                            want->name, model->name, (long long)got->dim[d], (long long)*s);
        } else if (*s != got->dim[d]) {
            return hth_fail(
                HTH_EINVAL,
                "dimension %d of input '%s' for model '%s' is %lld, and %lld elsewhere, "
                "where it must be the same",
                d, want->name, model->name, (long long)got->dim[d], (long long)*s);
        }
    }
    return HTH_OK;
}

static hth_err bind_check(const hth_model *model, const hth_value *want, const hth_tensor *tensor,
                          int64_t *symbols)
{
    char expected[128], got[128];
    if (tensor->dtype != want->dtype) {
        return hth_fail(HTH_EINVAL,
                        "inference input '%s' data-type is '%s', but model '%s' expects '%s', of "
                        "shape %s",
                        want->name, hth_dtype_name(tensor->dtype), model->name,
                        hth_dtype_name(want->dtype),
                        bind_expects(&want->shape, expected, sizeof expected));
    }
    bool fits = want->shape.rank < 0 || want->shape.rank == tensor->shape.rank;
    for (int d = 0; fits && d < want->shape.rank; d++) {
        fits = want->shape.dim[d] < 0 || want->shape.dim[d] == tensor->shape.dim[d];
    }
    if (!fits) {
        return hth_fail(
            HTH_EINVAL, "unexpected shape for input '%s' for model '%s'. Expected %s, got %s",
            want->name, model->name, bind_expects(&want->shape, expected, sizeof expected),
            hth_shape_str(&tensor->shape, got, sizeof got));
    }
    HTH_TRY(bind_symbols(model, want, &tensor->shape, symbols));
    size_t bytes;
    HTH_TRY(hth_tensor_bytes(tensor->dtype, &tensor->shape, HTH_LAYOUT_PLAIN, &bytes));
    if (bytes != tensor->bytes) {
        return hth_fail(
            HTH_EINVAL,
            "input byte size mismatch for input '%s' for model '%s'. Expected %zu, got %zu",
            want->name, model->name, bytes, tensor->bytes);
    }
    if (model->max_batch > 0 && want->shape.rank > 0 && want->shape.dim[0] < 0 &&
        tensor->shape.dim[0] > model->max_batch) {
        return hth_fail(
            HTH_EINVAL,
            "inference request batch-size must be <= %lld for '%s': input '%s' has %lld",
            (long long)model->max_batch, model->name, want->name, (long long)tensor->shape.dim[0]);
    }
    return HTH_OK;
}

typedef struct bind_name {
    const char *name;
    int at;
} bind_name;

static int bind_name_cmp(const void *a, const void *b)
{
    return strcmp(((const bind_name *)a)->name, ((const bind_name *)b)->name);
}

// The request's tensors by name; those without one are left out. NULL: no memory.
static bind_name *bind_sort(const hth_request_tensor *in, int n, int *count)
{
    bind_name *list = hth_alloc(((size_t)n + 1) * sizeof *list);
    *count = 0;
    for (int k = 0; k < n && list != NULL; k++) {
        if (in[k].name != NULL) {
            list[(*count)++] = (bind_name){in[k].name, k};
        }
    }
    if (list != NULL) {
        qsort(list, (size_t)*count, sizeof *list, bind_name_cmp);
    }
    return list;
}

// Which of the request's tensors is called `name`; -1: none, -2: several.
static int bind_find(const bind_name *list, int n, const char *name)
{
    int lo = 0, hi = n;
    while (lo < hi) { // the first that is not below
        int mid = lo + (hi - lo) / 2;
        if (strcmp(list[mid].name, name) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo == n || strcmp(list[lo].name, name) != 0) {
        return -1;
    }
    return lo + 1 < n && strcmp(list[lo + 1].name, name) == 0 ? -2 : list[lo].at;
}

// bind_mismatch says why the request's tensors are not the inputs. An initializer that the file
// lists as an input, too, is one that other runtimes let a request replace.
static hth_err bind_mismatch(const hth_model *model, const bind_name *list, int named, int n)
{
    const hth_graph *g = model->source.graph;
    char all[400];
    for (int i = 0; i < g->n_values; i++) {
        const hth_value *v = &g->values[i];
        if (v->initializer > 0 && bind_find(list, named, v->name) != -1) {
            return hth_fail(HTH_EINVAL,
                            "'%s' is a constant of model '%s' (it has an initializer), not an "
                            "input",
                            v->name, model->name);
        }
    }
    return hth_fail(HTH_EINVAL, "expected %d inputs but got %d inputs for model '%s': %s",
                    g->n_inputs, n, model->name, bind_signature(model, all, sizeof all));
}

hth_err hth_model_bind(const hth_model *model, const hth_request_tensor *in, int n, hth_tensor *out)
{
    const hth_graph *g = model->source.graph;
    char all[400];
    int named;
    bind_name *list = bind_sort(in, n, &named);
    int64_t *symbols = hth_alloc(((size_t)g->n_symbols + 1) * sizeof *symbols);
    if (list == NULL || symbols == NULL) {
        hth_free(list);
        hth_free(symbols);
        return hth_no_memory("a request");
    }
    memset(symbols, -1, ((size_t)g->n_symbols + 1) * sizeof *symbols);
    hth_err err = n == g->n_inputs ? HTH_OK : bind_mismatch(model, list, named, n);
    for (int i = 0; i < g->n_inputs && err == HTH_OK; i++) {
        const hth_value *want = &g->values[g->inputs[i]];
        int at = n == 1 && in[0].name == NULL ? 0 : bind_find(list, named, want->name);
        if (at == -2) {
            err = hth_fail(HTH_EINVAL, "input '%s' already exists in request", want->name);
        } else if (at == -1) {
            err = hth_fail(HTH_EINVAL, "input '%s' of model '%s' is missing (got '%.80s'): %s",
                           want->name, model->name, in[0].name != NULL ? in[0].name : "",
                           bind_signature(model, all, sizeof all));
        } else {
            out[i] = in[at].t;
            err = bind_check(model, want, &in[at].t, symbols);
        }
    }
    hth_free(list);
    hth_free(symbols);
    return err;
}

#define SYNTHETIC_LIMIT 2 // of integers that index no table

// index_limit is below which value the elements of the integers that node reads at input k must
// stay, INT64_MAX: any will do. `limits`: of the values after it.
static int64_t index_limit(const hth_graph *graph, const hth_node *node, int k,
                           const int64_t *limits)
{
    if (node->op == HTH_OP_GATHER && k == 1) {
        const hth_shape *s = &graph->values[node->inputs[0]].shape;
        int axis = hth_node_axis(node, "axis", 0, s->rank);
        return axis >= 0 && s->dim[axis] > 0 ? s->dim[axis] : INT64_MAX;
    }
    bool through = (node->op == HTH_OP_CAST || node->op == HTH_OP_IDENTITY) && k == 0;
    return through && node->outputs[0] >= 0 ? limits[node->outputs[0]] : INT64_MAX;
}

// index_limits is index_limit of every value, NULL without memory: they may index tables. One pass,
// because a model may have a million nodes.
static int64_t *index_limits(const hth_graph *graph)
{
    int64_t *limits = hth_alloc(((size_t)graph->n_values + 1) * sizeof *limits);
    for (int v = 0; limits != NULL && v < graph->n_values; v++) {
        limits[v] = INT64_MAX;
    }
    for (int i = graph->n_nodes - 1; limits != NULL && i >= 0; i--) {
        const hth_node *n = &graph->nodes[i];
        for (int k = 0; k < n->n_inputs; k++) {
            int v = n->inputs[k];
            int64_t limit = v < 0 ? INT64_MAX : index_limit(graph, n, k, limits);
            if (v >= 0 && limit < limits[v]) {
                limits[v] = limit;
            }
        }
    }
    return limits;
}

static uint64_t synthetic_next(uint64_t *state) // splitmix64
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void synthetic_fill(hth_tensor *tensor, int64_t limit, uint64_t *state)
{
    int64_t n = hth_shape_elements(&tensor->shape);
    size_t size = hth_dtype_bytes(tensor->dtype);
    for (int64_t i = 0; i < n; i++) {
        uint64_t r = synthetic_next(state);
        // A sum of four uniforms is near enough to normal: what matters is that no value is
        // special.
        float f = ((float)(r & 0xFFFF) + (float)(r >> 16 & 0xFFFF) + (float)(r >> 32 & 0xFFFF) +
                   (float)(r >> 48)) /
                      37837.0f -
                  3.4641f;
        void *at = (char *)tensor->data + (size_t)i * size;
        double d = f;
        int64_t k = (int64_t)(r % (uint64_t)limit);
        uint16_t half = tensor->dtype == HTH_DT_F16 ? hth_f32_to_f16(f) : hth_f32_to_bf16(f);
        if (tensor->dtype == HTH_DT_F32) {
            memcpy(at, &f, size);
        } else if (tensor->dtype == HTH_DT_F64) {
            memcpy(at, &d, size);
        } else if (hth_dtype_is_float(tensor->dtype)) {
            memcpy(at, &half, size);
        } else {
            memcpy(at, &k, size);
        }
    }
}

// synthetic_shape is input `value` for a batch, without data.
static hth_err synthetic_shape(const hth_model *model, const hth_value *value, int64_t batch,
                               hth_tensor *tensor)
{
    *tensor = (hth_tensor){.dtype = value->dtype, .shape = value->shape};
    if (tensor->shape.rank < 0) {
        return hth_fail(HTH_ENOTSUP, "input '%s' of model '%s' has no rank: give it data",
                        value->name, model->name);
    }
    for (int d = 0; d < tensor->shape.rank; d++) {
        if (tensor->shape.dim[d] < 0) { // batch, image side, or sequence length
            int64_t side = tensor->shape.rank >= 4 ? 224 : 128;
            tensor->shape.dim[d] = d == 0 ? batch : side;
        } else if (d == 0 && batch != tensor->shape.dim[0] && model->max_batch != 0 && batch > 1 &&
                   tensor->shape.rank > 1) {
            return hth_fail(HTH_EINVAL, "the batch of model '%s' is fixed at %lld", model->name,
                            (long long)tensor->shape.dim[0]);
        }
    }
    return hth_tensor_bytes(tensor->dtype, &tensor->shape, HTH_LAYOUT_PLAIN, &tensor->bytes);
}

// synthetic_room says whether the inputs together could be those of a request.
static hth_err synthetic_room(const hth_model *model, int64_t batch, const hth_tensor *inputs)
{
    size_t all = 0, most = (size_t)hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES);
    for (int i = 0; i < model->source.graph->n_inputs; i++) {
        if (__builtin_add_overflow(all, inputs[i].bytes, &all) || all > most) {
            return hth_fail(HTH_ETOOBIG,
                            "a batch of %lld for model '%s' takes more than the %zu bytes that a "
                            "request may bring (limits.message_bytes)",
                            (long long)batch, model->name, most);
        }
    }
    return HTH_OK;
}

static hth_err synthetic_inputs(const hth_model *model, int64_t batch, bool whole,
                                const int64_t *limits, hth_tensor *inputs)
{
    const hth_graph *g = model->source.graph;
    uint64_t state = 1;
    for (int i = 0; i < g->n_inputs; i++) {
        HTH_TRY(synthetic_shape(model, &g->values[g->inputs[i]], batch, &inputs[i]));
    }
    HTH_TRY(whole ? synthetic_room(model, batch, inputs) : HTH_OK);
    for (int i = 0; i < g->n_inputs; i++) {
        hth_tensor *t = &inputs[i];
        if (!whole && t->bytes > HTH_MODEL_GUESS) {
            continue;
        }
        t->data = hth_alloc_aligned(t->bytes, HTH_DEVICE_ALIGN);
        if (t->data == NULL) {
            return hth_no_memory("a synthetic input of %zu bytes", t->bytes);
        }
        int64_t limit = limits[g->inputs[i]];
        synthetic_fill(t, limit < INT64_MAX ? limit : SYNTHETIC_LIMIT, &state);
    }
    return HTH_OK;
}

hth_err hth_model_synthetic(const hth_model *model, int64_t batch, bool whole, hth_tensor *inputs)
{
    int64_t *limits = index_limits(model->source.graph);
    hth_err err = limits != NULL ? synthetic_inputs(model, batch, whole, limits, inputs)
                                 : hth_no_memory("synthetic inputs");
    hth_free(limits);
    return err;
}
