// SPDX-License-Identifier: Apache-2.0
// Answers of two devices, written down as they answer, and what is made of them.
#include "engine/router/router_merge.h"

#include "base/test.h"

#include <string.h>

static const char *const names[] = {"cuda:0", "cpu:0"};

static json_t *merged(const char *query, const char *a, const char *b)
{
    json_t *docs[] = {a != NULL ? json_loads(a, 0, NULL) : NULL,
                      b != NULL ? json_loads(b, 0, NULL) : NULL};
    assert_true((a == NULL || docs[0] != NULL) && (b == NULL || docs[1] != NULL));
    json_t *out = hth_router_merge(hth_command_find(query), docs, names, 2);
    json_decref(docs[0]);
    json_decref(docs[1]);
    return out;
}

// expect compares with JSON, whatever the order of keys.
static void expect(json_t *got, const char *want)
{
    json_t *doc = json_loads(want, 0, NULL);
    assert_non_null(doc);
    if (!json_equal(got, doc)) {
        fail_msg("%s\nis not\n%s", json_dumps(got, JSON_COMPACT | JSON_SORT_KEYS),
                 json_dumps(doc, JSON_COMPACT | JSON_SORT_KEYS));
    }
    json_decref(doc);
    json_decref(got);
}

static void stats(void **state)
{
    const char *a = "{\"ledger\":{\"budget_bytes\":100,\"free_bytes\":60},"
                    "\"residency\":{\"entries\":2},\"memory_waits\":{\"requests\":1,\"bytes\":5},"
                    "\"models\":[{\"name\":\"m\",\"version\":1,\"tenant\":\"t\",\"weight_bytes\":9,"
                    "\"requests\":3,\"arena_bytes\":5,\"times\":{\"samples\":4,\"last_ms\":70},"
                    "\"failed\":[0,1],\"quantiles_ns\":[5,9],"
                    "\"batches\":[{\"samples\":1,\"runs\":2}]}],"
                    "\"jobs\":[{\"name\":\"j\",\"job_bytes\":8}],"
                    "\"tenants\":[{\"name\":\"t\",\"device_bytes\":7}]}";
    const char *b = "{\"ledger\":{\"budget_bytes\":10,\"free_bytes\":1},"
                    "\"residency\":{\"entries\":1},\"memory_waits\":{\"requests\":2,\"bytes\":6},"
                    "\"models\":[{\"name\":\"m\",\"version\":2,\"requests\":1,\"batches\":[]},"
                    "{\"name\":\"m\",\"version\":1,\"tenant\":\"t\",\"weight_bytes\":9,"
                    "\"requests\":30,\"arena_bytes\":4,\"times\":{\"samples\":40,\"last_ms\":60},"
                    "\"failed\":[2,0],\"quantiles_ns\":[7,8],"
                    "\"batches\":[{\"samples\":1,\"runs\":5},{\"samples\":2,\"runs\":1}]}],"
                    "\"jobs\":[],\"tenants\":[{\"name\":\"u\",\"device_bytes\":1},"
                    "{\"name\":\"t\",\"device_bytes\":2}]}";
    expect(merged("stats", a, b),
           "{\"ledger\":{\"budget_bytes\":110,\"free_bytes\":61},\"residency\":{\"entries\":3},"
           "\"memory_waits\":{\"requests\":3,\"bytes\":11},"
           "\"models\":[{\"name\":\"m\",\"version\":1,\"tenant\":\"t\",\"weight_bytes\":9,"
           "\"requests\":33,\"arena_bytes\":5,\"times\":{\"samples\":44,\"last_ms\":70},"
           "\"failed\":[2,1],\"quantiles_ns\":[7,9],\"batches\":[{\"samples\":1,\"runs\":7},"
           "{\"samples\":2,\"runs\":1}],\"devices\":[\"cuda:0\",\"cpu:0\"]},"
           "{\"name\":\"m\",\"version\":2,\"requests\":1,\"batches\":[],\"devices\":[\"cpu:0\"]}],"
           "\"jobs\":[{\"name\":\"j\",\"job_bytes\":8,\"device\":\"cuda:0\"}],"
           "\"tenants\":[{\"name\":\"t\",\"device_bytes\":9,\"devices\":[\"cuda:0\",\"cpu:0\"]},"
           "{\"name\":\"u\",\"device_bytes\":1,\"devices\":[\"cpu:0\"]}],"
           "\"devices\":[{\"name\":\"cuda:0\",\"budget_bytes\":100,\"free_bytes\":60},"
           "{\"name\":\"cpu:0\",\"budget_bytes\":10,\"free_bytes\":1}]}");
    json_t *one = merged("stats", NULL, b); // a device that is away
    assert_int_equal(json_array_size(json_object_get(one, "devices")), 1);
    json_decref(one);
}

