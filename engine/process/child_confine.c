// SPDX-License-Identifier: Apache-2.0
// What the engine's process is left with: the store, without its list of paths that users named
// (modelstore/paths.h) and hearthd's lock; the libraries of its device; and what it is sent.
#include "engine/process/child_impl.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "device/plugin.h"
#include "engine/process/child_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFINE_PLACES 64
#define CONFINE_OWN    7 // of the store, and of what the driver compiles

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
static hth_err place_take(confine_places *p, hth_sandbox_may may, char *path)
{
    if (path == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory to confine the engine's process");
    }
    if (p->n == CONFINE_PLACES) {
        hth_free(path);
        return hth_fail(HTH_EINVAL, "cuda.libs names too many folders: there is room for %d",
                        CONFINE_PLACES - CONFINE_OWN);
    }
    p->own[p->n] = path;
    p->list[p->n++] = (hth_sandbox_place){path, may};
    return HTH_OK;
}

static hth_err places_store(confine_places *p, const char *store)
{
    static const struct {
        const char *name;
        hth_sandbox_may may;
    } part[] = {{"", HTH_MAY_LIST},         {"format", HTH_MAY_READ}, {"lock", HTH_MAY_USE},
                {"tensors", HTH_MAY_WRITE}, {"tmp", HTH_MAY_WRITE},   {"index", HTH_MAY_WRITE}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        HTH_TRY(place_take(p, part[i].may, hth_asprintf("%s/%s", store, part[i].name)));
    }
    return HTH_OK;
}

// places_cuda adds the folders of CUDA's libraries, and one for what the driver compiles for this
// device, which it would compile again at each start.
static hth_err places_cuda(confine_places *p, const char *store)
{
    char text[HTH_SETTING_TEXT];
    const char *cache = getenv("CUDA_CACHE_PATH"), *d = hth_setting_text(HTH_SET_CUDA_LIBS, text);
    for (size_t n; *d != 0; d += n + (d[n] == ':')) {
        n = strcspn(d, ":");
        HTH_TRY(n > 0 ? place_take(p, HTH_MAY_READ, hth_asprintf("%.*s", (int)n, d)) : HTH_OK);
    }
    if (cache != NULL) {
        return place_take(p, HTH_MAY_WRITE, hth_asprintf("%s", cache));
    }
    char *own = hth_asprintf("%s/jit", store);
    if (own != NULL && (mkdir(own, 0700) == 0 || errno == EEXIST)) {
        (void)setenv("CUDA_CACHE_PATH", own, 0);
    }
    return place_take(p, HTH_MAY_WRITE, own);
}

static hth_err confine(child *c)
{
    confine_places p = {.n = 0};
    bool gpu = strncmp(c->open.device, "cuda", 4) == 0;
    hth_err err = places_store(&p, c->open.store);
    err = err == HTH_OK && gpu ? places_cuda(&p, c->open.store) : err;
    err = err == HTH_OK ? hth_sandbox_files(p.list, p.n, gpu, &c->sandbox) : err;
    for (int i = 0; i < p.n; i++) {
        hth_free(p.own[i]);
    }
    if (err == HTH_OK && c->sandbox.files && !gpu && access("/dev/nvidiactl", F_OK) == 0) {
        hth_plugin_keep_out("a GPU is there, which the process of another device may not look at; "
                            "`hearthd --device cuda:0` uses it");
    }
    return err;
}

hth_err child_confine(child *c)
{
    hth_child_files_use(HTH_CHILD_FD_FILES);
    return !child_is_confined() ? HTH_OK
           : c->open.loose      ? hth_sandbox_files(NULL, 0, false, &c->sandbox)
                                : confine(c);
}
