// SPDX-License-Identifier: Apache-2.0
// CUDA graphs over the fake driver: what may not be captured is refused there and costs only the
// capture; random plans with offloads and recomputes give the same words captured and plain, in
// random orders of what is not ordered, when memory moves, and whichever call of the driver fails;
// models and training give the same bits with and without.
#include "device/cuda/cuda.h"
#include "device/cuda/fake/impl.h"
#include "kernels/cuda/fake/fake.h"
#include "planner/plan_train_gen.h"
#include "memmgr/run_test.h"
#include "tests/rig/npy_data.h"
#include "tests/rig/train_job.h"

#include <stdio.h>

#define MIB ((size_t)1 << 20)

static hth_cuda_fake *driver;

static void driver_open(uint64_t seed)
{
    driver = hth_cuda_fake_open(seed);
    assert_non_null(driver);
    hth_plugin_use(hth_cuda_fake_plugin());
}

static void driver_close(void)
{
    assert_int_equal(driver->live, 0);
    assert_int_equal(driver->used_bytes, 0);
    hth_plugin_use(NULL);
    hth_cuda_fake_close();
}

// The driver's rules.

typedef struct scene {
    CUstream a, b;
    CUevent e, outside;
    CUdeviceptr memory;
    void *pinned;
    CUgraph graph;
} scene;

static void scene_open(scene *s)
{
    const hth_cuda_api *api = hth_cuda_fake_api();
    CUcontext context;
    assert_int_equal(api->cuDevicePrimaryCtxRetain(&context, 0), 0);
    assert_int_equal(api->cuCtxSetCurrent(context), 0);
    assert_int_equal(api->cuStreamCreate(&s->a, CU_STREAM_NON_BLOCKING), 0);
    assert_int_equal(api->cuStreamCreate(&s->b, CU_STREAM_NON_BLOCKING), 0);
    assert_int_equal(api->cuEventCreate(&s->e, 0), 0);
    assert_int_equal(api->cuEventCreate(&s->outside, 0), 0);
    assert_int_equal(api->cuMemAlloc(&s->memory, 4096), 0);
    assert_int_equal(api->cuMemHostAlloc(&s->pinned, 4096, 0), 0);
    assert_int_equal(api->cuEventRecord(s->outside, s->b), 0);
    s->graph = NULL;
}

static void scene_close(scene *s)
{
    const hth_cuda_api *api = hth_cuda_fake_api();
    assert_int_equal(api->cuStreamSynchronize(s->a), 0);
    assert_int_equal(api->cuStreamDestroy(s->a), 0);
    assert_int_equal(api->cuStreamDestroy(s->b), 0);
    assert_int_equal(api->cuEventDestroy(s->e), 0);
    assert_int_equal(api->cuEventDestroy(s->outside), 0);
    assert_int_equal(api->cuMemFree(s->memory), 0);
    assert_int_equal(api->cuMemFreeHost(s->pinned), 0);
    assert_int_equal(api->cuDevicePrimaryCtxRelease(0), 0);
}

static CUresult draw_in(scene *s)
{
    const hth_cuda_api *api = hth_cuda_fake_api();
    assert_int_equal(api->cuEventRecord(s->e, s->a), 0);
    return api->cuStreamWaitEvent(s->b, s->e, 0);
}

// What each illegal call answers, and what the end of the capture says then.
static CUresult illegal(scene *s, int which)
{
    const hth_cuda_api *api = hth_cuda_fake_api();
    CUdeviceptr more;
    void *host;
    char pageable[64] = "";
    switch (which) {
    case 0:
        return api->cuStreamSynchronize(s->a);
    case 1:
        return api->cuCtxSynchronize();
    case 2:
        return api->cuMemAlloc(&more, 4096);
    case 3:
        return api->cuMemFree(s->memory);
    case 4:
        return api->cuMemHostAlloc(&host, 4096, 0);
    case 5:
        return api->cuMemcpyHtoDAsync(s->memory, pageable, sizeof pageable, s->a);
    case 6:
        return api->cuMemcpyDtoHAsync(pageable, s->memory, sizeof pageable, s->a);
    case 7:
        return api->cuEventQuery(s->outside);
    case 8:
        return api->cuStreamWaitEvent(s->a, s->outside, 0);
    case 9:
        return api->cuMemcpyDtoDAsync(s->memory, s->memory + 64, 64, NULL);
    default:
        return CUDA_SUCCESS;
    }
}

