// SPDX-License-Identifier: Apache-2.0
// Cost tables as files: what is written is what is read, by descriptor and without layouts; what is
// wrong with a file is said.
#include "convsel/profile.h"

#include "base/test.h"

#include <stdio.h>

static hth_graph *graph;

static hth_node *layer(hth_op op, int64_t channels, hth_layout layout)
{
    int in[2], y, at;
    const hth_shape x = {4, {2, channels, 8, 8}}, w = {4, {channels, channels, 3, 3}};
    assert_ok(hth_graph_add_value(graph, "x", HTH_DT_F32, &x, &in[0]));
    assert_ok(hth_graph_add_value(graph, "w", HTH_DT_F32, &w, &in[1]));
    assert_ok(hth_graph_add_value(graph, "y", HTH_DT_F32, &x, &y));
    graph->values[in[0]].layout = graph->values[y].layout = layout;
    assert_ok(hth_graph_add_node(graph, op, "node", in, op == HTH_OP_CONV ? 2 : 1, &y, 1, &at));
    return &graph->nodes[at];
}

static const hth_choice choices[] = {
    {.name = "fast",
     .workspace_bytes = 1 << 20,
     .time_us = 10.5,
     .error = 1e-6,
     .split = 2,
     .accumulates = true},
    {.name = "slow", .time_us = 21, .error = -1, .split = 1, .deterministic = true}};

static json_t *written;

static void write_profile(void)
{
    const hth_link link = {25e9, 24e9, 9.5, 0.25, 1.5, 0};
    hth_profile *p;
    assert_ok(hth_profile_new("a device", (uint64_t)80 << 30, &link, &p));
    assert_ok(hth_profile_add(p, graph, layer(HTH_OP_CONV, 16, HTH_LAYOUT_C16), choices, 2));
    assert_ok(hth_profile_add(p, graph, layer(HTH_OP_CONV, 16, HTH_LAYOUT_C16), choices, 1));
    assert_ok(hth_profile_add(p, graph, layer(HTH_OP_RELU, 16, HTH_LAYOUT_C16),
                              &(hth_choice){.name = "default", .time_us = 2, .split = 1}, 1));
    json_decref(written);
    written = hth_profile_json(p);
    assert_non_null(written);
    hth_profile_close(p);
}

static void what_is_written_is_read(void **state)
{
    hth_profile *p;
    hth_choice list[4];
    int n;
    write_profile();
    assert_ok(hth_profile_from_json(written, &p));
    assert_string_equal(hth_profile_device(p), "a device");
    assert_true(hth_profile_memory(p) == (uint64_t)80 << 30);
    assert_float_equal(hth_profile_link(p)->d2h_bytes_per_s, 24e9, 1);
    assert_float_equal(hth_profile_link(p)->interference, 0.25, 0);
    assert_float_equal(hth_profile_link(p)->copy_us, 1.5, 0);
    static const hth_layout layouts[] = {HTH_LAYOUT_C16, HTH_LAYOUT_PLAIN, HTH_LAYOUT_NHWC};
    for (int i = 0; i < 3; i++) {
        assert_ok(hth_profile_find(p, graph, layer(HTH_OP_CONV, 16, layouts[i]), list, 4, &n));
        assert_int_equal(n, 2);
        assert_string_equal(list[0].name, "fast");
        assert_float_equal(list[0].time_us, 10.5, 0);
        assert_true(list[0].workspace_bytes == 1 << 20 && list[0].split == 2);
        assert_true(list[0].accumulates && !list[0].deterministic && list[0].front);
        assert_true(list[1].deterministic && list[1].front);
    }
    // Another size: a convolution has to be there, what moves bytes is estimated.
    assert_err(hth_profile_find(p, graph, layer(HTH_OP_CONV, 32, HTH_LAYOUT_PLAIN), list, 4, &n),
               HTH_ENOENT, "has no node 'node': Conv");
    assert_ok(hth_profile_find(p, graph, layer(HTH_OP_RELU, 32, HTH_LAYOUT_PLAIN), list, 4, &n));
    assert_int_equal(n, 1);
    assert_float_equal(list[0].time_us, 1 + 2 * 2, 1e-6);
    hth_profile_close(p);
}

static void bad(const char *text, hth_err err, const char *words)
{
    hth_profile *p;
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    assert_err(hth_profile_from_json(root, &p), err, words);
    assert_null(p);
    json_decref(root);
}

#define HEAD                                                                                       \
    "{\"format\":\"hearth-profile-1\",\"memory_bytes\":1e9,\"link\":{\"h2d\":1e9,\"d2h\":1e9},"

static void bad_files_are_refused(void **state)
{
    bad("{}", HTH_ENOTSUP, "format is not");
    bad("{\"format\":\"hearth-profile-1\"}", HTH_EINVAL, "'h2d' is missing");
    bad(HEAD "\"nodes\":3}", HTH_EINVAL, "'nodes' is not a list");
    bad(HEAD "\"nodes\":[{\"node\":\"Conv\"}]}", HTH_EINVAL, "nodes[0]");
    bad(HEAD "\"nodes\":[{\"node\":\"Conv\",\"choices\":[{\"name\":\"a\"}]}]}", HTH_EINVAL,
        "choices[0]: 'time_us' is missing");
    bad(HEAD "\"nodes\":[{\"node\":\"Conv\",\"choices\":[{\"name\":\"a\",\"time_us\":-1}]}]}",
        HTH_EINVAL, "'time_us' is not a valid number");
    bad(HEAD "\"nodes\":[{\"node\":\"C\",\"choices\":[{\"name\":\"a\",\"time_us\":1}]},"
             "{\"node\":\"C\",\"choices\":[{\"name\":\"a\",\"time_us\":1}]}]}",
        HTH_EINVAL, "the same node is listed twice");
}

static void allocations_fail_cleanly(void **state)
{
    hth_profile *p;
    write_profile();
    FAULT_LOOP(hth_profile_from_json(written, &p));
    hth_profile_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(allocations_fail_cleanly),
    };
    if (hth_graph_new(&graph) != HTH_OK) {
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hth_graph_free(graph);
    json_decref(written);
    return failed;
}
