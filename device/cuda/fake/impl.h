// SPDX-License-Identifier: Apache-2.0
// device/cuda/fake/impl.h - what the files of the fake driver share.
#ifndef HTH_DEVICE_CUDA_FAKE_IMPL_H
#define HTH_DEVICE_CUDA_FAKE_IMPL_H

#include "device/cuda/fake/fake.h"

// hth_cuda_fake_enter counts a call; what it returns, unless CUDA_SUCCESS, is the call's answer.
CUresult hth_cuda_fake_enter(void);
hth_cuda_fake *hth_cuda_fake_state(void);
// hth_cuda_fake_take takes device memory off the capacity, or returns false; negative gives back.
bool hth_cuda_fake_take(int64_t bytes);
bool hth_cuda_fake_pinned(const void *p);
void hth_cuda_fake_fill_mem(hth_cuda_api *api); // memory's entries of the table

#endif
