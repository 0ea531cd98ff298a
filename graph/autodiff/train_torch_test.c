// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_torch_test.c - the gradient of every operator on the CPU device, with each
// of its algorithms, against PyTorch's (tests/data/train/gradients.txt, by
// tests/tools/make_train_gradients.py).
//
// A step's graph goes through the device's passes as a job's does; then every value has a buffer of
// its own, and nodes run one by one. What is compared is what the optimizer reads, which
// may be infinite: then the optimizer refuses it.
#include "base/test.h"
#include "graph/autodiff/grad.h"
#include "kernels/cpu/cpu.h"
#include "tests/rig/grad_case.h"

#include <math.h>

#define FILE_NAME     "tests/data/train/gradients.txt"
#define MAX_ARGUMENTS 16
#define MAX_CHOICES   32
#define TOLERANCE     1e-5 // of the largest element

typedef struct torch_case {
    char line[256];
    grad_case c;
    hth_train_graph t;
    void **data; // per value
    int n_algorithms;
} torch_case;

static hth_device *device;

static void *buffer(size_t bytes)
{
    void *p = hth_alloc_aligned(bytes + 64, 64);
    assert_non_null(p);
    memset(p, 0xA5, bytes + 64);
    return p;
}

static void passes(hth_graph *graph)
{
    const hth_fuse_oracle *oracle = hth_kernel_oracle(device);
    assert_ok(hth_pass_simplify(graph));
    assert_ok(hth_pass_fuse(graph, oracle));
    assert_ok(hth_pass_layout(graph, oracle));
    assert_ok(hth_graph_compact(graph));
    assert_ok(hth_graph_check(graph));
}

static void fill(torch_case *x)
{
    const hth_graph *g = x->t.graph;
    x->data = calloc((size_t)g->n_values & 0xffffff, sizeof *x->data);
    for (int v = 0; v < g->n_values; v++) {
        size_t bytes;
        assert_ok(
            hth_tensor_bytes(g->values[v].dtype, &g->values[v].shape, g->values[v].layout, &bytes));
        x->data[v] = buffer(bytes);
        hth_const *c = g->values[v].constant;
        const void *from;
        if (c != NULL) {
            assert_ok(hth_const_map(c, &from));
            memcpy(x->data[v], from, bytes);
            hth_const_unmap(c);
        }
    }
    for (int s = 0; s < x->t.n_slots; s++) {
        hth_const *c = x->t.slots[s].content;
        const void *from;
        assert_ok(hth_const_map(c, &from));
        memcpy(x->data[g->inputs[x->t.slots[s].input]], from, c->bytes);
        hth_const_unmap(c);
    }
    float *hyper = x->data[g->inputs[x->t.hyper]], *target = x->data[g->inputs[x->t.target]];
    memset(hyper, 0, HTH_N_HYPER * sizeof *hyper);
    hyper[HTH_HYPER_GRAD_SCALE] = 1;
    memset(x->data[g->inputs[x->t.step]], 0, 8);
    int64_t n = hth_shape_elements(&g->values[g->inputs[x->t.target]].shape);
    for (int64_t i = 0; i < n; i++) {
        target[i] = next_value(&x->c, '[') * 2;
    }
}

static void run_node(torch_case *x, const hth_node *node, int algorithm)
{
    hth_choice list[MAX_CHOICES];
    void *in[MAX_ARGUMENTS] = {NULL}, *out[MAX_ARGUMENTS] = {NULL}, *packed[MAX_ARGUMENTS] = {NULL};
    int count;
    hth_kernel *k;
    const hth_graph *g = x->t.graph;
    assert_true(node->n_inputs <= MAX_ARGUMENTS && node->n_outputs <= MAX_ARGUMENTS);
    assert_ok(hth_kernel_algorithms(device, g, node, list, MAX_CHOICES, &count));
    x->n_algorithms = count > x->n_algorithms ? count : x->n_algorithms;
    algorithm = algorithm < count ? algorithm : 0;
    const char *name = count > 1 ? list[algorithm].name : NULL;
    if (hth_kernel_prepare(device, g, node, name, &k) != HTH_OK) {
        fail_msg("%s: %s", x->line, hth_err_detail());
    }
    for (int i = 0; i < node->n_inputs; i++) {
        in[i] = node->inputs[i] < 0 ? NULL : x->data[node->inputs[i]];
    }
    for (int i = 0; i < k->n_packings; i++) {
        const hth_packing *p = &k->packings[i];
        if (p->pack != NULL && g->values[node->inputs[p->input]].constant != NULL) {
            packed[i] = buffer(p->bytes);
            assert_ok(p->pack(k, p, in[p->input], packed[i]));
            in[p->input] = packed[i];
        }
    }
    for (int i = 0; i < node->n_outputs; i++) {
        out[i] = node->outputs[i] < 0 ? NULL : x->data[node->outputs[i]];
    }
    void *workspace = buffer(k->workspace_bytes);
    if (k->run(k, &(hth_kernel_args){in, out, workspace, NULL}) != HTH_OK &&
        node->op != HTH_OP_SGD_STEP) {
        fail_msg("%s: %s", x->line, hth_err_detail());
    }
    hth_free(workspace);
    for (int i = 0; i < MAX_ARGUMENTS; i++) {
        hth_free(packed[i]);
    }
    hth_kernel_close(k);
}

