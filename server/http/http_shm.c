// SPDX-License-Identifier: Apache-2.0
// A region is mapped, so that large tensors need not be copied. Its owner can shrink the object at
// any time: shm_guard.h.
//
// Unregistering what is not there succeeds, as clients begin with it; so do questions about CUDA's
// regions, of which there are none. Whose program registers a region is what the kernel says; who
// is not on this machine has none.
#include "server/http/http_shm.h"

#include "base/hash.h"
#include "base/ipc/shm_guard.h"
#include "base/settings.h"
#include "runtime/tenants/tenant_rules.h"
#include "server/http/http_call.h"
#include "server/net/accept_guard.h"
#include "server/net/mapped.h"
#include "server/net/peer_uid.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHM_NAME 201
#define SHM_KEY  256
// Where POSIX objects are; a link or a folder there is none.
#define SHM_FOLDER "/dev/shm/"

typedef struct shm_id {
    char tenant[HTH_TENANT], name[SHM_NAME]; // zeros follow
} shm_id;

struct hth_shm_region {
    hth_shm *shm;
    shm_id id;
    char key[SHM_KEY];
    uint64_t offset, bytes;
    char *data;
    int fd; // of the memory; the engine uses it until the region is gone
    int guard;
    int refs;          // the table's, and one for each request
    UT_hash_handle hh; // by id
};

struct hth_shm {
    bool allowed;
    hth_engine *engine;
    pthread_mutex_t lock; // changes of the table, on the loop; other threads' lookups; and `refs`
    hth_shm_region *regions;
};

hth_err hth_shm_open(bool allowed, hth_engine *engine, hth_shm **out)
{
    *out = hth_calloc(1, sizeof **out);
    if (*out == NULL) {
        return hth_no_memory("shared regions");
    }
    pthread_mutex_init(&(*out)->lock, NULL);
    (*out)->allowed = allowed;
    (*out)->engine = engine;
    return HTH_OK;
}

void hth_shm_close(hth_shm *shm)
{
    if (shm != NULL) {
        hth_shm_unregister(shm, &(hth_shm_asker){.admin = true}, "");
        pthread_mutex_destroy(&shm->lock);
        hth_free(shm);
    }
}

hth_err hth_shm_allowed(const hth_shm *shm)
{
    return shm->allowed ? HTH_OK
                        : hth_fail(HTH_ENOTSUP, "Client shared memory is disabled. hearthd "
                                                "--allow-client-shm=true allows it");
}

// shm_find looks for a tenant's region. NULL: it has none of that name.
static hth_shm_region *shm_find(const hth_shm *shm, const char *tenant, const char *name)
{
    hth_shm_region *r = NULL;
    shm_id id;
    if (tenant != NULL && strlen(tenant) < sizeof id.tenant && strlen(name) < sizeof id.name) {
        memset(&id, 0, sizeof id);
        strcpy(id.tenant, tenant);
        strcpy(id.name, name);
        HASH_FIND(hh, shm->regions, &id, sizeof id, r);
    }
    return r;
}

static void region_uncount(const hth_shm_region *region)
{
    hth_mapped_give(region->id.tenant, region->bytes);
    hth_accept_give(HTH_ACCEPT_HTTP);
}

static void region_unmap(const hth_shm_region *region)
{
    hth_engine_unshare(region->shm->engine, region->data);
    munmap(region->data, region->bytes);
    close(region->fd);
    hth_shm_unguard(region->guard);
    region_uncount(region);
}

void hth_shm_rele(hth_shm_region *region)
{
    hth_shm *s = region->shm;
    pthread_mutex_lock(&s->lock);
    assert(region->refs > 0);
    bool last = --region->refs == 0;
    pthread_mutex_unlock(&s->lock);
    if (last) {
        region_unmap(region);
        hth_free(region);
    }
}

