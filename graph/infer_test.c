// SPDX-License-Identifier: Apache-2.0
// Shape inference against tests/data/infer_cases.txt (ONNX's node tests and onnxruntime), and
// against hostile nodes.
#include "graph/infer.h"
#include "graph/specialize.h"

#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_VALUES 16
#define CASES      "tests/data/infer_cases.txt"

typedef struct test_case {
    char name[160];
    hth_op op;
    hth_graph *g;
    hth_node scratch; // holds the attributes until the node is added
    int inputs[MAX_VALUES], outputs[MAX_VALUES], n_inputs, n_outputs;
    hth_dtype want_dtype[MAX_VALUES];
    hth_shape want[MAX_VALUES];
} test_case;

static int64_t next_int(void)
{
    const char *word = strtok(NULL, " \n");
    assert_non_null(word);
    return strtoll(word, NULL, 10);
}

static hth_shape next_shape(void)
{
    hth_shape s = {.rank = (int)next_int()};
    assert_in_range(s.rank, 0, HTH_MAX_RANK);
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = next_int();
    }
    return s;
}

static void store(hth_dtype dt, void *dst, int64_t i, const char *word)
{
    switch (dt) {
    case HTH_DT_F32:
        ((float *)dst)[i] = strtof(word, NULL);
        break;
    case HTH_DT_F64:
        ((double *)dst)[i] = strtod(word, NULL);
        break;
    case HTH_DT_F16:
        ((uint16_t *)dst)[i] = hth_f32_to_f16(strtof(word, NULL));
        break;
    case HTH_DT_BF16:
        ((uint16_t *)dst)[i] = hth_f32_to_bf16(strtof(word, NULL));
        break;
    default: {
        int64_t v = strtoll(word, NULL, 10); // little-endian: the low bytes come first
        memcpy((char *)dst + i * (int64_t)hth_dtype_bytes(dt), &v, hth_dtype_bytes(dt));
    }
    }
}

static int read_input(test_case *t)
{
    const char *word = strtok(NULL, " \n");
    int value;
    if (strcmp(word, "-") == 0) {
        return -1;
    }
    hth_dtype dt = (hth_dtype)atoi(word);
    hth_shape s = next_shape();
    word = strtok(NULL, " \n");
    if (word == NULL) {
        assert_int_equal(hth_graph_add_value(t->g, NULL, dt, &s, &value), HTH_OK);
        return value;
    }
    char data[1024] = {0};
    hth_const *c;
    for (int64_t i = 0; i < hth_shape_elements(&s); i++) {
        store(dt, data, i, strtok(NULL, " \n"));
    }
    assert_int_equal(hth_const_new(dt, &s, data, &c), HTH_OK);
    assert_int_equal(hth_graph_add_const(t->g, NULL, c, &value), HTH_OK);
    return value;
}

static int read_output(test_case *t)
{
    const char *word = strtok(NULL, " \n");
    int value;
    if (strcmp(word, "-") == 0) {
        return -1;
    }
    t->want_dtype[t->n_outputs] = (hth_dtype)atoi(word);
    t->want[t->n_outputs] = next_shape();
    assert_int_equal(hth_graph_add_value(t->g, NULL, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, &value), 0);
    return value;
}

static void set_tensor(hth_node *node, char *name, hth_dtype dt, const hth_shape *shape)
{
    char zeros[8192] = {0};
    hth_attr a = {.name = name, .type = HTH_ATTR_TENSOR};
    hth_node from = {.n_attrs = 1, .attrs = &a};
    assert_int_equal(hth_const_new(dt, shape, zeros, &a.u.tensor), HTH_OK);
    assert_int_equal(hth_node_copy_attrs(node, &from), HTH_OK);
    hth_const_rele(a.u.tensor);
}

static void read_attr(test_case *t)
{
    char *name = strtok(NULL, " \n"), type = *strtok(NULL, " \n");
    const char *word;
    int64_t list[64];
    int n = 0;
    if (type == 'I') {
        while ((word = strtok(NULL, " \n")) != NULL) {
            list[n++] = strtoll(word, NULL, 10);
        }
        assert_int_equal(hth_node_set_ints(&t->scratch, name, list, n), HTH_OK);
        return;
    }
    word = strtok(NULL, type == 's' ? "\n" : " \n");
    if (type == 'i') {
        assert_int_equal(hth_node_set_int(&t->scratch, name, strtoll(word, NULL, 10)), HTH_OK);
    } else if (type == 'f') {
        assert_int_equal(hth_node_set_float(&t->scratch, name, strtof(word, NULL)), HTH_OK);
    } else if (type == 's') {
        assert_int_equal(hth_node_set_str(&t->scratch, name, word != NULL ? word : ""), HTH_OK);
    } else {
        assert_int_equal(type, 't');
        hth_dtype dt = (hth_dtype)atoi(word);
        hth_shape s = next_shape();
        set_tensor(&t->scratch, name, dt, &s);
    }
}

