// SPDX-License-Identifier: Apache-2.0
#include "client/cli/top/keys.h"

#include "base/test.h"

#include <string.h>

// What terminals send: xterm in both of its modes, rxvt, the Linux console; with modifiers, too.
static void test_sequences(void **state)
{
    static const struct {
        const char *bytes;
        int key;
    } cases[] = {{"q", 'q'},
                 {"\t", '\t'},
                 {"?", '?'},
                 {"\033[A", HTH_KEY_UP},
                 {"\033OA", HTH_KEY_UP},
                 {"\033[1;5A", HTH_KEY_UP},
                 {"\033[B", HTH_KEY_DOWN},
                 {"\033[5~", HTH_KEY_PAGE_UP},
                 {"\033[6~", HTH_KEY_PAGE_DOWN},
                 {"\033[6;2~", HTH_KEY_PAGE_DOWN},
                 {"\033[H", HTH_KEY_HOME},
                 {"\033OH", HTH_KEY_HOME},
                 {"\033[1~", HTH_KEY_HOME},
                 {"\033[7~", HTH_KEY_HOME},
                 {"\033[F", HTH_KEY_END},
                 {"\033[4~", HTH_KEY_END},
                 {"\033[8~", HTH_KEY_END},
                 {"\033[3~", HTH_KEY_OTHER},
                 {"\033[99999999999999~", HTH_KEY_OTHER},
                 {"\033[113;5u", HTH_KEY_OTHER}, // Ctrl-Q, as some send it
                 {"\033OP", HTH_KEY_OTHER},
                 {"\xc3", HTH_KEY_OTHER}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int key;
        char bytes[40];
        size_t n = strlen(cases[i].bytes);
        snprintf(bytes, sizeof bytes, "%sq", cases[i].bytes);
        assert_int_equal(hth_key_next(bytes, n + 1, &key), n); // the q is a key of its own
        assert_int_equal(key, cases[i].key);
        for (size_t k = 0; n > 1 && k < n; k++) { // a part of it is none yet
            assert_int_equal(hth_key_next(bytes, k, &key), 0);
        }
    }
}

static void test_others(void **state)
{
    char long_one[64] = "\033[";
    int key;
    assert_int_equal(hth_key_next("\033q", 2, &key), 1); // Esc, then q
    assert_int_equal(key, HTH_KEY_OTHER);
    assert_int_equal(hth_key_next("q", 1, &key), 1);
    memset(long_one + 2, '1', sizeof long_one - 2); // of no end: dropped
    assert_int_equal(hth_key_next(long_one, 10, &key), 0);
    assert_int_equal(hth_key_next(long_one, sizeof long_one, &key), sizeof long_one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sequences),
                                       cmocka_unit_test(test_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