// region_quota looks at what the tenant has already, and counts the region: its bytes, and its
// descriptor.
static hth_err region_quota(const hth_shm *shm, const hth_shm_region *new)
{
    uint64_t n = 0;
    for (const hth_shm_region *r = shm->regions; r != NULL; r = r->hh.next) {
        n += strcmp(r->id.tenant, new->id.tenant) == 0;
    }
    if (n >= (uint64_t)hth_setting_int(HTH_SET_SHM_REGIONS)) {
        return hth_fail(HTH_EBUSY,
                        "%" PRIu64 " shared memory regions are registered: no more than "
                        "shm.regions (%" PRIi64 ") are allowed",
                        n, hth_setting_int(HTH_SET_SHM_REGIONS));
    }
    HTH_TRY(hth_mapped_take(new->id.tenant, new->bytes));
    if (!hth_accept_take(HTH_ACCEPT_HTTP)) {
        hth_mapped_give(new->id.tenant, new->bytes);
        return hth_fail(HTH_EBUSY, "the server has too many connections and shared memory regions "
                                   "(the limit of open files): try again");
    }
    return HTH_OK;
}

static hth_err region_map(hth_shm_region *region)
{
    struct stat st;
    if (fstat(region->fd, &st) != 0 || !S_ISREG(st.st_mode) || region->bytes == 0 ||
        region->offset > (uint64_t)st.st_size ||
        region->bytes > (uint64_t)st.st_size - region->offset) {
        return hth_fail(HTH_EINVAL, "failed to register shared memory region '%s': invalid args",
                        region->id.name);
    }
    HTH_TRY(region_quota(region->shm, region));
    region->data = mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd,
                        (off_t)region->offset);
    if (region->data == MAP_FAILED) { // an offset that is no multiple of a page
        region_uncount(region);
        return hth_fail(HTH_EINVAL, "failed to register shared memory region '%s': invalid args",
                        region->id.name);
    }
    region->guard = hth_shm_guard(region->data, region->bytes);
    if (region->guard < 0) {
        munmap(region->data, region->bytes);
        region_uncount(region);
        return hth_fail(HTH_EBUSY, "too many shared memory regions");
    }
    return HTH_OK;
}

static hth_err region_closed(const hth_shm_region *region)
{
    return hth_fail(HTH_EIO,
                    "Unable to open shared memory region: '%s': there is no such object, or the "
                    "user whose program asks may not read and write it",
                    region->key);
}

// object_is_of tells whether a file's mode lets `uid` read and write it: as its owner, or as
// anybody.
static bool object_is_of(const struct stat *st, uid_t uid)
{
    mode_t own = S_IRUSR | S_IWUSR, others = S_IROTH | S_IWOTH;
    return (st->st_uid == uid && (st->st_mode & own) == own) || (st->st_mode & others) == others;
}

// region_open looks at the object before it opens it: to open a FIFO is to do something to it. The
// answer does not tell an object that is not the user's from one that is not there.
static hth_err region_open(const hth_shm_region *region, uid_t uid, int *out)
{
    char path[sizeof SHM_FOLDER + SHM_KEY], self[64];
    const char *name = region->key + strspn(region->key, "/");
    struct stat st;
    snprintf(path, sizeof path, SHM_FOLDER "%s", name);
    bool named = name[0] != 0 && strchr(name, '/') == NULL;
    int at = named ? open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1;
    bool may = at >= 0 && fstat(at, &st) == 0 && S_ISREG(st.st_mode) && object_is_of(&st, uid);
    snprintf(self, sizeof self, "/proc/self/fd/%d", at);
    *out = may ? open(self, O_RDWR | O_CLOEXEC) : -1;
    if (at >= 0) {
        close(at);
    }
    return *out >= 0 ? HTH_OK : region_closed(region);
}

static hth_err region_add(hth_shm *shm, hth_shm_region *region, uid_t uid)
{
    HTH_TRY(region_open(region, uid, &region->fd));
    region->shm = shm;
    hth_err err = region_map(region);
    if (err != HTH_OK) {
        close(region->fd);
        return err;
    }
    hth_engine_share(shm->engine, region->fd, region->offset, region->data, region->bytes);
    region->refs = 1;
    pthread_mutex_lock(&shm->lock);
    HASH_ADD(hh, shm->regions, id, sizeof region->id, region);
    pthread_mutex_unlock(&shm->lock);
    if (!HTH_HASH_ADDED(region)) {
        region_unmap(region);
        return hth_no_memory("a shared region");
    }
    return HTH_OK;
}

