// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include "base/test.h"

#include <stdio.h>
#include <string.h>

static void test_next(void **state)
{
    static const struct {
        const char *text;
        size_t bytes;
        uint32_t code;
    } cases[] = {
        {"a", 1, 'a'},
        {"\xc3\xbc", 2, 0xfc},
        {"\xe4\xb8\xad", 3, 0x4e2d},
        {"\xf0\x9f\x98\x80", 4, 0x1f600},
        {"\xf4\x8f\xbf\xbf", 4, 0x10ffff},
        {"\x80", 1, HTH_UTF8_NONE},             // goes on with nothing
        {"\xff", 1, HTH_UTF8_NONE},             // no character begins so
        {"\xc3z", 1, HTH_UTF8_NONE},            // its second byte is another character
        {"\xe4\xb8z", 1, HTH_UTF8_NONE},        // .. its third
        {"\xc1\xbf", 1, HTH_UTF8_NONE},         // a longer form than there has to be
        {"\xe0\x82\x9b", 1, HTH_UTF8_NONE},     // .. of a control character
        {"\xf0\x80\x80\x9b", 1, HTH_UTF8_NONE}, // .. in four bytes
        {"\xed\xa0\x80", 1, HTH_UTF8_NONE},     // a surrogate
        {"\xf4\x90\x80\x80", 1, HTH_UTF8_NONE}, // after the last one
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t code;
        size_t n = strlen(cases[i].text);
        assert_int_equal(hth_utf8_next(cases[i].text, n, &code), cases[i].bytes);
        assert_int_equal(code, cases[i].code);
        for (size_t cut = 1; cut < cases[i].bytes; cut++) { // in memory of just that size
            char *chunk = test_malloc(cut);
            memcpy(chunk, cases[i].text, cut);
            assert_int_equal(hth_utf8_next(chunk, cut, &code), 0);
            test_free(chunk);
        }
    }
}

static void test_plain(void **state)
{
    static const struct {
        const char *text, *plain;
    } cases[] = {
        {"", ""},
        {"n\033[2J\r\n\t\x7f", "n?[2J????"},
        {"\xc2\x9b \xc3\xa9 \xe4\xb8\xad", "?? \xc3\xa9 \xe4\xb8\xad"},
        {"\x9b\xe0\x82\x9b.", "????."},             // alone, and where it is no character
        {"a\xe2\x80\xae\xe2\x81\xa6z", "a??????z"}, // to the left
        {"\xe2\x80\xa8.\xe2\x80\xa6", "???.\xe2\x80\xa6"},
        {"cut \xe4\xb8", "cut ??"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[40];
        snprintf(text, sizeof text, "%s", cases[i].text);
        hth_utf8_plain(text);
        assert_string_equal(text, cases[i].plain);
    }
}

#define UMLAUTS "\xc3\xbc\xc3\xb6"         // two columns
#define WIDE    "\xe4\xb8\xad\xe6\x96\x87" // two characters, four columns
#define ACCENT  "e\xcc\x81"                // e, and the accent by itself
#define FACE    "\xf0\x9f\x98\x80"

static void test_columns(void **state)
{
    assert_int_equal(hth_utf8_columns(""), 0);
    assert_int_equal(hth_utf8_columns("abc"), 3);
    assert_int_equal(hth_utf8_columns(UMLAUTS), 2);
    assert_int_equal(hth_utf8_columns(WIDE), 4);
    assert_int_equal(hth_utf8_columns(ACCENT), 1);
    assert_int_equal(hth_utf8_columns(FACE), 2);
    assert_int_equal(hth_utf8_columns("\xff\xe4\xb8"), 3); // '?' three times
    assert_int_equal(hth_utf8_fit(WIDE, 3), 3);            // no half of a character
    assert_int_equal(hth_utf8_fit(WIDE, 4), 6);
    assert_int_equal(hth_utf8_fit(ACCENT "x", 1), 3); // what combines comes along
    assert_int_equal(hth_utf8_fit("abc", 0), 0);
    assert_int_equal(hth_utf8_last(WIDE, 3), 3);
    assert_int_equal(hth_utf8_last(UMLAUTS "abc", 4), 2);
    assert_int_equal(hth_utf8_last("abc", 9), 0);
}

// As printf uses it.
static void test_pad(void **state)
{
    char text[40];
    snprintf(text, sizeof text, "%-*s|", hth_utf8_pad(UMLAUTS, 4), UMLAUTS);
    assert_string_equal(text, UMLAUTS "  |");
    snprintf(text, sizeof text, "%*s|", hth_utf8_pad(WIDE, 5), WIDE);
    assert_string_equal(text, " " WIDE "|");
    snprintf(text, sizeof text, "%*s|", hth_utf8_pad(WIDE, 2), WIDE); // has no room
    assert_string_equal(text, WIDE "|");
}

static void test_hidden(void **state)
{
    static const uint32_t hidden[] = {0,      0x1f,   0x7f,    0x80,    0x9f,
                                      0xad,   0x61c,  0x200b,  0x200f,  0x202a,
                                      0x202e, 0x2060, 0x2066,  0x206f,  0xfe0f,
                                      0xfeff, 0xfffb, 0xe0001, 0xe0fff, HTH_UTF8_NONE},
                          seen[] = {' ',    '~',    0xa0,    0xac,    0xae,   0x300,  0x61b,
                                    0x61d,  0x200a, 0x2010,  0x2070,  0xfdff, 0xfe10, 0xfefe,
                                    0xff00, 0xfffc, 0x1f525, 0xdffff, 0xe1000};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
        assert_true(hth_utf8_hidden(hidden[i]));
    }
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        assert_false(hth_utf8_hidden(seen[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_next), cmocka_unit_test(test_plain),
                                       cmocka_unit_test(test_columns), cmocka_unit_test(test_pad),
                                       cmocka_unit_test(test_hidden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
