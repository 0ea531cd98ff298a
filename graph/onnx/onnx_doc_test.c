// SPDX-License-Identifier: Apache-2.0
// docs/onnx.md is printed from the table of operators (`onnx_doc_test --print`); the test compares
// the committed page with the table.
#include "graph/autodiff/grad.h"
#include "tests/rig/printed_page.h"

#include <string.h>

typedef struct doc_row {
    hth_op op;
    const char *note;
} doc_row;

static const doc_row doc_note[] = {
    {HTH_OP_BATCH_NORMALIZATION,
     "`spatial=0` is refused; more than one output before version 14 means training"},
    {HTH_OP_CAST,
     "to and from FLOAT, DOUBLE, FLOAT16, BFLOAT16, BOOL and integers of 8 to 64 bits"},
    {HTH_OP_CONSTANT, "every form but strings and sparse tensors; becomes content, not a node"},
    {HTH_OP_CONV_INTEGER, "sums are those of FP32, rounded"},
    {HTH_OP_DEQUANTIZE_LINEAR, "also of `com.microsoft`; no `block_size`; constants become FP32"},
    {HTH_OP_DROPOUT,
     "before version 12: inference; training when `training_mode` is a constant true"},
    {HTH_OP_DYNAMIC_QUANTIZE_LINEAR, "where all is 0 the scale is 1"},
    {HTH_OP_GELU, "also `com.microsoft.Gelu`"},
    {HTH_OP_GROUP_NORMALIZATION, "version 18: scale and bias per group are repeated per channel"},
    {HTH_OP_MAT_MUL_INTEGER, "sums are those of FP32, rounded"},
    {HTH_OP_QLINEAR_CONV, "in FP32 between roundings"},
    {HTH_OP_QLINEAR_MAT_MUL, "in FP32 between roundings"},
    {HTH_OP_QUANTIZE_LINEAR,
     "also of `com.microsoft`; to integers of 8 and 16 bits; no `block_size`"},
    {HTH_OP_RESIZE, "`tf_half_pixel_for_nn` only with `nearest_mode=floor`; version 10 may not "
                    "shrink and grow at once"},
    {HTH_OP_SCATTER, "becomes ScatterElements"},
    {HTH_OP_UPSAMPLE, "becomes Resize"},
};

// What has a gradient in some forms only.
static const doc_row doc_gradient[] = {
    {HTH_OP_ATTENTION, "yes"}, // become other operators in a training step
    {HTH_OP_BATCH_NORMALIZATION, "yes"},
    {HTH_OP_DROPOUT, "yes, if its mask is not read"},
    {HTH_OP_CLIP, "yes; by its bounds none"},
    {HTH_OP_EINSUM, "yes, but for a label twice in a term and ellipses that broadcast"},
    {HTH_OP_GRU, "yes, with its usual activations, without lengths or clipping"},
    {HTH_OP_LSTM, "yes, with its usual activations, without lengths, clipping or peepholes"},
    {HTH_OP_RNN, "yes, with Tanh or Relu, without lengths or clipping"},
    {HTH_OP_LAYER_NORMALIZATION, "yes, if scale and bias have the normalised dimensions only"},
    {HTH_OP_ONE_HOT, "none by its values"},
    {HTH_OP_PAD, "yes, with constant pads"},
    {HTH_OP_SLICE, "yes, at constant positions"},
};

static const char *note_of(const doc_row *rows, size_t n, hth_op op)
{
    for (size_t i = 0; i < n; i++) {
        if (rows[i].op == op) {
            return rows[i].note;
        }
    }
    return NULL;
}
#define NOTE_OF(rows, op) note_of(rows, sizeof rows / sizeof rows[0], op)

static const char *gradient_of(hth_op op)
{
    const hth_grad_rule *rule = hth_grad_rule_of(op);
    const char *note = NOTE_OF(doc_gradient, op);
    if (note != NULL) {
        return note;
    }
    if (rule->fn != NULL) {
        return "yes";
    }
    return rule->flat ? "0" : "";
}

// name_of writes the operator's name, and the opset that brought it where not every one has it.
static void name_of(const hth_op_info *info, char *out, size_t bytes)
{
    bool late = info->since[0] > HTH_OPSET_MIN;
    int n = late ? snprintf(out, bytes, "%s (%d)", info->name, info->since[0])
                 : snprintf(out, bytes, "%s", info->name);
    assert_in_range(n, 1, bytes - 1);
}

// print_list prints the operators with that gradient and without a note: "Abs, Acosh (9), ..", in
// lines of at most 100 columns.
static void print_list(FILE *file, const char *title, const char *gradient)
{
    size_t column = 0;
    fprintf(file, "\n## %s\n", title);
    for (hth_op op = HTH_OP_NONE + 1; op < HTH_N_OPS; op++) {
        const hth_op_info *info = hth_op_info_of(op);
        if (info->n_since == 0 || NOTE_OF(doc_note, op) != NULL ||
            strcmp(gradient_of(op), gradient) != 0) {
            continue;
        }
        char item[64];
        name_of(info, item, sizeof item);
        size_t n = strlen(item);
        size_t wide = column + strlen(", ") + n;
        bool fits = column > 0 && wide < 100; // with the comma that may follow
        const char *comma = fits ? ", " : ",\n";
        fprintf(file, "%s%s", column == 0 ? "" : comma, item);
        column = fits ? wide : n;
    }
    fprintf(file, "\n");
}

static void print_page(FILE *file)
{
    fprintf(
        file,
        "<!-- Printed by `build/graph/onnx/onnx_doc_test --print` from graph/op.h; not edited "
        "by hand. -->\n"
        "# ONNX operators\n\n"
        "hearth imports models of opset %d to %d and brings every operator to its newest form.\n"
        "An import refuses anything else by the node's name, operator and opset. Functions "
        "that a\n"
        "model defines are inlined, and so is `If` with a constant condition. Strings, "
        "sequences,\n"
        "optionals and sparse tensors are not supported. A number in brackets is the opset that\n"
        "introduced an operator; all its versions since are read.\n\n"
        "Training refuses a model by the node's name if a gradient would have to pass an "
        "operator\n"
        "without one, or a form that the notes exclude.\n",
        HTH_OPSET_MIN, HTH_OPSET_MAX);
    print_list(file, "With a gradient", "yes");
    print_list(file, "With the derivative 0", "0");
    print_list(file, "Without a gradient", "");
    fprintf(file, "\n## With notes\n| operator | gradient | notes |\n|---|---|---|\n");
    for (hth_op op = HTH_OP_NONE + 1; op < HTH_N_OPS; op++) {
        const hth_op_info *info = hth_op_info_of(op);
        const char *gradient = gradient_of(op), *note = NOTE_OF(doc_note, op);
        bool plain = strcmp(gradient, "yes") == 0 || strcmp(gradient, "0") == 0 || !*gradient;
        if (info->n_since > 0 && (note != NULL || !plain)) {
            char name[64];
            name_of(info, name, sizeof name);
            fprintf(file, "| %s | %s | %s |\n", name, gradient, note != NULL ? note : "");
        }
    }
}

static void test_page(void **state)
{
    printed_page_check("docs/onnx.md", print_page);
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
