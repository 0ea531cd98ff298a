// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

static void test_basic(void **state)
{
    int64_t live = hth_alloc_live();
    char *a = hth_alloc(0), *z = hth_calloc(3, 5), *al = hth_alloc_aligned(100, 4096);
    assert_non_null(a);
    assert_memory_equal(z, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 15);
    assert_int_equal((uintptr_t)al % 4096, 0);
    a = hth_realloc(a, 10, 10);
    assert_non_null(a);
    assert_int_equal(hth_alloc_live(), live + 3);
    hth_free(a), hth_free(z), hth_free(al), hth_free(NULL);
    assert_int_equal(hth_alloc_live(), live);
}

static void test_strings(void **state)
{
    char *d = hth_strdup("hearth"), *n = hth_strndup("hearth", 3),
         *p = hth_asprintf("%d-%s", 5, "x");
    void *m = hth_memdup("ab", 2);
    assert_string_equal(d, "hearth");
    assert_string_equal(n, "hea");
    assert_string_equal(p, "5-x");
    assert_memory_equal(m, "ab", 2);
    hth_free(d), hth_free(n), hth_free(p), hth_free(m);
}

static void test_overflow(void **state)
{
    uint64_t out;
    assert_int_equal(hth_mul_bytes(1u << 31, 1u << 31, &out), 0);
    assert_true(out == (uint64_t)1 << 62);
    assert_int_equal(hth_mul_bytes(UINT64_MAX, 2, &out), -1);
    assert_null(hth_calloc(SIZE_MAX / 2, 4));
    void *p = hth_alloc(8);
    assert_null(hth_realloc(p, SIZE_MAX / 2, 4));
    hth_free(p); // still the caller's
}

static void test_fault(void **state)
{
    hth_fault_alloc(2);
    void *a = hth_alloc(1), *b = hth_alloc(1), *c = hth_alloc(1);
    assert_true(a != NULL && b == NULL && c != NULL);
    hth_free(a), hth_free(c);
    hth_fault_alloc(1);
    assert_null(hth_strdup("x"));
    hth_fault_alloc(1);
    hth_fault_alloc(0);
    a = hth_alloc(1);
    assert_non_null(a);
    hth_free(a);
}

static void test_grow(void **state)
{
    int *v = NULL, n = 0, cap = 0;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(HTH_GROW(v, n, cap), 0);
        v[n++] = i;
    }
    assert_int_equal(v[999], 999);
    n = cap;
    hth_fault_alloc(1);
    assert_int_equal(HTH_GROW(v, n, cap), -1);
    assert_int_equal(v[999], 999);
    hth_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_basic),    cmocka_unit_test(test_strings),
        cmocka_unit_test(test_overflow), cmocka_unit_test(test_fault),
        cmocka_unit_test(test_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
