// SPDX-License-Identifier: Apache-2.0
// Memory of clients in the engine's process: the same files that hearthd has mapped.
#include "engine/process/child_impl.h"

#include "base/ipc/shm_guard.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

void *child_region_at(child *process, const hth_ipc_record_tensor *tensor, bool write)
{
    child_region *r = NULL;
    HASH_FIND(hh, process->regions, &tensor->region, sizeof tensor->region, r);
    bool inside = r != NULL && tensor->at <= r->bytes && tensor->bytes <= r->bytes - tensor->at;
    return inside && (r->writable || !write) ? r->data + tensor->at : NULL;
}

static void region_free(child *c, child_region *region)
{
    HASH_DEL(c->regions, region);
    munmap(region->data, region->bytes);
    hth_shm_unguard(region->guard);
    hth_free(region);
}

void child_region_forget(child *process, uint32_t number)
{
    child_region *r;
    HASH_FIND(hh, process->regions, &number, sizeof number, r);
    if (r != NULL) {
        region_free(process, r);
    }
}

void child_region_take(child *process, const hth_child_head *head)
{
    int fd;
    hth_err err = hth_child_link_passed(&process->link, head, &fd, 1);
    if (err != HTH_OK) {
        hth_log(WARN, SERVER, "engine-memory", "%s", hth_err_detail());
        return;
    }
    bool writable = (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
    void *p = mmap(NULL, head->done, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd,
                   (off_t)head->total);
    int seals = fcntl(fd, F_GET_SEALS);
    bool shrinks = seals < 0 || (seals & F_SEAL_SHRINK) == 0;
    close(fd);
    child_region *r = p != MAP_FAILED ? hth_calloc(1, sizeof *r) : NULL;
    if (r != NULL) {
        *r = (child_region){.number = head->entry,
                            .data = p,
                            .bytes = head->done,
                            .writable = writable,
                            .guard = -1};
        r->guard = shrinks ? hth_shm_guard(p, head->done) : -1;
        if (!shrinks || r->guard >= 0) {
            HASH_ADD(hh, process->regions, number, sizeof r->number, r);
        }
        if (r->hh.tbl != NULL) {
            return;
        }
        hth_shm_unguard(r->guard);
        hth_free(r);
    }
    if (p != MAP_FAILED) {
        munmap(p, head->done);
    }
    hth_log(WARN, SERVER, "engine-memory", "bytes=%" PRIu64 " mapped=no", head->done);
}

void child_region_close(child *process)
{
    while (process->regions != NULL) {
        region_free(process, process->regions);
    }
}
