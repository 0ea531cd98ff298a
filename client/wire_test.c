// SPDX-License-Identifier: Apache-2.0
// Frames: the layout byte by byte, what is refused and with which code, and every truncation of a
// good frame.
#include "client/wire.h"

#include "base/alloc.h"
#include "client/dtype.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

typedef struct wire_fixture {
    Hearth__Request req;
    Hearth__Infer infer;
    Hearth__Tensor t[2];
    Hearth__Tensor *list[2];
    int64_t shape[2][2];
    uint8_t frame[4096];
    size_t bytes;
} wire_fixture;

static void wire_make(wire_fixture *fixture)
{
    memset(fixture, 0, sizeof *fixture);
    hearth__request__init(&fixture->req);
    hearth__infer__init(&fixture->infer);
    for (int i = 0; i < 2; i++) {
        hearth__tensor__init(&fixture->t[i]);
        fixture->list[i] = &fixture->t[i];
        fixture->t[i].shape = fixture->shape[i];
        fixture->t[i].n_shape = 2;
        fixture->t[i].dtype = HEARTH_F32;
        fixture->t[i].name = i ? "b" : "a";
        fixture->shape[i][0] = 3;
        fixture->shape[i][1] = 1 + i;
        fixture->t[i].bytes = 12u * (1 + (unsigned)i);
    }
    fixture->infer.model = "m:2";
    fixture->infer.inputs = fixture->list;
    fixture->infer.n_inputs = 2;
    fixture->req.call = 77;
    fixture->req.body_case = HEARTH__REQUEST__BODY_INFER;
    fixture->req.infer = &fixture->infer;
}

// wire_pack frames the fixture as it stands; offsets are the test's when `place` is 0.
static void wire_pack(wire_fixture *fixture, int place)
{
    uint64_t data_bytes = 128;
    if (place) {
        assert_int_equal(hth_wire_place(fixture->list, 2, &data_bytes), HTH_OK);
    }
    memset(fixture->frame, 0xEE, sizeof fixture->frame);
    assert_int_equal(hth_wire_frame_bytes(&fixture->req.base, data_bytes, &hth_wire_default_limits,
                                          &fixture->bytes),
                     HTH_OK);
    uint8_t *data = hth_wire_write(&fixture->req.base, fixture->frame);
    for (uint8_t i = 0; i < 12; i++) {
        data[i] = i;
    }
    if (place) {
        hth_wire_pad(fixture->list, 2, data);
    }
}

static hth_err wire_read(const wire_fixture *fixture, size_t bytes, const hth_wire_limits *limits)
{
    Hearth__Request *r;
    const uint8_t *data;
    uint64_t data_bytes;
    hth_err err = hth_wire_read_request(fixture->frame, bytes, limits, &r, &data, &data_bytes);
    assert_true((err == HTH_OK) == (r != NULL));
    hth_wire_free_request(r);
    return err;
}

static void test_round_trip(void **state)
{
    wire_fixture f;
    wire_make(&f);
    wire_pack(&f, 1);
    Hearth__Request *r;
    const uint8_t *data;
    uint64_t data_bytes;
    assert_int_equal(
        hth_wire_read_request(f.frame, f.bytes, &hth_wire_default_limits, &r, &data, &data_bytes),
        HTH_OK);
    assert_memory_equal(f.frame, "HTH1", 4);
    assert_int_equal((size_t)(data - f.frame) % 64, 60);
    assert_int_equal(data_bytes, 128);
    assert_int_equal(r->call, 77);
    assert_string_equal(r->infer->model, "m:2");
    assert_int_equal(r->infer->n_inputs, 2);
    assert_int_equal(r->infer->inputs[1]->offset, 64);
    assert_int_equal(r->infer->inputs[1]->bytes, 24);
    assert_int_equal(data[11], 11);
    for (int i = 12; i < 64; i++) {
        assert_int_equal(data[i], 0); // the gap after the first tensor
    }
    hth_wire_free_request(r);
}

// wire_make_long makes a request whose tensors have long names, and packs it.
static void wire_make_long(wire_fixture *f)
{
    static char longer[2][1400];
    wire_make(f);
    for (int i = 0; i < 2; i++) {
        memset(longer[i], 'x', sizeof longer[i] - 1);
        f->t[i].name = longer[i];
    }
    wire_pack(f, 1);
}

