// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_kmeans.h - the reference's K-means: a table as a device has one.
#ifndef HTH_KERNELS_REF_REF_KMEANS_H
#define HTH_KERNELS_REF_REF_KMEANS_H

#include "kernels/kmeans.h"

extern const hth_kmeans_ops ref_kmeans;

#endif