static void begin(test_case *t, hth_op op, const char *name)
{
    memset(t, 0, sizeof *t);
    t->op = op;
    snprintf(t->name, sizeof t->name, "%s", name);
    assert_int_equal(hth_graph_new(&t->g), HTH_OK);
}

static void end(test_case *t)
{
    hth_graph_free(t->g);
    hth_node_clear(&t->scratch);
    t->g = NULL;
}

static hth_err infer(test_case *t, int *wait)
{
    int node;
    assert_int_equal(hth_graph_add_node(t->g, t->op, t->name, t->inputs, t->n_inputs, t->outputs,
                                        t->n_outputs, &node),
                     HTH_OK);
    assert_int_equal(hth_node_copy_attrs(&t->g->nodes[node], &t->scratch), HTH_OK);
    return hth_infer_node(t->g, node, wait);
}

// Returns how the case went; *waits counts the operators whose output shape depends on contents.
static bool check_case(test_case *t, int *waits)
{
    char got[128], want[128];
    int wait;
    bool dynamic = t->op == HTH_OP_NON_ZERO || t->op == HTH_OP_NON_MAX_SUPPRESSION;
    hth_err err = infer(t, &wait);
    if (dynamic && err == HTH_EBUSY && wait == t->inputs[0]) {
        ++*waits;
        return true;
    }
    if (err != HTH_OK) {
        print_error("%s: %d %s\n", t->name, err, err == HTH_EBUSY ? "waits" : hth_err_detail());
        return false;
    }
    for (int i = 0; i < t->n_outputs; i++) {
        const hth_value *v = &t->g->values[t->outputs[i] < 0 ? 0 : t->outputs[i]];
        if (t->outputs[i] >= 0 &&
            (v->dtype != t->want_dtype[i] || !hth_shape_equal(&v->shape, &t->want[i]))) {
            print_error("%s output %d: %s %s, expected %s %s\n", t->name, i,
                        hth_dtype_name(v->dtype), hth_shape_str(&v->shape, got, sizeof got),
                        hth_dtype_name(t->want_dtype[i]),
                        hth_shape_str(&t->want[i], want, sizeof want));
            return false;
        }
    }
    return true;
}

static uint32_t dice_state = 1;
static uint32_t dice(uint32_t n)
{
    dice_state = dice_state * 1664525U + 1013904223U;
    return (dice_state >> 8) % n;
}

static int64_t hostile(void)
{
    static const int64_t v[] = {
        0, 1, -1, 2, 7, -9, 1 << 20, INT32_MAX, INT64_MAX / 2, INT64_MAX, INT64_MIN};
    return v[dice(sizeof v / sizeof v[0])];
}

// Changes one dimension, attribute or content of the last node to something that a hostile file may
// say.
static void damage(test_case *t)
{
    hth_node *n = &t->g->nodes[0];
    if (n->n_attrs > 0 && dice(2) == 0) {
        hth_attr *a = &n->attrs[dice((uint32_t)n->n_attrs)];
        if (a->type == HTH_ATTR_INT) {
            a->u.i = hostile();
        } else if (a->type == HTH_ATTR_INTS && a->n > 0) {
            a->u.ints[dice((uint32_t)a->n)] = hostile();
        }
        return;
    }
    int input = t->n_inputs > 0 ? t->inputs[dice((uint32_t)t->n_inputs)] : -1;
    if (input < 0) {
        return;
    }
    hth_value *v = &t->g->values[input];
    if (v->constant == NULL) {
        v->shape.rank = dice(4) == 0 ? (int)dice(HTH_MAX_RANK + 1) : v->shape.rank;
        for (int i = 0; i < v->shape.rank; i++) {
            v->shape.dim[i] = dice(3) == 0 ? hostile() & INT64_MAX : v->shape.dim[i];
        }
    } else if (v->dtype == HTH_DT_I64 && v->constant->bytes > 0) {
        ((int64_t *)v->constant->data)[dice((uint32_t)(v->constant->bytes / 8))] = hostile();
    }
}