static void test_truncated(void **state)
{
    wire_fixture f;
    wire_make_long(&f);
    int64_t live = hth_alloc_live();
    for (size_t n = 0; n < f.bytes - 40; n++) { // 24 bytes of b and its 40 bytes of padding
        assert_int_equal(wire_read(&f, n, &hth_wire_default_limits), HTH_ECORRUPT);
    }
    assert_int_equal(wire_read(&f, f.bytes - 40, &hth_wire_default_limits), HTH_OK);
    assert_int_equal(hth_alloc_live(), live);
}

static void test_refused(void **state)
{
    wire_fixture f;
    wire_make(&f);
    f.t[0].offset = 0, f.t[1].offset = 128;
    wire_pack(&f, 0);
    assert_int_equal(wire_read(&f, f.bytes, &hth_wire_default_limits),
                     HTH_ECORRUPT); // after the end
    f.t[1].offset = UINT64_MAX - 63;
    wire_pack(&f, 0);
    assert_int_equal(wire_read(&f, f.bytes, &hth_wire_default_limits),
                     HTH_ECORRUPT); // offset + bytes wraps
    f.t[1].offset = 4;
    wire_pack(&f, 0);
    assert_int_equal(wire_read(&f, f.bytes, &hth_wire_default_limits), HTH_EINVAL);
    f.t[1].offset = 64, f.t[1].bytes = 20;
    wire_pack(&f, 0);
    assert_int_equal(wire_read(&f, f.bytes, &hth_wire_default_limits), HTH_EINVAL);
    assert_non_null(
        strstr(hth_err_detail(), "tensor 'b' claims 20 bytes, its shape and type make 24"));
    f.t[1].bytes = 24, f.t[1].dtype = 8;
    wire_pack(&f, 0);
    assert_int_equal(wire_read(&f, f.bytes, &hth_wire_default_limits), HTH_EINVAL);
    f.t[1].dtype = HEARTH_F32, f.shape[1][0] = -3;
    wire_pack(&f, 0);
    assert_int_equal(wire_read(&f, f.bytes, &hth_wire_default_limits), HTH_EINVAL);
    f.shape[1][0] = INT64_MAX, f.shape[1][1] = INT64_MAX;
    wire_pack(&f, 0);
    assert_int_equal(wire_read(&f, f.bytes, &hth_wire_default_limits), HTH_ETOOBIG);
}

// A reply's tensors travel in it: a region would name memory that is not the reader's.
static void test_reply_region(void **state)
{
    wire_fixture f;
    Hearth__Reply reply = HEARTH__REPLY__INIT, *back;
    Hearth__Outputs body = HEARTH__OUTPUTS__INIT;
    const uint8_t *data;
    uint64_t data_bytes;
    for (uint32_t region = 0; region < 2; region++) {
        wire_make(&f);
        body.outputs = f.list;
        body.n_outputs = 2;
        reply.body_case = HEARTH__REPLY__BODY_OUTPUTS;
        reply.outputs = &body;
        f.t[1].region = region;
        f.t[1].offset = region << 30;
        assert_int_equal(hth_wire_place(f.list, 2, &data_bytes), HTH_OK);
        assert_int_equal(
            hth_wire_frame_bytes(&reply.base, data_bytes, &hth_wire_default_limits, &f.bytes),
            HTH_OK);
        hth_wire_write(&reply.base, f.frame);
        assert_int_equal(hth_wire_read_reply(f.frame, f.bytes, &hth_wire_default_limits, &back,
                                             &data, &data_bytes),
                         region == 0 ? HTH_OK : HTH_ECORRUPT);
        hth_wire_free_reply(back);
    }
}

static void test_limits(void **state)
{
    wire_fixture f;
    wire_make(&f);
    wire_pack(&f, 1);
    hth_wire_limits l = hth_wire_default_limits;
    l.message_bytes = f.bytes - 1;
    assert_int_equal(wire_read(&f, f.bytes, &l), HTH_ETOOBIG);
    assert_non_null(strstr(hth_err_detail(), "limits.message_bytes"));
    l = hth_wire_default_limits, l.rank = 1;
    assert_int_equal(wire_read(&f, f.bytes, &l), HTH_ETOOBIG);
    l = hth_wire_default_limits, l.tensors = 1;
    assert_int_equal(wire_read(&f, f.bytes, &l), HTH_ETOOBIG);
    l = hth_wire_default_limits, l.header_bytes = 16;
    assert_int_equal(wire_read(&f, f.bytes, &l), HTH_ETOOBIG);
    size_t bytes;
    assert_int_equal(hth_wire_frame_bytes(&f.req.base, 128, &l, &bytes), HTH_ETOOBIG);
    l = hth_wire_default_limits;
    assert_int_equal(hth_wire_frame_bytes(&f.req.base, UINT64_MAX, &l, &bytes), HTH_ETOOBIG);
}

