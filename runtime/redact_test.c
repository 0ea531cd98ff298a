// SPDX-License-Identifier: Apache-2.0
#include "runtime/redact.h"

#include "base/alloc.h"
#include "base/test.h"

static void test_sentences(void **state)
{
    static const struct {
        const char *said, *want;
    } sentences[] = {
        {"the model wants FP32, not INT8", "the model wants FP32, not INT8"},
        {"opening '/var/lib/hearth/a b/index': No such file", "opening '(path)': No such file"},
        {"cannot open /etc/x.conf, line 3", "cannot open (path), line 3"},
        {"/srv/m.onnx: node 'conv/3': 1/2 of it", "(path) node 'conv/3': 1/2 of it"},
        {"its file 'tensors/ab/cdef' is missing", "its file '(path)' is missing"},
        {"another process answers at ipc:///run/h.sock", "another process answers at (path)"},
        {"block 0x7ffd00a1b2c3 is free", "block (address) is free"},
        {"shape [1/2] and 0x10, a / b, /", "shape [1/2] and 0x10, a / b, /"},
        {"path=/a/b(/c/d)", "path=(path)((path))"},
        {"it's '/a", "it's '(path)"},
        {"", ""},
    };
    char out[200];
    for (size_t i = 0; i < sizeof sentences / sizeof sentences[0]; i++) {
        hth_redact(sentences[i].said, out, sizeof out);
        assert_string_equal(out, sentences[i].want);
    }
    char lengthy[2000];
    memset(lengthy, 'x', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = 0;
    hth_redact(lengthy, out, sizeof out);
    assert_true(strlen(out) < sizeof out);
}

static void test_jobs(void **state)
{
    char *json = hth_redact_jobs("[{\"job\":\"/a/b\",\"why\":\"cannot open '/srv/x y': "
                                 "no\",\"n\":[1,null,{\"reason\":\"/m/t: no\",\"data\":"
                                 "\"/srv/\\\"q\\\".st\"}]}]");
    assert_string_equal(json,
                        "[{\"job\":\"/a/b\",\"why\":\"cannot open '(path)': no\",\"n\":[1,null,"
                        "{\"reason\":\"(path) no\",\"data\":\"(path)\"}]}]");
    hth_free(json);
    assert_null(hth_redact_jobs("{"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentences),
        cmocka_unit_test(test_jobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
