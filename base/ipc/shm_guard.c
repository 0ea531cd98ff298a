// SPDX-License-Identifier: Apache-2.0
// Touching a page that a file no longer has raises SIGBUS. The handler finds the address in the
// table of mapped ranges and puts zeros there and up to the end of the range, which a file that
// shrank does not have either: a range has two mappings at most, however many of its pages are
// touched. The request of that client gets nonsense, and nobody else notices. An address that is in
// no range is somebody's bug, and ends the process as without a handler.
#include "base/ipc/shm_guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD_ROWS 1024

// What is mapped, for the handler. A row is free when `end` is 0; `start` is written before `end`.
static struct {
    _Atomic uintptr_t start, end;
} shm_range[GUARD_ROWS];

static _Atomic uintptr_t shm_page; // written at each install, while handlers may run

static void shm_fault(int number, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < GUARD_ROWS; i++) {
        uintptr_t end = atomic_load(&shm_range[i].end);
        if (at < end && at >= atomic_load(&shm_range[i].start)) {
            uintptr_t page = atomic_load(&shm_page), from = at / page * page;
            size_t bytes = (end + page - 1) / page * page - from;
            if (mmap((void *)from, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
                     0) != MAP_FAILED) {
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
    atomic_store(&shm_page, (uintptr_t)sysconf(_SC_PAGESIZE));
    sigemptyset(&a.sa_mask);
    sigaction(SIGBUS, &a, NULL);
}

int hth_shm_guard(const void *data, uint64_t bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int i = 0;
    pthread_mutex_lock(&lock);
    shm_install();
    while (i < GUARD_ROWS && atomic_load(&shm_range[i].end) != 0) {
        i++;
    }
    if (i < GUARD_ROWS) {
        atomic_store(&shm_range[i].start, (uintptr_t)data);
        atomic_store(&shm_range[i].end, (uintptr_t)data + bytes);
    }
    pthread_mutex_unlock(&lock);
    return i < GUARD_ROWS ? i : -1;
}

void hth_shm_unguard(int row)
{
    if (row >= 0) {
        atomic_store(&shm_range[row].end, 0);
    }
}
