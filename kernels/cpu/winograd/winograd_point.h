// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/winograd/winograd_point.h - Winograd's interpolation points and the polynomials made
// of them.
//
// Design notes
// Results are products of polynomials, evaluated at 0, +-p for each pair, and infinity. Large and
// small points make the transforms' factors unequal, and errors grow with them (B. Barabasz,
// A. Anderson, K. Soodhalter, D. Gregg, "Error Analysis and Improving the Accuracy of Winograd
// Convolution for Deep Neural Networks", ACM TOMS 46(4), 2020), so the pairs were searched as they
// did, by measured error, among numbers exact in binary: F(2x2) 1; F(4x4) 5/8, 3/2 (2.1 times less
// RMS error than 1, 2); F(6x6) 1/2, 1, 2 (none of 120 others near them was better by a tenth).
#ifndef HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_POINT_H
#define HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_POINT_H

typedef struct hth_wino_points {
    double at[3];     // the pairs p
    double all[4];    // coefficients of the product of z - p^2, lowest first
    double but[3][3]; // the same without one pair
} hth_wino_points;

#define WINO_SQ(p) ((p) * (p))
#define WINO_PAIR(p, q, r)                                                                         \
    {                                                                                              \
        (WINO_SQ(q) * WINO_SQ(r)), (-WINO_SQ(q) - WINO_SQ(r)), 1                                   \
    }
#define WINO_POINTS_1(a)                                                                           \
    {                                                                                              \
        {(a)}, {-WINO_SQ(a), 1},                                                                   \
        {                                                                                          \
            {                                                                                      \
                1                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
#define WINO_POINTS_2(a, b)                                                                        \
    {                                                                                              \
        {(a), (b)}, {WINO_SQ(a) * WINO_SQ(b), -WINO_SQ(a) - WINO_SQ(b), 1},                        \
        {                                                                                          \
            {-WINO_SQ(b), 1},                                                                      \
            {                                                                                      \
                -WINO_SQ(a), 1                                                                     \
            }                                                                                      \
        }                                                                                          \
    }
#define WINO_POINTS_3(a, b, c)                                                                     \
    {                                                                                              \
        {(a), (b), (c)},                                                                           \
            {-WINO_SQ(a) * WINO_SQ(b) * WINO_SQ(c),                                                \
             WINO_SQ(a) * WINO_SQ(b) + WINO_SQ(a) * WINO_SQ(c) + WINO_SQ(b) * WINO_SQ(c),          \
             -WINO_SQ(a) - WINO_SQ(b) - WINO_SQ(c), 1},                                            \
        {                                                                                          \
            WINO_PAIR(a, b, c), WINO_PAIR(b, a, c), WINO_PAIR(c, a, b)                             \
        }                                                                                          \
    }

static const hth_wino_points hth_wino_points_of[3] = {WINO_POINTS_1(1.0), WINO_POINTS_2(0.625, 1.5),
                                                      WINO_POINTS_3(0.5, 1.0, 2.0)};

// The same text = the same transformed filters.
#define HTH_WINO_POINTS_TEXT                                                                       \
    {                                                                                              \
        "1", "5/8,3/2", "1/2,1,2"                                                                  \
    }

#endif
