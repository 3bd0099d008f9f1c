// The inner loops of hard masks: counts instead of masses.

#pragma once

#include "simd.hpp"

namespace {

// Scores outside of a band.
struct Counts {
    int64_t above = 0, below = 0;

    void add(const Counts& o) {
        above += o.above;
        below += o.below;
    }
};

// What a list of scores is like around a trial.
struct Split {
    int64_t over = 0, equal = 0;
    double next_up = kInfinity, next_down = -kInfinity;  // the nearest at or over it, and under it

    void add(const Split& o) {
        over += o.over;
        equal += o.equal;
        next_up = std::min(next_up, o.next_up);
        next_down = std::max(next_down, o.next_down);
    }
};

template <class T>
LAPSUM_INLINE Counts counts_body(const T* r, int64_t n, T lower, T upper) {
    constexpr int kLanes = Real<T>::lanes;
    alignas(64) int32_t above[kLanes] = {}, below[kLanes] = {};
    Groups<T> groups(r, n, kFiller<T>);
    for (int64_t i = 0; i < groups.count; ++i) {
        const T* x = groups.next();
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            above[j] += x[j] > upper;
            below[j] += x[j] < lower;
        }
    }
    return {count_of(above), count_of(below)};
}

template <class T>
LAPSUM_INLINE Split split_body(const T* r, int64_t n, T trial) {
    constexpr int kLanes = Real<T>::lanes;
    constexpr T kEnd = std::numeric_limits<T>::infinity();
    alignas(64) int32_t over[kLanes] = {}, equal[kLanes] = {};
    alignas(64) T next_up[kLanes], next_down[kLanes];
    std::fill_n(next_up, kLanes, kEnd);
    std::fill_n(next_down, kLanes, -kEnd);
    Groups<T> groups(r, n, kFiller<T>);
    for (int64_t i = 0; i < groups.count; ++i) {
        const T* x = groups.next();
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const T up = x[j] >= trial ? x[j] : kEnd, down = x[j] < trial ? x[j] : -kEnd;
            over[j] += x[j] > trial;
            equal[j] += x[j] == trial;
            next_up[j] = up < next_up[j] ? up : next_up[j];
            next_down[j] = down > next_down[j] ? down : next_down[j];
        }
    }
    return {count_of(over), count_of(equal), least_of(next_up), most_of(next_down)};
}

#define LAPSUM_COUNTS(T)                                                                        \
    LAPSUM_CLONES Counts counts_chunk(const T* r, int64_t n, T lower, T upper) {                \
        return counts_body(r, n, lower, upper);                                                 \
    }                                                                                           \
    LAPSUM_CLONES Split split_list(const T* r, int64_t n, T trial) {                            \
        return split_body(r, n, trial);                                                         \
    }                                                                                           \
    /* 1 over the boundary, `share` for the scores that equal it. */                            \
    LAPSUM_CLONES void limit_chunk(const T* r, int64_t n, T boundary, T share, T* out) {        \
        _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) {                                   \
            const T not_over = r[i] == boundary ? share : T(0);                                 \
            out[i] = r[i] > boundary ? T(1) : not_over;                                         \
        }                                                                                       \
    }                                                                                           \
    LAPSUM_CLONES int64_t count_equal(const T* r, int64_t n, T score) {                         \
        int64_t equal = 0;                                                                      \
        _Pragma("omp simd reduction(+ : equal)") for (int64_t i = 0; i < n; ++i) equal +=       \
            r[i] == score;                                                                      \
        return equal;                                                                           \
    }

LAPSUM_COUNTS(float)
LAPSUM_COUNTS(double)

}  // namespace
