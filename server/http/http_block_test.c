// SPDX-License-Identifier: Apache-2.0
// Large bodies: in pieces of any size, with tensors at any offset, after other requests on the
// same connection, and cut off.
#include "base/spin.h"
#include "graph/graph.h"
#include "tests/rig/http_rig.h"

#include <poll.h>

#define FLOATS 50000
#define ROUNDS 40
#define LIMIT  60000000000u // no test waits so long

static float values[2 * FLOATS];

static const hth_shape big = {.rank = 1, .dim = {2 * FLOATS}};

static void store_big(hth_store *store)
{
    const hth_put_tensor tensor = {
        .name = "big", .dtype = HTH_DT_F32, .shape = big, .data = values, .bytes = sizeof values};
    hth_put_result r;
    assert_ok(hth_store_put(store, "big", "", 0, NULL, &tensor, 1, NULL, NULL, &r));
}

static int setup(void **state)
{
    for (int i = 0; i < 2 * FLOATS; i++) {
        values[i] = (float)(i % 8191) - 4095.5f;
    }
    return rig_setup_with(state, store_big);
}

// A request to "ident" for its input's own bytes, with `blanks` blanks in its JSON; malloc'd.
static char *request_of(const char *model, int inputs, int blanks, size_t *bytes, size_t *head)
{
    char json[1000], list[600] = "";
    size_t data = (size_t)FLOATS * 4 * (size_t)inputs;
    for (int i = 0; i < inputs; i++) {
        snprintf(list + strlen(list), sizeof list - strlen(list),
                 "%s{\"name\":\"INPUT%d\",\"datatype\":\"FP32\",\"shape\":[%d],\"parameters\":"
                 "{\"binary_data_size\":%d}}",
                 i > 0 ? "," : "", i, FLOATS, FLOATS * 4);
    }
    int m = snprintf(json, sizeof json,
                     "{%*s\"parameters\":{\"binary_data_output\":true},\"inputs\":[%s]}", blanks,
                     "", list);
    char *text = malloc(1000 + (size_t)m + data);
    int n = snprintf(text, 1000,
                     "POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n"
                     "Inference-Header-Content-Length: %d\r\n\r\n",
                     model, (size_t)m + data, m);
    memcpy(text + n, json, (size_t)m);
    memcpy(text + n + m, values, data);
    *head = (size_t)n;
    *bytes = (size_t)n + (size_t)m + data;
    return text;
}

// expect_values reads an answer, which is the first `n` values.
static void expect_values(int fd, size_t n)
{
    reply r = pull(fd, true);
    expect_200(&r);
    size_t json = strtoull(header(&r, "Inference-Header-Content-Length"), NULL, 10);
    assert_int_equal(r.bytes, json + n * 4);
    assert_memory_equal(r.body + json, values, n * 4);
    reply_free(&r);
}

static void pause_ms(int ms)
{
    poll(NULL, 0, ms); // so that it comes by itself
}

// A request that puts one of two pieces of `tensor`, of which the first has `cut` bytes; malloc'd.
static char *piece_of(const float *tensor, size_t cut, bool second, size_t *bytes, size_t *head)
{
    static const hth_shape shape = {.rank = 1, .dim = {FLOATS}};
    size_t whole = (size_t)FLOATS * 4, from = second ? cut : 0, to = second ? whole : cut;
    char hex[HTH_ID_HEX], *text = malloc(400 + to - from);
    hth_id id = hth_content_id(HTH_DT_F32, &shape, tensor, whole);
    int n = snprintf(text, 400,
                     "PUT /v2/hearth/tensors/%s?datatype=FP32&shape=%d HTTP/1.1\r\nHost: x\r\n"
                     "Content-Range: bytes %zu-%zu/%zu\r\nContent-Length: %zu\r\n\r\n",
                     hth_id_hex(&id, hex), FLOATS, from, to - 1, whole, to - from);
    memcpy(text + n, (const char *)tensor + from, to - from);
    *head = (size_t)n;
    *bytes = (size_t)n + to - from;
    return text;
}

