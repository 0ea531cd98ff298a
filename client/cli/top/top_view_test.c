// SPDX-License-Identifier: Apache-2.0
// What keys change of a view, the order of its tables, and whole screens of usual sizes.
#include "client/cli/top/top_view.h"

#include "client/cli/top/keys.h"

#include "base/test.h"
#include "base/utf8.h"

#include <jansson.h>

#define MODELS 40

// Models m-00, m-01, ..; the k-th has k requests per second, k / 2 % 5 in its queue; every fourth
// is not on the device, every third has no percentiles.
static json_t *sample_of(int n, const char *prefix)
{
    json_t *models = json_array();
    for (int i = 0; i < n; i++) {
        char name[200];
        snprintf(name, sizeof name, "%s%02d", prefix, i);
        bool loaded = i % 4 != 0;
        json_t *p99 = i % 3 != 0 ? json_real(100.0 - i) : json_null();
        json_array_append_new(
            models, json_pack("{s:s, s:i, s:f, s:o, s:o, s:f, s:i, s:i, s:i, s:i, s:i, s:i}",
                              "name", name, "version", 1, "per_second", loaded ? (double)i : 0.0,
                              "p50_ms", json_null(), "p99_ms", p99, "batch", 1.5, "private_bytes",
                              loaded ? 4096 : 0, "shared_bytes", 0, "arena_bytes", 0, "queued",
                              i / 2 % 5, "requests", i, "failures", i == 3));
    }
    return json_pack("{s:[{s:s, s:s, s:s, s:i, s:i}], s:o, s:[{s:s, s:s, s:s, s:i}], s:[], "
                     "s:[{s:s, s:f, s:f}, {s:s, s:f, s:f}]}",
                     "devices", "name", "cpu:0", "description", "a CPU with a long description",
                     "state", "up", "budget_bytes", 1000, "free_bytes", 1000, "models", models,
                     "jobs", "job", "job-1", "model", "m", "state", "running", "step", 5, "waiting",
                     "tenants", "name", "uid:1", "weight", 1.0, "dominant_share", 0.095, "name",
                     "uid:2", "weight", 3.0, "dominant_share", 0.12);
}

static char *page_of(const json_t *sample, hth_top_view *view, int lines, int columns)
{
    char *text = hth_top_page(sample, view, "hearth top", NULL, lines, columns);
    assert_non_null(text);
    return text;
}

static void press(hth_top_view *view, int key)
{
    assert_true(hth_top_view_key(view, key));
}

// The first model's number in a sorted sample, or that of the last.
static const char *end_of(const json_t *sample, const hth_top_view *view, bool last)
{
    static char name[200];
    json_t *sorted = hth_top_sorted(sample, view), *models = json_object_get(sorted, "models");
    size_t n = json_array_size(models);
    assert_int_equal(n, json_array_size(json_object_get(sample, "models")));
    const json_t *row = json_array_get(models, last ? n - 1 : 0);
    snprintf(name, sizeof name, "%s", json_string_value(json_object_get(row, "name")));
    json_decref(sorted);
    return name;
}

static void test_sort(void **state)
{
    json_t *s = sample_of(MODELS, "m-");
    hth_top_view v;
    hth_top_view_init(&v);
    assert_string_equal(end_of(s, &v, false), "m-39"); // the busiest
    assert_string_equal(end_of(s, &v, true), "m-36");  // not on the device, in the order it had
    press(&v, 'R');
    assert_string_equal(end_of(s, &v, false), "m-01"); // reversed; what is loaded is first still
    assert_string_equal(end_of(s, &v, true), "m-36");
    press(&v, 'n');
    assert_string_equal(end_of(s, &v, false), "m-01");
    press(&v, 'n');
    assert_string_equal(end_of(s, &v, false), "m-39");
    press(&v, '9');
    assert_string_equal(end_of(s, &v, false), "m-01"); // 99 ms
    assert_string_equal(end_of(s, &v, true), "m-36");  // none, and not loaded
    press(&v, '9');
    assert_string_equal(end_of(s, &v, false), "m-38"); // 62 ms; none comes last in either order
    press(&v, 'u');
    assert_string_equal(end_of(s, &v, false), "m-09"); // four are queued
    assert_false(hth_top_view_key(&v, 'x'));
    assert_false(hth_top_view_key(&v, HTH_KEY_OTHER));
    json_decref(s);
}

