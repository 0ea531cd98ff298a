// SPDX-License-Identifier: Apache-2.0
// What the importer makes of small files written by the onnx package (tests/tools/make_onnx.py):
// each old form against the newest form, written by hand from the operators' documentation.
#include "graph/onnx/onnx.h"

#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/data/onnx/"

static char text[8192];

static void say(const char *fmt, ...)
{
    va_list ap;
    size_t n = strlen(text);
    va_start(ap, fmt);
    vsnprintf(text + n, sizeof text - n, fmt, ap);
    va_end(ap);
}

// say_constant writes the content: "{1,2}" for a list, "1.5" for a scalar, with the dtype's name in
// front unless INT64.
static void say_constant(hth_const *constant)
{
    const void *data;
    assert_int_equal(hth_const_map(constant, &data), HTH_OK);
    assert_int_equal((uintptr_t)data % 64, 0);
    say("%s%s", constant->dtype == HTH_DT_I64 ? "" : hth_dtype_name(constant->dtype),
        constant->shape.rank > 0 ? "{" : " ");
    for (int64_t i = 0; i < hth_shape_elements(&constant->shape); i++) {
        say(i > 0 ? "," : "");
        switch (constant->dtype) {
        case HTH_DT_F32:
            say("%g", ((const float *)data)[i]);
            break;
        case HTH_DT_F64:
            say("%g", ((const double *)data)[i]);
            break;
        case HTH_DT_F16:
            say("%g", hth_f16_to_f32(((const uint16_t *)data)[i]));
            break;
        case HTH_DT_BF16:
            say("%g", hth_bf16_to_f32(((const uint16_t *)data)[i]));
            break;
        case HTH_DT_I64:
            say("%lld", (long long)((const int64_t *)data)[i]);
            break;
        case HTH_DT_U64:
            say("%llu", (unsigned long long)((const uint64_t *)data)[i]);
            break;
        case HTH_DT_I32:
            say("%d", ((const int32_t *)data)[i]);
            break;
        case HTH_DT_U32:
            say("%u", ((const uint32_t *)data)[i]);
            break;
        case HTH_DT_I16:
            say("%d", ((const int16_t *)data)[i]);
            break;
        case HTH_DT_U16:
            say("%d", ((const uint16_t *)data)[i]);
            break;
        case HTH_DT_I8:
            say("%d", ((const int8_t *)data)[i]);
            break;
        default:
            say("%d", ((const uint8_t *)data)[i]);
            break;
        }
    }
    say(constant->shape.rank > 0 ? "}" : "");
    hth_const_unmap(constant);
}

static void say_value(const hth_graph *graph, int v)
{
    if (v < 0) {
        say("-");
    } else if (graph->values[v].constant != NULL) {
        say_constant(graph->values[v].constant);
    } else {
        say("%s", graph->values[v].name);
    }
}

static int attr_order(const void *a, const void *b)
{
    return strcmp(((const hth_attr *)a)->name, ((const hth_attr *)b)->name);
}

static void say_node(const hth_graph *graph, hth_node *node)
{
    say("%s(", hth_op_name(node->op));
    for (int i = 0; i < node->n_inputs; i++) {
        say(i > 0 ? " " : "");
        say_value(graph, node->inputs[i]);
    }
    say(")");
    if (node->n_attrs > 0) {
        qsort(node->attrs, (size_t)node->n_attrs, sizeof node->attrs[0], attr_order);
    }
    for (int i = 0; i < node->n_attrs; i++) {
        const hth_attr *a = &node->attrs[i];
        say(" %s=", a->name);
        if (a->type == HTH_ATTR_INT) {
            say("%lld", (long long)a->u.i);
        } else if (a->type == HTH_ATTR_FLOAT) {
            say("%g", a->u.f);
        } else if (a->type == HTH_ATTR_STRING) {
            say("%s", a->u.s);
        }
    }
    for (int i = 0; i < node->n_outputs; i++) {
        say(i > 0 ? " " : " -> ");
        say_value(graph, node->outputs[i]);
    }
    say("; ");
}