hth_err hth_shm_register(hth_shm *shm, const char *tenant, uid_t uid, const char *name,
                         const char *key, uint64_t offset, uint64_t bytes)
{
    HTH_TRY(hth_shm_allowed(shm));
    if (strlen(key) >= SHM_KEY || strlen(name) >= SHM_NAME || strlen(tenant) >= HTH_TENANT) {
        return hth_fail(HTH_EINVAL, "a name of a shared memory region is too long");
    }
    if (shm_find(shm, tenant, name) != NULL) {
        return hth_fail(HTH_EEXIST, "shared memory region '%s' already in manager", name);
    }
    hth_shm_region *r = hth_calloc(1, sizeof *r);
    if (r == NULL) {
        return hth_no_memory("a shared region");
    }
    strcpy(r->id.tenant, tenant);
    strcpy(r->id.name, name);
    strcpy(r->key, key);
    r->offset = offset;
    r->bytes = bytes;
    hth_err err = region_add(shm, r, uid);
    if (err != HTH_OK) {
        hth_free(r);
    }
    return err;
}

// asker_sees tells whether a region of that name ("": of any) is the asker's, or `others` and it is
// one that an admin may see.
static bool asker_sees(const hth_shm_asker *asker, const hth_shm_region *region, const char *name,
                       bool others)
{
    bool own = asker->tenant != NULL && strcmp(region->id.tenant, asker->tenant) == 0;
    return (own || (others && asker->admin)) &&
           (name[0] == 0 || strcmp(region->id.name, name) == 0);
}

void hth_shm_unregister(hth_shm *shm, const hth_shm_asker *asker, const char *name)
{
    bool others = name[0] == 0 || shm_find(shm, asker->tenant, name) == NULL;
    for (hth_shm_region *r = shm->regions, *next; r != NULL; r = next) {
        next = r->hh.next;
        if (asker_sees(asker, r, name, others)) {
            pthread_mutex_lock(&shm->lock);
            HASH_DEL(shm->regions, r);
            pthread_mutex_unlock(&shm->lock);
            hth_shm_rele(r);
        }
    }
}

hth_err hth_shm_status(const hth_shm *shm, const hth_shm_asker *asker, const char *name,
                       json_t **out)
{
    json_t *list = json_array();
    for (const hth_shm_region *r = shm->regions; r != NULL; r = r->hh.next) {
        if (!asker_sees(asker, r, name, true)) {
            continue;
        }
        json_t *row = json_pack("{s:s, s:s, s:I, s:I}", "name", r->id.name, "key", r->key, "offset",
                                (json_int_t)r->offset, "byte_size", (json_int_t)r->bytes);
        if (!asker_sees(asker, r, name, false)) {
            json_object_set_new(row, "tenant", json_string(r->id.tenant));
        }
        json_array_append_new(list, row);
    }
    *out = list;
    if (name[0] != 0 && json_array_size(list) == 0) {
        json_decref(list);
        return hth_fail(HTH_ENOENT, "Unable to find system shared memory region: '%s'", name);
    }
    return HTH_OK;
}

// region_range looks for [offset, offset + bytes), and holds the region.
static hth_err region_range(hth_shm_region *region, uint64_t offset, uint64_t bytes,
                            const char *name)
{
    if (region == NULL) {
        return hth_fail(HTH_ENOENT, "Unable to find shared memory region: '%.200s'", name);
    }
    if (offset >= region->bytes) {
        return hth_fail(HTH_EINVAL, "Invalid offset for shared memory region: '%s'", name);
    }
    if (bytes > region->bytes - offset) {
        return hth_fail(HTH_EINVAL, "Invalid offset + byte size for shared memory region: '%s'",
                        name);
    }
    region->refs++;
    return HTH_OK;
}