// A server that mixes texts and numbers.
static void test_sort_odd(void **state)
{
    json_t *s = json_pack("{s:[{s:s, s:i}, {s:i, s:i}, {s:n, s:i}, {s:s, s:i}]}", "models", "name",
                          "b", "arena_bytes", 1, "name", 5, "arena_bytes", 1, "name", "arena_bytes",
                          1, "name", "a", "arena_bytes", 1);
    hth_top_view v;
    hth_top_view_init(&v);
    press(&v, 'n');
    json_t *sorted = hth_top_sorted(s, &v), *models = json_object_get(sorted, "models");
    assert_true(json_is_integer(json_object_get(json_array_get(models, 0), "name")));
    assert_string_equal(json_string_value(json_object_get(json_array_get(models, 1), "name")), "a");
    assert_true(json_is_null(json_object_get(json_array_get(models, 3), "name")));
    json_decref(sorted);
    json_decref(s);
}

static void test_scroll(void **state)
{
    json_t *s = sample_of(MODELS, "m-");
    hth_top_view v;
    hth_top_view_init(&v);
    press(&v, 'n');
    free(page_of(s, &v, 24, 80));
    int page = v.page;
    assert_in_range(page, 5, 15);
    assert_false(hth_top_view_key(&v, HTH_KEY_UP)); // is at the top
    assert_false(hth_top_view_key(&v, HTH_KEY_HOME));
    press(&v, HTH_KEY_DOWN);
    assert_int_equal(v.of[HTH_TOP_MODELS].first, 1);
    press(&v, HTH_KEY_PAGE_DOWN);
    assert_int_equal(v.of[HTH_TOP_MODELS].first, 1 + page);
    char *text = page_of(s, &v, 24, 80);
    assert_non_null(strstr(text, "name ^")); // the head stays
    assert_non_null(strstr(text, " of 40\n"));
    free(text);
    press(&v, HTH_KEY_END);
    assert_false(hth_top_view_key(&v, HTH_KEY_DOWN));
    text = page_of(s, &v, 24, 80);
    assert_non_null(strstr(text, " to 40 of 40\n"));
    assert_non_null(strstr(text, "m-36"));
    free(text);
    free(page_of(s, &v, 60, 80)); // all fit
    assert_int_equal(v.of[HTH_TOP_MODELS].first, 0);
    free(page_of(s, &v, 24, 80));
    press(&v, HTH_KEY_END);
    press(&v, HTH_KEY_PAGE_UP);
    assert_int_equal(v.of[HTH_TOP_MODELS].first, MODELS - 2 * v.page);
    press(&v, HTH_KEY_HOME);
    assert_int_equal(v.of[HTH_TOP_MODELS].first, 0);
    press(&v, HTH_KEY_END);
    json_t *few = sample_of(3, "m-"); // most are gone
    text = page_of(few, &v, 24, 80);
    assert_int_equal(v.of[HTH_TOP_MODELS].first, 0);
    assert_non_null(strstr(text, "m-01"));
    free(text);
    json_decref(few);
    json_decref(s);
}

// Tab goes from table to table that has rows; each has its own keys and its own order.
static void test_tables(void **state)
{
    json_t *s = sample_of(MODELS, "m-");
    hth_top_view v;
    hth_top_view_init(&v);
    free(page_of(s, &v, 24, 80));
    press(&v, '\t');
    assert_int_equal(v.table, HTH_TOP_TENANTS); // nothing waits
    press(&v, 's');
    char *text = page_of(s, &v, 24, 80);
    assert_non_null(strstr(text, "share v"));
    assert_non_null(strstr(text, "per_second v"));
    assert_true(strstr(text, "uid:2") < strstr(text, "uid:1")); // 12 % is more than 9.5 %
    assert_non_null(strstr(text, "w weight"));
    free(text);
    press(&v, 'R');
    text = page_of(s, &v, 24, 80);
    assert_non_null(strstr(text, "share ^"));
    assert_true(strstr(text, "uid:1") < strstr(text, "uid:2"));
    free(text);
    press(&v, '\t');
    assert_int_equal(v.table, HTH_TOP_JOBS);
    json_array_clear(json_object_get(s, "jobs"));
    free(page_of(s, &v, 24, 80)); // the jobs have ended: another is chosen
    assert_int_equal(v.table, HTH_TOP_MODELS);
    json_decref(s);
}

static void test_help(void **state)
{
    json_t *s = sample_of(MODELS, "m-");
    hth_top_view v;
    hth_top_view_init(&v);
    for (int lines = 1; lines <= 30; lines++) {
        v.help = true;
        char *text = page_of(s, &v, lines, 80);
        int n = 0;
        for (const char *p = text; (p = strchr(p, '\n')) != NULL; p++) {
            n++;
        }
        assert_true(lines < 6 ? n <= lines : n == lines);
        assert_true(lines < 24 || (strstr(text, "f failures") && strstr(text, "at work")));
        assert_null(strstr(text, "m-0"));
        free(text);
    }
    press(&v, 'n'); // leads back, and is nothing else
    assert_false(v.help);
    assert_string_equal(end_of(s, &v, false), "m-39");
    press(&v, '?');
    assert_true(v.help);
    json_decref(s);
}

