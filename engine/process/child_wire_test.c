// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"
#include "engine/process/child_link.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void *take(void *ctx, size_t bytes)
{
    return hth_alloc(bytes);
}

static hth_child_record *make(void)
{
    const char *text[HTH_CHILD_TEXTS] = {
        [HTH_CHILD_MODEL] = "model:3", [HTH_CHILD_ARGUMENTS] = "{\"a\":1}"};
    const hth_request_tensor t[] = {
        {.name = "x", .t = {.dtype = HTH_DT_F32, .shape = {.rank = 2, .dim = {3, 5}}, .bytes = 60}},
        {.t = {.dtype = HTH_DT_I64, .shape = {.rank = 0}, .bytes = 8}}};
    hth_child_record *r;
    assert_ok(hth_child_record_new(text, t, 2, take, NULL, &r));
    return r;
}

static void test_round_trip(void **state)
{
    hth_child_record *r = make();
    assert_ok(hth_child_record_check(r, r->bytes));
    assert_string_equal(hth_child_record_text(r, HTH_CHILD_MODEL), "model:3");
    assert_null(hth_child_record_text(r, HTH_CHILD_QUERY));
    assert_string_equal(hth_child_record_text(r, HTH_CHILD_ARGUMENTS), "{\"a\":1}");
    hth_request_tensor x = hth_child_record_tensor(r, 0), y = hth_child_record_tensor(r, 1);
    assert_string_equal(x.name, "x");
    assert_int_equal(x.t.dtype, HTH_DT_F32);
    assert_int_equal(x.t.shape.rank, 2);
    assert_int_equal(x.t.shape.dim[1], 5);
    assert_int_equal(x.t.bytes, 60);
    assert_null(y.name);
    assert_int_equal(y.t.shape.rank, 0);
    hth_free(r);
}

static void test_refused(void **state)
{
    hth_child_record *r = make(), good;
    uint64_t n = r->bytes;
    memcpy(&good, r, sizeof good);
    assert_err(hth_child_record_check(r, n - 1), HTH_ECORRUPT, "size");
    assert_err(hth_child_record_check(r, 4), HTH_ECORRUPT, "size");
    r->n_tensors = 60000;
    assert_err(hth_child_record_check(r, n), HTH_ECORRUPT, "size");
    r->n_tensors = 2;
    r->n_known = 3;
    assert_err(hth_child_record_check(r, n), HTH_ECORRUPT, "size");
    r->n_known = 0;
    r->text[HTH_CHILD_QUERY] = n;
    assert_err(hth_child_record_check(r, n), HTH_ECORRUPT, "outside");
    r->text[HTH_CHILD_QUERY] = 8; // in the numbers
    assert_err(hth_child_record_check(r, n), HTH_ECORRUPT, "outside");
    r->text[HTH_CHILD_QUERY] = 0;
    r->tensor[1].name = UINT64_MAX;
    assert_err(hth_child_record_check(r, n), HTH_ECORRUPT, "outside");
    r->tensor[1].name = 0;
    r->tensor[0].rank = HTH_MAX_RANK + 1;
    assert_err(hth_child_record_check(r, n), HTH_ECORRUPT, "dimensions");
    r->tensor[0].rank = 2;
    r->err = HTH_N_ERR;
    assert_err(hth_child_record_check(r, n), HTH_ECORRUPT, "error");
    r->err = 0;
    ((char *)r)[n - 1] = 'x';
    assert_err(hth_child_record_check(r, n), HTH_ECORRUPT, "no end");
    ((char *)r)[n - 1] = 0;
    assert_ok(hth_child_record_check(r, n));
    assert_memory_equal(&good, r, sizeof good);
    hth_free(r);
}

// Whatever bytes are changed: what passes the check can be read.
static void test_garbage(void **state)
{
    uint32_t seed = 7;
    for (int i = 0; i < 20000; i++) {
        hth_child_record *r = make();
        uint64_t n = r->bytes;
        for (int k = 0; k < 3; k++) {
            seed = seed * 1664525u + 1013904223u;
            ((uint8_t *)r)[(seed >> 8) % n] = (uint8_t)(seed >> 24);
        }
        if (hth_child_record_check(r, n) == HTH_OK) {
            size_t seen = 0;
            for (int k = 0; k < HTH_CHILD_TEXTS; k++) {
                const char *text = hth_child_record_text(r, k);
                seen += text != NULL ? strlen(text) : 0;
            }
            for (uint32_t k = 0; k < r->n_tensors; k++) {
                hth_request_tensor t = hth_child_record_tensor(r, (int)k);
                seen += t.name != NULL ? strlen(t.name) : 0;
                assert_true(t.t.shape.rank <= HTH_MAX_RANK);
            }
            assert_true(seen < n * (HTH_CHILD_TEXTS + r->n_tensors));
        }
        hth_free(r);
    }
}

// Descriptors whose message never came are passed over, and nobody waits for one that is not there.
static void test_descriptors_in_step(void **state)
{
    int ends[2], fd, pipes[3][2];
    struct stat sent, got;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pipe(pipes[i]), 0);
        assert_ok(hth_child_fd_send(ends[0], 7u + (uint32_t)i, pipes[i][0]));
    }
    assert_ok(hth_child_fd_receive(ends[1], 8, &fd));
    assert_int_equal(fstat(pipes[1][0], &sent), 0);
    assert_int_equal(fstat(fd, &got), 0);
    assert_int_equal(got.st_ino, sent.st_ino);
    close(fd);
    assert_err(hth_child_fd_receive(ends[1], 7, &fd), HTH_EIO, "did not arrive");
    close(ends[0]);
    close(ends[1]);
    for (int i = 0; i < 3; i++) {
        close(pipes[i][0]);
        close(pipes[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_descriptors_in_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