// expect_suspended waits until nobody spins for longer than until `before`.
static void expect_suspended(uint64_t before)
{
    uint64_t until = hth_real_after(LIMIT);
    while (hth_spin_suspended_until() == before) {
        assert_true(hth_real_ns() < until);
        pause_ms(1);
    }
}

// While a large body comes, or a stored tensor goes, nobody spins. The first test, before others
// send large bodies.
static void test_nobody_spins(void **state)
{
    char path[200], hex[HTH_ID_HEX];
    size_t bytes, head;
    char *text = piece_of(values, (size_t)FLOATS * 4, false, &bytes, &head);
    assert_int_equal(hth_spin_suspended_until(), 0);
    int fd = dial(port_of(state));
    push(fd, text, head + 20);
    pause_ms(5);
    push(fd, text + head + 20, 100000);
    expect_suspended(0);
    close(fd);
    free(text);
    hth_id id = hth_content_id(HTH_DT_F32, &big, values, sizeof values);
    uint64_t before = hth_spin_suspended_until();
    snprintf(path, sizeof path, "/v2/hearth/models/big/tensors/%s", hth_id_hex(&id, hex));
    reply r = get(port_of(state), path);
    expect_200(&r);
    assert_int_equal(r.bytes, sizeof values);
    assert_memory_equal(r.body, values, sizeof values);
    reply_free(&r);
    expect_suspended(before);
}

// Pieces of a tensor, large and small, that come at once or in two parts: it is whole, which is
// compared with its id.
static void test_put(void **state)
{
    static const size_t cuts[] = {1, 1000, (64 << 10) + 1, 150000};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        const float *tensor = values + 1 + i; // another content each
        int fd = dial(port_of(state));
        for (int second = 0; second < 2; second++) {
            size_t bytes, head;
            char *text = piece_of(tensor, cuts[i], second, &bytes, &head);
            size_t first = i % 2 == 0 ? bytes : head + (bytes - head) / 2;
            push(fd, text, first);
            pause_ms(i % 2 == 0 ? 0 : 5);
            push(fd, text + first, bytes - first);
            reply r = pull(fd, true);
            expect_200(&r);
            assert_non_null(strstr(r.body, second ? "\"whole\":true" : "\"whole\":false"));
            reply_free(&r);
            free(text);
        }
        close(fd);
    }
}

// The head comes with nothing of its body, with a little, with more than is read at once, whole;
// the tensor begins at any place in a unit of 64 bytes.
static void test_pieces(void **state)
{
    static const size_t with[] = {0, 1, 10, 300, 20000, 150000, SIZE_MAX};
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++) {
        for (int blanks = 0; blanks < 64; blanks += i == 3 ? 1 : 31) {
            size_t bytes, head;
            char *text = request_of("ident", 1, blanks, &bytes, &head);
            size_t first = with[i] < bytes - head ? head + with[i] : bytes;
            int fd = dial(port_of(state));
            push(fd, text, first);
            pause_ms(5);
            push(fd, text + first, (bytes - first) / 2);
            pause_ms(i == 0 ? 5 : 0);
            push(fd, text + first + (bytes - first) / 2, bytes - first - (bytes - first) / 2);
            expect_values(fd, FLOATS);
            push(fd, text, bytes); // the connection goes on
            expect_values(fd, FLOATS);
            close(fd);
            free(text);
        }
    }
}

// The second input's place depends on the first one's size.
static void test_two_inputs(void **state)
{
    for (int blanks = 0; blanks < 8; blanks++) {
        size_t bytes, head;
        char *text = request_of("two", 2, blanks, &bytes, &head);
        int fd = dial(port_of(state));
        push(fd, text, bytes);
        expect_values(fd, 2 * FLOATS);
        close(fd);
        free(text);
    }
}

static void test_raw(void **state)
{
    char head[200];
    int n = snprintf(head, sizeof head,
                     "POST /v2/models/ident/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
                     "Inference-Header-Content-Length: 0\r\n\r\n",
                     FLOATS * 4);
    int fd = dial(port_of(state));
    push(fd, head, (size_t)n);
    push(fd, values, FLOATS * 4);
    expect_values(fd, FLOATS);
    close(fd);
}