static void test_fit(void **state)
{
    int width[] = {40, 10, 30}, least[] = {24, 10, 12};
    assert_true(hth_top_fit(width, least, 3, 2, 84));
    assert_int_equal(width[0] + width[1] + width[2], 80); // as they were
    assert_true(hth_top_fit(width, least, 3, 2, 70));
    assert_int_equal(width[0], 28); // the widest gave way, down to the next
    assert_int_equal(width[1], 10);
    assert_int_equal(width[2], 28);
    assert_true(hth_top_fit(width, least, 3, 2, 50));
    assert_int_equal(width[0], 24);
    assert_int_equal(width[2], 12);
    assert_false(hth_top_fit(width, least, 3, 2, 49));
}

// Whatever is chosen, a screen has as many lines as it should, and no line is too wide. Styles take
// no room. A name that does not fit keeps both of its ends.
static void test_screens(void **state)
{
    static const int sizes[][2] = {{1, 20},  {2, 30},  {5, 40},  {6, 10},
                                   {12, 60}, {24, 80}, {60, 200}};
    static const char *const prefixes[] = {
        "m-", "a-model-with-a-name-that-is-longer-than-a-column-of-most-terminals-",
        "\xe6\xa8\xa1\xe5\x9e\x8b\xe6\xa8\xa1\xe5\x9e\x8b\xe6\xa8\xa1\xe5\x9e\x8b\xe6\xa8\xa1\xe5"
        "\x9e\x8b\xe6\xa8\xa1\xe5\x9e\x8b\xe6\xa8\xa1\xe5\x9e\x8b-"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t k = 0; k < sizeof prefixes / sizeof *prefixes; k++) {
            for (int styles = 0; styles < 2; styles++) {
                int lines = sizes[i][0], columns = sizes[i][1], n = 0;
                json_t *s = sample_of(MODELS, prefixes[k]);
                hth_top_view v;
                hth_top_view_init(&v);
                v.styles = v.colors = styles;
                v.utf8 = styles;
                char *text = page_of(s, &v, lines, columns);
                for (char *p = text, *end; *p != 0; p = end + 1, n++) {
                    char plain[4096];
                    size_t m = 0;
                    end = strchr(p, '\n');
                    assert_non_null(end);
                    for (const char *q = p; q < end; q++) {
                        if (*q == 27) {
                            assert_true(styles);
                            q += strcspn(q, "m");
                        } else {
                            plain[m++] = *q;
                        }
                    }
                    plain[m] = 0;
                    assert_true(hth_utf8_columns(plain) <= columns);
                }
                assert_true(lines < 6 ? n <= lines : n == lines);
                assert_true(lines < 24 || strstr(text, "39") != NULL);
                bool wide = columns == 200;
                assert_true(!wide || (strstr(text, prefixes[k]) && strstr(text, "shared_bytes")));
                const char *ellipsis = styles ? "\xe2\x80\xa6" : "..";
                assert_true(columns != 80 || k != 1 || strstr(text, ellipsis) != NULL);
                free(text);
                json_decref(s);
            }
        }
    }
}

// Colors say what words say too.
static void test_colors(void **state)
{
    json_t *s = sample_of(8, "m-");
    hth_top_view v;
    hth_top_view_init(&v);
    v.styles = v.colors = true;
    char *text = hth_top_page(s, &v, "hearth top", "as it was: gone", 30, 120);
    assert_non_null(strstr(text, "\033[32mrunning\033[0m"));
    assert_non_null(strstr(text, "\033[32mup\033[0m"));
    assert_non_null(strstr(text, "\033[33m3\033[0m"));   // queued
    assert_non_null(strstr(text, "\033[1;31m1\033[0m")); // failures
    assert_non_null(strstr(text, "\033[1;31mas it was: gone\033[0m"));
    assert_non_null(strstr(text, "\033[7mper_second v\033[0m"));
    free(text);
    v.colors = false;
    text = page_of(s, &v, 30, 120);
    assert_null(strstr(text, "\033[3"));
    assert_non_null(strstr(text, "\033[7mper_second v\033[0m"));
    free(text);
    json_decref(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sort),    cmocka_unit_test(test_sort_odd),
        cmocka_unit_test(test_scroll),  cmocka_unit_test(test_tables),
        cmocka_unit_test(test_help),    cmocka_unit_test(test_fit),
        cmocka_unit_test(test_screens), cmocka_unit_test(test_colors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
