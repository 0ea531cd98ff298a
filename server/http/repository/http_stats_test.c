// SPDX-License-Identifier: Apache-2.0
// Statistics and metrics over HTTP: they count what was done.
#include "tests/rig/http_rig.h"

#include <jansson.h>

static json_int_t stats_number(int port, const char *group, const char *key)
{
    reply r = get(port, "/v2/models/batch2/stats");
    expect_200(&r);
    json_t *doc = json_loadb(r.body, r.bytes, 0, NULL);
    json_t *m = json_array_get(json_object_get(doc, "model_stats"), 0);
    json_t *s = json_object_get(json_object_get(m, "inference_stats"), group);
    json_int_t v = json_integer_value(json_object_get(group[0] != 0 ? s : m, key));
    assert_string_equal(json_string_value(json_object_get(m, "version")), "1");
    json_decref(doc);
    reply_free(&r);
    return v;
}

// inference_count counts elements of the batch, success requests.
static void test_statistics(void **state)
{
    static const float x[6] = {1, 2, 3, 4, 5, 6};
    json_int_t count = stats_number(port_of(state), "", "inference_count");
    json_int_t ok = stats_number(port_of(state), "success", "count");
    json_int_t failed = stats_number(port_of(state), "fail", "count");
    const char *half =
        "{\"name\":\"INPUT%d\",\"shape\":[2,3],\"datatype\":\"%s\",\"data\":[1,2,3,4,5,6]}";
    for (int i = 0; i < 3; i++) {
        char a[160], b[160], json[400];
        snprintf(a, sizeof a, half, 0, "FP32");
        snprintf(b, sizeof b, half, 1, i < 2 ? "FP32" : "INT32");
        snprintf(json, sizeof json, "{\"inputs\":[%s,%s]}", a, b);
        reply r = post(port_of(state), "/v2/models/batch2/infer", json, x, 0);
        assert_int_equal(r.status, i < 2 ? 200 : 400);
        reply_free(&r);
    }
    assert_int_equal(stats_number(port_of(state), "", "inference_count"), count + 4);
    assert_int_equal(stats_number(port_of(state), "success", "count"), ok + 2);
    assert_int_equal(stats_number(port_of(state), "fail", "count"), failed + 1);
    assert_true(stats_number(port_of(state), "compute_infer", "ns") > 0);
}

static void test_metrics(void **state)
{
    int port = ((server_rig *)*state)->metrics_port;
    reply r = get(port_of(state), "/metrics");
    assert_int_equal(r.status, 404);
    reply_free(&r);
    r = get(port_of(state), "/v2/models/ident/ready"); // it is loaded now
    expect_200(&r);
    reply_free(&r);
    r = get(port, "/metrics");
    expect_200(&r);
    assert_non_null(
        strstr(r.body, "\nnv_inference_request_success{model=\"ident\",version=\"1\"} "));
    assert_non_null(strstr(r.body, "\nhearth_ledger_free_bytes "));
    assert_non_null(strstr(r.body, "\nhearth_ledger_difference_bytes 0\n"));
    assert_non_null(strstr(r.body, "\nhearth_model_pinned_bytes{model=\"ident\",version=\"1\"} 0"));
    assert_non_null(strstr(r.body, "\n# TYPE hearth_tenant_device_bytes gauge\n"));
    assert_non_null(strstr(header(&r, "Content-Type"), "text/plain; charset=utf-8"));
    reply_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_metrics),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
