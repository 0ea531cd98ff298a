// SPDX-License-Identifier: Apache-2.0
// Two looks made from documents that are written here, and how they are written.
#include "client/cli/top/top_sample.h"
#include "client/cli/top/top_view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char devices[] = "{\"devices\":[{\"name\":\"cpu:0\",\"description\":\"a CPU\"}]}";
static const char latency[] =
    "{\"models\":[{\"name\":\"a\",\"version\":1,\"requests\":32,\"failures\":2,\"per_second\":0.5,"
    "\"p50_ns\":1500000,\"p99_ns\":9000000},{\"name\":\"b\",\"version\":1,\"requests\":31,"
    "\"failures\":2,\"per_second\":0.0,\"p50_ns\":1000000,\"p99_ns\":2000000}]}";
static const char jobs[] =
    "[{\"job\":\"t\",\"model\":\"u\",\"state\":\"running\",\"step\":25,\"steps\":100,"
    "\"loss\":0.5,\"ended_ns\":null},{\"job\":\"w\",\"model\":\"u\",\"state\":\"waiting\","
    "\"step\":null,\"steps\":null,\"loss\":null,\"ended_ns\":null},{\"job\":\"s\",\"model\":\"u\","
    "\"state\":\"stopped\",\"step\":1,\"steps\":2,\"loss\":1.0,\"ended_ns\":null},{\"job\":\"e\","
    "\"model\":\"u\",\"state\":\"finished\",\"step\":2,\"steps\":2,\"loss\":1.0,\"ended_ns\":5}]";
static const char job[] = "{\"t\":{\"budget_bytes\":4096,\"peak_bytes\":2048,\"step_ms\":2.5}}";

// The ledger of a device of 1,000 bytes, 40 of them unnamed, and counters of two models.
static json_t *stats(int requests_b, int samples_b, int runs_b)
{
    return json_pack(
        "{s:{s:i, s:i, s:i, s:i, s:i, s:i, s:i}, s:[{s:s, s:i, s:i, s:i, s:{s:i}, s:i, s:i, s:i},"
        "{s:s, s:i, s:i, s:i, s:{s:i}, s:i, s:i, s:i}], s:[{s:s, s:i, s:i}]}",
        "ledger", "budget_bytes", 1000, "private_weight_bytes", 300, "shared_weight_bytes", 100,
        "unclaimed_bytes", 50, "compute_arena_bytes", 200, "job_bytes", 1, "free_bytes", 309,
        "models", "name", "a", "version", 1, "requests", 12, "failures", 2, "times", "samples", 10,
        "executions", 10, "resident_private_bytes", 200, "resident_shared_bytes", 100, "name", "b",
        "version", 1, "requests", requests_b, "failures", 0, "times", "samples", samples_b,
        "executions", runs_b, "resident_private_bytes", 100, "resident_shared_bytes", 0, "tenants",
        "name", "uid:7", "memory_bytes", 300, "jobs", 1);
}

// Two tenants on a device: one over its share with a job at work, one under it with a job that
// waits.
static const char shares[] =
    "{\"devices\":[{\"device\":\"cpu:0\",\"tenants\":[{\"tenant\":\"uid:7\",\"weight\":3.0,"
    "\"dominant\":\"device_time\",\"dominant_share\":0.875,\"entitlement\":0.75,"
    "\"jobs_running\":1,\"jobs_waiting\":1,\"running\":[],\"waiting\":[{\"id\":5,\"job\":\"w\","
    "\"state\":\"waiting\",\"memory_bytes\":4096,\"wait_seconds\":2.5,\"why\":\"waits for 4.0 KiB "
    "of device memory, 309 B are free; tenant 'uid:8' is under its share\"}]},"
    "{\"tenant\":\"uid:8\",\"weight\":1.0,\"dominant\":null,\"dominant_share\":0.0,"
    "\"entitlement\":0.25,\"jobs_running\":0,\"jobs_waiting\":1,\"running\":[],\"waiting\":["
    "{\"id\":null,\"job\":null,\"state\":\"queued\",\"memory_bytes\":null,"
    "\"wait_seconds\":null,\"why\":null,\"waits_for\":\"turn\"}]}]}]}";

