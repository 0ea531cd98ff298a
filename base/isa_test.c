// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

#include "base/isa.h"
#include "base/settings.h"

static void test_limit(void **state)
{
    int all = hth_isa_bytes();
    assert_true(all == 64 || all == 32 || all == 16);
    assert_ok(hth_isa_limit("sse2"));
    assert_int_equal(hth_isa_bytes(), 16);
    assert_ok(hth_isa_limit("avx2"));
    assert_int_equal(hth_isa_bytes(), all < 32 ? all : 32);
    assert_false(hth_isa_amx());
    assert_err(hth_isa_limit("avx3"), HTH_EINVAL, "avx512, avx2 or sse2");
    assert_int_equal(hth_isa_bytes(), all < 32 ? all : 32); // as it was
    assert_ok(hth_isa_limit(NULL));
    assert_int_equal(hth_isa_bytes(), all);
    assert_ok(hth_setting_set("kernels.vector_bytes", "40")); // no such vectors: the next below
    assert_int_equal(hth_isa_bytes(), all < 32 ? all : 32);
    assert_ok(hth_isa_limit(""));
    assert_true(!hth_isa_amx() || all == 64);
}

static void test_use(void **state)
{
    int all = hth_isa_bytes();
    bool amx = hth_isa_amx();
    hth_isa_use(hth_isa_find("sse2"));
    assert_int_equal(hth_isa_bytes(), 16);
    hth_isa_use(hth_isa_find("avx512"));
    assert_int_equal(hth_isa_bytes(), all); // never more than there is
    assert_false(hth_isa_amx());            // newer than the set
    assert_ok(hth_isa_limit("sse2"));
    assert_int_equal(hth_isa_bytes(), 16); // the lower of both limits
    assert_ok(hth_isa_limit(NULL));
    hth_isa_use(0);
    assert_int_equal(hth_isa_bytes(), all);
    assert_int_equal(hth_isa_amx(), amx);
}

static void test_names(void **state)
{
    static const char *const names[] = {"avx512", "avx2", "sse2"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hth_isa_find(names[i]), 64 >> i);
        assert_string_equal(hth_isa_name(64 >> i), names[i]);
    }
    assert_int_equal(hth_isa_find("avx"), 0);
    assert_int_equal(hth_isa_find(""), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limit), cmocka_unit_test(test_use),
                                       cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
