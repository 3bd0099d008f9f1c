// What readings of a row add up to, and how: in a shape that no instruction set changes.
//
// A chunk is cut into pieces, a piece into groups of one 64-byte vector. Each lane of the vector
// adds up at most 32 floats or 16 doubles, one after the other; lanes are added as doubles, in
// pairs; then pieces, chunks (16 in a row) and blocks (in pairs). A compiler may take several lanes
// at once or one: the additions are the same, and so is what they lose.

#pragma once

#include <algorithm>

#include "numbers.hpp"

namespace {

// Longer sums would show the rounding of many equal addends, which do not average out.
template <class T>
constexpr int64_t kPiece = Real<T>::lanes * (sizeof(T) == 4 ? 32 : 16);

// What one pass at a trial threshold tells (operator: N>, E, S<, S>, m<, m>).
struct Pass {
    int64_t above = 0, equal_count = 0;
    double sum_above = 0, sum_below = 0;
    double nearest_above = kInfinity, nearest_below = -kInfinity;
    double spread = 0;  // sum of e |v|, v = u log2(e): how far away the mass lies

    void add(const Pass& o) {
        spread += o.spread;
        above += o.above;
        equal_count += o.equal_count;
        sum_above += o.sum_above;
        sum_below += o.sum_below;
        nearest_above = std::min(nearest_above, o.nearest_above);
        nearest_below = std::max(nearest_below, o.nearest_below);
    }
};

// Tail sums outside a band, each relative to its own anchor.
struct Tails {
    int64_t above = 0, below = 0;
    double sum_above = 0, sum_below = 0;
    double spread = 0;  // sum of e v over both

    void add(const Tails& o) {
        spread += o.spread;
        above += o.above;
        below += o.below;
        sum_above += o.sum_above;
        sum_below += o.sum_below;
    }
};

struct Survey {
    int64_t excluded = 0, infinite = 0, finite = 0;
    double lowest = kInfinity, highest = -kInfinity;
    double sum = 0, squares = 0;  // of finite r - origin

    void add(const Survey& o) {
        sum += o.sum;
        squares += o.squares;
        excluded += o.excluded;
        infinite += o.infinite;
        finite += o.finite;
        lowest = std::min(lowest, o.lowest);
        highest = std::max(highest, o.highest);
    }
};

struct GradientSums {
    double e = 0, ge = 0, ue = 0, gue = 0;

    void add(const GradientSums& o) {
        e += o.e;
        ge += o.ge;
        ue += o.ue;
        gue += o.gue;
    }
};

// Many results one after the other, 16 of them in a row.
template <class Result>
struct Cascade {
    Result sum, latest;
    int in_a_row = 0;

    void add(const Result& o) {
        latest.add(o);
        if (++in_a_row < 16) return;
        sum.add(latest);
        latest = {};
        in_a_row = 0;
    }
    Result total() {
        sum.add(latest);
        return sum;
    }
};

// The sum of `count` results, at least one, in pairs; overwrites them.
template <class Result>
Result sum_in_pairs(Result* results, int64_t count) {
    for (int64_t step = 1; step < count; step *= 2)
        for (int64_t i = 0; i + step < count; i += 2 * step) results[i].add(results[i + step]);
    return results[0];
}

// n numbers in groups of one vector, the last of them filled up with `filler`.
template <class T>
struct Groups {
    static constexpr int kLanes = Real<T>::lanes;
    const T *at, *stop;
    int64_t count;
    alignas(64) T last[kLanes];

    LAPSUM_MEMBER Groups(const T* r, int64_t n, T filler) {
        const int64_t whole = n / kLanes;
        const auto rest = int(n - whole * kLanes);
        count = whole + (rest > 0);
        stop = r + whole * kLanes;
        at = whole > 0 ? r : last;
        if (rest == 0) return;
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) last[j] = j < rest ? stop[j] : filler;
    }

    LAPSUM_MEMBER const T* next() {
        const T* here = at;
        at = here + kLanes == stop ? last : here + kLanes;
        return here;
    }
};

LAPSUM_INLINE double sum_of(const double (&lanes)[8]) {
    alignas(32) double four[4];
#pragma omp simd
    for (int j = 0; j < 4; ++j) four[j] = lanes[j] + lanes[j + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

LAPSUM_INLINE double sum_of(const float (&lanes)[16]) {
    alignas(64) double eight[8];
#pragma omp simd
    for (int j = 0; j < 8; ++j) eight[j] = double(lanes[j]) + double(lanes[j + 8]);
    return sum_of(eight);
}

template <int kLanes>
LAPSUM_INLINE int64_t count_of(const int32_t (&lanes)[kLanes]) {
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < kLanes; ++j) sum += lanes[j];
    return sum;
}

template <class T, int kLanes>
LAPSUM_INLINE double least_of(const T (&lanes)[kLanes]) {
    T least = std::numeric_limits<T>::infinity();
#pragma omp simd reduction(min : least)
    for (int j = 0; j < kLanes; ++j) least = lanes[j] < least ? lanes[j] : least;
    return double(least);
}

template <class T, int kLanes>
LAPSUM_INLINE double most_of(const T (&lanes)[kLanes]) {
    T most = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : most)
    for (int j = 0; j < kLanes; ++j) most = lanes[j] > most ? lanes[j] : most;
    return double(most);
}

}  // namespace