// Whatever the node says: an error with a sentence, or shapes that can be.
static void check_damaged(test_case *t)
{
    int wait;
    size_t bytes;
    for (int round = 0; round < 50; round++) {
        damage(t);
        hth_err err = hth_infer_node(t->g, 0, &wait);
        if (err != HTH_OK && err != HTH_EINVAL && err != HTH_ENOTSUP && err != HTH_ETOOBIG &&
            err != HTH_EBUSY) {
            fail_msg("%s: %d", t->name, err);
        }
        for (int i = 0; i < t->n_outputs && err == HTH_OK; i++) {
            const hth_value *v = t->outputs[i] < 0 ? NULL : &t->g->values[t->outputs[i]];
            if (v != NULL && hth_shape_known(&v->shape)) {
                assert_int_equal(hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &bytes),
                                 HTH_OK);
            }
        }
    }
}

static void test_cases(void **state)
{
    FILE *f = fopen(CASES, "r");
    char line[8192];
    test_case t = {0};
    bool seen[HTH_N_OPS] = {0};
    int cases = 0, wrong = 0, waits = 0, ops = 0;
    assert_non_null(f);
    for (bool more = true; more;) {
        more = fgets(line, sizeof line, f) != NULL;
        const char *word = more ? strtok(line, " \n") : "op";
        if (strcmp(word, "op") == 0) {
            if (t.g != NULL) {
                cases++;
                wrong += !check_case(&t, &waits);
                check_damaged(&t);
                end(&t);
            }
            if (more) {
                hth_op op = hth_op_find(strtok(NULL, " \n"));
                assert_int_not_equal(op, HTH_OP_NONE);
                ops += !seen[op];
                seen[op] = true;
                begin(&t, op, strtok(NULL, " \n"));
            }
        } else if (strcmp(word, "attr") == 0) {
            read_attr(&t);
        } else if (strcmp(word, "in") == 0) {
            assert_in_range(t.n_inputs, 0, MAX_VALUES - 1);
            t.inputs[t.n_inputs] = read_input(&t);
            t.n_inputs++;
        } else if (strcmp(word, "out") == 0) {
            assert_in_range(t.n_outputs, 0, MAX_VALUES - 1);
            t.outputs[t.n_outputs] = read_output(&t);
            t.n_outputs++;
        }
    }
    fclose(f);
    print_message("%d cases of %d operators, %d wait for contents\n", cases, ops, waits);
    assert_int_equal(wrong, 0);
    assert_true(cases > 1000 && ops > 140);
}

// Those that the importer says with others.
static bool is_replaced(int op)
{
    static const hth_op replaced[] = {HTH_OP_QUANTIZE_LINEAR,        HTH_OP_DEQUANTIZE_LINEAR,
                                      HTH_OP_QLINEAR_CONV,           HTH_OP_QLINEAR_MAT_MUL,
                                      HTH_OP_CONV_INTEGER,           HTH_OP_MAT_MUL_INTEGER,
                                      HTH_OP_DYNAMIC_QUANTIZE_LINEAR};
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++) {
        if ((int)replaced[i] == op) {
            return true;
        }
    }
    return false;
}

static void test_every_operator_has_a_rule(void **state)
{
    for (int op = HTH_OP_NONE + 1; op < HTH_N_OPS; op++) {
        bool has = hth_infer_rule((hth_op)op) != NULL;
        if (hth_op_info_of((hth_op)op)->n_since > 0 && has == is_replaced(op)) {
            fail_msg("%s has %s rule", hth_op_name((hth_op)op), has ? "a" : "no");
        }
    }
}

static void add_input(test_case *t, hth_dtype dt, const hth_shape *shape)
{
    assert_int_equal(hth_graph_add_value(t->g, NULL, dt, shape, &t->inputs[t->n_inputs++]), HTH_OK);
}

static void add_ints(test_case *t, int n, const int64_t *v)
{
    hth_const *c;
    assert_int_equal(hth_const_new(HTH_DT_I64, &(hth_shape){1, {n}}, v, &c), HTH_OK);
    assert_int_equal(hth_graph_add_const(t->g, NULL, c, &t->inputs[t->n_inputs++]), HTH_OK);
}

static void add_output(test_case *t)
{
    assert_int_equal(hth_graph_add_value(t->g, NULL, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN,
                                         &t->outputs[t->n_outputs++]),
                     HTH_OK);
}

static void expect_failure(test_case *t, hth_err want, const char *sentence)
{
    int wait;
    add_output(t);
    assert_int_equal(infer(t, &wait), want);
    assert_string_equal(hth_err_detail(), sentence);
    end(t);
}

