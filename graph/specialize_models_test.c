// SPDX-License-Identifier: Apache-2.0
// Import, specialization and simplification of exported models:
// ~/.cache/hearth-models/*/NAME.{ts,dyn}.onnx with NAME.x.npy and the expected NAME.*.y.npy. SKIP
// where the folder is absent. Times are printed, and bounded generously.
#include "base/alloc.h"
#include "graph/onnx/onnx.h"
#include "graph/passes/pass.h"
#include "graph/specialize.h"
#include "kernels/kernel.h"
#include "tests/rig/npy_data.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Shape arithmetic that should have been folded: Shape, Size, and everything that makes a few
// integers.
static int left_over(const hth_graph *graph)
{
    int n = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        const hth_node *node = &graph->nodes[i];
        const hth_value *v = &graph->values[node->outputs[0]];
        bool shape = node->op == HTH_OP_SHAPE || node->op == HTH_OP_SIZE;
        if (shape || (v->dtype == HTH_DT_I64 && hth_shape_elements(&v->shape) <= HTH_MAX_RANK)) {
            print_message("  left: %s (%s)\n", node->name, hth_op_name(node->op));
            n++;
        }
    }
    return n;
}

static void check_simplify(hth_graph *graph, const hth_shape *want)
{
    char name[256];
    snprintf(name, sizeof name, "%s", graph->values[graph->outputs[0]].name);
    clock_t start = clock();
    assert_int_equal(hth_pass_simplify(graph), HTH_OK);
    double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
    print_message(" -> %4d in %5.2f ms\n", graph->n_nodes, ms);
    assert_int_equal(hth_graph_check(graph), HTH_OK);
    assert_string_equal(graph->values[graph->outputs[0]].name, name);
    assert_true(hth_shape_equal(&graph->values[graph->outputs[0]].shape, want));
}

static void check_model(const char *path)
{
    char name[512], file[600];
    hth_tensor x, y;
    hth_graph *model;
    hth_stage s;
    snprintf(name, sizeof name, "%.*s", (int)(strlen(path) - strlen(".onnx")), path);
    snprintf(file, sizeof file, "%s.y.npy", name);
    if (!npy_data(file, &y)) {
        return;
    }
    *strrchr(name, '.') = '\0';
    snprintf(file, sizeof file, "%s.x.npy", name);
    assert_true(npy_data(file, &x));
    if (hth_onnx_load_file(path, &model) != HTH_OK) {
        fail_msg("%s: %s", path, hth_err_detail());
    }
    int nodes = model->n_nodes;
    if (hth_fold_model(model, hth_ref_eval, NULL) != HTH_OK) {
        fail_msg("%s: %s", path, hth_err_detail());
    }
    clock_t start = clock();
    if (hth_specialize(model, &x, hth_ref_eval, NULL, &s) != HTH_OK) {
        fail_msg("%s: %s", path, hth_err_detail());
    }
    double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
    print_message("%-34s %5d nodes -> %4d in %7.2f ms", strrchr(path, '/') + 1, nodes,
                  s.graph->n_nodes, ms);
    assert_int_equal(hth_graph_check(s.graph), HTH_OK);
    assert_null(s.rest);
    assert_true(hth_shape_equal(&s.graph->values[s.graph->outputs[0]].shape, &y.shape));
    assert_int_equal(s.graph->values[s.graph->outputs[0]].dtype, y.dtype);
    assert_int_equal(left_over(s.graph), 0);
    assert_true(ms < 2000);
    check_simplify(s.graph, &y.shape);
    hth_stage_fini(&s);
    hth_graph_free(model);
    hth_free(x.data);
    hth_free(y.data);
}

static void test_models(void **state)
{
    char pattern[512];
    glob_t files;
    const char *home = getenv("HOME");
    snprintf(pattern, sizeof pattern, "%s/.cache/hearth-models/*/*.onnx",
             home != NULL ? home : ".");
    if (glob(pattern, 0, NULL, &files) != 0) {
        skip();
    }
    for (size_t i = 0; i < files.gl_pathc; i++) {
        check_model(files.gl_pathv[i]);
    }
    globfree(&files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
