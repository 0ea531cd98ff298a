// SPDX-License-Identifier: Apache-2.0
// Which algorithms count as readers of the same copy of a weight.
#include "base/test.h"
#include "server/compile.h"

// What a program of one node takes whose fastest algorithm is `name`, and whose other is `shared`,
// 3 % slower, beside a program that took `theirs`.
static const char *taken(const char *name, const char *shared, const char *theirs)
{
    static hth_choice list[2];
    hth_choice other = {.resident_bytes = 4096};
    hth_node node = {.op = HTH_OP_CONV};
    hth_graph g = {.nodes = &node, .n_nodes = 1};
    hth_plan_node chosen = {.alternatives = &other, .n_alternatives = 1};
    hth_program beside = {.graph = &g, .problem = {.nodes = &chosen, .n_nodes = 1}};
    hth_program p = {.graph = &g, .n_like = 1, .like = {&beside}};
    list[0] = (hth_choice){.resident_bytes = 4096, .time_us = 100};
    list[1] = (hth_choice){.resident_bytes = 4096, .time_us = 103};
    strcpy(list[0].name, name);
    strcpy(list[1].name, shared);
    strcpy(other.name, theirs);
    hth_menu m = {.n = 2, .list = list};
    assert_ok(hth_compile_like(&p, &m));
    return m.list[0].name;
}

// lowered:amx has a form of its own, of as many bytes as lowered:avx512's.
static void test_forms(void **state)
{
    (void)state;
    assert_string_equal(taken("lowered:amx", "lowered:avx512", "lowered:avx512"), "lowered:avx512");
    assert_string_equal(taken("lowered:avx512", "lowered:amx", "lowered:amx"), "lowered:amx");
    assert_string_equal(taken("jit:avx512_core", "jit:avx512", "jit:avx512"), "jit:avx512");
    assert_string_equal(taken("jit:avx512/4", "jit_1x1:avx512", "jit:avx512"), "jit:avx512/4");
    assert_string_equal(taken("winograd_4x4:avx512:run", "jit:avx512", "winograd_4x4:avx512"),
                        "winograd_4x4:avx512:run");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
