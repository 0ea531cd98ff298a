// SPDX-License-Identifier: Apache-2.0
// What the engine's process may open itself. It is left with the store, without its list of paths
// that users named (modelstore/paths.h) and hearthd's lock; the libraries of its device; and what
// it is sent. Other files are opened by hearthd (child_files.h). How the process is confined is in
// sandbox.c.
#include "engine/process/child_impl.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "device/plugin.h"
#include "engine/process/child_files.h"
#include "modelstore/hold.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFINE_PLACES 64
#define CONFINE_OWN    8 // of the store, and of what the driver compiles

typedef struct confine_places {
    hth_sandbox_place list[CONFINE_PLACES];
    char *own[CONFINE_PLACES]; // what they point to, to be freed
    int n;
} confine_places;

// A process with a sanitizer looks for leaks at its end by tracing itself, which the filter
// refuses.
bool child_is_confined(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#endif
    char word[HTH_SETTING_TEXT];
    return strcmp(hth_setting_text(HTH_SET_ENGINE_SANDBOX, word), "true") == 0;
}

// place_take adds `path`, which it takes over.
static hth_err place_take(confine_places *places, hth_sandbox_may may, char *path)
{
    if (path == NULL) {
        return hth_no_memory("confining the engine process");
    }
    if (places->n == CONFINE_PLACES) {
        hth_free(path);
        return hth_fail(HTH_EINVAL, "cuda.libs names too many folders: at most %d are possible",
                        CONFINE_PLACES - CONFINE_OWN);
    }
    places->own[places->n] = path;
    places->list[places->n++] = (hth_sandbox_place){path, may};
    return HTH_OK;
}

static hth_err places_store(confine_places *places, const char *store)
{
    static const struct {
        const char *name;
        hth_sandbox_may may;
    } part[] = {{"", HTH_MAY_LIST},         {"format", HTH_MAY_READ}, {"lock", HTH_MAY_USE},
                {"tensors", HTH_MAY_WRITE}, {"tmp", HTH_MAY_WRITE},   {"index", HTH_MAY_WRITE}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        HTH_TRY(place_take(places, part[i].may, hth_asprintf("%s/%s", store, part[i].name)));
    }
    char *holds = hth_asprintf("%s/%s", store, HTH_STORE_HOLDS);
    bool there = holds != NULL && (mkdir(holds, 0777) == 0 || errno == EEXIST);
    if (holds != NULL && !there) { // nothing can be held in a store that may only be read
        hth_free(holds);
        return HTH_OK;
    }
    return place_take(places, HTH_MAY_WRITE, holds);
}

// places_cuda adds the folders of CUDA's libraries, and one for what the driver compiles for this
// device, which it would compile again at each start.
static hth_err places_cuda(confine_places *places, const char *store)
{
    char text[HTH_SETTING_TEXT];
    const char *cache = getenv("CUDA_CACHE_PATH"), *d = hth_setting_text(HTH_SET_CUDA_LIBS, text);
    for (size_t n; *d != 0; d += n + (d[n] == ':')) {
        n = strcspn(d, ":");
        HTH_TRY(n > 0 ? place_take(places, HTH_MAY_READ, hth_asprintf("%.*s", (int)n, d)) : HTH_OK);
    }
    if (cache != NULL) {
        return place_take(places, HTH_MAY_WRITE, hth_asprintf("%s", cache));
    }
    char *own = hth_asprintf("%s/jit", store);
    if (own != NULL && (mkdir(own, 0700) == 0 || errno == EEXIST)) {
        (void)setenv("CUDA_CACHE_PATH", own, 0);
    }
    return place_take(places, HTH_MAY_WRITE, own);
}

static hth_err confine(child *c)
{
    confine_places p = {.n = 0};
    bool gpu = strncmp(c->open.device, "cuda", 4) == 0;
    hth_err err;
    HTH_GOTO(places_store(&p, c->open.store), done);
    if (gpu) {
        HTH_GOTO(places_cuda(&p, c->open.store), done);
    }
    HTH_GOTO(hth_sandbox_files(p.list, p.n, gpu, &c->sandbox), done);
    if (c->sandbox.files && !gpu && access("/dev/nvidiactl", F_OK) == 0) {
        hth_plugin_keep_out("there is a GPU, which the sandbox of another device's process hides; "
                            "`hearthd --device cuda:0` uses it");
    }
done:
    for (int i = 0; i < p.n; i++) {
        hth_free(p.own[i]);
    }
    return err;
}

hth_err child_confine(child *process)
{
    hth_child_files_use(HTH_CHILD_FD_FILES);
    if (!child_is_confined()) {
        return HTH_OK;
    }
    return process->open.loose ? hth_sandbox_files(NULL, 0, false, &process->sandbox)
                               : confine(process);
}