// The gradient of operand k, plain: what its optimizer node reads. The caller frees it.
static float *gradient_of(const torch_case *x, int k, int64_t *n)
{
    const hth_graph *g = x->t.graph;
    for (int s = 0; s < x->t.n_slots; s++) {
        const hth_train_slot *slot = &x->t.slots[s];
        if (slot->kind != HTH_SLOT_PARAM || slot->initializer != x->c.in[k]) {
            continue;
        }
        const hth_node *step = &g->nodes[g->values[g->outputs[slot->output]].producer];
        const hth_value *v = &g->values[step->inputs[1]];
        assert_int_equal(step->op, HTH_OP_SGD_STEP);
        *n = hth_shape_elements(&v->shape);
        float *plain = buffer((size_t)*n * sizeof *plain);
        hth_cpu_relayout(sizeof *plain, &v->shape, v->layout, x->data[step->inputs[1]],
                         HTH_LAYOUT_PLAIN, plain);
        return plain;
    }
    fail_msg("%s: operand %d is not trained", x->line, k);
    return NULL;
}

// text: "OPERAND EVERY sum values.."
static void compare(const torch_case *x, const char *text, int algorithm)
{
    char *at;
    int64_t n = 0;
    long k = strtol(text, &at, 10), every = strtol(at, &at, 10);
    float *got = gradient_of(x, (int)k, &n);
    double sum = strtod(at, &at), total = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        total += (double)got[i];
        most = isfinite(got[i]) ? fmax(most, fabs((double)got[i])) : most;
    }
    for (int64_t i = 0; i < n; i += every) {
        double want = strtod(at, &at);
        if (!((double)got[i] == want || fabs((double)got[i] - want) <= TOLERANCE * most + 1e-7)) {
            fail_msg("%s: operand %ld, algorithm %d: element %d is %.8g, PyTorch has %.8g", x->line,
                     k, algorithm, (int)i, (double)got[i], want);
        }
    }
    if (isfinite(sum) && !(fabs(total - sum) <= TOLERANCE * most * sqrt((double)n) + 1e-6)) {
        fail_msg("%s: operand %ld, algorithm %d: the sum is %.8g, PyTorch has %.8g", x->line, k,
                 algorithm, total, sum);
    }
    assert_true(*at == '\n');
    hth_free(got);
}

static void case_open(torch_case *x)
{
    hth_train_options o = {.loss = HTH_LOSS_MSE};
    x->c = (grad_case){.seed = 12345};
    x->n_algorithms = 1;
    case_read(&x->c, x->line);
    if (hth_train_build(x->c.g, NULL, &o, hth_ref_eval, NULL, &x->t) != HTH_OK) {
        fail_msg("%s: %s", x->line, hth_err_detail());
    }
    passes(x->t.graph);
    fill(x);
}

static void case_close(torch_case *x)
{
    for (int v = 0; v < x->t.graph->n_values; v++) {
        hth_free(x->data[v]);
    }
    free(x->data);
    hth_train_graph_fini(&x->t);
    hth_graph_free(x->c.g);
}

static void test_gradients(void **state)
{
    FILE *f = fopen(FILE_NAME, "r");
    static char text[MAX_OPERANDS][8192];
    int cases = 0, gradients = 0, runs = 0;
    assert_non_null(f);
    bool more = fgets(text[0], sizeof text[0], f) != NULL;
    while (more) {
        torch_case x = {.line = ""};
        assert_int_equal(strncmp(text[0], "case ", 5), 0);
        snprintf(x.line, sizeof x.line, "%.*s", (int)strcspn(text[0] + 5, "\n"), text[0] + 5);
        int n = 0;
        while ((more = fgets(text[n], sizeof text[n], f) != NULL) && text[n][0] == 'g') {
            n++;
        }
        case_open(&x);
        for (int a = 0; a < x.n_algorithms; a++, runs++) {
            for (int i = 0; i < x.t.graph->n_nodes; i++) {
                run_node(&x, &x.t.graph->nodes[i], a);
            }
            for (int i = 0; i < n; i++) {
                compare(&x, text[i] + strlen("grad "), a);
            }
        }
        case_close(&x);
        if (more && n > 0) {
            memmove(text[0], text[n], sizeof text[0]);
        }
        cases++;
        gradients += n;
    }
    fclose(f);
    print_message("%d gradients of %d cases, %d runs\n", gradients, cases, runs);
    assert_true(cases > 200 && gradients > 350);
}

// What has a gradient has a case, but Dropout: its masks are our own.
static void test_every_operator(void **state)
{
    for (hth_op op = HTH_OP_NONE + 1; op < HTH_N_OPS; op++) {
        bool has = hth_grad_rule_of(op)->fn != NULL || op == HTH_OP_ATTENTION ||
                   op == HTH_OP_BATCH_NORMALIZATION;
        if (hth_op_info_of(op)->n_since > 0 && has && !grad_seen[op]) {
            fail_msg("%s has no case", hth_op_name(op));
        }
    }
}

static int device_open(void **state)
{
    return hth_device_open("cpu:mem=256MiB,threads=2", &device) == HTH_OK ? 0 : -1;
}

static int device_close(void **state)
{
    hth_device_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_every_operator),
    };
    return cmocka_run_group_tests_name("train_torch", tests, device_open, device_close);
}
