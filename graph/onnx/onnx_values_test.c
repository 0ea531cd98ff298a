// SPDX-License-Identifier: Apache-2.0
// What imported models compute: tests/data/onnx/*.onnx run by the reference kernels, against
// onnxruntime's results in values.txt (made by tests/tools/make_onnx.py). Old forms are thereby
// checked for meaning, not for spelling.
#include "base/alloc.h"
#include "graph/onnx/onnx.h"
#include "graph/specialize.h"
#include "kernels/kernel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DATA      "tests/data/onnx/"
#define MAX_PORTS 16

static double element(const hth_tensor *tensor, int64_t i)
{
    switch (tensor->dtype) {
    case HTH_DT_F32:
        return ((const float *)tensor->data)[i];
    case HTH_DT_F64:
        return ((const double *)tensor->data)[i];
    case HTH_DT_F16:
        return hth_f16_to_f32(((const uint16_t *)tensor->data)[i]);
    case HTH_DT_I64:
        return (double)((const int64_t *)tensor->data)[i];
    case HTH_DT_I32:
        return ((const int32_t *)tensor->data)[i];
    default:
        return ((const uint8_t *)tensor->data)[i];
    }
}

static void set_element(hth_tensor *tensor, int64_t i, double v)
{
    switch (tensor->dtype) {
    case HTH_DT_F32:
        ((float *)tensor->data)[i] = (float)v;
        break;
    case HTH_DT_F64:
        ((double *)tensor->data)[i] = v;
        break;
    case HTH_DT_F16:
        ((uint16_t *)tensor->data)[i] = hth_f32_to_f16((float)v);
        break;
    default:
        fail_msg("no inputs of this type are expected");
    }
}

// read_head reads "dtype rank dims" and gives the tensor room.
static hth_tensor read_head(FILE *file)
{
    hth_tensor t = {0};
    int dtype;
    assert_int_equal(fscanf(file, "%d %d", &dtype, &t.shape.rank), 2);
    t.dtype = (hth_dtype)dtype;
    assert_in_range(t.shape.rank, 0, HTH_MAX_RANK);
    for (int i = 0; i < t.shape.rank; i++) {
        long long dim;
        assert_int_equal(fscanf(file, "%lld", &dim), 1);
        t.shape.dim[i] = dim;
    }
    assert_int_equal(hth_tensor_bytes(t.dtype, &t.shape, HTH_LAYOUT_PLAIN, &t.bytes), HTH_OK);
    t.data = hth_alloc_aligned(t.bytes, 64);
    assert_non_null(t.data);
    return t;
}

// value_view is a value's tensor: a constant's content, or what was computed.
static hth_tensor value_view(const hth_graph *graph, const hth_tensor *computed, int v)
{
    hth_tensor t = {0};
    if (v < 0 || graph->values[v].constant == NULL) {
        return v < 0 ? t : computed[v];
    }
    hth_const *c = graph->values[v].constant;
    const void *data;
    assert_int_equal(hth_const_map(c, &data), HTH_OK);
    return (hth_tensor){
        .dtype = c->dtype, .shape = c->shape, .data = (void *)data, .bytes = c->bytes};
}

static void run_node(const hth_graph *graph, const hth_node *node, hth_tensor *computed)
{
    hth_tensor in[MAX_PORTS], out[MAX_PORTS] = {0};
    for (int i = 0; i < node->n_inputs; i++) {
        in[i] = value_view(graph, computed, node->inputs[i]);
    }
    for (int i = 0; i < node->n_outputs; i++) {
        if (node->outputs[i] >= 0) {
            const hth_value *v = &graph->values[node->outputs[i]];
            out[i] = (hth_tensor){.dtype = v->dtype, .shape = v->shape};
            assert_int_equal(hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &out[i].bytes),
                             HTH_OK);
            out[i].data = hth_alloc_aligned(out[i].bytes, 64);
            computed[node->outputs[i]] = out[i];
        }
    }
    if (hth_ref_eval(NULL, graph, node, in, out) != HTH_OK) {
        fail_msg("%s: %s", node->name, hth_err_detail());
    }
    for (int i = 0; i < node->n_inputs; i++) {
        if (node->inputs[i] >= 0 && graph->values[node->inputs[i]].constant != NULL) {
            hth_const_unmap(graph->values[node->inputs[i]].constant);
        }
    }
}

static void compare(const char *name, const hth_tensor *got, FILE *file)
{
    hth_tensor want = read_head(file);
    assert_int_equal(got->dtype, want.dtype);
    assert_true(hth_shape_equal(&got->shape, &want.shape));
    for (int64_t i = 0; i < hth_shape_elements(&want.shape); i++) {
        double v;
        assert_int_equal(fscanf(file, "%lf", &v), 1);
        if (!(fabs(element(got, i) - v) <= 1e-5 + 1e-5 * fabs(v))) {
            fail_msg("%s: element %lld is %g, not %g", name, (long long)i, element(got, i), v);
        }
    }
    hth_free(want.data);
}

// run_model reads one model's inputs and results from `file` and compares.
static void run_model(const char *name, int n_inputs, int n_outputs, FILE *file)
{
    char path[256];
    hth_graph *model;
    hth_stage s;
    hth_tensor x[MAX_PORTS];
    for (int i = 0; i < n_inputs; i++) {
        x[i] = read_head(file);
        for (int64_t k = 0; k < hth_shape_elements(&x[i].shape); k++) {
            set_element(&x[i], k, (double)(k * 37 % 101 - 50) / 16);
        }
    }
    snprintf(path, sizeof path, DATA "%s.onnx", name);
    if (hth_onnx_load_file(path, &model) != HTH_OK ||
        hth_specialize(model, x, hth_ref_eval, NULL, &s) != HTH_OK) {
        fail_msg("%s: %s", name, hth_err_detail());
    }
    assert_null(s.rest);
    assert_int_equal(s.graph->n_outputs, n_outputs);
    hth_tensor *computed = hth_calloc((size_t)s.graph->n_values, sizeof *computed);
    for (int i = 0; i < n_inputs; i++) {
        computed[s.graph->inputs[i]] = x[i];
    }
    for (int i = 0; i < s.graph->n_nodes; i++) {
        run_node(s.graph, &s.graph->nodes[i], computed);
    }
    for (int i = 0; i < n_outputs; i++) {
        hth_tensor y = value_view(s.graph, computed, s.graph->outputs[i]);
        compare(name, &y, file);
    }
    for (int i = 0; i < s.graph->n_values; i++) {
        hth_free(computed[i].data);
    }
    hth_free(computed);
    hth_stage_fini(&s);
    hth_graph_free(model);
}

static void test_values(void **state)
{
    char name[128];
    int n_inputs, n_outputs, n = 0;
    FILE *f = fopen(DATA "values.txt", "r");
    assert_non_null(f);
    int64_t live = hth_alloc_live();
    while (fscanf(f, "%127s %d %d", name, &n_inputs, &n_outputs) == 3) {
        run_model(name, n_inputs, n_outputs, f);
        n++;
    }
    fclose(f);
    assert_true(n >= 30);
    assert_int_equal(hth_alloc_live(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
