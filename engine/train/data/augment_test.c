// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"
#include "engine/train/data/augment.h"

#define MOST 4096

// What a program of its own, in Python, draws by the words of augment.h, with a Philox that gives
// the numbers which Random123 publishes of it (kat_vectors).
static void draws_are_those_documented(void **state)
{
    static const struct {
        uint64_t seed, epoch, sample;
        int64_t crop;
        bool flip;
        int64_t down, right;
    } want[] = {
        {0, 0, 0, 4, true, 0, 0},
        {0, 0, 1, 4, true, 4, 2},
        {7, 3, 59999, 4, true, -1, 1},
        {4294967295, 1, 5, 2, false, 0, 2},
        {8589934597, 4294967298, 17179869187, 10, true, -8, 1},
        {7, 0, 2, 0, true, 0, 0},
        {3, 1, 1, 65535, true, -49932, -6810},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        for (int flip = 0; flip < 2; flip++) {
            const hth_augment a = {.flip = flip == 1, .crop = want[i].crop};
            hth_augment_draw d = hth_augment_at(&a, want[i].seed, want[i].epoch, want[i].sample);
            assert_int_equal(d.flip, want[i].flip && a.flip);
            assert_int_equal(d.down, want[i].down);
            assert_int_equal(d.right, want[i].right);
        }
    }
}

// One half is flipped, every offset is as likely as any other, and what comes next tells nothing.
static void draws_are_even(void **state)
{
    enum { N = 50000, CROP = 2, WIDE = 2 * CROP + 1 };
    const hth_augment a = {.flip = true, .crop = CROP};
    int down[WIDE] = {0}, right[WIDE] = {0}, flips = 0, changes = 0;
    bool before = false;
    for (uint64_t i = 0; i < N; i++) {
        hth_augment_draw d = hth_augment_at(&a, 1, 2, i);
        flips += d.flip;
        changes += d.flip != before;
        before = d.flip;
        down[d.down + CROP]++;
        right[d.right + CROP]++;
    }
    assert_in_range(flips, N / 2 - 500, N / 2 + 500); // 4.5 standard deviations
    assert_in_range(changes, N / 2 - 500, N / 2 + 500);
    for (int k = 0; k < WIDE; k++) {
        assert_in_range(down[k], N / WIDE - 450, N / WIDE + 450); // 5 of them
        assert_in_range(right[k], N / WIDE - 450, N / WIDE + 450);
    }
}

// The element at (c, y, x) of an image in zeros.
static void pixel(const unsigned char *in, const int64_t dim[3], size_t size, int64_t c, int64_t y,
                  int64_t x, unsigned char *out)
{
    bool inside = y >= 0 && y < dim[1] && x >= 0 && x < dim[2];
    memset(out, 0, size);
    if (inside) {
        memcpy(out, in + (size_t)((c * dim[1] + y) * dim[2] + x) * size, size);
    }
}

static void check_image(const hth_augment_draw *draw, const int64_t dim[3], size_t size)
{
    unsigned char in[MOST], out[MOST + 1], place[MOST], want[8];
    size_t bytes = (size_t)(dim[0] * dim[1] * dim[2]) * size;
    assert_true(bytes <= MOST);
    for (size_t i = 0; i < bytes; i++) {
        in[i] = (unsigned char)(1 + i * 37 % 255); // no zeros
    }
    memset(out, 0xA5, sizeof out);
    memcpy(place, in, bytes);
    hth_augment_image(draw, dim, size, in, out);
    hth_augment_image(draw, dim, size, place, place);
    assert_memory_equal(out, place, bytes);
    assert_int_equal(out[bytes], 0xA5);
    for (int64_t c = 0; c < dim[0]; c++) {
        for (int64_t y = 0; y < dim[1]; y++) {
            for (int64_t x = 0; x < dim[2]; x++) {
                int64_t from = draw->flip ? dim[2] - 1 - x : x;
                pixel(in, dim, size, c, y + draw->down, from + draw->right, want);
                const unsigned char *got = out + (size_t)((c * dim[1] + y) * dim[2] + x) * size;
                assert_memory_equal(got, want, size);
            }
        }
    }
}

// Every element of every draw, copied and in place, against its definition.
static void images_are_cut_and_flipped(void **state)
{
    static const int64_t dims[][3] = {{1, 1, 1},  {3, 4, 5},  {1, 3, 16}, {2, 5, 17},
                                      {1, 2, 33}, {3, 8, 18}, {2, 7, 2},  {1, 3, 40}};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        for (size_t size = 1; size <= 8; size *= 2) {
            for (int64_t down = 1 - dims[i][1]; down < dims[i][1]; down++) {
                for (int64_t right = 1 - dims[i][2]; right < dims[i][2]; right++) {
                    check_image(&(hth_augment_draw){false, down, right}, dims[i], size);
                    check_image(&(hth_augment_draw){true, down, right}, dims[i], size);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_those_documented),
        cmocka_unit_test(draws_are_even),
        cmocka_unit_test(images_are_cut_and_flipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
