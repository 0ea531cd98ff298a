// SPDX-License-Identifier: Apache-2.0
// A region is mapped, so that large tensors need not be copied. Its owner can shrink the object at
// any time, and touching what is gone raises SIGBUS. The handler finds the address in the table of
// mapped ranges and puts a page of zeros there: the request of that client gets nonsense, and
// nobody else notices. An address that is in no region is somebody's bug, and ends the process as
// without a handler.
#include "server/http_shm.h"

#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHM_MAX_REGIONS 1024
#define SHM_NAME        201
#define SHM_KEY         256

struct hth_shm_region {
    char name[SHM_NAME], key[SHM_KEY];
    uint64_t offset, bytes;
    char *data;
    int range; // its row of shm_range
    int refs;  // the table's, and one for each request
    UT_hash_handle hh;
};

struct hth_shm {
    bool allowed;
    hth_shm_region *regions;
};

// What is mapped, for the handler. A row is free when `end` is 0; `start` is written before `end`.
static struct {
    _Atomic uintptr_t start, end;
} shm_range[SHM_MAX_REGIONS];

static long shm_page;

static void shm_fault(int number, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < SHM_MAX_REGIONS; i++) {
        if (at < atomic_load(&shm_range[i].end) && at >= atomic_load(&shm_range[i].start)) {
            void *page = (void *)(at / (uintptr_t)shm_page * (uintptr_t)shm_page);
            if (mmap(page, (size_t)shm_page, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
                return;
            }
        }
    }
    signal(number, SIG_DFL); // the access is tried again, and ends the process
}

// shm_install is called for each region: what else runs in the process may have taken the signal.
static void shm_install(void)
{
    struct sigaction a = {.sa_sigaction = shm_fault, .sa_flags = SA_SIGINFO};
    shm_page = sysconf(_SC_PAGESIZE);
    sigemptyset(&a.sa_mask);
    sigaction(SIGBUS, &a, NULL);
}

// range_take enters a mapping into the table; -1: it is full.
static int range_take(char *data, uint64_t bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of all servers in this process
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < SHM_MAX_REGIONS && atomic_load(&shm_range[i].end) != 0) {
        i++;
    }
    if (i < SHM_MAX_REGIONS) {
        atomic_store(&shm_range[i].start, (uintptr_t)data);
        atomic_store(&shm_range[i].end, (uintptr_t)data + bytes);
    }
    pthread_mutex_unlock(&lock);
    return i < SHM_MAX_REGIONS ? i : -1;
}

hth_err hth_shm_open(bool allowed, hth_shm **out)
{
    *out = hth_calloc(1, sizeof **out);
    if (*out == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for shared regions");
    }
    (*out)->allowed = allowed;
    return HTH_OK;
}

void hth_shm_close(hth_shm *s)
{
    if (s != NULL) {
        hth_shm_unregister(s, "");
        hth_free(s);
    }
}

void hth_shm_rele(hth_shm_region *r)
{
    if (--r->refs == 0) {
        munmap(r->data, r->bytes);
        atomic_store(&shm_range[r->range].end, 0);
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
    r->range = range_take(r->data, r->bytes);
    if (r->range < 0) {
        munmap(r->data, r->bytes);
        return hth_fail(HTH_EBUSY, "more than %d shared memory regions", SHM_MAX_REGIONS);
    }
    return HTH_OK;
}

static hth_err region_add(hth_shm *s, hth_shm_region *r)
{
    int fd = shm_open(r->key, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) {
        return hth_fail(HTH_EIO, "Unable to open shared memory region: '%s'", r->key);
    }
    shm_install();
    hth_err err = region_map(r, fd);
    close(fd);
    if (err != HTH_OK) {
        return err;
    }
    r->refs = 1;
    HASH_ADD_STR(s->regions, name, r);
    if (!HTH_HASH_ADDED(r)) {
        munmap(r->data, r->bytes);
        atomic_store(&shm_range[r->range].end, 0);
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