// describe loads DATA/name and returns its nodes as text.
static const char *describe(const char *name, hth_graph **keep)
{
    char path[256];
    hth_graph *g;
    snprintf(path, sizeof path, DATA "%s.onnx", name);
    hth_err err = hth_onnx_load_file(path, &g);
    text[0] = '\0';
    if (err != HTH_OK) {
        say("%s", hth_err_detail());
        return text;
    }
    assert_int_equal(hth_graph_check(g), HTH_OK);
    for (int i = 0; i < g->n_nodes; i++) {
        say_node(g, &g->nodes[i]);
    }
    say(g->training ? "training" : "");
    if (keep != NULL) {
        *keep = g;
    } else {
        hth_graph_free(g);
    }
    return text;
}

#define STATS "FP32{1,2,3,4} FP32{1,2,3,4} FP32{1,2,3,4} FP32{1,2,3,4}"

static const char *const old_form[][2] = {
    {"squeeze11", "Squeeze(x {1,-1}) -> y; "},
    {"squeeze11_all", "Squeeze(x) -> y; "},
    {"unsqueeze9", "Unsqueeze(x {0}) -> y; "},
    {"reduce_sum11", "ReduceSum(x {1,2}) keepdims=0 -> y; "},
    {"reduce_mean17", "ReduceMean(x {-1}) -> y; "},
    {"reduce_mean18", "ReduceMean(x {1}) -> y; "},
    {"slice9", "Slice(x {0,1} {2,3} {0,2}) -> y; "},
    {"pad10", "Pad(x {0,0,1,1,0,0,2,2} FP32 1.5) mode=constant -> y; "},
    {"pad10_zero", "Pad(x {0,0,1,1,0,0,2,2}) mode=reflect -> y; "},
    {"clip6_f16", "Clip(x FP16 0 FP16 6) -> y; "},
    {"clip6_chain", "Conv(x FP64{1}) -> c; Relu(c) -> r; Clip(r - FP64 6) -> y; "},
    {"top_k9", "TopK(x {3}) axis=1 -> v i; "},
    {"split11", "Split(x {1,3}) axis=1 -> a b; "},
    {"split13_equal", "Split(x) axis=1 num_outputs=2 -> a b; "},
    {"dropout10", "Dropout(x FP32 0.25) -> y; "},
    {"dropout13_training", "Dropout(x FP32 0.5 BOOL 1) -> y; training"},
    {"upsample8",
     "Resize(x - FP32{1,1,2,2}) coordinate_transformation_mode=asymmetric mode=nearest "
     "nearest_mode=floor -> y; "},
    {"upsample9", "Resize(x - FP32{1,1,2,3}) coordinate_transformation_mode=asymmetric mode=linear "
                  "nearest_mode=floor -> y; "},
    {"resize10_down",
     "Resize(x - FP32{1,1,0.5,0.5}) coordinate_transformation_mode=asymmetric mode=nearest "
     "nearest_mode=ceil -> y; "},
    {"resize11_empty", "Resize(x - - {2,4,9,9}) -> y; "},
    {"resize11_tf", "Resize(x - FP32{1,1,2,2}) coordinate_transformation_mode=half_pixel "
                    "nearest_mode=round_prefer_ceil -> y; "},
    {"scatter9", "ScatterElements(x {0} FP32{1}) axis=1 -> y; "},
    {"softmax11", "Softmax(x) axis=1 flatten=1 -> y; "},
    {"softmax13", "Softmax(x) axis=1 -> y; "},
    {"batch_norm9", "BatchNormalization(x " STATS ") -> y; "},
    {"batch_norm9_training",
     "BatchNormalization(x " STATS ") training_mode=1 -> y m2 v2; training"},
    {"batch_norm15_training",
     "BatchNormalization(x " STATS ") training_mode=1 -> y m2 v2; training"},
    {"group_norm18",
     "Unsqueeze(FP32{1,2} {1}) -> n.Unsqueeze; Shape(x) end=2 start=1 -> n.Shape; Div(n.Shape {2}) "
     "-> n.Div; "
     "Concat({2} n.Div) axis=0 -> n.Concat; Expand(n.Unsqueeze n.Concat) -> n.Expand; "
     "Reshape(n.Expand {-1}) -> n.Reshape; Unsqueeze(FP32{3,4} {1}) -> n.Unsqueeze~1; "
     "Expand(n.Unsqueeze~1 n.Concat) -> n.Expand~1; Reshape(n.Expand~1 {-1}) -> n.Reshape~1; "
     "GroupNormalization(x n.Reshape n.Reshape~1) num_groups=2 -> y; "},
    {"group_norm21", "GroupNormalization(x FP32{1,2,3,4} FP32{1,2,3,4}) num_groups=2 -> y; "},
    {"grid_sample16", "GridSample(x FP32{0,0,0,0}) mode=cubic -> y; "},
    {"ms_gelu", "Gelu(x) -> y; "},
    {"unsorted", "Relu(x) -> t; Neg(t) -> y; "},
    {"ir3", "Add(x FP32{1,2}) -> y; "},
    {"if_then", "Mul(x FP32{3}) -> if/r; Identity(if/r) -> y; "},
    {"if_else", "Identity(x) -> if/r2; Identity(if/r2) -> y; "},
    {"if_chain_then", "Mul(x FP32{3}) -> if/r; Identity(if/r) -> y; "},
    {"if_chain_else", "Identity(x) -> if/r2; Identity(if/r2) -> y; "},
    {"functions", "LeakyRelu(x) alpha=0.125 -> one/inner/b; Identity(one/inner/b) -> one/q; "
                  "Add(one/q one/q) -> one/r; Identity(one/r) -> t; "
                  "LeakyRelu(t) alpha=0.25 -> two/inner/b; Identity(two/inner/b) -> two/q; "
                  "Add(two/q two/q) -> two/r; Identity(two/r) -> y; "},
    {"external", "MatMul(x FP32{0,1,2,3,4,5}) -> y; "},
    {"external_constant", "MatMul(x FP32{0,1,2,3,4,5}) -> y; "},
};

