// SPDX-License-Identifier: Apache-2.0
// The real cuDNN without a device: engines and workspaces of layers of well-known networks for a
// GPU that a JSON describes (tests/data/devices; published numbers, not read from a device), by the
// same calls that are made on one. With an argument it prints the table that is committed. Skipped
// where cuDNN 9 is not installed.
#include "kernels/cuda/dnn.h"

#include "base/alloc.h"
#include "base/test.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if HTH_SANITIZED_ADDRESS
#include <sanitizer/lsan_interface.h>
#endif

#define FOLDER "tests/data/devices/"
#define CAP    64

typedef struct layer {
    const char *name;
    int64_t n, c, size, k, filter, stride, pad, groups;
} layer;

static const layer layers[] = {
    {"vgg19 conv1_2", 144, 64, 227, 64, 3, 1, 1, 1},
    {"vgg19 conv3_2", 144, 256, 56, 256, 3, 1, 1, 1},
    {"resnet50 conv1", 32, 3, 224, 64, 7, 2, 3, 1},
    {"resnet50 3x3", 32, 128, 28, 128, 3, 1, 1, 1},
    {"resnet50 1x1", 32, 256, 56, 64, 1, 1, 0, 1},
    {"resnet50 1x1/2", 32, 512, 28, 1024, 1, 2, 0, 1},
    {"unet down1", 120, 64, 256, 64, 3, 1, 1, 1},
    {"unet bottom", 120, 512, 16, 1024, 3, 1, 1, 1},
    {"resnext 3x3", 32, 128, 56, 128, 3, 1, 1, 32},
    {"mobilenet 3x3", 32, 96, 112, 96, 3, 1, 1, 96},
};
// As convolutions are made: plain in FP32, with channels last in less.
static const struct {
    const char *name;
    hth_precision precision;
    bool nhwc;
} variants[] = {{"", HTH_PRECISION_FP32, false},
                {" tf32 nhwc", HTH_PRECISION_TF32, true},
                {" bf16 nhwc", HTH_PRECISION_BF16, true}};
#define VARIANTS 3

static const char *const kinds[] = {"fwd", "bwd_data", "bwd_filter"};

static hth_cuda_api api;

static bool load(void)
{
    const char *home = getenv("CUDA_HOME");
    char path[512];
    snprintf(path, sizeof path, "%s/lib64/libcudnn.so.9", home ? home : "/usr/local/cuda");
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    h = h != NULL ? h : dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (h == NULL) {
        return false;
    }
#define LOAD(f) *(void **)&api.f = dlsym(h, #f);
    HTH_CUDA_CUDNN(LOAD)
#undef LOAD
    return true;
}

static void open_device(hth_dnn_device *device)
{
    char json[4096] = "";
    FILE *f = fopen(FOLDER "h200-published.json", "r");
    assert_non_null(f);
    assert_true(fread(json, 1, sizeof json - 1, f) > 0);
    fclose(f);
    *device = (hth_dnn_device){.api = &api};
    assert_ok(hth_dnn_describe(device, json));
}

static hth_dnn_conv conv_of(const layer *l, int variant, int kind, bool fused)
{
    int64_t out = (l->size + 2 * l->pad - l->filter) / l->stride + 1;
    hth_dnn_conv c = {.kind = (hth_dnn_kind)kind,
                      .n_spatial = 2,
                      .x = {l->n, l->c, l->size, l->size},
                      .w = {l->k, l->c / l->groups, l->filter, l->filter},
                      .y = {l->n, l->k, out, out},
                      .precision = variants[variant].precision,
                      .nhwc = variants[variant].nhwc,
                      .bias = fused,
                      .relu = fused};
    for (int i = 0; i < 2; i++) {
        c.pre[i] = l->pad;
        c.stride[i] = l->stride;
        c.dilation[i] = 1;
        c.post[i] = l->pad;
    }
    return c;
}

// The text of a plan makes it again; that of another version, or what is no plan, is refused.
static void text_again(const hth_dnn_device *device, char *json, int64_t workspace)
{
    cudnnBackendDescriptor_t again;
    int64_t bytes = -1;
    assert_ok(hth_dnn_plan_load(device, json, &again, &bytes));
    assert_int_equal(bytes, workspace);
    (void)api.cudnnBackendDestroyDescriptor(again);
    char *version = strstr(json, "\"cudnnVersion\":9");
    assert_non_null(version);
    version[15] = '8';
    assert_true(hth_dnn_plan_load(device, json, &again, &bytes) != HTH_OK);
    assert_null(again);
    assert_true(hth_dnn_plan_load(device, "{}", &again, &bytes) != HTH_OK);
    assert_true(hth_dnn_plan_load(device, "", &again, &bytes) != HTH_OK);
}

// What is known at once begins the whole list.
static void first_again(const hth_dnn_graph *graph, const hth_dnn_engine *list, int count)
{
    hth_dnn_engine first[CAP];
    int n = 0;
    if (hth_dnn_first(graph, first, CAP, &n) == HTH_OK) {
        assert_true(n > 0 && n <= count);
        assert_memory_equal(first, list, (size_t)n * sizeof *first);
    }
}

