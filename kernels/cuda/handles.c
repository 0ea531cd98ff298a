// SPDX-License-Identifier: Apache-2.0
// Giving a device its kernels: the images that nvcc made are loaded and every kernel is looked up
// by name, so that one that is missing is found here and not in a run; then cuDNN's and cublasLt's
// handles. All of it goes with the device.
#include "kernels/cuda/handles.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ops.h"

#include "base/alloc.h"

#include <string.h>

static const struct {
    const char *name, *file;
} site_kernels[] = {
#define SITE_KERNEL(name, file) {#name, #file},
    HTH_CUDA_KERNELS(SITE_KERNEL)
#undef SITE_KERNEL
};

static void site_close(hth_cuda *cuda)
{
    hth_cuda_site *s = cuda->kernels;
    cuda->kernels = NULL;
    cuda->base.kernels = NULL;
    if (s->blas != NULL) {
        (void)cuda->api->cublasLtDestroy(s->blas);
    }
    if (s->dnn != NULL) {
        (void)cuda->api->cudnnDestroy(s->dnn);
    }
    for (int i = 0; i < s->n_libraries; i++) {
        (void)cuda->api->cuLibraryUnload(s->libraries[i]);
    }
    hth_free(s->libraries);
    hth_free(s);
}

static hth_err site_load(hth_cuda *cuda, hth_cuda_site *site)
{
    site->libraries = hth_calloc((size_t)hth_cuda_n_images, sizeof *site->libraries);
    if (site->libraries == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for its kernels", cuda->base.props.name);
    }
    for (int i = 0; i < hth_cuda_n_images; i++) {
        HTH_TRY(HTH_CUDA(cuda, cuLibraryLoadData, &site->libraries[i], hth_cuda_images[i].data,
                         NULL, NULL, 0, NULL, NULL, 0));
        site->n_libraries++;
    }
    for (int k = 0; k < HTH_CUDA_N_KERNELS; k++) {
        int i = 0;
        CUkernel kernel;
        while (i < hth_cuda_n_images &&
               strcmp(hth_cuda_images[i].file, site_kernels[k].file) != 0) {
            i++;
        }
        if (i == hth_cuda_n_images) {
            return hth_fail(HTH_ENOTSUP, "device %s: no image has kernel %s", cuda->base.props.name,
                            site_kernels[k].name);
        }
        HTH_TRY(
            HTH_CUDA(cuda, cuLibraryGetKernel, &kernel, site->libraries[i], site_kernels[k].name));
        site->kernel[k] = (CUfunction)kernel; // cuLaunchKernel takes either
    }
    return HTH_OK;
}

static hth_err site_handles(hth_cuda *cuda, hth_cuda_site *site)
{
    cudnnStatus_t dnn = cuda->api->cudnnCreate(&site->dnn);
    if (dnn != CUDNN_STATUS_SUCCESS) {
        site->dnn = NULL;
        return hth_fail(HTH_ENOTSUP, "device %s: cudnnCreate answered %d", cuda->base.props.name,
                        (int)dnn);
    }
    cublasStatus_t blas = cuda->api->cublasLtCreate(&site->blas);
    if (blas != CUBLAS_STATUS_SUCCESS) {
        site->blas = NULL;
        return hth_fail(HTH_ENOTSUP, "device %s: cublasLtCreate answered %d", cuda->base.props.name,
                        (int)blas);
    }
    return HTH_OK;
}

hth_err hth_cuda_kernels_attach(hth_cuda *cuda)
{
    hth_cuda_site *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for its kernels", cuda->base.props.name);
    }
    cuda->kernels = s;
    cuda->kernels_close = NULL;
    hth_err err = site_load(cuda, s);
    if (err == HTH_OK) {
        err = site_handles(cuda, s);
    }
    if (err != HTH_OK) {
        site_close(cuda);
        return err;
    }
    cuda->kernels_close = site_close;
    cuda->base.kernels = &hth_cuda_kernel_ops;
    return HTH_OK;
}