static void test_canonical_forms(void **state)
{
    for (size_t i = 0; i < sizeof old_form / sizeof old_form[0]; i++) {
        assert_string_equal(describe(old_form[i][0], NULL), old_form[i][1]);
    }
}

// Outputs that are constants: all forms of Constant, and every dtype from its typed field.
static void test_constants(void **state)
{
    static const char *const want[][2] = {
        {"constants", "FP32 2.5;  -3; FP32{1,2}; {4,5,6}; INT32{1,2}; "},
        {"typed", "FP32{1.5,-2}; FP64{1.5,-2}; {-1,1099511627776}; INT32{-1,7}; UINT8{0,255}; "
                  "INT8{-128,127}; "
                  "UINT16{0,65535}; INT16{-32768,5}; BOOL{1,0}; FP16{1.5,-2}; BF16{1.5,-2}; "
                  "UINT32{0,4294967295}; UINT64{0,18446744073709551615}; "},
    };
    for (size_t i = 0; i < 2; i++) {
        hth_graph *g = NULL;
        assert_string_equal(describe(want[i][0], &g), "");
        for (int k = 0; k < g->n_outputs; k++) {
            say_constant(g->values[g->outputs[k]].constant);
            say("; ");
        }
        assert_string_equal(text, want[i][1]);
        hth_graph_free(g);
    }
}

// Training needs to know which constants are parameters: initializers, not Constants moved to them.
static void test_initializers(void **state)
{
    static const char *const name[] = {"external", "external_constant"};
    for (int i = 0; i < 2; i++) {
        hth_graph *g = NULL;
        int initializers = 0, constants = 0;
        describe(name[i], &g);
        for (int k = 0; k < g->n_values; k++) {
            initializers += g->values[k].initializer > 0;
            constants += g->values[k].constant != NULL;
        }
        assert_true(constants > 0);
        assert_int_equal(initializers, i == 0 ? constants : 0);
        hth_graph_free(g);
    }
}

