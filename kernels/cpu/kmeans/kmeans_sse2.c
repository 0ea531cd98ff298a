// SPDX-License-Identifier: Apache-2.0
// K-means for every processor, SSE2 on x86: 6 x 2 scores, 2 of points, 2 of products.
#include "kernels/cpu/kmeans/kmeans_body.h"

const hth_kmeans_isa hth_kmeans_sse2 = KMEANS_TABLE("sse2");
