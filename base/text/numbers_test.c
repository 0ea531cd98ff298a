// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"
#include "base/text/numbers.h"

static void test_number(void **state)
{
    static const struct {
        const char *text;
        double is; // 0: none
    } cases[] = {{"0.5", 0.5},        {"1/255", 1 / 255.0},
                 {" 1 / 4 ", 0.25},   {"-2e3", -2000},
                 {"3/-.5", -6},       {"", 0},
                 {"1/", 0},           {"/2", 0},
                 {"1/0", 0},          {"1/2/3", 0},
                 {"1/255x", 0},       {"x", 0},
                 {"1 2", 0},          {"nan", 0},
                 {"inf", 0},          {"1/inf", 0},
                 {"1e300/1e-300", 0}, {"1e999", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double v = 7;
        if (hth_number_of(cases[i].text, &v) != (cases[i].is != 0) || v != cases[i].is) {
            fail_msg("'%s' is %g", cases[i].text, v);
        }
    }
    double v = 7;
    assert_true(hth_number_of("0", &v)); // a number, too
    assert_true(v == 0);
}

static void test_list(void **state)
{
    static const struct {
        const char *text;
        int n;
        double list[3];
    } cases[] = {{"1,0.5,2", 3, {1, 0.5, 2}},
                 {" [0.5, .25 1e0] ", 3, {0.5, 0.25, 1}},
                 {"(2, 4, 8)", 3, {2, 4, 8}},
                 {"(2,)", 1, {2}},
                 {"[ 640 ]", 1, {640}},
                 {"1\n2\t3\r\n", 3, {1, 2, 3}},
                 {"1 , -2", 2, {1, -2}},
                 {"7", 1, {7}},
                 {"1,2,3,4,5", 5, {1, 2, 3}}, // the first three are kept
                 {"", 0, {0}},
                 {"[]", 0, {0}},
                 {" ( ) ", 0, {0}},
                 {"a", -1, {0}},
                 {"1,a", -1, {1}},
                 {"1,,2", -1, {1}},
                 {",1", -1, {0}},
                 {",", -1, {0}},
                 {"1;2", -1, {1}},
                 {"1-2", -1, {1}},
                 {"[1", -1, {1}},
                 {"1]", -1, {1}},
                 {"[1)", -1, {1}},
                 {"[1] 2", -1, {1}},
                 {"[[1]]", -1, {0}},
                 {"1,nan", -1, {1}},
                 {"inf", -1, {0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double list[3] = {0};
        int n = hth_numbers_of(cases[i].text, 3, list);
        if (n != cases[i].n || memcmp(list, cases[i].list, sizeof list) != 0) {
            fail_msg("'%s': %d numbers: %g %g %g", cases[i].text, n, list[0], list[1], list[2]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_number), cmocka_unit_test(test_list)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
