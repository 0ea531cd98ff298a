// SPDX-License-Identifier: Apache-2.0
// Opens libcuda, libcudnn and libcublasLt and looks up every name of the table. What is opened
// stays open for good: neither driver nor cuDNN can be unloaded safely. cuDNN finds its parts
// next to itself, so an absolute path to libcudnn.so.9 is all that it needs.
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOAD_CUDNN_MAJOR 9u // the graph API's attributes changed with each major version so far
#define LOAD_DEFAULT_DIR "/usr/local/cuda"

typedef struct load_symbol {
    const char *name;
    size_t offset;
} load_symbol;

typedef struct load_library {
    const char *file, *what;
    const load_symbol *symbols;
    size_t n_symbols;
    bool anywhere; // the driver comes with the kernel: only the loader knows where it is
} load_library;

#define LOAD_QUOTE(f)  #f
#define LOAD_SYMBOL(f) {LOAD_QUOTE(f), offsetof(hth_cuda_api, f)},
static const load_symbol load_driver[] = {HTH_CUDA_DRIVER(LOAD_SYMBOL)};
static const load_symbol load_cudnn[] = {HTH_CUDA_CUDNN(LOAD_SYMBOL)};
static const load_symbol load_cublaslt[] = {HTH_CUDA_CUBLASLT(LOAD_SYMBOL)};
#define LOAD_SYMBOLS(a) a, sizeof(a) / sizeof *(a)

static const load_library load_libraries[] = {
    {"libcuda.so.1", "NVIDIA's driver", LOAD_SYMBOLS(load_driver), true},
    {"libcudnn.so.9", "cuDNN 9", LOAD_SYMBOLS(load_cudnn), false},
    {"libcublasLt.so.13", "CUDA 13's cublasLt", LOAD_SYMBOLS(load_cublaslt), false},
};

// Tries `file` in one folder and in the places below it where toolkits and Python's wheels have it.
// NULL: not there; then *why says what is wrong with one that is.
static void *load_from(const char *dir, size_t len, const char *file, char *why, size_t cap)
{
    static const char *const below[] = {"", "lib64/", "lib/", "nvidia/cudnn/lib/",
                                        "nvidia/cu13/lib/"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        int n = snprintf(path, sizeof path, "%.*s/%s%s", (int)len, dir, below[i], file);
        if (n >= (int)sizeof path || access(path, R_OK) != 0) {
            continue;
        }
        void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (h != NULL) {
            return h;
        }
        snprintf(why, cap, "%s", dlerror());
    }
    return NULL;
}

static void *load_open(const load_library *library, const char *dirs, char *why, size_t cap)
{
    why[0] = '\0';
    for (const char *d = dirs; *d != '\0'; d += *d == ':') {
        size_t len = strcspn(d, ":");
        void *h = len > 0 ? load_from(d, len, library->file, why, cap) : NULL;
        if (h != NULL) {
            return h;
        }
        d += len;
    }
    void *h = dlopen(library->file, RTLD_NOW | RTLD_LOCAL);
    if (h == NULL && !library->anywhere) {
        h = load_from(LOAD_DEFAULT_DIR, strlen(LOAD_DEFAULT_DIR), library->file, why, cap);
    }
    return h;
}

static hth_err load_one(const load_library *library, const char *dirs, hth_cuda_api *out)
{
    char why[256];
    void *h = load_open(library, dirs, why, sizeof why);
    if (h == NULL) {
        return hth_fail(HTH_ENOTSUP, "%s (%s) %s%s", library->what, library->file,
                        why[0] ? "does not load: " : "was not found", why);
    }
    for (size_t i = 0; i < library->n_symbols; i++) {
        void *f = dlsym(h, library->symbols[i].name);
        if (f == NULL) {
            return hth_fail(HTH_ENOTSUP, "%s (%s) has no %s: it is too old", library->what,
                            library->file, library->symbols[i].name);
        }
        memcpy((char *)out + library->symbols[i].offset, &f, sizeof f);
    }
    return HTH_OK;
}

hth_err hth_cuda_load(const char *dirs, hth_cuda_api *out)
{
    for (size_t i = 0; i < sizeof load_libraries / sizeof *load_libraries; i++) {
        HTH_TRY(load_one(&load_libraries[i], dirs, out));
    }
    size_t version = out->cudnnGetVersion();
    if (version / 10000 != LOAD_CUDNN_MAJOR) {
        return hth_fail(HTH_ENOTSUP, "libcudnn.so.9 reports version %zu; 9 is needed", version);
    }
    return HTH_OK;
}
