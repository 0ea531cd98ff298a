// SPDX-License-Identifier: Apache-2.0
#include "base/size.h"

#include "base/test.h"

static void test_text(void **state)
{
    assert_string_equal(hth_size_of(0).text, "0 B");
    assert_string_equal(hth_size_of(1023).text, "1023 B");
    assert_string_equal(hth_size_of(1024).text, "1.0 KiB");
    assert_string_equal(hth_size_of(28416671).text, "27.1 MiB");
    assert_string_equal(hth_size_of((uint64_t)5 << 40).text, "5.0 TiB");
    assert_string_equal(hth_size_of(UINT64_MAX).text, "16777216.0 TiB");
}

static void test_pair(void **state)
{
    hth_size a, b;
    hth_size_pair(1 << 20, 3 << 20, &a, &b);
    assert_string_equal(a.text, "1.0 MiB");
    assert_string_equal(b.text, "3.0 MiB");
    hth_size_pair(28416671, 28416672, &a, &b);
    assert_string_equal(a.text, "28416671 B");
    assert_string_equal(b.text, "28416672 B");
    hth_size_pair(1024, 1024, &a, &b);
    assert_string_equal(a.text, "1.0 KiB");
}

static void test_up_and_down(void **state)
{
    assert_string_equal(hth_size_up(28416671).text, "27.2 MiB"); // 27.1003
    assert_string_equal(hth_size_down(28416671).text, "27.1 MiB");
    assert_string_equal(hth_size_down((27 << 20) + 1047527).text, "27.9 MiB"); // 27.999
    assert_string_equal(hth_size_up(27 << 20).text, "27.0 MiB");
    assert_string_equal(hth_size_down(27 << 20).text, "27.0 MiB");
    assert_string_equal(hth_size_up(1023).text, "1023 B");
    assert_string_equal(hth_size_exact(28416671).text, "28416671 B");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text), cmocka_unit_test(test_pair),
                                       cmocka_unit_test(test_up_and_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