static void test_contradictions(void **state)
{
    test_case t;
    begin(&t, HTH_OP_GEMM, "fc1");
    add_input(&t, HTH_DT_F32, &(hth_shape){2, {2, 512}});
    add_input(&t, HTH_DT_F32, &(hth_shape){2, {1024, 10}});
    expect_failure(&t, HTH_EINVAL, "node 'fc1' (Gemm): A [2,512] and B [1024,10] do not agree");

    begin(&t, HTH_OP_ADD, "sum");
    add_input(&t, HTH_DT_F32, &(hth_shape){2, {2, 5}});
    add_input(&t, HTH_DT_F32, &(hth_shape){1, {4}});
    expect_failure(&t, HTH_EINVAL, "node 'sum' (Add): [2,5] and [4] do not broadcast");

    begin(&t, HTH_OP_MUL, "scale");
    add_input(&t, HTH_DT_F32, &(hth_shape){1, {5}});
    add_input(&t, HTH_DT_I64, &(hth_shape){1, {5}});
    expect_failure(&t, HTH_EINVAL, "node 'scale' (Mul): input 0 is FP32 and input 1 is INT64");

    begin(&t, HTH_OP_RESHAPE, "view");
    add_input(&t, HTH_DT_F32, &(hth_shape){2, {2, 5}});
    add_ints(&t, 2, (int64_t[]){-1, 4});
    expect_failure(&t, HTH_EINVAL, "node 'view' (Reshape): [2,5] cannot become [?,4]");

    begin(&t, HTH_OP_EINSUM, "none");
    add_input(&t, HTH_DT_F32, &(hth_shape){2, {2, 0}});
    add_input(&t, HTH_DT_F32, &(hth_shape){2, {2, 4}});
    assert_int_equal(hth_node_set_str(&t.scratch, "equation", "ij,ij->ij"), HTH_OK);
    expect_failure(
        &t, HTH_EINVAL,
        "node 'none' (Einsum): the first input [2,0] and a later one [2,4] do not agree");

    begin(&t, HTH_OP_MAX_POOL, "pool");
    add_input(&t, HTH_DT_F32, &(hth_shape){3, {1, 1, 3}});
    assert_int_equal(hth_node_set_ints(&t.scratch, "kernel_shape", (int64_t[]){5}, 1), HTH_OK);
    expect_failure(&t, HTH_EINVAL,
                   "node 'pool' (MaxPool): a window of 5 does not fit in the padded length 3 of "
                   "dimension 2");
}

static void test_hostile_sizes(void **state)
{
    int64_t huge = INT64_MAX / 2;
    test_case t;
    begin(&t, HTH_OP_CONSTANT_OF_SHAPE, "fill");
    add_ints(&t, 3, (int64_t[]){huge, huge, huge});
    expect_failure(&t, HTH_ETOOBIG,
                   "node 'fill' (ConstantOfShape): the result has too many elements");

    begin(&t, HTH_OP_TILE, "tile");
    add_input(&t, HTH_DT_F32, &(hth_shape){1, {16}});
    add_ints(&t, 1, &huge);
    expect_failure(&t, HTH_ETOOBIG, "node 'tile' (Tile): the result has too many elements");

    begin(&t, HTH_OP_CONV, "conv");
    add_input(&t, HTH_DT_F32, &(hth_shape){3, {1, 1, 8}});
    add_input(&t, HTH_DT_F32, &(hth_shape){3, {1, 1, 3}});
    assert_int_equal(hth_node_set_ints(&t.scratch, "dilations", (int64_t[]){INT64_MAX}, 1), HTH_OK);
    expect_failure(&t, HTH_ETOOBIG, "node 'conv' (Conv): the result has too many elements");

    begin(&t, HTH_OP_CONV, "cube");
    add_input(&t, HTH_DT_F32, &(hth_shape){6, {1, 1, 2, 2, 2, 2}});
    add_input(&t, HTH_DT_F32, &(hth_shape){6, {1, 1, 1, 1, 1, 1}});
    expect_failure(&t, HTH_ENOTSUP, "node 'cube' (Conv): 4 spatial dimensions are not supported");

    begin(&t, HTH_OP_GATHER, "deep");
    add_input(&t, HTH_DT_F32, &(hth_shape){8, {1, 1, 1, 1, 1, 1, 1, 1}});
    add_input(&t, HTH_DT_I64, &(hth_shape){2, {1, 1}});
    expect_failure(&t, HTH_ENOTSUP, "node 'deep' (Gather): the result has more than 8 dimensions");

    begin(&t, HTH_OP_ADD, "half");
    add_input(&t, HTH_DT_F32, &(hth_shape){1, {1}});
    expect_failure(&t, HTH_EINVAL, "node 'half' (Add): has 1 inputs, expected 2 to 2");
}

