// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/kmeans/kmeans_cpu.h - K-means on the CPU: what the owner gives the loops that are
// compiled once per instruction set.
//
// Design notes
// Vectors lie across points: a panel is the points of two vectors, turned column by column and less
// the mean. A tile is a panel's products with up to `most` centroids, in registers over all
// columns; it then replaces each point's best score and its centroid, lane by lane. So the minimum
// over centroids needs nothing across lanes, k need not fill vectors, and a point's scores are
// never written. The second best score is kept, too: where both are closer than rounding may have
// moved them, the point is compared anew, in double. So labels are those of double precision.
#ifndef HTH_KERNELS_CPU_KMEANS_KMEANS_CPU_H
#define HTH_KERNELS_CPU_KMEANS_KMEANS_CPU_H

#include "kernels/kmeans.h"

#define HTH_KMEANS_PANEL 32 // points of the widest panel

typedef struct hth_kmeans_tile {
    const float *x; // panel: (d, points)
    const float *c; // (d, centroids of the tile)
    size_t d;
    const float *half; // of nearest: |c|^2 / 2 of each centroid
    int32_t first;     // of nearest: the number of the first centroid
    // of nearest, for each point: the best x c - |c|^2 / 2 so far, whose it is, the second best
    float *best;
    int32_t *label;
    float *second;
    float *out; // of spread: (centroids, points), squared distances
} hth_kmeans_tile;

typedef struct hth_kmeans_isa {
    const char *name;
    size_t points, most; // of a panel; centroids of a tile
    // Turns `rows` points (1 to a panel, the last one repeated), and asks for what comes after
    // them; `norm` gets the panel's |x|^2.
    void (*pack)(const float *x, size_t d, size_t rows, const float *mean, float *panel,
                 float *norm);
    void (*nearest)(const hth_kmeans_tile *tile, size_t centroids);
    // doubt[i]: whether rounding could have exchanged the two largest of n points' scores.
    void (*doubt)(size_t n, size_t d, const float *best, const float *second, const float *norm,
                  int32_t *doubt);
    void (*spread)(const hth_kmeans_tile *tile, size_t centroids);
    void (*add)(const float *x, size_t d, double *sum);
    double (*squared)(const float *x, const double *c, size_t d);
    // Adds x - origin and its squares; returns the largest magnitude's bits, NaN above all.
    uint32_t (*moments)(const float *x, size_t d, const float *origin, double *sum, double *square);
} hth_kmeans_isa;

extern const hth_kmeans_isa hth_kmeans_avx512, hth_kmeans_avx2, hth_kmeans_sse2;
extern const hth_kmeans_ops hth_kmeans_cpu;

#endif