static json_t *look(json_t *json, const json_t *last, uint64_t now_ns)
{
    json_t *d = json_loads(devices, 0, NULL), *l = json_loads(latency, 0, NULL),
           *j = json_loads(jobs, 0, NULL), *docs = json_loads(job, 0, NULL);
    assert_true(d != NULL && l != NULL && j != NULL && docs != NULL && json != NULL);
    json_t *out = hth_top_sample(&(hth_top_answers){d, json, l, j, docs, NULL}, last, now_ns);
    assert_non_null(out);
    json_decref(d);
    json_decref(json);
    json_decref(l);
    json_decref(j);
    json_decref(docs);
    return out;
}

static const json_t *row(const json_t *look, const char *list, size_t i)
{
    return json_array_get(json_object_get(look, list), i);
}

static double number(const json_t *row, const char *key)
{
    assert_true(json_is_number(json_object_get(row, key)));
    return json_number_value(json_object_get(row, key));
}

static void is(const json_t *row, const char *key, const char *text)
{
    assert_string_equal(json_string_value(json_object_get(row, key)), text);
}

static void test_first_look(void **state)
{
    json_t *o = look(stats(0, 0, 0), NULL, 1000);
    const json_t *d = row(o, "devices", 0), *a = row(o, "models", 0), *b = row(o, "models", 1);
    is(d, "state", "up");
    assert_int_equal(number(d, "private_bytes") + number(d, "shared_bytes") +
                         number(d, "kept_bytes") + number(d, "arenas_bytes") +
                         number(d, "jobs_bytes") + number(d, "other_bytes") +
                         number(d, "free_bytes"),
                     1000);
    assert_int_equal(number(d, "other_bytes"), 40);
    is(a, "name", "a");
    assert_float_equal(number(a, "per_second"), 0.5, 1e-9); // of the last minute
    assert_float_equal(number(a, "p50_ms"), 1.5, 1e-9);
    assert_float_equal(number(a, "p99_ms"), 9, 1e-9);
    assert_float_equal(number(a, "batch"), 1, 1e-9);
    assert_true(json_is_null(json_object_get(b, "p50_ms"))); // of 29 requests
    assert_true(json_is_null(json_object_get(b, "p99_ms")));
    assert_true(json_is_null(json_object_get(b, "batch")));
    assert_int_equal(json_array_size(json_object_get(o, "jobs")), 2); // that have not ended
    assert_float_equal(number(row(o, "jobs", 0), "percent"), 25, 1e-9);
    assert_float_equal(number(row(o, "jobs", 0), "step_ms"), 2.5, 1e-9);
    assert_int_equal(number(row(o, "jobs", 0), "budget_bytes"), 4096);
    assert_true(json_is_null(json_object_get(row(o, "jobs", 1), "percent")));
    is(row(o, "tenants", 0), "name", "uid:7");
    json_decref(o);
}

// Two seconds later: 30 requests in 5 runs of 8 samples for b, which is first then; none for a.
static void test_second_look(void **state)
{
    json_t *first = look(stats(10, 10, 10), NULL, 1000);
    json_t *o = look(stats(40, 50, 15), first, 2000001000);
    assert_float_equal(number(o, "seconds"), 2, 1e-9);
    is(row(o, "models", 0), "name", "b");
    assert_float_equal(number(row(o, "models", 0), "per_second"), 15, 1e-9);
    assert_float_equal(number(row(o, "models", 0), "batch"), 8, 1e-9);
    assert_float_equal(number(row(o, "models", 1), "per_second"), 0, 1e-9);
    assert_float_equal(number(row(o, "models", 1), "batch"), 1, 1e-9);
    json_t *again = look(stats(3, 3, 3), o, 3000001000); // b was loaded again: its counters began
    assert_float_equal(number(row(again, "models", 0), "per_second"), 0, 1e-9);
    json_decref(first);
    json_decref(o);
    json_decref(again);
}

// A device that is away has no ledger.
static void test_several_devices(void **state)
{
    json_t *d = json_pack("{s:[{s:s, s:s}, {s:s, s:s}]}", "devices", "name", "x", "state", "up",
                          "name", "y", "state", "restarting");
    json_t *s = json_pack("{s:{}, s:[{s:s, s:i, s:i}]}", "ledger", "devices", "name", "x",
                          "budget_bytes", 70, "free_bytes", 70);
    json_t *o = hth_top_sample(&(hth_top_answers){.devices = d, .stats = s}, NULL, 1);
    assert_int_equal(number(row(o, "devices", 0), "free_bytes"), 70);
    assert_null(json_object_get(row(o, "devices", 1), "free_bytes"));
    char *text = hth_top_text(o, 22);
    assert_non_null(strstr(text, "[....................]\n"));
    assert_non_null(strstr(text, "y    restarting\n"));
    assert_non_null(strstr(text, "no model is loaded"));
    free(text);
    json_decref(o);
    json_decref(d);
    json_decref(s);
}