// Nothing of an empty image can be read, and no kernel may try.
static void test_resize_of_nothing(void **state)
{
    test_case t;
    begin(&t, HTH_OP_RESIZE, "up");
    add_input(&t, HTH_DT_F32, &(hth_shape){4, {1, 1, 0, 4}});
    t.inputs[1] = t.inputs[2] = -1;
    t.n_inputs = 3;
    add_ints(&t, 4, (int64_t[]){1, 1, 2, 8});
    expect_failure(&t, HTH_EINVAL,
                   "node 'up' (Resize): dimension 2 is resized from 0 to 2 elements");

    int wait;
    begin(&t, HTH_OP_RESIZE, "none"); // an empty batch stays one
    add_input(&t, HTH_DT_F32, &(hth_shape){4, {0, 1, 2, 4}});
    t.inputs[1] = t.inputs[2] = -1;
    t.n_inputs = 3;
    add_ints(&t, 4, (int64_t[]){0, 1, 2, 8});
    add_output(&t);
    assert_int_equal(infer(&t, &wait), HTH_OK);
    end(&t);
}

// Each optional operand of a recurrent network, one element short: kernels count on its size.
static void test_rnn_operands(void **state)
{
    static const char *const name[] = {"B", "sequence_lens", "initial_h", "initial_c", "P"};
    static const hth_shape fit[] = {
        {2, {1, 16}}, {1, {3}}, {3, {1, 3, 2}}, {3, {1, 3, 2}}, {1, {6}}};
    for (int operand = 0; operand < 5; operand++) {
        char sentence[160], text[64];
        test_case t;
        begin(&t, HTH_OP_LSTM, "net");
        add_input(&t, HTH_DT_F32, &(hth_shape){3, {4, 3, 5}});
        add_input(&t, HTH_DT_F32, &(hth_shape){3, {1, 8, 5}});
        add_input(&t, HTH_DT_F32, &(hth_shape){3, {1, 8, 2}});
        for (int i = 0; i <= operand; i++) {
            hth_shape s = fit[i];
            s.dim[s.rank - 1] -= i == operand;
            add_input(&t, i == 1 ? HTH_DT_I32 : HTH_DT_F32, &s);
            hth_shape_str(&s, text, sizeof text);
        }
        snprintf(sentence, sizeof sentence, "node 'net' (LSTM): R [1,8,2] and %s %s do not agree",
                 name[operand], text);
        expect_failure(&t, HTH_EINVAL, sentence);
    }
}

static void test_slices(void **state)
{
    static const struct {
        int64_t start, end, step, want; // of 10 elements; numpy's answers, but the last: a start
        // before the first element counts as the first (ONNX)
    } row[] = {
        {0, 10, 1, 10},        {2, 5, 1, 3},      {-3, INT64_MAX, 1, 3}, {9, -11, -1, 10},
        {9, INT64_MIN, -3, 4}, {20, 30, 1, 0},    {-20, 4, 2, 2},        {5, 5, 1, 0},
        {INT64_MAX, 0, -4, 3}, {3, 0, 1, 0},      {-1, -5, -2, 2},       {8, 2, INT64_MIN, 1},
        {0, 10, INT64_MAX, 1}, {-20, -30, -1, 1},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        test_case t;
        int wait;
        begin(&t, HTH_OP_SLICE, "cut");
        add_input(&t, HTH_DT_F32, &(hth_shape){2, {2, 10}});
        add_ints(&t, 1, &row[i].start);
        add_ints(&t, 1, &row[i].end);
        add_ints(&t, 1, (int64_t[]){-1});
        add_ints(&t, 1, &row[i].step);
        add_output(&t);
        assert_int_equal(infer(&t, &wait), HTH_OK);
        if (t.g->values[t.outputs[0]].shape.dim[1] != row[i].want) {
            fail_msg("slice %zu gives %lld", i, (long long)t.g->values[t.outputs[0]].shape.dim[1]);
        }
        end(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),          cmocka_unit_test(test_every_operator_has_a_rule),
        cmocka_unit_test(test_contradictions), cmocka_unit_test(test_hostile_sizes),
        cmocka_unit_test(test_slices),         cmocka_unit_test(test_resize_of_nothing),
        cmocka_unit_test(test_rnn_operands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
