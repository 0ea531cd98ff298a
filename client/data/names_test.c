// SPDX-License-Identifier: Apache-2.0
// The names of classes in every way that they are written, and what is wrong with a list of them.
#include "base/test.h"
#include "client/data/names.h"

static hth_err parse(const char *text, hth_class_names *out)
{
    return hth_class_names_parse(text, strlen(text), out);
}

// check compares names, which `wanted` has with a '|' between them.
static void check(const char *text, const char *wanted)
{
    char got[300] = "";
    hth_class_names names;
    int64_t live = hth_alloc_live();
    if (parse(text, &names) != HTH_OK) {
        fail_msg("%s: %s", text, hth_err_detail());
    }
    for (int i = 0; i < names.n; i++) {
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i > 0 ? "|" : "",
                 names.name[i]);
    }
    assert_string_equal(got, wanted);
    hth_class_names_fini(&names);
    assert_int_equal(hth_alloc_live(), live);
}

static void test_literals(void **state)
{
    check("['cat', \"dog\"]", "cat|dog");
    check(" [ 'cat' , 'dog' , ] \n", "cat|dog");
    check("[\"a\"]", "a");
    check("{0: 'tench', 1: \"it's\"}", "tench|it's");
    check("{1: 'b', 0: 'a', 2: 'c',}", "a|b|c");
    check("{\"0\": \"cat\", \"1\": \"dog\"}", "cat|dog");
    check("{'1':'b','0':'a'}", "a|b");
    check("{\n  0: 'a',\n  1: 'b'\n}\n", "a|b");
    check("['a, b', '[c]', '{0: 1}']", "a, b|[c]|{0: 1}");
    check("\xef\xbb\xbf['a']", "a");
}

static void test_escapes(void **state)
{
    check("[\"a\\\"b\", 'c\\'d', 'e\\\\f', '\\/']", "a\"b|c'd|e\\f|/");
    check("['Z\\xeb', \"Z\\u00eb\", 'Z\\U000000EB', 'Z\xc3\xab']",
          "Z\xc3\xab|Z\xc3\xab|Z\xc3\xab|Z\xc3\xab");
    check("['\\u732b', \"\\ud83d\\udc08\", '\\U0001f408']",
          "\xe7\x8c\xab|\xf0\x9f\x90\x88|\xf0\x9f\x90\x88");
    check("['a\\tb\\nc']", "a\tb\nc");
}

static void test_lines(void **state)
{
    check("cat\ndog\n", "cat|dog");
    check("cat\r\ndog fish \r\n\r\n", "cat|dog fish");
    check("tench, Tinca tinca\ngoldfish, Carassius auratus",
          "tench, Tinca tinca|goldfish, Carassius auratus");
    check("cat, dog,fish", "cat|dog|fish");
    check("cat,dog,fish\n", "cat|dog|fish"); // a line of its own, as echo writes it
    check("\r\ncat,dog\r\n", "cat|dog");
    check("cat", "cat");
    check("0\n1\n2\n", "0|1|2");
}

static void test_wrong(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "the list of classes is empty"},
        {" \n ", "the list of classes is empty"},
        {"[]", "the list of classes is empty"},
        {"{}", "the list of classes is empty"},
        {"a\n\nb", "class 1 of the list has no name"},
        {"a,,b", "class 1 of the list has no name"},
        {"['a', 'b'", "no comma where one is needed"},
        {"['a' 'b']", "no comma where one is needed"},
        {"['a'] ['b']", "something after its end"},
        {"['a", "a string without an end"},
        {"['a\\", "an escape"},
        {"['\\q']", "an escape"},
        {"['\\x4']", "an escape"},
        {"['\\ud83d\\u0041']", "an escape"},
        {"['\\ud83d']", "not UTF-8"},
        {"['\\U00110000']", "an escape"},
        {"['\\u0000']", "not UTF-8"},
        {"[1, 2]", "something other than strings"},
        {"[['a']]", "something other than strings"},
        {"{'a': 0}", "a key that is no number"},
        {"{a: 'b'}", "a key that is no number"},
        {"{'0: 'b'}", "a key that is no number"},
        {"{-1: 'b'}", "a key that is no number"},
        {"{0 'b'}", "a key without a name"},
        {"{0: 'a', 0: 'b'}", "class 0 has two names"},
        {"{1: 'a'}", "of the classes 0 to 1, only 1 have names"},
        {"a\n\xff\n", "the name of class 1 is not UTF-8"},
        {"['\xc3']", "the name of class 0 is not UTF-8"},
    };
    hth_class_names names;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t live = hth_alloc_live();
        assert_err(parse(cases[i].text, &names), HTH_EINVAL, cases[i].says);
        assert_int_equal(names.n, 0);
        assert_null(names.name);
        assert_int_equal(hth_alloc_live(), live);
    }
    assert_err(parse("{1048576: 'a'}", &names), HTH_ETOOBIG, "from 0 to 1048575");
    assert_err(parse("{99999999999999999999: 'a'}", &names), HTH_ETOOBIG, "from 0 to 1048575");
}

// Every cut of a list is refused, or, of lines, a shorter list.
static void test_cut(void **state)
{
    static const char text[] = "{0: 'a\\u00eb', 1: \"b\\ud83d\\udc08\"}";
    hth_class_names names;
    for (size_t n = 1; n + 1 < sizeof text; n++) {
        char *copy = hth_memdup(text, n); // what is read beyond it a sanitizer sees
        assert_int_equal(hth_class_names_parse(copy, n, &names), HTH_EINVAL);
        hth_free(copy);
    }
}

static void test_no_memory(void **state)
{
    hth_class_names names;
    FAULT_LOOP(parse("{0: 'a', 1: 'b'}", &names));
    hth_class_names_fini(&names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_literals), cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_lines),    cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_cut),      cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
