// SPDX-License-Identifier: Apache-2.0
// The sanitizers have to be told of each switch: which stack the thread is on, and that what
// happens on one side happens before what follows on the other.
#include "sched/fiber.h"

#include "base/alloc.h"
#include "base/pace.h"
#include "base/sanitized.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if HTH_SANITIZED_ADDRESS
#include <sanitizer/common_interface_defs.h>
#endif
#if HTH_SANITIZED_THREAD
#include <sanitizer/tsan_interface.h>
#endif

// A side of the switch: the fiber, or the thread's own stack while the fiber computes.
typedef struct side {
    ucontext_t context;
    const void *stack; // its lowest address
    size_t bytes;
    void *fake, *tsan; // the sanitizers' notes about it
} side;

struct hth_fiber {
    side own, thread;
    char *map; // the stack, and below it the page that nobody may touch
    size_t map_bytes;
    void (*fn)(void *arg);
    void *arg;
    bool busy, inside; // begun; on its stack now
    hth_pace *pace;    // the account of the side that does not compute
    char detail[1024]; // .. and its sentence
};

// The thread sanitizer notes where a function begins and ends: for the side that it began on and
// the one that it ends on. In a function that changes sides, or never ends, the two do not match,
// and a side that is begun a thousand times seems to be a thousand calls deep.
#define CHANGES_SIDES __attribute__((no_sanitize("thread")))

CHANGES_SIDES static void side_leave(side *from, side *to, bool for_good)
{
#if HTH_SANITIZED_ADDRESS
    __sanitizer_start_switch_fiber(for_good ? NULL : &from->fake, to->stack, to->bytes);
#endif
#if HTH_SANITIZED_THREAD
    from->tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
}

// side_arrive: the thread is on `here` now, and was on `from`.
static void side_arrive(side *here, side *from)
{
#if HTH_SANITIZED_ADDRESS
    __sanitizer_finish_switch_fiber(here->fake, &from->stack, &from->bytes);
#endif
}

// fiber_swap exchanges what the library keeps for each thread.
static void fiber_swap(hth_fiber *fiber)
{
    char detail[sizeof fiber->detail];
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    (void)hth_fail(HTH_OK, "%s", fiber->detail);
    snprintf(fiber->detail, sizeof fiber->detail, "%s", detail);
    fiber->pace = hth_pace_enter(fiber->pace);
}

CHANGES_SIDES static void fiber_main(unsigned high, unsigned low)
{
    hth_fiber *f = (hth_fiber *)(((uintptr_t)high << 16 << 16) | low); // NOLINT: makecontext's way
    side_arrive(&f->own, &f->thread);
    f->fn(f->arg);
    f->busy = false;
    side_leave(&f->own, &f->thread, true);
    (void)setcontext(&f->thread.context);
    assert(false);
}

hth_err hth_fiber_open(size_t stack, hth_fiber **out)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (stack + page - 1) / page * page + page;
    *out = NULL;
    hth_fiber *f = hth_calloc(1, sizeof *f);
    char *map = f == NULL ? MAP_FAILED
                          : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || mprotect(map, page, PROT_NONE) != 0) {
        if (map != MAP_FAILED) {
            munmap(map, bytes);
        }
        hth_free(f);
        return hth_no_memory("a stack of %zu bytes", stack);
    }
    f->map = map;
    f->map_bytes = bytes;
    f->own.stack = map + page;
    f->own.bytes = bytes - page;
#if HTH_SANITIZED_THREAD
    f->own.tsan = __tsan_create_fiber(0);
#endif
    *out = f;
    return HTH_OK;
}

void hth_fiber_close(hth_fiber *fiber)
{
    if (fiber == NULL) {
        return;
    }
    assert(!fiber->busy);
#if HTH_SANITIZED_THREAD
    __tsan_destroy_fiber(fiber->own.tsan);
#endif
    munmap(fiber->map, fiber->map_bytes);
    hth_free(fiber);
}

void hth_fiber_begin(hth_fiber *fiber, void (*fn)(void *arg), void *arg)
{
    assert(!fiber->busy);
    fiber->fn = fn;
    fiber->arg = arg;
    fiber->busy = true;
    fiber->pace = NULL;
    fiber->detail[0] = 0;
    fiber->own.fake = NULL;
    (void)getcontext(&fiber->own.context); // fails on no system that has it
    fiber->own.context.uc_stack.ss_sp = (void *)(uintptr_t)fiber->own.stack;
    fiber->own.context.uc_stack.ss_size = fiber->own.bytes;
    fiber->own.context.uc_link = NULL;
    uintptr_t at = (uintptr_t)fiber;
    makecontext(&fiber->own.context, (void (*)(void))fiber_main, 2, (unsigned)(at >> 16 >> 16),
                (unsigned)at);
}

bool hth_fiber_go(hth_fiber *fiber)
{
    assert(fiber->busy && !fiber->inside);
    fiber_swap(fiber);
    fiber->inside = true;
    side_leave(&fiber->thread, &fiber->own, false);
    (void)swapcontext(&fiber->thread.context, &fiber->own.context);
    side_arrive(&fiber->thread, &fiber->own);
    fiber->inside = false;
    fiber_swap(fiber);
    return fiber->busy;
}

void hth_fiber_yield(hth_fiber *fiber)
{
    assert(fiber->inside);
    side_leave(&fiber->own, &fiber->thread, false);
    (void)swapcontext(&fiber->own.context, &fiber->thread.context);
    side_arrive(&fiber->own, &fiber->thread);
}
