// SPDX-License-Identifier: Apache-2.0
// Opens plug-ins: next to the program or library that holds this code, in ../lib of there, and
// where the loader looks. libhearth_cuda.so is looked for when somebody asks for CUDA, once, and is
// never closed: a driver does not survive that. The lock guards what was found.
#include "device/plugin.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    const hth_plugin *given, *plugin; // given: by hth_plugin_use
    bool asked;
    hth_err err;
    char sentence[512]; // about, or why not
} cuda = {.lock = PTHREAD_MUTEX_INITIALIZER};

static hth_err plugin_fail(hth_err err, const char *sentence)
{
    return hth_fail(err, "%s", sentence);
}

static const hth_plugin_host plugin_host = {
    .fail = plugin_fail,
    .detail = hth_err_detail,
    .calloc = hth_calloc,
    .free = hth_free,
    .now_ns = hth_now_ns,
    .budget = hth_device_spec_budget,
};

// Where this code lies: in a library (k 0) and in a program (k 1). False: no folder known.
static bool plugin_folder(int k, char out[PATH_MAX])
{
    Dl_info info;
    ssize_t n = -1;
    if (k == 1) {
        n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    } else if (dladdr(&cuda, &info) != 0 && info.dli_fname != NULL) {
        n = snprintf(out, PATH_MAX, "%s", info.dli_fname);
    }
    out[n > 0 && n < PATH_MAX ? n : 0] = '\0';
    char *slash = strrchr(out, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    return slash != NULL;
}

static void *plugin_open_file(const char *file)
{
    static const char *const form[] = {"%s/%s", "%s/../lib/%s"};
    char dir[PATH_MAX], path[PATH_MAX + 64];
    for (int k = 0; k < 4; k++) {
        if (!plugin_folder(k / 2, dir)) {
            continue;
        }
        snprintf(path, sizeof path, k % 2 ? form[1] : form[0], dir, file);
        if (access(path, R_OK) == 0) {
            return dlopen(path, RTLD_NOW | RTLD_LOCAL);
        }
    }
    return dlopen(file, RTLD_NOW | RTLD_LOCAL);
}

hth_err hth_plugin_open(const char *file, const char *entry, void **out)
{
    void *handle = plugin_open_file(file);
    if (handle == NULL) {
        return hth_fail(HTH_ENOTSUP, "the plug-in was not opened: %s", dlerror());
    }
    *out = dlsym(handle, entry);
    return *out != NULL ? HTH_OK
                        : hth_fail(HTH_ENOTSUP, "%s belongs to another version of hearth", file);
}

static hth_err plugin_load(const hth_plugin **out)
{
    if (cuda.given != NULL) {
        *out = cuda.given;
        return HTH_OK;
    }
    hth_plugin_entry *entry;
    HTH_TRY(hth_plugin_open(HTH_PLUGIN_FILE, HTH_PLUGIN_ENTRY, (void **)&entry));
    *out = entry(HTH_PLUGIN_ABI, &plugin_host);
    if (*out == NULL || (*out)->abi != HTH_PLUGIN_ABI) {
        return hth_fail(HTH_ENOTSUP, "%s belongs to another version of hearth", HTH_PLUGIN_FILE);
    }
    return HTH_OK;
}

// Called with the lock.
static hth_err plugin_ask(void)
{
    char dirs[HTH_SETTING_TEXT];
    hth_err err = plugin_load(&cuda.plugin);
    if (err == HTH_OK) {
        err = cuda.plugin->probe(hth_setting_text(HTH_SET_CUDA_LIBS, dirs), cuda.sentence,
                                 sizeof cuda.sentence);
    }
    if (err != HTH_OK) {
        snprintf(cuda.sentence, sizeof cuda.sentence, "no CUDA device: %s", hth_err_detail());
    }
    hth_log(WARN, DEVICE, err == HTH_OK ? "cuda" : "no-cuda", "%s", cuda.sentence);
    cuda.asked = true;
    cuda.err = err;
    return err;
}

hth_err hth_plugin_cuda_probe(char *about, size_t cap)
{
    pthread_mutex_lock(&cuda.lock);
    hth_err err = cuda.asked ? cuda.err : plugin_ask();
    if (err != HTH_OK) {
        hth_fail(err, "%s", cuda.sentence);
    } else {
        snprintf(about, cap, "%s", cuda.sentence);
    }
    pthread_mutex_unlock(&cuda.lock);
    return err;
}

void hth_plugin_keep_out(const char *why)
{
    pthread_mutex_lock(&cuda.lock);
    snprintf(cuda.sentence, sizeof cuda.sentence, "no CUDA device: %s", why);
    cuda.asked = true;
    cuda.err = HTH_ENOTSUP;
    pthread_mutex_unlock(&cuda.lock);
}

void hth_plugin_use(const hth_plugin *plugin)
{
    pthread_mutex_lock(&cuda.lock);
    cuda.given = plugin;
    cuda.plugin = NULL;
    cuda.asked = false;
    pthread_mutex_unlock(&cuda.lock);
}

hth_err hth_cuda_open(const hth_device_spec *spec, hth_device **out)
{
    char about[sizeof cuda.sentence];
    HTH_TRY(hth_plugin_cuda_probe(about, sizeof about));
    return cuda.plugin->open(spec, out);
}