static void test_text(void **state)
{
    json_t *o = look(stats(0, 0, 0), NULL, 1000);
    char *text = hth_top_text(o, 102);
    static const struct {
        char letter;
        size_t n;
    } parts[] = {{'P', 30}, {'S', 10}, {'K', 5}, {'A', 20}, {'J', 1}, {'o', 4}, {'.', 30}};
    char bar[103] = "[";
    size_t at = 1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) { // the J is less than one
        memset(bar + at, parts[i].letter, parts[i].n);
        at += parts[i].n;
    }
    bar[at] = ']';
    assert_non_null(strstr(text, bar));
    assert_non_null(strstr(text, "per_second"));
    assert_non_null(strstr(text, "uid:7"));
    assert_null(strstr(text, "samples"));
    free(text);
    json_decref(o);
}

// lines_of counts the lines of a text; the widest has *width columns.
static int lines_of(const char *text, int *width)
{
    int n = 0;
    *width = 0;
    for (const char *p = text; *p != 0; p += strcspn(p, "\n") + 1, n++) {
        int w = (int)strcspn(p, "\n");
        *width = w > *width ? w : *width;
        assert_int_equal(p[w], '\n');
    }
    return n;
}

// A sample as a terminal has it first.
static char *page_of(const json_t *sample, int lines, int columns)
{
    hth_top_view view;
    hth_top_view_init(&view);
    return hth_top_page(sample, &view, "hearth top", NULL, lines, columns);
}

// Forty models, of which two are asked for, three jobs of which the last runs, two tenants; on few
// lines the jobs, the busy models and the tenants are there, in less than any width that is usual.
static void test_fits(void **state)
{
    static const struct {
        int devices, lines, columns;
    } screens[] = {{1, 23, 80}, {8, 23, 80}, {30, 23, 80}, {1, 12, 60}};
    json_t *models = json_array(), *jobs = json_array(), *devices = json_array(),
           *ledgers = json_array();
    char name[100];
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "a-model-with-a-name-of-some-length-%02d", i);
        int runs = i == 33 ? 10 : 0;
        int queued = i == 37 ? 5 : 0;
        json_array_append_new(models, json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "name", name,
                                                "version", 1, "requests", 100 * runs, "failures", 0,
                                                "queued", queued, "executions", runs));
    }
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        json_array_append_new(jobs,
                              json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:n}", "job", name, "model",
                                        "m", "state", i == 2 ? "running" : "waiting", "step", 1,
                                        "steps", 400, "loss", 0.123456789, "ended_ns"));
    }
    for (int i = 0; i < 30; i++) {
        snprintf(name, sizeof name, "cpu:%d", i);
        json_array_append_new(
            devices,
            json_pack("{s:s, s:s, s:s}", "name", name, "description",
                      "A Processor With a Long Name, 64 threads, oneDNN 3.5.3, and so on and on",
                      "state", "up"));
        json_array_append_new(ledgers,
                              json_pack("{s:s, s:I, s:I}", "name", name, "budget_bytes",
                                        (json_int_t)1 << 40, "free_bytes", (json_int_t)1 << 39));
    }
    for (size_t i = 0; i < sizeof screens / sizeof *screens; i++) {
        json_t *some = json_array();
        for (int k = 0; k < screens[i].devices; k++) {
            json_array_append(some, json_array_get(devices, (size_t)k));
        }
        json_t *d = json_pack("{s:o}", "devices", some);
        json_t *s = json_pack("{s:O, s:O, s:[{s:s, s:i}, {s:s, s:i}]}", "models", models, "devices",
                              ledgers, "tenants", "name", "uid:7", "memory_bytes", 1, "name",
                              "uid:8", "memory_bytes", 2);
        json_t *first =
            json_pack("{s:I, s:[{s:s, s:i, s:i}]}", "monotonic_ns", (json_int_t)0, "models", "name",
                      "a-model-with-a-name-of-some-length-33", "version", 1, "requests", 0);
        json_t *o = hth_top_sample(&(hth_top_answers){.devices = d, .stats = s, .jobs = jobs},
                                   first, 1000000000);
        char *text = page_of(o, screens[i].lines + 2, screens[i].columns);
        int width, n = lines_of(text, &width);
        assert_in_range(n, 1, screens[i].lines + 2); // with the title and the keys
        assert_in_range(width, 1, screens[i].columns);
        const char *job = strstr(text, "job-2"), *busy = strstr(text, "length-33");
        assert_non_null(job);
        assert_non_null(busy);
        assert_true(job < busy); // jobs come before models, and what runs before what waits
        assert_true(strstr(text, "job-0") == NULL || job < strstr(text, "job-0"));
        assert_non_null(strstr(text, "running"));
        assert_non_null(strstr(text, "1000")); // requests a second, of the first model
        assert_true(screens[i].lines < 20 || strstr(text, "uid:7") != NULL);
        assert_non_null(strstr(text, "more\n"));
        free(text);
        text = hth_top_text(o, 80);
        assert_non_null(strstr(text, "a-model-with-a-name-of-some-length-39"));
        assert_null(strstr(text, "more\n"));
        free(text);
        json_decref(o);
        json_decref(first);
        json_decref(d);
        json_decref(s);
    }
    json_decref(models);
    json_decref(jobs);
    json_decref(devices);
    json_decref(ledgers);
}

