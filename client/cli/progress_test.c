// SPDX-License-Identifier: Apache-2.0
#include "client/cli/progress.h"

#include "base/test.h"

#include <string.h>

static const char *line(const char *what, uint64_t seconds, int columns)
{
    static char text[512];
    return hth_progress_line(what, 1, 3, seconds, columns, text, sizeof text);
}

// However long the text is and however long it takes, a line is shorter than the terminal is wide.
static void test_fits(void **state)
{
    static const char *const what[] = {
        "", "importing",
        "epoch 12  loss 0.1234  held out 0.3456 95.1 %  12 min 3 s left  71.2 ms, stall 0.0  "
        "800.4 MiB of 12.7 GiB",
        "a-name-that-is-longer-than-any-terminal-that-anybody-would-have-on-a-desk-or-in-a-pocket-"
        "and-goes-on-and-on"};
    for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
        for (uint64_t seconds = 1; seconds < 1000000000000u; seconds *= 10) {
            for (int columns = 40; columns <= 200; columns += 20) {
                assert_in_range(strlen(line(what[i], seconds, columns)), 1, columns - 1);
            }
        }
    }
}

static void test_pieces(void **state)
{
    assert_string_equal(line("importing", 7, 80),
                        "importing [##########....................]  33 %  7 s");
    assert_string_equal(
        line("epoch 12  loss 0.1234  12 min 3 s left  800.4 MiB of 12.7 GiB", 1000, 60),
        "epoch 12  loss 0.1234  12 min 3 s left  33 %  1000 s");
    assert_string_equal(line("a-long-name-without-any-blank-in-it", 1, 40),
                        "a-long-name-without-any-blan  33 %  1 s");
}

// What a server says is shown, not obeyed; room is counted in columns.
static void test_others(void **state)
{
    assert_string_equal(line("a\033]0;t\a\n\xc2\x9b", 7, 80),
                        "a?]0;t???? [##########....................]  33 %  7 s");
    assert_string_equal(line("\xc3\xbc\xc3\xbc\xc3\xbc", 7, 80),
                        "\xc3\xbc\xc3\xbc\xc3\xbc [##########....................]  33 %  7 s");
    char wide[64] = "", cut[80] = "";
    for (int i = 0; i < 20; i++) { // of two columns each: 28 are free
        strcat(wide, "\xe4\xb8\xad");
        strcat(cut, i < 14 ? "\xe4\xb8\xad" : "");
    }
    strcat(cut, "  33 %  1 s");
    assert_string_equal(line(wide, 1, 40), cut);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fits), cmocka_unit_test(test_pieces),
                                       cmocka_unit_test(test_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
