// SPDX-License-Identifier: Apache-2.0
// Tensors lent by others, each kind that is refused, and outputs lent to others: who gives them
// back, when, and how often. The answers are made as an engine in the process makes them.
#include "client/infer/dlpack.h"

#include "base/test.h"
#include "client/dtype.h"
#include "client/infer/infer.h"

#include <pthread.h>
#include <stdatomic.h>

static int given_back;

static void give_back(struct DLManagedTensorVersioned *self)
{
    given_back++;
}

static float values[24];
static int64_t shape[] = {2, 3, 4};

static struct DLManagedTensorVersioned lent_floats(void)
{
    return (struct DLManagedTensorVersioned){.major = 1,
                                             .deleter = give_back,
                                             .dl_tensor = {.data = values,
                                                           .device_type = HTH_DL_CPU,
                                                           .ndim = 3,
                                                           .code = HTH_DL_FLOAT,
                                                           .bits = 32,
                                                           .lanes = 1,
                                                           .shape = shape}};
}

static void test_layout(void **state)
{
    // dlpack.h of v1.0 on a machine with pointers of 64 bits
    assert_int_equal(sizeof(hth_dl_tensor), 48);
    assert_int_equal(offsetof(hth_dl_tensor, device_type), 8);
    assert_int_equal(offsetof(hth_dl_tensor, ndim), 16);
    assert_int_equal(offsetof(hth_dl_tensor, code), 20);
    assert_int_equal(offsetof(hth_dl_tensor, lanes), 22);
    assert_int_equal(offsetof(hth_dl_tensor, shape), 24);
    assert_int_equal(offsetof(hth_dl_tensor, byte_offset), 40);
    assert_int_equal(sizeof(struct DLManagedTensor), 64);
    assert_int_equal(offsetof(struct DLManagedTensor, manager_ctx), 48);
    assert_int_equal(sizeof(struct DLManagedTensorVersioned), 80);
    assert_int_equal(offsetof(struct DLManagedTensorVersioned, manager_ctx), 8);
    assert_int_equal(offsetof(struct DLManagedTensorVersioned, flags), 24);
    assert_int_equal(offsetof(struct DLManagedTensorVersioned, dl_tensor), 32);
}

// ---- lent to hearth

static hth_err look(const struct DLManagedTensorVersioned *lent, hearth_tensor *out)
{
    return (hth_err)hearth_tensor_from_dlpack(lent, "x", out);
}

static void test_in_place(void **state)
{
    struct DLManagedTensorVersioned m = lent_floats();
    hearth_tensor t;
    assert_ok(look(&m, &t));
    assert_string_equal(t.name, "x");
    assert_int_equal(t.dtype, HEARTH_F32);
    assert_int_equal(t.rank, 3);
    assert_memory_equal(t.shape, shape, sizeof shape);
    assert_ptr_equal(t.data, values);
    assert_int_equal(t.bytes, sizeof values);
    // read-only, pinned, later 1.x, with strides, of which those of a dimension of 1 say nothing
    int64_t ones[] = {1, 4, 1, 3}, strides[] = {-7, 3, 99, 1};
    m.flags = 1;
    m.minor = 3;
    m.dl_tensor.device_type = HTH_DL_CUDA_HOST;
    m.dl_tensor.ndim = 4;
    m.dl_tensor.shape = ones;
    m.dl_tensor.strides = strides;
    m.dl_tensor.byte_offset = 8;
    assert_ok(look(&m, &t));
    assert_ptr_equal(t.data, values + 2);
    assert_int_equal(t.bytes, 12 * sizeof(float));
    m.dl_tensor.device_type = HTH_DL_ROCM_HOST;
    assert_ok(look(&m, &t));
    m.dl_tensor.ndim = 0; // a scalar needs neither
    m.dl_tensor.shape = m.dl_tensor.strides = NULL;
    assert_ok((hth_err)hearth_tensor_from_dlpack(&m, NULL, &t));
    assert_null(t.name);
    assert_int_equal(t.bytes, 4);
    const struct DLManagedTensor old = {.dl_tensor = lent_floats().dl_tensor};
    assert_ok((hth_err)hearth_tensor_from_dlpack_unversioned(&old, "y", &t));
    assert_string_equal(t.name, "y");
    assert_ptr_equal(t.data, values);
    assert_int_equal(given_back, 0); // that is the caller's
}