// A small request, large ones and a small one, at once: answered in order.
static void test_behind_others(void **state)
{
    static const char live[] = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    size_t bytes, head, n = sizeof live - 1;
    char *text = request_of("ident", 1, 5, &bytes, &head), *all = malloc(3 * bytes + 2 * n), *to;
    to = (char *)memcpy(all, live, n) + n;
    for (int i = 0; i < 3; i++) {
        to = (char *)memcpy(to, text, bytes) + bytes;
    }
    memcpy(to, live, n);
    for (size_t first = 1; first < 4 * bytes; first = first * 3 + 100) {
        int fd = dial(port_of(state));
        size_t whole = 3 * bytes + 2 * n, now = first < whole ? first : whole;
        push(fd, all, now);
        pause_ms(2);
        push(fd, all + now, whole - now);
        reply r = pull(fd, true);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        for (int i = 0; i < 3; i++) {
            expect_values(fd, FLOATS);
        }
        r = pull(fd, true);
        assert_int_equal(r.status, 200);
        assert_string_equal(r.body, "{\"live\":true}");
        reply_free(&r);
        close(fd);
    }
    free(all);
    free(text);
}

// A tensor that is larger than the body, and one that leaves some of it over.
static void test_wrong_sizes(void **state)
{
    for (int more = -400; more <= 400; more += 800) {
        char json[300], *data = calloc(1, FLOATS * 4 + 400);
        snprintf(json, sizeof json,
                 "{\"inputs\":[{\"name\":\"INPUT0\",\"datatype\":\"FP32\",\"shape\":[%d],"
                 "\"parameters\":{\"binary_data_size\":%d}}]}",
                 FLOATS, FLOATS * 4);
        reply r =
            post(port_of(state), "/v2/models/ident/infer", json, data, (size_t)(FLOATS * 4 + more));
        assert_int_equal(r.status, 400);
        assert_non_null(strstr(r.body, more > 0 ? "unexpected additional input data"
                                                : "unexpected size for input"));
        reply_free(&r);
        free(data);
    }
}

// Clients that go in the midst of a body, or of an answer, leave nothing that counts: what all of
// them held together would be more than may be held.
static void test_gone(void **state)
{
    size_t bytes, head;
    char *text = request_of("ident", 1, 0, &bytes, &head), byte;
    assert_ok(hth_setting_set("http.buffered_bytes", "1MiB"));
    for (int i = 0; i < ROUNDS; i++) {
        int fd = dial(port_of(state));
        push(fd, text, i % 2 == 0 ? bytes / 2 : bytes);
        if (i % 4 == 1) {
            assert_int_equal(recv(fd, &byte, 1, 0), 1);
        } else {
            pause_ms(5);
        }
        close(fd);
    }
    pause_ms(50);
    int fd = dial(port_of(state));
    push(fd, text, bytes);
    expect_values(fd, FLOATS);
    close(fd);
    assert_ok(hth_setting_set("http.buffered_bytes", "512MiB"));
    free(text);
}

// Room that was promised to those who send no more is not had by others, who do without.
static void test_reserved(void **state)
{
    size_t bytes, head;
    char *text = request_of("ident", 1, 0, &bytes, &head);
    int slow[6];
    assert_ok(hth_setting_set("http.buffered_bytes", "1MiB"));
    for (int i = 0; i < 6; i++) {
        slow[i] = dial(port_of(state));
        push(slow[i], text, head + 100);
    }
    pause_ms(20);
    int fd = dial(port_of(state));
    push(fd, text, bytes);
    expect_values(fd, FLOATS);
    for (int i = 0; i < 6; i++) {
        push(slow[i], text + head + 100, bytes - head - 100);
        expect_values(slow[i], FLOATS);
        close(slow[i]);
    }
    close(fd);
    assert_ok(hth_setting_set("http.buffered_bytes", "512MiB"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_spins), cmocka_unit_test(test_put),
        cmocka_unit_test(test_pieces),       cmocka_unit_test(test_two_inputs),
        cmocka_unit_test(test_raw),          cmocka_unit_test(test_behind_others),
        cmocka_unit_test(test_wrong_sizes),  cmocka_unit_test(test_gone),
        cmocka_unit_test(test_reserved),
    };
    return cmocka_run_group_tests(tests, setup, rig_teardown);
}
