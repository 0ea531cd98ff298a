// SPDX-License-Identifier: Apache-2.0
#include "client/cli/top/page.h"

#include "base/test.h"

#include <string.h>

static char out[4096];

static hth_page page_open(int columns)
{
    memset(out, 0, sizeof out);
    hth_page page = {.file = fmemopen(out, sizeof out, "w"), .columns = columns};
    assert_non_null(page.file);
    return page;
}

// No piece leaves the line, and none has half of a wide character.
static void test_columns(void **state)
{
    hth_page page = page_open(5);
    hth_page_put(&page, HTH_STYLE_PLAIN, "ab");
    hth_page_put(&page, HTH_STYLE_PLAIN, "\xe4\xb8\xad\xe6\x96\x87"); // two columns each
    assert_int_equal(page.at, 4);
    hth_page_put(&page, HTH_STYLE_PLAIN, "e\xcc\x81x"); // an accent that combines
    hth_page_put(&page, HTH_STYLE_PLAIN, "more");
    hth_page_fill(&page, 9);
    assert_int_equal(page.at, 5);
    hth_page_end(&page);
    hth_page_fill(&page, 3);
    hth_page_put(&page, HTH_STYLE_PLAIN, "cdefg");
    hth_page_end(&page);
    assert_int_equal(page.ended, 2);
    fclose(page.file);
    assert_string_equal(out, "ab\xe4\xb8\xad"
                             "e\xcc\x81\n   cd\n");
}

static void test_lines(void **state)
{
    hth_page page = page_open(80);
    page.lines = 2;
    for (int i = 0; i < 4; i++) {
        hth_page_format(&page, HTH_STYLE_PLAIN, "%d", i);
        hth_page_fill(&page, 3);
        hth_page_end(&page);
    }
    assert_int_equal(page.ended, 2);
    fclose(page.file);
    assert_string_equal(out, "0  \n1  \n");
}

// What others wrote styles nothing; attributes are there without colors.
static void test_styles(void **state)
{
    static const struct {
        bool styles, colors;
        const char *want;
    } cases[] = {{false, true, "a??[1mb\n"},
                 {true, false, "\033[1ma?\033[0m?[1mb\n"},
                 {true, true, "\033[1ma?\033[0m\033[32m?[1mb\033[0m\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hth_page page = page_open(80);
        page.styles = cases[i].styles;
        page.colors = cases[i].colors;
        hth_page_put(&page, HTH_STYLE_HEAD, "a\x07");
        hth_page_put(&page, HTH_STYLE_WORKS, "\033[1mb");
        hth_page_put(&page, HTH_STYLE_FAILED, "");
        hth_page_end(&page);
        fclose(page.file);
        assert_string_equal(out, cases[i].want);
    }
}

static const char *shortened(const char *text, int columns, bool middle, bool utf8)
{
    static char s[100];
    hth_page_shorten(text, columns, middle, utf8, s, sizeof s);
    return s;
}

static void test_shorten(void **state)
{
    assert_string_equal(shortened("model-12", 8, true, true), "model-12");
    assert_string_equal(shortened("model-12", 7, true, true), "mod\xe2\x80\xa6-12");
    assert_string_equal(shortened("model-12", 7, true, false), "mod..12");
    assert_string_equal(shortened("a sentence", 7, false, true), "a sent\xe2\x80\xa6");
    assert_string_equal(shortened("a sentence", 2, false, true), "a ");
    assert_string_equal(shortened("a sentence", -1, false, true), "");
    // wide characters at either end: five of two columns in seven
    assert_string_equal(
        shortened("\xe4\xb8\x80\xe4\xba\x8c\xe4\xb8\x89\xe5\x9b\x9b\xe4\xba\x94", 7, true, true),
        "\xe4\xb8\x80\xe2\x80\xa6\xe4\xba\x94");
}

static void test_terminals(void **state)
{
    static const char *const colors[] = {"xterm", "xterm-256color", "screen", "tmux-256color",
                                         "linux", "rxvt-unicode",   "st",     "xterm-kitty",
                                         "foot"};
    static const char *const none[] = {"dumb", "", NULL, "vt100", "vt220", "xterm-mono", "linux-m"};
    for (size_t i = 0; i < sizeof colors / sizeof *colors; i++) {
        assert_true(hth_page_moves(colors[i]));
        assert_true(hth_page_colors(colors[i], NULL));
        assert_true(hth_page_colors(colors[i], "")); // as no-color.org has it: not empty
        assert_false(hth_page_colors(colors[i], "1"));
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(hth_page_moves(none[i]), i > 2);
        assert_false(hth_page_colors(none[i], NULL));
    }
    assert_true(hth_page_utf8("C.UTF-8") && hth_page_utf8("de_DE.utf8@euro"));
    assert_false(hth_page_utf8("C") || hth_page_utf8("de_DE.ISO-8859-1") || hth_page_utf8(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns),   cmocka_unit_test(test_lines),
        cmocka_unit_test(test_styles),    cmocka_unit_test(test_shorten),
        cmocka_unit_test(test_terminals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