static void test_types(void **state)
{
    static const struct {
        int code, bits;
        hearth_dtype dtype;
    } known[] = {{0, 8, HEARTH_I8},   {0, 16, HEARTH_I16}, {0, 32, HEARTH_I32},
                 {0, 64, HEARTH_I64}, {1, 8, HEARTH_U8},   {1, 16, HEARTH_U16},
                 {1, 32, HEARTH_U32}, {1, 64, HEARTH_U64}, {2, 16, HEARTH_F16},
                 {2, 32, HEARTH_F32}, {2, 64, HEARTH_F64}, {4, 16, HEARTH_BF16},
                 {6, 8, HEARTH_BOOL}};
    struct DLManagedTensorVersioned m = lent_floats();
    hearth_tensor t;
    size_t n = 0;
    for (int code = 0; code < 256; code++) {
        for (int bits = 0; bits < 256; bits++) {
            m.dl_tensor.code = (uint8_t)code;
            m.dl_tensor.bits = (uint8_t)bits;
            if (n < sizeof known / sizeof known[0] && known[n].code == code &&
                known[n].bits == bits) {
                assert_ok(look(&m, &t));
                assert_int_equal(t.dtype, known[n].dtype);
                assert_int_equal(t.bytes, 24 * bits / 8);
                m.dl_tensor.lanes = 2;
                assert_err(look(&m, &t), HTH_EINVAL, "in 2 lanes");
                m.dl_tensor.lanes = 1;
                n++;
            } else {
                assert_err(look(&m, &t), HTH_EINVAL, "hearth has no type");
            }
        }
    }
    assert_int_equal(n, sizeof known / sizeof known[0]);
    m.dl_tensor.code = HTH_DL_COMPLEX;
    m.dl_tensor.bits = 64;
    assert_err(look(&m, &t), HTH_EINVAL,
               "tensor 'x': hearth has no type complex (code 5) of 64 bits");
    m.dl_tensor.code = HTH_DL_BOOL;
    m.dl_tensor.bits = 1; // packed
    assert_err(look(&m, &t), HTH_EINVAL, "no type bool (code 6) of 1 bits");
}

static void test_refused(void **state)
{
    static const hearth_tensor zero;
    int64_t transposed[] = {1, 2, 6}, gap[] = {16, 4, 1}, turned[] = {12, 4, -1},
            same[] = {0, 4, 1};
    int64_t *const bad[] = {transposed, gap, turned, same};
    struct DLManagedTensorVersioned m = lent_floats();
    hearth_tensor t;
    for (size_t i = 0; i < 4; i++) {
        m.dl_tensor.strides = bad[i];
        assert_err(look(&m, &t), HTH_EINVAL, "make it contiguous");
        assert_memory_equal(&t, &zero, sizeof t);
    }
    assert_non_null(strstr(hth_err_detail(), "tensor 'x': its dimension 0 has stride 0, not 12"));
    m = lent_floats();
    static const int devices[] = {
        HTH_DL_CUDA, HTH_DL_METAL, HTH_DL_ROCM, HTH_DL_CUDA_MANAGED, 4, 15, 0, -1, 1 << 30};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        m.dl_tensor.device_type = devices[i];
        assert_err(look(&m, &t), HTH_EINVAL, "copy it to the CPU");
    }
    m.dl_tensor.device_type = HTH_DL_CUDA;
    m.dl_tensor.device_id = 3;
    assert_err(look(&m, &t), HTH_EINVAL, "tensor 'x': it is on CUDA device 3");
    m = lent_floats();
    m.dl_tensor.data = NULL;
    assert_err(look(&m, &t), HTH_EINVAL, "96 bytes, but no data");
    m = lent_floats();
    m.dl_tensor.shape = NULL;
    assert_err(look(&m, &t), HTH_EINVAL, "3 dimensions, but no shape");
    m.dl_tensor.ndim = 9;
    m.dl_tensor.shape = (int64_t[9]){1, 1, 1, 1, 1, 1, 1, 1, 1};
    assert_err(look(&m, &t), HTH_EINVAL, "rank 9");
    m.dl_tensor.ndim = -1;
    assert_err(look(&m, &t), HTH_EINVAL, "rank -1");
    m.dl_tensor.ndim = 2;
    m.dl_tensor.shape = (int64_t[2]){2, -1};
    assert_err(look(&m, &t), HTH_EINVAL, "negative");
    m.dl_tensor.shape = (int64_t[2]){INT64_MAX, INT64_MAX};
    assert_err(look(&m, &t), HTH_ETOOBIG, "tensor 'x': ");
    assert_err(look(NULL, &t), HTH_EINVAL, "no tensor");
    assert_err((hth_err)hearth_tensor_from_dlpack_unversioned(NULL, NULL, &t), HTH_EINVAL,
               "no tensor");
    assert_memory_equal(&t, &zero, sizeof t);
    assert_int_equal(given_back, 0);
}