static void test_out_of_memory(void **state)
{
    wire_fixture f;
    wire_make_long(&f);
    int64_t live = hth_alloc_live();
    hth_err err = HTH_ENOMEM;
    int n = 0;
    while (err != HTH_OK) {
        hth_fault_alloc((uint64_t)++n);
        err = wire_read(&f, f.bytes, &hth_wire_default_limits);
        hth_fault_alloc(0);
        assert_int_equal(hth_alloc_live(), live);
    }
    assert_true(n > 3);
}

// What is checked of a frame is checked of a record.
static void test_record(void **state)
{
    static const char *const text[HTH_IPC_RECORD_TEXTS] = {"m:2"};
    const int64_t shape[] = {3, 1};
    _Alignas(64) uint8_t memory[1024] = {0};
    hth_ipc_record *r = (hth_ipc_record *)(void *)memory;
    hth_wire_limits l = hth_wire_default_limits;
    hth_ipc_record_begin(r, text, 2);
    for (int i = 0; i < 2; i++) {
        hth_ipc_record_add(r, i == 0 ? "a" : "b", HEARTH_F32, 2, shape, 12);
    }
    assert_int_equal(hth_ipc_record_end(r), HTH_OK);
    assert_int_equal(hth_wire_check_record(r, r->bytes, &l), HTH_OK);
    assert_int_equal(hth_wire_check_record(r, r->bytes - 1, &l), HTH_ECORRUPT);
    r->tensor[1].bytes = 20;
    assert_int_equal(hth_wire_check_record(r, r->bytes, &l), HTH_EINVAL);
    assert_non_null(
        strstr(hth_err_detail(), "tensor 'b' claims 20 bytes, its shape and type make 12"));
    r->tensor[1].bytes = 12, r->tensor[1].dim[0] = -3;
    assert_int_equal(hth_wire_check_record(r, r->bytes, &l), HTH_EINVAL);
    r->tensor[1].dim[0] = 3, r->tensor[1].dtype = 8;
    assert_int_equal(hth_wire_check_record(r, r->bytes, &l), HTH_EINVAL);
    r->tensor[1].dtype = HEARTH_F32;
    l.message_bytes = r->bytes - 1;
    assert_int_equal(hth_wire_check_record(r, r->bytes, &l), HTH_ETOOBIG);
    l = hth_wire_default_limits, l.header_bytes = r->head_bytes - 1;
    assert_int_equal(hth_wire_check_record(r, r->bytes, &l), HTH_ETOOBIG);
    l = hth_wire_default_limits, l.tensors = 1;
    assert_int_equal(hth_wire_check_record(r, r->bytes, &l), HTH_ETOOBIG);
    l = hth_wire_default_limits, l.rank = 1;
    assert_int_equal(hth_wire_check_record(r, r->bytes, &l), HTH_ETOOBIG);
    assert_int_equal(hth_wire_check_record(r, r->bytes, &hth_wire_default_limits), HTH_OK);
}

static void test_dtypes(void **state)
{
    static const int all[] = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16};
    static const size_t size[] = {4, 1, 1, 2, 2, 4, 8, 1, 2, 8, 4, 8, 2};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_int_equal(hth_dtype_names_of(all[i])->bytes, size[i]);
    }
    assert_null(hth_dtype_names_of(8));
    assert_null(hth_dtype_names_of(0));
    assert_int_equal(hth_dtype_of_npy("<u2")->dtype, HEARTH_U16);
    assert_null(hth_dtype_of_npy(">f4"));
    uint64_t bytes;
    assert_int_equal(hth_dtype_bytes_of(HEARTH_F64, 0, NULL, &bytes), HTH_OK);
    assert_int_equal(bytes, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_limits),
        cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_reply_region),  cmocka_unit_test(test_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