// 90 requests of 0 to 64 ns on one device, 10 of about 1 s on the other: the median of all is the
// one's, the 99th percentile the other's.
static void latency(void **state)
{
    const char *a = "{\"seconds\":60.0,\"requests\":90,\"failures\":0,\"per_second\":1.5,"
                    "\"p50_ns\":32,\"p90_ns\":32,\"p99_ns\":32,\"longest_ns\":60,"
                    "\"slot_seconds\":5,\"series\":[{\"seconds\":5.0,\"requests\":1,\"p50_ns\":1},"
                    "{\"seconds\":5.0,\"requests\":2,\"p50_ns\":2}],"
                    "\"histogram\":[[0,64,90]],\"models\":[{\"name\":\"m\",\"version\":1,"
                    "\"requests\":90,\"p50_ns\":32}]}";
    const char *b = "{\"seconds\":30.0,\"requests\":12,\"failures\":2,\"per_second\":0.4,"
                    "\"p50_ns\":1006632960,\"p90_ns\":1006632960,\"p99_ns\":1006632960,"
                    "\"longest_ns\":1000000000,\"slot_seconds\":5,"
                    "\"series\":[{\"seconds\":5.0,\"requests\":3,\"p50_ns\":9}],"
                    "\"histogram\":[[973078528,1006632960,10]],\"models\":[{\"name\":\"m\","
                    "\"version\":1,\"requests\":12,\"p50_ns\":7}]}";
    json_t *got = merged("latency", a, b);
    json_int_t p50 = json_integer_value(json_object_get(got, "p50_ns"));
    json_int_t p99 = json_integer_value(json_object_get(got, "p99_ns"));
    assert_true(p50 < 64 && p99 > 973078528 && p99 <= 1000000000);
    json_object_del(got, "p50_ns");
    json_object_del(got, "p90_ns");
    json_object_del(got, "p99_ns");
    assert_float_equal(json_real_value(json_object_get(got, "per_second")), 1.9, 1e-9);
    json_object_del(got, "per_second");
    expect(got, "{\"seconds\":60.0,\"requests\":102,\"failures\":2,\"longest_ns\":1000000000,"
                "\"slot_seconds\":5,\"series\":[{\"seconds\":5.0,\"requests\":1,\"p50_ns\":1},"
                "{\"seconds\":5.0,\"requests\":5,\"p50_ns\":9}],"
                "\"histogram\":[[0,64,90],[973078528,1006632960,10]],"
                "\"models\":[{\"name\":\"m\",\"version\":1,\"requests\":102,\"p50_ns\":32,"
                "\"devices\":[\"cuda:0\",\"cpu:0\"]}]}");
}

static void loaded(void **state)
{
    expect(merged("loaded",
                  "{\"models\":[{\"name\":\"m\",\"version\":1,\"state\":\"UNAVAILABLE\","
                  "\"reason\":\"no\",\"loaded\":false,\"pinned\":false,\"device_bytes\":0}]}",
                  "{\"models\":[{\"name\":\"m\",\"version\":1,\"state\":\"READY\","
                  "\"reason\":\"\",\"loaded\":true,\"pinned\":false,\"device_bytes\":5}]}"),
           "{\"models\":[{\"name\":\"m\",\"version\":1,\"state\":\"READY\",\"reason\":\"\","
           "\"loaded\":true,\"pinned\":false,\"device_bytes\":5,"
           "\"devices\":[\"cuda:0\",\"cpu:0\"]}]}");
    expect(merged("unload", "{\"name\":\"m\",\"unloaded\":1,\"freed_bytes\":3}",
                  "{\"name\":\"m\",\"unloaded\":2,\"freed_bytes\":4}"),
           "{\"name\":\"m\",\"unloaded\":3,\"freed_bytes\":7}");
    expect(merged("devices", "{\"cuda\":\"yes\",\"devices\":[{\"name\":\"cuda:0\"}]}",
                  "{\"cuda\":\"yes\",\"devices\":[{\"name\":\"cpu:0\"}]}"),
           "{\"cuda\":\"yes\",\"devices\":[{\"name\":\"cuda:0\"},{\"name\":\"cpu:0\"}]}");
    assert_null(merged("batching", NULL, NULL));
    expect(merged("batching", NULL, "{\"a\":1}"), "{\"a\":1}");
}

// What the device where a job works says counts; those that have ended are in the store, once.
static void jobs(void **state)
{
    expect(merged("jobs",
                  "[{\"job\":\"a\",\"id\":null,\"ended_ns\":null,\"state\":\"stopped\",\"step\":1},"
                  "{\"job\":\"b\",\"id\":null,\"ended_ns\":null,\"state\":\"running\",\"step\":5},"
                  "{\"job\":\"a\",\"id\":7,\"ended_ns\":9,\"state\":\"finished\",\"step\":6}]",
                  "[{\"job\":\"a\",\"id\":null,\"ended_ns\":null,\"state\":\"queued\",\"step\":2},"
                  "{\"job\":\"b\",\"id\":null,\"ended_ns\":null,\"state\":\"stopped\",\"step\":4},"
                  "{\"job\":\"a\",\"id\":7,\"ended_ns\":9,\"state\":\"finished\",\"step\":6}]"),
           "[{\"job\":\"a\",\"id\":null,\"ended_ns\":null,\"state\":\"queued\",\"step\":2,"
           "\"device\":\"cpu:0\"},"
           "{\"job\":\"b\",\"id\":null,\"ended_ns\":null,\"state\":\"running\",\"step\":5,"
           "\"device\":\"cuda:0\"},"
           "{\"job\":\"a\",\"id\":7,\"ended_ns\":9,\"state\":\"finished\",\"step\":6,"
           "\"device\":null}]");
    expect(merged("timeline", "{\"job\":null,\"bars\":[]}",
                  "{\"job\":\"a\",\"age_ms\":5,\"bars\":[1]}"),
           "{\"job\":\"a\",\"age_ms\":5,\"bars\":[1],\"device\":\"cpu:0\"}");
    expect(merged("timeline", "{\"job\":null,\"bars\":[]}", "{\"job\":null,\"bars\":[]}"),
           "{\"job\":null,\"bars\":[],\"device\":\"cuda:0\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stats),
        cmocka_unit_test(latency),
        cmocka_unit_test(loaded),
        cmocka_unit_test(jobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