static void test_version(void **state)
{
    // of another major version nothing after the flags is looked at: the shape is no address
    struct DLManagedTensorVersioned m = lent_floats();
    hearth_tensor t;
    m.dl_tensor.shape = (int64_t *)8;
    m.major = 2;
    m.minor = 7;
    assert_err(look(&m, &t), HTH_ENOTSUP, "tensor 'x' is of DLPack 2.7, and only 1.x is known");
    assert_int_equal(t.bytes, 0);
    m.major = 0;
    assert_err(look(&m, &t), HTH_ENOTSUP, "of DLPack 0.7");
}

static void test_no_elements(void **state)
{
    struct DLManagedTensorVersioned m = lent_floats();
    hearth_tensor t;
    m.dl_tensor.data = NULL;
    m.dl_tensor.shape = (int64_t[3]){2, 0, 4};
    m.dl_tensor.strides = (int64_t[3]){5, 6, 7};
    assert_ok(look(&m, &t));
    assert_int_equal(t.bytes, 0);
    assert_int_equal(t.shape[2], 4);
    assert_ok(hth_infer_check(&t));
    m.dl_tensor.device_type = HTH_DL_CUDA; // said, all the same
    assert_err(look(&m, &t), HTH_EINVAL, "CUDA");
}

// ---- lent by hearth

// answer is an array of outputs: floats [2, 3, 4], a bool that is a scalar, and no BF16 [3, 0].
static hearth_tensor *answer(void)
{
    hth_infer_made made = {.outputs = NULL};
    hearth_tensor out[] = {
        {.name = "a", .dtype = HEARTH_F32, .rank = 3, .shape = {2, 3, 4}, .bytes = 96},
        {.name = "b", .dtype = HEARTH_BOOL, .bytes = 1},
        {.name = "c", .dtype = HEARTH_BF16, .rank = 2, .shape = {3, 0}}};
    assert_ok(hth_infer_place(&made, "m:3", 3, out, 3));
    for (int i = 0; i < 24; i++) {
        ((float *)made.outputs[0].data)[i] = (float)i;
    }
    *(uint8_t *)made.outputs[1].data = 1;
    return made.outputs;
}

static hth_err lend(const hearth_tensor *outputs, int output,
                    struct DLManagedTensorVersioned **lent)
{
    return (hth_err)hearth_outputs_dlpack(outputs, output, lent);
}

static void test_lent(void **state)
{
    int64_t live = hth_alloc_live();
    hearth_tensor *y = answer();
    struct DLManagedTensorVersioned *a, *b, *c;
    struct DLManagedTensor *old;
    assert_ok(lend(y, 0, &a));
    assert_int_equal(a->major, 1);
    assert_int_equal(a->minor, 0);
    assert_int_equal(a->flags, 0); // to be written, too
    const hth_dl_tensor *t = &a->dl_tensor;
    assert_ptr_equal(t->data, y[0].data);
    assert_int_equal(t->device_type, HTH_DL_CPU);
    assert_int_equal(t->device_id, 0);
    assert_int_equal(t->ndim, 3);
    assert_int_equal(t->code, HTH_DL_FLOAT);
    assert_int_equal(t->bits, 32);
    assert_int_equal(t->lanes, 1);
    assert_memory_equal(t->shape, shape, sizeof shape);
    assert_memory_equal(t->strides, ((int64_t[]){12, 4, 1}), sizeof shape);
    assert_int_equal(t->byte_offset, 0);
    assert_ok(lend(y, 1, &b));
    assert_int_equal(b->dl_tensor.ndim, 0);
    assert_int_equal(b->dl_tensor.code, HTH_DL_BOOL);
    assert_int_equal(*(uint8_t *)b->dl_tensor.data, 1);
    assert_ok(lend(y, 2, &c));
    assert_null(c->dl_tensor.data);
    assert_int_equal(c->dl_tensor.code, HTH_DL_BFLOAT);
    assert_int_equal(c->dl_tensor.shape[1], 0);
    assert_memory_equal(c->dl_tensor.strides, ((int64_t[]){1, 1}), 2 * sizeof(int64_t));
    assert_ok((hth_err)hearth_outputs_dlpack_unversioned(y, 0, &old)); // the same a second time
    assert_ptr_equal(old->dl_tensor.data, y[0].data);
    assert_memory_equal(old->dl_tensor.strides, ((int64_t[]){12, 4, 1}), sizeof shape);
    ((float *)old->dl_tensor.data)[23] = 5;
    hearth_tensors_free(y, 3);
    b->deleter(b);
    old->deleter(old);
    assert_int_equal((int)((float *)a->dl_tensor.data)[23], 5); // seen by all, and still there
    assert_int_equal(hth_alloc_live(), live + 3);               // the answer, a and c
    a->deleter(a);
    c->deleter(c);
    assert_int_equal(hth_alloc_live(), live);
}

