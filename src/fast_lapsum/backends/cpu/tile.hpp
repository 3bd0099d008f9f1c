// A tile: several short rows side by side, one in each lane of a vector, so that score i of all of
// them is one vector. What a lane computes does not depend on the others, nor on how many there
// are: a row's bits are the same wherever it lies in a batch.

#pragma once

#include "network.hpp"
#include "transpose.hpp"

namespace {

// Longer rows are solved one at a time: sorting a tile of them would cost more than it saves, and a
// lone row has a tile to itself.
constexpr int64_t kTileRow = 512;

// Memory that is needed soon, a line for each score of the tile at hand: tiles are too short for
// the processor to see where the next one lies.
struct Ahead {
    const char* at;
    int64_t step;  // in bytes

    LAPSUM_MEMBER void fetch(int64_t i) const { fetch_ahead(at + i * step); }
};

// n scores of each row, in[lane], side by side.
template <class T, int kLanes>
LAPSUM_INLINE void interleave_body(const T* const* in, int64_t n, T* tile) {
    constexpr int kSide = kSquare<T>;
    const int64_t whole = n / kSide * kSide;
    for (int lane = 0; lane < kLanes; lane += kSide) {
        for (int64_t i = 0; i < whole; i += kSide) {
            const T* from[kSide];
            T* to[kSide];
            for (int side = 0; side < kSide; ++side) {
                from[side] = in[lane + side] + i;
                to[side] = tile + (i + side) * kLanes + lane;
            }
            transpose_square(from, to);
        }
        for (int64_t i = whole; i < n; ++i)
            for (int side = 0; side < kSide; ++side)
                tile[i * kLanes + lane + side] = in[lane + side][i];
    }
}

// The way back, for the first `rows` lanes.
template <class T, int kLanes>
LAPSUM_INLINE void separate_body(const T* tile, int64_t n, int rows, T* const* out) {
    constexpr int kSide = kSquare<T>;
    const int whole_rows = rows / kSide * kSide;
    const int64_t whole = n / kSide * kSide;
    for (int lane = 0; lane < whole_rows; lane += kSide) {
        for (int64_t i = 0; i < whole; i += kSide) {
            const T* from[kSide];
            T* to[kSide];
            for (int side = 0; side < kSide; ++side) {
                from[side] = tile + (i + side) * kLanes + lane;
                to[side] = out[lane + side] + i;
            }
            transpose_square(from, to);
        }
        for (int64_t i = whole; i < n; ++i)
            for (int side = 0; side < kSide; ++side)
                out[lane + side][i] = tile[i * kLanes + lane + side];
    }
    for (int lane = whole_rows; lane < rows; ++lane)
        for (int64_t i = 0; i < n; ++i) out[lane][i] = tile[i * kLanes + lane];
}

// The two neighbouring scores of each lane, sorted, that hold its threshold: down to `upper` the
// mass at a score is not over the budget. With e the decay from a score to the next one,
//
//   sum_above(i + 1) = (sum_above(i) + 1) e(i),   sum_below(i) = (sum_below(i + 1) + 1) e(i),
//   mass(r_i) = i + 1/2 + (sum_below(i) - sum_above(i)) / 2.
//
// Both sums are off by some n units, which moves the threshold by n eps t: a score that it passes
// is off by the square of that. Between equal infinities the decay is 0, as it has to be.
template <class T, int kLanes>
LAPSUM_INLINE void bracket_body(const T* sorted, int64_t n, const T* inverse, const T* budget,
                                T* decays, T* sums_below, T* upper, T* lower, Ahead ahead) {
    constexpr T kEnd = std::numeric_limits<T>::infinity();
    alignas(64) T sum[kLanes] = {};
    for (int64_t i = n - 1; i > 0; --i) {
        const T *above = sorted + (i - 1) * kLanes, *below = sorted + i * kLanes;
        T *decay_to = decays + (i - 1) * kLanes, *sum_to = sums_below + i * kLanes;
        ahead.fetch(n - 1 - i);
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const T e = decay((above[j] - below[j]) * inverse[j]);
            decay_to[j] = e;
            sum_to[j] = sum[j];
            sum[j] = fused(sum[j], e, e);
        }
    }
    alignas(64) T sum_above[kLanes] = {};
    alignas(64) int32_t above[kLanes] = {};
    std::copy_n(sum, kLanes, sums_below);
    std::fill_n(decays + (n - 1) * kLanes, kLanes, T(0));
    for (int64_t i = 0; i < n; ++i) {
        const T *e = decays + i * kLanes, *sum_below = sums_below + i * kLanes;
        const T rank = T(i) + T(0.5);
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const T excess = (rank - budget[j]) + T(0.5) * (sum_below[j] - sum_above[j]);
            above[j] += excess <= 0;
            sum_above[j] = fused(sum_above[j], e[j], e[j]);
        }
    }
    for (int j = 0; j < kLanes; ++j) {
        const int64_t count = above[j];
        upper[j] = count > 0 ? sorted[(count - 1) * kLanes + j] : kEnd;
        lower[j] = count < n ? sorted[count * kLanes + j] : -kEnd;
    }
}

