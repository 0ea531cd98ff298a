// SPDX-License-Identifier: Apache-2.0
// A region is mapped, so that large tensors need not be copied. Its owner can shrink the object at
// any time: shm_guard.h.
#include "server/http_shm.h"

#include "base/hash.h"
#include "server/shm_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHM_NAME 201
#define SHM_KEY  256

struct hth_shm_region {
    hth_shm *shm;
    char name[SHM_NAME], key[SHM_KEY];
    uint64_t offset, bytes;
    char *data;
    int guard;
    int refs; // the table's, and one for each request
    UT_hash_handle hh;
};

struct hth_shm {
    bool allowed;
    hth_engine *engine;
    hth_shm_region *regions;
};

hth_err hth_shm_open(bool allowed, hth_engine *engine, hth_shm **out)
{
    *out = hth_calloc(1, sizeof **out);
    if (*out == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for shared regions");
    }
    (*out)->allowed = allowed;
    (*out)->engine = engine;
    return HTH_OK;
}

void hth_shm_close(hth_shm *s)
{
    if (s != NULL) {
        hth_shm_unregister(s, "");
        hth_free(s);
    }
}

static void region_unmap(const hth_shm_region *r)
{
    hth_engine_unshare(r->shm->engine, r->data);
    munmap(r->data, r->bytes);
    hth_shm_unguard(r->guard);
}

void hth_shm_rele(hth_shm_region *r)
{
    if (--r->refs == 0) {
        region_unmap(r);
        hth_free(r);
    }
}

static hth_err region_map(hth_shm_region *r, int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || r->bytes == 0 ||
        r->offset > (uint64_t)st.st_size || r->bytes > (uint64_t)st.st_size - r->offset) {
        return hth_fail(HTH_EINVAL, "failed to register shared memory region '%s': invalid args",
                        r->name);
    }
    r->data = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)r->offset);
    if (r->data == MAP_FAILED) { // an offset that is no multiple of a page
        return hth_fail(HTH_EINVAL, "failed to register shared memory region '%s': invalid args",
                        r->name);
    }
    r->guard = hth_shm_guard(r->data, r->bytes);
    if (r->guard < 0) {
        munmap(r->data, r->bytes);
        return hth_fail(HTH_EBUSY, "too many shared memory regions");
    }
    return HTH_OK;
}

static hth_err region_add(hth_shm *s, hth_shm_region *r)
{
    int fd = shm_open(r->key, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) {
        return hth_fail(HTH_EIO, "Unable to open shared memory region: '%s'", r->key);
    }
    r->shm = s;
    hth_err err = region_map(r, fd);
    if (err == HTH_OK) {
        hth_engine_share(s->engine, fd, r->offset, r->data, r->bytes);
    }
    close(fd);
    if (err != HTH_OK) {
        return err;
    }
    r->refs = 1;
    HASH_ADD_STR(s->regions, name, r);
    if (!HTH_HASH_ADDED(r)) {
        region_unmap(r);
        return hth_fail(HTH_ENOMEM, "out of memory for a shared region");
    }
    return HTH_OK;
}

hth_err hth_shm_register(hth_shm *s, const char *name, const char *key, uint64_t offset,
                         uint64_t bytes)
{
    hth_shm_region *r;
    if (!s->allowed) {
        return hth_fail(HTH_ENOTSUP, "Client shared memory is disabled. hearthd "
                                     "--allow-client-shm=true allows it");
    }
    HASH_FIND_STR(s->regions, name, r);
    if (r != NULL) {
        return hth_fail(HTH_EEXIST, "shared memory region '%s' already in manager", name);
    }
    if (strlen(key) >= SHM_KEY || strlen(name) >= SHM_NAME) {
        return hth_fail(HTH_EINVAL, "a name of a shared memory region is too long");
    }
    r = hth_calloc(1, sizeof *r);
    if (r == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a shared region");
    }
    strcpy(r->name, name);
    strcpy(r->key, key);
    r->offset = offset;
    r->bytes = bytes;
    hth_err err = region_add(s, r);
    if (err != HTH_OK) {
        hth_free(r);
    }
    return err;
}

void hth_shm_unregister(hth_shm *s, const char *name)
{
    hth_shm_region *r, *next;
    HASH_ITER (hh, s->regions, r, next) {
        if (name[0] == 0 || strcmp(r->name, name) == 0) {
            HASH_DEL(s->regions, r);
            hth_shm_rele(r);
        }
    }
}

hth_err hth_shm_status(const hth_shm *s, const char *name, json_t **out)
{
    json_t *list = json_array();
    for (const hth_shm_region *r = s->regions; r != NULL; r = r->hh.next) {
        if (name[0] == 0 || strcmp(r->name, name) == 0) {
            json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I}", "name", r->name, "key",
                                                  r->key, "offset", (json_int_t)r->offset,
                                                  "byte_size", (json_int_t)r->bytes));
        }
    }
    *out = list;
    if (name[0] != 0 && json_array_size(list) == 0) {
        json_decref(list);
        return hth_fail(HTH_ENOENT, "Unable to find system shared memory region: '%s'", name);
    }
    return HTH_OK;
}

hth_err hth_shm_range(hth_shm *s, const char *name, uint64_t offset, uint64_t bytes, char **out,
                      hth_shm_region **held)
{
    hth_shm_region *r;
    HASH_FIND_STR(s->regions, name, r);
    if (r == NULL) {
        return s->allowed
                   ? hth_fail(HTH_ENOENT, "Unable to find shared memory region: '%.200s'", name)
                   : hth_fail(HTH_ENOTSUP, "Client shared memory is disabled. hearthd "
                                           "--allow-client-shm=true allows it");
    }
    if (offset >= r->bytes) {
        return hth_fail(HTH_EINVAL, "Invalid offset for shared memory region: '%s'", name);
    }
    if (bytes > r->bytes - offset) {
        return hth_fail(HTH_EINVAL, "Invalid offset + byte size for shared memory region: '%s'",
                        name);
    }
    r->refs++;
    *out = r->data + offset;
    *held = r;
    return HTH_OK;
}