hth_err hth_shm_range(hth_shm *shm, const char *tenant, const char *name, uint64_t offset,
                      uint64_t bytes, char **out, hth_shm_region **held)
{
    HTH_TRY(hth_shm_allowed(shm));
    pthread_mutex_lock(&shm->lock);
    hth_shm_region *r = shm_find(shm, tenant, name);
    hth_err err = region_range(r, offset, bytes, name);
    pthread_mutex_unlock(&shm->lock);
    if (err == HTH_OK) {
        *out = r->data + offset;
        *held = r;
    }
    return err;
}

// ---- requests

// region_asker says whose regions a request may see; `tenant` is room for the name.
static hth_shm_asker region_asker(hth_http *http, hth_http_req *req, char tenant[HTH_TENANT])
{
    hth_http_tenant(http, req, tenant, HTH_TENANT);
    return (hth_shm_asker){.tenant = hth_http_is_near(req) ? tenant : NULL,
                           .admin = hth_http_is_admin(http, req)};
}

// region_register maps an object for who asks.
static hth_err region_register(hth_http *http, hth_http_req *req, const char *name, const char *key,
                               uint64_t offset, uint64_t bytes)
{
    char tenant[HTH_TENANT];
    const hth_shm_asker a = region_asker(http, req, tenant);
    uid_t uid;
    HTH_TRY(hth_shm_allowed(http->shm));
    if (a.tenant == NULL) {
        return hth_fail(HTH_EDENIED, "shared memory is registered by programs of the server's own "
                                     "machine, over loopback and not through a proxy");
    }
    HTH_TRY(hth_peer_uid(req->conn->fd, &uid));
    return hth_shm_register(http->shm, a.tenant, uid, name, key, offset, bytes);
}

static bool region_count(const json_t *json, const char *key, uint64_t *out, bool needed)
{
    const json_t *v = json_object_get(json, key);
    *out = (uint64_t)json_integer_value(v);
    return v == NULL ? !needed : json_is_integer(v) && json_integer_value(v) >= 0;
}

void hth_http_shm_register(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    json_t *q;
    uint64_t offset, bytes;
    if (!hth_http_body(http, req, &q)) {
        return;
    }
    const char *key = json_string_value(json_object_get(q, "key"));
    if (key == NULL || !region_count(q, "offset", &offset, false) ||
        !region_count(q, "byte_size", &bytes, true)) {
        hth_http_fail(http, req, 400,
                      "Unable to parse the region: 'key' is a string, 'byte_size' and 'offset' "
                      "(which may be missing) are whole numbers that are not negative");
    } else {
        hth_err err = region_register(http, req, args->name, key, offset, bytes);
        if (err != HTH_OK) {
            hth_http_fail_err(http, req, err);
        } else {
            hth_http_send(http, req, 200, NULL, NULL);
        }
    }
    json_decref(q);
}

void hth_http_shm_unregister(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    char tenant[HTH_TENANT];
    const hth_shm_asker asker = region_asker(http, req, tenant);
    hth_shm_unregister(http->shm, &asker, args->name);
    hth_http_send(http, req, 200, NULL, NULL);
}

void hth_http_shm_status(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    json_t *list;
    char tenant[HTH_TENANT];
    const hth_shm_asker asker = region_asker(http, req, tenant);
    hth_err err = hth_shm_status(http->shm, &asker, args->name, &list);
    if (err != HTH_OK) {
        hth_http_fail_err(http, req, err);
    } else {
        hth_http_send_json(http, req, list);
    }
}

void hth_http_shm_unnamed(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_http_fail(http, req, 400, "'region' is missing: which one is to be registered?");
}

void hth_http_cuda_register(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_http_fail(http, req, 400,
                  "failed to register CUDA shared memory region: there is no CUDA device here");
}

void hth_http_cuda_unregister(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    hth_http_send(http, req, 200, NULL, NULL);
}

void hth_http_cuda_status(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    if (args->name[0] != 0) {
        hth_http_fail(http, req, 404, "Unable to find CUDA shared memory region: '%s'", args->name);
    } else {
        hth_http_send_json(http, req, json_array());
    }
}