// "LAYER KIND [PRECISION LAYOUT]: ENGINE WORKSPACE .."
static int list_line(const hth_dnn_device *device, const layer *l, int variant, int kind,
                     bool fused, char *line, size_t cap)
{
    hth_dnn_graph g;
    hth_dnn_engine list[CAP];
    int count = 0;
    hth_dnn_conv c = conv_of(l, variant, kind, fused);
    size_t at = (size_t)snprintf(line, cap, "%s %s%s%s:", l->name, kinds[kind],
                                 fused ? "+bias+relu" : "", variants[variant].name);
    assert_ok(hth_dnn_graph_open(device, &c, &g));
    (void)hth_dnn_list(&g, list, CAP, &count);
    first_again(&g, list, count);
    for (int i = 0; i < count; i++) {
        cudnnBackendDescriptor_t plan;
        int64_t workspace = -1;
        assert_true(hth_dnn_precise(g.precision, list[i].notes));
        if (i == 0) { // a plan has the workspace that its configuration said, and a text
            char *json;
            if (hth_dnn_plan(&g, list[i].name, &plan, &workspace) == HTH_OK) {
                assert_int_equal(workspace, list[i].workspace_bytes);
                assert_ok(hth_dnn_plan_json(device, plan, &json));
                text_again(device, json, workspace);
                hth_free(json);
                (void)api.cudnnBackendDestroyDescriptor(plan);
            }
        }
        at += at < cap ? (size_t)snprintf(line + at, cap - at, " %s %lld", list[i].name,
                                          (long long)list[i].workspace_bytes)
                       : 0;
    }
    hth_dnn_graph_close(&g);
    return count;
}

static void engines(void **state)
{
    hth_dnn_device d;
    static char line[8192], want[8192];
    if (!load()) {
        print_message("# SKIP no cuDNN 9\n");
        skip();
    }
    open_device(&d);
    FILE *table = fopen(FOLDER "h200-published-engines.txt", "r");
    assert_non_null(table);
    size_t version = 0;
    assert_int_equal(fscanf(table, "cudnn %zu\n", &version), 1);
    bool same = version == api.cudnnGetVersion();
    print_message("# cuDNN %zu, the table was made by %zu\n", api.cudnnGetVersion(), version);
    for (size_t i = 0; i < VARIANTS * sizeof layers / sizeof *layers; i++) {
        for (int kind = 0; kind < 4; kind++) {
            int n = list_line(&d, &layers[i / VARIANTS], (int)(i % VARIANTS), kind % 3, kind == 3,
                              line, sizeof line);
            assert_true(n > 0 || kind == 3); // fused engines there may be none
            assert_non_null(fgets(want, sizeof want, table));
            want[strcspn(want, "\n")] = '\0';
            if (same) {
                assert_string_equal(line, want);
            }
        }
    }
    fclose(table);
    hth_dnn_undescribe(&d);
}

static void refusals(void **state)
{
    hth_dnn_device d = {.api = &api};
    hth_dnn_graph g;
    cudnnBackendDescriptor_t plan;
    int64_t workspace;
    if (api.cudnnGetVersion == NULL) {
        skip();
    }
    assert_int_equal(hth_dnn_describe(&d, "{}"), HTH_ENOTSUP);
    assert_null(d.description);
    open_device(&d);
    hth_dnn_conv c = conv_of(&layers[1], 0, HTH_DNN_FORWARD, false);
    assert_ok(hth_dnn_graph_open(&d, &c, &g));
    assert_int_equal(hth_dnn_plan(&g, "e99999", &plan, &workspace), HTH_ENOTSUP);
    assert_int_equal(hth_dnn_plan(&g, "jit", &plan, &workspace), HTH_ENOTSUP);
    hth_dnn_graph_close(&g);
    c.x[1] = 17; // the filter has other channels
    if (hth_dnn_graph_open(&d, &c, &g) == HTH_OK) {
        hth_dnn_engine list[CAP];
        int count;
        assert_int_equal(hth_dnn_list(&g, list, CAP, &count), HTH_ENOTSUP);
        hth_dnn_graph_close(&g);
    }
    hth_dnn_undescribe(&d);
}

int main(int argc, char **argv)
{
#if HTH_SANITIZED_ADDRESS
    __lsan_disable(); // cuDNN keeps memory in libraries that it has unloaded by the end
#endif
    const struct CMUnitTest tests[] = {cmocka_unit_test(engines), cmocka_unit_test(refusals)};
    if (argc > 1 && load()) {
        static char line[8192];
        hth_dnn_device d;
        open_device(&d);
        printf("cudnn %zu\n", api.cudnnGetVersion());
        for (size_t i = 0; i < VARIANTS * sizeof layers / sizeof *layers; i++) {
            for (int kind = 0; kind < 4; kind++) {
                (void)list_line(&d, &layers[i / VARIANTS], (int)(i % VARIANTS), kind % 3, kind == 3,
                                line, sizeof line);
                puts(line);
            }
        }
        hth_dnn_undescribe(&d);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
