// SPDX-License-Identifier: Apache-2.0
// docs/openapi.json and the table of routes name the same requests, each the other's.
#include "base/test.h"
#include "server/http/http_call.h"

#include <stdio.h>
#include <string.h>

static json_t *load(void)
{
    json_error_t why;
    json_t *doc = json_load_file("docs/openapi.json", JSON_REJECT_DUPLICATES, &why);
    if (doc == NULL) {
        fail_msg("docs/openapi.json:%d: %s", why.line, why.text);
    }
    return doc;
}

// starred replaces what a path has in braces by '*', and leaves out "/versions/{version}" and the
// first '/'. Returns whether it had a version.
static bool starred(const char *path, char out[200])
{
    static const char version[] = "/versions/{version}";
    const char *at = strstr(path, version);
    size_t n = 0;
    for (const char *p = path + 1; *p != 0; p++) {
        p += p == at ? sizeof version - 1 : 0;
        if (*p == 0) {
            break;
        }
        if (*p == '{') {
            p = strchr(p, '}');
            assert_non_null(p);
        }
        out[n++] = *p == '}' ? '*' : *p;
        assert_true(n < 199);
    }
    out[n] = 0;
    return at != NULL;
}

// is_route tells whether the table has it.
static bool is_route(const char *path, const char *verb)
{
    char want[200];
    bool versioned = starred(path, want), may = false;
    const char *at, *of = "";
    for (size_t i = 0; (at = hth_http_route_at(i, &of, &may)) != NULL; i++) {
        if (strcmp(at, want) == 0 && strcmp(of, verb) == 0) {
            return may || !versioned;
        }
    }
    return false;
}

// is_described tells whether the file has it, with or without a version.
static bool is_described(json_t *paths, const char *route, const char *verb, bool versioned)
{
    const char *path;
    char is[200];
    json_t *item;
    json_object_foreach(paths, path, item)
    {
        bool v = starred(path, is);
        if (v == versioned && strcmp(is, route) == 0 && json_object_get(item, verb) != NULL) {
            return true;
        }
    }
    return false;
}

static void test_file_has_only_routes(void **state)
{
    static const char *const verbs[] = {"get", "post", "put", "delete", "patch", "head"};
    json_t *doc = load(), *paths = json_object_get(doc, "paths"), *item;
    const char *path;
    assert_true(json_object_size(paths) > 60);
    json_object_foreach(paths, path, item)
    {
        for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
            bool here = json_object_get(item, verbs[i]) != NULL;
            if (here && !is_route(path, verbs[i])) {
                fail_msg("docs/openapi.json has %s %s, which is no route", verbs[i], path);
            }
        }
    }
    json_decref(doc);
}

static void test_routes_are_in_file(void **state)
{
    json_t *doc = load(), *paths = json_object_get(doc, "paths");
    const char *route, *verb = "";
    bool versioned;
    size_t n = 0;
    for (; (route = hth_http_route_at(n, &verb, &versioned)) != NULL; n++) {
        if (!is_described(paths, route, verb, false)) {
            fail_msg("docs/openapi.json lacks %s /%s", verb, route);
        }
        if (versioned && !is_described(paths, route, verb, true)) {
            fail_msg("docs/openapi.json lacks %s /%s of a version", verb, route);
        }
    }
    assert_true(n > 60);
    json_decref(doc);
}

// A check that finds nothing would always pass.
static void test_check_notices(void **state)
{
    json_t *paths = json_pack("{s:{s:{}}}", "/v2/models/{model}/infer", "post");
    assert_true(is_route("/v2/models/{model}/versions/{version}/infer", "post"));
    assert_false(is_route("/v2/models/{model}/infer", "get"));
    assert_false(is_route("/v2/hearth/jobs/{job}/versions/{version}/logs", "get"));
    assert_false(is_route("/v2/nothing", "get"));
    assert_true(is_described(paths, "v2/models/*/infer", "post", false));
    assert_false(is_described(paths, "v2/models/*/infer", "post", true));
    assert_false(is_described(paths, "v2/models/*", "post", false));
    json_decref(paths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_has_only_routes),
        cmocka_unit_test(test_routes_are_in_file),
        cmocka_unit_test(test_check_notices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