// A look with shares: tenants have theirs, and jobs that wait have a table of their own, in which
// another tenant's has no name.
static void test_shares(void **state)
{
    static const int columns[] = {200, 80, 60};
    json_t *d = json_loads(devices, 0, NULL), *j = json_loads(jobs, 0, NULL),
           *h = json_loads(shares, 0, NULL), *s = stats(0, 0, 0);
    assert_non_null(h);
    json_array_append_new(json_object_get(s, "tenants"), json_pack("{s:s}", "name", "uid:8"));
    json_t *o = hth_top_sample(&(hth_top_answers){.devices = d, .stats = s, .jobs = j, .shares = h},
                               NULL, 1000);
    assert_float_equal(number(row(o, "tenants", 0), "dominant_share"), 0.875, 1e-9);
    assert_int_equal(number(row(o, "tenants", 0), "jobs_running"), 1);
    is(row(o, "tenants", 0), "dominant", "device_time");
    assert_true(json_is_null(json_object_get(row(o, "tenants", 1), "dominant")));
    assert_int_equal(json_array_size(json_object_get(o, "waiting")), 2);
    is(row(o, "waiting", 0), "job", "w");
    assert_float_equal(number(row(o, "waiting", 0), "wait_seconds"), 2.5, 1e-9);
    assert_true(json_is_null(json_object_get(row(o, "waiting", 1), "job")));
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        char *text = page_of(o, 25, columns[i]);
        int width, n = lines_of(text, &width);
        assert_int_equal(n, 25);
        (void)lines_of(strstr(text, "\n\n") + 1, &width); // the tables
        assert_in_range(width, 1, columns[i]);
        assert_non_null(strstr(text, "waiting_job"));
        assert_non_null(strstr(text, "another's"));
        assert_non_null(strstr(text, "waits for its turn"));
        assert_non_null(strstr(text, "2.5 s"));
        assert_non_null(strstr(text, "87.5 %"));
        assert_non_null(strstr(text, "waits for"));
        assert_true(columns[i] < 200 || strstr(text, "is under its share\n") != NULL);
        assert_true(strstr(text, "waiting_job") > strstr(text, "running"));
        free(text);
    }
    json_decref(o);
    json_decref(h);
    o = hth_top_sample(&(hth_top_answers){.devices = d, .stats = s, .jobs = j}, NULL, 1000);
    assert_int_equal(json_array_size(json_object_get(o, "waiting")), 1); // an older server's
    assert_null(json_object_get(row(o, "tenants", 0), "weight"));
    json_decref(o);
    json_decref(d);
    json_decref(j);
    json_decref(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_look),
        cmocka_unit_test(test_second_look),
        cmocka_unit_test(test_several_devices),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_fits),
        cmocka_unit_test(test_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
