// SPDX-License-Identifier: Apache-2.0
// docs/onnx.md is printed from the table of operators (`onnx_doc_test --print`); the test sees that
// the committed page is what the table says now.
#include "graph/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    hth_op op;
    const char *note;
} doc_note[] = {
    {HTH_OP_BATCH_NORMALIZATION,
     "`spatial=0` is refused; more than one output before version 14 means training"},
    {HTH_OP_CAST,
     "to and from FLOAT, DOUBLE, FLOAT16, BFLOAT16, BOOL and integers of 8 to 64 bits"},
    {HTH_OP_CONSTANT, "every form but strings and sparse tensors; becomes content, not a node"},
    {HTH_OP_DROPOUT,
     "before version 12: inference; training when `training_mode` is a constant true"},
    {HTH_OP_GELU, "also `com.microsoft.Gelu`"},
    {HTH_OP_GROUP_NORMALIZATION, "version 18: scale and bias per group are repeated per channel"},
    {HTH_OP_RESIZE, "`tf_half_pixel_for_nn` only with `nearest_mode=floor`; version 10 may not "
                    "shrink and grow at once"},
    {HTH_OP_SCATTER, "becomes ScatterElements"},
    {HTH_OP_UPSAMPLE, "becomes Resize"},
};

static const char *note_of(hth_op op)
{
    for (size_t i = 0; i < sizeof doc_note / sizeof doc_note[0]; i++) {
        if (doc_note[i].op == op) {
            return doc_note[i].note;
        }
    }
    return "";
}

// print_versions lists the versions that opsets HTH_OPSET_MIN to HTH_OPSET_MAX can mean.
static void print_versions(FILE *f, const hth_op_info *info)
{
    int first = 0;
    while (first + 1 < info->n_since && info->since[first + 1] <= HTH_OPSET_MIN) {
        first++;
    }
    for (int i = first; i < info->n_since; i++) {
        fprintf(f, "%s%d", i > first ? ", " : "", info->since[i]);
    }
}

static void print_page(FILE *f)
{
    fprintf(f,
            "<!-- Printed by `build/graph/onnx_doc_test --print` from graph/op.h; not edited by "
            "hand. -->\n"
            "# ONNX operators\n\n"
            "Models of opset %d to %d are read; whatever the version, an operator is brought to "
            "its newest form first.\n"
            "Everything else is refused when the model is imported, by the node's name, operator "
            "and opset. Functions\n"
            "that a model defines are read in place, and so is `If` where its condition is a "
            "constant. Strings,\n"
            "sequences, optionals and sparse tensors are not supported.\n\n"
            "| operator | versions | notes |\n|---|---|---|\n",
            HTH_OPSET_MIN, HTH_OPSET_MAX);
    for (hth_op op = HTH_OP_NONE + 1; op < HTH_N_OPS; op++) {
        const hth_op_info *info = hth_op_info_of(op);
        if (info->n_since > 0) {
            fprintf(f, "| %s | ", info->name);
            print_versions(f, info);
            fprintf(f, " | %s |\n", note_of(op));
        }
    }
}

static void test_page(void **state)
{
    char *now = NULL, *committed = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&now, &n);
    print_page(f);
    fclose(f);
    f = fopen("docs/onnx.md", "rb");
    assert_non_null(f);
    committed = calloc(1, n + 2);
    assert_int_equal(fread(committed, 1, n + 1, f), n);
    fclose(f);
    assert_string_equal(committed, now);
    free(now);
    free(committed);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_page)};
    if (argc == 2 && strcmp(argv[1], "--print") == 0) {
        print_page(stdout);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