static void test_there_and_back(void **state)
{
    int64_t live = hth_alloc_live();
    hearth_tensor *y = answer();
    for (int i = 0; i < 3; i++) {
        struct DLManagedTensorVersioned *lent;
        struct DLManagedTensor *old;
        hearth_tensor t;
        assert_ok(lend(y, i, &lent));
        assert_ok((hth_err)hearth_tensor_from_dlpack(lent, y[i].name, &t));
        assert_int_equal(t.dtype, y[i].dtype);
        assert_int_equal(t.rank, y[i].rank);
        assert_memory_equal(t.shape, y[i].shape, sizeof t.shape);
        assert_int_equal(t.bytes, y[i].bytes);
        assert_ptr_equal(t.data, t.bytes > 0 ? y[i].data : NULL);
        lent->deleter(lent);
        assert_ok((hth_err)hearth_outputs_dlpack_unversioned(y, i, &old));
        assert_ok((hth_err)hearth_tensor_from_dlpack_unversioned(old, "z", &t));
        assert_int_equal(t.bytes, y[i].bytes);
        old->deleter(old);
    }
    hearth_tensors_free(y, 3);
    assert_int_equal(hth_alloc_live(), live);
}

static void test_not_lent(void **state)
{
    int64_t live = hth_alloc_live();
    hearth_tensor *y = answer();
    struct DLManagedTensorVersioned *lent = (void *)8;
    struct DLManagedTensor *old = (void *)8;
    assert_err(lend(y, 3, &lent), HTH_EINVAL, "no output 3: the answer has 3");
    assert_null(lent);
    assert_err(lend(y, -1, &lent), HTH_EINVAL, "no output -1");
    assert_err(lend(NULL, 0, &lent), HTH_EINVAL, "no output 0: the answer has 0");
    assert_err((hth_err)hearth_outputs_dlpack_unversioned(y, 3, &old), HTH_EINVAL, "no output 3");
    assert_null(old);
    FAULT_LOOP(lend(y, 0, &lent));
    FAULT_LOOP((hth_err)hearth_outputs_dlpack_unversioned(y, 1, &old));
    hearth_tensors_free(y, 3);
    lent->deleter(lent);
    assert_int_equal(*(uint8_t *)old->dl_tensor.data, 1);
    old->deleter(old);
    assert_int_equal(hth_alloc_live(), live);
}

enum { THREADS = 4, LOANS = 2000 };

typedef struct user {
    hearth_tensor *y;
    pthread_barrier_t *together;
    double sum;
} user;

// use_all lends, reads and gives back, and at last what was lent while nobody had the array.
static void *use_all(void *ctx)
{
    user *u = ctx;
    struct DLManagedTensorVersioned *last = NULL;
    pthread_barrier_wait(u->together);
    for (int i = 0; i < LOANS; i++) {
        struct DLManagedTensorVersioned *lent;
        if (hearth_outputs_dlpack(u->y, 0, &lent) == HEARTH_OK) {
            u->sum += ((float *)lent->dl_tensor.data)[1];
            if (last != NULL) {
                last->deleter(last);
            }
            last = lent;
        }
    }
    pthread_barrier_wait(u->together); // the array goes now
    u->sum += ((float *)last->dl_tensor.data)[2];
    last->deleter(last);
    return NULL;
}

static void test_threads(void **state)
{
    int64_t live = hth_alloc_live();
    pthread_barrier_t together;
    pthread_t thread[THREADS];
    user users[THREADS];
    hearth_tensor *y = answer();
    pthread_barrier_init(&together, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        users[i] = (user){.y = y, .together = &together};
        assert_int_equal(pthread_create(&thread[i], NULL, use_all, &users[i]), 0);
    }
    pthread_barrier_wait(&together);
    pthread_barrier_wait(&together);
    hearth_tensors_free(y, 3);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_true(users[i].sum == LOANS + 2);
    }
    pthread_barrier_destroy(&together);
    assert_int_equal(hth_alloc_live(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),   cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_types),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_version),  cmocka_unit_test(test_no_elements),
        cmocka_unit_test(test_lent),     cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_not_lent), cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