static void test_interface(void **state)
{
    hth_graph *g = NULL;
    describe("unsorted", &g);
    assert_int_equal(g->n_symbols, 2);
    const hth_value *x = &g->values[g->inputs[0]];
    assert_string_equal(g->symbols[HTH_DIM_TO_SYMBOL(x->shape.dim[0])], "N");
    assert_int_equal(x->shape.dim[1], 3);
    assert_true(x->shape.dim[2] == x->shape.dim[3] && x->shape.dim[2] != x->shape.dim[0]);
    hth_graph_free(g);

    describe("ir3", &g); // an initializer listed as an input is none
    assert_int_equal(g->n_inputs, 1);
    hth_graph_free(g);

    describe("group_norm18", &g); // what stands in for a node is named after it
    for (int i = 0; i < g->n_nodes; i++) {
        assert_true(strcmp(g->nodes[i].name, "n") == 0 || strncmp(g->nodes[i].name, "n.", 2) == 0);
    }
    hth_graph_free(g);

    describe("pass_through", &g);
    assert_int_equal(g->n_outputs, 2);
    assert_int_equal(g->outputs[0], g->inputs[0]);
    assert_non_null(g->values[g->outputs[1]].constant);
    hth_graph_free(g);
}

// External data: not outside of the model's folder, whatever the path looks like. All names are as
// long as the one that they replace in external.onnx.
static void test_external_paths(void **state)
{
    static const struct {
        const char *location;
        hth_err err;
    } want[] = {{"/etc/passwd/", HTH_EDENIED}, {"../secret.da", HTH_EDENIED},
                {"a/../../s.da", HTH_EDENIED}, {"outside.link", HTH_EDENIED},
                {"missing.data", HTH_ENOENT},  {"inside.links", HTH_OK}};
    char dir[] = "/tmp/onnx_test_XXXXXX", command[512], path[128], model[512];
    assert_non_null(mkdtemp(dir));
    snprintf(command, sizeof command,
             "cp " DATA "external.bin %s && ln -s /etc/passwd %s/outside.link && "
             "ln -s external.bin %s/inside.links",
             dir, dir, dir);
    assert_int_equal(system(command), 0);
    FILE *f = fopen(DATA "external.onnx", "rb");
    size_t n = fread(model, 1, sizeof model, f);
    fclose(f);
    char *at = memmem(model, n, "external.bin", 12);
    assert_non_null(at);
    snprintf(path, sizeof path, "%s/model.onnx", dir);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        hth_onnx_file *file;
        memcpy(at, want[i].location, 12);
        f = fopen(path, "wb");
        assert_int_equal(fwrite(model, 1, n, f), n);
        fclose(f);
        assert_int_equal(hth_onnx_open(path, NULL, &file), want[i].err);
        hth_onnx_close(file);
    }
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

// Every allocation of an import fails once; nothing stays behind, and the message says so.
static void test_no_memory(void **state)
{
    static const char *const name[] = {"functions", "group_norm18", "if_then",
                                       "typed",     "external",     "constants"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, DATA "%s.onnx", name[i]);
        hth_err err = HTH_ENOMEM;
        for (uint64_t n = 1; err == HTH_ENOMEM; n++) {
            hth_graph *g;
            int64_t live = hth_alloc_live();
            hth_fault_alloc(n);
            err = hth_onnx_load_file(path, &g);
            hth_fault_alloc(0);
            if (err == HTH_OK) {
                hth_graph_free(g);
            }
            assert_int_equal(hth_alloc_live(), live);
            assert_true(n < 5000);
        }
        assert_int_equal(err, HTH_OK);
    }
}

// Real models, where the developer has them.
static void test_real_models(void **state)
{
    char pattern[512];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s/.cache/hearth-models/*/*.onnx", getenv("HOME"));
    if (glob(pattern, 0, NULL, &found) != 0) {
        skip();
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        hth_onnx_file *f;
        if (hth_onnx_open(found.gl_pathv[i], NULL, &f) != HTH_OK) {
            fail_msg("%s", hth_err_detail());
        }
        size_t bytes;
        hth_graph *g;
        hth_onnx_skeleton(f, &bytes);
        if (hth_onnx_load_file(found.gl_pathv[i], &g) != HTH_OK) {
            fail_msg("%s: %s", found.gl_pathv[i], hth_err_detail());
        }
        assert_true(bytes < 2 << 20 && g->n_inputs == 1 && g->n_outputs >= 1 && !g->training);
        hth_graph_free(g);
        hth_onnx_close(f);
    }
    globfree(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_canonical_forms), cmocka_unit_test(test_constants),
        cmocka_unit_test(test_initializers),    cmocka_unit_test(test_interface),
        cmocka_unit_test(test_external_paths),  cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_real_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
