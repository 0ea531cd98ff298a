// SPDX-License-Identifier: Apache-2.0
// The fake driver as a plug-in file, for programs that are tested as they are: whoever finds it in
// the place of libhearth_cuda.so has a GPU of 1 GiB. It brings base/ along, so the sentences of its
// errors stay with it.
#include "device/plugin.h"
#include "kernels/cuda/fake/fake.h"

__attribute__((visibility("default"))) hth_plugin_entry hth_cuda_plugin;

const hth_plugin *hth_cuda_plugin(uint32_t abi, const hth_plugin_host *host)
{
    static const hth_cuda_fake *driver;
    driver = driver != NULL ? driver : hth_cuda_fake_engine_open(1, (uint64_t)1 << 30);
    return abi == HTH_PLUGIN_ABI && driver != NULL ? hth_cuda_fake_engine_plugin() : NULL;
}