// Decays of all scores relative to the neighbour on their side, and their sums.
template <class T, int kLanes>
LAPSUM_INLINE void tile_sums_body(const T* tile, int64_t n, const T* inverse, const T* upper,
                                  const T* lower, T* decays, double* count_above,
                                  double* sum_above, double* sum_below, Ahead ahead) {
    constexpr int64_t kInARow = kPiece<T> / Real<T>::lanes;
    alignas(64) int32_t count[kLanes] = {};
    alignas(64) double above[kLanes] = {}, below[kLanes] = {};
    for (int64_t first = 0; first < n; first += kInARow) {
        alignas(64) T piece_above[kLanes] = {}, piece_below[kLanes] = {};
        for (int64_t i = first; i < std::min(first + kInARow, n); ++i) {
            const T* x = tile + i * kLanes;
            T* to = decays + i * kLanes;
            ahead.fetch(i);
#pragma omp simd
            for (int j = 0; j < kLanes; ++j) {
                // The larger of the two is from the neighbour on the score's own side.
                const T r = x[j], up = r - upper[j], down = lower[j] - r;
                const T e = decay(std::abs((up > down ? up : down) * inverse[j]));
                const bool is_above = r >= upper[j];
                const T e_above = is_above ? e : T(0);
                to[j] = e;
                count[j] += is_above;
                piece_above[j] += e_above;
                piece_below[j] += e - e_above;
            }
        }
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            above[j] += double(piece_above[j]);
            below[j] += double(piece_below[j]);
        }
    }
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) {
        count_above[j] = count[j];
        sum_above[j] = above[j];
        sum_below[j] = below[j];
    }
}

// p from the decays that were summed, so that what they round by leaves the sum of p alone.
template <class T, int kLanes>
LAPSUM_INLINE void tile_mask_body(const T* tile, int64_t n, const T* upper, const T* half_above,
                                  const T* half_below, T* decays) {
    for (int64_t i = 0; i < n; ++i) {
        const T* x = tile + i * kLanes;
        T* p = decays + i * kLanes;
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const T high = 1 - p[j] * half_above[j], low = p[j] * half_below[j];
            p[j] = x[j] >= upper[j] ? high : low;
        }
    }
}

// How many scores of each lane are over, and equal to, its bound.
template <class T, int kLanes>
LAPSUM_INLINE void tile_counts_body(const T* tile, int64_t n, const T* bound, int32_t* over,
                                    int32_t* equal) {
    alignas(64) int32_t over_bound[kLanes] = {}, at_bound[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) {
        const T* x = tile + i * kLanes;
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            over_bound[j] += x[j] > bound[j];
            at_bound[j] += x[j] == bound[j];
        }
    }
    std::copy_n(over_bound, kLanes, over);
    std::copy_n(at_bound, kLanes, equal);
}

