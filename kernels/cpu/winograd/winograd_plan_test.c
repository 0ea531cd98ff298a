// SPDX-License-Identifier: Apache-2.0
// The planner turns Winograd's dial: two layers of VGG19 with the workspaces that their kernels
// really have, and a budget that leaves little beside the large images of one of them.
#include "kernels/cpu/fixture.h"
#include "kernels/cpu/winograd/winograd.h"
#include "planner/plan_test.h"

// Adds the layer's alternatives of F(4x4) to node `node`: less workspace, a little more time.
static void add_dial(hth_problem *problem, int node, int64_t channels, int64_t size)
{
    char names[16][HTH_WINO_NAME];
    fixture f;
    fixture_open(&f, 1);
    hth_shape x = SHAPE(1, channels, size, size), w = SHAPE(channels, channels, 3, 3);
    int in[2] = {fixture_value(&f, x), fixture_const(&f, w)}, out = fixture_value(&f, x);
    f.graph->values[in[0]].layout = f.graph->values[out].layout =
        f.device.props.vector_bytes >= 64 ? HTH_LAYOUT_C16 : HTH_LAYOUT_C8;
    hth_node *n = fixture_node(&f, HTH_OP_CONV, in, 2, &out, 1);
    assert_int_equal(hth_node_set_ints(n, "pads", (int64_t[]){1, 1, 1, 1}, 4), HTH_OK);
    int count = cpu_winograd_names(&f.device, f.graph, n, names, 16);
    uint64_t before = UINT64_MAX;
    double time_us = 1000;
    for (int i = 0; i < count; i++) {
        hth_kernel *k;
        if (strstr(names[i], "4x4") == NULL || strstr(names[i], "run") != NULL) {
            continue;
        }
        assert_int_equal(cpu_winograd_prepare(&f.device, f.graph, n, names[i], &k), HTH_OK);
        if (k->workspace_bytes < before) {
            pt_choice(problem, node, time_us, k->workspace_bytes);
            hth_plan_node *at = &problem->nodes[node];
            memcpy(at->alternatives[at->n_alternatives - 1].name, names[i], HTH_WINO_NAME);
            before = k->workspace_bytes;
            time_us *= 1.1;
        }
        hth_kernel_close(k);
    }
    fixture_close(&f);
}

static const hth_choice *chosen(const hth_problem *problem, const hth_plan *plan, int node)
{
    for (int i = 0; i < plan->n_instrs; i++) {
        const hth_instr *in = &plan->instrs[i];
        if (in->kind == HTH_INSTR_COMPUTE && in->node == node) {
            return &problem->nodes[node].alternatives[in->alt];
        }
    }
    fail_msg("node %d is not computed", node);
    return &problem->nodes[node].alternatives[0];
}

static void budget_gives_two_layers_different_blocks(void **state)
{
    (void)state;
    const uint64_t large = (uint64_t)128 * 112 * 112 * 4, small = (uint64_t)256 * 56 * 56 * 4;
    hth_problem p = pt_problem(8, 4);
    hth_plan *plan;
    int x = pt_tensor(&p, HTH_MEM_INPUT, large, -1);
    int a = pt_node(&p, &x, 1, HTH_MEM_ACTIVATION, large, false);
    int b = pt_node(&p, &a, 1, HTH_MEM_ACTIVATION, small, false);
    int y = pt_node(&p, &b, 1, HTH_MEM_OUTPUT, small, false);
    p.tensors[y].external = true;
    add_dial(&p, 0, 128, 112);
    pt_choice(&p, 1, 10, 0);
    add_dial(&p, 2, 256, 56);
    assert_true(p.nodes[0].n_alternatives >= 3 && p.nodes[2].n_alternatives >= 2);
    assert_int_equal(hth_plan_inference(&p, &plan), HTH_OK);
    assert_ptr_equal(chosen(&p, plan, 0), &p.nodes[0].alternatives[0]); // nothing is short
    assert_ptr_equal(chosen(&p, plan, 2), &p.nodes[2].alternatives[0]);
    hth_plan_free(plan);
    p.budget = 2 * large + (3 << 19);
    assert_int_equal(hth_plan_inference(&p, &plan), HTH_OK);
    assert_int_equal(hth_plan_verify(&p, plan), HTH_OK);
    const hth_choice *first = chosen(&p, plan, 0), *second = chosen(&p, plan, 2);
    print_message("128->128 @112: %s, 256->256 @56: %s\n", first->name, second->name);
    assert_true(first->workspace_bytes <= 3 << 19);
    assert_true(first != &p.nodes[0].alternatives[0]);
    assert_ptr_equal(second, &p.nodes[2].alternatives[0]);
    hth_plan_free(plan);
    hth_problem_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budget_gives_two_layers_different_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