static void test_illegal_calls(void **state)
{
    static const CUresult answers[] = {
        [8] = CUDA_ERROR_STREAM_CAPTURE_ISOLATION, [9] = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT};
    const hth_cuda_api *api = hth_cuda_fake_api();
    driver_open(1);
    for (int which = 0; which < 10; which++) {
        scene s;
        scene_open(&s);
        assert_int_equal(api->cuStreamBeginCapture(s.a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
        assert_int_equal(illegal(&s, which), answers[which] != 0
                                                 ? answers[which]
                                                 : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        assert_int_equal(api->cuMemcpyHtoDAsync(s.memory, s.pinned, 64, s.a),
                         CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        assert_int_equal(api->cuStreamEndCapture(s.a, &s.graph),
                         CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        assert_null(s.graph);
        scene_close(&s);
    }
    driver_close();
}

static void test_joins(void **state)
{
    const hth_cuda_api *api = hth_cuda_fake_api();
    scene s;
    driver_open(2);
    scene_open(&s);
    assert_int_equal(api->cuStreamEndCapture(s.a, &s.graph), CUDA_ERROR_ILLEGAL_STATE);
    assert_int_equal(api->cuStreamBeginCapture(s.a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
    assert_int_equal(draw_in(&s), 0);
    assert_int_equal(api->cuMemcpyHtoDAsync(s.memory, s.pinned, 64, s.b), 0);
    assert_int_equal(api->cuStreamEndCapture(s.a, &s.graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    assert_int_equal(api->cuStreamBeginCapture(s.a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
    assert_int_equal(draw_in(&s), 0);
    assert_int_equal(api->cuStreamEndCapture(s.b, &s.graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    assert_int_equal(api->cuStreamEndCapture(s.a, &s.graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(api->cuEventQuery(s.e), CUDA_ERROR_CAPTURED_EVENT);
    assert_int_equal(api->cuStreamWaitEvent(s.b, s.e, 0), CUDA_ERROR_CAPTURED_EVENT);
    assert_int_equal(api->cuEventRecord(s.e, s.a), 0); // a plain record again
    assert_int_equal(api->cuStreamWaitEvent(s.b, s.e, 0), 0);
    scene_close(&s);
    driver_close();
}

// Over device.h: a failing launch, memory that is not pinned, and an end that drops everything
// leave a device that works on.
static hth_err refused(void *arg)
{
    return hth_fail(HTH_EIO, "cuDNN does not like it");
}

static void test_refusals(void **state)
{
    hth_device *d;
    hth_stream *s;
    hth_capture *c = NULL;
    void *far, *pinned;
    char pageable[64] = "";
    driver_open(3);
    assert_ok(hth_device_open("cuda:0,mem=4MiB", &d));
    assert_true(hth_device_captures(d));
    assert_ok(hth_stream_open(d, HTH_STREAM_COMPUTE, &s));
    assert_ok(hth_device_reserve(d, MIB, &far));
    assert_ok(hth_device_reserve_host(d, MIB, &pinned));
    assert_ok(hth_capture_begin(s));
    assert_int_equal(hth_capture_begin(s), HTH_EBUSY);
    assert_ok(hth_stream_launch(s, refused, NULL));
    assert_err(hth_capture_end(s, &c), HTH_EIO, "cuDNN does not like it");
    assert_null(c);
    assert_ok(hth_capture_begin(s));
    assert_err(hth_stream_copy(s, far, pageable, sizeof pageable), HTH_ENOTSUP, "is not pinned");
    assert_err(hth_stream_copy(s, pageable, far, sizeof pageable), HTH_ENOTSUP, "is not pinned");
    assert_ok(hth_stream_copy(s, far, pinned, 64));
    assert_ok(hth_capture_end(s, NULL));
    memset(pinned, 7, 64);
    assert_ok(hth_capture_begin(s));
    assert_ok(hth_stream_copy(s, far, pinned, 64));
    assert_ok(hth_stream_copy(s, (char *)pinned + 64, far, 64));
    assert_ok(hth_capture_end(s, &c));
    memset(pinned, 9, 64); // what is there when it is launched counts
    assert_ok(hth_capture_launch(c, s));
    assert_ok(hth_stream_sync(s));
    assert_memory_equal(pinned, (char *)pinned + 64, 64);
    hth_capture_close(c);
    hth_device_release_host(d, pinned, MIB);
    hth_device_release(d, far, MIB);
    hth_stream_close(s);
    hth_device_close(d);
    driver_close();
}

// Plans.

typedef struct issued {
    const mix *m;
    void *in[RIG_MAX_ARGS], *out[RIG_MAX_ARGS], *workspace;
} issued;

static hth_err issued_run(void *job)
{
    const issued *i = job;
    return mix_run(&i->m->base, &(hth_kernel_args){i->in, i->out, i->workspace, NULL});
}

static hth_cuda *issuing;

static hth_err mix_issue(const hth_kernel *kernel, const hth_kernel_args *args)
{
    issued i = {.m = (const mix *)kernel, .workspace = args->workspace};
    const hth_plan_node *n = &i.m->p->nodes[i.m->node];
    memcpy(i.in, args->in, (size_t)n->n_inputs * sizeof *i.in);
    memcpy(i.out, args->out, (size_t)n->n_outputs * sizeof *i.out);
    return hth_cuda_status(issuing, hth_cuda_fake_issue(issuing->current, issued_run, &i, sizeof i),
                           "a kernel");
}

// The rig on the fake driver: kernels are issued, and what goes far goes to pinned memory.
static void cuda_rig_open(rig *r, bool pinned)
{
    rig_open(r, "cuda:0");
    issuing = (hth_cuda *)r->device;
    for (int i = 0; i < r->p.n_nodes; i++) {
        r->mixes[i].base.run = mix_issue;
    }
    for (int t = 0; t < r->p.n_tensors && pinned; t++) {
        if (r->far[t] != NULL) {
            void *to;
            assert_ok(hth_device_reserve_host(r->device, r->p.tensors[t].bytes, &to));
            memcpy(to, r->host[t], r->p.tensors[t].bytes);
            r->places[t].memory = to;
        }
    }
}

static bool cuda_rig_right(const rig *r)
{
    for (int t = 0; t < r->p.n_tensors; t++) {
        if (r->far[t] != NULL && r->plan->streamed[t]) {
            memcpy(r->host[t], r->places[t].memory, r->p.tensors[t].bytes);
        }
    }
    return rig_right(r);
}

static void cuda_rig_close(rig *r, bool pinned)
{
    for (int t = 0; t < r->p.n_tensors && pinned; t++) {
        if (r->far[t] != NULL) {
            hth_device_release_host(r->device, r->places[t].memory, r->p.tensors[t].bytes);
        }
    }
    rig_close_run(r);
}

// `steps` executions; the number of the first wrong one, -1: all right.
static int first_wrong(rig *r, int steps)
{
    for (int i = 0; i < steps; i++) {
        assert_ok(rig_execute(r, NULL));
        if (!cuda_rig_right(r)) {
            return i;
        }
        rig_next(r);
    }
    return -1;
}

static void test_random_schedules(void **state)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        rig r = {.p = pg_random_small(seed)};
        r.plan = pg_random_schedule(&r.p, seed, true);
        driver_open(seed);
        cuda_rig_open(&r, true);
        int wrong = first_wrong(&r, 4);
        if (wrong >= 0) {
            fail_msg("network %d: step %d is wrong", (int)seed, wrong);
        }
        assert_int_equal(hth_run_replays(r.run), 3);
        assert_int_equal(driver->graph_launches, 3);
        cuda_rig_close(&r, true);
        driver_close();
        hth_plan_free(r.plan);
        hth_problem_fini(&r.p);
    }
}

// Another arena, then the first again, then other far places: plain, and captured anew.
static void test_moves(void **state)
{
    rig r = {.p = pg_random_small(3)};
    r.plan = pg_random_schedule(&r.p, 3, true);
    driver_open(4);
    cuda_rig_open(&r, true);
    void *arenas[2] = {r.arena, NULL};
    assert_ok(hth_device_reserve(r.device, r.plan->arena_bytes + 64, &arenas[1]));
    assert_int_equal(first_wrong(&r, 3), -1);
    assert_int_equal(hth_run_replays(r.run), 2);
    r.arena = arenas[1];
    assert_ok(hth_run_bind(r.run, r.arena, r.fixed));
    assert_int_equal(first_wrong(&r, 5), -1); // 2 plain ones
    assert_int_equal(hth_run_replays(r.run), 5);
    assert_int_equal(driver->graph_updates, 1);
    for (int t = 0; t < r.p.n_tensors; t++) {
        if (r.far[t] != NULL) {
            void *from = r.places[t].memory;
            assert_ok(hth_device_reserve_host(r.device, r.p.tensors[t].bytes, &r.places[t].memory));
            memcpy(r.places[t].memory, from, r.p.tensors[t].bytes);
            memset(from, 0x5A, r.p.tensors[t].bytes);
            hth_device_release_host(r.device, from, r.p.tensors[t].bytes);
        }
    }
    assert_int_equal(first_wrong(&r, 6), -1); // 4 plain ones
    assert_int_equal(hth_run_replays(r.run), 7);
    hth_run_measure(r.run, true); // times are those of single steps
    assert_int_equal(first_wrong(&r, 1), -1);
    assert_int_equal(hth_run_replays(r.run), 7);
    r.arena = arenas[0];
    hth_device_release(r.device, arenas[1], r.plan->arena_bytes + 64);
    cuda_rig_close(&r, true);
    driver_close();
    hth_plan_free(r.plan);
    hth_problem_fini(&r.p);
}

// Far memory that is not pinned: right, and never a replay; a cancelled run ends, the next is
// whole.
static void test_falls_back(void **state)
{
    rig r = {.p = pg_random_small(5)};
    r.plan = pg_random_schedule(&r.p, 5, true);
    int streamed = 0;
    for (int t = 0; t < r.p.n_tensors; t++) {
        streamed += r.plan->streamed[t];
    }
    assert_true(streamed > 0);
    driver_open(6);
    cuda_rig_open(&r, false);
    assert_int_equal(first_wrong(&r, 4), -1);
    assert_int_equal(hth_run_replays(r.run), 0);
    cuda_rig_close(&r, false);
    cuda_rig_open(&r, true);
    atomic_int canceled = 1;
    assert_int_equal(first_wrong(&r, 1), -1);
    assert_err(rig_execute(&r, &canceled), HTH_ECANCELED, "canceled");
    assert_int_equal(first_wrong(&r, 2), -1);
    assert_int_equal(hth_run_replays(r.run), 2);
    cuda_rig_close(&r, true);
    driver_close();
    hth_plan_free(r.plan);
    hth_problem_fini(&r.p);
}

// A wait less: where the verifier says that it is needed, replays go wrong, too.
static void test_missing_edges_are_found(void **state)
{
    int removed = 0, shown = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        rig r = {.p = pg_random_small(seed)};
        r.plan = pg_random_schedule(&r.p, seed, true);
        bool found = false, wrong = false;
        for (int k = 0; k < 200 && !found; k++) {
            hth_instr *in = &r.plan->instrs[pt_random((uint32_t)r.plan->n_instrs)];
            if (in->n_waits > 0) {
                in->n_waits--;
                found = hth_plan_verify(&r.p, r.plan) == HTH_ECORRUPT;
                in->n_waits += !found; // not needed: implied by others
            }
        }
        removed += found;
        for (uint64_t round = 0; round < 6 && found && !wrong; round++) {
            driver_open(round);
            cuda_rig_open(&r, true);
            wrong = first_wrong(&r, 4) > 0; // the first is plain
            cuda_rig_close(&r, true);
            driver_close();
        }
        shown += wrong;
        hth_plan_free(r.plan);
        hth_problem_fini(&r.p);
    }
    print_message("# %d plans without one of their edges, %d seen to fail\n", removed, shown);
    assert_true(removed > 10 && shown * 4 > removed);
}

// Whichever call fails, once or for good: results are right or there is an error, and nothing
// stays.
static void fault_loop(CUresult with, bool sticky)
{
    rig r = {.p = pg_random_small(7)};
    r.plan = pg_random_schedule(&r.p, 7, true);
    for (uint64_t nth = 1;; nth += sticky ? 7 : 1) {
        driver_open(nth);
        cuda_rig_open(&r, true);
        uint64_t calls = driver->calls;
        driver->fail_nth = nth;
        driver->fail_with = with;
        driver->sticky = sticky;
        hth_err err = HTH_OK;
        for (int i = 0; i < 3 && err == HTH_OK; i++) {
            err = rig_execute(&r, NULL);
            if (err == HTH_OK && !cuda_rig_right(&r)) {
                fail_msg("call %d failed: step %d is wrong", (int)nth, i);
            }
            rig_next(&r);
        }
        bool reached = driver->calls - calls >= nth;
        driver->fail_nth = sticky && reached ? 1 : 0;
        cuda_rig_close(&r, true);
        driver_close();
        if (!reached) {
            assert_ok(err);
            break;
        }
    }
    hth_plan_free(r.plan);
    hth_problem_fini(&r.p);
}

static void test_faults(void **state)
{
    fault_loop(CUDA_ERROR_OUT_OF_MEMORY, false);
    fault_loop(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, false);
    fault_loop(CUDA_ERROR_ILLEGAL_ADDRESS, true);
}

// Whole models.

static void engine_open(fixture *f, uint64_t seed, bool graphs)
{
    driver = hth_cuda_fake_engine_open(seed, 512 * (uint64_t)MIB);
    assert_non_null(driver);
    fixture_open(f, graphs ? "cuda:0,mem=300MiB" : "cuda:0,mem=300MiB,graphs=off");
}

static void engine_close(fixture *f)
{
    fixture_close(f);
    driver_close();
}

static void infer_both(const char *model, const hth_tensor *tensor)
{
    void *first = NULL;
    for (int graphs = 0; graphs < 2; graphs++) {
        fixture f;
        char path[128];
        engine_open(&f, 1 + (uint64_t)graphs, graphs == 1);
        snprintf(path, sizeof path, "tests/data/passes/%s.onnx", model);
        put(f.store, model, path);
        for (int round = 0; round < 12; round++) {
            hth_request_tensor in = {.name = NULL, .t = *tensor};
            call c = {.r = {.model = model, .inputs = &in, .n_inputs = 1}};
            if (call_run(f.engine, &c) != HTH_OK) {
                fail_msg("%s: %s", model, hth_err_detail());
            }
            if (first == NULL) {
                first = c.out[0].data;
                continue;
            }
            assert_memory_equal(first, c.out[0].data, c.out[0].bytes);
            free(c.out[0].data);
        }
        assert_int_equal(driver->graph_launches > 0, graphs);
        engine_close(&f);
    }
    free(first);
}

static void test_inference(void **state)
{
    static const char *const models[] = {"residual", "attention", "mlp"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        char path[128];
        hth_tensor x;
        snprintf(path, sizeof path, "tests/data/passes/%s.x.npy", models[m]);
        assert_true(npy_data(path, &x));
        infer_both(models[m], &x);
        hth_free(x.data);
    }
}

static void trains(const training *t, const char *const ways[2], uint64_t seed)
{
    double want[STEPS], loss[STEPS], whole[STEPS];
    char data[200];
    for (int k = 0; k < 4; k++) {
        fixture f;
        hth_err err;
        engine_open(&f, seed + (uint64_t)k, k % 2 == 1);
        prepare(&f, t, data);
        json_t *doc = train(&f, arguments_of(t, data, ways[k / 2], want), &err);
        if (doc == NULL) {
            fail_msg("%s: %s", t->model, hth_err_detail());
        }
        losses_of(doc, loss);
        if (k == 0) {
            memcpy(whole, loss, sizeof whole);
        }
        assert_memory_equal(whole, loss, sizeof whole);
        if (k % 2 == 1) {
            print_message("# %s %s: %d replays of %d steps\n", t->model, ways[k / 2],
                          (int)driver->graph_launches, STEPS);
        }
        assert_int_equal(driver->graph_launches > 0, k % 2);
        json_decref(doc);
        engine_close(&f);
    }
}

static void test_training(void **state)
{
    const char *const less[2] = {"{}", "{\"budget\": \"85%\", \"plan-ms\": 100}"};
    trains(&image_net, less, 1);
    trains(&unet, less, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_illegal_calls),
        cmocka_unit_test(test_joins),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_random_schedules),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_falls_back),
        cmocka_unit_test(test_missing_edges_are_found),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_inference),
        cmocka_unit_test(test_training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