// Ones over the boundary, and for the first `left` of the scores that equal it.
template <class T, int kLanes>
LAPSUM_INLINE void tile_hard_mask_body(const T* tile, int64_t n, const T* boundary,
                                       const int32_t* left, T* out) {
    alignas(64) int32_t rest[kLanes];
    std::copy_n(left, kLanes, rest);
    for (int64_t i = 0; i < n; ++i) {
        const T* x = tile + i * kLanes;
        T* p = out + i * kLanes;
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const int32_t is_taken = (x[j] == boundary[j]) & (rest[j] > 0);
            rest[j] -= is_taken;
            p[j] = T((x[j] > boundary[j]) | is_taken);
        }
    }
}

// The hard limit, in the lanes that are in it: `over` and `under` the boundary, `share` at it.
template <class T, int kLanes>
LAPSUM_INLINE void tile_limit_mask_body(const T* tile, int64_t n, const int32_t* is_limit,
                                        const T* boundary, T over, T under, const T* share,
                                        T* out) {
    for (int64_t i = 0; i < n; ++i) {
        const T* x = tile + i * kLanes;
        T* p = out + i * kLanes;
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const T tied = share[j], before = p[j];
            const T not_over = x[j] == boundary[j] ? tied : under;
            const T limit = x[j] > boundary[j] ? over : not_over;
            p[j] = is_limit[j] ? limit : before;
        }
    }
}

#define LAPSUM_TILE_KERNELS(T, kLanes)                                                             \
    LAPSUM_CLONES void interleave(const T* const* in, int64_t n, T* tile, Lanes<kLanes>) {         \
        interleave_body<T, kLanes>(in, n, tile);                                                   \
    }                                                                                              \
    LAPSUM_CLONES void separate(const T* tile, int64_t n, int rows, T* const* out,                 \
                                Lanes<kLanes>) {                                                   \
        separate_body<T, kLanes>(tile, n, rows, out);                                              \
    }                                                                                              \
    LAPSUM_CLONES void find_brackets(const T* sorted, int64_t n, const T* inverse,                 \
                                     const T* budget, T* decays, T* sums_below, T* upper,          \
                                     T* lower, Ahead ahead, Lanes<kLanes>) {                       \
        bracket_body<T, kLanes>(sorted, n, inverse, budget, decays, sums_below, upper, lower,      \
                                ahead);                                                            \
    }                                                                                              \
    LAPSUM_CLONES void sum_tile(const T* tile, int64_t n, const T* inverse, const T* upper,        \
                                const T* lower, T* decays, double* count_above,                    \
                                double* sum_above, double* sum_below, Ahead ahead,                 \
                                Lanes<kLanes>) {                                                   \
        tile_sums_body<T, kLanes>(tile, n, inverse, upper, lower, decays, count_above, sum_above,  \
                                  sum_below, ahead);                                               \
    }                                                                                              \
    LAPSUM_CLONES void mask_tile(const T* tile, int64_t n, const T* upper, const T* half_above,    \
                                 const T* half_below, T* decays, Lanes<kLanes>) {                  \
        tile_mask_body<T, kLanes>(tile, n, upper, half_above, half_below, decays);                 \
    }                                                                                              \
    LAPSUM_CLONES void count_tile(const T* tile, int64_t n, const T* bound, int32_t* over,         \
                                  int32_t* equal, Lanes<kLanes>) {                                 \
        tile_counts_body<T, kLanes>(tile, n, bound, over, equal);                                  \
    }                                                                                              \
    LAPSUM_CLONES void hard_mask_tile(const T* tile, int64_t n, const T* boundary,                 \
                                      const int32_t* left, T* out, Lanes<kLanes>) {                \
        tile_hard_mask_body<T, kLanes>(tile, n, boundary, left, out);                              \
    }                                                                                              \
    LAPSUM_CLONES void limit_mask_tile(const T* tile, int64_t n, const int32_t* is_limit,          \
                                       const T* boundary, T over, T under, const T* share,         \
                                       T* out, Lanes<kLanes>) {                                    \
        tile_limit_mask_body<T, kLanes>(tile, n, is_limit, boundary, over, under, share, out);     \
    }

LAPSUM_TILE_KERNELS(float, 16)
LAPSUM_TILE_KERNELS(float, 4)
LAPSUM_TILE_KERNELS(double, 8)
LAPSUM_TILE_KERNELS(double, 2)

}  // namespace
